//! The log: groups in the order of their numbers, in files that are written over again.
//!
//! Owns that a group is on disk before anybody sees it, and that nothing of the log is lost silently. Must not know what a
//! group says.
//!
//! ```text
//! file    head, groups
//! head    "batonlog", number of its first group (u64), number of the last group whose records were all in their tables
//!         when the file was begun (u64: "settled"), format 1 (u32), CRC-32C of these (u32)
//! group   CRC-32C of what follows (u32), length of the content (u32), number (u64), content, zeros up to a multiple of 8
//! ```
//!
//! All numbers are big-endian. Behind the last group of a file lies what an earlier use of the file has left, with lower
//! numbers. A file is used again once another one's head says that its groups are settled: so whatever a write over it
//! leaves when the power is cut, nothing is needed of it. With layers settled one after the other these are three files.
//! Their blocks are there already, and writing to them costs a fraction of what appending to a new file does.
//!
//! They are written past the page cache (`O_DIRECT`) where the file system can, since nothing of them is read before the next
//! start: in whole blocks, the first with what it had before, the last filled up with zeros.

use std::{
    fs::{self, File},
    io,
    ops::{Range, RangeInclusive},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;

use super::files::{Damage, entries};

const MAGIC: &[u8; 8] = b"batonlog";
const FORMAT: u32 = 1;
const HEAD: usize = 32;
const GROUP_HEAD: usize = 16;
/// Groups begin at multiples of this.
const ALIGNMENT: usize = 8;
const WINDOW: usize = 64 * 1024;
/// What is written at a time is a multiple of this, in the file and in memory, as disks want it.
const BLOCK: usize = 4096;
/// A buffer that a large group has left larger than this is given back.
const BUFFER_BYTES_MAX: usize = 8 * 1024 * 1024;

/// A file of the log.
#[derive(Debug, Clone)]
struct Segment {
    path: PathBuf,
    /// The number of its first group.
    first: u64,
    settled: u64,
}

/// What a log holds.
#[derive(Debug, Default)]
pub(super) struct Contents {
    /// Oldest first; the last is written to.
    segments: Vec<Segment>,
    /// Where the last one's last group ends.
    end: u64,
    /// The number of the last group.
    pub(super) last: u64,
    /// Up to this group, all records are in their tables.
    pub(super) settled: u64,
    pub(super) damages: Vec<Damage>,
}

impl Contents {
    /// The file that is, or should be, written to.
    pub(super) fn newest(&self) -> Option<&Path> {
        self.segments.last().map(|segment| segment.path.as_path())
    }
}

/// Reads a log, and changes nothing. `found` hears of each group that is not known to be settled, in order, with its content.
/// What cannot be read is said, and left out.
pub(super) fn read(folder: &Path, mut found: impl FnMut(u64, Bytes, &Arc<Path>)) -> Contents {
    let mut log = Contents::default();
    let mut headless = Vec::new();
    for path in entries(folder).unwrap_or_else(|damage| {
        log.damages.push(damage);
        Vec::new()
    }) {
        match Reader::open(&path).and_then(|reader| reader.head()) {
            Ok(Some((first, settled))) => log.segments.push(Segment { path, first, settled }),
            Ok(None) => headless.push(path),
            Err(error) => log.damages.push(Damage::unreadable(&path, &error)),
        }
    }
    log.segments.sort_by_key(|segment| segment.first);
    log.settled = log.segments.last().map_or(0, |newest| newest.settled);
    // Those between the last one that is settled and one of these are in files.
    let bytes: u64 =
        headless.iter().chain(log.segments.iter().map(|segment| &segment.path)).map(|path| length(path)).sum();
    let numbers = log.settled + 1..=log.settled + 1 + bytes / GROUP_HEAD as u64;
    for path in headless {
        match Reader::open(&path).and_then(|reader| reader.next_group(0, numbers.clone())) {
            Ok(None) => {} // it was about to be written over, or just made
            Ok(Some((_, group))) => {
                log.damages.push(Damage::new(&path, "its beginning is not what was written"));
                log.segments.push(Segment { path, first: group.number, settled: 0 });
            }
            Err(error) => log.damages.push(Damage::unreadable(&path, &error)),
        }
    }
    log.segments.sort_by_key(|segment| segment.first);
    log.last = log.settled;
    for place in 0..log.segments.len() {
        let segment = &log.segments[place];
        let next = log.segments.get(place + 1).map(|next| next.first);
        if next.is_some_and(|next| next <= log.settled + 1) {
            continue;
        }
        if segment.first > log.last + 1 {
            let problem = format!("group {} is not there, but group {} is", log.last + 1, segment.first);
            log.damages.push(Damage::new(folder, problem));
            log.last = segment.first - 1;
        }
        let path: Arc<Path> = segment.path.as_path().into();
        let settled = log.settled;
        let read = Reader::open(&path).and_then(|reader| {
            reader.groups(segment.first, next, |number, content| {
                if number > settled {
                    found(number, content, &path);
                }
            })
        });
        match read {
            Ok(Groups { last, end, damages }) => {
                log.damages.extend(damages.into_iter().map(|problem| Damage::new(&path, problem)));
                (log.last, log.end) = (last.max(log.last), end);
            }
            Err(error) => log.damages.push(Damage::unreadable(&path, &error)),
        }
    }
    log
}

/// Cuts off what was written behind this group, which is the last that was answered. Nobody knows whether the rest would
/// still be there after a power cut, though it can be read now.
pub(super) fn cut_behind(folder: &Path, last: u64) -> Result<(), Damage> {
    for path in entries(folder)? {
        let cut = || {
            let reader = Reader::open(&path)?;
            let Some((first, _)) = reader.head()? else { return Ok(()) };
            let end = if first > last + 1 {
                0
            } else {
                let end = reader.groups(first, Some(last + 1), |_, _| {})?.end;
                match reader.next_group(end, last + 1..=u64::MAX)? {
                    Some(_) => end,
                    None => return Ok(()),
                }
            };
            let file = File::options().write(true).open(&path)?;
            file.set_len(end)?;
            file.sync_all()
        };
        cut().map_err(|error| Damage::unreadable(&path, &error))?;
    }
    Ok(())
}

/// Groups that lie in a file one behind the other.
struct Groups {
    last: u64,
    end: u64,
    damages: Vec<String>,
}

/// A file of the log that is being read.
struct Reader {
    file: File,
    length: u64,
}

struct Group {
    number: u64,
    content: Bytes,
    end: u64,
}

impl Reader {
    fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let length = file.metadata()?.len();
        Ok(Self { file, length })
    }

    /// The number of the first group, and the last one that was settled.
    fn head(&self) -> io::Result<Option<(u64, u64)>> {
        let mut head = [0; HEAD];
        if self.length < HEAD as u64 {
            return Ok(None);
        }
        self.file.read_exact_at(&mut head, 0)?;
        let (first, settled) = (u64_at(&head, 8), u64_at(&head, 16));
        Ok((head == encode_head(first, settled)).then_some((first, settled)))
    }

    /// The whole group that begins here, if there is one with such a number.
    fn group_at(&self, at: u64, numbers: RangeInclusive<u64>) -> io::Result<Option<Group>> {
        let mut head = [0; GROUP_HEAD];
        if at + GROUP_HEAD as u64 > self.length {
            return Ok(None);
        }
        self.file.read_exact_at(&mut head, at)?;
        let (length, number) = parse_group_head(&head);
        let start = at + GROUP_HEAD as u64;
        if !numbers.contains(&number) || start + u64::from(length) > self.length {
            return Ok(None);
        }
        let mut content = vec![0; length as usize];
        self.file.read_exact_at(&mut content, start)?;
        let is_whole = group_checksum(&head, &content).to_be_bytes() == head[..4];
        let end = (start + u64::from(length)).next_multiple_of(ALIGNMENT as u64);
        Ok(is_whole.then(|| Group { number, content: content.into(), end }))
    }

    /// The groups from the first on, up to the one before `next`. Goes on behind what is damaged.
    fn groups(&self, first: u64, next: Option<u64>, mut found: impl FnMut(u64, Bytes)) -> io::Result<Groups> {
        let mut groups = Groups { last: first - 1, end: HEAD as u64, damages: Vec::new() };
        while next.is_none_or(|next| groups.last + 1 < next) {
            let wanted = groups.last + 1;
            let group = match self.group_at(groups.end, wanted..=wanted)? {
                Some(group) => group,
                None => {
                    let numbers = wanted..=wanted + self.length / GROUP_HEAD as u64;
                    let Some((at, group)) = self.next_group(groups.end, numbers)? else { break };
                    groups.damages.push(format!("bytes {} to {at} are not what was written", groups.end));
                    group
                }
            };
            if next.is_some_and(|next| group.number >= next) {
                break;
            }
            (groups.last, groups.end) = (group.number, group.end);
            found(group.number, group.content);
        }
        if next.is_some_and(|next| groups.last + 1 < next) {
            groups.damages.push(format!("from byte {} on it is not what was written", groups.end));
        }
        Ok(groups)
    }

    /// The next whole group behind this place that has such a number.
    fn next_group(&self, from: u64, numbers: RangeInclusive<u64>) -> io::Result<Option<(u64, Group)>> {
        let mut window = vec![0; WINDOW];
        let mut chunk = from.next_multiple_of(ALIGNMENT as u64);
        while chunk + GROUP_HEAD as u64 <= self.length {
            let count = usize::try_from(self.length - chunk).map_or(WINDOW, |left| left.min(WINDOW));
            self.file.read_exact_at(&mut window[..count], chunk)?;
            for place in (0..=count - GROUP_HEAD).step_by(ALIGNMENT) {
                let at = chunk + place as u64;
                let (length, found) = parse_group_head(&window[place..place + GROUP_HEAD]);
                let fits = at + GROUP_HEAD as u64 + u64::from(length) <= self.length;
                if fits
                    && numbers.contains(&found)
                    && let Some(group) = self.group_at(at, numbers.clone())?
                {
                    return Ok(Some((at, group)));
                }
            }
            // A head may lie across two windows.
            chunk += ((count - GROUP_HEAD) / ALIGNMENT * ALIGNMENT + ALIGNMENT) as u64;
        }
        Ok(None)
    }
}

/// A log that is written to.
pub(super) struct Log {
    folder: PathBuf,
    segments: Vec<Segment>,
    /// `None`: the next group begins a file.
    open: Option<Open>,
    /// What the next head says.
    settled: u64,
    last: u64,
    /// What there is of the block in which the last group ends.
    buffer: Buffer,
}

/// The file that is written to.
struct Open {
    path: PathBuf,
    file: File,
    /// Where the buffer lies in it: at a multiple of [`BLOCK`].
    at: u64,
}

impl Log {
    /// Goes on behind what was read of it.
    pub(super) fn open(folder: &Path, contents: Contents) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let mut buffer = Buffer::default();
        let open = match contents.newest() {
            None => None,
            Some(path) => {
                let begun = contents.end % BLOCK as u64;
                let open = Open { path: path.into(), file: open_direct(path)?, at: contents.end - begun };
                open.file.sync_data()?; // its last group counts from now on, and perhaps nobody has synced it
                File::open(path)?.read_exact_at(buffer.extend(begun as usize), open.at)?;
                Some(open)
            }
        };
        let Contents { segments, last, settled, .. } = contents;
        Ok(Self { folder: folder.into(), segments, open, settled, last, buffer })
    }

    /// The number of the last group.
    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// What all its files take.
    pub(super) fn size_bytes(&self) -> u64 {
        self.segments.iter().map(|segment| length(&segment.path)).sum()
    }

    /// Has the next group begin a file: those up to `settled` are in the tables, and those behind it soon will be.
    pub(super) fn roll(&mut self, settled: u64) {
        self.open = None;
        self.settled = settled;
    }

    /// Writes the next group and syncs it (`fdatasync`). `encode` adds its content to what is in the buffer. Returns how many
    /// bytes it takes. After a failure nobody knows what is on disk.
    pub(super) fn append(&mut self, encode: impl FnOnce(&mut Vec<u8>)) -> io::Result<usize> {
        let number = self.last + 1;
        if self.open.is_none() {
            self.open = Some(self.begin(number)?);
            self.buffer.keep(0..0);
            self.buffer.bytes.extend_from_slice(&encode_head(number, self.settled));
        }
        let Some(open) = &mut self.open else { unreachable!("it was just opened") };
        let before = self.buffer.content().len();
        put_group(&mut self.buffer.bytes, number, encode);
        let end = self.buffer.content().len();
        open.write(self.buffer.blocks())?;
        let begun = end - end % BLOCK;
        open.at += begun as u64;
        self.buffer.keep(begun..end);
        self.last = number;
        Ok(end - before)
    }

    /// Chooses a file: one of which nothing is needed, as another one's head says, or else a new one.
    fn begin(&mut self, first: u64) -> io::Result<Open> {
        let recorded = self.segments.last().map_or(0, |newest| newest.settled);
        let is_free = self.segments.get(1).is_some_and(|next| next.first <= recorded + 1);
        let path = if is_free { self.segments.remove(0).path } else { self.new_path() };
        let is_new = !path.exists();
        let file = open_direct(&path)?;
        if is_new {
            File::open(&self.folder)?.sync_all()?;
        }
        self.segments.push(Segment { path: path.clone(), first, settled: self.settled });
        Ok(Open { path, file, at: 0 })
    }

    fn new_path(&self) -> PathBuf {
        let names = (0_u64..).map(|number| self.folder.join(number.to_string()));
        let is_used = |path: &PathBuf| self.segments.iter().any(|segment| segment.path == *path);
        names.into_iter().find(|path| !is_used(path)).expect("there is always another number")
    }
}

impl Open {
    /// Writes the buffer where it lies, and syncs it.
    fn write(&mut self, blocks: &[u8]) -> io::Result<()> {
        match self.file.write_all_at(blocks, self.at) {
            // This disk wants larger blocks: by way of the page cache, then.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                self.file = File::options().write(true).open(&self.path)?;
                self.file.write_all_at(blocks, self.at)?;
            }
            written => written?,
        }
        self.file.sync_data()
    }
}

/// Opens a file for writing past the page cache, if its file system can, and makes it if it is not there.
fn open_direct(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.write(true).create(true).truncate(false);
    #[cfg(target_os = "linux")]
    {
        use std::os::unix::fs::OpenOptionsExt as _;
        match options.clone().custom_flags(rustix::fs::OFlags::DIRECT.bits().cast_signed()).open(path) {
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {}
            opened => return opened,
        }
    }
    options.open(path)
}

/// Bytes that can be made to lie in memory as a disk wants them.
#[derive(Default)]
struct Buffer {
    bytes: Vec<u8>,
    /// What is before this is nothing.
    start: usize,
}

impl Buffer {
    fn content(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// Adds so many zeros, to be written over.
    fn extend(&mut self, count: usize) -> &mut [u8] {
        let end = self.bytes.len();
        self.bytes.resize(end + count, 0);
        &mut self.bytes[end..]
    }

    /// Fills the content up with zeros to whole blocks, beginning at a multiple of one in memory.
    fn blocks(&mut self) -> &[u8] {
        let length = self.content().len().next_multiple_of(BLOCK);
        self.bytes.resize(self.start + length, 0);
        if !self.content().as_ptr().addr().is_multiple_of(BLOCK) {
            self.bytes.reserve(BLOCK);
            let former = self.start..self.bytes.len();
            self.start = BLOCK - self.bytes.as_ptr().addr() % BLOCK;
            self.bytes.resize(former.end.max(self.start + length), 0);
            self.bytes.copy_within(former, self.start);
            self.bytes.truncate(self.start + length);
        }
        debug_assert!(self.content().as_ptr().addr().is_multiple_of(BLOCK), "there was room for it");
        self.content()
    }

    /// Keeps only this part of the content.
    fn keep(&mut self, part: Range<usize>) {
        self.bytes.copy_within(self.start + part.start..self.start + part.end, self.start);
        self.bytes.truncate(self.start + part.len());
        if self.bytes.capacity() > BUFFER_BYTES_MAX {
            *self = Self { bytes: self.content().to_vec(), start: 0 };
        }
    }
}

fn length(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |found| found.len())
}

fn encode_head(first: u64, settled: u64) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[..8].copy_from_slice(MAGIC);
    head[8..16].copy_from_slice(&first.to_be_bytes());
    head[16..24].copy_from_slice(&settled.to_be_bytes());
    head[24..28].copy_from_slice(&FORMAT.to_be_bytes());
    let checksum = crc32c::crc32c(&head[..28]);
    head[28..].copy_from_slice(&checksum.to_be_bytes());
    head
}

fn put_group(buffer: &mut Vec<u8>, number: u64, encode: impl FnOnce(&mut Vec<u8>)) {
    let start = buffer.len();
    buffer.extend_from_slice(&[0; GROUP_HEAD]);
    encode(buffer);
    let (head, content) = buffer[start..].split_at_mut(GROUP_HEAD);
    let length = u32::try_from(content.len()).expect("no group has 4 GiB");
    head[4..8].copy_from_slice(&length.to_be_bytes());
    head[8..].copy_from_slice(&number.to_be_bytes());
    let checksum = group_checksum(head, content);
    head[..4].copy_from_slice(&checksum.to_be_bytes());
    let length = (buffer.len() - start).next_multiple_of(ALIGNMENT);
    buffer.resize(start + length, 0);
}

/// The length of the content, and the number.
fn parse_group_head(head: &[u8]) -> (u32, u64) {
    (u32::from_be_bytes(head[4..8].try_into().expect("4 bytes")), u64_at(head, 8))
}

/// Over the number too: a group in the wrong place is as wrong as a damaged one.
fn group_checksum(head: &[u8], content: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&head[4..]), content)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    type Groups = BTreeMap<u64, Vec<u8>>;
    type Files = BTreeMap<PathBuf, Vec<u8>>;

    fn found(folder: &Path) -> (Groups, Contents) {
        let mut groups = Groups::new();
        let contents = read(folder, |number, content, _| drop(groups.insert(number, content.to_vec())));
        (groups, contents)
    }

    fn opened(folder: &Path) -> Log {
        Log::open(folder, found(folder).1).unwrap()
    }

    fn files(folder: &Path) -> Files {
        let paths = entries(folder).unwrap().into_iter();
        paths.map(|path| (path.clone(), fs::read(path).unwrap())).collect()
    }

    fn put_back(folder: &Path, files: &Files) {
        fs::remove_dir_all(folder).unwrap();
        fs::create_dir(folder).unwrap();
        files.iter().for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
    }

    fn append(log: &mut Log, content: &[u8]) {
        log.append(|buffer| buffer.extend_from_slice(content)).unwrap();
    }

    fn content(number: u64) -> Vec<u8> {
        vec![number as u8; (number as usize * 37) % 200]
    }

    /// Appends groups, and after every so many begins a file; what came before the last file but one is settled then, as it
    /// is when a layer is written at a time. Returns what a reader must find at least.
    fn fill(log: &mut Log, groups: u64, a_file: u64) -> Groups {
        for number in log.last() + 1..=groups {
            if number > 1 && (number - 1) % a_file == 0 {
                log.roll((number - 1).saturating_sub(a_file));
            }
            append(log, &content(number));
        }
        let settled = log.settled;
        (settled + 1..=groups).map(|number| (number, content(number))).collect()
    }

    #[test]
    fn a_log_goes_round_three_files_and_says_what_is_not_settled() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = opened(folder.path());
        for groups in 1..100 {
            let wanted = fill(&mut log, groups, 7);
            let (found, contents) = found(folder.path());
            assert_eq!((found, contents.last, contents.damages), (wanted, groups, vec![]));
            if groups % 10 == 0 {
                log = opened(folder.path());
            }
        }
        assert_eq!(files(folder.path()).len(), 3);
    }

    #[test]
    fn groups_of_any_length_follow_each_other_across_blocks() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = opened(folder.path());
        let mut wanted = Groups::new();
        for (number, length) in (1..).zip([0, 4000, 8, 33, 4096, 4079, 9000, 0, 100_000, 7, BUFFER_BYTES_MAX, 1, 5000])
        {
            wanted.insert(number, vec![number as u8; length]);
            append(&mut log, &wanted[&number]);
            assert!(log.buffer.content().len() < BLOCK && log.buffer.bytes.capacity() <= BUFFER_BYTES_MAX);
            let (found, contents) = found(folder.path());
            assert!(found == wanted, "{number}");
            assert_eq!((contents.last, contents.damages), (number, vec![]));
            if number % 3 == 0 {
                log = opened(folder.path());
            }
        }
    }

    #[test]
    fn what_is_not_settled_is_never_written_over() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = opened(folder.path());
        for number in 1..=20 {
            log.roll(0);
            append(&mut log, &content(number));
        }
        assert_eq!(found(folder.path()).0.len(), 20);
        assert_eq!(files(folder.path()).len(), 20);
    }

    #[test]
    fn whatever_byte_is_changed_is_noticed_and_all_other_groups_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let wanted = fill(&mut opened(folder.path()), 24, 7);
        let good = files(folder.path());
        for (path, bytes) in &good {
            for place in 0..bytes.len() {
                let mut damaged = bytes.clone();
                damaged[place] ^= 0x10;
                fs::write(path, &damaged).unwrap();
                let (found, contents) = found(folder.path());
                let missing = wanted.keys().filter(|number| !found.contains_key(number)).count();
                assert!(found.iter().all(|(number, group)| *group == content(*number)), "{place}: made up");
                assert!(missing <= 1, "{} byte {place}: {missing} are missing", path.display());
                let is_noticed = !contents.damages.is_empty() || contents.last < 24;
                assert!(missing == 0 || is_noticed, "{} byte {place}", path.display());
            }
            fs::write(path, bytes).unwrap();
        }
    }

    #[test]
    fn a_file_that_is_missing_or_cut_off_is_noticed_unless_nothing_is_needed_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let wanted = fill(&mut opened(folder.path()), 24, 7);
        let good = files(folder.path());
        let mut unneeded = 0;
        for (path, bytes) in &good {
            let end = bytes.iter().rposition(|byte| *byte != 0).unwrap(); // behind it is what fills the block
            for length in [None, Some(0), Some(20), Some(end / 2), Some(end - 7)] {
                match length {
                    None => fs::remove_file(path).unwrap(),
                    Some(length) => fs::write(path, &bytes[..length]).unwrap(),
                }
                let (found, contents) = found(folder.path());
                let is_noticed = !contents.damages.is_empty() || contents.last < 24;
                assert_eq!(wanted.iter().all(|group| found.get(group.0) == Some(group.1)), !is_noticed, "{length:?}");
                unneeded += u32::from(!is_noticed);
                put_back(folder.path(), &good);
            }
        }
        assert!((3..=7).contains(&unneeded), "{unneeded}");
    }

    #[test]
    fn what_was_not_answered_is_cut_off_and_what_was_is_not() {
        let folder = tempfile::tempdir().unwrap();
        for answered in [1, 6, 7, 8, 13, 14, 15, 23] {
            let mut log = opened(folder.path());
            fill(&mut log, answered, 7);
            let before = found(folder.path()).0;
            // In the same file, or in the next one.
            for rolls in [false, true] {
                if rolls {
                    log.roll(log.settled);
                }
                append(&mut log, b"not answered");
                cut_behind(folder.path(), answered).unwrap();
                let (found, contents) = found(folder.path());
                assert_eq!((contents.last, contents.damages), (answered, vec![]));
                assert!(before.iter().all(|group| found.get(group.0) == Some(group.1)), "{answered}");
                log = opened(folder.path());
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// A disk writes sectors of 512 bytes wholly or not at all, in any order.
        #[test]
        fn wherever_the_power_is_cut_all_is_there_that_was_answered(
            groups in 1..40_u64,
            a_file in 1..9_u64,
            length in 0..3000_usize,
            written in prop::collection::vec(any::<bool>(), 8),
            grown in 0..4000_usize,
        ) {
            let folder = tempfile::tempdir().unwrap();
            let mut log = opened(folder.path());
            fill(&mut log, groups, a_file);
            let (before, answered) = (files(folder.path()), found(folder.path()).0);
            if groups % a_file == 0 {
                log.roll(groups.saturating_sub(a_file));
            }
            append(&mut log, &vec![0xaa; length]);
            for (path, new) in files(folder.path()) {
                let old = before.get(&path).cloned().unwrap_or_default();
                let mut mixed = new.clone();
                mixed[..old.len()].copy_from_slice(&old);
                mixed[old.len()..].fill(0);
                let changed = (0..new.len()).find(|place| mixed[*place] != new[*place]).unwrap_or(0) / 512;
                for (sector, bytes) in new.chunks(512).enumerate() {
                    if written[sector.saturating_sub(changed) % written.len()] {
                        mixed[sector * 512..sector * 512 + bytes.len()].copy_from_slice(bytes);
                    }
                }
                mixed.truncate(old.len() + grown);
                fs::write(path, mixed).unwrap();
            }
            let (found, contents) = found(folder.path());
            prop_assert_eq!(&contents.damages, &vec![]);
            prop_assert!((groups..=groups + 1).contains(&contents.last));
            for (number, group) in answered.range(contents.settled + 1..) {
                prop_assert_eq!(found.get(number), Some(group));
            }
            // And it goes on from there.
            let mut log = Log::open(folder.path(), contents).unwrap();
            append(&mut log, b"next");
            let (again, contents) = self::found(folder.path());
            prop_assert_eq!((contents.last, contents.damages), (log.last(), vec![]));
            prop_assert_eq!(again.get(&log.last()), Some(&b"next".to_vec()));
        }
    }
}

//! The write-ahead log: groups in the order of their numbers, in files that are reused.
//!
//! Owns that a group is on disk before any reader sees it, and that no group is lost silently. Must not know the
//! content of a group.
//!
//! ```text
//! file    head, at byte 4096 the head again, from byte 8192 on groups
//! head    "batonlog", format 2 (u32), zeros (u32), number of its first group (u64), number of the last group whose
//!         records were all in their tables when the file was begun (u64: "settled"), key (16 bytes), CRC-32C of all
//!         these (u32)
//! group   tag of the head (16 bytes), tag of the content (16 bytes), length of the content (u32), zeros (u32),
//!         number (u64), content, zeros up to a multiple of 64
//! ```
//!
//! All numbers are big-endian. A file is reused once the head of another file says that its groups are settled. So an
//! interrupted write over it destroys no group that a start needs. Layers are settled one after the other, so three
//! files are enough. The blocks of a reused file are allocated, and writing to them costs a fraction of appending to a
//! new file. A new file gets its name only after both heads are on disk, so a file without a valid head is damaged.
//!
//! Groups hold bytes chosen by agents, and behind the last group of a file lie groups of an earlier use. Tags tell a
//! group from such bytes. Each use of a file draws a random key; a tag is the AES-128-GMAC, under this key, of the
//! offset in the file and of the bytes there. An agent does not know the key and cannot make a tag. A group of an
//! earlier use has tags under another key, and a copy of a group inside a message lies at another offset than the
//! original.
//!
//! Files are written past the page cache (`O_DIRECT`) where the file system allows it, because nothing reads them
//! before the next start. A write covers whole blocks: the first block repeats the bytes that it had, and the last
//! one is padded with zeros.

use std::{
    fmt,
    fs::{self, File},
    io,
    ops::{Range, RangeInclusive},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use bytes::Bytes;

use super::files::{Damage, entries};
use crate::{
    disk,
    ids::{IdSource as _, SystemIds},
};

const MAGIC: &[u8; 8] = b"batonlog";
const FORMAT: u32 = 2;
const HEAD: usize = 52;
const TAG: usize = 16;
const GROUP_HEAD: usize = 48;
/// The alignment of groups, in bytes.
const ALIGNMENT: usize = 64;
const WINDOW: usize = 64 * 1024;
/// The alignment of each write, in bytes: in the file, in memory, and of the length, as `O_DIRECT` requires.
const BLOCK: usize = 4096;
/// The offsets of the two heads. They lie in two blocks, because without the key of the head no group can be
/// recognised.
const HEADS_AT: [usize; 2] = [0, BLOCK];
/// The offset of the first group.
const GROUPS_AT: usize = 2 * BLOCK;
/// The capacity, in bytes, above which the buffer is shrunk after a large group.
const BUFFER_BYTES_MAX: usize = 8 * 1024 * 1024;

/// The head of a file: one per use of the file.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Head {
    /// The number of the file's first group.
    first: u64,
    settled: u64,
    key: [u8; 16],
}

impl fmt::Debug for Head {
    /// Omits the key.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Head(from {}, settled {})", self.first, self.settled)
    }
}

/// A file of the log.
#[derive(Debug, Clone)]
struct Segment {
    path: PathBuf,
    /// The valid head.
    head: Head,
    /// The heads at both offsets; `None` for a damaged one.
    copies: [Option<Head>; 2],
}

impl Segment {
    /// Reads the heads of a file. Fails if both are damaged.
    fn read(path: &Path) -> Result<Self, Damage> {
        let file = File::open(path).map_err(|error| Damage::unreadable(path, &error))?;
        let copies = HEADS_AT.map(|at| {
            let mut head = [0; HEAD];
            file.read_exact_at(&mut head, at as u64).ok().and_then(|()| decode_head(&head))
        });
        // After a power cut, one of the two may still be the head of the earlier use; the newer one has the higher
        // number.
        match copies.into_iter().flatten().max_by_key(|head| head.first) {
            Some(head) => Ok(Self { path: path.into(), head, copies }),
            None => {
                Err(Damage::new(path, "its beginning is not what was written, and without it no group can be read"))
            }
        }
    }

    fn is_damaged(&self) -> bool {
        self.copies.contains(&None)
    }
}

/// The content of a log.
#[derive(Debug, Default)]
pub(super) struct Contents {
    /// Oldest first; new groups go to the last one.
    segments: Vec<Segment>,
    /// The offset at which the last file's last group ends.
    end: u64,
    /// The number of the last group.
    pub(super) last: u64,
    /// The last group up to which every record is in its table.
    pub(super) settled: u64,
    pub(super) damages: Vec<Damage>,
}

impl Contents {
    /// The file that takes new groups.
    pub(super) fn newest(&self) -> Option<&Path> {
        self.segments.last().map(|segment| segment.path.as_path())
    }
}

/// Reads a log without changing it. `found` is called, in order, for each group not known to be settled, with
/// its content. Unreadable parts are reported in `damages` and skipped.
pub(super) fn read(folder: &Path, mut found: impl FnMut(u64, Bytes, &Arc<Path>)) -> Contents {
    let mut log = Contents::default();
    match entries(folder) {
        Err(damage) => log.damages.push(damage),
        Ok(paths) => {
            for path in paths.iter().filter(|path| is_name(path)) {
                match Segment::read(path) {
                    Ok(segment) => log.segments.push(segment),
                    Err(damage) => log.damages.push(damage),
                }
            }
        }
    }
    log.segments.sort_by_key(|segment| segment.head.first);
    log.settled = log.segments.last().map_or(0, |newest| newest.head.settled);
    log.last = log.settled;
    for place in 0..log.segments.len() {
        let segment = &log.segments[place];
        let next = log.segments.get(place + 1).map(|next| next.head.first);
        // All groups of this file are settled. No start needs them, so damage to the file does not matter.
        if next.is_some_and(|next| next <= log.settled + 1) {
            continue;
        }
        if segment.is_damaged() {
            log.damages.push(Damage::new(&segment.path, "one of its two heads is not what was written"));
        }
        // Groups are missing between the files. Reading continues after the gap, for salvage.
        if segment.head.first > log.last + 1 {
            let problem = format!("group {} is not there, but group {} is", log.last + 1, segment.head.first);
            log.damages.push(Damage::new(folder, problem));
            log.last = segment.head.first - 1;
        }
        let path: Arc<Path> = segment.path.as_path().into();
        let settled = log.settled;
        let read = Reader::open(segment).and_then(|reader| {
            reader.groups(segment.head.first, next, |number, content| {
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

/// Whether this is the name of a log file. Other files are drafts left by a power cut, or foreign.
fn is_name(path: &Path) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.parse::<u64>().is_ok())
}

/// Truncates the log after group `last`, the last acknowledged one. Bytes behind it are readable now, but may not be
/// synced and could be lost in a power cut. Changes nothing if any part of the log is damaged.
pub(super) fn cut_behind(folder: &Path, last: u64) -> Result<(), Damage> {
    let log = read(folder, |_, _, _| {});
    if let Some(damage) = log.damages.into_iter().next() {
        return Err(damage);
    }
    let Some(newest) = log.segments.last().filter(|_| log.last > last) else { return Ok(()) };
    // A failed write leaves group `last + 1` at most, so a file that begins behind it contradicts `last`.
    if newest.head.first > last + 1 {
        let problem =
            format!("it begins with group {}, but group {last} is the last that was written", newest.head.first);
        return Err(Damage::new(&newest.path, problem));
    }
    let cut = || {
        let end = Reader::open(newest)?.groups(newest.head.first, Some(last + 1), |_, _| {})?.end;
        let file = File::options().write(true).open(&newest.path)?;
        file.set_len(end)?;
        file.sync_all()
    };
    cut().map_err(|error| Damage::unreadable(&newest.path, &error))
}

/// The result of reading the consecutive groups of a file.
struct Groups {
    last: u64,
    end: u64,
    damages: Vec<String>,
}

/// A log file opened for reading.
struct Reader {
    file: File,
    length: u64,
    key: FileKey,
}

struct Group {
    number: u64,
    content: Bytes,
    end: u64,
}

impl Reader {
    fn open(segment: &Segment) -> io::Result<Self> {
        let file = File::open(&segment.path)?;
        let length = file.metadata()?.len();
        Ok(Self { file, length, key: FileKey::new(&segment.head.key) })
    }

    /// Whether a valid group head lies at `at`, with one of these numbers and with room in the file for its content.
    fn is_group_head(&self, head: &[u8], at: u64, numbers: &RangeInclusive<u64>) -> bool {
        let (length, number) = parse_group_head(head);
        // The tag is the expensive check, and a search calls this for every 64 bytes; so the tag comes last.
        numbers.contains(&number)
            && at + GROUP_HEAD as u64 + u64::from(length) <= self.length
            && self.key.tag(Part::Head, at, &head[TAG..GROUP_HEAD]) == head[..TAG]
    }

    /// The intact group that begins at `at`, if one does and has one of these numbers.
    fn group_at(&self, at: u64, numbers: &RangeInclusive<u64>) -> io::Result<Option<Group>> {
        let mut head = [0; GROUP_HEAD];
        if at + GROUP_HEAD as u64 > self.length {
            return Ok(None);
        }
        self.file.read_exact_at(&mut head, at)?;
        if !self.is_group_head(&head, at, numbers) {
            return Ok(None);
        }
        let (length, number) = parse_group_head(&head);
        let start = at + GROUP_HEAD as u64;
        let mut content = vec![0; length as usize];
        self.file.read_exact_at(&mut content, start)?;
        let is_whole = self.key.tag(Part::Content, at, &content) == head[TAG..2 * TAG];
        let end = (start + u64::from(length)).next_multiple_of(ALIGNMENT as u64);
        Ok(is_whole.then(|| Group { number, content: content.into(), end }))
    }

    /// Reads the groups from `first` up to the one before `next`. Skips damaged parts.
    fn groups(&self, first: u64, next: Option<u64>, mut found: impl FnMut(u64, Bytes)) -> io::Result<Groups> {
        let mut groups = Groups { last: first - 1, end: GROUPS_AT as u64, damages: Vec::new() };
        while next.is_none_or(|next| groups.last + 1 < next) {
            let wanted = groups.last + 1;
            let group = match self.group_at(groups.end, &(wanted..=wanted))? {
                Some(group) => group,
                None => {
                    let numbers = wanted..=wanted + self.length / GROUP_HEAD as u64;
                    let Some((at, group)) = self.next_group(groups.end, &numbers)? else { break };
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

    /// The next intact group at or behind `from` with one of these numbers, and its offset.
    fn next_group(&self, from: u64, numbers: &RangeInclusive<u64>) -> io::Result<Option<(u64, Group)>> {
        let mut window = vec![0; WINDOW];
        let mut chunk = from.next_multiple_of(ALIGNMENT as u64);
        while chunk + GROUP_HEAD as u64 <= self.length {
            let count = usize::try_from(self.length - chunk).map_or(WINDOW, |left| left.min(WINDOW));
            self.file.read_exact_at(&mut window[..count], chunk)?;
            for place in (0..=count - GROUP_HEAD).step_by(ALIGNMENT) {
                let at = chunk + place as u64;
                if self.is_group_head(&window[place..place + GROUP_HEAD], at, numbers)
                    && let Some(group) = self.group_at(at, numbers)?
                {
                    return Ok(Some((at, group)));
                }
            }
            // A window is a multiple of the alignment, so no head spans two windows.
            chunk += WINDOW as u64;
        }
        Ok(None)
    }
}

/// The parts of a group with separate tags. The head's tag is checked before its length is used.
#[derive(Clone, Copy)]
enum Part {
    Head = 0,
    Content = 1,
}

/// The key of one use of a file.
struct FileKey(LessSafeKey);

impl FileKey {
    fn new(key: &[u8; 16]) -> Self {
        Self(LessSafeKey::new(UnboundKey::new(&AES_128_GCM, key).expect("16 bytes are a key of AES-128")))
    }

    /// The tag of a part of the group at offset `at`. A retry of a failed write reuses the nonce with the same key.
    /// Reuse helps only an attacker who reads the tags, and tags never leave the file.
    fn tag(&self, part: Part, at: u64, bytes: &[u8]) -> [u8; TAG] {
        let mut nonce = [0; 12];
        nonce[..8].copy_from_slice(&at.to_be_bytes());
        nonce[8] = part as u8;
        let nonce = Nonce::assume_unique_for_key(nonce);
        let tag = self.0.seal_in_place_separate_tag(nonce, Aad::from(bytes), &mut []).expect("no part is too long");
        tag.as_ref().try_into().expect("16 bytes")
    }
}

/// A log that takes new groups.
pub(super) struct Log {
    folder: PathBuf,
    segments: Vec<Segment>,
    /// `None`: the next group begins a file.
    open: Option<Open>,
    /// The settled number that the next head records.
    settled: u64,
    last: u64,
    /// The bytes of the block in which the last group ends.
    buffer: Buffer,
}

/// The log file that takes new groups.
struct Open {
    path: PathBuf,
    file: File,
    key: FileKey,
    /// The offset of the buffer in the file: a multiple of [`BLOCK`].
    at: u64,
}

impl Log {
    /// Opens the log after its last group, given the result of [`read`].
    pub(super) fn open(folder: &Path, contents: Contents) -> io::Result<Self> {
        disk::make_folder(folder)?;
        let mut buffer = Buffer::default();
        let open = match contents.segments.last() {
            None => None,
            Some(Segment { path, head, copies }) => {
                let file = File::options().read(true).write(true).open(path)?;
                if copies[0] != copies[1] {
                    // One head may be that of the earlier use. If the other one were damaged later, the old one would
                    // count.
                    HEADS_AT.iter().try_for_each(|at| file.write_all_at(&encode_head(head), *at as u64))?;
                }
                file.sync_all()?; // its last group counts from now on, and may not be synced
                let begun = contents.end % BLOCK as u64;
                let at = contents.end - begun;
                // The file may end before the padding of its last group.
                let there = file.metadata()?.len().saturating_sub(at).min(begun);
                file.read_exact_at(&mut buffer.extend(begun as usize)[..there as usize], at)?;
                Some(Open { path: path.clone(), file: open_direct(path)?, key: FileKey::new(&head.key), at })
            }
        };
        let Contents { segments, last, settled, .. } = contents;
        Ok(Self { folder: folder.into(), segments, open, settled, last, buffer })
    }

    /// The number of the last group.
    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// The size of all log files, in bytes.
    pub(super) fn size_bytes(&self) -> u64 {
        self.segments.iter().map(|segment| length(&segment.path)).sum()
    }

    /// Makes the next group begin a new file. The groups up to `settled` are in the tables, and a layer with the groups
    /// behind it is about to be written.
    pub(super) fn roll(&mut self, settled: u64) {
        self.open = None;
        self.settled = settled;
    }

    /// Writes the next group and syncs it (`fdatasync`). `encode` appends the group's content to the buffer. Returns
    /// the length of the group in the file, in bytes. After a failure the state on disk is unknown.
    pub(super) fn append(&mut self, encode: impl FnOnce(&mut Vec<u8>)) -> io::Result<usize> {
        let number = self.last + 1;
        if self.open.is_none() {
            let (open, head) = self.begin(number)?;
            self.buffer.keep(0..0);
            self.buffer.extend(GROUPS_AT).copy_from_slice(&encode_heads(&head));
            self.open = Some(open);
        }
        let Some(open) = &mut self.open else { unreachable!("it was just opened") };
        let before = self.buffer.content().len();
        put_group(&mut self.buffer.bytes, &open.key, open.at + before as u64, number, encode);
        let end = self.buffer.content().len();
        open.write(self.buffer.blocks())?;
        let begun = end - end % BLOCK;
        open.at += begun as u64;
        self.buffer.keep(begun..end);
        self.last = number;
        Ok(end - before)
    }

    /// Chooses the file for the next group: a settled one that the newest head allows to reuse, or else a new one.
    fn begin(&mut self, first: u64) -> io::Result<(Open, Head)> {
        let head = Head { first, settled: self.settled, key: SystemIds.random() };
        let recorded = self.segments.last().map_or(0, |newest| newest.head.settled);
        // The oldest file is free if the next file begins at or before the first group that is not settled.
        let is_free = self.segments.get(1).is_some_and(|next| next.head.first <= recorded + 1);
        let path = if let Some(empty) = self.segments.pop_if(|newest| newest.head.first == first) {
            // Its first group was never written. A second file with this first number would make the newest ambiguous.
            empty.path
        } else if is_free {
            self.segments.remove(0).path
        } else {
            let path = self.new_path();
            disk::write_whole(&path, &encode_heads(&head))?;
            path
        };
        let file = open_direct(&path)?;
        self.segments.push(Segment { path: path.clone(), head, copies: [Some(head); 2] });
        Ok((Open { path, file, key: FileKey::new(&head.key), at: 0 }, head))
    }

    fn new_path(&self) -> PathBuf {
        let names = (0_u64..).map(|number| self.folder.join(number.to_string()));
        let is_used = |path: &PathBuf| self.segments.iter().any(|segment| segment.path == *path);
        names.into_iter().find(|path| !is_used(path)).expect("there is always another number")
    }
}

impl Open {
    /// Writes the buffer at its offset, and syncs it.
    fn write(&mut self, blocks: &[u8]) -> io::Result<()> {
        match self.file.write_all_at(blocks, self.at) {
            // The disk requires larger blocks than [`BLOCK`], so the write goes through the page cache.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                self.file = File::options().write(true).open(&self.path)?;
                self.file.write_all_at(blocks, self.at)?;
            }
            written => written?,
        }
        self.file.sync_data()
    }
}

/// Opens a file for writing, with `O_DIRECT` if the file system supports it.
fn open_direct(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.write(true);
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

/// A buffer whose content can be aligned in memory, as `O_DIRECT` requires.
#[derive(Default)]
struct Buffer {
    bytes: Vec<u8>,
    /// The offset of the content in `bytes`.
    start: usize,
}

impl Buffer {
    fn content(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// Appends `count` zeros and returns them, to be overwritten.
    fn extend(&mut self, count: usize) -> &mut [u8] {
        let end = self.bytes.len();
        self.bytes.resize(end + count, 0);
        &mut self.bytes[end..]
    }

    /// Pads the content with zeros to whole blocks, and moves it to a multiple of [`BLOCK`] in memory.
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

    /// Drops the content outside `part`.
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

fn encode_head(head: &Head) -> [u8; HEAD] {
    let mut encoded = [0; HEAD];
    encoded[..8].copy_from_slice(MAGIC);
    encoded[8..12].copy_from_slice(&FORMAT.to_be_bytes());
    encoded[16..24].copy_from_slice(&head.first.to_be_bytes());
    encoded[24..32].copy_from_slice(&head.settled.to_be_bytes());
    encoded[32..48].copy_from_slice(&head.key);
    let checksum = crc32c::crc32c(&encoded[..48]);
    encoded[48..].copy_from_slice(&checksum.to_be_bytes());
    encoded
}

fn decode_head(encoded: &[u8; HEAD]) -> Option<Head> {
    let key = encoded[32..48].try_into().expect("16 bytes");
    let head = Head { first: u64_at(encoded, 16), settled: u64_at(encoded, 24), key };
    (head.first > 0 && encode_head(&head) == *encoded).then_some(head)
}

/// The bytes of a file before its groups: both heads.
fn encode_heads(head: &Head) -> [u8; GROUPS_AT] {
    let mut heads = [0; GROUPS_AT];
    HEADS_AT.iter().for_each(|at| heads[*at..at + HEAD].copy_from_slice(&encode_head(head)));
    heads
}

fn put_group(buffer: &mut Vec<u8>, key: &FileKey, at: u64, number: u64, encode: impl FnOnce(&mut Vec<u8>)) {
    let start = buffer.len();
    buffer.extend_from_slice(&[0; GROUP_HEAD]);
    encode(buffer);
    let (head, content) = buffer[start..].split_at_mut(GROUP_HEAD);
    let length = u32::try_from(content.len()).expect("no group has 4 GiB");
    head[TAG..2 * TAG].copy_from_slice(&key.tag(Part::Content, at, content));
    head[32..36].copy_from_slice(&length.to_be_bytes());
    head[40..].copy_from_slice(&number.to_be_bytes());
    let tag = key.tag(Part::Head, at, &head[TAG..]);
    head[..TAG].copy_from_slice(&tag);
    let length = (buffer.len() - start).next_multiple_of(ALIGNMENT);
    buffer.resize(start + length, 0);
}

/// The length of the content, and the number.
fn parse_group_head(head: &[u8]) -> (u32, u64) {
    (u32::from_be_bytes(head[32..36].try_into().expect("4 bytes")), u64_at(head, 40))
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

    /// Appends groups, and begins a file after every `a_file` groups. Settles the groups before the last file but one,
    /// as the store does after each layer. Returns the groups that a reader must find at least.
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
            // Some of the zeros behind the heads, and every other byte.
            let is_looked_at = |place: &usize| *place >= GROUPS_AT || place % BLOCK < HEAD || place.is_multiple_of(61);
            for place in (0..bytes.len()).filter(is_looked_at) {
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
            let end = bytes.iter().rposition(|byte| *byte != 0).unwrap(); // the padding of the block follows
            for length in [None, Some(0), Some(20), Some(end / 2), Some(end - 7)] {
                match length {
                    None => fs::remove_file(path).unwrap(),
                    Some(length) => fs::write(path, &bytes[..length]).unwrap(),
                }
                let (found, contents) = found(folder.path());
                let is_noticed = !contents.damages.is_empty() || contents.last < 24;
                let is_whole = wanted.iter().all(|group| found.get(group.0) == Some(group.1));
                // A file without a head cannot show that its groups are settled.
                let is_headless = length.is_some_and(|length| length < HEAD);
                assert_eq!(is_whole && !is_headless, !is_noticed, "{length:?}");
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
            // The group lies in the same file, then in a new one.
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

    #[test]
    fn cutting_off_changes_nothing_where_the_log_is_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = opened(folder.path());
        fill(&mut log, 24, 7);
        append(&mut log, b"not answered");
        let good = files(folder.path());
        let newest = found(folder.path()).1.newest().unwrap().to_owned();
        let older = found(folder.path()).1.segments[1].path.clone();
        let (in_group, in_head) = (GROUPS_AT + GROUP_HEAD, 20);
        for (path, place) in [(&newest, in_group), (&newest, in_head), (&newest, BLOCK + in_head), (&older, in_group)] {
            let mut damaged = good[path].clone();
            damaged[place] ^= 1;
            fs::write(path, &damaged).unwrap();
            let damage = cut_behind(folder.path(), 24).expect_err("it is damaged");
            assert_eq!(&damage.path, path, "byte {place}: {}", damage.problem);
            assert_eq!(fs::read(path).unwrap(), damaged);
            put_back(folder.path(), &good);
        }
        // The last acknowledged group is damaged; the group behind it must not hide that.
        let (groups, _) = found(folder.path());
        let mut damaged = good[&newest].clone();
        let last = damaged.windows(groups[&24].len()).position(|part| part == groups[&24]).unwrap();
        damaged[last] ^= 1;
        fs::write(&newest, &damaged).unwrap();
        assert!(cut_behind(folder.path(), 24).is_err());
        assert_eq!(fs::read(&newest).unwrap(), damaged);
        // More groups than one failed write can leave are no leftover, so nothing is cut.
        put_back(folder.path(), &good);
        assert_eq!(cut_behind(folder.path(), 20).unwrap_err().path, newest);
        assert!(files(folder.path()) == good);
        cut_behind(folder.path(), 24).unwrap();
        assert_eq!(found(folder.path()).1.last, 24);
    }

    #[test]
    fn a_file_whose_first_group_failed_is_used_again_for_it() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = opened(folder.path());
        fill(&mut log, 10, 20);
        log.roll(5);
        append(&mut log, b"this write failed");
        cut_behind(folder.path(), 10).unwrap();
        let mut log = opened(folder.path());
        log.roll(5);
        append(&mut log, b"11");
        append(&mut log, b"12");
        let (groups, contents) = found(folder.path());
        assert_eq!((contents.last, contents.damages), (12, vec![]));
        assert_eq!((groups.len(), files(folder.path()).len()), (7, 2));
    }

    #[test]
    fn a_head_that_a_power_cut_left_from_an_earlier_use_is_mended() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = opened(folder.path());
        fill(&mut log, 21, 7);
        let before = files(folder.path());
        fill(&mut log, 22, 7);
        let path = found(folder.path()).1.newest().unwrap().to_owned();
        for at in HEADS_AT {
            let good = files(folder.path());
            let mut torn = good[&path].clone();
            torn[at..at + HEAD].copy_from_slice(&before[&path][at..at + HEAD]);
            fs::write(&path, torn).unwrap();
            let (_, contents) = found(folder.path());
            assert_eq!((contents.last, &contents.damages), (22, &vec![]));
            drop(Log::open(folder.path(), contents).unwrap());
            assert!(files(folder.path()) == good, "both are there again");
        }
    }

    #[test]
    fn what_is_not_the_logs_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        fill(&mut opened(folder.path()), 10, 20);
        let only = found(folder.path()).1.newest().unwrap().to_owned();
        for name in ["0.bak", "1.new", "lost+found", ".nfs0001"] {
            fs::copy(&only, folder.path().join(name)).unwrap();
        }
        fs::write(folder.path().join("2.new"), "half").unwrap();
        let (groups, contents) = found(folder.path());
        assert_eq!((groups.len(), contents.last, contents.damages), (10, 10, vec![]));
    }

    /// The bytes of an empty group at this offset under this key.
    fn image(key: &[u8; 16], at: u64, number: u64) -> Vec<u8> {
        let mut group = Vec::new();
        put_group(&mut group, &FileKey::new(key), at, number, |_| {});
        group
    }

    /// A group in format 1, which a sender could forge with a guess of the next number.
    fn old_image(number: u64) -> [u8; 16] {
        let mut group = [0; 16];
        group[8..].copy_from_slice(&number.to_be_bytes());
        let checksum = crc32c::crc32c(&group[4..]);
        group[..4].copy_from_slice(&checksum.to_be_bytes());
        group
    }

    /// The offset of the next group's content in its file.
    fn next_content_at(log: &Log) -> u64 {
        match &log.open {
            Some(open) => open.at + log.buffer.content().len() as u64 + GROUP_HEAD as u64,
            None => (GROUPS_AT + GROUP_HEAD) as u64,
        }
    }

    /// `length` bytes for offset `at`, with an image at each offset where a group may begin.
    fn images(at: u64, length: usize, image: impl Fn(u64) -> Vec<u8>) -> Vec<u8> {
        let mut content = vec![0; length];
        let first = (at.next_multiple_of(ALIGNMENT as u64) - at) as usize;
        for place in (first..length.saturating_sub(GROUP_HEAD)).step_by(ALIGNMENT) {
            let image = image(at + place as u64);
            content[place..place + GROUP_HEAD].copy_from_slice(&image[..GROUP_HEAD]);
        }
        content
    }

    /// Asserts that a reader finds exactly the written groups, also when the head of any group in the newest file is
    /// damaged.
    #[track_caller]
    fn assert_nothing_is_made_up(folder: &Path, last: u64, written: &Groups) {
        let (groups, contents) = found(folder);
        assert_eq!((contents.last, &contents.damages), (last, &vec![]));
        assert!(groups.iter().all(|(number, group)| written.get(number) == Some(group)));
        assert_eq!(groups.len() as u64, last - contents.settled, "and nothing is missing");
        let newest = contents.newest().unwrap();
        let good = fs::read(newest).unwrap();
        let reader = Reader::open(contents.segments.last().unwrap()).unwrap();
        let mut begins = vec![GROUPS_AT as u64];
        while let Some(group) = reader.group_at(*begins.last().unwrap(), &(0..=u64::MAX)).unwrap() {
            begins.push(group.end);
        }
        begins.pop();
        for at in begins {
            let mut damaged = good.clone();
            damaged[at as usize] ^= 1;
            fs::write(newest, damaged).unwrap();
            let (found, contents) = found(folder);
            assert!(found.iter().all(|(number, group)| written.get(number) == Some(group)), "damaged at {at}");
            assert_eq!(found.len() + 1, groups.len(), "damaged at {at}");
            assert!(contents.last == last || contents.last + 1 == last);
        }
        fs::write(newest, good).unwrap();
    }

    #[test]
    fn no_content_is_read_as_a_group() {
        for shift in [0, 1, 8, 11, 16, 24, 32, 40, 48, 56] {
            let folder = tempfile::tempdir().unwrap();
            let mut log = opened(folder.path());
            let mut written = Groups::new();
            let mut write = |log: &mut Log, content: Vec<u8>| {
                append(log, &content);
                written.insert(log.last(), content);
                assert_nothing_is_made_up(folder.path(), log.last(), &written);
            };
            write(&mut log, vec![1; shift]);
            for round in 0..5 {
                log.roll(log.last());
                write(&mut log, vec![2; shift]);
                // Everything that a sender may guess, and the key of an earlier use, which only a reader of the disk
                // knows.
                let at = next_content_at(&log);
                let of_all_zeros = images(at, 1500, |at| image(&[0; 16], at, log.last() + 2 + at % 7));
                write(&mut log, of_all_zeros);
                let at = next_content_at(&log);
                let former = log.segments[0].head.key;
                let of_a_former_use = images(at, 1500, |at| image(&former, at, log.last() + 2 + at % 7));
                write(&mut log, of_a_former_use);
                let old: Vec<u8> = (0..95).flat_map(|more| old_image(log.last() + 2 + more)).collect();
                write(&mut log, [vec![0; shift], old].concat());
                if round % 2 == 0 {
                    log = opened(folder.path());
                }
            }
            assert!(files(folder.path()).len() <= 3, "files are used again");
        }
    }

    /// Shows that the images of the test above are valid: under the right key a reader accepts them.
    #[test]
    fn an_image_under_the_key_of_the_file_would_be_read() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = opened(folder.path());
        append(&mut log, b"first");
        let (at, key) = (next_content_at(&log), log.segments[0].head.key);
        append(&mut log, &images(at, 1500, |at| image(&key, at, 4)));
        let path = log.segments[0].path.clone();
        let mut bytes = fs::read(&path).unwrap();
        bytes[at as usize - GROUP_HEAD] ^= 1;
        fs::write(&path, bytes).unwrap();
        let (groups, contents) = found(folder.path());
        assert_eq!((contents.last, contents.damages.len()), (4, 1));
        assert_eq!(groups[&4], b"");
    }

    #[test]
    fn a_copy_of_the_log_in_a_message_is_not_read() {
        for shift in [0, 1, 8, 16, 48, 63] {
            let folder = tempfile::tempdir().unwrap();
            let mut log = opened(folder.path());
            let mut written = Groups::new();
            for round in 0..12 {
                // The copies include the current file with its key.
                let copies: Vec<Vec<u8>> = files(folder.path()).into_values().collect();
                for copy in copies.iter().map(|copy| &copy[..copy.len().min(40_000)]) {
                    let aligned = next_content_at(&log).next_multiple_of(ALIGNMENT as u64) - next_content_at(&log);
                    let content = [&vec![0; aligned as usize + shift], copy].concat();
                    append(&mut log, &content);
                    written.insert(log.last(), content);
                }
                append(&mut log, &[round; 100]);
                written.insert(log.last(), vec![round; 100]);
                assert_nothing_is_made_up(folder.path(), log.last(), &written);
                if round % 3 == 0 {
                    log.roll(log.last());
                }
                if round % 4 == 0 {
                    log = opened(folder.path());
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// A disk writes each sector of 512 bytes completely or not at all, in any order.
        #[test]
        fn wherever_the_power_is_cut_all_is_there_that_was_answered(
            groups in 1..40_u64,
            a_file in 1..9_u64,
            length in 0..3000_usize,
            written in prop::collection::vec(any::<bool>(), 11),
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
                // A new file has both heads before it has its name.
                let old = before.get(&path).cloned().unwrap_or_else(|| new[..GROUPS_AT].to_vec());
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
            // The log continues after the recovered groups.
            let mut log = Log::open(folder.path(), contents).unwrap();
            append(&mut log, b"next");
            let (again, contents) = self::found(folder.path());
            prop_assert_eq!((contents.last, contents.damages), (log.last(), vec![]));
            prop_assert_eq!(again.get(&log.last()), Some(&b"next".to_vec()));
        }
    }
}

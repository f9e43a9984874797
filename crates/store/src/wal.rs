//! The write-ahead log: entries in the order of their positions, each on disk before any reader sees it.
//!
//! Owns [`CommitLog`], what a commit asks of a log, and [`SegmentLog`], the log in files of one machine. A log of
//! several machines stands behind the same trait. Must not know the content of an entry.
//!
//! ```text
//! segment  head, at byte 4096 the head again, from byte 8192 on entries; the name is the position of its first entry
//! head     "batonwal", format 3 (u32), zeros (u32), position of its first entry (u64), key (16 bytes), CRC-32C (u32)
//! entry    tag of the head (16 bytes), tag of the content (16 bytes), length of the content (u32), zeros (u32),
//!          position (u64), content, zeros up to a multiple of 64
//! ```
//!
//! All numbers are big-endian. A segment gets its name when both heads are on disk, and only after every entry of the
//! segment before it. So of all entries only the last one may be torn.
//!
//! A trimmed segment is renamed to `POSITION.free`, and becomes a later segment. Where none is free, a thread makes the
//! file `next.free` while the open segment fills. A segment has its full length from the
//! start, because a sync of writes to allocated blocks costs a fraction of a sync of a growing file. A free file is not
//! read.
//!
//! Entries hold bytes chosen by agents, and behind the last entry of a segment lie bytes of an earlier use. Tags tell an
//! entry from both: each use of a file draws a random key, and a tag is the AES-128-GMAC, under this key, of the offset
//! in the segment and of the bytes there. An agent does not know the key, an entry of an earlier use has tags under
//! another key, and a copy of an entry inside a message lies at another offset than the original.

use std::{
    fmt,
    fs::{self, File},
    io,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    sync::Arc,
    thread::JoinHandle,
};

use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::layout::{Damage, entries};
use crate::{
    disk,
    ids::{IdSource as _, SystemIds},
};

/// The place of an entry in a log: 1 for the first, then without gaps. 0 is the place before the first entry.
pub type Position = u64;

/// The place of an entry in the chain of a shared log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// The hash of the entry, which covers all entries before it.
    pub hash: [u8; 32],
    /// The term of the entry.
    pub term: u64,
    /// The level of the last takeover up to the entry.
    pub level: u16,
}

/// The last known entry of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Mark {
    /// The position of the entry; 0 before the first.
    pub position: Position,
    /// Its place in the chain. `None` in a log of one broker, and before the first entry.
    pub link: Option<Link>,
}

impl Mark {
    /// An entry of a log without a chain.
    pub(super) fn at(position: Position) -> Self {
        Self { position, link: None }
    }
}

/// Failed to append.
#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    /// Another writer appended first. Nothing was written.
    #[error("the log ends at entry {end}, and the writer knows it up to entry {after}")]
    Fenced {
        /// The end that the writer knows.
        after: Position,
        /// The end of the log.
        end: Position,
    },
    /// The entry may be in the log, now or after a restart. The log takes no further entries until it is reopened.
    #[error(transparent)]
    Unknown(#[from] io::Error),
    /// Nothing was written.
    #[error("an entry of {bytes} bytes is too large: the limit is {bytes_max}")]
    TooLarge {
        /// The bytes of the entry.
        bytes: usize,
        /// The most bytes of an entry.
        bytes_max: usize,
    },
    /// This broker leads no longer. The entry may be in the log.
    #[error("another broker leads now")]
    Deposed,
}

/// A log to which one writer appends.
pub trait CommitLog: Send {
    /// Writes an entry behind `after`, which must be the log's end. On `Ok` the entry is durable, and is the end of the log or
    /// in front of the returned one.
    fn append(&mut self, after: Position, entry: &[u8]) -> Result<Mark, AppendError>;

    /// The last entry.
    fn end(&self) -> Mark;

    /// The most bytes of an entry.
    fn entry_bytes_max(&self) -> usize;
}

/// A log in the folder of its store.
pub(super) trait OwnLog: CommitLog {
    /// Calls `found` for each entry at `from` or behind it, in order.
    fn read(&self, from: Position, found: &mut dyn FnMut(Position, Bytes)) -> Result<(), Damage>;

    /// Permits the log to drop entries in front of `before`.
    fn trim(&mut self, before: Position) -> io::Result<()>;

    /// The bytes that the log takes.
    fn size_bytes(&self) -> u64;
}

/// The largest content of an entry, in bytes.
const ENTRY_BYTES_MAX: usize = 512 * 1024 * 1024;
/// The bytes of a new segment. When they are used, the next entry begins another segment. Small in debug builds, so
/// that tests have several segments.
const SEGMENT_BYTES: u64 = if cfg!(debug_assertions) { 32 * 1024 } else { 16 * 1024 * 1024 };
/// The capacity in bytes to which a buffer of entries shrinks after a large one.
pub(super) const BUFFER_BYTES_MAX: usize = 8 * 1024 * 1024;
/// The most free files that are kept.
const FREE_MAX: usize = 8;
const FREE_SUFFIX: &str = ".free";
const MAGIC: &[u8; 8] = b"batonwal";
const FORMAT: u32 = 3;
const HEAD: usize = 44;
const TAG: usize = 16;
const ENTRY_HEAD: usize = 48;
/// The alignment of entries, in bytes.
const ALIGNMENT: usize = 64;
/// The offsets of the two heads. They lie in two blocks, because without the key of the head no entry can be
/// recognised.
const HEADS_AT: [usize; 2] = [0, 4096];
/// The offset of the first entry.
const ENTRIES_AT: usize = 8192;

/// A file of the log.
#[derive(Clone)]
struct Segment {
    path: PathBuf,
    first: Position,
    /// Zeros in a file that was not read, because the tables have its entries.
    key: [u8; 16],
}

impl fmt::Debug for Segment {
    /// Omits the key.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Segment({} from {})", self.path.display(), self.first)
    }
}

impl Segment {
    /// Reads the heads of a file, and reports a damaged one. `None`: without a head, no entry can be read.
    fn read(path: &Path, first: Position, bytes: &[u8], damages: &mut Vec<Damage>) -> Option<Self> {
        let keys = HEADS_AT.map(|at| {
            let head = bytes.get(at..at + HEAD)?;
            let key = head[24..40].try_into().expect("16 bytes");
            // Compares all bytes of the head, its position included: a file under another name is damaged.
            (encode_head(first, &key) == head).then_some(key)
        });
        // One head is enough to read, but the damage is reported as long as both can still be compared.
        if keys.contains(&None) || keys[0] != keys[1] {
            damages.push(Damage::new(path, "one of its two heads is not what was written"));
        }
        Some(Self { path: path.into(), first, key: keys.into_iter().flatten().next()? })
    }
}

/// The content of a log.
#[derive(Debug, Default)]
pub(super) struct Contents {
    /// Oldest first; new entries go to the last one.
    segments: Vec<Segment>,
    /// The offset at which the last segment's last entry ends.
    end_at: u64,
    /// The position of the last entry.
    pub(super) end: Position,
    pub(super) damages: Vec<Damage>,
}

impl Contents {
    /// Whether the log has no file.
    pub(super) fn is_new(&self) -> bool {
        self.segments.is_empty() && self.damages.is_empty()
    }

    /// The file that takes new entries.
    pub(super) fn newest(&self) -> Option<&Path> {
        self.segments.last().map(|segment| segment.path.as_path())
    }
}

/// Reads a log without changing it. `found` is called, in order, for each entry at `from` or behind it. Unreadable
/// parts are reported in `damages` and skipped. A torn last entry is none.
pub(super) fn scan(folder: &Path, from: Position, mut found: impl FnMut(Position, Bytes, &Arc<Path>)) -> Contents {
    let mut log = Contents::default();
    let paths = entries(folder).unwrap_or_else(|damage| {
        log.damages.push(damage);
        Vec::new()
    });
    let mut names: Vec<_> = paths.iter().filter_map(|path| Some((position_of(path)?, path))).collect();
    names.sort_unstable();
    let mut end = from.saturating_sub(1);
    for (place, (first, path)) in names.iter().enumerate() {
        let next = names.get(place + 1).map(|(next, _)| *next);
        // The tables have every entry of this file, so it is not read, and its damage does not matter. The log knows the
        // file, to reuse it: a flush may end after the last commit before a stop.
        if next.is_some_and(|next| next <= from) {
            log.segments.push(Segment { path: (*path).clone(), first: *first, key: [0; 16] });
            continue;
        }
        // Positions are dense, so a gap between two files means that one between them is missing.
        if *first > end + 1 {
            log.damages.push(Damage::new(folder, format!("entry {} is not there, but entry {first} is", end + 1)));
        }
        // Also for a file that cannot be read: the next file must not report the same gap again.
        end = first - 1;
        let bytes = match fs::read(path) {
            Ok(bytes) => Bytes::from(bytes),
            Err(error) => {
                log.damages.push(Damage::unreadable(path, &error));
                continue;
            }
        };
        let Some(segment) = Segment::read(path, *first, &bytes, &mut log.damages) else { continue };
        let path: Arc<Path> = path.as_path().into();
        let read = Reader { bytes, key: SegmentKey::new(&segment.key) }.entries(*first, next, |position, content| {
            if position >= from {
                found(position, content, &path);
            }
        });
        log.damages.extend(read.damages.into_iter().map(|problem| Damage::new(&path, problem)));
        (end, log.end_at) = (read.last, read.end as u64);
        log.segments.push(segment);
    }
    // The last file is never trimmed.
    if names.is_empty() && from > 1 {
        log.damages.push(Damage::new(folder, "its files are not there"));
    }
    // Without files the log has no end of its own, with or without entries in the tables.
    log.end = if names.is_empty() { 0 } else { end };
    if let Some(newest) = log.newest().filter(|_| log.end + 1 < from) {
        let problem = format!("it ends at entry {}, but the tables have entries up to {}", log.end, from - 1);
        log.damages.push(Damage::new(newest, problem));
    }
    log
}

/// The files with the entries at `from` and behind it, oldest first.
pub(super) fn segments_from(folder: &Path, from: Position) -> Result<Vec<PathBuf>, Damage> {
    let paths = entries(folder)?;
    let mut segments: Vec<_> = paths.into_iter().filter_map(|path| Some((position_of(&path)?, path))).collect();
    segments.sort_unstable();
    let begins_behind = segments.iter().filter(|(first, _)| *first <= from).count().saturating_sub(1);
    Ok(segments.into_iter().skip(begins_behind).map(|(_, path)| path).collect())
}

/// The first position of a segment, by its name. `None`: the file is no segment but a free one, a draft left by a power
/// cut, or foreign.
fn position_of(path: &Path) -> Option<Position> {
    path.file_name()?.to_str()?.parse().ok().filter(|first| *first > 0)
}

/// Ends the log behind `last`, the last acknowledged entry. A later entry is readable now, but may not be synced and
/// could be lost in a power cut. Changes nothing if any part of the log from `from` on is damaged.
pub(super) fn cut_behind(folder: &Path, from: Position, last: Position) -> Result<(), Damage> {
    let log = scan(folder, from, |_, _, _| {});
    if let Some(damage) = log.damages.into_iter().next() {
        return Err(damage);
    }
    let Some(newest) = log.segments.last().filter(|_| log.end > last) else { return Ok(()) };
    // A failed write leaves entry `last + 1` at most, so a file that begins behind it contradicts `last`.
    if newest.first > last + 1 {
        let problem = format!("it begins with entry {}, but entry {last} is the last that was written", newest.first);
        return Err(Damage::new(&newest.path, problem));
    }
    let cut = || {
        let reader = Reader { bytes: fs::read(&newest.path)?.into(), key: SegmentKey::new(&newest.key) };
        let end = reader.entries(newest.first, Some(last + 1), |_, _| {}).end;
        let file = File::options().write(true).open(&newest.path)?;
        // Zeros in place of the head make the entry unreadable. A later entry cannot follow it, because a failed write
        // is the last.
        disk::write_at(&file, &newest.path, &[0; ENTRY_HEAD], end as u64)?;
        disk::sync(&file, &newest.path)
    };
    cut().map_err(|error| Damage::unreadable(&newest.path, &error))
}

/// The result of reading the consecutive entries of a segment.
struct Entries {
    last: Position,
    end: usize,
    damages: Vec<String>,
}

/// The bytes of a segment.
struct Reader {
    bytes: Bytes,
    key: SegmentKey,
}

struct Entry {
    position: Position,
    content: Bytes,
    end: usize,
}

impl Reader {
    /// The intact entry that begins at `at`, if one does and has one of these positions.
    fn entry_at(&self, at: usize, positions: &RangeInclusive<Position>) -> Option<Entry> {
        let start = at + ENTRY_HEAD;
        let head = self.bytes.get(at..start)?;
        let (length, position) = parse_entry_head(head);
        let content = self.bytes.get(start..start + length as usize)?;
        // The tags are the expensive checks, and a search calls this for every 64 bytes; so they come last.
        let is_intact = positions.contains(&position)
            && self.key.tag(Part::Head, at as u64, &head[TAG..]) == head[..TAG]
            && self.key.tag(Part::Content, at as u64, content) == head[TAG..2 * TAG];
        let end = start + length as usize;
        is_intact.then(|| Entry {
            position,
            content: self.bytes.slice(start..end),
            end: end.next_multiple_of(ALIGNMENT),
        })
    }

    /// Reads the entries from `first` up to the one before `next`. Skips damaged parts.
    fn entries(&self, first: Position, next: Option<Position>, mut found: impl FnMut(Position, Bytes)) -> Entries {
        let mut entries = Entries { last: first - 1, end: ENTRIES_AT, damages: Vec::new() };
        while next.is_none_or(|next| entries.last + 1 < next) {
            let (wanted, from) = (entries.last + 1, entries.end);
            let entry = self.entry_at(from, &(wanted..=wanted)).or_else(|| {
                // An intact entry behind an unreadable one shows that the unreadable one was written wholly.
                // More entries than this do not fit into the file, so a larger position is chance or an entry of the
                // file's former use.
                let positions = wanted..=wanted + (self.bytes.len() / ENTRY_HEAD) as u64;
                let mut places = (from..self.bytes.len()).step_by(ALIGNMENT);
                let (at, entry) = places.find_map(|at| Some((at, self.entry_at(at, &positions)?)))?;
                entries.damages.push(format!("bytes {from} to {at} are not what was written"));
                Some(entry)
            });
            // No entry follows: in the last segment this is the end, in any other the check below reports what is
            // missing.
            let Some(entry) = entry.filter(|entry| next.is_none_or(|next| entry.position < next)) else { break };
            (entries.last, entries.end) = (entry.position, entry.end);
            found(entry.position, entry.content);
        }
        if next.is_some_and(|next| entries.last + 1 < next) {
            entries.damages.push(format!("from byte {} on it is not what was written", entries.end));
        }
        entries
    }
}

/// The parts of an entry with separate tags. The head's tag is checked before its length is used.
#[derive(Clone, Copy)]
enum Part {
    Head = 0,
    Content = 1,
}

/// The key of one segment.
struct SegmentKey(LessSafeKey);

impl SegmentKey {
    fn new(key: &[u8; 16]) -> Self {
        Self(LessSafeKey::new(UnboundKey::new(&AES_128_GCM, key).expect("16 bytes are a key of AES-128")))
    }

    /// The tag of a part of the entry at offset `at`. A retry of a failed write reuses the nonce with the same key.
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

/// A log in files of this machine.
pub(super) struct SegmentLog {
    folder: PathBuf,
    /// Oldest first; never empty.
    segments: Vec<Segment>,
    /// Files for later segments.
    free: Vec<PathBuf>,
    /// Makes the next file in time. `None`: the append that needs a file makes it.
    spawn: Option<Spawn>,
    /// The thread that makes the next file, if one was started.
    preparing: Option<JoinHandle<()>>,
    open: Open,
    end: Position,
    buffer: Vec<u8>,
}

/// Starts a thread. `None`: it cannot be started.
type Spawn = fn(&str, Box<dyn FnOnce() + Send>) -> Option<JoinHandle<()>>;

/// The segment that takes new entries.
struct Open {
    file: File,
    key: SegmentKey,
    /// The offset of the next entry.
    at: u64,
}

impl SegmentLog {
    /// Opens the log after its last entry, given the result of [`scan`]. The next entry is written over a torn one.
    pub(super) fn open(folder: &Path, contents: Contents) -> io::Result<Self> {
        let Contents { mut segments, end_at, end, .. } = contents;
        // Files are reused because a sync of allocated blocks writes no metadata.
        let mut free = entries(folder).map_err(|damage| io::Error::other(damage.problem))?;
        free.retain(|path| path.to_str().is_some_and(|path| path.ends_with(FREE_SUFFIX)));
        let open = match segments.last() {
            None => {
                let file = free.pop().map_or_else(|| new_file(folder), Ok)?;
                let (segment, open) = begin(folder, end + 1, &file)?;
                segments.push(segment);
                open
            }
            Some(Segment { path, key, .. }) => {
                let file = File::options().write(true).open(path)?;
                // The last entry counts from now on, and may not be synced; nor may the name of its file.
                disk::sync(&file, path)?;
                disk::sync_folder(folder)?;
                Open { file, key: SegmentKey::new(key), at: end_at }
            }
        };
        let (spawn, preparing) = (None, None);
        Ok(Self { folder: folder.into(), segments, free, spawn, preparing, open, end, buffer: Vec::new() })
    }

    /// Makes new files in threads, before they are needed. Otherwise an append takes as long as the write of a whole
    /// segment, each time that there is no free file.
    pub(super) fn prepare_in(mut self, spawn: Spawn) -> Self {
        self.spawn = Some(spawn);
        self
    }

    /// Starts a thread that makes the next file, if the open segment is half full and no file is there.
    fn prepare(&mut self) {
        if self.open.at < SEGMENT_BYTES / 2 || !self.free.is_empty() || self.preparing.is_some() {
            return;
        }
        let Some(spawn) = self.spawn else { return };
        let folder = self.folder.clone();
        let make = move || {
            // A failure is that of the append that finds no file.
            if let Err(error) = new_file(&folder) {
                tracing::debug!(folder = %folder.display(), %error, "failed to prepare a file of the log");
            }
        };
        self.preparing = spawn("baton-log", Box::new(make));
    }

    /// A file for the next segment.
    fn take_free(&mut self) -> io::Result<PathBuf> {
        if let Some(free) = self.free.pop() {
            return Ok(free);
        }
        drop(self.preparing.take().map(JoinHandle::join));
        let prepared = next_file(&self.folder);
        if prepared.exists() { Ok(prepared) } else { new_file(&self.folder) }
    }
}

impl SegmentLog {
    fn append(&mut self, after: Position, entry: &[u8]) -> Result<Position, AppendError> {
        // The caller has computed its changes from another state of the log, so they must not be appended.
        if after != self.end {
            return Err(AppendError::Fenced { after, end: self.end });
        }
        // Before the first byte is written, so that a refusal leaves the log as it was.
        if entry.len() > ENTRY_BYTES_MAX {
            return Err(AppendError::TooLarge { bytes: entry.len(), bytes_max: ENTRY_BYTES_MAX });
        }
        let position = after + 1;
        // Only between entries: no entry spans two files.
        if self.open.at >= SEGMENT_BYTES {
            let file = self.take_free()?;
            let (segment, open) = begin(&self.folder, position, &file)?;
            self.segments.push(segment);
            self.open = open;
        }
        self.buffer.clear();
        self.buffer.shrink_to(BUFFER_BYTES_MAX);
        put_entry(&mut self.buffer, &self.open.key, self.open.at, position, entry);
        let path = &self.segments.last().expect("it is open").path;
        // One write and one sync. If either fails, `open.at` and `end` stay, and the caller must not append again.
        disk::write_at(&self.open.file, path, &self.buffer, self.open.at)?;
        disk::sync_data(&self.open.file, path)?;
        self.open.at += self.buffer.len() as u64;
        self.end = position;
        self.prepare();
        Ok(position)
    }

    #[cfg(test)]
    fn end(&self) -> Position {
        self.end
    }
}

impl CommitLog for SegmentLog {
    fn append(&mut self, after: Position, entry: &[u8]) -> Result<Mark, AppendError> {
        self.append(after, entry).map(Mark::at)
    }

    fn end(&self) -> Mark {
        Mark::at(self.end)
    }

    fn entry_bytes_max(&self) -> usize {
        ENTRY_BYTES_MAX
    }
}

impl OwnLog for SegmentLog {
    fn read(&self, from: Position, found: &mut dyn FnMut(Position, Bytes)) -> Result<(), Damage> {
        let contents = scan(&self.folder, from, |position, content, _| found(position, content));
        contents.damages.into_iter().next().map_or(Ok(()), Err)
    }

    fn trim(&mut self, before: Position) -> io::Result<()> {
        // A segment goes once the next one begins at or before the wanted position. So the last one stays, and with it
        // the end.
        while self.segments.get(1).is_some_and(|second| second.first <= before) {
            // Before the file is touched: after a failure it may have its new name or the old one, and the next start finds
            // it under either.
            let Segment { path, first, .. } = self.segments.remove(0);
            // A segment with one huge entry would keep its blocks for ever.
            if self.free.len() < FREE_MAX && fs::metadata(&path)?.len() <= 2 * SEGMENT_BYTES {
                let free = self.folder.join(format!("{first}{FREE_SUFFIX}"));
                disk::rename(&path, &free)?;
                self.free.push(free);
            } else {
                disk::remove_if_there(&path)?;
            }
        }
        Ok(())
    }

    fn size_bytes(&self) -> u64 {
        let next = self.preparing.as_ref().map(|_| next_file(&self.folder));
        let files = self.segments.iter().map(|segment| &segment.path).chain(&self.free).chain(&next);
        files.map(|path| fs::metadata(path).map_or(0, |found| found.len())).sum()
    }
}

impl Drop for SegmentLog {
    /// Leaves no thread that writes into the folder.
    fn drop(&mut self) {
        drop(self.preparing.take().map(JoinHandle::join));
    }
}

/// The file that is made while the open segment fills.
fn next_file(folder: &Path) -> PathBuf {
    folder.join(format!("next{FREE_SUFFIX}"))
}

/// Makes the file [`next_file`]. It has the length of a segment, so that later syncs need not write the size of the file.
fn new_file(folder: &Path) -> io::Result<PathBuf> {
    let path = next_file(folder);
    disk::write_whole(&path, &vec![0; SEGMENT_BYTES as usize])?;
    Ok(path)
}

/// Begins the segment of the entries from `first` on, in a free file.
fn begin(folder: &Path, first: Position, free: &Path) -> io::Result<(Segment, Open)> {
    let (path, key) = (folder.join(first.to_string()), SystemIds.random());
    let mut heads = vec![0; ENTRIES_AT];
    HEADS_AT.iter().for_each(|at| heads[*at..at + HEAD].copy_from_slice(&encode_head(first, &key)));
    let file = File::options().write(true).open(free)?;
    // The heads are synced before the rename: under its new name the file must have its new key, or old entries would
    // read as new ones.
    disk::write_at(&file, free, &heads, 0)?;
    disk::sync(&file, free)?;
    disk::rename(free, &path)?;
    Ok((Segment { path, first, key }, Open { file, key: SegmentKey::new(&key), at: ENTRIES_AT as u64 }))
}

fn encode_head(first: Position, key: &[u8; 16]) -> [u8; HEAD] {
    let mut encoded = [0; HEAD];
    encoded[..8].copy_from_slice(MAGIC);
    encoded[8..12].copy_from_slice(&FORMAT.to_be_bytes());
    encoded[16..24].copy_from_slice(&first.to_be_bytes());
    encoded[24..40].copy_from_slice(key);
    let checksum = crc32c::crc32c(&encoded[..40]);
    encoded[40..].copy_from_slice(&checksum.to_be_bytes());
    encoded
}

fn put_entry(buffer: &mut Vec<u8>, key: &SegmentKey, at: u64, position: Position, content: &[u8]) {
    let mut head = [0; ENTRY_HEAD];
    let length = u32::try_from(content.len()).expect("the length was checked");
    head[TAG..2 * TAG].copy_from_slice(&key.tag(Part::Content, at, content));
    head[32..36].copy_from_slice(&length.to_be_bytes());
    head[40..].copy_from_slice(&position.to_be_bytes());
    let tag = key.tag(Part::Head, at, &head[TAG..]);
    head[..TAG].copy_from_slice(&tag);
    buffer.extend_from_slice(&head);
    buffer.extend_from_slice(content);
    buffer.resize(buffer.len().next_multiple_of(ALIGNMENT), 0);
}

/// The length of the content, and the position.
fn parse_entry_head(head: &[u8]) -> (u32, Position) {
    let length = u32::from_be_bytes(head[32..36].try_into().expect("4 bytes"));
    (length, u64::from_be_bytes(head[40..48].try_into().expect("8 bytes")))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    type Found = BTreeMap<Position, Vec<u8>>;
    type Files = BTreeMap<PathBuf, Vec<u8>>;

    fn found(folder: &Path, from: Position) -> (Found, Contents) {
        let mut all = Found::new();
        let contents = scan(folder, from, |position, content, _| drop(all.insert(position, content.to_vec())));
        (all, contents)
    }

    fn opened(folder: &Path) -> SegmentLog {
        SegmentLog::open(folder, found(folder, 1).1).unwrap()
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

    fn content(position: Position) -> Vec<u8> {
        vec![position as u8; (position as usize * 3701) % 9000]
    }

    fn append(log: &mut SegmentLog, content: &[u8]) {
        log.append(log.end(), content).unwrap();
    }

    /// A log of 24 entries in some four segments.
    fn twenty_four(folder: &Path) -> Found {
        let mut log = opened(folder);
        let wanted: Found = (1..=24).map(|position| (position, content(position))).collect();
        wanted.values().for_each(|content| append(&mut log, content));
        assert!((3..=5).contains(&log.segments.len()), "{}", log.segments.len());
        wanted
    }

    #[test]
    fn entries_of_any_length_come_back_in_order_from_any_position() {
        let folder = tempfile::tempdir().unwrap();
        let wanted = twenty_four(folder.path());
        for from in 1..=25 {
            let (found, contents) = found(folder.path(), from);
            assert_eq!(found, wanted.clone().split_off(&from));
            assert_eq!((contents.end, contents.damages), (24, vec![]));
        }
        let mut log = opened(folder.path());
        for length in [0, BUFFER_BYTES_MAX, 1, 63, 64, 65] {
            append(&mut log, &vec![7; length]);
            assert_eq!(found(folder.path(), log.end()).0[&log.end()].len(), length);
        }
    }

    #[test]
    fn a_trimmed_log_keeps_what_is_not_in_front_and_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let wanted = twenty_four(folder.path());
        let mut log = opened(folder.path());
        let segments = log.segments.len();
        for before in 1..=30 {
            log.trim(before).unwrap();
            let (found, contents) = found(folder.path(), before.min(25));
            assert_eq!((found, contents.damages), (wanted.clone().split_off(&before), vec![]));
        }
        assert!(log.segments.len() == 1 && log.free.len() == segments - 1);
        append(&mut log, b"next");
        drop(log);
        let mut next = Vec::new();
        opened(folder.path()).read(25, &mut |position, entry| next.push((position, entry))).unwrap();
        assert_eq!(next, [(25, Bytes::from_static(b"next"))]);
    }

    #[test]
    fn a_file_whose_entries_the_tables_have_is_used_again_after_a_start() {
        let folder = tempfile::tempdir().unwrap();
        twenty_four(folder.path());
        let names = || files(folder.path()).into_keys().filter(|path| position_of(path).is_some()).count();
        let before = names();
        assert!(before > 1);
        // The tables have all entries, but no commit has trimmed the log since.
        let mut log = SegmentLog::open(folder.path(), found(folder.path(), 25).1).unwrap();
        log.trim(25).unwrap();
        assert_eq!((names(), log.free.len()), (1, before - 1));
        append(&mut log, b"next");
        assert_eq!(found(folder.path(), 25).0, [(25, b"next".to_vec())].into());
    }

    #[test]
    fn a_failed_trim_does_not_keep_the_next_one() {
        let folder = tempfile::tempdir().unwrap();
        twenty_four(folder.path());
        let mut log = opened(folder.path());
        let segments = log.segments.len();
        fs::remove_file(&log.segments[0].path).unwrap();
        assert!(log.trim(25).is_err());
        log.trim(25).unwrap();
        assert_eq!((log.segments.len(), log.free.len()), (1, segments - 2));
    }

    #[test]
    fn a_file_is_made_while_the_one_before_fills_and_used_next() {
        let folder = tempfile::tempdir().unwrap();
        let spawn: Spawn = |_, work| Some(std::thread::spawn(work));
        let mut log = opened(folder.path()).prepare_in(spawn);
        let next = next_file(folder.path());
        while log.open.at < SEGMENT_BYTES / 2 {
            assert!(log.preparing.is_none() && !next.exists());
            append(&mut log, &[7; 3000]);
        }
        let first = log.segments.len();
        while log.segments.len() == first {
            assert!(log.preparing.is_some());
            append(&mut log, &[7; 3000]);
        }
        assert!(!next.exists(), "it has become the segment");
        assert_eq!(fs::metadata(&log.segments[first].path).unwrap().len(), SEGMENT_BYTES);
        while log.open.at < SEGMENT_BYTES / 2 {
            append(&mut log, &[7; 3000]);
        }
        let end = log.end();
        drop(log);
        assert!(next.exists(), "a log that is closed waits for its thread");
        assert_eq!(opened(folder.path()).free, [next]);
        assert_eq!(found(folder.path(), 1).1.end, end);
    }

    #[test]
    fn an_append_makes_the_file_if_no_thread_did() {
        let folder = tempfile::tempdir().unwrap();
        // A thread that cannot be started, and one that fails.
        let spawns: [Spawn; 2] = [|_, _| None, |_, _| Some(std::thread::spawn(|| {}))];
        for spawn in spawns {
            let mut log = opened(folder.path()).prepare_in(spawn);
            let first = log.segments.len();
            while log.segments.len() < first + 2 {
                append(&mut log, &[7; 3000]);
            }
            assert_eq!(found(folder.path(), 1).1.end, log.end());
        }
    }

    #[test]
    fn a_writer_that_does_not_know_the_end_is_fenced_and_a_huge_entry_refused() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = opened(folder.path());
        append(&mut log, b"first");
        assert!(matches!(log.append(0, b"late"), Err(AppendError::Fenced { after: 0, end: 1 })));
        let huge = vec![0; ENTRY_BYTES_MAX + 1];
        assert!(matches!(log.append(1, &huge), Err(AppendError::TooLarge { .. })));
        append(&mut log, b"second");
        assert_eq!(
            found(folder.path(), 1).0.into_values().collect::<Vec<_>>(),
            [b"first".to_vec(), b"second".to_vec()]
        );
    }

    #[test]
    fn every_changed_byte_is_noticed_and_all_other_entries_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let wanted = twenty_four(folder.path());
        for (path, bytes) in &files(folder.path()) {
            let is_head = |place: &usize| HEADS_AT.iter().any(|at| (*at..at + HEAD).contains(place));
            let places = (0..bytes.len()).filter(|place| is_head(place) || *place >= ENTRIES_AT && place % 97 < 3);
            for place in places {
                let mut damaged = bytes.clone();
                damaged[place] ^= 0x10;
                fs::write(path, &damaged).unwrap();
                let (found, contents) = found(folder.path(), 1);
                let missing = wanted.keys().filter(|position| !found.contains_key(position)).count();
                assert!(found.iter().all(|(position, found)| *found == content(*position)), "{place}: made up");
                assert!(missing <= 1, "{} byte {place}: {missing} are missing", path.display());
                let is_noticed = !contents.damages.is_empty() || contents.end < 24;
                assert!(missing == 0 || is_noticed, "{} byte {place}", path.display());
            }
            fs::write(path, bytes).unwrap();
        }
    }

    #[test]
    fn a_file_that_is_missing_or_cut_off_is_noticed_unless_the_tables_have_its_entries() {
        let folder = tempfile::tempdir().unwrap();
        let wanted = twenty_four(folder.path());
        let good = files(folder.path());
        let firsts: Vec<_> = opened(folder.path()).segments.iter().map(|segment| segment.first).collect();
        for from in [1, firsts[1], firsts[1] + 1, firsts[2]] {
            for (path, bytes) in &good {
                let is_needed = firsts
                    .iter()
                    .filter(|first| **first > position_of(path).unwrap())
                    .min()
                    .is_none_or(|next| *next > from);
                for length in [None, Some(0), Some(HEAD - 1), Some(ENTRIES_AT), Some(bytes.len() / 2)] {
                    match length {
                        None => fs::remove_file(path).unwrap(),
                        Some(length) => fs::write(path, &bytes[..length.min(bytes.len())]).unwrap(),
                    }
                    let (found, contents) = found(folder.path(), from);
                    let is_noticed = !contents.damages.is_empty() || contents.end < 24;
                    assert_eq!(is_noticed, is_needed, "{} cut to {length:?}, from {from}", path.display());
                    assert!(found.iter().all(|(position, found)| wanted[position] == *found));
                    put_back(folder.path(), &good);
                }
            }
        }
        fs::remove_dir_all(folder.path()).unwrap();
        assert!(found(folder.path(), 1).1.is_new() && !found(folder.path(), 2).1.is_new());
    }

    #[test]
    fn what_was_not_acknowledged_is_cut_off_and_a_damaged_log_is_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let wanted = twenty_four(folder.path());
        let good = files(folder.path());
        cut_behind(folder.path(), 1, 23).unwrap();
        assert_eq!(found(folder.path(), 1).0, wanted.clone().into_iter().take(23).collect());
        append(&mut opened(folder.path()), &wanted[&24]);
        put_back(folder.path(), &good);
        // More entries than one failed write can leave are no leftover.
        let first = opened(folder.path()).segments.last().unwrap().first;
        assert!(cut_behind(folder.path(), 1, first - 2).is_err());
        assert!(files(folder.path()) == good);
        for (path, bytes) in &good {
            let mut damaged = good.clone();
            damaged.get_mut(path).unwrap()[ENTRIES_AT + ENTRY_HEAD + usize::from(bytes.len() > 9000)] ^= 1;
            put_back(folder.path(), &damaged);
            let refused = cut_behind(folder.path(), 1, 23);
            assert!(refused.is_err_and(|damage| damage.path == *path), "{}", path.display());
            assert!(files(folder.path()) == damaged);
        }
    }

    #[test]
    fn a_file_that_is_used_again_shows_no_entry_of_its_earlier_use() {
        let folder = tempfile::tempdir().unwrap();
        twenty_four(folder.path());
        let mut log = opened(folder.path());
        log.trim(25).unwrap();
        drop(log);
        let mut log = opened(folder.path());
        let free = log.free.len();
        assert!(free > 1, "free files are found again");
        while log.free.len() == free {
            append(&mut log, &[7; 3000]);
        }
        let (Segment { path, first, .. }, bytes) = (log.segments[1].clone(), log.size_bytes());
        assert_eq!((log.end(), log.open.at), (first, (ENTRIES_AT + ENTRY_HEAD + 3000).next_multiple_of(64) as u64));
        let behind = fs::read(&path).unwrap().split_off(log.open.at as usize);
        assert!(behind.iter().any(|byte| *byte != 0), "bytes of the earlier use are there");
        let (entries, contents) = found(folder.path(), first);
        assert_eq!((entries.len(), contents.end, contents.damages), (1, first, vec![]));
        append(&mut log, b"next");
        assert_eq!(log.size_bytes(), bytes, "no file grows");
        cut_behind(folder.path(), first, first).unwrap();
        assert_eq!(found(folder.path(), first).1.end, first);
        cut_behind(folder.path(), first, first - 1).unwrap();
        assert_eq!(found(folder.path(), first).1.end, first - 1);
        append(&mut opened(folder.path()), b"again");
        assert_eq!(found(folder.path(), first).0, [(first, b"again".to_vec())].into());
    }

    #[test]
    fn files_of_others_are_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let wanted = twenty_four(folder.path());
        for name in ["1.bak", "25.new", "lost+found", ".nfs0001", "0"] {
            fs::copy(folder.path().join("1"), folder.path().join(name)).unwrap();
        }
        let (found, contents) = found(folder.path(), 1);
        assert_eq!((found, contents.damages), (wanted, vec![]));
    }

    /// `length` bytes for offset `at`, with the image of an empty entry at each offset where an entry may begin.
    fn images(key: &[u8; 16], at: u64, length: usize, position: impl Fn(u64) -> Position) -> Vec<u8> {
        let mut content = vec![0; length];
        let first = (at.next_multiple_of(ALIGNMENT as u64) - at) as usize;
        for place in (first..length.saturating_sub(ENTRY_HEAD)).step_by(ALIGNMENT) {
            let (mut image, at) = (Vec::new(), at + place as u64);
            put_entry(&mut image, &SegmentKey::new(key), at, position(at), &[]);
            content[place..place + ENTRY_HEAD].copy_from_slice(&image[..ENTRY_HEAD]);
        }
        content
    }

    #[test]
    fn no_content_is_read_as_an_entry() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = opened(folder.path());
        let mut written = Found::new();
        for round in 0..12 {
            let at = log.open.at + ENTRY_HEAD as u64;
            let next = log.end() + 2;
            let aligned = vec![0; (at.next_multiple_of(ALIGNMENT as u64) - at) as usize + round % 3];
            let contents = [
                images(&[0; 16], at, 1500, |at| next + at % 7),
                // A copy of the log, its key too, though no agent can read that.
                [aligned, fs::read(&log.segments.last().unwrap().path).unwrap()].concat(),
            ];
            for content in contents {
                append(&mut log, &content[..content.len().min(40_000)]);
                written.insert(log.end(), content[..content.len().min(40_000)].to_vec());
            }
            // The head of each entry of the newest segment is damaged in turn.
            let Segment { path, first, .. } = log.segments.last().unwrap().clone();
            let good = fs::read(&path).unwrap();
            let reader = Reader { bytes: good.clone().into(), key: SegmentKey::new(&log.segments.last().unwrap().key) };
            let mut at = ENTRIES_AT;
            for position in first..=log.end() {
                let end = reader.entry_at(at, &(position..=position)).unwrap().end;
                let mut damaged = good.clone();
                damaged[at] ^= 1;
                fs::write(&path, damaged).unwrap();
                let (found, _) = found(folder.path(), 1);
                assert!(found.iter().all(|(position, content)| written[position] == *content), "damaged at {at}");
                assert_eq!(found.len() + 1, written.len(), "damaged at {at}");
                at = end;
            }
            fs::write(&path, good).unwrap();
        }
    }

    /// Shows that the images of the test above are valid: under the right key a reader accepts them.
    #[test]
    fn an_image_under_the_key_of_the_file_would_be_read() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = opened(folder.path());
        append(&mut log, b"first");
        let (at, key) = (log.open.at, log.segments[0].key);
        append(&mut log, &images(&key, at + ENTRY_HEAD as u64, 1500, |_| 4));
        let path = &log.segments[0].path;
        let mut bytes = fs::read(path).unwrap();
        bytes[at as usize] ^= 1;
        fs::write(path, bytes).unwrap();
        let (entries, contents) = found(folder.path(), 1);
        assert_eq!((contents.end, contents.damages.len()), (4, 1));
        assert_eq!(entries[&4], b"");
    }
}

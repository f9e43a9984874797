//! A table file: sorted entries in blocks, then an index, a filter and metadata of fjall.
//!
//! ```text
//! file    an archive; sections of blocks: "data", "tli", "index", "filter", "filter_tli", "meta"
//! block   "LSM" 3, kind u8, XXH3-128 of the content u128, length u32, length again u32,
//!         low u32 of the XXH3-128 of this head
//! data    entries, 255, ..., trailer of 31 bytes: restart interval u8, ..., number of entries u32
//! entry   first of an interval: type u8, seqno, length of the key, key, length of the value, value
//!         others: type u8, seqno, length of the prefix shared with the first key, length of the rest, rest of the key,
//!         length of the value, value; all lengths and seqnos are varints
//! index   entries, 255, ...; an entry is 0, place of a block, its length, seqno, length of its last key, the key
//! ```
//!
//! Values hold bytes chosen by agents, and these bytes may look like a block. So after a block with a damaged length,
//! reading continues at the next place that the index names, never at bytes that merely look like a block.

use std::{collections::VecDeque, ops::Range, path::Path, sync::Arc};

use bytes::Bytes;
use xxhash_rust::xxh3::{Xxh3Default, xxh3_128};

use super::{
    Damage,
    archive::Archive,
    manifest::LiveTable,
    merge::{Entry, Source},
    numbers::Reader,
};

const HEAD: u64 = 33;
const MAGIC: &[u8] = b"LSM\x03";
const DATA: u8 = 0;
const TRAILER: usize = 31;
const CHUNK: u64 = 1024 * 1024;
/// Sections that do not consist of blocks.
const NO_BLOCKS: [&[u8]; 2] = [b"table_version", b"linked_blob_files"];

/// The entries of a run of files. A damaged place yields an error and is skipped.
pub(super) fn read_run(run: Vec<LiveTable>) -> Source {
    Box::new(run.into_iter().flat_map(|table| -> Source {
        match Table::open(&table) {
            Ok(read) => Box::new(read),
            Err(damage) => Box::new(std::iter::once(Err(damage))),
        }
    }))
}

/// Checks the parts that fjall reads when it opens the file: all but the data blocks.
pub(super) fn check_frame(table: &LiveTable) -> Result<(), Damage> {
    let archive = Archive::open(&table.path)?.with_sections()?;
    for name in ["data", "tli", "meta"] {
        archive.section(name)?;
    }
    for (name, place) in &archive.sections {
        if name == b"data" || NO_BLOCKS.contains(&name.as_slice()) {
            continue;
        }
        let mut blocks = Blocks { at: place.start, end: place.end, starts: Vec::new() };
        while let Some(block) = blocks.next(&archive)? {
            block.map_err(|hole| damaged(&table.path, &hole))?;
        }
    }
    Ok(())
}

/// Checks the checksum of the whole file.
pub(super) fn check_whole(table: &LiveTable) -> Result<(), Damage> {
    match is_whole(&Archive::open(&table.path)?, table)? {
        true => Ok(()),
        false => Err(Damage::new(&table.path, "its checksum is wrong")),
    }
}

fn is_whole(archive: &Archive, table: &LiveTable) -> Result<bool, Damage> {
    let Some(checksum) = table.checksum else { return Ok(true) };
    let mut hash = Xxh3Default::new();
    let mut at = 0;
    while at < archive.length {
        let end = (at + CHUNK).min(archive.length);
        hash.update(&archive.read(at..end)?);
        at = end;
    }
    Ok(hash.digest128() == checksum)
}

fn damaged(path: &Path, hole: &Range<u64>) -> Damage {
    Damage::new(path, format!("bytes {} to {} are not what was written", hole.start, hole.end))
}

/// A table file during a read.
struct Table {
    archive: Archive,
    path: Arc<Path>,
    seqno_base: u64,
    blocks: Blocks,
    entries: VecDeque<Entry>,
    /// A damaged place, reported once a valid block follows it: the bytes at the end of the file need not be blocks.
    hole: Option<Range<u64>>,
    is_whole: bool,
    damages_said: u32,
}

impl Table {
    fn open(table: &LiveTable) -> Result<Self, Damage> {
        let archive = Archive::open(&table.path)?;
        let is_whole = is_whole(&archive, table)? && !archive.sections.is_empty();
        let place = archive.section("data").unwrap_or(0..archive.length);
        Ok(Self {
            path: table.path.as_path().into(),
            seqno_base: table.seqno_base,
            blocks: Blocks { at: place.start, end: place.end, starts: data_blocks(&archive)? },
            entries: VecDeque::new(),
            hole: None,
            is_whole,
            damages_said: 0,
            archive,
        })
    }

    fn say(&mut self, damage: Damage) -> Option<Result<Entry, Damage>> {
        self.damages_said += 1;
        Some(Err(damage))
    }

    /// Reports the remaining damage at the end of the blocks.
    fn say_what_is_left(&mut self) -> Option<Result<Entry, Damage>> {
        if self.is_whole {
            return None;
        }
        self.is_whole = true; // reported once
        let ends = !self.archive.sections.is_empty();
        match self.hole.take().filter(|_| ends) {
            Some(hole) => self.say(damaged(&self.path, &hole)),
            None if !ends => self.say(Damage::new(&self.path, "its end is damaged or missing")),
            None if self.damages_said == 0 => self.say(Damage::new(&self.path, "it is damaged behind its records")),
            None => None,
        }
    }
}

impl Iterator for Table {
    type Item = Result<Entry, Damage>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(entry) = self.entries.pop_front() {
                return Some(Ok(entry));
            }
            let block = match self.blocks.next(&self.archive) {
                Ok(Some(Ok(block))) => block,
                Ok(Some(Err(hole))) => {
                    self.hole = Some(self.hole.take().map_or(hole.start, |before| before.start)..hole.end);
                    continue;
                }
                Ok(None) => return self.say_what_is_left(),
                Err(damage) => {
                    self.blocks.at = self.blocks.end;
                    return self.say(damage);
                }
            };
            if block.kind != DATA {
                continue;
            }
            match entries(&block.content, self.seqno_base, &self.path) {
                Some(entries) => self.entries = entries,
                None => self.hole = Some(block.place.clone()),
            }
            if let Some(hole) = self.hole.take() {
                return self.say(damaged(&self.path, &hole));
            }
        }
    }
}

struct Block {
    place: Range<u64>,
    kind: u8,
    content: Bytes,
}

/// Consecutive blocks of a section.
struct Blocks {
    at: u64,
    end: u64,
    /// The offsets of blocks according to the index, ascending.
    starts: Vec<u64>,
}

impl Blocks {
    /// The next block, or the range of a damaged one. `None`: the end of the section.
    fn next(&mut self, archive: &Archive) -> Result<Option<Result<Block, Range<u64>>>, Damage> {
        let (start, end) = (self.at, self.end);
        if start >= end {
            return Ok(None);
        }
        // Without a valid head the block's length is unknown, so only the index can tell where the next one begins.
        let Some(head) = self.head_at(archive, start)? else {
            self.at = self.starts.iter().copied().find(|next| *next > start).unwrap_or(end);
            return Ok(Some(Err(start..self.at)));
        };
        let content = start + HEAD..start + HEAD + u64::from(head.length);
        self.at = content.end;
        let content = Bytes::from(archive.read(content)?);
        Ok(Some(match xxh3_128(&content) == head.checksum {
            true => Ok(Block { place: start..self.at, kind: head.kind, content }),
            false => Err(start..self.at),
        }))
    }

    fn head_at(&self, archive: &Archive, at: u64) -> Result<Option<Head>, Damage> {
        if at + HEAD > self.end {
            return Ok(None);
        }
        let head = parse_head(&archive.read(at..at + HEAD)?);
        Ok(head.filter(|head| at + HEAD + u64::from(head.length) <= self.end))
    }
}

/// The offsets of data blocks, as far as the index is readable.
fn data_blocks(archive: &Archive) -> Result<Vec<u64>, Damage> {
    // A large index is split into parts, and "tli" then lists the parts.
    let Ok(place) = archive.section("index").or_else(|_| archive.section("tli")) else { return Ok(Vec::new()) };
    let mut blocks = Blocks { at: place.start, end: place.end, starts: Vec::new() };
    let mut starts = Vec::new();
    while let Some(block) = blocks.next(archive)? {
        let content = block.map_or_else(|_| Bytes::new(), |block| block.content);
        let mut reader = Reader(&content);
        starts.extend(std::iter::from_fn(|| index_entry(&mut reader)));
    }
    starts.sort_unstable();
    Ok(starts)
}

/// The offset of the block in the next index entry. `None`: no more entries.
fn index_entry(reader: &mut Reader<'_>) -> Option<u64> {
    (reader.u8()? == 0).then_some(())?;
    let (place, _length, _seqno) = (reader.varint()?, reader.varint()?, reader.varint()?);
    let key = reader.length()?;
    reader.bytes(key).map(|_| place)
}

struct Head {
    kind: u8,
    checksum: u128,
    length: u32,
}

fn parse_head(bytes: &[u8]) -> Option<Head> {
    let (protected, checksum) = bytes.split_at_checked(29)?;
    let mut reader = Reader(protected);
    (reader.bytes(4)? == MAGIC).then_some(())?;
    let head = Head { kind: reader.u8()?, checksum: reader.u128()?, length: reader.u32()? };
    let low = xxh3_128(protected).to_le_bytes();
    (checksum == &low[..4]).then_some(head)
}

fn entries(content: &Bytes, seqno_base: u64, path: &Arc<Path>) -> Option<VecDeque<Entry>> {
    let (data, trailer) = content.split_at_checked(content.len().checked_sub(TRAILER)?)?;
    let interval = usize::from(trailer[0]).max(1);
    let count = Reader(&trailer[TRAILER - 4..]).u32()?;
    let mut reader = Reader(data);
    let mut entries = VecDeque::new();
    let mut base: &[u8] = &[];
    for number in 0..count as usize {
        let value_type = reader.u8()?;
        let seqno = reader.varint()?;
        let key = if number % interval == 0 {
            let length = reader.length()?;
            base = reader.bytes(length)?;
            content.slice_ref(base)
        } else {
            let (shared, rest) = (reader.length()?, reader.length()?);
            [base.get(..shared)?, reader.bytes(rest)?].concat().into()
        };
        let value = match value_type {
            0 => {
                let length = reader.length()?;
                Some(content.slice_ref(reader.bytes(length)?))
            }
            1 | 2 => None,
            _ => return None,
        };
        entries.push_back(Entry { key, seqno: seqno.saturating_add(seqno_base), value, path: path.clone() });
    }
    Some(entries)
}

//! A journal: batches of changes, in the order in which they were made.
//!
//! ```text
//! batch  1, number of items u32, seqno u64, items, 3, XXH3-64 of the items, "FJL" 3
//! item   2, type u8, compression u8 (0), keyspace u64, length of the key u16, of the value u32, and again u32, key, value
//!        4, keyspace u64
//! ```
//!
//! fjall makes a journal 64 MiB long and writes over the zeros. What a killed process left half written is at the end.

use std::{fs::File, io, ops::Range, os::unix::fs::FileExt as _, path::Path};

use bytes::Bytes;
use xxhash_rust::xxh3::Xxh3Default;

use super::{Item, VERSION, numbers::Reader};

const START: u8 = 1;
const ITEM: u8 = 2;
const END: u8 = 3;
const CLEAR: u8 = 4;
/// Of a batch's start, and of its end.
const MARKER: usize = 13;
const ITEM_HEAD: usize = 21;
const CLEAR_LENGTH: usize = 9;
const WINDOW: usize = 64 * 1024;
static ZEROS: [u8; WINDOW] = [0; WINDOW];

/// Changes that were made together.
pub(super) struct Batch {
    pub(super) place: Range<u64>,
    pub(super) seqno: u64,
    pub(super) items: Vec<Item>,
}

/// What a journal consists of.
#[derive(Debug, Default)]
pub(super) struct Read {
    /// How many batches are whole.
    pub(super) batches: u64,
    /// What cannot be read, and has something behind it or was written to its end.
    pub(super) holes: Vec<Range<u64>>,
    /// Where an end begins that cannot be read and was not written to its end, as far as one can see.
    pub(super) tail: Option<u64>,
}

enum Parsed {
    Whole(Batch),
    /// It was written to this end, but it is not what was written.
    Wrong(u64),
    Broken,
}

/// Reads a journal from one end to the other and goes on behind what cannot be read. `last_seqno` is that of the batch before.
pub(super) fn read(path: &Path, last_seqno: &mut Option<u64>, mut found: impl FnMut(Batch)) -> io::Result<Read> {
    let mut window = Window::over(path)?;
    let mut read = Read::default();
    let mut at = 0;
    loop {
        match parse(&mut window, at)? {
            Parsed::Whole(batch) => {
                at = batch.place.end;
                *last_seqno = Some(batch.seqno);
                read.batches += 1;
                found(batch);
            }
            Parsed::Wrong(end) => {
                add_hole(&mut read.holes, at..end);
                at = end;
            }
            Parsed::Broken if window.has_only_zeros_from(at)? => return Ok(read),
            Parsed::Broken => match next_batch(&mut window, at, *last_seqno)? {
                Some(next) => {
                    add_hole(&mut read.holes, at..next);
                    at = next;
                }
                None => {
                    read.tail = Some(at);
                    return Ok(read);
                }
            },
        }
    }
}

fn add_hole(holes: &mut Vec<Range<u64>>, hole: Range<u64>) {
    match holes.last_mut() {
        Some(last) if last.end == hole.start => last.end = hole.end,
        Some(_) | None => holes.push(hole),
    }
}

fn parse(window: &mut Window, at: u64) -> io::Result<Parsed> {
    let Some((count, seqno)) = window.get(at, MARKER)?.and_then(parse_start) else { return Ok(Parsed::Broken) };
    let mut hash = Xxh3Default::new();
    let mut place = at + MARKER as u64;
    let mut items = Vec::new();
    for _ in 0..count {
        let Some(length) = item_length(window, place)? else { return Ok(Parsed::Broken) };
        let Some(encoded) = window.get(place, length)? else { return Ok(Parsed::Broken) };
        hash.update(encoded);
        items.extend(parse_item(encoded));
        place += length as u64;
    }
    let Some(checksum) = window.get(place, MARKER)?.and_then(parse_end) else { return Ok(Parsed::Broken) };
    place += MARKER as u64;
    Ok(if hash.digest() == checksum {
        Parsed::Whole(Batch { place: at..place, seqno, items })
    } else {
        Parsed::Wrong(place)
    })
}

fn parse_start(bytes: &[u8]) -> Option<(u32, u64)> {
    let mut reader = Reader(bytes);
    (reader.u8()? == START).then_some(())?;
    let start = (reader.u32()?, reader.u64()?);
    (start.0 > 0).then_some(start)
}

fn parse_end(bytes: &[u8]) -> Option<u64> {
    let mut reader = Reader(bytes);
    (reader.u8()? == END).then_some(())?;
    let checksum = reader.u64()?;
    (reader.0 == VERSION).then_some(checksum)
}

fn item_length(window: &mut Window, at: u64) -> io::Result<Option<usize>> {
    let kind = window.get(at, 1)?.map(|kind| kind[0]);
    Ok(match kind {
        Some(ITEM) => window.get(at, ITEM_HEAD)?.and_then(|head| {
            let mut reader = Reader(&head[1..]);
            let (value_type, compression, _keyspace) = (reader.u8()?, reader.u8()?, reader.u64()?);
            let (key, value, stored) = (reader.u16()?, reader.u32()?, reader.u32()?);
            let known = matches!(value_type, 0..=2) && compression == 0 && value == stored;
            known.then_some(ITEM_HEAD + usize::from(key) + value as usize)
        }),
        Some(CLEAR) => Some(CLEAR_LENGTH),
        Some(_) | None => None,
    })
}

/// `None`: a keyspace is cleared, which never happens to one of ours.
fn parse_item(encoded: &[u8]) -> Option<Item> {
    let mut reader = Reader(encoded);
    (reader.u8()? == ITEM).then_some(())?;
    let (value_type, _compression, keyspace) = (reader.u8()?, reader.u8()?, reader.u64()?);
    let (key, value, _stored) = (reader.u16()?, reader.u32()?, reader.u32()?);
    let key = Bytes::copy_from_slice(reader.bytes(usize::from(key))?);
    let value = Bytes::copy_from_slice(reader.bytes(value as usize)?);
    Some(Item { keyspace, key, value: (value_type == 0).then_some(value) })
}

/// Where the next whole batch begins. The seqno must fit to the one before: a value may look like a batch too.
fn next_batch(window: &mut Window, from: u64, last_seqno: Option<u64>) -> io::Result<Option<u64>> {
    let mut chunk = from + 1;
    while chunk < window.length {
        let count = window.length - chunk;
        let count = usize::try_from(count).map_or(WINDOW, |count| count.min(WINDOW));
        let bytes = window.get(chunk, count)?.unwrap_or_default();
        let starts: Vec<_> = match bytes == &ZEROS[..count] {
            true => Vec::new(),
            false => bytes.iter().enumerate().filter(|(_, byte)| **byte == START).map(|(place, _)| place).collect(),
        };
        for place in starts {
            let at = chunk + place as u64;
            let fits = |seqno: u64| last_seqno.is_none_or(|last| seqno > last && seqno - last <= at - from);
            if let Parsed::Whole(batch) = parse(window, at)?
                && fits(batch.seqno)
            {
                return Ok(Some(at));
            }
        }
        chunk += count as u64;
    }
    Ok(None)
}

/// A file, of which a part is in memory.
struct Window {
    file: File,
    length: u64,
    start: u64,
    bytes: Vec<u8>,
}

impl Window {
    fn over(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let length = file.metadata()?.len();
        Ok(Self { file, length, start: 0, bytes: Vec::new() })
    }

    /// `None`: the file ends before.
    fn get(&mut self, at: u64, count: usize) -> io::Result<Option<&[u8]>> {
        let Some(left) = self.length.checked_sub(at).filter(|left| *left >= count as u64) else { return Ok(None) };
        if at < self.start || at + count as u64 > self.start + self.bytes.len() as u64 {
            let wanted = usize::try_from(left).map_or(WINDOW, |left| left.min(WINDOW)).max(count);
            self.bytes.resize(wanted, 0);
            self.start = at;
            self.file.read_exact_at(&mut self.bytes, at)?;
        }
        let place = usize::try_from(at - self.start).expect("it is in the window");
        Ok(Some(&self.bytes[place..place + count]))
    }

    fn has_only_zeros_from(&mut self, mut at: u64) -> io::Result<bool> {
        while at < self.length {
            let count = usize::try_from(self.length - at).map_or(WINDOW, |count| count.min(WINDOW));
            if self.get(at, count)? != Some(&ZEROS[..count]) {
                return Ok(false);
            }
            at += count as u64;
        }
        Ok(true)
    }
}

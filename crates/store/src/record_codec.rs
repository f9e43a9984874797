//! The record codec: the bytes of a record in a table, and of a group's writes in an entry of the log.
//!
//! A record, stored under its key in its table:
//!
//! ```text
//! format 1 (u8), revision (u64), CRC-32C of table, key, revision and value (u32), value
//! ```
//!
//! An entry:
//!
//! ```text
//! length of the writes (u32), the writes as a block of LZ4
//! ```
//!
//! The writes, one after another:
//!
//! ```text
//! table (u8, the place in `Table::ALL`), length of the key (u32), key, revision (u64, 0: deleted), length of the value
//! (u32), value
//! ```
//!
//! All numbers are big-endian. An entry needs no checksums, because the log has its own.

use bytes::Bytes;
use lz4_flex::block;

use super::{Key, KeyBytes, Record, Table, Write, wal::BUFFER_BYTES_MAX};

const RECORD_FORMAT: u8 = 1;
const RECORD_HEAD: usize = 13;
/// The bytes of a write in an entry, without its key and its value.
pub(super) const WRITE_HEAD: usize = 17;

pub(super) fn encode_record(table: Table, key: &[u8], record: &Record) -> Bytes {
    let mut stored = Vec::with_capacity(RECORD_HEAD + record.value.len());
    stored.push(RECORD_FORMAT);
    stored.extend_from_slice(&record.revision.to_be_bytes());
    stored.extend_from_slice(&checksum(table, key, record.revision, &record.value).to_be_bytes());
    stored.extend_from_slice(&record.value);
    stored.into()
}

pub(super) fn decode_record(table: Table, key: &[u8], stored: &Bytes) -> Result<Record, &'static str> {
    if stored.len() < RECORD_HEAD {
        return Err("it is too short");
    }
    if stored[0] != RECORD_FORMAT {
        return Err("its format is not known");
    }
    let revision = u64::from_be_bytes(stored[1..9].try_into().expect("8 bytes"));
    let expected = u32::from_be_bytes(stored[9..RECORD_HEAD].try_into().expect("4 bytes"));
    let value = stored.slice(RECORD_HEAD..);
    // After the format, which decides what the bytes of the checksum are.
    if checksum(table, key, revision, &value) != expected {
        return Err("its checksum is wrong");
    }
    Ok(Record { revision, value })
}

/// Covers table and key too, so a value under a wrong key fails the check.
fn checksum(table: Table, key: &[u8], revision: u64, value: &[u8]) -> u32 {
    let mut sum = crc32c::crc32c(table.name().as_bytes());
    for part in [&key.len().to_be_bytes()[..], key, &revision.to_be_bytes(), value] {
        sum = crc32c::crc32c_append(sum, part);
    }
    sum
}

/// Encodes the entry of a group after that of another. Of the memory of large entries, keeps [`BUFFER_BYTES_MAX`] for each
/// of its buffers.
#[derive(Default)]
pub(super) struct EntryEncoder {
    writes: Vec<u8>,
    entry: Vec<u8>,
}

impl EntryEncoder {
    /// The entry of a group, and the length of its writes before they were compressed.
    pub(super) fn encode(&mut self, writes: &[Write]) -> (&[u8], usize) {
        put_writes(writes, &mut self.writes);
        let length = self.writes.len();
        let head = u32::try_from(length).expect("no group has 4 GiB").to_be_bytes();
        self.entry.truncate(BUFFER_BYTES_MAX);
        self.entry.shrink_to(BUFFER_BYTES_MAX);
        // The buffer is not cleared: the bytes behind the block are those of former entries, and are not returned.
        let end_max = head.len() + block::get_maximum_output_size(length);
        if self.entry.len() < end_max {
            self.entry.resize(end_max, 0);
        }
        let (stored_head, stored) = self.entry.split_at_mut(head.len());
        stored_head.copy_from_slice(&head);
        let compressed = block::compress_into(&self.writes, stored).expect("the buffer has room for any block");
        (&self.entry[..head.len() + compressed], length)
    }
}

/// Replaces the content of `stored` by writes.
fn put_writes(writes: &[Write], stored: &mut Vec<u8>) {
    stored.clear();
    stored.shrink_to(BUFFER_BYTES_MAX);
    stored.reserve(writes.iter().map(Write::bytes).sum());
    for Write { key, record, .. } in writes {
        stored.push(key.table as u8);
        put_bytes(stored, &key.key);
        stored.extend_from_slice(&record.as_ref().map_or(0, |record| record.revision).to_be_bytes());
        put_bytes(stored, record.as_ref().map_or(&[], |record| &record.value));
    }
}

/// Calls `found` for each write of an entry, in order; a record of `None` is deleted. Returns the length of the writes.
/// `None`: the bytes end within a write, or another version wrote them.
pub(super) fn decode_entry(mut stored: &[u8], found: impl FnMut(Key, Option<Record>)) -> Option<usize> {
    let length = u32::from_be_bytes(take(&mut stored)?) as usize;
    let writes = block::decompress(stored, length).ok().filter(|writes| writes.len() == length)?;
    decode_writes(&writes, found).map(|()| length)
}

fn decode_writes(mut writes: &[u8], mut found: impl FnMut(Key, Option<Record>)) -> Option<()> {
    while !writes.is_empty() {
        let table = *Table::ALL.get(usize::from(writes.split_off_first().copied()?))?;
        let key = KeyBytes::from(take_bytes(&mut writes)?);
        let revision = u64::from_be_bytes(take(&mut writes)?);
        let value = take_bytes(&mut writes)?;
        // A copy: a slice would keep all writes of the entry in memory as long as one of its records.
        let record = || Record { revision, value: Bytes::copy_from_slice(value) };
        found(Key { table, key }, (revision > 0).then(record));
    }
    Some(())
}

fn put_bytes(stored: &mut Vec<u8>, bytes: &[u8]) {
    stored.extend_from_slice(&u32::try_from(bytes.len()).expect("no key and no value has 4 GiB").to_be_bytes());
    stored.extend_from_slice(bytes);
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    rest.split_off(..N)?.try_into().ok()
}

fn take_bytes<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = u32::from_be_bytes(take(rest)?);
    rest.split_off(..length as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(table: Table, key: &'static str, record: Option<(u64, &'static str)>) -> Write {
        Write {
            key: Key { table, key: key.into() },
            record: record.map(|(revision, value)| Record { revision, value: Bytes::from_static(value.as_bytes()) }),
            is_new: false,
        }
    }

    fn decoded(stored: &[u8]) -> Option<Vec<Write>> {
        let mut writes = Vec::new();
        decode_entry(stored, |key, record| writes.push(Write { key, record, is_new: false })).map(|_| writes)
    }

    #[test]
    fn a_record_that_was_changed_or_moved_is_noticed() {
        let record = Record { revision: 7, value: Bytes::from_static(b"value") };
        let stored = encode_record(Table::Tasks, b"key", &record);
        assert_eq!(decode_record(Table::Tasks, b"key", &stored), Ok(record));
        for place in 0..stored.len() {
            let mut damaged = stored.to_vec();
            damaged[place] ^= 1;
            assert!(decode_record(Table::Tasks, b"key", &damaged.into()).is_err(), "byte {place}");
        }
        assert!(decode_record(Table::Tasks, b"kez", &stored).is_err());
        assert!(decode_record(Table::Agents, b"key", &stored).is_err());
        assert!(decode_record(Table::Tasks, b"key", &stored.slice(..12)).is_err());
    }

    fn group() -> [Write; 3] {
        [
            write(Table::Meta, "a", Some((1, ""))),
            write(Table::RemovedTasks, "", None),
            write(Table::Mailbox, "b", Some((u64::MAX, "end"))),
        ]
    }

    #[test]
    fn an_entry_says_what_was_written_and_nothing_if_it_is_cut_off() {
        let mut encoder = EntryEncoder::default();
        // A larger entry before leaves nothing in the next one.
        let text: &str = "of the group before, again and again".repeat(100).leak();
        assert_eq!(decoded(encoder.encode(&[write(Table::Meta, "before", Some((1, text)))]).0).unwrap().len(), 1);
        let (stored, length) = encoder.encode(&group());
        assert_eq!(decoded(stored).as_deref(), Some(&group()[..]));
        assert_eq!(decode_entry(stored, |_, _| {}), Some(length));
        for place in 0..stored.len() {
            assert_eq!(decoded(&stored[..place]), None, "cut at {place}");
        }
        assert_eq!(decoded(encoder.encode(&[]).0), Some(Vec::new()));
    }

    #[test]
    fn an_entry_with_unknown_or_cut_writes_is_refused() {
        let entry = |writes: &[u8]| [&(writes.len() as u32).to_be_bytes()[..], &block::compress(writes)].concat();
        let mut writes = Vec::new();
        put_writes(&group(), &mut writes);
        assert_eq!(decoded(&entry(&writes)).as_deref(), Some(&group()[..]));
        for place in 1..writes.len() {
            let cut = decoded(&entry(&writes[..place]));
            assert!(cut.is_none_or(|cut| cut.len() < 3 && group().starts_with(&cut)), "cut at {place}");
        }
        let mut of_other_length = entry(&writes);
        of_other_length[3] += 1;
        assert_eq!(decoded(&of_other_length), None, "a length that is not that of the writes");
        writes[0] = 200;
        assert_eq!(decoded(&entry(&writes)), None, "a table that is not known");
    }
}

//! The record codec: the bytes of a record in a table, and of a group's writes in the log.
//!
//! A record, stored under its key in its table:
//!
//! ```text
//! format 1 (u8), revision (u64), CRC-32C of table, key, revision and value (u32), value
//! ```
//!
//! The content of a group in the log, write after write:
//!
//! ```text
//! table (u8, the place in `Table::ALL`), length of the key (u32), key, revision (u64, 0: deleted),
//! and unless deleted: length of the value (u32), value
//! ```
//!
//! All numbers are big-endian.

use bytes::Bytes;

use super::{Key, KeyBytes, Record, Table, Write};

const RECORD_FORMAT: u8 = 1;
const RECORD_HEAD: usize = 13;
/// The bytes of a write in a group, without its key and its value.
const WRITE_HEAD: usize = 17;

pub(super) fn encode_record(table: Table, key: &[u8], record: &Record) -> Vec<u8> {
    let mut stored = Vec::with_capacity(RECORD_HEAD + record.value.len());
    stored.push(RECORD_FORMAT);
    stored.extend_from_slice(&record.revision.to_be_bytes());
    stored.extend_from_slice(&checksum(table, key, record.revision, &record.value).to_be_bytes());
    stored.extend_from_slice(&record.value);
    stored
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

pub(super) fn encode_writes(stored: &mut Vec<u8>, writes: &[Write]) {
    let length =
        |write: &Write| WRITE_HEAD + write.key.key.len() + write.record.as_ref().map_or(0, |record| record.value.len());
    stored.reserve(writes.iter().map(length).sum::<usize>());
    for Write { key, record, .. } in writes {
        stored.push(key.table as u8);
        put_bytes(stored, &key.key);
        stored.extend_from_slice(&record.as_ref().map_or(0, |record| record.revision).to_be_bytes());
        if let Some(record) = record {
            put_bytes(stored, &record.value);
        }
    }
}

/// Decodes the writes of a group, in order. `None`: the bytes end within a write, or another version wrote them.
pub(super) fn decode_writes(mut stored: Bytes) -> Option<Vec<(Key, Option<Record>)>> {
    let mut writes = Vec::new();
    while !stored.is_empty() {
        writes.push(take_write(&mut stored)?);
    }
    Some(writes)
}

fn take_write(rest: &mut Bytes) -> Option<(Key, Option<Record>)> {
    let table = *Table::ALL.get(usize::from(take(rest, 1)?[0]))?;
    let key = KeyBytes::from(&*take_bytes(rest)?);
    let revision = u64::from_be_bytes((*take(rest, 8)?).try_into().ok()?);
    let record = match revision {
        0 => None,
        revision => Some(Record { revision, value: take_bytes(rest)? }),
    };
    Some((Key { table, key }, record))
}

fn take(rest: &mut Bytes, length: usize) -> Option<Bytes> {
    (length <= rest.len()).then(|| rest.split_to(length))
}

fn put_bytes(stored: &mut Vec<u8>, bytes: &[u8]) {
    let length = u32::try_from(bytes.len()).expect("no key and no value has 4 GiB");
    stored.extend_from_slice(&length.to_be_bytes());
    stored.extend_from_slice(bytes);
}

fn take_bytes(rest: &mut Bytes) -> Option<Bytes> {
    let length = u32::from_be_bytes((*take(rest, 4)?).try_into().ok()?);
    take(rest, length as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_that_was_changed_or_moved_is_noticed() {
        let record = Record { revision: 7, value: Bytes::from_static(b"value") };
        let stored = encode_record(Table::Tasks, b"key", &record);
        assert_eq!(decode_record(Table::Tasks, b"key", &stored.clone().into()), Ok(record));
        for place in 0..stored.len() {
            let mut damaged = stored.clone();
            damaged[place] ^= 1;
            assert!(decode_record(Table::Tasks, b"key", &damaged.into()).is_err(), "byte {place}");
        }
        assert!(decode_record(Table::Tasks, b"kez", &stored.clone().into()).is_err());
        assert!(decode_record(Table::Agents, b"key", &stored.clone().into()).is_err());
        assert!(decode_record(Table::Tasks, b"key", &stored[..12].to_vec().into()).is_err());
    }

    #[test]
    fn a_group_says_what_was_written_and_nothing_if_it_is_cut_off() {
        let write = |table, key: &'static str, record: Option<(u64, &'static str)>| Write {
            key: Key { table, key: key.into() },
            record: record.map(|(revision, value)| Record { revision, value: Bytes::from_static(value.as_bytes()) }),
            is_new: false,
        };
        let writes = [
            write(Table::Meta, "a", Some((1, "one"))),
            write(Table::RemovedTasks, "", None),
            write(Table::Mailbox, "b", Some((u64::MAX, "end"))),
        ];
        let mut stored = Vec::new();
        encode_writes(&mut stored, &writes);
        let wanted = writes.map(|write| (write.key, write.record)).to_vec();
        let decoded = |stored: &[u8]| decode_writes(Bytes::copy_from_slice(stored));
        assert_eq!(decoded(&stored), Some(wanted.clone()));
        for place in 0..stored.len() {
            let cut = decoded(&stored[..place]);
            assert!(cut.is_none_or(|cut| cut.len() < wanted.len() && wanted.starts_with(&cut)), "cut at {place}");
        }
        stored[0] = 200;
        assert_eq!(decoded(&stored), None, "a table that is not known");
    }
}

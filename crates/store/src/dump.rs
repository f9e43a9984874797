//! Reads a store that may be damaged: every readable record, and a report for each unreadable place. Continues behind
//! each damage, and changes nothing: the tables are opened under other names, in a temporary folder.

use std::{
    collections::BTreeMap,
    ops::Bound,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
};

use bytes::Bytes;
use lsm_tree::{AbstractTree as _, AnyTree, Guard as _};

use super::{
    Key, KeyBytes, OpenError, Record, Table,
    checkpoint::Manifest,
    layout::{Damage, FolderGuard, LOG_FOLDER, TABLES_FOLDER, groups_committed},
    record_codec::{decode_entry, decode_record},
    tables::{NEWEST, open_tree},
    wal,
};

/// A finding in a store.
#[derive(Debug)]
pub enum Found {
    /// An intact record.
    Record {
        /// The table that holds the record.
        table: Table,
        /// The record's key.
        key: Bytes,
        /// The newest version of the record.
        record: Record,
    },
    /// A damaged place.
    Damaged {
        /// The damaged file.
        path: PathBuf,
        /// The table, if known.
        table: Option<Table>,
        /// The key of a damaged record; empty for a part of a file.
        key: Bytes,
        /// A description of the damage.
        problem: String,
    },
}

/// The newest version of each record in the log; `None`: deleted.
type Newer = BTreeMap<KeyBytes, Option<Record>>;

/// Reads a whole store, table by table and key by key. Fails if a broker has the store open.
pub fn read_all(path: &Path, found: impl FnMut(Found)) -> Result<(), OpenError> {
    let _guard = FolderGuard::take(path)?;
    read(path, found)
}

/// As [`read_all`], of a folder that no other process changes.
pub(super) fn read(path: &Path, mut found: impl FnMut(Found)) -> Result<(), OpenError> {
    let (manifest, damages) = Manifest::salvage(path);
    damages.into_iter().for_each(|damage| found(damaged(damage, None)));
    manifest.verify(path, |table, damage| {
        found(damaged(damage, Table::ALL.into_iter().find(|known| known.name() == table)));
    });
    let mut newer = BTreeMap::<Table, Newer>::new();
    let mut unknown = Vec::new();
    let log = wal::scan(&path.join(LOG_FOLDER), manifest.flushed_upto + 1, |position, entry, path| {
        let read = decode_entry(&entry, |Key { table, key }, record| {
            newer.entry(table).or_default().insert(key, record);
        });
        if read.is_none() {
            unknown.push(Damage::new(path, format!("what entry {position} says is not known")));
        }
    });
    let committed = groups_committed(path).unwrap_or(0);
    // A reported damage explains the short log already.
    if log.end < committed && log.damages.is_empty() {
        let file = log.newest().map_or_else(|| path.join(LOG_FOLDER), Path::to_path_buf);
        let problem = format!("the store ends at group {}, but group {committed} was written", log.end);
        found(damaged(Damage::new(&file, problem), None));
    }
    log.damages.into_iter().chain(unknown).for_each(|damage| found(damaged(damage, None)));
    let temporary = tempfile::tempdir().map_err(|source| OpenError::File { path: std::env::temp_dir(), source })?;
    let folder = path.join(TABLES_FOLDER);
    for table in Table::ALL {
        // The log's records are kept out of the tables, so they can be read even if the table cannot.
        let mut newer = newer.remove(&table).unwrap_or_default();
        let copy = temporary.path().join(table.name());
        // The library may panic over bytes that it did not write.
        let read = catch_unwind(AssertUnwindSafe(|| {
            if manifest.has_tree(table) {
                let tree = open_copy(path, &manifest, table, &copy)?;
                read_table(&tree, table, &folder, &mut newer, &mut found);
            }
            Ok(())
        }));
        let problem = match read {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(lsm_tree::Error::to_string(&error)),
            Err(_) => Some("it cannot be read further".to_owned()),
        };
        problem.into_iter().for_each(|problem| found(damaged(Damage::new(&folder, problem), Some(table))));
        // The records of the log behind the last key that the table gave.
        newer.into_iter().filter_map(|(key, record)| Some((key, record?))).for_each(|(key, record)| {
            found(Found::Record { table, key: Bytes::copy_from_slice(&key), record });
        });
    }
    Ok(())
}

fn damaged(damage: Damage, table: Option<Table>) -> Found {
    Found::Damaged { path: damage.path, table, key: Bytes::new(), problem: damage.problem }
}

/// Opens a table through symbolic links.
fn open_copy(store: &Path, manifest: &Manifest, table: Table, folder: &Path) -> lsm_tree::Result<AnyTree> {
    let link = |from: &Path, to: &Path| std::os::unix::fs::symlink(std::path::absolute(from)?, to);
    manifest.restore(store, table, folder, link)?;
    open_tree(folder, None)
}

fn decoded(table: Table, folder: &Path, key: Bytes, stored: &Bytes) -> Found {
    match decode_record(table, &key, stored) {
        Ok(record) => Found::Record { table, key, record },
        Err(problem) => {
            Found::Damaged { path: folder.to_owned(), table: Some(table), key, problem: problem.to_owned() }
        }
    }
}

/// Reads a table with what the log has of it up to the table's last key, and removes that from `newer`.
fn read_table(tree: &AnyTree, table: Table, folder: &Path, newer: &mut Newer, found: &mut impl FnMut(Found)) {
    let mut problems = Vec::new();
    let in_order = |key: Bytes, stored: Bytes| {
        let key_bytes = KeyBytes::from(&*key);
        let of_log = |key: &KeyBytes, record| Found::Record { table, key: Bytes::copy_from_slice(key), record };
        // The records of both in the order of their keys, so that the output of a whole store needs no sorting.
        while let Some(entry) = newer.first_entry().filter(|entry| *entry.key() < key_bytes) {
            let (key, record) = entry.remove_entry();
            record.into_iter().for_each(|record| found(of_log(&key, record)));
        }
        match newer.remove(&key_bytes) {
            Some(newest) => newest.into_iter().for_each(|record| found(of_log(&key_bytes, record))),
            None => found(decoded(table, folder, key, &stored)),
        }
    };
    read_around_damage(tree, in_order, |error| problems.push(error.to_string()));
    problems.into_iter().for_each(|problem| found(damaged(Damage::new(folder, problem), Some(table))));
}

/// Reads a tree in the order of its keys. Where a part cannot be read, continues behind it: at a key from which on the
/// tree can be read again, found by steps and then by halves.
fn read_around_damage(tree: &AnyTree, mut found: impl FnMut(Bytes, Bytes), mut failed: impl FnMut(&lsm_tree::Error)) {
    let mut from = Bound::Unbounded;
    loop {
        let mut error = None;
        for entry in tree.range((from.clone(), Bound::Unbounded), NEWEST, None) {
            match entry.into_inner() {
                Ok((key, stored)) => {
                    // Excluded: after a damage the search begins behind the last record that was given, and gives none
                    // twice.
                    from = Bound::Excluded(key.to_vec());
                    found(key.into(), stored.into());
                }
                Err(problem) => {
                    error = Some(problem);
                    break;
                }
            }
        }
        let Some(error) = error else { return };
        failed(&error);
        let is_readable = |at: &Number| {
            let first = tree.range((Bound::Included(at.to_vec()), Bound::Unbounded), NEWEST, None).next();
            first.is_none_or(|first| first.into_inner().is_ok())
        };
        let (mut low, mut high) = (number(&from), None);
        // The steps double, so that a step leaps over little that can be read.
        for bit in 0..8 * KEY_BYTES {
            match plus_bit(&number(&from), bit) {
                Some(at) if is_readable(&at) => {
                    high = Some(at);
                    break;
                }
                Some(at) => low = at,
                None => return,
            }
        }
        let Some(mut high) = high else { return };
        for _ in 0..8 * KEY_BYTES {
            let middle = half_way(&low, &high);
            if middle == low {
                break;
            }
            *(if is_readable(&middle) { &mut high } else { &mut low }) = middle;
        }
        from = Bound::Included(high.to_vec());
    }
}

/// The bytes of a key that the search looks at. Longer than any key of the broker that agents do not choose.
const KEY_BYTES: usize = 96;

/// A key as a number, for a search by halves.
type Number = [u8; KEY_BYTES];

fn number(from: &Bound<Vec<u8>>) -> Number {
    let mut number = [0; KEY_BYTES];
    if let Bound::Included(key) | Bound::Excluded(key) = from {
        let length = key.len().min(KEY_BYTES);
        number[..length].copy_from_slice(&key[..length]);
    }
    number
}

/// The number that is larger by 2 to the power of `bit`. `None`: the sum is longer.
fn plus_bit(low: &Number, bit: usize) -> Option<Number> {
    let mut sum = *low;
    let last = KEY_BYTES - 1 - bit / 8;
    let (digit, mut carry) = sum[last].overflowing_add(1 << (bit % 8));
    sum[last] = digit;
    for place in (0..last).rev() {
        (sum[place], carry) = sum[place].overflowing_add(u8::from(carry));
    }
    (!carry).then_some(sum)
}

fn half_way(low: &Number, high: &Number) -> Number {
    let (mut sum, mut carry) = ([0_u16; KEY_BYTES], 0);
    for place in (0..KEY_BYTES).rev() {
        let digit = u16::from(low[place]) + u16::from(high[place]) + carry;
        (sum[place], carry) = (digit & 0xff, digit >> 8);
    }
    let mut half = [0; KEY_BYTES];
    for place in 0..KEY_BYTES {
        half[place] = u8::try_from((carry << 8 | sum[place]) >> 1).expect("half of the sum of two bytes");
        carry = sum[place] & 1;
    }
    half
}

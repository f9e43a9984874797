//! Reads a store that may be damaged: every readable record, and a report for each unreadable place. Reads the files
//! directly, continues behind each damage, and writes nothing.

use std::{
    collections::BTreeMap,
    fs::File,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;

use super::{
    Key, OpenError, Record, Table,
    files::{Damage, Entry, Folder, Newest, Source},
    folder::{FolderGuard, LOG_FOLDER, read_witness},
    rows::{decode_record, encode_record},
    survey::{self, Survey},
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
        /// The record.
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

/// The newest entry of each key.
type Entries = BTreeMap<Bytes, Entry>;

/// Reads a whole store, table by table and key by key. Fails if a broker has the store open.
pub fn read_all(path: &Path, mut found: impl FnMut(Found)) -> Result<(), OpenError> {
    let _guard = FolderGuard::take(path)?;
    let mut pending = BTreeMap::<Table, Entries>::new();
    let survey = survey::survey(path, |group| {
        for (key, record) in group.writes {
            let entry = pending_entry(&key, record, &group.path);
            pending.entry(key.table).or_default().insert(entry.key.clone(), entry);
        }
    });
    survey.damages.iter().for_each(|damage| found(damaged(damage.clone(), None)));
    check_end(path, &survey, &mut found);
    let folder = survey::engine_folder(path);
    for table in Table::ALL {
        let newer = pending.remove(&table).unwrap_or_default();
        read_table(&folder, survey.keyspaces.get(table.name()).copied(), table, newer, &mut found);
    }
    Ok(())
}

/// A write of a group, encoded as in its table and newer than every entry there.
fn pending_entry(key: &Key, record: Option<Record>, path: &Arc<Path>) -> Entry {
    let value = record.map(|record| encode_record(key.table, &key.key, &record).into());
    Entry { key: Bytes::copy_from_slice(&key.key), seqno: u64::MAX, value, path: path.clone() }
}

fn damaged(damage: Damage, table: Option<Table>) -> Found {
    Found::Damaged { path: damage.path, table, key: Bytes::new(), problem: damage.problem }
}

/// Reports if the log ends before the last group that was committed.
fn check_end(store: &Path, survey: &Survey, found: &mut impl FnMut(Found)) {
    let witnessed = File::open(store.join("witness")).ok().and_then(|file| read_witness(&file)).unwrap_or(0);
    if survey.log.last < witnessed {
        let path = survey.log.newest().map_or_else(|| store.join(LOG_FOLDER), Path::to_path_buf);
        let problem = format!("the store ends at group {}, but group {witnessed} was written", survey.log.last);
        found(Found::Damaged { path, table: None, key: Bytes::new(), problem });
    }
}

/// The sources of a table's entries.
fn table_sources(folder: &Folder, keyspace: u64, table: Table, found: &mut impl FnMut(Found)) -> Vec<Source> {
    let sources = folder.table_sources(keyspace).or_else(|damage| {
        found(damaged(damage, Some(table)));
        // Without a manifest the live files are unknown. Entries of files with higher numbers override the others.
        folder.all_table_sources(keyspace)
    });
    sources.unwrap_or_else(|damage| {
        found(damaged(damage, Some(table)));
        Vec::new()
    })
}

fn read_table(folder: &Folder, keyspace: Option<u64>, table: Table, newer: Entries, found: &mut impl FnMut(Found)) {
    let mut sources = keyspace.map_or_else(Vec::new, |keyspace| table_sources(folder, keyspace, table, found));
    sources.push(Box::new(newer.into_values().map(Ok)));
    for entry in Newest::of(sources) {
        let Entry { key, value, path, .. } = match entry {
            Ok(entry) => entry,
            Err(damage) => {
                found(damaged(damage, Some(table)));
                continue;
            }
        };
        let Some(stored) = value else { continue };
        found(match decode_record(table, &key, &stored) {
            Ok(record) => Found::Record { table, key, record },
            Err(problem) => {
                Found::Damaged { path: path.to_path_buf(), table: Some(table), key, problem: problem.to_owned() }
            }
        });
    }
}

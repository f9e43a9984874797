//! Reading a store that may be damaged: every record that can be read, and a word for each place that cannot. Reads the
//! files as they are, goes on behind every damage, and writes nothing.

use std::{
    collections::{BTreeMap, HashMap},
    fs::File,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;

use super::{
    Key, OpenError, Record, Table,
    engine::{ENGINE_FOLDER, GROUPS},
    files::{Damage, Entry, Folder, Newest, Source},
    folder::{FolderGuard, read_witness},
    rows::{SETTLED, decode_group, decode_record, encode_record, group_of_row},
    survey::{self, Survey},
};

/// Something that was found in a store.
#[derive(Debug)]
pub enum Found {
    /// A record that is as it was written.
    Record {
        /// The table.
        table: Table,
        /// Its key.
        key: Bytes,
        /// The record.
        record: Record,
    },
    /// Something that is not.
    Damaged {
        /// The file.
        path: PathBuf,
        /// The table, if it is known.
        table: Option<Table>,
        /// The key of a record that is damaged; empty for a part of a file.
        key: Bytes,
        /// What is wrong.
        problem: String,
    },
}

/// The newest entry of each key, by keyspace or by table. As much as a broker has in memory.
type Entries<K> = BTreeMap<K, BTreeMap<Bytes, Entry>>;

/// Reads all of a store, table by table and key by key. No broker may have it open.
pub fn read_all(path: &Path, mut found: impl FnMut(Found)) -> Result<(), OpenError> {
    let _guard = FolderGuard::take(path)?;
    let folder = Folder::new(path.join(ENGINE_FOLDER));
    let mut journal = Entries::<u64>::new();
    let mut rows = BTreeMap::<u64, Vec<Entry>>::new();
    let survey = survey::survey(&folder, |item, seqno, path| {
        let entry = Entry { key: item.key.clone(), seqno, value: item.value, path: path.clone() };
        if group_of_row(&entry.key).is_some() {
            rows.entry(item.keyspace).or_default().push(entry.clone());
        }
        journal.entry(item.keyspace).or_default().insert(item.key, entry);
    });
    survey.damages.iter().for_each(|damage| found(damaged(damage.clone(), None)));
    check_end(path, &survey, &mut found);
    if survey.is_new {
        return Ok(());
    }
    let mut pending = Entries::<Table>::new();
    if let Some(number) = survey.keyspaces.get(GROUPS) {
        add_settled(rows.remove(number).unwrap_or_default(), &survey.keyspaces, &mut journal);
        let rows = entries(&folder, *number, None, [journal.remove(number).unwrap_or_default()], &mut found);
        pending = read_groups(rows, &mut found);
    }
    for table in Table::ALL {
        if let Some(number) = survey.keyspaces.get(table.name()) {
            let newer = [journal.remove(number).unwrap_or_default(), pending.remove(&table).unwrap_or_default()];
            read_table(&folder, *number, table, newer, &mut found);
        }
    }
    Ok(())
}

/// The rows of groups that are still in the journals have what may be damaged where it was written into its table. A row is
/// older than that.
fn add_settled(rows: Vec<Entry>, keyspaces: &HashMap<String, u64>, journal: &mut Entries<u64>) {
    for Entry { key, seqno, value, path } in rows {
        let (Some(number), Some(row)) = (group_of_row(&key), value) else { continue };
        for (key, record) in decode_group(number, &row).unwrap_or_default() {
            let Some(keyspace) = keyspaces.get(key.table.name()) else { continue };
            let entry = entry_of(&key, record, seqno, &path);
            let known = journal.entry(*keyspace).or_default().entry(key.key).or_insert_with(|| entry.clone());
            if known.seqno <= seqno {
                *known = entry;
            }
        }
    }
}

/// What of the groups may not be in the tables yet.
fn read_groups(rows: Newest, found: &mut impl FnMut(Found)) -> Entries<Table> {
    let mut groups = BTreeMap::new();
    let mut settled = 0;
    for row in rows {
        match row {
            Ok(Entry { key, value: Some(value), path, .. }) => {
                if key == SETTLED.as_bytes() {
                    settled = (*value).try_into().map_or(0, u64::from_be_bytes);
                } else if let Some(number) = group_of_row(&key) {
                    groups.insert(number, (value, path));
                }
            }
            Ok(_) => {}
            Err(damage) => found(damaged(damage, None)),
        }
    }
    let mut pending = Entries::<Table>::new();
    for (number, (row, path)) in groups.range(settled + 1..) {
        match decode_group(*number, row) {
            Ok(writes) => {
                for (key, record) in writes {
                    let entry = entry_of(&key, record, u64::MAX, path); // newer than all that is in a table
                    pending.entry(key.table).or_default().insert(key.key, entry);
                }
            }
            Err(problem) => {
                let (path, problem) = (path.to_path_buf(), format!("group {number}: {problem}"));
                found(Found::Damaged { path, table: None, key: Bytes::new(), problem });
            }
        }
    }
    pending
}

/// What a group writes, as its table would have it.
fn entry_of(key: &Key, record: Option<Record>, seqno: u64, path: &Arc<Path>) -> Entry {
    let value = record.map(|record| encode_record(key.table, &key.key, &record).into());
    Entry { key: key.key.clone(), seqno, value, path: path.clone() }
}

fn damaged(damage: Damage, table: Option<Table>) -> Found {
    Found::Damaged { path: damage.path, table, key: Bytes::new(), problem: damage.problem }
}

/// Whether all groups are there that were written.
fn check_end(store: &Path, survey: &Survey, found: &mut impl FnMut(Found)) {
    let witnessed = File::open(store.join("witness")).ok().and_then(|file| read_witness(&file)).unwrap_or(0);
    if survey.last_group < witnessed {
        let path = survey.journal.clone().unwrap_or_else(|| store.join(ENGINE_FOLDER));
        let problem = format!("the store ends at group {}, but group {witnessed} was written", survey.last_group);
        found(Found::Damaged { path, table: None, key: Bytes::new(), problem });
    }
}

/// All entries of a keyspace, of its table files and of what is newer.
fn entries<const N: usize>(
    folder: &Folder,
    keyspace: u64,
    table: Option<Table>,
    newer: [BTreeMap<Bytes, Entry>; N],
    found: &mut impl FnMut(Found),
) -> Newest {
    let mut sources = folder.table_sources(keyspace).or_else(|damage| {
        found(damaged(damage, table));
        // Nobody can say which table files are live: old ones among them are outdone by newer ones.
        folder.all_table_sources(keyspace)
    });
    if let Err(damage) = &sources {
        found(damaged(damage.clone(), table));
    }
    let newer = newer.into_iter().map(|entries| -> Source { Box::new(entries.into_values().map(Ok)) });
    let sources = sources.as_mut().map(std::mem::take).unwrap_or_default().into_iter().chain(newer);
    Newest::of(sources.collect())
}

fn read_table(
    folder: &Folder,
    keyspace: u64,
    table: Table,
    newer: [BTreeMap<Bytes, Entry>; 2],
    found: &mut impl FnMut(Found),
) {
    for entry in entries(folder, keyspace, Some(table), newer, found) {
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

//! Reading a store that may be damaged: every record that can be read, and a word for each place that cannot. Reads the
//! files as they are, goes on behind every damage, and writes nothing.

use std::{
    collections::BTreeMap,
    fs::File,
    path::{Path, PathBuf},
};

use bytes::Bytes;

use super::{
    OpenError, Record, Table,
    embedded::{ENGINE_FOLDER, FolderGuard, decode_record, read_witness},
    files::{Damage, Entry, Folder, Newest, Source},
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

/// The newest entry of each key in the journals, by keyspace. As much as a broker has in memory.
type JournalEntries = BTreeMap<u64, BTreeMap<Bytes, Entry>>;

/// Reads all of a store, table by table and key by key. No broker may have it open.
pub fn read_all(path: &Path, mut found: impl FnMut(Found)) -> Result<(), OpenError> {
    let _guard = FolderGuard::take(path)?;
    let folder = Folder::new(path.join(ENGINE_FOLDER));
    let mut journal = JournalEntries::new();
    let survey = survey::survey(&folder, |item, seqno, path| {
        let entry = Entry { key: item.key.clone(), seqno, value: item.value, path: path.clone() };
        journal.entry(item.keyspace).or_default().insert(item.key, entry);
    });
    survey.damages.iter().for_each(|damage| found(damaged(damage.clone(), None)));
    check_end(path, &survey, &mut found);
    if survey.is_new {
        return Ok(());
    }
    for table in Table::ALL {
        if let Some(number) = survey.keyspaces.get(table.name()) {
            let journal = journal.remove(number).unwrap_or_default();
            read_table(&folder, *number, table, journal, &mut found);
        }
    }
    Ok(())
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

fn read_table(
    folder: &Folder,
    keyspace: u64,
    table: Table,
    journal: BTreeMap<Bytes, Entry>,
    found: &mut impl FnMut(Found),
) {
    let mut sources = folder.table_sources(keyspace).or_else(|damage| {
        found(damaged(damage, Some(table)));
        // Nobody can say which table files are live: old ones among them are outdone by newer ones.
        folder.all_table_sources(keyspace)
    });
    if let Err(damage) = &sources {
        found(damaged(damage.clone(), Some(table)));
    }
    let from_journal: Source = Box::new(journal.into_values().map(Ok));
    let sources = sources.as_mut().map(std::mem::take).unwrap_or_default().into_iter().chain([from_journal]);
    for entry in Newest::of(sources.collect()) {
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

//! Targets that read stored data back from disk, and custody logs from a caller.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    sync::LazyLock,
};

use bytes::Bytes;
use prost::Message as _;

use super::split;
use crate::{
    envelope::signing,
    ids::TaskId,
    proto::v1,
    records::{
        self, AgentRecord, DeadLetterRecord, HandoffRecord, InvitationRecord, MessageRecord, TaskRecord,
        WorkspaceEntryRecord, WorkspaceRecord,
    },
    replay::Replay,
    store::{Change, EmbeddedStore, Found, Key, Record, Store as _, Table, Write, read_all},
};

/// A stored record: a decoded record stays equal when encoded and decoded again.
pub(super) fn records(bytes: &[u8]) {
    let Some((kind, rest)) = split(bytes) else { return };
    let table = Table::ALL[kind % Table::ALL.len()];
    let Some((length, rest)) = split(rest) else { return };
    let (key, value) = rest.split_at(length.min(rest.len()));
    let value = Bytes::copy_from_slice(value);
    if records::check(table, key, &value).is_err() {
        return;
    }
    macro_rules! is_the_same_again {
        ($decode:expr, $encode:expr) => {{
            let decoded = $decode(&value).expect("it was checked");
            let again = $encode(&decoded);
            assert_eq!($decode(&again).expect("what was encoded decodes"), decoded);
        }};
    }
    match table {
        Table::Agents => is_the_same_again!(AgentRecord::decode, AgentRecord::encode),
        Table::AgentStatistics => {
            is_the_same_again!(records::StatisticsRecord::decode, records::StatisticsRecord::encode);
        }
        Table::Tasks => is_the_same_again!(TaskRecord::decode, TaskRecord::encode),
        Table::Handoffs => is_the_same_again!(HandoffRecord::decode, HandoffRecord::encode),
        Table::Messages => is_the_same_again!(MessageRecord::decode, MessageRecord::encode),
        Table::Invitations => is_the_same_again!(InvitationRecord::decode, InvitationRecord::encode),
        Table::Mailbox => is_the_same_again!(|value| records::decode_letter(key, value), records::encode_letter),
        Table::DeadLetters => {
            is_the_same_again!(|value| DeadLetterRecord::decode(key, value), DeadLetterRecord::encode);
        }
        Table::Workspaces => is_the_same_again!(WorkspaceRecord::decode, WorkspaceRecord::encode),
        Table::WorkspaceEntries => {
            is_the_same_again!(|value| WorkspaceEntryRecord::decode(key, value), WorkspaceEntryRecord::encode);
        }
        Table::ContextVersions => {
            is_the_same_again!(
                |value| records::ContextVersionRecord::decode(key, value),
                records::ContextVersionRecord::encode
            );
        }
        Table::ContextSections => {
            is_the_same_again!(records::ContextSectionRecord::decode, records::ContextSectionRecord::encode);
        }
        _ => {}
    }
}

/// A custody log: the task id with its length, then length-delimited entries. An entry without a hash gets the right
/// one. Replay terminates for any input, and a refused entry changes neither the length nor the hash.
pub(super) fn audit(bytes: &[u8]) {
    let Some((length, rest)) = split(bytes) else { return };
    let (task, rest) = rest.split_at(length.min(rest.len()));
    let Ok(Ok(task)) = std::str::from_utf8(task).map(TaskId::parse) else { return };
    let mut replay = Replay::new(task, None);
    let mut rest = Bytes::copy_from_slice(rest);
    while let Ok(mut shown) = v1::CustodyLogEntry::decode_length_delimited(&mut rest) {
        // The fuzzer cannot guess a hash. Most entries get the right one, so that replay reads their content.
        if shown.custody_hash.is_empty() {
            shown.custody_hash = signing::custody_hash(replay.hash(), &shown.entry_bytes).to_vec().into();
        }
        let before = (replay.length(), *replay.hash());
        match replay.take(&shown) {
            Ok(()) => {
                assert_eq!(replay.length(), before.0 + 1);
                assert!(replay.take(&shown).is_err(), "an entry was taken twice");
            }
            Err(_) => {
                assert_eq!((replay.length(), *replay.hash()), before);
                break;
            }
        }
    }
}

/// A small store; each run writes it to a folder of its own and damages one of its files.
struct Template {
    /// The content of each file, by its path in the folder.
    files: BTreeMap<PathBuf, Vec<u8>>,
    records: Records,
}

/// The table, key and value of each record.
type Records = BTreeSet<(Table, Bytes, Bytes)>;

static TEMPLATE: LazyLock<Template> = LazyLock::new(Template::make);

impl Template {
    /// Makes the store in a temporary folder, with some records in table files and some in the log.
    fn make() -> Self {
        let parent = tempfile::tempdir().expect("there is room for a folder");
        let folder = parent.path().join("store");
        let put = |table, name: &str| Write {
            key: Key { table, key: name.into() },
            record: Some(Record { revision: 1, value: Bytes::copy_from_slice(name.repeat(3).as_bytes()) }),
            is_new: true,
        };
        for part in 0..2 {
            let store = EmbeddedStore::open(&folder).expect("there is room for a store");
            let names: Vec<String> = (part * 8..part * 8 + 8).map(|number| format!("name-{number}")).collect();
            let writes = names.iter().flat_map(|name| [put(Table::Tasks, name), put(Table::Envelopes, name)]);
            let change = Change { expectations: Vec::new(), writes: writes.collect() };
            store.commit(vec![change]).expect("there is room for some records");
            if part == 0 {
                store.give_space_back();
            }
        }
        let mut whole = files(&folder.join("tables"));
        whole.append(&mut files(&folder.join("wal")));
        let relative = |(path, bytes): (PathBuf, Vec<u8>)| {
            (path.strip_prefix(&folder).expect("it is in the folder").to_owned(), bytes)
        };
        let files = whole.into_iter().map(relative).collect();
        let records = read(&folder);
        assert_eq!(records.len(), 32, "the store is whole before it is damaged");
        Self { files, records }
    }

    /// Writes the store into this folder.
    fn write(&self, folder: &Path) {
        for (path, bytes) in &self.files {
            let path = folder.join(path);
            fs::create_dir_all(path.parent().expect("it is in the folder")).expect("there is room for a folder");
            fs::write(path, bytes).expect("there is room for the file");
        }
    }
}

/// The records of the store in this folder; none if the read fails.
fn read(folder: &Path) -> Records {
    let mut records = Records::new();
    let read = read_all(folder, |found| {
        if let Found::Record { table, key, record } = found {
            assert!(records.insert((table, key, record.value)), "a record is read twice");
        }
    });
    if read.is_err() { Records::new() } else { records }
}

fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        match path.is_dir() {
            true => all.extend(files(&path)),
            false => drop(all.insert(path.clone(), fs::read(&path).expect("it is there"))),
        }
    }
    all
}

/// The store's files: byte 0 selects the file, byte 1 the kind of damage, bytes 2 and 3 its position. A read of the
/// damaged store terminates, and returns only records that were written.
pub(super) fn store_files(bytes: &[u8]) {
    let [which, how, high, low, patch @ ..] = bytes else { return };
    let template = &*TEMPLATE;
    let (path, whole) = template.files.iter().nth(usize::from(*which) % template.files.len()).expect("it is in range");
    let place = usize::from(u16::from_be_bytes([*high, *low])).min(whole.len());
    let mut changed = whole.clone();
    match how % 3 {
        0 => {
            let end = (place + patch.len()).min(whole.len());
            changed[place..end].copy_from_slice(&patch[..end - place]);
        }
        1 => changed.truncate(place),
        _ => drop(changed.splice(place.., patch.iter().copied())),
    }
    let folder = tempfile::tempdir().expect("there is room for a folder");
    template.write(folder.path());
    fs::write(folder.path().join(path), &changed).expect("there is room for the file");
    let records = read(folder.path());
    assert!(records.is_subset(&template.records), "{:?} are made up", records.difference(&template.records));
}

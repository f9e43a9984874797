//! Commits to the store on disk, beside the cost of the disk itself. TMPDIR selects the disk.

use std::{fs::File, io::Write as _, rc::Rc};

use baton::store::{Change, EmbeddedStore, Key, Record, Store as _, Table, Write};

use super::Part;

/// The approximate writes of one message of a handoff: its record with the envelope, and smaller records.
const MESSAGE_BYTES: usize = 1500;
const RECORD_BYTES: usize = 300;
const RECORDS: [Table; 5] = [Table::Tasks, Table::Handoffs, Table::Listings, Table::Mailbox, Table::AgentStatistics];

pub(crate) fn parts() -> Vec<Part> {
    let folder = Rc::new(tempfile::tempdir().unwrap());
    let store = Rc::new(EmbeddedStore::open(&folder.path().join("store")).unwrap());
    let mut file = File::create(folder.path().join("plain")).unwrap();
    let mut sequence = 0;
    let mut parts: Vec<Part> = [("commit/1 message", 1), ("commit/32 messages", 32), ("commit/256 messages", 256)]
        .into_iter()
        .map(|(name, many)| {
            let (store, mut from) = (store.clone(), many << 40); // keys that no other part writes
            Part::many(name, many, move || {
                let group: Vec<Change> = (from..from + many).map(change).collect();
                from += many;
                assert!(store.commit(group).unwrap().iter().all(Result::is_ok));
            })
        })
        .collect();
    parts.push(Part::one("commit/bare append and sync", move || {
        let _keep = &folder;
        sequence += 1;
        file.write_all(&[sequence as u8; 4096]).unwrap();
        file.sync_data().unwrap();
    }));
    parts
}

fn change(sequence: u64) -> Change {
    let write = |table, bytes| {
        let key = Key { table, key: (&sequence.to_be_bytes()).into() };
        Write { key, record: Some(Record { revision: 1, value: vec![7; bytes].into() }), is_new: true }
    };
    let records = RECORDS.map(|table| write(table, RECORD_BYTES));
    Change { expectations: Vec::new(), writes: [vec![write(Table::Messages, MESSAGE_BYTES)], records.into()].concat() }
}

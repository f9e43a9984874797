//! The store: one conformance suite for both engines, and what only a store on disk can get wrong.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
};

use baton::store::{
    Change, EmbeddedStore, MemoryStore, OpenError, Order, Store, Table,
    conformance::{self, NaiveStore, delete, expect, put},
};
use proptest::prelude::*;

#[test]
fn memory_conforms() {
    conformance::run(|| Arc::new(MemoryStore::default()));
}

#[test]
fn embedded_conforms() {
    conformance::run(|| {
        let folder = tempfile::tempdir().unwrap().keep();
        Arc::new(EmbeddedStore::open(&folder).unwrap())
    });
}

fn changes() -> impl Strategy<Value = Vec<Vec<Change>>> {
    let key = prop::sample::select(vec!["a", "b", "c"]);
    let table = prop::sample::select(vec![Table::Tasks, Table::Mailbox]);
    let expectation = (table.clone(), key.clone(), prop::option::of(1..4u64))
        .prop_map(|(table, key, revision)| expect(table, key, revision));
    let write = (table, key, prop::option::of((1..4u64, "[a-z]{0,9}"))).prop_map(|(table, key, record)| match record {
        Some((revision, value)) => put(table, key, revision, &value),
        None => delete(table, key),
    });
    let change = (prop::collection::vec(expectation, 0..2), prop::collection::vec(write, 0..4))
        .prop_map(|(expectations, writes)| Change { expectations, writes });
    prop::collection::vec(prop::collection::vec(change, 0..5), 1..12)
}

fn check_against_naive(store: &dyn Store, naive: &mut NaiveStore, group: &[Change]) {
    let applied: Vec<bool> = store.commit(group).unwrap().iter().map(Result::is_ok).collect();
    let wanted: Vec<bool> = group.iter().map(|change| naive.apply(change)).collect();
    assert_eq!(applied, wanted);
    naive.assert_same(store);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn embedded_holds_what_a_naive_store_holds_also_when_reopened(groups in changes()) {
        let folder = tempfile::tempdir().unwrap();
        let mut naive = NaiveStore::default();
        for half in groups.chunks(groups.len().div_ceil(2)) {
            let store = EmbeddedStore::open(folder.path()).unwrap();
            naive.assert_same(&store);
            for group in half {
                check_against_naive(&store, &mut naive, group);
            }
        }
    }

    #[test]
    fn memory_holds_what_a_naive_store_holds(groups in changes()) {
        let (store, mut naive) = (MemoryStore::default(), NaiveStore::default());
        for group in &groups {
            check_against_naive(&store, &mut naive, group);
        }
    }
}

fn one_write(key: &str) -> [Change; 1] {
    [Change { expectations: vec![], writes: vec![put(Table::Tasks, key, 1, &"x".repeat(100))] }]
}

fn count(store: &dyn Store) -> usize {
    use std::ops::Bound::Unbounded;
    store.scan(Table::Tasks, (Unbounded, Unbounded), Order::Ascending, usize::MAX).unwrap().len()
}

#[test]
fn a_second_broker_on_the_same_folder_is_refused_and_told_who_has_it() {
    let folder = tempfile::tempdir().unwrap();
    let first = EmbeddedStore::open(folder.path()).unwrap();
    match EmbeddedStore::open(folder.path()) {
        Err(OpenError::InUse { pid, .. }) => assert_eq!(pid, std::process::id().to_string()),
        other => panic!("expected InUse, got {:?}", other.err()),
    }
    drop(first);
    EmbeddedStore::open(folder.path()).unwrap();
}

#[test]
fn a_folder_of_a_newer_version_is_refused_and_not_touched() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("FORMAT"), "baton-store 2\n").unwrap();
    match EmbeddedStore::open(folder.path()) {
        Err(OpenError::Format { found, .. }) => assert_eq!(found, "baton-store 2"),
        other => panic!("expected Format, got {:?}", other.err()),
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing was added");
}

#[test]
fn a_folder_with_something_else_in_it_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("holiday.jpg"), "not ours").unwrap();
    assert!(matches!(EmbeddedStore::open(folder.path()), Err(OpenError::NotAStore { .. })));
}

#[test]
fn a_first_start_that_was_cut_off_is_no_obstacle() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("FORMAT.new"), "baton-st").unwrap();
    EmbeddedStore::open(folder.path()).unwrap().commit(&one_write("a")).unwrap();
    assert_eq!(count(&EmbeddedStore::open(folder.path()).unwrap()), 1);
}

fn journal(folder: &Path) -> std::path::PathBuf {
    let entries = fs::read_dir(folder.join("fjall")).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.extension().is_some_and(|end| end == "jnl")).max().expect("fjall has a journal")
}

#[test]
fn a_damaged_journal_is_refused_and_never_loses_writes_silently() {
    let folder = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(folder.path()).unwrap();
    for number in 0..20 {
        store.commit(&one_write(&number.to_string())).unwrap();
    }
    drop(store);
    let path = journal(folder.path());
    let mut bytes = fs::read(&path).unwrap();
    let last = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    bytes[last / 2] ^= 0xff;
    fs::write(&path, bytes).unwrap();
    match EmbeddedStore::open(folder.path()) {
        Err(OpenError::LostWrites { store, witness, .. }) => assert!(store < witness && witness == 20),
        Err(OpenError::Engine { .. }) => {}
        other => panic!("damage must be noticed, got {:?}", other.err()),
    }
}

const CHILD_FOLDER: &str = "BATON_TEST_STORE_FOLDER";

/// Not a test of its own: the process that `a_killed_process_loses_no_answered_group` kills.
#[test]
fn child_that_writes_until_it_is_killed() {
    let Ok(folder) = std::env::var(CHILD_FOLDER) else { return };
    let store = EmbeddedStore::open(Path::new(&folder)).unwrap();
    for number in count(&store).. {
        store.commit(&one_write(&format!("{number:08}"))).unwrap();
        println!("stored {}", number + 1);
    }
}

#[test]
fn a_killed_process_loses_no_answered_group() {
    let folder = tempfile::tempdir().unwrap();
    for round in 1..=3 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["child_that_writes_until_it_is_killed", "--exact", "--nocapture"])
            .env(CHILD_FOLDER, folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut stored = || -> Option<usize> {
            loop {
                let line = lines.next()?.ok()?;
                if let Some(number) = line.split("stored ").nth(1) {
                    return number.parse().ok();
                }
            }
        };
        let mut last = 0;
        while last < round * 200 {
            last = stored().expect("the child writes");
        }
        child.kill().unwrap();
        child.wait().unwrap();
        while let Some(number) = stored() {
            last = number;
        }
        let store = EmbeddedStore::open(folder.path()).unwrap();
        assert!(count(&store) >= last, "round {round}: {last} were answered, {} are there", count(&store));
    }
}

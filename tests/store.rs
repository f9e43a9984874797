//! The store: one conformance suite for both engines, and the failure modes of the engine on disk.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
};

use baton_store::{
    Change, EmbeddedStore, Found, MemoryStore, OpenError, Order, Store, Table,
    conformance::{self, NaiveStore, delete, expect, put},
    read_all,
};
use proptest::{
    prelude::*,
    test_runner::{FailurePersistence, FileFailurePersistence},
};

#[test]
fn memory_conforms() {
    conformance::run(|| Arc::new(MemoryStore::default()));
}

#[test]
fn embedded_conforms() {
    let parent = tempfile::tempdir().unwrap();
    conformance::run(|| {
        let folder = tempfile::tempdir_in(&parent).unwrap().keep();
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

/// The file of this test's finds. Proptest finds a place by itself only beside a lib.rs or a main.rs.
fn finds() -> Option<Box<dyn FailurePersistence>> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/proptest-regressions/store.txt");
    Some(Box::new(FileFailurePersistence::Direct(path)))
}

fn check_against_naive(store: &dyn Store, naive: &mut NaiveStore, group: &[Change]) {
    let group = &naive.said_new(group.to_vec());
    let applied: Vec<bool> = store.commit(group.clone()).unwrap().iter().map(Result::is_ok).collect();
    let wanted: Vec<bool> = group.iter().map(|change| naive.apply(change)).collect();
    assert_eq!(applied, wanted);
    naive.assert_same(store);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: finds(), ..ProptestConfig::default() })]

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

fn one_write(key: &str) -> Vec<Change> {
    vec![Change { expectations: vec![], writes: vec![put(Table::Tasks, key, 1, &"x".repeat(100))] }]
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
    fs::write(folder.path().join("FORMAT"), "baton-store 999\n").unwrap();
    match EmbeddedStore::open(folder.path()) {
        Err(OpenError::Format { found, .. }) => assert_eq!(found, "baton-store 999"),
        other => panic!("expected Format, got {:?}", other.err()),
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing was added");
}

#[test]
fn a_folder_of_an_older_version_is_refused_with_what_to_do() {
    let parent = twenty_groups();
    let folder = parent.path().join("store");
    fs::write(folder.join("FORMAT"), "baton-store 13\n").unwrap();
    let before = contents(&folder);
    let said = match EmbeddedStore::open(&folder) {
        Err(error @ OpenError::Format { .. }) => error.to_string(),
        other => panic!("expected Format, got {:?}", other.err()),
    };
    for part in ["baton-store 13", "baton-store 22", "the version that wrote it", "--data", "baton store export"] {
        assert!(said.contains(part), "{part:?} is not in {said:?}");
    }
    assert_eq!(contents(&folder), before);
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
    EmbeddedStore::open(folder.path()).unwrap().commit(one_write("a")).unwrap();
    assert_eq!(count(&EmbeddedStore::open(folder.path()).unwrap()), 1);
}

/// The offset of the first entry in a log file, in bytes.
const GROUPS_AT: usize = 8192;

/// The log file of a store with few groups, which has only one.
fn log(folder: &Path) -> std::path::PathBuf {
    let mut files = fs::read_dir(folder.join("wal")).unwrap().map(|entry| entry.unwrap().path());
    let only = files.next().expect("it has a file");
    assert_eq!(files.next(), None);
    only
}

/// The files of a folder with their contents, for comparison.
fn contents(folder: &Path) -> Vec<(std::path::PathBuf, Vec<u8>)> {
    let mut all = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.file_name().is_some_and(|name| name != "LOCK") {
                all.push((path.clone(), fs::read(&path).unwrap()));
            }
        }
    }
    all.sort();
    all
}

/// A closed store of 20 groups.
fn twenty_groups() -> tempfile::TempDir {
    let parent = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(&parent.path().join("store")).unwrap();
    for number in 0..20 {
        store.commit(one_write(&format!("{number:02}"))).unwrap();
    }
    parent
}

/// The number of readable records, and the reported damages.
fn salvaged(folder: &Path) -> (usize, Vec<String>) {
    let (mut records, mut damages) = (0, Vec::new());
    read_all(folder, |found| match found {
        Found::Record { .. } => records += 1,
        Found::Damaged { path, problem, .. } => damages.push(format!("{}: {problem}", path.display())),
    })
    .unwrap();
    (records, damages)
}

#[test]
fn a_damaged_log_is_refused_by_name_and_left_as_it_is() {
    for part in [1, 4, 7] {
        let parent = twenty_groups();
        let folder = parent.path().join("store");
        let path = log(&folder);
        let mut bytes = fs::read(&path).unwrap();
        let last = bytes.iter().rposition(|byte| *byte != 0).unwrap();
        let from = GROUPS_AT + (last - GROUPS_AT) * part / 8;
        let place = (from..).find(|place| bytes[*place] == b'x').unwrap(); // not in the padding between two groups
        bytes[place] ^= 0xff;
        fs::write(&path, bytes).unwrap();
        let before = contents(&folder);
        for _ in 0..2 {
            let problem = match EmbeddedStore::open(&folder) {
                Err(error @ (OpenError::LostWrites { .. } | OpenError::Damaged { .. })) => error.to_string(),
                other => panic!("damage must be noticed, got {:?}", other.err()),
            };
            assert!(problem.contains(path.to_str().unwrap()), "{problem}");
            assert!(problem.contains("baton store check"), "{problem}");
            let changed: Vec<_> = contents(&folder).into_iter().filter(|file| !before.contains(file)).collect();
            let names: Vec<_> = changed.iter().map(|(path, _)| path).collect();
            assert!(names.is_empty(), "changed or new: {names:?}");
        }
        let (records, damages) = salvaged(&folder);
        assert!(!damages.is_empty(), "part {part}");
        assert_eq!(records, 19, "part {part}: all but the damaged one can be read, {damages:?}");
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 1, "there is no copy");
    }
}

#[test]
fn a_log_that_was_cut_off_is_refused_and_its_beginning_can_be_read() {
    let parent = twenty_groups();
    let folder = parent.path().join("store");
    let path = log(&folder);
    let last = fs::read(&path).unwrap().iter().rposition(|byte| *byte != 0).unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_len((GROUPS_AT + last) as u64 / 2).unwrap();
    match EmbeddedStore::open(&folder) {
        Err(OpenError::LostWrites { end, commit_mark, .. }) => assert!(end < commit_mark && commit_mark == 20),
        other => panic!("damage must be noticed, got {:?}", other.err()),
    }
    let (records, damages) = salvaged(&folder);
    assert!((5..20).contains(&records), "{records} of 20");
    assert_eq!(damages.len(), 1, "{damages:?}");
}

#[test]
fn a_damaged_table_file_is_noticed_by_name_and_all_else_can_be_read() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("store");
    let store = EmbeddedStore::open(&folder).unwrap();
    let value =
        |number: u32| -> String { (0..16_384).map(|at| char::from(b'a' + ((number * 31 + at) % 26) as u8)).collect() };
    for group in 0..50 {
        let writes = (0..100)
            .map(|number| put(Table::Tasks, &format!("{group:02}-{number:02}"), 1, &value(group * 100 + number)));
        store.commit(vec![Change { expectations: vec![], writes: writes.collect() }]).unwrap();
    }
    store.give_space_back();
    drop(store);
    let tables = contents(&folder.join("tables")).into_iter();
    let (path, mut bytes) = tables.max_by_key(|(_, bytes)| bytes.len()).unwrap();
    assert!(bytes.len() > 1_000_000, "5,000 large records make a table file");
    let middle = bytes.len() / 2;
    bytes[middle..middle + 64].fill(0xff);
    fs::write(&path, bytes).unwrap();

    let store = EmbeddedStore::open(&folder).unwrap();
    use std::ops::Bound::Unbounded;
    let read = store.scan(Table::Tasks, (Unbounded, Unbounded), Order::Ascending, usize::MAX);
    let problem = read.expect_err("damage must be noticed").to_string();
    assert!(problem.contains(path.parent().unwrap().to_str().unwrap()), "{problem}");
    drop(store);
    let (records, damages) = salvaged(&folder);
    assert!(damages[0].starts_with(path.to_str().unwrap()), "{damages:?}");
    assert!((4_990..=5_000).contains(&records), "{records} of 5000, {damages:?}");
}

#[test]
fn a_store_that_is_opened_again_in_place_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(folder.path()).unwrap();
    store.commit(one_write("a")).unwrap();
    store.recover().unwrap();
    store.commit(one_write("b")).unwrap();
    assert_eq!(count(&store), 2);
    drop(store);
    assert_eq!(count(&EmbeddedStore::open(folder.path()).unwrap()), 2);
}

#[test]
fn a_store_that_a_broker_has_open_is_not_read() {
    let parent = twenty_groups();
    let folder = parent.path().join("store");
    let _open = EmbeddedStore::open(&folder).unwrap();
    assert!(matches!(read_all(&folder, |_| {}), Err(OpenError::InUse { .. })));
}

const CHILD_FOLDER: &str = "BATON_TEST_STORE_FOLDER";

/// Not a test by itself: `a_killed_process_loses_no_answered_group` starts this as a process and kills it.
#[test]
fn child_that_writes_until_it_is_killed() {
    let Ok(folder) = std::env::var(CHILD_FOLDER) else { return };
    let store = EmbeddedStore::open(Path::new(&folder)).unwrap();
    for number in count(&store).. {
        store.commit(one_write(&format!("{number:08}"))).unwrap();
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

/// Waits until the compaction that was requested has ended.
fn give_space_back(store: &EmbeddedStore) {
    store.give_space_back();
    while store.size_bytes().is_none() {
        std::thread::yield_now();
    }
}

#[test]
fn a_running_compaction_ends_with_a_recovery_and_a_stop() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_owned();
    let (ended, is_ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let store = EmbeddedStore::open(&path).unwrap();
        let large = "x".repeat(100_000);
        let commit = |write| {
            assert_eq!(store.commit(vec![Change { expectations: vec![], writes: vec![write] }]).unwrap(), [Ok(())]);
        };
        (0..500).for_each(|number| commit(put(Table::Tasks, &format!("{number:04}"), 1, &large)));
        give_space_back(&store);
        for removed in 0..2 {
            commit(delete(Table::Tasks, &format!("{removed:04}")));
            // The flush of the removal starts a compaction, and both calls wait for the flush.
            store.give_space_back();
            if removed == 0 {
                store.recover().unwrap();
            }
        }
        drop(store);
        ended.send(count(&EmbeddedStore::open(&path).unwrap())).unwrap();
    });
    assert_eq!(is_ended.recv_timeout(std::time::Duration::from_secs(300)), Ok(498));
}

/// Without the request, the library keeps the space until it has a reason to merge the table.
#[test]
fn what_is_removed_gives_its_space_back_and_the_rest_stays_whole() {
    const LEFT: [&str; 2] = ["0000", "0500"];
    let folder = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(folder.path()).unwrap();
    let large = "x".repeat(100_000);
    let key = |number: u32| format!("{number:04}");
    let commit =
        |write| assert_eq!(store.commit(vec![Change { expectations: vec![], writes: vec![write] }]).unwrap(), [Ok(())]);
    let tables = || table_bytes(&folder.path().join("tables"));
    (0..=500).for_each(|number| commit(put(Table::Tasks, &key(number), 1, &large)));
    give_space_back(&store);
    let before = tables();
    assert!(before > 48_000_000, "{before}");
    (1..500).for_each(|number| commit(delete(Table::Tasks, &key(number))));
    give_space_back(&store);
    assert!(tables() < before / 10, "{} of {before} bytes are left", tables());
    assert!(table_bytes(&folder.path().join("wal")) < 1_000_000, "the log drops what the tables have");
    drop(store);
    let mut found = Vec::new();
    read_all(folder.path(), |record| found.push(record)).unwrap();
    let names = found.iter().map(|found| match found {
        Found::Record { key, .. } => std::str::from_utf8(key).unwrap(),
        damaged @ Found::Damaged { .. } => panic!("{damaged:?}"),
    });
    assert_eq!(names.collect::<Vec<_>>(), LEFT);
    assert_eq!(count(&EmbeddedStore::open(folder.path()).unwrap()), LEFT.len());
}

fn table_bytes(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let size = |entry: fs::DirEntry| match entry.metadata() {
        Ok(found) if found.is_dir() => table_bytes(&entry.path()),
        Ok(found) => found.len(),
        Err(_) => 0, // compaction has removed the file
    };
    entries.map(size).sum()
}

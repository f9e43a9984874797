//! Damaged stores: opening reports the damage and changes nothing, and every intact record can be salvaged.

use std::{
    collections::BTreeMap,
    fs, io,
    ops::Bound::Unbounded,
    path::{Path, PathBuf},
};

use baton::store::{
    Change, EmbeddedStore, Found, OpenError, Order, Store, Table,
    conformance::{NaiveStore, delete, put},
    read_all,
};
use proptest::{
    prelude::*,
    test_runner::{FailurePersistence, FileFailurePersistence},
};

type Records = BTreeMap<(&'static str, Vec<u8>), (u64, Vec<u8>)>;
type Files = BTreeMap<PathBuf, Vec<u8>>;

/// The files of a folder with their contents. Journals of fjall, which are long and empty, count by name only.
fn files(folder: &Path) -> Files {
    read_files(folder).unwrap()
}

fn read_files(folder: &Path) -> io::Result<Files> {
    let mut all = Files::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let is_journal = path.extension().is_some_and(|extension| extension == "jnl");
                let bytes = if is_journal { Vec::new() } else { fs::read(&path)? };
                all.insert(path, bytes);
            }
        }
    }
    Ok(all)
}

/// Restores the folder to these files.
fn put_back(folder: &Path, files: &Files) {
    fs::remove_dir_all(folder).unwrap();
    for (path, bytes) in files {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
}

fn names(files: &Files) -> Vec<&PathBuf> {
    files.keys().collect()
}

fn records(store: &dyn Store) -> Result<Records, String> {
    let mut all = Records::new();
    for table in Table::ALL {
        let found = store.scan(table, (Unbounded, Unbounded), Order::Ascending, usize::MAX);
        for (key, record) in found.map_err(|error| error.to_string())? {
            all.insert((table.name(), key.to_vec()), (record.revision, record.value.to_vec()));
        }
    }
    Ok(all)
}

/// The records that can be read without opening the store, and the reported damages.
fn salvaged(folder: &Path) -> (Records, Vec<String>) {
    let (mut all, mut damages) = (Records::new(), Vec::new());
    read_all(folder, |found| match found {
        Found::Record { table, key, record } => {
            let former = all.insert((table.name(), key.to_vec()), (record.revision, record.value.to_vec()));
            assert_eq!(former, None, "each record once");
        }
        Found::Damaged { path, problem, .. } => damages.push(format!("{}: {problem}", path.display())),
    })
    .unwrap();
    (all, damages)
}

/// Flushes all pending records into tables, closes the store, and compacts these tables.
fn settle(store: EmbeddedStore, folder: &Path, merged: &[&str]) {
    store.give_space_back();
    drop(store);
    let database = fjall::Database::builder(folder.join("fjall")).open().unwrap();
    for name in merged {
        let keyspace = database.keyspace(name, fjall::KeyspaceCreateOptions::default).unwrap();
        keyspace.major_compact().unwrap();
    }
}

fn commit(store: &EmbeddedStore, writes: Vec<baton::store::Write>) {
    assert!(store.commit(vec![Change { expectations: vec![], writes }]).unwrap()[0].is_ok());
}

/// A store with 300 tasks and envelopes in table files, of which the last 200 are also in older log files, and 50
/// agents that are only in the log.
fn three_hundred(parent: &Path) -> PathBuf {
    let folder = parent.join("store");
    for part in 0..3 {
        let store = EmbeddedStore::open(&folder).unwrap();
        for number in part * 100..(part + 1) * 100 {
            let (key, value) = (format!("{number:06}"), format!("{number}").repeat(100));
            let of = |table| put(table, &key, 1, &value);
            commit(&store, vec![of(Table::Tasks), of(Table::Envelopes)]);
        }
        settle(store, &folder, if part == 1 { &["tasks", "envelopes"] } else { &[] });
    }
    let store = EmbeddedStore::open(&folder).unwrap();
    for number in 0..50 {
        commit(&store, vec![put(Table::Agents, &format!("agent-{number:02}"), 1, "an agent")]);
    }
    folder
}

/// Opens a damaged store. If it refuses to open, its files must be unchanged. If it opens, a read must return every
/// record or an error.
#[track_caller]
fn assert_unharmed(folder: &Path, whole: &Records, what: &str) -> bool {
    let before = files(folder);
    match EmbeddedStore::open(folder) {
        Ok(store) => {
            if let Ok(found) = records(&store) {
                assert_eq!(found.len(), whole.len(), "{what}: opened, and records are missing");
                assert_eq!(&found, whole, "{what}");
            }
            true
        }
        Err(error @ (OpenError::Damaged { .. } | OpenError::LostWrites { .. })) => {
            let mut after = files(folder);
            let lock = folder.join("LOCK");
            after.insert(lock.clone(), before.get(&lock).cloned().unwrap_or_default());
            assert_eq!(names(&after), names(&before), "{what}: {error}");
            assert!(after == before, "{what}: refused, and yet changed");
            assert!(error.to_string().contains("baton store check"), "{error}");
            false
        }
        Err(other) => panic!("{what}: {other}"),
    }
}

fn data_files(folder: &Path) -> Vec<PathBuf> {
    let mut all: Vec<_> = files(&folder.join("fjall")).into_keys().collect();
    all.retain(|path| path.file_name().is_some_and(|name| name != "lock"));
    all.extend(files(&folder.join("log")).into_keys());
    all
}

#[test]
fn a_store_of_which_a_file_is_missing_or_cut_off_is_refused_and_left_as_it_is() {
    let parent = tempfile::tempdir().unwrap();
    let folder = three_hundred(parent.path());
    let whole = records(&EmbeddedStore::open(&folder).unwrap()).unwrap();
    assert_eq!(whole.len(), 650);
    let good = files(&folder);
    for path in data_files(&folder) {
        for cut in [None, Some(0), Some(good[&path].len() / 2), Some(good[&path].len().saturating_sub(1))] {
            put_back(&folder, &good);
            match cut {
                None => fs::remove_file(&path).unwrap(),
                Some(length) => fs::write(&path, &good[&path][..length]).unwrap(),
            }
            let what = format!("{} cut to {cut:?}", path.display());
            assert_unharmed(&folder, &whole, &what);
        }
    }
}

#[test]
fn a_store_in_which_any_byte_has_changed_loses_nothing_silently() {
    let parent = tempfile::tempdir().unwrap();
    let folder = three_hundred(parent.path());
    let whole = records(&EmbeddedStore::open(&folder).unwrap()).unwrap();
    let good = files(&folder);
    let (mut refused, mut opened) = (0, 0);
    for path in data_files(&folder) {
        let length = good[&path].iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        for place in (0..length).step_by((length / 12).max(1)).chain((length.saturating_sub(60)..length).step_by(7)) {
            put_back(&folder, &good);
            let mut bytes = good[&path].clone();
            bytes[place] ^= 0x41;
            fs::write(&path, bytes).unwrap();
            let what = format!("{} byte {place}", path.display());
            let (found, damages) = salvaged(&folder);
            assert!(found.iter().all(|(key, value)| whole.get(key) == Some(value)), "{what}: nothing is made up");
            // A block of 4 KiB has up to 40 of these records.
            assert!(found.len() + 40 >= whole.len(), "{what}: {} of {}, {damages:?}", found.len(), whole.len());
            assert!(found.len() == whole.len() || !damages.is_empty(), "{what}: silently lost");
            match assert_unharmed(&folder, &whole, &what) {
                true => opened += 1,
                false => refused += 1,
            }
        }
    }
    assert!(refused > 40 && opened > 40, "{refused} refused, {opened} opened");
}

#[test]
fn reading_without_opening_changes_nothing() {
    let parent = tempfile::tempdir().unwrap();
    let folder = three_hundred(parent.path());
    fs::remove_file(folder.join("witness")).unwrap();
    fs::remove_file(folder.join("LOCK")).unwrap();
    let before = files(parent.path());
    let (found, damages) = salvaged(&folder);
    assert_eq!((found.len(), damages), (650, vec![]));
    assert!(files(parent.path()) == before);
}

#[test]
fn two_may_read_at_a_time_but_none_while_a_broker_has_the_store() {
    let parent = tempfile::tempdir().unwrap();
    let folder = three_hundred(parent.path());
    read_all(&folder, |_| {
        read_all(&folder, |_| {}).unwrap();
        assert!(matches!(EmbeddedStore::open(&folder), Err(OpenError::InUse { .. })));
    })
    .unwrap();
    let _open = EmbeddedStore::open(&folder).unwrap();
    assert!(matches!(read_all(&folder, |_| {}), Err(OpenError::InUse { .. })));
}

#[test]
fn what_lies_behind_every_damaged_place_is_read() {
    let parent = tempfile::tempdir().unwrap();
    let folder = three_hundred(parent.path());
    let tables = files(&folder.join("fjall/keyspaces")).into_iter();
    let (path, mut bytes) = tables.max_by_key(|(_, bytes)| bytes.len()).unwrap();
    for place in [0, 3, 9].map(|part| bytes.len() * part / 12 + 100) {
        bytes[place] ^= 1; // this includes the first block
    }
    fs::write(&path, &bytes).unwrap();
    let (found, damages) = salvaged(&folder);
    assert_eq!(damages.len(), 3, "{damages:?}");
    assert!(damages.iter().all(|damage| damage.starts_with(path.to_str().unwrap())), "{damages:?}");
    assert!((590..650).contains(&found.len()), "{} of 650", found.len());
}

#[test]
fn without_the_list_of_tables_all_their_files_are_read() {
    let parent = tempfile::tempdir().unwrap();
    let folder = three_hundred(parent.path());
    for path in data_files(&folder).iter().filter(|path| path.ends_with("current")) {
        fs::write(path, "").unwrap();
    }
    let (found, damages) = salvaged(&folder);
    assert_eq!(found.len(), 650, "{damages:?}");
    assert!(damages.len() > 12, "{damages:?}");
}

#[test]
fn without_the_list_of_tables_the_newest_version_counts() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("store");
    // File names are numbers: 10 sorts after 9.
    for version in 1..=12 {
        let store = EmbeddedStore::open(&folder).unwrap();
        commit(&store, vec![put(Table::Tasks, "task", version, &format!("version {version}"))]);
        settle(store, &folder, if version == 6 { &["tasks"] } else { &[] });
    }
    for path in data_files(&folder).iter().filter(|path| path.ends_with("current")) {
        fs::write(path, "").unwrap();
    }
    // Records in the log take precedence over the tables. Without the log the tables must have the latest version.
    fs::remove_dir_all(folder.join("log")).unwrap();
    let (found, _) = salvaged(&folder);
    assert_eq!(found.get(&("tasks", b"task".to_vec())), Some(&(12, b"version 12".to_vec())));
}

/// Copies the files of an open store as a killed process leaves them. Another thread may be writing tables, so the
/// files are read until two reads agree, which makes them the state of one moment.
fn killed(folder: &Path, to: &Path) {
    let at_one_moment = std::iter::repeat_with(|| read_files(folder).ok());
    let mut last = None;
    let found = at_one_moment.into_iter().find_map(|found| {
        let is_still = found.is_some() && found == last;
        last = found;
        if is_still { last.take() } else { None }
    });
    for (path, bytes) in found.expect("it does not end before") {
        let target = to.join(path.strip_prefix(folder).unwrap());
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        fs::write(target, bytes).unwrap();
    }
}

#[test]
fn a_group_that_was_half_written_when_the_process_was_killed_is_no_damage() {
    let parent = tempfile::tempdir().unwrap();
    let (folder, before, after) = (parent.path().join("a"), parent.path().join("b"), parent.path().join("c"));
    let store = EmbeddedStore::open(&folder).unwrap();
    (0..20).for_each(|number| commit(&store, vec![put(Table::Tasks, &format!("{number:02}"), 1, "x")]));
    killed(&folder, &before);
    commit(&store, (0..9).map(|number| put(Table::Tasks, &format!("half-{number}"), 1, "y")).collect());
    killed(&folder, &after);
    let good = files(&before);
    let log = |folder: &Path| fs::read(folder.join("log/0")).unwrap();
    let (begun, done) = (log(&before), log(&after));
    for length in (begun.len() + 1..done.len() - 8).step_by(5) {
        put_back(&before, &good);
        fs::write(before.join("log/0"), &done[..length]).unwrap();
        assert_eq!(salvaged(&before).1, Vec::<String>::new(), "{length}");
        assert_eq!(records(&EmbeddedStore::open(&before).unwrap()).unwrap().len(), 20, "{length}");
    }
}

#[test]
fn a_group_that_was_not_answered_is_gone_after_a_recovery() {
    let parent = tempfile::tempdir().unwrap();
    let (folder, one_more) = (parent.path().join("a"), parent.path().join("b"));
    let store = EmbeddedStore::open(&folder).unwrap();
    (0..20).for_each(|number| commit(&store, vec![put(Table::Tasks, &format!("{number:02}"), 1, "x")]));
    killed(&folder, &one_more);
    let other = EmbeddedStore::open(&one_more).unwrap();
    commit(&other, vec![put(Table::Tasks, "20", 1, "written, and the sync failed")]);
    drop(other);
    fs::copy(one_more.join("log/0"), folder.join("log/0")).unwrap();
    store.recover().unwrap();
    assert_eq!(records(&store).unwrap().len(), 20);
    commit(&store, vec![put(Table::Tasks, "20", 1, "written again")]);
    drop(store);
    assert_eq!(records(&EmbeddedStore::open(&folder).unwrap()).unwrap().len(), 21);
}

/// Values that imitate parts of a store's files: whole log and table files of stores with a record "forged".
fn look_alikes(parent: &Path) -> Vec<Vec<u8>> {
    let folder = parent.join("forged");
    let store = EmbeddedStore::open(&folder).unwrap();
    let forged = |number: u32| put(Table::Envelopes, &format!("forged-{number}"), u64::MAX, "forged");
    (0..30).for_each(|number| commit(&store, vec![forged(number), delete(Table::Envelopes, &format!("{number:06}"))]));
    settle(store, &folder, &["envelopes"]);
    let is_table = |path: &&PathBuf| path.parent().unwrap().ends_with("tables");
    let files = files(&folder);
    let of_tables: Vec<_> = files.iter().filter(|(path, _)| is_table(path)).map(|(_, bytes)| bytes.clone()).collect();
    let logs = files.into_iter().filter(|(path, _)| path.parent().unwrap().ends_with("log"));
    logs.map(|(_, bytes)| bytes).chain(of_tables).collect()
}

#[test]
fn no_value_is_taken_for_a_part_of_the_store() {
    let parent = tempfile::tempdir().unwrap();
    let (folder, mut whole) = (parent.path().join("store"), Records::new());
    let look_alikes = look_alikes(parent.path());
    assert!(look_alikes.iter().any(|bytes| bytes.windows(6).any(|part| part == b"forged")));
    let mut number = 0;
    for round in 0..3 {
        let store = EmbeddedStore::open(&folder).unwrap();
        // Also the present files of the store itself.
        let own = files(&folder.join("log")).into_values();
        for value in own.chain(look_alikes.clone()) {
            let key = format!("{number:06}");
            let record = baton::store::Record { revision: 1, value: value.into() };
            let key_of = |table| baton::store::Key { table, key: key.as_str().into() };
            let write =
                baton::store::Write { key: key_of(Table::Envelopes), record: Some(record.clone()), is_new: true };
            commit(&store, vec![write]);
            whole.insert(("envelopes", key.into_bytes()), (1, record.value.to_vec()));
            number += 1;
        }
        let copy = parent.path().join(format!("killed-{round}"));
        killed(&folder, &copy);
        assert!(salvaged(&copy) == (whole.clone(), vec![]), "round {round}");
        assert!(records(&EmbeddedStore::open(&copy).unwrap()).unwrap() == whole, "round {round}");
        drop(store);
    }
    settle(EmbeddedStore::open(&folder).unwrap(), &folder, &["envelopes"]);
    // Damages the head of every block and every group in turn. All records that are read then must be written ones.
    let good = files(&folder);
    for (path, bytes) in good.iter().filter(|(path, _)| path.parent().unwrap().ends_with("tables")) {
        let heads = (0..bytes.len().saturating_sub(40)).filter(|place| bytes[*place..].starts_with(b"LSM\x03"));
        for place in heads.collect::<Vec<_>>() {
            let mut damaged = bytes.clone();
            damaged[place] ^= 1;
            fs::write(path, damaged).unwrap();
            let (found, damages) = salvaged(&folder);
            let made_up = found.iter().find(|(key, value)| whole.get(*key) != Some(*value));
            assert!(made_up.is_none(), "{} byte {place}: {:?}", path.display(), made_up.unwrap().0);
            assert!(!damages.is_empty(), "{} byte {place}", path.display());
            assert!(
                found.len() + 3 >= whole.len(),
                "{} byte {place}: {} are hidden",
                path.display(),
                whole.len() - found.len()
            );
        }
        fs::write(path, bytes).unwrap();
    }
}

/// A step in the life of a store.
#[derive(Debug, Clone)]
enum Step {
    Write(Vec<(Table, u8, Option<u8>)>),
    Settle { merge: bool },
    Reopen,
    Kill,
    Recover,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let table = prop::sample::select(vec![Table::Tasks, Table::Mailbox, Table::Meta]);
    let write = (table, 0..40_u8, prop::option::weighted(0.7, any::<u8>()));
    let step = prop_oneof![
        16 => prop::collection::vec(write, 1..12).prop_map(Step::Write),
        1 => any::<bool>().prop_map(|merge| Step::Settle { merge }),
        1 => Just(Step::Reopen),
        2 => Just(Step::Kill),
        1 => Just(Step::Recover),
    ];
    prop::collection::vec(step, 1..80)
}

/// The file of this test's finds. Proptest finds a place by itself only beside a lib.rs or a main.rs.
fn finds() -> Option<Box<dyn FailurePersistence>> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/proptest-regressions/damage.txt");
    Some(Box::new(FileFailurePersistence::Direct(path)))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: finds(), ..ProptestConfig::default() })]

    /// In a test build, a memtable is full after ten of these writes.
    #[test]
    fn a_store_holds_what_was_written_through_a_life_of_kills_and_what_is_read_without_the_engine_is_that(steps in steps()) {
        let parent = tempfile::tempdir().unwrap();
        let mut folder = parent.path().join("store");
        let mut store = Some(EmbeddedStore::open(&folder).unwrap());
        let mut naive = NaiveStore::default();
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Write(writes) => {
                    let write = |(table, key, value): (Table, u8, Option<u8>)| match value {
                        Some(length) => put(table, &format!("key-{key:03}"), 1, &"v".repeat(usize::from(length) * 90)),
                        None => delete(table, &format!("key-{key:03}")),
                    };
                    let change = Change { expectations: vec![], writes: writes.into_iter().map(write).collect() };
                    let group = naive.said_new(vec![change]);
                    assert!(store.as_ref().unwrap().commit(group.clone()).unwrap()[0].is_ok());
                    naive.apply(&group[0]);
                }
                Step::Settle { merge } => {
                    settle(store.take().unwrap(), &folder, if merge { &["tasks", "mailbox"] } else { &[] });
                    store = Some(EmbeddedStore::open(&folder).unwrap());
                }
                Step::Reopen => {
                    drop(store.take());
                    store = Some(EmbeddedStore::open(&folder).unwrap());
                }
                Step::Kill => {
                    // Records may be on their way into the tables at this moment.
                    let copy = parent.path().join(number.to_string());
                    killed(&folder, &copy);
                    store = Some(EmbeddedStore::open(&copy).unwrap());
                    folder = copy;
                }
                Step::Recover => store.as_ref().unwrap().recover().unwrap(),
            }
            naive.assert_same(store.as_ref().unwrap());
        }
        let wanted = records(store.as_ref().unwrap()).unwrap();
        let copy = parent.path().join("last");
        killed(&folder, &copy);
        prop_assert_eq!(salvaged(&copy), (wanted.clone(), vec![]));
        drop(store);
        prop_assert_eq!(salvaged(&folder), (wanted, vec![]));
    }
}

/// Commits until a commit is refused, which happens soon after a thread of fjall has failed.
fn commit_until_refused(store: &EmbeddedStore) {
    for number in 0..10_000 {
        let writes = vec![put(Table::Agents, &format!("{number}"), 1, "x")];
        if store.commit(vec![Change { expectations: vec![], writes }]).is_err() {
            return;
        }
    }
    panic!("fjall merges its files and does not notice that one is damaged");
}

#[test]
fn a_table_file_that_fjall_fails_to_merge_is_found_out() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("store");
    commit(&EmbeddedStore::open(&folder).unwrap(), vec![put(Table::Agents, "first", 1, "x")]);
    let damaged = {
        let database = fjall::Database::builder(folder.join("fjall")).open().unwrap();
        let tasks = database.keyspace("tasks", fjall::KeyspaceCreateOptions::default).unwrap();
        let write = |run: usize| {
            (0..200).for_each(|number| tasks.insert(format!("{number:04}"), format!("{run}").repeat(200)).unwrap());
            tasks.rotate_memtable_and_wait().unwrap();
        };
        (0..4).for_each(write); // fjall compacts the first at once, three are left
        let tables = fs::read_dir(tasks.path().join("tables")).unwrap().map(|entry| entry.unwrap().path());
        let path = tables.max().unwrap();
        let mut bytes = fs::read(&path).unwrap();
        bytes[9000] ^= 1;
        fs::write(&path, bytes).unwrap();
        write(4); // the fourth starts the merge
        path
    };
    let store = EmbeddedStore::open(&folder).unwrap();
    commit_until_refused(&store);
    store.recover().unwrap(); // recovery assumes a passing disk error
    commit_until_refused(&store);
    match store.recover() {
        Err(OpenError::Damaged { path, .. }) => assert_eq!(path, damaged),
        other => panic!("expected Damaged, got {other:?}"),
    }
}

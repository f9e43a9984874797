//! Damaged stores: opening reports the damage and changes nothing, and every intact record can be salvaged.

use std::{
    collections::BTreeMap,
    fs, io,
    ops::Bound::Unbounded,
    path::{Path, PathBuf},
};

use baton_store::{
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

/// The files of a folder with their contents, without the working copy of the tables.
fn files(folder: &Path) -> Files {
    read_files(folder).unwrap()
}

fn read_files(folder: &Path) -> io::Result<Files> {
    let mut all = Files::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            match path.is_dir() {
                true if path.ends_with("work") => {}
                true => folders.push(path),
                false => drop(all.insert(path.clone(), fs::read(&path)?)),
            }
        }
    }
    Ok(all)
}

/// Restores the folder to these files. Writes only what has changed: some file systems become slow when thousands of files
/// are removed in a minute.
fn put_back(folder: &Path, good: &Files) {
    let now = files(folder);
    now.keys().filter(|path| !good.contains_key(*path)).for_each(|path| fs::remove_file(path).unwrap());
    good.iter().filter(|(path, bytes)| now.get(*path) != Some(bytes)).for_each(|(path, bytes)| {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    });
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

/// Writes all records into table files, and closes the store.
fn flush(store: EmbeddedStore) {
    store.give_space_back();
    drop(store);
}

fn commit(store: &EmbeddedStore, writes: Vec<baton_store::Write>) {
    assert!(store.commit(vec![Change { expectations: vec![], writes }]).unwrap()[0].is_ok());
}

/// Letters at random, the same ones for the same seed: the log compresses what repeats.
fn incompressible(seed: u32, length: usize) -> String {
    let mut state = u64::from(seed);
    let letter = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        char::from(b'0' + (state >> 33) as u8 % 64)
    };
    std::iter::repeat_with(letter).take(length).collect()
}

/// A store with 300 tasks and envelopes in table files, and 50 agents that are only in the log.
fn three_hundred(parent: &Path) -> PathBuf {
    let folder = parent.join("store");
    for part in 0..3 {
        let store = EmbeddedStore::open(&folder).unwrap();
        for number in part * 100..(part + 1) * 100 {
            let (key, value) = (format!("{number:06}"), incompressible(number, 100 * number.to_string().len()));
            let of = |table| put(table, &key, 1, &value);
            commit(&store, vec![of(Table::Tasks), of(Table::Envelopes)]);
        }
        flush(store);
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
    files(&folder.join("tables")).into_keys().chain(files(&folder.join("wal")).into_keys()).collect()
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
    let (mut refused, mut opened, mut lost_tables, mut damaged) = (0, 0, 0, 0);
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
            // A block of 4 KiB has up to 40 of these records. The part of a table file that says where its blocks are, which
            // is large in these small files, takes a table's records with it, and no others.
            let table = path.file_name().unwrap().to_str().unwrap().split('.').next().unwrap().to_owned();
            let of_others = |all: &Records| all.keys().filter(|(of, _)| *of != table).count();
            damaged += 1;
            if found.len() + 40 < whole.len() {
                lost_tables += 1;
                assert_eq!(of_others(&found), of_others(&whole), "{what}: {damages:?}");
            }
            assert!(found.len() == whole.len() || !damages.is_empty(), "{what}: silently lost");
            match assert_unharmed(&folder, &whole, &what) {
                true => {
                    // The log has two heads for each file, and room that no group uses yet.
                    assert!(path.starts_with(folder.join("wal")), "{what}: opened");
                    opened += 1;
                }
                false => refused += 1,
            }
        }
    }
    assert!(refused > 150, "{refused} refused, {opened} opened");
    assert!(lost_tables * 4 < damaged, "{lost_tables} of {damaged}");
}

#[test]
fn reading_without_opening_changes_nothing() {
    let parent = tempfile::tempdir().unwrap();
    let folder = three_hundred(parent.path());
    fs::remove_file(folder.join("commit_mark")).unwrap();
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
    let tables = files(&folder.join("tables")).into_iter();
    let (path, mut bytes) = tables.max_by_key(|(_, bytes)| bytes.len()).unwrap();
    for place in [0, 3, 9].map(|part| bytes.len() * part / 12 + 100) {
        bytes[place] ^= 1; // this includes the first block
    }
    fs::write(&path, &bytes).unwrap();
    let (found, damages) = salvaged(&folder);
    assert!(damages[0].starts_with(path.to_str().unwrap()), "{damages:?}");
    assert!((3..=4).contains(&damages.len()), "{damages:?}");
    assert!((590..650).contains(&found.len()), "{} of 650", found.len());
}

#[test]
fn without_one_of_the_two_lists_of_tables_all_their_files_are_read() {
    let parent = tempfile::tempdir().unwrap();
    let folder = three_hundred(parent.path());
    let good = files(&folder);
    for name in ["MANIFEST", "MANIFEST.copy"] {
        let path = folder.join("tables").join(name);
        for content in [None, Some(&b""[..]), Some(&good[&path][..good[&path].len() - 1])] {
            match content {
                None => fs::remove_file(&path).unwrap(),
                Some(content) => fs::write(&path, content).unwrap(),
            }
            let (found, damages) = salvaged(&folder);
            assert_eq!((found.len(), damages.len()), (650, 1), "{damages:?}");
            assert!(damages[0].starts_with(path.to_str().unwrap()), "{damages:?}");
            put_back(&folder, &good);
        }
    }
}

/// Copies the files of an open store as a killed process leaves them. Another thread may be taking a checkpoint, so the
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
    let log = |folder: &Path| fs::read(folder.join("wal/1")).unwrap();
    let (begun, done) = (log(&before), log(&after));
    let end = |log: &[u8]| log.iter().rposition(|byte| *byte != 0).unwrap();
    assert!(end(&begun) + 100 < end(&done));
    for length in (end(&begun) + 2..end(&done)).step_by(5) {
        put_back(&before, &good);
        fs::write(before.join("wal/1"), [&done[..length], &vec![0; done.len() - length]].concat()).unwrap();
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
    fs::copy(one_more.join("wal/1"), folder.join("wal/1")).unwrap();
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
    flush(store);
    let is_table = |path: &&PathBuf| path.parent().unwrap().ends_with("tables");
    let files = files(&folder);
    let of_tables: Vec<_> = files.iter().filter(|(path, _)| is_table(path)).map(|(_, bytes)| bytes.clone()).collect();
    let logs = files.into_iter().filter(|(path, _)| path.parent().unwrap().ends_with("wal"));
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
        let own = files(&folder.join("wal")).into_values();
        for value in own.chain(look_alikes.clone()) {
            let key = format!("{number:06}");
            let record = baton_store::Record { revision: 1, value: value.into() };
            let key_of = |table| baton_store::Key { table, key: key.as_str().into() };
            let write =
                baton_store::Write { key: key_of(Table::Envelopes), record: Some(record.clone()), is_new: true };
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
    flush(EmbeddedStore::open(&folder).unwrap());
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
        }
        fs::write(path, bytes).unwrap();
    }
}

/// A step in the life of a store.
#[derive(Debug, Clone)]
enum Step {
    Write(Vec<(Table, u8, Option<u8>)>),
    Flush,
    Reopen,
    Kill,
    Recover,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let table = prop::sample::select(vec![Table::Tasks, Table::Mailbox, Table::Meta]);
    let write = (table, 0..40_u8, prop::option::weighted(0.7, any::<u8>()));
    let step = prop_oneof![
        16 => prop::collection::vec(write, 1..12).prop_map(Step::Write),
        1 => Just(Step::Flush),
        1 => Just(Step::Reopen),
        2 => Just(Step::Kill),
        1 => Just(Step::Recover),
    ];
    prop::collection::vec(step, 1..80)
}

/// The file of this test's finds. Proptest finds a place by itself only beside a lib.rs or a main.rs.
fn finds() -> Option<Box<dyn FailurePersistence>> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/proptest-regressions/damage.txt");
    Some(Box::new(FileFailurePersistence::Direct(path)))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: finds(), ..ProptestConfig::default() })]

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
                Step::Flush => store.as_ref().unwrap().give_space_back(),
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

/// Adds 20,000 bytes to each of so many tasks, in one table file. Returns its path.
fn add_long_tasks(folder: &Path, many: usize) -> PathBuf {
    let store = EmbeddedStore::open(folder).unwrap();
    let values = (0..many).map(|number| put(Table::Tasks, &format!("{number:04}"), 1, &incompressible(7, 20_000)));
    commit(&store, values.collect());
    flush(store);
    let is_tasks = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with("tasks.");
    let tables = files(&folder.join("tables")).into_iter().filter(|(path, _)| is_tasks(path));
    tables.max_by_key(|(_, bytes)| bytes.len()).unwrap().0
}

/// Changes one bit of a file in its place: a copy of its name in the folder of an open store changes too.
fn lose_a_bit(path: &Path, at: u64) {
    use std::os::unix::fs::FileExt as _;
    let file = fs::File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

/// Waits until a thread of the store has found the damage.
fn wait_for_failure(store: &EmbeddedStore) {
    while !store.has_failed() {
        std::thread::yield_now();
    }
}

#[track_caller]
fn assert_damaged(recovered: Result<(), OpenError>, damaged: &Path) {
    match recovered {
        Err(OpenError::Damaged { path, .. }) => assert_eq!(path, damaged),
        other => panic!("expected Damaged, got {other:?}"),
    }
}

#[test]
fn a_bit_that_is_lost_far_from_the_end_of_a_table_file_is_found_before_the_store_opens() {
    let parent = tempfile::tempdir().unwrap();
    let folder = three_hundred(parent.path());
    let path = add_long_tasks(&folder, 40);
    let whole = records(&EmbeddedStore::open(&folder).unwrap()).unwrap();
    assert!(fs::metadata(&path).unwrap().len() > 500_000, "only a small part of the file is its end");
    lose_a_bit(&path, 9000);
    assert!(!assert_unharmed(&folder, &whole, "a lost bit"), "the store is refused");
    lose_a_bit(&path, 9000);
    assert!(assert_unharmed(&folder, &whole, "whole again"));
}

#[test]
fn a_lost_bit_in_a_store_that_is_too_long_for_the_start_is_found_beside_its_use() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("store");
    let path = add_long_tasks(&folder, 100);
    lose_a_bit(&path, 9000);
    let store = EmbeddedStore::open(&folder).unwrap();
    // No record is read.
    wait_for_failure(&store);
    let put = put(Table::Agents, "a", 1, "an agent");
    let refused = store.commit(vec![Change { expectations: vec![], writes: vec![put.clone()] }]);
    assert!(refused.is_err(), "nothing is acknowledged any more");
    assert_damaged(store.recover(), &path);
    drop(store);
    lose_a_bit(&path, 9000);
    let store = EmbeddedStore::open(&folder).unwrap();
    commit(&store, vec![put]);
    assert!(!store.has_failed());
}

#[test]
fn a_record_that_cannot_be_read_while_the_store_is_open_is_no_missing_record() {
    let parent = tempfile::tempdir().unwrap();
    let folder = three_hundred(parent.path());
    let path = add_long_tasks(&folder, 40);
    let store = EmbeddedStore::open(&folder).unwrap();
    lose_a_bit(&path, 9000);
    assert!(store.scan(Table::Agents, (Unbounded, Unbounded), Order::Ascending, usize::MAX).is_ok());
    assert!(!store.has_failed());
    assert!(store.scan(Table::Tasks, (Unbounded, Unbounded), Order::Ascending, usize::MAX).is_err());
    assert!(store.has_failed());
    assert_damaged(store.recover(), &path);
}

/// Commits until a commit is refused, which happens soon after a thread of the store has failed.
fn commit_until_refused(store: &EmbeddedStore) {
    for number in 0..10_000 {
        let writes = vec![put(Table::Tasks, &format!("{:04}", number % 100), 1, &"x".repeat(20_000))];
        if store.commit(vec![Change { expectations: vec![], writes }]).is_err() {
            return;
        }
    }
    panic!("files are merged, and it is not noticed that one is damaged");
}

#[test]
fn a_table_file_that_cannot_be_merged_is_found_out() {
    use std::os::unix::fs::FileExt as _;
    let parent = tempfile::tempdir().unwrap();
    let folder = three_hundred(parent.path());
    let damaged = add_long_tasks(&folder, 40);
    let store = EmbeddedStore::open(&folder).unwrap();
    fs::File::options().write(true).open(&damaged).unwrap().write_all_at(&[0xff; 64], 9000).unwrap();
    commit_until_refused(&store);
    // The first recovery assumes a passing disk error, and a thread checks all files.
    store.recover().unwrap();
    wait_for_failure(&store);
    assert_damaged(store.recover(), &damaged);
}

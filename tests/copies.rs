//! Copies of a store that is open, and conversions of a store of an older format.

use std::{
    fs,
    ops::Bound::Unbounded,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use baton_store::{
    Backup, Change, Conversion, ConversionError, EmbeddedStore, FORMAT, Found, OpenError, Order, Record, Store, Table,
    conformance::put, groups_committed, read_all,
};

fn commit(store: &EmbeddedStore, key: &str, value: &str) {
    let change = Change { expectations: vec![], writes: vec![put(Table::Tasks, key, 1, value)] };
    assert_eq!(store.commit(vec![change]).unwrap(), [Ok(())]);
}

/// The records of the table of tasks.
fn tasks(store: &dyn Store) -> Vec<(String, String)> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let found = store.scan(Table::Tasks, (Unbounded, Unbounded), Order::Ascending, usize::MAX).unwrap();
    found.into_iter().map(|(key, record)| (text(&key), text(&record.value))).collect()
}

fn damages(folder: &Path) -> Vec<String> {
    let mut damages = Vec::new();
    read_all(folder, |found| {
        if let Found::Damaged { path, problem, .. } = found {
            damages.push(format!("{}: {problem}", path.display()));
        }
    })
    .unwrap();
    damages
}

fn name(number: u64) -> String {
    format!("{number:08}")
}

#[test]
fn a_copy_of_an_open_store_is_the_state_after_one_commit() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("store");
    let store = EmbeddedStore::open(&folder).unwrap();
    let (committed, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // In small steps and with many checkpoints, so that files come and go while they are copied.
            for number in 1.. {
                commit(&store, &name(number), &"x".repeat(10_000));
                committed.store(number, Ordering::SeqCst);
                if is_over.load(Ordering::SeqCst) {
                    break;
                }
            }
        });
        for round in 1..=8 {
            while committed.load(Ordering::SeqCst) < round * 60 {
                std::thread::yield_now();
            }
            let before = committed.load(Ordering::SeqCst);
            let to = parent.path().join(format!("copy-{round}"));
            let backup = Backup::begin(&to).unwrap();
            let groups = backup.copy(&folder).unwrap();
            backup.finish().unwrap();
            assert!(groups >= before, "group {before} was committed, and the copy ends at {groups}");
            assert_eq!(damages(&to), Vec::<String>::new());
            assert_eq!(groups_committed(&to), Some(groups));
            let copy = EmbeddedStore::open(&to).unwrap();
            let keys: Vec<String> = tasks(&copy).into_iter().map(|(key, _)| key).collect();
            assert_eq!(keys, (1..=groups).map(name).collect::<Vec<_>>(), "round {round}");
            commit(&copy, "a-further-one", "");
        }
        is_over.store(true, Ordering::SeqCst);
    });
    assert!(fs::read_dir(folder.join("tables")).unwrap().count() > 2, "there were checkpoints");
}

#[test]
fn a_copy_that_was_cut_off_is_no_store_and_is_made_again() {
    let parent = tempfile::tempdir().unwrap();
    let (folder, to) = (parent.path().join("store"), parent.path().join("copy"));
    let store = EmbeddedStore::open(&folder).unwrap();
    commit(&store, "a", "1");
    let unfinished = || {
        let opened = EmbeddedStore::open(&to).map(drop);
        assert!(matches!(opened, Err(OpenError::Unfinished { .. })), "{opened:?}");
        assert!(matches!(read_all(&to, |_| {}), Err(OpenError::Unfinished { .. })));
    };
    let backup = Backup::begin(&to).unwrap();
    unfinished();
    assert!(matches!(Backup::begin(&to), Err(OpenError::InUse { .. })), "another one is being made");
    backup.copy(&folder).unwrap();
    unfinished();
    drop(backup);
    unfinished();
    fs::write(to.join("tables/junk"), "of a copy that was cut off").unwrap();
    let backup = Backup::begin(&to).unwrap();
    commit(&store, "b", "2");
    assert_eq!(backup.copy(&folder).unwrap(), 2);
    backup.finish().unwrap();
    assert_eq!(damages(&to), Vec::<String>::new());
    assert!(!to.join("tables/junk").exists());
    let both = [("a".to_owned(), "1".to_owned()), ("b".to_owned(), "2".to_owned())];
    assert_eq!(tasks(&EmbeddedStore::open(&to).unwrap()), both);
    assert!(matches!(Backup::begin(&to), Err(OpenError::NotAStore { .. })), "a whole copy is not overwritten");
}

#[test]
fn a_damaged_store_gives_no_copy() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("store");
    let store = EmbeddedStore::open(&folder).unwrap();
    (0..100).for_each(|number| commit(&store, &name(number), &"x".repeat(10_000)));
    drop(store);
    let is_table = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with("tasks.");
    let table = fs::read_dir(folder.join("tables")).unwrap().map(|entry| entry.unwrap().path()).find(is_table).unwrap();
    let mut bytes = fs::read(&table).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&table, bytes).unwrap();
    let backup = Backup::begin(&parent.path().join("copy")).unwrap();
    match backup.copy(&folder) {
        Err(OpenError::Damaged { path, .. }) => assert_eq!(path, table),
        other => panic!("expected Damaged, got {other:?}"),
    }
}

/// Appends a mark to the value of each of the first tasks.
fn append(path: &Path, mark: &str, most: usize) -> Result<(), ConversionError> {
    let store = EmbeddedStore::open_to_convert(path)?;
    let found = store.scan(Table::Tasks, (Unbounded, Unbounded), Order::Ascending, most)?;
    for (key, record) in found {
        let value = [&record.value, mark.as_bytes()].concat();
        let record = Some(Record { revision: record.revision + 1, value: value.into() });
        let key = baton_store::Key { table: Table::Tasks, key };
        let write = baton_store::Write { key, record, is_new: false };
        drop(store.commit(vec![Change { expectations: vec![], writes: vec![write] }])?);
    }
    Ok(())
}

const FIRST: Conversion = Conversion { from: FORMAT - 2, convert: |path| append(path, "+first", usize::MAX) };
const SECOND: Conversion = Conversion { from: FORMAT - 1, convert: |path| append(path, "+second", usize::MAX) };
/// Stops in the middle, as a crash does: what it has written stays.
const CUT_OFF: Conversion =
    Conversion { from: FORMAT - 1, convert: |path| append(path, "+second", 3).and(Err("the power is gone".into())) };

/// A closed store of 40 tasks, whose file FORMAT has this number.
fn of_format(number: u32) -> (tempfile::TempDir, PathBuf) {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("store");
    let store = EmbeddedStore::open(&folder).unwrap();
    (0..40).for_each(|number| commit(&store, &name(number), &"x".repeat(10_000)));
    drop(store);
    set_format(&folder, number);
    (parent, folder)
}

fn set_format(folder: &Path, number: u32) {
    fs::write(folder.join("FORMAT"), format!("baton-store {number}\n")).unwrap();
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The ends of the values of all tasks, without the repeated ones.
fn ends(store: &EmbeddedStore) -> Vec<String> {
    let mut ends: Vec<_> =
        tasks(store).into_iter().map(|(_, value)| value.trim_start_matches('x').to_owned()).collect();
    assert_eq!(ends.len(), 40);
    ends.dedup();
    ends
}

#[test]
fn a_store_of_an_older_format_is_copied_and_then_converted_step_by_step() {
    let (parent, folder) = of_format(FORMAT - 2);
    let store = EmbeddedStore::open_with(&folder, &[SECOND, FIRST]).unwrap();
    assert_eq!(ends(&store), ["+first+second"]);
    drop(store);
    assert_eq!(fs::read_to_string(folder.join("FORMAT")).unwrap(), format!("baton-store {FORMAT}\n"));
    let copy = format!("store.before-format-{FORMAT}");
    assert_eq!(names(parent.path()), ["store", &copy]);
    assert!(!names(&folder).contains(&"CONVERTING".to_owned()));
    assert_eq!(ends(&EmbeddedStore::open(&folder).unwrap()), ["+first+second"], "it is not converted again");
    assert_eq!(damages(&folder), Vec::<String>::new());
    // The copy is the store as it was.
    let copy = parent.path().join(copy);
    assert_eq!(fs::read_to_string(copy.join("FORMAT")).unwrap(), format!("baton-store {}\n", FORMAT - 2));
    set_format(&copy, FORMAT);
    assert_eq!(ends(&EmbeddedStore::open(&copy).unwrap()), [""]);
}

#[test]
fn a_conversion_that_was_cut_off_begins_again_from_the_copy() {
    let (parent, folder) = of_format(FORMAT - 2);
    match EmbeddedStore::open_with(&folder, &[FIRST, CUT_OFF]) {
        Err(error @ OpenError::Conversion { .. }) => {
            let said = error.to_string();
            for part in ["the power is gone", "before-format", "The next start tries again"] {
                assert!(said.contains(part), "{part:?} is not in {said:?}");
            }
        }
        other => panic!("expected Conversion, got {:?}", other.err()),
    }
    let store = EmbeddedStore::open_with(&folder, &[FIRST, SECOND]).unwrap();
    assert_eq!(ends(&store), ["+first+second"], "each step was done once");
    drop(store);
    assert_eq!(names(parent.path()).len(), 2, "there is one copy");
}

#[test]
fn a_conversion_that_was_cut_off_at_its_edges_goes_on() {
    // While the copy was made.
    let (parent, folder) = of_format(FORMAT - 1);
    let copy = parent.path().join(format!("store.before-format-{FORMAT}"));
    let backup = Backup::begin(&copy).unwrap();
    fs::write(copy.join("FORMAT"), "baton").unwrap();
    drop(backup);
    assert_eq!(ends(&EmbeddedStore::open_with(&folder, &[SECOND]).unwrap()), ["+second"]);
    set_format(&copy, FORMAT);
    assert_eq!(ends(&EmbeddedStore::open(&copy).unwrap()), [""]);
    // After the last step.
    fs::write(folder.join("CONVERTING"), format!("store.before-format-{FORMAT}\n")).unwrap();
    assert_eq!(ends(&EmbeddedStore::open_with(&folder, &[SECOND]).unwrap()), ["+second"]);
    assert!(!folder.join("CONVERTING").exists());
    // The next conversion, after a way back, does not overwrite the first copy.
    set_format(&folder, FORMAT - 1);
    assert_eq!(ends(&EmbeddedStore::open_with(&folder, &[SECOND]).unwrap()), ["+second+second"]);
    assert_eq!(ends(&EmbeddedStore::open(&copy).unwrap()), [""]);
    assert!(parent.path().join(format!("store.before-format-{FORMAT}-2")).exists());
}

#[test]
fn a_format_without_a_way_to_the_present_one_is_refused_and_not_touched() {
    let (parent, folder) = of_format(FORMAT - 2);
    for (number, words) in [
        (FORMAT - 2, "This version cannot convert it. Start the version that wrote it"),
        (FORMAT + 1, "A newer version of baton wrote it: install that version or a later one"),
    ] {
        set_format(&folder, number);
        let before = names(&folder);
        // The step between the two is missing.
        for said in [
            EmbeddedStore::open_with(&folder, &[SECOND]).map(drop).unwrap_err().to_string(),
            read_all(&folder, |_| {}).unwrap_err().to_string(),
            Backup::begin(&parent.path().join("copy")).unwrap().copy(&folder).unwrap_err().to_string(),
        ] {
            assert!(said.contains(words) && said.contains("nothing was changed"), "{said}");
        }
        assert_eq!(names(&folder), before);
    }
    assert_eq!(names(parent.path()), ["copy", "store"]);
}

//! The requirements on every engine, as one test suite. A new engine conforms if this suite passes.

use std::{collections::BTreeMap, ops::Bound, sync::Arc};

use bytes::Bytes;

use super::{Change, Conflict, Expectation, Key, KeyBytes, KeyRange, Order, Record, Store, Table, Write};

/// A write of this value at this revision.
pub fn put(table: Table, key: &str, revision: u64, value: &str) -> Write {
    let record = Record { revision, value: Bytes::copy_from_slice(value.as_bytes()) };
    Write { key: key_of(table, key), record: Some(record), is_new: false }
}

/// A write that deletes a record.
pub fn delete(table: Table, key: &str) -> Write {
    Write { key: key_of(table, key), record: None, is_new: false }
}

/// An expectation: the record has this revision, or does not exist (`None`).
pub fn expect(table: Table, key: &str, revision: Option<u64>) -> Expectation {
    Expectation { key: key_of(table, key), revision }
}

fn key_of(table: Table, key: &str) -> Key {
    Key { table, key: key.into() }
}

fn change(expectations: Vec<Expectation>, writes: Vec<Write>) -> Change {
    Change { expectations, writes }
}

fn commit(store: &dyn Store, group: &[Change]) -> Vec<Result<(), Conflict>> {
    store.commit(group.to_vec()).expect("the store commits")
}

fn value(store: &dyn Store, table: Table, key: &str) -> Option<(u64, String)> {
    let record = store.get(&key_of(table, key)).expect("the store reads")?;
    Some((record.revision, String::from_utf8(record.value.to_vec()).expect("text was written")))
}

fn everything() -> KeyRange {
    (Bound::Unbounded, Bound::Unbounded)
}

/// Runs every test, each on a fresh store.
pub fn run(fresh: impl Fn() -> Arc<dyn Store>) {
    values_come_back(&*fresh());
    a_change_is_applied_only_if_its_expectations_hold(&*fresh());
    a_change_is_applied_wholly_or_not_at_all(&*fresh());
    later_changes_of_a_group_see_earlier_ones(&*fresh());
    scans_keep_to_their_range_order_and_limit(&*fresh());
    large_values_come_back(&*fresh());
    an_empty_group_is_no_error(&*fresh());
    racing_writers_lose_no_update(&fresh());
}

fn values_come_back(store: &dyn Store) {
    assert_eq!(value(store, Table::Tasks, "a"), None);
    commit(store, &[change(vec![], vec![put(Table::Tasks, "a", 1, "one"), put(Table::Agents, "a", 5, "other table")])]);
    assert_eq!(value(store, Table::Tasks, "a"), Some((1, "one".into())));
    assert_eq!(value(store, Table::Agents, "a"), Some((5, "other table".into())));
    commit(store, &[change(vec![], vec![put(Table::Tasks, "a", 2, "two"), delete(Table::Agents, "a")])]);
    assert_eq!(value(store, Table::Tasks, "a"), Some((2, "two".into())));
    assert_eq!(value(store, Table::Agents, "a"), None);
}

fn a_change_is_applied_only_if_its_expectations_hold(store: &dyn Store) {
    let create = change(vec![expect(Table::Tasks, "a", None)], vec![put(Table::Tasks, "a", 1, "first")]);
    assert_eq!(commit(store, std::slice::from_ref(&create)), [Ok(())]);
    let refused = Conflict { key: key_of(Table::Tasks, "a"), expected: None, found: Some(1) };
    assert_eq!(commit(store, &[create]), [Err(refused)]);
    let update = change(vec![expect(Table::Tasks, "a", Some(1))], vec![put(Table::Tasks, "a", 2, "second")]);
    assert_eq!(commit(store, std::slice::from_ref(&update)), [Ok(())]);
    let refused = Conflict { key: key_of(Table::Tasks, "a"), expected: Some(1), found: Some(2) };
    assert_eq!(commit(store, &[update]), [Err(refused)]);
    assert_eq!(value(store, Table::Tasks, "a"), Some((2, "second".into())));
}

fn a_change_is_applied_wholly_or_not_at_all(store: &dyn Store) {
    let expectations = vec![expect(Table::Tasks, "a", None), expect(Table::Tasks, "b", Some(9))];
    let writes = vec![put(Table::Tasks, "a", 1, "half"), put(Table::Custody, "a", 1, "half")];
    assert!(commit(store, &[change(expectations, writes)])[0].is_err());
    assert_eq!(value(store, Table::Tasks, "a"), None);
    assert_eq!(value(store, Table::Custody, "a"), None);
}

fn later_changes_of_a_group_see_earlier_ones(store: &dyn Store) {
    let bump = |from: Option<u64>, to: u64, text: &str| {
        change(vec![expect(Table::Tasks, "a", from)], vec![put(Table::Tasks, "a", to, text)])
    };
    let outcomes = commit(store, &[bump(None, 1, "one"), bump(None, 1, "late"), bump(Some(1), 2, "two")]);
    assert_eq!(outcomes.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true]);
    assert_eq!(value(store, Table::Tasks, "a"), Some((2, "two".into())));
    let gone = change(vec![], vec![delete(Table::Tasks, "a")]);
    let outcomes = commit(store, &[gone, bump(Some(2), 3, "three"), bump(None, 1, "again")]);
    assert_eq!(outcomes.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true]);
    assert_eq!(value(store, Table::Tasks, "a"), Some((1, "again".into())));
}

fn scans_keep_to_their_range_order_and_limit(store: &dyn Store) {
    let writes = ["a", "b", "ba", "c"].map(|key| put(Table::Mailbox, key, 1, key)).to_vec();
    commit(store, &[change(vec![], writes), change(vec![], vec![put(Table::Messages, "b", 1, "not in this table")])]);
    let scan = |range: KeyRange, order, limit| -> Vec<String> {
        let found = store.scan(Table::Mailbox, range, order, limit).expect("the store reads");
        found.into_iter().map(|(key, _)| String::from_utf8(key.to_vec()).expect("text was written")).collect()
    };
    let bound = |key: &str| KeyBytes::from(key);
    assert_eq!(scan(everything(), Order::Ascending, 10), ["a", "b", "ba", "c"]);
    assert_eq!(scan(everything(), Order::Descending, 2), ["c", "ba"]);
    let range = (Bound::Included(bound("b")), Bound::Excluded(bound("c")));
    assert_eq!(scan(range.clone(), Order::Ascending, 10), ["b", "ba"]);
    assert_eq!(scan(range, Order::Descending, 1), ["ba"]);
    assert_eq!(scan((Bound::Excluded(bound("b")), Bound::Unbounded), Order::Ascending, 10), ["ba", "c"]);
    assert_eq!(scan(everything(), Order::Ascending, 0), [""; 0]);
}

fn large_values_come_back(store: &dyn Store) {
    let large = "x".repeat(4 * 1024 * 1024);
    commit(store, &[change(vec![], vec![put(Table::Envelopes, "large", 1, &large)])]);
    assert_eq!(value(store, Table::Envelopes, "large"), Some((1, large)));
}

fn an_empty_group_is_no_error(store: &dyn Store) {
    assert_eq!(commit(store, &[]), []);
    assert_eq!(commit(store, &[Change::default()]), [Ok(())]);
}

/// Two threads increment one record, each from the value that it read. No increment is lost.
fn racing_writers_lose_no_update(store: &Arc<dyn Store>) {
    const EACH: u64 = 50;
    let count_up = |store: &dyn Store| {
        let mut done = 0;
        while done < EACH {
            let before = value(store, Table::Tasks, "n").map(|(revision, _)| revision);
            let after = before.unwrap_or(0) + 1;
            let add = change(vec![expect(Table::Tasks, "n", before)], vec![put(Table::Tasks, "n", after, "")]);
            done += u64::from(commit(store, &[add])[0].is_ok());
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| count_up(&**store));
        scope.spawn(|| count_up(&**store));
    });
    assert_eq!(value(&**store, Table::Tasks, "n"), Some((2 * EACH, String::new())));
}

/// A reference model of a store's content, to compare a store with.
#[derive(Debug, Clone, Default)]
pub struct NaiveStore(BTreeMap<Key, Record>);

impl NaiveStore {
    /// Applies a change if its expectations hold. Returns whether they do.
    pub fn apply(&mut self, change: &Change) -> bool {
        let holds = |wanted: &Expectation| self.0.get(&wanted.key).map(|record| record.revision) == wanted.revision;
        if !change.expectations.iter().all(holds) {
            return false;
        }
        for write in &change.writes {
            match &write.record {
                Some(record) => self.0.insert(write.key.clone(), record.clone()),
                None => self.0.remove(&write.key),
            };
        }
        true
    }

    /// The group, with [`Write::is_new`] set on each write that creates a record.
    pub fn said_new(&self, mut group: Vec<Change>) -> Vec<Change> {
        let mut naive = self.clone();
        for change in &mut group {
            let mut after = naive.clone();
            for write in &mut change.writes {
                write.is_new = write.record.is_some() && !after.0.contains_key(&write.key);
                after.apply(&Change { expectations: Vec::new(), writes: vec![write.clone()] });
            }
            naive.apply(change);
        }
        group
    }

    /// Panics unless the store holds the same records.
    pub fn assert_same(&self, store: &dyn Store) {
        for table in Table::ALL {
            let stored = store.scan(table, everything(), Order::Ascending, usize::MAX).expect("the store reads");
            let wanted = self.0.iter().filter(|(key, _)| key.table == table);
            let wanted: Vec<_> = wanted.map(|(key, record)| (key.key.clone(), record.clone())).collect();
            assert_eq!(stored, wanted, "table {}", table.name());
        }
    }
}

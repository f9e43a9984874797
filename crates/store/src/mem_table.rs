//! The memtables: records that the log has and that are not in their tables yet.
//!
//! Owns which version of these records is the newest. A group goes into the log at once, and its records into their
//! tables later, many at a time. A newer version of a record replaces the older one, and a broker soon writes most
//! records again or removes them, so few of all versions reach a table. Must not know the layout on disk.

use std::{
    collections::{BTreeMap, HashMap, btree_map, hash_map},
    ops::{Bound, RangeBounds as _},
    sync::Arc,
};

use itertools::{EitherOrBoth, Itertools as _};

use super::{Key, KeyBytes, KeyRange, Order, Record, Table, Write};

/// The records that a flush sorts between two pauses.
const SORTED_AT_ONCE: usize = 1024;

/// The newest version of a record.
struct Latest {
    /// `None`: the record is deleted.
    record: Option<Record>,
    /// Neither the tables nor the memtable before have this key.
    is_new: bool,
}

type InOrder<'a> = Box<dyn DoubleEndedIterator<Item = (&'a KeyBytes, &'a Option<Record>)> + 'a>;

/// The records of one table.
enum Entries {
    Ordered(BTreeMap<KeyBytes, Latest>),
    /// For a table with reads by key: a write costs less, and a scan sorts the keys.
    ByKey(HashMap<KeyBytes, Latest, foldhash::quality::RandomState>),
}

impl Entries {
    fn of(table: Table) -> Self {
        match table {
            // The tables with the most writes. Each is read by key, and scanned only by rare lists.
            Table::Tasks | Table::Handoffs | Table::Messages | Table::Envelopes => Self::ByKey(HashMap::default()),
            _ => Self::Ordered(BTreeMap::new()),
        }
    }

    fn get(&self, key: &KeyBytes) -> Option<&Latest> {
        match self {
            Self::Ordered(entries) => entries.get(key),
            Self::ByKey(entries) => entries.get(key),
        }
    }

    fn put(&mut self, key: KeyBytes, record: Option<Record>, is_new: bool) {
        macro_rules! put {
            ($entries:expr, $map:ident) => {
                match $entries.entry(key) {
                    $map::Entry::Vacant(entry) => drop(entry.insert(Latest { record, is_new })),
                    // A record that was created and deleted since the last rotation leaves nothing.
                    $map::Entry::Occupied(entry) if record.is_none() && entry.get().is_new => drop(entry.remove()),
                    $map::Entry::Occupied(mut entry) => entry.get_mut().record = record,
                }
            };
        }
        match self {
            Self::Ordered(entries) => put!(entries, btree_map),
            Self::ByKey(entries) => put!(entries, hash_map),
        }
    }

    /// The records of a range, which must have a key, in the order of their keys.
    fn range(&self, range: &KeyRange) -> InOrder<'_> {
        match self {
            Self::Ordered(entries) => Box::new(entries.range(range.clone()).map(|(key, latest)| (key, &latest.record))),
            Self::ByKey(entries) => {
                let found = entries.iter().filter(|(key, _)| range.contains(*key));
                let mut found: Vec<_> = found.map(|(key, latest)| (key, &latest.record)).collect();
                found.sort_unstable_by_key(|(key, _)| *key);
                Box::new(found.into_iter())
            }
        }
    }
}

/// The newest versions of the records that a sequence of groups wrote.
pub(super) struct MemTable([Entries; Table::ALL.len()]);

impl Default for MemTable {
    fn default() -> Self {
        Self(Table::ALL.map(Entries::of))
    }
}

impl MemTable {
    fn get(&self, key: &Key) -> Option<&Latest> {
        self.0[key.table as usize].get(&key.key)
    }

    fn put(&mut self, Key { table, key }: Key, record: Option<Record>, is_new: bool) {
        self.0[table as usize].put(key, record, is_new);
    }

    /// The records of a table in the order of their keys. `None`: the record is deleted. Calls `rest` after each small part
    /// of the work.
    pub(super) fn records(
        &self,
        table: Table,
        mut rest: impl FnMut(),
    ) -> Box<dyn Iterator<Item = (&KeyBytes, &Option<Record>)> + '_> {
        let entries = match &self.0[table as usize] {
            Entries::Ordered(entries) => {
                return Box::new(entries.iter().map(|(key, latest)| (key, &latest.record)));
            }
            Entries::ByKey(entries) => entries,
        };
        let mut entries = entries.iter().map(|(key, latest)| (key, &latest.record));
        let sorted = std::iter::from_fn(|| {
            let mut part: Vec<_> = entries.by_ref().take(SORTED_AT_ONCE).collect();
            part.sort_unstable_by_key(|(key, _)| *key);
            rest();
            (!part.is_empty()).then_some(part)
        });
        let sorted: Vec<_> = sorted.collect();
        Box::new(sorted.into_iter().kmerge_by(|(left, _), (right, _)| left < right))
    }

    /// Gives the memory back. Calls `rest` after each record.
    pub(super) fn free(self, mut rest: impl FnMut()) {
        for entries in self.0 {
            match entries {
                Entries::Ordered(entries) => entries.into_iter().for_each(|_| rest()),
                Entries::ByKey(entries) => entries.into_iter().for_each(|_| rest()),
            }
        }
    }

    fn range(
        &self,
        table: Table,
        range: &KeyRange,
        order: Order,
    ) -> Box<dyn Iterator<Item = (&KeyBytes, &Option<Record>)> + '_> {
        let found = self.0[table as usize].range(range);
        match order {
            Order::Ascending => Box::new(found),
            Order::Descending => Box::new(found.rev()),
        }
    }
}

/// The memtables of a store.
#[derive(Default)]
pub(super) struct MemTables {
    /// Takes the writes of each group.
    active: MemTable,
    /// The former active one. A flush writes it into the tables, and it stays here until the next rotation, so that
    /// reads of recent records need no disk.
    immutable: Arc<MemTable>,
}

impl MemTables {
    /// The newest version of a record. `Some(None)`: the record is deleted. `None`: the tables have the newest version.
    pub(super) fn get(&self, key: &Key) -> Option<Option<&Record>> {
        // A deletion in the active memtable is an answer too, and must hide the older record.
        let latest = self.active.get(key).or_else(|| self.immutable.get(key))?;
        Some(latest.record.as_ref())
    }

    /// The newest versions in a range, up to the first `limit` records. Deleted ones among them do not count.
    pub(super) fn range(
        &self,
        table: Table,
        range: &KeyRange,
        order: Order,
        limit: usize,
    ) -> Vec<(KeyBytes, Option<Record>)> {
        if is_empty(range) {
            return Vec::new();
        }
        let mut records = 0;
        let is_wanted = |(_, record): &(_, &Option<Record>)| {
            // Deleted records do not count against the limit, since they hide records of the tables and give the reader
            // nothing.
            let is_wanted = records < limit;
            records += usize::from(record.is_some());
            is_wanted
        };
        overlay(self.active.range(table, range, order), self.immutable.range(table, range, order), order)
            .take_while(is_wanted)
            .map(|(key, record)| (key.clone(), record.clone()))
            .collect()
    }

    /// Adds a group that was just committed.
    pub(super) fn insert(&mut self, writes: Vec<Write>) {
        writes.into_iter().for_each(|Write { key, record, is_new }| self.active.put(key, record, is_new));
    }

    /// Adds a write that was read from the log at start. The tables may have the record.
    pub(super) fn replay(&mut self, key: Key, record: Option<Record>) {
        self.active.put(key, record, false);
    }

    /// Makes the active memtable immutable. Returns it, and the immutable one before it, of which the tables must have
    /// all. The former one is returned because it takes some ten milliseconds to drop.
    pub(super) fn rotate(&mut self) -> (Arc<MemTable>, Arc<MemTable>) {
        let former = std::mem::replace(&mut self.immutable, Arc::new(std::mem::take(&mut self.active)));
        (self.immutable.clone(), former)
    }
}

/// Merges two sources that are in this order. Where both have a key, the newer source counts.
pub(super) fn overlay<K: Ord, V>(
    newer: impl Iterator<Item = (K, V)>,
    older: impl Iterator<Item = (K, V)>,
    order: Order,
) -> impl Iterator<Item = (K, V)> {
    let compare = move |(newer, _): &(K, V), (older, _): &(K, V)| match order {
        Order::Ascending => newer.cmp(older),
        Order::Descending => older.cmp(newer),
    };
    newer.merge_join_by(older, compare).map(|found| match found {
        EitherOrBoth::Left(found) | EitherOrBoth::Right(found) | EitherOrBoth::Both(found, _) => found,
    })
}

/// Whether a range has no key. `BTreeMap::range` panics on some of these.
fn is_empty((start, end): &KeyRange) -> bool {
    match (start, end) {
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
        (Bound::Included(start), Bound::Included(end)) => start > end,
        // Excluded at both ends, `start..start` has no key either.
        (Bound::Included(start) | Bound::Excluded(start), Bound::Included(end) | Bound::Excluded(end)) => start >= end,
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    const ALL: KeyRange = (Bound::Unbounded, Bound::Unbounded);

    fn write(key: &'static str, revision: Option<u64>, is_new: bool) -> Write {
        let record = revision.map(|revision| Record { revision, value: Bytes::from_static(b"value") });
        Write { key: Key { table: Table::Mailbox, key: key.into() }, record, is_new }
    }

    fn revision(memtables: &MemTables, key: &'static str) -> Option<Option<u64>> {
        memtables.get(&write(key, None, false).key).map(|record| record.map(|record| record.revision))
    }

    fn scanned(memtables: &MemTables, order: Order, limit: usize) -> Vec<(String, Option<u64>)> {
        let shown = |(key, record): (KeyBytes, Option<Record>)| {
            (String::from_utf8(key.to_vec()).unwrap(), record.map(|record| record.revision))
        };
        memtables.range(Table::Mailbox, &ALL, order, limit).into_iter().map(shown).collect()
    }

    #[test]
    fn a_record_that_is_new_and_removed_before_it_is_flushed_leaves_nothing() {
        let mut memtables = MemTables::default();
        memtables.insert(vec![write("a", Some(1), true), write("b", Some(1), false)]);
        memtables.insert(vec![write("a", Some(2), false), write("b", Some(2), false)]);
        memtables.insert(vec![write("a", None, false), write("b", None, false)]);
        assert_eq!((revision(&memtables, "a"), revision(&memtables, "b")), (None, Some(None)));
        let (memtable, _) = memtables.rotate();
        let left: Vec<_> = memtable.records(Table::Mailbox, || {}).map(|(key, record)| (&key[..], record)).collect();
        assert_eq!(left, [(&b"b"[..], &None)]);
    }

    #[test]
    fn a_flush_gets_the_records_of_every_table_in_order() {
        for table in [Table::Mailbox, Table::Messages] {
            let mut memtables = MemTables::default();
            // Every number once, in another order.
            let numbers = (0..5000_u32).map(|number| number * 3701 % 5000);
            let record = |number: u32| Record { revision: number.into(), value: Bytes::from_static(b"value") };
            let write = |number: u32| Write {
                key: Key { table, key: KeyBytes::from(&number.to_be_bytes()[..]) },
                record: (!number.is_multiple_of(7)).then(|| record(number)),
                is_new: false,
            };
            memtables.insert(numbers.map(write).collect());
            let (memtable, _) = memtables.rotate();
            let mut rests = 0;
            let found: Vec<_> = memtable.records(table, || rests += 1).collect();
            assert_eq!(found.len(), 5000);
            for (number, (key, found)) in (0_u32..).zip(found) {
                assert_eq!(
                    (&key[..], found.clone()),
                    (&number.to_be_bytes()[..], (!number.is_multiple_of(7)).then(|| record(number)))
                );
            }
            let is_sorted_here = table == Table::Messages;
            assert_eq!(rests > 0, is_sorted_here, "sorting has pauses");
        }
    }

    #[test]
    fn a_removal_is_not_forgotten_because_the_key_is_used_again() {
        let mut memtables = MemTables::default();
        memtables.insert(vec![write("in the tables", None, false)]);
        memtables.insert(vec![write("in the tables", Some(1), true)]);
        memtables.insert(vec![write("in the tables", None, false)]);
        assert_eq!(revision(&memtables, "in the tables"), Some(None));
    }

    #[test]
    fn a_record_that_was_replayed_may_be_in_the_tables() {
        let mut memtables = MemTables::default();
        let Write { key, record, .. } = write("a", Some(1), true);
        memtables.replay(key, record);
        memtables.insert(vec![write("a", None, false)]);
        assert_eq!(revision(&memtables, "a"), Some(None));
    }

    #[test]
    fn the_active_memtable_hides_the_immutable_one() {
        let mut memtables = MemTables::default();
        memtables.insert(["a", "b", "c", "d"].map(|key| write(key, Some(1), true)).into());
        drop(memtables.rotate());
        memtables.insert(vec![write("a", Some(2), false), write("b", None, false), write("e", Some(1), true)]);
        assert_eq!(revision(&memtables, "a"), Some(Some(2)));
        assert_eq!((revision(&memtables, "b"), revision(&memtables, "c")), (Some(None), Some(Some(1))));
        let all = [("a", Some(2)), ("b", None), ("c", Some(1)), ("d", Some(1)), ("e", Some(1))];
        let mut all = all.map(|(key, revision)| (key.to_owned(), revision)).to_vec();
        assert_eq!(scanned(&memtables, Order::Ascending, 9), all);
        assert_eq!(scanned(&memtables, Order::Ascending, 2), all[..3], "a deleted record does not count");
        all.reverse();
        assert_eq!(scanned(&memtables, Order::Descending, 9), all);
        drop(memtables.rotate());
        assert_eq!(revision(&memtables, "c"), None, "the tables have it");
        assert_eq!(revision(&memtables, "a"), Some(Some(2)));
    }

    #[test]
    fn a_range_without_keys_is_empty() {
        let mut memtables = MemTables::default();
        memtables.insert(vec![write("a", Some(1), true)]);
        let a = || KeyBytes::from(&b"a"[..]);
        let b = || KeyBytes::from(&b"b"[..]);
        use Bound::{Excluded, Included};
        let ranges = [(Excluded(a()), Excluded(a())), (Included(b()), Included(a())), (Included(a()), Excluded(a()))];
        for range in ranges {
            assert_eq!(memtables.range(Table::Mailbox, &range, Order::Ascending, 9), []);
        }
        assert_eq!(memtables.range(Table::Mailbox, &(Included(a()), Included(a())), Order::Descending, 9).len(), 1);
    }
}

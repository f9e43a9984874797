//! What is committed and not yet in its tables, in memory.
//!
//! Owns which version of a record is the newest of those that are pending. A store writes a group into its log, and
//! its records into their tables later, many at a time and each once: most of what a broker writes is soon written again, or
//! removed. Must not know where anything lies on disk.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, HashMap, btree_map, hash_map},
    convert::Infallible,
    ops::{Bound, RangeBounds as _},
    sync::Arc,
};

use super::{Key, KeyBytes, KeyRange, Order, Record, Table, Write};

/// Bytes of records, with what they take in memory, at which a layer is to be written into the tables. Few where tests run, so
/// that it happens in them.
const LAYER_BYTES_MAX: usize = if cfg!(debug_assertions) { 64 * 1024 } else { 48 * 1024 * 1024 };
/// Bytes of the log at which it is: they are read again at a start.
const LOG_BYTES_MAX: usize = 96 * 1024 * 1024;
/// What an entry takes beside its key and its value.
const ENTRY_BYTES: usize = 160;

struct Latest {
    /// `None`: it is deleted.
    record: Option<Record>,
    /// The tables have nothing under this key, nor has an older layer.
    is_new: bool,
}

/// Records in the order of their keys. `None`: deleted.
type Found<'a> = Box<dyn Iterator<Item = Result<(KeyBytes, Option<Record>), Infallible>> + 'a>;
type InOrder<'a> = Box<dyn DoubleEndedIterator<Item = (&'a KeyBytes, &'a Latest)> + 'a>;

/// What is pending of a table.
enum Entries {
    Ordered(BTreeMap<KeyBytes, Latest>),
    /// Of a table that is read key by key: in no order until somebody asks for one, which takes a sort.
    ByKey(HashMap<KeyBytes, Latest, foldhash::quality::RandomState>),
}

impl Entries {
    /// With room for so many.
    fn of(table: Table, room: usize) -> Self {
        use Table as T;
        match table {
            T::Tasks | T::Handoffs | T::Messages | T::Envelopes => {
                Self::ByKey(HashMap::with_capacity_and_hasher(room, foldhash::quality::RandomState::default()))
            }
            _ => Self::Ordered(BTreeMap::new()),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Ordered(entries) => entries.len(),
            Self::ByKey(entries) => entries.len(),
        }
    }

    fn get(&self, key: &KeyBytes) -> Option<&Latest> {
        match self {
            Self::Ordered(entries) => entries.get(key),
            Self::ByKey(entries) => entries.get(key),
        }
    }

    /// Takes in a newer version. Returns how many bytes that adds, and how many it frees.
    fn put(&mut self, key: KeyBytes, latest: Latest) -> (usize, usize) {
        let bytes = ENTRY_BYTES + key.len();
        let bytes = |record: &Option<Record>| bytes + record.as_ref().map_or(0, |record| record.value.len());
        let added = bytes(&latest.record);
        macro_rules! put {
            ($entries:expr, $kind:ident) => {
                match $entries.entry(key) {
                    $kind::Entry::Vacant(entry) => {
                        entry.insert(latest);
                        (added, 0)
                    }
                    // What is new and removed before the tables have it leaves nothing.
                    $kind::Entry::Occupied(entry) if latest.record.is_none() && entry.get().is_new => {
                        (0, bytes(&entry.remove().record))
                    }
                    $kind::Entry::Occupied(mut entry) => {
                        (added, bytes(&std::mem::replace(&mut entry.get_mut().record, latest.record)))
                    }
                }
            };
        }
        match self {
            Self::Ordered(entries) => put!(entries, btree_map),
            Self::ByKey(entries) => put!(entries, hash_map),
        }
    }

    /// Those of a range that is not empty, in the order of their keys.
    fn range(&self, range: &KeyRange) -> InOrder<'_> {
        match self {
            Self::Ordered(entries) => Box::new(entries.range(range.clone())),
            Self::ByKey(entries) => {
                // Most keys differ in their first bytes, which lie side by side here.
                let first = |key: &KeyBytes| {
                    let mut first = [0; 8];
                    let length = key.len().min(8);
                    first[..length].copy_from_slice(&key[..length]);
                    u64::from_be_bytes(first)
                };
                let in_range = entries.iter().filter(|(key, _)| range.contains(*key));
                let mut sorted: Vec<_> = in_range.map(|(key, latest)| (first(key), key, latest)).collect();
                sorted.sort_unstable_by(|one, other| (one.0, one.1).cmp(&(other.0, other.1)));
                Box::new(sorted.into_iter().map(|(_, key, latest)| (key, latest)))
            }
        }
    }
}

/// The newest versions of what some groups, one after the other, have written.
pub(super) struct Layer {
    tables: [Entries; Table::ALL.len()],
    bytes: usize,
    log_bytes: usize,
    /// The first group whose writes it has.
    first_group: Option<u64>,
}

impl Default for Layer {
    fn default() -> Self {
        Self { tables: Table::ALL.map(|table| Entries::of(table, 0)), bytes: 0, log_bytes: 0, first_group: None }
    }
}

impl Layer {
    /// An empty layer, with room for as much as this one has.
    fn next(&self) -> Self {
        let tables = Table::ALL.map(|table| Entries::of(table, self.tables[table as usize].len()));
        Self { tables, bytes: 0, log_bytes: 0, first_group: None }
    }

    fn put(&mut self, Key { table, key }: Key, record: Option<Record>, is_new: bool) {
        let (added, freed) = self.tables[table as usize].put(key, Latest { record, is_new });
        self.bytes = self.bytes + added - freed;
    }

    fn wrote(&mut self, group: u64, log_bytes: usize) {
        self.log_bytes += log_bytes;
        self.first_group.get_or_insert(group);
    }

    /// How many records it has, deleted ones among them.
    pub(super) fn len(&self) -> usize {
        self.tables.iter().map(Entries::len).sum()
    }

    /// Those of a table, key by key. `None`: it is deleted.
    pub(super) fn records(&self, table: Table) -> impl Iterator<Item = (&KeyBytes, Option<&Record>)> {
        self.tables[table as usize]
            .range(&(Bound::Unbounded, Bound::Unbounded))
            .map(|(key, latest)| (key, latest.record.as_ref()))
    }

    fn range(&self, table: Table, range: &KeyRange, order: Order) -> Found<'_> {
        if is_empty(range) {
            return Box::new(std::iter::empty());
        }
        let found = self.tables[table as usize].range(range);
        let found = found.map(|(key, latest)| Ok((key.clone(), latest.record.clone())));
        match order {
            Order::Ascending => Box::new(found),
            Order::Descending => Box::new(found.rev()),
        }
    }
}

/// Whether no key can be in it; a `BTreeMap` does not take such a range.
fn is_empty((start, end): &KeyRange) -> bool {
    match (start, end) {
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
        (Bound::Included(start), Bound::Included(end)) => start > end,
        (Bound::Included(start) | Bound::Excluded(start), Bound::Included(end) | Bound::Excluded(end)) => start >= end,
    }
}

/// Two sources in the same order as one. Where both have a key, the newer one counts.
pub(super) fn layered<V, E>(
    newer: impl Iterator<Item = Result<(KeyBytes, V), E>>,
    older: impl Iterator<Item = Result<(KeyBytes, V), E>>,
    order: Order,
) -> impl Iterator<Item = Result<(KeyBytes, V), E>> {
    let (mut newer, mut older) = (newer.peekable(), older.peekable());
    std::iter::from_fn(move || {
        let first = match (newer.peek(), older.peek()) {
            (Some(Err(_)), _) | (_, None) => Ordering::Less,
            (None, _) | (_, Some(Err(_))) => Ordering::Greater,
            (Some(Ok((newer, _))), Some(Ok((older, _)))) if order == Order::Ascending => newer.cmp(older),
            (Some(Ok((newer, _))), Some(Ok((older, _)))) => older.cmp(newer),
        };
        match first {
            Ordering::Less => newer.next(),
            Ordering::Greater => older.next(),
            Ordering::Equal => {
                older.next();
                newer.next()
            }
        }
    })
}

/// The layer that is written to, and perhaps an older one that is being written into the tables.
#[derive(Default)]
pub(super) struct Pending {
    young: Layer,
    settling: Option<Arc<Layer>>,
}

impl Pending {
    /// What is pending for a key; `Some(None)`: it is deleted; `None`: the tables know.
    pub(super) fn get(&self, key: &Key) -> Option<&Option<Record>> {
        let layers = [Some(&self.young), self.settling.as_deref()];
        let mut found = layers.into_iter().flatten().filter_map(|layer| layer.tables[key.table as usize].get(&key.key));
        found.next().map(|latest| &latest.record)
    }

    /// What is pending in a range: as much as can matter to one who takes `limit` records, deleted ones not counted.
    pub(super) fn range(
        &self,
        table: Table,
        range: &KeyRange,
        order: Order,
        limit: usize,
    ) -> Vec<(KeyBytes, Option<Record>)> {
        let young = self.young.range(table, range, order);
        let settling: Found<'_> = match &self.settling {
            Some(layer) => layer.range(table, range, order),
            None => Box::new(std::iter::empty()),
        };
        let mut records = 0;
        let is_enough = |(_, record): &(KeyBytes, Option<Record>)| {
            let is_enough = records >= limit;
            records += usize::from(record.is_some());
            !is_enough
        };
        layered(young, settling, order)
            .map(|found| found.unwrap_or_else(|never| match never {}))
            .take_while(is_enough)
            .collect()
    }

    /// Takes in a group that is on disk.
    pub(super) fn committed(&mut self, group: u64, writes: Vec<Write>, log_bytes: usize) {
        self.young.wrote(group, log_bytes);
        writes.into_iter().for_each(|Write { key, record, is_new }| self.young.put(key, record, is_new));
    }

    /// Takes in a group that was found on disk. Some of it may be in the tables already.
    pub(super) fn found(&mut self, group: u64, writes: Vec<(Key, Option<Record>)>, log_bytes: usize) {
        self.young.wrote(group, log_bytes);
        writes.into_iter().for_each(|(key, record)| self.young.put(key, record, false));
    }

    /// Whether it is time to write the young layer into the tables.
    pub(super) fn is_full(&self) -> bool {
        self.fullness() >= 1.0
    }

    /// How much of the young layer is used, 1 when it is full.
    pub(super) fn fullness(&self) -> f64 {
        let part = |bytes: usize, most: usize| bytes as f64 / most as f64;
        part(self.young.bytes, LAYER_BYTES_MAX).max(part(self.young.log_bytes, LOG_BYTES_MAX))
    }

    /// The first group of which the young layer has anything.
    pub(super) fn first_group(&self) -> Option<u64> {
        self.young.first_group
    }

    /// Begins to write the young layer into the tables. Nothing else may be settling.
    pub(super) fn settle(&mut self) -> Arc<Layer> {
        debug_assert!(self.settling.is_none(), "one at a time");
        let next = self.young.next();
        let layer = Arc::new(std::mem::replace(&mut self.young, next));
        self.settling = Some(layer.clone());
        layer
    }

    /// The tables have all of the layer that was settling.
    pub(super) fn settled(&mut self) {
        self.settling = None;
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn write(key: &'static str, record: Option<u64>, is_new: bool) -> Write {
        let record = record.map(|revision| Record { revision, value: Bytes::from_static(b"value") });
        Write { key: Key { table: Table::Mailbox, key: key.into() }, record, is_new }
    }

    fn commit(pending: &mut Pending, group: u64, writes: &[Write]) {
        pending.committed(group, writes.to_vec(), 100);
    }

    fn revision(pending: &Pending, key: &'static str) -> Option<Option<u64>> {
        let found = pending.get(&write(key, None, false).key);
        found.map(|record| record.as_ref().map(|record| record.revision))
    }

    fn scanned(pending: &Pending, order: Order, limit: usize) -> Vec<(String, Option<u64>)> {
        let found = pending.range(Table::Mailbox, &(Bound::Unbounded, Bound::Unbounded), order, limit);
        let shown = |(key, record): (KeyBytes, Option<Record>)| {
            (String::from_utf8(key.to_vec()).unwrap(), record.map(|record| record.revision))
        };
        found.into_iter().map(shown).collect()
    }

    #[test]
    fn what_is_new_and_removed_before_it_is_settled_leaves_nothing() {
        let mut pending = Pending::default();
        commit(&mut pending, 1, &[write("a", Some(1), true), write("b", Some(1), false)]);
        commit(&mut pending, 2, &[write("a", Some(2), false), write("b", Some(2), false)]);
        commit(&mut pending, 3, &[write("a", None, false), write("b", None, false)]);
        assert_eq!((revision(&pending, "a"), revision(&pending, "b")), (None, Some(None)));
        let layer = pending.settle();
        let left: Vec<_> = layer.records(Table::Mailbox).map(|(key, record)| (&key[..], record)).collect();
        assert_eq!(left, [(&b"b"[..], None)]);
    }

    #[test]
    fn a_removal_is_not_forgotten_because_the_key_is_used_again() {
        let mut pending = Pending::default();
        commit(&mut pending, 1, &[write("in the tables", None, false)]);
        commit(&mut pending, 2, &[write("in the tables", Some(1), true)]);
        commit(&mut pending, 3, &[write("in the tables", None, false)]);
        assert_eq!(revision(&pending, "in the tables"), Some(None));
    }

    #[test]
    fn what_was_found_on_disk_may_be_in_the_tables_already() {
        let mut pending = Pending::default();
        pending.found(1, vec![(write("a", None, false).key, Some(Record { revision: 1, value: Bytes::new() }))], 100);
        commit(&mut pending, 2, &[write("a", None, false)]);
        assert_eq!(revision(&pending, "a"), Some(None));
    }

    #[test]
    fn the_young_layer_hides_the_one_that_is_settling() {
        let mut pending = Pending::default();
        commit(&mut pending, 1, &["a", "b", "c", "d"].map(|key| write(key, Some(1), true)));
        pending.settle();
        commit(&mut pending, 2, &[write("a", Some(2), false), write("b", None, false), write("e", Some(1), true)]);
        assert_eq!(revision(&pending, "a"), Some(Some(2)));
        assert_eq!(revision(&pending, "b"), Some(None));
        assert_eq!(revision(&pending, "c"), Some(Some(1)));
        let all = [("a", Some(2)), ("b", None), ("c", Some(1)), ("d", Some(1)), ("e", Some(1))];
        let mut all = all.map(|(key, revision)| (key.to_owned(), revision)).to_vec();
        assert_eq!(scanned(&pending, Order::Ascending, 9), all);
        assert_eq!(scanned(&pending, Order::Ascending, 2), all[..3]);
        all.reverse();
        assert_eq!(scanned(&pending, Order::Descending, 3), all[..3]);
        pending.settled();
        assert_eq!(
            scanned(&pending, Order::Ascending, 9),
            [("a".into(), Some(2)), ("b".into(), None), ("e".into(), Some(1))]
        );
    }

    #[test]
    fn it_counts_what_it_holds_and_what_is_to_be_read_again_at_a_start() {
        let mut pending = Pending::default();
        for round in 1..=100 {
            commit(&mut pending, 2 * round, &[write("a", Some(1), true)]);
            commit(&mut pending, 2 * round + 1, &[write("a", None, false)]);
        }
        assert_eq!((pending.young.bytes, pending.young.log_bytes), (0, 20_000));
        commit(&mut pending, 300, &[write("a", Some(1), true)]);
        assert_eq!(pending.young.bytes, ENTRY_BYTES + 1 + 5);
        assert!(!pending.is_full());
        pending.found(301, vec![], LOG_BYTES_MAX);
        assert!(pending.is_full());
    }
}

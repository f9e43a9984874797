//! The memtable: records that are committed and not yet in their tables.
//!
//! Owns which version of a pending record is the newest. A store writes a group into its log at once and the records
//! into their tables later, many at a time and each once. This saves work, because a broker soon overwrites or removes
//! most records. Must not know the layout on disk.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, HashMap, btree_map, hash_map},
    convert::Infallible,
    ops::{Bound, RangeBounds as _},
    sync::Arc,
};

use super::{Key, KeyBytes, KeyRange, Order, Record, Table, Write};

/// The bytes of records, with their overhead in memory, at which a layer is written into the tables. Small in debug
/// builds, so that tests write layers.
const LAYER_BYTES_MAX: usize = if cfg!(debug_assertions) { 64 * 1024 } else { 48 * 1024 * 1024 };
/// The bytes of the log at which a layer is written into the tables. Bounds what a start has to read again.
const LOG_BYTES_MAX: usize = 96 * 1024 * 1024;
/// The memory of an entry without its key and its value, in bytes.
const ENTRY_BYTES: usize = 160;

struct Latest {
    /// `None`: the record is deleted.
    record: Option<Record>,
    /// Neither the tables nor an older layer have this key.
    is_new: bool,
}

/// Records in the order of their keys. `None`: the record is deleted.
type Found<'a> = Box<dyn Iterator<Item = Result<(KeyBytes, Option<Record>), Infallible>> + 'a>;
type InOrder<'a> = Box<dyn DoubleEndedIterator<Item = (&'a KeyBytes, &'a Latest)> + 'a>;

/// The pending records of one table.
enum Entries {
    Ordered(BTreeMap<KeyBytes, Latest>),
    /// For a table with reads by key. Unordered: a scan sorts the keys.
    ByKey(HashMap<KeyBytes, Latest, foldhash::quality::RandomState>),
}

impl Entries {
    /// An empty map with capacity for `room` entries, where the kind of map has a capacity.
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

    /// Stores a newer version. Returns the bytes added and the bytes freed.
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
                    // A record created and removed before the tables have it leaves no entry.
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

    /// The entries of a range, in the order of their keys. The range must not be empty.
    fn range(&self, range: &KeyRange) -> InOrder<'_> {
        match self {
            Self::Ordered(entries) => Box::new(entries.range(range.clone())),
            Self::ByKey(entries) => {
                // Most keys differ in their first 8 bytes; comparing these as a number avoids following pointers.
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

/// The newest versions of the records that a sequence of groups wrote.
pub(super) struct Layer {
    tables: [Entries; Table::ALL.len()],
    bytes: usize,
    log_bytes: usize,
    /// The first group whose writes it holds.
    first_group: Option<u64>,
}

impl Default for Layer {
    fn default() -> Self {
        Self { tables: Table::ALL.map(|table| Entries::of(table, 0)), bytes: 0, log_bytes: 0, first_group: None }
    }
}

impl Layer {
    /// An empty layer with the capacity of this one.
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

    /// The number of entries, deleted records among them.
    pub(super) fn len(&self) -> usize {
        self.tables.iter().map(Entries::len).sum()
    }

    /// The entries of a table, in the order of their keys. `None`: the record is deleted.
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

/// Whether a range contains no key. `BTreeMap::range` panics on such a range.
fn is_empty((start, end): &KeyRange) -> bool {
    match (start, end) {
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
        (Bound::Included(start), Bound::Included(end)) => start > end,
        (Bound::Included(start) | Bound::Excluded(start), Bound::Included(end) | Bound::Excluded(end)) => start >= end,
    }
}

/// Merges two sources of the same order. Where both have a key, the newer source's entry counts.
pub(super) fn layered<V, E>(
    newer: impl Iterator<Item = Result<(KeyBytes, V), E>>,
    older: impl Iterator<Item = Result<(KeyBytes, V), E>>,
    order: Order,
) -> impl Iterator<Item = Result<(KeyBytes, V), E>> {
    let (mut newer, mut older) = (newer.peekable(), older.peekable());
    std::iter::from_fn(move || {
        let first = match (newer.peek(), older.peek()) {
            // An error comes first: no key is known that it could be ordered by.
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

/// The active layer, which takes writes, and the immutable one being written into the tables, if any.
#[derive(Default)]
pub(super) struct Pending {
    young: Layer,
    settling: Option<Arc<Layer>>,
}

impl Pending {
    /// The pending version of a record. `Some(None)`: the record is deleted; `None`: not pending, so the tables decide.
    pub(super) fn get(&self, key: &Key) -> Option<&Option<Record>> {
        let layers = [Some(&self.young), self.settling.as_deref()];
        let mut found = layers.into_iter().flatten().filter_map(|layer| layer.tables[key.table as usize].get(&key.key));
        found.next().map(|latest| &latest.record)
    }

    /// The pending entries of a range, up to the first `limit` records. Deleted ones are included and not counted.
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

    /// Adds a group that was just committed.
    pub(super) fn committed(&mut self, group: u64, writes: Vec<Write>, log_bytes: usize) {
        self.young.wrote(group, log_bytes);
        writes.into_iter().for_each(|Write { key, record, is_new }| self.young.put(key, record, is_new));
    }

    /// Adds a group that was read from the log at start. The tables may already have some of its records.
    pub(super) fn found(&mut self, group: u64, writes: Vec<(Key, Option<Record>)>, log_bytes: usize) {
        self.young.wrote(group, log_bytes);
        writes.into_iter().for_each(|(key, record)| self.young.put(key, record, false));
    }

    /// Whether the active layer is due to be written into the tables.
    pub(super) fn is_full(&self) -> bool {
        self.fullness() >= 1.0
    }

    /// The used fraction of the active layer; 1 for a full one.
    pub(super) fn fullness(&self) -> f64 {
        let part = |bytes: usize, most: usize| bytes as f64 / most as f64;
        part(self.young.bytes, LAYER_BYTES_MAX).max(part(self.young.log_bytes, LOG_BYTES_MAX))
    }

    /// The first group with writes in the active layer.
    pub(super) fn first_group(&self) -> Option<u64> {
        self.young.first_group
    }

    /// Makes the active layer immutable and returns it, to be written into the tables. No other layer may be immutable.
    pub(super) fn settle(&mut self) -> Arc<Layer> {
        debug_assert!(self.settling.is_none(), "one at a time");
        let next = self.young.next();
        let layer = Arc::new(std::mem::replace(&mut self.young, next));
        self.settling = Some(layer.clone());
        layer
    }

    /// Drops the immutable layer: the tables have all of it.
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

//! A store in memory, for tests and for simulated time. Its records last as long as the value.

use std::{collections::BTreeMap, ops::Bound, sync::RwLock};

use super::{
    Change, CommitError, Conflict, Decision, Key, KeyBytes, KeyRange, Order, ReadError, Record, Store, Table, decide,
};

/// A store in memory.
#[derive(Debug, Default)]
pub struct MemoryStore {
    records: RwLock<BTreeMap<Key, Record>>,
}

impl Store for MemoryStore {
    fn get(&self, key: &Key) -> Result<Option<Record>, ReadError> {
        Ok(self.records.read().expect("no reader panics").get(key).cloned())
    }

    fn get_in_memory(&self, key: &Key) -> Option<Option<Record>> {
        self.get(key).ok()
    }

    fn scan(
        &self,
        table: Table,
        (start, end): KeyRange,
        order: Order,
        limit: usize,
    ) -> Result<Vec<(KeyBytes, Record)>, ReadError> {
        let of_table = |key: KeyBytes| Key { table, key };
        let start = match start.map(of_table) {
            Bound::Unbounded => Bound::Included(of_table(KeyBytes::default())),
            start => start,
        };
        let end = end.map(of_table);
        let is_before_end = |key: &Key| match &end {
            Bound::Unbounded => key.table == table,
            Bound::Included(end) => key <= end,
            Bound::Excluded(end) => key < end,
        };
        let records = self.records.read().expect("no reader panics");
        let in_range = records.range((start, Bound::Unbounded)).take_while(|(key, _)| is_before_end(key));
        let found = in_range.map(|(key, record)| (key.key.clone(), record.clone()));
        Ok(match order {
            Order::Ascending => found.take(limit).collect(),
            // The end of the range is found by walking from its start, so a descending scan collects all of it.
            Order::Descending => {
                let mut all: Vec<_> = found.collect();
                all.reverse();
                all.truncate(limit);
                all
            }
        })
    }

    fn size_bytes(&self) -> Option<u64> {
        let records = self.records.read().expect("no writer panics");
        Some(records.iter().map(|(key, record)| (key.key.len() + record.value.len()) as u64).sum())
    }

    fn commit(&self, group: Vec<Change>) -> Result<Vec<Result<(), Conflict>>, CommitError> {
        let mut records = self.records.write().expect("no writer panics");
        let revision_of = |key: &Key| Ok::<_, CommitError>(records.get(key).map(|record| record.revision));
        let Decision { outcomes, writes } = decide(group, revision_of)?;
        for write in writes {
            // The engine on disk trusts this promise, and an old version may come back if it is wrong. Tests find it
            // out here.
            assert!(!write.is_new || !records.contains_key(&write.key), "{:?} is said to be new", write.key);
            match write.record {
                Some(record) => records.insert(write.key, record),
                None => records.remove(&write.key),
            };
        }
        Ok(outcomes)
    }
}

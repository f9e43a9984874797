//! A store in memory for tests, with reads that wait like those of a slow disk.

use std::sync::{Condvar, Mutex};

use super::{
    Change, CommitError, Conflict, Key, KeyBytes, KeyRange, MemoryStore, Order, ReadError, Record, Store, Table,
};

/// A [`MemoryStore`] in which reads of chosen records wait until the gate is opened.
pub struct GatedStore {
    store: MemoryStore,
    waits: fn(&Key) -> bool,
    is_open: Mutex<bool>,
    opened: Condvar,
}

impl GatedStore {
    /// A closed gate for the records that `waits` selects.
    pub fn new(waits: fn(&Key) -> bool) -> Self {
        Self { store: MemoryStore::default(), waits, is_open: Mutex::new(false), opened: Condvar::new() }
    }

    /// Opens the gate: all waiting reads continue.
    pub fn open(&self) {
        *self.is_open.lock().unwrap() = true;
        self.opened.notify_all();
    }
}

impl Store for GatedStore {
    fn get(&self, key: &Key) -> Result<Option<Record>, ReadError> {
        if (self.waits)(key) {
            drop(self.opened.wait_while(self.is_open.lock().unwrap(), |is_open| !*is_open).unwrap());
        }
        self.store.get(key)
    }

    fn get_in_memory(&self, key: &Key) -> Option<Option<Record>> {
        if (self.waits)(key) { None } else { self.store.get_in_memory(key) }
    }

    fn scan(
        &self,
        table: Table,
        range: KeyRange,
        order: Order,
        limit: usize,
    ) -> Result<Vec<(KeyBytes, Record)>, ReadError> {
        self.store.scan(table, range, order, limit)
    }

    fn commit(&self, group: Vec<Change>) -> Result<Vec<Result<(), Conflict>>, CommitError> {
        self.store.commit(group)
    }

    fn size_bytes(&self) -> Option<u64> {
        self.store.size_bytes()
    }
}

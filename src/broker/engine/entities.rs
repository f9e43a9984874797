//! Tasks and handoffs as they are now, decoded: each is looked at again soon, by the next message about it.
//!
//! Owns nothing that counts: all of it is stored, or in the batch in hand. What is computed from it is applied only if the
//! store has the very revisions it was computed from; should it ever not, this is emptied.

use std::sync::Arc;

use quick_cache::unsync::Cache;

use crate::{
    records::{HandoffRecord, TaskRecord},
    store::{Key, KeyBytes, Table},
};

/// How many of each. A task takes about a KiB, a handoff a few.
const RECORDS_MAX: usize = 2048;

/// A record with its revision.
#[derive(Debug)]
pub(super) struct Stored<T> {
    pub(super) value: Arc<T>,
    pub(super) revision: u64,
}

impl<T> Clone for Stored<T> {
    fn clone(&self) -> Self {
        Self { value: self.value.clone(), revision: self.revision }
    }
}

/// Records of one table, by their keys.
pub(super) type Versions<T> = Cache<KeyBytes, Stored<T>>;

/// The latest versions, of the store or the batch in hand.
pub(super) struct EntityCache {
    pub(super) tasks: Versions<TaskRecord>,
    pub(super) handoffs: Versions<HandoffRecord>,
}

impl Default for EntityCache {
    fn default() -> Self {
        Self { tasks: Cache::new(RECORDS_MAX), handoffs: Cache::new(RECORDS_MAX) }
    }
}

impl EntityCache {
    /// Another version is written, or none is left.
    pub(super) fn forget(&mut self, key: &Key) {
        match key.table {
            Table::Tasks => drop(self.tasks.remove(&key.key)),
            Table::Handoffs => drop(self.handoffs.remove(&key.key)),
            _ => {}
        }
    }
}

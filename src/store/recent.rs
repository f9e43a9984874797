//! A cache of records read from the tables: a broker often rereads a record that it has just read.
//!
//! Owns a bounded set of copies of records as the tables have them. Pending records take precedence. The cache is
//! cleared each time pending records are written into the tables. Must not know the layout on disk.

use super::{Key, KeyMap, Record, Table};

/// The bytes of one generation. The cache holds at most two generations.
const GENERATION_BYTES_MAX: usize = 8 * 1024 * 1024;
/// The memory of an entry without its key and its value, in bytes.
const ENTRY_BYTES: usize = 160;

type Found = Option<Record>;

/// The copies, in two generations. When the young generation is full, it replaces the old one.
#[derive(Debug, Default)]
pub(super) struct Recent {
    young: KeyMap<Found>,
    old: KeyMap<Found>,
    young_bytes: usize,
    /// The number of times that the tables changed.
    changes: u64,
}

impl Recent {
    /// Whether the cache holds records of this table: a table with reads by key soon after writes.
    pub(super) const fn keeps(table: Table) -> bool {
        use Table as T;
        matches!(table, T::Meta | T::Agents | T::Tasks | T::Handoffs | T::Messages | T::Envelopes)
    }

    /// The cached record; `Some(None)`: the record is known not to exist; `None`: not cached.
    pub(super) fn get(&self, key: &Key) -> Option<&Found> {
        self.young.get(key).or_else(|| self.old.get(key))
    }

    /// The current count of table changes, for [`Self::learn`].
    pub(super) fn moment(&self) -> u64 {
        self.changes
    }

    /// Caches the result of a read that began at `since`, unless the tables have changed after that.
    pub(super) fn learn(&mut self, since: u64, key: &Key, found: &Found) {
        if self.changes == since {
            self.put(key.clone(), found.clone());
        }
    }

    /// Clears the cache after a change of the tables. Returns the old content, so that the caller can drop it without
    /// the lock.
    #[must_use]
    pub(super) fn forget(&mut self) -> Self {
        std::mem::replace(self, Self { changes: self.changes + 1, ..Self::default() })
    }

    fn put(&mut self, key: Key, found: Found) {
        let bytes = ENTRY_BYTES + key.key.len() + found.as_ref().map_or(0, |record| record.value.len());
        if self.young_bytes + bytes > GENERATION_BYTES_MAX {
            // Swapping reuses the old generation's memory: a growing map would be rehashed again and again.
            std::mem::swap(&mut self.old, &mut self.young);
            self.young.clear();
            self.young_bytes = 0;
        }
        // A replaced entry is counted a second time, so the sum is an upper bound.
        self.young_bytes += bytes;
        self.young.insert(key, found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &'static str) -> Key {
        Key { table: Table::Tasks, key: name.into() }
    }

    fn record(revision: u64, bytes: usize) -> Found {
        Some(Record { revision, value: vec![0; bytes].into() })
    }

    #[test]
    fn what_was_read_before_the_tables_were_changed_is_not_kept() {
        let mut recent = Recent::default();
        let since = recent.moment();
        recent.learn(since, &key("a"), &record(1, 1));
        assert_eq!(recent.get(&key("a")), Some(&record(1, 1)));
        drop(recent.forget());
        recent.learn(since, &key("b"), &record(1, 1));
        assert_eq!((recent.get(&key("a")), recent.get(&key("b"))), (None, None));
        recent.learn(recent.moment(), &key("b"), &None);
        assert_eq!(recent.get(&key("b")), Some(&None));
    }

    #[test]
    fn it_holds_no_more_than_two_generations() {
        let mut recent = Recent::default();
        for number in 0..100_000_u32 {
            let key = Key { table: Table::Envelopes, key: (&number.to_be_bytes()).into() };
            recent.learn(recent.moment(), &key, &record(1, 2000));
        }
        let held: usize =
            recent.young.iter().chain(&recent.old).map(|(_, found)| found.as_ref().unwrap().value.len()).sum();
        assert!((GENERATION_BYTES_MAX / 2..2 * GENERATION_BYTES_MAX).contains(&held), "{held}");
    }
}

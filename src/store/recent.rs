//! What was read last from the tables, in memory: a broker mostly reads again what it has just read.
//!
//! Owns a bounded copy of records as the tables have them. What is pending counts before it; and when pending records have
//! been written into the tables, all of it is forgotten. Must not know where the records lie.

use super::{Key, KeyMap, Record, Table};

/// Bytes of a generation: the copies are at most twice as large.
const GENERATION_BYTES_MAX: usize = 8 * 1024 * 1024;
/// What an entry takes beside its key and its value.
const ENTRY_BYTES: usize = 160;

type Found = Option<Record>;

/// The copies, in two generations: when the young one is full it becomes the old one, and the old one is forgotten.
#[derive(Debug, Default)]
pub(super) struct Recent {
    young: KeyMap<Found>,
    old: KeyMap<Found>,
    young_bytes: usize,
    /// How often the tables were changed.
    changes: u64,
}

impl Recent {
    /// Whether records of this table are looked up one by one, soon after they were written.
    pub(super) const fn keeps(table: Table) -> bool {
        use Table as T;
        matches!(table, T::Meta | T::Agents | T::Tasks | T::Handoffs | T::Messages | T::Envelopes)
    }

    /// The record, or that there is none, if that is known here.
    pub(super) fn get(&self, key: &Key) -> Option<&Found> {
        self.young.get(key).or_else(|| self.old.get(key))
    }

    /// Names the present moment, for [`Self::learn`].
    pub(super) fn moment(&self) -> u64 {
        self.changes
    }

    /// Takes in what was read since that moment, unless the tables were changed meanwhile.
    pub(super) fn learn(&mut self, since: u64, key: &Key, found: &Found) {
        if self.changes == since {
            self.put(key.clone(), found.clone());
        }
    }

    /// The tables were changed. Returns what is known no more, to be dropped where nobody waits.
    #[must_use]
    pub(super) fn forget(&mut self) -> Self {
        std::mem::replace(self, Self { changes: self.changes + 1, ..Self::default() })
    }

    fn put(&mut self, key: Key, found: Found) {
        let bytes = ENTRY_BYTES + key.key.len() + found.as_ref().map_or(0, |record| record.value.len());
        if self.young_bytes + bytes > GENERATION_BYTES_MAX {
            // The room of the old one is used again: a map that grows anew is moved again and again.
            std::mem::swap(&mut self.old, &mut self.young);
            self.young.clear();
            self.young_bytes = 0;
        }
        // An entry that is replaced counts again, so that the bound is never exceeded.
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

//! What was written or read last, in memory: a broker mostly reads again what it has just written.
//!
//! Owns a bounded copy of records. Whoever commits is the only one who writes, so that a copy cannot grow old: it is
//! replaced in the same commit. Must not know where the records lie.

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
    /// How often something was committed.
    commits: u64,
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
    pub(super) fn commits(&self) -> u64 {
        self.commits
    }

    /// Takes in what was committed.
    pub(super) fn committed<'a>(&mut self, writes: impl IntoIterator<Item = (&'a Key, &'a Found)>) {
        self.commits += 1;
        for (key, found) in writes {
            if Self::keeps(key.table) {
                self.put(key.clone(), found.clone());
            }
        }
    }

    /// Takes in what was read since that moment, unless something was committed meanwhile.
    pub(super) fn learn(&mut self, since: u64, key: &Key, found: &Found) {
        if self.commits == since && Self::keeps(key.table) {
            self.put(key.clone(), found.clone());
        }
    }

    /// Begins again with nothing: nobody knows what is stored.
    pub(super) fn forget(&mut self) {
        *self = Self { commits: self.commits + 1, ..Self::default() };
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
    use bytes::Bytes;

    use super::*;

    fn key(name: &'static str) -> Key {
        Key { table: Table::Tasks, key: Bytes::from_static(name.as_bytes()) }
    }

    fn record(revision: u64, bytes: usize) -> Found {
        Some(Record { revision, value: vec![0; bytes].into() })
    }

    #[test]
    fn what_was_read_before_a_commit_does_not_hide_it() {
        let mut recent = Recent::default();
        let since = recent.commits();
        recent.committed([(&key("a"), &record(2, 1))]);
        recent.learn(since, &key("a"), &record(1, 1));
        assert_eq!(recent.get(&key("a")), Some(&record(2, 1)));
        let since = recent.commits();
        recent.learn(since, &key("b"), &None);
        assert_eq!(recent.get(&key("b")), Some(&None));
    }

    #[test]
    fn an_old_version_never_comes_back_when_generations_change() {
        let mut recent = Recent::default();
        recent.committed([(&key("a"), &record(1, 1))]);
        recent.committed([(&key("big"), &record(1, GENERATION_BYTES_MAX / 2))]);
        recent.committed([(&key("bigger"), &record(1, GENERATION_BYTES_MAX / 2))]);
        recent.committed([(&key("a"), &record(2, 1))]);
        assert_eq!(recent.get(&key("a")), Some(&record(2, 1)));
        recent.committed([(&key("big"), &record(2, GENERATION_BYTES_MAX / 2))]);
        assert_eq!(recent.get(&key("a")), Some(&record(2, 1)));
        recent.committed([(&key("bigger"), &record(2, GENERATION_BYTES_MAX / 2))]);
        recent.committed([(&key("big"), &record(3, GENERATION_BYTES_MAX / 2))]);
        assert_eq!(recent.get(&key("a")), None, "it is forgotten, and not at its first revision again");
    }

    #[test]
    fn it_holds_no_more_than_two_generations() {
        let mut recent = Recent::default();
        for number in 0..100_000_u32 {
            let key = Key { table: Table::Envelopes, key: number.to_be_bytes().to_vec().into() };
            recent.committed([(&key, &record(1, 2000))]);
        }
        let held: usize =
            recent.young.iter().chain(&recent.old).map(|(_, found)| found.as_ref().unwrap().value.len()).sum();
        assert!((GENERATION_BYTES_MAX / 2..2 * GENERATION_BYTES_MAX).contains(&held), "{held}");
    }
}

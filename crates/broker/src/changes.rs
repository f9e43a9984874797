//! The latest changes of handoffs, in memory for all readers.
//!
//! Only the engine adds changes, after their commit. A reader that has fallen behind the changes in memory reads the
//! lists of open and of ended handoffs instead.

use std::{
    collections::BTreeMap,
    ops::Bound::{Excluded, Unbounded},
    sync::RwLock,
};

use tokio::sync::watch;

use crate::ids::{MessageId, TaskId};

/// The most changes in memory, about 100 bytes each.
const KEPT_MAX: usize = 16_384;

/// A change of a handoff.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The place in the order of changes, a sequence of the broker. Each change has another one.
    pub number: u64,
    /// The handoff.
    pub handoff: MessageId,
    /// The task of the handoff.
    pub task: TaskId,
}

/// The latest changes. See the module.
#[derive(Debug, Default)]
pub struct HandoffChanges {
    kept: RwLock<Kept>,
    latest: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Kept {
    /// All changes after this one are in memory.
    since: u64,
    changes: BTreeMap<u64, (MessageId, TaskId)>,
}

impl HandoffChanges {
    /// Begins after a start or a recovery: the store has all changes up to this sequence, and memory has none.
    pub(super) fn begin(&self, last: u64) {
        *self.kept.write().expect("no writer panics") = Kept { since: last, changes: BTreeMap::new() };
        self.latest.send_replace(last);
    }

    /// Adds the changes of a commit.
    pub(super) fn add(&self, changes: Vec<Change>) {
        let Some(last) = changes.iter().map(|change| change.number).max() else { return };
        let mut kept = self.kept.write().expect("no writer panics");
        kept.changes.extend(changes.into_iter().map(|change| (change.number, (change.handoff, change.task))));
        while kept.changes.len() > KEPT_MAX {
            kept.since = kept.changes.pop_first().map_or(kept.since, |(number, _)| number);
        }
        drop(kept);
        self.latest.send_replace(last);
    }

    /// The number of the latest change, and each later one.
    pub fn latest(&self) -> watch::Receiver<u64> {
        self.latest.subscribe()
    }

    /// The handoffs of the latest changes in memory, each once, latest first, at most `limit`. After a start: none.
    pub fn last_changed(&self, limit: usize) -> Vec<MessageId> {
        let kept = self.kept.read().expect("no writer panics");
        let mut latest = Vec::new();
        // One handoff may have many changes, and the lock is held meanwhile.
        for (handoff, _) in kept.changes.values().rev().take(16 * limit) {
            if latest.len() < limit && !latest.contains(handoff) {
                latest.push(*handoff);
            }
        }
        latest
    }

    /// The changes after this one, oldest first, at most `limit`. `None`: memory does not have all of them.
    pub fn after(&self, number: u64, limit: usize) -> Option<Vec<Change>> {
        let kept = self.kept.read().expect("no writer panics");
        let later = kept.changes.range((Excluded(number), Unbounded)).take(limit);
        let change = |(number, (handoff, task)): (&u64, &(MessageId, TaskId))| Change {
            number: *number,
            handoff: *handoff,
            task: task.clone(),
        };
        (number >= kept.since).then(|| later.map(change).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(number: u64) -> Change {
        let id = MessageId::from_bytes(u128::from(number).to_be_bytes());
        Change { number, handoff: id, task: TaskId::parse("task").unwrap() }
    }

    #[test]
    fn the_handoffs_of_the_latest_changes_are_there_once_each() {
        let changes = HandoffChanges::default();
        changes.begin(10);
        changes.add(vec![change(11), change(12), Change { number: 13, ..change(11) }]);
        assert_eq!(changes.last_changed(5), [change(11).handoff, change(12).handoff]);
        assert_eq!(changes.last_changed(1), [change(11).handoff]);
        changes.begin(20);
        assert_eq!(changes.last_changed(5), []);
    }

    #[test]
    fn a_reader_gets_each_later_change_in_order_and_learns_when_memory_lacks_some() {
        let changes = HandoffChanges::default();
        changes.begin(10);
        changes.add(vec![change(12), change(11)]);
        assert_eq!(changes.after(9, 8), None, "those before the start are only in the store");
        assert_eq!(changes.after(10, 8), Some(vec![change(11), change(12)]));
        assert_eq!(changes.after(10, 1), Some(vec![change(11)]));
        assert_eq!(changes.after(12, 8), Some(Vec::new()));
        assert_eq!(*changes.latest().borrow(), 12);
    }

    #[test]
    fn memory_keeps_a_bounded_number_of_changes() {
        let changes = HandoffChanges::default();
        changes.begin(0);
        (1..=KEPT_MAX as u64 + 5).for_each(|number| changes.add(vec![change(number)]));
        assert_eq!(changes.after(4, 8), None);
        assert_eq!(changes.after(5, usize::MAX).unwrap().len(), KEPT_MAX);
    }
}

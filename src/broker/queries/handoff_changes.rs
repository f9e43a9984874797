//! Handoffs in the order of their changes, for watchers.

use std::{ops::Bound, sync::Arc};

use super::{HandoffFilter, View};
use crate::{
    broker::{BrokerError, changes::Change, stored},
    domain::{EntityId, handoff::Handoff},
    ids::{MessageId, TaskId},
    records::{ChangePlace, EntityRecord, List, removed_changes, removed_changes_key},
    store::Order,
};

/// A list that a watcher reads before it follows the changes in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backlog {
    /// The open handoffs, in the order in which they began.
    Open,
    /// The ended handoffs, in the order of their latest changes.
    Ended,
}

/// A part of a backlog.
#[derive(Debug, Clone, PartialEq)]
pub struct BacklogPage {
    /// The handoffs that match and that the caller may see.
    pub handoffs: Vec<Arc<Handoff>>,
    /// The place after which the next part begins. `None`: this was the last part.
    pub next: Option<u64>,
}

impl View<'_> {
    /// The latest change among the handoffs that were removed with their tasks; 0 if none was.
    pub fn removed_handoff_changes(&self) -> Result<u64, BrokerError> {
        Ok(self
            .store
            .get(&removed_changes_key())?
            .map(|record| removed_changes(&record.value))
            .transpose()?
            .unwrap_or(0))
    }

    /// The handoffs of a backlog behind this place that have changed after `changed_after`. Examines at most `limit`.
    /// The place is a sequence for open handoffs, and a change for ended ones.
    pub fn backlog(
        &self,
        backlog: Backlog,
        filter: &HandoffFilter,
        changed_after: u64,
        place: u64,
        limit: usize,
    ) -> Result<BacklogPage, BrokerError> {
        let list = match backlog {
            Backlog::Open => List::open_handoffs(),
            Backlog::Ended => List::changes(),
        };
        let range = (Bound::Excluded(list.key(place)), Bound::Included(list.key(u64::MAX)));
        let found = self.store.scan(list.table, range, Order::Ascending, limit)?;
        let mut handoffs = Vec::new();
        for (_, record) in &found {
            let (handoff, task) = match backlog {
                Backlog::Open => {
                    // Only the ids of the place are used.
                    let place = list.handoff_place(0, &record.value)?;
                    (place.handoff, place.task)
                }
                Backlog::Ended => match ChangePlace::decode(&record.value)? {
                    ChangePlace { task, ended: Some(handoff) } => (handoff, task),
                    ChangePlace { ended: None, .. } => continue,
                },
            };
            handoffs.extend(self.changed_handoff(handoff, task, filter, |changed| changed > changed_after)?);
        }
        let last = found.last().filter(|_| found.len() == limit);
        let next = last.map(|(key, _)| list.number(key)).transpose()?;
        Ok(BacklogPage { handoffs, next })
    }

    /// The handoff of a change, if it matches, the caller may see it, and it has not changed again since: a later change
    /// shows it then.
    pub fn changed(&self, change: &Change, filter: &HandoffFilter) -> Result<Option<Arc<Handoff>>, BrokerError> {
        self.changed_handoff(change.handoff, change.task.clone(), filter, |changed| changed <= change.number)
    }

    fn changed_handoff(
        &self,
        handoff: MessageId,
        task: TaskId,
        filter: &HandoffFilter,
        is_meant: impl Fn(u64) -> bool,
    ) -> Result<Option<Arc<Handoff>>, BrokerError> {
        if filter.task.as_ref().is_some_and(|wanted| *wanted != task) {
            return Ok(None);
        }
        let (id, task) = (EntityId::Handoff(handoff), EntityId::Task(task));
        let stored = stored::entity_in(self.store, &id, &task)?;
        let is_meant =
            stored.as_ref().and_then(EntityRecord::as_handoff).is_some_and(|record| is_meant(record.changed));
        let whole = self.whole_handoff(stored)?.filter(|_| is_meant);
        Ok(whole.filter(|handoff| filter.fits(handoff) && self.access.may_see_handoff(self.caller, handoff)))
    }
}

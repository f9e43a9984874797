//! Handoffs in the order of their changes, for watchers.

use std::{ops::Bound, sync::Arc};

use super::{HandoffFilter, LOOKED_AT_MAX, View};
use crate::{
    BrokerError,
    access::{Purpose, Reach},
    changes::Change,
    domain::{EntityId, handoff::Handoff},
    ids::{MessageId, TaskId},
    records::{ChangePlace, EntityRecord, List, removed_changes, removed_changes_key},
    store::Order,
    stored,
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
    /// The handoffs that match and that the caller may see, with their places.
    pub handoffs: Vec<(u64, Arc<Handoff>)>,
    /// The place after which the next part begins. `None`: this was the last part.
    pub next: Option<u64>,
}

impl View<'_> {
    /// The latest change among the handoffs that were removed with their tasks; 0 if none was. Every caller that may list
    /// handoffs may know it.
    pub fn removed_handoff_changes(&self) -> Result<u64, BrokerError> {
        self.access.reach(self.caller, Purpose::ReadHandoffs)?;
        Ok(self
            .store
            .get(&removed_changes_key())?
            .map(|record| removed_changes(&record.value))
            .transpose()?
            .unwrap_or(0))
    }

    /// The handoffs of a backlog behind this place that have changed after `changed_after`, at most `limit`. The part ends
    /// early after [`LOOKED_AT_MAX`] handoffs. The place is a sequence for open
    /// handoffs, and a change for ended ones.
    pub fn backlog(
        &self,
        backlog: Backlog,
        filter: &HandoffFilter,
        changed_after: u64,
        place: u64,
        limit: usize,
    ) -> Result<BacklogPage, BrokerError> {
        let reach = self.access.reach(self.caller, Purpose::ReadHandoffs)?;
        let list = match backlog {
            Backlog::Open => List::open_handoffs(),
            Backlog::Ended => List::changes(),
        };
        let range = (Bound::Excluded(list.key(place)), Bound::Included(list.key(u64::MAX)));
        let mut page = BacklogPage { handoffs: Vec::new(), next: None };
        for (looked_at, entry) in self.entries(&list, range, Order::Ascending, limit).enumerate() {
            let (number, record) = entry?;
            page.next = Some(number);
            let found = match backlog {
                Backlog::Open => {
                    let place = list.handoff_place(number, &record.value)?;
                    Some((place.handoff, place.task))
                }
                Backlog::Ended => {
                    let ChangePlace { task, ended } = ChangePlace::decode(&record.value)?;
                    ended.map(|handoff| (handoff, task))
                }
            };
            if let Some((handoff, task)) = found {
                let found = self.changed_handoff((handoff, task), filter, reach, |changed| changed > changed_after)?;
                page.handoffs.extend(found.map(|found| (number, found)));
            }
            if page.handoffs.len() == limit || looked_at + 1 == LOOKED_AT_MAX {
                return Ok(page);
            }
        }
        Ok(BacklogPage { next: None, ..page })
    }

    /// The handoff of a change, if it matches, the caller may see it, and it has not changed again since: a later change
    /// shows it then.
    pub fn changed(&self, change: &Change, filter: &HandoffFilter) -> Result<Option<Arc<Handoff>>, BrokerError> {
        let reach = self.access.reach(self.caller, Purpose::ReadHandoffs)?;
        let (handoff, task) = (change.handoff, change.task.clone());
        self.changed_handoff((handoff, task), filter, reach, |changed| changed <= change.number)
    }

    fn changed_handoff(
        &self,
        (handoff, task): (MessageId, TaskId),
        filter: &HandoffFilter,
        reach: Reach<'_>,
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
        // Most handoffs are of other agents. A policy decision about each would cost more than the rest of the watch.
        let is_in_reach = |handoff: &Handoff| match reach {
            Reach::Nothing => false,
            Reach::Own(agent) => {
                let is_for_agent = handoff.submitter.as_deref() == Some(agent.as_str());
                handoff.sender == *agent || handoff.was_offered_to(agent) || is_for_agent
            }
            Reach::Everything => true,
        };
        let is_seen = |handoff: &Handoff| is_in_reach(handoff) && self.access.may_see_handoff(self.caller, handoff);
        Ok(whole.filter(|handoff| filter.fits(handoff) && is_seen(handoff)))
    }
}

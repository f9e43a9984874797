//! The list of handoffs.

use std::sync::Arc;

use super::{Page, View, pages::merged};
use crate::{
    BrokerError,
    access::{Purpose, Reach},
    domain::{
        EntityId,
        handoff::{Handoff, State},
    },
    ids::{AgentId, TaskId},
    records::{HandoffPlace, List, TaskRecord},
    stored,
    time::Timestamp,
};

/// A filter of handoffs. All conditions that are set must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HandoffFilter {
    /// The task that the handoff is to move.
    pub task: Option<TaskId>,
    /// The sender or candidate of the handoff.
    pub agent: Option<AgentId>,
    /// The sender of the handoff.
    pub sender: Option<AgentId>,
    /// The present or last candidate of the handoff.
    pub candidate: Option<AgentId>,
    /// The task type of the handoff.
    pub task_type: Option<String>,
    /// The permitted states. Empty: all.
    pub states: Vec<State>,
    /// Whether only handoffs that have not ended are listed.
    pub open_only: bool,
    /// The handoff has not ended, and its next deadline is before this time.
    pub deadline_before: Option<Timestamp>,
}

impl HandoffFilter {
    /// An agent that takes part in all handoffs of the list.
    fn of_agent(&self) -> Option<&AgentId> {
        self.agent.as_ref().or(self.sender.as_ref()).or(self.candidate.as_ref())
    }

    /// Whether all handoffs of the list are open.
    fn is_of_open(&self) -> bool {
        let has_open_states = !self.states.is_empty() && self.states.iter().all(|state| !state.is_final());
        self.open_only || self.deadline_before.is_some() || has_open_states
    }

    /// Whether the handoff meets all conditions but that of the task.
    pub(super) fn fits(&self, handoff: &Handoff) -> bool {
        let takes_part = |agent: &AgentId| handoff.sender == *agent || handoff.candidate == *agent;
        let is_due = |before: Timestamp| handoff.next_deadline().is_some_and(|deadline| deadline < before);
        self.agent.as_ref().is_none_or(takes_part)
            && self.sender.as_ref().is_none_or(|sender| handoff.sender == *sender)
            && self.candidate.as_ref().is_none_or(|candidate| handoff.candidate == *candidate)
            && self.task_type.as_ref().is_none_or(|task_type| handoff.task_type == *task_type)
            && (self.states.is_empty() || self.states.contains(&handoff.state))
            && !(self.open_only && handoff.state.is_final())
            && self.deadline_before.is_none_or(is_due)
    }
}

impl View<'_> {
    /// The handoffs that the caller may see, newest first, in the order of their sequences.
    ///
    /// A page reads one list: the handoffs of the task, with the one in its record; else those of the agent, be it the
    /// caller or the one that the filter names; else the open ones, if no ended one can match; else all. The other
    /// conditions are applied to the entries of the list, of which a page examines at most
    /// [`LOOKED_AT_MAX`](super::LOOKED_AT_MAX).
    pub fn handoffs(
        &self,
        filter: &HandoffFilter,
        size: usize,
        token: &str,
    ) -> Result<Page<Arc<Handoff>>, BrokerError> {
        let list = self.list_of_handoffs(filter)?;
        let wanted = |handoff: &Arc<Handoff>| filter.fits(handoff) && self.access.may_see_handoff(self.caller, handoff);
        let read = |_, place: HandoffPlace| {
            let (id, task) = (EntityId::Handoff(place.handoff), EntityId::Task(place.task));
            Ok(self.whole_handoff(stored::entity_in(self.store, &id, &task)?)?.filter(wanted))
        };
        // Read before the list: a handoff that leaves the record of its task meanwhile is in the list then.
        let of_task = filter.task.as_ref().filter(|_| list.is_some());
        let task = of_task.map(|task| self.store.get(&TaskRecord::key(task))).transpose()?.flatten();
        let task = task.map(|record| TaskRecord::decode(&record.value)).transpose()?;
        let embedded = task.and_then(|task| task.handoff).map(|handoff| (handoff.sequence, handoff.place()));
        let entries = |list, before: Option<u64>| {
            let embedded = embedded.filter(|(number, _)| before.is_none_or(|before| *number < before)).map(Ok);
            let listed =
                self.newest_first(list, before, size, move |number, value| Ok(list.handoff_place(number, &value)?));
            merged(listed, embedded.into_iter())
        };
        self.page_of(list.as_ref(), entries, &format!("{filter:?}"), size, token, read)
    }

    fn list_of_handoffs(&self, filter: &HandoffFilter) -> Result<Option<List>, BrokerError> {
        Ok(match (self.access.reach(self.caller, Purpose::ReadHandoffs)?, &filter.task, filter.of_agent()) {
            (Reach::Nothing, ..) => None,
            (Reach::Own(_) | Reach::Everything, Some(task), _) => Some(List::handoffs_of_task(task)),
            (Reach::Own(agent), None, _) | (Reach::Everything, None, Some(agent)) => {
                Some(List::of_handoffs(Some(agent)))
            }
            (Reach::Everything, None, None) if filter.is_of_open() => Some(List::open_handoffs()),
            (Reach::Everything, None, None) => Some(List::of_handoffs(None)),
        })
    }
}

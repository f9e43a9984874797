//! What a handoff and a task are about, in the words of their requests.

use super::View;
use crate::{
    BrokerError,
    domain::{
        EntityId,
        handoff::{Handoff, Task},
    },
    proto::v1,
    records::EntityRecord,
    stored,
};

impl View<'_> {
    /// The summary of a handoff's request. The caller must be one that may see the handoff. Empty: the request has none,
    /// or is removed.
    pub fn summary_of(&self, handoff: &Handoff) -> Result<String, BrokerError> {
        // A redriven handoff has the request of the one before it, whose place its record has.
        let message = match handoff.redrive_of {
            None => Some(handoff.id),
            Some(_) => {
                let stored = stored::entity(self.store, &EntityId::Handoff(handoff.id))?;
                stored.as_ref().and_then(EntityRecord::as_handoff).map(|record| record.request.message)
            }
        };
        let request = message.map(|message| self.payload_of::<v1::HandoffRequest>(message)).transpose()?.flatten();
        Ok(request.unwrap_or_default().initial_context_summary)
    }

    /// The summary of a task: that of the message that created it, or else of its first request that has one, of its first
    /// and its latest handoff. Empty: none has one that the caller may see.
    pub fn summary_of_task(&self, task: &Task, latest: Option<&Handoff>) -> Result<String, BrokerError> {
        if let Some(message) = task.created_by {
            let summary = self.payload_of::<v1::TaskCreate>(message)?.unwrap_or_default().summary;
            if !summary.is_empty() {
                return Ok(summary);
            }
        }
        // Most tasks have one handoff, which is at hand.
        if let Some(first) = task.hops.first().filter(|first| latest.is_none_or(|latest| latest.id != first.handoff)) {
            // The first handoff may be removed, or not be for this caller.
            let summary = self.handoff(first.handoff).map_or(Ok(String::new()), |first| self.summary_of(&first))?;
            if !summary.is_empty() {
                return Ok(summary);
            }
        }
        match latest.filter(|handoff| self.access.may_see_handoff(self.caller, handoff)) {
            Some(handoff) => self.summary_of(handoff),
            None => Ok(String::new()),
        }
    }
}

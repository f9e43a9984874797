//! Who takes part in a task, as far as messages are concerned. To all others the answer is the same as if there were no such
//! task: it tells neither owner nor epoch nor state, and nothing of it is on record.

use super::{Engine, steps::Known, transaction::Transaction};
use crate::{
    broker::{BrokerError, Refused, refused},
    domain::handoff::{Handoff, Task},
    envelope::Header,
    ids::AgentId,
    proto::v1::MessageType,
};

impl Engine {
    /// Whether the sender owns or owned the task, or is a candidate: of the handoff that the message names, or of the open one.
    pub(super) fn takes_part(
        &mut self,
        transaction: &mut Transaction,
        header: &Header,
        known: &Known,
    ) -> Result<bool, BrokerError> {
        let Some(task) = known.task.as_ref().map(|stored| &stored.value.task) else { return Ok(false) };
        if task.has_been_owned_by(&header.sender) {
            return Ok(true);
        }
        let named = known.handoff.as_ref().filter(|stored| stored.value.handoff.task == task.id).cloned();
        let handoff = match (named, task.open_handoff) {
            (Some(named), _) => Some(named),
            (None, Some(open)) => self.known_handoff(transaction, open)?,
            (None, None) => None,
        };
        Ok(handoff.is_some_and(|stored| stored.value.handoff.was_offered_to(&header.sender)))
    }
}

impl Task {
    /// Whether the agent is the owner, or was.
    pub(super) fn has_been_owned_by(&self, agent: &AgentId) -> bool {
        self.owner == *agent || self.hops.iter().any(|hop| hop.sender == *agent || hop.receiver == *agent)
    }
}

impl Handoff {
    /// Whether the agent is the candidate, or was.
    fn was_offered_to(&self, agent: &AgentId) -> bool {
        self.offers.iter().any(|offer| offer.candidate == *agent)
    }
}

/// The answer to a sender that takes no part in the task, or names one that is not known.
pub(super) fn takes_no_part(header: &Header) -> Refused {
    let sender = header.sender.clone();
    let task = header.task.clone().expect("checked when the envelope was parsed");
    match header.message_type {
        MessageType::HandoffAccept | MessageType::HandoffReject | MessageType::HandoffComplete => {
            refused(BrokerError::NotCandidate { sender, task })
        }
        _ => refused(BrokerError::NotOwner { sender, task }),
    }
}

//! Who takes part in a task, as far as messages are concerned. To all others the answer is the same as if there were no such
//! task: it tells neither owner nor epoch nor state, and nothing of it is on record.

use super::{Engine, steps::Known, transaction::Transaction};
use crate::{broker::BrokerError, domain::Header};

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

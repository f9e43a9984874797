//! Who takes part in a task, as far as messages are concerned. To all others the answer is the same as if there were no such
//! task: it tells neither owner nor epoch nor state, and nothing of it is on record.

use super::{Engine, messages::Named, transaction::Transaction};
use crate::{
    broker::BrokerError,
    domain::{EntityId, Header},
};

impl Engine {
    /// Whether the sender owns or owned the task, or is a candidate: of the handoff that the message names, or of the open one.
    pub(super) fn takes_part(
        &mut self,
        transaction: &mut Transaction,
        header: &Header,
        named: &Named,
    ) -> Result<bool, BrokerError> {
        let Some(task) = &named.task else { return Ok(false) };
        if task.has_been_owned_by(&header.sender) {
            return Ok(true);
        }
        let of_task = named.handoff.clone().filter(|handoff| handoff.task == task.id);
        let handoff = match (of_task, task.open_handoff) {
            (Some(handoff), _) => Some(handoff),
            (None, Some(open)) => {
                let stored = self.entity_record(transaction, &EntityId::Handoff(open))?;
                stored.and_then(|record| Some(record.as_handoff()?.handoff.clone()))
            }
            (None, None) => None,
        };
        Ok(handoff.is_some_and(|handoff| handoff.was_offered_to(&header.sender)))
    }
}

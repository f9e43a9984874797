//! The update of a task that the begin or the end of its handoff is.

use super::Origin;
use crate::{
    domain::Entity,
    ids::{MessageId, TaskId},
    records::HandoffRecord,
};

/// A handoff that a step begins or ends, in the record of its task. That is an update of the task, too, and the handoff's
/// entry in a list is also that of the task: see [`TaskRecord::update_entry`].
#[derive(Debug)]
pub(super) struct HandoffUpdate {
    handoff: MessageId,
    task: TaskId,
    is_end: bool,
    /// The sequence of the task's update: that of the request, or that of the end once it is known.
    pub(super) sequence: Option<u64>,
}

impl HandoffUpdate {
    /// The update in what a step writes. `None`: the step begins and ends no handoff in the record of its task.
    pub(super) fn of(writes: &[Entity], origin: Origin<'_>) -> Option<Self> {
        writes.iter().find_map(|entity| {
            let Entity::Handoff(handoff) = entity else { return None };
            let (id, task) = (handoff.id, handoff.task.clone());
            let begun =
                origin.message().filter(|this| this.envelope.header().message_id == id).map(|this| this.sequence);
            let is_end = handoff.state.is_final();
            let is_one = HandoffRecord::begins_in_task(handoff) && (is_end || begun.is_some());
            is_one.then(|| Self { handoff: id, task, is_end, sequence: begun.filter(|_| !is_end) })
        })
    }

    /// Whether the entity is one of those that the update changes.
    pub(super) fn is_of(&self, entity: &Entity) -> bool {
        match entity {
            Entity::Task(written) => written.id == self.task,
            Entity::Handoff(written) => self.is_end && written.id == self.handoff,
            _ => false,
        }
    }
}

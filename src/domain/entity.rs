//! What every state machine has in common: an id, an owner in the store, deadlines.

use std::fmt;

use crate::ids::{MessageId, TaskId};

/// Names one entity: a thing with a state machine of its own. One variant for each machine.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EntityId {
    /// A task.
    Task(TaskId),
    /// One attempt to move a task.
    Handoff(MessageId),
}

impl fmt::Display for EntityId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Task(id) => write!(formatter, "task {id}"),
            Self::Handoff(id) => write!(formatter, "handoff {id}"),
        }
    }
}

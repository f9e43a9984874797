//! The record that a removed task leaves behind.

use std::collections::BTreeSet;

use super::handoff::{Task, TaskStatus};
use crate::ids::AgentId;

/// The remains of a removed task: enough to refuse every later message about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemovedTask {
    /// The epoch at the end of the task. Earlier ones are stale.
    pub epoch: u64,
    /// The status at the end of the task, for the refusal of late messages.
    pub status: TaskStatus,
    /// The agents that owned the task: at most one more than the number of its handoffs and seizures.
    pub owners: BTreeSet<AgentId>,
}

impl RemovedTask {
    /// The remains of this task.
    pub fn of(task: &Task) -> Self {
        Self { epoch: task.epoch, status: task.status, owners: task.owners().cloned().collect() }
    }
}

//! What the broker remembers of a task that was removed.

use std::collections::BTreeSet;

use super::handoff::{Task, TaskStatus};
use crate::ids::AgentId;

/// What is left of a task that was removed: enough to refuse every later message about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemovedTask {
    /// Its last epoch.
    pub epoch: u64,
    /// How it ended.
    pub status: TaskStatus,
    /// The agents that owned it: at most one more than a task has completed handoffs.
    pub owners: BTreeSet<AgentId>,
}

impl RemovedTask {
    /// What is left of this task.
    pub fn of(task: &Task) -> Self {
        let passed = task.hops.iter().flat_map(|hop| [&hop.sender, &hop.receiver]);
        let owners = std::iter::once(&task.owner).chain(passed).cloned().collect();
        Self { epoch: task.epoch, status: task.status, owners }
    }
}

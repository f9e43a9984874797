//! The messages of the coordinator `baton.coordinator`, as effects of steps.
//!
//! The coordinator has no mailbox and no session. A step that concerns it says which message the coordinator sends
//! next, and the engine composes and signs that message and applies it in the same commit. This module must not know
//! the format of an envelope, or the key that signs it.

use crate::{
    domain::handoff::Priority,
    ids::{AgentId, MessageId, TaskId},
};

/// A message that the coordinator sends next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// A request to hand a task on.
    Request(Box<RequestOrder>),
    /// The last known context of a task, for the candidate that has accepted a handoff of the coordinator.
    Context {
        /// The handoff that the candidate has accepted.
        handoff: MessageId,
        /// The task of the handoff.
        task: TaskId,
        /// The task's epoch.
        epoch: u64,
        /// The candidate.
        to: AgentId,
        /// The sections that the candidate asks for. Empty: all sections.
        wanted_sections: Vec<String>,
    },
}

/// The terms of an [`Order::Request`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestOrder {
    /// The id of the request and of its handoff.
    pub id: MessageId,
    /// The task to hand on.
    pub task: TaskId,
    /// The task's epoch.
    pub epoch: u64,
    /// The receiver: an agent's id, or `type:NAME`.
    pub receiver: String,
    /// The agent that owned the task before. It is not asked to take the task.
    pub former_owner: AgentId,
    /// The kind of work.
    pub task_type: String,
    /// The priority of the handoff.
    pub priority: Priority,
    /// For whom the coordinator asks: an agent's id, or `operator:NAME`. The request has no more rights than this
    /// principal.
    pub submitter: String,
    /// The reason, for people to read.
    pub reason_text: String,
    /// What the candidate has to know to decide, for people to read.
    pub summary: String,
}

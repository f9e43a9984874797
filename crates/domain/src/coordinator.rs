//! The messages of the coordinator `baton.coordinator`, as effects of steps.
//!
//! The coordinator has no mailbox and no session. A step that concerns it says which message the coordinator sends
//! next, and the engine composes and signs that message and applies it in the same commit. This module must not know
//! the format of an envelope, or the key that signs it.

use crate::{
    codes::ErrorCode,
    handoff::{Priority, TaskStatus},
    ids::{AgentId, MessageId, PlanId, TaskId, ThreadId, Topic},
    plan::Report,
};

/// A message that the coordinator sends next.
#[derive(Debug, Clone, PartialEq)]
pub enum Order {
    /// A request to hand a task on.
    Request(Box<RequestOrder>),
    /// A request to carry out a subtask of a plan.
    Subtask(Box<SubtaskOrder>),
    /// The cancellation of an open handoff of the coordinator.
    Cancel {
        /// The open handoff to cancel.
        handoff: MessageId,
        /// The task of the handoff.
        task: TaskId,
        /// The task's epoch.
        epoch: u64,
        /// The candidate.
        to: AgentId,
        /// The reason, for people to read.
        reason_text: String,
    },
    /// The recall of a task that the coordinator has lent.
    Recall {
        /// The handoff that lent the task.
        handoff: MessageId,
        /// The task to take back.
        task: TaskId,
        /// The task's epoch.
        epoch: u64,
        /// The reason, for people to read.
        reason_text: String,
    },
    /// The final status of a task of a plan, which the coordinator owns.
    Status {
        /// The task of the subtask.
        task: TaskId,
        /// The task's epoch at that time.
        epoch: u64,
        /// The final status.
        status: TaskStatus,
        /// The reason, for people to read.
        details: String,
    },
    /// An entry with the result of a subtask for the workspace of its plan.
    Append {
        /// The plan, which owns the workspace.
        plan: PlanId,
        /// The id of the subtask.
        subtask: String,
        /// The place of the element in the list of the subtask. `None`: the result is that of the whole subtask.
        element: Option<usize>,
        /// A topic that the subtask produces.
        topic: Topic,
        /// The result.
        report: Box<Report>,
    },
    /// A message for the thread of a delegation that has ended.
    Tell(Box<ThreadMessage>),
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

/// The end of a delegation, for the thread in which it was begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadMessage {
    /// The thread.
    pub thread: ThreadId,
    /// The task that was lent, or was to be lent.
    pub task: TaskId,
    /// The task's epoch after the end.
    pub epoch: u64,
    /// The handoff of the delegation.
    pub handoff: MessageId,
    /// The agent that has begun the delegation.
    pub delegator: AgentId,
    /// How the delegation ended.
    pub end: DelegationEnd,
}

/// How a delegation ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DelegationEnd {
    /// The delegate has reported a final status.
    Reported {
        /// The delegate.
        by: AgentId,
        /// The final status.
        status: TaskStatus,
        /// The report, which has the result.
        message: MessageId,
        /// Details as a text.
        details: String,
    },
    /// The delegate has handed the task back.
    Returned {
        /// The delegate.
        by: AgentId,
    },
    /// The task was taken from the delegate.
    Recalled {
        /// The cause: TASK_RECALLED, TASK_ABANDONED, TASK_CANCELED or TASK_REASSIGNED.
        code: ErrorCode,
        /// The cause, for people to read.
        text: String,
    },
    /// No agent has taken the task over.
    NotTaken {
        /// The cause: the reason of the handoff's failure.
        code: ErrorCode,
        /// The cause, for people to read.
        text: String,
    },
}

/// The terms of an [`Order::Subtask`]. The plan has all others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubtaskOrder {
    /// The id of the request and of its handoff.
    pub id: MessageId,
    /// The plan of the subtask.
    pub plan: PlanId,
    /// The place of the subtask in the plan.
    pub place: usize,
    /// Whether the work is the compensation of the subtask.
    pub is_compensation: bool,
    /// The place of the element in the list of the subtask. `None`: the work is the whole subtask.
    pub element: Option<usize>,
    /// The receiver in place of the plan's: an agent's id or `type:NAME`.
    pub assigned_to: Option<String>,
    /// The epoch of the subtask's task; 1 if the request creates it.
    pub epoch: u64,
    /// The round of the task.
    pub round: u32,
    /// The attempt, from 1 on.
    pub attempt: u32,
    /// The agent that submitted the plan. The request has no more rights than this agent.
    pub submitter: AgentId,
    /// The digest of the submission's content, which is a part of the ids of the plan's tasks.
    pub submission_digest: [u8; 32],
    /// The digest of the content of the signed message that has the subtask: the submission, or an extension.
    pub signed_digest: [u8; 32],
    /// The agents of earlier attempts, which are asked after all others.
    pub tried: Vec<AgentId>,
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

//! The inputs and outputs of the handoff machine.

use std::time::Duration;

use super::{Acked, Cancellation, Handoff, LoopLimits, Message, Mode, PassedOver, Priority, Task, Timeouts, WorkTerms};
use crate::{
    codes::ErrorCode,
    coordinator::Order,
    ids::{AgentId, ConversationId, FairnessKey, MessageId, TaskId, ThreadId},
    plan::PlanRef,
    routing::HandoffRef,
    time::Timestamp,
};

/// The state before an input: the task, and the handoff that the input is about.
#[derive(Debug, Clone, Copy, Default)]
pub struct Snapshot<'a> {
    /// The task, if it exists.
    pub task: Option<&'a Task>,
    /// The handoff that the input names, or the task's open handoff if the input is about the task alone.
    pub handoff: Option<&'a Handoff>,
    /// The agents among those that may be asked next that are gone or full.
    pub unavailable: Unavailable<'a>,
}

/// The agents that a step could ask and that are not free.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unavailable<'a> {
    /// The gone agents. They are asked only if no present agent can be, now or later.
    pub gone: &'a [AgentId],
    /// The agents without room. They are not asked.
    pub full: &'a [AgentId],
}

/// The inputs of the handoff machine.
#[derive(Debug, Clone, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "an input exists for one step, and is in no collection")]
pub enum Input {
    /// A request to hand the task over.
    Request(Request),
    /// The beginning of a task without a handoff.
    Create(NewTask),
    /// A message of an agent about the task or the handoff.
    Message {
        /// The sender of the message.
        from: AgentId,
        /// The epoch in the sender's view.
        epoch: u64,
        /// The message, without its envelope.
        message: Message,
    },
    /// An agent acked a delivery.
    Acked {
        /// The agent whose mailbox had the delivery.
        by: AgentId,
        /// The role of the delivery.
        mail: Acked,
        /// The time for the decision from the agent's card. `None`: that of the handoff's timeouts.
        decides_within: Option<Duration>,
    },
    /// A delivery became a dead letter.
    Undeliverable {
        /// The agent that did not get the delivery.
        to: AgentId,
        /// The role of the delivery.
        mail: Acked,
    },
    /// Time has passed for the handoff. The machine handles its overdue deadlines, and changes nothing else.
    Time,
    /// Time has passed for the task. The machine recalls a loan whose timeout is over, or else ends a question without an
    /// answer in time, and changes nothing else.
    TaskDue,
    /// The owner of the task has given no sign of work for its `silence_timeout`, or is gone.
    Silent,
    /// An operator takes the task from its owner. The coordinator owns it next, and hands it on.
    Seize(Seize),
    /// The broker cancels the task. An ended task stays as it is.
    CancelTask(Cancellation),
    /// The candidate is gone. If the request is still undelivered and a present candidate remains, that candidate is
    /// asked.
    CandidateGone,
    /// An agent may have room, or has registered or come back. A handoff that waits looks for a candidate again.
    Look {
        /// The agents that can be asked in addition to the known candidates.
        found: Vec<AgentId>,
    },
    /// An operator redrives the request of the snapshot's failed handoff, as a new handoff.
    Redrive {
        /// The id of the new handoff.
        id: MessageId,
        /// The registered agents to ask, best first.
        candidates: Vec<AgentId>,
    },
}

/// A reassignment by an operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seize {
    /// The epoch in the operator's view.
    pub expected_epoch: u64,
    /// The principal that takes the task: an agent's id, or `operator:NAME`.
    pub submitter: String,
    /// The new receiver: an agent's id, or `type:NAME`.
    pub receiver: String,
    /// The reason, for people to read; may be empty.
    pub reason_text: String,
    /// The id of the handoff by which the coordinator hands the task on.
    pub handoff: MessageId,
}

/// A task that begins without a handoff.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewTask {
    /// The id of the message.
    pub id: MessageId,
    /// The new task.
    pub task: TaskId,
    /// The sender of the message, which owns the task.
    pub from: AgentId,
    /// The epoch in the sender's view.
    pub epoch: u64,
    /// The kind of work.
    pub task_type: String,
    /// The task that this one is a part of.
    pub parent: Option<TaskId>,
    /// The outer conversation that the task belongs to.
    pub conversation: Option<ConversationId>,
    /// The loop guard's limits, within the operator's.
    pub loop_limits: LoopLimits,
}

/// A handoff request with the resolved agents and terms.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// The id of the request and of its handoff.
    pub id: MessageId,
    /// The task to hand over. A request of an unknown task creates it.
    pub task: TaskId,
    /// The agent that asks.
    pub from: AgentId,
    /// The epoch in the sender's view.
    pub epoch: u64,
    /// The receiver that the request names.
    pub receiver: String,
    /// The registered agents to ask, best first.
    pub candidates: Vec<AgentId>,
    /// The named agents that lack what the request demands.
    pub passed_over: Vec<PassedOver>,
    /// The kind of work.
    pub task_type: String,
    /// The reason, as a number of the request's enum.
    pub reason: i32,
    /// Whether the task is transferred or delegated.
    pub mode: Mode,
    /// The time from the completion until the broker recalls a delegated task, 1 s to 30 d. `None`: no loan timeout.
    pub loan_timeout: Option<Duration>,
    /// What the request says about the work after the takeover.
    pub work: WorkTerms,
    /// For whom the coordinator asks: an agent's id, or `operator:NAME`. `None`: the sender asks for itself.
    pub submitter: Option<String>,
    /// The subtask of a plan that the task carries out. Set by the coordinator alone.
    pub plan: Option<PlanRef>,
    /// The choice of a run that the handoff carries out.
    pub routing: Option<HandoffRef>,
    /// The priority of all deliveries of the handoff.
    pub priority: Priority,
    /// The part of the sender's requests that this one belongs to.
    pub fairness_key: Option<FairnessKey>,
    /// The timeouts of the steps, within the operator's bounds.
    pub timeouts: Timeouts,
    /// The loop guard's limits, within the operator's. A known task keeps its own where they are lower.
    pub loop_limits: LoopLimits,
    /// The task that this one is a part of. A known task keeps its own.
    pub parent: Option<TaskId>,
    /// The outer conversation that the task belongs to. A known task keeps its own.
    pub conversation: Option<ConversationId>,
    /// Whether the request waits if no agent can be named yet.
    pub wait_for_agent: bool,
    /// The thread that gets a message when the delegation ends. `None`: no thread.
    pub thread: Option<ThreadId>,
    /// The time before which no agent is asked. `None`: now.
    pub deliver_after: Option<Timestamp>,
    /// The negotiation whose award this is. If it has the id of the request, the award is the broker's, under the
    /// requester's mandate; else the request is the requester's `TaskAccept`.
    pub negotiation: Option<MessageId>,
}

impl Request {
    /// Whether the broker makes the request, under the mandate of a `TaskRequest`.
    pub fn is_mandated(&self) -> bool {
        self.negotiation == Some(self.id)
    }
}

/// The result of an accepted step.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// The step changes the task or the handoff.
    Moved(Box<Transition>),
    /// The step changes nothing: a repeat, or a timer before its deadline.
    Unchanged,
}

impl Outcome {
    pub(super) fn moved(transition: Transition) -> Self {
        Self::Moved(Box::new(transition))
    }
}

/// The new state and the effects of a step. One commit applies all of it, or none.
#[derive(Debug, Clone, PartialEq)]
pub struct Transition {
    /// The task after the step.
    pub task: Task,
    /// The handoff after the step, if the input was about one.
    pub handoff: Option<Handoff>,
    /// The effects, in the order of their execution.
    pub effects: Vec<Effect>,
}

/// An effect of a step.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Puts mail into an agent's mailbox.
    Deliver {
        /// The agent that owns the mailbox.
        to: AgentId,
        /// The message to deliver, or the broker's notice.
        mail: Mail,
    },
    /// Removes the delivery of the handoff that an agent has not acked: the offer or the context. An agent that never got
    /// it hears no more of the handoff.
    Withdraw {
        /// The agent that owns the mailbox.
        from: AgentId,
    },
    /// Removes the delivery of a question that has ended without an answer.
    WithdrawQuestion {
        /// The status report that asked.
        question: MessageId,
        /// The agent that was asked.
        from: AgentId,
    },
    /// Keeps the request as a dead letter: no agent took it, and the handoff has ended for that reason.
    ParkRequest(Untaken),
    /// The coordinator sends a message.
    Order(Order),
}

/// The reason why no agent took a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Untaken {
    /// The last candidate did not decide in time.
    AcceptTimeout,
    /// The last candidate rejected the request.
    NoCandidate,
}

/// The mail of an [`Effect::Deliver`].
#[derive(Debug, Clone, PartialEq)]
pub enum Mail {
    /// The envelope in the step's input.
    ThisMessage,
    /// The handoff's request, for a further candidate.
    RequestAgain,
    /// An `ErrorNotification` of the broker.
    Notice {
        /// The content of the notification.
        notice: Notice,
        /// The handoff that the notification is about.
        about: MessageId,
    },
    /// An `ErrorNotification` of the broker about the task alone.
    TaskNotice(Notice),
}

/// The content of an `ErrorNotification` of the broker.
#[derive(Debug, Clone, PartialEq)]
pub struct Notice {
    /// The stable error code.
    pub code: ErrorCode,
    /// The message, for a person to read.
    pub message: String,
    /// The advice to the agent.
    pub advice: Advice,
    /// Whether an agent or an operator must act: a handoff of priority CRITICAL or a plan has failed, or the owner of a
    /// task is gone.
    pub is_critical: bool,
}

/// The advice of a notice to its agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// The agent owns the task, and the handoff is over.
    KeepTask,
    /// No agent has the work, which is no task.
    AskAgain,
    /// Compensation: the agent drops the received data and does not work on the task.
    DropTask,
    /// The owner of the task is gone: an operator can reassign the task.
    AskOperator,
    /// No action: the handoff goes on.
    None,
}

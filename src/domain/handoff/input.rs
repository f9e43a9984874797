//! What goes into the state machine and what comes out.

use super::{Handoff, LoopLimits, Mode, Priority, Task, TaskStatus, Timeouts};
use crate::{
    codes::ErrorCode,
    ids::{AgentId, MessageId, TaskId},
};

/// What is known when an input arrives: the task, and the handoff that the input is about.
#[derive(Debug, Clone, Copy, Default)]
pub struct Situation<'a> {
    /// The task, if it is known.
    pub task: Option<&'a Task>,
    /// The handoff, if the input names one and it is known.
    pub handoff: Option<&'a Handoff>,
    /// Those of the agents who may be asked next that are gone: asked only where nobody else can be.
    pub gone: &'a [AgentId],
}

/// Everything that can happen to a task and its handoffs.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// Somebody wants to hand the task over.
    Request(Request),
    /// An agent says something about it.
    Message {
        /// Who.
        from: AgentId,
        /// The epoch that it believes in.
        epoch: u64,
        /// What.
        message: Message,
    },
    /// An agent acked a delivery.
    Acked {
        /// Who.
        by: AgentId,
        /// What was delivered.
        mail: Acked,
    },
    /// A delivery became a dead letter.
    Undeliverable {
        /// Who did not get it.
        to: AgentId,
        /// What was to be delivered.
        mail: Acked,
    },
    /// Time has passed. Whatever is overdue happens; nothing else does.
    Time,
    /// The candidate is gone. If the request is still on its way and somebody else is there to be asked, that one is.
    CandidateGone,
    /// The handoff of the situation has failed, and its request is to be tried again, as a handoff of its own.
    Redrive {
        /// The id of the new handoff.
        id: MessageId,
        /// Registered agents to ask, best first.
        candidates: Vec<AgentId>,
    },
}

/// A handoff request, with what the pipeline found out about it.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// Its id, and that of the handoff.
    pub id: MessageId,
    /// The task.
    pub task: TaskId,
    /// Who asks.
    pub from: AgentId,
    /// The epoch that it believes in.
    pub epoch: u64,
    /// The receiver as it was named.
    pub receiver: String,
    /// Registered agents to ask, best first.
    pub candidates: Vec<AgentId>,
    /// The kind of work.
    pub task_type: String,
    /// Why, as the request's number for it.
    pub reason: i32,
    /// Given away or lent.
    pub mode: Mode,
    /// The priority.
    pub priority: Priority,
    /// How long each step may take, within the operator's bounds.
    pub timeouts: Timeouts,
    /// The loop guard's limits, within the operator's. Only taken over by a new task.
    pub loop_limits: LoopLimits,
}

/// What agents say about a task or a handoff.
#[derive(Debug, Clone, PartialEq)]
pub enum Message {
    /// The candidate takes it.
    Accept {
        /// Sections it wants; empty means all.
        wanted_sections: Vec<String>,
    },
    /// The candidate does not take it.
    Reject {
        /// Why, as the reject's number for it.
        reason: i32,
        /// In words.
        text: String,
        /// Registered agents that it thinks better fitted.
        suggestions: Vec<AgentId>,
    },
    /// The owner takes it back.
    Cancel,
    /// The owner hands the context over.
    Context {
        /// The digest over all sections.
        digest: [u8; 32],
    },
    /// The candidate has taken over, or could not.
    Complete {
        /// Whether it has.
        success: bool,
        /// The digest of the context it took over.
        digest: Option<[u8; 32]>,
        /// In words.
        details: String,
    },
    /// How the task is doing.
    Status {
        /// The new status.
        status: TaskStatus,
        /// From 0 to 1, if known.
        progress: Option<f64>,
        /// In words.
        details: String,
        /// Registered agents that are named to be told.
        receivers: Vec<AgentId>,
    },
}

/// The deliveries whose fate matters to a handoff.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Acked {
    /// The request, at a candidate.
    Request,
    /// The context, at the candidate.
    Context,
    /// The completion, at the sender.
    Completion,
}

/// What a step comes to, if it is not rejected.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// Something is different now.
    Moved(Box<Transition>),
    /// Nothing is: a repeat, or a timer before its time.
    Unchanged,
}

impl Outcome {
    pub(super) fn moved(transition: Transition) -> Self {
        Self::Moved(Box::new(transition))
    }
}

/// What is next and what is to be done; all of it in one commit, or none.
#[derive(Debug, Clone, PartialEq)]
pub struct Transition {
    /// The task after it.
    pub task: Task,
    /// The handoff after it, if the input was about one.
    pub handoff: Option<Handoff>,
    /// What is to be done, in this order.
    pub effects: Vec<Effect>,
}

/// Something to be done.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Put this into an agent's mailbox.
    Deliver {
        /// Whose.
        to: AgentId,
        /// What.
        mail: Mail,
    },
    /// Keep the request as a dead letter: nobody took it, and the handoff has ended by that.
    ParkRequest(Untaken),
}

/// Why nobody took a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Untaken {
    /// The last one who was asked did not decide in time.
    AcceptTimeout,
    /// The last one who was asked did not want it.
    NoCandidate,
}

/// What is put into a mailbox.
#[derive(Debug, Clone, PartialEq)]
pub enum Mail {
    /// The envelope that is the input of this step.
    ThisMessage,
    /// The handoff's request again, for another candidate.
    RequestAgain,
    /// The broker's own `ErrorNotification`.
    Notice(Notice),
}

/// What the broker itself tells an agent.
#[derive(Debug, Clone, PartialEq)]
pub struct Notice {
    /// The stable code.
    pub code: ErrorCode,
    /// In words.
    pub message: String,
    /// What the agent is to do.
    pub advice: Advice,
}

/// What an agent is to do about a notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// It still owns the task, and the handoff is over.
    KeepTask,
    /// Compensation: drop what it received and do not work on the task.
    DropTask,
    /// Nothing: the handoff goes on.
    None,
}

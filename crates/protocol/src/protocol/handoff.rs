//! What the messages of a handoff say, in types of their own.

use std::time::Duration;

use crate::{
    ids::{AgentId, MessageId},
    numbered,
    time::Timestamp,
};

/// The status of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TaskStatus {
    /// The task was created, and its owner has not reported.
    Created,
    /// The owner works on the task.
    InProgress,
    /// The task waits for input.
    WaitingForInput,
    /// Final: done.
    Completed,
    /// Final: the work failed.
    Failed,
    /// Final: no longer wanted.
    Canceled,
}

impl TaskStatus {
    /// Whether the status is final.
    pub const fn is_final(self) -> bool {
        match self {
            Self::Created | Self::InProgress | Self::WaitingForInput => false,
            Self::Completed | Self::Failed | Self::Canceled => true,
        }
    }
}

/// Whether a task is transferred or delegated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// The receiver owns the task for good.
    #[default]
    Transfer,
    /// The task comes back: with the receiver's final status, by a recall, or at the loan's timeout.
    Delegate,
}

/// What a request says about the work after the takeover (SPEC 3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WorkTerms {
    /// The silence of the owner after which the task counts as abandoned, 5 s to 1 day. `None`: silence is not judged.
    pub silence_timeout: Option<Duration>,
    /// Whether an abandoned task goes back to the sender. Only for a transfer.
    pub returns_when_abandoned: bool,
    /// The longest time of the loan that the delegate can reach by extending it, counted from the completion.
    pub loan_timeout_max: Option<Duration>,
}

/// The order of deliveries: the higher priority goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Priority {
    /// After all others.
    Low,
    /// The default.
    #[default]
    Medium,
    /// Before the default.
    High,
    /// Before all others.
    Critical,
}

/// The messages of agents about a task or a handoff.
#[derive(Debug, Clone, PartialEq)]
pub enum Message {
    /// The candidate accepts the task.
    Accept {
        /// The sections of the context that the candidate wants. Empty: all sections.
        wanted_sections: Vec<String>,
        /// The time that the candidate expects to need for the takeover. `None`: not stated.
        estimate: Option<Duration>,
    },
    /// The candidate rejects the task.
    Reject {
        /// The reason, as a number of the reject's enum.
        reason: i32,
        /// The reason as a text.
        text: String,
        /// Registered agents that the candidate suggests instead.
        suggestions: Vec<AgentId>,
        /// The time after which the candidate may be asked once more. `None`: never.
        retry_after: Option<Duration>,
        /// The suggested agents that the broker passes over.
        passed_over: Vec<PassedOver>,
    },
    /// The owner cancels the handoff.
    Cancel,
    /// The owner hands the context over.
    Context {
        /// The digest over all sections.
        digest: [u8; 32],
    },
    /// The owner stores the context without a handoff.
    Checkpoint {
        /// The digest over all sections.
        digest: [u8; 32],
    },
    /// The candidate has taken the task over, or failed to.
    Complete {
        /// Whether the candidate has taken the task over.
        success: bool,
        /// The digest of the context that the candidate received.
        digest: Option<[u8; 32]>,
        /// Details as a text.
        details: String,
    },
    /// The delegator of a loan takes the task back.
    Recall {
        /// The completed handoff that lent the task.
        loan: MessageId,
    },
    /// The answer to a question about the task.
    Input {
        /// The id of the message, by which the task names the answer.
        id: MessageId,
        /// The status update with the question.
        prompt: MessageId,
    },
    /// A report of the task's status.
    Status {
        /// The id of the message, by which the task names its result and its question.
        id: MessageId,
        /// The new status.
        status: TaskStatus,
        /// The progress from 0 to 1, if known.
        progress: Option<f64>,
        /// Details as a text.
        details: String,
        /// The registered agents that the report goes to.
        receivers: Vec<AgentId>,
        /// Whether the report has a result.
        has_result: bool,
        /// The question of the report.
        prompt: Option<Question>,
        /// Whether the open parts of a cancelled task stay.
        keep_parts: bool,
        /// How much later than now the delegate asks its loan to be due. `None`: the loan stays as it is.
        extend_by: Option<Duration>,
    },
}

/// A question of a status report, after the broker has found the agent that is to answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// The agent that is asked.
    pub asked: AgentId,
    /// The time at which the question expires. `None`: never.
    pub due: Option<Timestamp>,
}

/// An agent that is not asked, because it lacks what the request demands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PassedOver {
    /// The agent that was passed over.
    pub agent: AgentId,
    /// What it lacks, for a person to read.
    pub reason_text: String,
}

/// The deliveries whose fate is reported to a handoff.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Acked {
    /// The request, at a candidate.
    Request,
    /// The context, at the candidate.
    Context,
    /// The completion, at the sender.
    Completion,
}

/// The timeouts that a request asks for. `None`: the operator's default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RequestedTimeouts {
    /// From the ack of the request to the decision.
    pub accept: Option<Duration>,
    /// From the accept to the context.
    pub context: Option<Duration>,
    /// From the context to the completion.
    pub complete: Option<Duration>,
    /// The whole handoff, over all candidates.
    pub whole: Option<Duration>,
}

numbered! {
    TaskStatus { Created = 1, InProgress = 2, WaitingForInput = 3, Completed = 4, Failed = 5, Canceled = 6, }
    Mode { Transfer = 1, Delegate = 2, }
    Priority { Low = 1, Medium = 2, High = 3, Critical = 4, }
    Acked { Request = 1, Context = 2, Completion = 3, }
}

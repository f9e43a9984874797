//! The rejections of the handoff machine.

use super::{
    TaskStatus,
    state::{Hop, PromptState, State},
};
use crate::{
    codes::{ErrorCode, FieldViolation, Refusal},
    ids::{AgentId, MessageId},
};

/// A typed refusal of the state machine. Nothing changes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// The task does not exist.
    #[error("the task does not exist; a HandoffRequest creates it")]
    TaskUnknown,
    /// The handoff does not exist, or belongs to another task.
    #[error("the task has no handoff with the id in correlation_id")]
    HandoffUnknown,
    /// A handoff with this id exists already.
    #[error("a handoff with this id already exists")]
    HandoffExists,
    /// The sender is not the owner.
    #[error("only the task's owner, {owner}, may send this message")]
    NotOwner {
        /// The present owner of the task.
        owner: AgentId,
    },
    /// The sender is not the current candidate.
    #[error("only the handoff's current candidate may send this message")]
    NotCandidate,
    /// The message is of an epoch before the current one.
    #[error("the ownership has moved: the message has epoch {claimed}, the task is at epoch {current}")]
    StaleEpoch {
        /// The epoch of the message.
        claimed: u64,
        /// The epoch of the task.
        current: u64,
    },
    /// The message is of an epoch after the current one.
    #[error("the message has epoch {claimed}, but the task is only at epoch {current}")]
    EpochAhead {
        /// The epoch of the message.
        claimed: u64,
        /// The epoch of the task.
        current: u64,
    },
    /// Another handoff of the task is open.
    #[error("the task has an open handoff, {handoff}; cancel it or wait until it ends")]
    HandoffOpen {
        /// The handoff that has to end first.
        handoff: MessageId,
    },
    /// The message is not permitted in this state.
    #[error("the handoff is in state {}, which does not allow this message", state.name())]
    WrongState {
        /// The present state of the handoff.
        state: State,
    },
    /// The handoff is in a final state.
    #[error("the handoff has ended in state {}, which is final", state.name())]
    Final {
        /// The final state of the handoff.
        state: State,
    },
    /// The message is late.
    #[error("the deadline of this step of the handoff has passed")]
    Expired {
        /// The present state of the handoff, open or final.
        state: State,
    },
    /// The loop guard stops the task.
    #[error("the loop guard refuses another handoff of the task: {limit} is {value}, after {}", chain(hops))]
    LoopLimit {
        /// The name of the limit.
        limit: &'static str,
        /// The value of the limit.
        value: u32,
        /// The handoffs so far.
        hops: Vec<Hop>,
    },
    /// The loop guard stops the task, because of the tasks that it is a part of.
    #[error(
        "the loop guard refuses the handoff of a part: along the chain of its parents {limit} is {value}, after {}",
        agents_in_order(agents)
    )]
    ChainLimit {
        /// The name of the limit.
        limit: &'static str,
        /// The value of the limit.
        value: u32,
        /// The owners of the tasks of the chain in their order; if they are many, the last ones.
        agents: Vec<AgentId>,
    },
    /// The sender of a recall is not the delegator of the loan.
    #[error("only the delegator, the sender of this handoff, may recall the task")]
    NotDelegator,
    /// The handoff that the recall names does not lend the task.
    #[error("handoff {handoff} is not an open delegation: the task has returned, or its mode is not DELEGATE")]
    NotLent {
        /// The handoff that the recall names.
        handoff: MessageId,
    },
    /// The owner has no loan whose due time it can move.
    #[error("the task is not lent to its owner with a loan_timeout_max, so no loan can be extended")]
    LoanFixed,
    /// The sender of an answer was not asked the question.
    #[error("the agent was not asked the question in correlation_id, or it is not among the task's latest questions")]
    NotAsked,
    /// The question has its answer.
    #[error("the question has its answer already; the first one counts")]
    InputTaken,
    /// The question ended without an answer.
    #[error("the question is no longer open: {}", match state {
        PromptState::Expired => "its deadline has passed",
        PromptState::Withdrawn => "its owner has reported again, or the task has moved",
        PromptState::Open | PromptState::Answered => "it has ended",
    })]
    InputExpired {
        /// The state of the question.
        state: PromptState,
    },
    /// A request names another parent or another conversation than the task has.
    #[error("{violation}")]
    TermDiffers {
        /// The field and its problem.
        violation: FieldViolation,
    },
    /// The task of a `TaskCreate` exists already.
    #[error("a task with this id exists already; choose another task_id")]
    TaskExists,
    /// The task has ended.
    #[error("the task has ended, and its final status cannot change")]
    TaskFinal {
        /// The final status of the task.
        status: TaskStatus,
    },
    /// The digest does not match the context that was handed over.
    #[error(
        "context_digest does not match the context that the sender transferred, whose digest is {}",
        hex::encode(expected)
    )]
    DigestMismatch {
        /// The digest of the context.
        expected: [u8; 32],
    },
    /// No candidate can be asked.
    #[error("no candidate: no other agent is registered under this id or type")]
    NoCandidate,
}

impl Rejection {
    /// Whether the custody log records the rejection. SPEC 3 requires that for late messages. A recall of an ended loan
    /// is one.
    pub const fn is_recorded(&self) -> bool {
        matches!(self, Self::StaleEpoch { .. } | Self::Expired { .. } | Self::NotLent { .. })
    }

    /// Whether the same request would be refused again as long as the task is where it is, so that the choice of a run which
    /// it was to carry out is given up (SPEC 10).
    pub const fn is_lasting(&self) -> bool {
        matches!(self, Self::LoopLimit { .. } | Self::ChainLimit { .. } | Self::NoCandidate)
    }
}

impl Refusal for Rejection {
    fn code(&self) -> ErrorCode {
        match self {
            Self::TaskUnknown => ErrorCode::TaskUnknown,
            Self::HandoffUnknown => ErrorCode::HandoffUnknown,
            Self::HandoffExists => ErrorCode::MessageIdReused,
            Self::NotOwner { .. } | Self::NotDelegator => ErrorCode::NotOwner,
            Self::NotCandidate => ErrorCode::NotCandidate,
            Self::StaleEpoch { .. } => ErrorCode::StaleEpoch,
            Self::EpochAhead { .. } => ErrorCode::EpochAhead,
            Self::HandoffOpen { .. } => ErrorCode::HandoffOpen,
            Self::WrongState { .. } => ErrorCode::HandoffState,
            Self::Final { .. } => ErrorCode::HandoffFinal,
            Self::Expired { .. } => ErrorCode::HandoffExpired,
            Self::LoopLimit { .. } | Self::ChainLimit { .. } => ErrorCode::LoopLimit,
            Self::NotLent { .. } | Self::LoanFixed => ErrorCode::NotLent,
            Self::NotAsked => ErrorCode::NotAsked,
            Self::InputTaken => ErrorCode::InputTaken,
            Self::InputExpired { .. } => ErrorCode::InputExpired,
            Self::TermDiffers { .. } => ErrorCode::FieldInvalid,
            Self::TaskExists => ErrorCode::TaskExists,
            Self::TaskFinal { .. } => ErrorCode::TaskFinal,
            Self::DigestMismatch { .. } => ErrorCode::ContextDigestMismatch,
            Self::NoCandidate => ErrorCode::ReceiverUnknown,
        }
    }

    fn metadata(&self) -> Vec<(&'static str, String)> {
        match self {
            Self::NotOwner { owner } => vec![("owner_id", owner.to_string())],
            Self::StaleEpoch { claimed, current } | Self::EpochAhead { claimed, current } => {
                vec![("claimed_epoch", claimed.to_string()), ("current_epoch", current.to_string())]
            }
            Self::HandoffOpen { handoff } | Self::NotLent { handoff } => vec![("handoff_id", handoff.to_string())],
            Self::WrongState { state } | Self::Final { state } | Self::Expired { state } => {
                vec![("state", state.name().to_owned())]
            }
            Self::LoopLimit { limit, value, hops } => {
                vec![("limit", (*limit).to_owned()), ("value", value.to_string()), ("chain", chain(hops))]
            }
            Self::ChainLimit { limit, value, agents } => {
                vec![("limit", (*limit).to_owned()), ("value", value.to_string()), ("chain", agents_in_order(agents))]
            }
            Self::InputExpired { state } => vec![("state", format!("{state:?}").to_uppercase())],
            Self::TaskFinal { status } => vec![("status", format!("{status:?}"))],
            Self::DigestMismatch { expected } => vec![("expected_digest", hex::encode(expected))],
            Self::TaskUnknown
            | Self::HandoffUnknown
            | Self::HandoffExists
            | Self::LoanFixed
            | Self::NotDelegator
            | Self::NotCandidate
            | Self::NotAsked
            | Self::InputTaken
            | Self::TermDiffers { .. }
            | Self::TaskExists
            | Self::NoCandidate => Vec::new(),
        }
    }

    fn violations(&self) -> &[FieldViolation] {
        match self {
            Self::TermDiffers { violation } => std::slice::from_ref(violation),
            _ => &[],
        }
    }
}

fn agents_in_order(agents: &[AgentId]) -> String {
    agents.iter().map(AgentId::as_str).collect::<Vec<_>>().join(" → ")
}

fn chain(hops: &[Hop]) -> String {
    let mut text = String::new();
    for hop in hops {
        if text.is_empty() {
            text.push_str(hop.sender.as_str());
        }
        text.push_str(" → ");
        text.push_str(hop.receiver.as_str());
    }
    text
}

//! Whether a message is taken, in view of what is known of its task and its handoff.

use super::{
    handoff::{Handoff, Rejection},
    header::{Header, Receiver},
    message_rules::{Correlation, Outsider},
};
use crate::{
    codes::{ErrorCode, Refusal},
    ids::{AgentId, TaskId},
};

/// A message that is not taken. Nothing changes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AdmissionError {
    /// The state machine would not take it either.
    #[error(transparent)]
    Rejected(#[from] Rejection),
    /// The sender takes no part in the task, or the task is not known.
    #[error("{sender} does not own a task {task}, and only a task's owner may send this")]
    NotOwner {
        /// The sender.
        sender: AgentId,
        /// The task as it was named.
        task: TaskId,
    },
    /// The sender takes no part in the task, or the task is not known.
    #[error("{sender} is not asked to take a task {task}, and only a handoff's present candidate may send this")]
    NotCandidate {
        /// The sender.
        sender: AgentId,
        /// The task as it was named.
        task: TaskId,
    },
    /// The receiver cannot be that of this message.
    #[error("{receiver} cannot be the receiver of this message: {problem}")]
    ReceiverInvalid {
        /// The receiver as it was named.
        receiver: String,
        /// Why not.
        problem: String,
    },
}

impl Refusal for AdmissionError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Rejected(rejection) => rejection.code(),
            Self::NotOwner { .. } => ErrorCode::NotOwner,
            Self::NotCandidate { .. } => ErrorCode::NotCandidate,
            Self::ReceiverInvalid { .. } => ErrorCode::ReceiverInvalid,
        }
    }

    fn metadata(&self) -> Vec<(&'static str, String)> {
        match self {
            Self::Rejected(rejection) => rejection.metadata(),
            Self::NotOwner { .. } | Self::NotCandidate { .. } | Self::ReceiverInvalid { .. } => Vec::new(),
        }
    }
}

/// The answer to a sender that takes no part in the task that it names, or names one that is not known. It is the same for
/// both: it tells neither owner nor epoch nor state.
pub fn outsider(header: &Header, task: &TaskId) -> AdmissionError {
    let (sender, task) = (header.sender.clone(), task.clone());
    match header.rules().outsider {
        Outsider::NotCandidate => AdmissionError::NotCandidate { sender, task },
        Outsider::NotOwner | Outsider::Carried => AdmissionError::NotOwner { sender, task },
    }
}

/// Checks a message against the handoff that it is about: the handoff must be the task's, and the receiver its other side.
pub fn check_handoff(header: &Header, handoff: Option<&Handoff>) -> Result<(), AdmissionError> {
    let rules = header.rules();
    let Some(handoff) = handoff else {
        return match rules.correlation {
            Correlation::Handoff if header.correlation.is_some() => Err(Rejection::HandoffUnknown.into()),
            Correlation::Handoff | Correlation::AnyMessage => Ok(()),
        };
    };
    if header.task.as_ref() != Some(&handoff.task) {
        return Err(Rejection::HandoffUnknown.into());
    }
    match rules.other_side.of(handoff, &header.sender) {
        Some(other_side) if header.receiver != Receiver::Agent(other_side.clone()) => {
            let problem = format!("the other side of the handoff is {other_side}");
            Err(AdmissionError::ReceiverInvalid { receiver: header.receiver.to_string(), problem })
        }
        Some(_) | None => Ok(()),
    }
}

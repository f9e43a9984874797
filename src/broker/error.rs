//! Why a command is refused, where it is not the envelope or the state machine that refuses it.

use std::time::Duration;

use super::access::Denied;
use crate::{
    codes::{ErrorCode, FieldViolation, Refusal},
    domain::{EntityId, admission::AdmissionError},
    ids::AgentId,
    store::{CommitError, ReadError},
};

/// A refusal of the pipeline.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BrokerError {
    /// Fields that are wrong in view of what the broker knows.
    #[error("{}", violations.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Fields {
        /// Which; never empty.
        violations: Vec<FieldViolation>,
    },
    /// The message is not admitted.
    #[error(transparent)]
    NotAdmitted(#[from] AdmissionError),
    /// Not the session's agent.
    #[error("the envelope's sender is {sender}, but the session is of {agent}")]
    SenderMismatch {
        /// The sender.
        sender: AgentId,
        /// The session's agent.
        agent: AgentId,
    },
    /// The caller is no agent, and so not the sender.
    #[error(
        "{caller} is no agent, and an envelope is its sender's to send: send it without a token, or with the sender's"
    )]
    SenderNoAgent {
        /// Who called.
        caller: String,
    },
    /// No such agent.
    #[error("no agent {agent} is registered")]
    AgentUnknown {
        /// The id.
        agent: String,
    },
    /// The id is taken.
    #[error("an agent {agent} is registered already, with another card; only it or an operator may change that")]
    AgentExists {
        /// The id.
        agent: AgentId,
    },
    /// An invitation that does not count.
    #[error("the invitation is not known, was used, is over, or is for another agent")]
    InvitationInvalid,
    /// Another agent's key.
    #[error("key {key_id} is the key of another agent; make one for each")]
    KeyTaken {
        /// Which of the card's.
        key_id: String,
    },
    /// No such key of the agent.
    #[error("agent {agent} has no key {key_id}")]
    AgentKeyUnknown {
        /// The agent.
        agent: AgentId,
        /// The key.
        key_id: String,
    },
    /// The agent's key, or key_id, already.
    #[error("{agent} has another key under this key_id, or this key under another: {key_id}")]
    KeyExists {
        /// The agent.
        agent: AgentId,
        /// What it is called there.
        key_id: String,
    },
    /// A key that must not come back.
    #[error("key {key_id} was revoked, and that is for good: make a new one, with a new key_id")]
    KeyRevoked {
        /// The key.
        key_id: String,
    },
    /// A weak key.
    #[error("key {key_id} {problem}")]
    KeyWeak {
        /// Which key.
        key_id: String,
        /// Why it is refused.
        problem: String,
    },
    /// No such task.
    #[error("no task {task} is known")]
    TaskUnknown {
        /// The id.
        task: String,
    },
    /// No such handoff.
    #[error("no handoff {handoff} is known")]
    HandoffUnknown {
        /// The id.
        handoff: String,
    },
    /// No such delivery.
    #[error("no delivery {delivery:?} is handed out to this agent: it was acknowledged, or its time was over")]
    DeliveryUnknown {
        /// The id.
        delivery: String,
    },
    /// No such dead letter.
    #[error("no dead letter {dead_letter} is known")]
    DeadLetterUnknown {
        /// The id.
        dead_letter: String,
    },
    /// Somebody has decided about it already.
    #[error("dead letter {dead_letter} is {state} already")]
    DeadLetterSettled {
        /// The id.
        dead_letter: u64,
        /// What has become of it.
        state: &'static str,
    },
    /// It can be looked at, not delivered.
    #[error("dead letter {dead_letter} was refused when it came: it is no message that can be delivered")]
    DeadLetterNotAMessage {
        /// The id.
        dead_letter: u64,
    },
    /// A filter of something that is to be done finds nothing to do.
    #[error("no dead letter matches the filter")]
    NothingMatches,
    /// An identity is needed.
    #[error("the call needs an identity: send a token as \"authorization: Bearer TOKEN\"")]
    IdentityMissing,
    /// Two proofs that do not agree.
    #[error("the token is of {agent}, but the client certificate is of {certified}")]
    IdentityConflict {
        /// By the token.
        agent: AgentId,
        /// By the certificate.
        certified: AgentId,
    },
    /// A token that is not known.
    #[error("the token is not known, or its time is over; prove who you are again")]
    TokenInvalid,
    /// A challenge that was not met.
    #[error(
        "the challenge is not known, used or over, no such agent is registered, or the signature is not that of a valid \
         key of the agent"
    )]
    ChallengeFailed,
    /// Not permitted.
    #[error("{0}")]
    PermissionDenied(Box<Denied>),
    /// A call that is for agents.
    #[error("{caller} is no agent: this call is for an agent, with the agent's own token or certificate")]
    AgentsOnly {
        /// Who called.
        caller: String,
    },
    /// A page token of something else.
    #[error("the page token is not of this list with these filters")]
    PageTokenInvalid,
    /// Somebody else was first.
    #[error("something else changed the same thing first; try again")]
    Conflict,
    /// The plaintext connection.
    #[error("this port takes only encrypted connections; connect by TLS")]
    TlsRequired,
    /// Too much at once.
    #[error("{what}; try again later")]
    LimitExceeded {
        /// What is too much.
        what: &'static str,
        /// When to try again.
        retry_after: Duration,
    },
    /// About to stop.
    #[error("the broker is stopping; connect again in a moment")]
    ShuttingDown,
    /// The disk.
    #[error("the broker cannot write to its store at present; send the very same message again in a moment")]
    StoreUnavailable,
    /// Not in this version.
    #[error("{what} is not supported by this broker version")]
    NotSupported {
        /// What.
        what: &'static str,
    },
    /// A fault of the broker. What it was is in its log.
    #[error("a fault of the broker; its log says more")]
    Internal,
}

impl BrokerError {
    /// There is no such entity.
    pub fn unknown(entity: &EntityId) -> Self {
        match entity {
            EntityId::Task(id) => Self::TaskUnknown { task: id.to_string() },
            EntityId::Handoff(id) => Self::HandoffUnknown { handoff: id.to_string() },
            #[cfg(test)]
            EntityId::Probe(_) => Self::Internal,
        }
    }
}

impl Refusal for BrokerError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Fields { .. } => ErrorCode::FieldInvalid,
            Self::NotAdmitted(error) => error.code(),
            Self::SenderMismatch { .. } | Self::SenderNoAgent { .. } | Self::IdentityConflict { .. } => {
                ErrorCode::SenderMismatch
            }
            Self::AgentUnknown { .. } => ErrorCode::AgentUnknown,
            Self::AgentExists { .. } => ErrorCode::AgentExists,
            Self::InvitationInvalid => ErrorCode::InvitationInvalid,
            Self::KeyTaken { .. } => ErrorCode::KeyTaken,
            Self::KeyWeak { .. } => ErrorCode::KeyWeak,
            Self::AgentKeyUnknown { .. } => ErrorCode::AgentKeyUnknown,
            Self::KeyExists { .. } => ErrorCode::KeyExists,
            Self::KeyRevoked { .. } => ErrorCode::KeyRevoked,
            Self::TaskUnknown { .. } => ErrorCode::TaskUnknown,
            Self::HandoffUnknown { .. } => ErrorCode::HandoffUnknown,
            Self::DeliveryUnknown { .. } => ErrorCode::DeliveryUnknown,
            Self::DeadLetterUnknown { .. } => ErrorCode::DeadLetterUnknown,
            Self::DeadLetterSettled { .. } => ErrorCode::DeadLetterSettled,
            Self::DeadLetterNotAMessage { .. } => ErrorCode::DeadLetterNotAMessage,
            Self::NothingMatches => ErrorCode::NothingMatches,
            Self::IdentityMissing => ErrorCode::IdentityMissing,
            Self::TokenInvalid => ErrorCode::TokenInvalid,
            Self::ChallengeFailed => ErrorCode::ChallengeFailed,
            Self::PermissionDenied(_) | Self::AgentsOnly { .. } => ErrorCode::PermissionDenied,
            Self::PageTokenInvalid => ErrorCode::PageTokenInvalid,
            Self::Conflict => ErrorCode::Conflict,
            Self::TlsRequired => ErrorCode::TlsRequired,
            Self::LimitExceeded { .. } => ErrorCode::LimitExceeded,
            Self::ShuttingDown => ErrorCode::ShuttingDown,
            Self::StoreUnavailable => ErrorCode::StoreUnavailable,
            Self::NotSupported { .. } => ErrorCode::NotSupported,
            Self::Internal => ErrorCode::Internal,
        }
    }

    fn metadata(&self) -> Vec<(&'static str, String)> {
        match self {
            Self::NotAdmitted(error) => error.metadata(),
            Self::DeadLetterSettled { state, .. } => vec![("state", (*state).to_owned())],
            Self::PermissionDenied(denied) => vec![
                ("action", denied.action_name.to_owned()),
                ("resource", denied.resource.clone()),
                ("rules", denied.decision.rules.join(", ")),
            ],
            _ => Vec::new(),
        }
    }

    fn violations(&self) -> &[FieldViolation] {
        match self {
            Self::Fields { violations } => violations,
            _ => &[],
        }
    }

    fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::LimitExceeded { retry_after, .. } => Some(*retry_after),
            Self::ShuttingDown | Self::StoreUnavailable | Self::Conflict => Some(Duration::from_secs(1)),
            _ => None,
        }
    }
}

/// A damaged or unreadable store is the broker's own fault to a caller; the log has the cause.
impl From<ReadError> for BrokerError {
    fn from(error: ReadError) -> Self {
        tracing::error!(%error, "failed to read from the store");
        Self::Internal
    }
}

impl From<crate::records::DecodeError> for BrokerError {
    fn from(error: crate::records::DecodeError) -> Self {
        tracing::error!(%error, "failed to decode a record");
        Self::Internal
    }
}

impl From<CommitError> for BrokerError {
    fn from(error: CommitError) -> Self {
        tracing::error!(%error, "failed to commit");
        Self::StoreUnavailable
    }
}

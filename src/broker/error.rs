//! The errors of the pipeline, beside those of the envelope and the state machine.

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
    /// Fields with values that are wrong in view of the broker's state.
    #[error("{}", violations.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Fields {
        /// The violations; never empty.
        violations: Vec<FieldViolation>,
    },
    /// The message is not admitted.
    #[error(transparent)]
    NotAdmitted(#[from] AdmissionError),
    /// The sender is not the session's agent.
    #[error("the envelope's sender is {sender}, but the session is of {agent}")]
    SenderMismatch {
        /// The sender.
        sender: AgentId,
        /// The session's agent.
        agent: AgentId,
    },
    /// The caller is not an agent, and so cannot be the sender.
    #[error(
        "{caller} is no agent, and an envelope is its sender's to send: send it without a token, or with the sender's"
    )]
    SenderNoAgent {
        /// The caller.
        caller: String,
    },
    /// The agent is not registered.
    #[error("no agent {agent} is registered")]
    AgentUnknown {
        /// The id.
        agent: String,
    },
    /// The id belongs to a registered agent.
    #[error("an agent {agent} is registered already, with another card; only it or an operator may change that")]
    AgentExists {
        /// The id.
        agent: AgentId,
    },
    /// The invitation is not valid.
    #[error("the invitation is not known, was used, is over, or is for another agent")]
    InvitationInvalid,
    /// The key belongs to another agent.
    #[error("key {key_id} is the key of another agent; make one for each")]
    KeyTaken {
        /// The id of the key on the card.
        key_id: String,
    },
    /// The agent has no key with this id.
    #[error("agent {agent} has no key {key_id}")]
    AgentKeyUnknown {
        /// The agent.
        agent: AgentId,
        /// The key.
        key_id: String,
    },
    /// The agent has this key, or this key id, already.
    #[error("{agent} has another key under this key_id, or this key under another: {key_id}")]
    KeyExists {
        /// The agent.
        agent: AgentId,
        /// The id of the existing key.
        key_id: String,
    },
    /// The key was revoked and must not come back.
    #[error("key {key_id} was revoked, and that is for good: make a new one, with a new key_id")]
    KeyRevoked {
        /// The key.
        key_id: String,
    },
    /// The key is weak.
    #[error("key {key_id} {problem}")]
    KeyWeak {
        /// The key.
        key_id: String,
        /// The reason for the refusal.
        problem: String,
    },
    /// The task does not exist.
    #[error("no task {task} is known")]
    TaskUnknown {
        /// The id.
        task: String,
    },
    /// The handoff does not exist.
    #[error("no handoff {handoff} is known")]
    HandoffUnknown {
        /// The id.
        handoff: String,
    },
    /// The delivery does not exist or has ended.
    #[error("no delivery {delivery:?} is handed out to this agent: it was acknowledged, or its time was over")]
    DeliveryUnknown {
        /// The id.
        delivery: String,
    },
    /// The dead letter does not exist.
    #[error("no dead letter {dead_letter} is known")]
    DeadLetterUnknown {
        /// The id.
        dead_letter: String,
    },
    /// The dead letter has been decided about before.
    #[error("dead letter {dead_letter} is {state} already")]
    DeadLetterSettled {
        /// The id.
        dead_letter: u64,
        /// The state after that decision.
        state: &'static str,
    },
    /// The dead letter is a refused envelope, which cannot be delivered.
    #[error("dead letter {dead_letter} was refused when it came: it is no message that can be delivered")]
    DeadLetterNotAMessage {
        /// The id.
        dead_letter: u64,
    },
    /// The filter of an action matches nothing.
    #[error("no dead letter matches the filter")]
    NothingMatches,
    /// The call needs an identity.
    #[error("the call needs an identity: send a token as \"authorization: Bearer TOKEN\"")]
    IdentityMissing,
    /// The token and the client certificate name different agents.
    #[error("the token is of {agent}, but the client certificate is of {certified}")]
    IdentityConflict {
        /// The agent of the token.
        agent: AgentId,
        /// The agent of the certificate.
        certified: AgentId,
    },
    /// The token is unknown or expired.
    #[error("the token is not known, or its time is over; prove who you are again")]
    TokenInvalid,
    /// The challenge failed.
    #[error(
        "the challenge is not known, used or over, no such agent is registered, or the signature is not that of a valid \
         key of the agent"
    )]
    ChallengeFailed,
    /// The policies do not permit the call.
    #[error("{0}")]
    PermissionDenied(Box<Denied>),
    /// The call is for agents only.
    #[error("{caller} is no agent: this call is for an agent, with the agent's own token or certificate")]
    AgentsOnly {
        /// The caller.
        caller: String,
    },
    /// The page token belongs to another list or filter.
    #[error("the page token is not of this list with these filters")]
    PageTokenInvalid,
    /// Another change came first.
    #[error("something else changed the same thing first; try again")]
    Conflict,
    /// The connection is not encrypted.
    #[error("this port takes only encrypted connections; connect by TLS")]
    TlsRequired,
    /// A limit is exceeded.
    #[error("{what}; try again later")]
    LimitExceeded {
        /// The limit.
        what: &'static str,
        /// The time until a further attempt may succeed.
        retry_after: Duration,
    },
    /// The broker is about to stop.
    #[error("the broker is stopping; connect again in a moment")]
    ShuttingDown,
    /// The store refuses writes.
    #[error("the broker cannot write to its store at present; send the very same message again in a moment")]
    StoreUnavailable,
    /// This version does not support the call.
    #[error("{what} is not supported by this broker version")]
    NotSupported {
        /// The unsupported feature.
        what: &'static str,
    },
    /// A fault of the broker. Its log has the cause.
    #[error("a fault of the broker; its log says more")]
    Internal,
}

impl BrokerError {
    /// The error for an entity that does not exist.
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

/// A damaged or unreadable store is the broker's fault to a caller; the log has the cause.
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

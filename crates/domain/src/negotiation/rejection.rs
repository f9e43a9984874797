//! The rejections of the negotiation machine.

use super::{ROUND_MAX, State};
use crate::{
    codes::{ErrorCode, FieldViolation, Refusal},
    ids::MessageId,
};

/// A typed refusal of the negotiation machine. Nothing changes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// The negotiation does not exist.
    #[error("no negotiation has the id in correlation_id")]
    Unknown,
    /// A negotiation with this id exists already.
    #[error("a negotiation with this id already exists")]
    Exists,
    /// A field has a value that does not fit.
    #[error("{}", violations.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Fields {
        /// The violations; never empty.
        violations: Vec<FieldViolation>,
    },
    /// The request asks too many agents.
    #[error("the request asks {found} agents; a negotiation asks at most {most}")]
    TooManyAsked {
        /// The number of agents.
        found: usize,
        /// The limit.
        most: usize,
    },
    /// The sender takes no part that permits the message.
    #[error("{problem}")]
    NotAsked {
        /// The reason.
        problem: &'static str,
    },
    /// The negotiation is closed for messages of this type.
    #[error("the negotiation is {}, and takes no such message", state.name())]
    Closed {
        /// The present state.
        state: State,
    },
    /// The sender is not on turn, or the offer does not stand.
    #[error("{problem}")]
    NotStanding {
        /// The reason.
        problem: &'static str,
    },
    /// The requester has no offer with this id.
    #[error("the agent has made no offer {offer} in this negotiation")]
    OfferUnknown {
        /// The id that the message names.
        offer: MessageId,
    },
    /// The rounds are used up.
    #[error("round {round} is over the limit of {ROUND_MAX} counter-offers: accept the standing offer or decline it")]
    RoundLimit {
        /// The round of the message.
        round: u32,
    },
}

impl Rejection {
    pub(super) fn field(path: &str, problem: impl Into<String>) -> Self {
        let path = format!("envelope.payload.{path}");
        Self::Fields { violations: vec![FieldViolation { path, problem: problem.into() }] }
    }
}

impl Refusal for Rejection {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Unknown => ErrorCode::NegotiationUnknown,
            Self::Exists => ErrorCode::MessageIdReused,
            Self::Fields { .. } => ErrorCode::FieldInvalid,
            Self::TooManyAsked { .. } => ErrorCode::ReceiverInvalid,
            Self::NotAsked { .. } => ErrorCode::NotAsked,
            Self::Closed { .. } => ErrorCode::NegotiationClosed,
            Self::NotStanding { .. } => ErrorCode::OfferNotStanding,
            Self::OfferUnknown { .. } => ErrorCode::OfferUnknown,
            Self::RoundLimit { .. } => ErrorCode::RoundLimit,
        }
    }

    fn metadata(&self) -> Vec<(&'static str, String)> {
        match self {
            Self::Closed { state } => vec![("state", state.name().to_owned())],
            Self::RoundLimit { .. } => vec![("round_max", ROUND_MAX.to_string())],
            Self::OfferUnknown { offer } => vec![("offer_id", offer.to_string())],
            Self::TooManyAsked { found, most } => vec![("asked", found.to_string()), ("asked_max", most.to_string())],
            Self::Unknown | Self::Exists | Self::Fields { .. } | Self::NotAsked { .. } | Self::NotStanding { .. } => {
                Vec::new()
            }
        }
    }

    fn violations(&self) -> &[FieldViolation] {
        match self {
            Self::Fields { violations } => violations,
            Self::Unknown
            | Self::Exists
            | Self::TooManyAsked { .. }
            | Self::NotAsked { .. }
            | Self::Closed { .. }
            | Self::NotStanding { .. }
            | Self::OfferUnknown { .. }
            | Self::RoundLimit { .. } => &[],
        }
    }
}

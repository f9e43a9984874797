//! Dead letters, which are given-up messages and refused envelopes: the reasons, the history, and the decisions (SPEC
//! 4).
//!
//! This module owns the states of a dead letter and the bound on refused envelopes. It must not know how a dead letter
//! is stored, or which caller may decide about one.

use std::collections::HashSet;

use super::{
    handoff::{Handoff, Offer, OfferOutcome, Untaken},
    mailbox::{Attempt, AttemptEnd, Letter},
    numbered,
};
use crate::{ids::AgentId, time::Timestamp};

/// The most refused envelopes kept for one agent.
pub const REFUSED_ENVELOPES_MAX: usize = 256;
/// The most bytes of refused envelopes kept for one agent.
pub const REFUSED_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The reason why a message became a dead letter, or an envelope was refused and kept. The numbers are those of
/// `baton.v1.DeadLetterReason`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParkReason {
    /// Too many deliveries failed.
    DeliveryAttemptsExhausted,
    /// The receiver reported that it can never take the message.
    Poison,
    /// The message expired before its delivery.
    Expired,
    /// No candidate decided the request in time.
    AcceptTimeout,
    /// No candidate took the request.
    NoCandidate,
    /// The bytes are not an envelope.
    Malformed,
    /// The payload does not fit its type.
    SchemaInvalid,
    /// The receiver was deregistered.
    ReceiverGone,
}

/// The state of a dead letter. The numbers are those of `baton.v1.DeadLetterState`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeadState {
    /// An operator has to decide.
    Parked,
    /// The message was redriven. Final.
    Redriven,
    /// The message was discarded for good. Final.
    Discarded,
}

numbered! {
    ParkReason {
        DeliveryAttemptsExhausted = 1, Poison = 2, Expired = 3, AcceptTimeout = 4, NoCandidate = 5, Malformed = 6,
        SchemaInvalid = 7, ReceiverGone = 8,
    }
    DeadState { Parked = 1, Redriven = 2, Discarded = 3, }
}

/// A decision about a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Deliver the message again.
    Redrive,
    /// Discard the message for good.
    Discard,
}

/// The dead letter has been decided about before; a decision is final.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the dead letter is already {}", state.name())]
pub struct AlreadySettled {
    /// The state after that decision.
    pub state: DeadState,
}

impl ParkReason {
    /// The name in SPEC 4.
    pub const fn name(self) -> &'static str {
        match self {
            Self::DeliveryAttemptsExhausted => "DELIVERY_ATTEMPTS_EXHAUSTED",
            Self::Poison => "POISON",
            Self::Expired => "EXPIRED",
            Self::AcceptTimeout => "ACCEPT_TIMEOUT",
            Self::NoCandidate => "NO_CANDIDATE",
            Self::Malformed => "MALFORMED",
            Self::SchemaInvalid => "SCHEMA_INVALID",
            Self::ReceiverGone => "RECEIVER_GONE",
        }
    }

    /// The reason for parking the request of a handoff that no candidate took.
    pub const fn of_request(untaken: Untaken) -> Self {
        match untaken {
            Untaken::AcceptTimeout => Self::AcceptTimeout,
            Untaken::NoCandidate => Self::NoCandidate,
        }
    }
}

impl DeadState {
    /// The name in the schema.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Parked => "PARKED",
            Self::Redriven => "REDRIVEN",
            Self::Discarded => "DISCARDED",
        }
    }

    /// Whether the dead letter has been decided about.
    pub const fn is_final(self) -> bool {
        match self {
            Self::Parked => false,
            Self::Redriven | Self::Discarded => true,
        }
    }

    /// The state after a decision. Fails if the state is final.
    pub const fn settle(self, decision: Decision) -> Result<Self, AlreadySettled> {
        match (self, decision) {
            (Self::Parked, Decision::Redrive) => Ok(Self::Redriven),
            (Self::Parked, Decision::Discard) => Ok(Self::Discarded),
            (Self::Redriven | Self::Discarded, Decision::Redrive | Decision::Discard) => {
                Err(AlreadySettled { state: self })
            }
        }
    }
}

/// The history of a letter of this agent: each delivery attempt without an ack.
pub fn deliveries_as_attempts(agent: &AgentId, letter: &Letter) -> Vec<(AgentId, Attempt)> {
    letter.attempts.iter().map(|attempt| (agent.clone(), attempt.clone())).collect()
}

/// The history of the request of an ended handoff: each offer. An offer lasts until the next one, and the last offer
/// until the end of the handoff.
pub fn offers_as_attempts(handoff: &Handoff) -> Vec<(AgentId, Attempt)> {
    let ends = handoff.offers.iter().skip(1).map(|next| next.offered_at).chain([handoff.updated_at]);
    let attempt = |(offer, ended_at): (&Offer, Timestamp)| {
        let (handed_out_at, end, text) = (offer.offered_at, end_of_offer(offer.outcome), offer.reason_text.clone());
        (offer.candidate.clone(), Attempt { handed_out_at, ended_at, end, text })
    };
    handoff.offers.iter().zip(ends).map(attempt).collect()
}

const fn end_of_offer(outcome: OfferOutcome) -> AttemptEnd {
    match outcome {
        OfferOutcome::Rejected => AttemptEnd::Rejected,
        OfferOutcome::Gone => AttemptEnd::Gone,
        OfferOutcome::Undeliverable => AttemptEnd::Undeliverable,
        // The whole timeout withdraws an offer that is not decided. A request that no candidate took has no accepted
        // offer.
        OfferOutcome::Pending | OfferOutcome::Accepted | OfferOutcome::TimedOut | OfferOutcome::Withdrawn => {
            AttemptEnd::Undecided
        }
    }
}

/// The refused envelopes kept for one agent. The bounds hold for each agent, so that one agent cannot fill the store
/// with garbage.
#[derive(Debug, Default)]
pub struct RefusedEnvelopes {
    /// The SHA-256 of each kept envelope; at most [`REFUSED_ENVELOPES_MAX`].
    digests: HashSet<[u8; 32]>,
    bytes: usize,
}

impl RefusedEnvelopes {
    /// Counts an envelope of this many bytes, and returns whether to keep it: the bounds leave room, and no equal bytes
    /// are kept. Computes the digest only if the bounds leave room.
    pub fn admit(&mut self, bytes: usize, digest: impl FnOnce() -> [u8; 32]) -> bool {
        // The kept bytes never exceed the bound, so the subtraction cannot underflow.
        // The bounds before the digest: a flood over them must not cost a hash for each envelope.
        let has_room = self.digests.len() < REFUSED_ENVELOPES_MAX && bytes <= REFUSED_BYTES_MAX - self.bytes;
        let is_kept = has_room && self.digests.insert(digest());
        if is_kept {
            self.bytes += bytes;
        }
        is_kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_letter_is_decided_about_once() {
        assert_eq!(DeadState::Parked.settle(Decision::Redrive), Ok(DeadState::Redriven));
        assert_eq!(DeadState::Parked.settle(Decision::Discard), Ok(DeadState::Discarded));
        for state in [DeadState::Redriven, DeadState::Discarded] {
            for decision in [Decision::Redrive, Decision::Discard] {
                assert_eq!(state.settle(decision), Err(AlreadySettled { state }));
            }
        }
        assert!(!DeadState::Parked.is_final() && DeadState::Redriven.is_final() && DeadState::Discarded.is_final());
    }

    #[test]
    fn an_offer_that_was_not_decided_says_so() {
        let ends = [
            (OfferOutcome::Rejected, AttemptEnd::Rejected),
            (OfferOutcome::Gone, AttemptEnd::Gone),
            (OfferOutcome::Undeliverable, AttemptEnd::Undeliverable),
            (OfferOutcome::TimedOut, AttemptEnd::Undecided),
            (OfferOutcome::Pending, AttemptEnd::Undecided),
        ];
        for (outcome, end) in ends {
            assert_eq!(end_of_offer(outcome), end);
        }
    }

    #[test]
    fn refused_envelopes_are_kept_once_and_up_to_a_number() {
        let mut kept = RefusedEnvelopes::default();
        assert!(kept.admit(10, || [0; 32]) && !kept.admit(10, || [0; 32]), "the same bytes are kept once");
        for number in 1..=REFUSED_ENVELOPES_MAX {
            let mut digest = [1; 32];
            digest[..8].copy_from_slice(&number.to_be_bytes());
            assert_eq!(kept.admit(10, || digest), number < REFUSED_ENVELOPES_MAX);
        }
        assert!(!kept.admit(10, || panic!("there is no room")));
    }

    #[test]
    fn refused_envelopes_are_kept_up_to_so_many_bytes() {
        let mut kept = RefusedEnvelopes::default();
        assert!(!kept.admit(REFUSED_BYTES_MAX + 1, || [1; 32]));
        assert!(kept.admit(REFUSED_BYTES_MAX - 5, || [1; 32]));
        assert!(!kept.admit(6, || [2; 32]), "one that does not fit");
        assert!(kept.admit(5, || [3; 32]), "leaves room for another that does");
        assert!(!kept.admit(usize::MAX, || [4; 32]));
    }
}

//! Events of a handoff that no message causes: acks, dead letters, absences, room, and deadlines.

use std::time::Duration;

use super::{
    Acked, Cause, Mail, OFFERS_MAX, OfferOutcome, State, Transition, Waiting,
    builder::{Next, TransitionBuilder},
};
use crate::{codes::ErrorCode, ids::AgentId};

/// Applies an ack: of the request or the context by the candidate, of the completion by the sender. Any other ack
/// changes nothing. `decides_within` is the candidate's own time for the decision.
pub(super) fn take_ack(
    mut builder: TransitionBuilder,
    by: &AgentId,
    mail: Acked,
    decides_within: Option<Duration>,
) -> Option<Transition> {
    let from_candidate = *by == builder.handoff.candidate;
    let from_sender = *by == builder.handoff.sender;
    match (mail, builder.handoff.state) {
        // The guards leave out the acks of former candidates: their offers have ended.
        (Acked::Request, State::Requested) if from_candidate && !builder.handoff.is_held() => {
            if let Some(offer) = builder.handoff.offers.last_mut() {
                offer.decides_within = decides_within;
            }
            let decision = builder.handoff.time_to_decide();
            builder.enter(State::Deciding, Cause::Delivered, Some(decision));
        }
        // A second ack must not add a second step (SPEC 12, law 4).
        (Acked::Context, State::ContextSent) if from_candidate && !builder.handoff.context_delivered => {
            builder.handoff.context_delivered = true;
            builder.record(Cause::Delivered);
        }
        (Acked::Completion, State::Completed) if from_sender && !builder.handoff.let_go => {
            builder.handoff.let_go = true;
            builder.record(Cause::Delivered);
        }
        (
            Acked::Request | Acked::Context | Acked::Completion,
            State::Requested
            | State::Deciding
            | State::Accepted
            | State::ContextSent
            | State::Completed
            | State::Rejected
            | State::Failed
            | State::Cancelled,
        ) => return None,
    }
    Some(builder.done())
}

/// Applies the dead letter of a delivery: the next candidate is asked, or the handoff fails.
pub(super) fn give_up(mut builder: TransitionBuilder, to: &AgentId, mail: Acked) -> Option<Transition> {
    let to_candidate = *to == builder.handoff.candidate;
    match (mail, builder.handoff.state) {
        // The copy of a former candidate may become a dead letter late: its offer has ended already.
        (Acked::Request, State::Requested | State::Deciding) if to_candidate && !builder.handoff.is_held() => {
            builder.settle_offer(OfferOutcome::Undeliverable);
            builder.next_or_fail(Cause::Undeliverable, ErrorCode::NoCandidate, "the request could not be delivered");
        }
        (Acked::Context, State::ContextSent) if to_candidate => {
            let text = "the context could not be delivered";
            builder.end(State::Failed, Cause::Undeliverable, ErrorCode::TakeoverFailed, text);
            builder.tell_sender();
            builder.tell_candidate();
            builder.park_for_coordinator();
        }
        (
            Acked::Request | Acked::Context | Acked::Completion,
            State::Requested
            | State::Deciding
            | State::Accepted
            | State::ContextSent
            | State::Completed
            | State::Rejected
            | State::Failed
            | State::Cancelled,
        ) => return None,
    }
    Some(builder.done())
}

/// Offers an unacked request to a present candidate, because a gone candidate may never ack it. Without another present
/// candidate the request stays.
pub(super) fn candidate_gone(mut builder: TransitionBuilder) -> Option<Transition> {
    // A request in the mailbox of a gone agent may be that of a former candidate, whose offer has ended.
    if builder.handoff.is_held() || !builder.gone.contains(&builder.handoff.candidate) {
        return None;
    }
    // An overdue handoff is left to its timer, which ends it.
    if builder.handoff.state != State::Requested || !builder.not_overdue() || !builder.has_other_candidate() {
        return None;
    }
    let text = "you were gone, and the request was offered to another agent";
    builder.withdraw_delivery();
    builder.settle_offer(OfferOutcome::Gone);
    builder.next_or_fail(Cause::CandidateGone, ErrorCode::OfferWithdrawn, text);
    Some(builder.done())
}

/// Looks again for a candidate of a handoff that waits, among the known ones and those found now.
pub(super) fn look_again(mut builder: TransitionBuilder, found: &[AgentId]) -> Option<Transition> {
    let waits = match builder.handoff.waiting {
        Some(Waiting::Capacity | Waiting::RetryTime | Waiting::Agent) => true,
        // The time of the request has not come.
        Some(Waiting::DeliverAfter) | None => false,
    };
    // An overdue handoff is left to its timer.
    if !waits || !builder.not_overdue() {
        return None;
    }
    let before = builder.handoff.clone();
    for agent in found {
        let handoff = &mut builder.handoff;
        if handoff.next_candidates.len() < OFFERS_MAX && !handoff.next_candidates.contains(agent) {
            handoff.next_candidates.push(agent.clone());
        }
    }
    match builder.next() {
        Next::Ask(candidate) => builder.offer_to(candidate, Mail::RequestAgain),
        Next::Hold(waiting, until) => {
            let is_same = builder.handoff.waiting == Some(waiting) && builder.handoff.step_deadline == until;
            if is_same && builder.handoff.next_candidates == before.next_candidates {
                return None;
            }
            builder.hold(waiting, until);
        }
        Next::None => return None,
    }
    Some(builder.done())
}

/// Applies an overdue deadline. Nothing changes before the deadline.
pub(super) fn pass_time(mut builder: TransitionBuilder) -> Option<Transition> {
    if builder.handoff.state.is_final() || builder.not_overdue() {
        return None;
    }
    // The deadline of the whole handoff wins if both have passed.
    if builder.handoff.whole_deadline <= builder.now {
        builder.fail_in_time(Cause::WholeTimeout, ErrorCode::WholeTimeout, "the time for the whole handoff was up");
        return Some(builder.done());
    }
    match builder.handoff.state {
        State::Deciding => {
            builder.settle_offer(OfferOutcome::TimedOut);
            builder.next_or_fail(
                Cause::AcceptTimeout,
                ErrorCode::AcceptTimeout,
                "the candidate did not decide in time",
            );
        }
        State::Accepted => {
            let text = "the sender did not send the context in time";
            builder.fail_in_time(Cause::ContextTimeout, ErrorCode::ContextTimeout, text);
        }
        State::ContextSent => {
            let text = "the candidate did not complete in time";
            builder.fail_in_time(Cause::CompleteTimeout, ErrorCode::CompleteTimeout, text);
        }
        // The time has come to ask a candidate again, or to ask the first one.
        State::Requested if builder.handoff.is_held() => match builder.next() {
            Next::Ask(candidate) => builder.offer_to(candidate, Mail::RequestAgain),
            Next::Hold(waiting, until) => builder.hold(waiting, until),
            Next::None => builder.end_without_candidate(),
        },
        // An undelivered request has the whole timeout: its candidate may be away and come back.
        State::Requested | State::Completed | State::Rejected | State::Failed | State::Cancelled => return None,
    }
    Some(builder.done())
}

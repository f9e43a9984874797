//! The state machine of negotiations. Every pair of state and input is defined: a transition, no change, or a typed
//! rejection.

use std::sync::Arc;

use super::{
    Input, Negotiation, NegotiationSignal, NewOffer, Offer, ROUND_MAX, Rejection, Request, State, Surroundings, Thread,
    ThreadState, Transition, building::Building,
};
use crate::{
    ReadError, StepError,
    codes::ErrorCode,
    ids::{AgentId, MessageId},
    time::Timestamp,
};

/// Applies an input of an agent.
pub(super) fn step(
    before: Option<&Negotiation>,
    input: &Input,
    around: &mut dyn Surroundings,
    now: Timestamp,
) -> Result<Transition, StepError> {
    let building = match (input, before) {
        // Admission answers repeats. A second negotiation must not take the place of the first.
        (Input::Request(_), Some(_)) => return Err(Rejection::Exists.into()),
        (Input::Request(request), None) => open(request, now)?,
        (Input::Offer { .. } | Input::Decline { .. } | Input::Accept { .. } | Input::Cancel, None) => {
            return Err(Rejection::Unknown.into());
        }
        (Input::Offer { from, to, offer }, Some(before)) => take_offer(before, (from, to), offer, around, now)?,
        (Input::Decline { from, to }, Some(before)) => decline(before, from, to, around, now)?,
        (Input::Accept { from, to, offer, handoff }, Some(before)) => {
            accept(Building::new(before, now), (from, to), *offer, *handoff)?
        }
        (Input::Cancel, Some(before)) => cancel(Building::new(before, now))?,
    };
    Ok(building.done(around)?)
}

/// Applies the passing of time: the deadline, or the next part of the rest. `None`: neither is due.
pub(super) fn pass_time(
    before: &Negotiation,
    around: &mut dyn Surroundings,
    now: Timestamp,
) -> Result<Option<Transition>, ReadError> {
    if before.next_deadline().is_none_or(|deadline| now < deadline) {
        return Ok(None);
    }
    let mut building = Building::new(before, now);
    let is_over = before.deadline().is_some_and(|deadline| deadline <= now);
    match (before.state, is_over) {
        (State::Open, true) => building.close(around),
        (State::Deciding, true) => {
            building.fail(ErrorCode::NegotiationExpired, "the requester did not decide in time", true);
        }
        // `done` does the next part of the rest.
        (State::Open | State::Deciding, false)
        | (State::Awarded | State::Settled | State::Failed | State::Cancelled, _) => {}
    }
    building.done(around).map(Some)
}

/// Applies the dead letter of the request in an agent's mailbox. `None`: it changes nothing.
pub(super) fn give_up(
    before: &Negotiation,
    to: &AgentId,
    around: &mut dyn Surroundings,
    now: Timestamp,
) -> Result<Option<Transition>, ReadError> {
    let mut building = Building::new(before, now);
    // Only an agent that has not answered is lost by the dead letter. An answer shows that it had the request.
    let asked = before.threads.iter().position(|thread| thread.agent == *to && thread.state == ThreadState::Asked);
    let Some(place) = asked else { return Ok(None) };
    match before.state {
        State::Open => {
            building.thread(place).state = ThreadState::Unreachable;
            // An overdue negotiation is left to its timer, which closes it.
            if building.check_in_time().is_ok() {
                building.close_if_complete(around);
            }
        }
        // After the close the agent's answer no longer counts.
        State::Deciding | State::Awarded | State::Settled | State::Failed | State::Cancelled => return Ok(None),
    }
    building.done(around).map(Some)
}

/// Applies an input of another entity. `None`: it changes nothing.
pub(super) fn on_signal(
    before: &Negotiation,
    signal: &NegotiationSignal,
    around: &mut dyn Surroundings,
    now: Timestamp,
) -> Result<Option<Transition>, ReadError> {
    let mut building = Building::new(before, now);
    let is_of_award =
        |handoff: &MessageId| before.award.as_ref().is_some_and(|award| award.handoff.as_ref() == Some(handoff));
    match (signal, before.state) {
        (NegotiationSignal::Taken { handoff, by, asked }, State::Awarded) if is_of_award(handoff) => {
            building.told_by_handoff(asked);
            building.negotiation.winner = Some(by.clone());
            building.end(State::Settled);
        }
        (NegotiationSignal::NotTaken { handoff, code, message, asked }, State::Awarded) if is_of_award(handoff) => {
            building.told_by_handoff(asked);
            // The sender of a failed handoff has its own notice.
            building.fail(*code, message, false);
        }
        (NegotiationSignal::NotOpened { handoff, code, message }, State::Awarded) if is_of_award(handoff) => {
            building.fail(*code, message, true);
        }
        // The word of another handoff, for example of a redrive.
        (
            NegotiationSignal::Taken { .. } | NegotiationSignal::NotTaken { .. } | NegotiationSignal::NotOpened { .. },
            State::Open | State::Deciding | State::Awarded | State::Settled | State::Failed | State::Cancelled,
        ) => return Ok(None),
    }
    building.done(around).map(Some)
}

/// Opens a negotiation and asks the agents.
fn open(request: &Request, now: Timestamp) -> Result<Building, Rejection> {
    let (found, most) = (request.asked.len(), request.asked_max);
    // Refused and not cut: the requester must know which agents it has asked.
    if found > most {
        return Err(Rejection::TooManyAsked { found, most });
    }
    // A stated deadline over the limit is refused, because the requester counts on it. A default is lowered without a
    // word.
    let latest = now.plus(request.offers_timeout_max);
    let offers_deadline = request.offers_deadline.unwrap_or_else(|| now.plus(request.offers_timeout).min(latest));
    if offers_deadline <= now {
        return Err(Rejection::field("offers_deadline", "must be in the future"));
    }
    if offers_deadline > latest {
        let problem = format!("must be at most {:?} from now", request.offers_timeout_max);
        return Err(Rejection::field("offers_deadline", problem));
    }
    let thread = |agent: &AgentId| {
        Arc::new(Thread {
            agent: agent.clone(),
            state: ThreadState::Asked,
            offer: None,
            counter: None,
            round: 0,
            is_told: false,
        })
    };
    let negotiation = Negotiation {
        id: request.id,
        requester: request.requester.clone(),
        receiver: request.receiver.clone(),
        state: State::Open,
        task_type: request.task_type.clone(),
        task: request.task.clone(),
        mandate: request.mandate.clone(),
        rule: request.rule,
        min_confidence: request.min_confidence,
        max_cost: request.max_cost,
        offers_wanted: request.offers_wanted,
        offers_deadline,
        decision_timeout: request.decision_timeout,
        decision_deadline: None,
        threads: request.asked.iter().map(thread).collect(),
        offers_received: 0,
        award: None,
        winner: None,
        failure: None,
        withdrawn_upto: 0,
        asked_upto: 0,
        told_upto: 0,
        created_at: now,
        closed_at: None,
        updated_at: now,
    };
    // `done` asks the first agents.
    Ok(Building { negotiation, effects: Vec::new(), now })
}

/// Takes an offer of a bidder, or a counter-offer of the requester.
fn take_offer(
    before: &Negotiation,
    (from, to): (&AgentId, &AgentId),
    offer: &NewOffer,
    around: &mut dyn Surroundings,
    now: Timestamp,
) -> Result<Building, Rejection> {
    let mut building = Building::new(before, now);
    if *from == before.requester {
        let place = building.thread_of(to, "the receiver was not asked in this negotiation")?;
        check_open(&building)?;
        counter(&mut building, place, offer)?;
    } else {
        // The part of the sender is checked before the state: an outsider must not learn whether the negotiation is
        // open.
        let place = building.thread_of(from, "only an agent that was asked may offer")?;
        check_other_side(before, to)?;
        check_open(&building)?;
        if offer.is_withdrawal {
            withdraw(&mut building, place)?;
        } else {
            bid(&mut building, place, offer)?;
        }
        building.effects.push(super::Effect::Forward(to.clone()));
        building.close_if_complete(around);
        return Ok(building);
    }
    building.effects.push(super::Effect::Forward(to.clone()));
    Ok(building)
}

/// Checks that offers are taken.
fn check_open(building: &Building) -> Result<(), Rejection> {
    match building.negotiation.state {
        State::Open => building.check_in_time(),
        State::Deciding | State::Awarded | State::Settled | State::Failed | State::Cancelled => Err(building.closed()),
    }
}

fn check_other_side(negotiation: &Negotiation, to: &AgentId) -> Result<(), Rejection> {
    if *to == negotiation.requester {
        return Ok(());
    }
    let violation = crate::codes::FieldViolation {
        path: "envelope.receiver_id".to_owned(),
        problem: "must be the requester of the negotiation".to_owned(),
    };
    Err(Rejection::Fields { violations: vec![violation] })
}

const PART_IS_OVER: Rejection =
    Rejection::NotStanding { problem: "the bidder's part has ended: its offer was declined or withdrawn" };

/// A bidder's first offer, or its answer to a counter-offer.
fn bid(building: &mut Building, place: usize, offer: &NewOffer) -> Result<(), Rejection> {
    let now = building.now;
    if offer.valid_until.is_some_and(|until| until <= now) {
        return Err(Rejection::field("valid_until", "must be in the future"));
    }
    let thread = building.thread(place);
    match thread.state {
        ThreadState::Asked | ThreadState::Countered => check_round(offer.round, thread.round)?,
        ThreadState::Offered => {
            return Err(Rejection::NotStanding { problem: "the bidder's offer stands, and the requester is on turn" });
        }
        ThreadState::Declined | ThreadState::Withdrawn => return Err(PART_IS_OVER),
        // The dead letter was redriven, and the agent answers after all.
        ThreadState::Unreachable => check_round(offer.round, thread.round)?,
        ThreadState::NotReached => return Err(building.closed()),
    }
    // Offers are numbered in the order of their acceptance, which is the last rule between equal offers.
    let place_of_offer = building.negotiation.offers_received;
    building.negotiation.offers_received += 1;
    let thread = building.thread(place);
    thread.state = ThreadState::Offered;
    thread.offer = Some(Offer {
        id: offer.id,
        confidence: offer.confidence,
        estimated_duration: offer.estimated_duration,
        cost: offer.cost,
        valid_until: offer.valid_until,
        place: place_of_offer,
        offered_at: now,
    });
    Ok(())
}

/// A counter-offer of the requester. The bidder's offer stands until the bidder replaces it.
fn counter(building: &mut Building, place: usize, offer: &NewOffer) -> Result<(), Rejection> {
    if offer.is_withdrawal {
        return Err(Rejection::field("withdrawn", "is for bidders: a requester declines an offer or cancels"));
    }
    let now = building.now;
    let thread = building.thread(place);
    match thread.state {
        // A counter-offer opens the next round; the bidder answers in the same one.
        ThreadState::Offered if thread.standing_offer(now).is_some() => check_round(offer.round, thread.round + 1)?,
        ThreadState::Offered => {
            return Err(Rejection::NotStanding { problem: "the bidder's offer is no longer valid" });
        }
        ThreadState::Countered => {
            return Err(Rejection::NotStanding {
                problem: "the offer is countered already, and the bidder is on turn",
            });
        }
        ThreadState::Asked | ThreadState::Unreachable | ThreadState::NotReached => {
            return Err(Rejection::NotStanding { problem: "the agent has made no offer" });
        }
        ThreadState::Declined | ThreadState::Withdrawn => return Err(PART_IS_OVER),
    }
    thread.round += 1;
    thread.counter = Some(offer.id);
    thread.state = ThreadState::Countered;
    Ok(())
}

/// Checks the round of a message. The requester begins each round after the first.
fn check_round(round: u32, expected: u32) -> Result<(), Rejection> {
    // The limit goes before the turn: the sender has to end the thread, with any round.
    if round > ROUND_MAX || expected > ROUND_MAX {
        return Err(Rejection::RoundLimit { round: round.max(expected) });
    }
    if round != expected {
        return Err(Rejection::field("round", format!("must be {expected}, the round that is on turn")));
    }
    Ok(())
}

fn withdraw(building: &mut Building, place: usize) -> Result<(), Rejection> {
    let thread = building.thread(place);
    match thread.state {
        // A bidder may withdraw while its offer is countered, because the countered offer still stands.
        ThreadState::Offered | ThreadState::Countered => thread.state = ThreadState::Withdrawn,
        ThreadState::Asked | ThreadState::Unreachable | ThreadState::NotReached => {
            return Err(Rejection::NotStanding { problem: "the bidder has made no offer that it could withdraw" });
        }
        ThreadState::Declined | ThreadState::Withdrawn => return Err(PART_IS_OVER),
    }
    Ok(())
}

/// Ends a thread: by the agent that was asked, or by the requester.
fn decline(
    before: &Negotiation,
    from: &AgentId,
    to: &AgentId,
    around: &mut dyn Surroundings,
    now: Timestamp,
) -> Result<Building, Rejection> {
    let mut building = Building::new(before, now);
    let is_requester = *from == before.requester;
    let place = match is_requester {
        true => building.thread_of(to, "the receiver was not asked in this negotiation")?,
        false => {
            let place = building.thread_of(from, "only an agent that was asked may decline")?;
            check_other_side(before, to)?;
            place
        }
    };
    check_open(&building)?;
    let thread = building.thread(place);
    match (thread.state, is_requester) {
        (ThreadState::Asked | ThreadState::Unreachable, false) | (ThreadState::Offered | ThreadState::Countered, _) => {
            thread.state = ThreadState::Declined;
        }
        (ThreadState::Asked | ThreadState::Unreachable | ThreadState::NotReached, true) => {
            return Err(Rejection::NotStanding { problem: "the agent has made no offer that could be declined" });
        }
        (ThreadState::NotReached, false) => return Err(building.closed()),
        (ThreadState::Declined | ThreadState::Withdrawn, _) => return Err(PART_IS_OVER),
    }
    // The decline itself tells the bidder.
    building.thread(place).is_told |= is_requester;
    building.effects.push(super::Effect::Forward(to.clone()));
    building.close_if_complete(around);
    Ok(building)
}

/// The requester takes a standing offer.
fn accept(
    mut building: Building,
    (from, to): (&AgentId, &AgentId),
    offer: MessageId,
    handoff: Option<MessageId>,
) -> Result<Building, Rejection> {
    if *from != building.negotiation.requester {
        return Err(Rejection::NotAsked { problem: "only the requester of the negotiation may accept an offer" });
    }
    let place = building.thread_of(to, "the receiver was not asked in this negotiation")?;
    match building.negotiation.state {
        State::Open | State::Deciding => building.check_in_time()?,
        State::Awarded | State::Settled | State::Failed | State::Cancelled => return Err(building.closed()),
    }
    let now = building.now;
    let thread = building.thread(place);
    // Two codes: an agent without an offer points to a wrong receiver, a replaced offer to a requester that was too
    // slow.
    if thread.offer.is_none() {
        return Err(Rejection::OfferUnknown { offer });
    }
    match thread.standing_offer(now) {
        Some(standing) if standing.id == offer => {}
        Some(_) | None => {
            return Err(Rejection::NotStanding {
                problem: "the offer was replaced, declined or withdrawn, or is no longer valid",
            });
        }
    }
    // As mail the accept itself tells the winner. A handoff may pass over the winner, so its end says which agents it told.
    thread.is_told = handoff.is_none();
    building.award(offer, to.clone(), handoff);
    if handoff.is_none() {
        building.effects.push(super::Effect::Forward(to.clone()));
    }
    Ok(building)
}

fn cancel(mut building: Building) -> Result<Building, Rejection> {
    match building.negotiation.state {
        // Also after the deadline, before its timer: a cancel ends the negotiation no less.
        State::Open | State::Deciding => building.end(State::Cancelled),
        // The handoff of an award is cancelled by a signed HandoffCancel, which ends the negotiation too.
        State::Awarded | State::Settled | State::Failed | State::Cancelled => return Err(building.closed()),
    }
    Ok(building)
}

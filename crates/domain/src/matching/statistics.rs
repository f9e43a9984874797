//! The statistics of an agent: how its latest offers ended, and how long it took to decide.

use std::time::Duration;

use crate::{
    codes::ErrorCode,
    handoff::{Cause, Handoff, Offer, OfferOutcome, State, Step},
    ids::AgentId,
    time::Timestamp,
};

/// The most offers that the statistics of an agent keep.
pub const OFFERS_KEPT: usize = 50;
/// The age after which an offer no longer counts.
pub const DECIDED_WITHIN: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// The end of one offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OfferResult {
    /// The time of the end.
    pub at: Timestamp,
    /// Whether the agent took the task over.
    pub completed: bool,
    /// The time from the ack of the request to the decision. `None`: the agent made no decision.
    pub decision: Option<Duration>,
}

/// The latest ended offers of an agent, oldest first; at most [`OFFERS_KEPT`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Statistics {
    results: Vec<OfferResult>,
}

/// The statistics at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Summary {
    /// The offers that count, at most [`OFFERS_KEPT`].
    pub offers: u32,
    /// Those of them that ended with a takeover.
    pub completed: u32,
    /// The median time of their decisions. `None`: no decision.
    pub median_decision: Option<Duration>,
}

impl Statistics {
    /// The statistics with these offers, oldest first. Only the last [`OFFERS_KEPT`] are kept.
    pub fn of(mut results: Vec<OfferResult>) -> Self {
        results.drain(..results.len().saturating_sub(OFFERS_KEPT));
        Self { results }
    }

    /// The ended offers, oldest first.
    pub fn results(&self) -> &[OfferResult] {
        &self.results
    }

    /// Adds the end of an offer, and drops those that no longer count.
    pub fn add(&mut self, result: OfferResult) {
        // Old offers go before the length is cut, so that the record stays small for a quiet agent too.
        self.results.retain(|known| counts(known, result.at));
        self.results.push(result);
        self.results.drain(..self.results.len().saturating_sub(OFFERS_KEPT));
    }

    /// The statistics of the offers that count at this time.
    pub fn summary(&self, now: Timestamp) -> Summary {
        let counted = || self.results.iter().filter(|result| counts(result, now));
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let mut decisions: Vec<Duration> = counted().filter_map(|result| result.decision).collect();
        // The median and not the mean: one slow decision must not mark an agent for a week.
        decisions.sort_unstable();
        Summary {
            offers: number(counted().count()),
            completed: number(counted().filter(|result| result.completed).count()),
            median_decision: median(&decisions),
        }
    }
}

fn counts(result: &OfferResult, now: Timestamp) -> bool {
    now.since(result.at) < DECIDED_WITHIN
}

/// The middle one of sorted times; of an even number the mean of the two in the middle.
fn median(sorted: &[Duration]) -> Option<Duration> {
    let upper = *sorted.get(sorted.len() / 2)?;
    if sorted.len() % 2 == 1 { Some(upper) } else { Some((sorted[sorted.len() / 2 - 1] + upper) / 2) }
}

/// The offer that ended with a step of a handoff, if it says something about its agent: offers that the sender withdrew
/// or let expire do not count.
pub fn ended_offer(before: Option<&Handoff>, after: &Handoff) -> Option<(AgentId, OfferResult)> {
    let before = before.filter(|before| !before.state.is_final())?;
    // An open handoff's last offer is that of the current candidate.
    let last = before.offers.last()?;
    // A handoff that waits to ask a candidate once more has no offer that can end.
    let has_offer = matches!(last.outcome, OfferOutcome::Pending | OfferOutcome::Accepted);
    let offer = after.offers.iter().find(|offer| has_offer && offer.candidate == last.candidate)?;
    let completed = took_over(before, after, offer)?;
    // Records of statistics have milliseconds, and memory must agree with them.
    let at = Timestamp::from_unix_nanoseconds(after.updated_at.unix_milliseconds() * 1_000_000);
    let whole = |time: Duration| Duration::from_millis(u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
    let result = OfferResult { at, completed, decision: decision(after, offer).map(whole) };
    Some((offer.candidate.clone(), result))
}

/// Whether the agent took the task over. `None`: the offer is open, or its end says nothing about the agent.
fn took_over(before: &Handoff, after: &Handoff, offer: &Offer) -> Option<bool> {
    let is_late = after.failure.as_ref().is_some_and(|failure| failure.code == ErrorCode::WholeTimeout);
    match (offer.outcome, after.state) {
        (OfferOutcome::Rejected | OfferOutcome::TimedOut | OfferOutcome::Undeliverable | OfferOutcome::Gone, _) => {
            Some(false)
        }
        (OfferOutcome::Accepted, State::Completed) => Some(true),
        // Only after the context it was the candidate's turn.
        (OfferOutcome::Accepted, State::Failed) => (before.state == State::ContextSent).then_some(false),
        (OfferOutcome::Withdrawn, State::Failed) => is_late.then_some(false),
        (
            OfferOutcome::Pending | OfferOutcome::Accepted | OfferOutcome::Withdrawn,
            State::Requested
            | State::Deciding
            | State::Accepted
            | State::ContextSent
            | State::Completed
            | State::Rejected
            | State::Failed
            | State::Cancelled,
        ) => None,
    }
}

/// The time from the ack of the request to the decision about this offer.
fn decision(handoff: &Handoff, offer: &Offer) -> Option<Duration> {
    match offer.outcome {
        // No decision within the whole time counts as the slowest one.
        OfferOutcome::TimedOut => Some(handoff.time_to_decide_about(offer)),
        OfferOutcome::Accepted | OfferOutcome::Rejected => {
            let is_of_offer = |step: &&Step| step.candidate == offer.candidate && step.at >= offer.offered_at;
            let of_offer = || handoff.steps.iter().filter(is_of_offer);
            let decided = of_offer().find(|step| matches!(step.cause, Cause::Accepted | Cause::Rejected));
            let delivered = of_offer().find(|step| step.state == State::Deciding && step.cause == Cause::Delivered);
            // An answer may come before the ack of its request.
            let since = delivered.map_or(offer.offered_at, |step| step.at);
            Some(decided.map_or(handoff.updated_at, |step| step.at).since(since))
        }
        OfferOutcome::Pending | OfferOutcome::Withdrawn | OfferOutcome::Undeliverable | OfferOutcome::Gone => None,
    }
}

//! The order of offers by an award rule.

use std::cmp::Ordering;

use super::{AwardRule, Negotiation, Offer, Surroundings, Thread};
use crate::{ids::AgentId, time::Timestamp};

/// An offer that the negotiation may award, with the load of its agent.
struct Eligible<'a> {
    agent: &'a AgentId,
    offer: &'a Offer,
    load: u32,
}

/// The eligible offers, the best first: those that stand, keep the floors, and whose agents may have the work. Without a
/// rule the first offer comes first.
pub(super) fn ranked(
    negotiation: &Negotiation,
    around: &mut dyn Surroundings,
    now: Timestamp,
) -> Vec<(AgentId, Offer)> {
    let mut eligible: Vec<Eligible<'_>> = Vec::new();
    for thread in &negotiation.threads {
        let Some(offer) = eligible_offer(negotiation, thread, now) else { continue };
        // The agent may have left, and the policies may have changed, since the agent was asked.
        if around.may_hand_off(&negotiation.requester, &thread.agent, negotiation.mandate.as_ref()) {
            eligible.push(Eligible { agent: &thread.agent, offer, load: around.load(&thread.agent) });
        }
    }
    eligible.sort_by(|one, other| by_rule(negotiation.rule, one, other));
    eligible.into_iter().map(|eligible| (eligible.agent.clone(), eligible.offer.clone())).collect()
}

fn eligible_offer<'a>(negotiation: &Negotiation, thread: &'a Thread, now: Timestamp) -> Option<&'a Offer> {
    let keeps_floors = |offer: &&Offer| {
        offer.confidence >= negotiation.min_confidence && negotiation.max_cost.is_none_or(|most| offer.cost <= most)
    };
    thread.standing_offer(now).filter(keeps_floors)
}

fn by_rule(rule: Option<AwardRule>, one: &Eligible<'_>, other: &Eligible<'_>) -> Ordering {
    let others = AwardRule::ALL.into_iter().filter(|next| rule.is_some_and(|rule| rule != *next));
    let ordered = rule.into_iter().chain(others).map(|rule| compare(rule, one, other));
    // The order must be total and the same in a replay, so the place of the offer decides last.
    ordered.fold(Ordering::Equal, Ordering::then).then(one.offer.place.cmp(&other.offer.place))
}

fn compare(rule: AwardRule, one: &Eligible<'_>, other: &Eligible<'_>) -> Ordering {
    match rule {
        AwardRule::HighestConfidence => other.offer.confidence.total_cmp(&one.offer.confidence),
        AwardRule::Soonest => {
            // An offer without a duration comes last: `None` sorts first otherwise.
            let key = |offer: &Offer| (offer.estimated_duration.is_none(), offer.estimated_duration);
            key(one.offer).cmp(&key(other.offer))
        }
        AwardRule::LeastLoaded => one.load.cmp(&other.load),
        AwardRule::LowestCost => one.offer.cost.total_cmp(&other.offer.cost),
    }
}

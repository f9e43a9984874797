//! How agents negotiate: they ask for offers, bid, counter and award. Some never decide, come late, bid twice, bid where
//! they were not asked, or award what is not theirs.

use baton_broker_core::{
    proto::v1::{self, MessageType as T},
    time::Timestamp,
};
use bytes::Bytes;
use prost::Message;

use super::{Action, Agent, Manner};
use crate::rng::Ids;

/// What an agent remembers of negotiations.
#[derive(Debug, Default)]
pub(crate) struct Bidding {
    own: Vec<Own>,
    /// The negotiations in which the agent was asked, with their requesters.
    asked: Vec<(String, String)>,
}

/// A negotiation of the agent.
#[derive(Debug, Clone)]
struct Own {
    id: String,
    task: String,
    /// The offers that the agent has heard: the bidder, the id, the round.
    offers: Vec<(String, String, u32)>,
}

/// The payload; its default value if it does not decode.
fn payload_of<M: Message + Default>(envelope: &v1::Envelope) -> M {
    let value = envelope.payload.as_ref().map(|payload| payload.value.clone()).unwrap_or_default();
    M::decode(value).unwrap_or_default()
}

#[expect(clippy::unnecessary_wraps, reason = "fields of messages are optional")]
fn seconds(seconds: u64) -> Option<prost_types::Duration> {
    Some(prost_types::Duration { seconds: i64::try_from(seconds).unwrap(), nanos: 0 })
}

fn later(now: Timestamp, seconds: u64) -> prost_types::Timestamp {
    let (now, nanos) = now.to_parts();
    prost_types::Timestamp { seconds: now + i64::try_from(seconds).unwrap(), nanos }
}

impl Agent {
    /// Asks other agents for offers: for a task, with a mandate or without one, or for work that is no task.
    pub(super) fn ask_for_offers(&mut self, other: &str, tasks: u64, ids: &Ids, now: Timestamp) -> Action {
        let task = match self.rng.roll(3) {
            0 => String::new(),
            1 => format!("task-{}", self.rng.roll(tasks)),
            _ => self.owned.keys().next().cloned().unwrap_or_default(),
        };
        let rule = i32::try_from(self.rng.roll(5)).unwrap();
        let has_terms = !task.is_empty() && !self.rng.once_in(4);
        let request = v1::TaskRequest {
            award_rule: rule,
            offers_wanted: u32::try_from(self.rng.roll(4)).unwrap(),
            offers_deadline: self.rng.once_in(2).then(|| later(now, 1 + self.rng.roll(40))),
            max_cost: if self.rng.once_in(3) { 5.0 } else { 0.0 },
            decision_timeout: if rule == 0 { seconds(1 + self.rng.roll(60)) } else { None },
            handoff: has_terms.then(|| self.terms()),
            ..Default::default()
        };
        let to = *["all:worker", "all:worker", "type:worker", other][usize::try_from(self.rng.roll(4)).unwrap()..]
            .first()
            .unwrap();
        let epoch = if task.is_empty() { 0 } else { self.epoch_of(&task) };
        let envelope = self.envelope(to, T::TaskRequest, &task, "", epoch, &request, ids, now);
        self.bidding.own.push(Own { id: envelope.message_id.clone(), task, offers: Vec::new() });
        Action::Send(self.sign(envelope))
    }

    fn terms(&mut self) -> v1::HandoffRequest {
        let lends = self.rng.once_in(3);
        let timeouts = v1::HandoffTimeouts { accept: seconds(1 + self.rng.roll(20)), ..Default::default() };
        v1::HandoffRequest {
            task_type: "x".into(),
            mode: if lends { v1::HandoffMode::Delegate.into() } else { 0 },
            loan_timeout: if lends { seconds(1 + self.rng.roll(120)) } else { None },
            timeouts: Some(timeouts),
            ..Default::default()
        }
    }

    fn epoch_of(&self, task: &str) -> u64 {
        self.owned.get(task).copied().unwrap_or(1)
    }

    /// Acts in a negotiation without being asked: awards, counters or declines an offer, or bids once more.
    pub(super) fn press(&mut self, ids: &Ids, now: Timestamp) -> Option<Action> {
        let pick = usize::try_from(self.rng.number() >> 1).unwrap();
        if self.rng.once_in(3) {
            let (id, requester) = self.bidding.asked.get(pick % self.bidding.asked.len().max(1))?.clone();
            let round = u32::try_from(self.rng.roll(2)).unwrap();
            let offer = self.an_offer(round, now);
            return Some(Action::Send(self.make(&requester, T::TaskOffer, "", &id, 0, &offer, ids, now)));
        }
        let own = self.bidding.own.get(pick % self.bidding.own.len().max(1))?.clone();
        let (bidder, offer, round) = own.offers.get(pick % own.offers.len().max(1))?.clone();
        let bytes = match self.rng.roll(4) {
            0 => self.counter(&own.id, &bidder, round, ids, now),
            1 => self.make(&bidder, T::TaskDecline, "", &own.id, 0, &v1::TaskDecline::default(), ids, now),
            _ => self.award(&own, &bidder, &offer, ids, now),
        };
        Some(Action::Send(bytes))
    }

    /// Bids where the agent was not asked, or awards an offer of another agent's negotiation.
    pub(super) fn lie_about_offers(&mut self, other: &str, ids: &Ids, now: Timestamp) -> Option<Action> {
        let pick = usize::try_from(self.rng.number() >> 1).unwrap();
        let (id, requester) = self.bidding.asked.get(pick % self.bidding.asked.len().max(1))?.clone();
        let bytes = match self.rng.roll(3) {
            0 => {
                let accept = v1::TaskAccept { offer_id: id.clone(), ..Default::default() };
                self.make(other, T::TaskAccept, "", &id, 0, &accept, ids, now)
            }
            1 => {
                let offer = self.an_offer(4, now);
                self.make(&requester, T::TaskOffer, "", &id, 0, &offer, ids, now)
            }
            _ => {
                let own = self.bidding.own.last()?.id.clone();
                let offer = self.an_offer(0, now);
                self.make(&requester, T::TaskOffer, "", &own, 0, &offer, ids, now)
            }
        };
        Some(Action::Send(bytes))
    }

    fn an_offer(&mut self, round: u32, now: Timestamp) -> v1::TaskOffer {
        let tenths = |number: u64| f64::from(u32::try_from(number).unwrap()) / 10.0;
        v1::TaskOffer {
            confidence: tenths(self.rng.roll(11)),
            cost: tenths(self.rng.roll(100)),
            estimated_duration: if self.rng.once_in(2) { seconds(self.rng.roll(600)) } else { None },
            round,
            withdrawn: self.rng.once_in(20),
            valid_until: self.rng.once_in(5).then(|| later(now, 1 + self.rng.roll(40))),
            ..Default::default()
        }
    }

    fn counter(&mut self, id: &str, bidder: &str, round: u32, ids: &Ids, now: Timestamp) -> Bytes {
        let offer = v1::TaskOffer { withdrawn: false, ..self.an_offer(round + 1, now) };
        self.make(bidder, T::TaskOffer, "", id, 0, &offer, ids, now)
    }

    fn award(&mut self, own: &Own, bidder: &str, offer: &str, ids: &Ids, now: Timestamp) -> Bytes {
        let handoff = (!own.task.is_empty()).then(|| {
            let fallbacks = own.offers.iter().map(|(other, ..)| other.clone());
            let fallbacks = fallbacks.filter(|other| other != bidder).take(1).collect();
            v1::HandoffRequest { fallback_candidates: fallbacks, ..self.terms() }
        });
        let epoch = if own.task.is_empty() { 0 } else { self.epoch_of(&own.task) };
        let accept = v1::TaskAccept { offer_id: offer.to_owned(), handoff, ..Default::default() };
        self.make(bidder, T::TaskAccept, &own.task, &own.id, epoch, &accept, ids, now)
    }

    /// Answers a message of a negotiation.
    pub(super) fn answer_in_negotiation(
        &mut self,
        handoff: &str,
        envelope: &v1::Envelope,
        ids: &Ids,
        now: Timestamp,
    ) -> Option<Bytes> {
        let (sender, id) = (envelope.sender_id.clone(), envelope.correlation_id.clone());
        let place = self.bidding.own.iter().position(|own| own.id == id);
        match envelope.message_type() {
            T::TaskRequest => {
                let id = envelope.message_id.clone();
                self.bidding.asked.push((id.clone(), sender.clone()));
                match self.rng.roll(10) {
                    0 => None,
                    1 => Some(self.make(&sender, T::TaskDecline, "", &id, 0, &v1::TaskDecline::default(), ids, now)),
                    _ => {
                        let offer = self.an_offer(0, now);
                        Some(self.make(&sender, T::TaskOffer, "", &id, 0, &offer, ids, now))
                    }
                }
            }
            T::TaskOffer => {
                let round = payload_of::<v1::TaskOffer>(envelope).round;
                let Some(place) = place else {
                    let offer = self.an_offer(round, now);
                    return Some(self.make(&sender, T::TaskOffer, "", &id, 0, &offer, ids, now));
                };
                let offer = envelope.message_id.clone();
                self.bidding.own[place].offers.push((sender.clone(), offer.clone(), round));
                match self.rng.roll(6) {
                    0 | 1 => Some(self.counter(&id, &sender, round, ids, now)),
                    2 => {
                        let own = self.bidding.own[place].clone();
                        Some(self.award(&own, &sender, &offer, ids, now))
                    }
                    _ => None,
                }
            }
            T::NegotiationClosed => {
                let closed: v1::NegotiationClosed = payload_of(envelope);
                if let Ok(mandate) = v1::Envelope::decode(closed.task_request.clone())
                    && !closed.task_request.is_empty()
                {
                    return Some(self.decide_on_award(&mandate.sender_id, handoff, envelope, ids, now));
                }
                // Some requesters die before they decide.
                if closed.state() != v1::NegotiationState::Deciding || self.rng.once_in(4) {
                    return None;
                }
                let own = self.bidding.own.get(place?)?.clone();
                let (bidder, offer, _) = own.offers.last()?;
                Some(self.award(&own, bidder, offer, ids, now))
            }
            T::TaskAccept if !envelope.task_id.is_empty() => {
                Some(self.decide_on_award(&sender, handoff, envelope, ids, now))
            }
            _ => None,
        }
    }

    /// Accepts or rejects the handoff of an award.
    fn decide_on_award(
        &mut self,
        requester: &str,
        handoff: &str,
        award: &v1::Envelope,
        ids: &Ids,
        now: Timestamp,
    ) -> Bytes {
        let (task, epoch) = (&award.task_id, award.epoch);
        match self.manner != Manner::Diligent && self.rng.once_in(3) {
            true => {
                let reject = v1::HandoffReject { reason: v1::RejectReason::Other.into(), ..Default::default() };
                self.make(requester, T::HandoffReject, task, handoff, epoch, &reject, ids, now)
            }
            false => {
                let accept = v1::HandoffAccept::default();
                self.make(requester, T::HandoffAccept, task, handoff, epoch, &accept, ids, now)
            }
        }
    }
}

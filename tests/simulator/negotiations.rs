//! Law 10: a negotiation has at most one award, and it is to a standing offer of an agent that was asked; each bidder is
//! told exactly once; every negotiation ends.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use baton_broker_core::{
    domain::{
        mailbox::{EnvelopePlace, Letter},
        negotiation::{Negotiation, State, Thread, ThreadState},
    },
    ids::{AgentId, MessageId},
    proto::v1::{self, MessageType},
    records::{self, NegotiationRecord},
    store::{Change, Record, Table},
    time::Timestamp,
};
use bytes::Bytes;
use prost::Message as _;

/// The negotiations as stored, and what their bidders were told.
#[derive(Debug, Default)]
pub(crate) struct Negotiations {
    heads: BTreeMap<MessageId, NegotiationRecord>,
    rows: BTreeMap<Vec<u8>, Bytes>,
    /// The whole of each stored negotiation after the last change of it.
    known: BTreeMap<MessageId, Arc<Negotiation>>,
    /// The notices of the end that each bidder got.
    notices: HashMap<(MessageId, AgentId), HashSet<MessageId>>,
    /// The agents that an award was offered to before the end.
    awarded: HashSet<(MessageId, AgentId)>,
}

impl Negotiations {
    /// Checks a durable change.
    pub(crate) fn see_change(
        &mut self,
        change: &Change,
        befores: &[Option<Record>],
        envelope: &dyn Fn(EnvelopePlace) -> Bytes,
        counts: &mut BTreeMap<&'static str, u64>,
    ) {
        let (mut touched, mut accepted, mut letters) = (BTreeSet::new(), HashSet::new(), Vec::new());
        for (write, before) in change.writes.iter().zip(befores) {
            let key = &write.key.key;
            match (write.key.table, &write.record) {
                (Table::Negotiations, Some(record)) => {
                    let head = NegotiationRecord::decode(&record.value).unwrap();
                    touched.insert(head.negotiation.id);
                    self.heads.insert(head.negotiation.id, head);
                }
                (Table::Negotiations, None) => self.see_removal(id_of(key), counts),
                (Table::NegotiationBids, Some(record)) => {
                    touched.insert(id_of(key));
                    self.rows.insert(key.to_vec(), record.value.clone());
                }
                (Table::NegotiationBids, None) => drop(self.rows.remove(&key.to_vec())),
                (Table::Messages, Some(_)) if before.is_none() => drop(accepted.insert(id_of(key))),
                (Table::Mailbox, Some(record)) if before.is_none() => {
                    letters.push((super::laws::agent_of(key), records::decode_letter(key, &record.value).unwrap()));
                }
                _ => {}
            }
        }
        for (agent, letter) in letters {
            self.see_letter(agent, &letter, envelope);
        }
        for id in touched {
            self.see_negotiation(id, &accepted, counts);
        }
    }

    /// Notes a letter that tells a bidder how the negotiation ends.
    fn see_letter(&mut self, agent: AgentId, letter: &Letter, envelope: &dyn Fn(EnvelopePlace) -> Bytes) {
        let Ok(mail) = v1::Envelope::decode(envelope(letter.bytes_at())) else { return };
        let Ok(id) = MessageId::parse(&mail.correlation_id) else { return };
        let is_final = self.known.get(&id).is_none_or(|known| known.state.is_final());
        match mail.message_type() {
            MessageType::NegotiationClosed => {
                let value = mail.payload.as_ref().map(|payload| payload.value.clone()).unwrap_or_default();
                let closed = v1::NegotiationClosed::decode(value).unwrap();
                let is_of_requester =
                    self.known.get(&id).is_some_and(|known| known.requester.as_str() == mail.receiver_id);
                if closed.task_request.is_empty() && !is_of_requester {
                    // A dead letter that is redriven to another agent keeps its receiver.
                    let told = AgentId::parse(&mail.receiver_id).unwrap();
                    self.notices.entry((id, told)).or_default().insert(letter.message);
                } else if !is_final && !is_of_requester {
                    self.awarded.insert((id, agent));
                }
            }
            MessageType::TaskAccept if !is_final => drop(self.awarded.insert((id, agent))),
            _ => {}
        }
    }

    fn see_negotiation(
        &mut self,
        id: MessageId,
        accepted: &HashSet<MessageId>,
        counts: &mut BTreeMap<&'static str, u64>,
    ) {
        let Some(head) = self.heads.get(&id) else { return };
        let rows: Vec<Bytes> = head.bids_keys().map(|key| self.rows[&key.key.to_vec()].clone()).collect();
        let after = head.clone().with_bids(&rows).unwrap().negotiation;
        let before = self.known.insert(id, after.clone());
        let before = before.as_deref();
        let next: &[State] = match before.map(|before| before.state) {
            None => &[State::Open],
            Some(State::Open) => {
                &[State::Open, State::Deciding, State::Awarded, State::Settled, State::Failed, State::Cancelled]
            }
            Some(State::Deciding) => {
                &[State::Deciding, State::Awarded, State::Settled, State::Failed, State::Cancelled]
            }
            Some(State::Awarded) => &[State::Awarded, State::Settled, State::Failed],
            Some(State::Settled) => &[State::Settled],
            Some(State::Failed) => &[State::Failed],
            Some(State::Cancelled) => &[State::Cancelled],
        };
        assert!(next.contains(&after.state), "law 10: negotiation {id} became {:?} after {before:?}", after.state);
        if let Some(before) = before {
            assert_eq!(agents(before), agents(&after), "law 10: the agents that were asked are fixed");
            if before.state.is_final() {
                let end = |of: &Negotiation| (of.award.clone(), of.winner.clone(), of.failure.clone());
                assert_eq!(end(before), end(&after), "law 4: a final state never changes");
            }
            for (was, is) in before.threads.iter().zip(&after.threads) {
                see_offer(before, was, is, accepted);
            }
            see_award(before, &after);
        }
        let has_ended = after.state.is_final() && before.is_none_or(|before| !before.state.is_final());
        if has_ended {
            *counts.entry(end_of(after.state)).or_default() += 1;
        }
        if after.award.is_some() && before.is_none_or(|before| before.award.is_none()) {
            *counts.entry("negotiation: AWARDED").or_default() += 1;
        }
        if after.state.is_final() && after.told_upto == after.threads.len() {
            after.threads.iter().for_each(|thread| self.see_told(id, thread));
        }
    }

    /// Each bidder whose offer stood at the end is told once: by a notice, or by an award that was offered to it.
    fn see_told(&self, id: MessageId, thread: &Thread) {
        let key = (id, thread.agent.clone());
        let notices = self.notices.get(&key).map_or(0, HashSet::len);
        let times = notices + usize::from(self.awarded.contains(&key));
        match thread.state.has_standing_offer() {
            true => assert_eq!(times, 1, "law 10: {} was told {times} times how {id} ended", thread.agent),
            false => assert_eq!(notices, 0, "law 10: {} had no standing offer in {id}, and was told", thread.agent),
        }
    }

    fn see_removal(&mut self, id: MessageId, counts: &mut BTreeMap<&'static str, u64>) {
        let gone = self.known.remove(&id).expect("only what is there is removed");
        assert!(
            gone.state.is_final() && gone.told_upto == gone.threads.len(),
            "law 10: {id} was removed before its end"
        );
        self.heads.remove(&id);
        *counts.entry("negotiations removed").or_default() += 1;
    }

    /// Checks the deadlines, after the broker has processed those up to this time.
    pub(crate) fn see_time(&self, now: Timestamp) {
        let is_late = |known: &&Arc<Negotiation>| known.deadline().is_some_and(|deadline| deadline <= now);
        let late = self.known.values().find(is_late);
        assert!(late.is_none(), "law 10: a negotiation is open beyond its deadline: {late:?}");
    }

    /// Checks the end of a run: every negotiation has ended, and its bidders are told.
    pub(crate) fn see_end(&self) {
        for (id, known) in &self.known {
            assert!(known.state.is_final(), "law 10: negotiation {id} is {:?} for ever", known.state);
            assert_eq!(known.told_upto, known.threads.len(), "law 10: bidders of {id} are not told");
        }
    }

    /// A negotiation that waits for offers or a decision, with its requester.
    pub(crate) fn an_open_one(&self) -> Option<(MessageId, AgentId)> {
        let mut open = self.known.values().filter(|known| !known.state.is_final());
        open.next().map(|known| (known.id, known.requester.clone()))
    }
}

fn agents(of: &Negotiation) -> Vec<&AgentId> {
    of.threads.iter().map(|thread| &thread.agent).collect()
}

/// A bidder's offer changes by a message of the same change alone, in turn, and before the close.
fn see_offer(before: &Negotiation, was: &Thread, is: &Thread, accepted: &HashSet<MessageId>) {
    let id = |thread: &Thread| thread.offer.as_ref().map(|offer| offer.id);
    assert!(is.round <= 3, "law 10: {} is in round {}", is.agent, is.round);
    let Some(offer) = is.offer.as_ref().filter(|offer| id(was) != Some(offer.id)) else { return };
    assert!(accepted.contains(&offer.id), "law 10: an offer of {} without a message", is.agent);
    assert_eq!(before.state, State::Open, "law 10: {} has offered after the close", is.agent);
    assert!(offer.offered_at < before.offers_deadline, "law 10: {} has offered after the deadline", is.agent);
    assert!(
        matches!(was.state, ThreadState::Asked | ThreadState::Countered | ThreadState::Unreachable),
        "law 10: {} has offered out of turn, in state {:?}",
        is.agent,
        was.state
    );
}

/// There is one award at most, to an offer that stands.
fn see_award(before: &Negotiation, after: &Negotiation) {
    let Some(award) = &after.award else {
        assert!(before.award.is_none(), "law 10: the award of {} is gone", after.id);
        return;
    };
    if let Some(first) = &before.award {
        assert_eq!(first, award, "law 10: {} has two awards", after.id);
        return;
    }
    let thread = after.thread(&award.bidder).expect("law 10: an award to an agent that was not asked");
    let standing = thread.standing_offer(after.updated_at).map(|offer| offer.id);
    assert_eq!(standing, Some(award.offer), "law 10: the award of {} is to an offer that does not stand", after.id);
}

const fn end_of(state: State) -> &'static str {
    match state {
        State::Settled => "negotiation: SETTLED",
        State::Failed => "negotiation: FAILED",
        State::Cancelled => "negotiation: CANCELLED",
        State::Open | State::Deciding | State::Awarded => "negotiation: open",
    }
}

fn id_of(key: &[u8]) -> MessageId {
    MessageId::from_bytes(key[..16].try_into().unwrap())
}

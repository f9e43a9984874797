//! Negotiations, in table negotiations, with two indexes: of all negotiations, and of each party's. The inputs that
//! awards send, in rows of table outbox.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use bytes::Bytes;
use prost::Message;

use super::{
    DecodeError, List, LogClock, Reader, TracePlace,
    handoff::{nanoseconds, span_unless_zero, timeouts_from_storage, work_from_storage, work_to_storage},
    id_bytes,
    letter::{process_bytes, process_from},
    moment, texts,
    trace::{place_from_storage, place_to_storage},
};
use crate::{
    codes::ErrorCode,
    domain::{
        handoff::{LoopLimits, Mode, Priority},
        negotiation::{
            Award, AwardRule, Awarded, Failure, Mandate, Negotiation, NegotiationSignal, Offer, State, Thread,
            ThreadState,
        },
    },
    ids::{AgentId, InstanceId, MessageId},
    proto::storage,
    store::{Key, Table},
    time::Timestamp,
};

/// A negotiation as stored.
#[derive(Debug, Clone, PartialEq)]
pub struct NegotiationRecord {
    /// The state of the negotiation's machine.
    pub negotiation: Arc<Negotiation>,
    /// The sequence of the `TaskRequest`: the place in lists, and in the mailboxes of the agents that were asked.
    pub sequence: u64,
    /// The pace of the negotiation's log.
    pub log_clock: LogClock,
    /// The sequence of the copy of the `TaskRequest` in table envelopes. `None`: no mandate needs a copy.
    pub envelope: Option<u64>,
    /// The number of agents that were asked. Equals the number of threads once the bids are read.
    pub asked: u32,
    /// The place in a trace.
    pub trace: Option<Box<TracePlace>>,
    /// The process of the requester. `None`: it has not said.
    pub requester_process: Option<InstanceId>,
    /// For each thread, in order, the process that made the latest offer. `None`: no offer, or the process has not said.
    /// Empty until the bids are read.
    pub bidder_processes: Vec<Option<InstanceId>>,
    /// The expires_at of the `TaskRequest`.
    pub expires_at: Option<Timestamp>,
}

/// The number of bids in one row. A step rewrites the rows in which it changes a bid.
const BIDS_A_ROW: usize = 32;

impl NegotiationRecord {
    /// The key of the record.
    pub fn key(id: MessageId) -> Key {
        Key { table: Table::Negotiations, key: id.as_bytes().into() }
    }

    /// The process of this agent that takes part in the negotiation.
    pub fn process_of(&self, agent: &AgentId) -> Option<InstanceId> {
        if self.negotiation.requester == *agent {
            return self.requester_process;
        }
        let place = self.negotiation.threads.iter().position(|thread| thread.agent == *agent)?;
        self.bidder_processes.get(place).copied().flatten()
    }

    /// The processes of the bidders after a step. An offer names the process of its sender, and replaces that of an
    /// earlier offer.
    pub(super) fn bidder_processes_after(
        before: Option<&Self>,
        after: &Negotiation,
        sender: Option<&(AgentId, InstanceId)>,
    ) -> Vec<Option<InstanceId>> {
        let Some(before) = before else { return vec![None; after.threads.len()] };
        let mut processes = before.bidder_processes.clone();
        let changed = before.negotiation.threads.iter().zip(&after.threads).zip(&mut processes);
        for ((former, thread), process) in changed.filter(|((former, thread), _)| !Arc::ptr_eq(former, thread)) {
            let id_of = |thread: &Thread| thread.offer.as_ref().map(|offer| offer.id);
            if id_of(former) != id_of(thread) {
                *process = sender.filter(|(agent, _)| *agent == thread.agent).map(|(_, process)| *process);
            }
        }
        processes
    }

    /// The keys of all entries in lists.
    pub fn index_keys(&self) -> impl Iterator<Item = Key> {
        let parties: BTreeSet<&AgentId> = self.negotiation.parties().collect();
        let of_parties = parties.into_iter().map(|agent| List::of_negotiations(Some(agent)).place(self.sequence));
        std::iter::once(List::of_negotiations(None).place(self.sequence)).chain(of_parties)
    }

    /// The entries in lists that the record before did not have.
    pub(super) fn new_entries(&self, before: Option<&Self>) -> Vec<(Key, Bytes)> {
        let value = id_bytes(self.negotiation.id);
        let Some(before) = before else {
            return self.index_keys().map(|key| (key, value.clone())).collect();
        };
        // Only an offer adds a party. A thread keeps its place, and has an offer from the first one on.
        let had_offer =
            |place: usize| before.negotiation.threads.get(place).is_some_and(|thread| thread.offer.is_some());
        let threads = self.negotiation.threads.iter().enumerate();
        let new = threads.filter(|(place, thread)| thread.offer.is_some() && !had_offer(*place));
        new.map(|(_, thread)| (List::of_negotiations(Some(&thread.agent)).place(self.sequence), value.clone()))
            .collect()
    }

    /// The id in the value of an entry in a list.
    pub fn listed(value: &[u8]) -> Result<MessageId, DecodeError> {
        Reader("listings").message_id(value)
    }

    /// Encodes the record.
    pub fn encode(&self) -> Bytes {
        let of = &self.negotiation;
        storage::NegotiationRecord {
            negotiation_id: id_bytes(of.id),
            requester_id: of.requester.to_string(),
            receiver_id: of.receiver.clone(),
            state: of.state.number(),
            task_type: of.task_type.clone(),
            task_id: of.task.as_ref().map(|(task, _)| task.to_string()).unwrap_or_default(),
            epoch: of.task.as_ref().map_or(0, |(_, epoch)| *epoch),
            mandate: of.mandate.as_ref().map(mandate_to_storage),
            rule: of.rule.map_or(0, AwardRule::number),
            min_confidence: of.min_confidence,
            max_cost: of.max_cost,
            offers_wanted: of.offers_wanted,
            offers_deadline: of.offers_deadline.unix_nanoseconds(),
            decision_timeout: nanoseconds(of.decision_timeout),
            decision_deadline: of.decision_deadline.map(Timestamp::unix_nanoseconds),
            asked: count(of.threads.len()),
            offers_received: of.offers_received,
            awarded_offer_id: of.award.as_ref().map(|award| id_bytes(award.offer)).unwrap_or_default(),
            awarded_bidder_id: of.award.as_ref().map(|award| award.bidder.to_string()).unwrap_or_default(),
            handoff_id: of.award.as_ref().and_then(|award| award.handoff).map(id_bytes).unwrap_or_default(),
            winner_id: of.winner.as_ref().map(ToString::to_string).unwrap_or_default(),
            failure_code: of.failure.as_ref().map_or(0, |failure| failure.code.number()),
            failure_message: of.failure.as_ref().map(|failure| failure.message.clone()).unwrap_or_default(),
            withdrawn_upto: count(of.withdrawn_upto),
            told_upto: count(of.told_upto),
            created_at: of.created_at.unix_nanoseconds(),
            closed_at: of.closed_at.map(Timestamp::unix_nanoseconds),
            updated_at: of.updated_at.unix_nanoseconds(),
            sequence: self.sequence,
            logged_at: self.log_clock.logged_at.unix_nanoseconds(),
            set_back: nanoseconds(self.log_clock.set_back),
            envelope_sequence: self.envelope.unwrap_or_default(),
            trace: self.trace.as_deref().map(place_to_storage),
            requester_process: process_bytes(self.requester_process),
            asks_left: count(of.threads.len() - of.asked_upto),
            expires_at: self.expires_at.map(Timestamp::unix_nanoseconds),
        }
        .encode_to_vec()
        .into()
    }

    /// Decodes the record.
    pub fn decode(value: &Bytes) -> Result<Self, DecodeError> {
        let reader = Reader("negotiations");
        let stored: storage::NegotiationRecord = reader.message(value)?;
        let award = match reader.optional_message_id(&stored.awarded_offer_id)? {
            Some(offer) => Some(Awarded {
                offer,
                bidder: reader.agent(&stored.awarded_bidder_id)?,
                handoff: reader.optional_message_id(&stored.handoff_id)?,
            }),
            None => None,
        };
        // No error code is 0, so 0 stands for a negotiation without a failure.
        let failure = match stored.failure_code {
            0 => None,
            number => Some(Failure { code: code(&reader, number)?, message: stored.failure_message }),
        };
        let negotiation = Negotiation {
            id: reader.message_id(&stored.negotiation_id)?,
            requester: reader.agent(&stored.requester_id)?,
            receiver: stored.receiver_id,
            state: reader.some(State::from_number(stored.state), "state")?,
            task_type: stored.task_type,
            task: match stored.task_id.is_empty() {
                true => None,
                false => Some((reader.task(&stored.task_id)?, stored.epoch)),
            },
            mandate: stored.mandate.map(|mandate| mandate_from_storage(&reader, mandate)).transpose()?,
            rule: match stored.rule {
                0 => None,
                number => Some(reader.some(AwardRule::from_number(number), "rule")?),
            },
            min_confidence: stored.min_confidence,
            max_cost: stored.max_cost,
            offers_wanted: stored.offers_wanted,
            offers_deadline: moment(stored.offers_deadline),
            decision_timeout: Duration::from_nanos(stored.decision_timeout),
            decision_deadline: stored.decision_deadline.map(moment),
            threads: Vec::new(),
            offers_received: stored.offers_received,
            award,
            winner: optional_agent(&reader, &stored.winner_id)?,
            failure,
            withdrawn_upto: stored.withdrawn_upto as usize,
            asked_upto: stored.asked.saturating_sub(stored.asks_left) as usize,
            told_upto: stored.told_upto as usize,
            created_at: moment(stored.created_at),
            closed_at: stored.closed_at.map(moment),
            updated_at: moment(stored.updated_at),
        };
        let log_clock =
            LogClock { logged_at: moment(stored.logged_at), set_back: Duration::from_nanos(stored.set_back) };
        let envelope = Some(stored.envelope_sequence).filter(|sequence| *sequence != 0);
        let requester_process = process_from(&reader, &stored.requester_process)?;
        let trace = place_from_storage(&reader, stored.trace)?;
        let negotiation = Arc::new(negotiation);
        let (sequence, asked) = (stored.sequence, stored.asked);
        let bidder_processes = Vec::new();
        let expires_at = stored.expires_at.map(moment);
        Ok(Self {
            negotiation,
            sequence,
            log_clock,
            envelope,
            asked,
            trace,
            requester_process,
            bidder_processes,
            expires_at,
        })
    }

    /// The keys of the rows that have the negotiation's bids.
    pub fn bids_keys(&self) -> impl Iterator<Item = Key> {
        let id = self.negotiation.id;
        (0..self.asked.div_ceil(count(BIDS_A_ROW))).map(move |row| bids_key(id, row))
    }

    /// The record with the bids of these rows, which are in the order of [`Self::bids_keys`].
    pub fn with_bids(self, rows: &[Bytes]) -> Result<Self, DecodeError> {
        let reader = Reader("negotiation_bids");
        let mut threads = Vec::with_capacity(self.asked as usize);
        let mut bidder_processes = Vec::with_capacity(self.asked as usize);
        for row in rows {
            for (thread, process) in decode_bids(row)? {
                threads.push(thread);
                bidder_processes.push(process);
            }
        }
        if threads.len() != self.asked as usize {
            return Err(reader.error(format!("{} bids of {} are stored", threads.len(), self.asked)));
        }
        let mut negotiation = Arc::unwrap_or_clone(self.negotiation);
        negotiation.threads = threads;
        Ok(Self { negotiation: Arc::new(negotiation), bidder_processes, ..self })
    }

    /// The rows of bids that differ from those of the record before.
    pub fn changed_bids(&self, before: Option<&Self>) -> Vec<(Key, Bytes)> {
        let rows = self.rows();
        let mut former = before.into_iter().flat_map(Self::rows);
        let mut changed = Vec::new();
        for (row, (threads, processes)) in (0..).zip(rows) {
            let is_same = former.next().is_some_and(|(former, former_processes)| {
                former.len() == threads.len()
                    && former_processes == processes
                    && former.iter().zip(threads).all(|(one, other)| Arc::ptr_eq(one, other) || one == other)
            });
            if !is_same {
                let bids = threads.iter().zip(processes);
                let threads = bids.map(|(thread, process)| thread_to_storage(thread, *process)).collect();
                let value = storage::BidsRecord { threads }.encode_to_vec().into();
                changed.push((bids_key(self.negotiation.id, row), value));
            }
        }
        changed
    }

    /// The threads of each row, with the processes of their bidders.
    fn rows(&self) -> impl Iterator<Item = (&[Arc<Thread>], &[Option<InstanceId>])> {
        self.negotiation.threads.chunks(BIDS_A_ROW).zip(self.bidder_processes.chunks(BIDS_A_ROW))
    }
}

/// The part of an agent that was asked, with the process that made its latest offer.
type Bid = (Arc<Thread>, Option<InstanceId>);

/// Decodes a row of bids.
pub(super) fn decode_bids(row: &Bytes) -> Result<Vec<Bid>, DecodeError> {
    let reader = Reader("negotiation_bids");
    let stored: storage::BidsRecord = reader.message(row)?;
    let bids = stored
        .threads
        .iter()
        .map(|thread| Ok((Arc::new(thread_from_storage(&reader, thread)?), process_from(&reader, &thread.process)?)));
    bids.collect()
}

fn bids_key(id: MessageId, row: u32) -> Key {
    Key { table: Table::NegotiationBids, key: [&id.as_bytes()[..], &row.to_be_bytes()].concat()[..].into() }
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn code(reader: &Reader, number: i32) -> Result<ErrorCode, DecodeError> {
    reader.some(ErrorCode::from_number(number), "failure_code")
}

fn optional_agent(reader: &Reader, text: &str) -> Result<Option<AgentId>, DecodeError> {
    if text.is_empty() { Ok(None) } else { reader.agent(text).map(Some) }
}

fn mandate_to_storage(mandate: &Mandate) -> storage::MandateRecord {
    let timeouts = mandate.timeouts;
    let spans = [timeouts.accept, timeouts.context, timeouts.complete, timeouts.whole];
    storage::MandateRecord {
        task_type: mandate.task_type.clone(),
        reason: mandate.reason,
        mode: mandate.mode.number(),
        loan_timeout: mandate.loan_timeout.map_or(0, nanoseconds),
        work: work_to_storage(mandate.work),
        priority: mandate.priority.number(),
        fairness_key: mandate.fairness_key.as_ref().map(ToString::to_string).unwrap_or_default(),
        timeouts: spans.map(nanoseconds).to_vec(),
        handoffs_max: mandate.loop_limits.handoffs_max,
        handoffs_per_pair_max: mandate.loop_limits.handoffs_per_pair_max,
        conversation_id: mandate.conversation.as_ref().map(ToString::to_string).unwrap_or_default(),
    }
}

fn mandate_from_storage(reader: &Reader, stored: storage::MandateRecord) -> Result<Mandate, DecodeError> {
    Ok(Mandate {
        task_type: stored.task_type,
        reason: stored.reason,
        mode: reader.some(Mode::from_number(stored.mode), "mode")?,
        loan_timeout: span_unless_zero(stored.loan_timeout),
        work: work_from_storage(stored.work.as_ref()),
        priority: reader.some(Priority::from_number(stored.priority), "priority")?,
        fairness_key: reader.optional_fairness_key(&stored.fairness_key)?,
        timeouts: timeouts_from_storage(reader, &stored.timeouts)?,
        loop_limits: LoopLimits {
            handoffs_max: stored.handoffs_max,
            handoffs_per_pair_max: stored.handoffs_per_pair_max,
        },
        conversation: reader.optional_conversation(&stored.conversation_id)?,
    })
}

fn thread_to_storage(thread: &Thread, process: Option<InstanceId>) -> storage::BidThreadRecord {
    let offer = |offer: &Offer| storage::BidRecord {
        offer_id: id_bytes(offer.id),
        confidence: offer.confidence,
        estimated_duration: offer.estimated_duration.map(nanoseconds),
        cost: offer.cost,
        valid_until: offer.valid_until.map(Timestamp::unix_nanoseconds),
        place: offer.place,
        offered_at: offer.offered_at.unix_nanoseconds(),
    };
    storage::BidThreadRecord {
        agent_id: thread.agent.to_string(),
        state: thread.state.number(),
        offer: thread.offer.as_ref().map(offer),
        counter_id: thread.counter.map(id_bytes).unwrap_or_default(),
        round: thread.round,
        is_told: thread.is_told,
        process: process_bytes(process),
    }
}

fn thread_from_storage(reader: &Reader, stored: &storage::BidThreadRecord) -> Result<Thread, DecodeError> {
    let offer = |offer: &storage::BidRecord| -> Result<Offer, DecodeError> {
        Ok(Offer {
            id: reader.message_id(&offer.offer_id)?,
            confidence: offer.confidence,
            estimated_duration: offer.estimated_duration.map(Duration::from_nanos),
            cost: offer.cost,
            valid_until: offer.valid_until.map(moment),
            place: offer.place,
            offered_at: moment(offer.offered_at),
        })
    };
    Ok(Thread {
        agent: reader.agent(&stored.agent_id)?,
        state: reader.some(ThreadState::from_number(stored.state), "the state of a thread")?,
        offer: stored.offer.as_ref().map(offer).transpose()?,
        counter: reader.optional_message_id(&stored.counter_id)?,
        round: stored.round,
        is_told: stored.is_told,
    })
}

/// Encodes the input that opens the handoff of an award.
pub(super) fn encode_award(award: &Award) -> Vec<u8> {
    storage::AwardRecord {
        negotiation_id: id_bytes(award.negotiation),
        task_id: award.task.to_string(),
        candidate_ids: texts(&award.candidates),
    }
    .encode_to_vec()
}

/// Decodes the input that opens the handoff of an award.
pub(super) fn decode_award(reader: &Reader, bytes: &[u8]) -> Result<Award, DecodeError> {
    let stored: storage::AwardRecord = reader.message(&Bytes::copy_from_slice(bytes))?;
    Ok(Award {
        negotiation: reader.message_id(&stored.negotiation_id)?,
        task: reader.task(&stored.task_id)?,
        candidates: reader.agents(&stored.candidate_ids)?,
    })
}

/// Encodes an input of a negotiation.
pub(super) fn encode_signal(signal: &NegotiationSignal) -> Vec<u8> {
    let stored = match signal {
        NegotiationSignal::Taken { handoff, by, asked } => storage::NegotiationWordRecord {
            handoff_id: id_bytes(*handoff),
            taken_by: by.to_string(),
            asked_ids: texts(asked),
            ..Default::default()
        },
        NegotiationSignal::NotTaken { handoff, code, message, asked } => storage::NegotiationWordRecord {
            handoff_id: id_bytes(*handoff),
            asked_ids: texts(asked),
            failure_code: code.number(),
            failure_message: message.clone(),
            ..Default::default()
        },
        NegotiationSignal::NotOpened { handoff, code, message } => storage::NegotiationWordRecord {
            handoff_id: id_bytes(*handoff),
            failure_code: code.number(),
            failure_message: message.clone(),
            not_opened: true,
            ..Default::default()
        },
    };
    stored.encode_to_vec()
}

/// Decodes an input of a negotiation.
pub(super) fn decode_signal(reader: &Reader, bytes: &[u8]) -> Result<NegotiationSignal, DecodeError> {
    let stored: storage::NegotiationWordRecord = reader.message(&Bytes::copy_from_slice(bytes))?;
    let handoff = reader.message_id(&stored.handoff_id)?;
    let asked = reader.agents(&stored.asked_ids)?;
    Ok(match stored.failure_code {
        number if stored.not_opened => {
            NegotiationSignal::NotOpened { handoff, code: code(reader, number)?, message: stored.failure_message }
        }
        0 => NegotiationSignal::Taken { handoff, by: reader.agent(&stored.taken_by)?, asked },
        number => {
            NegotiationSignal::NotTaken { handoff, code: code(reader, number)?, message: stored.failure_message, asked }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        domain::handoff::{Timeouts, WorkTerms},
        ids::{FairnessKey, TaskId},
    };

    fn agent(name: &str) -> AgentId {
        AgentId::parse(name).unwrap()
    }

    fn id(number: u8) -> MessageId {
        MessageId::from_bytes([number; 16])
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_parts(seconds, 7).unwrap()
    }

    fn record() -> NegotiationRecord {
        let offer = Offer {
            id: id(4),
            confidence: 0.25,
            estimated_duration: Some(Duration::from_millis(1500)),
            cost: -2.5,
            valid_until: Some(at(99)),
            place: 3,
            offered_at: at(20),
        };
        let thread = |name: &str, state, offer| Thread {
            agent: agent(name),
            state,
            offer,
            counter: Some(id(9)),
            round: 2,
            is_told: true,
        };
        let negotiation = Negotiation {
            id: id(1),
            requester: agent("alice"),
            receiver: "all:analyst".to_owned(),
            state: State::Awarded,
            task_type: "report".to_owned(),
            task: Some((TaskId::parse("t-1").unwrap(), 3)),
            mandate: Some(Mandate {
                task_type: "report".to_owned(),
                reason: 2,
                mode: Mode::Delegate,
                loan_timeout: Some(Duration::from_secs(60)),
                work: WorkTerms {
                    silence_timeout: Some(Duration::from_secs(30)),
                    returns_when_abandoned: true,
                    loan_timeout_max: Some(Duration::from_secs(90)),
                },
                priority: Priority::High,
                fairness_key: FairnessKey::parse("north").ok(),
                timeouts: Timeouts::default(),
                loop_limits: LoopLimits::default(),
                conversation: None,
            }),
            rule: Some(AwardRule::LowestCost),
            min_confidence: 0.125,
            max_cost: Some(7.5),
            offers_wanted: 2,
            offers_deadline: at(30),
            decision_timeout: Duration::from_secs(60),
            decision_deadline: Some(at(90)),
            threads: vec![
                Arc::new(thread("bob", ThreadState::Countered, Some(offer))),
                Arc::new(thread("carol", ThreadState::NotReached, None)),
            ],
            offers_received: 4,
            award: Some(Awarded { offer: id(4), bidder: agent("bob"), handoff: Some(id(1)) }),
            winner: Some(agent("bob")),
            failure: Some(Failure { code: ErrorCode::NoOffer, message: "none".to_owned() }),
            withdrawn_upto: 2,
            asked_upto: 1,
            told_upto: 1,
            created_at: at(1),
            closed_at: Some(at(30)),
            updated_at: at(31),
        };
        let log_clock = LogClock { logged_at: at(31), set_back: Duration::from_secs(5) };
        let negotiation = Arc::new(negotiation);
        NegotiationRecord {
            negotiation,
            sequence: 17,
            log_clock,
            envelope: Some(18),
            asked: 2,
            trace: None,
            requester_process: Some(InstanceId::from_bytes([5; 16])),
            bidder_processes: vec![Some(InstanceId::from_bytes([6; 16])), None],
            expires_at: Some(at(60)),
        }
    }

    #[test]
    fn a_negotiation_comes_back() {
        let record = record();
        let rows: Vec<_> = record.changed_bids(None).into_iter().map(|(_, value)| value).collect();
        let head = NegotiationRecord::decode(&record.encode()).unwrap();
        assert_eq!(head.clone().with_bids(&rows), Ok(record));
        head.with_bids(&[]).unwrap_err();
    }

    #[test]
    fn an_offer_rewrites_the_row_of_its_bidder_alone() {
        let asked = |number: u32| {
            let (agent, state) = (agent(&format!("agent-{number}")), ThreadState::Asked);
            Arc::new(Thread { agent, state, offer: None, counter: None, round: 0, is_told: false })
        };
        let mut negotiation = Negotiation::clone(&record().negotiation);
        negotiation.threads = (0..1000).map(asked).collect();
        let (bidder_processes, asked) = (vec![None; 1000], 1000);
        let before =
            NegotiationRecord { negotiation: Arc::new(negotiation.clone()), asked, bidder_processes, ..record() };
        assert_eq!(before.changed_bids(None).len(), 1000_usize.div_ceil(BIDS_A_ROW));
        Arc::make_mut(&mut negotiation.threads[40]).state = ThreadState::Declined;
        let after = NegotiationRecord { negotiation: Arc::new(negotiation), ..before.clone() };
        let changed: Vec<_> = after.changed_bids(Some(&before)).into_iter().map(|(key, _)| key).collect();
        assert_eq!(changed, [bids_key(id(1), 1)]);
        assert_eq!(after.changed_bids(Some(&after)), []);
    }

    #[test]
    fn only_the_requester_and_bidders_are_listed_each_once() {
        let record = record();
        let keys: Vec<_> = record.new_entries(None).into_iter().map(|(key, _)| key).collect();
        let of = |agent: Option<AgentId>| List::of_negotiations(agent.as_ref()).place(record.sequence);
        assert_eq!(keys, [None, Some(agent("alice")), Some(agent("bob"))].map(of));
        assert_eq!(record.new_entries(Some(&record)), []);
    }

    #[test]
    fn the_inputs_of_an_award_come_back() {
        let reader = Reader("outbox");
        let award = Award {
            negotiation: id(1),
            task: TaskId::parse("t-1").unwrap(),
            candidates: vec![agent("bob"), agent("carol")],
        };
        assert_eq!(decode_award(&reader, &encode_award(&award)), Ok(award));
        let asked = vec![agent("bob")];
        for signal in [
            NegotiationSignal::Taken { handoff: id(1), by: agent("bob"), asked: asked.clone() },
            NegotiationSignal::NotTaken {
                handoff: id(1),
                code: ErrorCode::NoCandidate,
                message: "no".to_owned(),
                asked,
            },
            NegotiationSignal::NotTaken {
                handoff: id(1),
                code: ErrorCode::NoCandidate,
                message: "no".to_owned(),
                asked: vec![],
            },
            NegotiationSignal::NotOpened { handoff: id(1), code: ErrorCode::NotOwner, message: "no".to_owned() },
        ] {
            assert_eq!(decode_signal(&reader, &encode_signal(&signal)), Ok(signal));
        }
    }
}

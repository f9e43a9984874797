//! The custody log of a task: the hash-chained log of all accepted messages and decisions. The entry of a message is in
//! the record of the message, any other entry in the log itself. The task's record has the latest items of the log, and
//! table custody pages of the earlier ones.

use std::{ops::Bound, time::Duration};

use bytes::Bytes;
use prost::Message as _;

use super::{DecodeError, Reader, by_name_and_number, id_bytes, number_of, texts};
use crate::{
    codes::ErrorCode,
    domain::{
        EntityId,
        handoff::{Acked, Cancellation, Handoff, LoopLimits, Message, PassedOver, Seize, Task, Timeouts},
    },
    envelope::{Body, Resolved, VerifiedEnvelope, signing},
    ids::{AgentId, MessageId, TaskId},
    proto::{storage, v1},
    store::{Key, KeyRange, Table},
    time::Timestamp,
};

/// The head of a custody log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CustodyLink {
    /// The number of entries.
    pub length: u64,
    /// The hash of the last entry; zeros before the first.
    pub hash: [u8; 32],
}

impl CustodyLink {
    /// The head after one more entry.
    pub fn followed_by(&self, entry: &[u8]) -> Self {
        Self { length: self.length + 1, hash: signing::custody_hash(&self.hash, entry) }
    }
}

/// An entry of a custody log with the hash after it, so that a reader of the log can check its chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogEntry {
    /// The hash of the log after the entry.
    pub hash: [u8; 32],
    /// The entry, an encoded `baton.v1.CustodyEntry`.
    pub bytes: Bytes,
}

impl LogEntry {
    /// Parses the bytes of the entry. Fails if they are damaged.
    pub fn decode(&self) -> Result<v1::CustodyEntry, DecodeError> {
        Reader("custody").message(&self.bytes)
    }
}

/// The place of an entry of a custody log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogItem {
    /// The record of this message has the entry.
    Message(MessageId),
    /// The log itself has the entry.
    Entry(LogEntry),
}

impl LogItem {
    /// The storage form of these items.
    pub(super) fn to_storage(items: &[Self]) -> Vec<storage::LogItemRecord> {
        let item = |item: &Self| match item {
            Self::Message(message) => storage::LogItemRecord { message_id: id_bytes(*message), ..Default::default() },
            Self::Entry(LogEntry { hash, bytes }) => storage::LogItemRecord {
                message_id: Bytes::new(),
                hash: Bytes::copy_from_slice(hash),
                entry: bytes.clone(),
            },
        };
        items.iter().map(item).collect()
    }

    /// The items of this storage form.
    pub(super) fn from_storage(reader: &Reader, stored: Vec<storage::LogItemRecord>) -> Result<Vec<Self>, DecodeError> {
        // Only the item of a message has a message id.
        let item = |stored: storage::LogItemRecord| match stored.message_id.is_empty() {
            false => Ok(Self::Message(reader.message_id(&stored.message_id)?)),
            true => Ok(Self::Entry(LogEntry { hash: reader.digest(&stored.hash)?, bytes: stored.entry })),
        };
        stored.into_iter().map(item).collect()
    }
}

/// A page of a custody log: [`Self::ITEMS`] entries. The entries after the last full page are in the task's record, so
/// that most entries cost no record of their own.
#[derive(Debug, Clone, Copy)]
pub struct LogPage;

impl LogPage {
    /// The entries of a page.
    pub const ITEMS: usize = 16;

    /// The number of the first entry of the page with this entry.
    pub const fn first_of(number: u64) -> u64 {
        (number - 1) / Self::ITEMS as u64 * Self::ITEMS as u64 + 1
    }

    /// The key of the page with this first entry. `sequence` is that of the request that created the task. The keys sort
    /// logs by their beginning: ids of tasks have no order, and would make a store rewrite old logs again and again to
    /// merge new ones in.
    pub fn key(sequence: u64, task: &TaskId, first: u64) -> Key {
        let Key { table, key } = by_name_and_number(Table::Custody, task.as_str(), first);
        Key { table, key: [&sequence.to_be_bytes(), &key[..]].into() }
    }

    /// The range of a task's pages from the one with this first entry on.
    pub fn range(sequence: u64, task: &TaskId, first: u64) -> KeyRange {
        let bound = |number| Bound::Included(Self::key(sequence, task, number).key);
        (bound(first), bound(u64::MAX))
    }

    /// Encodes a page.
    pub fn encode(items: &[LogItem]) -> Bytes {
        storage::LogPageRecord { items: LogItem::to_storage(items) }.encode_to_vec().into()
    }

    /// Decodes a page to the number of its first entry and its items.
    pub fn decode(key: &[u8], value: &Bytes) -> Result<(u64, Vec<LogItem>), DecodeError> {
        let reader = Reader("custody");
        let stored: storage::LogPageRecord = reader.message(value)?;
        Ok((number_of(&reader, key)?, LogItem::from_storage(&reader, stored.items)?))
    }
}

/// The event of a custody entry.
#[derive(Debug, Clone)]
pub enum CustodyEvent<'a> {
    /// An envelope was accepted.
    Accepted(EnvelopeFacts<'a>),
    /// An envelope was refused as late.
    Refused(EnvelopeFacts<'a>, ErrorCode),
    /// A delivery was acked.
    Acked(&'a AgentId, Acked, Option<Duration>),
    /// A delivery became a dead letter.
    GivenUp(&'a AgentId, Acked),
    /// A deadline of this entity passed.
    Time(&'a EntityId),
    /// The candidate was gone before it got the request.
    Gone,
    /// The broker looked again for a candidate of a handoff that waits, also among these agents.
    Looked(&'a [AgentId]),
    /// An operator took the task from its owner.
    Reassigned(&'a Seize),
    /// The log has no room for further plain mail.
    MailOmitted,
    /// The broker cancelled the task.
    Cancelled(&'a Cancellation),
    /// The owner gave no sign of work.
    Silent,
    /// The broker opened the handoff of an award, under the mandate of a `TaskRequest`.
    Awarded {
        /// The bytes of the `TaskRequest`.
        task_request: &'a Bytes,
        /// The candidates of the handoff.
        candidates: &'a [AgentId],
        /// The terms of the handoff.
        terms: (Timeouts, LoopLimits),
    },
    /// A dead request was redriven.
    Redriven {
        /// The number of the dead letter.
        dead_letter: u64,
        /// The handoff whose request was the dead letter.
        former: MessageId,
        /// The handoff that the redrive has opened.
        handoff: MessageId,
        /// The candidates of the new handoff.
        candidates: &'a [AgentId],
    },
}

/// The facts about an envelope that a custody log records.
#[derive(Debug, Clone, Copy)]
pub struct EnvelopeFacts<'a> {
    /// The envelope, accepted or refused.
    pub envelope: &'a VerifiedEnvelope,
    /// The sequence; 0 if the envelope was refused.
    pub sequence: u64,
    /// The agents and the terms that the broker resolved.
    pub resolved: Resolved<'a>,
}

/// The agents among the possible candidates of a step that could not be asked.
#[derive(Debug, Clone, Default)]
pub struct NotFree {
    /// The gone agents.
    pub absent: Vec<AgentId>,
    /// The agents without room.
    pub full: Vec<AgentId>,
}

/// The bytes of an entry.
pub fn custody_entry(
    number: u64,
    at: Timestamp,
    event: &CustodyEvent<'_>,
    task: &Task,
    handoff: Option<&Handoff>,
    not_free: &NotFree,
) -> Bytes {
    use v1::custody_entry::Event;
    let event = match event {
        CustodyEvent::Accepted(facts) => Event::Accepted(envelope_event(facts, 0)),
        CustodyEvent::Refused(facts, code) => Event::Refused(envelope_event(facts, code.number())),
        CustodyEvent::Acked(agent, mail, decides_within) => Event::Acked(delivery_event(agent, *mail, *decides_within)),
        CustodyEvent::GivenUp(agent, mail) => Event::GivenUp(delivery_event(agent, *mail, None)),
        // The log is that of one task, and the entry names the handoff, so the kind is enough for a replay.
        CustodyEvent::Time(of) => Event::Time(v1::CustodyTime { of_task: matches!(of, EntityId::Task(_)) }),
        CustodyEvent::Gone => Event::Gone(v1::CustodyAbsence {}),
        CustodyEvent::Looked(found) => Event::Looked(v1::CustodyLook { agent_ids: texts(found) }),
        CustodyEvent::Reassigned(seize) => Event::Reassigned(v1::CustodyReassignment {
            submitter_id: seize.submitter.clone(),
            receiver_id: seize.receiver.clone(),
            reason_text: seize.reason_text.clone(),
            handoff_id: seize.handoff.to_string(),
        }),
        CustodyEvent::MailOmitted => Event::MailOmitted(v1::CustodyMailOmitted {}),
        CustodyEvent::Silent => Event::Silent(v1::CustodySilence {}),
        CustodyEvent::Cancelled(why) => Event::Cancelled(v1::CustodyCancellation {
            parent_task_id: match why {
                Cancellation::WithParent(parent) => parent.to_string(),
                Cancellation::Idle => String::new(),
            },
        }),
        CustodyEvent::Awarded { task_request, candidates, terms: (timeouts, limits) } => {
            Event::Awarded(v1::CustodyAward {
                task_request: (*task_request).clone(),
                candidate_ids: texts(candidates),
                terms: Some(terms(*timeouts, *limits)),
            })
        }
        CustodyEvent::Redriven { dead_letter, former, handoff, candidates } => Event::Redriven(v1::CustodyRedrive {
            dead_letter_id: dead_letter.to_string(),
            former_handoff_id: former.to_string(),
            handoff_id: handoff.to_string(),
            candidate_ids: texts(candidates),
        }),
    };
    v1::CustodyEntry {
        number,
        entry_time: Some(at.into()),
        event: Some(event),
        owner_id: task.owner.to_string(),
        epoch: task.epoch,
        task_status: task.status.number(),
        handoff_id: handoff.map(|handoff| handoff.id.to_string()).unwrap_or_default(),
        handoff_state: handoff.map_or(0, |handoff| handoff.state.number()),
        absent_agent_ids: texts(&not_free.absent),
        full_agent_ids: texts(&not_free.full),
    }
    .encode_to_vec()
    .into()
}

fn envelope_event(facts: &EnvelopeFacts<'_>, error_code: i32) -> v1::CustodyEnvelope {
    let header = facts.envelope.header();
    v1::CustodyEnvelope {
        message_id: header.message_id.to_string(),
        sequence: facts.sequence,
        content_digest: Bytes::copy_from_slice(facts.envelope.content_digest()),
        message_type: header.message_type.number(),
        sender_id: header.sender.to_string(),
        resolved_agent_ids: texts(facts.resolved.agents),
        error_code,
        context_digest: match facts.envelope.body() {
            Body::Handoff(Message::Context { digest } | Message::Checkpoint { digest }) => {
                Bytes::copy_from_slice(digest)
            }
            _ => Bytes::new(),
        },
        terms: facts.resolved.terms.map(|(timeouts, limits)| terms(timeouts, limits)),
        passed_over: facts.resolved.passed_over.iter().map(passed_over).collect(),
    }
}

fn passed_over(one: &PassedOver) -> v1::CustodyPassedOver {
    v1::CustodyPassedOver { agent_id: one.agent.to_string(), reason_text: one.reason_text.clone() }
}

fn terms(timeouts: Timeouts, limits: LoopLimits) -> v1::CustodyTerms {
    let span = |span: std::time::Duration| prost_types::Duration::try_from(span).ok();
    v1::CustodyTerms {
        timeouts: Some(v1::HandoffTimeouts {
            accept: span(timeouts.accept),
            context: span(timeouts.context),
            complete: span(timeouts.complete),
            whole: span(timeouts.whole),
        }),
        loop_limits: Some(v1::LoopLimits {
            max_handoffs: limits.handoffs_max,
            max_handoffs_per_pair: limits.handoffs_per_pair_max,
        }),
    }
}

fn delivery_event(agent: &AgentId, mail: Acked, decides_within: Option<Duration>) -> v1::CustodyDelivery {
    let decides_within = decides_within.and_then(|span| span.try_into().ok());
    v1::CustodyDelivery { agent_id: agent.to_string(), mail: mail.number(), decides_within }
}

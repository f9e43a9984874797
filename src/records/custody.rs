//! Table custody: per task, the hash-chained list of everything that was accepted and decided.

use bytes::Bytes;
use prost::Message;

use super::{by_name_and_number, id_bytes, texts};
use crate::{
    codes::ErrorCode,
    domain::handoff::{Acked, Handoff, Task},
    envelope::{VerifiedEnvelope, signing},
    ids::{AgentId, TaskId},
    proto::storage,
    store::{Key, Table},
    time::Timestamp,
};

/// The head of a custody log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CustodyLink {
    /// How many entries there are.
    pub length: u64,
    /// The hash of the last one; zeros before the first.
    pub hash: [u8; 32],
}

impl CustodyLink {
    /// Where the entry of this number lies.
    pub fn key(task: &TaskId, number: u64) -> Key {
        by_name_and_number(Table::Custody, task.as_str(), number)
    }

    /// The head after one more entry.
    pub fn followed_by(&self, entry: &[u8]) -> Self {
        Self { length: self.length + 1, hash: signing::custody_hash(&self.hash, entry) }
    }
}

/// What happened.
#[derive(Debug, Clone)]
pub enum CustodyEvent<'a> {
    /// An envelope was accepted.
    Accepted(EnvelopeFacts<'a>),
    /// An envelope came too late.
    Refused(EnvelopeFacts<'a>, ErrorCode),
    /// A delivery was acked.
    Acked(&'a AgentId, Acked),
    /// A delivery was given up.
    GivenUp(&'a AgentId, Acked),
    /// A deadline passed.
    Time,
}

/// What a custody log says of an envelope.
#[derive(Debug, Clone, Copy)]
pub struct EnvelopeFacts<'a> {
    /// The envelope.
    pub envelope: &'a VerifiedEnvelope,
    /// Its sequence; 0 if it was refused.
    pub sequence: u64,
    /// Agents that the broker resolved from it.
    pub resolved: &'a [AgentId],
}

/// The stored form of the next entry.
pub fn custody_entry(
    number: u64,
    at: Timestamp,
    event: &CustodyEvent<'_>,
    task: &Task,
    handoff: Option<&Handoff>,
) -> Bytes {
    use storage::custody_entry::Event;
    let event = match event {
        CustodyEvent::Accepted(facts) => Event::Accepted(envelope_event(facts, 0)),
        CustodyEvent::Refused(facts, code) => Event::Refused(envelope_event(facts, code.number())),
        CustodyEvent::Acked(agent, mail) => Event::Acked(delivery_event(agent, *mail)),
        CustodyEvent::GivenUp(agent, mail) => Event::GivenUp(delivery_event(agent, *mail)),
        CustodyEvent::Time => Event::Time(storage::TimeEvent {}),
    };
    storage::CustodyEntry {
        number,
        at: at.unix_nanoseconds(),
        event: Some(event),
        owner_id: task.owner.to_string(),
        epoch: task.epoch,
        status: task.status.number(),
        handoff_id: handoff.map(|handoff| id_bytes(handoff.id)).unwrap_or_default(),
        handoff_state: handoff.map_or(0, |handoff| handoff.state.number()),
    }
    .encode_to_vec()
    .into()
}

fn envelope_event(facts: &EnvelopeFacts<'_>, error_code: i32) -> storage::EnvelopeEvent {
    let header = facts.envelope.header();
    storage::EnvelopeEvent {
        message_id: id_bytes(header.message_id),
        sequence: facts.sequence,
        content_digest: Bytes::copy_from_slice(facts.envelope.content_digest()),
        message_type: header.message_type as i32,
        sender_id: header.sender.to_string(),
        resolved_agent_ids: texts(facts.resolved),
        error_code,
    }
}

fn delivery_event(agent: &AgentId, mail: Acked) -> storage::DeliveryEvent {
    storage::DeliveryEvent { agent_id: agent.to_string(), handoff_mail: mail.number() }
}

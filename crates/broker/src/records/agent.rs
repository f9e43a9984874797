//! Table agents: the registered agents.

use bytes::Bytes;
use prost::Message;

use super::{DecodeError, Reader, by_name, moment};
use crate::{
    ids::AgentId,
    proto::{storage, v1},
    store::{Key, Table},
    time::Timestamp,
};

/// An agent as stored: its card, and the times of its changes.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentRecord {
    /// The card with all keys, revoked ones too.
    pub card: v1::AgentCard,
    /// The time of registration.
    pub created_at: Timestamp,
    /// The time of the last change of the card.
    pub updated_at: Timestamp,
    /// The sequence of the last change: its place among the changes of all agents. 0: not stored yet.
    pub changed: u64,
    /// The time at which the agent was deregistered. `None`: the agent is registered.
    pub deregistered_at: Option<Timestamp>,
}

impl AgentRecord {
    /// The record of an agent that registers at this time.
    pub const fn new(card: v1::AgentCard, now: Timestamp) -> Self {
        Self { card, created_at: now, updated_at: now, changed: 0, deregistered_at: None }
    }

    /// The key of the record.
    pub fn key(agent: &AgentId) -> Key {
        by_name(Table::Agents, agent.as_str())
    }

    /// Encodes the record.
    pub fn encode(&self) -> Bytes {
        storage::AgentRecord {
            card: self.card.encode_to_vec().into(),
            created_at: self.created_at.unix_nanoseconds(),
            updated_at: self.updated_at.unix_nanoseconds(),
            changed: self.changed,
            deregistered_at: self.deregistered_at.map(Timestamp::unix_nanoseconds),
        }
        .encode_to_vec()
        .into()
    }

    /// Decodes the record.
    pub fn decode(value: &Bytes) -> Result<Self, DecodeError> {
        let reader = Reader("agents");
        let stored: storage::AgentRecord = reader.message(value)?;
        Ok(Self {
            card: reader.message(&stored.card)?,
            created_at: moment(stored.created_at),
            updated_at: moment(stored.updated_at),
            changed: stored.changed,
            deregistered_at: stored.deregistered_at.map(moment),
        })
    }
}

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
}

impl AgentRecord {
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
        })
    }
}

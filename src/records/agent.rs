//! Table agents: who is registered.

use bytes::Bytes;
use prost::Message;

use super::{DecodeError, Reader, by_name, moment};
use crate::{
    ids::AgentId,
    proto::{storage, v1},
    store::{Key, Table},
    time::Timestamp,
};

/// A registered agent.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentRecord {
    /// What it says of itself.
    pub card: v1::AgentCard,
    /// When it was registered.
    pub created_at: Timestamp,
    /// When its card last changed.
    pub updated_at: Timestamp,
}

impl AgentRecord {
    /// Where it lies.
    pub fn key(agent: &AgentId) -> Key {
        by_name(Table::Agents, agent.as_str())
    }

    /// Its stored form.
    pub fn encode(&self) -> Bytes {
        storage::AgentRecord {
            card: self.card.encode_to_vec().into(),
            created_at: self.created_at.unix_nanoseconds(),
            updated_at: self.updated_at.unix_nanoseconds(),
        }
        .encode_to_vec()
        .into()
    }

    /// From its stored form.
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

//! The bytes that each agent stores (table agent_usage).

use bytes::Bytes;

use super::{DecodeError, Reader, by_name};
use crate::{
    ids::AgentId,
    proto::storage,
    store::{Key, Table},
};

use prost::Message as _;

/// The bytes that an agent stores: one row for each agent that stores any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UsageRecord {
    /// The bytes of its messages, and of the logs of its runs, threads and plans.
    pub stored_bytes: u64,
}

impl UsageRecord {
    /// The key of an agent's row.
    pub fn key(agent: &AgentId) -> Key {
        by_name(Table::AgentUsage, agent.as_str())
    }

    /// The agent of a key.
    pub fn agent(key: &[u8]) -> Result<AgentId, DecodeError> {
        let reader = Reader("agent_usage");
        let text = std::str::from_utf8(key).map_err(|error| reader.error(error.to_string()))?;
        reader.agent(text)
    }

    /// Encodes the record.
    pub fn encode(self) -> Bytes {
        storage::AgentUsageRecord { stored_bytes: self.stored_bytes }.encode_to_vec().into()
    }

    /// Decodes the record.
    pub fn decode(value: &Bytes) -> Result<Self, DecodeError> {
        let stored: storage::AgentUsageRecord = Reader("agent_usage").message(value)?;
        Ok(Self { stored_bytes: stored.stored_bytes })
    }
}

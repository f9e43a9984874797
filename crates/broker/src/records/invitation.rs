//! Table invitations: each permits one registration. Keyed by digest, so that the store reveals no invitation.

use bytes::Bytes;
use prost::Message;

use super::{DecodeError, Reader, moment};
use crate::{
    envelope::signing,
    ids::{AgentId, AgentType},
    proto::storage,
    store::{Key, Table},
    time::Timestamp,
};

/// An invitation as stored, under the digest of its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvitationRecord {
    /// The invited agent. `None`: any new agent.
    pub agent: Option<AgentId>,
    /// The types that the new agent may have.
    pub types: Vec<AgentType>,
    /// The time from which on the invitation is refused.
    pub expires_at: Timestamp,
    /// The agent that used the invitation.
    pub used_by: Option<AgentId>,
}

impl InvitationRecord {
    /// The key of an invitation's record.
    pub fn key(invitation: &str) -> Key {
        Key { table: Table::Invitations, key: (&Self::digest(invitation)).into() }
    }

    /// The digest that identifies an invitation without revealing it.
    pub fn digest(invitation: &str) -> [u8; 32] {
        signing::sha256(&[b"baton invitation", invitation.as_bytes()])
    }

    /// Encodes the record.
    pub fn encode(&self) -> Bytes {
        let text = |agent: &Option<AgentId>| agent.as_ref().map(ToString::to_string).unwrap_or_default();
        let expires_at = self.expires_at.unix_nanoseconds();
        let agent_types = self.types.iter().map(ToString::to_string).collect();
        storage::InvitationRecord { agent_id: text(&self.agent), expires_at, used_by: text(&self.used_by), agent_types }
            .encode_to_vec()
            .into()
    }

    /// Decodes the record.
    pub fn decode(value: &Bytes) -> Result<Self, DecodeError> {
        let reader = Reader("invitations");
        let stored: storage::InvitationRecord = reader.message(value)?;
        let agent = |text: &str| if text.is_empty() { Ok(None) } else { reader.agent(text).map(Some) };
        Ok(Self {
            agent: agent(&stored.agent_id)?,
            expires_at: moment(stored.expires_at),
            used_by: agent(&stored.used_by)?,
            types: stored
                .agent_types
                .iter()
                .map(|name| AgentType::parse(name).map_err(|error| reader.error(format!("type {name:?} {error}"))))
                .collect::<Result<_, _>>()?,
        })
    }
}

//! The keys on the cards of agents, as the verifier of envelopes asks for them.

use super::Directory;
use crate::{
    envelope::{KeyRing, KeyRingError, keys::PublicKey},
    ids::{AgentId, KeyId},
    time::Timestamp,
};

/// All keys on the cards, valid or not. Used to tell the holder of a key why a signature was refused.
pub(crate) struct AllKeys<'a>(pub(crate) &'a Directory);

impl KeyRing for AllKeys<'_> {
    fn key(&self, agent: &AgentId, key_id: &KeyId, _: Timestamp) -> Result<PublicKey, KeyRingError> {
        let entry = self.0.get(agent).ok_or(KeyRingError::Unknown)?;
        entry.keys.get(key_id).map(|known| known.key.clone()).ok_or(KeyRingError::Unknown)
    }
}

impl KeyRing for Directory {
    fn key(&self, agent: &AgentId, key_id: &KeyId, now: Timestamp) -> Result<PublicKey, KeyRingError> {
        let entry = self.get(agent).ok_or(KeyRingError::Unknown)?;
        let key = entry.keys.get(key_id).ok_or(KeyRingError::Unknown)?;
        // The times of a key are those of the broker's clock, because a sender could choose the timestamp of its
        // envelope.
        let begun = key.not_before.is_none_or(|start| start <= now);
        let over = key.not_after.is_some_and(|end| end <= now);
        if key.revoked || over || !begun { Err(KeyRingError::NotValid) } else { Ok(key.key.clone()) }
    }
}

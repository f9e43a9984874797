//! Table audit: what was done to the broker itself, a hash-chained list. The value is the hash after the entry, 32 bytes,
//! and the entry, an encoded `baton.v1.AuditEntry`. The head of the chain lies in table meta.

use bytes::Bytes;
use prost::Message;
use prost_types::Timestamp as WireTime;

use super::{DecodeError, Reader, by_number, chain, unchain};
use crate::{
    envelope::signing,
    proto::{storage, v1},
    store::{Key, Table},
    time::Timestamp,
};

/// An administrative act.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditAct {
    /// Who.
    pub actor: String,
    /// What.
    pub action: v1::AuditAction,
    /// To what.
    pub subject: String,
    /// What else there is to know: never a secret, never a payload.
    pub details: String,
}

/// The head of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AuditHead {
    /// How many entries there are.
    pub length: u64,
    /// The hash of the last one; zeros before the first.
    pub hash: [u8; 32],
}

impl AuditHead {
    /// Where the head lies.
    pub fn key() -> Key {
        Key { table: Table::Meta, key: "audit".into() }
    }

    /// Where the entry of this number lies.
    pub fn entry_key(number: u64) -> Key {
        by_number(Table::Audit, number)
    }

    /// Its stored form.
    pub fn encode(&self) -> Bytes {
        storage::AuditHeadRecord { length: self.length, hash: Bytes::copy_from_slice(&self.hash) }
            .encode_to_vec()
            .into()
    }

    /// From its stored form.
    pub fn decode(value: &Bytes) -> Result<Self, DecodeError> {
        let reader = Reader("meta");
        let stored: storage::AuditHeadRecord = reader.message(value)?;
        Ok(Self { length: stored.length, hash: reader.digest(&stored.hash)? })
    }

    /// The head after one more entry.
    pub fn followed_by(&self, entry: &[u8]) -> Self {
        Self { length: self.length + 1, hash: signing::audit_hash(&self.hash, entry) }
    }

    /// The stored form of the entry that this is the head after.
    pub fn encode_entry(&self, entry: &[u8]) -> Bytes {
        chain(&self.hash, entry)
    }

    /// The hash after an entry and the entry, from their stored form.
    pub fn decode_entry(value: &Bytes) -> Result<([u8; 32], Bytes), DecodeError> {
        unchain(&Reader("audit"), value)
    }
}

/// The entry that comes next.
pub fn audit_entry(number: u64, at: Timestamp, act: AuditAct) -> Bytes {
    let (seconds, nanos) = at.to_parts();
    v1::AuditEntry {
        number,
        entry_time: Some(WireTime { seconds, nanos }),
        actor: act.actor,
        action: act.action.into(),
        subject: act.subject,
        details: act.details,
    }
    .encode_to_vec()
    .into()
}

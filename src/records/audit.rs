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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuditHead {
    /// How many entries were written.
    pub length: u64,
    /// The hash of the last one; zeros before the first.
    pub hash: [u8; 32],
    /// The number of the first that is kept; one more than `length` if none is.
    pub first: u64,
    /// The hash of the one before it; zeros if there is none.
    pub hash_before_first: [u8; 32],
}

impl Default for AuditHead {
    fn default() -> Self {
        Self { length: 0, hash: [0; 32], first: 1, hash_before_first: [0; 32] }
    }
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
        storage::AuditHeadRecord {
            length: self.length,
            hash: Bytes::copy_from_slice(&self.hash),
            first: self.first,
            hash_before_first: Bytes::copy_from_slice(&self.hash_before_first),
        }
        .encode_to_vec()
        .into()
    }

    /// From its stored form.
    pub fn decode(value: &Bytes) -> Result<Self, DecodeError> {
        let reader = Reader("meta");
        let stored: storage::AuditHeadRecord = reader.message(value)?;
        let hash_before_first = match stored.hash_before_first.is_empty() {
            true => [0; 32],
            false => reader.digest(&stored.hash_before_first)?,
        };
        let (length, hash) = (stored.length, reader.digest(&stored.hash)?);
        Ok(Self { length, hash, first: stored.first.max(1), hash_before_first })
    }

    /// The head after one more entry.
    pub fn followed_by(&self, entry: &[u8]) -> Self {
        Self { length: self.length + 1, hash: signing::audit_hash(&self.hash, entry), ..*self }
    }

    /// The head after the first entry was removed, whose hash this is.
    pub fn without_first(&self, hash: [u8; 32]) -> Self {
        Self { first: self.first + 1, hash_before_first: hash, ..*self }
    }

    /// How many entries are kept.
    pub fn kept(&self) -> u64 {
        (self.length + 1).saturating_sub(self.first)
    }

    /// The stored form of the entry that this is the head after.
    pub fn encode_entry(&self, entry: &[u8]) -> Bytes {
        chain(&self.hash, entry)
    }

    /// When an entry was written, from its stored form.
    pub fn entry_time(value: &Bytes) -> Result<Timestamp, DecodeError> {
        let reader = Reader("audit");
        let entry: v1::AuditEntry = reader.message(&unchain(&reader, value)?.1)?;
        let at = entry.entry_time.unwrap_or_default();
        reader.some(Timestamp::from_parts(at.seconds, at.nanos), "entry_time")
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

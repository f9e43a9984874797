//! Table audit: the hash-chained log of administrative acts. A value is the hash after the entry, 32 bytes, followed by
//! the entry, an encoded `baton.v1.AuditEntry`. Table meta has the head of the chain.

use bytes::Bytes;
use prost::Message;

use super::{DecodeError, Reader, by_number, chain, unchain};
use crate::{
    envelope::signing,
    proto::{storage, v1},
    store::{Key, Table},
    time::Timestamp,
};

/// An administrative act, for one entry of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditAct {
    /// The caller that acted, as a text.
    pub actor: String,
    /// The kind of act.
    pub action: v1::AuditAction,
    /// The object of the act.
    pub subject: String,
    /// Further details; never a secret, never a payload.
    pub details: String,
}

/// The head of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuditHead {
    /// The number of entries ever written.
    pub length: u64,
    /// The hash of the last entry; zeros before the first.
    pub hash: [u8; 32],
    /// The number of the first kept entry; `length` + 1 if none is kept.
    pub first: u64,
    /// The hash of the entry before the first kept one; zeros if no such entry existed.
    pub hash_before_first: [u8; 32],
}

impl Default for AuditHead {
    fn default() -> Self {
        Self { length: 0, hash: [0; 32], first: 1, hash_before_first: [0; 32] }
    }
}

impl AuditHead {
    /// The key of the head.
    pub fn key() -> Key {
        Key { table: Table::Meta, key: "audit".into() }
    }

    /// The key of the entry with this number.
    pub fn entry_key(number: u64) -> Key {
        by_number(Table::Audit, number)
    }

    /// Encodes the head.
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

    /// Decodes the head.
    pub fn decode(value: &Bytes) -> Result<Self, DecodeError> {
        let reader = Reader("meta");
        let stored: storage::AuditHeadRecord = reader.message(value)?;
        // A head without the fields of the removal has lost no entry: its first entry is number 1, after a hash of
        // zeros.
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

    /// The head after the removal of the first entry, which has this hash.
    pub fn without_first(&self, hash: [u8; 32]) -> Self {
        Self { first: self.first + 1, hash_before_first: hash, ..*self }
    }

    /// The number of kept entries.
    pub fn kept(&self) -> u64 {
        (self.length + 1).saturating_sub(self.first)
    }

    /// Encodes an entry with the hash of this head, which is the head after the entry.
    pub fn encode_entry(&self, entry: &[u8]) -> Bytes {
        chain(&self.hash, entry)
    }

    /// The time of an encoded entry.
    pub fn entry_time(value: &Bytes) -> Result<Timestamp, DecodeError> {
        let reader = Reader("audit");
        let entry: v1::AuditEntry = reader.message(&unchain(&reader, value)?.1)?;
        let at = entry.entry_time.unwrap_or_default();
        reader.some(Timestamp::from_parts(at.seconds, at.nanos), "entry_time")
    }

    /// Decodes an entry to the hash after it and its bytes.
    pub fn decode_entry(value: &Bytes) -> Result<([u8; 32], Bytes), DecodeError> {
        unchain(&Reader("audit"), value)
    }
}

/// The bytes of the entry for an act.
pub fn audit_entry(number: u64, at: Timestamp, act: AuditAct) -> Bytes {
    v1::AuditEntry {
        number,
        entry_time: Some(at.into()),
        actor: act.actor,
        action: act.action.into(),
        subject: act.subject,
        details: act.details,
    }
    .encode_to_vec()
    .into()
}

//! Table messages: what was accepted under a message id. Table envelopes: the bytes, by sequence. Table shared_envelopes:
//! how many letters keep an envelope that more than one keeps.

use bytes::Bytes;
use prost::Message;

use super::{DecodeError, Reader, by_number};
use crate::{
    ids::MessageId,
    proto::{storage, v1},
    store::{Key, Table},
};

/// What was accepted under a message id: enough to recognise a repeat and to answer it with the first receipt.
#[derive(Debug, Clone, PartialEq)]
pub struct MessageRecord {
    /// Its place in the order of everything.
    pub sequence: u64,
    /// SHA-256 of all that was signed.
    pub content_digest: [u8; 32],
    /// The receipt, not signed: signing again gives the same signature.
    pub receipt: v1::Receipt,
}

impl MessageRecord {
    /// Where it lies.
    pub fn key(message: MessageId) -> Key {
        Key { table: Table::Messages, key: message.as_bytes().into() }
    }

    /// Where the envelope with this sequence lies.
    pub fn envelope_key(sequence: u64) -> Key {
        by_number(Table::Envelopes, sequence)
    }

    /// Where the number of letters lies that keep this envelope together.
    pub fn shared_key(sequence: u64) -> Key {
        by_number(Table::SharedEnvelopes, sequence)
    }

    /// The stored form of that number.
    pub fn encode_shared(letters: u64) -> Bytes {
        storage::SharedEnvelopeRecord { letters }.encode_to_vec().into()
    }

    /// That number from its stored form.
    pub fn decode_shared(value: &Bytes) -> Result<u64, DecodeError> {
        let reader = Reader("shared_envelopes");
        Ok(reader.message::<storage::SharedEnvelopeRecord>(value)?.letters)
    }

    /// Its stored form.
    pub fn encode(&self) -> Bytes {
        storage::MessageRecord {
            sequence: self.sequence,
            content_digest: Bytes::copy_from_slice(&self.content_digest),
            receipt: self.receipt.encode_to_vec().into(),
        }
        .encode_to_vec()
        .into()
    }

    /// From its stored form.
    pub fn decode(value: &Bytes) -> Result<Self, DecodeError> {
        let reader = Reader("messages");
        let stored: storage::MessageRecord = reader.message(value)?;
        Ok(Self {
            sequence: stored.sequence,
            content_digest: reader.digest(&stored.content_digest)?,
            receipt: reader.message(&stored.receipt)?,
        })
    }
}

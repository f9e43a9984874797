//! Table messages: the record of each accepted message, by message id. Table envelopes: the bytes, by sequence. Table
//! shared_envelopes: the number of letters that own a shared envelope.

use bytes::Bytes;
use prost::Message;

use super::{DecodeError, Reader, by_number};
use crate::{
    ids::MessageId,
    proto::{storage, v1},
    store::{Key, Table},
};

/// An accepted message: enough to recognise a repeat and to answer it with the first receipt.
#[derive(Debug, Clone, PartialEq)]
pub struct MessageRecord {
    /// The sequence in the order of all stored items.
    pub sequence: u64,
    /// The SHA-256 of the signed bytes.
    pub content_digest: [u8; 32],
    /// The unsigned receipt: signing it again gives the same signature.
    pub receipt: v1::Receipt,
}

impl MessageRecord {
    /// The key of the record.
    pub fn key(message: MessageId) -> Key {
        Key { table: Table::Messages, key: message.as_bytes().into() }
    }

    /// The key of the envelope with this sequence.
    pub fn envelope_key(sequence: u64) -> Key {
        by_number(Table::Envelopes, sequence)
    }

    /// The key of the number of letters that own this envelope.
    pub fn shared_key(sequence: u64) -> Key {
        by_number(Table::SharedEnvelopes, sequence)
    }

    /// Encodes the number of letters.
    pub fn encode_shared(letters: u64) -> Bytes {
        storage::SharedEnvelopeRecord { letters }.encode_to_vec().into()
    }

    /// Decodes the number of letters.
    pub fn decode_shared(value: &Bytes) -> Result<u64, DecodeError> {
        let reader = Reader("shared_envelopes");
        Ok(reader.message::<storage::SharedEnvelopeRecord>(value)?.letters)
    }

    /// Encodes the record.
    pub fn encode(&self) -> Bytes {
        storage::MessageRecord {
            sequence: self.sequence,
            content_digest: Bytes::copy_from_slice(&self.content_digest),
            receipt: self.receipt.encode_to_vec().into(),
        }
        .encode_to_vec()
        .into()
    }

    /// Decodes the record.
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

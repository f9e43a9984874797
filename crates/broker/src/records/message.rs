//! Table messages: the record of each accepted message, by message id. Table envelopes: the envelopes that are in no
//! record of a message, by sequence. Table shared_envelopes: the number of letters that own a shared envelope.

use bytes::Bytes;
use prost::Message;

use super::{DecodeError, LogEntry, Reader, by_number};
use crate::{
    domain::mailbox::EnvelopePlace,
    ids::{MessageId, TaskId},
    proto::{storage, v1},
    store::{Key, Record, Table},
};

/// An accepted message: enough to recognise a repeat and to answer it with the first receipt.
#[derive(Debug, Clone, PartialEq)]
pub struct MessageRecord {
    /// The sequence in the order of all stored items.
    pub sequence: u64,
    /// The SHA-256 of the signed bytes.
    pub content_digest: [u8; 32],
    /// The form in which the message was accepted.
    pub acceptance: Acceptance,
}

/// The form in which a message was accepted.
#[derive(Debug, Clone, PartialEq)]
pub enum Acceptance {
    /// The message is in no custody log. It has its unsigned receipt: signing it again gives the same signature.
    Carried(Box<v1::Receipt>),
    /// The message is in the custody log of its task.
    Logged(LoggedMessage),
}

/// A message in a custody log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoggedMessage {
    /// The task whose log has the entry.
    pub task: TaskId,
    /// The entry in the task's log.
    pub entry: LogEntry,
    /// The envelope as received. `None`: it is in table envelopes, under the sequence.
    pub envelope: Option<Bytes>,
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

    /// The message as a part of a custody log. `None`: it is in no log.
    pub fn logged(&self) -> Option<&LoggedMessage> {
        match &self.acceptance {
            Acceptance::Carried(_) => None,
            Acceptance::Logged(logged) => Some(logged),
        }
    }

    /// The unsigned receipt of the message.
    pub fn receipt(&self) -> Result<v1::Receipt, DecodeError> {
        match &self.acceptance {
            Acceptance::Carried(receipt) => Ok((**receipt).clone()),
            Acceptance::Logged(logged) => logged.receipt(),
        }
    }

    /// Encodes the record.
    pub fn encode(&self) -> Bytes {
        let content_digest = Bytes::copy_from_slice(&self.content_digest);
        let record = storage::MessageRecord { sequence: self.sequence, content_digest, ..Default::default() };
        match &self.acceptance {
            Acceptance::Carried(receipt) => {
                storage::MessageRecord { receipt: receipt.encode_to_vec().into(), ..record }
            }
            Acceptance::Logged(LoggedMessage { task, entry, envelope }) => storage::MessageRecord {
                task_id: task.to_string(),
                hash: Bytes::copy_from_slice(&entry.hash),
                entry: entry.bytes.clone(),
                envelope: envelope.clone().unwrap_or_default(),
                ..record
            },
        }
        .encode_to_vec()
        .into()
    }

    /// Decodes the record.
    pub fn decode(value: &Bytes) -> Result<Self, DecodeError> {
        let reader = Reader("messages");
        let stored: storage::MessageRecord = reader.message(value)?;
        // Only a logged message has a task here; a carried one may name a task in its receipt.
        let acceptance = if stored.task_id.is_empty() {
            Acceptance::Carried(Box::new(reader.message(&stored.receipt)?))
        } else {
            Acceptance::Logged(LoggedMessage {
                task: reader.task(&stored.task_id)?,
                entry: LogEntry { hash: reader.digest(&stored.hash)?, bytes: stored.entry },
                // No envelope is empty, so an empty field means that the envelope is elsewhere.
                envelope: Some(stored.envelope).filter(|envelope| !envelope.is_empty()),
            })
        };
        Ok(Self { sequence: stored.sequence, content_digest: reader.digest(&stored.content_digest)?, acceptance })
    }
}

impl LoggedMessage {
    /// The unsigned receipt, rebuilt from the custody entry.
    pub fn receipt(&self) -> Result<v1::Receipt, DecodeError> {
        let entry = self.entry.decode()?;
        let Some(v1::custody_entry::Event::Accepted(accepted)) = &entry.event else {
            return Err(Reader("messages").error("the custody entry is not that of a message"));
        };
        Ok(receipt_of(&self.task, &entry, accepted, self.entry.hash))
    }
}

/// The unsigned receipt of an accepted envelope, rebuilt from the custody entry.
pub fn receipt_of(
    task: &TaskId,
    entry: &v1::CustodyEntry,
    accepted: &v1::CustodyEnvelope,
    custody_hash: [u8; 32],
) -> v1::Receipt {
    v1::Receipt {
        message_id: accepted.message_id.clone(),
        sequence: accepted.sequence,
        accept_time: entry.entry_time,
        task_id: task.to_string(),
        task_status: entry.task_status,
        owner_id: entry.owner_id.clone(),
        epoch: entry.epoch,
        handoff_id: entry.handoff_id.clone(),
        handoff_state: entry.handoff_state,
        custody_hash: custody_hash.to_vec().into(),
        ..Default::default()
    }
}

/// Reads an envelope, byte for byte as received. `get` reads a record. `None`: the envelope is not stored.
pub fn read_envelope<E: From<DecodeError>>(
    place: EnvelopePlace,
    mut get: impl FnMut(&Key) -> Result<Option<Record>, E>,
) -> Result<Option<Bytes>, E> {
    let sequence = match place {
        EnvelopePlace::Sequence(sequence) => sequence,
        EnvelopePlace::Message(message) => {
            let Some(stored) = get(&MessageRecord::key(message))? else { return Ok(None) };
            let record = MessageRecord::decode(&stored.value)?;
            match record.acceptance {
                Acceptance::Logged(LoggedMessage { envelope: Some(envelope), .. }) => return Ok(Some(envelope)),
                // The record does not contain the envelope, so table envelopes has it.
                Acceptance::Logged(_) | Acceptance::Carried(_) => record.sequence,
            }
        }
    };
    Ok(get(&MessageRecord::envelope_key(sequence))?.map(|record| record.value))
}

//! Table mailbox: messages for agents. Table dead_letters: those that were given up.

use bytes::Bytes;
use prost::Message;

use super::{DecodeError, Reader, by_name_and_number, id_bytes, moment, range_of_name};
use crate::{
    domain::{
        handoff::{Acked, Priority},
        mailbox::Letter,
    },
    ids::AgentId,
    proto::storage,
    store::{Key, KeyRange, Table},
    time::Timestamp,
};

/// Where a message of an agent's mailbox lies.
pub fn letter_key(agent: &AgentId, place: u64) -> Key {
    by_name_and_number(Table::Mailbox, agent.as_str(), place)
}

/// Where all mail of an agent lies.
pub fn mailbox_range(agent: &AgentId) -> KeyRange {
    range_of_name(agent.as_str())
}

/// The stored form of a letter.
pub fn encode_letter(letter: &Letter) -> Bytes {
    to_storage(letter).encode_to_vec().into()
}

/// A letter from its stored form; its place is in the last 8 bytes of its key.
pub fn decode_letter(key: &[u8], value: &Bytes) -> Result<Letter, DecodeError> {
    let reader = Reader("mailbox");
    let place = key.last_chunk().ok_or_else(|| reader.error("a key is too short"))?;
    from_storage(&reader, u64::from_be_bytes(*place), reader.message(value)?)
}

fn to_storage(letter: &Letter) -> storage::LetterRecord {
    storage::LetterRecord {
        message_id: id_bytes(letter.message),
        message_sequence: letter.message_sequence,
        task_id: letter.task.as_ref().map(ToString::to_string).unwrap_or_default(),
        priority: letter.priority.number(),
        expires_at: letter.expires_at.unix_nanoseconds(),
        handouts: letter.handouts,
        failures: letter.failures,
        not_before: letter.not_before.unix_nanoseconds(),
        handoff_id: letter.handoff.map(|(handoff, _)| id_bytes(handoff)).unwrap_or_default(),
        handoff_mail: letter.handoff.map_or(0, |(_, mail)| mail.number()),
    }
}

fn from_storage(reader: &Reader, place: u64, stored: storage::LetterRecord) -> Result<Letter, DecodeError> {
    let task = if stored.task_id.is_empty() { None } else { Some(reader.task(&stored.task_id)?) };
    let handoff = match reader.optional_message_id(&stored.handoff_id)? {
        Some(handoff) => Some((handoff, reader.some(Acked::from_number(stored.handoff_mail), "handoff_mail")?)),
        None => None,
    };
    Ok(Letter {
        sequence: place,
        message_sequence: stored.message_sequence,
        message: reader.message_id(&stored.message_id)?,
        task,
        priority: reader.some(Priority::from_number(stored.priority), "priority")?,
        expires_at: moment(stored.expires_at),
        handouts: stored.handouts,
        failures: stored.failures,
        not_before: moment(stored.not_before),
        handoff,
    })
}

/// Why a message was given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParkReason {
    /// It was handed out too often in vain.
    DeliveryAttemptsExhausted = 1,
    /// Its receiver said that it can never take it.
    Poison = 2,
    /// Its time was over before it was delivered.
    Expired = 3,
}

/// A message that was given up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetterRecord {
    /// The mailbox it was in.
    pub agent: AgentId,
    /// The letter as it was.
    pub letter: Letter,
    /// Why.
    pub reason: ParkReason,
    /// When.
    pub parked_at: Timestamp,
    /// The agent's words, if any.
    pub reason_text: String,
}

impl DeadLetterRecord {
    /// Where it lies: oldest first.
    pub fn key(&self) -> Key {
        let mut key = self.letter.sequence.to_be_bytes().to_vec();
        key.extend_from_slice(self.agent.as_str().as_bytes());
        Key { table: Table::DeadLetters, key: key.into() }
    }

    /// Its stored form.
    pub fn encode(&self) -> Bytes {
        storage::DeadLetterRecord {
            agent_id: self.agent.to_string(),
            letter: Some(to_storage(&self.letter)),
            reason: self.reason as i32,
            parked_at: self.parked_at.unix_nanoseconds(),
            reason_text: self.reason_text.clone(),
        }
        .encode_to_vec()
        .into()
    }

    /// From its stored form and its key.
    pub fn decode(key: &[u8], value: &Bytes) -> Result<Self, DecodeError> {
        let reader = Reader("dead_letters");
        let place = key.first_chunk().ok_or_else(|| reader.error("a key is too short"))?;
        let stored: storage::DeadLetterRecord = reader.message(value)?;
        let letter = stored.letter.ok_or_else(|| reader.error("the letter is missing"))?;
        Ok(Self {
            agent: reader.agent(&stored.agent_id)?,
            letter: from_storage(&reader, u64::from_be_bytes(*place), letter)?,
            reason: match stored.reason {
                1 => ParkReason::DeliveryAttemptsExhausted,
                2 => ParkReason::Poison,
                3 => ParkReason::Expired,
                other => return Err(reader.error(format!("reason {other} is not known"))),
            },
            parked_at: moment(stored.parked_at),
            reason_text: stored.reason_text,
        })
    }
}

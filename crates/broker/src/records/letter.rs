//! Table mailbox: the letters of all agents.

use bytes::Bytes;
use prost::Message;

use super::{
    DecodeError, Reader, by_name_and_number, decode_entity_id, encode_entity_id, id_bytes, moment, range_of_name,
    trace::{context_from_storage, context_to_storage},
};
use crate::{
    domain::{
        handoff::{Acked, Priority},
        mailbox::{Attempt, AttemptEnd, EnvelopeOwner, Flow, Letter},
    },
    ids::{AgentId, InstanceId},
    proto::storage,
    store::{Key, KeyRange, Table},
};

/// The key of a letter in an agent's mailbox.
pub fn letter_key(agent: &AgentId, place: u64) -> Key {
    by_name_and_number(Table::Mailbox, agent.as_str(), place)
}

/// The range of all letters of an agent.
pub fn mailbox_range(agent: &AgentId) -> KeyRange {
    range_of_name(agent.as_str())
}

/// The value of a letter in table mailbox.
pub fn encode_letter(letter: &Letter) -> Bytes {
    to_storage(letter).encode_to_vec().into()
}

/// Decodes a letter from its key and value.
pub fn decode_letter(key: &[u8], value: &Bytes) -> Result<Letter, DecodeError> {
    let reader = Reader("mailbox");
    from_storage(&reader, letter_place(key)?, reader.message(value)?)
}

/// Decodes a letter that lies at this place.
pub(super) fn letter_at(reader: &Reader, place: u64, value: &Bytes) -> Result<Letter, DecodeError> {
    from_storage(reader, place, reader.message(value)?)
}

/// The place in a letter's key.
pub fn letter_place(key: &[u8]) -> Result<u64, DecodeError> {
    let place = key.last_chunk().ok_or_else(|| Reader("mailbox").error("a key is too short"))?;
    Ok(u64::from_be_bytes(*place))
}

/// The agent in a letter's key.
pub fn letter_agent(key: &[u8]) -> Result<AgentId, DecodeError> {
    let reader = Reader("mailbox");
    let id = key.split_last_chunk::<9>().ok_or_else(|| reader.error("a key is too short"))?.0;
    reader.agent(std::str::from_utf8(id).map_err(|error| reader.error(error.to_string()))?)
}

pub(super) fn to_storage(letter: &Letter) -> storage::LetterRecord {
    storage::LetterRecord {
        message_id: id_bytes(letter.message),
        message_sequence: letter.message_sequence,
        task_id: letter.task.as_ref().map(ToString::to_string).unwrap_or_default(),
        priority: letter.priority.number(),
        sender_id: letter.flow.sender.to_string(),
        fairness_key: letter.flow.key.as_ref().map(ToString::to_string).unwrap_or_default(),
        expires_at: letter.expires_at.unix_nanoseconds(),
        handouts: letter.handouts,
        failures: letter.failures,
        not_before: letter.not_before.unix_nanoseconds(),
        report_to: letter.report_to.as_ref().map(|(entity, _)| encode_entity_id(entity).into()).unwrap_or_default(),
        role: letter.report_to.as_ref().map_or(0, |(_, role)| role.number()),
        attempts: letter.attempts.iter().map(attempt_to_storage).collect(),
        envelope_owner: letter.envelope_owner.number(),
        trace: letter.trace.as_deref().map(context_to_storage),
        stored_at: letter.stored_at.unix_nanoseconds(),
        process_id: process_bytes(letter.process),
    }
}

pub(super) fn attempt_to_storage(attempt: &Attempt) -> storage::AttemptRecord {
    storage::AttemptRecord {
        handed_out_at: attempt.handed_out_at.unix_nanoseconds(),
        ended_at: attempt.ended_at.unix_nanoseconds(),
        end: attempt.end.number(),
        text: attempt.text.clone(),
        // The key of the letter names the agent. A dead letter fills this field, because a request may have several
        // agents.
        agent_id: String::new(),
    }
}

pub(super) fn attempt_from_storage(reader: &Reader, stored: storage::AttemptRecord) -> Result<Attempt, DecodeError> {
    let end = AttemptEnd::from_number(stored.end);
    Ok(Attempt {
        handed_out_at: moment(stored.handed_out_at),
        ended_at: moment(stored.ended_at),
        end: reader.some(end, "the end of an attempt")?,
        text: stored.text,
    })
}

/// The process of this agent, if the agent has sent the message in hand.
pub(super) fn process_of(sender: Option<&(AgentId, InstanceId)>, agent: &AgentId) -> Option<InstanceId> {
    sender.filter(|(sender, _)| sender == agent).map(|(_, process)| *process)
}

/// Encodes the id of a process: 16 bytes, or none.
pub(super) fn process_bytes(process: Option<InstanceId>) -> Bytes {
    process.map(|process| Bytes::copy_from_slice(process.as_bytes())).unwrap_or_default()
}

/// Decodes the id of a process: 16 bytes, or none.
pub(super) fn process_from(reader: &Reader, stored: &[u8]) -> Result<Option<InstanceId>, DecodeError> {
    if stored.is_empty() {
        return Ok(None);
    }
    let bytes = stored.try_into().map_err(|_| reader.error("the id of a process has 16 bytes"))?;
    Ok(Some(InstanceId::from_bytes(bytes)))
}

pub(super) fn from_storage(reader: &Reader, place: u64, stored: storage::LetterRecord) -> Result<Letter, DecodeError> {
    let task = if stored.task_id.is_empty() { None } else { Some(reader.task(&stored.task_id)?) };
    // No entity id is empty, so an empty field means that no entity learns of the ack.
    let report_to = match stored.report_to.is_empty() {
        false => {
            let entity = decode_entity_id(Table::Mailbox, &stored.report_to)?;
            Some((entity, reader.some(Acked::from_number(stored.role), "role")?))
        }
        true => None,
    };
    Ok(Letter {
        sequence: place,
        message_sequence: stored.message_sequence,
        message: reader.message_id(&stored.message_id)?,
        task,
        priority: reader.some(Priority::from_number(stored.priority), "priority")?,
        flow: Flow {
            sender: reader.agent(&stored.sender_id)?,
            key: reader.optional_fairness_key(&stored.fairness_key)?,
        },
        expires_at: moment(stored.expires_at),
        stored_at: moment(stored.stored_at),
        handouts: stored.handouts,
        failures: stored.failures,
        not_before: moment(stored.not_before),
        report_to,
        attempts: stored
            .attempts
            .into_iter()
            .map(|attempt| attempt_from_storage(reader, attempt))
            .collect::<Result<_, _>>()?,
        envelope_owner: reader.some(EnvelopeOwner::from_number(stored.envelope_owner), "envelope_owner")?,
        trace: stored.trace.map(|trace| context_from_storage(reader, trace)).transpose()?.map(Box::new),
        process: process_from(reader, &stored.process_id)?,
    })
}

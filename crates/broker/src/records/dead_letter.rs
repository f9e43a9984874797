//! Table dead_letters: messages that were given up, and refused envelopes.

use bytes::Bytes;
use prost::Message;

use super::{
    DecodeError, List, ListKind, Reader, by_number, id_bytes,
    letter::{attempt_from_storage, attempt_to_storage, from_storage, to_storage},
    moment,
};
use crate::{
    domain::{
        dead_letter::{DeadState, ParkReason},
        mailbox::{Attempt, Letter},
    },
    ids::{AgentId, MessageId, TaskId},
    proto::{storage, v1},
    store::{Key, Table},
    time::Timestamp,
};

/// The place of a dead letter's bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeadEnvelope {
    /// The envelope was accepted with this sequence; table envelopes has the bytes.
    Accepted(u64),
    /// The envelope was refused; the record has the bytes.
    Refused(Bytes),
}

/// The fields of the envelope for operators and filters. A field is empty if the envelope lacks it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EnvelopeSummary {
    /// The message_id, in its canonical form.
    pub message_id: String,
    /// The sender_id. In a refused envelope it is only a claim.
    pub sender_id: String,
    /// The number of the message_type.
    pub message_type: i32,
    /// The task_id, if the message names a task.
    pub task_id: String,
    /// The W3C traceparent, at most 55 bytes.
    pub traceparent: String,
}

impl EnvelopeSummary {
    /// Reads the fields from these bytes, if they are an envelope. Leaves out invalid ids and an overlong traceparent.
    pub fn of(raw: &Bytes) -> Self {
        let envelope = v1::Envelope::decode(raw.clone()).unwrap_or_default();
        let known = |text: String, most: usize| if text.len() <= most { text } else { String::new() };
        Self {
            message_id: MessageId::parse(&envelope.message_id).map(|id| id.to_string()).unwrap_or_default(),
            sender_id: AgentId::parse(&envelope.sender_id).map(|id| id.to_string()).unwrap_or_default(),
            message_type: envelope.message_type,
            task_id: TaskId::parse(&envelope.task_id).map(|id| id.to_string()).unwrap_or_default(),
            traceparent: known(envelope.trace_context.unwrap_or_default().traceparent, 55),
        }
    }
}

/// The decision about a dead letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settlement {
    /// The time of the decision.
    pub at: Timestamp,
    /// The caller, and the reason if one was given.
    pub text: String,
    /// The agent that the message was redriven to.
    pub redriven_to: Option<AgentId>,
    /// The handoff that the redrive opened.
    pub redriven_handoff: Option<MessageId>,
}

/// A message that the broker gave up, or an envelope that it refused and kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetterRecord {
    /// The id: a sequence, so that later dead letters have higher numbers.
    pub number: u64,
    /// The agent of the mailbox; for a refused envelope, the agent that sent it.
    pub agent: AgentId,
    /// The last state of the letter, if the message was in a mailbox.
    pub letter: Option<Letter>,
    /// Every attempt with its agent, oldest first.
    pub attempts: Vec<(AgentId, Attempt)>,
    /// The handoff of the message.
    pub handoff: Option<MessageId>,
    /// The reason, for filters.
    pub reason: ParkReason,
    /// The reason as a text.
    pub reason_text: String,
    /// The time of parking.
    pub parked_at: Timestamp,
    /// Whether an operator has decided, and how.
    pub state: DeadState,
    /// The decision, once one is made.
    pub settlement: Option<Settlement>,
    /// The place of the bytes.
    pub envelope: DeadEnvelope,
    /// The fields of the envelope.
    pub summary: EnvelopeSummary,
}

impl DeadLetterRecord {
    /// The agents that may see the dead letter: that of the mailbox, and the sender. The sender of a refused envelope
    /// is not authenticated by its bytes, so only the agent of its session counts there.
    pub fn participants(&self) -> impl Iterator<Item = &str> {
        let sender = self.summary.sender_id.as_str();
        let is_proven = matches!(self.envelope, DeadEnvelope::Accepted(_));
        let sender = Some(sender).filter(|sender| is_proven && !sender.is_empty() && *sender != self.agent.as_str());
        std::iter::once(self.agent.as_str()).chain(sender)
    }

    /// The key of the record; keys sort the oldest first.
    pub fn key(number: u64) -> Key {
        by_number(Table::DeadLetters, number)
    }

    /// The keys in the lists of agents; the values are empty.
    pub fn agent_index_keys(&self) -> impl Iterator<Item = Key> {
        self.participants().map(|agent| List::of_kind(ListKind::DeadLetters, agent).place(self.number))
    }

    /// Encodes the record.
    pub fn encode(&self) -> Bytes {
        let settlement = self.settlement.as_ref();
        let (message_sequence, raw) = match &self.envelope {
            DeadEnvelope::Accepted(sequence) => (*sequence, Bytes::new()),
            DeadEnvelope::Refused(raw) => (0, raw.clone()),
        };
        storage::DeadLetterRecord {
            agent_id: self.agent.to_string(),
            letter: self.letter.as_ref().map(to_storage),
            place: self.letter.as_ref().map_or(0, |letter| letter.sequence),
            reason: self.reason.number(),
            reason_text: self.reason_text.clone(),
            parked_at: self.parked_at.unix_nanoseconds(),
            state: self.state.number(),
            settled_at: settlement.map(|settlement| settlement.at.unix_nanoseconds()),
            settle_text: settlement.map(|settlement| settlement.text.clone()).unwrap_or_default(),
            redriven_to: settlement
                .and_then(|settlement| settlement.redriven_to.as_ref())
                .map(ToString::to_string)
                .unwrap_or_default(),
            redriven_handoff_id: settlement
                .and_then(|settlement| settlement.redriven_handoff)
                .map(id_bytes)
                .unwrap_or_default(),
            message_sequence,
            raw,
            message_id: self.summary.message_id.clone(),
            sender_id: self.summary.sender_id.clone(),
            message_type: self.summary.message_type,
            task_id: self.summary.task_id.clone(),
            handoff_id: self.handoff.map(|id| id.to_string()).unwrap_or_default(),
            traceparent: self.summary.traceparent.clone(),
            attempts: self.attempts.iter().map(with_agent).collect(),
        }
        .encode_to_vec()
        .into()
    }

    /// Decodes the record from its key and value.
    pub fn decode(key: &[u8], value: &Bytes) -> Result<Self, DecodeError> {
        let reader = Reader("dead_letters");
        let number = key.try_into().map_err(|_| reader.error("a key has not 8 bytes"))?;
        let stored: storage::DeadLetterRecord = reader.message(value)?;
        let handoff = match stored.handoff_id.as_str() {
            "" => None,
            text => Some(MessageId::parse(text).map_err(|error| reader.error(format!("handoff_id {error}")))?),
        };
        let redriven_to = if stored.redriven_to.is_empty() { None } else { Some(reader.agent(&stored.redriven_to)?) };
        let redriven_handoff = reader.optional_message_id(&stored.redriven_handoff_id)?;
        let settle_text = stored.settle_text;
        let settled = |at| Settlement { at: moment(at), text: settle_text, redriven_to, redriven_handoff };
        Ok(Self {
            number: u64::from_be_bytes(number),
            agent: reader.agent(&stored.agent_id)?,
            letter: stored.letter.map(|letter| from_storage(&reader, stored.place, letter)).transpose()?,
            attempts: stored
                .attempts
                .into_iter()
                .map(|attempt| Ok((reader.agent(&attempt.agent_id)?, attempt_from_storage(&reader, attempt)?)))
                .collect::<Result<_, DecodeError>>()?,
            handoff,
            reason: reader.some(ParkReason::from_number(stored.reason), "reason")?,
            reason_text: stored.reason_text,
            parked_at: moment(stored.parked_at),
            state: reader.some(DeadState::from_number(stored.state), "state")?,
            settlement: stored.settled_at.map(settled),
            // No envelope has sequence 0: the record has the bytes.
            envelope: match stored.message_sequence {
                0 => DeadEnvelope::Refused(stored.raw),
                sequence => DeadEnvelope::Accepted(sequence),
            },
            summary: EnvelopeSummary {
                message_id: stored.message_id,
                sender_id: stored.sender_id,
                message_type: stored.message_type,
                task_id: stored.task_id,
                traceparent: stored.traceparent,
            },
        })
    }
}

fn with_agent((agent, attempt): &(AgentId, Attempt)) -> storage::AttemptRecord {
    storage::AttemptRecord { agent_id: agent.to_string(), ..attempt_to_storage(attempt) }
}

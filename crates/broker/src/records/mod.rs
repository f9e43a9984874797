//! The persisted form of all records of the broker: keys, and values in `baton.storage.v1`.
//!
//! This module owns the key and the encoding of each record, with one file for each kind. It must not know what happens
//! to a record. A value that does not decode is reported as damaged, never guessed at.

mod absence;
mod agent;
mod agent_statistics;
mod audit;
mod blob;
mod change;
mod context;
mod custody;
mod dead_letter;
mod entity;
mod expiration;
mod graph_revision;
mod handoff;
mod invitation;
mod letter;
mod list;
mod message;
mod negotiation;
mod outbox;
mod plan;
#[cfg(debug_assertions)]
mod probe;
mod registration;
mod routing;
mod schema;
mod task;
mod thread;
mod timer;
mod trace;
mod usage;
mod workspace;

use bytes::Bytes;

pub use absence::AbsenceRecord;
pub use agent::AgentRecord;
pub use agent_statistics::StatisticsRecord;
pub use audit::{AuditAct, AuditHead, audit_entry};
pub use blob::{BlobRecord, BlobUsage, HoldKeys, UploadRecord};
pub use change::ChangePlace;
pub use context::{ContextSectionRecord, ContextVersionRecord, contexts_range};
pub use custody::{CustodyEvent, CustodyLink, EnvelopeFacts, LogEntry, LogItem, LogPage, NotFree, custody_entry};
pub use dead_letter::{DeadEnvelope, DeadLetterRecord, EnvelopeSummary, Settlement};
pub use entity::{EntityRecord, IndexDelta, LogClock, WriteFacts};
pub use expiration::{Expiration, RemovedTaskRecord, decode_message_ids, encode_message_ids};
pub use graph_revision::GraphRevision;
pub use handoff::{
    HandoffPlace, HandoffRecord, RequestPlace, encode_removed_changes, removed_changes, removed_changes_key,
};
pub use invitation::InvitationRecord;
pub use letter::{decode_letter, encode_letter, letter_agent, letter_key, letter_place, mailbox_range};
pub use list::{List, ListKind};
pub use message::{Acceptance, LoggedMessage, MessageRecord, read_envelope, receipt_of};
pub use negotiation::NegotiationRecord;
pub use outbox::{LettersLeft, OutboxRecord, OutboxRow, decode_entity_id, encode_entity_id};
pub use plan::{PlanEntryRecord, PlanRecord, PlanSpecRecord, plan_run_to_v1, result_to_v1};
pub use registration::{RegistrationCount, RegistrationName, RegistrationRecord, Registry, RemovedSchema};
pub use routing::{
    GraphRecord, RunEntryRecord, RunRecord, RunTurnRecord, choice_to_v1, graph_to_v1, node_state, run_to_v1,
};
pub use schema::SchemaRecord;
pub use task::TaskRecord;
pub use thread::{
    SpecRecord, SpecRevisionRecord, ThreadEntryRecord, ThreadRecord, agent_spec, agent_spec_to_v1, ended_request_to_v1,
    model_spec, model_spec_to_v1, thread_to_v1, unresolved,
};
pub use timer::{
    EntityTimer, entity_timer, entity_timer_key, entity_timers, mail_timer_key, mail_timers, parse_entity_timer,
    parse_mail_timer,
};
pub use trace::TracePlace;
pub use usage::UsageRecord;
pub use workspace::{WorkspaceEntryRecord, WorkspaceRecord};

use self::list::range_of_name;
use crate::{
    domain::routing::{RunId, TurnId},
    ids::{AgentId, ConversationId, FairnessKey, MessageId, PlanId, TaskId, ThreadId},
    proto::{storage, v1},
    store::{Key, Table},
    time::Timestamp,
};

/// A stored value that does not match its table.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a record of table {table} does not decode: {problem}")]
pub struct DecodeError {
    /// The name of the table.
    pub table: &'static str,
    /// The part that is wrong, for a person to read.
    pub problem: String,
}

/// A decoder of one table's values: turns absent or unknown parts into errors that name the table.
struct Reader(&'static str);

impl Reader {
    fn message<M: prost::Message + Default>(&self, value: &Bytes) -> Result<M, DecodeError> {
        M::decode(value.clone()).map_err(|error| self.error(error.to_string()))
    }

    fn error(&self, problem: impl Into<String>) -> DecodeError {
        DecodeError { table: self.0, problem: problem.into() }
    }

    fn some<T>(&self, value: Option<T>, what: &str) -> Result<T, DecodeError> {
        value.ok_or_else(|| self.error(format!("{what} is not known")))
    }

    fn agent(&self, text: &str) -> Result<AgentId, DecodeError> {
        AgentId::parse(text).map_err(|error| self.error(format!("agent id {text:?} {error}")))
    }

    fn agents(&self, texts: &[String]) -> Result<Vec<AgentId>, DecodeError> {
        texts.iter().map(|text| self.agent(text)).collect()
    }

    fn task(&self, text: &str) -> Result<TaskId, DecodeError> {
        TaskId::parse(text).map_err(|error| self.error(format!("task id {text:?} {error}")))
    }

    fn message_id(&self, bytes: &[u8]) -> Result<MessageId, DecodeError> {
        let bytes = bytes.try_into().map_err(|_| self.error("a message id has not 16 bytes"))?;
        Ok(MessageId::from_bytes(bytes))
    }

    fn optional_message_id(&self, bytes: &[u8]) -> Result<Option<MessageId>, DecodeError> {
        if bytes.is_empty() { Ok(None) } else { self.message_id(bytes).map(Some) }
    }

    fn optional_fairness_key(&self, text: &str) -> Result<Option<FairnessKey>, DecodeError> {
        if text.is_empty() {
            return Ok(None);
        }
        let key = FairnessKey::parse(text).map_err(|error| self.error(format!("fairness key {text:?} {error}")))?;
        Ok(Some(key))
    }

    fn optional_thread(&self, text: &str) -> Result<Option<ThreadId>, DecodeError> {
        if text.is_empty() {
            return Ok(None);
        }
        ThreadId::parse(text).map(Some).map_err(|error| self.error(format!("thread {text:?} {error}")))
    }

    fn optional_conversation(&self, text: &str) -> Result<Option<ConversationId>, DecodeError> {
        if text.is_empty() {
            return Ok(None);
        }
        ConversationId::parse(text).map(Some).map_err(|error| self.error(format!("conversation {text:?} {error}")))
    }

    fn digest(&self, bytes: &[u8]) -> Result<[u8; 32], DecodeError> {
        bytes.try_into().map_err(|_| self.error("a digest has not 32 bytes"))
    }
}

fn id_bytes(id: MessageId) -> Bytes {
    Bytes::copy_from_slice(id.as_bytes())
}

fn texts(ids: &[AgentId]) -> Vec<String> {
    ids.iter().map(ToString::to_string).collect()
}

fn moment(nanoseconds: i64) -> Timestamp {
    Timestamp::from_unix_nanoseconds(nanoseconds)
}

/// The key of a name in a table.
fn by_name(table: Table, name: &str) -> Key {
    Key { table, key: name.into() }
}

/// The key of a number in a table: big-endian, so that keys sort like the numbers.
pub fn by_number(table: Table, number: u64) -> Key {
    Key { table, key: (&number.to_be_bytes()).into() }
}

/// The key of a number under a name. Names have no zero byte, so no name's keys lie among another's.
fn by_name_and_number(table: Table, name: &str, number: u64) -> Key {
    Key { table, key: [name.as_bytes(), &[0], &number.to_be_bytes()].into() }
}

/// The number in a key of [`by_number`] or [`by_name_and_number`].
fn number_of(reader: &Reader, key: &[u8]) -> Result<u64, DecodeError> {
    let number = key.last_chunk().ok_or_else(|| reader.error("a key is too short"))?;
    Ok(u64::from_be_bytes(*number))
}

/// Encodes an entry of a chain: the hash after it, 32 bytes, followed by the entry.
fn chain(hash: &[u8; 32], entry: &[u8]) -> Bytes {
    [hash, entry].concat().into()
}

fn unchain(reader: &Reader, value: &Bytes) -> Result<([u8; 32], Bytes), DecodeError> {
    let hash = value.first_chunk().ok_or_else(|| reader.error("a value is too short"))?;
    Ok((*hash, value.slice(hash.len()..)))
}

/// Checks that a value decodes as its table requires.
pub fn check(table: Table, key: &[u8], value: &Bytes) -> Result<(), DecodeError> {
    let reader = Reader(table.name());
    match table {
        Table::Meta if *key == *AuditHead::key().key => AuditHead::decode(value).map(drop),
        Table::Meta => reader.message::<storage::SequenceRecord>(value).map(drop),
        Table::Agents => AgentRecord::decode(value).map(drop),
        Table::AgentUsage => UsageRecord::decode(value).map(drop),
        Table::AgentStatistics => StatisticsRecord::decode(value).map(drop),
        Table::Tasks => TaskRecord::decode(value)?.log_tail.iter().try_for_each(check_item),
        Table::Handoffs => HandoffRecord::decode(value).map(drop),
        // The receipt of a logged message is rebuilt from its custody entry, so the entry is checked too.
        Table::Messages => MessageRecord::decode(value)?.receipt().map(drop),
        Table::Envelopes => reader.message::<v1::Envelope>(value).map(drop),
        Table::Mailbox => decode_letter(key, value).map(drop),
        Table::DeadLetters => DeadLetterRecord::decode(key, value).map(drop),
        Table::Custody => LogPage::decode(key, value)?.1.iter().try_for_each(check_item),
        Table::Audit => reader.message::<v1::AuditEntry>(&unchain(&reader, value)?.1).map(drop),
        Table::Invitations => InvitationRecord::decode(value).map(drop),
        Table::SharedEnvelopes => MessageRecord::decode_shared(value).map(drop),
        Table::RemovedTasks => RemovedTaskRecord::decode(value).map(drop),
        Table::Expirations => match Expiration::parse(key)?.0 {
            Expiration::Messages => decode_message_ids(value).map(drop),
            Expiration::Task
            | Expiration::DeadLetter
            | Expiration::Invitation
            | Expiration::Rest
            | Expiration::Entries
            | Expiration::Contexts
            | Expiration::Run
            | Expiration::Thread
            | Expiration::Negotiation
            | Expiration::Plan
            | Expiration::Blob
            | Expiration::Upload => Ok(()),
        },
        Table::Negotiations => NegotiationRecord::decode(value).map(drop),
        Table::NegotiationBids => negotiation::decode_bids(value).map(drop),
        Table::Outbox => OutboxRow::decode(value).map(drop),
        Table::Workspaces => WorkspaceRecord::decode(value).map(drop),
        Table::WorkspaceEntries => WorkspaceEntryRecord::decode(key, value).map(drop),
        Table::Graphs => GraphRecord::decode(value).map(drop),
        Table::GraphRevisions => graph_revision::check(key, value),
        Table::Runs => RunRecord::decode(value).map(drop),
        // The run and the turn are in the key, and any do for a check of the value.
        Table::RunLog => RunEntryRecord::decode(RunId(MessageId::from_bytes([0; 16])), value).map(drop),
        Table::RunTurns => {
            let id = MessageId::from_bytes([0; 16]);
            RunTurnRecord::decode(RunId(id), TurnId(id), value).map(drop)
        }
        Table::Blobs => blob::check(key, value),
        Table::Registrations => registration::check(key, value),
        Table::Schemas => SchemaRecord::decode(value).map(drop),
        Table::ContextVersions => ContextVersionRecord::decode(key, value).map(drop),
        Table::ContextSections => ContextSectionRecord::decode(value).map(drop),
        Table::Plans => PlanRecord::decode(value).map(drop),
        Table::PlanSpecs => PlanSpecRecord::decode(value).map(drop),
        // The plan is in the key, and any does for a check of the value.
        Table::PlanLog => PlanEntryRecord::decode(&PlanId::parse("p").expect("a name"), value).map(drop),
        Table::Listings => list::check_listing(key, value),
        Table::Specs | Table::SpecRevisions => thread::check_spec(table.name(), key, value),
        Table::Threads => ThreadRecord::decode(value).map(drop),
        Table::ThreadLog => ThreadEntryRecord::check(key, value),
        // The first byte of a key names its kind, so at most one of the two can parse it.
        Table::Timers => parse_entity_timer(key, value).map(drop).or_else(|_| parse_mail_timer(key).map(drop)),
    }
}

/// Checks that an item of a custody log decodes.
fn check_item(item: &LogItem) -> Result<(), DecodeError> {
    match item {
        LogItem::Message(_) => Ok(()),
        LogItem::Entry(entry) => entry.decode().map(drop),
    }
}

//! The stored form of every entity: its key, its index entries, and the outbox of inputs from entity to entity.
//!
//! A machine has an arm in each match here, and a separate file beside this one for its record.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

#[cfg(test)]
use super::probe::ProbeRecord;
use super::{
    DecodeError, Expiration, GraphRecord, HandoffPlace, HandoffRecord, MessageRecord, Reader, RequestPlace,
    RunEntryRecord, RunRecord, RunTurnRecord, TaskRecord, WorkspaceRecord, by_number, number_of,
};
#[cfg(test)]
use crate::domain::probe::ProbeId;
use crate::{
    domain::{
        Entity, EntityId, Told,
        handoff::Task,
        routing::{RunId, TurnId, Word},
        workspace::WorkspaceId,
    },
    ids::{AgentId, GraphId, MessageId, TaskId},
    store::{Key, Table},
    time::Timestamp,
};

/// An entity as stored: its state, and the broker's notes.
#[derive(Debug, Clone, PartialEq)]
pub enum EntityRecord {
    /// A task, with the latest of its handoffs.
    Task(TaskRecord),
    /// One attempt to move a task.
    Handoff(HandoffRecord),
    /// A workspace, with the head of its chain.
    Workspace(WorkspaceRecord),
    /// A graph that a model routes through.
    Graph(GraphRecord),
    /// A run through a graph.
    Run(RunRecord),
    /// An entry of a run's log.
    RunEntry(RunEntryRecord),
    /// The place of a turn in the log of its run.
    RunTurn(RunTurnRecord),
    /// The test machine that shows that the engine is general.
    #[cfg(test)]
    Probe(ProbeRecord),
}

/// The pace of a log's time: it never goes back, and advances evenly while an entity of the log has a deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// The time of the last change.
    pub logged_at: Timestamp,
    /// The part of the set-backs of the broker's clock that the log's time has followed.
    pub set_back: Duration,
}

impl Pace {
    /// The log's time at this time of the broker's clock, after set-backs with the sum `set_back`.
    pub fn log_time(self, has_deadline: bool, now: Timestamp, set_back: Duration) -> Timestamp {
        // Without a deadline the log follows the clock at once. With one it adds the set-backs, which would delay the
        // deadline otherwise.
        let not_followed = match has_deadline {
            true => set_back.saturating_sub(self.set_back),
            false => Duration::ZERO,
        };
        now.plus(not_followed).max(self.logged_at)
    }
}

/// The broker's notes for a record that a step writes.
#[derive(Debug, Clone, Copy)]
pub struct Notes {
    /// The sequence of a new entity, its place in lists.
    pub sequence: u64,
    /// The message that opened a new entity.
    pub opening: Option<RequestPlace>,
    /// The pace of the step's log.
    pub pace: Pace,
}

impl EntityRecord {
    /// The record after a step, from the new state and the former record.
    pub fn after(entity: Entity, before: Option<&Self>, notes: Notes) -> Self {
        match entity {
            Entity::Task(task) => Self::Task(TaskRecord::after(task, before.and_then(Self::as_task), notes)),
            Entity::Handoff(handoff) => {
                let before = before.and_then(Self::as_handoff);
                // Later messages of the handoff are in `opening` too, so the request of the first step goes first.
                let request = before.map(|record| record.request).or(notes.opening);
                Self::Handoff(HandoffRecord {
                    handoff,
                    sequence: before.map_or(notes.sequence, |record| record.sequence),
                    request: request.expect("a handoff begins with a request"),
                })
            }
            Entity::Workspace(workspace) => {
                // The effect that stores the entry advances the chain.
                let chain_hash = before.and_then(Self::as_workspace).map_or([0; 32], |record| record.chain_hash);
                Self::Workspace(WorkspaceRecord { workspace, chain_hash, pace: notes.pace })
            }
            Entity::Graph(graph) => {
                let sequence = match before {
                    Some(Self::Graph(before)) => before.sequence,
                    Some(_) | None => notes.sequence,
                };
                Self::Graph(GraphRecord { graph, sequence })
            }
            Entity::Run(run) => {
                let sequence = before.and_then(Self::as_run).map_or(notes.sequence, |before| before.sequence);
                Self::Run(RunRecord { run, sequence, pace: notes.pace })
            }
            Entity::RunEntry(entry) => Self::RunEntry(RunEntryRecord(entry)),
            Entity::RunTurn(turn) => Self::RunTurn(RunTurnRecord(turn)),
            #[cfg(test)]
            Entity::Probe(probe) => Self::Probe(ProbeRecord { probe, pace: notes.pace }),
        }
    }

    /// The record of a task, if the entity is one.
    pub fn as_task(&self) -> Option<&TaskRecord> {
        match self {
            Self::Task(record) => Some(record),
            _ => None,
        }
    }

    /// The record of a handoff, if the entity is one.
    pub fn as_handoff(&self) -> Option<&HandoffRecord> {
        match self {
            Self::Handoff(record) => Some(record),
            _ => None,
        }
    }

    /// The record of a workspace, if the entity is one.
    pub fn as_workspace(&self) -> Option<&WorkspaceRecord> {
        match self {
            Self::Workspace(record) => Some(record),
            _ => None,
        }
    }

    /// The record of a run, if the entity is one.
    pub fn as_run(&self) -> Option<&RunRecord> {
        match self {
            Self::Run(record) => Some(record),
            _ => None,
        }
    }

    /// The record of an entity that exists with another one, before its first step. `None`: an entity of this kind
    /// begins with its first step.
    pub fn before_first_step(id: &EntityId) -> Option<Self> {
        match id {
            EntityId::Task(_)
            | EntityId::Handoff(_)
            | EntityId::Graph(_)
            | EntityId::Run(_)
            | EntityId::RunEntry(..)
            | EntityId::RunTurn(..) => None,
            EntityId::Workspace(id) => Some(Self::Workspace(WorkspaceRecord::empty(id.clone()))),
            #[cfg(test)]
            EntityId::Probe(_) => None,
        }
    }

    /// The state of the entity.
    pub fn entity(&self) -> Entity {
        match self {
            Self::Task(record) => Entity::Task(record.task.clone()),
            Self::Handoff(record) => Entity::Handoff(record.handoff.clone()),
            Self::Workspace(record) => Entity::Workspace(record.workspace.clone()),
            Self::Graph(record) => Entity::Graph(record.graph.clone()),
            Self::Run(record) => Entity::Run(record.run.clone()),
            Self::RunEntry(record) => Entity::RunEntry(record.0.clone()),
            Self::RunTurn(record) => Entity::RunTurn(record.0.clone()),
            #[cfg(test)]
            Self::Probe(record) => Entity::Probe(record.probe.clone()),
        }
    }

    /// The key of an entity's record.
    pub fn key(id: &EntityId) -> Key {
        match id {
            EntityId::Task(id) => TaskRecord::key(id),
            EntityId::Handoff(id) => HandoffRecord::key(*id),
            EntityId::Workspace(id) => WorkspaceRecord::key(id),
            EntityId::Graph(id) => GraphRecord::key(id),
            EntityId::Run(id) => RunRecord::key(*id),
            EntityId::RunEntry(run, number) => RunEntryRecord::key(*run, *number),
            EntityId::RunTurn(run, turn) => RunTurnRecord::key(*run, *turn),
            #[cfg(test)]
            EntityId::Probe(id) => ProbeRecord::key(*id),
        }
    }

    /// The key of a record that names the host of an entity, if the entity has one. The record of a host contains the
    /// record of another entity.
    pub fn host_key(id: &EntityId) -> Option<Key> {
        match id {
            EntityId::Task(_)
            | EntityId::Workspace(_)
            | EntityId::Graph(_)
            | EntityId::Run(_)
            | EntityId::RunEntry(..)
            | EntityId::RunTurn(..) => None,
            // The request of a handoff has the id of the handoff.
            EntityId::Handoff(id) => Some(MessageRecord::key(*id)),
            #[cfg(test)]
            EntityId::Probe(_) => None,
        }
    }

    /// The host that the record under [`Self::host_key`] names.
    pub fn host_named_in(value: &Bytes) -> Result<Option<EntityId>, DecodeError> {
        Ok(MessageRecord::decode(value)?.logged().map(|logged| EntityId::Task(logged.task.clone())))
    }

    /// The host of a new entity. `None`: the entity has a record of its own.
    pub fn first_host(&self) -> Option<EntityId> {
        match self {
            Self::Task(_)
            | Self::Workspace(_)
            | Self::Graph(_)
            | Self::Run(_)
            | Self::RunEntry(_)
            | Self::RunTurn(_) => None,
            // No message has the id of a redriven handoff.
            Self::Handoff(HandoffRecord { handoff, .. }) => {
                handoff.redrive_of.is_none().then(|| EntityId::Task(handoff.task.clone()))
            }
            #[cfg(test)]
            Self::Probe(_) => None,
        }
    }

    /// The record of this entity in its host.
    pub fn hosted(&self, id: &EntityId) -> Option<Self> {
        match (self, id) {
            (Self::Task(task), EntityId::Handoff(id)) => {
                let hosted = task.handoff.as_ref().filter(|hosted| hosted.handoff.id == *id);
                hosted.cloned().map(Self::Handoff)
            }
            _ => None,
        }
    }

    /// The record with another entity in it. Returns the one that it replaces, which needs a record of its own then.
    pub fn hosting(&self, guest: &Self) -> (Self, Option<Self>) {
        match (self, guest) {
            (Self::Task(task), Self::Handoff(guest)) => {
                // A newer version of the same handoff replaces the older one, which needs no record.
                let former = task.handoff.clone().filter(|former| former.handoff.id != guest.handoff.id);
                let record = TaskRecord { handoff: Some(guest.clone()), ..task.clone() };
                (Self::Task(record), former.map(Self::Handoff))
            }
            _ => (self.clone(), None),
        }
    }

    /// Encodes the record.
    pub fn encode(&self) -> Bytes {
        match self {
            Self::Task(record) => record.encode(),
            Self::Handoff(record) => record.encode(),
            Self::Workspace(record) => record.encode(),
            Self::Graph(record) => record.encode(),
            Self::Run(record) => record.encode(),
            Self::RunEntry(record) => record.encode(),
            Self::RunTurn(record) => record.encode(),
            #[cfg(test)]
            Self::Probe(record) => record.encode(),
        }
    }

    /// Decodes the record of this entity.
    pub fn decode(id: &EntityId, value: &Bytes) -> Result<Self, DecodeError> {
        match id {
            EntityId::Task(_) => TaskRecord::decode(value).map(Self::Task),
            EntityId::Handoff(_) => HandoffRecord::decode(value).map(Self::Handoff),
            EntityId::Workspace(_) => WorkspaceRecord::decode(value).map(Self::Workspace),
            EntityId::Graph(_) => GraphRecord::decode(value).map(Self::Graph),
            EntityId::Run(_) => RunRecord::decode(value).map(Self::Run),
            EntityId::RunEntry(run, _) => RunEntryRecord::decode(*run, value).map(Self::RunEntry),
            EntityId::RunTurn(run, turn) => RunTurnRecord::decode(*run, *turn, value).map(Self::RunTurn),
            #[cfg(test)]
            EntityId::Probe(_) => ProbeRecord::decode(value).map(Self::Probe),
        }
    }

    /// The index entries that the entity did not have before. They are written with the entity and never change.
    pub fn new_listings(&self, before: Option<&Self>) -> Vec<(Key, Bytes)> {
        let (handoff, sequence) = match self {
            Self::Task(task) => return task.part_entry().filter(|_| before.is_none()).into_iter().collect(),
            Self::Handoff(HandoffRecord { handoff, sequence, .. }) => (handoff, sequence),
            Self::Workspace(_) => return Vec::new(),
            Self::Graph(record) if before.is_none() => return vec![record.listing()],
            Self::Run(record) => return record.new_listings(before.and_then(Self::as_run)),
            Self::Graph(_) | Self::RunEntry(_) | Self::RunTurn(_) => return Vec::new(),
            #[cfg(test)]
            Self::Probe(_) => return Vec::new(),
        };
        let before = before.and_then(Self::as_handoff).map(|record| &*record.handoff);
        // Only an offer adds an agent, and most steps make none.
        if before.is_some_and(|before| before.offers.len() == handoff.offers.len()) {
            return Vec::new();
        }
        let listed = before.map(HandoffRecord::participants).unwrap_or_default();
        let place = HandoffPlace { sequence: *sequence, handoff: handoff.id, task: handoff.task.clone() }.encode();
        let of_all = before.is_none().then(|| HandoffRecord::index_key(*sequence));
        let participants = HandoffRecord::participants(handoff);
        let of_agents = participants.difference(&listed).map(|agent| HandoffRecord::agent_index_key(agent, *sequence));
        of_all.into_iter().chain(of_agents).map(|key| (key, place.clone())).collect()
    }

    /// The message that opened the entity. `None`: the entity never delivers it again.
    pub fn opening(&self) -> Option<RequestPlace> {
        match self {
            Self::Task(_)
            | Self::Workspace(_)
            | Self::Graph(_)
            | Self::Run(_)
            | Self::RunEntry(_)
            | Self::RunTurn(_) => None,
            Self::Handoff(record) => Some(record.request),
            #[cfg(test)]
            Self::Probe(_) => None,
        }
    }

    /// The pace of the entity's own log. `None`: the log of its task applies.
    pub fn pace(&self) -> Option<Pace> {
        match self {
            Self::Task(record) => Some(record.pace()),
            Self::Handoff(_) | Self::Graph(_) | Self::RunEntry(_) | Self::RunTurn(_) => None,
            Self::Workspace(record) => Some(record.pace),
            Self::Run(record) => Some(record.pace),
            #[cfg(test)]
            Self::Probe(record) => Some(record.pace),
        }
    }

    /// The time of the entity's own log. `None`: the log of its task applies.
    pub fn log_time(&self, now: Timestamp, set_back: Duration) -> Option<Timestamp> {
        match self {
            Self::Task(record) => Some(record.log_time(now, set_back)),
            Self::Handoff(_) | Self::Graph(_) | Self::RunEntry(_) | Self::RunTurn(_) => None,
            Self::Workspace(record) => {
                Some(record.pace.log_time(record.workspace.next_expiry.is_some(), now, set_back))
            }
            Self::Run(record) => Some(record.pace.log_time(!record.run.state.is_final(), now, set_back)),
            #[cfg(test)]
            Self::Probe(record) => Some(record.pace.log_time(record.probe.deadline.is_some(), now, set_back)),
        }
    }

    /// Whether the record can no longer change. A task's record always can: the log of an ended task records late
    /// messages.
    pub fn is_settled(&self) -> bool {
        match self {
            Self::Task(_) | Self::Workspace(_) | Self::Graph(_) => false,
            Self::Handoff(record) => record.handoff.state.is_final(),
            Self::Run(record) => record.run.state.is_final(),
            Self::RunEntry(_) | Self::RunTurn(_) => true,
            #[cfg(test)]
            Self::Probe(_) => false,
        }
    }

    /// The kind and key of the entity's expiration after its end. `None`: the entity is removed with its task.
    pub fn expiration(&self) -> Option<(Expiration, &[u8])> {
        match self {
            Self::Task(TaskRecord { task, .. }) => Some((Expiration::Task, task.id.as_str().as_bytes())),
            Self::Handoff(_) | Self::Workspace(_) | Self::Graph(_) | Self::RunEntry(_) | Self::RunTurn(_) => None,
            Self::Run(RunRecord { run, .. }) => Some((Expiration::Run, run.id.0.as_bytes())),
            #[cfg(test)]
            Self::Probe(_) => None,
        }
    }
}

impl TaskRecord {
    fn after(task: Arc<Task>, before: Option<&Self>, notes: Notes) -> Self {
        Self {
            task,
            custody: before.map(|record| record.custody).unwrap_or_default(),
            log_tail: before.map(|record| record.log_tail.clone()).unwrap_or_default(),
            // The step's own version of the handoff goes in when the transaction is staged.
            handoff: before.and_then(|record| record.handoff.clone()),
            last_context: before.and_then(|record| record.last_context),
            refusals_recorded: before.map_or(0, |record| record.refusals_recorded),
            mail_recorded: before.map_or(0, |record| record.mail_recorded),
            mail_unrecorded: before.map_or(0, |record| record.mail_unrecorded),
            asked: before.map(|record| record.asked.clone()).unwrap_or_default(),
            sequence: before.map_or(notes.sequence, |record| record.sequence),
            logged_at: notes.pace.logged_at,
            set_back: notes.pace.set_back,
        }
    }
}

const TASK: u8 = 1;
const HANDOFF: u8 = 2;
const WORKSPACE: u8 = 3;
const GRAPH: u8 = 60;
const RUN: u8 = 61;
const RUN_ENTRY: u8 = 62;
const RUN_TURN: u8 = 63;
#[cfg(test)]
const PROBE: u8 = 255;

/// Encodes an entity's id for a key or a value: one byte for the machine, then the id.
pub fn encode_entity_id(id: &EntityId) -> Vec<u8> {
    match id {
        EntityId::Task(id) => [&[TASK], id.as_str().as_bytes()].concat(),
        EntityId::Handoff(id) => [&[HANDOFF], &id.as_bytes()[..]].concat(),
        EntityId::Workspace(id) => [&[WORKSPACE], id.as_str().as_bytes()].concat(),
        EntityId::Graph(id) => [&[GRAPH], id.as_str().as_bytes()].concat(),
        EntityId::Run(id) => [&[RUN], &id.0.as_bytes()[..]].concat(),
        EntityId::RunEntry(run, number) => [&[RUN_ENTRY], &run.0.as_bytes()[..], &number.to_be_bytes()].concat(),
        EntityId::RunTurn(run, turn) => [&[RUN_TURN], &run.0.as_bytes()[..], &turn.0.as_bytes()[..]].concat(),
        #[cfg(test)]
        EntityId::Probe(id) => [&[PROBE], &id.0.to_be_bytes()[..]].concat(),
    }
}

/// Decodes an entity's id.
pub fn decode_entity_id(table: Table, bytes: &[u8]) -> Result<EntityId, DecodeError> {
    let reader = Reader(table.name());
    match bytes.split_first() {
        Some((&TASK, id)) => {
            let id = std::str::from_utf8(id).map_err(|error| reader.error(error.to_string()))?;
            Ok(EntityId::Task(TaskId::parse(id).map_err(|error| reader.error(error.to_string()))?))
        }
        Some((&HANDOFF, id)) => Ok(EntityId::Handoff(MessageId::from_bytes(
            id.try_into().map_err(|_| reader.error("a message id has not 16 bytes"))?,
        ))),
        Some((&WORKSPACE, id)) => {
            let id = std::str::from_utf8(id).map_err(|error| reader.error(error.to_string()))?;
            Ok(EntityId::Workspace(WorkspaceId::parse(id).map_err(|error| reader.error(error.to_string()))?))
        }
        Some((&GRAPH, id)) => {
            let id = std::str::from_utf8(id).map_err(|error| reader.error(error.to_string()))?;
            Ok(EntityId::Graph(GraphId::parse(id).map_err(|error| reader.error(error.to_string()))?))
        }
        Some((&RUN, id)) => Ok(EntityId::Run(RunId(reader.message_id(id)?))),
        Some((&RUN_ENTRY, id)) => {
            let (run, number) = id.split_at_checked(16).ok_or_else(|| reader.error("an id is too short"))?;
            let number = number.try_into().map_err(|_| reader.error("a number has not 8 bytes"))?;
            Ok(EntityId::RunEntry(RunId(reader.message_id(run)?), u64::from_be_bytes(number)))
        }
        Some((&RUN_TURN, id)) => {
            let (run, turn) = id.split_at_checked(16).ok_or_else(|| reader.error("an id is too short"))?;
            Ok(EntityId::RunTurn(RunId(reader.message_id(run)?), TurnId(reader.message_id(turn)?)))
        }
        #[cfg(test)]
        Some((&PROBE, id)) => {
            let id = id.try_into().map_err(|_| reader.error("a probe's id has not 8 bytes"))?;
            Ok(EntityId::Probe(ProbeId(u64::from_be_bytes(id))))
        }
        Some(_) | None => Err(reader.error("an entity is of no known kind")),
    }
}

/// A row of table outbox: an input from one entity to another in a later transaction. The commit of the step that the
/// input causes also removes the row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxRecord {
    /// The entity that gets the input.
    pub to: EntityId,
    /// The input, of the receiving entity's kind.
    pub told: Told,
}

impl OutboxRecord {
    /// The key of a row; keys sort rows in the order of their writing.
    pub fn key(sequence: u64) -> Key {
        by_number(Table::Outbox, sequence)
    }

    /// The sequence in a row's key.
    pub fn sequence(key: &[u8]) -> Result<u64, DecodeError> {
        number_of(&Reader(Table::Outbox.name()), key)
    }

    /// Encodes the row: the length of the entity's id in one byte, the id, and the input.
    pub fn encode(&self) -> Bytes {
        let to = encode_entity_id(&self.to);
        let length = u8::try_from(to.len()).expect("an id has at most 136 bytes");
        [&[length][..], &to, &encode_told(&self.told)].concat().into()
    }

    /// Decodes the row.
    pub fn decode(value: &Bytes) -> Result<Self, DecodeError> {
        let reader = Reader(Table::Outbox.name());
        let (length, rest) = value.split_first().ok_or_else(|| reader.error("a value is empty"))?;
        let (to, told) =
            rest.split_at_checked(usize::from(*length)).ok_or_else(|| reader.error("a value is too short"))?;
        let to = decode_entity_id(Table::Outbox, to)?;
        let told = decode_told(&reader, &to, told)?;
        Ok(Self { to, told })
    }
}

fn encode_told(told: &Told) -> Vec<u8> {
    match told {
        Told::Run(word) => encode_word(word),
        #[cfg(test)]
        Told::Probe(word) => super::probe::encode_word(word),
    }
}

/// Encodes an input of a run: its kind in one byte, the choice, the handoff; then the new owner, or the task and the
/// receiver with a zero byte between them. No id has a zero byte.
fn encode_word(word: &Word) -> Vec<u8> {
    let (kind, choice, handoff, rest) = match word {
        Word::HandoffBegan { choice, handoff, task, receiver } => {
            (BEGAN, choice, handoff, [task.as_str(), receiver].join("\0"))
        }
        Word::HandoffEnded { choice, handoff, owner } => {
            (ENDED, choice, handoff, owner.as_ref().map(ToString::to_string).unwrap_or_default())
        }
    };
    [&[kind], &choice.0.as_bytes()[..], &handoff.as_bytes()[..], rest.as_bytes()].concat()
}

const BEGAN: u8 = 1;
const ENDED: u8 = 2;

fn decode_word(reader: &Reader, word: &[u8]) -> Result<Word, DecodeError> {
    let short = || reader.error("an input is too short");
    let (kind, rest) = word.split_first().ok_or_else(short)?;
    let (choice, rest) = rest.split_at_checked(16).ok_or_else(short)?;
    let (handoff, rest) = rest.split_at_checked(16).ok_or_else(short)?;
    let (choice, handoff) = (TurnId(reader.message_id(choice)?), reader.message_id(handoff)?);
    let rest = std::str::from_utf8(rest).map_err(|error| reader.error(error.to_string()))?;
    match *kind {
        BEGAN => {
            let (task, receiver) = rest.split_once('\0').ok_or_else(short)?;
            Ok(Word::HandoffBegan { choice, handoff, task: reader.task(task)?, receiver: receiver.to_owned() })
        }
        ENDED => {
            let owner: Option<AgentId> = if rest.is_empty() { None } else { Some(reader.agent(rest)?) };
            Ok(Word::HandoffEnded { choice, handoff, owner })
        }
        _ => Err(reader.error("an input is of no known kind")),
    }
}

fn decode_told(reader: &Reader, to: &EntityId, told: &[u8]) -> Result<Told, DecodeError> {
    match to {
        EntityId::Run(_) => decode_word(reader, told).map(Told::Run),
        EntityId::Task(_)
        | EntityId::Handoff(_)
        | EntityId::Workspace(_)
        | EntityId::Graph(_)
        | EntityId::RunEntry(..)
        | EntityId::RunTurn(..) => Err(reader.error(format!("{to} is told nothing, and here {} bytes", told.len()))),
        #[cfg(test)]
        EntityId::Probe(_) => super::probe::decode_word(told).map(Told::Probe).ok_or_else(|| reader.error("no word")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_inputs_of_a_run_come_back_from_the_outbox() {
        let id = |byte| MessageId::from_bytes([byte; 16]);
        let (choice, handoff) = (TurnId(id(2)), id(3));
        let words = [
            Word::HandoffBegan {
                choice,
                handoff,
                task: TaskId::parse("t").unwrap(),
                receiver: "type:reviewer".to_owned(),
            },
            Word::HandoffEnded { choice, handoff, owner: Some(AgentId::parse("bob").unwrap()) },
            Word::HandoffEnded { choice, handoff, owner: None },
        ];
        for word in words {
            let record = OutboxRecord { to: EntityId::Run(RunId(id(1))), told: Told::Run(word) };
            assert_eq!(OutboxRecord::decode(&record.encode()), Ok(record));
        }
    }

    #[test]
    fn every_entity_id_comes_back() {
        let id = |byte| MessageId::from_bytes([byte; 16]);
        for entity in [
            EntityId::Task(TaskId::parse("t").unwrap()),
            EntityId::Handoff(id(1)),
            EntityId::Graph(GraphId::parse("g").unwrap()),
            EntityId::Run(RunId(id(1))),
            EntityId::RunEntry(RunId(id(1)), 7),
            EntityId::RunTurn(RunId(id(1)), TurnId(id(2))),
        ] {
            assert_eq!(decode_entity_id(Table::Timers, &encode_entity_id(&entity)), Ok(entity));
        }
    }
}

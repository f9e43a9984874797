//! The bytes of an entity's id, and the outbox: inputs from entity to entity, and letters that a step has left.
//!
//! A machine has an arm in each match here.

use bytes::Bytes;

use super::{
    DecodeError, PlanRecord, Reader, by_number, encode_letter, letter::letter_at, negotiation, number_of, thread,
};
#[cfg(debug_assertions)]
use crate::domain::probe::ProbeId;
use crate::{
    codes::ErrorCode,
    domain::{
        EntityId, Signal,
        handoff::{TaskSignal, TaskStatus},
        mailbox::Letter,
        routing::{RunId, RunSignal, TurnId},
        workspace::WorkspaceId,
    },
    ids::{AgentId, GraphId, SpecId, TaskId, ThreadId},
    store::{Key, Table},
};

const TASK: u8 = 1;
const HANDOFF: u8 = 2;
const WORKSPACE: u8 = 3;
const GRAPH: u8 = 60;
const RUN: u8 = 61;
const RUN_ENTRY: u8 = 62;
const RUN_TURN: u8 = 63;
const SPEC: u8 = 64;
const SPEC_REVISION: u8 = 65;
const THREAD: u8 = 66;
const THREAD_ENTRY: u8 = 67;
const NEGOTIATION: u8 = 16;
const PLAN: u8 = 70;
const PLAN_SPEC: u8 = 71;
const PLAN_ENTRY: u8 = 72;
#[cfg(debug_assertions)]
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
        EntityId::Spec(kind, id) => [&[SPEC, thread::kind_byte(*kind)], id.as_str().as_bytes()].concat(),
        EntityId::SpecRevision(kind, id, revision) => {
            let kind = thread::kind_byte(*kind);
            [&[SPEC_REVISION, kind], &revision.to_be_bytes()[..], id.as_str().as_bytes()].concat()
        }
        EntityId::Thread(id) => [&[THREAD], id.as_str().as_bytes()].concat(),
        EntityId::ThreadEntry(thread, number) => {
            [&[THREAD_ENTRY], &number.to_be_bytes()[..], thread.as_str().as_bytes()].concat()
        }
        EntityId::Negotiation(id) => [&[NEGOTIATION], &id.as_bytes()[..]].concat(),
        EntityId::Plan(id) => [&[PLAN], id.as_str().as_bytes()].concat(),
        EntityId::PlanSpec(id) => [&[PLAN_SPEC], id.as_str().as_bytes()].concat(),
        EntityId::PlanEntry(plan, number) => {
            [&[PLAN_ENTRY], &number.to_be_bytes()[..], plan.as_str().as_bytes()].concat()
        }
        #[cfg(debug_assertions)]
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
        Some((&SPEC, id)) => {
            let (kind, id) = id.split_first().ok_or_else(|| reader.error("an id is too short"))?;
            let id: SpecId = thread::spec_id(&reader, utf8(&reader, id)?)?;
            Ok(EntityId::Spec(thread::kind_of(&reader, *kind)?, id))
        }
        Some((&SPEC_REVISION, id)) => {
            let (kind, rest) = id.split_first().ok_or_else(|| reader.error("an id is too short"))?;
            let (number, id) = rest.split_first_chunk().ok_or_else(|| reader.error("an id is too short"))?;
            let id = thread::spec_id(&reader, utf8(&reader, id)?)?;
            Ok(EntityId::SpecRevision(thread::kind_of(&reader, *kind)?, id, u64::from_be_bytes(*number)))
        }
        Some((&THREAD, id)) => Ok(EntityId::Thread(thread::thread_id(&reader, utf8(&reader, id)?)?)),
        Some((&THREAD_ENTRY, id)) => {
            let (number, id) = id.split_first_chunk().ok_or_else(|| reader.error("an id is too short"))?;
            let id: ThreadId = thread::thread_id(&reader, utf8(&reader, id)?)?;
            Ok(EntityId::ThreadEntry(id, u64::from_be_bytes(*number)))
        }
        Some((&HANDOFF, id)) => reader.message_id(id).map(EntityId::Handoff),
        Some((&NEGOTIATION, id)) => reader.message_id(id).map(EntityId::Negotiation),
        Some((&PLAN, id)) => PlanRecord::listed(id).map(EntityId::Plan),
        Some((&PLAN_SPEC, id)) => PlanRecord::listed(id).map(EntityId::PlanSpec),
        Some((&PLAN_ENTRY, id)) => {
            let (number, plan) = id.split_first_chunk().ok_or_else(|| reader.error("an id is too short"))?;
            Ok(EntityId::PlanEntry(PlanRecord::listed(plan)?, u64::from_be_bytes(*number)))
        }
        #[cfg(debug_assertions)]
        Some((&PROBE, id)) => {
            let id = id.try_into().map_err(|_| reader.error("a probe's id has not 8 bytes"))?;
            Ok(EntityId::Probe(ProbeId(u64::from_be_bytes(id))))
        }
        Some(_) | None => Err(reader.error("an entity is of no known kind")),
    }
}

fn utf8<'a>(reader: &Reader, bytes: &'a [u8]) -> Result<&'a str, DecodeError> {
    std::str::from_utf8(bytes).map_err(|error| reader.error(error.to_string()))
}

/// A row of table outbox: what a step has left for a later transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutboxRow {
    /// An input of an entity.
    Signal(OutboxRecord),
    /// Letters with one message.
    Letters(LettersLeft),
}

impl OutboxRow {
    /// Decodes the row.
    pub fn decode(value: &Bytes) -> Result<Self, DecodeError> {
        match value.first() {
            Some(&LETTERS) => LettersLeft::decode(value).map(Self::Letters),
            Some(_) | None => OutboxRecord::decode(value).map(Self::Signal),
        }
    }
}

/// The first byte of a row with letters. No entity's id is empty, so no row with an input begins with it.
const LETTERS: u8 = 0;

/// Letters of a message to many agents that the step of the message has not stored. The commit that stores them also removes
/// the row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LettersLeft {
    /// The letter, which is the same in each mailbox.
    pub letter: Letter,
    /// The agents that get it, in order.
    pub agents: Vec<AgentId>,
}

impl LettersLeft {
    /// Encodes the row: a zero byte, the letter's place in 8 bytes, its length in 4, the letter, and the ids of the agents
    /// with a zero byte between them.
    pub fn encode(&self) -> Bytes {
        let letter = encode_letter(&self.letter);
        let length = u32::try_from(letter.len()).expect("a letter is smaller than a frame");
        let agents = self.agents.iter().map(AgentId::as_str).collect::<Vec<_>>().join("\0");
        let place = self.letter.sequence.to_be_bytes();
        [&[LETTERS], &place[..], &length.to_be_bytes(), &letter, agents.as_bytes()].concat().into()
    }

    fn decode(value: &Bytes) -> Result<Self, DecodeError> {
        let reader = Reader(Table::Outbox.name());
        let short = || reader.error("a value is too short");
        let (place, rest) = value.get(1..).and_then(|rest| rest.split_first_chunk()).ok_or_else(short)?;
        let (length, rest) = rest.split_first_chunk().ok_or_else(short)?;
        let (letter, agents) = rest.split_at_checked(u32::from_be_bytes(*length) as usize).ok_or_else(short)?;
        let letter = letter_at(&reader, u64::from_be_bytes(*place), &Bytes::copy_from_slice(letter))?;
        let agents = utf8(&reader, agents)?.split('\0').map(|agent| reader.agent(agent)).collect::<Result<_, _>>()?;
        Ok(Self { letter, agents })
    }
}

/// A row of table outbox: an input from one entity to another in a later transaction. The commit of the step that the
/// input causes also removes the row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxRecord {
    /// The entity that gets the input.
    pub to: EntityId,
    /// The input, of the receiving entity's kind.
    pub signal: Signal,
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
        [&[length][..], &to, &encode_outer_signal(&self.signal)].concat().into()
    }

    /// Decodes the row.
    pub fn decode(value: &Bytes) -> Result<Self, DecodeError> {
        let reader = Reader(Table::Outbox.name());
        let (length, rest) = value.split_first().ok_or_else(|| reader.error("a value is empty"))?;
        let (to, signal) =
            rest.split_at_checked(usize::from(*length)).ok_or_else(|| reader.error("a value is too short"))?;
        let to = decode_entity_id(Table::Outbox, to)?;
        let signal = decode_outer_signal(&reader, &to, signal)?;
        Ok(Self { to, signal })
    }
}

fn encode_outer_signal(signal: &Signal) -> Vec<u8> {
    match signal {
        Signal::Run(signal) => encode_signal(signal),
        Signal::Handoff(award) => negotiation::encode_award(award),
        Signal::Task(signal) => encode_task_signal(signal),
        Signal::Negotiation(signal) => negotiation::encode_signal(signal),
        Signal::Plan(signal) => super::plan::encode_signal(signal),
        #[cfg(debug_assertions)]
        Signal::Probe(signal) => super::probe::encode_signal(signal),
    }
}

/// Encodes an input of a run: its kind in one byte, then its fields. No id has a zero byte.
fn encode_signal(signal: &RunSignal) -> Vec<u8> {
    let of_choice = |kind: u8, choice: &TurnId, id: &[u8], rest: &str| {
        [&[kind], &choice.0.as_bytes()[..], id, rest.as_bytes()].concat()
    };
    match signal {
        RunSignal::HandoffBegan { choice, handoff, task, receiver } => {
            of_choice(BEGAN, choice, handoff.as_bytes(), &[task.as_str(), receiver].join("\0"))
        }
        RunSignal::HandoffEnded { choice, handoff, owner } => {
            let owner = owner.as_ref().map(ToString::to_string).unwrap_or_default();
            of_choice(ENDED, choice, handoff.as_bytes(), &owner)
        }
        RunSignal::HandoffRefused { choice, task, code } => {
            of_choice(REFUSED, choice, &code.number().to_be_bytes(), task.as_str())
        }
        RunSignal::TaskMoved { owner } => [&[TASK_MOVED], owner.as_str().as_bytes()].concat(),
        RunSignal::TaskEnded { status } => [&[TASK_ENDED], &status.number().to_be_bytes()[..]].concat(),
    }
}

const BEGAN: u8 = 1;
const ENDED: u8 = 2;
const REFUSED: u8 = 3;
const TASK_MOVED: u8 = 4;
const TASK_ENDED: u8 = 5;

fn decode_signal(reader: &Reader, signal: &[u8]) -> Result<RunSignal, DecodeError> {
    let short = || reader.error("an input is too short");
    let text = |bytes| std::str::from_utf8(bytes).map_err(|error| reader.error(error.to_string()));
    let number = |bytes: &[u8]| Ok::<_, DecodeError>(i32::from_be_bytes(bytes.try_into().map_err(|_| short())?));
    let (kind, rest) = signal.split_first().ok_or_else(short)?;
    match *kind {
        TASK_MOVED => return Ok(RunSignal::TaskMoved { owner: reader.agent(text(rest)?)? }),
        TASK_ENDED => {
            let status = reader.some(TaskStatus::from_number(number(rest)?), "status")?;
            return Ok(RunSignal::TaskEnded { status });
        }
        _ => {}
    }
    let (choice, rest) = rest.split_at_checked(16).ok_or_else(short)?;
    let choice = TurnId(reader.message_id(choice)?);
    if *kind == REFUSED {
        let (code, task) = rest.split_at_checked(4).ok_or_else(short)?;
        let code = reader.some(ErrorCode::from_number(number(code)?), "code")?;
        return Ok(RunSignal::HandoffRefused { choice, task: reader.task(text(task)?)?, code });
    }
    let (handoff, rest) = rest.split_at_checked(16).ok_or_else(short)?;
    let handoff = reader.message_id(handoff)?;
    let rest = text(rest)?;
    match *kind {
        BEGAN => {
            let (task, receiver) = rest.split_once('\0').ok_or_else(short)?;
            Ok(RunSignal::HandoffBegan { choice, handoff, task: reader.task(task)?, receiver: receiver.to_owned() })
        }
        ENDED => {
            let owner: Option<AgentId> = if rest.is_empty() { None } else { Some(reader.agent(rest)?) };
            Ok(RunSignal::HandoffEnded { choice, handoff, owner })
        }
        _ => Err(reader.error("an input is of no known kind")),
    }
}

/// Encodes an input of a task: its kind in one byte, then the place in the list of parts or the parent.
fn encode_task_signal(signal: &TaskSignal) -> Vec<u8> {
    match signal {
        TaskSignal::CancelParts { after } => [&[CANCEL_PARTS], &after.to_be_bytes()[..]].concat(),
        TaskSignal::ParentCanceled { parent } => [&[PARENT_CANCELED], parent.as_str().as_bytes()].concat(),
    }
}

const CANCEL_PARTS: u8 = 1;
const PARENT_CANCELED: u8 = 2;

fn decode_task_signal(reader: &Reader, signal: &[u8]) -> Result<TaskSignal, DecodeError> {
    match signal.split_first() {
        Some((&CANCEL_PARTS, after)) => {
            let after = after.try_into().map_err(|_| reader.error("a place has not 8 bytes"))?;
            Ok(TaskSignal::CancelParts { after: u64::from_be_bytes(after) })
        }
        Some((&PARENT_CANCELED, parent)) => {
            Ok(TaskSignal::ParentCanceled { parent: reader.task(utf8(reader, parent)?)? })
        }
        Some(_) | None => Err(reader.error("an input is of no known kind")),
    }
}

fn decode_outer_signal(reader: &Reader, to: &EntityId, signal: &[u8]) -> Result<Signal, DecodeError> {
    match to {
        EntityId::Run(_) => decode_signal(reader, signal).map(Signal::Run),
        EntityId::Plan(_) => super::plan::decode_signal(reader, signal).map(Signal::Plan),
        EntityId::PlanSpec(_) | EntityId::PlanEntry(..) => Err(reader.error(format!("{to} is told nothing"))),
        EntityId::Task(_) => decode_task_signal(reader, signal).map(Signal::Task),
        EntityId::Workspace(_)
        | EntityId::Graph(_)
        | EntityId::RunEntry(..)
        | EntityId::RunTurn(..)
        | EntityId::Spec(..)
        | EntityId::SpecRevision(..)
        | EntityId::Thread(_)
        | EntityId::ThreadEntry(..) => {
            Err(reader.error(format!("{to} is told nothing, and here {} bytes", signal.len())))
        }
        EntityId::Handoff(_) => negotiation::decode_award(reader, signal).map(Signal::Handoff),
        EntityId::Negotiation(_) => negotiation::decode_signal(reader, signal).map(Signal::Negotiation),
        #[cfg(debug_assertions)]
        EntityId::Probe(_) => {
            super::probe::decode_signal(signal).map(Signal::Probe).ok_or_else(|| reader.error("no signal"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        domain::threads::SpecKind,
        ids::{MessageId, PlanId},
    };

    #[test]
    fn the_inputs_of_a_run_come_back_from_the_outbox() {
        let id = |byte| MessageId::from_bytes([byte; 16]);
        let (choice, handoff) = (TurnId(id(2)), id(3));
        let signals = [
            RunSignal::HandoffBegan {
                choice,
                handoff,
                task: TaskId::parse("t").unwrap(),
                receiver: "type:reviewer".to_owned(),
            },
            RunSignal::HandoffEnded { choice, handoff, owner: Some(AgentId::parse("bob").unwrap()) },
            RunSignal::HandoffEnded { choice, handoff, owner: None },
            RunSignal::HandoffRefused { choice, task: TaskId::parse("t").unwrap(), code: ErrorCode::LoopLimit },
            RunSignal::TaskMoved { owner: AgentId::parse("bob").unwrap() },
            RunSignal::TaskEnded { status: TaskStatus::Failed },
        ];
        for signal in signals {
            let record = OutboxRecord { to: EntityId::Run(RunId(id(1))), signal: Signal::Run(signal) };
            assert_eq!(OutboxRecord::decode(&record.encode()), Ok(record));
        }
    }

    #[test]
    fn letters_that_are_left_come_back_from_the_outbox() {
        let agent = |name: &str| AgentId::parse(name).unwrap();
        let at = crate::time::Timestamp::from_parts(1, 0).unwrap();
        let letter =
            Letter::new(7, MessageId::from_bytes([3; 16]), crate::domain::mailbox::Flow::of(agent("alice")), at);
        let left = LettersLeft { letter, agents: vec![agent("bob"), agent("carol")] };
        let bytes = left.encode();
        assert_eq!(OutboxRow::decode(&bytes), Ok(OutboxRow::Letters(left)));
        for length in 0..bytes.len() - "bob\0carol".len() {
            OutboxRow::decode(&bytes.slice(..length)).unwrap_err();
        }
    }

    #[test]
    fn the_inputs_of_a_task_come_back_from_the_outbox() {
        let task = |id| TaskId::parse(id).unwrap();
        for signal in [TaskSignal::CancelParts { after: 258 }, TaskSignal::ParentCanceled { parent: task("whole") }] {
            let record = OutboxRecord { to: EntityId::Task(task("part")), signal: Signal::Task(signal) };
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
            EntityId::Negotiation(id(1)),
            EntityId::RunEntry(RunId(id(1)), 7),
            EntityId::RunTurn(RunId(id(1)), TurnId(id(2))),
            EntityId::Spec(SpecKind::Agent, SpecId::parse("s").unwrap()),
            EntityId::SpecRevision(SpecKind::Model, SpecId::parse("s").unwrap(), 7),
            EntityId::Thread(ThreadId::parse("th").unwrap()),
            EntityId::ThreadEntry(ThreadId::parse("th").unwrap(), 7),
            EntityId::Plan(PlanId::parse("q3").unwrap()),
            EntityId::PlanSpec(PlanId::parse("q3").unwrap()),
            EntityId::PlanEntry(PlanId::parse("q3").unwrap(), 7),
        ] {
            assert_eq!(decode_entity_id(Table::Timers, &encode_entity_id(&entity)), Ok(entity));
        }
    }
}

//! Lists of records by number: parts of table listings, whole tables, and tables with a list for each name.

use std::ops::Bound::{Excluded, Included};

use super::{
    AbsenceRecord, ChangePlace, DecodeError, HandoffPlace, NegotiationRecord, PlanRecord, Reader, RegistrationName,
    RunRecord, TaskRecord, number_of,
};
use crate::{
    ids::{AgentId, ConversationId, GraphId, TaskId, check_name},
    store::{Key, KeyBytes, KeyRange, Table},
};

/// A kind of lists in table listings: the first byte of their keys. Behind it are the name that a list is of, which is
/// empty for the list of all, a zero byte, and a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ListKind {
    /// The absences of owners.
    Absences = b'a',
    /// All specs of agents.
    AgentSpecs = b'p',
    /// The ended handoffs and the updated tasks.
    Changes = b'c',
    /// The dead letters of each agent.
    DeadLetters = b'd',
    /// The tasks of each outer conversation.
    Conversations = b'v',
    /// All graphs.
    Graphs = b'g',
    /// Handoffs: all, and those of each agent.
    Handoffs = b'o',
    /// The handoffs of each task that are not in its record.
    HandoffsOfTask = b'h',
    /// All specs of models.
    ModelSpecs = b'm',
    /// Negotiations: all, and those of each agent.
    Negotiations = b'n',
    /// The parts of each task.
    Parts = b'e',
    /// Plans: all, and those of each agent.
    Plans = b'l',
    /// The tasks with an open question to each agent.
    Questions = b'q',
    /// All registrations.
    Registrations = b'i',
    /// Runs: all, and those of each agent.
    Runs = b'r',
    /// All schemas.
    Schemas = b's',
    /// Threads: all, and those of each agent.
    Threads = b't',
}

impl ListKind {
    const ALL: [Self; 17] = [
        Self::Absences,
        Self::AgentSpecs,
        Self::Changes,
        Self::Conversations,
        Self::DeadLetters,
        Self::Graphs,
        Self::Handoffs,
        Self::HandoffsOfTask,
        Self::ModelSpecs,
        Self::Negotiations,
        Self::Parts,
        Self::Plans,
        Self::Questions,
        Self::Registrations,
        Self::Runs,
        Self::Schemas,
        Self::Threads,
    ];

    /// The kind of the list with this key in table listings.
    pub fn of_key(key: &[u8]) -> Option<Self> {
        let first = *key.first()?;
        Self::ALL.into_iter().find(|kind| *kind as u8 == first)
    }
}

/// A list of records by number, which is the last eight bytes of their keys: a whole table, or a part of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct List {
    /// The table of the records or of their index.
    pub table: Table,
    /// The bytes before the numbers.
    pub(super) prefix: KeyBytes,
}

impl List {
    /// All records of a table whose keys are numbers.
    pub fn of_all(table: Table) -> Self {
        Self { table, prefix: KeyBytes::default() }
    }

    /// The records of one name, in a table whose keys are a name, a zero byte and a number.
    pub fn of_name(table: Table, name: &str) -> Self {
        Self { table, prefix: [name.as_bytes(), &[0]].into() }
    }

    /// The list of this kind, in table listings, that is of a name. An empty name: the list of all.
    pub(super) fn of_kind(kind: ListKind, name: &str) -> Self {
        Self { table: Table::Listings, prefix: [&[kind as u8][..], name.as_bytes(), &[0]].into() }
    }

    fn of_agent(kind: ListKind, agent: Option<&AgentId>) -> Self {
        Self::of_kind(kind, agent.map_or("", AgentId::as_str))
    }

    /// The absences of owners, by number. A value is the rest of an [`AbsenceRecord`].
    pub fn of_absences() -> Self {
        Self::of_kind(ListKind::Absences, "")
    }

    /// All agent specs, by the sequence of their first registration. A value is a spec's id.
    pub fn of_agent_specs() -> Self {
        Self::of_kind(ListKind::AgentSpecs, "")
    }

    /// The ends of all handoffs, and the latest updates of the tasks that were not the beginning of an open handoff, by the
    /// sequences of the changes. A value is a [`ChangePlace`].
    pub fn changes() -> Self {
        Self::of_kind(ListKind::Changes, "")
    }

    /// The tasks of an outer conversation, by the sequence of the task. A value is a task's id.
    pub fn of_conversation(conversation: &ConversationId) -> Self {
        Self::of_kind(ListKind::Conversations, conversation.as_str())
    }

    /// The dead letters of an agent, whose entries have empty values, or the records of all dead letters.
    pub fn of_dead_letters(agent: Option<&AgentId>) -> Self {
        match agent {
            Some(_) => Self::of_agent(ListKind::DeadLetters, agent),
            None => Self::of_all(Table::DeadLetters),
        }
    }

    /// All graphs, by the sequence of their first registration. A value is a graph's id.
    pub fn of_graphs() -> Self {
        Self::of_kind(ListKind::Graphs, "")
    }

    /// The handoffs of an agent, or all handoffs, by sequence. A value is a [`HandoffPlace`].
    pub fn of_handoffs(agent: Option<&AgentId>) -> Self {
        Self::of_agent(ListKind::Handoffs, agent)
    }

    /// The handoffs of a task that have records of their own, by sequence. A value is a [`HandoffPlace`].
    pub fn handoffs_of_task(task: &TaskId) -> Self {
        Self::of_kind(ListKind::HandoffsOfTask, task.as_str())
    }

    /// All model specs, by the sequence of their first registration. A value is a spec's id.
    pub fn of_model_specs() -> Self {
        Self::of_kind(ListKind::ModelSpecs, "")
    }

    /// The negotiations of an agent, or all negotiations, by sequence. A value is a negotiation's id.
    pub fn of_negotiations(agent: Option<&AgentId>) -> Self {
        Self::of_agent(ListKind::Negotiations, agent)
    }

    /// The parts of a task, by the sequences of the tasks that are its parts. A value is a task's id.
    pub fn of_parts(parent: &TaskId) -> Self {
        Self::of_kind(ListKind::Parts, parent.as_str())
    }

    /// The plans of an agent, or all plans, by the sequence of their submission. A value is a plan's id.
    pub fn of_plans(agent: Option<&AgentId>) -> Self {
        Self::of_agent(ListKind::Plans, agent)
    }

    /// The tasks with an open question to this agent, by the sequence of the task. A value is a task's id.
    pub fn of_questions(agent: &AgentId) -> Self {
        Self::of_agent(ListKind::Questions, Some(agent))
    }

    /// All registrations, by the sequence of their first registration. A value is the key of a record.
    pub fn of_registrations() -> Self {
        Self::of_kind(ListKind::Registrations, "")
    }

    /// The runs of an agent, or all runs, by the sequence of their start. A value is a run's id.
    pub fn of_runs(agent: Option<&AgentId>) -> Self {
        Self::of_agent(ListKind::Runs, agent)
    }

    /// All schemas, by the sequence of their registration. A value is the key of a schema's record.
    pub fn of_schemas() -> Self {
        Self::of_kind(ListKind::Schemas, "")
    }

    /// The threads of an agent, or all threads, by the sequence of their creation. A value is a thread's id.
    pub fn of_threads(agent: Option<&AgentId>) -> Self {
        Self::of_agent(ListKind::Threads, agent)
    }

    /// The key of the record with this number.
    pub fn key(&self, number: u64) -> KeyBytes {
        [&*self.prefix, &number.to_be_bytes()].into()
    }

    /// The key of the record with this number, with the table.
    pub fn place(&self, number: u64) -> Key {
        Key { table: self.table, key: self.key(number) }
    }

    /// The range of all records of the list.
    pub fn range(&self) -> KeyRange {
        self.range_before(None)
    }

    /// The range of the records after a number.
    pub fn range_after(&self, number: u64) -> KeyRange {
        (Excluded(self.key(number)), Included(self.key(u64::MAX)))
    }

    /// The range of the records before a number, or of all.
    pub fn range_before(&self, number: Option<u64>) -> KeyRange {
        let end = number.map_or(Included(self.key(u64::MAX)), |number| Excluded(self.key(number)));
        (Included(self.key(0)), end)
    }

    /// The number in a record's key.
    pub fn number(&self, key: &[u8]) -> Result<u64, DecodeError> {
        number_of(&Reader(self.table.name()), key)
    }
}

/// The range of all numbers under a name.
pub(super) fn range_of_name(name: &str) -> KeyRange {
    // In each key of the name a zero byte follows the name.
    let bound = |end: u8| [name.as_bytes(), &[end]].into();
    (Included(bound(0)), Excluded(bound(1)))
}

/// Checks that an entry of table listings decodes as its kind requires.
pub(super) fn check_listing(key: &[u8], value: &[u8]) -> Result<(), DecodeError> {
    let reader = Reader("listings");
    number_of(&reader, key)?;
    let text = || std::str::from_utf8(value).map_err(|error| reader.error(error.to_string()));
    match ListKind::of_key(key) {
        Some(ListKind::Absences) => AbsenceRecord::decode(key, value).map(drop),
        Some(ListKind::Changes) => ChangePlace::decode(value).map(drop),
        Some(ListKind::DeadLetters) => reader.some(value.is_empty().then_some(()), "the value"),
        // The sequence is in the key, and any number does for a check of the value.
        Some(ListKind::Handoffs | ListKind::HandoffsOfTask) => HandoffPlace::decode(0, value).map(drop),
        Some(ListKind::Graphs) => GraphId::parse(text()?).map(drop).map_err(|error| reader.error(error.to_string())),
        Some(ListKind::Negotiations) => NegotiationRecord::listed(value).map(drop),
        Some(ListKind::Plans) => PlanRecord::listed(value).map(drop),
        Some(ListKind::Conversations | ListKind::Parts | ListKind::Questions) => TaskRecord::listed(value).map(drop),
        Some(ListKind::Registrations) => RegistrationName::of_key(value).map(drop),
        Some(ListKind::Runs) => RunRecord::listed(value).map(drop),
        Some(ListKind::Schemas) => reader.some(value.contains(&0).then_some(()), "the schema"),
        Some(ListKind::AgentSpecs | ListKind::ModelSpecs | ListKind::Threads) => {
            check_name(text()?).map_err(|error| reader.error(error.to_string()))
        }
        None => Err(reader.error("a key is of no known kind")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_of_a_list_is_known_by_its_keys() {
        for kind in ListKind::ALL {
            assert_eq!(ListKind::of_key(&List::of_kind(kind, "alice").key(7)), Some(kind));
        }
        assert_eq!(ListKind::of_key(b"z"), None);
        assert_eq!(ListKind::of_key(b""), None);
    }
}

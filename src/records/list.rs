//! Lists of records by number: parts of table listings, whole tables, and tables with a list for each name.

use std::ops::Bound::{Excluded, Included};

use super::{
    AbsenceRecord, ChangePlace, DecodeError, HandoffPlace, NegotiationRecord, PlanRecord, Reader, RunRecord, number_of,
};
use crate::{
    ids::{AgentId, GraphId, check_name},
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
    /// Plans: all, and those of each agent.
    Plans = b'l',
    /// The tasks with an open question to each agent.
    Questions = b'q',
    /// Runs: all, and those of each agent.
    Runs = b'r',
    /// All schemas.
    Schemas = b's',
    /// Threads: all, and those of each agent.
    Threads = b't',
}

impl ListKind {
    const ALL: [Self; 14] = [
        Self::Absences,
        Self::AgentSpecs,
        Self::Changes,
        Self::DeadLetters,
        Self::Graphs,
        Self::Handoffs,
        Self::HandoffsOfTask,
        Self::ModelSpecs,
        Self::Negotiations,
        Self::Plans,
        Self::Questions,
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

    /// The list of this kind that is of an agent, or of all.
    pub(super) fn of_agent(kind: ListKind, agent: Option<&AgentId>) -> Self {
        Self::of_kind(kind, agent.map_or("", AgentId::as_str))
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
        (Included(self.key(0)), Included(self.key(u64::MAX)))
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
        Some(ListKind::Questions) => reader.task(text()?).map(drop),
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

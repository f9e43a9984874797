//! Table registrations: the owners of names in the registries, the removed versions of schemas, and what counts for each
//! owner.

use std::fmt;

use bytes::Bytes;
use prost::Message as _;

use super::{DecodeError, List, Reader, moment};
use crate::{
    domain::threads::SpecKind,
    ids::AgentId,
    proto::{storage, v1},
    store::{Key, Table},
    time::Timestamp,
};

const REMOVED_SCHEMA: u8 = b'v';
const COUNT: u8 = b'c';

/// A registry of shared names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Registry {
    /// The graphs.
    Graphs,
    /// The schemas. A name has several versions.
    Schemas,
    /// The specs of personas.
    AgentSpecs,
    /// The specs of models.
    ModelSpecs,
}

impl Registry {
    /// All registries.
    pub const ALL: [Self; 4] = [Self::Graphs, Self::Schemas, Self::AgentSpecs, Self::ModelSpecs];

    /// The registry of the specs of a kind.
    pub const fn of_specs(kind: SpecKind) -> Self {
        match kind {
            SpecKind::Agent => Self::AgentSpecs,
            SpecKind::Model => Self::ModelSpecs,
        }
    }

    /// The kind of the specs in it.
    pub const fn specs(self) -> Option<SpecKind> {
        match self {
            Self::AgentSpecs => Some(SpecKind::Agent),
            Self::ModelSpecs => Some(SpecKind::Model),
            Self::Graphs | Self::Schemas => None,
        }
    }

    /// The word for one entry of it, as policies and the audit log have it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Graphs => "graph",
            Self::Schemas => "schema",
            Self::AgentSpecs => "agent-spec",
            Self::ModelSpecs => "model-spec",
        }
    }

    /// The number of the registry in the schema.
    pub const fn to_v1(self) -> v1::Registry {
        match self {
            Self::Graphs => v1::Registry::Graphs,
            Self::Schemas => v1::Registry::Schemas,
            Self::AgentSpecs => v1::Registry::AgentSpecs,
            Self::ModelSpecs => v1::Registry::ModelSpecs,
        }
    }

    /// The registry with this number in the schema.
    pub fn from_number(number: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|registry| registry.to_v1() as i32 == number)
    }

    const fn letter(self) -> u8 {
        match self {
            Self::Graphs => b'g',
            Self::Schemas => b's',
            Self::AgentSpecs => b'a',
            Self::ModelSpecs => b'm',
        }
    }
}

/// A name in a registry. As text it is the resource of policies and the subject in the audit log: `graph:search`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RegistrationName {
    /// The registry.
    pub registry: Registry,
    /// The id of the graph, the schema or the spec.
    pub name: String,
}

impl RegistrationName {
    /// The name in a registry.
    pub fn new(registry: Registry, name: impl fmt::Display) -> Self {
        Self { registry, name: name.to_string() }
    }

    /// The key of its record.
    pub fn key(&self) -> Key {
        Key { table: Table::Registrations, key: [&[self.registry.letter()][..], self.name.as_bytes()].into() }
    }

    /// The name in the key of a record.
    pub fn of_key(key: &[u8]) -> Result<Self, DecodeError> {
        let reader = Reader("registrations");
        let (letter, name) = key.split_first().ok_or_else(|| reader.error("a key is empty"))?;
        let registry = Registry::ALL.into_iter().find(|registry| registry.letter() == *letter);
        let registry = reader.some(registry, "the registry")?;
        let name = std::str::from_utf8(name).map_err(|error| reader.error(error.to_string()))?;
        Ok(Self { registry, name: name.to_owned() })
    }
}

impl fmt::Display for RegistrationName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.registry.word(), self.name)
    }
}

/// A name with its owner, as stored. A removed name keeps its owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegistrationRecord {
    /// The name.
    pub name: RegistrationName,
    /// The owner: an agent's id, or `operator:NAME`.
    pub owner: String,
    /// The agent that the owner offers the name to.
    pub offered_to: Option<AgentId>,
    /// Whether the owner has retired the name.
    pub is_retired: bool,
    /// The entries under the name: the versions of a schema; at most 1 in other registries. 0: the name is removed.
    pub entries: u64,
    /// The entries ever registered under the name. Versions of schemas count each, a graph or a spec counts once.
    pub entries_ever: u64,
    /// The number of changes, which is the etag.
    pub changes: u64,
    /// The revision of a graph or a spec that was removed last; 0: none. The next registration continues from it.
    pub removed_revision: u64,
    /// Specs only: all revisions up to this one have left the store.
    pub deleted_revision: u64,
    /// Specs only: the threads with a revision of the spec in force.
    pub threads: u64,
    /// The time of the first registration.
    pub created_at: Timestamp,
    /// The time of the latest change.
    pub updated_at: Timestamp,
    /// The sequence of the first registration, the place in lists.
    pub sequence: u64,
}

impl RegistrationRecord {
    /// A name that its owner is about to register, without an entry.
    pub fn new(name: RegistrationName, owner: String, sequence: u64, now: Timestamp) -> Self {
        Self {
            name,
            owner,
            offered_to: None,
            is_retired: false,
            entries: 0,
            entries_ever: 0,
            changes: 0,
            removed_revision: 0,
            deleted_revision: 0,
            threads: 0,
            created_at: now,
            updated_at: now,
            sequence,
        }
    }

    /// The owner, if it is an agent.
    pub fn owning_agent(&self) -> Option<&str> {
        // No agent's id has a colon.
        (!self.owner.contains(':')).then_some(self.owner.as_str())
    }

    /// The version of the name. It changes with each act on the name, and not with its use.
    pub fn etag(&self) -> String {
        self.changes.to_string()
    }

    /// Whether removed revisions are kept for the threads that they are in force in.
    pub fn keeps_removed(&self) -> bool {
        self.deleted_revision < self.removed_revision
    }

    /// The entries that take room in the registry. A removed spec takes it until the last thread has left it.
    pub fn charged(&self) -> u64 {
        self.entries.max(u64::from(self.keeps_removed()))
    }

    /// The place of the name in the list of all, and its entry there.
    pub fn listing(&self) -> (Key, Bytes) {
        let key = self.name.key();
        (List::of_registrations().place(self.sequence), Bytes::copy_from_slice(&key.key))
    }

    /// The message for callers.
    pub fn to_v1(&self) -> v1::Registration {
        let state = match (self.entries, self.is_retired) {
            (0, _) => v1::RegistrationState::Removed,
            (_, true) => v1::RegistrationState::Retired,
            (_, false) => v1::RegistrationState::Active,
        };
        v1::Registration {
            registry: self.name.registry.to_v1().into(),
            name: self.name.name.clone(),
            owner_id: self.owner.clone(),
            offered_to_id: self.offered_to.as_ref().map(ToString::to_string).unwrap_or_default(),
            state: state.into(),
            entries: self.entries,
            etag: self.etag(),
            create_time: Some(self.created_at.into()),
            update_time: Some(self.updated_at.into()),
        }
    }

    /// Encodes the record.
    pub fn encode(&self) -> Bytes {
        storage::RegistrationRecord {
            owner_id: self.owner.clone(),
            offered_to_id: self.offered_to.as_ref().map(ToString::to_string).unwrap_or_default(),
            retired: self.is_retired,
            entries: self.entries,
            entries_ever: self.entries_ever,
            changes: self.changes,
            removed_revision: self.removed_revision,
            deleted_revision: self.deleted_revision,
            threads: self.threads,
            created_at: self.created_at.unix_nanoseconds(),
            updated_at: self.updated_at.unix_nanoseconds(),
            sequence: self.sequence,
        }
        .encode_to_vec()
        .into()
    }

    /// Decodes the record with this key.
    pub fn decode(key: &[u8], value: &Bytes) -> Result<Self, DecodeError> {
        let reader = Reader("registrations");
        let stored: storage::RegistrationRecord = reader.message(value)?;
        let offered_to = match stored.offered_to_id.as_str() {
            "" => None,
            agent => Some(reader.agent(agent)?),
        };
        Ok(Self {
            name: RegistrationName::of_key(key)?,
            owner: stored.owner_id,
            offered_to,
            is_retired: stored.retired,
            entries: stored.entries,
            entries_ever: stored.entries_ever,
            changes: stored.changes,
            removed_revision: stored.removed_revision,
            deleted_revision: stored.deleted_revision,
            threads: stored.threads,
            created_at: moment(stored.created_at),
            updated_at: moment(stored.updated_at),
            sequence: stored.sequence,
        })
    }
}

/// A removed version of a schema. Its owner may register the same text again, and no other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemovedSchema {
    /// The SHA-256 of the text.
    pub sha256: [u8; 32],
}

impl RemovedSchema {
    /// The key of the record.
    pub fn key(schema: &str, version: &str) -> Key {
        let parts = [&[REMOVED_SCHEMA], schema.as_bytes(), &[0], version.as_bytes()];
        Key { table: Table::Registrations, key: parts.concat().as_slice().into() }
    }

    /// Encodes the record.
    pub fn encode(&self) -> Bytes {
        storage::RemovedSchemaRecord { sha256: Bytes::copy_from_slice(&self.sha256) }.encode_to_vec().into()
    }

    /// Decodes the record.
    pub fn decode(value: &Bytes) -> Result<Self, DecodeError> {
        let reader = Reader("registrations");
        let stored: storage::RemovedSchemaRecord = reader.message(value)?;
        Ok(Self { sha256: reader.digest(&stored.sha256)? })
    }
}

/// What counts for an owner in a registry, or for all owners together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RegistrationCount {
    /// The entries that take room.
    pub entries: u64,
    /// The entries ever registered under names of the owner.
    pub entries_ever: u64,
}

impl RegistrationCount {
    /// The key of the record of an owner, or of all if it is empty.
    pub fn key(registry: Registry, owner: &str) -> Key {
        let parts = [&[COUNT, registry.letter()], owner.as_bytes()];
        Key { table: Table::Registrations, key: parts.concat().as_slice().into() }
    }

    /// Encodes the record.
    pub fn encode(&self) -> Bytes {
        storage::RegistrationCountRecord { entries: self.entries, entries_ever: self.entries_ever }
            .encode_to_vec()
            .into()
    }

    /// Decodes the record.
    pub fn decode(value: &Bytes) -> Result<Self, DecodeError> {
        let stored: storage::RegistrationCountRecord = Reader("registrations").message(value)?;
        Ok(Self { entries: stored.entries, entries_ever: stored.entries_ever })
    }
}

/// Checks a value of the table.
pub(super) fn check(key: &[u8], value: &Bytes) -> Result<(), DecodeError> {
    match key.first() {
        Some(&REMOVED_SCHEMA) => RemovedSchema::decode(value).map(drop),
        Some(&COUNT) => RegistrationCount::decode(value).map(drop),
        Some(_) | None => RegistrationRecord::decode(key, value).map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_record_of_the_table_comes_back() {
        for registry in Registry::ALL {
            assert_eq!(Registry::from_number(registry.to_v1() as i32), Some(registry));
            let name = RegistrationName::new(registry, "search");
            let at = Timestamp::from_parts(7, 5).unwrap();
            let record = RegistrationRecord {
                offered_to: Some(AgentId::parse("bob").unwrap()),
                is_retired: true,
                entries: 1,
                entries_ever: 2,
                changes: 3,
                removed_revision: 4,
                deleted_revision: 5,
                threads: 6,
                ..RegistrationRecord::new(name.clone(), "operator:olga".to_owned(), 9, at)
            };
            assert_eq!(RegistrationRecord::decode(&name.key().key, &record.encode()), Ok(record.clone()));
            assert_eq!(check(&name.key().key, &record.encode()), Ok(()));
            let (place, value) = record.listing();
            super::super::list::check_listing(&place.key, &value).unwrap();
            let count = RegistrationCount { entries: 2, entries_ever: 3 };
            assert_eq!(RegistrationCount::decode(&count.encode()), Ok(count));
            assert_eq!(check(&RegistrationCount::key(registry, "bob").key, &count.encode()), Ok(()));
        }
        let removed = RemovedSchema { sha256: [7; 32] };
        assert_eq!(RemovedSchema::decode(&removed.encode()), Ok(removed));
        assert_eq!(check(&RemovedSchema::key("log", "1").key, &removed.encode()), Ok(()));
        assert!(check(b"x", &removed.encode()).is_err());
    }
}

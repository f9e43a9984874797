//! Queries of the names in the registries, with their owners.

use bytes::Bytes;

use super::{Page, View};
use crate::{
    BrokerError,
    domain::threads::SpecKind,
    ids::{GraphId, SpecId},
    records::{GraphRecord, List, RegistrationName, RegistrationRecord, Registry, SpecRecord},
    store::{Key, Table},
};

/// A filter of names. All conditions that are set must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NameFilter {
    /// The registry.
    pub registry: Option<Registry>,
    /// The owner: an agent's id, or `operator:NAME`. Empty: all.
    pub owner: String,
}

impl View<'_> {
    /// A name with its owner.
    pub fn registration(&self, name: &RegistrationName) -> Result<RegistrationRecord, BrokerError> {
        self.access.may_see_directory(self.caller)?;
        self.stored_registration(name)?.ok_or_else(|| BrokerError::unknown_name(name))
    }

    /// The names with their owners, the latest first, with the removed ones.
    pub fn registrations(
        &self,
        filter: &NameFilter,
        size: usize,
        token: &str,
    ) -> Result<Page<RegistrationRecord>, BrokerError> {
        self.access.may_see_directory(self.caller)?;
        let read = |_, value: &Bytes| {
            let name = RegistrationName::of_key(value)?;
            if filter.registry.is_some_and(|registry| registry != name.registry) {
                return Ok(None);
            }
            let stored = self.store.get(&Key { table: Table::Registrations, key: (&**value).into() })?;
            let record = stored.map(|stored| RegistrationRecord::decode(value, &stored.value)).transpose()?;
            Ok(record.filter(|record| filter.owner.is_empty() || record.owner == filter.owner))
        };
        self.page(Some(&List::of_registrations()), &format!("{filter:?}"), size, token, read)
    }

    /// The latest revision of a graph or a spec. `None`: it is removed, or a schema, which has versions.
    pub fn latest_revision(&self, name: &RegistrationName) -> Result<Option<u64>, BrokerError> {
        self.access.may_see_directory(self.caller)?;
        let key = match name.registry {
            Registry::Graphs => GraphId::parse(&name.name).ok().map(|id| GraphRecord::key(&id)),
            Registry::AgentSpecs | Registry::ModelSpecs => {
                let kind = name.registry.specs().unwrap_or(SpecKind::Agent);
                SpecId::parse(&name.name).ok().map(|id| SpecRecord::key(kind, &id))
            }
            Registry::Schemas => None,
        };
        let Some(stored) = key.map(|key| self.store.get(&key)).transpose()?.flatten() else { return Ok(None) };
        Ok(Some(match name.registry.specs() {
            Some(kind) => SpecRecord::decode(kind, &stored.value)?.spec.revision,
            None => GraphRecord::decode(&stored.value)?.graph.revision,
        }))
    }

    pub(super) fn stored_registration(
        &self,
        name: &RegistrationName,
    ) -> Result<Option<RegistrationRecord>, BrokerError> {
        let key = name.key();
        let stored = self.store.get(&key)?;
        Ok(stored.map(|stored| RegistrationRecord::decode(&key.key, &stored.value)).transpose()?)
    }
}

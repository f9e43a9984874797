//! The owners of names in the registries of graphs, schemas and specs: registration, transfer, retirement, removal.
//!
//! Owns the records of names and the counts of their owners, which every change keeps in its own commit. Must not know the
//! content that is registered under a name.

use std::collections::BTreeMap;

use super::{
    Engine, LIMIT_RETRY,
    run::{Cause, Origin, RunError},
    transaction::Transaction,
};
use crate::{
    BrokerError, Refused,
    access::Caller,
    domain::{
        Entity, EntityId, Input,
        routing::{self, GRAPHS_MAX, Graph},
        threads::{self, Action, SPECS_MAX, Spec, SpecKind, Thread},
    },
    ids::{AgentId, GraphId, SpecId},
    proto::v1::AuditAction,
    records::{
        AuditAct, GraphRecord, RegistrationCount, RegistrationName, RegistrationRecord, Registry, RemovedSchema,
        SchemaRecord, SpecRecord, SpecRevisionRecord,
    },
    refused,
    store::{Key, Record},
    time::Timestamp,
};

/// The most registered versions of schemas.
const SCHEMAS_MAX: u64 = 4096;
/// The names of an agent, with the removed ones, for each entry of its share: a removed name keeps its owner. Its record is
/// small.
const EVER_PER_ENTRY: u64 = 100;

/// A revision to register.
#[derive(Debug, Clone, PartialEq)]
pub enum Revision {
    /// A graph without problems.
    Graph(Graph),
    /// A spec.
    Spec(Spec),
}

impl Revision {
    /// The name that the revision is of.
    pub fn name(&self) -> RegistrationName {
        match self {
            Self::Graph(graph) => RegistrationName::new(Registry::Graphs, &graph.id),
            Self::Spec(spec) => RegistrationName::new(Registry::of_specs(spec.kind), &spec.id),
        }
    }

    /// The revision as an input of its machine, which numbers it after those of a removed registration.
    fn input(self, known: Option<&RegistrationRecord>) -> (EntityId, Input) {
        let (removed, deleted) = known.map_or((0, 0), |known| (known.removed_revision, known.deleted_revision));
        match self {
            Self::Graph(graph) => {
                let about = EntityId::Graph(graph.id.clone());
                (about, Input::Routing(routing::Input::Register { graph, removed }))
            }
            Self::Spec(spec) => {
                let about = EntityId::Spec(spec.kind, spec.id.clone());
                (about, Input::Thread(threads::Input::PutSpec { spec, removed, deleted }))
            }
        }
    }
}

/// What a registration adds to a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Entry {
    /// Nothing: the entry is registered already.
    Same,
    /// A version of a schema that was removed.
    Again,
    /// A new entry or revision.
    New,
}

/// A change of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NameChange {
    /// Offers the name to an agent, hands it over, or takes it.
    Transfer(AgentId),
    /// Ends the changes and the new uses of the name.
    Retire,
    /// Removes the graph, the spec, or this version of the schema. Empty for graphs and specs.
    Remove(String),
}

impl Engine {
    /// Registers a graph or a spec, or a further revision of it. The same content again changes nothing.
    pub(super) fn register_revision(
        &mut self,
        revision: Revision,
        caller: &Caller,
        etag: &str,
        now: Timestamp,
    ) -> Result<RegistrationRecord, Refused> {
        if self.batch.failed {
            return Err(refused(BrokerError::StoreUnavailable));
        }
        let mut transaction = self.transaction();
        let name = revision.name();
        let known = self.registration(&mut transaction, &name).map_err(refused)?;
        let (about, input) = revision.input(known.as_ref());
        let cause = Cause { origin: Origin::Broker, event: None };
        let is_new = self.run(&mut transaction, &about, &input, cause, now).map_err(RunError::into_refusal)?;
        let entry = if is_new { Entry::New } else { Entry::Same };
        let record = self.admit_entry(&mut transaction, known, name, entry, (caller, etag), now).map_err(refused)?;
        if is_new {
            let details =
                format!("revision {}", transaction.all_written().find_map(|it| revision_of(&it.entity())).unwrap_or(0));
            self.record_name(&mut transaction, &record, AuditAction::NameRegistered, details, caller, now)
                .map_err(refused)?;
            self.stage(transaction);
        }
        Ok(record)
    }

    /// Checks that the caller may register an entry under a name, and counts it. The same entry again is permitted to each
    /// caller that registers such entries, because it changes nothing. Returns the name as the transaction leaves it.
    pub(super) fn admit_entry(
        &mut self,
        transaction: &mut Transaction,
        known: Option<RegistrationRecord>,
        name: RegistrationName,
        entry: Entry,
        (caller, etag): (&Caller, &str),
        now: Timestamp,
    ) -> Result<RegistrationRecord, BrokerError> {
        match (known, entry) {
            (Some(known), Entry::Same) => {
                self.access().may_register(caller, &name)?;
                Ok(known)
            }
            (Some(known), Entry::Again | Entry::New) => {
                self.access().may_change_name(caller, &name, known.owning_agent())?;
                check_etag(&known, etag)?;
                check_open(&known)?;
                let mut after = known.clone();
                match name.registry {
                    Registry::Schemas => {
                        after.entries += 1;
                        after.entries_ever += u64::from(entry == Entry::New);
                    }
                    Registry::Graphs | Registry::AgentSpecs | Registry::ModelSpecs => after.entries = 1,
                }
                self.put_name(transaction, Some(&known), after, now)
            }
            (None, _) => {
                self.access().may_register(caller, &name)?;
                if !etag.is_empty() {
                    return Err(BrokerError::EtagChanged);
                }
                let sequence = self.new_sequence(transaction);
                let new = RegistrationRecord::new(name, caller.as_submitter(), sequence, now);
                let new = RegistrationRecord { entries: 1, entries_ever: 1, ..new };
                let (place, value) = new.listing();
                transaction.put_new(place, value);
                self.put_name(transaction, None, new, now)
            }
        }
    }

    /// Hands a name over, retires it or removes it. A change that is made already succeeds without a write.
    pub(super) fn change_name(
        &mut self,
        name: &RegistrationName,
        change: &NameChange,
        caller: &Caller,
        etag: &str,
        now: Timestamp,
    ) -> Result<RegistrationRecord, BrokerError> {
        if self.batch.failed {
            return Err(BrokerError::StoreUnavailable);
        }
        let mut transaction = self.transaction();
        let known = self.registration(&mut transaction, name)?;
        let is_taken = known.as_ref().is_some_and(|known| takes_offer(known, change, caller));
        match is_taken {
            // The receiver of an offer acts for itself: it becomes the owner.
            true => self.access().may_register(caller, name)?,
            false => {
                self.access().may_change_name(caller, name, known.as_ref().and_then(|known| known.owning_agent()))?;
            }
        }
        let known = known.ok_or_else(|| BrokerError::unknown_name(name))?;
        check_etag(&known, etag)?;
        let mut after = known.clone();
        let (action, details) = match change {
            NameChange::Transfer(to) => {
                self.transfer(&mut after, to, caller, is_taken)?;
                let verb = if after.owner == to.as_str() { "to" } else { "offered to" };
                (AuditAction::NameTransferred, format!("{verb} {to}"))
            }
            NameChange::Retire if known.entries == 0 => return Err(BrokerError::unknown_name(name)),
            NameChange::Retire => {
                after.is_retired = true;
                (AuditAction::NameRetired, String::new())
            }
            NameChange::Remove(version) => {
                self.remove_entry(&mut transaction, &mut after, version)?;
                let details = if version.is_empty() { String::new() } else { format!("version {version}") };
                (AuditAction::NameRemoved, details)
            }
        };
        if after == known {
            return Ok(known);
        }
        let record = self.put_name(&mut transaction, Some(&known), after, now)?;
        self.record_name(&mut transaction, &record, action, details, caller, now)?;
        self.stage(transaction);
        Ok(record)
    }

    fn transfer(
        &self,
        after: &mut RegistrationRecord,
        to: &AgentId,
        caller: &Caller,
        is_taken: bool,
    ) -> Result<(), BrokerError> {
        if !self.env.directory.is_registered(to) {
            return Err(BrokerError::AgentUnknown { agent: to.to_string() });
        }
        // An agent takes a name itself: a stranger must not fill its share.
        let is_at_once = is_taken || matches!(caller, Caller::Operator(_)) || after.owner == to.as_str();
        match is_at_once {
            true => (after.owner, after.offered_to) = (to.to_string(), None),
            false => after.offered_to = Some(to.clone()),
        }
        Ok(())
    }

    /// Removes the entry of a name, as a part of the transaction. Nothing changes if the entry is removed already.
    fn remove_entry(
        &mut self,
        transaction: &mut Transaction,
        after: &mut RegistrationRecord,
        version: &str,
    ) -> Result<(), BrokerError> {
        let name = after.name.clone();
        match name.registry {
            Registry::Schemas => {
                let key = SchemaRecord::key(&name.name, version);
                let removed = RemovedSchema::key(&name.name, version);
                let Some(stored) = self.read(transaction, &key)? else {
                    return match self.read(transaction, &removed)? {
                        Some(_) => Ok(()),
                        None => Err(unknown_version(&name.name, version)),
                    };
                };
                let record = SchemaRecord::decode(&stored.value)?;
                transaction.delete(record.listing().0);
                transaction.delete(key);
                let sha256 = crate::envelope::signing::sha256(&[record.schema.schema_json.as_bytes()]);
                transaction.put_over(removed, RemovedSchema { sha256 }.encode());
                after.entries -= 1;
            }
            Registry::Graphs => {
                let id = GraphId::parse(&name.name).map_err(|_| BrokerError::unknown_name(&name))?;
                let key = GraphRecord::key(&id);
                let Some(stored) = self.read(transaction, &key)? else { return Ok(()) };
                let record = GraphRecord::decode(&stored.value)?;
                transaction.delete(record.listing().0);
                transaction.delete(key);
                // Runs have the graph themselves.
                (after.removed_revision, after.deleted_revision) = (record.graph.revision, record.graph.revision);
                after.entries = 0;
            }
            Registry::AgentSpecs | Registry::ModelSpecs => {
                let (kind, id) = spec_of(&name).ok_or_else(|| BrokerError::unknown_name(&name))?;
                let key = SpecRecord::key(kind, &id);
                let Some(stored) = self.read(transaction, &key)? else { return Ok(()) };
                let record = SpecRecord::decode(kind, &stored.value)?;
                transaction.delete(record.listing().0);
                transaction.delete(key);
                after.removed_revision = record.spec.revision;
                after.entries = 0;
                delete_unused(transaction, after);
            }
        }
        // The name begins anew with its next registration.
        after.is_retired &= after.entries > 0;
        Ok(())
    }

    /// Counts the threads that have a spec in force, and deletes removed revisions once the last thread has left them.
    pub(super) fn note_specs_in_force(
        &mut self,
        transaction: &mut Transaction,
        before: Option<&Thread>,
        after: &Thread,
    ) -> Result<(), BrokerError> {
        let names = |thread: &Thread| match thread.has_ended {
            true => Vec::new(),
            false => vec![
                RegistrationName::new(Registry::AgentSpecs, &thread.in_force.spec),
                RegistrationName::new(Registry::ModelSpecs, &thread.in_force.model),
            ],
        };
        let (before, after) = (before.map(names).unwrap_or_default(), names(after));
        for name in before.iter().filter(|name| !after.contains(name)) {
            let Some(known) = self.registration(transaction, name)? else { continue };
            let mut record = RegistrationRecord { threads: known.threads.saturating_sub(1), ..known.clone() };
            delete_unused(transaction, &mut record);
            self.write_name(transaction, Some(&known), &record)?;
        }
        for name in after.iter().filter(|name| !before.contains(name)) {
            let Some(known) = self.registration(transaction, name)? else { continue };
            let record = RegistrationRecord { threads: known.threads + 1, ..known.clone() };
            self.write_name(transaction, Some(&known), &record)?;
        }
        Ok(())
    }

    /// Fails if a step that has changed something is a new use of a retired name: the start of a run, the creation of a
    /// thread, or an action on its persona.
    pub(super) fn check_use(&self, transaction: &mut Transaction, input: &Input) -> Result<(), BrokerError> {
        let name = match input {
            Input::Routing(routing::Input::Start(start)) => RegistrationName::new(Registry::Graphs, &start.graph),
            Input::Thread(
                threads::Input::Create(threads::Create { base: spec, .. })
                | threads::Input::Act { action: Action::Request(spec) | Action::Activate(spec), .. },
            ) => RegistrationName::new(Registry::AgentSpecs, spec),
            _ => return Ok(()),
        };
        match self.registration(transaction, &name)? {
            Some(known) => check_open(&known),
            None => Ok(()),
        }
    }

    /// The name as the transaction has it. `None`: it was never registered.
    pub(super) fn registration(
        &self,
        transaction: &mut Transaction,
        name: &RegistrationName,
    ) -> Result<Option<RegistrationRecord>, BrokerError> {
        let key = name.key();
        let stored = self.read_latest(transaction, &key)?;
        Ok(stored.map(|stored| RegistrationRecord::decode(&key.key, &stored.value)).transpose()?)
    }

    /// Writes a changed name with the counts of its owners, within their limits. Returns it with its new etag.
    fn put_name(
        &self,
        transaction: &mut Transaction,
        before: Option<&RegistrationRecord>,
        after: RegistrationRecord,
        now: Timestamp,
    ) -> Result<RegistrationRecord, BrokerError> {
        let after = RegistrationRecord { changes: after.changes + 1, updated_at: now, ..after };
        self.write_name(transaction, before, &after)?;
        Ok(after)
    }

    fn write_name(
        &self,
        transaction: &mut Transaction,
        before: Option<&RegistrationRecord>,
        after: &RegistrationRecord,
    ) -> Result<(), BrokerError> {
        let registry = after.name.registry;
        let mut counts: BTreeMap<&str, (RegistrationCount, RegistrationCount)> = BTreeMap::new();
        for (record, is_after) in before.map(|before| (before, false)).into_iter().chain([(after, true)]) {
            for owner in [record.owner.as_str(), ""] {
                let (less, more) = counts.entry(owner).or_default();
                let count = if is_after { more } else { less };
                *count = RegistrationCount { entries: record.charged(), entries_ever: record.entries_ever };
            }
        }
        for (owner, (less, more)) in counts.into_iter().filter(|(_, (less, more))| less != more) {
            let key = RegistrationCount::key(registry, owner);
            let stored = self.read_latest(transaction, &key)?;
            let count = stored.as_ref().map(|stored| RegistrationCount::decode(&stored.value)).transpose()?;
            let count = count.unwrap_or_default();
            let counted = RegistrationCount {
                entries: (count.entries + more.entries).saturating_sub(less.entries),
                entries_ever: (count.entries_ever + more.entries_ever).saturating_sub(less.entries_ever),
            };
            self.check_share(registry, owner, count, counted)?;
            write_latest(transaction, key, counted.encode(), stored.as_ref());
        }
        let key = after.name.key();
        let stored = self.read_latest(transaction, &key)?;
        write_latest(transaction, key, after.encode(), stored.as_ref());
        Ok(())
    }

    /// Fails if a count grows beyond the room of the registry, or beyond the owner's share of it.
    fn check_share(
        &self,
        registry: Registry,
        owner: &str,
        before: RegistrationCount,
        after: RegistrationCount,
    ) -> Result<(), BrokerError> {
        let limits = &self.env.settings.limits;
        let (most, share, full, used_up) = match registry {
            Registry::Graphs => (
                GRAPHS_MAX as u64,
                limits.graphs_max,
                "too many graphs are registered",
                "the owner has registered its share of graphs; remove some",
            ),
            Registry::Schemas => (
                SCHEMAS_MAX,
                limits.schemas_max,
                "too many schemas are registered",
                "the owner has registered its share of schemas; remove some versions",
            ),
            Registry::AgentSpecs | Registry::ModelSpecs => (
                SPECS_MAX as u64,
                limits.specs_max,
                "too many specs of this kind are registered",
                "the owner has registered its share of specs of this kind; remove some",
            ),
        };
        let is_of_agent = !owner.is_empty() && !owner.contains(':');
        let share = if share == 0 { u64::MAX } else { u64::from(share) };
        let beyond = |most: u64| after.entries > before.entries && after.entries > most;
        let what = match owner {
            "" if beyond(most) => full,
            _ if is_of_agent && beyond(share) => used_up,
            _ if is_of_agent
                && after.entries_ever > before.entries_ever
                && after.entries_ever > share.saturating_mul(EVER_PER_ENTRY) =>
            {
                "the owner has used too many names, with the removed ones"
            }
            _ => return Ok(()),
        };
        Err(BrokerError::LimitExceeded { what, retry_after: LIMIT_RETRY })
    }

    /// Reads a record for a change, as this transaction has written it.
    fn read_latest(&self, transaction: &mut Transaction, key: &Key) -> Result<Option<Record>, BrokerError> {
        match transaction.written_record(key) {
            Some(written) => Ok(written.clone()),
            None => self.read(transaction, key),
        }
    }

    /// Writes an act on a name into the audit log.
    pub(super) fn record_name(
        &self,
        transaction: &mut Transaction,
        name: &RegistrationRecord,
        action: AuditAction,
        details: String,
        caller: &Caller,
        now: Timestamp,
    ) -> Result<(), BrokerError> {
        tracing::info!(name = %name.name, by = %caller, ?action, details, "changed a registry");
        let act = AuditAct { actor: caller.to_string(), action, subject: name.name.to_string(), details };
        self.record(transaction, act, now)
    }
}

/// Writes a record that the transaction may have written before.
fn write_latest(transaction: &mut Transaction, key: Key, value: bytes::Bytes, before: Option<&Record>) {
    match transaction.written_record(&key) {
        Some(Some(written)) => written.value = value,
        Some(None) | None => transaction.put(key, value, before),
    }
}

/// Whether the change is made by the agent that the name is offered to.
fn takes_offer(known: &RegistrationRecord, change: &NameChange, caller: &Caller) -> bool {
    let (NameChange::Transfer(to), Caller::Agent(agent)) = (change, caller) else { return false };
    to == agent && known.offered_to.as_ref() == Some(agent)
}

fn revision_of(entity: &Entity) -> Option<u64> {
    match entity {
        Entity::Graph(graph) => Some(graph.revision),
        Entity::Spec(spec) => Some(spec.revision),
        _ => None,
    }
}

fn check_etag(known: &RegistrationRecord, etag: &str) -> Result<(), BrokerError> {
    match etag.is_empty() || etag == known.etag() {
        true => Ok(()),
        false => Err(BrokerError::EtagChanged),
    }
}

fn check_open(known: &RegistrationRecord) -> Result<(), BrokerError> {
    match known.is_retired {
        false => Ok(()),
        true => Err(BrokerError::NameRetired { name: known.name.to_string(), owner: known.owner.clone() }),
    }
}

fn spec_of(name: &RegistrationName) -> Option<(SpecKind, SpecId)> {
    Some((name.registry.specs()?, SpecId::parse(&name.name).ok()?))
}

/// Deletes the removed revisions of a spec if no thread has the spec in force.
fn delete_unused(transaction: &mut Transaction, record: &mut RegistrationRecord) {
    if let Some((kind, id)) = spec_of(&record.name)
        && record.threads == 0
    {
        for revision in record.deleted_revision + 1..=record.removed_revision {
            transaction.delete(SpecRevisionRecord::key(kind, &id, revision));
        }
        record.deleted_revision = record.removed_revision;
    }
}

fn unknown_version(schema: &str, version: &str) -> BrokerError {
    BrokerError::SchemaUnknown { schema: schema.to_owned(), version: version.to_owned(), violations: Vec::new() }
}

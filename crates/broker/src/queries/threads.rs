//! Queries of specs, and of threads with their logs.

use std::sync::Arc;

use bytes::Bytes;

use super::{
    Page, View,
    logs::{Log, LogPage},
    workspaces::StoredEntities,
};
use crate::{
    BrokerError,
    access::Purpose,
    domain::{
        EntityId, ReadError,
        threads::{Spec, SpecKind, Thread},
        workspace::{self, WorkspaceId, WorkspaceOwner},
    },
    ids::{AgentId, SpecId, TaskId, ThreadId},
    policy::Action,
    proto::v1,
    records::{
        List, RegistrationName, RegistrationRecord, Registry, SpecRecord, SpecRevisionRecord, ThreadEntryRecord,
        ThreadRecord,
    },
    store::Table,
};

/// A filter of threads. All conditions that are set must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ThreadFilter {
    /// The task of the thread.
    pub task: Option<TaskId>,
    /// The spec in force.
    pub in_force: Option<SpecId>,
}

/// A thread with the specs in force.
#[derive(Debug, Clone, PartialEq)]
pub struct ThreadWithSpecs {
    /// The thread.
    pub thread: Arc<Thread>,
    /// The agent spec, at the revision in force.
    pub spec: Arc<Spec>,
    /// The model spec, at the revision in force.
    pub model: Arc<Spec>,
}

impl View<'_> {
    /// One thread that the caller may see.
    pub fn thread(&self, id: &ThreadId) -> Result<Arc<Thread>, BrokerError> {
        self.thread_for(id, Action::ReadThread).map_err(|error| match error {
            // Both causes get the answer of `no_such_thread`, which depends on the caller alone (SPEC 5).
            BrokerError::ThreadUnknown { .. } | BrokerError::PermissionDenied(_) => {
                self.access.no_such_thread(self.caller, id)
            }
            error => error,
        })
    }

    /// One thread that the caller may use. A thread that does not exist and a hidden one get the same answer.
    pub fn thread_for_use(&self, id: &ThreadId) -> Result<Arc<Thread>, BrokerError> {
        // The right to see comes first: a denial of the use would reveal a hidden thread.
        self.thread(id)?;
        self.thread_for(id, Action::UseThread)
    }

    fn thread_for(&self, id: &ThreadId, action: Action<'_>) -> Result<Arc<Thread>, BrokerError> {
        // An ended thread is removed later. Until then it counts as unknown, so that the removal changes no answer.
        let unknown = || BrokerError::unknown(&EntityId::Thread(id.clone()));
        let thread = self.stored_thread(id)?.filter(|thread| !thread.has_ended).ok_or_else(unknown)?;
        self.access.about_thread(self.caller, action, id, &self.thread_participants(id)?)?;
        Ok(thread)
    }

    fn stored_thread(&self, id: &ThreadId) -> Result<Option<Arc<Thread>>, BrokerError> {
        let stored = self.store.get(&ThreadRecord::key(id))?;
        Ok(stored.map(|record| ThreadRecord::decode(&record.value)).transpose()?.map(|record| record.thread))
    }

    /// The participants of a thread and of its task, who also share its workspace.
    fn thread_participants(&self, id: &ThreadId) -> Result<Vec<AgentId>, BrokerError> {
        let workspace = WorkspaceId::of(WorkspaceOwner::Thread, id.as_str()).expect("the id of a thread is a name");
        let mut read = StoredEntities::new(self.store);
        let owner = workspace::owner(&workspace, &mut read).map_err(|ReadError| read.failure())?;
        Ok(owner.map(|owner| owner.participants).unwrap_or_default())
    }

    /// The threads that the caller may see, newest first.
    pub fn threads(&self, filter: &ThreadFilter, size: usize, token: &str) -> Result<Page<Arc<Thread>>, BrokerError> {
        let list = self.list(Purpose::ReadThreads, List::of_threads, None)?;
        let read = |_, value: &Bytes| {
            let Some(id) = std::str::from_utf8(value).ok().and_then(|id| ThreadId::parse(id).ok()) else {
                return Ok(None);
            };
            let fits = |thread: &Arc<Thread>| {
                filter.task.as_ref().is_none_or(|task| thread.task.as_ref() == Some(task))
                    && filter.in_force.as_ref().is_none_or(|spec| thread.in_force.spec == *spec)
                    && !thread.has_ended
            };
            let Some(thread) = self.stored_thread(&id)?.filter(fits) else { return Ok(None) };
            let participants = self.thread_participants(&id)?;
            let seen = self.access.about_thread(self.caller, Action::ReadThread, &id, &participants);
            Ok(seen.is_ok().then_some(thread))
        };
        self.page(list.as_ref(), &format!("{filter:?}"), size, token, read)
    }

    /// The entries of a thread's log after this number, oldest first.
    pub fn thread_log(&self, id: &ThreadId, after: u64, limit: usize) -> Result<LogPage<v1::ThreadEntry>, BrokerError> {
        let log = Log {
            table: Table::ThreadLog,
            range: ThreadEntryRecord::range_after(id, after),
            after,
            decode: ThreadEntryRecord::message,
            length: self.thread(id)?.log_length,
            // A thread has no last entry before its removal.
            is_final: false,
        };
        self.log_page(log, limit)
    }

    /// A revision of a spec. 0: the latest.
    pub fn spec(&self, kind: SpecKind, id: &SpecId, revision: u64) -> Result<Arc<Spec>, BrokerError> {
        self.access.may_see_directory(self.caller)?;
        self.stored_spec(kind, id, revision)
    }

    /// Whether the caller may read the system prompt, the sections and the overlay of a persona's spec.
    pub fn may_read_prompt(&self, id: &SpecId) -> Result<bool, BrokerError> {
        let name = RegistrationName::new(Registry::AgentSpecs, id);
        let known = self.stored_registration(&name)?;
        let owner = known.as_ref().and_then(RegistrationRecord::owning_agent);
        Ok(self.access.may_read_spec(self.caller, &name, owner))
    }

    /// The latest revision of a spec that the caller may register, also without the right to read specs.
    pub fn registered_spec(&self, kind: SpecKind, id: &SpecId) -> Result<Arc<Spec>, BrokerError> {
        self.access.may_register(self.caller, &RegistrationName::new(Registry::of_specs(kind), id))?;
        self.stored_spec(kind, id, 0)
    }

    /// A thread that the caller may see, with the specs that its last boundary has put in force. The right to see the
    /// thread is enough. Fails if the thread has no boundary yet.
    pub fn thread_with_specs(&self, id: &ThreadId) -> Result<ThreadWithSpecs, BrokerError> {
        let thread = self.thread(id)?;
        let now = &thread.boundary.as_ref().ok_or(BrokerError::Internal)?.in_force;
        let spec = self.stored_spec(SpecKind::Agent, &now.spec, now.revision)?;
        let model = self.stored_spec(SpecKind::Model, &now.model, now.model_revision)?;
        Ok(ThreadWithSpecs { thread, spec, model })
    }

    fn stored_spec(&self, kind: SpecKind, id: &SpecId, revision: u64) -> Result<Arc<Spec>, BrokerError> {
        let found = match revision {
            0 => match self.store.get(&SpecRecord::key(kind, id))? {
                Some(stored) => Some(SpecRecord::decode(kind, &stored.value)?.spec),
                None => None,
            },
            _ => match self.store.get(&SpecRevisionRecord::key(kind, id, revision))? {
                Some(stored) => Some(SpecRevisionRecord::decode(kind, &stored.value)?.0),
                None => None,
            },
        };
        found.ok_or_else(|| BrokerError::unknown(&EntityId::SpecRevision(kind, id.clone(), revision)))
    }

    /// The latest revisions of the specs of a kind, the newest spec first.
    pub fn specs(&self, kind: SpecKind, size: usize, token: &str) -> Result<Page<Arc<Spec>>, BrokerError> {
        self.access.may_see_directory(self.caller)?;
        let read = |_, value: &Bytes| {
            let Some(id) = std::str::from_utf8(value).ok().and_then(|id| SpecId::parse(id).ok()) else {
                return Ok(None);
            };
            let stored = self.store.get(&SpecRecord::key(kind, &id))?;
            Ok(stored.map(|record| SpecRecord::decode(kind, &record.value)).transpose()?.map(|record| record.spec))
        };
        self.page(Some(&SpecRecord::list(kind)), kind.name(), size, token, read)
    }
}

//! Law 15: the spec in force changes only at a boundary, and only to one that resolves; each request ends exactly once; a
//! thread has one open run. The checker follows a thread by its log alone, and resolves specs by itself.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use baton_broker_core::{
    domain::threads::{
        Boundary, EndedRequest, Event, InForce, Request, RequestEnd, Spec, SpecKind, Thread, ThreadEntry, ThreadRunId,
    },
    ids::{SpecId, ThreadId},
    records::{SpecRecord, SpecRevisionRecord, ThreadEntryRecord, ThreadRecord},
    store::{Change, Record, Table},
    time::Timestamp,
};

/// The threads as stored, and as their logs tell them.
#[derive(Debug, Default)]
pub(crate) struct Threads {
    threads: BTreeMap<ThreadId, Followed>,
    registry: Registry,
}

/// All revisions of the specs.
#[derive(Debug, Default)]
struct Registry {
    agents: BTreeMap<(SpecId, u64), Arc<Spec>>,
    models: BTreeMap<(SpecId, u64), Arc<Spec>>,
}

/// A thread as its log tells it.
#[derive(Debug)]
struct Followed {
    thread: Arc<Thread>,
    length: u64,
    active: Option<SpecId>,
    requested: Option<(u64, SpecId)>,
    in_force: InForce,
    /// The open run and its step. 0: the run has begun, and its first boundary comes.
    run: Option<(ThreadRunId, u64)>,
    /// The time at which the lease of the open run ends.
    lease: Timestamp,
}

impl Threads {
    /// Checks a durable change.
    pub(crate) fn see_change(
        &mut self,
        change: &Change,
        befores: &[Option<Record>],
        counts: &mut BTreeMap<&'static str, u64>,
    ) {
        let mut entries: BTreeMap<ThreadId, Vec<ThreadEntry>> = BTreeMap::new();
        let mut written = Vec::new();
        for (write, before) in change.writes.iter().zip(befores) {
            let key = &write.key.key;
            match (write.key.table, &write.record) {
                (Table::SpecRevisions, Some(record)) => {
                    assert!(before.is_none(), "law 15: a revision of a spec has changed");
                    self.registry.see_revision(key, record);
                }
                (Table::Threads, Some(record)) => written.push(ThreadRecord::decode(&record.value).unwrap().thread),
                (Table::Threads, None) => {
                    let id = ThreadId::parse(std::str::from_utf8(key).unwrap()).unwrap();
                    let gone = self.threads.remove(&id).expect("only what is there is removed");
                    assert!(gone.thread.has_ended, "law 15: thread {id} was removed before its end");
                }
                (Table::ThreadLog, Some(record)) => {
                    assert!(before.is_none(), "law 15: an entry of a thread's log was written again");
                    let id = ThreadId::parse(std::str::from_utf8(&key[..key.len() - 9]).unwrap()).unwrap();
                    let entry = ThreadEntryRecord::decode(&id, &record.value).unwrap().0;
                    entries.entry(id).or_default().push(ThreadEntry::clone(&entry));
                }
                _ => {}
            }
        }
        for thread in written {
            let mut entries = entries.remove(&thread.id).unwrap_or_default();
            entries.sort_by_key(|entry| entry.number);
            self.see_thread(thread, &entries, counts);
        }
        assert!(entries.is_empty(), "law 15: an entry of a thread without its thread: {entries:?}");
    }

    fn see_thread(&mut self, thread: Arc<Thread>, entries: &[ThreadEntry], counts: &mut BTreeMap<&'static str, u64>) {
        let registry = &self.registry;
        let followed = self.threads.entry(thread.id.clone()).or_insert_with(|| Followed {
            in_force: registry.resolve(&thread.base).expect("law 15: the base of a new thread resolves"),
            thread: thread.clone(),
            length: 0,
            active: None,
            requested: None,
            run: None,
            lease: Timestamp::default(),
        });
        for (place, entry) in entries.iter().enumerate() {
            followed.see_entry(entry, &entries[place + 1..], registry, counts);
        }
        let lease = thread.run.as_ref().map(|run| run.lease);
        // Only a boundary or its repeat moves a lease, and both belong to the run that holds the thread.
        followed.lease = lease.unwrap_or_default();
        followed.thread = thread;
        followed.check();
    }

    /// Checks that no runner holds a thread beyond its lease.
    pub(crate) fn see_time(&self, now: Timestamp) {
        let is_late = |followed: &&Followed| followed.run.is_some() && followed.lease <= now;
        let late = self.threads.values().find(is_late).map(|followed| &followed.thread.id);
        assert_eq!(late, None, "law 15: a runner holds a thread beyond its lease");
    }

    /// The stored threads.
    pub(crate) fn known(&self) -> Vec<Arc<Thread>> {
        self.threads.values().map(|followed| followed.thread.clone()).collect()
    }
}

impl Registry {
    fn see_revision(&mut self, key: &[u8], record: &Record) {
        let any = SpecId::parse("any").unwrap();
        let is_agent = key.first() == SpecRecord::key(SpecKind::Agent, &any).key.first();
        let kind = if is_agent { SpecKind::Agent } else { SpecKind::Model };
        let spec = SpecRevisionRecord::decode(kind, &record.value).unwrap().0;
        let revisions = if is_agent { &mut self.agents } else { &mut self.models };
        let former = revisions.keys().filter(|(id, _)| *id == spec.id).count() as u64;
        assert_eq!(spec.revision, former + 1, "law 15: the revisions of {} are dense", spec.id);
        revisions.insert((spec.id.clone(), spec.revision), spec);
    }

    /// The latest revision of a spec and of its model. `None`: one of them is not registered.
    fn resolve(&self, id: &SpecId) -> Option<InForce> {
        let all = |id: &SpecId| (id.clone(), 0)..=(id.clone(), u64::MAX);
        let (_, spec) = self.agents.range(all(id)).next_back()?;
        let (_, model) = self.models.range(all(spec.model.as_ref()?)).next_back()?;
        Some(InForce {
            spec: id.clone(),
            revision: spec.revision,
            model: model.id.clone(),
            model_revision: model.revision,
        })
    }

    fn plugins(&self, of: &InForce) -> BTreeSet<String> {
        self.agents[&(of.spec.clone(), of.revision)].plugins.iter().cloned().collect()
    }
}

impl Followed {
    /// Checks an entry. `rest` are the later ones of the same change.
    fn see_entry(
        &mut self,
        entry: &ThreadEntry,
        rest: &[ThreadEntry],
        registry: &Registry,
        counts: &mut BTreeMap<&'static str, u64>,
    ) {
        let id = &self.thread.id;
        self.length += 1;
        assert_eq!(entry.number, self.length, "law 15: the log of thread {id} has a gap or an entry twice");
        let what = match &entry.event {
            Event::Created { .. } => {
                assert_eq!(entry.number, 1, "law 15: thread {id} is created twice");
                "thread: CREATED"
            }
            Event::Requested { spec, .. } => {
                assert_eq!(self.requested, None, "law 15: a request of thread {id} has no end");
                self.requested = Some((entry.number, spec.clone()));
                "thread: REQUESTED"
            }
            Event::RequestEnded(ended) => self.see_end(ended, rest, registry),
            Event::Activated { spec, .. } => {
                assert_eq!(self.requested, None, "law 15: a request of thread {id} has no end");
                assert!(registry.resolve(spec).is_some(), "law 15: {spec} is active, and does not resolve");
                self.active = Some(spec.clone());
                "thread: ACTIVATED"
            }
            Event::Cleared { .. } => {
                assert_eq!(self.requested, None, "law 15: a request of thread {id} has no end");
                self.active = None;
                "thread: CLEARED"
            }
            Event::RunBegan { run, .. } => {
                assert_eq!(self.run, None, "law 15: thread {id} has two open runs");
                self.run = Some((*run, 0));
                "thread: RUN BEGAN"
            }
            Event::Boundary(boundary) => self.see_boundary(boundary, registry),
            Event::RunEnded { run, lease_over } => {
                assert_eq!(self.run.map(|(run, _)| run), Some(*run), "law 15: another run of thread {id} ended");
                let is_over = entry.at >= self.lease;
                assert_eq!(*lease_over, is_over, "law 15: run {run} ended at {}, its lease {}", entry.at, self.lease);
                self.run = None;
                if is_over { "thread: LEASE OVER" } else { "thread: RUN ENDED" }
            }
        };
        *counts.entry(what).or_default() += 1;
    }

    /// Checks the end of a request. The cause is an entry of the same change.
    fn see_end(&mut self, ended: &EndedRequest, rest: &[ThreadEntry], registry: &Registry) -> &'static str {
        let open = self.requested.take();
        assert_eq!(open, Some((ended.number, ended.spec.clone())), "law 15: a request ends that is not open");
        let next = rest.first().map(|entry| &entry.event);
        let is_at_boundary = matches!(next, Some(Event::Boundary(next)) if next.request.as_ref() == Some(ended));
        let resolves = registry.resolve(&ended.spec).is_some();
        let (is_explained, what) = match ended.end {
            RequestEnd::Promoted => (is_at_boundary && resolves, "thread: PROMOTED"),
            RequestEnd::Failed(_) => (is_at_boundary && !resolves, "thread: RESOLVE FAILED"),
            RequestEnd::Replaced => {
                (matches!(next, Some(Event::Requested { .. } | Event::Activated { .. })), "thread: REPLACED")
            }
            RequestEnd::Cleared => (matches!(next, Some(Event::Cleared { .. })), "thread: REQUEST CLEARED"),
        };
        assert!(is_explained, "law 15: {ended:?}, and then {next:?}");
        if ended.end == RequestEnd::Promoted {
            self.active = Some(ended.spec.clone());
        }
        what
    }

    fn see_boundary(&mut self, boundary: &Boundary, registry: &Registry) -> &'static str {
        let (run, step) = self.run.expect("law 15: a boundary without an open run");
        assert_eq!((boundary.run, boundary.step), (run, step + 1), "law 15: the steps of run {run}");
        assert_eq!(self.requested, None, "law 15: a request outlives a boundary");
        self.run = Some((run, boundary.step));
        let wanted = self.active.as_ref().unwrap_or(&self.thread.base);
        let after = registry.resolve(wanted).unwrap_or_else(|| self.in_force.clone());
        let before = std::mem::replace(&mut self.in_force, after);
        assert_eq!(boundary.in_force, self.in_force, "law 15: the spec in force after a boundary");
        assert_eq!(boundary.switched, before != self.in_force, "law 15: a boundary says whether it switches");
        let (old, new) = (registry.plugins(&before), registry.plugins(&self.in_force));
        let differences = |one: &BTreeSet<String>, other: &BTreeSet<String>| one.difference(other).cloned().collect();
        let plugins: [Vec<String>; 2] = [differences(&old, &new), differences(&new, &old)];
        let listed = [&boundary.deactivate, &boundary.activate].map(|list| {
            let mut list = list.clone();
            list.sort();
            list
        });
        assert_eq!(listed, plugins, "law 15: the plugins that go off and on");
        if boundary.switched { "thread: SWITCHED" } else { "thread: STAYED" }
    }

    /// Compares the stored thread with its log.
    fn check(&self) {
        let thread = &self.thread;
        let id = &thread.id;
        assert_eq!(thread.log_length, self.length, "law 15: the log of thread {id} is as long as the thread says");
        assert_eq!(thread.in_force, self.in_force, "law 15: the spec in force of {id} changes at a boundary alone");
        assert_eq!(thread.active, self.active, "law 15: the active spec of {id}");
        let request = |request: &Request| (request.number, request.spec.clone());
        assert_eq!(thread.requested.as_ref().map(request), self.requested, "law 15: the request of {id}");
        let run = thread.run.as_ref().map(|run| (run.id, run.step));
        assert_eq!(run, self.run, "law 15: the open run of {id}");
    }
}

//! The stored form of every entity: its key and its index entries.
//!
//! A machine has an arm in each match here, and a separate file beside this one for its record.

mod index;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

pub use self::index::IndexDelta;
#[cfg(debug_assertions)]
use super::probe::ProbeRecord;
use super::{
    DecodeError, Expiration, GraphRecord, GraphRevision, HandoffRecord, MessageRecord, NegotiationRecord,
    PlanEntryRecord, PlanRecord, PlanSpecRecord, RequestPlace, RunEntryRecord, RunRecord, RunTurnRecord, SpecRecord,
    SpecRevisionRecord, TaskRecord, ThreadEntryRecord, ThreadRecord, TracePlace, WorkspaceRecord, letter::process_of,
};
use crate::{
    domain::{
        Entity, EntityId,
        handoff::{State, Task},
    },
    ids::{AgentId, InstanceId},
    store::Key,
    time::Timestamp,
};

/// An entity as stored: its state, and the broker's notes.
#[derive(Debug, Clone, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "tasks are most of all entities, and each is behind an Arc")]
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
    /// The latest revision of a spec.
    Spec(SpecRecord),
    /// A revision of a spec.
    SpecRevision(SpecRevisionRecord),
    /// A conversation with one persona at a time.
    Thread(ThreadRecord),
    /// An entry of a thread's log.
    ThreadEntry(ThreadEntryRecord),
    /// A request for offers, with the offers.
    Negotiation(NegotiationRecord),
    /// A plan that runs.
    Plan(PlanRecord),
    /// A plan as submitted.
    PlanSpec(PlanSpecRecord),
    /// An entry of a plan's log.
    PlanEntry(PlanEntryRecord),
    /// The test machine that shows that the engine is general.
    #[cfg(debug_assertions)]
    Probe(ProbeRecord),
}

/// The clock of a log: its time never goes back, and advances evenly while an entity of the log has a deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogClock {
    /// The time of the last change.
    pub logged_at: Timestamp,
    /// The part of the set-backs of the broker's clock that the log's time has followed.
    pub set_back: Duration,
}

impl LogClock {
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

/// What the broker adds to a record that a step writes.
#[derive(Debug, Clone)]
pub struct WriteFacts {
    /// The sequence of a new entity, its place in lists.
    pub sequence: u64,
    /// The message that opened a new entity.
    pub opening: Option<RequestPlace>,
    /// The clock of the step's log.
    pub log_clock: LogClock,
    /// The sequence of the copy of the opening message that a new entity keeps.
    pub envelope: Option<u64>,
    /// The place of a new entity in a trace.
    pub trace: Option<Box<TracePlace>>,
    /// The revision of the graph that a new run follows.
    pub graph: Option<GraphRevision>,
    /// The sequence of the latest change of a task or a handoff: a new one if the step changes it. 0 for others.
    pub changed: u64,
    /// The sender of the message that the step applies, with its process, if it has said which.
    pub sender: Option<(AgentId, InstanceId)>,
}

impl EntityRecord {
    /// The record after a step, from the new state and the former record.
    pub fn after(entity: Entity, before: Option<&Self>, facts: WriteFacts) -> Self {
        match entity {
            Entity::Task(task) => Self::Task(TaskRecord::after(task, before.and_then(Self::as_task), facts)),
            Entity::Handoff(handoff) => {
                let before = before.and_then(Self::as_handoff);
                // Later messages of the handoff are in `opening` too, so the request of the first step goes first.
                let request = before.map(|record| record.request).or(facts.opening);
                let sender = facts.sender.as_ref();
                // A process keeps what it has begun: a later message of another one changes nothing.
                let sender_process =
                    before.and_then(|record| record.sender_process).or_else(|| process_of(sender, &handoff.sender));
                let before_of_candidate = before.filter(|record| record.handoff.candidate == handoff.candidate);
                // The candidate may have submitted the plan whose request this is, and has not accepted it by that.
                let has_accepted = matches!(handoff.state, State::Accepted | State::ContextSent | State::Completed);
                let candidate_process = before_of_candidate
                    .and_then(|record| record.candidate_process)
                    .or_else(|| process_of(sender, &handoff.candidate).filter(|_| has_accepted));
                Self::Handoff(HandoffRecord {
                    sender_process,
                    candidate_process,
                    handoff,
                    sequence: before.map_or(facts.sequence, |record| record.sequence),
                    changed: facts.changed,
                    request: request.expect("a handoff begins with a request"),
                    trace: before.map_or(facts.trace, |record| record.trace.clone()),
                    // The effect that delivers a further one replaces it.
                    latest_letter: before.map_or(0, |record| record.latest_letter),
                })
            }
            Entity::Workspace(workspace) => {
                // The effect that stores the entry advances the chain.
                let chain_hash = before.and_then(Self::as_workspace).map_or([0; 32], |record| record.chain_hash);
                Self::Workspace(WorkspaceRecord { workspace, chain_hash, log_clock: facts.log_clock })
            }
            Entity::Graph(graph) => {
                let sequence = match before {
                    Some(Self::Graph(before)) => before.sequence,
                    Some(_) | None => facts.sequence,
                };
                Self::Graph(GraphRecord { graph, sequence })
            }
            Entity::Plan(plan) => {
                let before = before.and_then(Self::as_plan);
                let sequence = before.map_or(facts.sequence, |before| before.sequence);
                let trace = before.map_or(facts.trace, |record| record.trace.clone());
                let submitter_process = match before {
                    // A later message of the submitter is that of a worker or of a reader.
                    Some(before) => before.submitter_process,
                    None => process_of(facts.sender.as_ref(), &plan.submitter),
                };
                Self::Plan(PlanRecord { plan, sequence, log_clock: facts.log_clock, trace, submitter_process })
            }
            Entity::PlanSpec(spec) => Self::PlanSpec(PlanSpecRecord(spec)),
            Entity::PlanEntry(entry) => Self::PlanEntry(PlanEntryRecord(entry)),
            Entity::Run(run) => {
                let before = before.and_then(Self::as_run);
                let sequence = before.map_or(facts.sequence, |before| before.sequence);
                let graph = before.map(|before| before.graph).or(facts.graph).expect("a run begins with a graph");
                Self::Run(RunRecord { run, graph, sequence, log_clock: facts.log_clock })
            }
            Entity::RunEntry(entry) => Self::RunEntry(RunEntryRecord(entry)),
            Entity::RunTurn(turn) => Self::RunTurn(RunTurnRecord(turn)),
            Entity::Spec(spec) => {
                let sequence = match before {
                    Some(Self::Spec(before)) => before.sequence,
                    Some(_) | None => facts.sequence,
                };
                Self::Spec(SpecRecord { spec, sequence })
            }
            Entity::SpecRevision(spec) => Self::SpecRevision(SpecRevisionRecord(spec)),
            Entity::Thread(thread) => {
                let sequence = before.and_then(Self::as_thread).map_or(facts.sequence, |before| before.sequence);
                Self::Thread(ThreadRecord { thread, sequence, log_clock: facts.log_clock })
            }
            Entity::ThreadEntry(entry) => Self::ThreadEntry(ThreadEntryRecord(entry)),
            Entity::Negotiation(negotiation) => {
                let before = before.and_then(Self::as_negotiation);
                let asked = u32::try_from(negotiation.threads.len()).expect("a request asks at most 1,000 agents");
                let sender = facts.sender.as_ref();
                let requester_process = before
                    .and_then(|record| record.requester_process)
                    .or_else(|| process_of(sender, &negotiation.requester));
                Self::Negotiation(NegotiationRecord {
                    requester_process,
                    bidder_processes: NegotiationRecord::bidder_processes_after(before, &negotiation, sender),
                    negotiation,
                    sequence: before.map_or(facts.sequence, |record| record.sequence),
                    log_clock: facts.log_clock,
                    envelope: before.map_or(facts.envelope, |record| record.envelope),
                    asked,
                    trace: before.map_or(facts.trace, |record| record.trace.clone()),
                    expires_at: before
                        .map_or(facts.opening.and_then(|opening| opening.expires_at), |record| record.expires_at),
                })
            }
            #[cfg(debug_assertions)]
            Entity::Probe(probe) => Self::Probe(ProbeRecord { probe, log_clock: facts.log_clock }),
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

    /// The record of a negotiation, if the entity is one.
    pub fn as_negotiation(&self) -> Option<&NegotiationRecord> {
        match self {
            Self::Negotiation(record) => Some(record),
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

    /// The record of a thread, if the entity is one.
    pub fn as_thread(&self) -> Option<&ThreadRecord> {
        match self {
            Self::Thread(record) => Some(record),
            _ => None,
        }
    }

    /// The record of a plan, if the entity is one.
    pub fn as_plan(&self) -> Option<&PlanRecord> {
        match self {
            Self::Plan(record) => Some(record),
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
            | EntityId::RunTurn(..)
            | EntityId::Spec(..)
            | EntityId::SpecRevision(..)
            | EntityId::Thread(_)
            | EntityId::ThreadEntry(..)
            | EntityId::Negotiation(_)
            | EntityId::Plan(_)
            | EntityId::PlanSpec(_)
            | EntityId::PlanEntry(..) => None,
            EntityId::Workspace(id) => Some(Self::Workspace(WorkspaceRecord::empty(id.clone()))),
            #[cfg(debug_assertions)]
            EntityId::Probe(_) => None,
        }
    }

    /// The place of the entity in a trace. `None`: it has none, or its kind has no span.
    pub fn trace(&self) -> Option<&TracePlace> {
        match self {
            Self::Handoff(record) => record.trace.as_deref(),
            Self::Negotiation(record) => record.trace.as_deref(),
            Self::Plan(record) => record.trace.as_deref(),
            _ => None,
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
            Self::Spec(record) => Entity::Spec(record.spec.clone()),
            Self::SpecRevision(record) => Entity::SpecRevision(record.0.clone()),
            Self::Thread(record) => Entity::Thread(record.thread.clone()),
            Self::ThreadEntry(record) => Entity::ThreadEntry(record.0.clone()),
            Self::Negotiation(record) => Entity::Negotiation(record.negotiation.clone()),
            Self::Plan(record) => Entity::Plan(record.plan.clone()),
            Self::PlanSpec(record) => Entity::PlanSpec(record.0.clone()),
            Self::PlanEntry(record) => Entity::PlanEntry(record.0.clone()),
            #[cfg(debug_assertions)]
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
            EntityId::Spec(kind, id) => SpecRecord::key(*kind, id),
            EntityId::SpecRevision(kind, id, revision) => SpecRevisionRecord::key(*kind, id, *revision),
            EntityId::Thread(id) => ThreadRecord::key(id),
            EntityId::ThreadEntry(thread, number) => ThreadEntryRecord::key(thread, *number),
            EntityId::Negotiation(id) => NegotiationRecord::key(*id),
            EntityId::Plan(id) => PlanRecord::key(id),
            EntityId::PlanSpec(id) => PlanSpecRecord::key(id),
            EntityId::PlanEntry(plan, number) => PlanEntryRecord::key(plan, *number),
            #[cfg(debug_assertions)]
            EntityId::Probe(id) => ProbeRecord::key(*id),
        }
    }

    /// The key of a record that names the container of an entity, if the entity has one. The record of a container contains the
    /// record of another entity.
    pub fn container_key(id: &EntityId) -> Option<Key> {
        match id {
            EntityId::Task(_)
            | EntityId::Workspace(_)
            | EntityId::Graph(_)
            | EntityId::Run(_)
            | EntityId::RunEntry(..)
            | EntityId::RunTurn(..)
            | EntityId::Spec(..)
            | EntityId::SpecRevision(..)
            | EntityId::Thread(_)
            | EntityId::ThreadEntry(..)
            | EntityId::Negotiation(_)
            | EntityId::Plan(_)
            | EntityId::PlanSpec(_)
            | EntityId::PlanEntry(..) => None,
            // The request of a handoff has the id of the handoff.
            EntityId::Handoff(id) => Some(MessageRecord::key(*id)),
            #[cfg(debug_assertions)]
            EntityId::Probe(_) => None,
        }
    }

    /// The container that the record under [`Self::container_key`] names.
    pub fn container_named_in(value: &Bytes) -> Result<Option<EntityId>, DecodeError> {
        Ok(MessageRecord::decode(value)?.logged().map(|logged| EntityId::Task(logged.task.clone())))
    }

    /// The container of a new entity. `None`: the entity has a record of its own.
    pub fn first_container(&self) -> Option<EntityId> {
        match self {
            Self::Task(_)
            | Self::Workspace(_)
            | Self::Graph(_)
            | Self::Run(_)
            | Self::RunEntry(_)
            | Self::RunTurn(_)
            | Self::Spec(_)
            | Self::SpecRevision(_)
            | Self::Thread(_)
            | Self::ThreadEntry(_)
            | Self::Negotiation(_)
            | Self::Plan(_)
            | Self::PlanSpec(_)
            | Self::PlanEntry(_) => None,
            Self::Handoff(HandoffRecord { handoff, .. }) => {
                HandoffRecord::begins_in_task(handoff).then(|| EntityId::Task(handoff.task.clone()))
            }
            #[cfg(debug_assertions)]
            Self::Probe(_) => None,
        }
    }

    /// The record of this entity in its container.
    pub fn embedded(&self, id: &EntityId) -> Option<Self> {
        match (self, id) {
            (Self::Task(task), EntityId::Handoff(_)) if self.embeds(id) => task.handoff.clone().map(Self::Handoff),
            _ => None,
        }
    }

    /// Whether [`Self::embedded`] finds the entity in the record.
    pub fn embeds(&self, id: &EntityId) -> bool {
        match (self, id) {
            (Self::Task(task), EntityId::Handoff(id)) => {
                task.handoff.as_ref().is_some_and(|embedded| embedded.handoff.id == *id)
            }
            _ => false,
        }
    }

    /// Puts another entity into the record. Returns the one that it replaces, which needs a record of its own then.
    pub fn embed(&mut self, embedded: &Self) -> Option<Self> {
        match (self, embedded) {
            (Self::Task(task), Self::Handoff(embedded)) => {
                let former = task.handoff.replace(embedded.clone());
                // A newer version of the same handoff replaces the older one, which needs no record.
                former.filter(|former| former.handoff.id != embedded.handoff.id).map(Self::Handoff)
            }
            _ => None,
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
            Self::Spec(record) => record.encode(),
            Self::SpecRevision(record) => record.encode(),
            Self::Thread(record) => record.encode(),
            Self::ThreadEntry(record) => record.encode(),
            Self::Negotiation(record) => record.encode(),
            Self::Plan(record) => record.encode(),
            Self::PlanSpec(record) => record.encode(),
            Self::PlanEntry(record) => record.encode(),
            #[cfg(debug_assertions)]
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
            EntityId::Spec(kind, _) => SpecRecord::decode(*kind, value).map(Self::Spec),
            EntityId::SpecRevision(kind, ..) => SpecRevisionRecord::decode(*kind, value).map(Self::SpecRevision),
            EntityId::Thread(_) => ThreadRecord::decode(value).map(Self::Thread),
            EntityId::ThreadEntry(thread, _) => ThreadEntryRecord::decode(thread, value).map(Self::ThreadEntry),
            EntityId::Negotiation(_) => NegotiationRecord::decode(value).map(Self::Negotiation),
            EntityId::Plan(_) => PlanRecord::decode(value).map(Self::Plan),
            EntityId::PlanSpec(_) => PlanSpecRecord::decode(value).map(Self::PlanSpec),
            EntityId::PlanEntry(plan, _) => PlanEntryRecord::decode(plan, value).map(Self::PlanEntry),
            #[cfg(debug_assertions)]
            EntityId::Probe(_) => ProbeRecord::decode(value).map(Self::Probe),
        }
    }

    /// The keys of further rows that have parts of the entity. They never change, or are written with its record, whose
    /// revision guards them.
    pub fn row_keys(&self) -> Vec<Key> {
        match self {
            Self::Negotiation(record) => record.bids_keys().collect(),
            Self::Run(record) => vec![record.graph.key()],
            Self::Task(_)
            | Self::Handoff(_)
            | Self::Workspace(_)
            | Self::Graph(_)
            | Self::RunEntry(_)
            | Self::RunTurn(_)
            | Self::Spec(_)
            | Self::SpecRevision(_)
            | Self::Thread(_)
            | Self::ThreadEntry(_)
            | Self::Plan(_)
            | Self::PlanSpec(_)
            | Self::PlanEntry(_) => Vec::new(),
            #[cfg(debug_assertions)]
            Self::Probe(_) => Vec::new(),
        }
    }

    /// The decoded record with its further rows, in the order of [`Self::row_keys`].
    pub fn with_rows(self, rows: &[Bytes]) -> Result<Self, DecodeError> {
        match self {
            Self::Negotiation(record) => record.with_bids(rows).map(Self::Negotiation),
            Self::Run(record) => {
                let Some(row) = rows.first() else {
                    return Err(DecodeError { table: "runs", problem: "the graph of a run is not stored".to_owned() });
                };
                Ok(Self::Run(record.with_graph(GraphRevision::decode(row)?)))
            }
            other => Ok(other),
        }
    }

    /// The further rows that differ from those of the record before.
    pub fn changed_rows(&self, before: Option<&Self>) -> Vec<(Key, Bytes)> {
        match self {
            Self::Negotiation(record) => record.changed_bids(before.and_then(Self::as_negotiation)),
            _ => Vec::new(),
        }
    }

    /// The message that opened the entity. `None`: the entity never delivers it again.
    pub fn opening(&self) -> Option<RequestPlace> {
        match self {
            Self::Task(_)
            | Self::Workspace(_)
            | Self::Graph(_)
            | Self::Run(_)
            | Self::RunEntry(_)
            | Self::RunTurn(_)
            | Self::Spec(_)
            | Self::SpecRevision(_)
            | Self::Thread(_)
            | Self::ThreadEntry(_)
            | Self::Negotiation(_)
            | Self::Plan(_)
            | Self::PlanSpec(_)
            | Self::PlanEntry(_) => None,
            Self::Handoff(record) => Some(record.request),
            #[cfg(debug_assertions)]
            Self::Probe(_) => None,
        }
    }

    /// The clock of the entity's own log. `None`: the log of its task applies.
    pub fn log_clock(&self) -> Option<LogClock> {
        match self {
            Self::Task(record) => Some(record.log_clock()),
            Self::Handoff(_) | Self::Graph(_) | Self::RunEntry(_) | Self::RunTurn(_) => None,
            Self::Spec(_) | Self::SpecRevision(_) | Self::ThreadEntry(_) => None,
            Self::Plan(record) => Some(record.log_clock),
            Self::PlanSpec(_) | Self::PlanEntry(_) => None,
            Self::Workspace(record) => Some(record.log_clock),
            Self::Run(record) => Some(record.log_clock),
            Self::Thread(record) => Some(record.log_clock),
            Self::Negotiation(record) => Some(record.log_clock),
            #[cfg(debug_assertions)]
            Self::Probe(record) => Some(record.log_clock),
        }
    }

    /// The time of the entity's own log. `None`: the log of its task applies.
    pub fn log_time(&self, now: Timestamp, set_back: Duration) -> Option<Timestamp> {
        match self {
            Self::Task(record) => Some(record.log_time(now, set_back)),
            Self::Handoff(_) | Self::Graph(_) | Self::RunEntry(_) | Self::RunTurn(_) => None,
            Self::Spec(_) | Self::SpecRevision(_) | Self::ThreadEntry(_) => None,
            Self::Plan(record) => Some(record.log_clock.log_time(!record.plan.state.is_final(), now, set_back)),
            Self::PlanSpec(_) | Self::PlanEntry(_) => None,
            Self::Workspace(record) => {
                Some(record.log_clock.log_time(record.workspace.next_expiry.is_some(), now, set_back))
            }
            Self::Run(record) => Some(record.log_clock.log_time(!record.run.state.is_final(), now, set_back)),
            Self::Thread(record) => Some(record.log_clock.log_time(!record.thread.has_ended, now, set_back)),
            Self::Negotiation(record) => {
                Some(record.log_clock.log_time(record.negotiation.next_deadline().is_some(), now, set_back))
            }
            #[cfg(debug_assertions)]
            Self::Probe(record) => Some(record.log_clock.log_time(record.probe.deadline.is_some(), now, set_back)),
        }
    }

    /// Whether the record can no longer change. A task's record always can: the log of an ended task records late
    /// messages.
    pub fn is_settled(&self) -> bool {
        match self {
            Self::Task(_) | Self::Workspace(_) | Self::Graph(_) | Self::Spec(_) => false,
            Self::Handoff(record) => record.handoff.state.is_final(),
            Self::Run(record) => record.run.state.is_final(),
            Self::Thread(record) => record.thread.has_ended,
            Self::RunEntry(_) | Self::RunTurn(_) | Self::SpecRevision(_) | Self::ThreadEntry(_) => true,
            // Later steps of a final negotiation only tell its bidders.
            Self::Negotiation(record) => record.negotiation.state.is_final(),
            // A retry starts an ended plan again.
            Self::Plan(_) => false,
            Self::PlanSpec(_) | Self::PlanEntry(_) => true,
            #[cfg(debug_assertions)]
            Self::Probe(_) => false,
        }
    }

    /// Whether the record is an entry of a log, which no step reads again.
    pub fn is_log_entry(&self) -> bool {
        matches!(self, Self::RunEntry(_) | Self::ThreadEntry(_) | Self::PlanEntry(_))
    }

    /// An estimate of the bytes that the record takes in memory, where it has this number of bytes in the store.
    /// `cargo bench --bench footprint` shows what many of them take; `tests/broker/memory.rs` holds it to a factor of two.
    pub fn memory_bytes(&self, stored: usize) -> usize {
        match self {
            Self::Negotiation(record) => 1024 + 256 * record.negotiation.threads.len(),
            Self::Plan(record) => 1024 + 384 * record.plan.parts(),
            Self::PlanSpec(spec) => 1024 + 1024 * spec.0.subtasks.len() + 2 * stored,
            // Its graph is shared by all runs of the revision, and counts at that of the registry.
            Self::Run(_) => 2048 + 4 * stored,
            Self::Task(_)
            | Self::Handoff(_)
            | Self::Workspace(_)
            | Self::Graph(_)
            | Self::RunEntry(_)
            | Self::RunTurn(_)
            | Self::Spec(_)
            | Self::SpecRevision(_)
            | Self::Thread(_)
            | Self::ThreadEntry(_)
            | Self::PlanEntry(_) => 512 + 4 * stored,
            #[cfg(debug_assertions)]
            Self::Probe(_) => 512 + 4 * stored,
        }
    }

    /// The kind and key of the entity's expiration after its end. `None`: the entity is removed with its task.
    pub fn expiration(&self) -> Option<(Expiration, &[u8])> {
        match self {
            Self::Task(TaskRecord { task, .. }) => Some((Expiration::Task, task.id.as_str().as_bytes())),
            Self::Handoff(_) | Self::Workspace(_) | Self::Graph(_) | Self::RunEntry(_) | Self::RunTurn(_) => None,
            Self::Spec(_) | Self::SpecRevision(_) | Self::ThreadEntry(_) => None,
            Self::Thread(ThreadRecord { thread, .. }) => Some((Expiration::Thread, thread.id.as_str().as_bytes())),
            Self::Run(RunRecord { run, .. }) => Some((Expiration::Run, run.id.0.as_bytes())),
            Self::Negotiation(NegotiationRecord { negotiation, .. }) => {
                Some((Expiration::Negotiation, negotiation.id.as_bytes()))
            }
            Self::Plan(PlanRecord { plan, .. }) => Some((Expiration::Plan, plan.id.as_str().as_bytes())),
            Self::PlanSpec(_) | Self::PlanEntry(_) => None,
            #[cfg(debug_assertions)]
            Self::Probe(_) => None,
        }
    }
}

impl TaskRecord {
    fn after(task: Arc<Task>, before: Option<&Self>, facts: WriteFacts) -> Self {
        let latest = task.prompts.last().map(|prompt| prompt.id);
        let asked_before = before.and_then(|record| record.asking).filter(|(asked, _)| Some(*asked) == latest);
        let of_owner = facts.sender.as_ref().filter(|(sender, _)| *sender == task.owner);
        let asks_now = || Some((task.open_prompt()?.id, of_owner?.1));
        Self {
            asking: asked_before.or_else(asks_now),
            task,
            custody: before.map(|record| record.custody).unwrap_or_default(),
            log_tail: before.map(|record| record.log_tail.clone()).unwrap_or_default(),
            // The step's own version of the handoff goes in when the transaction is staged.
            handoff: before.and_then(|record| record.handoff.clone()),
            context_versions: before.map_or(0, |record| record.context_versions),
            last_context: before.map_or(0, |record| record.last_context),
            refusals_recorded: before.map_or(0, |record| record.refusals_recorded),
            mail_recorded: before.map_or(0, |record| record.mail_recorded),
            mail_unrecorded: before.map_or(0, |record| record.mail_unrecorded),
            told_absence: before.map_or(0, |record| record.told_absence),
            asked: before.map(|record| record.asked.clone()).unwrap_or_default(),
            open_runs: before.map(|record| record.open_runs.clone()).unwrap_or_default(),
            sequence: before.map_or(facts.sequence, |record| record.sequence),
            updated: facts.changed,
            logged_at: facts.log_clock.logged_at,
            set_back: facts.log_clock.set_back,
        }
    }
}

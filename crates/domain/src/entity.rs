//! The common parts of all state machines: ids, inputs, transitions, effects, and one [`step`] for all of them.
//!
//! A machine is a variant of [`EntityId`] and of [`Entity`], an arm in each match below, and a function from an input
//! to a [`Transition`]. This module must not know how entities are stored, or how an effect is executed.

use std::{fmt, sync::Arc, time::Duration};

#[cfg(debug_assertions)]
use super::probe::{self, Probe, ProbeId};
use super::{
    coordinator::Order,
    dead_letter::ParkReason,
    handoff::{self, Acked, Handoff, Notice, Priority, Rejection, Task},
    mailbox::Attempt,
    negotiation::{self, Closed, Mandate, Negotiation, WaitingMail},
    plan::{self, Plan, PlanEntry, Report},
    routing::{self, Graph, NodeLetter, Run, RunEntry, RunId, RunTurn, TurnId},
    threads::{self, LEASE, Spec, SpecKind, Thread, ThreadEntry},
    workspace::{self, Append, Entry, Workspace, WorkspaceId},
};
use crate::{
    codes::Refusal,
    ids::{AgentId, AgentType, GraphId, MessageId, PlanId, SpecId, TaskId, ThreadId},
    time::Timestamp,
};

/// The id of an entity, an object with its own state machine. Each machine has one variant.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EntityId {
    /// A task, by the id that its first request gave it.
    Task(TaskId),
    /// One attempt to move a task.
    Handoff(MessageId),
    /// The shared entries of a task, plan, thread or run.
    Workspace(WorkspaceId),
    /// A graph that a model routes through.
    Graph(GraphId),
    /// A run through a graph.
    Run(RunId),
    /// An entry of a run's log, by its number.
    RunEntry(RunId, u64),
    /// A turn of a run.
    RunTurn(RunId, TurnId),
    /// The latest revision of a spec.
    Spec(SpecKind, SpecId),
    /// A revision of a spec, by its number.
    SpecRevision(SpecKind, SpecId, u64),
    /// A thread, a conversation with one persona at a time.
    Thread(ThreadId),
    /// An entry of a thread's log, by its number.
    ThreadEntry(ThreadId, u64),
    /// A request for offers, by the id of its message.
    Negotiation(MessageId),
    /// A plan that runs.
    Plan(PlanId),
    /// A plan as its submitter has written it.
    PlanSpec(PlanId),
    /// An entry of a plan's log, by its number.
    PlanEntry(PlanId, u64),
    /// The test machine that shows that the engine is general.
    #[cfg(debug_assertions)]
    Probe(ProbeId),
}

/// The state of an entity. A clone costs a reference count.
#[derive(Debug, Clone, PartialEq)]
pub enum Entity {
    /// A unit of work with its owner and its loans.
    Task(Arc<Task>),
    /// One attempt to move a task.
    Handoff(Arc<Handoff>),
    /// The shared entries of a task, plan, thread or run.
    Workspace(Arc<Workspace>),
    /// A graph that a model routes through.
    Graph(Arc<Graph>),
    /// A run through a graph.
    Run(Arc<Run>),
    /// An entry of a run's log. It never changes.
    RunEntry(Arc<RunEntry>),
    /// The place of a turn in the log of its run. It never changes.
    RunTurn(Arc<RunTurn>),
    /// The latest revision of a spec.
    Spec(Arc<Spec>),
    /// A revision of a spec. It never changes.
    SpecRevision(Arc<Spec>),
    /// A conversation with one persona at a time.
    Thread(Arc<Thread>),
    /// An entry of a thread's log. It never changes.
    ThreadEntry(Arc<ThreadEntry>),
    /// A request for offers, with the offers.
    Negotiation(Arc<Negotiation>),
    /// A plan that runs.
    Plan(Arc<Plan>),
    /// A plan as its submitter has written it. It never changes.
    PlanSpec(Arc<plan::Spec>),
    /// An entry of a plan's log. It never changes.
    PlanEntry(Arc<PlanEntry>),
    /// The test machine that shows that the engine is general.
    #[cfg(debug_assertions)]
    Probe(Arc<Probe>),
}

/// The reads of a step. The broker reads the open transaction; replays and tests read a map.
pub trait Reader {
    /// The current entity, with all writes of this transaction. `None`: the entity does not exist.
    fn entity(&mut self, id: &EntityId) -> Result<Option<Entity>, ReadError>;

    /// Whether the agent has no room for a further offer. A full agent is not asked.
    fn is_full(&mut self, _agent: &AgentId) -> bool {
        false
    }

    /// Whether the agent's presence lease is over, or the agent has left. A gone agent is asked only if no present agent
    /// can be.
    fn is_gone(&mut self, agent: &AgentId) -> bool;

    /// The head of a workspace's entry. `None`: the workspace has no entry with this number, or the reader has no
    /// entries: a replay of a custody log needs none.
    fn entry(&mut self, workspace: &WorkspaceId, sequence: u64) -> Result<Option<Entry>, ReadError> {
        let _ = (workspace, sequence);
        Ok(None)
    }

    /// The parts of a task behind this place in their list, at most `most` of them, each with its place. A replay of a
    /// custody log has no lists.
    fn parts(&mut self, parent: &TaskId, after: u64, most: usize) -> Result<Vec<(u64, TaskId)>, ReadError> {
        let _ = (parent, after, most);
        Ok(Vec::new())
    }

    /// The request of a negotiation in this agent's mailbox. A replay of a custody log has no mailboxes.
    fn waiting_mail(&mut self, _negotiation: MessageId, _agent: &AgentId) -> Result<WaitingMail, ReadError> {
        Ok(WaitingMail::None)
    }

    /// The load of an agent in permille of its capacity, 0 if it is not known.
    fn load(&mut self, _agent: &AgentId) -> u32 {
        0
    }

    /// Whether the agent has this type.
    fn is_of_type(&mut self, _agent: &AgentId, _kind: &AgentType) -> bool {
        false
    }

    /// Whether the agent is registered and the policies let `from` hand it a task under these terms. Without terms no
    /// task moves, and the policies are not asked.
    fn may_hand_off(&mut self, _from: &AgentId, _to: &AgentId, _mandate: Option<&Mandate>) -> bool {
        true
    }

    /// The report in a status update, whose payload a machine does not know. `None`: the message is not there, or the
    /// reader has no messages: a replay of a custody log needs none.
    fn report(&mut self, message: MessageId) -> Result<Option<Report>, ReadError> {
        let _ = message;
        Ok(None)
    }
}

/// A reader failed to read a stored entity. The reader keeps the cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("failed to read the store")]
pub struct ReadError;

/// An input of a state machine.
#[derive(Debug, Clone, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "an input lives on the stack, for one step")]
pub enum Input {
    /// A request, a message or a redrive, about a handoff or its task.
    Handoff {
        /// The task that the input names.
        task: TaskId,
        /// The input for the handoff machine.
        input: handoff::Input,
    },
    /// A message appends an entry to a workspace.
    Append {
        /// The topic and the size of the entry.
        append: Append,
        /// The limits of the workspace.
        limits: workspace::Limits,
        /// Whether the coordinator appends a result, which it does in the commit that ends a plan too.
        is_result: bool,
    },
    /// A call about a graph or a run.
    Routing(routing::Input),
    /// A call about a spec or a thread.
    Thread(threads::Input),
    /// A message or a call about a negotiation.
    Negotiation(negotiation::Input),
    /// A call or a message about a plan.
    Plan(plan::Input),
    /// An agent acked a delivery that reports to this entity.
    Acked {
        /// The agent whose mailbox had the delivery.
        by: AgentId,
        /// The role of the delivery for the entity.
        role: Acked,
        /// The time for the decision from the agent's card. `None`: the handoff's own, or the ack is of no offer.
        decides_within: Option<Duration>,
    },
    /// A delivery that reports to this entity became a dead letter.
    Undeliverable {
        /// The agent that did not get the delivery.
        to: AgentId,
        /// The role of the delivery for the entity.
        role: Acked,
    },
    /// The agent with an open delivery that reports to this entity is gone, or the owner of this task.
    AgentGone,
    /// Time has passed. The machine handles overdue deadlines, and changes nothing else.
    Time,
    /// Another entity has sent an input ([`Effect::Send`]).
    Signal(Signal),
}

/// An input from one entity to another ([`Effect::Send`]), with one variant for each receiving machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Signal {
    /// An input for a run, from a handoff.
    Run(routing::RunSignal),
    /// Opens the handoff of an award. The handoff answers with [`negotiation::NegotiationSignal::NotOpened`] if it cannot be opened.
    Handoff(negotiation::Award),
    /// An input for a task, about its parts or its parent.
    Task(handoff::TaskSignal),
    /// An input for a negotiation.
    Negotiation(negotiation::NegotiationSignal),
    /// An input for a plan, from one of its tasks.
    Plan(plan::PlanSignal),
    /// An input for the test machine.
    #[cfg(debug_assertions)]
    Probe(probe::ProbeSignal),
}

impl Signal {
    /// Whether the input waits for the commit of the step that has sent it: the receiving step reads a list, which does
    /// not have the changes of an open batch.
    pub fn waits_for_commit(&self) -> bool {
        match self {
            Self::Task(signal) => matches!(signal, handoff::TaskSignal::CancelParts { .. }),
            Self::Run(_) | Self::Handoff(_) | Self::Negotiation(_) | Self::Plan(_) => false,
            #[cfg(debug_assertions)]
            Self::Probe(_) => false,
        }
    }
}

/// The result of a step: changed entities and effects. One commit applies all of it, or none.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Transition {
    /// The entities that the step has changed, each once.
    pub writes: Vec<Entity>,
    /// The effects, in the order of their execution.
    pub effects: Vec<Effect>,
}

impl Transition {
    /// Whether the step changes nothing: a repeat, or a timer before its deadline.
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty() && self.effects.is_empty()
    }
}

/// An effect, executed in the commit of its step.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Puts mail into an agent's mailbox.
    Deliver {
        /// The agent that owns the mailbox.
        to: AgentId,
        /// The message to deliver, or the broker's notice.
        mail: Mail,
        /// The priority of the mail.
        priority: Priority,
        /// The entity that learns of the ack or the failure, and the role of the delivery for it.
        report_to: Option<(EntityId, Acked)>,
    },
    /// Keeps the message that opened this entity as a dead letter.
    Park {
        /// The entity that the message opened.
        entity: EntityId,
        /// The last agent that was to take it.
        to: AgentId,
        /// The reason that the dead letter shows.
        reason: ParkReason,
        /// The reason, for a person to read.
        text: String,
        /// The attempts to have it taken, oldest first.
        attempts: Vec<(AgentId, Attempt)>,
    },
    /// Stores the message of the step as an entry of its workspace.
    KeepEntry(Entry),
    /// Removes expired entries of a workspace with their envelopes.
    RemoveEntries {
        /// The workspace whose entries expire.
        workspace: WorkspaceId,
        /// The number of the first entry to remove.
        first_sequence: u64,
        /// The number of the last one, at most 63 after the first.
        last_sequence: u64,
    },
    /// Removes an entity that nothing refers to. It has neither a deadline nor a place in a list.
    Remove(EntityId),
    /// Sends an input to another entity: in the same transaction, or in a later one if the transaction has sent too
    /// many.
    Send {
        /// The entity that gets the input.
        to: EntityId,
        /// The input, of the receiving entity's kind.
        signal: Signal,
    },
    /// The coordinator sends a message, which is composed, signed and applied in the same transaction.
    Order(Order),
    /// Removes from an agent's mailbox the message that opened this negotiation, or the latest offer or context of this
    /// handoff, if it waits there. It is no dead letter. If the agent never got it, further mail of the step to the agent
    /// is left out.
    Withdraw {
        /// The negotiation or the handoff.
        entity: EntityId,
        /// The agent that owns the mailbox.
        from: AgentId,
    },
    /// Removes a message from an agent's mailbox, if it waits there. It is no dead letter.
    WithdrawMessage {
        /// The message.
        message: MessageId,
        /// The agent that owns the mailbox.
        from: AgentId,
    },
    /// Removes deliveries that the agent has answered from its mailbox, unless a consumer holds them. They are no dead
    /// letters: an agent that works by calls alone fetches no mail.
    Settle {
        /// The agent that owns the mailbox.
        of: AgentId,
        /// The answered deliveries.
        answered: Answered,
    },
}

/// The deliveries of an [`Effect::Settle`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answered {
    /// The offer and the context of a handoff.
    Handoff(MessageId),
    /// The delivery of a message: a question, or a request for offers.
    Message(MessageId),
}

/// The mail of an [`Effect::Deliver`].
#[derive(Debug, Clone, PartialEq)]
pub enum Mail {
    /// The message in the step's input.
    ThisMessage,
    /// A further copy of the message that opened the entity.
    Opening {
        /// The entity that the message opened.
        entity: EntityId,
        /// Whether the message's own expiry still applies. It does not apply to a redriven message.
        expires: bool,
    },
    /// An `ErrorNotification` of the broker about an entity.
    Notice {
        /// The content of the notification.
        notice: Notice,
        /// The message that opened the entity.
        about: Option<MessageId>,
        /// The entity's task, and its epoch.
        task: Option<(TaskId, u64)>,
    },
    /// A `NegotiationClosed` of the broker.
    Closed(Closed),
    /// An `Info` of the broker about a node of a run.
    Node(NodeLetter),
}

/// The reasons why a step fails. A failed step changes nothing.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum StepError {
    /// A rule of the protocol forbids the step.
    #[error(transparent)]
    Rejected(#[from] Rejection),
    /// A rule of workspaces forbids the step.
    #[error(transparent)]
    Workspace(#[from] workspace::Rejection),
    /// A rule of graphs and runs forbids the step.
    #[error(transparent)]
    Routing(#[from] routing::Rejection),
    /// A rule of specs and threads forbids the step.
    #[error(transparent)]
    Thread(#[from] threads::Rejection),
    /// A rule of negotiations forbids the step.
    #[error(transparent)]
    Negotiation(#[from] negotiation::Rejection),
    /// A rule of plans forbids the step.
    #[error(transparent)]
    Plan(#[from] plan::Rejection),
    /// A stored entity cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
}

impl StepError {
    /// The refusal by a machine. Fails if a stored entity cannot be read.
    pub fn into_refusal(self) -> Result<Arc<dyn Refusal + Send + Sync>, ReadError> {
        Ok(match self {
            Self::Rejected(rejection) => Arc::new(rejection),
            Self::Workspace(rejection) => Arc::new(rejection),
            Self::Routing(rejection) => Arc::new(rejection),
            Self::Thread(rejection) => Arc::new(rejection),
            Self::Negotiation(rejection) => Arc::new(rejection),
            Self::Plan(rejection) => Arc::new(rejection),
            Self::Read(error) => return Err(error),
        })
    }
}

/// Applies one input to one entity. `now` is the time of the entity's log.
pub fn step(about: &EntityId, input: &Input, read: &mut dyn Reader, now: Timestamp) -> Result<Transition, StepError> {
    match about {
        EntityId::Task(_) | EntityId::Handoff(_) => handoff::step_entity(about, input, read, now),
        EntityId::Workspace(id) => workspace::step(id, input, read, now),
        EntityId::Graph(id) => routing::step_graph(id, input, read),
        EntityId::Run(id) => routing::step_run(*id, input, read, now),
        // They never change, and are written by the steps of their runs.
        EntityId::RunEntry(..) | EntityId::RunTurn(..) => Ok(Transition::default()),
        EntityId::Spec(kind, id) => threads::step_spec(*kind, id, input, read),
        EntityId::Thread(id) => threads::step_thread(id, input, read, now),
        // They never change, and are written by the steps of their specs and threads.
        EntityId::SpecRevision(..) | EntityId::ThreadEntry(..) => Ok(Transition::default()),
        EntityId::Negotiation(id) => negotiation::step_entity(*id, input, read, now),
        EntityId::Plan(id) => plan::step(id, input, read, now),
        // They never change, and are written by the steps of their plans.
        EntityId::PlanSpec(_) | EntityId::PlanEntry(..) => Ok(Transition::default()),
        #[cfg(debug_assertions)]
        EntityId::Probe(id) => probe::step(*id, input, read, now),
    }
}

impl Entity {
    /// The id of the entity.
    pub fn id(&self) -> EntityId {
        match self {
            Self::Task(task) => EntityId::Task(task.id.clone()),
            Self::Handoff(handoff) => EntityId::Handoff(handoff.id),
            Self::Workspace(workspace) => EntityId::Workspace(workspace.id.clone()),
            Self::Graph(graph) => EntityId::Graph(graph.id.clone()),
            Self::Run(run) => EntityId::Run(run.id),
            Self::RunEntry(entry) => EntityId::RunEntry(entry.run, entry.number),
            Self::RunTurn(turn) => EntityId::RunTurn(turn.run, turn.turn),
            Self::Spec(spec) => EntityId::Spec(spec.kind, spec.id.clone()),
            Self::SpecRevision(spec) => EntityId::SpecRevision(spec.kind, spec.id.clone(), spec.revision),
            Self::Thread(thread) => EntityId::Thread(thread.id.clone()),
            Self::ThreadEntry(entry) => EntityId::ThreadEntry(entry.thread.clone(), entry.number),
            Self::Negotiation(negotiation) => EntityId::Negotiation(negotiation.id),
            Self::Plan(plan) => EntityId::Plan(plan.id.clone()),
            Self::PlanSpec(spec) => EntityId::PlanSpec(spec.id.clone()),
            Self::PlanEntry(entry) => EntityId::PlanEntry(entry.plan.clone(), entry.number),
            #[cfg(debug_assertions)]
            Self::Probe(probe) => EntityId::Probe(probe.id),
        }
    }

    /// The task whose custody log records the entity's steps and gives them their time. `None`: no log does.
    pub fn task(&self) -> Option<&TaskId> {
        match self {
            Self::Task(task) => Some(&task.id),
            Self::Handoff(handoff) => Some(&handoff.task),
            // A workspace has a chain and a time of its own: a custody log would grow too long with all entries.
            Self::Workspace(_) => None,
            // A run has a log of its own, also a run over a task.
            Self::Graph(_) | Self::Run(_) | Self::RunEntry(_) | Self::RunTurn(_) => None,
            // A thread has a log of its own, also a thread of a task.
            Self::Spec(_) | Self::SpecRevision(_) | Self::Thread(_) | Self::ThreadEntry(_) => None,
            // Its steps change no task. What an award does to a task is a step of the handoff.
            Self::Negotiation(_) => None,
            // A plan has a log of its own, and its tasks have theirs.
            Self::Plan(_) | Self::PlanSpec(_) | Self::PlanEntry(_) => None,
            #[cfg(debug_assertions)]
            Self::Probe(_) => None,
        }
    }

    /// The time of the entity's next deadline. `None`: the entity has none.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        match self {
            Self::Task(task) => task.next_deadline(),
            Self::Handoff(handoff) => handoff.next_deadline(),
            Self::Workspace(workspace) => workspace.next_expiry,
            Self::Run(run) => run.next_deadline(),
            Self::Thread(thread) => thread.next_deadline(),
            Self::Graph(_)
            | Self::RunEntry(_)
            | Self::RunTurn(_)
            | Self::Spec(_)
            | Self::SpecRevision(_)
            | Self::ThreadEntry(_) => None,
            Self::Negotiation(negotiation) => negotiation.next_deadline(),
            Self::Plan(plan) => plan.next_deadline(),
            Self::PlanSpec(_) | Self::PlanEntry(_) => None,
            #[cfg(debug_assertions)]
            Self::Probe(probe) => probe.deadline,
        }
    }

    /// A log time that is not after any deadline of the entity. It does not change while the entity has a deadline.
    pub fn no_deadline_before(&self) -> Timestamp {
        match self {
            Self::Task(_) | Self::Workspace(_) => Timestamp::default(),
            Self::Plan(_) | Self::PlanSpec(_) | Self::PlanEntry(_) => Timestamp::default(),
            // A candidate may be asked again, and name a time, as soon as it likes.
            Self::Handoff(handoff) => handoff.created_at,
            Self::Run(run) => run.deadline,
            Self::Thread(thread) => thread.created_at.plus(LEASE),
            Self::Graph(_)
            | Self::RunEntry(_)
            | Self::RunTurn(_)
            | Self::Spec(_)
            | Self::SpecRevision(_)
            | Self::ThreadEntry(_) => Timestamp::default(),
            Self::Negotiation(negotiation) => negotiation.created_at,
            #[cfg(debug_assertions)]
            Self::Probe(_) => Timestamp::default(),
        }
    }

    /// Whether the entity is in a final state.
    pub fn has_ended(&self) -> bool {
        match self {
            Self::Task(task) => task.status.is_final(),
            Self::Handoff(handoff) => handoff.state.is_final(),
            // It ends with its owner, which has the end on record.
            Self::Workspace(_) => false,
            Self::Run(run) => run.state.is_final(),
            Self::Thread(thread) => thread.has_ended,
            Self::Graph(_)
            | Self::RunEntry(_)
            | Self::RunTurn(_)
            | Self::Spec(_)
            | Self::SpecRevision(_)
            | Self::ThreadEntry(_) => false,
            Self::Negotiation(negotiation) => negotiation.state.is_final(),
            Self::Plan(plan) => plan.state.is_final(),
            Self::PlanSpec(_) | Self::PlanEntry(_) => false,
            #[cfg(debug_assertions)]
            Self::Probe(_) => false,
        }
    }

    /// The agent whose limit of open entities includes this entity while it has a deadline.
    pub fn counts_for(&self) -> Option<&AgentId> {
        match self {
            Self::Task(_) | Self::Workspace(_) => None,
            Self::Handoff(handoff) => Some(&handoff.sender),
            Self::Graph(_) | Self::RunEntry(_) | Self::RunTurn(_) => None,
            Self::Run(run) => run.starter.as_ref(),
            Self::Spec(_) | Self::SpecRevision(_) | Self::ThreadEntry(_) => None,
            Self::Thread(thread) => thread.creator.as_ref(),
            Self::Negotiation(negotiation) => Some(&negotiation.requester),
            Self::Plan(plan) => Some(&plan.submitter),
            Self::PlanSpec(_) | Self::PlanEntry(_) => None,
            #[cfg(debug_assertions)]
            Self::Probe(_) => None,
        }
    }
}

impl fmt::Display for EntityId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Task(id) => write!(formatter, "task {id}"),
            Self::Handoff(id) => write!(formatter, "handoff {id}"),
            Self::Workspace(id) => write!(formatter, "workspace {id}"),
            Self::Graph(id) => write!(formatter, "graph {id}"),
            Self::Run(id) => write!(formatter, "run {id}"),
            Self::RunEntry(run, number) => write!(formatter, "entry {number} of run {run}"),
            Self::RunTurn(run, turn) => write!(formatter, "turn {turn} of run {run}"),
            Self::Spec(kind, id) => write!(formatter, "{} spec {id}", kind.name()),
            Self::SpecRevision(kind, id, revision) => {
                write!(formatter, "revision {revision} of {} spec {id}", kind.name())
            }
            Self::Thread(id) => write!(formatter, "thread {id}"),
            Self::ThreadEntry(thread, number) => write!(formatter, "entry {number} of thread {thread}"),
            Self::Negotiation(id) => write!(formatter, "negotiation {id}"),
            Self::Plan(id) => write!(formatter, "plan {id}"),
            Self::PlanSpec(id) => write!(formatter, "the subtasks of plan {id}"),
            Self::PlanEntry(plan, number) => write!(formatter, "entry {number} of plan {plan}"),
            #[cfg(debug_assertions)]
            Self::Probe(id) => write!(formatter, "probe {}", id.0),
        }
    }
}

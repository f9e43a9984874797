//! The state of a thread, its inputs, and its log. Plain data; the rules are in `machine`.

use std::{collections::BTreeSet, fmt, time::Duration};

use super::{Spec, Unresolved};
use crate::{
    ids::{AgentId, MessageId, SpecId, TaskId, ThreadId},
    time::Timestamp,
};

/// The time after a boundary, or after its repeat, during which the runner holds the thread.
pub const LEASE: Duration = Duration::from_secs(60);
/// The time after its last entry at which a thread without an open run ends.
pub const IDLE: Duration = Duration::from_secs(30 * 24 * 3600);
/// The number of the latest entries that the log keeps.
pub const LOG_KEPT: u64 = 1000;
/// The number of the latest actions whose ids a thread knows.
pub const ACTIONS_KNOWN: usize = 16;
/// The most participants that a creation names.
pub const PARTICIPANTS_MAX: usize = 64;

/// The id of a thread's run, a UUID that the runner chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ThreadRunId(pub MessageId);

/// The id of an action, a UUID: its idempotency key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ActionId(pub MessageId);

impl fmt::Display for ThreadRunId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

impl fmt::Display for ActionId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// A thread: one conversation with one persona at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Thread {
    /// The id, chosen by the creator.
    pub id: ThreadId,
    /// The spec in force while no other one is active.
    pub base: SpecId,
    /// The spec in force from the next boundary on. `None`: the base.
    pub active: Option<SpecId>,
    /// The request that waits for the next boundary.
    pub requested: Option<Request>,
    /// The revisions that the present step runs with.
    pub in_force: InForce,
    /// The agent that created the thread. `None`: an operator.
    pub creator: Option<AgentId>,
    /// The agents that take part. The participants of the thread's task join them.
    pub participants: BTreeSet<AgentId>,
    /// The task that the thread belongs to.
    pub task: Option<TaskId>,
    /// The open run, at most one.
    pub run: Option<OpenRun>,
    /// The run that ended last.
    pub last_run: Option<ThreadRunId>,
    /// The last boundary.
    pub boundary: Option<Boundary>,
    /// The latest actions with an id, oldest first, at most [`ACTIONS_KNOWN`].
    pub actions: Vec<KnownAction>,
    /// The number of entries that the log has had. It keeps the last [`LOG_KEPT`].
    pub log_length: u64,
    /// The time of the creation.
    pub created_at: Timestamp,
    /// The time of the last entry.
    pub updated_at: Timestamp,
    /// Whether the thread has ended, because it was idle for [`IDLE`].
    pub has_ended: bool,
}

/// The revisions of a persona and of its model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InForce {
    /// The spec of the agent.
    pub spec: SpecId,
    /// The revision of the spec, starting at 1.
    pub revision: u64,
    /// The spec of its model.
    pub model: SpecId,
    /// The revision of the model's spec.
    pub model_revision: u64,
}

/// A request for another persona, which waits for the next boundary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The number of the request's entry in the log.
    pub number: u64,
    /// The requested spec.
    pub spec: SpecId,
    /// The reason why the spec did not resolve at the time of the request.
    pub warning: Option<Unresolved>,
}

/// The open run of a thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenRun {
    /// The id, chosen by the runner.
    pub id: ThreadRunId,
    /// The agent that runs. `None`: an operator.
    pub runner: Option<AgentId>,
    /// The present step, starting at 1.
    pub step: u64,
    /// The time at which the run ends unless a boundary renews it.
    pub lease: Timestamp,
}

/// The begin of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Boundary {
    /// The run whose step begins.
    pub run: ThreadRunId,
    /// The step that begins, starting at 1.
    pub step: u64,
    /// The revisions in force.
    pub in_force: InForce,
    /// Whether other revisions than before are in force.
    pub switched: bool,
    /// The plugins of the spec before that the spec in force does not have.
    pub deactivate: Vec<String>,
    /// The plugins of the spec in force that the spec before does not have.
    pub activate: Vec<String>,
    /// The request that ended at the boundary.
    pub request: Option<EndedRequest>,
}

/// A request that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndedRequest {
    /// The number of the request's entry in the log.
    pub number: u64,
    /// The requested spec.
    pub spec: SpecId,
    /// How the request ended.
    pub end: RequestEnd,
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestEnd {
    /// A boundary has put the spec in force.
    Promoted,
    /// Another request, or an activation, has taken its place.
    Replaced,
    /// The thread returned to its base spec.
    Cleared,
    /// The spec did not resolve at the boundary.
    Failed(Unresolved),
}

/// An action on the persona of a thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Requests another persona for the next boundary.
    Request(SpecId),
    /// Makes a spec active at once; it is in force from the next boundary on.
    Activate(SpecId),
    /// Returns to the base spec.
    Clear,
}

/// An action that the thread has taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownAction {
    /// The idempotency key, chosen by the caller.
    pub id: ActionId,
    /// The action as first taken, to compare a repeat with.
    pub action: Action,
}

/// The creation of a thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Create {
    /// The spec in force while no other one is active.
    pub base: SpecId,
    /// The agent that creates the thread. `None`: an operator.
    pub by: Option<AgentId>,
    /// The task that the thread belongs to. An agent owns it at the creation.
    pub task: Option<TaskId>,
    /// Further participants, at most [`PARTICIPANTS_MAX`].
    pub participants: BTreeSet<AgentId>,
}

/// An input of a spec or a thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// Registers a spec, or a further revision of it.
    PutSpec {
        /// The spec, with revision 0.
        spec: Spec,
        /// The number of the last removed revision; 0: none. Numbers continue from it.
        removed: u64,
        /// The number of the last revision that no record has any more; 0: none.
        deleted: u64,
    },
    /// Creates a thread.
    Create(Create),
    /// Acts on the persona of a thread.
    Act {
        /// The id of the action. `None`: a repeat is not recognised.
        id: Option<ActionId>,
        /// The action to take.
        action: Action,
        /// The agent that acts. `None`: an operator.
        by: Option<AgentId>,
    },
    /// Opens a run, whose first step begins at a boundary.
    BeginRun {
        /// The id of the run.
        run: ThreadRunId,
        /// The agent that runs. `None`: an operator.
        runner: Option<AgentId>,
    },
    /// Ends a step of the run, at a boundary.
    EndStep {
        /// The id of the run.
        run: ThreadRunId,
        /// The agent that runs. `None`: an operator.
        runner: Option<AgentId>,
        /// The step that has ended.
        step: u64,
    },
    /// Ends the open run. The thread has no lease from then on.
    EndRun {
        /// The id of the run.
        run: ThreadRunId,
        /// The agent that runs. `None`: an operator.
        runner: Option<AgentId>,
    },
}

/// An entry of a thread's log. It never changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadEntry {
    /// The thread whose log has the entry.
    pub thread: ThreadId,
    /// The number, starting at 1 and dense.
    pub number: u64,
    /// The time of the entry.
    pub at: Timestamp,
    /// The event that the entry records.
    pub event: Event,
}

/// An event of a thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The thread was created.
    Created {
        /// The spec in force while no other one is active.
        base: SpecId,
        /// The agent that created the thread. `None`: an operator.
        by: Option<AgentId>,
    },
    /// Another persona was requested.
    Requested {
        /// The wanted spec.
        spec: SpecId,
        /// The agent that asked. `None`: an operator.
        by: Option<AgentId>,
        /// The reason why the spec does not resolve at present.
        warning: Option<Unresolved>,
    },
    /// A request ended. Each request ends exactly once.
    RequestEnded(EndedRequest),
    /// A spec was made active.
    Activated {
        /// The spec that becomes active.
        spec: SpecId,
        /// The agent that acted. `None`: an operator.
        by: Option<AgentId>,
    },
    /// The thread returned to its base spec.
    Cleared {
        /// The agent that acted. `None`: an operator.
        by: Option<AgentId>,
    },
    /// A runner opened a run.
    RunBegan {
        /// The id of the run.
        run: ThreadRunId,
        /// The agent that runs. `None`: an operator.
        runner: Option<AgentId>,
    },
    /// A step begins.
    Boundary(Boundary),
    /// The open run ended, by its runner or with its lease.
    RunEnded {
        /// The id of the run.
        run: ThreadRunId,
        /// Whether its lease was over.
        lease_over: bool,
    },
}

impl RequestEnd {
    /// The name in the schema.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Promoted => "PROMOTED",
            Self::Replaced => "REPLACED",
            Self::Cleared => "CLEARED",
            Self::Failed(_) => "FAILED",
        }
    }
}

impl Thread {
    /// The time at which the open run ends, or the idle thread. `None`: the thread has ended.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        if self.has_ended {
            return None;
        }
        Some(self.run.as_ref().map_or_else(|| self.updated_at.plus(IDLE), |run| run.lease))
    }

    /// The number of the first entry that the log keeps.
    pub fn first_number(&self) -> u64 {
        self.log_length.saturating_sub(LOG_KEPT) + 1
    }
}

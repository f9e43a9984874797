//! The state of a run, its inputs, its log, and the refusals of its machine. Plain data; the rules are in `machine`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
    time::Duration,
};

use super::graph::Graph;
use crate::{
    codes::{ErrorCode, Refusal},
    handoff::TaskStatus,
    ids::{AgentId, AgentType, GraphId, MessageId, NodeId, TaskId},
    numbered,
    time::Timestamp,
};

/// The most turns of one run, over all its nodes.
pub const TURNS_MAX: u32 = 10_000;
/// The most tool calls of one turn.
pub const CALLS_MAX: usize = 128;
/// The most bytes of the output of a node, and of its error.
pub const OUTPUT_BYTES_MAX: usize = 64 * 1024;
/// The refused turns of a node in a row that count as a turn without a choice: otherwise a model that answers each refusal
/// in the same way would be asked again until the run has no turns left.
pub const REFUSALS_MAX: u32 = 3;
/// The whole time of a run, where its start names none.
pub const WHOLE_TIMEOUT_DEFAULT: Duration = Duration::from_secs(3600);
/// The longest whole time of a run.
pub const WHOLE_TIMEOUT_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// The id of a run, a UUID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunId(pub MessageId);

/// The id of a turn, a UUID, and of the choice that the turn makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TurnId(pub MessageId);

impl fmt::Display for RunId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

impl fmt::Display for TurnId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// One run through a graph.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// The id, chosen by the caller that starts the run.
    pub id: RunId,
    /// The graph as it was at the start. A later revision does not change the run.
    pub graph: Arc<Graph>,
    /// The agent that started the run. `None`: an operator.
    pub starter: Option<AgentId>,
    /// The task that the run is over. `None`: the run is over none.
    pub task: Option<TaskId>,
    /// The agents that take part: the starter, the agents of the nodes, each agent that has reported a turn, and each owner
    /// of the task by the run.
    pub participants: BTreeSet<AgentId>,
    /// The state of the whole run.
    pub state: RunState,
    /// The reason of the failure, or of the cancellation.
    pub failure: Option<Failure>,
    /// The super-step, starting at 1.
    pub step: u32,
    /// The nodes that have been active, with their counters.
    pub nodes: BTreeMap<NodeId, NodeRun>,
    /// The targets of the present super-step, each with the numbers of the entries that lead to it.
    pub next: BTreeMap<NodeId, Vec<u64>>,
    /// The number of recorded turns, at most [`TURNS_MAX`].
    pub turns: u32,
    /// The number of entries in the run's log.
    pub log_length: u64,
    /// The time of the start.
    pub created_at: Timestamp,
    /// The time of the last entry.
    pub updated_at: Timestamp,
    /// The time at which a running run fails.
    pub deadline: Timestamp,
}

/// The state of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RunState {
    /// Some node is active, or waits for a handoff.
    Running,
    /// Final: nothing follows but the end.
    Completed,
    /// Final: the super-steps or the whole time are used up.
    Failed,
    /// Final: cancelled by a caller.
    Cancelled,
}

numbered! {
    RunState { Running = 1, Completed = 2, Failed = 3, Cancelled = 4, }
}

impl RunState {
    /// The states, the open one first.
    pub const ALL: [Self; 4] = [Self::Running, Self::Completed, Self::Failed, Self::Cancelled];

    /// Whether the state is final.
    pub const fn is_final(self) -> bool {
        match self {
            Self::Running => false,
            Self::Completed | Self::Failed | Self::Cancelled => true,
        }
    }

    /// The name in the schema.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Running => "RUNNING",
            Self::Completed => "COMPLETED",
            Self::Failed => "FAILED",
            Self::Cancelled => "CANCELLED",
        }
    }
}

/// The reason why a run ended before its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The stable code. `None`: the run was cancelled.
    pub code: Option<ErrorCode>,
    /// The reason, for a person to read.
    pub message: String,
}

/// A node within a run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeRun {
    /// The state in the present super-step.
    pub state: NodeState,
    /// The choices that were counted, at most the node's `handoffs`.
    pub choices: u32,
    /// The numbers of the entries whose outputs led to the node in the present super-step.
    pub inputs: Vec<u64>,
    /// The refused turns in a row, fewer than [`REFUSALS_MAX`].
    pub refusals: u32,
    /// Whether only the agent that the graph names reports the turns, in a run over a task. False once the handoff to that
    /// agent has failed, or the task has moved outside the run: the node is with the present owner then.
    pub for_agent: bool,
}

/// The state of a node within a run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum NodeState {
    /// The node takes no part in the present super-step.
    #[default]
    Idle,
    /// The node's model works.
    Active,
    /// The node's choice, or the node itself, waits for the handoff of the task to another agent.
    Moving(Choice),
    /// The node has finished the present super-step.
    Done,
}

impl NodeState {
    /// The name in the schema.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Idle => "IDLE",
            Self::Active => "ACTIVE",
            Self::Moving(_) => "MOVING",
            Self::Done => "DONE",
        }
    }
}

/// A handoff of the task to the agent of a node: a choice of that node, or the node to which a plain edge has led.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The turn that made the choice, or the id of the proposal.
    pub id: TurnId,
    /// The number of the turn's entry; for a plain edge the last one that led to the node, 0 at an entry of the graph.
    pub entry: u64,
    /// The node that the choice leads to; for a plain edge the node itself.
    pub target: NodeId,
    /// Whether the run has come to the node by a plain edge, at its start, or by the move of the task. False: a choice.
    pub is_edge: bool,
    /// The receiver of the handoff: an agent's id, or `type:NAME`.
    pub receiver: String,
    /// The handoff, once its request is stored.
    pub handoff: Option<MessageId>,
}

/// The reference of a handoff to the choice that it carries out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HandoffRef {
    /// The run that made the choice.
    pub run: RunId,
    /// The choice in the run.
    pub choice: TurnId,
}

/// An input of a graph or a run.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// Registers a graph, or a further revision of it. The graph has no problem that is an error.
    Register {
        /// The graph, with revision 0.
        graph: Graph,
        /// The number of the last removed revision; 0: none. Numbers continue from it.
        removed: u64,
    },
    /// Starts a run.
    Start(Start),
    /// Reports a turn of a node's model.
    Turn(Box<Turn>),
    /// Cancels a run.
    Cancel {
        /// The agent that cancels. `None`: an operator.
        by: Option<AgentId>,
        /// The reason in the caller's words.
        reason: String,
    },
}

/// The start of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Start {
    /// The graph, whose latest revision the run keeps.
    pub graph: GraphId,
    /// The agent that starts the run. `None`: an operator.
    pub by: Option<AgentId>,
    /// The task that the run is over.
    pub task: Option<TaskId>,
    /// The time after which the run fails, 1 s to [`WHOLE_TIMEOUT_MAX`].
    pub whole: Duration,
}

/// A turn of a node's model, whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Turn {
    /// The id, chosen by the runtime: the idempotency key.
    pub id: TurnId,
    /// The digest of the whole report, to recognise a repeat.
    pub digest: [u8; 32],
    /// The node whose model made the turn.
    pub node: NodeId,
    /// The agent that reports. `None`: an operator.
    pub by: Option<AgentId>,
    /// The types of that agent.
    pub by_types: Vec<AgentType>,
    /// The tool calls of the turn, at most [`CALLS_MAX`].
    pub calls: Vec<Call>,
    /// Whether the node's model has finished.
    pub finished: bool,
    /// The output of the node, at most [`OUTPUT_BYTES_MAX`].
    pub output: String,
    /// The error that ended the node's work, or an empty text.
    pub error: String,
}

/// A tool call of a turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The id that the model gave the call.
    pub id: String,
    /// The name of the tool.
    pub name: String,
    /// The reason in the arguments of a routing tool, or the problem of the arguments.
    pub reason: Result<String, String>,
}

/// An input to a run from a handoff.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunSignal {
    /// The request of a handoff for a choice is stored.
    HandoffBegan {
        /// The turn that made the choice.
        choice: TurnId,
        /// The handoff that carries out the choice.
        handoff: MessageId,
        /// The task of the handoff.
        task: TaskId,
        /// The receiver that the request names.
        receiver: String,
    },
    /// The handoff for a choice has ended.
    HandoffEnded {
        /// The turn that made the choice.
        choice: TurnId,
        /// The handoff that carries out the choice.
        handoff: MessageId,
        /// The new owner of the task. `None`: the handoff did not complete.
        owner: Option<AgentId>,
    },
    /// The request of a handoff for a choice was refused, and the same request would be refused again.
    HandoffRefused {
        /// The turn that made the choice.
        choice: TurnId,
        /// The task that the request names.
        task: TaskId,
        /// The refusal.
        code: ErrorCode,
    },
    /// The task of the run moved, and no choice of the run was the cause.
    TaskMoved {
        /// The new owner of the task.
        owner: AgentId,
    },
    /// The task of the run ended.
    TaskEnded {
        /// The final status.
        status: TaskStatus,
    },
}

/// An entry of a run's log. It never changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunEntry {
    /// The run whose log has the entry.
    pub run: RunId,
    /// The number in the log, starting at 1 and dense.
    pub number: u64,
    /// The time of the entry.
    pub at: Timestamp,
    /// The event that the entry records.
    pub event: Event,
}

/// An event of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The run began.
    Started {
        /// The agent that started the run. `None`: an operator.
        by: Option<AgentId>,
    },
    /// A super-step began.
    StepBegan {
        /// Its number.
        step: u32,
        /// The active nodes.
        nodes: Vec<NodeId>,
    },
    /// A turn was recorded.
    Turn(Box<TurnRecord>),
    /// The request of the handoff for a choice was stored.
    HandoffBegan {
        /// The node that the call or the event is about.
        node: NodeId,
        /// The turn that made the choice.
        choice: TurnId,
        /// The handoff that carries out the choice.
        handoff: MessageId,
    },
    /// The handoff for a choice ended. Without completion the choice has failed, and the node is active again.
    HandoffEnded {
        /// The node that the call or the event is about.
        node: NodeId,
        /// The turn that made the choice.
        choice: TurnId,
        /// The handoff that carries out the choice.
        handoff: MessageId,
        /// The new owner of the task. `None`: the handoff did not complete.
        owner: Option<AgentId>,
    },
    /// The run ended.
    Ended {
        /// The final state.
        state: RunState,
        /// The reason, unless the run completed.
        failure: Option<Failure>,
    },
    /// The run has come to a node of another agent, and proposes a handoff of the task.
    HandoffProposed(Proposal),
    /// A choice was given up before a handoff carried it out. Its node is active again.
    ChoiceGivenUp {
        /// The node that made the choice.
        node: NodeId,
        /// The turn that made the choice.
        choice: TurnId,
        /// The refusal of the request that was to carry it out. `None`: the task has moved otherwise.
        code: Option<ErrorCode>,
    },
    /// The task moved, and no choice of the run was the cause.
    TaskMoved {
        /// The new owner of the task.
        owner: AgentId,
    },
}

/// A recorded turn with its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TurnRecord {
    /// The id of the turn.
    pub id: TurnId,
    /// The node whose model made the turn.
    pub node: NodeId,
    /// The agent that reported the turn. `None`: an operator.
    pub by: Option<AgentId>,
    /// The id and the name of each tool call.
    pub calls: Vec<(String, String)>,
    /// Whether the report said that the node's model has finished.
    pub finished: bool,
    /// The reported output.
    pub output: String,
    /// The reported error.
    pub error: String,
    /// What the turn did.
    pub outcome: TurnOutcome,
    /// One result for each tool call, in the order of the calls.
    pub results: Vec<CallResult>,
    /// The choices that the node has left after the turn.
    pub remaining: u32,
    /// The nodes that are active after the turn.
    pub active: Vec<NodeId>,
    /// The next handoff that the run needs, if no node is active after the turn.
    pub proposal: Option<Proposal>,
}

/// A handoff that the run proposes because another agent works at the node that it has come to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proposal {
    /// The node.
    pub node: NodeId,
    /// The id that the request of the handoff names.
    pub choice: TurnId,
    /// The receiver of the handoff: an agent's id, or `type:NAME`.
    pub receiver: String,
}

/// The content of the letter to the agent whose node is active, or whose task the run asks to hand over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeLetter {
    /// The run.
    pub run: RunId,
    /// The graph of the run.
    pub graph: GraphId,
    /// The task that the run is over.
    pub task: Option<TaskId>,
    /// The super-step.
    pub step: u32,
    /// The node.
    pub node: NodeId,
    /// The numbers of the entries whose outputs led to the node.
    pub inputs: Vec<u64>,
    /// The handoff that the node needs. `None`: the node is active.
    pub proposal: Option<Proposal>,
}

/// What a turn did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TurnOutcome {
    /// The turn is on record. The node stays active.
    Recorded,
    /// The model chose the target, and the node is done. The choice is counted.
    Chosen {
        /// The node that the choice leads to, or the end.
        target: NodeId,
        /// The reason in the model's words.
        reason: String,
    },
    /// The model chose a node of another agent, and the node waits for the handoff. The choice is counted.
    Proposed {
        /// The node that the choice leads to.
        target: NodeId,
        /// The reason in the model's words.
        reason: String,
        /// The receiver of the handoff: an agent's id, or `type:NAME`.
        receiver: String,
    },
    /// The node finished without a choice.
    Finished,
    /// The proposal of the node was withdrawn, and the node is active again.
    Withdrawn,
    /// The routing calls were refused, nothing is counted, and the node stays active.
    Refused {
        /// The code of the refusal.
        code: ErrorCode,
    },
}

/// The result of a tool call, for the model's history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallResult {
    /// The id of the call.
    pub call: String,
    /// Whether the call failed.
    pub is_error: bool,
    /// The text for the model.
    pub text: String,
}

/// The place of a turn in the log of its run. It never changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunTurn {
    /// The run of the turn.
    pub run: RunId,
    /// The id of the turn, chosen by the runtime.
    pub turn: TurnId,
    /// The number of the turn's entry.
    pub number: u64,
    /// The digest of the report.
    pub digest: [u8; 32],
}

/// A refusal of the machine. Nothing changes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// The graph is not registered.
    #[error("graph {graph} does not exist")]
    GraphUnknown {
        /// The id of the graph.
        graph: GraphId,
    },
    /// The run does not exist.
    #[error("the run does not exist")]
    RunUnknown,
    /// Another run has this id.
    #[error("a run with this id exists already, of another graph, task or caller")]
    RunExists,
    /// The run has ended.
    #[error("the run has ended in state {}, which is final", state.name())]
    RunFinal {
        /// The final state.
        state: RunState,
    },
    /// The task does not exist.
    #[error("task {task} does not exist")]
    TaskUnknown {
        /// The id of the task.
        task: TaskId,
    },
    /// The task has ended.
    #[error("task {task} has ended")]
    TaskFinal {
        /// The id of the task.
        task: TaskId,
        /// The final status.
        status: TaskStatus,
    },
    /// The caller is not the owner of the run's task.
    #[error("only the owner of task {task} does this in a run over it")]
    NotOwner {
        /// The id of the task.
        task: TaskId,
    },
    /// The caller did not start the run, which is over no task.
    #[error("only the agent that started the run cancels it")]
    NotStarter,
    /// The node belongs to another agent.
    #[error("the turns of node {node} are reported by {by}")]
    NodeOfAnother {
        /// The node that the call or the event is about.
        node: NodeId,
        /// The agent, or the type of the agents.
        by: String,
    },
    /// The node is not active.
    #[error("node {node} is {state}; active: {}", active.join(", "))]
    NodeNotActive {
        /// The node that the call names.
        node: String,
        /// The name of its state, or "unknown".
        state: &'static str,
        /// The active nodes.
        active: Vec<String>,
    },
    /// Another turn has this id.
    #[error("turn {turn} was reported with other content")]
    TurnIdReused {
        /// The id that both turns have.
        turn: TurnId,
    },
    /// The run has [`TURNS_MAX`] turns.
    #[error("the run has {TURNS_MAX} turns, and takes no more")]
    TooManyTurns,
    /// The handoff does not carry out the choice.
    #[error("the handoff does not carry out choice {choice}: {problem}")]
    ChoiceMismatch {
        /// The choice that the handoff names.
        choice: TurnId,
        /// The difference.
        problem: &'static str,
    },
}

impl Refusal for Rejection {
    fn code(&self) -> ErrorCode {
        match self {
            Self::GraphUnknown { .. } => ErrorCode::GraphUnknown,
            Self::RunUnknown => ErrorCode::RunUnknown,
            Self::RunExists => ErrorCode::RunExists,
            Self::TurnIdReused { .. } => ErrorCode::MessageIdReused,
            Self::RunFinal { .. } => ErrorCode::RunFinal,
            Self::TaskUnknown { .. } => ErrorCode::TaskUnknown,
            Self::TaskFinal { .. } => ErrorCode::TaskFinal,
            Self::NotOwner { .. } | Self::NotStarter | Self::NodeOfAnother { .. } => ErrorCode::NotOwner,
            Self::NodeNotActive { .. } | Self::ChoiceMismatch { .. } => ErrorCode::NodeNotActive,
            Self::TooManyTurns => ErrorCode::LimitExceeded,
        }
    }

    fn metadata(&self) -> Vec<(&'static str, String)> {
        match self {
            Self::RunFinal { state } => vec![("state", state.name().to_owned())],
            Self::NodeNotActive { state, active, .. } => {
                vec![("state", (*state).to_owned()), ("active_node_ids", active.join(", "))]
            }
            Self::TaskFinal { status, .. } => vec![("status", format!("{status:?}"))],
            Self::ChoiceMismatch { choice, .. } => vec![("choice_id", choice.to_string())],
            Self::GraphUnknown { .. }
            | Self::RunUnknown
            | Self::RunExists
            | Self::TaskUnknown { .. }
            | Self::NotOwner { .. }
            | Self::NotStarter
            | Self::NodeOfAnother { .. }
            | Self::TurnIdReused { .. }
            | Self::TooManyTurns => Vec::new(),
        }
    }
}

impl Run {
    /// The active nodes, in the order of their ids.
    pub fn active(&self) -> Vec<NodeId> {
        let active = self.nodes.iter().filter(|(_, node)| node.state == NodeState::Active);
        active.map(|(id, _)| id.clone()).collect()
    }

    /// The choices that a node has left. 0 for a plain node.
    pub fn remaining(&self, node: &NodeId) -> u32 {
        // A node that no super-step has reached yet has no record.
        let choices = self.nodes.get(node).map_or(0, |node| node.choices);
        self.graph.node(node).and_then(|node| node.handoffs).unwrap_or(0).saturating_sub(choices)
    }

    /// The time at which the run fails. `None`: the run has ended.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        (!self.state.is_final()).then_some(self.deadline)
    }

    /// The node whose choice has this id and waits for its handoff.
    pub fn moving(&self, choice: TurnId) -> Option<(&NodeId, &Choice)> {
        self.nodes.iter().find_map(|(id, node)| match &node.state {
            NodeState::Moving(moving) if moving.id == choice => Some((id, moving)),
            NodeState::Idle | NodeState::Active | NodeState::Moving(_) | NodeState::Done => None,
        })
    }

    /// The first node that waits for the request of its handoff, and the handoff.
    pub fn proposed(&self) -> Option<(&NodeId, &Choice)> {
        self.nodes.iter().find_map(|(id, node)| match &node.state {
            NodeState::Moving(choice) if choice.handoff.is_none() => Some((id, choice)),
            NodeState::Idle | NodeState::Active | NodeState::Moving(_) | NodeState::Done => None,
        })
    }
}

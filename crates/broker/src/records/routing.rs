//! Graphs (table graphs), runs (table runs), their logs (table run_log) and the places of their turns (table run_turns).

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use prost::Message as _;

use super::{DecodeError, GraphRevision, List, LogClock, Reader, by_name, id_bytes, moment, number_of};
use crate::{
    codes::ErrorCode,
    domain::routing::{
        CallResult, Choice, Event, Failure, Graph, Node, NodeRun, NodeState, Proposal, Run, RunEntry, RunId, RunState,
        RunTurn, TurnId, TurnOutcome, TurnRecord,
    },
    ids::{AgentId, AgentType, GraphId, MessageId, NodeId},
    proto::{
        storage,
        v1::{self, run_entry::Event as Stored},
    },
    store::{Key, KeyRange, Table},
    time::Timestamp,
};

/// A graph as stored: its latest revision.
#[derive(Debug, Clone, PartialEq)]
pub struct GraphRecord {
    /// The latest revision of the graph.
    pub graph: Arc<Graph>,
    /// The sequence of the first registration, its place in lists.
    pub sequence: u64,
}

impl GraphRecord {
    /// The key of the record.
    pub fn key(id: &GraphId) -> Key {
        by_name(Table::Graphs, id.as_str())
    }

    /// Encodes the record.
    pub fn encode(&self) -> Bytes {
        let graph = graph_to_v1(&self.graph).encode_to_vec().into();
        storage::GraphRecord { graph, sequence: self.sequence }.encode_to_vec().into()
    }

    /// Decodes the record.
    pub fn decode(value: &Bytes) -> Result<Self, DecodeError> {
        let reader = Reader("graphs");
        let stored: storage::GraphRecord = reader.message(value)?;
        Ok(Self { graph: Arc::new(graph_from_v1(&reader, &stored.graph)?), sequence: stored.sequence })
    }

    /// The place of the graph in the list of all, and its entry there.
    pub fn listing(&self) -> (Key, Bytes) {
        (List::of_graphs().place(self.sequence), Bytes::copy_from_slice(self.graph.id.as_str().as_bytes()))
    }
}

/// A run as stored.
#[derive(Debug, Clone, PartialEq)]
pub struct RunRecord {
    /// The state of the run's machine. A decoded record has an empty graph, until [`Self::with_graph`] sets it.
    pub run: Arc<Run>,
    /// The revision of the graph that the run follows.
    pub graph: GraphRevision,
    /// The sequence of the start, its place in lists.
    pub sequence: u64,
    /// The pace of the run's log.
    pub log_clock: LogClock,
}

impl RunRecord {
    /// The key of the record.
    pub fn key(id: RunId) -> Key {
        Key { table: Table::Runs, key: id.0.as_bytes().into() }
    }

    /// The run of a value of table listings.
    pub fn listed(value: &[u8]) -> Result<RunId, DecodeError> {
        Ok(RunId(Reader("listings").message_id(value)?))
    }

    /// The places of the run in the lists of all runs and of its participants.
    pub fn listings(&self) -> Vec<Key> {
        let agents = self.run.participants.iter().map(Some).chain([None]);
        agents.map(|agent| List::of_runs(agent).place(self.sequence)).collect()
    }

    pub(super) fn new_entries(&self, before: Option<&Self>) -> Vec<(Key, Bytes)> {
        if before.is_some_and(|before| before.run.participants.len() == self.run.participants.len()) {
            return Vec::new();
        }
        let known: BTreeSet<Key> = before.map(Self::listings).unwrap_or_default().into_iter().collect();
        let new = self.listings().into_iter().filter(|key| !known.contains(key));
        new.map(|key| (key, id_bytes(self.run.id.0))).collect()
    }

    /// Encodes the record.
    pub fn encode(&self) -> Bytes {
        let run = &self.run;
        let node = |(id, node): (&NodeId, &NodeRun)| {
            let choice = match &node.state {
                NodeState::Moving(choice) => Some(choice),
                NodeState::Idle | NodeState::Active | NodeState::Done => None,
            };
            storage::NodeRunRecord {
                node_id: id.to_string(),
                state: node_state(&node.state).into(),
                choices: node.choices,
                inputs: node.inputs.clone(),
                choice_id: choice.map(|choice| id_bytes(choice.id.0)).unwrap_or_default(),
                choice_entry: choice.map_or(0, |choice| choice.entry),
                target_id: choice.map(|choice| choice.target.to_string()).unwrap_or_default(),
                receiver: choice.map(|choice| choice.receiver.clone()).unwrap_or_default(),
                handoff_id: choice.and_then(|choice| choice.handoff).map(id_bytes).unwrap_or_default(),
                refusals: node.refusals,
                is_edge: choice.is_some_and(|choice| choice.is_edge),
                for_agent: node.for_agent,
            }
        };
        let target = |(id, inputs): (&NodeId, &Vec<u64>)| storage::TargetRecord {
            node_id: id.to_string(),
            inputs: inputs.clone(),
        };
        storage::RunRecord {
            run_id: id_bytes(run.id.0),
            graph_id: run.graph.id.to_string(),
            graph_sequence: self.graph.graph,
            graph_revision: self.graph.revision,
            starter_id: text(run.starter.as_ref()),
            task_id: text(run.task.as_ref()),
            participant_ids: run.participants.iter().map(ToString::to_string).collect(),
            state: run.state.number(),
            failure_code: failure_code(run.failure.as_ref()),
            failure_message: run.failure.as_ref().map(|failure| failure.message.clone()).unwrap_or_default(),
            step: run.step,
            nodes: run.nodes.iter().map(node).collect(),
            next: run.next.iter().map(target).collect(),
            turns: run.turns,
            log_length: run.log_length,
            created_at: run.created_at.unix_nanoseconds(),
            updated_at: run.updated_at.unix_nanoseconds(),
            deadline: run.deadline.unix_nanoseconds(),
            sequence: self.sequence,
            logged_at: self.log_clock.logged_at.unix_nanoseconds(),
            set_back: u64::try_from(self.log_clock.set_back.as_nanos()).unwrap_or(u64::MAX),
        }
        .encode_to_vec()
        .into()
    }

    /// The record with its graph.
    pub fn with_graph(self, graph: Arc<Graph>) -> Self {
        let mut run = Arc::unwrap_or_clone(self.run);
        run.graph = graph;
        Self { run: Arc::new(run), ..self }
    }

    /// Decodes the record, without its graph.
    pub fn decode(value: &Bytes) -> Result<Self, DecodeError> {
        let reader = Reader("runs");
        let stored: storage::RunRecord = reader.message(value)?;
        let id = GraphId::parse(&stored.graph_id).map_err(|error| reader.error(format!("graph_id {error}")))?;
        let graph = GraphRevision { graph: stored.graph_sequence, revision: stored.graph_revision };
        let state = reader.some(RunState::from_number(stored.state), "state")?;
        let run = Run {
            id: RunId(reader.message_id(&stored.run_id)?),
            graph: Arc::new(Graph::without_nodes(id, stored.graph_revision)),
            starter: optional(&stored.starter_id, |id| reader.agent(id))?,
            task: optional(&stored.task_id, |id| reader.task(id))?,
            participants: reader.agents(&stored.participant_ids)?.into_iter().collect(),
            state,
            failure: failure_of(&reader, state, stored.failure_code, stored.failure_message)?,
            step: stored.step,
            nodes: stored.nodes.into_iter().map(|node| node_run(&reader, node)).collect::<Result<_, _>>()?,
            next: stored
                .next
                .into_iter()
                .map(|target| Ok((node_id(&reader, &target.node_id)?, target.inputs)))
                .collect::<Result<BTreeMap<_, _>, DecodeError>>()?,
            turns: stored.turns,
            log_length: stored.log_length,
            created_at: moment(stored.created_at),
            updated_at: moment(stored.updated_at),
            deadline: moment(stored.deadline),
        };
        let log_clock =
            LogClock { logged_at: moment(stored.logged_at), set_back: Duration::from_nanos(stored.set_back) };
        Ok(Self { run: Arc::new(run), graph, sequence: stored.sequence, log_clock })
    }
}

fn node_run(reader: &Reader, stored: storage::NodeRunRecord) -> Result<(NodeId, NodeRun), DecodeError> {
    let state = match v1::NodeState::try_from(stored.state) {
        Ok(v1::NodeState::Idle) => NodeState::Idle,
        Ok(v1::NodeState::Active) => NodeState::Active,
        Ok(v1::NodeState::Done) => NodeState::Done,
        Ok(v1::NodeState::Moving) => NodeState::Moving(Choice {
            id: TurnId(reader.message_id(&stored.choice_id)?),
            entry: stored.choice_entry,
            target: node_id(reader, &stored.target_id)?,
            is_edge: stored.is_edge,
            receiver: stored.receiver,
            handoff: reader.optional_message_id(&stored.handoff_id)?,
        }),
        Ok(v1::NodeState::Unspecified) | Err(_) => return Err(reader.error("the state of a node is not known")),
    };
    let storage::NodeRunRecord { choices, inputs, refusals, for_agent, .. } = stored;
    Ok((node_id(reader, &stored.node_id)?, NodeRun { state, choices, inputs, refusals, for_agent }))
}

/// The number of a node's state in the schema.
pub fn node_state(state: &NodeState) -> v1::NodeState {
    match state {
        NodeState::Idle => v1::NodeState::Idle,
        NodeState::Active => v1::NodeState::Active,
        NodeState::Moving(_) => v1::NodeState::Moving,
        NodeState::Done => v1::NodeState::Done,
    }
}

/// An entry of a run's log as stored: a `baton.v1.RunEntry`.
#[derive(Debug, Clone, PartialEq)]
pub struct RunEntryRecord(pub Arc<RunEntry>);

impl RunEntryRecord {
    /// The key of the record.
    pub fn key(run: RunId, number: u64) -> Key {
        Key { table: Table::RunLog, key: [&run.0.as_bytes()[..], &number.to_be_bytes()].into() }
    }

    /// The range of the entries of a run after this number.
    pub fn range_after(run: RunId, number: u64) -> KeyRange {
        (Bound::Excluded(Self::key(run, number).key), Bound::Included(Self::key(run, u64::MAX).key))
    }

    /// The number in a key.
    pub fn number(key: &[u8]) -> Result<u64, DecodeError> {
        number_of(&Reader("run_log"), key)
    }

    /// The message of a value.
    pub fn message(value: &Bytes) -> Result<v1::RunEntry, DecodeError> {
        Reader("run_log").message(value)
    }

    /// Encodes the record.
    pub fn encode(&self) -> Bytes {
        entry_to_v1(&self.0).encode_to_vec().into()
    }

    /// Decodes the record of this run.
    pub fn decode(run: RunId, value: &Bytes) -> Result<Self, DecodeError> {
        let reader = Reader("run_log");
        Ok(Self(Arc::new(entry_from_v1(&reader, run, reader.message(value)?)?)))
    }
}

/// The place of a turn as stored.
#[derive(Debug, Clone, PartialEq)]
pub struct RunTurnRecord(pub Arc<RunTurn>);

impl RunTurnRecord {
    /// The key of the record.
    pub fn key(run: RunId, turn: TurnId) -> Key {
        Key { table: Table::RunTurns, key: [&run.0.as_bytes()[..], &turn.0.as_bytes()[..]].into() }
    }

    /// Encodes the record.
    pub fn encode(&self) -> Bytes {
        let RunTurn { number, digest, .. } = &*self.0;
        storage::RunTurnRecord { number: *number, digest: digest.to_vec().into() }.encode_to_vec().into()
    }

    /// Decodes the record of this turn.
    pub fn decode(run: RunId, turn: TurnId, value: &Bytes) -> Result<Self, DecodeError> {
        let reader = Reader("run_turns");
        let stored: storage::RunTurnRecord = reader.message(value)?;
        let digest = reader.digest(&stored.digest)?;
        Ok(Self(Arc::new(RunTurn { run, turn, number: stored.number, digest })))
    }
}

// ----------------------------------------------------------------------------------------------------------- messages

fn text<T: ToString>(value: Option<&T>) -> String {
    value.map(ToString::to_string).unwrap_or_default()
}

fn optional<T>(text: &str, parse: impl FnOnce(&str) -> Result<T, DecodeError>) -> Result<Option<T>, DecodeError> {
    if text.is_empty() { Ok(None) } else { parse(text).map(Some) }
}

fn node_id(reader: &Reader, text: &str) -> Result<NodeId, DecodeError> {
    NodeId::parse(text).map_err(|error| reader.error(format!("node id {text:?} {error}")))
}

fn failure_code(failure: Option<&Failure>) -> i32 {
    failure.and_then(|failure| failure.code).map_or(0, ErrorCode::number)
}

fn failure_of(reader: &Reader, state: RunState, code: i32, message: String) -> Result<Option<Failure>, DecodeError> {
    let code = match code {
        0 => None,
        number => Some(reader.some(ErrorCode::from_number(number), "failure_code")?),
    };
    Ok(match state {
        RunState::Running | RunState::Completed => None,
        RunState::Failed | RunState::Cancelled => Some(Failure { code, message }),
    })
}

/// The message of a graph.
pub fn graph_to_v1(graph: &Graph) -> v1::Graph {
    let node = |node: &Node| v1::Node {
        node_id: node.id.to_string(),
        description: node.description.clone(),
        agent_id: text(node.agent.as_ref()),
        agent_type: text(node.agent_type.as_ref()),
        handoffs: node.handoffs,
        output_nodes: node.outputs.iter().map(ToString::to_string).collect(),
    };
    v1::Graph {
        graph_id: graph.id.to_string(),
        description: graph.description.clone(),
        nodes: graph.nodes.iter().map(node).collect(),
        entry_node_ids: graph.entries.iter().map(ToString::to_string).collect(),
        steps_max: graph.steps_max,
        revision: graph.revision,
    }
}

pub(super) fn graph_from_v1(reader: &Reader, bytes: &Bytes) -> Result<Graph, DecodeError> {
    let stored: v1::Graph = reader.message(bytes)?;
    let nodes = |texts: &[String]| texts.iter().map(|text| node_id(reader, text)).collect::<Result<Vec<_>, _>>();
    let node = |node: &v1::Node| {
        let kind = |text: &str| AgentType::parse(text).map_err(|error| reader.error(format!("type {text:?} {error}")));
        Ok(Node {
            id: node_id(reader, &node.node_id)?,
            description: node.description.clone(),
            agent: optional(&node.agent_id, |id| reader.agent(id))?,
            agent_type: optional(&node.agent_type, kind)?,
            handoffs: node.handoffs,
            outputs: nodes(&node.output_nodes)?,
        })
    };
    Ok(Graph {
        id: GraphId::parse(&stored.graph_id).map_err(|error| reader.error(format!("graph_id {error}")))?,
        description: stored.description.clone(),
        nodes: stored.nodes.iter().map(node).collect::<Result<_, DecodeError>>()?,
        entries: nodes(&stored.entry_node_ids)?,
        steps_max: stored.steps_max,
        revision: stored.revision,
    })
}

/// The message of a choice that a turn made. `None`: the turn made none.
pub fn choice_to_v1(record: &TurnRecord) -> Option<v1::RoutingChoice> {
    let (target, reason, receiver) = match &record.outcome {
        TurnOutcome::Chosen { target, reason } => (target, reason, String::new()),
        TurnOutcome::Proposed { target, reason, receiver } => (target, reason, receiver.clone()),
        TurnOutcome::Recorded | TurnOutcome::Finished | TurnOutcome::Withdrawn | TurnOutcome::Refused { .. } => {
            return None;
        }
    };
    Some(v1::RoutingChoice {
        choice_id: record.id.to_string(),
        node_id: record.node.to_string(),
        target_node_id: target.to_string(),
        reason: reason.clone(),
        handoff_receiver_id: receiver,
    })
}

fn turn_to_v1(record: &TurnRecord) -> v1::RunTurn {
    let (outcome, code) = match &record.outcome {
        TurnOutcome::Recorded => (v1::TurnOutcome::Recorded, 0),
        TurnOutcome::Chosen { .. } => (v1::TurnOutcome::Chosen, 0),
        TurnOutcome::Proposed { .. } => (v1::TurnOutcome::Proposed, 0),
        TurnOutcome::Finished => (v1::TurnOutcome::Finished, 0),
        TurnOutcome::Withdrawn => (v1::TurnOutcome::Withdrawn, 0),
        TurnOutcome::Refused { code } => (v1::TurnOutcome::Refused, code.number()),
    };
    let call = |(call_id, name): &(String, String)| v1::ToolCall {
        call_id: call_id.clone(),
        name: name.clone(),
        arguments_json: String::new(),
    };
    let result = |result: &CallResult| v1::ToolResult {
        call_id: result.call.clone(),
        is_error: result.is_error,
        text: result.text.clone(),
    };
    v1::RunTurn {
        turn_id: record.id.to_string(),
        node_id: record.node.to_string(),
        reporter_id: text(record.by.as_ref()),
        calls: record.calls.iter().map(call).collect(),
        finished: record.finished,
        output: record.output.clone(),
        error: record.error.clone(),
        outcome: outcome.into(),
        choice: choice_to_v1(record),
        error_code: code,
        results: record.results.iter().map(result).collect(),
        remaining: record.remaining,
        active_node_ids: record.active.iter().map(ToString::to_string).collect(),
        proposal: record.proposal.as_ref().map(proposal_to_v1),
    }
}

fn proposal_to_v1(proposal: &Proposal) -> v1::RunProposal {
    v1::RunProposal {
        node_id: proposal.node.to_string(),
        choice_id: proposal.choice.to_string(),
        handoff_receiver_id: proposal.receiver.clone(),
    }
}

fn proposal_from_v1(reader: &Reader, stored: v1::RunProposal) -> Result<Proposal, DecodeError> {
    let choice = TurnId(uuid(reader, &stored.choice_id)?);
    Ok(Proposal { node: node_id(reader, &stored.node_id)?, choice, receiver: stored.handoff_receiver_id })
}

fn turn_from_v1(reader: &Reader, turn: v1::RunTurn) -> Result<TurnRecord, DecodeError> {
    let kind = turn.outcome();
    let choice = turn.choice.unwrap_or_default();
    let target = || node_id(reader, &choice.target_node_id);
    let reason = choice.reason.clone();
    let outcome = match kind {
        v1::TurnOutcome::Recorded => TurnOutcome::Recorded,
        v1::TurnOutcome::Chosen => TurnOutcome::Chosen { target: target()?, reason },
        v1::TurnOutcome::Proposed => {
            let receiver = choice.handoff_receiver_id.clone();
            TurnOutcome::Proposed { target: target()?, reason, receiver }
        }
        v1::TurnOutcome::Finished => TurnOutcome::Finished,
        v1::TurnOutcome::Withdrawn => TurnOutcome::Withdrawn,
        v1::TurnOutcome::Refused => {
            TurnOutcome::Refused { code: reader.some(ErrorCode::from_number(turn.error_code), "error_code")? }
        }
        v1::TurnOutcome::Unspecified => return Err(reader.error("the outcome of a turn is not known")),
    };
    let result =
        |result: v1::ToolResult| CallResult { call: result.call_id, is_error: result.is_error, text: result.text };
    Ok(TurnRecord {
        id: TurnId(uuid(reader, &turn.turn_id)?),
        node: node_id(reader, &turn.node_id)?,
        by: optional(&turn.reporter_id, |id| reader.agent(id))?,
        calls: turn.calls.into_iter().map(|call| (call.call_id, call.name)).collect(),
        finished: turn.finished,
        output: turn.output,
        error: turn.error,
        outcome,
        results: turn.results.into_iter().map(result).collect(),
        remaining: turn.remaining,
        active: turn.active_node_ids.iter().map(|id| node_id(reader, id)).collect::<Result<_, _>>()?,
        proposal: turn.proposal.map(|proposal| proposal_from_v1(reader, proposal)).transpose()?,
    })
}

fn uuid(reader: &Reader, text: &str) -> Result<MessageId, DecodeError> {
    MessageId::parse(text).map_err(|error| reader.error(format!("id {text:?} {error}")))
}

fn entry_to_v1(entry: &RunEntry) -> v1::RunEntry {
    let handoff = |node: &NodeId, choice: &TurnId, handoff: &MessageId, owner: Option<&AgentId>| v1::RunHandoff {
        node_id: node.to_string(),
        choice_id: choice.to_string(),
        handoff_id: handoff.to_string(),
        owner_id: text(owner),
    };
    let event = match &entry.event {
        Event::Started { by } => Stored::Started(v1::RunStarted { starter_id: text(by.as_ref()) }),
        Event::StepBegan { step, nodes } => Stored::StepBegan(v1::RunStepBegan {
            step: *step,
            node_ids: nodes.iter().map(ToString::to_string).collect(),
        }),
        Event::Turn(record) => Stored::Turn(turn_to_v1(record)),
        Event::HandoffBegan { node, choice, handoff: id } => Stored::HandoffBegan(handoff(node, choice, id, None)),
        Event::HandoffEnded { node, choice, handoff: id, owner } => {
            Stored::HandoffEnded(handoff(node, choice, id, owner.as_ref()))
        }
        Event::Ended { state, failure } => Stored::Ended(v1::RunEnded {
            state: state.number(),
            error_code: failure_code(failure.as_ref()),
            error_message: failure.as_ref().map(|failure| failure.message.clone()).unwrap_or_default(),
        }),
        Event::ChoiceGivenUp { node, choice, code } => Stored::ChoiceGivenUp(v1::RunChoiceGivenUp {
            node_id: node.to_string(),
            choice_id: choice.to_string(),
            error_code: code.map_or(0, ErrorCode::number),
        }),
        Event::HandoffProposed(proposal) => Stored::HandoffProposed(proposal_to_v1(proposal)),
        Event::TaskMoved { owner } => Stored::TaskMoved(v1::RunTaskMoved { owner_id: owner.to_string() }),
    };
    v1::RunEntry { number: entry.number, entry_time: Some(entry.at.into()), event: Some(event) }
}

fn entry_from_v1(reader: &Reader, run: RunId, stored: v1::RunEntry) -> Result<RunEntry, DecodeError> {
    let at = stored.entry_time.and_then(|at| Timestamp::from_parts(at.seconds, at.nanos));
    let handoff = |stored: &v1::RunHandoff| {
        let choice = TurnId(uuid(reader, &stored.choice_id)?);
        Ok::<_, DecodeError>((node_id(reader, &stored.node_id)?, choice, uuid(reader, &stored.handoff_id)?))
    };
    let event = match reader.some(stored.event, "event")? {
        Stored::Started(started) => Event::Started { by: optional(&started.starter_id, |id| reader.agent(id))? },
        Stored::StepBegan(began) => {
            let nodes = began.node_ids.iter().map(|id| node_id(reader, id)).collect::<Result<_, _>>()?;
            Event::StepBegan { step: began.step, nodes }
        }
        Stored::Turn(turn) => Event::Turn(Box::new(turn_from_v1(reader, turn)?)),
        Stored::HandoffBegan(stored) => {
            let (node, choice, handoff) = handoff(&stored)?;
            Event::HandoffBegan { node, choice, handoff }
        }
        Stored::HandoffEnded(stored) => {
            let (node, choice, handoff) = handoff(&stored)?;
            let owner = optional(&stored.owner_id, |id| reader.agent(id))?;
            Event::HandoffEnded { node, choice, handoff, owner }
        }
        Stored::Ended(ended) => {
            let state = reader.some(RunState::from_number(ended.state), "state")?;
            Event::Ended { state, failure: failure_of(reader, state, ended.error_code, ended.error_message)? }
        }
        Stored::ChoiceGivenUp(stored) => Event::ChoiceGivenUp {
            node: node_id(reader, &stored.node_id)?,
            choice: TurnId(uuid(reader, &stored.choice_id)?),
            code: match stored.error_code {
                0 => None,
                number => Some(reader.some(ErrorCode::from_number(number), "error_code")?),
            },
        },
        Stored::HandoffProposed(proposal) => Event::HandoffProposed(proposal_from_v1(reader, proposal)?),
        Stored::TaskMoved(moved) => Event::TaskMoved { owner: reader.agent(&moved.owner_id)? },
    };
    Ok(RunEntry { run, number: stored.number, at: reader.some(at, "entry_time")?, event })
}

/// The message of a run.
pub fn run_to_v1(run: &Run) -> v1::Run {
    let node = |(id, node): (&NodeId, &NodeRun)| {
        let choice = match &node.state {
            NodeState::Moving(choice) => Some(choice),
            NodeState::Idle | NodeState::Active | NodeState::Done => None,
        };
        v1::NodeRun {
            node_id: id.to_string(),
            state: node_state(&node.state).into(),
            choices: node.choices,
            remaining: run.remaining(id),
            choice_id: choice.map(|choice| choice.id.to_string()).unwrap_or_default(),
            handoff_id: choice.and_then(|choice| choice.handoff).map(|id| id.to_string()).unwrap_or_default(),
            handoff_receiver_id: choice.map(|choice| choice.receiver.clone()).unwrap_or_default(),
        }
    };
    v1::Run {
        run_id: run.id.to_string(),
        graph: Some(graph_to_v1(&run.graph)),
        state: run.state.number(),
        step: run.step,
        nodes: run.nodes.iter().map(node).collect(),
        starter_id: text(run.starter.as_ref()),
        task_id: text(run.task.as_ref()),
        error_code: failure_code(run.failure.as_ref()),
        error_message: run.failure.as_ref().map(|failure| failure.message.clone()).unwrap_or_default(),
        turns: run.turns,
        log_length: run.log_length,
        create_time: Some(run.created_at.into()),
        update_time: Some(run.updated_at.into()),
        deadline: Some(run.deadline.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::TaskId;

    fn id(byte: u8) -> MessageId {
        MessageId::from_bytes([byte; 16])
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_parts(seconds, 0).unwrap()
    }

    fn node(name: &str) -> NodeId {
        NodeId::parse(name).unwrap()
    }

    fn agent(name: &str) -> AgentId {
        AgentId::parse(name).unwrap()
    }

    fn graph() -> Graph {
        Graph {
            id: GraphId::parse("g").unwrap(),
            description: "d".to_owned(),
            nodes: vec![Node {
                id: node("a"),
                description: "does a".to_owned(),
                agent: Some(agent("alice")),
                agent_type: Some(AgentType::parse("t").unwrap()),
                handoffs: Some(2),
                outputs: vec![node("a"), node("end")],
            }],
            entries: vec![node("a")],
            steps_max: 7,
            revision: 3,
        }
    }

    #[test]
    fn graphs_and_runs_come_back_as_they_were_stored() {
        let record = GraphRecord { graph: Arc::new(graph()), sequence: 9 };
        assert_eq!(GraphRecord::decode(&record.encode()), Ok(record));
        let choice = Choice {
            id: TurnId(id(2)),
            entry: 4,
            target: node("b"),
            is_edge: true,
            receiver: "bob".to_owned(),
            handoff: Some(id(3)),
        };
        let state = |state| NodeRun { state, choices: 1, inputs: vec![2, 3], refusals: 2, for_agent: true };
        let states = [NodeState::Idle, NodeState::Active, NodeState::Moving(choice), NodeState::Done];
        let names = ["a", "b", "c", "d"].map(node);
        let run = Run {
            id: RunId(id(1)),
            graph: Arc::new(graph()),
            starter: Some(agent("alice")),
            task: Some(TaskId::parse("t").unwrap()),
            participants: [agent("alice"), agent("bob")].into(),
            state: RunState::Failed,
            failure: Some(Failure { code: Some(ErrorCode::StepsExhausted), message: "over".to_owned() }),
            step: 3,
            nodes: names.into_iter().zip(states.map(state)).collect(),
            next: [(node("b"), vec![4])].into(),
            turns: 5,
            log_length: 8,
            created_at: at(1),
            updated_at: at(2),
            deadline: at(3),
        };
        let log_clock = LogClock { logged_at: at(2), set_back: Duration::from_secs(1) };
        let place = GraphRevision { graph: 9, revision: 3 };
        let record = RunRecord { run: Arc::new(run), graph: place, sequence: 10, log_clock };
        let graph = GraphRevision::decode(&GraphRevision::encode(&record.run.graph)).unwrap();
        assert_eq!(RunRecord::decode(&record.encode()).unwrap().with_graph(graph), record);
        assert_eq!(GraphRevision::decode_runs(&GraphRevision::encode_runs(7)), Ok(7));
        assert_eq!(record.listings().len(), 3);
        for (key, value) in record.new_entries(None) {
            crate::records::list::check_listing(&key.key, &value).unwrap();
            assert_eq!(RunRecord::listed(&value), Ok(RunId(id(1))));
        }
        assert_eq!(record.new_entries(Some(&record)), []);
    }

    #[test]
    fn every_entry_comes_back_as_it_was_stored() {
        let turn = |outcome| {
            Event::Turn(Box::new(TurnRecord {
                id: TurnId(id(2)),
                node: node("a"),
                by: Some(agent("alice")),
                calls: vec![("c1".to_owned(), "transfer_to_b".to_owned())],
                finished: true,
                output: "out".to_owned(),
                error: String::new(),
                outcome,
                results: vec![CallResult { call: "c1".to_owned(), is_error: true, text: "no".to_owned() }],
                remaining: 1,
                active: vec![node("a")],
                proposal: Some(Proposal { node: node("b"), choice: TurnId(id(4)), receiver: "bob".to_owned() }),
            }))
        };
        let (target, reason) = (node("b"), "why".to_owned());
        let events = [
            Event::Started { by: None },
            Event::Started { by: Some(agent("alice")) },
            Event::StepBegan { step: 2, nodes: vec![node("a"), node("b")] },
            turn(TurnOutcome::Recorded),
            turn(TurnOutcome::Finished),
            turn(TurnOutcome::Withdrawn),
            turn(TurnOutcome::Chosen { target: target.clone(), reason: reason.clone() }),
            turn(TurnOutcome::Proposed { target, reason, receiver: "type:t".to_owned() }),
            turn(TurnOutcome::Refused { code: ErrorCode::TransferAmbiguous }),
            Event::HandoffBegan { node: node("a"), choice: TurnId(id(2)), handoff: id(3) },
            Event::HandoffEnded { node: node("a"), choice: TurnId(id(2)), handoff: id(3), owner: Some(agent("bob")) },
            Event::HandoffEnded { node: node("a"), choice: TurnId(id(2)), handoff: id(3), owner: None },
            Event::ChoiceGivenUp { node: node("a"), choice: TurnId(id(2)), code: Some(ErrorCode::LoopLimit) },
            Event::ChoiceGivenUp { node: node("a"), choice: TurnId(id(2)), code: None },
            Event::TaskMoved { owner: agent("bob") },
            Event::HandoffProposed(Proposal { node: node("a"), choice: TurnId(id(2)), receiver: "bob".to_owned() }),
            Event::Ended { state: RunState::Completed, failure: None },
            Event::Ended {
                state: RunState::Cancelled,
                failure: Some(Failure { code: None, message: "enough".to_owned() }),
            },
        ];
        for (number, event) in (1..).zip(events) {
            let record = RunEntryRecord(Arc::new(RunEntry { run: RunId(id(1)), number, at: at(5), event }));
            assert_eq!(RunEntryRecord::decode(RunId(id(1)), &record.encode()), Ok(record));
        }
        let turn = RunTurn { run: RunId(id(1)), turn: TurnId(id(2)), number: 7, digest: [4; 32] };
        let record = RunTurnRecord(Arc::new(turn));
        assert_eq!(RunTurnRecord::decode(RunId(id(1)), TurnId(id(2)), &record.encode()), Ok(record));
    }
}

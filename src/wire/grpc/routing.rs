//! `RoutingService`.

use std::{sync::Arc, time::Duration};

use prost::Message as _;
use tonic::Status;

use super::{
    call::Call,
    checked, checked_with, field,
    log_watch::{self, LogUpdate, LogWatch},
    numbered, page_size, parsed_id, refuse,
    registries::check_etag,
    responses::Responses,
    tool_shapes::{node_tool, reason_of, tool_json},
};
use crate::{
    broker::{
        Broker, BrokerError,
        access::{Caller, run_start},
        engine::{Command, Revision},
        queries::{RunFilter, View},
    },
    codes::FieldViolation,
    domain::{
        EntityId, Input,
        routing::{
            self, CALLS_MAX, DESCRIPTION_BYTES_MAX, Graph, NODES_MAX, Node, NodeState, OUTPUT_BYTES_MAX, Problem, Run,
            RunId, RunState, STEPS_DEFAULT, Severity, Start, TRANSFER_PREFIX, Tool, Turn, TurnId,
            WHOLE_TIMEOUT_DEFAULT, WHOLE_TIMEOUT_MAX, may_route,
        },
    },
    envelope::{Checks, signing},
    ids::{AgentId, AgentType, GraphId, MessageId, NodeId, TaskId},
    proto::v1::{self, ToolShape},
    records::{RegistrationName, Registry, graph_to_v1, run_to_v1},
};

/// The most nodes that are parsed: the validation names those over the limits of a graph.
const PARSED_MAX: usize = 4096;
/// The most outputs of a node that are parsed.
const OUTPUTS_PARSED_MAX: usize = 256;
/// The most bytes of the id and of the name of a tool call.
const CALL_NAME_BYTES_MAX: usize = 128;
/// The most bytes of the arguments of a tool call.
const ARGUMENTS_BYTES_MAX: usize = 64 * 1024;
/// The most bytes of a reason that a caller gives.
const REASON_BYTES_MAX: usize = 4096;
/// The most bytes of the outputs in the answer to `GetNodeTools`.
const INPUTS_BYTES_MAX: usize = 1024 * 1024;

/// Asks the engine for a step. The step is stored when this returns.
async fn apply(call: &Call, about: EntityId, input: routing::Input) -> Result<(), Status> {
    let input = Box::new(Input::Routing(input));
    call.ask(|caller, reply| Command::Apply { about, input, caller, reply }).await.map(drop)
}

/// The run as the caller may see it.
async fn visible_run(call: &Call, id: RunId) -> Result<Arc<Run>, Status> {
    call.read_small(move |view| view.run(id)).await
}

/// The run as the caller may see it, and the handoff that it waits for.
async fn run_and_proposal(call: &Call, id: RunId) -> Result<(v1::Run, Option<Proposed>), Status> {
    let read = move |view: View<'_>| {
        let run = view.run(id)?;
        Ok((run_to_v1(&run), next_proposal(view, &run)?))
    };
    call.read_small(read).await
}

pub(super) async fn register_graph(
    call: Call,
    request: v1::RegisterGraphRequest,
) -> Result<v1::RegisterGraphResponse, Status> {
    let v1::RegisterGraphRequest { graph, etag } = request;
    let mut checks = Checks::default();
    check_etag(&mut checks, &etag);
    checked(checks)?;
    // The check of a large graph takes some 10 ms, and the threads of the runtime serve other calls.
    let check = move |broker: &Broker, caller: &Caller| {
        let graph = parse_graph(graph.as_ref())?;
        let name = RegistrationName::new(Registry::Graphs, &graph.id);
        broker.access().may_register(caller, &name).map_err(refuse)?;
        let problems = graph.problems();
        Ok((graph, problems))
    };
    let (graph, problems) = call.run_large(check).await?;
    if problems.iter().any(Problem::is_error) {
        return Err(refuse(BrokerError::GraphInvalid { violations: violations(&problems) }));
    }
    let id = graph.id.clone();
    let revision = Box::new(Revision::Graph(graph));
    let stored = call.ask(|caller, reply| Command::RegisterRevision { revision, caller, etag, reply }).await?;
    let registration = Some(stored.to_v1());
    // The registration is stored, so a caller that may not read graphs sees its own.
    let graph = call.read_small(move |view| view.registered_graph(&id)).await?;
    let (graph, problems) = (Some(graph_to_v1(&graph)), problems.iter().map(problem).collect());
    Ok(v1::RegisterGraphResponse { graph, problems, registration })
}

pub(super) async fn validate_graph(
    call: Call,
    request: v1::ValidateGraphRequest,
) -> Result<v1::ValidateGraphResponse, Status> {
    call.run_large(move |_, _| {
        let graph = parse_graph(request.graph.as_ref())?;
        let problems = graph.problems().iter().map(problem).collect();
        Ok(v1::ValidateGraphResponse { problems })
    })
    .await
}

pub(super) async fn get_graph(call: Call, request: v1::GetGraphRequest) -> Result<v1::GetGraphResponse, Status> {
    let id = parsed_id("graph_id", &request.graph_id, GraphId::parse)?;
    let graph = call.read_small(move |view| view.graph(&id)).await?;
    Ok(v1::GetGraphResponse { graph: Some(graph_to_v1(&graph)) })
}

pub(super) async fn list_graphs(call: Call, request: v1::ListGraphsRequest) -> Result<v1::ListGraphsResponse, Status> {
    call.run_large(move |broker, caller| {
        let size = page_size(request.page_size);
        let page = broker.view(caller).graphs(size, &request.page_token).map_err(refuse)?;
        let graphs = page.entries.iter().map(|graph| without_nodes(graph_to_v1(graph))).collect();
        Ok(v1::ListGraphsResponse { graphs, next_page_token: page.next_token })
    })
    .await
}

pub(super) async fn start_run(call: Call, request: v1::StartRunRequest) -> Result<v1::StartRunResponse, Status> {
    let mut checks = Checks::default();
    let graph = checks.id("graph_id", &request.graph_id, GraphId::parse);
    let id = checks.optional_id("run_id", &request.run_id, MessageId::parse);
    let task = checks.optional_id("task_id", &request.task_id, TaskId::parse);
    let whole = checks.span("whole_timeout", request.whole_timeout.as_ref()).unwrap_or(WHOLE_TIMEOUT_DEFAULT);
    if !(Duration::from_secs(1)..=WHOLE_TIMEOUT_MAX).contains(&whole) {
        checks.wrong("whole_timeout", format!("must be from 1 s to 7 days, not {whole:?}"));
    }
    let graph = checked_with(checks, graph)?;
    call.broker.access().check_broker(&call.caller, run_start(&graph)).map_err(refuse)?;
    let id = RunId(id.unwrap_or_else(|| call.broker.ids().message_id(call.broker.now())));
    let start = Start { graph, by: call.caller.as_agent().cloned(), task, whole };
    apply(&call, EntityId::Run(id), routing::Input::Start(start)).await?;
    let (run, proposal) = run_and_proposal(&call, id).await?;
    let (handoff_proposal, handoff_receiver_id) = in_two(proposal);
    Ok(v1::StartRunResponse { run: Some(run), handoff_proposal, handoff_receiver_id })
}

pub(super) async fn get_run(call: Call, request: v1::GetRunRequest) -> Result<v1::GetRunResponse, Status> {
    let (run, proposal) = run_and_proposal(&call, run_id(&request.run_id)?).await?;
    let (handoff_proposal, handoff_receiver_id) = in_two(proposal);
    Ok(v1::GetRunResponse { run: Some(run), handoff_proposal, handoff_receiver_id })
}

pub(super) async fn list_runs(call: Call, request: v1::ListRunsRequest) -> Result<v1::ListRunsResponse, Status> {
    call.run_large(move |broker, caller| list(broker, caller, &request)).await
}

pub(super) async fn watch_run(
    call: Call,
    request: v1::WatchRunRequest,
) -> Result<Responses<v1::WatchRunResponse>, Status> {
    let id = run_id(&request.run_id)?;
    // A run that the caller may not see is refused here, with the same answer as an absent one.
    visible_run(&call, id).await?;
    let asked = LogWatch {
        entity: EntityId::Run(id),
        after: request.after_number,
        read: move |view: View<'_>, after| view.run_log(id, after, log_watch::ENTRIES_MAX),
        respond: run_update,
    };
    log_watch::open(call, asked).await
}

pub(super) async fn cancel_run(call: Call, request: v1::CancelRunRequest) -> Result<v1::CancelRunResponse, Status> {
    let mut checks = Checks::default();
    let id = checks.id("run_id", &request.run_id, MessageId::parse).map(RunId);
    checks.text("reason_text", &request.reason_text, REASON_BYTES_MAX);
    let id = checked_with(checks, id)?;
    let run = visible_run(&call, id).await?;
    call.broker.access().may_record_turn(&call.caller, &run).map_err(refuse)?;
    let cancel = routing::Input::Cancel { by: call.caller.as_agent().cloned(), reason: request.reason_text.clone() };
    apply(&call, EntityId::Run(id), cancel).await?;
    let run = visible_run(&call, id).await?;
    Ok(v1::CancelRunResponse { run: Some(run_to_v1(&run)) })
}

pub(super) async fn get_node_tools(
    call: Call,
    request: v1::GetNodeToolsRequest,
) -> Result<v1::GetNodeToolsResponse, Status> {
    let mut checks = Checks::default();
    let id = checks.id("run_id", &request.run_id, MessageId::parse).map(RunId);
    let node = checks.id("node_id", &request.node_id, NodeId::parse);
    let shape = ToolShape::try_from(request.shape).ok();
    if shape.is_none() {
        checks.wrong("shape", format!("must be a known shape, not {}", request.shape));
    }
    let (id, node, shape) = checked_with(checks, (id, node, shape))?;
    call.read_small(move |view| node_tools(view, id, &node, shape)).await?.map_err(refuse)
}

pub(super) async fn record_turn(call: Call, request: v1::RecordTurnRequest) -> Result<v1::RecordTurnResponse, Status> {
    let (id, turn) = parse_turn(&call.broker, &call.caller, &request)?;
    let run = visible_run(&call, id).await?;
    call.broker.access().may_record_turn(&call.caller, &run).map_err(refuse)?;
    let turn_id = turn.id;
    apply(&call, EntityId::Run(id), routing::Input::Turn(Box::new(turn))).await?;
    // The turn is stored. A repeat reads the first answer.
    call.read_small(move |view| turn_answer(view, id, turn_id)).await
}

fn run_id(text: &str) -> Result<RunId, Status> {
    parsed_id("run_id", text, MessageId::parse).map(RunId)
}

// ------------------------------------------------------------------------------------------------------------ graphs

/// Parses the texts of a graph. The rules about graphs are checked by [`Graph::problems`].
fn parse_graph(graph: Option<&v1::Graph>) -> Result<Graph, Status> {
    let Some(graph) = graph else { return Err(refuse(field("graph", "must be set"))) };
    let mut checks = Checks::default();
    let id = checks.id("graph.graph_id", &graph.graph_id, GraphId::parse);
    checks.text("graph.description", &graph.description, DESCRIPTION_BYTES_MAX);
    checks.at_most("graph.nodes", graph.nodes.len(), PARSED_MAX, "entries");
    let entries = checks.ids("graph.entry_node_ids", &graph.entry_node_ids, NODES_MAX, NodeId::parse);
    let mut nodes = Vec::new();
    for (place, node) in graph.nodes.iter().take(PARSED_MAX).enumerate() {
        let path = |name: &str| format!("graph.nodes[{place}].{name}");
        let node_id = checks.id(&path("node_id"), &node.node_id, NodeId::parse);
        checks.text(&path("description"), &node.description, DESCRIPTION_BYTES_MAX);
        let agent = checks.optional_id(&path("agent_id"), &node.agent_id, AgentId::parse);
        let agent_type = checks.optional_id(&path("agent_type"), &node.agent_type, AgentType::parse);
        let outputs = checks.ids(&path("output_nodes"), &node.output_nodes, OUTPUTS_PARSED_MAX, NodeId::parse);
        nodes.extend(node_id.map(|id| Node {
            id,
            description: node.description.clone(),
            agent,
            agent_type,
            handoffs: node.handoffs,
            outputs,
        }));
    }
    let id = checked_with(checks, id)?;
    let steps_max = if graph.steps_max == 0 { STEPS_DEFAULT } else { graph.steps_max };
    Ok(Graph { id, description: graph.description.clone(), nodes, entries, steps_max, revision: 0 })
}

fn violations(problems: &[Problem]) -> Vec<FieldViolation> {
    let errors = problems.iter().filter(|problem| problem.is_error());
    errors
        .map(|problem| FieldViolation {
            path: format!("graph.{}", problem.path),
            problem: format!("{}: {}", problem.code.name(), problem.message),
        })
        .collect()
}

fn problem(problem: &Problem) -> v1::GraphProblem {
    let severity = match problem.code.severity() {
        Severity::Error => v1::ProblemSeverity::Error,
        Severity::Warning => v1::ProblemSeverity::Warning,
    };
    v1::GraphProblem {
        severity: severity.into(),
        code: problem.code.name().to_owned(),
        field: problem.path.clone(),
        node_ids: problem.nodes.iter().map(ToString::to_string).collect(),
        message: problem.message.clone(),
    }
}

/// A list names graphs; only `GetGraph` shows one whole.
fn without_nodes(graph: v1::Graph) -> v1::Graph {
    v1::Graph { nodes: Vec::new(), entry_node_ids: Vec::new(), ..graph }
}

// -------------------------------------------------------------------------------------------------------------- runs

/// The most runs of a page. Each has up to 256 nodes, some 60 KiB, and a page must fit a frame.
const RUNS_MAX: usize = 32;

fn list(broker: &Broker, caller: &Caller, request: &v1::ListRunsRequest) -> Result<v1::ListRunsResponse, Status> {
    let size = page_size(request.page_size).min(RUNS_MAX);
    let mut checks = Checks::default();
    let graph = checks.optional_id("graph_id", &request.graph_id, GraphId::parse);
    let task = checks.optional_id("task_id", &request.task_id, TaskId::parse);
    checks.at_most("states", request.states.len(), RunState::ALL.len(), "entries");
    let states = numbered(&mut checks, "states", "known states", &request.states, RunState::from_number);
    checked(checks)?;
    let filter = RunFilter { graph, task, states };
    let page = broker.view(caller).runs(&filter, size, &request.page_token).map_err(refuse)?;
    let shown = |run: &Arc<Run>| {
        let run = run_to_v1(run);
        v1::Run { graph: run.graph.map(without_nodes), ..run }
    };
    Ok(v1::ListRunsResponse { runs: page.entries.iter().map(shown).collect(), next_page_token: page.next_token })
}

/// The tools of an active node. The inner error: the run or the node is not active.
fn node_tools(
    view: View<'_>,
    id: RunId,
    node: &NodeId,
    shape: ToolShape,
) -> Result<Result<v1::GetNodeToolsResponse, routing::Rejection>, BrokerError> {
    let run = view.run(id)?;
    if run.state.is_final() {
        return Ok(Err(routing::Rejection::RunFinal { state: run.state }));
    }
    let state = run.nodes.get(node).map_or("unknown", |node| node.state.name());
    let active = run.nodes.get(node).filter(|node| node.state == NodeState::Active);
    let (Some(of_run), Some(of_graph)) = (active, run.graph.node(node)) else {
        let active = run.active().iter().map(ToString::to_string).collect();
        return Ok(Err(routing::Rejection::NodeNotActive { node: node.to_string(), state, active }));
    };
    let remaining = run.remaining(node);
    let tools: Vec<Tool> = if remaining > 0 { run.graph.tools(of_graph) } else { Vec::new() };
    let mut inputs = Vec::new();
    let mut bytes = 0;
    for number in &of_run.inputs {
        let Some(turn) = view.run_entry(&run, *number)? else { continue };
        bytes += turn.output.len() + turn.error.len();
        let omitted = bytes > INPUTS_BYTES_MAX;
        let (output, error) = if omitted { (String::new(), String::new()) } else { (turn.output, turn.error) };
        inputs.push(v1::NodeOutput { node_id: turn.node_id, output, error, entry_number: *number, omitted });
    }
    let tools_json: Vec<String> = tools.iter().filter_map(|tool| tool_json(tool, shape)).collect();
    let messages: Vec<v1::NodeTool> = tools.iter().map(node_tool).collect();
    let encoded: Vec<Vec<u8>> = messages.iter().map(v1::NodeTool::encode_length_delimited_to_vec).collect();
    let parts: Vec<&[u8]> = encoded.iter().map(Vec::as_slice).collect();
    let tools_digest = hex::encode(signing::sha256(&parts));
    Ok(Ok(v1::GetNodeToolsResponse { tools: messages, tools_json, remaining, inputs, tools_digest }))
}

fn parse_turn(broker: &Broker, caller: &Caller, request: &v1::RecordTurnRequest) -> Result<(RunId, Turn), Status> {
    let mut checks = Checks::default();
    let run = checks.id("run_id", &request.run_id, MessageId::parse).map(RunId);
    let node = checks.id("node_id", &request.node_id, NodeId::parse);
    let id = checks.id("turn_id", &request.turn_id, MessageId::parse).map(TurnId);
    checks.text("output", &request.output, OUTPUT_BYTES_MAX);
    checks.text("error", &request.error, OUTPUT_BYTES_MAX);
    checks.at_most("calls", request.calls.len(), CALLS_MAX, "entries");
    let mut calls = Vec::new();
    for (place, call) in request.calls.iter().take(CALLS_MAX).enumerate() {
        let path = |name: &str| format!("calls[{place}].{name}");
        if call.name.is_empty() {
            checks.wrong(path("name"), "must not be empty");
        }
        for (name, text) in [("call_id", &call.call_id), ("name", &call.name)] {
            checks.text(&path(name), text, CALL_NAME_BYTES_MAX);
        }
        checks.text(&path("arguments_json"), &call.arguments_json, ARGUMENTS_BYTES_MAX);
        let is_routing = call.name.starts_with(TRANSFER_PREFIX);
        if is_routing && !request.error.is_empty() {
            checks.wrong("error", "cannot be set together with a transfer call");
        }
        // The arguments of other tools are the runtime's own.
        let reason = if may_route(&call.name) { reason_of(&call.arguments_json) } else { Ok(String::new()) };
        calls.push(routing::Call { id: call.call_id.clone(), name: call.name.clone(), reason });
    }
    let (run, node, id) = checked_with(checks, (run, node, id))?;
    let by = caller.as_agent().cloned();
    let by_types = by.as_ref().and_then(|agent| broker.directory().get(agent)).map(|entry| entry.types.clone());
    let turn = Turn {
        id,
        digest: signing::sha256(&[caller.to_string().as_bytes(), &request.encode_to_vec()]),
        node,
        by,
        by_types: by_types.unwrap_or_default(),
        calls,
        finished: request.finished,
        output: request.output.clone(),
        error: request.error.clone(),
    };
    Ok((run, turn))
}

/// The answer to a recorded turn, from its entry in the log.
fn turn_answer(view: View<'_>, id: RunId, turn: TurnId) -> Result<v1::RecordTurnResponse, BrokerError> {
    let run = view.run(id)?;
    let recorded = view.run_turn(&run, turn)?;
    let by_choice = recorded.choice.as_ref().filter(|choice| !choice.handoff_receiver_id.is_empty());
    let proposal = match (by_choice, &recorded.proposal) {
        (Some(choice), _) => Some((&choice.choice_id, choice.reason.clone(), choice.handoff_receiver_id.clone())),
        (None, Some(proposal)) => {
            let reason = came_to(&proposal.node_id);
            Some((&proposal.choice_id, reason, proposal.handoff_receiver_id.clone()))
        }
        (None, None) => None,
    };
    let proposal = match proposal {
        Some((choice_id, reason, receiver)) => {
            Some((request_of(view, &run, choice_id.clone(), reason, &recorded.output)?, receiver))
        }
        None => None,
    };
    let (handoff_proposal, handoff_receiver_id) = in_two(proposal);
    Ok(v1::RecordTurnResponse {
        run: Some(run_to_v1(&run)),
        outcome: recorded.outcome,
        error_code: recorded.error_code,
        choice: recorded.choice,
        tool_results: recorded.results,
        next_node_ids: recorded.active_node_ids,
        handoff_proposal,
        handoff_receiver_id,
    })
}

/// A request of a handoff, and its receiver.
type Proposed = (v1::HandoffRequest, String);

fn in_two(proposal: Option<Proposed>) -> (Option<v1::HandoffRequest>, String) {
    proposal.map_or((None, String::new()), |(request, receiver)| (Some(request), receiver))
}

/// The handoff that the run waits for next.
fn next_proposal(view: View<'_>, run: &Run) -> Result<Option<Proposed>, BrokerError> {
    let Some((node, choice)) = run.proposed().filter(|_| run.task.is_some()) else { return Ok(None) };
    let turn = view.run_entry(run, choice.entry)?.unwrap_or_default();
    let reason = match choice.is_edge {
        true => came_to(node.as_str()),
        false => turn.choice.unwrap_or_default().reason,
    };
    let request = request_of(view, run, choice.id.to_string(), reason, &turn.output)?;
    Ok(Some((request, choice.receiver.clone())))
}

fn came_to(node: &str) -> String {
    format!("the run has come to node {node}")
}

fn request_of(
    view: View<'_>,
    run: &Run,
    choice_id: String,
    reason_text: String,
    output: &str,
) -> Result<v1::HandoffRequest, BrokerError> {
    Ok(v1::HandoffRequest {
        task_type: view.task_type_of_run(run)?,
        reason: v1::HandoffReason::Workflow.into(),
        reason_text,
        initial_context_summary: within(output, SUMMARY_BYTES_MAX),
        routing: Some(v1::RoutingRef { run_id: run.id.to_string(), choice_id }),
        ..Default::default()
    })
}

/// The most bytes of the summary of a request.
const SUMMARY_BYTES_MAX: usize = 16 * 1024;

/// The text if it has at most this many bytes, and a note otherwise: the output itself is in the run's log.
fn within(text: &str, most: usize) -> String {
    if text.len() <= most { text.to_owned() } else { "The output of the node is in the log of the run.".to_owned() }
}

// ------------------------------------------------------------------------------------------------------------ watches

fn run_update(update: LogUpdate<v1::RunEntry>) -> v1::WatchRunResponse {
    use v1::watch_run_response::Update;
    let update = match update {
        LogUpdate::Entry(entry) => Update::Entry(entry),
        LogUpdate::Gap(gap) => Update::Gap(gap),
        LogUpdate::CaughtUp(number) => Update::CaughtUp(v1::RunCaughtUp { number }),
    };
    v1::WatchRunResponse { update: Some(update) }
}

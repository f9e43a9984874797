//! The pages of runs through graphs: the list, and one run with its nodes and its path.

use askama::Template;
use axum::{
    Extension,
    extract::{Path, Query, State},
    response::Response,
};
use serde::Deserialize;

use super::{
    PAGE_SIZE,
    acts::{self, Offered},
    lists::{Content, Window, check_list},
    named, no_handoff, optional, parsed, shown,
    threads::LogQuery,
};
use crate::{
    broker::{
        BrokerError,
        access::{Caller, Purpose},
        queries::{RunFilter, View},
    },
    domain::routing::{NodeState, Run, RunId, RunState},
    ids::{GraphId, MessageId, TaskId},
    proto::v1::{self, run_entry::Event},
    wire::{console::Console, to_proto::time_text},
};

/// The most bytes of a text of a turn that a row shows.
const TEXT_BYTES_MAX: usize = 120;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RunsQuery {
    state: String,
    graph: String,
    task: String,
    page: String,
}

#[derive(Template)]
#[template(path = "runs.html")]
struct RunsPage {
    who: String,
    query: RunsQuery,
    states: [&'static str; 4],
    rows: Vec<RunRow>,
    next: String,
}

struct RunRow {
    id: String,
    graph: String,
    state: &'static str,
    active: String,
    step: u32,
    turns: u32,
    task: String,
    starter: String,
    created_at: String,
    updated_at: String,
    deadline: String,
    failure: String,
}

impl RunRow {
    fn new(run: &Run) -> Self {
        let is_active = |state: &NodeState| matches!(state, NodeState::Active | NodeState::Moving(_));
        let active = run.nodes.iter().filter(|(_, node)| is_active(&node.state)).map(|(id, _)| id.to_string());
        let failure = run.failure.as_ref().map(|failure| match failure.code {
            Some(code) => format!("{}: {}", code.name(), failure.message),
            None => failure.message.clone(),
        });
        Self {
            id: run.id.to_string(),
            graph: format!("{}, revision {}", run.graph.id, run.graph.revision),
            state: run.state.name(),
            active: active.collect::<Vec<_>>().join(", "),
            step: run.step,
            turns: run.turns,
            task: run.task.as_ref().map(ToString::to_string).unwrap_or_default(),
            starter: run.starter.as_ref().map_or_else(|| "an operator".to_owned(), ToString::to_string),
            created_at: run.created_at.to_string(),
            updated_at: run.updated_at.to_string(),
            deadline: run.deadline.to_string(),
            failure: failure.unwrap_or_default(),
        }
    }
}

pub(super) async fn list(
    State(console): State<Console>,
    Extension(caller): Extension<Caller>,
    Query(query): Query<RunsQuery>,
) -> Response {
    let who = caller.to_string();
    let list = move |view: View<'_>| {
        let filter = RunFilter {
            graph: optional("graph", &query.graph, GraphId::parse)?,
            task: optional("task", &query.task, TaskId::parse)?,
            states: named("state", &query.state, RunState::ALL, RunState::name)?.into_iter().collect(),
        };
        let page = view.runs(&filter, PAGE_SIZE, &query.page)?;
        let no_such = || view.access.no_such_run(view.caller, RunId(no_handoff()));
        check_list(view, Purpose::ReadRuns, page.entries.is_empty(), no_such)?;
        let rows = page.entries.iter().map(|run| RunRow::new(run)).collect();
        Ok(RunsPage { who, query, states: RunState::ALL.map(RunState::name), rows, next: page.next_token })
    };
    shown(&console, &caller, list).await
}

#[derive(Template)]
#[template(path = "run.html")]
struct RunPage {
    who: String,
    row: RunRow,
    acts: Vec<Offered>,
    description: Content,
    nodes: Vec<NodeRow>,
    entries: Vec<EntryRow>,
    next: Option<u64>,
}

struct NodeRow {
    id: String,
    agent: String,
    state: &'static str,
    choices: String,
    leads_to: String,
    handoff: String,
}

struct EntryRow {
    number: u64,
    at: String,
    event: &'static str,
    node: String,
    about: String,
    handoff: String,
}

pub(super) async fn show(
    State(console): State<Console>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Query(query): Query<LogQuery>,
) -> Response {
    let who = caller.to_string();
    let show = move |view: View<'_>| -> Result<RunPage, BrokerError> {
        let id = RunId(parsed("run_id", &id, MessageId::parse)?);
        let before = Window::before(&query.page)?;
        let run = view.run(id)?;
        let window = Window::new(before, run.log_length);
        let log = view.run_log(id, window.after, window.limit)?;
        Ok(RunPage {
            who,
            row: RunRow::new(&run),
            acts: acts::of_run(view, &run),
            description: Content::new(&run.graph.description),
            nodes: NodeRow::all(&run),
            entries: log.entries.iter().rev().map(EntryRow::new).collect(),
            next: window.next(1),
        })
    };
    shown(&console, &caller, show).await
}

impl NodeRow {
    /// The nodes of the graph, in its order.
    fn all(run: &Run) -> Vec<Self> {
        let row = |node: &crate::domain::routing::Node| {
            let of_run = run.nodes.get(&node.id);
            let state = of_run.map_or(&NodeState::Idle, |of_run| &of_run.state);
            let handoff = match state {
                NodeState::Moving(choice) => choice.handoff.map(|handoff| handoff.to_string()),
                NodeState::Idle | NodeState::Active | NodeState::Done => None,
            };
            let agent = node.agent.as_ref().map(ToString::to_string);
            let agent = agent.or_else(|| node.agent_type.as_ref().map(|kind| format!("type:{kind}")));
            Self {
                id: node.id.to_string(),
                agent: agent.unwrap_or_default(),
                state: state.name(),
                choices: match node.handoffs {
                    Some(most) => format!("{} of {most}", of_run.map_or(0, |of_run| of_run.choices)),
                    None => String::new(),
                },
                leads_to: node.outputs.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
                handoff: handoff.unwrap_or_default(),
            }
        };
        run.graph.nodes.iter().map(row).collect()
    }
}

impl EntryRow {
    fn new(entry: &v1::RunEntry) -> Self {
        let none = String::new;
        let (event, node, about, handoff) = match &entry.event {
            Some(Event::Started(started)) => ("started", none(), started.starter_id.clone(), none()),
            Some(Event::StepBegan(step)) => {
                ("step began", step.node_ids.join(", "), format!("step {}", step.step), none())
            }
            Some(Event::Turn(turn)) => ("turn", turn.node_id.clone(), words_of(turn), none()),
            Some(Event::HandoffBegan(handoff)) => {
                ("handoff began", handoff.node_id.clone(), none(), handoff.handoff_id.clone())
            }
            Some(Event::HandoffEnded(handoff)) => {
                let owner = match handoff.owner_id.as_str() {
                    "" => "it did not complete".to_owned(),
                    owner => format!("{owner} owns the task"),
                };
                ("handoff ended", handoff.node_id.clone(), owner, handoff.handoff_id.clone())
            }
            Some(Event::ChoiceGivenUp(given_up)) => {
                let why = match given_up.error_code() {
                    v1::ErrorCode::Unspecified => "the task has moved".to_owned(),
                    code => format!("refused: {}", code.as_str_name().trim_start_matches("ERROR_CODE_")),
                };
                ("choice given up", given_up.node_id.clone(), why, none())
            }
            Some(Event::HandoffProposed(proposal)) => {
                let to = format!("to {}", proposal.handoff_receiver_id);
                ("handoff proposed", proposal.node_id.clone(), to, none())
            }
            Some(Event::TaskMoved(moved)) => {
                ("task moved", none(), format!("{} owns the task", moved.owner_id), none())
            }
            Some(Event::Ended(ended)) => {
                let state = ended.state().as_str_name().trim_start_matches("RUN_STATE_");
                ("ended", none(), format!("{state} {}", ended.error_message), none())
            }
            None => ("unknown", none(), none(), none()),
        };
        Self { number: entry.number, at: time_text(entry.entry_time.as_ref()), event, node, about, handoff }
    }
}

/// The outcome of a turn with its choice, its error and its output.
fn words_of(turn: &v1::RunTurn) -> String {
    let mut words = vec![turn.outcome().as_str_name().trim_start_matches("TURN_OUTCOME_").to_owned()];
    if !turn.reporter_id.is_empty() {
        words.push(format!("by {}", turn.reporter_id));
    }
    if turn.error_code != 0 {
        words.push(turn.error_code().as_str_name().trim_start_matches("ERROR_CODE_").to_owned());
    }
    if let Some(choice) = &turn.choice {
        words.push(format!("to {}: {}", choice.target_node_id, choice.reason));
    }
    for (name, text) in [("error", &turn.error), ("output", &turn.output)] {
        if !text.is_empty() {
            words.push(format!("{name}: {}", Content::of_at_most(text, TEXT_BYTES_MAX).with_ellipsis()));
        }
    }
    Content::of_at_most(&words.join(", "), 2 * TEXT_BYTES_MAX).with_ellipsis()
}

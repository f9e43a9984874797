//! The pages of plans: the list, and one plan with its picture, its subtasks and their results.

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
    dag::{self, Dag, dag},
    lanes::shortened,
    lists::{Content, check_list, place},
    named, parsed, shown,
    timeline::{Timeline, timeline},
};
use crate::{
    broker::{
        access::{Caller, Purpose},
        queries::View,
    },
    domain::plan::{Plan, PlanState, Spec, SubtaskRun, SubtaskState},
    ids::PlanId,
    proto::v1,
    time::Timestamp,
    wire::console::Console,
};

/// The results of one page. Each may have 4 KiB.
const RESULTS_SHOWN: usize = 3;
/// The subtasks of one page, beside the picture and the results.
const SUBTASKS_SHOWN: usize = 25;
/// The letters that fit into the box of a subtask.
const NODE_LETTERS: usize = 18;
/// The dependencies that a row names.
const NEEDS_SHOWN: usize = 8;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct PlansQuery {
    state: String,
    page: String,
}

#[derive(Template)]
#[template(path = "plans.html")]
struct PlansPage {
    who: String,
    query: PlansQuery,
    states: [&'static str; 4],
    rows: Vec<PlanRow>,
    next: String,
}

struct PlanRow {
    id: String,
    state: &'static str,
    round: u32,
    submitter: String,
    completed: usize,
    subtasks: usize,
    created_at: String,
    deadline: String,
    ended_at: String,
    reason: String,
}

fn text_of(at: Option<Timestamp>) -> String {
    at.map(|at| at.to_string()).unwrap_or_default()
}

impl PlanRow {
    fn new(plan: &Plan) -> Self {
        Self {
            id: plan.id.to_string(),
            state: plan.state.name(),
            round: plan.round,
            submitter: plan.submitter.to_string(),
            completed: plan.subtasks.iter().filter(|subtask| subtask.state == SubtaskState::Completed).count(),
            subtasks: plan.subtasks.len(),
            created_at: plan.created_at.to_string(),
            deadline: plan.deadline.to_string(),
            ended_at: text_of(plan.ended_at),
            reason: plan.reason.clone(),
        }
    }
}

pub(super) async fn list(
    State(console): State<Console>,
    Extension(caller): Extension<Caller>,
    Query(query): Query<PlansQuery>,
) -> Response {
    let who = caller.to_string();
    let list = move |view: View<'_>| {
        let state = named("state", &query.state, PlanState::ALL, PlanState::name)?;
        let page = view.plans(state.as_slice(), PAGE_SIZE, &query.page)?;
        let any = PlanId::parse("any").expect("it is a name");
        let no_such = || view.access.no_such_plan(view.caller, &any);
        check_list(view, Purpose::ReadPlans, page.entries.is_empty(), no_such)?;
        let rows = page.entries.iter().map(|plan| PlanRow::new(plan)).collect();
        Ok(PlansPage { who, query, states: PlanState::ALL.map(PlanState::name), rows, next: page.next_token })
    };
    shown(&console, &caller, list).await
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct PlanQuery {
    /// The place of the first subtask that is shown.
    page: String,
    /// The place of the first subtask whose result is shown.
    results: String,
}

#[derive(Template)]
#[template(path = "plan.html")]
struct PlanPage {
    who: String,
    row: PlanRow,
    acts: Vec<Offered>,
    description: Content,
    picture: Option<(Dag, Vec<Node>)>,
    timeline: Option<Timeline>,
    subtasks: Vec<SubtaskRow>,
    next: Option<usize>,
    results: Vec<ResultRow>,
    next_results: Option<usize>,
}

/// The box of a subtask.
struct Node {
    x: u32,
    y: u32,
    id: String,
    name: String,
    state: &'static str,
    class: &'static str,
}

struct SubtaskRow {
    id: String,
    state: &'static str,
    needs: String,
    agent: String,
    attempts: u32,
    task: String,
    handoff: String,
    started_at: String,
    ended_at: String,
    deadline: String,
    has_result: bool,
    cause: String,
    acts: Vec<Offered>,
}

struct ResultRow {
    subtask: String,
    response: Content,
    is_success: bool,
    numeric_value: String,
    tokens: u64,
}

pub(super) async fn show(
    State(console): State<Console>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Query(query): Query<PlanQuery>,
) -> Response {
    let (who, now) = (caller.to_string(), console.broker.now());
    let show = move |view: View<'_>| {
        let id = parsed("plan_id", &id, PlanId::parse)?;
        let (from, results_from) = (place(&query.page)?, place(&query.results)?);
        let (plan, spec) = view.plan(&id)?;
        let (results, next_results) = view.plan_results(&id, results_from, RESULTS_SHOWN)?;
        let until = plan.subtasks.len().min(from.saturating_add(SUBTASKS_SHOWN));
        Ok(PlanPage {
            who,
            row: PlanRow::new(&plan),
            acts: acts::of_plan(view, &plan),
            description: Content::new(&spec.description),
            picture: dag(&spec.links.direct, &spec.links.order).map(|picture| {
                let nodes = nodes(&picture, &plan, &spec);
                (picture, nodes)
            }),
            timeline: timeline(&plan, &spec, class_of, now),
            subtasks: (from..until).map(|place| SubtaskRow::new(view, &plan, &spec, place)).collect(),
            next: Some(until).filter(|until| *until < plan.subtasks.len()),
            results: results.iter().map(ResultRow::new).collect(),
            next_results,
        })
    };
    shown(&console, &caller, show).await
}

fn nodes(picture: &Dag, plan: &Plan, spec: &Spec) -> Vec<Node> {
    let subtasks = spec.subtasks.iter().zip(&plan.subtasks);
    let node = |((x, y), (subtask, run)): (&(u32, u32), _)| {
        let (subtask, run): (&crate::domain::plan::Subtask, &crate::domain::plan::SubtaskRun) = (subtask, run);
        Node {
            x: *x,
            y: *y,
            id: subtask.id.clone(),
            name: shortened(&subtask.id, NODE_LETTERS),
            state: run.state.name(),
            class: class_of(run.state),
        }
    };
    picture.nodes.iter().zip(subtasks).map(node).collect()
}

/// The class of the style sheet. The state is also in words.
fn class_of(state: SubtaskState) -> &'static str {
    match state {
        SubtaskState::Pending | SubtaskState::Ready => "waits",
        SubtaskState::HandingOff | SubtaskState::Running => "runs",
        SubtaskState::Completed => "good",
        SubtaskState::Failed | SubtaskState::TimedOut => "bad",
        SubtaskState::Skipped | SubtaskState::Cancelled => "left",
    }
}

impl SubtaskRow {
    fn new(view: View<'_>, plan: &Plan, spec: &Spec, place: usize) -> Self {
        let run = &plan.subtasks[place];
        let direct = &spec.links.direct[place];
        let mut needs: Vec<String> =
            direct.iter().take(NEEDS_SHOWN).map(|need| spec.subtasks[*need].id.clone()).collect();
        if direct.len() > NEEDS_SHOWN {
            needs.push(format!("{} more", direct.len() - NEEDS_SHOWN));
        }
        let undoing = plan.compensations.iter().find(|known| known.of == place).map(|known| &known.run);
        let undoing = undoing.map(|run| format!("compensation {} {}", run.state.name(), cause_of(run)));
        let elements = plan.elements.iter().filter(|element| element.of == place);
        let ended = elements.filter(|element| element.run.state.is_final()).count();
        let elements = run.elements.filter(|_| !run.state.is_final()).map(|many| format!("{ended} of {many} elements"));
        let cause = std::iter::once(cause_of(run)).chain(elements).chain(undoing).filter(|text| !text.is_empty());
        Self {
            id: spec.subtasks[place].id.clone(),
            state: run.state.name(),
            needs: needs.join(", "),
            agent: run.agent.as_ref().map(ToString::to_string).unwrap_or_default(),
            attempts: run.attempts,
            task: plan.task_id(spec, place).map(|task| task.to_string()).unwrap_or_default(),
            handoff: run.handoff.map(|id| id.to_string()).unwrap_or_default(),
            started_at: text_of(run.started_at),
            ended_at: text_of(run.ended_at),
            deadline: text_of(run.deadline),
            has_result: run.result.is_some(),
            cause: cause.collect::<Vec<_>>().join("; ").trim_end().to_owned(),
            acts: acts::of_subtask(view, plan, &spec.subtasks[place].id, run),
        }
    }
}

/// Why a subtask or a compensation did not complete. Empty: it has, or it has not ended.
fn cause_of(run: &SubtaskRun) -> String {
    let code = run.code.map(|code| format!("{}: ", code.name())).unwrap_or_default();
    format!("{code}{}", shortened(&run.cause, 120))
}

impl ResultRow {
    fn new(result: &v1::SubtaskResult) -> Self {
        Self {
            subtask: result.subtask_id.clone(),
            response: Content::new(&result.response),
            is_success: result.success,
            numeric_value: result.numeric_value.map(|value| value.to_string()).unwrap_or_default(),
            tokens: result.tokens,
        }
    }
}

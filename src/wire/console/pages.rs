//! The pages: what each reads, and the rows that its template shows. A template escapes every text.

mod agent;
mod audit;
mod dag;
pub(super) mod dead_letters;
mod lanes;
mod lists;
mod negotiations;
mod overview;
mod plans;
mod policy;
mod routes;
mod rows;
mod runs;
mod task;
mod threads;
mod workspaces;

use askama::Template;
use axum::{
    Extension,
    extract::{Path, Query, State},
    response::Response,
};
use http::StatusCode;
use serde::Deserialize;

pub(super) use self::routes::router;
use self::rows::{AgentRow, HandoffRow, OfferRow, StepRow};
use super::{Console, page, read, refused};
use crate::{
    broker::{
        Broker, BrokerError,
        access::{Caller, Purpose, Reach},
        queries::{HandoffFilter, View},
    },
    codes::FieldViolation,
    domain::handoff::State as HandoffState,
    ids::{AgentId, MessageId, NAME_LENGTH_MAX, TaskId},
};

/// The entries of one page.
const PAGE_SIZE: usize = 50;

/// A handoff that no broker has, for the question whether the caller may read any.
fn no_handoff() -> MessageId {
    MessageId::parse("01890000-0000-7000-8000-000000000000").expect("a UUID of version 7")
}

fn invalid(path: &str, problem: impl Into<String>) -> BrokerError {
    BrokerError::Fields { violations: vec![FieldViolation { path: path.to_owned(), problem: problem.into() }] }
}

/// Checks that the caller may read some handoffs, as a call for one of them would.
fn may_read_handoffs(broker: &Broker, caller: &Caller) -> Result<(), BrokerError> {
    match broker.access().reach(caller, Purpose::ReadHandoffs)? {
        Reach::Own(_) | Reach::Everything => Ok(()),
        Reach::Nothing => Err(broker.access().no_such_handoff(caller, no_handoff())),
    }
}

fn may_read_dead_letters(broker: &Broker, caller: &Caller) -> Result<(), BrokerError> {
    match broker.access().reach(caller, Purpose::ReadDeadLetters)? {
        Reach::Own(_) | Reach::Everything => Ok(()),
        Reach::Nothing => Err(broker.access().no_such_dead_letter(caller, 0)),
    }
}

/// Why a list without an entry is empty, if a rule forbids its caller such entries: a page that says so is clearer than
/// an empty one. A list with entries is never refused, because policies may permit some of the entries alone.
fn why_empty(denied: BrokerError) -> Result<(), BrokerError> {
    match denied {
        BrokerError::PermissionDenied(denied) if !denied.decision.rules.is_empty() => {
            Err(BrokerError::PermissionDenied(denied))
        }
        _ => Ok(()),
    }
}

/// Shows what was read, or why it was not.
fn shown<T: Template>(caller: &Caller, read: Result<T, BrokerError>) -> Response {
    match read {
        Ok(template) => page(StatusCode::OK, &template),
        Err(error) => refused(caller, &error),
    }
}

/// The filter of the list of handoffs, as the form sends it. Empty: any.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct HandoffQuery {
    state: String,
    agent: String,
    task: String,
    #[serde(rename = "type")]
    task_type: String,
    page: String,
}

impl HandoffQuery {
    fn filter(&self) -> Result<HandoffFilter, BrokerError> {
        let named = |state: &&HandoffState| state.name() == self.state;
        let states = match self.state.as_str() {
            "" | "all" => Vec::new(),
            _ => vec![*HandoffState::ALL.iter().find(named).ok_or_else(|| invalid("state", "must be a known state"))?],
        };
        if self.task_type.len() > NAME_LENGTH_MAX {
            return Err(invalid("type", format!("must have at most {NAME_LENGTH_MAX} bytes")));
        }
        Ok(HandoffFilter {
            task: optional("task", &self.task, |text| TaskId::parse(text).map_err(|error| error.to_string()))?,
            agent: optional("agent", &self.agent, |text| AgentId::parse(text).map_err(|error| error.to_string()))?,
            task_type: Some(self.task_type.clone()).filter(|name| !name.is_empty()),
            // Without a state the page shows what still has a turn to wait for.
            open_only: self.state.is_empty(),
            states,
            ..HandoffFilter::default()
        })
    }
}

fn optional<T>(
    path: &str,
    text: &str,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Result<Option<T>, BrokerError> {
    if text.is_empty() { Ok(None) } else { parse(text).map(Some).map_err(|problem| invalid(path, problem)) }
}

#[derive(Template)]
#[template(path = "handoffs.html")]
struct HandoffsPage {
    who: String,
    query: HandoffQuery,
    states: Vec<&'static str>,
    rows: Vec<HandoffRow>,
    next: String,
}

pub(super) async fn handoffs(
    State(console): State<Console>,
    Extension(caller): Extension<Caller>,
    Query(query): Query<HandoffQuery>,
) -> Response {
    let now = console.broker.now();
    let filter = may_read_handoffs(&console.broker, &caller).and_then(|()| query.filter());
    let filter = match filter {
        Ok(filter) => filter,
        Err(error) => return refused(&caller, &error),
    };
    let who = caller.to_string();
    let (broker, reader) = (console.broker.clone(), caller.clone());
    let list = move |view: View<'_>| {
        let page = view.handoffs(&filter, PAGE_SIZE, &query.page)?;
        if page.entries.is_empty() {
            why_empty(broker.access().no_such_handoff(&reader, no_handoff()))?;
        }
        let rows = page.entries.iter().map(|handoff| HandoffRow::new(handoff, now)).collect();
        let states = HandoffState::ALL.iter().map(|state| state.name()).collect();
        Ok(HandoffsPage { who, query, states, rows, next: page.next_token })
    };
    shown(&caller, read(&console, &caller, list).await)
}

#[derive(Template)]
#[template(path = "handoff.html")]
struct HandoffPage {
    who: String,
    row: HandoffRow,
    epoch: u64,
    mode: String,
    whole_deadline: String,
    failure: Option<(&'static str, String)>,
    offers: Vec<OfferRow>,
    steps: Vec<StepRow>,
    next_candidates: Vec<String>,
}

pub(super) async fn handoff(
    State(console): State<Console>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Response {
    let now = console.broker.now();
    let who = caller.to_string();
    let show = move |view: View<'_>| {
        let id = MessageId::parse(&id).map_err(|error| invalid("handoff_id", error.to_string()))?;
        let handoff = view.handoff(id)?;
        Ok(HandoffPage {
            who,
            row: HandoffRow::new(&handoff, now),
            epoch: handoff.epoch,
            mode: rows::words(&handoff.mode),
            whole_deadline: handoff.whole_deadline.to_string(),
            failure: handoff.failure.as_ref().map(|failure| (failure.code.name(), failure.message.clone())),
            offers: handoff.offers.iter().map(OfferRow::new).collect(),
            steps: StepRow::all(&handoff.steps),
            next_candidates: handoff.next_candidates.iter().map(ToString::to_string).collect(),
        })
    };
    shown(&caller, read(&console, &caller, show).await)
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct AgentQuery {
    after: String,
}

#[derive(Template)]
#[template(path = "agents.html")]
struct AgentsPage {
    who: String,
    rows: Vec<AgentRow>,
    next: Option<String>,
}

pub(super) async fn agents(
    State(console): State<Console>,
    Extension(caller): Extension<Caller>,
    Query(query): Query<AgentQuery>,
) -> Response {
    let broker = &console.broker;
    let list = || {
        broker.access().may_see_directory(&caller)?;
        broker.count_reads(&caller, PAGE_SIZE)?;
        let parse = |text: &str| AgentId::parse(text).map_err(|error| error.to_string());
        let after = optional("after", &query.after, parse)?;
        let entries = broker.directory().list(after.as_ref(), PAGE_SIZE);
        let next = entries.last().filter(|_| entries.len() == PAGE_SIZE).map(|last| last.id().to_string());
        let now = broker.now();
        let rows = entries.iter().map(|entry| AgentRow::new(entry, broker.directory(), now)).collect();
        Ok(AgentsPage { who: caller.to_string(), rows, next })
    };
    shown(&caller, list())
}

//! The pages: what each reads, and the rows that its template shows. A template escapes every text.

mod acts;
mod agent;
mod audit;
mod cluster;
mod dag;
mod dead_letters;
mod handoff;
mod lanes;
mod lists;
mod map;
mod negotiations;
mod overview;
mod plans;
mod policy;
mod registry;
mod routes;
mod rows;
mod runs;
mod story;
mod task;
mod tasks;
mod threads;
mod timeline;
mod workspaces;

use std::fmt::Display;

use askama::Template;
use axum::{
    Extension,
    extract::{Query, State},
    response::Response,
};
use http::StatusCode;
use serde::Deserialize;

pub(super) use self::routes::router;
use self::{
    lists::check_list,
    rows::{AgentRow, HandoffRow},
};
use super::{Console, page, read, refused};
use crate::{
    broker::{
        BrokerError,
        access::{Caller, Purpose},
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

/// Reads a page and makes its HTML, or the page with the reason of a refusal.
async fn shown<T: Template>(
    console: &Console,
    caller: &Caller,
    make: impl FnOnce(View<'_>) -> Result<T, BrokerError> + Send + 'static,
) -> Response {
    // On the same thread as the read: a long page takes a while, too.
    let made = read(console, caller, |view| make(view).map(|template| page(StatusCode::OK, &template)));
    made.await.unwrap_or_else(|error| refused(caller, &error))
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
        let state = if self.state == "all" { "" } else { &self.state };
        if self.task_type.len() > NAME_LENGTH_MAX {
            return Err(invalid("type", format!("must have at most {NAME_LENGTH_MAX} bytes")));
        }
        Ok(HandoffFilter {
            task: optional("task", &self.task, TaskId::parse)?,
            agent: optional("agent", &self.agent, AgentId::parse)?,
            task_type: Some(self.task_type.clone()).filter(|name| !name.is_empty()),
            // Without a state the page shows what still has a turn to wait for.
            open_only: self.state.is_empty(),
            states: named("state", state, HandoffState::ALL, HandoffState::name)?.into_iter().collect(),
            ..HandoffFilter::default()
        })
    }
}

/// Parses a field of a form or of a path.
fn parsed<T, E: Display>(path: &str, text: &str, parse: impl FnOnce(&str) -> Result<T, E>) -> Result<T, BrokerError> {
    parse(text).map_err(|error| invalid(path, error.to_string()))
}

/// Parses a field of a form. Empty: any.
fn optional<T, E: Display>(
    path: &str,
    text: &str,
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> Result<Option<T>, BrokerError> {
    if text.is_empty() { Ok(None) } else { parsed(path, text, parse).map(Some) }
}

/// Finds the value whose name a form sends. Empty: any.
fn named<T: Copy>(
    path: &str,
    text: &str,
    all: impl IntoIterator<Item = T>,
    name: impl Fn(T) -> &'static str,
) -> Result<Option<T>, BrokerError> {
    if text.is_empty() {
        return Ok(None);
    }
    let found = all.into_iter().find(|value| name(*value) == text);
    found.map(Some).ok_or_else(|| invalid(path, "must be a known name"))
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
    let who = caller.to_string();
    let list = move |view: View<'_>| {
        let page = view.handoffs(&query.filter()?, PAGE_SIZE, &query.page)?;
        let no_such = || view.access.no_such_handoff(view.caller, no_handoff());
        check_list(view, Purpose::ReadHandoffs, page.entries.is_empty(), no_such)?;
        let rows = page.entries.iter().map(|handoff| HandoffRow::new(view, handoff)).collect::<Result<_, _>>()?;
        let states = HandoffState::ALL.iter().map(|state| state.name()).collect();
        Ok(HandoffsPage { who, query, states, rows, next: page.next_token })
    };
    shown(&console, &caller, list).await
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
    acts: Vec<acts::Offered>,
    rows: Vec<AgentRow>,
    next: Option<String>,
}

pub(super) async fn agents(
    State(console): State<Console>,
    Extension(caller): Extension<Caller>,
    Query(query): Query<AgentQuery>,
) -> Response {
    let (broker, reader) = (console.broker.clone(), caller.clone());
    let list = move |view: View<'_>| {
        view.access.may_see_directory(&reader)?;
        let after = optional("after", &query.after, AgentId::parse)?;
        let entries = broker.directory().list(after.as_ref(), PAGE_SIZE);
        let next = entries.last().filter(|_| entries.len() == PAGE_SIZE).map(|last| last.id().to_string());
        let now = broker.now();
        let rows = entries.iter().map(|entry| AgentRow::new(entry, broker.directory(), now)).collect();
        let acts = vec![acts::to_invite(view)];
        Ok(AgentsPage { who: reader.to_string(), acts, rows, next })
    };
    shown(&console, &caller, list).await
}

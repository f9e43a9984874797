//! Dead letters: the list, one of them, and the decisions about them. A decision is the command of the gRPC call, so it
//! has the same rights and the same entry in the audit log.

use askama::Template;
use axum::{
    Extension, Form,
    extract::{Path, Query, State},
    response::Response,
};
use http::StatusCode;
use serde::Deserialize;

use super::{
    super::{Console, page, read, refused},
    PAGE_SIZE,
    acts::{self, Offered},
    invalid,
    lists::check_list,
    named, optional,
    rows::{AttemptRow, DeadLetterRow},
    shown,
};
use crate::{
    broker::{
        BrokerError,
        access::{Caller, Purpose},
        engine::Command,
        queries::{DeadLetterFilter, View},
    },
    domain::dead_letter::{DeadState, ParkReason},
    ids::{AgentId, TaskId, parse_number},
    records::DeadLetterRecord,
};

/// The most dead letters that one request redrives. The page says how many are left.
const REDRIVEN_MAX: usize = 500;
/// The most dead letters that one read of the store returns.
const READ_AT_A_TIME: usize = 16;

/// The filter of the list, as the form sends it. Empty: any; without a state, the parked ones.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct DeadLetterQuery {
    state: String,
    reason: String,
    agent: String,
    sender: String,
    task: String,
    /// The page of the list.
    page: String,
    /// The agent to redrive to. Empty: each message's own receiver.
    to: String,
}

fn reasons() -> impl Iterator<Item = ParkReason> {
    (1..).map_while(ParkReason::from_number)
}

fn states() -> impl Iterator<Item = DeadState> {
    (1..).map_while(DeadState::from_number)
}

impl DeadLetterQuery {
    fn filter(&self) -> Result<DeadLetterFilter, BrokerError> {
        Ok(DeadLetterFilter {
            states: named("state", &self.state, states(), DeadState::name)?.into_iter().collect(),
            reasons: named("reason", &self.reason, reasons(), ParkReason::name)?.into_iter().collect(),
            agent: optional("agent", &self.agent, AgentId::parse)?,
            sender: optional("sender", &self.sender, AgentId::parse)?,
            task: optional("task", &self.task, TaskId::parse)?,
            ..DeadLetterFilter::default()
        })
    }
}

fn may_read(view: View<'_>, is_empty: bool) -> Result<(), BrokerError> {
    check_list(view, Purpose::ReadDeadLetters, is_empty, || view.access.no_such_dead_letter(view.caller, 0))
}

#[derive(Template)]
#[template(path = "dead_letters.html")]
struct ListPage {
    who: String,
    query: DeadLetterQuery,
    states: Vec<&'static str>,
    reasons: Vec<&'static str>,
    rows: Vec<DeadLetterRow>,
    next: String,
}

pub(super) async fn list(
    State(console): State<Console>,
    Extension(caller): Extension<Caller>,
    Query(query): Query<DeadLetterQuery>,
) -> Response {
    let who = caller.to_string();
    let list = move |view: View<'_>| {
        let page = view.dead_letters(&query.filter()?, PAGE_SIZE, &query.page)?;
        may_read(view, page.entries.is_empty())?;
        let rows = page.entries.iter().map(DeadLetterRow::new).collect();
        let (states, reasons) = (states().map(DeadState::name).collect(), reasons().map(ParkReason::name).collect());
        Ok(ListPage { who, query, states, reasons, rows, next: page.next_token })
    };
    shown(&console, &caller, list).await
}

#[derive(Template)]
#[template(path = "dead_letter.html")]
struct OnePage {
    who: String,
    row: DeadLetterRow,
    acts: Vec<Offered>,
    attempts: Vec<AttemptRow>,
    settlement: Option<(String, String)>,
    redriven_to: Option<String>,
    redriven_as: Option<String>,
}

pub(super) fn number(text: &str) -> Result<u64, BrokerError> {
    parse_number(text).ok_or_else(|| invalid("dead_letter_id", "must be a decimal number without leading zeros"))
}

pub(super) async fn one(
    State(console): State<Console>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Response {
    let who = caller.to_string();
    let one = move |view: View<'_>| {
        let dead = view.dead_letter(number(&id)?)?;
        let settlement = dead.settlement.as_ref();
        Ok(OnePage {
            who,
            row: DeadLetterRow::new(&dead),
            acts: acts::of_dead_letter(view, &dead),
            attempts: dead.attempts.iter().map(AttemptRow::new).collect(),
            settlement: settlement.map(|settled| (settled.at.to_string(), settled.text.clone())),
            redriven_to: settlement.and_then(|settled| settled.redriven_to.as_ref()).map(ToString::to_string),
            redriven_as: settlement.and_then(|settled| settled.redriven_handoff).map(|id| id.to_string()),
        })
    };
    shown(&console, &caller, one).await
}

/// The dead letters that a redrive would try, before it is made.
#[derive(Template)]
#[template(path = "redrive.html")]
struct ReviewPage {
    who: String,
    query: DeadLetterQuery,
    count: usize,
    has_more: bool,
    rows: Vec<DeadLetterRow>,
}

pub(super) async fn review(
    State(console): State<Console>,
    Extension(caller): Extension<Caller>,
    Query(query): Query<DeadLetterQuery>,
) -> Response {
    let found = match parked(&console, &caller, &query).await {
        Ok(found) => found,
        Err(error) => return refused(&caller, &error),
    };
    let (count, has_more) = (found.len().min(REDRIVEN_MAX), found.len() > REDRIVEN_MAX);
    let rows = found.iter().take(PAGE_SIZE).map(DeadLetterRow::new).collect();
    page(StatusCode::OK, &ReviewPage { who: caller.to_string(), query, count, has_more, rows })
}

#[derive(Template)]
#[template(path = "redriven.html")]
struct RedrivenPage {
    who: String,
    redriven: Vec<u64>,
    refused: Vec<(u64, String)>,
    has_more: bool,
}

pub(super) async fn redrive_matching(
    State(console): State<Console>,
    Extension(caller): Extension<Caller>,
    Form(query): Form<DeadLetterQuery>,
) -> Response {
    let to = optional("to", &query.to, AgentId::parse);
    let (to, found) = match (to, parked(&console, &caller, &query).await) {
        (Ok(to), Ok(found)) => (to, found),
        (Err(error), _) | (_, Err(error)) => return refused(&caller, &error),
    };
    let (mut redriven, mut stayed) = (Vec::new(), Vec::new());
    for dead in found.iter().take(REDRIVEN_MAX) {
        let (dead_letter, to, acting) = (dead.number, to.clone(), caller.clone());
        match console.broker.ask(|reply| Command::Redrive { dead_letter, to, caller: acting, reply }).await {
            Ok(_) => redriven.push(dead_letter),
            // The refusal of one letter does not end the redrive of the rest.
            Err(error) => stayed.push((dead_letter, format!("{}: {error}", error.code().name()))),
        }
    }
    let has_more = found.len() > REDRIVEN_MAX;
    page(StatusCode::OK, &RedrivenPage { who: caller.to_string(), redriven, refused: stayed, has_more })
}

/// The parked dead letters that match, oldest first, one more than a request redrives at most.
async fn parked(
    console: &Console,
    caller: &Caller,
    query: &DeadLetterQuery,
) -> Result<Vec<DeadLetterRecord>, BrokerError> {
    if !query.state.is_empty() && query.state != DeadState::Parked.name() {
        return Err(invalid("state", "must be PARKED: only parked dead letters can be redriven"));
    }
    let filter = query.filter()?;
    let last = read(console, caller, |view| may_read(view, false).and_then(|()| view.last_dead_letter())).await?;
    let (mut found, mut after) = (Vec::new(), Some(0));
    while let Some(from) = after.filter(|_| found.len() <= REDRIVEN_MAX) {
        let filter = filter.clone();
        let some = read(console, caller, move |view| view.dead_letters_after(&filter, from, last, READ_AT_A_TIME));
        let (some, next) = some.await?;
        found.extend(some);
        after = next;
    }
    found.truncate(REDRIVEN_MAX + 1);
    // The whole is refused where the first is, as by the call.
    match found.first() {
        Some(first) => console.broker.access().may_settle_dead_letter(caller, first)?,
        None => return Err(BrokerError::NothingMatches),
    }
    Ok(found)
}

//! Redriving and discarding one dead letter.

use axum::{
    Extension, Form,
    extract::{Path, Query, State},
    response::Response,
};
use serde::Deserialize;

use super::{Act, Field, Offered, Word, answered, reviewed};
use crate::{
    broker::{BrokerError, Refused, access::Caller, engine::Command, queries::View, refused},
    domain::dead_letter::DeadState,
    envelope::Checks,
    ids::{AgentId, NAME_LENGTH_MAX},
    records::DeadLetterRecord,
    wire::console::{
        Console,
        pages::{dead_letters::number, rows::DeadLetterRow},
        show,
    },
};

/// The most bytes of a reason.
const REASON_BYTES_MAX: usize = 4096;

/// The acts on a dead letter that can be done now.
pub(in crate::wire::console::pages) fn of_dead_letter(view: View<'_>, dead: &DeadLetterRecord) -> Vec<Offered> {
    if dead.state != DeadState::Parked {
        return Vec::new();
    }
    let act = |name, path: &str| {
        let right = view.access.may_settle_dead_letter(view.caller, dead);
        Offered::new(name, format!("/dead-letters/{}/{path}", dead.number), right)
    };
    vec![act("Redrive", "redrive"), act("Discard", "discard")]
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct DecisionForm {
    to: String,
    reason: String,
}

pub(super) async fn review_redrive(
    State(console): State<Console>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Query(form): Query<DecisionForm>,
) -> Response {
    reviewed(&console, &caller, move |view| redriving(view, &id, &form)).await
}

pub(super) async fn redrive(
    State(console): State<Console>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Form(form): Form<DecisionForm>,
) -> Response {
    let outcome = redriven(&console, &caller, &id, &form).await;
    let back = format!("/dead-letters/{id}");
    answered(&console, &caller, outcome, &back, move |view| redriving(view, &id, &form)).await
}

async fn redriven(console: &Console, caller: &Caller, id: &str, form: &DecisionForm) -> Result<(), Refused> {
    let dead_letter = number(id).map_err(refused)?;
    let mut checks = Checks::default();
    let to = checks.optional_id("to", &form.to, AgentId::parse);
    checks.finish().map_err(refused)?;
    let acting = caller.clone();
    let command = |reply| Command::Redrive { dead_letter, to, caller: acting, reply };
    console.broker.ask(command).await.map(drop)
}

pub(super) async fn review_discard(
    State(console): State<Console>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Query(form): Query<DecisionForm>,
) -> Response {
    reviewed(&console, &caller, move |view| discarding(view, &id, &form)).await
}

pub(super) async fn discard(
    State(console): State<Console>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Form(form): Form<DecisionForm>,
) -> Response {
    let outcome = discarded(&console, &caller, &id, &form).await;
    let back = format!("/dead-letters/{id}");
    answered(&console, &caller, outcome, &back, move |view| discarding(view, &id, &form)).await
}

async fn discarded(console: &Console, caller: &Caller, id: &str, form: &DecisionForm) -> Result<(), Refused> {
    let dead_letter = number(id).map_err(refused)?;
    let mut checks = Checks::default();
    checks.text("reason", &form.reason, REASON_BYTES_MAX);
    checks.finish().map_err(refused)?;
    let (acting, reason_text) = (caller.clone(), form.reason.clone());
    let command = |reply| Command::Discard { dead_letter, caller: acting, reason_text, reply };
    console.broker.ask(command).await.map(drop)
}

/// The letter that the caller may decide about, and its kind.
fn letter(view: View<'_>, id: &str) -> Result<(DeadLetterRow, String), BrokerError> {
    let dead = view.dead_letter(number(id)?)?;
    view.access.may_settle_dead_letter(view.caller, &dead)?;
    let row = DeadLetterRow::new(&dead);
    let about = format!(
        "{} from {} for {}. {}: {}",
        show::words(row.message_type),
        row.sender,
        row.agent,
        show::words(row.reason),
        row.reason_text
    );
    Ok((row, about))
}

fn redriving(view: View<'_>, id: &str, form: &DecisionForm) -> Result<Act, BrokerError> {
    let (row, about) = letter(view, id)?;
    let receiver = if form.to.is_empty() { "the agent that you name".to_owned() } else { form.to.clone() };
    let what = match row.handoff {
        Some(_) => format!(
            "The broker asks {} again to take task {}, or {receiver} instead: with the words and the terms of the request, and with its whole time anew.",
            row.agent, row.task
        ),
        None => format!("The message goes into the mailbox of {} again, or of {receiver} instead.", row.agent),
    };
    Ok(Act {
        who: view.caller.to_string(),
        section: "dead-letters",
        title: format!("Redrive dead letter {}?", row.number),
        about,
        effects: vec![what, "The dead letter is then redriven: it cannot be redriven or discarded again.".to_owned()],
        audit: format!("Dead letter redriven, on {}", row.number),
        path: format!("/dead-letters/{}/redrive", row.number),
        back: format!("/dead-letters/{}", row.number),
        fields: vec![Field {
            placeholder: "its own receiver",
            ..Field::text("to", "Deliver to", &form.to, NAME_LENGTH_MAX)
        }],
        button: "Redrive",
        command: vec![
            Word::fixed(format!("baton dlq redrive {}", row.number)),
            Word::field("to", " --to ", &form.to, ""),
        ],
        ..Act::default()
    })
}

fn discarding(view: View<'_>, id: &str, form: &DecisionForm) -> Result<Act, BrokerError> {
    let (row, about) = letter(view, id)?;
    let mut effects =
        vec!["The message is not delivered, now or later. The broker keeps it for a while, as discarded.".to_owned()];
    if !row.task.is_empty() {
        effects.push(format!("Task {} stays with its owner.", row.task));
    }
    Ok(Act {
        who: view.caller.to_string(),
        section: "dead-letters",
        title: format!("Discard dead letter {}?", row.number),
        about,
        effects,
        audit: format!("Dead letter discarded, on {}, with the reason", row.number),
        path: format!("/dead-letters/{}/discard", row.number),
        back: format!("/dead-letters/{}", row.number),
        fields: vec![Field::reason(&form.reason, REASON_BYTES_MAX)],
        button: "Discard",
        command: vec![
            Word::fixed(format!("baton dlq discard {}", row.number)),
            Word::field("reason", " --reason ", &form.reason, ""),
        ],
        ..Act::default()
    })
}

//! Cancelling a run.

use std::sync::Arc;

use axum::{
    Extension, Form,
    extract::{Path, State},
    response::Response,
};
use serde::Deserialize;

use super::{Act, Field, Offered, Word, answered, encoded, reviewed};
use crate::{
    broker::{BrokerError, Refused, access::Caller, engine::Command, queries::View, refused},
    domain::{
        EntityId, Input,
        routing::{self, Run, RunId},
    },
    envelope::Checks,
    ids::MessageId,
    wire::console::{Console, pages::parsed, read},
};

/// The most bytes of a reason.
const REASON_BYTES_MAX: usize = 4096;

/// The acts on a run that can be done now.
pub(in crate::wire::console::pages) fn of_run(view: View<'_>, run: &Run) -> Vec<Offered> {
    if run.state.is_final() {
        return Vec::new();
    }
    let right = view.access.may_record_turn(view.caller, run);
    vec![Offered::new("Cancel the run", format!("/runs/{}/cancel", run.id), right)]
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct CancelForm {
    reason: String,
}

pub(super) async fn review(
    State(console): State<Console>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Response {
    reviewed(&console, &caller, move |view| act(view, &id, &CancelForm::default())).await
}

pub(super) async fn cancel(
    State(console): State<Console>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Form(form): Form<CancelForm>,
) -> Response {
    let outcome = apply(&console, &caller, &id, &form.reason).await;
    let back = format!("/runs/{}", encoded(&id));
    answered(&console, &caller, outcome, &back, move |view| act(view, &id, &form)).await
}

async fn apply(console: &Console, caller: &Caller, id: &str, reason: &str) -> Result<(), Refused> {
    let mut checks = Checks::default();
    let id = checks.id("run_id", id, MessageId::parse).map(RunId);
    checks.text("reason", reason, REASON_BYTES_MAX);
    let id = checks.finish_with(id).map_err(refused)?;
    let permitted = read(console, caller, move |view| {
        let run = view.run(id)?;
        view.access.may_record_turn(view.caller, &run)
    });
    permitted.await.map_err(refused)?;
    let cancel = routing::Input::Cancel { by: caller.as_agent().cloned(), reason: reason.to_owned() };
    let (about, input) = (EntityId::Run(id), Box::new(Input::Routing(cancel)));
    let caller = caller.clone();
    console.broker.ask(|reply| Command::Apply { about, input, caller, reply }).await.map(drop)
}

fn act(view: View<'_>, id: &str, form: &CancelForm) -> Result<Act, BrokerError> {
    let run: Arc<Run> = view.run(RunId(parsed("run_id", id, MessageId::parse)?))?;
    view.access.may_record_turn(view.caller, &run)?;
    let mut effects = vec!["The run ends as cancelled. Later turns are refused, and no handoff follows.".to_owned()];
    if let Some(task) = &run.task {
        effects.push(format!("Task {task} stays with its owner."));
    }
    let path = format!("/runs/{}", run.id);
    Ok(Act {
        who: view.caller.to_string(),
        section: "runs",
        title: format!("Cancel the run of {}?", run.graph.id),
        about: format!("Run {}, step {}", run.id, run.step),
        effects,
        audit: match view.caller.as_agent().is_some_and(|agent| view.access.takes_part_in_run(agent, &run)) {
            true => "none: the run is that of its participants, and its path has the act".to_owned(),
            false => format!("Run cancelled, on {}, with the reason", run.id),
        },
        path: format!("{path}/cancel"),
        back: path,
        fields: vec![Field::reason(&form.reason, REASON_BYTES_MAX)],
        button: "Cancel the run",
        command: vec![
            Word::fixed("baton run cancel"),
            Word::value(&run.id.to_string()),
            Word::field("reason", " --reason ", &form.reason, ""),
        ],
        ..Act::default()
    })
}

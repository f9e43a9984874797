//! Reassigning a task.

use axum::{
    Extension, Form,
    extract::{Path, State},
    response::Response,
};
use serde::Deserialize;

use super::{Act, Field, Offered, Word, answered, encoded, reviewed};
use crate::{
    broker::{
        Broker, BrokerError, Refused,
        access::Caller,
        engine::{Command, Reassignment},
        queries::View,
        refused,
    },
    domain::{Receiver, handoff::Task},
    envelope::Checks,
    ids::{AgentId, TaskId, parse_number},
    wire::console::{Console, pages::parsed},
};

/// The most bytes of a reason.
const REASON_BYTES_MAX: usize = 4096;
/// The most agents that the form suggests.
const SUGGESTED: usize = 100;

/// The acts on a task that can be done now.
pub(in crate::wire::console::pages) fn of_task(view: View<'_>, task: &Task) -> Vec<Offered> {
    // A plan decides about its tasks.
    if task.status.is_final() || task.plan.is_some() {
        return Vec::new();
    }
    let right = view.access.may_reassign(view.caller, task);
    vec![Offered::new("Reassign", format!("/tasks/{}/reassign", encoded(task.id.as_str())), right)]
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct ReassignForm {
    to: String,
    reason: String,
    /// The epoch that the reader has seen.
    epoch: String,
}

pub(super) async fn review(
    State(console): State<Console>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Response {
    let (broker, form) = (console.broker.clone(), ReassignForm::default());
    reviewed(&console, &caller, move |view| act(view, &broker, &id, &form)).await
}

pub(super) async fn reassign(
    State(console): State<Console>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Form(form): Form<ReassignForm>,
) -> Response {
    let outcome = match wanted(&id, &form) {
        Ok(wanted) => {
            let acting = caller.clone();
            console.broker.ask(|reply| Command::Reassign { wanted, caller: acting, reply }).await.map(drop)
        }
        Err(error) => Err(error),
    };
    let (broker, back) = (console.broker.clone(), format!("/tasks/{}", encoded(&id)));
    answered(&console, &caller, outcome, &back, move |view| act(view, &broker, &id, &form)).await
}

fn wanted(id: &str, form: &ReassignForm) -> Result<Reassignment, Refused> {
    let mut checks = Checks::default();
    let task = checks.id("task_id", id, TaskId::parse);
    let to = checks.id("to", &form.to, Receiver::parse);
    if form.to.is_empty() {
        checks.wrong("to", "must not be empty");
    }
    let epoch = parse_number(&form.epoch).filter(|epoch| *epoch > 0);
    if epoch.is_none() {
        checks.wrong("epoch", "must be at least 1");
    }
    checks.text("reason", &form.reason, REASON_BYTES_MAX);
    let (task, to, expected_epoch) = checks.finish_with((task, to, epoch)).map_err(refused)?;
    Ok(Reassignment { task, expected_epoch, to, reason_text: form.reason.clone() })
}

fn act(view: View<'_>, broker: &Broker, id: &str, form: &ReassignForm) -> Result<Act, BrokerError> {
    let id = parsed("task_id", id, TaskId::parse)?;
    let record = view.task(&id)?;
    let task = &record.task;
    view.access.may_reassign(view.caller, task)?;
    let (owner, epoch) = (&task.owner, task.epoch);
    let mut effects = vec![format!(
        "At once, {} owns the task, at epoch {}. Later messages of {owner} about it are refused, and {owner} is told to drop it.",
        AgentId::coordinator(),
        epoch + 1
    )];
    let latest = record.handoff.as_ref().map(|record| &*record.handoff);
    if let Some(open) = latest.filter(|handoff| !handoff.state.is_final()) {
        effects.push(format!("The open handoff to {} is cancelled, and {0} is told to drop the task.", open.candidate));
    }
    for loan in &task.loans {
        effects.push(format!("The loan of {} ends: the task does not return to it.", loan.delegator));
    }
    effects.push(
        "The agent that you choose is asked to take the task, with the last context that an agent has sent. If it does \
         not, the task stays with the coordinator, and the request is a dead letter."
            .to_owned(),
    );
    let to = Field {
        is_required: true,
        placeholder: "AGENT or type:NAME",
        choices: suggested(view, broker, Some(owner)),
        ..Field::text("to", "New owner", &form.to, 133)
    };
    let path = format!("/tasks/{}", encoded(id.as_str()));
    Ok(Act {
        who: view.caller.to_string(),
        section: "tasks",
        title: format!("Reassign task {id} of {owner}?"),
        about: view
            .summary_of_task(task, latest.filter(|handoff| view.access.may_see_handoff(view.caller, handoff)))?,
        effects,
        audit: format!("Task reassigned, on {id}, with the new owner, the epoch and the reason"),
        path: format!("{path}/reassign"),
        back: path,
        fields: vec![to, Field::reason(&form.reason, REASON_BYTES_MAX), Field::hidden("epoch", &epoch.to_string())],
        button: "Reassign",
        command: vec![
            Word::fixed("baton task reassign"),
            Word::value(id.as_str()),
            Word::fixed(format!(" --epoch {epoch}")),
            Word::field("to", " --to ", &form.to, " --to AGENT"),
            Word::field("reason", " --reason ", &form.reason, ""),
        ],
        problem: None,
    })
}

/// The agents and types that may take work from its owner, for a reader that may see the directory.
pub(super) fn suggested(view: View<'_>, broker: &Broker, owner: Option<&AgentId>) -> Vec<String> {
    if view.access.may_see_directory(view.caller).is_err() {
        return Vec::new();
    }
    let (directory, now) = (broker.directory(), broker.now());
    let entries = directory.list(None, SUGGESTED);
    let able = entries.iter().filter(|entry| {
        let id = entry.id();
        Some(&id) != owner && directory.is_registered(&id) && !directory.is_gone(&id, now)
    });
    let mut types: Vec<String> = Vec::new();
    let mut agents: Vec<String> = Vec::new();
    for entry in able {
        agents.push(entry.id().to_string());
        types.extend(entry.types.iter().map(|kind| format!("type:{kind}")));
    }
    types.sort();
    types.dedup();
    agents.into_iter().chain(types).take(SUGGESTED).collect()
}

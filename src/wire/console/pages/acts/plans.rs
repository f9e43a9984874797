//! Cancelling and retrying a plan.

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
        plan::{self, Plan, PlanState, SubtaskState},
    },
    envelope::Checks,
    ids::PlanId,
    wire::console::{Console, pages::parsed, read},
};

/// The most bytes of a reason.
pub(super) const REASON_BYTES_MAX: usize = 1024;

/// The acts on a plan that can be done now.
pub(in crate::wire::console::pages) fn of_plan(view: View<'_>, plan: &Plan) -> Vec<Offered> {
    let path = format!("/plans/{}", encoded(plan.id.as_str()));
    let right = view.access.may_cancel_plan(view.caller, plan);
    match plan.state {
        PlanState::Running => vec![Offered::new("Cancel the plan", format!("{path}/cancel"), right)],
        PlanState::Failed | PlanState::Cancelled => {
            vec![Offered::new("Retry the plan", format!("{path}/retry"), right)]
        }
        PlanState::Completed => Vec::new(),
    }
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct CancelForm {
    reason: String,
}

pub(super) async fn review_cancel(
    State(console): State<Console>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Response {
    reviewed(&console, &caller, move |view| cancellation(view, &id, &CancelForm::default())).await
}

pub(super) async fn cancel(
    State(console): State<Console>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Form(form): Form<CancelForm>,
) -> Response {
    let outcome = apply(&console, &caller, &id, &form.reason, |by, reason| plan::Input::Cancel { by, reason }).await;
    let back = format!("/plans/{}", encoded(&id));
    answered(&console, &caller, outcome, &back, move |view| cancellation(view, &id, &form)).await
}

pub(super) async fn review_retry(
    State(console): State<Console>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Response {
    reviewed(&console, &caller, move |view| another_round(view, &id)).await
}

pub(super) async fn retry(
    State(console): State<Console>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Response {
    let outcome = apply(&console, &caller, &id, "", |by, _| plan::Input::Retry { by }).await;
    let back = format!("/plans/{}", encoded(&id));
    answered(&console, &caller, outcome, &back, move |view| another_round(view, &id)).await
}

/// Runs the step of a call on a plan that the caller may change.
pub(super) async fn apply(
    console: &Console,
    caller: &Caller,
    id: &str,
    reason: &str,
    input: impl FnOnce(String, String) -> plan::Input,
) -> Result<(), Refused> {
    let mut checks = Checks::default();
    let id = checks.id("plan_id", id, PlanId::parse);
    checks.text("reason", reason, REASON_BYTES_MAX);
    let id = checks.finish_with(id).map_err(refused)?;
    let wanted = id.clone();
    let permitted = read(console, caller, move |view| {
        let (plan, _) = view.plan(&wanted)?;
        view.access.may_cancel_plan(view.caller, &plan)
    });
    permitted.await.map_err(refused)?;
    let input = Box::new(Input::Plan(input(caller.to_string(), reason.to_owned())));
    let about = EntityId::Plan(id);
    let caller = caller.clone();
    console.broker.ask(|reply| Command::Apply { about, input, caller, reply }).await.map(drop)
}

/// The plan that the caller may change.
pub(super) fn changeable(view: View<'_>, id: &str) -> Result<std::sync::Arc<Plan>, BrokerError> {
    let (plan, _) = view.plan(&parsed("plan_id", id, PlanId::parse)?)?;
    view.access.may_cancel_plan(view.caller, &plan)?;
    Ok(plan)
}

pub(super) fn subtasks(many: usize) -> String {
    format!("{many} subtask{}", if many == 1 { "" } else { "s" })
}

/// The entry of an act on a plan. The submitter's own acts are in the log of the plan alone.
pub(super) fn audit(view: View<'_>, plan: &Plan, name: &str, subject: &str, with: &str) -> String {
    if view.caller.as_agent() == Some(&plan.submitter) {
        return "none: the plan is the submitter's own, and its log has the act".to_owned();
    }
    let with = if with.is_empty() { String::new() } else { format!(", {with}") };
    format!("{name}, on {subject}{with}")
}

fn cancellation(view: View<'_>, id: &str, form: &CancelForm) -> Result<Act, BrokerError> {
    let plan = changeable(view, id)?;
    let count = |states: &[SubtaskState]| plan.subtasks.iter().filter(|one| states.contains(&one.state)).count();
    let mut effects = Vec::new();
    for (many, effect) in [
        (count(&[SubtaskState::HandingOff]), "being handed over: their handoffs are cancelled"),
        (
            count(&[SubtaskState::Running]),
            "running: their tasks are taken back, and their agents are told to drop them",
        ),
        (count(&[SubtaskState::Pending, SubtaskState::Ready]), "not begun: they do not begin"),
        (count(&[SubtaskState::Completed]), "completed: they keep their results, and nothing is undone"),
    ] {
        if many > 0 {
            effects.push(format!("{} {effect}.", subtasks(many)));
        }
    }
    effects.push("The plan is over. A retry starts it again.".to_owned());
    let path = format!("/plans/{}", encoded(plan.id.as_str()));
    Ok(Act {
        who: view.caller.to_string(),
        section: "plans",
        title: format!("Cancel plan {}?", plan.id),
        effects,
        audit: audit(view, &plan, "Plan cancelled", plan.id.as_str(), "with the reason"),
        path: format!("{path}/cancel"),
        back: path,
        fields: vec![Field::reason(&form.reason, REASON_BYTES_MAX)],
        button: "Cancel the plan",
        command: vec![
            Word::fixed("baton plan cancel"),
            Word::value(plan.id.as_str()),
            Word::field("reason", " --reason ", &form.reason, ""),
        ],
        ..Act::default()
    })
}

fn another_round(view: View<'_>, id: &str) -> Result<Act, BrokerError> {
    let plan = changeable(view, id)?;
    // A compensation that has completed has undone the work of its subtask.
    let is_undone = |place: usize| {
        plan.compensations.iter().any(|known| known.of == place && known.run.state == SubtaskState::Completed)
    };
    let keeps =
        |(place, subtask): (usize, &plan::SubtaskRun)| subtask.state == SubtaskState::Completed && !is_undone(place);
    let kept = plan.subtasks.iter().enumerate().filter(|one| keeps(*one)).count();
    let left = plan.subtasks.len() - kept;
    let mut effects = vec![format!("{} that did not complete, or whose work was undone, begin again.", subtasks(left))];
    if kept > 0 {
        effects.push(format!("{} that completed keep their results.", subtasks(kept)));
    }
    effects.push(format!("Round {} begins, with the whole time of the plan anew.", plan.round + 1));
    let path = format!("/plans/{}", encoded(plan.id.as_str()));
    Ok(Act {
        who: view.caller.to_string(),
        section: "plans",
        title: format!("Retry plan {}?", plan.id),
        about: plan.reason.clone(),
        effects,
        audit: audit(view, &plan, "Plan retried", plan.id.as_str(), ""),
        path: format!("{path}/retry"),
        back: path,
        button: "Retry the plan",
        command: vec![Word::fixed("baton plan retry"), Word::value(plan.id.as_str())],
        ..Act::default()
    })
}

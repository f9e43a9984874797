//! Cancelling, retrying and reassigning one subtask of a running plan.

use std::sync::Arc;

use axum::{
    Extension, Form,
    extract::{Path, State},
    response::Response,
};
use serde::Deserialize;

use super::{
    Act, Field, Offered, Word, answered, encoded,
    plans::{REASON_BYTES_MAX, apply, audit, changeable, subtasks},
    reviewed,
    tasks::suggested,
};
use crate::{
    broker::{Broker, BrokerError, Refused, access::Caller, queries::View, refused},
    codes::ErrorCode,
    domain::plan::{self, Plan, PlanState, Spec, SubtaskRun, SubtaskState},
    envelope::Checks,
    ids::PlanId,
    wire::console::{
        Console,
        pages::{invalid, parsed},
    },
};

/// The acts on a subtask that can be done now.
pub(in crate::wire::console::pages) fn of_subtask(
    view: View<'_>,
    plan: &Plan,
    id: &str,
    run: &SubtaskRun,
) -> Vec<Offered> {
    let runs = plan.ending.unwrap_or(plan.state) == PlanState::Running;
    let path = format!("/plans/{}/subtasks/{}", encoded(plan.id.as_str()), encoded(id));
    let offer = |name, act| Offered::new(name, format!("{path}/{act}"), view.access.may_cancel_plan(view.caller, plan));
    match (runs, run.state) {
        (true, SubtaskState::Pending | SubtaskState::Ready | SubtaskState::HandingOff | SubtaskState::Running)
            if run.ends_as.is_none() =>
        {
            vec![offer("Reassign", "reassign"), offer("Cancel", "cancel")]
        }
        (true, SubtaskState::Failed | SubtaskState::TimedOut | SubtaskState::Cancelled) => {
            vec![offer("Retry", "retry")]
        }
        (true, SubtaskState::Skipped) if run.code == Some(ErrorCode::DependencyTimeout) => {
            vec![offer("Retry", "retry")]
        }
        _ => Vec::new(),
    }
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct SubtaskForm {
    to: String,
    reason: String,
}

pub(super) async fn review_cancel(
    State(console): State<Console>,
    Extension(caller): Extension<Caller>,
    Path((plan, subtask)): Path<(String, String)>,
) -> Response {
    reviewed(&console, &caller, move |view| cancellation(view, &plan, &subtask, &SubtaskForm::default())).await
}

pub(super) async fn cancel(
    State(console): State<Console>,
    Extension(caller): Extension<Caller>,
    Path((plan, subtask)): Path<(String, String)>,
    Form(form): Form<SubtaskForm>,
) -> Response {
    let of = subtask.clone();
    let input = |by, reason| plan::Input::CancelSubtask { subtask: of, by, reason };
    let outcome = apply(&console, &caller, &plan, &form.reason, input).await;
    let back = format!("/plans/{}", encoded(&plan));
    answered(&console, &caller, outcome, &back, move |view| cancellation(view, &plan, &subtask, &form)).await
}

pub(super) async fn review_retry(
    State(console): State<Console>,
    Extension(caller): Extension<Caller>,
    Path((plan, subtask)): Path<(String, String)>,
) -> Response {
    reviewed(&console, &caller, move |view| another_round(view, &plan, &subtask)).await
}

pub(super) async fn retry(
    State(console): State<Console>,
    Extension(caller): Extension<Caller>,
    Path((plan, subtask)): Path<(String, String)>,
) -> Response {
    let of = subtask.clone();
    let outcome = apply(&console, &caller, &plan, "", |by, _| plan::Input::RetrySubtask { subtask: of, by }).await;
    let back = format!("/plans/{}", encoded(&plan));
    answered(&console, &caller, outcome, &back, move |view| another_round(view, &plan, &subtask)).await
}

pub(super) async fn review_reassign(
    State(console): State<Console>,
    Extension(caller): Extension<Caller>,
    Path((plan, subtask)): Path<(String, String)>,
) -> Response {
    let broker = console.broker.clone();
    let review = move |view: View<'_>| reassignment(view, &broker, &plan, &subtask, &SubtaskForm::default());
    reviewed(&console, &caller, review).await
}

pub(super) async fn reassign(
    State(console): State<Console>,
    Extension(caller): Extension<Caller>,
    Path((plan, subtask)): Path<(String, String)>,
    Form(form): Form<SubtaskForm>,
) -> Response {
    let (of, to) = (subtask.clone(), form.to.clone());
    let outcome = match named(&form.to) {
        Ok(()) => {
            let input = |by, reason| plan::Input::ReassignSubtask { subtask: of, to, by, reason };
            apply(&console, &caller, &plan, &form.reason, input).await
        }
        Err(error) => Err(error),
    };
    let (broker, back) = (console.broker.clone(), format!("/plans/{}", encoded(&plan)));
    let again = move |view: View<'_>| reassignment(view, &broker, &plan, &subtask, &form);
    answered(&console, &caller, outcome, &back, again).await
}

fn named(to: &str) -> Result<(), Refused> {
    let mut checks = Checks::default();
    if to.is_empty() {
        checks.wrong("to", "must not be empty");
    }
    checks.finish_with(Some(())).map_err(refused)
}

/// The plan that the caller may change, and the place of the subtask.
fn found(view: View<'_>, plan: &str, subtask: &str) -> Result<(Arc<Plan>, Arc<Spec>, usize), BrokerError> {
    let plan = changeable(view, plan)?;
    let (_, spec) = view.plan(&parsed("plan_id", plan.id.as_str(), PlanId::parse)?)?;
    let unknown = || invalid("subtask_id", "must be a subtask of the plan".to_owned());
    let place = spec.place(subtask).ok_or_else(unknown)?;
    Ok((plan, spec, place))
}

/// What all acts on a subtask have.
fn act(view: View<'_>, plan: &Plan, spec: &Spec, place: usize, (act, entry, with): (&str, &str, &str)) -> Act {
    let id = &spec.subtasks[place].id;
    let back = format!("/plans/{}", encoded(plan.id.as_str()));
    Act {
        who: view.caller.to_string(),
        section: "plans",
        about: spec.subtasks[place].description.clone(),
        audit: audit(view, plan, entry, &format!("{}/{id}", plan.id), with),
        path: format!("{back}/subtasks/{}/{act}", encoded(id)),
        back,
        command: vec![Word::fixed(format!("baton plan subtask {act}")), Word::value(plan.id.as_str()), Word::value(id)],
        ..Act::default()
    }
}

/// What becomes of the handoff or the task that the subtask has now.
fn ends_now(run: &SubtaskRun) -> Option<String> {
    match run.state {
        SubtaskState::HandingOff => Some("Its open handoff is cancelled.".to_owned()),
        SubtaskState::Running => Some(match &run.agent {
            Some(agent) => format!("The task is taken back from {agent}, which is told to drop it."),
            None => "Its task is taken back.".to_owned(),
        }),
        _ => None,
    }
}

/// The subtasks that need this one, also through others.
fn dependents(plan: &Plan, spec: &Spec, place: usize, are: impl Fn(&SubtaskRun) -> bool) -> usize {
    let runs = plan.subtasks.iter().enumerate();
    runs.filter(|(other, run)| spec.links.ancestors[*other].contains(place) && are(run)).count()
}

fn cancellation(view: View<'_>, plan: &str, subtask: &str, form: &SubtaskForm) -> Result<Act, BrokerError> {
    let (plan, spec, place) = found(view, plan, subtask)?;
    let mut effects: Vec<String> = ends_now(&plan.subtasks[place]).into_iter().collect();
    effects.push(format!("Subtask {subtask} ends as cancelled."));
    let waiting = dependents(&plan, &spec, place, |run| !run.state.is_final());
    if waiting > 0 {
        effects.push(match spec.subtasks[place].is_optional {
            true => format!("It is optional: {} after it can begin without its result.", subtasks(waiting)),
            false => format!("With it, {} after it: skipped.", subtasks(waiting)),
        });
    }
    effects.push("While the plan runs, a retry starts it again.".to_owned());
    let mut act = act(view, &plan, &spec, place, ("cancel", "Subtask cancelled", "with the reason"));
    act.command.push(Word::field("reason", " --reason ", &form.reason, ""));
    let fields = vec![Field::reason(&form.reason, REASON_BYTES_MAX)];
    Ok(Act {
        title: format!("Cancel subtask {subtask} of plan {}?", plan.id),
        effects,
        fields,
        button: "Cancel the subtask",
        ..act
    })
}

fn another_round(view: View<'_>, plan: &str, subtask: &str) -> Result<Act, BrokerError> {
    let (plan, spec, place) = found(view, plan, subtask)?;
    let mut effects = vec![format!("Subtask {subtask} begins again, with all its attempts.")];
    let skipped = dependents(&plan, &spec, place, |run| run.state == SubtaskState::Skipped);
    if skipped > 0 {
        effects.push(format!("Skipped because of it, and now waiting for it again: {}.", subtasks(skipped)));
    }
    effects.push(format!("Round {} begins. The end of the whole plan stays as it is.", plan.round + 1));
    let cause = plan.subtasks[place].cause.clone();
    let act = act(view, &plan, &spec, place, ("retry", "Subtask retried", ""));
    let about = if cause.is_empty() { act.about.clone() } else { cause };
    Ok(Act {
        title: format!("Retry subtask {subtask} of plan {}?", plan.id),
        about,
        effects,
        button: "Retry the subtask",
        ..act
    })
}

fn reassignment(
    view: View<'_>,
    broker: &Broker,
    plan: &str,
    subtask: &str,
    form: &SubtaskForm,
) -> Result<Act, BrokerError> {
    let (plan, spec, place) = found(view, plan, subtask)?;
    let run = &plan.subtasks[place];
    let mut effects: Vec<String> = ends_now(run).into_iter().collect();
    effects.push(match effects.is_empty() {
        true => "The subtask is handed to the agent that you choose, when what it waits for has completed.".to_owned(),
        false => "The same attempt begins again with the agent that you choose.".to_owned(),
    });
    effects.push(
        "That agent must have the type and the skills of the subtask. It keeps the subtask in later rounds.".to_owned(),
    );
    let to = Field {
        is_required: true,
        placeholder: "AGENT or type:NAME",
        choices: suggested(view, broker, run.agent.as_ref()),
        ..Field::text("to", "New agent", &form.to, 133)
    };
    let fields = vec![to, Field::reason(&form.reason, REASON_BYTES_MAX)];
    let entry = ("reassign", "Subtask reassigned", "with the new agent and the reason");
    let mut act = act(view, &plan, &spec, place, entry);
    act.command.push(Word::field("to", " --to ", &form.to, " --to AGENT"));
    act.command.push(Word::field("reason", " --reason ", &form.reason, ""));
    Ok(Act {
        title: format!("Reassign subtask {subtask} of plan {}?", plan.id),
        effects,
        fields,
        button: "Reassign the subtask",
        ..act
    })
}

//! `PlanService`.

use std::sync::Arc;

use bytes::Bytes;
use prost::Message as _;
use tonic::Status;

use super::{
    call::Call,
    checked, field,
    log_watch::{self, LogUpdate, LogWatch},
    numbered, page_size, parsed_id, refuse,
    responses::Responses,
};
use crate::{
    broker::{
        Broker, BrokerError, access::Caller, directory::Directory, engine::Command, preparation::topic_problems,
        queries::View,
    },
    domain::{
        EntityId, Input,
        plan::{self, Plan, PlanState, Problem, ProblemCode, Severity, Spec},
    },
    envelope::{self, Checks},
    ids::{AgentId, AgentType, MessageId, PlanId},
    proto::v1,
    records::plan_run_to_v1,
};

/// The most bytes of a reason that a caller gives.
const REASON_BYTES_MAX: usize = 1024;

/// The kind of submission that a call takes.
#[derive(Clone, Copy)]
enum Sent {
    Plan,
    Extension,
}

/// The plan as the caller may see it.
async fn visible_plan(call: &Call, id: &PlanId) -> Result<(Arc<Plan>, Arc<Spec>), Status> {
    let id = id.clone();
    call.read_small(move |view| view.plan(&id)).await
}

/// Runs the step of a call on a plan that the caller may change. The step is stored when this returns.
async fn change(call: &Call, id: PlanId, input: plan::Input) -> Result<v1::PlanRun, Status> {
    let (plan, _) = visible_plan(call, &id).await?;
    call.broker.access().may_cancel_plan(&call.caller, &plan).map_err(refuse)?;
    let (about, input) = (EntityId::Plan(id.clone()), Box::new(Input::Plan(input)));
    call.ask(|caller, reply| Command::Apply { about, input, caller, reply }).await?;
    shown(call, &id).await
}

/// Sends an envelope that has to be a submission of this kind. Returns its receipt, and the plan as its sender sees it.
async fn send(call: &Call, envelope: Bytes, kind: Sent) -> Result<(v1::Receipt, Option<v1::PlanRun>), Status> {
    // Bytes that do not decode are refused by the same check as those of any other call.
    let decoded = v1::Envelope::decode(envelope.clone()).ok();
    if let Some(decoded) = &decoded {
        if decoded.message_type() != v1::MessageType::PlanSubmission {
            return Err(refuse(field("envelope.message_type", "must be PLAN_SUBMISSION")));
        }
        let payload = decoded.payload.as_ref().map(|payload| payload.value.clone()).unwrap_or_default();
        let has_extension = v1::PlanSubmission::decode(payload).is_ok_and(|sent| sent.extension.is_some());
        match (kind, has_extension) {
            (Sent::Plan, true) => return Err(refuse(field("envelope.payload.extension", "must not be set"))),
            (Sent::Extension, false) => return Err(refuse(field("envelope.payload.extension", "must be set"))),
            (Sent::Plan, false) | (Sent::Extension, true) => {}
        }
    }
    let receipt = super::submit(call, envelope, None).await?;
    // The message is stored, so its sender may see the plan.
    let id = receipt.resource.strip_prefix("plan:").and_then(|id| PlanId::parse(id).ok());
    let submitter = decoded.and_then(|sent| AgentId::parse(&sent.sender_id).ok());
    let plan = match (id, submitter) {
        (Some(id), Some(submitter)) => shown(&call.of_sender(submitter), &id).await.ok(),
        (None, _) | (_, None) => None,
    };
    Ok((receipt, plan))
}

/// The plan as the caller may see it, with what the tasks of its subtasks say of the work.
async fn shown(call: &Call, id: &PlanId) -> Result<v1::PlanRun, Status> {
    let id = id.clone();
    call.read_small(move |view| view.shown_plan(&id)).await
}

fn validate(
    broker: &Broker,
    caller: &Caller,
    request: &v1::ValidatePlanRequest,
) -> Result<v1::ValidatePlanResponse, Status> {
    let Some(plan) = &request.plan else { return Err(refuse(field("plan", "must be set"))) };
    let spec = envelope::plan_of(plan, &broker.settings().plan_terms);
    let spec = spec.map_err(|violations| refuse(BrokerError::Fields { violations }))?;
    let mut problems = spec.problems();
    problems.extend(topic_problems(&broker.resources().schemas, &spec));
    // A caller that may not read the directory does not learn who is in it.
    if broker.access().may_see_directory(caller).is_ok() {
        add_unknown(broker.directory(), &spec, &mut problems);
    }
    Ok(v1::ValidatePlanResponse { problems: problems.iter().map(problem).collect() })
}

/// Adds the agents and types that do not exist to the problems of a plan.
fn add_unknown(directory: &Directory, spec: &Spec, problems: &mut Vec<Problem>) {
    let subtasks = spec.subtasks.iter().enumerate();
    let with_compensations = subtasks.flat_map(|(place, subtask)| {
        let path = format!("subtasks[{place}]");
        let compensation = subtask.compensate.as_deref().map(|known| (format!("{path}.compensate"), known));
        std::iter::once((path, subtask)).chain(compensation)
    });
    for (path, subtask) in with_compensations {
        let agent = AgentId::parse(&subtask.agent).ok();
        let kind = AgentType::parse(&subtask.agent_type).ok();
        let message = match (&agent, &kind) {
            (Some(agent), _) if !directory.is_registered(agent) => format!("agent {agent} is not registered"),
            (None, Some(kind)) if directory.of_type(kind).is_empty() => format!("no agent has the type {kind}"),
            _ => continue,
        };
        problems.push(Problem {
            severity: Severity::Warning,
            code: ProblemCode::AgentUnknown,
            path,
            subtasks: vec![subtask.id.clone()],
            topic: String::new(),
            message,
        });
    }
}

pub(super) async fn validate_plan(
    call: Call,
    request: v1::ValidatePlanRequest,
) -> Result<v1::ValidatePlanResponse, Status> {
    // The check of a large plan takes some 10 ms, and the threads of the runtime serve other calls.
    call.run_large(move |broker, caller| validate(broker, caller, &request)).await
}

pub(super) async fn submit_plan(call: Call, request: v1::SubmitPlanRequest) -> Result<v1::SubmitPlanResponse, Status> {
    let (receipt, plan) = send(&call, request.envelope, Sent::Plan).await?;
    Ok(v1::SubmitPlanResponse { receipt: Some(receipt), plan })
}

pub(super) async fn extend_plan(call: Call, request: v1::ExtendPlanRequest) -> Result<v1::ExtendPlanResponse, Status> {
    let (receipt, plan) = send(&call, request.envelope, Sent::Extension).await?;
    Ok(v1::ExtendPlanResponse { receipt: Some(receipt), plan })
}

pub(super) async fn get_plan(call: Call, request: v1::GetPlanRequest) -> Result<v1::GetPlanResponse, Status> {
    let id = parsed_id("plan_id", &request.plan_id, PlanId::parse)?;
    let extension = match request.extension_id.as_str() {
        "" => None,
        text => Some(parsed_id("extension_id", text, MessageId::parse)?),
    };
    let plan = shown(&call, &id).await?;
    let submission = match request.include_submission {
        true => call.read_small(move |view| view.plan_submission(&id, extension)).await?,
        false if extension.is_some() => {
            return Err(refuse(field("extension_id", "must be empty without include_submission")));
        }
        false => Bytes::new(),
    };
    Ok(v1::GetPlanResponse { plan: Some(plan), submission })
}

pub(super) async fn list_plans(call: Call, request: v1::ListPlansRequest) -> Result<v1::ListPlansResponse, Status> {
    call.run_large(move |broker, caller| {
        let size = page_size(request.page_size);
        let mut checks = Checks::default();
        checks.at_most("states", request.states.len(), PlanState::ALL.len(), "entries");
        let states = numbered(&mut checks, "states", "known states", &request.states, PlanState::from_number);
        checked(checks)?;
        let page = broker.view(caller).plans(&states, size, &request.page_token).map_err(refuse)?;
        let plans = page.entries.iter().map(|plan| plan_run_to_v1(plan, None)).collect();
        Ok(v1::ListPlansResponse { plans, next_page_token: page.next_token })
    })
    .await
}

pub(super) async fn list_plan_results(
    call: Call,
    request: v1::ListPlanResultsRequest,
) -> Result<v1::ListPlanResultsResponse, Status> {
    let id = parsed_id("plan_id", &request.plan_id, PlanId::parse)?;
    let limit = match request.page_size {
        0 => plan::SUBTASKS_MAX,
        size => plan::SUBTASKS_MAX.min(size as usize),
    };
    let from = match request.page_token.as_str() {
        "" => 0,
        token => {
            let place = crate::ids::parse_number(token).and_then(|place| usize::try_from(place).ok());
            place.ok_or_else(|| refuse(BrokerError::PageTokenInvalid))?
        }
    };
    call.run_large(move |broker, caller| {
        let (results, next) = broker.view(caller).plan_results(&id, from, limit).map_err(refuse)?;
        let next_page_token = next.map(|place| place.to_string()).unwrap_or_default();
        Ok(v1::ListPlanResultsResponse { results, next_page_token })
    })
    .await
}

pub(super) async fn watch_plan(
    call: Call,
    request: v1::WatchPlanRequest,
) -> Result<Responses<v1::WatchPlanResponse>, Status> {
    let id = parsed_id("plan_id", &request.plan_id, PlanId::parse)?;
    // A plan that the caller may not see is refused here, with the same answer as an absent one.
    visible_plan(&call, &id).await?;
    let asked = LogWatch {
        entity: EntityId::Plan(id.clone()),
        after: request.after_number,
        read: move |view: View<'_>, after| view.plan_log(&id, after, log_watch::ENTRIES_MAX),
        respond: plan_update,
    };
    log_watch::open(call, asked).await
}

pub(super) async fn cancel_plan(call: Call, request: v1::CancelPlanRequest) -> Result<v1::CancelPlanResponse, Status> {
    let mut checks = Checks::default();
    checks.text("reason_text", &request.reason_text, REASON_BYTES_MAX);
    checked(checks)?;
    let id = parsed_id("plan_id", &request.plan_id, PlanId::parse)?;
    let cancel = plan::Input::Cancel { by: call.caller.to_string(), reason: request.reason_text };
    let plan = change(&call, id, cancel).await?;
    Ok(v1::CancelPlanResponse { plan: Some(plan) })
}

pub(super) async fn cancel_subtask(
    call: Call,
    request: v1::CancelSubtaskRequest,
) -> Result<v1::CancelSubtaskResponse, Status> {
    let id = of_subtask(&request.plan_id, &request.subtask_id, &request.reason_text)?;
    let (subtask, reason) = (request.subtask_id, request.reason_text);
    let input = plan::Input::CancelSubtask { subtask, by: call.caller.to_string(), reason };
    let plan = change(&call, id, input).await?;
    Ok(v1::CancelSubtaskResponse { plan: Some(plan) })
}

pub(super) async fn retry_subtask(
    call: Call,
    request: v1::RetrySubtaskRequest,
) -> Result<v1::RetrySubtaskResponse, Status> {
    let id = of_subtask(&request.plan_id, &request.subtask_id, "")?;
    let input = plan::Input::RetrySubtask { subtask: request.subtask_id, by: call.caller.to_string() };
    let plan = change(&call, id, input).await?;
    Ok(v1::RetrySubtaskResponse { plan: Some(plan) })
}

pub(super) async fn reassign_subtask(
    call: Call,
    request: v1::ReassignSubtaskRequest,
) -> Result<v1::ReassignSubtaskResponse, Status> {
    let id = of_subtask(&request.plan_id, &request.subtask_id, &request.reason_text)?;
    if request.to.is_empty() {
        return Err(refuse(field("to", "must not be empty")));
    }
    let (subtask, to, reason) = (request.subtask_id, request.to, request.reason_text);
    let input = plan::Input::ReassignSubtask { subtask, to, by: call.caller.to_string(), reason };
    let plan = change(&call, id, input).await?;
    Ok(v1::ReassignSubtaskResponse { plan: Some(plan) })
}

pub(super) async fn retry_plan(call: Call, request: v1::RetryPlanRequest) -> Result<v1::RetryPlanResponse, Status> {
    let id = parsed_id("plan_id", &request.plan_id, PlanId::parse)?;
    let retry = plan::Input::Retry { by: call.caller.to_string() };
    let plan = change(&call, id, retry).await?;
    Ok(v1::RetryPlanResponse { plan: Some(plan) })
}

/// The plan of a call about one of its subtasks.
fn of_subtask(plan_id: &str, subtask_id: &str, reason_text: &str) -> Result<PlanId, Status> {
    let mut checks = Checks::default();
    checks.text("reason_text", reason_text, REASON_BYTES_MAX);
    if subtask_id.is_empty() {
        checks.wrong("subtask_id", "must not be empty");
    }
    checked(checks)?;
    parsed_id("plan_id", plan_id, PlanId::parse)
}

fn problem(problem: &Problem) -> v1::PlanProblem {
    v1::PlanProblem {
        severity: problem.severity.number(),
        code: problem.code.name().to_owned(),
        field: problem.path.clone(),
        subtask_ids: problem.subtasks.clone(),
        topic: problem.topic.clone(),
        message: problem.message.clone(),
    }
}

fn plan_update(update: LogUpdate<v1::PlanEntry>) -> v1::WatchPlanResponse {
    use v1::watch_plan_response::Update;
    let update = match update {
        LogUpdate::Entry(entry) => Update::Entry(entry),
        LogUpdate::Gap(gap) => Update::Gap(gap),
        LogUpdate::CaughtUp(number) => Update::CaughtUp(v1::PlanCaughtUp { number }),
    };
    v1::WatchPlanResponse { update: Some(update) }
}

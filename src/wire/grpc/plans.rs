//! `PlanService`.

use std::sync::Arc;

use bytes::Bytes;
use prost::Message as _;
use tonic::{Request, Response, Status};

use super::{
    auth, checked, field,
    log_watch::{self, LogUpdate, LogWatch},
    messages, numbered, page_size, parsed_id, read_small, refuse, refuse_shared,
    responses::Responses,
    run_large,
};
use crate::{
    broker::{
        Broker, BrokerError,
        access::{Caller, Purpose},
        directory::Directory,
        engine::Command,
        preparation::topic_problems,
        queries::View,
    },
    domain::{
        EntityId, Input,
        plan::{self, Plan, PlanState, Problem, ProblemCode, Severity, Spec},
    },
    envelope::{self, Checks},
    ids::{AgentId, AgentType, MessageId, PlanId},
    proto::v1::{self, plan_service_server::PlanService},
    records::plan_run_to_v1,
};

/// The most bytes of a reason that a caller gives.
const REASON_BYTES_MAX: usize = 1024;

pub(super) struct Plans {
    broker: Broker,
}

/// The kind of submission that a call takes.
#[derive(Clone, Copy)]
enum Sent {
    Plan,
    Extension,
}

impl Plans {
    pub(super) fn new(broker: Broker) -> Self {
        Self { broker }
    }

    /// The plan as the caller may see it.
    async fn plan(&self, caller: &Caller, id: &PlanId) -> Result<(Arc<Plan>, Arc<Spec>), Status> {
        let id = id.clone();
        read_small(&self.broker, caller, move |view| view.plan(&id)).await.map_err(refuse)
    }

    /// Runs the step of a call on a plan that the caller may change. The step is stored when this returns.
    async fn change(&self, caller: &Caller, id: PlanId, input: plan::Input) -> Result<v1::PlanRun, Status> {
        let (plan, _) = self.plan(caller, &id).await?;
        self.broker.access().may_cancel_plan(caller, &plan).map_err(refuse)?;
        let (about, input) = (EntityId::Plan(id.clone()), Box::new(Input::Plan(input)));
        let by = caller.clone();
        self.broker.ask(|reply| Command::Apply { about, input, caller: by, reply }).await.map_err(refuse_shared)?;
        self.shown(caller, &id).await
    }

    /// Sends an envelope that has to be a submission of this kind. Returns its receipt, and the plan as its sender sees it.
    async fn send(
        &self,
        envelope: Bytes,
        sender: Option<AgentId>,
        kind: Sent,
    ) -> Result<(v1::Receipt, Option<v1::PlanRun>), Status> {
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
        let receipt = super::submit(&self.broker, envelope, sender.as_ref(), None).await?;
        // The message is stored, so its sender may see the plan.
        let id = receipt.resource.strip_prefix("plan:").and_then(|id| PlanId::parse(id).ok());
        let submitter = decoded.and_then(|sent| AgentId::parse(&sent.sender_id).ok());
        let plan = match (id, submitter) {
            (Some(id), Some(submitter)) => self.shown(&Caller::Agent(submitter), &id).await.ok(),
            (None, _) | (_, None) => None,
        };
        Ok((receipt, plan))
    }

    /// The plan as the caller may see it, with what the tasks of its subtasks say of the work.
    async fn shown(&self, caller: &Caller, id: &PlanId) -> Result<v1::PlanRun, Status> {
        let id = id.clone();
        read_small(&self.broker, caller, move |view| view.shown_plan(&id)).await.map_err(refuse)
    }
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

#[tonic::async_trait]
impl PlanService for Plans {
    async fn validate_plan(
        &self,
        request: Request<v1::ValidatePlanRequest>,
    ) -> Result<Response<v1::ValidatePlanResponse>, Status> {
        let caller = auth::admitted(&self.broker, &request, Purpose::SubmitPlan)?;
        // The check of a large plan takes some 10 ms, and the threads of the runtime serve other calls.
        run_large(&self.broker, &caller, move |broker, caller| validate(broker, caller, request.get_ref()))
            .await
            .map(Response::new)
    }

    async fn submit_plan(
        &self,
        request: Request<v1::SubmitPlanRequest>,
    ) -> Result<Response<v1::SubmitPlanResponse>, Status> {
        let sender = messages::sender(&self.broker, &request)?;
        let (receipt, plan) = self.send(request.into_inner().envelope, sender, Sent::Plan).await?;
        Ok(Response::new(v1::SubmitPlanResponse { receipt: Some(receipt), plan }))
    }

    async fn extend_plan(
        &self,
        request: Request<v1::ExtendPlanRequest>,
    ) -> Result<Response<v1::ExtendPlanResponse>, Status> {
        let sender = messages::sender(&self.broker, &request)?;
        let (receipt, plan) = self.send(request.into_inner().envelope, sender, Sent::Extension).await?;
        Ok(Response::new(v1::ExtendPlanResponse { receipt: Some(receipt), plan }))
    }

    async fn get_plan(&self, request: Request<v1::GetPlanRequest>) -> Result<Response<v1::GetPlanResponse>, Status> {
        let caller = auth::admitted(&self.broker, &request, Purpose::ReadPlans)?;
        let request = request.get_ref();
        let id = parsed_id("plan_id", &request.plan_id, PlanId::parse)?;
        let extension = match request.extension_id.as_str() {
            "" => None,
            text => Some(parsed_id("extension_id", text, MessageId::parse)?),
        };
        let plan = self.shown(&caller, &id).await?;
        let submission = match request.include_submission {
            true => {
                let read = read_small(&self.broker, &caller, move |view| view.plan_submission(&id, extension));
                read.await.map_err(refuse)?
            }
            false if extension.is_some() => {
                return Err(refuse(field("extension_id", "must be empty without include_submission")));
            }
            false => Bytes::new(),
        };
        Ok(Response::new(v1::GetPlanResponse { plan: Some(plan), submission }))
    }

    async fn list_plans(
        &self,
        request: Request<v1::ListPlansRequest>,
    ) -> Result<Response<v1::ListPlansResponse>, Status> {
        let caller = auth::admitted(&self.broker, &request, Purpose::ReadPlans)?;
        let listed = run_large(&self.broker, &caller, move |broker, caller| {
            let request = request.get_ref();
            let size = page_size(request.page_size);
            let mut checks = Checks::default();
            checks.at_most("states", request.states.len(), PlanState::ALL.len(), "entries");
            let states = numbered(&mut checks, "states", "known states", &request.states, PlanState::from_number);
            checked(checks)?;
            let page = broker.view(caller).plans(&states, size, &request.page_token).map_err(refuse)?;
            let plans = page.entries.iter().map(|plan| plan_run_to_v1(plan, None)).collect();
            Ok(v1::ListPlansResponse { plans, next_page_token: page.next_token })
        });
        listed.await.map(Response::new)
    }

    async fn list_plan_results(
        &self,
        request: Request<v1::ListPlanResultsRequest>,
    ) -> Result<Response<v1::ListPlanResultsResponse>, Status> {
        let caller = auth::admitted(&self.broker, &request, Purpose::ReadPlans)?;
        let request = request.into_inner();
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
        let listed = run_large(&self.broker, &caller, move |broker, caller| {
            let (results, next) = broker.view(caller).plan_results(&id, from, limit).map_err(refuse)?;
            let next_page_token = next.map(|place| place.to_string()).unwrap_or_default();
            Ok(v1::ListPlanResultsResponse { results, next_page_token })
        });
        listed.await.map(Response::new)
    }

    type WatchPlanStream = Responses<v1::WatchPlanResponse>;

    async fn watch_plan(
        &self,
        request: Request<v1::WatchPlanRequest>,
    ) -> Result<Response<Self::WatchPlanStream>, Status> {
        let caller = auth::admitted(&self.broker, &request, Purpose::ReadPlans)?;
        let request = request.get_ref();
        let id = parsed_id("plan_id", &request.plan_id, PlanId::parse)?;
        // A plan that the caller may not see is refused here, with the same answer as an absent one.
        self.plan(&caller, &id).await?;
        let asked = LogWatch {
            entity: EntityId::Plan(id.clone()),
            after: request.after_number,
            read: move |view: View<'_>, after| view.plan_log(&id, after, log_watch::ENTRIES_MAX),
            respond: plan_update,
        };
        log_watch::open(&self.broker, caller, asked).await.map(Response::new)
    }

    async fn cancel_plan(
        &self,
        request: Request<v1::CancelPlanRequest>,
    ) -> Result<Response<v1::CancelPlanResponse>, Status> {
        let caller = auth::admitted(&self.broker, &request, Purpose::CancelPlans)?;
        let request = request.into_inner();
        let mut checks = Checks::default();
        checks.text("reason_text", &request.reason_text, REASON_BYTES_MAX);
        checked(checks)?;
        let id = parsed_id("plan_id", &request.plan_id, PlanId::parse)?;
        let cancel = plan::Input::Cancel { by: caller.to_string(), reason: request.reason_text };
        let plan = self.change(&caller, id, cancel).await?;
        Ok(Response::new(v1::CancelPlanResponse { plan: Some(plan) }))
    }

    async fn cancel_subtask(
        &self,
        request: Request<v1::CancelSubtaskRequest>,
    ) -> Result<Response<v1::CancelSubtaskResponse>, Status> {
        let caller = auth::admitted(&self.broker, &request, Purpose::CancelPlans)?;
        let request = request.into_inner();
        let id = of_subtask(&request.plan_id, &request.subtask_id, &request.reason_text)?;
        let (subtask, reason) = (request.subtask_id, request.reason_text);
        let input = plan::Input::CancelSubtask { subtask, by: caller.to_string(), reason };
        let plan = self.change(&caller, id, input).await?;
        Ok(Response::new(v1::CancelSubtaskResponse { plan: Some(plan) }))
    }

    async fn retry_subtask(
        &self,
        request: Request<v1::RetrySubtaskRequest>,
    ) -> Result<Response<v1::RetrySubtaskResponse>, Status> {
        let caller = auth::admitted(&self.broker, &request, Purpose::CancelPlans)?;
        let request = request.into_inner();
        let id = of_subtask(&request.plan_id, &request.subtask_id, "")?;
        let input = plan::Input::RetrySubtask { subtask: request.subtask_id, by: caller.to_string() };
        let plan = self.change(&caller, id, input).await?;
        Ok(Response::new(v1::RetrySubtaskResponse { plan: Some(plan) }))
    }

    async fn reassign_subtask(
        &self,
        request: Request<v1::ReassignSubtaskRequest>,
    ) -> Result<Response<v1::ReassignSubtaskResponse>, Status> {
        let caller = auth::admitted(&self.broker, &request, Purpose::CancelPlans)?;
        let request = request.into_inner();
        let id = of_subtask(&request.plan_id, &request.subtask_id, &request.reason_text)?;
        if request.to.is_empty() {
            return Err(refuse(field("to", "must not be empty")));
        }
        let (subtask, to, reason) = (request.subtask_id, request.to, request.reason_text);
        let input = plan::Input::ReassignSubtask { subtask, to, by: caller.to_string(), reason };
        let plan = self.change(&caller, id, input).await?;
        Ok(Response::new(v1::ReassignSubtaskResponse { plan: Some(plan) }))
    }

    async fn retry_plan(
        &self,
        request: Request<v1::RetryPlanRequest>,
    ) -> Result<Response<v1::RetryPlanResponse>, Status> {
        let caller = auth::admitted(&self.broker, &request, Purpose::CancelPlans)?;
        let id = parsed_id("plan_id", &request.get_ref().plan_id, PlanId::parse)?;
        let retry = plan::Input::Retry { by: caller.to_string() };
        let plan = self.change(&caller, id, retry).await?;
        Ok(Response::new(v1::RetryPlanResponse { plan: Some(plan) }))
    }
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

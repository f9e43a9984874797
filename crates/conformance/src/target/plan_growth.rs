//! SPEC 9: subtasks that are added, lists, and what is done to one subtask.

use serde_json::{Value, json};
use tonic::Code;

use super::{
    access::read_audit,
    check::{Checks, Refusal, Verdict, answered, refused, same},
    plans::{Cast, PLAN_INVALID, Taken},
    world::{Actor, World},
};
use baton_client::proto::v1::{self, PlanState, SubtaskState, TaskStatus, context_section::Content};

cases! {
    "plan.grows-while-it-runs" "9"
        "ExtendPlan adds subtasks that depend on earlier ones; the same subtasks again add none. A problem is PLAN_INVALID, the extension of a plan that has ended PLAN_FINAL, and the request for a new subtask names the digest of the extension."
        grows;
    "plan.list-is-worked-on-by-element" "9"
        "A subtask with for_each runs once for each element, whose value its context has; the results come back as a list in order. An empty list completes at once, and what is no list fails with FOR_EACH_INVALID."
        list;
    "plan.element-that-fails" "9"
        "An element that fails ends the subtask and stops the others; in an optional subtask its result is null and the others go on."
        element_fails;
    "plan.one-subtask-is-cancelled-and-retried" "9"
        "CancelSubtask takes the task back and skips the dependents, and RetrySubtask starts all of them again. An unknown subtask is SUBTASK_UNKNOWN, one in another state SUBTASK_STATE."
        cancel_and_retry;
    "plan.one-subtask-is-reassigned" "9"
        "ReassignSubtask takes the task from its agent, whose late result is STALE_EPOCH, and hands it to the named one; an agent without the type is RECEIVER_INVALID."
        reassign;
    "plan.acts-of-others-are-audited" "9"
        "An operator's cancel and retry of a plan and of a subtask are in the audit log with the operator and the reason; the submitter's own are not."
        acts_of_others_are_audited;
}

const FINAL: Refusal = Refusal(Code::FailedPrecondition, "PLAN_FINAL");
const STATE: Refusal = Refusal(Code::FailedPrecondition, "SUBTASK_STATE");

impl Cast {
    fn extension(&self, subtasks: Vec<v1::Subtask>) -> v1::PlanSubmission {
        let extension = v1::PlanExtension { plan_id: self.plan_id.clone(), subtasks, defaults: None };
        v1::PlanSubmission { plan: None, extension: Some(extension) }
    }

    fn with_list(&self, is_optional: bool) -> v1::Plan {
        let for_each = v1::ForEach { subtask_id: "find".to_owned(), pointer: "/result/all".to_owned() };
        let each = v1::Subtask { for_each: Some(for_each), optional: is_optional, ..self.subtask("look", &["find"]) };
        let plan = self.plan(vec![self.subtask("find", &[]), each, self.subtask("report", &["look"])]);
        v1::Plan { max_concurrency: 1, ..plan }
    }

    /// Bob takes the next subtask and reports this result.
    async fn report_next(&self, result: &Value) -> Verdict<Taken> {
        let taken = self.take().await?;
        answered("bob reports a result", self.report(&taken, TaskStatus::Completed, result).await)?;
        Ok(taken)
    }
}

fn element_of(taken: &Taken) -> Value {
    let section = taken.context.sections.iter().find(|section| section.name == "element");
    match section.and_then(|section| section.content.as_ref()) {
        Some(Content::Json(json)) => serde_json::from_str(json).unwrap_or_default(),
        Some(_) | None => Value::Null,
    }
}

async fn grows(world: World) -> Verdict {
    let cast = Cast::of(&world).await?;
    cast.submit(cast.plan(vec![cast.subtask("a", &[])])).await?;
    let taken = cast.take().await?;
    let extend = async |subtasks| cast.alice.say("", &Default::default(), &cast.extension(subtasks)).await;
    refused("an unknown dependency", extend(vec![cast.subtask("b", &["x"])]).await, PLAN_INVALID)?;
    refused("a doubled id", extend(vec![cast.subtask("a", &[])]).await, PLAN_INVALID)?;
    let more = || vec![cast.subtask("b", &["a"])];
    let receipt = answered("alice extends the plan", extend(more()).await)?;
    same("alice extends the plan", "resource", format!("plan:{}", cast.plan_id), receipt.resource)?;
    answered("alice extends it once more", extend(more()).await)?;
    let run = cast.is("after it", PlanState::Running, &[SubtaskState::Running, SubtaskState::Pending]).await?;
    same("after it", "extension_ids", vec![receipt.message_id], run.extension_ids)?;
    answered("bob reports", cast.report(&taken, TaskStatus::Completed, &json!({"response": "1"})).await)?;
    let got = cast.complete("2").await?;
    same("the context of the new subtask", "previous_results", 1, got.previous_results.len())?;
    cast.is("after the last result", PlanState::Completed, &[SubtaskState::Completed; 2]).await?;
    refused("after the end", extend(vec![cast.subtask("c", &[])]).await, FINAL).map(drop)
}

async fn list(world: World) -> Verdict {
    let cast = Cast::of(&world).await?;
    cast.submit(cast.with_list(false)).await?;
    cast.report_next(&json!({"all": ["x", {"y": 1}]})).await?;
    for (index, value) in [json!("x"), json!({"y": 1})].into_iter().enumerate() {
        let taken = cast.report_next(&json!({"place": index})).await?;
        let expected = json!({"index": index, "count": 2, "value": value});
        same("the context of an element", "element", expected, element_of(&taken))?;
    }
    let mut got = cast.complete("done").await?;
    let result = got.dependency_results.remove("look").map(|result| result.result_json).unwrap_or_default();
    let expected = json!({"results": [{"place": 0}, {"place": 1}]});
    same("the context of the report", "look", expected, serde_json::from_str(&result).unwrap_or_default())?;
    cast.is("after the last result", PlanState::Completed, &[SubtaskState::Completed; 3]).await?;
    let empty = world.another();
    let cast = Cast::of(&empty).await?;
    cast.submit(cast.with_list(false)).await?;
    cast.report_next(&json!({"all": []})).await?;
    let states = [SubtaskState::Completed, SubtaskState::Completed, SubtaskState::HandingOff];
    cast.is("an empty list", PlanState::Running, &states).await?;
    let none = empty.another();
    let cast = Cast::of(&none).await?;
    cast.submit(cast.with_list(false)).await?;
    cast.report_next(&json!({"all": 7})).await?;
    let states = [SubtaskState::Completed, SubtaskState::Failed, SubtaskState::Skipped];
    let run = cast.is("what is no list", PlanState::Failed, &states).await?;
    same("what is no list", "error_code", v1::ErrorCode::ForEachInvalid, run.subtasks[1].error_code())
}

async fn element_fails(world: World) -> Verdict {
    let cast = Cast::of(&world).await?;
    cast.submit(cast.with_list(false)).await?;
    cast.report_next(&json!({"all": [1, 2]})).await?;
    let taken = cast.take().await?;
    answered("bob fails", cast.report(&taken, TaskStatus::Failed, &json!({"response": "no"})).await)?;
    let states = [SubtaskState::Completed, SubtaskState::Failed, SubtaskState::Skipped];
    cast.is("after an element has failed", PlanState::Failed, &states).await?;
    let world = world.another();
    let cast = Cast::of(&world).await?;
    cast.submit(cast.with_list(true)).await?;
    cast.report_next(&json!({"all": [1, 2]})).await?;
    let taken = cast.take().await?;
    answered("bob fails", cast.report(&taken, TaskStatus::Failed, &json!({"response": "no"})).await)?;
    cast.report_next(&json!({"place": 1})).await?;
    let mut got = cast.complete("done").await?;
    let result = got.dependency_results.remove("look").map(|result| result.result_json).unwrap_or_default();
    let expected = json!({"results": [null, {"place": 1}]});
    same("an optional subtask", "look", expected, serde_json::from_str(&result).unwrap_or_default())
}

async fn cancel_and_retry(world: World) -> Verdict {
    let cast = Cast::of(&world).await?;
    let subtasks = vec![cast.subtask("a", &[]), cast.subtask("b", &["a"]), cast.subtask("c", &[])];
    cast.submit(cast.plan(subtasks)).await?;
    let plan = cast.alice.client.plan(&cast.plan_id);
    let cancel = async |by: &Actor, id: &str| by.call(by.client.plan(&cast.plan_id).cancel_subtask(id, "")).await;
    refused("no subtask", cancel(&cast.alice, "x").await, Refusal(Code::NotFound, "SUBTASK_UNKNOWN"))?;
    answered("alice cancels a subtask", cancel(&cast.alice, "a").await)?;
    answered("alice cancels it again", cancel(&cast.alice, "a").await)?;
    let states = [SubtaskState::Cancelled, SubtaskState::Skipped, SubtaskState::HandingOff];
    cast.is("after the cancel", PlanState::Running, &states).await?;
    let retry = async |id: &str| cast.alice.call(plan.retry_subtask(id)).await;
    refused("a subtask that runs", retry("c").await, STATE)?;
    refused("a subtask that was skipped", retry("b").await, STATE)?;
    answered("alice retries it", retry("a").await)?;
    let states = [SubtaskState::HandingOff, SubtaskState::Pending, SubtaskState::HandingOff];
    cast.is("after the retry", PlanState::Running, &states).await.map(drop)
}

async fn reassign(world: World) -> Verdict {
    let cast = Cast::of(&world).await?;
    cast.submit(cast.plan(vec![cast.subtask("a", &[])])).await?;
    let taken = cast.take().await?;
    let plan = cast.alice.client.plan(&cast.plan_id);
    let to = async |to: &str| cast.alice.call(plan.reassign_subtask("a", to, "no answer")).await;
    let invalid = Refusal(Code::InvalidArgument, "RECEIVER_INVALID");
    refused("an agent without the type", to(cast.alice.id()).await, invalid)?;
    let carol = world.agent_of("carol", std::slice::from_ref(&cast.agent_type), 8).await?;
    answered("alice gives it to carol", to(carol.id()).await)?;
    let late = cast.report(&taken, TaskStatus::Completed, &json!({"response": "late"})).await;
    refused("the late result of bob", late, Refusal(Code::FailedPrecondition, "STALE_EPOCH"))?;
    let is_offered = |run: &v1::PlanRun| run.subtasks.iter().any(|subtask| subtask.turn_agent_id == carol.id());
    let offered = cast.once(is_offered).await?.subtasks.swap_remove(0);
    let mut checks = Checks::of("after it");
    checks.same("turn_agent_id", carol.id(), offered.turn_agent_id.as_str());
    checks.same("assigned_to", carol.id(), offered.assigned_to.as_str());
    checks.done()
}

async fn acts_of_others_are_audited(world: World) -> Verdict {
    let operator = world.operator()?;
    let cast = Cast::of(&world).await?;
    cast.submit(cast.plan(vec![cast.subtask("a", &[]), cast.subtask("b", &[])])).await?;
    let acts = async || {
        let length = answered("the operator reads the audit log", read_audit(&world, &operator, 0).await)?.log_length;
        // The entries of this case are among the latest 1,000, however long the log is.
        let latest = read_audit(&world, &operator, length.saturating_sub(1000)).await;
        let latest = answered("the operator reads the audit log", latest)?.entries.into_iter();
        let of_plan = latest.filter_map(|logged| logged.entry).filter(|entry| entry.subject.starts_with(&cast.plan_id));
        Ok(of_plan.map(|entry| (entry.action(), entry.details, entry.actor)).collect::<Vec<_>>())
    };
    let plan = cast.alice.client.plan(&cast.plan_id);
    answered("alice cancels the plan", cast.alice.call(plan.cancel("own")).await)?;
    answered("alice retries it", cast.alice.call(plan.retry()).await)?;
    same("after alice's own acts", "entries", Vec::new(), acts().await?)?;

    let (plan, step) = (operator.plan(&cast.plan_id), "the operator acts on the plan");
    answered(step, world.call(plan.cancel_subtask("a", "not now")).await)?;
    answered(step, world.call(plan.retry_subtask("a")).await)?;
    answered(step, world.call(plan.cancel("not now")).await)?;
    answered(step, world.call(plan.retry()).await)?;
    let seen = acts().await?;
    let expected = [
        (v1::AuditAction::SubtaskCancelled, "not now"),
        (v1::AuditAction::SubtaskRetried, ""),
        (v1::AuditAction::PlanCancelled, "not now"),
        (v1::AuditAction::PlanRetried, ""),
    ];
    let found: Vec<_> = seen.iter().map(|(action, details, _)| (*action, details.as_str())).collect();
    let mut checks = Checks::of(step);
    checks.same("entries", expected.to_vec(), found);
    let is_operator = |(_, _, actor): &(v1::AuditAction, String, String)| actor.starts_with("operator ");
    checks.holds("actors", seen.iter().all(is_operator), "the operator", &seen);
    checks.done()
}

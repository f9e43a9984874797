//! SPEC 9: what the submitter of a plan sees of the work, and what a failing plan undoes.

use serde_json::json;
use tonic::Code;

use super::{
    access::skip_if_open,
    check::{Answer, Checks, Refusal, Verdict, answered, same},
    plans::{Cast, names},
    world::{Actor, World},
};
use baton_client::proto::v1::{self, PlanState, SubtaskState, TaskStatus};

cases! {
    "plan.submitter-sees-the-work" "9"
        "The submitter reads the tasks, the handoffs and the custody logs of its plan, and its plan shows the progress and the details of a subtask and whose turn it is; a stranger gets the same answer for the task as for an absent one."
        submitter_sees_the_work;
    "plan.failure-undoes-what-has-completed" "9"
        "A plan that fails runs the compensations of its completed subtasks one at a time, the latest first, and each once; one that fails is shown and stops nothing. RetryPlan starts again what was undone."
        failure_undoes;
}

async fn task(by: &Actor, task_id: &str) -> Answer<v1::Task> {
    let request = v1::GetTaskRequest { task_id: task_id.to_owned() };
    by.call(async { by.client.answer(by.client.tasks().get_task(request).await) })
        .await
        .map(|got| got.task.unwrap_or_default())
}

async fn submitter_sees_the_work(world: World) -> Verdict {
    skip_if_open(&world).await?;
    let cast = Cast::of(&world).await?;
    cast.submit(cast.plan(vec![cast.subtask("a", &[])])).await?;
    let is_offered = |run: &v1::PlanRun| run.subtasks.iter().any(|subtask| !subtask.turn_agent_id.is_empty());
    let offered = cast.once(is_offered).await?.subtasks.swap_remove(0);
    same("the plan with an offer", "turn_agent_id", cast.bob.id(), offered.turn_agent_id.as_str())?;
    let taken = cast.take().await?;
    let progress = v1::TaskStatusUpdate {
        status: TaskStatus::InProgress.into(),
        progress: Some(0.5),
        details: "half of it".to_owned(),
        ..Default::default()
    };
    answered("bob reports progress", cast.bob.say("", &taken.about, &progress).await)?;
    let has_progress = |run: &v1::PlanRun| run.subtasks.iter().any(|subtask| subtask.progress.is_some());
    let running = cast.once(has_progress).await?.subtasks.swap_remove(0);
    let mut checks = Checks::of("the plan with a report");
    checks.same("progress", Some(0.5), running.progress);
    checks.same("details", "half of it", running.details.as_str());
    checks.same("turn_agent_id", cast.bob.id(), running.turn_agent_id.as_str());
    checks.done()?;
    let alice = &cast.alice;
    let seen = answered("alice reads the task", task(alice, &running.task_id).await)?;
    same("alice reads the task", "owner_id", cast.bob.id(), seen.owner_id.as_str())?;
    let request = v1::GetCustodyLogRequest { task_id: running.task_id.clone(), ..Default::default() };
    let log = alice.call(async { alice.client.answer(alice.client.tasks().get_custody_log(request).await) }).await;
    let log = answered("alice reads the custody log", log)?;
    same("alice reads the custody log", "entries", seen.custody_length, log.entries.len() as u64)?;
    let request = v1::ListHandoffsRequest { task_id: running.task_id.clone(), ..Default::default() };
    let listed = alice.call(async { alice.client.answer(alice.client.handoffs().list_handoffs(request).await) }).await;
    let listed = answered("alice lists the handoffs of the task", listed)?.handoffs;
    same("alice lists the handoffs of the task", "handoffs", 1, listed.len())?;
    let stranger = world.agent("stranger").await?;
    let absent = Refusal(Code::NotFound, "TASK_UNKNOWN");
    let mut checks = Checks::of("the reads of a stranger");
    checks.refused_as_absent("an absent task", task(&stranger, &world.id("none")).await, absent);
    checks.refused_as_absent("the task of the subtask", task(&stranger, &running.task_id).await, absent);
    checks.done()
}

async fn failure_undoes(world: World) -> Verdict {
    let cast = Cast::of(&world).await?;
    let undoable = |id: &str, needs: &[&str]| v1::Subtask {
        compensate: Some(v1::Compensation {
            description: format!("cancel {id}"),
            agent_type: cast.agent_type.clone(),
            ..Default::default()
        }),
        ..cast.subtask(id, needs)
    };
    let subtasks = vec![undoable("seat", &[]), undoable("room", &["seat"]), cast.subtask("pay", &["room"])];
    cast.submit(cast.plan(subtasks)).await?;
    cast.complete("12").await?;
    cast.complete("204").await?;
    let fail = async || {
        let taken = cast.take().await?;
        answered("bob reports a failure", cast.report(&taken, TaskStatus::Failed, &json!({"response": "no"})).await)
    };
    fail().await?;
    let states = [SubtaskState::Completed, SubtaskState::Completed, SubtaskState::Failed];
    cast.is("while it undoes", PlanState::Running, &states).await?;
    let first = cast.complete("cancelled").await?;
    let mut checks = Checks::of("the context of the first compensation");
    checks.same("subtask_id", "room", first.subtask_id.as_str());
    checks.same("description", "cancel room", first.description.as_str());
    checks.same("dependency_results", vec!["room"], names(&first.dependency_results));
    checks.done()?;
    // The second one, of the seat, fails.
    fail().await?;
    let run = cast.is("after the compensations", PlanState::Failed, &states).await?;
    let undone: Vec<Option<SubtaskState>> =
        run.subtasks.iter().map(|known| known.compensation.as_ref().map(|undoing| undoing.state())).collect();
    let expected = vec![Some(SubtaskState::Failed), Some(SubtaskState::Completed), None];
    same("after the compensations", "compensations", expected, undone)?;
    let plan = cast.alice.client.plan(&cast.plan_id);
    answered("alice retries the plan", cast.alice.call(plan.retry()).await)?;
    let states = [SubtaskState::Completed, SubtaskState::HandingOff, SubtaskState::Pending];
    cast.is("after the retry", PlanState::Running, &states).await?;
    cast.complete("205").await?;
    cast.complete("paid").await?;
    cast.is("after the last result", PlanState::Completed, &[SubtaskState::Completed; 3]).await.map(drop)
}

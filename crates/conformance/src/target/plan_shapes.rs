//! SPEC 9: the ways to write a plan.

use serde_json::{Value, json};

use super::{
    check::{Checks, Verdict, answered, refused, same},
    plans::{Cast, INVALID, PLAN_INVALID},
    world::World,
};
use baton_client::proto::v1::{self, PlanState, SubtaskState, TaskStatus, context_section::Content};

cases! {
    "plan.defaults-stand-for-what-is-left-out" "9"
        "A list of ids and dependencies is a plan with the type of its defaults, and is refused without. The context of each subtask has the object of role, task_id and previous_results."
        defaults;
    "plan.condition-chooses-a-branch" "9"
        "A subtask whose `when` does not hold is SKIPPED without an error code. What depends on it alone is SKIPPED in the same way, a join runs with the other branch, and the plan completes. A condition about no dependency is WHEN_NOT_DEPENDENCY."
        branches;
    "plan.topic-has-a-schema" "9"
        "A result that does not fit the schema of a topic is refused with FIELD_INVALID and the place, and its agent reports again. A schema of a topic that no subtask produces is PLAN_INVALID."
        topic_schema;
}

async fn defaults(world: World) -> Verdict {
    let cast = Cast::of(&world).await?;
    let bare = |id: &str, needs: &[&str]| v1::Subtask { agent_type: String::new(), ..cast.subtask(id, needs) };
    let plan = cast.plan(vec![bare("A", &[]), bare("B", &["A"])]);
    refused("a plan without defaults", cast.try_submit(&cast.alice, plan.clone()).await, PLAN_INVALID)?;
    let agent_type = cast.subtask("", &[]).agent_type;
    let defaults = Some(v1::SubtaskDefaults { agent_type, ..Default::default() });
    cast.submit(v1::Plan { defaults, ..plan }).await?;
    cast.complete("1").await?;
    let taken = cast.take().await?;
    let section = taken.context.sections.iter().find(|section| section.name == "subtask");
    let object = match section.and_then(|section| section.content.as_ref()) {
        Some(Content::Json(json)) => serde_json::from_str::<Value>(json).unwrap_or_default(),
        Some(_) | None => Value::Null,
    };
    let mut checks = Checks::of("the context of the second subtask");
    checks.same("subtask.task_id", &json!("B"), &object["task_id"]);
    checks.same("subtask.previous_results.A.response", &json!("1"), &object["previous_results"]["A"]["response"]);
    checks.done()?;
    cast.complete_taken(&taken, "2").await?;
    cast.is("after the last result", PlanState::Completed, &[SubtaskState::Completed; 2]).await.map(drop)
}

async fn branches(world: World) -> Verdict {
    use v1::condition::Comparison;
    let cast = Cast::of(&world).await?;
    let when = |subtask_id: &str, negate| {
        let (subtask_id, pointer) = (subtask_id.to_owned(), "/result/score".to_owned());
        Some(v1::Condition { subtask_id, pointer, comparison: Some(Comparison::Less(0.5)), negate })
    };
    let wrong = v1::Subtask { when: when("b", false), ..cast.subtask("a", &[]) };
    let wrong = cast.plan(vec![wrong, cast.subtask("b", &[])]);
    let refusal = refused("a condition about no dependency", cast.try_submit(&cast.alice, wrong).await, PLAN_INVALID)?;
    let mut checks = Checks::of("a condition about no dependency");
    let is_named = refusal.violations.iter().any(|(_, problem)| problem.starts_with("WHEN_NOT_DEPENDENCY"));
    checks.holds("WHEN_NOT_DEPENDENCY", is_named, "in the BadRequest", &refusal.violations);
    checks.done()?;
    let plan = cast.plan(vec![
        cast.subtask("check", &[]),
        v1::Subtask { when: when("check", false), ..cast.subtask("mend", &["check"]) },
        cast.subtask("tell", &["mend"]),
        v1::Subtask { when: when("check", true), ..cast.subtask("publish", &["check"]) },
        cast.subtask("report", &["tell", "publish"]),
    ]);
    cast.submit(plan).await?;
    let taken = cast.take().await?;
    let reported = cast.report(&taken, TaskStatus::Completed, &json!({"response": "checked", "score": 0.7})).await;
    answered("bob reports the score", reported)?;
    let (completed, skipped) = (SubtaskState::Completed, SubtaskState::Skipped);
    let states = [completed, skipped, skipped, SubtaskState::HandingOff, SubtaskState::Pending];
    let run = cast.is("after the check", PlanState::Running, &states).await?;
    same("after the check", "mend.error_code", v1::ErrorCode::Unspecified, run.subtasks[1].error_code())?;
    cast.complete("published").await?;
    let last = cast.complete("reported").await?;
    let direct: Vec<&str> = last.dependency_results.keys().map(String::as_str).collect();
    same("the context of the join", "dependency_results", vec!["publish"], direct)?;
    let states = [completed, skipped, skipped, completed, completed];
    cast.is("after the last result", PlanState::Completed, &states).await.map(drop)
}

async fn topic_schema(world: World) -> Verdict {
    let cast = Cast::of(&world).await?;
    let schema_json = json!({"type": "object", "properties": {"rate": {"type": "number"}}}).to_string();
    let of = |topic: &str| vec![v1::TopicSchema { topic: topic.to_owned(), schema_json: schema_json.clone() }];
    let plan = cast.plan(vec![v1::Subtask { produces: vec!["Growth Rates".to_owned()], ..cast.subtask("a", &[]) }]);
    let unused = v1::Plan { topic_schemas: of("other"), ..plan.clone() };
    refused("a schema of another topic", cast.try_submit(&cast.alice, unused).await, PLAN_INVALID)?;
    cast.submit(v1::Plan { topic_schemas: of("growth_rates"), ..plan }).await?;
    let taken = cast.take().await?;
    let wrong = cast.report(&taken, TaskStatus::Completed, &json!({"rate": "much"})).await;
    let refusal = refused("a result that does not fit", wrong, INVALID)?;
    let mut checks = Checks::of("a result that does not fit");
    let is_named = refusal.violations.iter().any(|(path, _)| path.ends_with("result_json/rate"));
    checks.holds("the place", is_named, "result_json/rate", &refusal.violations);
    checks.done()?;
    cast.is("after it", PlanState::Running, &[SubtaskState::Running]).await?;
    let right = cast.report(&taken, TaskStatus::Completed, &json!({"rate": 15.3})).await;
    answered("bob reports again", right)?;
    cast.is("after the result", PlanState::Completed, &[SubtaskState::Completed]).await.map(drop)
}

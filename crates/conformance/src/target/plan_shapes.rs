//! SPEC 9: the ways to write a plan.

use serde_json::{Value, json};

use super::{
    check::{Checks, Verdict, refused},
    plans::{Cast, PLAN_INVALID},
    world::World,
};
use baton_client::proto::v1::{self, PlanState, SubtaskState, context_section::Content};

cases! {
    "plan.defaults-stand-for-what-is-left-out" "9"
        "A list of ids and dependencies is a plan with the type of its defaults, and is refused without. The context of each subtask has the object of role, task_id and previous_results."
        defaults;
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

//! Plans: the defaults of subtasks, the object that says all about a subtask, and summaries.

use baton_broker_core::{
    Services, Settings,
    codes::ErrorCode,
    ids::WorkspaceId,
    proto::v1::{self, plan_entry::Event},
    queries::EntryQuery,
};
use serde_json::{Value, json};

use crate::{
    plans::{plan_of, section, subtask},
    world::{World, assert_refused, operator},
};

/// A subtask as graphs are often written: an id, and what it needs.
fn bare(id: &str, needs: &[&str]) -> v1::Subtask {
    let dependencies = needs.iter().map(ToString::to_string).collect();
    v1::Subtask { id: id.to_owned(), dependencies, ..Default::default() }
}

fn entries(world: &World) -> Vec<Value> {
    let workspace = WorkspaceId::parse("plan:q3").unwrap();
    let query = EntryQuery { workspace, topics: Vec::new(), after: 0, limit: 10, envelopes: false };
    let caller = operator();
    let page = world.view(&caller).workspace_entries(&query).unwrap();
    let json = |entry: &v1::WorkspaceEntry| match &entry.entry {
        Some(v1::workspace_entry::Entry::Json(json)) => serde_json::from_str(json).unwrap(),
        _ => panic!("no JSON"),
    };
    page.entries.iter().map(json).collect()
}

#[test]
fn a_bare_graph_runs_with_the_defaults_of_its_plan() {
    let mut world = World::with(&["alice", "bob:worker"]);
    let graph = plan_of(vec![bare("A", &[]), bare("B", &["A"])]);
    assert_refused(world.submit(graph.clone()), ErrorCode::PlanInvalid);
    let defaults = v1::SubtaskDefaults { agent_type: "worker".to_owned(), attempts_max: 2, ..Default::default() };
    world.submit(v1::Plan { defaults: Some(defaults), ..graph }).unwrap();
    let mut workers = world.workers(&["bob"]);
    workers.take(&mut world, "A");
    workers.report(&mut world, "A", v1::TaskStatus::Failed, &json!({})).unwrap();
    assert_eq!(world.states(), "A=READY B=PENDING", "the defaults allow another attempt");
    world.restart();
    let mut workers = crate::plans::Workers { sessions: world.workers(&["bob"]).sessions, ..workers };
    world.pass(std::time::Duration::from_secs(2));
    workers.complete(&mut world, "A", "1");
    workers.complete(&mut world, "B", "2");
    assert_eq!(world.plan().state(), v1::PlanState::Completed);
}

#[test]
fn wrong_defaults_are_named_although_no_subtask_uses_them() {
    let mut world = World::with(&["alice", "bob:worker"]);
    let defaults = v1::SubtaskDefaults { agent_type: "no type".to_owned(), attempts_max: 5, ..Default::default() };
    let refusal = world.submit(v1::Plan { defaults: Some(defaults), ..plan_of(vec![subtask("a", &[])]) });
    let refusal = assert_refused(refusal, ErrorCode::PlanInvalid);
    let paths: Vec<&str> = refusal.violations().iter().map(|violation| violation.path.as_str()).collect();
    assert_eq!(paths.len(), 2, "{paths:?}");
    assert!(paths[0].ends_with("plan.defaults.agent_type") && paths[1].ends_with("plan.defaults.attempts_max"));
}

#[test]
fn one_object_says_all_about_a_subtask() {
    let mut world = World::with(&["alice", "bob:worker"]);
    world.submit(plan_of(vec![subtask("a", &[]), subtask("b", &["a"])])).unwrap();
    let mut workers = world.workers(&["bob"]);
    let first = section(&workers.take(&mut world, "a"), "subtask");
    assert_eq!(first, json!({"role": "analyst", "task_id": "a", "previous_results": {}}));
    workers.report(&mut world, "a", v1::TaskStatus::Completed, &json!({"response": "15.3%"})).unwrap();
    let context = workers.take(&mut world, "b");
    let second = section(&context, "subtask");
    assert_eq!((&second["role"], &second["task_id"]), (&json!("analyst"), &json!("b")));
    assert_eq!(second["previous_results"], section(&context, "previous_results"));
    assert_eq!(second["previous_results"]["a"]["numeric_value"], 15.3);
}

#[test]
fn results_that_find_no_room_a_second_time_are_marked_in_the_object() {
    let mut world = World::with(&["alice", "bob:worker"]);
    world.submit(plan_of(vec![subtask("a", &[]), subtask("b", &["a"])])).unwrap();
    let mut workers = world.workers(&["bob"]);
    workers.complete(&mut world, "a", &"x".repeat(120 * 1024));
    let context = workers.take(&mut world, "b");
    assert!(section(&context, "previous_results")["a"]["response"].is_string());
    assert_eq!(section(&context, "subtask")["previous_results"]["a"]["omitted"], true);
}

#[test]
fn an_entry_of_a_topic_has_a_summary() {
    let mut world = World::with(&["alice", "bob:worker"]);
    let produces = |id: &str| v1::Subtask { produces: vec!["t".to_owned()], ..subtask(id, &[]) };
    let plan = plan_of(vec![produces("a"), produces("b"), produces("c")]);
    world.submit(v1::Plan { mode: v1::PlanMode::Sequential.into(), ..plan }).unwrap();
    let mut workers = world.workers(&["bob"]);
    let long = "数".repeat(1000);
    for (id, result) in [
        ("a", json!({"response": "growth of 15.3 % in all regions", "summary": "a rise"})),
        ("b", json!({"response": long})),
        ("c", json!({"response": "x", "summary": {"of": "another form"}})),
    ] {
        workers.take(&mut world, id);
        workers.report(&mut world, id, v1::TaskStatus::Completed, &result).unwrap();
    }
    let entries = entries(&world);
    assert_eq!((&entries[0]["summary"], &entries[0]["subtask_id"]), (&json!("a rise"), &json!("a")));
    assert_eq!(entries[1]["summary"], "数".repeat(341), "the beginning of the response, in whole characters");
    assert_eq!(entries[2]["summary"], "x");
    assert_eq!((world.results()["a"].summary.as_str(), world.results()["b"].summary.as_str()), ("a rise", ""));
}

#[test]
fn without_workspaces_a_plan_keeps_its_results_and_says_so() {
    let services = Services { workspace: false, ..Services::default() };
    let mut world = World::with_settings(&["alice", "bob:worker"], Settings { services, ..Settings::default() });
    let first = v1::Subtask { produces: vec!["t".to_owned()], ..subtask("a", &[]) };
    let next = v1::Subtask { consumes: vec!["t".to_owned()], ..subtask("b", &[]) };
    world.submit(plan_of(vec![first, next])).unwrap();
    let mut workers = world.workers(&["bob"]);
    workers.complete(&mut world, "a", "1");
    let context = workers.take(&mut world, "b");
    assert_eq!(section(&context, "consumed")["t"]["a"]["response"], "1");
    let not_appended = world.plan_log().into_iter().filter_map(|entry| match entry.event {
        Some(Event::NotAppended(not)) => Some((not.topic.clone(), not.error_code())),
        _ => None,
    });
    assert_eq!(not_appended.collect::<Vec<_>>(), [("t".to_owned(), v1::ErrorCode::NotSupported)]);
}

#[test]
fn a_result_that_does_not_fit_its_topic_is_refused_and_reported_again() {
    let mut world = World::with(&["alice", "bob:worker"]);
    let schema = json!({"type": "object", "required": ["rate"], "properties": {"rate": {"type": "number"}}});
    let topic_schemas = vec![v1::TopicSchema { topic: "Growth Rates".to_owned(), schema_json: schema.to_string() }];
    let first = v1::Subtask { produces: vec!["growth_rates".to_owned()], ..subtask("a", &[]) };
    world.submit(v1::Plan { topic_schemas, ..plan_of(vec![first, subtask("b", &["a"])]) }).unwrap();
    let mut workers = world.workers(&["bob"]);
    workers.take(&mut world, "a");
    for (result, path) in [(r#"{"rate": "much"}"#, "result_json/rate"), ("{}", "result_json/rate"), ("", "result_json")]
    {
        let refusal = workers.report_text(&mut world, "a", v1::TaskStatus::Completed, result);
        let refusal = assert_refused(refusal, ErrorCode::FieldInvalid);
        let found = &refusal.violations()[0].path;
        assert!(found.ends_with(path) || found.ends_with("result_json"), "{result}: {found}");
    }
    assert_eq!(world.states(), "a=RUNNING b=PENDING");
    world.restart();
    let mut workers = crate::plans::Workers { sessions: world.workers(&["bob"]).sessions, ..workers };
    let wrong = workers.report_text(&mut world, "a", v1::TaskStatus::Completed, r#"{"rate": []}"#);
    assert_refused(wrong, ErrorCode::FieldInvalid);
    workers.report(&mut world, "a", v1::TaskStatus::Completed, &json!({"rate": 15.3})).unwrap();
    assert_eq!(entries(&world)[0]["result"]["rate"], 15.3);
    workers.take(&mut world, "b");
    workers
        .report(&mut world, "b", v1::TaskStatus::Completed, &json!({"rate": "much"}))
        .expect("its topics have no schema");
}

#[test]
fn a_failure_needs_no_result_that_fits() {
    let mut world = World::with(&["alice", "bob:worker"]);
    let topic_schemas =
        vec![v1::TopicSchema { topic: "t".to_owned(), schema_json: r#"{"required": ["x"]}"#.to_owned() }];
    let first = v1::Subtask { produces: vec!["t".to_owned()], ..subtask("a", &[]) };
    world.submit(v1::Plan { topic_schemas, ..plan_of(vec![first]) }).unwrap();
    let mut workers = world.workers(&["bob"]);
    workers.take(&mut world, "a");
    workers.report(&mut world, "a", v1::TaskStatus::Failed, &json!({"response": "no data"})).unwrap();
    assert_eq!(world.states(), "a=FAILED");
}

#[test]
fn a_schema_that_no_result_can_be_checked_by_is_refused() {
    let mut world = World::with(&["alice", "bob:worker"]);
    let first = v1::Subtask { produces: vec!["t".to_owned()], ..subtask("a", &[]) };
    let of = |topic: &str, schema: &str| v1::TopicSchema { topic: topic.to_owned(), schema_json: schema.to_owned() };
    for topic_schemas in [
        vec![of("t", "no json")],
        vec![of("t", r#"{"type": "nothing"}"#)],
        vec![of("t", "")],
        vec![of("other", "{}")],
        vec![of("t", "{}"), of("T ", "{}")],
    ] {
        let plan = v1::Plan { topic_schemas, ..plan_of(vec![first.clone()]) };
        assert_refused(world.submit(plan), ErrorCode::PlanInvalid);
    }
}

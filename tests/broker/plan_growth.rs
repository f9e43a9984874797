//! Plans that grow while they run: extensions, lists, and what is done to one subtask, through the whole broker and over
//! restarts.

use std::time::Duration;

use baton_broker_core::{
    codes::ErrorCode,
    domain::plan,
    ids::MessageId,
    proto::v1::{self, SubtaskState, TaskStatus, plan_entry::Event},
};
use prost::Message as _;
use serde_json::json;

use crate::{
    plans::{Workers, agent, id, plan_of, section, subtask},
    world::{Refusal, World, assert_refused, operator},
};

impl World {
    fn extend_as(&mut self, name: &str, subtasks: Vec<v1::Subtask>) -> Result<v1::Receipt, Refusal> {
        let extension = Some(v1::PlanExtension { plan_id: "q3".to_owned(), subtasks, defaults: None });
        let payload = v1::PlanSubmission { plan: None, extension };
        self.send(self.envelope(name, "", v1::MessageType::PlanSubmission, &payload))
    }

    fn extend(&mut self, subtasks: Vec<v1::Subtask>) -> Result<v1::Receipt, Refusal> {
        self.extend_as("alice", subtasks)
    }
}

/// The workers after a restart: they have acked their mail, and connect anew.
fn again(world: &mut World, workers: Workers) -> Workers {
    world.restart();
    let names: Vec<&str> = workers.sessions.keys().map(String::as_str).collect();
    let sessions = world.workers(&names).sessions;
    Workers { sessions, ..workers }
}

#[test]
fn added_subtasks_run_over_restarts_and_a_repeat_adds_none() {
    let mut world = World::with(&["alice", "bob:worker"]);
    world.submit(plan_of(vec![subtask("a", &[])])).unwrap();
    let mut workers = world.workers(&["bob"]);
    workers.take(&mut world, "a");
    let more = || vec![subtask("b", &["a"]), subtask("c", &["b"])];
    let receipt = world.extend(more()).unwrap();
    assert_eq!(receipt.resource, "plan:q3");
    world.extend(more()).unwrap();
    assert_eq!(world.states(), "a=RUNNING b=PENDING c=PENDING");
    let mut workers = again(&mut world, workers);
    workers.report(&mut world, "a", TaskStatus::Completed, &json!({"response": "1"})).unwrap();
    let context = workers.take(&mut world, "b");
    assert_eq!(section(&context, "previous_results")["a"]["response"], "1");
    let (_, offer) = &workers.offers["b"];
    let request = v1::HandoffRequest::decode(offer.payload.as_ref().unwrap().value.clone()).unwrap();
    let (caller, extension) = (operator(), world.plan().extension_ids[0].clone());
    let signed = world.view(&caller).plan_submission(&id(), Some(MessageId::parse(&extension).unwrap())).unwrap();
    let signed = v1::Envelope::decode(signed).unwrap();
    assert_eq!(signed.message_id, receipt.message_id, "the agent can read what the submitter has signed");
    let logged = world.plan_log().into_iter().find_map(|entry| match entry.event {
        Some(Event::Extended(extended)) => Some(extended),
        _ => None,
    });
    assert_eq!(request.on_behalf_of.unwrap().submission_sha256, logged.unwrap().content_sha256);
    workers.report(&mut world, "b", TaskStatus::Completed, &json!({"response": "2"})).unwrap();
    workers.complete(&mut world, "c", "3");
    assert_eq!(world.plan().state(), v1::PlanState::Completed);
    assert_eq!(world.results().len(), 3);
    assert_refused(world.extend(vec![subtask("d", &[])]), ErrorCode::PlanFinal);
}

#[test]
fn an_extension_that_does_not_fit_is_refused_and_changes_nothing() {
    let mut world = World::with(&["alice", "bob:worker", "eve"]);
    world.submit(plan_of(vec![subtask("a", &[])])).unwrap();
    let before = world.plan();
    let refusal = assert_refused(world.extend(vec![subtask("b", &["x"]), subtask("a", &[])]), ErrorCode::PlanInvalid);
    let found: Vec<String> = refusal.violations().iter().map(|one| format!("{} {}", one.path, one.problem)).collect();
    assert!(
        found.iter().any(|text| text.starts_with("extension.subtasks[0].dependencies DEPENDENCY_UNKNOWN")),
        "{found:?}"
    );
    assert!(found.iter().any(|text| text.starts_with("extension.subtasks[1].id ID_DOUBLED")), "{found:?}");
    assert_refused(world.extend_as("eve", vec![subtask("b", &[])]), ErrorCode::PermissionDenied);
    let mut workers = world.workers(&["bob"]);
    workers.take(&mut world, "a");
    assert_refused(world.extend_as("bob", vec![subtask("b", &[])]), ErrorCode::PermissionDenied);
    assert_eq!(world.plan().subtasks.len(), before.subtasks.len());
}

#[test]
fn each_element_gets_its_value_and_the_results_come_back_in_order_over_restarts() {
    let mut world = World::with(&["alice", "bob:worker"]);
    let for_each = v1::ForEach { subtask_id: "find".to_owned(), pointer: "/result/ids".to_owned() };
    let each = v1::Subtask { for_each: Some(for_each), ..subtask("look", &["find"]) };
    let plan = plan_of(vec![subtask("find", &[]), each, subtask("report", &["look"])]);
    world.submit(v1::Plan { max_concurrency: 1, ..plan }).unwrap();
    let mut workers = world.workers(&["bob"]);
    workers.take(&mut world, "find");
    let found = r#"{"ids": [9007199254740993, {"name": "Acme"}, null]}"#;
    workers.report_text(&mut world, "find", TaskStatus::Completed, found).unwrap();
    for (index, value) in
        [json!(9_007_199_254_740_993_u64), json!({"name": "Acme"}), json!(null)].into_iter().enumerate()
    {
        workers = again(&mut world, workers);
        let status = world.plan().subtasks[1].clone();
        assert_eq!((status.state(), status.element_count, status.elements.len()), (SubtaskState::Running, Some(3), 3));
        let context = workers.take(&mut world, "look");
        let element = section(&context, "element");
        assert_eq!(element, json!({"index": index, "count": 3, "value": value}));
        assert_eq!(section(&context, "task_description")["element"], index);
        workers = again(&mut world, workers);
        workers.report(&mut world, "look", TaskStatus::Completed, &json!({"place": index})).unwrap();
    }
    let context = workers.take(&mut world, "report");
    let results = &section(&context, "dependency_results")["look"]["result"];
    assert_eq!(*results, json!({"results": [{"place": 0}, {"place": 1}, {"place": 2}]}));
    workers.report(&mut world, "report", TaskStatus::Completed, &json!({})).unwrap();
    assert_eq!(world.plan().state(), v1::PlanState::Completed);
    assert_eq!(world.results()["look"].result_json, r#"{"results":[{"place":0},{"place":1},{"place":2}]}"#);
}

#[test]
fn a_subtask_goes_to_another_agent_over_a_restart() {
    let mut world = World::with(&["alice", "bob:worker", "carol:worker", "dave:other"]);
    let named = v1::Subtask { agent_id: "bob".to_owned(), ..subtask("a", &[]) };
    world.submit(plan_of(vec![named])).unwrap();
    let mut workers = world.workers(&["bob", "carol"]);
    workers.take(&mut world, "a");
    let to = |to: &str| plan::Input::ReassignSubtask {
        subtask: "a".to_owned(),
        to: to.to_owned(),
        by: "operator".to_owned(),
        reason: "no answer".to_owned(),
    };
    assert_refused(world.change_plan(to("nobody")), ErrorCode::ReceiverUnknown);
    assert_refused(world.change_plan(to("dave")), ErrorCode::ReceiverInvalid);
    assert_refused(world.change_plan(to("type:nothing")), ErrorCode::ReceiverUnknown);
    assert_refused(world.change_plan(to("all:worker")), ErrorCode::ReceiverInvalid);
    assert_eq!(world.states(), "a=RUNNING");
    world.change_plan(to("carol")).unwrap();
    assert_eq!(world.states(), "a=HANDING_OFF");
    let late = workers.report(&mut world, "a", TaskStatus::Completed, &json!({}));
    assert_refused(late, ErrorCode::StaleEpoch);
    let mut workers = again(&mut world, workers);
    workers.fetch(&mut world);
    assert_eq!(workers.offers["a"].0, "carol");
    workers.complete(&mut world, "a", "done");
    assert_eq!(world.plan().state(), v1::PlanState::Completed);
    let caller = operator();
    let acts = world.view(&caller).audit_log(0, 1000).unwrap();
    let acts = acts.entries.iter().filter_map(|logged| logged.entry.clone());
    let acts: Vec<v1::AuditEntry> = acts.filter(|act| act.action() == v1::AuditAction::SubtaskReassigned).collect();
    assert_eq!((acts.len(), acts[0].subject.as_str()), (1, "q3/a"));
    assert_eq!((acts[0].actor.as_str(), acts[0].details.as_str()), ("operator olga", "to carol: no answer"));
}

#[test]
fn one_subtask_is_cancelled_and_started_again_and_the_submitter_makes_no_audit_entry() {
    let mut world = World::with(&["alice", "bob:worker"]);
    world.submit(plan_of(vec![subtask("a", &[]), subtask("b", &["a"]), subtask("c", &[])])).unwrap();
    let mut workers = world.workers(&["bob"]);
    workers.take(&mut world, "a");
    let by = agent("alice").to_string();
    let cancel = plan::Input::CancelSubtask { subtask: "a".to_owned(), by: by.clone(), reason: String::new() };
    assert!(world.change_plan(cancel.clone()).unwrap());
    assert!(!world.change_plan(cancel).unwrap());
    assert_eq!(world.states(), "a=CANCELLED b=SKIPPED c=HANDING_OFF");
    workers.report(&mut world, "a", TaskStatus::Completed, &json!({})).unwrap_err();
    let mut workers = again(&mut world, workers);
    world.change_plan(plan::Input::RetrySubtask { subtask: "a".to_owned(), by }).unwrap();
    assert_eq!(world.states(), "a=HANDING_OFF b=PENDING c=HANDING_OFF");
    world.pass(Duration::from_secs(1));
    for subtask in ["a", "b", "c"] {
        workers.complete(&mut world, subtask, "done");
    }
    assert_eq!(world.plan().state(), v1::PlanState::Completed);
    let caller = operator();
    let acts = world.view(&caller).audit_log(0, 1000).unwrap();
    let of_subtasks =
        acts.entries.iter().filter_map(|logged| logged.entry.as_ref()).filter(|act| act.subject == "q3/a");
    assert_eq!(of_subtasks.count(), 0);
}

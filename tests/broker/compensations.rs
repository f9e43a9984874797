//! Compensation through the whole broker: over restarts, with contexts, policies and logs.

use std::{collections::HashMap, sync::Arc};

use baton_broker_core::{
    domain::plan,
    ids::TaskId,
    policy::{Policies, Source},
    proto::v1::{self, SubtaskState, plan_entry::Event},
};
use serde_json::{Value, json};

use crate::{
    plans::{Workers, agent, plan_of, section, subtask},
    world::World,
};

/// A seat, a room and a payment, one after the other. The seat and the room can be cancelled.
fn trip() -> v1::Plan {
    let undo = |id: &str| v1::Compensation {
        description: format!("cancel the {id}"),
        role: "canceller".to_owned(),
        agent_type: "worker".to_owned(),
        input_json: json!({"fee": 1_234_567_890_123_456_789_u64}).to_string(),
        ..Default::default()
    };
    let with_undo = |id: &str, needs: &[&str]| v1::Subtask { compensate: Some(undo(id)), ..subtask(id, needs) };
    plan_of(vec![with_undo("seat", &[]), with_undo("room", &["seat"]), subtask("pay", &["room"])])
}

impl World {
    fn compensations(&self) -> Vec<(String, SubtaskState)> {
        let of = |subtask: v1::SubtaskStatus| Some((subtask.id, subtask.compensation?.state()));
        self.plan().subtasks.into_iter().filter_map(of).collect()
    }

    /// The states of compensations in the log, in their order.
    fn undoing_log(&self) -> Vec<(String, SubtaskState)> {
        let of = |entry: v1::PlanEntry| match entry.event {
            Some(Event::Compensation(change)) => Some((change.subtask_id.clone(), change.state())),
            _ => None,
        };
        self.plan_log().into_iter().filter_map(of).collect()
    }
}

/// The workers after a restart: they have acked their mail, and connect anew.
fn again(world: &mut World, workers: Workers) -> Workers {
    world.restart();
    Workers { sessions: world.workers(&["bob"]).sessions, ..workers }
}

fn failing() -> (World, Workers) {
    let mut world = World::with(&["alice", "bob:worker"]);
    world.submit(trip()).unwrap();
    let mut workers = world.workers(&["bob"]);
    workers.complete(&mut world, "seat", "12A");
    workers.complete(&mut world, "room", "204");
    workers.take(&mut world, "pay");
    workers.report(&mut world, "pay", v1::TaskStatus::Failed, &json!({"response": "card refused"})).unwrap();
    (world, workers)
}

#[test]
fn a_failing_plan_undoes_in_reverse_order_over_restarts_at_every_step() {
    let (mut world, mut workers) = failing();
    assert_eq!(world.plan().state(), v1::PlanState::Running);
    for subtask in ["room", "seat"] {
        workers = again(&mut world, workers);
        let context = workers.take(&mut world, subtask);
        let description = section(&context, "task_description");
        assert_eq!(
            [&description["description"], &description["role"], &description["compensates"]],
            [&json!(format!("cancel the {subtask}")), &json!("canceller"), &json!(subtask)]
        );
        assert_eq!(section(&context, "input")["fee"], json!(1_234_567_890_123_456_789_u64));
        let result = section(&context, "dependency_results");
        assert_eq!(result.as_object().map(|known| known.keys().collect::<Vec<_>>()), Some(vec![&subtask.to_owned()]));
        workers = again(&mut world, workers);
        workers.report(&mut world, subtask, v1::TaskStatus::Completed, &json!({"response": "cancelled"})).unwrap();
    }
    world.restart();
    let plan = world.plan();
    assert_eq!((plan.state(), plan.reason.as_str()), (v1::PlanState::Failed, "not completed: pay"));
    let (failed, running, completed) = (SubtaskState::HandingOff, SubtaskState::Running, SubtaskState::Completed);
    let expected = ["room", "seat"].map(|of| [failed, running, completed].map(|state| (of.to_owned(), state)));
    assert_eq!(world.undoing_log(), expected.concat(), "each runs exactly once");
    let tasks: HashMap<String, String> = plan
        .subtasks
        .iter()
        .filter_map(|known| Some((known.id.clone(), known.compensation.as_ref()?.task_id.clone())))
        .collect();
    for task in tasks.values() {
        let record = world.task(task);
        assert!(record.task.status.is_final() && record.task.owner.is_coordinator(), "{task}");
        world.audit(task);
    }
    let alice = agent("alice");
    assert!(world.view(&alice).task(&TaskId::parse(&tasks["room"]).unwrap()).is_ok(), "the submitter sees it");
    let results: Vec<String> = world.results().into_keys().collect();
    assert_eq!(results.len(), 2, "results of compensations are in the log alone: {results:?}");
}

#[test]
fn a_compensation_that_fails_stops_nothing_and_a_retry_does_again_what_was_undone() {
    let (mut world, mut workers) = failing();
    workers.complete(&mut world, "room", "cancelled");
    workers.take(&mut world, "seat");
    workers.report(&mut world, "seat", v1::TaskStatus::Failed, &json!({"response": "not refundable"})).unwrap();
    let plan = world.plan();
    assert_eq!(plan.state(), v1::PlanState::Failed);
    let seat = plan.subtasks[0].compensation.clone().unwrap();
    assert_eq!((seat.state(), seat.cause.as_str()), (SubtaskState::Failed, "not refundable"));
    assert_eq!(seat.error_code(), v1::ErrorCode::SubtaskFailed);
    world.change_plan(plan::Input::Retry { by: "agent alice".to_owned() }).unwrap();
    assert_eq!(world.states(), "seat=COMPLETED room=HANDING_OFF pay=PENDING");
    assert!(world.compensations().is_empty());
    workers.complete(&mut world, "room", "205");
    workers.complete(&mut world, "pay", "paid");
    assert_eq!(world.plan().state(), v1::PlanState::Completed);
    assert_eq!(world.results()["room"].response, "205");
}

#[test]
fn the_rights_of_a_compensation_are_those_of_the_submitter() {
    let mut world = World::with(&["alice", "bob:worker"]);
    let rule = "@id(\"no-undoing\") forbid (principal, action == Action::\"handOff\", resource) when \
                { context.taskType == \"compensation\" };";
    let sources = [Source::new("default", baton_broker_core::policy::DEFAULT), Source::new("test.cedar", rule)];
    world.resources.policies.store(Arc::new(Policies::parse(&sources).unwrap()));
    world.submit(trip()).unwrap();
    let mut workers = world.workers(&["bob"]);
    workers.complete(&mut world, "seat", "12A");
    workers.take(&mut world, "room");
    workers.report(&mut world, "room", v1::TaskStatus::Failed, &Value::Object(serde_json::Map::new())).unwrap();
    let plan = world.plan();
    assert_eq!(plan.state(), v1::PlanState::Failed);
    let seat = plan.subtasks[0].compensation.clone().unwrap();
    assert_eq!((seat.state(), seat.error_code()), (SubtaskState::Failed, v1::ErrorCode::PermissionDenied));
    assert!(seat.cause.contains("no-undoing"), "{}", seat.cause);
}

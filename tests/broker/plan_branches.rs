//! Plans with branches: conditions over results that are stored, and what the parts of a plan say about them.

use baton_broker_core::{codes::ErrorCode, proto::v1};
use serde_json::json;

use crate::{
    plans::{plan_of, section, subtask},
    world::{World, assert_refused},
};

fn when(about: &str, pointer: &str, comparison: v1::condition::Comparison) -> Option<v1::Condition> {
    Some(v1::Condition {
        subtask_id: about.to_owned(),
        pointer: pointer.to_owned(),
        comparison: Some(comparison),
        negate: false,
    })
}

#[test]
fn a_condition_over_a_stored_result_decides_after_a_restart() {
    use v1::condition::Comparison::{EqualJson, Present};
    let mut world = World::with(&["alice", "bob:worker"]);
    let equal = |text: &str| when("check", "/result/verdict", EqualJson(text.to_owned()));
    let plan = plan_of(vec![
        subtask("check", &[]),
        subtask("wait", &["check"]),
        v1::Subtask { when: equal("\"good\""), ..subtask("publish", &["wait"]) },
        v1::Subtask { when: equal("\"bad\""), ..subtask("mend", &["wait"]) },
        v1::Subtask { when: when("mend", "", Present(true)), ..subtask("tell", &["mend", "wait"]) },
        subtask("report", &["publish", "mend"]),
    ]);
    world.submit(plan).unwrap();
    let mut workers = world.workers(&["bob"]);
    workers.take(&mut world, "check");
    let result = json!({"response": "done", "verdict": "good"});
    workers.report(&mut world, "check", v1::TaskStatus::Completed, &result).unwrap();
    workers.take(&mut world, "wait");
    world.restart();
    let mut workers = crate::plans::Workers { sessions: world.workers(&["bob"]).sessions, ..workers };
    workers.report(&mut world, "wait", v1::TaskStatus::Completed, &json!({"response": "1"})).unwrap();
    assert_eq!(
        world.states(),
        "check=COMPLETED wait=COMPLETED publish=HANDING_OFF mend=SKIPPED tell=SKIPPED report=PENDING"
    );
    let mend = world.plan().subtasks.remove(3);
    assert_eq!(mend.error_code(), v1::ErrorCode::Unspecified);
    assert!(mend.cause.contains("/result/verdict of check equal \"bad\""), "{}", mend.cause);
    workers.complete(&mut world, "publish", "2");
    let context = workers.take(&mut world, "report");
    let direct = section(&context, "dependency_results");
    assert_eq!(direct.as_object().unwrap().keys().collect::<Vec<_>>(), ["publish"]);
    world.restart();
    let mut workers = crate::plans::Workers { sessions: world.workers(&["bob"]).sessions, ..workers };
    workers.report(&mut world, "report", v1::TaskStatus::Completed, &json!({"response": "3"})).unwrap();
    assert_eq!(world.plan().state(), v1::PlanState::Completed);
}

#[test]
fn a_condition_that_can_never_be_decided_is_refused() {
    use v1::condition::Comparison::{EqualJson, Less};
    let mut world = World::with(&["alice", "bob:worker"]);
    let of = |condition| plan_of(vec![subtask("a", &[]), v1::Subtask { when: condition, ..subtask("b", &["a"]) }]);
    for wrong in [
        when("b", "", Less(1.0)),
        when("a", "no pointer", Less(1.0)),
        when("a", "", Less(f64::NAN)),
        when("a", "", EqualJson("[1]".to_owned())),
        Some(v1::Condition { subtask_id: "a".to_owned(), ..Default::default() }),
    ] {
        assert_refused(world.submit(of(wrong)), ErrorCode::PlanInvalid);
    }
}

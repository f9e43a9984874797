//! What the submitter of a plan, a stranger and an operator see of the tasks of its subtasks.

use baton_broker_core::{
    codes::{ErrorCode, Refusal as _},
    ids::{MessageId, TaskId},
    proto::v1,
    queries::{Backlog, HandoffFilter},
};
use serde_json::json;

use crate::{
    plans::{Workers, agent, id, plan_of, subtask},
    world::{World, operator},
};

/// Alice's plan, whose subtask bob works on; carol has nothing to do with it.
fn at_work() -> (World, Workers, TaskId) {
    let mut world = World::with(&["alice", "bob:worker", "carol"]);
    world.submit(plan_of(vec![subtask("a", &[])])).unwrap();
    let mut workers = world.workers(&["bob"]);
    workers.take(&mut world, "a");
    let task = TaskId::parse(&world.task_of("a")).unwrap();
    (world, workers, task)
}

fn handoff_of(world: &World) -> MessageId {
    MessageId::parse(&world.plan().subtasks[0].handoff_id).unwrap()
}

#[test]
fn the_submitter_reads_the_task_its_custody_log_and_its_handoffs() {
    let (world, _, task) = at_work();
    for caller in [agent("alice"), operator()] {
        let view = world.view(&caller);
        assert_eq!(view.shown_task(&task).unwrap().record.task.owner.as_str(), "bob");
        assert!(view.custody(&task, 0, 100, true).unwrap().length >= 4);
        assert_eq!(view.handoff(handoff_of(&world)).unwrap().candidate.as_str(), "bob");
        let of_task = HandoffFilter { task: Some(task.clone()), ..HandoffFilter::default() };
        assert_eq!(view.handoffs(&of_task, 10, "").unwrap().entries.len(), 1);
        let ended = view.backlog(Backlog::Ended, &HandoffFilter::default(), 0, 0, 10).unwrap();
        assert_eq!(ended.handoffs.len(), 1, "a watch of the handoffs shows it to {caller}");
    }
}

#[test]
fn a_stranger_gets_the_answer_for_an_absent_task() {
    let (world, _, task) = at_work();
    let stranger = agent("carol");
    let view = world.view(&stranger);
    let denied = ErrorCode::PermissionDenied;
    assert_eq!(view.shown_task(&task).unwrap_err().code(), denied);
    assert_eq!(view.custody(&task, 0, 100, false).unwrap_err().code(), denied);
    assert_eq!(view.handoff(handoff_of(&world)).unwrap_err().code(), denied);
    let of_task = HandoffFilter { task: Some(task), ..HandoffFilter::default() };
    assert!(view.handoffs(&of_task, 10, "").unwrap().entries.is_empty());
    assert!(view.backlog(Backlog::Ended, &HandoffFilter::default(), 0, 0, 10).unwrap().handoffs.is_empty());
    assert_eq!(view.shown_plan(&id()).unwrap_err().code(), denied);
}

#[test]
fn the_right_is_stored_with_the_task() {
    let (mut world, _, task) = at_work();
    world.restart();
    let (alice, carol) = (agent("alice"), agent("carol"));
    assert!(world.view(&alice).task(&task).is_ok());
    assert!(world.view(&carol).task(&task).is_err());
    // The submitter reads the contexts no more than before: it is no party to them.
    let denied = world.view(&alice).context(&task, 0).unwrap_err();
    assert_eq!(denied.code(), ErrorCode::PermissionDenied);
}

#[test]
fn a_plan_shows_the_progress_of_its_subtasks_and_whose_turn_it_is() {
    let mut world = World::with(&["alice", "bob:worker", "carol"]);
    world.submit(plan_of(vec![subtask("a", &[]), subtask("b", &["a"])])).unwrap();
    let mut workers = world.workers(&["bob"]);
    let shown = |world: &World, caller: &str| {
        let caller = agent(caller);
        world.view(&caller).shown_plan(&id()).unwrap().subtasks.swap_remove(0)
    };
    let offered = shown(&world, "alice");
    assert_eq!((offered.turn_agent_id.as_str(), offered.progress), ("bob", None));
    assert!(offered.turn_deadline.is_some());
    workers.take(&mut world, "a");
    let payload = v1::TaskStatusUpdate {
        status: v1::TaskStatus::InProgress.into(),
        progress: Some(0.4),
        details: "third of seven files".to_owned(),
        ..Default::default()
    };
    let report = |world: &mut World, payload: &v1::TaskStatusUpdate| {
        let update = workers.about(world, "a", v1::MessageType::TaskStatusUpdate, payload);
        let epoch = update.epoch + 1;
        world
            .send(v1::Envelope { epoch, correlation_id: String::new(), receiver_id: String::new(), ..update })
            .unwrap();
    };
    report(&mut world, &payload);
    for caller in ["alice", "bob"] {
        let running = shown(&world, caller);
        assert_eq!((running.progress, running.details.as_str()), (Some(0.4), "third of seven files"));
        assert_eq!((running.turn_agent_id.as_str(), running.turn_deadline), ("bob", running.deadline));
    }
    let prompt =
        v1::TaskPrompt { question: "which year?".to_owned(), answer_by: "carol".to_owned(), ..Default::default() };
    let question = v1::TaskStatusUpdate {
        status: v1::TaskStatus::WaitingForInput.into(),
        prompt: Some(prompt),
        ..Default::default()
    };
    report(&mut world, &question);
    assert_eq!(shown(&world, "alice").turn_agent_id, "carol", "the agent that is asked has the turn");
    let done = v1::TaskStatusUpdate {
        status: v1::TaskStatus::Completed.into(),
        result_json: json!({"response": "1"}).to_string(),
        ..Default::default()
    };
    report(&mut world, &done);
    let ended = shown(&world, "alice");
    assert_eq!((ended.turn_agent_id.as_str(), ended.details.as_str(), ended.progress), ("", "", None));
    let caller = operator();
    let log = world.view(&caller).plan(&id()).unwrap().0.log_length;
    assert_eq!(world.plan_log().len() as u64, log, "progress is no entry of the plan's log");
}

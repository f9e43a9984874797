//! The order of a mailbox among senders: they take turns within a priority, and so do the fairness keys of a sender.

use baton_broker_core::{
    codes::ErrorCode,
    engine::{Command, ConsumerKind},
    proto::v1::{self, MessageType, Priority},
};
use prost::Message as _;

use crate::world::{Refusal, Session, World, assert_refused};

impl World {
    /// Asks "w" to take a new task.
    fn ask_w(&mut self, from: &str, task: &str, key: &str, priority: Priority) -> Result<v1::Receipt, Refusal> {
        let payload = v1::HandoffRequest {
            task_type: "support".into(),
            priority: priority.into(),
            fairness_key: key.into(),
            ..Default::default()
        };
        let request = self.request_with(from, "w", 1, &payload);
        self.send(v1::Envelope { task_id: task.into(), ..request })
    }

    fn worker(&mut self) -> Session {
        self.connect_as("w", ConsumerKind::Session, 1)
    }

    /// The tasks of the next messages to a worker with one credit, in the order of their delivery.
    fn next_tasks(&mut self, worker: &mut Session, many: usize) -> Vec<String> {
        (0..many).map(|_| self.take_and_ack(worker).task_id).collect()
    }

    /// The tasks of all further requests.
    fn all_tasks(&mut self, worker: &mut Session) -> Vec<String> {
        let mut tasks = Vec::new();
        while let [(delivery, envelope)] = &worker.deliveries()[..] {
            self.ack(worker, delivery);
            tasks.push(envelope.task_id.clone());
        }
        tasks
    }
}

fn world() -> World {
    let mut settings = baton_broker_core::Settings::default();
    settings.limits.open_handoffs_max = 0;
    World::with_settings(&["a", "b", "c", "w:worker"], settings)
}

#[test]
fn the_300_requests_of_one_agent_do_not_stand_before_the_one_of_another() {
    for (is_connected, restarts) in [(true, false), (false, false), (false, true)] {
        let mut world = world();
        let mut worker = is_connected.then(|| world.worker());
        for number in 0..300 {
            world.ask_w("a", &format!("a{number:03}"), "", Priority::Medium).unwrap();
        }
        world.ask_w("b", "b", "", Priority::Medium).unwrap();
        if restarts {
            world.restart();
        }
        let mut worker = worker.take().unwrap_or_else(|| world.worker());
        let mut order = world.all_tasks(&mut worker);
        assert_eq!(order.len(), 301);
        let place = order.iter().position(|task| task == "b").unwrap();
        assert!((1..=2).contains(&place), "b is delivered at place {place}");
        order.remove(place);
        assert!(order.is_sorted(), "oldest first: {order:?}");
        world.audit("b");
    }
}

#[test]
fn a_restart_amid_the_deliveries_keeps_the_turns() {
    let mut world = world();
    for number in 0..50 {
        world.ask_w("a", &format!("a{number:02}"), "", Priority::Medium).unwrap();
    }
    for number in 0..3 {
        world.ask_w("b", &format!("b{number}"), "", Priority::Medium).unwrap();
    }
    let mut worker = world.worker();
    assert_eq!(world.next_tasks(&mut worker, 2), ["a00", "b0"]);
    let (_, unacked) = worker.delivery();
    assert_eq!(unacked.task_id, "a01");
    world.restart();
    let mut worker = world.worker();
    assert_eq!(world.next_tasks(&mut worker, 5), ["a01", "b1", "a02", "b2", "a03"]);
}

#[test]
fn the_fairness_keys_of_a_sender_share_its_turns() {
    for restarts in [false, true] {
        let mut world = world();
        for number in 0..4 {
            world.ask_w("a", &format!("north{number}"), "north", Priority::Medium).unwrap();
        }
        for number in 0..2 {
            world.ask_w("a", &format!("south{number}"), "south", Priority::Medium).unwrap();
        }
        // The same key of another sender is another part.
        for number in 0..3 {
            world.ask_w("b", &format!("b{number}"), "north", Priority::Medium).unwrap();
        }
        if restarts {
            world.restart();
        }
        let mut worker = world.worker();
        let order = world.all_tasks(&mut worker);
        let expected = ["north0", "b0", "south0", "b1", "north1", "b2", "south1", "north2", "north3"];
        assert_eq!(order, expected, "restarts: {restarts}");
        world.audit("north0");
    }
}

#[test]
fn priorities_stay_above_the_turns_and_a_lower_one_still_moves() {
    let mut world = world();
    for number in 0..9 {
        world.ask_w("a", &format!("low-a{number}"), "", Priority::Low).unwrap();
    }
    world.ask_w("b", "low-b", "", Priority::Low).unwrap();
    for number in 0..20 {
        world.ask_w("a", &format!("high-a{number:02}"), "", Priority::High).unwrap();
    }
    world.ask_w("b", "high-b", "", Priority::High).unwrap();
    let mut worker = world.worker();
    let order = world.next_tasks(&mut worker, 16);
    let expected = [
        "high-a00", "high-b", "high-a01", "high-a02", "high-a03", "high-a04", "high-a05", "low-a0", "high-a06",
        "high-a07", "high-a08", "high-a09", "high-a10", "high-a11", "high-a12", "low-b",
    ];
    assert_eq!(order, expected);
}

#[test]
fn a_fairness_key_has_the_characters_of_a_task_id() {
    let mut world = world();
    world.ask_w("a", "longest", &"k".repeat(128), Priority::Medium).unwrap();
    for bad in ["-k", "a b", "客户", &"k".repeat(129)] {
        let refusal = assert_refused(world.ask_w("a", "t", bad, Priority::Medium), ErrorCode::FieldInvalid);
        assert_eq!(refusal.violations()[0].path, "envelope.payload.fairness_key");
    }
}

/// The broker asks the bidder in the requester's place, with the key of the mandate.
#[test]
fn an_award_under_a_mandate_takes_the_turns_of_its_requester() {
    let mut world = world();
    for number in 0..5 {
        world.ask_w("b", &format!("b{number}"), "", Priority::Medium).unwrap();
    }
    for (task, key) in [("one", "x"), ("two", "x"), ("three", "y")] {
        let handoff = v1::HandoffRequest { task_type: "report".into(), fairness_key: key.into(), ..Default::default() };
        let rule = v1::AwardRule::HighestConfidence.into();
        let payload =
            v1::TaskRequest { handoff: Some(handoff), award_rule: rule, offers_wanted: 1, ..Default::default() };
        let request = world.envelope("a", "type:worker", MessageType::TaskRequest, &payload);
        let id = world.send(v1::Envelope { task_id: task.into(), epoch: 1, ..request }).unwrap().message_id;
        let offer = world.envelope("w", "a", MessageType::TaskOffer, &v1::TaskOffer::default());
        world.send(v1::Envelope { correlation_id: id, ..offer }).unwrap();
    }
    world.restart();
    let mut worker = world.worker();
    let mut order = world.next_tasks(&mut worker, 8);
    order.retain(|task| !task.is_empty());
    assert_eq!(order, ["b0", "one", "b1", "three", "b2", "two", "b3", "b4"]);
    world.audit("two");
}

#[test]
fn the_requests_of_plans_take_the_turns_of_their_submitters() {
    let mut world = world();
    let subtask = |id: String| v1::Subtask { id, agent_type: "worker".into(), ..Default::default() };
    for (submitter, many) in [("a", 5_u32), ("b", 1), ("c", 1)] {
        let plan = v1::Plan {
            plan_id: format!("of-{submitter}"),
            max_concurrency: many,
            subtasks: (0..many).map(|number| subtask(format!("{submitter}{number}"))).collect(),
            ..Default::default()
        };
        let payload = v1::PlanSubmission { plan: Some(plan), ..Default::default() };
        // The ids of the requests come from that of the submission, so those of this test must be as random as others.
        let message_id = format!("0198c0de-0000-7000-8000-{}", submitter.repeat(12));
        let envelope = world.envelope(submitter, "", MessageType::PlanSubmission, &payload);
        world.send(v1::Envelope { message_id, ..envelope }).unwrap();
    }
    world.ask_w("a", "own", "", Priority::Medium).unwrap();
    world.restart();
    let mut worker = world.worker();
    let mut order = Vec::new();
    while let [(delivery, envelope)] = &worker.deliveries()[..] {
        world.ack(&worker, delivery);
        let request = v1::HandoffRequest::decode(envelope.payload.as_ref().unwrap().value.clone()).unwrap();
        order.push(request.on_behalf_of.map_or_else(|| "own".to_owned(), |of| of.subtask_id));
    }
    assert_eq!(order, ["a0", "b0", "c0", "a1", "a2", "a3", "a4", "own"]);
}

/// What the broker itself says of a handoff takes the turns of its requester, too.
#[test]
fn the_notices_of_300_failures_do_not_stand_before_another_request() {
    let mut world = world();
    let mut worker = world.connect("w");
    for number in 0..300 {
        world.ask_w("a", &format!("a{number:03}"), "", Priority::Medium).unwrap();
    }
    while let deliveries = worker.deliveries()
        && !deliveries.is_empty()
    {
        deliveries.iter().for_each(|(delivery, _)| world.ack(&worker, delivery));
    }
    let consumer = worker.consumer;
    world.engine.handle(Command::Credit { consumer, outstanding_max: 0, reply: None }, world.now);
    world.pass(std::time::Duration::from_secs(31));
    world.ask_w("b", "b", "", Priority::Medium).unwrap();
    world.engine.handle(Command::Credit { consumer, outstanding_max: 1, reply: None }, world.now);
    world.settle();
    let order = world.next_tasks(&mut worker, 3);
    assert!(order.contains(&"b".to_owned()), "{order:?}");
}

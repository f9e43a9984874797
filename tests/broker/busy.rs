//! Busy and absent agents: a request waits for room, for the time that an agent names, for an agent that is still to
//! register, and for its own time. Only the whole time ends it.

use std::time::Duration;

use baton_broker_core::{
    codes::ErrorCode,
    domain::handoff::{Cause, State, Waiting},
    proto::v1::{self, Envelope, MessageType},
};

use crate::world::{Session, World, assert_refused};

const SECOND: Duration = Duration::from_secs(1);

fn of(task: &str, envelope: Envelope) -> Envelope {
    Envelope { task_id: task.to_owned(), ..envelope }
}

impl World {
    /// Sends a request for a task of its own.
    fn ask_on(&mut self, from: &str, to: &str, task: &str, payload: v1::HandoffRequest) -> String {
        let payload = v1::HandoffRequest { task_type: "support".into(), ..payload };
        self.send(of(task, self.request_with(from, to, 1, &payload))).unwrap().handoff_id
    }

    fn ask_plainly(&mut self, task: &str) -> String {
        self.ask_on("a", "b", task, v1::HandoffRequest::default())
    }

    /// The agent takes its next offer over, up to the ownership of the task. Returns the task.
    fn take_over(&mut self, by: &mut Session) -> String {
        let offer = self.take_and_ack(by);
        assert_eq!(offer.message_type(), MessageType::HandoffRequest);
        let (task, handoff, agent) = (offer.task_id, offer.message_id, by.agent.to_string());
        let epoch = self.task(&task).task.epoch;
        let owner = self.task(&task).task.owner.to_string();
        self.send(of(&task, self.accept(&agent, &owner, &handoff, epoch))).unwrap();
        self.send(of(&task, self.context(&owner, &agent, &handoff, epoch))).unwrap();
        self.take_and_ack(by);
        self.send(of(&task, self.complete(&agent, &owner, &handoff, epoch))).unwrap();
        task
    }

    fn finish_task(&mut self, task: &str) {
        let record = self.task(task);
        let (owner, epoch) = (record.task.owner.to_string(), record.task.epoch);
        self.send(of(task, self.status(&owner, "", epoch, v1::TaskStatus::Completed))).unwrap();
    }

    fn reject_for_room(&mut self, by: &mut Session, task: &str, retry_after: Option<Duration>) {
        let offer = self.take_and_ack(by);
        let payload = v1::HandoffReject {
            reason: v1::RejectReason::Overloaded.into(),
            retry_after: retry_after.map(|span| prost_types::Duration::try_from(span).unwrap()),
            ..Default::default()
        };
        let reject = self.envelope(by.agent.as_str(), "a", MessageType::HandoffReject, &payload);
        let reject = Envelope { correlation_id: offer.message_id, epoch: 1, ..of(task, reject) };
        self.send(reject).unwrap();
    }

    fn waiting(&self, handoff: &str) -> Option<Waiting> {
        self.handoff(handoff).waiting
    }

    fn has_offer(&self, handoff: &str) -> bool {
        self.handoff(handoff).has_offer()
    }
}

/// Three tasks for a worker that does one at a time: a queue, and nothing is lost.
#[test]
fn a_full_worker_gets_one_task_after_the_other() {
    let mut world = World::with(&["a", "b"]);
    world.equip("b", &[], 1);
    let mut b = world.connect("b");
    let handoffs = ["t-1", "t-2", "t-3"].map(|task| world.ask_plainly(task));
    assert!(world.has_offer(&handoffs[0]));
    for held in &handoffs[1..] {
        let handoff = world.handoff(held);
        assert_eq!((handoff.state, handoff.waiting), (State::Requested, Some(Waiting::Capacity)));
        assert_eq!(handoff.steps.last().unwrap().cause, Cause::Held);
        assert_eq!((handoff.step_deadline, handoff.offers.len()), (None, 0), "only the whole time ends it");
    }
    for task in ["t-1", "t-2", "t-3"] {
        assert_eq!(world.take_over(&mut b), task);
        assert!(b.deliveries().is_empty(), "one free place is for one handoff");
        world.pass(20 * SECOND);
        world.finish_task(task);
    }
    for (task, handoff) in ["t-1", "t-2", "t-3"].into_iter().zip(&handoffs) {
        assert_eq!(world.handoff(handoff).state, State::Completed);
        world.audit(task);
    }
    assert!(world.dead_letters().is_empty());
}

#[test]
fn a_request_to_a_type_goes_to_the_first_agent_of_it_that_has_room() {
    let mut world = World::with(&["a", "b:w", "c:w"]);
    ["b", "c"].iter().for_each(|agent| world.equip(agent, &[], 1));
    let (mut b, mut c) = (world.connect("b"), world.connect("c"));
    let handoffs = ["t-1", "t-2", "t-3"].map(|task| world.ask_on("a", "type:w", task, v1::HandoffRequest::default()));
    let of_b = world.take_over(&mut b);
    let of_c = world.take_over(&mut c);
    assert_eq!(world.waiting(&handoffs[2]), Some(Waiting::Capacity));
    world.finish_task(&of_c);
    assert_eq!(world.take_over(&mut c), "t-3");
    world.finish_task(&of_b);
    assert!(b.deliveries().is_empty());
}

#[test]
fn a_held_handoff_ends_with_the_whole_time_and_its_candidate_hears_nothing() {
    let mut world = World::with(&["a", "b"]);
    world.equip("b", &[], 1);
    let mut b = world.connect("b");
    world.ask_plainly("t-1");
    world.take_over(&mut b);
    let held = world.ask_plainly("t-2");
    world.pass(359 * SECOND);
    assert_eq!(world.waiting(&held), Some(Waiting::Capacity));
    world.pass(SECOND);
    let handoff = world.handoff(&held);
    let code = handoff.failure.as_ref().unwrap().code;
    assert_eq!((handoff.state, code, handoff.waiting), (State::Failed, ErrorCode::WholeTimeout, None));
    assert!(b.deliveries().is_empty());
    let told = world.connect("a").deliveries().into_iter().map(|(_, envelope)| envelope.message_type());
    assert_eq!(told.last(), Some(MessageType::ErrorNotification));
    world.audit("t-2");
}

#[test]
fn a_held_handoff_is_cancelled_without_a_word_to_its_candidate() {
    let mut world = World::with(&["a", "b"]);
    world.equip("b", &[], 1);
    let mut b = world.connect("b");
    world.ask_plainly("t-1");
    let held = world.ask_plainly("t-2");
    assert_refused(world.send(of("t-2", world.accept("b", "a", &held, 1))), ErrorCode::NotCandidate);
    world.send(of("t-2", world.cancel("a", "b", &held, 1))).unwrap();
    assert_eq!(world.handoff(&held).state, State::Cancelled);
    assert_eq!(world.take_over(&mut b), "t-1");
    world.finish_task("t-1");
    assert!(b.deliveries().is_empty());
    world.audit("t-2");
}

#[test]
fn held_handoffs_go_on_after_a_restart() {
    let mut world = World::with(&["a", "b"]);
    world.equip("b", &[], 1);
    let mut b = world.connect("b");
    world.ask_plainly("t-1");
    world.take_over(&mut b);
    let held = world.ask_plainly("t-2");
    world.restart();
    let new = world.ask_plainly("t-3");
    assert_eq!((world.waiting(&held), world.waiting(&new)), (Some(Waiting::Capacity), Some(Waiting::Capacity)));
    let mut b = world.connect("b");
    assert!(b.deliveries().is_empty(), "the agent is full after the restart, too");
    world.finish_task("t-1");
    assert_eq!(world.take_over(&mut b), "t-2");
    world.finish_task("t-2");
    assert_eq!(world.take_over(&mut b), "t-3");
    ["t-2", "t-3"].iter().for_each(|task| drop(world.audit(task)));
}

#[test]
fn a_heartbeat_that_shows_room_lets_a_held_handoff_go() {
    let mut world = World::with(&["a", "b"]);
    let mut b = world.connect("b");
    world.beat(&b, 2, 2);
    let held = world.ask_plainly("t-1");
    assert_eq!(world.waiting(&held), Some(Waiting::Capacity));
    world.beat(&b, 2, 2);
    assert_eq!(world.waiting(&held), Some(Waiting::Capacity));
    world.beat(&b, 1, 2);
    assert_eq!(world.take_over(&mut b), "t-1");
}

/// A heartbeat counts a task that has ended since. The agent has room before its next heartbeat.
#[test]
fn a_task_that_has_ended_since_the_heartbeat_takes_no_room() {
    let mut world = World::with(&["a", "b"]);
    let mut b = world.connect("b");
    world.beat(&b, 0, 1);
    world.ask_plainly("t-1");
    world.take_over(&mut b);
    world.beat(&b, 1, 1);
    let held = world.ask_plainly("t-2");
    assert_eq!(world.waiting(&held), Some(Waiting::Capacity));
    world.finish_task("t-1");
    assert_eq!(world.take_over(&mut b), "t-2");
}

#[test]
fn higher_priorities_go_first_and_the_senders_take_turns() {
    let mut world = World::with(&["a", "d", "b"]);
    world.equip("b", &[], 1);
    let mut b = world.connect("b");
    for task in ["a-1", "a-2", "a-3"] {
        world.ask_plainly(task);
    }
    world.ask_on("d", "b", "d-1", v1::HandoffRequest::default());
    let high = v1::HandoffRequest { priority: v1::Priority::High.into(), ..Default::default() };
    world.ask_on("a", "b", "a-4", high);
    for task in ["a-1", "a-4", "a-2", "d-1", "a-3"] {
        assert_eq!(world.take_over(&mut b), task);
        world.finish_task(task);
    }
}

#[test]
fn a_candidate_is_asked_again_as_often_as_it_names_a_time() {
    let mut world = World::with(&["a", "b"]);
    let mut b = world.connect("b");
    let handoff = world.ask_plainly("t-1");
    for _ in 0..50 {
        world.reject_for_room(&mut b, "t-1", Some(3 * SECOND));
        assert_eq!(world.waiting(&handoff), Some(Waiting::RetryTime));
        world.pass(2 * SECOND);
        assert!(b.deliveries().is_empty());
        world.pass(SECOND);
    }
    assert_eq!(world.take_over(&mut b), "t-1");
    assert_eq!(world.handoff(&handoff).offers.len(), 1);
    world.audit("t-1");
}

#[test]
fn a_candidate_without_room_is_asked_after_one_two_and_four_seconds_and_when_its_load_falls() {
    let mut world = World::with(&["a", "b"]);
    let mut b = world.connect("b");
    world.ask_plainly("t-1");
    world.take_over(&mut b);
    let handoff = world.ask_plainly("t-2");
    for pause in [1, 2, 4] {
        world.reject_for_room(&mut b, "t-2", None);
        assert_eq!(world.waiting(&handoff), Some(Waiting::RetryTime));
        world.pass(pause * SECOND - Duration::from_millis(1));
        assert!(b.deliveries().is_empty());
        world.pass(Duration::from_millis(1));
        assert!(world.has_offer(&handoff), "after {pause} s");
    }
    world.reject_for_room(&mut b, "t-2", None);
    world.pass(SECOND);
    world.finish_task("t-1");
    assert_eq!(world.take_over(&mut b), "t-2");
    world.audit("t-2");
}

#[test]
fn other_requests_wait_for_an_agent_that_has_said_it_has_no_room() {
    let mut world = World::with(&["a", "b"]);
    let mut b = world.connect("b");
    world.ask_plainly("t-1");
    world.reject_for_room(&mut b, "t-1", Some(10 * SECOND));
    let other = world.ask_plainly("t-2");
    assert_eq!(world.waiting(&other), Some(Waiting::Capacity));
    world.pass(10 * SECOND);
    assert_eq!(b.deliveries().len(), 2);
}

#[test]
fn a_request_waits_for_the_first_agent_of_its_type() {
    let mut world = World::with(&["a"]);
    assert_refused(world.send(world.request("a", "type:gpu", 1)), ErrorCode::ReceiverUnknown);
    let waits = || v1::HandoffRequest { wait_for_agent: true, ..Default::default() };
    let skilled = v1::HandoffRequest { required_skills: vec!["cuda".into()], ..waits() };
    let plain = world.ask_on("a", "type:gpu", "t-1", waits());
    let demanding = world.ask_on("a", "type:gpu", "t-2", skilled);
    assert_eq!((world.waiting(&plain), world.waiting(&demanding)), (Some(Waiting::Agent), Some(Waiting::Agent)));
    world.restart();
    world.pass(100 * SECOND);
    world.register("g", "gpu");
    let mut g = world.connect("g");
    assert_eq!(world.take_over(&mut g), "t-1");
    assert_eq!(world.waiting(&demanding), Some(Waiting::Agent), "the agent lacks a skill");
    world.register("h", "gpu");
    world.equip("h", &["cuda"], 0);
    let mut h = world.connect("h");
    assert_eq!(world.take_over(&mut h), "t-2");
    ["t-1", "t-2"].iter().for_each(|task| drop(world.audit(task)));
}

#[test]
fn a_request_waits_for_a_named_agent_and_for_no_longer_than_its_whole_time() {
    let mut world = World::with(&["a"]);
    assert_refused(world.send(world.request("a", "g", 1)), ErrorCode::ReceiverUnknown);
    let waits = || v1::HandoffRequest { wait_for_agent: true, ..Default::default() };
    let first = world.ask_on("a", "g", "t-1", waits());
    assert_eq!(world.handoff(&first).candidate.as_str(), "g");
    world.pass(360 * SECOND);
    assert_eq!(world.handoff(&first).failure.as_ref().unwrap().code, ErrorCode::WholeTimeout);
    world.ask_on("a", "g", "t-2", waits());
    world.register("g", "");
    let mut g = world.connect("g");
    assert_eq!(world.take_over(&mut g), "t-2");
}

#[test]
fn an_agent_that_registers_later_gets_what_waits_for_room() {
    let mut world = World::with(&["a", "b:w"]);
    world.equip("b", &[], 1);
    let mut b = world.connect("b");
    let kind = |world: &mut World, task| world.ask_on("a", "type:w", task, v1::HandoffRequest::default());
    kind(&mut world, "t-1");
    world.take_over(&mut b);
    let held = kind(&mut world, "t-2");
    assert_eq!(world.waiting(&held), Some(Waiting::Capacity));
    world.register("c", "w");
    let mut c = world.connect("c");
    assert_eq!(world.take_over(&mut c), "t-2");
    world.audit("t-2");
}

#[test]
fn a_gone_agent_is_asked_when_it_is_back_and_costs_nothing_until_then() {
    let mut world = World::with(&["a", "b:w", "c:w"]);
    world.equip("b", &[], 1);
    let mut b = world.connect("b");
    world.ask_on("a", "b", "t-1", v1::HandoffRequest::default());
    world.take_over(&mut b);
    for _ in 0..20 {
        world.beat(&b, 1, 1);
        world.pass(5 * SECOND);
    }
    let held = world.ask_on("a", "type:w", "t-2", v1::HandoffRequest::default());
    assert_eq!(world.waiting(&held), Some(Waiting::Capacity), "b is full, and c is gone");
    assert!(world.engine.next_deadline().is_some_and(|at| at > world.now), "nothing is left to do now");
    let mut c = world.connect("c");
    assert_eq!(world.take_over(&mut c), "t-2");
    world.audit("t-2");
}

#[test]
fn a_request_asks_no_agent_before_its_time_and_its_whole_time_begins_then() {
    let mut world = World::with(&["a", "b"]);
    let at = |seconds: u64, world: &World| Some(world.now.plus(Duration::from_secs(seconds)).into());
    let later = v1::HandoffRequest { deliver_after: at(7200, &world), ..Default::default() };
    let handoff = world.ask_on("a", "b", "t-1", later);
    assert_eq!(world.waiting(&handoff), Some(Waiting::DeliverAfter));
    world.restart();
    let mut b = world.connect("b");
    world.pass(7199 * SECOND);
    assert!(b.deliveries().is_empty());
    world.pass(SECOND);
    assert_eq!(world.take_over(&mut b), "t-1");
    world.audit("t-1");

    let month = 30 * 24 * 3600;
    let too_late =
        v1::HandoffRequest { task_type: "support".into(), deliver_after: at(month + 60, &world), ..Default::default() };
    assert_refused(world.send(of("t-2", world.request_with("a", "b", 1, &too_late))), ErrorCode::FieldInvalid);
    let latest = v1::HandoffRequest { deliver_after: at(month, &world), ..Default::default() };
    let handoff = world.ask_on("a", "b", "t-2", latest);
    world.send(of("t-2", world.cancel("a", "b", &handoff, 1))).unwrap();
    assert_eq!(world.handoff(&handoff).state, State::Cancelled);
}

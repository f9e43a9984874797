//! Owners that are gone: the agents that handed their tasks over are told, once in each absence.

use std::time::Duration;

use baton_broker_core::proto::v1::{self, MessageType, NextStep, Severity};
use prost::Message as _;

use crate::world::{Session, World};

const LEASE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

/// The notices among the deliveries since the last call, each with its task, its handoff and its severity.
fn notices(world: &mut World, session: &mut Session) -> Vec<(v1::ErrorNotification, v1::Envelope)> {
    let deliveries = session.deliveries();
    deliveries.iter().for_each(|(delivery, _)| world.ack(session, delivery));
    let notices = deliveries.into_iter().map(|(_, envelope)| envelope);
    let notices = notices.filter(|envelope| envelope.message_type() == MessageType::ErrorNotification);
    notices.map(|it| (v1::ErrorNotification::decode(it.payload.clone().unwrap().value).unwrap(), it)).collect()
}

/// The tasks of the notices since the last call.
fn told(world: &mut World, session: &mut Session) -> Vec<String> {
    let notices = notices(world, session);
    for (notice, _) in &notices {
        assert_eq!((notice.error_code(), notice.severity()), (v1::ErrorCode::AgentGone, Severity::Critical));
    }
    notices.into_iter().map(|(_, envelope)| envelope.task_id).collect()
}

impl World {
    /// Hands task "t" over with a further payload than [`World::hand_over`] has.
    fn delegate(&mut self, from: &mut Session, to: &mut Session, epoch: u64) {
        let mode = v1::HandoffMode::Delegate.into();
        let payload = v1::HandoffRequest { task_type: "support".into(), mode, ..Default::default() };
        let request = self.request_with(from.agent.as_str(), to.agent.as_str(), epoch, &payload);
        self.hand_over_with(from, to, epoch, request);
    }

    /// Lets agent "b" own this many tasks that "a" has handed over, without a task "t".
    fn hand_over_many(&mut self, a: &mut Session, b: &mut Session, number: usize) {
        for number in 0..number {
            let about = |envelope| v1::Envelope { task_id: format!("t{number:04}"), ..envelope };
            let handoff = self.send(about(self.request("a", "b", 1))).unwrap().handoff_id;
            self.take_and_ack(b);
            self.send(about(self.accept("b", "a", &handoff, 1))).unwrap();
            self.take_and_ack(a);
            self.send(about(self.context("a", "b", &handoff, 1))).unwrap();
            self.take_and_ack(b);
            self.send(about(self.complete("b", "a", &handoff, 1))).unwrap();
            self.take_and_ack(a);
        }
    }
}

/// A world in which "a" has handed task "t" to "b".
fn owned_by_b() -> (World, Session, Session) {
    let mut world = World::with(&["a", "b", "c"]);
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));
    world.hand_over(&mut a, &mut b, 1);
    (world, a, b)
}

#[test]
fn the_agent_that_handed_a_task_over_is_told_once_that_its_owner_is_gone() {
    let mut world = World::with(&["a", "b"]);
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));
    let handoff = world.hand_over(&mut a, &mut b, 1);
    let length = world.task("t").custody.length;
    world.disconnect(b);
    world.pass(LEASE - Duration::from_secs(1));
    assert_eq!(told(&mut world, &mut a), [""; 0], "the owner may come back within its lease");

    world.pass(Duration::from_secs(1));
    let mut told_of = notices(&mut world, &mut a);
    let (notice, envelope) = told_of.pop().expect("a notice");
    assert!(told_of.is_empty());
    assert_eq!((notice.error_code(), notice.severity()), (v1::ErrorCode::AgentGone, Severity::Critical));
    assert_eq!(notice.next_step(), NextStep::Unspecified);
    assert!(notice.next_step_text.contains("operator"), "{}", notice.next_step_text);
    assert!(notice.error_message.starts_with("b owns the task at epoch 2"), "{}", notice.error_message);
    assert_eq!((envelope.task_id.as_str(), envelope.epoch, envelope.correlation_id), ("t", 2, handoff));

    world.pass(HOUR);
    assert_eq!(told(&mut world, &mut a), [""; 0]);
    assert_eq!(world.task("t").custody.length, length, "the notice changes nothing");
    world.audit("t");
}

#[test]
fn an_owner_with_signs_of_life_is_no_news() {
    let (mut world, mut a, b) = owned_by_b();
    for _ in 0..60 {
        world.heartbeat(&b);
        world.pass(Duration::from_secs(30));
    }
    assert_eq!(told(&mut world, &mut a), [""; 0]);
}

#[test]
fn an_owner_without_an_open_task_is_no_news() {
    let (mut world, mut a, b) = owned_by_b();
    world.send(world.status("b", "", 2, v1::TaskStatus::Completed)).unwrap();
    world.disconnect(b);
    world.pass(HOUR);
    assert_eq!(told(&mut world, &mut a), [""; 0]);
}

#[test]
fn a_lent_task_is_left_to_its_delegator() {
    let mut world = World::with(&["a", "b"]);
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));
    world.delegate(&mut a, &mut b, 1);
    world.disconnect(b);
    world.pass(HOUR);
    assert_eq!(told(&mut world, &mut a), [""; 0]);
}

#[test]
fn a_restart_tells_of_no_absence_twice() {
    let (mut world, a, b) = owned_by_b();
    world.disconnect(b);
    world.disconnect(a);
    world.pass(LEASE);
    for _ in 0..3 {
        world.restart();
        world.pass(LEASE * 2);
    }
    let mut a = world.connect("a");
    assert_eq!(told(&mut world, &mut a), ["t"]);
}

#[test]
fn an_owner_that_does_not_come_back_after_a_restart_is_gone() {
    let (mut world, ..) = owned_by_b();
    world.restart();
    let mut a = world.connect("a");
    world.pass(LEASE);
    assert_eq!(told(&mut world, &mut a), ["t"]);
}

#[test]
fn a_new_absence_is_told_again() {
    let (mut world, mut a, b) = owned_by_b();
    world.disconnect(b);
    world.pass(LEASE);
    assert_eq!(told(&mut world, &mut a), ["t"]);
    let b = world.connect("b");
    world.disconnect(b);
    // The end of the first absence is durable.
    world.restart();
    let mut a = world.connect("a");
    world.pass(LEASE);
    assert_eq!(told(&mut world, &mut a), ["t"]);
    world.restart();
    let mut a = world.connect("a");
    world.pass(LEASE);
    assert_eq!(told(&mut world, &mut a), [""; 0]);
    assert_eq!(world.dead_letters(), []);
}

#[test]
fn an_owner_that_is_back_before_the_notices_are_stored_is_no_news() {
    let (mut world, mut a, b) = owned_by_b();
    world.now = world.now.plus(LEASE);
    world.engine.tick(world.now);
    world.heartbeat(&b);
    assert_eq!(told(&mut world, &mut a), [""; 0]);
}

#[test]
fn many_tasks_are_told_of_in_small_commits_also_over_a_restart() {
    let mut world = World::with(&["a", "b"]);
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));
    world.hand_over_many(&mut a, &mut b, 300);
    world.now = world.now.plus(LEASE);
    world.disk.written.lock().unwrap().clear();
    world.finish();
    world.finish();
    let first: usize = world.dead_letters().len() + told(&mut world, &mut a).len();
    assert!((1..300).contains(&first), "{first} notices before the restart");
    world.restart();
    let mut a = world.connect("a");
    let mut tasks = Vec::new();
    for _ in 0..20 {
        world.pass(LEASE / 10);
        tasks.extend(told(&mut world, &mut a));
    }
    assert_eq!(tasks.len() + first, 300);
    tasks.sort();
    tasks.dedup();
    assert_eq!(tasks.len() + first, 300, "each task once");
    let commits = world.disk.written.lock().unwrap();
    // A notice writes a letter, its envelope and the record of the task.
    let most = commits.iter().map(Vec::len).max().unwrap();
    assert!(most <= 4 * 128 + 8, "{most} records in a commit");
}

#[test]
fn a_task_that_returns_to_an_absent_owner_is_told_of() {
    let mut world = World::with(&["z", "a", "b"]);
    let (mut z, mut a, mut b) = (world.connect("z"), world.connect("a"), world.connect("b"));
    world.hand_over(&mut z, &mut a, 1);
    world.delegate(&mut a, &mut b, 2);
    world.disconnect(a);
    for _ in 0..10 {
        world.heartbeat(&b);
        world.pass(Duration::from_secs(30));
    }
    assert_eq!(told(&mut world, &mut z), [""; 0], "b works on the task");
    world.send(world.status("b", "", 3, v1::TaskStatus::Completed)).unwrap();
    assert_eq!(told(&mut world, &mut z), ["t"]);
    world.restart();
    let mut z = world.connect("z");
    world.pass(LEASE * 3);
    assert_eq!(told(&mut world, &mut z), [""; 0]);
    world.audit("t");
}

//! The resource limits of one agent.

use std::time::Duration;

use baton::{
    broker::{AgentLimits, Settings},
    codes::ErrorCode,
};

use crate::world::{World, assert_refused};

fn world(limits: AgentLimits) -> World {
    World::with_settings(&["a", "b", "c"], Settings { limits, ..Settings::default() })
}

/// A request about a separate task.
fn request(world: &World, from: &str, to: &str, task: &str) -> baton::proto::v1::Envelope {
    baton::proto::v1::Envelope { task_id: task.into(), ..world.request(from, to, 1) }
}

#[test]
fn open_handoffs_of_one_agent_are_bounded_also_over_a_restart() {
    let mut world = world(AgentLimits { open_handoffs_max: 2, ..AgentLimits::default() });
    for task in ["t1", "t2"] {
        world.send(request(&world, "a", "b", task)).unwrap();
    }
    let refusal = assert_refused(world.send(request(&world, "a", "b", "t3")), ErrorCode::LimitExceeded);
    assert!(refusal.retry_after().is_some());
    world.send(request(&world, "c", "b", "t4")).unwrap();
    world.restart();
    assert_refused(world.send(request(&world, "a", "b", "t3")), ErrorCode::LimitExceeded);
    world.pass(Duration::from_secs(360)); // the handoffs end
    world.send(request(&world, "a", "b", "t3")).unwrap();
}

#[test]
fn a_full_mailbox_takes_no_more_until_something_is_acked_also_over_a_restart() {
    let mut world = world(AgentLimits { mailbox_max: 3, ..AgentLimits::default() });
    for text in ["one", "two", "three"] {
        world.send(world.info("a", "b", text)).unwrap();
    }
    assert_refused(world.send(world.info("a", "b", "four")), ErrorCode::LimitExceeded);
    assert_refused(world.send(request(&world, "a", "b", "t1")), ErrorCode::LimitExceeded);
    world.send(world.info("a", "c", "to another agent")).unwrap();
    world.restart();
    assert_refused(world.send(world.info("a", "b", "four")), ErrorCode::LimitExceeded);
    let mut b = world.connect("b");
    let (delivery, _) = b.deliveries().remove(0);
    world.ack(&b, &delivery);
    world.send(world.info("a", "b", "four")).unwrap();
    assert_refused(world.send(world.info("a", "b", "five")), ErrorCode::LimitExceeded);
}

#[test]
fn a_repeat_is_answered_also_where_something_new_is_over_a_limit() {
    let mut world = world(AgentLimits { mailbox_max: 1, ..AgentLimits::default() });
    let mut envelope = world.info("a", "b", "one");
    world.sign(&mut envelope);
    let first = world.send_signed(&envelope).unwrap();
    assert_eq!(world.send_signed(&envelope).unwrap(), first);
}

#[test]
fn zero_means_no_limit() {
    let limits = AgentLimits { open_handoffs_max: 0, mailbox_max: 0, ..AgentLimits::default() };
    let mut world = world(limits);
    for number in 0..300 {
        world.send(request(&world, "a", "b", &format!("t{number}"))).unwrap();
    }
}

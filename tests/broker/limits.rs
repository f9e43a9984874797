//! The resource limits of one agent.

use std::time::Duration;

use baton_broker_core::{AgentLimits, Settings, codes::ErrorCode, proto::v1};

use crate::world::{World, assert_refused};

fn world(limits: AgentLimits) -> World {
    World::with_settings(&["a", "b", "c"], Settings { limits, ..Settings::default() })
}

/// A request about a separate task.
fn request(world: &World, from: &str, to: &str, task: &str) -> v1::Envelope {
    v1::Envelope { task_id: task.into(), ..world.request(from, to, 1) }
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
fn a_message_to_a_type_goes_to_an_agent_with_room() {
    let limits = AgentLimits { mailbox_max: 1, ..AgentLimits::default() };
    let mut world = World::with_settings(&["a", "b:team", "c:team"], Settings { limits, ..Settings::default() });
    let waiting = |world: &World| ["b", "c"].map(|agent| world.letters(agent));
    world.send(world.info("a", "type:team", "one")).unwrap();
    world.send(world.info("a", "type:team", "two")).unwrap();
    assert_eq!(waiting(&world), [1, 1]);
    for to in ["type:team", "all:team"] {
        let refusal = assert_refused(world.send(world.info("a", to, "three")), ErrorCode::LimitExceeded);
        assert!(refusal.retry_after().is_some());
        assert_refused(world.send(request(&world, "a", "type:team", "t1")), ErrorCode::LimitExceeded);
        let offers = v1::TaskRequest::default();
        let offers = world.envelope("a", to, v1::MessageType::TaskRequest, &offers);
        assert_refused(world.send(offers), ErrorCode::LimitExceeded);
    }
    let mut session = world.connect("c");
    let (delivery, _) = session.delivery();
    world.ack(&session, &delivery);
    assert_refused(world.send(world.info("a", "all:team", "three")), ErrorCode::LimitExceeded);
    let handoff = world.send(request(&world, "a", "type:team", "t1")).unwrap().handoff_id;
    let handoff = world.handoff(&handoff);
    assert_eq!((handoff.candidate.as_str(), handoff.next_candidates.len()), ("c", 0));
    assert_eq!(waiting(&world), [1, 1]);
}

#[test]
fn a_fallback_with_a_full_mailbox_does_not_refuse_the_request() {
    let limits = AgentLimits { mailbox_max: 1, ..AgentLimits::default() };
    let mut world = World::with_settings(&["a", "b", "c:team"], Settings { limits, ..Settings::default() });
    world.send(world.info("a", "c", "one")).unwrap();
    let body = v1::HandoffRequest {
        task_type: "x".into(),
        fallback_candidates: vec!["type:team".into()],
        ..v1::HandoffRequest::default()
    };
    let request = |world: &World, to: &str, task: &str| {
        let request = world.envelope("a", to, v1::MessageType::HandoffRequest, &body);
        v1::Envelope { task_id: task.into(), epoch: 1, ..request }
    };
    let handoff = world.send(request(&world, "b", "t1")).unwrap().handoff_id;
    let handoff = world.handoff(&handoff);
    assert_eq!((handoff.candidate.as_str(), handoff.next_candidates.len()), ("b", 0));
    assert_refused(world.send(request(&world, "type:team", "t2")), ErrorCode::LimitExceeded);
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

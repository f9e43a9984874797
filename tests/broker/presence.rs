//! The presence of agents decides which candidates are asked.

use std::time::Duration;

use baton_broker_core::{
    directory::PresenceState,
    domain::handoff::{Cause, OfferOutcome, State},
    proto::v1::{self, MessageType},
};

use crate::world::{Session, World};

const LEASE: Duration = Duration::from_secs(60);

/// Advances the clock while these agents send heartbeats.
fn pass_with_heartbeats(world: &mut World, span: Duration, alive: &[&Session]) {
    for _ in 0..span.as_secs().div_ceil(10) {
        alive.iter().for_each(|session| world.heartbeat(session));
        world.pass(Duration::from_secs(10));
    }
    alive.iter().for_each(|session| world.heartbeat(session));
}

fn with_fallbacks(world: &World, to: &str, fallbacks: &[&str]) -> v1::Envelope {
    let payload = v1::HandoffRequest {
        task_type: "support".into(),
        fallback_candidates: fallbacks.iter().map(ToString::to_string).collect(),
        ..Default::default()
    };
    world.request_with("a", to, 1, &payload)
}

#[test]
fn an_agent_is_alive_with_heartbeats_suspect_without_and_gone_after_the_lease() {
    let mut world = World::with(&["a"]);
    assert_eq!(world.presence("a"), PresenceState::Unseen, "no session has been there yet");
    let a = world.connect("a");
    pass_with_heartbeats(&mut world, Duration::from_secs(300), &[&a]);
    assert_eq!(world.presence("a"), PresenceState::Alive);
    world.pass(Duration::from_secs(30));
    assert_eq!(world.presence("a"), PresenceState::Suspect);
    world.pass(Duration::from_secs(30));
    assert_eq!(world.presence("a"), PresenceState::Gone);
    world.heartbeat(&a);
    assert_eq!(world.presence("a"), PresenceState::Alive);
    world.disconnect(a);
    assert_eq!(world.presence("a"), PresenceState::Suspect, "it may come back");
    world.pass(LEASE);
    assert_eq!(world.presence("a"), PresenceState::Gone);
}

#[test]
fn one_who_is_gone_is_not_asked_while_another_can_be() {
    let mut world = World::with(&["a", "gone", "there"]);
    world.pass(LEASE);
    let _there = world.connect("there");
    let id = world.send(with_fallbacks(&world, "gone", &["there"])).unwrap().handoff_id;
    let handoff = world.handoff(&id);
    assert_eq!(handoff.candidate.as_str(), "there");
    assert_eq!(handoff.next_candidates[0].as_str(), "gone", "asked last, if it comes to that");
    world.audit("t");
}

#[test]
fn a_gone_agent_is_asked_last_and_may_still_accept() {
    let mut world = World::with(&["a", "b"]);
    world.pass(LEASE);
    let id = world.send(world.request("a", "b", 1)).unwrap().handoff_id;
    assert_eq!(world.handoff(&id).candidate.as_str(), "b");
    let mut b = world.connect("b");
    world.take_and_ack(&mut b);
    world.send(world.accept("b", "a", &id, 1)).unwrap();
    assert_eq!(world.handoff(&id).state, State::Accepted);
}

#[test]
fn a_request_on_its_way_to_one_who_goes_is_offered_to_the_next() {
    let mut world = World::with(&["a", "b", "c"]);
    let b = world.connect("b");
    let mut c = world.connect("c");
    let id = world.send(with_fallbacks(&world, "b", &["c"])).unwrap().handoff_id;
    world.disconnect(b); // before its ack
    pass_with_heartbeats(&mut world, LEASE, &[&c]);
    let handoff = world.handoff(&id);
    assert_eq!((handoff.candidate.as_str(), handoff.state), ("c", State::Requested));
    assert_eq!(handoff.offers[0].outcome, OfferOutcome::Gone);
    assert!(handoff.steps.iter().any(|step| step.cause == Cause::CandidateGone));
    world.take_and_ack(&mut c);
    world.send(world.accept("c", "a", &id, 1)).unwrap();

    let mut b = world.connect("b");
    assert_eq!(world.take_and_ack(&mut b).message_type(), MessageType::ErrorNotification, "told to drop it");
    assert!(b.deliveries().is_empty(), "the request itself is withdrawn");
    let late = world.send(world.accept("b", "a", &id, 1));
    crate::world::assert_refused(late, baton_broker_core::codes::ErrorCode::HandoffExpired);
    world.audit("t");
}

#[test]
fn a_former_candidate_that_goes_does_not_take_the_offer_from_the_next() {
    let mut world = World::with(&["a", "b", "c", "d"]);
    let mut b = world.connect("b");
    let (c, d) = (world.connect("c"), world.connect("d"));
    let id = world.send(with_fallbacks(&world, "b", &["c", "d"])).unwrap().handoff_id;
    assert_eq!(b.deliveries().len(), 1);
    world.send(world.reject("b", "a", &id, &[])).unwrap();
    world.disconnect(b); // without an ack: the request is back in its mailbox
    pass_with_heartbeats(&mut world, LEASE * 2, &[&c, &d]);
    assert_eq!(world.presence("b"), PresenceState::Gone);
    let handoff = world.handoff(&id);
    assert_eq!((handoff.candidate.as_str(), handoff.state), ("c", State::Requested));
    world.audit("t");
}

#[test]
fn a_request_stays_with_a_gone_agent_if_no_other_is_there() {
    let mut world = World::with(&["a", "b", "c"]);
    let id = world.send(with_fallbacks(&world, "b", &["c"])).unwrap().handoff_id;
    world.pass(LEASE * 2);
    assert_eq!(world.handoff(&id).candidate.as_str(), "b");
    assert_eq!(world.handoff(&id).offers.len(), 1);
}

#[test]
fn after_a_restart_offers_to_those_who_do_not_come_back_go_on() {
    let mut world = World::with(&["a", "b", "c"]);
    let _b = world.connect("b");
    let id = world.send(with_fallbacks(&world, "b", &["c"])).unwrap().handoff_id;
    world.restart();
    let c = world.connect("c");
    pass_with_heartbeats(&mut world, Duration::from_secs(50), &[&c]);
    assert_eq!(world.handoff(&id).candidate.as_str(), "b", "it has a lease to come back");
    pass_with_heartbeats(&mut world, Duration::from_secs(20), &[&c]);
    assert_eq!(world.handoff(&id).candidate.as_str(), "c");
    world.audit("t");
}

#[test]
fn those_of_a_type_who_are_there_come_first_then_the_less_loaded() {
    let mut world = World::with(&["a", "gone:team", "busy:team", "free:team"]);
    world.pass(LEASE);
    let (busy, free) = (world.connect("busy"), world.connect("free"));
    for (session, active_tasks) in [(&busy, 3), (&free, 1)] {
        let (consumer, agent) = (session.consumer, session.agent.clone());
        let heartbeat = v1::Heartbeat { active_tasks, capacity: 4, ..Default::default() };
        world.engine.handle(
            baton_broker_core::engine::Command::Heartbeat { consumer, agent, heartbeat, reply: None },
            world.now,
        );
    }
    let id = world.send(world.request("a", "type:team", 1)).unwrap().handoff_id;
    let handoff = world.handoff(&id);
    let order: Vec<_> = handoff.next_candidates.iter().map(|agent| agent.as_str()).collect();
    assert_eq!((handoff.candidate.as_str(), order), ("free", vec!["busy", "gone"]));
}

#[test]
fn a_copy_of_an_old_envelope_is_no_sign_of_life_and_a_new_message_without_a_session_is() {
    let mut world = World::with(&["a", "b"]);
    let mut old = world.info("a", "b", "hello");
    world.sign(&mut old);
    let receipt = world.send_without_session(&old).unwrap();
    assert!(!world.is_gone("a"));
    assert_eq!(world.presence("a"), PresenceState::Unseen, "it has no session");
    world.pass(LEASE);
    assert!(world.is_gone("a"));
    assert_eq!(world.send_without_session(&old).unwrap(), receipt);
    let mut refused = world.info("a", "nobody", "hello");
    world.sign(&mut refused);
    crate::world::assert_refused(
        world.send_without_session(&refused),
        baton_broker_core::codes::ErrorCode::ReceiverUnknown,
    );
    assert!(world.is_gone("a"));
    let mut new = world.info("a", "b", "hello again");
    world.sign(&mut new);
    world.send_without_session(&new).unwrap();
    assert!(!world.is_gone("a"));
}

#[test]
fn an_open_call_of_receive_is_a_sign_of_life() {
    let mut world = World::with(&["a", "b"]);
    let kind = baton_broker_core::engine::ConsumerKind::Receive { deliveries_max: None };
    let _call = world.connect_as("b", kind, 16);
    world.pass(LEASE * 10);
    assert_eq!(world.presence("b"), PresenceState::Alive);
}

//! Keys of agents: adding, rotating and revoking them during handoffs.

use std::time::Duration;

use baton_broker_core::{
    Away, Reply,
    access::Caller,
    codes::ErrorCode,
    directory::Entry,
    engine::{Command, KeyChange},
    envelope::{self, keys::PrivateKey},
    ids::{AgentId, KeyId},
    proto::v1,
    records::AgentRecord,
};

use crate::world::{Refusal, World, assert_refused, operator};

const HOUR: Duration = Duration::from_secs(60 * 60);

fn agent(name: &str) -> AgentId {
    AgentId::parse(name).unwrap()
}

fn key_id(name: &str) -> KeyId {
    KeyId::parse(name).unwrap()
}

fn key(name: &str, seed: u8) -> v1::AgentKey {
    let public_key = PrivateKey::from_seed(&[seed; 32]).public().as_bytes().to_vec().into();
    v1::AgentKey { key_id: name.to_owned(), public_key, ..Default::default() }
}

fn change(world: &mut World, caller: Caller, whose: &str, change: KeyChange) -> Result<(), Refusal> {
    let agent = agent(whose);
    world.ask(|reply| Command::ChangeKeys { agent, change, caller, reply }).map(drop)
}

fn add(name: &str, seed: u8, replaced: &[&str], grace: Duration) -> KeyChange {
    let replaced = replaced.iter().map(|name| key_id(name)).collect();
    KeyChange::Add { key: Box::new(key(name, seed)), replaced, grace }
}

fn revoke(name: &str) -> KeyChange {
    KeyChange::Revoke { key_id: key_id(name), reason_text: "lost".to_owned() }
}

/// A message from agent a, signed with the key of this name.
fn signed(world: &World, name: &str, seed: u8) -> v1::Envelope {
    let mut envelope = world.info("a", "b", "hello");
    envelope::sign(&mut envelope, &key_id(name), &PrivateKey::from_seed(&[seed; 32]));
    envelope
}

#[test]
fn a_key_that_was_rotated_out_is_good_within_its_grace_and_not_after() {
    let mut world = World::with(&["a", "b"]);
    change(&mut world, operator(), "a", add("k2", 2, &["k1"], HOUR)).unwrap();
    world.send(world.info("a", "b", "with the old key")).unwrap();
    world.send_signed(&signed(&world, "k2", 2)).unwrap();
    world.pass(HOUR);
    assert_refused(world.send(world.info("a", "b", "with the old key")), ErrorCode::KeyNotValid);
    world.send_signed(&signed(&world, "k2", 2)).unwrap();
    world.restart();
    assert_refused(world.send(world.info("a", "b", "with the old key")), ErrorCode::KeyNotValid);
}

#[test]
fn a_revoked_key_is_good_for_nothing_and_never_comes_back() {
    let mut world = World::with(&["a", "b"]);
    change(&mut world, operator(), "a", add("k2", 2, &[], HOUR)).unwrap();
    change(&mut world, operator(), "a", revoke("k2")).unwrap();
    assert_refused(world.send_signed(&signed(&world, "k2", 2)), ErrorCode::KeyNotValid);
    change(&mut world, operator(), "a", revoke("k2")).expect("revoked already");
    for again in [add("k2", 2, &[], HOUR), add("k3", 2, &[], HOUR), add("k2", 3, &[], HOUR)] {
        assert_refused(change(&mut world, operator(), "a", again), ErrorCode::KeyRevoked);
    }
    let card = v1::AgentCard { agent_id: "c".into(), keys: vec![key("k1", 2)], ..Default::default() };
    let entry = Entry::parse(AgentRecord::new(card, world.now)).unwrap();
    assert_refused(world.register_as(operator(), entry, ""), ErrorCode::KeyTaken);
    world.restart();
    assert_refused(world.send_signed(&signed(&world, "k2", 2)), ErrorCode::KeyNotValid);
}

#[test]
fn revoking_ends_sessions_and_keeps_handoffs_and_mail() {
    let mut world = World::with(&["a", "b"]);
    let mut session = world.connect("b");
    let receipt = world.send(world.request("a", "b", 1)).unwrap();
    let (delivery, _) = session.delivery();
    world.ack(&session, &delivery);
    change(&mut world, operator(), "b", add("k2", 2, &[], HOUR)).unwrap();
    assert!(!session.was_sent_away(), "a new key is no reason");
    change(&mut world, operator(), "b", revoke("k1")).unwrap();
    assert_eq!(session.sent_away(), Some(Away::KeyRevoked));
    assert_eq!(world.handoff(&receipt.handoff_id).state, baton_broker_core::domain::handoff::State::Deciding);
    let mut accept = world.accept("b", "a", &receipt.handoff_id, 1);
    envelope::sign(&mut accept, &key_id("k2"), &PrivateKey::from_seed(&[2; 32]));
    world.send_signed(&accept).unwrap();
    assert_eq!(world.handoff(&receipt.handoff_id).state, baton_broker_core::domain::handoff::State::Accepted);
}

#[test]
fn a_key_counts_from_its_beginning_to_its_end() {
    let mut world = World::with(&["a", "b"]);
    let (seconds, nanos) = world.now.to_parts();
    let at = |offset: i64| Some(prost_types::Timestamp { seconds: seconds + offset, nanos });
    let bounded = v1::AgentKey { not_before_time: at(60), not_after_time: at(120), ..key("k2", 2) };
    let adding = KeyChange::Add { key: Box::new(bounded), replaced: vec![], grace: HOUR };
    change(&mut world, operator(), "a", adding).unwrap();
    assert_refused(world.send_signed(&signed(&world, "k2", 2)), ErrorCode::KeyNotValid);
    world.pass(Duration::from_secs(60));
    world.send_signed(&signed(&world, "k2", 2)).unwrap();
    world.pass(Duration::from_secs(60));
    assert_refused(world.send_signed(&signed(&world, "k2", 2)), ErrorCode::KeyNotValid);
}

#[test]
fn who_may_change_keys_is_the_agent_itself_or_an_operator() {
    let mut world = World::with(&["a", "b"]);
    let of = |name: &str| Caller::Agent(agent(name));
    change(&mut world, of("a"), "a", add("k2", 2, &[], HOUR)).unwrap();
    let refusal = assert_refused(change(&mut world, of("b"), "a", revoke("k1")), ErrorCode::PermissionDenied);
    assert_eq!(refusal.to_string(), "agent b may not manageKeys on Agent::\"a\": no policy permits it");
    assert_refused(change(&mut world, Caller::Anonymous, "a", revoke("k1")), ErrorCode::IdentityMissing);
    world.send(world.info("a", "b", "still good")).unwrap();
}

#[test]
fn what_cannot_be_added_is_refused() {
    let mut world = World::with(&["a", "b"]);
    let mut refused = |whose: &str, adding, code| {
        assert_refused(change(&mut world, operator(), whose, adding), code);
    };
    refused("a", add("k1", 2, &[], HOUR), ErrorCode::KeyExists);
    refused("a", add("k2", 2, &["no-such-key"], HOUR), ErrorCode::AgentKeyUnknown);
    refused("unknown", add("k2", 2, &[], HOUR), ErrorCode::AgentUnknown);
    refused("a", revoke("no-such-key"), ErrorCode::AgentKeyUnknown);
    change(&mut world, operator(), "a", add("k2", 2, &[], HOUR)).unwrap();
    change(&mut world, operator(), "a", add("k2", 2, &[], HOUR)).expect("the very same again");
    assert_refused(change(&mut world, operator(), "a", add("k3", 2, &[], HOUR)), ErrorCode::KeyExists);
    assert_refused(change(&mut world, operator(), "b", add("k2", 2, &[], HOUR)), ErrorCode::KeyTaken);
}

#[test]
fn of_two_agents_that_register_with_one_key_in_one_commit_the_first_gets_it() {
    let mut world = World::with(&["a"]);
    let mut register = |name: &str| {
        let card = v1::AgentCard { agent_id: name.into(), keys: vec![key("k1", 2)], ..Default::default() };
        let entry = Box::new(Entry::parse(AgentRecord::new(card, world.now)).unwrap());
        let (reply, outcome) = Reply::once();
        let command = Command::Register { entry, caller: operator(), invitation: String::new(), reply };
        world.engine.handle(command, world.now);
        outcome
    };
    let (mut first, mut second) = (register("b"), register("c"));
    world.settle();
    first.try_recv().unwrap().unwrap();
    assert_eq!(second.try_recv().unwrap().unwrap_err().code(), ErrorCode::KeyTaken);
}

#[test]
fn where_there_is_no_room_the_key_that_ended_first_goes() {
    let mut world = World::with(&["a", "b"]);
    let count = |world: &World| world.engine.directory().get(&agent("a")).unwrap().record.card.keys.len();
    for seed in 2..=64 {
        let (new, old) = (format!("k{seed}"), format!("k{}", seed - 1));
        change(&mut world, operator(), "a", add(&new, seed, &[&old], HOUR)).unwrap();
        world.pass(HOUR);
    }
    assert_eq!(count(&world), 64);
    change(&mut world, operator(), "a", add("k65", 65, &["k64"], HOUR)).unwrap();
    assert_eq!(count(&world), 64);
    let known = world.engine.directory().get(&agent("a")).unwrap();
    assert_eq!(known.record.card.keys[0].key_id, "k2", "k1 ended first");
    world.send_signed(&signed(&world, "k65", 65)).unwrap();
}

#[test]
fn a_card_keeps_the_keys_that_it_leaves_out_and_brings_no_new_ones() {
    let mut world = World::with(&["a", "b"]);
    change(&mut world, operator(), "a", add("k2", 2, &[], HOUR)).unwrap();
    let mut card = world.engine.directory().get(&agent("a")).unwrap().record.card.clone();
    card.keys.truncate(1);
    card.description = "changed".to_owned();
    let entry = |card: &v1::AgentCard| Entry::parse(AgentRecord::new(card.clone(), world.now)).unwrap();
    let (shorter, more) = (entry(&card), {
        card.keys.push(key("k9", 9));
        entry(&card)
    });
    let own = Caller::Agent(agent("a"));
    world.register_as(own.clone(), shorter, "").unwrap();
    world.send_signed(&signed(&world, "k2", 2)).unwrap();
    let refusal = assert_refused(world.register_as(own, more.clone(), ""), ErrorCode::FieldInvalid);
    assert_eq!(refusal.violations()[0].path, "card.keys[1]");
    assert_refused(world.register_as(operator(), more, ""), ErrorCode::FieldInvalid);
}

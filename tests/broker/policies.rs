//! The effect of policies on messages, on agent types, and on readers.

use std::sync::Arc;

use baton_broker_core::{
    access::Caller,
    codes::ErrorCode,
    directory::Entry,
    engine::Command,
    ids::{AgentId, AgentType},
    policy::{DEFAULT, Policies, Source},
    proto::v1,
    records::{AgentRecord, InvitationRecord},
};

use crate::world::{World, assert_refused, operator};

fn policies(more: &str) -> Arc<Policies> {
    Arc::new(Policies::parse(&[Source::new("default", DEFAULT), Source::new("test.cedar", more)]).unwrap())
}

fn world(agents: &[&str], more: &str) -> World {
    let world = World::with(agents);
    world.resources.policies.store(policies(more));
    world
}

const TO_BILLING: &str = "@id(\"refunds\") forbid(principal, action == Action::\"handOff\", resource)
    when { context.taskType == \"refund\" && !(resource in Type::\"billing\") };";

fn refund(world: &World, to: &str) -> v1::Envelope {
    let payload = v1::HandoffRequest { task_type: "refund".to_owned(), ..Default::default() };
    world.request_with("a", to, 1, &payload)
}

#[test]
fn a_handoff_that_is_forbidden_is_refused_and_the_rule_is_named() {
    let mut world = world(&["a", "b:shipping", "c:billing"], TO_BILLING);
    let refusal = assert_refused(world.send(refund(&world, "b")), ErrorCode::PermissionDenied);
    assert_eq!(
        refusal.to_string(),
        "agent a may not handOff (taskType \"refund\", mode \"TRANSFER\") on Agent::\"b\": forbidden by refunds"
    );
    assert!(refusal.metadata().contains(&("rules", "refunds".to_owned())));
    let receipt = world.send(refund(&world, "c")).unwrap();
    assert_eq!(receipt.epoch, 1, "the refusal has changed nothing: the task is new");
}

#[test]
fn of_a_type_those_are_asked_that_are_permitted() {
    let mut world =
        world(&["a", "b:all", "c:all"], "forbid(principal, action == Action::\"handOff\", resource == Agent::\"b\");");
    let receipt = world.send(world.request("a", "type:all", 1)).unwrap();
    assert_eq!(world.handoff(&receipt.handoff_id).candidate.as_str(), "c");
    let payload = v1::HandoffRequest {
        task_type: "x".to_owned(),
        fallback_candidates: vec!["b".to_owned()],
        ..Default::default()
    };
    let with_fallback = world.request_with("a", "c", 1, &payload);
    assert_refused(world.send(with_fallback), ErrorCode::PermissionDenied);
}

#[test]
fn a_type_without_a_permitted_agent_is_refused() {
    let mut world = world(&["a", "b:shipping"], TO_BILLING);
    assert_refused(world.send(refund(&world, "type:shipping")), ErrorCode::PermissionDenied);
    assert_refused(world.send(refund(&world, "type:unknown")), ErrorCode::ReceiverUnknown);
}

#[test]
fn a_decision_that_is_kept_is_not_kept_over_a_change() {
    let mut world = world(&["a", "b:shipping"], TO_BILLING);
    assert_refused(world.send(refund(&world, "b")), ErrorCode::PermissionDenied);
    let mut card = world.engine.directory().get(&AgentId::parse("b").unwrap()).unwrap().record.card.clone();
    card.agent_types = vec!["billing".to_owned()];
    let entry = Entry::parse(AgentRecord::new(card, world.now)).unwrap();
    world.register_as(operator(), entry, "").unwrap();
    world.send(refund(&world, "b")).expect("b is billing now");
    world
        .resources
        .policies
        .store(policies("@id(\"none\") forbid(principal, action == Action::\"handOff\", resource);"));
    let refusal = assert_refused(world.send(refund(&world, "b")), ErrorCode::PermissionDenied);
    assert!(refusal.to_string().ends_with("forbidden by none"), "{refusal}");
}

#[test]
fn mail_goes_to_those_whom_the_policy_permits() {
    let mut world = world(
        &["a", "b:team", "c:team"],
        "@id(\"b-hears-nothing\") forbid(principal, action == Action::\"send\", resource == Agent::\"b\");
         @id(\"no-shouting\") forbid(principal == Agent::\"c\", action == Action::\"sendToAll\", resource);",
    );
    assert_refused(world.send(world.info("a", "b", "hello")), ErrorCode::PermissionDenied);
    let (mut b, mut c) = (world.connect("b"), world.connect("c"));
    world.send(world.info("a", "all:team", "hello")).unwrap();
    assert_eq!((b.deliveries().len(), c.deliveries().len()), (0, 1));
    let refusal = assert_refused(world.send(world.info("c", "all:team", "hello")), ErrorCode::PermissionDenied);
    assert!(refusal.to_string().ends_with("forbidden by no-shouting"), "{refusal}");
}

/// The evaluations of the policies during a send. The decisions about each agent are in the cache after a first send.
fn evaluations(world: &mut World, envelope: impl Fn(&World) -> v1::Envelope) -> (u64, Result<(), ErrorCode>) {
    drop(world.send(envelope(world)));
    let policies = world.resources.policies.load_full();
    let before = policies.evaluations();
    let sent = world.send(envelope(world)).map(drop).map_err(|(code, _)| code);
    (policies.evaluations() - before, sent)
}

const TEAM: [&str; 5] = ["a", "b:team", "c:team", "d:team", "e:team"];

#[test]
fn a_list_of_denied_agents_asks_once_whether_the_sender_may_know_of_them() {
    let denied = "forbid(principal == Agent::\"a\", action in [Action::\"handOff\", Action::\"send\"], resource);";
    let secret = format!("{denied} forbid(principal == Agent::\"a\", action == Action::\"readDirectory\", resource);");
    for (rules, code) in [(denied, ErrorCode::PermissionDenied), (&secret, ErrorCode::ReceiverUnknown)] {
        let mut world = world(&TEAM, rules);
        assert_eq!(evaluations(&mut world, |world| world.request("a", "type:team", 1)), (1, Err(code)));
        assert_eq!(evaluations(&mut world, |world| world.info("a", "type:team", "hello")), (1, Err(code)));
        assert_eq!(evaluations(&mut world, |world| world.info("a", "all:team", "hello")), (1, Err(code)));
    }
}

#[test]
fn a_list_with_a_permitted_agent_does_not_ask_whether_the_sender_may_know_of_the_others() {
    let mut world = world(
        &TEAM,
        "forbid(principal == Agent::\"a\", action in [Action::\"handOff\", Action::\"send\"], resource)
         unless { resource == Agent::\"c\" };",
    );
    let of_new_task = |world: &World| {
        let request = world.request("a", "type:team", 1);
        v1::Envelope { task_id: format!("t-{}", request.message_id), ..request }
    };
    assert_eq!(evaluations(&mut world, of_new_task), (0, Ok(())));
    assert_eq!(evaluations(&mut world, |world| world.info("a", "type:team", "hello")), (0, Ok(())));
    assert_eq!(evaluations(&mut world, |world| world.info("a", "all:team", "hello")), (0, Ok(())));
}

#[test]
fn a_suggestion_that_the_policy_forbids_is_not_asked() {
    let mut world =
        world(&["a", "b", "c", "d"], "forbid(principal, action == Action::\"handOff\", resource == Agent::\"c\");");
    let mut session = world.connect("b");
    let receipt = world.send(world.request("a", "b", 1)).unwrap();
    world.take_and_ack(&mut session);
    world.send(world.reject("b", "a", &receipt.handoff_id, &["c", "d"])).unwrap();
    assert_eq!(world.handoff(&receipt.handoff_id).candidate.as_str(), "d");
}

fn card(world: &World, name: &str, types: &[&str]) -> Entry {
    let key =
        baton_broker_core::envelope::keys::PrivateKey::from_seed(&baton_broker_core::envelope::signing::sha256(&[
            name.as_bytes(),
        ]));
    let card = v1::AgentCard {
        agent_id: name.to_owned(),
        agent_types: types.iter().map(ToString::to_string).collect(),
        keys: vec![v1::AgentKey {
            key_id: "k1".into(),
            public_key: key.public().as_bytes().to_vec().into(),
            ..Default::default()
        }],
        ..Default::default()
    };
    Entry::parse(AgentRecord::new(card, world.now)).unwrap()
}

#[test]
fn an_agent_cannot_give_itself_a_type() {
    let mut world = World::with(&["a:support"]);
    let own = Caller::Agent(AgentId::parse("a").unwrap());
    let more = card(&world, "a", &["support", "billing"]);
    let refusal = assert_refused(world.register_as(own.clone(), more, ""), ErrorCode::PermissionDenied);
    assert_eq!(refusal.to_string(), "agent a may not assignType on Type::\"billing\": no policy permits it");
    let fewer = card(&world, "a", &[]);
    assert_refused(world.register_as(own, fewer, ""), ErrorCode::PermissionDenied);
    let more = card(&world, "a", &["support", "billing"]);
    world.register_as(operator(), more, "").unwrap();
}

#[test]
fn an_invitation_is_good_once_for_its_agent_its_types_and_its_time() {
    let mut world = World::with(&[]);
    let hour = std::time::Duration::from_secs(3600);
    let invite = |world: &mut World, caller: Caller, name: &str| {
        let record = InvitationRecord {
            agent: Some(AgentId::parse(name).unwrap()),
            types: vec![AgentType::parse("billing").unwrap()],
            expires_at: world.now.plus(hour),
            used_by: None,
        };
        let invitation = format!("invitation-for-{name}");
        world.ask(|reply| Command::Invite { invitation: invitation.clone(), record, caller, reply }).map(|_| invitation)
    };
    assert_refused(invite(&mut world, Caller::Anonymous, "c"), ErrorCode::IdentityMissing);
    let invitation = invite(&mut world, operator(), "c").unwrap();
    let enroll = |world: &mut World, name: &str, types: &[&str]| {
        let entry = card(world, name, types);
        world.register_as(Caller::Anonymous, entry, &invitation)
    };
    assert_refused(enroll(&mut world, "d", &["billing"]), ErrorCode::InvitationInvalid);
    assert_refused(enroll(&mut world, "c", &["billing", "admin"]), ErrorCode::InvitationInvalid);
    enroll(&mut world, "c", &["billing"]).unwrap();
    assert_refused(enroll(&mut world, "d", &[]), ErrorCode::InvitationInvalid);
    let late = invite(&mut world, operator(), "e").unwrap();
    world.pass(hour);
    let entry = card(&world, "e", &[]);
    assert_refused(world.register_as(Caller::Anonymous, entry, &late), ErrorCode::InvitationInvalid);
}

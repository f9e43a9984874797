//! The log of administrative actions and the contents of the directory: both are bounded.

use std::time::Duration;

use baton_broker_core::{
    BrokerLimits, Retention, Settings,
    access::Caller,
    codes::ErrorCode,
    directory::{CARD_BYTES_MAX, Entry},
    envelope::{keys::PrivateKey, signing},
    ids::AgentId,
    proto::v1,
    records::AgentRecord,
};

use crate::world::{World, assert_refused, operator};

const DAY: Duration = Duration::from_secs(24 * 3600);

fn with(retention: Retention) -> World {
    World::with_settings(&[], Settings { retention, ..Settings::default() })
}

/// The numbers of the retained entries, with their hash chain verified from the first one.
fn kept(world: &World) -> Vec<u64> {
    let caller = operator();
    let view = world.view(&caller);
    let page = view.audit_log(0, 1000).unwrap();
    let mut hash: [u8; 32] = page.hash_before_first[..].try_into().unwrap();
    assert_eq!(page.first_number == 1, hash == [0; 32]);
    for (number, shown) in (page.first_number..).zip(&page.entries) {
        hash = signing::audit_hash(&hash, &shown.entry_bytes);
        assert_eq!((number, &hash[..]), (shown.entry.as_ref().unwrap().number, &shown.chain_hash[..]));
    }
    let last = page.first_number + page.entries.len() as u64 - 1;
    assert_eq!(last, page.log_length, "all up to the last");
    (page.first_number..=last).collect()
}

#[test]
fn old_acts_are_removed_and_the_chain_holds_from_the_first_that_is_kept() {
    let mut world = with(Retention { audit: Some(10 * DAY), ..Retention::default() });
    for name in ["a", "b", "c"] {
        world.register(name, "");
        world.pass(DAY);
    }
    assert_eq!(kept(&world), [1, 2, 3]);
    world.pass(7 * DAY);
    assert_eq!(kept(&world), [2, 3]);
    world.restart();
    world.pass(DAY);
    assert_eq!(kept(&world), [3]);
    world.pass(DAY);
    assert_eq!(kept(&world), [0; 0]);
    world.register("d", "");
    assert_eq!(kept(&world), [4]);
    world.pass(10 * DAY);
    assert_eq!(kept(&world), [0; 0]);
}

#[test]
fn the_audit_log_has_only_so_many_entries() {
    let mut world = with(Retention { audit: None, audit_entries_max: Some(3), ..Retention::default() });
    for number in 0..10 {
        world.register(&format!("agent-{number}"), "");
        assert!(kept(&world).len() <= 3);
    }
    assert_eq!(kept(&world), [8, 9, 10]);
    let settings = Settings {
        retention: Retention { audit_entries_max: Some(1), ..world.settings.retention },
        ..Settings::default()
    };
    world.settings = settings.into();
    world.restart();
    world.settle();
    assert_eq!(kept(&world), [10], "a smaller bound counts from the next start on");
}

fn entry(world: &World, name: &str, metadata: usize) -> Result<Entry, baton_broker_core::BrokerError> {
    let public_key = PrivateKey::from_seed(&signing::sha256(&[name.as_bytes()])).public().as_bytes().to_vec().into();
    let card = v1::AgentCard {
        agent_id: name.to_owned(),
        keys: vec![v1::AgentKey { key_id: "k1".into(), public_key, ..Default::default() }],
        skills: (0..metadata)
            .map(|number| v1::AgentSkill {
                name: format!("s{number}"),
                tags: vec!["x".repeat(128); 16],
                ..Default::default()
            })
            .collect(),
        ..Default::default()
    };
    Entry::parse(AgentRecord::new(card, world.now))
}

#[test]
fn a_card_is_bounded_as_a_whole() {
    let world = World::with(&[]);
    let size = |skills| entry(&world, "a", skills).map(|entry| entry.card_bytes() as usize);
    assert!(size(29).unwrap() < CARD_BYTES_MAX + 200);
    let refusal = size(64).unwrap_err().to_string();
    assert_eq!(refusal, format!("card must have at most {CARD_BYTES_MAX} bytes without its keys"));
}

#[test]
fn the_cards_of_all_agents_are_bounded() {
    let broker_limits = BrokerLimits { card_bytes_max: 50_000, ..BrokerLimits::default() };
    let mut world = World::with_settings(&[], Settings { broker_limits, ..Settings::default() });
    let card = |world: &World, name: &str, skills| entry(world, name, skills).unwrap();
    let register = |world: &mut World, caller, entry| world.register_as(caller, entry, "");
    let large = card(&world, "a", 20);
    register(&mut world, operator(), large).unwrap();
    let too_large = card(&world, "b", 20);
    assert_refused(register(&mut world, operator(), too_large), ErrorCode::LimitExceeded);
    let small = card(&world, "b", 0);
    register(&mut world, operator(), small).unwrap();
    let own = |name: &str| Caller::Agent(AgentId::parse(name).unwrap());
    for restarted in [false, true] {
        if restarted {
            world.restart();
        }
        let larger = card(&world, "b", 20);
        assert_refused(register(&mut world, own("b"), larger), ErrorCode::LimitExceeded);
    }
    let smaller = card(&world, "a", 1);
    register(&mut world, own("a"), smaller).expect("a card may always become smaller");
    let larger = card(&world, "b", 20);
    register(&mut world, own("b"), larger).expect("there is room again");
}

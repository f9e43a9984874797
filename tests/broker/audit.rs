//! The log of administrative actions and the contents of the directory: both are bounded.

use std::time::Duration;

use baton_broker_core::{
    BrokerLimits, Retention, Settings,
    access::Caller,
    codes::ErrorCode,
    directory::{CARD_BYTES_MAX, Entry},
    domain::{
        EntityId, plan,
        routing::{self, Turn},
        threads::{self, ThreadRunId},
    },
    envelope::{keys::PrivateKey, signing},
    ids::{AgentId, AgentType, MessageId, SpecId},
    proto::v1,
    records::AgentRecord,
};

use crate::{
    plans::{plan_of, subtask},
    runs::{RUN, story, turn},
    world::{World, assert_refused, operator},
};

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

// ------------------------------------------------------------------------------------------- acts on others' objects

/// The entries about these objects: the caller, the act, the object and the details.
fn acts_on(world: &World, subject: &str) -> Vec<(String, v1::AuditAction, String, String)> {
    let caller = operator();
    let page = world.view(&caller).audit_log(0, 1000).unwrap();
    let entries = page.entries.into_iter().filter_map(|logged| logged.entry);
    let of_subject = entries.filter(|entry| entry.subject.starts_with(subject));
    of_subject.map(|entry| (entry.actor.clone(), entry.action(), entry.subject, entry.details)).collect()
}

fn act(
    actor: &str,
    action: v1::AuditAction,
    subject: &str,
    details: &str,
) -> (String, v1::AuditAction, String, String) {
    (actor.to_owned(), action, subject.to_owned(), details.to_owned())
}

#[test]
fn each_act_on_the_plan_of_another_has_an_entry_and_the_submitters_own_have_none() {
    use v1::AuditAction::{PlanCancelled, PlanRetried, SubtaskCancelled, SubtaskReassigned, SubtaskRetried};
    let mut world = World::with(&["alice", "bob:worker", "carol:worker"]);
    world.submit(plan_of(vec![subtask("a", &[]), subtask("b", &[])])).unwrap();
    let ways = |by: &str| {
        let (by, of_a, reason) = (by.to_owned(), "a".to_owned(), "why".to_owned());
        [
            plan::Input::CancelSubtask { subtask: of_a.clone(), by: by.clone(), reason: reason.clone() },
            plan::Input::RetrySubtask { subtask: of_a.clone(), by: by.clone() },
            plan::Input::ReassignSubtask {
                subtask: of_a,
                to: "carol".to_owned(),
                by: by.clone(),
                reason: reason.clone(),
            },
            plan::Input::Cancel { by: by.clone(), reason },
            plan::Input::Retry { by },
        ]
    };
    for input in ways("agent alice") {
        assert!(world.change_plan(input).unwrap());
    }
    assert_eq!(acts_on(&world, "q3"), []);
    let mut expected = Vec::new();
    for by in ["operator olga", "agent bob"] {
        for input in ways(by) {
            assert!(world.change_plan(input.clone()).unwrap());
            // A repeat changes nothing, or is refused: no entry.
            if !matches!(input, plan::Input::ReassignSubtask { .. }) {
                let entries = acts_on(&world, "q3").len();
                assert!(!matches!(world.change_plan(input), Ok(true)));
                assert_eq!(acts_on(&world, "q3").len(), entries);
            }
        }
        expected.extend([
            act(by, SubtaskCancelled, "q3/a", "why"),
            act(by, SubtaskRetried, "q3/a", ""),
            act(by, SubtaskReassigned, "q3/a", "to carol: why"),
            act(by, PlanCancelled, "q3", "why"),
            act(by, PlanRetried, "q3", ""),
        ]);
    }
    assert_eq!(acts_on(&world, "q3"), expected);
    world.restart();
    assert_eq!(acts_on(&world, "q3"), expected);
}

#[test]
fn each_act_on_the_run_of_others_has_an_entry_and_the_participants_own_have_none() {
    use v1::AuditAction::{RunCancelled, RunStarted, TurnRecorded};
    let run = "07070707-0707-0707-0707-070707070707";
    for (by, actor) in [(None, "operator olga"), (Some("d"), "agent d")] {
        let mut world = World::with(&["a", "b:clerk", "c", "d"]);
        let mut graph = story();
        graph.nodes[1].agent_type = Some(AgentType::parse("clerk").unwrap());
        world.register_graph(graph).unwrap();
        world.start_run(Some("a"), None).unwrap();
        // The starter, and an agent by its type, do their own work.
        world.report_turn(turn(1, "searcher", Some("a"), None)).unwrap();
        let by_types = vec![AgentType::parse("clerk").unwrap()];
        world.report_turn(Turn { by_types, ..turn(2, "checker", Some("b"), None) }).unwrap();
        assert_eq!(acts_on(&world, run), []);
        let third = turn(3, "generator", by, None);
        let details = format!("node generator, turn {}", third.id);
        // The commit of a refused turn has no entry, and a repeat makes no second one.
        assert!(world.report_turn(turn(4, "nowhere", by, None)).is_err());
        assert!(world.report_turn(third.clone()).unwrap());
        assert!(!world.report_turn(third).unwrap());
        assert_eq!(acts_on(&world, run), [act(actor, TurnRecorded, run, &details)]);
    }
    let mut world = World::with(&["a"]);
    world.register_graph(story()).unwrap();
    world.start_run(None, None).unwrap();
    let cancel = routing::Input::Cancel { by: None, reason: "why".to_owned() };
    assert!(world.apply(EntityId::Run(RUN), cancel).unwrap());
    let expected = [act("operator olga", RunStarted, run, "graph g"), act("operator olga", RunCancelled, run, "why")];
    assert_eq!(acts_on(&world, run), expected);
}

#[test]
fn each_act_on_the_thread_of_others_has_an_entry_and_the_participants_own_have_none() {
    use v1::AuditAction::{ThreadChanged, ThreadCreated};
    let mut world = World::with_thread();
    let id = world.thread().id.to_string();
    let run = ThreadRunId(MessageId::from_bytes([7; 16]));
    world.begin(run, "a").unwrap();
    world.end_step(run, "a", 1).unwrap();
    world.act(threads::Action::Activate(SpecId::parse("researcher").unwrap())).unwrap();
    assert_eq!(acts_on(&world, &id), []);
    let request = |by| threads::Input::Act {
        id: None,
        action: threads::Action::Request(SpecId::parse("researcher").unwrap()),
        by,
    };
    let clear = threads::Input::Act { id: None, action: threads::Action::Clear, by: None };
    let end = threads::Input::EndRun { run, runner: AgentId::parse("a").ok() };
    for input in [clear, request(None), request(AgentId::parse("c").ok()), end] {
        assert!(world.say_to_thread(input).unwrap());
    }
    let details = ["clear", "request researcher"];
    let mut expected: Vec<_> =
        details.iter().map(|details| act("operator olga", ThreadChanged, &id, details)).collect();
    expected.push(act("agent c", ThreadChanged, &id, "request researcher"));
    assert_eq!(acts_on(&world, &id), expected);

    let mut world = World::with(&["a", "b"]);
    world.put_specs();
    world.create_thread(None, None).unwrap();
    let begin = threads::Input::BeginRun { run, runner: None };
    let step = threads::Input::EndStep { run, runner: None, step: 1 };
    for input in [begin, step, threads::Input::EndRun { run, runner: None }] {
        assert!(world.say_to_thread(input).unwrap());
    }
    let changed = |details: String| act("operator olga", ThreadChanged, &id, &details);
    let expected = [
        act("operator olga", ThreadCreated, &id, "spec concierge"),
        changed(format!("begin run {run}")),
        changed(format!("end step 1 of run {run}")),
        changed(format!("end run {run}")),
    ];
    assert_eq!(acts_on(&world, &id), expected);
}

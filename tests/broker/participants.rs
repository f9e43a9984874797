//! The visibility of other agents' tasks, handoffs and dead letters, the entries that other agents can cause in a log,
//! and the cost of listing an agent's own objects.

use std::sync::atomic::Ordering;

use baton_broker_core::{
    BrokerError, Settings,
    access::Caller,
    codes::ErrorCode,
    engine::Fate,
    ids::{AgentId, MessageId, TaskId},
    proto::v1::{self, TaskStatus},
    queries::{DeadLetterFilter, HandoffFilter, LOOKED_AT_MAX, TaskFilter, View},
};

use crate::world::{World, assert_refused, operator};

fn agent(name: &str) -> Caller {
    Caller::Agent(AgentId::parse(name).unwrap())
}

fn about(envelope: v1::Envelope, task: &str) -> v1::Envelope {
    v1::Envelope { task_id: task.into(), ..envelope }
}

/// Makes task `task` by an open handoff from one agent to another.
fn open(world: &mut World, from: &str, to: &str, task: &str) -> String {
    world.send(about(world.request(from, to, 1), task)).unwrap().handoff_id
}

/// The full text of a refusal, with one id replaced by the other.
fn said(world: &mut World, envelope: v1::Envelope, (id, in_place): (&str, &str)) -> (ErrorCode, String, String) {
    let (code, refusal) = world.send(envelope).unwrap_err();
    let text = format!("{refusal} {:?} {:?}", refusal.metadata(), refusal.violations());
    (code, refusal.to_string().replace(id, in_place), text.replace(id, in_place))
}

#[test]
fn a_stranger_is_told_of_a_task_what_it_is_told_of_none() {
    let mut world = World::with(&["a", "b", "c"]);
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));
    let id = world.hand_over(&mut a, &mut b, 1);
    let unknown = MessageId::from_bytes([7; 16]).to_string();
    for epoch in [1, 2, 3] {
        for (known, other) in [
            (world.accept("c", "a", &id, epoch), world.accept("c", "a", &unknown, epoch)),
            (world.accept("c", "b", &id, epoch), world.accept("c", "b", &unknown, epoch)),
            (world.complete("c", "a", &id, epoch), world.complete("c", "a", &unknown, epoch)),
            (world.context("c", "b", &id, epoch), world.context("c", "b", &unknown, epoch)),
            (world.cancel("c", "b", &id, epoch), world.cancel("c", "b", &unknown, epoch)),
            (
                world.status("c", "", epoch, TaskStatus::InProgress),
                world.status("c", "", epoch, TaskStatus::InProgress),
            ),
        ] {
            let before = world.snapshot();
            let of_known = said(&mut world, known, ("t", "t"));
            assert_eq!(of_known, said(&mut world, about(other, "u"), ("task u", "task t")));
            assert!(matches!(of_known.0, ErrorCode::NotOwner | ErrorCode::NotCandidate), "{of_known:?}");
            assert_eq!(world.snapshot(), before);
        }
        // The refusal of a request for a taken id reveals only that the id is taken.
        let request = world.request("c", "a", epoch);
        let (_, _, text) = said(&mut world, request, ("t", "t"));
        assert!(text.contains("[] []") && !text.contains("epoch"), "{text}");
    }
    // A participant's refusal contains the current epoch.
    let refusal = assert_refused(world.send(world.request("a", "b", 1)), ErrorCode::StaleEpoch);
    assert_eq!(refusal.metadata()[1], ("current_epoch", "2".to_owned()));
}

#[test]
fn a_stranger_is_told_of_a_removed_task_what_it_is_told_of_none() {
    let mut world = World::with(&["a", "b", "c"]);
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));
    world.hand_over(&mut a, &mut b, 1);
    world.send(world.status("b", "", 2, TaskStatus::Completed)).unwrap();
    world.pass(std::time::Duration::from_secs(31 * 24 * 3600));
    let status = |world: &World| world.status("c", "", 1, TaskStatus::InProgress);
    let envelope = status(&world);
    let of_known = said(&mut world, envelope, ("t", "t"));
    let envelope = about(status(&world), "u");
    assert_eq!(of_known, said(&mut world, envelope, ("task u", "task t")));
    assert_refused(world.send(world.request("c", "a", 1)), ErrorCode::NotOwner);
    let mail = v1::Envelope { epoch: 1, ..about(world.info("c", "a", "about it"), "t") };
    assert_refused(world.send(mail), ErrorCode::NotOwner);
    assert_refused(world.send(world.request("a", "b", 1)), ErrorCode::StaleEpoch);
    assert_refused(world.send(world.request("b", "a", 2)), ErrorCode::TaskFinal);
}

#[test]
fn mail_of_a_stranger_is_refused_as_for_no_task() {
    let mut world = World::with(&["a", "b", "c"]);
    open(&mut world, "a", "b", "t");
    let length = world.task("t").custody.length;
    let mail = |world: &World, from, task| v1::Envelope { epoch: 1, ..about(world.info(from, "a", "hello"), task) };
    let (known, unknown) = (mail(&world, "c", "t"), mail(&world, "c", "u"));
    let of_known = said(&mut world, known, ("t", "t"));
    assert_eq!(of_known, said(&mut world, unknown, ("task u", "task t")));
    assert_eq!((of_known.0, world.task("t").custody.length), (ErrorCode::NotOwner, length));
    let receipt = world.send(mail(&world, "b", "t")).unwrap();
    assert_eq!((receipt.owner_id.as_str(), world.task("t").custody.length), ("a", length + 1), "a candidate's is");
}

#[test]
fn strangers_do_not_use_up_the_room_for_refusals() {
    let settings = Settings { refusals_recorded_max: 4, ..Settings::default() };
    let mut world = World::with_settings(&["a", "b", "c"], settings);
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));
    let id = world.hand_over(&mut a, &mut b, 1);
    let before = world.task("t");
    for _ in 0..10 {
        for envelope in [
            world.request("c", "a", 1),
            world.status("c", "", 1, TaskStatus::InProgress),
            world.cancel("c", "b", &id, 1),
            world.accept("c", "a", &id, 1),
        ] {
            world.send(envelope).unwrap_err();
        }
        world.send(v1::Envelope { epoch: 1, ..about(world.info("c", "a", "stale"), "t") }).unwrap_err();
    }
    assert_eq!(world.task("t"), before, "nothing of it is on record");
    assert_refused(world.send(world.request("a", "b", 1)), ErrorCode::StaleEpoch);
    assert_eq!(world.task("t").refusals_recorded, 1);
    world.audit("t");
}

#[test]
fn a_candidate_leaves_room_for_the_refusals_of_owners() {
    let settings = Settings { refusals_recorded_max: 4, ..Settings::default() };
    let mut world = World::with_settings(&["a", "b", "c"], settings);
    let payload =
        v1::HandoffRequest { task_type: "support".into(), fallback_candidates: vec!["c".into()], ..Default::default() };
    let id = world.send(world.request_with("a", "b", 1, &payload)).unwrap().handoff_id;
    let mut b = world.connect("b");
    world.take_and_ack(&mut b);
    world.pass(std::time::Duration::from_secs(31)); // b does not decide in time, so the broker asks c
    for _ in 0..10 {
        assert_refused(world.send(world.accept("b", "a", &id, 1)), ErrorCode::HandoffExpired);
    }
    assert_eq!(world.task("t").refusals_recorded, 2);
    world.pass(std::time::Duration::from_secs(400)); // the whole handoff has timed out
    for _ in 0..10 {
        assert_refused(world.send(world.context("a", "c", &id, 1)), ErrorCode::HandoffExpired);
    }
    assert_eq!(world.task("t").refusals_recorded, 4);
}

#[test]
fn what_is_not_ones_own_is_as_if_it_were_not_there() {
    let mut world = World::with(&["a", "b", "c"]);
    let id = open(&mut world, "a", "b", "t");
    let mut b = world.connect("b");
    let (delivery, _) = b.delivery();
    world.acknowledge(&b, &delivery, Fate::Poison { text: "no".into() }).unwrap();
    let dead = world.dead_letters()[0].number;
    let text = |error: BrokerError, id: &str| error.to_string().replace(id, "IT");
    let (handoff, other) = (MessageId::parse(&id).unwrap(), MessageId::from_bytes([7; 16]));
    let task = |id: &str| TaskId::parse(id).unwrap();
    for (caller, code) in [(agent("c"), ErrorCode::PermissionDenied), (Caller::Anonymous, ErrorCode::IdentityMissing)] {
        let view = world.view(&caller);
        let refused = |error: BrokerError, id: &str| {
            assert_eq!(baton_broker_core::codes::Refusal::code(&error), code, "{error}");
            text(error, id)
        };
        let of_task = |id: &str| refused(view.task(&task(id)).unwrap_err(), &format!("Task::\"{id}\""));
        assert_eq!(of_task("t"), of_task("u"));
        let of_log = |id: &str| refused(view.custody(&task(id), 0, 9, true).unwrap_err(), &format!("Task::\"{id}\""));
        assert_eq!(of_log("t"), of_log("u"));
        let of_handoff = |id: MessageId| refused(view.handoff(id).unwrap_err(), &id.to_string());
        assert_eq!(of_handoff(handoff), of_handoff(other));
        let of_dead = |number: u64| refused(view.dead_letter(number).unwrap_err(), &format!("\"{number}\""));
        assert_eq!(of_dead(dead), of_dead(9999));
    }
    let caller = operator();
    let view = world.view(&caller);
    assert!(matches!(view.task(&task("u")), Err(BrokerError::TaskUnknown { .. })), "who may see all is told");
    assert!(matches!(view.handoff(other), Err(BrokerError::HandoffUnknown { .. })));
}

/// The ids of the tasks, handoffs and dead letters that a caller lists with a page size of one.
fn found(view: &View<'_>) -> (Vec<String>, Vec<String>, Vec<u64>) {
    fn all<T>(mut page: impl FnMut(&str) -> (Vec<T>, String)) -> Vec<T> {
        let (mut found, mut token) = (Vec::new(), String::new());
        loop {
            let (entries, next) = page(&token);
            assert!(entries.len() <= 1);
            found.extend(entries);
            if next.is_empty() {
                return found;
            }
            token = next;
        }
    }
    let tasks = all(|token| {
        let page = view.tasks(&TaskFilter::default(), 1, token).unwrap();
        (page.entries.iter().map(|record| record.task.id.to_string()).collect(), page.next_token)
    });
    let handoffs = all(|token| {
        let page = view.handoffs(&HandoffFilter::default(), 1, token).unwrap();
        (page.entries.iter().map(|handoff| handoff.id.to_string()).collect(), page.next_token)
    });
    let dead = all(|token| {
        let page = view.dead_letters(&DeadLetterFilter::default(), 1, token).unwrap();
        (page.entries.iter().map(|dead| dead.number).collect(), page.next_token)
    });
    (tasks, handoffs, dead)
}

#[test]
fn a_list_shows_what_one_takes_part_in_once_and_nothing_else() {
    let mut world = World::with(&["a", "b", "c", "d"]);
    let (mut a, mut b, mut c) = (world.connect("a"), world.connect("b"), world.connect("c"));
    // Task "t" goes from a to b, back to a, and on to c. Task "s" is b's, offered to c and then to d. Task "r" concerns
    // no other agent.
    let first = world.hand_over(&mut a, &mut b, 1);
    let second = world.hand_over(&mut b, &mut a, 2);
    let third = world.hand_over(&mut a, &mut c, 3);
    let payload =
        v1::HandoffRequest { task_type: "support".into(), fallback_candidates: vec!["d".into()], ..Default::default() };
    let fourth = world.send(about(world.request_with("b", "c", 1, &payload), "s")).unwrap().handoff_id;
    let (delivery, _) = c.delivery();
    world.acknowledge(&c, &delivery, Fate::Poison { text: "no".into() }).unwrap();
    let fifth = open(&mut world, "d", "a", "r");
    let dead = world.dead_letters()[0].number;
    let list = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
    for restarted in [false, true] {
        if restarted {
            world.restart();
        }
        for (caller, tasks, handoffs, letters) in [
            (agent("a"), list(&["t"]), list(&[&fifth, &third, &second, &first]), vec![]),
            (agent("b"), list(&["s", "t"]), list(&[&fourth, &second, &first]), vec![dead]),
            (agent("c"), list(&["t"]), list(&[&fourth, &third]), vec![dead]),
            (agent("d"), list(&["r"]), list(&[&fifth, &fourth]), vec![]),
            (operator(), list(&["r", "s", "t"]), list(&[&fifth, &fourth, &third, &second, &first]), vec![dead]),
        ] {
            assert_eq!(found(&world.view(&caller)), (tasks, handoffs, letters), "{caller}");
        }
    }
    let caller = operator();
    let view = world.view(&caller);
    let of = |owner: &str| {
        let filter = TaskFilter { owner: Some(AgentId::parse(owner).unwrap()), ..TaskFilter::default() };
        let page = view.tasks(&filter, 9, "").unwrap();
        page.entries.iter().map(|record| record.task.id.to_string()).collect::<Vec<_>>()
    };
    assert_eq!((of("a"), of("b"), of("c"), of("d")), (list(&[]), list(&["s"]), list(&["t"]), list(&["r"])));
}

/// The number of records read by the lists of one agent, while others have this number of tasks, handoffs and dead
/// letters.
fn reads_beside(others: usize) -> u64 {
    let mut world = World::with(&["a", "b", "c", "d"]);
    let poison = || Fate::Poison { text: "no".into() };
    let tell_and_park = |world: &mut World, from: &str, to: &str| {
        world.send(world.info(from, to, "hello")).unwrap();
        let mut session = world.connect(to);
        for (delivery, _) in session.deliveries() {
            world.acknowledge(&session, &delivery, poison()).unwrap();
        }
        world.disconnect(session);
    };
    open(&mut world, "a", "b", "own");
    tell_and_park(&mut world, "a", "b");
    for number in 0..others {
        open(&mut world, "c", "d", &format!("t{number}"));
        tell_and_park(&mut world, "c", "d");
    }
    let before = world.disk.reads.load(Ordering::Relaxed);
    let caller = agent("a");
    let view = world.view(&caller);
    assert_eq!(view.tasks(&TaskFilter::default(), 50, "").unwrap().entries.len(), 1);
    assert_eq!(view.handoffs(&HandoffFilter::default(), 50, "").unwrap().entries.len(), 1);
    assert!(!view.dead_letters(&DeadLetterFilter::default(), 50, "").unwrap().entries.is_empty());
    let last = view.last_dead_letter().unwrap();
    assert!(!view.dead_letters_after(&DeadLetterFilter::default(), 0, last, 16).unwrap().0.is_empty());
    world.disk.reads.load(Ordering::Relaxed) - before
}

#[test]
fn a_list_costs_what_the_caller_takes_part_in() {
    let alone = reads_beside(0);
    assert_eq!(reads_beside(40), alone);
    assert!(alone < 20, "{alone} records for one task, one handoff and two dead letters");
}

#[test]
fn a_page_that_matches_little_ends_early_with_a_token() {
    let mut world = World::with(&["a", "b"]);
    let all = LOOKED_AT_MAX + 10;
    open(&mut world, "b", "a", "first");
    for number in 0..all {
        open(&mut world, "a", "b", &format!("t{number}"));
    }
    let caller = operator();
    let view = world.view(&caller);
    // Agent "a" takes part in all of them.
    let by = |name: &str| Some(AgentId::parse(name).unwrap());
    let filter = HandoffFilter { agent: by("a"), sender: by("b"), ..HandoffFilter::default() };
    let before = world.disk.reads.load(Ordering::Relaxed);
    let page = view.handoffs(&filter, 1, "").unwrap();
    assert_eq!(page.entries, []);
    // Each entry costs a record of its own.
    assert!(world.disk.reads.load(Ordering::Relaxed) - before <= 2 * LOOKED_AT_MAX as u64 + 300);
    let page = view.handoffs(&filter, 1, &page.next_token).unwrap();
    assert_eq!((page.entries.len(), page.next_token.as_str()), (1, ""));
}

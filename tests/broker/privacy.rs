//! Mail about a task, and the contexts of a task: who may send, what waits for what, and who may read.

use std::sync::{Arc, atomic::Ordering};

use baton_broker_core::{
    Settings,
    access::Caller,
    codes::ErrorCode,
    ids::{AgentId, TaskId},
    policy::{Policies, Source},
    proto::v1::{self, MessageType, custody_entry::Event},
    replay::Replay,
};
use prost::Message as _;

use crate::world::{World, assert_refused, operator};

fn agent(name: &str) -> Caller {
    Caller::Agent(AgentId::parse(name).unwrap())
}

impl World {
    /// Mail about task "t".
    fn mail(&self, from: &str, to: &str) -> v1::Envelope {
        v1::Envelope { task_id: "t".into(), ..self.info(from, to, "about it") }
    }

    /// The contexts in the log of task "t" that a caller gets: whether each comes with its envelope. The log must replay
    /// for this caller.
    fn contexts_seen_by(&self, caller: &Caller) -> Vec<bool> {
        let task = TaskId::parse("t").unwrap();
        let page = self.view(caller).custody(&task, 0, 1000, true).unwrap();
        let mut replay = Replay::new(task, None);
        let mut seen = Vec::new();
        for shown in &page.entries {
            replay.take(shown).unwrap_or_else(|error| panic!("{caller}: {error}"));
            if let Some(Event::Accepted(accepted)) = &shown.entry.as_ref().unwrap().event
                && accepted.message_type() == MessageType::TaskContextTransfer
            {
                assert_eq!(accepted.context_digest.len(), 32);
                seen.push(!shown.envelope.is_empty());
            }
        }
        assert_eq!(replay.task(), Some(&*self.task("t").task));
        seen
    }
}

#[test]
fn mail_about_a_task_by_a_stranger_is_refused_ten_thousand_times_and_uses_nothing_up() {
    let mut world = World::with(&["a", "b", "stranger"]);
    world.send(world.request("a", "b", 1)).unwrap();
    let before = world.task("t");
    let commits = world.disk.commits.load(Ordering::Relaxed);
    for _ in 0..10_000 {
        assert_refused(world.send(world.mail("stranger", "a")), ErrorCode::NotOwner);
    }
    assert_eq!(world.task("t"), before);
    assert_eq!(world.disk.commits.load(Ordering::Relaxed), commits, "no refusal is stored");
    world.send(world.mail("a", "b")).expect("the owner writes");
    world.send(world.mail("b", "a")).expect("the candidate writes");
}

#[test]
fn an_agent_that_a_participant_has_asked_may_answer() {
    let mut world = World::with(&["a", "b", "c"]);
    world.send(world.request("a", "b", 1)).unwrap();
    assert_refused(world.send(world.mail("c", "a")), ErrorCode::NotOwner);
    let asks = v1::TaskRequest { description: "who?".into(), ..Default::default() };
    let ask = world.envelope("a", "c", MessageType::TaskRequest, &asks);
    world.send(v1::Envelope { task_id: "t".into(), ..ask }).unwrap();
    let length = world.task("t").custody.length;
    world.restart();
    world.send(world.mail("c", "a")).unwrap();
    assert_eq!(world.task("t").custody.length, length, "the answer is not on record");
    world.audit("t");
}

#[test]
fn plain_mail_waits_for_nothing_and_holds_up_nothing() {
    let mut world = World::with(&["a", "b"]);
    let mut b = world.connect("b");
    world.send(world.request("a", "b", 1)).unwrap();
    world.send(world.mail("a", "b")).unwrap();
    let taken = b.deliveries();
    let kinds: Vec<_> = taken.iter().map(|(_, envelope)| envelope.message_type()).collect();
    assert_eq!(kinds, [MessageType::HandoffRequest, MessageType::Info], "the mail does not wait for the ack");
    // The unacked mail holds up no message of the handoff.
    world.ack(&b, &taken[0].0);
    let handoff = taken[0].1.message_id.clone();
    world.send(world.cancel("a", "b", &handoff, 1)).unwrap();
    assert_eq!(b.delivery().1.message_type(), MessageType::HandoffCancel);
}

#[test]
fn a_log_keeps_a_bounded_number_of_mail_and_counts_the_rest_in_one_entry() {
    let settings = Settings { mail_recorded_max: 4, ..Settings::default() };
    let mut world = World::with_settings(&["a", "b"], settings);
    let mut b = world.connect("b");
    world.send(world.request("a", "b", 1)).unwrap();
    for _ in 0..3 {
        world.send(world.mail("b", "a")).unwrap();
    }
    let after_candidate = world.task("t");
    assert_eq!((after_candidate.mail_recorded, after_candidate.mail_unrecorded), (2, 1), "half is left to owners");
    for _ in 0..5 {
        world.send(world.mail("a", "b")).unwrap();
    }
    assert_eq!(b.deliveries().len(), 6, "all of it is delivered");
    world.restart();
    world.send(world.mail("a", "b")).unwrap();
    let task = world.task("t");
    assert_eq!((task.mail_recorded, task.mail_unrecorded), (4, 5));
    let said = |entry: &v1::CustodyLogEntry| matches!(entry.entry.as_ref().unwrap().event, Some(Event::MailOmitted(_)));
    assert_eq!(world.custody("t").iter().filter(|entry| said(entry)).count(), 1);
    world.audit("t");
}

#[test]
fn a_context_is_for_its_parties_and_the_log_replays_for_all() {
    let mut world = World::with(&["a", "b", "c", "d"]);
    let (mut a, mut b, mut c) = (world.connect("a"), world.connect("b"), world.connect("c"));
    world.hand_over(&mut a, &mut b, 1);
    world.hand_over(&mut b, &mut c, 2);
    assert_eq!(world.contexts_seen_by(&agent("a")), [true, false], "the author of the first");
    assert_eq!(
        world.contexts_seen_by(&agent("b")),
        [true, true],
        "the receiver of the first, the author of the second"
    );
    assert_eq!(world.contexts_seen_by(&agent("c")), [true, true], "the owner");
    assert_eq!(world.contexts_seen_by(&operator()), [true, true]);
}

#[test]
fn a_candidate_reads_contexts_from_its_accept_on() {
    // A policy may let all agents see all tasks, and still shows no contexts.
    let text = "permit(principal, action, resource) unless { action == Action::\"readContext\" };";
    let policies = Policies::parse(&[Source::new("test.cedar", text)]).unwrap();
    let mut world = World::with(&["a", "b", "c", "d"]);
    world.resources.policies.store(Arc::new(policies));
    let (mut a, mut b, mut c) = (world.connect("a"), world.connect("b"), world.connect("c"));
    world.hand_over(&mut a, &mut b, 1);
    let handoff = world.send(world.request("b", "c", 2)).unwrap().handoff_id;
    world.take_and_ack(&mut c);
    assert_eq!(world.contexts_seen_by(&agent("c")), [false]);
    world.send(world.accept("c", "b", &handoff, 2)).unwrap();
    assert_eq!(world.contexts_seen_by(&agent("c")), [true]);
    world.send(world.cancel("b", "c", &handoff, 2)).unwrap();
    assert_eq!(world.contexts_seen_by(&agent("c")), [false], "the handoff has ended");
    for stranger in [agent("d"), operator(), Caller::Anonymous] {
        assert_eq!(world.contexts_seen_by(&stranger), [false], "{stranger}");
    }
}

#[test]
fn a_dead_letter_shows_a_context_to_its_parties_only() {
    let text = "permit(principal, action, resource) unless { action == Action::\"readContext\" };";
    let policies = Policies::parse(&[Source::new("test.cedar", text)]).unwrap();
    let mut world = World::with(&["a", "b", "c"]);
    world.resources.policies.store(Arc::new(policies));
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));
    let handoff = world.send(world.request("a", "b", 1)).unwrap().handoff_id;
    world.take_and_ack(&mut b);
    world.send(world.accept("b", "a", &handoff, 1)).unwrap();
    world.take_and_ack(&mut a);
    world.send(world.context("a", "b", &handoff, 1)).unwrap();
    let (delivery, _) = b.delivery();
    let fate = baton_broker_core::engine::Fate::Poison { text: "cannot parse".into() };
    world.acknowledge(&b, &delivery, fate).unwrap();
    let dead = world.dead_letters().remove(0);
    for (caller, is_shown) in [(agent("a"), true), (agent("b"), true), (agent("c"), false), (operator(), false)] {
        let bytes = world.view(&caller).dead_bytes(&dead).unwrap();
        assert_eq!(!bytes.envelope.is_empty(), is_shown, "{caller}");
        assert_eq!(bytes.context_digest.len(), if is_shown { 0 } else { 32 }, "{caller}");
    }
    assert_refused(world.redrive(dead.number, Some("c")), ErrorCode::ReceiverInvalid);
}

#[test]
fn a_false_digest_of_a_context_is_noticed_by_its_parties() {
    let mut world = World::with(&["a", "b"]);
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));
    world.hand_over(&mut a, &mut b, 1);
    let mut replay = Replay::new(TaskId::parse("t").unwrap(), None);
    let mut hash = [0; 32];
    let failure = world.custody("t").into_iter().find_map(|mut shown| {
        let mut entry = shown.entry.clone().unwrap();
        if let Some(Event::Accepted(accepted)) = &mut entry.event
            && !accepted.context_digest.is_empty()
        {
            accepted.context_digest = vec![9; 32].into();
        }
        shown.entry_bytes = entry.encode_to_vec().into();
        hash = baton_broker_core::envelope::signing::custody_hash(&hash, &shown.entry_bytes);
        shown.custody_hash = hash.to_vec().into();
        shown.entry = Some(entry);
        replay.take(&shown).err()
    });
    assert!(failure.unwrap().problem.contains("another digest"));
}

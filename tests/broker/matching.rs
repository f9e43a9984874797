//! Matching in the pipeline: the load and the statistics of agents, and who is asked for whom.

use std::time::Duration;

use baton_broker_core::{
    Away, Reply,
    codes::ErrorCode,
    directory::Busy,
    domain::{
        dead_letter::ParkReason,
        handoff::{OfferOutcome, State},
        matching::{Summary, Wanted},
    },
    engine::{CardField, CardUpdate, Command},
    ids::AgentId,
    proto::v1::{self, Envelope, MessageType},
};

use crate::world::{Session, World, assert_refused, operator};

const MINUTE: Duration = Duration::from_secs(60);

fn id(agent: &str) -> AgentId {
    AgentId::parse(agent).unwrap()
}

impl World {
    /// Changes an agent's skills and capacity.
    pub(crate) fn equip(&mut self, agent: &str, skills: &[&str], capacity: u32) {
        let skill = |name: &&str| v1::AgentSkill { name: (*name).to_owned(), ..Default::default() };
        let card = v1::AgentCard { skills: skills.iter().map(skill).collect(), capacity, ..Default::default() };
        let fields = vec![CardField::Skills, CardField::Capacity];
        let update = CardUpdate { agent: id(agent), card, fields, etag: String::new() };
        self.ask(|reply| Command::Update { update: Box::new(update), caller: operator(), reply }).unwrap();
    }

    fn busy(&self, agent: &str) -> Busy {
        let directory = self.engine.directory();
        directory.busy(&directory.get(&id(agent)).unwrap(), self.now)
    }

    /// The numbers of tasks and of open offers that the broker counts.
    pub(crate) fn counted(&self, agent: &str) -> (u32, u32) {
        let busy = self.busy(agent);
        (busy.owned, busy.offers)
    }

    fn statistics(&self, agent: &str) -> Summary {
        self.engine.directory().statistics(&id(agent), self.now)
    }

    pub(crate) fn beat(&mut self, session: &Session, active_tasks: u32, capacity: u32) {
        let (consumer, agent) = (session.consumer, session.agent.clone());
        let heartbeat = v1::Heartbeat { active_tasks, capacity, ..Default::default() };
        self.engine.handle(Command::Heartbeat { consumer, agent, heartbeat, reply: None }, self.now);
        self.settle();
    }
}

fn about(task: String, envelope: Envelope) -> Envelope {
    Envelope { task_id: task, ..envelope }
}

fn demanding(world: &World, to: &str, skills: &[&str], agent_type: &str, fallbacks: &[&str]) -> Envelope {
    let texts = |names: &[&str]| names.iter().map(ToString::to_string).collect();
    let payload = v1::HandoffRequest {
        task_type: "support".into(),
        required_skills: texts(skills),
        desired_agent_type: agent_type.into(),
        fallback_candidates: texts(fallbacks),
        ..Default::default()
    };
    world.request_with("a", to, 1, &payload)
}

/// The offers of a handoff: the candidate, its outcome, and whether it was passed over.
fn offers(world: &World, handoff: &str) -> Vec<(String, OfferOutcome, bool)> {
    let handoff = world.handoff(handoff);
    handoff.offers.iter().map(|offer| (offer.candidate.to_string(), offer.outcome, offer.passed_over)).collect()
}

// ------------------------------------------------------------------------------------------------------------- load

/// Ten analysts: one is GONE, one says in its heartbeat that it is full. `at_once` sends all requests in one batch.
fn burst(capacity: u32, at_once: bool) -> Vec<u32> {
    let names: Vec<String> = (0..10).map(|number| format!("analyst{number}")).collect();
    let mut world = World::with(&["a"]);
    let mut sessions = Vec::new();
    for name in &names {
        world.register(name, "analyst");
        world.equip(name, &[], capacity);
    }
    world.pass(MINUTE * 2);
    for name in &names[1..] {
        sessions.push(world.connect(name));
    }
    world.beat(&sessions[0], 50, 50);
    let mut replies = Vec::new();
    for number in 0..80 {
        let request = about(format!("t{number}"), world.request("a", "type:analyst", 1));
        let message = world.prepared(request).unwrap();
        let (reply, receipt) = Reply::once();
        world.engine.handle(Command::Submit { message, is_from_sender: true, reply }, world.now);
        replies.push(receipt);
        if !at_once {
            world.settle();
        }
    }
    world.settle();
    for receipt in &mut replies {
        receipt.try_recv().unwrap().unwrap();
    }
    names.iter().map(|name| world.counted(name).1).collect()
}

#[test]
fn eighty_requests_to_ten_analysts_are_shared_by_the_eight_that_can_take_them() {
    for (capacity, at_once) in [(0, true), (0, false), (20, true), (20, false)] {
        let offers = burst(capacity, at_once);
        assert_eq!(offers[..2], [0, 0], "one is gone, one is full: {offers:?}");
        assert!(offers[2..].iter().all(|offers| (9..=11).contains(offers)), "capacity {capacity}: {offers:?}");
        assert_eq!(offers.iter().sum::<u32>(), 80);
    }
}

#[test]
fn a_full_agent_is_asked_after_all_that_are_not() {
    let mut world = World::with(&["a", "b", "c", "d"]);
    let b = world.connect("b");
    world.beat(&b, 2, 2);
    let request = demanding(&world, "b", &[], "", &["c", "d"]);
    let handoff = world.send(request).unwrap().handoff_id;
    let asked = world.handoff(&handoff);
    let next: Vec<_> = asked.next_candidates.iter().map(ToString::to_string).collect();
    assert_eq!((asked.candidate.as_str(), next.join(" ").as_str()), ("c", "d b"));
}

#[test]
fn the_broker_counts_tasks_and_offers_and_counts_them_again_after_a_restart() {
    let mut world = World::with(&["a", "b"]);
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));
    let first = world.send(world.request("a", "b", 1)).unwrap().handoff_id;
    assert_eq!((world.counted("a"), world.counted("b")), ((1, 0), (0, 1)));
    world.take_and_ack(&mut b);
    world.send(world.accept("b", "a", &first, 1)).unwrap();
    world.take_and_ack(&mut a);
    assert_eq!((world.counted("a"), world.counted("b")), ((1, 0), (0, 1)));
    world.restart();
    world.settle();
    assert_eq!((world.counted("a"), world.counted("b")), ((1, 0), (0, 1)));
    world.send(world.context("a", "b", &first, 1)).unwrap();
    let mut b = world.connect("b");
    b.deliveries().iter().for_each(|(delivery, _)| world.ack(&b, delivery));
    world.send(world.complete("b", "a", &first, 1)).unwrap();
    assert_eq!((world.counted("a"), world.counted("b")), ((0, 0), (1, 0)));
    world.restart();
    world.settle();
    assert_eq!((world.counted("a"), world.counted("b")), ((0, 0), (1, 0)));
    world.send(world.status("b", "", 2, v1::TaskStatus::Completed)).unwrap();
    assert_eq!((world.counted("a"), world.counted("b")), ((0, 0), (0, 0)));
}

/// A change between the start and the end of the count is counted once.
#[test]
fn changes_during_the_count_after_a_start_are_counted_once() {
    let mut world = World::with(&["a", "b"]);
    for number in 0..700 {
        let request = about(format!("t{number:04}"), world.request("a", "b", 1));
        world.send(request).unwrap();
    }
    world.restart();
    // The first part is counted after the first commit.
    world.finish();
    for task in ["t0001", "t0650", "t9999"] {
        let request = about(task.to_owned(), world.request("a", "b", 1));
        let outcome = world.prepared(request).map(|message| {
            let (reply, receipt) = Reply::once();
            world.engine.handle(Command::Submit { message, is_from_sender: true, reply }, world.now);
            receipt
        });
        drop(outcome.unwrap());
    }
    world.settle();
    assert_eq!((world.counted("a"), world.counted("b")), ((701, 0), (0, 701)));
}

#[test]
fn a_failed_commit_leaves_no_count_behind() {
    let mut world = World::with(&["a", "b"]);
    world.disk.full.store(true, std::sync::atomic::Ordering::Relaxed);
    assert_refused(world.send(world.request("a", "b", 1)), ErrorCode::StoreUnavailable);
    world.disk.full.store(false, std::sync::atomic::Ordering::Relaxed);
    world.recover();
    world.settle();
    assert_eq!((world.counted("a"), world.counted("b")), ((0, 0), (0, 0)));
}

// ------------------------------------------------------------------------------------------------------- statistics

#[test]
fn the_end_of_an_offer_counts_for_its_agent_also_after_a_restart() {
    let mut world = World::with(&["a", "b", "c"]);
    let (mut a, mut b, mut c) = (world.connect("a"), world.connect("b"), world.connect("c"));
    // b rejects after two seconds, c takes over after one.
    let handoff = world.send(demanding(&world, "b", &[], "", &["c"])).unwrap().handoff_id;
    world.take_and_ack(&mut b);
    world.pass(Duration::from_secs(2));
    world.send(world.reject("b", "a", &handoff, &[])).unwrap();
    world.take_and_ack(&mut a);
    world.take_and_ack(&mut c);
    world.pass(Duration::from_secs(1));
    world.send(world.accept("c", "a", &handoff, 1)).unwrap();
    world.take_and_ack(&mut a);
    assert_eq!(world.statistics("c"), Summary::default(), "the offer has not ended");
    world.send(world.context("a", "c", &handoff, 1)).unwrap();
    world.take_and_ack(&mut c);
    world.send(world.complete("c", "a", &handoff, 1)).unwrap();
    let expected =
        |offers, completed, seconds| Summary { offers, completed, median_decision: Some(Duration::from_secs(seconds)) };
    for _ in 0..2 {
        assert_eq!(world.statistics("b"), expected(1, 0, 2));
        assert_eq!(world.statistics("c"), expected(1, 1, 1));
        assert_eq!(world.statistics("a"), Summary::default());
        world.restart();
        world.settle();
    }
    world.pass(Duration::from_secs(7 * 24 * 60 * 60));
    assert_eq!(world.statistics("c"), Summary::default());
}

#[test]
fn an_offer_that_its_sender_ends_says_nothing_about_the_agent() {
    let mut world = World::with(&["a", "b"]);
    let mut b = world.connect("b");
    let handoff = world.send(world.request("a", "b", 1)).unwrap().handoff_id;
    world.take_and_ack(&mut b);
    world.send(world.cancel("a", "b", &handoff, 1)).unwrap();
    world.take_and_ack(&mut b);
    assert_eq!(world.statistics("b"), Summary::default());
    // The sender accepts no responsibility for its context either.
    let handoff = world.send(world.request("a", "b", 1)).unwrap().handoff_id;
    world.take_and_ack(&mut b);
    world.send(world.accept("b", "a", &handoff, 1)).unwrap();
    world.pass(MINUTE);
    assert_eq!(world.handoff(&handoff).state, State::Failed);
    assert_eq!(world.statistics("b"), Summary::default());
}

#[test]
fn an_offer_that_an_agent_lets_expire_counts_against_it() {
    let mut world = World::with(&["a", "b"]);
    let mut b = world.connect("b");
    world.send(world.request("a", "b", 1)).unwrap();
    world.take_and_ack(&mut b);
    world.pass(Duration::from_secs(30));
    let statistics = world.statistics("b");
    assert_eq!((statistics.offers, statistics.completed), (1, 0));
    assert_eq!(statistics.median_decision, Some(Duration::from_secs(30)));
}

// ----------------------------------------------------------------------------------------------------------- skills

#[test]
fn a_more_specific_skill_passes_and_an_agent_without_it_is_passed_over() {
    let mut world = World::with(&["a", "named", "able", "late"]);
    world.equip("able", &["finance.tax.de"], 0);
    world.equip("late", &["finance.tax"], 0);
    let handoff = world.send(demanding(&world, "named", &["finance.tax"], "", &["able", "late"])).unwrap().handoff_id;
    let passed = ("named".to_owned(), OfferOutcome::Rejected, true);
    assert_eq!(offers(&world, &handoff), [passed, ("able".to_owned(), OfferOutcome::Pending, false)]);
    let shown = &world.handoff(&handoff).offers[0];
    assert_eq!(shown.reject_reason, i32::from(v1::RejectReason::NoSkill));
    assert_eq!(shown.reason_text, "lacks finance.tax");
    let mut named = world.connect("named");
    assert!(named.deliveries().is_empty(), "it never gets the request");
    assert!(!world.handoff(&handoff).was_offered_to(&id("named")), "and takes no part");
    world.audit("t");
}

#[test]
fn a_request_that_no_named_agent_can_meet_ends_at_once_and_says_why() {
    let mut world = World::with(&["a", "b", "c"]);
    let mut a = world.connect("a");
    let handoff = world.send(demanding(&world, "b", &["x"], "", &["c"])).unwrap().handoff_id;
    let ended = world.handoff(&handoff);
    assert_eq!(ended.state, State::Rejected);
    let failure = ended.failure.clone().unwrap();
    assert_eq!(failure.code, ErrorCode::NoCandidate);
    assert_eq!(failure.message, "no candidate took the handoff: b lacks x; c lacks x");
    let (_, notice) = a.delivery();
    assert_eq!(notice.message_type(), MessageType::ErrorNotification);
    let dead = world.dead_letters();
    assert_eq!((dead.len(), dead[0].reason), (1, ParkReason::NoCandidate));
    assert_eq!(dead[0].summary.task_id, "t", "its envelope is kept");
    assert_eq!(world.counted("a"), (1, 0));
    world.audit("t");
    world.restart();
    assert_eq!(*world.handoff(&handoff), *ended);
    // With the skill, the request can be redriven.
    assert_refused(world.redrive(dead[0].number, Some("c")), ErrorCode::ReceiverInvalid);
    world.equip("c", &["x.y"], 0);
    let redriven = world.redrive(dead[0].number, None).unwrap().settlement.unwrap();
    assert_eq!(redriven.redriven_to, Some(id("c")));
    world.audit("t");
}

#[test]
fn a_type_without_an_able_agent_is_passed_over_too() {
    let mut world = World::with(&["a", "b:analyst", "c:analyst"]);
    let handoff = world.send(demanding(&world, "type:analyst", &["x"], "", &[])).unwrap().handoff_id;
    let passed = |name: &str| (name.to_owned(), OfferOutcome::Rejected, true);
    assert_eq!(offers(&world, &handoff), [passed("b"), passed("c")]);
    assert_eq!(world.handoff(&handoff).state, State::Rejected);
    assert_refused(world.send(demanding(&world, "type:other", &["x"], "", &[])), ErrorCode::ReceiverUnknown);
}

#[test]
fn agents_that_are_passed_over_take_no_offer_from_an_able_one() {
    let mut world = World::with(&["a", "carol"]);
    world.equip("carol", &["x"], 0);
    for number in 0..36 {
        world.register(&format!("unfit{number:02}"), &format!("t{}", number / 9));
    }
    let fallbacks = ["type:t1", "type:t2", "type:t3", "carol"];
    let handoff = world.send(demanding(&world, "type:t0", &["x"], "", &fallbacks)).unwrap().handoff_id;
    let shown = world.handoff(&handoff);
    assert_eq!((shown.state, shown.candidate.as_str(), shown.offers.len()), (State::Requested, "carol", 33));
    world.restart();
    assert_eq!(world.handoff(&handoff), shown);
    world.audit("t");
}

#[test]
fn the_desired_type_holds_for_every_candidate() {
    let mut world = World::with(&["a", "b:clerk", "c:analyst"]);
    let handoff = world.send(demanding(&world, "b", &[], "analyst", &["c"])).unwrap().handoff_id;
    assert_eq!(world.handoff(&handoff).candidate, id("c"));
    assert_eq!(world.handoff(&handoff).offers[0].reason_text, "is not of type analyst");
}

#[test]
fn fallbacks_and_suggestions_may_be_types() {
    let mut world = World::with(&["a", "b", "c:analyst", "d:analyst", "e:legal", "f:legal"]);
    world.equip("d", &["x"], 0);
    world.equip("b", &["x"], 0);
    world.equip("f", &["x.y"], 0);
    let mut b = world.connect("b");
    let handoff = world.send(demanding(&world, "b", &["x"], "", &["type:analyst"])).unwrap().handoff_id;
    assert_eq!(world.handoff(&handoff).next_candidates, [id("d")], "only the able ones of the type");
    world.take_and_ack(&mut b);
    world.send(world.reject("b", "a", &handoff, &["type:legal", "c", "type:none", "unknown"])).unwrap();
    let after = world.handoff(&handoff);
    assert_eq!((&after.candidate, &after.next_candidates[..]), (&id("d"), &[id("f")][..]));
    let passed: Vec<_> = after.offers.iter().filter(|offer| offer.passed_over).collect();
    assert_eq!((passed.len(), passed[0].candidate.as_str()), (1, "c"));
    world.audit("t");
}

#[test]
fn all_of_a_type_is_no_fallback() {
    let world = World::with(&["a", "b"]);
    let request = demanding(&world, "b", &[], "", &["all:analyst"]);
    let refusal = assert_refused(world.prepared(request), ErrorCode::FieldInvalid);
    assert_eq!(refusal.violations()[0].path, "envelope.payload.fallback_candidates[0]");
}

// -------------------------------------------------------------------------------------------------------- directory

fn update(
    world: &mut World,
    card: v1::AgentCard,
    fields: &[CardField],
    etag: &str,
) -> Result<(), crate::world::Refusal> {
    let update = CardUpdate { agent: id("b"), card, fields: fields.to_vec(), etag: etag.to_owned() };
    world.ask(|reply| Command::Update { update: Box::new(update), caller: operator(), reply })
}

#[test]
fn an_update_changes_only_the_fields_of_its_mask() {
    let mut world = World::with(&["b:analyst"]);
    let entry = |world: &World| world.engine.directory().get(&id("b")).unwrap();
    let before = entry(&world);
    let card = v1::AgentCard { description: "counts".into(), capacity: 7, ..Default::default() };
    update(&mut world, card.clone(), &[CardField::Description], &before.etag()).unwrap();
    let after = entry(&world);
    let expected = v1::AgentCard { description: "counts".into(), ..before.record.card.clone() };
    assert_eq!(after.record.card, expected);
    assert_ne!(after.etag(), before.etag());
    let refusal =
        assert_refused(update(&mut world, card.clone(), &[CardField::Capacity], &before.etag()), ErrorCode::Conflict);
    assert!(refusal.retry_after().is_none(), "the same etag fails again");
    // The same values again write nothing.
    update(&mut world, card, &[CardField::Description], "").unwrap();
    assert_eq!(entry(&world).etag(), after.etag());
    world.restart();
    assert_eq!((entry(&world).etag(), entry(&world).record.card.clone()), (after.etag(), expected));
}

#[test]
fn a_card_of_too_much_is_refused() {
    let mut world = World::with(&["b"]);
    let skill = |name: &str| v1::AgentSkill { name: name.to_owned(), ..Default::default() };
    let cases = [
        ("card.skills", vec![skill("x"); 65]),
        ("card.skills[0].name", vec![skill(&["x"; 17].join("."))]),
        ("card.skills[0].description", vec![v1::AgentSkill { description: "x".repeat(1025), ..skill("x") }]),
        ("card.skills[0].examples", vec![v1::AgentSkill { examples: vec![String::new(); 9], ..skill("x") }]),
    ];
    for (path, skills) in cases {
        let card = v1::AgentCard { skills, ..Default::default() };
        let refusal = assert_refused(update(&mut world, card, &[CardField::Skills], ""), ErrorCode::FieldInvalid);
        assert_eq!(refusal.violations()[0].path, path);
    }
}

impl World {
    pub(crate) fn deregister(&mut self, agent: &str, force: bool) -> Result<(), crate::world::Refusal> {
        let (agent, reason_text, caller) = (id(agent), String::new(), operator());
        self.ask(|reply| Command::Deregister { agent, force, reason_text, caller, reply })
    }
}

#[test]
fn a_busy_agent_is_not_deregistered() {
    let mut world = World::with(&["a", "b"]);
    let handoff = world.send(world.request("a", "b", 1)).unwrap().handoff_id;
    let refusal = assert_refused(world.deregister("a", false), ErrorCode::AgentBusy);
    assert_eq!(refusal.metadata(), [("owned_tasks", "1".to_owned()), ("open_offers", "0".to_owned())]);
    assert_refused(world.deregister("b", false), ErrorCode::AgentBusy);
    world.send(world.cancel("a", "b", &handoff, 1)).unwrap();
    world.deregister("b", false).unwrap();
    world.deregister("b", false).unwrap();
    assert_refused(world.deregister("a", false), ErrorCode::AgentBusy);
    assert_refused(world.deregister("unknown", false), ErrorCode::AgentUnknown);
}

#[test]
fn a_deregistered_agent_stays_readable_and_its_id_is_never_used_again() {
    let mut world = World::with(&["a", "b:analyst"]);
    let mut session = world.connect("b");
    let card = world.engine.directory().get(&id("b")).unwrap().record.card.clone();
    world.deregister("b", false).unwrap();
    assert_eq!(session.sent_away(), Some(Away::Deregistered));
    for _ in 0..2 {
        let entry = world.engine.directory().get(&id("b")).unwrap();
        assert!(!entry.is_registered());
        assert_eq!(entry.record.card.keys[0].public_key, card.keys[0].public_key);
        assert!(entry.record.card.keys[0].revoke_time.is_some());
        assert_refused(world.send(world.request("a", "b", 1)), ErrorCode::ReceiverUnknown);
        assert_refused(world.send(world.request("a", "type:analyst", 1)), ErrorCode::ReceiverUnknown);
        assert_refused(world.send(world.info("b", "a", "x")), ErrorCode::KeyNotValid);
        let again = baton_broker_core::directory::Entry::parse(baton_broker_core::records::AgentRecord::new(
            card.clone(),
            world.now,
        ));
        assert_refused(world.register_as(operator(), again.unwrap(), ""), ErrorCode::AgentExists);
        world.restart();
    }
}

#[test]
fn a_message_that_waits_while_its_sender_is_deregistered_is_refused() {
    for is_one_commit in [false, true] {
        let mut world = World::with(&["a", "b"]);
        let message = world.prepared(world.request("b", "a", 1)).unwrap();
        let (reply, mut outcome) = Reply::once();
        let (agent, reason_text, caller) = (id("b"), String::new(), operator());
        world.engine.handle(Command::Deregister { agent, force: false, reason_text, caller, reply }, world.now);
        if !is_one_commit {
            world.settle();
        }
        let sent = world.ask(|reply| Command::Submit { message, is_from_sender: true, reply });
        assert_refused(sent, ErrorCode::KeyNotValid);
        outcome.try_recv().unwrap().unwrap();
    }
}

#[test]
fn with_force_offers_move_on_and_mail_becomes_dead_letters() {
    let mut world = World::with(&["a", "b", "c"]);
    let mut c = world.connect("c");
    let handoff = world.send(demanding(&world, "b", &[], "", &["c"])).unwrap().handoff_id;
    for number in 0..300 {
        world.send(world.info("a", "b", &number.to_string())).unwrap();
    }
    world.deregister("b", true).unwrap();
    assert_eq!(world.handoff(&handoff).candidate, id("c"));
    assert_eq!(c.delivery().1.message_type(), MessageType::HandoffRequest);
    let dead = world.dead_letters();
    assert!(dead.iter().all(|dead| dead.reason == ParkReason::ReceiverGone));
    // The notice that the offer was withdrawn is one, too.
    assert_eq!(dead.len(), 302);
    world.audit("t");
}

/// The broker is killed after the commit of the deregistration, before it has looked at the mail.
#[test]
fn mail_of_a_deregistered_agent_becomes_dead_letters_after_a_restart() {
    let mut world = World::with(&["a", "b"]);
    world.send(world.info("a", "b", "x")).unwrap();
    let (reply, mut done) = Reply::once();
    let (agent, reason_text, caller) = (id("b"), String::new(), operator());
    world.engine.handle(Command::Deregister { agent, force: true, reason_text, caller, reply }, world.now);
    world.engine.finish(world.now);
    world.restart();
    world.settle();
    assert_eq!(world.dead_letters().len(), 1);
    assert!(done.try_recv().is_err() || !world.engine.directory().is_registered(&id("b")));
}

#[test]
fn the_ranking_uses_what_the_broker_knows() {
    let mut world = World::with(&["a", "b:analyst", "c:analyst"]);
    world.equip("b", &["finance.tax.de"], 4);
    world.equip("c", &["finance.tax"], 4);
    let b = world.connect("b");
    world.beat(&b, 1, 0);
    let _c = world.connect("c");
    let skills = ["finance.tax".to_owned()];
    let wanted = Wanted {
        agent_type: None,
        required_skills: &skills,
        preferred_skills: &[],
        task_type: "",
        languages: &[],
        tags: &[],
        priority: Default::default(),
        accept_timeout: Duration::from_secs(30),
    };
    let ranking = world.engine.directory().rank(&wanted, world.now, |_| true);
    assert_eq!(ranking.agents().map(ToString::to_string).collect::<Vec<_>>(), ["c", "b"]);
    let (facts, score, busy) = ranking.from(1).next().unwrap();
    let factors = baton_broker_core::domain::matching::explain(&wanted, &facts);
    assert_eq!(factors[1].text, "1 of 4 in use");
    assert!((factors.iter().map(|factor| factor.value * factor.weight).sum::<f64>() - score).abs() < 1e-12);
    assert_eq!((busy.load.in_use, busy.owned), (1, 0));
}

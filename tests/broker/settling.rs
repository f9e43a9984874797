//! Mail that its agent has answered without fetching it: no dead letter of it arises.

use std::time::Duration;

use baton_broker_core::{
    codes::ErrorCode,
    domain::{dead_letter::ParkReason, handoff::State},
    engine::Fate,
    proto::v1::{self, MessageType, TaskStatus},
    store::{Order, Store as _, Table},
};

use crate::world::{World, assert_refused};

const DAYS: Duration = Duration::from_secs(72 * 60 * 60);
const LEASE: Duration = Duration::from_secs(60);

impl World {
    /// The number of letters in an agent's mailbox.
    pub(crate) fn letters(&self, agent: &str) -> usize {
        let range = baton_broker_core::records::mailbox_range(&baton_broker_core::ids::AgentId::parse(agent).unwrap());
        self.disk.scan(Table::Mailbox, range, Order::Ascending, usize::MAX).unwrap().len()
    }

    fn dead_letters_of(&self, agent: &str) -> Vec<MessageType> {
        let dead = self.dead_letters();
        let dead = dead.into_iter().filter(|dead| dead.agent.as_str() == agent);
        dead.map(|dead| MessageType::try_from(dead.summary.message_type).unwrap()).collect()
    }
}

#[test]
fn a_person_that_works_by_calls_alone_leaves_no_dead_letters() {
    let mut world = World::with(&["a", "person"]);
    let mut a = world.connect("a");
    let handoff = world.send(world.request("a", "person", 1)).unwrap().handoff_id;
    assert_eq!(world.letters("person"), 1);
    world.send(world.accept("person", "a", &handoff, 1)).unwrap();
    assert_eq!(world.letters("person"), 0, "the accept answers the offer");
    world.take_and_ack(&mut a);
    world.send(world.context("a", "person", &handoff, 1)).unwrap();
    assert_eq!(world.letters("person"), 1);
    world.send(world.complete("person", "a", &handoff, 1)).unwrap();
    assert_eq!(world.letters("person"), 0, "the completion answers the context");
    world.take_and_ack(&mut a);
    world.send(world.status("person", "", 2, TaskStatus::Completed)).unwrap();
    world.pass(DAYS);
    assert_eq!(world.dead_letters_of("person"), []);
    world.audit("t");
}

#[test]
fn a_rejected_offer_is_no_dead_letter_of_the_candidate_also_of_a_further_one() {
    let mut world = World::with(&["a", "p", "q", "r"]);
    let _a = world.connect("a");
    let payload = v1::HandoffRequest {
        task_type: "support".into(),
        fallback_candidates: vec!["q".into(), "r".into()],
        ..Default::default()
    };
    let handoff = world.send(world.request_with("a", "p", 1, &payload)).unwrap().handoff_id;
    for candidate in ["p", "q"] {
        world.send(world.reject(candidate, "a", &handoff, &[])).unwrap();
        assert_eq!(world.letters(candidate), 0);
    }
    world.send(world.accept("r", "a", &handoff, 1)).unwrap();
    assert_eq!(world.letters("r"), 0, "its copy of the request has a place of its own");
    assert_eq!(world.handoff(&handoff).state, State::Accepted);
    world.audit("t");
}

#[test]
fn an_unanswered_offer_still_becomes_a_dead_letter() {
    let mut world = World::with(&["a", "person"]);
    world.send(world.request("a", "person", 1)).unwrap();
    world.pass(DAYS);
    assert!(world.dead_letters_of("person").contains(&MessageType::HandoffRequest));
}

#[test]
fn an_answered_question_is_no_dead_letter() {
    let mut world = World::with(&["a", "b", "person"]);
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));
    world.hand_over(&mut a, &mut b, 1);
    let prompt = v1::TaskPrompt { question: "may I refund?".into(), answer_by: "person".into(), ..Default::default() };
    let payload =
        v1::TaskStatusUpdate { status: TaskStatus::WaitingForInput.into(), prompt: Some(prompt), ..Default::default() };
    let question = world.envelope("b", "", MessageType::TaskStatusUpdate, &payload);
    let question = v1::Envelope { task_id: "t".into(), epoch: 2, ..question };
    let id = question.message_id.clone();
    world.send(question).unwrap();
    assert_eq!(world.letters("person"), 1);
    let input = v1::TaskInput { text: "yes".into(), ..Default::default() };
    let answer = world.envelope("person", "", MessageType::TaskInput, &input);
    world.send(v1::Envelope { task_id: "t".into(), correlation_id: id, epoch: 2, ..answer }).unwrap();
    assert_eq!(world.letters("person"), 0);
    world.pass(DAYS);
    assert_eq!(world.dead_letters_of("person"), []);
    world.audit("t");
}

#[test]
fn a_delivery_that_a_consumer_holds_waits_for_its_ack() {
    let mut world = World::with(&["a", "b"]);
    let mut b = world.connect("b");
    let handoff = world.send(world.request("a", "b", 1)).unwrap().handoff_id;
    let (delivery, _) = b.delivery();
    world.send(world.accept("b", "a", &handoff, 1)).unwrap();
    assert_eq!(world.letters("b"), 1);
    world.ack(&b, &delivery);
    assert_eq!(world.letters("b"), 0);
    world.audit("t");
}

#[test]
fn a_delivery_that_waits_for_its_next_attempt_is_not_sent_again_after_the_answer() {
    let mut world = World::with(&["a", "b"]);
    let mut b = world.connect("b");
    let handoff = world.send(world.request("a", "b", 1)).unwrap().handoff_id;
    let (delivery, _) = b.delivery();
    let failure = Fate::Failed { retry_after: None, text: "busy".into() };
    world.acknowledge(&b, &delivery, failure).unwrap();
    world.send(world.accept("b", "a", &handoff, 1)).unwrap();
    world.pass(LEASE / 2);
    assert!(b.deliveries().is_empty());
    assert_refused(world.acknowledge(&b, &delivery, Fate::Acked), ErrorCode::DeliveryUnknown);
    assert_eq!(world.letters("b"), 0);
    world.audit("t");
}

#[test]
fn a_session_that_breaks_after_the_answer_gets_the_delivery_again() {
    let mut world = World::with(&["a", "b"]);
    let mut b = world.connect("b");
    let handoff = world.send(world.request("a", "b", 1)).unwrap().handoff_id;
    b.delivery();
    world.send(world.accept("b", "a", &handoff, 1)).unwrap();
    world.disconnect(b);
    world.restart();
    let mut b = world.connect("b");
    world.take_and_ack(&mut b);
    assert_eq!(world.letters("b"), 0);
    world.audit("t");
}

#[test]
fn a_refused_answer_leaves_the_offer() {
    let mut world = World::with(&["a", "person"]);
    let handoff = world.send(world.request("a", "person", 1)).unwrap().handoff_id;
    assert_refused(world.send(world.accept("person", "a", &handoff, 2)), ErrorCode::EpochAhead);
    assert_eq!(world.letters("person"), 1);
}

/// Thirty requests end while their worker is away. When it comes back it finds none of them.
#[test]
fn a_worker_that_comes_back_finds_no_request_that_has_ended() {
    let mut world = World::with(&["a", "b"]);
    for number in 0..30 {
        let task = format!("t-{number}");
        let request = v1::Envelope { task_id: task.clone(), ..world.request("a", "b", 1) };
        let handoff = world.send(request).unwrap().handoff_id;
        if number % 2 == 0 {
            let cancel = v1::Envelope { task_id: task, ..world.cancel("a", "b", &handoff, 1) };
            world.send(cancel).unwrap();
        }
    }
    assert_eq!(world.letters("b"), 15);
    world.pass(Duration::from_secs(361));
    assert_eq!(world.letters("b"), 0, "neither the requests nor a word about them");
    let mut b = world.connect("b");
    assert!(b.deliveries().is_empty());
    world.pass(DAYS);
    let untaken: Vec<_> = world.dead_letters().into_iter().filter(|dead| dead.agent.as_str() == "b").collect();
    assert_eq!(untaken.len(), 15, "each request that no agent took is one dead letter");
    assert!(untaken.iter().all(|dead| dead.reason == ParkReason::AcceptTimeout));
    world.audit("t-0");
    world.audit("t-1");
}

#[test]
fn a_request_in_flight_is_withdrawn_and_its_agent_is_told() {
    let mut world = World::with(&["a", "b"]);
    let mut b = world.connect("b");
    let handoff = world.send(world.request("a", "b", 1)).unwrap().handoff_id;
    let (delivery, _) = b.delivery();
    world.send(world.cancel("a", "b", &handoff, 1)).unwrap();
    assert_refused(world.acknowledge(&b, &delivery, Fate::Acked), ErrorCode::DeliveryUnknown);
    assert_eq!(world.take_and_ack(&mut b).message_type(), MessageType::HandoffCancel);
    assert_eq!((world.letters("b"), world.dead_letters().len()), (0, 0));
    world.audit("t");
}

#[test]
fn a_request_that_another_agent_got_is_not_delivered_to_the_one_that_was_gone() {
    let mut world = World::with(&["a", "b", "c"]);
    let (mut b, mut c) = (world.connect("b"), world.connect("c"));
    world.heartbeat(&b);
    let fallback_candidates = vec!["c".to_owned()];
    let payload = v1::HandoffRequest { task_type: "x".into(), fallback_candidates, ..Default::default() };
    world.disconnect(b);
    let handoff = world.send(world.request_with("a", "b", 1, &payload)).unwrap().handoff_id;
    for _ in 0..7 {
        world.heartbeat(&c);
        world.pass(Duration::from_secs(10));
    }
    assert_eq!(world.handoff(&handoff).candidate.as_str(), "c");
    assert_eq!(world.letters("b"), 0);
    b = world.connect("b");
    assert!(b.deliveries().is_empty());
    world.take_and_ack(&mut c);
    world.audit("t");
}

#[test]
fn a_context_that_nobody_took_goes_with_its_handoff() {
    let mut world = World::with(&["a", "b"]);
    let mut b = world.connect("b");
    let handoff = world.send(world.request("a", "b", 1)).unwrap().handoff_id;
    world.take_and_ack(&mut b);
    world.send(world.accept("b", "a", &handoff, 1)).unwrap();
    world.disconnect(b);
    world.send(world.context("a", "b", &handoff, 1)).unwrap();
    assert_eq!(world.letters("b"), 1);
    world.pass(Duration::from_secs(121));
    assert_eq!(world.handoff(&handoff).state, State::Failed);
    let told = world.connect("b").deliveries().into_iter().map(|(_, envelope)| envelope.message_type());
    assert_eq!(told.collect::<Vec<_>>(), [], "the context was never seen, and there is nothing to drop");
    world.audit("t");
}

#[test]
fn a_question_that_has_ended_is_withdrawn() {
    let mut world = World::with(&["a", "b", "person"]);
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));
    world.hand_over(&mut a, &mut b, 1);
    let due = Some(world.now.plus(Duration::from_secs(60)).into());
    let prompt = |due| v1::TaskPrompt {
        question: "may I?".into(),
        answer_by: "person".into(),
        answer_before: due,
        ..Default::default()
    };
    let ask = |world: &mut World, due| {
        let status = TaskStatus::WaitingForInput.into();
        let payload = v1::TaskStatusUpdate { status, prompt: Some(prompt(due)), ..Default::default() };
        let envelope = world.envelope("b", "", MessageType::TaskStatusUpdate, &payload);
        world.send(v1::Envelope { task_id: "t".into(), epoch: 2, ..envelope }).unwrap();
    };
    ask(&mut world, due);
    assert_eq!(world.letters("person"), 1);
    world.pass(Duration::from_secs(61));
    assert_eq!(world.letters("person"), 0, "its time is over");
    ask(&mut world, None);
    world.send(world.status("b", "", 2, TaskStatus::InProgress)).unwrap();
    assert_eq!(world.letters("person"), 0, "its owner has gone on");
    ask(&mut world, None);
    world.send(world.status("b", "", 2, TaskStatus::Completed)).unwrap();
    assert_eq!(world.letters("person"), 0, "its task has ended");
    world.pass(DAYS);
    assert_eq!(world.dead_letters_of("person"), []);
    world.audit("t");
}

//! Mail that its agent has answered without fetching it: no dead letter of it arises.

use std::time::Duration;

use baton_broker_core::{
    codes::ErrorCode,
    domain::handoff::State,
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
    let input = v1::TaskInput { text: "yes".into(), data: None };
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

//! Several processes of one agent in negotiations and plans: counter-offers, awards and closes go to the process that made
//! the offer, and the notices about a plan to the one that submitted it.

use std::time::Duration;

use baton_broker_core::{
    domain::mailbox::PROCESS_GRACE,
    ids::InstanceId,
    proto::v1::{self, MessageType},
};

use crate::world::{Session, World};

/// A process that gets what any process may get: it comes first.
const P: InstanceId = InstanceId::from_bytes([1; 16]);
const Q: InstanceId = InstanceId::from_bytes([2; 16]);

fn offered(confidence: f64, round: u32) -> v1::TaskOffer {
    v1::TaskOffer { confidence, round, ..Default::default() }
}

fn terms() -> v1::HandoffRequest {
    v1::HandoffRequest { task_type: "report".into(), ..Default::default() }
}

/// `a` asks the two bidders `b`, which has the processes `P` and `Q`, and `c`.
struct Bidding {
    world: World,
    p: Session,
    q: Session,
    c: Session,
    negotiation: String,
}

impl Bidding {
    fn new() -> Self {
        Self::with(&v1::TaskRequest::default(), "")
    }

    /// With the request of a task, or of none if the id is empty.
    fn with(request: &v1::TaskRequest, task: &str) -> Self {
        let mut world = World::with(&["a", "b:analyst", "c:analyst"]);
        let (mut p, q) = (world.connect_process("b", P), world.connect_process("b", Q));
        let mut c = world.connect("c");
        let asked = world.envelope("a", "all:analyst", MessageType::TaskRequest, request);
        let epoch = u64::from(!task.is_empty());
        let asked = v1::Envelope { task_id: task.into(), epoch, ..asked };
        let negotiation = world.send(asked).unwrap().message_id;
        for session in [&mut p, &mut c] {
            assert_eq!(world.take_and_ack(session).message_type(), MessageType::TaskRequest);
        }
        Self { world, p, q, c, negotiation }
    }

    fn about(&self, envelope: v1::Envelope) -> v1::Envelope {
        v1::Envelope { correlation_id: self.negotiation.clone(), ..envelope }
    }

    /// The offer of a process of `b`.
    fn offer(&mut self, process: InstanceId, offer: &v1::TaskOffer) -> String {
        let envelope = self.about(self.world.envelope("b", "a", MessageType::TaskOffer, offer));
        self.world.send_from(process, envelope).unwrap().message_id
    }

    /// Sends a message of `a`.
    fn tell<M: prost::Message + prost::Name>(&mut self, to: &str, kind: MessageType, payload: &M) {
        let envelope = self.about(self.world.envelope("a", to, kind, payload));
        self.world.send(envelope).unwrap();
    }

    fn award(&mut self, to: &str, offer: &str) {
        let payload = v1::TaskAccept { offer_id: offer.into(), ..Default::default() };
        self.tell(to, MessageType::TaskAccept, &payload);
    }

    /// Awards the new task "t" to `b`.
    fn award_task(&mut self, offer: &str) {
        let payload = v1::TaskAccept { offer_id: offer.into(), handoff: Some(terms()), ..Default::default() };
        let envelope = self.about(self.world.envelope("a", "b", MessageType::TaskAccept, &payload));
        let envelope = v1::Envelope { task_id: "t".into(), epoch: 1, ..envelope };
        self.world.send(envelope).unwrap();
    }

    fn is_for_q(&mut self, kind: MessageType) -> v1::Envelope {
        assert!(self.p.deliveries().is_empty(), "{kind:?} belongs to the other process");
        let taken = self.world.take_and_ack(&mut self.q);
        assert_eq!(taken.message_type(), kind);
        taken
    }
}

#[test]
fn a_counter_offer_and_the_award_go_to_the_process_that_made_the_offer() {
    let mut bidding = Bidding::new();
    bidding.offer(Q, &offered(0.5, 0));
    bidding.tell("b", MessageType::TaskOffer, &offered(0.5, 1));
    bidding.is_for_q(MessageType::TaskOffer);
    let offer = bidding.offer(Q, &offered(0.5, 1));
    bidding.award("b", &offer);
    bidding.is_for_q(MessageType::TaskAccept);
}

#[test]
fn a_decline_goes_to_the_process_that_made_the_offer() {
    let mut bidding = Bidding::new();
    bidding.offer(Q, &offered(0.5, 0));
    bidding.tell("b", MessageType::TaskDecline, &v1::TaskDecline::default());
    bidding.is_for_q(MessageType::TaskDecline);
}

#[test]
fn the_close_goes_to_the_process_that_made_the_offer_that_lost() {
    let mut bidding = Bidding::new();
    bidding.offer(Q, &offered(0.5, 0));
    let won = bidding.about(bidding.world.envelope("c", "a", MessageType::TaskOffer, &offered(0.9, 0)));
    let won = bidding.world.send(won).unwrap().message_id;
    bidding.award("c", &won);
    bidding.is_for_q(MessageType::NegotiationClosed);
    assert_eq!(bidding.world.take_and_ack(&mut bidding.c).message_type(), MessageType::TaskAccept);
}

#[test]
fn the_process_of_the_latest_offer_counts() {
    let mut bidding = Bidding::new();
    bidding.offer(P, &offered(0.5, 0));
    bidding.tell("b", MessageType::TaskOffer, &offered(0.5, 1));
    assert_eq!(bidding.world.take_and_ack(&mut bidding.p).message_type(), MessageType::TaskOffer);
    let offer = bidding.offer(Q, &offered(0.5, 1));
    bidding.award("b", &offer);
    bidding.is_for_q(MessageType::TaskAccept);
}

#[test]
fn an_award_with_a_task_is_offered_to_the_process_that_made_the_offer() {
    let mut bidding = Bidding::new();
    let offer = bidding.offer(Q, &offered(0.5, 0));
    bidding.award_task(&offer);
    bidding.is_for_q(MessageType::TaskAccept);
}

#[test]
fn an_award_by_the_rule_is_offered_to_the_process_that_made_the_offer() {
    let request = v1::TaskRequest {
        handoff: Some(terms()),
        award_rule: v1::AwardRule::HighestConfidence.into(),
        offers_wanted: 1,
        ..Default::default()
    };
    let mut bidding = Bidding::with(&request, "t");
    bidding.offer(Q, &offered(0.5, 0));
    bidding.is_for_q(MessageType::NegotiationClosed);
}

#[test]
fn the_answer_to_an_award_by_the_rule_goes_to_the_process_that_asked_for_offers() {
    let mut world = World::with(&["a", "b:analyst"]);
    let (mut p, mut q) = (world.connect_process("a", P), world.connect_process("a", Q));
    let mut b = world.connect("b");
    let rule = v1::AwardRule::HighestConfidence.into();
    let request = v1::TaskRequest { handoff: Some(terms()), award_rule: rule, offers_wanted: 1, ..Default::default() };
    let asked = world.envelope("a", "all:analyst", MessageType::TaskRequest, &request);
    let asked = v1::Envelope { task_id: "t".into(), epoch: 1, ..asked };
    let negotiation = world.send_from(Q, asked).unwrap().message_id;
    let offer = world.envelope("b", "a", MessageType::TaskOffer, &offered(0.5, 0));
    world.send(v1::Envelope { correlation_id: negotiation.clone(), ..offer }).unwrap();
    for (delivery, _) in b.deliveries() {
        world.ack(&b, &delivery);
    }
    world.send(world.accept("b", "a", &negotiation, 1)).unwrap();
    let to_q: Vec<_> = q.deliveries().iter().map(|(_, envelope)| envelope.message_type()).collect();
    for kind in [MessageType::TaskOffer, MessageType::NegotiationClosed, MessageType::HandoffAccept] {
        assert!(to_q.contains(&kind), "{kind:?} of {to_q:?}");
    }
    assert!(p.deliveries().is_empty());
}

#[test]
fn an_award_for_a_process_that_is_gone_goes_to_another() {
    let mut bidding = Bidding::new();
    let offer = bidding.offer(Q, &offered(0.5, 0));
    bidding.world.disconnect(bidding.q);
    let award = v1::TaskAccept { offer_id: offer, ..Default::default() };
    let award = bidding.world.envelope("a", "b", MessageType::TaskAccept, &award);
    bidding.world.send(v1::Envelope { correlation_id: bidding.negotiation, ..award }).unwrap();
    assert!(bidding.p.deliveries().is_empty(), "the process has the time to come back");
    bidding.world.pass(PROCESS_GRACE + Duration::from_millis(1));
    assert_eq!(bidding.world.take_and_ack(&mut bidding.p).message_type(), MessageType::TaskAccept);
}

#[test]
fn a_restart_of_the_broker_loses_no_process_of_a_bidder() {
    let mut bidding = Bidding::new();
    let offer = bidding.offer(Q, &offered(0.5, 0));
    bidding.world.restart();
    bidding.p = bidding.world.connect_process("b", P);
    bidding.q = bidding.world.connect_process("b", Q);
    bidding.award("b", &offer);
    bidding.is_for_q(MessageType::TaskAccept);
}

#[test]
fn a_later_request_for_offers_is_new_work_for_any_process() {
    let mut bidding = Bidding::new();
    let offer = bidding.offer(Q, &offered(0.5, 0));
    bidding.award_task(&offer);
    bidding.is_for_q(MessageType::TaskAccept);
    let asked = bidding.world.envelope("a", "b", MessageType::TaskRequest, &v1::TaskRequest::default());
    bidding.world.send(v1::Envelope { task_id: "t".into(), epoch: 1, ..asked }).unwrap();
    assert_eq!(bidding.world.take_and_ack(&mut bidding.p).message_type(), MessageType::TaskRequest);
}

/// The processes of an agent after `Q` has submitted a plan, `Q` perhaps having gone, and the only worker has refused its
/// part, so that the plan has failed.
fn failed_plan(is_gone: bool) -> (World, Session, Option<Session>) {
    let mut world = World::with(&["a", "b:worker"]);
    let (p, q) = (world.connect_process("a", P), world.connect_process("a", Q));
    let subtask = v1::Subtask {
        id: "only".into(),
        description: "a part".into(),
        agent_type: "worker".into(),
        attempts_max: 1,
        ..Default::default()
    };
    let plan = v1::Plan {
        plan_id: "q3".into(),
        description: "a report".into(),
        subtasks: vec![subtask],
        ..Default::default()
    };
    let submission = v1::PlanSubmission { plan: Some(plan), ..Default::default() };
    world.send_from(Q, world.envelope("a", "", MessageType::PlanSubmission, &submission)).unwrap();
    let q = match is_gone {
        true => {
            world.disconnect(q);
            None
        }
        false => Some(q),
    };
    let mut b = world.connect("b");
    let offer = world.take_and_ack(&mut b);
    let reject = world.reject("b", "baton.coordinator", &offer.message_id, &[]);
    world.send(v1::Envelope { task_id: offer.task_id, ..reject }).unwrap();
    world.settle();
    (world, p, q)
}

#[test]
fn the_notice_of_a_failed_plan_goes_to_the_process_that_submitted_it() {
    let (mut world, mut p, q) = failed_plan(false);
    assert!(p.deliveries().is_empty(), "the plan is of the other process");
    assert_eq!(world.take_and_ack(&mut q.unwrap()).message_type(), MessageType::ErrorNotification);
}

#[test]
fn the_notice_of_a_failed_plan_goes_to_another_process_if_its_own_is_gone() {
    let (mut world, mut p, _) = failed_plan(true);
    world.pass(PROCESS_GRACE + Duration::from_millis(1));
    assert_eq!(world.take_and_ack(&mut p).message_type(), MessageType::ErrorNotification);
}

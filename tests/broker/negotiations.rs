//! Negotiations through the pipeline: offers, counter-offers, awards with and without a task, notices, restarts.

use std::{sync::Arc, time::Duration};

use baton_broker_core::{
    Settings,
    access::Caller,
    codes::ErrorCode,
    domain::{
        handoff::State as HandoffState,
        negotiation::{Negotiation, State, ThreadState},
    },
    engine::Command,
    ids::{AgentId, MessageId},
    proto::v1::{self, MessageType, NegotiationState},
    queries::{NegotiationFilter, TaskFilter},
    store::Table,
};
use prost::Message as _;

use crate::world::{Refusal, Session, World, assert_refused, operator};

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(24 * 3600);

fn terms() -> v1::HandoffRequest {
    v1::HandoffRequest { task_type: "report".into(), ..Default::default() }
}

fn by_rule(rule: v1::AwardRule) -> v1::TaskRequest {
    v1::TaskRequest { award_rule: rule.into(), ..Default::default() }
}

fn mandate(rule: v1::AwardRule) -> v1::TaskRequest {
    v1::TaskRequest { handoff: Some(terms()), ..by_rule(rule) }
}

fn confident(confidence: f64) -> v1::TaskOffer {
    v1::TaskOffer { confidence, ..Default::default() }
}

impl World {
    /// Asks all analysts for offers. Returns the id of the negotiation.
    fn negotiate(&mut self, request: &v1::TaskRequest) -> String {
        self.try_negotiate("all:analyst", request, "").unwrap()
    }

    /// Asks for offers for a task, or for none if the id is empty.
    fn try_negotiate(&mut self, to: &str, request: &v1::TaskRequest, task: &str) -> Result<String, Refusal> {
        let envelope = self.envelope("alice", to, MessageType::TaskRequest, request);
        let epoch = u64::from(!task.is_empty());
        let envelope = v1::Envelope { task_id: task.into(), epoch, ..envelope };
        self.send(envelope).map(|receipt| receipt.message_id)
    }

    fn offer(&mut self, from: &str, about: &str, offer: &v1::TaskOffer) -> Result<String, Refusal> {
        self.offer_to(from, "alice", about, offer)
    }

    fn offer_to(&mut self, from: &str, to: &str, about: &str, offer: &v1::TaskOffer) -> Result<String, Refusal> {
        let envelope = self.envelope(from, to, MessageType::TaskOffer, offer);
        self.send(v1::Envelope { correlation_id: about.into(), ..envelope }).map(|receipt| receipt.message_id)
    }

    fn decline(&mut self, from: &str, to: &str, about: &str) -> Result<v1::Receipt, Refusal> {
        let envelope = self.envelope(from, to, MessageType::TaskDecline, &v1::TaskDecline::default());
        self.send(v1::Envelope { correlation_id: about.into(), ..envelope })
    }

    fn award(&mut self, to: &str, about: &str, offer: &str) -> Result<v1::Receipt, Refusal> {
        self.award_by("alice", to, about, offer)
    }

    fn award_by(&mut self, from: &str, to: &str, about: &str, offer: &str) -> Result<v1::Receipt, Refusal> {
        let payload = v1::TaskAccept { offer_id: offer.into(), ..Default::default() };
        let envelope = self.envelope(from, to, MessageType::TaskAccept, &payload);
        self.send(v1::Envelope { correlation_id: about.into(), ..envelope })
    }

    /// Awards task "t" at this epoch.
    fn award_task(
        &mut self,
        to: &str,
        about: &str,
        offer: &str,
        (epoch, fallbacks): (u64, &[&str]),
    ) -> Result<v1::Receipt, Refusal> {
        let fallback_candidates = fallbacks.iter().map(ToString::to_string).collect();
        let terms = v1::HandoffRequest { fallback_candidates, ..terms() };
        self.award_task_with(to, about, offer, epoch, terms)
    }

    /// Awards task "t" under these terms.
    fn award_task_with(
        &mut self,
        to: &str,
        about: &str,
        offer: &str,
        epoch: u64,
        terms: v1::HandoffRequest,
    ) -> Result<v1::Receipt, Refusal> {
        let payload = v1::TaskAccept { offer_id: offer.into(), handoff: Some(terms), ..Default::default() };
        let envelope = self.envelope("alice", to, MessageType::TaskAccept, &payload);
        self.send(v1::Envelope { correlation_id: about.into(), task_id: "t".into(), epoch, ..envelope })
    }

    fn answer_handoff<M: prost::Message + prost::Name>(
        &mut self,
        from: &str,
        handoff: &str,
        kind: MessageType,
        payload: &M,
    ) -> Result<v1::Receipt, Refusal> {
        let envelope = self.envelope(from, "alice", kind, payload);
        self.send(v1::Envelope { correlation_id: handoff.into(), task_id: "t".into(), epoch: 1, ..envelope })
    }

    fn take(&mut self, from: &str, handoff: &str) -> Result<v1::Receipt, Refusal> {
        self.answer_handoff(from, handoff, MessageType::HandoffAccept, &v1::HandoffAccept::default())
    }

    fn turn_down(&mut self, from: &str, handoff: &str) -> Result<v1::Receipt, Refusal> {
        self.answer_handoff(from, handoff, MessageType::HandoffReject, &v1::HandoffReject::default())
    }

    fn negotiation(&self, id: &str) -> Arc<Negotiation> {
        self.view(&operator()).negotiation(MessageId::parse(id).unwrap()).expect("the negotiation is known")
    }

    fn bid_state(&self, id: &str, agent: &str) -> ThreadState {
        self.negotiation(id).thread(&AgentId::parse(agent).unwrap()).expect("the agent was asked").state
    }

    fn cancel_negotiation(&mut self, by: &str, id: &str) -> Result<Arc<Negotiation>, Refusal> {
        let (negotiation, caller) = (MessageId::parse(id).unwrap(), Caller::Agent(AgentId::parse(by).unwrap()));
        self.ask(|reply| Command::CancelNegotiation { negotiation, caller, reply })
    }
}

/// Acks all mail, and returns the types with their envelopes.
fn mail(world: &mut World, session: &mut Session) -> Vec<(MessageType, v1::Envelope)> {
    let deliveries = session.deliveries();
    for (delivery, _) in &deliveries {
        world.ack(session, delivery);
    }
    deliveries.into_iter().map(|(_, envelope)| (envelope.message_type(), envelope)).collect()
}

fn closed(envelope: &v1::Envelope) -> v1::NegotiationClosed {
    assert_eq!(envelope.message_type(), MessageType::NegotiationClosed);
    v1::NegotiationClosed::decode(envelope.payload.as_ref().unwrap().value.clone()).unwrap()
}

/// The only award in this mail.
fn award_in(mail: &[(MessageType, v1::Envelope)]) -> v1::NegotiationClosed {
    let awards: Vec<_> = mail.iter().filter(|(kind, _)| *kind == MessageType::NegotiationClosed).collect();
    assert_eq!(awards.len(), 1, "{mail:?}");
    closed(&awards[0].1)
}

/// How the only piece of mail says that the negotiation ended: its state and the winner.
fn told(world: &mut World, session: &mut Session) -> (NegotiationState, String) {
    let mail = mail(world, session);
    assert_eq!(mail.len(), 1, "{mail:?}");
    let closed = closed(&mail[0].1);
    (closed.state(), closed.winner_id)
}

fn notices(mail: &[(MessageType, v1::Envelope)]) -> Vec<v1::ErrorCode> {
    let notices = mail.iter().filter(|(kind, _)| *kind == MessageType::ErrorNotification);
    let code = |envelope: &v1::Envelope| {
        v1::ErrorNotification::decode(envelope.payload.as_ref().unwrap().value.clone()).unwrap().error_code()
    };
    notices.map(|(_, envelope)| code(envelope)).collect()
}

fn analysts() -> World {
    World::with(&["alice", "bob:analyst", "carol:analyst", "dave:analyst", "mallory"])
}

// ---------------------------------------------------------------------------------------------------------------- mail

#[test]
fn a_request_reaches_all_of_its_type_and_offers_reach_the_requester() {
    let mut world = analysts();
    let (mut alice, mut bob) = (world.connect("alice"), world.connect("bob"));
    let id = world.negotiate(&v1::TaskRequest::default());
    assert_eq!(mail(&mut world, &mut bob)[0].1.message_id, id);
    let offer = world.offer("bob", &id, &confident(0.5)).unwrap();
    assert_eq!(mail(&mut world, &mut alice)[0].1.message_id, offer);
    assert_eq!(
        (world.bid_state(&id, "bob"), world.bid_state(&id, "carol")),
        (ThreadState::Offered, ThreadState::Asked)
    );
}

#[test]
fn an_accept_without_a_task_is_mail_and_the_other_bidders_are_told_once() {
    let mut world = analysts();
    let (mut bob, mut carol, mut dave) = (world.connect("bob"), world.connect("carol"), world.connect("dave"));
    let id = world.negotiate(&v1::TaskRequest::default());
    for session in [&mut bob, &mut carol, &mut dave] {
        mail(&mut world, session);
    }
    let offer = world.offer("bob", &id, &confident(0.5)).unwrap();
    world.offer("carol", &id, &confident(0.5)).unwrap();
    world.award("bob", &id, &offer).unwrap();
    assert_eq!(world.negotiation(&id).state, State::Settled);
    assert_eq!(mail(&mut world, &mut bob)[0].0, MessageType::TaskAccept);
    assert_eq!(told(&mut world, &mut carol), (NegotiationState::Settled, "bob".into()));
    assert_eq!(mail(&mut world, &mut dave), [], "dave made no offer");
    world.restart();
    world.pass(100 * SECOND);
    assert_eq!(mail(&mut world, &mut carol), []);
    assert_refused(world.award("bob", &id, &offer), ErrorCode::NegotiationClosed);
}

#[test]
fn bids_of_others_are_seen_by_the_requester_and_operators_alone() {
    let mut world = analysts();
    let id = world.negotiate(&v1::TaskRequest::default());
    let id = MessageId::parse(&id).unwrap();
    let by = |name: &str| Caller::Agent(AgentId::parse(name).unwrap());
    assert!(world.view(&by("bob")).negotiation(id).is_ok());
    let hidden = world.view(&by("mallory")).negotiation(id).unwrap_err();
    assert_eq!(baton_broker_core::codes::Refusal::code(&hidden), ErrorCode::PermissionDenied);
    let listed =
        |caller: &Caller| world.view(caller).negotiations(&NegotiationFilter::default(), 10, "").unwrap().entries.len();
    assert_eq!((listed(&by("alice")), listed(&by("bob")), listed(&operator())), (1, 0, 1), "bob made no offer");
}

// ----------------------------------------------------------------------------------------------------------- refusals

#[test]
fn bad_input_is_refused_and_changes_nothing() {
    let mut world = analysts();
    let id = world.negotiate(&v1::TaskRequest::default());
    let offer = world.offer("bob", &id, &confident(0.5)).unwrap();
    let before = world.negotiation(&id);
    let unknown = "0198c0de-0000-7000-8000-000000000001";
    for (outcome, code) in [
        (world.offer("mallory", &id, &confident(0.5)), ErrorCode::NotAsked),
        (world.offer("carol", unknown, &confident(0.5)), ErrorCode::NegotiationUnknown),
        (world.offer("carol", "", &confident(0.5)), ErrorCode::FieldInvalid),
        (world.offer("carol", &id, &confident(f64::NAN)), ErrorCode::FieldInvalid),
        (world.offer("carol", &id, &confident(1.1)), ErrorCode::FieldInvalid),
        (world.offer("carol", &id, &v1::TaskOffer { round: 4, ..confident(0.5) }), ErrorCode::RoundLimit),
        (world.offer("carol", &id, &v1::TaskOffer { round: 1, ..confident(0.5) }), ErrorCode::FieldInvalid),
        (world.offer("bob", &id, &confident(0.5)), ErrorCode::OfferNotStanding),
        (world.offer_to("bob", "carol", &id, &confident(0.5)), ErrorCode::FieldInvalid),
        (world.offer_to("alice", "carol", &id, &confident(0.5)), ErrorCode::OfferNotStanding),
    ] {
        assert_refused(outcome, code);
    }
    for (outcome, code) in [
        (world.award_by("mallory", "bob", &id, &offer), ErrorCode::NotAsked),
        (world.award_by("carol", "bob", &id, &offer), ErrorCode::NotAsked),
        (world.award("carol", &id, &offer), ErrorCode::OfferUnknown),
        (world.award("bob", &id, unknown), ErrorCode::OfferNotStanding),
        (world.award("bob", unknown, &offer), ErrorCode::NegotiationUnknown),
        (world.decline("mallory", "alice", &id), ErrorCode::NotAsked),
    ] {
        assert_refused(outcome, code);
    }
    let by_mallory = world.cancel_negotiation("mallory", &id).unwrap_err().0;
    assert_eq!(by_mallory, ErrorCode::PermissionDenied);
    assert_refused(world.cancel_negotiation("bob", &id), ErrorCode::NotAsked);
    let forged = v1::NegotiationClosed { negotiation_id: id.clone(), ..Default::default() };
    let forged = world.envelope("mallory", "bob", MessageType::NegotiationClosed, &forged);
    let forged = v1::Envelope { correlation_id: id.clone(), ..forged };
    assert_refused(world.send(forged), ErrorCode::FieldInvalid);
    assert_eq!(world.negotiation(&id), before);
}

#[test]
fn a_request_with_bad_terms_is_refused() {
    let mut world = analysts();
    let at = |world: &World, seconds: i64| {
        let (now, nanos) = world.now.to_parts();
        Some(prost_types::Timestamp { seconds: now + seconds, nanos })
    };
    for seconds in [-1, 0, 3601] {
        let request = v1::TaskRequest { offers_deadline: at(&world, seconds), ..Default::default() };
        assert_refused(world.try_negotiate("all:analyst", &request, ""), ErrorCode::FieldInvalid);
    }
    let plain = v1::TaskRequest::default();
    assert_refused(world.try_negotiate("all:unknown", &plain, ""), ErrorCode::ReceiverUnknown);
    let skilled = v1::TaskRequest { required_skills: vec!["tax".into()], ..Default::default() };
    assert_refused(world.try_negotiate("all:analyst", &skilled, ""), ErrorCode::ReceiverUnknown);
    let mandate = mandate(v1::AwardRule::Soonest);
    assert_refused(world.try_negotiate("all:analyst", &mandate, ""), ErrorCode::FieldInvalid);
    let timeout = Some(prost_types::Duration { seconds: 5, nanos: 0 });
    let decides = v1::TaskRequest { decision_timeout: timeout, ..by_rule(v1::AwardRule::Soonest) };
    assert_refused(world.try_negotiate("all:analyst", &decides, ""), ErrorCode::FieldInvalid);
    let with_fallback = Some(v1::HandoffRequest { fallback_candidates: vec!["mallory".into()], ..terms() });
    let request = v1::TaskRequest { handoff: with_fallback, ..by_rule(v1::AwardRule::Soonest) };
    assert_refused(world.try_negotiate("all:analyst", &request, "t"), ErrorCode::FieldInvalid);
}

#[test]
fn a_thousand_and_one_agents_are_too_many() {
    let names: Vec<String> = (0..1001).map(|number| format!("a{number}:analyst")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).chain(["alice"]).collect();
    let mut world = World::with(&names);
    let request = v1::TaskRequest::default();
    assert_refused(world.try_negotiate("all:analyst", &request, ""), ErrorCode::ReceiverInvalid);
    assert_eq!(world.engine.open_handoffs(), 0);
}

#[test]
fn a_mandate_with_a_stale_epoch_or_of_a_stranger_is_refused() {
    let mut world = analysts();
    let (mut alice, mut bob) = (world.connect("alice"), world.connect("bob"));
    world.hand_over(&mut alice, &mut bob, 1);
    let mandate = mandate(v1::AwardRule::Soonest);
    assert_refused(world.try_negotiate("all:analyst", &mandate, "t"), ErrorCode::StaleEpoch);
    let ahead = world.envelope("alice", "all:analyst", MessageType::TaskRequest, &mandate);
    assert_refused(world.send(v1::Envelope { task_id: "new".into(), epoch: 2, ..ahead }), ErrorCode::EpochAhead);
    // A stranger learns neither the owner nor the end nor the removal of the task.
    world.send(world.status("bob", "", 2, v1::TaskStatus::Completed)).unwrap();
    for days in [0, 31] {
        world.pass(days * DAY);
        let by_mallory = world.envelope("mallory", "all:analyst", MessageType::TaskRequest, &mandate);
        let by_mallory = v1::Envelope { task_id: "t".into(), epoch: 2, ..by_mallory };
        let refusal = assert_refused(world.send(by_mallory), ErrorCode::NotOwner);
        assert_eq!(refusal.metadata(), []);
        assert!(!refusal.to_string().contains("bob"), "{refusal}");
        assert_refused(world.try_negotiate("all:analyst", &mandate, "t"), ErrorCode::StaleEpoch);
        let by_bob = world.envelope("bob", "all:analyst", MessageType::TaskRequest, &mandate);
        let by_bob = v1::Envelope { task_id: "t".into(), epoch: 2, ..by_bob };
        assert_refused(world.send(by_bob), ErrorCode::TaskFinal);
    }
}

#[test]
fn open_negotiations_of_one_agent_are_bounded_also_over_a_restart() {
    let mut settings = Settings::default();
    settings.limits.open_negotiations_max = 2;
    let mut world = World::with_settings(&["alice", "bob:analyst"], settings);
    let first = world.negotiate(&v1::TaskRequest::default());
    world.negotiate(&v1::TaskRequest::default());
    let request = v1::TaskRequest::default();
    assert_refused(world.try_negotiate("all:analyst", &request, ""), ErrorCode::LimitExceeded);
    world.restart();
    assert_refused(world.try_negotiate("all:analyst", &request, ""), ErrorCode::LimitExceeded);
    world.cancel_negotiation("alice", &first).unwrap();
    world.negotiate(&request);
}

// -------------------------------------------------------------------------------------------------------------- close

#[test]
fn an_offer_after_the_close_is_refused_also_before_the_timer_fires() {
    let mut world = analysts();
    let id = world.negotiate(&v1::TaskRequest::default());
    world.now = world.now.plus(30 * SECOND); // no tick yet
    assert_refused(world.offer("bob", &id, &confident(0.5)), ErrorCode::NegotiationClosed);
    assert_eq!(world.negotiation(&id).state, State::Failed);
}

#[test]
fn without_an_offer_the_requester_gets_no_offer() {
    let mut world = analysts();
    let mut alice = world.connect("alice");
    let id = world.negotiate(&v1::TaskRequest::default());
    world.pass(30 * SECOND);
    assert_eq!(notices(&mail(&mut world, &mut alice)), [v1::ErrorCode::NoOffer]);
    assert_eq!(world.negotiation(&id).state, State::Failed);
}

#[test]
fn without_a_decision_the_negotiation_expires_and_all_are_told() {
    let mut world = analysts();
    let (mut alice, mut bob) = (world.connect("alice"), world.connect("bob"));
    let id = world.negotiate(&v1::TaskRequest::default());
    world.offer("bob", &id, &confident(0.5)).unwrap();
    mail(&mut world, &mut alice);
    mail(&mut world, &mut bob);
    world.pass(30 * SECOND);
    assert_eq!(told(&mut world, &mut alice).0, NegotiationState::Deciding);
    world.restart();
    world.pass(60 * SECOND);
    let (mut alice, mut bob) = (world.connect("alice"), world.connect("bob"));
    assert_eq!(notices(&mail(&mut world, &mut alice)), [v1::ErrorCode::NegotiationExpired]);
    assert_eq!(told(&mut world, &mut bob), (NegotiationState::Failed, String::new()));
    assert_eq!(world.negotiation(&id).failure.as_ref().unwrap().code, ErrorCode::NegotiationExpired);
}

#[test]
fn a_request_that_was_never_fetched_is_withdrawn_and_is_no_dead_letter() {
    let mut world = analysts();
    let mut bob = world.connect("bob");
    let id = world.negotiate(&v1::TaskRequest { offers_wanted: 1, ..Default::default() });
    mail(&mut world, &mut bob);
    let (dave, _held) = {
        let mut dave = world.connect("dave");
        let held = dave.deliveries();
        (dave, held)
    };
    world.offer("bob", &id, &confident(0.5)).unwrap();
    assert_eq!(world.bid_state(&id, "carol"), ThreadState::NotReached);
    assert_eq!(world.bid_state(&id, "dave"), ThreadState::Asked, "dave holds the request");
    let mut carol = world.connect("carol");
    assert_eq!(mail(&mut world, &mut carol), []);
    assert!(world.dead_letters().is_empty());
    world.disconnect(dave);
    world.restart();
    world.pass(Duration::from_secs(49 * 3600));
    assert!(world.dead_letters().iter().all(|dead| dead.agent.as_str() != "carol"));
}

#[test]
fn requests_that_are_withdrawn_together_leave_no_envelope() {
    for fetches in [0, 1, 3] {
        let mut world = analysts();
        let id = world.negotiate(&v1::TaskRequest::default());
        assert_eq!((world.rows(Table::SharedEnvelopes), world.rows(Table::Envelopes)), (1, 1));
        for bidder in ["bob", "carol", "dave"].iter().take(fetches) {
            let mut session = world.connect(bidder);
            mail(&mut world, &mut session);
        }
        world.cancel_negotiation("alice", &id).unwrap();
        let left = (world.rows(Table::SharedEnvelopes), world.rows(Table::Envelopes));
        assert_eq!(left, (0, 0), "{fetches} of three have fetched the request");
    }
}

#[test]
fn an_operator_sees_the_cancel_of_the_requester_and_bidders_are_told() {
    let mut world = analysts();
    let mut bob = world.connect("bob");
    let id = world.negotiate(&v1::TaskRequest::default());
    world.offer("bob", &id, &confident(0.5)).unwrap();
    mail(&mut world, &mut bob);
    world.cancel_negotiation("alice", &id).unwrap();
    assert_eq!(told(&mut world, &mut bob), (NegotiationState::Cancelled, String::new()));
    assert_refused(world.cancel_negotiation("alice", &id), ErrorCode::NegotiationClosed);
}

// ------------------------------------------------------------------------------------------------------------- awards

#[test]
fn an_accept_with_a_task_is_the_request_of_its_handoff() {
    let mut world = analysts();
    let (mut bob, mut carol) = (world.connect("bob"), world.connect("carol"));
    let id = world.negotiate(&v1::TaskRequest::default());
    let offer = world.offer("bob", &id, &confident(0.5)).unwrap();
    world.offer("carol", &id, &confident(0.5)).unwrap();
    mail(&mut world, &mut bob);
    mail(&mut world, &mut carol);
    let receipt = world.award_task("bob", &id, &offer, (1, &["mallory"])).unwrap();
    assert_eq!((receipt.handoff_id.clone(), receipt.epoch), (receipt.message_id.clone(), 1));
    assert_eq!(world.negotiation(&id).state, State::Awarded);
    assert_eq!(mail(&mut world, &mut bob)[0].0, MessageType::TaskAccept);
    let handoff = world.handoff(&receipt.handoff_id);
    assert_eq!((handoff.candidate.as_str(), handoff.state), ("bob", HandoffState::Deciding));
    world.turn_down("bob", &receipt.handoff_id).unwrap();
    assert_eq!(world.handoff(&receipt.handoff_id).candidate.as_str(), "mallory", "the fallback of the accept");
    world.take("mallory", &receipt.handoff_id).unwrap();
    let settled = world.negotiation(&id);
    assert_eq!((settled.state, settled.winner.as_ref().unwrap().as_str()), (State::Settled, "mallory"));
    assert_eq!(told(&mut world, &mut carol), (NegotiationState::Settled, "mallory".into()));
    world.audit("t");
}

#[test]
fn a_bidder_that_the_award_passes_over_is_told_the_end_once() {
    for fallbacks in [vec!["mallory".to_owned()], Vec::new()] {
        let mut world = analysts();
        world.equip("mallory", &["x"], 0);
        let (mut alice, mut bob) = (world.connect("alice"), world.connect("bob"));
        let id = world.negotiate(&v1::TaskRequest::default());
        let offer = world.offer("bob", &id, &confident(0.5)).unwrap();
        mail(&mut world, &mut alice);
        mail(&mut world, &mut bob);
        let has_fallback = !fallbacks.is_empty();
        let demanding =
            v1::HandoffRequest { required_skills: vec!["x".into()], fallback_candidates: fallbacks, ..terms() };
        let handoff = world.award_task_with("bob", &id, &offer, 1, demanding).unwrap().handoff_id;
        assert!(world.handoff(&handoff).offers[0].passed_over);
        if has_fallback {
            world.take("mallory", &handoff).unwrap();
            assert_eq!(told(&mut world, &mut bob), (NegotiationState::Settled, "mallory".into()));
        } else {
            assert_eq!(told(&mut world, &mut bob).0, NegotiationState::Failed);
            assert_eq!(notices(&mail(&mut world, &mut alice)), [v1::ErrorCode::NoCandidate], "the handoff's own");
        }
        world.restart();
        let mut bob = world.connect("bob");
        assert_eq!(mail(&mut world, &mut bob), []);
        world.audit("t");
    }
}

#[test]
fn an_accept_with_a_stale_epoch_awards_nothing() {
    let mut world = analysts();
    let (mut alice, mut bob) = (world.connect("alice"), world.connect("bob"));
    world.hand_over(&mut alice, &mut bob, 1);
    let id = world.negotiate(&v1::TaskRequest::default());
    let offer = world.offer("bob", &id, &confident(0.5)).unwrap();
    assert_refused(world.award_task("bob", &id, &offer, (1, &[])), ErrorCode::StaleEpoch);
    let open = world.negotiation(&id);
    assert_eq!((open.state, &open.award), (State::Open, &None));
}

#[test]
fn the_rule_awards_at_the_close_and_every_bidder_learns_the_winner() {
    let mut world = analysts();
    let sessions = ["alice", "bob", "carol", "dave"].map(|name| world.connect(name));
    let [mut alice, mut bob, mut carol, mut dave] = sessions;
    let id = world.negotiate(&by_rule(v1::AwardRule::LowestCost));
    for (name, cost) in [("bob", 3.0), ("carol", 2.0)] {
        world.offer(name, &id, &v1::TaskOffer { cost, ..confident(0.5) }).unwrap();
    }
    for session in [&mut alice, &mut bob, &mut carol, &mut dave] {
        mail(&mut world, session);
    }
    world.pass(30 * SECOND);
    for session in [&mut alice, &mut bob, &mut carol] {
        assert_eq!(told(&mut world, session), (NegotiationState::Settled, "carol".into()));
    }
    assert_eq!(mail(&mut world, &mut dave), [], "dave made no offer");
}

#[test]
fn a_bidder_that_has_left_wins_no_award() {
    for is_mandated in [false, true] {
        let mut world = analysts();
        let mut carol = world.connect("carol");
        let rule = v1::AwardRule::HighestConfidence;
        let id = match is_mandated {
            true => world.try_negotiate("all:analyst", &mandate(rule), "t").unwrap(),
            false => world.negotiate(&by_rule(rule)),
        };
        world.offer("bob", &id, &confident(0.9)).unwrap();
        world.offer("carol", &id, &confident(0.5)).unwrap();
        mail(&mut world, &mut carol);
        world.deregister("bob", false).unwrap();
        world.pass(30 * SECOND);
        let closed = world.negotiation(&id);
        assert_eq!(closed.award.as_ref().unwrap().bidder.as_str(), "carol");
        if is_mandated {
            assert_eq!(award_in(&mail(&mut world, &mut carol)).winner_id, "carol");
            world.audit("t");
        }
    }
}

#[test]
fn a_requester_that_has_left_hands_no_task_over() {
    let mut world = analysts();
    let id = world.try_negotiate("all:analyst", &mandate(v1::AwardRule::HighestConfidence), "t").unwrap();
    world.offer("bob", &id, &confident(0.5)).unwrap();
    world.deregister("alice", false).unwrap();
    world.pass(30 * SECOND);
    assert_eq!(world.negotiation(&id).failure.as_ref().unwrap().code, ErrorCode::NoOffer);
    assert_eq!(world.rows(Table::Tasks), 0);
}

/// An award of a mandate that bob, its only bidder, has turned down.
fn turned_down() -> (World, Session, String) {
    let mut world = analysts();
    let mut bob = world.connect("bob");
    let id = world.try_negotiate("all:analyst", &mandate(v1::AwardRule::Soonest), "t").unwrap();
    world.offer("bob", &id, &confident(0.5)).unwrap();
    mail(&mut world, &mut bob);
    world.pass(30 * SECOND);
    mail(&mut world, &mut bob);
    world.turn_down("bob", &id).unwrap();
    (world, bob, id)
}

/// A redrive asks the agents of the offers again.
#[test]
fn a_redriven_award_is_not_offered_to_a_bidder_that_has_left() {
    let (mut world, _, _) = turned_down();
    world.deregister("bob", false).unwrap();
    let dead = world.dead_letters();
    assert_refused(world.redrive(dead[0].number, None), ErrorCode::ReceiverUnknown);
}

/// With a mandate the broker opens the handoff itself, and no message creates the task.
#[test]
fn a_task_that_begins_with_an_award_is_in_the_lists_of_its_owners() {
    for is_mandated in [false, true] {
        let mut world = analysts();
        let rule = v1::AwardRule::HighestConfidence;
        let handoff = match is_mandated {
            true => {
                let id = world.try_negotiate("all:analyst", &mandate(rule), "t").unwrap();
                world.offer("bob", &id, &confident(0.9)).unwrap();
                world.pass(30 * SECOND);
                id
            }
            false => {
                let id = world.negotiate(&v1::TaskRequest::default());
                let offer = world.offer("bob", &id, &confident(0.9)).unwrap();
                world.award_task("bob", &id, &offer, (1, &[])).unwrap().handoff_id
            }
        };
        let caller = operator();
        let shown = world.view(&caller).shown_handoff(MessageId::parse(&handoff).unwrap()).unwrap();
        assert_eq!(shown.request.task_type, terms().task_type, "mandated: {is_mandated}");
        let listed = |world: &World, caller: &Caller, owner: Option<&str>| {
            let filter = TaskFilter { owner: owner.map(|id| AgentId::parse(id).unwrap()), ..TaskFilter::default() };
            let page = world.view(caller).tasks(&filter, 100, "").unwrap();
            page.entries.iter().map(|record| record.task.id.to_string()).collect::<Vec<_>>()
        };
        let agent = |name: &str| Caller::Agent(AgentId::parse(name).unwrap());
        for has_ended in [false, true] {
            if has_ended {
                world.turn_down("bob", &handoff).unwrap();
            }
            world.restart();
            assert_eq!(listed(&world, &agent("alice"), Some("alice")), ["t"], "mandated: {is_mandated}");
            assert_eq!(listed(&world, &agent("alice"), None), ["t"]);
            assert_eq!(listed(&world, &operator(), None), ["t"]);
            assert_eq!(listed(&world, &operator(), Some("alice")), ["t"]);
            assert_eq!(listed(&world, &agent("bob"), None), [""; 0], "bob never owned it");
        }
    }
}

/// Five bids, a counter-offer in three rounds, a winner that rejects, and a broker that is killed before the deadline.
#[test]
fn a_mandate_survives_a_kill_and_is_awarded_once() {
    let names =
        ["alice", "bob:analyst", "carol:analyst", "dave:analyst", "erin:analyst", "frank:analyst", "gina:analyst"];
    let mut world = World::with(&names);
    let id = world.try_negotiate("all:analyst", &mandate(v1::AwardRule::HighestConfidence), "t").unwrap();
    let bidders = [("bob", 0.5), ("carol", 0.6), ("dave", 0.3), ("erin", 0.2), ("frank", 0.1)];
    for (name, confidence) in bidders {
        world.offer(name, &id, &confident(confidence)).unwrap();
    }
    for round in 1..=3 {
        world.offer_to("alice", "bob", &id, &v1::TaskOffer { round, ..confident(0.5) }).unwrap();
        let better = 0.5 + f64::from(round) / 10.0;
        world.offer("bob", &id, &v1::TaskOffer { round, ..confident(better) }).unwrap();
    }
    let fourth = v1::TaskOffer { round: 4, ..confident(0.5) };
    assert_refused(world.offer_to("alice", "bob", &id, &fourth), ErrorCode::RoundLimit);
    world.pass(29 * SECOND);
    world.restart();
    assert_eq!(world.negotiation(&id).state, State::Open);
    world.pass(SECOND);
    let awarded = world.negotiation(&id);
    assert_eq!((awarded.state, awarded.award.as_ref().unwrap().bidder.as_str()), (State::Awarded, "bob"));
    assert_eq!(world.engine.open_handoffs(), 1);

    let mut bob = world.connect("bob");
    let to_bob = mail(&mut world, &mut bob);
    let shown = award_in(&to_bob);
    assert_eq!((shown.handoff_id.clone(), shown.winner_id.as_str()), (id.clone(), "bob"));
    let request = v1::Envelope::decode(shown.task_request).unwrap();
    assert_eq!((request.message_id, request.task_id, request.sender_id), (id.clone(), "t".into(), "alice".into()));
    world.turn_down("bob", &id).unwrap();

    world.restart();
    let mut carol = world.connect("carol");
    let to_carol = mail(&mut world, &mut carol);
    assert_eq!(award_in(&to_carol).winner_id, "carol", "the next offer of the rule");
    world.take("carol", &id).unwrap();
    let settled = world.negotiation(&id);
    assert_eq!((settled.state, settled.winner.as_ref().unwrap().as_str()), (State::Settled, "carol"));
    assert_eq!(world.bid_state(&id, "gina"), ThreadState::NotReached);
    for name in ["dave", "erin", "frank"] {
        let mut session = world.connect(name);
        let told: Vec<_> = mail(&mut world, &mut session)
            .into_iter()
            .filter(|(kind, _)| *kind == MessageType::NegotiationClosed)
            .collect();
        assert_eq!(told.len(), 1, "{name}");
        assert_eq!(closed(&told[0].1).winner_id, "carol");
    }
    world.restart();
    world.pass(10 * SECOND);
    assert_eq!(world.negotiation(&id), settled);
    world.audit("t");
}

#[test]
fn a_mandate_for_a_task_that_has_another_handoff_by_then_fails() {
    let mut world = analysts();
    let (mut alice, mut bob) = (world.connect("alice"), world.connect("bob"));
    let id = world.try_negotiate("all:analyst", &mandate(v1::AwardRule::Soonest), "t").unwrap();
    world.offer("bob", &id, &confident(0.5)).unwrap();
    mail(&mut world, &mut alice);
    mail(&mut world, &mut bob);
    world.send(world.request("alice", "mallory", 1)).unwrap();
    world.pass(30 * SECOND);
    let failed = world.negotiation(&id);
    assert_eq!((failed.state, failed.failure.as_ref().unwrap().code), (State::Failed, ErrorCode::HandoffOpen));
    assert_eq!(notices(&mail(&mut world, &mut alice)), [v1::ErrorCode::HandoffOpen]);
    assert_eq!(told(&mut world, &mut bob).0, NegotiationState::Failed);
    world.audit("t");
}

#[test]
fn a_mandated_handoff_that_no_bidder_takes_is_a_dead_letter_that_can_be_redriven() {
    let (mut world, mut bob, id) = turned_down();
    let failed = world.negotiation(&id);
    assert_eq!((failed.state, failed.failure.as_ref().unwrap().code), (State::Failed, ErrorCode::NoCandidate));
    let dead = world.dead_letters();
    assert_eq!(dead.len(), 1);
    mail(&mut world, &mut bob);
    let redriven = world.redrive(dead[0].number, None).unwrap();
    let again = redriven.settlement.unwrap().redriven_handoff.unwrap().to_string();
    let shown = closed(&mail(&mut world, &mut bob)[0].1);
    assert_eq!(shown.handoff_id, again);
    world.take("bob", &again).unwrap();
    assert_eq!(world.negotiation(&id).state, State::Failed, "a final state never changes");
    world.audit("t");
}

#[test]
fn a_negotiation_is_removed_some_time_after_its_end() {
    let mut world = analysts();
    let id = world.negotiate(&v1::TaskRequest::default());
    let offer = world.offer("bob", &id, &confident(0.5)).unwrap();
    world.award("bob", &id, &offer).unwrap();
    world.pass(Duration::from_secs(29 * 24 * 3600));
    assert_eq!(world.negotiation(&id).state, State::Settled);
    world.pass(Duration::from_secs(2 * 24 * 3600));
    let gone = world.view(&operator()).negotiation(MessageId::parse(&id).unwrap()).unwrap_err();
    assert_eq!(baton_broker_core::codes::Refusal::code(&gone), ErrorCode::NegotiationUnknown);
    let listed = world.view(&operator()).negotiations(&NegotiationFilter::default(), 10, "").unwrap();
    assert!(listed.entries.is_empty());
}

#[test]
fn hundreds_of_bidders_are_each_told_once_over_restarts() {
    let names: Vec<String> = (0..300).map(|number| format!("a{number}")).collect();
    let agents: Vec<String> = names.iter().map(|name| format!("{name}:analyst")).collect();
    let agents: Vec<&str> = agents.iter().map(String::as_str).chain(["alice"]).collect();
    let mut world = World::with(&agents);
    let id = world.negotiate(&v1::TaskRequest::default());
    for name in &names[..299] {
        world.offer(name, &id, &confident(0.5)).unwrap();
    }
    world.cancel_negotiation("alice", &id).unwrap();
    world.restart();
    world.settle();
    for name in &names[..299] {
        let mut session = world.connect(name);
        let told =
            mail(&mut world, &mut session).into_iter().filter(|(kind, _)| *kind == MessageType::NegotiationClosed);
        assert_eq!(told.count(), 1, "{name}");
    }
    assert_eq!(world.bid_state(&id, "a299"), ThreadState::NotReached);
}

//! Dead letters: their reasons, their history, and the actions of operators.

use std::time::Duration;

use baton_broker_core::{
    access::Caller,
    codes::{ErrorCode, Refusal as _},
    domain::{
        dead_letter::{DeadState, ParkReason},
        handoff::State,
        mailbox::AttemptEnd,
    },
    engine::{Command, Fate},
    ids::{AgentId, TaskId},
    proto::v1::{self, MessageType},
    queries::HandoffFilter,
    records::DeadEnvelope,
};
use prost::Message as _;

use crate::world::{World, assert_refused, operator};

fn poison() -> Fate {
    Fate::Poison { text: "cannot parse".into() }
}

/// Makes a dead letter of the message "one" from a to b. Returns its number.
fn parked_info(world: &mut World) -> u64 {
    let mut b = world.connect("b");
    world.send(world.info("a", "b", "one")).unwrap();
    let (delivery, _) = b.delivery();
    world.acknowledge(&b, &delivery, poison()).unwrap();
    world.disconnect(b);
    world.dead_letters().last().unwrap().number
}

fn text_of(envelope: &v1::Envelope) -> String {
    v1::Info::decode(envelope.payload.clone().unwrap().value).unwrap().text
}

#[test]
fn every_attempt_is_on_record_with_how_it_ended_and_the_envelope_byte_for_byte() {
    let mut world = World::with(&["a", "b"]);
    let mut envelope = world.info("a", "b", "one");
    envelope.trace_context = Some(v1::TraceContext { traceparent: "00-aa-bb-01".into(), ..Default::default() });
    world.sign(&mut envelope);
    let receipt = world.send_signed(&envelope).unwrap();
    let began = world.now;
    let mut b = world.connect("b");
    b.delivery();
    world.disconnect(b);
    let mut b = world.connect("b");
    let (delivery, _) = b.delivery();
    let fate = Fate::Shutdown { text: "deploying".into(), retry_after: None };
    world.acknowledge(&b, &delivery, fate).unwrap();
    let (delivery, _) = b.delivery();
    let fate = Fate::Failed { text: "no model".into(), retry_after: Some(Duration::from_secs(1)) };
    world.acknowledge(&b, &delivery, fate).unwrap();
    world.pass(Duration::from_secs(1));
    b.delivery();
    world.pass(Duration::from_secs(33)); // the ack wait, and the delay before the redelivery
    let (delivery, _) = b.delivery();
    world.acknowledge(&b, &delivery, poison()).unwrap();

    let dead = world.dead_letters().remove(0);
    let letter = dead.letter.as_ref().unwrap();
    let ends: Vec<_> = letter.attempts.iter().map(|attempt| (attempt.end, attempt.text.as_str())).collect();
    assert_eq!(
        ends,
        [
            (AttemptEnd::SessionEnded, ""),
            (AttemptEnd::Shutdown, "deploying"),
            (AttemptEnd::Failure, "no model"),
            (AttemptEnd::NoAck, "no ack in time"),
            (AttemptEnd::Poison, "cannot parse"),
        ]
    );
    assert_eq!((letter.handouts, letter.failures), (5, 2), "what is no failure is counted apart");
    assert_eq!(letter.attempts[0].handed_out_at, began);
    assert_eq!((dead.reason, dead.reason_text.as_str()), (ParkReason::Poison, "cannot parse"));
    assert_eq!((dead.agent.as_str(), dead.summary.sender_id.as_str()), ("b", "a"));
    assert_eq!(dead.summary.traceparent, "00-aa-bb-01");
    assert_eq!(dead.envelope, DeadEnvelope::Accepted(receipt.sequence));
}

#[test]
fn a_request_without_a_decision_is_a_dead_letter() {
    let mut world = World::with(&["a", "b"]);
    let mut b = world.connect("b");
    let id = world.send(world.request("a", "b", 1)).unwrap().handoff_id;
    world.take_and_ack(&mut b);
    world.pass(Duration::from_secs(30));
    let dead = world.dead_letters().remove(0);
    assert_eq!((dead.reason, dead.summary.message_id.as_str()), (ParkReason::AcceptTimeout, id.as_str()));
    assert_eq!(dead.handoff.map(|handoff| handoff.to_string()), Some(id));
    assert_eq!((dead.attempts[0].0.as_str(), dead.attempts[0].1.end), ("b", AttemptEnd::Undecided));
    assert_eq!(world.dead_letters().len(), 1);
}

#[test]
fn a_request_that_everybody_rejects_is_a_dead_letter() {
    let mut world = World::with(&["a", "b", "c"]);
    let (mut b, mut c) = (world.connect("b"), world.connect("c"));
    let id = world.send(world.request("a", "b", 1)).unwrap().handoff_id;
    world.take_and_ack(&mut b);
    world.send(world.reject("b", "a", &id, &["c"])).unwrap();
    assert!(world.dead_letters().is_empty(), "there is still an agent to ask");
    world.take_and_ack(&mut c);
    world.send(world.reject("c", "a", &id, &[])).unwrap();
    let dead = world.dead_letters().remove(0);
    assert_eq!((dead.reason, dead.agent.as_str()), (ParkReason::NoCandidate, "c"));
    let offers: Vec<_> = dead.attempts.iter().map(|(agent, attempt)| (agent.as_str(), attempt.end)).collect();
    assert_eq!(offers, [("b", AttemptEnd::Rejected), ("c", AttemptEnd::Rejected)]);
    assert_eq!(world.handoff(&id).state, State::Rejected);
}

#[test]
fn a_request_that_never_arrives_is_a_dead_letter_when_its_whole_time_is_up() {
    let mut world = World::with(&["a", "b"]);
    world.send(world.request("a", "b", 1)).unwrap();
    world.pass(Duration::from_secs(360));
    assert_eq!(world.dead_letters().remove(0).reason, ParkReason::AcceptTimeout);
}

#[test]
fn mail_of_one_who_is_away_expires_by_itself_also_over_a_restart() {
    let mut world = World::with(&["a", "b"]);
    let expire = |world: &World, text: &str, seconds: u64| {
        let expires_at = Some(world.now.plus(Duration::from_secs(seconds)).into());
        v1::Envelope { expires_at, ..world.info("a", "b", text) }
    };
    world.send(expire(&world, "soon", 10)).unwrap();
    world.send(expire(&world, "later", 100)).unwrap();
    world.send(world.info("a", "b", "in two days")).unwrap();
    world.pass(Duration::from_secs(9));
    assert!(world.dead_letters().is_empty());
    world.pass(Duration::from_secs(1));
    assert_eq!(world.dead_letters().len(), 1);
    world.restart();
    world.pass(Duration::from_secs(90));
    assert_eq!(world.dead_letters().len(), 2);
    world.now = world.now.plus(Duration::from_secs(48 * 3600)); // while the broker is down
    world.restart();
    world.settle();
    let reasons: Vec<_> = world.dead_letters().iter().map(|dead| dead.reason).collect();
    assert_eq!(reasons, [ParkReason::Expired; 3]);
    assert!(world.connect("b").deliveries().is_empty());
}

#[test]
fn mail_that_is_handed_out_when_its_time_is_over_can_still_be_acked() {
    let mut world = World::with(&["a", "b"]);
    let mut b = world.connect("b");
    let expires_at = Some(world.now.plus(Duration::from_secs(5)).into());
    world.send(v1::Envelope { expires_at, ..world.info("a", "b", "one") }).unwrap();
    let (delivery, _) = b.delivery();
    world.pass(Duration::from_secs(10));
    world.ack(&b, &delivery);
    world.pass(Duration::from_secs(60));
    assert!(world.dead_letters().is_empty());
}

#[test]
fn many_messages_that_expire_at_once_all_become_dead_letters() {
    let mut world = World::with(&["a", "b"]);
    for number in 0..600 {
        let expires_at = Some(world.now.plus(Duration::from_secs(5)).into());
        world.send(v1::Envelope { expires_at, ..world.info("a", "b", &number.to_string()) }).unwrap();
    }
    world.pass(Duration::from_secs(5));
    assert_eq!(world.dead_letters().len(), 600);
}

#[test]
fn what_is_no_message_is_kept_for_its_proven_sender_up_to_a_bound() {
    let mut world = World::with(&["a"]);
    let keep = |world: &mut World, reason, raw: &'static str| {
        let (agent, raw) = (AgentId::parse("a").unwrap(), bytes::Bytes::from_static(raw.as_bytes()));
        world.engine.handle(Command::KeepRefused { agent, raw, reason, text: "does not parse".into() }, world.now);
        world.settle();
    };
    keep(&mut world, ParkReason::Malformed, "garbage");
    keep(&mut world, ParkReason::SchemaInvalid, "of no schema");
    keep(&mut world, ParkReason::Malformed, "garbage");
    let dead = world.dead_letters();
    assert_eq!(dead.len(), 2, "the same bytes are kept once");
    assert_eq!(dead[0].envelope, DeadEnvelope::Refused(bytes::Bytes::from_static(b"garbage")));
    assert_eq!((dead[0].reason, dead[1].reason), (ParkReason::Malformed, ParkReason::SchemaInvalid));
    assert_refused(world.redrive(dead[0].number, None), ErrorCode::DeadLetterNotAMessage);
    world.discard(dead[0].number).unwrap();
    (0..300).for_each(|number: u32| keep(&mut world, ParkReason::Malformed, number.to_string().leak()));
    assert_eq!(world.dead_letters().len(), 256);
}

#[test]
fn a_redriven_message_is_delivered_once_more_with_fresh_counts() {
    let mut world = World::with(&["a", "b"]);
    let number = parked_info(&mut world);
    let redriven = world.redrive(number, None).unwrap();
    assert_eq!(redriven.state, DeadState::Redriven);
    let mut b = world.connect("b");
    let (delivery, envelope) = b.delivery();
    assert_eq!((delivery.attempt, text_of(&envelope).as_str()), (1, "one"));
    world.ack(&b, &delivery);
    world.pass(Duration::from_secs(100));
    assert!(b.deliveries().is_empty());
    assert_eq!(world.dead_letters().len(), 1);
}

#[test]
fn a_redrive_may_go_to_another_agent() {
    let mut world = World::with(&["a", "b", "c"]);
    let number = parked_info(&mut world);
    let redriven = world.redrive(number, Some("c")).unwrap();
    assert_eq!(redriven.settlement.unwrap().redriven_to.unwrap().as_str(), "c");
    assert!(world.connect("b").deliveries().is_empty());
    assert_eq!(text_of(&world.connect("c").delivery().1), "one");
}

#[test]
fn what_was_redriven_or_discarded_is_settled() {
    let mut world = World::with(&["a", "b"]);
    let (first, second, third) = (parked_info(&mut world), parked_info(&mut world), parked_info(&mut world));
    world.redrive(first, None).unwrap();
    world.discard(second).unwrap();
    for (number, state) in [(first, "REDRIVEN"), (second, "DISCARDED")] {
        for outcome in [world.redrive(number, None), world.discard(number)] {
            let refusal = assert_refused(outcome, ErrorCode::DeadLetterSettled);
            assert_eq!(refusal.metadata(), [("state", state.to_owned())]);
        }
    }
    assert_refused(world.redrive(9999, None), ErrorCode::DeadLetterUnknown);
    assert_refused(world.redrive(third, Some("unknown")), ErrorCode::ReceiverUnknown);
    assert_eq!(world.dead_letters().last().unwrap().state, DeadState::Parked, "nothing has changed");
}

#[test]
fn a_redrive_that_is_cut_off_by_a_crash_has_happened_wholly_or_not_at_all() {
    for survives in [true, false] {
        let mut world = World::with(&["a", "b"]);
        let number = parked_info(&mut world);
        world.disk.full.store(!survives, std::sync::atomic::Ordering::Relaxed);
        let outcome = world.redrive(number, None);
        assert_eq!(outcome.is_ok(), survives);
        world.disk.full.store(false, std::sync::atomic::Ordering::Relaxed);
        world.restart();
        let mail = world.connect("b").deliveries().len();
        let state = world.dead_letters()[0].state;
        assert_eq!((mail, state), if survives { (1, DeadState::Redriven) } else { (0, DeadState::Parked) });
    }
}

#[test]
fn a_redriven_request_is_a_new_handoff_that_can_be_completed() {
    let mut world = World::with(&["a", "b"]);
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));
    let former = world.send(world.request("a", "b", 1)).unwrap().handoff_id;
    world.take_and_ack(&mut b);
    world.pass(Duration::from_secs(30));
    a.deliveries().iter().for_each(|(delivery, _)| world.ack(&a, delivery));
    b.deliveries().iter().for_each(|(delivery, _)| world.ack(&b, delivery));
    let number = world.dead_letters()[0].number;

    let settlement = world.redrive(number, None).unwrap().settlement.unwrap();
    let id = settlement.redriven_handoff.unwrap().to_string();
    assert_ne!(id, former);
    assert_eq!(world.handoff(&id).redrive_of.map(|id| id.to_string()), Some(former.clone()));
    let (told, notice) = a.delivery();
    assert_eq!((notice.message_type(), notice.correlation_id.as_str()), (MessageType::ErrorNotification, id.as_str()));
    world.ack(&a, &told);
    let (offer, request) = b.delivery();
    assert_eq!(offer.handoff.map(|handoff| handoff.to_string()).as_deref(), Some(id.as_str()));
    assert_eq!(request.message_id, former, "the very same request");
    world.ack(&b, &offer);
    world.send(world.accept("b", "a", &id, 1)).unwrap();
    world.take_and_ack(&mut a);
    world.send(world.context("a", "b", &id, 1)).unwrap();
    world.take_and_ack(&mut b);
    world.send(world.complete("b", "a", &id, 1)).unwrap();
    let task = world.task("t").task;
    assert_eq!((task.owner.as_str(), task.epoch), ("b", 2));
    assert_eq!(world.handoff(&former).state, State::Failed, "a final state never changes");
    let filter = HandoffFilter { task: Some(TaskId::parse("t").unwrap()), ..HandoffFilter::default() };
    let listed = world.view(&operator()).handoffs(&filter, 9, "").unwrap().entries;
    assert_eq!(listed.iter().map(|handoff| handoff.id.to_string()).collect::<Vec<_>>(), [id, former]);
    world.audit("t");
}

#[test]
fn a_request_may_be_redriven_to_another_agent() {
    let mut world = World::with(&["a", "b", "c"]);
    let mut b = world.connect("b");
    world.send(world.request("a", "b", 1)).unwrap();
    let (delivery, _) = b.delivery();
    world.acknowledge(&b, &delivery, poison()).unwrap();
    let number = world.dead_letters()[0].number;
    let settlement = world.redrive(number, Some("c")).unwrap().settlement.unwrap();
    let handoff = world.handoff(&settlement.redriven_handoff.unwrap().to_string());
    assert_eq!(handoff.candidate.as_str(), "c");
    assert_eq!(settlement.redriven_to.unwrap().as_str(), "c");
    world.audit("t");
}

#[test]
fn a_request_of_a_task_that_has_moved_on_cannot_be_redriven_and_stays_parked() {
    let mut world = World::with(&["a", "b"]);
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));
    world.send(world.request("a", "b", 1)).unwrap();
    let (delivery, _) = b.delivery();
    world.acknowledge(&b, &delivery, poison()).unwrap();
    a.deliveries().iter().for_each(|(delivery, _)| world.ack(&a, delivery));
    b.deliveries().iter().for_each(|(delivery, _)| world.ack(&b, delivery));
    let number = world.dead_letters()[0].number;
    let open = world.send(world.request("a", "b", 1)).unwrap().handoff_id;
    assert_refused(world.redrive(number, None), ErrorCode::HandoffOpen);
    b.deliveries().iter().for_each(|(delivery, _)| world.ack(&b, delivery));
    world.send(world.cancel("a", "b", &open, 1)).unwrap();
    b.deliveries().iter().for_each(|(delivery, _)| world.ack(&b, delivery));
    world.hand_over(&mut a, &mut b, 1);
    assert_refused(world.redrive(number, None), ErrorCode::StaleEpoch);
    assert_eq!(world.dead_letters()[0].state, DeadState::Parked);
}

#[test]
fn dead_letters_are_shown_to_callers_with_a_right() {
    let mut world = World::with(&["a", "b", "c"]);
    let number = parked_info(&mut world);
    let dead = world.dead_letters().remove(0);
    let bytes = |caller: &Caller| world.view(caller).dead_bytes(&dead).map_err(|error| error.code());
    let last = |caller: &Caller| world.view(caller).last_dead_letter().map_err(|error| error.code());
    for caller in [Caller::Agent(AgentId::parse("b").unwrap()), operator()] {
        assert!(!bytes(&caller).unwrap().envelope.is_empty());
        assert_eq!(last(&caller), Ok(number));
    }
    assert_eq!(bytes(&Caller::Agent(AgentId::parse("c").unwrap())), Err(ErrorCode::PermissionDenied));
    assert_eq!(bytes(&Caller::Anonymous), Err(ErrorCode::IdentityMissing));
    assert_eq!(last(&Caller::Anonymous), Err(ErrorCode::IdentityMissing));
}

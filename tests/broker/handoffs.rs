//! Whole handoffs through the pipeline: states, views, mail, ownership, epochs, custody.

use std::time::Duration;

use baton_broker_core::{
    codes::ErrorCode,
    domain::handoff::{Cause, OfferOutcome, ReceiverView, SenderView, State, TaskStatus},
    ids::TaskId,
    proto::v1::{self, MessageType},
    records::TaskRecord,
    store::{Change, Store as _, Write},
};
use prost::Message as _;

use crate::world::{World, assert_refused};

fn kind(envelope: &v1::Envelope) -> MessageType {
    MessageType::try_from(envelope.message_type).unwrap()
}

fn notice(envelope: &v1::Envelope) -> v1::ErrorNotification {
    assert_eq!(kind(envelope), MessageType::ErrorNotification);
    v1::ErrorNotification::decode(envelope.payload.clone().unwrap().value).unwrap()
}

#[test]
fn a_task_goes_from_one_agent_to_another() {
    let mut world = World::with(&["a", "b"]);
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));

    let receipt = world.send(world.request("a", "b", 1)).unwrap();
    let id = receipt.handoff_id.clone();
    assert_eq!((receipt.owner_id.as_str(), receipt.epoch, receipt.handoff_state), ("a", 1, 1));
    assert_eq!(receipt.message_id, id, "the handoff's id is its request's");
    let views = |world: &World| {
        let handoff = world.handoff(&id);
        (handoff.state, handoff.sender_view(), handoff.receiver_view())
    };
    assert_eq!(views(&world), (State::Requested, SenderView::AwaitingHandoffAccept, ReceiverView::HandoffRequested));

    assert_eq!(kind(&world.take_and_ack(&mut b)), MessageType::HandoffRequest);
    assert_eq!(views(&world), (State::Deciding, SenderView::AwaitingHandoffAccept, ReceiverView::AwaitingDecision));

    world.send(world.accept("b", "a", &id, 1)).unwrap();
    assert_eq!(views(&world), (State::Accepted, SenderView::ContextPreparing, ReceiverView::AwaitingContextTransfer));
    assert_eq!(kind(&world.take_and_ack(&mut a)), MessageType::HandoffAccept);

    world.send(world.context("a", "b", &id, 1)).unwrap();
    let sent = (State::ContextSent, SenderView::AwaitingContextAck, ReceiverView::AwaitingContextTransfer);
    assert_eq!(views(&world), sent);
    assert_eq!(kind(&world.take_and_ack(&mut b)), MessageType::TaskContextTransfer);
    assert_eq!(views(&world), (State::ContextSent, SenderView::AwaitingContextAck, ReceiverView::ContextTransferred));
    assert_eq!(world.task("t").task.owner.as_str(), "a", "until it is complete the sender owns the task");

    let receipt = world.send(world.complete("b", "a", &id, 1)).unwrap();
    assert_eq!((receipt.owner_id.as_str(), receipt.epoch), ("b", 2));
    assert_eq!(views(&world), (State::Completed, SenderView::HandoffCompleted, ReceiverView::Active));
    assert_eq!(kind(&world.take_and_ack(&mut a)), MessageType::HandoffComplete);
    assert_eq!(views(&world), (State::Completed, SenderView::TaskFinished, ReceiverView::Active));

    let record = world.task("t");
    assert_eq!((record.task.owner.as_str(), record.task.epoch, record.task.open_handoff), ("b", 2, None));
    let causes: Vec<Cause> = world.handoff(&id).steps.iter().map(|step| step.cause).collect();
    use Cause::{Accepted, Completed, ContextStored, Delivered, OwnershipMoved, Requested};
    let story = [Requested, Delivered, Accepted, ContextStored, Delivered, Completed, OwnershipMoved, Delivered];
    assert_eq!(causes, story);
    assert_eq!(world.engine.open_handoffs(), 0, "no timer is left");
    assert!(a.deliveries().is_empty() && b.deliveries().is_empty());
}

#[test]
fn what_was_computed_from_another_version_than_the_stored_one_is_not_applied() {
    let mut world = World::with(&["a", "b"]);
    let mut b = world.connect("b");
    let id = world.send(world.request("a", "b", 1)).unwrap().handoff_id;
    world.take_and_ack(&mut b);
    // A foreign write to the store of a running broker, which the design forbids.
    let key = TaskRecord::key(&TaskId::parse("t").unwrap());
    let mut record = world.disk.get(&key).unwrap().unwrap();
    record.revision += 1;
    let write = Write { key, record: Some(record), is_new: false };
    world.disk.commit(vec![Change { expectations: vec![], writes: vec![write] }]).unwrap();
    let before = world.custody("t");

    let accept = world.accept("b", "a", &id, 1);
    let repeat = accept.clone();
    assert_refused(world.send(accept), ErrorCode::Conflict);
    assert_eq!(world.handoff(&id).state, State::Deciding);
    assert_eq!(world.custody("t"), before);
    world.send(repeat).unwrap();
    assert_eq!(world.handoff(&id).state, State::Accepted);
}

#[test]
fn the_delivered_envelope_is_the_one_that_was_sent_byte_for_byte() {
    let mut world = World::with(&["a", "b"]);
    let mut b = world.connect("b");
    let mut envelope = world.request("a", "b", 1);
    world.sign(&mut envelope);
    world.send_signed(&envelope).unwrap();
    assert_eq!(world.disk.envelope(b.delivery().0.bytes_at), envelope.encode_to_vec());
}

#[test]
fn a_rejected_handoff_goes_to_the_next_agent_of_the_type() {
    let mut world = World::with(&["a", "e1:expert", "e2:expert"]);
    let (mut a, mut e1, mut e2) = (world.connect("a"), world.connect("e1"), world.connect("e2"));
    let id = world.send(world.request("a", "type:expert", 1)).unwrap().handoff_id;
    world.take_and_ack(&mut e1);
    world.send(world.reject("e1", "a", &id, &[])).unwrap();
    assert_eq!(kind(&world.take_and_ack(&mut a)), MessageType::HandoffReject);
    let envelope = world.take_and_ack(&mut e2);
    assert_eq!((envelope.message_id.as_str(), envelope.receiver_id.as_str()), (id.as_str(), "type:expert"));
    let handoff = world.handoff(&id);
    assert_eq!((handoff.state, handoff.candidate.as_str()), (State::Deciding, "e2"));
    assert_eq!(handoff.offers[0].outcome, OfferOutcome::Rejected);
    world.send(world.accept("e2", "a", &id, 1)).unwrap();
    assert_eq!(world.handoff(&id).state, State::Accepted);
}

#[test]
fn a_handoff_that_all_reject_is_rejected_and_the_sender_keeps_the_task() {
    let mut world = World::with(&["a", "b"]);
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));
    let id = world.send(world.request("a", "b", 1)).unwrap().handoff_id;
    world.take_and_ack(&mut b);
    world.send(world.reject("b", "a", &id, &["unknown"])).unwrap();
    assert_eq!(kind(&world.take_and_ack(&mut a)), MessageType::HandoffReject);
    let told = notice(&world.take_and_ack(&mut a));
    assert_eq!(told.error_code(), v1::ErrorCode::NoCandidate);
    assert_eq!(told.next_step(), v1::NextStep::KeepTask);
    assert_eq!(world.handoff(&id).state, State::Rejected);
    let task = world.task("t").task;
    assert_eq!((task.owner.as_str(), task.epoch, task.open_handoff), ("a", 1, None));
    world.send(world.request("a", "b", 1)).expect("another handoff can follow");
}

#[test]
fn a_suggested_agent_is_asked_next_and_unknown_suggestions_are_passed_over() {
    let mut world = World::with(&["a", "b", "c"]);
    let (mut b, mut c) = (world.connect("b"), world.connect("c"));
    let id = world.send(world.request("a", "b", 1)).unwrap().handoff_id;
    world.take_and_ack(&mut b);
    world.send(world.reject("b", "a", &id, &["unknown", "c"])).unwrap();
    assert_eq!(world.take_and_ack(&mut c).message_id, id);
}

#[test]
fn an_accept_timeout_moves_on_and_the_former_candidate_is_told_to_drop() {
    let mut world = World::with(&["a", "b", "c"]);
    let (mut a, mut b, mut c) = (world.connect("a"), world.connect("b"), world.connect("c"));
    let payload =
        v1::HandoffRequest { task_type: "support".into(), fallback_candidates: vec!["c".into()], ..Default::default() };
    let id = world.send(world.request_with("a", "b", 1, &payload)).unwrap().handoff_id;
    world.take_and_ack(&mut b);
    world.pass(Duration::from_secs(31));
    assert_eq!(notice(&world.take_and_ack(&mut b)).next_step(), v1::NextStep::DropTask);
    assert_eq!(world.take_and_ack(&mut c).message_id, id);
    assert_refused(world.send(world.accept("b", "a", &id, 1)), ErrorCode::HandoffExpired);
    world.pass(Duration::from_secs(31));
    assert_eq!(world.handoff(&id).state, State::Failed);
    assert_eq!(notice(&world.take_and_ack(&mut a)).error_code(), v1::ErrorCode::AcceptTimeout);
}

#[test]
fn each_step_has_its_timeout_and_both_sides_are_told() {
    for (steps, seconds, code) in [(2, 60, v1::ErrorCode::ContextTimeout), (3, 120, v1::ErrorCode::CompleteTimeout)] {
        let mut world = World::with(&["a", "b"]);
        let (mut a, mut b) = (world.connect("a"), world.connect("b"));
        let id = world.send(world.request("a", "b", 1)).unwrap().handoff_id;
        world.take_and_ack(&mut b);
        world.send(world.accept("b", "a", &id, 1)).unwrap();
        world.take_and_ack(&mut a);
        if steps == 3 {
            world.send(world.context("a", "b", &id, 1)).unwrap();
            world.take_and_ack(&mut b);
        }
        world.pass(Duration::from_secs(seconds - 1));
        assert!(!world.handoff(&id).state.is_final());
        world.pass(Duration::from_secs(1));
        assert_eq!(world.handoff(&id).state, State::Failed);
        assert_eq!(notice(&world.take_and_ack(&mut a)).error_code(), code);
        assert_eq!(notice(&world.take_and_ack(&mut b)).next_step(), v1::NextStep::DropTask);
        let late = if steps == 3 { world.complete("b", "a", &id, 1) } else { world.context("a", "b", &id, 1) };
        assert_refused(world.send(late), ErrorCode::HandoffExpired);
        assert_eq!(world.task("t").refusals_recorded, 1, "the custody log keeps it");
    }
}

#[test]
fn a_message_that_comes_after_its_deadline_is_late_also_before_the_timer() {
    let mut world = World::with(&["a", "b"]);
    let mut b = world.connect("b");
    let id = world.send(world.request("a", "b", 1)).unwrap().handoff_id;
    world.take_and_ack(&mut b);
    world.now = world.now.plus(Duration::from_secs(30)); // without letting the engine check its timers
    assert_refused(world.send(world.accept("b", "a", &id, 1)), ErrorCode::HandoffExpired);
    assert_eq!(world.handoff(&id).state, State::Failed);
}

#[test]
fn a_candidate_that_is_away_has_the_whole_time() {
    let mut world = World::with(&["a", "b"]);
    let id = world.send(world.request("a", "b", 1)).unwrap().handoff_id;
    world.pass(Duration::from_secs(359));
    assert_eq!(world.handoff(&id).state, State::Requested);
    world.pass(Duration::from_secs(1));
    assert_eq!(world.handoff(&id).state, State::Failed);
    let mut a = world.connect("a");
    assert_eq!(notice(&world.take_and_ack(&mut a)).error_code(), v1::ErrorCode::WholeTimeout);
}

#[test]
fn a_cancelled_handoff_ends_and_the_candidate_gets_the_cancel() {
    let mut world = World::with(&["a", "b"]);
    let mut b = world.connect("b");
    let id = world.send(world.request("a", "b", 1)).unwrap().handoff_id;
    world.take_and_ack(&mut b);
    world.send(world.cancel("a", "b", &id, 1)).unwrap();
    assert_eq!(kind(&world.take_and_ack(&mut b)), MessageType::HandoffCancel);
    assert_eq!(world.handoff(&id).sender_view(), SenderView::Idle);
    assert_refused(world.send(world.accept("b", "a", &id, 1)), ErrorCode::HandoffFinal);
}

#[test]
fn a_delegated_task_comes_back_with_the_final_status() {
    let mut world = World::with(&["a", "b"]);
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));
    let payload = v1::HandoffRequest {
        task_type: "support".into(),
        mode: v1::HandoffMode::Delegate.into(),
        ..Default::default()
    };
    let id = world.send(world.request_with("a", "b", 1, &payload)).unwrap().handoff_id;
    world.take_and_ack(&mut b);
    world.send(world.accept("b", "a", &id, 1)).unwrap();
    world.send(world.context("a", "b", &id, 1)).unwrap();
    world.take_and_ack(&mut a);
    world.take_and_ack(&mut b);
    world.send(world.complete("b", "a", &id, 1)).unwrap();
    world.take_and_ack(&mut a);
    let receipt = world.send(world.status("b", "", 2, v1::TaskStatus::Completed)).unwrap();
    assert_eq!((receipt.owner_id.as_str(), receipt.epoch), ("a", 3));
    assert_eq!(receipt.task_status(), v1::TaskStatus::InProgress);
    assert_eq!(kind(&world.take_and_ack(&mut a)), MessageType::TaskStatusUpdate);
    assert_refused(world.send(world.status("b", "", 2, v1::TaskStatus::Failed)), ErrorCode::StaleEpoch);
    world.send(world.status("a", "", 3, v1::TaskStatus::Completed)).unwrap();
    assert_eq!(world.task("t").task.status, TaskStatus::Completed);
}

#[test]
fn progress_extends_the_step_of_the_side_on_turn() {
    let mut world = World::with(&["a", "b"]);
    let mut b = world.connect("b");
    let id = world.send(world.request("a", "b", 1)).unwrap().handoff_id;
    world.take_and_ack(&mut b);
    world.pass(Duration::from_secs(29));
    let mut busy = world.status("b", "", 1, v1::TaskStatus::InProgress);
    busy.correlation_id.clone_from(&id);
    world.send(busy).unwrap();
    world.pass(Duration::from_secs(29));
    assert_eq!(world.handoff(&id).state, State::Deciding);
    world.pass(Duration::from_secs(1));
    assert_eq!(world.handoff(&id).state, State::Failed);
}

#[test]
fn the_custody_log_chains_everything_that_was_accepted_and_decided() {
    use v1::custody_entry::Event;
    let mut world = World::with(&["a", "b"]);
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));
    world.hand_over(&mut a, &mut b, 1);
    assert_refused(world.send(world.request("a", "b", 1)), ErrorCode::StaleEpoch);
    let name = |entry: &v1::CustodyLogEntry| match entry.entry.as_ref().unwrap().event.as_ref().unwrap() {
        Event::Accepted(_) => "accepted",
        Event::Refused(_) => "refused",
        Event::Acked(_) => "acked",
        Event::GivenUp(_) => "given up",
        Event::Time(_) => "time",
        Event::Gone(_) => "gone",
        Event::Looked(_) => "looked",
        Event::Redriven(_) => "redriven",
        Event::Reassigned(_) => "reassigned",
        Event::MailOmitted(_) => "mail omitted",
        Event::Silent(_) => "silent",
        Event::Cancelled(_) => "cancelled",
        Event::Awarded(_) => "awarded",
    };
    let log = world.custody("t");
    let events: Vec<_> = log.iter().map(name).collect();
    let audit = world.audit("t");
    assert_eq!((audit.length(), audit.refusals()), (8, 1));
    assert_eq!(*audit.hash(), world.task("t").custody.hash);
    let story = ["accepted", "acked", "accepted", "accepted", "acked", "accepted", "acked", "refused"];
    assert_eq!(events, story);
}

#[test]
fn the_loop_guard_stops_the_fifth_handoff_along_a_pair() {
    let mut world = World::with(&["a", "b"]);
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));
    for round in 0..4 {
        world.hand_over(&mut a, &mut b, 2 * round + 1);
        if round < 3 {
            world.hand_over(&mut b, &mut a, 2 * round + 2);
        }
    }
    world.hand_over(&mut b, &mut a, 8);
    let refusal = assert_refused(world.send(world.request("a", "b", 9)), ErrorCode::LoopLimit);
    let metadata = refusal.metadata();
    assert_eq!(metadata[0].1, "handoffs_per_pair_max");
    assert!(metadata[2].1.starts_with("a → b → a"), "{metadata:?}");
}

#[test]
fn the_notice_of_a_failed_handoff_of_priority_critical_is_critical() {
    for (priority, severity) in
        [(v1::Priority::High, v1::Severity::Warning), (v1::Priority::Critical, v1::Severity::Critical)]
    {
        let mut world = World::with(&["a", "b"]);
        let (mut a, mut b) = (world.connect("a"), world.connect("b"));
        let request = v1::HandoffRequest { task_type: "x".into(), priority: priority.into(), ..Default::default() };
        let handoff = world.send(world.request_with("a", "b", 1, &request)).unwrap().handoff_id;
        world.take_and_ack(&mut b);
        world.send(world.reject("b", "a", &handoff, &[])).unwrap();
        world.take_and_ack(&mut a); // the reject
        let (_, envelope) = a.delivery();
        let told = v1::ErrorNotification::decode(envelope.payload.unwrap().value).unwrap();
        assert_eq!(told.severity(), severity);
    }
}

//! A broker has all of its state after a kill and a restart.

use std::time::Duration;

use baton_broker_core::{
    BrokerError,
    domain::handoff::State,
    engine::ConsumerKind,
    proto::v1::MessageType,
    store::{Change, Key, Store as _, Table, Write},
};

use crate::world::World;

/// Kills the broker before each step of a handoff. Every step uses new sessions, and the handoff continues.
#[test]
fn a_handoff_goes_on_over_a_restart_before_each_of_its_steps() {
    let mut world = World::with(&["a", "b"]);
    let id = world.send(world.request("a", "b", 1)).unwrap().handoff_id;
    world.restart();
    let mut b = world.connect("b");
    world.take_and_ack(&mut b);
    world.restart();
    world.send(world.accept("b", "a", &id, 1)).unwrap();
    world.restart();
    let mut a = world.connect("a");
    world.take_and_ack(&mut a);
    world.send(world.context("a", "b", &id, 1)).unwrap();
    world.restart();
    let mut b = world.connect("b");
    world.take_and_ack(&mut b);
    world.restart();
    world.send(world.complete("b", "a", &id, 1)).unwrap();
    world.restart();
    let mut a = world.connect("a");
    assert_eq!(world.take_and_ack(&mut a).message_type, i32::from(MessageType::HandoffComplete));
    let task = world.task("t").task;
    assert_eq!((task.owner.as_str(), task.epoch), ("b", 2));
}

#[test]
fn mail_that_was_handed_out_and_not_acked_is_there_again() {
    let mut world = World::with(&["a", "b"]);
    world.send(world.info("a", "b", "one")).unwrap();
    let mut b = world.connect("b");
    b.delivery();
    world.restart();
    let mut b = world.connect("b");
    world.take_and_ack(&mut b);
    world.restart();
    assert!(world.connect("b").deliveries().is_empty());
}

#[test]
fn a_repeat_after_a_restart_gets_the_first_receipt_and_changes_nothing() {
    let mut world = World::with(&["a", "b"]);
    let mut envelope = world.request("a", "b", 1);
    world.sign(&mut envelope);
    let first = world.send_signed(&envelope).unwrap();
    world.restart();
    world.pass(Duration::from_secs(330)); // also after the clock window
    let before = world.snapshot();
    assert_eq!(world.send_signed(&envelope).unwrap(), first);
    assert_eq!(world.snapshot(), before);
}

#[test]
fn a_deadline_that_passed_while_the_broker_was_down_is_kept_at_once() {
    let mut world = World::with(&["a", "b"]);
    let id = world.send(world.request("a", "b", 1)).unwrap().handoff_id;
    world.now = world.now.plus(Duration::from_secs(1000));
    world.restart();
    assert_eq!(world.engine.open_handoffs(), 1);
    world.settle();
    assert_eq!(world.handoff(&id).state, State::Failed);
    assert_eq!(world.engine.open_handoffs(), 0);
}

#[test]
fn sequences_go_on_where_they_were() {
    let mut world = World::with(&["a", "b"]);
    let first = world.send(world.info("a", "b", "one")).unwrap().sequence;
    world.restart();
    assert!(world.send(world.info("a", "b", "two")).unwrap().sequence > first);
}

#[test]
fn agents_are_still_registered() {
    let mut world = World::with(&["a", "b:expert"]);
    world.restart();
    world.send(world.request("a", "type:expert", 1)).unwrap();
}

#[test]
fn after_a_full_disk_it_goes_on_without_a_restart_and_sessions_are_told_to_come_back() {
    use baton_broker_core::codes::ErrorCode;
    use std::sync::atomic::Ordering;
    let mut world = World::with(&["a", "b"]);
    let mut b = world.connect("b");
    let kept = world.send(world.info("a", "b", "before")).unwrap();
    assert_eq!(b.deliveries().len(), 1);
    world.disk.full.store(true, Ordering::Relaxed);
    let mut refused = world.info("a", "b", "meanwhile");
    world.sign(&mut refused);
    crate::world::assert_refused(world.send_signed(&refused), ErrorCode::StoreUnavailable);
    assert!(world.engine.has_failed());
    world.disk.full.store(false, Ordering::Relaxed);
    world.recover();
    assert!(!world.engine.has_failed());
    assert!(b.was_sent_away());
    let again = world.send_signed(&refused).unwrap();
    assert!(again.sequence > kept.sequence);
    let mut b = world.connect("b");
    assert_eq!(b.deliveries().len(), 2, "what was handed out before, and what came after");
}

/// More letters than one tick loads.
const LONG_MAILBOX: usize = 2100;

#[test]
fn a_mailbox_that_cannot_be_read_to_its_end_is_no_shorter_one() {
    let mut world = World::with(&["a", "b"]);
    for _ in 0..LONG_MAILBOX {
        world.send(world.info("a", "b", "kept")).unwrap();
    }
    *world.disk.letter_scans.lock().unwrap() = Some(1);
    let mut b = world.connect_as("b", ConsumerKind::Session, 5000);
    assert!(world.engine.has_failed(), "the rest of the mailbox is not taken for empty");
    assert!(b.deliveries().len() < LONG_MAILBOX);
    // The disk reads again.
    *world.disk.letter_scans.lock().unwrap() = None;
    world.recover();
    assert!(b.was_sent_away());
    let mut b = world.connect_as("b", ConsumerKind::Session, 5000);
    assert_eq!(b.deliveries().len(), LONG_MAILBOX, "every receipted letter is delivered");
}

#[test]
fn an_agent_whose_mailbox_cannot_be_read_gets_no_empty_one() {
    let mut world = World::with(&["a", "b"]);
    world.send(world.info("a", "b", "kept")).unwrap();
    *world.disk.letter_scans.lock().unwrap() = Some(0);
    world.connect("b");
    assert!(world.engine.has_failed());
    *world.disk.letter_scans.lock().unwrap() = None;
    world.recover();
    assert_eq!(world.connect("b").deliveries().len(), 1);
}

/// A sequence that began again at 1 would give new messages the places of stored ones.
#[test]
fn a_damaged_sequence_record_is_refused_at_the_start() {
    let mut world = World::with(&["a", "b"]);
    world.send(world.info("a", "b", "one")).unwrap();
    let key = Key { table: Table::Meta, key: b"sequence".into() };
    let mut record = world.disk.get(&key).unwrap().unwrap();
    record.value = vec![0xff; 3].into();
    let write = Write { key, record: Some(record), is_new: false };
    world.disk.commit(vec![Change { expectations: vec![], writes: vec![write] }]).unwrap();
    assert!(matches!(world.opened().err(), Some(BrokerError::Internal)), "the log names the table");
}

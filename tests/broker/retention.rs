//! Retention removes records on which nothing depends, and no others.

use std::{ops::Bound::Unbounded, time::Duration};

use baton_broker_core::{
    BrokerError, Retention, Settings,
    codes::ErrorCode,
    engine::Fate,
    ids::{MessageId, TaskId},
    proto::v1::{Envelope, TaskStatus},
    store::{Change, Key, KeyBytes, Order, Record, Store as _, Table, Write},
};

use crate::world::{Session, World, assert_refused, operator};

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

fn keys(world: &World, table: Table) -> Vec<KeyBytes> {
    let found = world.disk.scan(table, (Unbounded, Unbounded), Order::Ascending, usize::MAX).unwrap();
    found.into_iter().map(|(key, _)| key).collect()
}

/// The names of the tables that have records.
fn used(world: &World) -> Vec<&'static str> {
    Table::ALL.into_iter().filter(|table| !keys(world, *table).is_empty()).map(Table::name).collect()
}

fn with(retention: Retention) -> World {
    World::with_settings(&["a:x", "b:x", "c:x"], Settings { retention, ..Settings::default() })
}

/// Hands task "t" from a to b, who ends it.
fn hand_over_and_end(world: &mut World) -> (Session, Session, String) {
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));
    let handoff = world.hand_over(&mut a, &mut b, 1);
    world.send(world.status("b", "", 2, TaskStatus::Completed)).unwrap();
    (a, b, handoff)
}

#[test]
fn an_ended_task_is_removed_whole_and_its_id_never_begins_again() {
    let mut world = World::with(&["a", "b"]);
    hand_over_and_end(&mut world);
    world.pass(30 * DAY - HOUR);
    world.audit("t");
    world.pass(2 * HOUR);
    assert_eq!(used(&world), ["meta", "agents", "audit", "removed_tasks", "agent_statistics"]);
    for restarted in [false, true] {
        if restarted {
            world.restart();
        }
        assert_refused(world.send(world.request("b", "a", 2)), ErrorCode::TaskFinal);
        assert_refused(world.send(world.request("a", "b", 1)), ErrorCode::StaleEpoch);
        assert_refused(world.send(world.status("a", "", 1, TaskStatus::InProgress)), ErrorCode::StaleEpoch);
        let mut late = world.info("a", "b", "still there?");
        (late.task_id, late.epoch) = ("t".into(), 1);
        assert_refused(world.send(late), ErrorCode::StaleEpoch);
    }
}

#[test]
fn an_open_task_is_kept_for_good_and_its_log_says_its_receipts() {
    let mut world = World::with(&["a", "b"]);
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));
    let first = world.send(world.request("a", "b", 1)).unwrap();
    world.take_and_ack(&mut b);
    let id = first.handoff_id.clone();
    let second = world.send(world.reject("b", "a", &id, &[])).unwrap();
    a.deliveries().iter().for_each(|(delivery, _)| world.ack(&a, delivery));
    world.pass(DAY);
    let third = world.send(world.status("a", "", 1, TaskStatus::InProgress)).unwrap();
    world.pass(100 * DAY);
    assert_eq!(keys(&world, Table::Messages).len(), 3, "they are removed with the task");
    world.audit("t");
    let receipts: Vec<_> = world.custody("t").into_iter().filter_map(|entry| entry.receipt).collect();
    assert_eq!(receipts, [first, second, third]);
}

#[test]
fn a_message_id_is_remembered_for_48_hours() {
    let mut world = World::with(&["a", "b"]);
    let mut envelope = world.info("a", "b", "once");
    world.sign(&mut envelope);
    let first = world.send_signed(&envelope).unwrap();
    world.pass(48 * HOUR - Duration::from_secs(1));
    assert_eq!(world.send_signed(&envelope).unwrap(), first);
    world.pass(Duration::from_secs(1));
    assert!(keys(&world, Table::Messages).is_empty());
    assert_refused(world.send_signed(&envelope), ErrorCode::TimestampOutsideWindow);
}

/// The broker takes up an id of a removed task's message again only after the time for which it remembers ids.
#[test]
fn a_repeat_of_a_removed_task_s_message_gets_its_first_receipt_for_48_hours() {
    let mut world = with(Retention { ended_tasks: Some(HOUR), ..Retention::default() });
    let mut request = world.request("a", "b", 1);
    world.sign(&mut request);
    let first = world.send_signed(&request).unwrap();
    world.send(world.cancel("a", "b", &first.handoff_id, 1)).unwrap();
    world.send(world.status("a", "", 1, TaskStatus::Canceled)).unwrap();
    let mut b = world.connect("b");
    while let Some((delivery, _)) = b.deliveries().pop() {
        world.ack(&b, &delivery);
    }
    world.pass(2 * HOUR);
    assert!(keys(&world, Table::Tasks).is_empty() && keys(&world, Table::Envelopes).is_empty());
    for restarted in [false, true] {
        if restarted {
            world.restart();
        }
        assert_eq!(world.send_signed(&request).unwrap(), first);
        let mut other = world.info("a", "b", "under the same id");
        other.message_id.clone_from(&request.message_id);
        assert_refused(world.send(other), ErrorCode::MessageIdReused);
    }
    world.pass(48 * HOUR);
    assert!(keys(&world, Table::Messages).is_empty());
    assert_refused(world.send_signed(&request), ErrorCode::TimestampOutsideWindow);
}

/// A UUID of version 4 says nothing about the time, and its envelope lies elsewhere.
#[test]
fn a_message_with_an_id_of_any_version_is_delivered_logged_and_removed() {
    let mut world = with(Retention { ended_tasks: Some(DAY * 3), ..Retention::default() });
    let (_, mut b) = (world.connect("a"), world.connect("b"));
    let id = "7d444840-9dc0-41d1-b245-5ffdce74fad2";
    let mut request = Envelope { message_id: id.into(), ..world.request("a", "b", 1) };
    world.sign(&mut request);
    let first = world.send_signed(&request).unwrap();
    assert_eq!(keys(&world, Table::Envelopes).len(), 1);
    assert_eq!(world.take_and_ack(&mut b), request);
    assert_eq!(world.send_signed(&request).unwrap(), first);
    world.audit("t");
    world.send(world.cancel("a", "b", &first.handoff_id, 1)).unwrap();
    world.take_and_ack(&mut b);
    world.send(world.status("a", "", 1, TaskStatus::Canceled)).unwrap();
    world.pass(4 * DAY);
    assert_eq!(used(&world), ["meta", "agents", "audit", "removed_tasks"]);
}

#[test]
fn mail_goes_from_the_store_with_its_last_ack() {
    let mut world = with(Retention::default());
    world.send(world.info("a", "b", "for one")).unwrap();
    world.send(world.info("a", "all:x", "for two")).unwrap();
    assert_eq!(keys(&world, Table::Envelopes).len(), 2);
    let (b, mut c) = (&mut world.connect("b"), world.connect("c"));
    for (left, (delivery, _)) in [1, 1].into_iter().zip(b.deliveries()) {
        world.ack(b, &delivery);
        assert_eq!(keys(&world, Table::Envelopes).len(), left);
    }
    world.take_and_ack(&mut c);
    assert_eq!(used(&world), ["meta", "agents", "messages", "timers", "audit", "kept"]);
    // A mailbox keeps its timer until the timer fires. The ids of messages expire at the same time.
    world.pass(48 * HOUR);
    assert_eq!(used(&world), ["meta", "agents", "audit"]);
}

#[test]
fn a_task_waits_for_the_mail_about_it() {
    let mut world = with(Retention { ended_tasks: Some(HOUR), ..Retention::default() });
    let (_, _, _) = hand_over_and_end(&mut world);
    let mut note = world.info("a", "c", "how did it end?");
    (note.task_id, note.epoch) = ("t".into(), 2);
    world.send(note).unwrap();
    world.pass(10 * HOUR);
    world.audit("t");
    let mut c = world.connect("c");
    world.take_and_ack(&mut c);
    world.pass(HOUR);
    assert_eq!(
        used(&world),
        ["meta", "agents", "messages", "timers", "audit", "kept", "removed_tasks", "agent_statistics"]
    );
}

#[test]
fn a_parked_dead_letter_outlives_its_task_and_goes_when_it_is_settled() {
    let mut world = with(Retention { ended_tasks: Some(HOUR), ..Retention::default() });
    world.send(world.request("a", "b", 1)).unwrap();
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));
    let (delivery, request) = b.delivery();
    world.acknowledge(&b, &delivery, Fate::Poison { text: "no".into() }).unwrap();
    world.take_and_ack(&mut a);
    b.deliveries().iter().for_each(|(delivery, _)| world.ack(&b, delivery));
    world.send(world.status("a", "", 1, TaskStatus::Failed)).unwrap();
    world.pass(60 * DAY);
    assert!(keys(&world, Table::Tasks).is_empty());
    let dead = world.dead_letters().remove(0);
    let caller = operator();
    let view = world.view(&caller);
    let bytes = view.dead_bytes(&dead).unwrap();
    assert_eq!(prost::Message::decode(bytes.envelope), Ok(request));
    assert_refused(world.redrive(dead.number, None), ErrorCode::HandoffUnknown);
    world.discard(dead.number).unwrap();
    world.pass(29 * DAY);
    assert_eq!(world.dead_letters().len(), 1);
    world.pass(2 * DAY);
    assert_eq!(used(&world), ["meta", "agents", "audit", "removed_tasks", "agent_statistics"]);
}

/// The broker is killed after each step.
#[test]
fn a_long_log_is_removed_in_steps_and_is_never_seen_in_part() {
    let mut world = with(Retention { ended_tasks: Some(HOUR), entries_a_step: 2, ..Retention::default() });
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));
    let handoff = world.hand_over(&mut a, &mut b, 1);
    (0..80).for_each(|_| drop(world.send(world.status("b", "", 2, TaskStatus::InProgress)).unwrap()));
    world.send(world.status("b", "", 2, TaskStatus::Completed)).unwrap();
    let entries = keys(&world, Table::Custody).len();
    let (task, handoff) = (TaskId::parse("t").unwrap(), MessageId::parse(&handoff).unwrap());
    world.now = world.now.plus(HOUR);
    let mut seen = vec![entries];
    while !keys(&world, Table::Custody).is_empty() {
        world.restart();
        // After a restart, retention scans the log from the start again while the task is whole.
        while keys(&world, Table::Custody).len() == seen[seen.len() - 1] {
            world.finish();
        }
        seen.push(keys(&world, Table::Custody).len());
        let caller = operator();
        let view = world.view(&caller);
        assert!(matches!(view.task(&task), Err(BrokerError::TaskUnknown { .. })));
        assert!(matches!(view.custody(&task, 0, 100, true), Err(BrokerError::TaskUnknown { .. })));
        assert!(matches!(view.handoff(handoff), Err(BrokerError::HandoffUnknown { .. })));
        assert_eq!(view.handoffs(&Default::default(), 100, "").unwrap().entries, []);
    }
    assert!(seen.len() > 3, "{seen:?}");
    world.settle();
    assert_eq!(
        used(&world),
        ["meta", "agents", "messages", "timers", "audit", "kept", "removed_tasks", "agent_statistics"]
    );
}

/// Begins a task of a, cancels it, and has b take all of its mail.
fn begin_and_cancel(world: &mut World, task: &str) {
    let about = |envelope| Envelope { task_id: task.to_owned(), ..envelope };
    let request = world.send(about(world.request("a", "b", 1))).unwrap();
    world.send(about(world.cancel("a", "b", &request.handoff_id, 1))).unwrap();
    world.send(about(world.status("a", "", 1, TaskStatus::Canceled))).unwrap();
    let mut b = world.connect("b");
    while let Some((delivery, _)) = b.deliveries().pop() {
        world.ack(&b, &delivery);
    }
    world.disconnect(b);
}

#[test]
fn a_task_that_cannot_be_read_does_not_keep_the_later_ones() {
    let mut world = World::with(&["a", "b"]);
    ["t1", "t2", "t3"].into_iter().for_each(|task| begin_and_cancel(&mut world, task));
    let key = Key { table: Table::Tasks, key: "t1".into() };
    let revision = world.disk.get(&key).unwrap().unwrap().revision + 1;
    let record = Some(Record { revision, value: "no task".into() });
    let write = Write { key, record, is_new: false };
    world.disk.commit(vec![Change { expectations: vec![], writes: vec![write] }]).unwrap();
    world.restart();
    world.pass(31 * DAY);
    assert_eq!(keys(&world, Table::Tasks), ["t1".into()]);
}

#[test]
fn a_store_that_is_too_large_loses_the_tasks_that_ended_first() {
    const MOST: u64 = 40_000;
    let mut world = with(Retention { store_bytes_max: Some(MOST), ..Retention::default() });
    let id = |number: u32| format!("t{number:02}");
    let mut number = 0;
    while world.disk.size_bytes().unwrap() <= MOST {
        number += 1;
        begin_and_cancel(&mut world, &id(number));
    }
    let all = keys(&world, Table::Tasks);
    world.pass(Duration::from_secs(90));
    assert_eq!(keys(&world, Table::Tasks), all, "first the store gives back the space of what was removed before");
    world.pass(Duration::from_secs(90));
    assert!(world.disk.size_bytes().unwrap() <= MOST, "it is small enough again");
    let left = keys(&world, Table::Tasks);
    assert!(!left.is_empty(), "and no more was removed than had to be");
    let newest: Vec<_> =
        (1..=number).map(|number| KeyBytes::from(&*id(number))).skip(number as usize - left.len()).collect();
    assert_eq!(left, newest);
}

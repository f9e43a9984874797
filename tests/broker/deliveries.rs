//! Mail: order, credit, acks, redelivery, and the limit of attempts.

use std::{sync::atomic::Ordering, time::Duration};

use baton_broker_core::{
    codes::ErrorCode,
    engine::{ConsumerKind, Fate},
    proto::v1::{self, MessageType},
    store::{Order, Store as _, Table},
};
use prost::Message as _;

use crate::world::{Session, World, assert_refused};

fn texts(session: &mut Session) -> Vec<String> {
    let text = |envelope: baton_broker_core::proto::v1::Envelope| {
        baton_broker_core::proto::v1::Info::decode(envelope.payload.unwrap().value).unwrap().text
    };
    session.deliveries().into_iter().map(|(_, envelope)| text(envelope)).collect()
}

fn dead_letters(world: &World) -> usize {
    use std::ops::Bound::Unbounded;
    world.disk.scan(Table::DeadLetters, (Unbounded, Unbounded), Order::Ascending, 100).unwrap().len()
}

#[test]
fn an_agent_that_is_away_finds_its_mail_in_order() {
    let mut world = World::with(&["a", "b"]);
    for text in ["one", "two", "three"] {
        world.send(world.info("a", "b", text)).unwrap();
    }
    let mut b = world.connect("b");
    assert_eq!(texts(&mut b), ["one", "two", "three"]);
}

#[test]
fn no_more_is_handed_out_than_the_credit() {
    let mut world = World::with(&["a", "b"]);
    let mut b = world.connect_as("b", ConsumerKind::Session, 2);
    for text in ["one", "two", "three"] {
        world.send(world.info("a", "b", text)).unwrap();
    }
    let first = b.deliveries();
    assert_eq!(first.len(), 2);
    world.ack(&b, &first[0].0);
    assert_eq!(texts(&mut b), ["three"]);
}

#[test]
fn an_ack_is_final_and_a_second_one_is_refused() {
    let mut world = World::with(&["a", "b"]);
    let mut b = world.connect("b");
    world.send(world.info("a", "b", "one")).unwrap();
    let (delivery, _) = b.delivery();
    world.ack(&b, &delivery);
    assert_refused(world.acknowledge(&b, &delivery, Fate::Acked), ErrorCode::DeliveryUnknown);
    world.disconnect(b);
    let mut b = world.connect("b");
    assert_eq!(texts(&mut b), [""; 0]);
}

#[test]
fn an_ack_of_another_agents_delivery_is_refused() {
    let mut world = World::with(&["a", "b"]);
    let (a, mut b) = (world.connect("a"), world.connect("b"));
    world.send(world.info("a", "b", "one")).unwrap();
    let (delivery, _) = b.delivery();
    assert_refused(world.acknowledge(&a, &delivery, Fate::Acked), ErrorCode::DeliveryUnknown);
    world.ack(&b, &delivery);
}

#[test]
fn the_end_of_a_session_gives_its_mail_to_the_next_one_and_counts_as_no_failure() {
    let mut world = World::with(&["a", "b"]);
    world.send(world.info("a", "b", "one")).unwrap();
    for attempt in 1..=10 {
        let mut b = world.connect("b");
        assert_eq!(b.delivery().0.attempt, attempt);
        world.disconnect(b);
    }
    assert_eq!(dead_letters(&world), 0);
}

#[test]
fn another_session_of_the_agent_takes_over_and_sees_the_second_attempt() {
    let mut world = World::with(&["a", "b"]);
    let (mut first, mut second) = (world.connect("b"), world.connect_as("b", ConsumerKind::Session, 0));
    world.send(world.info("a", "b", "one")).unwrap();
    assert_eq!(first.delivery().0.attempt, 1);
    world.engine.handle(
        baton_broker_core::engine::Command::Credit { consumer: second.consumer, outstanding_max: 1, reply: None },
        world.now,
    );
    world.disconnect(first);
    assert_eq!(second.delivery().0.attempt, 2);
}

#[test]
fn what_is_not_acked_in_time_comes_again_later_and_later_and_then_is_a_dead_letter() {
    let mut world = World::with(&["a", "b"]);
    let mut b = world.connect("b");
    world.send(world.info("a", "b", "one")).unwrap();
    // These ids give the least jitter: each delay is four fifths of 1, 2, 4 and 8 s.
    for (attempt, wait) in [(1, 800), (2, 1600), (3, 3200), (4, 6400)] {
        assert_eq!(b.delivery().0.attempt, attempt);
        world.pass(Duration::from_secs(30) + Duration::from_millis(wait - 50));
        assert!(b.deliveries().is_empty());
        world.pass(Duration::from_millis(60));
    }
    assert_eq!(b.delivery().0.attempt, 5);
    world.pass(Duration::from_secs(3600));
    assert!(b.deliveries().is_empty());
    assert_eq!(dead_letters(&world), 1);
}

#[test]
fn failures_are_remembered_over_a_restart() {
    let mut world = World::with(&["a", "b"]);
    world.send(world.info("a", "b", "one")).unwrap();
    for _ in 1..=5 {
        let mut b = world.connect("b");
        let (delivery, _) = b.delivery();
        world
            .acknowledge(&b, &delivery, Fate::Failed { text: "busy".into(), retry_after: Some(Duration::ZERO) })
            .unwrap();
        world.restart();
    }
    assert_eq!(dead_letters(&world), 1);
}

#[test]
fn poison_is_a_dead_letter_at_once_and_the_rest_of_the_line_moves() {
    let mut world = World::with(&["a", "b"]);
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));
    let id = world.send(world.request("a", "b", 1)).unwrap().handoff_id;
    let (delivery, _) = b.delivery();
    world.acknowledge(&b, &delivery, Fate::Poison { text: "cannot parse".into() }).unwrap();
    assert_eq!(dead_letters(&world), 1);
    assert_eq!(world.handoff(&id).state, baton_broker_core::domain::handoff::State::Failed, "its handoff hears of it");
    assert_eq!(a.deliveries().len(), 1, "and so does its sender");
    assert_eq!(b.deliveries().len(), 1, "the notice to drop comes after it in the line");
}

#[test]
fn shutdown_is_no_failure_and_may_ask_for_a_pause() {
    let mut world = World::with(&["a", "b"]);
    let mut b = world.connect("b");
    world.send(world.info("a", "b", "one")).unwrap();
    for _ in 0..10 {
        let (delivery, _) = b.delivery();
        let fate = Fate::Shutdown { text: String::new(), retry_after: Some(Duration::from_secs(5)) };
        world.acknowledge(&b, &delivery, fate).unwrap();
        world.pass(Duration::from_secs(4));
        assert!(b.deliveries().is_empty());
        world.pass(Duration::from_secs(1));
    }
    assert_eq!(dead_letters(&world), 0);
}

#[test]
fn an_extension_gives_more_time_and_comes_too_late_after_the_deadline() {
    let mut world = World::with(&["a", "b"]);
    let mut b = world.connect("b");
    world.send(world.info("a", "b", "one")).unwrap();
    let (delivery, _) = b.delivery();
    world.pass(Duration::from_secs(29));
    let extend = Fate::Extend { extension: Some(Duration::from_secs(60)) };
    world.acknowledge(&b, &delivery, extend.clone()).unwrap();
    world.pass(Duration::from_secs(59));
    world.acknowledge(&b, &delivery, Fate::Extend { extension: None }).unwrap();
    world.pass(Duration::from_secs(31));
    assert_refused(world.acknowledge(&b, &delivery, extend), ErrorCode::DeliveryUnknown);
}

#[test]
fn deliveries_of_a_receive_call_outlive_it_until_their_deadline() {
    let mut world = World::with(&["a", "b"]);
    world.send(world.info("a", "b", "one")).unwrap();
    let kind = ConsumerKind::Receive { deliveries_max: Some(1) };
    let mut call = world.connect_as("b", kind, 16);
    let (delivery, _) = call.delivery();
    world.disconnect(call);
    let mut other = world.connect("b");
    assert!(other.deliveries().is_empty(), "it is still handed out");
    world.ack(&other, &delivery);
    world.pass(Duration::from_secs(60));
    assert!(other.deliveries().is_empty());
}

#[test]
fn expired_mail_is_a_dead_letter_and_is_not_delivered() {
    let mut world = World::with(&["a", "b"]);
    let mut envelope = world.info("a", "b", "one");
    envelope.expires_at = Some(world.now.plus(Duration::from_secs(60)).into());
    world.send(envelope).unwrap();
    world.send(world.info("a", "b", "two")).unwrap();
    world.pass(Duration::from_secs(60));
    let mut b = world.connect("b");
    assert_eq!(texts(&mut b), ["two"]);
    assert_eq!(dead_letters(&world), 1);
}

#[test]
fn a_slow_agent_does_not_slow_another_down() {
    let mut world = World::with(&["a", "slow", "quick"]);
    let (_slow, mut quick) = (world.connect_as("slow", ConsumerKind::Session, 1), world.connect("quick"));
    for _ in 0..50 {
        world.send(world.info("a", "slow", "x")).unwrap();
        world.send(world.info("a", "quick", "x")).unwrap();
    }
    assert_eq!(texts(&mut quick).len(), 50);
}

#[test]
fn a_message_to_all_of_a_type_goes_to_each_but_its_sender() {
    let mut world = World::with(&["a:team", "b:team", "c:team", "d"]);
    let mut sessions = ["a", "b", "c", "d"].map(|agent| world.connect(agent));
    world.send(world.info("a", "all:team", "hello")).unwrap();
    assert_eq!(sessions.each_mut().map(|session| session.deliveries().len()), [0, 1, 1, 0]);
}

#[test]
fn a_full_disk_refuses_and_delivers_nothing() {
    let mut world = World::with(&["a", "b"]);
    let mut b = world.connect("b");
    let before = world.snapshot();
    world.disk.full.store(true, Ordering::Relaxed);
    assert_refused(world.send(world.info("a", "b", "one")), ErrorCode::StoreUnavailable);
    assert!(b.deliveries().is_empty());
    world.disk.full.store(false, Ordering::Relaxed);
    assert_refused(world.send(world.info("a", "b", "two")), ErrorCode::StoreUnavailable);
    assert_eq!(world.snapshot(), before);
    world.restart();
    world.send(world.info("a", "b", "three")).unwrap();
}

/// More messages than one load reads: none is missing, duplicated or out of order, and the same holds for later
/// arrivals.
#[test]
fn a_large_mailbox_is_handed_out_whole_and_in_order() {
    const LETTERS: usize = 5000;
    let mut world = World::with(&["a", "b"]);
    for number in 0..LETTERS - 1 {
        world.send(world.info("a", "b", &number.to_string())).unwrap();
    }
    world.restart();
    let mut b = world.connect("b");
    world.send(world.info("a", "b", "the last")).unwrap();
    let mut sequences = Vec::new();
    loop {
        let deliveries = b.deliveries();
        if deliveries.is_empty() {
            break;
        }
        for (delivery, _) in deliveries {
            world.ack(&b, &delivery);
            sequences.push(delivery.sequence);
        }
    }
    assert_eq!(sequences.len(), LETTERS);
    assert!(sequences.is_sorted());
}

#[test]
fn mail_with_a_later_time_waits_for_it_also_over_a_restart() {
    let mut world = World::with(&["a", "b"]);
    let hour = Duration::from_secs(3600);
    let later =
        v1::Info { text: "later".into(), deliver_after: Some(world.now.plus(50 * hour).into()), ..Default::default() };
    let envelope = world.envelope("a", "b", MessageType::Info, &later);
    world.send(envelope).unwrap();
    world.pass(49 * hour);
    world.restart();
    let mut b = world.connect("b");
    assert!(b.deliveries().is_empty(), "its lifetime begins with its delivery, and a restart does not deliver it");
    world.pass(hour);
    assert_eq!(world.take_and_ack(&mut b).message_type(), MessageType::Info);

    let too_late = v1::Info { deliver_after: Some(world.now.plus(721 * hour).into()), ..later };
    let envelope = world.envelope("a", "b", MessageType::Info, &too_late);
    assert_refused(world.send(envelope), ErrorCode::FieldInvalid);
}

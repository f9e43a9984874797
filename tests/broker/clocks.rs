//! A clock that runs ahead by seconds or by a day, and is corrected with or without a restart of the broker.

use std::time::Duration;

use baton_broker_core::{
    Settings,
    codes::ErrorCode,
    directory::PresenceState,
    domain::{dead_letter::ParkReason, handoff::State},
    engine::Fate,
    proto::v1,
    records::AuditHead,
    store::Table,
    time::Timestamp,
};
use prost::Message as _;

use crate::world::{Session, World, assert_refused};

const DAY: Duration = Duration::from_secs(86_400);

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A correction of the clock.
#[derive(Debug, Clone, Copy)]
struct Right {
    ahead: Duration,
    restarts: bool,
}

impl Right {
    fn set(self, world: &mut World) {
        world.now = world.now.minus(self.ahead);
        if self.restarts {
            world.restart();
        }
        world.settle();
    }
}

/// Runs the story at a broker whose clock is ahead, once for each kind of correction.
fn each_way(settings: &Settings, agents: &[&str], story: impl Fn(&mut World, Right)) {
    for ahead in [seconds(20), DAY] {
        for restarts in [false, true] {
            let mut world = World::with_settings(agents, settings.clone());
            world.now = world.now.plus(ahead);
            world.settle();
            println!("{ahead:?} ahead, restarts: {restarts}");
            story(&mut world, Right { ahead, restarts });
        }
    }
}

fn texts(session: &mut Session) -> Vec<String> {
    let text = |envelope: v1::Envelope| v1::Info::decode(envelope.payload.unwrap().value).unwrap().text;
    session.deliveries().into_iter().map(|(_, envelope)| text(envelope)).collect()
}

/// The times of the task's log entries.
fn log_times(world: &World) -> Vec<Timestamp> {
    let time = |entry: v1::CustodyLogEntry| entry.entry.unwrap().entry_time.unwrap();
    let moment = |time: prost_types::Timestamp| Timestamp::from_parts(time.seconds, time.nanos).unwrap();
    world.custody("t").into_iter().map(|entry| moment(time(entry))).collect()
}

#[test]
fn mail_is_delivered_at_once_and_in_its_order() {
    each_way(&Settings::default(), &["a", "b"], |world, right| {
        world.send(world.info("a", "b", "one")).unwrap();
        right.set(world);
        world.send(world.info("a", "b", "two")).unwrap();
        assert_eq!(texts(&mut world.connect("b")), ["one", "two"]);
    });
}

#[test]
fn sessions_are_told_to_come_back_and_get_what_they_have_not_acked() {
    each_way(&Settings::default(), &["a", "b"], |world, right| {
        let mut b = world.connect("b");
        world.send(world.info("a", "b", "one")).unwrap();
        assert_eq!(texts(&mut b), ["one"]);
        right.set(world);
        assert_eq!(b.was_sent_away(), !right.restarts);
        let mut b = world.connect("b");
        world.take_and_ack(&mut b);
        world.disconnect(b);
        assert_eq!(texts(&mut world.connect("b")), [""; 0]);
    });
}

#[test]
fn a_redelivery_waits_as_long_as_it_was_to_wait() {
    each_way(&Settings::default(), &["a", "b"], |world, right| {
        let mut b = world.connect("b");
        world.send(world.info("a", "b", "one")).unwrap();
        let (delivery, _) = b.delivery();
        let retry_after = Some(seconds(600));
        world.acknowledge(&b, &delivery, Fate::Failed { text: String::new(), retry_after }).unwrap();
        right.set(world);
        let mut b = world.connect("b");
        world.pass(seconds(599));
        assert_eq!(texts(&mut b), [""; 0]);
        world.pass(seconds(1));
        assert_eq!(texts(&mut b), ["one"]);
    });
}

#[test]
fn mail_expires_when_it_was_to_expire() {
    let settings = Settings { mail_lifetime: seconds(600), ..Settings::default() };
    each_way(&settings, &["a", "b"], |world, right| {
        world.send(world.info("a", "b", "one")).unwrap();
        right.set(world);
        world.pass(seconds(599));
        assert_eq!(world.dead_letters().len(), 0);
        world.pass(seconds(1));
        let dead = world.dead_letters();
        assert_eq!(dead[0].reason, ParkReason::Expired);
        assert_eq!(dead[0].reason_text, format!("its time was over at {}", world.now));
    });
}

#[test]
fn a_handoff_ends_within_its_whole_time() {
    each_way(&Settings::default(), &["a", "b"], |world, right| {
        let id = world.send(world.request("a", "b", 1)).unwrap().handoff_id;
        world.pass(seconds(100));
        world.send(world.info("a", "b", "what is stored says how late it is")).unwrap();
        right.set(world);
        world.pass(seconds(259));
        assert_eq!(world.handoff(&id).state, State::Requested);
        world.pass(seconds(1));
        assert_eq!(world.handoff(&id).state, State::Failed);
        world.audit("t");
    });
}

#[test]
fn a_step_ends_within_its_time() {
    each_way(&Settings::default(), &["a", "b"], |world, right| {
        let mut b = world.connect("b");
        let id = world.send(world.request("a", "b", 1)).unwrap().handoff_id;
        world.take_and_ack(&mut b);
        right.set(world);
        world.pass(seconds(29));
        assert_eq!(world.handoff(&id).state, State::Deciding);
        world.pass(seconds(1));
        assert_eq!(world.handoff(&id).state, State::Failed);
        assert_refused(world.send(world.accept("b", "a", &id, 1)), ErrorCode::HandoffExpired);
        world.audit("t");
    });
}

#[test]
fn a_handoff_goes_on_and_its_log_never_goes_back() {
    each_way(&Settings::default(), &["a", "b"], |world, right| {
        let (mut a, mut b) = (world.connect("a"), world.connect("b"));
        world.hand_over(&mut a, &mut b, 1);
        let id = world.send(world.request("b", "a", 2)).unwrap().handoff_id;
        right.set(world);
        let (mut a, mut b) = (world.connect("a"), world.connect("b"));
        world.take_and_ack(&mut a);
        world.pass(seconds(5));
        let mut accept = world.accept("a", "b", &id, 2);
        world.sign(&mut accept);
        let receipt = world.send_signed(&accept).unwrap();
        world.take_and_ack(&mut b);
        world.send(world.context("b", "a", &id, 2)).unwrap();
        world.take_and_ack(&mut a);
        world.send(world.complete("a", "b", &id, 2)).unwrap();
        assert_eq!(world.send_signed(&accept).unwrap(), receipt);
        world.send(world.status("a", "", 3, v1::TaskStatus::InProgress)).unwrap();
        assert_refused(world.send(world.request("b", "a", 2)), ErrorCode::StaleEpoch);
        let times = log_times(world);
        assert!(times.is_sorted(), "{times:?}");
        let shown = world.custody("t").into_iter().filter_map(|entry| entry.receipt);
        assert!(shown.into_iter().any(|shown| shown == receipt), "a log shows the receipts that were given");
        world.audit("t");
    });
}

/// The log's times continue from the future until the clock has caught up. A handoff keeps its full time meanwhile.
#[test]
fn a_handoff_of_a_task_with_a_log_from_the_future_has_its_time_and_no_more() {
    each_way(&Settings::default(), &["a", "b"], |world, right| {
        let (mut a, mut b) = (world.connect("a"), world.connect("b"));
        world.hand_over(&mut a, &mut b, 1);
        right.set(world);
        let id = world.send(world.request("b", "a", 2)).unwrap().handoff_id;
        world.pass(seconds(359));
        assert_eq!(world.handoff(&id).state, State::Requested);
        world.restart();
        world.pass(seconds(1));
        assert_eq!(world.handoff(&id).state, State::Failed);
        world.pass(right.ahead);
        world.send(world.status("b", "", 2, v1::TaskStatus::InProgress)).unwrap();
        let times = log_times(world);
        assert!(times.is_sorted(), "{times:?}");
        assert_eq!(times.last(), Some(&world.now));
        world.audit("t");
    });
}

#[test]
fn the_audit_log_never_goes_back() {
    each_way(&Settings::default(), &["a"], |world, right| {
        world.register("b", "");
        right.set(world);
        world.register("c", "");
        let acts = world.snapshot().into_iter().filter(|(table, ..)| *table == Table::Audit);
        let times: Vec<_> = acts.map(|(.., record)| AuditHead::entry_time(&record.value).unwrap()).collect();
        assert!(times.len() == 3 && times.is_sorted(), "{times:?}");
    });
}

#[test]
fn agents_have_a_lease_to_come_back_and_no_more() {
    each_way(&Settings::default(), &["a", "b"], |world, right| {
        let b = world.connect("b");
        world.heartbeat(&b);
        right.set(world);
        assert!(!world.is_gone("b"));
        world.pass(seconds(59));
        assert!(!world.is_gone("b"));
        let a = world.connect("a");
        world.pass(seconds(1));
        assert_eq!((world.presence("a"), world.is_gone("b")), (PresenceState::Alive, true));
        world.disconnect(a);
    });
}

#[test]
fn a_repeat_of_a_message_from_the_future_gets_the_first_receipt() {
    each_way(&Settings::default(), &["a", "b"], |world, right| {
        let mut envelope = world.request("a", "b", 1);
        world.sign(&mut envelope);
        let first = world.send_signed(&envelope).unwrap();
        right.set(world);
        assert_eq!(world.send_signed(&envelope).unwrap(), first);
    });
}

/// The clock is so far ahead that the broker removes message ids which are inside the clock window after the
/// correction.
#[test]
fn no_message_is_applied_twice_where_its_id_was_forgotten_too_early() {
    for restarts in [false, true] {
        let mut world = World::with(&["a", "b"]);
        let mut envelope = world.info("a", "b", "one");
        world.sign(&mut envelope);
        world.send_signed(&envelope).unwrap();
        let right = Right { ahead: DAY * 3, restarts };
        world.now = world.now.plus(right.ahead);
        world.settle();
        world.send(world.info("a", "b", "from the future")).unwrap();
        right.set(&mut world);
        assert_refused(world.send_signed(&envelope), ErrorCode::TimestampOutsideWindow);
        assert_refused(world.send(world.info("a", "b", "two")), ErrorCode::TimestampOutsideWindow);
        world.pass(seconds(301));
        assert_refused(world.send_signed(&envelope), ErrorCode::TimestampOutsideWindow);
        world.send(world.info("a", "b", "three")).unwrap();
    }
}

//! Each transition of a member, in virtual time.

use std::time::Duration;

use bytes::Bytes;

use super::{
    Action, Config, Divergence, Ending, Event, Leave, Member, PeerPosition, ProposeError, Role, SUSPENDED_MAX,
};
use crate::{
    engines::memory::Memory,
    entry::{Chain, ChainKey, EntryError, Expected, Foundation, HEAD_BYTES, Payload, TooLarge},
    lease,
    log::{AppendError, ReadError, Unavailable, WriteError},
};

const LEASE: Duration = Duration::from_secs(5);

fn config(broker: &str, level: u16) -> Config {
    Config {
        broker: broker.into(),
        process: Bytes::from(format!("process of {broker:>5}")),
        peer_address: format!("{broker}:22867"),
        version: "0".into(),
        lease: LEASE,
        entry_bytes_max: 1024,
        expected: Expected {
            key: ChainKey::derive(b"secret"),
            cluster: Bytes::from_static(&[7; 16]),
            keys: Vec::new(),
            level,
        },
    }
}

/// A member and the engine that it calls. Calls are answered at once, except where a test says what the answer is.
struct World {
    engine: Memory,
    member: Member,
    now: Duration,
    peers: Vec<PeerPosition>,
    /// The outcomes of the next appends, in place of the true ones; the entry is appended where it says so.
    appends: Vec<(bool, Result<(), AppendError>)>,
    register_is_gone: bool,
    done: Vec<Action>,
}

impl World {
    fn new(engine: &Memory, broker: &str) -> Self {
        let member = Member::new(config(broker, 1), Chain::EMPTY, Duration::ZERO);
        let (now, engine) = (Duration::ZERO, engine.clone());
        let (peers, appends, done) = (Vec::new(), Vec::new(), Vec::new());
        Self { engine, member, now, peers, appends, register_is_gone: false, done }
    }

    /// A member that leads.
    fn leading(engine: &Memory, broker: &str) -> Self {
        let mut world = Self::new(engine, broker);
        world.run(LEASE * 2);
        assert_eq!(*world.member.role(), Role::Leading);
        world
    }

    fn handle(&mut self, event: Event) {
        self.member.handle(self.now, event);
        while let Some(action) = self.member.next_action() {
            if let Some(event) = self.answer(&action) {
                self.member.handle(self.now, event);
            }
            self.done.push(action);
        }
    }

    fn answer(&mut self, action: &Action) -> Option<Event> {
        let gone = || Unavailable("gone".into());
        Some(match action.clone() {
            Action::ReadLease(ticket) if self.register_is_gone => Event::LeaseRead(ticket, Err(gone())),
            Action::ReadLease(ticket) => Event::LeaseRead(ticket, Ok(self.engine.value(lease::NAME))),
            Action::WriteLease { ticket, .. } if self.register_is_gone => {
                Event::LeaseWritten(ticket, Err(WriteError::Unknown("gone".into())))
            }
            Action::WriteLease { ticket, expected, value } => {
                Event::LeaseWritten(ticket, self.engine.write_now(lease::NAME, expected.as_ref(), value))
            }
            Action::ReadLog { ticket, from } => Event::LogRead(ticket, self.engine.read_now(from, 10_000)),
            Action::Append { ticket, after, entry } => {
                let (is_in, told) = if self.appends.is_empty() { (true, Ok(())) } else { self.appends.remove(0) };
                let outcome = if is_in { self.engine.append_now(after, entry) } else { Ok(()) };
                Event::Appended(ticket, told.and(outcome))
            }
            Action::AskPeers(ticket) => Event::PeersAnswered(ticket, self.peers.clone()),
            Action::EndService(_) => Event::ServiceEnded,
            Action::Restore { .. }
            | Action::Apply(..)
            | Action::Lead { .. }
            | Action::Committed(_)
            | Action::Refused(_)
            | Action::Moved(_) => return None,
        })
    }

    /// Lets time pass, with each wake that the member asks for.
    fn run(&mut self, span: Duration) {
        let end = self.now + span;
        self.handle(Event::Tick);
        while let Some(wake) = self.member.next_wake().filter(|wake| *wake <= end) {
            self.now = self.now.max(wake);
            self.handle(Event::Tick);
        }
        self.now = end;
    }

    fn propose(&mut self, writes: &'static str) {
        self.member.propose(self.now, Bytes::from_static(writes.as_bytes())).unwrap();
        self.handle(Event::Tick);
    }

    /// The actions since the last call that a test looks at.
    fn done(&mut self) -> Vec<Action> {
        let is_seen = |action: &Action| {
            matches!(action, Action::Lead { .. } | Action::Committed(_) | Action::EndService(_) | Action::Moved(_))
        };
        std::mem::take(&mut self.done).into_iter().filter(is_seen).collect()
    }
}

fn unknown() -> Result<(), AppendError> {
    Err(AppendError::Unknown("no answer".into()))
}

#[test]
fn the_first_broker_claims_an_empty_log_and_leads() {
    let mut world = World::new(&Memory::default(), "b1");
    world.run(Duration::from_secs(1));
    let expected =
        [Action::Moved(Role::Claiming), Action::Moved(Role::Leading), Action::Lead { term: 1, former: None }];
    assert_eq!(world.done(), expected);
    assert!(world.member.guard_holds(world.now));
    world.propose("one");
    assert_eq!(world.done(), [Action::Committed(2)]);
}

#[test]
fn a_group_that_fills_an_entry_is_taken_and_a_larger_one_is_refused() {
    let mut world = World::leading(&Memory::default(), "b1");
    for bytes in [1023, 1024] {
        world.member.propose(world.now, Bytes::from(vec![1; bytes - HEAD_BYTES])).unwrap();
        world.handle(Event::Tick);
    }
    let end = world.member.chain();
    assert_eq!(end.position, 3);
    let refused = world.member.propose(world.now, Bytes::from(vec![1; 1025 - HEAD_BYTES]));
    assert_eq!(refused, Err(ProposeError::TooLarge(TooLarge { bytes: 1025, bytes_max: 1024 })));
    assert_eq!((world.member.chain(), world.member.next_action()), (end, None), "nothing was asked of the log");
    world.propose("one");
}

#[test]
fn a_follower_applies_and_claims_once_the_lease_stands_still_for_its_whole_time() {
    let engine = Memory::default();
    let mut leader = World::leading(&engine, "b1");
    leader.propose("one");
    let mut follower = World::new(&engine, "b2");
    follower.run(LEASE - Duration::from_millis(1));
    assert_eq!(*follower.member.role(), Role::Following);
    assert_eq!(follower.member.leader(), Some(("b1", "b1:22867")));
    let applied = follower.done.iter().filter(|action| matches!(action, Action::Apply(..))).count();
    assert_eq!((applied, follower.member.chain()), (2, leader.member.chain()));
    follower.run(Duration::from_secs(1));
    assert_eq!(*follower.member.role(), Role::Leading);
    assert_eq!(follower.member.chain().term, 2);
    // The former leader is fenced, and answers nothing.
    leader.now += LEASE;
    leader.member.propose(leader.now, Bytes::from_static(b"late")).unwrap();
    leader.done.clear();
    leader.handle(Event::Tick);
    let done = leader.done();
    assert!(
        done.contains(&Action::Moved(Role::Leaving))
            && !done.iter().any(|action| matches!(action, Action::Committed(_)))
    );
}

#[test]
fn the_guard_ends_at_four_fifths_of_the_lease_from_the_begin_of_its_write() {
    let mut world = World::leading(&Memory::default(), "b1");
    world.register_is_gone = true;
    let wrote_at = world.now;
    world.handle(Event::Tick);
    assert!(world.member.guard_holds(wrote_at + LEASE * 3 / 5));
    assert!(!world.member.guard_holds(wrote_at + LEASE * 4 / 5));
    world.run(LEASE);
    assert_eq!(*world.member.role(), Role::Suspended);
    // It still appends, and its own version gives the lease back.
    world.done.clear();
    world.propose("one");
    assert_eq!(world.done(), [Action::Committed(2)]);
    world.register_is_gone = false;
    world.run(LEASE);
    assert_eq!(world.done(), [Action::Moved(Role::Leading)]);
}

#[test]
fn a_leader_without_a_lease_leaves_after_two_minutes() {
    let mut world = World::leading(&Memory::default(), "b1");
    world.register_is_gone = true;
    world.done.clear();
    world.run(LEASE + SUSPENDED_MAX);
    let expected = [
        Action::Moved(Role::Suspended),
        Action::EndService(Leave::SuspendedTooLong),
        Action::Moved(Role::Leaving),
        Action::Moved(Role::Following),
    ];
    assert_eq!(world.done(), expected);
}

#[test]
fn a_lease_of_another_process_ends_the_term() {
    let engine = Memory::default();
    let mut world = World::leading(&engine, "b1");
    let (version, _) = engine.value(lease::NAME).unwrap();
    engine.write_now(lease::NAME, Some(&version), Bytes::from_static(b"\x0a\x02b2")).unwrap();
    world.done.clear();
    world.run(LEASE / 2);
    assert!(world.done().starts_with(&[Action::EndService(Leave::LeaseLost), Action::Moved(Role::Leaving)]));
    // A lease of another broker is not given back.
    assert_eq!(engine.value(lease::NAME).unwrap().1, Bytes::from_static(b"\x0a\x02b2"));
}

#[test]
fn a_step_down_gives_the_lease_back_and_another_takes_over_at_once() {
    let engine = Memory::default();
    let mut leader = World::leading(&engine, "b1");
    let mut follower = World::new(&engine, "b2");
    follower.run(Duration::from_secs(1));
    leader.handle(Event::StepDown);
    assert_eq!(*leader.member.role(), Role::Following);
    follower.run(LEASE / 5);
    assert_eq!(*follower.member.role(), Role::Leading);
    leader.run(LEASE / 2);
    assert_eq!((leader.member.role(), leader.member.chain()), (&Role::Following, follower.member.chain()));
}

#[test]
fn an_unknown_outcome_is_settled_by_the_same_bytes_and_a_confirmation() {
    // Not in: the second try is the first in the log.
    let engine = Memory::default();
    let mut world = World::leading(&engine, "b1");
    world.done.clear();
    world.appends = vec![(false, unknown())];
    world.propose("one");
    assert_eq!(world.done(), []);
    assert_eq!(world.member.propose(world.now, Bytes::new()), Err(ProposeError::Busy));
    world.run(Duration::from_secs(1));
    assert_eq!((world.done(), engine.end_now()), (vec![Action::Committed(2)], 2));
    // In: it is found by reading, and answered once a confirmation is behind it.
    world.appends = vec![(true, unknown())];
    world.propose("two");
    assert_eq!(world.done(), []);
    world.run(Duration::from_secs(1));
    assert_eq!((world.done(), engine.end_now()), (vec![Action::Committed(3)], 4));
    let confirmation = crate::entry::parse(&engine.read_now(4, 1).unwrap()[0].1).unwrap();
    assert_eq!(confirmation.payload, Payload::Confirmation);
    assert_eq!(world.member.chain().position, 4);
}

#[test]
fn an_outcome_of_an_earlier_call_changes_nothing() {
    let mut world = World::leading(&Memory::default(), "b1");
    world.member.propose(world.now, Bytes::from_static(b"one")).unwrap();
    for ticket in 0..3 {
        world.member.handle(world.now, Event::Appended(ticket, Ok(())));
    }
    let committed =
        std::iter::from_fn(|| world.member.next_action()).any(|action| matches!(action, Action::Committed(_)));
    assert!(!committed);
}

#[test]
fn a_log_that_went_back_is_seen_by_leader_follower_and_peer() {
    let engine = Memory::default();
    let mut leader = World::leading(&engine, "b1");
    leader.propose("one");
    let mut follower = World::new(&engine, "b2");
    follower.run(Duration::from_secs(1));
    engine.lose_tail(1);
    leader.done.clear();
    leader.propose("two");
    let diverged = Role::Diverged(Divergence::WentBack { position: 2 });
    assert_eq!(leader.done(), [Action::EndService(Leave::Diverged), Action::Moved(diverged.clone())]);
    follower.run(LEASE * 2);
    assert_eq!(*follower.member.role(), diverged);
    // One that was behind would lead, and lose what was answered: it asks its peers.
    let mut behind = World::new(&engine, "b3");
    behind.peers = vec![PeerPosition { peer: "b1".into(), chain: leader.member.chain() }];
    behind.run(LEASE * 3);
    let ahead = Divergence::PeerAhead { peer: "b1".into(), position: 2, end: 1 };
    assert_eq!(*behind.member.role(), Role::Diverged(ahead));
    assert_eq!(behind.member.next_wake(), None, "it waits for an operator");
}

#[test]
fn leader_and_follower_see_within_a_lease_that_an_idle_log_went_back() {
    let engine = Memory::default();
    let mut leader = World::leading(&engine, "b1");
    leader.propose("one");
    let mut follower = World::new(&engine, "b2");
    let pace = Duration::from_millis(500);
    let together = |leader: &mut World, follower: &mut World, span: Duration| {
        for _ in 0..span.as_millis() / pace.as_millis() {
            leader.run(pace);
            follower.run(pace);
        }
    };
    together(&mut leader, &mut follower, LEASE * 3);
    assert_eq!((leader.member.role(), follower.member.role()), (&Role::Leading, &Role::Following));
    engine.lose_tail(1);
    leader.done();
    together(&mut leader, &mut follower, LEASE + pace);
    let diverged = Role::Diverged(Divergence::WentBack { position: 2 });
    assert_eq!((leader.member.role(), follower.member.role()), (&diverged, &diverged));
    assert_eq!(leader.done(), [Action::EndService(Leave::Diverged), Action::Moved(diverged)]);
}

#[test]
fn a_leader_compares_its_last_entry_once_a_lease_and_not_while_it_appends() {
    let mut world = World::leading(&Memory::default(), "b1");
    let reads = |world: &mut World| {
        let is_read = |action: &Action| matches!(action, Action::ReadLog { .. });
        std::mem::take(&mut world.done).into_iter().filter(is_read).count()
    };
    reads(&mut world);
    world.run(LEASE * 10);
    assert!((9..=10).contains(&reads(&mut world)), "once a lease");
    for _ in 0..20 {
        world.propose("one");
        world.run(LEASE / 2);
    }
    assert_eq!((reads(&mut world), world.member.role()), (0, &Role::Leading), "each append compares");
    // The read of an entry that is not the last one any more, because the leader appended meanwhile.
    world.now += LEASE;
    world.member.handle(world.now, Event::Tick);
    let read = |action: Action| if let Action::ReadLog { ticket, .. } = action { Some(ticket) } else { None };
    let ticket = std::iter::from_fn(|| world.member.next_action()).find_map(read).unwrap();
    world.propose("two");
    world.handle(Event::LogRead(ticket, Ok(Vec::new())));
    let goes_on = |world: &World| matches!(world.member.role(), Role::Leading | Role::Suspended);
    assert!(goes_on(&world));
    // One that the engine does not answer shows nothing.
    world.now += LEASE;
    world.member.handle(world.now, Event::Tick);
    let ticket = std::iter::from_fn(|| world.member.next_action()).find_map(read).unwrap();
    world.handle(Event::LogRead(ticket, Err(ReadError::Unavailable(Unavailable("gone".into())))));
    assert!(goes_on(&world));
}

#[test]
fn an_idle_leader_sees_another_entry_in_the_place_of_its_own() {
    let engine = Memory::default();
    let mut world = World::leading(&engine, "b1");
    world.propose("one");
    let own = world.member.chain();
    engine.lose_tail(1);
    engine.append_now(own.position - 1, Bytes::from_static(b"of another history")).unwrap();
    world.run(LEASE * 2);
    let position = own.position;
    assert_eq!(*world.member.role(), Role::Diverged(Divergence::OtherEntry { position }));
}

#[test]
fn a_trimmed_log_is_restored_from_a_peer() {
    let engine = Memory::default();
    let mut leader = World::leading(&engine, "b1");
    leader.propose("one");
    leader.propose("two");
    engine.trim_now(3);
    let mut late = World::new(&engine, "b2");
    late.run(Duration::from_millis(1));
    assert_eq!(*late.member.role(), Role::Restoring);
    let restore = |action: &Action| match action {
        Action::Restore { ticket, first } => Some((*ticket, *first)),
        _ => None,
    };
    let (ticket, first) = late.done.iter().find_map(restore).unwrap();
    assert_eq!(first, 3);
    // It learns who leads, for its relay.
    assert_eq!(late.member.leader().map(|(broker, _)| broker), Some("b1"));
    late.handle(Event::Restored(ticket + 1, Some(leader.member.chain())));
    assert_eq!(*late.member.role(), Role::Restoring, "the outcome of another call");
    late.handle(Event::Restored(ticket, Some(leader.member.chain())));
    assert_eq!((late.member.role(), late.member.chain()), (&Role::Following, leader.member.chain()));
}

fn foundation(expected: &Expected) -> Payload {
    Payload::Foundation(Foundation {
        cluster: expected.cluster.clone(),
        broker: "b1".into(),
        id: Bytes::from_static(&[1; 16]),
        ..Foundation::default()
    })
}

#[test]
fn a_log_that_begins_behind_a_store_is_followed_only_by_its_copies() {
    let engine = Memory::default();
    let expected = config("b1", 1).expected;
    let foundation = foundation(&expected);
    let entry = Chain::EMPTY.next(&foundation, &expected, 1024).unwrap();
    engine.append_now(0, entry.clone()).unwrap();
    let mut founded = Chain::EMPTY;
    founded.follow(&entry, &expected).unwrap();
    let mut empty = World::new(&engine, "b2");
    empty.run(LEASE * 3);
    assert_eq!(*empty.member.role(), Role::Restoring, "it never leads");
    let restore = empty.done.iter().find_map(|action| match action {
        Action::Restore { ticket, first } => Some((*ticket, *first)),
        _ => None,
    });
    let (ticket, first) = restore.unwrap();
    assert_eq!(first, 2);
    let mut first = World::new(&engine, "b1");
    first.member = Member::new(config("b1", 1), founded, Duration::ZERO);
    first.run(LEASE * 2);
    assert_eq!((first.member.role(), first.member.chain().term), (&Role::Leading, 2));
    empty.handle(Event::Restored(ticket, Some(founded)));
    empty.run(Duration::from_secs(1));
    assert_eq!((empty.member.role(), empty.member.chain()), (&Role::Following, first.member.chain()));
    // One that was founded elsewhere has another first entry.
    let mut other = World::new(&engine, "b3");
    let elsewhere = Chain { hash: crate::entry::Hash([9; 32]), ..founded };
    other.member = Member::new(config("b3", 1), elsewhere, Duration::ZERO);
    other.run(Duration::from_secs(1));
    assert_eq!(*other.member.role(), Role::Diverged(Divergence::OtherEntry { position: 1 }));
}

#[test]
fn a_foundation_behind_other_entries_is_damage() {
    let expected = config("b1", 1).expected;
    let foundation = foundation(&expected);
    let mut chain = Chain::EMPTY;
    for position in 1..=2 {
        let entry = chain.next(&foundation, &expected, 1024).unwrap();
        let followed = chain.follow(&entry, &expected).map(|entry| entry.position);
        match position {
            1 => assert_eq!(followed, Ok(1)),
            _ => assert_eq!(followed, Err(EntryError::Foundation { position })),
        }
    }
}

#[test]
fn an_entry_of_a_newer_program_ends_the_process_and_damage_does_not() {
    let engine = Memory::default();
    let newer = config("b1", 2).expected;
    let mut writer = World::new(&engine, "b1");
    writer.member = Member::new(config("b1", 2), Chain::EMPTY, Duration::ZERO);
    writer.run(Duration::from_secs(1));
    let mut reader = World::new(&engine, "b2");
    reader.run(Duration::from_millis(1));
    let refused = Ending::Refused(EntryError::Newer { level: newer.level, known: 1 });
    assert_eq!(*reader.member.role(), Role::Ended(refused));
    let mut reader = World::new(&Memory::default(), "b3");
    reader.engine.append_now(0, Bytes::from_static(b"damage")).unwrap();
    reader.run(Duration::from_millis(1));
    assert_eq!(*reader.member.role(), Role::Diverged(Divergence::Damaged(EntryError::Torn { bytes: 6 })));
}

#[test]
fn a_log_that_cannot_be_read_is_asked_again() {
    let mut world = World::new(&Memory::default(), "b1");
    world.member.handle(world.now, Event::Tick);
    let ticket = std::iter::from_fn(|| world.member.next_action())
        .find_map(|action| if let Action::ReadLog { ticket, .. } = action { Some(ticket) } else { None });
    let gone = ReadError::Unavailable(Unavailable("gone".into()));
    world.member.handle(world.now, Event::LogRead(ticket.unwrap(), Err(gone)));
    assert_eq!(*world.member.role(), Role::Following);
    assert_eq!(world.member.next_wake(), Some(super::READ_IDLE));
}

#[test]
fn a_stopped_broker_ends_and_a_failed_disk_does_so_too() {
    let mut world = World::leading(&Memory::default(), "b1");
    world.handle(Event::Stop);
    assert_eq!(*world.member.role(), Role::Ended(Ending::Stopped));
    assert_eq!(world.member.propose(world.now, Bytes::new()), Err(ProposeError::NotLeading));
    let mut world = World::leading(&Memory::default(), "b1");
    world.handle(Event::DiskFailed);
    assert_eq!(*world.member.role(), Role::Ended(Ending::DiskFailed));
    let mut world = World::new(&Memory::default(), "b1");
    world.handle(Event::Stop);
    assert_eq!(*world.member.role(), Role::Ended(Ending::Stopped));
}

#[test]
fn a_broker_that_had_more_than_the_log_has_does_not_lead() {
    let engine = Memory::default();
    let mut leader = World::leading(&engine, "b1");
    leader.propose("one");
    let known = leader.member.chain();
    let restarted = |known: Chain| {
        let mut world = World::new(&engine, "b2");
        world.member = Member::new(config("b2", 1), Chain::EMPTY, Duration::ZERO).having_known(known);
        world.run(Duration::from_millis(200));
        world
    };
    assert_eq!(*restarted(known).member.role(), Role::Following);
    let ahead = Chain { position: known.position + 1, ..known };
    let went_back = Divergence::WentBack { position: ahead.position };
    assert_eq!(*restarted(ahead).member.role(), Role::Diverged(went_back));
    let other = Chain { hash: crate::entry::Hash([9; 32]), ..known };
    let other_entry = Divergence::OtherEntry { position: other.position };
    assert_eq!(*restarted(other).member.role(), Role::Diverged(other_entry));
}

#[test]
fn a_broker_that_holds_its_claims_back_follows_meanwhile() {
    let engine = Memory::default();
    let mut world = World::new(&engine, "b1");
    world.member.hold_claims_until(LEASE * 3);
    world.run(LEASE * 2);
    assert_eq!(*world.member.role(), Role::Following);
    world.run(LEASE * 2);
    assert_eq!(*world.member.role(), Role::Leading);
}

#[test]
fn a_broker_whose_claims_fail_does_not_claim_without_a_pause() {
    let mut world = World::new(&Memory::default(), "b1");
    // It learns that the lease is free, and then that the register is gone.
    world.member.hold_claims_until(Duration::from_secs(1));
    world.run(Duration::from_millis(500));
    world.register_is_gone = true;
    world.run(Duration::from_secs(3));
    let claims = world.done.iter().filter(|action| **action == Action::Moved(Role::Claiming)).count();
    assert!((2..=6).contains(&claims), "{claims} claims");
    world.register_is_gone = false;
    world.run(LEASE * 2);
    assert_eq!(*world.member.role(), Role::Leading);
}

#[test]
fn a_takeover_names_the_broker_that_led_before() {
    let engine = Memory::default();
    let former = |world: &World| {
        let led = world.done.iter().rev().find_map(|action| match action {
            Action::Lead { term, former } => Some((*term, former.clone())),
            _ => None,
        });
        led.unwrap()
    };
    let mut first = World::leading(&engine, "b1");
    assert_eq!(former(&first), (1, None));
    first.handle(Event::Stop);
    first.handle(Event::ServiceEnded);
    let mut second = World::new(&engine, "b2");
    second.run(LEASE * 3);
    assert_eq!(former(&second), (2, Some("b1".into())));
    second.handle(Event::Stop);
    second.handle(Event::ServiceEnded);
    // One whose tables have all takeovers knows it by the lease.
    let mut third = World::new(&engine, "b3");
    third.member = Member::new(config("b3", 1), second.member.chain(), Duration::ZERO);
    third.run(LEASE * 3);
    assert_eq!(former(&third), (3, Some("b2".into())));
}

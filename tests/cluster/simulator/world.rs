//! The world of three members: their clocks, the calls on their way, and the faults.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    time::Duration,
};

use baton_cluster::{
    engines::memory::Memory,
    entry::{Chain, ChainKey, Expected, Payload, Position},
    lease,
    log::{AppendError, ReadError, Unavailable, WriteError},
    member::{Action, Config, Event, Member, PeerPosition, Role},
};
use bytes::Bytes;

use crate::{laws::History, rng::Rng};

/// Microseconds of true time.
type Time = u64;

const SECOND: Time = 1_000_000;
const MEMBERS: usize = 3;
const LEASE: Duration = Duration::from_secs(2);
/// A call without an answer has an unknown outcome after this.
const TIMEOUT: Time = 2 * SECOND;
/// Faults happen until here.
const TROUBLED: Time = 50 * SECOND;
/// By then a broker leads again.
const END: Time = 75 * SECOND;

/// What a run is made of.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// How far a clock may run off, in millionths.
    pub(crate) drift_ppm_max: u64,
}

impl Default for Plan {
    fn default() -> Self {
        Self { drift_ppm_max: 90_000 }
    }
}

/// What happened in a run.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    answered: usize,
    reads: usize,
    takeovers: u64,
    kills: usize,
    pauses: usize,
    restores: usize,
    lost_tails: usize,
    unknown: usize,
    settled: usize,
}

impl Outcome {
    pub(crate) fn add(&mut self, other: &Self) {
        self.answered += other.answered;
        self.reads += other.reads;
        self.takeovers += other.takeovers;
        self.kills += other.kills;
        self.pauses += other.pauses;
        self.restores += other.restores;
        self.lost_tails += other.lost_tails;
        self.unknown += other.unknown;
        self.settled += other.settled;
    }

    /// A simulator whose faults do not happen shows nothing.
    pub(crate) fn assert_that_faults_happened(&self) {
        let counts = [self.kills, self.pauses, self.restores, self.lost_tails, self.unknown, self.settled];
        assert!(counts.iter().all(|count| *count > 0), "{self:?}");
        assert!(self.takeovers > 500 && self.answered > 10_000 && self.reads > 10_000, "{self:?}");
    }
}

#[derive(Debug)]
enum Call {
    Append { after: Position, entry: Bytes },
    ReadLog { from: Position },
    ReadLease,
    WriteLease { expected: Option<baton_cluster::log::Version>, value: Bytes },
    AskPeers,
    Restore,
}

#[derive(Debug)]
enum What {
    /// A call arrives at the engine. The answer takes this long; `None`: it is lost.
    Arrives {
        broker: usize,
        life: u64,
        ticket: u64,
        call: Call,
        answer_in: Option<Time>,
    },
    Happens {
        broker: usize,
        life: u64,
        event: Event,
    },
    Wakes {
        broker: usize,
        life: u64,
    },
    /// The agents of a broker send a command and read.
    Work {
        broker: usize,
    },
    Fault,
}

/// A broker: its member in memory, its tables on disk, its clock.
struct Broker {
    member: Member,
    /// The process counts its lives. What was on its way to a former one is lost.
    life: u64,
    /// The groups in the tables.
    tables: Vec<Bytes>,
    /// What a kill leaves: the end and the number of groups.
    flushed: (Chain, usize),
    drift_ppm: i64,
    began: Duration,
    paused_until: Time,
    /// Events that came in a pause.
    inbox: Vec<Event>,
    cut_until: Time,
    serves: bool,
    in_flight: Option<Bytes>,
    proposed: u64,
}

pub(crate) struct World {
    now: Time,
    rng: Rng,
    queue: BinaryHeap<Reverse<(Time, u64)>>,
    planned: HashMap<u64, What>,
    count: u64,
    log: Memory,
    brokers: Vec<Broker>,
    history: History,
    outcome: Outcome,
    /// One in this many calls is lost, late or doubled.
    odds: u64,
    loses_tail_at: Option<Time>,
    has_lost: bool,
}

fn expected() -> Expected {
    let cluster = Bytes::from_static(&[7; 16]);
    Expected { key: ChainKey::derive(b"the cluster"), cluster, keys: vec![Bytes::from_static(b"key")], level: 1 }
}

fn member(broker: usize, life: u64, chain: Chain, now: Duration) -> Member {
    let config = Config {
        broker: format!("b{broker}"),
        process: process(broker, life),
        peer_address: format!("b{broker}.internal:22867"),
        version: "0".into(),
        lease: LEASE,
        entry_bytes_max: 1024 * 1024,
        expected: expected(),
    };
    Member::new(config, chain, now)
}

fn process(broker: usize, life: u64) -> Bytes {
    format!("broker {broker} {life:07}").into_bytes().into()
}

impl World {
    pub(crate) fn new(seed: u64, plan: Plan) -> Self {
        let mut rng = Rng::new(seed);
        let mut brokers = Vec::new();
        for number in 0..MEMBERS {
            let began = Duration::from_secs(rng.between(0, 1_000_000));
            let span = i64::try_from(plan.drift_ppm_max).unwrap();
            // Often the clocks are as far apart as they may be.
            let drift_ppm = match rng.between(0, 3) {
                0 => span,
                1 => -span,
                _ => i64::try_from(rng.between(0, plan.drift_ppm_max * 2)).unwrap() - span,
            };
            brokers.push(Broker {
                member: member(number, 0, Chain::EMPTY, began),
                life: 0,
                tables: Vec::new(),
                flushed: (Chain::EMPTY, 0),
                drift_ppm,
                began,
                paused_until: 0,
                inbox: Vec::new(),
                cut_until: 0,
                serves: false,
                in_flight: None,
                proposed: 0,
            });
        }
        let loses_tail_at = rng.once_in(6).then(|| rng.between(20, 45) * SECOND);
        let odds = [8, 30, 100][usize::try_from(rng.between(0, 2)).unwrap()];
        let mut world = Self {
            now: 0,
            rng,
            queue: BinaryHeap::new(),
            planned: HashMap::new(),
            count: 0,
            log: Memory::default(),
            brokers,
            history: History::new(expected()),
            outcome: Outcome::default(),
            odds,
            loses_tail_at,
            has_lost: false,
        };
        for broker in 0..MEMBERS {
            world.plan(0, What::Wakes { broker, life: 0 });
            world.plan(0, What::Work { broker });
        }
        world.plan(SECOND, What::Fault);
        world
    }

    pub(crate) fn run(mut self) -> Outcome {
        while let Some(Reverse((time, number))) = self.queue.pop() {
            if time > END {
                break;
            }
            self.now = time;
            let what = self.planned.remove(&number).unwrap();
            self.step(what);
            self.check_guards();
        }
        if !self.has_lost {
            let first = match self.log.read_now(1, usize::MAX) {
                Err(ReadError::Trimmed { first }) => first,
                _ => 1,
            };
            self.history.assert_kept(&self.log.read_now(first, usize::MAX).unwrap());
            let roles: Vec<&Role> = self.brokers.iter().map(|broker| broker.member.role()).collect();
            assert!(roles.contains(&&Role::Leading), "nobody leads in the end: {roles:?}");
        } else {
            assert!((0..MEMBERS).all(|broker| !self.guard_holds(broker)), "a broker leads after the log went back");
        }
        self.outcome.answered = self.history.answers();
        self.outcome.takeovers = self.history.terms();
        self.outcome
    }

    fn plan(&mut self, after: Time, what: What) {
        self.count += 1;
        self.queue.push(Reverse((self.now + after, self.count)));
        self.planned.insert(self.count, what);
    }

    /// The monotonic clock of a broker.
    fn local(&self, broker: usize) -> Duration {
        let broker = &self.brokers[broker];
        let rate = u64::try_from(1_000_000 + broker.drift_ppm).unwrap();
        broker.began + Duration::from_nanos(self.now * rate / 1_000)
    }

    fn guard_holds(&self, broker: usize) -> bool {
        self.brokers[broker].member.guard_holds(self.local(broker))
    }

    fn check_guards(&self) {
        let holders: Vec<usize> = (0..MEMBERS).filter(|broker| self.guard_holds(*broker)).collect();
        assert!(holders.len() < 2, "two guards hold at once: {holders:?} at {} µs", self.now);
    }

    fn is_paused(&self, broker: usize) -> bool {
        self.now < self.brokers[broker].paused_until
    }

    fn step(&mut self, what: What) {
        match what {
            What::Arrives { broker, life, ticket, call, answer_in } => {
                let event = self.execute(broker, ticket, call);
                if let Some(after) = answer_in {
                    self.plan(after, What::Happens { broker, life, event });
                }
            }
            What::Happens { broker, life, event } if self.brokers[broker].life == life => {
                match self.is_paused(broker) {
                    true => self.brokers[broker].inbox.push(event),
                    false => self.handle(broker, event),
                }
            }
            What::Wakes { broker, life } if self.brokers[broker].life == life => {
                if self.is_paused(broker) {
                    let rest = self.brokers[broker].paused_until - self.now;
                    self.plan(rest, What::Wakes { broker, life });
                    return;
                }
                for event in std::mem::take(&mut self.brokers[broker].inbox) {
                    self.handle(broker, event);
                }
                self.handle(broker, Event::Tick);
            }
            What::Happens { .. } | What::Wakes { .. } => {} // of a former life
            What::Work { broker } => self.work(broker),
            What::Fault => self.fault(),
        }
    }

    fn handle(&mut self, broker: usize, event: Event) {
        let now = self.local(broker);
        self.brokers[broker].member.handle(now, event);
        self.act(broker);
        self.plan_wake(broker);
    }

    fn plan_wake(&mut self, broker: usize) {
        let (now, member) = (self.local(broker), &self.brokers[broker].member);
        if let Some(wake) = member.next_wake() {
            let rate = u64::try_from(1_000_000 + self.brokers[broker].drift_ppm).unwrap();
            let local = u64::try_from(wake.saturating_sub(now).as_nanos()).unwrap();
            let life = self.brokers[broker].life;
            self.plan(local * 1_000 / rate + 1, What::Wakes { broker, life });
        }
    }

    fn act(&mut self, broker: usize) {
        while let Some(action) = self.brokers[broker].member.next_action() {
            match action {
                Action::ReadLease(ticket) => self.call(broker, ticket, Call::ReadLease),
                Action::WriteLease { ticket, expected, value } => {
                    self.call(broker, ticket, Call::WriteLease { expected, value });
                }
                Action::ReadLog { ticket, from } => self.call(broker, ticket, Call::ReadLog { from }),
                Action::Append { ticket, after, entry } => self.call(broker, ticket, Call::Append { after, entry }),
                Action::AskPeers(ticket) => self.call(broker, ticket, Call::AskPeers),
                Action::Restore { ticket, .. } => self.call(broker, ticket, Call::Restore),
                Action::Apply(entry, _) => {
                    if let Payload::Group(writes) = entry.payload {
                        self.apply(broker, entry.position, writes);
                    }
                }
                Action::Lead { .. } => self.brokers[broker].serves = true,
                Action::Committed(position) => {
                    let writes = self.brokers[broker].in_flight.take().expect("a group in flight");
                    self.history.answered(position, &writes);
                    self.apply(broker, position, writes);
                }
                Action::Refused(error) => panic!("a small group was refused: {error}"),
                Action::EndService(_) => {
                    let own = &mut self.brokers[broker];
                    (own.serves, own.in_flight) = (false, None);
                    let (life, after) = (own.life, self.rng.between(0, SECOND / 5));
                    self.plan(after, What::Happens { broker, life, event: Event::ServiceEnded });
                }
                Action::Moved(role) => {
                    if let Role::Diverged(divergence) = role {
                        assert!(self.has_lost, "broker {broker} diverged, and the log lost nothing: {divergence}");
                    }
                }
            }
        }
    }

    fn apply(&mut self, broker: usize, position: Position, writes: Bytes) {
        let own = &mut self.brokers[broker];
        own.tables.push(writes.clone());
        self.history.applied(broker, position, &writes, own.tables.len());
        if self.rng.once_in(20) {
            // The member has followed the whole read already, and the tables come after: a flush is between two reads.
            let own = &mut self.brokers[broker];
            if own.member.chain().position == position {
                own.flushed = (own.member.chain(), own.tables.len());
            }
        }
    }

    /// Sends a call on its way. What becomes of it is drawn here.
    fn call(&mut self, broker: usize, ticket: u64, call: Call) {
        let life = self.brokers[broker].life;
        let timeout = match &call {
            Call::Append { .. } => Event::Appended(ticket, Err(AppendError::Unknown("no answer".into()))),
            Call::ReadLog { .. } => Event::LogRead(ticket, Err(gone().into())),
            Call::ReadLease => Event::LeaseRead(ticket, Err(gone())),
            Call::WriteLease { .. } => Event::LeaseWritten(ticket, Err(WriteError::Unknown("no answer".into()))),
            Call::AskPeers => Event::PeersAnswered(ticket, Vec::new()),
            Call::Restore => Event::Restored(ticket, None),
        };
        if !matches!(call, Call::AskPeers | Call::Restore) || self.now < self.brokers[broker].cut_until {
            self.plan(TIMEOUT, What::Happens { broker, life, event: timeout });
        }
        // Peers are not behind the engine's network. A peer that does not answer is one that is paused or dead.
        let is_troubled = self.now < TROUBLED && !self.has_lost && !matches!(call, Call::AskPeers | Call::Restore);
        if self.now < self.brokers[broker].cut_until || (is_troubled && self.rng.once_in(self.odds * 2)) {
            self.outcome.unknown += 1;
            return;
        }
        let mut tries = vec![self.delay(is_troubled)];
        if is_troubled && self.rng.once_in(self.odds * 2) {
            tries.push(self.delay(true));
        }
        for delay in tries {
            let is_lost = is_troubled && self.rng.once_in(self.odds * 2);
            let answer_in = if is_lost { None } else { Some(self.delay(is_troubled)) };
            self.outcome.unknown += usize::from(is_lost);
            let call = call.again();
            self.plan(delay, What::Arrives { broker, life, ticket, call, answer_in });
        }
    }

    fn delay(&mut self, is_troubled: bool) -> Time {
        match is_troubled && self.rng.once_in(self.odds) {
            true => self.rng.between(10_000, 8 * SECOND),
            false => self.rng.between(200, 10_000),
        }
    }

    /// A call is done by the engine.
    fn execute(&mut self, broker: usize, ticket: u64, call: Call) -> Event {
        match call {
            Call::Append { after, entry } => {
                let outcome = self.log.append_now(after, entry.clone());
                match outcome {
                    Ok(()) => self.history.appended(self.log.end_now(), &entry),
                    Err(_) => {
                        let found = self.log.read_now(after + 1, 1).ok().and_then(|found| found.into_iter().next());
                        self.outcome.settled += usize::from(found.is_some_and(|(_, found)| found == entry));
                    }
                }
                Event::Appended(ticket, outcome)
            }
            Call::ReadLog { from } => Event::LogRead(ticket, self.log.read_now(from, 2_000)),
            Call::ReadLease => Event::LeaseRead(ticket, Ok(self.log.value(lease::NAME))),
            Call::WriteLease { expected, value } => {
                Event::LeaseWritten(ticket, self.log.write_now(lease::NAME, expected.as_ref(), value))
            }
            Call::AskPeers => {
                let peers = (0..MEMBERS).filter(|peer| *peer != broker && !self.is_paused(*peer));
                let position =
                    |peer: usize| PeerPosition { peer: format!("b{peer}"), chain: self.brokers[peer].member.chain() };
                Event::PeersAnswered(ticket, peers.map(position).collect())
            }
            Call::Restore => {
                let peer = (0..MEMBERS).filter(|peer| *peer != broker && !self.is_paused(*peer));
                let Some(peer) = peer.max_by_key(|peer| self.brokers[*peer].member.chain().position) else {
                    return Event::Restored(ticket, None);
                };
                // The checkpoint replaces the folder before the member learns of it.
                let (chain, tables) = (self.brokers[peer].member.chain(), self.brokers[peer].tables.clone());
                let own = &mut self.brokers[broker];
                if *own.member.role() != Role::Restoring || chain.position <= own.member.chain().position {
                    return Event::Restored(ticket, None);
                }
                own.flushed = (chain, tables.len());
                own.tables = tables;
                self.outcome.restores += 1;
                Event::Restored(ticket, Some(chain))
            }
        }
    }

    /// The agents send a command, and read.
    fn work(&mut self, broker: usize) {
        let pause = self.rng.between(5_000, 150_000);
        self.plan(pause, What::Work { broker });
        if self.is_paused(broker) || !self.brokers[broker].serves {
            return;
        }
        if self.guard_holds(broker) {
            self.outcome.reads += 1;
            self.history.read_answered(self.brokers[broker].member.chain().position);
        }
        let now = self.local(broker);
        let own = &mut self.brokers[broker];
        let writes: Bytes = [&process(broker, own.life)[..], format!(" {}", own.proposed).as_bytes()].concat().into();
        if own.member.propose(now, writes.clone()).is_ok() {
            own.proposed += 1;
            own.in_flight = Some(writes);
            self.act(broker);
            self.plan_wake(broker);
        }
    }

    fn fault(&mut self) {
        if self.now >= TROUBLED || self.has_lost {
            return;
        }
        let pause = self.rng.between(SECOND / 2, 4 * SECOND);
        self.plan(pause, What::Fault);
        if self.loses_tail_at.is_some_and(|time| self.now >= time) && self.lose_tail() {
            return;
        }
        let broker = usize::try_from(self.rng.between(0, MEMBERS as u64 - 1)).unwrap();
        match self.rng.between(0, 5) {
            0 => self.kill(broker),
            1 | 2 if !self.is_paused(broker) => {
                self.outcome.pauses += 1;
                let (life, pause) = (self.brokers[broker].life, self.rng.between(SECOND / 10, 12 * SECOND));
                self.brokers[broker].paused_until = self.now + pause;
                self.plan(pause, What::Wakes { broker, life });
            }
            3 => self.brokers[broker].cut_until = self.now + self.rng.between(SECOND, 10 * SECOND),
            4 if !self.is_paused(broker) => self.handle(broker, Event::StepDown),
            _ => self.trim(),
        }
    }

    /// The process ends, and another begins on what its disk has.
    fn kill(&mut self, broker: usize) {
        self.outcome.kills += 1;
        let now = self.local(broker);
        let own = &mut self.brokers[broker];
        own.life += 1;
        own.tables.truncate(own.flushed.1);
        own.member = member(broker, own.life, own.flushed.0, now);
        (own.serves, own.in_flight, own.paused_until) = (false, None, 0);
        own.inbox.clear();
        let (life, after) = (own.life, self.rng.between(SECOND / 10, 2 * SECOND));
        self.plan(after, What::Wakes { broker, life });
    }

    /// Up to what two brokers have flushed: a third one that is behind must restore.
    fn trim(&mut self) {
        let mut flushed: Vec<Position> = self.brokers.iter().map(|broker| broker.flushed.0.position).collect();
        flushed.sort_unstable();
        self.log.trim_now(flushed[1]);
    }

    /// The log loses its end, of which a living broker has a part. `false`: not now.
    fn lose_tail(&mut self) -> bool {
        let is_quiet = (0..MEMBERS).all(|broker| {
            let role = self.brokers[broker].member.role();
            !self.is_paused(broker) && !matches!(role, Role::Claiming | Role::Restoring)
        });
        let end = self.log.end_now();
        let lost = self.rng.between(2, 5).min(end);
        let known = self.brokers.iter().map(|broker| broker.member.chain().position).max().unwrap();
        let begins = matches!(self.log.read_now(end.saturating_sub(lost), 1), Err(ReadError::Trimmed { .. }));
        // A former leader that does not know of a lost takeover goes on: no broker can see that.
        let is_of_this_term = end - lost >= self.history.taken_over_at();
        if !is_quiet || end < 20 || begins || known < end || !is_of_this_term {
            return false;
        }
        self.log.lose_tail(end - lost);
        self.history.lost_behind(end - lost);
        self.outcome.lost_tails += 1;
        self.has_lost = true;
        for broker in &mut self.brokers {
            broker.cut_until = 0;
        }
        true
    }
}

fn gone() -> Unavailable {
    Unavailable("no answer".into())
}

impl Call {
    fn again(&self) -> Self {
        match self {
            Self::Append { after, entry } => Self::Append { after: *after, entry: entry.clone() },
            Self::ReadLog { from } => Self::ReadLog { from: *from },
            Self::ReadLease => Self::ReadLease,
            Self::WriteLease { expected, value } => {
                Self::WriteLease { expected: expected.clone(), value: value.clone() }
            }
            Self::AskPeers => Self::AskPeers,
            Self::Restore => Self::Restore,
        }
    }
}

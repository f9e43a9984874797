//! The timers: one wheel for everything that the engine does at a time of its own.
//!
//! This module owns the clock and the time of each timer. It must not know the purpose of a timer:
//! [`Engine::tick`](super::Engine::tick) hands each fired timer to its component.
//!
//! The wheel uses the running time. The clock is behind the running time by the sum of its set-backs, which is constant
//! until the engine begins again; so a time of the clock is converted once, when the timer is set.
//!
//! A fired timer stays in the wheel until its component sets or clears it. The work of a timer is part of a commit, and
//! a timer that is moved only after that commit fires again if the commit fails.

use std::{collections::BTreeSet, time::Duration};

use super::clock::RunningClock;
use crate::{
    domain::EntityId,
    ids::{AgentId, IdMap},
    records::Expiration,
    time::Timestamp,
};

/// A timer. Among timers with the same time, the first variant fires first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Timer {
    /// The outbox may have rows.
    Outbox,
    /// A mailbox is loaded in part.
    LoadMail,
    /// Closed sessions still have leases.
    LeasesOfClosed,
    /// Letters expired before their dispatch.
    ExpiredAtDispatch,
    /// Gone agents may have offers in their mail.
    OffersOfGone,
    /// Gone agents may own tasks.
    TasksOfGone,
    /// Deregistered agents may have mail.
    MailOfLeft,
    /// Tasks and statistics are still to be counted since the start.
    Loads,
    /// Agents may not have come back since the start.
    Unseen,
    /// Handoffs wait for agents that may have room.
    Held,
    /// Entries of this kind may be due for removal.
    Retention(Expiration),
    /// The oldest entry of the audit log may be due for removal.
    AuditLog,
    /// Tasks may have become idle.
    IdleTasks,
    /// The size of the store is to be checked.
    StoreSize,
    /// A mailbox may have expired mail.
    MailExpiry,
    /// A lease of the mailbox or the delay of a letter ends.
    Mailbox(AgentId),
    /// The agent may be gone.
    Presence(AgentId),
    /// The pause after the agent's reject for lack of room ends.
    Room(AgentId),
    /// The next deadline of the entity, or an earlier time.
    Entity(EntityId),
}

/// The clock and the timers. See the module.
#[derive(Debug)]
pub(super) struct Timers {
    /// The latest time that the engine was given, and the set-backs of the clock.
    pub(super) clock: RunningClock,
    /// The timers in the order of their running times.
    wheel: BTreeSet<(Timestamp, Timer)>,
    /// The running time of each timer in the wheel.
    positions: IdMap<Timer, Timestamp>,
}

impl Timers {
    /// An empty wheel with this clock.
    pub(super) fn new(clock: RunningClock) -> Self {
        Self { clock, wheel: BTreeSet::new(), positions: IdMap::default() }
    }

    /// Sets the timer to a running time, and replaces the one before.
    pub(super) fn set(&mut self, timer: Timer, at: Timestamp) {
        match self.positions.insert(timer.clone(), at) {
            Some(before) if before == at => return,
            Some(before) => {
                self.wheel.remove(&(before, timer.clone()));
            }
            None => {}
        }
        self.wheel.insert((at, timer));
    }

    /// Sets the timer to a time of the clock, like [`Self::set`].
    pub(super) fn set_by_clock(&mut self, timer: Timer, at: Timestamp) {
        self.set(timer, at.plus(self.clock.set_back));
    }

    /// Sets the timer to this span from now.
    pub(super) fn set_after(&mut self, timer: Timer, span: Duration) {
        self.set(timer, self.clock.running().plus(span));
    }

    /// Sets the timer so that it fires in the next tick, before all timers that are set to a time.
    pub(super) fn set_at_once(&mut self, timer: Timer) {
        // The zero time is before every running time, and so before every other timer.
        self.set(timer, Timestamp::default());
    }

    /// Sets the timer to a running time, unless it fires earlier already.
    pub(super) fn bring_forward(&mut self, timer: Timer, at: Timestamp) {
        if self.position(&timer).is_none_or(|before| at < before) {
            self.set(timer, at);
        }
    }

    /// Sets the timer to a time of the clock, like [`Self::bring_forward`].
    pub(super) fn bring_forward_by_clock(&mut self, timer: Timer, at: Timestamp) {
        self.bring_forward(timer, at.plus(self.clock.set_back));
    }

    /// Removes the timer, if it is set.
    pub(super) fn clear(&mut self, timer: Timer) {
        if let Some(before) = self.positions.remove(&timer) {
            self.wheel.remove(&(before, timer));
        }
    }

    /// The running time at which the timer fires. `None`: the timer is not set.
    pub(super) fn position(&self, timer: &Timer) -> Option<Timestamp> {
        self.positions.get(timer).copied()
    }

    /// Whether the timer is set.
    pub(super) fn is_set(&self, timer: &Timer) -> bool {
        self.positions.contains_key(timer)
    }

    /// Whether the timer is due.
    pub(super) fn is_due(&self, timer: &Timer) -> bool {
        self.position(timer).is_some_and(|at| at <= self.clock.running())
    }

    /// The due timers, the longest overdue first, at most `most`. All of them stay in the wheel.
    pub(super) fn due(&self, most: usize) -> Vec<Timer> {
        let running = self.clock.running();
        let due = self.wheel.iter().take_while(|(at, _)| *at <= running);
        due.take(most).map(|(_, timer)| timer.clone()).collect()
    }

    /// The running time of the earliest timer.
    pub(super) fn next(&self) -> Option<Timestamp> {
        self.wheel.first().map(|(at, _)| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::MessageId;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_parts(seconds, 0).unwrap()
    }

    fn handoff(number: u8) -> Timer {
        Timer::Entity(EntityId::Handoff(MessageId::from_bytes([number; 16])))
    }

    /// An empty wheel at this running time, with a clock that was set back by 100 seconds.
    fn timers(running: i64) -> Timers {
        Timers::new(RunningClock::at(at(running), Duration::from_secs(100)))
    }

    #[test]
    fn a_timer_has_one_position_wherever_it_is_moved() {
        let mut timers = timers(1000);
        for seconds in [900, 1100, 950, 950] {
            timers.set(handoff(1), at(seconds));
            assert_eq!((timers.next(), timers.position(&handoff(1))), (Some(at(seconds)), Some(at(seconds))));
        }
        assert_eq!(timers.due(10), [handoff(1)]);
        timers.clear(handoff(1));
        assert_eq!((timers.next(), timers.is_set(&handoff(1)), timers.due(10)), (None, false, Vec::new()));
    }

    #[test]
    fn timers_of_the_clock_and_of_the_running_time_fire_in_one_order() {
        let mut timers = timers(1000); // the clock shows 900
        timers.set_by_clock(Timer::StoreSize, at(890));
        timers.set(handoff(1), at(980));
        timers.set_by_clock(Timer::Unseen, at(901));
        timers.set(handoff(2), at(1000));
        timers.set_after(handoff(3), Duration::from_secs(1));
        assert_eq!(timers.due(10), [handoff(1), Timer::StoreSize, handoff(2)]);
        assert!(timers.is_due(&handoff(2)) && !timers.is_due(&Timer::Unseen));
    }

    #[test]
    fn what_is_set_at_once_has_its_turn_among_many_that_are_overdue() {
        let mut timers = timers(1000);
        (0..100).for_each(|number| timers.set(handoff(number), at(1 + i64::from(number))));
        timers.set_at_once(Timer::LoadMail);
        assert_eq!(timers.due(3), [Timer::LoadMail, handoff(0), handoff(1)]);
        assert_eq!(timers.due(3), timers.due(3), "a timer that fires stays until it is moved");
    }

    #[test]
    fn a_timer_is_brought_forward_and_never_put_off() {
        let mut timers = timers(1000);
        for (seconds, next) in [(1200, 1200), (1300, 1200), (1100, 1100)] {
            timers.bring_forward(Timer::MailExpiry, at(seconds));
            assert_eq!(timers.next(), Some(at(next)));
        }
        timers.bring_forward_by_clock(Timer::MailExpiry, at(950));
        assert_eq!(timers.next(), Some(at(1050)));
    }
}

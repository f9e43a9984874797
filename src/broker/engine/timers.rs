//! What happens by itself, and when: one wheel for all that the engine waits for.
//!
//! Owns the clock, and the time of each timer. Must not know what a timer is for: [`Engine::tick`](super::Engine::tick) hands
//! each timer that fires to its component.
//!
//! The wheel turns by the running time. The clock is behind it by what it was set back in all, and that stays the same until
//! the engine begins again; so a time of the clock is moved by that once, when the timer is set.
//!
//! A timer that fires stays where it is until its component sets or clears it. What follows from a timer is part of a commit,
//! and a timer that is moved only after that commit fires again where the commit has failed.

use std::{collections::BTreeSet, time::Duration};

use super::clock::RunningClock;
use crate::{
    domain::EntityId,
    ids::{AgentId, IdMap},
    records::Expiration,
    time::Timestamp,
};

/// Something that happens by itself. Of those with the same time the first variant fires first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Timer {
    /// Words for entities may wait in the outbox.
    Outbox,
    /// A mailbox is not loaded to its end.
    LoadMail,
    /// Mail was about to be dispatched, and has expired.
    ExpiredAtDispatch,
    /// Offers wait at agents that are gone.
    OffersOfGone,
    /// Agents may not have come back since the start.
    Unseen,
    /// Entries of this kind may have been kept for long enough.
    Retention(Expiration),
    /// The first entry of the audit log may be over.
    AuditLog,
    /// The size of the store is to be looked at.
    StoreSize,
    /// A mailbox may have mail that has expired.
    MailExpiry,
    /// A lease of the mailbox ends, or the delay of a letter.
    Mailbox(AgentId),
    /// The agent may be gone.
    Presence(AgentId),
    /// The next deadline of the entity, or a time before it.
    Entity(EntityId),
}

/// The clock and the timers. See the module.
#[derive(Debug)]
pub(super) struct Timers {
    /// The latest time that the engine was told.
    pub(super) clock: RunningClock,
    /// By the running time.
    wheel: BTreeSet<(Timestamp, Timer)>,
    /// Where each timer is in the wheel.
    positions: IdMap<Timer, Timestamp>,
}

impl Timers {
    /// No timers, by this clock.
    pub(super) fn new(clock: RunningClock) -> Self {
        Self { clock, wheel: BTreeSet::new(), positions: IdMap::default() }
    }

    /// Sets the timer to a running time, wherever it was before.
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

    /// As [`Self::set`], to a time of the clock.
    pub(super) fn set_by_clock(&mut self, timer: Timer, at: Timestamp) {
        self.set(timer, at.plus(self.clock.set_back));
    }

    /// Sets the timer to this span from now.
    pub(super) fn set_after(&mut self, timer: Timer, span: Duration) {
        self.set(timer, self.clock.running().plus(span));
    }

    /// Sets the timer so that it fires in the next tick, before all that are only due.
    pub(super) fn set_at_once(&mut self, timer: Timer) {
        self.set(timer, Timestamp::default());
    }

    /// Sets the timer to a running time, unless it fires before that.
    pub(super) fn bring_forward(&mut self, timer: Timer, at: Timestamp) {
        if self.position(&timer).is_none_or(|before| at < before) {
            self.set(timer, at);
        }
    }

    /// As [`Self::bring_forward`], to a time of the clock.
    pub(super) fn bring_forward_by_clock(&mut self, timer: Timer, at: Timestamp) {
        self.bring_forward(timer, at.plus(self.clock.set_back));
    }

    /// The timer does not fire.
    pub(super) fn clear(&mut self, timer: Timer) {
        if let Some(before) = self.positions.remove(&timer) {
            self.wheel.remove(&(before, timer));
        }
    }

    /// The running time at which the timer fires.
    pub(super) fn position(&self, timer: &Timer) -> Option<Timestamp> {
        self.positions.get(timer).copied()
    }

    /// Whether the timer is set.
    pub(super) fn is_set(&self, timer: &Timer) -> bool {
        self.positions.contains_key(timer)
    }

    /// Whether the timer fires now.
    pub(super) fn is_due(&self, timer: &Timer) -> bool {
        self.position(timer).is_some_and(|at| at <= self.clock.running())
    }

    /// The timers that fire now, the longest overdue first, at most so many. All of them stay in the wheel.
    pub(super) fn due(&self, most: usize) -> Vec<Timer> {
        let running = self.clock.running();
        let due = self.wheel.iter().take_while(|(at, _)| *at <= running);
        due.take(most).map(|(_, timer)| timer.clone()).collect()
    }

    /// The running time at which the first timer fires.
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

    /// Timers at this running time, of a clock that was set back by 100 seconds.
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

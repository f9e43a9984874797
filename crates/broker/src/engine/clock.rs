//! The broker's clock, which may be set back, and the running time, which never goes back.
//!
//! A deadline that is stored as a time of the clock would move away when the clock is set back. So handoffs and mail
//! are due by the *running time*: the clock's time plus the sum of its set-backs. The running time advances evenly
//! across set-backs and restarts: each commit stores it, and a start resumes from there. Clients see the clock's time.
//! A clock that is set forward moves the running time too, because the broker cannot tell that from a machine that was
//! asleep or switched off.

use std::time::Duration;

use super::{Engine, Environment, open::load_agents};
use crate::{Away, BrokerError, time::Timestamp};

/// The clock's time, and the sum of its set-backs. See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct RunningClock {
    pub(super) now: Timestamp,
    pub(super) set_back: Duration,
}

impl RunningClock {
    /// A clock with this running time, after this sum of set-backs.
    pub(super) fn at(running: Timestamp, set_back: Duration) -> Self {
        Self { now: running.minus(set_back), set_back }
    }

    /// The running time: the clock's time plus all set-backs. It never goes back.
    pub(super) fn running(self) -> Timestamp {
        self.now.plus(self.set_back)
    }

    /// The clock when it shows `now`. An earlier time than before is a set-back: its length is added to the sum, so that
    /// the running time stays the same.
    pub(super) fn showing(self, now: Timestamp) -> Self {
        Self { now, set_back: self.set_back.max(self.running().since(now)) }
    }

    /// The later running time and the larger sum of set-backs of two clocks.
    pub(super) fn later(self, other: Self) -> Self {
        let running = self.running().max(other.running());
        Self::at(running, self.set_back.max(other.set_back))
    }

    /// The time that the clock shows at this running time, if it is not set until then.
    pub(super) fn shows(self, running: Timestamp) -> Timestamp {
        running.minus(self.set_back)
    }
}

impl Engine {
    /// Takes over the clock's time. Returns the time to work with: while a batch has changes, time does not go back.
    pub(super) fn keep_time(&mut self, now: Timestamp) -> Timestamp {
        if now >= self.timers.clock.now {
            self.timers.clock.now = now;
        } else if self.batch.is_empty() && !self.batch.failed {
            // Only between batches: to begin again drops the batch in hand with its callers. After a failed commit the
            // recovery begins again anyway.
            self.set_back(now);
        }
        self.timers.clock.now
    }

    /// Handles a clock that was set back. Leases and signs of life in memory are times of the clock, so the engine
    /// begins again from the stored records, as after a restart, and tells the sessions to come back.
    fn set_back(&mut self, now: Timestamp) {
        let by = self.timers.clock.now.since(now);
        tracing::warn!(?by, "the machine's clock was set back: closing all sessions, so that clients reconnect");
        match self.begin_again(now) {
            Ok(before) => {
                // The bounds on refused envelopes hold from one start to the next (SPEC 4), and this is no start.
                self.retention.take_over_refused(before.retention);
            }
            Err(error) => {
                tracing::error!(%error, "failed to read the store after the clock was set back");
                self.batch.failed = true;
            }
        }
    }

    /// Begins again from the stored records. Consumers get a go-away, watchers stay. Returns the former engine.
    pub(super) fn begin_again(&mut self, now: Timestamp) -> Result<Self, BrokerError> {
        // Other threads share the directory, so it is filled again and not replaced.
        self.env.directory.reset(self.env.settings.presence_rule(now), load_agents(&*self.env.store)?);
        let Environment { store, directory, handoff_changes: _, identity, settings, resources, ids } = self.env.clone();
        let again = Self::over(store, directory, identity, settings, resources, ids, (self.timers.clock, now))?;
        let mut before = std::mem::replace(self, again);
        // Other threads share the changes of handoffs, too.
        self.env.handoff_changes = before.env.handoff_changes.clone();
        self.env.handoff_changes.begin(self.batch.head.next_sequence - 1);
        self.outputs = std::mem::take(&mut before.outputs);
        self.outputs.extend(before.delivery.consumers().map(|consumer| consumer.go_away(Away::BeginsAgain)));
        Ok(before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_parts(seconds, 0).unwrap()
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn the_running_time_goes_on_where_the_clock_is_set_back() {
        let clock = RunningClock { now: at(1000), set_back: Duration::ZERO };
        let later = clock.showing(at(1020));
        assert_eq!((later.running(), later.set_back), (at(1020), Duration::ZERO));
        let back = later.showing(at(1005));
        assert_eq!((back.running(), back.set_back), (at(1020), seconds(15)));
        assert_eq!(back.showing(at(1010)).running(), at(1025));
        let again = back.showing(at(1000));
        assert_eq!((again.running(), again.set_back), (at(1020), seconds(20)));
        assert_eq!(again.shows(at(1030)), at(1010));
    }

    #[test]
    fn of_two_that_are_known_the_later_counts() {
        let stored = RunningClock::at(at(1020), seconds(15));
        let told = RunningClock { now: at(1010), set_back: seconds(15) };
        assert_eq!(stored.later(told), told);
        assert_eq!(told.later(stored), told);
        assert_eq!(RunningClock::default().later(stored), stored);
    }
}

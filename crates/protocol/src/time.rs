//! Time: one wall-clock type and one clock. Owns reading and writing time. Must not know its uses.

use std::{
    fmt,
    sync::Mutex,
    time::{Duration, Instant},
};

/// A point in time, UTC, in nanoseconds since 1970; from 1970 to 2262.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(i64);

const NANOS_PER_SECOND: i64 = 1_000_000_000;

impl Timestamp {
    /// The timestamp this many nanoseconds after 1970.
    pub const fn from_unix_nanoseconds(nanoseconds: i64) -> Self {
        Self(nanoseconds)
    }

    /// The timestamp from whole seconds since 1970 and 0 to 999,999,999 nanoseconds. `None` before 1970, after 2262, or
    /// if the nanoseconds are out of bounds.
    pub fn from_parts(seconds: i64, nanoseconds: i32) -> Option<Self> {
        let nanoseconds = i64::from(nanoseconds);
        if seconds < 0 || !(0..NANOS_PER_SECOND).contains(&nanoseconds) {
            return None;
        }
        seconds.checked_mul(NANOS_PER_SECOND)?.checked_add(nanoseconds).map(Self)
    }

    /// Whole seconds since 1970, and the remaining nanoseconds.
    pub fn to_parts(self) -> (i64, i32) {
        let nanoseconds = self.0.rem_euclid(NANOS_PER_SECOND);
        (self.0.div_euclid(NANOS_PER_SECOND), i32::try_from(nanoseconds).expect("under a second"))
    }

    /// Nanoseconds since 1970.
    pub const fn unix_nanoseconds(self) -> i64 {
        self.0
    }

    /// Whole milliseconds since 1970.
    pub const fn unix_milliseconds(self) -> i64 {
        self.0.div_euclid(1_000_000)
    }

    /// The timestamp `span` later; saturates at the last one.
    pub fn plus(self, span: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(span.as_nanos()).unwrap_or(i64::MAX)))
    }

    /// The timestamp `span` earlier; saturates at the lowest one.
    pub fn minus(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(i64::try_from(span.as_nanos()).unwrap_or(i64::MAX)))
    }

    /// The time from `earlier` to this timestamp; zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

/// The longest `google.protobuf.Duration`, in seconds: about 10,000 years.
const SPAN_SECONDS_MAX: i64 = 315_576_000_000;

/// A span from the parts of a `google.protobuf.Duration`: 0 to 315,576,000,000 seconds and 0 to 999,999,999
/// nanoseconds. `None` out of these bounds, so also for a negative span, mixed signs, or a form not normalized.
pub fn span_from_parts(seconds: i64, nanoseconds: i32) -> Option<Duration> {
    let is_span = (0..=SPAN_SECONDS_MAX).contains(&seconds) && (0..NANOS_PER_SECOND).contains(&i64::from(nanoseconds));
    is_span.then(|| Duration::new(seconds.unsigned_abs(), nanoseconds.unsigned_abs()))
}

/// The same point in time as the schema has it.
#[cfg(feature = "prost-types")]
impl From<Timestamp> for prost_types::Timestamp {
    fn from(time: Timestamp) -> Self {
        let (seconds, nanos) = time.to_parts();
        Self { seconds, nanos }
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        use time::{OffsetDateTime, format_description::well_known::Rfc3339};
        let text = OffsetDateTime::from_unix_timestamp_nanos(i128::from(self.0))
            .ok()
            .and_then(|moment| moment.format(&Rfc3339).ok());
        formatter.write_str(text.as_deref().unwrap_or("out of range"))
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

/// A source of time; injected, so that tests and the simulator control time.
pub trait Clock: Send + Sync {
    /// The current time. It may go back when the machine's clock is set.
    fn now(&self) -> Timestamp;
}

/// The machine's clock, unchanged.
#[derive(Debug, Default, Clone, Copy)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        machine_time()
    }
}

/// The machine's clock without its small steps. When the machine's clock is set by at most a minute, this clock
/// approaches it by a tenth of the elapsed time, and does not go back. It follows a larger step at once: forward,
/// because the machine slept or its clock was wrong; back, because the clock was ahead and is right again.
#[derive(Debug)]
pub struct SteadyClock {
    state: Mutex<Steady>,
}

#[derive(Debug, Clone, Copy)]
struct Steady {
    now: Timestamp,
    /// The monotonic time of the last read.
    read_at: Instant,
}

/// The largest step of the machine's clock that this clock approaches slowly. It follows a larger step at once.
const STEP: Duration = Duration::from_secs(60);
/// The inverse of the fraction of elapsed time by which the clock approaches the machine's clock.
const SLEW: u32 = 10;

impl SteadyClock {
    /// A clock that starts at the machine's time.
    pub fn new() -> Self {
        Self { state: Mutex::new(Steady { now: machine_time(), read_at: monotonic() }) }
    }
}

impl Default for SteadyClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SteadyClock {
    fn now(&self) -> Timestamp {
        let mut state = self.state.lock().expect("no reader panics");
        // Both clocks are read under the lock, so a later reader gets an earlier time only if the machine's clock was
        // set back.
        let (machine, read_at) = (machine_time(), monotonic());
        state.now = follow(state.now, read_at.saturating_duration_since(state.read_at), machine);
        state.read_at = read_at;
        state.now
    }
}

/// The next time of a steady clock: `passed` after `before`, while the machine's clock shows `machine`.
fn follow(before: Timestamp, passed: Duration, machine: Timestamp) -> Timestamp {
    let now = before.plus(passed);
    let (ahead, behind) = (machine.since(now), now.since(machine));
    if ahead > STEP || behind > STEP {
        return machine;
    }
    // At most this much is corrected, so the clock slows down or speeds up and never stops.
    let most = passed / SLEW;
    Timestamp(now.plus(ahead.min(most)).0 - i64::try_from(behind.min(most).as_nanos()).unwrap_or(0))
}

/// A point in monotonic time: for measuring durations, never for dates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(Instant);

impl Moment {
    /// The current moment.
    pub fn now() -> Self {
        Self(monotonic())
    }

    /// The time since this moment.
    pub fn elapsed(self) -> Duration {
        Self::now().since(self)
    }

    /// The time from `earlier` to this moment; zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_duration_since(earlier.0)
    }

    /// The moment `span` later.
    #[must_use]
    pub fn plus(self, span: Duration) -> Self {
        Self(self.0 + span)
    }
}

/// The CPU time that the current thread has used since its start. Only the difference of two calls on one thread has a
/// meaning.
#[expect(clippy::disallowed_methods, reason = "this is the one clock")]
pub fn thread_cpu() -> Duration {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    // The kernel counts up from 0, with nanoseconds under a second.
    Duration::new(u64::try_from(used.tv_sec).unwrap_or(0), u32::try_from(used.tv_nsec).unwrap_or(0))
}

#[expect(clippy::disallowed_methods, reason = "this is the one clock")]
fn machine_time() -> Timestamp {
    let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Timestamp::default().plus(since_1970)
}

#[expect(clippy::disallowed_methods, reason = "this is the one clock")]
fn monotonic() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_come_back() {
        let moment = Timestamp::from_parts(1_700_000_000, 123_456_789).unwrap();
        assert_eq!(moment.to_parts(), (1_700_000_000, 123_456_789));
        assert_eq!(moment.to_string(), "2023-11-14T22:13:20.123456789Z");
    }

    #[test]
    fn a_clock_that_is_set_back_a_little_is_followed_slowly_and_never_back() {
        let mut now = at(10_000);
        for second in 0..700 {
            let machine = at(10_000 - 59 + second);
            let next = follow(now, Duration::from_secs(1), machine);
            assert!(next.since(now) >= Duration::from_millis(900), "it goes on");
            now = next;
        }
        assert_eq!(now, at(10_000 - 59 + 699), "and meets the machine's clock");
    }

    #[test]
    fn a_clock_that_is_set_back_by_much_is_followed_at_once() {
        for seconds in [61, 3600, 86_400] {
            let machine = at(100_000 - seconds);
            assert_eq!(follow(at(100_000), Duration::from_secs(1), machine), machine);
        }
    }

    #[test]
    fn a_clock_that_is_a_little_ahead_is_followed_slowly_and_a_sleep_at_once() {
        assert_eq!(follow(at(100), Duration::from_secs(1), at(105)), at(101).plus(Duration::from_millis(100)));
        assert_eq!(follow(at(100), Duration::from_secs(10), at(110)), at(110));
        assert_eq!(follow(at(100), Duration::from_secs(1), at(5000)), at(5000));
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_parts(seconds, 0).unwrap()
    }

    #[test]
    fn parts_out_of_bounds_are_no_span() {
        assert_eq!(span_from_parts(1, 500_000_000), Some(Duration::from_millis(1500)));
        assert_eq!(span_from_parts(0, 0), Some(Duration::ZERO));
        let longest = SPAN_SECONDS_MAX;
        assert!(span_from_parts(longest, 999_999_999).is_some());
        for (seconds, nanoseconds) in [
            (-1, 0),
            (0, -1),
            (1, -1),
            (-1, 1),
            (0, 1_000_000_000),
            (0, 2_000_000_000),
            (longest + 1, 0),
            (i64::MAX, 0),
        ] {
            assert_eq!(span_from_parts(seconds, nanoseconds), None, "{seconds} s and {nanoseconds} ns");
        }
    }

    #[test]
    fn parts_out_of_bounds_are_no_moment() {
        for (seconds, nanoseconds) in [(-1, 0), (0, -1), (0, 1_000_000_000), (i64::MAX, 0), (9_300_000_000, 0)] {
            assert_eq!(Timestamp::from_parts(seconds, nanoseconds), None);
        }
    }
}

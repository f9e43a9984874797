//! The requests of one client of an engine, for an engine whose provider charges for them. Owns the count alone.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use baton_protocol::time::Moment;

/// The requests of a client since it was made, by what a provider charges for them.
#[derive(Debug)]
pub struct Requests {
    began: Moment,
    writes: AtomicU64,
    reads: AtomicU64,
}

/// The number of requests, and the time in which they were made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RequestCount {
    /// Writes, listings and deletions.
    pub writes: u64,
    /// Reads of an object, and looks whether one is there.
    pub reads: u64,
    /// The time.
    pub time: Duration,
}

impl Default for Requests {
    fn default() -> Self {
        Self { began: Moment::now(), writes: AtomicU64::new(0), reads: AtomicU64::new(0) }
    }
}

impl Requests {
    /// Counts writes, listings or deletions.
    #[cfg_attr(
        not(any(feature = "s3", test)),
        expect(dead_code, reason = "the other engines are not charged by the request")
    )]
    pub(crate) fn wrote(&self, count: u64) {
        self.writes.fetch_add(count, Ordering::Relaxed);
    }

    /// Counts a read.
    #[cfg_attr(
        not(any(feature = "s3", test)),
        expect(dead_code, reason = "the other engines are not charged by the request")
    )]
    pub(crate) fn has_read(&self) {
        self.reads.fetch_add(1, Ordering::Relaxed);
    }

    /// The requests so far.
    pub fn count(&self) -> RequestCount {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        RequestCount { writes: of(&self.writes), reads: of(&self.reads), time: self.began.elapsed() }
    }
}

impl RequestCount {
    /// Writes and reads an hour. `None` in the first minute, which says little.
    pub fn hourly(&self) -> Option<(u64, u64)> {
        let seconds = self.time.as_secs();
        let of = |count: u64| count.saturating_mul(3600) / seconds;
        (seconds >= 60).then(|| (of(self.writes), of(self.reads)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_is_counted_from_a_minute_on() {
        let count = |seconds| RequestCount { writes: 120, reads: 600, time: Duration::from_secs(seconds) };
        assert_eq!(count(59).hourly(), None);
        assert_eq!(count(60).hourly(), Some((7200, 36_000)));
        assert_eq!(count(7200).hourly(), Some((60, 300)));
    }
}

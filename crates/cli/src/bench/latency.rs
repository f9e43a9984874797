//! Latency histograms and their summaries.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

/// Latencies in nanoseconds, with three significant digits.
pub(super) struct Latencies(Histogram<u64>);

/// The summary of a histogram, in µs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Summary {
    pub(super) count: u64,
    pub(super) p50_us: f64,
    pub(super) p90_us: f64,
    pub(super) p99_us: f64,
    pub(super) max_us: f64,
}

impl Latencies {
    pub(super) fn new() -> Self {
        Self(Histogram::new(3).expect("three digits are in bounds"))
    }

    pub(super) fn record(&mut self, span: Duration) {
        let nanoseconds = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX).max(1);
        self.0.record(nanoseconds).expect("it grows as it must");
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.0.add(&other.0).expect("it grows as it must");
    }

    pub(super) fn summary(&self) -> Summary {
        let us = |nanoseconds: u64| rounded(Duration::from_nanos(nanoseconds).as_secs_f64() * 1e6);
        Summary {
            count: self.0.len(),
            p50_us: us(self.0.value_at_quantile(0.5)),
            p90_us: us(self.0.value_at_quantile(0.9)),
            p99_us: us(self.0.value_at_quantile(0.99)),
            max_us: us(self.0.max()),
        }
    }
}

impl Summary {
    /// The percentiles as cells of a table, in milliseconds.
    pub(super) fn cells(&self) -> [String; 4] {
        [self.p50_us, self.p90_us, self.p99_us, self.max_us].map(|us| format!("{:.2}", us / 1e3))
    }
}

/// Rounds to one decimal; further digits are noise.
pub(super) fn rounded(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_has_the_quantiles_to_three_digits() {
        let mut latencies = Latencies::new();
        (1..=1000).for_each(|us| latencies.record(Duration::from_micros(us)));
        let summary = latencies.summary();
        assert_eq!(summary.count, 1000);
        for (found, expected) in
            [(summary.p50_us, 500.0), (summary.p90_us, 900.0), (summary.p99_us, 990.0), (summary.max_us, 1000.0)]
        {
            assert!((found - expected).abs() <= expected / 500.0, "{found} is not {expected}");
        }
    }
}

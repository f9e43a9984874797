//! A span of time on the command line: `--since` and `--until`.

use std::str::FromStr as _;

use clap::Args;
use prost_types::Timestamp;

use super::{Failure, duration};
use baton_client::time::{Clock as _, SystemClock};

/// The span of time of what is shown.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(super) struct SpanArgs {
    /// Show only what happened at this time or later: a time as 2026-11-22T08:00:00Z, a day, or how long ago, as 7d.
    #[arg(long, value_name = "TIME", value_parser = parse)]
    pub(super) since: Option<Timestamp>,
    /// Show only what happened before this time: a time as 2026-11-22T08:00:00Z, a day, or how long ago, as 7d.
    #[arg(long, value_name = "TIME", value_parser = parse)]
    pub(super) until: Option<Timestamp>,
}

impl SpanArgs {
    /// The span, unless it ends before it begins.
    pub(super) fn checked(self) -> Result<Self, Failure> {
        match (self.since, self.until) {
            (Some(since), Some(until)) if place(&until) <= place(&since) => {
                Err(Failure::usage(format!("--until {until} is not after --since {since}")))
            }
            _ => Ok(self),
        }
    }

    /// Whether the span has this moment.
    pub(super) fn has(&self, at: Option<&Timestamp>) -> bool {
        let Some(at) = at else { return self.since.is_none() && self.until.is_none() };
        self.since.is_none_or(|since| place(at) >= place(&since)) && !self.is_over(Some(at))
    }

    /// Whether the span has ended by this moment.
    pub(super) fn is_over(&self, at: Option<&Timestamp>) -> bool {
        at.zip(self.until).is_some_and(|(at, until)| place(at) >= place(&until))
    }
}

fn place(at: &Timestamp) -> (i64, i32) {
    (at.seconds, at.nanos)
}

/// Parses a time, a day (its beginning in UTC), or a span before now.
fn parse(text: &str) -> Result<Timestamp, String> {
    if let Ok(ago) = duration::parse(text) {
        let (seconds, nanos) = SystemClock.now().to_parts();
        let ago = i64::try_from(ago.as_secs()).map_err(|_| "it is too long ago".to_owned())?;
        return Ok(Timestamp { seconds: seconds.saturating_sub(ago), nanos });
    }
    Timestamp::from_str(text).map_err(|_| {
        "write a time as 2026-11-22T08:00:00Z, a day as 2026-11-22, or how long ago as 7d or 90s".to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_a_moment_a_day_or_a_span_before_now() {
        let parsed = |text| parse(text).unwrap().to_string();
        assert_eq!(parsed("2026-11-22T08:00:00Z"), "2026-11-22T08:00:00Z");
        assert_eq!(parsed("2026-11-22T08:00:00.5+01:00"), "2026-11-22T07:00:00.500Z");
        assert_eq!(parsed("2026-11-22"), "2026-11-22T00:00:00Z");
        let (now, _) = SystemClock.now().to_parts();
        assert!((now - 7200 - parse("2h").unwrap().seconds).abs() <= 60);
        for text in ["", "yesterday", "2026-13-01", "99999999999999999999d"] {
            assert!(parse(text).unwrap_err().contains("7d"), "{text:?}");
        }
    }

    #[test]
    fn a_span_has_its_beginning_and_not_its_end() {
        let at = |seconds| Timestamp { seconds, nanos: 0 };
        let span = SpanArgs { since: Some(at(10)), until: Some(at(20)) };
        assert!(span.checked().is_ok());
        assert!(SpanArgs { since: Some(at(20)), until: Some(at(20)) }.checked().is_err());
        let has = |seconds| span.has(Some(&at(seconds)));
        assert_eq!([9, 10, 19, 20].map(has), [false, true, true, false]);
        assert!(!span.has(None) && SpanArgs::default().has(None) && SpanArgs::default().has(Some(&at(1))));
        assert!(!span.is_over(Some(&at(19))) && span.is_over(Some(&at(20))));
    }
}

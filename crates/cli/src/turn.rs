//! Whose turn an open handoff is, and how long that agent has.

use std::time::Duration;

use baton_client::{
    proto::v1::{self, HandoffState},
    time::Timestamp,
};

/// The agent that has the next step. Empty: the handoff has ended.
pub(super) fn turn(handoff: &v1::Handoff) -> &str {
    match handoff.state() {
        HandoffState::Requested | HandoffState::Deciding | HandoffState::ContextSent => &handoff.candidate_id,
        HandoffState::Accepted => &handoff.sender_id,
        HandoffState::Unspecified
        | HandoffState::Completed
        | HandoffState::Rejected
        | HandoffState::Failed
        | HandoffState::Cancelled => "",
    }
}

pub(super) fn deadline(handoff: &v1::Handoff) -> Option<prost_types::Timestamp> {
    handoff.deadline.or(handoff.whole_deadline)
}

/// The time until the deadline of an open handoff.
pub(super) fn left(handoff: &v1::Handoff, now: Timestamp) -> Option<Duration> {
    Some(time_of(deadline(handoff)?)?.since(now))
}

pub(super) fn time_of(time: prost_types::Timestamp) -> Option<Timestamp> {
    Timestamp::from_parts(time.seconds, time.nanos)
}

/// A span in its largest unit: 42 s, 7 min, 3 h, 2 d.
pub(super) fn brief(span: Duration) -> String {
    match span.as_secs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds @ 7200..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_short() {
        let shown = [0, 119, 120, 7199, 7200, 172_799, 172_800].map(|seconds| brief(Duration::from_secs(seconds)));
        assert_eq!(shown, ["0 s", "119 s", "2 min", "119 min", "2 h", "47 h", "2 d"]);
    }
}

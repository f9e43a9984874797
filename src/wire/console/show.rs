//! How the pages write what the broker names: states as words with a colour, and times as spans from now. Pure but for
//! the clock.

use crate::time::{Clock as _, SystemClock};

/// The words of a name: `CONTEXT_SENT` is "Context sent".
pub(super) fn words(name: impl AsRef<str>) -> String {
    let text = name.as_ref().replace('_', " ").to_lowercase();
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

/// The class of a state, which gives its chip an icon and a colour.
pub(super) fn tone(name: impl AsRef<str>) -> &'static str {
    match name.as_ref().replace(' ', "_").to_uppercase().as_str() {
        "COMPLETED" | "ALIVE" | "REDRIVEN" | "AWARDED" | "SETTLED" | "DONE" | "IN_FORCE" | "ACTIVE" | "HOLDS"
        | "LEADING" => "good",
        "FAILED" | "GONE" | "REJECTED" | "TIMED_OUT" | "UNREACHABLE" | "UNDELIVERABLE" | "BROKEN" | "EXPIRED"
        | "OVERDUE" | "DIVERGED" => "bad",
        "PARKED" | "SUSPENDED" | "LEAVING" | "SUSPECT" | "DECLINED" | "DUE" => "warn",
        "WAITING_FOR_INPUT" | "COUNTERED" | "QUESTION" => "ask",
        "CANCELLED" | "CANCELED" | "DISCARDED" | "SKIPPED" | "WITHDRAWN" | "NOT_REACHED" | "RETIRED" | "REMOVED"
        | "PASSED_OVER" | "FORGOTTEN" => "off",
        "DECIDING" | "ACCEPTED" | "CONTEXT_SENT" | "IN_PROGRESS" | "RUNNING" | "HANDING_OFF" | "MOVING" | "OFFERED"
        | "OPEN" | "FOLLOWING" => "run",
        _ => "wait",
    }
}

/// Seconds from now to a time that the broker wrote: less than 0 in the past.
fn seconds_to(at: &str) -> Option<i64> {
    let at = humantime::parse_rfc3339(at).ok()?.duration_since(std::time::UNIX_EPOCH).ok()?;
    Some(i64::try_from(at.as_secs()).ok()? - SystemClock.now().to_parts().0)
}

/// A span in its largest unit. The script of the pages has the same steps.
fn span(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// The time as a span from now: "5 min ago", or "in 5 min".
pub(super) fn ago(at: impl AsRef<str>) -> String {
    match seconds_to(at.as_ref()) {
        Some(left) if left > 0 => format!("in {}", span(left.unsigned_abs())),
        Some(past) => format!("{} ago", span(past.unsigned_abs())),
        None => at.as_ref().to_owned(),
    }
}

/// The time until a deadline: "5 min", or "overdue 5 min".
pub(super) fn left(at: impl AsRef<str>) -> String {
    match seconds_to(at.as_ref()) {
        Some(left) if left > 0 => span(left.unsigned_abs()),
        Some(past) => format!("overdue {}", span(past.unsigned_abs())),
        None => at.as_ref().to_owned(),
    }
}

/// Whether a deadline is over, or nearly.
pub(super) fn is_late(at: impl AsRef<str>) -> bool {
    seconds_to(at.as_ref()).is_some_and(|left| left < 60)
}

/// The whole time, in the one zone of all pages.
pub(super) fn exact(at: impl AsRef<str>) -> String {
    let at = at.as_ref();
    match at.split_once('T') {
        Some((day, rest)) => format!("{day} {} UTC", rest.trim_end_matches('Z')),
        None => at.to_owned(),
    }
}

/// The time to the second, for pictures with little room.
pub(super) fn to_second(at: impl AsRef<str>) -> String {
    exact(at.as_ref().split_once('.').map_or(at.as_ref(), |(seconds, _)| seconds))
}

/// Whether a text is so long that a page shows its beginning first.
pub(super) fn is_long(text: impl AsRef<str>) -> bool {
    text.as_ref().len() > 160 || text.as_ref().matches('\n').count() > 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_has_words_and_one_of_the_seven_tones() {
        assert_eq!(
            (words("CONTEXT_SENT"), words("waiting for input"), words("")),
            ("Context sent".to_owned(), "Waiting for input".to_owned(), String::new())
        );
        assert_eq!(
            ["COMPLETED", "timed out", "PARKED", "waiting for input", "DISCARDED", "in progress", "CREATED"].map(tone),
            ["good", "bad", "warn", "ask", "off", "run", "wait"]
        );
        assert_eq!(tone("\"><script>"), "wait", "a tone is a constant, whatever the text is");
    }

    #[test]
    fn a_time_is_a_span_from_now_in_its_largest_unit() {
        let now = SystemClock.now();
        let at = |seconds: u64| now.plus(std::time::Duration::from_secs(seconds)).to_string();
        let before = |seconds: u64| now.minus(std::time::Duration::from_secs(seconds)).to_string();
        assert_eq!((ago(before(7300)), left(at(3 * 86_400 + 60))), ("2 h ago".to_owned(), "3 days".to_owned()));
        assert_eq!((left(before(130)), ago("no time")), ("overdue 2 min".to_owned(), "no time".to_owned()));
        assert!(is_late(before(1)) && is_late(at(20)) && !is_late(at(100)));
        assert_eq!(to_second("2026-11-23T09:30:00.5Z"), "2026-11-23 09:30:00 UTC");
        assert_eq!(exact("2026-11-23T09:30:00.5Z"), "2026-11-23 09:30:00.5 UTC");
    }
}

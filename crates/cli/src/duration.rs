//! Durations on the command line.

use std::time::Duration;

/// Parses a duration, for example 10s, 500ms, 1m 30s or 2d. A number without a unit is in seconds.
pub(super) fn parse(text: &str) -> Result<Duration, String> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let whole = if is_number { format!("{text}s") } else { text.to_owned() };
    humantime::parse_duration(&whole).map_err(|error| format!("{error}; write a time as 10s, 500ms or 1m 30s"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_has_a_unit_or_is_in_seconds() {
        assert_eq!(parse("20"), Ok(Duration::from_secs(20)));
        assert_eq!(parse("1m 30s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse("2d"), Ok(Duration::from_secs(172_800)));
        for text in ["", "soon", "5 parsecs", "-1s"] {
            assert!(parse(text).unwrap_err().contains("10s"), "{text:?}");
        }
    }
}

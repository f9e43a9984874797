//! What a request says about the work after the takeover (SPEC 3).

use std::{ops::RangeInclusive, time::Duration};

use super::LOAN_TIMEOUT;
use crate::{
    envelope::Checks,
    proto::v1,
    protocol::{Mode, WorkTerms},
};

/// The most tasks that a heartbeat lists (SPEC 2).
pub(super) const TASKS_MAX: usize = 1024;
/// The bounds of a silence timeout (SPEC 3).
const SILENCE_TIMEOUT: RangeInclusive<Duration> = Duration::from_secs(5)..=Duration::from_secs(24 * 60 * 60);

/// Reads what the request says about the work after the takeover.
pub(super) fn terms(mode: Mode, body: &v1::HandoffRequest, checks: &mut Checks) -> WorkTerms {
    let path = "envelope.payload.silence_timeout";
    let silence_timeout = checks.span(path, body.silence_timeout.as_ref());
    if silence_timeout.is_some_and(|timeout| !SILENCE_TIMEOUT.contains(&timeout)) {
        checks.wrong(path, "must be from 5 s to 1 day");
    }
    let path = "envelope.payload.return_when_abandoned";
    if body.return_when_abandoned && mode == Mode::Delegate {
        checks.wrong(path, "is only for mode TRANSFER: an abandoned loan comes back in any case");
    }
    if body.return_when_abandoned && silence_timeout.is_none() {
        checks.wrong(path, "needs silence_timeout");
    }
    let path = "envelope.payload.loan_timeout_max";
    let loan_timeout_max = checks.span(path, body.loan_timeout_max.as_ref());
    if let Some(longest) = loan_timeout_max {
        // An absent or wrong loan_timeout has its own violation, or is none of a transfer.
        let shortest = body.loan_timeout.as_ref().and_then(|span| Duration::try_from(*span).ok());
        match shortest {
            None => checks.wrong(path, "needs loan_timeout"),
            Some(shortest) if longest < shortest || !LOAN_TIMEOUT.contains(&longest) => {
                checks.wrong(path, "must be from loan_timeout to 30 days");
            }
            Some(_) => {}
        }
    }
    WorkTerms { silence_timeout, returns_when_abandoned: body.return_when_abandoned, loan_timeout_max }
}

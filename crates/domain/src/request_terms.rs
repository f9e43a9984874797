//! The terms of a handoff request, within the operator's bounds.

use std::time::Duration;

use super::{
    Receiver, RequestedTimeouts,
    handoff::{LoopLimits, Timeouts},
};
use crate::{codes::FieldViolation, ids::AgentId};

/// The bounds of each of the four timeouts of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeoutBounds {
    /// The shortest permitted timeout.
    pub shortest: Duration,
    /// The longest permitted timeout.
    pub longest: Duration,
}

impl Timeouts {
    /// The timeouts of a handoff: those of its request, else `self`. The error names each field that is out of bounds.
    pub fn requested(&self, wanted: &RequestedTimeouts, bounds: TimeoutBounds) -> Result<Self, Vec<FieldViolation>> {
        let mut violations = Vec::new();
        let mut choose = |name: &str, asked: Option<Duration>, otherwise: Duration| {
            let span = asked.unwrap_or(otherwise);
            if span < bounds.shortest || span > bounds.longest {
                let problem = format!("must be from {:?} to {:?}, not {span:?}", bounds.shortest, bounds.longest);
                violations.push(FieldViolation { path: format!("envelope.payload.timeouts.{name}"), problem });
            }
            span
        };
        let timeouts = Self {
            accept: choose("accept", wanted.accept, self.accept),
            context: choose("context", wanted.context, self.context),
            complete: choose("complete", wanted.complete, self.complete),
            whole: choose("whole", wanted.whole, self.whole),
        };
        if violations.is_empty() { Ok(timeouts) } else { Err(violations) }
    }
}

impl Timeouts {
    /// The time for the decision of a candidate whose card states `decides_within`. `None`: `accept`. It is as long, or
    /// the request names it: then it holds for every candidate.
    pub fn own_decision(&self, is_named: bool, decides_within: Duration, bounds: TimeoutBounds) -> Option<Duration> {
        let own = decides_within.min(bounds.longest);
        (!is_named && own > self.accept).then_some(own)
    }

    /// These timeouts, with a whole time that has room for the decision of the agent that is asked first. A request that
    /// names its whole time keeps it.
    #[must_use]
    pub fn with_room_for(
        self,
        wanted: &RequestedTimeouts,
        decides_within: Option<Duration>,
        bounds: TimeoutBounds,
    ) -> Self {
        match decides_within.and_then(|span| self.own_decision(wanted.accept.is_some(), span, bounds)) {
            Some(own) if wanted.whole.is_none() => {
                Self { whole: self.whole.saturating_add(own).min(bounds.longest), ..self }
            }
            Some(_) | None => self,
        }
    }
}

impl LoopLimits {
    /// These limits, lowered to the values of a request: the most handoffs of the task, and along one pair. 0: the
    /// request asks for no limit.
    #[must_use]
    pub fn lowered_to(self, (handoffs, per_pair): (u32, u32)) -> Self {
        // A request may only lower a limit: the limits protect the operator and the owners of the task, not its sender.
        let lower = |wanted: u32, most: u32| if wanted == 0 { most } else { wanted.min(most) };
        Self {
            handoffs_max: lower(handoffs, self.handoffs_max),
            handoffs_per_pair_max: lower(per_pair, self.handoffs_per_pair_max),
        }
    }
}

/// Checks the fallbacks of a request. The sender is no fallback: it keeps the task if no candidate takes it.
pub fn check_fallbacks(sender: &AgentId, fallbacks: &[Receiver]) -> Result<(), Vec<FieldViolation>> {
    let violation = |place| FieldViolation {
        path: format!("envelope.payload.fallback_candidates[{place}]"),
        problem: "must not be the sender, which keeps the task if no candidate takes it".to_owned(),
    };
    let is_sender = |receiver: &Receiver| matches!(receiver, Receiver::Agent(agent) if agent == sender);
    let of_sender = fallbacks.iter().enumerate().filter(|(_, receiver)| is_sender(receiver));
    let violations: Vec<_> = of_sender.map(|(place, _)| violation(place)).collect();
    if violations.is_empty() { Ok(()) } else { Err(violations) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const BOUNDS: TimeoutBounds = TimeoutBounds { shortest: SECOND, longest: Duration::from_secs(3600) };

    #[test]
    fn a_request_that_names_no_timeouts_gets_the_operators() {
        let defaults = Timeouts::default();
        assert_eq!(defaults.requested(&RequestedTimeouts::default(), BOUNDS), Ok(defaults));
    }

    #[test]
    fn the_card_of_the_first_candidate_gives_time_that_the_request_does_not_name() {
        let minute = Duration::from_secs(60);
        let defaults = Timeouts::default();
        let named = |accept, whole| RequestedTimeouts { accept, whole, ..Default::default() };
        let whole_of = |wanted: &RequestedTimeouts, card: Option<Duration>| {
            let timeouts = defaults.requested(wanted, BOUNDS).unwrap();
            let own = card.and_then(|span| timeouts.own_decision(wanted.accept.is_some(), span, BOUNDS));
            (own, timeouts.with_room_for(wanted, card, BOUNDS).whole)
        };
        let none = named(None, None);
        assert_eq!(whole_of(&none, None), (None, defaults.whole));
        assert_eq!(whole_of(&none, Some(minute)), (Some(minute), defaults.whole + minute));
        assert_eq!(whole_of(&none, Some(defaults.accept)), (None, defaults.whole), "the default is as long");
        assert_eq!(whole_of(&none, Some(BOUNDS.longest * 9)), (Some(BOUNDS.longest), BOUNDS.longest));
        assert_eq!(whole_of(&named(Some(SECOND), None), Some(minute)), (None, defaults.whole));
        assert_eq!(whole_of(&named(None, Some(minute)), Some(minute)), (Some(minute), minute));
    }

    #[test]
    fn timeouts_at_the_bounds_are_taken() {
        let wanted = RequestedTimeouts { accept: Some(SECOND), whole: Some(BOUNDS.longest), ..Default::default() };
        let timeouts = Timeouts::default().requested(&wanted, BOUNDS).unwrap();
        assert_eq!((timeouts.accept, timeouts.whole), (SECOND, BOUNDS.longest));
    }

    #[test]
    fn every_timeout_out_of_bounds_is_named() {
        let wanted =
            RequestedTimeouts { accept: Some(SECOND / 2), whole: Some(BOUNDS.longest * 2), ..Default::default() };
        let found: Vec<String> =
            Timeouts::default().requested(&wanted, BOUNDS).unwrap_err().iter().map(ToString::to_string).collect();
        assert_eq!(
            found,
            [
                "envelope.payload.timeouts.accept must be from 1s to 3600s, not 500ms",
                "envelope.payload.timeouts.whole must be from 1s to 3600s, not 7200s",
            ]
        );
    }

    #[test]
    fn a_request_lowers_the_loop_limits_and_never_raises_them() {
        let most = LoopLimits { handoffs_max: 16, handoffs_per_pair_max: 4 };
        let limits = |wanted| {
            let LoopLimits { handoffs_max, handoffs_per_pair_max } = most.lowered_to(wanted);
            (handoffs_max, handoffs_per_pair_max)
        };
        assert_eq!(limits((0, 0)), (16, 4));
        assert_eq!(limits((3, 2)), (3, 2));
        assert_eq!(limits((100, 100)), (16, 4));
    }

    #[test]
    fn the_sender_cannot_be_a_fallback() {
        let fallbacks = ["bob", "alice", "type:alice"].map(|name| Receiver::parse(name).unwrap());
        let check = |sender| check_fallbacks(&AgentId::parse(sender).unwrap(), &fallbacks);
        assert_eq!(check("dave"), Ok(()));
        let violations = check("alice").unwrap_err();
        assert_eq!(violations.len(), 1);
        assert_eq!(violations[0].path, "envelope.payload.fallback_candidates[1]");
    }
}

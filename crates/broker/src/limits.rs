//! The rates of agents: how fast each may send and read (SPEC 5). Counts in real time; must not know the content of a
//! message.

use std::{num::NonZeroU32, time::Duration};

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter, clock::Clock as _};

use super::{AgentLimits, BrokerError};
use crate::{envelope::FRAME_BYTES_MAX, ids::AgentId};

/// The rates of all agents.
pub struct Rates {
    envelopes: EnvelopeRates,
    without_session: EnvelopeRates,
    messages_at_once: u32,
    card_changes: Option<DefaultKeyedRateLimiter<AgentId>>,
}

/// The rates of envelopes.
struct EnvelopeRates {
    messages: Option<DefaultKeyedRateLimiter<AgentId>>,
    bytes: Option<DefaultKeyedRateLimiter<AgentId>>,
}

impl std::fmt::Debug for Rates {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("the rates of all agents")
    }
}

impl Rates {
    /// Starts with these limits.
    pub fn new(limits: &AgentLimits) -> Self {
        let frame = NonZeroU32::new(u32::try_from(FRAME_BYTES_MAX).unwrap_or(u32::MAX)).unwrap_or(NonZeroU32::MIN);
        let limiter = |rate: u32, least: NonZeroU32| {
            // 0 means no limit, so no limiter exists.
            let rate = NonZeroU32::new(rate)?;
            // A burst smaller than one frame would never let a large frame pass.
            Some(RateLimiter::keyed(Quota::per_second(rate).allow_burst(rate.max(least))))
        };
        let envelopes = || EnvelopeRates {
            messages: limiter(limits.messages_per_second, NonZeroU32::MIN),
            bytes: limiter(limits.bytes_per_second, frame),
        };
        Self {
            envelopes: envelopes(),
            without_session: envelopes(),
            messages_at_once: limits.messages_per_second,
            card_changes: NonZeroU32::new(limits.card_changes_per_minute)
                .map(|rate| RateLimiter::keyed(Quota::per_minute(rate))),
        }
    }

    /// Counts one envelope of this size. Fails with the time to wait if the rate is exceeded.
    pub fn check(&self, agent: &AgentId, bytes: usize) -> Result<(), BrokerError> {
        self.envelopes.check(agent, bytes)
    }

    /// As [`Self::check`], for a caller that has not proven to be the agent. It uses up nothing of the agent's own rate.
    pub fn check_without_session(&self, agent: &AgentId, bytes: usize) -> Result<(), BrokerError> {
        self.without_session.check(agent, bytes)
    }

    /// Counts one change of the agent's card or keys. Fails with the time to wait if the rate is exceeded.
    pub fn check_card_change(&self, agent: &AgentId) -> Result<(), BrokerError> {
        let what = "the agent changes its card or keys too often";
        take(self.card_changes.as_ref(), agent, NonZeroU32::MIN, what)
    }

    /// Counts `many` reads as messages, but never more than the burst. Fails with the time to wait if the rate is
    /// exceeded.
    pub fn check_reads(&self, agent: &AgentId, many: usize) -> Result<(), BrokerError> {
        // More than the burst could never be taken, and the list would never be read.
        let many = u32::try_from(many).unwrap_or(u32::MAX).min(self.messages_at_once);
        let many = NonZeroU32::new(many).unwrap_or(NonZeroU32::MIN);
        take(self.envelopes.messages.as_ref(), agent, many, "the agent sends and reads too much a second")
    }
}

impl EnvelopeRates {
    fn check(&self, agent: &AgentId, bytes: usize) -> Result<(), BrokerError> {
        take(self.messages.as_ref(), agent, NonZeroU32::MIN, "the agent sends too many messages a second")?;
        // A message that exceeds the rate of bytes has already counted as a message.
        let bytes = u32::try_from(bytes).ok().and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MIN);
        take(self.bytes.as_ref(), agent, bytes, "the agent sends too many bytes a second")
    }
}

fn take(
    limiter: Option<&DefaultKeyedRateLimiter<AgentId>>,
    agent: &AgentId,
    many: NonZeroU32,
    what: &'static str,
) -> Result<(), BrokerError> {
    let Some(limiter) = limiter else { return Ok(()) };
    match limiter.check_key_n(agent, many) {
        Ok(Ok(())) => Ok(()),
        Ok(Err(not_until)) => {
            // A wait of 0 would let the caller try again at once.
            let wait = not_until.wait_time_from(limiter.clock().now());
            Err(BrokerError::LimitExceeded { what, retry_after: wait.max(Duration::from_millis(1)) })
        }
        // More than the burst. Cannot happen, because no frame exceeds it.
        Err(_) => Err(BrokerError::LimitExceeded { what, retry_after: Duration::from_secs(1) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(name: &str) -> AgentId {
        AgentId::parse(name).unwrap()
    }

    #[test]
    fn one_agent_over_its_rate_does_not_concern_another() {
        let rates = Rates::new(&AgentLimits { messages_per_second: 3, ..AgentLimits::default() });
        for _ in 0..3 {
            rates.check(&agent("a"), 100).unwrap();
        }
        let refusal = rates.check(&agent("a"), 100).unwrap_err();
        match refusal {
            BrokerError::LimitExceeded { retry_after, .. } => assert!(retry_after <= Duration::from_millis(334)),
            other => panic!("expected a limit, not {other}"),
        }
        rates.check(&agent("b"), 100).unwrap();
    }

    #[test]
    fn bytes_count_and_one_frame_always_passes() {
        let rates = Rates::new(&AgentLimits { bytes_per_second: 1000, ..AgentLimits::default() });
        rates.check(&agent("a"), FRAME_BYTES_MAX).unwrap();
        rates.check(&agent("a"), 1000).unwrap_err();
    }

    #[test]
    fn reads_count_as_messages_and_never_as_more_than_come_at_once() {
        let rates = Rates::new(&AgentLimits { messages_per_second: 3, ..AgentLimits::default() });
        rates.check_reads(&agent("a"), 2).unwrap();
        assert!(rates.check_reads(&agent("a"), 1000).is_err(), "there is only one left");
        rates.check_reads(&agent("b"), 1000).expect("a list that may look at more than the rate is not shut out");
        assert!(rates.check(&agent("b"), 1).is_err(), "messages and reads count together");
    }

    #[test]
    fn sends_without_a_session_use_up_nothing_of_the_agent_s_own_rate() {
        let rates = Rates::new(&AgentLimits { messages_per_second: 3, ..AgentLimits::default() });
        for _ in 0..3 {
            rates.check_without_session(&agent("a"), 100).unwrap();
        }
        rates.check_without_session(&agent("a"), 100).unwrap_err();
        rates.check(&agent("a"), 100).unwrap();
    }

    #[test]
    fn changes_of_a_card_have_a_rate_of_their_own() {
        let rates = Rates::new(&AgentLimits { card_changes_per_minute: 2, ..AgentLimits::default() });
        rates.check_card_change(&agent("a")).unwrap();
        rates.check_card_change(&agent("a")).unwrap();
        assert!(rates.check_card_change(&agent("a")).is_err());
        rates.check_card_change(&agent("b")).unwrap();
    }

    #[test]
    fn zero_means_no_limit() {
        let rates = Rates::new(&AgentLimits { messages_per_second: 0, bytes_per_second: 0, ..AgentLimits::default() });
        (0..100_000).for_each(|_| rates.check(&agent("a"), FRAME_BYTES_MAX).unwrap());
    }
}

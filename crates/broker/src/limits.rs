//! The rates of agents, and the CPU time of callers (SPEC 5). Counts in real time; must not know the content of a message,
//! nor the work that takes the time.

use std::{
    collections::HashMap,
    num::NonZeroU32,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter, clock::Clock as _};

use super::{AgentLimits, BrokerError, access::Caller};
use crate::{envelope::FRAME_BYTES_MAX, ids::AgentId, time::Moment};

/// The rates of all agents.
pub struct Rates {
    envelopes: EnvelopeRates,
    without_session: EnvelopeRates,
    card_changes: Option<DefaultKeyedRateLimiter<AgentId>>,
    name_changes: Option<DefaultKeyedRateLimiter<AgentId>>,
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
            card_changes: NonZeroU32::new(limits.card_changes_per_minute)
                .map(|rate| RateLimiter::keyed(Quota::per_minute(rate))),
            name_changes: NonZeroU32::new(limits.name_changes_per_minute)
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

    /// Counts one registration, or one change of a name in a registry. Fails with the time to wait if the rate is exceeded.
    pub fn check_name_change(&self, agent: &AgentId) -> Result<(), BrokerError> {
        let what = "the agent changes the registries too often";
        take(self.name_changes.as_ref(), agent, NonZeroU32::MIN, what)
    }

    /// Counts one call as a message. Fails with the time to wait if the rate is exceeded.
    pub fn check_call(&self, agent: &AgentId) -> Result<(), BrokerError> {
        let what = "the agent sends and calls too often a second";
        take(self.envelopes.messages.as_ref(), agent, NonZeroU32::MIN, what)
    }
}

/// The longest time for which work that is done stops the next work of its caller.
const DEBT_MAX: Duration = Duration::from_secs(10);
/// The unused time that an account gathers, so that a caller may read much at once after a pause.
const SAVED_MAX: Duration = Duration::from_secs(1);
/// The number of accounts in memory from which those without a debt are removed.
const ACCOUNTS_MIN: usize = 1024;

/// The CPU time that reads and checks of each caller take. Work is charged once it is done, because its cost is
/// unknown before. So an account may be overdrawn, by at most what runs at once, and then waits until it is filled again.
#[derive(Debug)]
pub struct CpuAccounts {
    /// CPU time per second: of an agent, and of all callers without an identity together. Zero: no limit.
    of_agent: Duration,
    /// CPU time per second of an operator. Zero: no limit.
    of_operator: Duration,
    accounts: Mutex<Accounts>,
}

#[derive(Debug, Default)]
struct Accounts {
    /// The moment at which all work of the caller is paid for. An account whose moment has passed is full, and the same as
    /// none.
    paid_at: HashMap<String, Moment>,
    /// The number of accounts from which the full ones are removed.
    full_from: usize,
}

impl CpuAccounts {
    /// Starts with full accounts.
    pub fn new(limits: &AgentLimits) -> Self {
        let of = |milliseconds: u32| Duration::from_millis(milliseconds.into());
        let of_operator = of(limits.operator_cpu_ms_per_second);
        Self { of_agent: of(limits.cpu_ms_per_second), of_operator, accounts: Mutex::default() }
    }

    /// The time after which the caller may have work done again. `None`: at once.
    pub fn wait(&self, caller: &Caller, now: Moment) -> Option<Duration> {
        let accounts = self.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        let debt = accounts.paid_at.get(&caller.to_string())?.since(now);
        debt.checked_sub(SAVED_MAX).filter(|wait| !wait.is_zero())
    }

    /// Fails with the time to wait if the caller's account is overdrawn.
    ///
    /// # Errors
    /// LIMIT_EXCEEDED.
    pub fn check(&self, caller: &Caller, now: Moment) -> Result<(), BrokerError> {
        let what = "the reads and checks of the caller take too much CPU time a second";
        match self.wait(caller, now) {
            // A wait of 0 would let the caller try again at once.
            Some(wait) => Err(BrokerError::LimitExceeded { what, retry_after: wait.max(Duration::from_millis(1)) }),
            None => Ok(()),
        }
    }

    /// Charges CPU time to a caller.
    pub fn charge(&self, caller: &Caller, used: Duration, now: Moment) {
        let rate = match caller {
            Caller::Agent(_) | Caller::Anonymous => self.of_agent,
            Caller::Operator(_) => self.of_operator,
        };
        if rate.is_zero() {
            return;
        }
        // The time in which the account earns what was used.
        let earned_in = used.div_duration_f64(rate).min(DEBT_MAX.as_secs_f64());
        let mut accounts = self.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        accounts.remove_full(now);
        let paid_at = accounts.paid_at.entry(caller.to_string()).or_insert(now);
        let paid = (*paid_at).max(now).plus(Duration::from_secs_f64(earned_in));
        *paid_at = paid.min(now.plus(SAVED_MAX + DEBT_MAX));
    }
}

impl Accounts {
    /// Removes the full accounts once there are many, so that those in memory are those of callers that use some.
    fn remove_full(&mut self, now: Moment) {
        if self.paid_at.len() < self.full_from.max(ACCOUNTS_MIN) {
            return;
        }
        self.paid_at.retain(|_, paid_at| *paid_at > now);
        // Twice as many as are left, so that the searches together cost little.
        self.full_from = self.paid_at.len() * 2;
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
    use crate::access::Operator;

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
    fn calls_count_as_messages() {
        let rates = Rates::new(&AgentLimits { messages_per_second: 3, ..AgentLimits::default() });
        (0..2).for_each(|_| rates.check_call(&agent("a")).unwrap());
        rates.check(&agent("a"), 100).unwrap();
        rates.check_call(&agent("a")).unwrap_err();
        rates.check_call(&agent("b")).unwrap();
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

    const SECOND: Duration = Duration::from_secs(1);

    fn accounts(cpu_ms_per_second: u32, operator_cpu_ms_per_second: u32) -> CpuAccounts {
        CpuAccounts::new(&AgentLimits { cpu_ms_per_second, operator_cpu_ms_per_second, ..AgentLimits::default() })
    }

    #[test]
    fn work_is_charged_once_it_is_done_and_an_overdrawn_caller_waits() {
        let (accounts, now) = (accounts(500, 1000), Moment::now());
        let (a, b) = (Caller::Agent(agent("a")), Caller::Agent(agent("b")));
        accounts.charge(&a, SECOND / 2, now);
        accounts.check(&a, now).unwrap();
        // Two seconds more of CPU time are those of four seconds, the first of which was saved.
        accounts.charge(&a, SECOND * 2, now);
        let refusal = accounts.check(&a, now).unwrap_err();
        match refusal {
            BrokerError::LimitExceeded { retry_after, .. } => assert_eq!(retry_after, SECOND * 4),
            other => panic!("expected a limit, not {other}"),
        }
        assert_eq!(accounts.wait(&a, now.plus(SECOND * 3)), Some(SECOND));
        accounts.check(&a, now.plus(SECOND * 4)).unwrap();
        accounts.check(&b, now).expect("another caller has an account of its own");
    }

    #[test]
    fn in_the_long_run_a_caller_gets_its_rate() {
        let (accounts, begin) = (accounts(500, 1000), Moment::now());
        let agent = Caller::Agent(agent("a"));
        let used = |caller: &Caller| {
            let (mut now, mut used) = (begin, Duration::ZERO);
            while now.since(begin) < SECOND * 60 {
                now = now.plus(accounts.wait(caller, now).unwrap_or_default());
                accounts.charge(caller, Duration::from_millis(30), now);
                used += Duration::from_millis(30);
            }
            used
        };
        assert!((SECOND * 30..=SECOND * 31).contains(&used(&agent)), "half a second in each of 60");
        let operator = Caller::Operator(Operator::named("olga"));
        assert!((SECOND * 60..=SECOND * 62).contains(&used(&operator)), "operators have more");
    }

    #[test]
    fn one_long_piece_of_work_stops_its_caller_for_a_bounded_time() {
        let (accounts, now) = (accounts(1, 1), Moment::now());
        (0..3).for_each(|_| accounts.charge(&Caller::Anonymous, SECOND * 1000, now));
        assert_eq!(accounts.wait(&Caller::Anonymous, now), Some(DEBT_MAX));
    }

    #[test]
    fn no_limit_of_cpu_time_is_said_by_0() {
        let (accounts, now) = (accounts(0, 0), Moment::now());
        for caller in [Caller::Agent(agent("a")), Caller::Operator(Operator::named("olga"))] {
            accounts.charge(&caller, SECOND * 1000, now);
            accounts.check(&caller, now).unwrap();
        }
    }

    #[test]
    fn full_accounts_take_no_memory_for_long() {
        let (accounts, now) = (accounts(500, 1000), Moment::now());
        for number in 0..10 * ACCOUNTS_MIN {
            let now = now.plus(Duration::from_secs(u64::try_from(number).unwrap()));
            accounts.charge(&Caller::Agent(agent(&format!("a{number}"))), SECOND / 10, now);
        }
        assert!(accounts.accounts.lock().unwrap().paid_at.len() <= ACCOUNTS_MIN);
    }
}

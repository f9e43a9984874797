//! The bounds of settings that no type has, and those between settings.

use std::{fmt::Display, ops::RangeInclusive, time::Duration};

use super::{Config, ConfigError, OperatorTokens, PolicySourceError, cluster, gateway};
use crate::{
    broker::{BrokerLimits, OFFERS_TIMEOUT_MAX, Settings},
    domain::{
        TimeoutBounds,
        plan::{CONCURRENCY_MAX, WHOLE_TIMEOUT_MAX},
        workspace::ENTRY_BYTES_MAX,
    },
};

/// The smallest `retention.store_bytes_max`, in bytes: 1 GiB.
const STORE_BYTES_MIN: u64 = 1 << 30;
/// The largest `operators.leeway`.
const LEEWAY_MAX: Duration = Duration::from_secs(10 * 60);
/// The smallest `broker_limits.frame_bytes_max`, in bytes.
const FRAMES_BYTES_MIN: u64 = 16 * 1024 * 1024;
/// The bounds of HTTP/2: its default window, and its largest.
const WINDOWS: RangeInclusive<u32> = 65_535..=0x7fff_ffff;
/// The most topics of a workspace. Each append encodes all of them again, and one answer lists them.
const TOPICS_MAX: u64 = 4096;

/// Refuses a configuration for which this rule does not hold.
fn require(holds: bool, rule: impl Into<String>) -> Result<(), ConfigError> {
    if holds { Ok(()) } else { Err(ConfigError::Refused(rule.into())) }
}

fn require_in<T: PartialOrd + Display>(key: &str, value: T, bounds: RangeInclusive<T>) -> Result<(), ConfigError> {
    require(bounds.contains(&value), format!("{key} must be from {} to {}", bounds.start(), bounds.end()))
}

impl Config {
    /// Checks the values, refuses development settings except on loopback, and loads the policies.
    pub(super) fn checked(mut self) -> Result<Self, ConfigError> {
        let refused = |error: PolicySourceError| ConfigError::Refused(error.to_string());
        let settings = &self.settings;
        for (what, is_set) in [("allow_unsigned", settings.unsigned_allowed), ("plaintext", self.plaintext_allowed)] {
            if is_set && !self.listen.ip().is_loopback() {
                return Err(refused(PolicySourceError::TooOpen { what, listen: self.listen }));
            }
        }
        if let Some(listen) = self.metrics.filter(|listen| !listen.ip().is_loopback() && !self.metrics_public) {
            let problem = format!(
                "metrics.listen is {listen}, and any program that reaches it can read the figures; name a loopback \
                 address, or set metrics.allow_public = true"
            );
            return Err(ConfigError::Refused(problem));
        }
        if let Some(ratio) = self.traces.sampling_ratio {
            let rule = format!("traces.sampling_ratio is {ratio}, and must be from 0 to 1");
            require((0.0..=1.0).contains(&ratio), rule)?;
        }
        if let Some(OperatorTokens { terms, .. }) = &self.operators {
            require(terms.leeway <= LEEWAY_MAX, "operators.leeway must be at most 10 minutes")?;
            require(
                terms.groups_claim.as_ref().is_none_or(|claim| !claim.is_empty()),
                "operators.groups_claim must be the name of a claim, or a JSON pointer",
            )?;
        }
        check_handoffs(settings)?;
        check_spans(settings)?;
        check_workspaces_and_plans(settings)?;
        // A lease of three intervals survives two lost heartbeats.
        require(
            settings.presence_lease >= settings.heartbeat_interval * 3,
            "session.presence_lease must be at least three times heartbeat_interval",
        )?;
        check_broker_limits(&settings.broker_limits)?;
        cluster::check(&self)?;
        gateway::check(&self)?;
        self.policies = self.load_policies().map_err(refused)?;
        Ok(self)
    }
}

fn check_handoffs(settings: &Settings) -> Result<(), ConfigError> {
    let TimeoutBounds { shortest, longest } = settings.timeout_bounds;
    let (timeouts, limits) = (settings.timeouts, settings.loop_limits);
    for (name, span) in [
        ("accept_timeout", timeouts.accept),
        ("context_timeout", timeouts.context),
        ("complete_timeout", timeouts.complete),
        ("whole_timeout", timeouts.whole),
    ] {
        let rule = format!("handoff.{name} is {span:?}, outside of {shortest:?} to {longest:?}");
        require(span >= shortest && span <= longest, rule)?;
    }
    require(
        (1..=16).contains(&limits.handoffs_max) && limits.handoffs_per_pair_max > 0,
        "handoff.handoffs_max must be from 1 to 16, and handoffs_per_pair_max at least 1",
    )
}

fn check_spans(settings: &Settings) -> Result<(), ConfigError> {
    let retention = &settings.retention;
    require(
        !settings.ack_wait.is_zero() && !settings.heartbeat_interval.is_zero(),
        "delivery.ack_wait and session.heartbeat_interval must not be 0",
    )?;
    require(
        retention.store_bytes_max.is_none_or(|most| most >= STORE_BYTES_MIN),
        format!(
            "retention.store_bytes_max must be 0 or at least {STORE_BYTES_MIN}, because the log and unmerged files count too"
        ),
    )?;
    // A message is accepted from one clock window before its timestamp until one after it. Its id must be kept that long.
    require(
        retention.message_ids >= settings.clock_window * 2,
        "retention.message_ids must be at least twice session.clock_window: a message that is sent again must not be \
         taken for a new one",
    )
}

fn check_workspaces_and_plans(settings: &Settings) -> Result<(), ConfigError> {
    let times = &settings.negotiation_times;
    for (name, span) in [("offers_timeout", times.offers), ("decision_timeout", times.decision)] {
        // The bounds of a request that names the time by itself.
        let rule = format!("negotiation.{name} is {span:?}, and must be from 1 s to 1 h");
        require((Duration::from_secs(1)..=OFFERS_TIMEOUT_MAX).contains(&span), rule)?;
    }
    let (workspace, plan) = (&settings.workspace, &settings.plan_terms);
    require(!workspace.entry_lifetime.is_zero(), "workspace.entry_lifetime must not be 0")?;
    // Otherwise the quota would refuse an entry of the largest size for ever.
    require(
        workspace.bytes_max == 0 || workspace.bytes_max >= ENTRY_BYTES_MAX as u64,
        format!("workspace.bytes_max must be 0 or at least {ENTRY_BYTES_MAX}, the size of an entry"),
    )?;
    require_in("workspace.topics_max", workspace.topics_max, 1..=TOPICS_MAX)?;
    require_in("plan.max_concurrency", plan.max_concurrency, 1..=CONCURRENCY_MAX)?;
    for (name, span) in [("dependency_timeout", plan.dependency_timeout), ("whole_timeout", plan.whole_timeout)] {
        let holds = span.as_secs() > 0 && span <= WHOLE_TIMEOUT_MAX;
        require(holds, format!("plan.{name} must be from 1 s to 7 days"))?;
    }
    Ok(())
}

fn check_broker_limits(limits: &BrokerLimits) -> Result<(), ConfigError> {
    require_in("broker_limits.network_percent_max", limits.network_percent_max, 1..=100)?;
    require_in("broker_limits.window_bytes", limits.window_bytes, WINDOWS)?;
    require(
        (limits.window_bytes..=*WINDOWS.end()).contains(&limits.connection_window_bytes),
        "broker_limits.connection_window_bytes must be from window_bytes to 2147483647",
    )?;
    require(
        limits.frame_bytes_max == 0 || limits.frame_bytes_max >= FRAMES_BYTES_MIN,
        "broker_limits.frame_bytes_max must be 0 or at least 16777216, so that a frame of 4 MiB fits in each part",
    )?;
    let spans = [limits.frame_timeout, limits.keepalive_interval, limits.keepalive_timeout];
    require(
        !spans.iter().any(Duration::is_zero),
        "broker_limits.frame_timeout, keepalive_interval and keepalive_timeout must not be 0",
    )
}

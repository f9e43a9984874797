//! The bounds of settings that no type has, and those between settings.

use std::time::Duration;

use super::{Config, ConfigError, PolicySourceError, plan, traces, workspace};
use crate::domain::TimeoutBounds;

/// The smallest `retention.store_bytes_max`, in bytes: 1 GiB.
const STORE_BYTES_MIN: u64 = 1 << 30;
/// The smallest `broker_limits.frame_bytes_max`, in bytes.
const FRAMES_BYTES_MIN: u64 = 16 * 1024 * 1024;

impl Config {
    /// Checks the values, and refuses development settings except on loopback.
    pub(super) fn checked(mut self) -> Result<Self, ConfigError> {
        let refused = |error: PolicySourceError| ConfigError::Refused(error.to_string());
        if self.settings.unsigned_allowed && !self.listen.ip().is_loopback() {
            return Err(refused(PolicySourceError::TooOpen { what: "allow_unsigned", listen: self.listen }));
        }
        if self.plaintext_allowed && !self.listen.ip().is_loopback() {
            return Err(refused(PolicySourceError::TooOpen { what: "plaintext", listen: self.listen }));
        }
        if let Some(listen) = self.metrics.filter(|listen| !listen.ip().is_loopback() && !self.metrics_public) {
            let problem = format!(
                "metrics.listen is {listen}, and any program that reaches it can read the figures; name a loopback \
                 address, or set metrics.allow_public = true"
            );
            return Err(ConfigError::Refused(problem));
        }
        traces::check(&self.traces)?;
        self.check_timeouts()?;
        self.check_broker_limits()?;
        self.policies = self.policy.load(self.listen).map_err(refused)?;
        Ok(self)
    }

    fn check_broker_limits(&self) -> Result<(), ConfigError> {
        let limits = &self.settings.broker_limits;
        let refuse = |problem: &str| Err(ConfigError::Refused(format!("broker_limits.{problem}")));
        if !(1..=100).contains(&limits.network_percent_max) {
            return refuse("network_percent_max must be from 1 to 100");
        }
        // The bounds of HTTP/2: its default window, and its largest.
        if !(65_535..=0x7fff_ffff).contains(&limits.window_bytes) {
            return refuse("window_bytes must be from 65535 to 2147483647");
        }
        if !(limits.window_bytes..=0x7fff_ffff).contains(&limits.connection_window_bytes) {
            return refuse("connection_window_bytes must be from window_bytes to 2147483647");
        }
        if limits.frame_bytes_max != 0 && limits.frame_bytes_max < FRAMES_BYTES_MIN {
            return refuse(
                "frame_bytes_max must be 0 or at least 16777216, so that a frame of 4 MiB fits in each part",
            );
        }
        let spans = [limits.frame_timeout, limits.keepalive_interval, limits.keepalive_timeout];
        if spans.iter().any(Duration::is_zero) {
            return refuse("frame_timeout, keepalive_interval and keepalive_timeout must not be 0");
        }
        Ok(())
    }

    fn check_timeouts(&self) -> Result<(), ConfigError> {
        let TimeoutBounds { shortest, longest } = self.settings.timeout_bounds;
        let timeouts = self.settings.timeouts;
        for (name, span) in [
            ("accept_timeout", timeouts.accept),
            ("context_timeout", timeouts.context),
            ("complete_timeout", timeouts.complete),
            ("whole_timeout", timeouts.whole),
        ] {
            if span < shortest || span > longest {
                let problem = format!("handoff.{name} is {span:?}, outside of {shortest:?} to {longest:?}");
                return Err(ConfigError::Refused(problem));
            }
        }
        let limits = self.settings.loop_limits;
        if limits.handoffs_max == 0 || limits.handoffs_max > 16 || limits.handoffs_per_pair_max == 0 {
            let problem = "handoff.handoffs_max must be from 1 to 16, and handoffs_per_pair_max at least 1".to_owned();
            return Err(ConfigError::Refused(problem));
        }
        if self.settings.ack_wait.is_zero() || self.settings.heartbeat_interval.is_zero() {
            let problem = "delivery.ack_wait and session.heartbeat_interval must not be 0".to_owned();
            return Err(ConfigError::Refused(problem));
        }
        if self.settings.retention.store_bytes_max.is_some_and(|most| most < STORE_BYTES_MIN) {
            let problem = format!(
                "retention.store_bytes_max must be 0 or at least {STORE_BYTES_MIN}, because the log and unmerged files count too"
            );
            return Err(ConfigError::Refused(problem));
        }
        // A message is accepted from one clock window before its timestamp until one after it. Its id must be kept that
        // long.
        if self.settings.retention.message_ids < self.settings.clock_window * 2 {
            let problem = "retention.message_ids must be at least twice session.clock_window: a message that is sent \
                           again must not be taken for a new one"
                .to_owned();
            return Err(ConfigError::Refused(problem));
        }
        workspace::check(&self.settings.workspace)?;
        plan::check(&self.settings.plan_terms)?;
        // A lease of three intervals survives two lost heartbeats.
        if self.settings.presence_lease < self.settings.heartbeat_interval * 3 {
            let problem = "session.presence_lease must be at least three times heartbeat_interval".to_owned();
            return Err(ConfigError::Refused(problem));
        }
        Ok(())
    }
}

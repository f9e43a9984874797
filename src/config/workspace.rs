//! The limits of workspaces.

use super::{ConfigError, WorkspaceSection};
use crate::domain::workspace::{ENTRY_BYTES_MAX, Limits};

/// The most topics of a workspace. Each append encodes all of them again, and one answer lists them.
const TOPICS_MAX: u64 = 4096;

impl WorkspaceSection {
    pub(super) fn limits(&self) -> Limits {
        let defaults = Limits::default();
        Limits {
            entry_lifetime: self.entry_lifetime().unwrap_or(defaults.entry_lifetime),
            bytes_max: self.bytes_max.unwrap_or(defaults.bytes_max),
            entries_max: self.entries_max.unwrap_or(defaults.entries_max),
            topics_max: self.topics_max.unwrap_or(defaults.topics_max),
        }
    }
}

/// Refuses limits that no append could meet.
pub(super) fn check(limits: &Limits) -> Result<(), ConfigError> {
    let refused = |problem: String| Err(ConfigError::Refused(problem));
    if limits.entry_lifetime.is_zero() {
        return refused("workspace.entry_lifetime must not be 0".to_owned());
    }
    // Otherwise the quota would refuse an entry of the largest size for ever.
    if limits.bytes_max != 0 && limits.bytes_max < ENTRY_BYTES_MAX as u64 {
        return refused(format!("workspace.bytes_max must be 0 or at least {ENTRY_BYTES_MAX}, the size of an entry"));
    }
    if !(1..=TOPICS_MAX).contains(&limits.topics_max) {
        return refused(format!("workspace.topics_max must be from 1 to {TOPICS_MAX}"));
    }
    Ok(())
}

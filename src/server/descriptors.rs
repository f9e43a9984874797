//! File descriptors: connections and the store share one limit, and a store without a descriptor cannot write.

use rustix::process::{Resource, getrlimit, setrlimit};

use crate::broker::BrokerLimits;

/// The file descriptors reserved for the store and everything else except connections.
const RESERVED: u64 = 256;

/// Raises the soft limit of open files to the hard limit, and bounds the connections by the rest after [`RESERVED`].
pub(crate) fn bounded(limits: BrokerLimits) -> BrokerLimits {
    let mut allowed = getrlimit(Resource::Nofile);
    if allowed.current != allowed.maximum {
        allowed.current = allowed.maximum;
        if let Err(problem) = setrlimit(Resource::Nofile, allowed) {
            tracing::warn!(%problem, "failed to raise the limit of open files (ulimit -n)");
        }
        allowed = getrlimit(Resource::Nofile);
    }
    let most = connections(limits.connections_max, allowed.current);
    if most < limits.connections_max {
        tracing::warn!(connections_max = most, "the limit of open files (ulimit -n) allows fewer connections");
    }
    BrokerLimits { connections_max: most, ..limits }
}

/// The most connections. `open_files` `None`: no limit of open files; `wanted` 0: as many as the limit allows.
fn connections(wanted: u32, open_files: Option<u64>) -> u32 {
    let Some(open_files) = open_files else { return wanted };
    // With a very low limit, connections get half of it.
    let left = open_files.saturating_sub(RESERVED).max(open_files / 2);
    let left = u32::try_from(left).unwrap_or(u32::MAX);
    if wanted == 0 { left } else { wanted.min(left) }
}

#[cfg(test)]
mod tests {
    use super::connections;

    #[test]
    fn connections_leave_open_files_to_the_store() {
        for (wanted, open_files, most) in [
            (8192, None, 8192),
            (8192, Some(20_000), 8192),
            (8192, Some(1024), 768),
            (0, Some(1024), 768),
            (0, None, 0),
            (100, Some(1024), 100),
            (8192, Some(100), 50),
        ] {
            assert_eq!(connections(wanted, open_files), most, "{wanted} of {open_files:?}");
        }
    }
}

//! File descriptors: connections and the store take them from the same few, and a store that gets none cannot write.

use rustix::process::{Resource, getrlimit, setrlimit};

use crate::broker::BrokerLimits;

/// File descriptors that are for the store and all else that is not a connection.
const RESERVED: u64 = 256;

/// Takes all that the process may have, and bounds connections by what is left when the store has its part.
pub fn bounded(limits: BrokerLimits) -> BrokerLimits {
    let mut allowed = getrlimit(Resource::Nofile);
    if allowed.current != allowed.maximum {
        allowed.current = allowed.maximum;
        if let Err(problem) = setrlimit(Resource::Nofile, allowed) {
            tracing::warn!(%problem, "failed to raise the limit of open files");
        }
        allowed = getrlimit(Resource::Nofile);
    }
    let most = connections(limits.connections_max, allowed.current);
    if most < limits.connections_max {
        tracing::warn!(connections_max = most, "the limit of open files (ulimit -n) allows fewer connections");
    }
    BrokerLimits { connections_max: most, ..limits }
}

/// How many connections there may be. `None` for open files: as many as one likes.
fn connections(wanted: u32, open_files: Option<u64>) -> u32 {
    let Some(open_files) = open_files else { return wanted };
    // Where there are very few, half of them.
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

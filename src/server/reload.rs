//! Certificates that change while the broker runs: taken in on SIGHUP, and when a file changes. New connections get the new
//! ones; open ones go on. Files that cannot be used are refused, and the old ones stay.

use std::{path::Path, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use tokio::sync::Notify;

use super::tls::TlsSetup;

/// How often the files are looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// Runs for as long as the broker does.
pub(super) async fn keep_fresh(setup: TlsSetup, tls: Arc<ArcSwap<rustls::ServerConfig>>, asked: Arc<Notify>) {
    let mut seen = marks(&setup);
    let mut looks = tokio::time::interval(LOOK_INTERVAL);
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let is_asked = tokio::select! {
            () = asked.notified() => true,
            _ = looks.tick() => false,
        };
        let now = marks(&setup);
        if !is_asked && now == seen {
            continue;
        }
        seen = now;
        match setup.load() {
            Ok(config) => {
                tls.store(Arc::new(config));
                tracing::info!("took in the certificates anew");
            }
            Err(error) => tracing::error!(%error, "failed to take in changed certificates; the old ones stay"),
        }
    }
}

/// What tells one version of a file from another, without reading it.
fn marks(setup: &TlsSetup) -> Vec<Option<(u64, i64, i64)>> {
    setup.paths().into_iter().map(mark).collect()
}

fn mark(path: &Path) -> Option<(u64, i64, i64)> {
    use std::os::unix::fs::MetadataExt as _;
    let file = std::fs::metadata(path).ok()?;
    Some((file.ino(), file.mtime(), file.mtime_nsec()))
}

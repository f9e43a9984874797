//! Reloads files that change while the broker runs: certificates, policies, operators' keys. A reload happens on
//! SIGHUP, and when a file changes. An unusable file is refused, and the old content stays in force. The audit log
//! records both.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::sync::Notify;

use crate::{broker::Broker, proto::v1::AuditAction, records::AuditAct};

/// The interval between two checks of the files.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// A reloadable part of the configuration.
pub(super) struct Source {
    /// The name for the log.
    pub(super) what: &'static str,
    /// Lists the current files.
    pub(super) files: Box<dyn Fn() -> Vec<PathBuf> + Send>,
    /// Loads the files and puts them in force. Returns a description of the new content, or the reason of the refusal.
    pub(super) load: Box<dyn Fn() -> Result<String, String> + Send>,
    pub(super) loaded: AuditAction,
    pub(super) refused: AuditAction,
}

impl Source {
    /// The marks of all files. A change of a mark means a new version, so no file has to be read to notice one.
    fn marks(&self) -> Vec<(PathBuf, Option<Mark>)> {
        (self.files)().into_iter().map(|path| (path.clone(), mark(&path))).collect()
    }

    fn reload(&self) -> AuditAct {
        let what = self.what;
        let (action, details) = match (self.load)() {
            Ok(details) => {
                tracing::info!("reloaded the {what}: {details}");
                (self.loaded, details)
            }
            Err(error) => {
                tracing::error!(error, "failed to reload the changed {what}; the previous ones stay in force");
                (self.refused, error)
            }
        };
        let files: Vec<String> = (self.files)().iter().map(|path| path.display().to_string()).collect();
        AuditAct { actor: "the broker".to_owned(), action, subject: files.join(", "), details }
    }
}

/// Checks the files until the task is aborted, at each interval and when `asked` is notified.
pub(super) async fn keep_fresh(broker: Broker, sources: Vec<Source>, asked: Arc<Notify>) {
    let mut seen: Vec<_> = sources.iter().map(Source::marks).collect();
    let mut looks = tokio::time::interval(LOOK_INTERVAL);
    // No burst of checks follows a reload that took long.
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let is_asked = tokio::select! {
            () = asked.notified() => true,
            _ = looks.tick() => false,
        };
        let mut acts = Vec::new();
        for (source, seen) in sources.iter().zip(&mut seen) {
            let now = source.marks();
            // SIGHUP reloads everything; a periodic check reloads only changed files.
            if !is_asked && now == *seen {
                continue;
            }
            // The marks are older than the content loaded now. So a change during the load is noticed at the
            // next check.
            *seen = now;
            acts.push(source.reload());
        }
        for act in acts {
            broker.note(act).await;
        }
    }
}

/// A file's inode, and its time of modification in seconds and nanoseconds.
type Mark = (u64, i64, i64);

fn mark(path: &Path) -> Option<Mark> {
    use std::os::unix::fs::MetadataExt as _;
    let file = std::fs::metadata(path).ok()?;
    // The inode too: a file moved into place may have the same time of modification.
    Some((file.ino(), file.mtime(), file.mtime_nsec()))
}

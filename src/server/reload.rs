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

/// The files of a source, and their marks before the latest load.
pub(super) struct Files {
    list: Box<dyn Fn() -> Vec<PathBuf> + Send>,
    seen: Vec<(PathBuf, Option<Mark>)>,
}

impl Files {
    /// Marks the files that `list` finds. Called before the first load, so that a change while the broker starts is
    /// noticed.
    pub(super) fn before_load(list: impl Fn() -> Vec<PathBuf> + Send + 'static) -> Self {
        let seen = marks(list());
        Self { list: Box::new(list), seen }
    }

    /// Whether the files have changed since the last call. A change of a mark means a new version, so no file has to be
    /// read to notice one.
    fn have_changed(&mut self) -> bool {
        let now = marks((self.list)());
        let have_changed = now != self.seen;
        self.seen = now;
        have_changed
    }
}

/// A reloadable part of the configuration.
pub(super) struct Source {
    /// The name for the log.
    pub(super) what: &'static str,
    pub(super) files: Files,
    /// Loads the files and puts them in force. Returns a description of the new content, or the reason of the refusal.
    pub(super) load: Box<dyn Fn() -> Result<String, String> + Send>,
    pub(super) loaded: AuditAction,
    pub(super) refused: AuditAction,
}

impl Source {
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
        let files: Vec<String> = (self.files.list)().iter().map(|path| path.display().to_string()).collect();
        AuditAct { actor: "the broker".to_owned(), action, subject: files.join(", "), details }
    }
}

/// Checks the files until the task is aborted, at each interval and when `asked` is notified.
pub(super) async fn keep_fresh(broker: Broker, mut sources: Vec<Source>, asked: Arc<Notify>) {
    let mut looks = tokio::time::interval(LOOK_INTERVAL);
    // No burst of checks follows a reload that took long.
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let is_asked = tokio::select! {
            () = asked.notified() => true,
            _ = looks.tick() => false,
        };
        let mut acts = Vec::new();
        for source in &mut sources {
            // The marks are taken before the load, so a change during the load is noticed at the next check.
            let have_changed = source.files.have_changed();
            // SIGHUP reloads everything; a periodic check reloads only changed files.
            if is_asked || have_changed {
                acts.push(source.reload());
            }
        }
        for act in acts {
            broker.note(act).await;
        }
    }
}

/// A file's inode, and its time of modification in seconds and nanoseconds.
type Mark = (u64, i64, i64);

fn marks(paths: Vec<PathBuf>) -> Vec<(PathBuf, Option<Mark>)> {
    paths.into_iter().map(|path| (path.clone(), mark(&path))).collect()
}

fn mark(path: &Path) -> Option<Mark> {
    use std::os::unix::fs::MetadataExt as _;
    let file = std::fs::metadata(path).ok()?;
    // The inode too: a file moved into place may have the same time of modification.
    Some((file.ino(), file.mtime(), file.mtime_nsec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_between_the_first_load_and_the_first_check_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("policy.cedar");
        std::fs::write(&path, "old").unwrap();
        let mut files = Files::before_load({
            let path = path.clone();
            move || vec![path.clone()]
        });
        // Moved into place, as its time of modification may be the same.
        let new = folder.path().join("new");
        std::fs::write(&new, "new").unwrap();
        std::fs::rename(&new, &path).unwrap();
        assert!(files.have_changed());
        assert!(!files.have_changed());
    }
}

//! Files that change while the broker runs: certificates, policies, keys of operators. Taken in on SIGHUP, and when a file
//! changes. What cannot be used is refused, and the old stays. Both are on record in the audit log.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::sync::Notify;

use crate::{broker::Broker, proto::v1::AuditAction, records::AuditAct};

/// How often the files are looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// Something that is made of files.
pub(super) struct Source {
    /// What it is, for the log.
    pub(super) what: &'static str,
    /// Its files now.
    pub(super) files: Box<dyn Fn() -> Vec<PathBuf> + Send>,
    /// Takes it in anew; says what it is now, or why it is not taken.
    pub(super) load: Box<dyn Fn() -> Result<String, String> + Send>,
    pub(super) loaded: AuditAction,
    pub(super) refused: AuditAction,
}

impl Source {
    /// What tells one version of its files from another, without reading them.
    fn marks(&self) -> Vec<(PathBuf, Option<Mark>)> {
        (self.files)().into_iter().map(|path| (path.clone(), mark(&path))).collect()
    }

    fn take_in(&self) -> AuditAct {
        let what = self.what;
        let (action, details) = match (self.load)() {
            Ok(details) => {
                tracing::info!("took in the {what} anew: {details}");
                (self.loaded, details)
            }
            Err(error) => {
                tracing::error!(error, "failed to take in changed {what}; the old ones stay");
                (self.refused, error)
            }
        };
        let files: Vec<String> = (self.files)().iter().map(|path| path.display().to_string()).collect();
        AuditAct { actor: "the broker".to_owned(), action, subject: files.join(", "), details }
    }
}

/// Runs for as long as the broker does.
pub(super) async fn keep_fresh(broker: Broker, sources: Vec<Source>, asked: Arc<Notify>) {
    let mut seen: Vec<_> = sources.iter().map(Source::marks).collect();
    let mut looks = tokio::time::interval(LOOK_INTERVAL);
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let is_asked = tokio::select! {
            () = asked.notified() => true,
            _ = looks.tick() => false,
        };
        let mut acts = Vec::new();
        for (source, seen) in sources.iter().zip(&mut seen) {
            let now = source.marks();
            if !is_asked && now == *seen {
                continue;
            }
            *seen = now;
            acts.push(source.take_in());
        }
        for act in acts {
            broker.note(act).await;
        }
    }
}

/// The file itself, and when it was written.
type Mark = (u64, i64, i64);

fn mark(path: &Path) -> Option<Mark> {
    use std::os::unix::fs::MetadataExt as _;
    let file = std::fs::metadata(path).ok()?;
    Some((file.ino(), file.mtime(), file.mtime_nsec()))
}

//! The progress of lent tasks, passed to the agent that lent them.

use std::{sync::Arc, time::Duration};

use prost::Message as _;
use tokio_util::task::AbortOnDropHandle;

use super::{Link, OwnedTask, waiting::is_final};
use crate::proto::v1::{self, MessageType, custody_entry::Event, watch_task_response::Update};

/// The time for the last status updates, after the end of a loan.
const LAST_TIME: Duration = Duration::from_secs(2);

/// A status update of a task.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    /// The task id.
    pub task_id: String,
    /// The agent that reports.
    pub agent_id: String,
    /// The epoch at which the agent owns the task.
    pub epoch: u64,
    /// The status.
    pub status: v1::TaskStatus,
    /// From 0 to 1; `None`: not reported.
    pub progress: Option<f64>,
    /// The details, for people; may be empty.
    pub details: String,
    /// The question that the agent asks; empty: none.
    pub question: String,
}

impl Progress {
    /// The status update of this entry of a custody log; `None` if the entry is another event.
    pub fn of(entry: &v1::CustodyLogEntry) -> Option<Self> {
        let Some(Event::Accepted(accepted)) = &entry.entry.as_ref()?.event else { return None };
        if accepted.message_type() != MessageType::TaskStatusUpdate {
            return None;
        }
        let envelope = v1::Envelope::decode(entry.envelope.clone()).ok()?;
        let update = v1::TaskStatusUpdate::decode(envelope.payload?.value).ok()?;
        Some(Self {
            task_id: envelope.task_id,
            agent_id: envelope.sender_id,
            epoch: envelope.epoch,
            status: update.status(),
            progress: update.progress,
            details: update.details,
            question: update.prompt.map(|prompt| prompt.question).unwrap_or_default(),
        })
    }
}

pub(super) type TellProgress = Arc<dyn Fn(Progress) + Send + Sync>;

impl Link {
    /// Has `tell` called with the status updates of the tasks that calls on the returned clone lend, in order, while
    /// [`Link::delegate`] waits. They are as the broker shows them. `tell` must not block.
    #[must_use]
    pub fn with_progress(&self, tell: impl Fn(Progress) + Send + Sync + 'static) -> Self {
        let mut link = self.clone();
        link.progress = Some(Arc::new(tell));
        link
    }

    /// Tells the progress of a loan that begins at this epoch, until its final status; `None` if no one asks for it.
    pub(super) fn tell_progress(&self, task_id: &str, epoch: u64) -> Option<AbortOnDropHandle<()>> {
        let (tell, link) = (self.progress.clone()?, self.clone());
        let request = v1::WatchTaskRequest { task_id: task_id.to_owned(), ..Default::default() };
        Some(AbortOnDropHandle::new(tokio::spawn(async move {
            let mut watch = match link.watch(request).await {
                Ok(watch) => watch,
                Err(problem) => return tracing::warn!(%problem, "the progress of a lent task cannot be read"),
            };
            loop {
                let entry = match watch.next().await {
                    Ok(Some(v1::WatchTaskResponse { update: Some(Update::Entry(entry)) })) => entry,
                    Ok(Some(_)) => continue,
                    Ok(None) => return,
                    Err(problem) => return tracing::warn!(%problem, "the progress of a lent task cannot be read"),
                };
                if let Some(told) = Progress::of(&entry).filter(|told| told.epoch >= epoch) {
                    let is_last = is_final(told.status);
                    tell(told);
                    if is_last {
                        return;
                    }
                }
            }
        })))
    }
}

/// Waits for the last progress of a loan that has ended.
pub(super) async fn told(telling: Option<AbortOnDropHandle<()>>) {
    if let Some(telling) = telling {
        // A panic of the function is its own; the loan has ended all the same.
        let _ = tokio::time::timeout(LAST_TIME, telling).await;
    }
}

impl OwnedTask {
    /// The same task, with `tell` as [`Link::with_progress`] has it, for [`Self::delegate`].
    #[must_use]
    pub fn with_progress(&self, tell: impl Fn(Progress) + Send + Sync + 'static) -> Self {
        let mut task = self.clone();
        task.replace_link(|link| link.with_progress(tell));
        task
    }
}

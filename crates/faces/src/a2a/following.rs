//! Following a task: until it has news, or until nothing more happens without its client.

use std::time::Duration;

use a2a::{StreamResponse, TaskArtifactUpdateEvent, TaskStatusUpdateEvent};
use baton_client::{Watch, proto::v1, time::Moment};
use tokio::time::{sleep, timeout};

use super::{Failure, Modes, Reached, View, records, records::Seen};
use crate::{ActError, Face};

/// How long a message waits for the end of its task.
const BLOCKS_FOR: Duration = Duration::from_secs(600);
/// How often a task is looked at without news: of some changes, for example the expiry of a question, the log says nothing.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// The pause before a broken watch begins again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// The news of one task.
pub(super) struct News {
    watch: Option<Watch<v1::WatchTaskRequest>>,
    after_number: u64,
}

impl News {
    /// The news after this record.
    pub(super) fn after(task: &v1::Task) -> Self {
        Self { watch: None, after_number: task.custody_length }
    }

    /// Waits for news, or for the next look.
    pub(super) async fn next(&mut self, face: &Face, task_id: &str) {
        let waiting = async {
            if self.watch.is_none() {
                let request = v1::WatchTaskRequest { task_id: task_id.to_owned(), after_number: self.after_number };
                let opened = async { Ok::<_, ActError>(Watch::open(face.client().await?, request).await?) };
                self.watch = opened.await.ok();
            }
            let Some(watch) = &mut self.watch else { return sleep(AGAIN_AFTER).await };
            match watch.next().await {
                Ok(Some(_)) => self.after_number = watch.place().unwrap_or(self.after_number),
                Ok(None) | Err(_) => {
                    self.watch = None;
                    sleep(AGAIN_AFTER).await;
                }
            }
        };
        drop(timeout(LOOK_EVERY, waiting).await);
    }
}

impl Reached {
    /// Waits until the task has ended or asks its client, at most for ten minutes. Returns its place then.
    pub(crate) async fn settled(&self, task: v1::Task) -> Result<View, Failure> {
        let (began, mut news) = (Moment::now(), News::after(&task));
        let task_id = task.task_id.clone();
        let mut view = records::view(&self.face, task).await?;
        while !view.is_settled() && began.elapsed() < BLOCKS_FOR {
            news.next(&self.face, &task_id).await;
            view = self.get(&task_id).await?;
        }
        Ok(view)
    }

    /// Tells where the task is and then each change, until it has ended; `until_asked`: or until it asks its client.
    pub(crate) async fn follow<H>(
        &self,
        first: View,
        modes: Modes,
        until_asked: bool,
        hear: impl Fn(StreamResponse) -> H,
    ) -> Result<(), Failure>
    where
        H: Future<Output = ()>,
    {
        let task_id = first.task.task_id.clone();
        let mut news = News::after(&first.task);
        hear(StreamResponse::Task(first.task(modes))).await;
        let mut view = first;
        while !(view.state.is_terminal() || (until_asked && view.is_settled())) {
            news.next(&self.face, &task_id).await;
            let now = self.get(&task_id).await?;
            for event in now.events_since(&view.seen(modes), modes) {
                hear(event).await;
            }
            view = now;
        }
        Ok(())
    }
}

impl View {
    /// What has changed: the result before the status that it belongs to.
    pub(super) fn events_since(&self, seen: &Seen, modes: Modes) -> Vec<StreamResponse> {
        let mut events = Vec::new();
        let (task_id, context_id) = (self.task.task_id.clone(), self.context_id().to_owned());
        if let Some(artifact) = self.artifact(modes).filter(|_| !seen.has_artifact) {
            events.push(StreamResponse::ArtifactUpdate(TaskArtifactUpdateEvent {
                task_id: task_id.clone(),
                context_id: context_id.clone(),
                artifact,
                append: Some(false),
                last_chunk: Some(true),
                metadata: None,
            }));
        }
        if !self.shows_the_same_as(seen) {
            events.push(StreamResponse::StatusUpdate(TaskStatusUpdateEvent {
                task_id,
                context_id,
                status: self.status(),
                metadata: self.task(modes).metadata,
            }));
        }
        events
    }
}

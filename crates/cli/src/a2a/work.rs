//! The work on the tasks of a connector: which remote task belongs to which, and what a recall ends.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use a2a::{Message, SendMessageResponse};
use baton_client::{
    ClientError, HandlerResult, Link, NotTaken, OwnedTask, Recalled,
    proto::v1::{self, RejectReason},
};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::{
    card::Card,
    course::{Course, Trouble},
    http::Problem,
    past::Past,
    remote::Remote,
};
use crate::{
    a2a::parts,
    runner::{End, Input, Work},
    worker::say,
};

/// When a recall comes again whose cancellation did not reach the remote agent.
const CANCEL_AGAIN: Duration = Duration::from_secs(10);

/// An agent of baton whose work is that of the remote agent.
#[derive(Debug)]
pub(super) struct Connector {
    pub(super) remote: Remote,
    pub(super) card: Card,
    pub(super) stop: CancellationToken,
    /// What this process has sent, by the task.
    begun: Mutex<HashMap<String, Begun>>,
}

/// The message sent for a task.
#[derive(Debug, Clone)]
struct Begun {
    message: Message,
    /// `None`: the remote agent has not named its task.
    remote_task: Option<String>,
}

impl Connector {
    pub(super) fn new(remote: Remote, card: Card, stop: CancellationToken) -> Self {
        Self { remote, card, stop, begun: Mutex::default() }
    }

    fn begun(&self) -> MutexGuard<'_, HashMap<String, Begun>> {
        self.begun.lock().expect("no holder panics")
    }

    /// Notes that this message goes out for the task, and the task at the remote agent once it has named it.
    pub(super) fn begin(&self, task_id: &str, message: &Message, remote_task: Option<&str>) {
        let begun = Begun { message: message.clone(), remote_task: remote_task.map(str::to_owned) };
        self.begun().insert(task_id.to_owned(), begun);
    }

    /// The remote task for a task that was taken away. `None`: the remote agent has none.
    async fn remote_task_of(&self, link: &Link, recalled: &Recalled) -> Result<Option<String>, Problem> {
        let begun = self.begun().get(&recalled.task_id).cloned();
        match begun {
            Some(Begun { remote_task: Some(id), .. }) => Ok(Some(id)),
            // The same message again finds the task that it has begun.
            Some(Begun { message, .. }) => match self.remote.send(&message).await? {
                SendMessageResponse::Task(task) => Ok(Some(task.id)),
                SendMessageResponse::Message(_) => Ok(None),
            },
            None => match link.verify_custody(&recalled.task_id).await {
                Ok(log) => Ok(Past::of(&log.entries, link.id().as_str(), recalled.epoch).task),
                Err(error) if error.is_passing() => Err(Problem::Passing(error.to_string())),
                // An offer that was taken back: nothing was begun.
                Err(error) => {
                    tracing::debug!(task_id = %recalled.task_id, %error, "the log of a recalled task cannot be read");
                    Ok(None)
                }
            },
        }
    }
}

impl Work for Connector {
    fn refusal(&self, request: &v1::HandoffRequest) -> Option<v1::HandoffReject> {
        let lacks = self.card.lacks(&request.required_skills);
        (!lacks.is_empty()).then(|| v1::HandoffReject {
            reason: RejectReason::NoSkill.into(),
            reason_text: format!("the card of {} does not have {}", self.card.name, lacks.join(", ")),
            ..Default::default()
        })
    }

    fn problem(&self, input: &Input) -> Option<String> {
        parts::problem(&self.card, input)
    }

    async fn work(&self, link: &Link, task: &OwnedTask, input: &Input) -> End {
        let mut remote_task = None;
        let working = async {
            let mut course = Course::begin(self, link, task, input).await?;
            let ended = course.run().await;
            remote_task = course.open_remote_task();
            ended
        };
        let ended = tokio::select! {
            ended = working => ended,
            () = self.stop.cancelled() => return End::Stopped,
        };
        let end = match ended {
            Ok(end) => end,
            // The recall follows, and ends the remote task.
            Err(Trouble::Broker(error)) if is_gone(&error) => return End::Stopped,
            Err(trouble) => End::Failed(trouble.to_string()),
        };
        if let Some(id) = remote_task
            && let Err(problem) = self.remote.cancel(&id).await
        {
            tracing::warn!(remote_task = id, %problem, "the remote task of a failed task is not canceled");
        }
        self.begun().remove(&task.task_id);
        end
    }

    async fn recalled(&self, link: &Link, recalled: &Recalled) -> HandlerResult {
        let again = |problem: &Problem| {
            tracing::warn!(task_id = %recalled.task_id, %problem, "a remote task is not canceled yet");
            Err(NotTaken::GivenBack(CANCEL_AGAIN, problem.to_string()).into())
        };
        let id = match self.remote_task_of(link, recalled).await {
            Ok(id) => id,
            Err(problem) if problem.is_passing() => return again(&problem),
            Err(problem) => {
                tracing::warn!(task_id = %recalled.task_id, %problem, "the remote task of a recalled task is not known");
                None
            }
        };
        if let Some(id) = id {
            match self.remote.cancel(&id).await {
                Ok(_) => say("canceled", &json!({"task": recalled.task_id, "remote_task": id})),
                Err(problem) if problem.is_passing() => return again(&problem),
                Err(problem) => tracing::info!(remote_task = id, %problem, "a remote task has ended by itself"),
            }
        }
        self.begun().remove(&recalled.task_id);
        Ok(())
    }
}

/// Whether the task has moved on without this agent.
fn is_gone(error: &ClientError) -> bool {
    matches!(error.reason(), Some("STALE_EPOCH" | "TASK_FINAL" | "NOT_OWNER"))
}

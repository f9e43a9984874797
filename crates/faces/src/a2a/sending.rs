//! `SendMessage` and `CancelTask`.

use a2a::{CancelTaskRequest, SendMessageConfiguration, SendMessageRequest, TaskPushNotificationConfig, TaskState};
use baton_client::{
    About,
    proto::v1::{self, HandoffMode, HandoffState, MessageType},
};
use serde_json::json;

use super::{Failure, Modes, Reached, TASK_PREFIX, View, handoff_id_of, messages, records, uuid_of};
use crate::{
    ActError,
    acts::{leave_time_to, terms},
    contexts,
};

/// How often a task is tried to cancel that moves at the same time.
const TRIES: usize = 4;

/// What a client wants of the answer.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) is_immediate: bool,
    pub(crate) modes: Modes,
    /// Where each change of the task is to be posted.
    pub(crate) push: Option<TaskPushNotificationConfig>,
}

/// What the client wants, out of a request.
pub(crate) fn wanted(configuration: Option<&SendMessageConfiguration>) -> Result<Wanted, Failure> {
    let Some(given) = configuration else {
        return Ok(Wanted { is_immediate: false, modes: Modes::ALL, push: None });
    };
    check_length("configuration.historyLength", given.history_length)?;
    let modes = Modes::of(given.accepted_output_modes.as_deref().unwrap_or_default())?;
    let push = given.task_push_notification_config.clone();
    Ok(Wanted { is_immediate: given.return_immediately == Some(true), modes, push })
}

/// Checks the length of a history. No history is kept, which every length allows.
pub(crate) fn check_length(field: &str, length: Option<i32>) -> Result<(), Failure> {
    match length {
        Some(length) if length < 0 => Err(Failure::invalid(field, "must be 0 or more")),
        _ => Ok(()),
    }
}

/// Checks the tenant, which no card here names.
pub(crate) fn check_tenant(tenant: Option<&str>) -> Result<(), Failure> {
    match tenant {
        None | Some("") => Ok(()),
        Some(_) => Err(Failure::invalid("tenant", "the card names none")),
    }
}

impl Reached {
    /// Takes a message, and returns the task that it begins or goes on with.
    pub(crate) async fn send(&self, request: &SendMessageRequest) -> Result<v1::Task, Failure> {
        check_tenant(request.tenant.as_deref())?;
        messages::check(&request.message)?;
        match request.message.task_id.as_deref().filter(|id| !id.is_empty()) {
            Some(task_id) => self.go_on(request, task_id).await,
            None => self.begin(request).await,
        }
    }

    async fn begin(&self, request: &SendMessageRequest) -> Result<v1::Task, Failure> {
        let message = &request.message;
        let opening = messages::opening(message, request.metadata.as_ref().map(|metadata| json!(metadata)).as_ref())?;
        let (caller, name) = (self.face.id(), self.published.name());
        let task_id = format!("{TASK_PREFIX}{}", uuid_of(&["task", caller, name, &message.message_id]));
        if let Some(task) = self.find(&task_id).await? {
            return Ok(self.with_context(task, opening.sections).await?);
        }
        let context_id = match message.context_id.as_deref() {
            None | Some("") => uuid_of(&["context", &task_id]),
            Some(given) => given.to_owned(),
        };
        let to = self.published.receiver();
        let mut asked = terms("", &opening.summary, HandoffMode::Delegate);
        asked.conversation_id = self.conversation_of(&context_id);
        leave_time_to(&self.face, &to, &mut asked).await;
        let about = About::task(&task_id, 1);
        let id = handoff_id_of(&task_id);
        let sent = self.face.send_once(&id, &to, MessageType::HandoffRequest, &about, &asked).await;
        let found = self.find(&task_id).await?;
        match (sent, found) {
            (_, Some(task)) => Ok(self.with_context(task, opening.sections).await?),
            (Err(error), None) if error.reason == "RECEIVER_UNKNOWN" => {
                let text = format!("no agent takes tasks as {name} now; nothing was begun");
                Err(ActError { text, ..error }.into())
            }
            (Err(error), None) => Err(error.into()),
            (Ok(()), None) => Err(ActError::away("the task that it has stored is not there").into()),
        }
    }

    /// Stores the context of the task's handoff, unless it has been.
    async fn with_context(&self, task: v1::Task, sections: Vec<v1::ContextSection>) -> Result<v1::Task, ActError> {
        let face = &self.face;
        let is_here = task.owner_id == face.id() && !task.open_handoff_id.is_empty();
        if !is_here || contexts::latest(face, &task.task_id).await?.is_some() {
            return Ok(task);
        }
        let about = About::task(&task.task_id, task.epoch);
        match contexts::store(face, &about, sections).await {
            // The candidate was quick, and another process of this agent has sent it.
            Err(error) if matches!(error.reason.as_str(), "STALE_EPOCH" | "NOT_OWNER" | "TASK_FINAL") => {}
            Err(error) if error.retry_after_seconds.is_some() => return Err(error),
            // It can never be sent.
            Err(error) => {
                self.take_back(&task, "its context cannot be stored").await?;
                records::view(face, face.task(&task.task_id).await?).await?;
                return Err(error);
            }
            Ok(()) => {}
        }
        // If it has been accepted by now, nothing else sends it.
        contexts::send(face, &face.handoff(&handoff_id_of(&task.task_id)).await?).await?;
        Ok(task)
    }

    /// A message to a task: the answer to its question, or mail to its owner.
    async fn go_on(&self, request: &SendMessageRequest, task_id: &str) -> Result<v1::Task, Failure> {
        let message = &request.message;
        let view = self.get(task_id).await?;
        if let Some(context_id) = message.context_id.as_deref().filter(|id| !id.is_empty())
            && context_id != view.context_id()
        {
            return Err(Failure::invalid("message.contextId", "is not the context of message.taskId"));
        }
        let id = uuid_of(&["message", task_id, &message.message_id]);
        if view.task.last_answer.as_ref().is_some_and(|last| last.answer_id == id) {
            return Ok(view.task);
        }
        let about = About::task(task_id, view.task.epoch);
        match view.state {
            TaskState::InputRequired => {
                let (text, data_json) = messages::words(message)?;
                let about = About { correlation_id: view.question_id, ..about };
                let answer = v1::TaskInput { text, data_json };
                self.face.send_once(&id, "", MessageType::TaskInput, &about, &answer).await?;
            }
            TaskState::Working => {
                let (text, data_json) = messages::words(message)?;
                let info = v1::Info { topic: "a2a".to_owned(), text, data_json, deliver_after: None };
                self.face.send_once(&id, &view.task.owner_id, MessageType::Info, &about, &info).await?;
            }
            TaskState::Submitted => {
                return Err(Failure::unsupported("no agent has the task yet; send the message when it is working"));
            }
            _ => return Err(Failure::unsupported("the task has ended; send a message without taskId")),
        }
        Ok(self.face.task(task_id).await?)
    }

    /// `CancelTask`.
    pub(crate) async fn cancel(&self, request: &CancelTaskRequest) -> Result<View, Failure> {
        check_tenant(request.tenant.as_deref())?;
        let mut view = self.get(&request.id).await?;
        for _ in 0..TRIES {
            if view.state.is_terminal() {
                return Err(Failure::not_cancelable());
            }
            match self.take_back(&view.task, "cancelled by the A2A client").await {
                Ok(()) => return self.get(&request.id).await,
                // It has moved meanwhile.
                Err(error) if !error.is_absent() && error.retry_after_seconds.is_none() => {
                    view = self.get(&request.id).await?;
                    if view.state.is_terminal() {
                        return Err(Failure::not_cancelable());
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(ActError::away("the task moves all the time").into())
    }

    /// Cancels the open handoff, or recalls the loan.
    async fn take_back(&self, task: &v1::Task, reason: &str) -> Result<(), ActError> {
        let handoff = self.face.handoff(&handoff_id_of(&task.task_id)).await?;
        let reason_text = reason.to_owned();
        if handoff.state() == HandoffState::Completed {
            let about = About::handoff(&task.task_id, task.epoch, &handoff.handoff_id);
            return self
                .face
                .send("", MessageType::TaskRecall, &about, &v1::TaskRecall { reason_text })
                .await
                .map(drop);
        }
        let about = About::handoff(&task.task_id, handoff.epoch, &handoff.handoff_id);
        let cancel = v1::HandoffCancel { reason_text };
        self.face.send(&handoff.candidate_id, MessageType::HandoffCancel, &about, &cancel).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_client_wants_is_checked() {
        let given = |value| serde_json::from_value::<SendMessageConfiguration>(value).unwrap();
        let code =
            |value| wanted(Some(&given(value))).map_err(|failure| failure.code).map(|wanted| wanted.is_immediate);
        assert_eq!(code(json!({"returnImmediately": true, "historyLength": 0})), Ok(true));
        assert_eq!(code(json!({})), Ok(false));
        assert_eq!(code(json!({"historyLength": -1})), Err(-32602));
        let push = given(json!({"taskPushNotificationConfig": {"url": "https://example.com"}}));
        assert_eq!(wanted(Some(&push)).unwrap().push.unwrap().url, "https://example.com");
        assert_eq!(code(json!({"acceptedOutputModes": ["image/png"]})), Err(-32005));
        assert_eq!(check_tenant(Some("t")).map_err(|failure| failure.code), Err(-32602));
    }
}

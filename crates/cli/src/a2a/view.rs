//! The remote task, as its events show it.

use a2a::{Artifact, Message, StreamResponse, Task, TaskArtifactUpdateEvent, TaskState, TaskStatus};

use super::{http::BODY_MAX, parts};

/// The remote task, as far as known.
#[derive(Debug, Default)]
pub(super) struct View {
    /// Empty: the remote agent has not named it.
    pub(super) task_id: String,
    pub(super) context_id: String,
    status: Option<TaskStatus>,
    artifacts: Vec<Artifact>,
    /// The bytes of the artifacts, by their text.
    bytes: usize,
}

/// Which question the remote agent has asked.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Asked(TaskStatus);

impl View {
    /// A task whose id an earlier process has learned.
    pub(super) fn known(task_id: String) -> Self {
        Self { task_id, ..Self::default() }
    }

    /// Takes an event up. Returns its words for people; empty: none.
    ///
    /// # Errors
    ///
    /// The event is about another task, or the artifacts are too large: the problem in words.
    pub(super) fn apply(&mut self, event: StreamResponse) -> Result<String, String> {
        match event {
            StreamResponse::Task(task) => self.replace(task),
            // An agent without tasks answers by a message, and has done its work.
            StreamResponse::Message(message) => {
                self.artifacts = vec![Artifact {
                    artifact_id: message.message_id,
                    name: None,
                    description: None,
                    parts: message.parts,
                    metadata: message.metadata,
                    extensions: message.extensions,
                }];
                self.status = Some(TaskStatus { state: TaskState::Completed, message: None, timestamp: None });
                self.count().map(|()| String::new())
            }
            StreamResponse::StatusUpdate(update) => {
                self.check(&update.task_id, &update.context_id)?;
                self.status = Some(update.status);
                Ok(self.words())
            }
            StreamResponse::ArtifactUpdate(update) => self.add(update),
        }
    }

    fn replace(&mut self, task: Task) -> Result<String, String> {
        self.check(&task.id, &task.context_id)?;
        self.status = Some(task.status);
        // A task without artifacts may be shown without them.
        if let Some(artifacts) = task.artifacts.filter(|artifacts| !artifacts.is_empty()) {
            self.artifacts = artifacts;
            self.count()?;
        }
        Ok(self.words())
    }

    fn add(&mut self, update: TaskArtifactUpdateEvent) -> Result<String, String> {
        self.check(&update.task_id, &update.context_id)?;
        let artifact = update.artifact;
        let shown = artifact.name.clone().unwrap_or_else(|| artifact.artifact_id.clone());
        let present = self.artifacts.iter_mut().find(|other| other.artifact_id == artifact.artifact_id);
        let size = size_of(&artifact);
        match present {
            Some(present) if update.append == Some(true) => {
                parts::append(&mut present.parts, artifact.parts);
                self.bytes += size;
                self.bound()?;
            }
            Some(present) => {
                *present = artifact;
                self.count()?;
            }
            None => {
                self.artifacts.push(artifact);
                self.bytes += size;
                self.bound()?;
            }
        }
        Ok(format!("artifact {shown}"))
    }

    fn check(&mut self, task_id: &str, context_id: &str) -> Result<(), String> {
        if self.task_id.is_empty() {
            task_id.clone_into(&mut self.task_id);
        }
        if self.context_id.is_empty() {
            context_id.clone_into(&mut self.context_id);
        }
        match self.task_id == task_id {
            true => Ok(()),
            false => Err(format!("an event of the task {task_id}, where {} was asked for", self.task_id)),
        }
    }

    fn count(&mut self) -> Result<(), String> {
        self.bytes = self.artifacts.iter().map(size_of).sum();
        self.bound()
    }

    fn bound(&self) -> Result<(), String> {
        match self.bytes > BODY_MAX {
            true => Err(format!("artifacts of over {BODY_MAX} bytes")),
            false => Ok(()),
        }
    }

    pub(super) fn state(&self) -> TaskState {
        self.status.as_ref().map_or(TaskState::Unspecified, |status| status.state.clone())
    }

    /// Whether the remote agent waits for its caller.
    pub(super) fn is_asking(&self) -> bool {
        matches!(self.state(), TaskState::InputRequired | TaskState::AuthRequired)
    }

    /// Whether nothing more happens by itself. The question that was answered does not count.
    pub(super) fn is_settled(&self, answered: Option<&Asked>) -> bool {
        self.state().is_terminal() || (self.is_asking() && self.asked().as_ref() != answered)
    }

    pub(super) fn asked(&self) -> Option<Asked> {
        self.status.clone().filter(|_| self.is_asking()).map(Asked)
    }

    /// The message of the status.
    pub(super) fn message(&self) -> Option<&Message> {
        self.status.as_ref().and_then(|status| status.message.as_ref())
    }

    /// The words of the status.
    pub(super) fn words(&self) -> String {
        self.message().map(|message| parts::text_of(&message.parts)).unwrap_or_default()
    }

    pub(super) fn has_artifacts(&self) -> bool {
        !self.artifacts.is_empty()
    }

    /// The result of a completed task.
    pub(super) fn result(&self) -> String {
        parts::result_of(&self.artifacts, &self.words())
    }
}

fn size_of(artifact: &Artifact) -> usize {
    serde_json::to_string(artifact).map_or(0, |text| text.len())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn event(value: Value) -> StreamResponse {
        serde_json::from_value(value).unwrap()
    }

    fn status(state: &str, text: &str) -> Value {
        let message = json!({"messageId": text, "role": "ROLE_AGENT", "parts": [{"text": text}]});
        json!({"state": format!("TASK_STATE_{state}"), "message": message})
    }

    fn update(state: &str, text: &str) -> StreamResponse {
        event(json!({"statusUpdate": {"taskId": "t", "contextId": "c", "status": status(state, text)}}))
    }

    fn piece(text: &str, append: bool) -> StreamResponse {
        let artifact = json!({"artifactId": "a", "name": "report", "parts": [{"text": text}]});
        event(json!({"artifactUpdate": {"taskId": "t", "contextId": "c", "artifact": artifact, "append": append}}))
    }

    #[test]
    fn events_make_the_task_up() {
        let mut view = View::default();
        let task = json!({"task": {"id": "t", "contextId": "c", "status": {"state": "TASK_STATE_SUBMITTED"}}});
        assert_eq!(view.apply(event(task)), Ok(String::new()));
        assert_eq!((view.task_id.as_str(), view.context_id.as_str(), view.is_settled(None)), ("t", "c", false));
        assert_eq!(view.apply(update("WORKING", "half")).as_deref(), Ok("half"));
        assert_eq!(view.apply(piece("wrong", false)).as_deref(), Ok("artifact report"));
        view.apply(piece("one ", false)).unwrap();
        view.apply(piece("two", true)).unwrap();
        view.apply(update("COMPLETED", "")).unwrap();
        assert!(view.is_settled(None));
        assert_eq!(view.result(), r#"{"response":"one two"}"#);
        // A later look at the task without its artifacts takes nothing away.
        let bare = json!({"task": {"id": "t", "contextId": "c", "status": {"state": "TASK_STATE_COMPLETED"}}});
        view.apply(event(bare)).unwrap();
        assert_eq!(view.result(), r#"{"response":"one two"}"#);
        let other = json!({"task": {"id": "u", "contextId": "c", "status": {"state": "TASK_STATE_COMPLETED"}}});
        assert!(view.apply(event(other)).unwrap_err().contains("task u"));
    }

    #[test]
    fn a_message_in_place_of_a_task_is_the_result() {
        let mut view = View::default();
        let message = json!({"message": {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": "hello"}]}});
        view.apply(event(message)).unwrap();
        assert_eq!((view.is_settled(None), view.result().as_str()), (true, r#"{"response":"hello"}"#));
        assert!(view.task_id.is_empty());
    }

    #[test]
    fn a_question_that_was_answered_does_not_count_again() {
        let mut view = View::default();
        view.apply(update("INPUT_REQUIRED", "which?")).unwrap();
        let answered = view.asked();
        assert!(view.is_settled(None) && !view.is_settled(answered.as_ref()));
        view.apply(update("AUTH_REQUIRED", "which?")).unwrap();
        assert!(view.is_settled(answered.as_ref()), "another question");
        view.apply(update("WORKING", "")).unwrap();
        assert_eq!(view.asked(), None);
    }

    #[test]
    fn artifacts_are_bounded() {
        let mut view = View::default();
        view.apply(piece(&"x".repeat(BODY_MAX / 2), false)).unwrap();
        // In place of the first.
        view.apply(piece(&"x".repeat(BODY_MAX / 2), false)).unwrap();
        assert!(view.apply(piece(&"x".repeat(BODY_MAX / 2), true)).unwrap_err().contains("artifacts of over"));
    }
}

//! Where a task of an A2A client is, out of the broker's records. A task that has come back to its caller is ended here.

use a2a::{Artifact, Message, Part, Role, Task, TaskState, TaskStatus as Status};
use baton_client::{
    About, Progress,
    proto::v1::{self, ErrorCode, HandoffState, MessageType, TaskStatus},
};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Failure, handoff_id_of};
use crate::{
    ActError, Face,
    acts::{asked_about, moves, tasks},
    text::{TEXT_MAX, clean},
};

/// The artifact of a task's result.
const RESULT: &str = "result";
/// Why a loan has ended by itself.
const TAKEN_BACK: &str = "the loan has ended without a result: its time is over, or the agent was gone";
/// How often a task is looked at that changes at the same time.
const LOOKS: usize = 4;

/// Where a task is.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct View {
    pub(crate) task: v1::Task,
    pub(crate) state: TaskState,
    /// The words of the status; empty: none.
    words: String,
    /// A question's schema of the answer.
    schema: Option<Value>,
    /// The message_id of the open question to the caller; empty: none.
    pub(crate) question_id: String,
}

/// What a client was told of a task last.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Seen {
    pub(super) state: TaskState,
    words: String,
    question_id: String,
    pub(super) has_artifact: bool,
}

/// What the records say of a task.
enum Look {
    Is(Box<View>),
    /// The caller has the task again, and must end it so.
    Back {
        status: TaskStatus,
        details: String,
        result_json: String,
    },
}

/// Where the task is. Ends it if it has come back to its caller.
pub(crate) async fn view(face: &Face, mut task: v1::Task) -> Result<View, ActError> {
    for _ in 0..LOOKS {
        match look(face, &task).await? {
            Look::Is(view) => return Ok(*view),
            Look::Back { status, details, result_json } => {
                end(face, &task, status, &details, result_json).await?;
                task = face.task(&task.task_id).await?;
            }
        }
    }
    Err(ActError::away("the task changes all the time"))
}

async fn look(face: &Face, task: &v1::Task) -> Result<Look, ActError> {
    let is = |state, words: String| {
        Look::Is(Box::new(View { task: task.clone(), state, words, schema: None, question_id: String::new() }))
    };
    let details = clean(&task.details, TEXT_MAX);
    match task.status() {
        TaskStatus::Completed => return Ok(is(TaskState::Completed, details)),
        TaskStatus::Failed => return Ok(is(TaskState::Failed, details)),
        TaskStatus::Canceled => {
            let is_rejected = match face.handoff(&handoff_id_of(&task.task_id)).await {
                Ok(handoff) => was_rejected(&handoff),
                // Its record has been removed.
                Err(error) if error.is_absent() => false,
                Err(error) => return Err(error),
            };
            return Ok(is(if is_rejected { TaskState::Rejected } else { TaskState::Canceled }, details));
        }
        _ => {}
    }
    let handoff_id = handoff_id_of(&task.task_id);
    if task.owner_id != face.id() {
        return Ok(Look::Is(Box::new(working(face, task, details).await?)));
    }
    let handoff = face.handoff(&handoff_id).await?;
    let back = |status, details: String, result_json: String| Look::Back { status, details, result_json };
    Ok(match handoff.state() {
        HandoffState::Completed => match moves::end_of_loan(face, &handoff, task).await? {
            Some(end) => match Progress::of(&end) {
                Some(last) if last.status == TaskStatus::Completed => {
                    back(last.status, last.details, task.result_json.clone())
                }
                Some(last) if matches!(last.status, TaskStatus::Failed | TaskStatus::Canceled) => {
                    back(last.status, last.details, String::new())
                }
                None if moves::is_recall(&end) => {
                    back(TaskStatus::Canceled, "cancelled by the caller".to_owned(), String::new())
                }
                Some(last) => {
                    let words = format!("{} has given it back without a result", last.agent_id);
                    back(TaskStatus::Failed, words, String::new())
                }
                None => back(TaskStatus::Failed, TAKEN_BACK.to_owned(), String::new()),
            },
            None => back(TaskStatus::Failed, TAKEN_BACK.to_owned(), String::new()),
        },
        HandoffState::Rejected | HandoffState::Cancelled => {
            back(TaskStatus::Canceled, moves::problems_of(&handoff).join("; "), String::new())
        }
        HandoffState::Failed if was_rejected(&handoff) => {
            back(TaskStatus::Canceled, moves::problems_of(&handoff).join("; "), String::new())
        }
        HandoffState::Failed => back(TaskStatus::Failed, moves::problems_of(&handoff).join("; "), String::new()),
        HandoffState::Requested => is(TaskState::Submitted, "waits for an agent".to_owned()),
        _ => is(TaskState::Submitted, format!("waits for {}", handoff.candidate_id)),
    })
}

/// Whether no agent took the task.
fn was_rejected(handoff: &v1::Handoff) -> bool {
    handoff.state() == HandoffState::Rejected
        || (handoff.state() == HandoffState::Failed && handoff.error_code() == ErrorCode::NoCandidate)
}

/// A task that another agent owns.
async fn working(face: &Face, task: &v1::Task, details: String) -> Result<View, ActError> {
    let mut view = View {
        task: task.clone(),
        state: TaskState::Working,
        words: details,
        schema: None,
        question_id: String::new(),
    };
    if task.status() != TaskStatus::WaitingForInput {
        return Ok(view);
    }
    match asked_about(face, &task.task_id).await?.and_then(|asked| asked.open_prompt) {
        Some(open) => {
            let prompt = open.prompt.unwrap_or_default();
            view.state = TaskState::InputRequired;
            view.words = clean(&prompt.question, TEXT_MAX);
            view.schema = serde_json::from_str(&prompt.answer_schema_json).ok();
            view.question_id = open.message_id;
        }
        None if tasks::open_question(face, task).await?.is_some() => {
            view.words = "waits for the answer of another agent".to_owned();
        }
        None => {}
    }
    Ok(view)
}

/// Reports the end of a task as its owner.
async fn end(
    face: &Face,
    task: &v1::Task,
    status: TaskStatus,
    details: &str,
    result_json: String,
) -> Result<(), ActError> {
    let details = details[..details.floor_char_boundary(TEXT_MAX)].to_owned();
    let update = v1::TaskStatusUpdate { status: status.into(), details, result_json, ..Default::default() };
    match face.send("", MessageType::TaskStatusUpdate, &About::task(&task.task_id, task.epoch), &update).await {
        // Another process of this agent was first.
        Err(error) if !matches!(error.reason.as_str(), "TASK_FINAL" | "STALE_EPOCH") => Err(error),
        _ => Ok(()),
    }
}

/// Which forms of the result a client takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Modes {
    pub(crate) text: bool,
    pub(crate) data: bool,
}

impl Modes {
    pub(crate) const ALL: Self = Self { text: true, data: true };

    /// The modes among these media types, where an empty list has all.
    ///
    /// # Errors
    ///
    /// No form of the result is among them.
    pub(crate) fn of(accepted: &[String]) -> Result<Self, Failure> {
        if accepted.is_empty() {
            return Ok(Self::ALL);
        }
        let has = |names: [&str; 3]| {
            accepted.iter().any(|mode| {
                let essence = mode.split(';').next().unwrap_or_default().trim();
                names.iter().any(|name| name.eq_ignore_ascii_case(essence))
            })
        };
        let modes = Self {
            text: has(["text/plain", "text/*", "*/*"]),
            data: has(["application/json", "application/*", "*/*"]),
        };
        if !modes.text && !modes.data {
            return Err(Failure::content_type(
                "configuration.acceptedOutputModes has neither text/plain nor application/json",
            ));
        }
        Ok(modes)
    }
}

impl View {
    /// Whether nothing more happens before the next message of the client.
    pub(crate) fn is_settled(&self) -> bool {
        self.state.is_terminal() || self.state == TaskState::InputRequired
    }

    pub(crate) fn context_id(&self) -> &str {
        context_id_of(&self.task)
    }

    /// What a client has seen that was told of this.
    pub(super) fn seen(&self, modes: Modes) -> Seen {
        Seen {
            state: self.state.clone(),
            words: self.words.clone(),
            question_id: self.question_id.clone(),
            has_artifact: self.artifact(modes).is_some(),
        }
    }

    /// Whether a client sees the same status.
    pub(super) fn shows_the_same_as(&self, seen: &Seen) -> bool {
        self.state == seen.state && self.words == seen.words && self.question_id == seen.question_id
    }

    /// The status, with words.
    pub(crate) fn status(&self) -> Status {
        let mut parts = Vec::new();
        if !self.words.is_empty() {
            parts.push(Part::text(self.words.clone()));
        }
        if let Some(schema) = &self.schema {
            parts.push(Part::data(json!({"answerSchema": schema})));
        }
        let message = (!parts.is_empty()).then(|| Message {
            message_id: super::uuid_of(&["status", &self.task.task_id, &self.task.custody_length.to_string()]),
            context_id: Some(self.context_id().to_owned()),
            task_id: Some(self.task.task_id.clone()),
            role: Role::Agent,
            parts,
            metadata: None,
            extensions: None,
            reference_task_ids: None,
        });
        Status { state: self.state.clone(), message, timestamp: time_of(self.task.update_time) }
    }

    /// The result as an artifact: its data, and the same as text.
    pub(crate) fn artifact(&self, modes: Modes) -> Option<Artifact> {
        if self.state != TaskState::Completed {
            return None;
        }
        let data: Option<Value> = serde_json::from_str(&self.task.result_json).ok();
        let text = match &data {
            // What an agent without data of its own reports.
            Some(Value::Object(members))
                if members.len() == 1 && members.get("response").is_some_and(Value::is_string) =>
            {
                members["response"].as_str().unwrap_or_default().to_owned()
            }
            Some(_) => self.task.result_json.clone(),
            None => self.words.clone(),
        };
        let mut parts = Vec::new();
        if let Some(data) = data.filter(|_| modes.data) {
            parts.push(Part::data(data).with_media_type("application/json"));
        }
        if !text.is_empty() && (modes.text || parts.is_empty()) {
            parts.push(Part::text(text).with_media_type("text/plain"));
        }
        (!parts.is_empty()).then(|| Artifact {
            artifact_id: RESULT.to_owned(),
            name: Some(RESULT.to_owned()),
            description: None,
            parts,
            metadata: None,
            extensions: None,
        })
    }

    /// The task as the protocol has it.
    pub(crate) fn task(&self, modes: Modes) -> Task {
        let metadata = [
            ("baton/owner", self.task.owner_id.clone().into()),
            ("baton/epoch", self.task.epoch.into()),
            ("baton/handoff_id", handoff_id_of(&self.task.task_id).into()),
        ];
        Task {
            id: self.task.task_id.clone(),
            context_id: self.context_id().to_owned(),
            status: self.status(),
            artifacts: self.artifact(modes).map(|artifact| vec![artifact]),
            history: None,
            metadata: Some(metadata.map(|(name, value)| (name.to_owned(), value)).into()),
        }
    }
}

/// The id of the context that the client knows, without the scope.
fn context_id_of(task: &v1::Task) -> &str {
    task.conversation_id.split_once(':').map_or("", |(_, id)| id)
}

/// A time in whole milliseconds.
pub(super) fn time_of(time: Option<prost_types::Timestamp>) -> Option<DateTime<Utc>> {
    let time = time?;
    DateTime::from_timestamp_millis(time.seconds * 1000 + i64::from(time.nanos) / 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(state: TaskState, result_json: &str, words: &str) -> View {
        let task = v1::Task {
            task_id: "a2a-1".to_owned(),
            conversation_id: "0123456789ab:c:1".to_owned(),
            owner_id: "bob".to_owned(),
            epoch: 2,
            result_json: result_json.to_owned(),
            update_time: Some(prost_types::Timestamp { seconds: 1_700_000_000, nanos: 123_999_999 }),
            ..Default::default()
        };
        View { task, state, words: words.to_owned(), schema: None, question_id: String::new() }
    }

    #[test]
    fn a_task_has_its_result_as_data_and_as_text() {
        let done = view(TaskState::Completed, r#"{"sum":42}"#, "");
        let task = serde_json::to_value(done.task(Modes::ALL)).unwrap();
        assert_eq!((&task["contextId"], &task["status"]["state"]), (&json!("c:1"), &json!("TASK_STATE_COMPLETED")));
        assert_eq!(task["status"]["timestamp"], "2023-11-14T22:13:20.123Z");
        let data = json!({"data": {"sum": 42}, "mediaType": "application/json"});
        let text = json!({"text": "{\"sum\":42}", "mediaType": "text/plain"});
        assert_eq!(task["artifacts"], json!([{"artifactId": "result", "name": "result", "parts": [data, text]}]));
        assert_eq!(task["metadata"]["baton/owner"], "bob");
        let text_alone = Modes::of(&["text/plain".to_owned()]).unwrap();
        assert_eq!(done.artifact(text_alone).unwrap().parts.len(), 1);
    }

    #[test]
    fn a_result_in_words_is_text() {
        let parts =
            |view: View| view.artifact(Modes { text: true, data: false }).map(|artifact| artifact.parts[0].clone());
        let said = parts(view(TaskState::Completed, r#"{"response":"hello"}"#, "")).unwrap();
        assert_eq!(said.as_text(), Some("hello"));
        assert_eq!(parts(view(TaskState::Completed, "", "all done")).unwrap().as_text(), Some("all done"));
        assert_eq!(parts(view(TaskState::Completed, "", "")), None);
        assert_eq!(parts(view(TaskState::Failed, r#"{"a":1}"#, "")), None);
    }

    #[test]
    fn a_client_takes_at_least_one_form() {
        let of = |modes: &[&str]| Modes::of(&modes.iter().map(|mode| (*mode).to_owned()).collect::<Vec<_>>());
        assert!(of(&["image/png"]).is_err_and(|failure| failure.code == -32005));
        assert!(of(&["image/png", "application/json; charset=utf-8"]).is_ok_and(|modes| modes.data && !modes.text));
        assert!(of(&["*/*"]).is_ok_and(|modes| modes.data && modes.text));
    }
}

//! `report`, `ask`, `answer` and `get_task`.

use std::sync::Arc;

use baton_client::{
    About, Progress,
    proto::v1::{self, MessageType, TaskStatus, custody_entry::Event},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Data, Looks, QUESTIONS_MAX, asked, wait_of};
use crate::{
    ActError, Face, contexts,
    text::{DATA_MAX, TEXT_MAX, clean, clean_json, short},
};

pub(super) const REPORT: &str =
    "Report on a task that you own: progress, or its end. A final status ends it, and gives a lent task back.";
pub(super) const ASK: &str = "Ask an agent a question about a task that you own, and wait for the answer.";
pub(super) const ANSWER: &str = "Answer a question of your inbox; the first answer counts. Without text and data the person \
     at this host is asked, if it can.";
pub(super) const GET_TASK: &str = "Show a task: owner, status, open question, answer, context, result.";

/// The latest entries of a custody log among which a question is looked for.
const ENTRIES_LOOKED_AT: u32 = 50;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Report {
    task_id: String,
    status: Status,
    /// For people.
    details: Option<String>,
    /// 0 to 1.
    progress: Option<f64>,
    /// Only with COMPLETED.
    result: Option<Data>,
}

#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub(super) enum Status {
    InProgress,
    Completed,
    Failed,
    Canceled,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Ask {
    task_id: String,
    question: String,
    /// An agent's id, or type:NAME.
    answer_by: String,
    /// JSON Schema of the answer's data.
    answer_schema: Option<Data>,
    /// 0 to 240, default 45.
    wait_seconds: Option<u64>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Answer {
    task_id: String,
    text: Option<String>,
    data: Option<Data>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct GetTask {
    task_id: String,
}

/// A task.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(crate) struct Shown {
    task_id: String,
    task_type: String,
    status: String,
    owner_id: String,
    epoch: u64,
    /// How often it has moved.
    hops: usize,
    #[serde(skip_serializing_if = "String::is_empty")]
    open_handoff_id: String,
    /// Of the latest report, in the owner's words.
    #[serde(skip_serializing_if = "String::is_empty")]
    details: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    progress: Option<f64>,
    /// The open question of the owner.
    #[serde(skip_serializing_if = "Option::is_none")]
    question: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    answer: Option<Given>,
    /// The latest context, if you may read it.
    #[serde(skip_serializing_if = "Option::is_none")]
    context: Option<Map<String, Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<Value>,
    next: String,
}

/// The latest answer.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Given {
    from: String,
    question: String,
    text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<Value>,
}

impl Status {
    const fn to_proto(self) -> TaskStatus {
        match self {
            Self::InProgress => TaskStatus::InProgress,
            Self::Completed => TaskStatus::Completed,
            Self::Failed => TaskStatus::Failed,
            Self::Canceled => TaskStatus::Canceled,
        }
    }
}

pub(super) async fn report(face: Arc<Face>, input: Report) -> Result<Shown, ActError> {
    let status = input.status.to_proto();
    if input.result.is_some() && status != TaskStatus::Completed {
        return Err(ActError::argument("/result", "only a COMPLETED task has a result; put the rest into details"));
    }
    let task = face.task(&input.task_id).await?;
    if task.owner_id != face.id() {
        // The end of a loan gives the task back, so a repeat finds it at its delegator.
        let text = format!(
            "The task belongs to {}: stop working on it. If you have reported its end, that counts.",
            task.owner_id
        );
        return Err(ActError::new("NOT_OWNER", text));
    }
    let is_repeat = task.status() == status && status != TaskStatus::InProgress;
    if !is_repeat {
        let update = v1::TaskStatusUpdate {
            status: status.into(),
            details: input.details.unwrap_or_default(),
            progress: input.progress,
            result_json: input.result.map(|result| result.to_json()).unwrap_or_default(),
            ..Default::default()
        };
        face.send("", MessageType::TaskStatusUpdate, &About::task(&task.task_id, task.epoch), &update).await?;
    }
    let shown = shown(&face, face.task(&input.task_id).await?);
    let next = match status {
        TaskStatus::InProgress => "Go on, and report the end.",
        _ => "The task has ended for you. `inbox` shows what else waits.",
    };
    // A loan that has ended is its delegator's task again, with a status of its own.
    let status = short(status.as_str_name(), "TASK_STATUS_");
    Ok(Shown { next: next.to_owned(), status, ..shown })
}

pub(super) async fn ask(face: Arc<Face>, input: Ask) -> Result<Shown, ActError> {
    let wait = wait_of(input.wait_seconds)?;
    if input.question.is_empty() {
        return Err(ActError::argument("/question", "is empty"));
    }
    let task = face.task(&input.task_id).await?;
    let answered = |task: &v1::Task| task.last_answer.as_ref().map(|answer| answer.answer_id.clone());
    let before = answered(&task);
    let is_same = open_question(&face, &task).await?.as_ref() == Some(&input.question);
    if !is_same {
        let prompt = v1::TaskPrompt {
            question: input.question,
            answer_by: input.answer_by,
            answer_schema_json: input.answer_schema.map(|schema| schema.to_json()).unwrap_or_default(),
            ..Default::default()
        };
        let status = TaskStatus::WaitingForInput.into();
        let update = v1::TaskStatusUpdate { status, prompt: Some(prompt), ..Default::default() };
        face.send("", MessageType::TaskStatusUpdate, &About::task(&task.task_id, task.epoch), &update).await?;
    }
    let mut looks = Looks::new(wait);
    if !wait.is_zero() {
        let (task_id, after_number) = (task.task_id, task.custody_length);
        looks.follow(face.client().await?, v1::WatchTaskRequest { task_id, after_number });
    }
    let task = loop {
        let task = face.task(&input.task_id).await?;
        if answered(&task) != before || !looks.again().await {
            break task;
        }
    };
    let next = match answered(&task) != before {
        true => "The answer is there. Use it as data.".to_owned(),
        false => format!("No answer yet. Go on with other work, and look with `get_task` {} later.", task.task_id),
    };
    let question = open_question(&face, &task).await?.map(|question| clean(&question, TEXT_MAX));
    Ok(Shown { next, question, ..shown(&face, task) })
}

pub(super) async fn answer(face: Arc<Face>, input: Answer) -> Result<Shown, ActError> {
    if input.text.is_none() && input.data.is_none() {
        return Err(ActError::argument("/text", "give a text or data"));
    }
    let found = asked(&face, QUESTIONS_MAX).await?.into_iter().find(|task| task.task_id == input.task_id);
    let Some((task, open)) = found.and_then(|task| Some((task.clone(), task.open_prompt?))) else {
        let text = format!("The task {} has no open question to you. `inbox` shows your questions.", input.task_id);
        return Err(ActError::new("INPUT_TAKEN", text));
    };
    let given = v1::TaskInput {
        text: input.text.unwrap_or_default(),
        data_json: input.data.map(|data| data.to_json()).unwrap_or_default(),
    };
    let about = About { correlation_id: open.message_id, ..About::task(&task.task_id, task.epoch) };
    face.send("", MessageType::TaskInput, &about, &given).await?;
    Ok(Shown { next: "Answered. `inbox` shows what else waits.".to_owned(), ..shown(&face, task) })
}

pub(super) async fn get_task(face: Arc<Face>, input: GetTask) -> Result<Shown, ActError> {
    read(&face, &input.task_id).await
}

pub(crate) async fn read(face: &Face, task_id: &str) -> Result<Shown, ActError> {
    let task = face.task(task_id).await?;
    let context = match contexts::latest(face, &task.task_id).await {
        Ok(sections) => sections.map(|sections| contexts::shown(&sections, &[])),
        Err(error) if error.reason == "PERMISSION_DENIED" => None,
        Err(error) => return Err(error),
    };
    let question = open_question(face, &task).await?.map(|question| clean(&question, TEXT_MAX));
    Ok(Shown { context, question, ..shown(face, task) })
}

/// The question that the owner waits for, out of the custody log: only the agent that was asked finds it in a list. After
/// the answer the task keeps its status until the owner reports again.
pub(crate) async fn open_question(face: &Face, task: &v1::Task) -> Result<Option<String>, ActError> {
    if task.status() != TaskStatus::WaitingForInput {
        return Ok(None);
    }
    let client = face.client().await?;
    let request = v1::GetCustodyLogRequest {
        task_id: task.task_id.clone(),
        after_number: task.custody_length.saturating_sub(ENTRIES_LOOKED_AT.into()),
        page_size: ENTRIES_LOOKED_AT,
        ..Default::default()
    };
    let page = client.answer(client.tasks().get_custody_log(request).await)?;
    let told = page.entries.iter().rev().filter_map(|entry| Some((message_of(entry)?, Progress::of(entry)?)));
    let latest = told.into_iter().find(|(_, told)| told.epoch == task.epoch);
    let answered = task.last_answer.as_ref().and_then(|last| last.question.as_ref());
    let open = latest.filter(|(message, _)| answered.is_none_or(|question| question.message_id != *message));
    Ok(open.map(|(_, told)| told.question).filter(|question| !question.is_empty()))
}

/// The id of the message that this entry of a log has accepted.
fn message_of(entry: &v1::CustodyLogEntry) -> Option<&str> {
    let Event::Accepted(accepted) = entry.entry.as_ref()?.event.as_ref()? else { return None };
    Some(&accepted.message_id)
}

fn shown(face: &Face, task: v1::Task) -> Shown {
    let is_final = matches!(task.status(), TaskStatus::Completed | TaskStatus::Failed | TaskStatus::Canceled);
    let next = match (is_final, task.owner_id == face.id(), task.open_handoff_id.as_str()) {
        (true, ..) => "The task has ended.".to_owned(),
        (false, true, "") => "It is yours: work on it, then `report`.".to_owned(),
        (false, true, handoff) => format!("Its handoff is open: `wait` with id {handoff}."),
        (false, false, _) => format!("{} works on it.", task.owner_id),
    };
    let prompt_of = |open: &v1::OpenPrompt| open.prompt.clone().unwrap_or_default().question;
    let given = task.last_answer.as_ref().map(|last| {
        let question = last.question.clone().unwrap_or_default();
        let answer = last.answer.clone().unwrap_or_default();
        Given {
            from: question.asked_agent_id.clone(),
            question: clean(&prompt_of(&question), TEXT_MAX),
            text: clean(&answer.text, TEXT_MAX),
            data: (!answer.data_json.is_empty()).then(|| clean_json(&answer.data_json, DATA_MAX)),
        }
    });
    Shown {
        status: short(task.status().as_str_name(), "TASK_STATUS_"),
        hops: task.hops.len(),
        details: clean(&task.details, TEXT_MAX),
        progress: task.progress,
        question: None,
        answer: given,
        context: None,
        result: (!task.result_json.is_empty()).then(|| clean_json(&task.result_json, DATA_MAX)),
        next,
        task_id: task.task_id,
        task_type: clean(&task.task_type, 128),
        owner_id: task.owner_id,
        epoch: task.epoch,
        open_handoff_id: task.open_handoff_id,
    }
}

//! `inbox`.

use std::{collections::BTreeSet, sync::Arc};

use baton_client::proto::v1::{self, HandoffState, TaskStatus};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Looks, asked, wait_of};
use crate::{
    ActError, Face, contexts,
    text::{TEXT_MAX, clean, clean_json, short},
};

pub(super) const DESCRIPTION: &str = "Show what waits for you: offers to take, questions to answer, tasks that you own. With wait_seconds, until an offer \
     or a question is there.";

/// The most entries of each kind, and their number by default.
const LIMIT_MAX: u32 = 50;
const LIMIT: u32 = 20;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Inbox {
    /// 0 to 240, default 0.
    wait_seconds: Option<u64>,
    /// Of each kind.
    limit: Option<u32>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Waiting {
    offers: Vec<OfferedTask>,
    questions: Vec<AskedQuestion>,
    tasks: Vec<OwnTask>,
    next: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct OfferedTask {
    handoff_id: String,
    task_id: String,
    from: String,
    task_type: String,
    /// In the words of `from`.
    summary: String,
    /// Whether it comes back to `from` when you have ended it.
    is_loan: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds_left: Option<i64>,
    next: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct AskedQuestion {
    task_id: String,
    from: String,
    /// In the words of `from`.
    question: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    answer_schema: Option<Value>,
    next: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct OwnTask {
    task_id: String,
    task_type: String,
    status: String,
    next: String,
}

impl Waiting {
    /// The ids of the own tasks.
    pub(crate) fn tasks(&self) -> impl Iterator<Item = &str> {
        self.tasks.iter().map(|task| task.task_id.as_str())
    }
}

pub(super) async fn inbox(face: Arc<Face>, input: Inbox) -> Result<Waiting, ActError> {
    let wait = wait_of(Some(input.wait_seconds.unwrap_or(0)))?;
    let limit = input.limit.unwrap_or(LIMIT);
    if !(1..=LIMIT_MAX).contains(&limit) {
        return Err(ActError::argument("/limit", format!("must be 1 to {LIMIT_MAX}")));
    }
    let mut looks = Looks::new(wait);
    loop {
        let waiting = read(&face, limit).await?;
        let is_found = !waiting.offers.is_empty() || !waiting.questions.is_empty();
        if is_found || !looks.again().await {
            return Ok(waiting);
        }
    }
}

pub(crate) async fn read(face: &Face, limit: u32) -> Result<Waiting, ActError> {
    let offers = offers(face, limit).await?;
    let questions = questions(face, limit).await?;
    let tasks = tasks(face, limit).await?;
    let next = match (offers.is_empty(), questions.is_empty(), tasks.is_empty()) {
        (false, ..) => "Take an offer with `take_task`, or decline it with `decline_task`.",
        (_, false, _) => "Answer with `answer`.",
        (_, _, false) => "Work on your tasks, and end each with `report`.",
        _ => "Nothing waits. Call `inbox` with wait_seconds 240 to wait for work.",
    };
    Ok(Waiting { offers, questions, tasks, next: next.to_owned() })
}

/// The most of each kind that are counted.
const WAITING_MAX: u32 = 500;

impl Face {
    /// The ids of what waits for this agent: handoffs that are offered to it, and tasks with a question to it. At most 500
    /// of each.
    ///
    /// # Errors
    ///
    /// The broker does not answer, or refuses the agent.
    pub async fn waiting(&self) -> Result<BTreeSet<String>, ActError> {
        let client = self.client().await?;
        let agent_id = self.id().to_owned();
        let request =
            v1::ListHandoffsRequest { page_size: WAITING_MAX, agent_id, open_only: true, ..Default::default() };
        let page = client.answer(client.handoffs().list_handoffs(request).await)?;
        let offered = page.handoffs.into_iter().filter(|handoff| {
            let is_open = matches!(handoff.state(), HandoffState::Requested | HandoffState::Deciding);
            is_open && handoff.candidate_id == self.id()
        });
        let asked = asked(self, WAITING_MAX).await?.into_iter().map(|task| task.task_id);
        Ok(offered.map(|handoff| handoff.handoff_id).chain(asked).collect())
    }
}

async fn offers(face: &Face, limit: u32) -> Result<Vec<OfferedTask>, ActError> {
    let client = face.client().await?;
    let agent_id = face.id().to_owned();
    let request = v1::ListHandoffsRequest { page_size: limit, agent_id, open_only: true, ..Default::default() };
    let page = client.answer(client.handoffs().list_handoffs(request).await)?;
    let now = prost_types::Timestamp::from(face.composer().clock.now()).seconds;
    let mut offers = Vec::new();
    for listed in page.handoffs {
        let is_candidate = listed.candidate_id == face.id();
        match listed.state() {
            HandoffState::Accepted if !is_candidate => {
                contexts::send(face, &face.handoff(&listed.handoff_id).await?).await?;
            }
            HandoffState::Requested | HandoffState::Deciding | HandoffState::Accepted | HandoffState::ContextSent
                if is_candidate =>
            {
                // A list does not show the words of a request.
                let handoff = face.handoff(&listed.handoff_id).await?;
                let deadline = handoff.deadline.as_ref().or(handoff.whole_deadline.as_ref());
                offers.push(OfferedTask {
                    next: format!("`take_task` or `decline_task` with handoff_id {}", handoff.handoff_id),
                    from: handoff.sender_id.clone(),
                    task_type: clean(&handoff.task_type, 128),
                    summary: clean(&handoff.initial_context_summary, TEXT_MAX),
                    is_loan: handoff.mode() == v1::HandoffMode::Delegate,
                    seconds_left: deadline.map(|time| (time.seconds - now).max(0)),
                    task_id: handoff.task_id,
                    handoff_id: handoff.handoff_id,
                });
            }
            _ => {}
        }
    }
    Ok(offers)
}

async fn questions(face: &Face, limit: u32) -> Result<Vec<AskedQuestion>, ActError> {
    let question = |task: v1::Task| {
        let prompt = task.open_prompt?.prompt?;
        let schema = &prompt.answer_schema_json;
        Some(AskedQuestion {
            next: format!("`answer` with task_id {}", task.task_id),
            task_id: task.task_id,
            from: task.owner_id,
            question: clean(&prompt.question, TEXT_MAX),
            answer_schema: (!schema.is_empty()).then(|| clean_json(schema, 16_384)),
        })
    };
    Ok(asked(face, limit).await?.into_iter().filter_map(question).collect())
}

async fn tasks(face: &Face, limit: u32) -> Result<Vec<OwnTask>, ActError> {
    let client = face.client().await?;
    let open = [TaskStatus::Created, TaskStatus::InProgress, TaskStatus::WaitingForInput];
    let request = v1::ListTasksRequest {
        page_size: limit,
        owner_id: face.id().to_owned(),
        statuses: open.map(i32::from).to_vec(),
        ..Default::default()
    };
    let page = client.answer(client.tasks().list_tasks(request).await)?;
    let own = |task: v1::Task| {
        let id = &task.task_id;
        let next = match task.open_handoff_id.as_str() {
            "" => format!("`get_task` with {id} shows it; work on it, then `report`"),
            handoff => format!("its handoff is open: `wait` with id {handoff}"),
        };
        let status = short(task.status().as_str_name(), "TASK_STATUS_");
        OwnTask { task_type: clean(&task.task_type, 128), status, next, task_id: task.task_id }
    };
    Ok(page.tasks.into_iter().map(own).collect())
}

//! The list of tasks, with a search whose work is bounded.

use askama::Template;
use axum::{
    Extension,
    extract::{Query, State},
    response::Response,
};
use serde::Deserialize;

use super::{
    PAGE_SIZE, invalid,
    lists::{Content, check_list},
    named, optional,
    rows::{self, SUMMARY_BYTES_MAX},
    shown,
};
use crate::{
    broker::{
        BrokerError,
        access::{Caller, Purpose, Reach},
        queries::{TaskFilter, View},
    },
    domain::handoff::{Handoff, Task, TaskStatus},
    ids::{AgentId, ConversationId, MessageId, NAME_LENGTH_MAX, TaskId},
    records::TaskRecord,
    wire::console::{Console, show},
};

/// The most bytes of a search.
const SEARCH_BYTES_MAX: usize = 200;
/// The most pages of the list that one search reads, each of [`PAGE_SIZE`] tasks.
const SEARCHED_PAGES_MAX: usize = 6;
/// A search is content with this many tasks.
const ENOUGH: usize = PAGE_SIZE / 2;

/// The statuses, in the order of a task's life.
const STATUSES: [TaskStatus; 6] = [
    TaskStatus::Created,
    TaskStatus::InProgress,
    TaskStatus::WaitingForInput,
    TaskStatus::Completed,
    TaskStatus::Failed,
    TaskStatus::Canceled,
];

pub(super) const fn status_name(status: TaskStatus) -> &'static str {
    match status {
        TaskStatus::Created => "CREATED",
        TaskStatus::InProgress => "IN_PROGRESS",
        TaskStatus::WaitingForInput => "WAITING_FOR_INPUT",
        TaskStatus::Completed => "COMPLETED",
        TaskStatus::Failed => "FAILED",
        TaskStatus::Canceled => "CANCELED",
    }
}

/// The search and the filters, as the form sends them. Empty: any.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct TasksQuery {
    q: String,
    state: String,
    owner: String,
    conversation: String,
    #[serde(rename = "type")]
    task_type: String,
    page: String,
}

impl TasksQuery {
    fn filter(&self, view: View<'_>) -> Result<TaskFilter, BrokerError> {
        if self.q.len() > SEARCH_BYTES_MAX {
            return Err(invalid("q", format!("must have at most {SEARCH_BYTES_MAX} bytes")));
        }
        if self.task_type.len() > NAME_LENGTH_MAX {
            return Err(invalid("type", format!("must have at most {NAME_LENGTH_MAX} bytes")));
        }
        let owner = optional("owner", &self.owner, AgentId::parse)?;
        let conversation = optional("conversation", &self.conversation, ConversationId::parse)?;
        let statuses = match self.state.as_str() {
            "open" => STATUSES.into_iter().filter(|status| !status.is_final()).collect(),
            state => named("state", state, STATUSES, status_name)?.into_iter().collect(),
        };
        // The list by change is for callers that may read all tasks. It has no part for one owner or one conversation.
        let by_update = owner.is_none()
            && conversation.is_none()
            && matches!(view.access.reach(view.caller, Purpose::ReadTasks)?, Reach::Everything);
        Ok(TaskFilter { owner, statuses, conversation, by_update, ..TaskFilter::default() })
    }

    /// Whether a row has the type and each word of the search.
    fn matches(&self, row: &TaskRow) -> bool {
        let text = format!("{} {} {} {} {}", row.id, row.task_type, row.owner, row.summary, row.turn).to_lowercase();
        (self.task_type.is_empty() || row.task_type == self.task_type)
            && self.q.to_lowercase().split_whitespace().all(|word| text.contains(word))
    }

    fn is_search(&self) -> bool {
        !self.q.trim().is_empty() || !self.task_type.is_empty()
    }
}

/// A task in a list.
pub(super) struct TaskRow {
    pub(super) id: String,
    pub(super) task_type: String,
    pub(super) summary: String,
    pub(super) owner: String,
    pub(super) status: &'static str,
    pub(super) turn: String,
    /// Empty: none.
    pub(super) deadline: String,
    /// Why the latest handoff did not complete, or the task failed.
    pub(super) failure: String,
    pub(super) updated_at: String,
}

impl TaskRow {
    /// The row of a task that the caller may see.
    pub(super) fn new(view: View<'_>, record: &TaskRecord) -> Result<Self, BrokerError> {
        let task = &record.task;
        let latest = record.handoff.as_ref().map(|record| &*record.handoff);
        let latest = latest.filter(|handoff| view.access.may_see_handoff(view.caller, handoff));
        let summary = view.summary_of_task(task, latest)?;
        let due = latest.and_then(Handoff::next_deadline).or_else(|| task.next_deadline());
        Ok(Self {
            id: task.id.to_string(),
            task_type: task.task_type.clone(),
            summary: Content::of_at_most(&summary, SUMMARY_BYTES_MAX).with_ellipsis(),
            owner: task.owner.to_string(),
            status: status_name(task.status),
            turn: turn(task, latest).map(|(who, does)| format!("{who} {does}")).unwrap_or_default(),
            deadline: due.filter(|_| !task.status.is_final()).map(|due| due.to_string()).unwrap_or_default(),
            failure: failure(task, latest),
            updated_at: task.updated_at.to_string(),
        })
    }
}

/// Whose turn it is, and to do what. `None`: the task has ended.
pub(super) fn turn(task: &Task, latest: Option<&Handoff>) -> Option<(String, &'static str)> {
    if task.status.is_final() {
        return None;
    }
    if let Some(prompt) = task.open_prompt() {
        return Some((prompt.asked.to_string(), "answers a question"));
    }
    let of_handoff = latest.and_then(rows::turn);
    of_handoff.or_else(|| Some((task.owner.to_string(), "works on it")))
}

fn failure(task: &Task, latest: Option<&Handoff>) -> String {
    let of_task = (task.status == TaskStatus::Failed).then(|| task.details.clone());
    let of_handoff = || {
        let failure = latest?.failure.as_ref()?;
        let said = latest?.offers.iter().rev().map(|offer| &offer.reason_text).find(|text| !text.is_empty());
        let words = show::words(failure.code.name());
        Some(said.map_or_else(|| words.clone(), |said| format!("{words}: {said}")))
    };
    let text = of_task.or_else(of_handoff).unwrap_or_default();
    Content::of_at_most(&text, SUMMARY_BYTES_MAX / 2).with_ellipsis()
}

/// The views that one click shows.
const VIEWS: [(&str, &str); 6] = [
    ("", "All"),
    ("open", "Open"),
    ("IN_PROGRESS", "In progress"),
    ("WAITING_FOR_INPUT", "Waiting for input"),
    ("FAILED", "Failed"),
    ("COMPLETED", "Completed"),
];

#[derive(Template)]
#[template(path = "tasks.html")]
struct TasksPage {
    who: String,
    query: TasksQuery,
    views: &'static [(&'static str, &'static str)],
    states: Vec<&'static str>,
    rows: Vec<TaskRow>,
    /// Whether the page has not looked at all tasks that its filters permit.
    is_search: bool,
    next: String,
}

pub(super) async fn list(
    State(console): State<Console>,
    Extension(caller): Extension<Caller>,
    Query(query): Query<TasksQuery>,
) -> Response {
    let who = caller.to_string();
    let list = move |view: View<'_>| {
        let filter = query.filter(view)?;
        let mut rows = named_task(view, &query)?;
        let known = rows.first().map(|row: &TaskRow| row.id.clone());
        let mut next = query.page.clone();
        for _ in 0..SEARCHED_PAGES_MAX {
            let page = view.tasks(&filter, PAGE_SIZE, &next)?;
            next = page.next_token;
            for record in &page.entries {
                let row = TaskRow::new(view, record)?;
                if known.as_ref() != Some(&row.id) && query.matches(&row) {
                    rows.push(row);
                }
            }
            // A shorter page has looked at as many entries as one call may.
            if next.is_empty() || rows.len() >= ENOUGH || page.entries.len() < PAGE_SIZE {
                break;
            }
        }
        let nobodys =
            || TaskId::parse("none").map_or(BrokerError::Internal, |id| view.access.no_such_task(view.caller, &id));
        check_list(view, Purpose::ReadTasks, rows.is_empty(), nobodys)?;
        let is_search = query.is_search();
        let states = STATUSES.map(status_name).to_vec();
        Ok(TasksPage { who, query, views: &VIEWS, states, rows, is_search, next })
    };
    shown(&console, &caller, list).await
}

/// The task whose id, or the id of whose handoff, is the whole search.
fn named_task(view: View<'_>, query: &TasksQuery) -> Result<Vec<TaskRow>, BrokerError> {
    let text = query.q.trim();
    if text.is_empty() || !query.page.is_empty() {
        return Ok(Vec::new());
    }
    let of_handoff = MessageId::parse(text).ok().and_then(|id| view.handoff(id).ok()).map(|found| found.task.clone());
    let id = of_handoff.or_else(|| TaskId::parse(text).ok());
    // Otherwise the words are searched for.
    let found = id.and_then(|id| view.task(&id).ok());
    found.map(|record| TaskRow::new(view, &record)).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> TaskRow {
        TaskRow {
            id: "refund-21".to_owned(),
            task_type: "refund".to_owned(),
            summary: "Money back for Ada, paid TWICE.".to_owned(),
            owner: "support".to_owned(),
            status: "IN_PROGRESS",
            turn: "support works on it".to_owned(),
            deadline: String::new(),
            failure: String::new(),
            updated_at: String::new(),
        }
    }

    #[test]
    fn a_search_finds_each_word_in_id_type_agent_and_summary() {
        let finds = |q: &str, task_type: &str| {
            TasksQuery { q: q.to_owned(), task_type: task_type.to_owned(), ..TasksQuery::default() }.matches(&row())
        };
        assert!(finds("", "") && finds("twice ADA", "") && finds("REFUND-2 support", "refund"));
        assert!(!finds("twice bob", "") && !finds("ada", "order"));
    }
}

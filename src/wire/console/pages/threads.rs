//! The pages of threads: the list, and one thread with its persona, its run and its log.

use askama::Template;
use axum::{
    Extension,
    extract::{Path, Query, State},
    response::Response,
};
use serde::Deserialize;

use super::{
    PAGE_SIZE,
    lists::{Window, check_list},
    optional, parsed, shown,
};
use crate::{
    broker::{
        BrokerError,
        access::{Caller, Purpose},
        queries::{ThreadFilter, View},
    },
    ids::{SpecId, TaskId, ThreadId},
    proto::v1::{self, thread_entry::Event},
    records::thread_to_v1,
    wire::{console::Console, to_proto::time_text},
};

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ThreadsQuery {
    task: String,
    spec: String,
    page: String,
}

#[derive(Template)]
#[template(path = "threads.html")]
struct ThreadsPage {
    who: String,
    query: ThreadsQuery,
    rows: Vec<ThreadRow>,
    next: String,
}

struct ThreadRow {
    id: String,
    base: String,
    active: String,
    requested: String,
    in_force: String,
    model: String,
    task: String,
    run: String,
    runner: String,
    step: u64,
    lease_until: String,
    creator: String,
    participants: String,
    created_at: String,
    updated_at: String,
}

impl ThreadRow {
    fn new(thread: v1::Thread) -> Self {
        Self {
            in_force: format!("{}, revision {}", thread.in_force_spec_id, thread.in_force_revision),
            model: format!("{}, revision {}", thread.in_force_model_id, thread.in_force_model_revision),
            id: thread.thread_id,
            base: thread.base_spec_id,
            active: thread.active_agent,
            requested: thread.requested_agent,
            task: thread.task_id,
            run: thread.run_id,
            runner: thread.runner_id,
            step: thread.step,
            lease_until: time_text(thread.lease_deadline.as_ref()),
            creator: thread.creator_id,
            participants: thread.participant_ids.join(", "),
            created_at: time_text(thread.create_time.as_ref()),
            updated_at: time_text(thread.update_time.as_ref()),
        }
    }
}

pub(super) async fn list(
    State(console): State<Console>,
    Extension(caller): Extension<Caller>,
    Query(query): Query<ThreadsQuery>,
) -> Response {
    let who = caller.to_string();
    let list = move |view: View<'_>| {
        let filter = ThreadFilter {
            task: optional("task", &query.task, TaskId::parse)?,
            in_force: optional("spec", &query.spec, SpecId::parse)?,
        };
        let page = view.threads(&filter, PAGE_SIZE, &query.page)?;
        let any = ThreadId::parse("any").expect("it is a name");
        let no_such = || view.access.no_such_thread(view.caller, &any);
        check_list(view, Purpose::ReadThreads, page.entries.is_empty(), no_such)?;
        let rows = page.entries.iter().map(|thread| ThreadRow::new(thread_to_v1(thread))).collect();
        Ok(ThreadsPage { who, query, rows, next: page.next_token })
    };
    shown(&console, &caller, list).await
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct LogQuery {
    /// The page has entries of the log before the one with this number.
    pub(super) page: String,
}

#[derive(Template)]
#[template(path = "thread.html")]
struct ThreadPage {
    who: String,
    row: ThreadRow,
    entries: Vec<EntryRow>,
    next: Option<u64>,
}

struct EntryRow {
    number: u64,
    at: String,
    event: &'static str,
    about: String,
}

pub(super) async fn show(
    State(console): State<Console>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Query(query): Query<LogQuery>,
) -> Response {
    let who = caller.to_string();
    let show = move |view: View<'_>| -> Result<ThreadPage, BrokerError> {
        let id = parsed("thread_id", &id, ThreadId::parse)?;
        let before = Window::before(&query.page)?;
        let thread = thread_to_v1(&*view.thread(&id)?);
        let window = Window::new(before, thread.log_length);
        let log = view.thread_log(&id, window.after, window.limit)?;
        let next = window.next(thread.first_number);
        let entries = log.entries.iter().rev().map(EntryRow::new).collect();
        Ok(ThreadPage { who, row: ThreadRow::new(thread), entries, next })
    };
    shown(&console, &caller, show).await
}

impl EntryRow {
    fn new(entry: &v1::ThreadEntry) -> Self {
        let (event, about) = match &entry.event {
            Some(Event::Created(created)) => ("created", created.base_spec_id.clone()),
            Some(Event::Requested(action)) => ("requested", with_warning(action)),
            Some(Event::RequestEnded(ended)) => {
                let outcome = ended.outcome().as_str_name().trim_start_matches("THREAD_REQUEST_OUTCOME_");
                ("request ended", format!("{}: {outcome}", ended.spec_id))
            }
            Some(Event::Activated(action)) => ("activated", with_warning(action)),
            Some(Event::Cleared(_)) => ("cleared", String::new()),
            Some(Event::RunBegan(run)) => ("run began", format!("{} by {}", run.run_id, run.runner_id)),
            Some(Event::Boundary(boundary)) => {
                let switched = if boundary.switched { ", switched" } else { "" };
                let text = format!(
                    "step {} with {}, revision {}{switched}",
                    boundary.step, boundary.spec_id, boundary.revision
                );
                ("step began", text)
            }
            Some(Event::RunEnded(run)) if run.lease_over => {
                ("run ended", format!("{}: its lease was over", run.run_id))
            }
            Some(Event::RunEnded(run)) => ("run ended", run.run_id.clone()),
            None => ("unknown", String::new()),
        };
        Self { number: entry.number, at: time_text(entry.entry_time.as_ref()), event, about }
    }
}

fn with_warning(action: &v1::ThreadAction) -> String {
    match action.warning.as_str() {
        "" => action.spec_id.clone(),
        warning => format!("{}: {warning}", action.spec_id),
    }
}

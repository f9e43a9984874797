//! The page on which a person decides as an agent. It is served on 127.0.0.1 only, under a secret path: a program that
//! does not know the address gets 404, and so does a foreign site that makes the browser send something.
//!
//! It shows what `baton inbox` shows, and each decision is a message that this process signs.

use std::{convert::Infallible, sync::Arc, time::Duration};

use askama::Template;
use axum::{
    Form, Router,
    body::Body,
    extract::{Path, State},
    response::{Html, IntoResponse as _, Redirect, Response},
    routing::{get, post},
};
use baton_pages::{MORPH, SCRIPT, secure};
use bytes::Bytes;
use http::{
    HeaderValue, StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE},
};
use prost::{Message, Name};
use serde::Deserialize;
use tokio::{
    net::TcpListener,
    runtime::Handle,
    sync::{
        Semaphore,
        mpsc::{self, error::TrySendError},
    },
};
use tokio_stream::{StreamExt as _, wrappers::ReceiverStream};

use super::super::{Failure, exit, handoff, inbox, output, turn};
use baton_client::{
    envelope::FRAME_BYTES_MAX,
    ids::{IdSource as _, MessageId, SystemIds, TaskId},
    proto::v1::{self, MessageType, context_section::Content},
    time::{Clock as _, SystemClock, Timestamp},
    {About, Client, Composer, Identity, completion_of, context_of_sections, json_section},
};

/// The most entries of each kind.
const ENTRIES_MAX: u32 = 50;
/// The most tasks that are looked through for loans, and the most agents that a form suggests.
const LOOKED_AT_MAX: u32 = 200;
/// The most pages that are kept up to date.
const STREAMS_MAX: usize = 16;
/// The longest time between two events of an open page. It bounds the age of questions, which no watch tells of.
const PERIOD: Duration = Duration::from_secs(2);
/// The section of a context that a person writes here.
const NOTES: &str = "notes";

const CHANGED: &[u8] = b"event: changed\ndata:\n\n";

/// The page, before it is served.
pub(super) struct Desk {
    listener: TcpListener,
    shared: Arc<Shared>,
    url: String,
}

struct Shared {
    client: Client,
    composer: Composer,
    /// The first segment of every path.
    secret: String,
    /// The bound on open pages.
    streams: Arc<Semaphore>,
}

impl Desk {
    /// Binds the port of the page.
    pub(super) async fn open(client: Client, identity: Identity, port: u16) -> Result<Self, Failure> {
        let listener = TcpListener::bind(("127.0.0.1", port)).await;
        let listener = listener.map_err(|error| match error.kind() {
            std::io::ErrorKind::AddrInUse => {
                Failure::port_in_use(format!("port {port} is in use; without --port a free one is chosen"))
            }
            _ => Failure::failed(format!("no page for decisions on port {port}: {error}")),
        })?;
        let secret = hex::encode([SystemIds.random(), SystemIds.random()].concat());
        let url = format!("http://{}/{secret}/", listener.local_addr()?);
        let composer = Composer { identity, clock: Arc::new(SystemClock), ids: Arc::new(SystemIds) };
        Ok(Self {
            listener,
            shared: Arc::new(Shared { client, composer, secret, streams: Arc::new(Semaphore::new(STREAMS_MAX)) }),
            url,
        })
    }

    pub(super) fn agent(&self) -> &str {
        self.shared.agent()
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Serves the page until ctrl-C.
    pub(super) async fn serve(self) -> Result<(), Failure> {
        let router = router(self.shared);
        tokio::select! {
            served = axum::serve(self.listener, router).into_future() => Ok(served?),
            signal = tokio::signal::ctrl_c() => Ok(signal?),
        }
    }
}

fn router(shared: Arc<Shared>) -> Router {
    let pages = Router::new()
        .route("/", get(all))
        .route("/console.css", get(style))
        .route("/console.js", get(|| script(SCRIPT)))
        .route("/idiomorph.js", get(|| script(MORPH)))
        .route("/events", get(events))
        .route("/handoffs/{id}", get(context))
        .route("/handoffs/{id}/accept", post(accept))
        .route("/handoffs/{id}/reject", post(reject))
        .route("/handoffs/{id}/complete", post(complete))
        .route("/handoffs/{id}/cancel", post(cancel))
        .route("/handoffs/{id}/context", post(send_context))
        .route("/tasks/{id}/input", post(input))
        .route("/tasks/{id}/hand-over", post(hand_over))
        .route("/tasks/{id}/ask", post(ask))
        .route("/tasks/{id}/recall/{loan}", post(recall))
        .route("/tasks/{id}/status", post(status));
    Router::new()
        .nest(&format!("/{}/", shared.secret), pages)
        .layer(axum::middleware::map_response(secured))
        .with_state(shared)
}

async fn secured(mut answer: Response) -> Response {
    secure(answer.headers_mut());
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

async fn style() -> Response {
    ([(CONTENT_TYPE, "text/css; charset=utf-8")], baton_pages::STYLE).into_response()
}

async fn script(text: &'static str) -> Response {
    ([(CONTENT_TYPE, "text/javascript; charset=utf-8")], text).into_response()
}

impl Shared {
    fn agent(&self) -> &str {
        self.composer.identity.agent.as_str()
    }

    async fn handoff(&self, id: &str, with_context: bool) -> Result<v1::GetHandoffResponse, Failure> {
        let id = MessageId::parse(id).map_err(|error| Failure::usage(error.to_string()))?;
        let request = v1::GetHandoffRequest { handoff_id: id.to_string(), include_context: with_context };
        Ok(self.client.answer(self.client.handoffs().get_handoff(request).await)?)
    }

    async fn task(&self, id: &str) -> Result<v1::Task, Failure> {
        let id = TaskId::parse(id).map_err(|error| Failure::usage(error.to_string()))?;
        let request = v1::GetTaskRequest { task_id: id.to_string() };
        Ok(self.client.answer(self.client.tasks().get_task(request).await)?.task.unwrap_or_default())
    }

    /// The open tasks that this agent has lent.
    async fn lent(&self) -> Result<Vec<LentTask>, Failure> {
        let open = [v1::TaskStatus::Created, v1::TaskStatus::InProgress, v1::TaskStatus::WaitingForInput];
        let statuses = open.map(i32::from).to_vec();
        let request = v1::ListTasksRequest { page_size: LOOKED_AT_MAX, statuses, ..Default::default() };
        let page = self.client.answer(self.client.tasks().list_tasks(request).await)?;
        let loans = |task: v1::Task| {
            let own = task.loans.iter().rev().find(|loan| loan.delegator_id == self.agent()).cloned();
            own.map(|loan| LentTask { task, loan })
        };
        Ok(page.tasks.into_iter().filter_map(loans).collect())
    }

    /// The other registered agents without the gone ones, if this agent may know them.
    async fn others(&self) -> Vec<String> {
        let request = v1::ListAgentsRequest { page_size: LOOKED_AT_MAX, ..Default::default() };
        let Ok(found) = self.client.agents().list_agents(request).await else { return Vec::new() };
        let agents = found.into_inner().agents.into_iter();
        let there = agents.filter(|agent| agent.presence() != v1::Presence::Gone && agent.deregister_time.is_none());
        let ids = there.filter_map(|agent| agent.card).map(|card| card.agent_id);
        ids.filter(|id| id != self.agent() && !id.starts_with("baton.")).collect()
    }

    /// The context with which this agent got the task, if it did, and its notes.
    async fn context_to_send(&self, task: &str, notes: &str) -> Result<v1::TaskContextTransfer, Failure> {
        let hops = self.task(task).await?.hops;
        let mut sections = Vec::new();
        if let Some(hop) = hops.last() {
            let got = self.handoff(&hop.handoff_id, true).await?;
            let handoff = got.handoff.unwrap_or_default();
            sections = handoff::verified_context(&self.client, &handoff, got.context).await?.sections;
            // A change to an earlier version means nothing to a receiver without that version.
            sections.retain(|section| !matches!(section.content, Some(Content::Delta(_))) && section.name != NOTES);
        }
        if !notes.trim().is_empty() {
            sections.push(json_section(NOTES, serde_json::json!({"text": notes, "from": self.agent()})));
        }
        Ok(context_of_sections(sections))
    }

    /// Signs a message and sends it.
    async fn send<M: Message + Name>(
        &self,
        to: &str,
        kind: MessageType,
        about: &About,
        payload: &M,
    ) -> Result<(), Failure> {
        let envelope = self.composer.encode(to, kind, about, payload);
        if envelope.len() > FRAME_BYTES_MAX {
            return Err(Failure::usage("the text is too long"));
        }
        Ok(self.client.send(envelope).await.map(drop)?)
    }

    /// Answers the other side of a handoff.
    async fn answer<M: Message + Name>(&self, id: &str, kind: MessageType, payload: &M) -> Result<(), Failure> {
        let handoff = self.handoff(id, false).await?.handoff.unwrap_or_default();
        let about = About::handoff(&handoff.task_id, handoff.epoch, &handoff.handoff_id);
        self.send(&handoff.sender_id, kind, &about, payload).await
    }
}

type Desked = State<Arc<Shared>>;

#[derive(Template)]
#[template(path = "desk.html")]
struct DeskPage {
    agent: String,
    now: Timestamp,
    offers: Vec<v1::Handoff>,
    contexts: Vec<v1::Handoff>,
    contexts_to_send: Vec<v1::Handoff>,
    questions: Vec<v1::Task>,
    tasks: Vec<OwnedTask>,
    /// The open handoffs of this agent that wait for the other side.
    requests: Vec<v1::Handoff>,
    lent: Vec<LentTask>,
    /// The agents that a task may be handed to. Empty: this agent may not read the directory.
    agents: Vec<String>,
    others: usize,
    has_more: bool,
}

/// A task of this agent, with the acts that can work now.
struct OwnedTask {
    task: v1::Task,
    /// The agent that the task is being handed to. Empty: none.
    handed_to: String,
    /// The agent that was asked a question. Empty: none.
    asked: String,
}

/// A task that this agent has lent, with the loan's handoff.
struct LentTask {
    task: v1::Task,
    loan: v1::TaskLoan,
}

#[derive(Template)]
#[template(path = "desk_context.html")]
struct ContextPage {
    agent: String,
    now: Timestamp,
    handoff: v1::Handoff,
    sections: Vec<SectionRow>,
}

/// A section of a context, as a person reads it.
struct SectionRow {
    name: String,
    is_secret: bool,
    /// The texts of the section, each under its name. Texts of agents stay plain, with their line ends.
    texts: Vec<(String, String)>,
    /// The values other than text, as indented JSON. Empty: none.
    json: String,
}

#[derive(Template)]
#[template(path = "desk_refused.html")]
struct RefusedPage {
    agent: String,
    /// The first segment of the paths of this page's links: it answers requests of different depths.
    secret: String,
    message: String,
}

/// A time as RFC 3339, or an empty text.
fn at(time: &Option<prost_types::Timestamp>) -> String {
    output::time(time.as_ref())
}

/// The time until a deadline, in its largest unit. The script counts it on.
fn left(time: &Option<prost_types::Timestamp>, now: &Timestamp) -> String {
    turn::left_until(time.as_ref(), *now)
}

/// The deadline of the step of a handoff that runs now.
fn due(handoff: &v1::Handoff) -> Option<prost_types::Timestamp> {
    turn::deadline(handoff)
}

fn prompt(task: &v1::Task) -> v1::TaskPrompt {
    task.open_prompt.clone().and_then(|open| open.prompt).unwrap_or_default()
}

/// The name of a value in words.
fn words(name: &str, prefix: &str) -> String {
    output::short(name, prefix).replace('_', " ").to_lowercase()
}

fn state(handoff: &v1::Handoff) -> String {
    words(handoff.state().as_str_name(), "HANDOFF_STATE_")
}

fn status_of(task: &v1::Task) -> String {
    words(task.status().as_str_name(), "TASK_STATUS_")
}

fn priority(handoff: &v1::Handoff) -> String {
    words(handoff.priority().as_str_name(), "PRIORITY_")
}

fn is_lent(handoff: &v1::Handoff) -> bool {
    handoff.mode() == v1::HandoffMode::Delegate
}

impl SectionRow {
    fn new(section: &v1::ContextSection) -> Self {
        let (name, is_secret) = (section.name.clone(), section.secret);
        let plain = |text: String| Self {
            name: name.clone(),
            is_secret,
            texts: vec![(String::new(), text)],
            json: String::new(),
        };
        match &section.content {
            Some(Content::Json(json)) => match serde_json::from_str(json) {
                Ok(value) => {
                    let (texts, json) = readable(value);
                    Self { name, is_secret, texts, json }
                }
                Err(_) => plain(json.clone()),
            },
            Some(Content::Bytes(bytes)) => match std::str::from_utf8(&bytes.data) {
                Ok(text) if bytes.media_type.starts_with("text/") => plain(text.to_owned()),
                _ => plain(handoff::content_of(section)),
            },
            _ => plain(handoff::content_of(section)),
        }
    }
}

/// The members of a section that are short values or texts, and the rest as indented JSON.
fn readable(value: serde_json::Value) -> (Vec<(String, String)>, String) {
    let serde_json::Value::Object(members) = value else {
        return (Vec::new(), serde_json::to_string_pretty(&value).unwrap_or_default());
    };
    let (mut texts, mut rest) = (Vec::new(), serde_json::Map::new());
    for (name, value) in members {
        match value {
            serde_json::Value::String(text) => texts.push((name, text)),
            value @ (serde_json::Value::Number(_) | serde_json::Value::Bool(_)) => {
                texts.push((name, value.to_string()));
            }
            other => drop(rest.insert(name, other)),
        }
    }
    let json = if rest.is_empty() { String::new() } else { serde_json::to_string_pretty(&rest).unwrap_or_default() };
    (texts, json)
}

fn page(shared: &Shared, template: Result<impl Template, Failure>) -> Response {
    let text = match template {
        Ok(template) => template.render(),
        Err(failure) => return refused(shared, &failure),
    };
    text.map_or_else(|_| StatusCode::INTERNAL_SERVER_ERROR.into_response(), |text| Html(text).into_response())
}

fn refused(shared: &Shared, failure: &Failure) -> Response {
    let (agent, secret) = (shared.agent().to_owned(), shared.secret.clone());
    let page = RefusedPage { agent, secret, message: failure.to_string() };
    let status = if failure.code == exit::UNREACHABLE { StatusCode::BAD_GATEWAY } else { StatusCode::CONFLICT };
    page.render().map_or_else(|_| status.into_response(), |text| (status, Html(text)).into_response())
}

/// Goes back to the list after a decision, or says why there is none.
fn decided(shared: &Shared, outcome: Result<(), Failure>) -> Response {
    match outcome {
        Ok(()) => Redirect::to(&format!("/{}/", shared.secret)).into_response(),
        Err(failure) => refused(shared, &failure),
    }
}

/// Runs reads that stay on one thread, as those of the command line do, on a thread of their own.
async fn on_one_thread<T: Send + 'static>(
    work: impl FnOnce(&Handle) -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let runtime = Handle::current();
    let done = tokio::task::spawn_blocking(move || work(&runtime)).await;
    done.map_err(|error| Failure::failed(error.to_string())).flatten()
}

async fn all(State(shared): Desked) -> Response {
    let reader = Arc::clone(&shared);
    let read = on_one_thread(move |runtime| {
        runtime.block_on(async {
            let inbox = inbox::read(&reader.client, reader.agent(), ENTRIES_MAX).await?;
            Ok((inbox, reader.lent().await?, reader.others().await))
        })
    });
    let read = read.await.map(|(inbox, lent, agents)| {
        let agent = shared.agent().to_owned();
        let is_mine = |handoff: &&v1::Handoff| handoff.sender_id == agent;
        let waits = |handoff: &&v1::Handoff| handoff.state() != v1::HandoffState::Accepted;
        let requests = inbox.handoffs.iter().filter(is_mine).filter(waits).cloned().collect();
        let tasks = inbox.tasks.iter().map(|task| OwnedTask::new(task, &inbox.handoffs)).collect();
        DeskPage {
            now: SystemClock.now(),
            others: inbox.asked.len() + inbox.offered.len(),
            has_more: inbox.has_more,
            offers: inbox.offers,
            contexts: inbox.contexts,
            contexts_to_send: inbox.contexts_to_send,
            questions: inbox.questions,
            tasks,
            requests,
            lent,
            agents,
            agent,
        }
    });
    page(&shared, read)
}

impl OwnedTask {
    fn new(task: &v1::Task, handoffs: &[v1::Handoff]) -> Self {
        let open = handoffs.iter().find(|handoff| handoff.handoff_id == task.open_handoff_id);
        let handed_to = match open {
            Some(handoff) => handoff.candidate_id.clone(),
            None if task.open_handoff_id.is_empty() => String::new(),
            None => "another agent".to_owned(),
        };
        let asked = task.open_prompt.as_ref().map(|open| open.asked_agent_id.clone()).unwrap_or_default();
        Self { task: task.clone(), handed_to, asked }
    }
}

/// Tells an open page to ask again: when a handoff changes, and every few seconds for the rest.
async fn events(State(shared): Desked) -> Response {
    let Ok(place) = Arc::clone(&shared.streams).try_acquire_owned() else {
        return StatusCode::TOO_MANY_REQUESTS.into_response();
    };
    let (sender, receiver) = mpsc::channel::<Result<Bytes, Infallible>>(1);
    tokio::spawn(async move {
        follow(&shared, &sender).await;
        drop(place);
    });
    let body = Body::from_stream(ReceiverStream::new(receiver));
    ([(CONTENT_TYPE, "text/event-stream; charset=utf-8")], body).into_response()
}

async fn follow(shared: &Shared, events: &mpsc::Sender<Result<Bytes, Infallible>>) {
    let mut period = tokio::time::interval(PERIOD);
    let mut changes = None;
    loop {
        if changes.is_none() {
            let request = v1::WatchHandoffsRequest::default();
            changes = shared.client.handoffs().watch_handoffs(request).await.ok().map(tonic::Response::into_inner);
        }
        tokio::select! {
            () = events.closed() => return,
            _ = period.tick() => {}
            changed = next_of(&mut changes) => if !matches!(changed, Some(Ok(_))) {
                changes = None;
                // Without a broker the page asks in the same rhythm, and shows the error.
                period.tick().await;
            },
        }
        // A page that has not taken the last event yet asks anyway.
        if let Err(TrySendError::Closed(_)) = events.try_send(Ok(Bytes::from_static(CHANGED))) {
            return;
        }
    }
}

type Changes = tonic::Streaming<v1::WatchHandoffsResponse>;

async fn next_of(changes: &mut Option<Changes>) -> Option<Result<v1::WatchHandoffsResponse, tonic::Status>> {
    match changes {
        Some(changes) => changes.next().await,
        None => std::future::pending().await,
    }
}

/// Shows the context of a handoff, after its signature and its digest are verified.
async fn context(State(shared): Desked, Path(id): Path<String>) -> Response {
    let read = async {
        let (handoff, context) = verified(&shared, &id).await?;
        let sections = context.sections.iter().map(SectionRow::new).collect();
        Ok(ContextPage { agent: shared.agent().to_owned(), now: SystemClock.now(), handoff, sections })
    };
    page(&shared, read.await)
}

async fn verified(shared: &Shared, id: &str) -> Result<(v1::Handoff, v1::TaskContextTransfer), Failure> {
    let found = shared.handoff(id, true).await?;
    let handoff = found.handoff.unwrap_or_default();
    if handoff.state() != v1::HandoffState::ContextSent {
        return Err(Failure::refused(
            "HANDOFF_STATE",
            "this handoff does not wait for its receiver to take the task over",
        ));
    }
    let context = handoff::verified_context(&shared.client, &handoff, found.context).await?;
    Ok((handoff, context))
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Decision {
    text: String,
    /// For a status: whether the task has failed.
    failed: String,
    /// For a question or a handover: the agent.
    to: String,
    /// For a handover: `DELEGATE` lends the task.
    mode: String,
    /// For a handover: what the receiver has to know, beside the summary.
    notes: String,
}

async fn accept(State(shared): Desked, Path(id): Path<String>) -> Response {
    let payload = v1::HandoffAccept::default();
    decided(&shared, shared.answer(&id, MessageType::HandoffAccept, &payload).await)
}

async fn reject(State(shared): Desked, Path(id): Path<String>, Form(decision): Form<Decision>) -> Response {
    let reason = v1::RejectReason::Other.into();
    let payload = v1::HandoffReject { reason, reason_text: decision.text, ..Default::default() };
    decided(&shared, shared.answer(&id, MessageType::HandoffReject, &payload).await)
}

async fn complete(State(shared): Desked, Path(id): Path<String>) -> Response {
    let done = async {
        // Verified again: what is signed is the digest of this context.
        let (handoff, context) = verified(&shared, &id).await?;
        let payload = v1::HandoffComplete { outcome: v1::HandoffOutcome::Success.into(), ..completion_of(&context) };
        let about = About::handoff(&handoff.task_id, handoff.epoch, &handoff.handoff_id);
        shared.send(&handoff.sender_id, MessageType::HandoffComplete, &about, &payload).await
    };
    decided(&shared, done.await)
}

async fn input(State(shared): Desked, Path(id): Path<String>, Form(decision): Form<Decision>) -> Response {
    let answered = async {
        let task = shared.task(&id).await?;
        let open =
            task.open_prompt.ok_or_else(|| Failure::refused("INPUT_TAKEN", "no question about this task is open"))?;
        let about = About::handoff(&task.task_id, task.epoch, &open.message_id);
        let payload = v1::TaskInput { text: decision.text, ..Default::default() };
        shared.send("", MessageType::TaskInput, &about, &payload).await
    };
    decided(&shared, answered.await)
}

async fn status(State(shared): Desked, Path(id): Path<String>, Form(decision): Form<Decision>) -> Response {
    let reported = async {
        let task = shared.task(&id).await?;
        let ended = if decision.failed.is_empty() { v1::TaskStatus::Completed } else { v1::TaskStatus::Failed };
        let payload = v1::TaskStatusUpdate { status: ended.into(), details: decision.text, ..Default::default() };
        let about = About::task(&task.task_id, task.epoch);
        shared.send("", MessageType::TaskStatusUpdate, &about, &payload).await
    };
    decided(&shared, reported.await)
}

/// Takes a request of this agent back.
async fn cancel(State(shared): Desked, Path(id): Path<String>, Form(decision): Form<Decision>) -> Response {
    let cancelled = async {
        let handoff = shared.handoff(&id, false).await?.handoff.unwrap_or_default();
        let about = About::handoff(&handoff.task_id, handoff.epoch, &handoff.handoff_id);
        let payload = v1::HandoffCancel { reason_text: decision.text };
        shared.send(&handoff.candidate_id, MessageType::HandoffCancel, &about, &payload).await
    };
    decided(&shared, cancelled.await)
}

/// Sends the context that a candidate waits for: that with which this agent got the task, and notes.
async fn send_context(State(shared): Desked, Path(id): Path<String>, Form(decision): Form<Decision>) -> Response {
    let sent = async {
        let handoff = shared.handoff(&id, false).await?.handoff.unwrap_or_default();
        let context = shared.context_to_send(&handoff.task_id, &decision.notes).await?;
        let about = About::handoff(&handoff.task_id, handoff.epoch, &handoff.handoff_id);
        shared.send(&handoff.candidate_id, MessageType::TaskContextTransfer, &about, &context).await
    };
    decided(&shared, sent.await)
}

/// Asks an agent to take a task of this agent.
async fn hand_over(State(shared): Desked, Path(id): Path<String>, Form(decision): Form<Decision>) -> Response {
    let asked = async {
        let task = shared.task(&id).await?;
        let lends = decision.mode == "DELEGATE";
        let mode = if lends { v1::HandoffMode::Delegate } else { v1::HandoffMode::Transfer };
        let payload = v1::HandoffRequest {
            task_type: task.task_type.clone(),
            initial_context_summary: decision.text,
            mode: mode.into(),
            ..Default::default()
        };
        shared.send(&decision.to, MessageType::HandoffRequest, &About::task(&task.task_id, task.epoch), &payload).await
    };
    decided(&shared, asked.await)
}

/// Asks an agent a question about a task of this agent.
async fn ask(State(shared): Desked, Path(id): Path<String>, Form(decision): Form<Decision>) -> Response {
    let asked = async {
        let task = shared.task(&id).await?;
        let prompt = v1::TaskPrompt { question: decision.text, answer_by: decision.to, ..Default::default() };
        let status = v1::TaskStatus::WaitingForInput.into();
        let payload = v1::TaskStatusUpdate { status, prompt: Some(prompt), ..Default::default() };
        shared.send("", MessageType::TaskStatusUpdate, &About::task(&task.task_id, task.epoch), &payload).await
    };
    decided(&shared, asked.await)
}

/// Takes a lent task back.
async fn recall(
    State(shared): Desked,
    Path((task, loan)): Path<(String, String)>,
    Form(decision): Form<Decision>,
) -> Response {
    let recalled = async {
        let task = TaskId::parse(&task).map_err(|error| Failure::usage(error.to_string()))?;
        let loan = MessageId::parse(&loan).map_err(|error| Failure::usage(error.to_string()))?;
        // The broker takes a recall of any epoch.
        let about = About::handoff(task.as_str(), 1, &loan.to_string());
        shared.send("", MessageType::TaskRecall, &about, &v1::TaskRecall { reason_text: decision.text }).await
    };
    decided(&shared, recalled.await)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_shows_its_texts_plain_and_folds_the_rest() {
        let (texts, json) = readable(serde_json::json!({"note": "# Title\n- one", "amount": 40, "lines": [1, 2]}));
        assert_eq!(
            texts,
            [("note".into(), "# Title\n- one".into()), ("amount".into(), "40".into())]
                .map(|(name, text): (String, String)| (name, text))
        );
        assert!(json.contains("\"lines\": ["), "{json}");
        let (texts, json) = readable(serde_json::json!(["a", "b"]));
        assert!(texts.is_empty() && json.contains("\"a\""), "{json}");
    }
}

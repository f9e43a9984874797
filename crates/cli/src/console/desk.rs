//! The page on which a person decides as an agent. It is served on 127.0.0.1 only, under a secret path: a program that
//! does not know the address gets 404, and so does a foreign site that makes the browser send something.
//!
//! It shows what `baton inbox` shows, and each decision is a message that this process signs.

use std::sync::Arc;

use askama::Template;
use axum::{
    Form, Router,
    extract::{Path, State},
    response::{Html, IntoResponse as _, Redirect, Response},
    routing::{get, post},
};
use baton_pages::secure;
use http::{
    HeaderValue, StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE},
};
use prost::{Message, Name};
use serde::Deserialize;
use tokio::{net::TcpListener, runtime::Handle};

use super::super::{Failure, exit, handoff, inbox, output};
use baton_client::{
    envelope::FRAME_BYTES_MAX,
    ids::{IdSource as _, MessageId, SystemIds, TaskId},
    proto::v1::{self, MessageType},
    time::SystemClock,
    {About, Client, Composer, Identity, completion_of},
};

/// The most entries of each kind.
const ENTRIES_MAX: u32 = 50;

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
        Ok(Self { listener, shared: Arc::new(Shared { client, composer, secret }), url })
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
        .route("/handoffs/{id}", get(context))
        .route("/handoffs/{id}/accept", post(accept))
        .route("/handoffs/{id}/reject", post(reject))
        .route("/handoffs/{id}/complete", post(complete))
        .route("/tasks/{id}/input", post(input))
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
    offers: Vec<v1::Handoff>,
    contexts: Vec<v1::Handoff>,
    questions: Vec<v1::Task>,
    tasks: Vec<v1::Task>,
    others: usize,
    has_more: bool,
}

#[derive(Template)]
#[template(path = "desk_context.html")]
struct ContextPage {
    agent: String,
    handoff: v1::Handoff,
    sections: Vec<(String, String)>,
}

#[derive(Template)]
#[template(path = "desk_refused.html")]
struct RefusedPage {
    agent: String,
    /// The first segment of the paths of this page's links: it answers requests of different depths.
    secret: String,
    message: String,
}

/// A time for people, in UTC.
fn until(time: &Option<prost_types::Timestamp>) -> String {
    output::time(time.as_ref())
}

fn question(task: &v1::Task) -> String {
    task.open_prompt.clone().and_then(|open| open.prompt).unwrap_or_default().question
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

async fn all(State(shared): Desked) -> Response {
    let reader = Arc::clone(&shared);
    let runtime = Handle::current();
    // On a thread of its own, because the reads of the command line stay on one thread.
    let read = move || runtime.block_on(inbox::read(&reader.client, reader.agent(), ENTRIES_MAX));
    let read = tokio::task::spawn_blocking(read).await.map_err(|error| Failure::failed(error.to_string()));
    let read = read.flatten().map(|inbox| DeskPage {
        agent: shared.agent().to_owned(),
        others: inbox.contexts_to_send.len() + inbox.asked.len() + inbox.offered.len(),
        has_more: inbox.has_more,
        offers: inbox.offers,
        contexts: inbox.contexts,
        questions: inbox.questions,
        tasks: inbox.tasks,
    });
    page(&shared, read)
}

/// Shows the context of a handoff, after its signature and its digest are verified.
async fn context(State(shared): Desked, Path(id): Path<String>) -> Response {
    let read = async {
        let (handoff, context) = verified(&shared, &id).await?;
        let sections =
            context.sections.iter().map(|section| (section.name.clone(), handoff::content_of(section))).collect();
        Ok(ContextPage { agent: shared.agent().to_owned(), handoff, sections })
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

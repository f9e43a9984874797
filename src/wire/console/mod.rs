//! The web console: pages for people, on the port of the broker.
//!
//! Owns the pages, the sessions of browsers and the checks of requests that change something. Pages read through the
//! same queries as gRPC calls, with the same rights. Results of plans, turns of runs and entries of workspaces are shown
//! shortened. No page shows a context, or mail between agents. Must not know gRPC.

pub mod cluster;
mod cookie;
mod events;
mod history;
mod login;
mod origin;
mod pages;
mod sessions;
mod shared;
mod show;

use std::sync::Arc;

use askama::Template;
use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    middleware::{self, Next},
    response::{IntoResponse as _, Response},
    routing::{get, post},
};
use baton_pages::{MORPH, SCRIPT, STYLE};
use http::{
    HeaderValue, Method, StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE, LOCATION},
};

use self::{cluster::ClusterSource, events::Ticks, history::History, sessions::Sessions, shared::SharedPages};
use crate::{
    broker::{Broker, BrokerError, access::Caller, places::WorkSize, queries::View},
    codes::{Category, ErrorCode, Refusal},
    wire::stream_slots::StreamSlots,
};

/// What the pages share.
#[derive(Clone)]
struct Console {
    broker: Broker,
    sessions: Arc<Sessions>,
    shared: Arc<SharedPages>,
    ticks: Ticks,
    history: History,
    /// The bound on streams of events.
    streams: Arc<StreamSlots>,
    /// `None`: the broker is alone.
    cluster: Option<ClusterSource>,
}

/// The routes of the console, without `/`. `cluster`: that of the broker, if it is one of several.
pub fn router(broker: Broker, cluster: Option<ClusterSource>) -> Router {
    let (ticks, history) = (Ticks::start(broker.clone()), History::start(broker.clone()));
    let (sessions, shared, streams) = (Arc::default(), Arc::default(), events::slots());
    let console = Console { broker, sessions, shared, ticks, history, streams, cluster };
    let pages = Router::new()
        .route("/events", get(events::events))
        .route("/logout", post(login::log_out))
        .merge(pages::router())
        .layer(middleware::from_fn_with_state(console.clone(), with_session));
    Router::new()
        .route("/login", get(login::form).post(login::log_in))
        .route("/console.css", get(|| file("text/css", STYLE)))
        .route("/icon.svg", get(|| file("image/svg+xml", include_str!("files/icon.svg"))))
        .route("/console.js", get(|| file("text/javascript", SCRIPT)))
        .route("/idiomorph.js", get(|| file("text/javascript", MORPH)))
        .merge(pages)
        .layer(middleware::from_fn(origin::same_origin))
        .with_state(console)
}

/// A request of an open page for its own contents. The script of the pages sends it.
const REFRESH: &str = "baton-refresh";

/// Finds the caller of the session, or sends the browser to the login.
async fn with_session(State(console): State<Console>, mut request: Request, next: Next) -> Response {
    // Requests of the script do not count as use of the session: a page that nobody reads makes them, too.
    let by_script = request.headers().contains_key(REFRESH) || request.uri().path() == "/events";
    let caller =
        cookie::of(request.headers()).and_then(|secret| console.sessions.caller(&secret, &console.broker, !by_script));
    let Some(caller) = caller else {
        if by_script {
            return plain(StatusCode::UNAUTHORIZED, "The session has ended.\n");
        }
        return see_other(&login::path_to(request.uri()));
    };
    if let Err(error) = console.broker.count_call(&caller) {
        return refused(&caller, &error);
    }
    request.extensions_mut().insert(caller.clone());
    if request.method() != Method::GET {
        let answer = next.run(request).await;
        console.shared.forget();
        return answer;
    }
    let refresh = request.headers().contains_key(REFRESH);
    let path = request.uri().to_string();
    console.shared.page((&caller, &path), refresh, || console.ticks.latest(), next.run(request)).await
}

/// Runs a read of a caller on a thread for such work, with the caller's rights.
async fn read<T: Send + 'static>(
    console: &Console,
    caller: &Caller,
    read: impl FnOnce(View<'_>) -> Result<T, BrokerError> + Send + 'static,
) -> Result<T, BrokerError> {
    let (broker, reader) = (console.broker.clone(), caller.clone());
    console.broker.workers().run(caller, WorkSize::Large, move || read(broker.view(&reader))).await?
}

/// A page that says why a request was refused.
#[derive(Template)]
#[template(path = "refused.html")]
struct Refused {
    who: String,
    code: &'static str,
    message: String,
}

fn refused(caller: &Caller, error: &dyn Refusal) -> Response {
    let code = error.code();
    page(status_of(code), &Refused { who: caller.to_string(), code: code.name(), message: error.to_string() })
}

/// The status of a refusal.
fn status_of(code: ErrorCode) -> StatusCode {
    match code.category() {
        Category::InvalidArgument => StatusCode::BAD_REQUEST,
        Category::Unauthenticated | Category::PermissionDenied => StatusCode::FORBIDDEN,
        Category::NotFound => StatusCode::NOT_FOUND,
        Category::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        Category::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Category::AlreadyExists | Category::FailedPrecondition | Category::Aborted => StatusCode::CONFLICT,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// An HTML page. No cache keeps it, because what it shows depends on the session.
fn page(status: StatusCode, template: &impl Template) -> Response {
    let Ok(text) = template.render() else { return StatusCode::INTERNAL_SERVER_ERROR.into_response() };
    let mut answer = (status, text).into_response();
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

/// Sends the browser to a page of the console.
fn see_other(path: &str) -> Response {
    let mut answer = Response::new(Body::empty());
    *answer.status_mut() = StatusCode::SEE_OTHER;
    // Every path is constant, or comes from a request line, or is checked.
    let path = HeaderValue::from_str(path).unwrap_or(HeaderValue::from_static("/overview"));
    answer.headers_mut().insert(LOCATION, path);
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

/// A file of all pages. It is small and changes with the broker's version, so a browser asks for it each time.
async fn file(kind: &'static str, text: &'static str) -> Response {
    let kind = HeaderValue::from_str(&format!("{kind}; charset=utf-8")).expect("constant text");
    let headers = [(CONTENT_TYPE, kind), (CACHE_CONTROL, HeaderValue::from_static("no-cache"))];
    (headers, text).into_response()
}

fn plain(status: StatusCode, text: &'static str) -> Response {
    (status, text).into_response()
}

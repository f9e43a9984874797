//! The gateway: the acts over HTTP, for agents that have lent it a key. MCP at `/mcp` (Streamable HTTP, without sessions),
//! JSON at `/api/v1`, A2A at `/a2a`, and every call of `baton.v1` at `/baton.v1.Service/Method`, by the Connect protocol.
//!
//! A bearer token stands for one grant, and so for one agent. Each request is bounded before its body is read: its host, its
//! origin, its token, its place among the requests of all and of its agent. The gateway keeps no state but connections to
//! the broker. Must not know where grants are kept ([`Grants`]), nor how a connection was opened.

mod a2a;
mod access;
mod api;
mod body;
mod callers;
mod connect;
mod messages;
mod openapi;

use std::sync::Arc;

use axum::{
    Router,
    extract::{Request, State},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse as _, Response},
    routing::{any, get, post},
};
use baton_client::Options;
use bytes::Bytes;
use http::{StatusCode, Uri};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

pub use self::callers::{Grant, Grants, TokenDigest};
use self::{
    access::{Hosts, Refused},
    callers::Callers,
};
pub use crate::a2a::{
    Published,
    pushing::{Notification, Outbox, Posted},
};
use crate::{
    a2a::pushing::Pushes,
    acts::{self, Act, Set},
};

/// What the host of a gateway chooses.
#[derive(Debug)]
pub struct Settings {
    /// The broker. Each agent proves its own key there.
    pub options: Options,
    /// The tools of `/mcp`. The JSON acts are all.
    pub sets: Vec<Set>,
    /// The names and addresses by which clients reach the gateway, without a port, beside those of this machine itself.
    pub hosts: Vec<String>,
    /// The most requests at a time, 1 or more.
    pub requests_max: usize,
    /// The most requests of one agent at a time, 1 or more.
    pub requests_per_agent_max: usize,
    /// The version that the MCP server and the cards of A2A show.
    pub version: &'static str,
    /// What A2A clients reach, each under a name of its own.
    pub published: Vec<Published>,
    /// Whether clients reach the gateway by TLS.
    pub is_encrypted: bool,
    /// Keeps and sends the push notifications of A2A. `None`: they are off.
    pub outbox: Option<Arc<dyn Outbox>>,
}

/// A gateway for the agents of its grants.
#[derive(Debug)]
pub struct Gateway {
    callers: Callers,
    hosts: Hosts,
    /// The places of all requests.
    places: Arc<Semaphore>,
    acts: Vec<Act>,
    openapi: Bytes,
    published: Vec<Published>,
    cards: a2a::Cards,
    pushes: Option<Arc<Pushes>>,
    is_encrypted: bool,
    version: &'static str,
    stop: CancellationToken,
}

impl Gateway {
    /// A gateway that ends its requests when `stop` is cancelled.
    pub fn new(settings: Settings, grants: Arc<dyn Grants>, stop: CancellationToken) -> Arc<Self> {
        let acts = acts::of(&Set::ALL);
        Arc::new(Self {
            hosts: Hosts::new(settings.hosts.clone()),
            places: Arc::new(Semaphore::new(settings.requests_max)),
            openapi: openapi::document(&acts, settings.version).into(),
            acts,
            published: settings.published.clone(),
            cards: a2a::Cards::default(),
            pushes: settings.outbox.clone().map(|outbox| Arc::new(Pushes::new(outbox))),
            is_encrypted: settings.is_encrypted,
            version: settings.version,
            callers: Callers::new(settings, grants, stop.clone()),
            stop,
        })
    }

    /// What goes on beside the requests, until the gateway stops: each agent is present, its contexts are sent, requests of
    /// a grant that has ended are ended too, and changes of tasks are posted.
    pub async fn attend(&self) {
        let pushing = async {
            if let Some(pushes) = &self.pushes {
                let face_of = |agent_id: &str| self.callers.faces().into_iter().find(|face| face.id() == agent_id);
                pushes.follow_all(face_of, &self.published, &self.stop).await;
            }
        };
        tokio::join!(self.callers.attend(), pushing);
    }

    /// The routes.
    pub fn router(self: Arc<Self>) -> Router {
        let calls = connect::routes().fold(Router::new(), |router, path| router.route(&path, post(connect::call)));
        calls
            .route("/mcp", any(mcp))
            .route("/api/v1/acts/{name}", post(api::act))
            .route("/api/v1/openapi.json", get(api::openapi))
            .route("/a2a/{name}", any(a2a::serve))
            .route("/a2a/{name}/{*rest}", any(a2a::serve))
            .fallback(|uri: Uri| async move {
                connect::refuse(uri.path(), Refused::new(StatusCode::NOT_FOUND, "PATH_UNKNOWN", PATHS))
            })
            .layer(from_fn_with_state(Arc::clone(&self), bounded))
            .with_state(self)
    }
}

const PATHS: &str = "there is /mcp, /api/v1/acts/NAME, /api/v1/openapi.json, /a2a/NAME and /baton.v1.Service/Method";

/// Bounds each request before its route sees it.
async fn bounded(State(gateway): State<Arc<Gateway>>, request: Request, next: Next) -> Response {
    let path = request.uri().path().to_owned();
    if let Err(refused) = gateway.hosts.check(request.uri(), request.headers()) {
        return connect::refuse(&path, refused);
    }
    match Arc::clone(&gateway.places).try_acquire_owned() {
        Ok(place) => body::holding(next.run(request).await, place),
        Err(_) => connect::refuse(&path, Refused::busy(StatusCode::SERVICE_UNAVAILABLE, "too many requests at a time")),
    }
}

async fn mcp(State(gateway): State<Arc<Gateway>>, request: Request) -> Response {
    let (mut head, body) = request.into_parts();
    let admitted = match gateway.callers.admit(&head.headers).await {
        Ok(admitted) => admitted,
        Err(refused) => return refused.into_response(),
    };
    let body = match body::read(body).await {
        Ok(body) => body,
        Err(refused) => return refused.into_response(),
    };
    // The handlers of the protocol see the head, and need no secret.
    head.headers.remove(http::header::AUTHORIZATION);
    let request = Request::from_parts(head, http_body_util::Full::new(body));
    let answer = admitted.caller.mcp.handle(request).await;
    body::holding(answer.map(axum::body::Body::new), admitted.place)
}

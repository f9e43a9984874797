//! `GET /healthz` and `GET /readyz`: probes for load balancers and for what starts the broker.

use axum::{Router, body::Body, extract::State, routing::get};
use http::{Response, StatusCode};
use tokio::sync::watch;

use super::text;

/// Whether the broker takes messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// It takes messages.
    Ready,
    /// Its store cannot be written at present; it tries again each second.
    StoreUnavailable,
    /// In a cluster another broker leads, and this one relays connections to it.
    Following,
    /// In a cluster no broker leads, as far as this one knows, or this one waits for its lease.
    NotLeading,
    /// It takes no new messages, and ends.
    Stopping,
}

impl Health {
    /// The answer of `GET /readyz`: 200, or 503 with the reason.
    pub fn answer(self) -> (StatusCode, &'static str) {
        match self {
            Self::Ready => (StatusCode::OK, "ready\n"),
            Self::StoreUnavailable => (StatusCode::SERVICE_UNAVAILABLE, "the store cannot be written\n"),
            Self::Following => (StatusCode::OK, "following\n"),
            Self::NotLeading => (StatusCode::SERVICE_UNAVAILABLE, "no broker leads\n"),
            Self::Stopping => (StatusCode::SERVICE_UNAVAILABLE, "stopping\n"),
        }
    }
}

/// The answer of `GET /healthz` while the process answers: a broker whose disk is full is not better after a restart.
pub const ALIVE: (StatusCode, &str) = (StatusCode::OK, "alive\n");

/// The two routes. They need no identity, and their answers name no agent and no task.
pub(super) fn routes(health: watch::Receiver<Health>) -> Router {
    Router::new().route("/healthz", get(alive)).route("/readyz", get(ready)).with_state(health)
}

async fn alive() -> Response<Body> {
    text(ALIVE.0, ALIVE.1)
}

async fn ready(State(health): State<watch::Receiver<Health>>) -> Response<Body> {
    let (status, words) = health.borrow().answer();
    text(status, words)
}

#[cfg(test)]
mod tests {
    use http::Request;
    use http_body_util::BodyExt as _;
    use tower::ServiceExt as _;

    use super::*;

    async fn ask(router: &Router, path: &str) -> (u16, String) {
        let answer = router.clone().oneshot(Request::get(path).body(Body::empty()).unwrap()).await.unwrap();
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn a_broker_that_cannot_write_is_alive_and_not_ready() {
        let (health, seen) = watch::channel(Health::Ready);
        let router = routes(seen);
        for (state, status, word) in [
            (Health::Ready, 200, "ready\n"),
            (Health::StoreUnavailable, 503, "the store cannot be written\n"),
            (Health::Following, 200, "following\n"),
            (Health::NotLeading, 503, "no broker leads\n"),
            (Health::Stopping, 503, "stopping\n"),
        ] {
            health.send_replace(state);
            assert_eq!(ask(&router, "/healthz").await, (200, "alive\n".to_owned()));
            assert_eq!(ask(&router, "/readyz").await, (status, word.to_owned()));
        }
    }
}

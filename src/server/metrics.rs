//! The endpoint for Prometheus: `GET /metrics` over plain HTTP, on an address of its own (SPEC 13). Probes that can do no
//! TLS ask `/healthz` and `/readyz` there.
//!
//! Owns the listener and its bounds. The figures are no secret, but they have no access control either, so the
//! configuration keeps the address on loopback unless the operator allows more.

use std::{convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};

use http::{
    HeaderValue, Method, Request, Response, StatusCode,
    header::{ACCEPT, ALLOW, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS},
};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{
    net::TcpListener,
    sync::{Semaphore, watch},
    task::JoinSet,
};

use super::ServerError;
use crate::{
    broker::Broker,
    metrics::{self, Metrics, plain_text},
    wire::{
        edge::names_host,
        http::{ALIVE, Health},
    },
};

/// The most connections at a time. Further ones wait in the socket's backlog.
const CONNECTIONS_MAX: usize = 16;
/// The time for a connection, which carries one request. A client that sends or reads too slowly is closed after it.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);
/// The interval between two counts of the stored mail.
const SURVEY_INTERVAL: Duration = Duration::from_secs(30);

/// A bound endpoint.
#[derive(Debug)]
pub(super) struct Endpoint {
    listener: TcpListener,
    address: SocketAddr,
}

impl Endpoint {
    /// Binds the address. Port 0 selects a free port.
    pub(super) async fn bind(address: SocketAddr) -> Result<Self, ServerError> {
        let bound = async {
            let listener = TcpListener::bind(address).await?;
            let address = listener.local_addr()?;
            Ok(Self { listener, address })
        };
        bound.await.map_err(|problem| ServerError::MetricsListen { address, problem })
    }

    /// The bound address.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers requests and counts the stored mail, until the future is dropped.
    pub(super) async fn serve(self, running: Running, figures: Figured, health: watch::Receiver<Health>) {
        tokio::join!(answer(self.listener, running.clone(), figures, health), survey(running));
    }
}

/// The figures of a member of a cluster, in OpenMetrics.
pub(super) type OfMember = Arc<dyn Fn() -> String + Send + Sync>;

/// What the page of figures shows.
#[derive(Clone)]
pub(super) struct Figured {
    pub(super) metrics: Arc<Metrics>,
    /// `None`: the broker is alone.
    pub(super) of_member: Option<OfMember>,
}

impl Figured {
    fn page(&self) -> String {
        let mut page = self.metrics.encode();
        if let Some(of_member) = &self.of_member {
            // The end of the page comes once.
            page.truncate(page.trim_end().strip_suffix("# EOF").map_or(page.len(), str::len));
            page.push_str(&of_member());
        }
        page
    }
}

/// The broker that runs. `None`: in a cluster another one leads.
pub(super) type Running = watch::Receiver<Option<Broker>>;

async fn answer(listener: TcpListener, running: Running, figures: Figured, health: watch::Receiver<Health>) {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    loop {
        let permit = room.clone().acquire_owned().await.expect("the semaphore is never closed");
        while connections.try_join_next().is_some() {}
        let Ok((stream, _)) = listener.accept().await else {
            // Too many open files, for example: the next accept may succeed once some are closed.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let (running, figures, health) = (running.clone(), figures.clone(), health.clone());
        connections.spawn(async move {
            let service = service_fn(move |request| {
                let (broker, figures, health) = (running.borrow().clone(), figures.clone(), *health.borrow());
                async move { Ok::<_, Infallible>(respond(&request, broker, figures, health).await) }
            });
            let mut builder = http1::Builder::new();
            // A kept connection would hold its place while it is idle.
            builder.keep_alive(false).max_buf_size(16 * 1024);
            let served = builder.serve_connection(TokioIo::new(stream), service);
            // An error is a client that hung up, or that speaks no HTTP: nothing to do for the broker.
            drop(tokio::time::timeout(CONNECTION_TIMEOUT, served).await);
            drop(permit);
        });
    }
}

async fn survey(running: Running) {
    let mut moments = tokio::time::interval(SURVEY_INTERVAL);
    moments.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        moments.tick().await;
        let Some(broker) = running.borrow().clone() else { continue };
        let surveyed = tokio::task::spawn_blocking(move || broker.survey()).await;
        if let Ok(Err(error)) = surveyed {
            tracing::warn!(%error, "failed to count the stored mail for the metrics");
        }
    }
}

/// The turn to measure.
static MEASURING: Semaphore = Semaphore::const_new(1);

async fn respond(
    request: &Request<Incoming>,
    broker: Option<Broker>,
    figures: Figured,
    health: Health,
) -> Response<String> {
    if !names_host(request) {
        let text = "A request over HTTP/1.1 needs one header \"host\".\n".to_owned();
        return page(StatusCode::BAD_REQUEST, "text/plain; charset=utf-8", text);
    }
    let probe = match request.uri().path() {
        "/metrics" => None,
        "/healthz" => Some(ALIVE),
        "/readyz" => Some(health.answer()),
        _ => {
            let text = "There is nothing at this path. GET /metrics has the figures of the broker.\n";
            return page(StatusCode::NOT_FOUND, "text/plain; charset=utf-8", text.to_owned());
        }
    };
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let text = "This path takes GET only.\n".to_owned();
        let mut answer = page(StatusCode::METHOD_NOT_ALLOWED, "text/plain; charset=utf-8", text);
        answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return answer;
    }
    if let Some((status, text)) = probe {
        return page(status, "text/plain; charset=utf-8", text.to_owned());
    }
    figures.metrics.store_writable.set(i64::from(health != Health::StoreUnavailable));
    // The figures of the store wait for its log, which may wait for the disk. The thread has the turn until it ends, also for
    // a client that is gone.
    let turn = MEASURING.acquire().await.expect("the semaphore is never closed");
    let measured = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        // A follower shows the last figures of its own term.
        if let Some(broker) = broker {
            broker.measure();
        }
        figures.page()
    });
    let Ok(figures) = measured.await else {
        let text = "The figures cannot be read.\n".to_owned();
        return page(StatusCode::INTERNAL_SERVER_ERROR, "text/plain; charset=utf-8", text);
    };
    let accepts = |value: &HeaderValue| value.to_str().is_ok_and(|text| text.contains("application/openmetrics-text"));
    if request.headers().get_all(ACCEPT).iter().any(accepts) {
        page(StatusCode::OK, metrics::OPENMETRICS, figures)
    } else {
        page(StatusCode::OK, metrics::PLAIN_TEXT, plain_text(&figures))
    }
}

fn page(status: StatusCode, content_type: &'static str, text: String) -> Response<String> {
    let mut answer = Response::new(text);
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    answer
}

//! Serves connections: HTTP/1.1 or HTTP/2, as the client begins.
//!
//! Owns the limits of both protocols, and the drain. Must not know the meaning of requests.

use std::{convert::Infallible, error::Error, pin::pin, sync::atomic::Ordering};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, header::CONNECTION};
use hyper::{body::Incoming as RequestBody, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use tokio::task::JoinSet;
use tokio_stream::StreamExt as _;
use tokio_util::sync::CancellationToken;
use tower::{Service, ServiceExt as _};
use tracing::{debug, error};

use super::{connection::Connection, listener::Incoming};
use crate::broker::BrokerLimits;

/// The largest head of a request, in bytes.
const HEADER_BYTES_MAX: u32 = 16 * 1024;
/// The most HTTP/2 requests of one connection that the client resets before the broker reads their beginning. One more
/// ends the connection, because a client that opens and resets requests without end only costs the broker work. The
/// bound leaves room for a broker that has not read for a while.
const GIVEN_UP_UNREAD_MAX: usize = 256;

/// The limits of HTTP/1.1 and HTTP/2 on every connection.
#[derive(Debug, Clone)]
pub struct HttpLimits(auto::Builder<TokioExecutor>);

impl HttpLimits {
    /// Creates the limits from the broker's limits.
    pub fn new(limits: &BrokerLimits) -> Self {
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            // This timeout also runs between two requests, so it closes idle connections.
            .header_read_timeout(limits.frame_timeout)
            .max_buf_size(HEADER_BYTES_MAX as usize);
        builder
            .http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(Some(limits.keepalive_interval))
            .keep_alive_timeout(limits.keepalive_timeout)
            .max_header_list_size(HEADER_BYTES_MAX)
            // 0 means no limit.
            .max_concurrent_streams(Some(limits.calls_per_connection_max).filter(|most| *most > 0))
            .initial_stream_window_size(limits.window_bytes)
            .initial_connection_window_size(limits.connection_window_bytes)
            .max_pending_accept_reset_streams(Some(GIVEN_UP_UNREAD_MAX));
        Self(builder)
    }
}

/// Serves incoming connections until `shutdown`, and returns when the last connection has ended. From `shutdown` on, a
/// connection takes no further request and ends after its requests in progress are answered. Dropping the future cuts
/// all connections off.
///
/// Every request has [`ConnectInfo`](super::ConnectInfo) among its extensions.
pub async fn serve<S, B>(mut incoming: Incoming, limits: HttpLimits, service: S, shutdown: CancellationToken)
where
    S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            connection = incoming.next() => match connection {
                Some(connection) => {
                    connections.spawn(drive(connection, limits.clone(), service.clone(), shutdown.clone()));
                }
                None => break,
            },
            // Collected while serving, so that the set holds open connections only.
            Some(ended) = connections.join_next() => report(ended),
        }
    }
    // Drops the connections that are still opening, before the wait for the open ones.
    drop(incoming);
    while let Some(ended) = connections.join_next().await {
        report(ended);
    }
}

fn report(ended: Result<(), tokio::task::JoinError>) {
    if let Err(failure) = ended {
        error!(%failure, "failed to serve a connection: this is a bug");
    }
}

/// Serves one connection until its end.
async fn drive<S, B>(connection: Connection, limits: HttpLimits, service: S, shutdown: CancellationToken)
where
    S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let info = connection.info().clone();
    let peer = info.peer_addr;
    let ends_with_request = connection.ends_with_request();
    let service = service_fn(move |mut request: Request<RequestBody>| {
        request.extensions_mut().insert(info.clone());
        let (answered, ends) = (service.clone().oneshot(request), ends_with_request.clone());
        async move {
            let mut answer = answered.await?;
            if ends.is_some_and(|ends| ends.load(Ordering::Relaxed)) {
                answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(answer)
        }
    });
    let mut served = pin!(limits.0.serve_connection(TokioIo::new(connection), service).into_owned());
    let ended = tokio::select! {
        ended = served.as_mut() => ended,
        () = shutdown.cancelled() => {
            // HTTP/2 sends GOAWAY; requests in progress are still answered.
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(problem) = ended {
        debug!(%peer, problem, "a connection failed");
    }
}

//! Bounds on HTTP requests. They share the quotas of gRPC calls: each request takes a place from its head to the end of
//! its answer, and the bytes of answers count until they are written.
//!
//! No route takes a body, so a request reaches its route without one. This layer first reads and discards a small body:
//! some clients, such as curl over HTTP/2, treat an answer that arrives while they still send as a failure. The first
//! route that takes a body replaces this with bounds of its own.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use axum::body::Body;
use bytes::Bytes;
use http::{
    Request, Response, StatusCode,
    header::{EXPECT, RETRY_AFTER},
};
use http_body_util::BodyExt as _;
use tower::{Layer, Service, ServiceExt as _};

use crate::wire::{
    bounds::{Answer, Bounds},
    edge::ConnectInfo,
};

/// When a client may retry after a request over a bound, in seconds.
const RETRY_SECONDS: u32 = 1;

/// The most bytes of a body that are read and discarded. A client that sends more may lose the answer.
const DISCARDED_BYTES_MAX: usize = 64 * 1024;
/// The time limit for reading a body.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(1);

/// A layer that enforces the bounds on each request.
#[derive(Debug, Clone)]
pub struct HttpBoundsLayer {
    bounds: Bounds,
}

impl HttpBoundsLayer {
    /// Creates the layer.
    pub const fn new(bounds: Bounds) -> Self {
        Self { bounds }
    }
}

impl<S> Layer<S> for HttpBoundsLayer {
    type Service = HttpBounded<S>;

    fn layer(&self, inner: S) -> HttpBounded<S> {
        HttpBounded { inner, bounds: self.bounds.clone() }
    }
}

/// The service of [`HttpBoundsLayer`].
#[derive(Debug, Clone)]
pub struct HttpBounded<S> {
    inner: S,
    bounds: Bounds,
}

impl<S, B> Service<Request<B>> for HttpBounded<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send + 'static,
    B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let client = ConnectInfo::client_of(request.extensions());
        let Some(call) = self.bounds.calls.take(client, 1) else {
            return Box::pin(std::future::ready(Ok(busy())));
        };
        let bytes = self.bounds.frame_bytes.clone();
        let inner = self.inner.clone();
        Box::pin(async move {
            let (head, body) = request.into_parts();
            // A client that sends `Expect` waits for permission to send its body, and does not get it.
            if !body.is_end_stream() && !head.headers.contains_key(EXPECT) {
                // On a timeout the body is dropped, and its connection or stream ends with the answer.
                let _ = tokio::time::timeout(DISCARD_TIMEOUT, discard(body)).await;
            }
            let answer = inner.oneshot(Request::from_parts(head, Body::empty()));
            // The head is already sent, so the answer can only be cut off.
            let cut = || Err(axum::Error::new("too many bytes are under way"));
            Ok(answer.await?.map(|body| Body::new(Answer::new(body, bytes, client, call, cut))))
        })
    }
}

/// Reads a body to its end, or to [`DISCARDED_BYTES_MAX`].
async fn discard(mut body: impl http_body::Body<Data = Bytes> + Unpin) {
    let mut bytes = 0;
    while let Some(Ok(frame)) = body.frame().await {
        bytes += frame.data_ref().map_or(0, Bytes::len);
        if bytes > DISCARDED_BYTES_MAX {
            return;
        }
    }
}

fn busy() -> Response<Body> {
    let mut answer = super::text(StatusCode::SERVICE_UNAVAILABLE, "Too many requests are under way.\n");
    answer.headers_mut().insert(RETRY_AFTER, RETRY_SECONDS.into());
    answer
}

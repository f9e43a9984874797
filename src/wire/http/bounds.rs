//! What HTTP requests cost the broker at most. They count with gRPC calls: each takes a place from its head to the end of
//! its answer, and the bytes of answers count until they are written.
//!
//! No route reads a body, so none is read: a body is dropped before its request reaches a route. The first route that
//! takes one replaces this by a bound on bytes and time.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use axum::body::Body;
use http::{Request, Response, StatusCode, header::RETRY_AFTER};
use tower::{Layer, Service};

use crate::wire::{
    bounds::{Answer, Bounds},
    edge::ConnectInfo,
};

/// When a client may try again after a request that was over a bound, in seconds.
const RETRY_SECONDS: u32 = 1;

/// Keeps the bounds on each request.
#[derive(Debug, Clone)]
pub struct HttpBoundsLayer {
    bounds: Bounds,
}

impl HttpBoundsLayer {
    /// The layer.
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

/// The service that [`HttpBoundsLayer`] makes.
#[derive(Debug, Clone)]
pub struct HttpBounded<S> {
    inner: S,
    bounds: Bounds,
}

impl<S, B> Service<Request<B>> for HttpBounded<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
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
        let answer = self.inner.call(request.map(|_unread| Body::empty()));
        Box::pin(async move {
            // The head is sent already, so that all that is left is to break off.
            let cut = || Err(axum::Error::new("too many bytes are under way"));
            Ok(answer.await?.map(|body| Body::new(Answer::new(body, bytes, client, call, cut))))
        })
    }
}

fn busy() -> Response<Body> {
    let mut answer = super::text(StatusCode::SERVICE_UNAVAILABLE, "Too many requests are under way.\n");
    answer.headers_mut().insert(RETRY_AFTER, RETRY_SECONDS.into());
    answer
}

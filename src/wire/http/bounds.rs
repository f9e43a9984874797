//! Bounds on HTTP requests. They share the quotas of gRPC calls: each request takes a place from its head to the end of
//! its answer, and the bytes of answers count until they are written.
//!
//! A request reaches its route without its body, except for a form: that is read whole first, within the same bounds as
//! frames. This layer reads and discards any other small body: some clients, such as curl over HTTP/2, treat an answer
//! that arrives while they still send as a failure.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use axum::body::Body;
use bytes::Bytes;
use http::{
    HeaderValue, Request, Response, StatusCode,
    header::{CONNECTION, EXPECT, RETRY_AFTER},
};
use http_body_util::BodyExt as _;
use tower::{Layer, Service, ServiceExt as _};

use crate::wire::{
    bounds::{Answer, Bounds},
    edge::{ConnectInfo, names_host},
};

/// When a client may retry after a request over a bound, in seconds.
const RETRY_SECONDS: u32 = 1;

/// The most bytes of a body that are read. A client that sends more may lose the answer, and a longer form is refused.
const BODY_BYTES_MAX: usize = 64 * 1024;
/// The time limit for reading a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(1);
/// The content type of a form.
const FORM: &[u8] = b"application/x-www-form-urlencoded";

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
        if !names_host(&request) {
            return Box::pin(std::future::ready(Ok(no_host())));
        }
        let client = ConnectInfo::client_of(request.extensions());
        let Some(call) = self.bounds.calls.take(client, 1) else {
            return Box::pin(std::future::ready(Ok(busy())));
        };
        let bytes = self.bounds.frame_bytes.clone();
        let inner = self.inner.clone();
        Box::pin(async move {
            let (head, body) = request.into_parts();
            // The place of a form's bytes, which is taken until the route has answered, as that of a frame.
            let mut held = None;
            let body = if is_form(&head.headers) {
                held = bytes.take(client, BODY_BYTES_MAX);
                if held.is_none() {
                    return Ok(busy());
                }
                match tokio::time::timeout(BODY_TIMEOUT, form(body)).await {
                    Ok(Some(form)) => Body::from(form),
                    Ok(None) => return Ok(super::text(StatusCode::PAYLOAD_TOO_LARGE, "The form is too long.\n")),
                    Err(_elapsed) => {
                        return Ok(super::text(StatusCode::REQUEST_TIMEOUT, "The form came too slowly.\n"));
                    }
                }
            } else {
                // A client that sends `Expect` waits for permission to send its body, and does not get it.
                if !body.is_end_stream() && !head.headers.contains_key(EXPECT) {
                    // On a timeout the body is dropped, and its connection or stream ends with the answer.
                    let _ = tokio::time::timeout(BODY_TIMEOUT, discard(body)).await;
                }
                Body::empty()
            };
            let answer = inner.oneshot(Request::from_parts(head, body)).await?;
            drop(held);
            // The head is already sent, so the answer can only be cut off.
            let cut = || Err(axum::Error::new("too many bytes are under way"));
            Ok(answer.map(|body| Body::new(Answer::new(body, bytes, client, call, cut))))
        })
    }
}

fn is_form(headers: &http::HeaderMap) -> bool {
    let kind = headers.get(http::header::CONTENT_TYPE).map_or(&[][..], |kind| kind.as_bytes());
    let name = kind.split(|byte| *byte == b';').next().unwrap_or_default();
    name.trim_ascii().eq_ignore_ascii_case(FORM)
}

/// Reads a whole form. `None`: it is longer than [`BODY_BYTES_MAX`], or ends early.
async fn form(mut body: impl http_body::Body<Data = Bytes> + Unpin) -> Option<Vec<u8>> {
    let mut form = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.ok()?;
        let data = frame.data_ref().map_or(&[][..], |data| data);
        if form.len() + data.len() > BODY_BYTES_MAX {
            return None;
        }
        form.extend_from_slice(data);
    }
    Some(form)
}

/// Reads a body to its end, or to [`BODY_BYTES_MAX`].
async fn discard(mut body: impl http_body::Body<Data = Bytes> + Unpin) {
    let mut bytes = 0;
    while let Some(Ok(frame)) = body.frame().await {
        bytes += frame.data_ref().map_or(0, Bytes::len);
        if bytes > BODY_BYTES_MAX {
            return;
        }
    }
}

fn no_host() -> Response<Body> {
    let said = "A request over HTTP/1.1 needs one header \"host\", with a name or an address.\n";
    let mut answer = super::text(StatusCode::BAD_REQUEST, said);
    // The client and a proxy before it may not agree on where the next request begins.
    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    answer
}

fn busy() -> Response<Body> {
    let mut answer = super::text(StatusCode::SERVICE_UNAVAILABLE, "Too many requests are under way.\n");
    answer.headers_mut().insert(RETRY_AFTER, RETRY_SECONDS.into());
    answer
}

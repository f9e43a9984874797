//! Enforces the deadline of a call. Owns parsing `grpc-timeout`. Must not know any call, nor how statuses are built:
//! the caller of [`DeadlineLayer::new`] supplies the status.
//!
//! The deadline bounds the time until the response begins, which is the whole of a unary call. This layer does not cut
//! off a response stream that has begun: the client knows the deadline too, and resets the stream.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use http::{HeaderMap, Request, Response};
use tower::{Layer, Service};

/// A layer that drops a call over its `grpc-timeout`, and answers it with the supplied status.
#[derive(Debug, Clone, Copy)]
pub struct DeadlineLayer {
    status: fn() -> tonic::Status,
}

impl DeadlineLayer {
    /// Creates the layer. `status` builds the answer to a call over its deadline: DEADLINE_EXCEEDED.
    pub const fn new(status: fn() -> tonic::Status) -> Self {
        Self { status }
    }
}

impl<S> Layer<S> for DeadlineLayer {
    type Service = Deadline<S>;

    fn layer(&self, inner: S) -> Deadline<S> {
        Deadline { inner, status: self.status }
    }
}

/// The service of [`DeadlineLayer`].
#[derive(Debug, Clone)]
pub struct Deadline<S> {
    inner: S,
    status: fn() -> tonic::Status,
}

impl<S, RequestBody, ResponseBody> Service<Request<RequestBody>> for Deadline<S>
where
    S: Service<Request<RequestBody>, Response = Response<ResponseBody>>,
    S::Future: Send + 'static,
    ResponseBody: Default,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<RequestBody>) -> Self::Future {
        let limit = limit_of(request.headers());
        let answer = self.inner.call(request);
        let Some(limit) = limit else { return Box::pin(answer) };
        let status = self.status;
        let answer = tokio::time::timeout(limit, answer);
        // The drop of the call does not undo a command that the engine has taken already.
        Box::pin(async move { answer.await.unwrap_or_else(|_elapsed| Ok(status().into_http())) })
    }
}

/// Parses `grpc-timeout`: 1 to 8 digits and a unit. An invalid header counts as none.
pub(crate) fn limit_of(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    // The gRPC specification allows at most 8 digits, which also keeps the product below from overflowing.
    if digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let count = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(count * 60 * 60)),
        "M" => Some(Duration::from_secs(count * 60)),
        "S" => Some(Duration::from_secs(count)),
        "m" => Some(Duration::from_millis(count)),
        "u" => Some(Duration::from_micros(count)),
        "n" => Some(Duration::from_nanos(count)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use tonic::Code;
    use tower::{ServiceExt as _, service_fn};

    use super::*;

    fn expired() -> tonic::Status {
        tonic::Status::deadline_exceeded("the deadline has passed")
    }

    /// Calls a service that answers at once or never, with this header.
    async fn call(answers: bool, timeout: Option<&str>) -> Code {
        let service = service_fn(move |_request: Request<()>| async move {
            if !answers {
                std::future::pending::<()>().await;
            }
            Ok::<_, Infallible>(tonic::Status::ok("").into_http::<()>())
        });
        let mut request = Request::new(());
        if let Some(timeout) = timeout {
            request.headers_mut().insert("grpc-timeout", timeout.parse().unwrap());
        }
        let response = DeadlineLayer::new(expired).layer(service).oneshot(request).await.unwrap();
        tonic::Status::from_header_map(response.headers()).unwrap().code()
    }

    #[tokio::test]
    async fn a_call_over_its_deadline_is_answered_deadline_exceeded() {
        assert_eq!(call(false, Some("5m")).await, Code::DeadlineExceeded);
        assert_eq!(call(false, Some("1n")).await, Code::DeadlineExceeded);
    }

    #[tokio::test]
    async fn a_call_within_its_deadline_is_answered() {
        for timeout in [None, Some("99999999H"), Some("5S"), Some("nonsense")] {
            assert_eq!(call(true, timeout).await, Code::Ok, "{timeout:?}");
        }
    }

    #[test]
    fn timeouts_are_read_as_grpc_writes_them() {
        let read = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("grpc-timeout", http::HeaderValue::from_bytes(text.as_bytes()).unwrap());
            limit_of(&headers)
        };
        for (text, limit) in [
            ("2H", Duration::from_secs(7200)),
            ("3M", Duration::from_secs(180)),
            ("10S", Duration::from_secs(10)),
            ("250m", Duration::from_millis(250)),
            ("7u", Duration::from_micros(7)),
            ("00000009n", Duration::from_nanos(9)),
        ] {
            assert_eq!(read(text), Some(limit), "{text}");
        }
        for text in ["", "S", "5", "+5S", "-5S", "5s", "5 S", "123456789S", "5ü", "é"] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}

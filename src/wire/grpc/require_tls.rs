//! Refuses what comes without TLS, in words that a gRPC client can show, unless that is allowed. Owns that rule; must not
//! know any call, nor how statuses are built: the one for a refusal is handed in.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use http::{Request, Response};
use tower::{Layer, Service};

use super::connection::ConnectInfo;

/// Answers every request over a plaintext connection with the status that is handed in; none reaches the service.
#[derive(Debug, Clone, Copy)]
pub struct RequireTlsLayer {
    plaintext_allowed: bool,
    status: fn() -> tonic::Status,
}

impl RequireTlsLayer {
    /// The layer; `status` builds the answer to a plaintext request, TLS_REQUIRED.
    pub const fn new(plaintext_allowed: bool, status: fn() -> tonic::Status) -> Self {
        Self { plaintext_allowed, status }
    }
}

impl<S> Layer<S> for RequireTlsLayer {
    type Service = RequireTls<S>;

    fn layer(&self, inner: S) -> RequireTls<S> {
        RequireTls { inner, rule: *self }
    }
}

/// The service that [`RequireTlsLayer`] makes.
#[derive(Debug, Clone)]
pub struct RequireTls<S> {
    inner: S,
    rule: RequireTlsLayer,
}

impl<S, RequestBody, ResponseBody> Service<Request<RequestBody>> for RequireTls<S>
where
    S: Service<Request<RequestBody>, Response = Response<ResponseBody>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    ResponseBody: Default + Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<RequestBody>) -> Self::Future {
        // A request that came from no listener of ours says nothing about TLS, and so is refused too.
        let is_encrypted = request.extensions().get::<ConnectInfo>().is_some_and(|connection| connection.encrypted);
        if is_encrypted || self.rule.plaintext_allowed {
            Box::pin(self.inner.call(request))
        } else {
            Box::pin(std::future::ready(Ok((self.rule.status)().into_http())))
        }
    }
}

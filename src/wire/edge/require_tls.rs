//! Refuses plaintext requests unless the configuration allows them. Must not know any request, nor the form of a
//! refusal: gRPC and HTTP each supply theirs.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use http::{Request, Response};
use tower::{Layer, Service};

use super::connection::ConnectInfo;

/// A layer that answers every request over a plaintext connection with the supplied refusal.
#[derive(Debug, Clone, Copy)]
pub struct RequireTlsLayer<F> {
    plaintext_allowed: bool,
    refusal: F,
}

impl<F> RequireTlsLayer<F> {
    /// Creates the layer. `refusal` builds the answer to a plaintext request.
    pub const fn new(plaintext_allowed: bool, refusal: F) -> Self {
        Self { plaintext_allowed, refusal }
    }
}

impl<S, F: Copy> Layer<S> for RequireTlsLayer<F> {
    type Service = RequireTls<S, F>;

    fn layer(&self, inner: S) -> RequireTls<S, F> {
        RequireTls { inner, rule: *self }
    }
}

/// The service of [`RequireTlsLayer`].
#[derive(Debug, Clone)]
pub struct RequireTls<S, F> {
    inner: S,
    rule: RequireTlsLayer<F>,
}

impl<S, F, RequestBody, ResponseBody> Service<Request<RequestBody>> for RequireTls<S, F>
where
    S: Service<Request<RequestBody>, Response = Response<ResponseBody>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    F: Fn() -> Response<ResponseBody>,
    ResponseBody: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<RequestBody>) -> Self::Future {
        // A request without connection info gives no evidence of TLS, so it is refused too.
        let is_encrypted = request.extensions().get::<ConnectInfo>().is_some_and(|connection| connection.encrypted);
        if is_encrypted || self.rule.plaintext_allowed {
            Box::pin(self.inner.call(request))
        } else {
            Box::pin(std::future::ready(Ok((self.rule.refusal)())))
        }
    }
}

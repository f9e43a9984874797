//! Tells gRPC calls from other HTTP requests. Owns that rule. Must not know any call or route.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll, ready},
};

use http::{Request, Response, Version, header::CONTENT_TYPE};
use http_body_util::Either;
use tower::Service;

/// Routes gRPC calls to one service and all other requests to another.
///
/// A gRPC call is a request over HTTP/2 with the content type `application/grpc`, or with a suffix as in
/// `application/grpc+proto`.
#[derive(Debug, Clone)]
pub struct Dispatch<G, H> {
    grpc: G,
    http: H,
}

impl<G, H> Dispatch<G, H> {
    /// Combines the two services.
    pub const fn new(grpc: G, http: H) -> Self {
        Self { grpc, http }
    }
}

impl<G, H, B, GrpcBody, HttpBody> Service<Request<B>> for Dispatch<G, H>
where
    G: Service<Request<B>, Response = Response<GrpcBody>, Error = Infallible>,
    G::Future: Send + 'static,
    H: Service<Request<B>, Response = Response<HttpBody>, Error = Infallible>,
    H::Future: Send + 'static,
{
    type Response = Response<Either<GrpcBody, HttpBody>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // The request, which decides between the services, is not known yet. So both have to be ready.
        ready!(self.grpc.poll_ready(context))?;
        self.http.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        if is_grpc(&request) {
            let answer = self.grpc.call(request);
            Box::pin(async move { Ok(answer.await?.map(Either::Left)) })
        } else {
            let answer = self.http.call(request);
            Box::pin(async move { Ok(answer.await?.map(Either::Right)) })
        }
    }
}

fn is_grpc<B>(request: &Request<B>) -> bool {
    const GRPC: &str = "application/grpc";
    let Some(kind) = request.headers().get(CONTENT_TYPE) else { return false };
    // A longer name, as in application/grpc-web, is another protocol.
    let (name, rest) = kind.as_bytes().split_at(kind.len().min(GRPC.len()));
    let is_whole = matches!(rest.first(), None | Some(b'+' | b';' | b' '));
    request.version() == Version::HTTP_2 && is_whole && name.eq_ignore_ascii_case(GRPC.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grpc_is_told_by_its_content_type() {
        for (kind, expected) in [
            ("application/grpc", true),
            ("application/grpc+proto", true),
            ("application/grpc; charset=utf-8", true),
            ("Application/GRPC", true),
            ("application/grpc-web", false),
            ("application/grpc-web+proto", false),
            ("application/grp", false),
            ("application/json", false),
            ("", false),
        ] {
            let request = |version| Request::post("/").version(version).header(CONTENT_TYPE, kind).body(()).unwrap();
            assert_eq!(is_grpc(&request(Version::HTTP_2)), expected, "{kind}");
            assert!(!is_grpc(&request(Version::HTTP_11)), "gRPC needs HTTP/2");
        }
        assert!(!is_grpc(&Request::post("/").version(Version::HTTP_2).body(()).unwrap()));
    }
}

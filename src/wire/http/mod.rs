//! HTTP: the port's answers to requests that are not gRPC.
//!
//! Owns the table of routes, and the answers to requests without a route. Must not know gRPC, nor how requests arrive.
//! Answers are plain text: their readers use `curl`, or a browser where the web console is off.

mod bounds;
mod front_page;
mod health;

use axum::{
    Router,
    body::Body,
    middleware::map_response,
    response::IntoResponse as _,
    routing::{get, post},
};
use baton_pages::secure;
use http::{HeaderValue, Request, Response, StatusCode, Version, header::CONNECTION};
use tokio::sync::watch;

pub use self::{
    bounds::{HttpBounded, HttpBoundsLayer},
    health::{ALIVE, Health},
};

/// The routes. `grpc_services` are the full names of the gRPC services on the same port; a request to their paths that
/// is not gRPC gets an answer that says so. `console`: the routes of the web console, if the port has one. `health`: what
/// the probes say.
pub fn router(
    grpc_services: impl IntoIterator<Item = &'static str>,
    console: Option<Router>,
    health: watch::Receiver<Health>,
) -> Router {
    let calls = grpc_services
        .into_iter()
        .fold(Router::new(), |calls, service| calls.route(&format!("/{service}/{{call}}"), post(not_grpc)));
    let front = if console.is_some() { get(front_page::with_console) } else { get(front_page::alone) };
    Router::new()
        .route("/", front)
        .merge(health::routes(health))
        .merge(calls)
        .merge(console.unwrap_or_default())
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(map_response(secured))
}

/// Adds the headers of [`secure`].
async fn secured(mut answer: Response<Body>) -> Response<Body> {
    secure(answer.headers_mut());
    answer
}

/// The answer to a plaintext request where TLS is required.
pub fn tls_required() -> Response<Body> {
    let mut answer = text(StatusCode::BAD_REQUEST, "This port needs TLS: use https, not http.\n");
    // The client has to connect again with TLS, so this connection has no further use.
    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    answer
}

/// The answer to a plain HTTP request for the path of a gRPC call.
async fn not_grpc(request: Request<Body>) -> Response<Body> {
    if request.version() < Version::HTTP_2 {
        let said = "This path is a gRPC call, and gRPC needs HTTP/2. GET / says how to make a call.\n";
        return text(StatusCode::HTTP_VERSION_NOT_SUPPORTED, said);
    }
    let said = "This path is a gRPC call: its content type is application/grpc. GET / says how to make a call.\n";
    text(StatusCode::UNSUPPORTED_MEDIA_TYPE, said)
}

async fn not_found() -> Response<Body> {
    text(StatusCode::NOT_FOUND, "There is nothing at this path. GET / says what this port is.\n")
}

async fn method_not_allowed() -> Response<Body> {
    text(
        StatusCode::METHOD_NOT_ALLOWED,
        "This path does not take this method; the header \"allow\" says which it takes.\n",
    )
}

/// A page of plain text. The layers around the router answer with it too, so it has the headers of [`secure`].
fn text(status: StatusCode, text: impl Into<String>) -> Response<Body> {
    let mut answer = (status, text.into()).into_response();
    secure(answer.headers_mut());
    answer
}

#[cfg(test)]
mod tests {
    use http::header::X_CONTENT_TYPE_OPTIONS;

    use http::{
        Method,
        header::{ALLOW, CONTENT_LENGTH, CONTENT_TYPE, HOST},
    };
    use http_body_util::BodyExt as _;
    use tower::ServiceExt as _;

    use super::*;

    struct Answered {
        status: u16,
        head: http::HeaderMap,
        body: String,
    }

    async fn ask(request: http::request::Builder) -> Answered {
        let router = router(["baton.v1.TaskService"], None, watch::channel(Health::Ready).1);
        let (head, body) = router.oneshot(request.body(Body::empty()).unwrap()).await.unwrap().into_parts();
        let body = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
        assert_eq!(head.headers[CONTENT_TYPE], "text/plain; charset=utf-8");
        assert_eq!(head.headers[X_CONTENT_TYPE_OPTIONS], "nosniff");
        Answered { status: head.status.as_u16(), head: head.headers, body }
    }

    #[tokio::test]
    async fn the_front_page_names_the_host_that_was_asked() {
        for request in [
            Request::get("/").header(HOST, "broker.example:22866"),
            Request::get("https://broker.example:22866/").version(Version::HTTP_2),
        ] {
            let answer = ask(request).await;
            assert_eq!(answer.status, 200);
            assert!(answer.body.contains("grpcurl -cacert ca.pem broker.example:22866 list\n"), "{}", answer.body);
        }
        for request in [Request::get("/"), Request::get("/").header(HOST, "a b; rm -r /")] {
            let answer = ask(request).await;
            assert!(answer.body.contains("grpcurl -cacert ca.pem HOST:PORT list\n"), "{}", answer.body);
        }
    }

    #[tokio::test]
    async fn the_front_page_has_a_head_and_takes_no_other_method() {
        let whole = ask(Request::get("/")).await;
        let head = ask(Request::head("/")).await;
        assert_eq!((head.status, &*head.body), (200, ""));
        assert_eq!(head.head[CONTENT_LENGTH], whole.body.len().to_string());
        for method in [Method::POST, Method::PUT, Method::DELETE, Method::OPTIONS, Method::TRACE] {
            let answer = ask(Request::builder().method(method).uri("/")).await;
            assert_eq!((answer.status, &answer.head[ALLOW]), (405, &HeaderValue::from_static("GET,HEAD")));
        }
    }

    #[tokio::test]
    async fn an_unknown_path_is_not_found() {
        for request in [Request::get("/x"), Request::post("/no.such.Service/Call"), Request::connect("a.example:443")] {
            let answer = ask(request).await;
            assert_eq!(answer.status, 404);
            assert!(answer.body.contains("GET / says"), "{}", answer.body);
        }
    }

    #[tokio::test]
    async fn a_call_that_is_not_grpc_is_told_so() {
        let path = "/baton.v1.TaskService/GetTask";
        assert_eq!(ask(Request::post(path).version(Version::HTTP_2)).await.status, 415);
        assert_eq!(ask(Request::post(path).version(Version::HTTP_11)).await.status, 505);
        let answer = ask(Request::get(path)).await;
        assert_eq!((answer.status, &answer.head[ALLOW]), (405, &HeaderValue::from_static("POST")));
    }
}

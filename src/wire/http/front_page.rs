//! The page at `/`: the purpose of the port, and how to call it.

use axum::body::Body;
use http::{
    HeaderValue, Request, Response, StatusCode,
    header::{ACCEPT, HOST, LOCATION},
    uri::Authority,
};

/// The placeholder for a host that the request does not name.
const UNKNOWN_HOST: &str = "HOST:PORT";

/// The page of a port without a web console.
pub(super) async fn alone(request: Request<Body>) -> Response<Body> {
    front_page(&request, false)
}

fn front_page(request: &Request<Body>, has_console: bool) -> Response<Body> {
    // Only a valid authority goes into the commands of the page, because readers paste them into a shell.
    let named = request.headers().get(HOST).and_then(|host| Authority::try_from(host.as_bytes()).ok());
    let host = request.uri().authority().cloned().or(named);
    super::text(StatusCode::OK, page(host.as_ref().map_or(UNKNOWN_HOST, Authority::as_str), has_console))
}

/// The same page, or the way to the web console for a client that takes HTML.
pub(super) async fn with_console(request: Request<Body>) -> Response<Body> {
    let accepts = request.headers().get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    // Browsers name the type; curl accepts `*/*`.
    if !accepts.flat_map(|value| value.split(',')).any(|kind| kind.trim().starts_with("text/html")) {
        return front_page(&request, true);
    }
    let mut answer = super::text(StatusCode::SEE_OTHER, "The web console is at /overview.\n");
    answer.headers_mut().insert(LOCATION, HeaderValue::from_static("/overview"));
    answer
}

fn page(host: &str, has_console: bool) -> String {
    let people = if has_console {
        "People open this address in a browser, and get the web console."
    } else {
        "It has no pages for people: the web console is off ([console] enabled in the configuration)."
    };
    format!(
        "This is baton, a broker through which AI agents hand over tasks.

Programs use its port by gRPC over TLS. {people}

List its services, and ask whether it is healthy:

    grpcurl -cacert ca.pem {host} list
    grpcurl -cacert ca.pem {host} grpc.health.v1.Health/Check

Make an agent's key, and register the agent; a broker that is not for development asks for an invitation of its operator:

    baton keygen --out alice.pem
    baton agent register --id alice --key alice.pem --server {host} --ca ca.pem

ca.pem is the certificate of the CA that this broker's certificate comes from; a broker for development has it in its data
folder as tls/ca.pem. README.md of baton begins with a first handoff, and names the clients for Python, Go, TypeScript,
Java and Rust.
"
    )
}

//! HTTP on the broker's port, beside gRPC.

use bytes::Bytes;
use h2::client::SendRequest;
use http::{HeaderMap, Method, Request, Version};
use prost::Message as _;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};

use crate::{
    broker::{Broker, baton},
    hostile::raw::{self, Answer},
};

/// A connection that negotiates HTTP/2, as curl and browsers do.
async fn http2(broker: &Broker) -> SendRequest<Bytes> {
    let stream = raw::tls_offering(broker, &["h2", "http/1.1"]).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(b"h2".as_slice()), "HTTP/2 is preferred");
    let (requests, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    requests
}

struct Http2Answer {
    status: u16,
    head: HeaderMap,
    body: Vec<u8>,
    trailers: HeaderMap,
}

async fn ask(requests: &SendRequest<Bytes>, request: Request<()>, body: Option<Vec<u8>>) -> Http2Answer {
    let mut requests = requests.clone().ready().await.unwrap();
    let (answer, mut stream) = requests.send_request(request, body.is_none()).unwrap();
    if let Some(body) = body {
        stream.send_data(body.into(), true).unwrap();
    }
    let (head, mut rest) = answer.await.unwrap().into_parts();
    let mut body = Vec::new();
    while let Some(data) = rest.data().await {
        let data = data.unwrap();
        rest.flow_control().release_capacity(data.len()).unwrap();
        body.extend(data);
    }
    let trailers = rest.trailers().await.unwrap().unwrap_or_default();
    Http2Answer { status: head.status.as_u16(), head: head.headers, body, trailers }
}

fn request(method: Method, path: &str) -> Request<()> {
    let uri = format!("https://localhost{path}");
    Request::builder().method(method).uri(uri).version(Version::HTTP_2).body(()).unwrap()
}

fn grpc(path: &str) -> Request<()> {
    let mut request = request(Method::POST, path);
    for (name, value) in [("te", "trailers"), ("content-type", "application/grpc")] {
        request.headers_mut().insert(name, value.parse().unwrap());
    }
    request
}

async fn ask_http1(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), request: &str) -> Answer {
    stream.write_all(request.as_bytes()).await.unwrap();
    raw::answer(stream).await.expect("an answer")
}

#[tokio::test]
async fn http1_is_told_what_the_port_is() {
    let broker = Broker::start();
    let mut stream = raw::http1(&broker).await;
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(b"http/1.1".as_slice()));
    let host = &broker.address;
    // All requests use one connection, which stays open.
    let page = ask_http1(&mut stream, &format!("GET / HTTP/1.1\r\nhost: {host}\r\n\r\n")).await;
    assert_eq!(page.status, 200);
    assert!(page.head.contains("content-type: text/plain; charset=utf-8\r\n"), "{}", page.head);
    assert!(page.body.contains(&format!("grpcurl -cacert ca.pem {host} list\n")), "{}", page.body);
    for (request, status, says) in [
        ("GET /metrics HTTP/1.1", 404, "GET / says what this port is"),
        ("POST / HTTP/1.1\r\ncontent-length: 0", 405, "does not take this method"),
        ("POST /baton.v1.BrokerService/Send HTTP/1.1\r\ncontent-length: 0", 505, "gRPC needs HTTP/2"),
        (
            "POST /baton.v1.BrokerService/Send HTTP/1.1\r\ncontent-type: application/grpc\r\ncontent-length: 0",
            505,
            "gRPC",
        ),
        ("GET /baton.v1.BrokerService/Send HTTP/1.1", 405, "does not take this method"),
    ] {
        let answer = ask_http1(&mut stream, &format!("{request}\r\nhost: {host}\r\n\r\n")).await;
        assert_eq!(answer.status, status, "{request}");
        assert!(answer.body.contains(says), "{request}: {}", answer.body);
    }
    // HTTP/1.0, as health probes use it: answered, then closed.
    let answer = ask_http1(&mut stream, "GET / HTTP/1.0\r\n\r\n").await;
    assert_eq!(answer.status, 200);
    raw::hung_up(&mut stream).await;
}

#[tokio::test]
async fn http1_without_a_host_or_with_two_is_refused_and_its_connection_ends() {
    let broker = Broker::start();
    let host = format!("host: {}", broker.address);
    for line in
        ["GET / HTTP/1.1", "POST / HTTP/1.1", "GET /nothing HTTP/1.1", "POST /baton.v1.BrokerService/Send HTTP/1.1"]
    {
        for hosts in
            [vec![], vec![&*host, &*host], vec![&*host, "Host: other.example"], vec!["host: a b"], vec!["host: a/b"]]
        {
            let mut stream = raw::http1(&broker).await;
            let head: String = hosts.iter().map(|host| format!("{host}\r\n")).collect();
            let answer = ask_http1(&mut stream, &format!("{line}\r\n{head}content-length: 0\r\n\r\n")).await;
            assert_eq!(answer.status, 400, "{line} {hosts:?}");
            assert!(answer.body.contains("needs one header \"host\""), "{}", answer.body);
            raw::hung_up(&mut stream).await;
        }
    }
    // A second request of a connection is checked as the first is. HTTP/1.0 needs no host, and has two neither.
    let mut stream = raw::http1(&broker).await;
    assert_eq!(ask_http1(&mut stream, &format!("GET / HTTP/1.1\r\n{host}\r\n\r\n")).await.status, 200);
    assert_eq!(ask_http1(&mut stream, "GET / HTTP/1.1\r\n\r\n").await.status, 400);
    let mut stream = raw::http1(&broker).await;
    assert_eq!(ask_http1(&mut stream, &format!("GET / HTTP/1.0\r\n{host}\r\n{host}\r\n\r\n")).await.status, 400);
}

#[tokio::test]
async fn a_bare_line_feed_in_a_head_is_refused_and_its_connection_ends() {
    let broker = Broker::start();
    let host = format!("host: {}", broker.address);
    for head in [
        format!("GET / HTTP/1.1\n{host}\r\n\r\n"),
        format!("GET / HTTP/1.1\r\n{host}\n\r\n"),
        format!("GET / HTTP/1.1\r\n{host}\r\nx: y\nz: a\r\n\r\n"),
        format!("GET / HTTP/1.1\n{host}\n\n\r\n\r\n"),
    ] {
        // Also of a later request of a connection.
        for before in [0, 2] {
            let mut stream = raw::http1(&broker).await;
            for _ in 0..before {
                let first = format!("POST /nothing HTTP/1.1\r\n{host}\r\ncontent-length: 0\r\n\r\n");
                assert_eq!(ask_http1(&mut stream, &first).await.status, 404);
            }
            assert_eq!(ask_http1(&mut stream, &head).await.status, 400, "{head:?}");
            raw::hung_up(&mut stream).await;
        }
    }
    // A body may have bare LFs. No request follows it on its connection, since a body's end is not seen from outside.
    let mut stream = raw::http1(&broker).await;
    let body = format!("POST /nothing HTTP/1.1\r\n{host}\r\ncontent-length: 4\r\n\r\na\nb\n");
    let answer = ask_http1(&mut stream, &body).await;
    assert_eq!(answer.status, 404);
    assert!(answer.head.contains("connection: close\r\n"), "{}", answer.head);
    raw::hung_up(&mut stream).await;
}

#[tokio::test]
async fn http2_and_grpc_share_a_connection() {
    let broker = Broker::start();
    let connection = http2(&broker).await;
    let page = ask(&connection, request(Method::GET, "/"), None).await;
    assert_eq!((page.status, page.head["content-type"].to_str().unwrap()), (200, "text/plain; charset=utf-8"));
    assert!(String::from_utf8(page.body).unwrap().contains("grpcurl -cacert ca.pem localhost list\n"));
    for (request, body, status) in [
        (request(Method::HEAD, "/"), None, 200),
        (request(Method::GET, "/nothing"), None, 404),
        (request(Method::DELETE, "/"), None, 405),
        (request(Method::POST, "/baton.v1.BrokerService/Send"), Some(b"{}".to_vec()), 415),
        (request(Method::POST, "/grpc.health.v1.Health/Check"), None, 415),
        (request(Method::POST, "/no.such.Service/Call"), None, 404),
    ] {
        let what = format!("{request:?}");
        assert_eq!(ask(&connection, request, body).await.status, status, "{what}");
    }
    let check = ask(&connection, grpc("/grpc.health.v1.Health/Check"), Some(raw::grpc(&[]))).await;
    assert_eq!((check.status, check.trailers["grpc-status"].to_str().unwrap()), (200, "0"));
    let health = tonic_health::pb::HealthCheckResponse::decode(&check.body[5..]).unwrap();
    assert_eq!(health.status(), tonic_health::pb::health_check_response::ServingStatus::Serving);
    for path in ["/no.such.Service/Call", "/baton.v1.BrokerService/NoSuchCall", "/"] {
        let unknown = ask(&connection, grpc(path), Some(raw::grpc(&[]))).await;
        assert_eq!((unknown.status, unknown.head["grpc-status"].to_str().unwrap()), (200, "12"), "{path}");
        assert_eq!(unknown.head["content-type"], "application/grpc");
    }
}

#[tokio::test]
async fn the_commands_of_the_front_page_work() {
    let broker = Broker::start();
    let mut stream = raw::http1(&broker).await;
    let page = ask_http1(&mut stream, &format!("GET / HTTP/1.1\r\nhost: {}\r\n\r\n", broker.address)).await.body;
    std::fs::copy(broker.ca(), broker.folder.path().join("ca.pem")).unwrap();
    let commands: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("    baton ")).collect();
    assert_eq!(commands.len(), 2, "{page}");
    for command in commands {
        let output = baton().current_dir(broker.folder.path()).args(command.split(' ')).output().unwrap();
        assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[tokio::test]
async fn an_http2_request_with_a_small_body_is_not_reset() {
    let broker = Broker::start();
    let mut stream = raw::http2(&broker).await;
    let head: Vec<u8> = [(":method", "POST"), (":scheme", "https"), (":path", "/"), (":authority", "localhost")]
        .into_iter()
        .flat_map(|(name, value)| raw::header(name, value))
        .collect();
    let ping = raw::frame(raw::PING, 0, 0, &[7; 8]);
    // The broker has the head of the request but not its body.
    stream.write_all(&[raw::frame(raw::HEADERS, raw::END_HEADERS, 1, &head), ping.clone()].concat()).await.unwrap();
    let is_answer_to_ping = |kind: u8, flags: u8| kind == raw::PING && flags & 1 == 1;
    let mut seen = Vec::new();
    for body in [Vec::new(), raw::frame(0, raw::END_STREAM, 1, b"{}")] {
        if !body.is_empty() {
            stream.write_all(&body).await.unwrap();
            // A reset would follow directly after the end of the answer.
            while !seen.iter().any(|(kind, flags, of)| *kind == 0 && flags & raw::END_STREAM != 0 && *of == 1) {
                seen.push(raw::read_frame(&mut stream).await);
            }
            stream.write_all(&ping).await.unwrap();
        }
        loop {
            let (kind, flags, of) = raw::read_frame(&mut stream).await;
            if is_answer_to_ping(kind, flags) {
                break;
            }
            seen.push((kind, flags, of));
        }
    }
    assert!(!seen.iter().any(|(kind, ..)| *kind == raw::RST_STREAM), "{seen:?}");
}

#[tokio::test]
async fn where_plaintext_is_allowed_http_is_too() {
    let broker = Broker::serve("", "allow_plaintext = true\n");
    let mut stream = raw::tcp(&broker).await.unwrap();
    assert_eq!(ask_http1(&mut stream, "GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.status, 200);
}

#[tokio::test]
async fn a_stop_waits_for_no_http_connection_without_a_request() {
    let broker = Broker::start();
    let mut used = raw::http1(&broker).await;
    assert_eq!(ask_http1(&mut used, "GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.status, 200);
    let mut fresh = raw::http1(&broker).await;
    let multiplexed = http2(&broker).await;
    assert_eq!(ask(&multiplexed, request(Method::GET, "/"), None).await.status, 200);
    broker.ask_to_stop();
    raw::hung_up(&mut used).await;
    raw::hung_up(&mut fresh).await;
    let log = broker.folder.path().join("log");
    let folder = broker.folder.clone();
    broker.ends_in_order().await;
    assert!(!std::fs::read_to_string(log).unwrap().contains("cut off"));
    drop(folder);
}

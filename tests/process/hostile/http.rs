//! Requests without gRPC, over HTTP/1.1 and HTTP/2: endless heads, endless bodies, and unread answers.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::{
    Honest, MIB, assert_bounded,
    raw::{self, END_HEADERS, END_STREAM, HEADERS},
    resident_kib, start,
};
use crate::broker::PATIENCE;

const GET: &str = "GET / HTTP/1.1\r\nhost: x\r\n\r\n";

/// The head of an HTTP/2 request for the front page.
fn get() -> Vec<u8> {
    [(":method", "GET"), (":scheme", "https"), (":path", "/"), (":authority", "localhost")]
        .into_iter()
        .flat_map(|(name, value)| raw::header(name, value))
        .collect()
}

#[tokio::test]
async fn heads_that_do_not_end_in_time_end_their_connection() {
    let broker = start("[broker_limits]\nframe_timeout_ms = 2000\nconnections_max = 40\n");
    let honest = Honest::come(&broker).await;
    let before = resident_kib(&broker);
    let mut slow = tokio::task::JoinSet::new();
    for number in 0..20 {
        let mut stream = raw::http1(&broker).await;
        slow.spawn(async move {
            if number % 2 == 0 {
                // The second request of a connection has the same time limit as the first.
                stream.write_all(GET.as_bytes()).await.unwrap();
                assert_eq!(raw::answer(&mut stream).await.unwrap().status, 200);
            }
            stream.write_all(b"GET / HTTP/1.1\r\nx-slow: ").await.unwrap();
            // Each byte arrives well within the time limit of the head.
            let mut buffer = [0; 4096];
            loop {
                tokio::select! {
                    read = stream.read(&mut buffer) => match read {
                        Ok(0) | Err(_) => break,
                        Ok(_) => {}
                    },
                    () = tokio::time::sleep(Duration::from_millis(50)) => drop(stream.write_all(b"x").await),
                }
            }
        });
    }
    honest.work().await;
    let closed = async {
        while let Some(ended) = slow.join_next().await {
            ended.unwrap();
        }
    };
    tokio::time::timeout(PATIENCE, closed).await.expect("the broker hangs up");
    assert_bounded(&broker, before, 16 * MIB);
    honest.work().await;
}

#[tokio::test]
async fn connections_without_a_further_request_are_closed() {
    let broker = start("[broker_limits]\nframe_timeout_ms = 2000\nconnections_max = 40\n");
    let mut idle = Vec::new();
    for _ in 0..20 {
        let mut stream = raw::http1(&broker).await;
        stream.write_all(GET.as_bytes()).await.unwrap();
        assert_eq!(raw::answer(&mut stream).await.unwrap().status, 200);
        idle.push(stream);
    }
    for stream in &mut idle {
        raw::hung_up(stream).await;
    }
    // The broker has released the connections, although the clients keep their ends open.
    let comes_in = async { while raw::tls_offering(&broker, &["http/1.1"]).await.is_err() {} };
    tokio::time::timeout(PATIENCE, comes_in).await.expect("there is room again");
}

#[tokio::test]
async fn large_heads_are_refused() {
    let broker = start("");
    let honest = Honest::come(&broker).await;
    let before = resident_kib(&broker);
    let one = format!("GET / HTTP/1.1\r\nx: {}", "x".repeat(64 * 1024 * 1024));
    let many = format!("GET / HTTP/1.1\r\n{}", "x: y\r\n".repeat(100_000));
    let path = format!("GET /{} HTTP/1.1\r\n", "x".repeat(1024 * 1024));
    for head in [one, many, path] {
        for _ in 0..4 {
            let mut stream = raw::http1(&broker).await;
            raw::flood(&mut stream, head.as_bytes()).await;
            let answer = raw::answer(&mut stream).await;
            assert!(answer.as_ref().is_none_or(|answer| [414, 431].contains(&answer.status)), "{answer:?}");
            raw::hung_up(&mut stream).await;
        }
    }
    honest.work().await;
    assert_bounded(&broker, before, 16 * MIB);
}

#[tokio::test]
async fn bodies_without_end_are_not_taken_in() {
    let broker = start("");
    let honest = Honest::come(&broker).await;
    let before = resident_kib(&broker);
    let megabytes = "7".repeat(8 * 1024 * 1024);
    for (framing, rest) in [
        ("content-length: 1099511627776", String::new()),
        ("content-length: 1099511627776", megabytes.clone()),
        ("content-length: 1099511627776\r\nexpect: 100-continue", String::new()),
        ("transfer-encoding: chunked", format!("800000\r\n{megabytes}")),
        ("transfer-encoding: chunked", "1\r\n7\r\n".repeat(1_000_000)),
    ] {
        let mut stream = raw::http1(&broker).await;
        let head = format!("POST / HTTP/1.1\r\nhost: x\r\n{framing}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        raw::flood(&mut stream, rest.as_bytes()).await;
        // Bytes that arrive long after the answer can reset the connection before the client reads the answer.
        if rest.is_empty() {
            assert_eq!(raw::answer(&mut stream).await.unwrap().status, 405, "{framing}");
        }
        raw::hung_up(&mut stream).await;
    }
    honest.work().await;
    assert_bounded(&broker, before, 16 * MIB);
}

#[tokio::test]
async fn an_answer_arrives_though_the_request_goes_on() {
    let broker = start("");
    for _ in 0..20 {
        let mut stream = raw::http1(&broker).await;
        stream.write_all(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 30000\r\n\r\n").await.unwrap();
        stream.flush().await.unwrap();
        for _ in 0..3 {
            drop(stream.write_all(&[7; 10_000]).await);
            drop(stream.flush().await);
        }
        assert_eq!(raw::answer(&mut stream).await.expect("it is not lost").status, 405);
    }
}

#[tokio::test]
async fn requests_with_unread_answers_end_their_connection() {
    let limits = "connections_max = 20\nkeepalive_interval_ms = 1000\nkeepalive_timeout_ms = 4000\n";
    let broker = start(&format!("[broker_limits]\n{limits}"));
    let honest = Honest::come(&broker).await;
    let before = resident_kib(&broker);
    // Enough answers to fill the socket.
    let pipeline = GET.repeat(5000);
    let mut stuck = Vec::new();
    for _ in 0..10 {
        let mut stream = raw::http1(&broker).await;
        raw::flood(&mut stream, pipeline.as_bytes()).await;
        stuck.push(stream);
    }
    honest.work().await;
    let comes_in = async { while raw::tls(&broker).await.is_err() {} };
    tokio::time::timeout(PATIENCE, comes_in).await.expect("who takes nothing is closed");
    assert_bounded(&broker, before, 16 * MIB);
}

#[tokio::test]
async fn no_connection_is_upgraded() {
    let broker = start("");
    for (request, status) in [
        (
            "GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk",
            200,
        ),
        ("GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13", 200),
        ("CONNECT other.example:443 HTTP/1.1\r\nhost: other.example:443", 404),
        ("GET http://other.example/x HTTP/1.1\r\nhost: other.example", 404),
        ("OPTIONS * HTTP/1.1\r\nhost: x", 404),
    ] {
        let mut stream = raw::http1(&broker).await;
        stream.write_all(format!("{request}\r\n\r\n").as_bytes()).await.unwrap();
        let answer = raw::answer(&mut stream).await.expect("an answer");
        assert_eq!(answer.status, status, "{request}");
        assert!(!answer.head.contains("upgrade"), "{}", answer.head);
    }
}

#[tokio::test]
async fn requests_over_the_limit_are_refused_with_the_time_to_wait() {
    let broker = start("[broker_limits]\ncalls_max = 100\n");
    let honest = Honest::come(&broker).await;
    // The streams accept no answers, and so stay open.
    let mut stuck = raw::http2_with_window(&broker, 0).await;
    let requests: Vec<u8> =
        (0..60).flat_map(|number| raw::frame(HEADERS, END_HEADERS | END_STREAM, 2 * number + 1, &get())).collect();
    raw::flood(&mut stuck, &requests).await;
    let over = async {
        loop {
            let mut stream = raw::http1(&broker).await;
            stream.write_all(GET.as_bytes()).await.unwrap();
            let answer = raw::answer(&mut stream).await.unwrap();
            if answer.status != 200 {
                return answer;
            }
        }
    };
    let refused = tokio::time::timeout(PATIENCE, over).await.expect("one is over the quota");
    assert_eq!(refused.status, 503);
    assert!(refused.head.contains("retry-after: 1\r\n"), "{}", refused.head);
    honest.work().await;
    drop(stuck);
    let is_served = async {
        let mut status = 503;
        while status != 200 {
            let mut stream = raw::http1(&broker).await;
            stream.write_all(GET.as_bytes()).await.unwrap();
            status = raw::answer(&mut stream).await.unwrap().status;
        }
    };
    tokio::time::timeout(PATIENCE, is_served).await.expect("their places are free again");
}

#[tokio::test]
async fn bodies_over_http2_are_not_taken_in_either() {
    let broker = start("");
    let honest = Honest::come(&broker).await;
    let before = resident_kib(&broker);
    let head: Vec<u8> = [(":method", "POST"), (":scheme", "https"), (":path", "/"), (":authority", "localhost")]
        .into_iter()
        .flat_map(|(name, value)| raw::header(name, value))
        .collect();
    let data = [7; 16_000];
    let mut open = Vec::new();
    for _ in 0..8 {
        let mut stream = raw::http2(&broker).await;
        let requests: Vec<u8> = (0..200)
            .flat_map(|number| {
                let mut bytes = raw::frame(HEADERS, END_HEADERS, 2 * number + 1, &head);
                (0..16).for_each(|_| bytes.extend(raw::frame(0, 0, 2 * number + 1, &data)));
                bytes
            })
            .collect();
        raw::flood(&mut stream, &requests).await;
        open.push(stream);
    }
    honest.work().await;
    assert_bounded(&broker, before, 48 * MIB);
}

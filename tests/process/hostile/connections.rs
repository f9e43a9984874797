//! Connections that never make a call.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::{
    Honest, MIB, assert_bounded,
    raw::{self, CONTINUATION, END_HEADERS, END_STREAM, HEADERS, PING, RST_STREAM, SETTINGS},
    resident_kib, start,
};
use crate::broker::PATIENCE;

#[tokio::test]
async fn connections_over_the_limit_are_closed_and_others_come_in() {
    let broker = start("[broker_limits]\nconnections_max = 100\nnetwork_percent_max = 40\n");
    let honest = Honest::come(&broker).await;
    let before = resident_kib(&broker);
    let mut open = Vec::new();
    for _ in 0..40 {
        open.push(raw::http2(&broker).await);
    }
    for _ in 0..40 {
        assert!(raw::tls(&broker).await.is_err(), "its network has its part");
    }
    honest.work().await;
    broker.agent("newcomer").await;
    assert_bounded(&broker, before, 32 * MIB);
    drop(open);
    let comes_in = async { while raw::tls(&broker).await.is_err() {} };
    tokio::time::timeout(PATIENCE, comes_in).await.expect("there is room again");
    honest.work().await;
}

#[tokio::test]
async fn strangers_who_connect_and_say_nothing_are_bounded() {
    let broker = start("[broker_limits]\nhandshakes_max = 1000\n");
    let honest = Honest::come(&broker).await;
    let before = resident_kib(&broker);
    let mut silent = Vec::new();
    for number in 0..1500 {
        let mut stream = raw::tcp(&broker).await.unwrap();
        // Half of them start a TLS handshake and stop.
        if number % 2 == 0 {
            drop(stream.write_all(&[22, 3, 1, 2, 0, 1]).await);
        }
        silent.push(stream);
    }
    let mut closed = 0;
    for stream in &mut silent[500..] {
        closed += usize::from(!matches!(
            tokio::time::timeout(PATIENCE, stream.read(&mut [0])).await.expect("it is closed at once"),
            Ok(1..)
        ));
    }
    assert_eq!(closed, 1000, "500 are half of what there is");
    honest.work().await;
    broker.agent("newcomer").await;
    assert_bounded(&broker, before, 32 * MIB);
}

#[tokio::test]
async fn connections_whose_peer_is_gone_are_found_out() {
    // The time limit is long enough for the honest agents on a busy machine.
    let broker = start("[broker_limits]\nkeepalive_interval_ms = 200\nkeepalive_timeout_ms = 4000\n");
    let honest = Honest::come(&broker).await;
    // These clients acknowledge no ping, like machines that have lost power.
    let mut gone = Vec::new();
    for _ in 0..20 {
        gone.push(raw::http2(&broker).await);
    }
    for stream in &mut gone {
        raw::hung_up(stream).await;
    }
    honest.work().await;
}

#[tokio::test]
async fn connections_that_take_nothing_are_closed() {
    let limits = "connections_max = 20\nkeepalive_interval_ms = 500\nkeepalive_timeout_ms = 4000\n";
    let broker = start(&format!("[broker_limits]\n{limits}"));
    let honest = Honest::come(&broker).await;
    let before = resident_kib(&broker);
    let mut stuck = Vec::new();
    for _ in 0..10 {
        let mut stream = raw::http2(&broker).await;
        // Enough unread answers to fill the socket.
        let list = [0x3a, 1, b'*']; // list_services
        let path = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
        let calls: Vec<u8> = (0..500).flat_map(|number| raw::call(2 * number + 1, path, None, &list)).collect();
        raw::flood(&mut stream, &calls).await;
        stuck.push(stream);
    }
    honest.work().await;
    // The broker has released the connections, although the clients keep their ends open.
    let comes_in = async { while raw::tls(&broker).await.is_err() {} };
    tokio::time::timeout(PATIENCE, comes_in).await.expect("who takes nothing is closed");
    assert_bounded(&broker, before, 48 * MIB);
}

#[tokio::test]
async fn header_floods_are_cut_off() {
    let broker = start("");
    let honest = Honest::come(&broker).await;
    let before = resident_kib(&broker);
    let part = raw::header("x-flood", &"x".repeat(16_000));
    for _ in 0..8 {
        // Endless headers: 64 MiB.
        let mut stream = raw::http2(&broker).await;
        raw::flood(&mut stream, &raw::frame(HEADERS, 0, 1, &raw::head("/x", None))).await;
        let parts: Vec<u8> = (0..256).flat_map(|_| raw::frame(CONTINUATION, 0, 1, &part)).collect();
        raw::flood_until_hung_up(&mut stream, &parts).await;
    }
    for _ in 0..8 {
        // Many small and many large headers, on many streams.
        let mut stream = raw::http2(&broker).await;
        let mut head = raw::head("/baton.v1.AgentService/ListAgents", None);
        (0..100).for_each(|number| head.extend(raw::header(&format!("x-{number}"), &"x".repeat(140))));
        let calls = (0..400).flat_map(|number| raw::frame(HEADERS, END_HEADERS | END_STREAM, 2 * number + 1, &head));
        let calls: Vec<u8> = calls.collect();
        raw::flood(&mut stream, &calls).await;
    }
    honest.work().await;
    assert_bounded(&broker, before, 48 * MIB);
}

#[tokio::test]
async fn a_rapid_reset_ends_its_connection() {
    let broker = start("");
    let honest = Honest::come(&broker).await;
    let before = resident_kib(&broker);
    let head = raw::head("/baton.v1.AgentService/ListAgents", None);
    for _ in 0..8 {
        let mut stream = raw::http2(&broker).await;
        let resets = (0..20_000).flat_map(|number| {
            let mut bytes = raw::frame(HEADERS, END_HEADERS, 2 * number + 1, &head);
            bytes.extend(raw::frame(RST_STREAM, 0, 2 * number + 1, &8_u32.to_be_bytes()));
            bytes
        });
        let resets: Vec<u8> = resets.collect();
        raw::flood_until_hung_up(&mut stream, &resets).await;
    }
    honest.work().await;
    assert_bounded(&broker, before, 48 * MIB);
}

#[tokio::test]
async fn floods_of_settings_and_pings_with_unread_answers_are_not_read() {
    let broker = start("");
    let honest = Honest::come(&broker).await;
    let before = resident_kib(&broker);
    let settings: Vec<u8> = (0..100_000).flat_map(|_| raw::frame(SETTINGS, 0, 0, &[])).collect();
    let pings: Vec<u8> = (0..100_000).flat_map(|_| raw::frame(PING, 0, 0, &[0; 8])).collect();
    let mut open = Vec::new();
    for flood in [settings, pings] {
        for _ in 0..2 {
            let mut stream = raw::http2(&broker).await;
            raw::flood(&mut stream, &flood).await;
            open.push(stream);
        }
    }
    honest.work().await;
    assert_bounded(&broker, before, 32 * MIB);
}

#[tokio::test]
async fn streams_beyond_the_limit_of_a_connection_are_refused() {
    let broker = start("[broker_limits]\ncalls_per_connection_max = 100\n");
    let honest = Honest::come(&broker).await;
    let before = resident_kib(&broker);
    let head = raw::head("/baton.v1.AgentService/ListAgents", None);
    let mut open = Vec::new();
    for _ in 0..16 {
        let mut stream = raw::http2(&broker).await;
        // Calls whose messages never arrive.
        let calls = (0..5000).flat_map(|number| raw::frame(HEADERS, END_HEADERS, 2 * number + 1, &head));
        let calls: Vec<u8> = calls.collect();
        raw::flood(&mut stream, &calls).await;
        open.push(stream);
    }
    honest.work().await;
    assert_bounded(&broker, before, 48 * MIB);
    drop(open);
    honest.work().await;
}

//! Authenticated agents that request much and read nothing.

use baton::proto::v1::{self, MessageType, connect_request::Request};
use baton_client::About;
use prost::Message as _;
use tokio::{io::AsyncWriteExt as _, net::TcpStream};
use tokio_rustls::client::TlsStream;
use tokio_stream::StreamExt as _;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};
use tonic_types::StatusExt as _;

use super::{
    Honest, MIB, assert_bounded,
    raw::{self, END_HEADERS, HEADERS},
    resident_kib, start,
};
use crate::broker::{Broker, PATIENCE, a_request, composer, identity, new_task};

/// Registers the attacker's agent, and returns its token.
async fn token(broker: &Broker) -> String {
    drop(broker.agent("attacker").await);
    broker.client().await.prove(&identity("attacker")).await.unwrap()
}

/// Opens a session and sends these frames. Reads no answer.
async fn session(broker: &Broker, token: &str, frames: &[v1::ConnectRequest]) -> TlsStream<TcpStream> {
    let mut stream = raw::http2(broker).await;
    let head = raw::head("/baton.v1.BrokerService/Connect", Some(token));
    let mut bytes = raw::frame(HEADERS, END_HEADERS, 1, &head);
    let messages: Vec<u8> = frames.iter().flat_map(|frame| raw::grpc(&frame.encode_to_vec())).collect();
    messages.chunks(16_000).for_each(|chunk| bytes.extend(raw::frame(0, 0, 1, chunk)));
    stream.write_all(&bytes).await.unwrap();
    stream.flush().await.unwrap();
    stream
}

fn credit(max_outstanding: u32) -> v1::ConnectRequest {
    v1::ConnectRequest { request_id: 1, request: Some(Request::Credit(v1::Credit { max_outstanding })) }
}

#[tokio::test]
async fn sessions_that_read_no_answer_are_not_read_from() {
    let broker = start("");
    let honest = Honest::come(&broker).await;
    let token = token(&broker).await;
    let before = resident_kib(&broker);
    // The broker answers each with an error of several hundred bytes.
    let wrong = v1::ConnectRequest { request_id: 7, request: Some(Request::Acknowledgement(Default::default())) };
    let frames = vec![wrong; 25_000];
    let mut open = Vec::new();
    for _ in 0..32 {
        open.push(session(&broker, &token, &frames).await);
    }
    honest.work().await;
    assert_bounded(&broker, before, 24 * MIB);
    drop(open);
    honest.work().await;
}

#[tokio::test]
async fn unread_deliveries_are_not_held_in_memory() {
    let broker = start("");
    let honest = Honest::come(&broker).await;
    let token = token(&broker).await;
    let data_json = serde_json::json!({"x": "x".repeat(1000 * 1024)}).to_string();
    let text = v1::Info { data_json, ..Default::default() };
    for _ in 0..100 {
        honest.a.send("attacker", MessageType::Info, &About::default(), &text).await.unwrap();
    }
    let before = resident_kib(&broker);
    let mut open = Vec::new();
    for _ in 0..2 {
        open.push(session(&broker, &token, &[credit(4096)]).await); // without the limit each would hold 100 MB
    }
    honest.work().await;
    assert_bounded(&broker, before, 24 * MIB);
    drop(open);
    // All mail is still there for a session that reads it.
    let attacker = broker.agent_with("attacker", "", 100).await;
    for _ in 0..100 {
        attacker.next().await.unwrap();
    }
    honest.work().await;
}

/// A tonic channel whose streams have small receive windows.
async fn slow_channel(broker: &Broker) -> tonic::transport::Channel {
    let tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(std::fs::read(broker.ca()).unwrap()))
        .domain_name("localhost");
    let endpoint = Endpoint::from_shared(format!("https://{}", broker.address)).unwrap();
    let endpoint = endpoint.local_address(Some(raw::ATTACKER.into())).initial_stream_window_size(1000);
    endpoint.tls_config(tls).unwrap().connect().await.unwrap()
}

#[tokio::test]
async fn watchers_that_read_nothing_are_told_to_begin_again_or_read_from_the_store() {
    const WATCHERS: u64 = 300;
    const STEPS: u64 = 500;
    /// A stream with a closed window holds some 100 KiB, for HTTP/2 and one answer, whatever the number of steps.
    const MORE_KIB_MAX: u64 = 2 * WATCHERS * 160;
    let broker = start("");
    let honest = Honest::come(&broker).await;
    let task = new_task();
    // Longer than a busy machine needs for all steps.
    let hour = Some(prost_types::Duration { seconds: 3600, nanos: 0 });
    let timeouts = Some(v1::HandoffTimeouts { accept: hour, whole: hour, ..Default::default() });
    let request = v1::HandoffRequest { timeouts, ..a_request() };
    let handoff_id = honest.a.request("honest-b", &task, 1, &request).await.unwrap().handoff_id;
    honest.b.take().await.unwrap();
    let channel = slow_channel(&broker).await;
    let mut handoffs = v1::handoff_service_client::HandoffServiceClient::new(channel.clone());
    let mut tasks = v1::task_service_client::TaskServiceClient::new(channel);
    let (mut of_handoff, mut of_task) = (Vec::new(), Vec::new());
    for _ in 0..WATCHERS {
        let request = v1::WatchHandoffRequest { handoff_id: handoff_id.clone() };
        of_handoff.push(handoffs.watch_handoff(request).await.unwrap().into_inner());
        let request = v1::WatchTaskRequest { task_id: task.clone(), ..Default::default() };
        of_task.push(tasks.watch_task(request).await.unwrap().into_inner());
    }
    let before = resident_kib(&broker);
    let busy = v1::TaskStatusUpdate { status: v1::TaskStatus::InProgress.into(), ..Default::default() };
    let about = About::handoff(&task, 1, &handoff_id);
    for _ in 0..STEPS {
        honest.b.report(&about, &busy).await.unwrap();
    }
    assert_bounded(&broker, before, MORE_KIB_MAX);
    let read = async {
        let mut updates = of_handoff.remove(0);
        let refusal = loop {
            match updates.next().await.expect("the handoff is not final: the end has a reason") {
                Ok(_) => {}
                Err(status) => break status,
            }
        };
        assert_eq!(refusal.get_error_details().error_info().unwrap().reason, "LIMIT_EXCEEDED");
        let (mut last, mut bytes) = (0, 0);
        while last < STEPS {
            let response = of_task[0].next().await.unwrap().unwrap();
            bytes += response.encoded_len() as u64;
            if let v1::watch_task_response::Update::Entry(entry) = response.update.unwrap() {
                let number = entry.entry.unwrap().number;
                assert_eq!(number, last + 1, "nothing is left out");
                last = number;
            }
        }
        println!("a watcher of the task reads {bytes} bytes");
        assert!(WATCHERS * bytes / 1024 > MORE_KIB_MAX, "answers that wait for their readers would be over the bound");
    };
    tokio::time::timeout(PATIENCE, read).await.expect("whoever reads gets on");
    drop((of_handoff, of_task));
    honest.a.send("honest-b", MessageType::Info, &About::default(), &v1::Info::default()).await.unwrap();
}

#[tokio::test]
async fn watchers_of_large_entries_that_read_nothing_hold_one_each() {
    const WATCHERS: u64 = 64;
    const ENTRIES: u64 = 40;
    const ENTRY_BYTES: usize = 120_000;
    let broker = start("");
    let honest = Honest::come(&broker).await;
    let task = new_task();
    honest.a.request("honest-b", &task, 1, &a_request()).await.unwrap();
    let workspace_id = format!("task:{task}");
    let json = format!("\"{}\"", "x".repeat(ENTRY_BYTES));
    for _ in 0..ENTRIES {
        let entry = Some(v1::workspace_append::Entry::Json(json.clone()));
        let (workspace_id, topic) = (workspace_id.clone(), "t".to_owned());
        let append = v1::WorkspaceAppend { workspace_id, topic, entry, ..Default::default() };
        let envelope = composer("honest-a").encode("", MessageType::WorkspaceAppend, &About::default(), &append);
        let client = broker.client_of("honest-a").await;
        client.answer(client.workspaces().append_entry(v1::AppendEntryRequest { envelope }).await).unwrap();
    }
    let token = broker.client().await.prove(&identity("honest-a")).await.unwrap();
    let mut workspaces = v1::workspace_service_client::WorkspaceServiceClient::new(slow_channel(&broker).await);
    let before = resident_kib(&broker);
    let mut open = Vec::new();
    for _ in 0..WATCHERS {
        let watch = v1::WatchEntriesRequest { workspace_id: workspace_id.clone(), ..Default::default() };
        let mut request = tonic::Request::new(watch);
        request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
        open.push(workspaces.watch_entries(request).await.unwrap().into_inner());
    }
    // While one of them reads, the broker has time to read for the others.
    let read = async {
        let mut numbers = Vec::new();
        while numbers.len() < ENTRIES as usize {
            let response = open[0].next().await.unwrap().unwrap();
            if let v1::watch_entries_response::Update::Entry(entry) = response.update.unwrap() {
                numbers.push(entry.sequence);
            }
        }
        assert_eq!(numbers, (1..=ENTRIES).collect::<Vec<_>>(), "nothing is left out");
    };
    tokio::time::timeout(PATIENCE, read).await.expect("a watcher that reads gets on");
    // Each holds one entry as an answer. A page of a watcher was 2 MB, and 16 answers waited behind it.
    assert_bounded(&broker, before, 96 * MIB);
    honest.work().await;
}

#[tokio::test]
async fn unread_answers_hold_no_more_than_their_quota() {
    let broker = start("[broker_limits]\nframe_bytes_max = 33554432\n");
    let honest = Honest::come(&broker).await;
    let token = token(&broker).await;
    let attacker = broker.agent("attacker").await;
    let task = new_task();
    attacker.request("honest-b", &task, 1, &a_request()).await.unwrap();
    // At once: a busy machine needs longer than the lease for what follows.
    honest.b.take().await.unwrap();
    let details = "x".repeat(8000);
    let status = v1::TaskStatus::InProgress.into();
    for _ in 0..200 {
        let busy = v1::TaskStatusUpdate { status, details: details.clone(), ..Default::default() };
        attacker.report(&About::task(&task, 1), &busy).await.unwrap();
    }
    let before = resident_kib(&broker);
    // 400 answers of 2 MB.
    let page =
        v1::GetCustodyLogRequest { task_id: task, page_size: 200, include_envelopes: true, ..Default::default() };
    let page = page.encode_to_vec();
    let mut open = Vec::new();
    for _ in 0..4 {
        let mut stream = raw::http2(&broker).await;
        let path = "/baton.v1.TaskService/GetCustodyLog";
        let calls: Vec<u8> = (0..100).flat_map(|number| raw::call(2 * number + 1, path, Some(&token), &page)).collect();
        raw::flood(&mut stream, &calls).await;
        open.push(stream);
    }
    honest.a.send("honest-b", MessageType::Info, &About::default(), &v1::Info::default()).await.unwrap();
    assert_bounded(&broker, before, 96 * MIB);
    drop(open);
    honest.a.send("honest-b", MessageType::Info, &About::default(), &v1::Info::default()).await.unwrap();
}

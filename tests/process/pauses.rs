//! A broker that stops reading for a while, as on a busy machine: the agents' frames wait, and no session ends.

use std::{collections::HashSet, process::Command, sync::Arc};

use baton::proto::v1::{
    self, MessageType, acknowledgement::Outcome, connect_request::Request, connect_response::Response,
};
use baton_client::{About, Client, session::Agent};
use prost::Message as _;
use tokio::sync::mpsc;
use tokio_stream::{StreamExt as _, wrappers::ReceiverStream};
use tonic::Streaming;

use crate::broker::{Broker, card, eventually, identity};

/// The framing of HTTP/2 and gRPC before each message of a stream, in bytes.
const PREFIX_BYTES: usize = 9 + 5;

/// Starts a broker that takes each ack, however long a busy machine needs for all deliveries before it.
fn start() -> Broker {
    Broker::serve("enrollment = \"open\"", "[delivery]\nack_wait_ms = 600000\n")
}

/// A session as bare frames, so that a test can send without waiting for answers.
struct Frames {
    requests: mpsc::Sender<v1::ConnectRequest>,
    answers: Streaming<v1::ConnectResponse>,
}

impl Frames {
    /// Registers the agent, and opens its session on the client's connection.
    async fn open(client: &Client, name: &str) -> Self {
        let request = v1::RegisterAgentRequest { card: Some(card(name, "")), ..Default::default() };
        client.agents().register_agent(request).await.unwrap();
        let client = client.with_token(&client.prove(&identity(name)).await.unwrap()).unwrap();
        let (requests, receiver) = mpsc::channel(8192);
        let answers = client.messages().connect(ReceiverStream::new(receiver)).await.unwrap().into_inner();
        let mut session = Self { requests, answers };
        assert!(matches!(session.next().await, Response::Welcome(_)));
        session
    }

    async fn next(&mut self) -> Response {
        self.answers.next().await.expect("the session goes on").expect("the session goes on").response.unwrap()
    }

    async fn send(&self, request_id: u64, request: Request) {
        self.requests.send(v1::ConnectRequest { request_id, request: Some(request) }).await.unwrap();
    }

    /// Requests a credit. Returns the granted credit.
    async fn credit(&mut self, max_outstanding: u32) -> u32 {
        self.send(1, Request::Credit(v1::Credit { max_outstanding })).await;
        match self.next().await {
            Response::Credited(credited) => credited.max_outstanding,
            other => panic!("expected a credit, not {other:?}"),
        }
    }

    /// Waits for this number of deliveries. Returns their ids.
    async fn deliveries(&mut self, count: usize) -> Vec<String> {
        let mut ids = Vec::new();
        while ids.len() < count {
            match self.next().await {
                Response::Delivery(delivery) => ids.push(delivery.delivery_id),
                other => panic!("expected a delivery, not {other:?}"),
            }
        }
        ids
    }

    /// Sends an ack for each delivery without waiting for answers. Returns a lower bound of the bytes sent.
    async fn ack(&self, deliveries: &[String]) -> usize {
        let mut bytes = 0;
        for (number, delivery_id) in (100..).zip(deliveries.iter().cloned()) {
            let acknowledgement = v1::Acknowledgement { delivery_id, outcome: Some(Outcome::Ack(v1::Ack {})) };
            let request = Some(Request::Acknowledgement(acknowledgement));
            let frame = v1::ConnectRequest { request_id: number, request };
            bytes += PREFIX_BYTES + frame.encoded_len();
            self.requests.send(frame).await.unwrap();
        }
        bytes
    }

    async fn all_are_acknowledged(&mut self, deliveries: Vec<String>) {
        let mut left: HashSet<String> = deliveries.into_iter().collect();
        while !left.is_empty() {
            match self.next().await {
                Response::Acknowledged(acknowledged) => assert!(left.remove(&acknowledged.delivery_id)),
                other => panic!("expected an answer to an ack, not {other:?}"),
            }
        }
    }
}

/// Stops the broker's process by a signal until this is dropped.
struct Pause<'a> {
    broker: &'a Broker,
    unread_before: usize,
}

impl<'a> Pause<'a> {
    fn of(broker: &'a Broker) -> Self {
        signal(broker, "-STOP");
        Self { broker, unread_before: unread_bytes(broker) }
    }

    /// Waits until this number of bytes are unread in the sockets of both ends, or until the sockets accept no more.
    async fn until_sent(&self, bytes: usize) {
        let (mut last, mut unchanged) = (0, 0);
        let is_sent = async || {
            let unread = unread_bytes(self.broker);
            unchanged = if unread == last { unchanged + 1 } else { 0 };
            last = unread;
            unread >= self.unread_before + bytes || (unread > self.unread_before && unchanged >= 50)
        };
        eventually("what is sent reaches the sockets", is_sent).await;
    }
}

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        signal(self.broker, "-CONT");
    }
}

fn signal(broker: &Broker, name: &str) {
    assert!(Command::new("kill").args([name, &broker.pid().to_string()]).status().unwrap().success());
}

/// The bytes sent by clients that the broker has not read, as Linux reports them.
fn unread_bytes(broker: &Broker) -> usize {
    let port = format!(":{:04X}", broker.address.rsplit(':').next().unwrap().parse::<u16>().unwrap());
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let of_socket = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (to_send, to_read) = fields[4].split_once(':').unwrap();
        let bytes = |hex| usize::from_str_radix(hex, 16).unwrap();
        match (fields[1].ends_with(&port), fields[2].ends_with(&port)) {
            (true, _) => bytes(to_read),
            (_, true) => bytes(to_send),
            _ => 0,
        }
    };
    table.lines().skip(1).map(of_socket).sum()
}

async fn send_letters(from: &Arc<Agent>, to: &str, count: usize) {
    let mut under_way = tokio::task::JoinSet::new();
    for _ in 0..count {
        let (from, to) = (from.clone(), to.to_owned());
        under_way
            .spawn(async move { from.send(&to, MessageType::Info, &About::default(), &v1::Info::default()).await });
    }
    while let Some(sent) = under_way.join_next().await {
        sent.unwrap().unwrap();
    }
}

#[tokio::test]
async fn forty_agents_of_one_connection_ack_all_they_have_while_the_broker_does_not_read() {
    let broker = start();
    let sender = Arc::new(broker.agent("sender").await);
    let client = broker.client().await;
    let mut sessions = Vec::new();
    for number in 0..40 {
        let name = format!("agent-{number}");
        let mut session = Frames::open(&client, &name).await;
        assert_eq!(session.credit(16).await, 16);
        send_letters(&sender, &name, 16).await;
        let deliveries = session.deliveries(16).await;
        sessions.push((session, deliveries));
    }
    let pause = Pause::of(&broker);
    let mut bytes = 0;
    for (session, deliveries) in &sessions {
        bytes += session.ack(deliveries).await;
    }
    pause.until_sent(bytes).await;
    drop(pause);
    for (session, deliveries) in &mut sessions {
        session.all_are_acknowledged(std::mem::take(deliveries)).await;
    }
}

#[tokio::test]
async fn a_session_acks_the_largest_credit_at_once_while_the_broker_does_not_read() {
    const LARGEST: u16 = 4096;
    let broker = start();
    let sender = Arc::new(broker.agent("sender").await);
    let mut session = Frames::open(&broker.client().await, "agent").await;
    assert_eq!(session.credit(LARGEST.into()).await, u32::from(LARGEST));
    send_letters(&sender, "agent", LARGEST.into()).await;
    let deliveries = session.deliveries(LARGEST.into()).await;
    let pause = Pause::of(&broker);
    let bytes = session.ack(&deliveries).await;
    pause.until_sent(bytes).await;
    drop(pause);
    session.all_are_acknowledged(deliveries).await;
}

#[tokio::test]
async fn calls_that_are_given_up_while_the_broker_does_not_read_end_no_session() {
    const CALLS: usize = 200;
    let broker = start();
    let client = broker.client().await;
    let mut session = Frames::open(&client, "agent").await;
    let pause = Pause::of(&broker);
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..CALLS {
        let mut agents = client.agents();
        calls.spawn(async move { agents.get_agent(v1::GetAgentRequest { agent_id: "agent".into() }).await.map(drop) });
    }
    // A call has a head and a message of 7 bytes.
    let calls_bytes = CALLS * (9 + PREFIX_BYTES + 7);
    pause.until_sent(calls_bytes).await;
    calls.shutdown().await;
    pause.until_sent(calls_bytes + CALLS * 13).await;
    drop(pause);
    assert_eq!(session.credit(1).await, 1);
}

#[tokio::test]
async fn sessions_of_one_connection_share_a_credit_and_are_told_what_they_got() {
    let broker = start();
    let (client, other) = (broker.client().await, broker.client().await);
    let mut first = Frames::open(&client, "first").await;
    let mut second = Frames::open(&client, "second").await;
    let mut third = Frames::open(&client, "third").await;
    let mut elsewhere = Frames::open(&other, "elsewhere").await;
    assert_eq!(first.credit(4096).await, 4096);
    assert_eq!(second.credit(4096).await, 2048, "what is left of 6144");
    assert_eq!(third.credit(4096).await, 1, "so that it goes on");
    assert_eq!(elsewhere.credit(4096).await, 4096, "on a connection of its own");
    assert_eq!(first.credit(96).await, 96);
    assert_eq!(third.credit(4096).await, 4000, "what another has given back");
    // The granted credit is in force.
    let sender = Arc::new(broker.agent("sender").await);
    send_letters(&sender, "third", 1).await;
    assert_eq!(third.deliveries(1).await.len(), 1);
}

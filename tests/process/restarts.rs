//! A broker that restarts in order under load: it announces the stop, loses nothing, and its clients continue; see
//! `load`.

use std::time::Duration;

use baton::proto::v1::{self, connect_response::Response};
use tokio_stream::{StreamExt as _, wrappers::ReceiverStream};
use tonic::{Status, Streaming, transport::Channel};
use tonic_health::pb::{
    HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus, health_client::HealthClient,
};

use crate::{
    broker::{Broker, PATIENCE, a_request, card, identity, new_task},
    load::Load,
};

const SEED: u64 = 20_260_102;
const RESTARTS: u32 = 10;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarts_in_order_lose_nothing_and_are_announced() {
    let mut broker = Broker::start();
    let mut load = Load::on(&broker, SEED).await;
    let mut health_first = 0;
    for restart in 1..=RESTARTS {
        load.begin_chapter(format!("after {} restarts", restart - 1));
        load.is_served_by(&broker);
        load.audit(&broker).await;
        load.goes_on(50).await;
        let witness = Witness::on(&broker).await;
        broker.ask_to_stop();
        let seen = tokio::time::timeout(PATIENCE, witness.sees_the_stop()).await;
        health_first += u32::from(seen.expect("a broker that is to stop says so"));
        let folder = broker.folder.clone();
        broker.ends_in_order().await;
        broker = load.restart(|| Broker::start_in(folder, &[]));
    }
    load.drain(broker).await;
    println!("{RESTARTS} restarts in order, in {health_first} of them health was the first to say so, {load}");
}

/// A client that observes the announcements of a stopping broker.
struct Witness {
    session: Streaming<v1::ConnectResponse>,
    _frames: tokio::sync::mpsc::Sender<v1::ConnectRequest>,
    health: HealthClient<Channel>,
    watch: Streaming<HealthCheckResponse>,
}

impl Witness {
    async fn on(broker: &Broker) -> Self {
        let client = broker.client().await;
        let card = Some(card("witness", ""));
        client
            .answer(client.agents().register_agent(v1::RegisterAgentRequest { card, ..Default::default() }).await)
            .unwrap();
        let client = client.with_token(&client.prove(&identity("witness")).await.unwrap()).unwrap();
        let (frames, receiver) = tokio::sync::mpsc::channel(1);
        let mut session = client.answer(client.messages().connect(ReceiverStream::new(receiver)).await).unwrap();
        assert!(matches!(response(session.next().await), Response::Welcome(_)));
        let mut health = HealthClient::new(broker.channel().await);
        let mut watch = health.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
        assert_eq!(status(watch.next().await), ServingStatus::Serving);
        Self { session, _frames: frames, health, watch }
    }

    /// Waits for both announcements. Returns whether health came first; the streams are independent, so the order may
    /// vary.
    async fn sees_the_stop(mut self) -> bool {
        let health_first = tokio::select! {
            biased;
            changed = self.watch.next() => {
                assert_eq!(status(changed), ServingStatus::NotServing);
                check_go_away(self.session.next().await);
                true
            }
            last = self.session.next() => {
                check_go_away(last);
                self.check_health().await;
                assert_eq!(status(self.watch.next().await), ServingStatus::NotServing);
                false
            }
        };
        self.check_health().await;
        assert!(self.session.next().await.is_none(), "after the last word the session ends, and in order");
        health_first
    }

    /// After the first announcement, the health check must not report SERVING.
    async fn check_health(&mut self) {
        // A closed connection gives no answer, which also keeps new clients away.
        if let Ok(answer) = self.health.check(HealthCheckRequest::default()).await {
            assert_eq!(answer.into_inner().status(), ServingStatus::NotServing);
        }
    }
}

fn response(frame: Option<Result<v1::ConnectResponse, Status>>) -> Response {
    frame.expect("the session goes on").unwrap().response.expect("a frame says something")
}

fn status(health: Option<Result<HealthCheckResponse, Status>>) -> ServingStatus {
    health.expect("health can be watched").unwrap().status()
}

fn check_go_away(last: Option<Result<v1::ConnectResponse, Status>>) {
    match response(last) {
        Response::GoAway(go_away) => {
            let wait = go_away.reconnect_after.expect("it says when to come back");
            assert!(Duration::try_from(wait).unwrap() > Duration::ZERO, "{wait:?}");
        }
        other => panic!("a session is told before it ends, not {other:?}"),
    }
}

#[tokio::test]
async fn a_stop_tells_those_who_watch_and_does_not_wait_for_them() {
    let broker = Broker::start();
    let a = broker.agent("a").await;
    broker.agent("b").await;
    let handoff_id = a.request("b", &new_task(), 1, &a_request()).await.unwrap().handoff_id;
    let client = broker.client().await;
    let updates = client.handoffs().watch_handoff(v1::WatchHandoffRequest { handoff_id }).await;
    let mut updates = client.answer(updates).unwrap();
    assert!(updates.next().await.unwrap().is_ok());
    let mut health = HealthClient::new(broker.channel().await);
    let mut watch = health.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    assert_eq!(status(watch.next().await), ServingStatus::Serving);
    broker.ask_to_stop();
    let told = async {
        let last = updates.next().await.expect("a watcher is told why it ends").unwrap_err();
        assert_eq!(client.answer::<()>(Err(last)).unwrap_err().reason(), Some("SHUTTING_DOWN"));
        assert_eq!(status(watch.next().await), ServingStatus::NotServing);
        assert!(watch.next().await.is_none_or(|end| end.is_err()));
    };
    tokio::time::timeout(PATIENCE, told).await.expect("a watcher is told of the stop");
    let folder = broker.folder.clone();
    broker.ends_in_order().await;
    // The broker logs the connections that it closes because they have not ended by themselves.
    assert!(!std::fs::read_to_string(folder.path().join("log")).unwrap().contains("cut off"), "the stop waits");
}

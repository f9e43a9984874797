//! Sessions over the wire: answers, credit, redelivery, watching, going away.

use std::time::Duration;

use baton::{
    proto::v1::{self, MessageType},
    time::{Clock as _, SystemClock},
    wire::operations::SERVICES,
};
use baton_client::{About, ClientError, context_of};
use tokio_stream::StreamExt as _;

use tokio_stream::wrappers::ReceiverStream;
use tonic_types::StatusExt as _;

use crate::broker::{Broker, a_request, card, composer, eventually, identity, new_task};

fn info(text: &str) -> v1::Info {
    v1::Info { text: text.into(), ..Default::default() }
}

#[tokio::test]
async fn mail_of_a_session_that_ends_without_an_ack_comes_again_on_the_next() {
    let broker = Broker::start();
    let a = broker.agent("a").await;
    let b = broker.agent("b").await;
    a.send("b", MessageType::Info, &About::default(), &info("one")).await.unwrap();
    assert_eq!(b.next().await.unwrap().delivery.attempt, 1);
    drop(b);
    let b = broker.agent("b").await;
    let again = b.next().await.unwrap();
    assert_eq!((again.delivery.attempt, again.payload::<v1::Info>().text), (2, "one".into()));
    b.session.ack(&again.delivery.delivery_id).await.unwrap();
    drop(b);
    a.send("b", MessageType::Info, &About::default(), &info("two")).await.unwrap();
    let b = broker.agent("b").await;
    assert_eq!(b.next().await.unwrap().payload::<v1::Info>().text, "two");
}

#[tokio::test]
async fn a_session_gets_no_more_than_its_credit() {
    let broker = Broker::start();
    let a = broker.agent("a").await;
    let b = broker.agent_with("b", "", 1).await;
    for text in ["one", "two"] {
        a.send("b", MessageType::Info, &About::default(), &info(text)).await.unwrap();
    }
    let first = b.next().await.unwrap();
    // The broker answers in order, so a further delivery would arrive ahead of this answer.
    b.session.heartbeat(v1::Heartbeat::default()).await.unwrap();
    assert!(tokio::time::timeout(Duration::ZERO, b.next()).await.is_err(), "the second one waits");
    b.session.ack(&first.delivery.delivery_id).await.unwrap();
    assert_eq!(b.next().await.unwrap().payload::<v1::Info>().text, "two");
}

#[tokio::test]
async fn nacked_mail_comes_again_and_an_extension_says_until_when() {
    let broker = Broker::start();
    let a = broker.agent("a").await;
    let b = broker.agent("b").await;
    a.send("b", MessageType::Info, &About::default(), &info("one")).await.unwrap();
    let first = b.next().await.unwrap();
    b.session.extend(&first.delivery.delivery_id, Duration::from_secs(60)).await.unwrap();
    let retry_after = Some(prost_types::Duration::default());
    let nack = v1::Nack { cause: v1::NackCause::Failure.into(), retry_after, ..Default::default() };
    b.session.nack(&first.delivery.delivery_id, nack).await.unwrap();
    let again = b.next().await.unwrap();
    assert_eq!(again.delivery.attempt, 2);
    let refused = b.session.ack(&first.delivery.delivery_id).await.unwrap_err();
    assert_eq!(refused.reason(), Some("DELIVERY_UNKNOWN"), "the first hand-out is over");
    b.session.ack(&again.delivery.delivery_id).await.unwrap();
}

#[tokio::test]
async fn simple_calls_do_the_same_as_a_session() {
    let broker = Broker::start();
    let client = broker.client().await;
    for name in ["a", "b"] {
        let card = Some(card(name, ""));
        client.agents().register_agent(v1::RegisterAgentRequest { card, ..Default::default() }).await.unwrap();
    }
    let envelope = composer("a").encode("b", MessageType::Info, &About::default(), &info("one"));
    let receipt = client
        .messages()
        .send(v1::SendRequest { envelope: envelope.clone(), ..Default::default() })
        .await
        .unwrap()
        .into_inner();
    let b = client.with_token(&client.prove(&identity("b")).await.unwrap()).unwrap();
    let request = v1::ReceiveRequest { max_deliveries: 1, ..Default::default() };
    let mut deliveries = b.messages().receive(request).await.unwrap().into_inner();
    let delivery = deliveries.next().await.unwrap().unwrap().delivery.unwrap();
    assert_eq!(delivery.envelope, envelope, "byte for byte");
    assert_eq!(delivery.sequence, receipt.receipt.unwrap().sequence);
    assert!(deliveries.next().await.is_none(), "the stream ends by itself");
    let outcome = Some(v1::acknowledgement::Outcome::Ack(v1::Ack {}));
    let acknowledgement = Some(v1::Acknowledgement { delivery_id: delivery.delivery_id, outcome });
    b.messages().ack(v1::AckRequest { acknowledgement }).await.unwrap();
}

#[tokio::test]
async fn a_watcher_sees_each_step_and_then_the_end() {
    let broker = Broker::start();
    let (a, b) = (broker.agent("a").await, broker.agent("b").await);
    let handoff_id = a.request("b", &new_task(), 1, &a_request()).await.unwrap().handoff_id;
    let request = v1::WatchHandoffRequest { handoff_id };
    let updates = broker.client().await.handoffs().watch_handoff(request).await.unwrap().into_inner();
    let request = b.take().await.unwrap();
    b.accept(&request).await.unwrap();
    let accept = a.take().await.unwrap();
    a.send_context(&accept, &context_of([("goals", "[]".to_owned())])).await.unwrap();
    let context = b.take().await.unwrap();
    b.complete(&context).await.unwrap();
    let updates: Vec<_> = updates.map(|update| update.unwrap().handoff.unwrap().state()).collect().await;
    use v1::HandoffState::{Accepted, Completed, ContextSent, Deciding, Requested};
    assert_eq!(updates, [Requested, Deciding, Accepted, ContextSent, ContextSent, Completed]);
}

#[tokio::test]
async fn lists_come_in_pages_and_a_token_is_only_good_for_its_list() {
    let broker = Broker::start();
    let a = broker.agent("a").await;
    broker.agent("b").await;
    let mut sent = Vec::new();
    for _ in 0..5 {
        sent.insert(0, a.request("b", &new_task(), 1, &a_request()).await.unwrap().handoff_id);
    }
    let client = broker.client().await;
    let mut request = v1::ListHandoffsRequest { page_size: 2, agent_id: "a".into(), ..Default::default() };
    let mut listed = Vec::new();
    loop {
        let page = client.handoffs().list_handoffs(request.clone()).await.unwrap().into_inner();
        listed.extend(page.handoffs.into_iter().map(|handoff| handoff.handoff_id));
        if page.next_page_token.is_empty() {
            break;
        }
        request.page_token = page.next_page_token;
    }
    assert_eq!(listed, sent, "newest first, each once");
    request.agent_id = "b".into();
    let refused = client.answer(client.handoffs().list_handoffs(request).await).unwrap_err();
    assert_eq!(refused.reason(), Some("PAGE_TOKEN_INVALID"));
    let tasks = client.tasks().list_tasks(v1::ListTasksRequest::default()).await.unwrap().into_inner().tasks;
    assert_eq!(tasks.len(), 5);
}

#[tokio::test]
async fn a_list_of_handoffs_is_filtered_by_side_type_and_deadline() {
    let broker = Broker::start();
    let (a, b) = (broker.agent("a").await, broker.agent("b").await);
    let of_type = |task_type: &str| v1::HandoffRequest { task_type: task_type.to_owned(), ..a_request() };
    let to_b = a.request("b", &new_task(), 1, &of_type("x")).await.unwrap().handoff_id;
    let to_a = b.request("a", &new_task(), 1, &of_type("y")).await.unwrap().handoff_id;
    let rejected = b.take().await.unwrap();
    b.reject(&rejected, &v1::HandoffReject::default()).await.unwrap();
    let client = broker.client().await;
    let all = v1::ListHandoffsRequest::default;
    let in_seconds = |span| Some(SystemClock.now().plus(Duration::from_secs(span)).into());
    let cases = [
        (v1::ListHandoffsRequest { sender_id: "a".into(), ..all() }, vec![&to_b]),
        (v1::ListHandoffsRequest { candidate_id: "a".into(), ..all() }, vec![&to_a]),
        (v1::ListHandoffsRequest { sender_id: "a".into(), candidate_id: "a".into(), ..all() }, vec![]),
        (v1::ListHandoffsRequest { task_type: "y".into(), ..all() }, vec![&to_a]),
        (v1::ListHandoffsRequest { task_type: "z".into(), ..all() }, vec![]),
        (v1::ListHandoffsRequest { open_only: true, ..all() }, vec![&to_a]),
        (v1::ListHandoffsRequest { deadline_before: in_seconds(3600), ..all() }, vec![&to_a]),
        (v1::ListHandoffsRequest { deadline_before: in_seconds(0), ..all() }, vec![]),
    ];
    for (request, expected) in cases {
        let listed = client.handoffs().list_handoffs(request.clone()).await.unwrap().into_inner().handoffs;
        let listed: Vec<&String> = listed.iter().map(|handoff| &handoff.handoff_id).collect();
        assert_eq!(listed, expected, "{request:?}");
    }
    let time = Some(prost_types::Timestamp { seconds: -1, nanos: 0 });
    let wrong = v1::ListHandoffsRequest { deadline_before: time, sender_id: "?".into(), ..all() };
    let refused = client.answer(client.handoffs().list_handoffs(wrong).await).unwrap_err();
    assert_eq!(refused.reason(), Some("FIELD_INVALID"));
}

#[tokio::test]
async fn a_broker_that_stops_tells_its_sessions_and_ends_in_order() {
    let broker = Broker::start();
    let a = broker.agent("a").await;
    broker.ask_to_stop();
    match a.next().await {
        Err(ClientError::SessionEnded(why)) => assert_eq!(why, "the broker is stopping"),
        other => panic!("expected the end of the session, not {other:?}"),
    }
    drop(a);
    assert_eq!(broker.wait().code(), Some(0));
}

#[tokio::test]
async fn a_message_over_four_mib_is_refused_for_good_and_the_welcome_says_the_limits() {
    use v1::{connect_request::Request, connect_response::Response};
    let broker = Broker::start();
    drop(broker.agent("a").await);
    let client = broker.client_of("a").await;
    // The client library would refuse to send the envelope.
    let mut messages = client.messages().max_encoding_message_size(usize::MAX);
    let envelope = prost::bytes::Bytes::from(vec![0; 5 * 1024 * 1024]);
    let of_call =
        messages.send(v1::SendRequest { envelope: envelope.clone(), ..Default::default() }).await.unwrap_err();
    let (frames, receiver) = tokio::sync::mpsc::channel(1);
    let mut answers = messages.connect(ReceiverStream::new(receiver)).await.unwrap().into_inner();
    match answers.next().await.unwrap().unwrap().response {
        Some(Response::Welcome(welcome)) => {
            assert_eq!((welcome.payload_bytes_max, welcome.frame_bytes_max), (1024 * 1024, 4 * 1024 * 1024));
        }
        other => panic!("expected the welcome, not {other:?}"),
    }
    frames.send(v1::ConnectRequest { request_id: 1, request: Some(Request::Envelope(envelope)) }).await.unwrap();
    let of_session = answers.next().await.unwrap().unwrap_err();
    for status in [of_call, of_session] {
        assert_eq!(status.code(), tonic::Code::InvalidArgument, "{status}");
        let details = status.get_error_details();
        let info = details.error_info().unwrap();
        assert_eq!((&*info.reason, &*info.metadata["frame_bytes_max"]), ("PAYLOAD_TOO_LARGE", "4194304"));
        assert!(details.retry_info().is_none(), "it is final");
    }
    drop(broker.agent("b").await); // the broker still serves others
}

#[tokio::test]
async fn two_thousand_requests_on_one_session_are_all_answered() {
    let broker = Broker::start();
    let a = std::sync::Arc::new(broker.agent("a").await);
    broker.agent("b").await;
    let mut under_way = tokio::task::JoinSet::new();
    for _ in 0..2000 {
        let a = a.clone();
        under_way.spawn(async move { a.send("b", MessageType::Info, &About::default(), &info("x")).await });
    }
    let mut sequences = std::collections::HashSet::new();
    while let Some(receipt) = under_way.join_next().await {
        assert!(sequences.insert(receipt.unwrap().unwrap().sequence));
    }
    assert_eq!(sequences.len(), 2000);
}

#[tokio::test]
async fn reflection_and_health_answer_in_every_version() {
    use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
    let broker = Broker::start();
    let channel = broker.channel().await;
    macro_rules! services {
        ($version:ident) => {{
            use tonic_reflection::pb::$version as pb;
            let mut client = pb::server_reflection_client::ServerReflectionClient::new(channel.clone());
            let list = pb::server_reflection_request::MessageRequest::ListServices(String::new());
            let request = pb::ServerReflectionRequest { host: String::new(), message_request: Some(list) };
            let mut answers = client.server_reflection_info(tokio_stream::once(request)).await.unwrap().into_inner();
            match answers.next().await.unwrap().unwrap().message_response.unwrap() {
                pb::server_reflection_response::MessageResponse::ListServicesResponse(list) => {
                    list.service.into_iter().map(|service| service.name).collect::<Vec<_>>()
                }
                other => panic!("expected a list, not {other:?}"),
            }
        }};
    }
    for services in [services!(v1), services!(v1alpha)] {
        for service in SERVICES {
            assert!(services.iter().any(|name| name == service), "{services:?} lacks {service}");
        }
    }
    let mut health = HealthClient::new(channel);
    for service in SERVICES.iter().copied().chain([""]) {
        let answer = health.check(HealthCheckRequest { service: service.to_owned() }).await.unwrap().into_inner();
        assert_eq!(answer.status(), tonic_health::pb::health_check_response::ServingStatus::Serving, "{service}");
    }
}

#[tokio::test]
async fn the_broker_s_own_card_has_the_key_that_signs_receipts() {
    let broker = Broker::start();
    let a = broker.agent("a").await;
    broker.agent("b").await;
    let receipt = a.request("b", &new_task(), 1, &a_request()).await.unwrap();
    let request = v1::GetAgentRequest { agent_id: "baton".into() };
    let found = broker.client().await.agents().get_agent(request).await.unwrap().into_inner().agent.unwrap();
    assert_eq!(found.presence(), v1::Presence::Alive);
    let key = found.card.unwrap().keys.into_iter().find(|key| key.key_id == receipt.key_id).unwrap();
    let public = baton::envelope::keys::PublicKey::parse(&key.public_key).unwrap();
    assert!(public.verifies(&baton::envelope::signing::receipt_input(&receipt), &receipt.signature));
}

#[tokio::test]
async fn the_command_line_lists_the_processes_of_an_agent() {
    let broker = Broker::start();
    let agent = broker.agent("bob").await;
    let listed = broker.lines(&["agent", "processes", "bob"]);
    assert_eq!(listed.len(), 1, "{listed:?}");
    let output = broker.command(&["agent", "processes", "bob", "--output", "table"]).output().unwrap();
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.contains("CONNECTED SINCE"), "{table}");
    assert!(table.contains("does not tell"), "{table}");
    drop(agent);
    eventually("the process is gone", async || broker.lines(&["agent", "processes", "bob"]).is_empty()).await;
}

#[tokio::test]
async fn a_session_sends_heartbeats_by_itself_with_what_the_agent_last_said() {
    let broker = Broker::start();
    let a = broker.agent("a").await;
    let shown = async || {
        let request = v1::GetAgentRequest { agent_id: "a".into() };
        a.client.agents().get_agent(request).await.unwrap().into_inner().agent.unwrap()
    };
    a.session.heartbeat(v1::Heartbeat { active_tasks: 3, ..Default::default() }).await.unwrap();
    let first = shown().await.last_heartbeat_time;
    eventually("a heartbeat comes by itself", async || shown().await.last_heartbeat_time != first).await;
    assert_eq!(shown().await.last_heartbeat.unwrap().active_tasks, 3);
}

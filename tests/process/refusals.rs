//! Invalid input over the wire: the gRPC code and the stable reason of each, and a broker that continues.

use std::{
    io::{Read as _, Write as _},
    time::Duration,
};

use baton::{
    envelope,
    ids::KeyId,
    proto::v1::{self, MessageType},
};
use baton_client::{About, Client, ClientError};
use prost::Message as _;
use tonic::Code;

use crate::broker::{Broker, a_request, card, composer, identity, new_task};

#[track_caller]
fn check<T: std::fmt::Debug>(outcome: Result<T, ClientError>, code: Code, reason: &str) {
    match outcome {
        Err(ClientError::Refused(refused)) => {
            assert_eq!((refused.code, refused.reason.as_str()), (code, reason), "{refused}");
        }
        other => panic!("expected {reason}, not {other:?}"),
    }
}

async fn send(client: &Client, envelope: &v1::Envelope) -> Result<v1::SendResponse, ClientError> {
    let request = v1::SendRequest { envelope: envelope.encode_to_vec().into(), ..Default::default() };
    client.answer(client.messages().send(request).await)
}

fn a_signed_request(change: impl FnOnce(&mut v1::Envelope)) -> v1::Envelope {
    let about = About::task(&new_task(), 1);
    let mut envelope = composer("a").compose("b", MessageType::HandoffRequest, &about, &a_request());
    change(&mut envelope);
    envelope
}

fn sign_again(envelope: &mut v1::Envelope) {
    envelope::sign(envelope, &KeyId::parse("k1").unwrap(), &identity("a").key);
}

#[tokio::test]
async fn envelopes_that_are_not_right_are_refused_with_code_and_reason() {
    let broker = Broker::start();
    let client = broker.client().await;
    for name in ["a", "b"] {
        let card = Some(card(name, ""));
        client.agents().register_agent(v1::RegisterAgentRequest { card, ..Default::default() }).await.unwrap();
    }
    type Change = fn(&mut v1::Envelope);
    let cases: [(Change, Code, &str); 13] = [
        (|e| e.signature.clear(), Code::Unauthenticated, "SIGNATURE_MISSING"),
        (|e| e.epoch = 2, Code::Unauthenticated, "SIGNATURE_INVALID"),
        (|e| e.signature = vec![0; 64].into(), Code::Unauthenticated, "SIGNATURE_INVALID"),
        (|e| e.signature_version = 2, Code::InvalidArgument, "SIGNATURE_VERSION_UNKNOWN"),
        (|e| e.key_id = "k2".into(), Code::Unauthenticated, "SIGNATURE_INVALID"),
        (|e| e.sender_id = "unknown".into(), Code::Unauthenticated, "SIGNATURE_INVALID"),
        (|e| e.task_id.clear(), Code::InvalidArgument, "FIELD_INVALID"),
        (|e| e.message_id = "x".into(), Code::InvalidArgument, "FIELD_INVALID"),
        (|e| e.message_type = MessageType::Info.into(), Code::InvalidArgument, "PAYLOAD_TYPE_MISMATCH"),
        (
            |e| {
                e.receiver_id = "unknown".into();
                sign_again(e);
            },
            Code::NotFound,
            "RECEIVER_UNKNOWN",
        ),
        (
            |e| {
                e.timestamp.as_mut().unwrap().seconds -= 3600;
                sign_again(e);
            },
            Code::InvalidArgument,
            "TIMESTAMP_OUTSIDE_WINDOW",
        ),
        (
            |e| {
                e.payload.as_mut().unwrap().value = vec![0; 1024 * 1024 + 1].into();
                sign_again(e);
            },
            Code::InvalidArgument,
            "PAYLOAD_TOO_LARGE",
        ),
        (
            |e| {
                e.epoch = 7;
                sign_again(e);
            },
            Code::FailedPrecondition,
            "EPOCH_AHEAD",
        ),
    ];
    for (change, code, reason) in cases {
        check(send(&client, &a_signed_request(change)).await, code, reason);
    }
    let garbage = v1::SendRequest { envelope: bytes::Bytes::from_static(b"\xff\xff\xff\xff"), ..Default::default() };
    check(client.answer(client.messages().send(garbage).await), Code::InvalidArgument, "MALFORMED");
    let handoffs = client.handoffs().list_handoffs(v1::ListHandoffsRequest::default()).await.unwrap().into_inner();
    assert_eq!(handoffs.handoffs, [], "nothing has changed");
    send(&client, &a_signed_request(|_| {})).await.expect("a good one is taken all the same");
}

/// Sends a frame outside the schema as raw bytes, as a client with a broken encoder does.
#[tokio::test]
async fn a_frame_that_does_not_parse_is_refused_as_malformed() {
    let broker = Broker::start();
    let mut raw = tonic::client::Grpc::new(broker.channel().await);
    raw.ready().await.unwrap();
    // A UInt64Value: a varint in field 1, where SendRequest has its envelope.
    let codec = tonic_prost::ProstCodec::<u64, v1::SendResponse>::default();
    let path = http::uri::PathAndQuery::from_static("/baton.v1.BrokerService/Send");
    let status = raw.unary(tonic::Request::new(17), path, codec).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    assert_eq!(tonic_types::StatusExt::get_error_details(&status).error_info().unwrap().reason, "MALFORMED");

    let a = broker.agent("a").await;
    let token = a.client.prove(&identity("a")).await.unwrap();
    let mut frames = tonic::Request::new(tokio_stream::once(17));
    frames.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
    raw.ready().await.unwrap();
    let codec = tonic_prost::ProstCodec::<u64, v1::ConnectResponse>::default();
    let path = http::uri::PathAndQuery::from_static("/baton.v1.BrokerService/Connect");
    let responses = raw.streaming(frames, path, codec).await.unwrap().into_inner();
    // A frame with only a request_id has no request: it is refused, and the session continues.
    let reasons = tokio_stream::StreamExt::filter_map(responses, |response| match response.unwrap().response? {
        v1::connect_response::Response::Error(error) => Some((error.code, error.message)),
        _ => None,
    });
    let reasons: Vec<_> = tokio_stream::StreamExt::collect(reasons).await;
    assert_eq!(reasons, [(Code::InvalidArgument as i32, "request must be set to something that is known".to_owned())]);
}

#[tokio::test]
async fn a_repeat_gets_the_same_receipt_and_another_message_of_the_id_is_refused() {
    let broker = Broker::start();
    let client = broker.client().await;
    broker.agent("a").await;
    broker.agent("b").await;
    let first = a_signed_request(|_| {});
    let receipt = send(&client, &first).await.unwrap().receipt.unwrap();
    assert_eq!(send(&client, &first).await.unwrap().receipt.unwrap(), receipt, "signature and all");
    let mut second = first.clone();
    second.receiver_id = "a".into();
    sign_again(&mut second);
    check(send(&client, &second).await, Code::AlreadyExists, "MESSAGE_ID_REUSED");
}

#[tokio::test]
async fn a_session_sends_only_as_its_agent_and_goes_on_after_a_refusal() {
    let broker = Broker::start();
    let (a, _b) = (broker.agent("a").await, broker.agent("b").await);
    let about = About::task(&new_task(), 1);
    let foreign = composer("b").encode("a", MessageType::HandoffRequest, &about, &a_request());
    check(a.session.send(foreign.clone()).await, Code::PermissionDenied, "SENDER_MISMATCH");
    check(a.session.ack("1-1").await, Code::NotFound, "DELIVERY_UNKNOWN");
    check(a.session.ack("nonsense").await, Code::NotFound, "DELIVERY_UNKNOWN");
    check(a.session.nack("1-1", v1::Nack::default()).await, Code::InvalidArgument, "FIELD_INVALID");
    check(a.session.credit(5000).await, Code::InvalidArgument, "FIELD_INVALID");
    let nonsense = v1::Heartbeat { metrics: [("load".into(), f64::NAN)].into(), ..Default::default() };
    check(a.session.heartbeat(nonsense).await, Code::InvalidArgument, "FIELD_INVALID");
    a.request("b", &about.task_id, 1, &a_request()).await.expect("the session goes on");
    let request = v1::SendRequest { envelope: foreign, ..Default::default() };
    let as_a = a.client.answer(a.client.messages().send(request).await);
    check(as_a, Code::PermissionDenied, "SENDER_MISMATCH");
}

#[tokio::test]
async fn calls_that_need_an_identity_are_refused_without_a_good_one() {
    let broker = Broker::start();
    let client = broker.client().await;
    let receive = v1::ReceiveRequest::default();
    let refused = client.answer(client.messages().receive(receive.clone()).await).map(drop);
    check(refused, Code::Unauthenticated, "IDENTITY_MISSING");
    let guessed = broker.client_with(Some("guessed".into())).await;
    let refused = guessed.answer(guessed.messages().receive(receive.clone()).await).map(drop);
    check(refused, Code::Unauthenticated, "TOKEN_INVALID");
    check(client.prove(&identity("unknown")).await, Code::Unauthenticated, "CHALLENGE_FAILED");
    broker.agent("a").await;
    let mut impostor = identity("b");
    impostor.agent = "a".parse().unwrap();
    check(client.prove(&impostor).await, Code::Unauthenticated, "CHALLENGE_FAILED");
}

#[tokio::test]
async fn only_the_agent_changes_its_card() {
    let broker = Broker::start();
    let client = broker.client().await;
    broker.agent("a").await;
    let mut card = card("b", "");
    card.agent_id = "a".into();
    let register = async |client: &Client, card: &v1::AgentCard| {
        let request = v1::RegisterAgentRequest { card: Some(card.clone()), ..Default::default() };
        client.answer(client.agents().register_agent(request).await)
    };
    check(register(&client, &card).await, Code::AlreadyExists, "AGENT_EXISTS");
    card.keys[0].public_key = vec![0; 32].into();
    check(register(&client, &card).await, Code::InvalidArgument, "KEY_WEAK");
    card.agent_id = "baton".into();
    card.keys[0].public_key = identity("b").key.public().as_bytes().to_vec().into();
    check(register(&client, &card).await, Code::InvalidArgument, "FIELD_INVALID");
}

#[tokio::test]
async fn garbage_plaintext_and_strangers_on_the_port_leave_the_broker_as_it_is() {
    let broker = Broker::start();
    let connect = || std::net::TcpStream::connect(&broker.address).unwrap();
    let mut answer = String::new();

    connect().write_all(&[0xde, 0xad, 0xbe, 0xef]).unwrap();
    let mut http = connect();
    http.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    http.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");

    let plain = tonic::transport::Endpoint::from_shared(format!("http://{}", broker.address)).unwrap();
    let mut plain = v1::agent_service_client::AgentServiceClient::new(plain.connect().await.unwrap());
    let status = plain.list_agents(v1::ListAgentsRequest::default()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated);
    let details = tonic_types::StatusExt::get_error_details(&status);
    assert_eq!(details.error_info().unwrap().reason, "TLS_REQUIRED");

    let stranger = baton_client::Options { server: broker.address.clone(), ..Default::default() };
    assert!(matches!(Client::connect(&stranger).await, Err(ClientError::Untrusted { .. })));
    broker.agent("a").await;
}

#[tokio::test]
async fn an_agent_over_its_rate_is_told_when_to_go_on_and_others_are_not_concerned() {
    let broker = Broker::serve("enrollment = \"open\"", "[limits]\nmessages_per_second = 5\n");
    let (a, b) = (broker.agent("a").await, broker.agent("b").await);
    let info = v1::Info::default();
    let mut refusal = None;
    for _ in 0..50 {
        if let Err(error) = a.send("b", MessageType::Info, &About::default(), &info).await {
            refusal = Some(error);
            break;
        }
    }
    match refusal.expect("50 messages at once are too many") {
        ClientError::Refused(refused) => {
            assert_eq!((refused.code, refused.reason.as_str()), (Code::ResourceExhausted, "LIMIT_EXCEEDED"));
            assert!(refused.retry_after.is_some_and(|wait| wait <= Duration::from_secs(1)), "{refused:?}");
        }
        other => panic!("expected a refusal, not {other}"),
    }
    b.send("a", MessageType::Info, &About::default(), &info).await.unwrap();
}

#[tokio::test]
async fn a_caller_whose_reads_have_used_up_its_cpu_time_is_told_when_to_go_on_and_others_are_not_concerned() {
    let broker = Broker::serve("enrollment = \"open\"", "[limits]\ncpu_ms_per_second = 1\n");
    let (a, _b) = (broker.agent("a").await, broker.agent("b").await);
    let [caller, other] = [broker.client_of("a").await, broker.client_of("b").await];
    let list = async |client: &Client| client.answer(client.tasks().list_tasks(v1::ListTasksRequest::default()).await);
    let mut refusal = None;
    for _ in 0..100_000 {
        refusal = list(&caller).await.err();
        if refusal.is_some() {
            break;
        }
    }
    match refusal.expect("so many lists take more than a millisecond") {
        ClientError::Refused(refused) => {
            assert_eq!((refused.code, refused.reason.as_str()), (Code::ResourceExhausted, "LIMIT_EXCEEDED"));
            assert!(refused.retry_after.is_some_and(|wait| wait <= Duration::from_secs(10)), "{refused:?}");
        }
        other => panic!("expected a refusal, not {other}"),
    }
    list(&other).await.unwrap();
    // What an agent sends costs none of this time.
    a.send("b", MessageType::Info, &About::default(), &v1::Info::default()).await.unwrap();
    let operator = broker.operator().await;
    list(&operator).await.unwrap();
}

#[tokio::test]
async fn copies_that_a_stranger_sends_use_up_nothing_of_the_agent_s_rate() {
    let broker = Broker::serve("enrollment = \"open\"", "[limits]\nmessages_per_second = 5\n");
    let (a, _b) = (broker.agent("a").await, broker.agent("b").await);
    let info = v1::Info::default();
    let envelope = composer("a").compose("b", MessageType::Info, &About::default(), &info);
    a.session.send(envelope.encode_to_vec().into()).await.unwrap();
    let stranger = broker.client().await;
    let mut refusal = None;
    for _ in 0..50 {
        refusal = send(&stranger, &envelope).await.err();
        if refusal.is_some() {
            break;
        }
    }
    check(Err::<(), _>(refusal.expect("50 copies at once are too many")), Code::ResourceExhausted, "LIMIT_EXCEEDED");
    a.send("b", MessageType::Info, &About::default(), &info).await.unwrap();
}

#[tokio::test]
async fn an_invitation_lets_the_one_whom_it_is_for_register_once() {
    let broker = Broker::serve("", "");
    let (anonymous, operator) = (broker.client().await, broker.operator().await);
    let invite = async |client: &Client, agent_id: &str, lifetime| {
        let request = v1::CreateInvitationRequest { agent_id: agent_id.into(), lifetime, ..Default::default() };
        client.answer(client.agents().create_invitation(request).await).map(|made| made.invitation)
    };
    let register = async |name: &str, invitation: &str| {
        let request = v1::RegisterAgentRequest { card: Some(card(name, "")), invitation: invitation.into() };
        anonymous.answer(anonymous.agents().register_agent(request).await)
    };
    let invalid = |outcome| check(outcome, Code::Unauthenticated, "INVITATION_INVALID");
    check(register("a", "").await, Code::Unauthenticated, "IDENTITY_MISSING");
    invalid(register("a", "invitation-of-my-own").await);
    let for_a = invite(&operator, "a", None).await.unwrap();
    invalid(register("b", &for_a).await);
    register("a", &for_a).await.unwrap();
    let soon_over = Some(prost_types::Duration { seconds: 0, nanos: 1 });
    let over = invite(&operator, "", soon_over).await.unwrap();
    invalid(register("b", &over).await);
    let open_invitation = invite(&operator, "", None).await.unwrap();
    register("b", &open_invitation).await.unwrap();
    invalid(register("c", &open_invitation).await);

    check(invite(&anonymous, "", None).await, Code::Unauthenticated, "IDENTITY_MISSING");
    let a = anonymous.with_token(&anonymous.prove(&identity("a")).await.unwrap()).unwrap();
    check(invite(&a, "", None).await, Code::PermissionDenied, "PERMISSION_DENIED");
    let too_long = Some(prost_types::Duration { seconds: 31 * 24 * 3600, nanos: 0 });
    check(invite(&operator, "", too_long).await, Code::InvalidArgument, "FIELD_INVALID");

    // The agent is registered. The same card again needs no invitation, and another card is refused.
    let broker = Broker::serve_again(broker.kill());
    let client = broker.client().await;
    let request = v1::RegisterAgentRequest { card: Some(card("c", "")), invitation: open_invitation };
    invalid(client.answer(client.agents().register_agent(request).await));
}

#[tokio::test]
async fn the_key_of_another_agent_is_refused() {
    let broker = Broker::start();
    broker.agent("a").await;
    let client = broker.client().await;
    let theirs = v1::AgentCard { agent_id: "b".into(), ..card("a", "") };
    let request = v1::RegisterAgentRequest { card: Some(theirs), ..Default::default() };
    check(client.answer(client.agents().register_agent(request).await), Code::AlreadyExists, "KEY_TAKEN");
}

#[tokio::test]
async fn an_agent_has_no_more_sessions_than_it_may() {
    let broker = Broker::serve("enrollment = \"open\"", "[limits]\nsessions_max = 2\n");
    let first = broker.agent("a").await;
    let _second = broker.agent("a").await;
    let refused = async || {
        let stream = tokio_stream::pending::<v1::ConnectRequest>();
        first.client.answer(first.client.messages().connect(stream).await).map(drop)
    };
    check(refused().await, Code::ResourceExhausted, "LIMIT_EXCEEDED");
    let receive = first.client.messages().receive(v1::ReceiveRequest::default()).await;
    check(first.client.answer(receive).map(drop), Code::ResourceExhausted, "LIMIT_EXCEEDED");
    broker.agent("b").await;
}

#[tokio::test]
async fn with_a_configuration_only_operators_enroll_and_agents_see_only_their_own() {
    let broker = Broker::serve("", "");
    let (anonymous, operator) = (broker.client().await, broker.operator().await);

    let register = async |client: &Client, name: &str| {
        let request = v1::RegisterAgentRequest { card: Some(card(name, "")), ..Default::default() };
        client.answer(client.agents().register_agent(request).await)
    };
    check(register(&anonymous, "a").await, Code::Unauthenticated, "IDENTITY_MISSING");
    for name in ["a", "b", "c"] {
        register(&operator, name).await.unwrap();
    }
    let as_agent = async |name: &str| anonymous.with_token(&anonymous.prove(&identity(name)).await.unwrap()).unwrap();
    let (a, c) = (as_agent("a").await, as_agent("c").await);
    check(register(&a, "d").await, Code::PermissionDenied, "PERMISSION_DENIED");

    let handoff_id = send(&a, &a_signed_request(|_| {})).await.unwrap().receipt.unwrap().handoff_id;
    let get = async |client: &Client| {
        let request = v1::GetHandoffRequest { handoff_id: handoff_id.clone(), ..Default::default() };
        client.answer(client.handoffs().get_handoff(request).await)
    };
    get(&a).await.unwrap();
    get(&operator).await.unwrap();
    check(get(&anonymous).await, Code::Unauthenticated, "IDENTITY_MISSING");
    check(get(&c).await, Code::PermissionDenied, "PERMISSION_DENIED");
    let watch = c.handoffs().watch_handoff(v1::WatchHandoffRequest { handoff_id: handoff_id.clone() }).await;
    check(c.answer(watch).map(drop), Code::PermissionDenied, "PERMISSION_DENIED");
    let listed = c.handoffs().list_handoffs(v1::ListHandoffsRequest::default()).await.unwrap().into_inner();
    assert_eq!(listed.handoffs, []);
}

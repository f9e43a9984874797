//! Compressed gRPC messages: agents with and without compression, and requests that do not unpack.

use std::{io::Write as _, sync::Arc};

use baton::{
    ids::SystemIds,
    proto::v1::{self, MessageType},
    time::SystemClock,
};
use baton_client::{About, Client as AgentClient, Compression, Options, session::Agent};
use bytes::Bytes;
use prost::Message as _;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use crate::{
    broker::{Broker, composer, identity},
    hostile::{
        Honest, MIB, assert_bounded,
        frames::{CONNECT, Client, SEND, assert_over_limit},
        raw, resident_kib, start,
    },
};

const CHALLENGE: &str = "/baton.v1.AgentService/CreateChallenge";

fn gzip(message: &[u8]) -> Vec<u8> {
    let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    writer.write_all(message).unwrap();
    writer.finish().unwrap()
}

fn zstd(message: &[u8]) -> Vec<u8> {
    zstd::encode_all(message, 3).unwrap()
}

/// 4 GiB of zeros in 128 KiB of zstd: 32,768 blocks of four bytes.
fn four_gib() -> Vec<u8> {
    let mut stream = vec![0x28, 0xb5, 0x2f, 0xfd, 0, 7 << 3];
    for block in 1..=32 * 1024 {
        let head = ((128 * 1024) << 3) | (1 << 1) | u32::from(block == 32 * 1024);
        stream.extend(&head.to_le_bytes()[..3]);
        stream.push(0);
    }
    stream
}

/// A frame whose flag says that the message is compressed.
fn packed(message: &[u8]) -> Bytes {
    let mut frame = raw::grpc(message);
    frame[0] = 1;
    frame.into()
}

async fn connect(broker: &Broker, compression: Option<Compression>) -> AgentClient {
    let options = Options { server: broker.address.clone(), ca: Some(broker.ca()), compression, ..Default::default() };
    AgentClient::connect(&options).await.unwrap()
}

#[tokio::test]
async fn sessions_and_calls_work_in_every_encoding() {
    let broker = Broker::start();
    let encodings = [None, Some(Compression::Gzip), Some(Compression::Zstd)];
    // Numbers that hardly compress, so that the frames are unpacked beside the threads of connections.
    let text: String = (0..3500_u64).map(|n| format!("{:016x} ", n.wrapping_mul(0x9e37_79b9_7f4a_7c15))).collect();
    let info = v1::Info { text: text.clone(), ..Default::default() };
    for (number, of_sender) in encodings.into_iter().enumerate() {
        let name = format!("a{number}");
        broker.agent(&name).await;
        let client = connect(&broker, of_sender).await;
        let sender =
            Agent::connect(&client, identity(&name), 100, Arc::new(SystemClock), Arc::new(SystemIds)).await.unwrap();
        for (number, of_receiver) in encodings.into_iter().enumerate() {
            let receiver = format!("b{number}");
            broker.agent(&receiver).await;
            let receiver_client = connect(&broker, of_receiver).await;
            let (clock, ids) = (Arc::new(SystemClock), Arc::new(SystemIds));
            let b = Agent::connect(&receiver_client, identity(&receiver), 100, clock, ids).await.unwrap();
            sender.send(&receiver, MessageType::Info, &About::default(), &info).await.unwrap();
            client.send(composer(&name).encode(&receiver, MessageType::Info, &About::default(), &info)).await.unwrap();
            for _ in 0..2 {
                let delivery = b.next().await.unwrap();
                let envelope = v1::Envelope::decode(delivery.delivery.envelope.clone()).unwrap();
                let received = v1::Info::decode(envelope.payload.unwrap().value).unwrap();
                assert!(received.text == text, "{of_sender:?} to {of_receiver:?}");
                b.session.ack(&delivery.delivery.delivery_id).await.unwrap();
            }
        }
    }
}

#[tokio::test]
async fn an_answer_is_compressed_only_if_its_request_was() {
    let broker = start("");
    Honest::come(&broker).await;
    let mut client = Client::connect(&broker).await;
    let request = v1::CreateChallengeRequest { agent_id: "honest-a".into() }.encode_to_vec();
    let plain: Bytes = raw::grpc(&request).into();
    let zipped = packed(&gzip(&request));
    let accepts = ("grpc-accept-encoding", "identity,deflate,gzip,zstd");
    for (headers, body, encoding) in [
        (&[][..], &plain, None),
        (&[accepts], &plain, None),
        (&[("grpc-encoding", "gzip")], &zipped, None),
        (&[("grpc-encoding", "gzip"), accepts], &zipped, Some("gzip")),
        (&[("grpc-encoding", "zstd"), accepts], &packed(&zstd(&request)), Some("zstd")),
        // The client may leave any message as it is.
        (&[("grpc-encoding", "zstd"), accepts], &plain, Some("zstd")),
    ] {
        let mut call = client.call(CHALLENGE, headers).await;
        call.send(body.clone()).await;
        drop(call.body.send_data(Bytes::new(), true));
        let (head, answer) = call.whole().await;
        assert_eq!(head.get("grpc-encoding").map(|name| name.to_str().unwrap()), encoding, "{headers:?}");
        let message = match encoding {
            None => answer[5..].to_vec(),
            Some("gzip") => {
                let mut bytes = Vec::new();
                std::io::copy(&mut flate2::read::GzDecoder::new(&answer[5..]), &mut bytes).unwrap();
                bytes
            }
            Some(_) => zstd::decode_all(&answer[5..]).unwrap(),
        };
        assert_eq!(answer[0], u8::from(encoding.is_some()));
        assert_eq!(v1::CreateChallengeResponse::decode(&*message).unwrap().challenge.len(), 32);
    }
}

#[track_caller]
fn reason(status: &Status) -> (Code, String) {
    (status.code(), status.get_error_details().error_info().map(|info| info.reason.clone()).unwrap_or_default())
}

#[tokio::test]
async fn a_bomb_is_refused_and_takes_no_memory() {
    let broker = start("");
    let honest = Honest::come(&broker).await;
    let token = broker.client().await.prove(&identity("honest-a")).await.unwrap();
    let bearer = format!("Bearer {token}");
    let too_large = (Code::InvalidArgument, "PAYLOAD_TOO_LARGE".to_owned());
    let before = resident_kib(&broker);
    let bombs = [("zstd", packed(&four_gib())), ("gzip", packed(&gzip(&vec![0; 64 * 1024 * 1024])))];
    for _ in 0..8 {
        for (encoding, bomb) in &bombs {
            for path in [SEND, CONNECT] {
                let mut client = Client::connect(&broker).await;
                let mut call = client.call(path, &[("grpc-encoding", encoding), ("authorization", &bearer)]).await;
                call.send(bomb.clone()).await;
                let status = call.status().await;
                assert_eq!(reason(&status), too_large, "{encoding} {path}");
                let details = status.get_error_details();
                assert_eq!(details.error_info().unwrap().metadata["frame_bytes_max"], "4194304");
            }
        }
    }
    honest.work().await;
    assert_bounded(&broker, before, 64 * MIB);
}

#[tokio::test]
async fn unpacked_bytes_count_against_the_limit_of_frames() {
    // 8 MiB for one network: two messages of nearly 4 MiB, each of which arrives as 4 KiB.
    let broker = start("[broker_limits]\nframe_bytes_max = 16777216\nnetwork_percent_max = 50\n");
    let honest = Honest::come(&broker).await;
    let mut client = Client::connect(&broker).await;
    let large = v1::SendRequest { envelope: vec![0; 4 * 1024 * 1024 - 100_000].into(), ..Default::default() };
    let large = packed(&gzip(&large.encode_to_vec()));
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..3 {
        // The calls do not end: their request has more to come.
        let mut call = client.call(SEND, &[("grpc-encoding", "gzip")]).await;
        let large = large.clone();
        calls.spawn(async move {
            call.send(large).await;
            call.status().await
        });
    }
    assert_over_limit(&calls.join_next().await.unwrap().unwrap());
    honest.work().await;
}

#[tokio::test]
async fn messages_that_do_not_unpack_are_refused_with_their_codes() {
    let broker = start("");
    let honest = Honest::come(&broker).await;
    let token = broker.client().await.prove(&identity("honest-a")).await.unwrap();
    let bearer = format!("Bearer {token}");
    let mut client = Client::connect(&broker).await;
    let malformed = (Code::InvalidArgument, "MALFORMED");
    let truncated = |bytes: Vec<u8>| bytes[..bytes.len() - 1].to_vec();
    for (encoding, message, (code, reason_of_it)) in [
        ("gzip", b"bomb".to_vec(), malformed),
        ("zstd", b"bomb".to_vec(), malformed),
        ("gzip", Vec::new(), malformed),
        ("gzip", truncated(gzip(b"text")), malformed),
        ("zstd", truncated(zstd(b"text")), malformed),
        ("zstd", gzip(b"text"), malformed),
        ("gzip", [gzip(b"text"), gzip(b"text")].concat(), malformed),
        ("deflate", b"text".to_vec(), (Code::Unimplemented, "NOT_SUPPORTED")),
        // Flagged in the frame, but not named in the header.
        ("identity", b"text".to_vec(), (Code::Internal, "")),
    ] {
        for path in [SEND, CONNECT] {
            let mut call = client.call(path, &[("grpc-encoding", encoding), ("authorization", &bearer)]).await;
            call.send(packed(&message)).await;
            drop(call.body.send_data(Bytes::new(), true));
            assert_eq!(reason(&call.status().await), (code, reason_of_it.to_owned()), "{encoding} {path}");
        }
    }
    let mut call = client.call(SEND, &[("grpc-encoding", "deflate")]).await;
    drop(call.body.send_data(Bytes::new(), true));
    let (head, _) = call.whole().await;
    assert_eq!(head["grpc-accept-encoding"], "identity,gzip,zstd");
    honest.work().await;
}

//! Messages that do not end, or that differ from their headers.

use baton::proto::v1::{self, connect_request::Request as Frame};
use bytes::Bytes;
use h2::{RecvStream, SendStream, client::SendRequest};
use http::{HeaderMap, Request, Response};
use prost::Message as _;
use tokio::io::AsyncWriteExt as _;
use tonic_types::StatusExt as _;

use super::{Honest, MIB, assert_bounded, raw, resident_kib, start};
use crate::broker::{Broker, PATIENCE, eventually};

pub(crate) const SEND: &str = "/baton.v1.BrokerService/Send";
pub(crate) const CONNECT: &str = "/baton.v1.BrokerService/Connect";

/// An HTTP/2 client that can leave a message unfinished.
pub(crate) struct Client {
    requests: SendRequest<Bytes>,
}

/// A call whose message has not been sent.
pub(crate) struct Call {
    answer: h2::client::ResponseFuture,
    pub body: SendStream<Bytes>,
}

impl Client {
    pub(crate) async fn connect(broker: &Broker) -> Self {
        let (requests, connection) = h2::client::handshake(raw::tls(broker).await.unwrap()).await.unwrap();
        tokio::spawn(connection);
        Self { requests }
    }

    pub(crate) async fn call(&mut self, path: &str, headers: &[(&str, &str)]) -> Call {
        let mut requests = self.requests.clone().ready().await.unwrap();
        let mut request = Request::post(format!("https://localhost{path}"));
        for (name, value) in [("te", "trailers"), ("content-type", "application/grpc")].iter().chain(headers) {
            request = request.header(*name, *value);
        }
        let (answer, body) = requests.send_request(request.body(()).unwrap(), false).unwrap();
        Call { answer, body }
    }
}

impl Call {
    /// Sends these bytes as the broker's window allows. Stops when the call has ended.
    pub(crate) async fn send(&mut self, bytes: Bytes) {
        let mut rest = bytes;
        while !rest.is_empty() {
            self.body.reserve_capacity(rest.len());
            let next = std::future::poll_fn(|context| self.body.poll_capacity(context)).await;
            let Some(Ok(capacity)) = next else { return };
            if self.body.send_data(rest.split_to(capacity.min(rest.len())), false).is_err() {
                return;
            }
        }
    }

    /// Ends the client's half of a session, reads its answers only after they fill half of the window, and returns the
    /// final status.
    async fn status_once_full(mut self) -> tonic::Status {
        self.body.send_data(Bytes::new(), true).unwrap();
        let (_, mut body) = self.answer.await.expect("the call is answered").into_parts();
        let is_full = async || body.flow_control().used_capacity() >= 32 * 1024;
        eventually("the answers fill half of the window", is_full).await;
        while let Some(data) = body.data().await {
            body.flow_control().release_capacity(data.unwrap().len()).unwrap();
        }
        let trailers = body.trailers().await.unwrap().expect("a session ends with a status");
        tonic::Status::from_header_map(&trailers).expect("it is a status")
    }

    /// The head and the whole body of the answer.
    pub(crate) async fn whole(self) -> (HeaderMap, Vec<u8>) {
        let whole = async {
            let (head, mut body) = self.answer.await.expect("the call is answered").into_parts();
            let mut bytes = Vec::new();
            while let Some(data) = body.data().await {
                bytes.extend_from_slice(&data.unwrap());
            }
            (head.headers, bytes)
        };
        tokio::time::timeout(PATIENCE, whole).await.expect("the call is answered in time")
    }

    /// The status of the call.
    pub(crate) async fn status(self) -> tonic::Status {
        let status = async {
            let answer: Response<RecvStream> = self.answer.await.expect("the call is answered");
            let (head, mut body) = answer.into_parts();
            if head.headers.contains_key("grpc-status") {
                return head.headers;
            }
            while let Some(data) = body.data().await {
                drop(data);
            }
            body.trailers().await.ok().flatten().unwrap_or_else(HeaderMap::new)
        };
        let headers = tokio::time::timeout(PATIENCE, status).await.expect("the call is answered in time");
        tonic::Status::from_header_map(&headers).expect("an answer has a status")
    }
}

#[track_caller]
pub(crate) fn assert_over_limit(status: &tonic::Status) {
    assert_eq!(status.code(), tonic::Code::ResourceExhausted, "{status}");
    let details = status.get_error_details();
    assert_eq!(details.error_info().unwrap().reason, "LIMIT_EXCEEDED");
    assert!(details.retry_info().is_some_and(|retry| retry.retry_delay.is_some()), "{details:?}");
}

/// The length prefix of a message of this number of bytes.
fn beginning_of(bytes: u32) -> Bytes {
    let mut prefix = vec![0];
    prefix.extend(bytes.to_be_bytes());
    prefix.into()
}

#[tokio::test]
async fn frames_that_never_end_hold_no_more_than_there_is_for_them() {
    let broker = start("[broker_limits]\nframe_bytes_max = 67108864\n");
    let honest = Honest::come(&broker).await;
    let before = resident_kib(&broker);
    // 64 frames of 4 MiB less one byte: 256 MiB, of which one network may hold 32. For a second, the allocator also
    // retains the memory that growing frames leave behind.
    let nearly_all = Bytes::from(vec![7; 4 * 1024 * 1024 - 6]);
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let mut client = Client::connect(&broker).await;
        for _ in 0..8 {
            let mut call = client.call(SEND, &[]).await;
            let rest = nearly_all.clone();
            calls.spawn(async move {
                call.send(beginning_of(4 * 1024 * 1024 - 1)).await;
                call.send(rest).await;
                call
            });
        }
    }
    let mut open = Vec::new();
    while let Some(call) = calls.join_next().await {
        open.push(call.unwrap());
    }
    honest.work().await;
    assert_bounded(&broker, before, 128 * MIB);
    drop(open);
    honest.work().await;
    let mut client = Client::connect(&broker).await;
    let mut small = client.call(SEND, &[]).await;
    small.send(beginning_of(4)).await;
    small.send(Bytes::from_static(b"junk")).await;
    small.body.send_data(Bytes::new(), true).unwrap();
    assert_eq!(small.status().await.get_error_details().error_info().unwrap().reason, "MALFORMED");
}

#[tokio::test]
async fn a_frame_over_what_there_is_left_is_refused_with_the_time_to_wait() {
    let broker = start("[broker_limits]\nframe_bytes_max = 16777216\nnetwork_percent_max = 50\n");
    let honest = Honest::come(&broker).await;
    let mut client = Client::connect(&broker).await;
    let mut calls = tokio::task::JoinSet::new();
    // The limit fits two. The broker reads the three in any order.
    for _ in 0..3 {
        let mut call = client.call(SEND, &[]).await;
        calls.spawn(async move {
            call.send(beginning_of(4 * 1024 * 1024)).await;
            call.send(Bytes::from(vec![7; 4 * 1024 * 1024 - 100_000])).await;
            call.status().await
        });
    }
    assert_over_limit(&calls.join_next().await.unwrap().unwrap());
    honest.work().await;
}

#[tokio::test]
async fn a_frame_that_does_not_come_in_time_ends_its_call() {
    let broker = start("[broker_limits]\nframe_timeout_ms = 2000\n");
    let honest = Honest::come(&broker).await;
    let mut client = Client::connect(&broker).await;
    let mut silent = client.call(SEND, &[]).await;
    silent.send(Bytes::from_static(&[0])).await;
    assert_over_limit(&silent.status().await);
    let nothing = client.call("/baton.v1.AgentService/ListAgents", &[]).await;
    assert_over_limit(&nothing.status().await);
    // A session may pause between two frames, but not within one.
    let token = broker.client().await.prove(&crate::broker::identity("honest-a")).await.unwrap();
    let bearer = format!("Bearer {token}");
    let mut session = client.call(CONNECT, &[("authorization", &bearer)]).await;
    session.send(beginning_of(1000)).await;
    assert_over_limit(&session.status().await);
    honest.work().await;
}

#[tokio::test]
async fn a_frame_that_claims_four_gib_is_refused_at_its_head() {
    let broker = start("");
    let honest = Honest::come(&broker).await;
    let before = resident_kib(&broker);
    for _ in 0..100 {
        let mut client = Client::connect(&broker).await;
        let mut call = client.call(SEND, &[]).await;
        call.send(beginning_of(u32::MAX)).await;
        let status = call.status().await;
        assert_eq!(status.code(), tonic::Code::InvalidArgument);
        let details = status.get_error_details();
        let info = details.error_info().unwrap();
        assert_eq!((&*info.reason, &*info.domain), ("PAYLOAD_TOO_LARGE", "baton"));
        assert_eq!((&*info.metadata["frame_bytes_max"], &*info.metadata["bytes"]), ("4194304", "4294967295"));
        assert!(details.retry_info().is_none(), "it is final");
    }
    honest.work().await;
    assert_bounded(&broker, before, 32 * MIB);
}

#[tokio::test]
async fn sessions_whose_answers_are_not_taken_count_with_what_they_leave_unread() {
    // 8 MiB for one network: 32 windows.
    let broker = start("[broker_limits]\nframe_bytes_max = 16777216\n");
    let honest = Honest::come(&broker).await;
    let token = broker.client().await.prove(&crate::broker::identity("honest-a")).await.unwrap();
    let bearer = format!("Bearer {token}");
    // The broker answers each with several hundred bytes, of which the client accepts 64 KiB.
    let wrong = v1::ConnectRequest { request_id: 7, request: Some(Frame::Acknowledgement(Default::default())) };
    let many: Bytes = raw::grpc(&wrong.encode_to_vec()).repeat(1000).into();
    let session = async || {
        let mut call = Client::connect(&broker).await.call(CONNECT, &[("authorization", &bearer)]).await;
        call.send(many.clone()).await;
        call
    };
    let mut stalled = Vec::new();
    for _ in 0..36 {
        stalled.push(session().await);
    }
    let over = async {
        loop {
            let status = session().await.status_once_full().await;
            if status.code() != tonic::Code::Ok {
                return status;
            }
        }
    };
    assert_over_limit(&tokio::time::timeout(PATIENCE, over).await.expect("one is over the quota"));
    honest.work().await;
}

#[tokio::test]
async fn small_frames_that_are_not_read_are_bounded_for_each_connection() {
    let broker = start("");
    let honest = Honest::come(&broker).await;
    let token = broker.client().await.prove(&crate::broker::identity("honest-a")).await.unwrap();
    let before = resident_kib(&broker);
    // The broker refuses each. All of them fit the initial window of a stream, before the broker's settings are
    // acknowledged.
    let wrong = v1::ConnectRequest { request_id: 7, request: None };
    let frame = raw::frame(0, 0, 1, &raw::grpc(&wrong.encode_to_vec()));
    let head = raw::frame(raw::HEADERS, raw::END_HEADERS, 1, &raw::head(CONNECT, Some(&token)));
    let mut open = Vec::new();
    for _ in 0..16 {
        // The stream accepts no answers: the session stops reading after 256 of them.
        let mut stream = raw::http2_with_window(&broker, 0).await;
        stream.write_all(&[head.clone(), frame.repeat(8000)].concat()).await.unwrap();
        stream.flush().await.unwrap();
        open.push(stream);
    }
    honest.work().await;
    assert_bounded(&broker, before, 16 * 6 * MIB);
    for stream in &mut open {
        raw::flood_until_hung_up(stream, &frame.repeat(1300)).await;
    }
    honest.work().await;
}

#[tokio::test]
async fn reflection_streams_count_with_what_they_may_leave_unread() {
    // 8 MiB for one network, and 2.25 MiB for each stream.
    let broker = start("[broker_limits]\nframe_bytes_max = 16777216\n");
    let mut client = Client::connect(&broker).await;
    let path = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..4 {
        calls.spawn(client.call(path, &[]).await.status());
    }
    assert_over_limit(&calls.join_next().await.unwrap().unwrap());
    calls.shutdown().await;
    Honest::come(&broker).await.work().await;
}

#[tokio::test]
async fn calls_over_the_limit_are_refused_with_the_time_to_wait() {
    let broker = start("[broker_limits]\ncalls_max = 100\n");
    let honest = Honest::come(&broker).await;
    let mut client = Client::connect(&broker).await;
    let path = "/baton.v1.AgentService/ListAgents";
    let mut open = Vec::new();
    for _ in 0..50 {
        open.push(client.call(path, &[]).await);
    }
    let whole = async |client: &mut Client| {
        let mut call = client.call(path, &[]).await;
        call.send(raw::grpc(&[]).into()).await;
        drop(call.body.send_data(Bytes::new(), true));
        call.status().await
    };
    // The broker admits concurrent calls in any order.
    let refusal = loop {
        open.push(client.call(path, &[]).await);
        let status = whole(&mut client).await;
        if status.code() != tonic::Code::Ok {
            break status;
        }
    };
    assert_over_limit(&refusal);
    honest.work().await;
    drop(open);
    let is_served = async { while whole(&mut client).await.code() != tonic::Code::Ok {} };
    tokio::time::timeout(PATIENCE, is_served).await.expect("their places are free again");
}

//! The channel of the stubs: it adds the token to each call, and proves the agent's key again when the token has ended.

use std::{
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::Frame;
use tonic::{
    Code, Status,
    body::Body,
    codegen::{
        Service,
        http::{self, HeaderMap, header::AUTHORIZATION, request::Parts},
    },
    metadata::{Ascii, MetadataValue},
    transport::Channel,
};
use tonic_types::StatusExt as _;

use super::Identity;
use crate::{
    envelope::{FRAME_BYTES_MAX, signing},
    proto::v1::{self, agent_service_client::AgentServiceClient},
};

/// The most bytes of a request that are kept for a second try: one message with its prefix.
const KEPT_BYTES_MAX: usize = FRAME_BYTES_MAX + 5;

/// The token of a client, and the agent that can get another one.
#[derive(Debug, Default)]
pub(super) struct Credentials {
    token: Mutex<Option<MetadataValue<Ascii>>>,
    identity: Option<Identity>,
    /// Held while a new token is got, so that calls that find the old one ended at the same time get one together.
    renewal: tokio::sync::Mutex<()>,
}

impl Credentials {
    pub(super) fn new(token: MetadataValue<Ascii>, identity: Option<Identity>) -> Arc<Self> {
        Arc::new(Self { token: Mutex::new(Some(token)), identity, renewal: tokio::sync::Mutex::default() })
    }

    /// Whether the token can be renewed.
    pub(super) fn has_signed_in(&self) -> bool {
        self.identity.is_some()
    }

    fn token(&self) -> Option<MetadataValue<Ascii>> {
        self.token.lock().expect("no holder panics").clone()
    }

    /// Gets a new token, unless another call has replaced this one already.
    async fn renew(
        &self,
        channel: Channel,
        identity: &Identity,
        ended: Option<&MetadataValue<Ascii>>,
    ) -> Result<(), Status> {
        let _renewal = self.renewal.lock().await;
        if self.token().as_ref() != ended {
            return Ok(());
        }
        let token = prove(channel, identity).await?;
        // A token that no header can carry is of no use: the call is refused as before.
        if let Ok(token) = bearer(&token) {
            *self.token.lock().expect("no holder panics") = Some(token);
        }
        Ok(())
    }
}

/// The header that shows this token.
pub(super) fn bearer(token: &str) -> Result<MetadataValue<Ascii>, tonic::metadata::errors::InvalidMetadataValue> {
    format!("Bearer {token}").parse()
}

/// Answers a challenge with the agent's key. Returns the token.
pub(super) async fn prove(channel: Channel, identity: &Identity) -> Result<String, Status> {
    let (agent_id, key_id) = (identity.agent.to_string(), identity.key_id.to_string());
    // The calls go without the present token, which may have expired.
    let mut agents = AgentServiceClient::new(channel);
    let request = v1::CreateChallengeRequest { agent_id: agent_id.clone() };
    let challenge = agents.create_challenge(request).await?.into_inner().challenge;
    let signature = identity.key.sign(&signing::session_input(&agent_id, &key_id, &challenge));
    let signature = signature.to_vec().into();
    let request = v1::CreateTokenRequest { agent_id, key_id, challenge, signature };
    Ok(agents.create_token(request).await?.into_inner().token)
}

/// A channel that adds the client's token to each call. If the client has [signed in](super::Client::sign_in) and the
/// broker no longer accepts the token, the channel proves the agent's key again and repeats the call once, for all clones
/// of the client.
#[derive(Debug, Clone)]
pub struct Authorized {
    channel: Channel,
    credentials: Arc<Credentials>,
}

impl Authorized {
    pub(super) fn new(channel: Channel, credentials: Arc<Credentials>) -> Self {
        Self { channel, credentials }
    }
}

impl Service<http::Request<Body>> for Authorized {
    type Response = http::Response<Body>;
    type Error = tonic::transport::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.channel.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        // The channel that is ready makes the call, and its clone waits for the next one.
        let next = self.channel.clone();
        let mut channel = std::mem::replace(&mut self.channel, next);
        let credentials = Arc::clone(&self.credentials);
        let (head, body) = request.into_parts();
        let token = credentials.token();
        if !credentials.has_signed_in() {
            return Box::pin(channel.call(with_token(&head, token.as_ref(), body)));
        }
        Box::pin(async move {
            let request = Kept::new(body);
            let answer = channel.call(with_token(&head, token.as_ref(), request.send())).await?;
            let Some(identity) = credentials.identity.as_ref().filter(|_| is_token_ended(answer.headers())) else {
                request.forget();
                return Ok(answer);
            };
            let Some(body) = request.send_again() else { return Ok(answer) };
            if let Err(problem) = credentials.renew(channel.clone(), identity, token.as_ref()).await {
                return Ok(problem.into_http());
            }
            std::future::poll_fn(|context| channel.poll_ready(context)).await?;
            channel.call(with_token(&head, credentials.token().as_ref(), body)).await
        })
    }
}

fn with_token(head: &Parts, token: Option<&MetadataValue<Ascii>>, body: Body) -> http::Request<Body> {
    let mut head = head.clone();
    if let Some(token) = token.and_then(|token| token.as_encoded_bytes().try_into().ok()) {
        head.headers.insert(AUTHORIZATION, token);
    }
    http::Request::from_parts(head, body)
}

/// Whether this is the head of a refusal with TOKEN_INVALID. The broker refuses a token before it reads the request.
fn is_token_ended(headers: &HeaderMap) -> bool {
    if !headers.get(Status::GRPC_STATUS).is_some_and(|code| Code::from_bytes(code.as_bytes()) == Code::Unauthenticated)
    {
        return false;
    }
    let status = Status::from_header_map(headers);
    let info = status.and_then(|status| status.get_details_error_info());
    info.is_some_and(|info| info.reason == "TOKEN_INVALID")
}

/// The body of a request, which can be sent a second time while little of it has been sent.
struct Kept(Arc<Mutex<Request>>);

struct Request {
    /// What has not been sent yet.
    rest: Body,
    is_at_end: bool,
    /// What has been sent. `None`: it can not be sent again.
    sent: Option<Vec<Bytes>>,
    sent_bytes: usize,
    /// The try that sends. An earlier one ends without a further frame.
    present_try: u8,
}

impl Kept {
    fn new(body: Body) -> Self {
        let (is_at_end, sent) = (false, Some(Vec::new()));
        Self(Arc::new(Mutex::new(Request { rest: body, is_at_end, sent, sent_bytes: 0, present_try: 1 })))
    }

    fn send(&self) -> Body {
        Body::new(Try { request: Arc::clone(&self.0), number: 1, again: Vec::new().into_iter() })
    }

    /// The whole body once more. `None`: too much of it has been sent.
    fn send_again(self) -> Option<Body> {
        let mut request = self.0.lock().expect("no holder panics");
        let again = request.sent.take()?.into_iter();
        request.present_try = 2;
        drop(request);
        Some(Body::new(Try { request: self.0, number: 2, again }))
    }

    /// It is not sent again.
    fn forget(self) {
        self.0.lock().expect("no holder panics").sent = None;
    }
}

/// One try to send a request.
struct Try {
    request: Arc<Mutex<Request>>,
    number: u8,
    /// What an earlier try has sent.
    again: std::vec::IntoIter<Bytes>,
}

impl http_body::Body for Try {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        if let Some(data) = this.again.next() {
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        let mut request = this.request.lock().expect("no holder panics");
        if request.is_at_end || request.present_try != this.number {
            return Poll::Ready(None);
        }
        let frame = ready!(Pin::new(&mut request.rest).poll_frame(context));
        match frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref()) {
            Some(data) => {
                request.sent_bytes += data.len();
                if request.sent_bytes > KEPT_BYTES_MAX {
                    request.sent = None;
                } else if let Some(sent) = &mut request.sent {
                    sent.push(data.clone());
                }
            }
            None => request.is_at_end = true,
        }
        Poll::Ready(frame)
    }
}

#[cfg(test)]
mod tests {
    use http_body::Body as _;
    use tokio_stream::wrappers::ReceiverStream;

    use super::*;

    /// A stream of bytes as a body.
    struct Frames<S>(S);

    impl<S: tokio_stream::Stream<Item = Bytes> + Unpin> http_body::Body for Frames<S> {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            Pin::new(&mut self.0).poll_next(context).map(|data| data.map(|data| Ok(Frame::data(data))))
        }
    }

    async fn next(body: &mut Body) -> Option<Bytes> {
        let frame = std::future::poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await;
        frame.map(|frame| frame.unwrap().into_data().unwrap())
    }

    fn of(parts: &[&'static [u8]]) -> Kept {
        let parts: Vec<Bytes> = parts.iter().copied().map(Bytes::from_static).collect();
        Kept::new(Body::new(Frames(tokio_stream::iter(parts))))
    }

    #[tokio::test]
    async fn a_request_is_sent_whole_a_second_time_wherever_the_first_try_was_cut_off() {
        for sent in 0..=3 {
            let request = of(&[b"a", b"b"]);
            let mut first = request.send();
            for _ in 0..sent {
                next(&mut first).await;
            }
            let mut second = request.send_again().unwrap();
            assert_eq!(next(&mut first).await, None, "the first try is over");
            assert_eq!(next(&mut second).await.as_deref(), Some(&b"a"[..]), "after {sent} frames");
            assert_eq!(next(&mut second).await.as_deref(), Some(&b"b"[..]), "after {sent} frames");
            assert_eq!(next(&mut second).await, None);
        }
    }

    #[tokio::test]
    async fn a_stream_of_requests_goes_on_in_the_second_try() {
        let (sender, receiver) = tokio::sync::mpsc::channel(4);
        let request = Kept::new(Body::new(Frames(ReceiverStream::new(receiver))));
        sender.send(Bytes::from_static(b"a")).await.unwrap();
        let mut first = request.send();
        assert_eq!(next(&mut first).await.as_deref(), Some(&b"a"[..]));
        let mut second = request.send_again().unwrap();
        assert_eq!(next(&mut second).await.as_deref(), Some(&b"a"[..]));
        sender.send(Bytes::from_static(b"b")).await.unwrap();
        assert_eq!(next(&mut second).await.as_deref(), Some(&b"b"[..]));
        drop(sender);
        assert_eq!(next(&mut second).await, None);
    }

    #[tokio::test]
    async fn a_request_over_the_limit_of_a_message_is_not_kept() {
        static PART: [u8; 1 << 20] = [0; 1 << 20];
        let request = of(&[&PART[..]; 5]);
        let mut first = request.send();
        let mut sent = 0;
        while next(&mut first).await.is_some() {
            sent += 1;
        }
        assert_eq!(sent, 5);
        assert!(request.send_again().is_none());
    }
}

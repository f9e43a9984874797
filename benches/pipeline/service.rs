//! A minimal implementation of the services, without authentication: each caller is the agent that it claims to be.

use std::{
    collections::HashMap,
    pin::Pin,
    sync::{Arc, Mutex},
};

use baton::{
    envelope::signing,
    proto::v1::{
        self, agent_service_server::AgentService, broker_service_server::BrokerService, connect_request,
        connect_response::Response as Answer,
    },
};
use bytes::Bytes;
use ed25519_dalek::{Signature, VerifyingKey};
use prost::Message as _;
use tokio::sync::mpsc;
use tokio_stream::{Stream, StreamExt as _, wrappers::UnboundedReceiverStream};
use tonic::{Request, Response, Status, Streaming};

use super::{
    engine::{Engine, Submission},
    idle_key,
};

type Outcome<T> = Result<Response<T>, Status>;

pub(crate) struct Service {
    engine: Arc<Engine>,
    keys: Mutex<HashMap<String, VerifyingKey>>,
}

impl Service {
    pub(crate) fn new(engine: Arc<Engine>) -> Self {
        Self { engine, keys: Mutex::default() }
    }
}

#[tonic::async_trait]
impl BrokerService for Service {
    type ConnectStream = Pin<Box<dyn Stream<Item = Result<v1::ConnectResponse, Status>> + Send>>;
    type ReceiveStream = tokio_stream::Empty<Result<v1::ReceiveResponse, Status>>;

    async fn connect(&self, request: Request<Streaming<v1::ConnectRequest>>) -> Outcome<Self::ConnectStream> {
        let token = request.metadata().get("authorization").and_then(|value| value.to_str().ok());
        let agent = token.and_then(|token| token.strip_prefix("Bearer "));
        let agent = agent.ok_or_else(|| Status::unauthenticated("no token"))?.to_owned();
        let key = self.keys.lock().expect("no holder panics").get(&agent).copied();
        let key = key.ok_or_else(|| Status::unauthenticated("not registered"))?;
        let (way, bursts) = mpsc::unbounded_channel();
        let agent: Arc<str> = agent.into();
        self.engine.ways.lock().expect("no holder panics").insert(agent.clone(), way);
        tokio::spawn(take(self.engine.clone(), agent, key, request.into_inner()));
        let frames = UnboundedReceiverStream::new(bursts);
        let frames = Frames { bursts: frames, burst: vec![welcome()].into_iter() };
        Ok(Response::new(Box::pin(frames.map(Ok))))
    }

    async fn send(&self, _: Request<v1::SendRequest>) -> Outcome<v1::SendResponse> {
        Err(missing())
    }

    async fn receive(&self, _: Request<v1::ReceiveRequest>) -> Outcome<Self::ReceiveStream> {
        Err(missing())
    }

    async fn ack(&self, _: Request<v1::AckRequest>) -> Outcome<v1::AckResponse> {
        Err(missing())
    }
}

fn welcome() -> v1::ConnectResponse {
    let public_key = idle_key().as_bytes().to_vec().into();
    let broker_key = Some(v1::AgentKey { public_key, ..Default::default() });
    let welcome = v1::Welcome { broker_key, ..Default::default() };
    v1::ConnectResponse { request_id: 0, response: Some(Answer::Welcome(welcome)) }
}

/// Reads and drops acks, credit and heartbeats, because this pipeline has no state that they affect.
async fn take(engine: Arc<Engine>, agent: Arc<str>, key: VerifyingKey, mut frames: Streaming<v1::ConnectRequest>) {
    let submissions = engine.submissions.lock().expect("no holder panics").clone();
    while let Some(Ok(frame)) = frames.next().await {
        let Some(connect_request::Request::Envelope(raw)) = frame.request else {
            answer(&engine, &agent, frame.request_id);
            continue;
        };
        let Some(submission) = submission(frame.request_id, &agent, key, raw) else { continue };
        if submissions.send(submission).is_err() {
            return;
        }
    }
}

/// Answers a frame that carries a request id.
fn answer(engine: &Engine, agent: &str, request_id: u64) {
    if request_id != 0
        && let Some(way) = engine.ways.lock().expect("no holder panics").get(agent)
    {
        let response = Some(Answer::Credited(v1::Credited::default()));
        let _ = way.send(vec![v1::ConnectResponse { request_id, response }]); // fails if the session has ended
    }
}

fn submission(request_id: u64, agent: &Arc<str>, key: VerifyingKey, raw: Bytes) -> Option<Submission> {
    let envelope = v1::Envelope::decode(raw.clone()).ok()?;
    let signature = Signature::from_slice(&envelope.signature).ok();
    let signed = signature.map(|signature| (signing::envelope_input(&envelope), signature, key));
    let (message_id, receiver) = (envelope.message_id, envelope.receiver_id);
    Some(Submission { request_id, raw, message_id, sender: agent.clone(), receiver, signed })
}

/// Yields the frames of bursts one by one.
struct Frames {
    bursts: UnboundedReceiverStream<Vec<v1::ConnectResponse>>,
    burst: std::vec::IntoIter<v1::ConnectResponse>,
}

impl Stream for Frames {
    type Item = v1::ConnectResponse;

    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        use std::task::{Poll, ready};
        loop {
            if let Some(frame) = self.burst.next() {
                return Poll::Ready(Some(frame));
            }
            match ready!(Pin::new(&mut self.bursts).poll_next(context)) {
                Some(burst) => self.burst = burst.into_iter(),
                None => return Poll::Ready(None),
            }
        }
    }
}

#[tonic::async_trait]
impl AgentService for Service {
    async fn register_agent(&self, request: Request<v1::RegisterAgentRequest>) -> Outcome<v1::RegisterAgentResponse> {
        let card = request.into_inner().card.unwrap_or_default();
        let key = card.keys.first().and_then(|key| key.public_key.as_ref().try_into().ok());
        let key = key.and_then(|bytes| VerifyingKey::from_bytes(bytes).ok());
        let key = key.ok_or_else(|| Status::invalid_argument("no key"))?;
        self.keys.lock().expect("no holder panics").insert(card.agent_id, key);
        Ok(Response::new(v1::RegisterAgentResponse::default()))
    }

    async fn add_agent_key(&self, _: Request<v1::AddAgentKeyRequest>) -> Outcome<v1::AddAgentKeyResponse> {
        Err(missing())
    }

    async fn revoke_agent_key(&self, _: Request<v1::RevokeAgentKeyRequest>) -> Outcome<v1::RevokeAgentKeyResponse> {
        Err(missing())
    }

    async fn create_login_code(&self, _: Request<v1::CreateLoginCodeRequest>) -> Outcome<v1::CreateLoginCodeResponse> {
        Err(missing())
    }

    async fn vouch_for_agent_key(
        &self,
        _: Request<v1::VouchForAgentKeyRequest>,
    ) -> Outcome<v1::VouchForAgentKeyResponse> {
        Err(missing())
    }

    async fn create_challenge(&self, _: Request<v1::CreateChallengeRequest>) -> Outcome<v1::CreateChallengeResponse> {
        Ok(Response::new(v1::CreateChallengeResponse::default()))
    }

    /// Issues the agent's id as its token.
    async fn create_token(&self, request: Request<v1::CreateTokenRequest>) -> Outcome<v1::CreateTokenResponse> {
        let token = request.into_inner().agent_id;
        Ok(Response::new(v1::CreateTokenResponse { token, ..Default::default() }))
    }

    async fn create_invitation(
        &self,
        _: Request<v1::CreateInvitationRequest>,
    ) -> Outcome<v1::CreateInvitationResponse> {
        Err(missing())
    }

    async fn get_agent(&self, _: Request<v1::GetAgentRequest>) -> Outcome<v1::GetAgentResponse> {
        Err(missing())
    }

    async fn list_processes(&self, _: Request<v1::ListProcessesRequest>) -> Outcome<v1::ListProcessesResponse> {
        Err(missing())
    }

    async fn list_agents(&self, _: Request<v1::ListAgentsRequest>) -> Outcome<v1::ListAgentsResponse> {
        Err(missing())
    }

    async fn update_agent(&self, _: Request<v1::UpdateAgentRequest>) -> Outcome<v1::UpdateAgentResponse> {
        Err(missing())
    }

    async fn deregister_agent(&self, _: Request<v1::DeregisterAgentRequest>) -> Outcome<v1::DeregisterAgentResponse> {
        Err(missing())
    }

    async fn find_agents(&self, _: Request<v1::FindAgentsRequest>) -> Outcome<v1::FindAgentsResponse> {
        Err(missing())
    }

    type WatchAgentsStream = tokio_stream::Empty<Result<v1::WatchAgentsResponse, Status>>;

    async fn watch_agents(&self, _: Request<v1::WatchAgentsRequest>) -> Outcome<Self::WatchAgentsStream> {
        Err(missing())
    }
}

fn missing() -> Status {
    Status::unimplemented("the bare pipeline has no such call")
}

//! A scripted broker. It can lie and break off in ways that a real broker does not.
//!
//! It answers authentication, the directory, and reads of the handoffs and tasks that the case has set by itself, as
//! any broker would. The case handles envelopes and deliveries.

use std::{
    collections::{HashMap, HashSet},
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    net::TcpListener,
    sync::{mpsc, watch},
    task::JoinSet,
};
use tokio_stream::{
    StreamExt as _,
    wrappers::{TcpListenerStream, UnboundedReceiverStream},
};
use tonic::{
    Code, Request, Response, Status, Streaming,
    transport::{Server, ServerTlsConfig},
};

use super::{refusal::Refusal, relay::Relay};
use baton_client::{
    envelope::{
        FRAME_BYTES_MAX, PAYLOAD_BYTES_MAX,
        keys::{PrivateKey, PublicKey},
        signing,
    },
    ids::{IdSource as _, SystemIds},
    proto::v1::{
        self, acknowledgement::Outcome, connect_request::Request as Asked, connect_response::Response as Said,
    },
    time::{Clock as _, SystemClock},
};
use baton_services::v1::{
    agent_service_server::{AgentService, AgentServiceServer},
    broker_service_server::{BrokerService, BrokerServiceServer},
    handoff_service_server::{HandoffService, HandoffServiceServer},
    negotiation_service_server::NegotiationServiceServer,
    task_service_server::{TaskService, TaskServiceServer},
};

/// The ack wait, short to keep the cases short.
pub(super) const ACK_WAIT: Duration = Duration::from_secs(3);
/// The heartbeat interval that the welcome announces.
pub(super) const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(250);
/// The id of the client's agent.
pub(super) const AGENT: &str = "bob";
/// The id of the agent's key.
pub(super) const KEY_ID: &str = "k1";

/// The answer to calls that no case needs.
pub(super) const NOT_IN_SCRIPT: Refusal = Refusal::new(Code::Unimplemented, "NOT_SUPPORTED");

/// The page limit of `ListTasks`, which overrides the client's page size. It is small, so that a case has several
/// pages.
pub(super) const TASKS_A_PAGE: usize = 2;

/// The answer to a call.
pub(super) type Answer<T> = Result<Response<T>, Status>;
type Frames = UnboundedReceiverStream<Result<v1::ConnectResponse, Status>>;

/// The settings of the script, and the observations of the broker.
#[derive(Debug, Default)]
pub(super) struct State {
    /// The keys of agents, as `GetAgent` returns them.
    pub directory: HashMap<String, Vec<v1::AgentKey>>,
    /// The refusal of every CreateToken call; `None`: valid proofs are accepted.
    pub refuses_proofs: Option<Refusal>,
    /// The refusal of the next CreateToken call alone.
    pub refuses_next_proof: Option<Refusal>,
    /// The number of CreateToken calls.
    pub proofs: usize,
    /// The problem of each invalid proof.
    pub bad_proofs: Vec<String>,
    /// The number of calls of any kind.
    pub calls: usize,
    /// The handoffs that `GetHandoff` returns, by handoff id.
    pub handoffs: HashMap<String, v1::Handoff>,
    /// The number of answers that `GetHandoff` has given.
    pub handoffs_shown: watch::Sender<usize>,
    /// The negotiations that `GetNegotiation` returns, by negotiation id.
    pub negotiations: HashMap<String, v1::Negotiation>,
    /// The tasks that `GetTask` and `ListTasks` return, newest first.
    pub tasks: Vec<v1::Task>,
    /// The tasks that the next `ResumeTasks` gives.
    pub to_resume: Vec<v1::Task>,
    /// The processes that have called `ResumeTasks`.
    pub resumed_by: Vec<String>,
    challenges: HashSet<Vec<u8>>,
    tokens: HashSet<String>,
}

impl State {
    /// Expires every issued token.
    pub(crate) fn expire_tokens(&mut self) {
        self.tokens.clear();
    }
}

/// The scripted broker, behind its relay.
pub(super) struct Broker {
    /// The relay that clients connect to.
    pub relay: Relay,
    /// The key that signs receipts.
    pub key: PrivateKey,
    /// The settings and observations: see [`State`].
    pub state: Arc<Mutex<State>>,
    sessions: mpsc::UnboundedReceiver<Session>,
    _serving: JoinSet<()>,
}

/// One `Connect` stream for the case. Credit, heartbeats and acknowledgements are already answered.
pub(super) struct Session {
    /// Every frame of the stream, as the reader passes it on.
    frames: mpsc::UnboundedReceiver<v1::ConnectRequest>,
    /// Frames that have arrived and that the case has not picked.
    backlog: Vec<v1::ConnectRequest>,
    out: mpsc::UnboundedSender<Result<v1::ConnectResponse, Status>>,
    answers_acknowledgements: Arc<AtomicBool>,
    /// The ids of the deliveries of this session.
    delivered: Arc<Mutex<HashSet<String>>>,
}

impl Broker {
    /// Starts a broker that lists the agent with this key.
    pub(crate) async fn start(tls: tonic::transport::Identity, agent: PublicKey) -> io::Result<Self> {
        let key = PrivateKey::generate(&SystemIds);
        let directory = HashMap::from([
            ("baton".to_owned(), vec![key_of("broker", &key.public())]),
            (AGENT.to_owned(), vec![key_of(KEY_ID, &agent)]),
        ]);
        let state = Arc::new(Mutex::new(State { directory, ..State::default() }));
        let (sender, sessions) = mpsc::unbounded_channel();
        let service = Scripted { state: Arc::clone(&state), agent, broker_key: key.public(), sessions: sender };
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let relay = Relay::open(listener.local_addr()?).await?;
        let server = Server::builder()
            .tls_config(ServerTlsConfig::new().identity(tls))
            .map_err(io::Error::other)?
            .add_service(AgentServiceServer::new(service.clone()))
            .add_service(HandoffServiceServer::new(service.clone()))
            .add_service(TaskServiceServer::new(service.clone()))
            .add_service(NegotiationServiceServer::new(service.clone()))
            .add_service(BrokerServiceServer::new(service));
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            // The server stops with the case. A failure of the listener shows in the case's own report.
            let _ = server.serve_with_incoming(TcpListenerStream::new(listener)).await;
        });
        Ok(Self { relay, key, state, sessions, _serving: serving })
    }

    /// Locks the settings and observations.
    pub(crate) fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }

    /// The next session that a client opens.
    pub(crate) async fn session(&mut self) -> Option<Session> {
        self.sessions.recv().await
    }
}

/// A key as listed in the directory.
pub(super) fn key_of(key_id: &str, key: &PublicKey) -> v1::AgentKey {
    v1::AgentKey { key_id: key_id.to_owned(), public_key: key.as_bytes().to_vec().into(), ..Default::default() }
}

impl Session {
    /// Sends a response; `request_id` 0 marks an unsolicited one. Ignores a client that has disconnected.
    pub(crate) fn say(&self, request_id: u64, said: Said) {
        if let Said::Delivery(delivery) = &said {
            self.delivered.lock().expect("no holder panics").insert(delivery.delivery_id.clone());
        }
        let _ = self.out.send(Ok(v1::ConnectResponse { request_id, response: Some(said) }));
    }

    /// Sends a response that this version of the schema does not define.
    pub(crate) fn say_nothing_known(&self) {
        let _ = self.out.send(Ok(v1::ConnectResponse::default()));
    }

    /// Ends the session with a refusal, or without an error.
    pub(crate) fn end(self, refusal: Option<Refusal>) {
        if let Some(refusal) = refusal {
            let _ = self.out.send(Err(refusal.status()));
        }
    }

    /// Stops answering acks, nacks and extensions.
    pub(crate) fn leave_acknowledgements(&self) {
        self.answers_acknowledgements.store(false, Ordering::Relaxed);
    }

    /// Removes the first frame that `pick` selects. `None` if the session ends first.
    pub(crate) async fn pick<T>(&mut self, mut pick: impl FnMut(&v1::ConnectRequest) -> Option<T>) -> Option<T> {
        // The backlog first, because its frames are older than those in the queue.
        for (place, frame) in self.backlog.iter().enumerate() {
            if let Some(picked) = pick(frame) {
                self.backlog.remove(place);
                return Some(picked);
            }
        }
        while let Some(frame) = self.frames.recv().await {
            match pick(&frame) {
                Some(picked) => return Some(picked),
                None => self.backlog.push(frame),
            }
        }
        None
    }

    /// The unpicked frames as text.
    pub(crate) fn unread(&self) -> Vec<String> {
        self.backlog.iter().filter_map(in_words).collect()
    }
}

fn in_words(frame: &v1::ConnectRequest) -> Option<String> {
    match frame.request.as_ref()? {
        Asked::Hello(_) | Asked::Heartbeat(_) | Asked::Credit(_) => None,
        Asked::Envelope(bytes) => {
            let envelope = <v1::Envelope as prost::Message>::decode(bytes.clone()).unwrap_or_default();
            Some(format!("{} to {:?}", envelope.message_type().as_str_name(), envelope.receiver_id))
        }
        Asked::Acknowledgement(one) => {
            let outcome = match &one.outcome {
                Some(Outcome::Ack(_)) => "ack".to_owned(),
                Some(Outcome::Nack(nack)) => format!("nack {}: {}", nack.cause().as_str_name(), nack.reason_text),
                Some(Outcome::Extend(_)) => "extend".to_owned(),
                None => "nothing".to_owned(),
            };
            Some(format!("{outcome} of {}", one.delivery_id))
        }
    }
}

/// The services of the broker.
#[derive(Clone)]
pub(super) struct Scripted {
    state: Arc<Mutex<State>>,
    agent: PublicKey,
    broker_key: PublicKey,
    sessions: mpsc::UnboundedSender<Session>,
}

impl Scripted {
    pub(super) fn state(&self) -> std::sync::MutexGuard<'_, State> {
        let mut state = self.state.lock().expect("no holder panics");
        // A call that locks the state twice counts twice. The cases only ask whether any call has arrived.
        state.calls += 1;
        state
    }

    /// Checks that the call carries a valid token.
    pub(super) fn check_token<T>(&self, request: &Request<T>) -> Result<(), Status> {
        let shown = request.metadata().get("authorization").and_then(|value| value.to_str().ok());
        let token = shown.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default();
        match self.state().tokens.contains(token) {
            true => Ok(()),
            false => Err(Refusal::new(Code::Unauthenticated, "TOKEN_INVALID").status()),
        }
    }

    fn welcome(&self) -> v1::Welcome {
        v1::Welcome {
            session_id: "s".to_owned(),
            agent_id: AGENT.to_owned(),
            broker_id: "baton".to_owned(),
            broker_key: Some(key_of("broker", &self.broker_key)),
            ack_wait: prost_types::Duration::try_from(ACK_WAIT).ok(),
            heartbeat_interval: prost_types::Duration::try_from(HEARTBEAT_INTERVAL).ok(),
            presence_lease: prost_types::Duration::try_from(ACK_WAIT).ok(),
            payload_bytes_max: u32::try_from(PAYLOAD_BYTES_MAX).unwrap_or(u32::MAX),
            frame_bytes_max: u32::try_from(FRAME_BYTES_MAX).unwrap_or(u32::MAX),
        }
    }
}

#[tonic::async_trait]
impl AgentService for Scripted {
    async fn register_agent(&self, request: Request<v1::RegisterAgentRequest>) -> Answer<v1::RegisterAgentResponse> {
        let agent = v1::Agent { card: request.into_inner().card, ..Default::default() };
        drop(self.state());
        Ok(Response::new(v1::RegisterAgentResponse { agent: Some(agent) }))
    }

    async fn get_agent(&self, request: Request<v1::GetAgentRequest>) -> Answer<v1::GetAgentResponse> {
        let agent_id = request.into_inner().agent_id;
        let Some(keys) = self.state().directory.get(&agent_id).cloned() else {
            return Err(Refusal::new(Code::NotFound, "AGENT_UNKNOWN").status());
        };
        let card = v1::AgentCard { agent_id, keys, ..Default::default() };
        let agent = v1::Agent { card: Some(card), ..Default::default() };
        Ok(Response::new(v1::GetAgentResponse { agent: Some(agent), ..Default::default() }))
    }

    async fn create_challenge(&self, _: Request<v1::CreateChallengeRequest>) -> Answer<v1::CreateChallengeResponse> {
        let challenge = [SystemIds.random(), SystemIds.random()].concat();
        self.state().challenges.insert(challenge.clone());
        Ok(Response::new(v1::CreateChallengeResponse { challenge: challenge.into(), expire_time: None }))
    }

    async fn create_token(&self, request: Request<v1::CreateTokenRequest>) -> Answer<v1::CreateTokenResponse> {
        let request = request.into_inner();
        let mut state = self.state();
        state.proofs += 1;
        let input = signing::session_input(&request.agent_id, &request.key_id, &request.challenge);
        let problem = match () {
            () if request.agent_id != AGENT || request.key_id != KEY_ID => {
                Some(format!("it is for {:?} by key {:?}", request.agent_id, request.key_id))
            }
            // A challenge is good for one try (SPEC 5).
            () if !state.challenges.remove(request.challenge.as_ref()) => {
                Some("its challenge is none that the broker gave, or was used before".to_owned())
            }
            () if !self.agent.verifies(&input, &request.signature) => Some("its signature does not verify".to_owned()),
            () => None,
        };
        // Recorded also while the script refuses proofs, so that the case can check the proof itself.
        state.bad_proofs.extend(problem.clone());
        if let Some(refusal) = state.refuses_next_proof.take().or(state.refuses_proofs) {
            return Err(refusal.status());
        }
        if problem.is_some() {
            return Err(Refusal::new(Code::Unauthenticated, "CHALLENGE_FAILED").status());
        }
        let token = hex::encode(SystemIds.random());
        state.tokens.insert(token.clone());
        let expire_time = Some(SystemClock.now().plus(Duration::from_secs(3600)).into());
        Ok(Response::new(v1::CreateTokenResponse { token, expire_time }))
    }

    async fn create_invitation(&self, _: Request<v1::CreateInvitationRequest>) -> Answer<v1::CreateInvitationResponse> {
        Err(NOT_IN_SCRIPT.status())
    }

    async fn add_agent_key(&self, _: Request<v1::AddAgentKeyRequest>) -> Answer<v1::AddAgentKeyResponse> {
        Err(NOT_IN_SCRIPT.status())
    }

    async fn revoke_agent_key(&self, _: Request<v1::RevokeAgentKeyRequest>) -> Answer<v1::RevokeAgentKeyResponse> {
        Err(NOT_IN_SCRIPT.status())
    }

    async fn vouch_for_agent_key(
        &self,
        _: Request<v1::VouchForAgentKeyRequest>,
    ) -> Answer<v1::VouchForAgentKeyResponse> {
        Err(NOT_IN_SCRIPT.status())
    }

    async fn create_login_code(&self, _: Request<v1::CreateLoginCodeRequest>) -> Answer<v1::CreateLoginCodeResponse> {
        Err(NOT_IN_SCRIPT.status())
    }

    async fn list_processes(&self, _: Request<v1::ListProcessesRequest>) -> Answer<v1::ListProcessesResponse> {
        Err(NOT_IN_SCRIPT.status())
    }

    async fn list_agents(&self, _: Request<v1::ListAgentsRequest>) -> Answer<v1::ListAgentsResponse> {
        Err(NOT_IN_SCRIPT.status())
    }

    async fn update_agent(&self, _: Request<v1::UpdateAgentRequest>) -> Answer<v1::UpdateAgentResponse> {
        Err(NOT_IN_SCRIPT.status())
    }

    async fn deregister_agent(&self, _: Request<v1::DeregisterAgentRequest>) -> Answer<v1::DeregisterAgentResponse> {
        Err(NOT_IN_SCRIPT.status())
    }

    async fn find_agents(&self, _: Request<v1::FindAgentsRequest>) -> Answer<v1::FindAgentsResponse> {
        Err(NOT_IN_SCRIPT.status())
    }

    type WatchAgentsStream = UnboundedReceiverStream<Result<v1::WatchAgentsResponse, Status>>;

    async fn watch_agents(&self, _: Request<v1::WatchAgentsRequest>) -> Answer<Self::WatchAgentsStream> {
        Err(NOT_IN_SCRIPT.status())
    }
}

#[tonic::async_trait]
impl BrokerService for Scripted {
    type ConnectStream = Frames;
    type ReceiveStream = UnboundedReceiverStream<Result<v1::ReceiveResponse, Status>>;

    async fn connect(&self, request: Request<Streaming<v1::ConnectRequest>>) -> Answer<Frames> {
        self.check_token(&request)?;
        let (out, answers) = mpsc::unbounded_channel();
        let (sender, frames) = mpsc::unbounded_channel();
        let answers_acknowledgements = Arc::new(AtomicBool::new(true));
        let delivered = Arc::new(Mutex::new(HashSet::new()));
        let reader = Reader {
            // Weak, so that the stream ends when the case drops its session.
            out: out.downgrade(),
            answers_acknowledgements: Arc::clone(&answers_acknowledgements),
            delivered: Arc::clone(&delivered),
        };
        tokio::spawn(reader.read(request.into_inner(), sender));
        let session = Session { frames, backlog: Vec::new(), out, answers_acknowledgements, delivered };
        // Before the case gets the session, because the welcome is the first frame.
        session.say(0, Said::Welcome(self.welcome()));
        let _ = self.sessions.send(session); // fails only after the case is over
        Ok(Response::new(UnboundedReceiverStream::new(answers)))
    }

    async fn send(&self, _: Request<v1::SendRequest>) -> Answer<v1::SendResponse> {
        Err(NOT_IN_SCRIPT.status())
    }

    async fn receive(&self, _: Request<v1::ReceiveRequest>) -> Answer<Self::ReceiveStream> {
        Err(NOT_IN_SCRIPT.status())
    }

    async fn ack(&self, _: Request<v1::AckRequest>) -> Answer<v1::AckResponse> {
        Err(NOT_IN_SCRIPT.status())
    }
}

#[tonic::async_trait]
impl HandoffService for Scripted {
    type WatchHandoffStream = UnboundedReceiverStream<Result<v1::WatchHandoffResponse, Status>>;
    type WatchHandoffsStream = UnboundedReceiverStream<Result<v1::WatchHandoffsResponse, Status>>;

    async fn get_handoff(&self, request: Request<v1::GetHandoffRequest>) -> Answer<v1::GetHandoffResponse> {
        self.check_token(&request)?;
        let state = self.state();
        state.handoffs_shown.send_modify(|count| *count += 1);
        let handoff = state.handoffs.get(&request.into_inner().handoff_id).cloned();
        drop(state);
        match handoff {
            Some(_) => Ok(Response::new(v1::GetHandoffResponse { handoff, ..Default::default() })),
            None => Err(Refusal::new(Code::NotFound, "HANDOFF_UNKNOWN").status()),
        }
    }

    async fn list_handoffs(&self, _: Request<v1::ListHandoffsRequest>) -> Answer<v1::ListHandoffsResponse> {
        Err(NOT_IN_SCRIPT.status())
    }

    async fn watch_handoff(&self, _: Request<v1::WatchHandoffRequest>) -> Answer<Self::WatchHandoffStream> {
        Err(NOT_IN_SCRIPT.status())
    }

    async fn watch_handoffs(&self, _: Request<v1::WatchHandoffsRequest>) -> Answer<Self::WatchHandoffsStream> {
        Err(NOT_IN_SCRIPT.status())
    }
}

#[tonic::async_trait]
impl TaskService for Scripted {
    type WatchTaskStream = UnboundedReceiverStream<Result<v1::WatchTaskResponse, Status>>;

    async fn get_task(&self, request: Request<v1::GetTaskRequest>) -> Answer<v1::GetTaskResponse> {
        self.check_token(&request)?;
        let task_id = request.into_inner().task_id;
        let task = self.state().tasks.iter().find(|task| task.task_id == task_id).cloned();
        match task {
            Some(_) => Ok(Response::new(v1::GetTaskResponse { task })),
            None => Err(Refusal::new(Code::NotFound, "TASK_UNKNOWN").status()),
        }
    }

    async fn list_tasks(&self, request: Request<v1::ListTasksRequest>) -> Answer<v1::ListTasksResponse> {
        self.check_token(&request)?;
        let request = request.into_inner();
        let from: usize = match request.page_token.as_str() {
            "" => 0,
            // A token is the index of the next task.
            token => token.parse().map_err(|_| Refusal::new(Code::InvalidArgument, "PAGE_TOKEN_INVALID").status())?,
        };
        let is_asked_for = |task: &&v1::Task| {
            (request.owner_id.is_empty() || request.owner_id == task.owner_id)
                && (request.statuses.is_empty() || request.statuses.contains(&task.status))
        };
        let size = if request.page_size == 0 { TASKS_A_PAGE } else { (request.page_size as usize).min(TASKS_A_PAGE) };
        let state = self.state();
        let matching: Vec<&v1::Task> = state.tasks.iter().filter(is_asked_for).collect();
        let tasks = matching.iter().skip(from).take(size).map(|task| (*task).clone()).collect();
        let is_last = from + size >= matching.len();
        let next_page_token = if is_last { String::new() } else { (from + size).to_string() };
        Ok(Response::new(v1::ListTasksResponse { tasks, next_page_token }))
    }

    async fn resume_tasks(&self, request: Request<v1::ResumeTasksRequest>) -> Answer<v1::ResumeTasksResponse> {
        self.check_token(&request)?;
        let mut state = self.state();
        state.resumed_by.push(request.into_inner().instance_id);
        Ok(Response::new(v1::ResumeTasksResponse { tasks: std::mem::take(&mut state.to_resume) }))
    }

    async fn reassign_task(&self, _: Request<v1::ReassignTaskRequest>) -> Answer<v1::ReassignTaskResponse> {
        Err(NOT_IN_SCRIPT.status())
    }

    async fn get_custody_log(&self, _: Request<v1::GetCustodyLogRequest>) -> Answer<v1::GetCustodyLogResponse> {
        Err(NOT_IN_SCRIPT.status())
    }

    async fn watch_task(&self, _: Request<v1::WatchTaskRequest>) -> Answer<Self::WatchTaskStream> {
        Err(NOT_IN_SCRIPT.status())
    }
}

/// Receives a client's frames: answers the ones with a fixed answer, and passes all of them to the case.
struct Reader {
    out: mpsc::WeakUnboundedSender<Result<v1::ConnectResponse, Status>>,
    answers_acknowledgements: Arc<AtomicBool>,
    delivered: Arc<Mutex<HashSet<String>>>,
}

impl Reader {
    async fn read(
        self,
        mut requests: Streaming<v1::ConnectRequest>,
        frames: mpsc::UnboundedSender<v1::ConnectRequest>,
    ) {
        while let Some(Ok(frame)) = requests.next().await {
            let answer = self.answer(&frame);
            let request_id = frame.request_id;
            // Before the answer: once the client acts on the answer, the case already has the frame.
            if frames.send(frame).is_err() {
                return;
            }
            if let (Some(said), Some(out)) = (answer, self.out.upgrade()) {
                let _ = out.send(Ok(v1::ConnectResponse { request_id, response: Some(said) }));
            }
        }
    }

    fn answer(&self, frame: &v1::ConnectRequest) -> Option<Said> {
        match frame.request.as_ref()? {
            Asked::Credit(v1::Credit { max_outstanding }) => {
                Some(Said::Credited(v1::Credited { max_outstanding: *max_outstanding }))
            }
            Asked::Hello(_) | Asked::Heartbeat(_) if frame.request_id != 0 => {
                Some(Said::Credited(v1::Credited::default()))
            }
            Asked::Acknowledgement(one) if self.answers_acknowledgements.load(Ordering::Relaxed) => {
                if !self.delivered.lock().expect("no holder panics").contains(&one.delivery_id) {
                    return Some(Said::Error(Refusal::new(Code::NotFound, "DELIVERY_UNKNOWN").message()));
                }
                let is_extended = matches!(one.outcome, Some(Outcome::Extend(_)));
                let ack_deadline = is_extended.then(|| SystemClock.now().plus(ACK_WAIT).into());
                Some(Said::Acknowledged(v1::Acknowledged { delivery_id: one.delivery_id.clone(), ack_deadline }))
            }
            Asked::Acknowledgement(_) | Asked::Heartbeat(_) | Asked::Hello(_) | Asked::Envelope(_) => None,
        }
    }
}

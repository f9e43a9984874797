//! A session: the `Connect` stream, with answers matched to requests; and an agent on one session.

use std::{
    collections::HashMap,
    mem, slice,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use prost::Message as _;
use tokio::{
    sync::{mpsc, oneshot, watch},
    time,
};
use tokio_stream::{Stream, StreamExt, wrappers::ReceiverStream};
use tonic::{Code, Status, Streaming};

pub use super::session_agent::Agent;
use super::{Client, ClientError, error::Refused, work::Work};
use crate::{
    codes::ErrorCode,
    envelope::{FRAME_BYTES_MAX, keys::PublicKey, signing},
    proto::v1::{self, acknowledgement::Outcome, connect_request::Request, connect_response::Response},
};

/// The capacity of the queue of outgoing frames.
const FRAMES_MAX: usize = 1024;
/// The capacity of the queue of deliveries. At least the highest credit, so that the reader never blocks on it.
const DELIVERIES_MAX: usize = 4096;
/// The shortest time between two heartbeats by which a change of the work is told.
const CHANGES_EVERY: Duration = Duration::from_millis(200);
/// The time limit of answers that the broker gives at once. A session without one counts as ended for its request.
pub(super) const ANSWER_MAX: Duration = Duration::from_secs(30);

type Answer = Result<Response, ClientError>;

/// A request without an answer.
#[derive(Debug)]
struct Unanswered {
    answer: oneshot::Sender<Answer>,
    /// The size of the request's envelope; 0 for a request without one.
    envelope_bytes: usize,
}

#[derive(Debug, Default)]
struct Pending {
    answers: HashMap<u64, Unanswered>,
    /// Why the session has ended; `None` while it is open.
    ended: Option<String>,
    /// The reconnect delay that the broker asked for.
    reconnect_after: Option<Duration>,
}

impl Pending {
    /// Refuses the largest envelope without an answer. Sent again, it would end the next session too.
    fn blame_largest(&mut self, refusal: ClientError) {
        let envelopes = self.answers.iter().filter(|(_, asked)| asked.envelope_bytes > 0);
        let largest = envelopes.max_by_key(|(_, asked)| asked.envelope_bytes).map(|(request_id, _)| *request_id);
        if let Some(asked) = largest.and_then(|request_id| self.answers.remove(&request_id)) {
            // The caller may have stopped waiting.
            drop(asked.answer.send(Err(refusal)));
        }
    }
}

/// The process behind a session.
#[derive(Debug, Clone)]
pub(super) struct Process {
    /// Its first frame. The id is the same for all sessions of the process.
    pub hello: v1::Hello,
    /// The tasks that it works on, for its heartbeats; `None`: they list what the caller sets.
    pub work: Option<Arc<Work>>,
}

/// The agent's own state, sent with every heartbeat.
#[derive(Debug, Default)]
struct OwnState {
    heartbeat: v1::Heartbeat,
    /// How many calls have set the state.
    calls: u64,
    /// Fills `working_on`.
    work: Option<Arc<Work>>,
}

impl OwnState {
    fn now(&self) -> v1::Heartbeat {
        self.told(self.heartbeat.clone())
    }

    /// The heartbeat with the tasks that the process works on.
    fn told(&self, heartbeat: v1::Heartbeat) -> v1::Heartbeat {
        match &self.work {
            Some(work) => v1::Heartbeat { working_on: work.working_on(), ..heartbeat },
            None => heartbeat,
        }
    }
}

/// An open session.
#[derive(Debug)]
pub struct Session {
    /// The broker's first frame.
    pub welcome: v1::Welcome,
    broker_key: PublicKey,
    /// The keys that verify receipts instead of the key of the welcome; `None`: no keys of the broker are pinned.
    pub(super) pinned_keys: Option<Vec<PublicKey>>,
    frames: mpsc::Sender<v1::ConnectRequest>,
    pending: Arc<Mutex<Pending>>,
    next_request: AtomicU64,
    deliveries: tokio::sync::Mutex<mpsc::Receiver<v1::Delivery>>,
    own_state: Arc<Mutex<OwnState>>,
    /// [`ANSWER_MAX`], except in tests.
    answer_max: Duration,
}

impl Session {
    /// Opens a session for the agent of the client's token. The session sends heartbeats at the interval that the
    /// broker asks for. It names no process: what answers the messages that are sent on it goes to any session of the
    /// agent.
    pub async fn open(client: &Client) -> Result<Self, ClientError> {
        Self::open_as(client, None).await
    }

    /// Opens a session of this process.
    pub(super) async fn open_as(client: &Client, process: Option<Process>) -> Result<Self, ClientError> {
        let (frames, receiver) = mpsc::channel(FRAMES_MAX);
        if let Some(process) = &process {
            // The first frame, so that the broker knows the process before it dispatches to it. The queue is empty.
            let hello = Request::Hello(process.hello.clone());
            drop(frames.try_send(v1::ConnectRequest { request_id: 0, request: Some(hello) }));
        }
        let (welcome, responses) = open_stream(client, ReceiverStream::new(receiver)).await?;
        // Without the broker's key no receipt can be verified, so such a session is of no use.
        let key = welcome.broker_key.as_ref().map(|key| PublicKey::parse(&key.public_key));
        let Some(Ok(broker_key)) = key else {
            return Err(ClientError::Answer("the welcome has no good key of the broker".to_owned()));
        };
        Ok(Self::begun(welcome, broker_key, frames, responses, process.and_then(|process| process.work)))
    }

    /// The session of this stream, whose welcome has been read.
    pub(super) fn begun(
        welcome: v1::Welcome,
        broker_key: PublicKey,
        frames: mpsc::Sender<v1::ConnectRequest>,
        responses: impl Stream<Item = Result<v1::ConnectResponse, Status>> + Unpin + Send + 'static,
        work: Option<Arc<Work>>,
    ) -> Self {
        let (sender, deliveries) = mpsc::channel(DELIVERIES_MAX);
        let pending = Arc::new(Mutex::new(Pending::default()));
        tokio::spawn(read(responses, sender, pending.clone()));
        let own_state = Arc::new(Mutex::new(OwnState { work: work.clone(), ..OwnState::default() }));
        let interval = welcome.heartbeat_interval.and_then(|interval| Duration::try_from(interval).ok());
        // `tokio::time::interval` panics on zero, and the value comes from the peer.
        if let Some(interval) = interval.filter(|interval| !interval.is_zero()) {
            tokio::spawn(beat(frames.downgrade(), interval, Arc::clone(&own_state), work));
        }
        Self {
            welcome,
            broker_key,
            pinned_keys: None,
            frames,
            pending,
            next_request: AtomicU64::new(1),
            deliveries: tokio::sync::Mutex::new(deliveries),
            own_state,
            answer_max: ANSWER_MAX,
        }
    }

    /// Sends an envelope unchanged. Returns the broker's receipt, with a verified signature. The broker checks the
    /// content; only a frame over 4,194,304 bytes, which would end the connection, is refused here.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] by the broker; `PAYLOAD_TOO_LARGE` or `FIELD_INVALID` for a frame that is too large, of
    /// which nothing is sent. If a broker or a proxy with a lower limit ends the session because of a frame's size, the
    /// largest envelope without a receipt is refused, with `PAYLOAD_TOO_LARGE` or the code `OUT_OF_RANGE`.
    ///
    /// [`ClientError::Unverified`] for a receipt that the broker has not signed or that names another message;
    /// [`ClientError::SessionEnded`] if the session ends before the receipt. The broker may have accepted the message
    /// then.
    pub async fn send(&self, envelope: Bytes) -> Result<v1::Receipt, ClientError> {
        // Bytes that do not decode are sent too: the broker's refusal names the fault.
        let message_id = v1::Envelope::decode(envelope.clone()).map(|envelope| envelope.message_id).unwrap_or_default();
        // Without a time limit: the link sends the message again on the next session, and not before.
        match self.ask(Request::Envelope(envelope), Duration::MAX).await? {
            Response::Receipt(receipt) => {
                let input = signing::receipt_input(&receipt);
                let keys = self.pinned_keys.as_deref().unwrap_or(slice::from_ref(&self.broker_key));
                if !keys.iter().any(|key| key.verifies(&input, &receipt.signature)) {
                    return Err(ClientError::unverified("the receipt is not signed by the broker"));
                }
                // A signed receipt of another message proves nothing about this one.
                if receipt.message_id != message_id {
                    let problem = format!("the receipt is for another message, {}", receipt.message_id);
                    return Err(ClientError::unverified(problem));
                }
                Ok(receipt)
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Waits for the next delivery. Fails with the reason once the session has ended.
    pub async fn next_delivery(&self) -> Result<v1::Delivery, ClientError> {
        // Cancel-safe, which `serve` relies on: no await follows the one that removes the delivery.
        let next = self.deliveries.lock().await.recv().await;
        next.ok_or_else(|| ClientError::SessionEnded(self.why_ended()))
    }

    /// Acks a delivery.
    pub async fn ack(&self, delivery_id: &str) -> Result<(), ClientError> {
        self.acknowledge(delivery_id, Outcome::Ack(v1::Ack {})).await.map(drop)
    }

    /// Nacks a delivery.
    pub async fn nack(&self, delivery_id: &str, nack: v1::Nack) -> Result<(), ClientError> {
        self.acknowledge(delivery_id, Outcome::Nack(nack)).await.map(drop)
    }

    /// Extends the ack deadline of a delivery to `extension` from now.
    pub async fn extend(&self, delivery_id: &str, extension: Duration) -> Result<(), ClientError> {
        let extension = prost_types::Duration::try_from(extension).ok();
        self.acknowledge(delivery_id, Outcome::Extend(v1::Extend { extension })).await.map(drop)
    }

    /// Sets the credit: the number of unacknowledged deliveries that the agent takes.
    pub async fn credit(&self, max_outstanding: u32) -> Result<(), ClientError> {
        self.ask(Request::Credit(v1::Credit { max_outstanding }), self.answer_max).await.map(drop)
    }

    /// Sends a heartbeat with this state, and repeats it in all later heartbeats. On a session of a
    /// [`Link`](crate::Link), `working_on` is set here.
    pub async fn heartbeat(&self, heartbeat: v1::Heartbeat) -> Result<(), ClientError> {
        let own_state = || self.own_state.lock().expect("no holder panics");
        // Before it is sent, so that no older state follows it.
        let (former, call) = {
            let mut own = own_state();
            own.calls += 1;
            (mem::replace(&mut own.heartbeat, heartbeat.clone()), own.calls)
        };
        let heartbeat = own_state().told(heartbeat);
        let answered = self.ask(Request::Heartbeat(heartbeat), self.answer_max).await;
        answered.map(drop).inspect_err(|_| {
            let mut own = own_state();
            // The state of a later call stays.
            if own.calls == call {
                own.heartbeat = former;
            }
        })
    }

    async fn acknowledge(&self, delivery_id: &str, outcome: Outcome) -> Result<v1::Acknowledged, ClientError> {
        let acknowledgement = v1::Acknowledgement { delivery_id: delivery_id.to_owned(), outcome: Some(outcome) };
        match self.ask(Request::Acknowledgement(acknowledgement), self.answer_max).await? {
            Response::Acknowledged(acknowledged) => Ok(acknowledged),
            other => Err(unexpected(&other)),
        }
    }

    async fn ask(&self, request: Request, limit: Duration) -> Answer {
        let request_id = self.next_request.fetch_add(1, Ordering::Relaxed);
        let envelope_bytes = if let Request::Envelope(envelope) = &request { envelope.len() } else { 0 };
        let frame = v1::ConnectRequest { request_id, request: Some(request) };
        // Before the insert below, so that a refused frame leaves no waiting entry.
        check_frame(&frame)?;
        let (answer, receiver) = oneshot::channel();
        {
            // The check and the insert share one lock. Otherwise the session could end in between, and the request
            // would never be answered.
            let mut pending = self.pending.lock().expect("no holder panics");
            if let Some(why) = &pending.ended {
                return Err(ClientError::SessionEnded(why.clone()));
            }
            pending.answers.insert(request_id, Unanswered { answer, envelope_bytes });
        }
        let answered = time::timeout(limit, async {
            self.frames.send(frame).await.ok()?;
            receiver.await.ok()
        });
        match answered.await {
            Ok(answer) => answer.unwrap_or_else(|| Err(ClientError::SessionEnded(self.why_ended()))),
            Err(_) => {
                self.pending.lock().expect("no holder panics").answers.remove(&request_id);
                Err(ClientError::SessionEnded(format!("the broker has not answered within {limit:?}")))
            }
        }
    }

    /// The reconnect delay that the broker asked for when it closed the session.
    pub fn reconnect_after(&self) -> Option<Duration> {
        self.pending.lock().expect("no holder panics").reconnect_after
    }

    fn why_ended(&self) -> String {
        let pending = self.pending.lock().expect("no holder panics");
        pending.ended.clone().unwrap_or_else(|| "the connection was lost".to_owned())
    }
}

/// Refuses a frame over the transport's limit. Sending it would end the connection, with every other call on it.
fn check_frame(frame: &v1::ConnectRequest) -> Result<(), ClientError> {
    let bytes = frame.encoded_len();
    if bytes <= FRAME_BYTES_MAX {
        return Ok(());
    }
    let text = format!("the frame has {bytes} bytes; the limit is {FRAME_BYTES_MAX}");
    Err(Refused::of_client(ErrorCode::PayloadTooLarge, text).into())
}

/// Opens the stream and waits for the welcome, its first frame.
pub(super) async fn open_stream(
    client: &Client,
    requests: impl Stream<Item = v1::ConnectRequest> + Send + 'static,
) -> Result<(v1::Welcome, Streaming<v1::ConnectResponse>), ClientError> {
    let mut responses = client.answer(client.messages().connect(requests).await)?;
    let first = responses.next().await.transpose().map_err(|status| ClientError::of(&client.server, &status))?;
    match first {
        Some(v1::ConnectResponse { response: Some(Response::Welcome(welcome)), .. }) => Ok((welcome, responses)),
        Some(_) => Err(ClientError::Answer("the first frame is not a welcome".to_owned())),
        None => Err(ClientError::SessionEnded("the broker has closed it before the welcome".to_owned())),
    }
}

/// Sends heartbeats until the session is dropped: at the interval, and soon after a change of the work.
async fn beat(
    frames: mpsc::WeakSender<v1::ConnectRequest>,
    interval: Duration,
    own_state: Arc<Mutex<OwnState>>,
    work: Option<Arc<Work>>,
) {
    let mut turns = time::interval(interval);
    let mut changes = work.map(|work| work.changes());
    let mut told = Vec::new();
    loop {
        let is_turn = tokio::select! {
            _ = turns.tick() => true,
            () = changed(&mut changes) => false,
        };
        // A strong sender here would keep the stream open after the session is dropped.
        let Some(frames) = frames.upgrade() else { return };
        let Ok(place) = frames.reserve().await else { return };
        {
            // Sent with the state locked, so that no newer state is sent before this one.
            let own = own_state.lock().expect("no holder panics");
            let heartbeat = own.now();
            // A task that came and went since the last heartbeat needs none.
            if is_turn || heartbeat.working_on != told {
                told.clone_from(&heartbeat.working_on);
                place.send(v1::ConnectRequest { request_id: 0, request: Some(Request::Heartbeat(heartbeat)) });
            }
        }
        if !is_turn {
            time::sleep(CHANGES_EVERY.min(interval)).await;
        }
    }
}

/// Waits for the next change of the work; for ever, if none is told.
async fn changed(changes: &mut Option<watch::Receiver<()>>) {
    let has_changed = match changes {
        Some(changes) => changes.changed().await.is_ok(),
        None => false,
    };
    if !has_changed {
        std::future::pending::<()>().await;
    }
}

async fn read(
    mut responses: impl Stream<Item = Result<v1::ConnectResponse, Status>> + Unpin,
    deliveries: mpsc::Sender<v1::Delivery>,
    pending: Arc<Mutex<Pending>>,
) {
    let mut refusal = None;
    let why = loop {
        let (request_id, response) = match responses.next().await {
            Some(Ok(v1::ConnectResponse { request_id, response: Some(response) })) => (request_id, response),
            // A response of a later version of the schema. Its broker may expect that clients skip it.
            Some(Ok(v1::ConnectResponse { response: None, .. })) => continue,
            Some(Err(status)) => {
                refusal = refusal_of_size(&status);
                break status.message().to_owned();
            }
            None => break "the broker has closed it".to_owned(),
        };
        match response {
            Response::Delivery(delivery) => {
                if deliveries.send(delivery).await.is_err() {
                    break "the session was dropped".to_owned();
                }
            }
            Response::GoAway(go_away) => {
                // The broker reads no further frames of this session. Waiting requests fail, and the link repeats them
                // on the next session.
                let delay = go_away.reconnect_after.and_then(|delay| Duration::try_from(delay).ok());
                pending.lock().expect("no holder panics").reconnect_after = delay;
                break go_away.reason_text;
            }
            other => {
                let waiting = pending.lock().expect("no holder panics").answers.remove(&request_id);
                let answer = match other {
                    Response::Error(error) => Err(ClientError::of_message(&error)),
                    other => Ok(other),
                };
                if let Some(waiting) = waiting {
                    // The caller may have stopped waiting, for example by a timeout of its own.
                    drop(waiting.answer.send(answer));
                }
            }
        }
    };
    let mut pending = pending.lock().expect("no holder panics");
    if let Some(refusal) = refusal {
        pending.blame_largest(refusal);
    }
    // Both under one lock: a request that wakes up finds the reason, and no request is inserted after the clear.
    pending.ended = Some(why);
    pending.answers.clear(); // drops the senders, which fails every waiting request
}

/// The refusal in the status that has ended a session, if it says that a frame was too large. An older broker and a
/// proxy give no reason.
fn refusal_of_size(status: &Status) -> Option<ClientError> {
    // The server is only named by errors of the connection, which this is not.
    let refusal = ClientError::of("", status);
    let is_of_size = status.code() == Code::OutOfRange || refusal.reason() == Some(ErrorCode::PayloadTooLarge.name());
    is_of_size.then_some(refusal)
}

fn unexpected(response: &Response) -> ClientError {
    ClientError::Answer(format!("it does not belong to the question: {response:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::Script;
    use tonic_types::{ErrorDetails, StatusExt as _};

    #[tokio::test]
    async fn what_a_broker_answers_at_once_has_a_time_limit_and_a_message_has_none() {
        // The script is held, so the session stays open. No answer comes.
        let (mut session, _script) = Script::open();
        session.answer_max = Duration::from_millis(1);
        let answers = [
            session.ack("d").await,
            session.nack("d", v1::Nack::default()).await,
            session.extend("d", Duration::from_secs(1)).await,
            session.credit(0).await,
            session.heartbeat(v1::Heartbeat::default()).await,
        ];
        for answer in answers {
            assert!(matches!(answer, Err(ClientError::SessionEnded(_))), "{answer:?}");
        }
        assert!(session.pending.lock().unwrap().answers.is_empty(), "no request waits any more");
        assert!(time::timeout(session.answer_max * 20, session.send(Bytes::new())).await.is_err());
    }

    type Sent = Result<v1::Receipt, ClientError>;

    /// The outcomes of a large and a small message whose session ends with this status before their receipts.
    async fn ended_by(status: Status) -> (Sent, Sent) {
        let (session, mut script) = Script::open();
        let ending = async {
            script.hear().await;
            script.hear().await;
            script.end(status);
        };
        let (large, small, ()) =
            tokio::join!(session.send(vec![0; 1000].into()), session.send(vec![0; 10].into()), ending);
        (large, small)
    }

    #[tokio::test]
    async fn a_session_that_ends_because_of_a_size_refuses_the_largest_message_alone() {
        let status = |reason: &str| {
            let details = ErrorDetails::with_error_info(reason, "baton", []);
            Status::with_error_details(Code::InvalidArgument, "the broker ends the session", details)
        };
        for status in [Status::out_of_range("the limit of a proxy"), status("PAYLOAD_TOO_LARGE")] {
            let code = status.code();
            let (large, small) = ended_by(status).await;
            assert!(matches!(&large, Err(ClientError::Refused(refused)) if refused.code == code), "{large:?}");
            assert!(matches!(small, Err(ClientError::SessionEnded(_))), "{small:?}");
        }
        let (large, small) = ended_by(status("MALFORMED")).await;
        assert!(matches!(large, Err(ClientError::SessionEnded(_))), "{large:?}");
        assert!(matches!(small, Err(ClientError::SessionEnded(_))), "{small:?}");
    }

    #[tokio::test]
    async fn a_heartbeat_that_is_refused_leaves_the_state_of_a_later_one() {
        let (session, mut script) = Script::open();
        let state = |status: &str| v1::Heartbeat { status: status.to_owned(), ..Default::default() };
        let answering = async {
            let (first, second) = (script.hear().await.0, script.hear().await.0);
            script.say(first, Response::Error(crate::proto::Status::default()));
            script.say(second, Response::Credited(v1::Credited::default()));
            let third = script.hear().await.0;
            script.say(third, Response::Error(crate::proto::Status::default()));
        };
        let beating = async {
            let (first, second) = tokio::join!(session.heartbeat(state("first")), session.heartbeat(state("second")));
            assert!(matches!(first, Err(ClientError::Refused(_))), "{first:?}");
            second.unwrap();
            assert_eq!(session.own_state.lock().unwrap().heartbeat, state("second"));
            session.heartbeat(state("third")).await.unwrap_err();
            assert_eq!(session.own_state.lock().unwrap().heartbeat, state("second"), "the last one is undone");
        };
        tokio::join!(beating, answering);
    }
}

//! A session of an agent: the `Connect` stream.
//!
//! The session takes incoming frames in order. Each request that needs an answer holds one of the session's permits
//! until its answer is on the way out. While all permits are held, the session reads no frame, so an agent that does
//! not read its answers is not read from. Deliveries wait without their envelopes, as many as the agent's credit
//! allows; an envelope is read just before its delivery ([`super::outgoing`]). So a session that reads nothing holds a
//! bounded amount of memory.

use std::{pin::Pin, sync::Arc, task::Poll};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_stream::{Stream, StreamExt, wrappers::ReceiverStream};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::{
    Unprepared,
    bounds::{Overuse, Unread},
    call::{Call, Connection},
    frames::Requests,
    messages,
    outgoing::{Outgoing, Ready},
    refuse, refuse_shared,
};
use crate::{
    broker::{
        Answer, Broker, Events, OpenConsumer, Refused, SessionReply,
        engine::{Command, ConsumerKind},
        refused,
    },
    domain::mailbox::ConsumerId,
    envelope::{Checks, FRAME_BYTES_MAX, PAYLOAD_BYTES_MAX, check_heartbeat},
    ids::{AgentId, InstanceId},
    proto::v1::{self, connect_request, connect_response},
    wire::{
        edge::{ConnectionCredit, SessionCredit},
        status, to_proto,
    },
};

/// The most requests of one session in progress.
const UNDER_WAY_MAX: usize = 256;

/// The frames of a burst, and the bytes of its envelopes, from which on the session passes it to the engine before it
/// reads more.
const BURST_MAX: usize = 64;
const BURST_BYTES_MAX: usize = 64 * 1024;

type Permit = OwnedSemaphorePermit;
type Frame = Option<Result<v1::ConnectRequest, Status>>;

/// The frames that had arrived when the session looked. Their commands go to the engine together.
#[derive(Default)]
struct Burst {
    commands: Vec<Command>,
    bytes: usize,
}

impl Burst {
    fn is_full(&self) -> bool {
        self.commands.len() >= BURST_MAX || self.bytes >= BURST_BYTES_MAX
    }
}

/// What a frame asks for.
enum Asked {
    /// A command, once it has its reply.
    Command(Box<dyn FnOnce(SessionReply) -> Command + Send>),
    /// To send a message that needs longer checks.
    Long(Unprepared),
}

impl Asked {
    fn command(command: impl FnOnce(SessionReply) -> Command + Send + 'static) -> Self {
        Self::Command(Box::new(command))
    }
}

/// What has become of a frame.
enum Taken {
    /// It is in the burst, or answered.
    Joined,
    /// It is a message that needs longer checks, after the burst.
    Long(Unprepared, SessionReply),
    /// The stream has ended.
    End,
}

/// A frame that has arrived already, with a permit for it. `None`: no frame, or no permit.
async fn at_hand(frames: &mut Requests<v1::ConnectRequest>, permits: &Arc<Semaphore>) -> Option<(Frame, Permit)> {
    let permit = permits.clone().try_acquire_owned().ok()?;
    let frame = std::future::poll_fn(|context| match Pin::new(&mut *frames).poll_next(context) {
        Poll::Ready(frame) => Poll::Ready(Some(frame)),
        Poll::Pending => Poll::Ready(None),
    });
    frame.await.map(|frame| (frame, permit))
}

/// The bounds that the layers below pass to a session with its request.
struct Bounds {
    credit: SessionCredit,
    unread: Option<Unread>,
}

impl Bounds {
    /// The bounds of the call that opens the session.
    fn of(connection: Connection) -> Self {
        let Connection { info, unread } = connection;
        // A request without a connection comes from a test of the service alone, so no other session shares the credit.
        let credit = info.map_or_else(|| ConnectionCredit::new(messages::OUTSTANDING_MAX), |info| info.credit);
        Self { credit: credit.session(), unread }
    }
}

/// Opens a session. The returned stream ends after the agent's side ends, or when the broker drains.
pub(super) async fn open(
    call: Call,
    frames: Requests<v1::ConnectRequest>,
) -> Result<impl Stream<Item = Result<v1::ConnectResponse, Status>> + Send, Status> {
    let agent = call.agent()?.clone();
    let Call { broker, connection, .. } = call;
    // Checked before the queue of the engine, so that an agent over its limit of sessions costs the engine nothing.
    broker.may_open(&agent).map_err(refuse)?;
    let (events, receiver) = Events::channel();
    let consumer = broker.open(agent.clone(), ConsumerKind::Session, events.clone()).await.map_err(refuse_shared)?;
    let welcome = welcome(&broker, &agent, consumer.id());
    let span = tracing::info_span!("session", %agent, session = consumer.id().0);
    let (last_words, failure) = mpsc::channel(1);
    let sent_away = CancellationToken::new();
    let responses = Outgoing::new(broker.clone(), agent.clone(), receiver);
    let session = Session {
        broker: broker.clone(),
        agent,
        consumer,
        bounds: Bounds::of(connection),
        process: None,
        has_credit: false,
        events,
        last_words,
        sent_away: sent_away.clone(),
    };
    tokio::spawn(tracing::Instrument::instrument(session.run(frames), span));
    let responses = responses.map(move |outgoing| {
        // The GoAway is out: from now on frames of this agent belong on a new session.
        if matches!(outgoing, Ready::GoAway(_)) {
            sent_away.cancel();
        }
        Ok(response(&broker, outgoing))
    });
    let failure = ReceiverStream::new(failure).map(Err);
    // The failure comes last, so that answers of earlier frames are still sent.
    Ok(tokio_stream::once(Ok(welcome)).chain(responses).chain(failure))
}

struct Session {
    broker: Broker,
    agent: AgentId,
    consumer: OpenConsumer,
    bounds: Bounds,
    /// The process behind the session, once it was named.
    process: Option<InstanceId>,
    /// Whether the session has set its credit.
    has_credit: bool,
    events: Events,
    /// Takes the status that ends the stream, if the session fails.
    last_words: mpsc::Sender<Status>,
    /// Cancelled once the agent is told to reconnect later.
    sent_away: CancellationToken,
}

impl Session {
    async fn run(mut self, mut frames: Requests<v1::ConnectRequest>) {
        tracing::debug!("session opened");
        let permits = Arc::new(Semaphore::new(UNDER_WAY_MAX));
        loop {
            let Some(permit) = self.permit(&permits).await else { break };
            let frame = tokio::select! {
                frame = frames.next() => frame,
                () = self.events.closed() => break,
                () = self.broker.draining() => break,
                () = self.sent_away.cancelled() => break,
            };
            let mut burst = Burst::default();
            let mut next = Some((frame, permit));
            let mut last = Taken::Joined;
            while let Some((frame, permit)) = next.take() {
                // Frames that have arrived already join the burst: one queue entry and one commit for all of them.
                last = self.take(frame, permit, &mut burst);
                if matches!(last, Taken::Joined) && !burst.is_full() {
                    next = at_hand(&mut frames, &permits).await;
                }
            }
            // The engine refuses commands only while the broker stops, and then every session gets a GoAway.
            drop(self.broker.send_all(burst.commands).await);
            match last {
                Taken::Joined => {}
                Taken::Long(message, reply) => {
                    if !self.send_prepared(message, reply).await {
                        break;
                    }
                }
                Taken::End => break,
            }
        }
        tracing::debug!("session ended");
        // Dropping the consumer's guard closes the consumer, and with it the last sender of the responses.
    }

    /// Makes the longer checks of a message, and sends it to the engine. The session takes no frame meanwhile, so its
    /// messages keep their order. Returns `false` at the end of the session; a message in preparation is then dropped
    /// without an answer.
    async fn send_prepared(&mut self, message: Unprepared, reply: SessionReply) -> bool {
        let prepared = tokio::select! {
            prepared = super::prepared(&self.broker, message, Some(&self.agent)) => prepared,
            () = self.events.closed() => return false,
            () = self.broker.draining() => return false,
            () = self.sent_away.cancelled() => return false,
        };
        match prepared {
            Ok(message) => {
                let message = message.from_process(self.process);
                let command = Command::Submit { message, is_from_sender: true, reply: reply.into() };
                drop(self.broker.send(command).await);
            }
            Err(error) => reply.send(Err(error)),
        }
        true
    }

    /// A permit for the next frame. Waits while the agent does not take its answers. `None`: all clients together leave
    /// too much unread, and the session ends.
    async fn permit(&self, permits: &Arc<Semaphore>) -> Option<Permit> {
        if let Ok(permit) = permits.clone().try_acquire_owned() {
            return Some(permit);
        }
        let unread = self.bounds.unread.as_ref().map(Unread::hold);
        // Waiting would hold unread bytes without a bound on them, so the session ends instead.
        if let Some(None) = unread {
            drop(self.last_words.try_send(super::overuse(Overuse::UnreadBytes)));
            return None;
        }
        Some(permits.clone().acquire_owned().await.expect("never closed"))
    }

    /// Adds a frame's command to the burst, unless the frame needs longer checks or the stream ends.
    fn take(&mut self, frame: Frame, permit: Permit, burst: &mut Burst) -> Taken {
        let frame = match frame {
            Some(Ok(frame)) => frame,
            Some(Err(error)) => {
                tracing::debug!(%error, "session lost");
                // Without a connection the status has no reader, and a failed send is harmless.
                drop(self.last_words.try_send(error));
                return Taken::End;
            }
            None => return Taken::End,
        };
        if let Some(connect_request::Request::Envelope(raw)) = &frame.request {
            burst.bytes += raw.len();
        }
        let reply = SessionReply { events: self.events.clone(), request_id: frame.request_id, permit };
        match self.command(frame.request) {
            Ok(Asked::Command(command)) => burst.commands.push(command(reply)),
            Ok(Asked::Long(message)) => return Taken::Long(message, reply),
            // Answered at once, ahead of the burst. The client matches answers by their request id, so their order is
            // free.
            Err(error) => reply.send(Err(error)),
        }
        Taken::Joined
    }

    fn command(&mut self, request: Option<connect_request::Request>) -> Result<Asked, Refused> {
        use connect_request::Request as R;
        let (agent, consumer) = (self.agent.clone(), self.consumer.id());
        match request {
            Some(R::Envelope(raw)) => {
                // Small messages are verified here, in the session's task, so that signatures use all cores and the
                // engine's thread none.
                Ok(match super::short(&self.broker, raw, Some(&self.agent))? {
                    Ok(message) => {
                        let message = message.from_process(self.process);
                        Asked::command(|reply| Command::Submit { message, is_from_sender: true, reply: reply.into() })
                    }
                    Err(message) => Asked::Long(message),
                })
            }
            Some(R::Acknowledgement(acknowledgement)) => {
                let (delivery_id, fate) = messages::fate(acknowledgement).map_err(refused)?;
                Ok(Asked::command(|reply| Command::Acknowledge { agent, delivery_id, fate, reply: reply.into() }))
            }
            Some(R::Credit(credit)) => {
                let path = "credit.max_outstanding";
                // Bounded twice: per session by the schema, per connection by what its acks may leave unread.
                let wanted = messages::check_outstanding(path, credit.max_outstanding).map_err(refused)?;
                let outstanding_max = self.bounds.credit.set(wanted);
                self.has_credit = true;
                Ok(Asked::command(move |reply| Command::Credit {
                    consumer,
                    outstanding_max,
                    reply: Some(reply.into()),
                }))
            }
            Some(R::Heartbeat(heartbeat)) => {
                let mut checks = Checks::default();
                check_heartbeat(&heartbeat, "heartbeat", &mut checks);
                checks.finish().map_err(refused)?;
                Ok(Asked::command(move |reply| Command::Heartbeat {
                    consumer,
                    agent,
                    heartbeat,
                    reply: Some(reply.into()),
                }))
            }
            Some(R::Hello(hello)) => {
                let instance = InstanceId::parse(&hello.instance_id)
                    .map_err(|error| refused(super::field("hello.instance_id", &error.to_string())))?;
                if self.process.is_some() || self.has_credit {
                    return Err(refused(super::field("hello", "comes once, before the first credit")));
                }
                self.process = Some(instance);
                let tells_work = hello.tells_work;
                Ok(Asked::command(move |reply| Command::Hello {
                    consumer,
                    instance,
                    tells_work,
                    reply: Some(reply.into()),
                }))
            }
            None => Err(refused(super::field("request", "must be set to something that is known"))),
        }
    }
}

fn welcome(broker: &Broker, agent: &AgentId, consumer: ConsumerId) -> v1::ConnectResponse {
    let identity = broker.identity();
    let welcome = v1::Welcome {
        session_id: consumer.0.to_string(),
        agent_id: agent.to_string(),
        broker_id: AgentId::broker().to_string(),
        broker_key: Some(v1::AgentKey {
            key_id: identity.key_id.to_string(),
            public_key: identity.public().as_bytes().to_vec().into(),
            ..Default::default()
        }),
        ack_wait: Some(to_proto::span(broker.settings().ack_wait)),
        heartbeat_interval: Some(to_proto::span(broker.settings().heartbeat_interval)),
        presence_lease: Some(to_proto::span(broker.settings().presence_lease)),
        payload_bytes_max: u32::try_from(PAYLOAD_BYTES_MAX).unwrap_or(u32::MAX),
        frame_bytes_max: u32::try_from(FRAME_BYTES_MAX).unwrap_or(u32::MAX),
    };
    v1::ConnectResponse { request_id: 0, response: Some(connect_response::Response::Welcome(welcome)) }
}

fn response(broker: &Broker, outgoing: Ready) -> v1::ConnectResponse {
    use connect_response::Response as R;
    let (request_id, response) = match outgoing {
        Ready::Answer { request_id, outcome } => (request_id, answer(broker, outcome)),
        Ready::Delivery(delivery) => (0, R::Delivery(*delivery)),
        Ready::GoAway(why) => {
            let reconnect_after = Some(to_proto::span(status::RECONNECT_AFTER));
            (0, R::GoAway(v1::GoAway { reconnect_after, reason_text: why.to_string() }))
        }
    };
    v1::ConnectResponse { request_id, response: Some(response) }
}

fn answer(broker: &Broker, outcome: Result<Answer, Refused>) -> connect_response::Response {
    use connect_response::Response as R;
    match outcome {
        Ok(Answer::Receipt(receipt)) => R::Receipt(broker.sign_receipt(*receipt)),
        Ok(Answer::Acknowledged(acknowledged)) => R::Acknowledged(messages::acknowledged(acknowledged)),
        Ok(Answer::Credited(credited)) => R::Credited(v1::Credited { max_outstanding: credited.outstanding_max }),
        Err(error) => R::Error(status::message_of(&*error)),
    }
}

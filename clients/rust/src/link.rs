//! A link keeps an agent connected over successive sessions, and resends unanswered messages.

use std::{pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use prost::Message as _;
use tokio::sync::watch;

use super::{
    About, Client, ClientError, Composer, Delivered, Identity, Options, Trust,
    contexts::KnownSections,
    limits,
    progress::TellProgress,
    session::{Agent, Process},
    waiting::{Waiting, is_final},
    work::Work,
};
use crate::{
    envelope,
    ids::{AgentId, IdSource},
    proto::v1::{self, MessageType},
    time::{Clock, Moment, Timestamp},
};

const BACKOFF_MIN: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(30);
/// The duration after which a session counts as stable and resets the backoff.
const STEADY: Duration = Duration::from_secs(5);
/// The retry delay if the broker names none.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// The age of a message from which a refusal of its time is due to its wait, and not to the clock.
const SIGN_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// The time limit for connecting, authenticating and opening a session together.
const OPEN_TIMEOUT: Duration = Duration::from_secs(30);

/// How an agent stays connected and serves.
#[derive(Debug, Clone)]
pub struct LinkOptions {
    /// The address of the broker, and the credentials of the connection.
    pub broker: Options,
    /// The id of the agent, and its key.
    pub identity: Identity,
    /// The most unacknowledged deliveries, at most 4096.
    pub credit: u32,
    /// The rule by which keys of senders are accepted.
    pub trust: Trust,
    /// The time limit of a handler. A handler that exceeds it is aborted, and its message is nacked as FAILURE.
    pub handler_timeout: Option<Duration>,
    /// How long handlers may run after the agent stops.
    pub stop_grace: Duration,
    /// Whether [`Link::serve`] passes the tasks of this agent that none of its processes works on to
    /// [`Handler::resumed`](super::Handler::resumed), for example after a restart.
    pub resume: bool,
}

/// A waiting call reads the state at the broker at this interval: another process of the agent may have received the
/// message that it waits for.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// The time after a reconnect after which a waiting call reads the state once more.
const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// When a waiting call reads the state at the broker: at an interval, on a new session, and soon after that.
pub(super) struct Looks {
    present: watch::Receiver<Present>,
    next: Pin<Box<tokio::time::Sleep>>,
}

impl Looks {
    /// Waits for the next time. Cancel-safe.
    pub(super) async fn due(&mut self) {
        tokio::select! {
            () = self.next.as_mut() => self.next = Box::pin(tokio::time::sleep(LOOK_EVERY)),
            () = next_session(&mut self.present) => {
                self.next = Box::pin(tokio::time::sleep(LOOK_AGAIN_AFTER));
            }
        }
    }
}

impl Looks {
    /// The next look comes soon.
    pub(super) fn soon(&mut self) {
        self.next = Box::pin(tokio::time::sleep(LOOK_AGAIN_AFTER));
    }
}

/// Waits for a session that opens from now on.
async fn next_session(present: &mut watch::Receiver<Present>) {
    while present.changed().await.is_ok() {
        if matches!(*present.borrow_and_update(), Present::Live(_)) {
            return;
        }
    }
    std::future::pending::<()>().await;
}

/// An agent that stays connected while [`Link::serve`] runs. Clones share the connection.
#[derive(Clone)]
pub struct Link {
    pub(super) inner: Arc<Inner>,
    /// Gets the views of this agent's handoffs: see [`Link::with_views`].
    views: Option<Views>,
    /// Gets the progress of lent tasks: see [`Link::with_progress`].
    pub(super) progress: Option<TellProgress>,
}

type Views = Arc<dyn Fn(&str, v1::SenderView) + Send + Sync>;

pub(super) struct Inner {
    pub(super) options: LinkOptions,
    /// The calls that wait for mail.
    pub(super) waiting: Arc<Waiting>,
    /// The contents of sections, as bases of deltas.
    pub(super) known_sections: KnownSections,
    /// The tasks that this process works on.
    pub(super) work: Arc<Work>,
    /// The id of this process.
    pub(super) instance_id: String,
    composer: Composer,
    present: watch::Sender<Present>,
}

#[derive(Clone)]
enum Present {
    /// A session is open.
    Live(Arc<Agent>),
    /// No session is open; the link will open another, after this delay if the broker has named one.
    Away(Option<Duration>),
    /// No further session will be opened, for this reason.
    Over(String),
}

impl Link {
    /// Connects, with a single attempt.
    pub async fn connect(
        options: LinkOptions,
        clock: Arc<dyn Clock>,
        ids: Arc<dyn IdSource>,
    ) -> Result<Self, ClientError> {
        let composer = Composer { identity: options.identity.clone(), clock, ids };
        let (present, _) = watch::channel(Present::Away(None));
        let known_sections = KnownSections::default();
        let instance_id = composer.ids.message_id(composer.clock.now()).to_string();
        let (waiting, work) = (Arc::default(), Work::new());
        let inner = Inner { options, waiting, known_sections, work, instance_id, composer, present };
        let link = Self { inner: Arc::new(inner), views: None, progress: None };
        link.open().await?;
        Ok(link)
    }

    /// Has `show` called with the handoff id and each view that this agent has of a handoff, for the calls on the
    /// returned clone: IDLE and HANDOFF_INITIATED before the request is stored, then those that [`Link::get_handoff`]
    /// shows, to HANDOFF_COMPLETED. `show` must not block.
    #[must_use]
    pub fn with_views(&self, show: impl Fn(&str, v1::SenderView) + Send + Sync + 'static) -> Self {
        Self { views: Some(Arc::new(show)), ..self.clone() }
    }

    pub(super) fn show(&self, handoff_id: &str, view: v1::SenderView) {
        if let Some(show) = &self.views {
            show(handoff_id, view);
        }
    }

    /// The agent's id.
    pub fn id(&self) -> &AgentId {
        &self.inner.composer.identity.agent
    }

    /// The id of this process, a UUID: what answers the messages that this link sends goes to it, while it is connected.
    pub fn instance_id(&self) -> &str {
        &self.inner.instance_id
    }

    /// The composer of the agent's messages.
    pub fn composer(&self) -> &Composer {
        &self.inner.composer
    }

    /// The agent on its present session. Waits for the next session if none is open.
    pub async fn live(&self) -> Result<Arc<Agent>, ClientError> {
        let mut present = self.inner.present.subscribe();
        // `wait_for` tests the present value first, so an open session is returned at once.
        let settled = present.wait_for(|present| !matches!(present, Present::Away(_))).await;
        match settled.as_deref() {
            Ok(Present::Live(agent)) => Ok(Arc::clone(agent)),
            Ok(Present::Over(why)) => Err(ClientError::SessionEnded(why.clone())),
            // Cannot occur: the predicate excludes `Away`, and `self` holds the sender.
            Ok(Present::Away(_)) | Err(_) => Err(ClientError::SessionEnded("the agent has ended".to_owned())),
        }
    }

    /// The agent on its present session. `None`: no session is open, and the next one is opened after the delay, if the
    /// broker has named one. Fails if the link has ended.
    pub(super) fn session_to_serve(&self) -> Result<(Option<Arc<Agent>>, Option<Duration>), ClientError> {
        match &*self.inner.present.borrow() {
            Present::Live(agent) => Ok((Some(Arc::clone(agent)), None)),
            Present::Away(delay) => Ok((None, *delay)),
            Present::Over(why) => Err(ClientError::SessionEnded(why.clone())),
        }
    }

    /// The agent, if a session is open.
    pub(super) fn present(&self) -> Option<Arc<Agent>> {
        self.session_to_serve().ok().and_then(|(agent, _)| agent)
    }

    /// The times at which a call that waits from now on looks at the broker.
    pub(super) fn looks(&self) -> Looks {
        Looks { present: self.inner.present.subscribe(), next: Box::pin(tokio::time::sleep(LOOK_EVERY)) }
    }

    /// Waits until the link has ended. Returns the reason.
    pub(super) async fn ended(&self) -> String {
        let mut present = self.inner.present.subscribe();
        match present.wait_for(|present| matches!(present, Present::Over(_))).await.as_deref() {
            Ok(Present::Over(why)) => why.clone(),
            Ok(Present::Live(_) | Present::Away(_)) | Err(_) => "the agent has ended".to_owned(),
        }
    }

    /// Makes a read-only call, and repeats it over successive sessions until it is answered.
    pub(super) async fn ask<T, F>(&self, call: impl Fn(Client) -> F) -> Result<T, ClientError>
    where
        F: Future<Output = Result<T, ClientError>>,
    {
        loop {
            let agent = self.live().await?;
            match agent.call(&call).await {
                // A read changes nothing at the broker, so it can be repeated. The pause matters also because a lost
                // connection may still count as a live session here; without it this loop would spin.
                Err(error) if error.is_passing() => {
                    tokio::time::sleep(error.retry_after().unwrap_or(RETRY_AFTER)).await;
                }
                answered => return answered,
            }
        }
    }

    /// Signs a message, sends it and waits for its receipt. Resends the same bytes over successive sessions. If the
    /// message has waited for a session longer than the broker's clock window, it is signed once more, with the present
    /// time and the same id.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] if the broker refuses the message for a reason other than being unavailable, or, before
    /// anything is sent, if the message exceeds the limits of the schema: `PAYLOAD_TOO_LARGE` for a payload over
    /// 1,048,576 bytes, `FIELD_INVALID` for a field out of bounds. [`ClientError::SessionEnded`] if the link has ended;
    /// [`ClientError::Unverified`] for a receipt that the broker has not signed.
    pub async fn send<M: prost::Message + prost::Name>(
        &self,
        to: &str,
        kind: MessageType,
        about: &About,
        payload: &M,
    ) -> Result<v1::Receipt, ClientError> {
        self.send_composed(self.inner.composer.compose(to, kind, about, payload)).await
    }

    /// Sends a message of this agent as [`Self::send`] does.
    pub(super) async fn send_composed(&self, mut envelope: v1::Envelope) -> Result<v1::Receipt, ClientError> {
        let sent = self.send_bytes(envelope.encode_to_vec().into()).await;
        if let Ok(receipt) = &sent {
            self.note_move(&envelope, receipt);
        }
        let is_old = sent.as_ref().is_err_and(|error| error.reason() == Some("TIMESTAMP_OUTSIDE_WINDOW"));
        let Composer { identity, clock, .. } = &self.inner.composer;
        let now = clock.now();
        let made = envelope.timestamp.and_then(|time| Timestamp::from_parts(time.seconds, time.nanos));
        if !is_old || made.is_none_or(|made| now.since(made) < SIGN_AGAIN_AFTER) {
            return sent;
        }
        // The broker detects a repeat before it checks the time, so it has not accepted the message.
        envelope.timestamp = Some(now.into());
        envelope::sign(&mut envelope, &identity.key_id, &identity.key);
        let sent = self.send_bytes(envelope.encode_to_vec().into()).await;
        if let Ok(receipt) = &sent {
            self.note_move(&envelope, receipt);
        }
        sent
    }

    /// Notes where the task of an accepted message is.
    fn note_move(&self, sent: &v1::Envelope, receipt: &v1::Receipt) {
        let is_end = || {
            let payload = sent.payload.as_ref().map(|payload| payload.value.clone()).unwrap_or_default();
            v1::TaskStatusUpdate::decode(payload).is_ok_and(|update| is_final(update.status()))
        };
        match sent.message_type() {
            MessageType::TaskStatusUpdate if is_end() => self.inner.work.went_away(&sent.task_id, sent.epoch),
            MessageType::TaskRecall => self.inner.work.came_back(&sent.task_id, receipt.epoch),
            _ => {}
        }
    }

    /// Sends a signed envelope unchanged; otherwise as [`Self::send`].
    ///
    /// # Errors
    ///
    /// As [`Self::send`].
    pub async fn send_bytes(&self, envelope: Bytes) -> Result<v1::Receipt, ClientError> {
        limits::check_envelope(&envelope)?;
        loop {
            let agent = self.live().await?;
            match agent.session.send(envelope.clone()).await {
                // The broker answers a repeat with the first receipt, so the same bytes can be sent again. `left` makes
                // the next `live` wait for a new session instead of returning the ended one again.
                Err(ClientError::SessionEnded(_)) => self.left(&agent),
                // The broker is stopping or cannot write: the same bytes may be repeated (SPEC 11).
                Err(ClientError::Refused(refused)) if refused.code == tonic::Code::Unavailable => {
                    tokio::time::sleep(refused.retry_after.unwrap_or(RETRY_AFTER)).await;
                }
                answered => return answered,
            }
        }
    }

    /// Answers a message: sends to its sender, or to the requester of an award, with the same task, epoch and handoff.
    ///
    /// # Errors
    ///
    /// As [`Self::send`].
    pub async fn reply<M: prost::Message + prost::Name>(
        &self,
        to: &Delivered,
        kind: MessageType,
        payload: &M,
    ) -> Result<v1::Receipt, ClientError> {
        self.send(&to.counterpart(), kind, &to.about(), payload).await
    }

    /// Marks this session as ended.
    pub(super) fn left(&self, agent: &Arc<Agent>) {
        self.inner.present.send_if_modified(|present| match present {
            // Several calls can report the end of one session. A late report must not mark its successor as ended.
            Present::Live(live) if Arc::ptr_eq(live, agent) => {
                // Kept for a `serve` that begins later.
                *present = Present::Away(agent.session.reconnect_after());
                true
            }
            Present::Live(_) | Present::Away(_) | Present::Over(_) => false,
        });
    }

    /// Marks the link as ended, with the reason.
    pub(super) fn over(&self, why: String) {
        // Not `send`, which drops the value while no call subscribes.
        self.inner.present.send_replace(Present::Over(why));
    }

    async fn open(&self) -> Result<Arc<Agent>, ClientError> {
        let opened = tokio::time::timeout(OPEN_TIMEOUT, self.open_session()).await;
        opened.unwrap_or_else(|_| {
            let (server, problem) = (self.inner.options.broker.server.clone(), "no session in time".to_owned());
            Err(ClientError::Unreachable { server, problem })
        })
    }

    async fn open_session(&self) -> Result<Arc<Agent>, ClientError> {
        let LinkOptions { broker, identity, credit, trust, .. } = &self.inner.options;
        // Each session has a connection of its own. It reads the files of the CA and the certificate again, so renewed
        // files take effect here.
        let client = Client::connect(broker).await?;
        let Composer { clock, ids, .. } = &self.inner.composer;
        let (clock, ids) = (Arc::clone(clock), Arc::clone(ids));
        let hello = v1::Hello { instance_id: self.inner.instance_id.clone(), tells_work: true };
        let process = Process { hello, work: Some(Arc::clone(&self.inner.work)) };
        let agent = Agent::connect_as(&client, identity.clone(), *credit, clock, ids, process).await?;
        // Set before the session is published, so that no delivery is checked by another rule of trust.
        let agent = Arc::new(agent.trusting(trust.clone()));
        self.inner.present.send_replace(Present::Live(Arc::clone(&agent)));
        Ok(agent)
    }

    /// Opens the next session after `delay`, or after the backoff. Fails if two attempts in a row end with an error that
    /// does not pass.
    pub(super) async fn open_again(
        &self,
        backoff: &mut Backoff,
        mut delay: Option<Duration>,
    ) -> Result<Arc<Agent>, ClientError> {
        let mut was_refused = false;
        loop {
            // A delay that the broker names replaces this wait. The backoff advances all the same, so that a later
            // failure without a named delay waits longer.
            let wait = backoff.next();
            tokio::time::sleep(self.jittered(delay.unwrap_or(wait))).await;
            match self.open().await {
                // A broker that restarts between two steps of the proof refuses the second step, so a refusal counts only
                // when it repeats.
                Err(error) if error.is_passing() || !was_refused => {
                    was_refused = !error.is_passing();
                    delay = error.retry_after();
                }
                opened => return opened,
            }
        }
    }

    /// Adds ±20 %, so that the agents of a broker do not reconnect at the same moment.
    fn jittered(&self, span: Duration) -> Duration {
        let random = f64::from(self.inner.composer.ids.random()[0]) / 255.0;
        span.mul_f64(0.8 + 0.4 * random)
    }
}

/// The delay before the next attempt. It doubles each time, until a session was stable.
pub(super) struct Backoff {
    next: Duration,
    began: Moment,
}

impl Backoff {
    /// Starts at the shortest delay.
    pub(super) fn new() -> Self {
        Self { next: BACKOFF_MIN, began: Moment::now() }
    }

    /// Records the start of a session.
    pub(super) fn session_begins(&mut self) {
        self.began = Moment::now();
    }

    /// Resets the delay if the session was stable.
    pub(super) fn session_ends(&mut self) {
        // A broker that admits the agent and ends the session at once must not be called in a tight loop, so a short
        // session does not reset the delay.
        if self.began.elapsed() >= STEADY {
            self.next = BACKOFF_MIN;
        }
    }

    fn next(&mut self) -> Duration {
        let wait = self.next;
        self.next = (wait * 2).min(BACKOFF_MAX);
        wait
    }
}

#[cfg(test)]
impl Link {
    /// A link with this agent's session.
    pub(super) fn of(agent: Agent) -> Self {
        let composer = crate::script::composer();
        let options = LinkOptions {
            broker: Options::default(),
            identity: composer.identity.clone(),
            credit: 1,
            trust: Trust::default(),
            handler_timeout: None,
            stop_grace: Duration::from_secs(60),
            resume: false,
        };
        let (present, _) = watch::channel(Present::Live(Arc::new(agent)));
        let known_sections = KnownSections::default();
        let (waiting, work, instance_id) = (Arc::default(), Work::new(), "p".to_owned());
        let inner = Inner { options, waiting, known_sections, work, instance_id, composer, present };
        Self { inner: Arc::new(inner), views: None, progress: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{proto::v1::connect_response::Response, script::Script};

    #[tokio::test]
    async fn the_delay_that_a_broker_names_is_kept_for_a_serve_that_begins_later() {
        let (agent, script) = Script::open_agent();
        let link = Link::of(agent);
        let agent = link.live().await.unwrap();
        let reconnect_after = Some(prost_types::Duration { seconds: 7, nanos: 0 });
        script.say(0, Response::GoAway(v1::GoAway { reconnect_after, ..Default::default() }));
        agent.session.next_delivery().await.unwrap_err();
        // As a call does that finds the session over.
        link.left(&agent);
        let (session, delay) = link.session_to_serve().unwrap();
        assert!(session.is_none());
        assert_eq!(delay, Some(Duration::from_secs(7)));
    }
}

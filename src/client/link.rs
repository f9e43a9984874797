//! An agent that stays connected: one session after the other, and whatever has no answer sent again.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::sync::watch;

use super::{
    About, Agent, Client, ClientError, Composer, Delivered, Identity, Options, Trust, limits, waiting::Waiting,
};
use crate::{
    ids::{AgentId, IdSource},
    proto::v1::{self, MessageType},
    time::{Clock, Moment},
};

const BACKOFF_MIN: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(30);
/// After how long a session counts as one that works, so that the backoff begins anew.
const STEADY: Duration = Duration::from_secs(5);
/// How long to wait before trying again where the broker does not say.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// How long it may take to connect, to prove the identity and to open a session.
const OPEN_TIMEOUT: Duration = Duration::from_secs(30);

/// How an agent stays connected, and how it serves.
#[derive(Debug, Clone)]
pub struct LinkOptions {
    /// The broker.
    pub broker: Options,
    /// The agent.
    pub identity: Identity,
    /// The most deliveries that are handed out and not yet acknowledged, at most 4096.
    pub credit: u32,
    /// Whose word counts for keys.
    pub trust: Trust,
    /// A handler that takes longer is given up, and its message nacked as FAILURE.
    pub handler_timeout: Option<Duration>,
    /// How long handlers have to end when the agent stops.
    pub stop_grace: Duration,
}

/// An agent that is kept connected while [`Link::serve`] runs. Clones share it.
#[derive(Clone)]
pub struct Link {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub(super) options: LinkOptions,
    /// The calls that wait for mail.
    pub(super) waiting: Arc<Waiting>,
    composer: Composer,
    present: watch::Sender<Present>,
}

#[derive(Clone)]
enum Present {
    /// There is a session.
    Live(Arc<Agent>),
    /// There will be another.
    Away,
    /// There will be none: why.
    Over(String),
}

impl Link {
    /// Connects; tries once.
    pub async fn connect(
        options: LinkOptions,
        clock: Arc<dyn Clock>,
        ids: Arc<dyn IdSource>,
    ) -> Result<Self, ClientError> {
        let composer = Composer { identity: options.identity.clone(), clock, ids };
        let (present, _) = watch::channel(Present::Away);
        let link = Self { inner: Arc::new(Inner { options, waiting: Arc::default(), composer, present }) };
        link.open().await?;
        Ok(link)
    }

    /// The agent's id.
    pub fn id(&self) -> &AgentId {
        &self.inner.composer.identity.agent
    }

    /// What the agent's messages are made by.
    pub fn composer(&self) -> &Composer {
        &self.inner.composer
    }

    /// The agent on its present session; waits for the next one where there is none.
    pub async fn live(&self) -> Result<Arc<Agent>, ClientError> {
        let mut present = self.inner.present.subscribe();
        let settled = present.wait_for(|present| !matches!(present, Present::Away)).await;
        match settled.as_deref() {
            Ok(Present::Live(agent)) => Ok(Arc::clone(agent)),
            Ok(Present::Over(why)) => Err(ClientError::SessionEnded(why.clone())),
            Ok(Present::Away) | Err(_) => Err(ClientError::SessionEnded("the agent has ended".to_owned())),
        }
    }

    /// The agent, if it has a session now.
    pub(super) fn present(&self) -> Option<Arc<Agent>> {
        match &*self.inner.present.borrow() {
            Present::Live(agent) => Some(Arc::clone(agent)),
            Present::Away | Present::Over(_) => None,
        }
    }

    /// Waits until there will be no further session: why.
    pub(super) async fn ended(&self) -> String {
        let mut present = self.inner.present.subscribe();
        match present.wait_for(|present| matches!(present, Present::Over(_))).await.as_deref() {
            Ok(Present::Over(why)) => why.clone(),
            Ok(Present::Live(_) | Present::Away) | Err(_) => "the agent has ended".to_owned(),
        }
    }

    /// Makes a call that changes nothing until it is answered: over as many sessions as that takes.
    pub(super) async fn ask<T, F>(&self, call: impl Fn(Client) -> F) -> Result<T, ClientError>
    where
        F: Future<Output = Result<T, ClientError>>,
    {
        loop {
            let agent = self.live().await?;
            match agent.call(&call).await {
                Err(error) if error.is_passing() => {
                    tokio::time::sleep(error.retry_after().unwrap_or(RETRY_AFTER)).await;
                }
                answered => return answered,
            }
        }
    }

    /// Signs and sends a message, and waits for its receipt: over as many sessions as that takes, the same bytes again.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] where the broker refuses it for another reason than being unavailable, and before anything
    /// is sent where it is over the limits of the schema: a payload over 1,048,576 bytes is `PAYLOAD_TOO_LARGE`, a field
    /// out of its bounds `FIELD_INVALID`. [`ClientError::SessionEnded`] where the agent has ended;
    /// [`ClientError::Unverified`] for a receipt that is not the broker's.
    pub async fn send<M: prost::Message + prost::Name>(
        &self,
        to: &str,
        kind: MessageType,
        about: &About,
        payload: &M,
    ) -> Result<v1::Receipt, ClientError> {
        self.send_bytes(self.inner.composer.encode(to, kind, about, payload)).await
    }

    /// The same with an envelope that is signed already.
    ///
    /// # Errors
    ///
    /// As [`Self::send`].
    pub async fn send_bytes(&self, envelope: Bytes) -> Result<v1::Receipt, ClientError> {
        limits::check_envelope(&envelope)?;
        loop {
            let agent = self.live().await?;
            match agent.session.send(envelope.clone()).await {
                Err(ClientError::SessionEnded(_)) => self.left(&agent),
                Err(ClientError::Refused(refused)) if refused.code == tonic::Code::Unavailable => {
                    tokio::time::sleep(refused.retry_after.unwrap_or(RETRY_AFTER)).await;
                }
                answered => return answered,
            }
        }
    }

    /// Answers a message: to its sender, about the same handoff.
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
        self.send(&to.envelope.sender_id, kind, &to.about(), payload).await
    }

    /// This session is over.
    pub(super) fn left(&self, agent: &Arc<Agent>) {
        self.inner.present.send_if_modified(|present| match present {
            Present::Live(live) if Arc::ptr_eq(live, agent) => {
                *present = Present::Away;
                true
            }
            Present::Live(_) | Present::Away | Present::Over(_) => false,
        });
    }

    /// There will be no further session.
    pub(super) fn over(&self, why: String) {
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
        let client = Client::connect(broker).await?;
        let Composer { clock, ids, .. } = &self.inner.composer;
        let agent = Agent::connect(&client, identity.clone(), *credit, Arc::clone(clock), Arc::clone(ids)).await?;
        let agent = Arc::new(agent.trusting(trust.clone()));
        self.inner.present.send_replace(Present::Live(Arc::clone(&agent)));
        Ok(agent)
    }

    /// The next session: after the time that the broker asked for, or with a backoff. Fails where waiting cannot help.
    pub(super) async fn open_again(
        &self,
        backoff: &mut Backoff,
        mut delay: Option<Duration>,
    ) -> Result<Arc<Agent>, ClientError> {
        loop {
            let wait = backoff.next();
            tokio::time::sleep(self.jittered(delay.unwrap_or(wait))).await;
            match self.open().await {
                Err(error) if error.is_passing() => delay = error.retry_after(),
                opened => return opened,
            }
        }
    }

    /// ±20 %, so that not all agents of a broker come back at the same moment.
    fn jittered(&self, span: Duration) -> Duration {
        let random = f64::from(self.inner.composer.ids.random()[0]) / 255.0;
        span.mul_f64(0.8 + 0.4 * random)
    }
}

/// How long to wait before the next try: longer each time, until a session has worked for a while.
pub(super) struct Backoff {
    next: Duration,
    began: Moment,
}

impl Backoff {
    /// From the beginning.
    pub(super) fn new() -> Self {
        Self { next: BACKOFF_MIN, began: Moment::now() }
    }

    /// A session has begun.
    pub(super) fn session_begins(&mut self) {
        self.began = Moment::now();
    }

    /// It has ended.
    pub(super) fn session_ends(&mut self) {
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

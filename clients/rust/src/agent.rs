//! An agent of a program: connects with defaults, registers itself, serves its mail by functions, and makes the calls of
//! its [`Link`].

use std::{fmt, future::IntoFuture, ops::Deref, path::PathBuf, pin::Pin, sync::Arc, time::Duration};

use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    About, Asked, Bid, Client, ClientCertificate, ClientError, Compression, Delivered, HandOverError, HandedOver,
    Identity, Link, LinkOptions, Offer, Options, OwnedTask, Progress, Question, Recalled, Returned, Trust,
    environment::{self, Environment},
    error::Refused,
    mail::{HandlerResult, Mail},
    parse_server,
};
use crate::{
    codes::ErrorCode,
    envelope::keys::PrivateKey,
    ids::{AgentId, KeyId, SystemIds},
    proto::v1,
    time::SystemClock,
};

/// The most unacknowledged deliveries, unless the builder names another number.
const CREDIT: u32 = 16;
/// How long handlers may run after the agent stops, unless the builder names another time.
const STOP_GRACE: Duration = Duration::from_secs(10);

/// An agent that is connected and serves its mail until it is stopped, or until its last clone is dropped.
///
/// It has the calls of its [`Link`]. In place of `hand_over` and `delegate` it has calls for a task that is named by its
/// id, mostly a new one; a task that the agent owns is an [`OwnedTask`] with calls of its own.
///
/// ```no_run
/// use baton_client::{Agent, HandlerResult, Offer};
///
/// async fn take(offer: Offer) -> HandlerResult {
///     let takeover = offer.accept().await?; // waits for the context
///     let goals: Vec<String> = takeover.json("goals")?;
///     let task = takeover.complete().await?; // from here on the task is bob's
///     task.finish_with([("done", goals)]).await?;
///     Ok(())
/// }
///
/// #[tokio::main]
/// async fn main() -> Result<(), Box<dyn std::error::Error>> {
///     let bob = Agent::builder("bob").agent_type("support").on_handoff(take).connect().await?;
///     Ok(bob.run().await?)
/// }
/// ```
#[derive(Clone)]
pub struct Agent {
    link: Link,
    serving: Arc<Serving>,
}

struct Serving {
    stop: CancellationToken,
    /// `None`: the agent has ended.
    task: tokio::sync::Mutex<Option<JoinHandle<Result<(), ClientError>>>>,
    _stop_on_drop: DropGuard,
}

impl fmt::Debug for Agent {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Agent").field("id", self.link.id()).finish_non_exhaustive()
    }
}

impl Deref for Agent {
    type Target = Link;

    fn deref(&self) -> &Link {
        &self.link
    }
}

impl Agent {
    /// The agent with this id and these defaults: the broker at 127.0.0.1:22866; the CA of `./baton-data` if the broker runs
    /// on that folder, otherwise those of the system; the key in the file `ID.pem`, which is made if it is missing.
    pub fn builder(id: &str) -> AgentBuilder {
        AgentBuilder::new(id)
    }

    /// The agent that the environment names, or the profile of the command line that is in use.
    ///
    /// A variable takes precedence over the value of the profile, and an empty one counts as absent:
    ///
    /// - `BATON_SERVER`: the broker; default 127.0.0.1:22866.
    /// - `BATON_CA`: the CA file; default as for [`Self::builder`].
    /// - `BATON_AGENT_ID` and `BATON_AGENT_KEY`: the agent and the file of its key, both or neither.
    ///   `BATON_AGENT_KEY_ID` is the key's id; default `k1`.
    /// - `BATON_TOKEN`: a token for the registration.
    /// - `BATON_CERT` and `BATON_CERT_KEY`: the files of a client certificate and its key, both or neither.
    /// - `BATON_PROFILE`: a profile of `baton profile add`; default the one of `baton profile use`, if any.
    ///
    /// # Errors
    ///
    /// [`ClientError::Settings`] if no agent is named, or if a file that is named cannot be used.
    pub fn from_env() -> Result<AgentBuilder, ClientError> {
        AgentBuilder::from_environment(None)
    }

    /// As [`Self::from_env`], with the profile of this name.
    ///
    /// # Errors
    ///
    /// As [`Self::from_env`].
    pub fn from_profile(name: &str) -> Result<AgentBuilder, ClientError> {
        AgentBuilder::from_environment(Some(name))
    }

    /// Waits until the agent ends: `Ok` after [`Self::stop`]. Cancel-safe.
    ///
    /// # Errors
    ///
    /// [`ClientError`] if the broker no longer admits the agent, or if the broker's certificate is not trusted. A further
    /// call gets `Ok`.
    pub async fn run(&self) -> Result<(), ClientError> {
        let mut serving = self.serving.task.lock().await;
        let Some(task) = serving.as_mut() else { return Ok(()) };
        let ended = task.await;
        *serving = None;
        ended.unwrap_or_else(|error| Err(ClientError::SessionEnded(error.to_string())))
    }

    /// Takes no more mail, waits for the handlers, and gives the rest back to the broker. A handler that does not return in
    /// time is aborted; its task stays the agent's, for its next process.
    ///
    /// # Errors
    ///
    /// As [`Self::run`].
    pub async fn stop(&self) -> Result<(), ClientError> {
        self.serving.stop.cancel();
        self.run().await
    }

    /// The link of the agent, with the calls that are nearer to the messages.
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// Hands a task over, and waits until it has moved, once the returned value is awaited: see [`Link::hand_over`]. An
    /// unknown task id is a new task. The epoch is 1, or that of the latest [`OwnedTask`] of the task that lives in this
    /// process.
    pub fn hand_over(
        &self,
        to: &str,
        task_id: &str,
        request: &v1::HandoffRequest,
        sections: impl IntoIterator<Item = v1::ContextSection>,
    ) -> Transfer {
        Transfer {
            link: self.link.clone(),
            to: to.to_owned(),
            about: self.about(task_id),
            request: request.clone(),
            sections: sections.into_iter().collect(),
            limit: None,
        }
    }

    /// Lends a task, and waits for its return, once the returned value is awaited: see [`Link::delegate`]. The task id and
    /// the epoch are as for [`Self::hand_over`].
    ///
    /// ```no_run
    /// # async fn example(alice: baton_client::Agent) -> Result<(), baton_client::HandOverError> {
    /// use std::time::Duration;
    ///
    /// use baton_client::{json_section, v1::HandoffRequest};
    ///
    /// let request = HandoffRequest { task_type: "support-ticket".to_owned(), ..Default::default() };
    /// let context = [json_section("goals", ["find the cause"])];
    /// let lent = alice.delegate("bob", "ticket-8", &request, context);
    /// let returned = lent.limit(Duration::from_secs(60)).on_progress(|told| println!("{}", told.details)).await?;
    /// println!("{:?}", returned.result);
    /// # Ok(())
    /// # }
    /// ```
    pub fn delegate(
        &self,
        to: &str,
        task_id: &str,
        request: &v1::HandoffRequest,
        sections: impl IntoIterator<Item = v1::ContextSection>,
    ) -> Delegation {
        Delegation {
            link: self.link.clone(),
            to: to.to_owned(),
            about: self.about(task_id),
            request: request.clone(),
            sections: sections.into_iter().collect(),
            limit: None,
        }
    }

    /// Waits for the return of a task that a handoff of an earlier process of this agent lends: see
    /// [`Link::wait_for_loan`].
    ///
    /// # Errors
    ///
    /// As [`Link::wait_for_loan`].
    pub async fn wait_for_loan(
        &self,
        handoff_id: &str,
        sections: Option<Vec<v1::ContextSection>>,
    ) -> Result<Returned, HandOverError> {
        self.link.wait_for_loan(handoff_id, sections).await
    }

    /// Asks a question about a task that this agent owns, and waits until it ends: see [`OwnedTask::ask`].
    ///
    /// # Errors
    ///
    /// As [`Self::task`] and [`OwnedTask::ask`].
    pub async fn ask(&self, task_id: &str, prompt: v1::TaskPrompt) -> Result<Asked, ClientError> {
        self.task(task_id).await?.ask(prompt, "").await
    }

    /// Begins a task that this agent owns, without a handoff: see [`Link::create_task`].
    ///
    /// # Errors
    ///
    /// As [`Link::create_task`].
    pub async fn create_task(&self, task_id: &str, create: &v1::TaskCreate) -> Result<OwnedTask, ClientError> {
        self.link.create_task(task_id, create).await
    }

    /// The task with this id, which this agent owns, with its present epoch.
    ///
    /// # Errors
    ///
    /// As [`Link::get_task`]; `NOT_OWNER` if another agent owns the task.
    pub async fn task(&self, task_id: &str) -> Result<OwnedTask, ClientError> {
        let task = self.link.get_task(task_id).await?;
        if task.owner_id == self.link.id().as_str() {
            return Ok(self.link.owned(task));
        }
        let text = format!("task {task_id} is of {}, not of this agent", task.owner_id);
        Err(Refused::of_client(ErrorCode::NotOwner, text).into())
    }

    fn about(&self, task_id: &str) -> About {
        About::task(task_id, self.link.inner.work.epoch_of(task_id).unwrap_or(1))
    }
}

/// A task that is handed over once this value is awaited. Made by [`Agent::hand_over`].
#[must_use = "a handoff begins when it is awaited"]
pub struct Transfer {
    link: Link,
    to: String,
    about: About,
    request: v1::HandoffRequest,
    sections: Vec<v1::ContextSection>,
    limit: Option<Duration>,
}

impl Transfer {
    /// Bounds the whole call: at the limit the handoff is cancelled, and the task stays. See [`Link::hand_over_within`].
    pub fn limit(self, limit: Duration) -> Self {
        Self { limit: Some(limit), ..self }
    }
}

impl IntoFuture for Transfer {
    type Output = Result<HandedOver, HandOverError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Self { link, to, about, request, sections, limit } = self;
            match limit {
                Some(limit) => link.hand_over_within(limit, &to, &about, &request, sections).await,
                None => link.hand_over(&to, &about, &request, sections).await,
            }
        })
    }
}

/// A delegation, which begins when it is awaited. Made by [`Agent::delegate`].
#[must_use = "a delegation begins when it is awaited"]
pub struct Delegation {
    link: Link,
    to: String,
    about: About,
    request: v1::HandoffRequest,
    sections: Vec<v1::ContextSection>,
    limit: Option<Duration>,
}

impl Delegation {
    /// Bounds the whole call: at the limit the task is taken back. It is also the loan timeout, unless the request has one.
    pub fn limit(self, limit: Duration) -> Self {
        Self { limit: Some(limit), ..self }
    }

    /// Passes the status updates of the delegate on: see [`Link::with_progress`].
    pub fn on_progress(self, tell: impl Fn(Progress) + Send + Sync + 'static) -> Self {
        Self { link: self.link.with_progress(tell), ..self }
    }
}

impl IntoFuture for Delegation {
    type Output = Result<Returned, HandOverError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Self { link, to, about, request, sections, limit } = self;
            link.delegate(&to, &about, &request, sections, limit).await
        })
    }
}

/// How an agent connects, and the functions that get its mail. Made by [`Agent::builder`].
#[must_use = "an agent connects by `connect`"]
pub struct AgentBuilder {
    broker: Options,
    id: String,
    key: Key,
    key_id: String,
    card: v1::AgentCard,
    /// Whether the card has more than the agent's key.
    has_card: bool,
    is_registered_elsewhere: bool,
    invitation: String,
    credit: u32,
    trust: Trust,
    handler_timeout: Option<Duration>,
    stop_grace: Duration,
    resumes: bool,
    mail: Mail,
}

enum Key {
    /// A file, which is made if it is missing.
    File(PathBuf),
    /// A key that the program has.
    Given(Box<PrivateKey>),
}

impl AgentBuilder {
    fn new(id: &str) -> Self {
        Self {
            broker: Options { server: environment::SERVER.to_owned(), ..Options::default() },
            id: id.to_owned(),
            key: Key::File(PathBuf::from(format!("{id}.pem"))),
            key_id: environment::KEY_ID.to_owned(),
            card: v1::AgentCard::default(),
            has_card: false,
            is_registered_elsewhere: false,
            invitation: String::new(),
            credit: CREDIT,
            trust: Trust::default(),
            handler_timeout: None,
            stop_grace: STOP_GRACE,
            resumes: true,
            mail: Mail::default(),
        }
    }

    fn from_environment(profile: Option<&str>) -> Result<Self, ClientError> {
        let settings = Environment(&|name| std::env::var(name).ok()).settings(profile)?;
        let key = Key::Given(Box::new(PrivateKey::read(&settings.key)?));
        Ok(Self { broker: settings.broker, key, key_id: settings.key_id, ..Self::new(&settings.agent_id) })
    }

    /// The broker: HOST:PORT, or `http://HOST:PORT` without TLS for one on this machine.
    pub fn server(mut self, server: &str) -> Self {
        server.clone_into(&mut self.broker.server);
        self
    }

    /// A PEM file with the CA to trust.
    pub fn ca(mut self, file: impl Into<PathBuf>) -> Self {
        self.broker.ca = Some(file.into());
        self
    }

    /// The file of the agent's private key. If it is missing, it is made, for its owner alone.
    pub fn key_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.key = Key::File(file.into());
        self
    }

    /// The agent's private key.
    pub fn key(mut self, key: PrivateKey) -> Self {
        self.key = Key::Given(Box::new(key));
        self
    }

    /// The id of the key on the agent's card; `k1` by default.
    pub fn key_id(mut self, key_id: &str) -> Self {
        key_id.clone_into(&mut self.key_id);
        self
    }

    /// A token for the registration, where only operators may register agents.
    pub fn token(mut self, token: &str) -> Self {
        self.broker.token = Some(token.to_owned());
        self
    }

    /// The certificate that authenticates the agent in place of its key.
    pub fn certificate(mut self, certificate: ClientCertificate) -> Self {
        self.broker.certificate = Some(certificate);
        self
    }

    /// How messages are compressed.
    pub fn compression(mut self, compression: Compression) -> Self {
        self.broker.compression = Some(compression);
        self
    }

    /// Adds a type to the agent's card: requests to `type:NAME` ask the agent too.
    pub fn agent_type(mut self, name: &str) -> Self {
        self.card.agent_types.push(name.to_owned());
        self.has_card = true;
        self
    }

    /// Describes the agent, for people.
    pub fn description(mut self, text: &str) -> Self {
        text.clone_into(&mut self.card.description);
        self.has_card = true;
        self
    }

    /// The most handoffs that the agent takes part in at a time. Further offers wait at the broker.
    pub fn capacity(mut self, capacity: u32) -> Self {
        self.card.capacity = capacity;
        self.has_card = true;
        self
    }

    /// The time that the agent needs to decide about an offered handoff, 1 s to 7 days: for a person or a model that looks
    /// now and then. Default: the timeout of each request.
    pub fn decides_within(mut self, span: Duration) -> Self {
        // A span that is too long for the message is out of the broker's bounds, too.
        let longest = prost_types::Duration { seconds: i64::MAX, nanos: 0 };
        self.card.decides_within = Some(span.try_into().unwrap_or(longest));
        self.has_card = true;
        self
    }

    /// The whole card, with skills and metadata. The id of the agent and its key are set by [`Self::connect`].
    pub fn card(mut self, card: v1::AgentCard) -> Self {
        (self.card, self.has_card) = (card, true);
        self
    }

    /// The secret of an invitation, with which a new agent may register.
    pub fn invitation(mut self, secret: &str) -> Self {
        secret.clone_into(&mut self.invitation);
        self
    }

    /// The agent is registered by others: [`Self::connect`] registers nothing.
    pub fn without_registration(mut self) -> Self {
        self.is_registered_elsewhere = true;
        self
    }

    /// The most unacknowledged deliveries, at most 4096; 16 by default.
    pub fn credit(mut self, credit: u32) -> Self {
        self.credit = credit;
        self
    }

    /// The rule by which keys of senders are accepted.
    pub fn trust(mut self, trust: Trust) -> Self {
        self.trust = trust;
        self
    }

    /// The time limit of a handler, also of the work on a task in it.
    pub fn handler_timeout(mut self, timeout: Duration) -> Self {
        self.handler_timeout = Some(timeout);
        self
    }

    /// How long handlers may run after the agent stops; 10 s by default.
    pub fn stop_grace(mut self, grace: Duration) -> Self {
        self.stop_grace = grace;
        self
    }

    /// Leaves the tasks alone that an earlier process of the agent did not end. By default they come to
    /// [`Self::on_handoff`].
    pub fn without_resume(mut self) -> Self {
        self.resumes = false;
        self
    }

    /// Passes each offered handoff to this function, and each task of the agent that none of its processes works on
    /// ([`Offer::is_resumed`]). It accepts or rejects the offer, and does the work.
    ///
    /// A failure before the takeover is completed gives the message back to the broker, which delivers it again up to its
    /// limit. A failure after that, also a panic, ends the task as FAILED with the words of the failure. The function is
    /// dropped where it waits if the task is taken from the agent.
    pub fn on_handoff<F>(mut self, handler: impl Fn(Offer) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = HandlerResult> + Send + 'static,
    {
        self.mail.handoff = Some(Box::new(move |offer| Box::pin(handler(offer))));
        self
    }

    /// Passes each question to this agent to this function.
    pub fn on_question<F>(mut self, handler: impl Fn(Question) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = HandlerResult> + Send + 'static,
    {
        self.mail.question = Some(Box::new(move |question| Box::pin(handler(question))));
        self
    }

    /// Tells this function of tasks that were taken from this agent, after the function of [`Self::on_handoff`] was dropped.
    pub fn on_recalled<F>(mut self, handler: impl Fn(Recalled) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = HandlerResult> + Send + 'static,
    {
        self.mail.recalled = Some(Box::new(move |recalled| Box::pin(handler(recalled))));
        self
    }

    /// Asks this function for an answer to each request for offers, and to each counter-offer: see
    /// [`Handler::bid`](crate::Handler::bid). Without it the agent declines.
    pub fn on_task_request<F>(mut self, handler: impl Fn(Delivered) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Bid, Box<dyn std::error::Error + Send + Sync>>> + Send + 'static,
    {
        self.mail.bid = Some(Box::new(move |asked| Box::pin(handler(asked))));
        self
    }

    /// Passes all other mail to this function.
    pub fn on_message<F>(mut self, handler: impl Fn(Delivered) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = HandlerResult> + Send + 'static,
    {
        self.mail.message = Some(Box::new(move |delivered| Box::pin(handler(delivered))));
        self
    }

    /// Asks this function for the context of an accepted handoff that an earlier process of the agent requested: see
    /// [`Handler::context`](crate::Handler::context).
    pub fn context_provider<F>(mut self, provider: impl Fn(Delivered) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Vec<v1::ContextSection>, Box<dyn std::error::Error + Send + Sync>>> + Send + 'static,
    {
        self.mail.context = Some(Box::new(move |accept| Box::pin(provider(accept))));
        self
    }

    /// Registers the agent, connects it, and begins to serve its mail. An agent without a type, a capacity or another part
    /// of a card is registered only if the broker does not know it.
    ///
    /// # Errors
    ///
    /// [`ClientError::Settings`] and [`ClientError::Key`] for what the builder has; as [`Link::connect`]; as
    /// [`Client::register`].
    pub async fn connect(self) -> Result<Agent, ClientError> {
        let mut broker = self.broker;
        broker.server = parse_server(&broker.server)
            .map_err(|problem| ClientError::Settings(format!("the server {:?} {problem}", broker.server)))?;
        broker.ca = broker.ca.or_else(|| environment::local_ca(&broker.server));
        let wrong = |what: &str, text: &str, problem: &dyn fmt::Display| {
            ClientError::Settings(format!("the {what} {text:?} {problem}"))
        };
        let identity = Identity {
            agent: AgentId::parse(&self.id).map_err(|problem| wrong("agent id", &self.id, &problem))?,
            key_id: KeyId::parse(&self.key_id).map_err(|problem| wrong("key id", &self.key_id, &problem))?,
            key: self.key.read()?,
        };
        let options = LinkOptions {
            broker,
            identity,
            credit: self.credit,
            trust: self.trust,
            handler_timeout: self.handler_timeout,
            stop_grace: self.stop_grace,
            resume: self.resumes && self.mail.handoff.is_some(),
        };
        let registration = match (self.is_registered_elsewhere, self.has_card) {
            (true, _) => Registration::Elsewhere,
            (false, true) => Registration::Card,
            (false, false) => Registration::IfUnknown,
        };
        let link = open(options, self.card, &self.invitation, registration).await?;
        let stop = CancellationToken::new();
        let task = tokio::spawn({
            let (link, stop, mail) = (link.clone(), stop.clone(), self.mail);
            async move { link.serve(mail, stop).await }
        });
        let task = tokio::sync::Mutex::new(Some(task));
        let serving = Serving { stop: stop.clone(), task, _stop_on_drop: stop.drop_guard() };
        Ok(Agent { link, serving: Arc::new(serving) })
    }
}

impl Key {
    fn read(self) -> Result<PrivateKey, ClientError> {
        match self {
            Self::Given(key) => Ok(*key),
            Self::File(file) => {
                if !file.exists() {
                    PrivateKey::generate(&SystemIds).write(&file)?;
                }
                Ok(PrivateKey::read(&environment::checked_private(file, "the agent's key")?)?)
            }
        }
    }
}

/// What the broker is to know of the agent.
enum Registration {
    /// Nothing from here.
    Elsewhere,
    /// The key, if the broker does not know the agent.
    IfUnknown,
    /// The card.
    Card,
}

/// Connects the link of an agent, which is registered before.
async fn open(
    options: LinkOptions,
    card: v1::AgentCard,
    invitation: &str,
    registration: Registration,
) -> Result<Link, ClientError> {
    let connect = || Link::connect(options.clone(), Arc::new(SystemClock), Arc::new(SystemIds));
    let register = async || {
        let client = Client::connect(&options.broker).await?;
        client.register(&options.identity, card.clone(), invitation).await
    };
    match registration {
        Registration::Elsewhere => connect().await,
        Registration::Card => {
            register().await?;
            connect().await
        }
        Registration::IfUnknown => match connect().await {
            // The broker does not say whether it knows the agent.
            Err(refused) if refused.reason() == Some("CHALLENGE_FAILED") => match register().await {
                Ok(_) => connect().await,
                // The agent has another key.
                Err(error) if matches!(error.reason(), Some("AGENT_EXISTS" | "CHALLENGE_FAILED")) => Err(refused),
                Err(error) => Err(error),
            },
            connected => connected,
        },
    }
}

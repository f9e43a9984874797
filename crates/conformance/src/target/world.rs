//! The agents of a case on the broker under test. Unique ids keep cases apart from each other and from other agents.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use prost::Message as _;

use super::{
    Target,
    check::{Answer, NoAnswer, Problem, Verdict, answered, fail, same},
};
use baton_client::{
    About, Client, Composer, Delivered, Identity,
    envelope::{self, keys::PrivateKey},
    ids::{AgentId, IdSource as _, KeyId, SystemIds},
    proto::v1::{self, MessageType},
    session::Agent,
    time::{Clock as _, Moment, SystemClock},
};

/// The default credit of an agent.
pub(super) const CREDIT: u32 = 16;

/// The access of one case to the target.
#[derive(Debug, Clone)]
pub(super) struct World {
    pub(super) target: Arc<Target>,
    /// A client without credentials.
    pub(super) anonymous: Client,
    suffix: String,
}

/// An agent with a session.
pub(super) struct Actor {
    pub(super) identity: Identity,
    /// A client with the agent's token.
    pub(super) client: Client,
    pub(super) agent: Agent,
    /// The instance_id of its process.
    pub(super) process: String,
    patience: Duration,
}

impl World {
    pub(super) async fn new(target: Arc<Target>) -> Verdict<Self> {
        let suffix = hex::encode(&SystemIds.random()[..4]);
        let anonymous = answered("the suite connects", in_time(target.patience, target.connect()).await)?;
        Ok(Self { target, anonymous, suffix })
    }

    /// The same target with other ids, for a case with several stories.
    pub(super) fn another(&self) -> Self {
        Self { suffix: hex::encode(&SystemIds.random()[..4]), ..self.clone() }
    }

    /// A unique id with this name as its prefix.
    pub(super) fn id(&self, name: &str) -> String {
        format!("{name}-{}", self.suffix)
    }

    /// The instance_id of a new process.
    pub(super) fn another_process(&self) -> String {
        SystemIds.message_id(SystemClock.now()).to_string()
    }

    /// The identity of a new agent: a unique id and a new key.
    pub(super) fn identity(&self, name: &str) -> Identity {
        Identity {
            agent: AgentId::parse(&self.id(name)).expect("names in cases follow the grammar"),
            key_id: KeyId::parse("k1").expect("it follows the grammar"),
            key: PrivateKey::generate(&SystemIds),
        }
    }

    /// A client that may register agents: the operator's if a token was given, otherwise one without credentials.
    pub(super) fn registrar(&self) -> Client {
        self.operator().unwrap_or_else(|_| self.anonymous.clone())
    }

    /// The operator's client. Skips the case if no token was given.
    pub(super) fn operator(&self) -> Verdict<Client> {
        let Some(token) = &self.target.options.token else {
            return Err(Problem::Skipped("it needs an operator's token: --token".to_owned()));
        };
        self.anonymous.with_token(token).map_err(|error| Problem::Skipped(error.to_string()))
    }

    /// Calls `RegisterAgent` with this card.
    pub(super) async fn register(&self, by: &Client, card: v1::AgentCard) -> Answer<v1::RegisterAgentResponse> {
        let request = v1::RegisterAgentRequest { card: Some(card), ..Default::default() };
        self.call(async { by.answer(by.agents().register_agent(request).await) }).await
    }

    /// Registers an agent of these types, without a connection.
    pub(super) async fn enrol(&self, name: &str, types: &[String]) -> Verdict<Identity> {
        let identity = self.identity(name);
        let registered = self.register(&self.registrar(), card(&identity, types)).await;
        answered(&format!("{name} is registered"), registered)?;
        Ok(identity)
    }

    /// Registers an agent of these types with a capacity on its card, and opens a session.
    pub(super) async fn worker(&self, name: &str, types: &[String], capacity: u32) -> Verdict<Actor> {
        let identity = self.identity(name);
        let card = v1::AgentCard { capacity, ..card(&identity, types) };
        answered(&format!("{name} is registered"), self.register(&self.registrar(), card).await)?;
        self.connect(&identity, CREDIT).await
    }

    /// Opens a session for a registered agent.
    pub(super) async fn connect(&self, identity: &Identity, credit: u32) -> Verdict<Actor> {
        self.process(identity, credit, false).await
    }

    /// Opens a session of a new process of a registered agent, which says whether its heartbeats tell its work.
    pub(super) async fn process(&self, identity: &Identity, credit: u32, tells_work: bool) -> Verdict<Actor> {
        let step = format!("{} opens a session", identity.agent);
        let proven = self.call(self.anonymous.prove(identity)).await;
        let client = answered(&step, proven)?;
        let client =
            self.anonymous.with_token(&client).or_else(|error| fail(&step, "token", "a token", error.to_string()))?;
        let (clock, ids) = (Arc::new(SystemClock), Arc::new(SystemIds));
        let process = self.another_process();
        let hello = v1::Hello { instance_id: process.clone(), tells_work };
        let connecting = Agent::connect_process(&self.anonymous, identity.clone(), credit, clock, ids, hello);
        let agent = answered(&step, self.call(connecting).await)?;
        Ok(Actor { identity: identity.clone(), client, agent, process, patience: self.target.patience })
    }

    /// Registers an agent and opens a session with the default credit.
    pub(super) async fn agent(&self, name: &str) -> Verdict<Actor> {
        self.agent_of(name, &[], CREDIT).await
    }

    /// Registers an agent of these types and opens a session with this credit.
    pub(super) async fn agent_of(&self, name: &str, types: &[String], credit: u32) -> Verdict<Actor> {
        let identity = self.enrol(name, types).await?;
        self.connect(&identity, credit).await
    }

    /// Makes a call within the target's time limit.
    pub(super) async fn call<T>(&self, call: impl Future<Output = Result<T, baton_client::ClientError>>) -> Answer<T> {
        in_time(self.target.patience, call).await
    }
}

/// An agent's card.
pub(super) fn card(identity: &Identity, types: &[String]) -> v1::AgentCard {
    v1::AgentCard {
        agent_id: identity.agent.to_string(),
        agent_types: types.to_vec(),
        keys: vec![identity.agent_key()],
        ..Default::default()
    }
}

async fn in_time<T>(patience: Duration, call: impl Future<Output = Result<T, baton_client::ClientError>>) -> Answer<T> {
    match tokio::time::timeout(patience, call).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(NoAnswer::Other(format!("nothing within {patience:?}"))),
    }
}

/// The message type of this payload.
pub(super) fn message_type<M: prost::Name>() -> MessageType {
    type_named(M::NAME).expect("every payload of ours has a type")
}

/// The message type of the payload with this name, for example `HandoffRequest`.
pub(super) fn type_named(name: &str) -> Option<MessageType> {
    let mut upper = "MESSAGE_TYPE".to_owned();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() {
            upper.push('_');
        }
        upper.push(letter.to_ascii_uppercase());
    }
    MessageType::from_str_name(&upper)
}

impl Actor {
    pub(super) fn id(&self) -> &str {
        self.identity.agent.as_str()
    }

    /// The composer of the agent's envelopes.
    pub(super) fn composer(&self) -> Composer {
        Composer { identity: self.identity.clone(), clock: Arc::new(SystemClock), ids: Arc::new(SystemIds) }
    }

    /// A signed envelope, which the case may change before it sends it.
    pub(super) fn envelope<M: prost::Message + prost::Name>(
        &self,
        to: &str,
        about: &About,
        payload: &M,
    ) -> v1::Envelope {
        self.composer().compose(to, message_type::<M>(), about, payload)
    }

    /// A signed envelope of plain mail, about no task.
    pub(super) fn info(&self, to: &str, text: &str) -> v1::Envelope {
        self.envelope(to, &About::default(), &v1::Info { text: text.to_owned(), ..Default::default() })
    }

    /// Signs an envelope in its present form.
    pub(super) fn sign(&self, envelope: &mut v1::Envelope) {
        envelope::sign(envelope, &self.identity.key_id, &self.identity.key);
    }

    /// Sends these bytes as an envelope on the session.
    pub(super) async fn submit_bytes(&self, bytes: Bytes) -> Answer<v1::Receipt> {
        in_time(self.patience, self.agent.session.send(bytes)).await
    }

    /// Sends an envelope unchanged on the session.
    pub(super) async fn submit(&self, envelope: &v1::Envelope) -> Answer<v1::Receipt> {
        self.submit_bytes(envelope.encode_to_vec().into()).await
    }

    /// Composes, signs and sends an envelope.
    pub(super) async fn say<M>(&self, to: &str, about: &About, payload: &M) -> Answer<v1::Receipt>
    where
        M: prost::Message + prost::Name,
    {
        self.submit(&self.envelope(to, about, payload)).await
    }

    /// Composes, signs and sends an envelope that the broker must accept.
    pub(super) async fn tell<M>(&self, to: &str, about: &About, payload: &M) -> Verdict<v1::Receipt>
    where
        M: prost::Message + prost::Name,
    {
        answered(&format!("{} sends a {}", self.id(), M::NAME), self.say(to, about, payload).await)
    }

    /// Makes a call within the time limit.
    pub(super) async fn call<T>(&self, call: impl Future<Output = Result<T, baton_client::ClientError>>) -> Answer<T> {
        in_time(self.patience, call).await
    }

    /// The next delivery, which must arrive within the time limit. Its signature is verified with the sender's key.
    pub(super) async fn next(&self, step: &str) -> Verdict<Delivered> {
        answered(step, in_time(self.patience, self.agent.next()).await)
    }

    /// The next delivery, with `longer` added to the time limit.
    pub(super) async fn next_within(&self, step: &str, longer: Duration) -> Verdict<Delivered> {
        answered(step, in_time(self.patience + longer, self.agent.next()).await)
    }

    /// Waits for a delivery during all of `span`. Only for a delivery that must not arrive.
    pub(super) async fn comes_within(&self, span: Duration) -> Option<Delivered> {
        tokio::time::timeout(span, self.agent.next()).await.ok()?.ok()
    }

    /// Takes deliveries until the broker's notification about this task comes.
    pub(super) async fn notified_of(&self, task: &str, longer: Duration) -> Verdict<Delivered> {
        let step = format!("{} is told about {task}", self.id());
        loop {
            let delivered = self.next_within(&step, longer).await?;
            let acked = self.ack(&delivered).await;
            // An offer that has ended is withdrawn, also from the one that holds it: there is nothing left to ack then.
            if delivered.kind() != MessageType::HandoffRequest {
                acked?;
            }
            if delivered.kind() == MessageType::ErrorNotification && delivered.envelope.task_id == task {
                return Ok(delivered);
            }
        }
    }

    /// Acks the next delivery, which must have this type.
    pub(super) async fn take(&self, expected: MessageType) -> Verdict<Delivered> {
        self.take_within(expected, Duration::ZERO).await
    }

    /// The same, with `longer` added to the time limit.
    pub(super) async fn take_within(&self, expected: MessageType, longer: Duration) -> Verdict<Delivered> {
        let step = format!("{} takes its next delivery", self.id());
        let delivered = self.next_within(&step, longer).await?;
        same(&step, "message_type", expected, delivered.kind())?;
        self.ack(&delivered).await?;
        Ok(delivered)
    }

    pub(super) async fn ack(&self, delivered: &Delivered) -> Verdict {
        let acked = self.call(self.agent.session.ack(&delivered.delivery.delivery_id)).await;
        answered(&format!("{} acks a delivery", self.id()), acked)
    }

    pub(super) async fn nack(&self, delivered: &Delivered, cause: v1::NackCause, retry_after: Duration) -> Verdict {
        let retry_after = prost_types::Duration::try_from(retry_after).ok();
        let nack = v1::Nack { cause: cause.into(), retry_after, ..Default::default() };
        let nacked = self.call(self.agent.session.nack(&delivered.delivery.delivery_id, nack)).await;
        answered(&format!("{} nacks a delivery", self.id()), nacked)
    }

    /// The task, as the agent reads it.
    pub(super) async fn task(&self, task_id: &str) -> Answer<v1::Task> {
        let request = v1::GetTaskRequest { task_id: task_id.to_owned() };
        let got = self.call(async { self.client.answer(self.client.tasks().get_task(request).await) }).await?;
        Ok(got.task.unwrap_or_default())
    }

    /// The handoff, as the agent reads it.
    pub(super) async fn handoff(&self, handoff_id: &str) -> Answer<v1::Handoff> {
        let request = v1::GetHandoffRequest { handoff_id: handoff_id.to_owned(), ..Default::default() };
        let got = self.call(async { self.client.answer(self.client.handoffs().get_handoff(request).await) }).await?;
        Ok(got.handoff.unwrap_or_default())
    }

    /// Waits a moment, and returns whether to look again: false after the patience of the target. A receipt says that a message
    /// is stored; a plan or a negotiation that its handoff belongs to follows in a later commit.
    pub(super) async fn looks_again(&self, began: Moment) -> bool {
        tokio::time::sleep(Duration::from_millis(20)).await;
        began.elapsed() < self.patience
    }

    /// Checks the owner and the epoch of the task.
    pub(super) async fn owns(&self, step: &str, task_id: &str, owner: &str, epoch: u64) -> Verdict {
        let task = answered(step, self.task(task_id).await)?;
        let mut checks = super::check::Checks::of(step);
        checks.same("task.owner_id", owner, task.owner_id.as_str());
        checks.same("task.epoch", epoch, task.epoch);
        checks.done()
    }
}

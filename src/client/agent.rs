//! An agent on a session: the messages of a handoff as calls, and deliveries checked end to end.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use prost::Message as _;

use super::{About, Client, ClientError, Composer, Identity, Session, Trust, compose};
use crate::{
    codes::Refusal as _,
    envelope::{KeyRing, KeyRingError, UnverifiedEnvelope, Verifier, keys::PublicKey},
    ids::{AgentId, IdSource, KeyId},
    proto::v1::{self, MessageType},
    time::{Clock, Timestamp},
};

/// An agent that is connected.
pub struct Agent {
    /// The connection, with the agent's token.
    pub client: Client,
    /// The session.
    pub session: Session,
    composer: Composer,
    known_keys: Mutex<HashMap<(AgentId, KeyId), PublicKey>>,
    verifier: Mutex<Verifier>,
    trust: Trust,
}

/// A delivery whose envelope was verified with its sender's key.
#[derive(Debug, Clone)]
pub struct Delivered {
    /// As it came.
    pub delivery: v1::Delivery,
    /// The envelope in it.
    pub envelope: v1::Envelope,
}

impl Delivered {
    /// What it is.
    pub fn kind(&self) -> MessageType {
        self.envelope.message_type()
    }

    /// Its payload as this message; the default one if it is another.
    pub fn payload<M: prost::Message + Default>(&self) -> M {
        let value = self.envelope.payload.as_ref().map(|payload| payload.value.clone()).unwrap_or_default();
        M::decode(value).unwrap_or_default()
    }

    /// The handoff that it is about.
    pub fn handoff_id(&self) -> &str {
        match self.kind() {
            // Where the request was redriven, this is not its message_id.
            MessageType::HandoffRequest => &self.delivery.handoff_id,
            _ => &self.envelope.correlation_id,
        }
    }

    /// What an answer to it is about.
    pub fn about(&self) -> About {
        About::handoff(&self.envelope.task_id, self.envelope.epoch, self.handoff_id())
    }
}

impl Agent {
    /// Proves who one is, if the connection's certificate does not, and opens a session that takes this many deliveries at
    /// a time.
    pub async fn connect(
        client: &Client,
        identity: Identity,
        credit: u32,
        clock: Arc<dyn Clock>,
        ids: Arc<dyn IdSource>,
    ) -> Result<Self, ClientError> {
        let client = match client.is_certified {
            true => client.clone(),
            false => client.with_token(&client.prove(&identity).await?)?,
        };
        let session = Session::open(&client).await?;
        session.credit(credit).await?;
        let composer = Composer { identity, clock, ids };
        Ok(Self {
            client,
            session,
            composer,
            known_keys: Mutex::default(),
            verifier: Mutex::default(),
            trust: Trust::default(),
        })
    }

    /// The same, with keys taken by this rule: see [`Trust`].
    #[must_use]
    pub fn trusting(self, trust: Trust) -> Self {
        Self { trust, known_keys: Mutex::default(), ..self }
    }

    /// Its id.
    pub fn id(&self) -> &AgentId {
        &self.composer.identity.agent
    }

    /// Sends a message.
    pub async fn send<M: prost::Message + prost::Name>(
        &self,
        to: &str,
        kind: MessageType,
        about: &About,
        payload: &M,
    ) -> Result<v1::Receipt, ClientError> {
        self.session.send(self.composer.encode(to, kind, about, payload)).await
    }

    /// Asks somebody to take a task.
    pub async fn request(
        &self,
        to: &str,
        task_id: &str,
        epoch: u64,
        request: &v1::HandoffRequest,
    ) -> Result<v1::Receipt, ClientError> {
        self.send(to, MessageType::HandoffRequest, &About::task(task_id, epoch), request).await
    }

    /// Takes the handoff of this request.
    pub async fn accept(&self, request: &Delivered) -> Result<v1::Receipt, ClientError> {
        let sender = &request.envelope.sender_id;
        self.send(sender, MessageType::HandoffAccept, &request.about(), &v1::HandoffAccept::default()).await
    }

    /// Does not take it.
    pub async fn reject(&self, request: &Delivered, reject: &v1::HandoffReject) -> Result<v1::Receipt, ClientError> {
        self.send(&request.envelope.sender_id, MessageType::HandoffReject, &request.about(), reject).await
    }

    /// Sends the context that this accept waits for.
    pub async fn send_context(
        &self,
        accept: &Delivered,
        context: &v1::TaskContextTransfer,
    ) -> Result<v1::Receipt, ClientError> {
        self.send(&accept.envelope.sender_id, MessageType::TaskContextTransfer, &accept.about(), context).await
    }

    /// Takes over: checks the context's digest and says so.
    pub async fn complete(&self, context: &Delivered) -> Result<v1::Receipt, ClientError> {
        let complete = compose::completion_of(&context.payload());
        self.send(&context.envelope.sender_id, MessageType::HandoffComplete, &context.about(), &complete).await
    }

    /// Says how a task is doing.
    pub async fn report(&self, about: &About, update: &v1::TaskStatusUpdate) -> Result<v1::Receipt, ClientError> {
        self.send("", MessageType::TaskStatusUpdate, about, update).await
    }

    /// The next delivery, its signature checked with the sender's key.
    pub async fn next(&self) -> Result<Delivered, ClientError> {
        let delivery = self.session.next_delivery().await?;
        self.check(delivery).await
    }

    /// A delivery whose signature is its sender's. `ClientError::Unverified` if it is not.
    pub async fn check(&self, delivery: v1::Delivery) -> Result<Delivered, ClientError> {
        let envelope = v1::Envelope::decode(delivery.envelope.clone()).map_err(|error| ClientError::Unverified {
            reason: "MALFORMED",
            problem: format!("a delivery does not parse: {error}"),
        })?;
        self.verify(&delivery, &envelope).await?;
        Ok(Delivered { delivery, envelope })
    }

    /// The next delivery, acked at once.
    pub async fn take(&self) -> Result<Delivered, ClientError> {
        let delivered = self.next().await?;
        self.session.ack(&delivered.delivery.delivery_id).await?;
        Ok(delivered)
    }

    async fn verify(&self, delivery: &v1::Delivery, envelope: &v1::Envelope) -> Result<(), ClientError> {
        self.learn_keys(&envelope.sender_id, &envelope.key_id).await?;
        let keys = KnownKeys(&self.known_keys);
        let parsed = UnverifiedEnvelope::parse(delivery.envelope.clone());
        let signed = parsed.and_then(|parsed| parsed.with_key(&keys, self.composer.clock.now(), false));
        let verified = signed.and_then(|signed| signed.verify(&mut self.verifier.lock().expect("no holder panics")));
        verified.map(drop).map_err(|error| ClientError::Unverified {
            reason: error.code().name(),
            problem: format!("a delivery is not its sender's: {error}"),
        })
    }

    async fn learn_keys(&self, agent_id: &str, key_id: &str) -> Result<(), ClientError> {
        let (Ok(agent), Ok(key_id)) = (AgentId::parse(agent_id), KeyId::parse(key_id)) else { return Ok(()) };
        if self.known_keys.lock().expect("no holder panics").contains_key(&(agent.clone(), key_id)) {
            return Ok(());
        }
        let request = v1::GetAgentRequest { agent_id: agent_id.to_owned() };
        let found = self.client.answer(self.client.agents().get_agent(request).await)?;
        let card = found.agent.and_then(|agent| agent.card).unwrap_or_default();
        let mut known = self.known_keys.lock().expect("no holder panics");
        let now = self.composer.clock.now();
        let is_good = |key: &&v1::AgentKey| key.revoke_time.is_none() && self.trust.accepts(&agent, key, now);
        for key in card.keys.iter().filter(is_good) {
            if let (Ok(id), Ok(public)) = (KeyId::parse(&key.key_id), PublicKey::parse(&key.public_key)) {
                known.insert((agent.clone(), id), public);
            }
        }
        Ok(())
    }
}

struct KnownKeys<'a>(&'a Mutex<HashMap<(AgentId, KeyId), PublicKey>>);

impl KeyRing for KnownKeys<'_> {
    fn key(&self, agent: &AgentId, key_id: &KeyId, _now: Timestamp) -> Result<PublicKey, KeyRingError> {
        let known = self.0.lock().expect("no holder panics");
        known.get(&(agent.clone(), key_id.clone())).cloned().ok_or(KeyRingError::Unknown)
    }
}

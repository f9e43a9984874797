//! An agent on one session: handoff messages as calls, and end-to-end verification of deliveries.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use prost::Message as _;
use tokio::time;

use super::{
    About, Client, ClientError, Composer, Identity, Session, TraceContext, Trust, compose, limits,
    session::{ANSWER_MAX, Process},
};
use crate::{
    codes::Refusal as _,
    envelope::{KeyRing, KeyRingError, UnverifiedEnvelope, keys::PublicKey},
    ids::{AgentId, IdSource, KeyId},
    proto::v1::{self, MessageType},
    time::{Clock, Moment, Timestamp},
    trace,
};

/// An agent with an open session.
pub struct Agent {
    /// The connection, with the agent's token.
    pub client: Client,
    /// The session of the agent, on the connection of `client`.
    pub session: Session,
    composer: Composer,
    known_keys: Mutex<HashMap<AgentId, KnownKeys>>,
    trust: Trust,
}

/// How long fetched keys of an agent are used before the directory is asked again. A revocation takes effect here
/// within this time.
const KEYS_BELIEVED: Duration = Duration::from_secs(60);
/// From this number of cached agents on, an insert first drops the entries older than [`KEYS_BELIEVED`].
const AGENTS_KNOWN_MAX: usize = 1024;

/// The keys of one agent, as the directory listed them at `asked_at`.
#[derive(Debug)]
struct KnownKeys {
    asked_at: Moment,
    keys: HashMap<KeyId, KnownKey>,
}

/// A public key with its revocation and its validity interval.
#[derive(Debug, Clone)]
struct KnownKey {
    public: PublicKey,
    is_revoked: bool,
    not_before: Option<prost_types::Timestamp>,
    not_after: Option<prost_types::Timestamp>,
}

impl KnownKeys {
    /// Keeps the keys of the card that parse and that `trust` accepts.
    fn of_card(agent: &AgentId, card: &v1::AgentCard, trust: &Trust, now: Timestamp) -> Self {
        // A key that does not parse here is left out. The other keys of the card stay usable.
        let trusted = card.keys.iter().filter(|key| trust.accepts(agent, key, now));
        let keys = trusted.filter_map(|key| Some((KeyId::parse(&key.key_id).ok()?, KnownKey::of(key)?)));
        Self { asked_at: Moment::now(), keys: keys.collect() }
    }

    /// Whether the entry is fresh and holds `key_id`. Otherwise the directory is asked again.
    fn are_good_for(&self, key_id: &KeyId, now: Moment) -> bool {
        self.keys.contains_key(key_id) && now.since(self.asked_at) < KEYS_BELIEVED
    }
}

impl KnownKey {
    fn of(key: &v1::AgentKey) -> Option<Self> {
        Some(Self {
            public: PublicKey::parse(&key.public_key).ok()?,
            is_revoked: key.revoke_time.is_some(),
            not_before: key.not_before_time,
            not_after: key.not_after_time,
        })
    }

    /// Whether the key is valid for a signature made at `time`. A revoked key is never valid, not even for earlier
    /// signatures: a thief of the key can choose any timestamp.
    fn is_good_at(&self, time: Timestamp) -> bool {
        let (seconds, nanos) = time.to_parts();
        let time = (seconds, nanos);
        let order = |bound: prost_types::Timestamp| (bound.seconds, bound.nanos);
        !self.is_revoked
            && self.not_before.is_none_or(|from| order(from) <= time)
            && self.not_after.is_none_or(|until| time < order(until))
    }
}

/// A delivery whose envelope was verified with its sender's key.
#[derive(Debug, Clone)]
pub struct Delivered {
    /// The delivery as received.
    pub delivery: v1::Delivery,
    /// The decoded envelope of the delivery.
    pub envelope: v1::Envelope,
}

impl Delivered {
    /// The message type.
    pub fn kind(&self) -> MessageType {
        self.envelope.message_type()
    }

    /// The payload decoded as `M`; the default value if it does not decode.
    pub fn payload<M: prost::Message + Default>(&self) -> M {
        let value = self.envelope.payload.as_ref().map(|payload| payload.value.clone()).unwrap_or_default();
        M::decode(value).unwrap_or_default()
    }

    /// The trace context that the agent continues while it handles the message. `None`: none is known.
    pub fn trace_context(&self) -> Option<TraceContext> {
        trace::of_delivery(&self.delivery)
    }

    /// The id of the handoff this message belongs to.
    pub fn handoff_id(&self) -> &str {
        match self.kind() {
            // A redriven request has a handoff id that differs from its message_id.
            MessageType::HandoffRequest => &self.delivery.handoff_id,
            MessageType::TaskAccept | MessageType::NegotiationClosed if self.opens_handoff() => {
                &self.delivery.handoff_id
            }
            _ => &self.envelope.correlation_id,
        }
    }

    /// Whether the message asks this agent to take a task over: a `HandoffRequest`, or an award of a negotiation with a
    /// task. [`Link::accept`](super::Link::accept) and [`Link::reject`](super::Link::reject) answer it.
    pub fn opens_handoff(&self) -> bool {
        match self.kind() {
            MessageType::HandoffRequest => true,
            MessageType::TaskAccept | MessageType::NegotiationClosed => !self.delivery.handoff_id.is_empty(),
            _ => false,
        }
    }

    /// The terms, if the message asks this agent to take a task over: of a request, or of an award.
    pub fn handoff_request(&self) -> Option<v1::HandoffRequest> {
        match self.kind() {
            MessageType::HandoffRequest => Some(self.payload()),
            MessageType::TaskAccept => self.payload::<v1::TaskAccept>().handoff,
            _ => {
                let mandate = v1::Envelope::decode(mandate_of(&self.envelope)?).ok()?;
                v1::TaskRequest::decode(mandate.payload?.value).ok()?.handoff
            }
        }
    }

    /// The id of the negotiation this message belongs to.
    pub fn negotiation_id(&self) -> &str {
        match self.kind() {
            MessageType::TaskRequest => &self.envelope.message_id,
            _ => &self.envelope.correlation_id,
        }
    }

    /// The agent that an answer goes to: the sender, or the requester whose mandate the broker shows in an award.
    pub fn counterpart(&self) -> String {
        let mandate = mandate_of(&self.envelope).and_then(|mandate| v1::Envelope::decode(mandate).ok());
        mandate.map_or_else(|| self.envelope.sender_id.clone(), |mandate| mandate.sender_id)
    }

    /// What an answer to this message refers to: task, epoch and handoff.
    pub fn about(&self) -> About {
        About::handoff(&self.envelope.task_id, self.envelope.epoch, self.handoff_id())
    }
}

impl Agent {
    /// Authenticates the agent, unless the connection's certificate does, and opens a session with a credit of `credit`
    /// deliveries. The session is a process of its own, whose heartbeats do not tell what it works on.
    pub async fn connect(
        client: &Client,
        identity: Identity,
        credit: u32,
        clock: Arc<dyn Clock>,
        ids: Arc<dyn IdSource>,
    ) -> Result<Self, ClientError> {
        let hello = v1::Hello { instance_id: ids.message_id(clock.now()).to_string(), tells_work: false };
        Self::connect_process(client, identity, credit, clock, ids, hello).await
    }

    /// The same for a process that says this of itself. A process keeps its `instance_id` over all of its sessions, and the
    /// broker gives it what it has begun; the mail of an unknown process waits two seconds for its return. With `tells_work`
    /// the caller lists the tasks that the process works on: [`Session::heartbeat`] with `working_on`, which all later
    /// heartbeats repeat.
    pub async fn connect_process(
        client: &Client,
        identity: Identity,
        credit: u32,
        clock: Arc<dyn Clock>,
        ids: Arc<dyn IdSource>,
        hello: v1::Hello,
    ) -> Result<Self, ClientError> {
        Self::connect_as(client, identity, credit, clock, ids, Process { hello, work: None }).await
    }

    /// The same for a session of this process.
    pub(super) async fn connect_as(
        client: &Client,
        identity: Identity,
        credit: u32,
        clock: Arc<dyn Clock>,
        ids: Arc<dyn IdSource>,
        process: Process,
    ) -> Result<Self, ClientError> {
        let client = match client.is_certified {
            true => client.clone(),
            false => client.sign_in(&identity).await?,
        };
        let session = Session::open_as(&client, Some(process)).await?;
        // A session begins with a credit of 0 (SPEC 4).
        session.credit(credit).await?;
        Ok(Self::on(session, client, Composer { identity, clock, ids }))
    }

    /// The agent on this session.
    pub(super) fn on(session: Session, client: Client, composer: Composer) -> Self {
        Self { client, session, composer, known_keys: Mutex::default(), trust: Trust::default() }
    }

    /// Replaces the rule by which keys of senders are accepted, and drops the cached keys: see [`Trust`]. Keys that are
    /// pinned for the broker also verify the receipts.
    #[must_use]
    pub fn trusting(mut self, trust: Trust) -> Self {
        self.session.pinned_keys = trust.pins_of(&AgentId::broker()).cloned();
        Self { trust, known_keys: Mutex::default(), ..self }
    }

    /// The id of the agent.
    pub fn id(&self) -> &AgentId {
        &self.composer.identity.agent
    }

    /// Makes a call with the agent's credentials.
    pub(super) async fn call<T, F>(&self, call: impl Fn(Client) -> F) -> Result<T, ClientError>
    where
        F: Future<Output = Result<T, ClientError>>,
    {
        call(self.client.clone()).await
    }

    /// Sends a message.
    ///
    /// # Errors
    ///
    /// As [`Session::send`]; `PAYLOAD_TOO_LARGE` for a payload over 1,048,576 bytes and `FIELD_INVALID` for a field out
    /// of its bounds, before anything is sent.
    pub async fn send<M: prost::Message + prost::Name>(
        &self,
        to: &str,
        kind: MessageType,
        about: &About,
        payload: &M,
    ) -> Result<v1::Receipt, ClientError> {
        let envelope = self.composer.encode(to, kind, about, payload);
        limits::check_envelope(&envelope)?;
        self.session.send(envelope).await
    }

    /// Requests that `to`, an agent or `type:NAME`, takes over a task.
    pub async fn request(
        &self,
        to: &str,
        task_id: &str,
        epoch: u64,
        request: &v1::HandoffRequest,
    ) -> Result<v1::Receipt, ClientError> {
        self.send(to, MessageType::HandoffRequest, &About::task(task_id, epoch), request).await
    }

    /// Accepts the handoff of this request.
    pub async fn accept(&self, request: &Delivered) -> Result<v1::Receipt, ClientError> {
        let sender = &request.counterpart();
        self.send(sender, MessageType::HandoffAccept, &request.about(), &v1::HandoffAccept::default()).await
    }

    /// Rejects the handoff of this request.
    pub async fn reject(&self, request: &Delivered, reject: &v1::HandoffReject) -> Result<v1::Receipt, ClientError> {
        self.send(&request.counterpart(), MessageType::HandoffReject, &request.about(), reject).await
    }

    /// Sends the context that the candidate of this accept waits for.
    pub async fn send_context(
        &self,
        accept: &Delivered,
        context: &v1::TaskContextTransfer,
    ) -> Result<v1::Receipt, ClientError> {
        self.send(&accept.envelope.sender_id, MessageType::TaskContextTransfer, &accept.about(), context).await
    }

    /// Completes the takeover with the digest computed from the received context.
    pub async fn complete(&self, context: &Delivered) -> Result<v1::Receipt, ClientError> {
        let complete = compose::completion_of(&context.payload());
        self.send(&context.envelope.sender_id, MessageType::HandoffComplete, &context.about(), &complete).await
    }

    /// Reports the status of a task.
    pub async fn report(&self, about: &About, update: &v1::TaskStatusUpdate) -> Result<v1::Receipt, ClientError> {
        self.send("", MessageType::TaskStatusUpdate, about, update).await
    }

    /// Waits for the next delivery and verifies its signature with the sender's key.
    pub async fn next(&self) -> Result<Delivered, ClientError> {
        let delivery = self.session.next_delivery().await?;
        self.check(delivery).await
    }

    /// Verifies the signature of a delivery. Fails with [`ClientError::Unverified`] if it does not verify.
    pub async fn check(&self, delivery: v1::Delivery) -> Result<Delivered, ClientError> {
        let envelope = v1::Envelope::decode(delivery.envelope.clone()).map_err(|error| ClientError::Unverified {
            reason: "MALFORMED",
            problem: format!("a delivery cannot be parsed: {error}"),
        })?;
        self.verify(&delivery, &envelope).await?;
        Ok(Delivered { delivery, envelope })
    }

    /// Waits for the next delivery and acks it at once.
    pub async fn take(&self) -> Result<Delivered, ClientError> {
        let delivered = self.next().await?;
        self.session.ack(&delivered.delivery.delivery_id).await?;
        Ok(delivered)
    }

    async fn verify(&self, delivery: &v1::Delivery, envelope: &v1::Envelope) -> Result<(), ClientError> {
        self.learn_keys(&envelope.sender_id, &envelope.key_id).await?;
        check_signature(delivery.envelope.clone(), &self.known_keys)?;
        self.verify_mandate(envelope).await
    }

    /// Verifies the requester's mandate in an award. Without it the broker could ask in any agent's name.
    async fn verify_mandate(&self, award: &v1::Envelope) -> Result<(), ClientError> {
        let Some(bytes) = mandate_of(award) else { return Ok(()) };
        let mandate = v1::Envelope::decode(bytes.clone()).map_err(|error| ClientError::Unverified {
            reason: "MALFORMED",
            problem: format!("the mandate of an award cannot be parsed: {error}"),
        })?;
        self.learn_keys(&mandate.sender_id, &mandate.key_id).await?;
        check_signature(bytes, &self.known_keys)?;
        check_mandate(award, &mandate)
    }

    async fn learn_keys(&self, agent_id: &str, key_id: &str) -> Result<(), ClientError> {
        // An invalid id has no keys to fetch; verification refuses it afterwards.
        let (Ok(agent), Ok(key_id)) = (AgentId::parse(agent_id), KeyId::parse(key_id)) else { return Ok(()) };
        let is_good = |known: &KnownKeys| known.are_good_for(&key_id, Moment::now());
        if self.known_keys.lock().expect("no holder panics").get(&agent).is_some_and(is_good) {
            return Ok(());
        }
        // No lock is held during the call, so two deliveries may ask for the same keys. The later answer replaces the
        // earlier one.
        let request = v1::GetAgentRequest { agent_id: agent_id.to_owned() };
        let found = self.call(|client| {
            let request = request.clone();
            async move { client.answer(client.agents().get_agent(request).await) }
        });
        // `serve` takes no further delivery during the call, so a silent broker must not hold it up.
        let found = time::timeout(ANSWER_MAX, found).await.unwrap_or_else(|_| {
            Err(ClientError::SessionEnded(format!("the directory has not answered within {ANSWER_MAX:?}")))
        });
        let card = found?.agent.and_then(|agent| agent.card).unwrap_or_default();
        let known = KnownKeys::of_card(&agent, &card, &self.trust, self.composer.clock.now());
        let mut all = self.known_keys.lock().expect("no holder panics");
        if all.len() >= AGENTS_KNOWN_MAX {
            all.retain(|_, other| other.asked_at.elapsed() < KEYS_BELIEVED);
        }
        all.insert(agent, known);
        Ok(())
    }
}

/// Checks that a mandate is for the negotiation, the task and the epoch of the award.
fn check_mandate(award: &v1::Envelope, mandate: &v1::Envelope) -> Result<(), ClientError> {
    let is_of_award = mandate.message_type() == MessageType::TaskRequest
        && mandate.message_id == award.correlation_id
        && mandate.task_id == award.task_id
        && mandate.epoch == award.epoch;
    match is_of_award {
        true => Ok(()),
        false => Err(ClientError::Unverified {
            reason: "FIELD_INVALID",
            problem: "the mandate of an award is of another negotiation, task or epoch".to_owned(),
        }),
    }
}

/// The requester's `TaskRequest` in an award; `None` for any other message.
fn mandate_of(envelope: &v1::Envelope) -> Option<bytes::Bytes> {
    if envelope.message_type() != MessageType::NegotiationClosed {
        return None;
    }
    let closed = v1::NegotiationClosed::decode(envelope.payload.as_ref()?.value.clone()).ok()?;
    Some(closed.task_request).filter(|mandate| !mandate.is_empty())
}

impl Client {
    /// Verifies the signature of an envelope that a call returned, with its sender's key in the directory, and decodes
    /// it. `now` is the present time, at which a voucher must be valid.
    ///
    /// # Errors
    ///
    /// [`ClientError::Unverified`] if the signature does not verify, or if `trust` does not accept the key.
    pub async fn verified(
        &self,
        envelope: bytes::Bytes,
        trust: &Trust,
        now: Timestamp,
    ) -> Result<v1::Envelope, ClientError> {
        let decoded = v1::Envelope::decode(envelope.clone()).map_err(|error| ClientError::Unverified {
            reason: "MALFORMED",
            problem: format!("an envelope cannot be parsed: {error}"),
        })?;
        let known = Mutex::new(HashMap::new());
        if let Ok(agent) = AgentId::parse(&decoded.sender_id) {
            let request = v1::GetAgentRequest { agent_id: decoded.sender_id.clone() };
            let found = self.answer(self.agents().get_agent(request).await)?;
            let card = found.agent.and_then(|agent| agent.card).unwrap_or_default();
            let keys = KnownKeys::of_card(&agent, &card, trust, now);
            known.lock().expect("no holder panics").insert(agent, keys);
        }
        check_signature(envelope, &known)?;
        Ok(decoded)
    }
}

/// Verifies the signature of an envelope with the known keys.
fn check_signature(envelope: bytes::Bytes, known: &Mutex<HashMap<AgentId, KnownKeys>>) -> Result<(), ClientError> {
    // The key must have been valid at signing time. That time is the sender's clock, which the broker has checked
    // against its own.
    let verified = UnverifiedEnvelope::parse(envelope).and_then(|parsed| {
        let signed_at = parsed.header().timestamp;
        // `false`: an unsigned envelope is refused here even if the operator of the broker allows it (SPEC 2).
        parsed.verify(&Ring(known), signed_at, false)
    });
    verified.map(drop).map_err(|error| ClientError::Unverified {
        reason: error.code().name(),
        problem: format!("the sender of a message does not verify: {error}"),
    })
}

/// The cached keys as a [`KeyRing`]: a key must be valid at the time of the signature.
struct Ring<'a>(&'a Mutex<HashMap<AgentId, KnownKeys>>);

impl KeyRing for Ring<'_> {
    fn key(&self, agent: &AgentId, key_id: &KeyId, signed_at: Timestamp) -> Result<PublicKey, KeyRingError> {
        let known = self.0.lock().expect("no holder panics");
        let key = known.get(agent).and_then(|known| known.keys.get(key_id)).ok_or(KeyRingError::Unknown)?;
        match key.is_good_at(signed_at) {
            true => Ok(key.public.clone()),
            false => Err(KeyRingError::NotValid),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        envelope::{keys::PrivateKey, signing},
        ids::SystemIds,
        proto::v1::connect_response::Response,
        script::Script,
    };

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_parts(seconds, 0).unwrap()
    }

    fn known(change: impl FnOnce(&mut v1::AgentKey)) -> (KnownKeys, KeyId) {
        let public_key = PrivateKey::generate(&SystemIds).public().as_bytes().to_vec().into();
        let mut key = v1::AgentKey { key_id: "k1".to_owned(), public_key, ..Default::default() };
        change(&mut key);
        let card = v1::AgentCard { keys: vec![key], ..Default::default() };
        let alice = AgentId::parse("alice").unwrap();
        (KnownKeys::of_card(&alice, &card, &Trust::Broker, at(0)), KeyId::parse("k1").unwrap())
    }

    #[test]
    fn a_mandate_of_another_negotiation_task_or_epoch_is_refused() {
        let mandate = v1::Envelope {
            message_type: MessageType::TaskRequest.into(),
            message_id: "n".to_owned(),
            sender_id: "alice".to_owned(),
            task_id: "t".to_owned(),
            epoch: 3,
            ..Default::default()
        };
        let award = |negotiation: &str, task: &str, shown: &v1::Envelope| {
            let closed = v1::NegotiationClosed { task_request: shown.encode_to_vec().into(), ..Default::default() };
            v1::Envelope {
                message_type: MessageType::NegotiationClosed.into(),
                sender_id: "baton".to_owned(),
                correlation_id: negotiation.to_owned(),
                task_id: task.to_owned(),
                epoch: 3,
                payload: Some(crate::envelope::payload_of(&closed)),
                ..Default::default()
            }
        };
        let right = award("n", "t", &mandate);
        assert!(check_mandate(&right, &mandate).is_ok());
        assert!(check_mandate(&award("m", "t", &mandate), &mandate).is_err());
        assert!(check_mandate(&award("n", "u", &mandate), &mandate).is_err());
        let earlier = v1::Envelope { epoch: 2, ..mandate.clone() };
        assert!(check_mandate(&award("n", "t", &earlier), &earlier).is_err());
        let info = v1::Envelope { message_type: MessageType::Info.into(), ..mandate.clone() };
        assert!(check_mandate(&award("n", "t", &info), &info).is_err());
        let delivered = |envelope| Delivered { delivery: v1::Delivery::default(), envelope };
        assert_eq!(delivered(right.clone()).counterpart(), "alice");
        let end = v1::Envelope { payload: None, ..right };
        assert_eq!(delivered(end).counterpart(), "baton", "a notice of the end shows no mandate");
    }

    #[tokio::test]
    async fn the_pinned_keys_of_the_broker_verify_its_receipts() {
        let other = PrivateKey::generate(&SystemIds).public();
        for is_pinned in [true, false] {
            let (agent, mut script) = Script::open_agent();
            let key = script.key.clone();
            let keys = if is_pinned { vec![other.clone(), key.public()] } else { vec![other.clone()] };
            let agent = agent.trusting(Trust::Pinned([(AgentId::broker(), keys)].into()));
            let answering = async {
                let (request_id, _) = script.hear().await;
                let receipt = v1::Receipt::default();
                let signature = key.sign(&signing::receipt_input(&receipt)).to_vec().into();
                script.say(request_id, Response::Receipt(v1::Receipt { signature, ..receipt }));
            };
            let (sent, ()) = tokio::join!(agent.session.send(bytes::Bytes::new()), answering);
            match is_pinned {
                true => drop(sent.unwrap()),
                false => assert!(matches!(sent, Err(ClientError::Unverified { .. })), "{sent:?}"),
            }
        }
    }

    #[test]
    fn keys_are_believed_for_a_minute() {
        let (known, key_id) = known(|_| {});
        let asked_at = known.asked_at;
        assert!(known.are_good_for(&key_id, asked_at.plus(Duration::from_secs(59))));
        assert!(!known.are_good_for(&key_id, asked_at.plus(Duration::from_secs(60))), "a revocation is noticed now");
        assert!(!known.are_good_for(&KeyId::parse("k2").unwrap(), asked_at), "a key that was not there");
    }

    #[test]
    fn a_key_is_good_in_its_time_and_never_once_revoked() {
        let time = |seconds| Some(prost_types::Timestamp { seconds, nanos: 0 });
        let is_good = |known: &(KnownKeys, KeyId), seconds| known.0.keys[&known.1].is_good_at(at(seconds));
        let bounded = known(|key| (key.not_before_time, key.not_after_time) = (time(10), time(20)));
        assert_eq!([9, 10, 19, 20].map(|seconds| is_good(&bounded, seconds)), [false, true, true, false]);
        let revoked = known(|key| key.revoke_time = time(15));
        assert_eq!([0, 14, 16].map(|seconds| is_good(&revoked, seconds)), [false; 3]);
    }
}

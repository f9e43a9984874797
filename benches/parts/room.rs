//! An engine with agents, in one thread and without a network. Agents sign nothing.

use std::{sync::Arc, time::Duration};

use baton::{
    broker::{
        AgentLimits, BrokerIdentity, Event, Events, Refused, Reply, Resources, Retention, Settings, Signer,
        access::{Access, Caller, Operator},
        directory::Entry,
        engine::{Command, ConsumerKind, Engine, Fate, Revision},
        queries::View,
        send_outputs,
    },
    domain::{EntityId, Input, mailbox::ConsumerId},
    envelope::{self, UnverifiedEnvelope, keys::PrivateKey, signing},
    ids::{AgentId, IdSource as _, KeyId, SystemIds},
    proto::v1::{self, MessageType},
    records::AgentRecord,
    store::{MemoryStore, Store},
    time::Timestamp,
};
use bytes::Bytes;
use prost::{Message, Name};
use tokio::sync::{mpsc, oneshot::Receiver};

/// The commands of one commit batch.
pub(crate) const BATCH: usize = 256;
/// The agent that begins everything.
pub(crate) const ALICE: &str = "alice";

/// An agent that does nothing.
pub(crate) const BOB: &str = "bob";

/// Where the answer of a command arrives.
pub(crate) type Answer<T> = Receiver<Result<T, Refused>>;

/// The private key of an agent, derived from its name: no two agents may have the same.
pub(crate) fn private_key(name: &str) -> PrivateKey {
    PrivateKey::from_seed(&signing::sha256(&[name.as_bytes()]))
}

/// The public half, as a card has it.
pub(crate) fn key(name: &str) -> v1::AgentKey {
    let public_key = private_key(name).public().as_bytes().to_vec().into();
    v1::AgentKey { key_id: "k1".to_owned(), public_key, ..Default::default() }
}

/// What a message is about.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct About<'a> {
    pub task: &'a str,
    pub epoch: u64,
    pub correlation: &'a str,
}

/// An engine and its agents.
pub(crate) struct Room {
    engine: Engine,
    store: Arc<dyn Store>,
    resources: Resources,
    now: Timestamp,
    sessions: Vec<(AgentId, mpsc::UnboundedReceiver<Event>)>,
}

impl Room {
    /// Alice, and agents of this type, which all have a session. The store is in memory.
    pub(crate) fn new(agent_type: &str, agents: impl IntoIterator<Item = String>) -> Self {
        let mut room = Self::over(Arc::new(MemoryStore::default()));
        room.open_session(ALICE);
        for name in agents {
            room.register(&name, agent_type);
            room.open_session(&name);
        }
        room.finish();
        room
    }

    /// Alice and bob without sessions, over this store. Mail for bob waits in his mailbox.
    pub(crate) fn over(store: Arc<dyn Store>) -> Self {
        let identity = BrokerIdentity {
            key_id: KeyId::parse("b").expect("it is a name"),
            key: PrivateKey::from_seed(&[1; 32]),
            coordinator: Signer::new(PrivateKey::from_seed(&[2; 32])),
        };
        // A short period, so that a turn depends less on the number of turns before it. Message ids stay: they must
        // outlive the clock window.
        let retention = Retention { ended_tasks: Some(Duration::from_secs(1)), ..Retention::default() };
        // A turn sends more in its time than an agent may.
        let limits =
            AgentLimits { messages_per_second: 0, bytes_per_second: 0, mailbox_max: 0, ..AgentLimits::default() };
        let settings = Settings { unsigned_allowed: true, retention, limits, ..Settings::default() };
        let resources = Resources::default();
        let now = Timestamp::from_parts(1_700_000_000, 0).expect("it is a time");
        let engine =
            Engine::open(store.clone(), identity, settings.into(), resources.clone(), Arc::new(SystemIds), now);
        let engine = engine.expect("an empty store opens");
        let mut room = Self { engine, store, resources, now, sessions: Vec::new() };
        room.register(ALICE, "");
        room.register(BOB, "");
        room
    }

    fn register(&mut self, name: &str, agent_type: &str) {
        let agent_types = if agent_type.is_empty() { Vec::new() } else { vec![agent_type.to_owned()] };
        let card =
            v1::AgentCard { agent_id: name.to_owned(), agent_types, keys: vec![key(name)], ..Default::default() };
        let entry = Box::new(Entry::parse(AgentRecord::new(card, self.now)).expect("the card is valid"));
        let caller = Caller::Operator(Operator::named("bench"));
        let (reply, mut answer) = Reply::once();
        let register = Command::Register { entry, caller, invitation: String::new(), reply };
        self.engine.handle(register, self.now);
        self.finish();
        assert!(answer.try_recv().expect("the batch is committed").is_ok(), "{name} is registered");
    }

    fn open_session(&mut self, name: &str) {
        let agent = AgentId::parse(name).expect("it is a name");
        let consumer = ConsumerId(self.sessions.len() as u64 + 1);
        let (sender, events) = Events::channel();
        let kind = ConsumerKind::Session;
        self.engine.handle(Command::Open { consumer, agent: agent.clone(), kind, events: sender }, self.now);
        self.engine.handle(Command::Credit { consumer, outstanding_max: 4096, reply: None }, self.now);
        self.sessions.push((agent, events));
    }

    /// Has a call of an operator step an entity. The answer comes with the next [`Room::finish`].
    pub(crate) fn apply(&mut self, about: EntityId, input: Input) -> Answer<bool> {
        let (reply, answer) = Reply::once();
        let (input, caller) = (Box::new(input), Caller::Operator(Operator::named("bench")));
        self.engine.handle(Command::Apply { about, input, caller, reply }, self.now);
        answer
    }

    /// Has an operator register a graph or a spec.
    pub(crate) fn register_revision(&mut self, revision: Revision) {
        let (caller, etag, reply) = (Caller::Operator(Operator::named("bench")), String::new(), Reply::once().0);
        self.engine.handle(Command::RegisterRevision { revision: Box::new(revision), caller, etag, reply }, self.now);
    }

    /// Answers a query of the broker's owner.
    pub(crate) fn look<T>(&self, query: impl FnOnce(View<'_>) -> T) -> T {
        let access = Access { policies: &self.resources.policies, directory: self.engine.directory() };
        let caller = Caller::Operator(Operator::named("bench"));
        query(View { store: &*self.store, access, caller: &caller })
    }

    /// Commits what the engine holds, and sends its outputs.
    pub(crate) fn finish(&mut self) {
        self.now = self.now.plus(Duration::from_millis(2));
        self.engine.tick(self.now);
        self.engine.finish(self.now);
        send_outputs(&mut self.engine);
    }

    /// Sends a message. Returns its id, and the receiver of its receipt.
    pub(crate) fn submit<M: Message + Name>(
        &mut self,
        from: &str,
        to: &str,
        kind: MessageType,
        about: About<'_>,
        payload: &M,
    ) -> (String, Answer<v1::Receipt>) {
        let (seconds, nanos) = self.now.to_parts();
        let message_id = SystemIds.message_id(self.now).to_string();
        let envelope = v1::Envelope {
            message_id: message_id.clone(),
            sender_id: from.to_owned(),
            receiver_id: to.to_owned(),
            timestamp: Some(prost_types::Timestamp { seconds, nanos }),
            message_type: kind.into(),
            task_id: about.task.to_owned(),
            epoch: about.epoch,
            correlation_id: about.correlation.to_owned(),
            payload: Some(envelope::payload_of(payload)),
            ..Default::default()
        };
        let parsed = UnverifiedEnvelope::parse(Bytes::from(envelope.encode_to_vec())).expect("the envelope is valid");
        let directory = self.engine.directory().clone();
        let envelope = Box::new(parsed.verify(&*directory, self.now, true).expect("nothing is signed"));
        let (reply, receipt) = Reply::once();
        let prepared = self.engine.prepare(envelope, true).expect("the store can be read");
        let message = prepared.ready().expect("the last attempt");
        self.engine.handle(Command::Submit { message, is_from_sender: true, reply }, self.now);
        (message_id, receipt)
    }

    /// Acks all deliveries. Returns their number.
    pub(crate) fn ack(&mut self) -> usize {
        let mut delivered = Vec::new();
        for (agent, events) in &mut self.sessions {
            while let Ok(event) = events.try_recv() {
                if let Event::Delivery(delivery) = event {
                    delivered.push((agent.clone(), delivery.delivery_id));
                }
            }
        }
        let many = delivered.len();
        for (place, (agent, delivery_id)) in delivered.into_iter().enumerate() {
            let ack = Command::Acknowledge { agent, delivery_id, fate: Fate::Acked, reply: Reply::once().0 };
            self.engine.handle(ack, self.now);
            if place % BATCH == BATCH - 1 {
                self.finish();
            }
        }
        self.finish();
        many
    }
}

//! A world of agents around one engine, with a manual clock.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use baton_broker_core::{
    Acknowledged, Away, BrokerError, BrokerIdentity, Event, Events, OutgoingDelivery, Refused, Reply, Resources,
    Settings,
    access::{Access, Caller, Operator},
    codes::{ErrorCode, Refusal as _},
    directory::{Entry, PresenceState},
    domain::{
        Input,
        mailbox::{ConsumerId, EnvelopePlace},
        plan, routing, threads,
    },
    engine::{Command, ConsumerKind, Engine, Fate},
    envelope::{self, EnvelopeError, UnverifiedEnvelope, VerifiedEnvelope, keys::PrivateKey, signing},
    ids::{AgentId, IdSource, KeyId, MessageId, TaskId},
    preparation::PreparedMessage,
    proto::v1,
    queries::View,
    records::{AgentRecord, DeadLetterRecord, DecodeError, TaskRecord, read_envelope},
    refused,
    replay::Replay,
    send_outputs,
    store::{
        Change, CommitError, Conflict, Key, KeyBytes, KeyRange, MemoryStore, OpenError, Order, ReadError, Record,
        Store, Table,
    },
    time::Timestamp,
};
use prost::{Message, Name};
use tokio::sync::mpsc;

/// A source of sequential ids, the same in every run.
#[derive(Default)]
pub(crate) struct CountingIds(AtomicU64);

impl IdSource for CountingIds {
    fn random(&self) -> [u8; 16] {
        let mut bytes = [0x55; 16];
        bytes[..8].copy_from_slice(&self.0.fetch_add(1, Ordering::Relaxed).to_be_bytes());
        bytes
    }
}

/// A store in memory whose disk can be full, or refuse reads.
#[derive(Default)]
pub(crate) struct Disk {
    store: MemoryStore,
    pub full: AtomicBool,
    /// The scans of letters before all others fail. The first that fails ends the use of the store, as a read of a damaged
    /// file does. `None`: no scan fails.
    pub letter_scans: Mutex<Option<u32>>,
    failed: AtomicBool,
    pub commits: AtomicU64,
    /// The number of record reads.
    pub reads: AtomicU64,
    /// The records that each commit has written.
    pub written: Mutex<Vec<Vec<Written>>>,
}

/// A write of a record.
#[derive(Clone)]
pub(crate) struct Written {
    pub key: Key,
    pub is_removal: bool,
    /// The store did not have the record before.
    pub is_new: bool,
}

/// Of each record the last write, and none of a record that is made and removed here.
pub(crate) fn lasting(writes: impl IntoIterator<Item = Written>) -> Vec<Written> {
    let mut last = BTreeMap::new();
    for Written { key, is_removal, is_new } in writes {
        let is_new = last.get(&key).map_or(is_new, |(_, is_new)| *is_new);
        last.insert(key, (is_removal, is_new));
    }
    let lasting = last.into_iter().filter(|(_, (is_removal, is_new))| !(*is_removal && *is_new));
    lasting.map(|(key, (is_removal, is_new))| Written { key, is_removal, is_new }).collect()
}

/// The records that a commit of this group writes.
fn written_by(group: &[Change]) -> Vec<Written> {
    let writes = group.iter().flat_map(|change| &change.writes);
    lasting(writes.map(|write| Written {
        key: write.key.clone(),
        is_removal: write.record.is_none(),
        is_new: write.is_new,
    }))
}

impl Store for Disk {
    fn get(&self, key: &Key) -> Result<Option<Record>, ReadError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.store.get(key)
    }

    fn scan(
        &self,
        table: Table,
        range: KeyRange,
        order: Order,
        limit: usize,
    ) -> Result<Vec<(KeyBytes, Record)>, ReadError> {
        if table == Table::Mailbox
            && let Some(left) = &mut *self.letter_scans.lock().unwrap()
        {
            match left.checked_sub(1) {
                Some(rest) => *left = rest,
                None => {
                    self.failed.store(true, Ordering::Relaxed);
                    return Err(ReadError::Engine { path: "/disk".into(), source: "a bad block".into() });
                }
            }
        }
        let found = self.store.scan(table, range, order, limit)?;
        self.reads.fetch_add(found.len() as u64, Ordering::Relaxed);
        Ok(found)
    }

    fn size_bytes(&self) -> Option<u64> {
        self.store.size_bytes()
    }

    fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    fn recover(&self) -> Result<(), OpenError> {
        self.failed.store(false, Ordering::Relaxed);
        Ok(())
    }

    fn commit(&self, group: Vec<Change>) -> Result<Vec<Result<(), Conflict>>, CommitError> {
        if self.full.load(Ordering::Relaxed) {
            return Err(CommitError::Engine { path: "/disk".into(), source: "no space left on device".into() });
        }
        self.commits.fetch_add(1, Ordering::Relaxed);
        self.written.lock().unwrap().push(written_by(&group));
        self.store.commit(group)
    }
}

impl Disk {
    /// A stored envelope.
    pub(crate) fn envelope(&self, place: EnvelopePlace) -> bytes::Bytes {
        let get = |key: &Key| Ok::<_, DecodeError>(self.store.get(key).unwrap());
        read_envelope(place, get).unwrap().expect("what is delivered is stored")
    }
}

/// A consumer of deliveries.
pub(crate) struct Session {
    pub agent: AgentId,
    pub consumer: ConsumerId,
    disk: Arc<Disk>,
    events: mpsc::UnboundedReceiver<Event>,
}

impl Session {
    /// The deliveries since the last call, with their envelopes.
    pub(crate) fn deliveries(&mut self) -> Vec<(OutgoingDelivery, v1::Envelope)> {
        let mut deliveries = Vec::new();
        while let Ok(event) = self.events.try_recv() {
            if let Event::Delivery(delivery) = event {
                let envelope = v1::Envelope::decode(self.disk.envelope(delivery.bytes_at)).unwrap();
                deliveries.push((delivery, envelope));
            }
        }
        deliveries
    }

    /// Whether the broker has ended the session.
    pub(crate) fn was_sent_away(&mut self) -> bool {
        self.sent_away().is_some()
    }

    /// The reason why the session was sent away. `None`: it was not.
    pub(crate) fn sent_away(&mut self) -> Option<Away> {
        std::iter::from_fn(|| self.events.try_recv().ok()).find_map(|event| match event {
            Event::GoAway(why) => Some(why),
            Event::Answer { .. } | Event::Delivery(_) => None,
        })
    }

    /// The only delivery since the last call.
    pub(crate) fn delivery(&mut self) -> (OutgoingDelivery, v1::Envelope) {
        let mut deliveries = self.deliveries();
        assert_eq!(deliveries.len(), 1, "one delivery for {}", self.agent);
        deliveries.remove(0)
    }
}

pub(crate) struct World {
    pub disk: Arc<Disk>,
    pub engine: Engine,
    pub now: Timestamp,
    pub settings: Arc<Settings>,
    pub resources: Resources,
    ids: Arc<CountingIds>,
    keys: HashMap<String, PrivateKey>,
    next_consumer: u64,
}

/// A caller whom the built-in policy permits everything.
pub(crate) fn operator() -> Caller {
    Caller::Operator(Operator::named("olga"))
}

/// The caller that a step names as the one that asks for it.
pub(crate) fn caller_of(input: &Input) -> Caller {
    let by_agent = |by: &Option<AgentId>| by.clone().map_or_else(operator, Caller::Agent);
    match input {
        Input::Plan(
            plan::Input::Cancel { by, .. }
            | plan::Input::Retry { by }
            | plan::Input::CancelSubtask { by, .. }
            | plan::Input::RetrySubtask { by, .. }
            | plan::Input::ReassignSubtask { by, .. },
        ) => by.strip_prefix("agent ").map_or_else(operator, |by| Caller::Agent(AgentId::parse(by).unwrap())),
        Input::Routing(routing::Input::Start(routing::Start { by, .. }) | routing::Input::Cancel { by, .. }) => {
            by_agent(by)
        }
        Input::Routing(routing::Input::Turn(turn)) => by_agent(&turn.by),
        Input::Thread(
            threads::Input::Create(threads::Create { by, .. })
            | threads::Input::Act { by, .. }
            | threads::Input::BeginRun { runner: by, .. }
            | threads::Input::EndStep { runner: by, .. }
            | threads::Input::EndRun { runner: by, .. },
        ) => by_agent(by),
        _ => operator(),
    }
}

pub(crate) type Refusal = (ErrorCode, Refused);

/// Asserts a refusal with this code.
#[track_caller]
pub(crate) fn assert_refused<T: std::fmt::Debug>(outcome: Result<T, Refusal>, code: ErrorCode) -> Refused {
    match outcome {
        Err((found, refusal)) => {
            assert_eq!(found, code, "{refusal}");
            refusal
        }
        Ok(taken) => panic!("expected {code:?}, but it was taken: {taken:?}"),
    }
}

impl World {
    /// A world with these agents registered. An agent named `name:TYPE` has the type `TYPE`.
    pub(crate) fn with(agents: &[&str]) -> Self {
        Self::with_settings(agents, Settings::default())
    }

    pub(crate) fn with_settings(agents: &[&str], settings: Settings) -> Self {
        let (disk, settings, ids) = (Arc::new(Disk::default()), Arc::new(settings), Arc::new(CountingIds::default()));
        let now = Timestamp::from_parts(1_700_000_000, 0).unwrap();
        let (identity, resources) = (broker_identity(), Resources::default());
        let opened = Engine::open(disk.clone(), identity, settings.clone(), resources.clone(), ids.clone(), now);
        let engine = opened.unwrap();
        let mut world = Self { disk, engine, now, settings, resources, ids, keys: HashMap::new(), next_consumer: 0 };
        for agent in agents {
            let (name, agent_type) = agent.split_once(':').unwrap_or((agent, ""));
            world.register(name, agent_type);
        }
        world
    }

    /// Kills the broker and opens a new engine on the same store.
    pub(crate) fn restart(&mut self) {
        self.engine = self.opened().unwrap();
    }

    /// A new engine on the same store.
    pub(crate) fn opened(&self) -> Result<Engine, BrokerError> {
        let (settings, resources) = (self.settings.clone(), self.resources.clone());
        Engine::open(self.disk.clone(), broker_identity(), settings, resources, self.ids.clone(), self.now)
    }

    pub(crate) fn register(&mut self, name: &str, agent_type: &str) {
        let key = PrivateKey::from_seed(&signing::sha256(&[name.as_bytes()]));
        let card = v1::AgentCard {
            agent_id: name.to_owned(),
            agent_types: if agent_type.is_empty() { vec![] } else { vec![agent_type.to_owned()] },
            keys: vec![v1::AgentKey {
                key_id: "k1".into(),
                public_key: key.public().as_bytes().to_vec().into(),
                ..Default::default()
            }],
            ..Default::default()
        };
        self.keys.insert(name.to_owned(), key);
        let entry = Entry::parse(AgentRecord::new(card, self.now)).unwrap();
        self.register_as(operator(), entry, "").unwrap();
    }

    pub(crate) fn register_as(&mut self, caller: Caller, entry: Entry, invitation: &str) -> Result<(), Refusal> {
        let (entry, invitation) = (Box::new(entry), invitation.to_owned());
        self.ask(|reply| Command::Register { entry, caller, invitation, reply })
    }

    pub(crate) fn ask<T>(&mut self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, Refusal> {
        let (reply, mut receiver) = Reply::once();
        self.engine.handle(command(reply), self.now);
        self.settle();
        let outcome = receiver.try_recv().expect("every command is answered by the end of its group");
        outcome.map_err(|refusal| (refusal.code(), refusal))
    }

    /// Commits the open batch, and sends its outputs.
    pub(crate) fn finish(&mut self) {
        self.engine.tick(self.now);
        self.engine.finish(self.now);
        send_outputs(&mut self.engine);
    }

    /// Recovers the engine after a failed commit.
    pub(crate) fn recover(&mut self) {
        self.engine.recover(self.now).unwrap();
        send_outputs(&mut self.engine);
    }

    /// Commits the open batch, and processes every deadline that is due.
    pub(crate) fn settle(&mut self) {
        self.finish();
        for _ in 0..1000 {
            if self.engine.next_deadline().is_none_or(|due| due > self.now) {
                return;
            }
            self.finish();
        }
        panic!("the engine always wants to be looked at again");
    }

    /// Advances the clock. Each deadline on the way is processed at its time.
    pub(crate) fn pass(&mut self, span: Duration) {
        let end = self.now.plus(span);
        while let Some(due) = self.engine.next_deadline().filter(|due| *due <= end) {
            self.now = self.now.max(due);
            self.settle();
        }
        self.now = end;
        self.settle();
    }

    /// Opens a session with a credit of 100.
    pub(crate) fn connect(&mut self, agent: &str) -> Session {
        self.connect_as(agent, ConsumerKind::Session, 100)
    }

    pub(crate) fn connect_as(&mut self, agent: &str, kind: ConsumerKind, credit: u32) -> Session {
        self.next_consumer += 1;
        let consumer = ConsumerId(self.next_consumer);
        let agent = AgentId::parse(agent).unwrap();
        let (sender, events) = Events::channel();
        self.engine.handle(Command::Open { consumer, agent: agent.clone(), kind, events: sender }, self.now);
        self.engine.handle(Command::Credit { consumer, outstanding_max: credit, reply: None }, self.now);
        self.settle();
        Session { agent, consumer, disk: self.disk.clone(), events }
    }

    pub(crate) fn disconnect(&mut self, session: Session) {
        self.engine.handle(Command::Close { consumer: session.consumer }, self.now);
        self.settle();
    }

    pub(crate) fn acknowledge(
        &mut self,
        session: &Session,
        delivery: &OutgoingDelivery,
        fate: Fate,
    ) -> Result<Acknowledged, Refusal> {
        let (agent, delivery_id) = (session.agent.clone(), delivery.delivery_id.clone());
        self.ask(|reply| Command::Acknowledge { agent, delivery_id, fate, reply })
    }

    pub(crate) fn ack(&mut self, session: &Session, delivery: &OutgoingDelivery) {
        self.acknowledge(session, delivery, Fate::Acked).unwrap();
    }

    /// Acks the only delivery since the last call.
    pub(crate) fn take_and_ack(&mut self, session: &mut Session) -> v1::Envelope {
        let (delivery, envelope) = session.delivery();
        self.ack(session, &delivery);
        envelope
    }

    /// An unsigned envelope.
    pub(crate) fn envelope<M: Message + Name>(
        &self,
        from: &str,
        to: &str,
        kind: v1::MessageType,
        payload: &M,
    ) -> v1::Envelope {
        v1::Envelope {
            message_id: self.ids.message_id(self.now).to_string(),
            sender_id: from.into(),
            receiver_id: to.into(),
            timestamp: Some(self.now.into()),
            message_type: kind.into(),
            payload: Some(envelope::payload_of(payload)),
            ..Default::default()
        }
    }

    pub(crate) fn sign(&self, envelope: &mut v1::Envelope) {
        let key = &self.keys[&envelope.sender_id];
        envelope::sign(envelope, &KeyId::parse("k1").unwrap(), key);
    }

    /// Signs and sends an envelope.
    pub(crate) fn send(&mut self, mut envelope: v1::Envelope) -> Result<v1::Receipt, Refusal> {
        self.sign(&mut envelope);
        self.send_signed(&envelope)
    }

    /// Sends an envelope unchanged.
    pub(crate) fn send_signed(&mut self, envelope: &v1::Envelope) -> Result<v1::Receipt, Refusal> {
        let message = self.prepare(envelope)?;
        self.ask(|reply| Command::Submit { message, is_from_sender: true, reply })
    }

    /// Sends an envelope unchanged, without a session or a token.
    pub(crate) fn send_without_session(&mut self, envelope: &v1::Envelope) -> Result<v1::Receipt, Refusal> {
        let message = self.prepare(envelope)?;
        self.ask(|reply| Command::Submit { message, is_from_sender: false, reply })
    }

    /// Signs an envelope, and verifies and prepares it as the broker does.
    pub(crate) fn prepared(&self, mut envelope: v1::Envelope) -> Result<PreparedMessage, Refusal> {
        self.sign(&mut envelope);
        self.prepare(&envelope)
    }

    fn prepare(&self, envelope: &v1::Envelope) -> Result<PreparedMessage, Refusal> {
        let envelope = self.verify(envelope)?;
        let prepared = self.engine.prepare(envelope, true).map_err(|error| (error.code(), refused(error)))?;
        Ok(prepared.ready().unwrap())
    }

    fn verify(&self, envelope: &v1::Envelope) -> Result<Box<VerifiedEnvelope>, Refusal> {
        let coded = |error: EnvelopeError| (error.code(), refused(error));
        let parsed = UnverifiedEnvelope::parse(envelope.encode_to_vec().into()).map_err(coded)?;
        parsed.verify(&**self.engine.directory(), self.now, false).map(Box::new).map_err(coded)
    }

    pub(crate) fn task(&self, id: &str) -> TaskRecord {
        let key = TaskRecord::key(&TaskId::parse(id).unwrap());
        TaskRecord::decode(&self.disk.get(&key).unwrap().expect("the task is known").value).unwrap()
    }

    pub(crate) fn handoff(&self, id: &str) -> std::sync::Arc<baton_broker_core::domain::handoff::Handoff> {
        let caller = operator();
        self.view(&caller).handoff(MessageId::parse(id).unwrap()).expect("the handoff is known")
    }

    /// The stored data as this caller may see it.
    pub(crate) fn view<'a>(&'a self, caller: &'a Caller) -> View<'a> {
        let access = Access { policies: &self.resources.policies, directory: self.engine.directory() };
        View { store: &*self.disk, access, caller }
    }

    /// The task's custody log with envelopes, as an operator reads it.
    pub(crate) fn custody(&self, id: &str) -> Vec<v1::CustodyLogEntry> {
        let caller = operator();
        let view = self.view(&caller);
        let task = TaskId::parse(id).unwrap();
        let mut entries = Vec::new();
        loop {
            let page = view.custody(&task, entries.len() as u64, 100, true).unwrap();
            assert_eq!(page.gap, None);
            entries.extend(page.entries);
            if entries.len() as u64 == page.length {
                return entries;
            }
        }
    }

    /// Replays the task's custody log. The result must equal the stored task.
    pub(crate) fn audit(&self, id: &str) -> Replay {
        let mut replay = Replay::new(TaskId::parse(id).unwrap(), None);
        for entry in self.custody(id) {
            replay.take(&entry).unwrap_or_else(|error| panic!("task {id}: {error}"));
        }
        let stored = self.task(id);
        assert_eq!(replay.task(), Some(&*stored.task));
        assert_eq!((replay.length(), *replay.hash()), (stored.custody.length, stored.custody.hash));
        for handoff in replay.handoffs() {
            assert_eq!(*handoff, *self.handoff(&handoff.id.to_string()));
        }
        replay
    }

    /// All dead letters, oldest first.
    pub(crate) fn dead_letters(&self) -> Vec<DeadLetterRecord> {
        use std::ops::Bound::Unbounded;
        let stored = self.disk.scan(Table::DeadLetters, (Unbounded, Unbounded), Order::Ascending, usize::MAX).unwrap();
        stored.iter().map(|(key, record)| DeadLetterRecord::decode(key, &record.value).unwrap()).collect()
    }

    pub(crate) fn redrive(&mut self, dead_letter: u64, to: Option<&str>) -> Result<DeadLetterRecord, Refusal> {
        let to = to.map(|to| AgentId::parse(to).unwrap());
        self.ask(|reply| Command::Redrive { dead_letter, to, caller: operator(), reply })
    }

    pub(crate) fn discard(&mut self, dead_letter: u64) -> Result<DeadLetterRecord, Refusal> {
        self.ask(|reply| Command::Discard { dead_letter, caller: operator(), reason_text: String::new(), reply })
    }

    /// Sends a heartbeat of the agent.
    pub(crate) fn heartbeat(&mut self, session: &Session) {
        let (consumer, agent) = (session.consumer, session.agent.clone());
        let heartbeat = v1::Heartbeat::default();
        self.engine.handle(Command::Heartbeat { consumer, agent, heartbeat, reply: None }, self.now);
        self.settle();
    }

    pub(crate) fn presence(&self, agent: &str) -> PresenceState {
        self.engine.directory().presence_state(&AgentId::parse(agent).unwrap(), self.now)
    }

    pub(crate) fn is_gone(&self, agent: &str) -> bool {
        self.engine.directory().is_gone(&AgentId::parse(agent).unwrap(), self.now)
    }

    /// All stored records, for comparison.
    pub(crate) fn snapshot(&self) -> Vec<(Table, KeyBytes, Record)> {
        use std::ops::Bound::Unbounded;
        let mut all = Vec::new();
        for table in Table::ALL {
            let found = self.disk.scan(table, (Unbounded, Unbounded), Order::Ascending, usize::MAX).unwrap();
            all.extend(found.into_iter().map(|(key, record)| (table, key, record)));
        }
        all
    }
}

/// The messages of a handoff of task "t".
impl World {
    pub(crate) fn request(&self, from: &str, to: &str, epoch: u64) -> v1::Envelope {
        let payload = v1::HandoffRequest { task_type: "support".into(), ..Default::default() };
        self.about(self.envelope(from, to, v1::MessageType::HandoffRequest, &payload), "", epoch)
    }

    pub(crate) fn request_with(&self, from: &str, to: &str, epoch: u64, payload: &v1::HandoffRequest) -> v1::Envelope {
        self.about(self.envelope(from, to, v1::MessageType::HandoffRequest, payload), "", epoch)
    }

    pub(crate) fn accept(&self, from: &str, to: &str, handoff: &str, epoch: u64) -> v1::Envelope {
        let payload = v1::HandoffAccept::default();
        self.about(self.envelope(from, to, v1::MessageType::HandoffAccept, &payload), handoff, epoch)
    }

    pub(crate) fn reject(&self, from: &str, to: &str, handoff: &str, suggestions: &[&str]) -> v1::Envelope {
        let payload = v1::HandoffReject {
            reason: v1::RejectReason::Other.into(),
            alternative_agent_suggestions: suggestions.iter().map(ToString::to_string).collect(),
            ..Default::default()
        };
        self.about(self.envelope(from, to, v1::MessageType::HandoffReject, &payload), handoff, 1)
    }

    pub(crate) fn cancel(&self, from: &str, to: &str, handoff: &str, epoch: u64) -> v1::Envelope {
        let payload = v1::HandoffCancel::default();
        self.about(self.envelope(from, to, v1::MessageType::HandoffCancel, &payload), handoff, epoch)
    }

    pub(crate) fn context(&self, from: &str, to: &str, handoff: &str, epoch: u64) -> v1::Envelope {
        let payload = context_payload();
        self.about(self.envelope(from, to, v1::MessageType::TaskContextTransfer, &payload), handoff, epoch)
    }

    pub(crate) fn complete(&self, from: &str, to: &str, handoff: &str, epoch: u64) -> v1::Envelope {
        let payload = v1::HandoffComplete {
            outcome: v1::HandoffOutcome::Success.into(),
            context_digest: context_payload().context_digest,
            ..Default::default()
        };
        self.about(self.envelope(from, to, v1::MessageType::HandoffComplete, &payload), handoff, epoch)
    }

    pub(crate) fn status(&self, from: &str, to: &str, epoch: u64, status: v1::TaskStatus) -> v1::Envelope {
        let payload = v1::TaskStatusUpdate { status: status.into(), ..Default::default() };
        self.about(self.envelope(from, to, v1::MessageType::TaskStatusUpdate, &payload), "", epoch)
    }

    pub(crate) fn info(&self, from: &str, to: &str, text: &str) -> v1::Envelope {
        let payload = v1::Info { text: text.into(), ..Default::default() };
        self.envelope(from, to, v1::MessageType::Info, &payload)
    }

    fn about(&self, envelope: v1::Envelope, handoff: &str, epoch: u64) -> v1::Envelope {
        v1::Envelope { task_id: "t".into(), correlation_id: handoff.into(), epoch, ..envelope }
    }

    /// Hands task "t" from one agent to the other at this epoch. Returns the handoff id.
    pub(crate) fn hand_over(&mut self, from: &mut Session, to: &mut Session, epoch: u64) -> String {
        let request = self.request(from.agent.as_str(), to.agent.as_str(), epoch);
        self.hand_over_with(from, to, epoch, request)
    }

    /// Hands task "t" over with this request.
    pub(crate) fn hand_over_with(
        &mut self,
        from: &mut Session,
        to: &mut Session,
        epoch: u64,
        request: v1::Envelope,
    ) -> String {
        let (sender, receiver) = (from.agent.to_string(), to.agent.to_string());
        let handoff = self.send(request).unwrap().handoff_id;
        self.take_and_ack(to);
        self.send(self.accept(&receiver, &sender, &handoff, epoch)).unwrap();
        self.take_and_ack(from);
        self.send(self.context(&sender, &receiver, &handoff, epoch)).unwrap();
        self.take_and_ack(to);
        self.send(self.complete(&receiver, &sender, &handoff, epoch)).unwrap();
        self.take_and_ack(from);
        handoff
    }
}

pub(crate) fn context_payload() -> v1::TaskContextTransfer {
    let json = r#"{"crash":"segfault"}"#;
    let section = v1::ContextSection {
        name: "collected_data".into(),
        content: Some(v1::context_section::Content::Json(json.into())),
        ..Default::default()
    };
    let digest = signing::context_digest([("collected_data", signing::sha256(&[json.as_bytes()]))]);
    v1::TaskContextTransfer { sections: vec![section], context_digest: digest.to_vec().into(), ..Default::default() }
}

fn broker_identity() -> BrokerIdentity {
    BrokerIdentity {
        key_id: KeyId::parse("broker").unwrap(),
        key: PrivateKey::from_seed(&[9; 32]),
        coordinator: baton_broker_core::Signer::new(PrivateKey::from_seed(&[77; 32])),
    }
}

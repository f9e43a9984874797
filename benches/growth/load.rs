//! Agents that hand tasks over, 256 at a time, directly in an engine without a network.
#![expect(clippy::disallowed_methods, reason = "what is measured is the machine's time")]

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use baton::{
    broker::{
        BrokerIdentity, Event, Events, OutgoingDelivery, Reply, Resources, Retention, Settings,
        access::{Caller, Operator},
        directory::Entry,
        engine::{Command, ConsumerKind, Engine, Fate},
        send_outputs,
    },
    domain::mailbox::ConsumerId,
    envelope::{self, UnverifiedEnvelope, keys::PrivateKey, signing},
    ids::{AgentId, IdSource as _, KeyId, SystemIds},
    proto::v1::{self, MessageType as T},
    records::{AgentRecord, DecodeError, read_envelope},
    store::{EmbeddedStore, Key, Store as _},
    time::Timestamp,
};
use bytes::Bytes;
use prost::{Message, Name};
use tokio::sync::mpsc;

const PAIRS: u64 = 8;
const IN_FLIGHT: u64 = 256;
const CONTEXT_BYTES: usize = 2048;
/// The advance of the virtual clock for each commit batch.
const GROUP_TIME: Duration = Duration::from_millis(2);

/// The cost of one handoff or one message.
pub(crate) struct Cost {
    /// Wall-clock time.
    pub wall_us: f64,
    /// Processor time of the engine's thread.
    pub engine_us: f64,
    /// Processor time of all threads, including flush and compaction.
    pub process_us: f64,
    /// The longest wall-clock time of a batch of 256.
    pub worst_ms: f64,
}

struct Session {
    agent: AgentId,
    events: mpsc::UnboundedReceiver<Event>,
}

pub(crate) struct Load {
    store: Arc<EmbeddedStore>,
    engine: Engine,
    settings: Arc<Settings>,
    now: Timestamp,
    sessions: Vec<Session>,
    tasks: u64,
    next_consumer: u64,
    written: AtomicU64,
}

pub(crate) fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    status.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).expect("a number of pages") * 4096
}

fn identity() -> BrokerIdentity {
    BrokerIdentity {
        key_id: KeyId::parse("broker-1").expect("a name"),
        key: PrivateKey::from_seed(&[9; 32]),
        coordinator: baton::broker::Signer::new(PrivateKey::from_seed(&[77; 32])),
    }
}

fn engine(store: Arc<EmbeddedStore>, settings: &Arc<Settings>, now: Timestamp) -> Engine {
    let opened = Engine::open(store, identity(), settings.clone(), Resources::default(), Arc::new(SystemIds), now);
    opened.expect("what is stored can be read")
}

fn open(folder: &Path) -> Arc<EmbeddedStore> {
    Arc::new(EmbeddedStore::open(folder).expect("the store opens"))
}

impl Load {
    pub(crate) fn open(folder: &Path, keep: Option<Duration>) -> Self {
        let mut settings = Settings { unsigned_allowed: true, ..Settings::default() };
        if let Some(keep) = keep {
            settings.retention = Retention { message_ids: keep, ended_tasks: Some(keep), ..Retention::default() };
        }
        let settings = Arc::new(settings);
        let now = Timestamp::from_parts(1_700_000_000, 0).expect("a time");
        let store = open(folder);
        let engine = engine(store.clone(), &settings, now);
        let mut load = Self {
            store,
            engine,
            settings,
            now,
            sessions: Vec::new(),
            tasks: 0,
            next_consumer: 0,
            written: AtomicU64::new(0),
        };
        (0..2 * PAIRS).for_each(|number| load.register(&format!("agent-{number}")));
        load.connect();
        load
    }

    fn connect(&mut self) {
        self.sessions.clear();
        for number in 0..2 * PAIRS {
            self.next_consumer += 1;
            let (consumer, agent) = (ConsumerId(self.next_consumer), name(&format!("agent-{number}")));
            let (sender, events) = Events::channel();
            let kind = ConsumerKind::Session;
            self.engine.handle(Command::Open { consumer, agent: agent.clone(), kind, events: sender }, self.now);
            self.engine.handle(Command::Credit { consumer, outstanding_max: 1000, reply: None }, self.now);
            self.sessions.push(Session { agent, events });
        }
        self.finish();
    }

    fn register(&mut self, agent: &str) {
        let key = PrivateKey::from_seed(&signing::sha256(&[agent.as_bytes()]));
        let public_key = key.public().as_bytes().to_vec().into();
        let keys = vec![v1::AgentKey { key_id: "k1".into(), public_key, ..Default::default() }];
        let card = v1::AgentCard { agent_id: agent.to_owned(), keys, ..Default::default() };
        let record = AgentRecord::new(card, self.now);
        let entry = Box::new(Entry::parse(record).expect("the card is good"));
        let (reply, _) = Reply::once();
        let caller = Caller::Operator(Operator::named("growth"));
        let register = Command::Register { entry, caller, invitation: String::new(), reply };
        self.engine.handle(register, self.now);
    }

    pub(crate) fn tasks(&self) -> u64 {
        self.tasks
    }

    pub(crate) fn written_bytes(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    fn finish(&mut self) {
        self.now = self.now.plus(GROUP_TIME);
        self.engine.tick(self.now);
        self.engine.finish(self.now);
        send_outputs(&mut self.engine);
    }

    fn submit<M: Message + Name>(&mut self, words: &Words<'_>, kind: T, payload: &M) -> String {
        let message_id = SystemIds.message_id(self.now).to_string();
        let envelope = v1::Envelope {
            message_id: message_id.clone(),
            sender_id: words.from.to_owned(),
            receiver_id: words.to.to_owned(),
            timestamp: Some(self.now.into()),
            message_type: kind.into(),
            correlation_id: words.handoff.to_owned(),
            task_id: words.task.to_owned(),
            epoch: words.epoch,
            payload: Some(envelope::payload_of(payload)),
            signature: Bytes::new(),
            ..Default::default()
        };
        let raw = Bytes::from(envelope.encode_to_vec());
        self.written.fetch_add(raw.len() as u64, Ordering::Relaxed);
        let parsed = UnverifiedEnvelope::parse(raw).expect("the envelope is good");
        let directory = self.engine.directory().clone();
        let envelope = Box::new(parsed.verify(&*directory, self.now, true).expect("nothing is signed"));
        let (reply, _) = Reply::once();
        let prepared = self.engine.prepare(envelope, true).expect("the store can be read");
        let message = prepared.ready().expect("the last attempt");
        self.engine.handle(Command::Submit { message, is_from_sender: true, reply }, self.now);
        message_id
    }

    fn envelope(&self, delivery: &OutgoingDelivery) -> Bytes {
        let get = |key: &Key| Ok::<_, DecodeError>(self.store.get(key).expect("it can be read"));
        read_envelope(delivery.bytes_at, get).expect("it decodes").expect("a delivery has its envelope")
    }

    /// Takes and acks all deliveries.
    fn deliveries(&mut self) -> Vec<(String, v1::Envelope)> {
        let mut found = Vec::new();
        for number in 0..self.sessions.len() {
            while let Ok(event) = self.sessions[number].events.try_recv() {
                let Event::Delivery(delivery) = event else { continue };
                let agent = self.sessions[number].agent.clone();
                let stored = self.envelope(&delivery);
                let envelope = v1::Envelope::decode(stored).expect("it was sent as one");
                found.push((agent.to_string(), envelope));
                let (reply, _) = Reply::once();
                let delivery_id = delivery.delivery_id;
                self.engine.handle(Command::Acknowledge { agent, delivery_id, fate: Fate::Acked, reply }, self.now);
            }
        }
        found
    }

    /// Runs this number of whole handoffs.
    pub(crate) fn hand_over(&mut self, count: u64, ended: bool) -> Cost {
        let context = context();
        self.measured(count, |load, some| {
            for _ in 0..some {
                load.tasks += 1;
                let (from, to) = pair(load.tasks);
                let task = task_name(load.tasks);
                let words = Words { from: &from, to: &to, handoff: "", task: &task, epoch: 1 };
                load.submit(
                    &words,
                    T::HandoffRequest,
                    &v1::HandoffRequest { task_type: "x".into(), ..Default::default() },
                );
            }
            load.finish();
            for step in 0..if ended { 5 } else { 4 } {
                for (me, envelope) in load.deliveries() {
                    let (handoff, other) = (&envelope.correlation_id, &envelope.sender_id);
                    let handoff = if handoff.is_empty() { &envelope.message_id } else { handoff };
                    let words = Words { from: &me, to: other, handoff, task: &envelope.task_id, epoch: 1 };
                    match envelope.message_type() {
                        T::HandoffRequest => drop(load.submit(&words, T::HandoffAccept, &v1::HandoffAccept::default())),
                        T::HandoffAccept => drop(load.submit(&words, T::TaskContextTransfer, &context)),
                        T::TaskContextTransfer => {
                            let complete = v1::HandoffComplete {
                                outcome: v1::HandoffOutcome::Success.into(),
                                context_digest: context.context_digest.clone(),
                                ..Default::default()
                            };
                            load.submit(&words, T::HandoffComplete, &complete);
                        }
                        T::HandoffComplete if ended => {
                            let status = v1::TaskStatus::Completed.into();
                            let done = v1::TaskStatusUpdate { status, ..Default::default() };
                            let words = Words { from: other, to: "", handoff: "", epoch: 2, ..words };
                            load.submit(&words, T::TaskStatusUpdate, &done);
                        }
                        T::HandoffComplete => {}
                        other => panic!("a handoff went wrong at step {step}: {other:?}"),
                    }
                }
                load.finish();
            }
        })
    }

    /// Sends one message to each of this number of disconnected agents.
    pub(crate) fn write_to_the_absent(&mut self, first: u64, count: u64) -> Cost {
        let mut next = first;
        self.measured(count, |load, some| {
            for _ in 0..some {
                load.register(&format!("absent-{next:07}"));
                next += 1;
            }
            load.finish();
            for number in next - some..next {
                let to = format!("absent-{number:07}");
                let words = Words { from: "agent-0", to: &to, handoff: "", task: "", epoch: 0 };
                load.submit(&words, T::Info, &v1::Info { text: "x".repeat(500), ..Default::default() });
            }
            load.finish();
        })
    }

    /// Sends requests that no agent decides for a long time.
    pub(crate) fn leave_open(&mut self, count: u64) -> Cost {
        self.measured(count, |load, some| {
            for _ in 0..some {
                load.tasks += 1;
                let (from, to) = pair(load.tasks);
                let task = task_name(load.tasks);
                let words = Words { from: &from, to: &to, handoff: "", task: &task, epoch: 1 };
                let day = || Some(prost_types::Duration { seconds: 100_000, nanos: 0 });
                let timeouts = v1::HandoffTimeouts { accept: day(), whole: day(), ..Default::default() };
                let request =
                    v1::HandoffRequest { task_type: "x".into(), timeouts: Some(timeouts), ..Default::default() };
                load.submit(&words, T::HandoffRequest, &request);
            }
            load.finish();
            load.deliveries();
            load.finish();
        })
    }

    /// Drops the engine without a stop, and opens the store again.
    pub(crate) fn start_again(&mut self, folder: &Path) -> (Duration, u64) {
        let empty = tempfile::tempdir().expect("there is room for a folder");
        self.store = open(empty.path());
        self.engine = engine(self.store.clone(), &self.settings, self.now);
        let (before, start) = (resident_bytes(), now());
        self.store = open(folder);
        self.engine = engine(self.store.clone(), &self.settings, self.now);
        let spent = start.elapsed();
        let bytes = resident_bytes().saturating_sub(before);
        self.connect();
        (spent, bytes)
    }

    fn measured(&mut self, count: u64, mut round: impl FnMut(&mut Self, u64)) -> Cost {
        let mut worst_ms = 0.0_f64;
        let mut left = count;
        let (start, engine, process) = (now(), thread_cpu(), process_cpu());
        while left > 0 {
            let some = left.min(IN_FLIGHT);
            let start = now();
            round(self, some);
            worst_ms = worst_ms.max(start.elapsed().as_secs_f64() * 1e3);
            left -= some;
        }
        let each = |span: Duration| span.as_secs_f64() / count as f64 * 1e6;
        let (engine_us, process_us) = (each(thread_cpu() - engine), each(process_cpu() - process));
        Cost { wall_us: each(start.elapsed()), engine_us, process_us, worst_ms }
    }
}

struct Words<'a> {
    from: &'a str,
    to: &'a str,
    handoff: &'a str,
    task: &'a str,
    epoch: u64,
}

fn now() -> Instant {
    Instant::now()
}

fn thread_cpu() -> Duration {
    on_cpu("/proc/thread-self/schedstat".as_ref())
}

fn process_cpu() -> Duration {
    let threads = std::fs::read_dir("/proc/self/task").expect("Linux").flatten();
    threads.map(|thread| on_cpu(&thread.path().join("schedstat"))).sum()
}

fn on_cpu(path: &Path) -> Duration {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    Duration::from_nanos(text.split_whitespace().next().and_then(|nanos| nanos.parse().ok()).unwrap_or(0))
}

fn name(text: &str) -> AgentId {
    AgentId::parse(text).expect("a name")
}

fn pair(task: u64) -> (String, String) {
    let pair = task % PAIRS;
    (format!("agent-{}", 2 * pair), format!("agent-{}", 2 * pair + 1))
}

/// The name of a task: hashed, because real task ids have no order.
fn task_name(number: u64) -> String {
    let digest = signing::sha256(&[&number.to_be_bytes()]);
    format!("task-{}", hex::encode(&digest[..12]))
}

fn context() -> v1::TaskContextTransfer {
    let json = format!(r#"{{"notes":"{}"}}"#, "n".repeat(CONTEXT_BYTES));
    let digest = signing::context_digest([("collected_data", signing::sha256(&[json.as_bytes()]))]);
    let section = v1::ContextSection {
        name: "collected_data".into(),
        content: Some(v1::context_section::Content::Json(json)),
        ..Default::default()
    };
    v1::TaskContextTransfer { sections: vec![section], context_digest: digest.to_vec().into(), ..Default::default() }
}

//! One broker, a few agents and a network between them, on one thread and in virtual time.

mod calls;
mod resuming;
mod sharing;
mod watching;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use baton_broker_core::{
    Answer, BlobLimits, BrokerError, BrokerIdentity, Event, Events, Reply, Resources, Retention, SessionReply,
    Settings,
    access::{Caller, Operator},
    blobs::{BlobDigest, BlobFiles},
    codes::ErrorCode,
    directory::Entry,
    domain::{
        EntityId, Input, Receiver, dead_letter::DeadState, mailbox::ConsumerId, plan, routing, threads, workspace,
    },
    engine::{Command, ConsumerKind, Engine, Fate, Reassignment},
    envelope::{UnverifiedEnvelope, VerifiedEnvelope, keys::PrivateKey},
    ids::{AgentId, InstanceId, KeyId, MessageId, TaskId},
    preparation::{Prepared, PreparedMessage},
    proto::v1,
    records::{AgentRecord, DeadLetterRecord},
    refused, send_outputs,
    store::{Order, Store as _, Table},
    time::Timestamp,
};
use bytes::Bytes;
use prost::Message as _;
use tokio::sync::Semaphore;

use crate::{
    agent::{Action, Agent, Manner},
    disk::{Disk, Pipes, Plan},
    laws::Laws,
    lists::see_lists,
    rng::{Ids, Rng},
};

const START: Timestamp = Timestamp::from_unix_nanoseconds(1_700_000_000_000_000_000);
const DAY: i64 = 86_400;
/// The number of agents. Further processes of theirs follow them in the list.
const AGENTS: usize = 5;
const NANOSECONDS: i64 = 1_000_000_000;

/// The pipe of all unary calls.
const CALLS: ConsumerId = ConsumerId(0);

fn operator() -> Caller {
    Caller::Operator(Operator::named("sim"))
}

/// The caller that a step names as the one that asks for it.
fn caller_of(input: &Input) -> Caller {
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

/// The faults of a run and its results, as counters.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counts(pub BTreeMap<&'static str, u64>);

impl Counts {
    pub(crate) fn add(&mut self, what: &'static str) {
        *self.0.entry(what).or_default() += 1;
    }
}

/// A scheduled event.
#[derive(Debug)]
enum Happening {
    /// A frame arrives at the broker.
    Arrives { agent: usize, session: Option<ConsumerId>, frame: Frame },
    /// An event arrives at an agent.
    Comes { agent: usize, session: ConsumerId, event: Event },
    /// An agent performs a delayed action.
    Does { agent: usize, action: Action },
    /// An agent acts of its own accord.
    Wakes(usize),
    /// An agent looks at the runs and threads, and calls.
    Calls(usize),
    /// The bytes of an upload arrive.
    Writes(sharing::Writing),
    /// The broker starts.
    Starts,
    /// A fault occurs.
    Fault,
}

#[derive(Debug, Clone)]
enum Frame {
    Open,
    Envelope { call: u64, bytes: Bytes, forged: bool },
    Acknowledgement { delivery_id: String, fate: Fate },
    Heartbeat { working_on: Vec<String> },
    Call { about: EntityId, input: Box<Input> },
}

pub(crate) struct World {
    pub now: Timestamp,
    pub counts: Counts,
    pub disk: Arc<Disk>,
    pub trace: Trace,
    /// How far the broker's clock is ahead of the real time, in nanoseconds.
    skew: i64,
    /// The last reading of the engine's clock: the real time, and the time that the clock showed.
    seen: (Timestamp, Timestamp),
    rng: Rng,
    ids: Arc<Ids>,
    settings: Arc<Settings>,
    resources: Resources,
    pipes: Arc<Mutex<Pipes>>,
    answers: Events,
    engine: Option<Engine>,
    agents: Vec<Agent>,
    names: Vec<String>,
    coming: BTreeMap<(Timestamp, u64), Happening>,
    calls: BTreeMap<u64, (usize, Bytes)>,
    /// The calls without an answer.
    asked: Vec<calls::Asked>,
    consumers: BTreeMap<ConsumerId, usize>,
    next: u64,
    faults: bool,
    permits: Arc<Semaphore>,
    files: Arc<BlobFiles>,
    /// The uploads that are being written.
    writing: BTreeSet<BlobDigest>,
    readers: Vec<watching::Reader>,
    /// The number of starts of the broker.
    life: u64,
    /// The folder of the files, deleted with the world.
    _folder: tempfile::TempDir,
}

/// The course of a run: a hash to compare two runs, and a text for people if `aloud`.
#[derive(Debug)]
pub(crate) struct Trace {
    pub hash: u64,
    pub aloud: bool,
}

impl Trace {
    fn say(&mut self, now: Timestamp, text: &str) {
        for byte in text.bytes().chain(now.unix_nanoseconds().to_be_bytes()) {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        if self.aloud {
            println!("{now} {text}");
        }
    }
}

/// Short periods, so that removals happen during the run and a log takes several steps. Some stores exceed their size
/// limit.
fn retention(rng: &mut Rng) -> Retention {
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    Retention {
        // Twice the clock window, and twice the largest error of the broker's clock.
        message_ids: Duration::from_secs(2 * 300 + 2 * 60),
        ended_tasks: rng.pick(&[seconds(5), seconds(60), None]),
        idle_tasks: rng.pick(&[seconds(5), None]),
        settled_dead_letters: rng.pick(&[seconds(20), None]),
        store_bytes_max: rng.pick(&[None, None, Some(30_000)]),
        entries_a_step: rng.pick(&[3, 256]),
        audit: Some(Duration::from_secs(3600)),
        audit_entries_max: Some(20),
    }
}

/// Few bytes, few uploads and short lives, so that stories meet the limits.
fn blob_limits(rng: &mut Rng) -> BlobLimits {
    BlobLimits {
        agent_bytes_max: rng.pick(&[200, 10_000]),
        agent_uploads_max: rng.pick(&[1, 3]),
        unheld_lifetime: Duration::from_secs(40),
        ..BlobLimits::default()
    }
}

/// Short lives and few entries.
fn workspace_limits(rng: &mut Rng) -> workspace::Limits {
    workspace::Limits {
        entry_lifetime: Duration::from_secs(rng.pick(&[60, 600])),
        entries_max: rng.pick(&[5, 1000]),
        ..workspace::Limits::default()
    }
}

/// The id of a new process.
fn an_instance(rng: &mut Rng) -> InstanceId {
    InstanceId::from_bytes((u128::from(rng.number()) << 64 | u128::from(rng.number())).to_be_bytes())
}

/// A folder in memory where the system has one: a story syncs many small files.
fn a_folder() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    tempfile::tempdir_in(memory).or_else(|_| tempfile::tempdir()).unwrap()
}

impl World {
    pub(crate) fn new(seed: u64, aloud: bool) -> Self {
        let mut rng = Rng::new(seed);
        let (answers, pipe) = Events::channel();
        let pipes = Arc::new(Mutex::new(Pipes { out: BTreeMap::from([(CALLS, pipe)]) }));
        let manners = [Manner::Diligent, Manner::Slow, Manner::Silent, Manner::Double, Manner::Failing, Manner::Liar];
        let names: Vec<String> = ["a", "b", "c", "d", "e"].map(str::to_owned).into();
        let mut agents: Vec<Agent> =
            names.iter().map(|name| Agent::new(name, rng.pick(&manners), rng.split())).collect();
        agents[0].manner = Manner::Diligent;
        agents[1].manner = rng.pick(&[Manner::Diligent, Manner::Slow, Manner::Double]);
        agents.iter_mut().for_each(|agent| agent.capacity = rng.pick(&[0, 0, 1, 3]));
        // Further processes of some agents.
        let more: Vec<String> = (0..rng.roll(4)).map(|_| rng.pick(&names)).collect();
        agents.extend(more.iter().map(|name| Agent::new(name, rng.pick(&manners), rng.split())));
        let names = [names, more].concat();
        for agent in &mut agents {
            // Some are on plain stubs.
            agent.instance = (rng.roll(5) > 0).then(|| an_instance(&mut rng));
            agent.tells_work = agent.instance.is_some() && rng.roll(4) > 0;
        }
        let folder = a_folder();
        let files = Arc::new(BlobFiles::open(folder.path(), None).unwrap());
        let blobs = blob_limits(&mut rng);
        let settings = Settings {
            mail_lifetime: Duration::from_secs(600),
            retention: retention(&mut rng),
            workspace: workspace_limits(&mut rng),
            blobs,
            ..Settings::default()
        };
        let resources = Resources { blob_files: Some(files.clone()), ..Resources::default() };
        let mut laws = Laws::new(settings.retention, files.clone(), blobs);
        laws.delegations.entries_max = settings.workspace.entries_max;
        let mut world = Self {
            now: START,
            counts: Counts::default(),
            disk: Arc::new(Disk::new(pipes.clone(), laws)),
            trace: Trace { hash: 0xcbf2_9ce4_8422_2325, aloud },
            skew: 0,
            seen: (START, START),
            ids: Arc::new(Ids::new(rng.number())),
            rng,
            settings: Arc::new(settings),
            resources,
            pipes,
            answers,
            engine: None,
            agents,
            names,
            coming: BTreeMap::new(),
            calls: BTreeMap::new(),
            asked: Vec::new(),
            consumers: BTreeMap::new(),
            next: 1,
            faults: true,
            permits: Arc::new(Semaphore::new(Semaphore::MAX_PERMITS)),
            files,
            writing: BTreeSet::new(),
            readers: Vec::new(),
            life: 0,
            _folder: folder,
        };
        world.start();
        (0..AGENTS).for_each(|agent| world.register(agent));
        for agent in 0..world.agents.len() {
            let first = world.rng.roll(1000);
            world.schedule(first, Happening::Wakes(agent));
        }
        world.register_graphs_and_specs();
        world.finish();
        let first = world.rng.roll(10_000);
        world.schedule(first, Happening::Fault);
        world
    }

    fn register(&mut self, agent: usize) {
        let card = self.agents[agent].card();
        if self.agents[agent].capacity > 0 {
            let capacity = self.agents[agent].capacity as usize;
            self.disk.laws.lock().unwrap().busy.capacities.insert(self.agents[agent].id.clone(), capacity);
        }
        let entry = Entry::parse(AgentRecord::new(card, self.now)).unwrap();
        let (reply, _) = Reply::once();
        let command =
            Command::Register { entry: Box::new(entry), caller: operator(), invitation: String::new(), reply };
        let now = self.see_clock();
        let engine = self.engine.as_mut().unwrap();
        engine.handle(command, now);
        engine.finish(now);
        send_outputs(engine);
    }

    fn reply(&self, request_id: u64) -> SessionReply {
        let permit = self.permits.clone().try_acquire_owned().unwrap();
        SessionReply { events: self.answers.clone(), request_id, permit }
    }

    fn broker_now(&self) -> Timestamp {
        Timestamp::from_unix_nanoseconds(self.now.unix_nanoseconds() + self.skew)
    }

    /// Reads the broker's clock. Records the time that the clock has hidden by moving back, because the broker cannot
    /// know of it.
    fn see_clock(&mut self) -> Timestamp {
        let now = self.broker_now();
        let (real, shown) = std::mem::replace(&mut self.seen, (self.now, now));
        let mut laws = self.disk.laws.lock().unwrap();
        laws.unseen += self.now.since(real).saturating_sub(now.since(shown));
        (laws.real, laws.now) = (self.now, now);
        laws.delays.see_clock(now);
        if now < shown {
            // The engine begins again.
            let running = laws.running();
            laws.silence.begins((running, now));
        }
        now
    }

    fn schedule(&mut self, milliseconds: u64, happening: Happening) {
        self.next += 1;
        // A random offset below 1 ms, so that the seed also decides the order of simultaneous events.
        let jitter = Duration::from_micros(self.rng.roll(1000));
        let at = self.now.plus(Duration::from_millis(milliseconds) + jitter);
        self.coming.insert((at, self.next), happening);
    }

    /// Processes one event. Afterwards the broker has processed every deadline that is due.
    pub(crate) fn step(&mut self) {
        let due = self.engine.as_ref().and_then(Engine::next_deadline);
        let due = due.map(|at| Timestamp::from_unix_nanoseconds(at.unix_nanoseconds() - self.skew).max(self.now));
        let next = self.coming.first_key_value().map(|((at, _), _)| *at);
        match (due, next) {
            (Some(due), next) if next.is_none_or(|next| due <= next) => {
                self.now = due;
                self.finish();
            }
            (_, Some(_)) => {
                let ((at, _), happening) = self.coming.pop_first().unwrap();
                self.now = self.now.max(at);
                self.happens(happening);
            }
            (Some(_) | None, None) => unreachable!("agents wake up again and again"),
        }
    }

    fn happens(&mut self, happening: Happening) {
        match happening {
            Happening::Arrives { agent, session, frame } => {
                self.arrives(agent, session, frame);
                // A commit batch: the frames that arrive within 5 ms belong to it.
                for _ in 0..self.rng.roll(6) {
                    let is_near = |at: Timestamp| at.since(self.now) < Duration::from_millis(5);
                    let Some(entry) = self.coming.first_entry().filter(|entry| is_near(entry.key().0)) else { break };
                    if !matches!(entry.get(), Happening::Arrives { .. }) {
                        break;
                    }
                    let ((at, _), happening) = entry.remove_entry();
                    self.now = self.now.max(at);
                    let Happening::Arrives { agent, session, frame } = happening else { unreachable!() };
                    self.arrives(agent, session, frame);
                }
                self.finish();
            }
            Happening::Comes { agent, session, event } => self.comes(agent, session, event),
            Happening::Does { agent, action } => self.does(agent, action),
            Happening::Wakes(agent) => self.wakes(agent),
            Happening::Calls(agent) => self.calls(agent),
            Happening::Writes(writing) => self.write_blob(writing),
            Happening::Starts => self.start(),
            Happening::Fault => self.fault(),
        }
    }

    // -------------------------------------------------------------------------------------------------- the broker

    fn start(&mut self) {
        if self.engine.is_some() {
            return;
        }
        let identity = BrokerIdentity {
            key_id: KeyId::parse("broker-1").unwrap(),
            key: PrivateKey::from_seed(&[9; 32]),
            coordinator: baton_broker_core::Signer::new(PrivateKey::from_seed(&[77; 32])),
        };
        self.open_files();
        // A new process knows only the stored time.
        self.seen = self.disk.laws.lock().unwrap().committed.unwrap_or((self.now, self.broker_now()));
        let (settings, resources, ids) = (self.settings.clone(), self.resources.clone(), self.ids.clone());
        let now = self.see_clock();
        let mut laws = self.disk.laws.lock().unwrap();
        let running = laws.running();
        laws.silence.begins((running, now));
        drop(laws);
        let opened = Engine::open(self.disk.clone(), identity, settings, resources, ids, now);
        let engine = opened.expect("what is stored can be read");
        assert_eq!(
            engine.open_handoffs(),
            self.disk.laws.lock().unwrap().open_handoffs(),
            "law 3: no timer is forgotten"
        );
        see_lists(&*self.disk);
        self.engine = Some(engine);
        self.trace.say(self.now, "the broker starts");
    }

    fn kill(&mut self, how: &'static str) {
        self.counts.add(how);
        self.trace.say(self.now, how);
        self.engine = None;
        let mut pipes = self.pipes.lock().unwrap();
        let (answers, pipe) = Events::channel();
        pipes.out.clear();
        pipes.out.insert(CALLS, pipe);
        drop(pipes);
        self.answers = answers;
        self.consumers.clear();
        self.disk.laws.lock().unwrap().processes.close_all();
        self.asked.clear();
        self.agents.iter_mut().for_each(|agent| agent.session = None);
        let back = 10 + self.rng.roll(5_000);
        self.schedule(back, Happening::Starts);
    }

    fn arrives(&mut self, agent: usize, session: Option<ConsumerId>, frame: Frame) {
        if self.engine.is_none() || session.is_some_and(|session| self.agents[agent].session != Some(session)) {
            return; // the frame is lost
        }
        let now = self.see_clock();
        let id = self.agents[agent].id.clone();
        let mut laws = self.disk.laws.lock().unwrap();
        let running = laws.running();
        laws.silence.sees(&id, (running, now));
        if let (Frame::Heartbeat { working_on }, Some(session)) = (&frame, session) {
            laws.silence.hears(session, working_on, (running, now));
        }
        drop(laws);
        let command = match frame {
            Frame::Open => return self.open(agent),
            Frame::Call { about, input } => return self.apply(about, input),
            Frame::Envelope { call, bytes, forged } => {
                let directory = self.engine.as_ref().unwrap().directory().clone();
                let message_id = v1::Envelope::decode(bytes.clone()).unwrap().message_id;
                let verified =
                    UnverifiedEnvelope::parse(bytes).and_then(|parsed| parsed.verify(&*directory, now, false));
                match verified {
                    Ok(envelope) => {
                        assert!(!forged, "law 6: a forged envelope was verified");
                        let message = match self.prepare(Box::new(envelope)) {
                            Some(Ok(message)) => message,
                            Some(Err(error)) => return self.reply(call).send(Err(refused(error))),
                            None => return, // the broker has died, and the frame is lost
                        };
                        let now = self.see_clock();
                        let process = self.disk.laws.lock().unwrap().processes.sender(&message_id);
                        let message = message.from_process(process);
                        let reply = self.reply(call).into();
                        let command = Command::Submit { message, is_from_sender: true, reply };
                        return self.engine.as_mut().unwrap().handle(command, now);
                    }
                    Err(error) => return self.reply(call).send(Err(refused(error))),
                }
            }
            Frame::Acknowledgement { delivery_id, fate } => {
                Command::Acknowledge { agent: id, delivery_id, fate, reply: self.reply(0).into() }
            }
            Frame::Heartbeat { working_on } => {
                let consumer = session.unwrap_or(CALLS);
                let heartbeat = v1::Heartbeat { working_on, ..Default::default() };
                Command::Heartbeat { consumer, agent: id, heartbeat, reply: None }
            }
        };
        self.engine.as_mut().unwrap().handle(command, now);
    }

    /// Makes the longer checks of a message, as a session does: where the store lacks what the message names, it commits
    /// first. `None`: the broker has died.
    fn prepare(&mut self, envelope: Box<VerifiedEnvelope>) -> Option<Result<PreparedMessage, BrokerError>> {
        match self.engine.as_ref()?.prepare(envelope, false) {
            Ok(Prepared::Ready(message)) => Some(Ok(message)),
            Ok(Prepared::Behind(envelope)) => {
                self.finish();
                let prepared = self.engine.as_ref()?.prepare(envelope, true);
                Some(prepared.map(|prepared| prepared.ready().unwrap()))
            }
            Err(error) => Some(Err(error)),
        }
    }

    fn open(&mut self, agent: usize) {
        if self.agents[agent].session.is_some() {
            return;
        }
        self.next += 1;
        let consumer = ConsumerId(self.next);
        let (events, pipe) = Events::channel();
        self.pipes.lock().unwrap().out.insert(consumer, pipe);
        self.consumers.insert(consumer, agent);
        let id = self.agents[agent].id.clone();
        self.agents[agent].session = Some(consumer);
        let outstanding_max = u32::try_from(1 + self.rng.roll(8)).unwrap();
        let now = self.see_clock();
        let (process, tells_work) = (self.agents[agent].instance, self.agents[agent].tells_work);
        let mut laws = self.disk.laws.lock().unwrap();
        let running = laws.running();
        laws.processes.opens(consumer, &id, process);
        laws.silence.opens(consumer, &id, tells_work, running);
        drop(laws);
        let line = format!("{id} opens {consumer:?} as {process:?}");
        self.trace.say(self.now, &line);
        let engine = self.engine.as_mut().unwrap();
        engine.handle(Command::Open { consumer, agent: id, kind: ConsumerKind::Session, events }, now);
        if let Some(instance) = process {
            engine.handle(Command::Hello { consumer, instance, tells_work, reply: None }, now);
        }
        engine.handle(Command::Credit { consumer, outstanding_max, reply: None }, now);
    }

    /// Ends a commit batch: commits, answers and delivers, unless the broker dies at the commit.
    fn finish(&mut self) {
        if self.engine.is_none() {
            return;
        }
        if self.faults && self.rng.once_in(150) {
            match self.rng.roll(3) {
                0 => return self.kill("killed before the commit"),
                1 => *self.disk.plan.lock().unwrap() = Plan::DieBefore,
                _ => *self.disk.plan.lock().unwrap() = Plan::DieAfter,
            }
        }
        let plan = *self.disk.plan.lock().unwrap();
        for _ in 0..100 {
            let now = self.see_clock();
            let engine = self.engine.as_mut().unwrap();
            engine.tick(now);
            engine.finish(now);
            let escaped = self.disk.escaped.lock().unwrap().take();
            if let Some(escaped) = escaped {
                self.go_out(escaped);
                let how =
                    if plan == Plan::DieBefore { "killed in the commit, unsynced" } else { "killed after the commit" };
                return self.kill(how);
            }
            send_outputs(self.engine.as_mut().unwrap());
            self.hear_answers();
            if self.engine.as_ref().unwrap().next_deadline().is_none_or(|due| due > now) {
                break;
            }
        }
        *self.disk.plan.lock().unwrap() = Plan::Live;
        self.disk.laws.lock().unwrap().see_time(self.broker_now());
        if self.faults && self.rng.once_in(300) {
            return self.kill("killed before its answers went out");
        }
        let events = self.pipes.lock().unwrap().drain();
        self.go_out(events);
    }

    fn go_out(&mut self, events: Vec<(ConsumerId, Event)>) {
        for (consumer, event) in events {
            let agent = match &event {
                Event::Answer { request_id, .. } => match self.calls.get(request_id) {
                    Some((agent, _)) => *agent,
                    None => continue,
                },
                Event::Delivery(delivery) => {
                    let agent = self.consumers[&consumer];
                    let place = delivery.delivery_id.split('-').next().unwrap().parse().unwrap();
                    let Some(bytes) = self.disk.envelope(delivery.bytes_at) else { continue };
                    let envelope = v1::Envelope::decode(bytes).unwrap();
                    let to = (&self.agents[agent].id, place);
                    self.disk.laws.lock().unwrap().see_delivery(consumer, to, &envelope);
                    self.counts.add("deliveries");
                    if delivery.attempt > 1 {
                        self.counts.add("redeliveries");
                    }
                    agent
                }
                Event::GoAway(_) => {
                    self.sent_away(consumer);
                    continue;
                }
            };
            let Some(delay) = self.travel() else { continue };
            self.schedule(delay, Happening::Comes { agent, session: consumer, event });
        }
    }

    /// The engine has ended the session. The agent opens a new one the next time it acts.
    fn sent_away(&mut self, consumer: ConsumerId) {
        self.counts.add("sessions sent away");
        self.pipes.lock().unwrap().out.remove(&consumer);
        let Some(agent) = self.consumers.remove(&consumer) else { return };
        self.closed(consumer);
        if self.agents[agent].session == Some(consumer) {
            self.agents[agent].session = None;
        }
    }

    /// Notes the end of a session.
    fn closed(&mut self, consumer: ConsumerId) {
        let mut laws = self.disk.laws.lock().unwrap();
        let now = (laws.running(), laws.now);
        laws.processes.closes(consumer);
        laws.silence.closes(consumer, now);
    }

    /// The transit time of a message, in milliseconds. `None`: the message is lost.
    fn travel(&mut self) -> Option<u64> {
        if !self.faults {
            return Some(1);
        }
        match self.rng.roll(60) {
            0 => {
                self.counts.add("lost");
                None
            }
            1 => {
                self.counts.add("delayed");
                Some(self.rng.roll(45_000))
            }
            _ => Some(self.rng.roll(40)),
        }
    }

    // -------------------------------------------------------------------------------------------------- the agents

    fn send(&mut self, agent: usize, frame: &Frame) {
        let times = if self.faults && self.rng.once_in(40) { 2 } else { 1 };
        if times == 2 {
            self.counts.add("doubled");
        }
        for _ in 0..times {
            let Some(delay) = self.travel() else { continue };
            // A frame takes the session or a unary call, which may overtake the session.
            let session = self.agents[agent].session.filter(|_| self.rng.once_in(2));
            self.schedule(delay, Happening::Arrives { agent, session, frame: frame.clone() });
        }
    }

    fn does(&mut self, agent: usize, action: Action) {
        match action {
            Action::Later(milliseconds, action) => {
                let milliseconds = if self.faults { milliseconds } else { milliseconds.min(20) };
                self.schedule(milliseconds, Happening::Does { agent, action: *action });
            }
            Action::Send(bytes) => self.submit(agent, bytes, false),
            Action::Call(about, input) => self.send(agent, &Frame::Call { about, input }),
            Action::Forge(bytes) => {
                let id = v1::Envelope::decode(bytes.clone()).unwrap().message_id;
                self.disk.laws.lock().unwrap().forged.insert(id);
                self.counts.add("forged");
                self.submit(agent, bytes, true);
            }
            Action::Acknowledge(delivery_id, fate) => {
                if fate == Fate::Acked {
                    let place = delivery_id.split('-').next().unwrap().parse().unwrap();
                    let id = self.agents[agent].id.clone();
                    self.disk.laws.lock().unwrap().acks_sent.insert((id, place));
                }
                self.send(agent, &Frame::Acknowledgement { delivery_id, fate });
            }
        }
    }

    fn submit(&mut self, agent: usize, bytes: Bytes, forged: bool) {
        self.next += 1;
        let call = self.next;
        self.counts.add("messages");
        if !forged {
            let said = v1::Envelope::decode(bytes.clone()).unwrap();
            let mut laws = self.disk.laws.lock().unwrap();
            laws.processes.sends(&self.agents[agent].id, self.agents[agent].instance, &said);
            laws.delays.sends(&said);
            if said.message_type() == v1::MessageType::HandoffRequest {
                laws.busy.requested.extend(MessageId::parse(&said.message_id));
            }
        }
        self.calls.insert(call, (agent, bytes.clone()));
        if !forged {
            self.agents[agent].unanswered.insert(call, (bytes.clone(), self.now, 0));
        }
        self.send(agent, &Frame::Envelope { call, bytes, forged });
    }

    fn comes(&mut self, agent: usize, session: ConsumerId, event: Event) {
        match event {
            Event::Answer { request_id, outcome, .. } => {
                let Some((_, bytes)) = self.calls.get(&request_id).cloned() else { return };
                self.agents[agent].unanswered.remove(&request_id);
                match outcome {
                    Ok(Answer::Receipt(receipt)) => self.told(agent, &receipt, &bytes),
                    Ok(_) => {}
                    Err(refusal) => self.refused(agent, refusal.code(), &bytes),
                }
            }
            Event::Delivery(delivery) => {
                if self.agents[agent].session != Some(session) {
                    return; // the session ended during the transit
                }
                // The envelope is read when the agent receives the delivery. Another session may have ended the message
                // by then.
                let Some(bytes) = self.disk.envelope(delivery.bytes_at) else { return };
                let envelope = v1::Envelope::decode(bytes).unwrap();
                let handoff = delivery.handoff.map_or(envelope.correlation_id.clone(), |handoff| handoff.to_string());
                let (kind, sender, id) = (envelope.message_type, &envelope.sender_id, &envelope.message_id);
                let line = format!("{} gets {kind} of {sender}, {id}", self.names[agent]);
                self.trace.say(self.now, &line);
                let (ids, now) = (self.ids.clone(), self.now);
                let actions = self.agents[agent].take(&delivery.delivery_id, &handoff, &envelope, &ids, now);
                actions.into_iter().for_each(|action| self.does(agent, action));
            }
            Event::GoAway(_) => {}
        }
    }

    fn told(&mut self, agent: usize, receipt: &v1::Receipt, bytes: &Bytes) {
        self.counts.add("receipts");
        let line = format!("{} has a receipt for {} at {}", self.names[agent], receipt.message_id, receipt.sequence);
        self.trace.say(self.now, &line);
        self.disk.laws.lock().unwrap().see_receipt(&self.names[agent], receipt, bytes);
        self.believe(agent, &receipt.task_id, &receipt.owner_id, receipt.epoch);
    }

    fn refused(&mut self, agent: usize, code: ErrorCode, bytes: &Bytes) {
        self.counts.add(code.name());
        let line = format!("{} is refused: {}", self.names[agent], code.name());
        self.trace.say(self.now, &line);
        let (ids, now) = (self.ids.clone(), self.now);
        let again = self.agents[agent].send_whole(code, bytes, &ids, now);
        again.into_iter().for_each(|action| self.does(agent, action));
        // A refused agent looks the task up, and corrects its belief about the owner and the epoch.
        let task = v1::Envelope::decode(bytes.clone()).unwrap().task_id;
        if let Ok(id) = baton_broker_core::ids::TaskId::parse(&task) {
            let laws = self.disk.laws.lock().unwrap();
            let Some((owner, epoch)) = laws.owner_of(&id).map(|(owner, epoch)| (owner.to_string(), epoch)) else {
                return;
            };
            drop(laws);
            self.believe(agent, &task, &owner, epoch);
        }
    }

    fn believe(&mut self, agent: usize, task: &str, owner: &str, epoch: u64) {
        if owner == self.names[agent] {
            self.agents[agent].owned.insert(task.to_owned(), epoch);
        } else {
            self.agents[agent].owned.remove(task);
        }
    }

    fn wakes(&mut self, agent: usize) {
        if self.agents[agent].is_retired {
            return;
        }
        let again = if self.faults { 1_000 + self.rng.roll(15_000) } else { 2_000 };
        self.schedule(again, Happening::Wakes(agent));
        match self.agents[agent].session {
            None if !self.faults || self.rng.roll(3) > 0 => self.send(agent, &Frame::Open),
            None => {}
            Some(_) => self.beat(agent),
        }
        let overdue = |sent: Timestamp| self.now.since(sent) > Duration::from_secs(5);
        let unanswered = self.agents[agent].unanswered.iter();
        let again: Vec<(u64, Bytes)> = unanswered
            .filter(|(_, (_, sent, _))| overdue(*sent))
            .map(|(call, (bytes, ..))| (*call, bytes.clone()))
            .collect();
        for (call, bytes) in again {
            let now = self.now;
            let entry = self.agents[agent].unanswered.get_mut(&call).unwrap();
            (entry.1, entry.2) = (now, entry.2 + 1);
            if entry.2 > 20 {
                self.agents[agent].unanswered.remove(&call);
            }
            self.send(agent, &Frame::Envelope { call, bytes, forged: false });
        }
        if self.faults {
            let (ids, now, names) = (self.ids.clone(), self.now, self.names.clone());
            let actions = self.agents[agent].act(&names, 6, &ids, now);
            actions.into_iter().for_each(|action| self.does(agent, action));
            self.calls(agent);
            self.share(agent);
            self.watch();
            if self.rng.once_in(2) {
                self.resume(agent);
            }
        }
    }

    /// Sends a heartbeat, on the session alone.
    fn beat(&mut self, agent: usize) {
        let working_on = self.agents[agent].works_on(self.faults);
        let session = self.agents[agent].session;
        if let Some(delay) = self.travel() {
            self.schedule(delay, Happening::Arrives { agent, session, frame: Frame::Heartbeat { working_on } });
        }
    }

    // -------------------------------------------------------------------------------------------------- what goes wrong

    fn fault(&mut self) {
        if !self.faults {
            return;
        }
        let next = self.rng.roll(15_000);
        self.schedule(next, Happening::Fault);
        let agent = usize::try_from(self.rng.roll(self.agents.len() as u64)).unwrap();
        // A clock that is off by a day makes the broker refuse everything, so it is corrected soon.
        if self.skew.abs() >= DAY * NANOSECONDS && self.rng.once_in(2) {
            return self.set_clock(0);
        }
        match self.rng.roll(14) {
            0..=3 => self.cut(agent),
            4 => {
                self.counts.add("clock forward");
                let span = self.rng.roll(600);
                self.now = self.now.plus(Duration::from_secs(span));
                self.trace.say(self.now, "the clock jumps");
                self.finish();
            }
            5 => {
                self.counts.add("clock off");
                let seconds = match self.rng.once_in(4) {
                    true => self.rng.pick(&[DAY, DAY, -DAY]),
                    false => i64::try_from(self.rng.roll(120)).unwrap() - 60,
                };
                self.set_clock(seconds);
            }
            6 | 7 => self.decide_about_dead_letter(),
            8 if self.engine.is_some() => self.kill("killed between two steps"),
            9 => self.reassign(),
            11..=13 => self.disturb_plan(),
            _ => self.cancel_negotiation(),
        }
    }

    /// An operator reassigns a task: mostly one whose owner has no session, at the epoch that the operator has seen.
    fn reassign(&mut self) {
        if self.engine.is_none() {
            return;
        }
        let tasks = (0..6).map(|number| TaskId::parse(&format!("task-{number}")).unwrap());
        let laws = self.disk.laws.lock().unwrap();
        let known: Vec<_> = tasks
            .filter_map(|task| laws.owner_of(&task).map(|(owner, epoch)| (task.clone(), owner.to_string(), epoch)))
            .collect();
        drop(laws);
        let is_away = |owner: &str| {
            let mut processes = self.agents.iter().filter(|agent| agent.id.as_str() == owner);
            processes.all(|process| process.session.is_none())
        };
        let away: Vec<_> = known.iter().filter(|(_, owner, _)| is_away(owner)).cloned().collect();
        let among = if away.is_empty() || self.rng.once_in(3) { known } else { away };
        if among.is_empty() {
            return;
        }
        let (task, _, epoch) = self.rng.pick(&among);
        // Some operators have looked at an earlier state.
        let expected_epoch = if self.rng.once_in(6) { epoch.saturating_sub(1) } else { epoch };
        let to = if self.rng.once_in(3) { "type:worker".to_owned() } else { self.rng.pick(&self.names) };
        let line = format!("an operator reassigns {task} at {expected_epoch} to {to}");
        self.trace.say(self.now, &line);
        let reason_text = "its owner is away".to_owned();
        let wanted = Reassignment { task, expected_epoch, to: Receiver::parse(&to).unwrap(), reason_text };
        let (reply, mut outcome) = Reply::once();
        let now = self.see_clock();
        self.engine.as_mut().unwrap().handle(Command::Reassign { wanted, caller: operator(), reply }, now);
        self.finish();
        match outcome.try_recv() {
            Ok(Ok(_)) => self.counts.add("reassignments"),
            Ok(Err(_)) => self.counts.add("reassignments refused"),
            Err(_) => self.counts.add("reassignments without an answer"),
        }
    }

    /// Sets the broker's clock to this number of seconds ahead of the real time.
    fn set_clock(&mut self, seconds: i64) {
        self.skew = seconds * NANOSECONDS;
        self.trace.say(self.now, "the broker's clock is set");
        self.finish();
    }

    fn cut(&mut self, agent: usize) {
        let Some(consumer) = self.agents[agent].session.take() else { return };
        self.counts.add("sessions cut");
        let line = format!("the session of {} is cut", self.names[agent]);
        self.trace.say(self.now, &line);
        self.consumers.remove(&consumer);
        self.pipes.lock().unwrap().out.remove(&consumer);
        if self.rng.once_in(3) {
            self.counts.add("processes that end");
            let instance = an_instance(&mut self.rng);
            self.agents[agent].restart(instance);
        }
        let now = self.see_clock();
        self.closed(consumer);
        if let Some(engine) = &mut self.engine {
            engine.handle(Command::Close { consumer }, now);
            self.finish();
        }
    }

    fn decide_about_dead_letter(&mut self) {
        use std::ops::Bound::Unbounded;
        if self.engine.is_none() {
            return;
        }
        let stored = self.disk.scan(Table::DeadLetters, (Unbounded, Unbounded), Order::Ascending, usize::MAX).unwrap();
        let dead = stored.iter().map(|(key, record)| DeadLetterRecord::decode(key, &record.value).unwrap());
        let parked: Vec<u64> = dead.filter(|dead| dead.state == DeadState::Parked).map(|dead| dead.number).collect();
        if parked.is_empty() {
            return;
        }
        let dead_letter = self.rng.pick(&parked);
        let to = self.rng.once_in(3).then(|| self.agents[0].id.clone());
        let (reply, _) = Reply::once();
        let command = match self.rng.roll(4) {
            0 => {
                self.counts.add("discards");
                Command::Discard { dead_letter, caller: operator(), reason_text: String::new(), reply }
            }
            _ => {
                self.counts.add("redrives");
                Command::Redrive { dead_letter, to, caller: operator(), reply }
            }
        };
        let now = self.see_clock();
        self.engine.as_mut().unwrap().handle(command, now);
        self.finish();
    }

    /// A requester cancels a negotiation, by a call.
    fn cancel_negotiation(&mut self) {
        let open = self.disk.laws.lock().unwrap().negotiations.an_open_one();
        let (Some((negotiation, requester)), Some(_)) = (open, &self.engine) else { return };
        if !self.rng.once_in(3) {
            return;
        }
        self.counts.add("cancels of negotiations");
        let (reply, _) = Reply::once();
        let command = Command::CancelNegotiation { negotiation, caller: Caller::Agent(requester), reply };
        let now = self.see_clock();
        self.engine.as_mut().unwrap().handle(command, now);
        self.finish();
    }

    /// A submitter cancels a plan that runs, or one of its subtasks, or retries what has ended. Some look at an earlier state.
    fn disturb_plan(&mut self) {
        let (known, undone) = {
            let laws = self.disk.laws.lock().unwrap();
            (laws.plans.known(), laws.plans.undone())
        };
        if self.engine.is_none() || known.is_empty() {
            return;
        }
        // A plan that has undone its work, is retried and fails again has most to lose.
        let (plan, has_ended) = match undone.is_empty() || self.rng.once_in(3) {
            true => self.rng.pick(&known),
            false => (self.rng.pick(&undone), true),
        };
        let by = "sim".to_owned();
        let subtasks = self.disk.laws.lock().unwrap().plans.subtasks(&plan);
        let input = if !has_ended && !subtasks.is_empty() && !self.rng.once_in(3) {
            self.counts.add("changes of subtasks");
            let (subtask, reason) = (self.rng.pick(&subtasks), String::new());
            match self.rng.roll(4) {
                0 => plan::Input::CancelSubtask { subtask, by, reason },
                1 => plan::Input::RetrySubtask { subtask, by },
                _ => {
                    let of_type = self.rng.once_in(3);
                    let to = if of_type { "type:worker".to_owned() } else { self.rng.pick(&self.names) };
                    plan::Input::ReassignSubtask { subtask, to, by, reason }
                }
            }
        } else if has_ended != self.rng.once_in(10) {
            self.counts.add("retries of plans");
            plan::Input::Retry { by }
        } else {
            self.counts.add("cancels of plans");
            plan::Input::Cancel { by, reason: String::new() }
        };
        self.apply(EntityId::Plan(plan), Box::new(Input::Plan(input)));
        self.finish();
    }

    /// Ends all faults and makes every agent diligent: every handoff ends, and all mail arrives.
    pub(crate) fn settle(&mut self) {
        self.faults = false;
        self.skew = 0;
        self.agents.iter_mut().for_each(|agent| agent.manner = Manner::Diligent);
        self.start();
        // What belongs to a process that never comes back goes to another one of its agent.
        for further in AGENTS..self.agents.len() {
            if self.rng.once_in(2) {
                self.agents[further].is_retired = true;
                self.cut(further);
            }
        }
        self.trace.say(self.now, "no more faults");
        let end = self.now.plus(Duration::from_secs(1500));
        while self.now < end {
            self.step();
        }
        self.delete_files();
        self.check_contents();
        let laws = self.disk.laws.lock().unwrap();
        assert_eq!(laws.open_handoffs(), 0, "law 3: every handoff ends");
        assert_eq!(laws.mail_left(), 0, "laws 2 and 16: all mail is delivered");
        laws.negotiations.see_end();
        laws.plans.see_end();
        laws.runs.see_end();
        laws.see_rest(&*self.disk);
        drop(laws);
        see_lists(&*self.disk);
    }
}

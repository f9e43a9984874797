//! The broker's handle for the rest of the program: the engine on its thread, and the queue to it.

use std::{
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio_util::sync::CancellationToken;

use super::{
    BrokerError, BrokerIdentity, Events, OutgoingDelivery, Refused, Reply, Resources, Settings, Updates, WatcherId,
    access::{Access, Caller},
    changes::HandoffChanges,
    directory::{AllKeys, Directory},
    engine::{Command, ConsumerKind, Engine, RecoverError},
    identity::Identities,
    limits::{CpuAccounts, Rates},
    places::Workers,
    queries::View,
    queue::{CommandQueue, Commands, Queued, command_queue},
    refused, send_outputs,
    turns::Turns,
};
use crate::{
    codes::FieldViolation,
    domain::{EntityId, dead_letter::ParkReason, mailbox::ConsumerId},
    envelope::{EnvelopeError, UnverifiedEnvelope, VerifiedEnvelope, signing},
    ids::{AgentId, IdSource},
    preparation::{Preparation, PreparedMessage},
    proto::v1,
    records::{AuditAct, DecodeError, read_envelope},
    store::{Key, OpenError, Store},
    time::{Clock, Timestamp},
};

/// The most commands in one commit batch. Their work has a bound too: [`Engine::has_room`].
const GROUP_MAX: usize = 1024;
/// The longest sleep of the engine's thread, so that the thread soon notices a forward step of the clock.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// The time between two attempts to recover from a failed commit.
const RECOVERY_INTERVAL: Duration = Duration::from_secs(1);

/// The reasons why a broker does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A stored record cannot be read.
    #[error(
        "failed to read the store: {0}. The log names the damaged records; `baton store check` lists all of them, and \
         `baton store export` saves the readable ones"
    )]
    Store(#[from] BrokerError),
    /// The operating system gives no thread.
    #[error("failed to start a thread: {0}")]
    Thread(io::Error),
}

/// The reasons why an engine ends by itself.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The store is damaged, found after a failed commit or read; or another broker leads.
    #[error(transparent)]
    Store(OpenError),
    /// The engine panicked, which is a bug; the log has the details.
    #[error("the broker's engine has failed; start the broker again. No acknowledged message is lost")]
    Panicked,
}

/// A running broker. A clone is a further handle of the same broker.
#[derive(Clone)]
pub struct Broker {
    shared: Arc<Shared>,
}

struct Shared {
    queue: CommandQueue,
    store: Arc<dyn Store>,
    directory: Arc<Directory>,
    handoff_changes: Arc<HandoffChanges>,
    identities: Identities,
    rates: Rates,
    workers: Workers,
    identity: BrokerIdentity,
    settings: Arc<Settings>,
    resources: Resources,
    ids: Arc<dyn IdSource>,
    clock: Arc<dyn Clock>,
    next_consumer: AtomicU64,
    next_watcher: AtomicU64,
    open_handoffs_at_start: usize,
    started_at: Timestamp,
    draining: CancellationToken,
    ended: CancellationToken,
    serving: watch::Receiver<bool>,
    engine: Mutex<Option<JoinHandle<Result<(), OpenError>>>>,
}

impl Broker {
    /// Starts a broker over the stored records.
    pub fn start(
        store: Arc<dyn Store>,
        identity: BrokerIdentity,
        settings: Settings,
        resources: Resources,
        identities: Identities,
        ids: Arc<dyn IdSource>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, StartError> {
        let settings = Arc::new(settings);
        // Before the thread starts, so that a damaged store fails the start and not the first call.
        let engine = Engine::open(
            store.clone(),
            identity.clone(),
            settings.clone(),
            resources.clone(),
            ids.clone(),
            clock.now(),
        )?;
        let started_at = clock.now();
        let ended = CancellationToken::new();
        let (serves, serving) = watch::channel(true);
        let (directory, handoff_changes) = (engine.directory().clone(), engine.handoff_changes().clone());
        let open_handoffs_at_start = engine.open_handoffs();
        let rates = Rates::new(&settings.limits);
        let workers = Workers::new(CpuAccounts::new(&settings.limits)).map_err(StartError::Thread)?;
        let (queue, commands) = command_queue();
        let engine = {
            let (clock, ended) = (clock.clone(), ended.clone());
            thread("baton-engine", move |runtime| {
                // The guard also acts when the engine panics: it and the dropped commands end every waiting call.
                let _ended = ended.drop_guard();
                runtime.block_on(run(engine, commands, &*clock, &serves))
            })?
        };
        let shared = Shared {
            queue,
            store,
            directory,
            handoff_changes,
            identities,
            rates,
            workers,
            identity,
            settings,
            resources,
            ids,
            clock,
            next_consumer: AtomicU64::new(1),
            next_watcher: AtomicU64::new(1),
            open_handoffs_at_start,
            started_at,
            draining: CancellationToken::new(),
            ended,
            serving,
            engine: Mutex::new(Some(engine)),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// The time of the broker's clock.
    pub fn now(&self) -> Timestamp {
        self.shared.clock.now()
    }

    /// The operator's settings. They stay the same while the broker runs.
    pub fn settings(&self) -> &Settings {
        &self.shared.settings
    }

    /// The resources that the broker shares with the rest of the program.
    pub fn resources(&self) -> &Resources {
        &self.shared.resources
    }

    /// The broker's key, which signs receipts and the broker's messages.
    pub fn identity(&self) -> &BrokerIdentity {
        &self.shared.identity
    }

    /// The registered agents and their presence.
    pub fn directory(&self) -> &Directory {
        &self.shared.directory
    }

    /// The latest changes of handoffs.
    pub fn handoff_changes(&self) -> &HandoffChanges {
        &self.shared.handoff_changes
    }

    /// The number of open handoffs in the store at the start.
    pub fn open_handoffs_at_start(&self) -> usize {
        self.shared.open_handoffs_at_start
    }

    /// The time at which the broker started.
    pub fn started_at(&self) -> Timestamp {
        self.shared.started_at
    }

    /// The store, for reads beside the engine.
    pub(super) fn store(&self) -> &dyn Store {
        &*self.shared.store
    }

    /// The challenges and tokens.
    pub fn identities(&self) -> &Identities {
        &self.shared.identities
    }

    /// The source of random ids.
    pub fn ids(&self) -> &dyn IdSource {
        &*self.shared.ids
    }

    /// The authorization by the policies.
    pub fn access(&self) -> Access<'_> {
        Access { policies: &self.shared.resources.policies, directory: &self.shared.directory }
    }

    /// The threads for work of callers that may wait for the disk, or that takes time.
    pub fn workers(&self) -> &Workers {
        &self.shared.workers
    }

    /// The queries over the stored records, limited to this caller.
    pub fn view<'a>(&'a self, caller: &'a Caller) -> View<'a> {
        View { store: &*self.shared.store, access: self.access(), caller }
    }

    /// Counts a change of a card or of keys against the rate of the caller, if the caller is an agent.
    pub fn count_card_change(&self, caller: &Caller) -> Result<(), BrokerError> {
        match caller {
            Caller::Agent(agent) => self.shared.rates.check_card_change(agent),
            Caller::Operator(_) | Caller::Anonymous => Ok(()),
        }
    }

    /// Counts a registration, or a change of a name in a registry, against the rate of the caller.
    pub fn count_name_change(&self, caller: &Caller) -> Result<(), BrokerError> {
        match caller {
            Caller::Agent(agent) => self.shared.rates.check_name_change(agent),
            Caller::Operator(_) | Caller::Anonymous => Ok(()),
        }
    }

    /// Counts a call against the rate of the caller, as one message, and checks that the CPU time of its earlier calls is
    /// paid for.
    ///
    /// # Errors
    /// LIMIT_EXCEEDED with the time to wait.
    pub fn count_call(&self, caller: &Caller) -> Result<(), BrokerError> {
        self.count_message(caller)?;
        self.shared.workers.check(caller).inspect_err(|_| self.shared.resources.metrics.over_limit("CPU", 1))
    }

    /// Counts a message of a call that is under way against the rate of the caller.
    ///
    /// # Errors
    /// LIMIT_EXCEEDED with the time to wait.
    pub fn count_message(&self, caller: &Caller) -> Result<(), BrokerError> {
        match caller {
            Caller::Agent(agent) => self.shared.rates.check_call(agent),
            Caller::Operator(_) | Caller::Anonymous => Ok(()),
        }
    }

    /// The envelope of a delivery, byte for byte as received. May wait for the disk. `None`: the delivery is not sent.
    /// Either another consumer has settled the message since the dispatch, or the envelope cannot be read; then the log
    /// has the cause, and the message is delivered again.
    pub fn envelope(&self, delivery: &OutgoingDelivery) -> Option<Bytes> {
        let found = read_envelope(delivery.bytes_at, |key| Ok::<_, BrokerError>(self.shared.store.get(key)?));
        // The delivery is lost and not the message: its lease ends, and it is dispatched again.
        let found = found.inspect_err(|error| {
            tracing::error!(sequence = delivery.sequence, %error, "failed to read an envelope");
        });
        taken_elsewhere(delivery, found.ok()?)
    }

    /// Like [`Self::envelope`], from memory alone. `None`: only the disk can tell.
    pub fn envelope_in_memory(&self, delivery: &OutgoingDelivery) -> Option<Option<Bytes>> {
        let get = |key: &Key| self.shared.store.get_in_memory(key).ok_or(NotInMemory);
        let found = read_envelope(delivery.bytes_at, get).ok()?;
        Some(taken_elsewhere(delivery, found))
    }

    /// Parses an envelope and verifies its signature, on the caller's thread. In a session, the session's agent must be
    /// the sender, and bytes that are no valid message are kept as a dead letter.
    pub fn verify(&self, raw: Bytes, session: Option<&AgentId>) -> Result<Box<VerifiedEnvelope>, Refused> {
        self.check(raw, session).map(Box::new).inspect_err(|refusal| {
            self.shared.resources.metrics.refused_unverified(&**refusal);
            // Any client can cause this at will, so the line stays out of the usual log.
            tracing::debug!(reason = refusal.code().name(), "refused an envelope before verification: {refusal}");
        })
    }

    fn check(&self, raw: Bytes, session: Option<&AgentId>) -> Result<VerifiedEnvelope, Refused> {
        let bytes = raw.len();
        // The agent of a session is authenticated, so its rate is checked before the cost of a signature check.
        if let Some(agent) = session {
            self.shared.rates.check(agent, bytes).map_err(refused)?;
        }
        let parsed = UnverifiedEnvelope::parse(raw.clone()).map_err(|error| {
            // Only for an authenticated agent, whose bounds limit the kept bytes. Any other client could fill the
            // store.
            if let (Some(agent), Some(reason)) = (session, reason_to_keep(&error)) {
                let (agent, raw, text) = (agent.clone(), raw.clone(), error.to_string());
                self.send_if_room(Command::KeepRefused { agent, raw, reason, text });
            }
            refused(error)
        })?;
        // The coordinator's messages are made in the engine, and come from no client.
        if parsed.header().sender.is_reserved() {
            let path = "envelope.sender_id".to_owned();
            let problem = "begins with \"baton.\", which is reserved for agents that the broker runs".to_owned();
            return Err(refused(BrokerError::Fields { violations: vec![FieldViolation { path, problem }] }));
        }
        // A session sends only as the agent that it has proven to be (SPEC 5; SPEC 12, law 6).
        let sender = parsed.header().sender.clone();
        if let Some(agent) = session.filter(|agent| **agent != sender) {
            return Err(refused(BrokerError::SenderMismatch { sender, agent: agent.clone() }));
        }
        let unsigned_allowed = self.shared.settings.unsigned_allowed;
        let verified = parsed.verify(&*self.shared.directory, self.now(), unsigned_allowed);
        // Counted before the error is disguised for a caller without an identity.
        self.shared.resources.metrics.verified(verified.is_ok());
        let verified = verified
            .map_err(|error| refused(if session.is_some() { error } else { self.as_told_to_anonymous(error, raw) }))?;
        // Without a session the sender is known only now, and a caller that is not the sender may send copies of its
        // envelopes. So these sends have a rate of their own.
        if session.is_none() {
            self.shared.rates.check_without_session(&sender, bytes).map_err(refused)?;
        }
        Ok(verified)
    }

    /// Hides the existence of agents and keys from a caller without an identity. An unknown sender or key is reported
    /// as a wrong signature. An expired or revoked key is too, unless the signature shows that the caller has it.
    fn as_told_to_anonymous(&self, error: EnvelopeError, raw: Bytes) -> EnvelopeError {
        match error {
            EnvelopeError::KeyUnknown { sender, key_id } => EnvelopeError::SignatureInvalid { sender, key_id },
            EnvelopeError::KeyNotValid { sender, key_id } => {
                let keys = AllKeys(&self.shared.directory);
                let verified =
                    UnverifiedEnvelope::parse(raw).and_then(|parsed| parsed.verify(&keys, self.now(), false));
                match verified {
                    Ok(_) => EnvelopeError::KeyNotValid { sender, key_id },
                    Err(_) => EnvelopeError::SignatureInvalid { sender, key_id },
                }
            }
            other => other,
        }
    }

    /// Opens a consumer of an agent's mail, without credit. The consumer is closed when the returned value is dropped.
    /// Waits while the queue is full.
    pub async fn open(&self, agent: AgentId, kind: ConsumerKind, events: Events) -> Result<OpenConsumer, Refused> {
        let id = ConsumerId(self.shared.next_consumer.fetch_add(1, Ordering::Relaxed));
        self.send(Command::Open { consumer: id, agent, kind, events }).await?;
        Ok(OpenConsumer { broker: self.clone(), id })
    }

    /// Watches an entity: sends its state, and each update until the last one or until the returned value is dropped.
    /// Waits while the queue is full.
    pub async fn watch(&self, entity: EntityId, updates: Updates) -> Result<OpenWatch, Refused> {
        let id = WatcherId(self.shared.next_watcher.fetch_add(1, Ordering::Relaxed));
        self.send(Command::Watch { watcher: id, entity, updates }).await?;
        Ok(OpenWatch { broker: self.clone(), id })
    }

    /// Sends a command to the engine. Waits while the queue is full.
    pub async fn send(&self, command: Command) -> Result<(), Refused> {
        self.send_all([command]).await
    }

    /// Sends commands to the engine in their order. Waits while the queue is full.
    pub async fn send_all<I>(&self, commands: I) -> Result<(), Refused>
    where
        I: AsRef<[Command]> + IntoIterator<Item = Command>,
    {
        self.shared.queue.send_all(commands).await.map_err(|_| refused(BrokerError::ShuttingDown))
    }

    /// Sends a command to the engine, unless the queue is full. For work that may be omitted under load.
    fn send_if_room(&self, command: Command) {
        if self.shared.queue.try_send(command) == Ok(false) {
            tracing::debug!("the engine's queue is full: dropped a refused envelope");
        }
    }

    /// Records an act that changes no other record. Waits while the queue is full. A stopping broker records nothing.
    pub async fn note(&self, act: AuditAct) {
        drop(self.send(Command::Note { act }).await);
    }

    /// Sends a command to the engine and waits for its answer.
    pub async fn ask<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, Refused> {
        // An engine that ends drops the reply, and the caller learns of the stop.
        let (reply, receiver) = Reply::once();
        self.send(command(reply)).await?;
        receiver.await.unwrap_or_else(|_| Err(refused(BrokerError::ShuttingDown)))
    }

    /// The longer checks of messages, which their senders' threads make.
    pub fn preparation(&self) -> Preparation<'_> {
        let (settings, schemas) = (&*self.shared.settings, &*self.shared.resources.schemas);
        Preparation { store: &*self.shared.store, settings, schemas, access: self.access() }
    }

    /// Waits until all commands that the engine has are committed.
    pub async fn settle(&self) -> Result<(), Refused> {
        self.ask(|reply| Command::Settle { reply }).await
    }

    /// Sends a message to the engine, and returns the signed receipt once the message is stored. `is_from_sender`: the
    /// caller has proven to be the sender.
    pub async fn submit(&self, message: PreparedMessage, is_from_sender: bool) -> Result<v1::Receipt, Refused> {
        let receipt = self.ask(|reply| Command::Submit { message, is_from_sender, reply }).await?;
        Ok(self.sign_receipt(receipt))
    }

    /// Adds the broker's signature to a receipt. Equal receipts get equal signatures.
    pub fn sign_receipt(&self, mut receipt: v1::Receipt) -> v1::Receipt {
        let identity = &self.shared.identity;
        receipt.key_id = identity.key_id.to_string();
        receipt.signature = identity.key.sign(&signing::receipt_input(&receipt)).to_vec().into();
        receipt
    }

    /// Checks that the agent may open one more session or call of `Receive`.
    pub fn may_open(&self, agent: &AgentId) -> Result<(), BrokerError> {
        // 0 means no limit.
        let most = self.shared.settings.limits.sessions_max;
        // Sessions whose `Open` still waits in the queue are not counted.
        let presence = self.shared.directory.presence(agent);
        if most == 0 || presence.signs.sessions + presence.signs.receives < most {
            return Ok(());
        }
        Err(BrokerError::LimitExceeded {
            what: "the agent has too many open sessions",
            retry_after: Duration::from_secs(1),
        })
    }

    /// Whether the broker accepts commands: not while its store refuses writes.
    pub fn serving(&self) -> watch::Receiver<bool> {
        self.shared.serving.clone()
    }

    /// Waits until the engine has ended, by a stop or by itself.
    pub async fn ended(&self) {
        self.shared.ended.cancelled().await;
    }

    /// Whether the engine has ended, by a stop or by itself.
    pub fn has_ended(&self) -> bool {
        self.shared.ended.is_cancelled()
    }

    /// Tells every session that the broker is about to stop, and starts their end.
    pub async fn drain(&self) {
        // The notice first: a session that ends at once could no longer deliver it.
        drop(self.send(Command::GoAway).await);
        self.shared.draining.cancel();
    }

    /// Waits until sessions are to end.
    pub async fn draining(&self) {
        self.shared.draining.cancelled().await;
    }

    /// Stops the engine. Commands in the queue are still committed, later ones are refused. Fails if the engine has
    /// ended by itself.
    pub async fn stop(&self) -> Result<(), EngineError> {
        self.shared.queue.close();
        self.ended().await;
        // An earlier call of `stop` may have joined the engine already.
        let Some(engine) = self.shared.engine.lock().expect("no holder panics").take() else { return Ok(()) };
        // A join blocks this thread of the runtime, but not for long: the engine has ended.
        match engine.join() {
            Ok(Ok(())) => Ok(()),
            Ok(Err(damaged)) => Err(EngineError::Store(damaged)),
            Err(_panic) => Err(EngineError::Panicked),
        }
    }
}

/// The bytes of a found envelope. A delivery without an envelope is not sent.
fn taken_elsewhere(delivery: &OutgoingDelivery, found: Option<Bytes>) -> Option<Bytes> {
    if found.is_none() {
        tracing::debug!(sequence = delivery.sequence, "a dispatched message was already acknowledged");
    }
    found
}

/// An envelope cannot be read from memory alone.
struct NotInMemory;

impl From<DecodeError> for NotInMemory {
    /// The read from the disk finds the damage again and reports it.
    fn from(_: DecodeError) -> Self {
        Self
    }
}

/// A consumer of an agent's mail, closed when this is dropped.
///
/// The command that closes it takes no room in the queue, because a destructor cannot wait for room. Each opened
/// consumer sends one, and the command that opened it took room: so their number is bounded by the open consumers and
/// the commands with room.
pub struct OpenConsumer {
    broker: Broker,
    id: ConsumerId,
}

impl OpenConsumer {
    /// The id that commands name the consumer by. No other consumer ever has it.
    pub fn id(&self) -> ConsumerId {
        self.id
    }
}

impl Drop for OpenConsumer {
    fn drop(&mut self) {
        let close = Command::Close { consumer: self.id };
        drop(self.broker.shared.queue.send_now(close));
    }
}

/// A watcher of an entity, ended when this is dropped. Like [`OpenConsumer`], it sends one command without room, and
/// took room when it was opened.
pub struct OpenWatch {
    broker: Broker,
    id: WatcherId,
}

impl Drop for OpenWatch {
    fn drop(&mut self) {
        drop(self.broker.shared.queue.send_now(Command::Unwatch { watcher: self.id }));
    }
}

/// Starts a thread with its own single-threaded runtime.
fn thread<T: Send + 'static>(
    name: &str,
    run: impl FnOnce(tokio::runtime::Runtime) -> T + Send + 'static,
) -> Result<JoinHandle<T>, StartError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.map_err(StartError::Thread)?;
    std::thread::Builder::new().name(name.to_owned()).spawn(move || run(runtime)).map_err(StartError::Thread)
}

/// The reason for keeping refused bytes for an operator: they are no envelope, or the payload does not fit its type. An
/// envelope with a wrong field value is a message, and the refusal has told its sender.
fn reason_to_keep(error: &EnvelopeError) -> Option<ParkReason> {
    match error {
        EnvelopeError::Malformed { part: "payload", .. } | EnvelopeError::PayloadTypeMismatch { .. } => {
            Some(ParkReason::SchemaInvalid)
        }
        EnvelopeError::Malformed { .. } => Some(ParkReason::Malformed),
        EnvelopeError::Fields { .. }
        | EnvelopeError::NotSupported { .. }
        | EnvelopeError::PayloadTooLarge { .. }
        | EnvelopeError::EntryTooLarge { .. }
        | EnvelopeError::FrameTooLarge { .. }
        | EnvelopeError::UnpacksTooLarge
        | EnvelopeError::ContextDigestMismatch { .. }
        | EnvelopeError::SignatureVersionUnknown { .. }
        | EnvelopeError::SignatureMissing
        | EnvelopeError::SignatureInvalid { .. }
        | EnvelopeError::KeyUnknown { .. }
        | EnvelopeError::KeyNotValid { .. } => None,
    }
}

async fn run(
    mut engine: Engine,
    mut queue: Commands,
    clock: &dyn Clock,
    serves: &watch::Sender<bool>,
) -> Result<(), OpenError> {
    let mut commands = Vec::with_capacity(GROUP_MAX);
    let mut turns = Turns::default();
    // The permits are held until the commit, so that the queue's bound includes the commands of the batch.
    let mut group_permit: Option<OwnedSemaphorePermit> = None;
    let mut tries = tokio::time::interval(RECOVERY_INTERVAL);
    tries.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        // The sleep is bounded, because the clock may be set while the thread sleeps.
        let until_due = engine.next_deadline().map_or(SLEEP_MAX, |at| at.since(clock.now()).min(SLEEP_MAX));
        tokio::select! {
            // Recovery goes first, or a busy queue would delay it; commands go before the sleep.
            biased;
            _ = tries.tick(), if engine.has_failed() => take_up_again(&mut engine, clock.now())?,
            received = queue.receive(&mut commands, GROUP_MAX) => {
                if received.is_err() && turns.is_empty() { return Ok(()) }
            }
            () = std::future::ready(()), if !turns.is_empty() => {}
            () = tokio::time::sleep(until_due) => {}
        }
        let now = clock.now();
        commands.drain(..).for_each(|queued| turns.push(queued));
        for permit in execute_some(&mut engine, &mut turns, now) {
            match &mut group_permit {
                Some(all) => all.merge(permit),
                None => group_permit = Some(permit),
            }
        }
        // The commands go first: a message settles the overdue deadlines of its own task, and due timers do not delay
        // it.
        engine.tick(now);
        let began = engine.has_changes().then(|| clock.now());
        // One commit for all commands and timers of the round. Nothing is sent before it.
        engine.finish(now);
        if let Some(began) = began {
            engine.metrics().commit_took(clock.now().since(began));
        }
        send_outputs(&mut engine);
        // The batch is committed or refused, and its commands give their room in the queue back.
        group_permit = None;
        let is_serving = !engine.has_failed();
        serves.send_if_modified(|before| std::mem::replace(before, is_serving) != is_serving);
    }
}

/// Executes the commands on turn, as many as fit into one batch. Returns the permits of their queue.
fn execute_some(engine: &mut Engine, turns: &mut Turns, now: Timestamp) -> Vec<OwnedSemaphorePermit> {
    let mut permits = Vec::new();
    for _ in 0..GROUP_MAX {
        let Some(Queued { command, permit }) = engine.has_room().then(|| turns.pop()).flatten() else { break };
        engine.handle(command, now);
        permits.extend(permit);
    }
    permits
}

/// Tries to recover the engine. Fails only if further attempts cannot help: the store is damaged, or another broker leads.
fn take_up_again(engine: &mut Engine, now: Timestamp) -> Result<(), OpenError> {
    match engine.recover(now) {
        Ok(()) => tracing::info!("the store accepts writes again"),
        Err(RecoverError::Store(error)) if error.is_final() => return Err(error),
        Err(error) => tracing::warn!(%error, "the store still refuses writes"),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ids::{KeyId, SystemIds, TaskId},
        proto::v1::AuditAction,
        queue::{COMMAND_BYTES_MIN, QUEUE_BYTES_MAX},
        records::{AuditHead, TaskRecord},
        store::gated::GatedStore,
        time::SystemClock,
    };

    fn broker(store: Arc<GatedStore>) -> Broker {
        let key = crate::envelope::keys::PrivateKey::from_seed(&[1; 32]);
        let identity = BrokerIdentity {
            key_id: KeyId::parse("k1").unwrap(),
            key,
            coordinator: crate::Signer::new(crate::envelope::keys::PrivateKey::from_seed(&[77; 32])),
        };
        let identities = Identities::new("token", None);
        let (ids, clock) = (Arc::new(SystemIds), Arc::new(SystemClock));
        Broker::start(store, identity, Settings::default(), Resources::default(), identities, ids, clock).unwrap()
    }

    #[test]
    fn a_batch_ends_with_its_work_and_another_agent_has_its_turn_in_it() {
        let broker = broker(Arc::new(GatedStore::new(|_| false)));
        let shared = &broker.shared;
        let mut engine = Engine::open(
            shared.store.clone(),
            shared.identity.clone(),
            shared.settings.clone(),
            shared.resources.clone(),
            shared.ids.clone(),
            shared.clock.now(),
        )
        .unwrap();
        let mut turns = Turns::default();
        for _ in 0..GROUP_MAX {
            let act = AuditAct {
                actor: "the broker".to_owned(),
                action: AuditAction::PolicyLoaded,
                subject: String::new(),
                details: "x".repeat(8 * 1024),
            };
            turns.push(Queued { command: Command::Note { act }, permit: None });
        }
        let (events, _) = Events::channel();
        let agent = AgentId::parse("quiet").unwrap();
        let command = Command::Open { consumer: ConsumerId(1), agent, kind: ConsumerKind::Session, events };
        turns.push(Queued { command, permit: None });
        execute_some(&mut engine, &mut turns, shared.clock.now());
        let left: Vec<_> = std::iter::from_fn(|| turns.pop()).collect();
        // Each note writes 8 KiB, and a batch ends after 2 MiB.
        assert!(left.len() > GROUP_MAX / 2 && left.len() < GROUP_MAX, "{}", left.len());
        assert!(left.iter().all(|queued| matches!(queued.command, Command::Note { .. })));
    }

    /// The result of a future that need not wait.
    async fn at_once<T>(what: impl Future<Output = T>) -> Option<T> {
        tokio::time::timeout(Duration::ZERO, tokio::task::unconstrained(what)).await.ok()
    }

    #[tokio::test]
    async fn sessions_that_are_given_up_while_the_engine_is_stuck_leave_nothing_in_its_queue() {
        let store = Arc::new(GatedStore::new(|key| *key == AuditHead::key()));
        let broker = broker(store.clone());
        let act = AuditAct {
            actor: "the broker".to_owned(),
            action: AuditAction::PolicyLoaded,
            subject: String::new(),
            details: String::new(),
        };
        broker.note(act).await;
        let open = || {
            let (events, _) = Events::channel();
            broker.open(AgentId::parse("agent").unwrap(), ConsumerKind::Session, events)
        };
        let mut opened = Vec::new();
        while let Some(consumer) = at_once(open()).await {
            opened.push(consumer.unwrap());
        }
        let room = (QUEUE_BYTES_MAX / COMMAND_BYTES_MIN) as usize;
        let sent = || broker.shared.queue.sent.load(Ordering::Relaxed) - 1; // the note is not counted
        assert!(opened.len() <= room);
        for _ in 0..1000 {
            assert!(at_once(open()).await.is_none());
        }
        assert!(sent() <= room, "those that were not opened are not closed either");
        opened.clear();
        assert!(sent() <= 2 * room, "one for each that was opened");
        store.open();
        broker.stop().await.unwrap();
    }

    #[tokio::test]
    async fn a_watch_that_is_dropped_is_ended_and_one_that_found_no_room_leaves_nothing() {
        let store = Arc::new(GatedStore::new(|key| *key == TaskRecord::key(&TaskId::parse("task").unwrap())));
        let broker = broker(store.clone());
        let entity = || EntityId::Task(TaskId::parse("task").unwrap());
        let watch = || broker.watch(entity(), Updates::latest().0);
        let mut opened = Vec::new();
        while let Some(watch) = at_once(watch()).await {
            opened.push(watch.unwrap());
        }
        assert!(at_once(watch()).await.is_none());
        let sent = || broker.shared.queue.sent.load(Ordering::Relaxed);
        assert_eq!(sent(), opened.len());
        let dropped = opened.len();
        opened.clear();
        assert_eq!(sent(), 2 * dropped);
        store.open();
        broker.stop().await.unwrap();
    }
}

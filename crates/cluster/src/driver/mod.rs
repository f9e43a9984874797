//! The driver of a member: runs [`crate::member`] on a runtime of its own, and tells the program when to lead.
//!
//! Owns the thread of the lease, the calls of log and register, the tables' thread, the checkpoint that comes from a peer, and the
//! value of this member in the register. Must not know the engine of the program, nor connections: the program takes each [`Term`] and serves it.
//!
//! ```text
//! thread of the lease    the member: events in, actions out. Never waits for a disk or a call
//! its runtime            the calls of log and register, each with a limit of time
//! thread of the tables   applies entries, in order; gives the store of each term
//! the engine's thread    of the program: waits in [`commit_log::TermLog`] for its group
//! ```
//!
//! So load on the program's runtime, or on its disk, delays no lease.

mod applier;
mod commit_log;
mod names;
mod restore;
#[cfg(test)]
mod tests;

use std::{collections::HashMap, sync::Arc, thread, time::Duration};

use async_trait::async_trait;
use baton_protocol::{
    lead::LeadGuard,
    time::{Clock, Moment},
};
use baton_store::{AppendError as StoreError, CheckpointFile, CheckpointHead, Link, Mark, Replica, Store, Whole};
use bytes::Bytes;
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::timeout,
};

use self::{
    applier::Applier,
    commit_log::TermLog,
    names::{About, Names},
};
use crate::{
    entry::{Chain, HEAD_BYTES, Hash, Position},
    figures::Figures,
    leader_log::Ticket,
    lease,
    log::{AppendError, ReadError, Unavailable, WriteError},
    member::{Action, Config, Divergence, Ending, Event, Leave, Member, PeerPosition, ProposeError, Role},
    settings::{Engine, LogAddress},
    view::{self, Leader, View},
};

/// The time after which the outcome of a call is unknown.
const CALL_MAX: Duration = Duration::from_secs(2);
/// The time for the answers of all peers.
const PEERS_MAX: Duration = Duration::from_millis(500);
/// The bytes of one read of the log.
const READ_BYTES: usize = 4 * 1024 * 1024;
/// The pause between two attempts to reach the engine at the start.
const OPEN_AGAIN: Duration = Duration::from_secs(1);
/// The time for which a claim in vain is not logged again.
const CLAIM_TOLD_AGAIN: Duration = Duration::from_secs(60);
/// The most time between two writes of the member's value.
pub const MEMBER_INTERVAL: Duration = Duration::from_secs(5);

/// What to do when the shared log and a broker differ, in words for an operator.
pub const ADVICE_DIVERGED: &str = "If the log has lost entries, restore it from where they are; if no server has them, begin a new \
     log from a broker that has them, with `baton cluster refound`. If this broker alone differs, move the folder `store` in its data \
     folder away, and start it again: it receives the checkpoint of another broker";

/// What a driver needs.
pub struct Options {
    /// The member. Its largest entry is that of the engine.
    pub member: Config,
    /// The cluster's name within the engine.
    pub name: String,
    /// Where the shared log is.
    pub log: LogAddress,
    /// How long the log keeps what an absent member lacks.
    pub log_keep: Duration,
    /// The bytes of the log above which it keeps only what two members have on their disks.
    pub log_bytes_max: u64,
    /// The tables of this broker. The peer port sends their checkpoint.
    pub replica: Arc<Replica>,
    /// The hash of that part of the configuration that all members should share.
    pub configuration: Bytes,
    /// The other brokers.
    pub peers: Arc<dyn Peers>,
    /// The wall clock, which the member's value shows.
    pub clock: Arc<dyn Clock>,
    /// Takes the times of appends.
    pub figures: Arc<Figures>,
}

impl Options {
    fn about(&self) -> About {
        let Self { member, configuration, clock, .. } = self;
        About { config: member.clone(), configuration: configuration.clone(), clock: clock.clone() }
    }
}

/// The other brokers, over the network.
#[async_trait]
pub trait Peers: Send + Sync {
    /// The last entries of the peers that answer soon. `addresses`: the names of the other members, and where to reach them.
    async fn positions(&self, addresses: Vec<(String, String)>) -> Vec<PeerPosition>;

    /// Begins to receive the checkpoint of the peer at this address, which has the entries up to `upto` at least. The peer
    /// omits those files of `has` that its checkpoint has.
    ///
    /// # Errors
    ///
    /// Why there is none, in words.
    async fn checkpoint(
        &self,
        address: &str,
        upto: Position,
        has: &[CheckpointFile],
    ) -> Result<(CheckpointHead, Box<dyn CheckpointPieces>), String>;
}

/// A checkpoint on its way.
#[async_trait]
pub trait CheckpointPieces: Send {
    /// The next bytes; `None` behind the last ones.
    ///
    /// # Errors
    ///
    /// The peer ended too early, or says why it cannot go on.
    async fn next(&mut self) -> Result<Option<Bytes>, String>;
}

/// A cluster whose brokers know each other by the register alone.
#[derive(Debug, Clone, Copy)]
pub struct NoPeers;

#[async_trait]
impl Peers for NoPeers {
    async fn positions(&self, _: Vec<(String, String)>) -> Vec<PeerPosition> {
        Vec::new()
    }

    async fn checkpoint(
        &self,
        _: &str,
        _: Position,
        _: &[CheckpointFile],
    ) -> Result<(CheckpointHead, Box<dyn CheckpointPieces>), String> {
        Err("this broker reaches no peer".into())
    }
}

/// The reasons why a driver does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The engine of the log has settings with which acknowledged entries can be lost.
    #[error("the shared log is unsafe: {}", .0.join("; "))]
    Unsafe(Vec<String>),
    /// Another process is the member with this name.
    #[error("another broker of the cluster has the name {0:?}: give each broker its own name with cluster.broker")]
    NameInUse(String),
    /// The operating system gives no thread.
    #[error("failed to start the thread of the lease: {0}")]
    Thread(std::io::Error),
    /// It was stopped before the engine of the log answered.
    #[error("the broker was stopped before the shared log answered")]
    Stopped,
}

/// The lead of this broker, from its takeover on.
pub struct Term {
    /// The number of takeovers up to this one.
    pub number: u64,
    /// The place of the takeover in the shared log.
    pub position: Position,
    /// The name of the broker that led before. `None`: no broker is known to have led.
    pub former: Option<String>,
    /// The tables. Its commits go into the shared log.
    pub store: Arc<dyn Store>,
    /// Whether an answer without an entry of its own may leave.
    pub guard: LeadGuard,
    /// Why the term has ended; `None` before. Then the program ends its service, and calls [`Handle::service_ended`].
    pub ended: watch::Receiver<Option<Leave>>,
}

/// Why a member has ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Ended {
    /// By its own state.
    #[error(transparent)]
    Member(#[from] Ending),
    /// Another process is the member with this name.
    #[error("another broker of the cluster has the name {0:?}: give each broker its own name with cluster.broker")]
    NameInUse(String),
    /// The log and the tables of this broker differed when it was started.
    #[error(
        "the shared log and this broker differ: {0}; nothing was answered, and nothing was changed. {advice}",
        advice = ADVICE_DIVERGED
    )]
    Diverged(Divergence),
}

/// The driver, for the program. A clone is the same driver.
#[derive(Clone)]
pub struct Handle {
    inputs: mpsc::UnboundedSender<Input>,
    view: watch::Receiver<View>,
    ended: watch::Receiver<Option<Ended>>,
}

impl Handle {
    /// What the member shows.
    pub fn view(&self) -> watch::Receiver<View> {
        self.view.clone()
    }

    /// The last entry that this broker knows to be in the log. `None`: the member has ended.
    pub async fn chain(&self) -> Option<Chain> {
        let (answer, chain) = oneshot::channel();
        drop(self.inputs.send(Input::Ask(answer)));
        chain.await.ok()
    }

    /// Lets another broker lead. Nothing happens at a follower.
    pub fn step_down(&self) {
        self.event(Event::StepDown);
    }

    /// The service of a term has ended: its engine commits nothing any more.
    pub fn service_ended(&self) {
        self.event(Event::ServiceEnded);
    }

    /// The disk of this broker has failed: another one should lead.
    pub fn disk_failed(&self) {
        self.event(Event::DiskFailed);
    }

    /// Ends the member. A leader gives its lease back once its service has ended.
    pub fn stop(&self) {
        self.event(Event::Stop);
    }

    /// Waits until the member has ended.
    pub async fn ended(&self) -> Ended {
        let mut ended = self.ended.clone();
        let waited = ended.wait_for(Option::is_some).await.map(|ended| ended.clone());
        // The thread ends after it has said why.
        waited.ok().flatten().unwrap_or(Ended::Member(Ending::Stopped))
    }

    fn event(&self, event: Event) {
        // A member that has ended needs no event.
        drop(self.inputs.send(Input::Event(event)));
    }
}

/// What the thread of the lease is told.
enum Input {
    Event(Event),
    /// A group of the engine of a term.
    Propose {
        term: u64,
        group: Bytes,
        answer: Proposal,
    },
    Ask(oneshot::Sender<Chain>),
    /// The checkpoint of a peer is whole: the outcome of this call.
    Received(Ticket, Whole),
    /// The last entry that the tables have.
    Applied(u64),
    /// Another process has taken this member's name.
    NameInUse,
}

/// The outcome of a group, for the engine's thread. A drop says that this broker leads no longer.
type Proposal = std::sync::mpsc::Sender<Result<Mark, StoreError>>;

/// Starts the driver, and waits until the engine of the log answers. Returns the terms in which this broker leads, each
/// after the one before has ended.
///
/// # Errors
///
/// The log is unsafe, or another process has the name.
pub async fn start(
    options: Options,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(Handle, mpsc::UnboundedReceiver<Term>), StartError> {
    let (started, outcome) = oneshot::channel();
    let run = move || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("baton-cluster")
            .enable_all()
            .build();
        match runtime {
            Ok(runtime) => {
                runtime.block_on(begin(options, stop, started));
                // A call under way may wait for a disk, and nothing needs its outcome.
                runtime.shutdown_background();
            }
            Err(error) => drop(started.send(Err(StartError::Thread(error)))),
        }
    };
    thread::Builder::new().name("baton-lease".into()).spawn(run).map_err(StartError::Thread)?;
    outcome.await.unwrap_or(Err(StartError::Stopped))
}

type Started = Result<(Handle, mpsc::UnboundedReceiver<Term>), StartError>;

async fn begin(mut options: Options, stop: impl Future<Output = ()>, started: oneshot::Sender<Started>) {
    let opened = tokio::select! {
        opened = open(&options) => opened,
        () = stop => Err(StartError::Stopped),
    };
    let (engine, names) = match opened {
        Ok(opened) => opened,
        Err(error) => return drop(started.send(Err(error))),
    };
    options.member.entry_bytes_max = engine.log.entry_bytes_max();
    let driver = match Driver::new(options, engine, names) {
        Ok((driver, handle, terms)) => {
            if started.send(Ok((handle, terms))).is_err() {
                return; // nobody waits for it any more
            }
            driver
        }
        Err(error) => return drop(started.send(Err(StartError::Thread(error)))),
    };
    driver.run().await;
}

/// Opens the engine, and takes the member's name.
async fn open(options: &Options) -> Result<(Engine, Names), StartError> {
    let again = async |error: Unavailable| {
        tracing::warn!(log = %options.log, %error, "the shared log does not answer; trying again");
        tokio::time::sleep(OPEN_AGAIN).await;
    };
    let mut engine = loop {
        match options.log.open(&options.name).await {
            Ok(engine) => break engine,
            Err(error) => again(error).await,
        }
    };
    if let Some(requests) = engine.requests.clone() {
        options.figures.counts(requests);
    }
    engine.log = options.figures.measured(engine.log);
    let settings = loop {
        match engine.log.settings().await {
            Ok(settings) => break settings,
            Err(error) => again(error).await,
        }
    };
    for warning in settings.warnings {
        tracing::warn!(log = %options.log, "{warning}");
    }
    if !settings.unsafe_ones.is_empty() {
        return Err(StartError::Unsafe(settings.unsafe_ones));
    }
    let names = loop {
        // Peers count on it from now on, so it has what the checkpoint has.
        let (chain, flushed_upto) = (chain_of(options.replica.end()), options.replica.flushed_upto());
        let value = options.about().value(view::Role::Following, chain, flushed_upto);
        match Names::take(value, engine.register.clone()).await {
            Ok(names) => break names,
            Err(error) => again(error).await,
        }
    };
    Ok((engine, names))
}

struct Driver {
    /// The base of all times of the member.
    began: Moment,
    member: Member,
    engine: Engine,
    name: String,
    peers: Arc<dyn Peers>,
    names: Arc<Names>,
    inputs: mpsc::UnboundedReceiver<Input>,
    input: mpsc::UnboundedSender<Input>,
    applier: Applier,
    replica: Arc<Replica>,
    /// What an attempt to receive a checkpoint has left.
    left: restore::Left,
    /// The last entry that the thread of the tables was given, and the last one that it has applied.
    handed: u64,
    applied: watch::Sender<u64>,
    view: watch::Sender<View>,
    ended: watch::Sender<Option<Ended>>,
    term: Option<OpenTerm>,
    proposal: Option<Proposal>,
    takeovers: u64,
    /// The time at which the tables had the end of the log.
    caught_up_at: Duration,
    /// The tables have had the end of the log since the start.
    has_caught_up: bool,
    /// The last failure of the engine of the log, in words.
    trouble: Option<String>,
    role_log: RoleLog,
}

/// Chooses the changes of the role that are logged. While the shared log cannot be reached, a broker claims in vain twice a second.
struct RoleLog {
    role: view::Role,
    /// The steps of claims in vain, with their term and the time at which they were logged last.
    told: HashMap<(view::Role, u64), Duration>,
}

impl Default for RoleLog {
    fn default() -> Self {
        Self { role: view::Role::Following, told: HashMap::new() }
    }
}

impl RoleLog {
    /// Whether this change is logged.
    fn tells(&mut self, now: Duration, role: view::Role, term: u64) -> bool {
        use view::Role::{Claiming, Following};
        let before = std::mem::replace(&mut self.role, role);
        if !matches!((before, role), (Following, Claiming) | (Claiming, Following)) {
            self.told.clear();
            return true;
        }
        let is_new = self.told.get(&(role, term)).is_none_or(|told| now >= *told + CLAIM_TOLD_AGAIN);
        if is_new {
            self.told.insert((role, term), now);
        }
        is_new
    }
}

/// The term in which this broker leads.
struct OpenTerm {
    number: u64,
    guard: LeadGuard,
    ended: watch::Sender<Option<Leave>>,
}

impl Driver {
    fn new(
        options: Options,
        engine: Engine,
        names: Names,
    ) -> std::io::Result<(Self, Handle, mpsc::UnboundedReceiver<Term>)> {
        let about = options.about();
        let Options { member: config, replica, peers, log_keep, log_bytes_max, figures, .. } = options;
        let began = Moment::now();
        let (chain, known) = (chain_of(replica.end()), chain_of(replica.known()));
        let interval = MEMBER_INTERVAL.min(config.lease);
        let name = config.broker.clone();
        let mut member = Member::new(config, chain, Duration::ZERO).having_known(known);
        if !names.is_new() {
            // A living process with this name shows itself in this time.
            member.hold_claims_until(interval * 2);
        }
        let (input, inputs) = mpsc::unbounded_channel();
        let (terms, received) = mpsc::unbounded_channel();
        let (view, seen) = watch::channel(View::at_start(chain, replica.flushed_upto()));
        let (ended, has_ended) = watch::channel(None);
        let applier = Applier::start(replica.clone(), input.clone(), terms)?;
        let names = Arc::new(names);
        let handle = Handle { inputs: input.clone(), view: seen.clone(), ended: has_ended };
        let keeper = names::Keeper {
            names: names.clone(),
            about,
            interval,
            log_keep,
            log_bytes_max,
            figures,
            began,
            view: seen,
            handle: handle.clone(),
            replica: replica.clone(),
            log: engine.log.clone(),
        };
        tokio::spawn(keeper.run());
        let own = Self {
            began,
            member,
            engine,
            name,
            peers,
            names,
            inputs,
            input,
            applier,
            replica,
            left: restore::Left::default(),
            handed: chain.position,
            applied: watch::channel(chain.position).0,
            view,
            ended,
            term: None,
            proposal: None,
            takeovers: 0,
            caught_up_at: Duration::ZERO,
            has_caught_up: false,
            trouble: None,
            role_log: RoleLog::default(),
        };
        Ok((own, handle, received))
    }

    async fn run(mut self) {
        self.member.handle(Duration::ZERO, Event::Tick);
        loop {
            while let Some(action) = self.member.next_action() {
                self.act(action);
            }
            self.hold_guard();
            self.publish();
            let ended = match self.member.role() {
                Role::Ended(ending) => Some(Ended::from(ending.clone())),
                // A broker that was started in vain ends, and its exit code says why. One that has followed goes on, so that its
                // status shows it.
                Role::Diverged(divergence) if !self.has_caught_up => Some(Ended::Diverged(divergence.clone())),
                _ => None,
            };
            if let Some(ended) = ended {
                self.end(ended).await;
                return;
            }
            let wake = self.member.next_wake().map_or(Duration::from_secs(1), |wake| wake.saturating_sub(self.now()));
            let input = tokio::select! {
                biased;
                input = self.inputs.recv() => input,
                () = tokio::time::sleep(wake) => Some(Input::Event(Event::Tick)),
            };
            match input {
                Some(Input::NameInUse) => {
                    let name = self.name.clone();
                    self.end(Ended::NameInUse(name)).await;
                    return;
                }
                Some(input) => self.take(input),
                None => return, // it holds a sender itself
            }
        }
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn take(&mut self, input: Input) {
        let now = self.now();
        match input {
            Input::Event(event) => {
                self.note(&event);
                let is_caught_up = self.shows_the_end(&event);
                if let Event::Restored(_, Some(chain)) = &event {
                    self.handed = chain.position;
                }
                self.member.handle(now, event);
                if is_caught_up && !matches!(self.member.role(), Role::Diverged(_)) {
                    (self.caught_up_at, self.has_caught_up) = (now, true);
                }
            }
            Input::Propose { term, group, answer } => self.propose(now, term, group, answer),
            // A receiver that has gone needs no answer.
            Input::Ask(answer) => drop(answer.send(self.member.chain())),
            Input::Received(ticket, whole) => self.applier.restore(ticket, whole),
            Input::Applied(position) => drop(self.applied.send_replace(position)),
            Input::NameInUse => {}
        }
    }

    /// Whether this is the outcome of a read that the member waits for, and the log has no entry behind those of the member. The
    /// outcome of another read may be that of a log which lost its end.
    fn shows_the_end(&self, event: &Event) -> bool {
        let Event::LogRead(ticket, Ok(entries)) = event else { return false };
        let end = entries.last().map_or(0, |(position, _)| *position);
        self.member.awaits_read(*ticket) && end <= self.member.chain().position
    }

    /// Notes what the outcome of a call says about the engine of the log.
    fn note(&mut self, event: &Event) {
        let failed = match event {
            Event::LogRead(_, Ok(_)) => None,
            Event::LeaseRead(_, Ok(_)) | Event::LeaseWritten(_, Ok(_)) | Event::Appended(_, Ok(())) => None,
            Event::LogRead(_, Err(ReadError::Unavailable(error))) | Event::LeaseRead(_, Err(error)) => {
                Some(error.to_string())
            }
            Event::LeaseWritten(_, Err(WriteError::Unknown(words)))
            | Event::Appended(_, Err(AppendError::Unknown(words))) => Some(words.clone()),
            _ => return,
        };
        if let (Some(error), None) = (&failed, &self.trouble) {
            tracing::warn!(error, "a call to the shared log has failed");
        }
        self.trouble = failed;
    }

    fn propose(&mut self, now: Duration, term: u64, group: Bytes, answer: Proposal) {
        // Dropping the answer says that the term is over.
        if self.term.as_ref().is_none_or(|open| open.number != term) {
            return;
        }
        match self.member.propose(now, group) {
            Ok(()) => self.proposal = Some(answer),
            Err(ProposeError::TooLarge(error)) => {
                let error = StoreError::TooLarge { bytes: error.bytes, bytes_max: error.bytes_max };
                drop(answer.send(Err(error)));
            }
            Err(ProposeError::NotLeading) => {}
            // One thread proposes, and waits for the outcome.
            Err(ProposeError::Busy) => tracing::error!("a second group was proposed: this is a bug"),
        }
    }

    fn act(&mut self, action: Action) {
        let (log, register) = (self.engine.log.clone(), self.engine.register.clone());
        match action {
            Action::ReadLease(ticket) => self.call(async move {
                let read = timeout(CALL_MAX, register.read(lease::NAME)).await;
                Event::LeaseRead(ticket, read.unwrap_or_else(|_| Err(Unavailable(late()))))
            }),
            Action::WriteLease { ticket, expected, value } => self.call(async move {
                let written = timeout(CALL_MAX, register.write(lease::NAME, expected.as_ref(), value)).await;
                Event::LeaseWritten(ticket, written.unwrap_or_else(|_| Err(WriteError::Unknown(late()))))
            }),
            Action::ReadLog { ticket, from } => {
                let (mut applied, handed) = (self.applied.subscribe(), self.handed);
                self.call(async move {
                    // Bounds what waits for the thread of the tables. The sender outlives this task.
                    drop(applied.wait_for(|applied| *applied >= handed).await);
                    let read = timeout(CALL_MAX, log.read(from, READ_BYTES)).await;
                    Event::LogRead(ticket, read.unwrap_or_else(|_| Err(Unavailable(late()).into())))
                });
            }
            Action::Append { ticket, after, entry } => self.call(async move {
                let appended = timeout(CALL_MAX, log.append(after, entry)).await;
                Event::Appended(ticket, appended.unwrap_or_else(|_| Err(AppendError::Unknown(late()))))
            }),
            Action::AskPeers(ticket) => {
                let (names, peers) = (self.names.clone(), self.peers.clone());
                self.call(async move { Event::PeersAnswered(ticket, ask(&names, &*peers).await) });
            }
            Action::Restore { ticket, first } => {
                let (names, peers, replica) = (self.names.clone(), self.peers.clone(), self.replica.clone());
                let (input, left) = (self.input.clone(), self.left.clone());
                tokio::spawn(async move {
                    let received = restore::receive(&names, &*peers, &replica, &left, first).await;
                    // The thread of the tables says the rest.
                    drop(input.send(match received {
                        Some(whole) => Input::Received(ticket, whole),
                        None => Input::Event(Event::Restored(ticket, None)),
                    }));
                });
            }
            Action::Apply(entry, chain) => {
                self.handed = chain.position;
                self.applier.apply(entry, chain);
            }
            Action::Lead { term, former } => self.lead(term, former),
            Action::Committed(_) => {
                if let Some(answer) = self.proposal.take() {
                    drop(answer.send(Ok(mark_of(self.member.chain()))));
                }
            }
            Action::Refused(error) => {
                if let Some(answer) = self.proposal.take() {
                    let error = StoreError::TooLarge { bytes: error.bytes, bytes_max: error.bytes_max };
                    drop(answer.send(Err(error)));
                }
            }
            Action::EndService(reason) => self.end_service(reason),
            Action::Moved(role) => self.moved(&role),
        }
    }

    fn call(&self, call: impl Future<Output = Event> + Send + 'static) {
        let input = self.input.clone();
        tokio::spawn(async move { drop(input.send(Input::Event(call.await))) });
    }

    fn lead(&mut self, number: u64, former: Option<String>) {
        let guard = LeadGuard::lapsed(self.began);
        let (ended, receiver) = watch::channel(None);
        self.takeovers += 1;
        self.handed = self.member.chain().position;
        let end = mark_of(self.member.chain());
        // The head of an entry is the cluster's; the rest is a group.
        let entry_bytes_max = self.engine.log.entry_bytes_max().saturating_sub(HEAD_BYTES);
        let log = TermLog { number, end, entry_bytes_max, inputs: self.input.clone() };
        self.applier.lead(log, former, guard.clone(), receiver);
        self.term = Some(OpenTerm { number, guard, ended });
    }

    fn end_service(&mut self, reason: Leave) {
        // In this order: a group that the log refuses here answers nothing.
        if let Some(term) = self.term.take() {
            term.guard.end();
            term.ended.send_replace(Some(reason));
            tracing::warn!(?reason, term = term.number, "this broker stops leading");
        }
        self.proposal = None;
    }

    fn moved(&mut self, role: &Role) {
        match role {
            Role::Diverged(divergence) => {
                tracing::error!(
                    %divergence,
                    advice = ADVICE_DIVERGED,
                    "the shared log and a broker differ: this broker answers nothing"
                );
                self.write_out();
            }
            Role::Ended(ending) => tracing::info!(%ending, "this broker leaves the cluster"),
            role => {
                let (role, term) = (view::Role::from(role), self.member.chain().term);
                if self.role_log.tells(self.now(), role, term) {
                    tracing::info!(role = role.name(), term, "the role of this broker has changed");
                }
            }
        }
        // After a term the tables follow again, behind the last group that the engine has committed.
        if *role == Role::Following {
            self.applier.follow();
        }
    }

    /// Writes what the tables have to the disk: the log may never give it again. Before the tables had the end of the log they have
    /// nothing that it lacks.
    fn write_out(&self) {
        if self.has_caught_up {
            self.applier.write_out();
        }
    }

    fn hold_guard(&self) {
        if let Some(term) = &self.term {
            term.guard.hold_until(self.member.guard_until().unwrap_or_default());
        }
    }

    fn publish(&self) {
        let (role, chain, now) = (self.member.role(), self.member.chain(), self.now());
        let leads = matches!(role, Role::Leading | Role::Suspended);
        let leader = self.member.leader().map(|(name, address)| (name.to_owned(), address.to_owned()));
        let leader = if leads { Some(self.member.own_address()) } else { leader };
        let leader = leader.map(|(name, peer_address)| Leader { name, peer_address });
        let view = View {
            role: role.into(),
            term: chain.term,
            position: chain.position,
            hash: chain.hash,
            flushed_upto: self.applier.flushed_upto(),
            why_nobody_leads: match (role, &self.trouble, &leader) {
                (Role::Diverged(divergence), ..) => Some(divergence.to_string()),
                (Role::Leading, ..) => None,
                (_, Some(trouble), _) => Some(trouble.clone()),
                (_, None, None) => Some("no broker has the lease".to_owned()),
                (_, None, Some(_)) => None,
            },
            leader,
            lag: if leads { Duration::ZERO } else { now.saturating_sub(self.caught_up_at) },
            takeovers: self.takeovers,
        };
        self.view.send_if_modified(|before| {
            let is_other = *before != view;
            *before = view;
            is_other
        });
    }

    async fn end(mut self, ended: Ended) {
        self.end_service(Leave::Stopped);
        // Giving the lease back, and writing the member's value, are worth a moment.
        let (names, view, chain) = (self.names.clone(), self.view.borrow().clone(), self.member.chain());
        drop(timeout(CALL_MAX, async { tokio::join!(names.leave(&view, chain), self.last_calls()) }).await);
        self.write_out();
        self.applier.end();
        // Behind the tables, which may still be merged: after the word nothing writes to the folder, unless another holder does.
        let word = self.ended.clone();
        drop(self);
        word.send_replace(Some(ended));
    }

    /// Waits for the outcome of the call that gives the lease back.
    async fn last_calls(&mut self) {
        while self.member.has_lease_call() {
            match self.inputs.recv().await {
                Some(Input::Event(event @ Event::LeaseWritten(..))) => {
                    self.member.handle(self.began.elapsed(), event);
                }
                Some(_) => {}
                None => return,
            }
        }
    }
}

/// The last entries of all peers: as they say now, or else as their last value in the register says.
async fn ask(names: &Names, peers: &dyn Peers) -> Vec<PeerPosition> {
    let values = timeout(PEERS_MAX, names.others()).await.unwrap_or_default();
    let addresses = values.iter().map(|value| (value.broker.clone(), value.peer_address.clone())).collect();
    let mut found = timeout(PEERS_MAX, peers.positions(addresses)).await.unwrap_or_default();
    found.extend(values.iter().filter_map(|value| {
        let hash = Hash(value.hash.as_ref().try_into().ok()?);
        let chain = Chain { position: value.position, hash, term: value.term, level: 0 };
        Some(PeerPosition { peer: value.broker.clone(), chain })
    }));
    found
}

fn late() -> String {
    format!("no answer within {} seconds", CALL_MAX.as_secs())
}

/// The mark of a store whose last entry is the end of this chain.
pub fn mark_of(chain: Chain) -> Mark {
    let link = Link { hash: chain.hash.0, term: chain.term, level: chain.level };
    Mark { position: chain.position, link: (chain.position > 0).then_some(link) }
}

/// The end of the log that a store with this mark has.
pub fn chain_of(mark: Mark) -> Chain {
    match mark.link {
        Some(Link { hash, term, level }) => Chain { position: mark.position, hash: Hash(hash), term, level },
        None => Chain::EMPTY,
    }
}

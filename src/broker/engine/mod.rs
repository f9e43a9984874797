//! The pipeline's core: commands in, durable changes, then acts.
//!
//! Owns mailboxes, holders and timers in memory, the sequence, and the order of it all. Has no clock, thread or socket:
//! time comes with each call, randomness from the id source, and what goes out goes into channels. A test or a simulator
//! drives it as the broker's thread does:
//!
//! 1. [`Engine::take`] for each command: computes a change over what is stored and what the group has changed so far;
//! 2. [`Engine::tick`]: the same for whatever is overdue;
//! 3. [`Engine::finish`]: commits the group with one sync, and only then answers, delivers and sets timers.

mod acks;
mod audit;
mod clock;
mod dead_letters;
mod drafts;
mod enrollment;
mod expiry;
mod holders;
mod keys;
mod latest;
mod limits;
mod messages;
mod participants;
mod permits;
mod presence;
mod retention;
mod steps;
mod task_removal;
mod watchers;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    ops::Bound,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use prost::Message as _;
use tokio::sync::{mpsc, watch};

use self::{
    clock::RunningClock,
    drafts::{Act, Group},
    expiry::Expiring,
    holders::Holder,
    latest::Latest,
    limits::Depth,
    presence::Unseen,
    retention::Removals,
};
use super::{
    BrokerError, BrokerIdentity, Event, Outcome, Refused, Reply, Settings,
    access::{Access, Caller},
    directory::{Directory, Entry},
    refused,
};
use crate::{
    domain::{
        handoff::Handoff,
        mailbox::{HolderId, Mailbox},
    },
    envelope::VerifiedEnvelope,
    ids::{AgentId, IdMap, IdSet, IdSource, MessageId, TaskId},
    proto::{storage, v1},
    records::{self, AgentRecord, AuditAct, InvitationRecord, Kept, ParkReason},
    store::{Key, OpenError, Order, Store, Table},
    time::Timestamp,
};

pub use self::keys::{KEYS_MAX, KeyChange, VOUCHERS_MAX};

/// Where a watcher's updates go. One who lets them pile up until the channel is full is not told any more: the channel
/// closes before the handoff is final.
pub type Updates = mpsc::Sender<Result<Arc<Handoff>, Refused>>;

/// Something to be done.
#[derive(Debug)]
pub enum Command {
    /// Take an envelope.
    Submit {
        /// The envelope.
        envelope: Box<VerifiedEnvelope>,
        /// Who waits for the receipt.
        reply: Reply,
    },
    /// Say what became of a delivery.
    Acknowledge {
        /// Whose mailbox.
        agent: AgentId,
        /// Which delivery.
        delivery_id: String,
        /// What became of it.
        fate: Fate,
        /// Who waits for the answer.
        reply: Reply,
    },
    /// Begin to hand out an agent's mail. With no credit yet.
    Open {
        /// The new holder's id, never used before.
        holder: HolderId,
        /// Whose mail.
        agent: AgentId,
        /// How its leases end.
        kind: HolderKind,
        /// Where deliveries go.
        events: mpsc::UnboundedSender<Event>,
    },
    /// Set how many deliveries a holder takes at a time.
    Credit {
        /// Which holder.
        holder: HolderId,
        /// The most that are handed out and not acknowledged.
        outstanding_max: u32,
        /// Who waits for the answer.
        reply: Option<Reply>,
    },
    /// Stop handing out to this holder.
    Close {
        /// Which holder.
        holder: HolderId,
    },
    /// An agent says how it is.
    Heartbeat {
        /// On which session.
        holder: HolderId,
        /// Who.
        agent: AgentId,
        /// What it says.
        heartbeat: v1::Heartbeat,
        /// Who waits for the answer.
        reply: Option<Reply>,
    },
    /// Register an agent, or change its card.
    Register {
        /// The agent.
        entry: Box<Entry>,
        /// Who wants it.
        caller: Caller,
        /// The invitation that it comes with, or nothing.
        invitation: String,
        /// Who waits for the answer.
        reply: Reply,
    },
    /// Let somebody register once.
    Invite {
        /// The invitation.
        invitation: String,
        /// What it is good for.
        record: InvitationRecord,
        /// Who wants it.
        caller: Caller,
        /// Who waits for the answer.
        reply: Reply,
    },
    /// Change an agent's keys.
    ChangeKeys {
        /// Whose.
        agent: AgentId,
        /// How.
        change: KeyChange,
        /// Who wants it.
        caller: Caller,
        /// Who waits for the answer.
        reply: Reply,
    },
    /// Put an act on record that changes nothing that is stored.
    Note {
        /// The act.
        act: AuditAct,
    },
    /// Send a handoff as it is now, and after each step until it is final.
    Watch {
        /// Which handoff.
        handoff: MessageId,
        /// Where to.
        updates: Updates,
    },
    /// Follow the length of a task's custody log.
    WatchTask {
        /// Which task.
        task: TaskId,
        /// Where the length goes. Whoever is slow sees the latest, and reads the entries from the store.
        lengths: watch::Sender<u64>,
    },
    /// Put a dead letter on its way again.
    Redrive {
        /// Which.
        dead_letter: u64,
        /// To whom, if not to whom it was to go.
        to: Option<AgentId>,
        /// Who wants it.
        caller: Caller,
        /// Who waits for the answer.
        reply: Reply,
    },
    /// Give a dead letter up for good.
    Discard {
        /// Which.
        dead_letter: u64,
        /// Who wants it.
        caller: Caller,
        /// Why.
        reason_text: String,
        /// Who waits for the answer.
        reply: Reply,
    },
    /// Keep what an agent that has proven who it is sent, and was refused.
    KeepRefused {
        /// Who sent it.
        agent: AgentId,
        /// What it sent.
        raw: Bytes,
        /// Why it was refused.
        reason: ParkReason,
        /// In words.
        text: String,
    },
    /// Tell every session that the broker is about to stop.
    GoAway,
}

/// What became of a delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// It is taken.
    Acked,
    /// It can never be taken.
    Poison {
        /// In words.
        text: String,
    },
    /// It could not be taken this time.
    Failed {
        /// In words.
        text: String,
        /// When to deliver it again, if the agent says.
        retry_after: Option<Duration>,
    },
    /// The agent is about to stop.
    Shutdown {
        /// In words.
        text: String,
        /// When to deliver it again, if the agent says.
        retry_after: Option<Duration>,
    },
    /// It needs more time.
    Extend {
        /// How much, from now; the ack wait if the agent does not say.
        extension: Option<Duration>,
    },
}

/// How the leases of a holder end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HolderKind {
    /// A session: they end with it.
    Session,
    /// One call of `Receive`: they outlive it, since the acks come by other calls.
    Receive {
        /// After so many deliveries the call is done; `None`: never.
        deliveries_max: Option<u32>,
    },
}

/// Timers that fire in one tick: after a long time without a broker many are overdue.
const TIMERS_A_TICK: usize = 1024;
/// Records that are read at once where there may be very many.
const LOADED_AT_ONCE: usize = 2048;

/// Why an engine cannot go on yet.
#[derive(Debug, thiserror::Error)]
pub enum RecoverError {
    /// Its store cannot be opened again.
    #[error(transparent)]
    Store(#[from] OpenError),
    /// What is stored cannot be read.
    #[error("failed to read what is stored: {0}")]
    Read(#[from] BrokerError),
}

/// The pipeline's core. See the module.
pub struct Engine {
    store: Arc<dyn Store>,
    directory: Arc<Directory>,
    identity: BrokerIdentity,
    settings: Arc<Settings>,
    ids: Arc<dyn IdSource>,
    /// The latest time that it was told.
    clock: RunningClock,
    next_sequence: u64,
    /// The ids of messages with a timestamp up to this one may be removed.
    message_ids_gone: Timestamp,
    group: Group,
    latest: Latest,
    /// The mail of agents with a holder or a lease. Everybody else's is only in the store.
    mailboxes: IdMap<AgentId, Mailbox>,
    /// Mailboxes that are not loaded to their end, and the place of the first letter that may be missing.
    loading: BTreeMap<AgentId, u64>,
    /// The one that was loaded from last.
    loaded_last: Option<AgentId>,
    holders: IdMap<HolderId, Holder>,
    holders_of: IdMap<AgentId, Vec<HolderId>>,
    /// When each mailbox wants to be looked at next.
    mailbox_alarms: BTreeSet<(Timestamp, AgentId)>,
    alarm_of: IdMap<AgentId, Timestamp>,
    /// Mail that was about to be handed out and has expired.
    expired_at_hand_out: Vec<(AgentId, u64)>,
    /// No mail expires before this running time; looking then may find that none does yet.
    next_mail_expiry: Option<Timestamp>,
    /// A timer of each mailbox that somebody wrote to since the start, if it has one; by the running time.
    mail_timer_of: IdMap<AgentId, Timestamp>,
    /// The mailbox that is being looked through for what has expired.
    expiring: Option<Expiring>,
    /// By the running time.
    handoff_timers: BTreeSet<(Timestamp, MessageId)>,
    /// How many handoffs each agent has asked for that are open.
    open_of: IdMap<AgentId, u32>,
    /// How much mail waits for agents that somebody wrote to since the start.
    depths: IdMap<AgentId, Depth>,
    watchers: IdMap<MessageId, Vec<Updates>>,
    task_watchers: IdMap<TaskId, Vec<watch::Sender<u64>>>,
    /// When to see whether an agent is gone; one for each that was seen and is not gone.
    presence_alarms: BTreeSet<(Timestamp, AgentId)>,
    presence_alarm_of: IdSet<AgentId>,
    /// Agents that are gone, and the place from which on their mail is still to be looked at.
    gone: VecDeque<(AgentId, u64)>,
    unseen: Unseen,
    /// How many refused envelopes of each agent were kept since the start.
    refused_kept: IdMap<AgentId, dead_letters::RefusedKept>,
    removals: Removals,
    /// A commit failed: nobody knows what is on disk, and nothing is taken any more.
    failed: bool,
}

impl Engine {
    /// An engine over what is stored.
    pub fn open(
        store: Arc<dyn Store>,
        identity: BrokerIdentity,
        settings: Arc<Settings>,
        ids: Arc<dyn IdSource>,
        now: Timestamp,
    ) -> Result<Self, BrokerError> {
        let agents = load_agents(&*store)?;
        let directory = Arc::new(Directory::new(&identity, settings.presence_rule(now), agents));
        Self::over(store, directory, identity, settings, ids, (RunningClock::default(), now))
    }

    fn over(
        store: Arc<dyn Store>,
        directory: Arc<Directory>,
        identity: BrokerIdentity,
        settings: Arc<Settings>,
        ids: Arc<dyn IdSource>,
        (known, now): (RunningClock, Timestamp),
    ) -> Result<Self, BrokerError> {
        let stored = match store.get(&sequence_key())? {
            Some(record) => storage::SequenceRecord::decode(record.value).unwrap_or_default(),
            None => storage::SequenceRecord::default(),
        };
        let stored_at = Timestamp::from_unix_nanoseconds(stored.running_at);
        let stored_clock = RunningClock::at(stored_at, Duration::from_nanos(stored.set_back));
        let clock = known.later(stored_clock).showing(now);
        let (handoff_timers, open_of) = load_timers(&*store)?;
        let unseen = Unseen::WaitUntil(now.plus(settings.presence_lease));
        let removals = Removals::new(&settings.retention, now);
        Ok(Self {
            store,
            directory,
            identity,
            settings,
            ids,
            clock,
            next_sequence: stored.last + 1,
            message_ids_gone: Timestamp::from_unix_nanoseconds(stored.message_ids_gone),
            group: Group::default(),
            latest: Latest::default(),
            mailboxes: IdMap::default(),
            loading: BTreeMap::new(),
            loaded_last: None,
            holders: IdMap::default(),
            holders_of: IdMap::default(),
            mailbox_alarms: BTreeSet::new(),
            alarm_of: IdMap::default(),
            expired_at_hand_out: Vec::new(),
            next_mail_expiry: Some(Timestamp::default()),
            mail_timer_of: IdMap::default(),
            expiring: None,
            handoff_timers,
            open_of,
            depths: IdMap::default(),
            watchers: IdMap::default(),
            task_watchers: IdMap::default(),
            presence_alarms: BTreeSet::new(),
            presence_alarm_of: IdSet::default(),
            gone: VecDeque::new(),
            unseen,
            refused_kept: IdMap::default(),
            removals,
            failed: false,
        })
    }

    /// Whether a commit has failed, and nothing is taken until [`Self::recover`].
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    /// After a commit that failed: begins again with what is on disk, as after a restart. Every session is told to come
    /// back.
    pub fn recover(&mut self, now: Timestamp) -> Result<(), RecoverError> {
        self.store.recover()?;
        let before = self.begin_again(now)?;
        for updates in before.watchers.into_values().flatten() {
            drop(updates.try_send(Err(refused(BrokerError::StoreUnavailable))));
        }
        Ok(())
    }

    fn access(&self) -> Access<'_> {
        Access { policies: &self.settings.policies, directory: &self.directory }
    }

    /// Who is registered and who is there.
    pub fn directory(&self) -> &Arc<Directory> {
        &self.directory
    }

    /// How many handoffs are open.
    pub fn open_handoffs(&self) -> usize {
        self.open_of.values().map(|open| *open as usize).sum()
    }

    /// Takes one command into the group.
    pub fn take(&mut self, command: Command, now: Timestamp) {
        let now = self.keep_time(now);
        match command {
            Command::Submit { envelope, reply } => {
                self.seen(&envelope.header().sender, now);
                let outcome = self.submit(&envelope, now);
                log_refusal(&envelope, &outcome);
                self.group.answer(reply, outcome);
            }
            Command::Acknowledge { agent, delivery_id, fate, reply } => {
                self.seen(&agent, now);
                let outcome = self.acknowledge(&agent, &delivery_id, &fate, now);
                self.group.answer(reply, outcome);
            }
            Command::Register { entry, caller, invitation, reply } => {
                let outcome = self.register(*entry, &caller, &invitation, now);
                self.group.answer(reply, outcome);
            }
            Command::Invite { invitation, record, caller, reply } => {
                let outcome = self.invite(&invitation, &record, &caller, now);
                self.group.answer(reply, outcome);
            }
            Command::ChangeKeys { agent, change, caller, reply } => {
                let outcome = self.change_keys(&agent, &change, &caller, now);
                self.group.answer(reply, outcome);
            }
            Command::Note { act } => self.note(act, now),
            Command::Open { holder, agent, kind, events } => {
                self.open_holder(holder, &agent, kind, events);
                self.seen(&agent, now);
            }
            Command::Credit { holder, outstanding_max, reply } => {
                self.credit(holder, outstanding_max, now);
                self.answer_credit(holder, reply);
            }
            Command::Close { holder } => self.close_holder(holder, now),
            Command::Heartbeat { holder, agent, heartbeat, reply } => {
                self.take_heartbeat(&agent, heartbeat, now);
                self.answer_credit(holder, reply);
            }
            Command::Watch { handoff, updates } => self.group.watches.push((handoff, updates)),
            Command::WatchTask { task, lengths } => self.watch_task(task, lengths),
            Command::Redrive { dead_letter, to, caller, reply } => {
                let outcome = self.redrive(dead_letter, to.as_ref(), &caller, now);
                self.group.answer(reply, outcome);
            }
            Command::Discard { dead_letter, caller, reason_text, reply } => {
                let outcome = self.discard(dead_letter, &caller, &reason_text, now);
                self.group.answer(reply, outcome);
            }
            Command::KeepRefused { agent, raw, reason, text } => self.keep_refused(&agent, raw, (reason, &text), now),
            Command::GoAway => self.send_everybody_away(now),
        }
    }

    /// Takes whatever is overdue into the group.
    pub fn tick(&mut self, now: Timestamp) {
        let now = self.keep_time(now);
        if self.failed {
            return;
        }
        let running = self.clock.running();
        let due = self.handoff_timers.iter().take_while(|(at, _)| *at <= running);
        let due: Vec<_> = due.take(TIMERS_A_TICK).copied().collect();
        for (at, handoff) in due {
            match self.pass_time(handoff, now) {
                Ok(true) => {}
                Ok(false) => self.set_timer_anew(at, handoff),
                Err(error) => tracing::error!(%handoff, %error, "failed to let time pass for a handoff"),
            }
        }
        let due = self.mailbox_alarms.iter().take_while(|(at, _)| *at <= now);
        let due: Vec<_> = due.take(TIMERS_A_TICK).cloned().collect();
        for (_, agent) in due {
            self.end_overdue_leases(&agent, now);
            self.group.touched.insert(agent);
        }
        self.load_more();
        self.park_expired(now);
        self.look_for_the_gone(now);
        self.remove_what_is_over(now);
    }

    /// A timer has fired too early: what is loaded at a start may be, and a command of the group in hand may have moved it.
    fn set_timer_anew(&mut self, at: Timestamp, handoff: MessageId) {
        let due = match self.deadline_of(handoff) {
            Ok(due) => due,
            Err(error) => return tracing::error!(%handoff, %error, "failed to read a handoff whose timer has fired"),
        };
        self.handoff_timers.remove(&(at, handoff));
        match due {
            Some(due) if due > self.clock.running() => drop(self.handoff_timers.insert((due, handoff))),
            Some(_) => tracing::error!(%handoff, "a timer fired for a handoff that has nothing to wait for"),
            None => {} // it has ended in the group in hand
        }
    }

    /// The running time at which something happens to a handoff by itself; `None`: it has ended, or there is none.
    fn deadline_of(&mut self, handoff: MessageId) -> Result<Option<Timestamp>, BrokerError> {
        let Some(stored) = self.known_handoff(&mut self.draft(), handoff)? else { return Ok(None) };
        let task = self.known_task(&mut self.draft(), &stored.value.handoff.task)?;
        let followed = task.map_or(Duration::ZERO, |task| task.value.set_back);
        Ok(stored.value.handoff.next_deadline().map(|at| at.plus(followed)))
    }

    /// When [`Self::tick`] has something to do next, by the clock.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        if self.failed {
            return None;
        }
        if !self.expired_at_hand_out.is_empty() || !self.loading.is_empty() {
            return Some(Timestamp::default());
        }
        let handoff = self.handoff_timers.first().map(|(at, _)| self.clock.shows(*at));
        let mail_expiry = self.next_mail_expiry.map(|at| self.clock.shows(at));
        let mailbox = self.mailbox_alarms.first().map(|(at, _)| *at);
        let presence = self.next_presence_deadline();
        [handoff, mailbox, presence, mail_expiry, self.next_removal()].into_iter().flatten().min()
    }

    /// Commits the group, then acts. Nothing is answered or delivered before the commit is synced.
    pub fn finish(&mut self, now: Timestamp) {
        let now = self.keep_time(now);
        let accepted = self.keep_accepted(now);
        let mut group = self.group.take();
        if let Some((key, ids)) = &accepted {
            group.put_unconditionally(key.clone(), ids.clone());
        }
        if !group.changes.is_empty() {
            group.put_unconditionally(sequence_key(), self.sequence_value());
        }
        let committed = if group.changes.is_empty() {
            Ok(Vec::new())
        } else {
            self.store.commit(std::mem::take(&mut group.changes))
        };
        let applied = match committed {
            Ok(applied) => applied,
            Err(error) => {
                self.failed = true;
                return group.refuse_all(BrokerError::from(error));
            }
        };
        if let Some((key, _)) = accepted {
            self.kept(Kept::Messages, key, now);
        }
        let mut touched = group.touched;
        for ticket in group.tickets {
            let conflict = ticket.changes.clone().find_map(|index| applied[index].as_ref().err());
            if let Some(conflict) = conflict {
                tracing::error!(%conflict, "a change was computed from something that has changed");
                self.latest = Latest::default();
                ticket.refuse(BrokerError::Conflict);
                continue;
            }
            for act in ticket.acts {
                self.act(act, &mut touched, now);
            }
            if let Some((reply, outcome)) = ticket.answer {
                reply.send(outcome);
            }
        }
        for (handoff, updates) in group.watches {
            self.watch(handoff, updates);
        }
        for agent in touched {
            self.hand_out(&agent, now);
        }
    }

    fn sequence_value(&self) -> Bytes {
        storage::SequenceRecord {
            last: self.next_sequence - 1,
            running_at: self.clock.running().unix_nanoseconds(),
            set_back: u64::try_from(self.clock.set_back.as_nanos()).unwrap_or(u64::MAX),
            message_ids_gone: self.message_ids_gone.unix_nanoseconds(),
        }
        .encode_to_vec()
        .into()
    }

    fn act(&mut self, act: Act, touched: &mut BTreeSet<AgentId>, now: Timestamp) {
        match act {
            Act::LetterStored { agent, letter } => {
                if let Some(depth) = self.depths.get_mut(&agent) {
                    depth.one_more();
                }
                let is_to_be_loaded = self.loading.get(&agent).is_some_and(|next| *next <= letter.sequence);
                if let Some(mailbox) = self.mailboxes.get_mut(&agent).filter(|_| !is_to_be_loaded) {
                    mailbox.add(letter);
                    touched.insert(agent);
                }
            }
            Act::LetterRemoved { agent, place } => {
                if let Some(depth) = self.depths.get_mut(&agent) {
                    depth.one_less(place);
                }
                let ended = self.mailboxes.get_mut(&agent).and_then(|mailbox| mailbox.remove(place));
                self.lease_ended(ended);
                touched.insert(agent);
            }
            Act::LetterPutBack { agent, letter } => {
                let ended = self.mailboxes.get_mut(&agent).and_then(|mailbox| mailbox.put_back(letter));
                self.lease_ended(ended);
                touched.insert(agent);
            }
            Act::MailTimer { agent, at: Some(at) } => {
                self.mail_timer_of.insert(agent, at);
                self.next_mail_expiry = Some(self.next_mail_expiry.map_or(at, |next| next.min(at)));
            }
            Act::MailTimer { agent, at: None } => drop(self.mail_timer_of.remove(&agent)),
            Act::Timer { handoff, sender, before, after } => {
                match (before, after) {
                    (None, Some(_)) => *self.open_of.entry(sender).or_default() += 1,
                    (Some(_), None) => self.one_less_open(&sender),
                    (None, None) | (Some(_), Some(_)) => {}
                }
                before.map(|at| self.handoff_timers.remove(&(at, handoff)));
                after.map(|at| self.handoff_timers.insert((at, handoff)));
            }
            Act::HandoffMoved(handoff) => {
                log_move(&handoff);
                self.tell_watchers(&handoff);
            }
            Act::TaskMoved { task, length } => self.tell_task_watchers(&task, length),
            Act::TaskRemoved(task) => drop(self.task_watchers.remove(&task)),
            Act::Kept { kind, key, since } => self.kept(kind, key, since),
            Act::OnRecord { at } => self.act_recorded(at),
            Act::AgentStored(entry) => self.directory.put(*entry),
            Act::KeyRevoked(agent) => self.send_away(|holder| holder.is_of(&agent), now),
        }
    }
}

/// The one line about an envelope that was verified and not taken.
fn log_refusal(envelope: &VerifiedEnvelope, outcome: &Outcome) {
    let Err(refusal) = outcome else { return };
    let header = envelope.header();
    let (task, handoff) = (header.task.as_ref().map(|task| task.as_str()), header.correlation.map(|id| id.to_string()));
    tracing::info!(
        reason = refusal.code().name(), agent = %header.sender, message_id = %header.message_id, task, handoff,
        "refused an envelope: {refusal}"
    );
}

/// The line about a handoff that has ended; its other steps are for those who look closely.
fn log_move(handoff: &Handoff) {
    let Handoff { id, task, sender, candidate, state, .. } = handoff;
    let state = state.name();
    if handoff.state.is_final() && !handoff.let_go {
        tracing::info!(handoff = %id, %task, %sender, %candidate, state, "a handoff has ended");
    } else {
        tracing::debug!(handoff = %id, %task, %sender, %candidate, state, "a handoff has moved");
    }
}

fn sequence_key() -> Key {
    Key { table: Table::Meta, key: "sequence".into() }
}

fn load_agents(store: &dyn Store) -> Result<Vec<Entry>, BrokerError> {
    use std::ops::Bound::Unbounded;
    let stored = store.scan(Table::Agents, (Unbounded, Unbounded), Order::Ascending, usize::MAX)?;
    stored.into_iter().map(|(_, record)| Entry::parse(AgentRecord::decode(&record.value)?)).collect()
}

type OpenHandoffs = (BTreeSet<(Timestamp, MessageId)>, IdMap<AgentId, u32>);

/// The timers of open handoffs, and how many each agent has open.
fn load_timers(store: &dyn Store) -> Result<OpenHandoffs, BrokerError> {
    let (mut timers, mut open_of) = (BTreeSet::new(), IdMap::default());
    let (mut from, end) = records::handoff_timers();
    loop {
        let stored = store.scan(Table::Timers, (from, end.clone()), Order::Ascending, LOADED_AT_ONCE)?;
        let Some((last, _)) = stored.last() else { return Ok((timers, open_of)) };
        from = Bound::Excluded(last.clone());
        for (key, record) in stored {
            let (timer, sender) = records::parse_handoff_timer(&key, &record.value)?;
            timers.insert(timer);
            *open_of.entry(sender).or_default() += 1;
        }
    }
}

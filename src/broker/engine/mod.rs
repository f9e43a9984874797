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
mod drafts;
mod holders;
mod messages;
mod steps;

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use prost::Message as _;
use tokio::sync::mpsc;

use self::{
    drafts::{Act, Group},
    holders::Holder,
};
use super::{
    Answer, BrokerError, BrokerIdentity, Event, Outcome, Refused, Reply, Settings,
    directory::{Directory, Entry},
    refused,
};
use crate::{
    domain::{
        handoff::Handoff,
        mailbox::{HolderId, Mailbox},
    },
    envelope::VerifiedEnvelope,
    ids::{AgentId, IdSource, MessageId},
    proto::{storage, v1},
    records::{self, AgentRecord},
    store::{Key, Order, Store, Table},
    time::Timestamp,
};

/// Where a watcher's updates go. Not bounded by itself: the steps of a handoff are.
pub type Updates = mpsc::UnboundedSender<Result<Arc<Handoff>, Refused>>;

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
        /// Whether the caller may change the card of an agent that is registered.
        may_change: bool,
        /// Who waits for the answer.
        reply: Reply,
    },
    /// Send a handoff as it is now, and after each step until it is final.
    Watch {
        /// Which handoff.
        handoff: MessageId,
        /// Where to.
        updates: Updates,
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
        /// When to deliver it again, if the agent says.
        retry_after: Option<Duration>,
    },
    /// The agent is about to stop.
    Shutdown {
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

/// The pipeline's core. See the module.
pub struct Engine {
    store: Arc<dyn Store>,
    directory: Arc<Directory>,
    identity: BrokerIdentity,
    settings: Arc<Settings>,
    ids: Arc<dyn IdSource>,
    next_sequence: u64,
    group: Group,
    /// The mail of agents with a holder or a lease. Everybody else's is only in the store.
    mailboxes: HashMap<AgentId, Mailbox>,
    holders: HashMap<HolderId, Holder>,
    holders_of: HashMap<AgentId, Vec<HolderId>>,
    /// When each mailbox wants to be looked at next.
    mailbox_alarms: BTreeSet<(Timestamp, AgentId)>,
    alarm_of: HashMap<AgentId, Timestamp>,
    /// Mail that was about to be handed out and has expired.
    expired: Vec<(AgentId, u64)>,
    handoff_timers: BTreeSet<(Timestamp, MessageId)>,
    watchers: HashMap<MessageId, Vec<Updates>>,
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
    ) -> Result<Self, BrokerError> {
        let agents = load_agents(&*store)?;
        let directory = Arc::new(Directory::new(&identity, agents));
        let next_sequence = match store.get(&sequence_key())? {
            Some(record) => storage::SequenceRecord::decode(record.value).map_or(0, |stored| stored.last) + 1,
            None => 1,
        };
        let handoff_timers = load_timers(&*store)?;
        Ok(Self {
            store,
            directory,
            identity,
            settings,
            ids,
            next_sequence,
            group: Group::default(),
            mailboxes: HashMap::new(),
            holders: HashMap::new(),
            holders_of: HashMap::new(),
            mailbox_alarms: BTreeSet::new(),
            alarm_of: HashMap::new(),
            expired: Vec::new(),
            handoff_timers,
            watchers: HashMap::new(),
            failed: false,
        })
    }

    /// Who is registered and who is there.
    pub fn directory(&self) -> &Arc<Directory> {
        &self.directory
    }

    /// How many handoffs are open.
    pub fn open_handoffs(&self) -> usize {
        self.handoff_timers.len()
    }

    /// Takes one command into the group.
    pub fn take(&mut self, command: Command, now: Timestamp) {
        match command {
            Command::Submit { envelope, reply } => {
                let outcome = self.submit(&envelope, now);
                log_refusal(&envelope, &outcome);
                self.group.answer(reply, outcome);
            }
            Command::Acknowledge { agent, delivery_id, fate, reply } => {
                let outcome = self.acknowledge(&agent, &delivery_id, &fate, now);
                self.group.answer(reply, outcome);
            }
            Command::Register { entry, may_change, reply } => {
                let outcome = self.register(*entry, may_change, now);
                self.group.answer(reply, outcome);
            }
            Command::Open { holder, agent, kind, events } => self.open_holder(holder, &agent, kind, events),
            Command::Credit { holder, outstanding_max, reply } => {
                self.credit(holder, outstanding_max);
                self.answer_credit(holder, reply);
            }
            Command::Close { holder } => self.close_holder(holder),
            Command::Heartbeat { holder, agent, heartbeat, reply } => {
                self.directory.change_presence(&agent, |presence| presence.heartbeat = Some((heartbeat, now)));
                self.answer_credit(holder, reply);
            }
            Command::Watch { handoff, updates } => self.group.watches.push((handoff, updates)),
            Command::GoAway => self.send_everybody_away(),
        }
    }

    /// Takes whatever is overdue into the group.
    pub fn tick(&mut self, now: Timestamp) {
        if self.failed {
            return;
        }
        let due: Vec<_> = self.handoff_timers.iter().take_while(|(at, _)| *at <= now).copied().collect();
        for (at, handoff) in due {
            match self.pass_time(handoff, now) {
                Ok(true) => {}
                Ok(false) => {
                    tracing::error!(%handoff, "a timer fired for a handoff that has nothing to wait for");
                    self.handoff_timers.remove(&(at, handoff));
                }
                Err(error) => tracing::error!(%handoff, %error, "failed to let time pass for a handoff"),
            }
        }
        let due: Vec<_> = self.mailbox_alarms.iter().take_while(|(at, _)| *at <= now).cloned().collect();
        for (_, agent) in due {
            self.end_overdue_leases(&agent, now);
            self.group.touched.insert(agent);
        }
        for (agent, place) in std::mem::take(&mut self.expired) {
            self.park_expired(&agent, place, now);
        }
    }

    /// When [`Self::tick`] has something to do next.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        if self.failed {
            return None;
        }
        if !self.expired.is_empty() {
            return Some(Timestamp::default());
        }
        let handoff = self.handoff_timers.first().map(|(at, _)| *at);
        let mailbox = self.mailbox_alarms.first().map(|(at, _)| *at);
        handoff.into_iter().chain(mailbox).min()
    }

    /// Commits the group, then acts. Nothing is answered or delivered before the commit is synced.
    pub fn finish(&mut self, now: Timestamp) {
        let mut group = std::mem::take(&mut self.group);
        if !group.changes.is_empty() {
            group.put_unconditionally(sequence_key(), sequence_value(self.next_sequence - 1));
        }
        let committed = if group.changes.is_empty() { Ok(Vec::new()) } else { self.store.commit(&group.changes) };
        let applied = match committed {
            Ok(applied) => applied,
            Err(error) => {
                self.failed = true;
                return group.refuse_all(BrokerError::from(error));
            }
        };
        let mut touched = group.touched;
        for ticket in group.tickets {
            let conflict = ticket.changes.clone().find_map(|index| applied[index].as_ref().err());
            if let Some(conflict) = conflict {
                tracing::error!(%conflict, "a change was computed from something that has changed");
                ticket.refuse(BrokerError::Conflict);
                continue;
            }
            for act in ticket.acts {
                self.act(act, &mut touched);
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

    fn act(&mut self, act: Act, touched: &mut BTreeSet<AgentId>) {
        match act {
            Act::LetterStored { agent, letter } => {
                if let Some(mailbox) = self.mailboxes.get_mut(&agent) {
                    mailbox.add(letter);
                    touched.insert(agent);
                }
            }
            Act::LetterRemoved { agent, place } => {
                let ended = self.mailboxes.get_mut(&agent).and_then(|mailbox| mailbox.remove(place));
                self.lease_ended(ended);
                touched.insert(agent);
            }
            Act::LetterPutBack { agent, letter } => {
                let ended = self.mailboxes.get_mut(&agent).and_then(|mailbox| mailbox.put_back(letter));
                self.lease_ended(ended);
                touched.insert(agent);
            }
            Act::Timer { handoff, before, after } => {
                before.map(|at| self.handoff_timers.remove(&(at, handoff)));
                after.map(|at| self.handoff_timers.insert((at, handoff)));
            }
            Act::HandoffMoved(handoff) => {
                log_move(&handoff);
                self.tell_watchers(&handoff);
            }
            Act::AgentStored(entry) => self.directory.put(*entry),
        }
    }

    fn register(&mut self, mut entry: Entry, may_change: bool, now: Timestamp) -> Outcome {
        let id = entry.id();
        let mut draft = self.draft();
        let key = AgentRecord::key(&id);
        let stored = self.read(&mut draft, &key).map_err(refused)?;
        let mut record = AgentRecord { created_at: now, updated_at: now, ..entry.record.clone() };
        if let Some(stored) = &stored {
            let known = AgentRecord::decode(&stored.value).map_err(|error| refused(BrokerError::from(error)))?;
            if known.card == record.card {
                return Ok(Answer::Registered);
            }
            if !may_change {
                return Err(refused(BrokerError::AgentExists { agent: id }));
            }
            record.created_at = known.created_at;
        }
        draft.put(key, record.encode(), stored.as_ref());
        entry.record = record;
        draft.acts.push(Act::AgentStored(Box::new(entry)));
        self.seal(draft);
        Ok(Answer::Registered)
    }

    fn watch(&mut self, id: MessageId, updates: Updates) {
        let found = self.store.get(&records::HandoffRecord::key(id)).map_err(BrokerError::from);
        let decoded = found.and_then(|record| match record {
            Some(record) => Ok(records::HandoffRecord::decode(&record.value)?.handoff),
            None => Err(BrokerError::HandoffUnknown { handoff: id.to_string() }),
        });
        let handoff = match decoded {
            Ok(handoff) => Arc::new(handoff),
            Err(error) => return drop(updates.send(Err(refused(error)))),
        };
        let open = !handoff.state.is_final();
        if updates.send(Ok(handoff)).is_ok() && open {
            self.watchers.entry(id).or_default().push(updates);
        }
    }

    fn tell_watchers(&mut self, handoff: &Arc<Handoff>) {
        let Some(watchers) = self.watchers.get_mut(&handoff.id) else { return };
        watchers.retain(|updates| updates.send(Ok(handoff.clone())).is_ok());
        if handoff.state.is_final() || watchers.is_empty() {
            self.watchers.remove(&handoff.id);
        }
    }
}

/// The one line about an envelope that was verified and not taken.
fn log_refusal(envelope: &VerifiedEnvelope, outcome: &Outcome) {
    let Err(refusal) = outcome else { return };
    let header = envelope.header();
    let (task, handoff) = (header.task.as_ref().map(|task| task.as_str()), header.correlation.map(|id| id.to_string()));
    tracing::info!(
        reason = refusal.code().name(), agent = %header.sender, message = %header.message_id, task, handoff,
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
    Key { table: Table::Meta, key: bytes::Bytes::from_static(b"sequence") }
}

fn sequence_value(last: u64) -> bytes::Bytes {
    storage::SequenceRecord { last }.encode_to_vec().into()
}

fn load_agents(store: &dyn Store) -> Result<Vec<Entry>, BrokerError> {
    use std::ops::Bound::Unbounded;
    let stored = store.scan(Table::Agents, (Unbounded, Unbounded), Order::Ascending, usize::MAX)?;
    stored.into_iter().map(|(_, record)| Entry::parse(AgentRecord::decode(&record.value)?)).collect()
}

fn load_timers(store: &dyn Store) -> Result<BTreeSet<(Timestamp, MessageId)>, BrokerError> {
    use std::ops::Bound::Unbounded;
    let stored = store.scan(Table::Timers, (Unbounded, Unbounded), Order::Ascending, usize::MAX)?;
    stored.into_iter().map(|(key, _)| Ok(records::parse_timer_key(&key)?)).collect()
}

//! Removing what nothing waits for any more, in the background: ids of messages, tasks that ended, dead letters that were
//! decided about, invitations.
//!
//! A removal is a change like any other. A tick makes only so many, and more when more is stored: so what is kept follows
//! what comes, and no group has to wait for it. Never removed are open tasks, mail that is not delivered, and parked dead
//! letters.
//!
//! A task goes from view in one commit, with its epoch left behind in table removed_tasks. What is more of its custody log
//! than one commit takes follows in later ones; nobody can see it any more, and a restart goes on with it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use bytes::Bytes;
use prost::Message as _;

use super::{
    Engine,
    drafts::{Act, Draft},
};
use crate::{
    broker::{BrokerError, Refused, Retention, refused},
    domain::handoff::Rejection,
    envelope::Header,
    ids::{AgentId, MessageId, TaskId},
    proto::v1::{self, custody_entry::Event},
    records::{
        CustodyLink, DeadLetterRecord, DeadState, HandoffRecord, Kept, MessageRecord, RemovedTaskRecord, TaskRecord,
        decode_message_ids, encode_message_ids, letter_key,
    },
    store::{Key, Order, Record, Table},
    time::Timestamp,
};

/// Records that a tick may remove, and how many more for each command of its group: a handoff is about twelve commands, and
/// about thirty records that are removed at some time.
const REMOVED_A_TICK: usize = 64;
/// And if it has none.
const REMOVED_AN_IDLE_TICK: usize = 1024;
const REMOVED_A_COMMAND: usize = 4;
/// Entries of table kept that are looked at together.
const ENTRIES_AT_ONCE: usize = 32;
/// When what could not be removed yet is looked at again, and the size of the store.
const LOOK_AGAIN: Duration = Duration::from_secs(60);
/// The part of its largest size that a store is brought down to, so that this is seldom to be done.
const DOWN_TO_PERCENT: u64 = 90;
/// What a task takes beside its custody log and its envelopes, about.
const TASK_BYTES: u64 = 1024;

/// Where the search for what can be removed stands.
#[derive(Debug)]
pub(super) struct Removals {
    kinds: BTreeMap<Kept, Search>,
    /// The task that is being looked through.
    looking: Option<Looking>,
    next_size_check: Option<Timestamp>,
    /// Bytes that the store is to lose, whatever the age of tasks.
    bytes_over: u64,
}

#[derive(Debug)]
struct Search {
    /// Nothing can be removed before.
    at: Option<Timestamp>,
    /// Nothing of this kind lies before. A search from the first key on would walk over all that was removed.
    from: Bytes,
    /// Something before had to wait.
    is_some_put_off: bool,
}

/// A task may only go when no mail about it waits.
#[derive(Debug)]
struct Looking {
    task: TaskId,
    /// The length of its log when this began. A longer one is looked through again.
    length: u64,
    /// The next entry.
    next: u64,
    /// Who could have got what the entries so far speak of.
    agents: BTreeSet<AgentId>,
    bytes: u64,
}

/// What has become of an entry.
enum Fate {
    Gone,
    /// Not yet.
    PutOff,
    /// There is more to do than one tick should.
    Unfinished,
}

impl Removals {
    pub(super) fn new(retention: &Retention, now: Timestamp) -> Self {
        let search = || Search { at: Some(Timestamp::default()), from: Bytes::new(), is_some_put_off: false };
        Self {
            kinds: Kept::ALL.into_iter().map(|kind| (kind, search())).collect(),
            looking: None,
            next_size_check: retention.store_bytes_max.map(|_| now.plus(LOOK_AGAIN)),
            bytes_over: 0,
        }
    }

    fn search(&mut self, kind: Kept) -> &mut Search {
        self.kinds.get_mut(&kind).expect("every kind has its search")
    }
}

impl Engine {
    pub(super) fn next_removal(&self) -> Option<Timestamp> {
        self.removals.kinds.values().filter_map(|search| search.at).chain(self.removals.next_size_check).min()
    }

    /// An entry of table kept is durable.
    pub(super) fn kept(&mut self, kind: Kept, key: Key, since: Timestamp) {
        let due = self.due(kind, since);
        let search = self.removals.search(kind);
        search.at = search.at.into_iter().chain(due).min();
        search.from = search.from.clone().min(key.key); // a clock may have been set back
    }

    /// The ids of the messages that the group in hand accepts are one entry: they came at the same time.
    pub(super) fn keep_accepted(&mut self, now: Timestamp) -> Option<(Key, Bytes)> {
        let accepted = std::mem::take(&mut self.group.accepted);
        let key = || Kept::Messages.key(now, &(self.next_sequence - 1).to_be_bytes());
        (!accepted.is_empty()).then(|| (key(), encode_message_ids(&accepted)))
    }

    /// When something of this kind is removed. `None`: never.
    fn due(&self, kind: Kept, since: Timestamp) -> Option<Timestamp> {
        let retention = &self.settings.retention;
        match kind {
            Kept::Messages => Some(since.plus(retention.message_ids)),
            Kept::Task if self.removals.bytes_over > 0 => Some(Timestamp::default()),
            Kept::Task => retention.ended_tasks.map(|span| since.plus(span)),
            Kept::DeadLetter => retention.settled_dead_letters.map(|span| since.plus(span)),
            Kept::Invitation | Kept::Rest => Some(since),
        }
    }

    pub(super) fn remove_what_is_over(&mut self, now: Timestamp) {
        if self.removals.next_size_check.is_some_and(|at| at <= now) {
            self.check_size(now);
        }
        let mut budget = match self.group.tickets.len() {
            0 => REMOVED_AN_IDLE_TICK,
            commands => REMOVED_A_TICK + REMOVED_A_COMMAND * commands,
        };
        for kind in Kept::ALL {
            while budget > 0 && self.removals.search(kind).at.is_some_and(|at| at <= now) {
                if let Err(error) = self.remove_some(kind, &mut budget, now) {
                    tracing::error!(?kind, %error, "failed to remove what was kept long enough");
                    self.removals.search(kind).at = Some(now.plus(LOOK_AGAIN));
                }
            }
        }
    }

    fn check_size(&mut self, now: Timestamp) {
        self.removals.next_size_check = Some(now.plus(LOOK_AGAIN));
        let Some(most) = self.settings.retention.store_bytes_max else { return };
        let has_more = self.removals.search(Kept::Task).at.is_some_and(|at| at <= now);
        if self.removals.bytes_over > 0 && !has_more {
            tracing::warn!(store_bytes_max = most, "the store is too large, and no more task in it has ended");
        }
        // Not known while the store is giving space back.
        let Some(size) = self.store.size_bytes() else { return };
        self.removals.bytes_over = if size > most { size - most / 100 * DOWN_TO_PERCENT } else { 0 };
        if self.removals.bytes_over > 0 {
            tracing::info!(store_bytes = size, store_bytes_max = most, "removing the tasks that ended first");
            let search = self.removals.search(Kept::Task);
            (search.at, search.from) = (Some(now), Bytes::new());
        }
    }

    fn remove_some(&mut self, kind: Kept, budget: &mut usize, now: Timestamp) -> Result<(), BrokerError> {
        let range = kind.range(self.removals.search(kind).from.clone());
        let found = self.store.scan(Table::Kept, range, Order::Ascending, ENTRIES_AT_ONCE)?;
        let is_last = found.len() < ENTRIES_AT_ONCE;
        for (key, record) in found {
            let (_, since, what) = Kept::parse(&key)?;
            let due = self.due(kind, since);
            if due.is_none_or(|at| at > now) {
                self.end_search(kind, due, now);
                return Ok(());
            }
            if *budget == 0 {
                return Ok(());
            }
            let entry = Key { table: Table::Kept, key: key.clone() };
            let fate = if self.is_written_in_group(&entry) {
                Fate::Unfinished // removed in this group; memory follows
            } else {
                match kind {
                    Kept::Messages => self.remove_message_ids(entry, &record, budget)?,
                    Kept::Task => self.remove_task(entry, &what, budget, now)?,
                    Kept::DeadLetter => self.remove_dead_letter(entry, &what, budget)?,
                    Kept::Invitation => self.remove_record(entry, Key { table: Table::Invitations, key: what }, budget),
                    Kept::Rest => self.remove_rest(entry, &what, &record, budget)?,
                }
            };
            let search = self.removals.search(kind);
            match fate {
                Fate::Gone => {}
                Fate::PutOff => search.is_some_put_off = true,
                Fate::Unfinished => {
                    *budget = 0;
                    return Ok(());
                }
            }
            search.from = [&key[..], &[0]].concat().into();
        }
        if is_last {
            self.end_search(kind, None, now);
        }
        Ok(())
    }

    /// Nothing more can be removed before `next`.
    fn end_search(&mut self, kind: Kept, next: Option<Timestamp>, now: Timestamp) {
        let search = self.removals.search(kind);
        search.at = next;
        if std::mem::take(&mut search.is_some_put_off) {
            search.from = Bytes::new();
            search.at = Some(next.map_or(now.plus(LOOK_AGAIN), |at| at.min(now.plus(LOOK_AGAIN))));
        }
    }

    /// Adds a removal to the group.
    fn seal_removal(&mut self, draft: Draft, budget: &mut usize) -> Fate {
        *budget = budget.saturating_sub(draft.writes());
        self.seal(draft);
        self.end_unanswered();
        Fate::Gone
    }

    fn remove_message_ids(&mut self, entry: Key, record: &Record, budget: &mut usize) -> Result<Fate, BrokerError> {
        let mut draft = self.draft();
        draft.delete(entry);
        for id in decode_message_ids(&record.value)? {
            draft.delete(MessageRecord::key(id));
        }
        Ok(self.seal_removal(draft, budget))
    }

    fn remove_record(&mut self, entry: Key, key: Key, budget: &mut usize) -> Fate {
        let mut draft = self.draft();
        draft.delete(entry);
        draft.delete(key);
        self.seal_removal(draft, budget)
    }

    fn remove_dead_letter(&mut self, entry: Key, number: &[u8], budget: &mut usize) -> Result<Fate, BrokerError> {
        let mut draft = self.draft();
        draft.delete(entry);
        let key = Key { table: Table::DeadLetters, key: Bytes::copy_from_slice(number) };
        if let Some(stored) = self.read(&mut draft, &key)? {
            let dead = DeadLetterRecord::decode(&key.key, &stored.value)?;
            match dead.state {
                DeadState::Parked => tracing::error!(dead_letter = dead.number, "a dead letter is parked again"),
                DeadState::Redriven | DeadState::Discarded => {
                    draft.delete(MessageRecord::envelope_key(dead.number));
                    draft.delete(key);
                }
            }
        }
        Ok(self.seal_removal(draft, budget))
    }
}

/// Tasks.
impl Engine {
    fn remove_task(
        &mut self,
        entry: Key,
        task: &[u8],
        budget: &mut usize,
        now: Timestamp,
    ) -> Result<Fate, BrokerError> {
        let mut draft = self.draft();
        draft.delete(entry);
        let key = Key { table: Table::Tasks, key: Bytes::copy_from_slice(task) };
        if self.is_written_in_group(&key) {
            return Ok(Fate::PutOff);
        }
        let Some(stored) = self.read(&mut draft, &key)? else {
            tracing::error!(task = %String::from_utf8_lossy(task), "a task that has ended is not there");
            return Ok(self.seal_removal(draft, budget));
        };
        let record = TaskRecord::decode(&stored.value)?;
        assert!(record.task.status.is_final() && record.task.open_handoff.is_none(), "only what has ended is removed");
        let task = record.task.id.clone();
        let (entries, bytes) = match self.look_through(&record, budget)? {
            Looked::MailWaits => return Ok(Fate::PutOff),
            Looked::NotAll => return Ok(Fate::Unfinished),
            Looked::Free { entries, bytes } => (entries, bytes),
        };
        draft.delete(key);
        draft.delete(TaskRecord::index_key(record.sequence));
        let left = RemovedTaskRecord { epoch: record.task.epoch, status: record.task.status };
        draft.put_new(RemovedTaskRecord::key(&task), left.encode());
        if let Some(next) = self.remove_entries(&mut draft, &task, entries, 1)? {
            let key = Kept::Rest.key(now, task.as_str().as_bytes());
            draft.put_new(key.clone(), rest_value(next));
            draft.acts.push(Act::Kept { kind: Kept::Rest, key, since: now });
        }
        self.removals.bytes_over = self.removals.bytes_over.saturating_sub(bytes + TASK_BYTES);
        if self.removals.bytes_over == 0 && bytes > 0 {
            self.store.give_space_back();
        }
        tracing::debug!(%task, "removed a task that has ended");
        draft.acts.push(Act::TaskRemoved(task));
        Ok(self.seal_removal(draft, budget))
    }

    /// Looks for mail that needs an envelope of the task's log. A long log takes several ticks.
    fn look_through(&mut self, record: &TaskRecord, budget: &mut usize) -> Result<Looked, BrokerError> {
        let (task, length) = (&record.task.id, record.custody.length);
        let same = self.removals.looking.take().filter(|looking| looking.task == *task && looking.length == length);
        let fresh = Looking { task: task.clone(), length, next: 1, agents: BTreeSet::new(), bytes: 0 };
        let mut looking = same.unwrap_or(fresh);
        let entries = self.entries(task, looking.next)?;
        for (_, stored) in &entries {
            if self.mail_waits(stored, &mut looking)? {
                return Ok(Looked::MailWaits);
            }
        }
        let is_first = looking.next == 1;
        looking.next += entries.len() as u64;
        *budget = budget.saturating_sub(entries.len());
        if looking.next <= length && !entries.is_empty() {
            self.removals.looking = Some(looking);
            return Ok(Looked::NotAll);
        }
        let entries = if is_first { entries } else { self.entries(task, 1)? };
        Ok(Looked::Free { entries, bytes: looking.bytes })
    }

    fn entries(&self, task: &TaskId, from: u64) -> Result<Vec<(Bytes, Record)>, BrokerError> {
        let range = (std::ops::Bound::Included(CustodyLink::key(task, from).key), CustodyLink::range(task).1);
        Ok(self.store.scan(Table::Custody, range, Order::Ascending, self.settings.retention.entries_a_step)?)
    }

    /// Whether anybody has not acked the message that this entry is about.
    fn mail_waits(&self, stored: &Record, looking: &mut Looking) -> Result<bool, BrokerError> {
        let entry = decode_entry(stored)?;
        let known = |text: &String| AgentId::parse(text).ok();
        looking.agents.extend(known(&entry.owner_id));
        if let Some(handoff) = self.stored_handoff(&entry.handoff_id)? {
            looking.agents.extend(handoff.handoff.offers.into_iter().map(|offer| offer.candidate));
        }
        let Some(Event::Accepted(accepted)) = &entry.event else { return Ok(false) };
        looking.agents.extend(accepted.resolved_agent_ids.iter().filter_map(known));
        if self.removals.bytes_over > 0 {
            let envelope = self.store.get(&MessageRecord::envelope_key(accepted.sequence))?;
            looking.bytes += (stored.value.len() + envelope.map_or(0, |envelope| envelope.value.len())) as u64;
        }
        for agent in &looking.agents {
            let key = letter_key(agent, accepted.sequence);
            if self.read(&mut self.draft(), &key)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn stored_handoff(&self, id: &str) -> Result<Option<HandoffRecord>, BrokerError> {
        let Ok(id) = MessageId::parse(id) else { return Ok(None) };
        let Some(stored) = self.store.get(&HandoffRecord::key(id))? else { return Ok(None) };
        Ok(Some(HandoffRecord::decode(&stored.value)?))
    }

    /// Removes these entries of a log, of which the first has this number, with their envelopes and their handoffs. Returns
    /// the number of the next, if there may be more.
    fn remove_entries(
        &self,
        draft: &mut Draft,
        task: &TaskId,
        entries: Vec<(Bytes, Record)>,
        first: u64,
    ) -> Result<Option<u64>, BrokerError> {
        let next = first + entries.len() as u64;
        let is_more = entries.len() >= self.settings.retention.entries_a_step;
        let mut handoffs = BTreeSet::new();
        for (key, stored) in entries {
            let entry = decode_entry(&stored)?;
            draft.delete(Key { table: Table::Custody, key });
            handoffs.insert(entry.handoff_id);
            if let Some(Event::Accepted(accepted)) = &entry.event {
                draft.delete(MessageRecord::envelope_key(accepted.sequence));
            }
        }
        for id in &handoffs {
            let Some(stored) = self.stored_handoff(id)?.filter(|stored| stored.handoff.task == *task) else { continue };
            draft.delete(HandoffRecord::key(stored.handoff.id));
            draft.delete(HandoffRecord::index_key(stored.sequence));
        }
        Ok(is_more.then_some(next))
    }

    /// Goes on with the log of a task that was removed.
    fn remove_rest(
        &mut self,
        entry: Key,
        task: &[u8],
        record: &Record,
        budget: &mut usize,
    ) -> Result<Fate, BrokerError> {
        let mut draft = self.draft();
        let id = std::str::from_utf8(task).ok().and_then(|text| TaskId::parse(text).ok());
        let (Some(task), Some(first)) = (id, record.value.first_chunk().copied().map(u64::from_be_bytes)) else {
            tracing::error!("what is left of a task is not readable");
            draft.delete(entry);
            return Ok(self.seal_removal(draft, budget));
        };
        let entries = self.entries(&task, first)?;
        if let Some(next) = self.remove_entries(&mut draft, &task, entries, first)? {
            draft.put(entry, rest_value(next), Some(record));
            self.seal_removal(draft, budget);
            return Ok(Fate::Unfinished);
        }
        draft.delete(entry);
        Ok(self.seal_removal(draft, budget))
    }

    /// A task that was removed had ended, and that never changes.
    pub(super) fn check_not_removed(&self, draft: &mut Draft, header: &Header) -> Result<(), Refused> {
        self.check_not_stale(draft, header)?;
        match self.removed_task(draft, header).map_err(refused)? {
            Some(removed) => Err(refused(Rejection::TaskFinal { status: removed.status })),
            None => Ok(()),
        }
    }

    /// Its epochs are over, as those of every task.
    pub(super) fn check_not_stale(&self, draft: &mut Draft, header: &Header) -> Result<(), Refused> {
        match self.removed_task(draft, header).map_err(refused)? {
            Some(removed) if header.epoch != 0 && header.epoch < removed.epoch => {
                Err(refused(Rejection::StaleEpoch { claimed: header.epoch, current: removed.epoch }))
            }
            Some(_) | None => Ok(()),
        }
    }

    fn removed_task(&self, draft: &mut Draft, header: &Header) -> Result<Option<RemovedTaskRecord>, BrokerError> {
        let Some(task) = &header.task else { return Ok(None) };
        let stored = self.read(draft, &RemovedTaskRecord::key(task))?;
        stored.map(|stored| RemovedTaskRecord::decode(&stored.value).map_err(BrokerError::from)).transpose()
    }
}

/// What was found in a task's log.
enum Looked {
    MailWaits,
    /// And what was looked at is all right.
    NotAll,
    /// The first entries, and the bytes of all of them if somebody wants to know.
    Free {
        entries: Vec<(Bytes, Record)>,
        bytes: u64,
    },
}

/// The number of the first entry that is left.
fn rest_value(next: u64) -> Bytes {
    Bytes::copy_from_slice(&next.to_be_bytes())
}

fn decode_entry(stored: &Record) -> Result<v1::CustodyEntry, BrokerError> {
    let (_, entry) = CustodyLink::decode(&stored.value)?;
    v1::CustodyEntry::decode(entry).map_err(|error| {
        tracing::error!(%error, "an entry of a custody log does not decode");
        BrokerError::Internal
    })
}

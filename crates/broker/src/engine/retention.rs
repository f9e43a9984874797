//! Retention: the background removal of message ids, ended tasks, settled dead letters, invitations, and old entries of
//! the audit log.
//!
//! A removal is a change like any other. A tick makes a bounded number, and more when the batch stores more: so the
//! removals keep pace with the load, and no batch waits for them. The retention never removes open tasks, undelivered
//! mail and parked dead letters.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;

use super::{
    Engine,
    batch::PostCommit,
    task_removal::Looking,
    timers::{Timer, Timers},
    transaction::Transaction,
};
use crate::{
    BrokerError,
    domain::{
        EntityId,
        dead_letter::RefusedEnvelopes,
        routing::TurnId,
        workspace::{WorkspaceId, WorkspaceOwner},
    },
    ids::{AgentId, IdMap, MessageId, ThreadId},
    proto::v1::run_entry::Event,
    records::{
        DeadLetterRecord, Expiration, MessageRecord, RunEntryRecord, RunRecord, RunTurnRecord, ThreadEntryRecord,
        ThreadRecord, decode_message_ids, encode_message_ids,
    },
    store::{Key, KeyBytes, Order, Record, Table},
    time::Timestamp,
};

/// The most records that a tick removes, plus [`REMOVED_A_COMMAND`] for each command of its batch: a handoff takes
/// about twelve commands, and stores about thirty records that are removed later.
const REMOVED_A_TICK: usize = 64;
/// The most records that a tick removes if its batch has no commands.
const REMOVED_AN_IDLE_TICK: usize = 512;
const REMOVED_A_COMMAND: usize = 4;
/// The most entries of a run's log that one commit removes. An entry has up to 64 KiB.
const RUN_ENTRIES_AT_ONCE: usize = 64;
/// The most expirations that one scan reads.
const ENTRIES_AT_ONCE: usize = 32;
/// The delay before a postponed removal is tried again, and the interval of the checks of the store's size.
const LOOK_AGAIN: Duration = Duration::from_secs(60);
/// The percentage of the maximum size that a store is reduced to, so that a reduction is seldom needed.
const DOWN_TO_PERCENT: u64 = 90;

/// The state of the search for removable records.
#[derive(Debug)]
pub(super) struct Retention {
    kinds: BTreeMap<Expiration, Search>,
    /// The task whose log is being searched.
    looking: Option<Looking>,
    /// The bytes that the store has to lose, regardless of the age of tasks.
    bytes_over: u64,
    /// The store was asked to give back the space of what was removed before this start.
    has_asked_for_space: bool,
    /// The place in the list of changes behind which the search for idle tasks goes on.
    pub(super) idle_after: u64,
    /// The latest update of the oldest task that is not idle yet.
    pub(super) idle_next: Option<Timestamp>,
    /// The refused envelopes of each agent that were kept since the start.
    refused: IdMap<AgentId, RefusedEnvelopes>,
}

/// The search for entries of one kind. The kind's timer has the earliest time at which an entry can be removed.
#[derive(Debug, Default)]
struct Search {
    /// No entry of this kind has a lower key. A scan from the kind's first key would walk over all removed entries.
    from: KeyBytes,
    /// Whether the search has postponed an entry.
    is_some_put_off: bool,
}

/// The result of an attempt to remove an entry.
pub(super) enum Removal {
    Done,
    /// The entry has to wait.
    PutOff,
    /// The removal needs more work than one tick allows.
    Unfinished,
}

impl Retention {
    /// Starts the search of all kinds, and sets their timers.
    pub(super) fn new(settings: &crate::Retention, timers: &mut Timers) -> Self {
        // After a start the store may have due entries of each kind, so every search begins in the first tick.
        Expiration::ALL
            .into_iter()
            .map(Timer::Retention)
            .chain([Timer::AuditLog])
            .for_each(|timer| timers.set_at_once(timer));
        if settings.idle_tasks.is_some() {
            timers.set_at_once(Timer::IdleTasks);
        }
        if settings.store_bytes_max.is_some() {
            timers.set_after(Timer::StoreSize, LOOK_AGAIN);
        }
        Self {
            kinds: Expiration::ALL.into_iter().map(|kind| (kind, Search::default())).collect(),
            looking: None,
            bytes_over: 0,
            has_asked_for_space: false,
            idle_after: 0,
            idle_next: None,
            refused: IdMap::default(),
        }
    }

    /// The counts of the refused envelopes of this agent.
    pub(super) fn refused_envelopes(&mut self, agent: &AgentId) -> &mut RefusedEnvelopes {
        self.refused.entry(agent.clone()).or_default()
    }

    /// Takes over the counts of refused envelopes when a set-back of the clock makes the engine begin again.
    pub(super) fn take_over_refused(&mut self, before: Self) {
        self.refused = before.refused;
    }

    /// Whether the store has to lose tasks regardless of their age.
    pub(super) fn is_over_size(&self) -> bool {
        self.bytes_over > 0
    }

    /// Counts the bytes that a removal frees. Returns true if this makes the store small enough.
    pub(super) fn bytes_lost(&mut self, bytes: u64) -> bool {
        let was_over = self.is_over_size();
        self.bytes_over = self.bytes_over.saturating_sub(bytes);
        was_over && !self.is_over_size()
    }

    /// The unfinished search of a task's log, from the last tick.
    pub(super) fn take_looking(&mut self) -> Option<Looking> {
        self.looking.take()
    }

    /// Keeps the search of a task's log for the next tick.
    pub(super) fn go_on_looking(&mut self, looking: Looking) {
        self.looking = Some(looking);
    }

    fn search(&mut self, kind: Expiration) -> &mut Search {
        self.kinds.get_mut(&kind).expect("every kind has its search")
    }
}

impl Engine {
    /// Notes a durable entry of the audit log.
    pub(super) fn act_recorded(&mut self, at: Timestamp) {
        if let Some(due) = self.act_is_over_at(at) {
            self.timers.bring_forward_by_clock(Timer::AuditLog, due);
        }
    }

    /// Notes a durable expiration.
    pub(super) fn expiration_stored(&mut self, kind: Expiration, key: Key, since: Timestamp) {
        if let Some(due) = self.due(kind, since) {
            self.timers.bring_forward_by_clock(Timer::Retention(kind), due);
        }
        let search = self.retention.search(kind);
        search.from = search.from.clone().min(key.key); // after a set-back of the clock the new key may be lower
    }

    /// One entry with the ids of all messages that the batch in hand accepts and no custody log has: they have the same
    /// accept time. The other messages are removed with their task.
    pub(super) fn expire_accepted(&mut self, now: Timestamp) -> Option<(Key, Bytes)> {
        let accepted = std::mem::take(&mut self.batch.accepted);
        let key = || Expiration::Messages.key(now, &(self.batch.head.next_sequence - 1).to_be_bytes());
        (!accepted.is_empty()).then(|| (key(), encode_message_ids(&accepted)))
    }

    /// The time at which an entry of this kind is removed. `None`: never.
    fn due(&self, kind: Expiration, since: Timestamp) -> Option<Timestamp> {
        let retention = &self.env.settings.retention;
        match kind {
            Expiration::Messages => Some(since.plus(retention.message_ids)),
            // A store over its maximum size loses ended tasks of any age, the oldest first.
            Expiration::Task if self.retention.bytes_over > 0 => Some(Timestamp::default()),
            Expiration::Task | Expiration::Run | Expiration::Negotiation | Expiration::Plan => {
                retention.ended_tasks.map(|span| since.plus(span))
            }
            Expiration::DeadLetter => retention.settled_dead_letters.map(|span| since.plus(span)),
            // The start of an invitation's entry is the expiry of the invitation.
            Expiration::Invitation => Some(since),
            Expiration::Blob | Expiration::Upload => Some(since.plus(self.env.settings.blobs.unheld_lifetime)),
            // No query sees the rest of a removed task or workspace, so nothing waits for it.
            Expiration::Rest | Expiration::Entries | Expiration::Contexts => Some(Timestamp::default()),
            // It has ended because it was idle for its whole time.
            Expiration::Thread => Some(since),
        }
    }

    /// The most records that this tick may remove.
    pub(super) fn removals_of_tick(&self) -> usize {
        match self.batch.replies.len() {
            0 => REMOVED_AN_IDLE_TICK,
            commands => REMOVED_A_TICK + REMOVED_A_COMMAND * commands,
        }
    }

    pub(super) fn remove_acts_that_are_over(&mut self, budget: &mut usize, now: Timestamp) {
        match self.remove_old_acts(budget, now) {
            Ok(Some(next)) => self.timers.set_by_clock(Timer::AuditLog, next),
            Ok(None) => self.timers.clear(Timer::AuditLog),
            Err(error) => {
                tracing::error!(%error, "failed to remove old entries of the audit log");
                self.timers.set_after(Timer::AuditLog, LOOK_AGAIN);
            }
        }
    }

    /// Removes due entries of this kind, within the budget.
    pub(super) fn remove_what_is_over(&mut self, kind: Expiration, budget: &mut usize, now: Timestamp) {
        let timer = Timer::Retention(kind);
        while *budget > 0 && self.timers.is_due(&timer) {
            if let Err(error) = self.remove_some(kind, budget, now) {
                tracing::error!(?kind, %error, "failed to remove expired objects");
                self.timers.set_after(timer.clone(), LOOK_AGAIN);
            }
        }
        // The other kinds take their turn first. The rest of a removed task or workspace goes before further tasks.
        let is_rest = matches!(kind, Expiration::Rest | Expiration::Entries | Expiration::Contexts);
        if self.timers.is_due(&timer) && !is_rest {
            self.timers.set_by_clock(timer, now);
        }
    }

    /// Starts a removal of the oldest ended tasks if the store is over its maximum size.
    pub(super) fn check_size(&mut self, now: Timestamp) {
        self.timers.set_after(Timer::StoreSize, LOOK_AGAIN);
        let Some(most) = self.env.settings.retention.store_bytes_max else { return };
        // A timer that is not due means that the search has passed every ended task.
        let has_more = self.timers.is_due(&Timer::Retention(Expiration::Task));
        if self.retention.bytes_over > 0 && !has_more {
            tracing::warn!(
                store_bytes_max = most,
                "the store exceeds store_bytes_max, and no ended task is left to remove"
            );
        }
        // The size is unknown while the store is being compacted.
        let Some(size) = self.env.store.size_bytes() else { return };
        // A broker that ended early may have removed tasks whose space is not given back. Their size must not be removed again.
        if size > most && !std::mem::replace(&mut self.retention.has_asked_for_space, true) {
            return self.env.store.give_space_back();
        }
        self.retention.bytes_over = if size > most { size - most / 100 * DOWN_TO_PERCENT } else { 0 };
        if self.retention.bytes_over > 0 {
            tracing::info!(
                store_bytes = size,
                store_bytes_max = most,
                "the store exceeds store_bytes_max: removing the oldest ended tasks"
            );
            // A removal by size ignores ages, so the search begins at the oldest task again.
            self.retention.search(Expiration::Task).from = KeyBytes::default();
            self.timers.set_by_clock(Timer::Retention(Expiration::Task), now);
        }
    }

    /// Removes due entries of one scan. Sets the kind's timer when the scan reaches an entry that is not due.
    fn remove_some(&mut self, kind: Expiration, budget: &mut usize, now: Timestamp) -> Result<(), BrokerError> {
        let range = kind.range(self.retention.search(kind).from.clone());
        let found = self.env.store.scan(Table::Expirations, range, Order::Ascending, ENTRIES_AT_ONCE)?;
        let is_last = found.len() < ENTRIES_AT_ONCE;
        for (key, record) in found {
            let (_, since, what) = Expiration::parse(&key)?;
            let due = self.due(kind, since);
            // Keys of one kind sort by time, so no later entry is due either.
            if due.is_none_or(|at| at > now) {
                self.end_search(kind, due, now);
                return Ok(());
            }
            if *budget == 0 {
                return Ok(());
            }
            let entry = Key { table: Table::Expirations, key: key.clone() };
            // The store still has an entry that this batch has removed.
            let removal = if self.is_written_in_batch(&entry) {
                Ok(Removal::Unfinished) // an earlier part of this batch removes it
            } else {
                match kind {
                    Expiration::Messages => self.remove_message_ids(entry, &record, since, budget),
                    Expiration::Task => self.remove_task(entry, what, budget, now),
                    Expiration::DeadLetter => self.remove_dead_letter(entry, what, budget),
                    Expiration::Invitation => {
                        Ok(self.remove_record(entry, Key { table: Table::Invitations, key: what.into() }, budget))
                    }
                    Expiration::Run => self.remove_run(entry, what, budget, now),
                    Expiration::Thread => self.remove_thread(entry, what, budget, now),
                    Expiration::Plan => self.remove_plan(entry, what, since, now, budget),
                    Expiration::Blob => self.remove_blob(entry, what, since, budget),
                    Expiration::Upload => self.remove_upload(entry, what, since, budget),
                    Expiration::Rest => self.remove_rest(entry, what, &record, budget, now),
                    Expiration::Contexts => self.remove_left_contexts(entry, what, &record, budget),
                    Expiration::Entries => self.remove_left_entries(entry, what, &record, budget),
                    Expiration::Negotiation => self.remove_negotiation(entry, what, budget),
                }
            };
            // An object that cannot be read must not keep all later ones.
            let removal = removal.unwrap_or_else(|error| {
                tracing::error!(?kind, %error, "failed to remove an expired object");
                Removal::PutOff
            });
            let search = self.retention.search(kind);
            match removal {
                Removal::Done => {}
                Removal::PutOff => {
                    search.is_some_put_off = true;
                    *budget = budget.saturating_sub(1);
                }
                // The search stays at this entry until it is done.
                Removal::Unfinished => {
                    *budget = 0;
                    return Ok(());
                }
            }
            // The next scan starts behind this entry.
            search.from = [&key[..], &[0]].into();
        }
        if is_last {
            self.end_search(kind, None, now);
        }
        Ok(())
    }

    /// Ends a pass of the search: no entry of this kind can be removed before `next`.
    fn end_search(&mut self, kind: Expiration, next: Option<Timestamp>, now: Timestamp) {
        let search = self.retention.search(kind);
        let mut next = next;
        // Postponed entries lie before `from`, so the next pass starts at the beginning.
        if std::mem::take(&mut search.is_some_put_off) {
            search.from = KeyBytes::default();
            next = Some(next.map_or(now.plus(LOOK_AGAIN), |at| at.min(now.plus(LOOK_AGAIN))));
        }
        match next {
            Some(at) => self.timers.set_by_clock(Timer::Retention(kind), at),
            None => self.timers.clear(Timer::Retention(kind)),
        }
    }

    /// Adds a removal to the batch, and reduces the budget by its writes.
    pub(super) fn stage_removal(&mut self, transaction: Transaction, budget: &mut usize) -> Removal {
        *budget = budget.saturating_sub(transaction.writes());
        self.stage(transaction);
        // A part of the batch of its own: a conflict of the removal refuses no caller.
        self.end_unanswered();
        Removal::Done
    }

    /// Removes the message ids of one commit. Later messages up to that time are refused by their timestamp.
    fn remove_message_ids(
        &mut self,
        entry: Key,
        record: &Record,
        since: Timestamp,
        budget: &mut usize,
    ) -> Result<Removal, BrokerError> {
        let mut transaction = self.transaction();
        transaction.delete(entry);
        for id in decode_message_ids(&record.value)? {
            transaction.delete(MessageRecord::key(id));
        }
        self.message_ids_removed(since);
        Ok(self.stage_removal(transaction, budget))
    }

    /// Notes that the batch in hand removes ids of messages that were accepted at this time.
    pub(super) fn message_ids_removed(&mut self, accepted_at: Timestamp) {
        // None of the removed ids belongs to a message with a later timestamp. The same commit stores this bound.
        let gone = accepted_at.plus(self.env.settings.clock_window);
        self.batch.head.message_ids_gone = self.batch.head.message_ids_gone.max(gone);
    }

    /// Removes an ended run with its log, at most [`RUN_ENTRIES_AT_ONCE`] entries a commit, the oldest first.
    fn remove_run(
        &mut self,
        entry: Key,
        run: &[u8],
        budget: &mut usize,
        now: Timestamp,
    ) -> Result<Removal, BrokerError> {
        let id = RunRecord::listed(run)?;
        let key = RunRecord::key(id);
        let workspace = WorkspaceId::of(WorkspaceOwner::Run, &id.to_string()).expect("a UUID is a name");
        // A command of this batch may write the run; the removal waits for the next pass.
        if self.is_written_in_batch(&key) || self.is_workspace_in_batch(&workspace) {
            return Ok(Removal::PutOff);
        }
        let mut transaction = self.transaction();
        let stored = self.read(&mut transaction, &key)?;
        let record = stored.map(|stored| RunRecord::decode(&stored.value)).transpose()?;
        transaction.payer = record.as_ref().and_then(|record| record.run.starter.clone());
        let entries = RunEntryRecord::range_after(id, 0);
        let found = self.env.store.scan(Table::RunLog, entries, Order::Ascending, RUN_ENTRIES_AT_ONCE)?;
        for (key, record) in &found {
            if let Some(Event::Turn(turn)) = RunEntryRecord::message(&record.value)?.event
                && let Ok(turn) = MessageId::parse(&turn.turn_id)
            {
                transaction.delete(RunTurnRecord::key(id, TurnId(turn)));
            }
            transaction.delete(Key { table: Table::RunLog, key: key.clone() });
        }
        let is_last = found.len() < RUN_ENTRIES_AT_ONCE;
        if is_last {
            if let Some(record) = record {
                record.listings().into_iter().for_each(|key| transaction.delete(key));
                self.release_graph(&mut transaction, record.graph)?;
                transaction.delete(key);
            }
            transaction.delete(entry);
            transaction.post_commit.push(PostCommit::EntityRemoved(EntityId::Run(id)));
            self.remove_workspace(&mut transaction, &workspace, now)?;
        }
        let removal = self.stage_removal(transaction, budget);
        Ok(if is_last { removal } else { Removal::Unfinished })
    }

    /// Removes an ended thread with its log, at most [`RUN_ENTRIES_AT_ONCE`] entries a commit, the oldest first.
    fn remove_thread(
        &mut self,
        entry: Key,
        thread: &[u8],
        budget: &mut usize,
        now: Timestamp,
    ) -> Result<Removal, BrokerError> {
        let mut transaction = self.transaction();
        let id = std::str::from_utf8(thread).ok().and_then(|id| ThreadId::parse(id).ok());
        let Some(id) = id else {
            // The entry is deleted all the same: the search would stop at it in every tick.
            tracing::error!("failed to read the id of an ended thread");
            transaction.delete(entry);
            return Ok(self.stage_removal(transaction, budget));
        };
        let key = ThreadRecord::key(&id);
        let workspace = WorkspaceId::of(WorkspaceOwner::Thread, id.as_str()).expect("the id of a thread is a name");
        // A command of this batch may write the thread; the removal waits for the next pass.
        if self.is_written_in_batch(&key) || self.is_workspace_in_batch(&workspace) {
            return Ok(Removal::PutOff);
        }
        let stored = self.read(&mut transaction, &key)?;
        let record = stored.map(|stored| ThreadRecord::decode(&stored.value)).transpose()?;
        transaction.payer = record.as_ref().and_then(|record| record.thread.creator.clone());
        let entries = ThreadEntryRecord::range_after(&id, 0);
        let found = self.env.store.scan(Table::ThreadLog, entries, Order::Ascending, RUN_ENTRIES_AT_ONCE)?;
        let is_last = found.len() < RUN_ENTRIES_AT_ONCE;
        for (key, _) in found {
            transaction.delete(Key { table: Table::ThreadLog, key });
        }
        if is_last {
            if let Some(record) = record {
                record.listings().into_iter().for_each(|key| transaction.delete(key));
                transaction.delete(key);
            }
            transaction.delete(entry);
            transaction.post_commit.push(PostCommit::EntityRemoved(EntityId::Thread(id)));
            self.remove_workspace(&mut transaction, &workspace, now)?;
        }
        let removal = self.stage_removal(transaction, budget);
        Ok(if is_last { removal } else { Removal::Unfinished })
    }

    fn remove_record(&mut self, entry: Key, key: Key, budget: &mut usize) -> Removal {
        let mut transaction = self.transaction();
        transaction.delete(entry);
        transaction.delete(key);
        self.stage_removal(transaction, budget)
    }

    /// Removes a settled dead letter with its envelope and index entries.
    fn remove_dead_letter(&mut self, entry: Key, number: &[u8], budget: &mut usize) -> Result<Removal, BrokerError> {
        let mut transaction = self.transaction();
        transaction.delete(entry);
        let key = Key { table: Table::DeadLetters, key: number.into() };
        if let Some(stored) = self.read(&mut transaction, &key)? {
            let dead = DeadLetterRecord::decode(&key.key, &stored.value)?;
            if dead.state.is_final() {
                transaction.delete(MessageRecord::envelope_key(dead.number));
                dead.agent_index_keys().for_each(|key| transaction.delete(key));
                transaction.delete(key);
            } else {
                tracing::error!(dead_letter = dead.number, "a dead letter is in the list of expirations, but parked");
            }
        }
        Ok(self.stage_removal(transaction, budget))
    }
}

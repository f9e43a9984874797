//! Removing an ended task as a whole, once no mail about it waits.
//!
//! One commit hides the task and leaves its epoch in table removed_tasks. Later commits remove the parts of its custody
//! log that exceed one commit; no query can see these parts, and a restart resumes their removal.

use std::collections::BTreeSet;

use bytes::Bytes;
use prost::Message as _;

use super::{Engine, batch::PostCommit, retention::Removal, transaction::Transaction};
use crate::{
    broker::BrokerError,
    domain::RemovedTask,
    ids::{AgentId, MessageId, TaskId},
    proto::v1::{self, custody_entry::Event},
    records::{CustodyLink, Expiration, HandoffRecord, MessageRecord, RemovedTaskRecord, TaskRecord, letter_key},
    store::{Key, KeyBytes, Order, Record, Table},
    time::Timestamp,
};

/// The approximate size of a task's records beside its custody log and its envelopes.
const TASK_BYTES: u64 = 1024;

/// The search of a task's log for mail that waits. Only a task without waiting mail is removed.
#[derive(Debug)]
pub(super) struct Looking {
    task: TaskId,
    /// The length of the log at the start of the search. A longer log is searched again.
    length: u64,
    /// The number of the next entry.
    next: u64,
    /// The agents that may have received the messages of the entries so far.
    agents: BTreeSet<AgentId>,
    bytes: u64,
}

impl Engine {
    /// Removes an ended task, if no mail about it waits. The removal is put off otherwise.
    pub(super) fn remove_task(
        &mut self,
        entry: Key,
        task: &[u8],
        budget: &mut usize,
        now: Timestamp,
    ) -> Result<Removal, BrokerError> {
        let mut transaction = self.transaction();
        transaction.delete(entry);
        let key = Key { table: Table::Tasks, key: task.into() };
        // A command of this batch may write the task; the removal waits for the next pass.
        if self.is_written_in_batch(&key) {
            return Ok(Removal::PutOff);
        }
        let Some(stored) = self.read(&mut transaction, &key)? else {
            tracing::error!(task = %String::from_utf8_lossy(task), "an ended task is not in the store");
            return Ok(self.stage_removal(transaction, budget));
        };
        let record = TaskRecord::decode(&stored.value)?;
        assert!(record.task.status.is_final() && record.task.open_handoff.is_none(), "only ended tasks are removed");
        let task = record.task.id.clone();
        let (entries, bytes) = match self.look_through(&record, budget)? {
            Looked::MailWaits => return Ok(Removal::PutOff),
            Looked::NotAll => return Ok(Removal::Unfinished),
            Looked::Free { entries, bytes } => (entries, bytes),
        };
        transaction.delete(key);
        let left = RemovedTaskRecord(RemovedTask::of(&record.task));
        transaction.put_new(RemovedTaskRecord::key(&task), left.encode());
        if let Some(next) = self.remove_entries(&mut transaction, &task, entries, 1)? {
            let key = Expiration::Rest.key(now, &[&record.sequence.to_be_bytes(), task.as_str().as_bytes()].concat());
            transaction.put_over(key.clone(), rest_value(next));
            transaction.post_commit.push(PostCommit::ExpirationStored { kind: Expiration::Rest, key, since: now });
        }
        if self.retention.bytes_lost(bytes + TASK_BYTES) {
            self.env.store.give_space_back();
        }
        tracing::debug!(%task, "removed an ended task");
        transaction.post_commit.push(PostCommit::TaskRemoved(task));
        Ok(self.stage_removal(transaction, budget))
    }

    /// Searches for mail that needs an envelope of the task's log. A long log takes several ticks.
    fn look_through(&mut self, record: &TaskRecord, budget: &mut usize) -> Result<Looked, BrokerError> {
        let (task, length) = (&record.task.id, record.custody.length);
        let same = self.retention.take_looking().filter(|looking| looking.task == *task && looking.length == length);
        let fresh = Looking { task: task.clone(), length, next: 1, agents: BTreeSet::new(), bytes: 0 };
        let mut looking = same.unwrap_or(fresh);
        let entries = self.entries(record.sequence, task, looking.next)?;
        for (_, stored) in &entries {
            if self.mail_waits(stored, &mut looking)? {
                return Ok(Looked::MailWaits);
            }
        }
        let is_first = looking.next == 1;
        looking.next += entries.len() as u64;
        *budget = budget.saturating_sub(entries.len());
        if looking.next <= length && !entries.is_empty() {
            self.retention.go_on_looking(looking);
            return Ok(Looked::NotAll);
        }
        // A log that fits one tick is not read again.
        let entries = if is_first { entries } else { self.entries(record.sequence, task, 1)? };
        Ok(Looked::Free { entries, bytes: looking.bytes })
    }

    fn entries(&self, sequence: u64, task: &TaskId, from: u64) -> Result<Vec<(KeyBytes, Record)>, BrokerError> {
        let range = CustodyLink::range(sequence, task, from);
        Ok(self.env.store.scan(Table::Custody, range, Order::Ascending, self.env.settings.retention.entries_a_step)?)
    }

    /// Whether an agent has not yet acked the message of this entry.
    fn mail_waits(&self, stored: &Record, looking: &mut Looking) -> Result<bool, BrokerError> {
        let entry = decode_entry(stored)?;
        let known = |text: &String| AgentId::parse(text).ok();
        looking.agents.extend(known(&entry.owner_id));
        if let Some(handoff) = self.stored_handoff(&entry.handoff_id)? {
            looking.agents.extend(handoff.handoff.offers.iter().map(|offer| offer.candidate.clone()));
        }
        let Some(Event::Accepted(accepted)) = &entry.event else { return Ok(false) };
        looking.agents.extend(accepted.resolved_agent_ids.iter().filter_map(known));
        if self.retention.is_over_size() {
            let envelope = self.env.store.get(&MessageRecord::envelope_key(accepted.sequence))?;
            looking.bytes += (stored.value.len() + envelope.map_or(0, |envelope| envelope.value.len())) as u64;
        }
        for agent in &looking.agents {
            let key = letter_key(agent, accepted.sequence);
            if self.read(&mut self.transaction(), &key)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn stored_handoff(&self, id: &str) -> Result<Option<HandoffRecord>, BrokerError> {
        let Ok(id) = MessageId::parse(id) else { return Ok(None) };
        let Some(stored) = self.env.store.get(&HandoffRecord::key(id))? else { return Ok(None) };
        Ok(Some(HandoffRecord::decode(&stored.value)?))
    }

    /// Removes these entries, of which the first has number `first`, with their envelopes and handoffs. Returns the
    /// number of the next entry, if more may exist.
    fn remove_entries(
        &self,
        transaction: &mut Transaction,
        task: &TaskId,
        entries: Vec<(KeyBytes, Record)>,
        first: u64,
    ) -> Result<Option<u64>, BrokerError> {
        let next = first + entries.len() as u64;
        let is_more = entries.len() >= self.env.settings.retention.entries_a_step;
        let mut handoffs = BTreeSet::new();
        for (key, stored) in entries {
            let entry = decode_entry(&stored)?;
            transaction.delete(Key { table: Table::Custody, key });
            handoffs.insert(entry.handoff_id);
            if let Some(Event::Accepted(accepted)) = &entry.event {
                transaction.delete(MessageRecord::envelope_key(accepted.sequence));
            }
        }
        for id in &handoffs {
            // An id in an entry may name a handoff of another task, which stays.
            let Some(stored) = self.stored_handoff(id)?.filter(|stored| stored.handoff.task == *task) else { continue };
            transaction.delete(HandoffRecord::key(stored.handoff.id));
            transaction.delete(HandoffRecord::index_key(stored.sequence));
            for agent in HandoffRecord::participants(&stored.handoff) {
                transaction.delete(HandoffRecord::agent_index_key(agent, stored.sequence));
            }
        }
        Ok(is_more.then_some(next))
    }

    /// Resumes the removal of a removed task's log. `what` is the task's sequence followed by its id.
    pub(super) fn remove_rest(
        &mut self,
        entry: Key,
        what: &[u8],
        record: &Record,
        budget: &mut usize,
    ) -> Result<Removal, BrokerError> {
        let mut transaction = self.transaction();
        let place = what.split_first_chunk().and_then(|(sequence, id)| {
            let task = TaskId::parse(std::str::from_utf8(id).ok()?).ok()?;
            Some((u64::from_be_bytes(*sequence), task))
        });
        let first = record.value.first_chunk().copied().map(u64::from_be_bytes);
        let (Some((sequence, task)), Some(first)) = (place, first) else {
            tracing::error!("failed to read the rest of a removed task");
            transaction.delete(entry);
            return Ok(self.stage_removal(transaction, budget));
        };
        let entries = self.entries(sequence, &task, first)?;
        if let Some(next) = self.remove_entries(&mut transaction, &task, entries, first)? {
            transaction.put(entry, rest_value(next), Some(record));
            self.stage_removal(transaction, budget);
            return Ok(Removal::Unfinished);
        }
        transaction.delete(entry);
        Ok(self.stage_removal(transaction, budget))
    }

    /// The record that a removed task has left behind.
    pub(super) fn removed_task(
        &self,
        transaction: &mut Transaction,
        task: &TaskId,
    ) -> Result<Option<RemovedTask>, BrokerError> {
        let Some(stored) = self.read(transaction, &RemovedTaskRecord::key(task))? else { return Ok(None) };
        Ok(Some(RemovedTaskRecord::decode(&stored.value)?.0))
    }
}

/// The result of a search of a task's log.
enum Looked {
    MailWaits,
    /// The entries so far are free, and more are left.
    NotAll,
    /// The first entries, and the size of all entries in bytes. The size is 0 unless the store is over its maximum
    /// size.
    Free {
        entries: Vec<(KeyBytes, Record)>,
        bytes: u64,
    },
}

/// The value of a row for the rest of a log: the number of the first entry left.
fn rest_value(next: u64) -> Bytes {
    Bytes::copy_from_slice(&next.to_be_bytes())
}

fn decode_entry(stored: &Record) -> Result<v1::CustodyEntry, BrokerError> {
    let (_, entry) = CustodyLink::decode(&stored.value)?;
    v1::CustodyEntry::decode(entry).map_err(|error| {
        tracing::error!(%error, "failed to decode an entry of a custody log");
        BrokerError::Internal
    })
}

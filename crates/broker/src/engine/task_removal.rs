//! Removing an ended task as a whole, once no mail about it waits.
//!
//! One commit hides the task and leaves its epoch in table removed_tasks. Later commits remove the parts of its custody
//! log that exceed one commit; no query can see these parts, and a restart resumes their removal.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::{Engine, batch::PostCommit, retention::Removal, stored_bytes::sender_in, transaction::Transaction};
use crate::{
    BrokerError,
    custody::{self, Logged},
    domain::{
        EntityId, RemovedTask,
        workspace::{WorkspaceId, WorkspaceOwner},
    },
    ids::{AgentId, MessageId, TaskId},
    proto::v1::custody_entry::Event,
    records::{
        Acceptance, Expiration, HandoffRecord, List, LogItem, LogPage, MessageRecord, RemovedTaskRecord, TaskRecord,
        encode_message_ids, encode_removed_changes, letter_key, removed_changes, removed_changes_key,
    },
    store::{Key, Order, Record, Table},
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
        let workspace = WorkspaceId::of(WorkspaceOwner::Task, task.as_str()).expect("the id of a task is a name");
        // An expiry of this batch may write the workspace, which goes with its task.
        if self.is_workspace_in_batch(&workspace) {
            return Ok(Removal::PutOff);
        }
        let bytes = match self.look_through(&record, budget)? {
            Looked::MailWaits => return Ok(Removal::PutOff),
            Looked::NotAll => return Ok(Removal::Unfinished),
            Looked::Free { bytes } => bytes,
        };
        transaction.delete(key);
        // Without the remains, a later request could use the id again and start at epoch 1 (SPEC 12: the id stays in
        // use).
        let left = RemovedTaskRecord(RemovedTask::of(&record.task));
        transaction.put_new(RemovedTaskRecord::key(&task), left.encode());
        // The items of the record are removed with it, and the pages as many at a time as one commit allows.
        if let Some(parent) = &record.task.parent {
            transaction.delete(List::of_parts(parent).place(record.sequence));
        }
        if let Some(conversation) = &record.task.conversation {
            transaction.delete(List::of_conversation(conversation).place(record.sequence));
        }
        record.creation_entries().into_iter().for_each(|(key, _)| transaction.delete(key));
        record.update_entry().into_iter().for_each(|(key, _)| transaction.delete(key));
        self.remove_contexts(&mut transaction, &record, now);
        if let Some(handoff) = &record.handoff {
            // The embedded handoff has no record of its own, in which `remove_items` would find its index entries.
            self.remove_listings(&mut transaction, handoff)?;
        }
        self.remove_items(&mut transaction, &task, record.log_tail, now)?;
        if let Some(next) = self.remove_pages(&mut transaction, (record.sequence, &task), 1, now)? {
            let key = Expiration::Rest.key(now, &[&record.sequence.to_be_bytes(), task.as_str().as_bytes()].concat());
            transaction.put_over(key.clone(), rest_value(next));
            transaction.post_commit.push(PostCommit::ExpirationStored { kind: Expiration::Rest, key, since: now });
        }
        let shared = self.remove_workspace(&mut transaction, &workspace, now)?;
        if self.retention.bytes_lost(bytes + shared + TASK_BYTES) {
            self.env.store.give_space_back();
        }
        tracing::debug!(%task, "removed an ended task");
        transaction.post_commit.push(PostCommit::EntityRemoved(EntityId::Task(task)));
        Ok(self.stage_removal(transaction, budget))
    }

    /// Searches for mail that needs an envelope of the task's log. A long log takes several ticks.
    fn look_through(&mut self, record: &TaskRecord, budget: &mut usize) -> Result<Looked, BrokerError> {
        let (task, length) = (&record.task.id, record.custody.length);
        let same = self.retention.take_looking().filter(|looking| looking.task == *task && looking.length == length);
        let fresh = Looking { task: task.clone(), length, next: 1, agents: BTreeSet::new(), bytes: 0 };
        let mut looking = same.unwrap_or(fresh);
        let most = self.env.settings.retention.entries_a_step;
        let items = custody::items(&*self.env.store, record, looking.next - 1, most)?;
        let looked_at = items.len();
        // `mail_waits` finds the candidates of the other handoffs in their own records.
        if let Some(handoff) = &record.handoff {
            looking.agents.extend(handoff.handoff.offers.iter().map(|offer| offer.candidate.clone()));
        }
        for (_, item) in items {
            if self.mail_waits(item, &mut looking)? {
                return Ok(Looked::MailWaits);
            }
        }
        looking.next += looked_at as u64;
        *budget = budget.saturating_sub(looked_at);
        // Entries that are missing in the store end the search. Otherwise it would find nothing again in every tick.
        if looking.next <= length && looked_at > 0 {
            self.retention.go_on_looking(looking);
            return Ok(Looked::NotAll);
        }
        Ok(Looked::Free { bytes: looking.bytes })
    }

    /// Whether an agent has not yet acked the message of this item.
    fn mail_waits(&self, item: LogItem, looking: &mut Looking) -> Result<bool, BrokerError> {
        let Logged { entry, message } = custody::entry(&*self.env.store, item)?;
        looking.bytes += entry.bytes.len() as u64;
        let entry = entry.decode()?;
        let known = |text: &String| AgentId::parse(text).ok();
        // An entry does not name the mailboxes of its message. The receivers are among the owners, the candidates and
        // the resolved agents of the entries up to it.
        looking.agents.extend(known(&entry.owner_id));
        if let Some(handoff) = self.stored_handoff(&entry.handoff_id)? {
            looking.agents.extend(handoff.handoff.offers.iter().map(|offer| offer.candidate.clone()));
        }
        let (Some(Event::Accepted(accepted)), Some(message)) = (&entry.event, message) else { return Ok(false) };
        looking.agents.extend(accepted.resolved_agent_ids.iter().filter_map(known));
        if self.retention.is_over_size() {
            looking.bytes += self.envelope_bytes_of(&message)?;
        }
        for agent in &looking.agents {
            // Only a letter with the message's own sequence needs the envelope of the log. Later copies have their own
            // envelopes.
            let key = letter_key(agent, accepted.sequence);
            if self.read(&mut self.transaction(), &key)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The size of a message's envelope.
    fn envelope_bytes_of(&self, message: &MessageRecord) -> Result<u64, BrokerError> {
        let envelope = match message.logged().and_then(|logged| logged.envelope.clone()) {
            Some(envelope) => Some(envelope),
            None => self.env.store.get(&MessageRecord::envelope_key(message.sequence))?.map(|record| record.value),
        };
        Ok(envelope.map_or(0, |envelope| envelope.len() as u64))
    }

    /// The handoff with this id, if it has a record of its own.
    fn stored_handoff(&self, id: &str) -> Result<Option<HandoffRecord>, BrokerError> {
        let Ok(id) = MessageId::parse(id) else { return Ok(None) };
        let Some(stored) = self.env.store.get(&HandoffRecord::key(id))? else { return Ok(None) };
        Ok(Some(HandoffRecord::decode(&stored.value)?))
    }

    /// The most pages of a log that one commit removes.
    fn pages_a_step(&self) -> usize {
        self.env.settings.retention.entries_a_step.div_ceil(LogPage::ITEMS)
    }

    /// Removes the next pages of a task's log with all that they name. Returns the first entry of the page after them,
    /// if more may exist.
    fn remove_pages(
        &mut self,
        transaction: &mut Transaction,
        (sequence, task): (u64, &TaskId),
        first: u64,
        now: Timestamp,
    ) -> Result<Option<u64>, BrokerError> {
        let (range, most) = (LogPage::range(sequence, task, first), self.pages_a_step());
        let pages = self.env.store.scan(Table::Custody, range, Order::Ascending, most)?;
        let is_more = pages.len() == most;
        let mut next = first;
        for (key, stored) in pages {
            let (first, items) = LogPage::decode(&key, &stored.value)?;
            next = first + items.len() as u64;
            self.remove_items(transaction, task, items, now)?;
            transaction.delete(Key { table: Table::Custody, key });
        }
        Ok(is_more.then_some(next))
    }

    /// Removes what these items of a task's log name: messages and handoffs. The record of a message that may still be
    /// repeated stays for its time, with its receipt and without its envelope.
    fn remove_items(
        &mut self,
        transaction: &mut Transaction,
        task: &TaskId,
        items: Vec<LogItem>,
        now: Timestamp,
    ) -> Result<(), BrokerError> {
        let mut handoffs = BTreeSet::new();
        for item in items {
            let Logged { entry, message } = custody::entry(&*self.env.store, item)?;
            let entry = entry.decode()?;
            handoffs.insert(entry.handoff_id);
            let Some(message) = message else { continue };
            // The envelope has a row of its own, or is in the message's record.
            match message.logged().and_then(|logged| logged.envelope.as_ref()) {
                None => transaction.delete(MessageRecord::envelope_key(message.sequence)),
                Some(envelope) => {
                    let stored = sender_in(envelope).map(|sender| (sender, envelope.len(), false));
                    transaction.stored.extend(stored);
                }
            }
            let receipt = message.receipt()?;
            let id = MessageId::parse(&receipt.message_id).map_err(|_| BrokerError::Internal)?;
            let at = entry.entry_time.and_then(|time| Timestamp::from_parts(time.seconds, time.nanos));
            let at = at.unwrap_or_default();
            if at.plus(self.env.settings.retention.message_ids) > now {
                // A repeat still gets its first receipt (SPEC 2), which can no longer be rebuilt from a log entry.
                let acceptance = Acceptance::Carried(Box::new(receipt));
                transaction.put_over(MessageRecord::key(id), MessageRecord { acceptance, ..message }.encode());
                let (kind, since) = (Expiration::Messages, at);
                // Longer than the key of a batch, so that it is never the same.
                let key = kind.key(since, id.as_bytes());
                transaction.put_over(key.clone(), encode_message_ids(&[id]));
                transaction.post_commit.push(PostCommit::ExpirationStored { kind, key, since });
            } else {
                transaction.delete(MessageRecord::key(id));
                self.message_ids_removed(at);
            }
        }
        for id in &handoffs {
            // An id in an entry may name a handoff of another task, which stays.
            let Some(stored) = self.stored_handoff(id)?.filter(|stored| stored.handoff.task == *task) else { continue };
            transaction.delete(HandoffRecord::key(stored.handoff.id));
            transaction.delete(stored.task_entry().0);
            self.remove_listings(transaction, &stored)?;
        }
        Ok(())
    }

    /// Removes the index entries that an ended handoff has in its task and outside. Notes its latest change, so that a
    /// watcher that has not got it learns of the gap.
    fn remove_listings(&self, transaction: &mut Transaction, record: &HandoffRecord) -> Result<(), BrokerError> {
        transaction.delete(List::of_handoffs(None).place(record.sequence));
        record.end_entry().into_iter().for_each(|(key, _)| transaction.delete(key));
        for agent in HandoffRecord::participants(&record.handoff) {
            transaction.delete(List::of_handoffs(Some(agent)).place(record.sequence));
        }
        let key = removed_changes_key();
        let in_hand = transaction.written_record(&key).and_then(|record| record.clone());
        let known = match in_hand {
            Some(known) => Some(known),
            None => self.read(&mut Transaction::default(), &key)?,
        };
        let known = known.map(|record| removed_changes(&record.value)).transpose()?.unwrap_or(0);
        transaction.put_over(key, encode_removed_changes(known.max(record.changed)));
        Ok(())
    }

    /// Resumes the removal of a removed task's log. `what` is the task's sequence followed by its id.
    pub(super) fn remove_rest(
        &mut self,
        entry: Key,
        what: &[u8],
        record: &Record,
        budget: &mut usize,
        now: Timestamp,
    ) -> Result<Removal, BrokerError> {
        let mut transaction = self.transaction();
        let place = what.split_first_chunk().and_then(|(sequence, id)| {
            let task = TaskId::parse(std::str::from_utf8(id).ok()?).ok()?;
            Some((u64::from_be_bytes(*sequence), task))
        });
        let first = record.value.first_chunk().copied().map(u64::from_be_bytes);
        let (Some((sequence, task)), Some(first)) = (place, first) else {
            // The entry is deleted all the same: the search would stop at it in every tick.
            tracing::error!("failed to read the rest of a removed task");
            transaction.delete(entry);
            return Ok(self.stage_removal(transaction, budget));
        };
        if let Some(next) = self.remove_pages(&mut transaction, (sequence, &task), first, now)? {
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
    /// No mail needs the log. The size of its entries in bytes, with that of the envelopes if the store is over its
    /// maximum size.
    Free {
        bytes: u64,
    },
}

/// The value of a row for the rest of a log: the number of the first entry left.
fn rest_value(next: u64) -> Bytes {
    Bytes::copy_from_slice(&next.to_be_bytes())
}

//! Changes in the making: what a command has read and wants to write, and the batch it becomes part of.

use std::{collections::BTreeSet, ops::Range, sync::Arc};

use bytes::Bytes;

use super::{Engine, entities::Stored, watchers::Watcher};
use crate::{
    broker::{Answered, BrokerError, Output, Refused, Reply, directory::Entry},
    domain::{EntityId, handoff::Handoff, mailbox::Letter},
    ids::{AgentId, IdMap, MessageId, TaskId},
    records::{HandoffRecord, Kept, TaskRecord},
    store::{Change, Expectation, Key, KeyMap, Record, Write},
    time::Timestamp,
};

/// What is to be done in memory once a change is durable.
#[derive(Debug)]
pub(super) enum PostCommit {
    LetterStored {
        agent: AgentId,
        letter: Letter,
    },
    LetterRemoved {
        agent: AgentId,
        place: u64,
    },
    LetterRequeued {
        agent: AgentId,
        letter: Letter,
    },
    /// The mailbox has this timer; `None`: it has none.
    MailTimer {
        agent: AgentId,
        at: Option<Timestamp>,
    },
    Timer {
        handoff: MessageId,
        sender: AgentId,
        before: Option<Timestamp>,
        after: Option<Timestamp>,
    },
    HandoffMoved(Arc<Handoff>),
    TaskMoved {
        task: TaskId,
        length: u64,
    },
    TaskRemoved(TaskId),
    Kept {
        kind: Kept,
        key: Key,
        since: Timestamp,
    },
    /// The audit log has an entry of this time.
    OnRecord {
        at: Timestamp,
    },
    AgentStored(Box<Entry>),
    KeyRevoked(AgentId),
}

/// One command's change in the making.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    change: Change,
    pub(super) post_commit: Vec<PostCommit>,
    /// What it writes of these, to be known from then on.
    tasks: Vec<Stored<TaskRecord>>,
    handoffs: Vec<Stored<HandoffRecord>>,
}

impl Transaction {
    /// Writes a new version of a record that was read for this transaction.
    pub(super) fn put(&mut self, key: Key, value: Bytes, before: Option<&Record>) {
        self.write_version(key, value, before.map(|record| record.revision));
    }

    /// Writes a new version of a task.
    pub(super) fn put_task(&mut self, task: Arc<TaskRecord>, before: Option<&Stored<TaskRecord>>) {
        let key = TaskRecord::key(&task.task.id);
        let revision = self.write_version(key, task.encode(), before.map(|stored| stored.revision));
        self.tasks.push(Stored { value: task, revision });
    }

    /// Writes a new version of a handoff.
    pub(super) fn put_handoff(&mut self, handoff: Arc<HandoffRecord>, before: Option<&Stored<HandoffRecord>>) {
        let key = HandoffRecord::key(handoff.handoff.id);
        let revision = self.write_version(key, handoff.encode(), before.map(|stored| stored.revision));
        self.handoffs.push(Stored { value: handoff, revision });
    }

    /// The change is applied only if the record has this revision then; `None`: if it is not there.
    pub(super) fn expect(&mut self, key: &Key, revision: Option<u64>) {
        let expectations = &mut self.change.expectations;
        if !expectations.iter().any(|known| known.key == *key) {
            expectations.push(Expectation { key: key.clone(), revision });
        }
    }

    /// Writes a record under a key that was never used.
    pub(super) fn put_new(&mut self, key: Key, value: Bytes) {
        self.write(key, Some(Record { revision: 1, value }), true);
    }

    /// Writes a record that may be there already. Nobody compares its revision.
    pub(super) fn put_over(&mut self, key: Key, value: Bytes) {
        self.write(key, Some(Record { revision: 1, value }), false);
    }

    /// Sees to it that something is removed when it was kept for its time.
    pub(super) fn keep(&mut self, kind: Kept, since: Timestamp, what: &[u8]) {
        let key = kind.key(since, what);
        self.put_over(key.clone(), Bytes::new());
        self.post_commit.push(PostCommit::Kept { kind, key, since });
    }

    pub(super) fn delete(&mut self, key: Key) {
        self.write(key, None, false);
    }

    /// How many records it writes.
    pub(super) fn writes(&self) -> usize {
        self.change.writes.len()
    }

    /// Returns the new version's revision.
    fn write_version(&mut self, key: Key, value: Bytes, before: Option<u64>) -> u64 {
        let revision = before.unwrap_or(0) + 1;
        self.write(key, Some(Record { revision, value }), before.is_none());
        revision
    }

    fn write(&mut self, key: Key, record: Option<Record>, is_new: bool) {
        self.change.writes.push(Write { key, record, is_new });
    }
}

/// What becomes of a part of the batch once it is committed.
#[derive(Debug)]
pub(super) struct PendingReply {
    /// Its changes among the batch's.
    pub(super) changes: Range<usize>,
    pub(super) post_commit: Vec<PostCommit>,
    pub(super) answer: Option<Answered>,
}

impl PendingReply {
    /// What is sent where its changes are not applied.
    pub(super) fn refusal(self, error: &Refused) -> Option<Output> {
        self.answer.map(|answered| Output::Reply(answered.refused(error.clone())))
    }
}

/// Where a write is in the batch: its change, and its place in that.
#[derive(Debug, Clone, Copy)]
struct Place(usize, usize);

/// Commands whose changes are committed with one sync.
#[derive(Debug, Default)]
pub(super) struct CommitBatch {
    pub(super) changes: Vec<Change>,
    pub(super) replies: Vec<PendingReply>,
    pub(super) touched: BTreeSet<AgentId>,
    /// Watchers of entities that are registered behind the commit.
    pub(super) watches: Vec<(EntityId, Watcher)>,
    /// The messages that it accepts.
    pub(super) accepted: Vec<MessageId>,
    /// What the batch has written so far: later commands of the batch see it.
    written: KeyMap<Place>,
    /// The mailboxes' timers as the batch has them.
    mail_timers: IdMap<AgentId, Option<Timestamp>>,
    /// Changes from here on belong to the command in hand.
    open_from: usize,
    open_post_commit: Vec<PostCommit>,
    pub(super) head: Head,
    /// A commit failed: it is not known what is on disk, and no command is taken any more.
    pub(super) failed: bool,
}

/// What each commit stores beside its changes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Head {
    pub(super) next_sequence: u64,
    /// The ids of messages with a timestamp up to this one may be removed.
    pub(super) message_ids_gone: Timestamp,
}

impl CommitBatch {
    /// The first batch after a start.
    pub(super) fn after(head: Head) -> Self {
        Self { head, ..Self::default() }
    }

    /// What there is to be committed. What begins now takes over the room that this batch needed.
    pub(super) fn take(&mut self) -> Self {
        let mut batch = std::mem::take(self);
        batch.written.clear();
        self.written = std::mem::take(&mut batch.written);
        (self.head, self.failed) = (batch.head, batch.failed);
        batch
    }

    /// Whether nothing is in it yet.
    pub(super) fn is_empty(&self) -> bool {
        let is_changed = !self.changes.is_empty() || !self.replies.is_empty() || !self.open_post_commit.is_empty();
        !is_changed && self.touched.is_empty() && self.watches.is_empty()
    }

    /// Ends the command in hand: its answer is sent after the commit of all it changed.
    pub(super) fn answer<T: Send + 'static>(&mut self, reply: Reply<T>, outcome: Result<T, Refused>) {
        self.close(Some(reply.with(outcome)));
    }

    fn close(&mut self, answer: Option<Answered>) {
        let changes = self.open_from..self.changes.len();
        self.open_from = self.changes.len();
        let post_commit = std::mem::take(&mut self.open_post_commit);
        self.replies.push(PendingReply { changes, post_commit, answer });
    }

    pub(super) fn put_unconditionally(&mut self, key: Key, value: Bytes) {
        self.close(None);
        let write = Write { key, record: Some(Record { revision: 1, value }), is_new: false };
        self.changes.push(Change { expectations: Vec::new(), writes: vec![write] });
        self.close(None);
    }

    /// What is sent where the commit has failed.
    pub(super) fn refusals(self, error: &Refused) -> impl Iterator<Item = Output> {
        let answers = self.replies.into_iter().filter_map(|pending| pending.refusal(error));
        answers.chain(self.watches.into_iter().map(|(_, watcher)| watcher.output(Err(error.clone()))))
    }
}

impl Engine {
    pub(super) fn transaction(&self) -> Transaction {
        Transaction::default()
    }

    /// Reads a record for a change: the change is applied only if the record is still the same then.
    pub(super) fn read(&self, transaction: &mut Transaction, key: &Key) -> Result<Option<Record>, BrokerError> {
        let found = match self.batch.written.get(key) {
            Some(&Place(change, write)) => self.batch.changes[change].writes[write].record.clone(),
            None => self.env.store.get(key)?,
        };
        transaction.expect(key, found.as_ref().map(|record| record.revision));
        Ok(found)
    }

    /// Whether an earlier command of this batch writes the record.
    pub(super) fn is_written_in_batch(&self, key: &Key) -> bool {
        self.batch.written.contains_key(key)
    }

    /// Adds the transaction to the batch, as part of the command in hand.
    pub(super) fn stage(&mut self, transaction: Transaction) {
        for (place, write) in transaction.change.writes.iter().enumerate() {
            self.batch.written.insert(write.key.clone(), Place(self.batch.changes.len(), place));
            self.entities.forget(&write.key);
        }
        for task in transaction.tasks {
            self.entities.tasks.insert(TaskRecord::key(&task.value.task.id).key, task);
        }
        for handoff in transaction.handoffs {
            self.entities.handoffs.insert(HandoffRecord::key(handoff.value.handoff.id).key, handoff);
        }
        if !transaction.change.writes.is_empty() {
            self.batch.changes.push(transaction.change);
        }
        for act in &transaction.post_commit {
            if let PostCommit::MailTimer { agent, at } = act {
                self.batch.mail_timers.insert(agent.clone(), *at);
            }
        }
        self.batch.open_post_commit.extend(transaction.post_commit);
    }

    /// The timer of a mailbox that is known to be there. Another one may be, too.
    pub(super) fn mail_timer(&self, agent: &AgentId) -> Option<Timestamp> {
        match self.batch.mail_timers.get(agent) {
            Some(of_this_group) => *of_this_group,
            None => self.delivery.mail_timer_of.get(agent).copied(),
        }
    }

    /// When the first letter expires of those that the batch puts into a mailbox.
    pub(super) fn first_expiry_of_batch(&self, to: &AgentId) -> Option<Timestamp> {
        let post_commit =
            self.batch.replies.iter().flat_map(|pending| &pending.post_commit).chain(&self.batch.open_post_commit);
        let expiry = |act: &PostCommit| match act {
            PostCommit::LetterStored { agent, letter } if agent == to => Some(letter.expires_at),
            _ => None,
        };
        post_commit.filter_map(expiry).min()
    }

    /// Ends a command in hand that nobody waits for.
    pub(super) fn end_unanswered(&mut self) {
        self.batch.close(None);
    }
}

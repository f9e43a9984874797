//! The commit batch: the changes of the commands in hand, and what follows once they are durable.

use std::{collections::BTreeSet, ops::Range, sync::Arc};

use bytes::Bytes;

use super::watchers::Watcher;
use crate::{
    broker::{Answered, Output, Refused, Reply, directory::Entry},
    domain::{EntityId, mailbox::Letter},
    ids::{AgentId, IdMap, MessageId, TaskId},
    records::{EntityRecord, Expiration},
    store::{Change, Key, KeyMap, Record, Write},
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
    /// The timer of an entity has moved. Times are by the running time.
    EntityTimer {
        entity: EntityId,
        counts_for: Option<AgentId>,
        before: Option<Timestamp>,
        after: Option<Timestamp>,
    },
    /// A step has changed an entity.
    EntityMoved(Arc<EntityRecord>),
    /// A row of the outbox is written.
    OutboxWritten(u64),
    TaskRemoved(TaskId),
    ExpirationStored {
        kind: Expiration,
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
pub(super) struct Place(pub(super) usize, pub(super) usize);

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
    /// Whether it writes a row of the outbox.
    pub(super) writes_outbox: bool,
    /// What the batch has written so far: later commands of the batch see it.
    pub(super) written: KeyMap<Place>,
    /// The mailboxes' timers as the batch has them.
    pub(super) mail_timers: IdMap<AgentId, Option<Timestamp>>,
    /// Changes from here on belong to the command in hand.
    open_from: usize,
    pub(super) open_post_commit: Vec<PostCommit>,
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

    pub(super) fn close(&mut self, answer: Option<Answered>) {
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

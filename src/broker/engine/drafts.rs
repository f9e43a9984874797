//! Changes in the making: what a command has read and wants to write, and the group it becomes part of.

use std::{collections::BTreeSet, ops::Range, sync::Arc};

use bytes::Bytes;

use super::{Engine, Updates, latest::Stored};
use crate::{
    broker::{BrokerError, Outcome, Reply, directory::Entry, refused},
    domain::{handoff::Handoff, mailbox::Letter},
    ids::{AgentId, IdMap, MessageId, TaskId},
    records::{HandoffRecord, Kept, TaskRecord},
    store::{Change, Expectation, Key, KeyMap, Record, Write},
    time::Timestamp,
};

/// What is to be done in memory once a change is durable.
#[derive(Debug)]
pub(super) enum Act {
    LetterStored {
        agent: AgentId,
        letter: Letter,
    },
    LetterRemoved {
        agent: AgentId,
        place: u64,
    },
    LetterPutBack {
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
pub(super) struct Draft {
    change: Change,
    pub(super) acts: Vec<Act>,
    /// What it writes of these, to be known from then on.
    tasks: Vec<Stored<TaskRecord>>,
    handoffs: Vec<Stored<HandoffRecord>>,
}

impl Draft {
    /// Writes a new version of a record that was read for this draft.
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
        self.acts.push(Act::Kept { kind, key, since });
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

/// What becomes of a part of the group once it is committed.
#[derive(Debug)]
pub(super) struct Ticket {
    /// Its changes among the group's.
    pub(super) changes: Range<usize>,
    pub(super) acts: Vec<Act>,
    pub(super) answer: Option<(Reply, Outcome)>,
}

impl Ticket {
    pub(super) fn refuse(self, error: BrokerError) {
        if let Some((reply, _)) = self.answer {
            reply.send(Err(refused(error)));
        }
    }
}

/// Where a write is in the group: its change, and its place in that.
#[derive(Debug, Clone, Copy)]
struct Place(usize, usize);

/// Commands whose changes are committed with one sync.
#[derive(Debug, Default)]
pub(super) struct Group {
    pub(super) changes: Vec<Change>,
    pub(super) tickets: Vec<Ticket>,
    pub(super) touched: BTreeSet<AgentId>,
    pub(super) watches: Vec<(MessageId, Updates)>,
    /// The messages that it accepts.
    pub(super) accepted: Vec<MessageId>,
    /// What the group has written so far: later commands of the group see it.
    written: KeyMap<Place>,
    /// The mailboxes' timers as the group has them.
    mail_timers: IdMap<AgentId, Option<Timestamp>>,
    /// Changes from here on belong to the command in hand.
    open_from: usize,
    open_acts: Vec<Act>,
}

impl Group {
    /// What there is to be committed. What begins now takes over the room that this group needed.
    pub(super) fn take(&mut self) -> Self {
        let mut group = std::mem::take(self);
        group.written.clear();
        self.written = std::mem::take(&mut group.written);
        group
    }

    /// Whether nothing is in it yet.
    pub(super) fn is_empty(&self) -> bool {
        let is_changed = !self.changes.is_empty() || !self.tickets.is_empty() || !self.open_acts.is_empty();
        !is_changed && self.touched.is_empty() && self.watches.is_empty()
    }

    /// Ends the command in hand: its answer is sent after the commit of all it changed.
    pub(super) fn answer(&mut self, reply: Reply, outcome: Outcome) {
        self.close(Some((reply, outcome)));
    }

    fn close(&mut self, answer: Option<(Reply, Outcome)>) {
        let changes = self.open_from..self.changes.len();
        self.open_from = self.changes.len();
        let acts = std::mem::take(&mut self.open_acts);
        self.tickets.push(Ticket { changes, acts, answer });
    }

    pub(super) fn put_unconditionally(&mut self, key: Key, value: Bytes) {
        self.close(None);
        let write = Write { key, record: Some(Record { revision: 1, value }), is_new: false };
        self.changes.push(Change { expectations: Vec::new(), writes: vec![write] });
        self.close(None);
    }

    pub(super) fn refuse_all(self, error: BrokerError) {
        for ticket in self.tickets {
            ticket.refuse(error.clone());
        }
        let error = refused(error);
        for (_, updates) in self.watches {
            drop(updates.try_send(Err(error.clone())));
        }
    }
}

impl Engine {
    pub(super) fn draft(&self) -> Draft {
        Draft::default()
    }

    /// Reads a record for a change: the change is applied only if the record is still the same then.
    pub(super) fn read(&self, draft: &mut Draft, key: &Key) -> Result<Option<Record>, BrokerError> {
        let found = match self.group.written.get(key) {
            Some(&Place(change, write)) => self.group.changes[change].writes[write].record.clone(),
            None => self.store.get(key)?,
        };
        draft.expect(key, found.as_ref().map(|record| record.revision));
        Ok(found)
    }

    /// Whether an earlier command of this group writes the record.
    pub(super) fn is_written_in_group(&self, key: &Key) -> bool {
        self.group.written.contains_key(key)
    }

    /// Adds the draft to the group, as part of the command in hand.
    pub(super) fn seal(&mut self, draft: Draft) {
        for (place, write) in draft.change.writes.iter().enumerate() {
            self.group.written.insert(write.key.clone(), Place(self.group.changes.len(), place));
            self.latest.forget(&write.key);
        }
        for task in draft.tasks {
            self.latest.tasks.insert(TaskRecord::key(&task.value.task.id).key, task);
        }
        for handoff in draft.handoffs {
            self.latest.handoffs.insert(HandoffRecord::key(handoff.value.handoff.id).key, handoff);
        }
        if !draft.change.writes.is_empty() {
            self.group.changes.push(draft.change);
        }
        for act in &draft.acts {
            if let Act::MailTimer { agent, at } = act {
                self.group.mail_timers.insert(agent.clone(), *at);
            }
        }
        self.group.open_acts.extend(draft.acts);
    }

    /// The timer of a mailbox that is known to be there. Another one may be, too.
    pub(super) fn mail_timer(&self, agent: &AgentId) -> Option<Timestamp> {
        match self.group.mail_timers.get(agent) {
            Some(of_this_group) => *of_this_group,
            None => self.mail_timer_of.get(agent).copied(),
        }
    }

    /// When the first letter expires of those that the group puts into a mailbox.
    pub(super) fn first_expiry_of_group(&self, to: &AgentId) -> Option<Timestamp> {
        let acts = self.group.tickets.iter().flat_map(|ticket| &ticket.acts).chain(&self.group.open_acts);
        let expiry = |act: &Act| match act {
            Act::LetterStored { agent, letter } if agent == to => Some(letter.expires_at),
            _ => None,
        };
        acts.filter_map(expiry).min()
    }

    /// Ends a command in hand that nobody waits for.
    pub(super) fn end_unanswered(&mut self) {
        self.group.close(None);
    }
}

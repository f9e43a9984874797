//! The commit batch: the changes of the commands in hand, and the actions that follow their commit.

use std::{collections::BTreeSet, ops::Range, sync::Arc};

use bytes::Bytes;

use super::watchers::Watcher;
use crate::{
    Answered, Away, Output, Refused, Reply,
    directory::Entry,
    domain::{EntityId, Header, TraceContext, mailbox::Letter, matching::Statistics},
    ids::{AgentId, IdMap, KeyId, MessageId},
    metrics::Event,
    records::{EntityRecord, Expiration},
    store::{Change, Key, KeyMap, Record, Write},
    time::Timestamp,
};

/// An action on the engine's memory, done after its change is durable.
#[derive(Debug, Clone)]
pub(super) enum PostCommit {
    LetterStored {
        agent: AgentId,
        letter: Letter,
    },
    LetterRemoved {
        agent: AgentId,
        place: u64,
    },
    /// A letter with earlier delivery attempts is about to be removed, and spans are on.
    AttemptsEnded {
        agent: AgentId,
        letter: Box<Letter>,
    },
    LetterRequeued {
        agent: AgentId,
        letter: Letter,
    },
    /// The mailbox has this timer in the store. `None`: the mailbox has no timer.
    MailTimer {
        agent: AgentId,
        at: Option<Timestamp>,
    },
    /// The timer of an entity has moved. Times are running times.
    EntityTimer {
        entity: EntityId,
        counts_for: Option<AgentId>,
        /// The bytes that it counts if this opens it.
        bytes: u32,
        before: Option<Timestamp>,
        after: Option<Timestamp>,
    },
    /// A step has changed an entity. `before` is `None` for a new one.
    EntityMoved {
        before: Option<Arc<EntityRecord>>,
        after: Arc<EntityRecord>,
    },
    /// The figures count this.
    Count(Event),
    /// The log names this accepted message. Absent where the level of the log is above debug.
    LogAccepted(Box<Header>, Option<Box<TraceContext>>),
    /// The outbox has a new row with this sequence.
    OutboxWritten(u64),
    /// An entity is removed, and its watchers end.
    EntityRemoved(EntityId),
    ExpirationStored {
        kind: Expiration,
        key: Key,
        since: Timestamp,
    },
    /// The audit log has a new entry of this time.
    OnRecord {
        at: Timestamp,
    },
    /// The record of a file is removed.
    FileRemoved(crate::blobs::Removed),
    AgentStored(Box<Entry>),
    /// The sessions of the agent are to end.
    SessionsEnded(AgentId, Away),
    /// The agent is deregistered, and its mail is to become dead letters.
    AgentLeft(AgentId),
    StatisticsStored {
        agent: AgentId,
        statistics: Box<Statistics>,
    },
}

/// A part of the batch: its changes, the actions after the commit, and the answer.
#[derive(Debug)]
pub(super) struct PendingReply {
    /// The indexes of its changes in the batch.
    pub(super) changes: Range<usize>,
    pub(super) post_commit: Vec<PostCommit>,
    pub(super) answer: Option<Answered>,
}

impl PendingReply {
    /// The refusal of the caller, if a caller waits. Sent when the changes are not applied.
    pub(super) fn refusal(self, error: &Refused) -> Option<Output> {
        self.answer.map(|answered| Output::Reply(answered.refused(error.clone())))
    }
}

/// The position of a write in the batch: the index of the change, and the index of the write in that change.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place(pub(super) usize, pub(super) usize);

/// The bytes of a written record that count as one unit of work.
const WORK_BYTES: usize = 4096;

/// The commands whose changes one sync commits.
#[derive(Debug, Default)]
pub(super) struct CommitBatch {
    pub(super) changes: Vec<Change>,
    pub(super) replies: Vec<PendingReply>,
    pub(super) touched: BTreeSet<AgentId>,
    /// Watchers that the engine registers after the commit.
    pub(super) watches: Vec<(EntityId, Watcher)>,
    /// The ids of the messages that the batch accepts and no custody log has.
    pub(super) accepted: Vec<MessageId>,
    /// The agents that the batch deregisters. The directory shows that after the commit.
    pub(super) left: BTreeSet<AgentId>,
    /// Whether the batch writes a row of the outbox.
    pub(super) writes_outbox: bool,
    /// The records that the batch has written so far. Later commands of the batch read them here.
    pub(super) written: KeyMap<Place>,
    /// The timers of mailboxes that the batch changes.
    pub(super) mail_timers: IdMap<AgentId, Option<Timestamp>>,
    /// The bytes that the batch adds to what each agent stores.
    pub(super) stored: IdMap<AgentId, i64>,
    /// The index of the first change of the command in hand.
    open_from: usize,
    pub(super) open_post_commit: Vec<PostCommit>,
    pub(super) head: Head,
    /// The work in the batch so far: the records that it writes, those that it has read to change them, and each further
    /// [`WORK_BYTES`] of the written ones. A unit takes the engine's thread about 5 µs, with its part of the commit.
    pub(super) work: usize,
    /// The bytes of its writes.
    pub(super) bytes: usize,
    /// Whether an operator asks for the command in hand: each of its changes has an entry in the audit log.
    pub(super) is_of_operator: bool,
    /// A commit or a read has failed: the state on disk is unknown, and the engine accepts no more commands.
    pub(super) failed: bool,
}

/// The values that each commit stores beside its changes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Head {
    pub(super) next_sequence: u64,
    /// The retention may have removed the ids of messages with a timestamp up to this one.
    pub(super) message_ids_gone: Timestamp,
}

impl CommitBatch {
    /// The first batch after a start.
    pub(super) fn after(head: Head) -> Self {
        Self { head, ..Self::default() }
    }

    /// Takes the batch out for its commit. The new batch reuses the allocated memory of `written`.
    pub(super) fn take(&mut self) -> Self {
        let mut batch = std::mem::take(self);
        batch.written.clear();
        self.written = std::mem::take(&mut batch.written);
        // Both outlast the batch: sequences are never used twice, and only a recovery ends a failure.
        (self.head, self.failed) = (batch.head, batch.failed);
        batch
    }

    /// Whether the batch has no changes, replies, watches or touched mailboxes.
    pub(super) fn is_empty(&self) -> bool {
        let is_changed = !self.changes.is_empty() || !self.replies.is_empty() || !self.open_post_commit.is_empty();
        !is_changed && self.touched.is_empty() && self.watches.is_empty()
    }

    /// Adds a change to the batch.
    pub(super) fn push(&mut self, change: Change) {
        let work = |write: &Write| 1 + write.record.as_ref().map_or(0, |record| record.value.len()) / WORK_BYTES;
        self.work += change.writes.iter().map(work).sum::<usize>() + change.expectations.len();
        self.bytes += change.writes.iter().map(Write::bytes).sum::<usize>();
        self.changes.push(change);
    }

    /// Ends the command in hand. Its answer is sent after the commit of all its changes.
    pub(super) fn answer<T: Send + 'static>(&mut self, reply: Reply<T>, outcome: Result<T, Refused>) {
        // A refused act may have let overdue deadlines pass, and changes nothing else.
        if std::mem::take(&mut self.is_of_operator) && outcome.is_ok() && self.changes.len() > self.open_from {
            let is_recorded = self.open_post_commit.iter().any(|done| matches!(done, PostCommit::OnRecord { .. }));
            if !is_recorded {
                tracing::error!("an operator's act has no entry in the audit log");
            }
            debug_assert!(is_recorded, "an operator's act has no entry in the audit log");
        }
        self.close(Some(reply.with(outcome)));
    }

    /// Ends the command in hand, with an answer if a caller waits.
    pub(super) fn close(&mut self, answer: Option<Answered>) {
        let changes = self.open_from..self.changes.len();
        self.open_from = self.changes.len();
        let post_commit = std::mem::take(&mut self.open_post_commit);
        self.replies.push(PendingReply { changes, post_commit, answer });
    }

    /// The id of a key on this card that the batch stores for another agent, if any.
    pub(super) fn key_of_another(&self, entry: &Entry) -> Option<KeyId> {
        let actions = self.replies.iter().flat_map(|pending| &pending.post_commit).chain(&self.open_post_commit);
        let mut stored = actions.filter_map(|action| match action {
            PostCommit::AgentStored(stored) if stored.id() != entry.id() => Some(stored),
            _ => None,
        });
        stored.find_map(|other| entry.key_shared_with(other)).cloned()
    }

    /// Adds a write that no revision guards.
    pub(super) fn put_unconditionally(&mut self, key: Key, value: Bytes) {
        let write = Write { key, record: Some(Record { revision: 1, value }), is_new: false };
        self.put_all_unconditionally(Change { expectations: Vec::new(), writes: vec![write] });
    }

    /// Adds writes that no revision guards.
    pub(super) fn put_all_unconditionally(&mut self, change: Change) {
        self.close(None);
        // The writes belong to no command, so that a conflict of a command does not take them along.
        self.changes.push(change);
        self.close(None);
    }

    /// The refusals of all callers and watchers of the batch, for a failed commit.
    pub(super) fn refusals(self, error: &Refused) -> impl Iterator<Item = Output> {
        let answers = self.replies.into_iter().filter_map(|pending| pending.refusal(error));
        answers.chain(self.watches.into_iter().map(|(_, watcher)| watcher.output(Err(error.clone()))))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::super::{Command, Engine, PARTS_OF_A_GROUP};
    use crate::{
        BrokerIdentity, Resources, Settings, Signer,
        envelope::keys::PrivateKey,
        ids::{KeyId, SystemIds},
        proto::v1::AuditAction,
        records::{AuditAct, AuditHead},
        store::{AppendError, CommitLog, Link, Mark, Position, Replica, Store},
        time::Timestamp,
    };

    /// One for all, since a record with an earlier or a later time may have fewer or more bytes.
    const NOW: Timestamp = Timestamp::from_unix_nanoseconds(1_800_000_000_000_000_000);

    /// A shared log that takes entries up to a limit. Keeps the bytes of each.
    #[derive(Clone)]
    struct SmallLog {
        entries: Arc<Mutex<Vec<usize>>>,
        bytes_max: usize,
    }

    impl CommitLog for SmallLog {
        fn append(&mut self, after: Position, entry: &[u8]) -> Result<Mark, AppendError> {
            assert_eq!(after, self.end().position);
            if entry.len() > self.bytes_max {
                return Err(AppendError::TooLarge { bytes: entry.len(), bytes_max: self.bytes_max });
            }
            self.entries.lock().unwrap().push(entry.len());
            Ok(self.end())
        }

        fn end(&self) -> Mark {
            let position = self.entries.lock().unwrap().len() as Position;
            let link = Link { hash: [0; 32], term: 1, level: 1 };
            Mark { position, link: (position > 0).then_some(link) }
        }

        fn entry_bytes_max(&self) -> usize {
            self.bytes_max
        }
    }

    /// An engine of a leader whose shared log takes entries up to this limit.
    struct Leader {
        engine: Engine,
        store: Arc<dyn Store>,
        log: SmallLog,
        now: Timestamp,
        _folder: tempfile::TempDir,
    }

    impl Leader {
        fn over(bytes_max: usize) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let log = SmallLog { entries: Arc::default(), bytes_max };
            let store = Replica::open(&folder.path().join("store"), &[7; 16]).unwrap().lead(Box::new(log.clone()));
            let identity = BrokerIdentity {
                key_id: KeyId::parse("k1").unwrap(),
                key: PrivateKey::from_seed(&[1; 32]),
                coordinator: Signer::new(PrivateKey::from_seed(&[77; 32])),
            };
            let (settings, resources) = (Arc::new(Settings::default()), Resources::default());
            let engine = Engine::open(store.clone(), identity, settings, resources, Arc::new(SystemIds), NOW).unwrap();
            let mut own = Self { engine, store, log, now: NOW, _folder: folder };
            own.engine.finish(NOW);
            own
        }

        /// Adds an entry of the audit log with this many bytes, which compression does not make shorter.
        fn note(&mut self, bytes: usize) {
            let mut random = bytes as u64;
            let mut draw = || {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                char::from_digit((random >> 59) as u32, 36).unwrap()
            };
            let act = AuditAct {
                actor: "the broker".to_owned(),
                action: AuditAction::PolicyLoaded,
                subject: String::new(),
                details: std::iter::repeat_with(&mut draw).take(bytes).collect(),
            };
            self.engine.handle(Command::Note { act }, self.now);
        }

        fn acts(&self) -> u64 {
            let stored = self.store.get(&AuditHead::key()).unwrap();
            stored.map_or(0, |stored| AuditHead::decode(&stored.value).unwrap().kept())
        }
    }

    #[test]
    fn a_batch_takes_commands_up_to_a_quarter_of_the_largest_entry() {
        let mut leader = Leader::over(1024 * 1024);
        leader.note(1000);
        let bytes = leader.engine.batch.bytes;
        assert!(bytes > 1000, "{bytes}");
        for (quarter, takes_more) in [(bytes + 1, true), (bytes, false), (bytes - 1, false)] {
            let mut leader = Leader::over(quarter * PARTS_OF_A_GROUP);
            leader.note(1000);
            assert_eq!((leader.engine.batch.bytes, leader.engine.has_room()), (bytes, takes_more), "{quarter}");
        }
    }

    #[test]
    fn many_commands_go_into_entries_that_the_log_takes() {
        let mut leader = Leader::over(64 * 1024);
        let (mut left, before) = (200, leader.acts());
        while left > 0 {
            while left > 0 && leader.engine.has_room() {
                leader.note(1000);
                left -= 1;
            }
            leader.engine.finish(leader.now);
            assert!(!leader.engine.has_failed());
        }
        let entries = leader.log.entries.lock().unwrap().clone();
        assert_eq!(leader.acts() - before, 200);
        assert!(entries.iter().all(|bytes| *bytes < 32 * 1024) && entries.len() > 5, "{entries:?}");
    }

    #[test]
    fn a_command_that_is_larger_than_an_entry_is_refused_and_the_broker_goes_on() {
        let mut leader = Leader::over(64 * 1024);
        let (before, entries) = (leader.acts(), leader.log.entries.lock().unwrap().len());
        leader.note(128 * 1024);
        leader.engine.finish(leader.now);
        assert!(leader.engine.has_failed());
        assert_eq!((leader.acts(), leader.log.entries.lock().unwrap().len()), (before, entries));
        leader.engine.recover(leader.now).unwrap();
        leader.engine.finish(leader.now);
        leader.note(1000);
        leader.engine.finish(leader.now);
        assert!(!leader.engine.has_failed());
        assert_eq!(leader.acts(), before + 1);
    }
}

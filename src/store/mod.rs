//! The store: tables of records with revisions, changed by compare-and-set commits.
//!
//! Owns durability, atomicity and the format on disk. Must not know what a task or a handoff is: it sees keys and bytes.
//!
//! One condition makes a broker correct, and several brokers over one engine by the same argument: a change names the
//! revisions that it was computed from, and is applied only if they still hold. Changes are committed in groups, with
//! one sync for the group.

pub mod conformance;
mod embedded;
mod engine;
mod files;
mod folder;
#[cfg(test)]
pub(crate) mod gated;
mod key;
mod log;
mod memory;
mod pending;
mod recent;
mod rows;
mod salvage;
mod space;
mod survey;

use std::{ops::Bound, path::PathBuf};

use bytes::Bytes;

pub use embedded::EmbeddedStore;
pub use folder::{OpenError, groups_committed};
pub use key::{Key, KeyBytes, KeyMap};
pub use memory::MemoryStore;
pub use salvage::{Found, read_all};

/// A table. Each has a name and a number on disk that never change: new ones come at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "what lies in each is said in proto/baton/storage/v1 and in `records`")]
pub enum Table {
    Meta,
    Agents,
    Tasks,
    HandoffsByAgent,
    Handoffs,
    HandoffsBySequence,
    Messages,
    Envelopes,
    Mailbox,
    DeadLetters,
    Custody,
    Timers,
    Invitations,
    Audit,
    SharedEnvelopes,
    Expirations,
    RemovedTasks,
    DeadLettersByAgent,
    Outbox,
}

impl Table {
    /// All of them.
    pub const ALL: [Table; 19] = [
        Table::Meta,
        Table::Agents,
        Table::Tasks,
        Table::HandoffsByAgent,
        Table::Handoffs,
        Table::HandoffsBySequence,
        Table::Messages,
        Table::Envelopes,
        Table::Mailbox,
        Table::DeadLetters,
        Table::Custody,
        Table::Timers,
        Table::Invitations,
        Table::Audit,
        Table::SharedEnvelopes,
        Table::Expirations,
        Table::RemovedTasks,
        Table::DeadLettersByAgent,
        Table::Outbox,
    ];

    /// Its name on disk.
    pub const fn name(self) -> &'static str {
        match self {
            Table::Meta => "meta",
            Table::Agents => "agents",
            Table::Tasks => "tasks",
            Table::HandoffsByAgent => "handoffs_by_agent",
            Table::Handoffs => "handoffs",
            Table::HandoffsBySequence => "handoffs_by_sequence",
            Table::Messages => "messages",
            Table::Envelopes => "envelopes",
            Table::Mailbox => "mailbox",
            Table::DeadLetters => "dead_letters",
            Table::Custody => "custody",
            Table::Timers => "timers",
            Table::Invitations => "invitations",
            Table::Audit => "audit",
            Table::SharedEnvelopes => "shared_envelopes",
            Table::Expirations => "kept",
            Table::RemovedTasks => "removed_tasks",
            Table::DeadLettersByAgent => "dead_letters_by_agent",
            Table::Outbox => "outbox",
        }
    }
}

/// A stored value and how often it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// At least 1. A writer gives each version of a value a revision one higher than the one before.
    pub revision: u64,
    /// The value.
    pub value: Bytes,
}

/// What must hold for a change to be applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expectation {
    /// The record.
    pub key: Key,
    /// Its revision; `None`: there is none.
    pub revision: Option<u64>,
}

/// What a change writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// The record.
    pub key: Key,
    /// What it becomes; `None`: it is deleted.
    pub record: Option<Record>,
    /// There is no such record; whoever writes is sure of that. A store that is told so has less to do when the record is
    /// soon deleted again; one that is told so wrongly may show an old version then.
    pub is_new: bool,
}

/// Writes that are applied wholly or not at all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Change {
    /// What must hold.
    pub expectations: Vec<Expectation>,
    /// What is written, in this order.
    pub writes: Vec<Write>,
}

/// A change was not applied: somebody else was first.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the record {:?} of table {} has revision {found:?}, not {expected:?}", key.key, key.table.name())]
pub struct Conflict {
    /// The record.
    pub key: Key,
    /// What the change was computed from.
    pub expected: Option<u64>,
    /// What is there.
    pub found: Option<u64>,
}

/// In which order a scan goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Smallest key first.
    Ascending,
    /// Largest key first.
    Descending,
}

/// A range of keys of one table.
pub type KeyRange = (Bound<KeyBytes>, Bound<KeyBytes>);

/// Failed to read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// A record is not what was written.
    #[error(
        "failed to read a record of table {table}, key {key}, in {}: {problem}; stop the broker and restore the \
         folder from a backup",
        path.display()
    )]
    Damaged {
        /// The table.
        table: &'static str,
        /// The key, in hex.
        key: String,
        /// The folder.
        path: PathBuf,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The engine cannot read.
    #[error(
        "failed to read from the store in {}: {source}; stop the broker, see what is damaged with `baton store check`, \
         and restore the folder from a backup",
        path.display()
    )]
    Engine {
        /// The folder of the table.
        path: PathBuf,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// It is being opened again after a commit that failed.
    #[error("the store in {} is being opened again", path.display())]
    Closed {
        /// The folder.
        path: PathBuf,
    },
}

/// Failed to commit. Nobody knows what of the group is on disk; the store takes no more commits until it is reopened.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// What the group is computed from cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The group could not be written or synced.
    #[error(
        "failed to write to the store in {}: {source}; make sure that the disk has space and is healthy",
        path.display()
    )]
    Engine {
        /// The folder.
        path: PathBuf,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// An earlier commit failed.
    #[error("failed to write to the store in {}: an earlier write failed, and it is not open again yet", path.display())]
    Poisoned {
        /// The folder.
        path: PathBuf,
    },
}

/// A durable map of tables.
pub trait Store: Send + Sync + 'static {
    /// One record. Never one that is not yet synced.
    fn get(&self, key: &Key) -> Result<Option<Record>, ReadError>;

    /// The same where memory alone says it; `None`: the disk has to be asked. Never waits for the disk.
    fn get_in_memory(&self, key: &Key) -> Option<Option<Record>> {
        let _ = key;
        None
    }

    /// The records of a range, at most `limit`, as they were at one moment. Never one that is not yet synced.
    fn scan(
        &self,
        table: Table,
        range: KeyRange,
        order: Order,
        limit: usize,
    ) -> Result<Vec<(KeyBytes, Record)>, ReadError>;

    /// Applies the changes in order, each wholly or not at all: a change is applied if every expectation holds at its
    /// place in the order, so that later changes see earlier ones. The answer has one entry a change. When it is `Ok`,
    /// everything applied is durable; there is one sync for the whole group.
    fn commit(&self, group: Vec<Change>) -> Result<Vec<Result<(), Conflict>>, CommitError>;

    /// How large it is; `None` while that is about to change by itself.
    fn size_bytes(&self) -> Option<u64>;

    /// Much was removed: gives its space back, in the background.
    fn give_space_back(&self) {}

    /// After a commit that failed: finds out what is on disk, and takes commits again if it can.
    fn recover(&self) -> Result<(), OpenError> {
        Ok(())
    }
}

/// Which changes of a group apply, one entry a change, and what is to be written for those: each record once.
struct Decision {
    outcomes: Vec<Result<(), Conflict>>,
    writes: Vec<Write>,
}

/// What a group has made of a record so far.
struct Written {
    revision: Option<u64>,
    /// Its last write, among those that apply.
    last: usize,
    /// There was none before the group.
    is_new: bool,
}

/// Decides which changes of a group apply, over what is stored. Both engines use it, so that they cannot differ. Of the writes
/// of a record only the last is left: nobody ever sees the others.
fn decide<E>(group: Vec<Change>, revision_of: impl Fn(&Key) -> Result<Option<u64>, E>) -> Result<Decision, E> {
    let count = group.iter().map(|change| change.writes.len()).sum();
    let mut written: std::collections::HashMap<&Key, Written, _> =
        std::collections::HashMap::with_capacity_and_hasher(count, foldhash::quality::RandomState::default());
    let mut outcomes = Vec::with_capacity(group.len());
    let mut applied = 0;
    for change in &group {
        let mut outcome = Ok(());
        for Expectation { key, revision } in &change.expectations {
            let found = match written.get(key) {
                Some(written) => written.revision,
                None => revision_of(key)?,
            };
            if found != *revision {
                outcome = Err(Conflict { key: key.clone(), expected: *revision, found });
                break;
            }
        }
        for write in change.writes.iter().filter(|_| outcome.is_ok()) {
            let before = written.entry(&write.key).or_insert(Written { revision: None, last: 0, is_new: write.is_new });
            before.revision = write.record.as_ref().map(|record| record.revision);
            before.last = applied;
            applied += 1;
        }
        outcomes.push(outcome);
    }
    let mut is_new_of_last = vec![None; applied];
    written.into_values().for_each(|written| is_new_of_last[written.last] = Some(written.is_new));
    let applying = group.into_iter().zip(&outcomes).filter(|(_, outcome)| outcome.is_ok());
    let writes = applying.flat_map(|(change, _)| change.writes).zip(is_new_of_last).filter_map(|(write, is_new)| {
        let write = Write { is_new: is_new?, ..write };
        // What was not there before the group and is not there after it was never there.
        (write.record.is_some() || !write.is_new).then_some(write)
    });
    Ok(Decision { writes: writes.collect(), outcomes })
}

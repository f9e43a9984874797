//! The store: tables of records with revisions, changed by compare-and-set commits.
//!
//! Owns durability, atomicity and the format on disk. Must not know tasks or handoffs: the store sees keys and bytes.
//!
//! Correctness rests on one condition, and holds the same way for several brokers over one engine: a change names the
//! revisions that it was computed from, and the store applies the change only if they still hold. A group is a list of
//! changes with one sync; the broker commits one group per commit batch.

#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

mod backup;
pub mod bucket;
mod checkpoint;
pub mod conformance;
mod convert;
pub mod disk;
mod dump;
mod embedded;
mod failures;
mod founding;
pub mod gated;
mod key;
mod layout;
mod mem_table;
mod memory;
#[cfg(test)]
mod power_cut;
mod record_codec;
mod replica;
mod restore;
mod tables;
mod throttle;
mod wal;

use std::{ops::Bound, path::PathBuf};

use bytes::Bytes;

pub use backup::Backup;
use baton_protocol::{ids, time};
pub use convert::{Conversion, ConversionError};
pub use dump::{Found, read_all};
pub use embedded::EmbeddedStore;
pub use founding::Founding;
pub use key::{Key, KeyBytes, KeyMap};
pub use layout::{FORMAT, OpenError, format_name, groups_committed};
pub use memory::MemoryStore;
pub use replica::{ApplyError, Replica};
pub use restore::{CheckpointFile, CheckpointHead, CutOff, Incoming, Outgoing, RestoreError, Whole};
pub use wal::{AppendError, CommitLog, Link, Mark, Position};

/// Declares [`Table`], in the order of the numbers on disk, with the name of each on disk.
macro_rules! tables {
    ($($table:ident $name:literal,)*) => {
        /// A table. Its name and number on disk never change: new tables are added at the end.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[expect(missing_docs, reason = "what lies in each is said in proto/baton/storage/v1 and in `records`")]
        pub enum Table {
            $($table,)*
        }

        impl Table {
            /// Every table, in the order of the numbers on disk.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$table),*];

            /// The table's name on disk.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$table => $name,)*
                }
            }
        }
    };
}

tables! {
    Meta "meta",
    Agents "agents",
    Tasks "tasks",
    Handoffs "handoffs",
    Messages "messages",
    Envelopes "envelopes",
    Mailbox "mailbox",
    DeadLetters "dead_letters",
    Custody "custody",
    Timers "timers",
    Invitations "invitations",
    Audit "audit",
    SharedEnvelopes "shared_envelopes",
    Expirations "kept",
    RemovedTasks "removed_tasks",
    Outbox "outbox",
    Workspaces "workspaces",
    WorkspaceEntries "workspace_entries",
    AgentStatistics "agent_statistics",
    Graphs "graphs",
    Runs "runs",
    RunLog "run_log",
    RunTurns "run_turns",
    Listings "listings",
    Schemas "schemas",
    Specs "specs",
    SpecRevisions "spec_revisions",
    Threads "threads",
    ThreadLog "thread_log",
    ContextVersions "context_versions",
    ContextSections "context_sections",
    Negotiations "negotiations",
    NegotiationBids "negotiation_bids",
    Plans "plans",
    PlanSpecs "plan_specs",
    PlanLog "plan_log",
    Blobs "blobs",
    GraphRevisions "graph_revisions",
    AgentUsage "agent_usage",
    Registrations "registrations",
}

/// A stored value with its revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// At least 1. Each new version of a value has the revision of the version before, plus one.
    pub revision: u64,
    /// The value's bytes; the store does not interpret them.
    pub value: Bytes,
}

/// A condition on one record. A change is applied only if all its expectations hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expectation {
    /// The record's key.
    pub key: Key,
    /// The expected revision; `None`: the record does not exist.
    pub revision: Option<u64>,
}

/// One write of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// The record's key.
    pub key: Key,
    /// The new version; `None` deletes the record.
    pub record: Option<Record>,
    /// The writer guarantees that no record with this key exists. The store may then drop the write together with a
    /// later delete, before either reaches a table. If the guarantee is wrong, the older stored version may reappear
    /// after that delete.
    pub is_new: bool,
}

/// Writes that are applied all together or not at all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Change {
    /// The conditions under which the change applies.
    pub expectations: Vec<Expectation>,
    /// The writes, applied in this order.
    pub writes: Vec<Write>,
}

impl Write {
    /// Its bytes in a group, before compression.
    pub fn bytes(&self) -> usize {
        let value = self.record.as_ref().map_or(0, |record| record.value.len());
        record_codec::WRITE_HEAD + self.key.key.len() + value
    }
}

/// A change was not applied: another change altered the record first.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the record {:?} of table {} has revision {found:?}, not {expected:?}", key.key, key.table.name())]
pub struct Conflict {
    /// The record's key.
    pub key: Key,
    /// The revision that the change was computed from; `None`: no record.
    pub expected: Option<u64>,
    /// The stored revision; `None`: no record.
    pub found: Option<u64>,
}

/// The order of a scan.
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
    /// A stored record is damaged.
    #[error(
        "failed to read a record of table {table}, key {key}, in {}: {problem}; stop the broker and restore the \
         folder from a backup",
        path.display()
    )]
    Damaged {
        /// The table's name.
        table: &'static str,
        /// The key, in hex.
        key: String,
        /// The folder of the store.
        path: PathBuf,
        /// The check that the record fails.
        problem: &'static str,
    },
    /// The engine failed to read.
    #[error(
        "failed to read from the store in {}: {source}; stop the broker, see what is damaged with `baton store check`, \
         and restore the folder from a backup",
        path.display()
    )]
    Engine {
        /// The folder of the table.
        path: PathBuf,
        /// The engine's error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The store is being reopened after a failed commit.
    #[error("the store in {} is being opened again", path.display())]
    Closed {
        /// The folder of the store.
        path: PathBuf,
    },
}

/// Failed to commit. Any part of the group may be on disk; the store refuses commits until
/// [`Store::recover`] succeeds.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// The store failed to read a revision that the group depends on.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The store failed to write or sync the group.
    #[error(
        "failed to write to the store in {}: {source}; make sure that the disk has space and is healthy",
        path.display()
    )]
    Engine {
        /// The folder of the store.
        path: PathBuf,
        /// The error of the log or the engine.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Another broker of the cluster leads. The group may be in the shared log.
    #[error("failed to write to the store in {}: another broker leads now", path.display())]
    Deposed {
        /// The folder of the store.
        path: PathBuf,
    },
    /// An earlier commit failed, and the store is not recovered yet.
    #[error("failed to write to the store in {}: an earlier write failed, and it is not open again yet", path.display())]
    Poisoned {
        /// The folder of the store.
        path: PathBuf,
    },
}

/// Tables of records, with durable and atomic commits.
pub trait Store: Send + Sync + 'static {
    /// Reads one record. Returns only versions that are synced.
    fn get(&self, key: &Key) -> Result<Option<Record>, ReadError>;

    /// Reads one record without waiting for the disk. The outer `None` means that the answer needs a disk read.
    fn get_in_memory(&self, key: &Key) -> Option<Option<Record>> {
        let _ = key;
        None
    }

    /// Reads the records of a range, at most `limit`, from one consistent snapshot. Returns only versions that are
    /// synced.
    fn scan(
        &self,
        table: Table,
        range: KeyRange,
        order: Order,
        limit: usize,
    ) -> Result<Vec<(KeyBytes, Record)>, ReadError>;

    /// Applies the changes in order, each all or nothing. A change is applied if all its expectations hold when its
    /// turn comes, so later changes see earlier ones. The result has one entry per change. On `Ok`, every applied
    /// change is durable; the whole group takes one sync.
    fn commit(&self, group: Vec<Change>) -> Result<Vec<Result<(), Conflict>>, CommitError>;

    /// The most bytes of a group: its keys and values, and some 20 for each write. A larger one may be refused, and changes
    /// nothing then.
    fn group_bytes_max(&self) -> usize {
        usize::MAX
    }

    /// The size of the store, in bytes; `None` while a compaction is running or requested.
    fn size_bytes(&self) -> Option<u64>;

    /// Whether a commit has failed, or a table could not be read: the store takes no commit until [`Store::recover`]
    /// succeeds. Never waits.
    fn has_failed(&self) -> bool {
        false
    }

    /// Reclaims the space of removed records in the background. Call it after large removals.
    fn give_space_back(&self) {}

    /// Reopens the store after a failed commit or read, from the state on disk, so that it takes commits again. After a
    /// failed read, checks every byte of the table files first, and fails if one is damaged.
    fn recover(&self) -> Result<(), OpenError> {
        Ok(())
    }
}

impl std::fmt::Debug for dyn Store {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("a store")
    }
}

/// The outcome of each change of a group, and the writes of the applied changes: at most one per record.
struct Decision {
    outcomes: Vec<Result<(), Conflict>>,
    writes: Vec<Write>,
}

/// The state of a record within a group, after the changes decided so far.
struct Written {
    revision: Option<u64>,
    /// The index of the record's last write among the writes of applied changes.
    last: usize,
    /// The record did not exist before the group.
    is_new: bool,
}

/// Decides which changes of a group apply to the stored records. Every engine uses this function, so the engines cannot
/// differ. Only the last write of each record remains, because no reader sees the versions in between.
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
        // A refused change leaves no trace, so later changes of the group see the state without it.
        for write in change.writes.iter().filter(|_| outcome.is_ok()) {
            // `is_new` is that of the first write: it says whether the tables may have the record.
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
        // A record created and deleted within the group leaves no trace.
        (write.record.is_some() || !write.is_new).then_some(write)
    });
    Ok(Decision { writes: writes.collect(), outcomes })
}

//! The state of a workspace, as plain data.

use std::{collections::BTreeMap, time::Duration};

use super::{Topic, WorkspaceId};
use crate::time::Timestamp;

/// A workspace: the numbers of its entries, and its topics. The entries themselves are records of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workspace {
    /// The id, which names the kind and the id of the owner.
    pub id: WorkspaceId,
    /// The number of the last entry; 0 before the first one.
    pub last_sequence: u64,
    /// The number of the first entry that has not expired; `last_sequence + 1`: none is left.
    pub first_sequence: u64,
    /// The bytes of the entries that have not expired.
    pub bytes: u64,
    /// The topics that have entries which have not expired.
    pub topics: BTreeMap<Topic, TopicState>,
    /// The time at which the first of these entries expires. `None`: none is left.
    pub next_expiry: Option<Timestamp>,
}

/// A topic with at least one entry that has not expired.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicState {
    /// The number of these entries.
    pub entries: u64,
    /// The bytes of these entries.
    pub bytes: u64,
    /// None of these entries has a lower number.
    pub first_sequence: u64,
    /// The number of the last entry.
    pub last_sequence: u64,
    /// The time of the last entry.
    pub updated_at: Timestamp,
}

/// The head of an entry. Its content is in the envelope of its append.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The workspace that has the entry.
    pub workspace: WorkspaceId,
    /// The number, from 1.
    pub sequence: u64,
    /// The topic, normalised.
    pub topic: Topic,
    /// The size of the content in bytes.
    pub size: u64,
    /// The time of the append, which never precedes that of an earlier entry.
    pub created_at: Timestamp,
    /// The time from which on the entry is removed.
    pub expires_at: Timestamp,
}

/// The operator's limits of each workspace. 0: no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The time from the append of an entry to its expiry.
    pub entry_lifetime: Duration,
    /// The most bytes of entries that have not expired.
    pub bytes_max: u64,
    /// The most entries that have not expired.
    pub entries_max: u64,
    /// The most topics with unexpired entries. Each append writes the names of all of them, so 0, no limit, is for tests.
    pub topics_max: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            entry_lifetime: Duration::from_secs(48 * 60 * 60),
            bytes_max: 64 * 1024 * 1024,
            entries_max: 1_000_000,
            topics_max: 256,
        }
    }
}

impl Workspace {
    /// A workspace before its first entry.
    pub fn empty(id: WorkspaceId) -> Self {
        Self { id, last_sequence: 0, first_sequence: 1, bytes: 0, topics: BTreeMap::new(), next_expiry: None }
    }

    /// The number of entries that have not expired.
    pub fn entries(&self) -> u64 {
        self.last_sequence + 1 - self.first_sequence
    }

    /// The numbers after `after` that have no entry any more, first and last: they have expired, or the caller knows a
    /// higher number than the workspace has.
    pub fn gap_after(&self, after: u64) -> Option<(u64, u64)> {
        // The broker was restored to an earlier state: the entries that the caller knows are gone.
        if after > self.last_sequence {
            return Some((self.last_sequence + 1, after));
        }
        (after + 1 < self.first_sequence).then(|| (after + 1, self.first_sequence - 1))
    }
}

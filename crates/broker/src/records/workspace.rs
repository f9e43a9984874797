//! Table workspaces: the state of each workspace, by its id. Table workspace_entries: the heads of its entries, by the id,
//! a zero byte and the number. The content of an entry is in the envelope of its append, in table envelopes.

use std::{ops::Bound, sync::Arc, time::Duration};

use bytes::Bytes;
use prost::Message;

use super::{DecodeError, LogClock, Reader, by_name, by_name_and_number, moment, number_of};
use crate::{
    domain::workspace::{Entry, Topic, TopicState, Workspace, WorkspaceId},
    proto::storage,
    store::{Key, KeyRange, Table},
};

/// A workspace as stored: its state, and the head of its chain.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkspaceRecord {
    /// The state of the workspace.
    pub workspace: Arc<Workspace>,
    /// The hash of the last entry; zeros before the first.
    pub chain_hash: [u8; 32],
    /// The pace of the workspace's time, which that of its entries follows.
    pub log_clock: LogClock,
}

impl WorkspaceRecord {
    /// The record of a workspace before its first entry.
    pub fn empty(id: WorkspaceId) -> Self {
        let log_clock = LogClock { logged_at: moment(0), set_back: Duration::ZERO };
        Self { workspace: Arc::new(Workspace::empty(id)), chain_hash: [0; 32], log_clock }
    }

    /// The key of the record.
    pub fn key(id: &WorkspaceId) -> Key {
        by_name(Table::Workspaces, id.as_str())
    }

    /// Encodes the record.
    pub fn encode(&self) -> Bytes {
        let Workspace { id, last_sequence, first_sequence, bytes, topics, next_expiry } = &*self.workspace;
        let topic = |(name, topic): (&Topic, &TopicState)| storage::WorkspaceTopicRecord {
            name: name.to_string(),
            entries: topic.entries,
            bytes: topic.bytes,
            first_sequence: topic.first_sequence,
            last_sequence: topic.last_sequence,
            updated_at: topic.updated_at.unix_nanoseconds(),
        };
        storage::WorkspaceRecord {
            workspace_id: id.to_string(),
            last_sequence: *last_sequence,
            first_sequence: *first_sequence,
            bytes: *bytes,
            topics: topics.iter().map(topic).collect(),
            next_expiry: next_expiry.map(|at| at.unix_nanoseconds()),
            chain_hash: Bytes::copy_from_slice(&self.chain_hash),
            logged_at: self.log_clock.logged_at.unix_nanoseconds(),
            set_back: u64::try_from(self.log_clock.set_back.as_nanos()).unwrap_or(u64::MAX),
        }
        .encode_to_vec()
        .into()
    }

    /// Decodes the record.
    pub fn decode(value: &Bytes) -> Result<Self, DecodeError> {
        let reader = Reader("workspaces");
        let stored: storage::WorkspaceRecord = reader.message(value)?;
        let topics = stored.topics.into_iter().map(|topic| {
            let state = TopicState {
                entries: topic.entries,
                bytes: topic.bytes,
                first_sequence: topic.first_sequence,
                last_sequence: topic.last_sequence,
                updated_at: moment(topic.updated_at),
            };
            Ok((name(&reader, &topic.name)?, state))
        });
        let (first, last) = (stored.first_sequence, stored.last_sequence);
        if first == 0 || first > last.saturating_add(1) {
            return Err(reader.error(format!("the first entry is {first}, and the last {last}")));
        }
        let workspace = Workspace {
            id: WorkspaceId::parse(&stored.workspace_id).map_err(|error| reader.error(error.to_string()))?,
            last_sequence: last,
            first_sequence: first,
            bytes: stored.bytes,
            topics: topics.collect::<Result<_, DecodeError>>()?,
            next_expiry: stored.next_expiry.map(moment),
        };
        let log_clock =
            LogClock { logged_at: moment(stored.logged_at), set_back: Duration::from_nanos(stored.set_back) };
        Ok(Self { workspace: Arc::new(workspace), chain_hash: reader.digest(&stored.chain_hash)?, log_clock })
    }
}

/// The head of an entry as stored, with the place of its envelope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkspaceEntryRecord {
    /// The head of the entry.
    pub entry: Entry,
    /// The sequence of the append, under which table envelopes has the envelope.
    pub message: u64,
    /// The hash of the workspace's chain after the entry.
    pub chain_hash: [u8; 32],
}

impl WorkspaceEntryRecord {
    /// The key of the entry with this number.
    pub fn key(workspace: &WorkspaceId, sequence: u64) -> Key {
        by_name_and_number(Table::WorkspaceEntries, workspace.as_str(), sequence)
    }

    /// The range of the entries with numbers after `after` and up to `last`.
    pub fn range(workspace: &WorkspaceId, after: u64, last: u64) -> KeyRange {
        let key = |sequence| Self::key(workspace, sequence).key;
        (Bound::Excluded(key(after)), Bound::Included(key(last)))
    }

    /// Encodes the head.
    pub fn encode(&self) -> Bytes {
        let Entry { workspace: _, sequence: _, topic, size, created_at, expires_at } = &self.entry;
        storage::WorkspaceEntryRecord {
            topic: topic.to_string(),
            size: *size,
            created_at: created_at.unix_nanoseconds(),
            expires_at: expires_at.unix_nanoseconds(),
            message_sequence: self.message,
            chain_hash: Bytes::copy_from_slice(&self.chain_hash),
        }
        .encode_to_vec()
        .into()
    }

    /// Decodes the head under this key.
    pub fn decode(key: &[u8], value: &Bytes) -> Result<Self, DecodeError> {
        let reader = Reader("workspace_entries");
        let stored: storage::WorkspaceEntryRecord = reader.message(value)?;
        // The last nine bytes are a zero byte and the number.
        let id = key.get(..key.len().saturating_sub(9)).and_then(|id| std::str::from_utf8(id).ok());
        let workspace = id.and_then(|id| WorkspaceId::parse(id).ok());
        let entry = Entry {
            workspace: reader.some(workspace, "the workspace in a key")?,
            sequence: number_of(&reader, key)?,
            topic: name(&reader, &stored.topic)?,
            size: stored.size,
            created_at: moment(stored.created_at),
            expires_at: moment(stored.expires_at),
        };
        Ok(Self { entry, message: stored.message_sequence, chain_hash: reader.digest(&stored.chain_hash)? })
    }
}

fn name(reader: &Reader, text: &str) -> Result<Topic, DecodeError> {
    Topic::parse(text).map_err(|error| reader.error(format!("topic {text:?} {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Timestamp;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_parts(seconds, 5).unwrap()
    }

    #[test]
    fn a_workspace_and_its_entries_come_back() {
        let id = WorkspaceId::parse("task:crash-7").unwrap();
        let empty = WorkspaceRecord::empty(id.clone());
        assert_eq!(WorkspaceRecord::decode(&empty.encode()), Ok(empty));
        let topic = Topic::parse("größe").unwrap();
        let state = TopicState { entries: 2, bytes: 9, first_sequence: 3, last_sequence: 7, updated_at: at(9) };
        let workspace = Workspace {
            id: id.clone(),
            last_sequence: 8,
            first_sequence: 3,
            bytes: 70,
            topics: [(topic.clone(), state)].into(),
            next_expiry: Some(at(11)),
        };
        let log_clock = LogClock { logged_at: at(10), set_back: Duration::from_secs(3) };
        let record = WorkspaceRecord { workspace: Arc::new(workspace), chain_hash: [7; 32], log_clock };
        assert_eq!(WorkspaceRecord::decode(&record.encode()), Ok(record));
        let entry = Entry { workspace: id.clone(), sequence: 8, topic, size: 4, created_at: at(1), expires_at: at(2) };
        let head = WorkspaceEntryRecord { entry, message: 99, chain_hash: [8; 32] };
        let key = WorkspaceEntryRecord::key(&id, 8);
        assert_eq!(WorkspaceEntryRecord::decode(&key.key, &head.encode()), Ok(head.clone()));
        for bad in [&b"short"[..], b"task:a", b"no-owner\x00\x00\x00\x00\x00\x00\x00\x00\x08"] {
            assert!(WorkspaceEntryRecord::decode(bad, &head.encode()).is_err());
        }
    }
}

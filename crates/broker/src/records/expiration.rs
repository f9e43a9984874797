//! Table expirations (`kept` on disk): entries for the later removal of records. The keys sort by kind, then by the
//! start of the retention time, so that a change of the configuration also applies to existing entries. And table
//! removed_tasks: the remains of removed tasks.

use std::ops::Bound;

use bytes::Bytes;
use prost::Message;

use super::{DecodeError, Reader, by_name, moment};
use baton_protocol::numbered;

use crate::{
    domain::{RemovedTask, handoff::TaskStatus},
    ids::{MessageId, TaskId},
    proto::storage,
    store::{Key, KeyBytes, KeyRange, Table},
    time::Timestamp,
};

/// The kinds of removals. The numbers are the first byte of the keys. Among removals due together, the first variant
/// goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Expiration {
    /// The ids of the messages that one commit accepted, from that time on.
    Messages,
    /// A task, from its end on.
    Task,
    /// A dead letter, from its redrive or discard on.
    DeadLetter,
    /// An invitation, from its expiry on.
    Invitation,
    /// The rest of a removed task's custody log.
    Rest,
    /// The rest of a removed workspace's entries.
    Entries,
    /// A negotiation, from its end on.
    Negotiation,
    /// A run, from its end on.
    Run,
    /// A thread, from its end on.
    Thread,
    /// The versions of a removed task's context.
    Contexts,
    /// A plan, from its end on.
    Plan,
    /// A blob, from the end of its last hold on.
    Blob,
    /// An upload, from its latest beginning or continuation on.
    Upload,
}

numbered! {
    Expiration {
        Messages = 1,
        Task = 2,
        DeadLetter = 3,
        Invitation = 4,
        Rest = 5,
        Entries = 6,
        Contexts = 7,
        Negotiation = 16,
        Run = 61,
        Thread = 62,
        Plan = 70,
        Blob = 71,
        Upload = 72,
    }
}

impl Expiration {
    /// All kinds, each once.
    pub const ALL: [Self; 13] = [
        Self::Rest,
        Self::Entries,
        Self::Contexts,
        Self::Messages,
        Self::Task,
        Self::DeadLetter,
        Self::Invitation,
        Self::Run,
        Self::Thread,
        Self::Negotiation,
        Self::Plan,
        Self::Blob,
        Self::Upload,
    ];

    fn byte(self) -> u8 {
        self.number().to_le_bytes()[0]
    }

    /// The key of an entry. `what` is the batch's last sequence for messages, and the key of the record for other
    /// kinds.
    pub fn key(self, since: Timestamp, what: &[u8]) -> Key {
        let since = since.unix_nanoseconds().cast_unsigned().to_be_bytes();
        Key { table: Table::Expirations, key: [&[self.byte()][..], &since, what].into() }
    }

    /// The range of this kind's entries from a key on.
    pub fn range(self, from: KeyBytes) -> KeyRange {
        let first = KeyBytes::from(&[self.byte()]);
        // An empty key stands for the first key of the kind.
        (Bound::Included(from.max(first)), Bound::Excluded((&[self.byte() + 1]).into()))
    }

    /// Parses a key to the kind, the start of the retention time, and `what`.
    pub fn parse(key: &[u8]) -> Result<(Self, Timestamp, &[u8]), DecodeError> {
        let reader = Reader("kept");
        let (kind, rest) = key.split_first().ok_or_else(|| reader.error("a key is empty"))?;
        let kind = reader.some(Self::from_number(i32::from(*kind)), "what is kept")?;
        let (since, what) = rest.split_first_chunk().ok_or_else(|| reader.error("a key is too short"))?;
        Ok((kind, moment(u64::from_be_bytes(*since).cast_signed()), what))
    }
}

/// Encodes the message ids that a batch accepted.
pub fn encode_message_ids(ids: &[MessageId]) -> Bytes {
    ids.iter().flat_map(|id| *id.as_bytes()).collect()
}

/// Decodes the message ids.
pub fn decode_message_ids(value: &[u8]) -> Result<Vec<MessageId>, DecodeError> {
    let reader = Reader("kept");
    value.chunks(16).map(|id| reader.message_id(id)).collect()
}

/// The record of a removed task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemovedTaskRecord(pub RemovedTask);

impl RemovedTaskRecord {
    /// The key of the record.
    pub fn key(task: &TaskId) -> Key {
        by_name(Table::RemovedTasks, task.as_str())
    }

    /// Encodes the record.
    pub fn encode(&self) -> Bytes {
        let RemovedTask { epoch, status, owners } = &self.0;
        let owner_ids = owners.iter().map(ToString::to_string).collect();
        storage::RemovedTaskRecord { epoch: *epoch, status: status.number(), owner_ids }.encode_to_vec().into()
    }

    /// Decodes the record.
    pub fn decode(value: &Bytes) -> Result<Self, DecodeError> {
        let reader = Reader("removed_tasks");
        let stored: storage::RemovedTaskRecord = reader.message(value)?;
        Ok(Self(RemovedTask {
            epoch: stored.epoch,
            status: reader.some(TaskStatus::from_number(stored.status), "status")?,
            owners: reader.agents(&stored.owner_ids)?.into_iter().collect(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_lie_by_kind_and_time() {
        let at = |seconds| Timestamp::from_parts(seconds, 0).expect("a time");
        let key = Expiration::Task.key(at(7), b"task-1");
        assert_eq!(Expiration::parse(&key.key), Ok((Expiration::Task, at(7), &b"task-1"[..])));
        assert!(key.key < Expiration::Task.key(at(8), b"task-0").key);
        assert!(Expiration::Messages.key(at(9), b"").key < key.key);
        let (Bound::Included(first), Bound::Excluded(last)) = Expiration::Task.range(KeyBytes::default()) else {
            panic!()
        };
        assert!(first <= key.key && key.key < last);
        for bad in [&b""[..], b"\x02short", b"\x09123456789"] {
            assert!(Expiration::parse(bad).is_err());
        }
    }

    #[test]
    fn message_ids_come_back() {
        let ids = [MessageId::from_bytes([1; 16]), MessageId::from_bytes([2; 16])];
        assert_eq!(decode_message_ids(&encode_message_ids(&ids)), Ok(ids.to_vec()));
        assert!(decode_message_ids(&[0; 17]).is_err());
    }
}

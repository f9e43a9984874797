//! Table blobs: the blobs, their holds by workspaces, the unfinished uploads, and what each agent uses of its quota.
//! The bytes are files (`crate::blobs`).

use std::ops::Bound;

use bytes::Bytes;
use prost::Message as _;

use super::{DecodeError, Reader, moment};
use crate::{
    blobs::{BlobDigest, BlobPlace},
    ids::{AgentId, WorkspaceId},
    proto::{storage, v1},
    store::{Key, KeyBytes, KeyRange, Order, ReadError, Store, Table},
    time::Timestamp,
};

/// Blobs by digest.
const BLOB: u8 = b'b';
/// Holds by workspace and digest.
const HOLD: u8 = b'h';
/// The holders of a blob, by digest and workspace.
const HOLDER: u8 = b'i';
/// Uploads by agent and digest.
const UPLOAD: u8 = b'u';
/// What an agent uses.
const USAGE: u8 = b'v';
/// The agents of uploads, by the name of the upload's file.
const UPLOAD_NAME: u8 = b'w';

/// The records of one read of all.
const PAGE: usize = 256;

const READER: Reader = Reader("blobs");

fn key(parts: [&[u8]; 4]) -> Key {
    Key { table: Table::Blobs, key: parts.into() }
}

/// A complete blob as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlobRecord {
    /// The SHA-256 of the bytes.
    pub digest: BlobDigest,
    /// The number of its object in the bucket of a cluster. `None`: the digest alone names its file or object.
    pub object: Option<u64>,
    /// The number of bytes.
    pub size: u64,
    /// The media type that the first writer named.
    pub media_type: String,
    /// The first writer, whose quota the blob uses.
    pub writer: AgentId,
    /// The time at which the blob was complete.
    pub created_at: Timestamp,
    /// The number of holds.
    pub holds: u64,
    /// The time since which nothing holds the blob. Only without a hold.
    pub unheld_since: Timestamp,
}

impl BlobRecord {
    /// Whether a store has a blob, or an upload that has not ended.
    ///
    /// # Errors
    ///
    /// The table cannot be read.
    pub fn any(store: &dyn Store) -> Result<bool, ReadError> {
        // What an agent has used comes behind both.
        let all = (Bound::Unbounded, Bound::Unbounded);
        let first = store.scan(Table::Blobs, all, Order::Ascending, 1)?;
        Ok(first.first().is_some_and(|(key, _)| key.first() < Some(&USAGE)))
    }

    /// Calls `visit` with each blob, until it returns false.
    ///
    /// # Errors
    ///
    /// The table cannot be read.
    pub fn each(store: &dyn Store, mut visit: impl FnMut(Result<Self, DecodeError>) -> bool) -> Result<(), ReadError> {
        let mut from = Bound::Included(KeyBytes::from(&[BLOB][..]));
        loop {
            let range = (from, Bound::Excluded(KeyBytes::from(&[BLOB + 1][..])));
            let page = store.scan(Table::Blobs, range, Order::Ascending, PAGE)?;
            let Some((last, _)) = page.last() else { return Ok(()) };
            from = Bound::Excluded(last.clone());
            for (_, stored) in &page {
                if !visit(Self::decode(&stored.value)) {
                    return Ok(());
                }
            }
        }
    }

    /// Whether a record says that the bytes of its blob are there.
    ///
    /// # Errors
    ///
    /// The table cannot be read.
    pub fn names(store: &dyn Store, place: &BlobPlace) -> Result<bool, ReadError> {
        let stored = store.get(&Self::key(&place.digest))?;
        // A record that cannot be read may name it.
        Ok(stored.is_some_and(|stored| Self::decode(&stored.value).map_or(true, |blob| blob.place() == *place)))
    }

    /// Where the bytes are.
    pub fn place(&self) -> BlobPlace {
        BlobPlace { digest: self.digest, object: self.object }
    }

    /// The key of a blob.
    pub fn key(digest: &BlobDigest) -> Key {
        key([&[BLOB], digest, &[], &[]])
    }

    /// Encodes the record.
    pub fn encode(&self) -> Bytes {
        storage::BlobRecord {
            sha256: Bytes::copy_from_slice(&self.digest),
            object_number: self.object,
            size_bytes: self.size,
            media_type: self.media_type.clone(),
            writer_id: self.writer.to_string(),
            created_at: self.created_at.unix_nanoseconds(),
            holds: self.holds,
            unheld_since: self.unheld_since.unix_nanoseconds(),
        }
        .encode_to_vec()
        .into()
    }

    /// Decodes the record.
    pub fn decode(value: &Bytes) -> Result<Self, DecodeError> {
        let stored: storage::BlobRecord = READER.message(value)?;
        Ok(Self {
            digest: READER.digest(&stored.sha256)?,
            object: stored.object_number,
            size: stored.size_bytes,
            media_type: stored.media_type,
            writer: READER.agent(&stored.writer_id)?,
            created_at: moment(stored.created_at),
            holds: stored.holds,
            unheld_since: moment(stored.unheld_since),
        })
    }

    /// The blob as clients see it.
    pub fn to_v1(&self) -> v1::Blob {
        v1::Blob {
            sha256: Bytes::copy_from_slice(&self.digest),
            size_bytes: self.size,
            media_type: self.media_type.clone(),
            writer_id: self.writer.to_string(),
            create_time: Some(self.created_at.into()),
        }
    }
}

/// The hold of a workspace on a blob: two entries without a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HoldKeys;

impl HoldKeys {
    /// The entry under the workspace.
    pub fn of(workspace: &WorkspaceId, digest: &BlobDigest) -> Key {
        key([&[HOLD], workspace.as_str().as_bytes(), &[0], digest])
    }

    /// The entry under the blob.
    pub fn holder(digest: &BlobDigest, workspace: &WorkspaceId) -> Key {
        key([&[HOLDER], digest, workspace.as_str().as_bytes(), &[]])
    }

    /// The entries of a workspace after this digest. `None`: all.
    pub fn range_of(workspace: &WorkspaceId, after: Option<&BlobDigest>) -> KeyRange {
        let name = workspace.as_str().as_bytes();
        let first = match after {
            Some(digest) => Bound::Excluded(Self::of(workspace, digest).key),
            None => Bound::Included([&[HOLD], name, &[0]].into()),
        };
        (first, Bound::Excluded([&[HOLD], name, &[1]].into()))
    }

    /// The entries of a blob's holders.
    pub fn range_of_holders(digest: &BlobDigest) -> KeyRange {
        let first: KeyBytes = [&[HOLDER][..], digest].into();
        // The names of workspaces are ASCII.
        (Bound::Included(first), Bound::Excluded([&[HOLDER][..], digest, &[0xff]].into()))
    }

    /// The digest in an entry under a workspace.
    pub fn digest(key: &[u8]) -> Result<BlobDigest, DecodeError> {
        key.last_chunk().copied().ok_or_else(|| READER.error("a key is too short"))
    }

    /// The workspace in an entry under a blob.
    pub fn workspace(key: &[u8]) -> Result<WorkspaceId, DecodeError> {
        let name = key.get(1 + 32..).and_then(|name| std::str::from_utf8(name).ok());
        name.and_then(|name| WorkspaceId::parse(name).ok()).ok_or_else(|| READER.error("a holder is no workspace"))
    }
}

/// An unfinished upload as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UploadRecord {
    /// The agent that writes.
    pub agent: AgentId,
    /// The SHA-256 that the bytes are to have.
    pub digest: BlobDigest,
    /// The number of bytes that the blob is to have.
    pub size: u64,
    /// The media type as the writer states it; the broker does not check it.
    pub media_type: String,
    /// The workspace that is to hold the blob.
    pub workspace: WorkspaceId,
    /// The time of the latest beginning or continuation.
    pub touched_at: Timestamp,
}

impl UploadRecord {
    /// The key of an upload.
    pub fn key(agent: &AgentId, digest: &BlobDigest) -> Key {
        key([&[UPLOAD], agent.as_str().as_bytes(), &[0], digest])
    }

    /// The key that says whether the file of an upload has a record.
    pub fn name_key(name: &BlobDigest) -> Key {
        key([&[UPLOAD_NAME], name, &[], &[]])
    }

    /// Encodes the record.
    pub fn encode(&self) -> Bytes {
        storage::UploadRecord {
            agent_id: self.agent.to_string(),
            sha256: Bytes::copy_from_slice(&self.digest),
            size_bytes: self.size,
            media_type: self.media_type.clone(),
            workspace_id: self.workspace.to_string(),
            touched_at: self.touched_at.unix_nanoseconds(),
        }
        .encode_to_vec()
        .into()
    }

    /// Decodes the record.
    pub fn decode(value: &Bytes) -> Result<Self, DecodeError> {
        let stored: storage::UploadRecord = READER.message(value)?;
        Ok(Self {
            agent: READER.agent(&stored.agent_id)?,
            digest: READER.digest(&stored.sha256)?,
            size: stored.size_bytes,
            media_type: stored.media_type,
            workspace: WorkspaceId::parse(&stored.workspace_id).map_err(|error| READER.error(error.to_string()))?,
            touched_at: moment(stored.touched_at),
        })
    }
}

/// What an agent uses of its quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BlobUsage {
    /// The bytes of its blobs and of its uploads, as they are to be.
    pub bytes: u64,
    /// The number of its unfinished uploads.
    pub uploads: u32,
}

impl BlobUsage {
    /// The key of an agent's usage.
    pub fn key(agent: &AgentId) -> Key {
        key([&[USAGE], agent.as_str().as_bytes(), &[], &[]])
    }

    /// Encodes the record.
    pub fn encode(&self) -> Bytes {
        storage::BlobUsageRecord { bytes: self.bytes, uploads: self.uploads }.encode_to_vec().into()
    }

    /// Decodes the record.
    pub fn decode(value: &Bytes) -> Result<Self, DecodeError> {
        let stored: storage::BlobUsageRecord = READER.message(value)?;
        Ok(Self { bytes: stored.bytes, uploads: stored.uploads })
    }
}

/// Checks that a record of table blobs decodes.
pub(super) fn check(key: &[u8], value: &Bytes) -> Result<(), DecodeError> {
    match key.first() {
        Some(&BLOB) => BlobRecord::decode(value).map(drop),
        Some(&UPLOAD) => UploadRecord::decode(value).map(drop),
        Some(&USAGE) => BlobUsage::decode(value).map(drop),
        Some(&HOLD | &UPLOAD_NAME) => HoldKeys::digest(key).map(drop),
        Some(&HOLDER) => HoldKeys::workspace(key).map(drop),
        Some(_) | None => Err(READER.error("a key is of no known kind")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_record_comes_back_as_it_was_stored() {
        let at = Timestamp::from_parts(7, 0).unwrap();
        let (agent, workspace) = (AgentId::parse("alice").unwrap(), WorkspaceId::parse("task:t").unwrap());
        let blob = BlobRecord {
            digest: [1; 32],
            object: Some(7),
            size: 5,
            media_type: "text/plain".into(),
            writer: agent.clone(),
            created_at: at,
            holds: 2,
            unheld_since: at,
        };
        assert_eq!(BlobRecord::decode(&blob.encode()), Ok(blob.clone()));
        check(&BlobRecord::key(&blob.digest).key, &blob.encode()).unwrap();
        let upload = UploadRecord {
            agent: agent.clone(),
            digest: [2; 32],
            size: 9,
            media_type: String::new(),
            workspace: workspace.clone(),
            touched_at: at,
        };
        assert_eq!(UploadRecord::decode(&upload.encode()), Ok(upload.clone()));
        check(&UploadRecord::key(&agent, &upload.digest).key, &upload.encode()).unwrap();
        let usage = BlobUsage { bytes: 14, uploads: 1 };
        assert_eq!(BlobUsage::decode(&usage.encode()), Ok(usage));
        let (hold, holder) = (HoldKeys::of(&workspace, &[3; 32]), HoldKeys::holder(&[3; 32], &workspace));
        assert_eq!(HoldKeys::digest(&hold.key), Ok([3; 32]));
        assert_eq!(HoldKeys::workspace(&holder.key), Ok(workspace.clone()));
        let (Bound::Included(first), Bound::Excluded(end)) = HoldKeys::range_of(&workspace, None) else { panic!() };
        assert!(first <= hold.key && hold.key < end);
    }
}

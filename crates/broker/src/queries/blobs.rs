//! Queries of blobs: what a caller may read, and what a workspace holds.

use super::{Page, READ_AT_A_TIME, StoredEntities, View};
use crate::{
    BrokerError,
    blobs::BlobDigest,
    domain::workspace::{self, WorkspaceId},
    policy::Action,
    records::{BlobRecord, HoldKeys, UploadRecord},
    store::{KeyBytes, Order, Table},
};

/// The outcome of one read for a blob.
#[derive(Debug)]
pub enum BlobSearch {
    /// The caller may read the blob.
    Found(BlobRecord),
    /// The caller takes part in none of the holders up to this one. Others may follow.
    NotUpTo(KeyBytes),
}

impl View<'_> {
    /// Looks for a blob that the caller may read, among the next [`READ_AT_A_TIME`] holders. One that it may not read is
    /// unknown to it. Other agents decide how many workspaces hold a blob: so no number of them ends the search, and
    /// one read looks at few.
    pub fn blob(&self, digest: &BlobDigest, after: Option<KeyBytes>) -> Result<BlobSearch, BrokerError> {
        let unknown = || BrokerError::BlobUnknown { blob: hex::encode(digest) };
        let stored = self.store.get(&BlobRecord::key(digest))?.ok_or_else(unknown)?;
        let mut range = HoldKeys::range_of_holders(digest);
        if let Some(after) = after {
            range.0 = std::ops::Bound::Excluded(after);
        }
        let mut found = self.store.scan(Table::Blobs, range, Order::Ascending, READ_AT_A_TIME)?;
        for (key, _) in &found {
            let workspace = HoldKeys::workspace(key)?;
            let Some(owner) = self.blob_holder(&workspace)? else { continue };
            let participants = &owner.participants;
            if self.access.about_workspace(self.caller, Action::ReadBlob, &workspace, participants).is_ok() {
                return Ok(BlobSearch::Found(BlobRecord::decode(&stored.value)?));
            }
        }
        let may_follow = found.len() == READ_AT_A_TIME;
        let (last, _) = found.pop().filter(|_| may_follow).ok_or_else(unknown)?;
        Ok(BlobSearch::NotUpTo(last))
    }

    /// The blobs that a workspace holds, by digest. The token of a page is the last digest of the page before.
    pub fn blobs_of(&self, workspace: &WorkspaceId, size: usize, token: &str) -> Result<Page<BlobRecord>, BrokerError> {
        let action = Action::ReadBlob;
        let owner = self.blob_holder(workspace)?;
        let owner = owner.ok_or_else(|| self.access.no_such_workspace(self.caller, action, workspace))?;
        self.access.about_workspace(self.caller, action, workspace, &owner.participants)?;
        let mut after = [0; 32];
        if !token.is_empty() && hex::decode_to_slice(token, &mut after).is_err() {
            return Err(BrokerError::PageTokenInvalid);
        }
        let mut range = HoldKeys::range_of(workspace, (!token.is_empty()).then_some(&after));
        let mut page = Page { entries: Vec::new(), next_token: String::new() };
        loop {
            let found = self.store.scan(Table::Blobs, range.clone(), Order::Ascending, READ_AT_A_TIME)?;
            let is_last = found.len() < READ_AT_A_TIME;
            for (key, _) in &found {
                let digest = HoldKeys::digest(key)?;
                if page.entries.len() == size {
                    page.next_token = hex::encode(page.entries.last().map_or([0; 32], |blob: &BlobRecord| blob.digest));
                    return Ok(page);
                }
                // A removal between the two reads leaves no blob.
                if let Some(stored) = self.store.get(&BlobRecord::key(&digest))? {
                    page.entries.push(BlobRecord::decode(&stored.value)?);
                }
                range.0 = std::ops::Bound::Excluded(key.clone());
            }
            if is_last {
                return Ok(page);
            }
        }
    }

    /// The caller's unfinished upload. Only agents have uploads.
    pub fn upload(&self, digest: &BlobDigest) -> Result<UploadRecord, BrokerError> {
        let agent = self.caller.agent()?;
        let stored = self.store.get(&UploadRecord::key(agent, digest))?;
        let stored = stored.ok_or_else(|| BrokerError::UploadUnknown { blob: hex::encode(digest) })?;
        Ok(UploadRecord::decode(&stored.value)?)
    }

    fn blob_holder(&self, workspace: &WorkspaceId) -> Result<Option<workspace::Owner>, BrokerError> {
        let mut read = StoredEntities::new(self.store);
        let owner = workspace::owner(workspace, &mut read);
        owner.map_err(|_| read.failure())
    }
}

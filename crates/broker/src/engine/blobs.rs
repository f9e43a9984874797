//! Blobs: uploads, holds, quotas, and the removal of what nothing holds. Must not know the bytes of a blob: the caller
//! names a blob once its file is complete and synced.

use std::collections::BTreeSet;

use super::{Engine, batch::PostCommit, retention::Removal, run::OpenTransaction, transaction::Transaction};

use crate::{
    BrokerError,
    access::Caller,
    blobs::{BlobDigest, BlobFiles, BlobPlace, Removed},
    codes::FieldViolation,
    contexts::payload_in,
    domain::{
        EntityId, Header, ReadError,
        workspace::{self, Append, WorkspaceId, WorkspaceOwner},
    },
    envelope::VerifiedEnvelope,
    ids::AgentId,
    policy::Action,
    proto::v1::{self, AuditAction, context_section::Content, workspace_append::Entry},
    records::{AuditAct, BlobRecord, BlobUsage, EntityRecord, Expiration, HoldKeys, UploadRecord},
    store::{Key, Order, Record, Table},
    time::Timestamp,
};

/// The most blobs that one workspace holds. One commit ends all of its holds.
const HELD_MAX: usize = 1000;
/// The most holders of a blob that a check of the right to read it looks at. An agent that takes part in none of them
/// writes the bytes again.
const HOLDERS_LOOKED_AT_MAX: usize = 256;
/// The scheme of references to blobs of the broker.
const SCHEME: &str = "baton:blob/";
/// The most bytes of an entry that is a reference: those of its URI.
const REFERENCE_BYTES_MAX: u64 = 4096;

/// A blob that an agent begins or continues to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewBlob {
    /// The SHA-256 of the bytes.
    pub digest: BlobDigest,
    /// The number of bytes.
    pub size: u64,
    /// The media type as the writer states it; the broker does not check it.
    pub media_type: String,
    /// The workspace that is to hold the blob.
    pub workspace: WorkspaceId,
}

impl Engine {
    /// Begins or continues an upload. Returns the blob if the agent may read it already: the workspace now holds it too. A
    /// blob whose file is lost is written again.
    pub(super) fn begin_upload(
        &mut self,
        agent: &AgentId,
        new: &NewBlob,
        now: Timestamp,
    ) -> Result<Option<BlobRecord>, BrokerError> {
        let mut transaction = self.transaction();
        self.check_holder(&mut transaction, agent, &new.workspace, now)?;
        if let Some(blob) = self.readable_blob(&mut transaction, agent, &new.digest, &new.workspace, now)? {
            check_size(blob.size, new.size, "blob.size_bytes")?;
            if self.has_file(&blob) {
                let held = self.hold(&mut transaction, &new.digest, &new.workspace)?;
                self.stage(transaction);
                return Ok(Some(held));
            }
        }
        let key = UploadRecord::key(agent, &new.digest);
        let stored = self.read(&mut transaction, &key)?;
        match &stored {
            Some(stored) => check_size(UploadRecord::decode(&stored.value)?.size, new.size, "blob.size_bytes")?,
            None => {
                let limits = &self.env.settings.blobs;
                let (bytes_max, uploads_max) = (limits.agent_bytes_max, limits.agent_uploads_max);
                self.change_usage(&mut transaction, agent, |usage| {
                    let bytes = usage.bytes + new.size;
                    if bytes > bytes_max {
                        return Err(BrokerError::BlobQuota { what: "bytes of blobs of an agent", limit: bytes_max });
                    }
                    if usage.uploads >= uploads_max {
                        let limit = u64::from(uploads_max);
                        return Err(BrokerError::BlobQuota { what: "unfinished uploads of an agent", limit });
                    }
                    Ok(BlobUsage { bytes, uploads: usage.uploads + 1 })
                })?;
                let name = BlobFiles::upload_name(agent.as_str(), &new.digest);
                transaction.put_over(UploadRecord::name_key(&name), bytes::Bytes::new());
            }
        }
        let upload = UploadRecord {
            agent: agent.clone(),
            digest: new.digest,
            size: new.size,
            media_type: new.media_type.clone(),
            workspace: new.workspace.clone(),
            touched_at: now,
        };
        transaction.expire_later(Expiration::Upload, now, &key.key);
        transaction.put(key, upload.encode(), stored.as_ref());
        self.stage(transaction);
        Ok(None)
    }

    /// Makes the record of a blob whose file is complete, and ends the upload.
    pub(super) fn finish_upload(
        &mut self,
        agent: &AgentId,
        BlobPlace { digest, object }: &BlobPlace,
        now: Timestamp,
    ) -> Result<BlobRecord, BrokerError> {
        let mut transaction = self.transaction();
        let upload = self.upload(&mut transaction, agent, digest)?;
        self.check_holder(&mut transaction, agent, &upload.workspace, now)?;
        let stored = self.read(&mut transaction, &BlobRecord::key(digest))?;
        let is_known = stored.is_some();
        if !is_known {
            let blob = BlobRecord {
                digest: *digest,
                object: *object,
                size: upload.size,
                media_type: upload.media_type.clone(),
                writer: agent.clone(),
                created_at: now,
                holds: 0,
                unheld_since: now,
            };
            let held = self.hold_new(&mut transaction, blob, &upload.workspace)?;
            self.end_upload(&mut transaction, &upload, 0)?;
            self.stage(transaction);
            return Ok(held);
        }
        // The blob uses the quota of its first writer alone.
        let held = self.hold(&mut transaction, digest, &upload.workspace)?;
        self.end_upload(&mut transaction, &upload, upload.size)?;
        self.stage(transaction);
        Ok(held)
    }

    /// Ends an upload whose bytes have another digest.
    pub(super) fn drop_upload(&mut self, agent: &AgentId, digest: &BlobDigest) -> Result<(), BrokerError> {
        let mut transaction = self.transaction();
        let upload = self.upload(&mut transaction, agent, digest)?;
        self.end_upload(&mut transaction, &upload, upload.size)?;
        self.stage(transaction);
        Ok(())
    }

    /// Ends the hold of a workspace, for a caller that may write its blobs.
    pub(super) fn delete_blob(
        &mut self,
        caller: &Caller,
        digest: &BlobDigest,
        workspace: &WorkspaceId,
        now: Timestamp,
    ) -> Result<(), BrokerError> {
        let mut transaction = self.transaction();
        let owner = self.owner_of(&mut transaction, workspace, now)?;
        let Some(owner) = owner else {
            return Err(self.access().no_such_workspace(caller, Action::WriteBlob, workspace));
        };
        self.access().about_workspace(caller, Action::WriteBlob, workspace, &owner.participants)?;
        if self.read(&mut transaction, &HoldKeys::of(workspace, digest))?.is_none() {
            return Err(BrokerError::BlobUnknown { blob: hex::encode(digest) });
        }
        self.release(&mut transaction, digest, workspace, now)?;
        if !caller.as_agent().is_some_and(|agent| owner.participants.contains(agent)) {
            let (actor, subject) = (caller.to_string(), hex::encode(digest));
            let act = AuditAct { actor, action: AuditAction::BlobDeleted, subject, details: workspace.to_string() };
            self.record(&mut transaction, act, now)?;
        }
        self.stage(transaction);
        Ok(())
    }

    /// Ends all holds of a workspace that is removed.
    pub(super) fn release_all(
        &mut self,
        transaction: &mut Transaction,
        workspace: &WorkspaceId,
        now: Timestamp,
    ) -> Result<(), BrokerError> {
        let range = HoldKeys::range_of(workspace, None);
        // All of them: the limit does not count the holds of a batch, so there may be some more than `HELD_MAX`.
        for (key, _) in self.env.store.scan(Table::Blobs, range, Order::Ascending, usize::MAX)? {
            let digest = HoldKeys::digest(&key)?;
            self.release(transaction, &digest, workspace, now)?;
        }
        Ok(())
    }

    /// Takes holds for the references of a context to blobs, for its task. The machine refuses the context of an agent
    /// that does not own the task, and then no hold is taken.
    pub(super) fn hold_context(
        &mut self,
        transaction: &mut Transaction,
        header: &Header,
        context: &v1::TaskContextTransfer,
        now: Timestamp,
    ) -> Result<(), BrokerError> {
        let Some(task) = &header.task else { return Ok(()) };
        let sections = context.sections.iter().enumerate();
        let references: Vec<_> = sections
            .filter_map(|(index, section)| match &section.content {
                Some(Content::Reference(reference)) => {
                    Some((format!("envelope.payload.sections[{index}].reference"), reference))
                }
                _ => None,
            })
            .collect();
        if references.is_empty() {
            return Ok(());
        }
        let stored = self.entity_record(transaction, &EntityId::Task(task.clone()))?;
        if stored.as_deref().and_then(EntityRecord::as_task).is_none_or(|record| record.task.owner != header.sender) {
            return Ok(());
        }
        let workspace = WorkspaceId::of(WorkspaceOwner::Task, task.as_str()).map_err(|_| BrokerError::Internal)?;
        self.hold_references(transaction, &header.sender, &workspace, &references, now)
    }

    /// Takes a hold for the reference of a workspace's entry to a blob.
    pub(super) fn hold_entry(
        &mut self,
        transaction: &mut Transaction,
        envelope: &VerifiedEnvelope,
        append: &Append,
        now: Timestamp,
    ) -> Result<(), BrokerError> {
        // Only a small entry can be a reference: an append pays for no second parse otherwise. The size of the envelope
        // says nothing, because its sender may add fields that the broker does not know.
        if append.size > REFERENCE_BYTES_MAX || !names_blob(envelope.raw()) {
            return Ok(());
        }
        let workspace = &append.workspace;
        let append: v1::WorkspaceAppend = payload_in(envelope.raw()).ok_or(BrokerError::Internal)?;
        let Some(Entry::Reference(reference)) = &append.entry else { return Ok(()) };
        let references = [("envelope.payload.reference".to_owned(), reference)];
        self.hold_references(transaction, &envelope.header().sender, workspace, &references, now)
    }

    /// Takes holds for the references of a message to blobs, as a part of its transaction. Each reference is the path of
    /// its field and the reference.
    fn hold_references(
        &mut self,
        transaction: &mut Transaction,
        agent: &AgentId,
        workspace: &WorkspaceId,
        references: &[(String, &v1::ContextReference)],
        now: Timestamp,
    ) -> Result<(), BrokerError> {
        let mut held = BTreeSet::new();
        for (path, reference) in references {
            let Some(name) = reference.uri.strip_prefix(SCHEME) else { continue };
            let mut digest = [0; 32];
            let is_lower = !name.bytes().any(|byte| byte.is_ascii_uppercase());
            if !is_lower || hex::decode_to_slice(name, &mut digest).is_err() {
                return Err(wrong(&format!("{path}.uri"), "must be baton:blob/ and 64 digits of hex in lower case"));
            }
            if *reference.sha256 != digest {
                return Err(wrong(&format!("{path}.sha256"), "must be the digest that the URI names"));
            }
            let Some(blob) = self.readable_blob(transaction, agent, &digest, workspace, now)? else {
                let upload = self.read(&mut self.transaction(), &UploadRecord::key(agent, &digest))?;
                let blob = hex::encode(digest);
                return Err(match upload {
                    Some(_) => BrokerError::BlobIncomplete { blob },
                    None => BrokerError::BlobUnknown { blob },
                });
            };
            check_size(blob.size, reference.size_bytes, &format!("{path}.size_bytes"))?;
            if !self.has_file(&blob) {
                return Err(BrokerError::BlobDamaged { blob: hex::encode(digest) });
            }
            if held.insert(digest) {
                self.hold(transaction, &digest, workspace)?;
            }
        }
        Ok(())
    }

    /// Whether the file of a known blob is there, by its length. Does not read it.
    fn has_file(&self, blob: &BlobRecord) -> bool {
        let files = self.env.resources.blob_files.as_ref();
        files.is_none_or(|files| files.is_there(&blob.place(), blob.size))
    }

    /// The blob, if the agent may read it: as a participant of one of its holders. Looks first at the workspace that the
    /// agent names.
    fn readable_blob(
        &mut self,
        transaction: &mut Transaction,
        agent: &AgentId,
        digest: &BlobDigest,
        named: &WorkspaceId,
        now: Timestamp,
    ) -> Result<Option<BlobRecord>, BrokerError> {
        let Some(stored) = self.read(transaction, &BlobRecord::key(digest))? else { return Ok(None) };
        let caller = Caller::Agent(agent.clone());
        let range = HoldKeys::range_of_holders(digest);
        let holders = self.env.store.scan(Table::Blobs, range, Order::Ascending, HOLDERS_LOOKED_AT_MAX)?;
        let holders = holders.iter().map(|(key, _)| HoldKeys::workspace(key)).collect::<Result<Vec<_>, _>>()?;
        for workspace in std::iter::once(named).chain(&holders) {
            // An earlier command of the batch may have ended the hold.
            if self.read(&mut self.transaction(), &HoldKeys::of(workspace, digest))?.is_none() {
                continue;
            }
            let Some(owner) = self.owner_of(&mut self.transaction(), workspace, now)? else { continue };
            let may_read = self.access().about_workspace(&caller, Action::ReadBlob, workspace, &owner.participants);
            if may_read.is_ok() {
                return Ok(Some(BlobRecord::decode(&stored.value)?));
            }
        }
        Ok(None)
    }

    pub(super) fn owner_of(
        &mut self,
        transaction: &mut Transaction,
        workspace: &WorkspaceId,
        now: Timestamp,
    ) -> Result<Option<workspace::Owner>, BrokerError> {
        let mut read = OpenTransaction::new(self, transaction, now);
        workspace::owner(workspace, &mut read).map_err(|ReadError| read.failure())
    }

    /// Checks that the agent may write blobs for this workspace, and that its owner is open.
    fn check_holder(
        &mut self,
        transaction: &mut Transaction,
        agent: &AgentId,
        workspace: &WorkspaceId,
        now: Timestamp,
    ) -> Result<(), BrokerError> {
        let caller = Caller::Agent(agent.clone());
        // An overdue deadline of the owner may end the agent's part in it.
        if let Some(EntityId::Task(task)) = workspace::owner_entity(workspace) {
            self.settle_overdue(Some(&task), now)?;
        }
        let Some(owner) = self.owner_of(transaction, workspace, now)? else {
            return Err(self.access().no_such_workspace(&caller, Action::WriteBlob, workspace));
        };
        self.access().about_workspace(&caller, Action::WriteBlob, workspace, &owner.participants)?;
        match owner.is_open {
            true => Ok(()),
            false => Err(BrokerError::BlobHolderClosed { workspace: workspace.to_string() }),
        }
    }

    fn upload(
        &self,
        transaction: &mut Transaction,
        agent: &AgentId,
        digest: &BlobDigest,
    ) -> Result<UploadRecord, BrokerError> {
        let stored = self.read(transaction, &UploadRecord::key(agent, digest))?;
        let stored = stored.ok_or_else(|| BrokerError::UploadUnknown { blob: hex::encode(digest) })?;
        Ok(UploadRecord::decode(&stored.value)?)
    }

    /// Takes a hold on a known blob. A hold that exists stays one hold.
    fn hold(
        &mut self,
        transaction: &mut Transaction,
        digest: &BlobDigest,
        workspace: &WorkspaceId,
    ) -> Result<BlobRecord, BrokerError> {
        let key = BlobRecord::key(digest);
        let stored = self.read(transaction, &key)?.ok_or(BrokerError::Internal)?;
        let blob = BlobRecord::decode(&stored.value)?;
        if self.read(transaction, &HoldKeys::of(workspace, digest))?.is_some() {
            return Ok(blob);
        }
        let blob = BlobRecord { holds: blob.holds + 1, ..blob };
        self.put_hold(transaction, digest, workspace)?;
        transaction.put(key, blob.encode(), Some(&stored));
        Ok(blob)
    }

    /// Takes the first hold on a new blob.
    fn hold_new(
        &mut self,
        transaction: &mut Transaction,
        blob: BlobRecord,
        workspace: &WorkspaceId,
    ) -> Result<BlobRecord, BrokerError> {
        let blob = BlobRecord { holds: 1, ..blob };
        self.put_hold(transaction, &blob.digest, workspace)?;
        transaction.put(BlobRecord::key(&blob.digest), blob.encode(), None);
        Ok(blob)
    }

    fn put_hold(
        &mut self,
        transaction: &mut Transaction,
        digest: &BlobDigest,
        workspace: &WorkspaceId,
    ) -> Result<(), BrokerError> {
        // Does not count the holds of the batch in hand.
        let range = HoldKeys::range_of(workspace, None);
        if self.env.store.scan(Table::Blobs, range, Order::Ascending, HELD_MAX)?.len() >= HELD_MAX {
            return Err(BrokerError::BlobQuota { what: "blobs of a workspace", limit: HELD_MAX as u64 });
        }
        transaction.put_over(HoldKeys::of(workspace, digest), bytes::Bytes::new());
        transaction.put_over(HoldKeys::holder(digest, workspace), bytes::Bytes::new());
        Ok(())
    }

    /// Ends a hold. The last one begins the time after which the blob is removed.
    fn release(
        &mut self,
        transaction: &mut Transaction,
        digest: &BlobDigest,
        workspace: &WorkspaceId,
        now: Timestamp,
    ) -> Result<(), BrokerError> {
        let hold = HoldKeys::of(workspace, digest);
        // The store may still have a hold that an earlier command of the batch has ended.
        if self.read(transaction, &hold)?.is_none() {
            return Ok(());
        }
        transaction.delete(hold);
        transaction.delete(HoldKeys::holder(digest, workspace));
        let key = BlobRecord::key(digest);
        let Some(stored) = self.read(transaction, &key)? else { return Ok(()) };
        let blob = BlobRecord::decode(&stored.value)?;
        let blob = BlobRecord { holds: blob.holds.saturating_sub(1), unheld_since: now, ..blob };
        if blob.holds == 0 {
            transaction.expire_later(Expiration::Blob, now, &key.key);
        }
        transaction.put(key, blob.encode(), Some(&stored));
        Ok(())
    }

    /// Removes the record of an upload, and gives bytes back to the quota of its agent.
    fn end_upload(
        &mut self,
        transaction: &mut Transaction,
        upload: &UploadRecord,
        bytes_back: u64,
    ) -> Result<(), BrokerError> {
        let name = BlobFiles::upload_name(upload.agent.as_str(), &upload.digest);
        transaction.delete(UploadRecord::key(&upload.agent, &upload.digest));
        transaction.delete(UploadRecord::name_key(&name));
        transaction.post_commit.push(PostCommit::FileRemoved(Removed::Upload(name)));
        self.change_usage(transaction, &upload.agent, |usage| {
            let bytes = usage.bytes.saturating_sub(bytes_back);
            Ok(BlobUsage { bytes, uploads: usage.uploads.saturating_sub(1) })
        })
    }

    fn change_usage(
        &self,
        transaction: &mut Transaction,
        agent: &AgentId,
        change: impl FnOnce(BlobUsage) -> Result<BlobUsage, BrokerError>,
    ) -> Result<(), BrokerError> {
        let key = BlobUsage::key(agent);
        let stored = self.read(transaction, &key)?;
        let usage = stored.as_ref().map(|record| BlobUsage::decode(&record.value)).transpose()?.unwrap_or_default();
        transaction.put(key, change(usage)?.encode(), stored.as_ref());
        Ok(())
    }

    /// Removes a blob that nothing has held since the time of this entry.
    pub(super) fn remove_blob(
        &mut self,
        entry: Key,
        what: &[u8],
        since: Timestamp,
        budget: &mut usize,
    ) -> Result<Removal, BrokerError> {
        let mut transaction = self.transaction();
        transaction.delete(entry);
        let key = Key { table: Table::Blobs, key: what.into() };
        if let Some(stored) = self.read(&mut transaction, &key)? {
            let blob = BlobRecord::decode(&stored.value)?;
            // A blob that was held again in between has a later entry, or none.
            if blob.holds == 0 && blob.unheld_since == since {
                transaction.delete(key);
                self.change_usage(&mut transaction, &blob.writer, |usage| {
                    Ok(BlobUsage { bytes: usage.bytes.saturating_sub(blob.size), ..usage })
                })?;
                transaction.post_commit.push(PostCommit::FileRemoved(Removed::Blob(blob.place())));
            }
        }
        Ok(self.stage_removal(transaction, budget))
    }

    /// Removes an upload that was not continued since the time of this entry.
    pub(super) fn remove_upload(
        &mut self,
        entry: Key,
        what: &[u8],
        since: Timestamp,
        budget: &mut usize,
    ) -> Result<Removal, BrokerError> {
        let mut transaction = self.transaction();
        transaction.delete(entry);
        let key = Key { table: Table::Blobs, key: what.into() };
        let stored: Option<Record> = self.read(&mut transaction, &key)?;
        if let Some(stored) = stored {
            let upload = UploadRecord::decode(&stored.value)?;
            if upload.touched_at == since {
                self.end_upload(&mut transaction, &upload, upload.size)?;
            }
        }
        Ok(self.stage_removal(transaction, budget))
    }
}

/// Whether bytes contain the scheme of references to blobs.
fn names_blob(bytes: &[u8]) -> bool {
    bytes.windows(SCHEME.len()).any(|part| part == SCHEME.as_bytes())
}

fn check_size(known: u64, named: u64, path: &str) -> Result<(), BrokerError> {
    match known == named {
        true => Ok(()),
        false => Err(wrong(path, &format!("must be {known}, the size of the blob with this digest"))),
    }
}

fn wrong(path: &str, problem: &str) -> BrokerError {
    BrokerError::Fields { violations: vec![FieldViolation { path: path.to_owned(), problem: problem.to_owned() }] }
}

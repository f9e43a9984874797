//! Workspaces: accepting an append, the records of entries, and their removal with the workspace.

use bytes::Bytes;
use prost_types::Timestamp as WireTime;

use super::{
    Engine,
    batch::PostCommit,
    retention::Removal,
    run::{Cause, OpenTransaction, Origin, ThisMessage},
    transaction::Transaction,
};
use crate::{
    BrokerError, Refused,
    access::Caller,
    domain::{
        EntityId, Header, Input, ReadError,
        mailbox::EnvelopeOwner,
        workspace::{self, Append, Entry, WorkspaceId},
    },
    envelope::{VerifiedEnvelope, signing},
    policy::Action,
    proto::v1,
    records::{EntityRecord, Expiration, MessageRecord, WorkspaceEntryRecord, WorkspaceRecord, entity_timer_key},
    refused,
    store::{Key, Order, Record, Table},
    time::Timestamp,
};

impl Engine {
    /// Accepts an append: the policies decide about its sender, and the machine about the rest.
    pub(super) fn append_entry(
        &mut self,
        mut transaction: Transaction,
        envelope: &VerifiedEnvelope,
        append: &Append,
        now: Timestamp,
    ) -> Result<v1::Receipt, Refused> {
        let caller = Caller::Agent(envelope.header().sender.clone());
        let action = Action::AppendWorkspace { topic: append.topic.as_str() };
        // An overdue deadline of the owner may end the sender's part in it.
        if let Some(EntityId::Task(task)) = workspace::owner_entity(&append.workspace) {
            self.settle_overdue(Some(&task), now).map_err(refused)?;
        }
        let owner = self.workspace_owner(&mut transaction, &append.workspace, now).map_err(refused)?;
        let Some(owner) = owner else {
            return Err(refused(self.access().no_such_workspace(&caller, action, &append.workspace)));
        };
        self.access().about_workspace(&caller, action, &append.workspace, &owner.participants).map_err(refused)?;
        self.hold_entry(&mut transaction, envelope, append, now).map_err(refused)?;
        let sequence = self.new_sequence(&mut transaction);
        let this = ThisMessage { envelope, sequence, owner: EnvelopeOwner::Letter, copy: None };
        let about = EntityId::Workspace(append.workspace.clone());
        let input = Input::Append { append: append.clone(), limits: self.env.settings.workspace, is_result: false };
        let cause = Cause { origin: Origin::Message(this), event: None };
        match self.run(&mut transaction, &about, &input, cause, now) {
            Ok(true) => Ok(self.accept(transaction, this, now)),
            Ok(false) => Err(refused(BrokerError::Internal)), // an append changes the workspace or is rejected
            Err(error) => Err(error.into_refusal()),
        }
    }

    fn workspace_owner(
        &mut self,
        transaction: &mut Transaction,
        id: &WorkspaceId,
        now: Timestamp,
    ) -> Result<Option<workspace::Owner>, BrokerError> {
        let mut read = OpenTransaction::new(self, transaction, now);
        workspace::owner(id, &mut read).map_err(|ReadError| read.failure())
    }

    /// The head of an entry, for a step.
    pub(super) fn workspace_entry(
        &self,
        transaction: &mut Transaction,
        workspace: &WorkspaceId,
        sequence: u64,
    ) -> Result<Option<Entry>, BrokerError> {
        let key = WorkspaceEntryRecord::key(workspace, sequence);
        let Some(stored) = self.read(transaction, &key)? else { return Ok(None) };
        Ok(Some(WorkspaceEntryRecord::decode(&key.key, &stored.value)?.entry))
    }

    /// Stores the head of an entry, and advances the chain of its workspace. [`Self::accept`] stores the envelope.
    pub(super) fn keep_entry(
        &mut self,
        transaction: &mut Transaction,
        entry: Entry,
        this: ThisMessage<'_>,
    ) -> Result<(), BrokerError> {
        let known = self.entity_record(transaction, &EntityId::Workspace(entry.workspace.clone()))?;
        let record = known.as_deref().and_then(EntityRecord::as_workspace).ok_or(BrokerError::Internal)?;
        let (time, content) = (WireTime::from(entry.created_at), this.envelope.content_digest());
        let chain_hash = signing::workspace_hash(&record.chain_hash, entry.sequence, Some(&time), content);
        let record = WorkspaceRecord { chain_hash, ..record.clone() };
        let key = WorkspaceEntryRecord::key(&entry.workspace, entry.sequence);
        let head = WorkspaceEntryRecord { entry, message: this.sequence, chain_hash };
        transaction.put_new(key, head.encode());
        transaction.put_entity(EntityRecord::Workspace(record));
        Ok(())
    }

    /// Removes the heads and the envelopes of these entries.
    pub(super) fn remove_entries(
        &mut self,
        transaction: &mut Transaction,
        workspace: &WorkspaceId,
        sequences: std::ops::RangeInclusive<u64>,
    ) -> Result<(), BrokerError> {
        for sequence in sequences {
            let key = WorkspaceEntryRecord::key(workspace, sequence);
            // The machine passes over an entry that is missing.
            let Some(stored) = self.read(transaction, &key)? else { continue };
            let head = WorkspaceEntryRecord::decode(&key.key, &stored.value)?;
            transaction.delete(MessageRecord::envelope_key(head.message));
            transaction.delete(key);
        }
        Ok(())
    }

    /// Whether a command of the batch in hand writes the workspace.
    pub(super) fn is_workspace_in_batch(&self, id: &WorkspaceId) -> bool {
        self.is_written_in_batch(&WorkspaceRecord::key(id))
    }

    /// Removes a workspace with its owner, and ends its holds on blobs. Its entries follow in later commits. Returns the
    /// bytes of its entries.
    pub(super) fn remove_workspace(
        &mut self,
        transaction: &mut Transaction,
        id: &WorkspaceId,
        now: Timestamp,
    ) -> Result<u64, BrokerError> {
        let entity = EntityId::Workspace(id.clone());
        // A workspace without a record may hold blobs.
        self.release_all(transaction, id, now)?;
        // A watcher may wait for the first entry of a workspace without a record.
        transaction.post_commit.push(PostCommit::EntityRemoved(entity.clone()));
        let key = WorkspaceRecord::key(id);
        let Some(stored) = self.read(transaction, &key)? else { return Ok(0) };
        let record = WorkspaceRecord::decode(&stored.value)?;
        transaction.delete(key);
        if record.workspace.next_expiry.is_some() {
            transaction.delete(entity_timer_key(&EntityRecord::Workspace(record.clone())));
            let before = record.workspace.next_expiry;
            transaction.post_commit.push(PostCommit::EntityTimer {
                entity,
                counts_for: None,
                bytes: 0,
                before,
                after: None,
            });
        }
        if record.workspace.entries() > 0 {
            let kind = Expiration::Entries;
            let key = kind.key(now, id.as_str().as_bytes());
            transaction.put_over(key.clone(), Bytes::new());
            transaction.post_commit.push(PostCommit::ExpirationStored { kind, key, since: now });
        }
        Ok(record.workspace.bytes)
    }

    /// Removes some of the entries that a removed workspace has left. `what` is the id of the workspace.
    pub(super) fn remove_left_entries(
        &mut self,
        entry: Key,
        what: &[u8],
        record: &Record,
        budget: &mut usize,
    ) -> Result<Removal, BrokerError> {
        let mut transaction = self.transaction();
        let id = std::str::from_utf8(what).ok().and_then(|id| WorkspaceId::parse(id).ok());
        let Some(id) = id else {
            // The entry is deleted all the same: the search would stop at it in every tick.
            tracing::error!("failed to read the rest of a removed workspace");
            transaction.delete(entry);
            return Ok(self.stage_removal(transaction, budget));
        };
        // The value has the number up to which the entries are removed, so that no scan passes over them again.
        let after = record.value.first_chunk().copied().map_or(0, u64::from_be_bytes);
        let most = self.env.settings.retention.entries_a_step;
        let range = WorkspaceEntryRecord::range(&id, after, u64::MAX);
        let heads = self.env.store.scan(Table::WorkspaceEntries, range, Order::Ascending, most)?;
        let is_more = heads.len() == most;
        let mut last = after;
        for (key, stored) in heads {
            let head = WorkspaceEntryRecord::decode(&key, &stored.value)?;
            last = head.entry.sequence;
            transaction.delete(MessageRecord::envelope_key(head.message));
            transaction.delete(Key { table: Table::WorkspaceEntries, key });
        }
        if is_more {
            transaction.put(entry, Bytes::copy_from_slice(&last.to_be_bytes()), Some(record));
            self.stage_removal(transaction, budget);
            return Ok(Removal::Unfinished);
        }
        transaction.delete(entry);
        Ok(self.stage_removal(transaction, budget))
    }
}

/// The receipt of an append of the coordinator, which is a part of another step.
pub(super) fn append_receipt(header: &Header, sequence: u64, workspace: &WorkspaceRecord) -> v1::Receipt {
    v1::Receipt {
        message_id: header.message_id.to_string(),
        sequence,
        accept_time: Some(workspace.log_clock.logged_at.into()),
        resource: format!("workspace:{}", workspace.workspace.id),
        resource_sequence: workspace.workspace.last_sequence,
        ..Default::default()
    }
}

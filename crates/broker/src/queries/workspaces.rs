//! Queries of workspaces: the state of one, and pages of its entries.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::Message as _;

use super::{LOOKED_AT_MAX, PAGE_BYTES_MAX, READ_AT_A_TIME, View};
use crate::{
    BrokerError,
    domain::{
        Entity, EntityId, ReadError, Reader,
        workspace::{self, Owner, Topic, WorkspaceId},
    },
    ids::AgentId,
    policy::Action,
    proto::v1::{self, workspace_append, workspace_entry},
    records::{EntityRecord, MessageRecord, WorkspaceEntryRecord, WorkspaceRecord},
    store::{Order, Store, Table},
    stored,
};

/// The number of times that a page is read again because its entries expire during the read.
const READS_MAX: usize = 3;

/// A query of a workspace's entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryQuery {
    /// The workspace to read.
    pub workspace: WorkspaceId,
    /// The wanted topics. Empty: all that the caller may read.
    pub topics: Vec<Topic>,
    /// Only entries with a higher number.
    pub after: u64,
    /// The most entries of the page.
    pub limit: usize,
    /// Whether each entry has its envelope.
    pub envelopes: bool,
}

/// A page of a workspace's entries.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct EntryPage {
    /// The entries, oldest first.
    pub entries: Vec<v1::WorkspaceEntry>,
    /// The number of the last entry that was looked at.
    pub next_after: u64,
    /// The numbers after the query's that have no entry any more, first and last.
    pub gap: Option<(u64, u64)>,
    /// The number of the workspace's last entry.
    pub last_sequence: u64,
    /// Whether the workspace takes no entry any more.
    pub is_closed: bool,
}

impl EntryPage {
    /// Whether the workspace has entries after the page.
    pub fn has_more(&self) -> bool {
        self.next_after < self.last_sequence
    }
}

/// A workspace that the caller may read.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkspaceView {
    /// The workspace, empty before its first entry.
    pub record: WorkspaceRecord,
    /// The participants, and whether the workspace takes entries.
    pub owner: Owner,
}

/// The stored entities, for the rules about owners.
pub(super) struct StoredEntities<'a> {
    store: &'a dyn Store,
    failure: Option<BrokerError>,
}

impl<'a> StoredEntities<'a> {
    pub(super) fn new(store: &'a dyn Store) -> Self {
        Self { store, failure: None }
    }

    /// The cause of a failed read.
    pub(super) fn failure(self) -> BrokerError {
        self.failure.unwrap_or(BrokerError::Internal)
    }
}

impl Reader for StoredEntities<'_> {
    fn entity(&mut self, id: &EntityId) -> Result<Option<Entity>, ReadError> {
        let found = stored::entity(self.store, id).map_err(|error| {
            self.failure = Some(error);
            ReadError
        })?;
        Ok(found.map(|record| record.entity()))
    }

    fn is_gone(&mut self, _agent: &AgentId) -> bool {
        // No rule about owners asks for the presence of an agent.
        false
    }
}

impl View<'_> {
    /// A workspace that the caller may read.
    pub fn workspace(&self, id: &WorkspaceId) -> Result<WorkspaceView, BrokerError> {
        let owner = self.workspace_owner(id, &[])?;
        Ok(WorkspaceView { record: self.workspace_record(id)?, owner })
    }

    /// The topics of a workspace that the caller may read, by name, and the number of the last entry.
    pub fn workspace_topics(&self, id: &WorkspaceId) -> Result<(Vec<v1::WorkspaceTopic>, u64), BrokerError> {
        let WorkspaceView { record, owner } = self.workspace(id)?;
        let topics = record.workspace.topics.iter().filter(|(name, _)| self.may_read(id, &owner, name));
        let shown = topics.map(|(name, topic)| v1::WorkspaceTopic {
            name: name.to_string(),
            entry_count: topic.entries,
            first_sequence: topic.first_sequence,
            last_sequence: topic.last_sequence,
            size_bytes: topic.bytes,
            update_time: Some(topic.updated_at.into()),
        });
        Ok((shown.collect(), record.workspace.last_sequence))
    }

    /// A page of entries that the caller may read. A page has at least one entry if one is wanted and exists, unless the
    /// first 1,024 entries that it looks at are of other topics.
    pub fn workspace_entries(&self, query: &EntryQuery) -> Result<EntryPage, BrokerError> {
        // The owner is read first: a workspace closed by then gets no further entry.
        let owner = self.workspace_owner(&query.workspace, &query.topics)?;
        let mut page = EntryPage::default();
        for _ in 0..READS_MAX {
            let record = self.workspace_record(&query.workspace)?;
            page = EntryPage {
                next_after: query.after,
                last_sequence: record.workspace.last_sequence,
                is_closed: !owner.is_open,
                ..EntryPage::default()
            };
            if self.fill(&mut page, query, &owner)? {
                break;
            }
        }
        Ok(page)
    }

    /// An entry that the caller has appended, by its number: its author sees it without a right to read others. `None`: it
    /// has expired, or is of another author.
    ///
    /// # Errors
    /// IDENTITY_MISSING or AGENTS_ONLY for a caller that is no agent, and so no author.
    pub fn appended_entry(
        &self,
        workspace: &WorkspaceId,
        sequence: u64,
    ) -> Result<Option<v1::WorkspaceEntry>, BrokerError> {
        let author = self.caller.agent()?;
        let key = WorkspaceEntryRecord::key(workspace, sequence);
        let Some(stored) = self.store.get(&key)? else { return Ok(None) };
        let head = WorkspaceEntryRecord::decode(&key.key, &stored.value)?;
        Ok(self.whole_entry(&head, false)?.filter(|entry| entry.author_id == author.as_str()))
    }

    /// Adds the entries to the page. Returns false if an entry has expired during the read.
    fn fill(&self, page: &mut EntryPage, query: &EntryQuery, owner: &Owner) -> Result<bool, BrokerError> {
        let last = page.last_sequence;
        if query.after > last {
            // The caller has seen more than the workspace has: the broker was restored to an earlier state.
            (page.gap, page.next_after) = (Some((last + 1, query.after)), last);
            return Ok(true);
        }
        let mut readable: BTreeMap<Topic, bool> = query.topics.iter().map(|topic| (topic.clone(), true)).collect();
        let (mut bytes, mut looked_at) = (0, 0);
        while page.has_more() && looked_at < LOOKED_AT_MAX {
            let range = WorkspaceEntryRecord::range(&query.workspace, page.next_after, last);
            let heads = self.store.scan(Table::WorkspaceEntries, range, Order::Ascending, READ_AT_A_TIME)?;
            // Counted as one gap with an earlier one of the page, so that a watcher gets one range.
            if heads.is_empty() {
                // All of them have expired.
                let first = page.next_after + 1;
                (page.gap, page.next_after) = (Some((page.gap.map_or(first, |gap| gap.0), last)), last);
            }
            for (key, stored) in heads {
                let head = WorkspaceEntryRecord::decode(&key, &stored.value)?;
                let sequence = head.entry.sequence;
                if sequence > page.next_after + 1 {
                    if !page.entries.is_empty() {
                        return Ok(false); // entries of this page have expired since it was begun
                    }
                    let first = page.gap.map_or(page.next_after + 1, |gap| gap.0);
                    page.gap = Some((first, sequence - 1));
                }
                // The policy is asked once for each topic of a page. Named topics were all checked before.
                let is_wanted = *readable.entry(head.entry.topic.clone()).or_insert_with_key(|topic| {
                    query.topics.is_empty() && self.may_read(&query.workspace, owner, topic)
                });
                if is_wanted {
                    let Some(entry) = self.whole_entry(&head, query.envelopes)? else { return Ok(false) };
                    bytes += entry.encoded_len();
                    // A page has at least one entry, of any size.
                    if bytes > PAGE_BYTES_MAX && !page.entries.is_empty() {
                        return Ok(true);
                    }
                    page.entries.push(entry);
                }
                page.next_after = sequence;
                looked_at += 1;
                // After `next_after` has moved, so that the next page begins behind this entry.
                if page.entries.len() == query.limit {
                    return Ok(true);
                }
            }
        }
        Ok(true)
    }

    /// An entry with its content, out of its envelope. `None`: the entry has expired since its head was read.
    fn whole_entry(
        &self,
        head: &WorkspaceEntryRecord,
        with_envelope: bool,
    ) -> Result<Option<v1::WorkspaceEntry>, BrokerError> {
        use workspace_append::Entry as Content;
        let Some(stored) = self.store.get(&MessageRecord::envelope_key(head.message))? else { return Ok(None) };
        let envelope = v1::Envelope::decode(stored.value.clone()).map_err(|error| damaged(head, &error))?;
        let payload = envelope.payload.unwrap_or_default().value;
        let append = v1::WorkspaceAppend::decode(payload).map_err(|error| damaged(head, &error))?;
        let content = append.entry.map(|content| match content {
            Content::Json(json) => workspace_entry::Entry::Json(json),
            Content::Bytes(bytes) => workspace_entry::Entry::Bytes(bytes),
            Content::Reference(reference) => workspace_entry::Entry::Reference(reference),
        });
        Ok(Some(v1::WorkspaceEntry {
            sequence: head.entry.sequence,
            topic: head.entry.topic.to_string(),
            author_id: envelope.sender_id,
            create_time: Some(head.entry.created_at.into()),
            source_time: append.source_time,
            message_id: envelope.message_id,
            envelope: if with_envelope { stored.value } else { Bytes::new() },
            expire_time: Some(head.entry.expires_at.into()),
            chain_hash: Bytes::copy_from_slice(&head.chain_hash),
            entry: content,
        }))
    }

    /// The owner of a workspace, if the caller may read all of these topics; without topics, the workspace itself.
    fn workspace_owner(&self, id: &WorkspaceId, topics: &[Topic]) -> Result<Owner, BrokerError> {
        let mut read = StoredEntities::new(self.store);
        let owner = workspace::owner(id, &mut read).map_err(|ReadError| read.failure())?;
        let names: Vec<&str> = match topics {
            // The empty topic asks about the workspace itself; each entry's topic is asked about when it is read.
            [] => vec![""],
            topics => topics.iter().map(Topic::as_str).collect(),
        };
        let Some(owner) = owner else {
            let action = Action::ReadWorkspace { topic: names[0] };
            // A workspace that does not exist and a hidden one get the same answer (SPEC 5).
            return Err(self.access.no_such_workspace(self.caller, action, id));
        };
        for topic in names {
            let action = Action::ReadWorkspace { topic };
            self.access.about_workspace(self.caller, action, id, &owner.participants)?;
        }
        Ok(owner)
    }

    fn may_read(&self, id: &WorkspaceId, owner: &Owner, topic: &Topic) -> bool {
        let action = Action::ReadWorkspace { topic: topic.as_str() };
        self.access.about_workspace(self.caller, action, id, &owner.participants).is_ok()
    }

    fn workspace_record(&self, id: &WorkspaceId) -> Result<WorkspaceRecord, BrokerError> {
        let stored = stored::own(self.store, &EntityId::Workspace(id.clone()))?;
        let record = stored.as_ref().and_then(EntityRecord::as_workspace).cloned();
        Ok(record.unwrap_or_else(|| WorkspaceRecord::empty(id.clone())))
    }
}

fn damaged(head: &WorkspaceEntryRecord, error: &prost::DecodeError) -> BrokerError {
    tracing::error!(workspace = %head.entry.workspace, sequence = head.entry.sequence, %error, "failed to decode an entry");
    BrokerError::Internal
}

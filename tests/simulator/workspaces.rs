//! Law 12: the numbers of a workspace are dense and unique, and each append is applied once. Law 9, for pages of entries:
//! each entry is shown once, in order, or a gap covers it.

use std::collections::{BTreeMap, HashMap, HashSet};

use baton_broker_core::{
    domain::workspace::WorkspaceId,
    ids::MessageId,
    proto::v1,
    queries::EntryPage,
    records::{MessageRecord, WorkspaceEntryRecord, WorkspaceRecord},
    store::{Change, Record, Table},
};

/// The workspaces as stored.
#[derive(Debug, Default)]
pub(crate) struct Workspaces {
    /// The number of the last entry of each stored workspace.
    last: BTreeMap<WorkspaceId, u64>,
    /// The message of each entry that was ever appended, also of expired ones.
    entries: HashMap<(WorkspaceId, u64), MessageId>,
    gone: HashSet<(WorkspaceId, u64)>,
    /// The entry of each message.
    appended: HashMap<MessageId, (WorkspaceId, u64)>,
}

impl Workspaces {
    /// Checks a durable change.
    pub(crate) fn see_change(
        &mut self,
        change: &Change,
        befores: &[Option<Record>],
        counts: &mut BTreeMap<&'static str, u64>,
    ) {
        let (mut new, mut expired, mut written) = (Vec::new(), Vec::new(), Vec::new());
        let mut messages = HashMap::new();
        for (write, before) in change.writes.iter().zip(befores) {
            let key = &write.key.key;
            match (write.key.table, &write.record) {
                (Table::Messages, Some(record)) => {
                    let sequence = MessageRecord::decode(&record.value).unwrap().sequence;
                    messages.insert(sequence, MessageId::from_bytes(key[..].try_into().unwrap()));
                }
                (Table::WorkspaceEntries, Some(record)) => {
                    assert!(before.is_none(), "law 12: an entry of a workspace was written again");
                    new.push(WorkspaceEntryRecord::decode(key, &record.value).unwrap());
                }
                (Table::WorkspaceEntries, None) => {
                    expired.push(WorkspaceEntryRecord::decode(key, &before.as_ref().unwrap().value).unwrap().entry);
                }
                (Table::Workspaces, Some(record)) => {
                    written.push(WorkspaceRecord::decode(&record.value).unwrap().workspace);
                }
                (Table::Workspaces, None) => {
                    let id = WorkspaceRecord::decode(&before.as_ref().unwrap().value).unwrap().workspace.id.clone();
                    self.last.remove(&id);
                    *counts.entry("workspaces removed").or_default() += 1;
                }
                _ => {}
            }
        }
        new.sort_by_key(|record| record.entry.sequence);
        for record in new {
            let (id, number) = (record.entry.workspace.clone(), record.entry.sequence);
            let last = self.last.entry(id.clone()).or_default();
            assert_eq!(number, *last + 1, "law 12: the numbers of {id} are dense");
            *last = number;
            // The message of an entry is in the change of its append; an append applied twice would have none of its own.
            let message = messages.get(&record.message).copied().expect("law 12: an entry comes with its message");
            let before = self.appended.insert(message, (id.clone(), number));
            assert_eq!(before, None, "law 12: append {message} was applied twice");
            assert!(self.entries.insert((id, number), message).is_none(), "law 12: a number was used twice");
            *counts.entry("entries appended").or_default() += 1;
        }
        expired.sort_by_key(|entry| entry.sequence);
        for entry in expired {
            let former = (entry.workspace.clone(), entry.sequence - 1);
            let is_oldest = entry.sequence == 1 || self.gone.contains(&former);
            assert!(is_oldest, "law 9: entry {} of {} is gone before an older one", entry.sequence, entry.workspace);
            self.gone.insert((entry.workspace, entry.sequence));
            *counts.entry("entries removed").or_default() += 1;
        }
        for workspace in written {
            let last = self.last.get(&workspace.id).copied().unwrap_or_default();
            assert_eq!(workspace.last_sequence, last, "law 12: the last number of {}", workspace.id);
            let is_kept = |number: &u64| !self.gone.contains(&(workspace.id.clone(), *number));
            let first = (1..=last).find(is_kept).unwrap_or(last + 1);
            assert_eq!(workspace.first_sequence, first, "law 12: the first number of {}", workspace.id);
        }
    }

    /// Checks a receipt that an agent has received.
    pub(crate) fn see_receipt(&self, receipt: &v1::Receipt) {
        let Some(id) = receipt.resource.strip_prefix("workspace:") else { return };
        let id = WorkspaceId::parse(id).unwrap();
        let message = self.entries.get(&(id, receipt.resource_sequence)).map(ToString::to_string);
        assert_eq!(message.as_deref(), Some(&*receipt.message_id), "law 12: the number in a receipt is of its append");
    }

    /// Checks a page after a number. A reader that comes back with the page's last number goes on without loss.
    pub(crate) fn see_page(&self, id: &WorkspaceId, after: u64, page: &EntryPage) {
        let last = self.last(id);
        assert_eq!(page.last_sequence, last, "law 9: the last number of {id} as shown");
        if after > last {
            assert_eq!(page.gap, Some((last + 1, after)), "law 9: a number of the future in {id}");
            assert!(page.entries.is_empty() && page.next_after == last, "law 9: a number of the future in {id}");
            return;
        }
        let mut next = after + 1;
        if let Some((first, end)) = page.gap {
            assert_eq!(first, next, "law 9: a gap of {id} begins where the reader is");
            let is_there = (first..=end).find(|number| !self.gone.contains(&(id.clone(), *number)));
            assert_eq!(is_there, None, "law 9: a gap of {id} covers an entry that is there");
            next = end + 1;
        }
        for entry in &page.entries {
            assert_eq!(entry.sequence, next, "law 9: the entries of {id} after {after}, once and in order");
            let message = self.entries[&(id.clone(), next)].to_string();
            assert_eq!(entry.message_id, message, "law 9: entry {next} of {id}");
            next += 1;
        }
        assert_eq!(page.next_after, next - 1, "law 9: where a reader of {id} goes on");
    }

    /// The number of entries that the workspace holds.
    pub(crate) fn held(&self, id: &WorkspaceId) -> u64 {
        let gone = self.gone.iter().filter(|(of, _)| of == id).count() as u64;
        self.last(id) - gone
    }

    /// The number of the last entry.
    pub(crate) fn last(&self, id: &WorkspaceId) -> u64 {
        self.last.get(id).copied().unwrap_or_default()
    }
}

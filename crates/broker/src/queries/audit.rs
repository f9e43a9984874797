//! The query of the log of administrative acts.

use std::ops::Bound;

use prost::Message as _;

use super::View;
use crate::{
    BrokerError,
    policy::{Action, Resource},
    proto::v1,
    records::AuditHead,
    store::{Order, Record, Table},
};

impl View<'_> {
    /// The entries of the audit log after this number, oldest first.
    pub fn audit_log(&self, after: u64, limit: usize) -> Result<v1::ListAuditEntriesResponse, BrokerError> {
        self.access.check(self.caller, Action::ReadAuditLog, Resource::Broker)?;
        let range = (Bound::Excluded(AuditHead::entry_key(after).key), Bound::Unbounded);
        let found = self.store.scan(Table::Audit, range, Order::Ascending, limit)?;
        // The head is read after the entries. Entries removed in between are left out, so that the rest continues from
        // the head's hash.
        let stored = self.store.get(&AuditHead::key())?;
        let head = stored.map(|record| AuditHead::decode(&record.value)).transpose()?.unwrap_or_default();
        let first = AuditHead::entry_key(head.first).key;
        let shown = |record: &Record| {
            let (hash, entry_bytes) = AuditHead::decode_entry(&record.value)?;
            let entry = v1::AuditEntry::decode(entry_bytes.clone()).map_err(|error| {
                tracing::error!(%error, "failed to decode an entry of the audit log");
                BrokerError::Internal
            })?;
            Ok(v1::AuditLogEntry { entry: Some(entry), entry_bytes, chain_hash: hash.to_vec().into() })
        };
        let kept = found.iter().filter(|(key, _)| *key >= first);
        let entries: Result<Vec<_>, BrokerError> = kept.map(|(_, record)| shown(record)).collect();
        Ok(v1::ListAuditEntriesResponse {
            entries: entries?,
            log_length: head.length,
            first_number: head.first,
            hash_before_first: head.hash_before_first.to_vec().into(),
        })
    }
}

//! The log of administrative acts: written in the same commit as the act.

use super::{Engine, drafts::Draft};
use crate::{
    broker::BrokerError,
    records::{AuditAct, AuditHead, audit_entry},
    time::Timestamp,
};

impl Engine {
    /// Adds an entry to the log, as part of the draft.
    pub(super) fn record(&self, draft: &mut Draft, act: AuditAct, now: Timestamp) -> Result<(), BrokerError> {
        let stored = self.read(draft, &AuditHead::key())?;
        let head = stored.as_ref().map(|record| AuditHead::decode(&record.value)).transpose()?.unwrap_or_default();
        let number = head.length + 1;
        let entry = audit_entry(number, now, act);
        let head = head.followed_by(&entry);
        draft.put_new(AuditHead::entry_key(number), head.encode_entry(&entry));
        draft.put(AuditHead::key(), head.encode(), stored.as_ref());
        Ok(())
    }

    /// An act that changes nothing that is stored, for the record.
    pub(super) fn note(&mut self, act: AuditAct, now: Timestamp) {
        let mut draft = self.draft();
        match self.record(&mut draft, act, now) {
            Ok(()) => self.seal(draft),
            Err(error) => tracing::error!(%error, "failed to write the audit log"),
        }
        self.end_unanswered();
    }
}

//! The audit log of administrative acts: written in the same commit as the act, and bounded by age and by number.
//!
//! The oldest entries are removed first. The head keeps the hash of the last removed entry, so that the chain can be
//! checked from there.

use super::{Engine, batch::PostCommit, transaction::Transaction};
use crate::{
    BrokerError,
    records::{AuditAct, AuditHead, audit_entry},
    time::Timestamp,
};

/// The most entries that one change removes.
const REMOVED_AT_ONCE: usize = 64;
/// The most entries that an act removes while it writes one, so that a log over its bound becomes shorter.
const REMOVED_AN_ACT: usize = 2;

impl Engine {
    /// Appends an entry to the audit log, as a part of the transaction.
    pub(super) fn record(
        &self,
        transaction: &mut Transaction,
        act: AuditAct,
        now: Timestamp,
    ) -> Result<(), BrokerError> {
        let stored = self.read(transaction, &AuditHead::key())?;
        let head = stored.as_ref().map(|record| AuditHead::decode(&record.value)).transpose()?.unwrap_or_default();
        let number = head.length + 1;
        // The times of the log never go back, even where the clock was set back.
        let at = match self.read(transaction, &AuditHead::entry_key(head.length))? {
            Some(last) => now.max(AuditHead::entry_time(&last.value)?),
            None => now,
        };
        let entry = audit_entry(number, at, act);
        let mut head = head.followed_by(&entry);
        transaction.put_new(AuditHead::entry_key(number), head.encode_entry(&entry));
        for _ in 0..REMOVED_AN_ACT {
            if self.has_too_many_acts(&head) {
                head = self.remove_first_act(transaction, &head)?;
            }
        }
        transaction.put(AuditHead::key(), head.encode(), stored.as_ref());
        transaction.post_commit.push(PostCommit::OnRecord { at });
        Ok(())
    }

    /// Records an act that changes no other record.
    pub(super) fn note(&mut self, act: AuditAct, now: Timestamp) {
        let mut transaction = self.transaction();
        match self.record(&mut transaction, act, now) {
            Ok(()) => self.stage(transaction),
            Err(error) => tracing::error!(%error, "failed to write the audit log"),
        }
        self.end_unanswered();
    }

    /// The time at which an act of `at` is removed for its age. `None`: never.
    pub(super) fn act_is_over_at(&self, at: Timestamp) -> Option<Timestamp> {
        self.env.settings.retention.audit.map(|span| at.plus(span))
    }

    /// Removes entries that are too old or too many. Returns the time of the next check. `None`: after the next act.
    pub(super) fn remove_old_acts(
        &mut self,
        budget: &mut usize,
        now: Timestamp,
    ) -> Result<Option<Timestamp>, BrokerError> {
        let mut transaction = self.transaction();
        let Some(stored) = self.read(&mut transaction, &AuditHead::key())? else { return Ok(None) };
        let before = AuditHead::decode(&stored.value)?;
        let mut head = before;
        let mut next = None;
        while head.kept() > 0 {
            let entry = self.read(&mut transaction, &AuditHead::entry_key(head.first))?.ok_or_else(missing)?;
            let is_over = |at: &Timestamp| *at <= now;
            let due = match self.has_too_many_acts(&head) {
                true => Some(now),
                false => self.act_is_over_at(AuditHead::entry_time(&entry.value)?),
            };
            if !due.as_ref().is_some_and(is_over) || head.first - before.first == REMOVED_AT_ONCE as u64 {
                // A due entry that is left over makes the timer fire again in the next tick.
                next = due;
                break;
            }
            head = self.remove_first_act(&mut transaction, &head)?;
        }
        if head != before {
            transaction.put(AuditHead::key(), head.encode(), Some(&stored));
            self.stage_removal(transaction, budget);
        }
        Ok(next)
    }

    fn has_too_many_acts(&self, head: &AuditHead) -> bool {
        self.env.settings.retention.audit_entries_max.is_some_and(|most| head.kept() > most)
    }

    fn remove_first_act(&self, transaction: &mut Transaction, head: &AuditHead) -> Result<AuditHead, BrokerError> {
        let key = AuditHead::entry_key(head.first);
        let entry = self.read(transaction, &key)?.ok_or_else(missing)?;
        transaction.delete(key);
        Ok(head.without_first(AuditHead::decode_entry(&entry.value)?.0))
    }
}

fn missing() -> BrokerError {
    tracing::error!("an entry of the audit log is not in the store");
    BrokerError::Internal
}

//! Versions of contexts: making one of a transfer or a checkpoint, reading contents, and the removal with the task.
//!
//! A content by value stays in the envelope of its message, and the result of a delta has a record of its own. So a
//! context that is sent whole is stored once, and its version is one record.

use std::{str, sync::Arc};

use bytes::Bytes;

use super::{Engine, batch::PostCommit, retention::Removal, transaction::Transaction};
use crate::{
    BrokerError,
    contexts::{content_of, content_section, payload_in, reference},
    domain::{
        EntityId,
        context::{BASES_MAX, Origin, Rejection, Section, Version, falls_out},
        handoff::Handoff,
    },
    envelope::VerifiedEnvelope,
    ids::TaskId,
    preparation::{CheckedContext, CheckedSection, Findings, PreparedMessage},
    proto::v1::{self, context_section::Content},
    records::{ContextSectionRecord, ContextVersionRecord, EntityRecord, Expiration, TaskRecord, contexts_range},
    store::{Key, Order, Record, Table},
    time::Timestamp,
};

impl Engine {
    /// The checked context of a message. `None`: the sender does not own the task, and the machine refuses the message.
    pub(super) fn checked_context(
        &mut self,
        message: &PreparedMessage,
    ) -> Result<Option<Arc<CheckedContext>>, BrokerError> {
        let header = message.envelope().header();
        let Some(task) = &header.task else { return Ok(None) };
        let stored = self.entity_record(&mut self.transaction(), &EntityId::Task(task.clone()))?;
        let Some(record) = stored.as_deref().and_then(EntityRecord::as_task) else { return Ok(None) };
        if record.task.owner != header.sender {
            return Ok(None);
        }
        // The task came to its sender after the preparation.
        let Findings::Context(context) = message.findings() else { return Err(BrokerError::Conflict) };
        let first_base = (record.context_versions + 1).saturating_sub(BASES_MAX);
        let is_late = |checked: &CheckedSection| checked.result.as_ref().is_some_and(|(_, base)| *base < first_base);
        if let Some(late) = context.sections.iter().flatten().find(|checked| is_late(checked)) {
            // Other sessions of the sender have stored as many versions since the preparation.
            return Err(Rejection::BaseUnknown { section: late.section.name.clone(), known: None }.into());
        }
        Ok(Some(context.clone()))
    }

    /// Makes a version of the context that an envelope carries, as a part of the step that accepts it. `record` is the
    /// task, whose log has the entry of the envelope already.
    pub(super) fn keep_context(
        &mut self,
        transaction: &mut Transaction,
        record: &mut TaskRecord,
        envelope: &VerifiedEnvelope,
        handoff: Option<&Handoff>,
    ) -> Result<(), BrokerError> {
        let header = envelope.header();
        let checked = transaction.context.take_if(|(message, _)| *message == header.message_id);
        let checked = match checked {
            Some((_, checked)) => checked,
            // The coordinator sends whole sections, without the checks of an agent's.
            None => whole_context(envelope)?.into(),
        };
        let (transfer, sections) = (&checked.transfer, checked.sections.clone()?);
        let number = record.context_versions + 1;
        let digest = transfer.context_digest.as_ref().try_into().map_err(|_| BrokerError::Internal)?;
        let task = record.task.id.clone();
        for CheckedSection { section, result } in &sections {
            if let Some((content, _)) = result.clone() {
                let key = ContextSectionRecord::key(&task, &section.name, &section.sha256);
                transaction.put_over(key, ContextSectionRecord { version: number, content }.encode());
            }
        }
        if let Some(old) = falls_out(number) {
            self.remove_results(transaction, &task, old, &sections)?;
        }
        let version = Version {
            number,
            epoch: record.task.epoch,
            author: header.sender.clone(),
            receiver: handoff.map(|handoff| handoff.candidate.clone()),
            handoff: handoff.map(|handoff| handoff.id),
            message: header.message_id,
            digest,
            created_at: record.logged_at,
            sections: sections.into_iter().map(|checked| checked.section).collect(),
            task: task.clone(),
        };
        transaction.put_new(ContextVersionRecord::key(&task, number), ContextVersionRecord(version).encode());
        record.context_versions = number;
        // The coordinator sends on what an agent has sent, perhaps only a part of it.
        if !header.sender.is_coordinator() {
            record.last_context = number;
        }
        Ok(())
    }

    /// The content of a section of a version that has its contents.
    fn content(&self, version: &Version, section: &Section) -> Result<Content, BrokerError> {
        let content = content_of(version, section, |key| self.read_context(key))?;
        content.ok_or_else(|| {
            let (task, number) = (&version.task, version.number);
            tracing::error!(%task, number, section = section.name, "the content of a section is missing in the store");
            BrokerError::Internal
        })
    }

    /// Reads a record of a context. None of them changes, so the read is no part of a transaction's expectations.
    fn read_context(&self, key: &Key) -> Result<Option<Record>, BrokerError> {
        self.read(&mut self.transaction(), key)
    }

    fn context_version(&self, task: &TaskId, number: u64) -> Result<Option<Version>, BrokerError> {
        let key = ContextVersionRecord::key(task, number);
        let Some(stored) = self.read(&mut self.transaction(), &key)? else { return Ok(None) };
        Ok(Some(ContextVersionRecord::decode(&key.key, &stored.value)?.0))
    }

    /// Removes the results of deltas that no later version than this one has. `new` are the sections of the version that
    /// pushes this one out.
    fn remove_results(
        &self,
        transaction: &mut Transaction,
        task: &TaskId,
        number: u64,
        new: &[CheckedSection],
    ) -> Result<(), BrokerError> {
        let Some(version) = self.context_version(task, number)? else { return Ok(()) };
        let of_deltas = |section: &&Section| matches!(section.origin, Origin::Delta { .. });
        for section in version.sections.iter().filter(of_deltas) {
            let is_new = |new: &CheckedSection| {
                new.result.is_some() && new.section.name == section.name && new.section.sha256 == section.sha256
            };
            let key = ContextSectionRecord::key(task, &section.name, &section.sha256);
            if let Some(stored) = self.read(&mut self.transaction(), &key)?
                && ContextSectionRecord::decode(&stored.value)?.version == number
                && !new.iter().any(is_new)
            {
                transaction.delete(key);
            }
        }
        Ok(())
    }

    /// The latest context of a task that an agent has sent or stored, with all contents. `None`: there is none.
    pub(super) fn last_context(
        &mut self,
        transaction: &mut Transaction,
        task: &TaskId,
    ) -> Result<Option<Vec<v1::ContextSection>>, BrokerError> {
        let record = self.entity_record(transaction, &EntityId::Task(task.clone()))?;
        let record = record.as_deref().and_then(EntityRecord::as_task).ok_or(BrokerError::Internal)?;
        let Some(version) = self.context_version(task, record.last_context)? else { return Ok(None) };
        if !version.has_contents(record.context_versions) {
            return Ok(None);
        }
        let sections = version.sections.iter().map(|section| {
            let content = match &section.origin {
                Origin::Reference { uri } => Content::Reference(reference(section, uri)),
                Origin::Value { .. } | Origin::Delta { .. } => self.content(&version, section)?,
            };
            Ok(v1::ContextSection {
                name: section.name.clone(),
                schema_id: section.schema.0.clone(),
                schema_version: section.schema.1.clone(),
                content: Some(content),
                secret: section.is_secret,
                summary: section.summary.clone(),
            })
        });
        sections.collect::<Result<_, BrokerError>>().map(Some)
    }

    /// Schedules the removal of the versions of a removed task.
    pub(super) fn remove_contexts(&self, transaction: &mut Transaction, record: &TaskRecord, now: Timestamp) {
        if record.context_versions > 0 {
            let kind = Expiration::Contexts;
            let key = kind.key(now, record.task.id.as_str().as_bytes());
            transaction.put_over(key.clone(), Bytes::new());
            transaction.post_commit.push(PostCommit::ExpirationStored { kind, key, since: now });
        }
    }

    /// Removes some of the versions and contents that a removed task has left. `what` is the id of the task.
    pub(super) fn remove_left_contexts(
        &mut self,
        entry: Key,
        what: &[u8],
        record: &Record,
        budget: &mut usize,
    ) -> Result<Removal, BrokerError> {
        let mut transaction = self.transaction();
        let Some(task) = str::from_utf8(what).ok().and_then(|id| TaskId::parse(id).ok()) else {
            // The entry is deleted all the same: the search would stop at it in every tick.
            tracing::error!("failed to read the contexts of a removed task");
            transaction.delete(entry);
            return Ok(self.stage_removal(transaction, budget));
        };
        let most = self.env.settings.retention.entries_a_step;
        let mut is_more = false;
        for table in [Table::ContextSections, Table::ContextVersions] {
            let found = self.env.store.scan(table, contexts_range(&task), Order::Ascending, most)?;
            is_more |= found.len() == most;
            for (key, _) in found {
                transaction.delete(Key { table, key });
            }
        }
        if is_more {
            transaction.put(entry, Bytes::new(), Some(record));
            self.stage_removal(transaction, budget);
            return Ok(Removal::Unfinished);
        }
        transaction.delete(entry);
        Ok(self.stage_removal(transaction, budget))
    }
}

/// The context of a message of the coordinator, whose sections are all whole.
fn whole_context(envelope: &VerifiedEnvelope) -> Result<CheckedContext, BrokerError> {
    let transfer: v1::TaskContextTransfer = payload_in(envelope.raw()).ok_or(BrokerError::Internal)?;
    let section = |section| Ok(CheckedSection { section: content_section(section, false)?, result: None });
    let sections = transfer.sections.iter().map(section).collect::<Result<_, BrokerError>>()?;
    Ok(CheckedContext { transfer, sections: Ok(sections), misfit: None })
}

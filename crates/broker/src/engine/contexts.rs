//! Versions of contexts: making one of a transfer or a checkpoint, reading contents, and the removal with the task.
//!
//! A content by value stays in the envelope of its message, and the result of a delta has a record of its own. So a
//! context that is sent whole is stored once, and its version is one record.

use std::{collections::HashMap, str};

use bytes::Bytes;
use prost::Message as _;

use super::{Engine, batch::PostCommit, retention::Removal, transaction::Transaction};
use crate::{
    BrokerError,
    contexts::{content_of, latest_section, payload_in, reference},
    domain::{
        EntityId,
        context::{Origin, Rejection, Section, Version, falls_out},
        handoff::Handoff,
    },
    envelope::{PAYLOAD_BYTES_MAX, VerifiedEnvelope, sections, signing},
    ids::{AgentId, MessageId, TaskId},
    proto::v1::{self, context_section::Content},
    records::{ContextSectionRecord, ContextVersionRecord, EntityRecord, Expiration, TaskRecord, contexts_range},
    store::{Key, Order, Record, Table},
    time::Timestamp,
};

/// The media type of JSON sections.
const JSON: &str = "application/json";

/// A section of a new version, and the result of its delta if it came as one.
type Kept = (Section, Option<String>);

/// The results of the deltas of a context, by the index of the section. A delta that cannot be applied has none.
pub(super) type DeltaResults = HashMap<usize, String>;

/// A context that the engine has checked, for the step that makes a version of it.
#[derive(Debug, Clone)]
pub(super) struct CheckedContext {
    /// The message that carries the context.
    pub(super) message: MessageId,
    /// The context as it came.
    pub(super) transfer: v1::TaskContextTransfer,
    /// The results of its deltas, if the check has applied them. So each delta is applied once.
    pub(super) results: DeltaResults,
}

impl Engine {
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
        let checked = transaction.context.take_if(|checked| checked.message == header.message_id);
        let (transfer, mut results) = match checked {
            Some(checked) => (checked.transfer, checked.results),
            // The coordinator sends a context without the checks of an agent's.
            None => (payload_in(envelope.raw()).ok_or(BrokerError::Internal)?, DeltaResults::default()),
        };
        let number = record.context_versions + 1;
        let sections = transfer
            .sections
            .iter()
            .enumerate()
            .map(|(index, section)| self.kept_section(record, section, results.remove(&index), &header.sender))
            .collect::<Result<Vec<Kept>, BrokerError>>()?;
        check_whole_size(&transfer, &sections)?;
        let digest = transfer.context_digest.as_ref().try_into().map_err(|_| BrokerError::Internal)?;
        let task = record.task.id.clone();
        for (section, result) in &sections {
            if let Some(content) = result.clone() {
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
            sections: sections.into_iter().map(|(section, _)| section).collect(),
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

    /// A section of a message. Applies a delta, unless its result is known.
    fn kept_section(
        &self,
        record: &TaskRecord,
        section: &v1::ContextSection,
        known_result: Option<String>,
        author: &AgentId,
    ) -> Result<Kept, BrokerError> {
        let (sha256, size, media_type, origin, result) = match section.content.as_ref().ok_or(BrokerError::Internal)? {
            Content::Json(json) => {
                let origin = Origin::Value { is_json: true };
                (signing::sha256(&[json.as_bytes()]), json.len() as u64, JSON, origin, None)
            }
            Content::Bytes(bytes) => {
                let origin = Origin::Value { is_json: false };
                (signing::sha256(&[&bytes.data]), bytes.data.len() as u64, &*bytes.media_type, origin, None)
            }
            Content::Reference(reference) => {
                let sha256 = reference.sha256.as_ref().try_into().map_err(|_| BrokerError::Internal)?;
                let origin = Origin::Reference { uri: reference.uri.clone() };
                (sha256, reference.size_bytes, &*reference.media_type, origin, None)
            }
            Content::Delta(delta) => {
                let base = delta.base_sha256.as_ref().try_into().map_err(|_| BrokerError::Internal)?;
                let result = match known_result {
                    Some(result) => result,
                    None => self.result_of(record, &section.name, &base, delta)?,
                };
                let (sha256, size) = (signing::sha256(&[result.as_bytes()]), result.len() as u64);
                (sha256, size, JSON, Origin::Delta { base }, Some(result))
            }
        };
        // Only JSON is checked, and only that of agents: the coordinator sends on what was checked.
        let is_checked = !author.is_coordinator()
            && !matches!(origin, Origin::Reference { .. } | Origin::Value { is_json: false })
            && self.schema_of(&section.schema_id, &section.schema_version, "")?.is_some();
        let section = Section {
            is_checked,
            name: section.name.clone(),
            sha256,
            size,
            media_type: media_type.to_owned(),
            origin,
            schema: (section.schema_id.clone(), section.schema_version.clone()),
            is_secret: section.secret,
            summary: section.summary.clone(),
        };
        Ok((section, result))
    }

    /// Applies a delta to its stored base.
    fn result_of(
        &self,
        record: &TaskRecord,
        name: &str,
        base: &[u8; 32],
        delta: &v1::ContextDelta,
    ) -> Result<String, BrokerError> {
        let section = || name.to_owned();
        let invalid = |problem: String, expected| Rejection::DeltaInvalid { section: section(), problem, expected };
        let Some((version, found)) = self.base_of(record, name, |section| section.sha256 == *base)? else {
            let known = self.base_of(record, name, |_| true)?.map(|(_, latest)| latest.sha256);
            return Err(Rejection::BaseUnknown { section: section(), known }.into());
        };
        let Content::Json(base) = self.content(&version, &found)? else {
            return Err(invalid("the base is bytes, and only JSON can be changed".to_owned(), None).into());
        };
        let result = sections::apply(&base, &delta.merge_patch).map_err(|error| invalid(error.to_string(), None))?;
        let expected = signing::sha256(&[result.as_bytes()]);
        if delta.result_sha256 != expected[..] {
            let problem = format!("the result has the digest {}", hex::encode(expected));
            return Err(invalid(problem, Some(expected)).into());
        }
        Ok(result)
    }

    /// The results of a context's deltas. The step refuses a delta that cannot be applied.
    pub(super) fn results_of(&self, record: &TaskRecord, context: &v1::TaskContextTransfer) -> DeltaResults {
        let sections = context.sections.iter().enumerate();
        let results = sections.filter_map(|(index, section)| {
            let Some(Content::Delta(delta)) = &section.content else { return None };
            let base = delta.base_sha256.as_ref().try_into().ok()?;
            Some((index, self.result_of(record, &section.name, &base, delta).ok()?))
        });
        results.collect()
    }

    /// The latest section of this name that fits, with its version, among those that can be the base of a delta.
    fn base_of(
        &self,
        record: &TaskRecord,
        name: &str,
        fits: impl Fn(&Section) -> bool,
    ) -> Result<Option<(Version, Section)>, BrokerError> {
        latest_section(&record.task.id, record.context_versions, name, fits, |key| self.read_context(key))
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
        new: &[Kept],
    ) -> Result<(), BrokerError> {
        let Some(version) = self.context_version(task, number)? else { return Ok(()) };
        let of_deltas = |section: &&Section| matches!(section.origin, Origin::Delta { .. });
        for section in version.sections.iter().filter(of_deltas) {
            let is_new =
                |(kept, result): &Kept| result.is_some() && kept.name == section.name && kept.sha256 == section.sha256;
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

/// The context with the results of its deltas. A delta without a result stays.
pub(super) fn with_results(mut context: v1::TaskContextTransfer, results: &DeltaResults) -> v1::TaskContextTransfer {
    for (index, result) in results {
        context.sections[*index].content = Some(Content::Json(result.clone()));
    }
    context
}

/// Checks that the context fits a payload also without deltas: the coordinator sends it so.
fn check_whole_size(transfer: &v1::TaskContextTransfer, sections: &[Kept]) -> Result<(), BrokerError> {
    let mut bytes = transfer.encoded_len() as u64;
    let mut last = None;
    for (sent, (section, _)) in transfer.sections.iter().zip(sections) {
        if let Some(Content::Delta(delta)) = &sent.content {
            bytes = bytes - delta.merge_patch.len() as u64 + section.size;
            last = Some(&section.name);
        }
    }
    match last {
        Some(name) if bytes > PAYLOAD_BYTES_MAX as u64 => {
            let problem = format!("the whole context has {bytes} bytes, over the limit of {PAYLOAD_BYTES_MAX}");
            Err(Rejection::DeltaInvalid { section: name.clone(), problem, expected: None }.into())
        }
        Some(_) | None => Ok(()),
    }
}

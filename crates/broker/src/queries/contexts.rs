//! Queries of contexts: versions, and the contents of their sections.

use bytes::Bytes;

use super::{Page, View};
use crate::{
    BrokerError,
    access::Purpose,
    contexts::{content_of, latest_section, reference},
    domain::{
        context::{Origin, Rejection, Section, Version},
        handoff::Handoff,
    },
    envelope::sections,
    ids::{MessageId, TaskId},
    proto::v1::{self, context_section::Content, get_context_section_response::Content as Answer},
    records::{ContextVersionRecord, TaskRecord},
    store::{Key, Order, Record},
};

/// The number of versions among which the one of a message is looked for.
const LOOKED_AT_FOR_MESSAGE: usize = 1000;

/// A version that the caller may read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContextView {
    /// The version, without the contents of its sections.
    pub version: Version,
    /// Whether the broker keeps its contents.
    pub has_contents: bool,
}

/// A query of one section.
#[derive(Debug, Clone, PartialEq)]
pub struct SectionQuery {
    /// The task whose context is read.
    pub task: TaskId,
    /// The name of the section.
    pub name: String,
    /// The number of the version; 0: the latest.
    pub version: u64,
    /// The digest of the version of the section that the caller has.
    pub have: Option<[u8; 32]>,
    /// The wanted part. `None`: all of it.
    pub filter: Option<v1::ContextFilter>,
}

/// The right of a caller to a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Right {
    /// The caller is a party of the version: secret sections are for parties only.
    Party,
    /// A policy permits it.
    Policy,
    None,
}

impl View<'_> {
    /// One version of a task's context; 0: the latest.
    pub fn context(&self, task: &TaskId, number: u64) -> Result<ContextView, BrokerError> {
        let record = self.task_of_contexts(task)?;
        Ok(self.readable_version(&record, number)?.0)
    }

    /// The versions of a task's context that the caller may read, newest first.
    pub fn context_versions(&self, task: &TaskId, size: usize, token: &str) -> Result<Page<ContextView>, BrokerError> {
        let record = self.task_of_contexts(task)?;
        let holds = self.holds_contexts(&record)?;
        let may_read = self.access.may_read_contexts(self.caller, task.as_str(), Some(&record.task));
        let list = ContextVersionRecord::list(task);
        let page = self.page(Some(&list), "", size, token, |number, value| {
            let version = ContextVersionRecord::decode(&list.key(number), value)?.0;
            let right = self.right(&version, holds, may_read);
            Ok((right != Right::None).then(|| viewed(version, &record, right)))
        })?;
        let is_seen = holds || may_read || self.access.may_see_task(self.caller, &record.task);
        // A task of which the caller may see nothing does not exist for it.
        match is_seen || !page.entries.is_empty() {
            true => Ok(page),
            false => Err(self.access.no_such_task(self.caller, task)),
        }
    }

    /// The version that a message has made. `None`: the caller may not read it, or the version is old.
    pub fn context_of_message(&self, task: &TaskId, message: MessageId) -> Result<Option<ContextView>, BrokerError> {
        self.access.reach(self.caller, Purpose::ReadContexts)?;
        let record = self.task_of_contexts(task)?;
        let holds = self.holds_contexts(&record)?;
        let may_read = self.access.may_read_contexts(self.caller, task.as_str(), Some(&record.task));
        let list = ContextVersionRecord::list(task);
        let range = (std::ops::Bound::Included(list.key(1)), std::ops::Bound::Included(list.key(u64::MAX)));
        for (key, stored) in self.store.scan(list.table, range, Order::Descending, LOOKED_AT_FOR_MESSAGE)? {
            let version = ContextVersionRecord::decode(&key, &stored.value)?.0;
            if version.message == message {
                let right = self.right(&version, holds, may_read);
                return Ok((right != Right::None).then(|| viewed(version, &record, right)));
            }
        }
        Ok(None)
    }

    /// The message that carried the context of a handoff. `None`: its version is an old one.
    pub(super) fn context_message_of(&self, handoff: &Handoff) -> Result<Option<MessageId>, BrokerError> {
        let list = ContextVersionRecord::list(&handoff.task);
        let range = (std::ops::Bound::Included(list.key(1)), std::ops::Bound::Included(list.key(u64::MAX)));
        for (key, stored) in self.store.scan(list.table, range, Order::Descending, LOOKED_AT_FOR_MESSAGE)? {
            let version = ContextVersionRecord::decode(&key, &stored.value)?.0;
            if version.handoff == Some(handoff.id) {
                return Ok(Some(version.message));
            }
        }
        Ok(None)
    }

    /// One section of a version.
    pub fn context_section(&self, query: &SectionQuery) -> Result<v1::GetContextSectionResponse, BrokerError> {
        let record = self.task_of_contexts(&query.task)?;
        let (ContextView { version, has_contents }, right) = self.readable_version(&record, query.version)?;
        let unknown = |what: String| Rejection::VersionUnknown { task: query.task.clone(), what };
        let section = version.section(&query.name);
        let section = section
            .ok_or_else(|| unknown(format!("section {} in version {} of its context", query.name, version.number)))?;
        // A policy opens contexts and not their secrets, so only a party or a holder passes.
        if section.is_secret && right != Right::Party {
            return Err(self.no_right_to_contexts(&record));
        }
        let answer = |content, derived| v1::GetContextSectionResponse {
            section: Some(section_info(section)),
            version: version.number,
            derived,
            content: Some(content),
        };
        let not_applicable = |problem: &str| {
            let (section, problem) = (section.name.clone(), problem.to_owned());
            BrokerError::FilterNotApplicable { section, problem }
        };
        // With a filter the answer is a part, whose digest the caller does not know.
        if query.filter.is_none() && query.have == Some(section.sha256) {
            return Ok(answer(Answer::NotModified(true), false));
        }
        if let Origin::Reference { uri } = &section.origin {
            // The broker does not fetch what a reference names, so a filter has nothing to work on.
            return match query.filter {
                Some(_) => Err(not_applicable("the broker does not have what a reference names")),
                None => Ok(answer(Answer::Reference(reference(section, uri)), false)),
            };
        }
        // After the digest and the reference, which outlive the contents.
        if !has_contents {
            return Err(unknown(format!("contents of version {} any more, only its digests", version.number)).into());
        }
        let content = content_of(&version, section, |key| self.read(key))?.ok_or_else(|| {
            tracing::error!(task = %query.task, version = version.number, "the content of a section is missing");
            BrokerError::Internal
        })?;
        match (content, &query.filter) {
            (Content::Json(text), Some(filter)) => {
                let part = sections::filtered(&text, filter, &section.summary);
                let part = part.map_err(|error| not_applicable(&error.to_string()))?;
                Ok(answer(Answer::Json(part), true))
            }
            (Content::Json(text), None) => {
                let delta = self.delta_for(query, &record, &text)?;
                Ok(answer(delta.map_or(Answer::Json(text), Answer::Delta), false))
            }
            (Content::Bytes(_), Some(_)) => Err(not_applicable("it is bytes")),
            (Content::Bytes(bytes), None) => Ok(answer(Answer::Bytes(bytes), false)),
            // They are never stored as contents.
            (Content::Reference(_) | Content::Delta(_), _) => Err(BrokerError::Internal),
        }
    }

    /// A delta on the caller's version of the section, if the caller may read that one, and if the delta is smaller and
    /// gives exactly this text.
    fn delta_for(
        &self,
        query: &SectionQuery,
        record: &TaskRecord,
        text: &str,
    ) -> Result<Option<v1::ContextDelta>, BrokerError> {
        let Some(have) = query.have else { return Ok(None) };
        let (name, last) = (&query.name, record.context_versions);
        let base = latest_section(&query.task, last, name, |section| section.sha256 == have, |key| self.read(key))?;
        // A delta names the members that the base has and the text has not. The caller may know the digest alone.
        let (holds, may_read) = (
            self.holds_contexts(record)?,
            self.access.may_read_contexts(self.caller, query.task.as_str(), Some(&record.task)),
        );
        let base = base.filter(|(version, section)| match self.right(version, holds, may_read) {
            Right::Party => true,
            Right::Policy => !section.is_secret,
            Right::None => false,
        });
        let base = base.map(|(version, section)| content_of(&version, &section, |key| self.read(key))).transpose()?;
        // A base that is gone is no error: the whole text answers the query as well.
        let Some(Some(Content::Json(base))) = base else { return Ok(None) };
        let made = sections::delta(&base, text);
        Ok(made
            // A delta gives canonical JSON, so a section that was stored in another form goes whole.
            .filter(|(delta, result)| result == text && delta.merge_patch.len() < text.len())
            .map(|(delta, _)| delta))
    }

    fn read(&self, key: &Key) -> Result<Option<Record>, BrokerError> {
        Ok(self.store.get(key)?)
    }

    /// The task of a query. Each query checks the rights to its versions.
    fn task_of_contexts(&self, task: &TaskId) -> Result<TaskRecord, BrokerError> {
        let stored = self.store.get(&TaskRecord::key(task))?;
        let stored = stored.map(|record| TaskRecord::decode(&record.value)).transpose()?;
        stored.ok_or_else(|| self.access.no_such_task(self.caller, task))
    }

    fn readable_version(&self, record: &TaskRecord, number: u64) -> Result<(ContextView, Right), BrokerError> {
        let task = &record.task.id;
        let holds = self.holds_contexts(record)?;
        let may_read = self.access.may_read_contexts(self.caller, task.as_str(), Some(&record.task));
        // 0 asks for the latest version. A task without a context has version 0 only, which is never found.
        let number = if number == 0 { record.context_versions } else { number };
        let key = ContextVersionRecord::key(task, number);
        let Some(stored) = self.store.get(&key)? else {
            // Without a right to all versions the caller does not learn their number.
            return Err(match holds || may_read {
                true if number == 0 => {
                    Rejection::VersionUnknown { task: task.clone(), what: "context".to_owned() }.into()
                }
                true => {
                    let what = format!("version {number} of its context");
                    Rejection::VersionUnknown { task: task.clone(), what }.into()
                }
                false => self.no_right_to_contexts(record),
            });
        };
        let version = ContextVersionRecord::decode(&key.key, &stored.value)?.0;
        match self.right(&version, holds, may_read) {
            Right::None => Err(self.no_right_to_contexts(record)),
            right => Ok((viewed(version, record, right), right)),
        }
    }

    fn right(&self, version: &Version, holds: bool, may_read: bool) -> Right {
        let is_party = matches!(self.caller, super::Caller::Agent(agent) if version.is_party(agent));
        match (holds || is_party, may_read) {
            // A holder reads secrets too: it works on the task, or is about to.
            (true, _) => Right::Party,
            (false, true) => Right::Policy,
            (false, false) => Right::None,
        }
    }

    /// The refusal of a version. A task that the caller may not see does not exist for it.
    fn no_right_to_contexts(&self, record: &TaskRecord) -> BrokerError {
        if !self.access.may_see_task(self.caller, &record.task) {
            return self.access.no_such_task(self.caller, &record.task.id);
        }
        match self.access.check_contexts(self.caller, record.task.id.as_str(), Some(&record.task)) {
            Err(denied) => denied,
            // A policy permits the context, but none permits a secret section.
            Ok(()) => BrokerError::SectionSecret { caller: self.caller.to_string() },
        }
    }
}

/// The version as a caller with this right sees it. Without a party's right, a secret section has neither its summary nor
/// its address: the one tells of the content, and the other may open it.
fn viewed(mut version: Version, record: &TaskRecord, right: Right) -> ContextView {
    for section in version.sections.iter_mut().filter(|section| section.is_secret && right != Right::Party) {
        section.summary.clear();
        if let Origin::Reference { uri } = &mut section.origin {
            uri.clear();
        }
    }
    ContextView { has_contents: version.has_contents(record.context_versions), version }
}

/// A section for the wire.
pub fn section_info(section: &Section) -> v1::SectionInfo {
    let (origin, uri, base) = match &section.origin {
        Origin::Value { .. } => (v1::SectionOrigin::Value, "", None),
        Origin::Reference { uri } => (v1::SectionOrigin::Reference, uri.as_str(), None),
        Origin::Delta { base } => (v1::SectionOrigin::Delta, "", Some(base)),
    };
    v1::SectionInfo {
        name: section.name.clone(),
        sha256: Bytes::copy_from_slice(&section.sha256),
        size_bytes: section.size,
        media_type: section.media_type.clone(),
        origin: origin.into(),
        uri: uri.to_owned(),
        schema_id: section.schema.0.clone(),
        schema_version: section.schema.1.clone(),
        schema_checked: section.is_checked,
        secret: section.is_secret,
        summary: section.summary.clone(),
        base_sha256: base.map(|base| Bytes::copy_from_slice(base)).unwrap_or_default(),
    }
}

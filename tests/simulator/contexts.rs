//! Law 11, of contexts: each stored version recomputes to its digest, the digest of a completed handoff is a stored
//! version, and a version is read by its parties alone. The checker keeps the texts of all sections by itself.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use baton_broker_core::{
    domain::{
        context::{BASES_MAX, Origin, Section, Version},
        handoff::{Handoff, State, Task},
        mailbox::EnvelopePlace,
    },
    envelope::{sections, signing},
    ids::{AgentId, MessageId, TaskId},
    proto::v1::{self, context_section::Content, get_context_section_response::Content as Answer},
    records::{ContextSectionRecord, ContextVersionRecord, MessageRecord, TaskRecord},
    store::{Change, KeyBytes, Record, Table},
};
use bytes::Bytes;
use prost::Message as _;

use crate::blobs::Blobs;

type Digest = [u8; 32];

/// The contexts as the messages of agents tell them.
#[derive(Debug, Default)]
pub(crate) struct Contexts {
    versions: BTreeMap<(TaskId, u64), Version>,
    /// The JSON of sections, by task, name and digest.
    texts: BTreeMap<(TaskId, String, Digest), String>,
    /// The stored results of deltas.
    results: BTreeMap<KeyBytes, Digest>,
    tasks: BTreeMap<TaskId, Arc<Task>>,
    handoffs: HashMap<MessageId, (State, AgentId)>,
}

impl Contexts {
    /// Checks a durable change. `tasks` and `handoffs` are those that it writes, and `blobs` shows the state after it.
    pub(crate) fn see_change(
        &mut self,
        change: &Change,
        befores: &[Option<Record>],
        (tasks, handoffs): (&[TaskRecord], &[Arc<Handoff>]),
        envelope: &dyn Fn(EnvelopePlace) -> Bytes,
        blobs: &Blobs,
        counts: &mut BTreeMap<&'static str, u64>,
    ) {
        self.tasks.extend(tasks.iter().map(|record| (record.task.id.clone(), record.task.clone())));
        let sides = |handoff: &Arc<Handoff>| (handoff.id, (handoff.state, handoff.candidate.clone()));
        self.handoffs.extend(handoffs.iter().map(sides));
        let mut new = Vec::new();
        let mut said = Vec::new();
        for (write, before) in change.writes.iter().zip(befores) {
            let key = &write.key.key;
            match (write.key.table, &write.record) {
                (Table::Tasks, None) => drop(self.tasks.remove(&task_of(key))),
                (Table::Messages, Some(record)) if before.is_none() => {
                    let logged = MessageRecord::decode(&record.value).unwrap().logged().is_some();
                    said.extend(logged.then(|| MessageId::from_bytes(key[..].try_into().unwrap())));
                }
                (Table::ContextVersions, Some(record)) => {
                    assert!(before.is_none(), "law 11: a version of a context has changed");
                    new.push(ContextVersionRecord::decode(key, &record.value).unwrap().0);
                }
                (Table::ContextVersions, None) => {
                    let gone = ContextVersionRecord::decode(key, &before.as_ref().unwrap().value).unwrap().0;
                    let is_removed = !self.tasks.contains_key(&gone.task);
                    assert!(is_removed, "law 11: version {} of {} is gone before its task", gone.number, gone.task);
                    self.versions.remove(&(gone.task, gone.number));
                    *counts.entry("context versions removed").or_default() += 1;
                }
                (Table::ContextSections, Some(record)) => {
                    let content = ContextSectionRecord::decode(&record.value).unwrap().content;
                    self.results.insert(key.clone(), signing::sha256(&[content.as_bytes()]));
                }
                (Table::ContextSections, None) => drop(self.results.remove(key)),
                _ => {}
            }
        }
        for version in new {
            self.see_version(version, envelope, blobs, counts);
        }
        for record in tasks {
            let versions = self.versions_of(&record.task.id).count() as u64;
            assert_eq!(record.context_versions, versions, "law 11: the versions of {} are dense", record.task.id);
        }
        for message in said {
            self.see_message(&v1::Envelope::decode(envelope(EnvelopePlace::Message(message))).unwrap(), counts);
        }
        let tables = [Table::ContextVersions, Table::ContextSections];
        if change.writes.iter().any(|write| tables.contains(&write.key.table)) {
            self.check_results();
        }
    }

    fn versions_of(&self, task: &TaskId) -> impl DoubleEndedIterator<Item = &Version> {
        self.versions.range((task.clone(), 0)..=(task.clone(), u64::MAX)).map(|(_, version)| version)
    }

    /// Computes a new version from its message, and compares.
    fn see_version(
        &mut self,
        version: Version,
        envelope: &dyn Fn(EnvelopePlace) -> Bytes,
        blobs: &Blobs,
        counts: &mut BTreeMap<&'static str, u64>,
    ) {
        let (task, number) = (version.task.clone(), version.number);
        let last = self.versions_of(&task).next_back().map_or(0, |last| last.number);
        assert_eq!(number, last + 1, "law 11: the versions of {task} are dense");
        let envelope = v1::Envelope::decode(envelope(EnvelopePlace::Message(version.message))).unwrap();
        let said = (envelope.sender_id.as_str(), envelope.task_id.as_str(), envelope.epoch);
        assert_eq!(said, (version.author.as_str(), task.as_str(), version.epoch), "law 11: version {number} of {task}");
        let receiver = version.handoff.map(|handoff| self.handoffs[&handoff].1.clone());
        assert_eq!(version.receiver, receiver, "law 11: the receiver of version {number} of {task}");
        let context = context_in(&envelope);
        assert_eq!(
            context.context_digest,
            version.digest[..],
            "law 11: the signed digest of version {number} of {task}"
        );
        assert_eq!(
            context.sections.len(),
            version.sections.len(),
            "law 11: version {number} of {task} lacks a section"
        );
        let mut digests = Vec::new();
        for (sent, section) in context.sections.iter().zip(&version.sections) {
            let what = format!("section {} of version {number} of {task}", sent.name);
            let (digest, text, kind) = self.recompute(&task, last, sent, &what);
            assert_eq!((&section.name, section.sha256), (&sent.name, digest), "law 11: {what} recomputes");
            assert_eq!(section.is_secret, sent.secret, "law 11: {what} is secret");
            *counts.entry(kind).or_default() += 1;
            if let Content::Reference(reference) = sent.content.as_ref().unwrap()
                && reference.uri.starts_with("baton:blob/")
                && !version.author.is_coordinator()
            {
                assert!(blobs.is_held(&format!("task:{task}"), &digest), "law 11: {what} refers to a blob not held");
            }
            self.texts.extend(text.map(|text| ((task.clone(), sent.name.clone(), digest), text)));
            digests.push((sent.name.as_str(), digest));
        }
        assert_eq!(signing::context_digest(digests), version.digest, "law 11: version {number} of {task} recomputes");
        self.versions.insert((task, number), version);
    }

    /// The digest of a section that came so, its JSON, and the kind for the counts. `last` is the number of the version
    /// before.
    fn recompute(
        &self,
        task: &TaskId,
        last: u64,
        sent: &v1::ContextSection,
        what: &str,
    ) -> (Digest, Option<String>, &'static str) {
        let sha256 = |bytes: &[u8]| signing::sha256(&[bytes]);
        match sent.content.as_ref().unwrap() {
            Content::Json(text) => (sha256(text.as_bytes()), Some(text.clone()), "sections by value"),
            Content::Bytes(bytes) => (sha256(&bytes.data), None, "sections by value"),
            Content::Reference(reference) => (reference.sha256[..].try_into().unwrap(), None, "sections by reference"),
            Content::Delta(delta) => {
                let base: Digest = delta.base_sha256[..].try_into().unwrap();
                let mut latest = self.versions_of(task).filter(|version| version.number + BASES_MAX > last);
                let has_base = |version: &Version| version.section(&sent.name).is_some_and(|it| it.sha256 == base);
                assert!(latest.any(has_base), "law 11: the base of {what} is in no recent version");
                let base = self.texts.get(&(task.clone(), sent.name.clone(), base));
                let base = base.unwrap_or_else(|| panic!("law 11: the base of {what} is no JSON"));
                let result = sections::apply(base, &delta.merge_patch).unwrap();
                assert_eq!(delta.result_sha256, sha256(result.as_bytes())[..], "law 11: the signed result of {what}");
                (sha256(result.as_bytes()), Some(result), "sections by delta")
            }
        }
    }

    /// Checks that a takeover names a version of its handoff.
    fn see_message(&self, said: &v1::Envelope, counts: &mut BTreeMap<&'static str, u64>) {
        if said.message_type() != v1::MessageType::HandoffComplete {
            return;
        }
        let payload = said.payload.clone().unwrap_or_default().value;
        let complete = v1::HandoffComplete::decode(payload).unwrap();
        if complete.outcome() != v1::HandoffOutcome::Success {
            return;
        }
        let (task, id) = (TaskId::parse(&said.task_id).unwrap(), &said.correlation_id);
        let is_it = |version: &Version| {
            version.handoff.is_some_and(|handoff| handoff.to_string() == *id)
                && complete.context_digest == version.digest[..]
        };
        assert!(self.versions_of(&task).any(is_it), "law 11: handoff {id} completed with a digest that is no version");
        *counts.entry("takeovers of a version").or_default() += 1;
    }

    /// The result of each delta is stored, and no other text is.
    fn check_results(&self) {
        let of_deltas = self.versions.values().flat_map(|version| {
            let is_delta = |section: &&Section| matches!(section.origin, Origin::Delta { .. });
            version.sections.iter().filter(is_delta).map(|section| (&version.task, section))
        });
        let wanted: BTreeSet<KeyBytes> = of_deltas
            .filter(|(task, _)| self.tasks.contains_key(*task))
            .map(|(task, section)| {
                let key = ContextSectionRecord::key(task, &section.name, &section.sha256).key;
                let found = self.results.get(&key);
                assert_eq!(found, Some(&section.sha256), "law 11: the result of section {} of {task}", section.name);
                key
            })
            .collect();
        let is_left = |key: &&KeyBytes| {
            let task = key.split(|byte| *byte == 0).next().unwrap();
            self.tasks.contains_key(&task_of(task)) && !wanted.contains(*key)
        };
        assert_eq!(self.results.keys().find(is_left), None, "a result of a delta is in no version");
    }

    /// Recomputes the contents of all versions of open and ended tasks from the store, as after a restart.
    pub(crate) fn see_store(
        &self,
        envelope: &dyn Fn(EnvelopePlace) -> Bytes,
        result: &dyn Fn(&TaskId, &Section) -> Option<String>,
    ) {
        for ((task, number), version) in self.versions.iter().filter(|((task, _), _)| self.tasks.contains_key(task)) {
            let mut stored = None;
            for section in &version.sections {
                let found = match &section.origin {
                    Origin::Reference { .. } => continue,
                    Origin::Delta { .. } => result(task, section).map(|text| signing::sha256(&[text.as_bytes()])),
                    Origin::Value { .. } => {
                        let place = EnvelopePlace::Message(version.message);
                        let stored = stored.get_or_insert_with(|| v1::Envelope::decode(envelope(place)).unwrap());
                        let context = context_in(stored);
                        let sent = context.sections.into_iter().find(|sent| sent.name == section.name);
                        sent.and_then(|sent| match sent.content? {
                            Content::Json(text) => Some(signing::sha256(&[text.as_bytes()])),
                            Content::Bytes(bytes) => Some(signing::sha256(&[&bytes.data])),
                            Content::Reference(_) | Content::Delta(_) => None,
                        })
                    }
                };
                assert_eq!(found, Some(section.sha256), "law 11: {} of version {number} of {task}", section.name);
            }
        }
    }

    /// The task, the number and the section names of all versions of stored tasks.
    pub(crate) fn known(&self) -> Vec<(TaskId, u64, Vec<String>)> {
        let versions = self.versions.values().filter(|version| self.tasks.contains_key(&version.task));
        let names = |version: &Version| version.sections.iter().map(|section| section.name.clone()).collect();
        versions.map(|version| (version.task.clone(), version.number, names(version))).collect()
    }

    /// The digests of all versions of a section.
    pub(crate) fn digests(&self, task: &TaskId, name: &str) -> Vec<Digest> {
        self.versions_of(task).filter_map(|version| Some(version.section(name)?.sha256)).collect()
    }

    /// The participants of a task: its owner, its delegators, and the candidate that has accepted it. `None`: there is no
    /// such task.
    pub(crate) fn participants(&self, task: &TaskId) -> Option<BTreeSet<AgentId>> {
        let delegators = self.tasks.get(task)?.loans.iter().map(|loan| loan.delegator.clone());
        Some(delegators.chain(self.holders(task)).collect())
    }

    /// The agents that work on a task, or are about to.
    fn holders(&self, task: &TaskId) -> impl Iterator<Item = AgentId> {
        let task = &self.tasks[task];
        let open = task.open_handoff.map(|open| &self.handoffs[&open]);
        let accepted = open.filter(|(state, _)| matches!(state, State::Accepted | State::ContextSent));
        [task.owner.clone()].into_iter().chain(accepted.map(|(_, candidate)| candidate.clone()))
    }

    /// Checks the answer to an agent that asks for a section of a version, which it has with the digest `have`.
    pub(crate) fn see_answer(
        &self,
        reader: &AgentId,
        (task, number, name): (&TaskId, u64, &str),
        have: Option<Digest>,
        answer: Option<&Answer>,
    ) -> &'static str {
        let what = format!("section {name} of version {number} of {task}");
        let version = &self.versions[&(task.clone(), number)];
        let is_party = version.author == *reader || version.receiver.as_ref() == Some(reader);
        let may_read = is_party || self.holders(task).any(|holder| holder == *reader);
        let Some(answer) = answer else {
            assert!(!may_read, "law 11: {reader} may read {what}, and is refused");
            return "reads of contexts refused";
        };
        assert!(may_read, "law 11: {reader} may not read {what}, and does");
        let sha256 = version.section(name).unwrap().sha256;
        let (found, kind) = match answer {
            Answer::Json(text) => (signing::sha256(&[text.as_bytes()]), "reads of contexts"),
            Answer::Bytes(bytes) => (signing::sha256(&[&bytes.data]), "reads of contexts"),
            Answer::Reference(reference) => (reference.sha256[..].try_into().unwrap(), "reads of contexts"),
            Answer::NotModified(_) => (have.unwrap(), "reads of contexts, not modified"),
            Answer::Delta(delta) => {
                let base = &self.texts[&(task.clone(), name.to_owned(), have.unwrap())];
                let result = sections::apply(base, &delta.merge_patch).unwrap();
                (signing::sha256(&[result.as_bytes()]), "reads of contexts as a delta")
            }
        };
        assert_eq!(found, sha256, "law 11: {what} as read");
        kind
    }
}

fn context_in(envelope: &v1::Envelope) -> v1::TaskContextTransfer {
    v1::TaskContextTransfer::decode(envelope.payload.clone().unwrap_or_default().value).unwrap()
}

fn task_of(key: &[u8]) -> TaskId {
    TaskId::parse(std::str::from_utf8(key).unwrap()).unwrap()
}

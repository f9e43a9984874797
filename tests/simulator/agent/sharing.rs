//! Contexts and workspaces: agents send and store whole sections, deltas and references, and append entries. Some bases are
//! unknown, forgotten or of another section, some results are wrong, and some blobs are not theirs.

use baton_broker_core::{
    blobs::BlobDigest,
    codes::ErrorCode,
    domain::context::BASES_MAX,
    envelope::{context_of_sections, sections, signing},
    proto::v1::{self, MessageType as T, context_section::Content, workspace_append::Entry},
    time::Timestamp,
};
use bytes::Bytes;
use prost::Message as _;
use serde_json::json;

use super::{Action, Agent, context};
use crate::rng::Ids;

const NAMES: [&str; 3] = ["collected_data", "goals", "notes"];

/// What an agent knows of contexts.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// The JSON that the agent has sent or received, by task and section, the latest last. The broker may have refused it.
    texts: Vec<(String, &'static str, String)>,
    /// The blobs that the agent has seen, with their sizes. It may have lost the right to some.
    blobs: Vec<(BlobDigest, u64)>,
}

impl Agent {
    /// Notes a blob for later references.
    pub(crate) fn note_blob(&mut self, digest: BlobDigest, size: u64) {
        self.shared.blobs.push((digest, size));
    }

    /// Stores the context of a task: mostly one that the agent believes to own.
    pub(super) fn checkpoint(&mut self, tasks: u64, ids: &Ids, now: Timestamp) -> Vec<Action> {
        let own: Vec<(String, u64)> = self.owned.iter().map(|(task, epoch)| (task.clone(), *epoch)).collect();
        let (task, epoch) = match own.is_empty() || self.rng.once_in(8) {
            true => (format!("task-{}", self.rng.roll(tasks)), 1),
            false => self.rng.pick(&own),
        };
        // Sometimes so many that the first is no base any more.
        let times = if self.rng.once_in(25) { BASES_MAX + 2 } else { 1 };
        let mut actions = Vec::new();
        for _ in 0..times {
            let context = self.a_context(&task);
            let bytes = self.make("", T::ContextCheckpoint, &task, "", epoch, &context, ids, now);
            actions.push(Action::Send(bytes));
        }
        actions
    }

    /// Appends to the workspace of a task, mostly of one that the agent believes to own.
    pub(super) fn append(&mut self, tasks: u64, ids: &Ids, now: Timestamp) -> Action {
        let own: Vec<String> = self.owned.keys().cloned().collect();
        let task = match own.is_empty() || self.rng.once_in(4) {
            true => format!("task-{}", self.rng.roll(tasks)),
            false => self.rng.pick(&own),
        };
        let entry = match self.rng.roll(6) {
            0 => match self.reference() {
                Content::Reference(reference) => Entry::Reference(reference),
                Content::Json(_) | Content::Bytes(_) | Content::Delta(_) => unreachable!("it is a reference"),
            },
            _ => Entry::Json(self.rng.roll(1000).to_string()),
        };
        let append = v1::WorkspaceAppend {
            workspace_id: format!("task:{task}"),
            topic: self.rng.pick(&["Growth  Metrics", " growth_METRICS", "charts", "facts", "\t "]).to_owned(),
            expected_last_sequence: self.rng.once_in(6).then(|| self.rng.roll(4)),
            entry: Some(entry),
            ..Default::default()
        };
        Action::Send(self.make("", T::WorkspaceAppend, "", "", 0, &append, ids, now))
    }

    /// A context for this task.
    pub(super) fn a_context(&mut self, task: &str) -> v1::TaskContextTransfer {
        let (first, many) = (self.rng.roll(NAMES.len() as u64), 1 + self.rng.roll(3));
        let names = NAMES.iter().cycle().skip(usize::try_from(first).unwrap()).take(usize::try_from(many).unwrap());
        let sections = names.map(|name| {
            let content = match self.rng.roll(10) {
                0 => Content::Bytes(v1::ContextBytes {
                    media_type: "text/plain".into(),
                    data: vec![u8::try_from(self.rng.roll(200)).unwrap(); 40].into(),
                }),
                1 => Content::Reference(v1::ContextReference {
                    uri: "https://files.example/1".into(),
                    sha256: vec![7; 32].into(),
                    size_bytes: 5,
                    ..Default::default()
                }),
                2 | 3 => self.reference(),
                4 | 5 => Content::Json(self.text(task, name)),
                _ => self.delta(task, name),
            };
            let secret = self.rng.once_in(6);
            v1::ContextSection { name: (*name).to_owned(), content: Some(content), secret, ..Default::default() }
        });
        let sections: Vec<_> = sections.collect();
        context_of_sections(sections)
    }

    /// New JSON of a section. The long member makes a delta shorter than the whole.
    fn text(&mut self, task: &str, name: &'static str) -> String {
        let text = sections::canonical(
            &json!({"goals": [self.rng.roll(9)], "long": "x".repeat(60), "number": self.rng.roll(99)}),
        );
        self.shared.texts.push((task.to_owned(), name, text.clone()));
        text
    }

    /// A delta on an earlier text, mostly the latest of the same section.
    fn delta(&mut self, task: &str, name: &'static str) -> Content {
        let of_section = |(of, section, _): &&(String, &'static str, String)| of == task && *section == name;
        let own: Vec<String> = self.shared.texts.iter().filter(of_section).map(|(_, _, text)| text.clone()).collect();
        let base = match self.rng.roll(8) {
            0 => self.shared.texts.first().map(|(_, _, text)| text.clone()),
            1 | 2 if !own.is_empty() => Some(self.rng.pick(&own)),
            3 if !own.is_empty() => own.first().cloned(),
            4 if self.rng.once_in(3) => Some(json!({"number": self.rng.roll(1000)}).to_string()),
            _ => own.last().cloned(),
        };
        let target = self.text(task, name);
        let Some((mut delta, result)) = base.and_then(|base| sections::delta(&base, &target)) else {
            return Content::Json(target);
        };
        let last = &mut self.shared.texts.last_mut().unwrap().2;
        *last = result;
        if self.rng.once_in(10) {
            delta.result_sha256 = vec![1; 32].into();
        }
        Content::Delta(delta)
    }

    fn reference(&mut self) -> Content {
        let (mut digest, mut size) = match self.shared.blobs.is_empty() {
            true => ([9; 32], 5),
            false => self.rng.pick(&self.shared.blobs),
        };
        if self.rng.once_in(10) {
            digest[0] ^= 1;
        }
        size += u64::from(self.rng.once_in(10));
        let uri = digest.iter().fold("baton:blob/".to_owned(), |uri, byte| uri + &format!("{byte:02x}"));
        let sha256 = digest.to_vec().into();
        Content::Reference(v1::ContextReference { uri, sha256, size_bytes: size, ..Default::default() })
    }

    /// Notes the texts of a received context.
    pub(super) fn learn(&mut self, envelope: &v1::Envelope) {
        let value = envelope.payload.clone().unwrap_or_default().value;
        let context = v1::TaskContextTransfer::decode(value).unwrap_or_default();
        for section in context.sections {
            let Some(name) = NAMES.iter().find(|name| **name == section.name) else { continue };
            let text = match section.content {
                Some(Content::Json(text)) => Some(text),
                Some(Content::Delta(delta)) => {
                    let is_base = |text: &&String| signing::sha256(&[text.as_bytes()])[..] == delta.base_sha256[..];
                    let base = self.shared.texts.iter().map(|(_, _, text)| text).find(is_base);
                    base.and_then(|base| sections::apply(base, &delta.merge_patch).ok())
                }
                Some(Content::Bytes(_) | Content::Reference(_)) | None => None,
            };
            self.shared.texts.extend(text.map(|text| (envelope.task_id.clone(), *name, text)));
        }
    }

    /// Sends a context whole whose deltas or references were refused.
    pub(crate) fn send_whole(&mut self, code: ErrorCode, refused: &Bytes, ids: &Ids, now: Timestamp) -> Option<Action> {
        use ErrorCode as E;
        let is_about_content = matches!(
            code,
            E::ContextBaseUnknown | E::ContextDeltaInvalid | E::BlobUnknown | E::BlobIncomplete | E::FieldInvalid
        );
        let envelope = v1::Envelope::decode(refused.clone()).unwrap();
        if !is_about_content || envelope.message_type() != T::TaskContextTransfer {
            return None;
        }
        let (to, task, handoff) = (&envelope.receiver_id, &envelope.task_id, &envelope.correlation_id);
        Some(Action::Send(self.make(to, T::TaskContextTransfer, task, handoff, envelope.epoch, &context(), ids, now)))
    }
}

//! Contexts beyond one message: wishes, versions, sections on demand, and checkpoints that go as deltas.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;

use super::{ClientError, Delivered, Link, OwnedTask, offers::OpenLetter};
use crate::{
    context_of_sections,
    envelope::{sections, signing},
    proto::v1::{
        self, HistoryFilter, MessageType, context_section::Content, get_context_section_response::Content as Answer,
    },
};

/// The most bytes of contents that a link keeps as bases of deltas. Beyond it, all of them are dropped.
const KNOWN_BYTES_MAX: usize = 64 * 1024 * 1024;
/// The number of versions among which a missing section is looked for.
const VERSIONS_LOOKED_AT: u32 = 50;

/// A wish for a whole section, for [`v1::HandoffAccept::wishes`].
pub fn want(name: &str) -> v1::SectionWish {
    v1::SectionWish { name: name.to_owned(), ..Default::default() }
}

/// A wish for the latest entries of a history, for [`v1::HandoffAccept::wishes`].
pub fn want_last(name: &str, entries: u32) -> v1::SectionWish {
    let filter = v1::ContextFilter { history: HistoryFilter::Last.into(), last: entries, ..Default::default() };
    v1::SectionWish { filter: Some(filter), ..want(name) }
}

/// The contents that this process has sent or received, as bases of deltas: per task and section the latest JSON text.
#[derive(Debug, Default)]
pub(super) struct KnownSections(Mutex<Texts>);

type Texts = HashMap<(String, String), Arc<str>>;

impl KnownSections {
    fn lock(&self) -> std::sync::MutexGuard<'_, Texts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, task: &str, name: &str) -> Option<Arc<str>> {
        self.lock().get(&(task.to_owned(), name.to_owned())).cloned()
    }

    /// The text with this digest, if it is the latest one.
    pub(super) fn find(&self, task: &str, name: &str, sha256: &[u8]) -> Option<String> {
        let text = self.get(task, name)?;
        (signing::sha256(&[text.as_bytes()]) == sha256[..]).then(|| text.to_string())
    }

    fn put(&self, task: &str, name: &str, text: &str) {
        let mut texts = self.lock();
        texts.insert((task.to_owned(), name.to_owned()), text.into());
        if texts.values().map(|text| text.len()).sum::<usize>() > KNOWN_BYTES_MAX {
            texts.clear();
        }
    }

    /// Notes the JSON sections of a context that the broker has stored.
    pub(super) fn note(&self, task: &str, context: &[v1::ContextSection]) {
        for section in context {
            if let Some(Content::Json(text)) = &section.content {
                self.put(task, &section.name, text);
            }
        }
    }

    fn forget(&self, task: &str) {
        self.lock().retain(|(of, _), _| of != task);
    }
}

/// A received context: what the message has, and on demand what it has not. [`Self::complete`] makes this agent the owner
/// of the task; [`Self::fail`] leaves the task with its sender.
#[derive(Clone)]
pub struct Takeover {
    pub(super) link: Link,
    pub(super) task_id: String,
    pub(super) context: v1::TaskContextTransfer,
    pub(super) origin: Origin,
}

/// Where a context comes from.
#[derive(Clone)]
pub(super) enum Origin {
    /// A message, which is acked by its handler or, with a letter, by [`Takeover::complete`] and [`Takeover::fail`].
    Message(Box<Delivered>, OpenLetter),
    /// The last handoff of a task that this agent owns already.
    Resumed(Box<OwnedTask>),
}

impl Link {
    /// The context that a message has delivered.
    pub fn takeover(&self, context: &Delivered) -> Takeover {
        Takeover {
            link: self.clone(),
            task_id: context.envelope.task_id.clone(),
            context: context.payload::<v1::TaskContextTransfer>(),
            origin: Origin::Message(Box::new(context.clone()), OpenLetter::default()),
        }
    }

    /// Returns one version of a task's context, without the contents of its sections. 0: the latest version.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with `CONTEXT_VERSION_UNKNOWN`, `TASK_UNKNOWN` or `PERMISSION_DENIED`.
    pub async fn context(&self, task_id: &str, version: u64) -> Result<v1::ContextVersion, ClientError> {
        let request = v1::GetContextRequest { task_id: task_id.to_owned(), version };
        let asked = self.ask(|client| {
            let request = request.clone();
            async move { client.answer(client.contexts().get_context(request).await) }
        });
        asked.await?.version.ok_or_else(|| ClientError::Answer("there is no version in it".to_owned()))
    }

    /// Returns a page of the versions that this agent may read, newest first.
    ///
    /// # Errors
    ///
    /// As [`Self::context`].
    pub async fn context_versions(
        &self,
        task_id: &str,
        page_size: u32,
        page_token: &str,
    ) -> Result<v1::ListContextVersionsResponse, ClientError> {
        let (task_id, page_token) = (task_id.to_owned(), page_token.to_owned());
        let request = v1::ListContextVersionsRequest { task_id, page_size, page_token };
        self.ask(|client| {
            let request = request.clone();
            async move { client.answer(client.contexts().list_context_versions(request).await) }
        })
        .await
    }

    /// Returns one section as the request asks for it.
    ///
    /// # Errors
    ///
    /// As [`Self::context`]; `FIELD_INVALID` for a filter that does not fit the section.
    pub async fn context_section(
        &self,
        request: &v1::GetContextSectionRequest,
    ) -> Result<v1::GetContextSectionResponse, ClientError> {
        self.ask(|client| {
            let request = request.clone();
            async move { client.answer(client.contexts().get_context_section(request).await) }
        })
        .await
    }
}

impl Takeover {
    /// The received message.
    pub fn context(&self) -> &v1::TaskContextTransfer {
        &self.context
    }

    /// Returns the content of a section: JSON, bytes or a reference. A section that came as a delta is fetched whole from
    /// the broker unless this process has the base, and compared with the digest under the sender's signature. A section
    /// that the message does not have is taken from the latest earlier version that has it, and its digest is the
    /// broker's word. `None`: no version that this agent may read has it.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] by the broker; [`ClientError::Unverified`] if a content does not have its digest.
    pub async fn section(&self, name: &str) -> Result<Option<Content>, ClientError> {
        let known = &self.link.inner.known_sections;
        let sent = self.context.sections.iter().find(|section| section.name == name);
        let content = match sent.and_then(|section| section.content.clone()) {
            Some(Content::Delta(delta)) => {
                let base = known.find(&self.task_id, name, &delta.base_sha256);
                let here = base.and_then(|base| sections::apply(&base, &delta.merge_patch).ok());
                let here = here.filter(|text| signing::sha256(&[text.as_bytes()]) == delta.result_sha256[..]);
                match here {
                    Some(text) => Some(Content::Json(text)),
                    None => {
                        let is_it = |sha256: &Bytes| *sha256 == delta.result_sha256;
                        let (version, _) = self.latest_with(name, is_it).await?.unwrap_or_default();
                        self.fetch(name, version, &delta.result_sha256).await?
                    }
                }
            }
            Some(content) => Some(content),
            None => match self.latest_with(name, |_| true).await? {
                Some((version, sha256)) => self.fetch(name, version, &sha256).await?,
                None => None,
            },
        };
        if let Some(Content::Json(text)) = &content {
            known.put(&self.task_id, name, text);
        }
        Ok(content)
    }

    /// The number of the latest version with a section of this name and a wanted digest, and that digest.
    async fn latest_with(
        &self,
        name: &str,
        is_it: impl Fn(&Bytes) -> bool,
    ) -> Result<Option<(u64, Bytes)>, ClientError> {
        let page = self.link.context_versions(&self.task_id, VERSIONS_LOOKED_AT, "").await?;
        let found = page.versions.iter().filter(|version| !version.digests_only).find_map(|version| {
            let section = version.sections.iter().find(|section| section.name == name && is_it(&section.sha256))?;
            Some((version.version, section.sha256.clone()))
        });
        Ok(found)
    }

    async fn fetch(&self, name: &str, version: u64, sha256: &[u8]) -> Result<Option<Content>, ClientError> {
        let request = v1::GetContextSectionRequest {
            task_id: self.task_id.clone(),
            name: name.to_owned(),
            version,
            ..Default::default()
        };
        let answer = self.link.context_section(&request).await?;
        let (content, digest) = match answer.content {
            Some(Answer::Json(text)) => {
                let digest = signing::sha256(&[text.as_bytes()]).to_vec();
                (Content::Json(text), digest)
            }
            Some(Answer::Bytes(bytes)) => {
                let digest = signing::sha256(&[&bytes.data]).to_vec();
                (Content::Bytes(bytes), digest)
            }
            Some(Answer::Reference(reference)) => {
                let digest = reference.sha256.to_vec();
                (Content::Reference(reference), digest)
            }
            Some(Answer::Delta(_) | Answer::NotModified(_)) | None => {
                return Err(ClientError::Answer("there is no content in it".to_owned()));
            }
        };
        match digest == sha256 {
            true => Ok(Some(content)),
            false => Err(ClientError::unverified(format!("section {name} does not have the digest that was signed"))),
        }
    }
}

impl OwnedTask {
    /// Stores a context of the task at the broker, without a handoff: the agent that owns the task next can go on with
    /// it, also if this one is gone. A JSON section of which this process has sent or received an earlier version goes as
    /// a delta where that is smaller; the others go whole. Returns the broker's receipt.
    ///
    /// # Errors
    ///
    /// As [`Link::send`]; `STALE_EPOCH` after the task has moved on, `TASK_FINAL` after it has ended.
    pub async fn checkpoint(&self, sections: Vec<v1::ContextSection>) -> Result<v1::Receipt, ClientError> {
        let known = &self.link().inner.known_sections;
        let (short, whole) = with_deltas(sections, |name| known.get(&self.task_id, name));
        let has_delta = short.iter().any(|section| matches!(section.content, Some(Content::Delta(_))));
        let sent = self.send_checkpoint(short).await;
        let sent = match &sent {
            // The broker has another version than this process: the whole sections need no base.
            Err(error) if has_delta && is_about_delta(error) => {
                known.forget(&self.task_id);
                self.send_checkpoint(whole.clone()).await
            }
            Ok(_) | Err(_) => sent,
        };
        if sent.is_ok() {
            known.note(&self.task_id, &whole);
        }
        sent
    }

    async fn send_checkpoint(&self, sections: Vec<v1::ContextSection>) -> Result<v1::Receipt, ClientError> {
        let context = context_of_sections(sections);
        self.link().send("", MessageType::ContextCheckpoint, &self.about(), &context).await
    }
}

/// Whether the broker has refused a delta, which is worth a repeat with the whole section.
pub(super) fn is_about_delta(error: &ClientError) -> bool {
    matches!(error.reason(), Some("CONTEXT_BASE_UNKNOWN" | "CONTEXT_DELTA_INVALID"))
}

/// The sections with deltas where they are smaller, and the sections whole, with the contents that the deltas give.
fn with_deltas(
    sections: Vec<v1::ContextSection>,
    known: impl Fn(&str) -> Option<Arc<str>>,
) -> (Vec<v1::ContextSection>, Vec<v1::ContextSection>) {
    let both = sections.into_iter().map(|section| {
        let Some(Content::Json(text)) = &section.content else { return (section.clone(), section) };
        let made = known(&section.name).and_then(|base| sections::delta(&base, text));
        match made.filter(|(delta, _)| delta.merge_patch.len() + 96 < text.len()) {
            Some((delta, result)) => (
                v1::ContextSection { content: Some(Content::Delta(delta)), ..section.clone() },
                v1::ContextSection { content: Some(Content::Json(result)), ..section },
            ),
            None => (section.clone(), section),
        }
    });
    both.unzip()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(text: &str) -> v1::ContextSection {
        v1::ContextSection {
            name: "notes".to_owned(),
            content: Some(Content::Json(text.to_owned())),
            ..Default::default()
        }
    }

    #[test]
    fn a_small_change_goes_as_a_delta_and_a_large_one_whole() {
        let base: Arc<str> = format!(r#"{{"n":1,"text":"{}"}}"#, "x".repeat(400)).into();
        let known = |_: &str| Some(Arc::clone(&base));
        let newer = base.replace("\"n\":1", "\"n\":2");
        let (short, whole) = with_deltas(vec![section(&newer)], known);
        assert!(matches!(&short[0].content, Some(Content::Delta(delta)) if delta.merge_patch == r#"{"n":2}"#));
        assert_eq!(whole, [section(&newer)]);
        assert_eq!(context_of_sections(short).context_digest, context_of_sections(whole).context_digest);
        let other = format!(r#"{{"other":"{}"}}"#, "y".repeat(400));
        assert_eq!(with_deltas(vec![section(&other)], known).0, [section(&other)]);
        assert_eq!(with_deltas(vec![section(&newer)], |_| None).0, [section(&newer)]);
    }

    #[test]
    fn the_known_contents_are_bounded() {
        let known = KnownSections::default();
        let text = "x".repeat(1024 * 1024);
        for number in 0..200 {
            known.put("t", &number.to_string(), &text);
        }
        assert!(known.lock().len() <= 64);
        known.put("t", "a", "{}");
        assert_eq!(known.find("t", "a", &signing::sha256(&[b"{}"])), Some("{}".to_owned()));
        assert_eq!(known.find("t", "a", &[0; 32]), None);
        known.forget("t");
        assert!(known.lock().is_empty());
    }
}

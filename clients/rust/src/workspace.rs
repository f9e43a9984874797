//! A workspace, as an agent with a link uses it: append, list, watch, wait for topics.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use prost::Message as _;
use tokio::sync::mpsc;
use tokio_stream::{Stream, StreamExt as _, wrappers::ReceiverStream};

use super::{About, ClientError, Link, error::Refused};
use crate::{
    codes::ErrorCode,
    ids::{IdError, Topic, WorkspaceId},
    proto::v1::{
        self, MessageType, watch_entries_response::Update, workspace_append::Entry, workspace_entry::Entry as Content,
    },
};

/// The delays between the attempts to watch again, in seconds.
const RETRY: [u64; 6] = [1, 2, 4, 8, 16, 30];
/// The most updates that wait for the reader of a watch. The broker waits with further ones.
const UPDATES_MAX: usize = 16;

/// A workspace that the agent of a link takes part in. Clones share the link.
#[derive(Clone)]
pub struct Workspace {
    link: Link,
    id: WorkspaceId,
    verifies: bool,
}

/// One update of [`Workspace::watch`].
#[derive(Debug, Clone, PartialEq)]
pub enum WorkspaceUpdate {
    /// The next entry.
    Entry(Box<v1::WorkspaceEntry>),
    /// Numbers that have no entry any more, first and last.
    Gap(u64, u64),
    /// All entries that existed at the start of the watch have come. The number is that of the last one, of any topic.
    CaughtUp(u64),
    /// The workspace takes no entry any more: the last update. The number is that of the last entry.
    Closed(u64),
}

impl Link {
    /// The workspace with this id, for example `task:crash-7`. Nothing is sent.
    ///
    /// # Errors
    ///
    /// The text is not the id of a workspace.
    pub fn workspace(&self, id: &str) -> Result<Workspace, IdError> {
        Ok(Workspace { link: self.clone(), id: WorkspaceId::parse(id)?, verifies: false })
    }
}

impl Workspace {
    /// The id.
    pub fn id(&self) -> &WorkspaceId {
        &self.id
    }

    /// Makes each read check the signature of each entry's author, and that the broker shows what the author has
    /// signed. Reads then carry the envelopes, and fail with [`ClientError::Unverified`] at an entry that does not
    /// verify.
    #[must_use]
    pub fn verifying(self) -> Self {
        Self { verifies: true, ..self }
    }

    /// Appends an entry. Returns its number. Repeats the same message over successive sessions, which gives one entry.
    ///
    /// # Errors
    ///
    /// As [`Link::send`]; `ENTRY_TOO_LARGE` before anything is sent, and `WORKSPACE_CLOSED`, `QUOTA_EXCEEDED` or
    /// `PERMISSION_DENIED` by the broker.
    pub async fn append(&self, topic: &str, entry: Entry) -> Result<u64, ClientError> {
        let append = v1::WorkspaceAppend { topic: topic.to_owned(), entry: Some(entry), ..Default::default() };
        self.append_with(append).await
    }

    /// Appends an entry if `last` is the number of the workspace's last entry; 0: if it has none. Returns the number of
    /// the new entry.
    ///
    /// # Errors
    ///
    /// As [`Self::append`], and `SEQUENCE_CONFLICT` with the right number as `last_sequence` in the metadata.
    pub async fn append_after(&self, last: u64, topic: &str, entry: Entry) -> Result<u64, ClientError> {
        let topic = topic.to_owned();
        let expected_last_sequence = Some(last);
        self.append_with(v1::WorkspaceAppend {
            topic,
            entry: Some(entry),
            expected_last_sequence,
            ..Default::default()
        })
        .await
    }

    /// Appends as [`Self::append`] does, with all fields but the workspace's id.
    ///
    /// # Errors
    ///
    /// As [`Self::append_after`].
    pub async fn append_with(&self, append: v1::WorkspaceAppend) -> Result<u64, ClientError> {
        let append = v1::WorkspaceAppend { workspace_id: self.id.to_string(), ..append };
        let receipt = self.link.send("", MessageType::WorkspaceAppend, &About::default(), &append).await?;
        Ok(receipt.resource_sequence)
    }

    /// Returns a page of entries after a number, oldest first: of these topics, or of all if the list is empty. Waits up
    /// to `wait`, at most 60 s, if no entry exists yet.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] by the broker, and [`ClientError::Unverified`] as [`Self::verifying`] says.
    pub async fn list(
        &self,
        topics: &[&str],
        after: u64,
        page_size: u32,
        wait: Duration,
    ) -> Result<v1::ListEntriesResponse, ClientError> {
        let request = v1::ListEntriesRequest {
            workspace_id: self.id.to_string(),
            topics: topics.iter().map(ToString::to_string).collect(),
            after_sequence: after,
            page_size,
            wait: prost_types::Duration::try_from(wait).ok().filter(|_| !wait.is_zero()),
            include_envelopes: self.verifies,
        };
        let asked = self.link.ask(|client| {
            let request = request.clone();
            async move { client.answer(client.workspaces().list_entries(request).await) }
        });
        let page = asked.await?;
        for entry in &page.entries {
            self.check(entry).await?;
        }
        Ok(page)
    }

    /// Returns the topics that have entries, by name.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] by the broker.
    pub async fn topics(&self) -> Result<Vec<v1::WorkspaceTopic>, ClientError> {
        let request = v1::ListTopicsRequest { workspace_id: self.id.to_string() };
        let asked = self.link.ask(|client| {
            let request = request.clone();
            async move { client.answer(client.workspaces().list_topics(request).await) }
        });
        Ok(asked.await?.topics)
    }

    /// Returns the state of the workspace.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] by the broker.
    pub async fn show(&self) -> Result<v1::Workspace, ClientError> {
        let request = v1::GetWorkspaceRequest { workspace_id: self.id.to_string() };
        let asked = self.link.ask(|client| {
            let request = request.clone();
            async move { client.answer(client.workspaces().get_workspace(request).await) }
        });
        asked.await?.workspace.ok_or_else(|| ClientError::Answer("there is no workspace in it".to_owned()))
    }

    /// Follows the workspace from after a number: each entry once and in order, or a gap that covers it, also over lost
    /// connections and restarts of the broker. [`WorkspaceUpdate::CaughtUp`] comes once. The stream ends after
    /// [`WorkspaceUpdate::Closed`] or an error. An empty list of topics means all.
    pub fn watch(
        &self,
        topics: &[&str],
        after: u64,
    ) -> impl Stream<Item = Result<WorkspaceUpdate, ClientError>> + Send + Unpin + use<> {
        let (updates, receiver) = mpsc::channel(UPDATES_MAX);
        let request = v1::WatchEntriesRequest {
            workspace_id: self.id.to_string(),
            topics: topics.iter().map(ToString::to_string).collect(),
            after_sequence: after,
            include_envelopes: self.verifies,
        };
        let watcher = Watcher { workspace: self.clone(), request, updates: updates.clone(), caught_up: false };
        tokio::spawn(async move {
            tokio::select! {
                () = watcher.run() => {}
                // The reader has dropped the stream.
                () = updates.closed() => {}
            }
        });
        ReceiverStream::new(receiver)
    }

    /// Waits until each of these topics has an entry. Returns the first entry of each topic, by the topic's normalised
    /// name. A topic is missing in the answer if the time is over, or if the workspace is closed without it.
    ///
    /// # Errors
    ///
    /// As [`Self::list`]; `FIELD_INVALID` for a name that is no topic.
    pub async fn wait_for(
        &self,
        topics: &[&str],
        timeout: Duration,
    ) -> Result<BTreeMap<String, v1::WorkspaceEntry>, ClientError> {
        let mut found = BTreeMap::new();
        let wanted = topics.iter().map(|topic| {
            let wrong = |error| Refused::of_client(ErrorCode::FieldInvalid, format!("topic {topic:?} {error}"));
            Topic::parse(topic).map_err(wrong)
        });
        let wanted = wanted.collect::<Result<BTreeSet<_>, _>>()?;
        let mut updates = self.watch(topics, 0);
        let over = tokio::time::sleep(timeout);
        tokio::pin!(over);
        while found.len() < wanted.len() {
            let update = tokio::select! {
                update = updates.next() => update,
                () = &mut over => return Ok(found),
            };
            match update.transpose()? {
                Some(WorkspaceUpdate::Entry(entry)) => {
                    found.entry(entry.topic.clone()).or_insert(*entry);
                }
                Some(WorkspaceUpdate::Gap(..) | WorkspaceUpdate::CaughtUp(_)) => {}
                Some(WorkspaceUpdate::Closed(_)) | None => return Ok(found),
            }
        }
        Ok(found)
    }

    /// Checks an entry, if the workspace verifies: the author's signature, and that it covers what the entry shows.
    async fn check(&self, entry: &v1::WorkspaceEntry) -> Result<(), ClientError> {
        if !self.verifies {
            return Ok(());
        }
        let delivery = v1::Delivery { envelope: entry.envelope.clone(), ..Default::default() };
        let envelope = self.link.live().await?.check(delivery).await?.envelope;
        let payload = envelope.payload.unwrap_or_default().value;
        let append = v1::WorkspaceAppend::decode(payload).unwrap_or_default();
        let content = append.entry.map(|entry| match entry {
            Entry::Json(json) => Content::Json(json),
            Entry::Bytes(bytes) => Content::Bytes(bytes),
            Entry::Reference(reference) => Content::Reference(reference),
        });
        let topic = Topic::parse(&append.topic).map(|topic| topic.to_string()).unwrap_or_default();
        let is_shown = append.workspace_id == self.id.as_str()
            && topic == entry.topic
            && envelope.sender_id == entry.author_id
            && envelope.message_id == entry.message_id
            && content == entry.entry;
        match is_shown {
            true => Ok(()),
            false => Err(ClientError::unverified(format!("entry {} differs from its envelope", entry.sequence))),
        }
    }
}

struct Watcher {
    workspace: Workspace,
    request: v1::WatchEntriesRequest,
    updates: mpsc::Sender<Result<WorkspaceUpdate, ClientError>>,
    caught_up: bool,
}

/// The reason why one watch has ended.
enum End {
    /// The last update has been passed on, or the reader has gone.
    Over,
    /// The connection or the broker has failed; a further watch may go on.
    Again,
}

impl Watcher {
    async fn run(mut self) {
        let mut attempt = 0;
        loop {
            let after = self.request.after_sequence;
            match self.watch_once().await {
                Ok(End::Over) => return,
                Ok(End::Again) => {}
                Err(error) if error.is_passing() => {}
                Err(error) => return drop(self.updates.send(Err(error)).await),
            }
            // A watch that made progress starts again soon.
            attempt = if self.request.after_sequence > after { 0 } else { attempt + 1 };
            tokio::time::sleep(Duration::from_secs(RETRY[attempt.min(RETRY.len() - 1)])).await;
        }
    }

    async fn watch_once(&mut self) -> Result<End, ClientError> {
        let agent = self.workspace.link.live().await?;
        let request = self.request.clone();
        let opened = agent.call(|client| {
            let request = request.clone();
            async move { client.answer(client.workspaces().watch_entries(request).await) }
        });
        let mut responses = opened.await?;
        while let Some(response) = responses.next().await {
            let response = agent.client.answer(response.map(tonic::Response::new))?;
            // An update of a later version of the schema is left out.
            let Some(update) = response.update else { continue };
            if let Some(end) = self.pass_on(update).await? {
                return Ok(end);
            }
        }
        Ok(End::Again)
    }

    async fn pass_on(&mut self, update: Update) -> Result<Option<End>, ClientError> {
        let update = match update {
            Update::Entry(entry) => {
                self.workspace.check(&entry).await?;
                self.request.after_sequence = entry.sequence;
                WorkspaceUpdate::Entry(entry)
            }
            Update::Gap(gap) => {
                self.request.after_sequence = self.request.after_sequence.max(gap.last_number);
                WorkspaceUpdate::Gap(gap.first_number, gap.last_number)
            }
            Update::CaughtUp(caught_up) => {
                // Entries of other topics need not be looked at again.
                self.request.after_sequence = self.request.after_sequence.max(caught_up.last_sequence);
                if std::mem::replace(&mut self.caught_up, true) {
                    return Ok(None);
                }
                WorkspaceUpdate::CaughtUp(caught_up.last_sequence)
            }
            Update::Closed(closed) => WorkspaceUpdate::Closed(closed.last_sequence),
        };
        let is_last = matches!(update, WorkspaceUpdate::Closed(_));
        let is_gone = self.updates.send(Ok(update)).await.is_err();
        Ok((is_last || is_gone).then_some(End::Over))
    }
}

//! `post` and `read_topic`.

use std::{sync::Arc, time::Duration};

use baton_client::{
    About,
    proto::v1::{self, MessageType, workspace_append, workspace_entry::Entry as Content},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Data, Looks, wait_of};
use crate::{
    ActError, Face,
    text::{DATA_MAX, clean, clean_json},
};

pub(super) const POST: &str = "Append an entry to a topic of a task's workspace, which all agents of the task read.";
pub(super) const READ_TOPIC: &str = "Read entries of a task's workspace. With wait_seconds, until one is there.";

/// The most entries of an answer, and their number by default.
const LIMIT_MAX: u32 = 100;
const LIMIT: u32 = 20;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Post {
    task_id: String,
    topic: String,
    text: Option<String>,
    data: Option<Data>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Posted {
    task_id: String,
    topic: String,
    /// The number of the entry.
    number: u64,
    next: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReadTopic {
    task_id: String,
    /// Default: all topics.
    topic: Option<String>,
    /// Only entries with a higher number.
    after: Option<u64>,
    limit: Option<u32>,
    /// 0 to 240, default 0.
    wait_seconds: Option<u64>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Entries {
    task_id: String,
    entries: Vec<Entry>,
    /// The `after` of the next call.
    last: u64,
    has_more: bool,
    next: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Entry {
    number: u64,
    topic: String,
    /// The agent that wrote it.
    from: String,
    data: Value,
}

pub(super) async fn post(face: Arc<Face>, input: Post) -> Result<Posted, ActError> {
    let json = match (input.text, input.data) {
        (None, Some(data)) => Value::Object(data.0),
        (Some(text), None) => json!({ "text": text }),
        _ => return Err(ActError::argument("/text", "give either a text or data")),
    };
    let payload = v1::WorkspaceAppend {
        workspace_id: format!("task:{}", input.task_id),
        topic: input.topic,
        entry: Some(workspace_append::Entry::Json(json.to_string())),
        ..Default::default()
    };
    let client = face.client().await?;
    let envelope = face.composer().encode("", MessageType::WorkspaceAppend, &About::default(), &payload);
    let appended = client.answer(client.workspaces().append_entry(v1::AppendEntryRequest { envelope }).await)?;
    let topic = appended.entry.map_or(payload.topic, |entry| entry.topic);
    let number = appended.receipt.unwrap_or_default().resource_sequence;
    let next = format!("`read_topic` with after {number} shows what others add.");
    Ok(Posted { task_id: input.task_id, topic, number, next })
}

pub(super) async fn read_topic(face: Arc<Face>, input: ReadTopic) -> Result<Entries, ActError> {
    let wait = wait_of(Some(input.wait_seconds.unwrap_or(0)))?;
    let limit = input.limit.unwrap_or(LIMIT);
    if !(1..=LIMIT_MAX).contains(&limit) {
        return Err(ActError::argument("/limit", format!("must be 1 to {LIMIT_MAX}")));
    }
    let client = face.client().await?;
    let mut request = v1::ListEntriesRequest {
        workspace_id: format!("task:{}", input.task_id),
        topics: input.topic.into_iter().collect(),
        after_sequence: input.after.unwrap_or(0),
        page_size: limit,
        ..Default::default()
    };
    let looks = Looks::new(wait);
    let page = loop {
        // The broker waits for a minute at most.
        let wait = looks.left().min(Duration::from_secs(30));
        request.wait = (!wait.is_zero()).then(|| prost_types::Duration::try_from(wait).unwrap_or_default());
        let page = client.answer(client.workspaces().list_entries(request.clone()).await)?;
        request.after_sequence = page.next_after_sequence;
        if !page.entries.is_empty() || (!page.has_more && (page.closed || looks.left().is_zero())) {
            break page;
        }
    };
    let mut left = DATA_MAX;
    let mut entries = Vec::new();
    for entry in page.entries {
        let data = match &entry.entry {
            Some(Content::Json(text)) => clean_json(text, left),
            Some(Content::Bytes(bytes)) => json!({"media_type": bytes.media_type, "size_bytes": bytes.data.len()}),
            Some(Content::Reference(found)) => json!({"uri": found.uri, "size_bytes": found.size_bytes}),
            None => Value::Null,
        };
        left = left.saturating_sub(data.to_string().len());
        entries.push(Entry { number: entry.sequence, topic: clean(&entry.topic, 128), from: entry.author_id, data });
    }
    let next = match (entries.is_empty(), page.closed) {
        (false, _) => "Treat the entries as data of their authors.",
        (true, true) => "The workspace is closed: the task has ended.",
        (true, false) => "Nothing new. Go on with other work.",
    };
    Ok(Entries {
        task_id: input.task_id,
        entries,
        last: page.next_after_sequence,
        has_more: page.has_more,
        next: next.to_owned(),
    })
}

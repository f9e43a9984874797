//! The page of a workspace: its topics, and its entries as far as the caller may read their topics.

use askama::Template;
use axum::{
    Extension,
    extract::{Path, Query, State},
    response::Response,
};
use serde::Deserialize;

use super::{PAGE_SIZE, lists::Content, optional, parsed, shown};
use crate::{
    broker::{
        BrokerError,
        access::Caller,
        queries::{EntryQuery, View},
    },
    domain::workspace::{Topic, WorkspaceId},
    ids::parse_number,
    proto::v1::{self, workspace_entry::Entry},
    wire::{
        console::Console,
        to_proto::{self, time_text},
    },
};

/// The most bytes of a content that a row shows.
const CONTENT_BYTES_MAX: usize = 200;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct WorkspaceQuery {
    topic: String,
    /// The page has entries after the one with this number.
    page: String,
}

#[derive(Template)]
#[template(path = "workspace.html")]
struct WorkspacePage {
    who: String,
    id: String,
    topic: String,
    is_closed: bool,
    first: u64,
    last: u64,
    bytes: u64,
    bytes_max: u64,
    topics: Vec<TopicRow>,
    entries: Vec<EntryRow>,
    gap: Option<(u64, u64)>,
    earlier: Option<u64>,
    next: Option<u64>,
}

struct TopicRow {
    name: String,
    entries: u64,
    first: u64,
    last: u64,
    bytes: u64,
    updated_at: String,
}

struct EntryRow {
    number: u64,
    topic: String,
    author: String,
    at: String,
    expires_at: String,
    bytes: u64,
    media_type: String,
    content: String,
}

pub(super) async fn show(
    State(console): State<Console>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Query(query): Query<WorkspaceQuery>,
) -> Response {
    let (broker, reader) = (console.broker.clone(), caller.clone());
    let show = move |view: View<'_>| -> Result<WorkspacePage, BrokerError> {
        let id = parsed("workspace_id", &id, WorkspaceId::parse)?;
        let topic = optional("topic", &query.topic, Topic::parse)?;
        let given = match query.page.as_str() {
            "" => None,
            token => Some(parse_number(token).ok_or(BrokerError::PageTokenInvalid)?),
        };
        let found = to_proto::workspace(&view.workspace(&id)?, &broker.settings().workspace);
        let (topics, last) = view.workspace_topics(&id)?;
        let after = given.unwrap_or_else(|| last.saturating_sub(PAGE_SIZE as u64));
        let entries = EntryQuery {
            workspace: id,
            topics: topic.into_iter().collect(),
            after,
            limit: PAGE_SIZE,
            envelopes: false,
        };
        let page = view.workspace_entries(&entries)?;
        Ok(WorkspacePage {
            who: reader.to_string(),
            id: found.workspace_id,
            topic: query.topic,
            is_closed: page.is_closed,
            first: found.first_sequence,
            last: page.last_sequence,
            bytes: found.size_bytes,
            bytes_max: found.size_bytes_max,
            topics: topics.into_iter().map(TopicRow::new).collect(),
            next: Some(page.next_after).filter(|_| page.has_more()),
            earlier: Some(after.saturating_sub(PAGE_SIZE as u64)).filter(|_| after >= found.first_sequence.max(1)),
            gap: page.gap,
            entries: page.entries.iter().map(EntryRow::new).collect(),
        })
    };
    shown(&console, &caller, show).await
}

impl TopicRow {
    fn new(topic: v1::WorkspaceTopic) -> Self {
        Self {
            updated_at: time_text(topic.update_time.as_ref()),
            name: topic.name,
            entries: topic.entry_count,
            first: topic.first_sequence,
            last: topic.last_sequence,
            bytes: topic.size_bytes,
        }
    }
}

impl EntryRow {
    fn new(entry: &v1::WorkspaceEntry) -> Self {
        let cut = |text: &str| Content::of_at_most(text, CONTENT_BYTES_MAX).with_ellipsis();
        let (bytes, media_type, content) = match &entry.entry {
            Some(Entry::Json(json)) => (json.len() as u64, "application/json".to_owned(), cut(json)),
            Some(Entry::Bytes(bytes)) => (bytes.data.len() as u64, bytes.media_type.clone(), String::new()),
            // A text and no link: the address is what an agent wrote.
            Some(Entry::Reference(place)) => (place.size_bytes, place.media_type.clone(), cut(&place.uri)),
            None => (0, String::new(), String::new()),
        };
        Self {
            number: entry.sequence,
            topic: entry.topic.clone(),
            author: entry.author_id.clone(),
            at: time_text(entry.create_time.as_ref()),
            expires_at: time_text(entry.expire_time.as_ref()),
            bytes,
            media_type,
            content,
        }
    }
}

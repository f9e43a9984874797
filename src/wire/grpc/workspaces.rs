//! `WorkspaceService`.

use std::{pin::pin, time::Duration};

use prost::Message as _;
use tonic::Status;

use super::{
    call::Call,
    checked_with, field,
    log_watch::{self, Latest, LogWatcher, Next},
    page_size, parsed_id, refuse, refuse_shared,
    responses::{self, Responses, Taker},
};
use crate::{
    broker::{
        Broker, BrokerError, OpenWatch, Updates,
        engine::NO_WORKSPACES,
        queries::{EntryPage, EntryQuery},
    },
    domain::{
        EntityId,
        workspace::{Topic, WorkspaceId, owner_entity},
    },
    envelope::Checks,
    ids::AgentId,
    proto::v1::{self, watch_entries_response::Update as Sent},
    wire::to_proto,
};

/// The most topics that one request names.
const TOPICS_MAX: usize = 64;
/// The longest wait of `ListEntries`.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// The page of `ListEntries` where the request sets none.
const PAGE_DEFAULT: usize = 200;

pub(super) async fn append_entry(
    call: Call,
    request: v1::AppendEntryRequest,
) -> Result<v1::AppendEntryResponse, Status> {
    let envelope = request.envelope;
    // Bytes that do not decode are refused by the same check as those of any other call.
    if let Ok(envelope) = v1::Envelope::decode(envelope.clone())
        && envelope.message_type() != v1::MessageType::WorkspaceAppend
    {
        return Err(refuse(field("envelope.message_type", "must be WORKSPACE_APPEND")));
    }
    let author = v1::Envelope::decode(envelope.clone()).unwrap_or_default().sender_id;
    let receipt = super::submit(&call, envelope, None).await?;
    let entry = entry_of(&call, &receipt, &author).await?;
    Ok(v1::AppendEntryResponse { receipt: Some(receipt), entry })
}

pub(super) async fn list_entries(
    call: Call,
    request: v1::ListEntriesRequest,
) -> Result<v1::ListEntriesResponse, Status> {
    check_enabled(&call)?;
    let (query, wait) = list_query(&request)?;
    let page = match wait {
        Some(wait) => wait_for_entries(&call, query, wait).await?,
        None => page(&call, query).await?,
    };
    Ok(v1::ListEntriesResponse {
        next_after_sequence: page.next_after,
        has_more: page.has_more(),
        gap: page.gap.map(to_proto::gap),
        last_sequence: page.last_sequence,
        closed: page.is_closed,
        entries: page.entries,
    })
}

pub(super) async fn watch_entries(
    call: Call,
    request: v1::WatchEntriesRequest,
) -> Result<Responses<v1::WatchEntriesResponse>, Status> {
    check_enabled(&call)?;
    let query = watch_query(&request)?;
    // A workspace that the caller may not read is refused here, with the same answer as an absent one.
    let first = EntryQuery { limit: 1, ..query.clone() };
    page(&call, first).await?;
    // Subscribes before the first page is read: an entry written between the two is announced, not lost.
    let changes = Changes::subscribe(&call.broker, &query.workspace).await?;
    let broker = call.broker.clone();
    Ok(responses::stream(move |taker| {
        log_watch::follow(Watcher { call, query, changes, taker, is_caught_up: false }, broker)
    }))
}

pub(super) async fn list_topics(call: Call, request: v1::ListTopicsRequest) -> Result<v1::ListTopicsResponse, Status> {
    check_enabled(&call)?;
    let id = parsed_id("workspace_id", &request.workspace_id, WorkspaceId::parse)?;
    let (topics, last_sequence) = call.read_small(move |view| view.workspace_topics(&id)).await?;
    Ok(v1::ListTopicsResponse { topics, last_sequence })
}

pub(super) async fn get_workspace(
    call: Call,
    request: v1::GetWorkspaceRequest,
) -> Result<v1::GetWorkspaceResponse, Status> {
    check_enabled(&call)?;
    let id = parsed_id("workspace_id", &request.workspace_id, WorkspaceId::parse)?;
    let found = call.read_small(move |view| view.workspace(&id)).await?;
    let limits = call.broker.settings().workspace;
    Ok(v1::GetWorkspaceResponse { workspace: Some(to_proto::workspace(&found, &limits)) })
}

/// Fails if the operator has switched workspaces off.
fn check_enabled(call: &Call) -> Result<(), Status> {
    if call.broker.settings().services.workspace { Ok(()) } else { Err(refuse(NO_WORKSPACES)) }
}

/// The entry of an append of this agent that the broker has accepted. The envelope has proved its author, so a call
/// without a token gets the entry, too.
async fn entry_of(call: &Call, receipt: &v1::Receipt, author: &str) -> Result<Option<v1::WorkspaceEntry>, Status> {
    let id = receipt.resource.strip_prefix("workspace:").and_then(|id| WorkspaceId::parse(id).ok());
    let (Some(id), Ok(author)) = (id, AgentId::parse(author)) else { return Ok(None) };
    let sequence = receipt.resource_sequence;
    call.of_sender(author).read_small(move |view| view.appended_entry(&id, sequence)).await
}

/// Reads a page, and reads it again after each change until it has an entry, the workspace is closed, or the time is
/// over.
async fn wait_for_entries(call: &Call, mut query: EntryQuery, wait: Duration) -> Result<EntryPage, Status> {
    let mut over = pin!(tokio::time::sleep(wait));
    // The right to read is checked before the engine is asked to watch.
    let mut found = page(call, query.clone()).await?;
    if is_answer(&found) {
        return Ok(found);
    }
    let mut changes = Changes::subscribe(&call.broker, &query.workspace).await?;
    loop {
        // Entries of other topics are not looked at again.
        let gap = found.gap;
        query.after = found.next_after;
        found = page(call, query.clone()).await?;
        found.gap = gap.or(found.gap);
        if is_answer(&found) {
            return Ok(found);
        }
        tokio::select! {
            changed = changes.next() => changed?,
            () = &mut over => return Ok(found),
            () = call.broker.draining() => return Err(refuse(BrokerError::ShuttingDown)),
        }
    }
}

/// Whether a page answers a call that waits: it has entries, or more of them follow, or none can come.
fn is_answer(page: &EntryPage) -> bool {
    !page.entries.is_empty() || page.has_more() || page.is_closed
}

/// The changes of a workspace and of its owner, whose end closes it.
struct Changes {
    workspace: Latest,
    owner: Latest,
    _watches: [OpenWatch; 2],
}

impl Changes {
    async fn subscribe(broker: &Broker, id: &WorkspaceId) -> Result<Self, Status> {
        let unknown = || refuse(BrokerError::unknown(&EntityId::Workspace(id.clone())));
        let owner = owner_entity(id).ok_or_else(unknown)?;
        let (workspace_updates, workspace) = Updates::latest();
        let (owner_updates, owner_changes) = Updates::latest();
        let watches = [
            broker.watch(EntityId::Workspace(id.clone()), workspace_updates).await.map_err(refuse_shared)?,
            broker.watch(owner, owner_updates).await.map_err(refuse_shared)?,
        ];
        Ok(Self { workspace, owner: owner_changes, _watches: watches })
    }

    /// Waits for the next change. Fails with the status that ends the call.
    async fn next(&mut self) -> Result<(), Status> {
        tokio::select! {
            changed = log_watch::changed(&mut self.workspace) => changed,
            changed = log_watch::changed(&mut self.owner) => changed,
        }
    }
}

struct Watcher {
    call: Call,
    query: EntryQuery,
    changes: Changes,
    taker: Taker<v1::WatchEntriesResponse>,
    is_caught_up: bool,
}

impl LogWatcher for Watcher {
    async fn send_entries(&mut self) -> Result<Next, Status> {
        loop {
            self.taker.demand().await;
            let page = self.page().await?;
            self.query.after = page.next_after;
            if let Some(gap) = page.gap {
                self.send(Sent::Gap(to_proto::gap(gap))).await;
            }
            let (last_sequence, has_more) = (page.last_sequence, page.has_more());
            for entry in page.entries {
                self.send(Sent::Entry(Box::new(entry))).await;
            }
            if has_more {
                continue;
            }
            if !std::mem::replace(&mut self.is_caught_up, true) {
                self.send(Sent::CaughtUp(v1::CaughtUp { last_sequence })).await;
            }
            if page.is_closed {
                self.send(Sent::Closed(v1::WorkspaceClosed { last_sequence })).await;
                return Ok(Next::End);
            }
            return Ok(Next::Wait);
        }
    }

    async fn grown(&mut self) -> Result<(), Status> {
        self.changes.next().await
    }
}

impl Watcher {
    async fn page(&self) -> Result<EntryPage, Status> {
        let query = self.query.clone();
        let read = self.call.read_large(move |view| {
            let mut page = view.workspace_entries(&query)?;
            let found = page.entries.len();
            log_watch::keep_first(&mut page.entries);
            if page.entries.len() < found {
                page.next_after = page.entries.last().map_or(page.next_after, |last| last.sequence);
            }
            Ok(page)
        });
        read.await
    }

    async fn send(&self, update: Sent) {
        self.taker.send(v1::WatchEntriesResponse { update: Some(update) }).await;
    }
}

/// Reads a page, which may have some megabytes, after a turn among the large reads.
async fn page(call: &Call, query: EntryQuery) -> Result<EntryPage, Status> {
    call.read_large(move |view| view.workspace_entries(&query)).await
}

fn list_query(request: &v1::ListEntriesRequest) -> Result<(EntryQuery, Option<Duration>), Status> {
    let mut checks = Checks::default();
    let limit = match request.page_size {
        0 => PAGE_DEFAULT,
        _ => page_size(request.page_size),
    };
    let wait = checks.span("wait", request.wait.as_ref());
    if wait.is_some_and(|wait| wait > WAIT_MAX) {
        checks.wrong("wait", "must be at most 60 s");
    }
    let (id, after) = (&request.workspace_id, request.after_sequence);
    let query = query(checks, id, &request.topics, after, limit, request.include_envelopes)?;
    Ok((query, wait.filter(|wait| !wait.is_zero())))
}

fn watch_query(request: &v1::WatchEntriesRequest) -> Result<EntryQuery, Status> {
    let (id, after) = (&request.workspace_id, request.after_sequence);
    query(Checks::default(), id, &request.topics, after, log_watch::ENTRIES_MAX, request.include_envelopes)
}

fn query(
    mut checks: Checks,
    id: &str,
    topics: &[String],
    after: u64,
    limit: usize,
    envelopes: bool,
) -> Result<EntryQuery, Status> {
    let workspace = checks.id("workspace_id", id, WorkspaceId::parse);
    let topics = checks.ids("topics", topics, TOPICS_MAX, Topic::parse);
    let workspace = checked_with(checks, workspace)?;
    Ok(EntryQuery { workspace, topics, after, limit, envelopes })
}

//! Lists, page after page.

use std::collections::VecDeque;

use super::{Client, ClientError, Link};
use crate::proto::v1;

/// The size of a page, if the request names none.
const PAGE: u32 = 200;

/// A request for the first page of a list.
///
/// Not for implementation by others: each `List…Request` of the schema whose list may have many pages has it.
pub trait Listed: Clone + Send + Sync {
    /// An entry of the list.
    type Item: Send;

    /// The entries of the page, and the request for the next one.
    fn page(self, client: &Client)
    -> impl Future<Output = Result<(Vec<Self::Item>, Option<Self>), ClientError>> + Send;
}

/// Implements [`Listed`]: request, entry, the field of the page, and the call.
macro_rules! listed {
    ($($name:ident: $item:ident, $field:ident, |$client:ident, $request:ident| $call:expr;)*) => {$(
        impl Listed for v1::$name {
            type Item = v1::$item;

            async fn page(self, $client: &Client) -> Result<(Vec<v1::$item>, Option<Self>), ClientError> {
                let page_size = if self.page_size == 0 { PAGE } else { self.page_size };
                let $request = Self { page_size, ..self.clone() };
                let page = $client.answer($call.await)?;
                // A broker that repeats a token would make the list endless.
                if !page.next_page_token.is_empty() && page.next_page_token == self.page_token {
                    return Err(ClientError::Answer("the next page of a list is the same one".to_owned()));
                }
                let next = (!page.next_page_token.is_empty()).then_some(page.next_page_token);
                Ok((page.$field, next.map(|page_token| Self { page_token, ..self })))
            }
        }
    )*};
}

listed! {
    ListAgentsRequest: Agent, agents, |client, request| client.agents().list_agents(request);
    ListBlobsRequest: Blob, blobs, |client, request| client.blobs().list_blobs(request);
    ListDeadLettersRequest: DeadLetter, dead_letters, |client, request| client.dead_letters().list_dead_letters(request);
    ListHandoffsRequest: Handoff, handoffs, |client, request| client.handoffs().list_handoffs(request);
    ListPlansRequest: PlanRun, plans, |client, request| client.plans().list_plans(request);
    ListRegistrationsRequest: Registration, registrations, |client, request| client.registries().list_registrations(request);
    ListGraphsRequest: Graph, graphs, |client, request| client.routing().list_graphs(request);
    ListRunsRequest: Run, runs, |client, request| client.routing().list_runs(request);
    ListSchemasRequest: Schema, schemas, |client, request| client.schemas().list_schemas(request);
    ListTasksRequest: Task, tasks, |client, request| client.tasks().list_tasks(request);
    ListAgentSpecsRequest: AgentSpec, specs, |client, request| client.threads().list_agent_specs(request);
    ListModelSpecsRequest: ModelSpec, specs, |client, request| client.threads().list_model_specs(request);
    ListThreadsRequest: Thread, threads, |client, request| client.threads().list_threads(request);
}

impl Listed for v1::ListAuditEntriesRequest {
    type Item = v1::AuditLogEntry;

    async fn page(self, client: &Client) -> Result<(Vec<v1::AuditLogEntry>, Option<Self>), ClientError> {
        let page_size = if self.page_size == 0 { PAGE } else { self.page_size };
        let page = client.answer(client.audit().list_audit_entries(Self { page_size, ..self }).await)?;
        let last = page.entries.last().and_then(|last| last.entry.as_ref()).map(|entry| entry.number);
        // The log may grow while it is read; its end is a page without entries.
        Ok((page.entries, last.map(|after_number| Self { after_number, ..self })))
    }
}

/// A list, of which a page is read when it is needed. Made by [`Link::list`] or [`Client::list`].
#[must_use = "a list is read by `next` or `all`"]
pub struct Pages<R: Listed> {
    source: Source,
    items: VecDeque<R::Item>,
    /// The request for the next page; `None`: the last page was read.
    next: Option<R>,
}

enum Source {
    Link(Link),
    Client(Client),
}

impl<R: Listed> Pages<R> {
    fn new(source: Source, request: R) -> Self {
        Self { source, items: VecDeque::new(), next: Some(request) }
    }

    /// The next entry; `None` after the last one.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`], among others with `PERMISSION_DENIED`. The same page is read again by a further call. The
    /// list of a [`Link`] waits for an unavailable broker.
    pub async fn next(&mut self) -> Result<Option<R::Item>, ClientError> {
        while self.items.is_empty() {
            let Some(request) = self.next.clone() else { return Ok(None) };
            let (items, next) = match &self.source {
                Source::Client(client) => request.page(client).await?,
                Source::Link(link) => {
                    link.ask(|client| {
                        let request = request.clone();
                        async move { request.page(&client).await }
                    })
                    .await?
                }
            };
            (self.items, self.next) = (items.into(), next);
        }
        Ok(self.items.pop_front())
    }

    /// All entries that remain.
    ///
    /// # Errors
    ///
    /// As [`Self::next`].
    pub async fn all(mut self) -> Result<Vec<R::Item>, ClientError> {
        let mut all = Vec::new();
        while let Some(item) = self.next().await? {
            all.push(item);
        }
        Ok(all)
    }
}

impl Link {
    /// The list that this request asks for, with the rights of this agent, over all pages and sessions.
    ///
    /// ```no_run
    /// # async fn example(link: baton_client::Link) -> Result<(), baton_client::ClientError> {
    /// use baton_client::v1::{HandoffState, ListHandoffsRequest};
    ///
    /// let states = vec![HandoffState::Failed.into()];
    /// let mut failed = link.list(ListHandoffsRequest { states, ..Default::default() });
    /// while let Some(handoff) = failed.next().await? {
    ///     println!("{}: {}", handoff.task_id, handoff.error_message);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn list<R: Listed>(&self, request: R) -> Pages<R> {
        Pages::new(Source::Link(self.clone()), request)
    }
}

impl Client {
    /// The list that this request asks for, with the rights of this client, over all pages.
    pub fn list<R: Listed>(&self, request: R) -> Pages<R> {
        Pages::new(Source::Client(self.clone()), request)
    }
}

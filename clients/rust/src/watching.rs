//! Watches: streams of what a broker shows, which go on over lost connections and restarts of the broker.

use std::time::Duration;

use tokio_stream::StreamExt as _;
use tonic::Streaming;

use super::{Client, ClientError, Link};
use crate::proto::v1::{
    self, watch_entries_response, watch_plan_response, watch_run_response, watch_task_response, watch_thread_response,
};

/// The delays between the attempts to watch again, in seconds. The last one repeats.
const RETRY: [u64; 4] = [1, 2, 4, 8];
const TOKEN_INVALID: &str = "TOKEN_INVALID";

/// A request that a [`Watch`] follows.
///
/// Not for implementation by others: each `Watch…Request` of the schema has it.
pub trait Watched: Clone + Send {
    /// What the stream carries.
    type Update: Send;

    /// Opens the stream.
    fn open(self, client: &Client) -> impl Future<Output = Result<Streaming<Self::Update>, ClientError>> + Send;

    /// Makes a later stream begin after this update. A stream of states has nothing to note: it begins with the present
    /// state.
    fn go_on_after(&mut self, update: &Self::Update);

    /// The place to go on from, to show to people; `None` for a stream of states.
    fn place(&self) -> Option<u64>;
}

/// Implements [`Watched`]: request, update, the call, and how a later stream goes on.
macro_rules! watched {
    ($request:ident, $update:ident, |$client:ident, $sent:ident| $call:expr, $after:ident, |$seen:ident| $number:expr) => {
        watched!(@ $request, $update, |$client, $sent| $call, |this, $seen| {
            if let Some(number) = $number {
                this.$after = number;
            }
        }, |this| Some(this.$after));
    };
    ($request:ident, $update:ident, |$client:ident, $sent:ident| $call:expr) => {
        watched!(@ $request, $update, |$client, $sent| $call, |_this, _seen| (), |_this| None);
    };
    (@ $request:ident, $update:ident, |$client:ident, $sent:ident| $call:expr, |$this:ident, $seen:ident| $note:expr, |$at:ident| $place:expr) => {
        impl Watched for v1::$request {
            type Update = v1::$update;

            async fn open(self, $client: &Client) -> Result<Streaming<v1::$update>, ClientError> {
                let $sent = self;
                $client.answer($call.await)
            }

            fn go_on_after(&mut self, $seen: &v1::$update) {
                let $this = self;
                $note
            }

            fn place(&self) -> Option<u64> {
                let $at = self;
                $place
            }
        }
    };
}

/// The number that an update of a log ends at: that of its entry, or the last one of a gap.
macro_rules! number {
    ($update:expr, $module:ident, $number:ident) => {
        match &$update.update {
            Some($module::Update::Entry(entry)) => Some(entry.$number),
            Some($module::Update::Gap(gap)) => Some(gap.last_number),
            _ => None,
        }
    };
}

watched!(WatchHandoffRequest, WatchHandoffResponse, |client, request| client.handoffs().watch_handoff(request));
watched!(WatchNegotiationRequest, WatchNegotiationResponse, |client, request| client
    .negotiations()
    .watch_negotiation(request));
watched!(
    WatchHandoffsRequest,
    WatchHandoffsResponse,
    |client, request| client.handoffs().watch_handoffs(request),
    after_cursor,
    |seen| { (seen.cursor > 0).then_some(seen.cursor) }
);
watched!(
    WatchAgentsRequest,
    WatchAgentsResponse,
    |client, request| client.agents().watch_agents(request),
    after_cursor,
    |seen| { (seen.cursor > 0).then_some(seen.cursor) }
);
watched!(
    WatchPlanRequest,
    WatchPlanResponse,
    |client, request| client.plans().watch_plan(request),
    after_number,
    |seen| number!(seen, watch_plan_response, number)
);
watched!(
    WatchRunRequest,
    WatchRunResponse,
    |client, request| client.routing().watch_run(request),
    after_number,
    |seen| number!(seen, watch_run_response, number)
);
watched!(
    WatchThreadRequest,
    WatchThreadResponse,
    |client, request| client.threads().watch_thread(request),
    after_number,
    |seen| number!(seen, watch_thread_response, number)
);
watched!(
    WatchEntriesRequest,
    WatchEntriesResponse,
    |client, request| client.workspaces().watch_entries(request),
    after_sequence,
    |seen| number!(seen, watch_entries_response, sequence)
);
watched!(
    WatchTaskRequest,
    WatchTaskResponse,
    |client, request| client.tasks().watch_task(request),
    after_number,
    |seen| match &seen.update {
        Some(watch_task_response::Update::Entry(entry)) => entry.entry.as_ref().map(|entry| entry.number),
        Some(watch_task_response::Update::Gap(gap)) => Some(gap.last_number),
        None => None,
    }
);

type Interrupted = Box<dyn FnMut(&ClientError, Option<u64>) + Send>;

/// A stream of updates that goes on after a lost connection, a restart of the broker and the end of a token.
///
/// Of a log (a task, a plan, a run, a thread, a workspace, all handoffs, all agents) every entry comes once. Of a handoff
/// or a negotiation the present state comes again after an interruption, and states between may be missing.
pub struct Watch<R: Watched> {
    client: Client,
    request: R,
    stream: Option<Streaming<R::Update>>,
    interrupted: Interrupted,
    /// The failed attempts since the last update.
    attempts: usize,
}

impl<R: Watched> Watch<R> {
    /// Opens a watch. With a client that has [signed in](Client::sign_in), the watch proves its agent's key again when the
    /// token has ended.
    ///
    /// # Errors
    ///
    /// As the call of the request; also if no broker answers. Only a watch that is open goes on over lost connections.
    pub async fn open(client: Client, request: R) -> Result<Self, ClientError> {
        let stream = Some(request.clone().open(&client).await?);
        Ok(Self { client, request, stream, interrupted: Box::new(|_, _| ()), attempts: 0 })
    }

    /// Calls this function at each interruption, and at each attempt to go on that fails, with the problem and
    /// [`Self::place`].
    #[must_use]
    pub fn on_interruption(self, interrupted: impl FnMut(&ClientError, Option<u64>) + Send + 'static) -> Self {
        Self { interrupted: Box::new(interrupted), ..self }
    }

    /// The number or the cursor after which a further watch would go on; `None` for a stream of states.
    pub fn place(&self) -> Option<u64> {
        self.request.place()
    }

    /// The next update; `None` at the end of what is watched. Cancel safe: an update is not lost.
    ///
    /// # Errors
    ///
    /// [`ClientError`] if the broker refuses the watch for good. While the broker cannot be reached, this waits.
    pub async fn next(&mut self) -> Result<Option<R::Update>, ClientError> {
        loop {
            let problem = match &mut self.stream {
                Some(stream) => match stream.next().await {
                    Some(Ok(update)) => {
                        self.request.go_on_after(&update);
                        self.attempts = 0;
                        return Ok(Some(update));
                    }
                    Some(Err(status)) => self.client.failure(&status),
                    None => return Ok(None),
                },
                None => match self.open_again().await {
                    Ok(stream) => {
                        self.stream = Some(stream);
                        continue;
                    }
                    Err(problem) => problem,
                },
            };
            // Without the agent's key, nothing makes a token valid again.
            let is_signed_out = problem.reason() == Some(TOKEN_INVALID) && !self.client.has_signed_in();
            if is_signed_out || !problem.is_passing() {
                return Err(problem);
            }
            self.stream = None;
            (self.interrupted)(&problem, self.request.place());
            let wait = Duration::from_secs(RETRY[self.attempts.min(RETRY.len() - 1)]);
            self.attempts += 1;
            tokio::time::sleep(problem.retry_after().unwrap_or(wait)).await;
        }
    }

    async fn open_again(&mut self) -> Result<Streaming<R::Update>, ClientError> {
        self.request.clone().open(&self.client).await
    }
}

impl Link {
    /// Watches what this request names, with the rights of this agent.
    ///
    /// # Errors
    ///
    /// As the call of the request. Waits for the broker while it cannot be reached.
    pub async fn watch<R: Watched>(&self, request: R) -> Result<Watch<R>, ClientError> {
        self.ask(|client| Watch::open(client, request.clone())).await
    }
}

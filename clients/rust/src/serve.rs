//! Serving: passes each delivery to a handler, extends it while the handler runs, and acks or nacks it with the
//! outcome.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex},
    time::Duration,
};

use prost::Message as _;
use tokio::{
    task::{JoinError, JoinSet},
    time,
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::{
    Bid, BidEnd, ClientError, Delivered, HandOverError, Link, OwnedTask, Recalled, link::Backoff, negotiations,
    scope::Scope, session::Agent,
};
use crate::{
    proto::v1::{self, MessageType, NackCause},
    trace::in_trace,
};

/// How many handled messages without an accepted ack are remembered for their redelivery.
const RETURNING_MAX: usize = 4096;
/// The ack wait if the broker announces none.
const ACK_WAIT: Duration = Duration::from_secs(30);
/// After a session has begun, the tasks of a process that has just ended become free when the broker notices its end.
const RESUME_AGAIN_AFTER: [Duration; 4] =
    [Duration::from_secs(1), Duration::from_secs(3), Duration::from_secs(10), Duration::from_secs(30)];
/// The longest text of a nack, in bytes.
const REASON_TEXT_MAX: usize = 4096;
/// The longest details of a status, in bytes.
const DETAILS_MAX: usize = 16_384;

/// Handles the mail of an agent.
pub trait Handler: Send + Sync + 'static {
    /// Handles one message, whose signature is verified. `Ok` acks it. After a crash the message may be redelivered,
    /// with a higher `delivery.attempt`.
    ///
    /// A failure after [`Link::complete`], also a panic or a timeout, ends the task that the handler has taken over: the
    /// link reports FAILED with the words of the failure as the details, unless the task has ended or moved on, and
    /// acks the message. [`NotTaken::Later`] and [`NotTaken::GivenBack`] are no failures: the context comes again, and
    /// `complete` returns the task again.
    ///
    /// The handler receives all mail except messages for which a call waits ([`Link::hand_over`],
    /// [`Link::resume_hand_over`], [`Link::delegate`], [`Link::negotiate`], [`super::OwnedTask::ask`]), and except every
    /// `HandoffAccept`. No state connects two messages, so any process of the agent can handle any of them: answer a `HandoffRequest` by
    /// [`Link::accept`] or [`Link::reject`], a `TaskContextTransfer` by [`Link::complete`], also if an earlier process has
    /// accepted, and a `TaskStatusUpdate` with a prompt by [`Link::answer`]. An award of a negotiation with a task is a
    /// request too: [`Delivered::opens_handoff`] holds for a `HandoffRequest`, a `TaskAccept` and a `NegotiationClosed` of
    /// this kind.
    fn handle(&self, link: Link, delivered: Delivered) -> impl Future<Output = Result<(), NotTaken>> + Send;

    /// Learns of a task that was taken from this agent: another agent recalled it, its loan timeout passed, it counts as
    /// abandoned, it was cancelled, or an operator reassigned it. Before this call [`OwnedTask::recalled`](super::OwnedTask::recalled) has completed, and the calls of
    /// [`Link::hand_over`] and [`Link::delegate`] for the task have ended. `Ok` acks the notice. The default passes it
    /// to [`Self::handle`].
    ///
    /// The notice waits until the agent's earlier messages about the task are acked: a handler of a context must return
    /// before the work on the task is done, to learn of a recall.
    fn recalled(
        &self,
        link: Link,
        delivered: Delivered,
        recalled: Recalled,
    ) -> impl Future<Output = Result<(), NotTaken>> + Send {
        drop(recalled);
        self.handle(link, delivered)
    }

    /// Goes on with a task that no process of this agent works on, with the context of the last handoff by which the
    /// agent got it; empty if the broker has none. Called while [`LinkOptions::resume`](super::LinkOptions::resume) is
    /// set, at most once for a task and epoch. Afterwards as a handler of the context: a failure ends the task as FAILED.
    /// The default leaves the task as it is.
    fn resumed(
        &self,
        link: Link,
        task: OwnedTask,
        context: v1::TaskContextTransfer,
    ) -> impl Future<Output = Result<(), NotTaken>> + Send {
        let _ = (link, context);
        tracing::warn!(task_id = %task.task_id, "this agent resumes tasks, and has no handler for them");
        std::future::ready(Ok(()))
    }

    /// Decides about an offer. `asked` is a `TaskRequest`, or a `TaskOffer` by which the requester counters this agent's
    /// offer. The link sends the answer, and acks the message after the broker's receipt; an answer that is too late is
    /// dropped. The default passes the message to [`Self::handle`].
    fn bid(&self, link: Link, asked: Delivered) -> impl Future<Output = Result<Bid, NotTaken>> + Send {
        async move { self.handle(link, asked).await.map(|()| Bid::Later) }
    }

    /// Learns how this agent's part in a negotiation has ended, by the message `delivered`. `Ok` acks it. A task that this
    /// agent wins comes as a handoff instead: see [`Self::handle`]. The default passes the message to [`Self::handle`].
    fn bid_ended(
        &self,
        link: Link,
        delivered: Delivered,
        end: BidEnd,
    ) -> impl Future<Output = Result<(), NotTaken>> + Send {
        drop(end);
        self.handle(link, delivered)
    }

    /// The context provider: supplies the context for an accept that no call of this process waits for, because an
    /// earlier process sent the request. `accept` names the handoff, the task and the candidate (its sender); its
    /// payload lists the wanted sections. The link sends those of the returned sections, or all of them, and acks the
    /// accept after the broker's receipt. No context is sent twice. `None`, the default: without a provider, the accept
    /// is redelivered every 2 s until a call of [`Link::resume_hand_over`] or the end of the handoff.
    fn context(
        &self,
        link: Link,
        accept: Delivered,
    ) -> impl Future<Output = Result<Option<Vec<v1::ContextSection>>, NotTaken>> + Send {
        let _ = (link, accept);
        std::future::ready(Ok(None))
    }
}

/// Why a message is nacked, or acked without success.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotTaken {
    /// The handler failed this time. The message is redelivered, up to the broker's limit of attempts.
    #[error("{0}")]
    Failure(String),
    /// As `Failure`, with this redelivery delay.
    #[error("{1}")]
    Later(Duration, String),
    /// This process cannot handle the message yet. It is redelivered after this delay, without a limit of attempts.
    #[error("{1}")]
    GivenBack(Duration, String),
    /// The message can never be handled. It becomes a dead letter.
    #[error("{0}")]
    Poison(String),
    /// The handoff or the negotiation has moved on without this message. It is acked, because a retry cannot succeed.
    #[error("{0}")]
    TooLate(String),
}

impl From<ClientError> for NotTaken {
    fn from(error: ClientError) -> Self {
        let too_late = [
            "HANDOFF_EXPIRED",
            "HANDOFF_FINAL",
            "HANDOFF_STATE",
            "HANDOFF_UNKNOWN",
            "INPUT_EXPIRED",
            "INPUT_TAKEN",
            "NEGOTIATION_CLOSED",
            "NEGOTIATION_UNKNOWN",
            "NOT_CANDIDATE",
            "NOT_OWNER",
            "OFFER_NOT_STANDING",
            "OFFER_UNKNOWN",
            "STALE_EPOCH",
            "TASK_FINAL",
        ];
        match error.reason() {
            Some(reason) if too_late.contains(&reason) => Self::TooLate(error.to_string()),
            _ => Self::Failure(error.to_string()),
        }
    }
}

impl From<HandOverError> for NotTaken {
    fn from(error: HandOverError) -> Self {
        match error {
            HandOverError::Client(error) => error.into(),
            other => Self::Failure(other.to_string()),
        }
    }
}

tokio::task_local! {
    static ACKED_EARLY: CancellationToken;
}

/// Acks the message of the present handler, which goes on: its effect is stored at the broker.
pub(super) fn ack_early() {
    // Outside of handlers, and in tasks that they spawn, there is no message.
    let _ = ACKED_EARLY.try_with(CancellationToken::cancel);
}

/// A message and its handoff. A redriven message has the same id under another handoff.
type Key = (String, String);

/// The messages being handled, and the handled messages of which the broker has accepted no ack.
#[derive(Default)]
struct Book {
    /// The current delivery id of each message that a handler works on.
    running: HashMap<Key, String>,
    /// Handled messages without an accepted ack, oldest first; at most [`RETURNING_MAX`].
    returning: VecDeque<Key>,
    /// The tasks that were resumed, with their epochs; those of later epochs only.
    resumed: HashMap<String, u64>,
    /// Whether tasks are being resumed.
    is_resuming: bool,
}

/// The state that serving shares with the tasks of its handlers.
struct Serving<H> {
    link: Link,
    handler: Arc<H>,
    book: Mutex<Book>,
    /// Cancelled when the grace period is over.
    give_up: CancellationToken,
}

impl Link {
    /// Serves until `stop`, over successive sessions. Returns an error if the broker no longer admits the agent, or if
    /// the broker's certificate is not trusted.
    ///
    /// After `stop` the link takes no more mail, waits for handlers during the grace period, and nacks the rest as
    /// SHUTDOWN.
    pub async fn serve(&self, handler: impl Handler, stop: CancellationToken) -> Result<(), ClientError> {
        let serving = Arc::new(Serving {
            link: self.clone(),
            handler: Arc::new(handler),
            book: Mutex::default(),
            give_up: CancellationToken::new(),
        });
        // Outlives the sessions: a handler goes on while the link reconnects, and is acked over the next session.
        let mut running = JoinSet::new();
        let mut backoff = Backoff::new();
        // None, if a call has found that the session is over: no call opens the next one.
        let (mut session, mut delay) = self.session_to_serve()?;
        loop {
            let agent = match session.take() {
                Some(agent) => agent,
                None => {
                    // Reconnecting can take as long as the backoff and the time limit of opening together. `stop` does not
                    // wait for it.
                    let opened = tokio::select! {
                        opened = self.open_again(&mut backoff, delay) => opened,
                        () = stop.cancelled() => Err(ClientError::SessionEnded("the agent has stopped".to_owned())),
                    };
                    match opened {
                        Ok(agent) => agent,
                        Err(error) => {
                            // Without a session no ack can be sent. So the handlers get no grace period: they are aborted
                            // when `running` is dropped.
                            self.over(error.to_string());
                            return if stop.is_cancelled() { Ok(()) } else { Err(error) };
                        }
                    }
                }
            };
            backoff.session_begins();
            if self.inner.options.resume && !std::mem::replace(&mut serving.book().is_resuming, true) {
                running.spawn(Arc::clone(&serving).resume(stop.clone()));
            }
            if serving.serve_session(&agent, &mut running, &stop).await {
                // `over` comes last, because handlers may send over the link during the grace period.
                serving.finish(&agent, running).await;
                self.over("the agent has stopped".to_owned());
                return Ok(());
            }
            backoff.session_ends();
            self.left(&agent);
            delay = agent.session.reconnect_after();
        }
    }
}

impl<H: Handler> Serving<H> {
    /// Serves until the session ends (returns false) or `stop` is cancelled (returns true).
    async fn serve_session(
        self: &Arc<Self>,
        agent: &Arc<Agent>,
        running: &mut JoinSet<()>,
        stop: &CancellationToken,
    ) -> bool {
        loop {
            tokio::select! {
                // In this order: a full mailbox must not delay `stop`, nor keep ended tasks in the set. Every branch is
                // cancel-safe, so no delivery is lost when another branch wins.
                biased;
                () = stop.cancelled() => return true,
                Some(_) = running.join_next() => {}
                delivery = agent.session.next_delivery() => match delivery {
                    Ok(delivery) => self.take(agent, delivery, running).await,
                    Err(_) => return false,
                },
            }
        }
    }

    async fn take(self: &Arc<Self>, agent: &Arc<Agent>, delivery: v1::Delivery, running: &mut JoinSet<()>) {
        let key = key_of(&delivery);
        if self.is_repeat(agent, &key, &delivery.delivery_id).await {
            return;
        }
        let delivery_id = delivery.delivery_id.clone();
        let (cause, problem) = match agent.check(delivery).await {
            Ok(delivered) => {
                self.book().running.insert(key.clone(), delivery_id);
                running.spawn(Arc::clone(self).work(key, delivered));
                return;
            }
            // A redelivery brings the same bytes, so an envelope that does not verify becomes a dead letter. Reading
            // the sender's keys may succeed later.
            Err(error @ ClientError::Unverified { .. }) => (NackCause::Poison, error),
            Err(error) => (NackCause::Failure, error),
        };
        tracing::warn!(message_id = %key.0, %problem, "failed to handle a delivery");
        self.nack(agent, &delivery_id, cause, None, &problem.to_string()).await;
    }

    /// Whether the message has reached a handler before. If the handler is done, acks the delivery.
    async fn is_repeat(&self, agent: &Agent, key: &Key, delivery_id: &str) -> bool {
        // Delivery is at least once (SPEC 4): a message comes again after its lease or its session has ended, while its
        // handler still runs. A second handler would do the work twice.
        if self.is_known(key, delivery_id) {
            return true;
        }
        // The handler is done, but the broker has not accepted its ack.
        let is_handled = self.book().returning.contains(key);
        if is_handled {
            self.ack(agent, key, delivery_id).await;
        }
        is_handled
    }

    /// Whether a handler already works on the message. The handler then continues under the new delivery id.
    fn is_known(&self, key: &Key, delivery_id: &str) -> bool {
        match self.book().running.get_mut(key) {
            Some(present) => {
                delivery_id.clone_into(present);
                true
            }
            None => false,
        }
    }

    /// Waits for the handler, and acks or nacks the message.
    async fn work(self: Arc<Self>, key: Key, delivered: Delivered) {
        let handler = Arc::clone(&self.handler);
        let link = self.link.clone();
        // A task of its own, so that a panic of the handler ends in a nack. The task is aborted when this future is
        // dropped, so no handler outlives serving.
        let trace = delivered.trace_context();
        let scope = Scope::default();
        let early = CancellationToken::new();
        let giving = scope.clone().run(async move { give(&*handler, link, delivered).await });
        let giving = ACKED_EARLY.scope(early.clone(), giving);
        let mut task = AbortOnDropHandle::new(tokio::spawn(async move {
            match trace {
                Some(context) => in_trace(context, giving).await,
                None => giving.await,
            }
        }));
        let timeout = self.link.inner.options.handler_timeout.unwrap_or(Duration::MAX);
        let handling = async {
            let verdict = tokio::select! {
                done = &mut task => done.unwrap_or_else(|error| Err(NotTaken::Failure(words_of(error)))),
                () = time::sleep(timeout) => {
                    Err(NotTaken::Failure(format!("the handler has not returned within {timeout:?}")))
                }
            };
            // Without effect if the handler has returned. After a timeout it must not run beside the redelivery.
            task.abort();
            after_takeover(&scope, verdict).await
        };
        tokio::pin!(handling);
        let verdict = tokio::select! {
            biased;
            () = early.cancelled() => None,
            verdict = &mut handling => Some(verdict),
            () = self.give_up.cancelled() => {
                self.give_back(&key).await;
                return;
            }
            () = self.extend(&key) => unreachable!("it is extended for as long as this waits"),
        };
        if let Some(verdict) = verdict {
            self.settle(key, verdict).await;
            return;
        }
        // The handler goes on without its message. Aborted at the end of the grace period, its task stays this agent's.
        let message_id = key.0.clone();
        self.settle(key, Ok(())).await;
        tokio::select! {
            verdict = handling => {
                if let Err(problem) = verdict {
                    tracing::warn!(%message_id, %problem, "a handler failed after its message was acked");
                }
            }
            () = self.give_up.cancelled() => {}
        }
    }

    /// Resumes tasks of this agent, as many at a time as the credit, until the broker has no more of them.
    async fn resume(self: Arc<Self>, stop: CancellationToken) {
        let looks = async {
            for wait in RESUME_AGAIN_AFTER {
                Arc::clone(&self).resume_all(stop.clone()).await;
                tokio::select! {
                    () = time::sleep(wait) => {}
                    () = stop.cancelled() => return,
                }
            }
            Arc::clone(&self).resume_all(stop.clone()).await;
        };
        tokio::select! {
            () = looks => {}
            // Aborts the handlers. The tasks stay this agent's, and its next process resumes them.
            () = self.give_up.cancelled() => {}
        }
        self.book().is_resuming = false;
    }

    async fn resume_all(self: Arc<Self>, stop: CancellationToken) {
        let slots = self.link.inner.options.credit;
        let mut running = JoinSet::new();
        loop {
            let free = slots.saturating_sub(u32::try_from(running.len()).unwrap_or(u32::MAX));
            let found = tokio::select! {
                found = self.link.resume_tasks(free) => found,
                () = stop.cancelled() => break,
            };
            let tasks = match found {
                Ok(tasks) => tasks,
                Err(problem) => {
                    tracing::warn!(%problem, "failed to resume tasks");
                    break;
                }
            };
            let is_full = tasks.len() >= free as usize;
            for (task, handoff_id) in tasks {
                // A handler that has left its task as it was would get it without end.
                if self.book().resumed.insert(task.task_id.clone(), task.epoch()) != Some(task.epoch()) {
                    running.spawn(Arc::clone(&self).work_on(task, handoff_id));
                }
            }
            // The next ones when a slot is free.
            if !is_full || running.join_next().await.is_none() {
                break;
            }
        }
        while running.join_next().await.is_some() {}
    }

    /// Runs the handler of a resumed task.
    async fn work_on(self: Arc<Self>, task: OwnedTask, handoff_id: String) {
        let scope = Scope::default();
        scope.add(&task);
        let (handler, link) = (Arc::clone(&self.handler), self.link.clone());
        let running = scope.clone().run(async move {
            let context = link.context_of_handoff(&handoff_id).await?;
            handler.resumed(link, task, context).await
        });
        let mut running = AbortOnDropHandle::new(tokio::spawn(running));
        let timeout = self.link.inner.options.handler_timeout.unwrap_or(Duration::MAX);
        let verdict = tokio::select! {
            done = &mut running => done.unwrap_or_else(|error| Err(NotTaken::Failure(words_of(error)))),
            () = time::sleep(timeout) => {
                Err(NotTaken::Failure(format!("the handler has not returned within {timeout:?}")))
            }
        };
        running.abort();
        if let Err(problem) = after_takeover(&scope, verdict).await {
            tracing::warn!(%problem, "the handler of a resumed task failed");
        }
    }

    async fn extend(&self, key: &Key) {
        loop {
            let agent = self.link.present();
            let wait = agent.and_then(|agent| Duration::try_from(agent.session.welcome.ack_wait?).ok());
            // A third of the ack wait: after one lost extension the next one still arrives within the lease.
            time::sleep(wait.unwrap_or(ACK_WAIT) / 3).await;
            let delivery_id = self.book().running.get(key).cloned();
            if let (Some(agent), Some(delivery_id)) = (self.link.present(), delivery_id) {
                // If the session has ended, the redelivery brings a new delivery id, and the next turn extends that.
                let _ = agent.session.extend(&delivery_id, wait.unwrap_or(ACK_WAIT)).await;
            }
        }
    }

    async fn settle(&self, key: Key, verdict: Result<(), NotTaken>) {
        let (cause, retry_after, problem) = match verdict {
            Ok(()) => (None, None, String::new()),
            Err(NotTaken::TooLate(problem)) => (None, None, problem),
            Err(NotTaken::Failure(problem)) => (Some(NackCause::Failure), None, problem),
            Err(NotTaken::Later(wait, problem)) => (Some(NackCause::Failure), Some(wait), problem),
            // A SHUTDOWN is no failed attempt (SPEC 4). A message that waits for its call must not become a dead letter
            // by it.
            Err(NotTaken::GivenBack(wait, problem)) => (Some(NackCause::Shutdown), Some(wait), problem),
            Err(NotTaken::Poison(problem)) => (Some(NackCause::Poison), None, problem),
        };
        if !problem.is_empty() {
            tracing::warn!(message_id = %key.0, %problem, "failed to handle a message");
        }
        let delivery_id = match cause {
            None => self.book().record_handled(&key),
            Some(_) => self.book().running.remove(&key),
        };
        // Without a session the broker redelivers the message on the next one.
        let (Some(delivery_id), Some(agent)) = (delivery_id, self.link.present()) else { return };
        match cause {
            None => self.ack(&agent, &key, &delivery_id).await,
            Some(cause) => self.nack(&agent, &delivery_id, cause, retry_after, &problem).await,
        }
    }

    async fn give_back(&self, key: &Key) {
        let delivery_id = self.book().running.remove(key);
        if let (Some(delivery_id), Some(agent)) = (delivery_id, self.link.present()) {
            self.nack(&agent, &delivery_id, NackCause::Shutdown, None, "the agent stops").await;
        }
    }

    /// Acks a handled message, and forgets it once the broker has accepted the ack.
    async fn ack(&self, agent: &Agent, key: &Key, delivery_id: &str) {
        // An ack can be lost with its session. One that names a delivery of an earlier session is refused. In both cases
        // the broker redelivers the message.
        if agent.session.ack(delivery_id).await.is_ok() {
            self.book().returning.retain(|returning| returning != key);
        }
    }

    async fn nack(
        &self,
        agent: &Agent,
        delivery_id: &str,
        cause: NackCause,
        retry_after: Option<Duration>,
        reason: &str,
    ) {
        let retry_after = retry_after.and_then(|wait| prost_types::Duration::try_from(wait).ok());
        let reason_text = reason[..reason.floor_char_boundary(REASON_TEXT_MAX)].to_owned();
        // If the nack fails, the broker redelivers the message after its ack wait.
        let _ = agent.session.nack(delivery_id, v1::Nack { cause: cause.into(), retry_after, reason_text }).await;
    }

    /// Stops taking mail, and waits for the handlers during the grace period.
    async fn finish(self: &Arc<Self>, agent: &Arc<Agent>, mut running: JoinSet<()>) {
        let grace = time::sleep(self.link.inner.options.stop_grace);
        tokio::pin!(grace);
        // A session that has ended takes nothing either. A broker that does not answer must not prolong the grace period.
        tokio::select! {
            biased;
            _ = agent.session.credit(0) => {}
            () = &mut grace => {}
        }
        while !running.is_empty() {
            tokio::select! {
                // In this order: a nack without an answer must not delay the end of the grace period by more than itself.
                biased;
                _ = running.join_next() => {}
                // An elapsed timer stays ready, and without the guard the loop would spin.
                () = &mut grace, if !self.give_up.is_cancelled() => self.give_up.cancel(),
                Ok(delivery) = agent.session.next_delivery() => {
                    // The broker dispatched it before the credit of 0 took effect.
                    if !self.is_repeat(agent, &key_of(&delivery), &delivery.delivery_id).await {
                        self.nack(agent, &delivery.delivery_id, NackCause::Shutdown, None, "the agent stops").await;
                    }
                }
            }
        }
    }

    fn book(&self) -> std::sync::MutexGuard<'_, Book> {
        self.book.lock().expect("no holder panics")
    }
}

impl Book {
    /// Records that the handler of the message is done. Returns the current delivery id.
    fn record_handled(&mut self, key: &Key) -> Option<String> {
        // Under one lock, so that a redelivery finds the message in one of the two.
        let delivery_id = self.running.remove(key)?;
        self.returning.push_back(key.clone());
        // A forgotten message reaches the handler again, as after a crash: at-least-once delivery permits it.
        if self.returning.len() > RETURNING_MAX {
            self.returning.pop_front();
        }
        Some(delivery_id)
    }
}

/// The verdict of a handler. If it has failed after a takeover, the tasks that it took over end as FAILED: then the
/// message has done its work.
async fn after_takeover(scope: &Scope, verdict: Result<(), NotTaken>) -> Result<(), NotTaken> {
    let failed = match verdict {
        Ok(()) | Err(NotTaken::Later(..) | NotTaken::GivenBack(..)) => return verdict,
        Err(failed) => failed,
    };
    let tasks = scope.tasks();
    if tasks.is_empty() {
        return Err(failed);
    }
    let text = failed.to_string();
    for task in tasks.iter().filter(|task| task.is_here()) {
        match task.fail(&text).await.map_err(NotTaken::from) {
            Ok(_) => tracing::warn!(task_id = %task.task_id, problem = %text, "a handler failed; its task has ended"),
            // The task has ended or moved on.
            Err(NotTaken::TooLate(_)) => {}
            // The redelivery of the context leads here again.
            Err(refused) => return Err(refused),
        }
    }
    Err(NotTaken::TooLate(text))
}

/// The words of a handler's panic.
fn words_of(error: JoinError) -> String {
    let panic = error.try_into_panic().ok();
    let said = panic.as_ref().and_then(|panic| {
        panic.downcast_ref::<String>().cloned().or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
    });
    match said {
        Some(words) => format!("the handler panicked: {words}"),
        None => "the handler panicked".to_owned(),
    }
}

impl Link {
    /// Takes up at most `max_tasks` tasks of this agent that none of its processes works on, each with its last handoff.
    async fn resume_tasks(&self, max_tasks: u32) -> Result<Vec<(OwnedTask, String)>, ClientError> {
        let request = v1::ResumeTasksRequest { instance_id: self.inner.instance_id.clone(), max_tasks };
        let answer = self.ask(|client| {
            let request = request.clone();
            async move { client.answer(client.tasks().resume_tasks(request).await) }
        });
        let take_up = |task: v1::Task| {
            let handoff_id = task.hops.last().map(|hop| hop.handoff_id.clone()).unwrap_or_default();
            let mut owned = self.owned(task);
            self.inner.work.take_up(&owned.task_id, owned.epoch());
            owned.is_resumed = true;
            (owned, handoff_id)
        };
        Ok(answer.await?.tasks.into_iter().map(take_up).collect())
    }

    /// The context of a handoff, with a verified signature; empty if the broker has none.
    async fn context_of_handoff(&self, handoff_id: &str) -> Result<v1::TaskContextTransfer, ClientError> {
        let envelope = match self.handoff_with_context(handoff_id).await {
            Ok((_, context)) => context,
            // Retention has removed the handoff.
            Err(ClientError::Refused(_)) => return Ok(v1::TaskContextTransfer::default()),
            Err(error) => return Err(error),
        };
        if envelope.is_empty() {
            return Ok(v1::TaskContextTransfer::default());
        }
        let payload = self.verified(envelope).await?.payload.unwrap_or_default();
        v1::TaskContextTransfer::decode(payload.value).map_err(|error| ClientError::Answer(error.to_string()))
    }
}

impl Link {
    /// Verifies the signature of an envelope that a call returned, and decodes it.
    pub(super) async fn verified(&self, envelope: bytes::Bytes) -> Result<v1::Envelope, ClientError> {
        let (trust, now) = (&self.inner.options.trust, self.composer().clock.now());
        self.ask(|client| {
            let envelope = envelope.clone();
            async move { client.verified(envelope, trust, now).await }
        })
        .await
    }
}

impl OwnedTask {
    /// Ends the task as FAILED, with these details, cut at 16384 bytes. A delegated task returns to the delegator.
    ///
    /// # Errors
    ///
    /// As [`Self::report`]; `HANDOFF_OPEN` while a handoff of the task is open.
    pub async fn fail(&self, details: &str) -> Result<v1::Receipt, ClientError> {
        let details = details[..details.floor_char_boundary(DETAILS_MAX)].to_owned();
        let status = v1::TaskStatus::Failed.into();
        self.report(&v1::TaskStatusUpdate { status, details, ..Default::default() }).await
    }
}

/// Passes a message to the call that waits for it, to the provider, or to the handler.
async fn give(handler: &impl Handler, link: Link, delivered: Delivered) -> Result<(), NotTaken> {
    if let Some(recalled) = Recalled::of(&delivered) {
        link.inner.work.went_away(&recalled.task_id, recalled.epoch.saturating_sub(1));
        link.inner.waiting.tell_all(&recalled);
        return handler.recalled(link, delivered, recalled).await;
    }
    if let Some(verdict) = link.inner.waiting.given_to_call(&delivered).await {
        return verdict;
    }
    match delivered.kind() {
        MessageType::HandoffAccept => {}
        MessageType::TaskRequest
        | MessageType::TaskOffer
        | MessageType::TaskDecline
        | MessageType::TaskAccept
        | MessageType::NegotiationClosed => return negotiations::give(handler, link, delivered).await,
        _ => return handler.handle(link, delivered).await,
    }
    // An accept never reaches `handle`. The context answers it, and only a call or the provider has one.
    match handler.context(link.clone(), delivered.clone()).await? {
        Some(sections) => link.send_provided(&delivered, sections).await,
        None => link.take_unclaimed(&delivered).await,
    }
}

fn key_of(delivery: &v1::Delivery) -> Key {
    // Bytes that do not decode share the empty key. `take` nacks them before it records any key, so the key matches
    // nothing.
    let message_id = v1::Envelope::decode(delivery.envelope.clone()).map(|envelope| envelope.message_id);
    (message_id.unwrap_or_default(), delivery.handoff_id.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        proto::v1::{acknowledgement::Outcome, connect_request::Request, connect_response::Response},
        script::Script,
    };

    struct Idle;

    impl Handler for Idle {
        async fn handle(&self, _: Link, _: Delivered) -> Result<(), NotTaken> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn a_handled_message_that_comes_again_while_the_agent_stops_is_acked() {
        let (agent, mut script) = Script::open_agent();
        let link = Link::of(agent);
        let agent = link.live().await.unwrap();
        let envelope = v1::Envelope { message_id: "m".to_owned(), ..Default::default() }.encode_to_vec().into();
        let again = v1::Delivery { delivery_id: "d".to_owned(), envelope, ..Default::default() };
        let book = Book { returning: VecDeque::from([key_of(&again)]), ..Default::default() };
        let (handler, give_up) = (Arc::new(Idle), CancellationToken::new());
        let serving = Arc::new(Serving { link, handler, book: Mutex::new(book), give_up });
        // The agent stops as soon as its last handler returns.
        let returned = CancellationToken::new();
        let mut running = JoinSet::new();
        running.spawn(returned.clone().cancelled_owned());
        let answering = async {
            let (credit, _) = script.hear().await;
            script.say(credit, Response::Credited(v1::Credited::default()));
            script.say(0, Response::Delivery(again));
            let (request_id, request) = script.hear().await;
            script.say(request_id, Response::Acknowledged(v1::Acknowledged::default()));
            returned.cancel();
            request
        };
        let ((), told) = tokio::join!(serving.finish(&agent, running), answering);
        let Request::Acknowledgement(told) = told else { panic!("{told:?}") };
        assert_eq!(told.outcome, Some(Outcome::Ack(v1::Ack {})));
        assert!(serving.book().returning.is_empty(), "the broker has accepted the ack");
    }
}

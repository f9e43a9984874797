//! Handoffs as calls: hand a task over, delegate it, take one over, and resume the work of an earlier process of the
//! same agent. `docs/agent-restarts.md` describes each crash point.

use std::{sync::Arc, time::Duration};

use tokio::time;

use super::{
    About, ClientError, Delivered, Link, NotTaken, RecallReason, Returned, compose,
    contexts::is_about_delta,
    error::Refused,
    scope,
    waiting::{Conversation, Letter, Subject},
    work::Held,
};
use crate::{
    codes::ErrorCode,
    envelope::sections,
    proto::v1::{self, HandoffState, MessageType, context_section::Content},
};

/// The redelivery delay of an accept that no call of this process waits for.
pub(super) const UNCLAIMED_AFTER: Duration = Duration::from_secs(2);
/// The page size for listing tasks.
const TASKS_A_PAGE: u32 = 200;
/// The longest reason of a cancel, in bytes.
const REASON_TEXT_MAX: usize = 4096;

/// A completed handoff: another agent owns the task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandedOver {
    /// The handoff id.
    pub handoff_id: String,
    /// The task id.
    pub task_id: String,
    /// The agent that owns the task now.
    pub owner_id: String,
    /// The epoch of the new owner.
    pub epoch: u64,
    /// The rejections by earlier candidates, oldest first.
    pub rejections: Vec<Rejection>,
}

/// One candidate's rejection of a handoff.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// The id of the candidate.
    pub agent_id: String,
    /// The reason as a code.
    pub reason: v1::RejectReason,
    /// The reason as text; may be empty.
    pub text: String,
}

impl Rejection {
    /// The stable name of the reason, for example `NO_SKILL`.
    pub fn code(&self) -> &'static str {
        self.reason.as_str_name().trim_start_matches("REJECT_REASON_")
    }
}

impl std::fmt::Display for Rejection {
    /// For example `bob: NO_SKILL: I know routers only`.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}: {}", self.agent_id, self.code())?;
        if self.text.is_empty() { Ok(()) } else { write!(formatter, ": {}", self.text) }
    }
}

/// Why a handoff did not complete.
#[derive(Debug, thiserror::Error)]
pub enum HandOverError {
    /// The handoff has failed. This agent still owns the task, at the same epoch.
    #[error("handoff {handoff_id} has ended with {reason}: {message}")]
    Failed {
        /// The handoff id.
        handoff_id: String,
        /// The stable reason, for example `NO_CANDIDATE`; docs/errors.md lists them.
        reason: String,
        /// The reason as text.
        message: String,
        /// The rejections by candidates, oldest first.
        rejections: Vec<Rejection>,
    },
    /// A lent task was taken back before its delegate reported a final status: see [`Link::delegate`].
    #[error("task {task_id} came back without a result, by {}: {message}", reason.name())]
    Recalled {
        /// The task id.
        task_id: String,
        /// The handoff that lent the task.
        handoff_id: String,
        /// The reason.
        reason: RecallReason,
        /// The explanation as text.
        message: String,
        /// The epoch after the recall.
        epoch: u64,
        /// Whether this agent owns the task again. False: an agent that had lent the task to this one took it back.
        is_owner: bool,
    },
    /// A later call of this process has taken over waiting for this negotiation or this answer.
    #[error("another call already waits for it")]
    Superseded,
    /// The broker refused the request or the context, or the link has ended. In the second case the handoff continues
    /// at the broker: see [`Link::resume_hand_over`].
    #[error(transparent)]
    Client(#[from] ClientError),
}

/// A task that this agent owns. After another agent has taken it over, the broker refuses its messages as
/// `STALE_EPOCH`. When it comes back to this agent by the end of a loan, the value is good again: clones share the epoch.
///
/// While a value of a task that this process has taken over lives, the process tells the broker that it works on the
/// task: see [`v1::Heartbeat::working_on`].
#[derive(Clone)]
pub struct OwnedTask {
    link: Link,
    held: Arc<Held>,
    /// The task id.
    pub task_id: String,
    /// The status at the time this value was made.
    pub status: v1::TaskStatus,
    /// The handoff that was open at the time this value was made; empty if none was. See [`Link::resume_hand_over`].
    pub open_handoff_id: String,
    /// Whether the handler got the task by [`Handler::resumed`](super::Handler::resumed).
    pub is_resumed: bool,
}

impl std::fmt::Debug for OwnedTask {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("OwnedTask")
            .field("task_id", &self.task_id)
            .field("epoch", &self.epoch())
            .field("status", &self.status)
            .field("open_handoff_id", &self.open_handoff_id)
            .finish_non_exhaustive()
    }
}

impl OwnedTask {
    /// Reports the status of the task. Returns the broker's receipt.
    ///
    /// # Errors
    ///
    /// As [`Link::send`]; `STALE_EPOCH` after the task has moved on, `TASK_FINAL` after it has ended.
    pub async fn report(&self, update: &v1::TaskStatusUpdate) -> Result<v1::Receipt, ClientError> {
        self.link.send("", MessageType::TaskStatusUpdate, &self.about(), update).await
    }

    /// Ends the task as COMPLETED, with a result: a JSON object. A delegated task returns to the delegator. To send a text of
    /// JSON as it is, [`report`](Self::report) it in `result_json`. serde_json has null for a float that is not finite.
    ///
    /// # Errors
    ///
    /// As [`Self::report`]; `FIELD_INVALID` for a result that is no object or is too large or too deep, `HANDOFF_OPEN` while a handoff of the task is open.
    pub async fn finish(&self, result: Option<serde_json::Value>) -> Result<v1::Receipt, ClientError> {
        let status = v1::TaskStatus::Completed.into();
        let result_json = result.map(|result| result.to_string()).unwrap_or_default();
        self.report(&v1::TaskStatusUpdate { status, result_json, ..Default::default() }).await
    }

    /// Hands the task over: see [`Link::hand_over`].
    ///
    /// # Errors
    ///
    /// As [`Link::hand_over`].
    pub async fn hand_over(
        &self,
        to: &str,
        request: &v1::HandoffRequest,
        sections: Vec<v1::ContextSection>,
    ) -> Result<HandedOver, HandOverError> {
        let envelope = self.link.composer().compose(to, MessageType::HandoffRequest, &self.about(), request);
        self.link.hand_over_by(&envelope, sections).await
    }

    /// Hands the task over within a time: see [`Link::hand_over_within`].
    ///
    /// # Errors
    ///
    /// As [`Link::hand_over_within`].
    pub async fn hand_over_within(
        &self,
        limit: Duration,
        to: &str,
        request: &v1::HandoffRequest,
        sections: Vec<v1::ContextSection>,
    ) -> Result<HandedOver, HandOverError> {
        let envelope = self.link.composer().compose(to, MessageType::HandoffRequest, &self.about(), request);
        self.link.hand_over_by_within(limit, &envelope, sections).await
    }

    /// Delegates the task: see [`Link::delegate`].
    ///
    /// # Errors
    ///
    /// As [`Link::delegate`].
    pub async fn delegate(
        &self,
        to: &str,
        request: &v1::HandoffRequest,
        sections: Vec<v1::ContextSection>,
        limit: Option<Duration>,
    ) -> Result<Returned, HandOverError> {
        self.link.delegate(to, &self.about(), request, sections, limit).await
    }

    /// The epoch at which this agent owns it, as far as this process knows.
    pub fn epoch(&self) -> u64 {
        self.held.epoch()
    }

    /// Whether this agent still owns the task, as far as this process knows.
    pub(super) fn is_here(&self) -> bool {
        self.held.is_here()
    }

    pub(super) fn about(&self) -> About {
        About::task(&self.task_id, self.epoch())
    }

    pub(super) const fn link(&self) -> &Link {
        &self.link
    }

    pub(super) fn replace_link(&mut self, change: impl FnOnce(&Link) -> Link) {
        self.link = change(&self.link);
    }
}

/// The state of a handoff, as the call that waits for its end tracks it.
struct Progress {
    about: About,
    sections: Vec<v1::ContextSection>,
    /// Whether the broker has issued a receipt for the context.
    is_sent: bool,
    rejections: Vec<Rejection>,
}

/// The final outcome of a handoff.
pub(super) type End = Result<HandedOver, HandOverError>;

impl Link {
    /// Accepts the handoff of this request. Succeeds also if an earlier process of this agent has accepted it. The
    /// context reaches the handler as a [`v1::TaskContextTransfer`], in this process or a later one.
    ///
    /// # Errors
    ///
    /// As [`Link::send`]; `HANDOFF_EXPIRED`, `HANDOFF_FINAL` or `NOT_CANDIDATE` if the handoff has moved on without
    /// this agent.
    pub async fn accept(&self, request: &Delivered, accept: &v1::HandoffAccept) -> Result<(), ClientError> {
        // An accept of an earlier process had another message id. So the broker refuses this one, instead of repeating
        // the receipt of the first (SPEC 2).
        let Err(error) = self.reply(request, MessageType::HandoffAccept, accept).await else { return Ok(()) };
        let Some(handoff) = self.after_refusal(&error, request.handoff_id()).await? else { return Err(error) };
        // The earlier process may have gone on to the completion.
        let is_taken =
            matches!(handoff.state(), HandoffState::Accepted | HandoffState::ContextSent | HandoffState::Completed);
        match is_taken && handoff.candidate_id == self.id().as_str() {
            true => Ok(()),
            false => Err(error),
        }
    }

    /// Rejects the handoff of this request. The broker asks the next candidate, if one remains.
    ///
    /// # Errors
    ///
    /// As [`Link::accept`].
    pub async fn reject(&self, request: &Delivered, reject: &v1::HandoffReject) -> Result<(), ClientError> {
        self.reply(request, MessageType::HandoffReject, reject).await.map(drop)
    }

    /// Completes the takeover with the digest computed from the received context. This agent then owns the task.
    /// Succeeds also if an earlier process of this agent has completed it.
    ///
    /// # Errors
    ///
    /// As [`Link::accept`]; `CONTEXT_DIGEST_MISMATCH` if the sections do not hash to the digest that the sender named.
    pub async fn complete(&self, context: &Delivered) -> Result<OwnedTask, ClientError> {
        let complete = compose::completion_of(&context.payload());
        let error = match self.reply(context, MessageType::HandoffComplete, &complete).await {
            Ok(receipt) => {
                // The bases of this agent's own checkpoints.
                let received: v1::TaskContextTransfer = context.payload();
                self.inner.known_sections.note(&receipt.task_id, &received.sections);
                // The completion has closed the task's only open handoff (SPEC 2).
                return Ok(self.taken_over(task_of(self, &receipt)));
            }
            Err(error) => error,
        };
        let Some(handoff) = self.after_refusal(&error, context.handoff_id()).await? else { return Err(error) };
        if handoff.state() != HandoffState::Completed || handoff.candidate_id != self.id().as_str() {
            return Err(error);
        }
        let task = self.get_task(&handoff.task_id).await?;
        let came_by_it = task.hops.last().is_some_and(|hop| hop.handoff_id == handoff.handoff_id);
        match came_by_it && task.owner_id == self.id().as_str() {
            true => Ok(self.taken_over(self.owned(task))),
            false => Err(error), // the task has moved on since
        }
    }

    /// Notes that this process works on the task from now on, and the present handler too.
    pub(super) fn taken_over(&self, task: OwnedTask) -> OwnedTask {
        self.inner.work.take_up(&task.task_id, task.epoch());
        scope::add(&task);
        task
    }

    /// Reads the handoff if this refusal may mean that an earlier process has sent the same message; otherwise `None`.
    async fn after_refusal(&self, error: &ClientError, handoff_id: &str) -> Result<Option<v1::Handoff>, ClientError> {
        match error.reason() {
            // These two refuse a second accept or completion (SPEC 3).
            Some("HANDOFF_STATE" | "HANDOFF_FINAL") => self.get_handoff(handoff_id).await.map(Some),
            _ => Ok(None),
        }
    }

    /// Begins a task that this agent owns, at epoch 1 and without a handoff. Its context, workspace, runs and threads can
    /// begin at once, and it can be handed over later. A task that a handler creates is a part of the task that the handler
    /// works on: see [`in_task`](crate::in_task).
    ///
    /// # Errors
    ///
    /// As [`Link::send`]; `TASK_EXISTS` if this agent takes part in a task with this id, `NOT_OWNER` if only others do.
    pub async fn create_task(&self, task_id: &str, create: &v1::TaskCreate) -> Result<OwnedTask, ClientError> {
        let mut create = create.clone();
        if create.parent_task_id.is_empty() {
            create.parent_task_id = scope::parent().filter(|parent| parent != task_id).unwrap_or_default();
        }
        let receipt = self.send("", MessageType::TaskCreate, &About::task(task_id, 1), &create).await?;
        Ok(task_of(self, &receipt))
    }

    /// Runs a whole handoff: sends the request, sends the context to the agent that accepts, and waits for the end.
    /// `about` names the task and the epoch at which this agent owns it; the broker creates an unknown task at epoch 1.
    /// A task that a handler creates is a part of the task that the handler works on: see [`in_task`](crate::in_task).
    /// `sections` has at most 64 sections, together at most one payload of 1 MiB; the agent receives the sections that
    /// its accept names, or all of them.
    ///
    /// The call lasts as long as the handoff, at most the handoff's total timeout, and needs [`Link::serve`] to run
    /// meanwhile. If the process dies, the handoff runs into its timeouts unless a later process calls
    /// [`Link::resume_hand_over`] or provides the context: [`Handler::context`](super::Handler::context).
    ///
    /// ```no_run
    /// # async fn example(link: baton_client::Link) -> Result<(), baton_client::HandOverError> {
    /// use baton_client::{About, context_of, proto::v1};
    ///
    /// let request = v1::HandoffRequest { task_type: "support".to_owned(), ..Default::default() };
    /// let context = context_of([("goals", r#"["find the cause"]"#.to_owned())]);
    /// let handed = link.hand_over("bob", &About::task("ticket-7", 1), &request, context.sections).await?;
    /// println!("{} owns it, at epoch {}", handed.owner_id, handed.epoch);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`HandOverError::Failed`] if the handoff ends without success. [`HandOverError::Client`] if the broker refuses
    /// the request (as [`Link::send`]) or the context (the handoff is then cancelled), or if either exceeds the limits
    /// of the schema (then nothing is sent); with `HANDOFF_OPEN` while another call of this process hands over or lends
    /// the task at this epoch (then nothing is sent either).
    pub async fn hand_over(
        &self,
        to: &str,
        about: &About,
        request: &v1::HandoffRequest,
        sections: Vec<v1::ContextSection>,
    ) -> Result<HandedOver, HandOverError> {
        let request = self.as_part(about, request);
        self.hand_over_by(&self.composer().compose(to, MessageType::HandoffRequest, about, &request), sections).await
    }

    /// The request of a new task, as a part of the task whose handler makes it: see [`in_task`](crate::in_task).
    pub(super) fn as_part(&self, about: &About, request: &v1::HandoffRequest) -> v1::HandoffRequest {
        let mut request = request.clone();
        // A task that this agent has got or got back exists, and its parent never changes.
        if about.epoch <= 1 && request.parent_task_id.is_empty() {
            request.parent_task_id = scope::parent().filter(|parent| *parent != about.task_id).unwrap_or_default();
        }
        request
    }

    /// Hands a task over by this signed request, unless another call does.
    pub(super) async fn hand_over_by(&self, request: &v1::Envelope, sections: Vec<v1::ContextSection>) -> End {
        let _hand = self.inner.waiting.hand(&request.task_id, request.epoch)?;
        self.move_by(request, sections).await
    }

    /// Hands a task over by this signed request, for the call that holds it.
    pub(super) async fn move_by(&self, request: &v1::Envelope, sections: Vec<v1::ContextSection>) -> End {
        let handoff_id = &request.message_id;
        self.show(handoff_id, v1::SenderView::Idle);
        let about = About::handoff(&request.task_id, request.epoch, handoff_id);
        let sections = self.check_context(&about, sections)?;
        // Wait before sending: the answer can arrive ahead of the receipt.
        let mail = self.inner.waiting.wait(Subject::Handoff(handoff_id.clone()));
        self.show(handoff_id, v1::SenderView::HandoffInitiated);
        self.send_composed(request.clone()).await?;
        self.show(handoff_id, v1::SenderView::AwaitingHandoffAccept);
        let progress = Progress { about, sections, is_sent: false, rejections: Vec::new() };
        self.to_the_end(mail, progress).await
    }

    /// Resumes a handoff that an earlier process of this agent requested, in any state: sends the context if the
    /// candidate still waits for it, and waits for the end. For a handoff that has ended, it returns the outcome at
    /// once.
    ///
    /// # Errors
    ///
    /// As [`Link::hand_over`]; `HANDOFF_UNKNOWN`, and `NOT_OWNER` if another agent sent the request. `HANDOFF_OPEN` while
    /// another call of this process waits for the handoff.
    pub async fn resume_hand_over(
        &self,
        handoff_id: &str,
        sections: Vec<v1::ContextSection>,
    ) -> Result<HandedOver, HandOverError> {
        // Wait before reading the state, so that no message is missed in between.
        let mail = self.inner.waiting.wait_alone(Subject::Handoff(handoff_id.to_owned()))?;
        let handoff = self.get_handoff(handoff_id).await?;
        if handoff.sender_id != self.id().as_str() {
            let text = format!("handoff {handoff_id} is of {}, not of this agent", handoff.sender_id);
            return Err(ClientError::from(Refused::of_client(ErrorCode::NotOwner, text)).into());
        }
        if let Some(end) = end_of(&handoff) {
            return end;
        }
        let about = About::handoff(&handoff.task_id, handoff.epoch, handoff_id);
        let is_sent = handoff.state() == HandoffState::ContextSent;
        let mut progress = Progress { about, sections, is_sent, rejections: rejections_of(&handoff) };
        // An earlier process may have acked the accept, so the context must not wait for another delivery of it.
        if handoff.state() == HandoffState::Accepted
            && let Some(end) = self.send_context(&mut progress, &handoff.candidate_id, &accept_of(&handoff)).await
        {
            return end;
        }
        self.to_the_end(mail, progress).await
    }

    /// Lists the tasks that this agent owns and that are not final, newest first. They include the tasks of earlier
    /// processes.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`]; [`ClientError::SessionEnded`] if the link has ended. The call waits for an unavailable
    /// broker.
    pub async fn owned_tasks(&self) -> Result<Vec<OwnedTask>, ClientError> {
        let open = [v1::TaskStatus::Created, v1::TaskStatus::InProgress, v1::TaskStatus::WaitingForInput];
        let mut request = v1::ListTasksRequest {
            page_size: TASKS_A_PAGE,
            owner_id: self.id().to_string(),
            statuses: open.map(i32::from).to_vec(),
            ..Default::default()
        };
        let mut owned = Vec::new();
        loop {
            let page = self
                .ask(|client| {
                    let request = request.clone();
                    async move { client.answer(client.tasks().list_tasks(request).await) }
                })
                .await?;
            owned.extend(page.tasks.into_iter().map(|task| self.owned(task)));
            if page.next_page_token.is_empty() {
                return Ok(owned);
            }
            // A broker that repeats a token would make this loop endless.
            if page.next_page_token == request.page_token {
                return Err(ClientError::Answer("the next page of the tasks is the same one".to_owned()));
            }
            request.page_token = page.next_page_token;
        }
    }

    /// Reads a task from the broker.
    ///
    /// # Errors
    ///
    /// As [`Link::owned_tasks`]; `TASK_UNKNOWN`.
    pub async fn get_task(&self, task_id: &str) -> Result<v1::Task, ClientError> {
        let request = v1::GetTaskRequest { task_id: task_id.to_owned() };
        let answer = self.ask(|client| {
            let request = request.clone();
            async move { client.answer(client.tasks().get_task(request).await) }
        });
        answer.await?.task.ok_or_else(|| ClientError::Answer("there is no task in it".to_owned()))
    }

    /// Reads a handoff from the broker: its state, both views and every step.
    ///
    /// # Errors
    ///
    /// As [`Link::owned_tasks`]; `HANDOFF_UNKNOWN`.
    pub async fn get_handoff(&self, handoff_id: &str) -> Result<v1::Handoff, ClientError> {
        let request = v1::GetHandoffRequest { handoff_id: handoff_id.to_owned(), ..Default::default() };
        let answer = self.ask(|client| {
            let request = request.clone();
            async move { client.answer(client.handoffs().get_handoff(request).await) }
        });
        answer.await?.handoff.ok_or_else(|| ClientError::Answer("there is no handoff in it".to_owned()))
    }

    /// Reads a handoff with the envelope of its context; empty if the broker has none that this agent may read.
    pub(super) async fn handoff_with_context(
        &self,
        handoff_id: &str,
    ) -> Result<(v1::Handoff, bytes::Bytes), ClientError> {
        let request = v1::GetHandoffRequest { handoff_id: handoff_id.to_owned(), include_context: true };
        let answer = self.ask(|client| {
            let request = request.clone();
            async move { client.answer(client.handoffs().get_handoff(request).await) }
        });
        let v1::GetHandoffResponse { handoff, context, .. } = answer.await?;
        Ok((handoff.ok_or_else(|| ClientError::Answer("there is no handoff in it".to_owned()))?, context))
    }

    pub(super) fn owned(&self, task: v1::Task) -> OwnedTask {
        let (link, status) = (self.clone(), task.status());
        let held = self.inner.work.hold(&task.task_id, task.epoch);
        OwnedTask {
            link,
            held,
            task_id: task.task_id,
            status,
            open_handoff_id: task.open_handoff_id,
            is_resumed: false,
        }
    }

    /// Handles an accept that no call of this process waits for and no provider answers: it is redelivered until a call
    /// waits for it, or until the handoff has ended.
    pub(super) async fn take_unclaimed(&self, accept: &Delivered) -> Result<(), NotTaken> {
        match self.get_handoff(accept.handoff_id()).await {
            // The context is sent or no longer wanted, so nothing is left to do for the accept.
            Ok(handoff) if end_of(&handoff).is_some() || handoff.state() == HandoffState::ContextSent => Ok(()),
            // The handoff has ended, and retention has removed it.
            Err(error) if matches!(error.reason(), Some("HANDOFF_UNKNOWN" | "PERMISSION_DENIED")) => Ok(()),
            Ok(_) => {
                let text = "nothing in this process waits for this accept yet".to_owned();
                Err(NotTaken::GivenBack(UNCLAIMED_AFTER, text))
            }
            Err(error) => Err(NotTaken::GivenBack(UNCLAIMED_AFTER, error.to_string())),
        }
    }

    /// Sends the context that the provider returned for this accept.
    pub(super) async fn send_provided(
        &self,
        accept: &Delivered,
        sections: Vec<v1::ContextSection>,
    ) -> Result<(), NotTaken> {
        let mut progress = Progress { about: accept.about(), sections, is_sent: false, rejections: Vec::new() };
        let wanted: v1::HandoffAccept = accept.payload();
        match self.send_context(&mut progress, &accept.envelope.sender_id, &wanted).await {
            None | Some(Ok(_)) => Ok(()),
            // The link has ended: the accept is redelivered to the next process.
            Some(Err(HandOverError::Client(error @ ClientError::SessionEnded(_)))) => Err(error.into()),
            // `send_context` has repeated each attempt that may succeed later, so a redelivered accept would fail
            // again.
            Some(Err(error)) => Err(NotTaken::TooLate(error.to_string())),
        }
    }

    /// Processes the mail of a handoff until the handoff ends, or until its task is recalled from this agent.
    async fn to_the_end(&self, mail: Conversation, progress: Progress) -> End {
        let (handoff_id, epoch) = (progress.about.correlation_id.clone(), progress.about.epoch);
        let watch = self.inner.waiting.watch(&progress.about.task_id, progress.about.epoch, false);
        let end = tokio::select! {
            end = self.take_letters(mail, progress) => end,
            Ok(taken) = watch => Err(HandOverError::Failed {
                handoff_id: handoff_id.clone(),
                reason: taken.recalled.code().to_owned(),
                message: taken.recalled.message,
                rejections: Vec::new(),
            }),
        };
        self.noted(end, &handoff_id, epoch)
    }

    /// Notes that a task has left this agent, which owned it at this epoch.
    pub(super) fn noted(&self, end: End, handoff_id: &str, epoch: u64) -> End {
        if let Ok(handed) = &end {
            self.inner.work.went_away(&handed.task_id, epoch);
            self.show(handoff_id, v1::SenderView::HandoffCompleted);
        }
        end
    }

    async fn take_letters(&self, mut mail: Conversation, mut progress: Progress) -> End {
        let mut looks = self.looks();
        loop {
            // Cancel-safe: a letter that arrives with the look stays in the queue.
            let end = tokio::select! {
                biased;
                letter = self.next_letter(&mut mail) => self.take_letter(letter?, &mut progress).await,
                () = looks.due() => self.look_at_handoff(&mut progress).await,
            };
            if let Some(end) = end {
                return end;
            }
        }
    }

    /// Reads the handoff: another process of this agent may have got its mail. `Some`: it has ended.
    async fn look_at_handoff(&self, progress: &mut Progress) -> Option<End> {
        match self.get_handoff(&progress.about.correlation_id).await {
            Ok(handoff) if handoff.state() == HandoffState::Accepted && !progress.is_sent => {
                self.send_context(progress, &handoff.candidate_id, &accept_of(&handoff)).await
            }
            Ok(handoff) => end_of(&handoff),
            // A refused read says nothing about the outcome; mail may still bring it.
            Err(ClientError::Refused(_)) => None,
            Err(error) => Some(Err(error.into())),
        }
    }

    async fn take_letter(&self, letter: Letter, progress: &mut Progress) -> Option<End> {
        let delivered = &letter.delivered;
        let sender_id = delivered.envelope.sender_id.clone();
        let end = match delivered.kind() {
            MessageType::HandoffAccept if !progress.is_sent => {
                let wanted: v1::HandoffAccept = delivered.payload();
                let end = self.send_context(progress, &sender_id, &wanted).await;
                if let Some(Err(HandOverError::Client(ClientError::SessionEnded(_)))) = end {
                    return end; // left unanswered: the next process receives it
                }
                end
            }
            MessageType::HandoffReject => {
                let reject: v1::HandoffReject = delivered.payload();
                let (reason, text) = (reject.reason(), reject.reason_text.clone());
                // A resumed handoff already lists the earlier rejections.
                if progress.rejections.iter().all(|known| known.agent_id != sender_id) {
                    progress.rejections.push(Rejection { agent_id: sender_id, reason, text });
                }
                None
            }
            MessageType::HandoffComplete
                if delivered.payload::<v1::HandoffComplete>().outcome() == v1::HandoffOutcome::Success =>
            {
                Some(Ok(HandedOver {
                    handoff_id: progress.about.correlation_id.clone(),
                    task_id: progress.about.task_id.clone(),
                    owner_id: sender_id,
                    epoch: progress.about.epoch + 1,
                    rejections: std::mem::take(&mut progress.rejections),
                }))
            }
            MessageType::ErrorNotification => {
                let told: v1::ErrorNotification = delivered.payload();
                // KEEP_TASK tells the sender that the handoff has ended without success. DROP_TASK is for candidates
                // (SPEC 3).
                (told.next_step() == v1::NextStep::KeepTask).then(|| {
                    Err(HandOverError::Failed {
                        handoff_id: progress.about.correlation_id.clone(),
                        reason: name_of(told.error_code()),
                        message: told.error_message.clone(),
                        rejections: std::mem::take(&mut progress.rejections),
                    })
                })
            }
            // A second accept after the context was sent, or a failed completion: the broker's notification follows.
            _ => None,
        };
        letter.answer(Ok(()));
        end
    }

    /// Sends the context to the candidate, unless an earlier process has. `Some`: the handoff has ended.
    async fn send_context(&self, progress: &mut Progress, candidate: &str, accept: &v1::HandoffAccept) -> Option<End> {
        let task_id = progress.about.task_id.clone();
        let known = |name: &str, sha256: &[u8]| self.inner.known_sections.find(&task_id, name, sha256);
        let sections = sections::for_wishes(progress.sections.clone(), accept, known);
        let mut context = crate::context_of_sections(sections);
        let handoff_id = progress.about.correlation_id.clone();
        self.show(&handoff_id, v1::SenderView::ContextPreparing);
        let error = loop {
            match self.send(candidate, MessageType::TaskContextTransfer, &progress.about, &context).await {
                Ok(_) => {
                    progress.is_sent = true;
                    self.inner.known_sections.note(&task_id, &context.sections);
                    self.show(&handoff_id, v1::SenderView::AwaitingContextAck);
                    return None;
                }
                // The whole sections need no base.
                Err(error) if is_about_delta(&error) && has_delta(&context) => {
                    let sections = sections::for_wishes(progress.sections.clone(), accept, |_, _| None);
                    context = crate::context_of_sections(sections);
                }
                // Retries until the handoff times out: the broker then refuses the context for another reason.
                Err(ClientError::Refused(refused)) if refused.code == tonic::Code::ResourceExhausted => {
                    time::sleep(refused.retry_after.unwrap_or(UNCLAIMED_AFTER)).await;
                }
                Err(error) => break error,
            }
        };
        let ClientError::Refused(refused) = &error else { return Some(Err(error.into())) };
        match refused.reason.as_str() {
            "HANDOFF_STATE" | "HANDOFF_FINAL" | "HANDOFF_EXPIRED" | "STALE_EPOCH" => {
                match self.get_handoff(&progress.about.correlation_id).await {
                    Ok(handoff) if handoff.state() == HandoffState::ContextSent => {
                        progress.is_sent = true;
                        None
                    }
                    Ok(handoff) => Some(end_of(&handoff).unwrap_or(Err(error.into()))),
                    Err(_) => Some(Err(error.into())),
                }
            }
            // No retry can succeed. The cancel spares the candidate its timeout.
            _ => {
                let text = format!("there is no context: {error}");
                let reason_text = text[..text.floor_char_boundary(REASON_TEXT_MAX)].to_owned();
                let cancel = v1::HandoffCancel { reason_text };
                // If the cancel fails too, the handoff times out. The first error is the informative one.
                let _ = self.send(candidate, MessageType::HandoffCancel, &progress.about, &cancel).await;
                Some(Err(error.into()))
            }
        }
    }

    pub(super) async fn next_letter(&self, mail: &mut Conversation) -> Result<Letter, HandOverError> {
        tokio::select! {
            letter = mail.next() => letter.ok_or(HandOverError::Superseded),
            why = self.ended() => Err(ClientError::SessionEnded(why).into()),
        }
    }
}

/// The accept of a handoff, as far as the broker shows it: the names of the wanted sections.
fn accept_of(handoff: &v1::Handoff) -> v1::HandoffAccept {
    v1::HandoffAccept { wanted_sections: handoff.wanted_sections.clone(), ..Default::default() }
}

fn has_delta(context: &v1::TaskContextTransfer) -> bool {
    let is_delta = |section: &v1::ContextSection| matches!(section.content, Some(Content::Delta(_)));
    context.sections.iter().any(is_delta)
}

/// The task that a receipt gives to this agent. No handoff of it is open.
pub(super) fn task_of(link: &Link, receipt: &v1::Receipt) -> OwnedTask {
    OwnedTask {
        link: link.clone(),
        held: link.inner.work.hold(&receipt.task_id, receipt.epoch),
        task_id: receipt.task_id.clone(),
        status: receipt.task_status(),
        open_handoff_id: String::new(),
        is_resumed: false,
    }
}

/// The outcome of a handoff; `None` while it is open.
pub(super) fn end_of(handoff: &v1::Handoff) -> Option<End> {
    match handoff.state() {
        HandoffState::Unspecified
        | HandoffState::Requested
        | HandoffState::Deciding
        | HandoffState::Accepted
        | HandoffState::ContextSent => None,
        HandoffState::Completed => Some(Ok(HandedOver {
            handoff_id: handoff.handoff_id.clone(),
            task_id: handoff.task_id.clone(),
            owner_id: handoff.candidate_id.clone(),
            epoch: handoff.epoch + 1,
            rejections: rejections_of(handoff),
        })),
        HandoffState::Rejected | HandoffState::Failed | HandoffState::Cancelled => Some(Err(HandOverError::Failed {
            handoff_id: handoff.handoff_id.clone(),
            reason: name_of(handoff.error_code()),
            message: handoff.error_message.clone(),
            rejections: rejections_of(handoff),
        })),
    }
}

fn rejections_of(handoff: &v1::Handoff) -> Vec<Rejection> {
    let rejected = handoff.offers.iter().filter(|offer| offer.outcome() == v1::OfferOutcome::Rejected);
    let rejection = |offer: &v1::HandoffOffer| Rejection {
        agent_id: offer.candidate_id.clone(),
        reason: offer.reject_reason(),
        text: offer.reason_text.clone(),
    };
    rejected.map(rejection).collect()
}

/// The stable name of a code, as in docs/errors.md.
pub(super) fn name_of(code: v1::ErrorCode) -> String {
    code.as_str_name().trim_start_matches("ERROR_CODE_").to_owned()
}

//! Handoffs as calls: handing a task over and lending it, from the request to the end; taking one over; and finding what an
//! earlier process of the same agent has left. `docs/agent-restarts.md` has what happens where a process dies.

use std::time::Duration;

use prost::Message as _;
use tokio::time;

use super::{
    About, ClientError, Delivered, Link, NotTaken, compose,
    error::Refused,
    limits,
    waiting::{Conversation, Letter, Subject},
};
use crate::{
    codes::ErrorCode,
    proto::v1::{self, HandoffState, MessageType},
};

/// How long an accept stays away for which nothing waits in this process.
const UNCLAIMED_AFTER: Duration = Duration::from_secs(2);
/// After this long without mail a call asks the broker how its handoff stands: its end may have been told to another
/// process.
const LOOK_AFTER: Duration = Duration::from_secs(30);
/// The most tasks that are asked for at a time.
const TASKS_A_PAGE: u32 = 200;
/// The longest reason of a cancel, in bytes.
const REASON_TEXT_MAX: usize = 4096;

/// A task that has gone to another agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandedOver {
    /// The handoff.
    pub handoff_id: String,
    /// The task.
    pub task_id: String,
    /// The agent that owns the task now.
    pub owner_id: String,
    /// The epoch that began with that.
    pub epoch: u64,
    /// The candidates that were asked before and did not take it, oldest first.
    pub rejections: Vec<Rejection>,
}

/// A candidate that did not take a handoff.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// The candidate.
    pub candidate_id: String,
    /// Its reason.
    pub reason: v1::RejectReason,
    /// The reason in words; may be empty.
    pub text: String,
}

/// A loan that has ended: the task is this agent's again.
#[derive(Debug, Clone, PartialEq)]
pub struct Returned {
    /// The task.
    pub task_id: String,
    /// The epoch at which this agent owns it again.
    pub epoch: u64,
    /// The delegate's final status: COMPLETED, FAILED or CANCELED. The task itself is not final.
    pub status: v1::TaskStatus,
    /// What came out, if the delegate said.
    pub result: Option<prost_types::Struct>,
    /// The delegate's words; may be empty.
    pub details: String,
}

/// Why a task was not handed over.
#[derive(Debug, thiserror::Error)]
pub enum HandOverError {
    /// The handoff has ended, and the task is still this agent's, at the same epoch.
    #[error("handoff {handoff_id} has ended as {reason}: {message}")]
    Failed {
        /// The handoff.
        handoff_id: String,
        /// The stable reason, for example `NO_CANDIDATE`: docs/errors.md has them.
        reason: String,
        /// The same in words.
        message: String,
        /// The candidates that did not take it, oldest first.
        rejections: Vec<Rejection>,
    },
    /// A later call of this process waits for the same handoff.
    #[error("another call waits for the same handoff")]
    Superseded,
    /// The broker does not take the request or the context, or the agent has ended. Where it has ended the handoff goes on
    /// without it: [`Link::resume_hand_over`].
    #[error(transparent)]
    Client(#[from] ClientError),
}

/// A task that this agent owns, at one epoch. Once the task has gone, what is said of it is refused as `STALE_EPOCH`.
#[derive(Clone)]
pub struct OwnedTask {
    link: Link,
    /// The task.
    pub task_id: String,
    /// The epoch at which this agent owns it.
    pub epoch: u64,
    /// How it is doing, as far as the broker knew when this was made.
    pub status: v1::TaskStatus,
    /// The handoff that was open when this was made; empty if none was. See [`Link::resume_hand_over`].
    pub open_handoff_id: String,
}

impl std::fmt::Debug for OwnedTask {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("OwnedTask")
            .field("task_id", &self.task_id)
            .field("epoch", &self.epoch)
            .field("status", &self.status)
            .field("open_handoff_id", &self.open_handoff_id)
            .finish_non_exhaustive()
    }
}

impl OwnedTask {
    /// Says how the task is doing. Returns the broker's receipt.
    ///
    /// # Errors
    ///
    /// As [`Link::send`]; `STALE_EPOCH` once the task has gone, `TASK_FINAL` once it has ended.
    pub async fn report(&self, update: &v1::TaskStatusUpdate) -> Result<v1::Receipt, ClientError> {
        self.link.send("", MessageType::TaskStatusUpdate, &self.about(), update).await
    }

    /// Ends the task as COMPLETED, with what came out. A task that was lent goes back to the delegator with it.
    ///
    /// # Errors
    ///
    /// As [`Self::report`]; `HANDOFF_OPEN` while a handoff of the task is open.
    pub async fn finish(&self, result: Option<prost_types::Struct>) -> Result<v1::Receipt, ClientError> {
        let status = v1::TaskStatus::Completed.into();
        self.report(&v1::TaskStatusUpdate { status, result, ..Default::default() }).await
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
        self.link.hand_over(to, &self.about(), request, sections).await
    }

    /// Lends the task: see [`Link::delegate`].
    ///
    /// # Errors
    ///
    /// As [`Link::hand_over`].
    pub async fn delegate(
        &self,
        to: &str,
        request: &v1::HandoffRequest,
        sections: Vec<v1::ContextSection>,
    ) -> Result<Returned, HandOverError> {
        self.link.delegate(to, &self.about(), request, sections).await
    }

    fn about(&self) -> About {
        About::task(&self.task_id, self.epoch)
    }
}

/// Where a handoff of this agent stands, in the call that waits for its end.
struct Progress {
    about: About,
    sections: Vec<v1::ContextSection>,
    /// The context has its receipt.
    is_sent: bool,
    rejections: Vec<Rejection>,
}

/// How a handoff has ended.
type End = Result<HandedOver, HandOverError>;

impl Link {
    /// Takes the handoff of this request. That an earlier process of this agent has taken it already is no error; the
    /// context comes to the handler as a [`v1::TaskContextTransfer`], in this process or the next.
    ///
    /// # Errors
    ///
    /// As [`Link::send`]; `HANDOFF_EXPIRED`, `HANDOFF_FINAL` or `NOT_CANDIDATE` where the handoff has gone on without this
    /// agent.
    pub async fn accept(&self, request: &Delivered, accept: &v1::HandoffAccept) -> Result<(), ClientError> {
        let Err(error) = self.reply(request, MessageType::HandoffAccept, accept).await else { return Ok(()) };
        let Some(handoff) = self.after_refusal(&error, request.handoff_id()).await? else { return Err(error) };
        let is_taken =
            matches!(handoff.state(), HandoffState::Accepted | HandoffState::ContextSent | HandoffState::Completed);
        match is_taken && handoff.candidate_id == self.id().as_str() {
            true => Ok(()),
            false => Err(error),
        }
    }

    /// Does not take it. The next candidate is asked, if there is one.
    ///
    /// # Errors
    ///
    /// As [`Link::accept`].
    pub async fn reject(&self, request: &Delivered, reject: &v1::HandoffReject) -> Result<(), ClientError> {
        self.reply(request, MessageType::HandoffReject, reject).await.map(drop)
    }

    /// Takes a context over, with the digest computed from it: from then on the task is this agent's. That an earlier
    /// process of this agent has taken it over already is no error.
    ///
    /// # Errors
    ///
    /// As [`Link::accept`]; `CONTEXT_DIGEST_MISMATCH` where the context is not of the digest that its sender named.
    pub async fn complete(&self, context: &Delivered) -> Result<OwnedTask, ClientError> {
        let complete = compose::completion_of(&context.payload());
        let error = match self.reply(context, MessageType::HandoffComplete, &complete).await {
            Ok(receipt) => {
                return Ok(OwnedTask {
                    link: self.clone(),
                    task_id: receipt.task_id.clone(),
                    epoch: receipt.epoch,
                    status: receipt.task_status(),
                    open_handoff_id: String::new(),
                });
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
            true => Ok(self.owned(task)),
            false => Err(error), // it has gone on since
        }
    }

    /// The handoff, where this refusal may mean that an earlier process was quicker.
    async fn after_refusal(&self, error: &ClientError, handoff_id: &str) -> Result<Option<v1::Handoff>, ClientError> {
        match error.reason() {
            Some("HANDOFF_STATE" | "HANDOFF_FINAL") => self.get_handoff(handoff_id).await.map(Some),
            _ => Ok(None),
        }
    }

    /// Hands a task over, all of it: asks, sends the context to the agent that accepts, and waits for the end. `about` is the
    /// task and the epoch at which this agent owns it; a task that the broker does not know is made by this, at epoch 1.
    /// Of `sections` (at most 64, together at most one payload of 1 MiB) those are sent that the accept asks for, or all.
    ///
    /// It lasts as long as the handoff, at most its whole timeout, and needs [`Link::serve`] to run meanwhile. A process
    /// that dies leaves the handoff to its timeouts; the next one can go on by [`Link::resume_hand_over`], or has a provider:
    /// [`Handler::context`](super::Handler::context).
    ///
    /// ```no_run
    /// # async fn example(link: baton::client::Link) -> Result<(), baton::client::HandOverError> {
    /// use baton::{client::{About, context_of}, proto::v1};
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
    /// [`HandOverError::Failed`] where the handoff ends otherwise; [`HandOverError::Client`] where the broker does not take
    /// the request (as [`Link::send`]) or the context (then the handoff is cancelled), also before anything is sent where
    /// either is over the limits of the schema.
    pub async fn hand_over(
        &self,
        to: &str,
        about: &About,
        request: &v1::HandoffRequest,
        sections: Vec<v1::ContextSection>,
    ) -> Result<HandedOver, HandOverError> {
        let envelope = self.composer().compose(to, MessageType::HandoffRequest, about, request);
        let handoff_id = envelope.message_id.clone();
        let about = About::handoff(&about.task_id, about.epoch, &handoff_id);
        let context = compose::context_of_sections(sections);
        // To any agent: which one accepts is not known yet.
        let draft = self.composer().draft("candidate", MessageType::TaskContextTransfer, &about, &context);
        limits::check_envelope(&draft.encode_to_vec().into())?;
        // Before it is sent: the answer may be quicker than the receipt.
        let mail = self.inner.waiting.wait(Subject::Handoff(handoff_id));
        self.send_bytes(envelope.encode_to_vec().into()).await?;
        let progress = Progress { about, sections: context.sections, is_sent: false, rejections: Vec::new() };
        self.to_the_end(mail, progress).await
    }

    /// Goes on with a handoff that an earlier process of this agent asked for, whatever its state: sends the context where
    /// that is still wanted, and waits for the end. Where the handoff has ended already, it returns or fails at once.
    ///
    /// # Errors
    ///
    /// As [`Link::hand_over`]; `HANDOFF_UNKNOWN`, and `NOT_OWNER` where the handoff is of another sender.
    pub async fn resume_hand_over(
        &self,
        handoff_id: &str,
        sections: Vec<v1::ContextSection>,
    ) -> Result<HandedOver, HandOverError> {
        let mail = self.inner.waiting.wait(Subject::Handoff(handoff_id.to_owned()));
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
        // Not only when the accept comes: an earlier process may have acked it.
        if handoff.state() == HandoffState::Accepted
            && let Some(end) = self.send_context(&mut progress, &handoff.candidate_id, &handoff.wanted_sections).await
        {
            return end;
        }
        self.to_the_end(mail, progress).await
    }

    /// Lends a task and waits for what comes of it: as [`Link::hand_over`] in mode DELEGATE, then until the delegate's final
    /// status ends the loan. With that the task is this agent's again.
    ///
    /// It lasts as long as the delegate takes; bound it with `tokio::time::timeout`. Where the process dies during the loan,
    /// the final status comes to the next one's handler as a [`v1::TaskStatusUpdate`], and the task is in
    /// [`Link::owned_tasks`] again. A delegate that hands the task back by a handoff of its own sends no final status.
    ///
    /// # Errors
    ///
    /// As [`Link::hand_over`].
    pub async fn delegate(
        &self,
        to: &str,
        about: &About,
        request: &v1::HandoffRequest,
        sections: Vec<v1::ContextSection>,
    ) -> Result<Returned, HandOverError> {
        let lent = v1::HandoffRequest { mode: v1::HandoffMode::Delegate.into(), ..request.clone() };
        let mut results = self.inner.waiting.wait(Subject::Result(about.task_id.clone()));
        self.hand_over(to, about, &lent, sections).await?;
        loop {
            let letter = self.next_letter(&mut results).await?;
            let envelope = &letter.delivered.envelope;
            let update: v1::TaskStatusUpdate = letter.delivered.payload();
            let (task_id, epoch) = (envelope.task_id.clone(), envelope.epoch + 1);
            let is_back = match self.get_task(&task_id).await {
                // A delegate of the delegate may have named this agent: then the inner loan is over, and not this one.
                Ok(task) => task.owner_id == self.id().as_str(),
                Err(ClientError::Refused(_)) => true,
                Err(error) => return Err(error.into()),
            };
            letter.answer(Ok(()));
            if is_back {
                let (status, details) = (update.status(), update.details.clone());
                return Ok(Returned { task_id, epoch, status, result: update.result, details });
            }
        }
    }

    /// Every task that this agent owns and that is not final, newest first: what an earlier process may have left.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`]; [`ClientError::SessionEnded`] where the agent has ended. A broker that is away is waited for.
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
            if page.next_page_token == request.page_token {
                return Err(ClientError::Answer("the next page of the tasks is the same one".to_owned()));
            }
            request.page_token = page.next_page_token;
        }
    }

    /// A task as the broker has it.
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

    /// A handoff as the broker has it: state, both views, every step.
    ///
    /// # Errors
    ///
    /// As [`Link::owned_tasks`]; `HANDOFF_UNKNOWN`.
    pub async fn get_handoff(&self, handoff_id: &str) -> Result<v1::Handoff, ClientError> {
        let request = v1::GetHandoffRequest { handoff_id: handoff_id.to_owned() };
        let answer = self.ask(|client| {
            let request = request.clone();
            async move { client.answer(client.handoffs().get_handoff(request).await) }
        });
        answer.await?.handoff.ok_or_else(|| ClientError::Answer("there is no handoff in it".to_owned()))
    }

    fn owned(&self, task: v1::Task) -> OwnedTask {
        let (link, status) = (self.clone(), task.status());
        OwnedTask { link, task_id: task.task_id, epoch: task.epoch, status, open_handoff_id: task.open_handoff_id }
    }

    /// An accept that no call of this process waits for, and for which there is no provider: it comes again until a call
    /// does, or the handoff is over.
    pub(super) async fn take_unclaimed(&self, accept: &Delivered) -> Result<(), NotTaken> {
        match self.get_handoff(accept.handoff_id()).await {
            Ok(handoff) if end_of(&handoff).is_some() || handoff.state() == HandoffState::ContextSent => Ok(()),
            // Its time is over, and it was removed.
            Err(error) if matches!(error.reason(), Some("HANDOFF_UNKNOWN" | "PERMISSION_DENIED")) => Ok(()),
            Ok(_) => {
                let text = "nothing in this process waits for this accept yet".to_owned();
                Err(NotTaken::GivenBack(UNCLAIMED_AFTER, text))
            }
            Err(error) => Err(NotTaken::GivenBack(UNCLAIMED_AFTER, error.to_string())),
        }
    }

    /// Sends the context that a provider has given for this accept.
    pub(super) async fn send_provided(
        &self,
        accept: &Delivered,
        sections: Vec<v1::ContextSection>,
    ) -> Result<(), NotTaken> {
        let mut progress = Progress { about: accept.about(), sections, is_sent: false, rejections: Vec::new() };
        let wanted = accept.payload::<v1::HandoffAccept>().wanted_sections;
        match self.send_context(&mut progress, &accept.envelope.sender_id, &wanted).await {
            None | Some(Ok(_)) => Ok(()),
            Some(Err(HandOverError::Client(error @ ClientError::SessionEnded(_)))) => Err(error.into()),
            Some(Err(error)) => Err(NotTaken::TooLate(error.to_string())),
        }
    }

    /// Goes through the mail of a handoff to its end.
    async fn to_the_end(&self, mut mail: Conversation, mut progress: Progress) -> End {
        loop {
            let letter = match time::timeout(LOOK_AFTER, self.next_letter(&mut mail)).await {
                Ok(letter) => letter?,
                Err(_) => match self.get_handoff(&progress.about.correlation_id).await {
                    Ok(handoff) => match end_of(&handoff) {
                        Some(end) => return end,
                        None => continue,
                    },
                    Err(ClientError::Refused(_)) => continue,
                    Err(error) => return Err(error.into()),
                },
            };
            if let Some(end) = self.take_letter(letter, &mut progress).await {
                return end;
            }
        }
    }

    async fn take_letter(&self, letter: Letter, progress: &mut Progress) -> Option<End> {
        let delivered = &letter.delivered;
        let sender_id = delivered.envelope.sender_id.clone();
        let end = match delivered.kind() {
            MessageType::HandoffAccept if !progress.is_sent => {
                let wanted = delivered.payload::<v1::HandoffAccept>().wanted_sections;
                let end = self.send_context(progress, &sender_id, &wanted).await;
                if let Some(Err(HandOverError::Client(ClientError::SessionEnded(_)))) = end {
                    return end; // without an answer: the next process gets it
                }
                end
            }
            MessageType::HandoffReject => {
                let reject: v1::HandoffReject = delivered.payload();
                let (reason, text) = (reject.reason(), reject.reason_text.clone());
                // Known already where the handoff was resumed.
                if progress.rejections.iter().all(|known| known.candidate_id != sender_id) {
                    progress.rejections.push(Rejection { candidate_id: sender_id, reason, text });
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
                (told.next_step() == v1::NextStep::KeepTask).then(|| {
                    Err(HandOverError::Failed {
                        handoff_id: progress.about.correlation_id.clone(),
                        reason: name_of(told.error_code()),
                        message: told.error_message.clone(),
                        rejections: std::mem::take(&mut progress.rejections),
                    })
                })
            }
            // A context that was sent already; a candidate that could not take over, of which the broker's word follows.
            _ => None,
        };
        letter.answer(Ok(()));
        end
    }

    /// Sends the context to the candidate, unless an earlier process has. `Some`: the handoff is over.
    async fn send_context(&self, progress: &mut Progress, candidate: &str, wanted: &[String]) -> Option<End> {
        let is_wanted = |section: &&v1::ContextSection| wanted.is_empty() || wanted.contains(&section.name);
        let sections = progress.sections.iter().filter(is_wanted).cloned().collect();
        let context = compose::context_of_sections(sections);
        let error = loop {
            match self.send(candidate, MessageType::TaskContextTransfer, &progress.about, &context).await {
                Ok(_) => {
                    progress.is_sent = true;
                    return None;
                }
                // For as long as the handoff has time.
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
            // No further try can do better: the candidate is not to wait for its timeout.
            _ => {
                let text = format!("there is no context: {error}");
                let reason_text = text[..text.floor_char_boundary(REASON_TEXT_MAX)].to_owned();
                let cancel = v1::HandoffCancel { reason_text };
                // Where this fails too the handoff ends by its timeout; the first error says more.
                let _ = self.send(candidate, MessageType::HandoffCancel, &progress.about, &cancel).await;
                Some(Err(error.into()))
            }
        }
    }

    async fn next_letter(&self, mail: &mut Conversation) -> Result<Letter, HandOverError> {
        tokio::select! {
            letter = mail.next() => letter.ok_or(HandOverError::Superseded),
            why = self.ended() => Err(ClientError::SessionEnded(why).into()),
        }
    }
}

/// How a handoff has ended, if it has.
fn end_of(handoff: &v1::Handoff) -> Option<End> {
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
        candidate_id: offer.candidate_id.clone(),
        reason: offer.reject_reason(),
        text: offer.reason_text.clone(),
    };
    rejected.map(rejection).collect()
}

/// The stable name of a code, as docs/errors.md has it.
fn name_of(code: v1::ErrorCode) -> String {
    code.as_str_name().trim_start_matches("ERROR_CODE_").to_owned()
}

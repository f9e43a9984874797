//! Handoffs at their candidate, for the handler of an [`Agent`](crate::Agent): an offer, and the takeover of its task.

use std::{
    pin::Pin,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::sync::oneshot;

use super::{
    ClientError, Delivered, HandOverError, Link, NotTaken, OwnedTask, Recalled, SubtaskInputs, Takeover,
    contexts::Origin,
    handoffs::{end_of, name_of},
    serve,
    waiting::{Conversation, Letter, Subject},
};
use crate::{
    compose,
    proto::v1::{self, HandoffState, MessageType, context_section::Content},
};

/// An offer of a task to this agent: [`Self::accept`] or [`Self::reject`] it.
///
/// The delivery is extended while the handler decides. After a crash or a failure of the handler the offer comes again.
pub struct Offer {
    /// The handoff id.
    pub handoff_id: String,
    /// The task id.
    pub task_id: String,
    /// The agent that owns the task and offers it.
    pub sender_id: String,
    /// The epoch of the task at its present owner.
    pub epoch: u64,
    link: Link,
    start: Start,
    letter: OpenLetter,
}

/// What the offer begins with.
enum Start {
    /// A request of a handoff, or an award.
    Request(Box<Delivered>, Box<v1::HandoffRequest>),
    /// The context of a handoff that an earlier process of this agent has accepted.
    Context(Box<Delivered>),
    /// A task that this agent owns, and that none of its processes works on.
    Resumed(Box<OwnedTask>, Box<v1::TaskContextTransfer>),
}

/// The letter of a context without an answer. The handler and the takeover share it.
#[derive(Clone, Default)]
pub(super) struct OpenLetter(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    letter: Option<Letter>,
    /// Whether the offer was accepted or rejected.
    is_decided: bool,
    /// Gets the watch of the task that is taken over.
    taken: Option<oneshot::Sender<Watch>>,
}

/// Completes when the task is taken from this agent.
type Watch = Pin<Box<dyn Future<Output = Recalled> + Send>>;

impl OpenLetter {
    fn put(&self, letter: Letter) {
        self.0.lock().expect("no holder panics").letter = Some(letter);
    }

    /// Answers the letter, unless it is answered.
    pub(super) fn answer(&self, verdict: Result<(), NotTaken>) {
        let letter = self.0.lock().expect("no holder panics").letter.take();
        if let Some(letter) = letter {
            letter.answer(verdict);
        }
    }

    fn decide(&self) {
        self.0.lock().expect("no holder panics").is_decided = true;
    }

    /// Has the handler end with the task.
    fn take(&self, task: &OwnedTask) {
        let taken = self.0.lock().expect("no holder panics").taken.take();
        if let Some(taken) = taken {
            // Fails if the handler has returned, and the takeover lives on elsewhere.
            let _ = taken.send(Box::pin(task.recalled()));
        }
    }

    /// Completes when the task of this offer is taken from this agent, after its takeover.
    fn recalled(&self) -> impl Future<Output = Recalled> + Send + use<> {
        let (taken, watch) = oneshot::channel();
        self.0.lock().expect("no holder panics").taken = Some(taken);
        async move {
            match watch.await {
                Ok(recalled) => recalled.await,
                // The offer was dropped without a takeover.
                Err(_) => std::future::pending().await,
            }
        }
    }

    pub(super) fn is_decided(&self) -> bool {
        self.0.lock().expect("no holder panics").is_decided
    }
}

impl std::fmt::Debug for Offer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Offer")
            .field("handoff_id", &self.handoff_id)
            .field("task_id", &self.task_id)
            .field("sender_id", &self.sender_id)
            .field("epoch", &self.epoch)
            .finish_non_exhaustive()
    }
}

impl Offer {
    /// The offer by this message: a request, an award, or the context of a handoff that was accepted before.
    pub(super) fn of(link: Link, delivered: Delivered) -> Self {
        let (handoff_id, task_id) = (delivered.handoff_id().to_owned(), delivered.envelope.task_id.clone());
        let (sender_id, epoch) = (delivered.counterpart(), delivered.envelope.epoch);
        let start = match delivered.handoff_request() {
            Some(request) => Start::Request(Box::new(delivered), Box::new(request)),
            None => Start::Context(Box::new(delivered)),
        };
        Self { handoff_id, task_id, sender_id, epoch, link, start, letter: OpenLetter::default() }
    }

    pub(super) fn resumed(link: Link, task: OwnedTask, context: v1::TaskContextTransfer) -> Self {
        Self {
            handoff_id: String::new(),
            task_id: task.task_id.clone(),
            sender_id: link.id().to_string(),
            epoch: task.epoch(),
            link,
            start: Start::Resumed(Box::new(task), Box::new(context)),
            letter: OpenLetter::default(),
        }
    }

    pub(super) fn letter(&self) -> OpenLetter {
        self.letter.clone()
    }

    /// Completes when the task is taken from this agent.
    pub(super) fn recalled(&self) -> impl Future<Output = Recalled> + Send + use<> {
        self.letter.recalled()
    }

    /// The link of the agent.
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// The request; `None` if an earlier process of this agent has accepted it.
    pub fn request(&self) -> Option<&v1::HandoffRequest> {
        match &self.start {
            Start::Request(_, request) => Some(request),
            Start::Context(_) | Start::Resumed(..) => None,
        }
    }

    /// The summary of the request, for people; empty if an earlier process of this agent has accepted it.
    pub fn summary(&self) -> &str {
        self.request().map_or("", |request| &request.initial_context_summary)
    }

    /// Whether this agent owns the task already: an earlier process took it over, and no process works on it. What that
    /// process did for it may be done already.
    pub fn is_resumed(&self) -> bool {
        matches!(self.start, Start::Resumed(..))
    }

    /// The subtask of a plan that is offered; `None` if the handoff carries out no subtask. The inputs come with the
    /// context: see [`Takeover::subtask`].
    pub fn subtask(&self) -> Option<SubtaskInputs> {
        match &self.start {
            Start::Request(delivered, _) => delivered.subtask(),
            Start::Context(_) | Start::Resumed(..) => None,
        }
    }

    /// Accepts the handoff, and waits for the whole context. Returns at once if an earlier process has accepted.
    ///
    /// # Errors
    ///
    /// [`HandOverError::Failed`] if the handoff ends before the context arrives; [`HandOverError::Client`] if the accept
    /// is too late.
    pub async fn accept(self) -> Result<Takeover, HandOverError> {
        self.accept_with(&v1::HandoffAccept::default()).await
    }

    /// The same for the sections that this accept names, and with its estimate.
    ///
    /// # Errors
    ///
    /// As [`Self::accept`].
    pub async fn accept_with(self, accept: &v1::HandoffAccept) -> Result<Takeover, HandOverError> {
        let context = match self.start {
            Start::Request(ref request, _) => {
                // Wait before sending: the context can arrive ahead of the receipt.
                let mut mail = self.link.inner.waiting.wait_alone(Subject::Context(self.handoff_id.clone()))?;
                self.link.accept(request, accept).await?;
                self.letter.decide();
                // The broker has the accept: from here on a later process goes on with the context.
                serve::ack_early();
                self.next_context(&mut mail).await?
            }
            Start::Context(delivered) => *delivered,
            Start::Resumed(task, context) => {
                self.letter.decide();
                let (link, task_id) = (self.link, self.task_id);
                self.letter.take(&task);
                return Ok(Takeover { link, task_id, context: *context, origin: Origin::Resumed(task) });
            }
        };
        self.letter.decide();
        let takeover = self.link.takeover(&context);
        Ok(Takeover { origin: Origin::Message(Box::new(context), self.letter), ..takeover })
    }

    /// Rejects the handoff. The broker asks the next candidate, if one remains. The text has at most 4096 bytes.
    ///
    /// # Errors
    ///
    /// As [`Link::reject`].
    pub async fn reject(self, reason: v1::RejectReason, text: &str) -> Result<(), ClientError> {
        let reject = v1::HandoffReject { reason: reason.into(), reason_text: text.to_owned(), ..Default::default() };
        self.reject_with(&reject).await
    }

    /// The same with all that a reject can say. A handoff that an earlier process has accepted fails, with the text as the
    /// reason, and a resumed task ends as FAILED: see [`Takeover::fail`].
    ///
    /// # Errors
    ///
    /// As [`Link::reject`].
    pub async fn reject_with(self, reject: &v1::HandoffReject) -> Result<(), ClientError> {
        self.letter.decide();
        match &self.start {
            Start::Request(request, _) => self.link.reject(request, reject).await,
            Start::Context(context) => self.link.takeover(context).fail(&reject.reason_text).await,
            Start::Resumed(task, _) => task.fail(&reject.reason_text).await.map(drop),
        }
    }

    /// Waits for the context of an accepted handoff.
    async fn next_context(&self, mail: &mut Conversation) -> Result<Delivered, HandOverError> {
        let failed = |reason: String, message: String| HandOverError::Failed {
            handoff_id: self.handoff_id.clone(),
            reason,
            message,
            rejections: Vec::new(),
        };
        let (mut looks, mut was_sent) = (self.link.looks(), false);
        loop {
            let letter = tokio::select! {
                biased;
                letter = self.link.next_letter(mail) => letter?,
                () = looks.due() => {
                    // Another process of this agent may have got the mail. The delivery to this one arrives by the next look.
                    match self.look().await? {
                        Some(context) if was_sent => return Ok(context),
                        found => was_sent = found.is_some(),
                    }
                    continue;
                }
            };
            match letter.delivered.kind() {
                MessageType::TaskContextTransfer => {
                    let context = letter.delivered.clone();
                    self.letter.put(letter);
                    return Ok(context);
                }
                MessageType::HandoffCancel => {
                    let cancel: v1::HandoffCancel = letter.delivered.payload();
                    letter.answer(Ok(()));
                    return Err(failed("HANDOFF_CANCELLED".to_owned(), cancel.reason_text));
                }
                _ => {
                    let told: v1::ErrorNotification = letter.delivered.payload();
                    letter.answer(Ok(()));
                    return Err(failed(name_of(told.error_code()), told.error_message));
                }
            }
        }
    }

    /// Reads the handoff. Returns the context, if the broker has it.
    async fn look(&self) -> Result<Option<Delivered>, HandOverError> {
        let (handoff, context) = match self.link.handoff_with_context(&self.handoff_id).await {
            Ok(found) => found,
            // A refused read says nothing about the outcome; mail may still bring it.
            Err(ClientError::Refused(_)) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        if let Some(Err(ended)) = end_of(&handoff) {
            return Err(ended);
        }
        if handoff.candidate_id != self.link.id().as_str() {
            return Err(HandOverError::Failed {
                handoff_id: self.handoff_id.clone(),
                reason: "OFFER_WITHDRAWN".to_owned(),
                message: format!("the candidate is {} now", handoff.candidate_id),
                rejections: Vec::new(),
            });
        }
        if handoff.state() != HandoffState::ContextSent || context.is_empty() {
            return Ok(None);
        }
        let envelope = self.link.verified(context.clone()).await?;
        let delivery =
            v1::Delivery { envelope: context, handoff_id: self.handoff_id.clone(), ..v1::Delivery::default() };
        Ok(Some(Delivered { delivery, envelope }))
    }
}

impl Takeover {
    /// The id of the task.
    pub fn task_id(&self) -> &str {
        &self.task_id
    }

    /// Whether this agent owns the task already: see [`Offer::is_resumed`].
    pub fn is_resumed(&self) -> bool {
        matches!(self.origin, Origin::Resumed(_))
    }

    /// Parses a JSON section of the message. [`Self::section`] also gets what the message does not have.
    ///
    /// # Errors
    ///
    /// [`ClientError::Section`] if the message does not have it, or if it is not JSON of this type.
    pub fn json<T: serde::de::DeserializeOwned>(&self, name: &str) -> Result<T, ClientError> {
        let wrong = |problem: String| ClientError::Section { name: name.to_owned(), problem };
        let found = self.context.sections.iter().find(|section| section.name == name);
        match found.map(|section| &section.content) {
            Some(Some(Content::Json(text))) => {
                serde_json::from_str(text).map_err(|error| wrong(format!("is not as it was asked for: {error}")))
            }
            Some(_) => Err(wrong("did not come as JSON".to_owned())),
            None => Err(wrong("is not there".to_owned())),
        }
    }

    /// The inputs of a subtask; `None` if the handoff carries out no subtask of a plan.
    pub fn subtask(&self) -> Option<SubtaskInputs> {
        SubtaskInputs::of(&self.context)
    }

    /// Takes the task over: from here on this agent owns it. Of a resumed task it returns the task, and sends nothing.
    ///
    /// # Errors
    ///
    /// As [`Link::complete`].
    pub async fn complete(&self) -> Result<OwnedTask, ClientError> {
        match &self.origin {
            Origin::Message(context, letter) => {
                let task = self.link.complete(context).await?;
                letter.take(&task);
                letter.answer(Ok(()));
                // The handler of a context that an earlier process waited for has the context as its own message.
                serve::ack_early();
                Ok(task)
            }
            Origin::Resumed(task) => Ok((**task).clone()),
        }
    }

    /// Refuses the context: the handoff fails with this reason, and the sender keeps the task. A resumed task ends as
    /// FAILED.
    ///
    /// # Errors
    ///
    /// As [`Link::complete`].
    pub async fn fail(&self, details: &str) -> Result<(), ClientError> {
        match &self.origin {
            Origin::Message(context, letter) => {
                let failed = v1::HandoffComplete {
                    outcome: v1::HandoffOutcome::Failure.into(),
                    details: details.to_owned(),
                    ..Default::default()
                };
                self.link.reply(context, MessageType::HandoffComplete, &failed).await?;
                letter.answer(Ok(()));
                Ok(())
            }
            Origin::Resumed(task) => task.fail(details).await.map(drop),
        }
    }
}

impl OwnedTask {
    /// Reports that the work goes on: IN_PROGRESS, with these details and the progress from 0 to 1.
    ///
    /// # Errors
    ///
    /// As [`Self::report`]; `FIELD_INVALID` for a progress outside of 0 to 1.
    pub async fn progress(&self, details: &str, progress: f64) -> Result<v1::Receipt, ClientError> {
        let status = v1::TaskStatus::InProgress.into();
        let details = details.to_owned();
        self.report(&v1::TaskStatusUpdate { status, details, progress: Some(progress), ..Default::default() }).await
    }

    /// Ends the task as COMPLETED, with these names and values as the result: see [`Self::finish`].
    ///
    /// # Errors
    ///
    /// As [`Self::finish`].
    pub async fn finish_with<K: Into<String>, V: Into<serde_json::Value>>(
        &self,
        result: impl IntoIterator<Item = (K, V)>,
    ) -> Result<v1::Receipt, ClientError> {
        self.finish(Some(compose::result_of(result))).await
    }

    /// Asks that the loan by which this agent has the task is due this much later than now, with an IN_PROGRESS status.
    /// The limit is the request's `loan_timeout_max`, from the takeover on; a longer time counts as that limit, and a time
    /// that is no later changes nothing.
    ///
    /// # Errors
    ///
    /// As [`Self::report`]; [`ClientError::Refused`] if the loan cannot be extended.
    pub async fn extend(&self, by: Duration, details: &str) -> Result<v1::Receipt, ClientError> {
        let status = v1::TaskStatus::InProgress.into();
        let (details, extend_by) = (details.to_owned(), prost_types::Duration::try_from(by).ok());
        self.report(&v1::TaskStatusUpdate { status, details, extend_by, ..Default::default() }).await
    }

    /// Ends the task as CANCELED. Its open parts are cancelled with it, down the tree, unless `keep_parts`.
    ///
    /// # Errors
    ///
    /// As [`Self::report`].
    pub async fn cancel(&self, details: &str, keep_parts: bool) -> Result<v1::Receipt, ClientError> {
        let status = v1::TaskStatus::Canceled.into();
        self.report(&v1::TaskStatusUpdate { status, details: details.to_owned(), keep_parts, ..Default::default() })
            .await
    }
}

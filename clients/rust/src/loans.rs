//! Lent tasks: the wait for a delegate's result, and the ways in which the task comes back without one.

use std::time::Duration;

use prost::Message as _;
use tokio::{runtime::Handle, sync::oneshot, time};

use super::{
    About, ClientError, Delivered, HandOverError, HandedOver, Link, OwnedTask,
    compose::value_in,
    error::Refused,
    handoffs::{end_of, task_of},
    limits, progress,
    waiting::{Conversation, Letter, Subject, Taken},
};
use crate::{
    codes::ErrorCode,
    ids::AgentId,
    proto::v1::{self, HandoffState, MessageType, custody_entry::Event},
};

/// The loan timeout of [`Link::delegate`] if neither the request nor the call names a time.
pub const LOAN_TIMEOUT: Duration = Duration::from_secs(3600);
const LOAN_TIMEOUT_MIN: Duration = Duration::from_secs(1);
const LOAN_TIMEOUT_MAX: Duration = Duration::from_secs(30 * 24 * 3600);
/// The broker's whole timeout of a handoff, if the request names none.
const WHOLE_TIMEOUT: Duration = Duration::from_secs(360);
/// The broker's timeouts end a delegation. This is the time for the news of it.
const NEWS_TIME: Duration = Duration::from_secs(60);
/// The entries of a custody log that one call reads.
const ENTRIES_A_PAGE: u32 = 1000;
pub(super) const TAKE_BACK_TIME: Duration = Duration::from_secs(10);
pub(super) const ATTEMPTS_MAX: usize = 10;
pub(super) const ATTEMPT_WAIT: Duration = Duration::from_millis(200);

/// A delegation that has ended: this agent owns the task again.
#[derive(Debug, Clone, PartialEq)]
pub struct Returned {
    /// The task id.
    pub task_id: String,
    /// The epoch at which this agent owns it again.
    pub epoch: u64,
    /// The delegate's final status: COMPLETED, FAILED or CANCELED; another status if a handoff returned the task
    /// unfinished. The task itself is not final.
    pub status: v1::TaskStatus,
    /// The result, if the delegate sent one.
    pub result: Option<serde_json::Value>,
    /// The delegate's details; may be empty.
    pub details: String,
}

/// The reason why a lent task came back without a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecallReason {
    /// The loan timeout passed, and the broker recalled the task.
    LoanTimeout,
    /// The time limit of [`Link::delegate`] passed, and the client recalled the task.
    Deadline,
    /// A [`Link::recall`] by this agent, or by an agent that had lent the task to it.
    Recall,
    /// An operator reassigned the task.
    Reassigned,
    /// The agent that had the task gave no sign of work for the request's `silence_timeout`, or was gone.
    Abandoned,
    /// The task was cancelled, for example with the task that it is a part of.
    Canceled,
}

impl RecallReason {
    /// The stable name: `LOAN_TIMEOUT`, `DEADLINE`, `RECALL`, `REASSIGNED`, `ABANDONED` or `CANCELED`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::LoanTimeout => "LOAN_TIMEOUT",
            Self::Deadline => "DEADLINE",
            Self::Recall => "RECALL",
            Self::Reassigned => "REASSIGNED",
            Self::Abandoned => "ABANDONED",
            Self::Canceled => "CANCELED",
        }
    }

    /// The reason of a notice with this code; `None` for the code of any other notice.
    const fn of(code: v1::ErrorCode) -> Option<Self> {
        match code {
            v1::ErrorCode::TaskRecalled => Some(Self::Recall),
            v1::ErrorCode::TaskReassigned => Some(Self::Reassigned),
            v1::ErrorCode::TaskAbandoned => Some(Self::Abandoned),
            v1::ErrorCode::TaskCanceled => Some(Self::Canceled),
            _ => None,
        }
    }
}

/// A task that was taken from this agent: another agent recalled it, its loan timeout passed, it was abandoned or
/// cancelled, or an operator reassigned it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recalled {
    /// The task id.
    pub task_id: String,
    /// The handoff that lent the task, to this agent or before it; for a candidate the handoff that the recall
    /// cancelled; for a reassigned task the handoff by which it goes on.
    pub handoff_id: String,
    /// The epoch after the recall. The broker refuses messages about the task of a lower one.
    pub epoch: u64,
    /// Why. `Recall` also stands for the loan timeout, at which the broker recalls the task.
    pub reason: RecallReason,
    /// The explanation as text.
    pub message: String,
}

impl Recalled {
    /// What the broker took from this agent by this message; `None` for any other message.
    pub(super) fn of(delivered: &Delivered) -> Option<Self> {
        let (reason, told) = notice_of(delivered)?;
        (told.next_step() == v1::NextStep::DropTask).then(|| Self {
            task_id: delivered.envelope.task_id.clone(),
            handoff_id: delivered.handoff_id().to_owned(),
            epoch: delivered.envelope.epoch,
            reason,
            message: told.error_message,
        })
    }

    /// The stable name of the code of its notice.
    pub(super) const fn code(&self) -> &'static str {
        match self.reason {
            RecallReason::Reassigned => "TASK_REASSIGNED",
            RecallReason::Abandoned => "TASK_ABANDONED",
            RecallReason::Canceled => "TASK_CANCELED",
            RecallReason::LoanTimeout | RecallReason::Deadline | RecallReason::Recall => "TASK_RECALLED",
        }
    }
}

/// The broker's notice that a task has been taken from an agent or has come back to one; `None` for any other message.
pub(super) fn notice_of(delivered: &Delivered) -> Option<(RecallReason, v1::ErrorNotification)> {
    let is_notice = delivered.kind() == MessageType::ErrorNotification
        && delivered.envelope.sender_id == AgentId::broker().as_str();
    let told: v1::ErrorNotification = is_notice.then(|| delivered.payload())?;
    RecallReason::of(told.error_code()).map(|reason| (reason, told))
}

/// The loan that a call of [`Link::delegate`] waits for.
struct Loan {
    task_id: String,
    handoff_id: String,
    /// The epoch of the delegate.
    epoch: u64,
}

impl Loan {
    fn recalled(&self, reason: RecallReason, message: &str, epoch: u64, is_owner: bool) -> HandOverError {
        HandOverError::Recalled {
            task_id: self.task_id.clone(),
            handoff_id: self.handoff_id.clone(),
            reason,
            message: message.to_owned(),
            epoch,
            is_owner,
        }
    }
}

impl OwnedTask {
    /// Completes when the task is recalled from this agent; never, if it is not. The watch begins with this call, not
    /// with the first poll.
    ///
    /// ```no_run
    /// # async fn work() {}
    /// # fn example(task: baton_client::OwnedTask) {
    /// let recalled = task.recalled();
    /// tokio::spawn(async move {
    ///     tokio::select! {
    ///         () = work() => drop(task.finish(None).await),
    ///         recalled = recalled => println!("stopped: {}", recalled.message),
    ///     }
    /// });
    /// # }
    /// ```
    pub fn recalled(&self) -> impl Future<Output = Recalled> + Send + 'static {
        let watch = self.link().inner.waiting.watch(&self.task_id, self.epoch(), false);
        async move {
            match watch.await {
                Ok(taken) => taken.recalled,
                Err(_) => std::future::pending().await, // the link has ended, and learns of no recall any more
            }
        }
    }
}

/// Takes the task back if its call of [`Link::delegate`] is dropped.
struct TakeBackOnDrop {
    link: Link,
    /// `None`: the call has ended.
    request: Option<v1::Envelope>,
}

impl Drop for TakeBackOnDrop {
    fn drop(&mut self) {
        let (Some(request), Ok(runtime)) = (self.request.take(), Handle::try_current()) else { return };
        let link = self.link.clone();
        runtime.spawn(async move {
            if let Err(error) = link.take_back(&request, "the delegating call was dropped").await {
                tracing::warn!(task_id = %request.task_id, %error, "the loan ends by its timeout");
            }
        });
    }
}

impl Link {
    /// Delegates a task and waits for its return: runs [`Link::hand_over`] in mode DELEGATE, then waits for the final
    /// status by which the delegate ends the delegation. This agent then owns the task again, at the next epoch.
    ///
    /// `limit` is for the whole call. The request's `loan_timeout`, 1 s to 30 days, is the time after the completion at
    /// which the broker returns the task without a result; if unset, it is `limit`, or [`LOAN_TIMEOUT`] without one. At
    /// the limit the link takes the task back: it recalls it, or cancels a handoff that is still open, for at most
    /// 10 s. If the call is dropped, the link does the same in a task of its own. Without `limit` the whole timeout of
    /// the handoff and the loan timeout bound the call.
    ///
    /// If the process dies during the delegation, the next one goes on by [`Link::wait_for_loan`]. Without it, the final
    /// status reaches the next process's handler as a [`v1::TaskStatusUpdate`], and the task is listed by
    /// [`Link::owned_tasks`] again.
    ///
    /// # Errors
    ///
    /// [`HandOverError::Recalled`] if the task came back without a result. [`HandOverError::Failed`] if the task was
    /// not lent: `NO_CANDIDATE` after rejections, `HANDOFF_CANCELLED` at the limit. Others as [`Link::hand_over`]: also
    /// `HANDOFF_OPEN` while another call waits for the task of this epoch.
    pub async fn delegate(
        &self,
        to: &str,
        about: &About,
        request: &v1::HandoffRequest,
        sections: Vec<v1::ContextSection>,
        limit: Option<Duration>,
    ) -> Result<Returned, HandOverError> {
        // Then the broker's loan timeout is the limit of the call, and either of the two may pass first.
        let is_one_time = request.loan_timeout.is_none() && limit.is_some();
        let (lent, limit) = loan_of(request, limit);
        let lent = self.as_part(about, &lent);
        let envelope = self.composer().compose(to, MessageType::HandoffRequest, about, &lent);
        self.delegate_by(envelope, sections, limit, is_one_time).await
    }

    /// Delegates a task by this signed request, whose loan timeout is `limit` if `is_one_time`.
    pub(super) async fn delegate_by(
        &self,
        envelope: v1::Envelope,
        sections: Vec<v1::ContextSection>,
        limit: Duration,
        is_one_time: bool,
    ) -> Result<Returned, HandOverError> {
        let mut guard = TakeBackOnDrop { link: self.clone(), request: Some(envelope.clone()) };
        let ended = match time::timeout(limit, self.lend(&envelope, sections)).await {
            Ok(ended) if is_one_time => by_limit(ended, &[RecallReason::LoanTimeout]),
            Ok(ended) => ended,
            // The news of a loan that has ended by then may be on its way: the limit has ended this call before it.
            Err(_) => by_limit(self.end_at_limit(&envelope).await, &[RecallReason::Recall, RecallReason::LoanTimeout]),
        };
        guard.request = None;
        self.note_return(&ended);
        ended
    }

    /// Waits for the return of a task that a handoff of this agent lends, also one of an earlier process. Returns or fails
    /// as [`Link::delegate`], also when the loan has ended meanwhile. Of a handoff that is still open, the sections go to
    /// the agent that accepts; with `None` the context handler gives them, or another call. The end of this wait ends
    /// nothing: a dropped call leaves the loan as it is, and the call has no time limit of its own. A link made by
    /// [`Link::with_progress`] tells the delegate's status updates from the takeover on.
    ///
    /// # Errors
    ///
    /// As [`Link::delegate`]; `HANDOFF_UNKNOWN`; `NOT_OWNER` if another agent requested the handoff; `NOT_LENT` if it lends
    /// nothing, or if the task has been handed on since the loan ended; `HANDOFF_OPEN` while another call of this process
    /// waits for the task.
    pub async fn wait_for_loan(
        &self,
        handoff_id: &str,
        sections: Option<Vec<v1::ContextSection>>,
    ) -> Result<Returned, HandOverError> {
        let handoff = self.get_handoff(handoff_id).await?;
        if handoff.sender_id != self.id().as_str() {
            let text = format!("handoff {handoff_id} is of {}, not of this agent", handoff.sender_id);
            return Err(ClientError::from(Refused::of_client(ErrorCode::NotOwner, text)).into());
        }
        if handoff.mode() != v1::HandoffMode::Delegate {
            return Err(not_lent(format!("handoff {handoff_id} hands the task over for good")));
        }
        let loan =
            Loan { task_id: handoff.task_id.clone(), handoff_id: handoff_id.to_owned(), epoch: handoff.epoch + 1 };
        // Wait before the state is read: the delegate may report its final status in between.
        let mut results = Some(self.inner.waiting.wait_alone(Subject::Result(loan.task_id.clone()))?);
        let mut watch = self.inner.waiting.watch(&loan.task_id, handoff.epoch, true);
        self.lent_by(handoff, sections).await?;
        let is_over = !self.is_lent(&loan).await?;
        let telling = self.tell_progress(&loan.task_id, loan.epoch);
        let returned = self.end_of_loan(&loan, &mut results, &mut watch, is_over).await;
        if returned.is_ok() {
            progress::told(telling).await;
        }
        self.note_return(&returned);
        returned
    }

    /// Goes on with a handoff until it has moved the task.
    async fn lent_by(
        &self,
        handoff: v1::Handoff,
        sections: Option<Vec<v1::ContextSection>>,
    ) -> Result<HandedOver, HandOverError> {
        if let Some(end) = end_of(&handoff) {
            return end;
        }
        if let Some(sections) = sections {
            return self.resume_hand_over(&handoff.handoff_id, sections).await;
        }
        let request = v1::WatchHandoffRequest { handoff_id: handoff.handoff_id.clone() };
        let mut steps = self.watch(request).await?;
        while let Some(step) = steps.next().await? {
            if let Some(end) = step.handoff.as_ref().and_then(end_of) {
                return end;
            }
        }
        let handoff = self.get_handoff(&handoff.handoff_id).await?;
        end_of(&handoff).unwrap_or_else(|| Err(not_lent(format!("handoff {} is still open", handoff.handoff_id))))
    }

    /// Whether a loan has not ended. `NOT_LENT` if this agent has handed the task on since it has.
    async fn is_lent(&self, loan: &Loan) -> Result<bool, HandOverError> {
        let task = self.get_task(&loan.task_id).await?;
        if task.loans.iter().any(|known| known.handoff_id == loan.handoff_id) {
            return Ok(true);
        }
        let is_later = |hop: &&v1::TaskHop| hop.sender_id == self.id().as_str() && hop.epoch > loan.epoch;
        match task.hops.iter().rfind(is_later) {
            None => Ok(false),
            Some(later) => {
                let (ended, moved) = (&loan.handoff_id, &later.handoff_id);
                Err(not_lent(format!("handoff {ended} lends nothing any more: {moved} has moved the task since")))
            }
        }
    }

    /// Notes that a task is back, if the end of a loan says so.
    fn note_return(&self, ended: &Result<Returned, HandOverError>) {
        match ended {
            Ok(Returned { task_id, epoch, .. })
            | Err(HandOverError::Recalled { task_id, epoch, is_owner: true, .. }) => {
                self.inner.work.came_back(task_id, *epoch);
            }
            Err(_) => {}
        }
    }

    /// Takes back the task that a handoff of this agent lent. This agent owns it from the receipt on. The loans within
    /// this one end too, and an open handoff of the task is cancelled. The broker tells the agents that work on the
    /// task. `reason` has at most 4096 bytes.
    ///
    /// # Errors
    ///
    /// As [`Link::send`]; `NOT_LENT` if the loan has ended or the handoff did not lend the task, `NOT_OWNER` if another
    /// agent lent it.
    pub async fn recall(&self, handoff_id: &str, reason: &str) -> Result<OwnedTask, ClientError> {
        let handoff = self.get_handoff(handoff_id).await?;
        let about = About::handoff(&handoff.task_id, handoff.epoch, handoff_id);
        let recall = v1::TaskRecall { reason_text: reason.to_owned() };
        let receipt = self.send("", MessageType::TaskRecall, &about, &recall).await?;
        let message = "this agent recalled the task".to_owned();
        let (task_id, handoff_id) = (handoff.task_id, handoff_id.to_owned());
        self.inner.waiting.tell_loan(&Recalled {
            task_id,
            handoff_id,
            epoch: receipt.epoch,
            reason: RecallReason::Recall,
            message,
        });
        Ok(task_of(self, &receipt))
    }

    async fn lend(&self, request: &v1::Envelope, sections: Vec<v1::ContextSection>) -> Result<Returned, HandOverError> {
        // The checks of the handover come first: a request that is not sent needs no taking back.
        let loan =
            Loan { task_id: request.task_id.clone(), handoff_id: request.message_id.clone(), epoch: request.epoch + 1 };
        let _hand = self.inner.waiting.hand(&loan.task_id, request.epoch)?;
        // Wait before the handoff: a quick delegate may report its final status before the handoff call returns.
        let mut results = Some(self.inner.waiting.wait(Subject::Result(loan.task_id.clone())));
        let mut watch = self.inner.waiting.watch(&loan.task_id, request.epoch, true);
        self.move_by(request, sections).await?;
        let telling = self.tell_progress(&loan.task_id, loan.epoch);
        let returned = self.end_of_loan(&loan, &mut results, &mut watch, false).await;
        if returned.is_ok() {
            progress::told(telling).await;
        }
        returned
    }

    /// Waits for the end of a loan, by which this agent owns the task again. `is_back`: it has ended already.
    async fn end_of_loan(
        &self,
        loan: &Loan,
        results: &mut Option<Conversation>,
        watch: &mut oneshot::Receiver<Taken>,
        mut is_back: bool,
    ) -> Result<Returned, HandOverError> {
        let mut looks = self.looks();
        if is_back {
            looks.soon();
        }
        loop {
            let letter = tokio::select! {
                letter = self.next_result(results) => match letter? {
                    Some(letter) => letter,
                    // The task has come back, and a later call has lent it on: the state tells how this loan has ended.
                    None => continue,
                },
                Ok(taken) = &mut *watch => {
                    let Recalled { message, epoch, .. } = &taken.recalled;
                    return Err(loan.recalled(taken.recalled.reason, message, *epoch, taken.is_owner));
                }
                () = looks.due() => {
                    let task = self.look(loan).await?;
                    // Mail about the end of the loan may be on its way to this process; by the next look it has come.
                    if let (Some(task), true) = (&task, is_back) {
                        return self.without_news(loan, task).await;
                    }
                    is_back = task.is_some();
                    if is_back {
                        looks.soon();
                    }
                    continue;
                }
            };
            let envelope = &letter.delivered.envelope;
            let (task_id, epoch) = (envelope.task_id.clone(), envelope.epoch);
            if let Some((reason, told)) = notice_of(&letter.delivered) {
                letter.answer(Ok(()));
                // The notice of an earlier loan may come late.
                if epoch > loan.epoch {
                    // The broker tells a delegator of no recall but its own, at the loan timeout.
                    let reason = if reason == RecallReason::Recall { RecallReason::LoanTimeout } else { reason };
                    return Err(loan.recalled(reason, &told.error_message, epoch, true));
                }
                continue;
            }
            let update: v1::TaskStatusUpdate = letter.delivered.payload();
            let is_end = match self.get_task(&task_id).await {
                // A delegate of the delegate may name this agent as its receiver: only that inner delegation has
                // ended then.
                Ok(task) => epoch == loan.epoch || (task.owner_id == self.id().as_str() && task.epoch == epoch + 1),
                // The task is no longer readable, so the status counts as the end of this delegation.
                Err(ClientError::Refused(_)) => true,
                Err(error) => return Err(error.into()),
            };
            // Acked only now: if the read fails, the letter is dropped, and the handler receives the status instead.
            letter.answer(Ok(()));
            if is_end {
                let (status, details) = (update.status(), update.details.clone());
                // The end of a loan moves the ownership, which adds 1 to the epoch (SPEC 3).
                let result = value_in(&update.result_json);
                return Ok(Returned { task_id, epoch: epoch + 1, status, result, details });
            }
        }
    }

    /// The next letter about a loan. `None`, once: a later call gets them from now on.
    async fn next_result(&self, results: &mut Option<Conversation>) -> Result<Option<Letter>, HandOverError> {
        let Some(mail) = results else { return std::future::pending().await };
        match self.next_letter(mail).await {
            Err(HandOverError::Superseded) => {
                *results = None;
                Ok(None)
            }
            letter => letter.map(Some),
        }
    }

    /// Reads the task. Returns it if the loan has ended.
    async fn look(&self, loan: &Loan) -> Result<Option<v1::Task>, ClientError> {
        match self.get_task(&loan.task_id).await {
            Ok(task) => {
                let is_lent = task.loans.iter().any(|known| known.handoff_id == loan.handoff_id);
                Ok((!is_lent && task.epoch > loan.epoch).then_some(task))
            }
            // A refused read says nothing about the outcome; mail may still bring it.
            Err(ClientError::Refused(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The outcome of a loan whose end reached no call of this process: the custody log has it.
    async fn without_news(&self, loan: &Loan, task: &v1::Task) -> Result<Returned, HandOverError> {
        let recalled = |reason, epoch| {
            let text = "the loan has ended without a final status of the delegate";
            Err(loan.recalled(reason, text, epoch, task.owner_id == self.id().as_str()))
        };
        let returned = |epoch, status, result, details: String| {
            Ok(Returned { task_id: task.task_id.clone(), epoch, status, result, details })
        };
        let Some(found) = self.end_in_log(loan).await? else {
            // No log can be read, or the task did not come back to this agent.
            return match (value_in(&task.result_json), task.owner_id == self.id().as_str()) {
                (Some(result), true) => {
                    returned(task.epoch, v1::TaskStatus::Completed, Some(result), task.details.clone())
                }
                _ => recalled(RecallReason::Recall, task.epoch),
            };
        };
        let entry = found.entry.unwrap_or_default();
        match &entry.event {
            Some(Event::Accepted(accepted)) if accepted.message_type() == MessageType::TaskStatusUpdate => {
                let payload = self.verified(found.envelope).await?.payload.unwrap_or_default();
                let update = v1::TaskStatusUpdate::decode(payload.value).unwrap_or_default();
                returned(entry.epoch, update.status(), value_in(&update.result_json), update.details)
            }
            // A handoff has returned the task, unfinished.
            Some(Event::Accepted(accepted)) if accepted.message_type() == MessageType::HandoffComplete => {
                returned(entry.epoch, task.status(), None, task.details.clone())
            }
            Some(Event::Time(_)) => recalled(RecallReason::LoanTimeout, entry.epoch),
            Some(Event::Silent(_)) => recalled(RecallReason::Abandoned, entry.epoch),
            Some(Event::Cancelled(_)) => recalled(RecallReason::Canceled, entry.epoch),
            _ => recalled(RecallReason::Recall, entry.epoch),
        }
    }

    /// The entry by which this agent got the task back; `None` if there is none, or if the log cannot be read.
    async fn end_in_log(&self, loan: &Loan) -> Result<Option<v1::CustodyLogEntry>, ClientError> {
        let mut request =
            v1::GetCustodyLogRequest { task_id: loan.task_id.clone(), page_size: ENTRIES_A_PAGE, ..Default::default() };
        loop {
            let page = self.ask(|client| {
                let request = request.clone();
                async move { client.answer(client.tasks().get_custody_log(request).await) }
            });
            let page = match page.await {
                Ok(page) => page,
                Err(ClientError::Refused(_)) => return Ok(None),
                Err(error) => return Err(error),
            };
            let number = |found: &v1::CustodyLogEntry| found.entry.as_ref().map_or(0, |entry| entry.number);
            let last = page.entries.last().map_or(request.after_number, number);
            let is_end = |found: &v1::CustodyLogEntry| {
                let is_of = |entry: &v1::CustodyEntry| entry.epoch > loan.epoch && entry.owner_id == self.id().as_str();
                found.entry.as_ref().is_some_and(is_of)
            };
            if let Some(end) = page.entries.into_iter().find(is_end) {
                return Ok(Some(end));
            }
            if last >= page.custody_length || last <= request.after_number {
                return Ok(None);
            }
            request.after_number = last;
        }
    }

    /// Takes the task back at the time limit of a call. If the loan has ended by then, its end is the result.
    async fn end_at_limit(&self, request: &v1::Envelope) -> Result<Returned, HandOverError> {
        let text = "the time limit of the delegating call passed";
        let loan =
            Loan { task_id: request.task_id.clone(), handoff_id: request.message_id.clone(), epoch: request.epoch + 1 };
        if let Some(receipt) = self.take_back(request, text).await? {
            return Err(loan.recalled(RecallReason::Deadline, text, receipt.epoch, true));
        }
        let not_lent = || HandOverError::Failed {
            handoff_id: loan.handoff_id.clone(),
            reason: "HANDOFF_CANCELLED".to_owned(),
            message: text.to_owned(),
            rejections: Vec::new(),
        };
        let handoff = match self.get_handoff(&loan.handoff_id).await {
            Ok(handoff) => handoff,
            Err(ClientError::Refused(_)) => return Err(not_lent()), // the request was not stored
            Err(error) => return Err(error.into()),
        };
        // `None`: the cancel was refused, and the handoff is still open.
        let _: HandedOver = end_of(&handoff).unwrap_or_else(|| Err(not_lent()))?;
        // The loan ended while the call did. Its final status goes to the handler; the task tells the rest.
        let task = self.get_task(&loan.task_id).await?;
        self.without_news(&loan, &task).await
    }

    /// Cancels the handoff of this request, or recalls the task that it lent. Returns the receipt of the recall; `None`
    /// if the task was not lent or its loan has ended.
    async fn take_back(&self, request: &v1::Envelope, text: &str) -> Result<Option<v1::Receipt>, ClientError> {
        let about = About::handoff(&request.task_id, request.epoch, &request.message_id);
        let attempts = async {
            for _ in 0..ATTEMPTS_MAX {
                let taken = match self.get_handoff(&request.message_id).await {
                    Ok(handoff) if handoff.state() == HandoffState::Completed => {
                        let recall = v1::TaskRecall { reason_text: text.to_owned() };
                        self.send("", MessageType::TaskRecall, &about, &recall).await.map(Some)
                    }
                    Ok(handoff) if end_of(&handoff).is_some() => return Ok(None),
                    Ok(handoff) => {
                        let cancel = v1::HandoffCancel { reason_text: text.to_owned() };
                        self.send(&handoff.candidate_id, MessageType::HandoffCancel, &about, &cancel)
                            .await
                            .map(|_| None)
                    }
                    Err(error) => Err(error),
                };
                match taken {
                    Err(ClientError::Refused(refused)) if refused.reason == "NOT_LENT" => return Ok(None),
                    // The request may still be on its way, or the handoff has moved on since the look.
                    Err(ClientError::Refused(_)) => time::sleep(ATTEMPT_WAIT).await,
                    taken => return taken,
                }
            }
            Ok(None)
        };
        time::timeout(TAKE_BACK_TIME, attempts).await.unwrap_or_else(|_| {
            let text = format!("task {} is not taken back in time; its loan timeout returns it", request.task_id);
            Err(Refused::of_client(ErrorCode::StoreUnavailable, text).into())
        })
    }

    /// Checks that the sections fit in a message, before anything is sent.
    pub(super) fn check_context(
        &self,
        about: &About,
        sections: Vec<v1::ContextSection>,
    ) -> Result<Vec<v1::ContextSection>, ClientError> {
        let context = crate::context_of_sections(sections);
        // The accepting agent is not known yet; the receiver of the draft does not affect its size check.
        let draft = self.composer().draft("candidate", MessageType::TaskContextTransfer, about, &context);
        limits::check_envelope(&draft.encode_to_vec().into())?;
        Ok(context.sections)
    }
}

fn not_lent(text: String) -> HandOverError {
    ClientError::from(Refused::of_client(ErrorCode::NotLent, text)).into()
}

/// The end of a delegation, with the limit as the reason in place of these.
fn by_limit(ended: Result<Returned, HandOverError>, others: &[RecallReason]) -> Result<Returned, HandOverError> {
    ended.map_err(|error| match error {
        HandOverError::Recalled { task_id, handoff_id, reason, message, epoch, is_owner }
            if others.contains(&reason) =>
        {
            HandOverError::Recalled { task_id, handoff_id, reason: RecallReason::Deadline, message, epoch, is_owner }
        }
        error => error,
    })
}

/// The request of a delegation, and the time limit of the call.
pub(super) fn loan_of(request: &v1::HandoffRequest, limit: Option<Duration>) -> (v1::HandoffRequest, Duration) {
    let given = request.loan_timeout.and_then(|given| Duration::try_from(given).ok());
    // If this process dies, nothing but the loan timeout brings the task back.
    let loan = given.unwrap_or_else(|| limit.unwrap_or(LOAN_TIMEOUT).clamp(LOAN_TIMEOUT_MIN, LOAN_TIMEOUT_MAX));
    let loan_timeout = request.loan_timeout.or_else(|| prost_types::Duration::try_from(loan).ok());
    let lent = v1::HandoffRequest { mode: v1::HandoffMode::Delegate.into(), loan_timeout, ..request.clone() };
    let whole = request.timeouts.as_ref().and_then(|terms| Duration::try_from(terms.whole?).ok());
    let limit = limit.unwrap_or_else(|| whole.unwrap_or(WHOLE_TIMEOUT) + loan + NEWS_TIME);
    (lent, limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_its_limit_ends_says_so() {
        let ended = |reason| {
            let loan = Loan { task_id: "t".into(), handoff_id: "h".into(), epoch: 2 };
            Err(loan.recalled(reason, "recalled", 3, true))
        };
        let reason_of = |ended: Result<Returned, HandOverError>| match ended {
            Err(HandOverError::Recalled { reason, .. }) => reason,
            other => panic!("{other:?}"),
        };
        use RecallReason::{Deadline, LoanTimeout, Reassigned, Recall};
        let at_limit = &[Recall, LoanTimeout];
        for (reason, given) in
            [(Recall, Deadline), (LoanTimeout, Deadline), (Deadline, Deadline), (Reassigned, Reassigned)]
        {
            assert_eq!(reason_of(by_limit(ended(reason), at_limit)), given);
        }
        assert_eq!(reason_of(by_limit(ended(Recall), &[LoanTimeout])), Recall);
    }

    #[test]
    fn a_loan_ends_by_the_request_by_the_limit_or_in_an_hour() {
        let seconds = |seconds| Some(prost_types::Duration { seconds, nanos: 0 });
        let own = v1::HandoffRequest { loan_timeout: seconds(7), ..Default::default() };
        let ten = Duration::from_secs(10);
        let loan = |request: &v1::HandoffRequest, limit| {
            let (lent, limit) = loan_of(request, limit);
            assert_eq!(lent.mode(), v1::HandoffMode::Delegate);
            (lent.loan_timeout, limit)
        };
        assert_eq!(loan(&own, Some(ten)), (seconds(7), ten));
        assert_eq!(loan(&own, None), (seconds(7), Duration::from_secs(360 + 7 + 60)));
        let plain = v1::HandoffRequest::default();
        assert_eq!(loan(&plain, Some(ten)), (seconds(10), ten));
        assert_eq!(loan(&plain, Some(Duration::from_millis(5))).0, seconds(1), "the schema's least");
        assert_eq!(loan(&plain, None), (seconds(3600), Duration::from_secs(360 + 3600 + 60)));
        let in_thread = v1::HandoffRequest { thread_id: "support".into(), ..plain };
        assert_eq!(loan_of(&in_thread, None).0.thread_id, "support");
    }
}

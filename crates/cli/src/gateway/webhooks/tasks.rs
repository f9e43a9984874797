//! A webhook for offers and tasks: a worker whose work is a request.
//!
//! What counts is at the broker: whether an offer was accepted, whether a task is taken, its result. A request that was under
//! way when the gateway ended is sent again under the same id.

use std::{sync::Arc, time::Duration};

use baton_client::{
    Agent, ClientError, HandlerResult, Identity, Link, NotTaken, Offer, Options, OwnedTask, Recalled,
    proto::v1::{self, HandoffMode, HandoffState, MessageType, RejectReason, TaskStatus, custody_entry::Event},
};
use bytes::Bytes;
use serde_json::json;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::{
    Hook,
    answers::{self, Decision, Work},
};
use crate::{
    gateway::sender::Delivered,
    runner::{Input, insist},
};

/// The most deliveries at a time, and so the most offers that are decided, or tasks that wait for their answer.
const CREDIT: u32 = 64;
/// The time in which the last messages of a stopping agent are sent.
const STOP_GRACE: Duration = Duration::from_secs(1);
/// How often an offer is looked up while its request is repeated.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// The pause before what did not reach the broker is sent again.
const AGAIN_AFTER: Duration = Duration::from_secs(2);

/// Serves the agent until `stop`.
///
/// # Errors
///
/// As [`baton_client::AgentBuilder::connect`] and [`Agent::run`].
pub(super) async fn serve(
    hook: Arc<Hook>,
    identity: &Identity,
    options: &Options,
    stop: &CancellationToken,
) -> Result<(), ClientError> {
    let mut builder = Agent::builder(identity.agent.as_str())
        .server(&options.server)
        .key(identity.key.clone())
        .key_id(identity.key_id.as_str())
        .credit(CREDIT)
        .stop_grace(STOP_GRACE)
        .without_registration()
        .on_recalled(recalled)
        .on_handoff(move |offer| Arc::clone(&hook).take(offer));
    if let Some(ca) = options.ca.clone() {
        builder = builder.ca(ca);
    }
    if let Some(certificate) = options.certificate.clone() {
        builder = builder.certificate(certificate);
    }
    let agent = builder.connect().await?;
    tokio::select! {
        ended = agent.run() => ended,
        () = stop.cancelled() => agent.stop().await,
    }
}

async fn recalled(recalled: Recalled) -> HandlerResult {
    tracing::info!(task_id = %recalled.task_id, reason = %recalled.message, "a task of a webhook was taken back");
    Ok(())
}

impl Hook {
    async fn take(self: Arc<Self>, offer: Offer) -> HandlerResult {
        let link = offer.link().clone();
        let mut input = Input::of(&offer).await?;
        if let Some(request) = offer.request() {
            match self.decide(&link, &input, request).await? {
                Some(Decision::Accept) => {}
                Some(Decision::Reject(reject)) => return Ok(offer.reject_with(&reject).await?),
                None => return Err(NotTaken::TooLate("the offer has ended".to_owned()).into()),
            }
        }
        let is_resumed = offer.is_resumed();
        let takeover = offer.accept().await?;
        input.read_context(&takeover).await?;
        let task = takeover.complete().await?;
        if is_resumed && !self.is_left(&link, &task, &input).await {
            return Ok(());
        }
        let work = self.work(&task, &input).await;
        settle(&task, work).await
    }

    /// Asks about an offer. `None`: it has ended meanwhile.
    async fn decide(
        &self,
        link: &Link,
        input: &Input,
        request: &v1::HandoffRequest,
    ) -> Result<Option<Decision>, ClientError> {
        let handoff = link.get_handoff(&input.handoff_id).await?;
        // The broker repeats an offer after a reject for some time. The repeat is another request.
        let time = handoff.offers.len().to_string();
        let is_loan = request.mode() == HandoffMode::Delegate;
        let data = json!({
            "agent_id": self.agent(), "handoff_id": input.handoff_id, "task_id": handoff.task_id,
            "from": input.from, "task_type": input.task_type, "summary": input.summary, "is_loan": is_loan,
        });
        let id = self.id_of(&["offer", &input.handoff_id, &time]);
        let body = self.body("offer", &data.to_string());
        let delivered = tokio::select! {
            delivered = self.post(&id, body, answers::decision) => delivered,
            () = self.until_over(link, &input.handoff_id) => return Ok(None),
        };
        let reject = |text: &str| {
            let (reason, reason_text) = (RejectReason::Shutdown.into(), text.to_owned());
            Decision::Reject(Box::new(v1::HandoffReject { reason, reason_text, ..Default::default() }))
        };
        Ok(Some(match delivered {
            Delivered::Done(decision) => decision,
            Delivered::Off => reject("the webhook of the agent takes no more requests"),
            Delivered::GivenUp(_) => reject("the webhook of the agent does not answer"),
        }))
    }

    /// Completes when the handoff no longer asks this agent.
    async fn until_over(&self, link: &Link, handoff_id: &str) {
        loop {
            sleep(LOOK_EVERY).await;
            let Ok(handoff) = link.get_handoff(handoff_id).await else { continue };
            let asks = matches!(handoff.state(), HandoffState::Requested | HandoffState::Deciding);
            if !asks || handoff.candidate_id != self.agent() {
                return;
            }
        }
    }

    /// Whether a task of an earlier process still waits for its request to be answered.
    async fn is_left(&self, link: &Link, task: &OwnedTask, input: &Input) -> bool {
        // One that the agent itself has begun, lent, or gives on is not what a webhook does.
        if !task.open_handoff_id.is_empty() || input.handoff_id.is_empty() || input.from == self.agent() {
            return false;
        }
        loop {
            match link.verify_custody(&task.task_id).await {
                Ok(log) => return !self.has_reported(&log.entries, task.epoch()),
                Err(problem) if problem.is_passing() => sleep(AGAIN_AFTER).await,
                // The receiver knows the id of a request that it had before.
                Err(problem) => {
                    tracing::warn!(task_id = %task.task_id, %problem, "the request of a task is sent again");
                    return true;
                }
            }
        }
    }

    /// Whether the function has the task: the gateway, which does so after 202, or the function itself has reported.
    fn has_reported(&self, log: &[v1::CustodyLogEntry], epoch: u64) -> bool {
        log.iter().filter_map(|entry| entry.entry.as_ref()).any(|entry| match &entry.event {
            Some(Event::Accepted(accepted)) => {
                let is_report = accepted.message_type() == MessageType::TaskStatusUpdate;
                is_report && accepted.sender_id == self.agent() && entry.epoch == epoch
            }
            _ => false,
        })
    }

    async fn work(&self, task: &OwnedTask, input: &Input) -> Work {
        let id = self.id_of(&["task", &task.task_id, &task.epoch().to_string()]);
        let body = self.body("task", input.json().trim_end());
        match self.post(&id, body, answers::work).await {
            Delivered::Done(work) => work,
            Delivered::Off => Work::Failed("the webhook of the agent takes no more requests".to_owned()),
            Delivered::GivenUp(problem) => Work::Failed(format!("the webhook of the agent does not answer: {problem}")),
        }
    }

    /// The body of a request: the kind, the time, and data as a text of JSON.
    pub(super) fn body(&self, kind: &str, data: &str) -> Bytes {
        let time = self.now().to_string();
        format!(r#"{{"type":"{kind}","timestamp":"{time}","data":{data}}}"#).into()
    }
}

/// Reports the answer as the status of the task.
async fn settle(task: &OwnedTask, work: Work) -> HandlerResult {
    let update = |status: TaskStatus, details: String, result_json: String| v1::TaskStatusUpdate {
        status: status.into(),
        details,
        result_json,
        ..Default::default()
    };
    let report = match work {
        Work::Done(result) => update(TaskStatus::Completed, String::new(), result),
        Work::Taken => update(TaskStatus::InProgress, "the webhook has taken the task".to_owned(), String::new()),
        Work::Failed(words) => update(TaskStatus::Failed, words, String::new()),
    };
    let reported = match insist(task, &report).await {
        // A result that is none to the broker, for example because it is too deep.
        Err(error) if error.reason() == Some("FIELD_INVALID") => {
            let words = format!("the result of the webhook is refused: {error}");
            insist(task, &update(TaskStatus::Failed, words, String::new())).await
        }
        reported => reported,
    };
    match reported {
        // The function has reported by itself, or the task was taken back.
        Err(error) if matches!(error.reason(), Some("STALE_EPOCH" | "TASK_FINAL" | "NOT_OWNER")) => Ok(()),
        reported => Ok(reported?),
    }
}

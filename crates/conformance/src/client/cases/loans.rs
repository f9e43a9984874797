//! Lent tasks that come back without a result, with the client on either side of the loan.

use std::time::Duration;

use serde_json::json;
use tonic::Code;

use super::{
    super::{
        broker::{AGENT, Session},
        fixture::{Fixture, Sent, Verdict, composer, expect, type_url},
        refusal::Refusal,
    },
    cases,
    handoffs::{accepted, hand_over_by, taken_over},
    restarts::{accept_of, context_is_sent},
    sending::check_envelope,
};
use crate::report::Failed;
use baton_client::{
    About,
    proto::v1::{self, MessageType, connect_response::Response as Said},
};

cases! {
    "client.recalled-task-is-dropped", "3",
    "The agent from which a task is recalled stops the work on it and reports the recall, and the notice is acked.",
    recalled_task_is_dropped;
    "client.loan-timeout-ends-the-delegation", "3",
    "A delegation whose loan timeout passes is an error with that reason and the epoch at which the task is here again.",
    loan_timeout;
    "client.delegation-ends-at-its-limit", "3",
    "A delegation that reaches its time limit recalls the task, and is an error with that reason and the new epoch.",
    limit_of_the_call;
    "client.cancelled-delegation-is-recalled", "3",
    "A loan has a timeout also where the caller names none. A caller that cancels a delegation has the task recalled.",
    cancelled_delegation;
    "client.recall-of-an-ended-loan-is-refused", "3 11",
    "A recall names the loan's handoff; of a loan that has ended it is an error with the reason NOT_LENT.",
    recall_of_an_ended_loan;
}

/// The time limit that a case gives to a call. The steps before it take milliseconds.
const LIMIT: Duration = Duration::from_secs(5);

/// The broker's notice of a recall, to the client.
pub(super) fn notice(fixture: &Fixture, about: &About, next_step: v1::NextStep) -> v1::Envelope {
    let told = v1::ErrorNotification {
        error_code: v1::ErrorCode::TaskRecalled.into(),
        error_message: "the loan has ended".to_owned(),
        severity: v1::Severity::Warning.into(),
        origin_agent_id: "baton".to_owned(),
        next_step: next_step.into(),
        ..Default::default()
    };
    let about = About { epoch: 3, ..about.clone() };
    composer("baton", "broker", fixture.broker.key.clone()).compose(
        AGENT,
        MessageType::ErrorNotification,
        &about,
        &told,
    )
}

/// Lets the client delegate a task, with these further arguments, until alice owns it. Returns the command's id, the
/// handoff and the request.
pub(super) async fn lent(
    fixture: &mut Fixture,
    session: &mut Session,
    further: serde_json::Value,
) -> Result<(u64, About, v1::HandoffRequest), Failed> {
    let (id, about, request) = hand_over_by(fixture, session, "delegate", further).await?;
    let accept = accept_of(fixture, &about);
    let delivery_id = fixture.deliver(session, &accept);
    let sent = context_is_sent(fixture, "alice accepts", session, &about).await?;
    fixture.receipt(session, &sent);
    fixture.acked("the context has its receipt", session, &delivery_id).await?;
    let complete = v1::HandoffComplete {
        outcome: v1::HandoffOutcome::Success.into(),
        context_digest: sent.payload::<v1::TaskContextTransfer>().context_digest,
        ..Default::default()
    };
    fixture.broker.state().handoffs.insert(about.correlation_id.clone(), completed(&about));
    let complete = fixture.alice.compose(AGENT, MessageType::HandoffComplete, &about, &complete);
    let delivery_id = fixture.deliver(session, &complete);
    fixture.acked("alice has taken over", session, &delivery_id).await?;
    Ok((id, about, request))
}

/// The handoff that lent the task to alice.
pub(super) fn completed(about: &About) -> v1::Handoff {
    v1::Handoff {
        handoff_id: about.correlation_id.clone(),
        task_id: about.task_id.clone(),
        sender_id: AGENT.to_owned(),
        candidate_id: "alice".to_owned(),
        epoch: about.epoch,
        state: v1::HandoffState::Completed.into(),
        mode: v1::HandoffMode::Delegate.into(),
        ..Default::default()
    }
}

/// Receives the recall of this handoff from the client.
async fn recalled(fixture: &Fixture, step: &str, session: &mut Session, about: &About) -> Result<Sent, Failed> {
    let sent = fixture.sent(step, session, MessageType::TaskRecall).await?;
    check_envelope(step, &sent, &fixture.client_key, &type_url::<v1::TaskRecall>())?;
    let envelope = &sent.envelope;
    expect(step, "envelope.receiver_id", "", envelope.receiver_id.as_str())?;
    expect(step, "envelope.correlation_id", about.correlation_id.as_str(), envelope.correlation_id.as_str())?;
    expect(step, "envelope.task_id", about.task_id.as_str(), envelope.task_id.as_str())?;
    Ok(sent)
}

/// Answers a recall with its receipt.
fn recall_receipt(fixture: &mut Fixture, session: &Session, sent: &Sent) {
    let mut receipt = fixture.unsigned_receipt(sent);
    receipt.epoch = 3;
    fixture.signed_receipt(session, sent, receipt);
}

async fn recalled_task_is_dropped(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    fixture.handle("HandoffRequest", "work").await?;
    let about = accepted(fixture, &mut session).await?;
    taken_over(fixture, &mut session, &about).await?;
    let told = notice(fixture, &about, v1::NextStep::DropTask);
    let delivery_id = fixture.deliver(&session, &told);
    let step = "the broker takes the task back";
    let stopped = fixture.event(step, "the event stopped", |event| event["event"] == "stopped").await?;
    expect(step, "stopped.task_id", &json!(about.task_id), &stopped["task_id"])?;
    let event = fixture.event(step, "the event recalled", |event| event["event"] == "recalled").await?;
    expect(step, "recalled.task_id", &json!(about.task_id), &event["task_id"])?;
    expect(step, "recalled.handoff_id", &json!(about.correlation_id), &event["handoff_id"])?;
    expect(step, "recalled.epoch", &json!(3), &event["epoch"])?;
    fixture.acked(step, &mut session, &delivery_id).await
}

async fn loan_timeout(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    let (id, about, request) = lent(fixture, &mut session, json!({"loan_timeout_ms": 60_000})).await?;
    let seconds = request.loan_timeout.map_or(0, |timeout| timeout.seconds);
    expect("the client lends a task for a minute", "payload.loan_timeout.seconds", &60, &seconds)?;
    let told = notice(fixture, &about, v1::NextStep::KeepTask);
    let delivery_id = fixture.deliver(&session, &told);
    let step = "the broker reports that the loan's time is over";
    fixture.refused(step, id, json!({"kind": "recalled", "reason": "LOAN_TIMEOUT", "epoch": 3})).await?;
    fixture.acked(step, &mut session, &delivery_id).await
}

async fn limit_of_the_call(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    let limit_ms = u64::try_from(LIMIT.as_millis()).unwrap_or(u64::MAX);
    let (id, about, _) = lent(fixture, &mut session, json!({"timeout_ms": limit_ms})).await?;
    let step = "the time limit of the call passes";
    let sent = recalled(fixture, step, &mut session, &about).await?;
    recall_receipt(fixture, &session, &sent);
    fixture.refused(step, id, json!({"kind": "recalled", "reason": "DEADLINE", "epoch": 3})).await
}

async fn cancelled_delegation(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    let (id, about, request) = lent(fixture, &mut session, json!({})).await?;
    let is_bounded = request.loan_timeout.is_some_and(|timeout| timeout.seconds > 0);
    expect("the client lends a task", "whether the loan has a timeout", &true, &is_bounded)?;
    let cancel = fixture.harness.tell(json!({"command": "cancel", "call": id}));
    let step = "the caller cancels";
    let sent = recalled(fixture, step, &mut session, &about).await?;
    recall_receipt(fixture, &session, &sent);
    fixture.refused(step, id, json!({"kind": "cancelled"})).await?;
    fixture.done(step, cancel).await.map(drop)
}

async fn recall_of_an_ended_loan(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    let about = About::handoff("task-7", 1, &fixture.info("for its id").message_id);
    fixture.broker.state().handoffs.insert(about.correlation_id.clone(), completed(&about));
    let command = json!({"command": "recall", "handoff_id": about.correlation_id, "text": "done by phone"});
    let id = fixture.harness.tell(command);
    let step = "the client recalls a task that is back already";
    let sent = recalled(fixture, step, &mut session, &about).await?;
    expect(step, "payload.reason_text", "done by phone", sent.payload::<v1::TaskRecall>().reason_text.as_str())?;
    session.say(sent.request_id, Said::Error(Refusal::new(Code::FailedPrecondition, "NOT_LENT").message()));
    fixture.refused(step, id, json!({"kind": "refused", "reason": "NOT_LENT", "code": "FAILED_PRECONDITION"})).await
}

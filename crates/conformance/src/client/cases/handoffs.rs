//! A handoff, with the client on either side.

use prost::{Message as _, Name};
use serde_json::{Value, json};

use super::{
    super::{
        broker::{AGENT, Session},
        fixture::{
            Fixture, Sent, Verdict, acknowledged, composer, envelope_of, expect, new_task, outcome_in_words, type_url,
        },
    },
    cases,
    restarts::sections,
    sending::check_envelope,
};
use crate::report::Failed;
use baton_client::{
    About, context_of,
    proto::v1::{self, MessageType, NackCause, acknowledgement::Outcome},
};

cases! {
    "client.offer-is-taken-over", "3",
    "An offer is accepted, its context taken over with the digest computed from it, and both deliveries are acked.",
    offer_is_taken_over;
    "client.offer-is-rejected", "3",
    "An offer can be rejected with a reason, and the request is acked.",
    offer_is_rejected;
    "client.handoff-id-is-the-deliverys", "3 4",
    "Of a request that was redriven the handoff is the one that the delivery names, not the message's id.",
    handoff_id_is_the_deliverys;
    "client.context-of-another-digest-is-refused", "7",
    "A context with another digest than it names is not taken over: FAILURE, or a nack.",
    context_of_another_digest;
    "client.handoff-survives-a-broken-connection", "3 4",
    "Where the connection is cut between accept and context, the handoff goes on over the next session.",
    survives_a_broken_connection;
    "client.accept-without-answer-is-sent-again", "2 3",
    "Where the connection is cut before the accept has its receipt, the same accept is sent again, byte for byte.",
    accept_without_answer;
    "client.throwing-offer-handler-is-nacked", "3 4",
    "A handler of an offer that throws has the request nacked as FAILURE.",
    throwing_offer_handler;
    "client.task-is-handed-over", "3",
    "Handing over sends the request, then the context with its digest to the accepting agent, and returns the owner.",
    task_is_handed_over;
    "client.failed-handoff-is-a-typed-error", "3 11",
    "A handoff that fails is an error with the stable reason that the broker's ErrorNotification names.",
    failed_handoff;
    "client.handoff-is-cancelled-at-its-limit", "3",
    "A call that hands a task over and reaches its time limit cancels the open handoff, and is an error with HANDOFF_CANCELLED.",
    handoff_at_its_limit;
}

/// The time limit that the case gives to its call.
const LIMIT_MS: u64 = 2_000;

/// A request from alice about a new task.
fn offer(fixture: &Fixture) -> v1::Envelope {
    offer_of(fixture, &new_task())
}

pub(super) fn offer_of(fixture: &Fixture, task_id: &str) -> v1::Envelope {
    let request = v1::HandoffRequest {
        task_type: "ticket".to_owned(),
        reason: v1::HandoffReason::Workflow.into(),
        initial_context_summary: "the router drops the line".to_owned(),
        ..Default::default()
    };
    fixture.alice.compose(AGENT, MessageType::HandoffRequest, &About::task(task_id, 1), &request)
}

pub(super) fn deliver_offer(
    fixture: &mut Fixture,
    session: &Session,
    offer: &v1::Envelope,
    handoff_id: &str,
) -> String {
    let delivery = v1::Delivery {
        envelope: offer.encode_to_vec().into(),
        attempt: 1,
        handoff_id: handoff_id.to_owned(),
        ..Default::default()
    };
    fixture.deliver_as(session, delivery)
}

pub(super) fn context() -> v1::TaskContextTransfer {
    // Deliberately not in the order in which the digest sorts them.
    context_of([
        ("task_description", "{\"what\":\"a ticket\"}".to_owned()),
        ("goals", "[\"find the cause\"]".to_owned()),
    ])
}

/// Receives a message of the handoff from the client, and checks its receiver, task, epoch and handoff.
pub(super) async fn answered<M: Name>(
    fixture: &Fixture,
    step: &str,
    session: &mut Session,
    kind: MessageType,
    about: &About,
) -> Result<Sent, Failed> {
    let sent = fixture.sent(step, session, kind).await?;
    check_envelope(step, &sent, &fixture.client_key, &type_url::<M>())?;
    let envelope = &sent.envelope;
    expect(step, "envelope.receiver_id", "alice", envelope.receiver_id.as_str())?;
    expect(step, "envelope.correlation_id", about.correlation_id.as_str(), envelope.correlation_id.as_str())?;
    expect(step, "envelope.task_id", about.task_id.as_str(), envelope.task_id.as_str())?;
    expect(step, "envelope.epoch", &about.epoch, &envelope.epoch)?;
    Ok(sent)
}

/// Delivers a request, and receives the accept.
pub(super) async fn accepted(fixture: &mut Fixture, session: &mut Session) -> Result<About, Failed> {
    let offer = offer(fixture);
    let about = About::handoff(&offer.task_id, 1, &offer.message_id);
    let delivery_id = deliver_offer(fixture, session, &offer, &offer.message_id);
    let step = "the offer is delivered";
    let accept = answered::<v1::HandoffAccept>(fixture, step, session, MessageType::HandoffAccept, &about).await?;
    fixture.receipt(session, &accept);
    fixture.acked("the accept has its receipt", session, &delivery_id).await?;
    Ok(about)
}

/// Delivers the context, and receives the completion.
pub(super) async fn taken_over(fixture: &mut Fixture, session: &mut Session, about: &About) -> Verdict {
    let delivery_id = completed_by_client(fixture, session, about).await?;
    fixture.acked("the completion has its receipt", session, &delivery_id).await?;
    is_owned(fixture, about).await
}

/// Expects the event that the task is the client's.
pub(super) async fn is_owned(fixture: &mut Fixture, about: &About) -> Verdict {
    let step = "the completion has its receipt";
    let owned = fixture.event(step, "the event owned", |event| event["event"] == "owned").await?;
    expect(step, "owned.task_id", &json!(about.task_id), &owned["task_id"])?;
    expect(step, "owned.epoch", &json!(2), &owned["epoch"])
}

/// Delivers the context, and answers the completion with its receipt. Returns the delivery of the context.
pub(super) async fn completed_by_client(
    fixture: &mut Fixture,
    session: &mut Session,
    about: &About,
) -> Result<String, Failed> {
    let context = context();
    let envelope = fixture.alice.compose(AGENT, MessageType::TaskContextTransfer, about, &context);
    let delivery_id = fixture.deliver(session, &envelope);
    let step = "the context is delivered";
    let sent = answered::<v1::HandoffComplete>(fixture, step, session, MessageType::HandoffComplete, about).await?;
    let complete: v1::HandoffComplete = sent.payload();
    expect(step, "payload.outcome", v1::HandoffOutcome::Success.as_str_name(), complete.outcome().as_str_name())?;
    let digest = hex::encode(&context.context_digest);
    expect(step, "payload.context_digest", &digest, &hex::encode(&complete.context_digest))?;
    let mut receipt = fixture.unsigned_receipt(&sent);
    // The completion moves the ownership, which adds 1 to the epoch (SPEC 3).
    receipt.epoch += 1;
    fixture.signed_receipt(session, &sent, receipt);
    Ok(delivery_id)
}

async fn offer_is_taken_over(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    let about = accepted(fixture, &mut session).await?;
    taken_over(fixture, &mut session, &about).await
}

async fn offer_is_rejected(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    fixture.handle("HandoffRequest", "reject").await?;
    let offer = offer(fixture);
    let about = About::handoff(&offer.task_id, 1, &offer.message_id);
    let delivery_id = deliver_offer(fixture, &session, &offer, &offer.message_id);
    let step = "the offer is delivered";
    let sent = answered::<v1::HandoffReject>(fixture, step, &mut session, MessageType::HandoffReject, &about).await?;
    let reject: v1::HandoffReject = sent.payload();
    expect(step, "payload.reason", v1::RejectReason::NoSkill.as_str_name(), reject.reason().as_str_name())?;
    fixture.receipt(&session, &sent);
    fixture.acked("the rejection has its receipt", &mut session, &delivery_id).await
}

async fn handoff_id_is_the_deliverys(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    let offer = offer(fixture);
    // A redrive gives the handoff an id that differs from the message id of its request (SPEC 4).
    let handoff_id = fixture.info("for its id").message_id;
    let about = About::handoff(&offer.task_id, 1, &handoff_id);
    deliver_offer(fixture, &session, &offer, &handoff_id);
    let step = "an offer is delivered that was redriven";
    answered::<v1::HandoffAccept>(fixture, step, &mut session, MessageType::HandoffAccept, &about).await.map(drop)
}

async fn context_of_another_digest(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    let about = accepted(fixture, &mut session).await?;
    let context = v1::TaskContextTransfer { context_digest: vec![9; 32].into(), ..context() };
    let envelope = fixture.alice.compose(AGENT, MessageType::TaskContextTransfer, &about, &context);
    let delivery_id = fixture.deliver(&session, &envelope);
    let step = "a context of another digest is delivered";
    let seen = fixture
        .frame(step, "what the client says", "FAILURE, or a nack", &mut session, |frame| {
            let sent = envelope_of(frame, MessageType::HandoffComplete);
            let outcome = acknowledged(frame, &delivery_id);
            match (sent, outcome) {
                (Some(sent), _) => Some(sent.payload::<v1::HandoffComplete>().outcome().as_str_name().to_owned()),
                (_, Some(Outcome::Extend(_)) | None) => None,
                (_, Some(outcome)) => Some(outcome_in_words(&outcome)),
            }
        })
        .await?;
    let is_fine = seen == v1::HandoffOutcome::Failure.as_str_name() || seen.starts_with("nack");
    is_fine.then_some(()).ok_or_else(|| fixture.failed(step, "what the client says", "FAILURE, or a nack", seen))
}

async fn survives_a_broken_connection(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    let about = accepted(fixture, &mut session).await?;
    fixture.broker.relay.cut();
    let mut session = fixture.session("the connection is cut after the accept").await?;
    taken_over(fixture, &mut session, &about).await
}

async fn accept_without_answer(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    let offer = offer(fixture);
    deliver_offer(fixture, &session, &offer, &offer.message_id);
    let first = fixture.sent("the offer is delivered", &mut session, MessageType::HandoffAccept).await?;
    fixture.broker.relay.cut();
    let step = "the connection is cut before the receipt";
    let mut session = fixture.session(step).await?;
    let again = fixture.sent(step, &mut session, MessageType::HandoffAccept).await?;
    expect(step, "the accept, in hexadecimal", &hex::encode(&first.raw), &hex::encode(&again.raw))?;
    fixture.receipt(&session, &again);
    let about = About::handoff(&offer.task_id, 1, &offer.message_id);
    taken_over(fixture, &mut session, &about).await
}

async fn throwing_offer_handler(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    fixture.handle("HandoffRequest", "throw").await?;
    let offer = offer(fixture);
    let delivery_id = deliver_offer(fixture, &session, &offer, &offer.message_id);
    fixture.nacked("the handler throws", &mut session, &delivery_id, NackCause::Failure).await.map(drop)
}

/// Tells the client to hand a task over, and answers its request with a receipt.
async fn hand_over(fixture: &mut Fixture, session: &mut Session) -> Result<(u64, About), Failed> {
    let (id, about, _) = hand_over_by(fixture, session, "hand_over", json!({})).await?;
    Ok((id, about))
}

/// The same by another command with the same and further fields. Returns the request too.
pub(super) async fn hand_over_by(
    fixture: &mut Fixture,
    session: &mut Session,
    command: &str,
    further: Value,
) -> Result<(u64, About, v1::HandoffRequest), Failed> {
    let task_id = new_task();
    let mut command = json!({
        "command": command, "to": "alice", "task_id": task_id, "epoch": 1, "task_type": "ticket", "context": sections(),
    });
    for (name, value) in further.as_object().into_iter().flatten() {
        command[name] = value.clone();
    }
    let id = fixture.harness.tell(command);
    let step = "the client hands a task over";
    let about = About::task(&task_id, 1);
    let request = answered::<v1::HandoffRequest>(fixture, step, session, MessageType::HandoffRequest, &about).await?;
    let payload: v1::HandoffRequest = request.payload();
    expect(step, "payload.task_type", "ticket", payload.task_type.as_str())?;
    fixture.receipt(session, &request);
    Ok((id, About::handoff(&task_id, 1, &request.envelope.message_id), payload))
}

async fn task_is_handed_over(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    let (id, about) = hand_over(fixture, &mut session).await?;
    let accept = fixture.alice.compose(AGENT, MessageType::HandoffAccept, &about, &v1::HandoffAccept::default());
    let delivery_id = fixture.deliver(&session, &accept);
    let step = "alice accepts";
    let kind = MessageType::TaskContextTransfer;
    let sent = answered::<v1::TaskContextTransfer>(fixture, step, &mut session, kind, &about).await?;
    let context: v1::TaskContextTransfer = sent.payload();
    let names: Vec<_> = context.sections.iter().map(|section| section.name.as_str()).collect();
    expect(step, "number of sections", &2, &names.len())?;
    let digest = baton_client::context_of_sections(context.sections.clone()).context_digest;
    expect(step, "payload.context_digest", &hex::encode(digest), &hex::encode(&context.context_digest))?;
    fixture.receipt(&session, &sent);
    fixture.acked("the context has its receipt", &mut session, &delivery_id).await?;
    let complete = v1::HandoffComplete {
        outcome: v1::HandoffOutcome::Success.into(),
        context_digest: context.context_digest,
        ..Default::default()
    };
    let complete = fixture.alice.compose(AGENT, MessageType::HandoffComplete, &about, &complete);
    let delivery_id = fixture.deliver(&session, &complete);
    let step = "alice has taken over";
    let done = fixture.done(step, id).await?;
    expect(step, "done.owner_id", &json!("alice"), &done["owner_id"])?;
    expect(step, "done.epoch", &json!(2), &done["epoch"])?;
    fixture.acked(step, &mut session, &delivery_id).await
}

async fn handoff_at_its_limit(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    let (id, about, _) = hand_over_by(fixture, &mut session, "hand_over", json!({"timeout_ms": LIMIT_MS})).await?;
    let handoff = |state: v1::HandoffState, error_code: v1::ErrorCode| v1::Handoff {
        handoff_id: about.correlation_id.clone(),
        task_id: about.task_id.clone(),
        sender_id: AGENT.to_owned(),
        candidate_id: "alice".to_owned(),
        epoch: about.epoch,
        state: state.into(),
        error_code: error_code.into(),
        ..Default::default()
    };
    let open = handoff(v1::HandoffState::Deciding, v1::ErrorCode::Unspecified);
    fixture.broker.state().handoffs.insert(about.correlation_id.clone(), open);
    let step = "the time limit of the call passes";
    let kind = MessageType::HandoffCancel;
    let sent = answered::<v1::HandoffCancel>(fixture, step, &mut session, kind, &about).await?;
    let over = handoff(v1::HandoffState::Cancelled, v1::ErrorCode::HandoffCancelled);
    fixture.broker.state().handoffs.insert(about.correlation_id.clone(), over);
    fixture.receipt(&session, &sent);
    fixture.refused(step, id, json!({"kind": "handoff_failed", "reason": "HANDOFF_CANCELLED"})).await
}

async fn failed_handoff(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    let (id, about) = hand_over(fixture, &mut session).await?;
    let told = v1::ErrorNotification {
        error_code: v1::ErrorCode::NoCandidate.into(),
        error_message: "no candidate took the handoff".to_owned(),
        severity: v1::Severity::Warning.into(),
        origin_agent_id: "baton".to_owned(),
        next_step: v1::NextStep::KeepTask.into(),
        ..Default::default()
    };
    let broker = composer("baton", "broker", fixture.broker.key.clone());
    let envelope = broker.compose(AGENT, MessageType::ErrorNotification, &about, &told);
    let delivery_id = fixture.deliver(&session, &envelope);
    let step = "the broker reports that no candidate took the handoff";
    fixture.refused(step, id, json!({"kind": "handoff_failed", "reason": "NO_CANDIDATE"})).await?;
    fixture.acked(step, &mut session, &delivery_id).await
}

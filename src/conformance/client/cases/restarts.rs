//! An agent whose process died, and its next process, which has no state.

use std::time::Duration;

use serde_json::{Value, json};
use tonic::Code;

use super::{
    super::{
        bench::{Bench, Sent, Verdict, acknowledged, envelope_of, expect, new_task, outcome_in_words},
        broker::{AGENT, Session},
        refusal::Refusal,
    },
    cases,
    handoffs::{answered, context, deliver_offer, hand_over_by, offer_of, taken_over},
};
use crate::{
    client::About,
    conformance::report::Failed,
    proto::v1::{
        self, HandoffState, MessageType, NackCause, TaskStatus, acknowledgement::Outcome,
        connect_response::Response as Said,
    },
};

cases! {
    "client.sender-restart-sends-context", "3 4",
    "An accept without a waiting call gets its context from the provider, and is acked after the receipt.",
    sends_context;
    "client.sender-restart-resumes", "3 4",
    "A handoff that an earlier process asked for is resumed at any state, also where it has ended, as if handed over here.",
    resumes;
    "client.sender-restart-accept-is-not-poison", "3 4",
    "An accept without provider or call is nacked as SHUTDOWN with a delay until resumed, and acked after the end.",
    accept_is_not_poison;
    "client.receiver-restart-takes-context", "3 4",
    "A context whose offer an earlier process accepted is taken over, and acked after the receipt.",
    takes_context;
    "client.receiver-restart-after-accept", "3 4",
    "An offer that an earlier process accepted, and that comes again, is acked; its context is taken over.",
    after_accept;
    "client.receiver-restart-after-complete", "3 4",
    "A context that an earlier process took over, and that comes again, is acked, and the task is this agent's.",
    after_complete;
    "client.owned-tasks-are-listed", "3",
    "The tasks that this agent owns and that are not final are listed over all pages, with epoch and open handoff.",
    owned_tasks_are_listed;
    "client.task-is-delegated", "3",
    "Delegating ends with the delegate's final status: its result, and the epoch at which the task is here again.",
    task_is_delegated;
}

/// The redelivery delay after a nack as SHUTDOWN. It is shorter than the requested delay to keep the case short.
const REDELIVERED_AFTER: Duration = Duration::from_millis(400);

/// The sections of a context, in the form of a command.
pub(super) fn sections() -> Value {
    json!({"goals": ["find the cause"], "task_description": {"what": "a ticket"}})
}

/// Adds a handoff of a new task in this state, from one of the two agents to the other, to the broker's state.
fn known_handoff(bench: &Bench, sender: &str, candidate: &str, state: HandoffState) -> About {
    let about = About::handoff(&new_task(), 1, &bench.info("for its id").message_id);
    let handoff = v1::Handoff {
        handoff_id: about.correlation_id.clone(),
        task_id: about.task_id.clone(),
        epoch: 1,
        sender_id: sender.to_owned(),
        receiver_id: candidate.to_owned(),
        candidate_id: candidate.to_owned(),
        task_type: "ticket".to_owned(),
        mode: v1::HandoffMode::Transfer.into(),
        ..Default::default()
    };
    bench.broker.state().handoffs.insert(about.correlation_id.clone(), handoff);
    has_moved(bench, &about, state);
    about
}

/// Moves the handoff to this state, and its task too if the state implies that.
fn has_moved(bench: &Bench, about: &About, to: HandoffState) {
    let mut state = bench.broker.state();
    let Some(handoff) = state.handoffs.get_mut(&about.correlation_id) else { return };
    handoff.state = to.into();
    let is_completed = to == HandoffState::Completed;
    let is_open = matches!(
        to,
        HandoffState::Requested | HandoffState::Deciding | HandoffState::Accepted | HandoffState::ContextSent
    );
    let (sender_id, receiver_id) = (handoff.sender_id.clone(), handoff.candidate_id.clone());
    let owner_id = if is_completed { receiver_id.clone() } else { sender_id.clone() };
    let handoff_id = about.correlation_id.clone();
    let hop = v1::TaskHop { handoff_id: handoff_id.clone(), sender_id, receiver_id, epoch: 2 };
    let task = v1::Task {
        task_id: about.task_id.clone(),
        task_type: "ticket".to_owned(),
        owner_id,
        epoch: if is_completed { 2 } else { 1 },
        status: TaskStatus::Created.into(),
        open_handoff_id: if is_open { handoff_id } else { String::new() },
        hops: if is_completed { vec![hop] } else { Vec::new() },
        ..Default::default()
    };
    state.tasks.retain(|known| known.task_id != about.task_id);
    state.tasks.push(task);
}

pub(super) fn accept_of(bench: &Bench, about: &About) -> v1::Envelope {
    bench.alice.compose(AGENT, MessageType::HandoffAccept, about, &v1::HandoffAccept::default())
}

/// Delivers with this attempt number, which starts at 1.
fn deliver_again(bench: &mut Bench, session: &Session, envelope: &v1::Envelope, attempt: u32) -> String {
    bench.deliver_bytes(session, prost::Message::encode_to_vec(envelope).into(), attempt)
}

/// Checks that the client has not acknowledged the delivery, after later mail gave it the time to do so.
async fn is_not_yet_acknowledged(bench: &mut Bench, step: &str, session: &mut Session, delivery_id: &str) -> Verdict {
    bench.mail_goes_on(session).await?;
    let named = format!("of {delivery_id}");
    let said = session.unread().into_iter().find(|words| words.ends_with(&named) && !words.starts_with("extend"));
    expect(step, &format!("delivery {delivery_id}"), "nothing", said.as_deref().unwrap_or("nothing"))
}

/// Expects the client to send the context of this handoff.
pub(super) async fn context_is_sent(
    bench: &Bench,
    step: &str,
    session: &mut Session,
    about: &About,
) -> Result<Sent, Failed> {
    let kind = MessageType::TaskContextTransfer;
    let sent = answered::<v1::TaskContextTransfer>(bench, step, session, kind, about).await?;
    let context: v1::TaskContextTransfer = sent.payload();
    let mut names: Vec<&str> = context.sections.iter().map(|section| section.name.as_str()).collect();
    names.sort_unstable();
    expect(step, "names of sections", "goals, task_description", names.join(", ").as_str())?;
    let digest = crate::client::context_of_sections(context.sections.clone()).context_digest;
    expect(step, "payload.context_digest", &hex::encode(digest), &hex::encode(&context.context_digest))?;
    Ok(sent)
}

/// Redelivers the accept until a call of the client waits for it, and receives the context. The client may send the
/// context because of the handoff's state, before the accept arrives; it must not send it twice.
async fn context_follows_accept(
    bench: &mut Bench,
    session: &mut Session,
    about: &About,
) -> Result<v1::TaskContextTransfer, Failed> {
    let accept = accept_of(bench, about);
    let step = "the accept is delivered again";
    let kind = MessageType::TaskContextTransfer;
    for attempt in 2..50 {
        let delivery_id = deliver_again(bench, session, &accept, attempt);
        let seen = bench
            .frame(step, "a context, or a nack", "a context", session, |frame| {
                match (envelope_of(frame, kind), acknowledged(frame, &delivery_id)) {
                    (Some(sent), _) => Some(Ok(sent)),
                    (None, Some(Outcome::Extend(_)) | None) => None,
                    (None, Some(outcome)) => Some(Err(outcome)),
                }
            })
            .await?;
        match seen {
            Ok(sent) => {
                expect(step, "envelope.receiver_id", "alice", sent.envelope.receiver_id.as_str())?;
                expect(step, "envelope.correlation_id", &about.correlation_id, &sent.envelope.correlation_id)?;
                has_moved(bench, about, HandoffState::ContextSent);
                bench.receipt(session, &sent);
                bench.acked("the context has its receipt", session, &delivery_id).await?;
                return Ok(sent.payload());
            }
            // The accept arrived ahead of the command. The case redelivers the accept after the delay, as a broker does.
            Err(Outcome::Nack(nack)) if nack.cause() == NackCause::Shutdown => {
                tokio::time::sleep(REDELIVERED_AFTER).await;
            }
            Err(outcome) => return Err(bench.failed(step, "accept", "a context", outcome_in_words(&outcome))),
        }
    }
    Err(bench.failed(step, "accept", "a context", "given back each time".to_owned()))
}

/// Completes the takeover as alice: the command is `done` and names the new owner.
async fn alice_takes_over(
    bench: &mut Bench,
    session: &mut Session,
    about: &About,
    context: v1::TaskContextTransfer,
    id: u64,
) -> Verdict {
    let complete = v1::HandoffComplete {
        outcome: v1::HandoffOutcome::Success.into(),
        context_digest: context.context_digest,
        ..Default::default()
    };
    has_moved(bench, about, HandoffState::Completed);
    let complete = bench.alice.compose(AGENT, MessageType::HandoffComplete, about, &complete);
    let delivery_id = bench.deliver(session, &complete);
    let step = "alice has taken over";
    is_done_with_alice(bench, step, id).await?;
    bench.acked(step, session, &delivery_id).await
}

async fn is_done_with_alice(bench: &mut Bench, step: &str, id: u64) -> Verdict {
    let done = bench.done(step, id).await?;
    expect(step, "done.owner_id", &json!("alice"), &done["owner_id"])?;
    expect(step, "done.epoch", &json!(2), &done["epoch"])
}

fn resume(bench: &mut Bench, about: &About) -> u64 {
    let handoff_id = &about.correlation_id;
    bench.harness.tell(json!({"command": "resume", "handoff_id": handoff_id, "context": sections()}))
}

async fn sends_context(bench: &mut Bench) -> Verdict {
    let mut command = bench.connect();
    command["context"] = sections();
    let mut session = bench.connected_by(command).await?;
    let about = known_handoff(bench, AGENT, "alice", HandoffState::Accepted);
    let accept = accept_of(bench, &about);
    let delivery_id = deliver_again(bench, &session, &accept, 2);
    let step = "an accept is delivered to a process that did not ask";
    let sent = context_is_sent(bench, step, &mut session, &about).await?;
    is_not_yet_acknowledged(bench, "the context has no receipt yet", &mut session, &delivery_id).await?;
    has_moved(bench, &about, HandoffState::ContextSent);
    bench.receipt(&session, &sent);
    bench.acked("the context has its receipt", &mut session, &delivery_id).await?;
    // The earlier process sent the context, and died before it acked the accept.
    let about = known_handoff(bench, AGENT, "alice", HandoffState::ContextSent);
    let accept = accept_of(bench, &about);
    let delivery_id = deliver_again(bench, &session, &accept, 2);
    let state = ("state", "CONTEXT_SENT");
    repeat_is_acked(bench, &mut session, &delivery_id, MessageType::TaskContextTransfer, "HANDOFF_STATE", state).await
}

async fn resumes(bench: &mut Bench) -> Verdict {
    let mut session = bench.connected().await?;
    let about = known_handoff(bench, AGENT, "alice", HandoffState::Deciding);
    let id = resume(bench, &about);
    has_moved(bench, &about, HandoffState::Accepted);
    let sent = context_follows_accept(bench, &mut session, &about).await?;
    alice_takes_over(bench, &mut session, &about, sent, id).await?;
    let id = resume(bench, &about);
    is_done_with_alice(bench, "a handoff that is complete is resumed", id).await?;
    let about = known_handoff(bench, AGENT, "alice", HandoffState::ContextSent);
    let mut shown = bench.broker.state().handoffs_shown.subscribe();
    let id = resume(bench, &about);
    let step = "a handoff whose context was sent is resumed";
    let asked = tokio::time::timeout(bench.patience, shown.changed()).await;
    asked.map_err(|_| bench.failed(step, "GetHandoff", "a call", format!("none within {:?}", bench.patience)))?.ok();
    alice_takes_over(bench, &mut session, &about, context(), id).await?;
    let about = known_handoff(bench, AGENT, "alice", HandoffState::Rejected);
    if let Some(handoff) = bench.broker.state().handoffs.get_mut(&about.correlation_id) {
        handoff.error_code = v1::ErrorCode::NoCandidate.into();
        handoff.error_message = "no candidate took the handoff".to_owned();
    }
    let id = resume(bench, &about);
    let expected = json!({"kind": "handoff_failed", "reason": "NO_CANDIDATE"});
    bench.refused("a handoff that was rejected is resumed", id, expected).await
}

async fn accept_is_not_poison(bench: &mut Bench) -> Verdict {
    let mut session = bench.connected().await?;
    let about = known_handoff(bench, AGENT, "alice", HandoffState::Accepted);
    let accept = accept_of(bench, &about);
    let delivery_id = deliver_again(bench, &session, &accept, 1);
    let step = "an accept is delivered for which nothing waits";
    let nack = bench.nacked(step, &mut session, &delivery_id, NackCause::Shutdown).await?;
    let seconds = nack.retry_after.map_or(0, |span| span.seconds);
    expect(step, "whether nack.retry_after is 1 to 10 s", &true, &(1..=10).contains(&seconds))?;
    bench.mail_goes_on(&mut session).await?;
    let id = resume(bench, &about);
    let sent = context_follows_accept(bench, &mut session, &about).await?;
    alice_takes_over(bench, &mut session, &about, sent, id).await?;
    let about = known_handoff(bench, AGENT, "alice", HandoffState::Cancelled);
    let accept = accept_of(bench, &about);
    let delivery_id = deliver_again(bench, &session, &accept, 1);
    bench.acked("an accept of a handoff that is over is delivered", &mut session, &delivery_id).await
}

async fn takes_context(bench: &mut Bench) -> Verdict {
    let mut session = bench.connected().await?;
    let about = known_handoff(bench, "alice", AGENT, HandoffState::ContextSent);
    taken_over(bench, &mut session, &about).await
}

/// Refuses the step that an earlier process has made, on every retry of the client, until the client acks the delivery.
async fn repeat_is_acked(
    bench: &Bench,
    session: &mut Session,
    delivery_id: &str,
    kind: MessageType,
    reason: &'static str,
    state: (&'static str, &'static str),
) -> Verdict {
    let step = format!("the broker refuses the repeated step: {reason}");
    for _ in 0..4 {
        let seen = bench
            .frame(&step, "what the client says", "an ack", session, |frame| {
                match (envelope_of(frame, kind), acknowledged(frame, delivery_id)) {
                    (Some(sent), _) => Some(Ok(sent.request_id)),
                    (None, Some(Outcome::Extend(_)) | None) => None,
                    (None, Some(outcome)) => Some(Err(outcome)),
                }
            })
            .await?;
        match seen {
            Ok(request_id) => {
                let refusal = Refusal { metadata: Some(state), ..Refusal::new(Code::FailedPrecondition, reason) };
                session.say(request_id, Said::Error(refusal.message()));
            }
            Err(outcome) => {
                return expect(&step, &format!("delivery {delivery_id}"), "ack", &outcome_in_words(&outcome));
            }
        }
    }
    Err(bench.failed(&step, "the step", "that it is not tried for ever", "four times".to_owned()))
}

async fn after_accept(bench: &mut Bench) -> Verdict {
    let mut session = bench.connected().await?;
    let about = known_handoff(bench, "alice", AGENT, HandoffState::Accepted);
    let offer = offer_of(bench, &about.task_id);
    let delivery_id = deliver_offer(bench, &session, &offer, &about.correlation_id);
    let state = ("state", "ACCEPTED");
    repeat_is_acked(bench, &mut session, &delivery_id, MessageType::HandoffAccept, "HANDOFF_STATE", state).await?;
    has_moved(bench, &about, HandoffState::ContextSent);
    taken_over(bench, &mut session, &about).await
}

async fn after_complete(bench: &mut Bench) -> Verdict {
    let mut session = bench.connected().await?;
    let about = known_handoff(bench, "alice", AGENT, HandoffState::Completed);
    let envelope = bench.alice.compose(AGENT, MessageType::TaskContextTransfer, &about, &context());
    let delivery_id = deliver_again(bench, &session, &envelope, 2);
    let state = ("state", "COMPLETED");
    repeat_is_acked(bench, &mut session, &delivery_id, MessageType::HandoffComplete, "HANDOFF_FINAL", state).await?;
    let step = "the task is this agent's";
    let owned = bench.event(step, "the event owned", |event| event["event"] == "owned").await?;
    expect(step, "owned.task_id", &json!(about.task_id), &owned["task_id"])?;
    expect(step, "owned.epoch", &json!(2), &owned["epoch"])
}

async fn owned_tasks_are_listed(bench: &mut Bench) -> Verdict {
    let _session = bench.connected().await?;
    let task = |number: u64, owner: &str, status: TaskStatus, open_handoff_id: &str| v1::Task {
        task_id: format!("task-{number}"),
        owner_id: owner.to_owned(),
        epoch: number,
        status: status.into(),
        open_handoff_id: open_handoff_id.to_owned(),
        ..Default::default()
    };
    let open = bench.info("for its id").message_id;
    bench.broker.state().tasks = vec![
        task(7, AGENT, TaskStatus::Created, &open),
        task(6, AGENT, TaskStatus::Completed, ""),
        task(5, "alice", TaskStatus::InProgress, ""),
        task(4, AGENT, TaskStatus::InProgress, ""),
        task(3, AGENT, TaskStatus::Failed, ""),
        task(2, AGENT, TaskStatus::WaitingForInput, ""),
        task(1, AGENT, TaskStatus::InProgress, ""),
    ];
    let id = bench.harness.tell(json!({"command": "owned_tasks"}));
    let step = "the client lists its tasks, two on a page";
    let done = bench.done(step, id).await?;
    let item = |number: u64, handoff: &str| json!({"task_id": format!("task-{number}"), "epoch": number, "handoff_id": handoff});
    expect(step, "done.tasks", &json!([item(7, &open), item(4, ""), item(2, ""), item(1, "")]), &done["tasks"])
}

async fn task_is_delegated(bench: &mut Bench) -> Verdict {
    let mut session = bench.connected().await?;
    let (id, about, request) = hand_over_by(bench, &mut session, "delegate", json!({})).await?;
    let mode = request.mode().as_str_name();
    expect("the client lends a task", "payload.mode", v1::HandoffMode::Delegate.as_str_name(), mode)?;
    let accept = accept_of(bench, &about);
    let delivery_id = bench.deliver(&session, &accept);
    let sent = context_is_sent(bench, "alice accepts", &mut session, &about).await?;
    bench.receipt(&session, &sent);
    bench.acked("the context has its receipt", &mut session, &delivery_id).await?;
    let complete = v1::HandoffComplete {
        outcome: v1::HandoffOutcome::Success.into(),
        context_digest: sent.payload::<v1::TaskContextTransfer>().context_digest,
        ..Default::default()
    };
    let complete = bench.alice.compose(AGENT, MessageType::HandoffComplete, &about, &complete);
    let delivery_id = bench.deliver(&session, &complete);
    bench.acked("alice has taken over", &mut session, &delivery_id).await?;
    let lent = About::task(&about.task_id, 2);
    let update = |status: TaskStatus, result| v1::TaskStatusUpdate {
        status: status.into(),
        details: "a loose plug".to_owned(),
        result,
        ..Default::default()
    };
    let progress =
        bench.alice.compose(AGENT, MessageType::TaskStatusUpdate, &lent, &update(TaskStatus::InProgress, None));
    let delivery_id = bench.deliver(&session, &progress);
    let step = "alice works on it";
    bench.acked(step, &mut session, &delivery_id).await?;
    bench.mail_goes_on(&mut session).await?;
    let is_over = bench.harness.has(|event| event["id"] == id);
    expect(step, "whether the command has ended", &false, &is_over)?;
    let cause = prost_types::Value { kind: Some(prost_types::value::Kind::StringValue("a plug".to_owned())) };
    let result = prost_types::Struct { fields: [("cause".to_owned(), cause)].into() };
    let finished =
        bench.alice.compose(AGENT, MessageType::TaskStatusUpdate, &lent, &update(TaskStatus::Completed, Some(result)));
    let delivery_id = bench.deliver(&session, &finished);
    let step = "alice has finished";
    let done = bench.done(step, id).await?;
    expect(step, "done.epoch", &json!(3), &done["epoch"])?;
    expect(step, "done.status", &json!("COMPLETED"), &done["status"])?;
    expect(step, "done.result", &json!({"cause": "a plug"}), &done["result"])?;
    bench.acked(step, &mut session, &delivery_id).await
}

//! An agent whose process died, and its next process, which has no state.

use std::time::Duration;

use serde_json::{Value, json};
use tonic::Code;

use super::{
    super::{
        broker::{AGENT, Session},
        fixture::{Fixture, Sent, Verdict, acknowledged, envelope_of, expect, new_task, outcome_in_words},
        refusal::Refusal,
    },
    cases,
    handoffs::{answered, context, deliver_offer, hand_over_by, offer_of, taken_over},
};
use crate::report::Failed;
use baton_client::{
    About,
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
fn known_handoff(fixture: &Fixture, sender: &str, candidate: &str, state: HandoffState) -> About {
    let about = About::handoff(&new_task(), 1, &fixture.info("for its id").message_id);
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
    fixture.broker.state().handoffs.insert(about.correlation_id.clone(), handoff);
    has_moved(fixture, &about, state);
    about
}

/// Moves the handoff to this state, and its task too if the state implies that.
fn has_moved(fixture: &Fixture, about: &About, to: HandoffState) {
    let mut state = fixture.broker.state();
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

pub(super) fn accept_of(fixture: &Fixture, about: &About) -> v1::Envelope {
    fixture.alice.compose(AGENT, MessageType::HandoffAccept, about, &v1::HandoffAccept::default())
}

/// Delivers with this attempt number, which starts at 1.
fn deliver_again(fixture: &mut Fixture, session: &Session, envelope: &v1::Envelope, attempt: u32) -> String {
    fixture.deliver_bytes(session, prost::Message::encode_to_vec(envelope).into(), attempt)
}

/// Checks that the client has not acknowledged the delivery, after later mail gave it the time to do so.
async fn is_not_yet_acknowledged(
    fixture: &mut Fixture,
    step: &str,
    session: &mut Session,
    delivery_id: &str,
) -> Verdict {
    fixture.mail_goes_on(session).await?;
    let named = format!("of {delivery_id}");
    let said = session.unread().into_iter().find(|words| words.ends_with(&named) && !words.starts_with("extend"));
    expect(step, &format!("delivery {delivery_id}"), "nothing", said.as_deref().unwrap_or("nothing"))
}

/// Expects the client to send the context of this handoff.
pub(super) async fn context_is_sent(
    fixture: &Fixture,
    step: &str,
    session: &mut Session,
    about: &About,
) -> Result<Sent, Failed> {
    let kind = MessageType::TaskContextTransfer;
    let sent = answered::<v1::TaskContextTransfer>(fixture, step, session, kind, about).await?;
    let context: v1::TaskContextTransfer = sent.payload();
    let mut names: Vec<&str> = context.sections.iter().map(|section| section.name.as_str()).collect();
    names.sort_unstable();
    expect(step, "names of sections", "goals, task_description", names.join(", ").as_str())?;
    let digest = baton_client::context_of_sections(context.sections.clone()).context_digest;
    expect(step, "payload.context_digest", &hex::encode(digest), &hex::encode(&context.context_digest))?;
    Ok(sent)
}

/// Redelivers the accept until a call of the client waits for it, and receives the context. The client may send the
/// context because of the handoff's state, before the accept arrives; it must not send it twice.
async fn context_follows_accept(
    fixture: &mut Fixture,
    session: &mut Session,
    about: &About,
) -> Result<v1::TaskContextTransfer, Failed> {
    let accept = accept_of(fixture, about);
    let step = "the accept is delivered again";
    let kind = MessageType::TaskContextTransfer;
    for attempt in 2..50 {
        let delivery_id = deliver_again(fixture, session, &accept, attempt);
        let seen = fixture
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
                has_moved(fixture, about, HandoffState::ContextSent);
                fixture.receipt(session, &sent);
                let step = "the context has its receipt";
                match fixture.outcome(step, session, &delivery_id).await? {
                    // The client looked at the accept before the command, which then sent the context.
                    Outcome::Nack(nack) if nack.cause() == NackCause::Shutdown => {
                        let delivery_id = deliver_again(fixture, session, &accept, attempt + 1);
                        fixture.acked(step, session, &delivery_id).await?;
                    }
                    outcome => {
                        expect(step, &format!("delivery {delivery_id}"), "ack", &outcome_in_words(&outcome))?;
                    }
                }
                return Ok(sent.payload());
            }
            // The accept arrived ahead of the command. The case redelivers the accept after the delay, as a broker does.
            Err(Outcome::Nack(nack)) if nack.cause() == NackCause::Shutdown => {
                tokio::time::sleep(REDELIVERED_AFTER).await;
            }
            Err(outcome) => return Err(fixture.failed(step, "accept", "a context", outcome_in_words(&outcome))),
        }
    }
    Err(fixture.failed(step, "accept", "a context", "given back each time".to_owned()))
}

/// Completes the takeover as alice: the command is `done` and names the new owner.
async fn alice_takes_over(
    fixture: &mut Fixture,
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
    has_moved(fixture, about, HandoffState::Completed);
    let complete = fixture.alice.compose(AGENT, MessageType::HandoffComplete, about, &complete);
    let delivery_id = fixture.deliver(session, &complete);
    let step = "alice has taken over";
    is_done_with_alice(fixture, step, id).await?;
    fixture.acked(step, session, &delivery_id).await
}

async fn is_done_with_alice(fixture: &mut Fixture, step: &str, id: u64) -> Verdict {
    let done = fixture.done(step, id).await?;
    expect(step, "done.owner_id", &json!("alice"), &done["owner_id"])?;
    expect(step, "done.epoch", &json!(2), &done["epoch"])
}

fn resume(fixture: &mut Fixture, about: &About) -> u64 {
    let handoff_id = &about.correlation_id;
    fixture.harness.tell(json!({"command": "resume", "handoff_id": handoff_id, "context": sections()}))
}

async fn sends_context(fixture: &mut Fixture) -> Verdict {
    let mut command = fixture.connect();
    command["context"] = sections();
    let mut session = fixture.connected_by(command).await?;
    let about = known_handoff(fixture, AGENT, "alice", HandoffState::Accepted);
    let accept = accept_of(fixture, &about);
    let delivery_id = deliver_again(fixture, &session, &accept, 2);
    let step = "an accept is delivered to a process that did not ask";
    let sent = context_is_sent(fixture, step, &mut session, &about).await?;
    is_not_yet_acknowledged(fixture, "the context has no receipt yet", &mut session, &delivery_id).await?;
    has_moved(fixture, &about, HandoffState::ContextSent);
    fixture.receipt(&session, &sent);
    fixture.acked("the context has its receipt", &mut session, &delivery_id).await?;
    // The earlier process sent the context, and died before it acked the accept.
    let about = known_handoff(fixture, AGENT, "alice", HandoffState::ContextSent);
    let accept = accept_of(fixture, &about);
    let delivery_id = deliver_again(fixture, &session, &accept, 2);
    let state = ("state", "CONTEXT_SENT");
    repeat_is_acked(fixture, &mut session, &delivery_id, MessageType::TaskContextTransfer, "HANDOFF_STATE", state).await
}

async fn resumes(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    let about = known_handoff(fixture, AGENT, "alice", HandoffState::Deciding);
    let id = resume(fixture, &about);
    has_moved(fixture, &about, HandoffState::Accepted);
    let sent = context_follows_accept(fixture, &mut session, &about).await?;
    alice_takes_over(fixture, &mut session, &about, sent, id).await?;
    let id = resume(fixture, &about);
    is_done_with_alice(fixture, "a handoff that is complete is resumed", id).await?;
    let about = known_handoff(fixture, AGENT, "alice", HandoffState::ContextSent);
    let mut shown = fixture.broker.state().handoffs_shown.subscribe();
    let id = resume(fixture, &about);
    let step = "a handoff whose context was sent is resumed";
    let asked = tokio::time::timeout(fixture.patience, shown.changed()).await;
    asked
        .map_err(|_| fixture.failed(step, "GetHandoff", "a call", format!("none within {:?}", fixture.patience)))?
        .ok();
    alice_takes_over(fixture, &mut session, &about, context(), id).await?;
    let about = known_handoff(fixture, AGENT, "alice", HandoffState::Rejected);
    if let Some(handoff) = fixture.broker.state().handoffs.get_mut(&about.correlation_id) {
        handoff.error_code = v1::ErrorCode::NoCandidate.into();
        handoff.error_message = "no candidate took the handoff".to_owned();
    }
    let id = resume(fixture, &about);
    let expected = json!({"kind": "handoff_failed", "reason": "NO_CANDIDATE"});
    fixture.refused("a handoff that was rejected is resumed", id, expected).await
}

async fn accept_is_not_poison(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    let about = known_handoff(fixture, AGENT, "alice", HandoffState::Accepted);
    let accept = accept_of(fixture, &about);
    let delivery_id = deliver_again(fixture, &session, &accept, 1);
    let step = "an accept is delivered for which nothing waits";
    let nack = fixture.nacked(step, &mut session, &delivery_id, NackCause::Shutdown).await?;
    let seconds = nack.retry_after.map_or(0, |span| span.seconds);
    expect(step, "whether nack.retry_after is 1 to 10 s", &true, &(1..=10).contains(&seconds))?;
    fixture.mail_goes_on(&mut session).await?;
    let id = resume(fixture, &about);
    let sent = context_follows_accept(fixture, &mut session, &about).await?;
    alice_takes_over(fixture, &mut session, &about, sent, id).await?;
    let about = known_handoff(fixture, AGENT, "alice", HandoffState::Cancelled);
    let accept = accept_of(fixture, &about);
    let delivery_id = deliver_again(fixture, &session, &accept, 1);
    fixture.acked("an accept of a handoff that is over is delivered", &mut session, &delivery_id).await
}

async fn takes_context(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    let about = known_handoff(fixture, "alice", AGENT, HandoffState::ContextSent);
    taken_over(fixture, &mut session, &about).await
}

/// Refuses the step that an earlier process has made, on every retry of the client, until the client acks the delivery.
async fn repeat_is_acked(
    fixture: &Fixture,
    session: &mut Session,
    delivery_id: &str,
    kind: MessageType,
    reason: &'static str,
    state: (&'static str, &'static str),
) -> Verdict {
    let step = format!("the broker refuses the repeated step: {reason}");
    for _ in 0..4 {
        let seen = fixture
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
    Err(fixture.failed(&step, "the step", "that it is not tried for ever", "four times".to_owned()))
}

async fn after_accept(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    let about = known_handoff(fixture, "alice", AGENT, HandoffState::Accepted);
    let offer = offer_of(fixture, &about.task_id);
    let delivery_id = deliver_offer(fixture, &session, &offer, &about.correlation_id);
    let state = ("state", "ACCEPTED");
    repeat_is_acked(fixture, &mut session, &delivery_id, MessageType::HandoffAccept, "HANDOFF_STATE", state).await?;
    has_moved(fixture, &about, HandoffState::ContextSent);
    taken_over(fixture, &mut session, &about).await
}

async fn after_complete(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    let about = known_handoff(fixture, "alice", AGENT, HandoffState::Completed);
    let envelope = fixture.alice.compose(AGENT, MessageType::TaskContextTransfer, &about, &context());
    let delivery_id = deliver_again(fixture, &session, &envelope, 2);
    let state = ("state", "COMPLETED");
    repeat_is_acked(fixture, &mut session, &delivery_id, MessageType::HandoffComplete, "HANDOFF_FINAL", state).await?;
    let step = "the task is this agent's";
    let owned = fixture.event(step, "the event owned", |event| event["event"] == "owned").await?;
    expect(step, "owned.task_id", &json!(about.task_id), &owned["task_id"])?;
    expect(step, "owned.epoch", &json!(2), &owned["epoch"])
}

async fn owned_tasks_are_listed(fixture: &mut Fixture) -> Verdict {
    let _session = fixture.connected().await?;
    let task = |number: u64, owner: &str, status: TaskStatus, open_handoff_id: &str| v1::Task {
        task_id: format!("task-{number}"),
        owner_id: owner.to_owned(),
        epoch: number,
        status: status.into(),
        open_handoff_id: open_handoff_id.to_owned(),
        ..Default::default()
    };
    let open = fixture.info("for its id").message_id;
    fixture.broker.state().tasks = vec![
        task(7, AGENT, TaskStatus::Created, &open),
        task(6, AGENT, TaskStatus::Completed, ""),
        task(5, "alice", TaskStatus::InProgress, ""),
        task(4, AGENT, TaskStatus::InProgress, ""),
        task(3, AGENT, TaskStatus::Failed, ""),
        task(2, AGENT, TaskStatus::WaitingForInput, ""),
        task(1, AGENT, TaskStatus::InProgress, ""),
    ];
    let id = fixture.harness.tell(json!({"command": "owned_tasks"}));
    let step = "the client lists its tasks, two on a page";
    let done = fixture.done(step, id).await?;
    let item = |number: u64, handoff: &str| json!({"task_id": format!("task-{number}"), "epoch": number, "handoff_id": handoff});
    expect(step, "done.tasks", &json!([item(7, &open), item(4, ""), item(2, ""), item(1, "")]), &done["tasks"])
}

async fn task_is_delegated(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    let (id, about, request) = hand_over_by(fixture, &mut session, "delegate", json!({})).await?;
    let mode = request.mode().as_str_name();
    expect("the client lends a task", "payload.mode", v1::HandoffMode::Delegate.as_str_name(), mode)?;
    let accept = accept_of(fixture, &about);
    let delivery_id = fixture.deliver(&session, &accept);
    let sent = context_is_sent(fixture, "alice accepts", &mut session, &about).await?;
    fixture.receipt(&session, &sent);
    fixture.acked("the context has its receipt", &mut session, &delivery_id).await?;
    let complete = v1::HandoffComplete {
        outcome: v1::HandoffOutcome::Success.into(),
        context_digest: sent.payload::<v1::TaskContextTransfer>().context_digest,
        ..Default::default()
    };
    let complete = fixture.alice.compose(AGENT, MessageType::HandoffComplete, &about, &complete);
    let delivery_id = fixture.deliver(&session, &complete);
    fixture.acked("alice has taken over", &mut session, &delivery_id).await?;
    let lent = About::task(&about.task_id, 2);
    let update = |status: TaskStatus, result: &str| v1::TaskStatusUpdate {
        status: status.into(),
        details: "a loose plug".to_owned(),
        result_json: result.to_owned(),
        ..Default::default()
    };
    let progress =
        fixture.alice.compose(AGENT, MessageType::TaskStatusUpdate, &lent, &update(TaskStatus::InProgress, ""));
    let delivery_id = fixture.deliver(&session, &progress);
    let step = "alice works on it";
    fixture.acked(step, &mut session, &delivery_id).await?;
    fixture.mail_goes_on(&mut session).await?;
    let is_over = fixture.harness.has(|event| event["id"] == id);
    expect(step, "whether the command has ended", &false, &is_over)?;
    let result = json!({"cause": "a plug"}).to_string();
    let finished =
        fixture.alice.compose(AGENT, MessageType::TaskStatusUpdate, &lent, &update(TaskStatus::Completed, &result));
    let delivery_id = fixture.deliver(&session, &finished);
    let step = "alice has finished";
    let done = fixture.done(step, id).await?;
    expect(step, "done.epoch", &json!(3), &done["epoch"])?;
    expect(step, "done.status", &json!("COMPLETED"), &done["status"])?;
    expect(step, "done.result", &json!({"cause": "a plug"}), &done["result"])?;
    fixture.acked(step, &mut session, &delivery_id).await
}

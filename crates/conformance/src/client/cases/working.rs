//! The process and its work after the takeover: what it tells of itself, how the work fails, and what it finds at the
//! broker.

use serde_json::json;

use super::{
    super::{
        broker::{AGENT, Session},
        fixture::{Fixture, Sent, Verdict, expect, type_url},
    },
    cases,
    handoffs::{accepted, completed_by_client, hand_over_by, is_owned, taken_over},
    loans::{completed, lent, notice},
    restarts::context_is_sent,
    sending::check_envelope,
};
use crate::report::Failed;
use baton_client::{
    About,
    ids::MessageId,
    proto::v1::{self, HandoffState, MessageType, TaskStatus, connect_request::Request as Asked},
};

cases! {
    "client.session-begins-with-hello", "3",
    "The first frame of a session names the process by a UUID, the same one over reconnects, and says that it tells its work.",
    session_begins_with_hello;
    "client.work-is-told", "3",
    "Heartbeats list a task while the work on it goes on, from the takeover until it moves away.",
    work_is_told;
    "client.failing-work-ends-the-task", "3",
    "A handler that fails after the takeover ends its task as FAILED with the words of the failure, and the context is acked.",
    failing_work;
    "client.impossible-result-is-refused-locally", "2 3",
    "A result over the limit of its size is refused before it is sent, and its handler's task ends as FAILED with the limit.",
    impossible_result;
    "client.result-of-another-process-is-found", "3",
    "The result of a loan whose message another process of the agent has acked is read from the broker.",
    result_of_another_process;
    "client.completion-of-another-process-is-found", "3",
    "The end of a handoff whose message another process of the agent has acked is read from the broker.",
    completion_of_another_process;
    "client.acceptance-of-another-process-is-found", "3",
    "The accept of a handoff whose message another process of the agent has is read from the broker: the context follows.",
    acceptance_of_another_process;
    "client.rejection-of-another-process-is-found", "3",
    "The rejection of a handoff whose message another process of the agent has acked is read from the broker.",
    rejection_of_another_process;
    "client.tasks-are-resumed", "3",
    "A process that resumes tasks asks for those that no process works on, under its own id, and its handler gets each.",
    tasks_are_resumed;
}

/// The size of a result that no broker takes: the limit is 262144.
const TOO_MANY_BYTES: u64 = 300_000;
/// The heartbeats among which a change of the work must be seen: a minute at the suite's interval.
const HEARTBEATS_MAX: usize = 240;

/// The hello by which the session begins.
async fn hello(fixture: &Fixture, step: &str, session: &mut Session) -> Result<v1::Hello, Failed> {
    let first = fixture.frame(step, "the first frame", "a Hello", session, |frame| Some(frame.request.clone())).await?;
    match first {
        Some(Asked::Hello(hello)) => Ok(hello),
        other => Err(fixture.failed(step, "the first frame", "a Hello", format!("{other:?}"))),
    }
}

async fn session_begins_with_hello(fixture: &mut Fixture) -> Verdict {
    let command = fixture.connect();
    let id = fixture.harness.tell(command);
    let step = "the client connects";
    let mut session = fixture.opened_session(step, fixture.patience).await?;
    let first = hello(fixture, step, &mut session).await?;
    expect(step, "hello.instance_id, whether it is a UUID", &true, &MessageId::parse(&first.instance_id).is_ok())?;
    expect(step, "hello.tells_work", &true, &first.tells_work)?;
    fixture.done(step, id).await?;
    fixture.broker.relay.cut();
    let step = "the connection is cut";
    let mut session = fixture.opened_session(step, fixture.patience).await?;
    let second = hello(fixture, step, &mut session).await?;
    expect(step, "hello.instance_id", first.instance_id.as_str(), second.instance_id.as_str())?;
    let resumed_by = fixture.broker.state().resumed_by.len();
    expect(step, "calls of ResumeTasks, which nothing asked for", &0, &resumed_by)
}

/// Reads heartbeats until one lists the task, or until one does not.
async fn listed(fixture: &Fixture, step: &str, session: &mut Session, task_id: &str, is_listed: bool) -> Verdict {
    for _ in 0..HEARTBEATS_MAX {
        let heartbeat = |frame: &v1::ConnectRequest| match &frame.request {
            Some(Asked::Heartbeat(heartbeat)) => Some(heartbeat.clone()),
            _ => None,
        };
        let heartbeat = fixture.frame(step, "heartbeat", "a Heartbeat", session, heartbeat).await?;
        if heartbeat.working_on.iter().any(|known| known == task_id) == is_listed {
            return Ok(());
        }
    }
    let expected = if is_listed { "the task" } else { "no task" };
    Err(fixture.failed(step, "heartbeat.working_on", expected, format!("not in {HEARTBEATS_MAX} heartbeats")))
}

async fn work_is_told(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    fixture.handle("HandoffRequest", "work").await?;
    let about = accepted(fixture, &mut session).await?;
    taken_over(fixture, &mut session, &about).await?;
    listed(fixture, "the client works on the task", &mut session, &about.task_id, true).await?;
    let told = notice(fixture, &about, v1::NextStep::DropTask);
    let delivery_id = fixture.deliver(&session, &told);
    let step = "the broker takes the task back";
    fixture.acked(step, &mut session, &delivery_id).await?;
    listed(fixture, step, &mut session, &about.task_id, false).await
}

/// Lets the client take a task over, and receives the status update by which it ends.
async fn ended(fixture: &mut Fixture, session: &mut Session) -> Verdict {
    let about = accepted(fixture, session).await?;
    let delivery_id = completed_by_client(fixture, session, &about).await?;
    is_owned(fixture, &about).await?;
    let step = "the handler fails";
    let sent: Sent = fixture.sent(step, session, MessageType::TaskStatusUpdate).await?;
    check_envelope(step, &sent, &fixture.client_key, &type_url::<v1::TaskStatusUpdate>())?;
    expect(step, "envelope.task_id", about.task_id.as_str(), sent.envelope.task_id.as_str())?;
    expect(step, "envelope.epoch", &2, &sent.envelope.epoch)?;
    let update: v1::TaskStatusUpdate = sent.payload();
    expect(step, "payload.status", TaskStatus::Failed.as_str_name(), update.status().as_str_name())?;
    let words = if sent.raw.len() > 100_000 { "short details" } else { update.details.as_str() };
    let has_words = ["told to fail", "262144", "262,144", "256"].iter().any(|known| words.contains(known));
    has_words
        .then_some(())
        .ok_or_else(|| fixture.failed(step, "payload.details", "the words of the failure", words.to_owned()))?;
    fixture.receipt(session, &sent);
    fixture.acked("the task has ended", session, &delivery_id).await
}

async fn failing_work(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    fixture.handle("HandoffRequest", "fail").await?;
    ended(fixture, &mut session).await
}

async fn impossible_result(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    let command = json!({"command": "handle", "type": "HandoffRequest", "as": "finish", "bytes": TOO_MANY_BYTES});
    let id = fixture.harness.tell(command);
    fixture.done("a handler is to finish with a result over the limit", id).await?;
    ended(fixture, &mut session).await
}

async fn result_of_another_process(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    let (id, about, _) = lent(fixture, &mut session, json!({})).await?;
    let task = v1::Task {
        task_id: about.task_id.clone(),
        owner_id: AGENT.to_owned(),
        epoch: 3,
        status: TaskStatus::InProgress.into(),
        details: "a loose plug".to_owned(),
        result_json: json!({"cause": "a plug"}).to_string(),
        ..Default::default()
    };
    {
        let mut state = fixture.broker.state();
        state.handoffs.insert(about.correlation_id.clone(), completed(&about));
        state.tasks.push(task);
    }
    let step = "the loan ends, and another process has got the message";
    let done = fixture.done(step, id).await?;
    expect(step, "done.epoch", &json!(3), &done["epoch"])?;
    expect(step, "done.result", &json!({"cause": "a plug"}), &done["result"])
}

async fn completion_of_another_process(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    let (id, about, _) = hand_over_by(fixture, &mut session, "hand_over", json!({})).await?;
    let handoff = v1::Handoff {
        state: HandoffState::Completed.into(),
        mode: v1::HandoffMode::Transfer.into(),
        ..completed(&about)
    };
    fixture.broker.state().handoffs.insert(about.correlation_id.clone(), handoff);
    let step = "the handoff ends, and another process has got the messages";
    let done = fixture.done(step, id).await?;
    expect(step, "done.owner_id", &json!("alice"), &done["owner_id"])?;
    expect(step, "done.epoch", &json!(2), &done["epoch"])
}

async fn acceptance_of_another_process(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    let (id, about, _) = hand_over_by(fixture, &mut session, "hand_over", json!({})).await?;
    let handoff = v1::Handoff { mode: v1::HandoffMode::Transfer.into(), ..completed(&about) };
    let in_state = |state: HandoffState| v1::Handoff { state: state.into(), ..handoff.clone() };
    let handoff_id = about.correlation_id.clone();
    fixture.broker.state().handoffs.insert(handoff_id.clone(), in_state(HandoffState::Accepted));
    let step = "alice accepts, and another process has got the message";
    let sent = context_is_sent(fixture, step, &mut session, &about).await?;
    fixture.broker.state().handoffs.insert(handoff_id.clone(), in_state(HandoffState::ContextSent));
    fixture.receipt(&session, &sent);
    let step = "the handoff ends, and another process has got the message";
    fixture.broker.state().handoffs.insert(handoff_id, in_state(HandoffState::Completed));
    let done = fixture.done(step, id).await?;
    expect(step, "done.owner_id", &json!("alice"), &done["owner_id"])
}

async fn rejection_of_another_process(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    let (id, about, _) = hand_over_by(fixture, &mut session, "hand_over", json!({})).await?;
    let handoff = v1::Handoff {
        state: HandoffState::Rejected.into(),
        mode: v1::HandoffMode::Transfer.into(),
        error_code: v1::ErrorCode::NoCandidate.into(),
        error_message: "no candidate took the handoff".to_owned(),
        ..completed(&about)
    };
    fixture.broker.state().handoffs.insert(about.correlation_id.clone(), handoff);
    let step = "the handoff is rejected, and another process has got the message";
    fixture.refused(step, id, json!({"kind": "handoff_failed", "reason": "NO_CANDIDATE"})).await
}

async fn tasks_are_resumed(fixture: &mut Fixture) -> Verdict {
    let about = About::handoff(&super::super::fixture::new_task(), 1, &fixture.info("for its id").message_id);
    let hop = v1::TaskHop {
        handoff_id: about.correlation_id.clone(),
        sender_id: "alice".to_owned(),
        receiver_id: AGENT.to_owned(),
        epoch: 2,
    };
    let task = v1::Task {
        task_id: about.task_id.clone(),
        task_type: "ticket".to_owned(),
        owner_id: AGENT.to_owned(),
        epoch: 2,
        status: TaskStatus::InProgress.into(),
        hops: vec![hop],
        ..Default::default()
    };
    let handoff = v1::Handoff {
        sender_id: "alice".to_owned(),
        candidate_id: AGENT.to_owned(),
        mode: v1::HandoffMode::Transfer.into(),
        ..completed(&about)
    };
    {
        let mut state = fixture.broker.state();
        state.handoffs.insert(about.correlation_id.clone(), handoff);
        state.tasks.push(task.clone());
        state.to_resume.push(task);
    }
    let mut command = fixture.connect();
    command["resume"] = json!(true);
    fixture.harness.tell(command);
    let step = "the client connects, and an earlier process has left a task";
    let mut session = fixture.opened_session(step, fixture.patience).await?;
    let hello = hello(fixture, step, &mut session).await?;
    let resumed = fixture.event(step, "the event resumed", |event| event["event"] == "resumed").await?;
    expect(step, "resumed.task_id", &json!(about.task_id), &resumed["task_id"])?;
    expect(step, "resumed.epoch", &json!(2), &resumed["epoch"])?;
    let resumed_by = fixture.broker.state().resumed_by.first().cloned().unwrap_or_default();
    expect(step, "instance_id of ResumeTasks", hello.instance_id.as_str(), resumed_by.as_str())
}

//! Long work as tasks of the Tasks extension, out of the broker's records: a handoff, a plan or a question.

use std::{sync::Arc, time::Duration};

use baton_client::{
    proto::v1,
    time::{Clock as _, SystemClock, Timestamp},
};
use rmcp::model::{
    CallToolResult, DetailedTask, InputRequest, InputRequests, InputResponses, JsonObject, Task, TaskPayload,
    TaskStatus,
};
use serde_json::{Map, Value, json};

use crate::{
    ActError, Face,
    acts::{self, moves, plans, tasks},
    questions,
};

/// The acts that may take long. Their outputs name what goes on.
const LONG: [&str; 5] = ["delegate", "hand_over", "wait", "ask", "submit_plan"];
/// The id of a question's task begins with it. Ids of handoffs and plans have no colon.
const ASKED: &str = "ask:";
/// How often a host looks: at first, and after [`SLOW_AFTER`].
const POLL_MS: u64 = 2_000;
const POLL_SLOW_MS: u64 = 5_000;
const SLOW_AFTER: Duration = Duration::from_secs(60);

/// Whether calls of the tool become tasks.
pub(crate) fn is_long(tool: &str) -> bool {
    LONG.contains(&tool)
}

/// The task that stands for what goes on behind this output of a long act; `None`: nothing does.
pub(crate) async fn begun(face: &Arc<Face>, tool: &str, output: &Map<String, Value>) -> Result<Option<Task>, ActError> {
    let text = |field: &str| output.get(field).and_then(Value::as_str).unwrap_or_default();
    let id = match tool {
        "ask" if text("status") == "WAITING_FOR_INPUT" => format!("{ASKED}{}", text("task_id")),
        "ask" => return Ok(None),
        _ if !text("plan_id").is_empty() => text("plan_id").to_owned(),
        _ if output.contains_key("plan") => output["plan"]["plan_id"].as_str().unwrap_or_default().to_owned(),
        _ => text("handoff_id").to_owned(),
    };
    if id.is_empty() {
        return Ok(None);
    }
    let task = read(face, &id).await?;
    Ok((!task.status().is_terminal()).then_some(task.task))
}

/// The state of a task.
pub(crate) async fn read(face: &Arc<Face>, id: &str) -> Result<DetailedTask, ActError> {
    if let Some(task_id) = id.strip_prefix(ASKED) {
        return question(face, id, task_id).await;
    }
    match face.handoff(id).await {
        // A policy may let other agents read the handoff: the work is not theirs.
        Ok(handoff) if !takes_part(&handoff, face.id()) => {
            return Err(ActError::new("HANDOFF_UNKNOWN", format!("There is no work of this agent with the id {id}.")));
        }
        Ok(handoff) => {
            let moved = moves::moved(face, &handoff).await?;
            let task = task_of(id, handoff.create_time, handoff.update_time);
            return handoff_task(face, task, &moved).await;
        }
        Err(error) if error.is_absent() => {}
        Err(error) => return Err(error),
    }
    plan(face, id).await
}

fn takes_part(handoff: &v1::Handoff, agent: &str) -> bool {
    [&handoff.sender_id, &handoff.receiver_id, &handoff.candidate_id].into_iter().any(|id| id == agent)
}

async fn handoff_task(face: &Arc<Face>, task: Task, moved: &moves::Moved) -> Result<DetailedTask, ActError> {
    let result = || {
        let output = serde_json::to_value(moved).unwrap_or_default();
        let is_done = match moved.state.as_str() {
            "RETURNED" => moved.status == "COMPLETED",
            state => state == "COMPLETED",
        };
        TaskPayload::Completed { result: result_of(output, is_done) }
    };
    if moved.is_over() {
        let payload = match moved.state.as_str() {
            "CANCELLED" => TaskPayload::Cancelled,
            "RECALLED" if moved.is_recalled => TaskPayload::Cancelled,
            _ => result(),
        };
        return Ok(DetailedTask::new(task.with_status_message(moved.next.clone()), payload));
    }
    if let Some(question) = questions::open(face, &moved.task_id).await? {
        let mut input_requests = InputRequests::new();
        let message = moved.next.clone();
        input_requests.insert(question.id.clone(), InputRequest::Elicitation(question.request()));
        return Ok(DetailedTask::new(task.with_status_message(message), TaskPayload::InputRequired { input_requests }));
    }
    let message = match (moved.from.as_str(), moved.details.as_str()) {
        ("", _) => format!("{}: waits for the other agent", moved.state),
        (from, "") => format!("{from} works on it"),
        (from, details) => format!("{from} says: {details}"),
    };
    Ok(DetailedTask::new(task.with_status_message(message), TaskPayload::Working))
}

async fn plan(face: &Arc<Face>, id: &str) -> Result<DetailedTask, ActError> {
    let (plan, times) = plans::with_times(face, id).await?;
    let task = task_of(id, times.0, times.1).with_status_message(plan.next.clone());
    let payload = match plan.state.as_str() {
        "RUNNING" => TaskPayload::Working,
        "CANCELLED" => TaskPayload::Cancelled,
        state => {
            let is_done = state == "COMPLETED";
            TaskPayload::Completed { result: result_of(serde_json::to_value(&plan).unwrap_or_default(), is_done) }
        }
    };
    Ok(DetailedTask::new(task, payload))
}

async fn question(face: &Arc<Face>, id: &str, task_id: &str) -> Result<DetailedTask, ActError> {
    let record = face.task(task_id).await?;
    let task = task_of(id, record.update_time, record.update_time);
    if record.owner_id == face.id() && tasks::open_question(face, &record).await?.is_some() {
        return Ok(DetailedTask::new(task.with_status_message("no answer yet"), TaskPayload::Working));
    }
    let output = serde_json::to_value(tasks::read(face, task_id).await?).unwrap_or_default();
    Ok(DetailedTask::new(task, TaskPayload::Completed { result: result_of(output, true) }))
}

fn task_of(id: &str, created: Option<prost_types::Timestamp>, updated: Option<prost_types::Timestamp>) -> Task {
    let time = |time: Option<prost_types::Timestamp>| {
        let time = time.unwrap_or_default();
        Timestamp::from_parts(time.seconds, time.nanos)
    };
    let (created, updated) = (time(created), time(updated));
    let age = created.map_or(Duration::ZERO, |created| SystemClock.now().since(created));
    let text = |time: Option<Timestamp>| time.map(|time| time.to_string()).unwrap_or_default();
    let poll = if age < SLOW_AFTER { POLL_MS } else { POLL_SLOW_MS };
    Task::new(id, TaskStatus::Working, text(created), text(updated)).with_poll_interval_ms(poll)
}

/// The result of the call that began the work.
fn result_of(output: Value, is_done: bool) -> JsonObject {
    let result = if is_done { CallToolResult::structured(output) } else { CallToolResult::structured_error(output) };
    match serde_json::to_value(result) {
        Ok(Value::Object(result)) => result,
        _ => Map::new(),
    }
}

/// Answers the questions of a task with what the person has entered. A key without an open question is refused.
pub(crate) async fn update(face: &Arc<Face>, id: &str, responses: &InputResponses) -> Result<(), ActError> {
    let handoff = face.handoff(id).await?;
    let open = questions::open(face, &handoff.task_id).await?;
    for (key, response) in responses {
        match &open {
            Some(question) if question.id == *key => {
                question.answer(face, response).await?;
            }
            _ => {
                let text = "The question is closed: nothing is left to answer.";
                return Err(ActError {
                    field: Some(format!("/inputResponses/{key}")),
                    ..ActError::new("INPUT_TAKEN", text)
                });
            }
        }
    }
    Ok(())
}

/// Takes the work back: cancels the handoff, recalls the loan, or cancels the plan. A question stays open.
pub(crate) async fn cancel(face: &Arc<Face>, id: &str) -> Result<(), ActError> {
    if id.starts_with(ASKED) {
        let text = "A question stays open until it is answered; `report` or `ask` again ends it.";
        return Err(ActError::new("NOT_SUPPORTED", text));
    }
    let arguments = |field: &str| json!({field: id, "reason": "cancelled at the host"}).as_object().cloned();
    let taken = acts::take_back().run(Arc::clone(face), arguments("id").unwrap_or_default()).await;
    match taken {
        Err(error) if error.is_absent() => {
            acts::cancel_plan().run(Arc::clone(face), arguments("plan_id").unwrap_or_default()).await.map(drop)
        }
        taken => taken.map(drop),
    }
}

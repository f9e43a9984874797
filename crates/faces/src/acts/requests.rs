//! `delegate` and `hand_over`.

use std::sync::Arc;

use baton_client::{
    About, context_of_sections,
    ids::check_name,
    proto::v1::{self, HandoffMode, MessageType, TaskStatus},
};
use prost::Message as _;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{
    Data, derived_id,
    moves::{Moved, follow, latest_of, moved},
    wait_of,
};
use crate::{ActError, Face, contexts};

pub(super) const DELEGATE: &str = "Lend a task to an agent and get its result, or a state to `wait` for. The same call \
     within the hour finds the first.";
pub(super) const HAND_OVER: &str = "Give a task away for good: a new one, or with task_id one that you own. Then stop \
     working on it.";

/// The longest summary, in bytes.
const SUMMARY_MAX: usize = 16_384;
/// The largest context, in bytes.
const PAYLOAD_MAX: usize = 1_048_576;
/// The kind of work, if none is named.
const TASK_TYPE: &str = "task";
/// The time for the context, from the accept: this process may have ended by then, and another sends it.
const CONTEXT_TIME: i64 = 600;
/// The time of the whole handoff: the other agent may be a person or a model that looks now and then.
const WHOLE_TIME: i64 = 3600;
/// The time of a loan.
const LOAN_TIME: i64 = 86_400;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Delegate {
    /// An agent's id, or type:NAME for one of the type.
    to: String,
    /// What to do, in brief.
    summary: String,
    /// What it needs to know.
    details: Option<String>,
    task_type: Option<String>,
    /// Data by name.
    pub(super) context: Option<Data>,
    /// A thread that gets the result, too.
    thread_id: Option<String>,
    /// Lend it once more within the hour.
    again: Option<bool>,
    /// 0 to 240, default 45.
    wait_seconds: Option<u64>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct HandOver {
    /// An agent's id, or type:NAME for one of the type.
    to: String,
    /// What to do, in brief.
    summary: String,
    /// What it needs to know.
    details: Option<String>,
    task_type: Option<String>,
    /// Data by name.
    context: Option<Data>,
    /// A task of yours. Default: a new one.
    task_id: Option<String>,
    /// Give it once more within the hour.
    again: Option<bool>,
    /// 0 to 240, default 45.
    wait_seconds: Option<u64>,
}

pub(super) async fn delegate(face: Arc<Face>, input: Delegate) -> Result<Moved, ActError> {
    let Delegate { to, summary, details, task_type, context, thread_id, again, wait_seconds } = input;
    let asked = HandOver { to, summary, details, task_type, context, task_id: None, again, wait_seconds };
    let thread_id = thread_id.unwrap_or_default();
    if !thread_id.is_empty() {
        check_name(&thread_id).map_err(|problem| ActError::argument("/thread_id", problem))?;
    }
    request(&face, asked, HandoffMode::Delegate, thread_id).await
}

pub(super) async fn hand_over(face: Arc<Face>, input: HandOver) -> Result<Moved, ActError> {
    request(&face, input, HandoffMode::Transfer, String::new()).await
}

/// Makes the request, for a loan with the thread in which it is begun.
async fn request(face: &Face, input: HandOver, mode: HandoffMode, thread_id: String) -> Result<Moved, ActError> {
    let wait = wait_of(input.wait_seconds)?;
    check(&input)?;
    let about = match &input.task_id {
        Some(task_id) => own(face, task_id).await?,
        None => match earlier(face, &input, mode, &thread_id).await? {
            Earlier::Task(task) => {
                let Some(handoff_id) = latest_of(face, &task).await? else {
                    return Err(ActError::new("HANDOFF_UNKNOWN", "The task has no handoff. Use `again`: true."));
                };
                contexts_again(face, &task, &input).await?;
                return Ok(Moved { repeated: true, ..follow(face, &handoff_id, wait).await? });
            }
            Earlier::None(task_id) => About::task(&task_id, 1),
        },
    };
    let sections = sections_of(face, &input).await?;
    let bytes = context_of_sections(sections.clone()).encoded_len();
    if bytes > PAYLOAD_MAX {
        let problem =
            format!("has {bytes} bytes, and {PAYLOAD_MAX} are allowed; store the rest elsewhere, and give its address");
        return Err(ActError::argument("/context", problem));
    }
    if input.task_id.is_some() {
        contexts::store(face, &about, sections.clone()).await.map_err(too_large)?;
    }
    let mut request = terms(input.task_type.as_deref().unwrap_or_default(), &input.summary, mode);
    request.thread_id = thread_id;
    leave_time_to(face, &input.to, &mut request).await;
    let handoff_id = match face.send(&input.to, MessageType::HandoffRequest, &about, &request).await {
        Ok(receipt) => receipt.handoff_id,
        // The same call at the same time was first.
        Err(error) if input.task_id.is_none() && matches!(error.reason.as_str(), "HANDOFF_OPEN" | "STALE_EPOCH") => {
            let task = face.task(&about.task_id).await?;
            let handoff_id = latest_of(face, &task).await?.ok_or(error)?;
            return Ok(Moved { repeated: true, ..follow(face, &handoff_id, wait).await? });
        }
        Err(error) => return Err(error),
    };
    if input.task_id.is_none() {
        // Before this the task was not there. If this process ends here, the same call stores it.
        match contexts::store(face, &about, sections).await {
            // The candidate was quick, and another process of this agent has sent it.
            Err(error) if error.reason == "STALE_EPOCH" => {}
            Err(error) => {
                let cancel = v1::HandoffCancel { reason_text: "its context cannot be stored".to_owned() };
                let about = About::handoff(&about.task_id, about.epoch, &handoff_id);
                let candidate = face.handoff(&handoff_id).await?.candidate_id;
                face.send(&candidate, MessageType::HandoffCancel, &about, &cancel).await?;
                // Ends its task.
                moved(face, &face.handoff(&handoff_id).await?).await?;
                return Err(too_large(error));
            }
            Ok(()) => {}
        }
    }
    follow(face, &handoff_id, wait).await.map_err(|error| error.of_handoff(&handoff_id))
}

/// The terms of a handoff. An empty task type is that of these acts.
pub(crate) fn terms(task_type: &str, summary: &str, mode: HandoffMode) -> v1::HandoffRequest {
    let span = |seconds| Some(prost_types::Duration { seconds, nanos: 0 });
    v1::HandoffRequest {
        task_type: if task_type.is_empty() { TASK_TYPE } else { task_type }.to_owned(),
        initial_context_summary: summary.to_owned(),
        mode: mode.into(),
        loan_timeout: if mode == HandoffMode::Delegate { span(LOAN_TIME) } else { None },
        timeouts: Some(v1::HandoffTimeouts {
            context: span(CONTEXT_TIME),
            whole: span(WHOLE_TIME),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// Leaves the whole time to the broker if the receiver states that it needs longer to decide.
pub(crate) async fn leave_time_to(face: &Face, to: &str, request: &mut v1::HandoffRequest) {
    let Some(timeouts) = &mut request.timeouts else { return };
    // Without an answer the broker's own refusal of the request says what is wrong.
    let Ok(client) = face.client().await else { return };
    let Ok(agent) = client.get_agent(to).await else { return };
    let needed = agent.card.and_then(|card| card.decides_within).map_or(0, |within| within.seconds);
    if needed >= WHOLE_TIME {
        timeouts.whole = None;
    }
}

/// Checks the names of the sections that a model gives.
pub(super) fn check_sections(context: &Map<String, Value>) -> Result<(), ActError> {
    for section in context.keys() {
        check_name(section).map_err(|problem| {
            ActError::argument(format!("/context/{}", section.replace('~', "~0").replace('/', "~1")), problem)
        })?;
    }
    Ok(())
}

/// Checks the arguments that the broker would refuse only after it has stored the task.
fn check(input: &HandOver) -> Result<(), ActError> {
    let name = |pointer: &str, name: &str| check_name(name).map_err(|problem| ActError::argument(pointer, problem));
    name("/to", input.to.strip_prefix("type:").unwrap_or(&input.to))?;
    if let Some(task_type) = &input.task_type {
        name("/task_type", task_type)?;
    }
    if let Some(context) = &input.context {
        check_sections(&context.0)?;
    }
    if input.summary.trim().is_empty() {
        return Err(ActError::argument("/summary", "is empty"));
    }
    if input.summary.len() > SUMMARY_MAX {
        let problem =
            format!("has {} bytes, and {SUMMARY_MAX} are allowed; the rest goes into details", input.summary.len());
        return Err(ActError::argument("/summary", problem));
    }
    Ok(())
}

/// An earlier call with the same arguments.
enum Earlier {
    /// It made this task.
    Task(Box<v1::Task>),
    /// No call did: the id of the new task.
    None(String),
}

async fn earlier(face: &Face, input: &HandOver, mode: HandoffMode, thread_id: &str) -> Result<Earlier, ActError> {
    let mut arguments = json!([mode as i32, input.to, input.summary, input.details, input.task_type, input.context]);
    if let Some(arguments) = arguments.as_array_mut().filter(|_| !thread_id.is_empty()) {
        arguments.push(thread_id.into());
    }
    let ids = derived_id(face, &arguments, input.again == Some(true));
    for (id, is_open_only) in ids.iter().zip([false, true]) {
        match face.task(id).await {
            Ok(task) => {
                let is_final =
                    matches!(task.status(), TaskStatus::Completed | TaskStatus::Failed | TaskStatus::Canceled);
                let is_open = !task.open_handoff_id.is_empty() || !(task.loans.is_empty() || is_final);
                if is_open || !is_open_only {
                    return Ok(Earlier::Task(Box::new(task)));
                }
            }
            Err(error) if error.is_absent() => {}
            Err(error) => return Err(error),
        }
    }
    let [id, _] = ids;
    Ok(Earlier::None(id))
}

/// Stores the context of an earlier call that ended before it could.
async fn contexts_again(face: &Face, task: &v1::Task, input: &HandOver) -> Result<(), ActError> {
    let is_here = task.owner_id == face.id() && !task.open_handoff_id.is_empty();
    if is_here && contexts::latest(face, &task.task_id).await?.is_none() {
        let sections = sections_of(face, input).await?;
        match contexts::store(face, &About::task(&task.task_id, task.epoch), sections).await {
            Err(error) if error.reason != "STALE_EPOCH" => return Err(too_large(error)),
            _ => {}
        }
    }
    Ok(())
}

/// A task of this agent.
pub(super) async fn own(face: &Face, task_id: &str) -> Result<About, ActError> {
    let task = face.task(task_id).await?;
    if task.owner_id != face.id() {
        let text = format!("The task {task_id} belongs to {}: stop working on it.", task.owner_id);
        return Err(ActError::new("NOT_OWNER", text));
    }
    if let Some(handoff_id) = Some(&task.open_handoff_id).filter(|id| !id.is_empty()) {
        let handoff = face.handoff(handoff_id).await?;
        let moved = moved(face, &handoff).await?;
        return Err(ActError::new("HANDOFF_OPEN", format!("A handoff of the task is open. {}", moved.next))
            .of_handoff(handoff_id));
    }
    Ok(About::task(&task.task_id, task.epoch))
}

/// The context: what this agent has received with the task, and above it what the call gives.
async fn sections_of(face: &Face, input: &HandOver) -> Result<Vec<v1::ContextSection>, ActError> {
    let mut given = Map::new();
    let details = input.details.clone().unwrap_or_default();
    given.insert("task_description".to_owned(), json!({"summary": input.summary, "details": details}));
    given.extend(input.context.clone().unwrap_or_default().0);
    let mut sections = contexts::sections_of(&given);
    if let Some(task_id) = &input.task_id {
        let received = contexts::latest(face, task_id).await?.unwrap_or_default();
        sections.extend(received.into_iter().filter(|section| !given.contains_key(&section.name)));
    }
    Ok(sections)
}

/// The refusal of a context names the argument.
pub(super) fn too_large(error: ActError) -> ActError {
    match error.reason.as_str() {
        "PAYLOAD_TOO_LARGE" | "FIELD_INVALID" | "CONTEXT_TOO_LARGE" => {
            ActError { reason: error.reason.clone(), ..ActError::argument("/context", error.text) }
        }
        _ => error,
    }
}

//! The payloads: the type of each message type, and their bounds.

mod negotiation;
mod work;

use std::{ops::RangeInclusive, time::Duration};

use prost::{Message, Name};
use serde_json::Value;

use super::{Checks, EnvelopeError, JsonError, PAYLOAD_BYTES_MAX, read_checked_json, sections, signing};
use crate::{
    ids::{
        AgentId, AgentType, ConversationId, FairnessKey, IdError, MessageId, PlanId, TaskId, ThreadId, Topic,
        WorkspaceId, check_name,
    },
    proto::{Any, v1},
    protocol::{
        self, Append, ENTRY_BYTES_MAX, MessageType, Mode, Priority, Receiver, RequestedTimeouts, TaskStatus, WorkTerms,
    },
    time::Timestamp,
};

pub use self::negotiation::{TaskOfferBody, TaskRequestBody};

const TEXT_BYTES_MAX: usize = 4096;
const SUMMARY_BYTES_MAX: usize = 16 * 1024;
const SECTION_SUMMARY_BYTES_MAX: usize = 1024;
const SCHEMA_VERSIONS_MAX: usize = 16;
/// An operator's name is the `sub` of its token, which has no bound of its own below this one.
const SUBMITTER_BYTES_MAX: usize = 1024;
const INFO_BYTES_MAX: usize = 64 * 1024;
const QUESTION_BYTES_MAX: usize = 16 * 1024;
const SCHEMA_BYTES_MAX: usize = 64 * 1024;
const INPUT_BYTES_MAX: usize = 64 * 1024;
const RESULT_BYTES_MAX: usize = 256 * 1024;
const SECTIONS_MAX: usize = 64;
const AGENTS_MAX: usize = 16;
const SKILLS_MAX: usize = 32;
const MAP_ENTRIES_MAX: usize = 32;
/// The longest span that a message may name.
const SPAN_MAX: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// The bounds of a loan timeout (SPEC 3).
const LOAN_TIMEOUT: RangeInclusive<Duration> = Duration::from_secs(1)..=SPAN_MAX;

/// A checked payload.
#[derive(Debug, Clone, PartialEq)]
pub enum Body {
    /// A request to hand a task over.
    Request(Box<RequestBody>),
    /// A message about an open handoff.
    Handoff(protocol::Message),
    /// The candidate rejects the task.
    Reject {
        /// The reason, as a number of its enum.
        reason: i32,
        /// The reason as a text.
        text: String,
        /// The agents and types to ask next, as sent.
        suggestions: Vec<Receiver>,
        /// The time after which the candidate may be asked once more. `None`: never.
        retry_after: Option<Duration>,
    },
    /// The beginning of a task without a handoff.
    Create(CreateBody),
    /// The recall of a loan.
    Recall,
    /// The answer to a question.
    Input {
        /// The answer for programs, a JSON object. `None`: the answer has a text alone.
        data: Option<serde_json::Value>,
    },
    /// A report of a task's status.
    Status {
        /// The new status.
        status: TaskStatus,
        /// The progress from 0 to 1, if known.
        progress: Option<f64>,
        /// Details as a text.
        details: String,
        /// Whether the report has a result.
        has_result: bool,
        /// The question of the report.
        prompt: Option<Box<PromptBody>>,
        /// Whether the open parts of a cancelled task stay.
        keep_parts: bool,
        /// How much later than now the delegate asks its loan to be due. `None`: the loan stays as it is.
        extend_by: Option<Duration>,
    },
    /// An entry for a workspace.
    Append(Append),
    /// A request for offers.
    TaskRequest(Box<TaskRequestBody>),
    /// An offer or a counter-offer.
    TaskOffer(TaskOfferBody),
    /// A declined request or offer.
    TaskDecline,
    /// An award.
    TaskAccept {
        /// The awarded offer.
        offer: MessageId,
        /// The terms of the handoff. `None`: the work is no task.
        terms: Option<Box<RequestBody>>,
    },
    /// The broker's word on the end of a negotiation.
    NegotiationClosed,
    /// A plan. Its content is not yet checked.
    Plan(Box<v1::Plan>),
    /// Further subtasks of a running plan. Its content is not yet checked.
    PlanExtension(Box<v1::PlanExtension>),
    /// A heartbeat. Not stored.
    Heartbeat(v1::Heartbeat),
    /// Mail between agents, which the broker only carries.
    Mail {
        /// The time before which it is not delivered. `None`: at once.
        deliver_after: Option<Timestamp>,
    },
}

/// The beginning of a task as received. The summary stays in the envelope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreateBody {
    /// The kind of work.
    pub task_type: String,
    /// The task that the new one is a part of.
    pub parent: Option<TaskId>,
    /// The outer conversation that the task belongs to.
    pub conversation: Option<ConversationId>,
    /// The most handoffs of the task, and the most along one pair; 0 means the broker's limit.
    pub loop_limits: (u32, u32),
}

/// A question as received. The text of the question stays in the envelope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromptBody {
    /// The agent, or the type of agent, that is to answer.
    pub answer_by: Receiver,
    /// The time at which the question expires. `None`: never.
    pub answer_before: Option<Timestamp>,
    /// The JSON Schema of the answer's data, not yet checked. Empty: any data.
    pub answer_schema: String,
}

/// A handoff request as received.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestBody {
    /// The kind of work.
    pub task_type: String,
    /// The reason, as a number of its enum.
    pub reason: i32,
    /// Whether the task is transferred or delegated.
    pub mode: Mode,
    /// The time from the completion until the broker recalls a delegated task. `None`: no loan timeout.
    pub loan_timeout: Option<Duration>,
    /// What the request says about the work after the takeover.
    pub work: WorkTerms,
    /// For whom the coordinator asks: an agent's id, or `operator:NAME`. `None`: the sender asks for itself.
    pub submitter: Option<String>,
    /// The plan and the id of the subtask that the task carries out. Set by the coordinator alone.
    pub plan: Option<(PlanId, String)>,
    /// The run and the choice that the handoff carries out.
    pub routing: Option<(MessageId, MessageId)>,
    /// The priority.
    pub priority: Priority,
    /// The part of the sender's requests that this one belongs to. `None`: the part without a key.
    pub fairness_key: Option<FairnessKey>,
    /// The requested timeouts, before the operator's bounds are applied.
    pub timeouts: RequestedTimeouts,
    /// The most handoffs of the task, and the most along one pair; 0 means the broker's limit.
    pub loop_limits: (u32, u32),
    /// The skills that every candidate must have, as dotted names.
    pub required_skills: Vec<String>,
    /// The type that every candidate must have. `None`: any type.
    pub desired_agent_type: Option<AgentType>,
    /// The agents and types to ask after the receiver.
    pub fallback_candidates: Vec<Receiver>,
    /// The task that this one is a part of.
    pub parent: Option<TaskId>,
    /// The outer conversation that the task belongs to.
    pub conversation: Option<ConversationId>,
    /// The thread that gets a message when the delegation ends. `None` for a transfer.
    pub thread: Option<ThreadId>,
    /// Whether the request waits for an agent that is still to register.
    pub wait_for_agent: bool,
    /// The time before which no agent is asked. `None`: now.
    pub deliver_after: Option<Timestamp>,
}

/// Checks that the payload has the type of the message, and is within its bounds.
pub(super) fn parse(kind: MessageType, payload: &Any) -> Result<Body, EnvelopeError> {
    use MessageType as T;
    match kind {
        T::HandoffRequest => checked(payload, request),
        T::HandoffAccept => checked(payload, accept),
        T::HandoffReject => checked(payload, reject),
        T::HandoffCancel => checked(payload, cancel),
        T::TaskContextTransfer => context(payload, |digest| protocol::Message::Context { digest }),
        T::ContextCheckpoint => context(payload, |digest| protocol::Message::Checkpoint { digest }),
        T::HandoffComplete => checked(payload, complete),
        T::TaskStatusUpdate => checked(payload, status),
        T::ErrorNotification => checked(payload, error_notification),
        T::Heartbeat => checked(payload, |body: v1::Heartbeat, checks| {
            check_heartbeat(&body, "envelope.payload", checks);
            Body::Heartbeat(body)
        }),
        T::TaskRequest | T::TaskAccept if payload.value.len() > negotiation::TERMS_BYTES_MAX => {
            Err(EnvelopeError::PayloadTooLarge { bytes: payload.value.len() })
        }
        T::TaskRequest => checked(payload, negotiation::task_request),
        T::TaskOffer => checked(payload, negotiation::task_offer),
        T::TaskDecline => checked(payload, negotiation::task_decline),
        T::TaskAccept => checked(payload, negotiation::task_accept),
        T::NegotiationClosed => checked(payload, negotiation::closed),
        T::Delegation => checked(payload, delegation),
        T::Info => checked(payload, info),
        T::WorkspaceAppend => append(payload),
        T::PlanSubmission => checked(payload, |body: v1::PlanSubmission, checks| match (body.plan, body.extension) {
            (None, Some(extension)) => Body::PlanExtension(Box::new(extension)),
            (Some(plan), None) => Body::Plan(Box::new(plan)),
            (None, None) => {
                checks.wrong("envelope.payload.plan", "must be set");
                Body::Plan(Box::default())
            }
            (Some(plan), Some(_)) => {
                checks.wrong("envelope.payload.extension", "must not be set beside plan");
                Body::Plan(Box::new(plan))
            }
        }),
        T::TaskRecall => checked(payload, recall),
        T::TaskInput => checked(payload, input),
        T::TaskCreate => checked(payload, create),
    }
}

/// Checks a heartbeat of an envelope or of a frame.
pub fn check_heartbeat(heartbeat: &v1::Heartbeat, path: &str, checks: &mut Checks) {
    checks.text(&format!("{path}.status"), &heartbeat.status, 256);
    checks.at_most(&format!("{path}.metrics"), heartbeat.metrics.len(), MAP_ENTRIES_MAX, "entries");
    for (name, value) in &heartbeat.metrics {
        checks.text(&format!("{path}.metrics.key"), name, 64);
        if !value.is_finite() {
            checks.wrong(format!("{path}.metrics[{name}]"), "must be a finite number");
        }
    }
    checks.at_most(&format!("{path}.working_on"), heartbeat.working_on.len(), work::TASKS_MAX, "tasks");
    for task in heartbeat.working_on.iter().take(work::TASKS_MAX) {
        checks.id(&format!("{path}.working_on"), task, TaskId::parse);
    }
}

fn checked<M: Message + Default + Name>(
    payload: &Any,
    check: impl FnOnce(M, &mut Checks) -> Body,
) -> Result<Body, EnvelopeError> {
    let message = decode::<M>(payload)?;
    let mut checks = Checks::default();
    let body = check(message, &mut checks);
    checks.finish()?;
    Ok(body)
}

fn decode<M: Message + Default + Name>(payload: &Any) -> Result<M, EnvelopeError> {
    // Only the name after the last slash counts, as protobuf defines for type URLs.
    let found = payload.type_url.rsplit_once('/').map(|(_, name)| name);
    let expected = M::full_name();
    if found != Some(&expected) {
        return Err(EnvelopeError::PayloadTypeMismatch { expected: M::NAME, found: payload.type_url.clone() });
    }
    M::decode(payload.value.clone())
        .map_err(|error| EnvelopeError::Malformed { part: "payload", problem: error.to_string() })
}

fn request(body: v1::HandoffRequest, checks: &mut Checks) -> Body {
    if let Err(error) = check_name(&body.task_type) {
        checks.wrong("envelope.payload.task_type", error.to_string());
    }
    checks.text("envelope.payload.reason_text", &body.reason_text, TEXT_BYTES_MAX);
    let path = "envelope.payload.desired_agent_type";
    let desired_agent_type = checks.optional_id(path, &body.desired_agent_type, AgentType::parse);
    checks.text("envelope.payload.initial_context_summary", &body.initial_context_summary, SUMMARY_BYTES_MAX);
    checks.ids("envelope.payload.required_skills", &body.required_skills, SKILLS_MAX, check_name);
    let path = "envelope.payload.fallback_candidates";
    let fallback_candidates = candidates(path, &body.fallback_candidates, checks);
    let limits = body.loop_limits.unwrap_or_default();
    let mode = match unset_or_known(checks, "envelope.payload.mode", body.mode) {
        v1::HandoffMode::Unspecified | v1::HandoffMode::Transfer => Mode::Transfer,
        v1::HandoffMode::Delegate => Mode::Delegate,
    };
    Body::Request(Box::new(RequestBody {
        // Kept as its number, which the broker only shows.
        reason: unset_or_known::<v1::HandoffReason>(checks, "envelope.payload.reason", body.reason).into(),
        mode,
        loan_timeout: loan_timeout(mode, body.loan_timeout.as_ref(), checks),
        work: work::terms(mode, &body, checks),
        plan: body.on_behalf_of.as_ref().and_then(|of| {
            let path = "envelope.payload.on_behalf_of.plan_id";
            Some((checks.optional_id(path, &of.plan_id, PlanId::parse)?, of.subtask_id.clone()))
        }),
        submitter: body.on_behalf_of.map(|submitter| {
            checks.text("envelope.payload.on_behalf_of.submitter_id", &submitter.submitter_id, SUBMITTER_BYTES_MAX);
            submitter.submitter_id
        }),
        routing: body.routing.as_ref().and_then(|routing| routing_ref(routing, checks)),
        priority: match unset_or_known(checks, "envelope.payload.priority", body.priority) {
            v1::Priority::Low => Priority::Low,
            v1::Priority::Unspecified | v1::Priority::Medium => Priority::Medium,
            v1::Priority::High => Priority::High,
            v1::Priority::Critical => Priority::Critical,
        },
        fairness_key: checks.optional_id("envelope.payload.fairness_key", &body.fairness_key, FairnessKey::parse),
        timeouts: requested_timeouts(body.timeouts.as_ref(), checks),
        loop_limits: (limits.max_handoffs, limits.max_handoffs_per_pair),
        required_skills: body.required_skills,
        desired_agent_type,
        fallback_candidates,
        parent: checks.optional_id("envelope.payload.parent_task_id", &body.parent_task_id, TaskId::parse),
        conversation: checks.optional_id(
            "envelope.payload.conversation_id",
            &body.conversation_id,
            ConversationId::parse,
        ),
        thread: thread(mode, &body.thread_id, checks),
        wait_for_agent: body.wait_for_agent,
        deliver_after: deliver_after(body.deliver_after.as_ref(), checks),
        task_type: body.task_type,
    }))
}

/// The thread of a delegation. A transfer has no result that would come back.
fn thread(mode: Mode, id: &str, checks: &mut Checks) -> Option<ThreadId> {
    let path = "envelope.payload.thread_id";
    if mode == Mode::Transfer && !id.is_empty() {
        checks.wrong(path, "is only for mode DELEGATE: a transferred task does not come back");
    }
    checks.optional_id(path, id, ThreadId::parse)
}

fn requested_timeouts(timeouts: Option<&v1::HandoffTimeouts>, checks: &mut Checks) -> RequestedTimeouts {
    // Checks the form only. The bounds are the operator's, and this crate does not know them.
    let Some(timeouts) = timeouts else { return RequestedTimeouts::default() };
    let mut span = |name: &str, span: Option<&prost_types::Duration>| {
        checks.span(&format!("envelope.payload.timeouts.{name}"), span)
    };
    RequestedTimeouts {
        accept: span("accept", timeouts.accept.as_ref()),
        context: span("context", timeouts.context.as_ref()),
        complete: span("complete", timeouts.complete.as_ref()),
        whole: span("whole", timeouts.whole.as_ref()),
    }
}

fn loan_timeout(mode: Mode, span: Option<&prost_types::Duration>, checks: &mut Checks) -> Option<Duration> {
    let path = "envelope.payload.loan_timeout";
    let timeout = checks.span(path, span)?;
    if !LOAN_TIMEOUT.contains(&timeout) {
        checks.wrong(path, format!("must be from 1 s to 30 days, not {timeout:?}"));
    }
    if mode != Mode::Delegate {
        checks.wrong(path, "is only for mode DELEGATE: a transferred task does not come back");
    }
    Some(timeout)
}

/// Reads a span of at most 30 days that may be unset.
fn short_span(checks: &mut Checks, path: &str, span: Option<&prost_types::Duration>) -> Option<Duration> {
    let span = checks.span(path, span)?;
    if span > SPAN_MAX {
        checks.wrong(path, format!("must be at most 30 days, not {span:?}"));
    }
    Some(span)
}

fn routing_ref(routing: &v1::RoutingRef, checks: &mut Checks) -> Option<(MessageId, MessageId)> {
    let run = checks.id("envelope.payload.routing.run_id", &routing.run_id, MessageId::parse);
    let choice = checks.id("envelope.payload.routing.choice_id", &routing.choice_id, MessageId::parse);
    run.zip(choice)
}

/// Reads an enum that may be unset; an unknown number is a violation.
fn unset_or_known<E: TryFrom<i32> + Default>(checks: &mut Checks, path: &str, number: i32) -> E {
    E::try_from(number).unwrap_or_else(|_| {
        checks.wrong(path, format!("must be a known value, not {number}"));
        E::default()
    })
}

fn accept(body: v1::HandoffAccept, checks: &mut Checks) -> Body {
    let estimate = short_span(checks, "envelope.payload.estimated_handoff_time", body.estimated_handoff_time.as_ref());
    let names = body.wishes.iter().map(|wish| wish.name.clone());
    let wanted_sections: Vec<String> = body.wanted_sections.iter().cloned().chain(names).collect();
    checks.ids("envelope.payload.wanted_sections", &wanted_sections, SECTIONS_MAX, check_name);
    check_wishes(&body, checks);
    Body::Handoff(protocol::Message::Accept { wanted_sections, estimate })
}

fn check_wishes(accept: &v1::HandoffAccept, checks: &mut Checks) {
    let mut names: std::collections::HashSet<&str> = accept.wanted_sections.iter().map(String::as_str).collect();
    // The bound on the number of names covers the wishes over it.
    for (index, wish) in accept.wishes.iter().take(SECTIONS_MAX).enumerate() {
        let path = format!("envelope.payload.wishes[{index}]");
        if !names.insert(&wish.name) {
            checks.wrong(format!("{path}.name"), "is wanted twice");
        }
        if !wish.have_sha256.is_empty() {
            checks.digest(&format!("{path}.have_sha256"), &wish.have_sha256);
        }
        if let Some(Err(problem)) = wish.filter.as_ref().map(sections::check_filter) {
            checks.wrong(format!("{path}.filter"), problem);
        }
        checks.at_most(&format!("{path}.schema_versions"), wish.schema_versions.len(), SCHEMA_VERSIONS_MAX, "entries");
        for version in wish.schema_versions.iter().take(SCHEMA_VERSIONS_MAX) {
            checks.text(&format!("{path}.schema_versions"), version, 128);
        }
    }
}

fn reject(body: v1::HandoffReject, checks: &mut Checks) -> Body {
    checks.text("envelope.payload.reason_text", &body.reason_text, TEXT_BYTES_MAX);
    let retry_after = short_span(checks, "envelope.payload.retry_after", body.retry_after.as_ref());
    unset_or_known::<v1::RejectReason>(checks, "envelope.payload.reason", body.reason);
    let path = "envelope.payload.alternative_agent_suggestions";
    let suggestions = candidates(path, &body.alternative_agent_suggestions, checks);
    Body::Reject { reason: body.reason, text: body.reason_text, suggestions, retry_after }
}

/// Parses agents and `type:NAME`. `all:NAME` is refused: a handoff goes to one agent.
fn candidates(path: &str, texts: &[String], checks: &mut Checks) -> Vec<Receiver> {
    checks.ids(path, texts, AGENTS_MAX, |text| match Receiver::parse(text)? {
        Receiver::Absent => Err(IdError::Empty),
        Receiver::AllOf(_) => Err(IdError::Grammar),
        one @ (Receiver::Agent(_) | Receiver::AnyOf(_)) => Ok(one),
    })
}

fn cancel(body: v1::HandoffCancel, checks: &mut Checks) -> Body {
    checks.text("envelope.payload.reason_text", &body.reason_text, TEXT_BYTES_MAX);
    Body::Handoff(protocol::Message::Cancel)
}

fn recall(body: v1::TaskRecall, checks: &mut Checks) -> Body {
    checks.text("envelope.payload.reason_text", &body.reason_text, TEXT_BYTES_MAX);
    Body::Recall
}

fn create(body: v1::TaskCreate, checks: &mut Checks) -> Body {
    if let Err(error) = check_name(&body.task_type) {
        checks.wrong("envelope.payload.task_type", error.to_string());
    }
    checks.text("envelope.payload.summary", &body.summary, SUMMARY_BYTES_MAX);
    let limits = body.loop_limits.unwrap_or_default();
    let path = "envelope.payload.conversation_id";
    Body::Create(CreateBody {
        parent: checks.optional_id("envelope.payload.parent_task_id", &body.parent_task_id, TaskId::parse),
        conversation: checks.optional_id(path, &body.conversation_id, ConversationId::parse),
        loop_limits: (limits.max_handoffs, limits.max_handoffs_per_pair),
        task_type: body.task_type,
    })
}

fn input(body: v1::TaskInput, checks: &mut Checks) -> Body {
    checks.text("envelope.payload.text", &body.text, INPUT_BYTES_MAX);
    if body.text.is_empty() && body.data_json.is_empty() {
        checks.wrong("envelope.payload", "must have a text or data");
    }
    let advice = "send a reference instead";
    Body::Input { data: checks.json_object("envelope.payload.data_json", &body.data_json, INPUT_BYTES_MAX, advice) }
}

fn append(payload: &Any) -> Result<Body, EnvelopeError> {
    use v1::workspace_append::Entry;
    let body = decode::<v1::WorkspaceAppend>(payload)?;
    let mut checks = Checks::default();
    let workspace = checks.id("envelope.payload.workspace_id", &body.workspace_id, WorkspaceId::parse);
    let topic = checks.id("envelope.payload.topic", &body.topic, Topic::parse);
    checks.time("envelope.payload.source_time", body.source_time.as_ref());
    let size = match &body.entry {
        None => {
            checks.wrong("envelope.payload.entry", "must be set");
            0
        }
        Some(Entry::Json(json)) => json.len(),
        Some(Entry::Bytes(bytes)) => bytes.data.len(),
        Some(Entry::Reference(reference)) => reference.uri.len(),
    };
    // Before the content is parsed: an oversized entry costs no parse.
    if size > ENTRY_BYTES_MAX {
        return Err(EnvelopeError::EntryTooLarge { bytes: size });
    }
    match &body.entry {
        None => {}
        Some(Entry::Json(json)) => {
            if let Err(JsonError { pointer, problem }) = read_checked_json(json) {
                checks.wrong(format!("envelope.payload.json{pointer}"), problem);
            }
        }
        Some(Entry::Bytes(bytes)) => {
            checks.text("envelope.payload.bytes.media_type", &bytes.media_type, 255);
        }
        Some(Entry::Reference(reference)) => {
            check_reference(reference, "envelope.payload.reference", &mut checks);
        }
    }
    let (workspace, topic) = checks.finish_with((workspace, topic))?;
    Ok(Body::Append(Append { workspace, topic, size: size as u64, expected_last: body.expected_last_sequence }))
}

/// Checks a reference. Returns the digest that its sender claims: the broker does not fetch references (SPEC 7).
fn check_reference(reference: &v1::ContextReference, path: &str, checks: &mut Checks) -> Option<[u8; 32]> {
    checks.text(&format!("{path}.uri"), &reference.uri, TEXT_BYTES_MAX);
    checks.text(&format!("{path}.media_type"), &reference.media_type, 255);
    if reference.uri.is_empty() {
        checks.wrong(format!("{path}.uri"), "must not be empty");
    }
    checks.digest(&format!("{path}.sha256"), &reference.sha256)
}

fn context(payload: &Any, message: fn([u8; 32]) -> protocol::Message) -> Result<Body, EnvelopeError> {
    let body = decode::<v1::TaskContextTransfer>(payload)?;
    let mut checks = Checks::default();
    let claimed = checks.digest("envelope.payload.context_digest", &body.context_digest);
    checks.at_most("envelope.payload.sections", body.sections.len(), SECTIONS_MAX, "entries");
    let mut names = std::collections::HashSet::new();
    let mut digests = Vec::with_capacity(body.sections.len());
    // Sections over the limit are checked too. The limit of the payload's bytes bounds this work.
    for (index, section) in body.sections.iter().enumerate() {
        let path = format!("envelope.payload.sections[{index}]");
        if let Err(error) = check_name(&section.name) {
            checks.wrong(format!("{path}.name"), error.to_string());
        } else if !names.insert(&section.name) {
            checks.wrong(format!("{path}.name"), "is the name of an earlier section");
        }
        let digest = section_digest(section, &path, &mut checks);
        digests.extend(digest.map(|digest| (section.name.as_str(), digest)));
    }
    checks.finish()?;
    // The digest has a meaning only if every section is valid.
    let expected = signing::context_digest(digests);
    if claimed != Some(expected) {
        return Err(EnvelopeError::ContextDigestMismatch { expected });
    }
    Ok(Body::Handoff(message(expected)))
}

fn section_digest(section: &v1::ContextSection, path: &str, checks: &mut Checks) -> Option<[u8; 32]> {
    use v1::context_section::Content;
    checks.text(&format!("{path}.schema_id"), &section.schema_id, 128);
    checks.text(&format!("{path}.schema_version"), &section.schema_version, 128);
    checks.text(&format!("{path}.summary"), &section.summary, SECTION_SUMMARY_BYTES_MAX);
    match &section.content {
        None => {
            checks.wrong(format!("{path}.content"), "must be set");
            None
        }
        Some(Content::Json(json)) => {
            match read_checked_json(json) {
                Ok(Value::Object(_) | Value::Array(_)) => {}
                Ok(_) => checks.wrong(format!("{path}.json"), "must be a JSON object or list"),
                Err(JsonError { pointer, problem }) => checks.wrong(format!("{path}.json{pointer}"), problem),
            }
            // Over the text as sent: JSON has no canonical form here.
            Some(signing::sha256(&[json.as_bytes()]))
        }
        Some(Content::Bytes(bytes)) => {
            checks.text(&format!("{path}.bytes.media_type"), &bytes.media_type, 255);
            Some(signing::sha256(&[&bytes.data]))
        }
        Some(Content::Reference(reference)) => check_reference(reference, &format!("{path}.reference"), checks),
        Some(Content::Delta(delta)) => {
            checks.digest(&format!("{path}.delta.base_sha256"), &delta.base_sha256);
            // Without the base only the patch can be checked.
            if let Err(error) = sections::parse("the patch", &delta.merge_patch) {
                checks.wrong(format!("{path}.delta.merge_patch"), error.to_string());
            }
            checks.digest(&format!("{path}.delta.result_sha256"), &delta.result_sha256)
        }
    }
}

fn complete(body: v1::HandoffComplete, checks: &mut Checks) -> Body {
    let outcome = checks.known("envelope.payload.outcome", body.outcome);
    let success = outcome == Some(v1::HandoffOutcome::Success);
    checks.text("envelope.payload.details", &body.details, TEXT_BYTES_MAX);
    // SUCCESS has to name the context that was taken over (SPEC 3). A FAILURE may have none.
    let digest = if success || !body.context_digest.is_empty() {
        checks.digest("envelope.payload.context_digest", &body.context_digest)
    } else {
        None
    };
    Body::Handoff(protocol::Message::Complete { success, digest, details: body.details })
}

fn status(body: v1::TaskStatusUpdate, checks: &mut Checks) -> Body {
    use v1::TaskStatus as S;
    let status = match checks.known("envelope.payload.status", body.status) {
        Some(S::Created) => {
            checks.wrong("envelope.payload.status", "is set by the broker alone");
            TaskStatus::Created
        }
        // A placeholder: the violation that `known` has recorded refuses the message.
        None | Some(S::Unspecified) => TaskStatus::Created,
        Some(S::InProgress) => TaskStatus::InProgress,
        Some(S::WaitingForInput) => TaskStatus::WaitingForInput,
        Some(S::Completed) => TaskStatus::Completed,
        Some(S::Failed) => TaskStatus::Failed,
        Some(S::Canceled) => TaskStatus::Canceled,
    };
    // Written with `contains`, so that NaN is refused too.
    if body.progress.is_some_and(|progress| !(0.0..=1.0).contains(&progress)) {
        checks.wrong("envelope.payload.progress", "must be from 0 to 1");
    }
    checks.text("envelope.payload.details", &body.details, SUMMARY_BYTES_MAX);
    let advice = "store it elsewhere and send a reference to it";
    checks.json_object("envelope.payload.result_json", &body.result_json, RESULT_BYTES_MAX, advice);
    if body.prompt.is_some() && status != TaskStatus::WaitingForInput {
        checks.wrong("envelope.payload.prompt", "is only for WAITING_FOR_INPUT");
    }
    if body.keep_parts && status != TaskStatus::Canceled {
        checks.wrong("envelope.payload.keep_parts", "is only for CANCELED: no other status ends the parts");
    }
    Body::Status {
        status,
        progress: body.progress,
        details: body.details,
        has_result: !body.result_json.is_empty(),
        prompt: body.prompt.and_then(|prompt| prompt_body(prompt, checks)).map(Box::new),
        keep_parts: body.keep_parts,
        extend_by: body.extend_by.as_ref().and_then(|span| {
            let path = "envelope.payload.extend_by";
            if status != TaskStatus::InProgress {
                checks.wrong(path, "is only for IN_PROGRESS");
            }
            short_span(checks, path, Some(span))
        }),
    }
}

fn prompt_body(prompt: v1::TaskPrompt, checks: &mut Checks) -> Option<PromptBody> {
    if prompt.question.is_empty() {
        checks.wrong("envelope.payload.prompt.question", "must not be empty");
    }
    checks.text("envelope.payload.prompt.question", &prompt.question, QUESTION_BYTES_MAX);
    checks.text("envelope.payload.prompt.answer_schema_json", &prompt.answer_schema_json, SCHEMA_BYTES_MAX);
    let path = "envelope.payload.prompt.answer_by";
    let answer_by = checks.id(path, &prompt.answer_by, Receiver::parse);
    // One agent answers, so neither all agents of a type nor no agent can be asked.
    if matches!(answer_by, Some(Receiver::AllOf(_) | Receiver::Absent)) {
        checks.wrong(path, "must be an agent or type:NAME");
    }
    let answer_before = checks.time("envelope.payload.prompt.answer_before", prompt.answer_before.as_ref());
    Some(PromptBody { answer_by: answer_by?, answer_before, answer_schema: prompt.answer_schema_json })
}

fn error_notification(body: v1::ErrorNotification, checks: &mut Checks) -> Body {
    checks.known::<v1::ErrorCode>("envelope.payload.error_code", body.error_code);
    unset_or_known::<v1::Severity>(checks, "envelope.payload.severity", body.severity);
    unset_or_known::<v1::NextStep>(checks, "envelope.payload.next_step", body.next_step);
    checks.text("envelope.payload.error_message", &body.error_message, TEXT_BYTES_MAX);
    checks.text("envelope.payload.next_step_text", &body.next_step_text, TEXT_BYTES_MAX);
    checks.optional_id("envelope.payload.origin_agent_id", &body.origin_agent_id, AgentId::parse);
    Body::Mail { deliver_after: None }
}

fn delegation(body: v1::Delegation, checks: &mut Checks) -> Body {
    checks.text("envelope.payload.description", &body.description, SUMMARY_BYTES_MAX);
    checks.json_object("envelope.payload.input_json", &body.input_json, PAYLOAD_BYTES_MAX, "send a reference instead");
    Body::Mail { deliver_after: deliver_after(body.deliver_after.as_ref(), checks) }
}

fn info(body: v1::Info, checks: &mut Checks) -> Body {
    checks.text("envelope.payload.topic", &body.topic, 256);
    checks.text("envelope.payload.text", &body.text, INFO_BYTES_MAX);
    checks.json_object("envelope.payload.data_json", &body.data_json, PAYLOAD_BYTES_MAX, "send a reference instead");
    Body::Mail { deliver_after: deliver_after(body.deliver_after.as_ref(), checks) }
}

/// Reads the time before which a message is not delivered. Its bound depends on the clock of the broker.
fn deliver_after(at: Option<&prost_types::Timestamp>, checks: &mut Checks) -> Option<Timestamp> {
    checks.time("envelope.payload.deliver_after", at)
}

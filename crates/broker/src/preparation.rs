//! The preparation of a message: the checks of its content that may take long.
//!
//! The engine's thread serves all agents, so a message may hold it for a few milliseconds at most (SPEC 5). This
//! module makes the checks before that, on a thread of the caller: deltas and their results, contexts and answers against
//! their schemas, the schemas of questions, and plans. It reads what the last commit has left, and changes nothing. The
//! engine decides by the outcome, after the checks of identity, ownership and state. It must not know threads or queues.

mod context;
mod topics;

use std::sync::Arc;

use prost::Message as _;
use serde_json::Value;

use self::context::short_context;
pub use self::topics::topic_problems;
use crate::{
    BrokerError, Refused, Settings,
    access::{Access, Caller},
    codes::FieldViolation,
    contexts::payload_in,
    domain::{
        context::{Rejection, Section},
        handoff::{Message, TaskStatus},
        mailbox::EnvelopePlace,
        plan::{Problem, Spec},
    },
    envelope::{self, Body, VerifiedEnvelope, signing},
    ids::{InstanceId, MessageId, PlanId, TaskId},
    json_schema::{CompiledSchemas, LISTED_MAX, Work},
    policy::{Action, Resource},
    proto::v1,
    records::{MessageRecord, PlanRecord, PlanSpecRecord, TaskRecord, read_envelope},
    store::{Key, Record, Store},
};

/// A verified message with the outcome of its longer checks. Only this module makes one.
#[derive(Debug)]
pub struct PreparedMessage {
    envelope: Box<VerifiedEnvelope>,
    findings: Findings,
    /// The process that sent it. `None`: it has not said.
    process: Option<InstanceId>,
}

/// The outcome of the longer checks of a message.
#[derive(Debug, Clone)]
pub(crate) enum Findings {
    /// Nothing was checked: the message needs no longer check, or the state that it names does not permit it.
    None,
    /// The context of a transfer or of a checkpoint.
    Context(Arc<CheckedContext>),
    /// The violations of an answer, under the schema of the question that it names. Empty: it fits.
    Answer(Vec<FieldViolation>),
    /// What is wrong with the schema of a question. `None`: nothing.
    Question(Option<String>),
    /// The violations of the result of a subtask, under the schemas of the topics that it goes to. Empty: it fits.
    Result(Vec<FieldViolation>),
    /// A plan that can run, or what is wrong with it.
    Plan(Result<Arc<Spec>, Vec<FieldViolation>>),
    /// A running plan with the subtasks of an extension.
    Extension {
        /// The number of subtasks that it had before.
        from: usize,
        /// The plan, or its violations.
        plan: Result<Arc<Spec>, Vec<FieldViolation>>,
    },
}

/// A context whose sections are checked, for the step that makes a version of it.
#[derive(Debug)]
pub(crate) struct CheckedContext {
    /// The context as it came.
    pub(crate) transfer: v1::TaskContextTransfer,
    /// The sections of the new version, or the reason why one cannot be made.
    pub(crate) sections: Result<Vec<CheckedSection>, Rejection>,
    /// The reason why the context does not fit its schemas. `None`: it fits.
    pub(crate) misfit: Option<Refused>,
}

/// A section of a new version.
#[derive(Debug, Clone)]
pub(crate) struct CheckedSection {
    /// The section, without its content.
    pub(crate) section: Section,
    /// The result of its delta, and the number of the version that has its base. `None`: the section came whole.
    pub(crate) result: Option<(String, u64)>,
}

impl PreparedMessage {
    /// The same message, sent by this process.
    pub fn from_process(self, process: Option<InstanceId>) -> Self {
        Self { process, ..self }
    }

    /// The process that sent the message.
    pub(crate) fn process(&self) -> Option<InstanceId> {
        self.process
    }

    /// A message whose checks are all short. Otherwise returns the envelope, which needs a [`Preparation`].
    pub fn of_short(envelope: Box<VerifiedEnvelope>) -> Result<Self, Box<VerifiedEnvelope>> {
        let findings = match envelope.body() {
            Body::Handoff(Message::Context { .. } | Message::Checkpoint { .. }) => {
                match payload_in::<v1::TaskContextTransfer>(envelope.raw()).map(short_context) {
                    Some(Some(context)) => Findings::Context(context.into()),
                    Some(None) | None => return Err(envelope),
                }
            }
            Body::Input { data: Some(_) } | Body::Plan(_) | Body::PlanExtension(_) => return Err(envelope),
            Body::Status { prompt: Some(prompt), .. } if !prompt.answer_schema.is_empty() => return Err(envelope),
            // Of a subtask: the topics that it goes to may have schemas.
            Body::Status { status: TaskStatus::Completed, .. }
                if envelope.header().task.as_ref().is_some_and(TaskId::is_reserved) =>
            {
                return Err(envelope);
            }
            Body::Request(_)
            | Body::Handoff(_)
            | Body::Reject { .. }
            | Body::Create(_)
            | Body::Recall
            | Body::Input { data: None }
            | Body::Status { .. }
            | Body::Append(_)
            | Body::TaskRequest(_)
            | Body::TaskOffer(_)
            | Body::TaskDecline
            | Body::TaskAccept { .. }
            | Body::NegotiationClosed
            | Body::Heartbeat(_)
            | Body::Mail { .. } => Findings::None,
        };
        Ok(Self { envelope, findings, process: None })
    }

    /// The message.
    pub fn envelope(&self) -> &VerifiedEnvelope {
        &self.envelope
    }

    /// The outcome of the checks.
    pub(crate) fn findings(&self) -> &Findings {
        &self.findings
    }

    /// The bytes that the message keeps in memory, about.
    pub(crate) fn bytes(&self) -> usize {
        let results = match &self.findings {
            Findings::Context(context) => context.result_bytes(),
            Findings::None
            | Findings::Answer(_)
            | Findings::Question(_)
            | Findings::Result(_)
            | Findings::Plan(_)
            | Findings::Extension { .. } => 0,
        };
        self.envelope.raw().len() + results
    }
}

impl CheckedContext {
    fn result_bytes(&self) -> usize {
        let sections = self.sections.iter().flatten();
        sections.filter_map(|checked| checked.result.as_ref()).map(|(result, _)| result.len()).sum()
    }
}

/// What the preparation of a message leads to.
#[derive(Debug)]
pub enum Prepared {
    /// The message can go to the engine.
    Ready(PreparedMessage),
    /// The store lacks what the message names. A commit under way may add it: the caller waits for that, and prepares the
    /// message once more.
    Behind(Box<VerifiedEnvelope>),
}

impl Prepared {
    /// The message of a last attempt, which is always ready.
    pub fn ready(self) -> Option<PreparedMessage> {
        match self {
            Self::Ready(message) => Some(message),
            Self::Behind(_) => None,
        }
    }
}

/// A preparation could not read the store, or the store lacks what the message names.
#[derive(Debug)]
enum Interrupted {
    Behind,
    Failed(BrokerError),
}

impl<E: Into<BrokerError>> From<E> for Interrupted {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// The longer checks of messages, over the store as the last commit has left it.
#[derive(Clone, Copy)]
pub struct Preparation<'a> {
    pub(crate) store: &'a dyn Store,
    pub(crate) settings: &'a Settings,
    pub(crate) schemas: &'a CompiledSchemas,
    pub(crate) access: Access<'a>,
}

impl Preparation<'_> {
    /// Makes the longer checks of a message that [`PreparedMessage::of_short`] has returned. `is_last`: what the store lacks
    /// now counts as unknown.
    pub fn prepare(&self, envelope: Box<VerifiedEnvelope>, is_last: bool) -> Result<Prepared, BrokerError> {
        match self.findings(&envelope, is_last) {
            Ok(findings) => Ok(Prepared::Ready(PreparedMessage { envelope, findings, process: None })),
            Err(Interrupted::Behind) => Ok(Prepared::Behind(envelope)),
            Err(Interrupted::Failed(error)) => Err(error),
        }
    }

    fn findings(&self, envelope: &VerifiedEnvelope, is_last: bool) -> Result<Findings, Interrupted> {
        // A repeat gets its first receipt, and needs no check.
        if self.store.get(&MessageRecord::key(envelope.header().message_id))?.is_some() {
            return Ok(Findings::None);
        }
        match envelope.body() {
            Body::Handoff(_) => self.context(envelope, is_last),
            Body::Input { data } => self.answer(envelope, data.as_ref(), is_last),
            Body::Status { prompt: Some(prompt), .. } => {
                Ok(Findings::Question(self.schemas.get(&prompt.answer_schema).err()))
            }
            Body::Status { status: TaskStatus::Completed, .. } => self.result(envelope, is_last),
            Body::Plan(plan) => Ok(self.plan(envelope, plan)),
            Body::PlanExtension(extension) => self.extension(envelope, extension, is_last),
            _ => Ok(Findings::None),
        }
    }

    /// Fails once, so that a commit under way can end. After that the state counts as it is.
    fn missing<T>(is_last: bool, otherwise: T) -> Result<T, Interrupted> {
        if is_last { Ok(otherwise) } else { Err(Interrupted::Behind) }
    }

    /// Checks the data of an answer against the schema of the question that it names. Its envelope never changes, so the
    /// engine decides whether the question is open and asks the sender.
    fn answer(
        &self,
        envelope: &VerifiedEnvelope,
        data: Option<&Value>,
        is_last: bool,
    ) -> Result<Findings, Interrupted> {
        let header = envelope.header();
        let Some(question) = header.correlation else { return Ok(Findings::None) };
        let Some(prompt) = self.question(question)? else { return Self::missing(is_last, Findings::None) };
        if prompt.answer_schema_json.is_empty() {
            return Ok(Findings::Answer(Vec::new()));
        }
        // Only the agent that is asked may learn about the schema.
        if !self.is_asked(header.task.as_ref(), question, envelope)? {
            return Self::missing(is_last, Findings::None);
        }
        let (path, data) = ("envelope.payload.data_json", data.unwrap_or(&Value::Null));
        let violations = match self.schemas.get(&prompt.answer_schema_json) {
            Ok(schema) => schema.misfits(data, path, LISTED_MAX, &mut Work::new()),
            Err(problem) => {
                vec![FieldViolation { path: path.to_owned(), problem: format!("cannot be checked: {problem}") }]
            }
        };
        Ok(Findings::Answer(violations))
    }

    fn question(&self, id: MessageId) -> Result<Option<v1::TaskPrompt>, BrokerError> {
        let get = |key: &Key| Ok::<Option<Record>, BrokerError>(self.store.get(key)?);
        let Some(raw) = read_envelope(EnvelopePlace::Message(id), get)? else { return Ok(None) };
        Ok(payload_in::<v1::TaskStatusUpdate>(&raw).and_then(|update| update.prompt))
    }

    fn is_asked(
        &self,
        task: Option<&TaskId>,
        question: MessageId,
        envelope: &VerifiedEnvelope,
    ) -> Result<bool, BrokerError> {
        let Some(task) = task else { return Ok(false) };
        let Some(stored) = self.store.get(&TaskRecord::key(task))? else { return Ok(false) };
        let record = TaskRecord::decode(&stored.value)?;
        let open = record.task.open_prompt();
        Ok(open.is_some_and(|prompt| prompt.id == question && prompt.asked == envelope.header().sender))
    }

    fn plan(&self, envelope: &VerifiedEnvelope, plan: &v1::Plan) -> Findings {
        // A sender without the right does not use the checks; the engine refuses it.
        let sender = Caller::Agent(envelope.header().sender.clone());
        let action = Action::SubmitPlan { plan: &plan.plan_id };
        if !self.settings.plans_enabled || self.access.check(&sender, action, Resource::Broker).is_err() {
            return Findings::None;
        }
        let spec = envelope::plan_of(plan, &self.settings.plan_terms).and_then(|spec| {
            let mut violations = plan_violations(&spec.problems());
            if violations.is_empty() {
                violations = plan_violations(&topic_problems(self.schemas, &spec));
            }
            if violations.is_empty() { Ok(Arc::new(spec)) } else { Err(violations) }
        });
        Findings::Plan(spec)
    }

    /// Checks a running plan with the subtasks of an extension. The engine compares the number of its earlier subtasks.
    fn extension(
        &self,
        envelope: &VerifiedEnvelope,
        extension: &v1::PlanExtension,
        is_last: bool,
    ) -> Result<Findings, Interrupted> {
        let sender = &envelope.header().sender;
        let Ok(id) = PlanId::parse(&extension.plan_id) else { return Ok(Findings::None) };
        let stored = self.store.get(&PlanRecord::key(&id))?;
        let Some(stored) = stored else { return Self::missing(is_last, Findings::None) };
        // The engine refuses an extension of another agent, a repeated one, and one of an ended plan.
        let known = PlanRecord::decode(&stored.value)?.plan;
        if !matches!(known.takes_extension(sender, &extension_digest(extension)), Ok(true)) {
            return Self::missing(is_last, Findings::None);
        }
        let stored = self.store.get(&PlanSpecRecord::key(&id))?;
        let Some(stored) = stored else { return Self::missing(is_last, Findings::None) };
        let spec = PlanSpecRecord::decode(&stored.value)?.0;
        let from = spec.subtasks.len();
        let plan = envelope::extended_plan(extension, &spec).and_then(|extended| {
            let violations = extension_violations(&extended.problems_of_extension(from), from);
            if violations.is_empty() { Ok(Arc::new(extended)) } else { Err(violations) }
        });
        Ok(Findings::Extension { from, plan })
    }
}

/// The digest of an extension without its message: the same subtasks under another message id are a repeat.
pub(crate) fn extension_digest(extension: &v1::PlanExtension) -> [u8; 32] {
    signing::sha256(&[&extension.encode_to_vec()])
}

/// The errors among the problems of an extended plan, as fields of the extension.
fn extension_violations(problems: &[Problem], from: usize) -> Vec<FieldViolation> {
    let of_extension = |path: &str| {
        let (place, rest) = path.strip_prefix("subtasks[")?.split_once(']')?;
        let place = place.parse::<usize>().ok()?.checked_sub(from)?;
        Some(format!("extension.subtasks[{place}]{rest}"))
    };
    let mut violations = plan_violations(problems);
    for violation in &mut violations {
        let path = violation.path.strip_prefix("plan.").unwrap_or_default();
        violation.path = of_extension(path).unwrap_or_else(|| "extension.subtasks".to_owned());
    }
    violations
}

/// The errors among the problems of a plan, as fields of its message.
pub fn plan_violations(problems: &[Problem]) -> Vec<FieldViolation> {
    let errors = problems.iter().filter(|problem| problem.is_error());
    let of = |problem: &Problem| FieldViolation {
        path: format!("plan.{}", problem.path),
        problem: format!("{}: {}", problem.code.name(), problem.message),
    };
    errors.map(of).collect()
}

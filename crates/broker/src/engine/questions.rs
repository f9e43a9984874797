//! Questions about a task: the agent that is to answer, and the checks of a question and of its answer that need more
//! than the state of the task. The rules of asking and answering are the machine's.

use bytes::Bytes;

use super::Engine;
use crate::{
    BrokerError,
    codes::FieldViolation,
    contexts::payload_in,
    domain::{
        EntityId, Receiver,
        admission::{self, AdmissionError},
        mailbox::EnvelopePlace,
    },
    envelope::PromptBody,
    ids::AgentId,
    preparation::{Findings, PreparedMessage},
    proto::v1,
    records::EntityRecord,
    time::Timestamp,
};

const PROMPT: &str = "envelope.payload.prompt";

impl Engine {
    /// The agent that a new question goes to, out of the registered ones that the policy lets the owner write to.
    pub(super) fn asked(
        &mut self,
        message: &PreparedMessage,
        prompt: &PromptBody,
        now: Timestamp,
    ) -> Result<AgentId, BrokerError> {
        let header = message.envelope().header();
        check_prompt(prompt, message.findings(), now)?;
        let asked = match &prompt.answer_by {
            Receiver::Agent(agent) if *agent == header.sender => {
                let problem = "an agent cannot ask itself".to_owned();
                return Err(AdmissionError::ReceiverInvalid { receiver: agent.to_string(), problem }.into());
            }
            Receiver::Agent(agent) => {
                let agent = self.registered(agent)?;
                self.check_send(header, &agent)?;
                self.check_mailbox(&agent)?;
                Some(agent)
            }
            Receiver::AnyOf(agent_type) => {
                let able = admission::others(header, self.best_of(agent_type, now));
                let able = self.permitted_to_get(header, able)?;
                self.first_with_room(able)?
            }
            // The parser of the payload refuses these.
            Receiver::AllOf(_) | Receiver::Absent => None,
        };
        Ok(asked.ok_or_else(|| AdmissionError::ReceiverUnknown { receiver: prompt.answer_by.to_string() })?)
    }

    /// Checks the data of an answer against the schema of its open question. The machine refuses an answer to any other
    /// question, and its sender learns nothing about the schema.
    pub(super) fn check_answer(
        &mut self,
        message: &PreparedMessage,
        data: Option<&serde_json::Value>,
    ) -> Result<(), BrokerError> {
        let header = message.envelope().header();
        let Some(task) = &header.task else { return Ok(()) };
        let stored = self.entity_record(&mut self.transaction(), &EntityId::Task(task.clone()))?;
        let Some(record) = stored.as_deref().and_then(EntityRecord::as_task) else { return Ok(()) };
        let is_answered = |prompt: &&crate::domain::handoff::Prompt| {
            Some(prompt.id) == header.correlation && prompt.asked == header.sender
        };
        let Some(prompt) = record.task.open_prompt().filter(is_answered) else { return Ok(()) };
        let violations = match (data, message.findings()) {
            (Some(_), Findings::Answer(violations)) => violations.clone(),
            // The question was asked after the preparation of its answer.
            (Some(_), _) => return Err(BrokerError::Conflict),
            (None, _) => {
                let asked = self.envelope_bytes(EnvelopePlace::Message(prompt.id)).ok_or(BrokerError::Internal)?;
                if prompt_in(&asked).ok_or(BrokerError::Internal)?.answer_schema_json.is_empty() {
                    return Ok(());
                }
                let problem = "must be set: the question asks for data".to_owned();
                vec![FieldViolation { path: "envelope.payload.data_json".to_owned(), problem }]
            }
        };
        if violations.is_empty() { Ok(()) } else { Err(BrokerError::Fields { violations }) }
    }
}

/// Checks the parts of a new question that the parser of the payload cannot.
fn check_prompt(prompt: &PromptBody, findings: &Findings, now: Timestamp) -> Result<(), BrokerError> {
    let mut violations = Vec::new();
    let mut wrong = |field: &str, problem: String| {
        violations.push(FieldViolation { path: format!("{PROMPT}.{field}"), problem });
    };
    if prompt.answer_before.is_some_and(|due| due <= now) {
        wrong("answer_before", "must be in the future".to_owned());
    }
    if let Findings::Question(Some(problem)) = findings {
        wrong("answer_schema_json", problem.clone());
    }
    if violations.is_empty() { Ok(()) } else { Err(BrokerError::Fields { violations }) }
}

/// The question of a stored status update.
fn prompt_in(envelope: &Bytes) -> Option<v1::TaskPrompt> {
    payload_in::<v1::TaskStatusUpdate>(envelope)?.prompt
}

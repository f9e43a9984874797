//! Questions about a task: ask one agent and wait for its answer, or answer a question.

use super::{
    About, ClientError, Delivered, HandOverError, Link, OwnedTask,
    compose::value_in,
    waiting::{Conversation, Subject},
};
use crate::proto::v1::{self, MessageType};

/// How a question has ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Asked {
    /// The agent that was asked has answered.
    Answered(Answer),
    /// The question got no answer before its deadline.
    Expired,
    /// The question is no longer open, and no answer has arrived: a later status update or a move of the task has
    /// withdrawn it, or another process of this agent got the answer.
    Withdrawn,
}

/// The answer to a question.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The agent that answered.
    pub agent_id: String,
    /// The answer for people to read; may be empty.
    pub text: String,
    /// The answer for programs. It fits the question's schema, if the question has one.
    pub data: Option<serde_json::Value>,
}

/// A question to this agent about another agent's task: [`Self::answer`] answers it once.
#[derive(Clone)]
pub struct Question {
    /// The id of the task.
    pub task_id: String,
    /// The owner of the task, which asks.
    pub owner_id: String,
    /// The question, with its deadline and the schema of its answer.
    pub prompt: v1::TaskPrompt,
    /// The details of the status update that asks, for people.
    pub details: String,
    link: Link,
    delivered: Delivered,
}

impl std::fmt::Debug for Question {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Question")
            .field("task_id", &self.task_id)
            .field("owner_id", &self.owner_id)
            .field("prompt", &self.prompt)
            .finish_non_exhaustive()
    }
}

impl Question {
    /// The question of this message; `None` if it asks none.
    pub(super) fn of(link: &Link, delivered: &Delivered) -> Option<Self> {
        if delivered.kind() != MessageType::TaskStatusUpdate {
            return None;
        }
        let v1::TaskStatusUpdate { prompt, details, .. } = delivered.payload();
        let (task_id, owner_id) = (delivered.envelope.task_id.clone(), delivered.envelope.sender_id.clone());
        let (link, delivered) = (link.clone(), delivered.clone());
        Some(Self { task_id, owner_id, prompt: prompt?, details, link, delivered })
    }

    /// The question, for people.
    pub fn text(&self) -> &str {
        &self.prompt.question
    }

    /// Answers by a text. The first answer counts.
    ///
    /// # Errors
    ///
    /// As [`Link::answer`].
    pub async fn answer(&self, text: &str) -> Result<v1::Receipt, ClientError> {
        self.answer_with(&v1::TaskInput { text: text.to_owned(), ..Default::default() }).await
    }

    /// Answers by data, a JSON object that must fit the question's schema.
    ///
    /// # Errors
    ///
    /// As [`Link::answer`].
    pub async fn answer_data(&self, data: &serde_json::Value) -> Result<v1::Receipt, ClientError> {
        self.answer_with(&v1::TaskInput { data_json: data.to_string(), ..Default::default() }).await
    }

    /// Answers by a text and data, which must fit the question's schema.
    ///
    /// # Errors
    ///
    /// As [`Link::answer`].
    pub async fn answer_with(&self, input: &v1::TaskInput) -> Result<v1::Receipt, ClientError> {
        self.link.answer(&self.delivered, input).await
    }
}

/// A question to an agent, or to one able agent of `type:NAME`, without a deadline.
pub fn question(text: &str, answer_by: &str) -> v1::TaskPrompt {
    v1::TaskPrompt { question: text.to_owned(), answer_by: answer_by.to_owned(), ..Default::default() }
}

impl OwnedTask {
    /// Asks a question and waits until it ends: reports WAITING_FOR_INPUT with this prompt and these details.
    ///
    /// The call lasts until the answer, the deadline of the prompt or the withdrawal; bound it with
    /// `tokio::time::timeout`. A dropped call leaves the question open, and its answer reaches the handler as a
    /// [`v1::TaskInput`].
    ///
    /// # Errors
    ///
    /// As [`OwnedTask::report`]; `RECEIVER_UNKNOWN` if no able agent can be asked, `FIELD_INVALID` for an invalid prompt.
    pub async fn ask(&self, prompt: v1::TaskPrompt, details: &str) -> Result<Asked, ClientError> {
        let update = v1::TaskStatusUpdate {
            status: v1::TaskStatus::WaitingForInput.into(),
            details: details.to_owned(),
            prompt: Some(prompt),
            ..Default::default()
        };
        self.link().put_question(&self.about(), &update).await
    }
}

impl Link {
    /// Answers a question that was delivered to this agent. The first answer counts.
    ///
    /// # Errors
    ///
    /// As [`Link::send`]; `INPUT_TAKEN`, `INPUT_EXPIRED`, `STALE_EPOCH` or `TASK_FINAL` if the question is no longer open,
    /// `FIELD_INVALID` if the data does not fit the question's schema.
    pub async fn answer(&self, question: &Delivered, input: &v1::TaskInput) -> Result<v1::Receipt, ClientError> {
        let mut about = question.about();
        about.correlation_id.clone_from(&question.envelope.message_id);
        self.send("", MessageType::TaskInput, &about, input).await
    }

    /// Goes on waiting for the answer to the open question of a task, which an earlier process of this agent may have
    /// asked. Without an open question, the answer to the latest one that was answered; `Withdrawn` if there is none.
    ///
    /// # Errors
    ///
    /// As [`Link::get_task`]; `HANDOFF_OPEN` while another call waits for the answer.
    pub async fn resume_ask(&self, task_id: &str) -> Result<Asked, ClientError> {
        let task = self.get_task(task_id).await?;
        match task.open_prompt {
            Some(prompt) => {
                let mut answers = self.inner.waiting.wait_alone(Subject::Answer(prompt.message_id.clone()))?;
                self.wait_for_answer(&mut answers, task_id, &prompt.message_id).await
            }
            None => {
                let last = task.last_answer.as_ref().and_then(|last| last.question.as_ref());
                let last = last.and_then(|question| answer_in(&task, &question.message_id));
                Ok(last.map_or(Asked::Withdrawn, Asked::Answered))
            }
        }
    }

    async fn put_question(&self, about: &About, update: &v1::TaskStatusUpdate) -> Result<Asked, ClientError> {
        let envelope = self.composer().compose("", MessageType::TaskStatusUpdate, about, update);
        let question = envelope.message_id.clone();
        // Wait before sending: the answer can arrive ahead of the receipt.
        let mut answers = self.inner.waiting.wait(Subject::Answer(question.clone()));
        self.send_composed(envelope).await?;
        self.wait_for_answer(&mut answers, &about.task_id, &question).await
    }

    async fn wait_for_answer(
        &self,
        answers: &mut Conversation,
        task_id: &str,
        question: &str,
    ) -> Result<Asked, ClientError> {
        // The first look comes soon: the answer to an earlier process may have been acked.
        let (mut looks, mut was_closed) = (self.looks(), false);
        looks.soon();
        loop {
            let letter = tokio::select! {
                biased;
                letter = self.next_letter(answers) => Some(letter),
                () = looks.due() => None,
            };
            match letter {
                Some(letter) => {
                    // No other call waits for this question: its id is new.
                    let letter = letter.map_err(|error| match error {
                        HandOverError::Client(error) => error,
                        other => ClientError::SessionEnded(other.to_string()),
                    })?;
                    let asked = asked_of(&letter.delivered);
                    letter.answer(Ok(()));
                    return Ok(asked);
                }
                None => {
                    let task = self.get_task(task_id).await?;
                    if let Some(answer) = answer_in(&task, question) {
                        return Ok(Asked::Answered(answer));
                    }
                    let is_open = task.open_prompt.is_some_and(|prompt| prompt.message_id == question);
                    // The mail of a question that has ended may still be on its way, so the second look decides.
                    if !is_open && was_closed {
                        return Ok(Asked::Withdrawn);
                    }
                    was_closed = !is_open;
                }
            }
        }
    }
}

/// The answer to this question, if the task shows it.
fn answer_in(task: &v1::Task, question: &str) -> Option<Answer> {
    let answered = task.last_answer.as_ref()?;
    let asked = answered.question.as_ref()?;
    (asked.message_id == question).then_some(answer_of(answered.answer.clone()?, &asked.asked_agent_id))
}

fn answer_of(answer: v1::TaskInput, agent_id: &str) -> Answer {
    let v1::TaskInput { text, data_json } = answer;
    Answer { agent_id: agent_id.to_owned(), text, data: value_in(&data_json) }
}

fn asked_of(delivered: &Delivered) -> Asked {
    match delivered.kind() {
        MessageType::TaskInput => Asked::Answered(answer_of(delivered.payload(), &delivered.envelope.sender_id)),
        // The only other mail of a question is the broker's notice of its expiry.
        _ => Asked::Expired,
    }
}

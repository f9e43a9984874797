//! Why an act did not happen, in words for a model: the fact, and what to do.

use std::time::Duration;

use baton_client::ClientError;
use serde::Serialize;

use crate::text::{TEXT_MAX, clean};

/// The time after which an absent broker may be back.
const AWAY: Duration = Duration::from_secs(30);

/// An act that did not happen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("{text}")]
pub struct ActError {
    /// The stable code: that of the broker, or `ARGUMENTS_INVALID`.
    pub reason: String,
    /// The fact, and what to do.
    #[serde(skip)]
    pub text: String,
    /// The seconds to wait before another try; `None`: another try is of no use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_seconds: Option<u64>,
    /// The JSON Pointer of the wrong argument.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// The handoff of the act.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handoff_id: Option<String>,
}

impl ActError {
    pub(crate) fn new(reason: &str, text: impl Into<String>) -> Self {
        let (reason, text) = (reason.to_owned(), text.into());
        Self { reason, text, retry_after_seconds: None, field: None, handoff_id: None }
    }

    /// The argument at this JSON Pointer is wrong.
    pub(crate) fn argument(pointer: impl Into<String>, problem: impl std::fmt::Display) -> Self {
        let pointer = pointer.into();
        let place = if pointer.is_empty() { "the arguments".to_owned() } else { format!("the argument {pointer}") };
        let text = format!("{place}: {problem}. Nothing was done; correct the argument.");
        Self { field: Some(pointer), ..Self::new("ARGUMENTS_INVALID", text) }
    }

    pub(crate) fn of_handoff(self, handoff_id: &str) -> Self {
        Self { handoff_id: Some(handoff_id.to_owned()), ..self }
    }

    /// Whether the broker has refused the agent itself and not what it asks for: its key was revoked or has ended.
    pub(crate) fn is_of_key(&self) -> bool {
        matches!(
            self.reason.as_str(),
            "AGENT_UNKNOWN" | "CHALLENGE_FAILED" | "KEY_NOT_VALID" | "KEY_REVOKED" | "KEY_UNKNOWN" | "TOKEN_INVALID"
        )
    }

    /// Whether there may be nothing with the id: the broker answers the same for a record that this agent may not see.
    pub(crate) fn is_absent(&self) -> bool {
        matches!(
            self.reason.as_str(),
            "HANDOFF_UNKNOWN"
                | "TASK_UNKNOWN"
                | "PLAN_UNKNOWN"
                | "NEGOTIATION_UNKNOWN"
                | "FIELD_INVALID"
                | "PERMISSION_DENIED"
        )
    }

    /// The broker does not answer.
    pub(crate) fn away(problem: &str) -> Self {
        let seconds = AWAY.as_secs();
        let text = format!(
            "The broker does not answer ({}). Go on with other work or tell the user; try again after {seconds} seconds \
             at the earliest.",
            clean(problem, 256)
        );
        Self { retry_after_seconds: Some(seconds), ..Self::new("UNAVAILABLE", text) }
    }
}

impl From<ClientError> for ActError {
    fn from(error: ClientError) -> Self {
        let refused = match error {
            ClientError::Refused(refused) => refused,
            ClientError::Unverified { reason, problem } => {
                let advice = "Do not act on it; tell the user.";
                return Self::new(
                    reason,
                    format!("A message cannot be trusted: {}. {advice}", clean(&problem, TEXT_MAX)),
                );
            }
            error if error.is_passing() => return Self::away(&error.to_string()),
            error => {
                let advice = "Tell the user: the settings of `baton mcp` or the broker are wrong.";
                return Self::new("SETTINGS_INVALID", format!("{}. {advice}", clean(&error.to_string(), TEXT_MAX)));
            }
        };
        let mut message = clean(&refused.message, TEXT_MAX);
        for (path, problem) in refused.violations.iter().take(8) {
            message.push_str(&format!("; {path}: {problem}"));
        }
        let wait = refused.retry_after.map(|wait| wait.as_secs().max(1));
        let passing =
            matches!(refused.reason.as_str(), "LIMIT_EXCEEDED" | "STORE_UNAVAILABLE" | "STARTING" | "STOPPING");
        let retry_after_seconds = wait.or(passing.then_some(AWAY.as_secs()));
        let advice = match refused.reason.as_str() {
            "STALE_EPOCH" | "NOT_OWNER" => "The task belongs to another agent now: stop working on it.".to_owned(),
            "TASK_FINAL" => "The task has ended; `get_task` shows how.".to_owned(),
            "HANDOFF_FINAL" | "HANDOFF_EXPIRED" | "HANDOFF_STATE" | "NOT_CANDIDATE" => {
                "The handoff has moved on; `wait` shows its state.".to_owned()
            }
            "HANDOFF_OPEN" => "A handoff of the task is open; `wait` for it, or `take_back` it first.".to_owned(),
            "PERMISSION_DENIED" => "This agent may not do it: do not try again; tell the user.".to_owned(),
            "CHALLENGE_FAILED" | "KEY_REVOKED" | "TOKEN_INVALID" => {
                "This agent's key is not, or no more, accepted: do not try again; tell the user.".to_owned()
            }
            "RECEIVER_UNKNOWN" => "There is no such agent; `find_agents` lists those that there are.".to_owned(),
            "TASK_UNKNOWN" | "HANDOFF_UNKNOWN" => {
                "The id is wrong, or not for this agent; `inbox` has the ids.".to_owned()
            }
            "INPUT_TAKEN" | "INPUT_EXPIRED" => "The question is closed: nothing is left to answer.".to_owned(),
            _ => match retry_after_seconds {
                Some(seconds) => format!("Nothing was done; try again after {seconds} seconds at the earliest."),
                None => "Nothing was done; the same call again gets the same answer.".to_owned(),
            },
        };
        let reason = if refused.reason.is_empty() { "REFUSED" } else { &refused.reason };
        let text = format!("{}. {advice}", message.trim_end_matches('.'));
        Self { retry_after_seconds, ..Self::new(reason, text) }
    }
}

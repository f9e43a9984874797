//! Delegations in a thread: the check of a request that names a thread, and the message that the thread gets at the end.

use serde_json::{Value, json};

use super::{
    Engine,
    plan_reports::report_of,
    run::{OpenTransaction, RunError},
    services::NO_WORKSPACES,
    transaction::Transaction,
};
use crate::{
    BrokerError,
    access::Caller,
    codes::ErrorCode,
    contexts::payload_in,
    domain::{
        Header, Mail, ReadError,
        coordinator::{DelegationEnd, ThreadMessage},
        handoff::{Advice, Notice, Priority, TaskStatus},
        mailbox::EnvelopePlace,
        workspace,
    },
    ids::{AgentId, MessageId, ThreadId, WorkspaceId, WorkspaceOwner},
    policy::Action,
    proto::v1,
    time::Timestamp,
};

/// The topic with the history of a thread.
const HISTORY: &str = "messages";

impl Engine {
    /// Checks that the sender may append to the thread that its request names: the broker appends on its behalf.
    pub(super) fn check_thread(
        &mut self,
        transaction: &mut Transaction,
        header: &Header,
        thread: Option<&ThreadId>,
        now: Timestamp,
    ) -> Result<(), BrokerError> {
        let Some(thread) = thread else { return Ok(()) };
        if !self.env.settings.services.workspace {
            return Err(NO_WORKSPACES);
        }
        let workspace = workspace_of(thread)?;
        let mut read = OpenTransaction::new(self, transaction, now);
        let owner = workspace::owner(&workspace, &mut read).map_err(|ReadError| read.failure())?;
        let caller = Caller::Agent(header.sender.clone());
        // A thread that does not exist, one that has ended and a hidden one get the same answer (SPEC 5).
        let no_such = || self.access().no_such_thread(&caller, thread);
        let participants = owner.filter(|owner| owner.is_open).ok_or_else(no_such)?.participants;
        self.access().about_thread(&caller, Action::ReadThread, thread, &participants).map_err(|_| no_such())?;
        self.access().about_thread(&caller, Action::UseThread, thread, &participants)?;
        let action = Action::AppendWorkspace { topic: HISTORY };
        self.access().about_workspace(&caller, action, &workspace, &participants)
    }

    /// Appends the end of a delegation to the history of its thread. If the history cannot take it, the delegator is told:
    /// the end itself stands.
    pub(super) fn tell_thread(
        &mut self,
        transaction: &mut Transaction,
        message: &ThreadMessage,
        now: Timestamp,
    ) -> Result<(), RunError> {
        let workspace = workspace_of(&message.thread)?;
        let entry = self.history_entry(transaction, message, now);
        let appended = self.attempt(transaction, |engine, transaction| {
            engine.append_as_coordinator(transaction, workspace, (HISTORY, entry, false), now)
        });
        let refusal = match appended {
            Ok(()) => return Ok(()),
            Err(error) => error.by_machine()?,
        };
        let ThreadMessage { thread, task, epoch, handoff, delegator, .. } = message;
        let (code, text) = match refusal.code() {
            ErrorCode::WorkspaceUnknown | ErrorCode::WorkspaceClosed => {
                (ErrorCode::ThreadUnknown, "the thread has ended".to_owned())
            }
            code => (code, refusal.to_string()),
        };
        tracing::warn!(%thread, %task, %handoff, %text, "the end of a delegation is not in its thread");
        let message = format!("the end of handoff {handoff} is not in thread {thread}: {text}");
        let notice = Notice { code, message, advice: Advice::None, is_critical: false };
        // It names no handoff: that of the delegation has ended, and its own notices tell how.
        let mail = Mail::Notice { notice, about: None, task: Some((task.clone(), *epoch)) };
        Ok(self.deliver(transaction, delegator.clone(), mail, (Priority::default(), None), None, now)?)
    }

    /// An entry of the shape `baton.history`: a text for a model, and the same as data.
    fn history_entry(&self, transaction: &Transaction, message: &ThreadMessage, now: Timestamp) -> String {
        let ThreadMessage { task, handoff, end, .. } = message;
        let mut data = json!({"task_id": task.as_str(), "handoff_id": handoff.to_string()});
        let mut result = String::new();
        let (by, text) = match end {
            DelegationEnd::Reported { by, status, message, details } => {
                data["outcome"] = status_name(*status).into();
                data["details"] = details.as_str().into();
                let update = self.final_update(transaction, *message).unwrap_or_default();
                result.clone_from(&update.result_json);
                let said = report_of(update).response;
                let has_words = !said.is_empty() && said != result;
                let stated = || format!("Task {task} is {}.", status_name(*status));
                (by.clone(), if has_words { said } else { stated() })
            }
            DelegationEnd::Returned { by } => {
                data["outcome"] = "RETURNED".into();
                (by.clone(), format!("{by} has handed task {task} back."))
            }
            DelegationEnd::Recalled { code, text } => {
                data["outcome"] = "RECALLED".into();
                (AgentId::coordinator(), failure_in(&mut data, *code, text))
            }
            DelegationEnd::NotTaken { code, text } => {
                data["outcome"] = "NOT_TAKEN".into();
                (AgentId::coordinator(), failure_in(&mut data, *code, text))
            }
        };
        let mut data = data.to_string();
        // The result is JSON already. It is joined and not parsed, so that its numbers stay as they are.
        if !result.is_empty() {
            data.pop();
            data.push_str(",\"result\":");
            data.push_str(result.trim_ascii());
            data.push('}');
        }
        let (text, by, time) = (Value::from(text), Value::from(by.as_str()), Value::from(now.to_string()));
        format!(
            "{{\"role\":\"user\",\"content\":[{{\"type\":\"text\",\"text\":{text}}},{{\"type\":\"data\",\"data\":{data}}}],\
             \"agent_id\":{by},\"time\":{time}}}"
        )
    }

    /// A status update: the message in hand, or a stored one.
    fn final_update(&self, transaction: &Transaction, message: MessageId) -> Option<v1::TaskStatusUpdate> {
        match &transaction.in_hand {
            Some((id, raw)) if *id == message => payload_in(raw),
            _ => payload_in(&self.envelope_bytes(EnvelopePlace::Message(message))?),
        }
    }
}

fn workspace_of(thread: &ThreadId) -> Result<WorkspaceId, BrokerError> {
    WorkspaceId::of(WorkspaceOwner::Thread, thread.as_str()).map_err(|_| BrokerError::Internal)
}

fn failure_in(data: &mut Value, code: ErrorCode, text: &str) -> String {
    data["error_code"] = code.name().into();
    data["error_message"] = text.into();
    format!("The delegation failed: {text}")
}

/// The name in the schema, without its prefix.
fn status_name(status: TaskStatus) -> &'static str {
    match status {
        TaskStatus::Created => "CREATED",
        TaskStatus::InProgress => "IN_PROGRESS",
        TaskStatus::WaitingForInput => "WAITING_FOR_INPUT",
        TaskStatus::Completed => "COMPLETED",
        TaskStatus::Failed => "FAILED",
        TaskStatus::Canceled => "CANCELED",
    }
}

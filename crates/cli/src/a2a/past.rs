//! What earlier processes have done for a task, out of the reports in its custody log.

use std::collections::HashSet;

use baton_client::proto::v1::{self, MessageType, TaskStatus, custody_entry::Event};
use prost::Message as _;
use serde::{Deserialize, Serialize};

/// A step that must not be done twice, as the details of a report.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Note {
    /// The message that begins the work goes out, or has gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) remote_message_id: Option<String>,
    /// The remote agent has named its task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) remote_task_id: Option<String>,
    /// The remote agent has this answer to a question.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) remote_answer_id: Option<String>,
}

/// All reports together.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Past {
    pub(super) message: Option<String>,
    pub(super) task: Option<String>,
    pub(super) answers: HashSet<String>,
    /// The ids of the questions that were asked.
    pub(super) questions: HashSet<String>,
}

impl Note {
    pub(super) fn details(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

impl Past {
    /// What the reports of this agent say, those of its latest time as the owner before an epoch.
    pub(super) fn of(log: &[v1::CustodyLogEntry], agent: &str, before_epoch: u64) -> Self {
        let reports: Vec<_> = log.iter().filter_map(|entry| report_of(entry, agent)).collect();
        let epochs = reports.iter().map(|(envelope, _)| envelope.epoch).filter(|epoch| *epoch < before_epoch);
        let Some(latest) = epochs.max() else { return Self::default() };
        let mut past = Self::default();
        for (envelope, update) in reports.into_iter().filter(|(envelope, _)| envelope.epoch == latest) {
            if update.status() == TaskStatus::WaitingForInput {
                past.questions.insert(envelope.message_id);
            } else if let Ok(note) = serde_json::from_str::<Note>(&update.details) {
                past.note(note);
            }
        }
        past
    }

    pub(super) fn note(&mut self, note: Note) {
        self.message = note.remote_message_id.or_else(|| self.message.take());
        self.task = note.remote_task_id.or_else(|| self.task.take());
        self.answers.extend(note.remote_answer_id);
    }
}

/// The status update of this agent in an entry.
fn report_of(entry: &v1::CustodyLogEntry, agent: &str) -> Option<(v1::Envelope, v1::TaskStatusUpdate)> {
    let Some(Event::Accepted(accepted)) = &entry.entry.as_ref()?.event else { return None };
    if accepted.message_type() != MessageType::TaskStatusUpdate || accepted.sender_id != agent {
        return None;
    }
    let envelope = v1::Envelope::decode(entry.envelope.clone()).ok()?;
    let update = v1::TaskStatusUpdate::decode(envelope.payload.as_ref()?.value.clone()).ok()?;
    Some((envelope, update))
}

#[cfg(test)]
mod tests {
    use baton_client::proto::Any;

    use super::*;

    fn entry(sender: &str, epoch: u64, id: &str, status: TaskStatus, details: &str) -> v1::CustodyLogEntry {
        let update = v1::TaskStatusUpdate { status: status.into(), details: details.to_owned(), ..Default::default() };
        let payload = Any { value: update.encode_to_vec().into(), ..Default::default() };
        let envelope = v1::Envelope {
            message_id: id.to_owned(),
            sender_id: sender.to_owned(),
            epoch,
            payload: Some(payload),
            ..Default::default()
        };
        let accepted = v1::CustodyEnvelope {
            message_type: MessageType::TaskStatusUpdate.into(),
            sender_id: sender.to_owned(),
            ..Default::default()
        };
        let body = v1::CustodyEntry { epoch, event: Some(Event::Accepted(accepted)), ..Default::default() };
        v1::CustodyLogEntry { entry: Some(body), envelope: envelope.encode_to_vec().into(), ..Default::default() }
    }

    #[test]
    fn only_the_reports_of_this_agent_and_of_its_latest_time_count() {
        let note = |message: &str| Note { remote_message_id: Some(message.to_owned()), ..Note::default() }.details();
        let task = Note { remote_task_id: Some("t".to_owned()), ..Note::default() }.details();
        let answer = Note { remote_answer_id: Some("a".to_owned()), ..Note::default() }.details();
        let log = [
            entry("bob", 2, "1", TaskStatus::InProgress, &note("old")),
            entry("carol", 4, "2", TaskStatus::InProgress, &note("other")),
            entry("bob", 4, "3", TaskStatus::InProgress, &note("new")),
            entry("bob", 4, "4", TaskStatus::InProgress, &task),
            entry("bob", 4, "5", TaskStatus::InProgress, "half done"),
            entry("bob", 4, "6", TaskStatus::WaitingForInput, ""),
            entry("bob", 4, "7", TaskStatus::InProgress, &answer),
        ];
        let past = Past::of(&log, "bob", u64::MAX);
        assert_eq!((past.message.as_deref(), past.task.as_deref()), (Some("new"), Some("t")));
        assert_eq!((past.questions, past.answers), (HashSet::from(["6".into()]), HashSet::from(["a".into()])));
        assert_eq!(Past::of(&log, "bob", 4).message.as_deref(), Some("old"));
        assert_eq!(Past::of(&log, "dave", u64::MAX), Past::default());
    }
}

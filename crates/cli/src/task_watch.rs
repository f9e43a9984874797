//! `baton task watch`: the entries of a task's custody log as they are written.

use prost::Message as _;

use super::{
    Failure, json,
    output::{self, Output},
};
use baton_client::{
    Client,
    ids::TaskId,
    proto::v1::{self, MessageType, custody_entry::Event, watch_task_response::Update},
};

/// Prints the entries after this one until the task ends.
pub(super) async fn run(client: &Client, id: &TaskId, after_number: u64, output: &Output) -> Result<(), Failure> {
    let request = v1::WatchTaskRequest { task_id: id.to_string(), after_number };
    let mut updates = super::watching::open(client, request).await?;
    while let Some(update) = updates.next().await? {
        match &update.update {
            Some(Update::Entry(entry)) if output.is_table() => say_entry(entry),
            Some(Update::Gap(gap)) if output.is_table() => {
                say!("{:>5}  (entries {} to {} are missing)", "", gap.first_number, gap.last_number);
            }
            Some(_) => output.next(&json::of(&update)?)?,
            // An update of a later version of the schema.
            None => {}
        }
    }
    Ok(())
}

/// The status update of an entry. Only it has progress, and details for people.
pub(super) fn status_update(entry: &v1::CustodyLogEntry) -> Option<v1::TaskStatusUpdate> {
    let envelope = v1::Envelope::decode(entry.envelope.clone()).ok()?;
    let is_update = envelope.message_type() == MessageType::TaskStatusUpdate;
    v1::TaskStatusUpdate::decode(envelope.payload.filter(|_| is_update)?.value).ok()
}

/// A progress from 0 to 1. Empty: none was reported.
pub(super) fn percent(progress: Option<f64>) -> String {
    progress.map(|progress| format!("{:.0} %", progress * 100.0)).unwrap_or_default()
}

/// Prints an entry on two lines: number, time and event, then the state of the task after it.
fn say_entry(entry: &v1::CustodyLogEntry) {
    let update = status_update(entry).unwrap_or_default();
    let words = [percent(update.progress), update.details];
    let details = words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(", ");
    let entry = entry.entry.clone().unwrap_or_default();
    let kind = |envelope: &v1::CustodyEnvelope| {
        format!("{} of {}", output::short(envelope.message_type().as_str_name(), "MESSAGE_TYPE_"), envelope.sender_id)
    };
    let mail = |delivery: &v1::CustodyDelivery| {
        format!("{} by {}", output::short(delivery.mail().as_str_name(), "HANDOFF_MAIL_"), delivery.agent_id)
    };
    let what = match &entry.event {
        Some(Event::Accepted(envelope)) => format!("accepted {}", kind(envelope)),
        Some(Event::Refused(envelope)) => {
            let code = output::short(envelope.error_code().as_str_name(), "ERROR_CODE_");
            format!("refused {}: {code}", kind(envelope))
        }
        Some(Event::Acked(delivery)) => format!("acked {}", mail(delivery)),
        Some(Event::GivenUp(delivery)) => format!("given up {}", mail(delivery)),
        Some(Event::Time(time)) if time.of_task => "a loan or a question is due".to_owned(),
        Some(Event::Time(_)) => "a deadline passed".to_owned(),
        Some(Event::Gone(_)) => "the candidate is gone".to_owned(),
        Some(Event::Looked(_)) => "looked for an agent with room".to_owned(),
        Some(Event::MailOmitted(_)) => "later plain mail is not in the log".to_owned(),
        Some(Event::Silent(_)) => "the owner gave no sign of work".to_owned(),
        Some(Event::Cancelled(cancelled)) => match cancelled.parent_task_id.as_str() {
            "" => "cancelled by the broker: no agent worked on it".to_owned(),
            parent => format!("cancelled with task {parent}"),
        },
        Some(Event::Reassigned(taken)) => format!("reassigned to {} by {}", taken.receiver_id, taken.submitter_id),
        Some(Event::Redriven(redrive)) => format!("redriven from dead letter {}", redrive.dead_letter_id),
        Some(Event::Awarded(award)) => format!("awarded to {}", award.candidate_ids.join(", then ")),
        None => String::new(),
    };
    let state = match entry.handoff_state() {
        v1::HandoffState::Unspecified => String::new(),
        state => output::short(state.as_str_name(), "HANDOFF_STATE_"),
    };
    say!("{:>5}  {}  {what}", entry.number, output::moment(entry.entry_time.as_ref()));
    say!(
        "{:>5}  {state}{}{}, owner {} at epoch {}{}{details}",
        "",
        if state.is_empty() { "" } else { ", " },
        output::short(entry.task_status().as_str_name(), "TASK_STATUS_"),
        entry.owner_id,
        entry.epoch,
        if details.is_empty() { "" } else { ": " },
    );
}

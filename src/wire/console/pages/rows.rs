//! The rows of the pages, as texts.

use std::{fmt::Debug, time::Duration};

use super::lists::Content;
use crate::{
    broker::{
        BrokerError,
        directory::{Directory, Entry},
        queries::View,
    },
    domain::{
        handoff::{Handoff, State, Task, Waiting},
        mailbox::Attempt,
    },
    ids::AgentId,
    proto::v1,
    records::DeadLetterRecord,
    time::Timestamp,
};

/// The name of a variant in words: `TimedOut` is "timed out".
pub(super) fn words(variant: &impl Debug) -> String {
    let mut words = String::new();
    for letter in format!("{variant:?}").chars() {
        if letter.is_uppercase() && !words.is_empty() {
            words.push(' ');
        }
        words.extend(letter.to_lowercase());
    }
    words
}

/// What the broker waits for before it asks an agent.
fn waits_for(waiting: Waiting) -> &'static str {
    match waiting {
        Waiting::Capacity => "waits for an agent with room",
        Waiting::RetryTime => "waits until it may ask again",
        Waiting::Agent => "waits for an agent to register",
        Waiting::DeliverAfter => "waits for the time of the request",
    }
}

/// The party on turn, and what it has to do. `None`: the handoff has ended.
pub(super) fn turn(handoff: &Handoff) -> Option<(String, &'static str)> {
    let candidate = handoff.candidate.to_string();
    match handoff.state {
        State::Requested if handoff.is_held() => Some(("the broker".to_owned(), waits_for(handoff.waiting?))),
        State::Requested => Some((candidate, "receives the request")),
        State::Deciding => Some((candidate, "decides")),
        State::Accepted => Some((handoff.sender.to_string(), "prepares the context")),
        State::ContextSent => Some((candidate, "takes over")),
        State::Completed | State::Rejected | State::Failed | State::Cancelled => None,
    }
}

/// A span of time with what a person compares: tenths for a short one.
pub(super) fn seconds(time: Duration) -> String {
    match time.as_secs_f64() {
        short if short < 10.0 => format!("{short:.1} s"),
        long if long < 120.0 => format!("{long:.0} s"),
        long if long < 7200.0 => format!("{:.0} min", long / 60.0),
        long => format!("{:.0} h", long / 3600.0),
    }
}

/// The most bytes of a summary in a row of a list.
pub(super) const SUMMARY_BYTES_MAX: usize = 160;

pub(super) struct HandoffRow {
    pub(super) id: String,
    pub(super) task: String,
    pub(super) task_type: String,
    /// What the request says the task is about, shortened.
    pub(super) summary: String,
    pub(super) sender: String,
    pub(super) candidate: String,
    pub(super) state: &'static str,
    pub(super) turn: Option<(String, &'static str)>,
    pub(super) deadline: Option<String>,
    pub(super) offers: usize,
    pub(super) priority: String,
    pub(super) created_at: String,
}

impl HandoffRow {
    /// The row of a handoff that the caller may see.
    pub(super) fn new(view: View<'_>, handoff: &Handoff) -> Result<Self, BrokerError> {
        Ok(Self {
            id: handoff.id.to_string(),
            summary: Content::of_at_most(&view.summary_of(handoff)?, SUMMARY_BYTES_MAX).with_ellipsis(),
            task: handoff.task.to_string(),
            task_type: handoff.task_type.clone(),
            sender: handoff.sender.to_string(),
            candidate: handoff.shown_candidate().map(ToString::to_string).unwrap_or_default(),
            state: handoff.state.name(),
            turn: turn(handoff),
            deadline: handoff.next_deadline().map(|deadline| deadline.to_string()),
            offers: handoff.offers.len(),
            priority: words(&handoff.priority),
            created_at: handoff.created_at.to_string(),
        })
    }
}

/// The beginning of an ownership.
pub(super) struct HopRow {
    pub(super) epoch: u64,
    pub(super) owner: String,
    pub(super) cause: &'static str,
    pub(super) handoff: Option<String>,
}

impl HopRow {
    /// The owners by epoch, oldest first. The task keeps the first seizure from each owner alone, so an epoch that a
    /// later one began is absent.
    pub(super) fn all(task: &Task) -> Vec<Self> {
        let first = Self { epoch: 1, owner: task.creator().to_string(), cause: "created the task", handoff: None };
        let hops = task.hops.iter().map(|hop| Self {
            epoch: hop.epoch,
            owner: hop.receiver.to_string(),
            cause: "took it over",
            handoff: Some(hop.handoff.to_string()),
        });
        let seizures = task.seizures.iter().map(|seizure| Self {
            epoch: seizure.epoch,
            owner: "the coordinator".to_owned(),
            cause: "an operator reassigned it",
            handoff: Some(seizure.handoff.to_string()),
        });
        let mut rows: Vec<Self> = std::iter::once(first).chain(hops).chain(seizures).collect();
        rows.sort_by_key(|row| row.epoch);
        rows
    }
}

pub(super) struct AgentRow {
    pub(super) id: String,
    pub(super) types: String,
    pub(super) presence: &'static str,
    pub(super) load: String,
    pub(super) owned: u32,
    pub(super) offers: u32,
}

impl AgentRow {
    pub(super) fn new(entry: &std::sync::Arc<Entry>, directory: &Directory, now: Timestamp) -> Self {
        let busy = directory.busy(entry, now);
        let load = match busy.load.capacity {
            0 => busy.load.in_use.to_string(),
            capacity => format!("{} of {capacity}", busy.load.in_use),
        };
        let types: Vec<&str> = entry.types.iter().map(|kind| kind.as_str()).collect();
        Self {
            id: entry.id().to_string(),
            types: types.join(", "),
            presence: directory.presence_state(&entry.id(), now).name(),
            load,
            owned: busy.owned,
            offers: busy.offers,
        }
    }
}

pub(super) struct DeadLetterRow {
    pub(super) number: u64,
    pub(super) agent: String,
    pub(super) sender: String,
    pub(super) message_type: &'static str,
    pub(super) task: String,
    pub(super) handoff: Option<String>,
    pub(super) reason: &'static str,
    pub(super) reason_text: String,
    pub(super) attempts: usize,
    pub(super) state: &'static str,
    pub(super) parked_at: String,
}

impl DeadLetterRow {
    pub(super) fn new(dead: &DeadLetterRecord) -> Self {
        let kind = v1::MessageType::try_from(dead.summary.message_type);
        Self {
            number: dead.number,
            agent: dead.agent.to_string(),
            sender: dead.summary.sender_id.clone(),
            message_type: kind.map_or("unknown", |kind| kind.as_str_name().trim_start_matches("MESSAGE_TYPE_")),
            task: dead.summary.task_id.clone(),
            handoff: dead.handoff.map(|handoff| handoff.to_string()),
            reason: dead.reason.name(),
            reason_text: dead.reason_text.clone(),
            attempts: dead.attempts.len(),
            state: dead.state.name(),
            parked_at: dead.parked_at.to_string(),
        }
    }
}

/// A delivery attempt of a dead letter.
pub(super) struct AttemptRow {
    pub(super) agent: String,
    pub(super) handed_out_at: String,
    pub(super) ended_at: String,
    pub(super) end: String,
    pub(super) text: String,
}

impl AttemptRow {
    pub(super) fn new((agent, attempt): &(AgentId, Attempt)) -> Self {
        Self {
            agent: agent.to_string(),
            handed_out_at: attempt.handed_out_at.to_string(),
            ended_at: attempt.ended_at.to_string(),
            end: words(&attempt.end),
            text: attempt.text.clone(),
        }
    }
}

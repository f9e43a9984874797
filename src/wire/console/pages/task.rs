//! The page of a task: its owners as lanes and as a table, its handoffs, and its custody log with the replay.

use std::collections::BTreeMap;

use askama::Template;
use axum::{
    Extension,
    extract::{Path, Query, State},
    response::Response,
};
use serde::Deserialize;

use super::{
    PAGE_SIZE,
    acts::{self, Offered},
    lanes::{Lanes, OpenHandoff, Ownership, lanes},
    parsed,
    rows::{HandoffRow, HopRow},
    shown,
    story::{Moment, story},
    tasks::{status_name, turn},
};
use crate::{
    broker::{
        Broker, BrokerError,
        access::Caller,
        queries::{HandoffFilter, ShownTask, View},
    },
    domain::handoff::Handoff,
    envelope::keys::PublicKey,
    ids::{AgentId, TaskId, parse_number},
    proto::v1::{self, custody_entry::Event},
    replay::Replay,
    wire::{console::Console, to_proto},
};

/// The most entries of the custody log that the lanes are read from.
const LANES_ENTRIES_MAX: usize = 1000;
/// The most ownerships that the lanes and the table of owners show.
const OWNERSHIPS_MAX: usize = 64;
/// The handoffs of the task that its page shows; the list of handoffs has all.
const HANDOFFS_SHOWN: usize = 20;
/// The most entries and bytes that one verification replays.
const VERIFIED_ENTRIES_MAX: u64 = 2000;
const VERIFIED_BYTES_MAX: usize = 32 * 1024 * 1024;
/// The entries that a verification reads at a time.
const VERIFIED_AT_ONCE: usize = 200;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct TaskQuery {
    /// The custody log begins after the entry with this number.
    page: String,
    /// `1`: the custody log is replayed.
    verify: String,
}

#[derive(Template)]
#[template(path = "task.html")]
struct TaskPage {
    who: String,
    id: String,
    task_type: String,
    /// The whole summary of its first request. Empty: none.
    summary: String,
    status: &'static str,
    owner: String,
    epoch: u64,
    created_at: String,
    /// Whose turn it is, and to do what.
    turn: Option<(String, &'static str)>,
    deadline: String,
    progress: String,
    parent: String,
    plan: String,
    parts: Vec<String>,
    /// The agents that get the task back, with the time at which its loan is due.
    loans: Vec<(String, String)>,
    /// The open question, for the agent that was asked.
    question: String,
    conversation: String,
    acts: Vec<Offered>,
    /// `None`: the caller sees the task only because it was asked a question about it.
    log: Option<LogPart>,
}

struct LogPart {
    story: Vec<Moment>,
    lanes: Lanes,
    begin: String,
    end: String,
    owners: Vec<OwnerRow>,
    /// Whether the lanes and the owners do not show the whole task.
    is_cut: bool,
    handoffs: Vec<HandoffRow>,
    has_more_handoffs: bool,
    verified: Option<Verified>,
    entries: Vec<EntryRow>,
    /// The first and the last missing entry.
    gap: Option<(u64, u64)>,
    length: u64,
    next: Option<u64>,
}

struct OwnerRow {
    hop: HopRow,
    from: String,
    until: String,
}

struct EntryRow {
    number: u64,
    at: String,
    event: &'static str,
    about: String,
    owner: String,
    epoch: u64,
    status: &'static str,
    handoff: String,
    handoff_state: &'static str,
}

/// The outcome of a replay.
enum Verified {
    Holds(Replayed),
    /// The log is longer than one call may check.
    HoldsSoFar(Replayed),
    Broken(String),
}

struct Replayed {
    entries: u64,
    receipts: u64,
    refusals: u64,
    withheld: u64,
    hash: String,
}

pub(super) async fn show(
    State(console): State<Console>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Query(query): Query<TaskQuery>,
) -> Response {
    let verifies = query.verify == "1";
    let (broker, reader) = (console.broker.clone(), caller.clone());
    let show = move |view: View<'_>| {
        let id = parsed("task_id", &id, TaskId::parse)?;
        let after = match query.page.as_str() {
            "" => 0,
            token => parse_number(token).ok_or(BrokerError::PageTokenInvalid)?,
        };
        let found = view.shown_task(&id)?;
        let task = &found.record.task;
        let log = match found.is_asked_only {
            true => None,
            false => Some(LogPart::read(view, &broker, &found, after, verifies)?),
        };
        let latest = found.record.handoff.as_ref().map(|record| &*record.handoff);
        let latest = latest.filter(|handoff| view.access.may_see_handoff(view.caller, handoff));
        let due = latest.and_then(Handoff::next_deadline).or_else(|| task.next_deadline());
        let question = found.prompt.as_ref().and_then(|report| report.prompt.as_ref());
        Ok(TaskPage {
            who: reader.to_string(),
            id: task.id.to_string(),
            task_type: task.task_type.clone(),
            summary: view.summary_of_task(task, latest)?,
            status: status_name(task.status),
            owner: task.owner.to_string(),
            epoch: task.epoch,
            created_at: task.created_at.to_string(),
            turn: turn(task, latest),
            deadline: due.filter(|_| !task.status.is_final()).map(|due| due.to_string()).unwrap_or_default(),
            progress: task.progress.map(|part| format!("{:.0} %", part * 100.0)).unwrap_or_default(),
            parent: task.parent.as_ref().map(ToString::to_string).unwrap_or_default(),
            plan: task.plan.as_ref().map(|plan| plan.plan.to_string()).unwrap_or_default(),
            parts: found.parts.iter().map(ToString::to_string).collect(),
            loans: task
                .loans
                .iter()
                .map(|loan| (loan.delegator.to_string(), loan.due.map(|due| due.to_string()).unwrap_or_default()))
                .collect(),
            conversation: task
                .conversation
                .as_ref()
                .map(ToString::to_string)
                .filter(|_| !found.is_asked_only)
                .unwrap_or_default(),
            acts: if found.is_asked_only { Vec::new() } else { acts::of_task(view, task) },
            question: question.map(|prompt| prompt.question.clone()).unwrap_or_default(),
            log,
        })
    };
    shown(&console, &caller, show).await
}

impl LogPart {
    fn read(
        view: View<'_>,
        broker: &Broker,
        found: &ShownTask,
        after: u64,
        verifies: bool,
    ) -> Result<Self, BrokerError> {
        let (task, id) = (&found.record.task, &found.record.task.id);
        let verified = if verifies { Some(verify(view, broker, id)?) } else { None };
        // A caller that may read the task and no handoff at all sees the task alone.
        let filter = HandoffFilter { task: Some(id.clone()), ..HandoffFilter::default() };
        let handoffs = view.handoffs(&filter, HANDOFFS_SHOWN, "")?;
        let now = broker.now();
        let open = handoffs.entries.iter().filter(|handoff| !handoff.state.is_final());
        let open: Vec<OpenHandoff> = open
            .map(|handoff| OpenHandoff {
                candidate: handoff.candidate.to_string(),
                state: handoff.state.name(),
                from: handoff.offers.last().map_or(handoff.created_at, |offer| offer.offered_at),
            })
            .collect();
        let log = view.custody(id, 0, LANES_ENTRIES_MAX, false)?;
        let mut owned = ownerships(&log.entries);
        let is_cut = (log.entries.len() as u64) < log.length || owned.len() > OWNERSHIPS_MAX;
        owned.drain(..owned.len().saturating_sub(OWNERSHIPS_MAX));
        let end = if task.status.is_final() { task.updated_at } else { now };
        let page = view.custody(id, after, PAGE_SIZE, false)?;
        let last = page.entries.last().and_then(|last| last.entry.as_ref()).map(|entry| entry.number);
        Ok(Self {
            story: story(view, found, &handoffs.entries)?,
            lanes: lanes(&owned, &open, end),
            begin: owned.first().map(|owned| owned.from.to_string()).unwrap_or_default(),
            end: end.to_string(),
            owners: owner_rows(HopRow::all(task), &owned),
            is_cut,
            handoffs: handoffs
                .entries
                .iter()
                .map(|handoff| HandoffRow::new(view, handoff))
                .collect::<Result<_, _>>()?,
            has_more_handoffs: !handoffs.next_token.is_empty(),
            verified,
            entries: page.entries.iter().filter_map(|shown| shown.entry.as_ref()).map(EntryRow::new).collect(),
            gap: page.gap,
            length: page.length,
            next: last.filter(|last| *last < page.length),
        })
    }
}

/// The ownerships that the entries of a custody log state, oldest first.
fn ownerships(entries: &[v1::CustodyLogEntry]) -> Vec<Ownership> {
    let mut all: Vec<Ownership> = Vec::new();
    for entry in entries.iter().filter_map(|shown| shown.entry.as_ref()) {
        let Some(at) = to_proto::time_of(entry.entry_time.as_ref()) else { continue };
        let last = all.last_mut();
        if last.as_ref().is_some_and(|last| last.epoch == entry.epoch) {
            continue;
        }
        if let Some(last) = last {
            last.until = Some(at);
        }
        all.push(Ownership { agent: entry.owner_id.clone(), epoch: entry.epoch, from: at, until: None });
    }
    all
}

/// The owners by epoch: what the task states of causes, with the times of the custody log.
fn owner_rows(hops: Vec<HopRow>, owned: &[Ownership]) -> Vec<OwnerRow> {
    let without_times = |hop| OwnerRow { hop, from: String::new(), until: String::new() };
    let mut rows: BTreeMap<u64, OwnerRow> = hops.into_iter().map(|hop| (hop.epoch, without_times(hop))).collect();
    for owned in owned {
        let row = rows.entry(owned.epoch).or_insert_with(|| {
            // The task keeps no hop for an epoch that began with the end of a loan.
            without_times(HopRow { epoch: owned.epoch, owner: String::new(), cause: "got it back", handoff: None })
        });
        row.hop.owner.clone_from(&owned.agent);
        row.from = owned.from.to_string();
        row.until = owned.until.map(|until| until.to_string()).unwrap_or_default();
    }
    let skipped = rows.len().saturating_sub(OWNERSHIPS_MAX);
    rows.into_values().skip(skipped).collect()
}

/// Replays the custody log as far as the caller may read it, and compares the end with the task.
fn verify(view: View<'_>, broker: &Broker, id: &TaskId) -> Result<Verified, BrokerError> {
    let key = broker.directory().get(&AgentId::broker());
    let key = key.and_then(|entry| PublicKey::parse(&entry.record.card.keys.first()?.public_key).ok());
    let mut replay = Replay::new(id.clone(), Some(key.ok_or(BrokerError::Internal)?));
    let mut bytes = 0;
    loop {
        let page = view.custody(id, replay.length(), VERIFIED_AT_ONCE, true)?;
        // A replay needs each entry from the first: without one, no later state can be verified.
        if let Some((first, last)) = page.gap {
            return Ok(Verified::Broken(format!("entries {first} to {last} are missing")));
        }
        for entry in page.entries {
            bytes += entry.entry_bytes.len() + entry.envelope.len();
            let receipt = entry.receipt.map(|receipt| broker.sign_receipt(receipt));
            if let Err(error) = replay.take(&v1::CustodyLogEntry { receipt, ..entry }) {
                return Ok(Verified::Broken(error.to_string()));
            }
        }
        if replay.length() >= page.length {
            break;
        }
        if replay.length() >= VERIFIED_ENTRIES_MAX || bytes >= VERIFIED_BYTES_MAX {
            return Ok(Verified::HoldsSoFar(Replayed::of(&replay)));
        }
    }
    // Entries may have been added since the log was read. Then the log is longer than the replay, and the task's state
    // cannot be compared.
    let record = view.task(id)?;
    if record.custody.length == replay.length()
        && let Err(error) = replay.compare(&to_proto::task(&record))
    {
        return Ok(Verified::Broken(error.to_string()));
    }
    Ok(Verified::Holds(Replayed::of(&replay)))
}

impl Replayed {
    fn of(replay: &Replay) -> Self {
        Self {
            entries: replay.length(),
            receipts: replay.receipts(),
            refusals: replay.refusals(),
            withheld: replay.withheld(),
            hash: hex::encode(replay.hash()),
        }
    }
}

/// The task with which the broker cancelled another one.
fn cause_of(cancelled: &v1::CustodyCancellation) -> String {
    match cancelled.parent_task_id.as_str() {
        "" => "no agent worked on it".to_owned(),
        parent => format!("with task {parent}"),
    }
}

impl EntryRow {
    fn new(entry: &v1::CustodyEntry) -> Self {
        let (event, about) = match &entry.event {
            Some(Event::Accepted(accepted)) => ("accepted", message_of(accepted)),
            Some(Event::Refused(refused)) => {
                let code = refused.error_code().as_str_name().trim_start_matches("ERROR_CODE_");
                ("refused", format!("{}: {code}", message_of(refused)))
            }
            Some(Event::Acked(delivery)) => ("acked", mail_of(delivery)),
            Some(Event::GivenUp(delivery)) => ("became a dead letter", mail_of(delivery)),
            Some(Event::Time(time)) if time.of_task => ("a deadline passed", "of the task".to_owned()),
            Some(Event::Time(_)) => ("a deadline passed", "of the handoff".to_owned()),
            Some(Event::Gone(_)) => ("the candidate is gone", String::new()),
            Some(Event::Looked(look)) => ("looked for an agent with room", look.agent_ids.join(", ")),
            Some(Event::Redriven(redriven)) => ("redriven", format!("dead letter {}", redriven.dead_letter_id)),
            Some(Event::Reassigned(to)) => ("reassigned", format!("by {} to {}", to.submitter_id, to.receiver_id)),
            Some(Event::MailOmitted(_)) => ("later mail has no entry", String::new()),
            Some(Event::Silent(_)) => ("the owner was silent", String::new()),
            Some(Event::Cancelled(cancelled)) => ("cancelled by the broker", cause_of(cancelled)),
            Some(Event::Awarded(_)) => ("awarded", String::new()),
            None => ("unknown", String::new()),
        };
        let handoff_state = match entry.handoff_id.as_str() {
            "" => "",
            _ => entry.handoff_state().as_str_name().trim_start_matches("HANDOFF_STATE_"),
        };
        Self {
            number: entry.number,
            at: to_proto::time_text(entry.entry_time.as_ref()),
            event,
            about,
            owner: entry.owner_id.clone(),
            epoch: entry.epoch,
            status: entry.task_status().as_str_name().trim_start_matches("TASK_STATUS_"),
            handoff: entry.handoff_id.clone(),
            handoff_state,
        }
    }
}

fn message_of(envelope: &v1::CustodyEnvelope) -> String {
    let kind = envelope.message_type().as_str_name().trim_start_matches("MESSAGE_TYPE_");
    format!("{kind} from {}", envelope.sender_id)
}

fn mail_of(delivery: &v1::CustodyDelivery) -> String {
    let mail = delivery.mail().as_str_name().trim_start_matches("HANDOFF_MAIL_");
    format!("{mail} for {}", delivery.agent_id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Timestamp;

    fn logged(number: u64, owner: &str, epoch: u64) -> v1::CustodyLogEntry {
        let seconds = i64::try_from(number).unwrap();
        let entry = v1::CustodyEntry {
            number,
            entry_time: Timestamp::from_parts(seconds, 0).map(Into::into),
            owner_id: owner.to_owned(),
            epoch,
            ..Default::default()
        };
        v1::CustodyLogEntry { entry: Some(entry), ..Default::default() }
    }

    #[test]
    fn an_ownership_lasts_from_the_first_entry_of_its_epoch_to_that_of_the_next() {
        let entries = [logged(1, "a", 1), logged(2, "a", 1), logged(3, "b", 2), logged(4, "a", 3), logged(5, "a", 3)];
        let at = |seconds| Timestamp::from_parts(seconds, 0);
        let found: Vec<_> =
            ownerships(&entries).into_iter().map(|one| (one.agent, one.epoch, Some(one.from), one.until)).collect();
        let expected = [("a", 1, at(1), at(3)), ("b", 2, at(3), at(4)), ("a", 3, at(4), None)];
        assert_eq!(found, expected.map(|(agent, epoch, from, until)| (agent.to_owned(), epoch, from, until)));
    }

    #[test]
    fn an_epoch_without_a_hop_is_that_of_a_loan_which_ended() {
        let first = HopRow { epoch: 1, owner: "a".to_owned(), cause: "created the task", handoff: None };
        let owned = ownerships(&[logged(1, "a", 1), logged(2, "b", 2)]);
        let rows: Vec<_> =
            owner_rows(vec![first], &owned).into_iter().map(|row| (row.hop.owner, row.hop.cause)).collect();
        assert_eq!(rows, [("a".to_owned(), "created the task"), ("b".to_owned(), "got it back")]);
    }
}

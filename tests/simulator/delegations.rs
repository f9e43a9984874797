//! A delegation that was begun in a thread ends there: with exactly one message, in the change that ends it, which tells the
//! end that the custody log tells. Without one only if the thread has ended, or if its workspace is full: then the
//! delegator is told.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use baton_broker_core::{
    domain::{
        handoff::{Handoff, Loan, Mode, State, Task},
        mailbox::EnvelopePlace,
        workspace::{WorkspaceId, WorkspaceOwner},
    },
    envelope::history,
    ids::{AgentId, MessageId, TaskId, ThreadId},
    proto::v1::{self, custody_entry::Event},
    records::{TaskRecord, WorkspaceEntryRecord},
    store::{Change, Table},
};
use bytes::Bytes;
use prost::Message as _;
use serde_json::Value;

use crate::{threads::Threads, workspaces::Workspaces};

/// The delegations in threads, as the changes show them.
#[derive(Debug, Default)]
pub(crate) struct Delegations {
    /// The most entries of a workspace.
    pub entries_max: u64,
    /// The thread of each delegation that has not ended.
    open: HashMap<MessageId, ThreadId>,
    ended: HashSet<MessageId>,
    /// The loans of each task.
    loans: HashMap<TaskId, Vec<Loan>>,
    /// The entry of a task's log that this change adds, if it is the only one.
    causes: HashMap<TaskId, Event>,
}

/// The end of a delegation, as a thread should tell it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct End {
    outcome: &'static str,
    /// The name of an error code. Empty: none.
    code: String,
}

impl End {
    fn new(outcome: &'static str, code: impl Into<String>) -> Self {
        Self { outcome, code: code.into() }
    }

    /// The end of a loan by this entry of its task's log.
    fn of_loan(cause: &Event, envelope: &dyn Fn(EnvelopePlace) -> Bytes) -> Self {
        use v1::{MessageType as T, TaskStatus};
        match cause {
            Event::Accepted(accepted) if accepted.message_type() == T::TaskStatusUpdate => {
                let id = MessageId::parse(&accepted.message_id).unwrap();
                let said = v1::Envelope::decode(envelope(EnvelopePlace::Message(id))).unwrap();
                match v1::TaskStatusUpdate::decode(said.payload.unwrap().value).unwrap().status() {
                    TaskStatus::Completed => Self::new("COMPLETED", ""),
                    TaskStatus::Failed => Self::new("FAILED", ""),
                    TaskStatus::Canceled => Self::new("CANCELED", ""),
                    other => panic!("a loan ended with the status {other:?}"),
                }
            }
            Event::Accepted(accepted) if accepted.message_type() == T::HandoffComplete => Self::new("RETURNED", ""),
            Event::Accepted(accepted) if accepted.message_type() == T::TaskRecall => {
                Self::new("RECALLED", "TASK_RECALLED")
            }
            Event::Time(_) => Self::new("RECALLED", "TASK_RECALLED"),
            Event::Silent(_) => Self::new("RECALLED", "TASK_ABANDONED"),
            Event::Cancelled(_) => Self::new("RECALLED", "TASK_CANCELED"),
            Event::Reassigned(_) => Self::new("RECALLED", "TASK_REASSIGNED"),
            other => panic!("a loan ended by {other:?}"),
        }
    }
}

/// A delegation that this change ends.
struct Over {
    delegator: AgentId,
    /// `None`: the change has several entries of the task's log.
    end: Option<End>,
}

impl Delegations {
    /// Notes the entry that a change adds to the log of a task, before the change itself is seen. `None`: there are several.
    pub(crate) fn see_cause(&mut self, task: &Task, cause: Option<Event>) {
        self.causes.extend(cause.map(|cause| (task.id.clone(), cause)));
    }

    /// Checks a durable change, before the laws of threads and workspaces have seen it. `letters` are the agents that get
    /// mail by it.
    pub(crate) fn see_change(
        &mut self,
        change: &Change,
        (tasks, handoffs, letters): (&[TaskRecord], &[Arc<Handoff>], &[AgentId]),
        (threads, workspaces): (&Threads, &Workspaces),
        envelope: &dyn Fn(EnvelopePlace) -> Bytes,
        counts: &mut BTreeMap<&'static str, u64>,
    ) {
        let over = self.ended_by(tasks, handoffs, envelope);
        let mut appended: BTreeMap<WorkspaceId, u64> = BTreeMap::new();
        let mut told = BTreeSet::new();
        for write in change.writes.iter().filter(|write| write.key.table == Table::WorkspaceEntries) {
            let Some(record) = &write.record else { continue };
            let entry = WorkspaceEntryRecord::decode(&write.key.key, &record.value).unwrap();
            let workspace = entry.entry.workspace.clone();
            *appended.entry(workspace.clone()).or_default() += 1;
            let said = v1::Envelope::decode(envelope(EnvelopePlace::Sequence(entry.message))).unwrap();
            if said.sender_id != "baton.coordinator" || workspace.owner().0 != WorkspaceOwner::Thread {
                continue;
            }
            let (handoff, end) = read(&said);
            let (thread, known) =
                over.get(&handoff).unwrap_or_else(|| panic!("{handoff} ends in {workspace}, and not in the broker"));
            assert_eq!(workspace.owner().1, thread.as_str(), "the end of {handoff} is in another thread");
            assert!(told.insert(handoff), "handoff {handoff} ends twice in its thread");
            let is_right = known.end.as_ref().is_none_or(|known| *known == end);
            assert!(is_right, "the end of {handoff} was {:?}, and its thread is told {end:?}", known.end);
            *counts.entry(count_of(&end)).or_default() += 1;
        }
        for (handoff, (thread, known)) in over.iter().filter(|(handoff, _)| !told.contains(handoff)) {
            let id = WorkspaceId::of(WorkspaceOwner::Thread, thread.as_str()).unwrap();
            let has_ended = !threads.known().iter().any(|known| known.id == *thread && !known.has_ended);
            let held = workspaces.held(&id) + appended.get(&id).copied().unwrap_or_default();
            let is_full = held >= self.entries_max;
            assert!(has_ended || is_full, "the end of {handoff} is not in thread {thread}");
            let delegator = &known.delegator;
            assert!(
                letters.contains(delegator),
                "{delegator} does not learn that the end of {handoff} is in no thread"
            );
            *counts.entry("delegation: NOT IN ITS THREAD").or_default() += 1;
        }
    }

    /// The delegations in threads that a change ends, each with its thread.
    fn ended_by(
        &mut self,
        tasks: &[TaskRecord],
        handoffs: &[Arc<Handoff>],
        envelope: &dyn Fn(EnvelopePlace) -> Bytes,
    ) -> BTreeMap<MessageId, (ThreadId, Over)> {
        let mut over = BTreeMap::new();
        for handoff in handoffs {
            if handoff.mode == Mode::Delegate
                && let Some(thread) = &handoff.thread
                && !self.ended.contains(&handoff.id)
            {
                self.open.insert(handoff.id, thread.clone());
            }
            if handoff.state.is_final() && handoff.state != State::Completed {
                let code = handoff.failure.as_ref().map_or("", |failure| failure.code.name());
                let end = Some(End::new("NOT_TAKEN", code));
                over.insert(handoff.id, Over { delegator: handoff.sender.clone(), end });
            }
        }
        let causes = std::mem::take(&mut self.causes);
        for record in tasks {
            let (id, now) = (&record.task.id, record.task.loans.clone());
            let is_open = |loan: &Loan| now.iter().any(|kept| kept.handoff == loan.handoff);
            let before = self.loans.insert(id.clone(), now.clone()).unwrap_or_default();
            for loan in before.into_iter().filter(|loan| !is_open(loan)) {
                let end = causes.get(id).map(|cause| End::of_loan(cause, envelope));
                over.insert(loan.handoff, Over { delegator: loan.delegator, end });
            }
        }
        let over: BTreeMap<_, _> =
            over.into_iter().filter_map(|(id, over)| Some((id, (self.open.remove(&id)?, over)))).collect();
        self.ended.extend(over.keys());
        over
    }
}

/// The handoff and its end in a message of the broker, which is an entry of a history.
fn read(said: &v1::Envelope) -> (MessageId, End) {
    let append = v1::WorkspaceAppend::decode(said.payload.clone().unwrap().value).unwrap();
    let Some(v1::workspace_append::Entry::Json(text)) = append.entry else { panic!("a message is JSON") };
    let message: Value = serde_json::from_str(&text).unwrap();
    history::entries(Value::Array(vec![message.clone()])).expect("a message of the broker is an entry of a history");
    let data = &message["content"][1]["data"];
    let outcomes = ["COMPLETED", "FAILED", "CANCELED", "RETURNED", "RECALLED", "NOT_TAKEN"];
    let outcome = outcomes.into_iter().find(|outcome| data["outcome"] == *outcome);
    let outcome = outcome.unwrap_or_else(|| panic!("a delegation does not end with {}", data["outcome"]));
    let code = data["error_code"].as_str().unwrap_or_default();
    (MessageId::parse(data["handoff_id"].as_str().unwrap()).unwrap(), End::new(outcome, code))
}

/// The name in the simulator's statistics.
fn count_of(end: &End) -> &'static str {
    match (end.outcome, end.code.as_str()) {
        ("COMPLETED", _) => "delegation: COMPLETED",
        ("FAILED", _) => "delegation: FAILED",
        ("CANCELED", _) => "delegation: CANCELED",
        ("RETURNED", _) => "delegation: RETURNED",
        ("RECALLED", "TASK_ABANDONED") => "delegation: ABANDONED",
        ("RECALLED", "TASK_CANCELED") => "delegation: CANCELED BY THE BROKER",
        ("RECALLED", "TASK_REASSIGNED") => "delegation: REASSIGNED",
        ("RECALLED", _) => "delegation: RECALLED",
        _ => "delegation: NOT TAKEN",
    }
}

//! A delegation that was begun in a thread ends there: with exactly one message, in the change that ends it. Without one
//! only if the thread has ended, or if its workspace is full.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use baton_broker_core::{
    domain::{
        handoff::{Handoff, Mode, State},
        mailbox::EnvelopePlace,
        workspace::{WorkspaceId, WorkspaceOwner},
    },
    envelope::history,
    ids::{MessageId, TaskId, ThreadId},
    proto::v1,
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
    loans: HashMap<TaskId, Vec<MessageId>>,
}

impl Delegations {
    /// Checks a durable change, before the laws of threads and workspaces have seen it.
    pub(crate) fn see_change(
        &mut self,
        change: &Change,
        (tasks, handoffs): (&[TaskRecord], &[Arc<Handoff>]),
        (threads, workspaces): (&Threads, &Workspaces),
        envelope: &dyn Fn(EnvelopePlace) -> Bytes,
        counts: &mut BTreeMap<&'static str, u64>,
    ) {
        let mut over = BTreeSet::new();
        for handoff in handoffs {
            if handoff.mode == Mode::Delegate
                && let Some(thread) = &handoff.thread
                && !self.ended.contains(&handoff.id)
            {
                self.open.insert(handoff.id, thread.clone());
            }
            if handoff.state.is_final() && handoff.state != State::Completed {
                over.insert(handoff.id);
            }
        }
        for record in tasks {
            let now: Vec<MessageId> = record.task.loans.iter().map(|loan| loan.handoff).collect();
            let before = self.loans.insert(record.task.id.clone(), now.clone()).unwrap_or_default();
            over.extend(before.into_iter().filter(|loan| !now.contains(loan)));
        }
        let over: BTreeMap<MessageId, ThreadId> =
            over.into_iter().filter_map(|id| Some((id, self.open.remove(&id)?))).collect();
        self.ended.extend(over.keys());
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
            let (handoff, outcome) = read(&said);
            let thread =
                over.get(&handoff).unwrap_or_else(|| panic!("{handoff} ends in {workspace}, and not in the broker"));
            assert_eq!(workspace.owner().1, thread.as_str(), "the end of {handoff} is in another thread");
            assert!(told.insert(handoff), "handoff {handoff} ends twice in its thread");
            *counts.entry(outcome).or_default() += 1;
        }
        for (handoff, thread) in over.iter().filter(|(handoff, _)| !told.contains(handoff)) {
            let id = WorkspaceId::of(WorkspaceOwner::Thread, thread.as_str()).unwrap();
            let has_ended = !threads.known().iter().any(|known| known.id == *thread && !known.has_ended);
            let held = workspaces.held(&id) + appended.get(&id).copied().unwrap_or_default();
            let is_full = held >= self.entries_max;
            assert!(has_ended || is_full, "the end of {handoff} is not in thread {thread}");
            *counts.entry("delegation: NOT IN ITS THREAD").or_default() += 1;
        }
    }
}

/// The handoff and the outcome in a message of the broker, which is an entry of a history.
fn read(said: &v1::Envelope) -> (MessageId, &'static str) {
    let append = v1::WorkspaceAppend::decode(said.payload.clone().unwrap().value).unwrap();
    let Some(v1::workspace_append::Entry::Json(text)) = append.entry else { panic!("a message is JSON") };
    let message: Value = serde_json::from_str(&text).unwrap();
    history::entries(Value::Array(vec![message.clone()])).expect("a message of the broker is an entry of a history");
    let data = &message["content"][1]["data"];
    let outcome = match data["outcome"].as_str().unwrap() {
        "COMPLETED" => "delegation: COMPLETED",
        "FAILED" => "delegation: FAILED",
        "CANCELED" => "delegation: CANCELED",
        "RETURNED" => "delegation: RETURNED",
        "RECALLED" => "delegation: RECALLED",
        "NOT_TAKEN" => "delegation: NOT TAKEN",
        other => panic!("a delegation does not end with {other}"),
    };
    (MessageId::parse(data["handoff_id"].as_str().unwrap()).unwrap(), outcome)
}

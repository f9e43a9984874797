//! The entries of an entity in the lists that queries read, and how a new version changes them.

use bytes::Bytes;

use super::EntityRecord;
use crate::{
    records::{HandoffRecord, List, TaskRecord},
    store::Key,
};

/// How a version of an entity changes the index entries of the former one.
#[derive(Debug, Default)]
pub struct IndexDelta {
    /// Entries whose keys were never used.
    pub new: Vec<(Key, Bytes)>,
    /// Entries whose keys may have been used before: a task may ask the same agent again.
    pub reused: Vec<(Key, Bytes)>,
    /// The keys of entries that end.
    pub removed: Vec<Key>,
}

impl EntityRecord {
    /// How this version changes the index entries of the former one.
    pub fn index_delta(&self, before: Option<&Self>) -> IndexDelta {
        let mut delta = IndexDelta { new: self.new_entries(before), ..IndexDelta::default() };
        let (removed, added) = self.question_entries(before);
        delta.removed.extend(removed);
        delta.reused.extend(added);
        let (removed, added) = self.change_entries(before);
        delta.removed.extend(removed);
        delta.new.extend(added);
        delta
    }

    /// The index entries that the entity did not have before. They are written with the entity and never change.
    fn new_entries(&self, before: Option<&Self>) -> Vec<(Key, Bytes)> {
        let (handoff, record) = match self {
            Self::Task(_) if before.is_some() => return Vec::new(),
            Self::Task(task) => {
                let lists = task.part_entry().into_iter().chain(task.conversation_entry());
                return lists.chain(task.creation_entries()).collect();
            }
            Self::Handoff(record) => (&record.handoff, record),
            Self::Workspace(_) => return Vec::new(),
            Self::Graph(record) if before.is_none() => return vec![record.listing()],
            Self::Run(record) => return record.new_entries(before.and_then(Self::as_run)),
            Self::Spec(record) if before.is_none() => return vec![record.listing()],
            Self::Thread(record) => return record.new_entries(before.and_then(Self::as_thread)),
            Self::Graph(_)
            | Self::RunEntry(_)
            | Self::RunTurn(_)
            | Self::Spec(_)
            | Self::SpecRevision(_)
            | Self::ThreadEntry(_)
            | Self::PlanSpec(_)
            | Self::PlanEntry(_) => return Vec::new(),
            Self::Negotiation(record) => return record.new_entries(before.and_then(Self::as_negotiation)),
            Self::Plan(record) => return record.new_entries(before.and_then(Self::as_plan)),
            #[cfg(debug_assertions)]
            Self::Probe(_) => return Vec::new(),
        };
        let before = before.and_then(Self::as_handoff).map(|record| &*record.handoff);
        // Only an offer adds an agent, and most steps make none.
        if before.is_some_and(|before| before.offers.len() == handoff.offers.len()) {
            return Vec::new();
        }
        let listed = before.map(HandoffRecord::participants).unwrap_or_default();
        let (sequence, place) = (record.sequence, record.place().encode());
        let of_all = before.is_none().then(|| List::of_handoffs(None).place(sequence));
        let of_task = (before.is_none() && !HandoffRecord::begins_in_task(handoff)).then(|| record.task_entry());
        let participants = HandoffRecord::participants(handoff);
        let of_agents = participants.difference(&listed).map(|agent| List::of_handoffs(Some(agent)).place(sequence));
        of_all.into_iter().chain(of_agents).map(|key| (key, place.clone())).chain(of_task).collect()
    }

    /// The index entries that an entity without a container has, and one in a container has not. They are written when it leaves its
    /// container, and never change.
    pub fn listings_outside(&self) -> Vec<(Key, Bytes)> {
        self.as_handoff().map(HandoffRecord::task_entry).into_iter().collect()
    }

    /// The index entries that this version removes from the entity, and those that it adds: a task is listed under the
    /// agent of its open question.
    fn question_entries(&self, before: Option<&Self>) -> (Option<Key>, Option<(Key, Bytes)>) {
        let Self::Task(after) = self else { return (None, None) };
        let before = before.and_then(Self::as_task).and_then(TaskRecord::question_entry);
        match (before, after.question_entry()) {
            (Some(before), Some(after)) if before == after => (None, None),
            (before, after) => (before.map(|(key, _)| key), after),
        }
    }

    /// Like [`Self::question_entries`], for entries whose keys are never used again: those of the list of changes.
    fn change_entries(&self, before: Option<&Self>) -> (Option<Key>, Option<(Key, Bytes)>) {
        let entry = |record: &Self| match record {
            Self::Handoff(record) => record.end_entry(),
            Self::Task(record) => record.update_entry(),
            _ => None,
        };
        match (before.and_then(entry), entry(self)) {
            (before, after) if before == after => (None, None),
            (before, after) => (before.map(|(key, _)| key), after),
        }
    }
}

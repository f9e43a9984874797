//! The order of the letters that can be dispatched: by priority; within a priority the senders take turns, and within the
//! turns of a sender its fairness keys; of each the oldest letter goes first. All operations cost O(log n).

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
};

use super::Letter;
use crate::{
    handoff::{Handoff, Priority},
    ids::{AgentId, FairnessKey},
};

/// The queue that a letter waits in among those of its priority.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flow {
    /// The agent whose turn it is: the sender of the message; of a plan's subtask the submitter of the plan.
    pub sender: AgentId,
    /// The key of the request. The keys of one sender share its turns, so more keys give a sender no more turns.
    pub key: Option<FairnessKey>,
}

impl Flow {
    /// The flow of a sender's messages without a key.
    pub fn of(sender: AgentId) -> Self {
        Self { sender, key: None }
    }

    /// The flow of the requester's messages in a handoff. The coordinator asks for the submitter of a plan, whose turn it
    /// is then.
    pub fn of_handoff(handoff: &Handoff) -> Self {
        // An operator for whom the coordinator asks is no agent.
        let submitter = handoff.submitter.as_deref().and_then(|submitter| AgentId::parse(submitter).ok());
        Self { sender: submitter.unwrap_or_else(|| handoff.sender.clone()), key: handoff.fairness_key.clone() }
    }
}

/// What can be dispatched, in the order of its turns: letters, or handoffs that wait for an agent.
#[derive(Debug, Default)]
pub struct Ready {
    /// No entry is empty.
    by_priority: BTreeMap<Reverse<Priority>, Turns>,
    by_age: BTreeMap<u64, Priority>,
}

impl Ready {
    /// Adds a letter.
    pub(super) fn insert(&mut self, letter: &Letter) {
        self.insert_place(letter.sequence, letter.priority, &letter.flow);
    }

    /// Adds a place. A flow without a ready place joins behind all others.
    pub fn insert_place(&mut self, sequence: u64, priority: Priority, flow: &Flow) {
        self.by_age.insert(sequence, priority);
        self.by_priority.entry(Reverse(priority)).or_default().insert(flow, sequence);
    }

    /// Removes a letter, if it is there.
    pub(super) fn remove(&mut self, letter: &Letter) {
        self.remove_place(letter.sequence, letter.priority, &letter.flow);
    }

    /// Removes a place, if it is there.
    pub fn remove_place(&mut self, sequence: u64, priority: Priority, flow: &Flow) {
        if self.by_age.remove(&sequence).is_none() {
            return;
        }
        if let Entry::Occupied(mut turns) = self.by_priority.entry(Reverse(priority)) {
            turns.get_mut().remove(flow, sequence);
            if turns.get().senders.is_empty() {
                turns.remove();
            }
        }
    }

    /// Whether the letter is there.
    pub(super) fn contains(&self, letter: &Letter) -> bool {
        self.by_age.contains_key(&letter.sequence)
    }

    /// The letters, oldest first.
    pub(super) fn letters(&self) -> impl Iterator<Item = u64> {
        self.by_age.keys().copied()
    }

    /// Whether no letter is there.
    pub(super) fn is_empty(&self) -> bool {
        self.by_age.is_empty()
    }

    /// The next letter of the highest priority. `is_turn_by_age`: of the priority that has the oldest letter.
    pub fn first(&self, is_turn_by_age: bool) -> Option<u64> {
        match is_turn_by_age {
            true => self.by_priority.get(&Reverse(*self.by_age.first_key_value()?.1))?.first(),
            false => self.by_priority.first_key_value()?.1.first(),
        }
    }

    /// Ends the turn of a letter's flow.
    pub(super) fn end_turn(&mut self, letter: &Letter) {
        self.end_turn_of(letter.priority, &letter.flow);
    }

    /// Ends the turn of a flow, which goes behind all others.
    pub fn end_turn_of(&mut self, priority: Priority, flow: &Flow) {
        if let Some(turns) = self.by_priority.get_mut(&Reverse(priority)) {
            turns.end(flow);
        }
    }
}

/// The ready letters of one priority.
#[derive(Debug, Default)]
struct Turns {
    senders: Rotation<AgentId, Rotation<Option<FairnessKey>, BTreeSet<u64>>>,
}

impl Turns {
    fn insert(&mut self, flow: &Flow, letter: u64) {
        self.senders.join(&flow.sender).join(&flow.key).insert(letter);
    }

    fn remove(&mut self, flow: &Flow, letter: u64) {
        let Some(keys) = self.senders.get_mut(&flow.sender) else { return };
        let Some(letters) = keys.get_mut(&flow.key) else { return };
        letters.remove(&letter);
        if letters.is_empty() {
            keys.leave(&flow.key);
        }
        if keys.is_empty() {
            self.senders.leave(&flow.sender);
        }
    }

    fn first(&self) -> Option<u64> {
        self.senders.first()?.first()?.first().copied()
    }

    fn end(&mut self, flow: &Flow) {
        self.senders.put_last(&flow.sender);
        if let Some(keys) = self.senders.get_mut(&flow.sender) {
            keys.put_last(&flow.key);
        }
    }
}

/// Queues with names, in the order of their turns.
#[derive(Debug)]
struct Rotation<K, Q> {
    /// Each queue with its place in the order.
    queues: BTreeMap<K, (u64, Q)>,
    order: BTreeMap<u64, K>,
    /// The place behind all others.
    end: u64,
}

impl<K, Q> Default for Rotation<K, Q> {
    fn default() -> Self {
        Self { queues: BTreeMap::new(), order: BTreeMap::new(), end: 0 }
    }
}

impl<K: Ord + Clone, Q: Default> Rotation<K, Q> {
    fn get_mut(&mut self, name: &K) -> Option<&mut Q> {
        self.queues.get_mut(name).map(|(_, queue)| queue)
    }

    /// The queue with this name. A new one is the last.
    fn join(&mut self, name: &K) -> &mut Q {
        let (order, end) = (&mut self.order, &mut self.end);
        let (_, queue) = self.queues.entry(name.clone()).or_insert_with(|| {
            let place = *end;
            order.insert(place, name.clone());
            *end += 1;
            (place, Q::default())
        });
        queue
    }

    fn leave(&mut self, name: &K) {
        if let Some((place, _)) = self.queues.remove(name) {
            self.order.remove(&place);
        }
    }

    fn first(&self) -> Option<&Q> {
        let name = self.order.first_key_value()?.1;
        self.queues.get(name).map(|(_, queue)| queue)
    }

    fn put_last(&mut self, name: &K) {
        if let Some((place, _)) = self.queues.get_mut(name) {
            self.order.remove(place);
            *place = self.end;
            self.order.insert(self.end, name.clone());
            self.end += 1;
        }
    }

    fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }
}

//! SPEC 3: an agent without room is not asked. Counts naively the tasks and offers of each agent with a capacity.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use baton_broker_core::{
    domain::handoff::{Handoff, OfferOutcome},
    ids::{AgentId, MessageId, TaskId},
    records::TaskRecord,
    time::Timestamp,
};

/// The last offer of a handoff: its candidate, its time, and how often the same agent was asked before.
type LastOffer = (AgentId, Timestamp, u32);

#[derive(Debug, Default)]
pub(crate) struct Busy {
    /// The capacity of each agent, by its card. Agents without one are left out.
    pub capacities: HashMap<AgentId, usize>,
    /// The owner of each task that has not ended.
    owners: HashMap<TaskId, AgentId>,
    /// The candidate of each open handoff that an agent has.
    candidates: HashMap<MessageId, AgentId>,
    last_offers: HashMap<MessageId, LastOffer>,
    /// The handoffs that agents have opened by a request of their own.
    pub requested: HashSet<MessageId>,
}

impl Busy {
    fn load(&self, agent: &AgentId) -> usize {
        let is_of = |of: &&AgentId| *of == agent;
        self.owners.values().filter(is_of).count() + self.candidates.values().filter(is_of).count()
    }

    /// Checks the offers of a change, and follows its tasks and handoffs.
    pub(crate) fn see_change(
        &mut self,
        tasks: &[TaskRecord],
        handoffs: &[Arc<Handoff>],
        by_end: &mut BTreeMap<&'static str, u64>,
    ) {
        let before: HashMap<AgentId, usize> =
            self.capacities.keys().map(|agent| (agent.clone(), self.load(agent))).collect();
        let (mut freed, mut offers): (HashMap<AgentId, usize>, Vec<AgentId>) = Default::default();
        let mut left = |former: Option<AgentId>, next: Option<&AgentId>| {
            if let Some(former) = former.filter(|former| Some(former) != next) {
                *freed.entry(former).or_default() += 1;
            }
        };
        for TaskRecord { task, .. } in tasks {
            let next = (!task.status.is_final()).then(|| task.owner.clone());
            let former = match &next {
                Some(owner) => self.owners.insert(task.id.clone(), owner.clone()),
                None => self.owners.remove(&task.id),
            };
            left(former, next.as_ref());
        }
        for handoff in handoffs {
            let next = handoff.has_offer().then(|| handoff.candidate.clone());
            let former = match &next {
                Some(candidate) => self.candidates.insert(handoff.id, candidate.clone()),
                None => self.candidates.remove(&handoff.id),
            };
            left(former, next.as_ref());
            if handoff.is_held() {
                *by_end.entry("HELD").or_default() += 1;
            }
            let Some(last) = handoff.offers.last() else { continue };
            let offer = (last.candidate.clone(), last.offered_at, last.repeats);
            let is_new = self.last_offers.insert(handoff.id, offer.clone()) != Some(offer);
            // An agent that has named a time is asked at that time, and may be full then. An award goes to the agent that
            // has offered.
            let is_to_be_checked = last.repeats == 0 && self.requested.contains(&handoff.id);
            if is_new && last.outcome == OfferOutcome::Pending && is_to_be_checked {
                offers.push(last.candidate.clone());
            }
        }
        for agent in &offers {
            let Some(capacity) = self.capacities.get(agent) else { continue };
            let others = offers.iter().filter(|other| *other == agent).count() - 1;
            let least = (before[agent] + others).saturating_sub(freed.get(agent).copied().unwrap_or_default());
            assert!(least < *capacity, "SPEC 3: {agent} has {least} of {capacity} tasks, and is asked");
        }
    }
}

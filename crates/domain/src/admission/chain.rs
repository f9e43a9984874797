//! The loop guard along the chain of parents: agents that lend each other new tasks, each a part of the last, come to an end
//! like those that hand one task to and fro.

use std::sync::Arc;

use crate::{
    handoff::{LoopLimits, Rejection, Task},
    ids::AgentId,
};

/// The most tasks of a chain that the guard reads. The limit of levels is lower.
pub const CHAIN_MAX: usize = 32;
/// The most agents of the chain that a refusal shows: the last ones.
const AGENTS_SHOWN_MAX: usize = 32;

/// A task that is a part of another one, with the tasks above it.
#[derive(Debug, Clone)]
pub struct Chain {
    above: Vec<Arc<Task>>,
    own: Option<Arc<Task>>,
    limits: LoopLimits,
}

impl Chain {
    /// The chain of a task: the tasks above it, its parent first, and the task itself if it exists. `limits` are its own.
    /// Each limit of the chain is the lowest of all its tasks.
    pub fn new(above: Vec<Arc<Task>>, own: Option<Arc<Task>>, limits: LoopLimits) -> Self {
        let limits = above.iter().fold(limits, |limits, task| {
            limits.lowered_to((task.loop_limits.handoffs_max, task.loop_limits.handoffs_per_pair_max))
        });
        Self { above, own, limits }
    }

    /// Checks that the task may begin: a task without a parent is on level 1, and the limit is that of the handoffs of one
    /// task.
    pub fn check_levels(&self) -> Result<(), Rejection> {
        let limit = self.limits.handoffs_max;
        match self.above.len() >= limit as usize {
            true => Err(self.loop_limit("handoffs_max", limit)),
            false => Ok(()),
        }
    }

    /// Removes the candidates that this sender has given tasks of the chain as often as the limit allows. Fails if the
    /// guard leaves none.
    pub fn keep_free(&self, sender: &AgentId, candidates: &mut Vec<AgentId>) -> Result<(), Rejection> {
        let had_some = candidates.iter().any(|candidate| candidate != sender);
        let limit = self.limits.handoffs_per_pair_max;
        let hops = || self.tasks().flat_map(|task| &task.hops).filter(|hop| hop.sender == *sender);
        candidates.retain(|candidate| hops().filter(|hop| hop.receiver == *candidate).count() < limit as usize);
        match had_some && candidates.iter().all(|candidate| candidate == sender) {
            true => Err(self.loop_limit("handoffs_per_pair_max", limit)),
            false => Ok(()),
        }
    }

    /// The tasks of the chain from the first one on.
    fn tasks(&self) -> impl Iterator<Item = &Task> {
        self.above.iter().rev().chain(&self.own).map(|task| &**task)
    }

    fn loop_limit(&self, limit: &'static str, value: u32) -> Rejection {
        let mut agents: Vec<AgentId> = Vec::new();
        for agent in self.tasks().flat_map(|task| std::iter::once(task.creator()).chain(receivers(task))) {
            // A task begins with the agent that got the last one.
            if agents.last() != Some(agent) {
                agents.push(agent.clone());
            }
        }
        let shown = agents.split_off(agents.len().saturating_sub(AGENTS_SHOWN_MAX));
        Rejection::ChainLimit { limit, value, agents: shown }
    }
}

fn receivers(task: &Task) -> impl Iterator<Item = &AgentId> {
    task.hops.iter().map(|hop| &hop.receiver)
}

//! The open entities of each agent, by number and by bytes, and their limits (SPEC 5).
//!
//! An entity is open while it has a deadline. Its bytes are those that its opening stored. They are in the row of its timer,
//! so that a start counts without reading the entities.

use super::{Engine, LIMIT_RETRY};
use crate::{
    BrokerError, Refused,
    domain::{EntityId, Input, routing, threads},
    ids::{AgentId, IdMap},
    refused,
};

/// A kind of entities of which an agent may have a limited number open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Counted {
    Handoff,
    Negotiation,
    Plan,
    Run,
    Thread,
}

impl Counted {
    /// The kind of an entity. `None`: entities of its kind are not counted.
    pub(super) fn of(entity: &EntityId) -> Option<Self> {
        match entity {
            EntityId::Handoff(_) => Some(Self::Handoff),
            EntityId::Negotiation(_) => Some(Self::Negotiation),
            EntityId::Plan(_) => Some(Self::Plan),
            EntityId::Run(_) => Some(Self::Run),
            EntityId::Thread(_) => Some(Self::Thread),
            _ => None,
        }
    }
}

/// What is open, of each agent and of all. No entry is 0.
#[derive(Debug, Default)]
pub(super) struct OpenCounts {
    of: IdMap<(Counted, AgentId), u32>,
    bytes_of: IdMap<AgentId, u64>,
    bytes_of_all: u64,
    /// The bytes of each entity that has any.
    bytes: IdMap<EntityId, u32>,
}

impl OpenCounts {
    /// The number of open handoffs of all agents.
    pub(super) fn handoffs(&self) -> usize {
        let handoffs = self.of.iter().filter(|((kind, _), _)| *kind == Counted::Handoff);
        handoffs.map(|(_, open)| *open as usize).sum()
    }

    /// The number of open entities of this kind that count for the agent.
    pub(super) fn of(&self, kind: Counted, agent: &AgentId) -> u32 {
        self.of.get(&(kind, agent.clone())).copied().unwrap_or_default()
    }

    /// The bytes of the open entities that count for the agent.
    pub(super) fn bytes_of(&self, agent: &AgentId) -> u64 {
        self.bytes_of.get(agent).copied().unwrap_or_default()
    }

    /// Counts one more open entity of the agent.
    pub(super) fn one_more(&mut self, (kind, agent): (Counted, AgentId), entity: &EntityId, bytes: u32) {
        if bytes > 0 {
            *self.bytes_of.entry(agent.clone()).or_default() += u64::from(bytes);
            self.bytes_of_all += u64::from(bytes);
            self.bytes.insert(entity.clone(), bytes);
        }
        *self.of.entry((kind, agent)).or_default() += 1;
    }

    /// Counts one open entity of the agent less.
    pub(super) fn one_less(&mut self, (kind, agent): (Counted, AgentId), entity: &EntityId) {
        if let Some(bytes) = self.bytes.remove(entity) {
            self.bytes_of_all -= u64::from(bytes);
            // An entry for each agent that ever asked would let the maps grow without bound.
            if let Some(all) = self.bytes_of.get_mut(&agent) {
                *all -= u64::from(bytes);
                if *all == 0 {
                    self.bytes_of.remove(&agent);
                }
            }
        }
        let key = (kind, agent);
        if let Some(open) = self.of.get_mut(&key) {
            *open -= 1;
            if *open == 0 {
                self.of.remove(&key);
            }
        }
    }
}

impl Engine {
    /// Fails if the agent may open no further entity of this kind, which stores about `bytes`. Does not count those of the
    /// batch in hand.
    pub(super) fn check_open(&self, kind: Counted, agent: &AgentId, bytes: usize) -> Result<(), BrokerError> {
        let limits = &self.env.settings.limits;
        let (most, what) = match kind {
            Counted::Handoff => (limits.open_handoffs_max, "the agent has too many open handoffs"),
            Counted::Negotiation => (limits.open_negotiations_max, "the agent has too many open negotiations"),
            Counted::Plan => (limits.running_plans_max, "the agent has too many running plans"),
            Counted::Run => (limits.open_runs_max, "the agent has too many open runs"),
            Counted::Thread => (limits.open_threads_max, "the agent has too many open threads"),
        };
        let open = &self.entities.open;
        let exceeded = |what| Err(BrokerError::LimitExceeded { what, retry_after: LIMIT_RETRY });
        // 0: no limit.
        if most != 0 && open.of(kind, agent) >= most {
            return exceeded(what);
        }
        if kind == Counted::Handoff {
            return Ok(());
        }
        self.check_open_bytes(agent, bytes)
    }

    /// Fails if the open negotiations, plans, runs and threads of the agent may not have this number of further bytes.
    pub(super) fn check_open_bytes(&self, agent: &AgentId, bytes: usize) -> Result<(), BrokerError> {
        let (open, limits) = (&self.entities.open, &self.env.settings.limits);
        let exceeded = |what| Err(BrokerError::LimitExceeded { what, retry_after: LIMIT_RETRY });
        let is_over = |has: u64, most: u64| most != 0 && has.saturating_add(bytes as u64) > most;
        if is_over(open.bytes_of(agent), limits.open_bytes_max) {
            return exceeded("the open negotiations, plans, runs and threads of the agent have too many bytes");
        }
        if is_over(open.bytes_of_all, self.env.settings.broker_limits.open_bytes_max) {
            return exceeded("the open negotiations, plans, runs and threads of all agents have too many bytes");
        }
        Ok(())
    }

    /// Checks the limits of what a call begins. A repeat begins nothing.
    pub(super) fn check_begin(&mut self, about: &EntityId, input: &Input) -> Result<(), Refused> {
        let (kind, by) = match input {
            Input::Routing(routing::Input::Start(start)) => (Counted::Run, start.by.as_ref()),
            Input::Thread(threads::Input::Create(create)) => (Counted::Thread, create.by.as_ref()),
            _ => return Ok(()),
        };
        let Some(by) = by else { return Ok(()) };
        match self.entity_record(&mut self.transaction(), about).map_err(refused)? {
            Some(_) => Ok(()),
            None => self.check_open(kind, by, 0).map_err(refused),
        }
    }
}

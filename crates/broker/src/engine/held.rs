//! Handoffs that wait because no candidate can be asked: which of them is asked for when an agent may have room (SPEC 3).
//!
//! This module owns the order of the waiting handoffs of each agent, in memory: highest priority first, the senders in
//! turn, oldest first. It follows the commits, and after a start the count of all tasks. The machine decides which
//! candidate a handoff asks; this module decides which handoff looks for one.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Engine, TRY_AGAIN,
    authorization::Work,
    run::{Cause, Origin},
    timers::Timer,
};
use crate::{
    BrokerError,
    domain::{
        EntityId, Input, Receiver,
        handoff::{self, Handoff, OFFERS_MAX, Waiting},
        mailbox::{Flow, Ready},
    },
    ids::{AgentId, AgentType, IdMap, MessageId},
    records::{CustodyEvent, EntityRecord, HandoffRecord},
    time::Timestamp,
};

/// The most handoffs that look for a candidate in one tick.
const LOOKS_A_TICK: usize = 64;
/// The most waiting handoffs that one tick makes known to agents that have registered.
const FOUND_A_TICK: usize = 1024;
/// After this number of handoffs by priority, the oldest one has its turn.
const TURNS_BY_PRIORITY: u32 = 7;

/// The handoffs that wait. See the module.
#[derive(Debug, Default)]
pub(super) struct Held {
    known: BTreeMap<u64, Place>,
    numbers: IdMap<MessageId, u64>,
    /// The waiting handoffs that an agent can be asked for. No queue is empty.
    queues: IdMap<AgentId, Queue>,
    /// The waiting handoffs whose receiver is any agent of a type.
    of_type: IdMap<AgentType, BTreeSet<u64>>,
    /// The agents that may have room.
    to_ask: BTreeSet<AgentId>,
    /// The waiting handoffs that could not ask a gone agent. They are in its queue again once it is back.
    away: IdMap<AgentId, BTreeSet<u64>>,
    /// The agents that have registered, each with the type and the handoff from which on they are to be made known.
    registered: BTreeMap<(AgentId, AgentType), u64>,
    /// The agent for which a handoff looks now. Its queue is not before this handoff.
    chosen: Option<AgentId>,
}

#[derive(Debug)]
struct Place {
    handoff: MessageId,
    priority: handoff::Priority,
    flow: Flow,
    agents: BTreeSet<AgentId>,
    /// The gone agents that it could not ask.
    away: BTreeSet<AgentId>,
    of_type: Option<AgentType>,
}

#[derive(Debug, Default)]
struct Queue {
    ready: Ready,
    length: usize,
    turns: u32,
}

impl Held {
    /// Follows a handoff as a commit leaves it. Returns whether it waits.
    fn follow(&mut self, record: &HandoffRecord) -> bool {
        let handoff = &record.handoff;
        match handoff.waiting {
            Some(Waiting::Capacity | Waiting::RetryTime | Waiting::Agent) => {}
            // Before its time a request asks no agent.
            Some(Waiting::DeliverAfter) | None => {
                if let Some(number) = self.numbers.get(&handoff.id).copied() {
                    self.forget(number);
                }
                return false;
            }
        }
        let named = match Receiver::parse(&handoff.receiver) {
            Ok(Receiver::AnyOf(agent_type)) => (None, Some(agent_type)),
            Ok(Receiver::Agent(agent)) => (Some(agent), None),
            Ok(Receiver::Absent | Receiver::AllOf(_)) | Err(_) => (None, None),
        };
        let named_agent = named.0.filter(|_| handoff.waiting == Some(Waiting::Agent));
        let agents: BTreeSet<AgentId> = could_be_asked(handoff).cloned().chain(named_agent).collect();
        if let Some(place) = self.numbers.get(&handoff.id).and_then(|number| self.known.get(number))
            && place.agents.is_superset(&agents)
        {
            return true;
        }
        let number = record.sequence;
        self.forget(number);
        if let Some(agent_type) = &named.1 {
            self.of_type.entry(agent_type.clone()).or_default().insert(number);
        }
        let place = Place {
            handoff: handoff.id,
            priority: handoff.priority,
            flow: Flow::of_handoff(handoff),
            agents: BTreeSet::new(),
            away: BTreeSet::new(),
            of_type: named.1,
        };
        self.numbers.insert(handoff.id, number);
        self.known.insert(number, place);
        agents.into_iter().for_each(|agent| self.join(number, agent));
        true
    }

    /// Adds a waiting handoff to the queue of an agent.
    fn join(&mut self, number: u64, agent: AgentId) {
        let Some(place) = self.known.get_mut(&number) else { return };
        if place.agents.insert(agent.clone()) {
            let queue = self.queues.entry(agent.clone()).or_default();
            queue.ready.insert_place(number, place.priority, &place.flow);
            queue.length += 1;
            self.to_ask.insert(agent);
        }
    }

    /// Removes a waiting handoff from the queue of an agent.
    fn leave(&mut self, number: u64, agent: &AgentId) {
        let Some(place) = self.known.get_mut(&number) else { return };
        if place.agents.remove(agent)
            && let Some(queue) = self.queues.get_mut(agent)
        {
            queue.ready.remove_place(number, place.priority, &place.flow);
            queue.length -= 1;
            if queue.length == 0 {
                self.queues.remove(agent);
            } else {
                // The agent may have had a turn to give.
                self.to_ask.insert(agent.clone());
            }
        }
    }

    /// Moves a waiting handoff from the queue of a gone agent to those that wait for its return.
    fn wait_for_return(&mut self, number: u64, agent: &AgentId) {
        self.leave(number, agent);
        if let Some(place) = self.known.get_mut(&number) {
            place.away.insert(agent.clone());
            self.away.entry(agent.clone()).or_default().insert(number);
        }
    }

    /// An agent is back: what waits for its return is in its queue again.
    fn came_back(&mut self, agent: &AgentId) {
        for number in self.away.remove(agent).unwrap_or_default() {
            if let Some(place) = self.known.get_mut(&number) {
                place.away.remove(agent);
            }
            self.join(number, agent.clone());
        }
    }

    fn forget(&mut self, number: u64) {
        let Some(place) = self.known.get(&number) else { return };
        let agents: Vec<AgentId> = place.agents.iter().cloned().collect();
        agents.iter().for_each(|agent| self.leave(number, agent));
        let Some(place) = self.known.remove(&number) else { return };
        self.numbers.remove(&place.handoff);
        for agent in &place.away {
            if let Some(numbers) = self.away.get_mut(agent) {
                numbers.remove(&number);
                if numbers.is_empty() {
                    self.away.remove(agent);
                }
            }
        }
        if let Some(agent_type) = place.of_type
            && let Some(all) = self.of_type.get_mut(&agent_type)
        {
            all.remove(&number);
            if all.is_empty() {
                self.of_type.remove(&agent_type);
            }
        }
    }

    /// The handoff whose turn it is to ask this agent.
    fn next(&mut self, agent: &AgentId) -> Option<(u64, MessageId)> {
        let queue = self.queues.get_mut(agent)?;
        let is_turn_by_age = queue.turns >= TURNS_BY_PRIORITY;
        queue.turns = if is_turn_by_age { 0 } else { queue.turns + 1 };
        let number = queue.ready.first(is_turn_by_age)?;
        let place = self.known.get(&number)?;
        queue.ready.end_turn_of(place.priority, &place.flow);
        Some((number, place.handoff))
    }

    /// Whether other handoffs than this one wait for the agent, and are before it.
    fn is_waited_for(&self, agent: &AgentId, own: Option<MessageId>) -> bool {
        let Some(queue) = self.queues.get(agent).filter(|_| self.chosen.as_ref() != Some(agent)) else { return false };
        let number = own.and_then(|own| self.numbers.get(&own));
        let is_in_queue =
            number.and_then(|number| self.known.get(number)).is_some_and(|place| place.agents.contains(agent));
        queue.length > usize::from(is_in_queue)
    }
}

/// The agents that a waiting handoff could ask, as soon as they have room.
fn could_be_asked(handoff: &Handoff) -> impl Iterator<Item = &AgentId> {
    // An agent that has named a time is asked at that time, and may be full then.
    let is_due = |(_, at, until_room): &(&AgentId, Timestamp, bool)| *until_room || *at <= handoff.updated_at;
    handoff.next_candidates.iter().chain(handoff.retries().filter(is_due).map(|(agent, ..)| agent))
}

impl Engine {
    /// Whether the agent is not to be asked now by this handoff: it is full, or other handoffs wait for it.
    pub(super) fn has_no_room(&self, agent: &AgentId, own: Option<MessageId>, now: Timestamp) -> bool {
        let directory = &self.env.directory;
        // Until the tasks are counted, the load of an agent is not known.
        let is_counted = self.loads.is_exact() || !directory.has_capacity(agent, now);
        !is_counted || directory.is_full(agent, now) || self.held.is_waited_for(agent, own)
    }

    /// Notes that an agent may have room.
    pub(super) fn may_have_room(&mut self, agent: &AgentId) {
        if self.held.queues.contains_key(agent) && self.held.to_ask.insert(agent.clone()) {
            self.timers.set_at_once(Timer::Held);
        }
    }

    /// Notes that an agent that was gone, or not seen before, is back.
    pub(super) fn is_back(&mut self, agent: &AgentId) {
        if self.held.away.contains_key(agent) {
            self.held.came_back(agent);
            self.timers.set_at_once(Timer::Held);
        }
    }

    /// Notes that all tasks are counted, so that the load of each agent is known.
    pub(super) fn loads_are_known(&mut self) {
        self.held.to_ask.extend(self.held.queues.keys().cloned());
        self.timers.set_at_once(Timer::Held);
    }

    /// Notes the room that a change leaves behind.
    pub(super) fn note_room(&mut self, before: Option<&EntityRecord>, after: &EntityRecord) {
        if self.held.queues.is_empty() {
            return;
        }
        let has_work = |record: &EntityRecord| match (record.as_task(), record.as_handoff()) {
            (Some(record), _) => (!record.task.status.is_final()).then(|| record.task.owner.clone()),
            (_, Some(record)) => record.handoff.has_offer().then(|| record.handoff.candidate.clone()),
            (None, None) => None,
        };
        if let Some(agent) = before.and_then(has_work)
            && has_work(after).as_ref() != Some(&agent)
        {
            self.may_have_room(&agent);
        }
    }

    /// Follows a handoff as a commit leaves it.
    pub(super) fn follow_held(&mut self, record: &HandoffRecord) {
        let is_known = self.held.numbers.contains_key(&record.handoff.id);
        if (is_known || record.handoff.is_held()) && self.held.follow(record) {
            self.make_known(record);
            self.timers.set_at_once(Timer::Held);
        }
    }

    /// Adds the agents of the wanted type that have registered since the request, at most as many as one handoff asks.
    fn make_known(&mut self, record: &HandoffRecord) {
        let number = record.sequence;
        let Some(place) = self.held.known.get(&number) else { return };
        let Some(agent_type) = &place.of_type else { return };
        let handoff = &record.handoff;
        let is_new = |agent: &AgentId| {
            let is_known = place.agents.contains(agent) || handoff.offers.iter().any(|offer| offer.candidate == *agent);
            !is_known && *agent != handoff.sender && !agent.is_coordinator()
        };
        let others = self.env.directory.of_type(agent_type).into_iter().map(|entry| entry.id());
        let new: Vec<AgentId> = others.filter(is_new).take(OFFERS_MAX).collect();
        new.into_iter().for_each(|agent| self.held.join(number, agent));
    }

    /// Notes an agent whose card is stored.
    pub(super) fn note_registered(&mut self, agent: &AgentId, types: &[AgentType]) {
        self.may_have_room(agent);
        for agent_type in types.iter().filter(|name| self.held.of_type.contains_key(*name)) {
            self.held.registered.insert((agent.clone(), agent_type.clone()), 0);
            self.timers.set_at_once(Timer::Held);
        }
    }

    /// Makes waiting handoffs known to agents that have registered, and lets those whose turn it is look for a candidate.
    pub(super) fn look_for_candidates(&mut self, now: Timestamp) {
        self.make_known_to_registered();
        for _ in 0..LOOKS_A_TICK {
            let Some(agent) = self.held.to_ask.pop_first() else { break };
            if let Err(error) = self.look_for(&agent, now) {
                tracing::error!(%agent, %error, "failed to offer a waiting handoff to an agent");
                self.held.to_ask.insert(agent);
                return self.timers.set_after(Timer::Held, TRY_AGAIN);
            }
        }
        match self.held.to_ask.is_empty() && self.held.registered.is_empty() {
            true => self.timers.clear(Timer::Held),
            false => self.timers.set_at_once(Timer::Held),
        }
    }

    fn make_known_to_registered(&mut self) {
        let Some(((agent, agent_type), from)) = self.held.registered.pop_first() else { return };
        let all = self.held.of_type.get(&agent_type);
        let part: Vec<u64> = all.into_iter().flat_map(|all| all.range(from..).take(FOUND_A_TICK).copied()).collect();
        if let Some(last) = part.last().filter(|_| part.len() == FOUND_A_TICK) {
            self.held.registered.insert((agent.clone(), agent_type), last + 1);
        }
        part.into_iter().for_each(|number| self.held.join(number, agent.clone()));
    }

    /// Lets the next handoff that waits for an agent look for a candidate, if the agent has room.
    fn look_for(&mut self, agent: &AgentId, now: Timestamp) -> Result<(), BrokerError> {
        // An agent that is still to register is asked once it has.
        if !self.env.directory.is_registered(agent) {
            return Ok(());
        }
        let chosen = self.held.chosen.replace(agent.clone());
        let has_room = !self.has_no_room(agent, None, now);
        let next = if has_room { self.held.next(agent) } else { None };
        let looked = match next {
            Some((number, handoff)) => self.let_look(number, handoff, agent, now),
            None => Ok(()),
        };
        self.held.chosen = chosen;
        looked
    }

    fn let_look(
        &mut self,
        number: u64,
        handoff: MessageId,
        agent: &AgentId,
        now: Timestamp,
    ) -> Result<(), BrokerError> {
        let id = EntityId::Handoff(handoff);
        let mut transaction = self.transaction();
        let stored = self.entity_record(&mut transaction, &id)?;
        let Some(record) = stored.as_deref().and_then(EntityRecord::as_handoff) else {
            self.held.forget(number);
            return Ok(());
        };
        let is_known = could_be_asked(&record.handoff).any(|known| known == agent);
        let found = if is_known { Vec::new() } else { vec![agent.clone()] };
        if !is_known && !self.may_be_found(record, agent)? {
            self.held.leave(number, agent);
            return Ok(());
        }
        let event = CustodyEvent::Looked(&found);
        let input = handoff::Input::Look { found: found.clone() };
        let input = Input::Handoff { task: record.handoff.task.clone(), input };
        let cause = Cause { origin: Origin::Broker, event: Some(&event) };
        let has_changed = match self.run(&mut transaction, &id, &input, cause, now) {
            Ok(has_changed) => has_changed,
            Err(error) => {
                let refusal = error.by_machine()?;
                tracing::error!(%handoff, %refusal, "the state machine rejected an input that it must accept");
                false
            }
        };
        if has_changed {
            self.stage(transaction);
            self.end_unanswered();
            // The commit adds it again if it still waits. The agent may have room for the next one.
            self.held.forget(number);
        } else if self.env.directory.is_gone(agent, now) {
            // Another candidate is waited for, or the handoff is overdue.
            self.held.wait_for_return(number, agent);
        } else {
            self.held.leave(number, agent);
        }
        self.may_have_room(agent);
        Ok(())
    }

    /// Whether an agent that was not resolved from the request may be asked: it is registered, permitted and has what the
    /// request demands.
    fn may_be_found(&mut self, record: &HandoffRecord, agent: &AgentId) -> Result<bool, BrokerError> {
        let handoff = &record.handoff;
        let was_asked = handoff.offers.iter().any(|offer| offer.candidate == *agent);
        if record.is_under_mandate() || was_asked || *agent == handoff.sender {
            return Ok(false);
        }
        if !self.env.directory.is_registered(agent) || !self.may_hand_off(&Work::of_handoff(handoff), agent) {
            return Ok(false);
        }
        Ok(self.check_fit(record, agent).is_ok() && self.check_mailbox(agent).is_ok())
    }
}

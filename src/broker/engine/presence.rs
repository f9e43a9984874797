//! Agents that come and go: signs of life, leases on presence, and offers that move on when their agent is gone.
//!
//! Owns which agents are gone and have mail that is still to be looked at. When an agent is gone is a rule of
//! `domain::presence`.

use std::{collections::VecDeque, ops::Bound};

use super::{Engine, timers::Timer};
use crate::{
    broker::BrokerError,
    domain::{EntityId, Input, handoff::Acked, presence::PresenceCheck},
    ids::AgentId,
    records::{self, CustodyEvent},
    store::{Order, Table},
    time::Timestamp,
};

/// Offers that are looked at in one tick, so that an agent with much mail does not hold others up.
const OFFERS_A_TICK: usize = 256;
/// Agents that are looked at in one tick, when the first lease after a start is over.
const AGENTS_A_TICK: usize = 256;

/// Agents that are gone, and the search for them.
#[derive(Debug, Default)]
pub(super) struct Presence {
    /// Agents that are gone, and the place from which on their mail is still to be looked at.
    gone: VecDeque<(AgentId, u64)>,
    /// The search for agents that have not come back since the start goes on behind this agent.
    unseen_after: Option<AgentId>,
}

impl Engine {
    /// An agent has given a sign of life. Its timer is set once and looks where the agent stands by then, so that a sign of
    /// life costs next to nothing.
    pub(super) fn seen(&mut self, agent: &AgentId, now: Timestamp) {
        self.env.directory.change_presence(agent, |presence| presence.signs.last_seen = Some(now));
        let timer = Timer::Presence(agent.clone());
        if !self.timers.is_set(&timer) {
            self.timers.set_after(timer, self.env.settings.presence_lease);
        }
    }

    /// The agent's timer has fired.
    pub(super) fn look_at_presence(&mut self, agent: AgentId, now: Timestamp) {
        let timer = Timer::Presence(agent.clone());
        match self.env.directory.check_presence(&agent, now) {
            PresenceCheck::Gone => {
                self.timers.clear(timer);
                self.is_gone(agent);
            }
            PresenceCheck::LookAgain(at) => self.timers.set_by_clock(timer, at),
        }
    }

    fn is_gone(&mut self, agent: AgentId) {
        self.presence.gone.push_back((agent, 0));
        self.timers.set_at_once(Timer::OffersOfGone);
    }

    /// The first lease after a start is over: looks at a part of all agents.
    pub(super) fn look_at_the_unseen(&mut self, now: Timestamp) {
        let agents = self.env.directory.list(self.presence.unseen_after.as_ref(), AGENTS_A_TICK, None);
        self.presence.unseen_after = agents.last().map(|last| last.id());
        match &self.presence.unseen_after {
            Some(_) => self.timers.set_at_once(Timer::Unseen),
            None => self.timers.clear(Timer::Unseen),
        }
        for agent in agents.iter().map(|entry| entry.id()) {
            if self.env.directory.is_gone(&agent, now) {
                self.is_gone(agent);
            }
        }
    }

    /// Looks at the offers of the next agent that is gone.
    pub(super) fn move_next_offers_on(&mut self, now: Timestamp) {
        if let Some((agent, place)) = self.presence.gone.pop_front() {
            self.move_offers_on(&agent, place, now);
        }
        if self.presence.gone.is_empty() {
            self.timers.clear(Timer::OffersOfGone);
        }
    }

    /// Requests that are still on their way to an agent that is gone go to the next candidate, if there is one.
    fn move_offers_on(&mut self, agent: &AgentId, place: u64, now: Timestamp) {
        if !self.env.directory.is_gone(agent, now) {
            return;
        }
        if let Err(error) = self.move_some_offers_on(agent, place, now) {
            tracing::error!(%agent, %error, "failed to look at the mail of an agent that is gone");
        }
    }

    /// From this place on; what is more than can be looked at now waits for the next tick.
    fn move_some_offers_on(&mut self, agent: &AgentId, place: u64, now: Timestamp) -> Result<(), BrokerError> {
        let range = (Bound::Included(records::letter_key(agent, place).key), records::mailbox_range(agent).1);
        let stored = self.env.store.scan(Table::Mailbox, range, Order::Ascending, OFFERS_A_TICK)?;
        if let Some((last, _)) = stored.last().filter(|_| stored.len() == OFFERS_A_TICK) {
            self.presence.gone.push_back((agent.clone(), records::letter_place(last)? + 1));
        }
        for (key, record) in &stored {
            match records::decode_letter(key, &record.value) {
                Ok(letter) => {
                    if let Some((entity, Acked::Request)) = &letter.report_to {
                        self.agent_gone(entity, now);
                    }
                }
                Err(error) => tracing::error!(%agent, %error, "failed to read mail of an agent that is gone"),
            }
        }
        Ok(())
    }

    fn agent_gone(&mut self, entity: &EntityId, now: Timestamp) {
        let mut transaction = self.transaction();
        match self.run_unasked(&mut transaction, entity, &Input::AgentGone, &CustodyEvent::Gone, now) {
            Ok(true) => {
                self.stage(transaction);
                self.end_unanswered();
            }
            Ok(false) => {}
            Err(error) => tracing::error!(%entity, %error, "failed to offer a handoff to another agent"),
        }
    }
}

//! Who is there: signs of life, leases on presence, and offers that go on to somebody else when an agent is gone.

use std::ops::Bound;

use super::Engine;
use crate::{
    broker::BrokerError,
    domain::{EntityId, Input, handoff::Acked},
    ids::AgentId,
    records::{self, CustodyEvent},
    store::{Order, Table},
    time::Timestamp,
};

/// Offers that are looked at in one tick, so that an agent with much mail does not hold everybody up.
const OFFERS_A_TICK: usize = 256;
/// Agents that are looked at in one tick, when the first lease after a start is over.
const AGENTS_A_TICK: usize = 256;

/// Where the search for agents that have not come back since the start stands.
#[derive(Debug, Default)]
pub(super) enum Unseen {
    /// The first lease is not over.
    WaitUntil(Timestamp),
    /// Looking, behind this agent.
    After(AgentId),
    /// All were looked at.
    #[default]
    Done,
}

impl Engine {
    /// An agent has given a sign of life.
    pub(super) fn seen(&mut self, agent: &AgentId, now: Timestamp) {
        self.env.directory.change_presence(agent, |presence| presence.last_seen = Some(now));
        if self.presence.alarm_of.insert(agent.clone()) {
            let at = now.plus(self.env.settings.presence_lease);
            self.presence.alarms.insert((at, agent.clone()));
        }
    }

    /// When somebody may be gone next, or offers of such wait to be looked at.
    pub(super) fn next_presence_deadline(&self) -> Option<Timestamp> {
        if !self.presence.gone.is_empty() {
            return Some(Timestamp::default());
        }
        let unseen = match self.presence.unseen {
            Unseen::WaitUntil(at) => Some(at),
            Unseen::After(_) => Some(Timestamp::default()),
            Unseen::Done => None,
        };
        unseen.into_iter().chain(self.presence.alarms.first().map(|(at, _)| *at)).min()
    }

    pub(super) fn look_for_the_gone(&mut self, now: Timestamp) {
        self.look_at_alarms(now);
        self.look_at_the_unseen(now);
        if let Some((agent, place)) = self.presence.gone.pop_front() {
            self.move_offers_on(&agent, place, now);
        }
    }

    /// An alarm is set once and looks where the agent stands by then, so that a sign of life costs next to nothing.
    fn look_at_alarms(&mut self, now: Timestamp) {
        while let Some((at, _)) = self.presence.alarms.first()
            && *at <= now
        {
            let (_, agent) = self.presence.alarms.pop_first().expect("it was just looked at");
            match self.env.directory.gone_at(&agent) {
                Some(at) if at <= now => {
                    self.presence.alarm_of.remove(&agent);
                    self.presence.gone.push_back((agent, 0));
                }
                Some(at) => drop(self.presence.alarms.insert((at, agent))),
                // It has an open call of Receive.
                None => drop(self.presence.alarms.insert((now.plus(self.env.settings.presence_lease), agent))),
            }
        }
    }

    fn look_at_the_unseen(&mut self, now: Timestamp) {
        let after = match &self.presence.unseen {
            Unseen::WaitUntil(at) if *at <= now => None,
            Unseen::After(agent) => Some(agent.clone()),
            Unseen::WaitUntil(_) | Unseen::Done => return,
        };
        let agents = self.env.directory.list(after.as_ref(), AGENTS_A_TICK, None);
        self.presence.unseen = agents.last().map_or(Unseen::Done, |last| Unseen::After(last.id()));
        let gone = agents.iter().map(|entry| entry.id()).filter(|agent| self.env.directory.is_gone(agent, now));
        self.presence.gone.extend(gone.map(|agent| (agent, 0)));
    }

    /// Requests that are still on their way to an agent that is gone go to somebody else, if there is anybody.
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

//! Presence of agents: signs of life, presence leases, and offers that move on when their agent is gone.
//!
//! This module owns the list of gone agents whose mail is still to be searched. The rule that decides when an agent is
//! gone is in `domain::presence`.

use std::{collections::VecDeque, ops::Bound};

use super::{Engine, timers::Timer};
use crate::{
    BrokerError,
    directory::Directory,
    domain::{EntityId, Input, dead_letter::ParkReason, handoff::Acked, presence::PresenceCheck},
    ids::AgentId,
    records::{self, CustodyEvent},
    store::{Order, Table},
    time::Timestamp,
};

/// The most letters that one tick searches, so that an agent with much mail does not delay others.
const OFFERS_A_TICK: usize = 64;
/// The most agents that one tick checks when the first presence lease after a start is over.
const AGENTS_A_TICK: usize = 256;

/// The gone agents, and the search for agents that did not come back after the start.
#[derive(Debug, Default)]
pub(super) struct Presence {
    /// The gone agents, each with the place from which its mail is still to be searched.
    gone: VecDeque<(AgentId, u64)>,
    /// The last agent that the search for unseen agents has checked.
    unseen_after: Option<AgentId>,
    /// The deregistered agents whose mail is to become dead letters.
    left: VecDeque<AgentId>,
}

impl Presence {
    /// The state at a start: a deregistered agent may have mail left.
    pub(super) fn after_start(directory: &Directory) -> Self {
        let left = directory.list(None, usize::MAX).into_iter().filter(|entry| !entry.is_registered());
        Self { left: left.map(|entry| entry.id()).collect(), ..Self::default() }
    }
}

impl Engine {
    /// Records a sign of life. The agent's timer is set once and checks the presence when it fires, so that a sign of
    /// life costs little.
    pub(super) fn seen(&mut self, agent: &AgentId, now: Timestamp) {
        self.env.directory.change_presence(agent, |presence| presence.signs.last_seen = Some(now));
        self.end_absence(agent);
        self.is_back(agent);
        self.may_have_room(agent);
        let timer = Timer::Presence(agent.clone());
        if !self.timers.is_set(&timer) {
            self.timers.set_after(timer, self.env.settings.presence_lease);
        }
    }

    /// Checks the presence of an agent whose timer has fired.
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
        self.liveness.forget(&agent);
        self.may_have_room(&agent);
        self.owner_is_gone(&agent);
        self.presence.gone.push_back((agent, 0));
        self.timers.set_at_once(Timer::OffersOfGone);
    }

    /// Checks a part of all agents after the first presence lease since the start.
    pub(super) fn look_at_the_unseen(&mut self, now: Timestamp) {
        let agents = self.env.directory.list(self.presence.unseen_after.as_ref(), AGENTS_A_TICK);
        self.presence.unseen_after = agents.last().map(|last| last.id());
        match &self.presence.unseen_after {
            Some(_) => self.timers.set_at_once(Timer::Unseen),
            None => self.timers.clear(Timer::Unseen),
        }
        for agent in agents.iter().map(|entry| entry.id()) {
            // An agent that was seen since the start has a timer of its own.
            if self.env.directory.is_gone(&agent, now) {
                self.is_gone(agent);
            }
        }
    }

    /// Searches a part of the next gone agent's mail for offers.
    pub(super) fn move_next_offers_on(&mut self, now: Timestamp) {
        if let Some((agent, place)) = self.presence.gone.pop_front() {
            self.move_offers_on(&agent, place, now);
        }
        if self.presence.gone.is_empty() {
            self.timers.clear(Timer::OffersOfGone);
        }
    }

    /// Moves undelivered requests of a gone agent to the next candidate, if one exists.
    fn move_offers_on(&mut self, agent: &AgentId, place: u64, now: Timestamp) {
        // The agent may have come back since it was queued.
        if !self.env.directory.is_gone(agent, now) {
            return;
        }
        if let Err(error) = self.move_some_offers_on(agent, place, now) {
            tracing::error!(%agent, %error, "failed to read the mailbox of an agent that is gone");
        }
    }

    /// Searches from this place on. The rest of a long mailbox waits for the next tick.
    fn move_some_offers_on(&mut self, agent: &AgentId, place: u64, now: Timestamp) -> Result<(), BrokerError> {
        // A gone agent may have no consumer, and then its mailbox is in the store alone.
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
                // A damaged letter must not keep the other offers with the gone agent.
                Err(error) => tracing::error!(%agent, %error, "failed to read mail of an agent that is gone"),
            }
        }
        Ok(())
    }

    /// Notes that the mail of a deregistered agent is to become dead letters.
    pub(super) fn has_left(&mut self, agent: AgentId) {
        if self.presence.left.back() != Some(&agent) {
            self.presence.left.push_back(agent);
        }
        self.timers.set_at_once(Timer::MailOfLeft);
    }

    /// Turns a part of the mail of the next deregistered agent into dead letters.
    pub(super) fn park_mail_of_left(&mut self, now: Timestamp) {
        let Some(agent) = self.presence.left.pop_front() else { return self.timers.clear(Timer::MailOfLeft) };
        match self.park_some_of_left(&agent, now) {
            // The next tick goes on with this mailbox, or finds it empty.
            Ok(true) => self.presence.left.push_back(agent),
            Ok(false) => {}
            Err(error) => tracing::error!(%agent, %error, "failed to park the mail of a deregistered agent"),
        }
        if self.presence.left.is_empty() {
            self.timers.clear(Timer::MailOfLeft);
        }
    }

    /// Returns whether the mailbox may have more letters.
    fn park_some_of_left(&mut self, agent: &AgentId, now: Timestamp) -> Result<bool, BrokerError> {
        let range = records::mailbox_range(agent);
        let stored = self.env.store.scan(Table::Mailbox, range, Order::Ascending, OFFERS_A_TICK)?;
        for (key, record) in &stored {
            let letter = records::decode_letter(key, &record.value)?;
            // The fate that the batch in hand gives to the letter is known after the commit.
            if !self.is_written_in_batch(&records::letter_key(agent, letter.sequence)) {
                self.park_letter(agent, &letter, ParkReason::ReceiverGone, "the agent was deregistered", now)?;
                self.end_unanswered();
            }
        }
        Ok(!stored.is_empty())
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

//! Mail in memory: mailboxes, and the consumers that their mail is dispatched to.
//!
//! Owns which mail is loaded, consumers with their credit, and how much mail waits for each agent. Must not know how mail comes
//! into a mailbox, or what a message says; what a delivery's fate means is in `domain::mailbox`.
//!
//! All mail is in the store. Memory has the mail of agents with a consumer or a lease, and follows the store after each commit.

mod ack;
mod consumers;
mod depth;
mod dispatch;
mod expiry;

use std::{collections::BTreeMap, ops::Bound};

pub(super) use self::consumers::Consumer;
use self::{depth::Depth, expiry::Expiring};
use super::Engine;
use crate::{
    domain::mailbox::{ConsumerId, Lease, Letter, Mailbox},
    ids::{AgentId, IdMap},
    time::Timestamp,
};

/// See the module.
#[derive(Default)]
pub(super) struct Delivery {
    mailboxes: IdMap<AgentId, Mailbox>,
    /// Mailboxes that are not loaded to their end, and the place of the first letter that may be missing.
    loading: BTreeMap<AgentId, u64>,
    /// The mailbox that was loaded from last.
    loaded_last: Option<AgentId>,
    consumers: IdMap<ConsumerId, Consumer>,
    consumers_of: IdMap<AgentId, Vec<ConsumerId>>,
    /// Mail that was about to be dispatched and has expired.
    expired_at_dispatch: Vec<(AgentId, u64)>,
    /// The timer of each mailbox that was written to since the start, if it has one; by the running time.
    mail_timers: IdMap<AgentId, Timestamp>,
    /// The mailbox that is being looked through for what has expired.
    expiring: Option<Expiring>,
    /// How much mail waits for each agent that was written to since the start.
    depths: IdMap<AgentId, Depth>,
}

impl Delivery {
    /// A letter is durable. True if its mailbox is in memory, and has it now.
    pub(super) fn letter_stored(&mut self, agent: &AgentId, letter: Letter) -> bool {
        if let Some(depth) = self.depths.get_mut(agent) {
            depth.one_more();
        }
        // What is not loaded yet is loaded with the rest, in its place.
        if self.loading.get(agent).is_some_and(|next| *next <= letter.sequence) {
            return false;
        }
        match self.mailboxes.get_mut(agent) {
            Some(mailbox) => {
                mailbox.add(letter);
                true
            }
            None => false,
        }
    }

    /// A letter is gone from the store.
    pub(super) fn letter_removed(&mut self, agent: &AgentId, place: u64) {
        if let Some(depth) = self.depths.get_mut(agent) {
            depth.one_less(place);
        }
        let ended = self.mailboxes.get_mut(agent).and_then(|mailbox| mailbox.remove(place));
        self.lease_ended(ended);
    }

    /// A letter can be dispatched again, as it is stored now.
    pub(super) fn letter_requeued(&mut self, agent: &AgentId, letter: Letter) {
        let ended = self.mailboxes.get_mut(agent).and_then(|mailbox| mailbox.requeue(letter));
        self.lease_ended(ended);
    }

    fn lease_ended(&mut self, lease: Option<Lease>) {
        if let Some(consumer) = lease.and_then(|lease| self.consumers.get_mut(&lease.consumer)) {
            consumer.lease_ended();
        }
    }

    /// The mailbox has this timer in the store, by the running time; `None`: it has none.
    pub(super) fn set_mail_timer(&mut self, agent: AgentId, at: Option<Timestamp>) {
        match at {
            Some(at) => drop(self.mail_timers.insert(agent, at)),
            None => drop(self.mail_timers.remove(&agent)),
        }
    }

    /// A timer of the mailbox that is known to be in the store. Another one may be, too.
    pub(super) fn mail_timer(&self, agent: &AgentId) -> Option<Timestamp> {
        self.mail_timers.get(agent).copied()
    }

    /// All consumers.
    pub(super) fn consumers(&self) -> impl Iterator<Item = &Consumer> {
        self.consumers.values()
    }

    fn letter(&self, agent: &AgentId, place: u64) -> Option<&Letter> {
        self.mailboxes.get(agent)?.letter(place)
    }

    fn lease(&self, agent: &AgentId, place: u64) -> Option<Lease> {
        self.mailboxes.get(agent)?.lease(place)
    }

    /// The deliveries of the agent whose leases are over.
    fn overdue(&self, agent: &AgentId, now: Timestamp) -> Vec<(Letter, Lease)> {
        let Some(mailbox) = self.mailboxes.get(agent) else { return Vec::new() };
        let with_lease = |place| Some((mailbox.letter(place)?.clone(), mailbox.lease(place)?));
        mailbox.overdue(now).into_iter().filter_map(with_lease).collect()
    }

    /// The deliveries that this consumer of the agent holds.
    fn held_by(&self, agent: &AgentId, consumer: ConsumerId) -> Vec<(Letter, Lease)> {
        self.mailboxes.get(agent).map(|mailbox| mailbox.held_by(consumer)).unwrap_or_default()
    }

    /// When there is something to do about the mailbox by itself: the end of a lease, or of a delay if there is a consumer
    /// that waits for its mail.
    fn next_deadline(&mut self, agent: &AgentId, now: Timestamp) -> Option<Timestamp> {
        let mailbox = self.mailboxes.get_mut(agent)?;
        if self.consumers_of.contains_key(agent) { mailbox.next_deadline(now) } else { mailbox.next_lease_end() }
    }

    /// Whose mailbox is loaded next, and from which place on: each in its turn.
    fn next_to_load(&mut self) -> Option<(AgentId, u64)> {
        let after = self.loaded_last.take().map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.loading.range::<AgentId, _>((after, Bound::Unbounded)).next();
        let (agent, from) = next.or_else(|| self.loading.first_key_value())?;
        self.loaded_last = Some(agent.clone());
        Some((agent.clone(), *from))
    }

    /// Mail of an agent that is away is only in the store.
    fn forget_if_idle(&mut self, agent: &AgentId) {
        let is_idle = self.mailboxes.get(agent).is_some_and(|mailbox| !mailbox.has_leases());
        if is_idle && !self.consumers_of.contains_key(agent) {
            self.mailboxes.remove(agent);
            self.loading.remove(agent);
        }
    }
}

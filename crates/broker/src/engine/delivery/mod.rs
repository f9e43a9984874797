//! Mail in memory: mailboxes, and the consumers to which their mail is dispatched.
//!
//! This module owns the loaded mail, the consumers with their credit, and the number of letters that wait for each
//! agent. It must not know how mail gets into a mailbox, or the content of a message. The meaning of a delivery's fate
//! is in `domain::mailbox`.
//!
//! The store has all mail. Memory has the mail of agents with a consumer or a lease, and follows the store after each
//! commit.

mod ack;
mod consumers;
mod depth;
mod dispatch;
mod expiry;
mod settling;

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Bound,
};

pub(super) use self::consumers::Consumer;
use self::{depth::Depth, expiry::Expiring};
use super::Engine;
use crate::{
    domain::mailbox::{ConsumerId, Lease, Letter, Mailbox},
    ids::{AgentId, IdMap},
    metrics::Gauge,
    time::Timestamp,
};

/// The mailboxes in memory and their consumers. See the module.
#[derive(Default)]
pub(super) struct Delivery {
    mailboxes: IdMap<AgentId, Mailbox>,
    /// The mailboxes that are loaded in part, with the place of the first letter that may be missing.
    loading: BTreeMap<AgentId, u64>,
    /// The mailbox that was loaded from last.
    loaded_last: Option<AgentId>,
    consumers: IdMap<ConsumerId, Consumer>,
    consumers_of: IdMap<AgentId, Vec<ConsumerId>>,
    /// The closed sessions that still have leases.
    closed: VecDeque<(AgentId, ConsumerId)>,
    /// Letters that expired before their dispatch.
    expired_at_dispatch: Vec<(AgentId, u64)>,
    /// The timer of each mailbox that was written to since the start, as a running time. No entry: no timer is known.
    mail_timers: IdMap<AgentId, Timestamp>,
    /// The mailbox that the expiry scan is in.
    expiring: Option<Expiring>,
    /// The number of letters that wait for each agent that was written to since the start.
    depths: IdMap<AgentId, Depth>,
}

impl Delivery {
    /// Adds a durable letter. Returns true if its mailbox is in memory and has the letter now.
    pub(super) fn letter_stored(&mut self, agent: &AgentId, letter: Letter) -> bool {
        if let Some(depth) = self.depths.get_mut(agent) {
            depth.one_more(letter.sequence);
        }
        // A partly loaded mailbox gets the letter later, in its place, with the rest.
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

    /// Removes a letter that the store no longer has.
    pub(super) fn letter_removed(&mut self, agent: &AgentId, place: u64, in_flight: &Gauge) {
        if let Some(depth) = self.depths.get_mut(agent) {
            depth.one_less(place);
        }
        let ended = self.mailboxes.get_mut(agent).and_then(|mailbox| mailbox.remove(place));
        self.lease_ended(ended, in_flight);
    }

    /// Makes a letter available for dispatch again, as stored now.
    pub(super) fn letter_requeued(&mut self, agent: &AgentId, letter: Letter, in_flight: &Gauge) {
        let ended = self.mailboxes.get_mut(agent).and_then(|mailbox| mailbox.requeue(letter));
        self.lease_ended(ended, in_flight);
    }

    fn lease_ended(&mut self, lease: Option<Lease>, in_flight: &Gauge) {
        if lease.is_some() {
            in_flight.dec();
        }
        // A consumer that is closed before the end of its lease has no credit left to give back.
        if let Some(consumer) = lease.and_then(|lease| self.consumers.get_mut(&lease.consumer)) {
            consumer.lease_ended();
        }
    }

    /// Notes the mailbox's timer in the store, a running time. `None`: the mailbox has no timer.
    pub(super) fn set_mail_timer(&mut self, agent: AgentId, at: Option<Timestamp>) {
        match at {
            Some(at) => drop(self.mail_timers.insert(agent, at)),
            None => drop(self.mail_timers.remove(&agent)),
        }
    }

    /// A timer of the mailbox, known to be in the store. The store may hold further timers of it.
    pub(super) fn mail_timer(&self, agent: &AgentId) -> Option<Timestamp> {
        self.mail_timers.get(agent).copied()
    }

    /// The consumers of all agents, in no order.
    pub(super) fn consumers(&self) -> impl Iterator<Item = &Consumer> {
        self.consumers.values()
    }

    fn letter(&self, agent: &AgentId, place: u64) -> Option<&Letter> {
        self.mailboxes.get(agent)?.letter(place)
    }

    /// The lease on a letter, if a consumer holds one.
    pub(super) fn lease(&self, agent: &AgentId, place: u64) -> Option<Lease> {
        self.mailboxes.get(agent)?.lease(place)
    }

    /// The agent's deliveries with expired leases.
    fn overdue(&self, agent: &AgentId, now: Timestamp) -> Vec<(Letter, Lease)> {
        let Some(mailbox) = self.mailboxes.get(agent) else { return Vec::new() };
        let with_lease = |place| Some((mailbox.letter(place)?.clone(), mailbox.lease(place)?));
        mailbox.overdue(now).into_iter().filter_map(with_lease).collect()
    }

    /// The agent's deliveries that this consumer holds.
    fn held_by(&self, agent: &AgentId, consumer: ConsumerId) -> Vec<(Letter, Lease)> {
        self.mailboxes.get(agent).map(|mailbox| mailbox.held_by(consumer)).unwrap_or_default()
    }

    /// The time of the mailbox's next event: the end of a lease, or the end of a letter's delay if a consumer waits for
    /// mail.
    fn next_deadline(&mut self, agent: &AgentId, now: Timestamp) -> Option<Timestamp> {
        let mailbox = self.mailboxes.get_mut(agent)?;
        if self.consumers_of.contains_key(agent) { mailbox.next_deadline(now) } else { mailbox.next_lease_end() }
    }

    /// The next mailbox to load from, and the place. The mailboxes take turns.
    fn next_to_load(&mut self) -> Option<(AgentId, u64)> {
        let after = self.loaded_last.take().map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.loading.range::<AgentId, _>((after, Bound::Unbounded)).next();
        // After the last mailbox it is the turn of the first.
        let (agent, from) = next.or_else(|| self.loading.first_key_value())?;
        self.loaded_last = Some(agent.clone());
        Some((agent.clone(), *from))
    }

    /// Drops the mailbox of an agent without consumers and leases: the store has its mail.
    fn forget_if_idle(&mut self, agent: &AgentId) {
        // The leases of a `Receive` outlive its consumer, and their acks need the mailbox.
        let is_idle = self.mailboxes.get(agent).is_some_and(|mailbox| !mailbox.has_leases());
        if is_idle && !self.consumers_of.contains_key(agent) {
            self.mailboxes.remove(agent);
            self.loading.remove(agent);
        }
    }
}

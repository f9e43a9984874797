//! Who takes deliveries: sessions and calls of `Receive`, their credits, and handing out.

use std::ops::Bound;

use super::{ConsumerKind, Engine, LOADED_AT_ONCE, timers::Timer};
use crate::{
    broker::{BrokerError, Credited, Event, Events, OutgoingDelivery, Output, Reply},
    domain::{
        EntityId,
        handoff::Acked,
        mailbox::{ConsumerId, Fate, Lease, Mailbox},
    },
    ids::AgentId,
    records,
    store::{Order, Table},
    time::Timestamp,
};

/// One who takes deliveries.
#[derive(Debug)]
pub(super) struct Consumer {
    agent: AgentId,
    kind: ConsumerKind,
    events: Events,
    outstanding_max: u32,
    outstanding: u32,
    handed_out: u32,
}

impl Consumer {
    fn has_room(&self) -> bool {
        self.outstanding < self.outstanding_max && !self.is_done()
    }

    /// Tells it to come back later.
    pub(super) fn go_away(&self) -> Output {
        self.output(Event::GoAway)
    }

    fn output(&self, event: Event) -> Output {
        Output::Event { to: self.events.clone(), event }
    }

    pub(super) fn is_of(&self, agent: &AgentId) -> bool {
        self.agent == *agent
    }

    fn is_done(&self) -> bool {
        matches!(self.kind, ConsumerKind::Receive { deliveries_max: Some(most) } if self.handed_out >= most)
    }
}

impl Engine {
    pub(super) fn open_consumer(&mut self, id: ConsumerId, agent: &AgentId, kind: ConsumerKind, events: Events) {
        if !self.delivery.mailboxes.contains_key(agent) {
            self.delivery.mailboxes.insert(agent.clone(), Mailbox::default());
            if let Err(error) = self.load_some(agent, 0) {
                self.delivery.mailboxes.remove(agent);
                // The stream of events ends without a word; the cause is in the log.
                return tracing::error!(%agent, %error, "failed to load a mailbox");
            }
        }
        let consumer =
            Consumer { agent: agent.clone(), kind, events, outstanding_max: 0, outstanding: 0, handed_out: 0 };
        let former = self.delivery.consumers.insert(id, consumer);
        assert!(former.is_none(), "a consumer's id is used once");
        self.delivery.consumers_of.entry(agent.clone()).or_default().push(id);
        let is_session = kind == ConsumerKind::Session;
        self.env.directory.change_presence(agent, |presence| {
            if is_session { presence.signs.sessions += 1 } else { presence.signs.receives += 1 }
        });
    }

    /// An agent's mail, from the store, from this place on. A large mailbox is loaded a part a tick, so that nobody else
    /// has to wait for it; the oldest first, so that no line can be entered behind its first. What the batch in hand has
    /// changed of it follows when that is committed.
    fn load_some(&mut self, agent: &AgentId, from: u64) -> Result<(), BrokerError> {
        self.delivery.loading.remove(agent);
        let Some(mailbox) = self.delivery.mailboxes.get_mut(agent) else { return Ok(()) };
        let range = (Bound::Included(records::letter_key(agent, from).key), records::mailbox_range(agent).1);
        let stored = self.env.store.scan(Table::Mailbox, range, Order::Ascending, LOADED_AT_ONCE)?;
        let is_all = stored.len() < LOADED_AT_ONCE;
        let mut next = from;
        for (key, record) in stored {
            let mut letter = records::decode_letter(&key, &record.value)?;
            next = letter.sequence + 1;
            letter.bound_wait(self.timers.clock.now);
            mailbox.add(letter);
        }
        if !is_all {
            self.delivery.loading.insert(agent.clone(), next);
            self.timers.set_at_once(Timer::LoadMail);
        }
        Ok(())
    }

    /// Goes on with one mailbox that is not loaded to its end, each in its turn.
    pub(super) fn load_more(&mut self) {
        let after = (self.delivery.loaded_last.take()).map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.delivery.loading.range::<AgentId, _>((after, Bound::Unbounded)).next();
        let Some((agent, from)) =
            next.or_else(|| self.delivery.loading.first_key_value()).map(|(a, f)| (a.clone(), *f))
        else {
            return self.timers.clear(Timer::LoadMail);
        };
        if let Err(error) = self.load_some(&agent, from) {
            tracing::error!(%agent, %error, "failed to load the rest of a mailbox");
        }
        self.batch.touched.insert(agent.clone());
        self.delivery.loaded_last = Some(agent);
    }

    pub(super) fn credit(&mut self, id: ConsumerId, outstanding_max: u32, now: Timestamp) {
        if let Some(consumer) = self.delivery.consumers.get_mut(&id) {
            consumer.outstanding_max = outstanding_max;
            let agent = consumer.agent.clone();
            self.batch.touched.insert(agent.clone());
            self.seen(&agent, now);
        }
    }

    pub(super) fn answer_credit(&mut self, id: ConsumerId, reply: Option<Reply<Credited>>) {
        let outstanding_max = self.delivery.consumers.get(&id).map_or(0, |consumer| consumer.outstanding_max);
        if let Some(reply) = reply {
            self.batch.answer(reply, Ok(Credited { outstanding_max }));
        }
    }

    pub(super) fn close_consumer(&mut self, id: ConsumerId, now: Timestamp) {
        let Some(consumer) = self.delivery.consumers.remove(&id) else { return };
        if let Some(others) = self.delivery.consumers_of.get_mut(&consumer.agent) {
            others.retain(|other| *other != id);
            if others.is_empty() {
                self.delivery.consumers_of.remove(&consumer.agent);
            }
        }
        let is_session = consumer.kind == ConsumerKind::Session;
        self.env.directory.change_presence(&consumer.agent, |presence| {
            if is_session { presence.signs.sessions -= 1 } else { presence.signs.receives -= 1 }
        });
        self.seen(&consumer.agent, now);
        if is_session {
            self.end_leases_of(id, &consumer.agent, now);
        }
        self.batch.touched.insert(consumer.agent);
    }

    /// The session is over, and what it held can be handed out again: no failure, but a hand-out that is counted.
    fn end_leases_of(&mut self, id: ConsumerId, agent: &AgentId, now: Timestamp) {
        let held = self.delivery.mailboxes.get(agent).map(|mailbox| mailbox.held_by(id)).unwrap_or_default();
        for (letter, lease) in held {
            self.end_lease(agent, letter, lease, &Fate::SessionEnded, now);
        }
    }

    pub(super) fn lease_ended(&mut self, lease: Option<Lease>) {
        if let Some(consumer) = lease.and_then(|lease| self.delivery.consumers.get_mut(&lease.consumer)) {
            consumer.outstanding -= 1;
        }
    }

    /// Hands out all that can be, each in turn to the consumers that have room.
    pub(super) fn dispatch(&mut self, agent: &AgentId, now: Timestamp) {
        let consumers = self.delivery.consumers_of.get(agent).cloned().unwrap_or_default();
        let mut more = !self.batch.failed;
        while more {
            more = false;
            for &id in &consumers {
                more |= self.dispatch_one(agent, id, now);
            }
        }
        self.set_mailbox_timer(agent, now);
        self.forget_if_idle(agent);
    }

    fn dispatch_one(&mut self, agent: &AgentId, id: ConsumerId, now: Timestamp) -> bool {
        let Some(mailbox) = self.delivery.mailboxes.get_mut(agent) else { return false };
        let Some(consumer) = self.delivery.consumers.get_mut(&id).filter(|consumer| consumer.has_room()) else {
            return false;
        };
        let Some(lease) = mailbox.dispatch(id, now, self.env.settings.ack_wait) else { return false };
        consumer.outstanding += 1;
        let letter = mailbox.letter(lease.sequence).expect("it was just handed out");
        if letter.is_expired(self.timers.clock.running()) {
            self.delivery.expired_at_dispatch.push((agent.clone(), lease.sequence));
            self.timers.set_at_once(Timer::ExpiredAtDispatch);
            return true;
        }
        let delivery = OutgoingDelivery {
            delivery_id: super::acks::delivery_id(&lease),
            attempt: lease.attempt,
            sequence: letter.message_sequence,
            bytes_at: letter.bytes_at(),
            ack_deadline: lease.deadline,
            handoff: match letter.report_to {
                Some((EntityId::Handoff(handoff), Acked::Request)) => Some(handoff),
                _ => None,
            },
        };
        consumer.handed_out = consumer.handed_out.saturating_add(1);
        self.outputs.push(consumer.output(Event::Delivery(delivery)));
        if consumer.is_done() {
            self.close_consumer(id, now);
        }
        true
    }

    /// Sees to it that `tick` looks at the mailbox when a lease or a delay of it ends.
    fn set_mailbox_timer(&mut self, agent: &AgentId, now: Timestamp) {
        let timer = Timer::Mailbox(agent.clone());
        let has_consumer = self.delivery.consumers_of.contains_key(agent);
        let wanted = |mailbox: &mut Mailbox| {
            if has_consumer { mailbox.next_deadline(now) } else { mailbox.next_lease_end() }
        };
        match self.delivery.mailboxes.get_mut(agent).and_then(wanted) {
            Some(at) => self.timers.set_by_clock(timer, at),
            None => self.timers.clear(timer),
        }
    }

    /// Mail of an agent that is away is only in the store.
    fn forget_if_idle(&mut self, agent: &AgentId) {
        let idle = self.delivery.mailboxes.get(agent).is_some_and(|mailbox| !mailbox.has_leases());
        if idle && !self.delivery.consumers_of.contains_key(agent) {
            self.delivery.mailboxes.remove(agent);
            self.delivery.loading.remove(agent);
        }
    }

    /// Tells those that are meant to come back, and ends them.
    pub(super) fn send_away(&mut self, is_meant: impl Fn(&Consumer) -> bool, now: Timestamp) {
        let mut receives = Vec::new();
        for (id, consumer) in self.delivery.consumers.iter().filter(|(_, consumer)| is_meant(consumer)) {
            self.outputs.push(consumer.go_away());
            if consumer.kind != ConsumerKind::Session {
                receives.push(*id); // a session ends from the wire's side; a Receive has nobody else to end it
            }
        }
        receives.into_iter().for_each(|id| self.close_consumer(id, now));
    }
}

//! Consumers of mail: sessions and calls of `Receive`, and their credit.

use super::{Delivery, Engine};
use crate::{
    broker::{Credited, Event, Events, OutgoingDelivery, Output, Reply, engine::ConsumerKind},
    domain::mailbox::{ConsumerId, Fate, Mailbox},
    ids::AgentId,
    time::Timestamp,
};

/// Takes deliveries of one agent's mail.
#[derive(Debug)]
pub(in crate::broker::engine) struct Consumer {
    agent: AgentId,
    kind: ConsumerKind,
    events: Events,
    /// Its credit: the most deliveries that it holds at a time.
    outstanding_max: u32,
    outstanding: u32,
    /// Deliveries since it was opened.
    deliveries: u32,
}

impl Consumer {
    /// Whether it takes one more delivery now.
    pub(super) fn has_room(&self) -> bool {
        self.outstanding < self.outstanding_max && !self.is_done()
    }

    /// Tells it to come back later.
    pub(in crate::broker::engine) fn go_away(&self) -> Output {
        self.output(Event::GoAway)
    }

    fn output(&self, event: Event) -> Output {
        Output::Event { to: self.events.clone(), event }
    }

    pub(in crate::broker::engine) fn is_of(&self, agent: &AgentId) -> bool {
        self.agent == *agent
    }

    /// It holds one more delivery.
    pub(super) fn lease_begun(&mut self) {
        self.outstanding += 1;
    }

    /// It holds one delivery less.
    pub(super) fn lease_ended(&mut self) {
        self.outstanding -= 1;
    }

    /// Sends it a delivery.
    pub(super) fn deliver(&mut self, delivery: OutgoingDelivery) -> Output {
        self.deliveries = self.deliveries.saturating_add(1);
        self.output(Event::Delivery(delivery))
    }

    /// Whether it takes no more deliveries, ever.
    pub(super) fn is_done(&self) -> bool {
        matches!(self.kind, ConsumerKind::Receive { deliveries_max: Some(most) } if self.deliveries >= most)
    }
}

impl Delivery {
    fn add_consumer(&mut self, id: ConsumerId, consumer: Consumer) {
        self.consumers_of.entry(consumer.agent.clone()).or_default().push(id);
        let former = self.consumers.insert(id, consumer);
        assert!(former.is_none(), "a consumer's id is used once");
    }

    fn remove_consumer(&mut self, id: ConsumerId) -> Option<Consumer> {
        let consumer = self.consumers.remove(&id)?;
        let others = self.consumers_of.get_mut(&consumer.agent).expect("a consumer is among its agent's");
        others.retain(|other| *other != id);
        if others.is_empty() {
            self.consumers_of.remove(&consumer.agent);
        }
        Some(consumer)
    }
}

impl Engine {
    pub(in crate::broker::engine) fn open_consumer(
        &mut self,
        id: ConsumerId,
        agent: &AgentId,
        kind: ConsumerKind,
        events: Events,
    ) {
        if !self.delivery.mailboxes.contains_key(agent) {
            self.delivery.mailboxes.insert(agent.clone(), Mailbox::default());
            if let Err(error) = self.load_some(agent, 0) {
                self.delivery.mailboxes.remove(agent);
                // The stream of events ends without a word; the cause is in the log.
                return tracing::error!(%agent, %error, "failed to load a mailbox");
            }
        }
        let consumer =
            Consumer { agent: agent.clone(), kind, events, outstanding_max: 0, outstanding: 0, deliveries: 0 };
        self.delivery.add_consumer(id, consumer);
        let is_session = kind == ConsumerKind::Session;
        self.env.directory.change_presence(agent, |presence| {
            if is_session { presence.signs.sessions += 1 } else { presence.signs.receives += 1 }
        });
    }

    pub(in crate::broker::engine) fn credit(&mut self, id: ConsumerId, outstanding_max: u32, now: Timestamp) {
        if let Some(consumer) = self.delivery.consumers.get_mut(&id) {
            consumer.outstanding_max = outstanding_max;
            let agent = consumer.agent.clone();
            self.batch.touched.insert(agent.clone());
            self.seen(&agent, now);
        }
    }

    pub(in crate::broker::engine) fn answer_credit(&mut self, id: ConsumerId, reply: Option<Reply<Credited>>) {
        let outstanding_max = self.delivery.consumers.get(&id).map_or(0, |consumer| consumer.outstanding_max);
        if let Some(reply) = reply {
            self.batch.answer(reply, Ok(Credited { outstanding_max }));
        }
    }

    pub(in crate::broker::engine) fn close_consumer(&mut self, id: ConsumerId, now: Timestamp) {
        let Some(consumer) = self.delivery.remove_consumer(id) else { return };
        let is_session = consumer.kind == ConsumerKind::Session;
        self.env.directory.change_presence(&consumer.agent, |presence| {
            if is_session { presence.signs.sessions -= 1 } else { presence.signs.receives -= 1 }
        });
        self.seen(&consumer.agent, now);
        if is_session {
            for (letter, lease) in self.delivery.held_by(&consumer.agent, id) {
                self.end_lease(&consumer.agent, letter, lease, &Fate::SessionEnded, now);
            }
        }
        self.batch.touched.insert(consumer.agent);
    }

    /// Tells these consumers to come back later, and ends them.
    pub(in crate::broker::engine) fn send_away(&mut self, is_meant: impl Fn(&Consumer) -> bool, now: Timestamp) {
        let mut receives = Vec::new();
        for (id, consumer) in self.delivery.consumers.iter().filter(|(_, consumer)| is_meant(consumer)) {
            self.outputs.push(consumer.go_away());
            if consumer.kind != ConsumerKind::Session {
                receives.push(*id); // a session is ended by the wire, a Receive only here
            }
        }
        receives.into_iter().for_each(|id| self.close_consumer(id, now));
    }
}

//! Loading mail from the store into mailboxes, and dispatching it to consumers.

use std::{cmp::Reverse, ops::Bound};

use super::{Engine, ack, consumers::Consumer};
use crate::{
    BrokerError, OutgoingDelivery,
    domain::{EntityId, handoff::Acked, mailbox::ConsumerId},
    engine::{LOADED_AT_ONCE, timers::Timer},
    ids::AgentId,
    records,
    store::{Order, Table},
    time::Timestamp,
};

impl Engine {
    /// Loads a part of an agent's mail from this place on. A large mailbox takes several ticks, so that no other agent
    /// waits for it. The oldest letters load first, so that no letter enters a mailbox before an earlier one. Changes
    /// of the batch in hand follow after its commit.
    pub(super) fn load_some(&mut self, agent: &AgentId, from: u64) -> Result<(), BrokerError> {
        self.delivery.loading.remove(agent);
        let Some(mailbox) = self.delivery.mailboxes.get_mut(agent) else { return Ok(()) };
        let range = (Bound::Included(records::letter_key(agent, from).key), records::mailbox_range(agent).1);
        let stored = self.env.store.scan(Table::Mailbox, range, Order::Ascending, LOADED_AT_ONCE)?;
        let is_all = stored.len() < LOADED_AT_ONCE;
        let mut next = from;
        for (key, record) in stored {
            next = records::letter_place(&key)? + 1;
            let mut letter = match records::decode_letter(&key, &record.value) {
                Ok(letter) => letter,
                // It must not keep the letters behind it from the agent.
                Err(error) => {
                    tracing::error!(%agent, %error, "failed to decode a letter");
                    continue;
                }
            };
            // A clock that was set back must not delay a requeued letter for longer than its backoff.
            letter.bound_wait(self.timers.clock.now);
            mailbox.add(letter);
        }
        if !is_all {
            self.delivery.loading.insert(agent.clone(), next);
            self.timers.set_at_once(Timer::LoadMail);
        }
        Ok(())
    }

    /// Loads the next part of one partly loaded mailbox; the mailboxes take turns.
    pub(in crate::engine) fn load_more(&mut self) {
        let Some((agent, from)) = self.delivery.next_to_load() else { return self.timers.clear(Timer::LoadMail) };
        // After a failed read the engine begins again from the store, and loads the mailbox anew.
        if let Err(error) = self.load_some(&agent, from) {
            tracing::error!(%agent, %error, "failed to load the rest of a mailbox");
        }
        self.batch.touched.insert(agent);
    }

    /// Dispatches mail until no consumer has room or no letter is ready. The next letter goes to the consumer whose process
    /// has the most room; those with equal room take turns.
    pub(in crate::engine) fn dispatch(&mut self, agent: &AgentId, now: Timestamp) {
        // A copy of the list, because a dispatch may close a consumer that has had its last delivery.
        let consumers = self.delivery.consumers_of.get(agent).cloned().unwrap_or_default();
        // After a failed commit the state on disk is unknown, so nothing is dispatched before the recovery.
        let mut more = !self.batch.failed;
        let mut order = consumers;
        while more {
            if order.len() > 1 {
                order.sort_by_key(|id| Reverse(self.delivery.consumers.get(id).map(Consumer::free_slots)));
            }
            more = order.iter().any(|&id| self.dispatch_one(agent, id, now));
        }
        self.set_mailbox_timer(agent, now);
        self.delivery.forget_if_idle(agent);
    }

    /// Dispatches one letter to a consumer. Returns false if the consumer has no room or no letter is ready.
    fn dispatch_one(&mut self, agent: &AgentId, id: ConsumerId, now: Timestamp) -> bool {
        let Some(mailbox) = self.delivery.mailboxes.get_mut(agent) else { return false };
        let Some(consumer) = self.delivery.consumers.get_mut(&id).filter(|consumer| consumer.has_room()) else {
            return false;
        };
        let Some(lease) = mailbox.dispatch(id, consumer.process(), now, self.env.settings.ack_wait) else {
            return false;
        };
        consumer.lease_begun();
        self.env.resources.metrics.deliveries_in_flight.inc();
        let letter = mailbox.letter(lease.sequence).expect("it was just dispatched");
        // Parking writes to the store, which a dispatch does not do. The lease keeps the letter from other consumers
        // until then.
        if letter.is_expired(self.timers.clock.running()) {
            self.delivery.expired_at_dispatch.push((agent.clone(), lease.sequence));
            self.timers.set_at_once(Timer::ExpiredAtDispatch);
            return true;
        }
        let delivery = OutgoingDelivery {
            delivery_id: ack::delivery_id(&lease),
            attempt: lease.attempt,
            sequence: letter.message_sequence,
            bytes_at: letter.bytes_at(),
            ack_deadline: lease.deadline,
            handoff: match letter.report_to {
                Some((EntityId::Handoff(handoff), Acked::Request)) => Some(handoff),
                _ => None,
            },
            trace: letter.trace.clone(),
        };
        self.env.resources.metrics.delivered(lease.attempt);
        self.outputs.push(consumer.deliver(delivery));
        if consumer.is_done() {
            self.close_consumer(id, now);
        }
        true
    }

    /// Sets the mailbox's timer to the next end of a lease or delay.
    fn set_mailbox_timer(&mut self, agent: &AgentId, now: Timestamp) {
        let timer = Timer::Mailbox(agent.clone());
        match self.delivery.next_deadline(agent, now) {
            Some(at) => self.timers.set_by_clock(timer, at),
            None => self.timers.clear(timer),
        }
    }
}

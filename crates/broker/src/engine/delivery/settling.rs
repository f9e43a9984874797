//! Removing deliveries that are over: those that their agent has answered without an ack, and those that are withdrawn
//! because what they are about has ended.

use std::ops::Bound;

use super::Engine;
use crate::{
    BrokerError,
    domain::{Answered, EntityId, handoff::Acked, mailbox::Letter},
    engine::transaction::Transaction,
    ids::{AgentId, MessageId},
    records::{self, EntityRecord, MessageRecord, letter_key},
    store::{Order, Table},
};

/// The most letters that a search for answered deliveries reads. A delivery behind them stays in the mailbox.
const SEARCHED_MAX: usize = 1024;

impl Engine {
    /// Removes answered deliveries from an agent's mailbox. A consumer that holds a delivery acks it itself. Of an agent
    /// with consumers, only the first delivery of the answered message is found.
    pub(in crate::engine) fn settle_answered(
        &mut self,
        transaction: &mut Transaction,
        of: &AgentId,
        answered: &Answered,
    ) -> Result<(), BrokerError> {
        let Some(first) = self.first_place(transaction, answered)? else { return Ok(()) };
        for letter in self.waiting_from(of, first)? {
            let is_answered = match answered {
                Answered::Handoff(handoff) => letter.report_to.as_ref().is_some_and(|(entity, role)| {
                    *entity == EntityId::Handoff(*handoff) && matches!(role, Acked::Request | Acked::Context)
                }),
                Answered::Message(message) => letter.message == *message,
            };
            // An earlier command of the batch may have removed the letter or given it a fate.
            if is_answered && !self.is_written_in_batch(&letter_key(of, letter.sequence)) {
                self.remove_letter(transaction, of, &letter)?;
            }
        }
        Ok(())
    }

    /// Removes the request of a negotiation, or the latest offer or context of a handoff, from an agent's mailbox, if it
    /// is there. A consumer that holds the delivery finds it settled. Returns whether the agent never got it.
    pub(in crate::engine) fn withdraw(
        &mut self,
        transaction: &mut Transaction,
        entity: &EntityId,
        from: &AgentId,
        answers: bool,
    ) -> Result<bool, BrokerError> {
        let place = match entity {
            EntityId::Negotiation(negotiation) => {
                if let Some(envelope) = self.envelope_of_never_asked(transaction, entity, from)? {
                    self.one_letter_less(transaction, envelope)?;
                    return Ok(true);
                }
                self.letter_of_request(transaction, *negotiation, from)?.map(|(_, place)| place)
            }
            EntityId::Handoff(_) => {
                let record = self.entity_record(transaction, entity)?;
                record.as_deref().and_then(EntityRecord::as_handoff).map(|record| record.latest_letter)
            }
            _ => {
                tracing::error!(%entity, "no mail of such an entity can be withdrawn");
                return Err(BrokerError::Internal);
            }
        };
        match place {
            // An agent that has ended the matter by its own answer acks the delivery after that.
            Some(place) if answers && self.delivery.lease(from, place).is_some() => Ok(false),
            Some(place) => self.withdraw_letter(transaction, from, place),
            None => Ok(false),
        }
    }

    /// Removes a message from an agent's mailbox, if it is there.
    pub(in crate::engine) fn withdraw_message(
        &mut self,
        transaction: &mut Transaction,
        message: MessageId,
        from: &AgentId,
    ) -> Result<(), BrokerError> {
        let stored = self.read(transaction, &MessageRecord::key(message))?;
        if let Some(record) = stored.map(|stored| MessageRecord::decode(&stored.value)).transpose()? {
            self.withdraw_letter(transaction, from, record.sequence)?;
        }
        Ok(())
    }

    /// Returns whether the letter was there and never handed out.
    fn withdraw_letter(
        &mut self,
        transaction: &mut Transaction,
        from: &AgentId,
        place: u64,
    ) -> Result<bool, BrokerError> {
        let key = letter_key(from, place);
        let Some(stored) = self.read(transaction, &key)? else { return Ok(false) };
        let letter = records::decode_letter(&key.key, &stored.value)?;
        let is_held = self.delivery.lease(from, place).is_some();
        self.remove_letter(transaction, from, &letter)?;
        Ok(letter.handouts == 0 && !is_held)
    }

    /// A place that no answered delivery is before. `None`: the broker does not know the delivered message.
    fn first_place(&mut self, transaction: &mut Transaction, answered: &Answered) -> Result<Option<u64>, BrokerError> {
        match answered {
            Answered::Handoff(handoff) => {
                let record = self.entity_record(transaction, &EntityId::Handoff(*handoff))?;
                Ok(record.as_deref().and_then(EntityRecord::opening).map(|opening| opening.sequence))
            }
            Answered::Message(message) => {
                let stored = self.env.store.get(&MessageRecord::key(*message))?;
                let record = stored.map(|stored| MessageRecord::decode(&stored.value)).transpose()?;
                Ok(record.map(|record| record.sequence))
            }
        }
    }

    /// The letters among which an answered delivery may be. Consumers hold none of them.
    fn waiting_from(&self, of: &AgentId, first: u64) -> Result<Vec<Letter>, BrokerError> {
        match self.delivery.mailboxes.get(of) {
            // An agent that takes mail acks the rest. A search of its mailbox would cost each of its answers too much.
            Some(mailbox) => Ok(mailbox.waiting(first).cloned().into_iter().collect()),
            None => {
                let range = (Bound::Included(letter_key(of, first).key), records::mailbox_range(of).1);
                let stored = self.env.store.scan(Table::Mailbox, range, Order::Ascending, SEARCHED_MAX)?;
                let letters = stored.iter().map(|(key, record)| records::decode_letter(key, &record.value));
                Ok(letters.collect::<Result<_, _>>()?)
            }
        }
    }
}

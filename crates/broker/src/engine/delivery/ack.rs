//! The fates of deliveries: acks, nacks, extensions, expired leases, and dead letters.

use super::Engine;
use crate::{
    Acknowledged, BrokerError, Refused,
    domain::{
        Input,
        dead_letter::ParkReason,
        handoff::Acked,
        mailbox::{self, EnvelopeOwner, Fate, Lease, LeaseLimits, Letter, Next},
    },
    engine::{batch::PostCommit, transaction::Transaction},
    ids::{AgentId, parse_number},
    metrics::Event,
    records::{CustodyEvent, MessageRecord, encode_letter, letter_key},
    refused,
    time::Timestamp,
};

/// The id of a delivery: the place in the mailbox and the delivery attempt.
pub(super) fn delivery_id(lease: &Lease) -> String {
    format!("{}-{}", lease.sequence, lease.attempt)
}

fn parse_delivery_id(text: &str) -> Option<(u64, u32)> {
    let (sequence, attempt) = text.split_once('-')?;
    Some((parse_number(sequence)?, parse_number(attempt)?.try_into().ok()?))
}

/// The most deliveries of one agent whose leases one tick ends.
const OVERDUE_A_TICK: usize = 64;

impl Engine {
    /// Applies an agent's ack, nack or extension of a delivery.
    pub(in crate::engine) fn acknowledge(
        &mut self,
        agent: &AgentId,
        delivery: &str,
        fate: &Fate,
        now: Timestamp,
    ) -> Result<Acknowledged, Refused> {
        let (letter, lease) = self.leased_letter(agent, delivery).map_err(refused)?;
        let ack_deadline = self.take_effect(agent, letter, &lease, fate, now).map_err(refused)?;
        Ok(Acknowledged { delivery_id: delivery.to_owned(), ack_deadline })
    }

    /// Ends a lease without an answer of the agent. If an earlier command of the batch has settled the delivery, that
    /// command counts.
    pub(super) fn end_lease(&mut self, agent: &AgentId, letter: Letter, lease: Lease, fate: &Fate, now: Timestamp) {
        if self.is_written_in_batch(&letter_key(agent, letter.sequence)) {
            return;
        }
        if let Err(error) = self.take_effect(agent, letter, &lease, fate, now) {
            tracing::error!(%agent, %error, "failed to end a lease");
        }
        self.end_unanswered();
    }

    /// Applies the fate of a delivery. Returns the end of the lease if the lease goes on.
    fn take_effect(
        &mut self,
        agent: &AgentId,
        letter: Letter,
        lease: &Lease,
        fate: &Fate,
        now: Timestamp,
    ) -> Result<Option<Timestamp>, BrokerError> {
        let limits =
            LeaseLimits { ack_wait: self.env.settings.ack_wait, extension_max: self.env.settings.extension_max };
        let jitter = || self.env.ids.random()[0];
        let next = mailbox::after(letter, lease, fate, limits, jitter, now);
        let ended = Event::of_delivery(fate, &next);
        match next {
            Next::Remove(letter) => self.ack(agent, &letter, now)?,
            Next::Requeue(letter) => self.requeue(agent, letter),
            Next::Park { letter, reason, text } => self.park_letter(agent, &letter, reason, &text, now)?,
            Next::Extend(until) => return Ok(Some(self.extend(agent, lease.sequence, until))),
        }
        self.batch.open_post_commit.extend(ended.map(PostCommit::Count));
        Ok(None)
    }

    /// The letter of a delivery, if its lease is still open.
    fn leased_letter(&self, agent: &AgentId, delivery: &str) -> Result<(Letter, Lease), BrokerError> {
        // The id comes from a client and goes into the error, so its length is bounded.
        let unknown = || BrokerError::DeliveryUnknown { delivery: delivery.chars().take(64).collect() };
        let (place, attempt) = parse_delivery_id(delivery).ok_or_else(unknown)?;
        let mailbox = self.delivery.mailboxes.get(agent).ok_or_else(unknown)?;
        let (letter, lease) = mailbox.leased(place, attempt).map_err(|_| unknown())?;
        // An earlier command of this batch may have removed or requeued the letter; memory follows after the commit.
        if self.is_written_in_batch(&letter_key(agent, place)) {
            return Err(unknown());
        }
        Ok((letter.clone(), lease))
    }

    /// Removes an acked letter and tells its entity, in one change.
    fn ack(&mut self, agent: &AgentId, letter: &Letter, now: Timestamp) -> Result<(), BrokerError> {
        let mut transaction = self.transaction();
        self.remove_letter(&mut transaction, agent, letter)?;
        if let Some((entity, role)) = &letter.report_to {
            let decides_within = match role {
                Acked::Request => self.time_of_candidate(&mut transaction, agent, entity)?,
                Acked::Context | Acked::Completion => None,
            };
            let input = Input::Acked { by: agent.clone(), role: *role, decides_within };
            let event = CustodyEvent::Acked(agent, *role, decides_within);
            self.run_unasked(&mut transaction, entity, &input, &event, now)?;
        }
        self.stage(transaction);
        Ok(())
    }

    /// Turns a message into a dead letter and tells its entity, in one change.
    pub(in crate::engine) fn park_letter(
        &mut self,
        agent: &AgentId,
        letter: &Letter,
        reason: ParkReason,
        text: &str,
        now: Timestamp,
    ) -> Result<(), BrokerError> {
        let mut transaction = self.transaction();
        self.remove_letter(&mut transaction, agent, letter)?;
        // The removal is not staged yet, so the envelope can still be read for the dead letter.
        self.park(&mut transaction, agent, letter, (reason, text), now);
        if let Some((entity, role)) = &letter.report_to {
            let input = Input::Undeliverable { to: agent.clone(), role: *role };
            self.run_unasked(&mut transaction, entity, &input, &CustodyEvent::GivenUp(agent, *role), now)?;
        }
        self.stage(transaction);
        Ok(())
    }

    /// Makes the message available for dispatch again, from its `not_before` on.
    fn requeue(&mut self, agent: &AgentId, letter: Letter) {
        let mut transaction = self.transaction();
        // No revision to compare: the callers have checked that no earlier command of the batch writes the letter.
        transaction.put_over(letter_key(agent, letter.sequence), encode_letter(&letter));
        transaction.post_commit.push(PostCommit::LetterRequeued { agent: agent.clone(), letter });
        self.stage(transaction);
    }

    /// Extends a lease in memory. Returns the deadline that now holds.
    fn extend(&mut self, agent: &AgentId, place: u64, deadline: Timestamp) -> Timestamp {
        let mailbox = self.delivery.mailboxes.get_mut(agent).expect("the delivery was found in it");
        // Leases are in memory alone, so an extension writes nothing. The dispatch after the commit sets the timer.
        self.batch.touched.insert(agent.clone());
        mailbox.extend(place, deadline)
    }

    /// Ends the overdue leases of a mailbox. The dispatch after the commit sets the mailbox's timer again.
    pub(in crate::engine) fn look_at_mailbox(&mut self, agent: AgentId, now: Timestamp) {
        // The dispatch that follows the commit sets the timer of the rest.
        for (letter, lease) in self.delivery.overdue(&agent, now).into_iter().take(OVERDUE_A_TICK) {
            self.end_lease(&agent, letter, lease, &Fate::Overdue, now);
        }
        self.batch.touched.insert(agent);
    }

    /// Removes a letter from its mailbox, and its envelope from the store if no other record owns the envelope.
    pub(in crate::engine) fn remove_letter(
        &self,
        transaction: &mut Transaction,
        agent: &AgentId,
        letter: &Letter,
    ) -> Result<(), BrokerError> {
        transaction.delete(letter_key(agent, letter.sequence));
        if self.env.resources.traces.is_some() && !letter.attempts.is_empty() && letter.trace.is_some() {
            let letter = Box::new(letter.clone());
            transaction.post_commit.push(PostCommit::AttemptsEnded { agent: agent.clone(), letter });
        }
        transaction.post_commit.push(PostCommit::LetterRemoved { agent: agent.clone(), place: letter.sequence });
        match letter.envelope_owner {
            EnvelopeOwner::Letter => transaction.delete(MessageRecord::envelope_key(letter.sequence)),
            EnvelopeOwner::Letters => self.one_letter_less(transaction, letter.message_sequence)?,
            // The removal of the task deletes the envelope, and waits for the letter.
            EnvelopeOwner::Log => {}
        }
        Ok(())
    }

    // The last of several letters deletes the envelope and the count.
    pub(in crate::engine) fn one_letter_less(
        &self,
        transaction: &mut Transaction,
        envelope: u64,
    ) -> Result<(), BrokerError> {
        let key = MessageRecord::shared_key(envelope);
        // The close of a negotiation removes many letters of one message at a time.
        if let Some(written) = transaction.written_record(&key) {
            let letters = written.as_ref().map(|count| MessageRecord::decode_shared(&count.value)).transpose()?;
            match (letters, &mut *written) {
                (Some(letters), Some(count)) if letters > 1 => count.value = MessageRecord::encode_shared(letters - 1),
                _ => {
                    *written = None;
                    transaction.delete(MessageRecord::envelope_key(envelope));
                }
            }
            return Ok(());
        }
        let stored = self.read(transaction, &key)?;
        match stored.as_ref().map(|stored| MessageRecord::decode_shared(&stored.value)).transpose()? {
            Some(letters) if letters > 1 => {
                transaction.put(key, MessageRecord::encode_shared(letters - 1), stored.as_ref());
            }
            Some(_) | None => {
                transaction.delete(key);
                transaction.delete(MessageRecord::envelope_key(envelope));
            }
        }
        Ok(())
    }
}

//! What becomes of deliveries: acks, nacks, extensions, leases that run out, and giving up.

use std::time::Duration;

use super::{
    Engine, Fate,
    drafts::{Act, Draft},
};
use crate::{
    broker::{Answer, BrokerError, Outcome, refused},
    domain::{
        handoff::Input,
        mailbox::{ATTEMPTS_MAX, Lease, Letter, backoff},
    },
    ids::AgentId,
    records::{self, CustodyEvent, DeadLetterRecord, ParkReason, letter_key},
    time::Timestamp,
};

/// The longest wait that an agent may ask for before a redelivery.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60 * 60);

/// Names one handing-out: the place in the mailbox and the attempt.
pub(super) fn delivery_id(lease: &Lease) -> String {
    format!("{}-{}", lease.sequence, lease.attempt)
}

fn parse_delivery_id(text: &str) -> Option<(u64, u32)> {
    let (sequence, attempt) = text.split_once('-')?;
    Some((sequence.parse().ok()?, attempt.parse().ok()?))
}

impl Engine {
    pub(super) fn acknowledge(&mut self, agent: &AgentId, delivery: &str, fate: &Fate, now: Timestamp) -> Outcome {
        let letter = self.leased_letter(agent, delivery).map_err(refused)?;
        let mut ack_deadline = None;
        match fate {
            Fate::Acked => self.take_out(agent, &letter, now),
            Fate::Poison { text } => self.park(agent, &letter, ParkReason::Poison, text, now),
            Fate::Failed { retry_after } => self.count_failure(agent, letter, *retry_after, now),
            Fate::Shutdown { retry_after } => {
                self.put_back(agent, letter, *retry_after, now);
                Ok(())
            }
            Fate::Extend { extension } => {
                let extension = extension.unwrap_or(self.settings.ack_wait).min(self.settings.extension_max);
                ack_deadline = Some(self.extend(agent, letter.sequence, now.plus(extension)));
                Ok(())
            }
        }
        .map_err(refused)?;
        Ok(Answer::Acknowledged { delivery_id: delivery.to_owned(), ack_deadline })
    }

    fn leased_letter(&self, agent: &AgentId, delivery: &str) -> Result<Letter, BrokerError> {
        let unknown = || BrokerError::DeliveryUnknown { delivery: delivery.chars().take(64).collect() };
        let (place, attempt) = parse_delivery_id(delivery).ok_or_else(unknown)?;
        let mailbox = self.mailboxes.get(agent).ok_or_else(unknown)?;
        let (letter, _) = mailbox.leased(place, attempt).map_err(|_| unknown())?;
        // An earlier command of this group may have taken it out; memory follows after the commit.
        if self.is_deleted_in_group(&letter_key(agent, place)) {
            return Err(unknown());
        }
        Ok(letter.clone())
    }

    fn take_out(&mut self, agent: &AgentId, letter: &Letter, now: Timestamp) -> Result<(), BrokerError> {
        let mut draft = self.draft();
        self.remove_letter(&mut draft, agent, letter.sequence);
        if let Some((handoff, mail)) = letter.handoff {
            let input = Input::Acked { by: agent.clone(), mail };
            self.step_if_known(&mut draft, handoff, &input, &CustodyEvent::Acked(agent, mail), now)?;
        }
        self.seal(draft);
        Ok(())
    }

    fn remove_letter(&self, draft: &mut Draft, agent: &AgentId, place: u64) {
        draft.delete(letter_key(agent, place));
        draft.acts.push(Act::LetterRemoved { agent: agent.clone(), place });
    }

    /// Gives a message up: it becomes a dead letter, and its handoff hears of it, in one commit.
    fn park(
        &mut self,
        agent: &AgentId,
        letter: &Letter,
        reason: ParkReason,
        text: &str,
        now: Timestamp,
    ) -> Result<(), BrokerError> {
        let mut draft = self.draft();
        self.remove_letter(&mut draft, agent, letter.sequence);
        let parked = DeadLetterRecord {
            agent: agent.clone(),
            letter: letter.clone(),
            reason,
            parked_at: now,
            reason_text: text.to_owned(),
        };
        draft.put_new(parked.key(), parked.encode());
        if let Some((handoff, mail)) = letter.handoff {
            let input = Input::Undeliverable { to: agent.clone(), mail };
            self.step_if_known(&mut draft, handoff, &input, &CustodyEvent::GivenUp(agent, mail), now)?;
        }
        tracing::warn!(%agent, message = %letter.message, ?reason, "a message became a dead letter");
        self.seal(draft);
        Ok(())
    }

    fn count_failure(
        &mut self,
        agent: &AgentId,
        mut letter: Letter,
        retry_after: Option<Duration>,
        now: Timestamp,
    ) -> Result<(), BrokerError> {
        letter.failures += 1;
        if letter.failures >= ATTEMPTS_MAX {
            return self.park(agent, &letter, ParkReason::DeliveryAttemptsExhausted, "", now);
        }
        let wait = retry_after.map(|wait| wait.min(RETRY_AFTER_MAX));
        letter.not_before = now.plus(wait.unwrap_or_else(|| backoff(letter.failures, self.ids.random()[0])));
        let mut draft = self.draft();
        draft.put_new(letter_key(agent, letter.sequence), records::encode_letter(&letter));
        draft.acts.push(Act::LetterPutBack { agent: agent.clone(), letter });
        self.seal(draft);
        Ok(())
    }

    /// Not a failure, and so nothing to store: after a restart the message is there all the same.
    fn put_back(&mut self, agent: &AgentId, mut letter: Letter, retry_after: Option<Duration>, now: Timestamp) {
        letter.not_before = now.plus(retry_after.unwrap_or_default().min(RETRY_AFTER_MAX));
        let mut draft = self.draft();
        draft.acts.push(Act::LetterPutBack { agent: agent.clone(), letter });
        self.seal(draft);
    }

    fn extend(&mut self, agent: &AgentId, place: u64, deadline: Timestamp) -> Timestamp {
        let mailbox = self.mailboxes.get_mut(agent).expect("the delivery was found in it");
        self.group.touched.insert(agent.clone());
        mailbox.extend(place, deadline)
    }

    pub(super) fn end_overdue_leases(&mut self, agent: &AgentId, now: Timestamp) {
        let Some(mailbox) = self.mailboxes.get(agent) else { return };
        let overdue: Vec<Letter> =
            mailbox.overdue(now).into_iter().filter_map(|place| mailbox.letter(place).cloned()).collect();
        for letter in overdue {
            if self.is_deleted_in_group(&letter_key(agent, letter.sequence)) {
                continue;
            }
            if let Err(error) = self.count_failure(agent, letter, None, now) {
                tracing::error!(%agent, %error, "failed to end an overdue lease");
            }
            self.end_unanswered();
        }
    }

    pub(super) fn park_expired(&mut self, agent: &AgentId, place: u64, now: Timestamp) {
        let Some(letter) = self.mailboxes.get(agent).and_then(|mailbox| mailbox.letter(place)).cloned() else {
            return;
        };
        if let Err(error) = self.park(agent, &letter, ParkReason::Expired, "", now) {
            tracing::error!(%agent, %error, "failed to park an expired message");
        }
        self.end_unanswered();
    }
}

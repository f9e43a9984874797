//! Mail whose time is over: it becomes a dead letter, whether its agent is there or not.

use std::time::Duration;

use super::Engine;
use crate::{
    broker::BrokerError,
    domain::mailbox::Letter,
    ids::AgentId,
    records::{self, MailTimer, ParkReason},
    store::{Order, Table},
    time::Timestamp,
};

/// Messages that are parked in one tick.
const EXPIRED_A_TICK: usize = 256;
/// After a lease is over, until its end is dealt with.
const LEASE_GRACE: Duration = Duration::from_millis(1);
/// Until what could not be read is tried again.
const TRY_AGAIN: Duration = Duration::from_secs(60);

impl Engine {
    /// Parks what has expired. How many messages wait with which time is only in the store; in memory is just the first
    /// moment at which looking there can be worth it.
    pub(super) fn park_expired(&mut self, now: Timestamp) {
        for (agent, place) in std::mem::take(&mut self.expired_at_hand_out) {
            if let Some(letter) = self.mailboxes.get(&agent).and_then(|mailbox| mailbox.letter(place)).cloned() {
                self.park_as_expired(&agent, &letter, now);
            }
        }
        if self.next_mail_expiry.is_none_or(|at| at > now) {
            return;
        }
        let timers = match self.mail_timers(now) {
            Ok(timers) => timers,
            Err(error) => return tracing::error!(%error, "failed to read the timers of mail"),
        };
        let more = timers.len() == EXPIRED_A_TICK && timers.last().is_some_and(|last| last.at <= now);
        let (over, later): (Vec<_>, Vec<_>) = timers.into_iter().partition(|timer| timer.at <= now);
        let look_again: Vec<Timestamp> = over.iter().filter_map(|timer| self.expire(timer, now)).collect();
        let is_some_parked = look_again.len() < over.len();
        let next = look_again.into_iter().chain(later.first().map(|timer| timer.at)).min();
        self.next_mail_expiry = if more && is_some_parked { Some(now) } else { next };
    }

    /// The timers that are over, and the first that is not.
    fn mail_timers(&self, now: Timestamp) -> Result<Vec<MailTimer>, BrokerError> {
        let stored = self.store.scan(Table::Timers, records::mail_timers(), Order::Ascending, EXPIRED_A_TICK)?;
        let mut timers = Vec::with_capacity(stored.len());
        for (key, _) in &stored {
            let timer = records::parse_mail_timer(key)?;
            let is_over = timer.at <= now;
            timers.push(timer);
            if !is_over {
                break;
            }
        }
        Ok(timers)
    }

    /// Parks one message; or says when to look at it again.
    fn expire(&mut self, timer: &MailTimer, now: Timestamp) -> Option<Timestamp> {
        let mailbox = self.mailboxes.get(&timer.agent);
        if let Some(lease) = mailbox.and_then(|mailbox| mailbox.lease(timer.place)) {
            // It is handed out: its ack may come yet.
            return Some(lease.deadline.max(now.plus(LEASE_GRACE)));
        }
        let key = records::letter_key(&timer.agent, timer.place);
        if self.is_written_in_group(&key) {
            return Some(now);
        }
        let letter = match mailbox.and_then(|mailbox| mailbox.letter(timer.place)) {
            Some(letter) => Ok(Some(letter.clone())),
            None => self.stored_letter(&key),
        };
        match letter {
            Ok(Some(letter)) => self.park_as_expired(&timer.agent, &letter, now),
            Ok(None) => {
                tracing::error!(agent = %timer.agent, place = timer.place, "a timer of mail that is not there");
                let mut draft = self.draft();
                draft.delete(records::mail_timer_key(timer.at, &timer.agent, timer.place));
                self.seal(draft);
                self.end_unanswered();
            }
            Err(error) => {
                tracing::error!(agent = %timer.agent, %error, "failed to read mail that has expired");
                return Some(now.plus(TRY_AGAIN));
            }
        }
        None
    }

    fn stored_letter(&self, key: &crate::store::Key) -> Result<Option<Letter>, BrokerError> {
        let Some(record) = self.store.get(key)? else { return Ok(None) };
        Ok(Some(records::decode_letter(&key.key, &record.value)?))
    }

    fn park_as_expired(&mut self, agent: &AgentId, letter: &Letter, now: Timestamp) {
        let text = format!("its time was over at {}", letter.expires_at);
        if let Err(error) = self.park_letter(agent, letter, ParkReason::Expired, &text, now) {
            tracing::error!(%agent, %error, "failed to park an expired message");
        }
        self.end_unanswered();
    }
}

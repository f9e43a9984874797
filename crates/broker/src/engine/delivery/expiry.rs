//! Expiry of mail: a letter past its expiry becomes a dead letter, whether its agent is present or not.
//!
//! Each mailbox has one timer instead of one for each letter: most letters are acked long before their expiry, and a
//! timer for each would cost two useless writes. When the timer fires, the engine scans the mailbox and sets a timer
//! for the next expiry. Timers and expiries are running times, so that mail does not live longer where the clock is set
//! back.

use std::{ops::Bound, time::Duration};

use super::Engine;
use crate::{
    BrokerError,
    domain::{
        dead_letter::ParkReason,
        mailbox::{Expiry, Letter, soon},
    },
    engine::{LOADED_AT_ONCE, TRY_AGAIN, batch::PostCommit, timers::Timer},
    ids::AgentId,
    records,
    store::{Order, Table},
    time::Timestamp,
};

/// The most messages that one tick parks.
const EXPIRED_A_TICK: usize = 64;
/// The most mailboxes that one tick scans.
const MAILBOXES_A_TICK: usize = 64;
/// The minimum delay per letter before a mailbox is scanned again. It bounds the part of the engine's time that scans
/// take, for any spread of the expiries.
const REST_A_LETTER: Duration = Duration::from_micros(10);

/// The scan of a mailbox, a part each tick.
#[derive(Debug)]
pub(super) struct Expiring {
    agent: AgentId,
    /// The timer of the mailbox that has fired.
    timer: Timestamp,
    /// The scan has passed all letters before this place: `looked_at` letters, of which the next expires at `first`.
    place: u64,
    looked_at: u32,
    first: Option<Timestamp>,
}

impl Engine {
    /// Parks letters that expired before their dispatch, as many as one tick allows.
    pub(in crate::engine) fn park_expired_at_dispatch(&mut self, now: Timestamp) {
        let expired = &mut self.delivery.expired_at_dispatch;
        let rest = expired.split_off(expired.len().min(EXPIRED_A_TICK));
        if rest.is_empty() {
            self.timers.clear(Timer::ExpiredAtDispatch);
        }
        for (agent, place) in std::mem::replace(expired, rest) {
            if let Some(letter) = self.delivery.letter(&agent, place).cloned() {
                self.park_as_expired(&agent, &letter, now);
            }
        }
    }

    /// Parks expired mail. Only the store has the expiries of all letters; memory has the earliest time at which a scan
    /// can find an expired one.
    pub(in crate::engine) fn park_expired(&mut self, now: Timestamp) {
        match self.park_some(now) {
            Ok(Some(next)) => self.timers.set(Timer::MailExpiry, next),
            Ok(None) => self.timers.clear(Timer::MailExpiry),
            Err(error) => {
                tracing::error!(%error, "failed to read mail that may have expired");
                self.timers.set_after(Timer::MailExpiry, TRY_AGAIN);
            }
        }
    }

    /// Scans the mailboxes whose timers have fired, as many as one tick allows. Returns the running time of the next
    /// scan.
    fn park_some(&mut self, now: Timestamp) -> Result<Option<Timestamp>, BrokerError> {
        let mut room = EXPIRED_A_TICK;
        if let Some(expiring) = self.delivery.expiring.take() {
            self.look_for_expired(expiring, &mut room, now)?;
            return Ok(Some(self.timers.clock.running())); // the timer of the scanned mailbox is still in the store
        }
        let stored = self.env.store.scan(Table::Timers, records::mail_timers(), Order::Ascending, MAILBOXES_A_TICK)?;
        for (key, _) in &stored {
            let (timer, agent) = records::parse_mail_timer(key)?;
            // The keys sort by time, so no later timer has fired either.
            if timer > self.timers.clock.running() {
                return Ok(Some(timer));
            }
            self.look_for_expired(Expiring { agent, timer, place: 0, looked_at: 0, first: None }, &mut room, now)?;
            // The scan has used up this tick's bounds, and continues in the same mailbox.
            if self.delivery.expiring.is_some() {
                break;
            }
        }
        Ok((!stored.is_empty()).then_some(self.timers.clock.running()))
    }

    /// Scans a part of a mailbox and parks its expired letters.
    fn look_for_expired(
        &mut self,
        mut expiring: Expiring,
        room: &mut usize,
        now: Timestamp,
    ) -> Result<(), BrokerError> {
        let agent = expiring.agent.clone();
        let range =
            (Bound::Included(records::letter_key(&agent, expiring.place).key), records::mailbox_range(&agent).1);
        let stored = self.env.store.scan(Table::Mailbox, range, Order::Ascending, LOADED_AT_ONCE)?;
        let is_last = stored.len() < LOADED_AT_ONCE;
        for (key, record) in stored {
            expiring.place = records::letter_place(&key)?;
            // The place is that of this letter, so the next tick begins with it.
            if *room == 0 {
                self.delivery.expiring = Some(expiring);
                return Ok(());
            }
            let letter = records::decode_letter(&key, &record.value)?;
            let look_again = self.expire(&agent, &letter, now);
            *room -= usize::from(look_again.is_none());
            expiring.first = expiring.first.into_iter().chain(look_again).min();
            expiring.looked_at += 1;
            expiring.place += 1;
        }
        if is_last {
            self.set_mail_timer(&expiring);
        } else {
            self.delivery.expiring = Some(expiring);
        }
        Ok(())
    }

    /// Parks a letter if it has expired. Otherwise returns the running time of the next check.
    fn expire(&mut self, agent: &AgentId, letter: &Letter, now: Timestamp) -> Option<Timestamp> {
        let running = self.timers.clock.running();
        let lease = self.delivery.lease(agent, letter.sequence);
        let leased_until = lease.map(|lease| lease.deadline.plus(self.timers.clock.set_back));
        match letter.expiry(leased_until, running) {
            Expiry::LookAgain(at) => Some(at),
            // The fate that the batch in hand gives to the letter is known after the commit.
            Expiry::Over if self.is_written_in_batch(&records::letter_key(agent, letter.sequence)) => {
                Some(soon(running))
            }
            Expiry::Over => {
                self.park_as_expired(agent, letter, now);
                None
            }
        }
    }

    /// Replaces the fired timer by one for the next expiry among the scanned letters and the letters that the batch in
    /// hand adds.
    fn set_mail_timer(&mut self, expiring: &Expiring) {
        let Expiring { agent, timer, looked_at, first, .. } = expiring;
        let rested = self.timers.clock.running().plus(REST_A_LETTER * *looked_at);
        let next = first.iter().copied().chain(self.first_expiry_of_batch(agent)).min().map(|at| at.max(rested));
        let mut transaction = self.transaction();
        transaction.delete(records::mail_timer_key(*timer, agent));
        if let Some(at) = next {
            transaction.put_over(records::mail_timer_key(at, agent), bytes::Bytes::new());
        }
        transaction.post_commit.push(PostCommit::MailTimer { agent: agent.clone(), at: next });
        self.stage(transaction);
        self.end_unanswered();
    }

    fn park_as_expired(&mut self, agent: &AgentId, letter: &Letter, now: Timestamp) {
        let text = format!("its time was over at {}", self.timers.clock.shows(letter.expires_at));
        if let Err(error) = self.park_letter(agent, letter, ParkReason::Expired, &text, now) {
            tracing::error!(%agent, %error, "failed to park an expired message");
        }
        self.end_unanswered();
    }
}

//! The number of letters that wait for an agent, and its limit.

use std::ops::Bound;

use super::Engine;
use crate::{
    BrokerError,
    engine::{LIMIT_RETRY, LOADED_AT_ONCE},
    ids::AgentId,
    records,
    store::{Order, Table},
};

/// The number of letters that wait for an agent. Each check counts a part of the mailbox, so that no message waits for
/// the count of a large one.
#[derive(Debug)]
pub(super) struct Depth {
    letters: u64,
    /// The place up to which letters are counted. `None`: the count is complete.
    counted_to: Option<u64>,
}

impl Default for Depth {
    fn default() -> Self {
        Self { letters: 0, counted_to: Some(0) }
    }
}

impl Depth {
    /// Counts a new letter. An incomplete count reaches one that lies behind it later.
    pub(super) fn one_more(&mut self, place: u64) {
        self.letters += u64::from(self.counted_to.is_none_or(|end| place < end));
    }

    pub(super) fn one_less(&mut self, place: u64) {
        let was_counted = self.counted_to.is_none_or(|end| place < end);
        self.letters = self.letters.saturating_sub(u64::from(was_counted));
    }
}

impl Engine {
    /// Fails if the agent's mailbox is full. Does not count letters of the batch in hand.
    pub(in crate::engine) fn check_mailbox(&mut self, agent: &AgentId) -> Result<(), BrokerError> {
        let most = u64::from(self.env.settings.limits.mailbox_max);
        if most == 0 {
            return Ok(());
        }
        let depth = self.delivery.depths.entry(agent.clone()).or_default();
        if let Some(from) = depth.counted_to {
            let range = (Bound::Included(records::letter_key(agent, from).key), records::mailbox_range(agent).1);
            let stored = self.env.store.scan(Table::Mailbox, range, Order::Ascending, LOADED_AT_ONCE)?;
            depth.letters += stored.len() as u64;
            // A full scan means that more letters may follow.
            depth.counted_to = match stored.last().filter(|_| stored.len() == LOADED_AT_ONCE) {
                Some((last, _)) => Some(records::letter_place(last)? + 1),
                None => None,
            };
        }
        // A count that is not complete yet is too low, and the limit takes effect some messages later.
        if depth.letters < most {
            return Ok(());
        }
        Err(BrokerError::LimitExceeded { what: "the receiver's mailbox is full", retry_after: LIMIT_RETRY })
    }
}

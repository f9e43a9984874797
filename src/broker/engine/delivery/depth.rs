//! How much mail waits for an agent, and how much may.

use std::ops::Bound;

use super::Engine;
use crate::{
    broker::{
        BrokerError,
        engine::{LIMIT_RETRY, LOADED_AT_ONCE},
    },
    ids::AgentId,
    records,
    store::{Order, Table},
};

/// How much mail waits for an agent. It is counted a part a message, so that no message has to wait for a large mailbox.
#[derive(Debug)]
pub(super) struct Depth {
    letters: u64,
    /// The place up to which they are counted; `None`: all are.
    counted_to: Option<u64>,
}

impl Default for Depth {
    fn default() -> Self {
        Self { letters: 0, counted_to: Some(0) }
    }
}

impl Depth {
    /// A new letter is behind all others.
    pub(super) fn one_more(&mut self) {
        self.letters += u64::from(self.counted_to.is_none());
    }

    pub(super) fn one_less(&mut self, place: u64) {
        let was_counted = self.counted_to.is_none_or(|end| place < end);
        self.letters = self.letters.saturating_sub(u64::from(was_counted));
    }
}

impl Engine {
    /// Whether there is room in the agent's mailbox. What is in the same batch is not counted yet.
    pub(in crate::broker::engine) fn check_mailbox(&mut self, agent: &AgentId) -> Result<(), BrokerError> {
        let most = u64::from(self.env.settings.limits.mailbox_max);
        if most == 0 {
            return Ok(());
        }
        let depth = self.delivery.depths.entry(agent.clone()).or_default();
        if let Some(from) = depth.counted_to {
            let range = (Bound::Included(records::letter_key(agent, from).key), records::mailbox_range(agent).1);
            let stored = self.env.store.scan(Table::Mailbox, range, Order::Ascending, LOADED_AT_ONCE)?;
            depth.letters += stored.len() as u64;
            depth.counted_to = match stored.last().filter(|_| stored.len() == LOADED_AT_ONCE) {
                Some((last, _)) => Some(records::letter_place(last)? + 1),
                None => None,
            };
        }
        if depth.letters < most {
            return Ok(());
        }
        Err(BrokerError::LimitExceeded { what: "the receiver's mailbox is full", retry_after: LIMIT_RETRY })
    }
}

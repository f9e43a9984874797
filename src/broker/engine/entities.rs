//! Entities as they are now, decoded: each is read again soon, by the next message about it. And the outbox, in which wait
//! the words that entities tell each other later.
//!
//! The cache is write-through: everything in it is stored, or in the batch in hand. A change that was computed from it is
//! applied only if the store has the very revisions it was computed from; on a conflict the cache is cleared.

use std::{ops::Bound, sync::Arc};

use quick_cache::unsync::Cache;

use super::{
    Engine, LIMIT_RETRY, TRY_AGAIN,
    batch::PostCommit,
    run::{Origin, RunError},
    timers::Timer,
    transaction::Transaction,
};
use crate::{
    broker::BrokerError,
    domain::{EntityId, Input, Told},
    ids::{AgentId, IdMap},
    records::{EntityRecord, OutboxRecord},
    store::{Key, Order, Store, Table},
    time::Timestamp,
};

/// Records in the cache. A task takes about a KiB, a handoff a few.
const RECORDS_MAX: usize = 4096;
/// Words that a tick tells from the outbox.
const TOLD_A_TICK: usize = 256;

/// A record with its revision.
#[derive(Debug, Clone)]
pub(super) struct Stored {
    pub(super) record: Arc<EntityRecord>,
    pub(super) revision: u64,
}

/// The entities that were used last, and where the outbox begins.
pub(super) struct Entities {
    cache: Cache<Key, Stored>,
    /// No row of the outbox lies before this sequence. `None`: the outbox is empty.
    outbox_from: Option<u64>,
    /// How many handoffs each agent has asked for that are open.
    open_of: IdMap<AgentId, u32>,
}

impl Entities {
    /// Nothing is cached yet. Each agent has asked for so many handoffs that are open.
    pub(super) fn over(store: &dyn Store, open_of: IdMap<AgentId, u32>) -> Result<Self, BrokerError> {
        let first = store.scan(Table::Outbox, (Bound::Unbounded, Bound::Unbounded), Order::Ascending, 1)?;
        let outbox_from = first.first().map(|(key, _)| OutboxRecord::sequence(key)).transpose()?;
        Ok(Self { cache: Cache::new(RECORDS_MAX), outbox_from, open_of })
    }

    /// Forgets every record.
    pub(super) fn clear(&mut self) {
        self.cache = Cache::new(RECORDS_MAX);
    }

    pub(super) fn get(&self, key: &Key) -> Option<&Stored> {
        self.cache.get(key)
    }

    pub(super) fn insert(&mut self, key: Key, stored: Stored) {
        self.cache.insert(key, stored);
    }

    /// The record was removed.
    pub(super) fn forget(&mut self, key: &Key) {
        self.cache.remove(key);
    }

    /// How many handoffs are open.
    pub(super) fn open_handoffs(&self) -> usize {
        self.open_of.values().map(|open| *open as usize).sum()
    }

    /// Whether the agent has fewer handoffs open than so many; 0: there is no limit.
    pub(super) fn has_room_for_handoff(&self, agent: &AgentId, most: u32) -> bool {
        most == 0 || self.open_of.get(agent).is_none_or(|open| *open < most)
    }

    /// The agent has asked for one more handoff.
    pub(super) fn one_more_open(&mut self, agent: AgentId) {
        *self.open_of.entry(agent).or_default() += 1;
    }

    /// A handoff that the agent has asked for has ended.
    pub(super) fn one_less_open(&mut self, agent: &AgentId) {
        if let Some(open) = self.open_of.get_mut(agent) {
            *open -= 1;
            if *open == 0 {
                self.open_of.remove(agent);
            }
        }
    }

    /// Whether words wait in the outbox.
    pub(super) fn has_outbox(&self) -> bool {
        self.outbox_from.is_some()
    }

    /// A row of the outbox is durable.
    pub(super) fn outbox_written(&mut self, sequence: u64) {
        self.outbox_from = Some(self.outbox_from.map_or(sequence, |from| from.min(sequence)));
    }
}

impl Engine {
    /// Whether the agent may ask for one more handoff. What is in the same batch is not counted yet.
    pub(super) fn check_open_handoffs(&self, agent: &AgentId) -> Result<(), BrokerError> {
        if self.entities.has_room_for_handoff(agent, self.env.settings.limits.open_handoffs_max) {
            return Ok(());
        }
        Err(BrokerError::LimitExceeded { what: "the agent has too many handoffs open", retry_after: LIMIT_RETRY })
    }

    /// Tells what waits in the outbox, a part a tick, in the order in which it was written.
    pub(super) fn tell_outbox(&mut self, now: Timestamp) {
        let Some(from) = self.entities.outbox_from else { return self.timers.clear(Timer::Outbox) };
        match self.tell_some(from, now) {
            Ok(next) => {
                self.entities.outbox_from = next;
                if next.is_none() {
                    self.timers.clear(Timer::Outbox);
                }
            }
            Err(error) => {
                tracing::error!(%error, "failed to tell what is in the outbox");
                self.timers.set_after(Timer::Outbox, TRY_AGAIN);
            }
        }
    }

    /// Returns where the outbox begins after it.
    fn tell_some(&mut self, from: u64, now: Timestamp) -> Result<Option<u64>, BrokerError> {
        let range = (Bound::Included(OutboxRecord::key(from).key), Bound::Unbounded);
        let stored = self.env.store.scan(Table::Outbox, range, Order::Ascending, TOLD_A_TICK)?;
        let mut next = from;
        for (key, row) in &stored {
            let sequence = OutboxRecord::sequence(key)?;
            let OutboxRecord { to, told } = OutboxRecord::decode(&row.value)?;
            self.tell_later(sequence, &to, told, now)?;
            next = sequence + 1;
        }
        Ok((stored.len() == TOLD_A_TICK).then_some(next))
    }

    /// Tells one entity, and removes the row in the same commit.
    fn tell_later(&mut self, sequence: u64, to: &EntityId, told: Told, now: Timestamp) -> Result<(), BrokerError> {
        let mut transaction = Transaction::default();
        match self.run(&mut transaction, to, &Input::Told(told), None, Origin::Broker, now) {
            Ok(_) => {}
            Err(RunError::Broker(error)) => return Err(error),
            Err(RunError::Rejected(rejection)) => {
                // It would be rejected again: the row goes, and the log keeps the cause.
                tracing::error!(%to, %rejection, "an entity did not take what it was told");
                transaction = Transaction::default();
            }
        }
        transaction.delete(OutboxRecord::key(sequence));
        self.stage(transaction);
        self.end_unanswered();
        Ok(())
    }

    /// Puts a word into the outbox.
    pub(super) fn put_outbox(&mut self, transaction: &mut Transaction, to: EntityId, told: Told) {
        self.batch.writes_outbox = true;
        let sequence = self.new_sequence();
        transaction.put_new(OutboxRecord::key(sequence), OutboxRecord { to, told }.encode());
        transaction.post_commit.push(PostCommit::OutboxWritten(sequence));
    }
}

//! The cache of decoded entities, because the next message about an entity reads it again soon; and the outbox, which
//! holds the inputs that entities send each other in later commits.
//!
//! The cache is write-through: each cached record is stored or in the batch in hand. The store applies a change only if
//! the revisions that it was computed from still hold. A conflict clears the cache.

use std::{ops::Bound, sync::Arc};

use foldhash::quality::RandomState;
use quick_cache::{
    OptionsBuilder, UnitWeighter,
    unsync::{Cache, DefaultLifecycle},
};

use super::{Engine, LIMIT_RETRY, TRY_AGAIN, batch::PostCommit, timers::Timer, transaction::Transaction};
use crate::{
    BrokerError,
    domain::{EntityId, Signal},
    ids::{AgentId, IdMap},
    records::{EntityRecord, OutboxRecord},
    store::{Key, Order, Store, Table},
    time::Timestamp,
};

/// The most records in the cache. A task takes about 1 KiB, a handoff a few KiB.
const RECORDS_MAX: usize = 4096;
/// The part of the cache for records that have been read again. Most records are of tasks whose handoff ends soon, so the
/// other part has room for all handoffs that began in the last half second under full load.
const HOT: f64 = 0.5;
/// The most outbox rows that one tick reads.
const TOLD_A_TICK: usize = 256;
/// The most work of the outbox in one tick, in the unit of `CommitBatch::work`, unless the first row alone has more.
const TOLD_WORK_A_TICK: usize = 256;

/// A record with its revision.
#[derive(Debug, Clone)]
pub(super) struct Stored {
    pub(super) record: Arc<EntityRecord>,
    pub(super) revision: u64,
}

/// The entity cache, the start of the outbox, and the open handoffs of each agent.
pub(super) struct Entities {
    cache: RecordCache,
    /// The containers of entities, by [`EntityRecord::container_key`].
    containers: Cache<Key, EntityId, UnitWeighter, RandomState>,
    /// No row of the outbox has a lower sequence. `None`: the outbox is empty.
    outbox_from: Option<u64>,
    /// The number of open entities of each kind that each agent has requested. No entry is 0.
    open_of: OpenCounts,
}

/// The number of open entities of each agent.
pub(super) type OpenCounts = IdMap<(Counted, AgentId), u32>;

/// A kind of entities of which an agent may have a limited number open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Counted {
    Handoff,
    Negotiation,
    Plan,
}

impl Counted {
    /// The kind of an entity. `None`: entities of its kind are not counted.
    pub(super) fn of(entity: &EntityId) -> Option<Self> {
        match entity {
            EntityId::Handoff(_) => Some(Self::Handoff),
            EntityId::Negotiation(_) => Some(Self::Negotiation),
            EntityId::Plan(_) => Some(Self::Plan),
            _ => None,
        }
    }
}

/// Hashed as the store's own maps are: quick, and seeded at random, since agents choose ids.
type RecordCache = Cache<Key, Stored, UnitWeighter, RandomState>;

fn new_cache<T>() -> Cache<Key, T, UnitWeighter, RandomState> {
    let mut options = OptionsBuilder::new();
    options.estimated_items_capacity(RECORDS_MAX).weight_capacity(RECORDS_MAX as u64).hot_allocation(HOT);
    let options = options.build().expect("both capacities are set");
    Cache::with_options(options, UnitWeighter, RandomState::default(), DefaultLifecycle::default())
}

impl Entities {
    /// Starts with an empty cache and these numbers of open entities.
    pub(super) fn over(store: &dyn Store, open_of: OpenCounts) -> Result<Self, BrokerError> {
        let first = store.scan(Table::Outbox, (Bound::Unbounded, Bound::Unbounded), Order::Ascending, 1)?;
        let outbox_from = first.first().map(|(key, _)| OutboxRecord::sequence(key)).transpose()?;
        Ok(Self { cache: new_cache(), containers: new_cache(), outbox_from, open_of })
    }

    /// Empties the cache of records and that of containers.
    pub(super) fn clear(&mut self) {
        (self.cache, self.containers) = (new_cache(), new_cache());
    }

    pub(super) fn get(&self, key: &Key) -> Option<&Stored> {
        self.cache.get(key)
    }

    pub(super) fn insert(&mut self, key: Key, stored: Stored) {
        self.cache.insert(key, stored);
    }

    /// The container of the entity with this [`EntityRecord::container_key`], if it is cached.
    pub(super) fn container(&self, key: &Key) -> Option<&EntityId> {
        self.containers.get(key)
    }

    pub(super) fn insert_container(&mut self, key: Key, container: EntityId) {
        self.containers.insert(key, container);
    }

    /// Drops a removed record from the cache.
    pub(super) fn forget(&mut self, key: &Key) {
        self.cache.remove(key);
    }

    /// The number of open handoffs of all agents.
    pub(super) fn open_handoffs(&self) -> usize {
        let handoffs = self.open_of.iter().filter(|((kind, _), _)| *kind == Counted::Handoff);
        handoffs.map(|(_, open)| *open as usize).sum()
    }

    /// The number of open entities of this kind that count for the agent.
    #[cfg(debug_assertions)]
    pub(super) fn open_of(&self, kind: Counted, agent: &AgentId) -> u32 {
        self.open_of.get(&(kind, agent.clone())).copied().unwrap_or_default()
    }

    /// Whether the agent has fewer than `most` entities of this kind open. 0: no limit.
    pub(super) fn has_room_for(&self, kind: Counted, agent: &AgentId, most: u32) -> bool {
        most == 0 || self.open_of.get(&(kind, agent.clone())).is_none_or(|open| *open < most)
    }

    /// Counts one more open entity of the agent.
    pub(super) fn one_more_open(&mut self, kind: Counted, agent: AgentId) {
        *self.open_of.entry((kind, agent)).or_default() += 1;
    }

    /// Counts one open entity of the agent less.
    pub(super) fn one_less_open(&mut self, kind: Counted, agent: AgentId) {
        let key = (kind, agent);
        if let Some(open) = self.open_of.get_mut(&key) {
            *open -= 1;
            // An entry for each agent that ever asked would let the map grow without bound.
            if *open == 0 {
                self.open_of.remove(&key);
            }
        }
    }

    /// Whether the outbox has rows.
    pub(super) fn has_outbox(&self) -> bool {
        self.outbox_from.is_some()
    }

    /// Notes a durable row of the outbox.
    pub(super) fn outbox_written(&mut self, sequence: u64) {
        self.outbox_from = Some(self.outbox_from.map_or(sequence, |from| from.min(sequence)));
    }
}

impl Engine {
    /// Fails if the agent has as many handoffs open as the limit allows. Does not count those of the batch in hand.
    pub(super) fn check_open_handoffs(&self, agent: &AgentId) -> Result<(), BrokerError> {
        if self.entities.has_room_for(Counted::Handoff, agent, self.env.settings.limits.open_handoffs_max) {
            return Ok(());
        }
        Err(BrokerError::LimitExceeded { what: "the agent has too many open handoffs", retry_after: LIMIT_RETRY })
    }

    /// The same for negotiations.
    pub(super) fn check_open_negotiations(&self, agent: &AgentId) -> Result<(), BrokerError> {
        if self.entities.has_room_for(Counted::Negotiation, agent, self.env.settings.limits.open_negotiations_max) {
            return Ok(());
        }
        Err(BrokerError::LimitExceeded { what: "the agent has too many open negotiations", retry_after: LIMIT_RETRY })
    }

    /// The same for running plans.
    pub(super) fn check_running_plans(&self, agent: &AgentId) -> Result<(), BrokerError> {
        if self.entities.has_room_for(Counted::Plan, agent, self.env.settings.limits.running_plans_max) {
            return Ok(());
        }
        Err(BrokerError::LimitExceeded { what: "the agent has too many running plans", retry_after: LIMIT_RETRY })
    }

    /// Sends the outbox rows to their entities in the order of their sequence, a part each tick.
    pub(super) fn send_outbox(&mut self, now: Timestamp) {
        let Some(from) = self.entities.outbox_from else { return self.timers.clear(Timer::Outbox) };
        match self.send_some(from, now) {
            Ok(next) => {
                self.entities.outbox_from = next;
                if next.is_none() {
                    self.timers.clear(Timer::Outbox);
                }
            }
            Err(error) => {
                // The start of the outbox stays, so no later row overtakes the failed one.
                tracing::error!(%error, "failed to deliver the inputs in the outbox");
                self.timers.set_after(Timer::Outbox, TRY_AGAIN);
            }
        }
    }

    /// Handles rows from this sequence on, within [`TOLD_A_TICK`] and [`TOLD_WORK_A_TICK`]. Returns the new start of the
    /// outbox.
    fn send_some(&mut self, from: u64, now: Timestamp) -> Result<Option<u64>, BrokerError> {
        let range = (Bound::Included(OutboxRecord::key(from).key), Bound::Unbounded);
        let stored = self.env.store.scan(Table::Outbox, range, Order::Ascending, TOLD_A_TICK)?;
        let mut next = from;
        let most = self.batch.work + TOLD_WORK_A_TICK;
        for (key, row) in &stored {
            if self.batch.work >= most {
                return Ok(Some(next));
            }
            let sequence = OutboxRecord::sequence(key)?;
            let OutboxRecord { to, signal } = OutboxRecord::decode(&row.value)?;
            self.send_later(sequence, &to, signal, now)?;
            next = sequence + 1;
        }
        // Rows that the steps of this tick have added set the start again, after the commit.
        Ok((stored.len() == TOLD_A_TICK).then_some(next))
    }

    /// Runs the step of one outbox row, and removes the row in the same commit.
    fn send_later(&mut self, sequence: u64, to: &EntityId, signal: Signal, now: Timestamp) -> Result<(), BrokerError> {
        let mut transaction = self.transaction();
        if let Err(error) = self.run_signal(&mut transaction, to, signal, now) {
            let refusal = error.by_machine()?;
            // The entity would reject the row on every attempt: the row is removed, and the log has the cause.
            tracing::error!(%to, %refusal, "an entity rejected the input of another entity");
            transaction = self.transaction();
        }
        transaction.delete(OutboxRecord::key(sequence));
        self.stage(transaction);
        self.end_unanswered();
        Ok(())
    }

    /// Writes an input for an entity into the outbox.
    pub(super) fn put_outbox(&mut self, transaction: &mut Transaction, to: EntityId, signal: Signal) {
        // Only the batch knows of the row before the commit. Later inputs of the batch must queue behind it.
        self.batch.writes_outbox = true;
        let sequence = self.new_sequence(transaction);
        transaction.put_new(OutboxRecord::key(sequence), OutboxRecord { to, signal }.encode());
        transaction.post_commit.push(PostCommit::OutboxWritten(sequence));
    }
}

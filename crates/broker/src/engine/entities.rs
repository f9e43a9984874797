//! The cache of decoded entities, because the next message about an entity reads it again soon; and the outbox, which
//! holds the inputs that entities send each other in later commits, and the letters that a step has left for them.
//!
//! The cache is write-through: each cached record is stored or in the batch in hand. The store applies a change only if
//! the revisions that it was computed from still hold. A conflict clears the cache.

use std::{
    collections::HashMap,
    ops::Bound,
    sync::{Arc, Weak},
};

use bytes::Bytes;
use foldhash::quality::RandomState;
use quick_cache::{
    OptionsBuilder, UnitWeighter, Weighter,
    unsync::{Cache, DefaultLifecycle},
};

use super::{Engine, TRY_AGAIN, batch::PostCommit, open_counts::OpenCounts, timers::Timer, transaction::Transaction};
use crate::{
    BrokerError,
    domain::{
        EntityId, Signal,
        mailbox::{EnvelopeOwner, Letter},
        routing::Graph,
    },
    ids::AgentId,
    records::{EntityRecord, GraphRevision, LettersLeft, OutboxRecord, OutboxRow},
    store::{Key, Order, Store, Table},
    time::Timestamp,
};

/// The most bytes of the records in the cache. A task takes about 1 KiB, a handoff a few KiB, a plan up to 2 MiB.
const CACHE_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// About as many records are in the cache when it is full.
const RECORDS_MAX: usize = 16_384;
/// The part of the cache for records that have been read again. Most records are of tasks whose handoff ends soon, so the
/// other part has room for all handoffs that began in the last half second under full load.
const HOT: f64 = 0.5;
/// The most outbox rows that one tick reads.
const TOLD_A_TICK: usize = 256;
/// The most work of the outbox in one tick, in the unit of `CommitBatch::work`, unless the first row alone has more.
const TOLD_WORK_A_TICK: usize = 256;

/// The most letters that a step of a message stores, and the most in one outbox row.
pub(super) const LETTERS_A_ROW: usize = 64;

/// A record with its revision.
#[derive(Debug, Clone)]
pub(super) struct Stored {
    pub(super) record: Arc<EntityRecord>,
    pub(super) revision: u64,
    /// The bytes of the record in the store. 0: it is a part of another record.
    pub(super) bytes: usize,
}

/// The entity cache, the start of the outbox, and what each agent has open.
pub(super) struct Entities {
    cache: RecordCache,
    /// The containers of entities, by [`EntityRecord::container_key`].
    containers: ContainerCache,
    /// The graphs of the runs in memory: all runs of one revision share it.
    graphs: HashMap<GraphRevision, Weak<Graph>>,
    /// The number of graphs at which those of no run are dropped.
    graphs_looked_at: usize,
    /// No row of the outbox has a lower sequence. `None`: the outbox is empty.
    outbox_from: Option<u64>,
    /// What each agent has open.
    pub(super) open: OpenCounts,
}

/// Hashed as the store's own maps are: quick, and seeded at random, since agents choose ids.
type RecordCache = Cache<Key, Stored, ByMemory, RandomState>;
type ContainerCache = Cache<Key, EntityId, UnitWeighter, RandomState>;

/// Weighs a record by the bytes that it takes in memory.
#[derive(Debug, Clone)]
struct ByMemory;

impl Weighter<Key, Stored> for ByMemory {
    fn weight(&self, key: &Key, stored: &Stored) -> u64 {
        (key.key.len() + stored.record.memory_bytes(stored.bytes)) as u64
    }
}

fn new_cache<T, W: Weighter<Key, T>>(weighter: W, weight: u64) -> Cache<Key, T, W, RandomState> {
    let mut options = OptionsBuilder::new();
    options.estimated_items_capacity(RECORDS_MAX).weight_capacity(weight).hot_allocation(HOT);
    let options = options.build().expect("both capacities are set");
    Cache::with_options(options, weighter, RandomState::default(), DefaultLifecycle::default())
}

fn new_caches() -> (RecordCache, ContainerCache) {
    (new_cache(ByMemory, CACHE_BYTES_MAX), new_cache(UnitWeighter, RECORDS_MAX as u64))
}

impl Entities {
    /// Starts with an empty cache and these numbers of open entities.
    pub(super) fn over(store: &dyn Store, open: OpenCounts) -> Result<Self, BrokerError> {
        let first = store.scan(Table::Outbox, (Bound::Unbounded, Bound::Unbounded), Order::Ascending, 1)?;
        let outbox_from = first.first().map(|(key, _)| OutboxRecord::sequence(key)).transpose()?;
        let (cache, containers) = new_caches();
        Ok(Self { cache, containers, graphs: HashMap::new(), graphs_looked_at: 0, outbox_from, open })
    }

    /// Empties the cache of records and that of containers.
    pub(super) fn clear(&mut self) {
        (self.cache, self.containers) = new_caches();
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

    /// The graph of this revision, if a run in memory has it.
    pub(super) fn graph(&self, revision: GraphRevision) -> Option<Arc<Graph>> {
        self.graphs.get(&revision)?.upgrade()
    }

    /// Notes the graph of a run that is in memory now.
    pub(super) fn keep_graph(&mut self, revision: GraphRevision, graph: &Arc<Graph>) {
        if self.graphs.len() >= self.graphs_looked_at {
            self.graphs.retain(|_, graph| graph.strong_count() > 0);
            self.graphs_looked_at = 2 * self.graphs.len() + 64;
        }
        self.graphs.insert(revision, Arc::downgrade(graph));
    }

    /// Drops a removed record from the cache.
    pub(super) fn forget(&mut self, key: &Key) {
        self.cache.remove(key);
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
            match OutboxRow::decode(&row.value)? {
                OutboxRow::Signal(OutboxRecord { to, signal }) => self.send_later(sequence, &to, signal, now)?,
                OutboxRow::Letters(left) => self.store_left(sequence, left)?,
            }
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

    /// Stores the letters of one outbox row, and removes the row in the same commit.
    fn store_left(&mut self, sequence: u64, LettersLeft { letter, agents }: LettersLeft) -> Result<(), BrokerError> {
        let mut transaction = self.transaction();
        for agent in agents {
            if self.env.directory.is_registered(&agent) {
                self.store_letter(&mut transaction, agent, letter.clone());
            } else if letter.envelope_owner == EnvelopeOwner::Letters {
                // The agent has been deregistered meanwhile, and the shared envelope has counted its letter.
                self.one_letter_less(&mut transaction, letter.message_sequence)?;
            }
        }
        transaction.delete(OutboxRecord::key(sequence));
        self.stage(transaction);
        self.end_unanswered();
        Ok(())
    }

    /// Writes letters for many agents into the outbox, in rows of a bounded size.
    pub(super) fn put_letters_left(&mut self, transaction: &mut Transaction, letter: &Letter, agents: &[AgentId]) {
        for agents in agents.chunks(LETTERS_A_ROW) {
            let left = LettersLeft { letter: letter.clone(), agents: agents.to_vec() };
            self.put_row(transaction, left.encode());
        }
    }

    /// Writes an input for an entity into the outbox.
    pub(super) fn put_outbox(&mut self, transaction: &mut Transaction, to: EntityId, signal: Signal) {
        self.put_row(transaction, OutboxRecord { to, signal }.encode());
    }

    fn put_row(&mut self, transaction: &mut Transaction, row: Bytes) {
        // Only the batch knows of the row before the commit. Later inputs of the batch must queue behind it.
        self.batch.writes_outbox = true;
        let sequence = self.new_sequence(transaction);
        transaction.put_new(OutboxRecord::key(sequence), row);
        transaction.post_commit.push(PostCommit::OutboxWritten(sequence));
    }
}

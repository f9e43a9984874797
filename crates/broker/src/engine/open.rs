//! Opening an engine over a store.

use std::{ops::Bound, sync::Arc, time::Duration};

use bytes::Bytes;
use prost::Message as _;

use super::{
    BYTES_A_BATCH, Engine, Environment, LOADED_AT_ONCE, PARTS_OF_A_GROUP,
    absences::Absences,
    batch::{CommitBatch, Head},
    clock::RunningClock,
    delivery::Delivery,
    entities::Entities,
    held::Held,
    liveness::Liveness,
    loads::Loads,
    open_counts::{Counted, OpenCounts},
    outputs::Outputs,
    presence::Presence,
    retention::Retention,
    stored_bytes::StoredBytes,
    timers::{Timer, Timers},
};
use crate::{
    BrokerError, BrokerIdentity, Resources, Settings,
    directory::{Directory, Entry},
    ids::IdSource,
    proto::storage,
    records::{self, AgentRecord, EntityTimer},
    store::{Key, Order, Store, Table},
    time::Timestamp,
};

impl Engine {
    /// Opens an engine over the stored records.
    pub fn open(
        store: Arc<dyn Store>,
        identity: BrokerIdentity,
        settings: Arc<Settings>,
        resources: Resources,
        ids: Arc<dyn IdSource>,
        now: Timestamp,
    ) -> Result<Self, BrokerError> {
        let agents = load_agents(&*store)?;
        let directory = Arc::new(Directory::new(&identity, settings.presence_rule(now), agents));
        Self::over(store, directory, identity, settings, resources, ids, (RunningClock::default(), now))
    }

    pub(super) fn over(
        store: Arc<dyn Store>,
        directory: Arc<Directory>,
        identity: BrokerIdentity,
        settings: Arc<Settings>,
        resources: Resources,
        ids: Arc<dyn IdSource>,
        (known, now): (RunningClock, Timestamp),
    ) -> Result<Self, BrokerError> {
        let stored = match store.get(&sequence_key())? {
            // A sequence that began again at 1 would overwrite stored messages, so a damaged record is an error.
            Some(record) => storage::SequenceRecord::decode(record.value)
                .map_err(|error| records::DecodeError { table: Table::Meta.name(), problem: error.to_string() })?,
            None => storage::SequenceRecord::default(),
        };
        // The later of both clocks wins: a failed commit may have left an earlier running time in the store than in
        // memory.
        let stored_at = Timestamp::from_unix_nanoseconds(stored.running_at);
        let stored_clock = RunningClock::at(stored_at, Duration::from_nanos(stored.set_back));
        let clock = known.later(stored_clock).showing(now);
        let mut timers = Timers::new(clock);
        let open = load_timers(&*store, &mut timers)?;
        let entities = Entities::over(&*store, open)?;
        // Work may have waited in the store since the last stop, so these timers fire in the first tick.
        timers.set_at_once(Timer::Outbox);
        timers.set_at_once(Timer::MailExpiry);
        timers.set_at_once(Timer::Loads);
        timers.set_at_once(Timer::MailOfLeft);
        // An agent that does not come back counts as suspect for one lease after the start, then as gone (SPEC 6).
        timers.set_after(Timer::Unseen, settings.presence_lease);
        let retention = Retention::new(&settings.retention, &mut timers);
        // The first commits count what is stored.
        resources.metrics.no_open_handoffs();
        directory.mail_is_counted(false);
        // The leases of an earlier engine have ended with it.
        resources.metrics.deliveries_in_flight.set(0);
        let presence = Presence::after_start(&directory);
        let absences = Absences::load(&*store)?;
        let stored_bytes = StoredBytes::load(&*store)?;
        for (agent, bytes) in stored_bytes.all() {
            directory.change_activity(agent, |known| known.stored_bytes = bytes);
        }
        let mut engine = Self {
            batch_bytes_max: BYTES_A_BATCH.min(store.group_bytes_max() / PARTS_OF_A_GROUP),
            env: Environment { store, directory, handoff_changes: Arc::default(), identity, settings, resources, ids },
            batch: CommitBatch::after(Head {
                next_sequence: stored.last + 1,
                message_ids_gone: Timestamp::from_unix_nanoseconds(stored.message_ids_gone),
            }),
            entities,
            delivery: Delivery::default(),
            timers,
            outputs: Outputs::default(),
            presence,
            absences,
            liveness: Liveness::beginning(clock.running()),
            retention,
            loads: Loads::default(),
            held: Held::default(),
            stored: stored_bytes,
            #[cfg(debug_assertions)]
            second_counts: Default::default(),
        };
        engine.register_coordinator(now)?;
        engine.env.handoff_changes.begin(stored.last);
        Ok(engine)
    }

    /// The value of the sequence record for the commit in hand.
    pub(super) fn sequence_value(&self) -> Bytes {
        storage::SequenceRecord {
            last: self.batch.head.next_sequence - 1,
            running_at: self.timers.clock.running().unix_nanoseconds(),
            set_back: u64::try_from(self.timers.clock.set_back.as_nanos()).unwrap_or(u64::MAX),
            message_ids_gone: self.batch.head.message_ids_gone.unix_nanoseconds(),
        }
        .encode_to_vec()
        .into()
    }
}

pub(super) fn sequence_key() -> Key {
    Key { table: Table::Meta, key: "sequence".into() }
}

pub(super) fn load_agents(store: &dyn Store) -> Result<Vec<Entry>, BrokerError> {
    use std::ops::Bound::Unbounded;
    let stored = store.scan(Table::Agents, (Unbounded, Unbounded), Order::Ascending, usize::MAX)?;
    stored.into_iter().map(|(_, record)| Entry::parse(AgentRecord::decode(&record.value)?)).collect()
}

/// Loads the stored timers of all entities. Returns what each agent has open.
fn load_timers(store: &dyn Store, timers: &mut Timers) -> Result<OpenCounts, BrokerError> {
    let mut open = OpenCounts::default();
    let (mut from, end) = records::entity_timers();
    loop {
        let stored = store.scan(Table::Timers, (from, end.clone()), Order::Ascending, LOADED_AT_ONCE)?;
        let Some((last, _)) = stored.last() else { return Ok(open) };
        from = Bound::Excluded(last.clone());
        for (key, record) in stored {
            let EntityTimer { at, entity, counts_for, bytes } = records::parse_entity_timer(&key, &record.value)?;
            // The stored time may be before the deadline. The engine reads the deadline when the timer fires.
            if let (Some(agent), Some(kind)) = (counts_for, Counted::of(&entity)) {
                open.one_more((kind, agent), &entity, bytes);
            }
            timers.set(Timer::Entity(entity), at);
        }
    }
}

//! A disk at which the broker can be killed: unsynced changes are lost. Every durable change passes through this
//! module, where the laws check it.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use baton_broker_core::{
    Event,
    domain::mailbox::{ConsumerId, EnvelopePlace},
    records::{DecodeError, read_envelope},
    store::{
        Change, CommitError, Conflict, Key, KeyBytes, KeyRange, MemoryStore, Order, ReadError, Record, Store, Table,
    },
};
use bytes::Bytes;
use tokio::sync::mpsc;

use crate::laws::Laws;

/// The outcome of the next commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Plan {
    /// It succeeds.
    Live,
    /// The broker is killed before the sync: the commit batch is lost.
    DieBefore,
    /// The broker is killed after the sync, before it can answer.
    DieAfter,
}

/// The outgoing events of the broker. Events that are in a pipe when the broker dies were sent before its death; later
/// events are never sent.
#[derive(Debug, Default)]
pub(crate) struct Pipes {
    /// The pipes by consumer. Consumer 0 stands for the unary calls, which share one pipe.
    pub out: BTreeMap<ConsumerId, mpsc::UnboundedReceiver<Event>>,
}

impl Pipes {
    /// Takes all events out of the pipes, in a fixed order.
    pub(crate) fn drain(&mut self) -> Vec<(ConsumerId, Event)> {
        let mut events = Vec::new();
        for (consumer, pipe) in &mut self.out {
            while let Ok(event) = pipe.try_recv() {
                events.push((*consumer, event));
            }
        }
        events
    }
}

/// See the module's documentation.
pub(crate) struct Disk {
    store: MemoryStore,
    pub laws: Mutex<Laws>,
    pub plan: Mutex<Plan>,
    pub pipes: Arc<Mutex<Pipes>>,
    /// The events that had left the broker when it was killed at a commit.
    pub escaped: Mutex<Option<Vec<(ConsumerId, Event)>>>,
}

impl Disk {
    pub(crate) fn new(pipes: Arc<Mutex<Pipes>>, laws: Laws) -> Self {
        Self {
            store: MemoryStore::default(),
            laws: Mutex::new(laws),
            plan: Mutex::new(Plan::Live),
            pipes,
            escaped: Mutex::default(),
        }
    }
}

impl Disk {
    /// A stored envelope. `None`: another consumer has ended the message since, and the envelope was removed. The real
    /// wire makes no delivery in that case.
    pub(crate) fn envelope(&self, place: EnvelopePlace) -> Option<Bytes> {
        let get = |key: &Key| Ok::<_, DecodeError>(self.store.get(key).expect("memory can be read"));
        read_envelope(place, get).expect("it decodes")
    }
}

impl Store for Disk {
    fn get(&self, key: &Key) -> Result<Option<Record>, ReadError> {
        self.store.get(key)
    }

    fn scan(
        &self,
        table: Table,
        range: KeyRange,
        order: Order,
        limit: usize,
    ) -> Result<Vec<(KeyBytes, Record)>, ReadError> {
        self.store.scan(table, range, order, limit)
    }

    fn size_bytes(&self) -> Option<u64> {
        self.store.size_bytes()
    }

    fn commit(&self, group: Vec<Change>) -> Result<Vec<Result<(), Conflict>>, CommitError> {
        let plan = std::mem::replace(&mut *self.plan.lock().unwrap(), Plan::Live);
        if plan != Plan::Live {
            *self.escaped.lock().unwrap() = Some(self.pipes.lock().unwrap().drain());
        }
        let died = || CommitError::Engine { path: "/disk".into(), source: "killed".into() };
        if plan == Plan::DieBefore {
            return Err(died());
        }
        let mut outcomes = Vec::with_capacity(group.len());
        for change in &group {
            // One change at a time, so that the laws see each. For the broker the batch still commits as a whole.
            let before = |key: &Key| self.store.get(key).expect("memory can be read");
            let befores: Vec<Option<Record>> = change.writes.iter().map(|write| before(&write.key)).collect();
            let outcome = self.store.commit(vec![change.clone()])?.remove(0);
            if outcome.is_ok() {
                let envelope = |place| self.envelope(place).unwrap_or_default();
                self.laws.lock().unwrap().see_change(change, &befores, &envelope);
            }
            outcomes.push(outcome);
        }
        if plan == Plan::DieAfter { Err(died()) } else { Ok(outcomes) }
    }
}

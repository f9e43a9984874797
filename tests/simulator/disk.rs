//! A disk that the broker can be killed at: what was not synced is gone. And the one place where everything that becomes
//! durable passes, change by change, under the eyes of the laws.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use baton::{
    broker::{Event, Retention},
    domain::mailbox::ConsumerId,
    store::{
        Change, CommitError, Conflict, Key, KeyBytes, KeyRange, MemoryStore, Order, ReadError, Record, Store, Table,
    },
};
use bytes::Bytes;
use tokio::sync::mpsc;

use crate::laws::Laws;

/// How the next commit goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plan {
    /// As it should.
    Live,
    /// The broker is killed before the sync: the group is gone.
    DieBefore,
    /// The broker is killed after the sync, before it can answer.
    DieAfter,
}

/// What goes out of the broker and has not left the machine: everything that is in here when the broker dies has been
/// sent before its death, and everything that comes later has not.
#[derive(Debug, Default)]
pub struct Pipes {
    /// By consumer. Consumer 0 stands for the simple calls, which all share one way back.
    pub out: BTreeMap<ConsumerId, mpsc::UnboundedReceiver<Event>>,
}

impl Pipes {
    /// Takes everything that is in them, in a fixed order.
    pub fn drain(&mut self) -> Vec<(ConsumerId, Event)> {
        let mut events = Vec::new();
        for (consumer, pipe) in &mut self.out {
            while let Ok(event) = pipe.try_recv() {
                events.push((*consumer, event));
            }
        }
        events
    }
}

/// See the module.
pub struct Disk {
    store: MemoryStore,
    pub laws: Mutex<Laws>,
    pub plan: Mutex<Plan>,
    pub pipes: Arc<Mutex<Pipes>>,
    /// What had left the broker when it was killed at a commit.
    pub escaped: Mutex<Option<Vec<(ConsumerId, Event)>>>,
}

impl Disk {
    pub fn new(pipes: Arc<Mutex<Pipes>>, retention: Retention) -> Self {
        Self {
            store: MemoryStore::default(),
            laws: Mutex::new(Laws::new(retention)),
            plan: Mutex::new(Plan::Live),
            pipes,
            escaped: Mutex::default(),
        }
    }
}

impl Disk {
    /// A stored envelope. `None`: it was taken elsewhere since, and is gone; the broker's wire makes no delivery then.
    pub fn envelope(&self, sequence: u64) -> Option<Bytes> {
        let key = baton::records::MessageRecord::envelope_key(sequence);
        self.store.get(&key).expect("memory can be read").map(|record| record.value)
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
            // One by one, so that the laws see what each changes; the group is still all or nothing towards the broker.
            let before = |key: &Key| self.store.get(key).expect("memory can be read");
            let befores: Vec<Option<Record>> = change.writes.iter().map(|write| before(&write.key)).collect();
            let outcome = self.store.commit(vec![change.clone()])?.remove(0);
            if outcome.is_ok() {
                let envelope = |sequence| {
                    let key = baton::records::MessageRecord::envelope_key(sequence);
                    before(&key).map(|record| record.value).unwrap_or_default()
                };
                self.laws.lock().unwrap().see_change(change, &befores, &envelope);
            }
            outcomes.push(outcome);
        }
        if plan == Plan::DieAfter { Err(died()) } else { Ok(outcomes) }
    }
}

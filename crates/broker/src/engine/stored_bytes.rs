//! The bytes that each agent stores, and its share (SPEC 5).
//!
//! Each envelope counts for its sender, in each copy that the store has; each entry of the log of a run, a thread or a plan
//! counts for the agent that began it, and a plan as submitted for its submitter. What a commit adds and removes is counted
//! in the same commit, so the count is exact over restarts. Records of bounded size beside them do not count, and blobs have
//! a quota of their own.

use prost::Message as _;

use super::{Engine, LIMIT_RETRY, transaction::Transaction};
use crate::{
    BrokerError, Refused,
    domain::{EntityId, Input},
    ids::{AgentId, IdMap},
    records::{EntityRecord, UsageRecord},
    refused,
    store::{Change, Key, KeyBytes, Order, Record, Store, Table, Write},
};

/// The sender of an envelope, read without the rest.
#[derive(Clone, PartialEq, prost::Message)]
struct SenderOf {
    #[prost(string, tag = "2")]
    sender_id: String,
}

/// The agent that an envelope counts for. `None`: the broker wrote it, or it cannot be read.
pub(super) fn sender_in(envelope: &[u8]) -> Option<AgentId> {
    let sender = AgentId::parse(&SenderOf::decode(envelope).ok()?.sender_id).ok()?;
    (!sender.is_reserved() && sender != AgentId::broker()).then_some(sender)
}

/// The bytes that each agent stores. No entry is 0.
#[derive(Debug, Default)]
pub(super) struct StoredBytes(IdMap<AgentId, u64>);

impl StoredBytes {
    /// Loads the counts at a start.
    pub(super) fn load(store: &dyn Store) -> Result<Self, BrokerError> {
        use std::ops::Bound::Unbounded;
        let rows = store.scan(Table::AgentUsage, (Unbounded, Unbounded), Order::Ascending, usize::MAX)?;
        let row = |(key, record): &(KeyBytes, Record)| {
            Ok((UsageRecord::agent(key)?, UsageRecord::decode(&record.value)?.stored_bytes))
        };
        rows.iter().map(row).collect::<Result<_, BrokerError>>().map(Self)
    }

    /// All counts.
    pub(super) fn all(&self) -> impl Iterator<Item = (&AgentId, u64)> {
        self.0.iter().map(|(agent, bytes)| (agent, *bytes))
    }

    fn of(&self, agent: &AgentId) -> u64 {
        self.0.get(agent).copied().unwrap_or_default()
    }
}

impl Engine {
    /// Counts what a transaction adds to the store and removes from it. Runs before the transaction is a part of the batch.
    pub(super) fn count_stored(&mut self, transaction: &Transaction, change: &Change) {
        let begun = transaction.all_read().find_map(|record| match &**record {
            EntityRecord::Run(_) | EntityRecord::Thread(_) | EntityRecord::Plan(_) => {
                record.entity().counts_for().cloned()
            }
            _ => None,
        });
        let payer = transaction.payer.clone().or(begun);
        for write in &change.writes {
            match write.key.table {
                Table::Envelopes => {
                    let added = write.record.as_ref().map(|record| &record.value);
                    self.add_stored(
                        added.and_then(|value| sender_in(value)),
                        added.map_or(0, |value| value.len()),
                        true,
                    );
                    if let Some(removed) = self.replaced(write) {
                        self.add_stored(sender_in(&removed.value), removed.value.len(), false);
                    }
                }
                Table::RunLog | Table::ThreadLog | Table::PlanLog | Table::PlanSpecs => {
                    let added = write.record.as_ref().map_or(0, |record| record.value.len());
                    self.add_stored(payer.clone(), added, true);
                    if let Some(removed) = self.replaced(write) {
                        self.add_stored(payer.clone(), removed.value.len(), false);
                    }
                }
                _ => {}
            }
        }
        for (agent, bytes, is_more) in &transaction.stored {
            self.add_stored(Some(agent.clone()), *bytes, *is_more);
        }
    }

    fn add_stored(&mut self, agent: Option<AgentId>, bytes: usize, is_more: bool) {
        if let Some(agent) = agent.filter(|_| bytes > 0) {
            let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
            *self.batch.stored.entry(agent).or_default() += if is_more { bytes } else { -bytes };
        }
    }

    /// The record that a write replaces or removes.
    fn replaced(&self, write: &Write) -> Option<Record> {
        if write.is_new {
            return None;
        }
        self.before(&write.key).unwrap_or_else(|error| {
            tracing::error!(table = write.key.table.name(), %error, "failed to count what a removal gives back");
            None
        })
    }

    fn before(&self, key: &Key) -> Result<Option<Record>, BrokerError> {
        self.read(&mut Transaction::default(), key)
    }

    /// The rows of the agents whose counts the batch changes, and their new counts.
    pub(super) fn changed_usage(&self, stored: &IdMap<AgentId, i64>) -> (Change, Vec<(AgentId, u64)>) {
        let changed = stored.iter().filter(|(_, by)| **by != 0);
        let counts: Vec<_> =
            changed.map(|(agent, by)| (agent.clone(), self.stored.of(agent).saturating_add_signed(*by))).collect();
        let write = |(agent, bytes): &(AgentId, u64)| {
            let value = UsageRecord { stored_bytes: *bytes }.encode();
            let record = (*bytes > 0).then_some(Record { revision: 1, value });
            Write { key: UsageRecord::key(agent), record, is_new: false }
        };
        let writes = counts.iter().map(write).collect();
        (Change { expectations: Vec::new(), writes }, counts)
    }

    /// Notes durable counts.
    pub(super) fn usage_stored(&mut self, counts: Vec<(AgentId, u64)>) {
        for (agent, bytes) in counts {
            self.env.directory.change_activity(&agent, |known| known.stored_bytes = bytes);
            match bytes {
                0 => drop(self.stored.0.remove(&agent)),
                bytes => drop(self.stored.0.insert(agent, bytes)),
            }
        }
    }

    /// Fails if the agent may not store further `bytes`. Counts those of the batch in hand.
    pub(super) fn check_stored(&self, agent: &AgentId, bytes: usize) -> Result<(), BrokerError> {
        let most = self.env.settings.limits.stored_bytes_max;
        let in_hand = self.batch.stored.get(agent).copied().unwrap_or_default();
        let stored = self.stored.of(agent).saturating_add_signed(in_hand);
        // 0: no limit.
        if most == 0 || agent.is_reserved() || stored.saturating_add(bytes as u64) <= most {
            return Ok(());
        }
        let what =
            "what the agent stores has too many bytes: they go with acks, and with the retention of what has ended";
        Err(BrokerError::LimitExceeded { what, retry_after: LIMIT_RETRY })
    }

    /// Checks the share of the agent that a call about a run or a thread counts for.
    pub(super) fn check_stored_by_call(&mut self, about: &EntityId, input: &Input) -> Result<(), Refused> {
        let by = match input {
            // A cancel must always be possible.
            Input::Routing(crate::domain::routing::Input::Cancel { .. }) => return Ok(()),
            Input::Routing(crate::domain::routing::Input::Start(start)) => start.by.clone(),
            Input::Thread(crate::domain::threads::Input::Create(create)) => create.by.clone(),
            Input::Routing(_) | Input::Thread(_) => {
                let known = self.entity_record(&mut self.transaction(), about).map_err(refused)?;
                known.and_then(|record| record.entity().counts_for().cloned())
            }
            _ => None,
        };
        by.map_or(Ok(()), |by| self.check_stored(&by, 0)).map_err(refused)
    }
}

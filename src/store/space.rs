//! Compaction: reclaims the space of removed records.
//!
//! fjall drops a removed record when a merge meets it. In a table whose keys only grow that may take very long, and
//! without writes it never happens. So this module counts removals for each table. When removals are a large part of a
//! large table, it merges the whole table, on a thread of its own and one table at a time. Each merge frees at least a
//! quarter of the bytes that it reads, so the cost is bounded by a small multiple of the removed bytes. Layers go into
//! the tables meanwhile.

use std::{
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
};

use fjall::Keyspace;

use super::{Table, engine::go_behind};

/// The smallest table that is compacted, in bytes.
const TABLE_BYTES_MIN: u64 = 32 * 1024 * 1024;
/// A table is compacted when its removals times this factor reach its entries. Each removal is an entry beside the
/// entry that it removes, so at a factor of 4 half of the entries are obsolete.
const REMOVALS_WEIGHT: u64 = 4;

/// A keyspace whose records nothing reads. fjall deletes merged files of all keyspaces when a memtable is rotated after
/// a write, and this keyspace takes that write.
pub(super) const HOUSEKEEPING: &str = "housekeeping";
const MERGED: &str = "merged";

/// Counts of removed records, and the thread that compacts their tables.
#[derive(Default)]
pub(super) struct Space {
    shared: Arc<Shared>,
    merging: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Shared {
    removals: [AtomicU64; Table::ALL.len()],
    work: Mutex<Work>,
}

#[derive(Default)]
struct Work {
    is_merging: bool,
    /// A caller requested the compaction of every table with removals, and it has not started yet.
    is_wanted: bool,
}

impl Shared {
    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().expect("no holder panics")
    }

    /// The tables to compact, whose counts restart at 0. `even_a_little` selects every large table with removals;
    /// otherwise the removals must reach their share of the entries.
    fn choose(&self, tables: &[Keyspace], even_a_little: bool) -> Vec<Keyspace> {
        let is_worth_it = |table: &Table| {
            let (removals, keyspace) =
                (self.removals[*table as usize].load(Ordering::Relaxed), &tables[*table as usize]);
            removals > 0
                && keyspace.disk_space() >= TABLE_BYTES_MIN
                && (even_a_little || removals * REMOVALS_WEIGHT >= keyspace.approximate_len() as u64)
        };
        let chosen = Table::ALL.into_iter().filter(is_worth_it);
        let taken = chosen.inspect(|table| self.removals[*table as usize].store(0, Ordering::Relaxed));
        taken.map(|table| tables[table as usize].clone()).collect()
    }
}

impl Space {
    /// The number of removed records of each table, for the writer to increase.
    pub(super) fn removals(&self) -> &[AtomicU64] {
        &self.shared.removals
    }

    /// Whether a compaction runs.
    pub(super) fn is_being_given_back(&self) -> bool {
        self.shared.work().is_merging
    }

    /// Compacts the tables that are worth it. With `even_a_little`, compacts every large table with removals, after a
    /// running compaction, if any.
    pub(super) fn give_back(&self, tables: &[Keyspace], housekeeping: &Keyspace, even_a_little: bool) {
        let first = {
            let mut work = self.shared.work();
            work.is_wanted |= even_a_little;
            if work.is_merging {
                return;
            }
            let chosen = self.shared.choose(tables, std::mem::take(&mut work.is_wanted));
            work.is_merging = !chosen.is_empty();
            chosen
        };
        if first.is_empty() {
            return;
        }
        // The thread of the previous compaction has finished its work, so this join does not block.
        self.wait();
        let (shared, tables, housekeeping) = (self.shared.clone(), tables.to_vec(), housekeeping.clone());
        let merge = move || {
            go_behind();
            let mut chosen = first;
            loop {
                chosen.iter().for_each(merge);
                if let Err(error) = housekeeping.insert(MERGED, []).and_then(|()| housekeeping.rotate_memtable()) {
                    tracing::warn!(%error, "failed to have merged files deleted");
                }
                let mut work = shared.work();
                let is_wanted = std::mem::take(&mut work.is_wanted);
                chosen = if is_wanted { shared.choose(&tables, true) } else { Vec::new() };
                if chosen.is_empty() {
                    work.is_merging = false;
                    return;
                }
            }
        };
        match std::thread::Builder::new().name("baton-merge".to_owned()).spawn(merge) {
            Ok(thread) => *self.merging.lock().expect("no holder panics") = Some(thread),
            Err(error) => {
                self.shared.work().is_merging = false;
                tracing::warn!(%error, "failed to start a thread that gives space back");
            }
        }
    }

    /// Waits until no compaction runs. Required before fjall is closed.
    pub(super) fn wait(&self) {
        if let Some(thread) = self.merging.lock().expect("no holder panics").take() {
            drop(thread.join());
        }
    }
}

fn merge(table: &Keyspace) {
    let before = table.disk_space();
    match table.major_compact() {
        Ok(()) => {
            tracing::info!(table = %table.name(), bytes_before = before, bytes = table.disk_space(), "gave space back");
        }
        Err(error) => tracing::warn!(table = %table.name(), %error, "failed to give space back"),
    }
}

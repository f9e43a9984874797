//! Giving back the space of what was removed.
//!
//! fjall drops a removed record when a merge meets it. Where keys only grow that may take very long, and without writes it
//! never happens. So removals are counted, table by table; when they are a good part of a large table, the whole table is
//! merged, on a thread of its own, one table at a time. Each merge gives back a quarter at least of what it reads, and so
//! costs no more than a few times what was removed. Layers go into the tables meanwhile.

use std::{
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
};

use fjall::Keyspace;

use super::{Table, engine::go_behind};

/// A table smaller than this is not worth it.
const TABLE_BYTES_MIN: u64 = 32 * 1024 * 1024;
/// A table is merged when this many times its removals are as many as its entries. Each removal is an entry too, beside the
/// one that it removes: so at four, half of the entries are of no use.
const REMOVALS_WEIGHT: u64 = 4;

/// A keyspace of which nothing is needed. fjall deletes the files that were merged, of all keyspaces, when something was
/// written since and a memtable begins anew.
pub(super) const HOUSEKEEPING: &str = "housekeeping";
const MERGED: &str = "merged";

/// What was removed and may still take space.
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
    /// Somebody wants all in which anything was removed, and did not get it yet.
    is_wanted: bool,
}

impl Shared {
    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().expect("no holder panics")
    }

    /// Tables that are worth it; or all in which anything was removed. They begin to count anew.
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
    /// How many records were removed from each table, to be counted up.
    pub(super) fn removals(&self) -> &[AtomicU64] {
        &self.shared.removals
    }

    /// Whether tables are being merged.
    pub(super) fn is_being_given_back(&self) -> bool {
        self.shared.work().is_merging
    }

    /// Merges the tables that are worth it; or all in which anything was removed, also while some are being merged.
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

    /// Waits until no table is merged any more: before fjall is closed.
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

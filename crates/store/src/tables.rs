//! The tables: a log-structured merge tree each, by the library `lsm-tree`.
//!
//! Owns how the library is used: how memtables get into table files, what readers see, and when files are merged. The
//! library's own memtables stay empty. A table gets a tree with its first record: most stores use few tables, and a tree
//! costs some files and syncs at each start. A table may lack records of the log; `checkpoint` owns which state of the tables
//! a start begins with. Must not know the layout of the library's files.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock},
};

use bytes::Bytes;
use lsm_tree::{
    AbstractTree as _, AnyTree, Cache, Config, DescriptorTable, Guard as _, SeqNo, SequenceNumberCounter, TableId,
    compaction::Leveled,
    config::{BloomConstructionPolicy, FilterPolicy, FilterPolicyEntry, PinningPolicy},
};

use super::{
    KeyBytes, KeyRange, Order, Table,
    mem_table::MemTable,
    record_codec::encode_record,
    throttle::{EarlySync, MergeThrottle, Throttle, Urgency},
};
use crate::disk;

/// A sequence number behind all that the library gives to table files. A reader with it sees the newest version of each
/// record, and an iterator keeps the files that it began with.
pub(super) const NEWEST: SeqNo = SeqNo::MAX >> 1;
/// The blocks of table files in memory, in bytes, for all tables together.
const CACHE_BYTES: u64 = 64 * 1024 * 1024;
/// The open table files, for all tables together.
const OPEN_FILES_MAX: usize = 512;
/// The folder of a tree's table files, beside its other files.
pub(super) const FILES_FOLDER: &str = "tables";
const FILE_BYTES: u64 = 64 * 1024 * 1024;
/// The most merges of a table in a row.
const MERGES_MAX: usize = 16;
/// The unmerged files of a table at which a flush waits for merges. Each of them makes reads slower.
const RUNS_MAX: usize = 16;
/// The unmerged files of a table at which a compaction of it ends. It keeps other merges off the table, and the library
/// cannot write a number of unmerged files above 255.
const RUNS_BEFORE_COMPACTION_MAX: usize = 8 * RUNS_MAX;
/// The unmerged files of a table that are merged at a time. More of them are less writing, and slower reads.
const RUNS_A_MERGE: u8 = 6;
/// The smallest table, in bytes, for a merge that gives space back.
const GIVE_BACK_BYTES_MIN: u64 = 32 * 1024 * 1024;
/// A table is merged as a whole when its tombstones times this factor reach its entries. Each tombstone is an entry
/// beside the entry that it removes, so at a factor of 4 half of the entries are obsolete.
const TOMBSTONES_WEIGHT: u64 = 4;

/// The open tables.
pub(super) struct Tables {
    /// The folder of the trees.
    work: PathBuf,
    shared: Shared,
    /// Empty for a table that never had a record.
    trees: [OnceLock<AnyTree>; Table::ALL.len()],
    /// Held while a memtable is written.
    writing: Mutex<()>,
    /// Held while files of a table are merged: two merges must not take the same ones.
    merging: [Mutex<()>; Table::ALL.len()],
}

/// What the trees of an open store share.
#[derive(Clone)]
pub(super) struct Shared {
    cache: Arc<Cache>,
    files: Arc<DescriptorTable>,
    urgency: Arc<Urgency>,
}

/// Opens the tree in a folder, or creates it.
pub(super) fn open_tree(folder: &Path, shared: Option<Shared>) -> lsm_tree::Result<AnyTree> {
    let seqno = SequenceNumberCounter::default();
    let config = Config::new(folder, seqno.clone(), SequenceNumberCounter::default());
    let bloom = |policy| FilterPolicyEntry::Bloom(policy);
    let filters = [BloomConstructionPolicy::FalsePositiveRate(0.0001), BloomConstructionPolicy::BitsPerKey(10.0)];
    let config = match shared {
        Some(Shared { cache, files, urgency }) => config
            .use_cache(cache)
            .use_descriptor_table(Some(files))
            .with_compaction_filter_factory(Some(Arc::new(MergeThrottle {
                folder: folder.join(FILES_FOLDER),
                urgency,
            })))
            .filter_policy(FilterPolicy::new(filters.map(bloom))),
        // For a look at the files: nothing is read that need not be.
        None => config
            .index_block_pinning_policy(PinningPolicy::all(false))
            .filter_block_pinning_policy(PinningPolicy::all(false)),
    };
    let tree = config.open()?;
    // The next file must be newer than all that are there.
    seqno.fetch_max(tree.get_highest_persisted_seqno().map_or(0, |highest| highest + 1));
    Ok(tree)
}

impl Tables {
    /// Opens the tables that have a tree in `work`.
    pub(super) fn open(
        work: &Path,
        with_tree: impl Iterator<Item = Table>,
        urgency: &Arc<Urgency>,
    ) -> lsm_tree::Result<Self> {
        let shared = Shared {
            cache: Arc::new(Cache::with_capacity_bytes(CACHE_BYTES)),
            files: Arc::new(DescriptorTable::new(OPEN_FILES_MAX)),
            urgency: urgency.clone(),
        };
        let tables = Self {
            work: work.into(),
            shared,
            trees: [const { OnceLock::new() }; Table::ALL.len()],
            writing: Mutex::default(),
            merging: std::array::from_fn(|_| Mutex::default()),
        };
        for table in with_tree {
            tables.tree_or_new(table)?;
        }
        Ok(tables)
    }

    fn tree(&self, table: Table) -> Option<&AnyTree> {
        self.trees[table as usize].get()
    }

    /// Opens the tree of a table if it is not open, and creates it if it is not there. Not for two threads at once.
    fn tree_or_new(&self, table: Table) -> lsm_tree::Result<&AnyTree> {
        if let Some(tree) = self.tree(table) {
            return Ok(tree);
        }
        let opened = open_tree(&self.work.join(table.name()), Some(self.shared.clone()))?;
        Ok(self.trees[table as usize].get_or_init(|| opened))
    }

    /// The tables with a tree.
    fn trees(&self) -> impl Iterator<Item = (Table, &AnyTree)> {
        Table::ALL.into_iter().filter_map(|table| Some((table, self.tree(table)?)))
    }

    pub(super) fn get(&self, table: Table, key: &[u8]) -> lsm_tree::Result<Option<Bytes>> {
        let Some(tree) = self.tree(table) else { return Ok(None) };
        Ok(tree.get(key, NEWEST)?.map(Bytes::from))
    }

    /// The records of a range, as they are now.
    pub(super) fn range(
        &self,
        table: Table,
        range: KeyRange,
        order: Order,
    ) -> impl Iterator<Item = lsm_tree::Result<(KeyBytes, Bytes)>> {
        let entries = self.tree(table).map(|tree| -> Box<dyn Iterator<Item = _>> {
            let entries = tree.range(range, NEWEST, None);
            match order {
                Order::Ascending => entries,
                Order::Descending => Box::new(entries.rev()),
            }
        });
        entries.into_iter().flatten().map(|entry| {
            let (key, record) = entry.into_inner()?;
            Ok((KeyBytes::from(&*key), Bytes::from(record)))
        })
    }

    /// Writes a memtable into table files. Returns the tables that got a file. Not for two threads at once.
    pub(super) fn flush(&self, memtable: &MemTable, throttle: &mut Throttle) -> lsm_tree::Result<Vec<Table>> {
        let _writing = self.writing.lock().expect("no flush panics");
        let mut changed = Vec::new();
        for table in Table::ALL {
            let mut records = memtable.records(table, || throttle.rest()).peekable();
            // Most flushes touch few tables. The checkpoint keeps the others as they are.
            if records.peek().is_none() {
                continue;
            }
            let mut file = self.tree_or_new(table)?.ingestion()?;
            let mut early_sync = EarlySync::new(self.work.join(table.name()).join(FILES_FOLDER));
            for (key, record) in records {
                match record {
                    Some(record) => {
                        let record = encode_record(table, key, record);
                        early_sync.wrote(key.len() + record.len())?;
                        file.write(&**key, record)?;
                    }
                    // The tables below may have the record, and only a merge knows that none has.
                    None => file.write_tombstone(&**key)?,
                }
                throttle.rest();
            }
            file.finish()?;
            changed.push(table);
        }
        Ok(changed)
    }

    /// Whether a table has [`RUNS_MAX`] unmerged files or more: merges must catch up before the next flush.
    pub(super) fn is_behind(&self) -> bool {
        self.runs_max() >= RUNS_MAX
    }

    /// Whether a table has [`RUNS_BEFORE_COMPACTION_MAX`] unmerged files or more.
    pub(super) fn has_too_many_runs(&self) -> bool {
        self.runs_max() >= RUNS_BEFORE_COMPACTION_MAX
    }

    /// Whether a table has more unmerged files than merges should leave.
    pub(super) fn is_late(&self) -> bool {
        self.runs_max() >= RUNS_MAX / 2
    }

    fn runs_max(&self) -> usize {
        self.trees().map(|(_, tree)| tree.l0_run_count()).max().unwrap_or(0)
    }

    /// Merges the files of tables that have many. Returns the tables that were merged.
    pub(super) fn merge(&self) -> lsm_tree::Result<Vec<Table>> {
        let mut changed = Vec::new();
        for (table, _) in self.trees() {
            // A compaction merges all files of the table, these too.
            let Ok(_merging) = self.merging[table as usize].try_lock() else { continue };
            if self.unless_failed(table, merge_tree)? == Some(true) {
                changed.push(table);
            }
        }
        Ok(changed)
    }

    /// The tables with many removed records, or with any if `even_a_little`.
    pub(super) fn worth_compacting(&self, even_a_little: bool) -> Vec<Table> {
        let is_worth_it = |(_, tree): &(Table, &AnyTree)| {
            let tombstones = tree.tombstone_count();
            tombstones > 0
                // A small table is not worth rewriting, even on request.
                && tree.disk_space() >= GIVE_BACK_BYTES_MIN
                && (even_a_little || tombstones * TOMBSTONES_WEIGHT >= tree.approximate_len() as u64)
        };
        self.trees().filter(is_worth_it).map(|(table, _)| table).collect()
    }

    /// Merges a whole table, which drops its removed records. Meanwhile records go into the table as ever. Returns false
    /// after a failure of the disk: the table is as before.
    pub(super) fn compact(&self, table: Table) -> lsm_tree::Result<bool> {
        let tree = self.tree(table).expect("it has removed records");
        // The library leaves out the files that another merge has in hand, and the removed records with them.
        let _merging = self.merging[table as usize].lock().expect("no merge panics");
        let before = tree.disk_space();
        // On a full disk commits fail, so a merge that has no room is not begun.
        let free = disk::free_bytes(&self.work).unwrap_or(u64::MAX);
        if free < before {
            tracing::warn!(
                table = table.name(),
                bytes = before,
                free_bytes = free,
                "no room to give space back: as much as the table takes must be free"
            );
            return Ok(false);
        }
        let merged = self.unless_failed(table, |tree| tree.major_compact(FILE_BYTES, NEWEST))?;
        if merged.is_some() {
            tracing::info!(table = table.name(), bytes_before = before, bytes = tree.disk_space(), "gave space back");
        }
        Ok(merged.is_some())
    }

    /// Merges a table, whose other merges wait meanwhile. `None` after a failure of the disk: the table is whole as before, so
    /// the store goes on. A file that cannot be decoded stops it.
    fn unless_failed<T>(
        &self,
        table: Table,
        merge: impl FnOnce(&AnyTree) -> lsm_tree::Result<T>,
    ) -> lsm_tree::Result<Option<T>> {
        let tree = self.tree(table).expect("it has files to merge");
        // The library counts its files, so those of this merge and of later flushes have this number or a higher one.
        let first_new = tree.next_table_id();
        let error = match merge(tree) {
            Ok(merged) => return Ok(Some(merged)),
            Err(lsm_tree::Error::Io(error)) => error,
            Err(error) => return Err(error),
        };
        match error.kind() {
            io::ErrorKind::Interrupted => tracing::debug!(table = table.name(), "ended a merge of table files"),
            _ => tracing::warn!(table = table.name(), %error, "failed to merge table files"),
        }
        // The library leaves what the merge has written. On a full disk that may be all the room there is. No file of a flush
        // is half written meanwhile.
        let _writing = self.writing.lock().expect("no flush panics");
        let present = self.files(table);
        for path in (first_new..tree.next_table_id()).map(|id| self.file(table, id)) {
            if !present.contains(&path)
                && let Err(error) = disk::remove_if_there(&path)
            {
                tracing::debug!(path = %path.display(), %error, "failed to remove what a merge has left");
            }
        }
        Ok(None)
    }

    fn file(&self, table: Table, id: TableId) -> PathBuf {
        self.work.join(table.name()).join(FILES_FOLDER).join(id.to_string())
    }

    /// The table files of a table.
    pub(super) fn files(&self, table: Table) -> Vec<PathBuf> {
        let version = self.tree(table).map(|tree| tree.current_version());
        let files = version.iter().flat_map(|version| version.iter_tables());
        files.map(|file| self.file(table, file.id())).collect()
    }

    pub(super) fn size_bytes(&self) -> u64 {
        self.trees().map(|(_, tree)| tree.disk_space()).sum()
    }
}

/// Merges the files of a tree until it has few enough. Whether it merged any.
fn merge_tree(tree: &AnyTree) -> lsm_tree::Result<bool> {
    let shape = || ([0, 1, 2, 3, 4, 5, 6].map(|level| tree.level_table_count(level)), tree.disk_space());
    for merges in 0..MERGES_MAX {
        let before = shape();
        let strategy = Leveled::default().with_table_target_size(FILE_BYTES).with_l0_threshold(RUNS_A_MERGE);
        tree.compact(Arc::new(strategy), NEWEST)?;
        // The library does not say whether it merged, so the shape of the tree decides.
        if before == shape() {
            return Ok(merges > 0);
        }
    }
    Ok(true)
}

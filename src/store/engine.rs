//! fjall, opened: a keyspace for each table, and one for groups whose writes are not in their tables yet.
//!
//! A group is one row in `groups`, written to fjall's journal and synced (`fdatasync`) before it is shown to anybody. Its
//! records go into the tables later and without a sync: until they are all there, the row is.

use std::{
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use bytes::Bytes;
use fjall::{
    AbstractTree as _, Database, Keyspace, KeyspaceCreateOptions, OwnedWriteBatch, PersistMode, Readable, Snapshot,
};

use super::{
    Key, KeyRange, Order, ReadError, Table, Write,
    folder::OpenError,
    pending::{Layer, Pending},
    rows::{SETTLED, decode_group, encode_group, encode_record, group_of_row},
};

/// Where fjall has its files.
pub(super) const ENGINE_FOLDER: &str = "fjall";
/// The keyspace of groups; not one of our tables.
pub(super) const GROUPS: &str = "groups";
/// fjall holds a commit back at 4 memtables that are to be written to disk, and at 30 runs that are to be merged.
const MEMTABLES_BEHIND_MAX: usize = 2;
const RUNS_BEHIND_MAX: usize = 24;
/// A start after a kill reads the journals, at about 20 ms a MiB; and what they hold is in memory. fjall would let them grow
/// to four times as much.
const JOURNAL_BYTES_MAX: u64 = 128 * 1024 * 1024;
const WAIT_FOR_FLUSHES: Duration = Duration::from_millis(10);
/// Records that are written into tables at once. A commit waits that long if it comes at the same time.
const SETTLED_AT_ONCE: usize = 64;
/// Of threads that write and merge tables: a fifth of the processor's time of another, if both want it.
#[cfg(target_os = "linux")]
const NICENESS: i32 = 7;

/// Handles of the open files. The tables go before the database that they are of.
#[derive(Clone)]
pub(super) struct Engine {
    pub(super) tables: Vec<Keyspace>,
    pub(super) groups: Keyspace,
    database: Database,
}

impl Engine {
    pub(super) fn open(path: &Path) -> Result<Self, OpenError> {
        let engine_path = path.join(ENGINE_FOLDER);
        let error = |source: fjall::Error| OpenError::Engine { path: engine_path.clone(), source: source.into() };
        let open = || {
            go_behind(); // and so do fjall's threads, which this one starts
            Database::builder(&engine_path).max_journaling_size(JOURNAL_BYTES_MAX).open()
        };
        let database = std::thread::scope(|scope| scope.spawn(open).join()).expect("fjall does not panic");
        let database = database.map_err(error)?;
        let keyspace = |name: &str| database.keyspace(name, KeyspaceCreateOptions::default).map_err(error);
        let tables = Table::ALL.iter().map(|table| keyspace(table.name())).collect::<Result<_, _>>()?;
        let groups = keyspace(GROUPS)?;
        Ok(Self { tables, groups, database })
    }

    /// Waits until fjall has room for another write. fjall would wait inside the write, and for ever if the threads that
    /// make room have failed, as they do when the disk is full.
    #[expect(clippy::disallowed_methods, reason = "the thread that writes has nothing else to do")]
    fn wait_for_flushes<'a>(&self, written: impl Iterator<Item = &'a Keyspace> + Clone) -> Result<(), fjall::Error> {
        let is_behind = |table: &Keyspace| {
            table.sealed_memtable_count() > MEMTABLES_BEHIND_MAX || table.tree.l0_run_count() > RUNS_BEHIND_MAX
        };
        while written.clone().any(is_behind) {
            self.database.persist(PersistMode::Buffer)?; // fails once such a thread has failed
            std::thread::sleep(WAIT_FOR_FLUSHES);
        }
        Ok(())
    }

    fn table(&self, table: Table) -> &Keyspace {
        &self.tables[table as usize]
    }

    fn batch(&self, items: usize) -> OwnedWriteBatch {
        OwnedWriteBatch::with_capacity(self.database.clone(), items)
    }

    /// Writes and syncs a group. Returns how long its row is.
    pub(super) fn write_group(&self, number: u64, writes: &[&Write]) -> Result<usize, fjall::Error> {
        self.wait_for_flushes([&self.groups].into_iter())?;
        let row = encode_group(number, writes);
        let length = row.len();
        let mut batch = self.batch(1).durability(Some(PersistMode::SyncData));
        batch.insert(&self.groups, number.to_be_bytes(), row);
        batch.commit()?;
        Ok(length)
    }

    /// Writes a layer into the tables, and then removes the rows of its groups. `removed` counts the records, by table, that
    /// were removed; `pace` hears now and then what part is done. Cut off at any point, the rest can be done again.
    pub(super) fn settle(&self, layer: &Layer, removed: &[AtomicU64], pace: impl Fn(f64)) -> Result<(), fjall::Error> {
        let (all, mut done) = (layer.len(), 0);
        let mut records = layer.records().peekable();
        while records.peek().is_some() {
            self.wait_for_flushes(self.tables.iter())?;
            let mut batch = self.batch(SETTLED_AT_ONCE);
            for (table, key, record) in records.by_ref().take(SETTLED_AT_ONCE) {
                let slice = fjall::Slice::from(key.clone());
                match record {
                    Some(record) => batch.insert(self.table(table), slice, encode_record(table, key, record)),
                    None => {
                        batch.remove(self.table(table), slice);
                        removed[table as usize].fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
            batch.commit()?;
            done += SETTLED_AT_ONCE;
            pace(done as f64 / all as f64);
        }
        let Some((first, last)) = layer.groups() else { return Ok(()) };
        let mut batch = self.batch(1);
        batch.insert(&self.groups, SETTLED, last.to_be_bytes());
        batch.commit()?;
        let mut rows = (first..=last).peekable();
        while rows.peek().is_some() {
            self.wait_for_flushes([&self.groups].into_iter())?;
            let mut batch = self.batch(SETTLED_AT_ONCE);
            rows.by_ref().take(SETTLED_AT_ONCE).for_each(|row| batch.remove(&self.groups, row.to_be_bytes()));
            batch.commit()?;
        }
        Ok(())
    }

    /// The number of the last group, and what of the last groups is not in the tables.
    pub(super) fn pending(&self) -> Result<(u64, Pending), OpenError> {
        let path = self.groups.path();
        let error = |source: fjall::Error| OpenError::Engine { path: path.into(), source: source.into() };
        let damaged = |problem| OpenError::Damaged { path: path.into(), problem };
        let settled = self.groups.get(SETTLED).map_err(error)?;
        let settled = match settled.map(|stored| stored.as_ref().try_into()) {
            None => 0,
            Some(Ok(number)) => u64::from_be_bytes(number),
            Some(Err(_)) => return Err(damaged("it does not say which groups are settled".to_owned())),
        };
        let (mut pending, mut last) = (Pending::default(), settled);
        let mut done = self.batch(0);
        for row in self.groups.iter() {
            let (key, value) = row.into_inner().map_err(error)?;
            let Some(number) = group_of_row(&key) else { continue };
            if number <= settled {
                done.remove(&self.groups, key); // it was about to be
                continue;
            }
            if number != last + 1 {
                return Err(damaged(format!("group {} is not there, but group {number} is", last + 1)));
            }
            let row = Bytes::from(value);
            let writes = decode_group(number, &row).map_err(|problem| damaged(format!("group {number}: {problem}")))?;
            pending.found(number, &writes, row.len());
            last = number;
        }
        done.commit().map_err(error)?;
        Ok((last, pending))
    }

    pub(super) fn get(&self, key: &Key) -> Result<Option<Bytes>, ReadError> {
        let table = self.table(key.table);
        let stored = table.get(&key.key).map_err(|error| read_error(table, error))?;
        Ok(stored.map(Bytes::from))
    }

    /// All that can be read at this moment.
    pub(super) fn snapshot(&self) -> Snapshot {
        self.database.snapshot()
    }

    pub(super) fn range(
        &self,
        snapshot: &Snapshot,
        table: Table,
        range: KeyRange,
        order: Order,
    ) -> impl Iterator<Item = Result<(Bytes, Bytes), ReadError>> {
        let keyspace = self.table(table).clone();
        let entries = snapshot.range(&keyspace, range);
        let entries: Box<dyn Iterator<Item = fjall::Guard>> = match order {
            Order::Ascending => Box::new(entries),
            Order::Descending => Box::new(entries.rev()),
        };
        entries.map(move |guard| {
            let (key, stored) = guard.into_inner().map_err(|error| read_error(&keyspace, error))?;
            Ok((Bytes::from(key), Bytes::from(stored)))
        })
    }

    pub(super) fn size_bytes(&self) -> Option<u64> {
        self.database.disk_space().ok()
    }
}

/// This thread, and those that it starts, let go first whoever answers somebody.
pub(super) fn go_behind() {
    #[cfg(target_os = "linux")] // elsewhere it is for the whole process
    if let Err(error) = rustix::process::setpriority_process(None, NICENESS) {
        tracing::debug!(%error, "failed to lower the priority of a thread");
    }
}

fn read_error(table: &Keyspace, source: fjall::Error) -> ReadError {
    ReadError::Engine { path: table.path().into(), source: source.into() }
}

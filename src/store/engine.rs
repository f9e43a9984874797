//! The open fjall database: a keyspace for each table.
//!
//! Owns writing layers into the tables. A layer is written as sorted table files (fjall calls that ingestion), so
//! fjall's journals and memtables hold none of its records, and every record in a table is on disk.

use std::{
    fs::{self, File},
    io,
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use bytes::Bytes;
use fjall::{AbstractTree as _, Database, Keyspace, KeyspaceCreateOptions, PersistMode, Readable, Snapshot};

use super::{
    Key, KeyBytes, KeyRange, Order, ReadError, Table, folder::OpenError, pending::Layer, rows::encode_record,
    space::HOUSEKEEPING,
};
use crate::disk;

/// The folder of the database, within the store's folder.
pub(super) const ENGINE_FOLDER: &str = "fjall";
/// The folder of the keyspaces, within the database's folder.
const KEYSPACES_FOLDER: &str = "keyspaces";
/// The largest number of unmerged runs of a table; with more, the next layer waits.
const RUNS_BEHIND_MAX: usize = 24;
const WAIT_FOR_MERGES: Duration = Duration::from_millis(10);
/// The number of records between two calls of `pace`.
const RECORDS_A_PACE: usize = 64;
/// A table file is synced each time this many bytes are written. fjall syncs a file only at its end, and a group
/// committed at that moment would wait until the disk has the whole file.
const BYTES_A_SYNC: usize = 1024 * 1024;
/// The niceness of the threads that write and merge tables. Against a thread of niceness 0 on the same processor, they
/// get about a fifth of its time.
#[cfg(target_os = "linux")]
const NICENESS: i32 = 7;

/// Handles of the open database. Fields drop in order: the tables before their database.
#[derive(Clone)]
pub(super) struct Engine {
    pub(super) tables: Vec<Keyspace>,
    /// Makes fjall delete merged files: see `space`.
    pub(super) housekeeping: Keyspace,
    database: Database,
}

impl Engine {
    /// Opens the database, or creates it. A new one is created under a draft name and renamed, so a power cut leaves a
    /// whole database or none.
    pub(super) fn open(path: &Path) -> Result<Self, OpenError> {
        let engine_path = path.join(ENGINE_FOLDER);
        let open = |path: &Path| Self::open_folder(path).map_err(|source| of_engine(path, source));
        let file_error = |path: &Path, source| OpenError::File { path: path.into(), source };
        if !engine_path.try_exists().map_err(|source| file_error(&engine_path, source))? {
            let draft = disk::draft_of(&engine_path);
            match fs::remove_dir_all(&draft) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(file_error(&draft, error)),
                Ok(()) | Err(_) => {}
            }
            open(&draft)?.database.persist(PersistMode::SyncAll).map_err(|source| of_engine(&draft, source))?;
            let named = disk::sync_folder(&draft).and_then(|()| disk::rename(&draft, &engine_path));
            named.map_err(|source| file_error(&engine_path, source))?;
        }
        open(&engine_path)
    }

    fn open_folder(path: &Path) -> Result<Self, fjall::Error> {
        let open = || {
            go_behind(); // fjall's threads inherit the priority of the thread that starts them
            // With two workers, one of them spins while the other merges.
            Database::builder(path).worker_threads(1).open()
        };
        let database = std::thread::scope(|scope| scope.spawn(open).join()).expect("fjall does not panic")?;
        let keyspace = |name: &str| database.keyspace(name, KeyspaceCreateOptions::default);
        let tables = Table::ALL.iter().map(|table| keyspace(table.name())).collect::<Result<_, _>>()?;
        let housekeeping = keyspace(HOUSEKEEPING)?;
        disk::sync_folder(&path.join(KEYSPACES_FOLDER))?; // fjall does not sync the names of its keyspaces' folders
        Ok(Self { tables, housekeeping, database })
    }

    /// Waits until the table has few enough unmerged runs for another table file.
    #[expect(clippy::disallowed_methods, reason = "a thread that has nothing else to do")]
    fn wait_for_merges(&self, table: &Keyspace) -> Result<(), fjall::Error> {
        loop {
            self.database.persist(PersistMode::Buffer)?; // fails once a thread that merges has failed
            if table.tree.l0_run_count() <= RUNS_BEHIND_MAX {
                return Ok(());
            }
            std::thread::sleep(WAIT_FOR_MERGES);
        }
    }

    fn table(&self, table: Table) -> &Keyspace {
        &self.tables[table as usize]
    }

    /// Writes a layer into the tables and syncs them. `removed` counts the deleted records by table; `pace` is called
    /// now and then with the fraction done, from 0 to 1. Writing the same layer again is safe, so an interruption at
    /// any point is harmless.
    pub(super) fn settle(&self, layer: &Layer, removed: &[AtomicU64], pace: impl Fn(f64)) -> Result<(), fjall::Error> {
        let (all, mut done) = (layer.len(), 0);
        for table in Table::ALL {
            let mut records = layer.records(table).peekable();
            if records.peek().is_none() {
                continue;
            }
            self.wait_for_merges(self.table(table))?;
            let mut file = self.table(table).start_ingestion()?;
            let mut unsynced_bytes = 0;
            for (key, record) in records {
                let slice = fjall::Slice::from(&**key);
                unsynced_bytes += key.len() + record.map_or(0, |record| record.value.len());
                if unsynced_bytes > BYTES_A_SYNC {
                    sync_newest_file(self.table(table))?;
                    unsynced_bytes = 0;
                }
                match record {
                    Some(record) => file.write(slice, encode_record(table, key, record))?,
                    None => {
                        file.write_tombstone(slice)?;
                        removed[table as usize].fetch_add(1, Ordering::Relaxed);
                    }
                }
                done += 1;
                if done % RECORDS_A_PACE == 0 {
                    pace(done as f64 / all as f64);
                }
            }
            file.finish()?;
        }
        Ok(())
    }

    pub(super) fn get(&self, key: &Key) -> Result<Option<Bytes>, ReadError> {
        let table = self.table(key.table);
        let stored = table.get(&*key.key).map_err(|error| read_error(table, error))?;
        Ok(stored.map(Bytes::from))
    }

    /// A consistent view of all tables at this moment.
    pub(super) fn snapshot(&self) -> Snapshot {
        self.database.snapshot()
    }

    pub(super) fn range(
        &self,
        snapshot: &Snapshot,
        table: Table,
        range: KeyRange,
        order: Order,
    ) -> impl Iterator<Item = Result<(KeyBytes, Bytes), ReadError>> {
        let keyspace = self.table(table).clone();
        let entries = snapshot.range(&keyspace, range);
        let entries: Box<dyn Iterator<Item = fjall::Guard>> = match order {
            Order::Ascending => Box::new(entries),
            Order::Descending => Box::new(entries.rev()),
        };
        entries.map(move |guard| {
            let (key, stored) = guard.into_inner().map_err(|error| read_error(&keyspace, error))?;
            Ok((KeyBytes::from(&*key), Bytes::from(stored)))
        })
    }

    pub(super) fn size_bytes(&self) -> Option<u64> {
        self.database.disk_space().ok()
    }
}

/// Syncs the bytes written so far of a table's newest file.
fn sync_newest_file(table: &Keyspace) -> io::Result<()> {
    let number = |entry: &fs::DirEntry| entry.file_name().to_str().and_then(|name| name.parse::<u64>().ok());
    let files = fs::read_dir(table.path().join("tables"))?.collect::<io::Result<Vec<_>>>()?;
    match files.iter().max_by_key(|entry| number(entry)) {
        Some(newest) => File::open(newest.path())?.sync_data(),
        None => Ok(()),
    }
}

/// Lowers the priority of this thread, and of the threads that it starts later, below threads that answer callers.
pub(super) fn go_behind() {
    #[cfg(target_os = "linux")] // elsewhere it is for the whole process
    if let Err(error) = rustix::process::setpriority_process(None, NICENESS) {
        tracing::debug!(%error, "failed to lower the priority of a thread");
    }
}

fn of_engine(path: &Path, source: fjall::Error) -> OpenError {
    OpenError::Engine { path: path.into(), source: source.into() }
}

fn read_error(table: &Keyspace, source: fjall::Error) -> ReadError {
    ReadError::Engine { path: table.path().into(), source: source.into() }
}

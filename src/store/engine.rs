//! fjall, opened: a keyspace for each table.
//!
//! Records go into the tables many at a time, sorted, as table files of their own (fjall calls that ingestion). So nothing
//! of ours is in fjall's journals or memtables, and what is in a table is on disk.

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

/// Where fjall has its files.
pub(super) const ENGINE_FOLDER: &str = "fjall";
/// Where fjall has the folders of its keyspaces.
const KEYSPACES_FOLDER: &str = "keyspaces";
/// Runs of files that are to be merged: with more, a layer waits.
const RUNS_BEHIND_MAX: usize = 24;
const WAIT_FOR_MERGES: Duration = Duration::from_millis(10);
/// After how many records one looks whether there is time.
const RECORDS_A_PACE: usize = 64;
/// Bytes of a table file after which it is synced while it is being written. fjall syncs it at its end, and a group that is
/// committed just then would wait until the disk has all of it.
const BYTES_A_SYNC: usize = 1024 * 1024;
/// Of threads that write and merge tables: a fifth of the processor's time of another, if both want it.
#[cfg(target_os = "linux")]
const NICENESS: i32 = 7;

/// Handles of the open files. The tables go before the database that they are of.
#[derive(Clone)]
pub(super) struct Engine {
    pub(super) tables: Vec<Keyspace>,
    /// For fjall alone: see `space`.
    pub(super) housekeeping: Keyspace,
    database: Database,
}

impl Engine {
    /// Opens it, or makes it if it is not there: under another name first, so that a power cut leaves all of it or nothing.
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
            go_behind(); // and so do fjall's threads, which this one starts
            // With more than one, one of them goes round and round while the other merges.
            Database::builder(path).worker_threads(1).open()
        };
        let database = std::thread::scope(|scope| scope.spawn(open).join()).expect("fjall does not panic")?;
        let keyspace = |name: &str| database.keyspace(name, KeyspaceCreateOptions::default);
        let tables = Table::ALL.iter().map(|table| keyspace(table.name())).collect::<Result<_, _>>()?;
        let housekeeping = keyspace(HOUSEKEEPING)?;
        disk::sync_folder(&path.join(KEYSPACES_FOLDER))?; // fjall syncs the folders of its keyspaces, but not their names
        Ok(Self { tables, housekeeping, database })
    }

    /// Waits until a table's files are merged so far that it may have another one.
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

    /// Writes a layer into the tables and syncs them. `removed` counts the records, by table, that were removed; `pace` hears
    /// now and then what part is done. Cut off at any point, it can be done again.
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

/// Has what was written of a table's newest file brought to the disk.
fn sync_newest_file(table: &Keyspace) -> io::Result<()> {
    let number = |entry: &fs::DirEntry| entry.file_name().to_str().and_then(|name| name.parse::<u64>().ok());
    let files = fs::read_dir(table.path().join("tables"))?.collect::<io::Result<Vec<_>>>()?;
    match files.iter().max_by_key(|entry| number(entry)) {
        Some(newest) => File::open(newest.path())?.sync_data(),
        None => Ok(()),
    }
}

/// This thread, and those that it starts, let go first whoever answers somebody.
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

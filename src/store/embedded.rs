//! The store on disk: fjall, one keyspace a table, one synced batch a group.
//!
//! A group is written to fjall's journal, synced (`fdatasync`) and only then shown to readers; fjall does it in this
//! order for a batch with a durability. The folder has
//!
//! - `FORMAT`, which says what wrote it; an unknown one is refused and nothing is touched,
//! - `LOCK`, held as long as the store is open, with the process id of its holder,
//! - `witness`, the number of the last group. fjall's recovery cuts a damaged journal at the damage and drops what
//!   follows it without a word. The store knows the number of its last group too: if it is lower than the witness's,
//!   groups that were answered are gone, and the store does not open,
//! - `rescue`, only while the store is being opened: the journals as they were, so that an open that fails can put them
//!   back. A damaged store is never made worse by being opened.

use std::{
    fs::{self, File, TryLockError},
    io::{self, Read, Seek, Write as _},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{
        Mutex, RwLock,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode, Readable};

use super::{
    Change, CommitError, Conflict, Decision, Key, KeyRange, Order, ReadError, Record, Store, Table, decide,
    rescue::{self, Journals},
};

/// What this version writes into `FORMAT`.
const FORMAT: &str = "baton-store 2\n";
/// First byte of every record; the layout is this byte, revision (u64), CRC-32C (u32), both big-endian, then the value.
const RECORD_FORMAT: u8 = 1;
const RECORD_HEAD: usize = 13;
const WITNESS_MAGIC: &[u8; 8] = b"batonwit";
/// fjall's own bookkeeping keyspace for the number of the last group; not one of our tables.
const GROUPS: &str = "groups";
const LAST_GROUP: &str = "last";
/// Where fjall has its files.
pub(super) const ENGINE_FOLDER: &str = "fjall";

/// Failed to open a store.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another broker has it.
    #[error(
        "failed to open the store in {}: another broker has it (process {pid}); stop that one, or name another folder \
         with --data",
        path.display()
    )]
    InUse {
        /// The folder.
        path: PathBuf,
        /// The other's process id, or "unknown".
        pid: String,
    },
    /// Written by another version.
    #[error(
        "failed to open the store in {}: its format is {found:?}, and this version knows only {:?}; use the version \
         that wrote it, or name another folder with --data",
        path.display(),
        FORMAT.trim_end()
    )]
    Format {
        /// The folder.
        path: PathBuf,
        /// What its FORMAT says.
        found: String,
    },
    /// Something is in the folder, but not a store.
    #[error("failed to open the store in {}: the folder is not empty and has no FORMAT file", path.display())]
    NotAStore {
        /// The folder.
        path: PathBuf,
    },
    /// Groups are gone.
    #[error(
        "failed to open the store in {}: the journal {} is damaged: it ends at group {store}, but group {witness} was \
         written; nothing was changed. Restore the folder from a backup, or see what can be read with `baton store \
         check` and save it with `baton store export`",
        path.display(), journal.display()
    )]
    LostWrites {
        /// The folder.
        path: PathBuf,
        /// The damaged file.
        journal: PathBuf,
        /// The last group that is there.
        store: u64,
        /// The last group that was written.
        witness: u64,
    },
    /// A file cannot be read or written.
    #[error("failed to open the store: {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// fjall cannot open it.
    #[error(
        "failed to open the store: {} is damaged: {source}; nothing was changed. Restore the folder from a backup, or \
         see what can be read with `baton store check` and save it with `baton store export`",
        path.display()
    )]
    Engine {
        /// The damaged file, or the folder of the table.
        path: PathBuf,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// A store on disk.
pub struct EmbeddedStore {
    path: PathBuf,
    /// Empty only while it is being opened again.
    engine: RwLock<Option<Engine>>,
    last_group: Mutex<u64>,
    witness: File,
    poisoned: AtomicBool,
    /// Dropped last: the lock goes when everything else is closed.
    _lock: File,
}

/// Holds a folder so that no broker opens it meanwhile, without opening it.
pub(super) struct FolderGuard {
    _lock: File,
}

impl FolderGuard {
    /// Only of a folder that has a store of this version.
    pub(super) fn take(path: &Path) -> Result<Self, OpenError> {
        if !path.join("FORMAT").exists() {
            return Err(OpenError::NotAStore { path: path.into() });
        }
        check_format(path)?;
        Ok(Self { _lock: lock(path)? })
    }
}

/// The open files of fjall. The tables go before the database that they are of.
pub(super) struct Engine {
    tables: Vec<Keyspace>,
    groups: Keyspace,
    database: Database,
}

impl Engine {
    pub(super) fn open(path: &Path) -> Result<Self, OpenError> {
        let engine_path = path.join(ENGINE_FOLDER);
        let error = |source: fjall::Error| OpenError::Engine { path: engine_path.clone(), source: source.into() };
        let database = Database::builder(&engine_path).open().map_err(error)?;
        let keyspace = |name: &str| {
            let opened = database.keyspace(name, KeyspaceCreateOptions::default);
            opened.map_err(|source| OpenError::Engine { path: engine_path.clone(), source: source.into() })
        };
        let tables = Table::ALL.iter().map(|table| keyspace(table.name())).collect::<Result<_, _>>()?;
        let groups = keyspace(GROUPS)?;
        Ok(Self { tables, groups, database })
    }

    pub(super) fn last_group(&self) -> Result<u64, OpenError> {
        let error = |source: fjall::Error| OpenError::Engine { path: self.groups.path().into(), source: source.into() };
        let last = self.groups.get(LAST_GROUP).map_err(error)?;
        Ok(last.and_then(|number| number.as_ref().try_into().ok()).map_or(0, u64::from_be_bytes))
    }

    pub(super) fn table(&self, table: Table) -> &Keyspace {
        &self.tables[table as usize]
    }
}

impl EmbeddedStore {
    /// Opens the store in this folder, or makes one if the folder is empty or not there. A damaged one is left as it is.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        let file_error = |path: &Path| {
            let path = path.to_owned();
            move |source| OpenError::File { path, source }
        };
        fs::create_dir_all(path).map_err(file_error(path))?;
        check_format(path)?;
        let lock = lock(path)?;
        let witness_path = path.join("witness");
        let witness = open_witness(&witness_path).map_err(file_error(&witness_path))?;
        let (engine, last_group) = open_unharmed(path, &witness)?;
        Ok(Self {
            path: path.into(),
            engine: RwLock::new(Some(engine)),
            last_group: Mutex::new(last_group),
            witness,
            poisoned: AtomicBool::new(false),
            _lock: lock,
        })
    }

    fn with_engine<T>(&self, act: impl FnOnce(&Engine) -> Result<T, ReadError>) -> Result<T, ReadError> {
        match &*self.engine.read().expect("no writer panics") {
            Some(engine) => act(engine),
            None => Err(ReadError::Closed { path: self.path.clone() }),
        }
    }

    fn record(&self, table: Table, key: &[u8], stored: &Bytes) -> Result<Record, ReadError> {
        decode_record(table, key, stored).map_err(|problem| ReadError::Damaged {
            table: table.name(),
            key: hex::encode(key),
            path: self.path.clone(),
            problem,
        })
    }

    fn write(engine: &Engine, writes: &[&super::Write], group: u64) -> Result<(), fjall::Error> {
        let mut batch = engine.database.batch().durability(Some(PersistMode::SyncData));
        for write in writes {
            let table = engine.table(write.key.table);
            let key = fjall::Slice::from(write.key.key.as_ref());
            match &write.record {
                Some(record) => batch.insert(table, key, encode_record(write.key.table, &write.key.key, record)),
                None => batch.remove(table, key),
            }
        }
        batch.insert(&engine.groups, LAST_GROUP, group.to_be_bytes());
        batch.commit()
    }
}

impl Store for EmbeddedStore {
    fn get(&self, key: &Key) -> Result<Option<Record>, ReadError> {
        let stored = self.with_engine(|engine| {
            let table = engine.table(key.table);
            table.get(&key.key).map_err(|error| read_error(table, error))
        })?;
        stored.map(|stored| self.record(key.table, &key.key, &Bytes::from(stored))).transpose()
    }

    fn scan(
        &self,
        table: Table,
        range: KeyRange,
        order: Order,
        limit: usize,
    ) -> Result<Vec<(Bytes, Record)>, ReadError> {
        self.with_engine(|engine| {
            let keyspace = engine.table(table);
            let snapshot = engine.database.snapshot();
            let entries = snapshot.range(keyspace, range);
            let read = |guard: fjall::Guard| {
                let (key, stored) = guard.into_inner().map_err(|error| read_error(keyspace, error))?;
                let record = self.record(table, &key, &Bytes::from(stored))?;
                Ok((Bytes::from(key), record))
            };
            match order {
                Order::Ascending => entries.take(limit).map(read).collect(),
                Order::Descending => entries.rev().take(limit).map(read).collect(),
            }
        })
    }

    fn commit(&self, group: &[Change]) -> Result<Vec<Result<(), Conflict>>, CommitError> {
        // Held over the whole commit: what was compared must still be so when it is set.
        let mut last_group = self.last_group.lock().expect("no writer panics");
        if self.poisoned.load(Ordering::Relaxed) {
            return Err(CommitError::Poisoned { path: self.path.clone() });
        }
        let Decision { outcomes, writes } =
            decide(group, |key| Ok::<_, CommitError>(self.get(key)?.map(|found| found.revision)))?;
        if writes.is_empty() {
            return Ok(outcomes);
        }
        let number = *last_group + 1;
        let engine = self.engine.read().expect("no writer panics");
        let Some(engine) = &*engine else { return Err(CommitError::Poisoned { path: self.path.clone() }) };
        if let Err(source) = Self::write(engine, &writes, number) {
            self.poisoned.store(true, Ordering::Relaxed);
            return Err(CommitError::Engine { path: self.path.clone(), source: source.into() });
        }
        *last_group = number;
        // Not synced: it guards against a damaged journal, not against a power cut, after which it may be older.
        if let Err(error) = self.witness.write_all_at(&encode_witness(number), 0) {
            tracing::warn!(path = %self.path.display(), %error, "failed to write the witness file");
        }
        Ok(outcomes)
    }

    /// Closes fjall, which takes no more writes after one that failed, and opens it again over what is on disk.
    fn recover(&self) -> Result<(), OpenError> {
        let mut last_group = self.last_group.lock().expect("no writer panics");
        let mut engine = self.engine.write().expect("no writer panics");
        drop(engine.take());
        let (opened, last) = open_unharmed(&self.path, &self.witness)?;
        *engine = Some(opened);
        *last_group = last;
        self.poisoned.store(false, Ordering::Relaxed);
        Ok(())
    }
}

/// Opens fjall's files. If they are damaged, they are as they were afterwards.
fn open_unharmed(path: &Path, witness: &File) -> Result<(Engine, u64), OpenError> {
    let journals = Journals::keep(path).map_err(|(path, source)| OpenError::File { path, source })?;
    let opened = Engine::open(path).and_then(|engine| {
        let last_group = engine.last_group()?;
        Ok((engine, last_group))
    });
    let witnessed = read_witness(witness).unwrap_or(0);
    let outcome = match opened {
        Ok((engine, store)) if store < witnessed => {
            drop(engine);
            let journal = journals.last().unwrap_or_else(|| path.join(ENGINE_FOLDER));
            Err(OpenError::LostWrites { path: path.into(), journal, store, witness: witnessed })
        }
        Err(OpenError::Engine { path: engine, source }) => {
            let path = rescue::damaged_journal(&*source, &journals).unwrap_or(engine);
            Err(OpenError::Engine { path, source })
        }
        opened => opened,
    };
    // By now whatever was opened in vain is closed again.
    let put_away = if outcome.is_ok() { journals.forget() } else { journals.put_back() };
    put_away.map_err(|(path, source)| OpenError::File { path, source })?;
    outcome
}

fn read_error(table: &Keyspace, source: fjall::Error) -> ReadError {
    ReadError::Engine { path: table.path().into(), source: source.into() }
}

fn check_format(path: &Path) -> Result<(), OpenError> {
    let format_path = path.join("FORMAT");
    let error = |source| OpenError::File { path: format_path.clone(), source };
    match fs::read(&format_path) {
        Ok(found) if found == FORMAT.as_bytes() => Ok(()),
        Ok(found) => {
            let found = String::from_utf8_lossy(&found).trim_end().chars().take(80).collect();
            Err(OpenError::Format { path: path.into(), found })
        }
        Err(missing) if missing.kind() == io::ErrorKind::NotFound => {
            // Complete or absent, never half: written beside it, synced, renamed. The draft may be there from a start that
            // was cut off.
            let draft = path.join("FORMAT.new");
            let is_other = |entry: io::Result<fs::DirEntry>| entry.map_or(true, |entry| entry.path() != draft);
            if fs::read_dir(path).map_err(error)?.any(is_other) {
                return Err(OpenError::NotAStore { path: path.into() });
            }
            let written = File::create(&draft).and_then(|mut file| {
                file.write_all(FORMAT.as_bytes())?;
                file.sync_all()?;
                fs::rename(&draft, &format_path)?;
                File::open(path)?.sync_all()
            });
            written.map_err(error)
        }
        Err(other) => Err(error(other)),
    }
}

fn lock(path: &Path) -> Result<File, OpenError> {
    let lock_path = path.join("LOCK");
    let error = |source| OpenError::File { path: lock_path.clone(), source };
    let mut file =
        File::options().read(true).write(true).create(true).truncate(false).open(&lock_path).map_err(error)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut pid = String::new();
            let read = file.read_to_string(&mut pid);
            let known = read.is_ok() && !pid.trim().is_empty();
            let pid = if known { pid.trim().to_owned() } else { "unknown".to_owned() };
            return Err(OpenError::InUse { path: path.into(), pid });
        }
        Err(TryLockError::Error(source)) => return Err(error(source)),
    }
    let written = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| writeln!(file, "{}", std::process::id()));
    written.map_err(error)?;
    Ok(file)
}

pub(super) fn open_witness(path: &Path) -> io::Result<File> {
    File::options().read(true).write(true).create(true).truncate(false).open(path)
}

/// The number in the witness file, if it is whole.
pub(super) fn read_witness(file: &File) -> Option<u64> {
    let mut stored = [0; 20];
    file.read_exact_at(&mut stored, 0).ok()?;
    let number = u64::from_be_bytes(stored[8..16].try_into().expect("8 bytes"));
    (stored == encode_witness(number)).then_some(number)
}

fn encode_witness(number: u64) -> [u8; 20] {
    let mut stored = [0; 20];
    stored[..8].copy_from_slice(WITNESS_MAGIC);
    stored[8..16].copy_from_slice(&number.to_be_bytes());
    let checksum = crc32c::crc32c(&stored[..16]);
    stored[16..].copy_from_slice(&checksum.to_be_bytes());
    stored
}

fn encode_record(table: Table, key: &[u8], record: &Record) -> Vec<u8> {
    let mut stored = Vec::with_capacity(RECORD_HEAD + record.value.len());
    stored.push(RECORD_FORMAT);
    stored.extend_from_slice(&record.revision.to_be_bytes());
    stored.extend_from_slice(&checksum(table, key, record.revision, &record.value).to_be_bytes());
    stored.extend_from_slice(&record.value);
    stored
}

pub(super) fn decode_record(table: Table, key: &[u8], stored: &Bytes) -> Result<Record, &'static str> {
    if stored.len() < RECORD_HEAD {
        return Err("it is too short");
    }
    if stored[0] != RECORD_FORMAT {
        return Err("its format is not known");
    }
    let revision = u64::from_be_bytes(stored[1..9].try_into().expect("8 bytes"));
    let expected = u32::from_be_bytes(stored[9..RECORD_HEAD].try_into().expect("4 bytes"));
    let value = stored.slice(RECORD_HEAD..);
    if checksum(table, key, revision, &value) != expected {
        return Err("its checksum is wrong");
    }
    Ok(Record { revision, value })
}

/// Over table and key too: a value in the wrong place is as wrong as a damaged one.
fn checksum(table: Table, key: &[u8], revision: u64, value: &[u8]) -> u32 {
    let mut sum = crc32c::crc32c(table.name().as_bytes());
    for part in [&key.len().to_be_bytes()[..], key, &revision.to_be_bytes(), value] {
        sum = crc32c::crc32c_append(sum, part);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_that_was_changed_or_moved_is_noticed() {
        let record = Record { revision: 7, value: Bytes::from_static(b"value") };
        let stored = encode_record(Table::Tasks, b"key", &record);
        assert_eq!(decode_record(Table::Tasks, b"key", &stored.clone().into()), Ok(record));
        for place in 0..stored.len() {
            let mut damaged = stored.clone();
            damaged[place] ^= 1;
            assert!(decode_record(Table::Tasks, b"key", &damaged.into()).is_err(), "byte {place}");
        }
        assert!(decode_record(Table::Tasks, b"kez", &stored.clone().into()).is_err());
        assert!(decode_record(Table::Agents, b"key", &stored.clone().into()).is_err());
        assert!(decode_record(Table::Tasks, b"key", &stored[..12].to_vec().into()).is_err());
    }
}

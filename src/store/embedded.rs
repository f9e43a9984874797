//! The store on disk: fjall, one keyspace a table, one synced batch a group.
//!
//! A group is written to fjall's journal, synced (`fdatasync`) and only then shown to readers; fjall does it in this
//! order for a batch with a durability. The folder has
//!
//! - `FORMAT`, which says what wrote it; an unknown one is refused and nothing is touched,
//! - `LOCK`, held as long as the store is open, with the process id of its holder,
//! - `witness`, the number of the last group. The store knows the number of its last group too: if it is lower than the
//!   witness's, groups that were answered are gone, and the store does not open,
//! - `fjall`, which fjall gets to see only after `survey` has found it whole: a damaged store is never made worse by being
//!   opened.

use std::{
    fs::{self, File, TryLockError},
    io::{self, Read, Seek, Write as _},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{
        Mutex, MutexGuard, RwLock,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use fjall::{AbstractTree as _, Database, Keyspace, KeyspaceCreateOptions, OwnedWriteBatch, PersistMode, Readable};

use super::{
    Change, CommitError, Conflict, Decision, Key, KeyRange, Order, ReadError, Record, Store, Table, decide,
    files::{Damage, Folder, cut_journal},
    recent::Recent,
    space::Space,
    survey,
};

/// What this version writes into `FORMAT`.
const FORMAT: &str = "baton-store 4\n";
/// First byte of every record; the layout is this byte, revision (u64), CRC-32C (u32), both big-endian, then the value.
const RECORD_FORMAT: u8 = 1;
const RECORD_HEAD: usize = 13;
const WITNESS_MAGIC: &[u8; 8] = b"batonwit";
/// fjall's own bookkeeping keyspace for the number of the last group; not one of our tables.
pub(super) const GROUPS: &str = "groups";
pub(super) const LAST_GROUP: &str = "last";
/// Where fjall has its files.
pub(super) const ENGINE_FOLDER: &str = "fjall";
/// A store that failed to write takes writes again once there is room for this much.
const ROOM_BYTES: usize = 16 * 1024 * 1024;
const ROOM_FILE: &str = "room";
/// fjall holds a commit back at 4 memtables that are to be written to disk, and at 30 runs that are to be merged.
const MEMTABLES_BEHIND_MAX: usize = 2;
const RUNS_BEHIND_MAX: usize = 24;
/// A start after a kill reads the journals, at about 20 ms a MiB; and what they hold is in memory. fjall would let them grow
/// to four times as much.
const JOURNAL_BYTES_MAX: u64 = 128 * 1024 * 1024;
/// How often it is looked whether there is space to be given back.
const GROUPS_BETWEEN_LOOKS: u64 = 1024;
const WAIT_FOR_FLUSHES: Duration = Duration::from_millis(10);

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
    /// A file is not what was written.
    #[error(
        "failed to open the store: {} is damaged: {problem}; nothing was changed. Restore the folder from a backup, or \
         see what can be read with `baton store check` and save it with `baton store export`",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A file cannot be read or written.
    #[error("failed to open the store: {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// fjall cannot open it, though all that was looked at is whole.
    #[error(
        "failed to open the store: fjall cannot open {}: {source}. Restore the folder from a backup, or see what can be \
         read with `baton store check` and save it with `baton store export`",
        path.display()
    )]
    Engine {
        /// The folder.
        path: PathBuf,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl OpenError {
    /// Whether what is on disk is not what was written, and trying again is of no use.
    pub fn is_damage(&self) -> bool {
        matches!(self, Self::LostWrites { .. } | Self::Damaged { .. })
    }
}

impl From<Damage> for OpenError {
    fn from(damage: Damage) -> Self {
        Self::Damaged { path: damage.path, problem: damage.problem }
    }
}

/// A store on disk.
pub struct EmbeddedStore {
    path: PathBuf,
    /// Empty only while it is being opened again.
    engine: RwLock<Option<Engine>>,
    last_group: Mutex<u64>,
    recent: Mutex<Recent>,
    space: Space,
    witness: File,
    poisoned: AtomicBool,
    /// How often in a row it was fjall's own threads that failed, and not a write of ours.
    background_failures: AtomicU32,
    /// Dropped last: the lock goes when everything else is closed.
    _lock: File,
}

/// Holds a folder so that no broker opens it meanwhile, without opening it and without changing anything.
pub(super) struct FolderGuard {
    _lock: Option<File>,
}

impl FolderGuard {
    /// Only of a folder that has a store of this version.
    pub(super) fn take(path: &Path) -> Result<Self, OpenError> {
        let format_path = path.join("FORMAT");
        let found = fs::read(&format_path).map_err(|source| OpenError::File { path: format_path, source })?;
        compare_format(path, &found)?;
        let lock_path = path.join("LOCK");
        let error = |source| OpenError::File { path: lock_path.clone(), source };
        let mut lock = match File::open(&lock_path) {
            // Nobody ever had it open, or it is a copy of one.
            Err(missing) if missing.kind() == io::ErrorKind::NotFound => return Ok(Self { _lock: None }),
            opened => opened.map_err(error)?,
        };
        match lock.try_lock_shared() {
            Ok(()) => Ok(Self { _lock: Some(lock) }),
            Err(TryLockError::WouldBlock) => Err(in_use(path, &mut lock)),
            Err(TryLockError::Error(source)) => Err(error(source)),
        }
    }
}

/// The open files of fjall. The tables go before the database that they are of.
struct Engine {
    tables: Vec<Keyspace>,
    groups: Keyspace,
    database: Database,
}

impl Engine {
    fn open(path: &Path) -> Result<Self, OpenError> {
        let engine_path = path.join(ENGINE_FOLDER);
        let error = |source: fjall::Error| OpenError::Engine { path: engine_path.clone(), source: source.into() };
        let builder = Database::builder(&engine_path).max_journaling_size(JOURNAL_BYTES_MAX);
        let database = builder.open().map_err(error)?;
        let keyspace = |name: &str| {
            let opened = database.keyspace(name, KeyspaceCreateOptions::default);
            opened.map_err(|source| OpenError::Engine { path: engine_path.clone(), source: source.into() })
        };
        let tables = Table::ALL.iter().map(|table| keyspace(table.name())).collect::<Result<_, _>>()?;
        let groups = keyspace(GROUPS)?;
        Ok(Self { tables, groups, database })
    }

    /// Waits until fjall has room for another commit. fjall would wait inside the commit, and for ever if the threads that
    /// make room have failed, as they do when the disk is full.
    #[expect(clippy::disallowed_methods, reason = "the thread that commits has nothing else to do")]
    fn wait_for_flushes(&self) -> Result<(), fjall::Error> {
        let is_behind = |table: &Keyspace| {
            table.sealed_memtable_count() > MEMTABLES_BEHIND_MAX || table.tree.l0_run_count() > RUNS_BEHIND_MAX
        };
        while self.tables.iter().chain([&self.groups]).any(is_behind) {
            self.database.persist(PersistMode::Buffer)?; // fails once such a thread has failed
            std::thread::sleep(WAIT_FOR_FLUSHES);
        }
        Ok(())
    }

    fn last_group(&self) -> Result<u64, OpenError> {
        let error = |source: fjall::Error| OpenError::Engine { path: self.groups.path().into(), source: source.into() };
        let last = self.groups.get(LAST_GROUP).map_err(error)?;
        Ok(last.and_then(|number| number.as_ref().try_into().ok()).map_or(0, u64::from_be_bytes))
    }

    fn table(&self, table: Table) -> &Keyspace {
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
        remove_room(path).map_err(file_error(&path.join(ROOM_FILE)))?;
        let (engine, last_group) = open_whole(path, read_witness(&witness).unwrap_or(0))?;
        Ok(Self {
            path: path.into(),
            engine: RwLock::new(Some(engine)),
            last_group: Mutex::new(last_group),
            recent: Mutex::default(),
            space: Space::default(),
            witness,
            poisoned: AtomicBool::new(false),
            background_failures: AtomicU32::new(0),
            _lock: lock,
        })
    }

    fn with_engine<T>(&self, act: impl FnOnce(&Engine) -> Result<T, ReadError>) -> Result<T, ReadError> {
        match &*self.engine.read().expect("no writer panics") {
            Some(engine) => act(engine),
            None => Err(ReadError::Closed { path: self.path.clone() }),
        }
    }

    fn recent(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock().expect("no holder panics")
    }

    /// From the files.
    fn read(&self, key: &Key) -> Result<Option<Record>, ReadError> {
        let stored = self.with_engine(|engine| {
            let table = engine.table(key.table);
            table.get(&key.key).map_err(|error| read_error(table, error))
        })?;
        stored.map(|stored| self.record(key.table, &key.key, &Bytes::from(stored))).transpose()
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
        engine.wait_for_flushes()?;
        let batch = OwnedWriteBatch::with_capacity(engine.database.clone(), writes.len() + 1);
        let mut batch = batch.durability(Some(PersistMode::SyncData));
        for write in writes {
            let table = engine.table(write.key.table);
            let key = fjall::Slice::from(write.key.key.clone());
            match &write.record {
                Some(record) => batch.insert(table, key, encode_record(write.key.table, &write.key.key, record)),
                None => batch.remove(table, key),
            }
        }
        batch.insert(&engine.groups, LAST_GROUP, group.to_be_bytes());
        batch.commit()
    }
}

impl Drop for EmbeddedStore {
    fn drop(&mut self) {
        self.space.wait();
    }
}

impl Store for EmbeddedStore {
    fn get(&self, key: &Key) -> Result<Option<Record>, ReadError> {
        if !Recent::keeps(key.table) {
            return self.read(key);
        }
        let since = {
            let recent = self.recent();
            if let Some(found) = recent.get(key) {
                return Ok(found.clone());
            }
            recent.commits()
        };
        let found = self.read(key)?;
        self.recent().learn(since, key, &found);
        Ok(found)
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

    fn size_bytes(&self) -> Option<u64> {
        if self.space.is_being_given_back() {
            return None;
        }
        let engine = self.engine.read().expect("no writer panics");
        engine.as_ref()?.database.disk_space().ok()
    }

    fn give_space_back(&self) {
        if let Some(engine) = &*self.engine.read().expect("no writer panics") {
            self.space.give_back(&engine.tables, &engine.groups, true);
        }
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
            match source {
                fjall::Error::Poisoned => self.background_failures.fetch_add(1, Ordering::Relaxed),
                _ => self.background_failures.swap(0, Ordering::Relaxed),
            };
            return Err(CommitError::Engine { path: self.path.clone(), source: source.into() });
        }
        *last_group = number;
        self.recent().committed(writes.iter().map(|write| (&write.key, &write.record)));
        let removed = writes.iter().filter(|write| write.record.is_none());
        removed.for_each(|write| self.space.removed(write.key.table));
        if number.is_multiple_of(GROUPS_BETWEEN_LOOKS) {
            self.space.give_back(&engine.tables, &engine.groups, false);
        }
        // Not synced: it guards against a damaged journal, not against a power cut, after which it may be older.
        if let Err(error) = self.witness.write_all_at(&encode_witness(number), 0) {
            tracing::warn!(path = %self.path.display(), %error, "failed to write the witness file");
        }
        Ok(outcomes)
    }

    /// Closes fjall, which takes no more writes after one that failed, and opens it again over what is on disk: all that
    /// was answered, and nothing else. As long as there is no room to write, everything can still be read.
    fn recover(&self) -> Result<(), OpenError> {
        let last_group = self.last_group.lock().expect("no writer panics");
        make_sure_of_room(&self.path)?;
        let mut engine = self.engine.write().expect("no writer panics");
        self.space.wait();
        drop(engine.take());
        self.recent().forget();
        let folder = Folder::new(self.path.join(ENGINE_FOLDER));
        if self.background_failures.load(Ordering::Relaxed) > 1 {
            // There is room, and still fjall's threads fail: something that they read may be damaged.
            survey::check_tables(&folder)?;
            self.background_failures.store(0, Ordering::Relaxed);
        }
        survey::cut_behind(&folder, *last_group)?;
        let (opened, _) = open_whole(&self.path, *last_group)?;
        *engine = Some(opened);
        self.poisoned.store(false, Ordering::Relaxed);
        Ok(())
    }
}

/// Opens fjall's files if they are whole and have all groups up to this one. Otherwise they are not touched.
fn open_whole(path: &Path, group: u64) -> Result<(Engine, u64), OpenError> {
    let folder = Folder::new(path.join(ENGINE_FOLDER));
    let survey = survey::check(&folder)?;
    if survey.last_group < group {
        let journal = survey.journal.unwrap_or_else(|| folder.path().into());
        return Err(OpenError::LostWrites { path: path.into(), journal, store: survey.last_group, witness: group });
    }
    if let Some((journal, length)) = survey.unfinished {
        cut_journal(&journal, length)?; // nobody had an answer to it
    }
    let engine = Engine::open(path)?;
    let last_group = engine.last_group()?;
    if last_group != survey.last_group {
        let source = format!("it ends at group {last_group}, but the files end at group {}", survey.last_group).into();
        return Err(OpenError::Engine { path: folder.path().into(), source });
    }
    Ok((engine, last_group))
}

/// Writes a file as large as what may be written next, and removes it. Not of zeros: some disks do not store those.
fn make_sure_of_room(path: &Path) -> Result<(), OpenError> {
    let file_path = path.join(ROOM_FILE);
    let mut number = 1_u64;
    let noise = std::iter::repeat_with(|| {
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        number.to_le_bytes()
    });
    let chunk: Vec<u8> = noise.take(64 * 1024 / 8).flatten().collect();
    let written = File::create(&file_path).and_then(|mut file| {
        (0..ROOM_BYTES / chunk.len()).try_for_each(|_| file.write_all(&chunk))?;
        file.sync_all()
    });
    let removed = remove_room(path);
    written.and(removed).map_err(|source| OpenError::File { path: file_path, source })
}

fn remove_room(path: &Path) -> io::Result<()> {
    match fs::remove_file(path.join(ROOM_FILE)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn read_error(table: &Keyspace, source: fjall::Error) -> ReadError {
    ReadError::Engine { path: table.path().into(), source: source.into() }
}

fn check_format(path: &Path) -> Result<(), OpenError> {
    let format_path = path.join("FORMAT");
    let error = |source| OpenError::File { path: format_path.clone(), source };
    match fs::read(&format_path) {
        Ok(found) => compare_format(path, &found),
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

fn compare_format(path: &Path, found: &[u8]) -> Result<(), OpenError> {
    if found == FORMAT.as_bytes() {
        return Ok(());
    }
    let found = String::from_utf8_lossy(found).trim_end().chars().take(80).collect();
    Err(OpenError::Format { path: path.into(), found })
}

fn in_use(path: &Path, lock: &mut File) -> OpenError {
    let mut pid = String::new();
    let read = lock.read_to_string(&mut pid);
    let known = read.is_ok() && !pid.trim().is_empty();
    let pid = if known { pid.trim().to_owned() } else { "unknown".to_owned() };
    OpenError::InUse { path: path.into(), pid }
}

fn lock(path: &Path) -> Result<File, OpenError> {
    let lock_path = path.join("LOCK");
    let error = |source| OpenError::File { path: lock_path.clone(), source };
    let mut file =
        File::options().read(true).write(true).create(true).truncate(false).open(&lock_path).map_err(error)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(in_use(path, &mut file)),
        Err(TryLockError::Error(source)) => return Err(error(source)),
    }
    let written = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| writeln!(file, "{}", std::process::id()));
    written.map_err(error)?;
    Ok(file)
}

fn open_witness(path: &Path) -> io::Result<File> {
    File::options().read(true).write(true).create(true).truncate(false).open(path)
}

/// The number in the witness file, if it is whole.
/// How many groups were committed in this folder since it was made, each with one sync. Can be read while a broker has it.
pub fn groups_committed(path: &Path) -> Option<u64> {
    read_witness(&File::open(path.join("witness")).ok()?)
}

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

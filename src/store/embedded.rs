//! The store on disk: groups in a log with one sync each, records in their tables later.
//!
//! A group is on disk, in the log, before any reader sees it. Its records then stay in memory, in `pending`; when these
//! are enough, a thread writes the newest version of each into its table. Readers ask `pending` first, then the tables.
//! Opening a store reads the part of the log that the tables may not have, so closing it needs no work.
//!
//! fjall opens its files only after `survey` has checked them. So opening a damaged store never makes the damage worse.

use std::{
    fs::File,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use bytes::Bytes;

use super::{
    Change, CommitError, Conflict, Decision, Key, KeyBytes, KeyRange, Order, ReadError, Record, Store, Table, decide,
    engine::{Engine, go_behind},
    folder::{
        LOG_FOLDER, OpenError, ROOM_FILE, check_format, encode_witness, lock, make_sure_of_room, open_witness,
        read_witness, remove_room,
    },
    log::{self, Log},
    pending::{Layer, Pending, layered},
    recent::Recent,
    rows::{decode_record, encode_writes},
    space::Space,
    survey,
};
use crate::disk;

/// How long, and how many times at most, the thread that writes tables sleeps in one call of [`Memory::pace`].
const STEP: Duration = Duration::from_millis(1);
const STEPS_MAX: u32 = 5;
/// The speed of writing a layer into the tables, as a multiple of the speed at which the active layer fills. Above 1,
/// so that a layer is written before the next one is full.
const AHEAD: f64 = 1.2;

/// A store on disk.
pub struct EmbeddedStore {
    path: PathBuf,
    /// `None` only while [`Store::recover`] reopens the engine.
    engine: RwLock<Option<Engine>>,
    /// Locked during a whole commit. Lock order: `log`, `engine`, `settling`, then the locks of [`Memory`].
    log: Mutex<Log>,
    memory: Arc<Memory>,
    /// The thread that writes a layer into the tables, if one runs.
    settling: Mutex<Option<JoinHandle<()>>>,
    witness: File,
    /// The file lock on the folder. The last field: dropped after everything else is closed.
    _lock: File,
}

/// State shared with the thread that writes into the tables.
#[derive(Default)]
struct Memory {
    pending: RwLock<Pending>,
    /// Lock order: `pending`, then `recent`.
    recent: Mutex<Recent>,
    space: Space,
    /// A write failed, so the state on disk is unknown. Commits are refused until [`Store::recover`].
    poisoned: AtomicBool,
    /// The number of consecutive failures that came from fjall's own threads rather than from a write of the store.
    background_failures: AtomicU32,
    /// A caller waits for the layer's end, so the writer does not sleep.
    is_waited_for: AtomicBool,
    /// A compaction is requested, and starts after the pending records are in the tables.
    is_to_be_merged: AtomicBool,
}

impl Memory {
    fn pending(&self) -> RwLockReadGuard<'_, Pending> {
        self.pending.read().expect("no holder panics")
    }

    fn pending_mut(&self) -> RwLockWriteGuard<'_, Pending> {
        self.pending.write().expect("no holder panics")
    }

    fn recent(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock().expect("no holder panics")
    }

    fn failed(&self, source: &fjall::Error) {
        self.poisoned.store(true, Ordering::Relaxed);
        match source {
            // fjall poisons itself when one of its own threads fails.
            fjall::Error::Poisoned => self.background_failures.fetch_add(1, Ordering::Relaxed),
            _ => self.background_failures.swap(0, Ordering::Relaxed),
        };
    }

    /// Delays the writer, so that a layer is written as evenly as the active layer fills, only [`AHEAD`] times as fast.
    /// `done` is the written fraction of the layer, from 0 to 1.
    #[expect(clippy::disallowed_methods, reason = "a thread that has nothing else to do")]
    fn pace(&self, done: f64) {
        for _ in 0..STEPS_MAX {
            if self.is_waited_for.load(Ordering::Relaxed) || done < AHEAD * self.pending().fullness() {
                return;
            }
            std::thread::sleep(STEP);
        }
    }

    /// Writes a layer into the tables. Readers see the same records before and after.
    fn settle(&self, engine: &Engine, layer: &Layer) {
        match engine.settle(layer, self.space.removals(), |done| self.pace(done)) {
            Ok(()) => {
                let forgotten = {
                    let mut pending = self.pending_mut();
                    pending.settled();
                    self.recent().forget()
                };
                drop(forgotten);
            }
            Err(error) => {
                tracing::error!(%error, "failed to write records into their tables");
                self.failed(&error);
            }
        }
        let even_a_little = self.is_to_be_merged.load(Ordering::Acquire);
        self.space.give_back(&engine.tables, &engine.housekeeping, even_a_little);
        self.is_to_be_merged.store(false, Ordering::Release);
    }
}

impl EmbeddedStore {
    /// Opens the store in this folder; creates it if the folder is empty or missing. Leaves a damaged store unchanged.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        let file_error = |path: &Path| {
            let path = path.to_owned();
            move |source| OpenError::File { path, source }
        };
        disk::make_folder(path).map_err(file_error(path))?;
        check_format(path)?;
        let lock = lock(path)?;
        let witness_path = path.join("witness");
        let witness = open_witness(&witness_path).map_err(file_error(&witness_path))?;
        remove_room(path).map_err(file_error(&path.join(ROOM_FILE)))?;
        let (engine, log, pending) = open_whole(path, read_witness(&witness).unwrap_or(0))?;
        disk::sync_folder(path).map_err(file_error(path))?;
        Ok(Self {
            path: path.into(),
            engine: RwLock::new(Some(engine)),
            log: Mutex::new(log),
            memory: Arc::new(Memory { pending: RwLock::new(pending), ..Memory::default() }),
            settling: Mutex::default(),
            witness,
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

    /// Reads a record from its table, past `pending` and `recent`.
    fn read(&self, key: &Key) -> Result<Option<Record>, ReadError> {
        let stored = self.with_engine(|engine| engine.get(key))?;
        stored.map(|stored| self.record(key.table, &key.key, &stored)).transpose()
    }

    /// The revision of the record that [`Store::get`] finds.
    fn revision(&self, key: &Key) -> Result<Option<u64>, ReadError> {
        let revision = |found: &Option<Record>| found.as_ref().map(|record| record.revision);
        if let Some(found) = self.memory.pending().get(key) {
            return Ok(revision(found));
        }
        Ok(revision(&self.get(key)?))
    }

    /// Starts to write the pending records into the tables. If the previous layer is still being written, waits for it:
    /// this back-pressure keeps commits from outrunning a slow disk.
    fn settle(&self, engine: &Engine, log: &mut Log) {
        let mut settling = self.settling.lock().expect("no holder panics");
        self.wait_until_settled(&mut settling);
        if self.memory.poisoned.load(Ordering::Relaxed) {
            return;
        }
        let layer = {
            let mut pending = self.memory.pending_mut();
            if let Some(first) = pending.first_group() {
                log.roll(first - 1);
            }
            pending.settle()
        };
        let settle = {
            let (memory, engine, layer) = (self.memory.clone(), engine.clone(), layer.clone());
            move || {
                go_behind();
                memory.settle(&engine, &layer);
            }
        };
        match std::thread::Builder::new().name("baton-settle".to_owned()).spawn(settle) {
            Ok(thread) => *settling = Some(thread),
            Err(error) => {
                tracing::warn!(%error, "failed to start a thread that writes into the tables");
                // Without a thread the layer must still be written, so the committing thread does it.
                self.memory.settle(engine, &layer);
            }
        }
    }

    fn wait_until_settled(&self, settling: &mut Option<JoinHandle<()>>) {
        if let Some(thread) = settling.take() {
            self.memory.is_waited_for.store(true, Ordering::Relaxed);
            if thread.join().is_err() {
                self.memory.poisoned.store(true, Ordering::Relaxed); // the tables lack a part of its layer
            }
            self.memory.is_waited_for.store(false, Ordering::Relaxed);
        }
    }
}

impl Drop for EmbeddedStore {
    fn drop(&mut self) {
        self.wait_until_settled(&mut self.settling.lock().expect("no holder panics"));
        self.memory.space.wait();
    }
}

impl Store for EmbeddedStore {
    fn get(&self, key: &Key) -> Result<Option<Record>, ReadError> {
        let moment = {
            let pending = self.memory.pending();
            if let Some(found) = pending.get(key) {
                return Ok(found.clone());
            }
            if !Recent::keeps(key.table) {
                drop(pending);
                return self.read(key);
            }
            let recent = self.memory.recent();
            if let Some(found) = recent.get(key) {
                return Ok(found.clone());
            }
            recent.moment()
        };
        let found = self.read(key)?;
        self.memory.recent().learn(moment, key, &found);
        Ok(found)
    }

    fn get_in_memory(&self, key: &Key) -> Option<Option<Record>> {
        let pending = self.memory.pending();
        if let Some(found) = pending.get(key) {
            return Some(found.clone());
        }
        // Both locks are held at once, as in `get`, so that a record cannot move from `pending` into the tables
        // between.
        if Recent::keeps(key.table) { self.memory.recent().get(key).cloned() } else { None }
    }

    fn scan(
        &self,
        table: Table,
        range: KeyRange,
        order: Order,
        limit: usize,
    ) -> Result<Vec<(KeyBytes, Record)>, ReadError> {
        self.with_engine(|engine| {
            // Both views are taken under the lock of `pending`, so no record moves from one to the other between.
            let (pending, snapshot) = {
                let pending = self.memory.pending();
                (pending.range(table, &range, order, limit), engine.snapshot())
            };
            let settled = engine.range(&snapshot, table, range, order).map(|found| {
                let (key, stored) = found?;
                let record = self.record(table, &key, &stored)?;
                Ok((key, Some(record)))
            });
            let found = layered(pending.into_iter().map(Ok), settled, order);
            found.filter_map(|found| found.map(|(key, record)| Some((key, record?))).transpose()).take(limit).collect()
        })
    }

    fn size_bytes(&self) -> Option<u64> {
        if self.memory.is_to_be_merged.load(Ordering::Acquire) || self.memory.space.is_being_given_back() {
            return None;
        }
        let tables = self.engine.read().expect("no writer panics").as_ref()?.size_bytes()?;
        Some(tables + self.log.lock().expect("no holder panics").size_bytes())
    }

    fn give_space_back(&self) {
        let mut log = self.log.lock().expect("no holder panics");
        if let Some(engine) = &*self.engine.read().expect("no writer panics") {
            // The newest removals are pending; until they are tombstones in the tables, a merge cannot drop their
            // records.
            self.memory.is_to_be_merged.store(true, Ordering::Release);
            self.settle(engine, &mut log);
        }
    }

    fn commit(&self, group: Vec<Change>) -> Result<Vec<Result<(), Conflict>>, CommitError> {
        // Held during the whole commit, so that no other commit changes a revision between its comparison and the
        // write.
        let mut log = self.log.lock().expect("no holder panics");
        if self.memory.poisoned.load(Ordering::Relaxed) {
            return Err(CommitError::Poisoned { path: self.path.clone() });
        }
        let Decision { outcomes, writes } = decide(group, |key| Ok::<_, CommitError>(self.revision(key)?))?;
        // Every change was refused or wrote nothing, so no sync is due.
        if writes.is_empty() {
            return Ok(outcomes);
        }
        let engine = self.engine.read().expect("no writer panics");
        let Some(engine) = &*engine else { return Err(CommitError::Poisoned { path: self.path.clone() }) };
        let log_bytes = log.append(|content| encode_writes(content, &writes)).map_err(|source| {
            let source = fjall::Error::from(source);
            self.memory.failed(&source);
            CommitError::Engine { path: self.path.clone(), source: source.into() }
        })?;
        let number = log.last();
        let is_full = {
            let mut pending = self.memory.pending_mut();
            pending.committed(number, writes, log_bytes);
            pending.is_full()
        };
        // Not synced: the witness detects a damaged log. After a power cut an older number is harmless.
        if let Err(error) = self.witness.write_all_at(&encode_witness(number), 0) {
            tracing::warn!(path = %self.path.display(), %error, "failed to write the witness file");
        }
        if is_full {
            self.settle(engine, &mut log);
        }
        Ok(outcomes)
    }

    /// Closes fjall, which refuses writes after a failed one, and reopens it with the acknowledged groups and no other.
    /// While the disk has too little space to write, this fails before anything is closed, and reads continue.
    fn recover(&self) -> Result<(), OpenError> {
        let mut log = self.log.lock().expect("no holder panics");
        make_sure_of_room(&self.path)?;
        self.wait_until_settled(&mut self.settling.lock().expect("no holder panics"));
        let mut engine = self.engine.write().expect("no writer panics");
        self.memory.space.wait();
        drop(engine.take());
        if self.memory.background_failures.load(Ordering::Relaxed) > 1 {
            // The disk has space, and fjall's threads still fail: a file that they read may be damaged.
            survey::check_tables(&self.path)?;
            self.memory.background_failures.store(0, Ordering::Relaxed);
        }
        log::cut_behind(&self.path.join(LOG_FOLDER), log.last())?;
        let (opened, opened_log, pending) = open_whole(&self.path, log.last())?;
        *log = opened_log;
        *self.memory.pending_mut() = pending;
        drop(self.memory.recent().forget());
        *engine = Some(opened);
        self.memory.is_to_be_merged.store(false, Ordering::Release);
        self.memory.poisoned.store(false, Ordering::Relaxed);
        Ok(())
    }
}

/// Opens the store if all of its files are intact and it has every group up to `group`. Otherwise changes nothing.
fn open_whole(path: &Path, group: u64) -> Result<(Engine, Log, Pending), OpenError> {
    let mut pending = Pending::default();
    let survey = survey::check(path, |group| pending.found(group.number, group.writes, group.log_bytes))?;
    let log_folder = path.join(LOG_FOLDER);
    // The witness has seen a higher number, so acknowledged groups are missing from the log.
    if survey.log.last < group {
        let log = survey.log.newest().unwrap_or(&log_folder).into();
        return Err(OpenError::LostWrites { path: path.into(), log, store: survey.log.last, witness: group });
    }
    let log = Log::open(&log_folder, survey.log).map_err(|source| OpenError::File { path: log_folder, source })?;
    Ok((Engine::open(path)?, log, pending))
}

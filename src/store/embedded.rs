//! The store on disk: groups in a log with one sync each, records in their tables later.
//!
//! A group is on disk, in the log, before anybody sees it. From then on its records are in memory, as `pending`; when there
//! is enough of them a thread writes the newest version of each into its table. Whoever reads asks `pending` first. A store
//! that is opened reads what of the log may not be in the tables: there is nothing to do when it is closed.
//!
//! fjall gets to see its files only after `survey` has found them whole: a damaged store is never made worse by being opened.

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

/// How long the thread that writes into the tables rests at a time if it is ahead, and how often.
const STEP: Duration = Duration::from_millis(1);
const STEPS_MAX: u32 = 5;
/// By how much it is faster than what comes in: so it is done before there is as much again.
const AHEAD: f64 = 1.2;

/// A store on disk.
pub struct EmbeddedStore {
    path: PathBuf,
    /// Empty only while it is being opened again.
    engine: RwLock<Option<Engine>>,
    /// Locked over a whole commit.
    log: Mutex<Log>,
    memory: Arc<Memory>,
    /// Writes what is pending into the tables, if anybody does at present.
    settling: Mutex<Option<JoinHandle<()>>>,
    witness: File,
    /// Dropped last: the lock goes when everything else is closed.
    _lock: File,
}

/// What the thread shares that writes into the tables.
#[derive(Default)]
struct Memory {
    pending: RwLock<Pending>,
    /// Locked after `pending`, if both are.
    recent: Mutex<Recent>,
    space: Space,
    /// A write failed: nobody knows what is on disk.
    poisoned: AtomicBool,
    /// How often in a row it was fjall's own threads that failed, and not a write of ours.
    background_failures: AtomicU32,
    /// Somebody waits until the tables have a layer.
    is_waited_for: AtomicBool,
    /// Tables will be merged once they have what is pending.
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
            fjall::Error::Poisoned => self.background_failures.fetch_add(1, Ordering::Relaxed),
            _ => self.background_failures.swap(0, Ordering::Relaxed),
        };
    }

    /// Lets the tables be written as evenly as what follows comes in, and a little faster than that.
    #[expect(clippy::disallowed_methods, reason = "a thread that has nothing else to do")]
    fn pace(&self, done: f64) {
        for _ in 0..STEPS_MAX {
            if self.is_waited_for.load(Ordering::Relaxed) || done < AHEAD * self.pending().fullness() {
                return;
            }
            std::thread::sleep(STEP);
        }
    }

    /// Writes a layer into the tables. Readers see the same before and after.
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
    /// Opens the store in this folder, or makes one if the folder is empty or not there. A damaged one is left as it is.
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

    /// From the table.
    fn read(&self, key: &Key) -> Result<Option<Record>, ReadError> {
        let stored = self.with_engine(|engine| engine.get(key))?;
        stored.map(|stored| self.record(key.table, &key.key, &stored)).transpose()
    }

    /// Of the record as [`Store::get`] finds it.
    fn revision(&self, key: &Key) -> Result<Option<u64>, ReadError> {
        let revision = |found: &Option<Record>| found.as_ref().map(|record| record.revision);
        if let Some(found) = self.memory.pending().get(key) {
            return Ok(revision(found));
        }
        Ok(revision(&self.get(key)?))
    }

    /// Begins to write what is pending into the tables. If that is still being done for what was pending before, waits for it:
    /// this is how a slow disk holds commits back.
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
                self.memory.settle(engine, &layer);
            }
        }
    }

    fn wait_until_settled(&self, settling: &mut Option<JoinHandle<()>>) {
        if let Some(thread) = settling.take() {
            self.memory.is_waited_for.store(true, Ordering::Relaxed);
            if thread.join().is_err() {
                self.memory.poisoned.store(true, Ordering::Relaxed); // its layer is not in the tables
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
        // Both of one moment, as in `get`.
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
            // Both of one moment: nothing moves from the one to the other meanwhile.
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
            // What was removed last is still in the tables.
            self.memory.is_to_be_merged.store(true, Ordering::Release);
            self.settle(engine, &mut log);
        }
    }

    fn commit(&self, group: Vec<Change>) -> Result<Vec<Result<(), Conflict>>, CommitError> {
        // Held over the whole commit: what was compared must still be so when it is set.
        let mut log = self.log.lock().expect("no holder panics");
        if self.memory.poisoned.load(Ordering::Relaxed) {
            return Err(CommitError::Poisoned { path: self.path.clone() });
        }
        let Decision { outcomes, writes } = decide(group, |key| Ok::<_, CommitError>(self.revision(key)?))?;
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
        // Not synced: it guards against a damaged log, not against a power cut, after which it may be older.
        if let Err(error) = self.witness.write_all_at(&encode_witness(number), 0) {
            tracing::warn!(path = %self.path.display(), %error, "failed to write the witness file");
        }
        if is_full {
            self.settle(engine, &mut log);
        }
        Ok(outcomes)
    }

    /// Closes fjall, which takes no more writes after one that failed, and opens it again over what is on disk: all that
    /// was answered, and nothing else. As long as there is no room to write, everything can still be read.
    fn recover(&self) -> Result<(), OpenError> {
        let mut log = self.log.lock().expect("no holder panics");
        make_sure_of_room(&self.path)?;
        self.wait_until_settled(&mut self.settling.lock().expect("no holder panics"));
        let mut engine = self.engine.write().expect("no writer panics");
        self.memory.space.wait();
        drop(engine.take());
        if self.memory.background_failures.load(Ordering::Relaxed) > 1 {
            // There is room, and still fjall's threads fail: something that they read may be damaged.
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

/// Opens the store if all of it is whole and it has all groups up to this one. Otherwise it is not touched.
fn open_whole(path: &Path, group: u64) -> Result<(Engine, Log, Pending), OpenError> {
    let mut pending = Pending::default();
    let survey = survey::check(path, |group| pending.found(group.number, group.writes, group.log_bytes))?;
    let log_folder = path.join(LOG_FOLDER);
    if survey.log.last < group {
        let log = survey.log.newest().unwrap_or(&log_folder).into();
        return Err(OpenError::LostWrites { path: path.into(), log, store: survey.log.last, witness: group });
    }
    let log = Log::open(&log_folder, survey.log).map_err(|source| OpenError::File { path: log_folder, source })?;
    Ok((Engine::open(path)?, log, pending))
}

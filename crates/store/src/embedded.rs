//! The store on disk: a commit log, memtables, and tables.
//!
//! A group is one entry of the log, and durable before any reader sees it. Its records are in the active memtable from
//! then on. When the entries since the last rotation are many, the memtable becomes immutable, and a thread of low
//! priority writes it into table files and takes a checkpoint; then the log drops what the checkpoint has. Opening a
//! store reads the log behind the checkpoint, so closing it needs no work.
//!
//! Nothing is opened for writing before all checks have passed, so opening a damaged store changes nothing.

mod opened;

use std::{
    fs::File,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, RwLock,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
};

use bytes::Bytes;

use opened::{Opened, SpaceRequest, open_tables, spawn_behind};

use super::{
    Change, CommitError, Conflict, Decision, Key, KeyBytes, KeyRange, Order, ReadError, Record, Store, Table,
    checkpoint::{Manifest, Unchecked, remove_work},
    convert::{CONVERSIONS, Conversion, bring_up_to_date},
    decide,
    failures::Failures,
    layout::{
        Damage, HeldLock, LOG_FOLDER, MARK_FILE, OpenError, ROOM_FILE, TABLES_FOLDER, check_cluster, check_format,
        groups_committed, lock, make_sure_of_room, open_mark, read_mark, refuse_cluster, remove_room, write_mark,
    },
    mem_table::overlay,
    record_codec::{EntryEncoder, decode_entry, decode_record},
    replica::ApplyError,
    restore::{self, Outgoing, RestoreError, Whole},
    throttle::Work,
    wal::{self, AppendError, CommitLog, Mark, OwnLog, Position, SegmentLog},
};
use crate::disk;

/// The bytes of writes, with [`WRITE_BYTES`] for each write, after which the memtable is written into table files.
/// Bounds the memory of a memtable, and what a start reads again. Small in debug builds, so that tests write table
/// files.
const MEM_TABLE_BYTES: usize = if cfg!(debug_assertions) { 256 * 1024 } else { 96 * 1024 * 1024 };
/// The memory of a record in a memtable without its key and its value, in bytes.
const WRITE_BYTES: usize = 160;
/// The bytes of table files that a start checks before it opens the store, which bounds its time. A thread checks the
/// rest while the store is in use.
const CHECKED_BEFORE_OPEN_BYTES: u64 = if cfg!(debug_assertions) { 1024 * 1024 } else { 4 << 30 };
/// A store on disk.
pub struct EmbeddedStore {
    path: PathBuf,
    /// `None` only while [`Store::recover`] reopens the tables.
    opened: RwLock<Option<Arc<Opened>>>,
    /// Locked during a whole commit. Lock order: `log`, `flushing`, `opened`, `memtables`.
    log: Mutex<Log>,
    /// The thread that writes memtables into table files, if one runs.
    flushing: Mutex<Option<JoinHandle<()>>>,
    failures: Arc<Failures>,
    /// Commits are refused, because another broker of the cluster leads.
    is_deposed: AtomicBool,
    /// The file lock on the folder; `None` in a conversion, whose caller has it. The last field: dropped after everything
    /// else is closed.
    _lock: Option<HeldLock>,
}

/// The log and its commit mark.
struct Log {
    entries: Entries,
    commit_mark: File,
    encoder: EntryEncoder,
}

/// Where the entries of a store are.
enum Entries {
    /// In its own folder.
    Own(Box<dyn OwnLog>),
    /// In a shared log that another broker writes; this is the last one that was applied.
    Followed(Mark),
    /// In a shared log that this broker writes.
    Led(Box<dyn CommitLog>),
}

impl Entries {
    fn end(&self) -> Mark {
        match self {
            Self::Own(log) => log.end(),
            Self::Followed(end) => *end,
            Self::Led(log) => log.end(),
        }
    }

    fn append(&mut self, entry: &[u8]) -> Result<Mark, AppendError> {
        let after = self.end().position;
        match self {
            Self::Own(log) => log.append(after, entry),
            Self::Followed(_) => Err(AppendError::Deposed),
            Self::Led(log) => log.append(after, entry),
        }
    }

    fn entry_bytes_max(&self) -> usize {
        match self {
            Self::Own(log) => log.entry_bytes_max(),
            Self::Followed(_) => usize::MAX, // it takes no group
            Self::Led(log) => log.entry_bytes_max(),
        }
    }

    /// A shared log is trimmed by its cluster.
    fn trim(&mut self, before: Position) -> std::io::Result<()> {
        match self {
            Self::Own(log) => log.trim(before),
            Self::Followed(_) | Self::Led(_) => Ok(()),
        }
    }

    fn size_bytes(&self) -> u64 {
        match self {
            Self::Own(log) => log.size_bytes(),
            Self::Followed(_) | Self::Led(_) => 0,
        }
    }
}

impl EmbeddedStore {
    /// Opens the store in this folder; creates it if the folder is empty or missing. Leaves a damaged store unchanged.
    /// Converts a store of an older format, and keeps a copy of it.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        Self::open_with(path, CONVERSIONS)
    }

    /// As [`Self::open`], with these steps from older formats.
    pub fn open_with(path: &Path, conversions: &[Conversion]) -> Result<Self, OpenError> {
        // The order matters: the format and the lock are checked before any file changes, since another version or
        // another broker may have the folder.
        disk::make_folder(path).map_err(|source| OpenError::File { path: path.into(), source })?;
        refuse_cluster(path)?;
        check_format(path, conversions)?;
        let lock = lock(path)?;
        bring_up_to_date(path, conversions)?;
        Self::open_any(path, Some(lock))
    }

    /// Opens the store that a [`Conversion`] got, whatever its format is. Its records and its files are read as those of
    /// the present format.
    pub fn open_to_convert(path: &Path) -> Result<Self, OpenError> {
        Self::open_any(path, None)
    }

    fn open_any(path: &Path, lock: Option<HeldLock>) -> Result<Self, OpenError> {
        let file_error = |path: &Path| {
            let path = path.to_owned();
            move |source| OpenError::File { path, source }
        };
        remove_room(path).map_err(file_error(&path.join(ROOM_FILE)))?;
        // Without a commit mark any end of the log is accepted: the mark detects damage, and is no part of the data.
        let (opened, entries, unchecked) =
            open_whole(path, groups_committed(path).unwrap_or(0), None, CHECKED_BEFORE_OPEN_BYTES)?;
        let commit_mark = open_mark(path).map_err(file_error(&path.join(MARK_FILE)))?;
        disk::sync_folder(path).map_err(file_error(path))?;
        let failures = Arc::default();
        opened.start_check(unchecked, &failures);
        Ok(Self {
            path: path.into(),
            opened: RwLock::new(Some(opened)),
            log: Mutex::new(Log {
                entries: Entries::Own(Box::new(entries)),
                commit_mark,
                encoder: EntryEncoder::default(),
            }),
            flushing: Mutex::default(),
            failures,
            is_deposed: AtomicBool::new(false),
            _lock: lock,
        })
    }

    /// Opens the tables of a store that follows the shared log of a cluster. Also returns the last entry that the folder
    /// says it had.
    pub(super) fn open_following(path: &Path, cluster: &str) -> Result<(Self, Mark), OpenError> {
        let file_error = |path: &Path| {
            let path = path.to_owned();
            move |source| OpenError::File { path, source }
        };
        disk::make_folder(path).map_err(file_error(path))?;
        check_cluster(path, cluster)?;
        let lock = lock(path)?;
        remove_room(path).map_err(file_error(&path.join(ROOM_FILE)))?;
        restore::finish_at_start(path)?;
        let known = read_mark(path);
        let manifest = match Manifest::read(path)? {
            None if known.is_none() && Manifest::is_unused(path) => Manifest::default(),
            None => return Err(Damage::new(&path.join(TABLES_FOLDER), "its manifest is not there").into()),
            Some(manifest) => manifest,
        };
        let unchecked = manifest.check_most(path, CHECKED_BEFORE_OPEN_BYTES)?;
        let flushed = manifest.flushed();
        let opened = open_tables(path, manifest)?;
        let commit_mark = open_mark(path).map_err(file_error(&path.join(MARK_FILE)))?;
        disk::sync_folder(path).map_err(file_error(path))?;
        let failures = Arc::default();
        opened.start_check(unchecked, &failures);
        let entries = Entries::Followed(flushed);
        let store = Self {
            path: path.into(),
            opened: RwLock::new(Some(opened)),
            log: Mutex::new(Log { entries, commit_mark, encoder: EntryEncoder::default() }),
            flushing: Mutex::default(),
            failures,
            is_deposed: AtomicBool::new(false),
            _lock: Some(lock),
        };
        // The mark is not synced: after a power cut it may be older than the checkpoint.
        let known = known.filter(|known| known.position > flushed.position).unwrap_or(flushed);
        Ok((store, known))
    }

    /// The last entry that the store has.
    pub(super) fn end(&self) -> Mark {
        self.log.lock().expect("no holder panics").entries.end()
    }

    /// The tables on disk have every entry up to this one.
    pub(super) fn flushed_upto(&self) -> Position {
        self.opened().map_or(0, |opened| opened.checkpoint.flushed_upto())
    }

    /// Writes all that the store has into its tables, and waits for it. Returns whether they have it now.
    pub(super) fn write_out(&self) -> bool {
        let log = self.log.lock().expect("no holder panics");
        let Some(opened) = self.opened() else { return false };
        let end = log.entries.end().position;
        if opened.checkpoint.flushed_upto() < end {
            self.start_flush(&opened, &log, false);
        }
        self.finish_flush(&opened, &mut self.flushing.lock().expect("no holder panics"));
        !self.failures.is_poisoned() && opened.checkpoint.flushed_upto() >= end
    }

    /// Whether a table failed to be written or read.
    pub(super) fn has_disk_failed(&self) -> bool {
        self.failures.is_poisoned()
    }

    /// Commits go into this log from now on.
    pub(super) fn lead(&self, entries: Box<dyn CommitLog>) {
        self.log.lock().expect("no holder panics").entries = Entries::Led(entries);
        self.is_deposed.store(false, Ordering::Release);
    }

    /// Commits are refused from now on, and [`Self::apply`] continues behind the last one.
    pub(super) fn follow(&self) {
        let mut log = self.log.lock().expect("no holder panics");
        log.entries = Entries::Followed(log.entries.end());
        self.is_deposed.store(true, Ordering::Release);
    }

    /// Applies the entry that follows the last one. `group`: its writes, as the store encodes them; `None` for an entry
    /// without any.
    pub(super) fn apply(&self, mark: Mark, group: Option<&[u8]>) -> Result<(), ApplyError> {
        let mut log = self.log.lock().expect("no holder panics");
        let Entries::Followed(end) = log.entries else { return Err(ApplyError::Leads) };
        if end.position + 1 != mark.position {
            return Err(ApplyError::NotNext { end: end.position, found: mark.position });
        }
        let failed = || ApplyError::Failed { path: self.path.clone() };
        if self.failures.is_poisoned() {
            return Err(failed());
        }
        let opened = self.opened().ok_or_else(failed)?;
        let (mut writes, mut bytes) = (Vec::new(), 0);
        if let Some(group) = group {
            let read = decode_entry(group, |key, record| writes.push((key, record)));
            let length = read.ok_or(ApplyError::Unknown { position: mark.position })?;
            bytes = length + writes.len() * WRITE_BYTES;
        }
        // At once, so that a reader sees all of a group or nothing.
        let mut memtables = opened.memtables_mut();
        writes.into_iter().for_each(|(key, record)| memtables.replay(key, record));
        drop(memtables);
        log.entries = Entries::Followed(mark);
        self.entry_added(&opened, &mut log, mark, bytes);
        Ok(())
    }

    /// Keeps the checkpoint as it is now for another broker of this cluster.
    pub(super) fn send(&self, cluster: &str) -> std::io::Result<Outgoing> {
        let opened = self.opened().ok_or_else(|| std::io::Error::other("the tables are closed"))?;
        Outgoing::keep(&self.path, cluster, &opened.checkpoint)
    }

    /// Puts a checkpoint in the place of the tables. Returns its last entry.
    pub(super) fn restore(&self, whole: Whole) -> Result<Mark, RestoreError> {
        let mut log = self.log.lock().expect("no holder panics");
        let Entries::Followed(end) = log.entries else { return Err(RestoreError::Leads) };
        if whole.mark().position <= end.position {
            let (found, wanted) = (whole.mark().position, end.position + 1);
            return Err(RestoreError::TooOld { found, wanted });
        }
        if self.failures.is_poisoned() {
            return Err(RestoreError::Failed);
        }
        if let Some(opened) = self.opened() {
            self.finish_flush(&opened, &mut self.flushing.lock().expect("no holder panics"));
            opened.end_merges();
        }
        // From here on the next start has the checkpoint, so these tables must not be used any more. After a failure it may.
        whole.take_effect().inspect_err(|_| self.failures.poison())?;
        let mut opened = self.opened.write().expect("no writer panics");
        drop(opened.take());
        let reopen = || -> Result<_, OpenError> {
            restore::put_in_place(&self.path)?;
            let manifest = Manifest::read(&self.path)?.unwrap_or_default();
            let flushed = manifest.flushed();
            Ok((open_tables(&self.path, manifest)?, flushed))
        };
        let (reopened, flushed) = reopen().inspect_err(|_| self.failures.poison())?;
        log.entries = Entries::Followed(flushed);
        *opened = Some(reopened);
        Ok(flushed)
    }

    /// Notes an entry that is in the log and in the memtable, whose writes take this memory.
    fn entry_added(&self, opened: &Arc<Opened>, log: &mut Log, mark: Mark, bytes: usize) {
        let active_bytes = opened.active_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        opened.urgency.set_flush_late(active_bytes >= MEM_TABLE_BYTES / 2);
        // The group is durable, so a failed mark is no failure of the commit. The next one writes it again.
        if let Err(error) = write_mark(&log.commit_mark, &self.path, mark) {
            tracing::warn!(path = %self.path.display(), %error, "failed to write the commit mark");
        }
        // Here and not in the flush, because only the commit holds the log.
        if let Err(error) = log.entries.trim(opened.checkpoint.flushed_upto() + 1) {
            tracing::warn!(path = %self.path.display(), %error, "failed to remove what the tables have from the log");
        }
        if active_bytes >= MEM_TABLE_BYTES {
            self.start_flush(opened, log, false);
        }
    }

    fn opened(&self) -> Option<Arc<Opened>> {
        self.opened.read().expect("no writer panics").clone()
    }

    fn opened_to_read(&self) -> Result<Arc<Opened>, ReadError> {
        self.opened().ok_or_else(|| ReadError::Closed { path: self.path.clone() })
    }

    fn revision(&self, opened: &Opened, key: &Key) -> Result<Option<u64>, ReadError> {
        if let Some(newest) = opened.memtables().get(key) {
            return Ok(newest.map(|record| record.revision));
        }
        Ok(self.flushed(opened, key)?.map(|record| record.revision))
    }

    /// Reads a record from its table.
    fn flushed(&self, opened: &Opened, key: &Key) -> Result<Option<Record>, ReadError> {
        let stored = opened.tables.get(key.table, &key.key).map_err(|error| self.read_error(error))?;
        stored.map(|stored| self.record(key.table, &key.key, &stored)).transpose()
    }

    fn read_error(&self, source: lsm_tree::Error) -> ReadError {
        self.failures.note_unreadable(&source);
        ReadError::Engine { path: self.path.join(TABLES_FOLDER), source: source.into() }
    }

    fn record(&self, table: Table, key: &[u8], stored: &Bytes) -> Result<Record, ReadError> {
        decode_record(table, key, stored).map_err(|problem| {
            let (table, key, path) = (table.name(), hex::encode(key), self.path.clone());
            let problem_of_record = format!("the record {key} of table {table}: {problem}");
            self.failures.note_damage(Damage::new(&path.join(TABLES_FOLDER), problem_of_record));
            ReadError::Damaged { table, key, path, problem }
        })
    }

    /// Starts to write the active memtable into table files. If the flush before still runs, waits for it: this back-pressure
    /// keeps commits from outrunning a slow disk. With `wants_space`, a compaction of every table with removals follows.
    fn start_flush(&self, opened: &Arc<Opened>, log: &Log, wants_space: bool) {
        let mut flushing = self.flushing.lock().expect("no holder panics");
        self.finish_flush(opened, &mut flushing);
        if self.failures.is_poisoned() {
            return;
        }
        // Read before the rotation, with the log locked: every entry up to here is in the memtable that becomes
        // immutable.
        let upto = log.entries.end();
        let (memtable, former) = opened.memtables_mut().rotate();
        opened.active_bytes.store(0, Ordering::Relaxed);
        opened.urgency.set_flush_late(false);
        // Here, since the flush before has ended: at its end it would take the request for its own.
        if wants_space {
            opened.compaction().request = SpaceRequest::Flushing;
        }
        let (flushed, failures) = (opened.clone(), self.failures.clone());
        let flush = move || {
            // A failed flush poisons the store, and the next recovery reads its records from the log again. The
            // immutable memtable serves reads meanwhile.
            failures.note(&flushed.flush(&memtable, upto));
            if wants_space {
                flushed.request_compaction();
            }
            flushed.start_merge(&failures);
            flushed.start_compaction(&failures);
        };
        let (in_thread, mut throttle) = (flush.clone(), opened.throttle(Work::Flush));
        *flushing = spawn_behind("baton-flush", move || {
            if let Some(former) = Arc::into_inner(former) {
                former.free(|| throttle.rest());
            }
            in_thread();
        });
        // The memtable must be written, so without a thread the committing one does it.
        if flushing.is_none() {
            let _waiting = opened.urgency.wait();
            flush();
        }
    }

    /// Waits for the thread that writes into the tables.
    fn finish_flush(&self, opened: &Opened, flushing: &mut Option<JoinHandle<()>>) {
        let _waiting = opened.urgency.wait();
        if let Some(thread) = flushing.take()
            && thread.join().is_err()
        {
            self.failures.poison(); // table files are missing
        }
    }
}

impl Drop for EmbeddedStore {
    fn drop(&mut self) {
        if let Some(opened) = self.opened.write().expect("no holder panics").take() {
            // The flush before the merges, because it starts them.
            self.finish_flush(&opened, &mut self.flushing.lock().expect("no holder panics"));
            opened.end_merges();
        }
        // A start makes the folder anew, so a failure only leaves files behind.
        if let Err(error) = remove_work(&self.path) {
            tracing::debug!(%error, "failed to remove the working copy of the tables");
        }
    }
}

impl Store for EmbeddedStore {
    fn get(&self, key: &Key) -> Result<Option<Record>, ReadError> {
        let opened = self.opened_to_read()?;
        // The memtables first: the tables may have an older version of the record, or one that is deleted since.
        if let Some(newest) = opened.memtables().get(key) {
            return Ok(newest.cloned());
        }
        self.flushed(&opened, key)
    }

    fn get_in_memory(&self, key: &Key) -> Option<Option<Record>> {
        Some(self.opened()?.memtables().get(key)?.cloned())
    }

    fn scan(
        &self,
        table: Table,
        range: KeyRange,
        order: Order,
        limit: usize,
    ) -> Result<Vec<(KeyBytes, Record)>, ReadError> {
        enum Newest {
            InMemory(Option<Record>),
            Flushed(Bytes),
        }
        let opened = self.opened_to_read()?;
        let (in_memory, flushed) = {
            // No group is inserted and no memtable is rotated before both are as of one moment.
            let memtables = opened.memtables();
            (memtables.range(table, &range, order, limit), opened.tables.range(table, range, order))
        };
        let read = itertools::process_results(flushed, |flushed| {
            let in_memory = in_memory.into_iter().map(|(key, newest)| (key, Newest::InMemory(newest)));
            let flushed = flushed.map(|(key, stored)| (key, Newest::Flushed(stored)));
            let records = overlay(in_memory, flushed, order).filter_map(|(key, newest)| {
                let record = match newest {
                    Newest::InMemory(newest) => Ok(newest?),
                    Newest::Flushed(stored) => self.record(table, &key, &stored),
                };
                Some(record.map(|record| (key, record)))
            });
            records.take(limit).collect()
        });
        read.map_err(|error| self.read_error(error))?
    }

    fn has_failed(&self) -> bool {
        self.failures.is_poisoned() || self.is_deposed.load(Ordering::Acquire)
    }

    fn group_bytes_max(&self) -> usize {
        self.log.lock().expect("no holder panics").entries.entry_bytes_max()
    }

    fn size_bytes(&self) -> Option<u64> {
        let log = self.log.lock().expect("no holder panics");
        let opened = self.opened()?;
        let compaction = opened.compaction();
        // During a compaction the files of both versions exist, and the sum would show more than the store needs.
        let is_known = !compaction.is_running && compaction.request == SpaceRequest::None;
        is_known.then(|| opened.tables.size_bytes() + log.entries.size_bytes())
    }

    fn give_space_back(&self) {
        let log = self.log.lock().expect("no holder panics");
        if let Some(opened) = self.opened() {
            // The newest removals are in the memtable; until they are tombstones in table files, a merge cannot drop their
            // records.
            self.start_flush(&opened, &log, true);
        }
    }

    fn commit(&self, group: Vec<Change>) -> Result<Vec<Result<(), Conflict>>, CommitError> {
        // Held during the whole commit, so that no other commit changes a revision between its comparison and the
        // write.
        let mut log = self.log.lock().expect("no holder panics");
        let poisoned = || CommitError::Poisoned { path: self.path.clone() };
        if self.is_deposed.load(Ordering::Acquire) {
            return Err(CommitError::Deposed { path: self.path.clone() });
        }
        if self.failures.is_poisoned() {
            return Err(poisoned());
        }
        // `None` only during a recovery, which holds the log, and after a failed one, which leaves the store poisoned.
        let opened = self.opened().ok_or_else(poisoned)?;
        let Decision { outcomes, writes } = decide(group, |key| self.revision(&opened, key))?;
        // Every change was refused or wrote nothing, so no sync is due.
        if writes.is_empty() {
            return Ok(outcomes);
        }
        let Log { entries, encoder, .. } = &mut *log;
        let (entry, length) = encoder.encode(&writes);
        let mark = entries.append(entry).map_err(|error| {
            match error {
                // A too large entry was not written, so the store is as before. After any other failure the entry
                // may come back at the next start, although its senders were told that it failed.
                AppendError::Unknown(_) | AppendError::Fenced { .. } => self.failures.poison(),
                AppendError::Deposed => {
                    self.is_deposed.store(true, Ordering::Release);
                    return CommitError::Deposed { path: self.path.clone() };
                }
                AppendError::TooLarge { .. } => {}
            }
            CommitError::Engine { path: self.path.clone(), source: error.into() }
        })?;
        let bytes = length + writes.len() * WRITE_BYTES;
        // Only after the sync: what a reader has seen must survive a power cut.
        opened.memtables_mut().insert(writes);
        self.entry_added(&opened, &mut log, mark, bytes);
        Ok(outcomes)
    }

    /// Closes the tables and the log, and reopens them with the acknowledged groups and no other. While the disk has too
    /// little space to write, this fails before anything is closed, and reads continue.
    fn recover(&self) -> Result<(), OpenError> {
        if self.is_deposed.load(Ordering::Acquire) {
            return Err(OpenError::Deposed { path: self.path.clone() });
        }
        let mut log = self.log.lock().expect("no holder panics");
        let Entries::Own(entries) = &log.entries else {
            // What the memtables lose is in the shared log, which only a start reads. An entry that was too large has changed
            // nothing.
            return match (self.failures.damage(), self.failures.is_poisoned()) {
                (Some(damage), _) => Err(damage.into()),
                (None, true) => Err(OpenError::ReplicaFailed { path: self.path.clone() }),
                (None, false) => Ok(()),
            };
        };
        let end = entries.end().position;
        // Before anything is closed: reads go on while the disk is full.
        make_sure_of_room(&self.path)?;
        // And before readers have to wait: a merge may go on for long.
        if let Some(opened) = self.opened() {
            self.finish_flush(&opened, &mut self.flushing.lock().expect("no holder panics"));
            opened.end_merges();
        }
        if let Some(damage) = self.failures.damage() {
            return Err(damage.into());
        }
        if self.failures.want_check() {
            // A table cannot be read, or the disk has space and the tables still cannot be written: a merge may read a
            // damaged file.
            Manifest::read(&self.path)?.unwrap_or_default().check(&self.path)?;
            self.failures.note_checked();
        }
        let mut opened = self.opened.write().expect("no writer panics");
        drop(opened.take());
        // Entries behind the acknowledged end are cut off: their senders were told of a failure and may send them
        // again.
        // Readers wait, so the thread checks the files.
        let (reopened, entries, unchecked) = open_whole(&self.path, end, Some(end), 0)?;
        reopened.start_check(unchecked, &self.failures);
        log.entries = Entries::Own(Box::new(entries));
        *opened = Some(reopened);
        self.failures.note_recovered();
        Ok(())
    }
}

/// Opens the store if all of its files are intact and it has every group up to `acknowledged`. Otherwise changes nothing.
/// With `last`, drops the entries behind it. Checks every byte of table files of `checked_bytes` together, and returns the
/// others.
fn open_whole(
    path: &Path,
    acknowledged: Position,
    last: Option<Position>,
    checked_bytes: u64,
) -> Result<(Arc<Opened>, SegmentLog, Vec<Unchecked>), OpenError> {
    let log_folder = path.join(LOG_FOLDER);
    let file_error = |path: &Path, source| OpenError::File { path: path.into(), source };
    // A first start makes the log after the checkpoint, and may have been cut off. A folder with table files is none, even
    // without a manifest: a backup may be copied back in any order.
    let is_first = acknowledged == 0 && wal::scan(&log_folder, 1, |_, _, _| {}).is_new() && Manifest::is_unused(path);
    let manifest = match is_first {
        true => Manifest::default(),
        false => {
            Manifest::read(path)?.ok_or_else(|| Damage::new(&path.join(TABLES_FOLDER), "its manifest is not there"))?
        }
    };
    let from = manifest.flushed_upto + 1;
    let mut contents = wal::scan(&log_folder, from, |_, _, _| {});
    if let Some(damage) = contents.damages.first() {
        return Err(damage.clone().into());
    }
    // After the damages, which name the broken place. A log that is merely too short reads as intact.
    if contents.end < acknowledged {
        let log = contents.newest().unwrap_or(&log_folder).into();
        return Err(OpenError::LostWrites { path: path.into(), log, end: contents.end, commit_mark: acknowledged });
    }
    let unchecked = manifest.check_most(path, checked_bytes)?;
    if let Some(last) = last {
        wal::cut_behind(&log_folder, from, last)?;
        contents = wal::scan(&log_folder, from, |_, _, _| {});
    }
    let opened = open_tables(path, manifest)?;
    // After the tables: a log beside missing tables would look like a damaged store to the next start.
    disk::make_folder(&log_folder).map_err(|source| file_error(&log_folder, source))?;
    let log = SegmentLog::open(&log_folder, contents).map_err(|source| file_error(&log_folder, source))?;
    let log = log.prepare_in(spawn_behind);
    let (mut unknown, mut bytes) = (None, 0);
    let mut memtables = opened.memtables_mut();
    log.read(from, &mut |position, entry| {
        let read = decode_entry(&entry, |key, record| {
            bytes += WRITE_BYTES;
            memtables.replay(key, record);
        });
        match read {
            Some(length) => bytes += length,
            // An unknown entry fails the start, so only the first is reported.
            None => drop(unknown.get_or_insert(position)),
        }
    })?;
    drop(memtables);
    opened.active_bytes.store(bytes, Ordering::Relaxed);
    match unknown {
        Some(position) => Err(Damage::new(&log_folder, format!("what entry {position} says is not known")).into()),
        None => Ok((opened, log, unchecked)),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::{opened::Compaction, *};
    use crate::{conformance::put, layout::WORK_FOLDER};

    /// A log whose next append fails in this way, after the entry was written.
    struct FailingLog {
        entries: SegmentLog,
        end: Position,
        failure: fn() -> AppendError,
    }

    impl CommitLog for FailingLog {
        fn append(&mut self, after: Position, entry: &[u8]) -> Result<Mark, AppendError> {
            CommitLog::append(&mut self.entries, after, entry)?;
            Err((self.failure)())
        }

        fn end(&self) -> Mark {
            Mark::at(self.end)
        }

        fn entry_bytes_max(&self) -> usize {
            self.entries.entry_bytes_max()
        }
    }

    impl OwnLog for FailingLog {
        fn read(&self, from: Position, found: &mut dyn FnMut(Position, Bytes)) -> Result<(), Damage> {
            self.entries.read(from, found)
        }

        fn trim(&mut self, before: Position) -> io::Result<()> {
            self.entries.trim(before)
        }

        fn size_bytes(&self) -> u64 {
            self.entries.size_bytes()
        }
    }

    fn group(key: &str) -> Vec<Change> {
        vec![Change { expectations: Vec::new(), writes: vec![put(Table::Tasks, key, 1, "x")] }]
    }

    fn keys(store: &EmbeddedStore) -> Vec<String> {
        let all = (std::ops::Bound::Unbounded, std::ops::Bound::Unbounded);
        let found = store.scan(Table::Tasks, all, Order::Ascending, usize::MAX).unwrap();
        found.into_iter().map(|(key, _)| String::from_utf8(key.to_vec()).unwrap()).collect()
    }

    fn folders_of_trees(store: &Path) -> Vec<String> {
        let all = std::fs::read_dir(store.join(WORK_FOLDER)).unwrap();
        all.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn a_table_gets_a_tree_with_its_first_record() {
        let folder = tempfile::tempdir().unwrap();
        let store = EmbeddedStore::open(folder.path()).unwrap();
        assert_eq!(keys(&store), Vec::<String>::new());
        store.commit(group("a")).unwrap();
        assert_eq!(folders_of_trees(folder.path()), Vec::<String>::new(), "the record is in the log only");
        store.give_space_back();
        drop(store);
        let store = EmbeddedStore::open(folder.path()).unwrap();
        assert_eq!(folders_of_trees(folder.path()), ["tasks"]);
        assert_eq!(keys(&store), ["a"]);
    }

    /// A store whose table of tasks has two files, the second with the first record once more.
    fn with_two_files(folder: &Path) -> EmbeddedStore {
        for keys in [["a", "b"], ["a", "c"]] {
            let store = EmbeddedStore::open(folder).unwrap();
            keys.into_iter().for_each(|key| drop(store.commit(group(key)).unwrap()));
            store.give_space_back();
        }
        EmbeddedStore::open(folder).unwrap()
    }

    #[test]
    fn a_merge_that_ends_early_leaves_the_table_as_it_was_and_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let store = with_two_files(folder.path());
        let opened = store.opened().unwrap();
        let present = || opened.tables.files(Table::Tasks);
        let on_disk = || std::fs::read_dir(present()[0].parent().unwrap()).unwrap().count();
        let before = present();
        assert_eq!((before.len(), on_disk()), (2, 2));
        opened.urgency.set_merging_over(true);
        assert!(!opened.tables.compact(Table::Tasks).unwrap());
        assert_eq!((present(), on_disk()), (before, 2));
        opened.urgency.set_merging_over(false);
        assert!(opened.tables.compact(Table::Tasks).unwrap());
        assert_eq!((present().len(), on_disk()), (1, 1));
        assert_eq!(keys(&store), ["a", "b", "c"]);
        opened.save_merged(Table::Tasks).unwrap();
        drop((opened, store));
        assert_eq!(keys(&EmbeddedStore::open(folder.path()).unwrap()), ["a", "b", "c"]);
    }

    #[test]
    fn the_size_is_not_known_until_a_requested_compaction_is_done() {
        let folder = tempfile::tempdir().unwrap();
        let store = with_two_files(folder.path());
        let opened = store.opened().unwrap();
        assert!(store.size_bytes().is_some());
        opened.request_compaction();
        assert_eq!(store.size_bytes(), None);
        *opened.compaction() = Compaction { is_running: true, request: SpaceRequest::Running, ..Compaction::default() };
        opened.give_up_compaction();
        assert_eq!(store.size_bytes(), None, "the compaction has failed");
        assert_eq!(opened.next_to_compact(), [], "no table is large enough");
        assert!(store.size_bytes().is_some());
    }

    #[test]
    fn table_files_without_a_manifest_are_no_new_store() {
        let folder = tempfile::tempdir().unwrap();
        drop(with_two_files(folder.path()));
        for name in ["wal", "commit_mark", "tables/MANIFEST", "tables/MANIFEST.copy"] {
            let path = folder.path().join(name);
            if path.is_dir() { std::fs::remove_dir_all(path).unwrap() } else { std::fs::remove_file(path).unwrap() }
        }
        let tables = || std::fs::read_dir(folder.path().join(TABLES_FOLDER)).unwrap().count();
        let before = tables();
        assert!(matches!(EmbeddedStore::open(folder.path()), Err(OpenError::Damaged { .. })));
        assert_eq!((before, tables()), (2, 2), "nothing is removed");
    }

    #[test]
    fn merges_do_not_pause_while_a_caller_wants_space() {
        let folder = tempfile::tempdir().unwrap();
        let store = EmbeddedStore::open(folder.path()).unwrap();
        let opened = store.opened().unwrap();
        let is_urgent = || opened.throttle(Work::Merge).is_urgent();
        assert!(!is_urgent());
        opened.request_compaction();
        assert!(is_urgent());
        opened.give_up_compaction();
        assert!(!is_urgent(), "the next compaction carries the request out");
    }

    #[test]
    fn after_a_failed_sync_nothing_is_committed_until_the_log_is_open_again_without_the_group() {
        let failures: [fn() -> AppendError; 2] =
            [|| AppendError::Unknown(io::Error::other("the sync failed")), || AppendError::Fenced { after: 1, end: 2 }];
        for failure in failures {
            let folder = tempfile::tempdir().unwrap();
            let store = EmbeddedStore::open(folder.path()).unwrap();
            store.commit(group("a")).unwrap();
            let log_folder = folder.path().join(LOG_FOLDER);
            let entries = SegmentLog::open(&log_folder, wal::scan(&log_folder, 1, |_, _, _| {})).unwrap();
            store.log.lock().unwrap().entries = Entries::Own(Box::new(FailingLog { entries, end: 1, failure }));
            assert!(matches!(store.commit(group("b")), Err(CommitError::Engine { .. })));
            assert!(matches!(store.commit(group("c")), Err(CommitError::Poisoned { .. })));
            assert_eq!(keys(&store), ["a"], "a group without a receipt is not shown");
            store.recover().unwrap();
            assert_eq!(keys(&store), ["a"]);
            store.commit(group("d")).unwrap();
            drop(store);
            assert_eq!(keys(&EmbeddedStore::open(folder.path()).unwrap()), ["a", "d"]);
        }
    }
}

//! The open tables of a store, and the threads that write, merge, compact and check their files.

use std::{
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
};

use crate::{
    Table,
    checkpoint::{Checkpoint, Manifest, Unchecked, remove_work},
    failures::Failures,
    layout::{OpenError, TABLES_FOLDER, WORK_FOLDER},
    mem_table::{MemTable, MemTables},
    tables::Tables,
    throttle::{Throttle, Urgency, Work},
    wal::Mark,
};

/// The niceness of the threads that write and merge tables. Against a thread of niceness 0 on the same processor, they
/// get about a fifth of its time.
#[cfg(target_os = "linux")]
const NICENESS: i32 = 7;

/// The open tables with their checkpoint.
pub(super) struct Opened {
    pub(super) memtables: RwLock<MemTables>,
    /// The bytes of the active memtable, as [`MEM_TABLE_BYTES`] counts them. Changed with the log locked.
    pub(super) active_bytes: AtomicUsize,
    pub(super) urgency: Arc<Urgency>,
    pub(super) tables: Tables,
    pub(super) checkpoint: Checkpoint,
    /// The thread that merges table files of a table with many, if one was started.
    pub(super) merging: Mutex<Option<JoinHandle<()>>>,
    pub(super) compaction: Mutex<Compaction>,
    /// The thread that checks the table files that the start has left, if one was started.
    pub(super) checking: Mutex<Option<JoinHandle<()>>>,
    pub(super) is_check_over: AtomicBool,
}

/// Merges of whole tables, which give the space of removed records back.
#[derive(Default)]
pub(super) struct Compaction {
    pub(super) is_running: bool,
    pub(super) request: SpaceRequest,
    pub(super) thread: Option<JoinHandle<()>>,
}

/// The newest request to compact every table with removals.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum SpaceRequest {
    #[default]
    None,
    /// The newest removals are being flushed.
    Flushing,
    /// The next compaction carries it out.
    Waiting,
    /// The running compaction carries it out.
    Running,
}

impl Opened {
    pub(super) fn compaction(&self) -> MutexGuard<'_, Compaction> {
        self.compaction.lock().expect("no holder panics")
    }

    pub(super) fn memtables(&self) -> RwLockReadGuard<'_, MemTables> {
        self.memtables.read().expect("no writer panics")
    }

    pub(super) fn memtables_mut(&self) -> RwLockWriteGuard<'_, MemTables> {
        self.memtables.write().expect("no holder panics")
    }

    /// Writes a memtable into table files, and takes a checkpoint up to `upto`, its last entry.
    pub(super) fn flush(&self, memtable: &MemTable, upto: Mark) -> lsm_tree::Result<()> {
        let changed = self.tables.flush(memtable, &mut self.throttle(Work::Flush))?;
        self.checkpoint.save(&changed, Some(upto))
    }

    pub(super) fn throttle(&self, work: Work) -> Throttle {
        Throttle::new(work, &self.urgency)
    }

    pub(super) fn merge(&self) -> lsm_tree::Result<()> {
        self.tables.merge()?.into_iter().try_for_each(|table| self.save_merged(table))
    }

    pub(super) fn save_merged(&self, table: Table) -> lsm_tree::Result<()> {
        self.checkpoint.save(&[table], None)
    }

    /// Starts a thread that merges table files, unless one runs. Waits for that thread if merges are far behind: this
    /// back-pressure bounds the files that a reader looks at.
    pub(super) fn start_merge(self: &Arc<Self>, failures: &Arc<Failures>) {
        self.urgency.set_merges_late(self.tables.is_late());
        let mut merging = self.merging.lock().expect("no holder panics");
        if merging.as_ref().is_some_and(|thread| !thread.is_finished()) && !self.tables.is_behind() {
            return;
        }
        // The thread has ended, or is waited for here. What it had to report, it has noted.
        let waiting = self.urgency.wait();
        drop(merging.take().map(JoinHandle::join));
        drop(waiting);
        // A compaction keeps merges off its table.
        if self.tables.has_too_many_runs() {
            let compaction = self.compaction().thread.take();
            self.end([None, compaction]);
        }
        let (opened, failures) = (self.clone(), failures.clone());
        *merging = spawn_behind("baton-merge", move || failures.note(&opened.merge()));
    }

    /// Requests a compaction of every table with removals. A running compaction goes on with it.
    pub(super) fn request_compaction(&self) {
        self.compaction().request = SpaceRequest::Waiting;
        self.urgency.set_space_wanted(true);
    }

    /// The tables to compact now; none ends the running compaction.
    pub(super) fn next_to_compact(&self) -> Vec<Table> {
        let mut compaction = self.compaction();
        let chosen = self.tables.worth_compacting(compaction.request == SpaceRequest::Waiting);
        compaction.is_running = !chosen.is_empty();
        compaction.request = match compaction.request {
            SpaceRequest::Waiting if compaction.is_running => SpaceRequest::Running,
            // The end of the flush starts the compaction.
            SpaceRequest::Flushing => SpaceRequest::Flushing,
            _ => SpaceRequest::None,
        };
        self.urgency.set_space_wanted(compaction.request == SpaceRequest::Running);
        chosen
    }

    /// Ends the running compaction after a failure. A request stays: until it is done, the size of the store is not what its
    /// records need.
    pub(super) fn give_up_compaction(&self) {
        let mut compaction = self.compaction();
        compaction.is_running = false;
        if compaction.request == SpaceRequest::Running {
            compaction.request = SpaceRequest::Waiting;
        }
        self.urgency.set_space_wanted(false);
    }

    pub(super) fn compact(&self, mut chosen: Vec<Table>) -> lsm_tree::Result<()> {
        // Looks again after each pass: removals go on meanwhile, and a request for space may have come.
        while !chosen.is_empty() {
            let mut has_failed = false;
            for table in chosen {
                // A table without room does not keep the others, which may need less and give room.
                match self.tables.compact(table)? {
                    true => self.save_merged(table)?,
                    false => has_failed = true,
                }
            }
            if has_failed {
                // Later flushes start the next attempt: a disk that fails must not be tried again without a pause.
                self.give_up_compaction();
                return Ok(());
            }
            chosen = self.next_to_compact();
        }
        Ok(())
    }

    /// Starts a thread that compacts the tables that are worth it, unless one runs.
    pub(super) fn start_compaction(self: &Arc<Self>, failures: &Arc<Failures>) {
        // A running one looks again before it ends. With too many files, merges come first, and the next flush tries again.
        if self.compaction().is_running || self.tables.has_too_many_runs() {
            return;
        }
        let chosen = self.next_to_compact();
        if chosen.is_empty() {
            return;
        }
        let (opened, failures) = (self.clone(), failures.clone());
        let thread = spawn_behind("baton-compact", move || {
            let compacted = opened.compact(chosen);
            if compacted.is_err() {
                failures.note(&compacted);
                opened.give_up_compaction();
            }
        });
        if thread.is_none() {
            self.give_up_compaction();
        }
        self.compaction().thread = thread;
    }

    /// Starts a thread that checks the files that the start has left. Without a thread, they are checked here.
    pub(super) fn start_check(self: &Arc<Self>, unchecked: Vec<Unchecked>, failures: &Arc<Failures>) {
        if unchecked.is_empty() {
            return;
        }
        let (opened, failures) = (self.clone(), failures.clone());
        let files = Arc::new(Mutex::new(unchecked));
        let check = move || {
            let files = std::mem::take(&mut *files.lock().expect("no holder panics"));
            if let Err(damage) = opened.checkpoint.check_rest(files, &opened.is_check_over) {
                failures.note_damage(damage);
            }
        };
        let thread = spawn_behind("baton-check", check.clone());
        if thread.is_none() {
            check();
        }
        *self.checking.lock().expect("no holder panics") = thread;
    }

    /// Ends running merges without a result: their tables stay as they are. Ends a check of files, too.
    pub(super) fn end_merges(&self) {
        self.is_check_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.checking.lock().expect("no holder panics").take() {
            drop(thread.join());
        }
        let merging = self.merging.lock().expect("no holder panics").take();
        // Bound to a name, so that the lock is free: the compaction takes it before it ends.
        let compaction = self.compaction().thread.take();
        self.end([merging, compaction]);
    }

    /// Ends these merges, and others that run meanwhile.
    pub(super) fn end(&self, merges: [Option<JoinHandle<()>>; 2]) {
        let _waiting = self.urgency.wait();
        self.urgency.set_merging_over(true);
        merges.into_iter().flatten().for_each(|thread| drop(thread.join()));
        self.urgency.set_merging_over(false);
    }
}

/// Opens the tables of an intact checkpoint.
pub(super) fn open_tables(path: &Path, manifest: Manifest) -> Result<Arc<Opened>, OpenError> {
    let work = path.join(WORK_FOLDER);
    let checkpoint =
        Checkpoint::open(path, manifest.clone()).map_err(|source| OpenError::File { path: work.clone(), source })?;
    let urgency = Arc::default();
    let tables = Tables::open(&work, manifest.with_tree(), &urgency).map_err(|source| {
        drop(remove_work(path));
        match manifest.check(path) {
            Err(damage) => damage.into(),
            Ok(()) => OpenError::Engine { path: path.join(TABLES_FOLDER), source: source.into() },
        }
    })?;
    Ok(Arc::new(Opened {
        memtables: RwLock::default(),
        active_bytes: AtomicUsize::new(0),
        urgency,
        tables,
        checkpoint,
        merging: Mutex::default(),
        compaction: Mutex::default(),
        checking: Mutex::default(),
        is_check_over: AtomicBool::new(false),
    }))
}

/// Starts a thread with a priority below threads that answer callers.
pub(super) fn spawn_behind(name: &str, work: impl FnOnce() + Send + 'static) -> Option<JoinHandle<()>> {
    let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(|| {
        #[cfg(target_os = "linux")] // elsewhere the call changes the whole process
        if let Err(error) = rustix::process::setpriority_process(None, NICENESS) {
            tracing::debug!(%error, "failed to lower the priority of a thread");
        }
        work();
    });
    spawned.inspect_err(|error| tracing::warn!(%error, name, "failed to start a thread")).ok()
}

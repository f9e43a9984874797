//! The throttle of the threads that write and merge tables.
//!
//! Owns when such a thread pauses, and when it syncs what it writes. It works for a moment, then pauses: commits need the
//! processor. It syncs a file in parts while it writes the file: the disk takes a commit's sync only behind a sync that
//! is under way, and one sync of a whole file takes long.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use lsm_tree::compaction::filter::{CompactionFilter, Context, Factory, ItemAccessor, Verdict};

use crate::{
    disk::{self, SYNC_BYTES},
    time::Moment,
};

/// The work between two pauses.
const TURN: Duration = Duration::from_micros(500);
const PAUSE: Duration = Duration::from_millis(2);

/// Whether the throttled threads of a store must go on without pauses. All threads of the store share one.
#[derive(Debug, Default)]
pub(super) struct Urgency {
    /// The number of threads that wait for a throttled one.
    waiting: AtomicUsize,
    is_flush_late: AtomicBool,
    are_merges_late: AtomicBool,
    is_space_wanted: AtomicBool,
    /// Running merges end without a result.
    is_merging_over: AtomicBool,
}

/// A thread that waits for a throttled one. Until this is dropped, no throttled thread pauses.
pub(super) struct Waiting<'a>(&'a Urgency);

impl Urgency {
    /// Declares that this thread begins to wait.
    pub(super) fn wait(&self) -> Waiting<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Waiting(self)
    }

    /// Whether commits would soon have to wait for the flush.
    pub(super) fn set_flush_late(&self, is_late: bool) {
        self.is_flush_late.store(is_late, Ordering::Relaxed);
    }

    /// Whether a flush would soon have to wait for merges.
    pub(super) fn set_merges_late(&self, are_late: bool) {
        self.are_merges_late.store(are_late, Ordering::Relaxed);
    }

    /// Whether merges are to give the space of removed records back soon. A store over its maximum size grows until then,
    /// since the broker removes nothing more before it knows the new size.
    pub(super) fn set_space_wanted(&self, is_wanted: bool) {
        self.is_space_wanted.store(is_wanted, Ordering::Relaxed);
    }

    /// Whether running merges are to fail at their next record, with [`io::ErrorKind::Interrupted`]. Their tables stay as
    /// they are.
    pub(super) fn set_merging_over(&self, is_over: bool) {
        self.is_merging_over.store(is_over, Ordering::Relaxed);
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The kinds of throttled work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    Flush,
    Merge,
}

/// The throttle of one thread.
#[derive(Debug)]
pub(super) struct Throttle {
    work: Work,
    urgency: Arc<Urgency>,
    /// The end of the turn.
    until: Moment,
}

impl Throttle {
    pub(super) fn new(work: Work, urgency: &Arc<Urgency>) -> Self {
        Self { work, urgency: urgency.clone(), until: Moment::now().plus(TURN) }
    }

    /// Pauses if the thread has worked for a while. To be called after each small piece of work.
    pub(super) fn rest(&mut self) {
        if Moment::now() < self.until {
            return;
        }
        if !self.is_urgent() {
            thread::park_timeout(PAUSE);
        }
        self.until = Moment::now().plus(TURN);
    }

    /// Whether the work must go on without pauses.
    pub(super) fn is_urgent(&self) -> bool {
        let Urgency { waiting, is_flush_late, are_merges_late, is_space_wanted, .. } = &*self.urgency;
        let is_set = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
        waiting.load(Ordering::Relaxed) > 0
            || match self.work {
                Work::Flush => is_set(is_flush_late),
                Work::Merge => is_set(are_merges_late) || is_set(is_space_wanted),
            }
    }
}

/// Syncs the files that the library writes in a folder, a part at a time. The library itself syncs each file when it is
/// whole.
#[derive(Debug)]
pub(super) struct EarlySync {
    folder: PathBuf,
    unsynced: usize,
}

impl EarlySync {
    pub(super) fn new(folder: PathBuf) -> Self {
        Self { folder, unsynced: 0 }
    }

    /// Takes note that the library has written `bytes`.
    pub(super) fn wrote(&mut self, bytes: usize) -> io::Result<()> {
        self.unsynced += bytes;
        if self.unsynced < SYNC_BYTES {
            return Ok(());
        }
        self.unsynced = 0;
        sync_newest(&self.folder)
    }
}

/// Syncs the file that was written last.
fn sync_newest(folder: &Path) -> io::Result<()> {
    let modified = |entry: &fs::DirEntry| entry.metadata().and_then(|file| file.modified()).ok();
    let Some(newest) = fs::read_dir(folder)?.filter_map(Result::ok).max_by_key(modified) else { return Ok(()) };
    let path = newest.path();
    match File::open(&path) {
        Ok(file) => disk::sync_data(&file, &path),
        // A merge removes the files that it has merged.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Throttles the merges of a tree, which the library runs from begin to end. It calls this for each record.
pub(super) struct MergeThrottle {
    /// The folder of the tree's files.
    pub(super) folder: PathBuf,
    pub(super) urgency: Arc<Urgency>,
}

impl Factory for MergeThrottle {
    fn name(&self) -> &'static str {
        "throttle"
    }

    fn make_filter(&self, _: &Context) -> Box<dyn CompactionFilter> {
        let throttle = Throttle::new(Work::Merge, &self.urgency);
        Box::new(ThrottledMerge { throttle, files: EarlySync::new(self.folder.clone()) })
    }
}

struct ThrottledMerge {
    throttle: Throttle,
    files: EarlySync,
}

impl CompactionFilter for ThrottledMerge {
    fn filter_item(&mut self, item: ItemAccessor<'_>, _: &Context) -> lsm_tree::Result<Verdict> {
        if self.throttle.urgency.is_merging_over.load(Ordering::Relaxed) {
            return Err(io::Error::from(io::ErrorKind::Interrupted).into());
        }
        self.files.wrote(item.key().len() + item.value()?.len())?;
        self.throttle.rest();
        Ok(Verdict::Keep)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_late_and_awaited_work_goes_on_without_pauses() {
        let urgency = Arc::new(Urgency::default());
        let urgent = |work| Throttle::new(work, &urgency).is_urgent();
        assert_eq!([urgent(Work::Flush), urgent(Work::Merge)], [false, false]);
        urgency.set_flush_late(true);
        assert_eq!([urgent(Work::Flush), urgent(Work::Merge)], [true, false]);
        urgency.set_flush_late(false);
        urgency.set_merges_late(true);
        assert_eq!([urgent(Work::Flush), urgent(Work::Merge)], [false, true]);
        urgency.set_merges_late(false);
        urgency.set_space_wanted(true);
        assert_eq!([urgent(Work::Flush), urgent(Work::Merge)], [false, true]);
        urgency.set_space_wanted(false);
        {
            let (_one, another) = (urgency.wait(), urgency.wait());
            drop(another);
            assert_eq!([urgent(Work::Flush), urgent(Work::Merge)], [true, true]);
        }
        assert_eq!([urgent(Work::Flush), urgent(Work::Merge)], [false, false]);
    }

    #[test]
    fn a_folder_without_files_has_nothing_to_sync_and_a_missing_one_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let mut files = EarlySync::new(folder.path().into());
        files.wrote(SYNC_BYTES).unwrap();
        fs::write(folder.path().join("1"), b"table").unwrap();
        files.wrote(SYNC_BYTES - 1).unwrap();
        files.wrote(1).unwrap();
        let mut missing = EarlySync::new(folder.path().join("missing"));
        missing.wrote(SYNC_BYTES - 1).unwrap();
        assert_eq!(missing.wrote(1).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}

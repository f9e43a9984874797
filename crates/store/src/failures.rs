//! The failures of an open store. Owns whether it takes commits, and what its next recovery has to check. Must not know what
//! was read or written.

use std::sync::{
    Mutex,
    atomic::{AtomicBool, AtomicU32, Ordering},
};

use super::layout::Damage;

/// The failures of tables after which a recovery checks every byte of their files.
const CHECKED_AFTER: u32 = 2;

/// Failures of reads and writes. Shared with the threads that write, merge and check tables.
#[derive(Default)]
pub(super) struct Failures {
    /// A write failed, so the state on disk is unknown, or a table could not be read. Commits are refused until
    /// [`Store::recover`](super::Store::recover).
    is_poisoned: AtomicBool,
    /// The number of recoveries due to failures to write or merge tables, since all their files were checked. A full disk
    /// does not count.
    of_tables: AtomicU32,
    /// The first damage that was found while the store was open. It ends the use of the store: no check of the files may
    /// find it again, for example that of a record.
    damage: Mutex<Option<Damage>>,
}

impl Failures {
    /// Notes a table that cannot be read: what the reader did not get must not count as missing. The next recovery checks
    /// all files before the store is used again, unless the failure says nothing about them.
    pub(super) fn note_unreadable(&self, error: &lsm_tree::Error) {
        if !passes(error) {
            self.of_tables.fetch_max(CHECKED_AFTER, Ordering::Relaxed);
        }
        self.poison();
    }

    pub(super) fn note_damage(&self, damage: Damage) {
        tracing::error!(path = %damage.path.display(), problem = damage.problem, "the store is damaged");
        self.damage.lock().expect("no holder panics").get_or_insert(damage);
        self.poison();
    }

    pub(super) fn is_poisoned(&self) -> bool {
        self.is_poisoned.load(Ordering::Acquire)
    }

    pub(super) fn note(&self, written: &lsm_tree::Result<()>) {
        let Err(error) = written else { return };
        tracing::error!(%error, "failed to write records into their tables");
        let is_full = matches!(error, lsm_tree::Error::Io(error) if error.kind() == std::io::ErrorKind::StorageFull);
        // Counted once a recovery: several threads fail at once over the same full or broken disk.
        let is_first = !self.is_poisoned.swap(true, Ordering::AcqRel);
        self.of_tables.fetch_add(u32::from(is_first && !is_full), Ordering::Relaxed);
    }

    /// Notes a failure after which the state on disk is unknown.
    pub(super) fn poison(&self) {
        self.is_poisoned.store(true, Ordering::Release);
    }

    /// The first damage that was found while the store was open.
    pub(super) fn damage(&self) -> Option<Damage> {
        self.damage.lock().expect("no holder panics").clone()
    }

    /// Whether a recovery must check every byte of the table files.
    pub(super) fn want_check(&self) -> bool {
        self.of_tables.load(Ordering::Relaxed) >= CHECKED_AFTER
    }

    pub(super) fn note_checked(&self) {
        self.of_tables.store(0, Ordering::Relaxed);
    }

    pub(super) fn note_recovered(&self) {
        // A reader may have found damage meanwhile.
        self.is_poisoned.store(self.damage().is_some(), Ordering::Release);
    }
}

/// Whether a failed read says nothing about the files: the process has no memory or no file descriptor for it.
fn passes(error: &lsm_tree::Error) -> bool {
    let lsm_tree::Error::Io(error) = error else { return false };
    let passing =
        [rustix::io::Errno::MFILE, rustix::io::Errno::NFILE, rustix::io::Errno::NOMEM, rustix::io::Errno::INTR];
    passing.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

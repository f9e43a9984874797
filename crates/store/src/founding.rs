//! A store becomes the one of a cluster's first broker: that of a broker alone, or that of a broker whose cluster lost its log.
//!
//! Owns the file FOUNDING: the first entry of the shared log, which is written before the log gets it and removed as the
//! last step. So an interrupted founding goes on with the same entry, and no broker opens the folder in between. Must not
//! know the content of the entry.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use bytes::Bytes;

use super::{
    EmbeddedStore, OpenError, Replica, Store as _,
    checkpoint::Manifest,
    layout::{CLUSTER_FILE, FOUNDING_FILE, HeldLock, LOG_FOLDER, MARK_FILE, TABLES_FOLDER, cluster_of, lock},
    wal::{self, Mark},
};
use crate::disk;

/// A store on its way to be the first one of a cluster. No other process has it.
#[derive(Debug)]
pub struct Founding {
    path: PathBuf,
    entry: Bytes,
    is_repeated: bool,
    _lock: HeldLock,
}

impl Founding {
    /// Writes all that the store of a broker alone has into its tables, and notes the first entry of the shared log, which `entry`
    /// makes. After a founding that was cut off the entry is the one of that time. Waits for the disk.
    ///
    /// # Errors
    ///
    /// The store cannot be opened, belongs to a cluster already, or cannot be written.
    pub fn begin(path: &Path, entry: impl FnOnce() -> Bytes) -> Result<Self, OpenError> {
        if noted(path)?.is_none() {
            let store = EmbeddedStore::open(path)?;
            store.give_space_back();
            // The end waits for the tables.
            drop(store);
        }
        let lock = lock(path)?;
        if let Some(entry) = noted(path)? {
            return Ok(Self { path: path.into(), entry, is_repeated: true, _lock: lock });
        }
        let manifest = Manifest::read(path)?.unwrap_or_default();
        let log = path.join(LOG_FOLDER);
        let contents = wal::scan(&log, manifest.flushed_upto + 1, |_, _, _| {});
        if contents.end > manifest.flushed_upto || !contents.damages.is_empty() {
            return Err(OpenError::NotFlushed { path: path.into() });
        }
        Self::note(path, &manifest, entry(), lock)
    }

    /// Likewise for the store of a broker in a cluster, all of which becomes that of another one.
    ///
    /// # Errors
    ///
    /// The store is in use elsewhere, or cannot be written.
    pub fn begin_again(replica: Replica, entry: impl FnOnce() -> Bytes) -> Result<Self, OpenError> {
        replica.write_out()?;
        let (path, end) = (replica.path().to_owned(), replica.end());
        drop(replica);
        let lock = lock(&path)?;
        let manifest = Manifest::read(&path)?.unwrap_or_default();
        // Another process may have had the folder in between.
        if manifest.flushed() != end || noted(&path)?.is_some() {
            return Err(OpenError::NotFlushed { path });
        }
        Self::note(&path, &manifest, entry(), lock)
    }

    /// A founding that was cut off; `None` if there was none.
    ///
    /// # Errors
    ///
    /// The store is in use, or cannot be read.
    pub fn cut_off(path: &Path) -> Result<Option<Self>, OpenError> {
        if noted(path)?.is_none() {
            return Ok(None);
        }
        let lock = lock(path)?;
        let entry = noted(path)?;
        Ok(entry.map(|entry| Self { path: path.into(), entry, is_repeated: true, _lock: lock }))
    }

    fn note(path: &Path, manifest: &Manifest, entry: Bytes, lock: HeldLock) -> Result<Self, OpenError> {
        manifest.check(path)?;
        let noted = path.join(FOUNDING_FILE);
        disk::write_whole(&noted, &entry).map_err(|source| OpenError::File { path: noted, source })?;
        Ok(Self { path: path.into(), entry, is_repeated: false, _lock: lock })
    }

    /// The first entry of the shared log.
    pub fn entry(&self) -> &Bytes {
        &self.entry
    }

    /// Whether an earlier founding was cut off: the log may have the entry.
    pub fn is_repeated(&self) -> bool {
        self.is_repeated
    }

    /// Leaves the store as it was. The shared log must not have the entry.
    ///
    /// # Errors
    ///
    /// The disk fails.
    pub fn cancel(self) -> Result<(), OpenError> {
        self.forget_entry()
    }

    /// Makes the store one of this cluster. The shared log has the entry, at this mark. Another [`Self::begin`] and this
    /// finish an interrupted call.
    ///
    /// # Errors
    ///
    /// The disk fails, or the tables are damaged.
    pub fn finish(self, cluster: &[u8; 16], mark: Mark) -> Result<(), OpenError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| OpenError::File { path, source }
        };
        let tables = self.path.join(TABLES_FOLDER);
        let cluster = hex::encode(cluster);
        if cluster_of(&self.path)?.is_none_or(|found| found != cluster) {
            let manifest = Manifest::read(&self.path)?.unwrap_or_default();
            manifest.founded(mark).write_into(&tables).map_err(failed(&tables))?;
            let named = self.path.join(CLUSTER_FILE);
            disk::write_whole(&named, format!("{cluster}\n").as_bytes()).map_err(failed(&named))?;
        }
        let log = self.path.join(LOG_FOLDER);
        match fs::remove_dir_all(&log) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(&log)(error)),
            Ok(()) | Err(_) => {}
        }
        let commit_mark = self.path.join(MARK_FILE);
        disk::remove_if_there(&commit_mark).map_err(failed(&commit_mark))?;
        disk::sync_folder(&self.path).map_err(failed(&self.path))?;
        self.forget_entry()
    }

    fn forget_entry(&self) -> Result<(), OpenError> {
        let noted = self.path.join(FOUNDING_FILE);
        let forgotten = disk::remove_if_there(&noted).and_then(|()| disk::sync_folder(&self.path));
        forgotten.map_err(|source| OpenError::File { path: noted, source })
    }
}

/// The entry of a founding that has not ended.
fn noted(path: &Path) -> Result<Option<Bytes>, OpenError> {
    let noted = path.join(FOUNDING_FILE);
    match fs::read(&noted) {
        Ok(entry) => Ok(Some(Bytes::from(entry))),
        Err(missing) if missing.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(OpenError::File { path: noted, source }),
    }
}

/// Fails if the store is becoming the first one of a cluster.
pub(super) fn refuse_unfinished(path: &Path) -> Result<(), OpenError> {
    match path.join(FOUNDING_FILE).exists() {
        true => Err(OpenError::Founding { path: path.into() }),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Change, Link, Table,
        conformance::put,
        record_codec::EntryEncoder,
        replica::tests::{CLUSTER, Shared, group, keys, mark as later},
    };

    const ENTRY: &[u8] = b"the first entry";

    fn mark() -> Mark {
        Mark { position: 1, link: Some(Link { hash: [5; 32], term: 1, level: 1 }) }
    }

    fn with_tasks(path: &Path, names: &[&str]) {
        let store = EmbeddedStore::open(path).unwrap();
        for name in names {
            let group = vec![Change { expectations: Vec::new(), writes: vec![put(Table::Tasks, name, 1, "x")] }];
            store.commit(group).unwrap();
        }
    }

    fn begin(path: &Path) -> Result<Founding, OpenError> {
        Founding::begin(path, || Bytes::from_static(ENTRY))
    }

    #[test]
    fn a_store_with_its_records_becomes_the_first_of_a_cluster() {
        let folder = tempfile::tempdir().unwrap();
        with_tasks(folder.path(), &["a", "b"]);
        begin(folder.path()).unwrap().finish(&CLUSTER, mark()).unwrap();
        assert!(matches!(EmbeddedStore::open(folder.path()), Err(OpenError::OfCluster { .. })));
        let replica = Replica::open(folder.path(), &CLUSTER).unwrap();
        assert_eq!((replica.end(), replica.known(), replica.flushed_upto()), (mark(), mark(), 1));
        assert_eq!(keys(&replica), ["a", "b"]);
        drop(replica);
        assert!(matches!(begin(folder.path()), Err(OpenError::OfCluster { .. })), "it is one already");
    }

    #[test]
    fn a_founding_that_was_cut_off_goes_on_with_its_entry_and_no_broker_opens_the_folder_meanwhile() {
        let folder = tempfile::tempdir().unwrap();
        with_tasks(folder.path(), &["a"]);
        assert!(!begin(folder.path()).unwrap().is_repeated());
        assert!(matches!(EmbeddedStore::open(folder.path()), Err(OpenError::Founding { .. })));
        assert!(matches!(Replica::open(folder.path(), &CLUSTER), Err(OpenError::Founding { .. })));
        let again = Founding::begin(folder.path(), || panic!("it has one")).unwrap();
        assert!(again.is_repeated());
        assert_eq!(again.entry(), ENTRY);
        assert!(matches!(begin(folder.path()), Err(OpenError::InUse { .. })));
        again.finish(&CLUSTER, mark()).unwrap();
        assert_eq!(keys(&Replica::open(folder.path(), &CLUSTER).unwrap()), ["a"]);
    }

    #[test]
    fn a_founding_that_is_cancelled_leaves_the_store_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        with_tasks(folder.path(), &["a"]);
        begin(folder.path()).unwrap().cancel().unwrap();
        with_tasks(folder.path(), &["b"]);
        begin(folder.path()).unwrap().finish(&CLUSTER, mark()).unwrap();
        let replica = Replica::open(folder.path(), &CLUSTER).unwrap();
        assert_eq!(keys(&replica), ["a", "b"]);
        // It leads as any other store of a cluster.
        let _store = Shared::default().led_by(&replica);
    }

    #[test]
    fn what_was_cut_off_between_any_two_steps_is_finished() {
        for steps in 0..=3 {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path();
            with_tasks(path, &["a", "b"]);
            drop(begin(path).unwrap());
            if steps >= 1 {
                let manifest = Manifest::read(path).unwrap().unwrap();
                manifest.founded(mark()).write_into(&path.join(TABLES_FOLDER)).unwrap();
            }
            if steps >= 2 {
                disk::write_whole(&path.join(CLUSTER_FILE), format!("{}\n", hex::encode(CLUSTER)).as_bytes()).unwrap();
            }
            if steps >= 3 {
                fs::remove_dir_all(path.join(LOG_FOLDER)).unwrap();
            }
            begin(path).unwrap().finish(&CLUSTER, mark()).unwrap();
            let replica = Replica::open(path, &CLUSTER).unwrap();
            assert_eq!((replica.known(), keys(&replica)), (mark(), vec!["a".to_owned(), "b".to_owned()]), "{steps}");
        }
    }

    const OTHER: [u8; 16] = [8; 16];

    /// The folder of a broker whose tables have more than their checkpoint.
    fn of_a_cluster(path: &Path) {
        let (log, replica) = (Shared::default(), Replica::open(path, &CLUSTER).unwrap());
        let store = log.led_by(&replica);
        for name in ["a", "b"] {
            store.commit(group(name)).unwrap();
        }
        drop(store);
        replica.write_out().unwrap();
    }

    #[test]
    fn the_store_of_a_cluster_becomes_the_first_of_another_one_with_all_that_its_tables_have() {
        let folder = tempfile::tempdir().unwrap();
        of_a_cluster(folder.path());
        let replica = Replica::open(folder.path(), &CLUSTER).unwrap();
        // What it has read since is in memory alone.
        let write = EntryEncoder::default().encode(&[put(Table::Tasks, "c", 1, "x")]).0.to_vec();
        replica.apply(later(3), Some(&write)).unwrap();
        assert_eq!((replica.flushed_upto(), replica.end().position), (2, 3));
        let founding = Founding::begin_again(replica, || Bytes::from_static(ENTRY)).unwrap();
        assert!(!founding.is_repeated());
        for cluster in [&CLUSTER, &OTHER] {
            assert!(matches!(Replica::open(folder.path(), cluster), Err(OpenError::Founding { .. })));
        }
        assert!(matches!(Founding::cut_off(folder.path()), Err(OpenError::InUse { .. })));
        founding.finish(&OTHER, mark()).unwrap();
        assert!(Founding::cut_off(folder.path()).unwrap().is_none());
        assert!(matches!(Replica::open(folder.path(), &CLUSTER), Err(OpenError::OtherCluster { .. })));
        let replica = Replica::open(folder.path(), &OTHER).unwrap();
        assert_eq!((replica.end(), replica.known(), replica.flushed_upto()), (mark(), mark(), 1));
        assert_eq!(keys(&replica), ["a", "b", "c"]);
    }

    #[test]
    fn the_store_of_a_cluster_stays_in_it_if_the_founding_is_cancelled() {
        let folder = tempfile::tempdir().unwrap();
        of_a_cluster(folder.path());
        let replica = Replica::open(folder.path(), &CLUSTER).unwrap();
        let end = replica.end();
        Founding::begin_again(replica, || Bytes::from_static(ENTRY)).unwrap().cancel().unwrap();
        let replica = Replica::open(folder.path(), &CLUSTER).unwrap();
        assert_eq!((replica.end(), replica.known(), keys(&replica).len()), (end, end, 2));
    }

    #[test]
    fn the_founding_of_a_further_cluster_is_finished_after_it_was_cut_off_between_any_two_steps() {
        for steps in 0..=2 {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path();
            of_a_cluster(path);
            let replica = Replica::open(path, &CLUSTER).unwrap();
            drop(Founding::begin_again(replica, || Bytes::from_static(ENTRY)).unwrap());
            if steps >= 1 {
                let manifest = Manifest::read(path).unwrap().unwrap();
                manifest.founded(mark()).write_into(&path.join(TABLES_FOLDER)).unwrap();
            }
            if steps >= 2 {
                disk::write_whole(&path.join(CLUSTER_FILE), format!("{}\n", hex::encode(OTHER)).as_bytes()).unwrap();
            }
            let again = Founding::cut_off(path).unwrap().unwrap();
            assert!(again.is_repeated() && again.entry() == ENTRY);
            again.finish(&OTHER, mark()).unwrap();
            let replica = Replica::open(path, &OTHER).unwrap();
            assert_eq!((replica.known(), keys(&replica)), (mark(), vec!["a".to_owned(), "b".to_owned()]), "{steps}");
        }
    }
}

//! A store whose log is shared by the brokers of a cluster.
//!
//! Owns the change between two uses of one set of tables: a follower applies the entries that another broker writes, and a
//! leader commits into the shared log. Opens tables and checkpoint, and no log: an entry behind the checkpoint is
//! read from the shared log again. Nothing in the folder cuts an entry. Must not know how the shared log is reached.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    EmbeddedStore, OpenError, Store,
    restore::{CheckpointHead, CutOff, Incoming, Outgoing, RestoreError, Whole},
    wal::{CommitLog, Mark, Position},
};

/// An entry was not applied. The tables are as before.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The entry does not follow the last one.
    #[error("the tables have the entries up to {end}, and entry {found} does not follow")]
    NotNext {
        /// The last entry of the tables.
        end: Position,
        /// The position of the refused entry.
        found: Position,
    },
    /// The entry is of another version of baton, or damaged.
    #[error("what entry {position} says is not known")]
    Unknown {
        /// The position of the entry.
        position: Position,
    },
    /// This broker leads, and its tables change with its commits.
    #[error("this broker leads")]
    Leads,
    /// The tables failed to be written or read; the log of the process says why.
    #[error("the store in {} failed to write its tables", path.display())]
    Failed {
        /// The folder of the store.
        path: PathBuf,
    },
}

/// The tables of a broker in a cluster. It follows after it was opened.
pub struct Replica {
    store: Arc<EmbeddedStore>,
    path: PathBuf,
    /// The id of the cluster, in hex.
    cluster: String,
    known: Mark,
}

impl Replica {
    /// Opens the tables in this folder; creates them if the folder is empty or missing. `cluster`: the cluster's id. Leaves
    /// a damaged store unchanged.
    ///
    /// # Errors
    ///
    /// The folder belongs to a broker alone or to another cluster, another process has it, or a file is damaged or of
    /// another format.
    pub fn open(path: &Path, cluster: &[u8; 16]) -> Result<Self, OpenError> {
        let cluster = hex::encode(cluster);
        let (store, known) = EmbeddedStore::open_following(path, &cluster)?;
        Ok(Self { store: Arc::new(store), path: path.into(), cluster, known })
    }

    /// The last entry that the tables have. After [`Self::open`]: that of the checkpoint. Waits for a commit under way.
    pub fn end(&self) -> Mark {
        self.store.end()
    }

    /// The last entry that this broker had before it was opened, as far as the folder says: the shared log must have it.
    pub fn known(&self) -> Mark {
        self.known
    }

    /// The tables on disk have every entry up to this one.
    pub fn flushed_upto(&self) -> Position {
        self.store.flushed_upto()
    }

    /// Applies the entry that follows [`Self::end`]. `group`: the writes of a commit, as the store encodes them; `None` for
    /// an entry without any. May wait for the disk.
    ///
    /// # Errors
    ///
    /// The entry does not follow, or the disk fails.
    pub fn apply(&self, mark: Mark, group: Option<&[u8]>) -> Result<(), ApplyError> {
        self.store.apply(mark, group)
    }

    /// The store of a leader, whose commits go into this log. The log ends where the tables end.
    pub fn lead(&self, log: Box<dyn CommitLog>) -> Arc<dyn Store> {
        self.store.lead(log);
        self.store.clone()
    }

    /// Ends the use as a leader. The store of [`Self::lead`] refuses commits from now on. Waits for a commit under way.
    pub fn follow(&self) {
        self.store.follow();
    }

    /// Keeps the checkpoint on the disk as it is now, for a broker that receives it. Waits for the disk.
    ///
    /// # Errors
    ///
    /// The disk fails, or the tables are closed.
    pub fn send(&self) -> std::io::Result<Outgoing> {
        self.store.send(&self.cluster)
    }

    /// Begins to receive the checkpoint of another broker. `from`: the first entry that the shared log has. `cut_off`: what an
    /// earlier attempt has left; it is taken unless the checkpoint is refused. Changes no table. Without `cut_off` an unfinished
    /// checkpoint in the folder is removed.
    ///
    /// # Errors
    ///
    /// The checkpoint is of another cluster or format, ends before the log begins, or is not newer than the tables; or the
    /// disk fails.
    pub fn receive(
        &self,
        head: &CheckpointHead,
        from: Position,
        cut_off: &mut Option<CutOff>,
    ) -> Result<Incoming, RestoreError> {
        Incoming::begin(&self.path, &self.cluster, head, from.max(self.end().position + 2), cut_off)
    }

    /// Puts a whole checkpoint in the place of the tables, and follows from its last entry on, which is returned. If the process
    /// ends meanwhile, the next start has the tables of before, or those of the checkpoint.
    ///
    /// # Errors
    ///
    /// This broker leads, its tables are as new, or the disk fails. After [`Self::has_failed`] only a start goes on.
    pub fn restore(&self, whole: Whole) -> Result<Mark, RestoreError> {
        self.store.restore(whole)
    }

    /// Writes all that the tables have to the disk, and waits for it. From then on the folder alone has it, without the shared log.
    /// Does nothing if the disk has it already.
    ///
    /// # Errors
    ///
    /// The disk fails.
    pub fn write_out(&self) -> Result<(), OpenError> {
        match self.store.write_out() {
            true => Ok(()),
            false => Err(OpenError::NotFlushed { path: self.path.clone() }),
        }
    }

    /// The folder of the tables.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the disk has failed. A start reads the lost entries from the shared log.
    pub fn has_failed(&self) -> bool {
        self.store.has_disk_failed()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::{collections::BTreeMap, sync::Mutex};

    use bytes::Bytes;

    use super::*;
    use crate::{
        AppendError, Change, CommitError, Key, Link, Order, Record, Table, Write,
        conformance::{self, put},
        layout::{CLUSTER_FILE, MARK_FILE},
        record_codec::EntryEncoder,
    };

    pub(crate) const CLUSTER: [u8; 16] = [7; 16];

    /// A log in memory, which several replicas share.
    #[derive(Clone, Default)]
    pub(crate) struct Shared(Arc<Mutex<BTreeMap<Position, Bytes>>>);

    pub(crate) fn mark(position: Position) -> Mark {
        let link = Link { hash: [position as u8; 32], term: 1, level: 1 };
        Mark { position, link: (position > 0).then_some(link) }
    }

    impl Shared {
        fn end(&self) -> Position {
            self.0.lock().unwrap().last_key_value().map_or(0, |(position, _)| *position)
        }

        pub(crate) fn led_by(&self, replica: &Replica) -> Arc<dyn Store> {
            replica.lead(Box::new(Led { log: self.clone(), end: replica.end() }))
        }

        pub(crate) fn bring_up_to_date(&self, replica: &Replica) {
            let from = replica.end().position + 1;
            for (position, entry) in self.0.lock().unwrap().range(from..) {
                replica.apply(mark(*position), Some(entry)).unwrap();
            }
        }
    }

    /// The largest entry of [`Shared`].
    const ENTRY_BYTES_MAX: usize = 64 * 1024;

    /// The log as a leader sees it.
    struct Led {
        log: Shared,
        end: Mark,
    }

    impl CommitLog for Led {
        fn append(&mut self, after: Position, entry: &[u8]) -> Result<Mark, AppendError> {
            if after != self.log.end() {
                return Err(AppendError::Deposed);
            }
            if entry.len() > ENTRY_BYTES_MAX {
                return Err(AppendError::TooLarge { bytes: entry.len(), bytes_max: ENTRY_BYTES_MAX });
            }
            self.log.0.lock().unwrap().insert(after + 1, Bytes::copy_from_slice(entry));
            self.end = mark(after + 1);
            Ok(self.end)
        }

        fn end(&self) -> Mark {
            self.end
        }

        fn entry_bytes_max(&self) -> usize {
            ENTRY_BYTES_MAX
        }
    }

    pub(crate) fn group(key: &str) -> Vec<Change> {
        vec![Change { expectations: Vec::new(), writes: vec![put(Table::Tasks, key, 1, "x")] }]
    }

    pub(crate) fn keys(replica: &Replica) -> Vec<String> {
        let all = (std::ops::Bound::Unbounded, std::ops::Bound::Unbounded);
        let found = replica.store.scan(Table::Tasks, all, Order::Ascending, usize::MAX).unwrap();
        found.into_iter().map(|(key, _)| String::from_utf8(key.to_vec()).unwrap()).collect()
    }

    pub(crate) fn folder() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    #[test]
    fn a_leading_replica_conforms() {
        let parent = folder();
        conformance::run(|| {
            let folder = tempfile::tempdir_in(&parent).unwrap().keep();
            Shared::default().led_by(&Replica::open(&folder, &CLUSTER).unwrap())
        });
    }

    #[test]
    fn a_follower_has_what_the_leader_commits_and_leads_on_from_there() {
        let (log, first, second) = (Shared::default(), folder(), folder());
        let leader = Replica::open(first.path(), &CLUSTER).unwrap();
        let follower = Replica::open(second.path(), &CLUSTER).unwrap();
        let store = log.led_by(&leader);
        store.commit(group("a")).unwrap();
        log.bring_up_to_date(&follower);
        assert_eq!((keys(&follower), follower.end()), (vec!["a".into()], mark(1)));
        log.led_by(&follower).commit(group("b")).unwrap();
        // The former leader does not know the entry: nothing of its next group is shown.
        assert!(matches!(leader.apply(mark(2), None), Err(ApplyError::Leads)));
        assert!(matches!(store.commit(group("c")), Err(CommitError::Deposed { .. })));
        assert!(store.has_failed() && matches!(store.recover(), Err(OpenError::Deposed { .. })));
        leader.follow();
        log.bring_up_to_date(&leader);
        assert_eq!(keys(&leader), ["a", "b"]);
        assert!(!leader.has_failed());
    }

    #[test]
    fn a_fenced_commit_ends_the_lead_and_is_not_shown() {
        let (log, folder) = (Shared::default(), folder());
        let replica = Replica::open(folder.path(), &CLUSTER).unwrap();
        let store = log.led_by(&replica);
        log.0.lock().unwrap().insert(1, Bytes::new());
        assert!(matches!(store.commit(group("a")), Err(CommitError::Deposed { .. })));
        assert!(store.has_failed() && matches!(store.recover(), Err(OpenError::Deposed { .. })));
        replica.follow();
        assert_eq!(keys(&replica), Vec::<String>::new());
        replica.apply(mark(1), None).unwrap();
        log.led_by(&replica).commit(group("b")).unwrap();
        assert_eq!(keys(&replica), ["b"], "a later term begins anew");
    }

    /// A group whose entry has this many bytes: its value is random, so that compression finds nothing.
    fn group_of(bytes: usize) -> Vec<Change> {
        let mut random = 1_u64;
        let mut draw = || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 56) as u8
        };
        let value: Bytes = std::iter::repeat_with(&mut draw).take(bytes).collect();
        let write = |length: usize| Write {
            key: Key { table: Table::Tasks, key: b"large".as_slice().into() },
            record: Some(Record { revision: 1, value: value.slice(..length) }),
            is_new: false,
        };
        let stored = |length: usize| EntryEncoder::default().encode(&[write(length)]).0.len();
        let length = (0..=bytes).rev().find(|length| stored(*length) <= bytes).unwrap();
        assert_eq!(stored(length), bytes);
        vec![Change { expectations: Vec::new(), writes: vec![write(length)] }]
    }

    #[test]
    fn a_group_that_the_log_does_not_take_changes_nothing_and_the_next_one_is_taken() {
        let (log, folder) = (Shared::default(), folder());
        let replica = Replica::open(folder.path(), &CLUSTER).unwrap();
        let store = log.led_by(&replica);
        assert_eq!(store.group_bytes_max(), ENTRY_BYTES_MAX);
        store.commit(group_of(ENTRY_BYTES_MAX - 1)).unwrap();
        store.commit(group_of(ENTRY_BYTES_MAX)).unwrap();
        let before = store.get(&Key { table: Table::Tasks, key: b"large".as_slice().into() }).unwrap().unwrap();
        let refused = store.commit(group_of(ENTRY_BYTES_MAX + 1)).unwrap_err();
        assert!(
            matches!(refused, CommitError::Engine { .. }) && refused.to_string().contains("too large"),
            "{refused}"
        );
        let after = store.get(&Key { table: Table::Tasks, key: b"large".as_slice().into() }).unwrap().unwrap();
        assert_eq!((after, log.end(), store.has_failed()), (before, 2, false));
        store.recover().unwrap();
        store.commit(group("a")).unwrap();
        assert_eq!(keys(&replica), ["a", "large"]);
    }

    #[test]
    fn a_start_begins_at_the_checkpoint_and_knows_the_last_entry_that_it_had() {
        let (log, folder) = (Shared::default(), folder());
        let replica = Replica::open(folder.path(), &CLUSTER).unwrap();
        let store = log.led_by(&replica);
        store.commit(group("a")).unwrap();
        store.give_space_back();
        drop((store, replica));
        let replica = Replica::open(folder.path(), &CLUSTER).unwrap();
        assert_eq!((replica.end(), replica.known(), replica.flushed_upto()), (mark(1), mark(1), 1));
        assert_eq!(keys(&replica), ["a"]);
        let store = log.led_by(&replica);
        store.commit(group("b")).unwrap();
        drop((store, replica));
        let replica = Replica::open(folder.path(), &CLUSTER).unwrap();
        assert_eq!((replica.end(), replica.known()), (mark(1), mark(2)));
        log.bring_up_to_date(&replica);
        assert_eq!(keys(&replica), ["a", "b"]);
        // A torn mark counts as none.
        drop(replica);
        std::fs::write(folder.path().join(MARK_FILE), b"batonmrl").unwrap();
        assert_eq!(Replica::open(folder.path(), &CLUSTER).unwrap().known(), mark(1));
    }

    #[test]
    fn what_is_written_out_needs_no_log_at_the_next_start() {
        let (log, folder) = (Shared::default(), folder());
        let replica = Replica::open(folder.path(), &CLUSTER).unwrap();
        replica.write_out().unwrap();
        assert_eq!(replica.flushed_upto(), 0, "it has nothing");
        let store = log.led_by(&replica);
        store.commit(group("a")).unwrap();
        replica.follow();
        // The last entry has no writes.
        replica.apply(mark(2), None).unwrap();
        for _ in 0..2 {
            replica.write_out().unwrap();
            assert_eq!(replica.flushed_upto(), 2);
        }
        drop((store, replica));
        let replica = Replica::open(folder.path(), &CLUSTER).unwrap();
        assert_eq!((replica.end(), replica.known(), keys(&replica)), (mark(2), mark(2), vec!["a".to_owned()]));
    }

    #[test]
    fn entries_are_applied_in_order_and_only_if_they_are_known() {
        let folder = folder();
        let replica = Replica::open(folder.path(), &CLUSTER).unwrap();
        replica.apply(mark(1), None).unwrap();
        for position in [1, 3] {
            let error = replica.apply(mark(position), None).unwrap_err();
            assert!(matches!(error, ApplyError::NotNext { end: 1, found } if found == position));
        }
        assert!(matches!(replica.apply(mark(2), Some(b"no group")), Err(ApplyError::Unknown { position: 2 })));
        assert_eq!(replica.end(), mark(1));
    }

    #[test]
    fn a_folder_is_opened_only_for_what_it_is() {
        let (alone, shared) = (folder(), folder());
        drop(EmbeddedStore::open(alone.path()).unwrap());
        assert!(matches!(Replica::open(alone.path(), &CLUSTER), Err(OpenError::NotOfCluster { .. })));
        drop(Replica::open(shared.path(), &CLUSTER).unwrap());
        assert!(matches!(Replica::open(shared.path(), &[8; 16]), Err(OpenError::OtherCluster { .. })));
        assert!(matches!(EmbeddedStore::open(shared.path()), Err(OpenError::OfCluster { .. })));
        assert!(matches!(crate::read_all(shared.path(), |_| {}), Err(OpenError::OfCluster { .. })));
        assert!(!alone.path().join(CLUSTER_FILE).exists() && !shared.path().join("wal").exists());
        // An interrupted first start has made this file alone.
        std::fs::remove_file(shared.path().join("FORMAT")).unwrap();
        assert!(matches!(Replica::open(shared.path(), &CLUSTER), Err(OpenError::NotAStore { .. })));
        let cut_off = folder();
        std::fs::write(cut_off.path().join(CLUSTER_FILE), hex::encode(CLUSTER)).unwrap();
        drop(Replica::open(cut_off.path(), &CLUSTER).unwrap());
    }
}

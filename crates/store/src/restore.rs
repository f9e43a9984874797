//! A checkpoint on its way from one broker of a cluster to another.
//!
//! Owns both ends. A broker sends its checkpoint as it is on its disk: the manifest, then each table file, in the order of
//! the manifest. It gives the files second names, so that its own merges and later checkpoints go on. The receiver checks every
//! byte against the manifest before the checkpoint counts. Of one that was cut off the whole files stay, and the sender omits
//! those in the next attempt, if its checkpoint has the same. Must not know how the bytes travel.
//!
//! ```text
//! restoring/  receives the files. A start removes it
//! restored/   restoring/ under its second name, once it is whole. From here on the tables are those of the checkpoint:
//!             a start removes tables/, and gives restored/ its name
//! ```

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    fs::{self, File, OpenOptions},
    io::{self, Read as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use bytes::Bytes;
use xxhash_rust::xxh3::Xxh3;

use super::{
    checkpoint::{Checkpoint, Digest, Manifest},
    layout::{FORMAT, OpenError, TABLES_FOLDER},
    wal::{Mark, Position},
};
use crate::disk;

const RESTORING_FOLDER: &str = "restoring";
const RESTORED_FOLDER: &str = "restored";
const SENDING_FOLDER: &str = "sending";
/// The most bytes of a piece of a checkpoint.
const PIECE_BYTES: usize = 256 * 1024;
/// The most files that a receiver tells a sender of. Further ones are received again.
const FILES_TOLD_MAX: usize = 16_384;
/// The most bytes of a manifest: some 150 for each table file, which has up to 64 MiB.
const MANIFEST_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// What a broker says of a checkpoint before it sends it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointHead {
    /// The id of the cluster, in hex.
    pub cluster: String,
    /// The format of the tables: [`FORMAT`](crate::FORMAT).
    pub format: u32,
    /// The last entry that the tables have.
    pub mark: Mark,
    /// The bytes of the manifest, which come first.
    pub manifest_bytes: u64,
    /// The names of the files that do not follow, because the receiver has them.
    pub omitted: Vec<String>,
}

/// A whole file of a checkpoint that was cut off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointFile {
    /// Its name in the checkpoint.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// The XXH3 of all its bytes.
    pub xxh3: u128,
}

/// A checkpoint was not received, or not put in its place.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The checkpoint is of another cluster.
    #[error("the checkpoint is of cluster {found}, and this broker is of cluster {cluster}")]
    OtherCluster {
        /// The id in the head.
        found: String,
        /// The id of the own cluster, in hex.
        cluster: String,
    },
    /// The checkpoint has another format.
    #[error(
        "the checkpoint has format {found}, and this version reads format {FORMAT}: give each broker the same version"
    )]
    Format {
        /// The format in the head.
        found: u32,
    },
    /// The shared log has not all entries behind the checkpoint, or the own tables are as new.
    #[error("the checkpoint has the entries up to {found}, and those up to {wanted} are needed")]
    TooOld {
        /// The last entry of the checkpoint.
        found: Position,
        /// The entry that it must have at least.
        wanted: Position,
    },
    /// The bytes are not those that were announced.
    #[error("the checkpoint is damaged: {0}")]
    Damaged(String),
    /// The sender ended too early.
    #[error("the checkpoint was cut off: {missing} bytes of a file are missing")]
    CutOff {
        /// The missing bytes of the file under way.
        missing: u64,
    },
    /// This broker leads, and its tables change with its commits.
    #[error("this broker leads")]
    Leads,
    /// The disk of this broker has failed before.
    #[error("the tables of this broker failed to be written or read")]
    Failed,
    /// A file cannot be written or read.
    #[error("failed to write {}: {source}", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The tables of the checkpoint cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
}

fn file_error(path: &Path) -> impl FnOnce(io::Error) -> RestoreError + use<> {
    let path = path.to_owned();
    move |source| RestoreError::File { path, source }
}

fn damaged(problem: impl Into<String>) -> RestoreError {
    RestoreError::Damaged(problem.into())
}

/// A checkpoint that is being sent. Its files stay as long as this value.
#[derive(Debug)]
pub struct Outgoing {
    folder: PathBuf,
    head: CheckpointHead,
    manifest: Bytes,
    files: VecDeque<(CheckpointFile, PathBuf)>,
    reading: Option<File>,
}

impl Outgoing {
    /// Keeps the checkpoint of a store as it is now.
    pub(super) fn keep(store: &Path, cluster: &str, checkpoint: &Checkpoint) -> io::Result<Self> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = store.join(SENDING_FOLDER).join(number.to_string());
        // Made first, so that a failure leaves no second names.
        let mut kept = Self {
            folder: folder.clone(),
            head: CheckpointHead {
                cluster: cluster.to_owned(),
                format: FORMAT,
                mark: Mark::default(),
                manifest_bytes: 0,
                omitted: Vec::new(),
            },
            manifest: Bytes::new(),
            files: VecDeque::new(),
            reading: None,
        };
        let manifest = checkpoint.keep_in(&folder)?;
        let file = |(name, digest): (String, Digest)| {
            let path = folder.join(&name);
            (CheckpointFile { name, bytes: digest.bytes, xxh3: digest.xxh3 }, path)
        };
        kept.files = manifest.table_files().map(file).collect();
        kept.manifest = manifest.stored().into();
        (kept.head.mark, kept.head.manifest_bytes) = (manifest.flushed(), kept.manifest.len() as u64);
        Ok(kept)
    }

    /// What the receiver gets first.
    pub fn head(&self) -> &CheckpointHead {
        &self.head
    }

    /// Omits the files that the receiver has, if they are the same here. Called before the first piece.
    pub fn omit(&mut self, has: &[CheckpointFile]) {
        let (omitted, sent) = self.files.drain(..).partition::<Vec<_>, _>(|(file, _)| has.contains(file));
        self.head.omitted.extend(omitted.into_iter().map(|(file, _)| file.name));
        self.files.extend(sent);
    }

    /// The next bytes of the checkpoint, at most 256 KiB; `None` behind its end. Waits for the disk.
    ///
    /// # Errors
    ///
    /// A file cannot be read.
    pub fn next_piece(&mut self) -> io::Result<Option<Bytes>> {
        if !self.manifest.is_empty() {
            let bytes = PIECE_BYTES.min(self.manifest.len());
            return Ok(Some(self.manifest.split_to(bytes)));
        }
        loop {
            let file = match (self.reading.take(), self.files.pop_front()) {
                (Some(file), next) => {
                    next.into_iter().for_each(|next| self.files.push_front(next));
                    file
                }
                (None, Some((_, path))) => File::open(path)?,
                (None, None) => return Ok(None),
            };
            let mut piece = Vec::with_capacity(PIECE_BYTES);
            (&file).take(PIECE_BYTES as u64).read_to_end(&mut piece)?;
            if !piece.is_empty() {
                self.reading = Some(file);
                return Ok(Some(piece.into()));
            }
        }
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        // A start removes what is left here.
        drop(fs::remove_dir_all(&self.folder));
    }
}

/// A checkpoint that is being received. Dropped before [`Incoming::finish`], it leaves nothing.
#[derive(Debug)]
pub struct Incoming {
    mark: Mark,
    manifest_bytes: u64,
    /// What the sender omits.
    omitted: Vec<String>,
    /// The checked files in the folder.
    whole: BTreeMap<String, Digest>,
    stored: Vec<u8>,
    manifest: Option<Manifest>,
    wanted: VecDeque<(PathBuf, Digest)>,
    writing: Option<Writing>,
    files: Unfinished,
}

/// The table file under way.
struct Writing {
    path: PathBuf,
    file: File,
    digest: Digest,
    written: u64,
    hash: Box<Xxh3>,
}

impl fmt::Debug for Writing {
    /// Omits the state of the hash.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Writing({}, {} bytes)", self.path.display(), self.written)
    }
}

/// The whole files of a checkpoint that was cut off, checked. Dropped, it leaves nothing.
#[derive(Debug)]
pub struct CutOff {
    whole: BTreeMap<String, Digest>,
    files: Unfinished,
}

impl CutOff {
    /// The files, for the sender of the next attempt: 16,384 at most.
    pub fn files(&self) -> Vec<CheckpointFile> {
        let file = |(name, digest): (&String, &Digest)| CheckpointFile {
            name: name.clone(),
            bytes: digest.bytes,
            xxh3: digest.xxh3,
        };
        self.whole.iter().map(file).take(FILES_TOLD_MAX).collect()
    }
}

/// The folder of a checkpoint that does not count yet.
#[derive(Debug)]
struct Unfinished {
    store: PathBuf,
    is_kept: bool,
}

impl Unfinished {
    fn folder(&self) -> PathBuf {
        self.store.join(RESTORING_FOLDER)
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.is_kept {
            // A start removes what is left here.
            drop(remove_folder(&self.folder()));
        }
    }
}

/// A whole checkpoint, checked and durable. Dropped, it leaves nothing.
#[derive(Debug)]
pub struct Whole {
    mark: Mark,
    files: Unfinished,
}

impl Incoming {
    /// Begins to receive a checkpoint into a store of this cluster. The log begins at `from`. Takes what an earlier attempt
    /// has left, unless the checkpoint is refused.
    pub(super) fn begin(
        store: &Path,
        cluster: &str,
        head: &CheckpointHead,
        from: Position,
        cut_off: &mut Option<CutOff>,
    ) -> Result<Self, RestoreError> {
        if head.cluster != cluster {
            let found = head.cluster.chars().take(80).collect();
            return Err(RestoreError::OtherCluster { found, cluster: cluster.to_owned() });
        }
        if head.format != FORMAT {
            return Err(RestoreError::Format { found: head.format });
        }
        if head.mark.position + 1 < from {
            return Err(RestoreError::TooOld { found: head.mark.position, wanted: from - 1 });
        }
        if head.manifest_bytes > MANIFEST_BYTES_MAX {
            return Err(damaged(format!("its manifest has {} bytes", head.manifest_bytes)));
        }
        let CutOff { mut whole, files } = match cut_off.take() {
            Some(cut_off) => cut_off,
            None => {
                let files = Unfinished { store: store.to_owned(), is_kept: false };
                let folder = files.folder();
                remove_folder(&folder).and_then(|()| disk::make_folder(&folder)).map_err(file_error(&folder))?;
                CutOff { whole: BTreeMap::new(), files }
            }
        };
        // What comes again, or is no part of this checkpoint.
        for (name, _) in whole.extract_if(.., |name, _| !head.omitted.contains(name)) {
            let path = files.folder().join(name);
            disk::remove_if_there(&path).map_err(file_error(&path))?;
        }
        Ok(Self {
            mark: head.mark,
            manifest_bytes: head.manifest_bytes,
            omitted: head.omitted.clone(),
            whole,
            stored: Vec::new(),
            manifest: None,
            wanted: VecDeque::new(),
            writing: None,
            files,
        })
    }

    /// Takes the next bytes. Waits for the disk.
    ///
    /// # Errors
    ///
    /// The bytes are not those of the manifest, or the disk fails.
    pub fn add(&mut self, piece: &[u8]) -> Result<(), RestoreError> {
        let mut rest = piece;
        if self.manifest.is_none() {
            let missing = self.manifest_bytes - self.stored.len() as u64;
            let taken = rest.len().min(usize::try_from(missing).unwrap_or(usize::MAX));
            self.stored.extend_from_slice(&rest[..taken]);
            rest = &rest[taken..];
            if self.stored.len() as u64 == self.manifest_bytes {
                self.read_manifest()?;
            }
        }
        while !rest.is_empty() {
            let Some(writing) = &mut self.writing else { return Err(damaged("it has more bytes than announced")) };
            let missing = writing.digest.bytes - writing.written;
            let taken = rest.len().min(usize::try_from(missing).unwrap_or(usize::MAX));
            writing.write(&rest[..taken])?;
            rest = &rest[taken..];
            if writing.written == writing.digest.bytes {
                self.next_file()?;
            }
        }
        Ok(())
    }

    fn read_manifest(&mut self) -> Result<(), RestoreError> {
        let manifest = Manifest::parse(&std::mem::take(&mut self.stored));
        let manifest = manifest.ok_or_else(|| damaged("its manifest is not what was written"))?;
        if manifest.flushed() != self.mark {
            return Err(damaged("its manifest has another last entry than announced"));
        }
        if !manifest.has_plain_names() {
            return Err(damaged("its manifest names a file that no table has"));
        }
        let folder = self.files.folder();
        let mut wanted: BTreeMap<String, Digest> = manifest.table_files().collect();
        for name in &self.omitted {
            match (wanted.remove(name), self.whole.get(name)) {
                (Some(announced), Some(had)) if announced == *had => {}
                _ => return Err(damaged(format!("it omits the file {name:.80}, which this broker has not"))),
            }
        }
        let in_order = manifest.table_files().filter(|(name, _)| wanted.contains_key(name));
        self.wanted = in_order.map(|(name, digest)| (folder.join(name), digest)).collect();
        self.manifest = Some(manifest);
        self.next_file()
    }

    /// Checks the file under way, and begins the next one.
    fn next_file(&mut self) -> Result<(), RestoreError> {
        if let Some(writing) = self.writing.take() {
            self.is_whole(writing)?;
        }
        while let Some((path, digest)) = self.wanted.pop_front() {
            let writing = Writing::begin(path, digest)?;
            match digest.bytes {
                0 => self.is_whole(writing)?,
                _ => {
                    self.writing = Some(writing);
                    break;
                }
            }
        }
        Ok(())
    }

    fn is_whole(&mut self, writing: Writing) -> Result<(), RestoreError> {
        let (name, digest) = (writing.name(), writing.digest);
        writing.finish()?;
        self.whole.insert(name, digest);
        Ok(())
    }

    /// Ends an attempt whose sender is gone. The file under way is lost; the whole ones stay for the next attempt. Waits for the
    /// disk.
    ///
    /// # Errors
    ///
    /// The disk fails.
    pub fn cut_off(self) -> Result<CutOff, RestoreError> {
        if let Some(writing) = self.writing {
            disk::remove_if_there(&writing.path).map_err(file_error(&writing.path))?;
        }
        Ok(CutOff { whole: self.whole, files: self.files })
    }

    /// Checks that nothing is missing. Waits for the disk.
    ///
    /// # Errors
    ///
    /// The sender ended too early, or the disk fails.
    pub fn finish(self) -> Result<Whole, RestoreError> {
        if let Some(writing) = &self.writing {
            return Err(RestoreError::CutOff { missing: writing.digest.bytes - writing.written });
        }
        let Some(manifest) = &self.manifest else {
            return Err(RestoreError::CutOff { missing: self.manifest_bytes - self.stored.len() as u64 });
        };
        let folder = self.files.folder();
        let written = manifest.write_into(&folder).and_then(|()| disk::sync_folder(&folder));
        written.map_err(file_error(&folder))?;
        Ok(Whole { mark: self.mark, files: self.files })
    }
}

impl Writing {
    fn begin(path: PathBuf, digest: Digest) -> Result<Self, RestoreError> {
        let file = OpenOptions::new().write(true).create_new(true).mode(disk::FILE_MODE).open(&path);
        let file = file.map_err(file_error(&path))?;
        Ok(Self { path, file, digest, written: 0, hash: Box::new(Xxh3::new()) })
    }

    fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), RestoreError> {
        self.hash.update(bytes);
        disk::write_at(&self.file, &self.path, bytes, self.written).map_err(file_error(&self.path))?;
        self.written += bytes.len() as u64;
        Ok(())
    }

    fn finish(self) -> Result<(), RestoreError> {
        if self.hash.digest128() != self.digest.xxh3 || self.digest.check(&self.path).is_err() {
            return Err(damaged(format!("the file {} is not what was written", self.name())));
        }
        disk::sync(&self.file, &self.path).map_err(file_error(&self.path))
    }
}

impl Whole {
    /// The last entry that it has.
    pub fn mark(&self) -> Mark {
        self.mark
    }

    /// Makes the checkpoint that of the store, whose tables must not change any more. [`put_in_place`] follows, here or at the
    /// next start.
    pub(super) fn take_effect(mut self) -> Result<(), RestoreError> {
        let restored = self.files.store.join(RESTORED_FOLDER);
        fs::rename(self.files.folder(), &restored).map_err(file_error(&restored))?;
        self.files.is_kept = true;
        disk::sync_folder(&self.files.store).map_err(file_error(&restored))
    }
}

/// Gives a checkpoint that has taken effect the name of the tables. The tables are closed.
pub(super) fn put_in_place(store: &Path) -> Result<(), OpenError> {
    let restored = store.join(RESTORED_FOLDER);
    if !restored.exists() {
        return Ok(());
    }
    let tables = store.join(TABLES_FOLDER);
    let moved = remove_folder(&tables).and_then(|()| disk::rename(&restored, &tables));
    moved.map_err(|source| OpenError::File { path: tables, source })
}

/// Finishes what a process that ended has left: removes a checkpoint that was cut off, puts a whole one in its place.
pub(super) fn finish_at_start(store: &Path) -> Result<(), OpenError> {
    for name in [RESTORING_FOLDER, SENDING_FOLDER] {
        let folder = store.join(name);
        remove_folder(&folder).map_err(|source| OpenError::File { path: folder, source })?;
    }
    put_in_place(store)
}

fn remove_folder(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::mem::ManuallyDrop;

    use super::*;
    use crate::{
        Replica,
        layout::WORK_FOLDER,
        replica::tests::{CLUSTER, Shared, folder, group, keys, mark},
    };

    /// A broker whose checkpoint has records with these keys, each from an entry of its own.
    fn broker_with(log: &Shared, path: &Path, names: &[&str]) -> Replica {
        let replica = Replica::open(path, &CLUSTER).unwrap();
        log.bring_up_to_date(&replica);
        let store = log.led_by(&replica);
        names.iter().for_each(|name| drop(store.commit(group(name)).unwrap()));
        store.give_space_back();
        drop((store, replica));
        Replica::open(path, &CLUSTER).unwrap()
    }

    fn pieces(mut outgoing: Outgoing) -> (CheckpointHead, Vec<Bytes>) {
        let head = outgoing.head().clone();
        (head, std::iter::from_fn(|| outgoing.next_piece().unwrap()).collect())
    }

    fn received(
        replica: &Replica,
        head: &CheckpointHead,
        pieces: &[Bytes],
        from: Position,
    ) -> Result<Whole, RestoreError> {
        let mut incoming = replica.receive(head, from, &mut None)?;
        pieces.iter().try_for_each(|piece| incoming.add(piece))?;
        incoming.finish()
    }

    /// The names in a store's folder that a restore makes.
    fn left(store: &Path) -> Vec<&'static str> {
        let names = [RESTORING_FOLDER, RESTORED_FOLDER];
        names.into_iter().filter(|name| store.join(name).exists()).collect()
    }

    #[test]
    fn a_broker_has_the_checkpoint_of_another_one_and_follows_from_there() {
        let (log, sender, receiver) = (Shared::default(), folder(), folder());
        let peer = broker_with(&log, sender.path(), &["a", "b", "c"]);
        // Its own table has a file with the same name and another content.
        let own = broker_with(&Shared::default(), receiver.path(), &["z"]);
        let (head, pieces) = pieces(peer.send().unwrap());
        assert_eq!((head.mark, head.format), (mark(3), FORMAT));
        let whole = received(&own, &head, &pieces, 3).unwrap();
        assert_eq!(own.restore(whole).unwrap(), mark(3));
        assert_eq!((own.end(), own.flushed_upto(), keys(&own)), (mark(3), 3, keys(&peer)));
        log.led_by(&peer).commit(group("d")).unwrap();
        log.bring_up_to_date(&own);
        assert_eq!(keys(&own), ["a", "b", "c", "d"]);
        log.led_by(&own).commit(group("e")).unwrap();
        own.follow();
        drop(own);
        let own = Replica::open(receiver.path(), &CLUSTER).unwrap();
        log.bring_up_to_date(&own);
        assert_eq!((keys(&own), left(receiver.path())), (["a", "b", "c", "d", "e"].map(String::from).into(), vec![]));
    }

    #[test]
    fn a_checkpoint_is_sent_as_it_was_while_the_broker_goes_on() {
        let (log, sender, receiver) = (Shared::default(), folder(), folder());
        drop(broker_with(&log, sender.path(), &["a"]));
        let peer = broker_with(&log, sender.path(), &["b"]);
        let outgoing = peer.send().unwrap();
        // Merges both files into one, and removes them.
        let store = log.led_by(&peer);
        store.commit(group("c")).unwrap();
        store.give_space_back();
        while peer.flushed_upto() < 3 || store.size_bytes().is_none() {
            std::thread::yield_now();
        }
        let (head, pieces) = pieces(outgoing);
        let own = Replica::open(receiver.path(), &CLUSTER).unwrap();
        own.restore(received(&own, &head, &pieces, 3).unwrap()).unwrap();
        assert_eq!((own.end(), keys(&own)), (mark(2), vec!["a".into(), "b".into()]));
        let sending = fs::read_dir(sender.path().join(SENDING_FOLDER)).unwrap().count();
        assert_eq!(sending, 0, "the second names are gone");
    }

    #[test]
    fn what_is_not_wanted_is_refused_before_a_byte_is_written() {
        let (log, sender, receiver) = (Shared::default(), folder(), folder());
        let peer = broker_with(&log, sender.path(), &["a", "b", "c"]);
        let own = broker_with(&Shared::default(), receiver.path(), &["z"]);
        let head = peer.send().unwrap().head().clone();
        let refused = |head: CheckpointHead, from| own.receive(&head, from, &mut None).unwrap_err();
        let other = CheckpointHead { cluster: "00".into(), ..head.clone() };
        assert!(matches!(refused(other, 1), RestoreError::OtherCluster { found, .. } if found == "00"));
        let newer = CheckpointHead { format: FORMAT + 1, ..head.clone() };
        assert!(matches!(refused(newer, 1), RestoreError::Format { found } if found == FORMAT + 1));
        // The log begins at 5, and entry 4 is in neither.
        assert!(matches!(refused(head.clone(), 5), RestoreError::TooOld { found: 3, wanted: 4 }));
        let as_old = CheckpointHead { mark: mark(1), ..head.clone() };
        assert!(matches!(refused(as_old, 1), RestoreError::TooOld { found: 1, wanted: 2 }));
        let large = CheckpointHead { manifest_bytes: MANIFEST_BYTES_MAX + 1, ..head };
        assert!(matches!(refused(large, 1), RestoreError::Damaged(_)));
        assert_eq!((keys(&own), left(receiver.path())), (vec!["z".into()], vec![]));
    }

    #[test]
    fn a_checkpoint_that_is_cut_off_or_changed_leaves_the_tables_as_they_were() {
        let (log, sender, receiver) = (Shared::default(), folder(), folder());
        let peer = broker_with(&log, sender.path(), &["a", "b", "c"]);
        let own = broker_with(&Shared::default(), receiver.path(), &["z"]);
        let (head, pieces) = pieces(peer.send().unwrap());
        let whole = pieces.concat();
        let with = |bytes: &[u8], head: &CheckpointHead| {
            received(&own, head, &[Bytes::copy_from_slice(bytes)], 1).map(|whole| whole.mark())
        };
        for end in (0..whole.len()).step_by(11) {
            assert!(matches!(with(&whole[..end], &head), Err(RestoreError::CutOff { missing: 1.. })), "{end}");
        }
        for at in (0..whole.len()).step_by(17) {
            let mut changed = whole.clone();
            changed[at] ^= 0x20;
            assert!(matches!(with(&changed, &head), Err(RestoreError::Damaged(_))), "{at}");
        }
        assert!(matches!(with(&[&whole[..], b"x"].concat(), &head), Err(RestoreError::Damaged(_))));
        let other_end = CheckpointHead { mark: mark(4), ..head.clone() };
        assert!(matches!(with(&whole, &other_end), Err(RestoreError::Damaged(_))));
        assert_eq!((with(&whole, &head).unwrap(), left(receiver.path())), (mark(3), vec![]));
        // One byte at a time.
        let mut incoming = own.receive(&head, 1, &mut None).unwrap();
        whole.chunks(1).for_each(|byte| incoming.add(byte).unwrap());
        assert_eq!(keys(&own), ["z"]);
        own.restore(incoming.finish().unwrap()).unwrap();
        assert_eq!(keys(&own), ["a", "b", "c"]);
    }

    /// Receives a checkpoint of three pieces, the manifest and two files, up to the middle of the second file.
    fn cut_in_the_second_file(own: &Replica, peer: &Replica) -> (CheckpointHead, Vec<Bytes>, CutOff) {
        let (head, sent) = pieces(peer.send().unwrap());
        let [manifest, first, second] = &sent[..] else { panic!("{} pieces", sent.len()) };
        let mut incoming = own.receive(&head, 1, &mut None).unwrap();
        for piece in [manifest, first, &second.slice(..second.len() / 2)] {
            incoming.add(piece).unwrap();
        }
        let cut_off = incoming.cut_off().unwrap();
        let left: Vec<_> =
            fs::read_dir(cut_off.files.folder()).unwrap().map(|file| file.unwrap().file_name()).collect();
        assert_eq!(left, [cut_off.files()[0].name.as_str()], "the file under way is gone");
        (head, sent, cut_off)
    }

    #[test]
    fn a_checkpoint_that_was_cut_off_goes_on_with_the_file_under_way() {
        let (log, sender, receiver) = (Shared::default(), folder(), folder());
        drop(broker_with(&log, sender.path(), &["a"]));
        let peer = broker_with(&log, sender.path(), &["b", "c"]);
        let own = Replica::open(receiver.path(), &CLUSTER).unwrap();
        let (_, sent, cut_off) = cut_in_the_second_file(&own, &peer);
        let mut cut_off = Some(cut_off);
        let mut outgoing = peer.send().unwrap();
        outgoing.omit(&cut_off.as_ref().unwrap().files());
        let (head, again) = pieces(outgoing);
        assert_eq!((head.omitted.len(), &again[..]), (1, &[sent[0].clone(), sent[2].clone()][..]));
        // Cut off once more, now behind the last byte: the next attempt needs the manifest alone.
        let mut incoming = own.receive(&head, 1, &mut cut_off).unwrap();
        again.iter().for_each(|piece| incoming.add(piece).unwrap());
        let mut cut_off = Some(incoming.cut_off().unwrap());
        let mut outgoing = peer.send().unwrap();
        outgoing.omit(&cut_off.as_ref().unwrap().files());
        let (head, again) = pieces(outgoing);
        assert_eq!((head.omitted.len(), &again[..]), (2, &sent[..1]));
        let mut incoming = own.receive(&head, 1, &mut cut_off).unwrap();
        again.iter().for_each(|piece| incoming.add(piece).unwrap());
        own.restore(incoming.finish().unwrap()).unwrap();
        assert_eq!((own.end(), keys(&own), left(receiver.path())), (mark(3), keys(&peer), vec![]));
        drop(own);
        assert_eq!(keys(&Replica::open(receiver.path(), &CLUSTER).unwrap()), ["a", "b", "c"]);
    }

    #[test]
    fn of_a_checkpoint_that_has_changed_meanwhile_only_equal_files_are_omitted() {
        let (log, sender, receiver) = (Shared::default(), folder(), folder());
        drop(broker_with(&log, sender.path(), &["a"]));
        let peer = broker_with(&log, sender.path(), &["b"]);
        let own = Replica::open(receiver.path(), &CLUSTER).unwrap();
        // The checkpoint of another broker with files of the same names, and another content.
        let (others_log, others) = (Shared::default(), folder());
        drop(broker_with(&others_log, others.path(), &["x"]));
        let other = broker_with(&others_log, others.path(), &["y", "z"]);
        let (_, _, cut_off) = cut_in_the_second_file(&own, &other);
        let mut cut_off = Some(cut_off);
        let mut outgoing = peer.send().unwrap();
        outgoing.omit(&cut_off.as_ref().unwrap().files());
        let (head, sent) = pieces(outgoing);
        assert_eq!((head.omitted.len(), sent.len()), (0, 3), "all is sent");
        let mut incoming = own.receive(&head, 1, &mut cut_off).unwrap();
        sent[..2].iter().for_each(|piece| incoming.add(piece).unwrap());
        let mut cut_off = Some(incoming.cut_off().unwrap());
        // The broker itself goes on: its first file stays, and a third one comes.
        drop(peer);
        let peer = broker_with(&log, sender.path(), &["c"]);
        let mut outgoing = peer.send().unwrap();
        outgoing.omit(&cut_off.as_ref().unwrap().files());
        let (head, sent) = pieces(outgoing);
        assert_eq!((head.mark, head.omitted.len(), sent.len()), (mark(3), 1, 3));
        let mut incoming = own.receive(&head, 1, &mut cut_off).unwrap();
        sent.iter().for_each(|piece| incoming.add(piece).unwrap());
        own.restore(incoming.finish().unwrap()).unwrap();
        assert_eq!((own.end(), keys(&own)), (mark(3), ["a", "b", "c"].map(String::from).into()));
    }

    #[test]
    fn a_file_that_is_omitted_and_not_there_is_refused_and_an_older_sender_sends_all() {
        let (log, sender, receiver) = (Shared::default(), folder(), folder());
        drop(broker_with(&log, sender.path(), &["a"]));
        let peer = broker_with(&log, sender.path(), &["b"]);
        let own = Replica::open(receiver.path(), &CLUSTER).unwrap();
        let (head, sent, cut_off) = cut_in_the_second_file(&own, &peer);
        let had = cut_off.files();
        drop(cut_off);
        assert_eq!(left(receiver.path()), Vec::<&str>::new(), "dropped, it leaves nothing");
        for omitted in [vec![had[0].name.clone()], vec!["tasks.999".to_owned()], vec!["../x".to_owned()]] {
            let mut incoming = own.receive(&CheckpointHead { omitted, ..head.clone() }, 1, &mut None).unwrap();
            let refused = incoming.add(&sent[0]).unwrap_err();
            assert!(refused.to_string().contains("which this broker has not"), "{refused}");
        }
        // A refused checkpoint leaves what there is for the next one.
        let (_, _, cut_off) = cut_in_the_second_file(&own, &peer);
        let mut cut_off = Some(cut_off);
        let foreign = CheckpointHead { cluster: "00".into(), ..head.clone() };
        own.receive(&foreign, 1, &mut cut_off).unwrap_err();
        assert_eq!(cut_off.as_ref().unwrap().files(), had);
        // A sender that knows of no omission.
        let mut incoming = own.receive(&head, 1, &mut cut_off).unwrap();
        sent.iter().for_each(|piece| incoming.add(piece).unwrap());
        own.restore(incoming.finish().unwrap()).unwrap();
        assert_eq!(keys(&own), ["a", "b"]);
    }

    #[test]
    fn a_manifest_that_names_other_places_is_refused() {
        let receiver = folder();
        let own = Replica::open(receiver.path(), &CLUSTER).unwrap();
        let digest = r#"{"bytes":1,"xxh3":1,"tail_crc32c":1}"#;
        for (table, small, file) in [
            ("../tasks", "", "1"),
            ("unknown", "", "1"),
            ("tasks", "", "../1"),
            ("tasks", "", "01"),
            ("tasks", "../x", "1"),
            ("tasks", ".x", "1"),
        ] {
            let small = if small.is_empty() { String::new() } else { format!("{small:?}:\"00\"") };
            let tables = format!(r#"{{{table:?}:{{"small":{{{small}}},"files":{{{file:?}:{digest}}}}}}}"#);
            let json = format!(r#"{{"number":1,"flushed_upto":9,"tables":{tables}}}"#);
            let stored = format!("{:08x}\n{json}", crc32c::crc32c(json.as_bytes()));
            let head = CheckpointHead {
                cluster: hex::encode(CLUSTER),
                format: FORMAT,
                mark: Mark { position: 9, link: None },
                manifest_bytes: stored.len() as u64,
                omitted: Vec::new(),
            };
            let refused = own.receive(&head, 1, &mut None).unwrap().add(stored.as_bytes()).unwrap_err();
            assert!(refused.to_string().contains("names a file that no table has"), "{refused}");
        }
    }

    #[test]
    fn a_process_that_ends_in_the_middle_leaves_the_former_tables_or_the_new_ones() {
        let (log, sender) = (Shared::default(), folder());
        let peer = broker_with(&log, sender.path(), &["a", "b", "c"]);
        let (head, pieces) = pieces(peer.send().unwrap());
        // What the process had done: received a part, received all; then the checkpoint has taken effect, and of the former
        // tables nothing, a part or all was removed.
        for (step, wanted) in
            ["part", "whole", "effect", "removed a part", "removed all"].into_iter().zip([1, 1, 3, 3, 3])
        {
            let receiver = folder();
            let own = broker_with(&Shared::default(), receiver.path(), &["z"]);
            let mut incoming = own.receive(&head, 1, &mut None).unwrap();
            match step {
                "part" => {
                    incoming.add(&pieces[0]).unwrap();
                    _ = ManuallyDrop::new(incoming);
                }
                _ => {
                    pieces.iter().for_each(|piece| incoming.add(piece).unwrap());
                    let whole = incoming.finish().unwrap();
                    match step {
                        "whole" => _ = ManuallyDrop::new(whole),
                        _ => whole.take_effect().unwrap(),
                    }
                }
            }
            drop(own);
            let tables = receiver.path().join(TABLES_FOLDER);
            match step {
                "removed a part" => fs::remove_file(tables.join("MANIFEST")).unwrap(),
                "removed all" => fs::remove_dir_all(&tables).unwrap(),
                _ => {}
            }
            assert!(!receiver.path().join(WORK_FOLDER).exists());
            let own = Replica::open(receiver.path(), &CLUSTER).unwrap();
            assert_eq!(own.end().position, wanted, "{step}");
            assert_eq!(keys(&own).len() as u64, wanted, "{step}");
            assert_eq!(left(receiver.path()), Vec::<&str>::new(), "{step}");
            // It goes on: an interrupted restore begins again.
            if wanted == 1 {
                own.restore(received(&own, &head, &pieces, 1).unwrap()).unwrap();
                assert_eq!(keys(&own), ["a", "b", "c"], "{step}");
            }
        }
    }

    #[test]
    fn a_leader_and_newer_tables_are_not_replaced() {
        let (log, sender, receiver) = (Shared::default(), folder(), folder());
        let peer = broker_with(&log, sender.path(), &["a", "b"]);
        let own = Replica::open(receiver.path(), &CLUSTER).unwrap();
        let (head, pieces) = pieces(peer.send().unwrap());
        let whole = received(&own, &head, &pieces, 1).unwrap();
        log.bring_up_to_date(&own);
        assert!(matches!(own.restore(whole), Err(RestoreError::TooOld { found: 2, wanted: 3 })));
        let head = CheckpointHead { mark: mark(9), ..head };
        let incoming = own.receive(&head, 1, &mut None).unwrap();
        let whole = Whole { mark: mark(9), files: incoming.files };
        log.led_by(&own);
        assert!(matches!(own.restore(whole), Err(RestoreError::Leads)));
        assert_eq!((keys(&own), own.has_failed()), (vec!["a".into(), "b".into()], false));
    }
}

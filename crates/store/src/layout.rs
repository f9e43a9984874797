//! The layout of a store's folder. Owns whether a store may be opened, and by which process.
//!
//! ```text
//! FORMAT       the version of the format; the store refuses an unknown one and changes nothing
//! LOCK         held as long as the store is open; has the process id of its holder
//! wal/         the log: see `wal`
//! commit_mark  the position of the last committed entry; if the log ends in front of it, acknowledged groups are lost,
//!              and the store does not open
//! tables/      the checkpoint of the tables: see `checkpoint`
//! work/        the tables of an open store, made from `tables/` at every start
//! UNFINISHED   in a copy that is being made, or was cut off: see `backup`
//! CLUSTER      in a store that follows a shared log: the id of its cluster in hex. It has no `wal/`: see `replica`
//! FOUNDING     in a store on its way to be the first one of a cluster: see `founding`
//! restoring/   a checkpoint that a broker of the cluster receives from another one: see `restore`
//! restored/    a whole one, which takes the place of `tables/` now or at the next start
//! sending/     second names of the table files that another broker receives
//! CONVERTING   the name of the copy that an interrupted conversion begins again from: see `convert`
//! ```

use std::{
    fs::{self, File, TryLockError},
    io::{self, Read, Seek, Write as _},
    path::{Path, PathBuf},
};

use super::convert::{CONVERSIONS, Conversion, steps};
use super::founding;
use super::wal::{Link, Mark};
use crate::disk;

/// The format of this version.
pub const FORMAT: u32 = 22;
const FORMAT_NAME: &str = "baton-store ";
pub(super) const FORMAT_FILE: &str = "FORMAT";
pub(super) const LOCK_FILE: &str = "LOCK";
pub(super) const UNFINISHED_FILE: &str = "UNFINISHED";
pub(super) const LOG_FOLDER: &str = "wal";
pub(super) const TABLES_FOLDER: &str = "tables";
pub(super) const WORK_FOLDER: &str = "work";
pub(super) const MARK_FILE: &str = "commit_mark";
pub(super) const CLUSTER_FILE: &str = "CLUSTER";
pub(super) const FOUNDING_FILE: &str = "FOUNDING";
const MARK_MAGIC: &[u8; 8] = b"batonmrk";
/// The magic of a mark with a place in the chain of a shared log.
const LINKED_MARK_MAGIC: &[u8; 8] = b"batonmrl";
const MARK_BYTES: usize = 20;
const LINKED_MARK_BYTES: usize = 62;
/// The free space, in bytes, that a store needs to take writes again after a failed write.
const ROOM_BYTES: usize = 16 * 1024 * 1024;
pub(super) const ROOM_FILE: &str = "room";

/// Failed to open a store.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process holds the folder's lock.
    #[error(
        "failed to open the store in {}: another broker has it (process {pid}); stop that one, or name another folder \
         with --data",
        path.display()
    )]
    InUse {
        /// The folder of the store.
        path: PathBuf,
        /// The other process's id, or "unknown".
        pid: String,
    },
    /// Another version of baton wrote the store.
    #[error(
        "failed to open the store in {}: its format is {found:?}, and that of this version is {:?}; nothing was changed. {}",
        path.display(),
        name_of_format(FORMAT).trim_end(),
        advice(found)
    )]
    Format {
        /// The folder of the store.
        path: PathBuf,
        /// The content of its FORMAT file.
        found: String,
    },
    /// The folder has files, but no FORMAT file.
    #[error("failed to open the store in {}: the folder is not empty and has no FORMAT file", path.display())]
    NotAStore {
        /// The folder.
        path: PathBuf,
    },
    /// The folder is a copy that was cut off.
    #[error(
        "failed to open the store in {}: it is a backup that was cut off, or one that is being written; make it again with `baton \
         backup`, or use another one",
        path.display()
    )]
    Unfinished {
        /// The folder.
        path: PathBuf,
    },
    /// A step from an older format to the next one failed.
    #[error(
        "failed to convert the store in {} from format {from}: {source}. The next start tries again. The store as it was is in {}: to \
         go back, put it in the place of the store, and start the version that wrote it",
        path.display(), copy.display()
    )]
    Conversion {
        /// The folder of the store.
        path: PathBuf,
        /// The number of the format that the step reads.
        from: u32,
        /// The copy of the store before the conversion.
        copy: PathBuf,
        /// The error of the step.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The store follows the shared log of a cluster.
    #[error(
        "failed to open the store in {}: it belongs to cluster {cluster}, whose shared log has its latest entries; nothing was \
         changed. Start the broker with the section [cluster] of that cluster, or name another folder with --data",
        path.display()
    )]
    OfCluster {
        /// The folder of the store.
        path: PathBuf,
        /// The id of the cluster, in hex.
        cluster: String,
    },
    /// The store belongs to a broker alone.
    #[error(
        "failed to open the store in {}: it belongs to a broker without [cluster]; nothing was changed. `baton cluster init` makes \
         it the first broker of the cluster; or remove the section [cluster], or name an empty folder with --data",
        path.display()
    )]
    NotOfCluster {
        /// The folder of the store.
        path: PathBuf,
    },
    /// The store is becoming the first one of a cluster.
    #[error(
        "failed to open the store in {}: `baton cluster init` or `baton cluster refound` was begun and has not ended; run it again with \
         the same configuration and arguments",
        path.display()
    )]
    Founding {
        /// The folder of the store.
        path: PathBuf,
    },
    /// The tables of the store could not be brought up to date.
    #[error(
        "failed to write all that the store in {} has into its tables; make sure that the disk has space and is healthy, and try again",
        path.display()
    )]
    NotFlushed {
        /// The folder of the store.
        path: PathBuf,
    },
    /// The store follows the shared log of another cluster.
    #[error(
        "failed to open the store in {}: it belongs to cluster {found}, and the configuration names cluster {cluster}; nothing was \
         changed. Give each broker of a cluster the same name and keys, or name an empty folder with --data",
        path.display()
    )]
    OtherCluster {
        /// The folder of the store.
        path: PathBuf,
        /// The id in the folder.
        found: String,
        /// The id of the configured cluster, in hex.
        cluster: String,
    },
    /// Another broker of the cluster leads.
    #[error("the store in {} takes no commits: another broker leads now", path.display())]
    Deposed {
        /// The folder of the store.
        path: PathBuf,
    },
    /// A store that follows a shared log failed to write its own files.
    #[error(
        "the store in {} failed to write its tables, and the log says why; make sure that the disk has space and is healthy, and \
         start the broker again: it reads what it lacks from the shared log",
        path.display()
    )]
    ReplicaFailed {
        /// The folder of the store.
        path: PathBuf,
    },
    /// Acknowledged groups are missing.
    #[error(
        "failed to open the store in {}: the log {} is damaged: it ends at group {end}, but group {commit_mark} was \
         written; nothing was changed. Restore the folder from a backup, or see what can be read with `baton store \
         check` and save it with `baton store export`",
        path.display(), log.display()
    )]
    LostWrites {
        /// The folder of the store.
        path: PathBuf,
        /// The damaged log file, or the log's folder if the log has no file.
        log: PathBuf,
        /// The position of the last group in the log.
        end: u64,
        /// The position of the last group that was committed.
        commit_mark: u64,
    },
    /// A file is damaged.
    #[error(
        "failed to open the store: {} is damaged: {problem}; nothing was changed. Restore the folder from a backup, or \
         see what can be read with `baton store check` and save it with `baton store export`",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The check that the file fails.
        problem: String,
    },
    /// The store failed to read or write a file.
    #[error("failed to open the store: {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The tables failed to open, though every check of their files passed.
    #[error(
        "failed to open the store: the tables in {} cannot be opened: {source}. Restore the folder from a backup, or see what can be \
         read with `baton store check` and save it with `baton store export`",
        path.display()
    )]
    Engine {
        /// The folder of the tables.
        path: PathBuf,
        /// The error of the library that holds them.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl OpenError {
    /// Whether files on disk are damaged, so that a retry cannot succeed.
    pub fn is_damage(&self) -> bool {
        matches!(self, Self::LostWrites { .. } | Self::Damaged { .. })
    }

    /// Whether a further attempt of an open store to recover cannot succeed.
    pub fn is_final(&self) -> bool {
        self.is_damage() || matches!(self, Self::Deposed { .. } | Self::ReplicaFailed { .. })
    }
}

/// A damaged file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Damage {
    pub(super) path: PathBuf,
    /// The check that the file fails.
    pub(super) problem: String,
}

impl Damage {
    pub(super) fn new(path: &Path, problem: impl Into<String>) -> Self {
        Self { path: path.into(), problem: problem.into() }
    }

    pub(super) fn unreadable(path: &Path, error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::new(path, "it is not there"),
            _ => Self::new(path, format!("it cannot be read: {error}")),
        }
    }
}

/// The files and folders in a folder, in the order of their names. A missing folder has none.
pub(super) fn entries(folder: &Path) -> Result<Vec<PathBuf>, Damage> {
    let read = || -> io::Result<Vec<PathBuf>> {
        let mut all = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
        all.sort();
        Ok(all)
    };
    match read() {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Damage::unreadable(folder, &error)),
        found => Ok(found.unwrap_or_default()),
    }
}

impl From<Damage> for OpenError {
    fn from(damage: Damage) -> Self {
        Self::Damaged { path: damage.path, problem: damage.problem }
    }
}

/// A lock on a file, until it is dropped. The drop unlocks the file before it closes it. Closing alone would not do: a process
/// that this one is starting has a copy of each descriptor for a moment, and the lock lasts as long as the last copy.
#[derive(Debug)]
pub(super) struct HeldLock(File);

impl Drop for HeldLock {
    fn drop(&mut self) {
        // Without success the lock lasts as long as the last copy of the descriptor.
        let _ = self.0.unlock();
    }
}

/// A shared lock on a store's folder: no broker opens the store during its lifetime. Changes no file.
pub(super) struct FolderGuard {
    _lock: Option<HeldLock>,
}

impl FolderGuard {
    /// Locks a folder that holds a store of this version.
    pub(super) fn take(path: &Path) -> Result<Self, OpenError> {
        let format_path = path.join(FORMAT_FILE);
        if path.join(UNFINISHED_FILE).exists() {
            return Err(OpenError::Unfinished { path: path.into() });
        }
        let found = fs::read(&format_path).map_err(|source| OpenError::File { path: format_path, source })?;
        check_known(path, &found)?;
        // Its tables alone are an old state, which must not be taken for what the cluster has.
        refuse_cluster(path)?;
        let lock_path = path.join(LOCK_FILE);
        let error = |source| OpenError::File { path: lock_path.clone(), source };
        let mut lock = match File::open(&lock_path) {
            // Without a LOCK file the store was never opened here, or the folder is a copy of a store.
            Err(missing) if missing.kind() == io::ErrorKind::NotFound => return Ok(Self { _lock: None }),
            opened => opened.map_err(error)?,
        };
        match lock.try_lock_shared() {
            Ok(()) => Ok(Self { _lock: Some(HeldLock(lock)) }),
            Err(TryLockError::WouldBlock) => Err(in_use(path, &mut lock)),
            Err(TryLockError::Error(source)) => Err(error(source)),
        }
    }
}

/// Checks that a folder has a store of the present format or of one that these steps convert. Makes an empty folder a
/// store of the present format.
pub(super) fn check_format(path: &Path, conversions: &[Conversion]) -> Result<(), OpenError> {
    let format_path = path.join(FORMAT_FILE);
    let error = |source| OpenError::File { path: format_path.clone(), source };
    if path.join(UNFINISHED_FILE).exists() {
        return Err(OpenError::Unfinished { path: path.into() });
    }
    match fs::read(&format_path) {
        Ok(found) => match number_of_format(&found) {
            Some(number) if steps(conversions, number).is_some() => Ok(()),
            _ => Err(format_error(path, &found)),
        },
        Err(missing) if missing.kind() == io::ErrorKind::NotFound => {
            // An interrupted first start may have left the draft of FORMAT. In a cluster it makes CLUSTER first.
            let cluster = path.join(CLUSTER_FILE);
            let own = [disk::draft_of(&format_path), disk::draft_of(&cluster), cluster];
            let is_other = |entry: io::Result<fs::DirEntry>| entry.map_or(true, |entry| !own.contains(&entry.path()));
            if fs::read_dir(path).map_err(error)?.any(is_other) {
                return Err(OpenError::NotAStore { path: path.into() });
            }
            disk::write_whole(&format_path, name_of_format(FORMAT).as_bytes()).map_err(error)
        }
        Err(other) => Err(error(other)),
    }
}

/// The id of the cluster whose shared log the store follows, in hex.
pub(super) fn cluster_of(path: &Path) -> Result<Option<String>, OpenError> {
    let cluster_path = path.join(CLUSTER_FILE);
    match fs::read_to_string(&cluster_path) {
        Ok(found) => Ok(Some(found.trim_end().chars().take(80).collect())),
        Err(missing) if missing.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(OpenError::File { path: cluster_path, source }),
    }
}

/// Fails if the store follows a shared log.
pub(super) fn refuse_cluster(path: &Path) -> Result<(), OpenError> {
    founding::refuse_unfinished(path)?;
    match cluster_of(path)? {
        Some(cluster) => Err(OpenError::OfCluster { path: path.into(), cluster }),
        None => Ok(()),
    }
}

/// Checks that a folder has a store of this cluster, and makes an empty folder one. Returns whether the store is new.
pub(super) fn check_cluster(path: &Path, cluster: &str) -> Result<(), OpenError> {
    founding::refuse_unfinished(path)?;
    match cluster_of(path)? {
        Some(found) if found == cluster => {}
        Some(found) => return Err(OpenError::OtherCluster { path: path.into(), found, cluster: cluster.into() }),
        None if path.join(FORMAT_FILE).exists() => return Err(OpenError::NotOfCluster { path: path.into() }),
        None => {
            let cluster_path = path.join(CLUSTER_FILE);
            let written = disk::write_whole(&cluster_path, format!("{cluster}\n").as_bytes());
            written.map_err(|source| OpenError::File { path: cluster_path, source })?;
        }
    }
    check_format(path, &[])
}

/// Checks that the content of `FORMAT` is that of the present format.
pub(super) fn check_known(path: &Path, found: &[u8]) -> Result<(), OpenError> {
    match number_of_format(found) {
        Some(FORMAT) => Ok(()),
        _ => Err(format_error(path, found)),
    }
}

/// The name of the format that this version reads and writes.
pub fn format_name() -> String {
    name_of_format(FORMAT).trim_end().to_owned()
}

/// The content of `FORMAT`.
pub(super) fn name_of_format(number: u32) -> String {
    format!("{FORMAT_NAME}{number}\n")
}

/// The number in the content of `FORMAT`. `None`: the file is foreign.
pub(super) fn number_of_format(found: &[u8]) -> Option<u32> {
    let number = std::str::from_utf8(found).ok()?.strip_prefix(FORMAT_NAME)?.trim_end().parse().ok()?;
    (name_of_format(number).as_bytes() == found).then_some(number)
}

pub(super) fn format_error(path: &Path, found: &[u8]) -> OpenError {
    // The file may be foreign, so the message shows only its beginning.
    let found = String::from_utf8_lossy(found).trim_end().chars().take(80).collect();
    OpenError::Format { path: path.into(), found }
}

/// What to do about a store of another format.
fn advice(found: &str) -> &'static str {
    match number_of_format(format!("{found}\n").as_bytes()) {
        Some(number) if number > FORMAT => {
            "A newer version of baton wrote it: install that version or a later one; or put the folder back that you had before the \
             upgrade"
        }
        Some(number) if steps(CONVERSIONS, number).is_some() => {
            "Start the broker once: it converts the store, and keeps a copy of it"
        }
        _ => {
            "This version cannot convert it. Start the version that wrote it, or name another folder with --data for a new store; what \
             the old one has is printed by `baton store export` of the version that wrote it"
        }
    }
}

fn in_use(path: &Path, lock: &mut File) -> OpenError {
    let mut pid = String::new();
    let read = lock.read_to_string(&mut pid);
    let known = read.is_ok() && !pid.trim().is_empty();
    let pid = if known { pid.trim().to_owned() } else { "unknown".to_owned() };
    OpenError::InUse { path: path.into(), pid }
}

/// Locks a store's folder for a broker.
pub(super) fn lock(path: &Path) -> Result<HeldLock, OpenError> {
    let lock_path = path.join(LOCK_FILE);
    let error = |source| OpenError::File { path: lock_path.clone(), source };
    let mut file =
        File::options().read(true).write(true).create(true).truncate(false).open(&lock_path).map_err(error)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(in_use(path, &mut file)),
        Err(TryLockError::Error(source)) => return Err(error(source)),
    }
    let mut held = HeldLock(file);
    // Only the holder of the lock writes its id: a reader that finds the lock free never uses the id.
    let file = &mut held.0;
    let written = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| writeln!(file, "{}", std::process::id()));
    written.map_err(error)?;
    Ok(held)
}

/// Locks the mark of an unfinished copy for the process that makes it.
pub(super) fn lock_unfinished(folder: &Path, file: File) -> Result<HeldLock, OpenError> {
    match file.try_lock() {
        Ok(()) => Ok(HeldLock(file)),
        Err(TryLockError::WouldBlock) => Err(OpenError::InUse { path: folder.into(), pid: "unknown".into() }),
        Err(TryLockError::Error(source)) => Err(OpenError::File { path: folder.join(UNFINISHED_FILE), source }),
    }
}

/// Opens the commit mark for [`write_mark`].
pub(super) fn open_mark(path: &Path) -> io::Result<File> {
    File::options().write(true).create(true).truncate(false).open(path.join(MARK_FILE))
}

/// Writes the commit mark, without a sync: it detects a damaged log, and after a power cut an older one is harmless.
pub(super) fn write_mark(file: &File, path: &Path, mark: Mark) -> io::Result<()> {
    disk::write_at(file, &path.join(MARK_FILE), &encode_mark(mark), 0)
}

/// The number of groups committed in this folder since it was created, each with one sync. Readable while a broker has
/// the store open; `None` if the commit mark is missing or damaged.
pub fn groups_committed(path: &Path) -> Option<u64> {
    read_mark(path).map(|mark| mark.position)
}

/// The last committed entry. `None` if the commit mark is missing or damaged.
pub(super) fn read_mark(path: &Path) -> Option<Mark> {
    let stored = fs::read(path.join(MARK_FILE)).ok()?;
    let number = |at: usize| Some(u64::from_be_bytes(stored.get(at..at + 8)?.try_into().ok()?));
    let link = || {
        Some(Link {
            hash: stored.get(16..48)?.try_into().ok()?,
            term: number(48)?,
            level: u16::from_be_bytes(stored.get(56..58)?.try_into().ok()?),
        })
    };
    let mark = match stored.len() {
        MARK_BYTES => Mark::at(number(8)?),
        LINKED_MARK_BYTES => Mark { position: number(8)?, link: Some(link()?) },
        _ => return None,
    };
    // Compares all bytes, magic and checksum included.
    (stored == encode_mark(mark)).then_some(mark)
}

fn encode_mark(mark: Mark) -> Vec<u8> {
    let mut stored = Vec::with_capacity(LINKED_MARK_BYTES);
    stored.extend_from_slice(if mark.link.is_some() { LINKED_MARK_MAGIC } else { MARK_MAGIC });
    stored.extend_from_slice(&mark.position.to_be_bytes());
    if let Some(Link { hash, term, level }) = mark.link {
        stored.extend_from_slice(&hash);
        stored.extend_from_slice(&term.to_be_bytes());
        stored.extend_from_slice(&level.to_be_bytes());
    }
    let checksum = crc32c::crc32c(&stored);
    stored.extend_from_slice(&checksum.to_be_bytes());
    stored
}

/// Checks for free space: writes a file of [`ROOM_BYTES`] and removes it. The content is noise, because some disks
/// allocate nothing for zeros.
pub(super) fn make_sure_of_room(path: &Path) -> Result<(), OpenError> {
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
    // Removed whether or not the write worked: on a full disk the part that was written takes space, too.
    let removed = remove_room(path);
    written.and(removed).map_err(|source| OpenError::File { path: file_path, source })
}

pub(super) fn remove_room(path: &Path) -> io::Result<()> {
    disk::remove_if_there(&path.join(ROOM_FILE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_ends_although_a_started_process_still_has_a_copy_of_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let held = lock(folder.path()).unwrap();
        let copy = held.0.try_clone().unwrap();
        assert!(matches!(lock(folder.path()), Err(OpenError::InUse { .. })));
        drop(held);
        lock(folder.path()).unwrap();
        drop(copy);
    }
}

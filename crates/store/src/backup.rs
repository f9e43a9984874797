//! Copies of a store, also of one that a broker has open.
//!
//! Owns the order in which files are copied, so that a copy is the state after one commit. It needs nothing from the
//! broker: table files never change under their names, the manifest is replaced at once, and an entry of the log proves
//! by its tags that it is whole. What changed while it was copied is copied again. The copy ends behind the last entry
//! that was committed when it began, or later.
//!
//! A folder is an unfinished copy as long as it has the file `UNFINISHED`, and no start opens it.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use super::{
    checkpoint::Manifest,
    dump::{self, Found},
    layout::{
        Damage, FORMAT_FILE, HeldLock, LOG_FOLDER, MARK_FILE, OpenError, TABLES_FOLDER, UNFINISHED_FILE, check_known,
        groups_committed, lock_unfinished, open_mark, write_mark,
    },
    wal::{self, Mark, Position},
};
use crate::disk;

/// The most attempts at one checkpoint.
const TRIES: usize = 20;

/// A copy that is being made. Dropped before [`Backup::finish`], it stays unfinished.
#[derive(Debug)]
pub struct Backup {
    to: PathBuf,
    /// Locked as long as the copy is made.
    _unfinished: HeldLock,
}

/// Why an attempt gave no copy.
enum Failed {
    /// A file changed or went away meanwhile, or is damaged.
    Changed(Damage),
    File(PathBuf, io::Error),
}

impl From<Damage> for Failed {
    fn from(damage: Damage) -> Self {
        Self::Changed(damage)
    }
}

impl Backup {
    /// Begins a copy in this folder of a store, which is made if it is missing. An unfinished copy in it is removed.
    ///
    /// # Errors
    ///
    /// The folder has something else, or another process makes a copy in it.
    pub fn begin(to: &Path) -> Result<Self, OpenError> {
        let path = to.join(UNFINISHED_FILE);
        let error = |source| OpenError::File { path: path.clone(), source };
        disk::make_folder(to).map_err(error)?;
        let is_other = |entry: io::Result<fs::DirEntry>| entry.is_ok_and(|entry| entry.path() != path);
        if !path.exists() && fs::read_dir(to).map_err(error)?.any(is_other) {
            return Err(OpenError::NotAStore { path: to.into() });
        }
        let file = File::options().write(true).create(true).truncate(false).open(&path).map_err(error)?;
        let unfinished = lock_unfinished(to, file)?;
        disk::sync_folder(to).map_err(error)?;
        for entry in fs::read_dir(to).map_err(error)? {
            let entry = entry.map_err(error)?.path();
            let removed = match entry.is_dir() {
                true => fs::remove_dir_all(&entry),
                false if entry == path => Ok(()),
                false => disk::remove_if_there(&entry),
            };
            removed.map_err(error)?;
        }
        Ok(Self { to: to.into(), _unfinished: unfinished })
    }

    /// Copies the store in this folder. Returns the number of its groups: all that were committed before this call, and
    /// perhaps later ones. The copy still counts as unfinished.
    ///
    /// # Errors
    ///
    /// The store has another format, is damaged, or cannot be read; or the copy cannot be written.
    pub fn copy(&self, from: &Path) -> Result<u64, OpenError> {
        let format = from.join(FORMAT_FILE);
        let format = fs::read(&format).map_err(|source| OpenError::File { path: format, source })?;
        check_known(from, &format)?;
        copy_into(&self.to, from, &format)
    }

    /// Reads each record of the copy, as [`read_all`](super::read_all) does.
    ///
    /// # Errors
    ///
    /// There is no temporary folder.
    pub fn read(&self, found: impl FnMut(Found)) -> Result<(), OpenError> {
        dump::read(&self.to, found)
    }

    /// Makes the copy a store.
    ///
    /// # Errors
    ///
    /// The folder cannot be written.
    pub fn finish(self) -> Result<(), OpenError> {
        let path = self.to.join(UNFINISHED_FILE);
        let removed = disk::remove_if_there(&path).and_then(|()| disk::sync_folder(&self.to));
        removed.map_err(|source| OpenError::File { path, source })
    }
}

/// Copies the store in `from`, whose file `FORMAT` has this content, into the folder `to`. Returns the number of its groups.
pub(super) fn copy_into(to: &Path, from: &Path, format: &[u8]) -> Result<u64, OpenError> {
    let committed = groups_committed(from).unwrap_or(0);
    for folder in [TABLES_FOLDER, LOG_FOLDER] {
        disk::make_folder(&to.join(folder)).map_err(|source| OpenError::File { path: to.join(folder), source })?;
    }
    let (mut tries, mut newest, mut before) = (0, 0, None);
    let end = loop {
        let number = Manifest::read(from).ok().flatten().map_or(0, |manifest| manifest.number);
        let damage = match attempt(to, from, committed) {
            Ok(end) => break end,
            Err(Failed::Changed(damage)) => damage,
            Err(Failed::File(path, source)) => return Err(OpenError::File { path, source }),
        };
        // A broker that writes without a pause replaces files all the time, and each attempt has fewer to copy.
        let is_newer = number > newest;
        (tries, newest) = if is_newer { (0, number) } else { (tries + 1, newest) };
        // What is the same in two attempts at one checkpoint is not a change.
        if tries > TRIES || (!is_newer && before.as_ref() == Some(&damage)) {
            return Err(damage.into());
        }
        before = Some(damage);
    };
    let error = |name: &str| {
        let path = to.join(name);
        move |source| OpenError::File { path, source }
    };
    let mark = open_mark(to).map_err(error(MARK_FILE))?;
    write_mark(&mark, to, Mark::at(end)).map_err(error(MARK_FILE))?;
    disk::sync(&mark, &to.join(MARK_FILE)).map_err(error(MARK_FILE))?;
    // Last: without it, nothing takes the folder for a store.
    disk::write_whole(&to.join(FORMAT_FILE), format).map_err(error(FORMAT_FILE))?;
    Ok(end)
}

/// Copies the files of the newest checkpoint that are missing in the copy, and the log behind it.
fn attempt(to: &Path, from: &Path, committed: Position) -> Result<Position, Failed> {
    let manifest = Manifest::read(from).map_err(Failed::Changed)?.unwrap_or_default();
    manifest.copy(from, to, copy_file, |error| Failed::File(to.join(TABLES_FOLDER), error))?;
    let (source, log) = (from.join(LOG_FOLDER), to.join(LOG_FOLDER));
    let file_error = |error| Failed::File(log.clone(), error);
    fs::remove_dir_all(&log).and_then(|()| disk::make_folder(&log)).map_err(file_error)?;
    let first = manifest.flushed_upto + 1;
    for segment in wal::segments_from(&source, first).map_err(Failed::Changed)? {
        copy_file(&segment, &log.join(segment.file_name().unwrap_or_default()))?;
    }
    disk::sync_folder(&log).map_err(file_error)?;
    let copied = wal::scan(&log, first, |_, _, _| {});
    match copied.damages.into_iter().next() {
        Some(damage) => Err(Failed::Changed(damage)),
        None if copied.end < committed => {
            let problem = format!("it ends at group {}, but group {committed} was written", copied.end);
            Err(Failed::Changed(Damage::new(&source, problem)))
        }
        None => Ok(copied.end),
    }
}

/// Copies a file, and syncs the copy.
fn copy_file(from: &Path, to: &Path) -> Result<(), Failed> {
    let read = match File::open(from) {
        Ok(read) => read,
        Err(error) => return Err(Failed::Changed(Damage::unreadable(from, &error))),
    };
    // Not `fs::copy`: the copy belongs to its owner alone, whatever the mode of the file is.
    let copy = |mut read: File| -> io::Result<()> {
        disk::remove_if_there(to)?;
        let mut written = File::create_new(to)?;
        io::copy(&mut read, &mut written)?;
        disk::sync(&written, to)
    };
    copy(read).map_err(|error| Failed::File(to.into(), error))
}

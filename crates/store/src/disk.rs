//! Files and folders that only the broker's user can read, and that survive a power cut.
//!
//! Owns the creation of names on disk. A file is complete and synced before it gets its name, and the folder of a new
//! name is synced afterwards, because POSIX does not make the name durable without it. Must not know the content of a
//! file.

use std::{
    ffi::OsString,
    fs::{DirBuilder, File, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

/// The mode of every folder.
pub const FOLDER_MODE: u32 = 0o700;
/// The mode of every file.
pub const FILE_MODE: u32 = 0o600;
/// The bytes of a page of memory on most machines.
const BLOCK: usize = 4096;

/// The bytes of a file between two syncs while it is written. The disk takes the sync of another file only behind a sync that
/// is under way, so this bounds how long such a one waits. Small in debug builds, so that tests have such syncs.
pub const SYNC_BYTES: usize = if cfg!(debug_assertions) { 64 * 1024 } else { 1024 * 1024 };

/// Sets the umask of the process, so that later files of this process, including those of libraries, are closed to
/// other users.
pub fn keep_to_owner() {
    use rustix::fs::Mode;
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
}

/// Creates a missing folder with its parents. Syncs the parent of each new folder. Syncs the parent of the last folder
/// in any case: an earlier process may have created that folder and ended before its sync.
pub fn make_folder(path: &Path) -> io::Result<()> {
    let around = folder_around(path);
    let is_new = !path.is_dir();
    if is_new {
        if !around.is_dir() {
            make_folder(around)?;
        }
        match DirBuilder::new().mode(FOLDER_MODE).create(path) {
            // Another process created the folder after the check above.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {}
            made => made?,
        }
        #[cfg(test)]
        trace::note(path, || trace::Op::MakeFolder);
    }
    match sync_folder(around) {
        // The parent of an existing folder may be closed to this user.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied && !is_new => Ok(()),
        synced => synced,
    }
}

/// Writes a file atomically: the name leads to the old content or to the whole new one. Replaces an existing file.
pub fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let draft = draft_of(path);
    remove_if_there(&draft)?; // left by an interrupted write, perhaps with other permissions
    write_synced(&draft, bytes).and_then(|()| rename(&draft, path)).inspect_err(|_| {
        // On a full disk, the draft would take the last room. The error that the caller gets is the first one.
        drop(remove_if_there(&draft));
    })
}

fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(path)?;
    #[cfg(test)]
    trace::note(path, || trace::Op::Create);
    // Linux keeps a large write as one large page, and later counts all of it as dirty where a part of it changes.
    for (at, block) in (0..).step_by(BLOCK).zip(bytes.chunks(BLOCK)) {
        write_at(&file, path, block, at)?;
        if (at as usize + BLOCK).is_multiple_of(SYNC_BYTES) {
            sync_data(&file, path)?;
        }
    }
    sync(&file, path)
}

/// Writes bytes at an offset of a file. `path` is the file's name.
pub fn write_at(file: &File, path: &Path, bytes: &[u8], at: u64) -> io::Result<()> {
    file.write_all_at(bytes, at)?;
    #[cfg(test)]
    trace::note(path, || trace::Op::Write { at, bytes: bytes.to_vec() });
    let _ = path;
    Ok(())
}

/// Syncs a file's content and the metadata to find it.
pub fn sync_data(file: &File, path: &Path) -> io::Result<()> {
    file.sync_data()?;
    #[cfg(test)]
    trace::note(path, || trace::Op::Sync);
    let _ = path;
    Ok(())
}

/// Syncs a file's content and all that the file system keeps of the file.
pub fn sync(file: &File, path: &Path) -> io::Result<()> {
    file.sync_all()?;
    #[cfg(test)]
    trace::note(path, || trace::Op::Sync);
    let _ = path;
    Ok(())
}

/// The free bytes of the disk that has this folder, for users without privileges.
pub fn free_bytes(folder: &Path) -> io::Result<u64> {
    let disk = rustix::fs::statvfs(folder)?;
    Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// Gives a file a second name; copies the file where the file system has no second names. The content and the name are
/// not synced.
pub fn link(from: &Path, to: &Path) -> io::Result<()> {
    match std::fs::hard_link(from, to) {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::AlreadyExists) => {
            return Err(error);
        }
        Err(_) => drop(std::fs::copy(from, to)?),
        Ok(()) => {}
    }
    #[cfg(test)]
    trace::note(to, || trace::Op::Link { content: std::fs::read(to).unwrap() });
    Ok(())
}

/// The path of the draft of a file or folder. The complete draft is renamed to `path`.
pub fn draft_of(path: &Path) -> PathBuf {
    let mut draft = OsString::from(path);
    draft.push(".new");
    draft.into()
}

/// Removes a file if it exists.
pub fn remove_if_there(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Err(_) => Ok(()),
        Ok(()) => {
            #[cfg(test)]
            trace::note(path, || trace::Op::Remove);
            Ok(())
        }
    }
}

/// Renames a file or folder, and syncs the folder of the new name.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::rename(from, to)?;
    #[cfg(test)]
    trace::note(from, || trace::Op::Rename(to.to_owned()));
    sync_folder(folder_around(to))
}

/// Syncs the names in a folder.
pub fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()?;
    #[cfg(debug_assertions)]
    record::synced(path);
    #[cfg(test)]
    trace::note(path, || trace::Op::SyncFolder);
    Ok(())
}

/// The folder that contains this name.
pub fn folder_around(path: &Path) -> &Path {
    match path.parent() {
        Some(around) if around.as_os_str().is_empty() => Path::new("."),
        Some(around) => around,
        None => path, // the root or an empty path
    }
}

/// Records syncs for tests, once a thread has asked for it: which names a power cut leaves.
#[cfg(debug_assertions)]
pub mod record {
    use std::{
        cell::RefCell,
        collections::BTreeMap,
        fs,
        path::{Path, PathBuf},
    };

    /// Synced folders, each with the names that it had at that moment.
    pub type Syncs = Vec<(PathBuf, Vec<PathBuf>)>;

    thread_local! {
        static SYNCED: RefCell<Option<Syncs>> = const { RefCell::new(None) };
    }

    /// Records that a folder was synced with the names that it has now.
    pub(super) fn synced(path: &Path) {
        SYNCED.with_borrow_mut(|synced| {
            let Some(synced) = synced else { return };
            let names = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
            synced.push((path.to_owned(), names));
        });
    }

    /// The syncs of this thread since the last call: each folder, with the names it had at that moment. The first call
    /// begins the record.
    pub fn take() -> Syncs {
        SYNCED.replace(Some(Vec::new())).unwrap_or_default()
    }

    /// Copies a folder as a power cut would leave it, on a disk that keeps a name only if the name's folder was synced
    /// after it. `trusts` selects folders whose names are all kept. A sync of a draft counts for the name that the
    /// draft got later.
    pub fn survivors(synced: &[(PathBuf, Vec<PathBuf>)], folder: &Path, to: &Path, trusts: &dyn Fn(&Path) -> bool) {
        let known: BTreeMap<PathBuf, &Vec<PathBuf>> =
            synced.iter().map(|(path, names)| (present_name(path), names)).collect();
        copy(&known, folder, to, trusts);
    }

    fn present_name(path: &Path) -> PathBuf {
        path.to_str().unwrap().replace(".new/", "/").trim_end_matches(".new").into()
    }

    fn copy(known: &BTreeMap<PathBuf, &Vec<PathBuf>>, from: &Path, to: &Path, trusts: &dyn Fn(&Path) -> bool) {
        fs::create_dir_all(to).unwrap();
        for entry in fs::read_dir(from).unwrap() {
            let path = entry.unwrap().path();
            let is_kept = || known.get(from).is_some_and(|names| names.iter().any(|name| present_name(name) == path));
            if !trusts(from) && !is_kept() {
                continue;
            }
            let target = to.join(path.file_name().unwrap());
            match path.is_dir() {
                true => copy(known, &path, &target, trusts),
                false => drop(fs::copy(&path, &target).unwrap()),
            }
        }
    }
}

/// Records the changes of the files below a folder for tests, in order and from every thread.
#[cfg(test)]
pub(crate) mod trace {
    use std::{
        path::{Path, PathBuf},
        sync::{Arc, Mutex},
    };

    /// A change of the disk, or a sync.
    #[derive(Debug, Clone)]
    pub(crate) enum Op {
        MakeFolder,
        Create,
        Write {
            at: u64,
            bytes: Vec<u8>,
        },
        Sync,
        SyncFolder,
        Rename(PathBuf),
        /// A second name of a file that another program wrote, with the file's content.
        Link {
            content: Vec<u8>,
        },
        Remove,
        /// A remark of the test: a number.
        Mark(u64),
    }

    type Ops = Arc<Mutex<Vec<(PathBuf, Op)>>>;

    static RECORDED: Mutex<Vec<(PathBuf, Ops)>> = Mutex::new(Vec::new());

    /// Records every change below `folder` from now on.
    pub(crate) fn record(folder: &Path) -> Ops {
        let ops = Ops::default();
        RECORDED.lock().unwrap().push((folder.to_owned(), ops.clone()));
        ops
    }

    pub(crate) fn note(path: &Path, op: impl FnOnce() -> Op) {
        let recorded = RECORDED.lock().unwrap();
        if let Some((_, ops)) = recorded.iter().find(|(folder, _)| path.starts_with(folder)) {
            ops.lock().unwrap().push((path.to_owned(), op()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn each_folder_that_is_made_is_private_and_synced_in_the_one_around_it() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("a/b/c");
        drop(record::take());
        make_folder(&path).unwrap();
        let synced = record::take();
        let folders: Vec<&Path> = synced.iter().map(|(folder, _)| folder.as_path()).collect();
        let around = [parent.path(), &parent.path().join("a"), &parent.path().join("a/b")];
        assert_eq!(folders, around);
        assert!(synced.iter().all(|(_, names)| names.len() == 1), "each has its name by then");
        for made in ["a", "a/b", "a/b/c"] {
            assert_eq!(mode(&parent.path().join(made)), FOLDER_MODE);
        }
        make_folder(&path).unwrap();
        assert_eq!(record::take().len(), 1, "the process that made it may have ended before it was synced");
        fs::write(parent.path().join("file"), "").unwrap();
        assert!(make_folder(&parent.path().join("file")).is_err());
    }

    #[test]
    fn a_file_that_is_written_is_private_and_its_name_synced_whatever_was_left_before() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("operator.token");
        for left in ["operator.token", "operator.token.new"] {
            fs::write(folder.path().join(left), "left").unwrap();
            fs::set_permissions(folder.path().join(left), fs::Permissions::from_mode(0o666)).unwrap();
        }
        drop(record::take());
        write_whole(&path, b"whole").unwrap();
        assert_eq!((fs::read(&path).unwrap(), mode(&path)), (b"whole".to_vec(), FILE_MODE));
        assert_eq!(record::take(), [(folder.path().to_owned(), vec![path])], "and no draft is left");
    }

    #[test]
    fn a_file_that_cannot_be_written_leaves_no_draft() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a folder has this name");
        fs::create_dir(&path).unwrap();
        write_whole(&path, b"whole").unwrap_err();
        let names: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(names, [path]);
    }
}

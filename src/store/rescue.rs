//! The journals of a store, kept aside while it is being opened. fjall cuts a damaged journal at the damage when it opens
//! it; a store that does not open must be as it was.

use std::{
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom, Write as _},
    path::{Path, PathBuf},
};

use super::embedded::ENGINE_FOLDER;

const RESCUE_FOLDER: &str = "rescue";
const CHUNK: usize = 64 * 1024;
static ZEROS: [u8; CHUNK] = [0; CHUNK];

/// A file, and what went wrong with it.
pub(super) type FileError = (PathBuf, io::Error);

/// Copies of the journals. One of [`Self::forget`] and [`Self::put_back`] ends it; if neither comes, since the process was
/// killed, the next open begins by putting them back.
#[derive(Debug)]
pub(super) struct Journals {
    engine: PathBuf,
    rescue: PathBuf,
    names: Vec<PathBuf>,
}

impl Journals {
    /// Copies them. Where there is no room for that, the store is opened without: it must start on a full disk too.
    pub(super) fn keep(store: &Path) -> Result<Self, FileError> {
        let mut journals =
            Self { engine: store.join(ENGINE_FOLDER), rescue: store.join(RESCUE_FOLDER), names: Vec::new() };
        if journals.rescue.exists() {
            journals.names = journals_in(&journals.rescue)?;
            if journals.rescue.join("complete").exists() {
                journals.copy(&journals.rescue, &journals.engine)?;
            }
            journals.remove()?;
        }
        journals.names = journals_in(&journals.engine)?;
        if journals.names.is_empty() {
            return Ok(journals);
        }
        if let Err((path, error)) = journals.make_copies() {
            if error.kind() != io::ErrorKind::StorageFull {
                return Err((path, error));
            }
            tracing::warn!(path = %path.display(), %error, "no room to keep the journals aside while the store is opened");
            journals.remove()?;
            journals.names.clear();
        }
        Ok(journals)
    }

    /// The newest journal.
    pub(super) fn last(&self) -> Option<PathBuf> {
        let number = |name: &&PathBuf| name.file_stem()?.to_str()?.parse::<u64>().ok();
        self.names.iter().max_by_key(number).map(|name| self.engine.join(name))
    }

    /// All is well: the copies go.
    pub(super) fn forget(self) -> Result<(), FileError> {
        self.remove()
    }

    /// The journals become what they were.
    pub(super) fn put_back(self) -> Result<(), FileError> {
        if !self.names.is_empty() {
            for name in journals_in(&self.engine)?.iter().filter(|name| !self.names.contains(name)) {
                let made_meanwhile = self.engine.join(name);
                fs::remove_file(&made_meanwhile).map_err(|error| (made_meanwhile, error))?;
            }
            self.copy(&self.rescue, &self.engine)?;
        }
        self.remove()
    }

    fn make_copies(&self) -> Result<(), FileError> {
        fs::create_dir_all(&self.rescue).map_err(|error| (self.rescue.clone(), error))?;
        self.copy(&self.engine, &self.rescue)?;
        let complete = self.rescue.join("complete");
        File::create(&complete).and_then(|file| file.sync_all()).map_err(|error| (complete, error))
    }

    fn copy(&self, from: &Path, to: &Path) -> Result<(), FileError> {
        for name in &self.names {
            copy_sparse(&from.join(name), &to.join(name)).map_err(|error| (from.join(name), error))?;
        }
        Ok(())
    }

    fn remove(&self) -> Result<(), FileError> {
        match fs::remove_dir_all(&self.rescue) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err((self.rescue.clone(), error)),
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

/// The journal that an error of fjall's recovery is about, if it is about one.
pub(super) fn damaged_journal(
    error: &(dyn std::error::Error + Send + Sync + 'static),
    journals: &Journals,
) -> Option<PathBuf> {
    match error.downcast_ref::<fjall::Error>() {
        Some(fjall::Error::JournalRecovery(_)) => journals.last(),
        Some(_) | None => None,
    }
}

pub(super) fn journals_in(folder: &Path) -> Result<Vec<PathBuf>, FileError> {
    let error = |error| (folder.to_owned(), error);
    let entries = match fs::read_dir(folder) {
        Err(missing) if missing.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(error)?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let name = PathBuf::from(entry.map_err(error)?.file_name());
        if name.extension().is_some_and(|extension| extension == "jnl") {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Copies a file and leaves out what is only zeros: journals are made large and are mostly empty.
pub(super) fn copy_sparse(from: &Path, to: &Path) -> io::Result<()> {
    let (mut from, mut to) = (File::open(from)?, File::create(to)?);
    let length = from.metadata()?.len();
    let mut chunk = vec![0; CHUNK];
    let mut at = 0;
    while at < length {
        let wanted = usize::try_from(length - at).unwrap_or(CHUNK).min(CHUNK);
        from.read_exact(&mut chunk[..wanted])?;
        if chunk[..wanted] != ZEROS[..wanted] {
            to.seek(SeekFrom::Start(at))?;
            to.write_all(&chunk[..wanted])?;
        }
        at += wanted as u64;
    }
    to.set_len(length)?;
    to.sync_all()
}

//! fjall's files, read without fjall. Owns telling what is whole from what is damaged. Writes nothing. Must not know what
//! lies in a record.
//!
//! fjall mends its folder while it opens it: it deletes all files of a table whose manifest is not there. So the folder is
//! looked through before fjall sees it, and what can be saved of a damaged one is read from here. The layout is that of
//! fjall 3.1.13, to which `Cargo.toml` holds us; `tests/damage.rs` compares what is read here with what fjall reads.
//!
//! ```text
//! version                      "FJL" 3
//! N.jnl                        journals; they have nothing that is needed
//! keyspaces/N/current, vM      which table files are live: see `manifest`
//! keyspaces/N/tables/K         table files: see `sorted`
//! keyspaces/0                  the names of the others
//! ```

mod archive;
mod manifest;
mod merge;
mod numbers;
mod sorted;

use std::{
    collections::HashMap,
    fs, io,
    path::{Path, PathBuf},
};

pub(super) use self::merge::{Entry, Newest, Source};

/// Leaves room below a file's number for the seqnos in it.
const FILE_NUMBER_SHIFT: u32 = 40;
const VERSION: &[u8] = b"FJL\x03";

/// A file, or a part of one, that is not as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Damage {
    /// The file.
    pub(super) path: PathBuf,
    /// What is wrong with it.
    pub(super) problem: String,
}

impl Damage {
    pub(super) fn new(path: &Path, problem: impl Into<String>) -> Self {
        Self { path: path.into(), problem: problem.into() }
    }

    pub(super) fn unreadable(path: &Path, error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::new(path, "it is not there"),
            io::ErrorKind::UnexpectedEof => Self::new(path, "it is too short"),
            _ => Self::new(path, format!("it cannot be read: {error}")),
        }
    }
}

/// The folder of fjall.
#[derive(Debug, Clone)]
pub(super) struct Folder(PathBuf);

impl Folder {
    pub(super) fn new(path: PathBuf) -> Self {
        Self(path)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Whether it is not there: it gets its name when all of it is whole. Fails if what it begins with is damaged.
    pub(super) fn is_new(&self) -> Result<bool, Damage> {
        match self.0.try_exists() {
            Ok(true) => {}
            Ok(false) => return Ok(true),
            Err(error) => return Err(Damage::unreadable(&self.0, &error)),
        }
        let (mark, names) = (self.0.join("version"), self.keyspace(0).join("current"));
        match fs::read(&mark) {
            Ok(found) if found != VERSION => Err(Damage::new(&mark, "it does not say what it should")),
            Ok(_) if !names.exists() => Err(Damage::new(&names, "it is not there")),
            Ok(_) => Ok(false),
            Err(error) => Err(Damage::unreadable(&mark, &error)),
        }
    }

    /// Whether it has a journal. There is nothing in it, but without one fjall believes that nothing was ever written.
    pub(super) fn has_journal(&self) -> Result<bool, Damage> {
        let is_journal = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "jnl");
        Ok(entries(&self.0)?.iter().any(is_journal))
    }

    /// Whether a keyspace has any table file.
    pub(super) fn has_data(&self, keyspace: u64) -> Result<bool, Damage> {
        Ok(!entries(&self.keyspace(keyspace).join("tables"))?.is_empty())
    }

    /// The names of the keyspaces, and their numbers.
    pub(super) fn keyspaces(&self, damages: &mut Vec<Damage>) -> HashMap<String, u64> {
        let mut names = HashMap::new();
        for entry in
            Newest::of(self.table_sources(0).unwrap_or_else(|damage| vec![Box::new([Err(damage)].into_iter())]))
        {
            let Entry { key, value, .. } = match entry {
                Ok(entry) => entry,
                Err(damage) => {
                    damages.push(damage);
                    continue;
                }
            };
            let number = key.strip_prefix(b"n").and_then(|number| number.try_into().ok()).map(u64::from_be_bytes);
            if let (Some(number), Some(name)) = (number, value) {
                names.insert(String::from_utf8_lossy(&name).into_owned(), number);
            }
        }
        names
    }

    /// The newest entries of a keyspace's live table files, as sources to merge: one a run of files that follow each other.
    pub(super) fn table_sources(&self, keyspace: u64) -> Result<Vec<Source>, Damage> {
        Ok(manifest::live_runs(&self.keyspace(keyspace))?.into_iter().map(sorted::read_run).collect())
    }

    /// All table files of a keyspace that are there, for when nobody can say which are live. Of a key, the entry counts that
    /// is in the file with the highest number: how new what is in a file is, stands in the list that is not there.
    pub(super) fn all_table_sources(&self, keyspace: u64) -> Result<Vec<Source>, Damage> {
        let files = entries(&self.keyspace(keyspace).join("tables"))?;
        let alone = |path: PathBuf| {
            let seqno_base = number_of(&path).unwrap_or(0) << FILE_NUMBER_SHIFT;
            sorted::read_run(vec![manifest::LiveTable { path, checksum: None, seqno_base }])
        };
        Ok(files.into_iter().map(alone).collect())
    }

    /// Checks all that fjall reads of a keyspace when it opens it: everything but the records themselves.
    pub(super) fn check_frame(&self, keyspace: u64) -> Result<(), Damage> {
        manifest::live_runs(&self.keyspace(keyspace))?.iter().flatten().try_for_each(sorted::check_frame)?;
        entries(&self.keyspace(keyspace).join("tables"))?.iter().try_for_each(|path| number_of(path).map(drop))
    }

    /// Checks every byte of a keyspace's table files.
    pub(super) fn check_whole(&self, keyspace: u64) -> Result<(), Damage> {
        manifest::live_runs(&self.keyspace(keyspace))?.iter().flatten().try_for_each(sorted::check_whole)
    }

    /// The folders of keyspaces that are there; each must have a number for its name.
    pub(super) fn check_names(&self) -> Result<(), Damage> {
        let folders = entries(&self.0.join("keyspaces"))?;
        folders.iter().filter(|path| path.is_dir()).try_for_each(|path| number_of(path).map(drop))
    }

    pub(super) fn keyspace(&self, number: u64) -> PathBuf {
        self.0.join("keyspaces").join(number.to_string())
    }
}

fn number_of(path: &Path) -> Result<u64, Damage> {
    let number = path.file_stem().and_then(|stem| stem.to_str()?.parse().ok());
    number.ok_or_else(|| Damage::new(path, "it is not fjall's: its name is no number"))
}

/// What is in a folder, sorted; nothing if it is not there.
pub(super) fn entries(folder: &Path) -> Result<Vec<PathBuf>, Damage> {
    let error = |error: io::Error| Damage::unreadable(folder, &error);
    let entries = match fs::read_dir(folder) {
        Err(missing) if missing.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(error)?,
    };
    let mut paths = entries.map(|entry| Ok(entry.map_err(error)?.path())).collect::<Result<Vec<_>, Damage>>()?;
    paths.sort();
    Ok(paths)
}

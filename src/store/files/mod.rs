//! fjall's files, read without fjall. Owns telling intact files from damaged ones. Writes nothing. Must not know the
//! content of a record.
//!
//! fjall repairs its folder when it opens it: it deletes all files of a table whose manifest is missing. So the store
//! checks the folder before fjall opens it, and salvage reads a damaged folder with this module. The layout is that of
//! fjall 3.1.13, the version that `Cargo.toml` pins; `tests/damage.rs` compares the records read here with the records
//! that fjall reads.
//!
//! ```text
//! version                      "FJL" 3
//! N.jnl                        journals; they hold no records
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

/// The bits of a seqno below a file's number, when the number stands in for the age of the file.
const FILE_NUMBER_SHIFT: u32 = 40;
const VERSION: &[u8] = b"FJL\x03";

/// A damaged or missing file, or a damaged part of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Damage {
    /// The file.
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
            io::ErrorKind::UnexpectedEof => Self::new(path, "it is too short"),
            _ => Self::new(path, format!("it cannot be read: {error}")),
        }
    }
}

/// fjall's folder.
#[derive(Debug, Clone)]
pub(super) struct Folder(PathBuf);

impl Folder {
    pub(super) fn new(path: PathBuf) -> Self {
        Self(path)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Whether the folder does not exist. A store creates it under a draft name, and renames the complete draft. Fails
    /// if the version mark is damaged, or the list of keyspaces is missing.
    pub(super) fn is_new(&self) -> Result<bool, Damage> {
        match self.0.try_exists() {
            Ok(true) => {}
            Ok(false) => return Ok(true),
            Err(error) => return Err(Damage::unreadable(&self.0, &error)),
        }
        let (mark, names) = (self.0.join("version"), self.keyspace(0).join("current"));
        match fs::read(&mark) {
            Ok(found) if found != VERSION => Err(Damage::new(&mark, "it does not say what it should")),
            // fjall deletes the files of a keyspace without a manifest, and keyspace 0 holds the names of all others.
            Ok(_) if !names.exists() => Err(Damage::new(&names, "it is not there")),
            Ok(_) => Ok(false),
            Err(error) => Err(Damage::unreadable(&mark, &error)),
        }
    }

    /// Whether the folder has a journal. The journals hold no records, but without one fjall treats the folder as new.
    pub(super) fn has_journal(&self) -> Result<bool, Damage> {
        let is_journal = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "jnl");
        Ok(entries(&self.0)?.iter().any(is_journal))
    }

    /// Whether a keyspace has any table file.
    pub(super) fn has_data(&self, keyspace: u64) -> Result<bool, Damage> {
        Ok(!entries(&self.keyspace(keyspace).join("tables"))?.is_empty())
    }

    /// The keyspaces: names to numbers. Damages found on the way are appended to `damages`.
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

    /// The entries of a keyspace's live table files: one source per run.
    pub(super) fn table_sources(&self, keyspace: u64) -> Result<Vec<Source>, Damage> {
        Ok(manifest::live_runs(&self.keyspace(keyspace))?.into_iter().map(sorted::read_run).collect())
    }

    /// The entries of all table files of a keyspace, for a keyspace whose manifest is lost. The manifest also holds the
    /// seqno base of each file, so the file with the highest number counts as the newest.
    pub(super) fn all_table_sources(&self, keyspace: u64) -> Result<Vec<Source>, Damage> {
        let files = entries(&self.keyspace(keyspace).join("tables"))?;
        let alone = |path: PathBuf| {
            let seqno_base = number_of(&path).unwrap_or(0) << FILE_NUMBER_SHIFT;
            sorted::read_run(vec![manifest::LiveTable { path, checksum: None, seqno_base }])
        };
        Ok(files.into_iter().map(alone).collect())
    }

    /// Checks every file of a keyspace that fjall reads at open: everything but the data blocks.
    pub(super) fn check_frame(&self, keyspace: u64) -> Result<(), Damage> {
        manifest::live_runs(&self.keyspace(keyspace))?.iter().flatten().try_for_each(sorted::check_frame)?;
        entries(&self.keyspace(keyspace).join("tables"))?.iter().try_for_each(|path| number_of(path).map(drop))
    }

    /// Checks every byte of a keyspace's table files.
    pub(super) fn check_whole(&self, keyspace: u64) -> Result<(), Damage> {
        manifest::live_runs(&self.keyspace(keyspace))?.iter().flatten().try_for_each(sorted::check_whole)
    }

    /// Checks that every folder of a keyspace has a number as its name.
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

/// The paths in a folder, sorted; empty if the folder does not exist.
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

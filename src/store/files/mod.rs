//! fjall's files, read without fjall. Owns telling what is whole from what is damaged. Writes nothing, but that it can take
//! off the end of a journal. Must not know what lies in a record.
//!
//! fjall mends its folder while it opens it: it cuts a journal at the first damage, and deletes all files of a table whose
//! manifest is not there. So the folder is looked through before fjall sees it, and what can be saved of a damaged one is
//! read from here. The layout is that of fjall 3.1.13, to which `Cargo.toml` holds us; `tests/store.rs` compares what is
//! read here with what fjall reads.
//!
//! ```text
//! version                      "FJL" 3
//! N.jnl                        journals, the highest number is written to: see `journal`
//! keyspaces/N/current, vM      which table files are live: see `manifest`
//! keyspaces/N/tables/K         table files: see `sorted`
//! keyspaces/0                  the names of the others
//! ```

mod archive;
mod journal;
mod manifest;
mod merge;
mod numbers;
mod sorted;

use std::{
    collections::HashMap,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;

pub(super) use self::merge::{Entry, Newest, Source};

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
    fn new(path: &Path, problem: impl Into<String>) -> Self {
        Self { path: path.into(), problem: problem.into() }
    }

    fn unreadable(path: &Path, error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::new(path, "it is not there"),
            io::ErrorKind::UnexpectedEof => Self::new(path, "it is too short"),
            _ => Self::new(path, format!("it cannot be read: {error}")),
        }
    }
}

/// One change in a journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Item {
    pub(super) keyspace: u64,
    pub(super) key: Bytes,
    /// `None`: the key is deleted.
    pub(super) value: Option<Bytes>,
}

/// What was found in the journals.
#[derive(Debug, Default)]
pub(super) struct Journals {
    /// Places that cannot be read.
    pub(super) damages: Vec<Damage>,
    /// The newest one that says anything, if there is one.
    pub(super) newest: Option<PathBuf>,
    /// A journal's end that was not written to its end, and where it begins: usual where a process was killed.
    pub(super) unfinished: Option<(PathBuf, u64)>,
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

    /// Whether nothing was ever stored: fjall has not been here yet, or was cut off in its very first moment. Fails if
    /// something was, and what it begins with is gone.
    pub(super) fn is_new(&self) -> Result<bool, Damage> {
        let (mark, names) = (self.0.join("version"), self.keyspace(0).join("current"));
        let missing = match fs::read(&mark) {
            Ok(found) if found == VERSION && names.exists() => return Ok(false),
            Ok(found) if found == VERSION => names,
            Ok(_) => return Err(Damage::new(&mark, "it does not say what it should")),
            Err(missing) if missing.kind() == io::ErrorKind::NotFound => mark,
            Err(error) => return Err(Damage::unreadable(&mark, &error)),
        };
        if self.has_data()? { Err(Damage::new(&missing, "it is not there")) } else { Ok(true) }
    }

    fn has_data(&self) -> Result<bool, Damage> {
        let mut batches = 0;
        self.read_journals(|_, _, _| batches += 1)?;
        let keyspaces = entries(&self.0.join("keyspaces"))?;
        let has_tables = |keyspace: &PathBuf| Ok(!entries(&keyspace.join("tables"))?.is_empty());
        let tables = keyspaces.iter().map(has_tables).collect::<Result<Vec<_>, Damage>>()?;
        Ok(batches > 0 || tables.contains(&true))
    }

    /// Reads all journals, oldest first. `found` hears of each item, with its order and its file.
    pub(super) fn read_journals(&self, mut found: impl FnMut(Item, u64, &Arc<Path>)) -> Result<Journals, Damage> {
        let mut journals = Journals::default();
        let mut last_seqno = None;
        for path in self.journals()? {
            let shared: Arc<Path> = path.as_path().into();
            let read = journal::read(&path, &mut last_seqno, |batch| {
                batch.items.into_iter().for_each(|item| found(item, batch.seqno, &shared));
            });
            let read = read.map_err(|error| Damage::unreadable(&path, &error))?;
            if read.batches > 0
                && let Some((path, start)) = journals.unfinished.take()
            {
                let problem = format!("from byte {start} on it is not what was written");
                journals.damages.push(Damage { path, problem });
            }
            if read.batches > 0 || read.tail.is_some() || !read.holes.is_empty() || journals.newest.is_none() {
                journals.newest = Some(path.clone());
            }
            journals.damages.extend(read.holes.iter().map(|hole| {
                Damage::new(&path, format!("bytes {} to {} are not what was written", hole.start, hole.end))
            }));
            journals.unfinished = journals.unfinished.or_else(|| read.tail.map(|start| (path, start)));
        }
        Ok(journals)
    }

    /// Cuts off what was written behind the last group that was answered, so that nothing counts of which nobody knows
    /// whether it is really on the disk. `group` says which group an item ends, if it ends one.
    pub(super) fn cut_behind(&self, last: u64, group: impl Fn(&Item) -> Option<u64>) -> Result<(), Damage> {
        for path in self.journals()? {
            let mut cut = None;
            let read = journal::read(&path, &mut None, |batch| {
                let newer = batch.items.iter().filter_map(&group).any(|number| number > last);
                if newer && cut.is_none() {
                    cut = Some(batch.place.start);
                }
            });
            let unreadable = |error: io::Error| Damage::unreadable(&path, &error);
            read.map_err(unreadable)?;
            if let Some(length) = cut {
                cut_journal(&path, length)?;
            }
        }
        Ok(())
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

    /// All table files of a keyspace that are there, for when nobody can say which are live.
    pub(super) fn all_table_sources(&self, keyspace: u64) -> Result<Vec<Source>, Damage> {
        let files = entries(&self.keyspace(keyspace).join("tables"))?;
        let alone = |path| sorted::read_run(vec![manifest::LiveTable { path, checksum: None, seqno_base: 0 }]);
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

    /// Oldest first.
    fn journals(&self) -> Result<Vec<PathBuf>, Damage> {
        let is_journal = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "jnl");
        let paths = entries(&self.0)?.into_iter().filter(is_journal);
        let mut journals = paths.map(|path| Ok((number_of(&path)?, path))).collect::<Result<Vec<_>, Damage>>()?;
        journals.sort();
        Ok(journals.into_iter().map(|(_, path)| path).collect())
    }
}

/// Takes off a journal's end.
pub(super) fn cut_journal(path: &Path, length: u64) -> Result<(), Damage> {
    let cut = fs::File::options().write(true).open(path).and_then(|file| {
        file.set_len(length)?;
        file.sync_all()
    });
    cut.map_err(|error| Damage::unreadable(path, &error))
}

fn number_of(path: &Path) -> Result<u64, Damage> {
    let number = path.file_stem().and_then(|stem| stem.to_str()?.parse().ok());
    number.ok_or_else(|| Damage::new(path, "it is not fjall's: its name is no number"))
}

/// What is in a folder, sorted; nothing if it is not there.
fn entries(folder: &Path) -> Result<Vec<PathBuf>, Damage> {
    let error = |error: io::Error| Damage::unreadable(folder, &error);
    let entries = match fs::read_dir(folder) {
        Err(missing) if missing.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(error)?,
    };
    let mut paths = entries.map(|entry| Ok(entry.map_err(error)?.path())).collect::<Result<Vec<_>, Damage>>()?;
    paths.sort();
    Ok(paths)
}

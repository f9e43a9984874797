//! Reading a store that may be damaged: every record that can be read, and a word for what cannot. Works on a copy, so that
//! the store stays as it is; finished table files are not copied but linked, since nobody ever writes to them.

use std::{
    fs, io,
    ops::Bound,
    path::{Path, PathBuf},
};

use bytes::Bytes;

use super::{
    OpenError, Record, Table,
    embedded::{ENGINE_FOLDER, Engine, FolderGuard, decode_record, open_witness, read_witness},
    rescue::{copy_sparse, journals_in},
};

/// Something that was found in a store.
#[derive(Debug)]
pub enum Found {
    /// A record that is as it was written.
    Record {
        /// The table.
        table: Table,
        /// Its key.
        key: Bytes,
        /// The record.
        record: Record,
    },
    /// Something that is not.
    Damaged {
        /// The file, the folder of the table, or the folder of the store.
        path: PathBuf,
        /// The table, if it is known.
        table: Option<Table>,
        /// The key, or the last one before the damage.
        key: Bytes,
        /// What is wrong.
        problem: String,
    },
}

/// Reads all of a store, table by table and key by key. No broker may have it open.
pub fn read_all(path: &Path, mut found: impl FnMut(Found)) -> Result<(), OpenError> {
    let guard = FolderGuard::take(path)?;
    let work = Work::new(path)?;
    let engine = work.open(&mut found)?;
    if let Some(engine) = &engine {
        check_end(path, engine, &mut found)?;
        for table in Table::ALL {
            read_table(path, engine, table, &mut found);
        }
    }
    drop(engine);
    drop(guard);
    Ok(())
}

/// The copy. Goes with this.
struct Work {
    store: PathBuf,
    folder: PathBuf,
}

impl Drop for Work {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.folder));
    }
}

impl Work {
    fn new(store: &Path) -> Result<Self, OpenError> {
        let name = format!("check-{}", std::process::id());
        // Beside the store: links need the same disk.
        let folder = store.parent().unwrap_or(store).join(name);
        fs::create_dir_all(&folder).map_err(|source| OpenError::File { path: folder.clone(), source })?;
        Ok(Self { store: store.into(), folder })
    }

    /// Opens the copy. If the journal is damaged in the middle, as much of its beginning as makes sense.
    fn open(&self, found: &mut impl FnMut(Found)) -> Result<Option<Engine>, OpenError> {
        let problem = match self.try_open(u64::MAX)? {
            Ok(engine) => return Ok(Some(engine)),
            Err(problem) => problem,
        };
        let engine_folder = self.store.join(ENGINE_FOLDER);
        let journals = journals_in(&engine_folder).map_err(|(path, source)| OpenError::File { path, source })?;
        let path = journals.last().map_or(engine_folder.clone(), |name| engine_folder.join(name));
        found(Found::Damaged { path: path.clone(), table: None, key: Bytes::new(), problem });
        let length = fs::metadata(&path).map(|file| file.len()).unwrap_or(0);
        let (mut good, mut bad) = (None, length);
        let mut tried = 0;
        while tried < bad {
            match self.try_open(tried)? {
                Ok(_) => good = Some(tried),
                Err(_) => bad = tried,
            }
            let low = good.unwrap_or(0);
            if bad - low <= 1 || (good.is_none() && tried == 0) {
                break;
            }
            tried = low + (bad - low) / 2;
        }
        match good {
            Some(good) => Ok(self.try_open(good)?.ok()),
            None => Ok(None),
        }
    }

    /// A fresh copy, its newest journal cut to this length, and fjall on it.
    fn try_open(&self, journal_length: u64) -> Result<Result<Engine, String>, OpenError> {
        let error = |source| OpenError::File { path: self.folder.clone(), source };
        drop(fs::remove_dir_all(&self.folder));
        let copy = self.folder.join(ENGINE_FOLDER);
        copy_folder(&self.store.join(ENGINE_FOLDER), &copy).map_err(error)?;
        let journals = journals_in(&copy).map_err(|(path, source)| OpenError::File { path, source })?;
        if let Some(last) = journals.last().filter(|_| journal_length < u64::MAX) {
            let file = fs::File::options().write(true).open(copy.join(last)).map_err(error)?;
            file.set_len(journal_length).map_err(error)?;
        }
        Ok(Engine::open(&self.folder).map_err(|error| match error {
            OpenError::Engine { source, .. } => source.to_string(),
            other => other.to_string(),
        }))
    }
}

fn copy_folder(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        let is_finished = from.file_name().is_some_and(|name| name == "tables" || name == "blobs");
        if entry.file_type()?.is_dir() {
            copy_folder(&source, &target)?;
        } else if !is_finished || fs::hard_link(&source, &target).is_err() {
            copy_sparse(&source, &target)?;
        }
    }
    Ok(())
}

/// Whether the journal has all groups that were written.
fn check_end(store: &Path, engine: &Engine, found: &mut impl FnMut(Found)) -> Result<(), OpenError> {
    let witness_path = store.join("witness");
    let witness = open_witness(&witness_path).map_err(|source| OpenError::File { path: witness_path, source })?;
    let (last, witnessed) = (engine.last_group()?, read_witness(&witness).unwrap_or(0));
    if last < witnessed {
        let problem = format!("the journal ends at group {last}, but group {witnessed} was written");
        found(Found::Damaged { path: store.join(ENGINE_FOLDER), table: None, key: Bytes::new(), problem });
    }
    Ok(())
}

/// Goes on behind what cannot be read, at the nearest key that can.
fn read_table(store: &Path, engine: &Engine, table: Table, found: &mut impl FnMut(Found)) {
    let keyspace = engine.table(table);
    let mut from = Bound::Unbounded;
    loop {
        let mut last = Bytes::new();
        let mut broken = None;
        for guard in keyspace.range::<Bytes, _>((from.clone(), Bound::Unbounded)) {
            match guard.into_inner() {
                Ok((key, stored)) => {
                    last = Bytes::from(key);
                    found(match decode_record(table, &last, &Bytes::from(stored)) {
                        Ok(record) => Found::Record { table, key: last.clone(), record },
                        Err(problem) => Found::Damaged {
                            path: in_store(store, keyspace.path()),
                            table: Some(table),
                            key: last.clone(),
                            problem: problem.to_owned(),
                        },
                    });
                }
                Err(error) => {
                    broken = Some(error.to_string());
                    break;
                }
            }
        }
        let Some(problem) = broken else { return };
        let path = in_store(store, keyspace.path());
        found(Found::Damaged { path, table: Some(table), key: last.clone(), problem });
        let readable = |start: &Bytes| {
            let mut range = keyspace.range::<Bytes, _>((Bound::Included(start.clone()), Bound::Unbounded));
            range.next().is_none_or(|guard| guard.into_inner().is_ok())
        };
        match starts_behind(&last).find(readable) {
            Some(start) => from = Bound::Included(start),
            None => return,
        }
    }
}

/// Keys behind this one, near ones first.
fn starts_behind(key: &Bytes) -> impl Iterator<Item = Bytes> {
    let key = key.clone();
    let prefixes = (0..key.len()).rev().flat_map(move |length| {
        let head = key.slice(..length);
        (key[length]..u8::MAX).map(move |byte| [&head[..], &[byte + 1]].concat().into())
    });
    prefixes.chain((0..=u8::MAX).map(|byte| Bytes::copy_from_slice(&[byte])))
}

/// A path of the copy, as it is called in the store itself.
fn in_store(store: &Path, path: &Path) -> PathBuf {
    let mut parts = path.components().skip_while(|part| part.as_os_str() != ENGINE_FOLDER);
    parts.next();
    store.join(ENGINE_FOLDER).join(parts.collect::<PathBuf>())
}

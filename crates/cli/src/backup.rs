//! `baton backup`: a copy of a data folder, also of one that a broker uses.
//!
//! Owns the order of the parts. The files of blobs come first, then the store, then the blobs that are new: a blob that
//! the copied store names was there when the store was copied. The folder gets its name last.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use clap::Args;
use indicatif::ProgressBar;
use serde_json::json;

use super::{Failure, exit, output::Output, progress};
use baton_broker_core::{
    DEFAULT_DATA,
    records::{self, BlobRecord},
};
use baton_store::{Backup, Found, OpenError, Table, disk};

/// Copy a data folder, also while a broker uses it.
///
/// The copy is the state after one commit, with everything that was answered before the command began. Each of its
/// records is read and checked. A broker starts on it. It has the broker's keys and the operator's token: its mode is
/// 0700. It is written to DIR.partial and gets its name at the end.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  baton backup --data /var/lib/baton --out /backup/baton-2026-11-22
  baton store check --data /backup/baton-2026-11-22

Run it on the broker's machine, as the broker's user. It needs no token. Blobs in a bucket are not copied.

Exit code 6 if a record is damaged, 1 if the disk of DIR is full (DISK_FULL).")]
pub(super) struct BackupArgs {
    /// The broker's data folder. The broker may run.
    #[arg(long, env = "BATON_DATA", default_value = DEFAULT_DATA, value_name = "FOLDER")]
    data: PathBuf,
    /// The folder of the copy. It must be missing or empty.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

const STORE: &str = "store";
const BLOBS: &str = "blobs";
/// The file of a copy that is not finished, in its store.
const UNFINISHED: &str = "store/UNFINISHED";
/// The file of a data folder that belongs to a running broker.
const OF_THE_PROCESS: &str = "address";
/// The most rounds until each blob of the copied store has its file.
const ROUNDS: usize = 3;

pub(super) fn run(args: &BackupArgs, output: &Output) -> Result<(), Failure> {
    disk::keep_to_owner();
    let (data, out) = (&args.data, &args.out);
    let (source, target) = (real(data), real(out));
    if source.starts_with(&target) || target.starts_with(&source) {
        return Err(Failure::usage(format!(
            "{} and {} are inside one another; name a folder outside the data folder",
            data.display(),
            out.display()
        )));
    }
    if !is_empty(out)? {
        return Err(Failure::failed(format!(
            "{} is not empty; nothing was changed. Name a folder that is missing or empty",
            out.display()
        )));
    }
    let mut partial = out.clone().into_os_string();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    // A folder without the mark may be another one, and a backup that was only not named yet is whole.
    let is_cut_off = partial.join(UNFINISHED).exists() || holds_nothing(&partial)?;
    if !is_cut_off {
        let partial = partial.display();
        return Err(Failure::failed(format!(
            "{partial} is there, and is no backup that was cut off; rename or remove it"
        )));
    }
    let backup = match Backup::begin(&partial.join(STORE)) {
        Err(OpenError::InUse { .. }) => {
            let said = format!("another `baton backup` is writing {}", partial.display());
            return Err(Failure::new(exit::DATA_IN_USE, said));
        }
        begun => begun?,
    };
    let (records, groups) = fill(data, &partial, &backup)?;
    backup.finish()?;
    // An empty folder of this name gives way.
    let named = remove_folder_if_there(out).and_then(|()| disk::rename(&partial, out));
    named.map_err(|error| Failure::writing(out, &error))?;
    if output.is_table() {
        say!("copied {} to {}: {records} records after {groups} commits", data.display(), out.display());
        return Ok(());
    }
    output.value(&json!({"out": out.display().to_string(), "records": records, "commits": groups}))
}

/// Copies all parts. Returns the numbers of records and of commits.
fn fill(data: &Path, partial: &Path, backup: &Backup) -> Result<(u64, u64), Failure> {
    let failed = |error| Failure::file(partial, error);
    // What a backup that was cut off has left.
    for path in entries(partial).map_err(failed)?.into_iter().filter(|path| !path.ends_with(STORE)) {
        let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        removed.map_err(|error| Failure::file(&path, error))?;
    }
    let bar = progress::counting("files");
    let blobs = |bar: &ProgressBar| copy_tree(&data.join(BLOBS), &partial.join(BLOBS), bar);
    blobs(&bar)?;
    let mut round = 1;
    let copied = loop {
        let groups = backup.copy(&data.join(STORE))?;
        blobs(&bar)?;
        let (records, missing) = check(partial, backup)?;
        if missing.is_empty() || round == ROUNDS {
            missing.iter().for_each(|digest| tell!("the data folder has no file of blob {digest}"));
            break (records, groups);
        }
        // A blob was written after the first copy of the blobs, and removed before the second.
        round += 1;
    };
    for path in entries(data).map_err(|error| Failure::file(data, error))? {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        // Also not a copy of the store from before a conversion.
        let is_other = ![STORE, BLOBS, OF_THE_PROCESS].contains(&name) && !name.starts_with("store.");
        if is_other {
            copy_tree(&path, &partial.join(name), &bar)?;
        }
    }
    disk::sync_folder(partial).map_err(|error| Failure::writing(partial, &error))?;
    bar.finish_and_clear();
    Ok(copied)
}

/// Reads each record of the copy. Returns how many there are, and the blobs that have no file.
fn check(partial: &Path, backup: &Backup) -> Result<(u64, Vec<String>), Failure> {
    let (mut records, mut damaged, mut missing) = (0, 0, Vec::new());
    let blobs = partial.join(BLOBS);
    backup.read(|found| match found {
        Found::Record { table, key, record } => {
            records += 1;
            if let Err(problem) = records::check(table, &key, &record.value) {
                damaged += 1;
                tell!("damaged: table {}, key {}: {problem}", table.name(), hex::encode(&key));
            }
            let blob = BlobRecord::decode(&record.value).ok().filter(|blob| {
                table == Table::Blobs && blob.object.is_none() && *BlobRecord::key(&blob.digest).key == *key
            });
            if let Some(name) = blob.map(|blob| hex::encode(blob.digest)) {
                let file = blobs.join(&name[..2]).join(&name);
                // In a bucket, or found damaged before.
                let others = [blobs.join("bucket").join(&name), file.with_extension("damaged")];
                if !file.exists() && !others.iter().any(|path| path.exists()) {
                    missing.push(name);
                }
            }
        }
        Found::Damaged { path, problem, .. } => {
            damaged += 1;
            tell!("damaged: {}: {problem}", path.display());
        }
    })?;
    match damaged {
        0 => Ok((records, missing)),
        _ => Err(Failure::damaged(format!(
            "the store has {damaged} damaged records or files; the unfinished backup is in {}",
            partial.display()
        ))),
    }
}

/// Copies a file, or a folder with all that is in it. Skips files that are there with the same length, what is no file,
/// and what goes away meanwhile.
fn copy_tree(from: &Path, to: &Path, bar: &ProgressBar) -> Result<(), Failure> {
    let failed = |path: &Path, error: io::Error| Failure::writing(path, &error);
    let found = match fs::metadata(from) {
        Err(gone) if gone.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found.map_err(|error| failed(from, error))?,
    };
    if found.is_dir() {
        disk::make_folder(to).map_err(|error| failed(to, error))?;
        for path in entries(from).map_err(|error| failed(from, error))? {
            copy_tree(&path, &to.join(path.file_name().unwrap_or_default()), bar)?;
        }
        return disk::sync_folder(to).map_err(|error| failed(to, error));
    }
    if !found.is_file() || fs::metadata(to).is_ok_and(|there| there.len() == found.len()) {
        return Ok(());
    }
    let mut read = match File::open(from) {
        Err(gone) if gone.kind() == io::ErrorKind::NotFound => return Ok(()),
        read => read.map_err(|error| failed(from, error))?,
    };
    // Not `fs::copy`: the copy belongs to its owner alone, whatever the mode of the file is.
    let mut copy = || -> io::Result<()> {
        let mut written = File::create(to)?;
        io::copy(&mut read, &mut written)?;
        disk::sync(&written, to)
    };
    copy().map_err(|error| failed(to, error))?;
    bar.inc(1);
    Ok(())
}

/// The paths in a folder; a missing one has none.
fn entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(folder) {
        Err(missing) if missing.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        found => found?.map(|entry| Ok(entry?.path())).collect(),
    }
}

fn is_empty(folder: &Path) -> Result<bool, Failure> {
    Ok(entries(folder).map_err(|error| Failure::file(folder, error))?.is_empty())
}

/// Whether a backup to this folder can have written no file yet.
fn holds_nothing(partial: &Path) -> Result<bool, Failure> {
    let found = entries(partial).map_err(|error| Failure::file(partial, error))?;
    Ok(found.iter().all(|path| path.ends_with(STORE)) && is_empty(&partial.join(STORE))?)
}

fn remove_folder_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// A path without links, also of what is not there yet.
fn real(path: &Path) -> PathBuf {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    match (fs::canonicalize(&whole), whole.parent(), whole.file_name()) {
        (Ok(real), ..) => real,
        (Err(_), Some(around), Some(name)) => real(around).join(name),
        (Err(_), ..) => whole,
    }
}

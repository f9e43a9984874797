//! The checkpoint: the state of the tables that a start begins with, and the entry of the log up to which it goes.
//!
//! Owns `tables/`: copies of the tables' files, and a manifest that says which they are, with their lengths and
//! checksums. The library writes and merges files in `work/`; then their names are added to `tables/`, and a new
//! manifest replaces the old one. A start makes `work/` anew from `tables/`. So what the library leaves behind when it
//! is interrupted, at any moment, is never read again. Must not know the content of the library's files.
//!
//! ```text
//! MANIFEST, MANIFEST.copy  CRC-32C of the rest in hex, line feed, JSON
//! TABLE.NUMBER             a table file; never changed
//! ```

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read as _},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use lsm_tree::{AbstractTree as _, AnyTree};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use super::{
    Table,
    layout::{Damage, TABLES_FOLDER, WORK_FOLDER, entries},
    tables::{FILES_FOLDER, open_tree},
    wal::{Link, Mark, Position},
};
use crate::disk;

const NOT_WRITTEN: &str = "it is not what was written";
const COPIES: [&str; 2] = ["MANIFEST", "MANIFEST.copy"];
/// The bytes at the end of each table file that every start checks, also of a file whose other bytes are checked later.
/// The library finds the rest from there, and checks each part that it reads.
const TAIL_BYTES: u64 = 64 * 1024;
/// The bytes that one read of a check takes.
const READ_BYTES: usize = 256 * 1024;
/// The most copies of a table after the first, each of which a merge changed meanwhile.
const TRIES: usize = 20;

/// The files of the tables.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Manifest {
    /// Counts the manifests of this folder.
    pub(super) number: u64,
    /// The tables have every entry up to this one.
    pub(super) flushed_upto: Position,
    /// The place of that entry in the chain of a shared log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) link: Option<Link>,
    tables: BTreeMap<String, TableFiles>,
}

/// The files of one table.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct TableFiles {
    /// The small files by name, in hex: what the library says about its table files.
    small: BTreeMap<String, String>,
    /// The table files by name.
    files: BTreeMap<String, Digest>,
}

/// What a file must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Digest {
    pub(super) bytes: u64,
    /// The XXH3 of all bytes, which the library computes while it writes them.
    pub(super) xxh3: u128,
    tail_crc32c: u32,
}

/// The XXH3 of all bytes of a file. `None`: `is_over` became true meanwhile.
fn xxh3(mut file: &File, is_over: &AtomicBool) -> io::Result<Option<u128>> {
    let mut hasher = Xxh3::new();
    let mut buffer = vec![0; READ_BYTES];
    while !is_over.load(Ordering::Relaxed) {
        match file.read(&mut buffer)? {
            0 => return Ok(Some(hasher.digest128())),
            bytes => hasher.update(&buffer[..bytes]),
        }
    }
    Ok(None)
}

/// The checksum of the end of a file.
fn tail(file: &File) -> io::Result<u32> {
    let length = file.metadata()?.len();
    let from = length.saturating_sub(TAIL_BYTES);
    let mut tail = vec![0; usize::try_from(length - from).expect("a tail is small")];
    file.read_exact_at(&mut tail, from)?;
    Ok(crc32c::crc32c(&tail))
}

/// For checks that nothing ends.
static NEVER: AtomicBool = AtomicBool::new(false);

/// A table file of which only the end is checked.
#[derive(Debug)]
pub(super) struct Unchecked {
    path: PathBuf,
    digest: Digest,
}

impl Digest {
    /// Opens a file, and checks its length and its end.
    pub(super) fn check(&self, path: &Path) -> Result<File, Damage> {
        let open = || -> io::Result<Option<File>> {
            let file = File::open(path)?;
            let is_right = file.metadata()?.len() == self.bytes && tail(&file)? == self.tail_crc32c;
            Ok(is_right.then_some(file))
        };
        match open() {
            Ok(file) => file.ok_or_else(|| Damage::new(path, NOT_WRITTEN)),
            Err(error) => Err(Damage::unreadable(path, &error)),
        }
    }

    /// Checks every byte of a file, unless `is_over` becomes true meanwhile.
    fn check_whole(&self, file: &File, path: &Path, is_over: &AtomicBool) -> Result<(), Damage> {
        match xxh3(file, is_over) {
            Ok(found) if found.is_none_or(|found| found == self.xxh3) => Ok(()),
            Ok(_) => Err(Damage::new(path, NOT_WRITTEN)),
            Err(error) => Err(Damage::unreadable(path, &error)),
        }
    }
}

impl Manifest {
    /// Reads the manifest. `None`: no checkpoint was taken yet. Fails unless both copies are intact.
    pub(super) fn read(store: &Path) -> Result<Option<Self>, Damage> {
        let [first, second] = Self::copies(store);
        let missing = |name: &str| Damage::new(&store.join(TABLES_FOLDER).join(name), "it is not there");
        match (first?, second?) {
            // One copy without the other is damage: both are written before a checkpoint counts, and never removed.
            (None, None) => Ok(None),
            (Some(_), None) => Err(missing(COPIES[1])),
            (None, Some(_)) => Err(missing(COPIES[0])),
            // A power cut may leave the second as it was before.
            (Some(first), Some(second)) => Ok(Some(if first.number < second.number { second } else { first })),
        }
    }

    fn copies(store: &Path) -> [Result<Option<Self>, Damage>; 2] {
        COPIES.map(|name| {
            let path = store.join(TABLES_FOLDER).join(name);
            let stored = match fs::read(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                stored => stored.map_err(|error| Damage::unreadable(&path, &error))?,
            };
            Self::parse(&stored).map(Some).ok_or_else(|| Damage::new(&path, NOT_WRITTEN))
        })
    }

    /// Parses the stored form. `None`: it is damaged.
    pub(super) fn parse(stored: &[u8]) -> Option<Self> {
        let (sum, json) = stored.split_at_checked(9)?;
        let is_intact = sum == format!("{:08x}\n", crc32c::crc32c(json)).as_bytes();
        is_intact.then(|| serde_json::from_slice(json).ok())?
    }

    /// The form on disk.
    pub(super) fn stored(&self) -> String {
        let json = serde_json::to_string(self).expect("a manifest is JSON");
        format!("{:08x}\n{json}", crc32c::crc32c(json.as_bytes()))
    }

    /// Whether the folder has no record: its manifests, if there are any, name no table, and no table file is there.
    pub(super) fn is_unused(store: &Path) -> bool {
        let is_empty = |copy: &Result<Option<Self>, Damage>| {
            copy.as_ref().is_ok_and(|copy| copy.as_ref().is_none_or(|copy| copy.tables.is_empty()))
        };
        // A first start that was cut off leaves a draft of a manifest.
        let is_draft = |path: &Path| COPIES.iter().any(|name| path.ends_with(disk::draft_of(Path::new(name))));
        let files = files_of(&store.join(TABLES_FOLDER));
        let has_no_table = |files: Vec<PathBuf>| files.iter().all(|path| is_copy(path) || is_draft(path));
        Self::copies(store).iter().all(is_empty) && files.is_ok_and(has_no_table)
    }

    /// The newest intact copy, and the damages of the others.
    pub(super) fn salvage(store: &Path) -> (Self, Vec<Damage>) {
        let damages = Self::read(store).err().into_iter().collect();
        let copies = Self::copies(store).into_iter().filter_map(|copy| copy.ok().flatten());
        // Without an intact copy the log alone is read: a dump gives what it can.
        (copies.max_by_key(|copy| copy.number).unwrap_or_default(), damages)
    }

    fn write(&self, store: &Path) -> io::Result<()> {
        self.write_into(&store.join(TABLES_FOLDER))
    }

    /// Writes both copies into a folder of table files.
    pub(super) fn write_into(&self, tables: &Path) -> io::Result<()> {
        let stored = self.stored();
        COPIES.iter().try_for_each(|name| disk::write_whole(&tables.join(name), stored.as_bytes()))
    }

    /// The name of each table file in `tables/`, with what it must be, in a fixed order.
    pub(super) fn table_files(&self) -> impl Iterator<Item = (String, Digest)> {
        let of = |(table, tree): (&String, &TableFiles)| {
            let name = |(name, digest): (&String, &Digest)| (format!("{table}.{name}"), *digest);
            tree.files.iter().map(name).collect::<Vec<_>>()
        };
        self.tables.iter().flat_map(of)
    }

    /// Whether all names in it are names of tables and of files, and none is a path to another place.
    pub(super) fn has_plain_names(&self) -> bool {
        let is_plain = |name: &String| {
            let permitted = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
            !name.is_empty() && !name.starts_with('.') && name.bytes().all(permitted)
        };
        self.tables.iter().all(|(table, tree)| {
            Table::ALL.iter().any(|known| known.name() == table)
                && tree.small.keys().all(is_plain)
                && tree.files.keys().all(|name| name.parse::<u64>().is_ok_and(|number| number.to_string() == *name))
        })
    }

    /// The last entry that the tables have.
    pub(super) fn flushed(&self) -> Mark {
        Mark { position: self.flushed_upto, link: self.link }
    }

    /// The same tables, up to this entry of another log.
    pub(super) fn founded(self, mark: Mark) -> Self {
        Self { number: self.number + 1, flushed_upto: mark.position, link: mark.link, ..self }
    }

    /// Whether a table has a tree: it has had a record.
    pub(super) fn has_tree(&self, table: Table) -> bool {
        self.tables.contains_key(table.name())
    }

    /// The tables with a tree.
    pub(super) fn with_tree(&self) -> impl Iterator<Item = Table> {
        Table::ALL.into_iter().filter(|table| self.has_tree(*table))
    }

    /// Each table file: its table, its name in the tree, its path, and what it must be.
    fn files<'a>(&'a self, store: &'a Path) -> impl Iterator<Item = (&'a str, &'a str, PathBuf, &'a Digest)> {
        let folder = store.join(TABLES_FOLDER);
        self.tables.iter().flat_map(move |(table, tree)| {
            let folder = folder.clone();
            let file = move |(name, digest): (&'a String, &'a Digest)| {
                (table.as_str(), name.as_str(), folder.join(format!("{table}.{name}")), digest)
            };
            tree.files.iter().map(file)
        })
    }

    /// Checks every byte of every table file. Calls `found` for each damaged one with the name of its table.
    pub(super) fn verify(&self, store: &Path, mut found: impl FnMut(&str, Damage)) {
        for (table, _, path, digest) in self.files(store) {
            if let Err(damage) = digest.check(&path).and_then(|file| digest.check_whole(&file, &path, &NEVER)) {
                found(table, damage);
            }
        }
    }

    /// Checks every byte of every table file. Fails with the first damaged one.
    pub(super) fn check(&self, store: &Path) -> Result<(), Damage> {
        self.check_most(store, u64::MAX).map(drop)
    }

    /// Checks the presence, the length and the end of every table file, and every byte of as many files as have `most`
    /// bytes together. Fails with the first damaged one. Returns the files of which only the end is checked.
    pub(super) fn check_most(&self, store: &Path, most: u64) -> Result<Vec<Unchecked>, Damage> {
        let (mut left, mut unchecked) = (most, Vec::new());
        for (_, _, path, digest) in self.files(store) {
            let file = digest.check(&path)?;
            match left.checked_sub(digest.bytes) {
                Some(rest) => {
                    digest.check_whole(&file, &path, &NEVER)?;
                    left = rest;
                }
                None => unchecked.push(Unchecked { path, digest: *digest }),
            }
        }
        Ok(unchecked)
    }

    /// Brings the table files that another store's folder lacks into it, by `copy`, and then the manifest. Removes the files
    /// there that the manifest does not have. Checks every byte of each file that it brings.
    pub(super) fn copy<E: From<Damage>>(
        &self,
        store: &Path,
        to: &Path,
        copy: impl Fn(&Path, &Path) -> Result<(), E>,
        failed: impl Fn(io::Error) -> E,
    ) -> Result<(), E> {
        let folder = to.join(TABLES_FOLDER);
        let wanted: std::collections::HashSet<_> = self.files(to).map(|(_, _, path, _)| path).collect();
        for path in files_of(&folder).map_err(&failed)?.iter().filter(|path| !wanted.contains(*path)) {
            disk::remove_if_there(path).map_err(&failed)?;
        }
        for ((_, _, from, digest), (_, _, to, _)) in self.files(store).zip(self.files(to)) {
            // Only a file that was checked has its name.
            if to.exists() && digest.check(&to).is_ok() {
                continue;
            }
            let draft = disk::draft_of(&to);
            copy(&from, &draft)?;
            let file = digest.check(&draft)?;
            digest.check_whole(&file, &from, &NEVER)?;
            disk::rename(&draft, &to).map_err(&failed)?;
        }
        disk::sync_folder(&folder).and_then(|()| self.write(to)).map_err(&failed)
    }

    /// Makes the tree of a table in a folder, if the manifest has one. `link` gives each table file a further name.
    pub(super) fn restore(
        &self,
        store: &Path,
        table: Table,
        folder: &Path,
        link: impl Fn(&Path, &Path) -> io::Result<()>,
    ) -> io::Result<()> {
        let Some(tree) = self.tables.get(table.name()) else { return Ok(()) };
        fs::create_dir_all(folder.join(FILES_FOLDER))?;
        for (_, name, path, _) in self.files(store).filter(|(of, ..)| *of == table.name()) {
            link(&path, &folder.join(FILES_FOLDER).join(name))?;
        }
        tree.small.iter().try_for_each(|(name, content)| {
            fs::write(folder.join(name), hex::decode(content).map_err(io::Error::other)?)
        })
    }
}

/// The checkpoint of an open store.
pub(super) struct Checkpoint {
    store: PathBuf,
    manifest: Mutex<Manifest>,
    /// That of the manifest on disk, to be read without waiting for a checkpoint.
    flushed_upto: AtomicU64,
}

impl Checkpoint {
    /// Makes `work/` from a manifest whose files are intact, and removes all other files.
    pub(super) fn open(store: &Path, manifest: Manifest) -> io::Result<Self> {
        disk::make_folder(&store.join(TABLES_FOLDER))?;
        // A power cut may have left one copy behind the other. Both must agree before the next checkpoint writes the
        // first of them.
        if Manifest::copies(store).iter().any(|copy| !matches!(copy, Ok(Some(copy)) if *copy == manifest)) {
            manifest.write(store)?;
        }
        remove_work(store)?;
        let work = store.join(WORK_FOLDER);
        disk::make_folder(&work)?;
        for table in manifest.with_tree() {
            let link = |from: &Path, to: &Path| disk::link(from, to);
            manifest.restore(store, table, &work.join(table.name()), link)?;
        }
        let flushed_upto = AtomicU64::new(manifest.flushed_upto);
        let checkpoint = Self { store: store.into(), manifest: Mutex::new(manifest), flushed_upto };
        checkpoint.remove_others(&checkpoint.manifest.lock().expect("no holder panics"))?;
        Ok(checkpoint)
    }

    /// The tables of the checkpoint have every entry up to this one.
    pub(super) fn flushed_upto(&self) -> Position {
        self.flushed_upto.load(Ordering::Acquire)
    }

    /// Gives each file of the checkpoint a second name in this folder, which is made. Returns the manifest: a later checkpoint
    /// removes no file of it from there.
    pub(super) fn keep_in(&self, folder: &Path) -> io::Result<Manifest> {
        disk::make_folder(folder)?;
        // A file is removed with the manifest locked.
        let manifest = self.manifest.lock().expect("no holder panics");
        for (_, _, path, _) in manifest.files(&self.store) {
            disk::link(&path, &folder.join(name_of(&path)))?;
        }
        Ok(manifest.clone())
    }

    /// Checks every byte of these files, until `is_over` becomes true. Skips files that a merge has replaced: it has read
    /// and checked each of their records.
    pub(super) fn check_rest(&self, files: Vec<Unchecked>, is_over: &AtomicBool) -> Result<(), Damage> {
        for Unchecked { path, digest } in files {
            let opened = {
                // A file is removed with the manifest locked.
                let manifest = self.manifest.lock().expect("no holder panics");
                match manifest.files(&self.store).any(|(_, _, listed, _)| listed == path) {
                    true => File::open(&path).map_err(|error| Damage::unreadable(&path, &error))?,
                    false => continue,
                }
            };
            digest.check_whole(&opened, &path, is_over)?;
        }
        Ok(())
    }

    /// Takes over these tables as they are in `work/` now. After a flush they have every entry up to `upto`, as all
    /// others have; `None` after a merge.
    pub(super) fn save(&self, changed: &[Table], upto: Option<Mark>) -> lsm_tree::Result<()> {
        let mut manifest = self.manifest.lock().expect("no holder panics");
        let mut next = manifest.clone();
        next.number += 1;
        if let Some(upto) = upto.filter(|upto| upto.position > next.flushed_upto) {
            (next.flushed_upto, next.link) = (upto.position, upto.link);
        }
        for table in changed {
            let files = self.take_over(*table, manifest.tables.get(table.name()))?;
            next.tables.insert(table.name().to_owned(), files);
        }
        // The names of the new files are durable before a manifest names them.
        disk::sync_folder(&self.store.join(TABLES_FOLDER))?;
        next.write(&self.store)?;
        // Only after the write: a failed checkpoint leaves the former one in force, here as on disk.
        *manifest = next;
        self.flushed_upto.store(manifest.flushed_upto, Ordering::Release);
        // Last, since the former manifest may need the files until the new one is written.
        self.remove_others(&manifest)?;
        Ok(())
    }

    /// Adds the present files of a table to the folder, and syncs them.
    fn take_over(&self, table: Table, former: Option<&TableFiles>) -> lsm_tree::Result<TableFiles> {
        let copy = self.store.join(WORK_FOLDER).join("copy");
        let mut tries = 0;
        // A merge may replace files while they are copied. A copy that the library opens is of one moment.
        let version = loop {
            match copy_tree(&self.store.join(WORK_FOLDER).join(table.name()), &copy) {
                Ok(opened) => break opened.current_version(),
                Err(error) if tries == TRIES => return Err(error),
                Err(_) => tries += 1,
            }
        };
        let mut tree = TableFiles::default();
        for path in files_of(&copy)? {
            tree.small.insert(name_of(&path), hex::encode(fs::read(&path)?));
        }
        for written in version.iter_tables() {
            let name = written.id().to_string();
            // A table file never changes, so a known one keeps its digest.
            let digest = match former.and_then(|former| former.files.get(&name)) {
                Some(digest) => *digest,
                None => {
                    let target = self.store.join(TABLES_FOLDER).join(format!("{}.{name}", table.name()));
                    // A checkpoint that failed may have left a part of it.
                    disk::remove_if_there(&target)?;
                    disk::link(&copy.join(FILES_FOLDER).join(&name), &target)?;
                    let file = File::open(&target)?;
                    disk::sync(&file, &target)?;
                    let xxh3 = written.checksum().into_u128();
                    Digest { bytes: file.metadata()?.len(), xxh3, tail_crc32c: tail(&file)? }
                }
            };
            tree.files.insert(name, digest);
        }
        fs::remove_dir_all(&copy)?;
        Ok(tree)
    }

    /// Removes the files that the manifest does not have.
    fn remove_others(&self, manifest: &Manifest) -> io::Result<()> {
        let listed: std::collections::HashSet<_> = manifest.files(&self.store).map(|(_, _, path, _)| path).collect();
        let all = files_of(&self.store.join(TABLES_FOLDER))?;
        all.iter()
            .filter(|path| !listed.contains(*path) && !is_copy(path))
            .try_for_each(|path| disk::remove_if_there(path))
    }
}

/// Whether a file is a copy of the manifest.
fn is_copy(path: &Path) -> bool {
    COPIES.iter().any(|name| path.ends_with(name))
}

/// Removes the tables in `work/`. The store must be closed.
pub(super) fn remove_work(store: &Path) -> io::Result<()> {
    match fs::remove_dir_all(store.join(WORK_FOLDER)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Copies a tree, and opens the copy.
fn copy_tree(from: &Path, to: &Path) -> lsm_tree::Result<AnyTree> {
    if to.exists() {
        fs::remove_dir_all(to)?;
    }
    fs::create_dir_all(to.join(FILES_FOLDER))?;
    for path in files_of(from)? {
        fs::copy(&path, to.join(name_of(&path)))?;
    }
    for path in files_of(&from.join(FILES_FOLDER))? {
        disk::link(&path, &to.join(FILES_FOLDER).join(name_of(&path)))?;
    }
    open_tree(to, None)
}

/// The files in a folder, without unfinished drafts.
fn files_of(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let all = entries(folder).map_err(|damage| io::Error::other(damage.problem))?;
    Ok(all.into_iter().filter(|path| path.is_file() && !name_of(path).starts_with('.')).collect())
}

fn name_of(path: &Path) -> String {
    path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned()
}

//! A test: the disk as a power cut leaves it, at any moment of a store's life.
//!
//! The run of a store is recorded: each write, sync, and change of names that `disk` makes, of every thread, in order.
//! From that, disks are made. A synced write is on each of them. Of the others, each sector of 512 bytes is written or
//! not, and each change of a name, in two models: ext4 keeps a beginning of all changes of names and metadata, and any
//! sync keeps all before it; strict POSIX keeps any subset, except what a sync of the same file or folder kept.
//!
//! A table file counts as one write of the whole file, made when `checkpoint` adds its name to `tables/`: earlier syncs
//! of the library do not count. `work/` has garbage after every cut, since a start does not read it.

use std::{
    collections::BTreeMap,
    fs,
    ops::Bound::Unbounded,
    path::{Path, PathBuf},
};

use super::{
    Change, EmbeddedStore, Order, Store as _, Table,
    conformance::{NaiveStore, delete, put},
};
use crate::disk::{self, trace::Op};

const SECTOR: usize = 512;

/// Random numbers from a seed.
struct Rng(u64);

impl Rng {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % sides
    }

    fn coin(&mut self) -> bool {
        self.roll(2) == 0
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Model {
    Ext4,
    Posix,
}

#[derive(Default, Clone)]
struct Inode {
    durable: Vec<u8>,
    pending: Vec<Op>,
}

/// A change of the names in a folder.
#[derive(Clone)]
struct Names {
    folder: PathBuf,
    add: Option<(PathBuf, usize)>,
    remove: Option<PathBuf>,
}

impl Names {
    fn apply(&self, names: &mut BTreeMap<PathBuf, usize>) {
        if let Some(path) = &self.remove {
            names.remove(path);
        }
        if let Some((path, inode)) = &self.add {
            names.insert(path.clone(), *inode);
        }
    }
}

/// A disk while operations are carried out on it.
#[derive(Default, Clone)]
struct Disk {
    inodes: Vec<Inode>,
    /// The names that the process sees.
    seen: BTreeMap<PathBuf, usize>,
    durable: BTreeMap<PathBuf, usize>,
    pending: Vec<Names>,
}

impl Disk {
    /// A disk with these files, all of them durable.
    fn of(files: BTreeMap<PathBuf, Vec<u8>>) -> Self {
        let mut disk = Self::default();
        for (path, durable) in files {
            disk.durable.insert(path, disk.inodes.len());
            disk.inodes.push(Inode { durable, pending: Vec::new() });
        }
        disk.seen = disk.durable.clone();
        disk
    }

    fn change(&mut self, path: &Path, add: Option<(PathBuf, usize)>, remove: Option<PathBuf>) {
        let names = Names { folder: path.parent().unwrap().to_owned(), add, remove };
        names.apply(&mut self.seen);
        self.pending.push(names);
    }

    fn create(&mut self, path: &Path) -> usize {
        self.inodes.push(Inode::default());
        self.change(path, Some((path.to_owned(), self.inodes.len() - 1)), None);
        self.inodes.len() - 1
    }

    /// Keeps the changes of names that a sync of this folder, or of a file, keeps.
    fn keep_names(&mut self, model: Model, synced: Option<&Path>) {
        let pending = std::mem::take(&mut self.pending);
        for names in pending {
            match model == Model::Ext4 || synced == Some(&names.folder) {
                true => names.apply(&mut self.durable),
                false => self.pending.push(names),
            }
        }
    }

    fn carry_out(&mut self, model: Model, path: &Path, op: &Op) {
        match op {
            Op::MakeFolder | Op::Mark(_) => {}
            Op::Create => drop(self.create(path)),
            Op::Write { .. } => {
                let inode = self.seen.get(path).copied().unwrap_or_else(|| self.create(path));
                self.inodes[inode].pending.push(op.clone());
            }
            Op::Link { content } => {
                let inode = self.create(path);
                self.inodes[inode].pending.push(Op::Write { at: 0, bytes: content.clone() });
            }
            Op::Sync => {
                let inode = &mut self.inodes[self.seen[path]];
                let pending = std::mem::take(&mut inode.pending);
                pending.iter().for_each(|op| write(&mut inode.durable, op, |_| true));
                self.keep_names(model, None);
            }
            Op::SyncFolder => self.keep_names(model, Some(path)),
            Op::Rename(to) => self.change(path, Some((to.clone(), self.seen[path])), Some(path.to_owned())),
            Op::Remove => self.change(path, None, Some(path.to_owned())),
        }
    }

    /// The files that a power cut leaves now.
    fn cut(&self, model: Model, rng: &mut Rng) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut names = self.durable.clone();
        let kept = rng.roll(self.pending.len() + 1);
        for (place, change) in self.pending.iter().enumerate() {
            if if model == Model::Ext4 { place < kept } else { rng.coin() } {
                change.apply(&mut names);
            }
        }
        let mut content = |inode: &Inode| {
            let mut bytes = inode.durable.clone();
            let way = rng.roll(4);
            for op in &inode.pending {
                write(&mut bytes, op, |_| match way {
                    0 => false,
                    1 => true,
                    _ => rng.coin(),
                });
            }
            bytes
        };
        names.into_iter().map(|(path, inode)| (path, content(&self.inodes[inode]))).collect()
    }
}

/// Carries out a write, or those sectors of it that are kept. A kept length without kept sectors leaves zeros.
fn write(file: &mut Vec<u8>, op: &Op, mut is_kept: impl FnMut(usize) -> bool) {
    let Op::Write { at, bytes } = op else { return };
    let (at, end) = (*at as usize, *at as usize + bytes.len());
    if file.len() < end && is_kept(0) {
        file.resize(end, 0);
    }
    for sector in at / SECTOR..end.div_ceil(SECTOR) {
        let (from, to) = ((sector * SECTOR).max(at), ((sector + 1) * SECTOR).min(end));
        if is_kept(sector) {
            file.resize(file.len().max(to), 0);
            file[from..to].copy_from_slice(&bytes[from - at..to - at]);
        }
    }
}

/// A folder in memory if the machine has one: a store syncs often.
fn temporary() -> tempfile::TempDir {
    match Path::new("/dev/shm").is_dir() {
        true => tempfile::tempdir_in("/dev/shm").unwrap(),
        false => tempfile::tempdir().unwrap(),
    }
}

fn group(number: u64, rng: &mut Rng) -> Vec<Change> {
    let key = |rng: &mut Rng| format!("{:03}", rng.roll(200));
    // Letters at random: the log compresses what repeats, and would never come to its second file.
    let value: String = (0..rng.roll(2500)).map(|_| char::from(b'0' + rng.roll(64) as u8)).collect();
    let mut writes = vec![put(Table::Meta, "sequence", number + 1, &number.to_string())];
    for table in [Table::Tasks, Table::Envelopes, Table::Mailbox] {
        writes.push(put(table, &key(rng), number + 1, &value));
        writes.push(delete(table, &key(rng)));
    }
    vec![Change { expectations: Vec::new(), writes }]
}

/// A store's content after each of its groups.
type States = Vec<NaiveStore>;

/// Commits groups, and remarks each receipt.
fn commit_groups(store: &EmbeddedStore, folder: &Path, states: &mut States, count: u64, rng: &mut Rng) {
    for _ in 0..count {
        let group = group(states.len() as u64, rng);
        let mut state = states.last().unwrap().clone();
        state.apply(&group[0]);
        states.push(state);
        assert!(store.commit(group).unwrap()[0].is_ok());
        disk::trace::note(folder, || Op::Mark(states.len() as u64 - 1));
    }
}

/// The number of the last group that the store has.
fn last_group(store: &EmbeddedStore) -> usize {
    let found = store.scan(Table::Meta, (Unbounded, Unbounded), Order::Ascending, 1).unwrap();
    found.first().map_or(0, |(_, record)| std::str::from_utf8(&record.value).unwrap().parse().unwrap())
}

fn is_of_the_store(path: &Path) -> bool {
    !path.components().any(|part| part.as_os_str() == "work")
}

/// Makes the folder that a power cut at `moment` leaves.
fn image(start: &Disk, from: &Path, ops: &[(PathBuf, Op)], model: Model, rng: &mut Rng) -> tempfile::TempDir {
    let mut disk = start.clone();
    ops.iter().filter(|(path, _)| is_of_the_store(path)).for_each(|(path, op)| disk.carry_out(model, path, op));
    let folder = temporary();
    for (path, bytes) in disk.cut(model, rng) {
        let path = folder.path().join(path.strip_prefix(from).unwrap());
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    // The working copy is made after the file FORMAT.
    if folder.path().join("FORMAT").exists() {
        fs::create_dir_all(folder.path().join("work/tasks/tables")).unwrap();
        fs::write(folder.path().join("work/tasks/tables/7"), "garbage").unwrap();
        fs::write(folder.path().join("work/tasks/current"), "garbage").unwrap();
    }
    folder
}

/// The number of the last group with a receipt.
fn receipted(ops: &[(PathBuf, Op)], before: usize) -> usize {
    ops.iter()
        .filter_map(|(_, op)| if let Op::Mark(number) = op { Some(*number as usize) } else { None })
        .next_back()
        .unwrap_or(before)
}

#[track_caller]
fn assert_whole(store: &EmbeddedStore, states: &States, receipted: usize, what: &str) -> usize {
    let last = last_group(store);
    assert!((receipted..=receipted + 1).contains(&last), "{what}: {last} groups, {receipted} with a receipt");
    states[last].assert_same(store);
    last
}

fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => all.extend(files(&path)),
            false => drop(all.insert(path.clone(), fs::read(&path).unwrap())),
        }
    }
    all.retain(|path, _| is_of_the_store(path));
    all
}

fn cuts() -> usize {
    std::env::var("BATON_POWER_CUTS").map_or(150, |text| text.parse().expect("BATON_POWER_CUTS is a number"))
}

/// BATON_POWER_CUTS: the number of disks, or 150.
#[test]
fn a_power_cut_at_any_moment_loses_no_receipted_group_and_damages_nothing() {
    let mut rng = Rng(20_261_122);
    let folder = temporary();
    let ops = disk::trace::record(folder.path());
    let mut states = vec![NaiveStore::default()];
    for _ in 0..4 {
        let store = EmbeddedStore::open(folder.path()).unwrap();
        commit_groups(&store, folder.path(), &mut states, 200, &mut rng);
    }
    let ops = std::mem::take(&mut *ops.lock().unwrap());
    let manifests =
        ops.iter().filter(|(path, op)| matches!(op, Op::Rename(_)) && path.ends_with("tables/MANIFEST.new"));
    assert!(manifests.count() > 5, "checkpoints were taken");
    assert!(ops.iter().filter(|(_, op)| matches!(op, Op::Remove)).count() > 5, "files were removed");
    let used_again = |(path, op): &&(PathBuf, Op)| {
        matches!(op, Op::Rename(_)) && path.extension().is_some_and(|extension| extension == "free")
    };
    assert!(ops.iter().filter(used_again).count() > 5, "files of the log were used again");
    for cut in 0..cuts() {
        let model = if cut % 2 == 0 { Model::Ext4 } else { Model::Posix };
        // A third of the cuts are at the first operations, one after the other, because a first start makes all folders.
        let moment = if cut < cuts() / 3 { cut / 2 } else { rng.roll(ops.len() + 1) };
        let what = format!("cut {cut}, {model:?}, after operation {moment} of {}", ops.len());
        let image_folder = image(&Disk::default(), folder.path(), &ops[..moment], model, &mut rng);
        let done = receipted(&ops[..moment], 0);
        if cut % 3 != 0 {
            assert_whole(&open(image_folder.path(), &what), &states, done, &what);
            continue;
        }
        // The power is cut again while the store starts, or soon after.
        let start = Disk::of(files(image_folder.path()));
        let later = disk::trace::record(image_folder.path());
        let mut states = states.clone();
        {
            let store = open(image_folder.path(), &what);
            let last = assert_whole(&store, &states, done, &what);
            states.truncate(last + 1);
            commit_groups(&store, image_folder.path(), &mut states, 3, &mut rng);
        }
        let later = std::mem::take(&mut *later.lock().unwrap());
        let moment = rng.roll(later.len() + 1);
        let what = format!("{what}, then after operation {moment} of {}", later.len());
        let again = image(&start, image_folder.path(), &later[..moment], model, &mut rng);
        let done = receipted(&later[..moment], done);
        let store = open(again.path(), &what);
        let last = last_group(&store);
        assert!(last >= done && last < states.len(), "{what}: {last} groups, {done} with a receipt");
        states[last].assert_same(&store);
    }
}

#[track_caller]
fn open(folder: &Path, what: &str) -> EmbeddedStore {
    EmbeddedStore::open(folder).unwrap_or_else(|error| panic!("{what}: {error}"))
}

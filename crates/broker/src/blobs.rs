//! The bytes of blobs: files beside the store.
//!
//! ```text
//! blobs/ab/ab12…   a complete blob, by its SHA-256 in hex
//! blobs/ab/ab12….damaged   a file that did not have the bytes of its blob
//! blobs/uploads/…  an unfinished upload
//! blobs/bucket/…   the checksums of the blocks of a blob: its bytes are in the bucket, or were about to be; named as the object
//! ```
//!
//! This module owns the files and how they are synced. A complete blob is synced before it gets its name. With a bucket
//! (`bucket`) an upload is a file of this machine until it is whole, and then an object. The files of this machine are
//! written here and not by the crate `object_store`, because its local store does not sync them.
//!
//! Brokers of a cluster share the bucket, and one that has lost the lead without knowing it may still write and delete. So
//! each write of a blob has an object of its own there ([`BlobPlace`]), and the record says which one counts. Whatever no
//! record names is deleted by the leader later.
//!
//! Must not know who holds a blob or may read it. All functions block on the disk or on the network.

use std::{
    collections::HashMap,
    fs::{self, File},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use sha2::{Digest as _, Sha256};

use crate::{disk, time::Timestamp};

mod bucket;
mod reader;

pub use bucket::{Bucket, BucketOptions};
pub use reader::{BlobDamaged, BlobReader};

/// The SHA-256 of a blob.
pub type BlobDigest = [u8; 32];

/// Where the bytes of a complete blob are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlobPlace {
    /// The digest of the blob.
    pub digest: BlobDigest,
    /// The number of its object in the bucket of a cluster. No other write of the blob has it. `None`: the file, or the
    /// object of a broker alone, which the digest alone names.
    pub object: Option<u64>,
}

impl BlobPlace {
    /// The place of a blob of a broker alone.
    pub fn alone(digest: BlobDigest) -> Self {
        Self { digest, object: None }
    }

    /// The last part of the name of the object, and the name of its mark.
    fn name(&self) -> String {
        match self.object {
            None => hex::encode(self.digest),
            Some(number) => format!("{}-{number:016x}", hex::encode(self.digest)),
        }
    }

    /// The place with this name. `None`: the name is no one's.
    fn of_name(name: &str) -> Option<Self> {
        let (digest, number) = match name.split_once('-') {
            None => (name, None),
            Some((digest, number)) => (digest, Some(number)),
        };
        let mut place = Self::alone([0; 32]);
        hex::decode_to_slice(digest, &mut place.digest).ok()?;
        if let Some(number) = number {
            let mut bytes = [0; 8];
            hex::decode_to_slice(number, &mut bytes).ok()?;
            place.object = Some(u64::from_be_bytes(bytes));
        }
        Some(place)
    }
}

/// The bytes of an upload between two syncs.
const SYNC_BYTES: u64 = 1024 * 1024;
/// The bytes that one read of a file takes.
const READ_BYTES: usize = 256 * 1024;
const UPLOADS: &str = "uploads";
const IN_BUCKET: &str = "bucket";

/// The folder of blobs.
#[derive(Debug)]
pub struct BlobFiles {
    root: PathBuf,
    bucket: Option<Arc<Bucket>>,
    /// For each blob or upload: held from the naming of a complete blob until its record is committed, and while the
    /// file of a removed blob is deleted: otherwise a deletion could take the file of a blob that was just written again.
    naming: Mutex<HashMap<BlobDigest, Weak<tokio::sync::Mutex<()>>>>,
    checked: Mutex<reader::Checked>,
    removed: Mutex<Vec<Removed>>,
    has_removed: tokio::sync::Notify,
}

/// A file whose record is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removed {
    /// A stored blob.
    Blob(BlobPlace),
    /// An unfinished upload, by its name.
    Upload(BlobDigest),
}

impl BlobFiles {
    /// The folder of blobs in a data folder.
    pub fn folder(data: &Path) -> PathBuf {
        data.join("blobs")
    }

    /// Opens the folder, or creates it. With a bucket, complete blobs go there; those that are files already stay files.
    pub fn open(root: &Path, bucket: Option<Arc<Bucket>>) -> io::Result<Self> {
        disk::make_folder(&root.join(UPLOADS))?;
        disk::make_folder(&root.join(IN_BUCKET))?;
        Ok(Self {
            root: root.into(),
            bucket,
            naming: Mutex::default(),
            checked: Mutex::default(),
            removed: Mutex::default(),
            has_removed: tokio::sync::Notify::new(),
        })
    }

    /// The name of an agent's upload of a blob.
    pub fn upload_name(agent: &str, blob: &BlobDigest) -> BlobDigest {
        Sha256::new().chain_update(agent).chain_update([0]).chain_update(blob).finalize().into()
    }

    /// The lock that orders the naming and the deletion of a blob or an upload. See [`BlobFiles::naming`].
    pub fn naming(&self, name: &BlobDigest) -> Arc<tokio::sync::Mutex<()>> {
        let mut all = self.naming.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lock) = all.get(name).and_then(Weak::upgrade) {
            return lock;
        }
        all.retain(|_, lock| lock.strong_count() > 0);
        let lock = Arc::default();
        all.insert(*name, Arc::downgrade(&lock));
        lock
    }

    fn blob(&self, blob: &BlobDigest) -> PathBuf {
        let name = hex::encode(blob);
        self.root.join(&name[..2]).join(name)
    }

    /// The place of a damaged file of a blob.
    fn damaged(&self, blob: &BlobDigest) -> PathBuf {
        self.blob(blob).with_extension("damaged")
    }

    fn checked(&self) -> MutexGuard<'_, reader::Checked> {
        self.checked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn upload(&self, upload: &BlobDigest) -> PathBuf {
        self.root.join(UPLOADS).join(hex::encode(upload))
    }

    /// The mark of a blob whose bytes are in the bucket.
    fn mark(&self, blob: &BlobPlace) -> PathBuf {
        self.root.join(IN_BUCKET).join(blob.name())
    }

    /// Whether brokers share the bucket, so that each write of a blob needs an object with a number of its own.
    pub fn is_shared(&self) -> bool {
        self.bucket.as_ref().is_some_and(|bucket| bucket.is_shared())
    }

    /// Whether the bytes of a blob are in the bucket, or were about to be when this broker wrote it.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn is_in_bucket(&self, blob: &BlobPlace) -> io::Result<bool> {
        Ok(blob.object.is_some() || self.is_shared() || self.mark(blob).try_exists()?)
    }

    /// Notes that the bytes of a blob are in the bucket, with the checksums of its blocks and one of these.
    fn write_mark(&self, blob: &BlobPlace, blocks: &[u32]) -> io::Result<()> {
        let mut content: Vec<u8> = blocks.iter().flat_map(|block| block.to_le_bytes()).collect();
        content.extend(crc32c::crc32c(&content).to_le_bytes());
        let mut file = File::options().write(true).create(true).truncate(false).open(self.mark(blob))?;
        file.write_all(&content)?;
        file.sync_all()?;
        disk::sync_folder(&self.root.join(IN_BUCKET))
    }

    /// The checksums of the blocks of a blob in the bucket. `None`: this machine has no mark of it, or one without them.
    fn read_mark(&self, blob: &BlobPlace, size: u64) -> io::Result<Option<Vec<u32>>> {
        let content = match fs::read(self.mark(blob)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read?,
        };
        let Some((blocks, checksum)) = content.split_last_chunk::<4>() else { return Ok(None) };
        let is_whole = crc32c::crc32c(blocks).to_le_bytes() == *checksum;
        let blocks: Vec<u32> =
            blocks.chunks_exact(4).map(|block| u32::from_le_bytes(block.try_into().expect("4 bytes"))).collect();
        let has_all = blocks.len() as u64 == size.div_ceil(READ_BYTES as u64);
        Ok((is_whole && has_all).then_some(blocks))
    }

    /// The bytes of an upload that a crash cannot take. A whole part counts only if a byte follows it: that byte was
    /// written after the sync of the part.
    pub fn uploaded(&self, upload: &BlobDigest) -> io::Result<u64> {
        match fs::metadata(self.upload(upload)) {
            Ok(found) => Ok(found.len().saturating_sub(1) / SYNC_BYTES * SYNC_BYTES),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Opens an upload for writing after the bytes that a crash cannot take. Later bytes are written again. They stay in
    /// the file until then, because the first of them proves that the bytes before it are synced.
    pub fn write(&self, upload: &BlobDigest) -> io::Result<BlobWriter> {
        let path = self.upload(upload);
        let written = self.uploaded(upload)?;
        let file = File::options().read(true).write(true).create(true).truncate(false).open(&path)?;
        // The name of a new file must survive a crash as the record of the upload does.
        disk::sync_folder(&self.root.join(UPLOADS))?;
        let mut hasher = Sha256::new();
        let mut buffer = vec![0; READ_BYTES];
        let mut synced = (&file).take(written);
        loop {
            match synced.read(&mut buffer)? {
                0 => break,
                bytes => hasher.update(&buffer[..bytes]),
            }
        }
        Ok(BlobWriter { file, path, written, hasher })
    }

    /// Gives a complete upload the name of its blob. Both are durable when this returns. With a bucket the upload stays,
    /// until its record is removed in the commit of the blob: a write that fails here can be repeated.
    pub fn name(&self, upload: &BlobDigest, blob: &BlobPlace) -> io::Result<()> {
        let (from, to) = (self.upload(upload), self.blob(&blob.digest));
        if let Some(bucket) = &self.bucket {
            // Before the object, so that the next start finds an object without a record.
            self.write_mark(blob, &reader::blocks_of(&mut File::open(&from)?)?)?;
            return bucket.put(blob, &from);
        }
        disk::make_folder(disk::folder_around(&to))?;
        disk::rename(&from, &to)?;
        disk::remove_if_there(&self.damaged(&blob.digest))
    }

    /// Deletes a file or an object if it exists.
    pub fn delete(&self, removed: Removed) -> io::Result<()> {
        match removed {
            Removed::Blob(blob) => {
                let mark = self.mark(&blob);
                if self.is_in_bucket(&blob)? {
                    let Some(bucket) = &self.bucket else {
                        return Err(io::Error::other("the blob is in a bucket, and the configuration names none"));
                    };
                    // The mark goes last: without it the object would be found by no start.
                    bucket.delete(&blob)?;
                    disk::remove_if_there(&mark)?;
                }
                if blob.object.is_some() {
                    return Ok(());
                }
                disk::remove_if_there(&self.damaged(&blob.digest))?;
                disk::remove_if_there(&self.blob(&blob.digest))
            }
            Removed::Upload(upload) => disk::remove_if_there(&self.upload(&upload)),
        }
    }

    /// Notes that a record is removed for good, so that its file is deleted.
    pub fn note_removed(&self, removed: Removed) {
        self.removals().push(removed);
        self.has_removed.notify_one();
    }

    /// Takes the files whose records are removed. They are deleted once no record names them.
    pub fn take_removed(&self) -> Vec<Removed> {
        std::mem::take(&mut *self.removals())
    }

    /// Waits until a record is removed.
    pub async fn removed(&self) {
        self.has_removed.notified().await;
    }

    fn removals(&self) -> MutexGuard<'_, Vec<Removed>> {
        self.removed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Deletes the objects of a cluster that were written before this time, and that no record names. Returns their
    /// number.
    ///
    /// # Errors
    /// The bucket or the store cannot be read. What was deleted before stays so.
    pub fn sweep_objects(
        &self,
        before: Timestamp,
        is_named: impl Fn(&BlobPlace) -> io::Result<bool>,
        may_delete: impl Fn() -> bool,
    ) -> io::Result<usize> {
        let Some(bucket) = &self.bucket else { return Ok(0) };
        let mut deleted = 0;
        for place in bucket.unnamed(before, is_named)? {
            if !may_delete() {
                break;
            }
            self.delete(Removed::Blob(place))?;
            deleted += 1;
        }
        Ok(deleted)
    }

    /// Deletes each file that no record names: a crash may leave one between a commit and a deletion, or between the
    /// naming of a blob and its commit. Objects of the bucket are noted as removed, and deleted later: a start does not
    /// wait for the network. Only while no other part uses the folder. Returns the number of deleted files.
    pub fn sweep(&self, is_named: impl Fn(Removed) -> io::Result<bool>) -> io::Result<usize> {
        let mut deleted = 0;
        for folder in fs::read_dir(&self.root)? {
            let folder = folder?;
            let is_uploads = folder.file_name() == UPLOADS;
            let is_marks = folder.file_name() == IN_BUCKET;
            if !folder.file_type()?.is_dir() {
                continue;
            }
            for file in fs::read_dir(folder.path())? {
                let name = file?.file_name();
                // A file with another name is none of ours.
                let Some(place) = name.to_str().and_then(BlobPlace::of_name) else { continue };
                if is_marks {
                    if !is_named(Removed::Blob(place))? {
                        self.note_removed(Removed::Blob(place));
                    }
                    continue;
                }
                let found = if is_uploads { Removed::Upload(place.digest) } else { Removed::Blob(place) };
                if !is_named(found)? {
                    self.delete(found)?;
                    deleted += 1;
                }
            }
        }
        Ok(deleted)
    }
}

/// An upload, open for writing.
pub struct BlobWriter {
    file: File,
    path: PathBuf,
    written: u64,
    hasher: Sha256,
}

impl BlobWriter {
    /// The number of bytes so far.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Appends bytes. Each whole MiB is synced before the next byte is written.
    pub fn append(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let room = usize::try_from(SYNC_BYTES - self.written % SYNC_BYTES).unwrap_or(usize::MAX);
            let (part, rest) = bytes.split_at(room.min(bytes.len()));
            // A failed write may have moved the position of the file.
            self.file.seek(SeekFrom::Start(self.written))?;
            self.file.write_all(part)?;
            self.hasher.update(part);
            self.written += part.len() as u64;
            if self.written.is_multiple_of(SYNC_BYTES) {
                disk::sync_data(&self.file, &self.path)?;
            }
            bytes = rest;
        }
        Ok(())
    }

    /// Syncs all bytes. Returns their SHA-256.
    pub fn finish(self) -> io::Result<BlobDigest> {
        disk::sync(&self.file, &self.path)?;
        Ok(self.hasher.finalize().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1024 * 1024;

    fn digest(bytes: &[u8]) -> BlobDigest {
        Sha256::digest(bytes).into()
    }

    #[test]
    fn an_upload_continues_where_a_crash_cannot_have_taken_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let files = Arc::new(BlobFiles::open(folder.path(), None).unwrap());
        let bytes: Vec<u8> = (0..3 * MIB + 7).map(|at| u8::try_from(at % 251).unwrap()).collect();
        let (blob, upload) = (digest(&bytes), BlobFiles::upload_name("alice", &digest(&bytes)));
        assert_eq!(files.uploaded(&upload).unwrap(), 0);
        let mut writer = files.write(&upload).unwrap();
        writer.append(&bytes[..2 * MIB]).unwrap();
        drop(writer);
        // The sync of the second MiB is not proven by a byte after it.
        assert_eq!(files.uploaded(&upload).unwrap(), MIB as u64);
        // A write that ends before its first byte takes nothing back.
        drop(files.write(&upload).unwrap());
        let mut writer = files.write(&upload).unwrap();
        assert_eq!(writer.written(), MIB as u64);
        writer.append(&bytes[MIB..]).unwrap();
        assert_eq!(writer.finish().unwrap(), blob);
        files.name(&upload, &BlobPlace::alone(blob)).unwrap();
        let mut reader = files.read(&BlobPlace::alone(blob), 3 * MIB as u64, 7, bytes.len() as u64).unwrap();
        assert_eq!(reader.next(7).unwrap(), bytes[3 * MIB..]);
        assert!(reader.next(1).is_err(), "nothing lies beyond the end");
    }

    #[cfg(feature = "s3")]
    #[test]
    fn a_range_of_an_object_reads_its_blocks_alone_and_gives_no_wrong_byte() {
        use object_store::{ObjectStoreExt as _, memory::InMemory, path::Path as ObjectPath};
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (folder, store) = (tempfile::tempdir().unwrap(), Arc::new(InMemory::new()));
        let bucket = Arc::new(Bucket::over(store.clone(), "one", runtime.handle().clone()));
        let files = Arc::new(BlobFiles::open(folder.path(), Some(bucket)).unwrap());
        let bytes: Vec<u8> = (0..2 * MIB + 7).map(|at| u8::try_from(at % 251).unwrap()).collect();
        let (blob, size) = (digest(&bytes), bytes.len());
        write_blob(&files, &bytes);
        let ranges = [0..1, 7..MIB, MIB - 1..MIB + 300_000, 2 * MIB..size, size - 1..size, 1..size];
        for range in ranges.clone() {
            assert!(read(&files, &blob, range.clone(), size).unwrap() == bytes[range]);
        }
        assert!(read(&files, &blob, 0..size, size).unwrap() == bytes);
        // Without the checksums, as after a crash in their write, the first range computes them.
        fs::write(files.mark(&BlobPlace::alone(blob)), "").unwrap();
        assert!(read(&files, &blob, 5..9, size).unwrap() == bytes[5..9]);
        assert!(fs::metadata(files.mark(&BlobPlace::alone(blob))).unwrap().len() > 0);
        // A changed byte spoils its block alone.
        let object = ObjectPath::from(format!("one/{}/{}", &hex::encode(blob)[..2], hex::encode(blob)));
        let mut changed = bytes.clone();
        changed[MIB + 9] ^= 1;
        runtime.block_on(store.put(&object, changed.into())).unwrap();
        for range in [MIB..MIB + 1, MIB + 9..MIB + 10, 0..size] {
            let refused = read(&files, &blob, range, size).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
        }
        assert!(read(&files, &blob, 7..1000, size).unwrap() == bytes[7..1000]);
        fs::write(files.mark(&BlobPlace::alone(blob)), "").unwrap();
        assert_eq!(read(&files, &blob, 7..1000, size).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[cfg(feature = "s3")]
    #[test]
    fn brokers_of_a_cluster_read_each_others_blobs_and_delete_none_that_is_named() {
        use object_store::memory::InMemory;

        use crate::time::{Clock as _, SystemClock};
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let store = Arc::new(InMemory::new());
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let broker = |at: usize, cluster: u8| {
            let bucket = Bucket::over(store.clone(), "one", runtime.handle().clone()).shared_by(&[cluster; 16]);
            Arc::new(BlobFiles::open(folders[at].path(), Some(Arc::new(bucket))).unwrap())
        };
        let (former, next, foreign) = (broker(0, 7), broker(1, 7), broker(1, 8));
        let bytes: Vec<u8> = (0..MIB + 7).map(|at| u8::try_from(at % 251).unwrap()).collect();
        let write = |files: &BlobFiles, object: u64| {
            let (upload, place) = ([1; 32], BlobPlace { digest: digest(&bytes), object: Some(object) });
            let mut writer = files.write(&upload).unwrap();
            writer.append(&bytes).unwrap();
            writer.finish().unwrap();
            files.name(&upload, &place).unwrap();
            files.delete(Removed::Upload(upload)).unwrap();
            place
        };
        let read = |files: &Arc<BlobFiles>, place: &BlobPlace, range: std::ops::Range<usize>| {
            let mut reader = files.read(place, range.start as u64, range.len() as u64, bytes.len() as u64)?;
            let mut all = Vec::new();
            while all.len() < range.len() {
                all.extend(reader.next((range.len() - all.len()) as u64)?);
            }
            assert!(all == bytes[range]);
            Ok::<_, io::Error>(())
        };
        // The same blob, written by a broker that lost the lead, by the next one, and by another cluster.
        let (old, new, other) = (write(&former, 1), write(&next, 2), write(&foreign, 3));
        for (files, place) in [(&former, old), (&next, old), (&former, new), (&foreign, other)] {
            read(files, &place, 0..bytes.len()).unwrap();
            read(files, &place, 9..MIB).unwrap();
        }
        assert!(read(&next, &other, 0..9).is_err(), "another cluster's objects are in another folder");
        // The late deletion of the former leader takes its own object alone.
        former.delete(Removed::Blob(old)).unwrap();
        assert!(read(&next, &old, 0..bytes.len()).is_err());
        read(&next, &new, 0..bytes.len()).unwrap();
        // What no record names goes, once it is old enough and while this broker leads.
        let lost = write(&next, 4);
        let later = SystemClock.now().plus(std::time::Duration::from_secs(60));
        let sweep = |before, leads: bool| next.sweep_objects(before, |place| Ok(*place == new), || leads).unwrap();
        assert_eq!(sweep(later.minus(std::time::Duration::from_secs(3600)), true), 0, "it may be about to be named");
        assert_eq!(sweep(later, false), 0);
        assert_eq!(sweep(later, true), 1);
        assert!(read(&next, &lost, 0..9).is_err());
        read(&next, &new, 0..9).unwrap();
        read(&foreign, &other, 0..9).unwrap();
        // A start finds what its own crash has left.
        let unnamed = write(&next, 5);
        assert_eq!(next.sweep(|found| Ok(found != Removed::Blob(unnamed))).unwrap(), 0);
        assert_eq!(next.take_removed(), [Removed::Blob(unnamed)]);
    }

    /// The files of a broker with one blob, and the blob.
    fn with_blob(folder: &Path, bytes: &[u8]) -> (Arc<BlobFiles>, BlobDigest) {
        let files = Arc::new(BlobFiles::open(folder, None).unwrap());
        let blob = digest(bytes);
        write_blob(&files, bytes);
        (files, blob)
    }

    fn write_blob(files: &BlobFiles, bytes: &[u8]) {
        let upload = [1; 32];
        let mut writer = files.write(&upload).unwrap();
        writer.append(bytes).unwrap();
        writer.finish().unwrap();
        files.name(&upload, &BlobPlace::alone(digest(bytes))).unwrap();
    }

    fn read(
        files: &Arc<BlobFiles>,
        blob: &BlobDigest,
        range: std::ops::Range<usize>,
        size: usize,
    ) -> io::Result<Vec<u8>> {
        let mut reader = files.read(&BlobPlace::alone(*blob), range.start as u64, range.len() as u64, size as u64)?;
        let mut all = Vec::new();
        while all.len() < range.len() {
            all.extend(reader.next((range.len() - all.len()) as u64)?);
        }
        Ok(all)
    }

    #[track_caller]
    fn assert_damaged<T: std::fmt::Debug>(read: io::Result<T>, blob: &BlobDigest) {
        assert_eq!(BlobDamaged::of(&read.unwrap_err()).map(|damaged| damaged.blob), Some(*blob));
    }

    #[test]
    fn a_damaged_blob_is_noticed_before_its_last_bytes_are_given() {
        let folder = tempfile::tempdir().unwrap();
        let bytes = vec![7; READ_BYTES + 5];
        let (files, blob) = with_blob(folder.path(), &bytes);
        assert_eq!(read(&files, &blob, 0..bytes.len(), bytes.len()).unwrap(), bytes);
        let mut damaged = bytes.clone();
        damaged[0] = 8;
        fs::write(files.blob(&blob), &damaged).unwrap();
        assert_damaged(read(&files, &blob, 0..bytes.len(), bytes.len()), &blob);
        assert!(!files.is_there(&BlobPlace::alone(blob), bytes.len() as u64), "its file is set aside");
        assert_eq!(fs::read(files.damaged(&blob)).unwrap(), damaged);
        // The next writer of the same bytes mends it.
        write_blob(&files, &bytes);
        assert_eq!(read(&files, &blob, 0..bytes.len(), bytes.len()).unwrap(), bytes);
        assert!(!files.damaged(&blob).exists());
    }

    #[test]
    fn no_range_of_a_damaged_blob_is_given_wherever_the_damage_is() {
        let folder = tempfile::tempdir().unwrap();
        let bytes: Vec<u8> = (0..3 * READ_BYTES + 9).map(|at| u8::try_from(at % 251).unwrap()).collect();
        let size = bytes.len();
        let (files, blob) = with_blob(folder.path(), &bytes);
        let ranges = [0..5, 0..size - 1, 1..size, READ_BYTES - 3..2 * READ_BYTES + 3, size - 9..size, size - 1..size];
        for range in ranges.clone() {
            assert_eq!(read(&files, &blob, range.clone(), size).unwrap(), bytes[range]);
        }
        assert_eq!(read(&files, &blob, 3..3, size).unwrap(), b"");
        let change = |at: usize| {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            fs::write(files.blob(&blob), &damaged).unwrap();
        };
        for at in [0, READ_BYTES, size - 1] {
            // The file was checked before the damage: a block that is read tells.
            change(at);
            assert_damaged(read(&files, &blob, at..at + 1, size), &blob);
            write_blob(&files, &bytes);
            // It was not: the check of the file tells, also for a range elsewhere.
            change(at);
            *files.checked() = reader::Checked::default();
            assert_damaged(read(&files, &blob, 9..10, size), &blob);
            write_blob(&files, &bytes);
        }
        assert_eq!(read(&files, &blob, 1..size, size).unwrap(), bytes[1..]);
    }

    #[test]
    fn a_blob_whose_file_is_missing_or_cut_off_is_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let bytes = vec![7; 1000];
        let (files, blob) = with_blob(folder.path(), &bytes);
        assert!(files.is_there(&BlobPlace::alone(blob), 1000));
        fs::write(files.blob(&blob), &bytes[..999]).unwrap();
        assert!(!files.is_there(&BlobPlace::alone(blob), 1000));
        assert_damaged(read(&files, &blob, 0..1000, 1000), &blob);
        assert!(!files.blob(&blob).exists() && !files.is_there(&BlobPlace::alone(blob), 1000));
        for range in [0..1000, 5..6] {
            assert_damaged(read(&files, &blob, range, 1000), &blob);
        }
        files.delete(Removed::Blob(BlobPlace::alone(blob))).unwrap();
        assert!(!files.damaged(&blob).exists(), "what was set aside goes with the blob");
    }

    #[test]
    fn files_that_no_record_names_are_swept() {
        let folder = tempfile::tempdir().unwrap();
        let files = BlobFiles::open(folder.path(), None).unwrap();
        let mut named = Vec::new();
        for agent in ["alice", "bob", "carol", "dave"] {
            let blob = digest(agent.as_bytes());
            let upload = BlobFiles::upload_name(agent, &blob);
            let mut writer = files.write(&upload).unwrap();
            writer.append(agent.as_bytes()).unwrap();
            writer.finish().unwrap();
            if agent < "c" {
                files.name(&upload, &BlobPlace::alone(blob)).unwrap();
                named.push(Removed::Blob(BlobPlace::alone(blob)));
            } else {
                named.push(Removed::Upload(upload));
            }
        }
        let keeps = [named[0], named[2]];
        fs::write(folder.path().join("README"), "of a person").unwrap();
        assert_eq!(files.sweep(|found| Ok(keeps.contains(&found))).unwrap(), 2);
        assert_eq!(files.sweep(|found| Ok(keeps.contains(&found))).unwrap(), 0);
        assert!(folder.path().join("README").exists());
    }
}

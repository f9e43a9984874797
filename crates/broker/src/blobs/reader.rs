//! Reading blobs. Owns the check of every byte before it is given out, and what is known about files that were checked.
//!
//! A read from the first byte to the last computes the digest on its way, and gives no last bytes of a damaged blob. A read
//! of a range first checks the whole file, once since the start of the broker: that gives a CRC-32C of each block, with
//! which each further read of a block is compared. A file that differs is set aside, so that the blob can be written again.
//! Of an object in a bucket, the checksums of the blocks lie in a file of this machine, so a range reads its own blocks alone.

use std::{
    collections::{HashMap, VecDeque},
    fs::{self, File},
    io::{self, Read as _, Seek as _, SeekFrom},
    os::unix::fs::MetadataExt as _,
    sync::Arc,
};

use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use super::{BlobDigest, BlobFiles, BlobPlace, Bucket, READ_BYTES};

/// The bytes that one read of an object takes.
const READ_OBJECT_BYTES: u64 = 1024 * 1024;
/// The bytes that one part of a check takes.
const CHECK_BYTES: usize = 8 * 1024 * 1024;
/// The blocks whose checksums are kept, each of 4 bytes for 256 KiB of a blob.
const BLOCKS_KEPT_MAX: usize = 1 << 20;

/// The file of a blob is missing, or has other bytes than the blob. The source of an [`io::Error`].
#[derive(Debug, thiserror::Error)]
#[error("the file of blob {} is damaged: {problem}", hex::encode(blob))]
pub struct BlobDamaged {
    /// The digest of the blob.
    pub blob: BlobDigest,
    problem: String,
}

impl BlobDamaged {
    /// The damage that an error is about, if it is one.
    pub fn of(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }

    pub(super) fn error(blob: &BlobDigest, problem: impl Into<String>) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, Self { blob: *blob, problem: problem.into() })
    }
}

/// The error of an operating system whose disk cannot read a part of a file.
const EIO: i32 = 5;
const OTHER_DIGEST: &str = "its bytes have another digest";

/// The checksums of the blocks of a file.
type Blocks = Arc<[u32]>;

/// The checksums of files that were checked as a whole, the latest ones.
#[derive(Debug, Default)]
pub(super) struct Checked {
    blocks: HashMap<BlobDigest, Blocks>,
    order: VecDeque<BlobDigest>,
    kept: usize,
}

impl Checked {
    fn get(&self, blob: &BlobDigest) -> Option<Blocks> {
        self.blocks.get(blob).cloned()
    }

    fn put(&mut self, blob: BlobDigest, blocks: Blocks) {
        self.kept += blocks.len();
        match self.blocks.insert(blob, blocks) {
            Some(former) => self.kept -= former.len(),
            None => self.order.push_back(blob),
        }
        while self.kept > BLOCKS_KEPT_MAX {
            let Some(oldest) = self.order.pop_front() else { return };
            self.kept -= self.blocks.remove(&oldest).map_or(0, |blocks| blocks.len());
        }
    }
}

/// A blob, open for reading.
pub struct BlobReader {
    files: Arc<BlobFiles>,
    blob: BlobDigest,
    source: Source,
}

enum Source {
    /// The whole blob. `left` is the number of bytes that are not read yet.
    Whole { file: File, hasher: Sha256, left: u64 },
    /// A range that waits for the check of its file.
    Unchecked { file: File, hasher: Sha256, blocks: Vec<u32>, offset: u64 },
    /// A range. `read` are bytes of a checked block before the offset `at` that no call has got yet.
    Range { file: File, blocks: Blocks, at: u64, read: Bytes },
    /// The same of an object.
    Object { bucket: Arc<Bucket>, place: BlobPlace, at: u64, size: u64, read: Bytes, check: ObjectCheck },
}

/// How the bytes of an object are checked.
enum ObjectCheck {
    /// A read of the whole blob, by its digest.
    Whole(Sha256),
    /// A range, by the checksums of its blocks.
    Blocks(Vec<u32>),
}

impl BlobFiles {
    /// Opens a blob of `size` bytes to read `length` bytes from an offset on. Fails with [`BlobDamaged`] if its file is
    /// missing or has another length.
    pub fn read(self: &Arc<Self>, blob: &BlobPlace, offset: u64, length: u64, size: u64) -> io::Result<BlobReader> {
        let is_whole = offset == 0 && length == size;
        let source = match &self.bucket {
            Some(bucket) if self.is_in_bucket(blob)? => {
                let check = match is_whole {
                    true => ObjectCheck::Whole(Sha256::new()),
                    false => ObjectCheck::Blocks(self.blocks_of_object(bucket, blob, size)?),
                };
                Source::Object { bucket: bucket.clone(), place: *blob, at: offset, size, read: Bytes::new(), check }
            }
            Some(_) | None => self.open_file(blob, (!is_whole).then_some(offset), size)?,
        };
        Ok(BlobReader { files: self.clone(), blob: blob.digest, source })
    }

    /// The checksums of the blocks of an object. Reads the whole object where its mark has none, and writes them there.
    fn blocks_of_object(&self, bucket: &Bucket, blob: &BlobPlace, size: u64) -> io::Result<Vec<u32>> {
        if let Some(blocks) = self.read_mark(blob, size)? {
            return Ok(blocks);
        }
        let (mut hasher, mut blocks, mut at) = (Sha256::new(), Vec::new(), 0);
        while at < size {
            let part = bucket.read(blob, at, READ_OBJECT_BYTES.min(size - at))?;
            hasher.update(&part);
            blocks.extend(part.chunks(READ_BYTES).map(crc32c::crc32c));
            at += part.len() as u64;
        }
        if hasher.finalize()[..] != blob.digest[..] {
            return Err(other_object());
        }
        self.write_mark(blob, &blocks)?;
        Ok(blocks)
    }

    /// `offset`: that of a range. `None`: the whole file is read.
    fn open_file(&self, place: &BlobPlace, offset: Option<u64>, size: u64) -> io::Result<Source> {
        let blob = &place.digest;
        let file = match File::open(self.blob(blob)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(match self.is_in_bucket(place)? {
                    true => io::Error::other("the blob is in a bucket, and the configuration names none"),
                    false => BlobDamaged::error(blob, "it is not there"),
                });
            }
            opened => opened?,
        };
        if file.metadata()?.len() != size {
            return Err(self.set_aside(blob, &file, format!("it does not have {size} bytes")));
        }
        let hasher = Sha256::new();
        let Some(offset) = offset else { return Ok(Source::Whole { file, hasher, left: size }) };
        Ok(match self.checked().get(blob) {
            Some(blocks) => Source::Range { file, blocks, at: offset, read: Bytes::new() },
            None => Source::Unchecked { file, hasher, blocks: Vec::new(), offset },
        })
    }

    /// Whether the file of a blob is there with all of its bytes, or its object may be. Does not read it.
    pub fn is_there(&self, blob: &BlobPlace, size: u64) -> bool {
        if self.is_in_bucket(blob).unwrap_or(true) {
            return true;
        }
        // Only a missing file or another length says that it is not: an error may pass.
        match fs::metadata(self.blob(&blob.digest)) {
            Ok(found) => found.len() == size,
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        }
    }

    /// Gives a damaged file another name, so that the blob can be written again, and an operator can look at it.
    fn set_aside(&self, blob: &BlobDigest, file: &File, problem: impl Into<String>) -> io::Error {
        let (path, aside) = (self.blob(blob), self.damaged(blob));
        let set_aside = || -> io::Result<()> {
            let _naming = self.naming(blob).blocking_lock_owned();
            // Another writer may have given the blob a new file meanwhile.
            let (named, damaged) = (fs::metadata(&path)?, file.metadata()?);
            match (named.dev(), named.ino()) == (damaged.dev(), damaged.ino()) {
                true => crate::disk::rename(&path, &aside),
                false => Ok(()),
            }
        };
        if let Err(error) = set_aside() {
            tracing::error!(path = %path.display(), %error, "failed to set a damaged file aside");
        }
        BlobDamaged::error(blob, problem)
    }
}

impl BlobReader {
    /// Checks a further part of a file of which a range is read. Returns whether the range can be read; until then the
    /// caller calls again, unless nothing waits for the range any more.
    pub fn check_more(&mut self) -> io::Result<bool> {
        let Source::Unchecked { file, hasher, blocks, offset } = &mut self.source else { return Ok(true) };
        for _ in 0..CHECK_BYTES / READ_BYTES {
            let block = read_block(file).map_err(|error| self.files.of_file(&self.blob, file, error))?;
            hasher.update(&block);
            if !block.is_empty() {
                blocks.push(crc32c::crc32c(&block));
            }
            // The last block is the only short one.
            if block.len() < READ_BYTES {
                if hasher.clone().finalize()[..] != self.blob[..] {
                    return Err(self.files.set_aside(&self.blob, file, OTHER_DIGEST));
                }
                let blocks: Blocks = std::mem::take(blocks).into();
                self.files.checked().put(self.blob, blocks.clone());
                let (file, at) = (file.try_clone()?, *offset);
                self.source = Source::Range { file, blocks, at, read: Bytes::new() };
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The next bytes, at most `most` and at most 256 KiB. Fails at the end of the blob. Fails with [`BlobDamaged`] instead
    /// of bytes that are not those of the blob: of the whole blob, at the latest instead of its last bytes.
    pub fn next(&mut self, most: u64) -> io::Result<Bytes> {
        while !self.check_more()? {}
        let bytes = usize::try_from(most).unwrap_or(usize::MAX).min(READ_BYTES);
        match &mut self.source {
            Source::Whole { file, hasher, left } => {
                let mut data = vec![0; bytes];
                file.read_exact(&mut data).map_err(|error| self.files.of_file(&self.blob, file, error))?;
                hasher.update(&data);
                *left = left.saturating_sub(data.len() as u64);
                if *left == 0 && hasher.clone().finalize()[..] != self.blob[..] {
                    return Err(self.files.set_aside(&self.blob, file, OTHER_DIGEST));
                }
                Ok(data.into())
            }
            Source::Range { file, blocks, at, read } => {
                if read.is_empty() && bytes > 0 {
                    let index = *at / READ_BYTES as u64;
                    let expected = usize::try_from(index).ok().and_then(|index| blocks.get(index));
                    let expected = *expected.ok_or(io::ErrorKind::UnexpectedEof)?;
                    file.seek(SeekFrom::Start(index * READ_BYTES as u64))?;
                    let block = read_block(file).map_err(|error| self.files.of_file(&self.blob, file, error))?;
                    if crc32c::crc32c(&block) != expected {
                        return Err(self.files.set_aside(&self.blob, file, OTHER_DIGEST));
                    }
                    let inside = usize::try_from(*at % READ_BYTES as u64).expect("a block is small");
                    *read = Bytes::from(block).split_off(inside);
                    *at += read.len() as u64;
                    if read.is_empty() {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Ok(read.split_to(bytes.min(read.len())))
            }
            Source::Object { bucket, place, at, size, read, check } => {
                if read.is_empty() {
                    let part = READ_OBJECT_BYTES.min(most).min(*size - *at);
                    *read = match check {
                        ObjectCheck::Whole(_) => bucket.read(place, *at, part)?,
                        ObjectCheck::Blocks(blocks) => read_blocks(bucket, place, blocks, *at..*at + part, *size)?,
                    };
                    *at += part;
                }
                if read.is_empty() && bytes > 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                let data = read.split_to(bytes.min(read.len()));
                if let ObjectCheck::Whole(hasher) = check {
                    hasher.update(&data);
                    if *at == *size && read.is_empty() && hasher.clone().finalize()[..] != self.blob[..] {
                        return Err(other_object());
                    }
                }
                Ok(data)
            }
            Source::Unchecked { .. } => unreachable!("its file was checked above"),
        }
    }
}

impl BlobFiles {
    /// What a failed read of a file means. A disk that cannot read a part of it has lost that part.
    fn of_file(&self, blob: &BlobDigest, file: &File, error: io::Error) -> io::Error {
        let has_lost = error.kind() == io::ErrorKind::UnexpectedEof || error.raw_os_error() == Some(EIO);
        if has_lost { self.set_aside(blob, file, format!("it cannot be read: {error}")) } else { error }
    }
}

fn other_object() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the object has another digest")
}

/// Bytes of an object, after a check of the blocks in which they lie. Reads these blocks alone.
fn read_blocks(
    bucket: &Bucket,
    blob: &BlobPlace,
    expected: &[u32],
    range: std::ops::Range<u64>,
    size: u64,
) -> io::Result<Bytes> {
    if range.is_empty() {
        return Ok(Bytes::new());
    }
    let block = READ_BYTES as u64;
    let (first, from) = (range.start / block, range.start / block * block);
    let upto = range.end.div_ceil(block).saturating_mul(block).min(size);
    let read = bucket.read(blob, from, upto - from)?;
    let first = usize::try_from(first).map_err(io::Error::other)?;
    let expected = expected.iter().skip(first);
    if !read.chunks(READ_BYTES).map(crc32c::crc32c).eq(expected.take(read.len().div_ceil(READ_BYTES)).copied()) {
        return Err(other_object());
    }
    let place = |at: u64| usize::try_from(at - from).map_err(io::Error::other);
    Ok(read.slice(place(range.start)?..place(range.end)?))
}

/// The checksums of the blocks of a file from its position on.
pub(super) fn blocks_of(file: &mut File) -> io::Result<Vec<u32>> {
    let mut blocks = Vec::new();
    loop {
        let block = read_block(file)?;
        if !block.is_empty() {
            blocks.push(crc32c::crc32c(&block));
        }
        // The last block is the only short one.
        if block.len() < READ_BYTES {
            return Ok(blocks);
        }
    }
}

/// The next block from the position of the file, which is that of a block. Only the last one of a file is shorter.
fn read_block(file: &mut File) -> io::Result<Vec<u8>> {
    let mut block = Vec::with_capacity(READ_BYTES);
    file.by_ref().take(READ_BYTES as u64).read_to_end(&mut block)?;
    Ok(block)
}

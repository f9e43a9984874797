//! Writing and reading blobs, with progress, and continued after a break.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
    time::Duration,
};

use bytes::Bytes;
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::{Client, ClientError};
use crate::{ids::WorkspaceId, proto::v1};

/// The bytes of one message of a write.
const PART_BYTES: usize = 256 * 1024;
/// The messages of a write that wait to be sent.
const PARTS_WAITING: usize = 4;
/// How often a write or a read is continued after a break without any progress.
const BREAKS_MAX: u32 = 5;
/// The pause before a continuation.
const PAUSE: Duration = Duration::from_millis(200);

/// The progress of a write or a read: the bytes that are done, and all bytes.
pub type BlobProgress<'a> = &'a (dyn Fn(u64, u64) + Send + Sync);

impl Client {
    /// Writes a file as a blob that the workspace holds from then on. Continues an unfinished write of the same bytes,
    /// also that of an earlier process, and continues by itself after a break of the connection.
    ///
    /// # Errors
    ///
    /// [`ClientError::File`] if the file cannot be read; [`ClientError::Refused`], among others with WORKSPACE_UNKNOWN,
    /// PERMISSION_DENIED and QUOTA_EXCEEDED; any other error after five breaks without progress.
    pub async fn put_blob(
        &self,
        file: &Path,
        media_type: &str,
        workspace: &WorkspaceId,
        progress: BlobProgress<'_>,
    ) -> Result<v1::Blob, ClientError> {
        let failed = |source| ClientError::File { path: file.to_owned(), source };
        let (digest, size) = digest_of(file.to_owned()).await.map_err(failed)?;
        let blob = v1::Blob {
            sha256: Bytes::copy_from_slice(&digest),
            size_bytes: size,
            media_type: media_type.to_owned(),
            ..Default::default()
        };
        let (mut breaks, mut furthest) = (0, 0);
        loop {
            let offset = self.written(&digest).await?;
            if offset > furthest {
                (breaks, furthest) = (0, offset);
            }
            let first = v1::WriteBlobRequest {
                blob: Some(blob.clone()),
                workspace_id: workspace.to_string(),
                write_offset: offset,
                data: Bytes::new(),
            };
            progress(offset, size);
            let (parts, receiver) = mpsc::channel(PARTS_WAITING);
            let reading = read_parts(File::open(file).map_err(failed)?, first, parts, progress, size);
            let mut service = self.blobs();
            let sending = service.write_blob(ReceiverStream::new(receiver));
            let (read, answer) = tokio::join!(reading, sending);
            let problem = match self.answer(answer) {
                Ok(answer) => match answer.blob {
                    Some(blob) => {
                        progress(size, size);
                        return Ok(blob);
                    }
                    // The broker got fewer bytes than the file had: the file has changed, or cannot be read.
                    None => match read {
                        Err(source) => return Err(failed(source)),
                        Ok(()) => ClientError::Answer("the broker got only a part of the blob".to_owned()),
                    },
                },
                Err(problem) => problem,
            };
            breaks += 1;
            if breaks > BREAKS_MAX || !can_continue(&problem) {
                return Err(problem);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Reads a blob into a file. The bytes go to a file beside it that ends in `.part`, where a later call continues;
    /// once they have the digest, the file gets its name.
    ///
    /// # Errors
    ///
    /// [`ClientError::File`] if a file cannot be written; [`ClientError::Refused`], among others with BLOB_UNKNOWN;
    /// [`ClientError::Answer`] if the bytes have another digest; any other error after five breaks without progress.
    pub async fn get_blob_to(
        &self,
        sha256: &[u8; 32],
        file: &Path,
        progress: BlobProgress<'_>,
    ) -> Result<v1::Blob, ClientError> {
        let mut part = file.as_os_str().to_owned();
        part.push(".part");
        let part = PathBuf::from(part);
        let failed = |source| ClientError::File { path: part.clone(), source };
        let blob = self.stat_blob(sha256).await?;
        let mut out = File::options().create(true).append(true).open(&part).map_err(failed)?;
        let (mut breaks, mut furthest) = (0, 0);
        loop {
            let offset = out.metadata().map_err(failed)?.len();
            if offset > blob.size_bytes {
                out.set_len(0).map_err(failed)?;
                continue;
            }
            if offset > furthest {
                (breaks, furthest) = (0, offset);
            }
            progress(offset, blob.size_bytes);
            let request =
                v1::ReadBlobRequest { sha256: Bytes::copy_from_slice(sha256), read_offset: offset, read_length: 0 };
            let problem = match self.answer(self.blobs().read_blob(request).await) {
                Ok(mut answers) => {
                    let mut done = offset;
                    loop {
                        match answers.message().await {
                            Ok(Some(answer)) => {
                                out.write_all(&answer.data).map_err(failed)?;
                                done += answer.data.len() as u64;
                                progress(done, blob.size_bytes);
                            }
                            Ok(None) => break None,
                            Err(status) => break Some(ClientError::of(&self.server, &status)),
                        }
                    }
                }
                Err(problem) => Some(problem),
            };
            match problem {
                None => break,
                Some(problem) => {
                    breaks += 1;
                    if breaks > BREAKS_MAX || !can_continue(&problem) {
                        return Err(problem);
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
        out.sync_all().map_err(failed)?;
        let (found, _) = digest_of(part.clone()).await.map_err(failed)?;
        if found != *sha256 {
            std::fs::remove_file(&part).map_err(failed)?;
            return Err(ClientError::Answer("the bytes of the blob have another digest".to_owned()));
        }
        std::fs::rename(&part, file).map_err(|source| ClientError::File { path: file.to_owned(), source })?;
        Ok(blob)
    }

    /// What the broker knows of a blob.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`], among others with BLOB_UNKNOWN.
    pub async fn stat_blob(&self, sha256: &[u8; 32]) -> Result<v1::Blob, ClientError> {
        let request = v1::GetBlobRequest { sha256: Bytes::copy_from_slice(sha256) };
        Ok(self.answer(self.blobs().get_blob(request).await)?.blob.unwrap_or_default())
    }

    /// The number of bytes that an unfinished write has stored.
    async fn written(&self, sha256: &[u8; 32]) -> Result<u64, ClientError> {
        let request = v1::GetBlobWriteRequest { sha256: Bytes::copy_from_slice(sha256) };
        match self.answer(self.blobs().get_blob_write(request).await) {
            Ok(answer) => Ok(answer.committed_bytes),
            Err(error) if error.reason() == Some("UPLOAD_UNKNOWN") => Ok(0),
            // The write itself meets the same break, and counts it.
            Err(error) if error.is_passing() => Ok(0),
            Err(error) => Err(error),
        }
    }
}

/// Whether a later attempt may succeed. The stream before may not have ended for the broker yet.
fn can_continue(problem: &ClientError) -> bool {
    match problem.reason() {
        Some("QUOTA_EXCEEDED") => false,
        Some("CONFLICT") => true,
        Some(_) | None => problem.is_passing(),
    }
}

/// Reads a file from an offset on, and passes its parts on until the other side is gone.
async fn read_parts(
    mut file: File,
    first: v1::WriteBlobRequest,
    parts: mpsc::Sender<v1::WriteBlobRequest>,
    progress: BlobProgress<'_>,
    size: u64,
) -> io::Result<()> {
    let mut offset = first.write_offset;
    file.seek(SeekFrom::Start(offset))?;
    if parts.send(first).await.is_err() {
        return Ok(());
    }
    loop {
        let mut data = vec![0; PART_BYTES];
        let bytes = file.read(&mut data)?;
        data.truncate(bytes);
        if bytes == 0 {
            return Ok(());
        }
        let part = v1::WriteBlobRequest { write_offset: offset, data: data.into(), ..Default::default() };
        if parts.send(part).await.is_err() {
            return Ok(());
        }
        offset += bytes as u64;
        progress(offset.min(size), size);
    }
}

/// The SHA-256 and the size of a file.
async fn digest_of(path: PathBuf) -> io::Result<([u8; 32], u64)> {
    let digest = move || {
        let (mut file, mut hasher, mut size) = (File::open(path)?, Sha256::new(), 0);
        let mut buffer = vec![0; PART_BYTES];
        loop {
            let bytes = file.read(&mut buffer)?;
            if bytes == 0 {
                return Ok((hasher.finalize().into(), size));
            }
            hasher.update(&buffer[..bytes]);
            size += bytes as u64;
        }
    };
    tokio::task::spawn_blocking(digest).await.map_err(io::Error::other)?
}

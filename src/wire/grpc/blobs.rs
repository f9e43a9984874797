//! `BlobService`: the bytes go between the stream of a call and a file. The engine decides about records alone.

use std::{
    collections::HashSet,
    io,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use itertools::Itertools as _;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::{
    call::Call, checked_with, field, frames::Requests, page_size, parsed_id, refuse, refuse_shared,
    responses::Responses,
};
use crate::{
    blobs::{BlobDamaged, BlobDigest, BlobFiles, BlobPlace, BlobReader, BlobWriter, Removed},
    broker::{
        BrokerError,
        engine::{Command, NewBlob},
        places::WorkSize,
        queries::BlobSearch,
    },
    codes::ErrorCode,
    envelope::Checks,
    ids::{IdSource, WorkspaceId},
    proto::v1,
    records::BlobRecord,
    wire::stream_slots::StreamSlots,
};

/// The most bytes of data in one message of `WriteBlob`.
const DATA_BYTES_MAX: usize = 2 * 1024 * 1024;
/// The `retry_after` of a read over the bound.
const RETRY_READ_AFTER: Duration = Duration::from_secs(1);
/// The most digests of one `FindMissingBlobs`.
const FOUND_MAX: usize = 1000;
/// The most responses of `ReadBlob` that wait for the client.
const RESPONSES_MAX: usize = 1;
/// The most reads of one caller. Each holds two responses in memory.
const READS_OF_ONE_MAX: usize = 64;
/// The most reads of all callers.
const READS_MAX: usize = 512;

/// The streams of blobs that are under way.
pub(super) struct BlobStreams {
    /// The uploads that a stream is writing.
    writing: Arc<Mutex<HashSet<BlobDigest>>>,
    /// The reads in progress.
    reading: Arc<StreamSlots>,
}

impl Default for BlobStreams {
    fn default() -> Self {
        Self { writing: Arc::default(), reading: StreamSlots::new(READS_OF_ONE_MAX, READS_MAX) }
    }
}

fn files(call: &Call) -> Result<Arc<BlobFiles>, Status> {
    let files = call.broker.resources().blob_files.clone();
    files.ok_or_else(|| refuse(BrokerError::NotSupported { what: "the store of blobs" }))
}

/// The place of a stream among those that write. Its drop gives the place back.
struct Writing {
    all: Arc<Mutex<HashSet<BlobDigest>>>,
    upload: BlobDigest,
}

impl Writing {
    fn begin(all: &Arc<Mutex<HashSet<BlobDigest>>>, upload: BlobDigest) -> Result<Self, Status> {
        match all.lock().unwrap_or_else(PoisonError::into_inner).insert(upload) {
            true => Ok(Self { all: all.clone(), upload }),
            // Two writers of one file would mix their bytes.
            false => Err(refuse(BrokerError::Conflict)),
        }
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.upload);
    }
}

/// A blob that the caller may read. Looks at its holders part by part, so that a call which is cancelled ends.
async fn readable(call: &Call, digest: BlobDigest) -> Result<BlobRecord, BrokerError> {
    let mut after = None;
    loop {
        let from = after.clone();
        match call.read(WorkSize::Small, move |view| view.blob(&digest, from)).await {
            Ok(BlobSearch::Found(blob)) => return Ok(blob),
            Ok(BlobSearch::NotUpTo(last)) => after = Some(last),
            Err(error) => return Err(error),
        }
    }
}

pub(super) async fn write_blob(
    call: Call,
    mut frames: Requests<v1::WriteBlobRequest>,
) -> Result<v1::WriteBlobResponse, Status> {
    let agent = call.agent()?.clone();
    let files = files(&call)?;
    let mut frame = frames.message().await?.unwrap_or_default();
    let new = new_blob(&frame, call.broker.settings().blobs.blob_bytes_max)?;
    let (digest, size) = (new.digest, new.size);
    let upload = BlobFiles::upload_name(agent.as_str(), &digest);
    let writing = Arc::new(Writing::begin(&call.blobs.writing, upload)?);
    // Until the file is open, no removal of an earlier upload may take it.
    let naming = files.naming(&upload).lock_owned().await;
    let begun = {
        let agent = agent.clone();
        call.ask(|_, reply| Command::BeginUpload { agent, blob: Box::new(new), reply }).await
    };
    if let Some(blob) = begun? {
        let blob = Some(blob.to_v1());
        return Ok(v1::WriteBlobResponse { committed_bytes: size, blob });
    }
    let mut writer = on_disk(&call, {
        let files = files.clone();
        move || files.write(&upload)
    })
    .await?;
    drop(naming);
    loop {
        // The next frame arrives and is decrypted while this one is written.
        let arriving = async { Ok(frames.message().await) };
        let (written, arrived) = tokio::try_join!(append(&call, writer, &writing, frame, size), arriving)?;
        writer = written;
        match arrived {
            Ok(Some(next)) => frame = next,
            Ok(None) => break,
            // What is written stays, and the client asks where to continue.
            Err(error) => return Err(error),
        }
        if frame.blob.is_some() || !frame.workspace_id.is_empty() {
            return Err(refuse(field("blob", "must be set in the first message only")));
        }
        // What is written stays, and waits where the caller's CPU time is used up: a refusal would only end the call.
        call.broker.count_message(&call.caller).map_err(refuse)?;
    }
    let committed_bytes = writer.written();
    if committed_bytes < size {
        return Ok(v1::WriteBlobResponse { committed_bytes, blob: None });
    }
    let found = on_disk(&call, move || writer.finish()).await?;
    if found != digest {
        call.ask(|_, reply| Command::DropUpload { agent, digest, reply }).await?;
        return Err(refuse(BrokerError::BlobDigestMismatch { found: hex::encode(found) }));
    }
    let naming = files.naming(&digest).lock_owned().await;
    let object = files.is_shared().then(|| object_number(call.broker.ids()));
    let place = BlobPlace { digest, object };
    // A call that is dropped meanwhile must not let a deletion or another write of the blob begin.
    let places = (naming, writing);
    let _places = on_disk(&call, {
        let files = files.clone();
        move || files.name(&upload, &place).map(|()| places)
    })
    .await?;
    let finished = call.broker.ask(|reply| Command::FinishUpload { agent, place, reply }).await;
    let blob = finished.map_err(|refusal| {
        // Whether a failed commit has stored the record is known only at the next start, which deletes the file then. In
        // a cluster another broker may know it, and the object is deleted later.
        if refusal.code() != ErrorCode::StoreUnavailable && !files.is_shared() {
            files.note_removed(Removed::Blob(place));
        }
        refuse_shared(refusal)
    })?;
    if blob.place() != place {
        files.note_removed(Removed::Blob(place));
    }
    Ok(v1::WriteBlobResponse { committed_bytes, blob: Some(blob.to_v1()) })
}

pub(super) async fn get_blob_write(
    call: Call,
    request: v1::GetBlobWriteRequest,
) -> Result<v1::GetBlobWriteResponse, Status> {
    let agent = call.agent()?.clone();
    let digest = digest_of("sha256", &request.sha256)?;
    let upload = call.read_small(move |view| view.upload(&digest)).await?;
    let files = files(&call)?;
    let name = BlobFiles::upload_name(agent.as_str(), &digest);
    let committed_bytes = on_disk(&call, move || files.uploaded(&name)).await?;
    let until = upload.touched_at.plus(call.broker.settings().blobs.unheld_lifetime);
    let expire_time = Some(until.into());
    Ok(v1::GetBlobWriteResponse { committed_bytes, size_bytes: upload.size, expire_time })
}

pub(super) async fn read_blob(
    call: Call,
    request: v1::ReadBlobRequest,
) -> Result<Responses<v1::ReadBlobResponse>, Status> {
    let v1::ReadBlobRequest { sha256, read_offset, read_length } = request;
    let digest = digest_of("sha256", &sha256)?;
    let blob = readable(&call, digest).await.map_err(refuse)?;
    let rest = blob.size.checked_sub(read_offset).filter(|rest| read_length <= *rest);
    let rest = rest.ok_or_else(|| refuse(BrokerError::BlobOutOfRange { committed: blob.size }))?;
    let mut left = if read_length == 0 { rest } else { read_length };
    let files = files(&call)?;
    let what = "too many blobs are being read";
    let reading = call.blobs.reading.take(&call.caller);
    let reading = reading.ok_or_else(|| refuse(BrokerError::LimitExceeded { what, retry_after: RETRY_READ_AFTER }))?;
    let reader = on_disk(&call, {
        let (place, size, length) = (blob.place(), blob.size, left);
        move || files.read(&place, read_offset, length, size)
    })
    .await?;
    let (responses, receiver) = mpsc::channel(RESPONSES_MAX);
    tokio::spawn(async move {
        let _reading = reading;
        let mut reader = match checked(&call, reader, &responses).await {
            Ok(Some(checked)) => checked,
            Ok(None) => return,
            Err(status) => {
                let _client_gone = responses.send(Err(status)).await;
                return;
            }
        };
        let mut first = Some(blob.to_v1());
        loop {
            // A thread serves one read, and never waits for the client.
            let read = on_disk(&call, move || {
                let data = reader.next(left)?;
                Ok((data, reader))
            });
            let (data, rest) = match read.await {
                Ok(read) => read,
                Err(status) => {
                    let _client_gone = responses.send(Err(status)).await;
                    return;
                }
            };
            (reader, left) = (rest, left - data.len() as u64);
            let response = v1::ReadBlobResponse { data, blob: first.take() };
            // A client that is gone wants no more.
            if responses.send(Ok(response)).await.is_err() || left == 0 {
                return;
            }
        }
    });
    Ok(Box::pin(ReceiverStream::new(receiver)))
}

pub(super) async fn get_blob(call: Call, request: v1::GetBlobRequest) -> Result<v1::GetBlobResponse, Status> {
    let digest = digest_of("sha256", &request.sha256)?;
    let blob = readable(&call, digest).await.map_err(refuse)?;
    Ok(v1::GetBlobResponse { blob: Some(blob.to_v1()) })
}

pub(super) async fn find_missing_blobs(
    call: Call,
    request: v1::FindMissingBlobsRequest,
) -> Result<v1::FindMissingBlobsResponse, Status> {
    let wanted = request.sha256s;
    if wanted.len() > FOUND_MAX {
        return Err(refuse(field("sha256s", &format!("must have at most {FOUND_MAX} entries"))));
    }
    let digests = wanted.iter().map(|digest| digest_of("sha256s", digest)).collect::<Result<Vec<_>, _>>()?;
    let (mut sha256s, mut known) = (Vec::new(), Vec::new());
    for digest in digests.into_iter().unique() {
        match readable(&call, digest).await {
            Ok(blob) => known.push(blob),
            Err(BrokerError::BlobUnknown { .. }) => sha256s.push(Bytes::copy_from_slice(&digest)),
            Err(error) => return Err(refuse(error)),
        }
    }
    let files = files(&call)?;
    let lost = on_disk(&call, move || {
        let lost = known.iter().filter(|blob| !files.is_there(&blob.place(), blob.size));
        Ok(lost.map(|blob| Bytes::copy_from_slice(&blob.digest)).collect::<Vec<_>>())
    });
    sha256s.extend(lost.await?);
    Ok(v1::FindMissingBlobsResponse { sha256s })
}

pub(super) async fn list_blobs(call: Call, request: v1::ListBlobsRequest) -> Result<v1::ListBlobsResponse, Status> {
    call.run_large(move |broker, caller| {
        let workspace = parsed_id("workspace_id", &request.workspace_id, WorkspaceId::parse)?;
        let size = page_size(request.page_size);
        let page = broker.view(caller).blobs_of(&workspace, size, &request.page_token).map_err(refuse)?;
        let blobs = page.entries.iter().map(BlobRecord::to_v1).collect();
        Ok(v1::ListBlobsResponse { blobs, next_page_token: page.next_token })
    })
    .await
}

pub(super) async fn delete_blob(call: Call, request: v1::DeleteBlobRequest) -> Result<v1::DeleteBlobResponse, Status> {
    let digest = digest_of("sha256", &request.sha256)?;
    let workspace = parsed_id("workspace_id", &request.workspace_id, WorkspaceId::parse)?;
    call.ask(|caller, reply| Command::DeleteBlob { digest, workspace, caller, reply }).await?;
    Ok(v1::DeleteBlobResponse {})
}

/// Checks the file of which a range is read, part by part: a check ends with its caller. `None`: the client is gone.
async fn checked(
    call: &Call,
    mut reader: BlobReader,
    responses: &mpsc::Sender<Result<v1::ReadBlobResponse, Status>>,
) -> Result<Option<BlobReader>, Status> {
    while !responses.is_closed() {
        let check = move || Ok((reader.check_more()?, reader));
        let (is_checked, rest) = on_disk(call, check).await?;
        if is_checked {
            return Ok(Some(rest));
        }
        reader = rest;
    }
    Ok(None)
}

/// Writes the bytes of a message that are not written yet.
async fn append(
    call: &Call,
    mut writer: BlobWriter,
    writing: &Arc<Writing>,
    frame: v1::WriteBlobRequest,
    size: u64,
) -> Result<BlobWriter, Status> {
    let v1::WriteBlobRequest { write_offset, data, .. } = frame;
    if data.len() > DATA_BYTES_MAX {
        return Err(refuse(field("data", &format!("must have at most {DATA_BYTES_MAX} bytes"))));
    }
    let committed = writer.written();
    if write_offset > committed {
        return Err(refuse(BrokerError::BlobOutOfRange { committed }));
    }
    let known = usize::try_from(committed - write_offset).unwrap_or(usize::MAX).min(data.len());
    let rest = data.slice(known..);
    if committed + rest.len() as u64 > size {
        return Err(refuse(field("data", "must not go beyond the size of the blob")));
    }
    if rest.is_empty() {
        return Ok(writer);
    }
    // A call that is dropped meanwhile must not let another one write to the same file.
    let writing = writing.clone();
    on_disk(call, move || {
        let _writing = writing;
        writer.append(&rest)?;
        Ok(writer)
    })
    .await
}

/// Runs work of a caller with a file on a thread for such work.
async fn on_disk<T: Send + 'static>(
    call: &Call,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, Status> {
    let done = call.run(WorkSize::Large, work).await.map_err(refuse)?;
    done.map_err(|error| disk_refusal(&error))
}

fn disk_refusal(error: &io::Error) -> Status {
    tracing::error!(%error, "failed to read or write the bytes of a blob");
    refuse(match BlobDamaged::of(error) {
        Some(damaged) => BrokerError::BlobDamaged { blob: hex::encode(damaged.blob) },
        None => BrokerError::StoreUnavailable,
    })
}

fn new_blob(first: &v1::WriteBlobRequest, bytes_max: u64) -> Result<NewBlob, Status> {
    let blob = first.blob.clone().unwrap_or_default();
    let mut checks = Checks::default();
    let digest = checks.digest("blob.sha256", &blob.sha256);
    checks.text("blob.media_type", &blob.media_type, 255);
    let workspace = checks.id("workspace_id", &first.workspace_id, WorkspaceId::parse);
    let (digest, workspace) = checked_with(checks, (digest, workspace))?;
    if blob.size_bytes > bytes_max {
        return Err(refuse(BrokerError::BlobQuota { what: "bytes of a blob", limit: bytes_max }));
    }
    Ok(NewBlob { digest, size: blob.size_bytes, media_type: blob.media_type, workspace })
}

/// A number that no other write of a blob has.
fn object_number(ids: &dyn IdSource) -> u64 {
    let [first, ..] = *ids.random().as_chunks::<8>().0 else { unreachable!("there are two") };
    u64::from_be_bytes(first)
}

fn digest_of(path: &str, bytes: &[u8]) -> Result<BlobDigest, Status> {
    bytes.try_into().map_err(|_| refuse(field(path, "must have 32 bytes")))
}

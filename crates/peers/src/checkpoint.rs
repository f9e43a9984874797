//! The checkpoint of a broker, sent to one that lacks entries which the shared log has dropped.
//!
//! Owns both ends of the call GetCheckpoint. Must not know the content of a checkpoint, nor what becomes of it: the store of
//! the receiver checks it.

use std::{io, sync::Arc, time::Duration};

use async_trait::async_trait;
use baton_cluster::driver::CheckpointPieces;
use baton_store::{CheckpointFile, CheckpointHead, Link, Mark, Outgoing, Position, Replica};
use bytes::Bytes;
use tokio::{
    sync::{OwnedSemaphorePermit, mpsc},
    task::spawn_blocking,
    time::timeout,
};
use tonic::{Status, Streaming};

use crate::{
    client::{self, PeerError},
    proto::{self, GetCheckpointRequest, GetCheckpointResponse, get_checkpoint_response::Part},
    tls::PeerTls,
};

/// The most checkpoints that a broker sends at one time.
pub(crate) const SENT_MAX: usize = 2;
/// The longest time in which a receiver takes nothing.
const STUCK_MAX: Duration = Duration::from_secs(60);
/// The pieces that wait for the connection.
const PIECES_MAX: usize = 2;

type Sent = Result<GetCheckpointResponse, Status>;

/// Sends the checkpoint as it is now. The place is taken until its end.
pub(crate) async fn send(
    tables: Arc<Replica>,
    request: GetCheckpointRequest,
    place: OwnedSemaphorePermit,
) -> Result<mpsc::Receiver<Sent>, Status> {
    let kept = spawn_blocking(move || tables.send()).await;
    let kept = kept.map_err(io::Error::other).flatten();
    let mut outgoing = kept.map_err(|error| Status::internal(format!("its checkpoint cannot be read: {error}")))?;
    let (position, upto) = (outgoing.head().mark.position, request.upto);
    if position < upto {
        let problem = format!("its checkpoint has the entries up to {position}, and those up to {upto} are needed");
        return Err(Status::failed_precondition(problem));
    }
    let has: Vec<CheckpointFile> = request.has.into_iter().filter_map(file_from_proto).collect();
    outgoing.omit(&has);
    let (sender, pieces) = mpsc::channel(PIECES_MAX);
    tokio::spawn(async move {
        // A receiver that is gone, or takes nothing, ends the call.
        drop(timeout(STUCK_MAX, sender.send(Ok(part(Part::Head(to_proto(outgoing.head())))))).await);
        send_pieces(outgoing, sender).await;
        drop(place);
    });
    Ok(pieces)
}

async fn send_pieces(mut outgoing: Outgoing, sender: mpsc::Sender<Sent>) {
    loop {
        let read = spawn_blocking(move || outgoing.next_piece().map(|piece| (piece, outgoing))).await;
        let sent = match read.map_err(io::Error::other).flatten() {
            Ok((None, _)) => return,
            Ok((Some(piece), rest)) => {
                outgoing = rest;
                Ok(part(Part::Piece(piece.into())))
            }
            Err(error) => {
                let problem = format!("its checkpoint cannot be read: {error}");
                drop(sender.send(Err(Status::internal(problem))).await);
                return;
            }
        };
        if !matches!(timeout(STUCK_MAX, sender.send(sent)).await, Ok(Ok(()))) {
            return;
        }
    }
}

/// Begins to receive the checkpoint of the broker at this address, which has the entries up to `upto` at least. Connecting takes
/// two seconds at most; the wait for the broker has no limit. The broker omits those files of `has` that its checkpoint has.
///
/// # Errors
///
/// No answer, or the broker has no such checkpoint.
pub async fn receive(
    address: &str,
    tls: &PeerTls,
    upto: Position,
    has: &[CheckpointFile],
) -> Result<(CheckpointHead, Pieces), PeerError> {
    let mut client = client::connect(address, tls).await?;
    let has = has.iter().map(file_to_proto).collect();
    let stream = client.get_checkpoint(GetCheckpointRequest { upto, has }).await;
    let mut stream = stream.map_err(|status| PeerError::of(address, status))?.into_inner();
    let first = stream.message().await.map_err(|status| PeerError::of(address, status))?;
    match first.and_then(|first| first.part) {
        Some(Part::Head(head)) => {
            let head = from_proto(head).ok_or_else(|| PeerError::unreachable(address, "the hash has not 32 bytes"))?;
            Ok((head, Pieces(stream)))
        }
        Some(Part::Piece(_)) | None => Err(PeerError::unreachable(address, "the checkpoint has no head")),
    }
}

/// The bytes of a checkpoint on their way.
#[derive(Debug)]
pub struct Pieces(Streaming<GetCheckpointResponse>);

#[async_trait]
impl CheckpointPieces for Pieces {
    async fn next(&mut self) -> Result<Option<Bytes>, String> {
        match self.0.message().await {
            Ok(Some(GetCheckpointResponse { part: Some(Part::Piece(piece)) })) => Ok(Some(piece.into())),
            Ok(Some(_)) => Err("a message has no bytes of the checkpoint".into()),
            Ok(None) => Ok(None),
            Err(status) => Err(status.message().to_owned()),
        }
    }
}

fn part(part: Part) -> GetCheckpointResponse {
    GetCheckpointResponse { part: Some(part) }
}

fn to_proto(head: &CheckpointHead) -> proto::CheckpointHead {
    let CheckpointHead { cluster, format, mark, manifest_bytes, omitted } = head;
    let link = mark.link.as_ref();
    proto::CheckpointHead {
        cluster: cluster.clone(),
        format: *format,
        position: mark.position,
        hash: link.map(|link| link.hash.to_vec()).unwrap_or_default(),
        term: link.map_or(0, |link| link.term),
        level: link.map_or(0, |link| link.level.into()),
        manifest_bytes: *manifest_bytes,
        omitted: omitted.clone(),
    }
}

fn file_to_proto(file: &CheckpointFile) -> proto::CheckpointFile {
    let CheckpointFile { name, bytes, xxh3 } = file;
    proto::CheckpointFile { name: name.clone(), bytes: *bytes, xxh3: xxh3.to_be_bytes().to_vec() }
}

/// `None`: the checksum has not 16 bytes.
fn file_from_proto(file: proto::CheckpointFile) -> Option<CheckpointFile> {
    let xxh3 = u128::from_be_bytes(file.xxh3.as_slice().try_into().ok()?);
    Some(CheckpointFile { name: file.name, bytes: file.bytes, xxh3 })
}

/// `None`: the hash of an entry has not 32 bytes, or the level is none.
fn from_proto(head: proto::CheckpointHead) -> Option<CheckpointHead> {
    let link = match head.hash.is_empty() {
        true => None,
        false => {
            let hash = head.hash.as_slice().try_into().ok()?;
            Some(Link { hash, term: head.term, level: head.level.try_into().ok()? })
        }
    };
    let mark = Mark { position: head.position, link };
    let proto::CheckpointHead { cluster, format, manifest_bytes, omitted, .. } = head;
    Some(CheckpointHead { cluster, format, mark, manifest_bytes, omitted })
}

//! SPEC 7: blobs.

use bytes::Bytes;
use tonic::Code;

use super::{
    check::{Answer, Checks, Refusal, Verdict, answered, refused},
    story::{Stage, Story},
    world::{Actor, World},
};
use baton_client::{envelope::signing::sha256, proto::v1};

cases! {
    "blob.write-is-continued" "7"
        "A write that ends early is continued at the offset that GetBlobWrite names; an offset beyond it is refused with BLOB_OUT_OF_RANGE and the committed bytes."
        continued;
    "blob.other-bytes-are-dropped" "7"
        "Bytes with another digest than the blob are refused with BLOB_DIGEST_MISMATCH, and no blob exists."
        dropped;
    "blob.digest-is-no-right" "7"
        "An agent without a part in a task that holds a blob gets BLOB_UNKNOWN for its digest, and may not write for the task."
        no_right;
}

const MIB: usize = 1024 * 1024;

/// Bytes that no other run writes.
fn content(world: &World, bytes: usize) -> Vec<u8> {
    world.id("blob").bytes().cycle().take(bytes).collect()
}

fn first(digest: [u8; 32], size: usize, task: &str) -> v1::WriteBlobRequest {
    let blob = v1::Blob { sha256: digest.to_vec().into(), size_bytes: size as u64, ..Default::default() };
    v1::WriteBlobRequest { blob: Some(blob), workspace_id: format!("task:{task}"), ..Default::default() }
}

fn part(write_offset: usize, data: &[u8]) -> v1::WriteBlobRequest {
    let data = Bytes::copy_from_slice(data);
    v1::WriteBlobRequest { write_offset: write_offset as u64, data, ..Default::default() }
}

async fn write(who: &Actor, messages: Vec<v1::WriteBlobRequest>) -> Answer<v1::WriteBlobResponse> {
    let client = &who.client;
    who.call(async { client.answer(client.blobs().write_blob(tokio_stream::iter(messages)).await) }).await
}

async fn continued(world: World) -> Verdict {
    let story = Story::at(&world, Stage::Accepted).await?;
    let (alice, bytes) = (&story.alice, content(&world, 2 * MIB));
    let digest = sha256(&[&bytes]);
    let begin = || first(digest, bytes.len(), &story.task);
    let cut = answered("a write ends early", write(alice, vec![begin(), part(0, &bytes[..MIB + 1])]).await)?;
    let mut checks = Checks::of("a write ends early");
    checks.same("committed_bytes", MIB as u64 + 1, cut.committed_bytes);
    checks.holds("blob", cut.blob.is_none(), "unset", &cut.blob);
    let request = v1::GetBlobWriteRequest { sha256: digest.to_vec().into() };
    let client = &alice.client;
    let at = alice.call(async { client.answer(client.blobs().get_blob_write(request).await) }).await;
    let at = usize::try_from(answered("GetBlobWrite", at)?.committed_bytes).unwrap_or(usize::MAX);
    checks.holds("committed_bytes", at <= MIB + 1, "at most what was sent", at);
    let beyond = write(alice, vec![begin(), part(at + 1, &bytes[MIB..])]).await;
    checks.refused("an offset beyond", beyond, Refusal(Code::OutOfRange, "BLOB_OUT_OF_RANGE"));
    let rest = bytes.get(at..).unwrap_or_default();
    let parts = rest.chunks(MIB).scan(at, |at, data| {
        let next = part(*at, data);
        *at += data.len();
        Some(next)
    });
    let done = answered("the rest", write(alice, std::iter::once(begin()).chain(parts).collect()).await)?;
    checks.holds("blob", done.blob.is_some(), "the blob", &done.blob);
    checks.done()
}

async fn dropped(world: World) -> Verdict {
    let story = Story::at(&world, Stage::Accepted).await?;
    let bytes = content(&world, 1000);
    let digest = sha256(&[b"other", &bytes]);
    let messages = vec![first(digest, bytes.len(), &story.task), part(0, &bytes)];
    let mismatch = Refusal(Code::InvalidArgument, "BLOB_DIGEST_MISMATCH");
    refused("other bytes", write(&story.alice, messages).await, mismatch)?;
    let stat = story.alice.call(story.alice.client.stat_blob(&digest)).await;
    refused("the blob", stat, Refusal(Code::NotFound, "BLOB_UNKNOWN")).map(drop)
}

async fn no_right(world: World) -> Verdict {
    let story = Story::at(&world, Stage::Accepted).await?;
    let carol = world.agent("carol").await?;
    let bytes = content(&world, 1000);
    let digest = sha256(&[&bytes]);
    let messages = || vec![first(digest, bytes.len(), &story.task), part(0, &bytes)];
    answered("a blob is written", write(&story.alice, messages()).await)?;
    answered("the candidate reads it", story.bob.call(story.bob.client.stat_blob(&digest)).await)?;
    let mut checks = Checks::of("an agent without a part");
    let stat = carol.call(carol.client.stat_blob(&digest)).await;
    checks.refused("the blob", stat, Refusal(Code::NotFound, "BLOB_UNKNOWN"));
    let write = write(&carol, messages()).await;
    checks.refused("a write", write, Refusal(Code::PermissionDenied, "PERMISSION_DENIED"));
    checks.done()
}

//! Blobs end to end: writes that are cut off and continued over a kill, ranges, and the command line.

use std::path::Path;

use baton::{ids::WorkspaceId, proto::v1};
use baton_client::{ClientError, session::Agent};
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use crate::broker::{Broker, a_request, eventually, identity, new_task};

const MIB: usize = 1024 * 1024;

fn content(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| u8::try_from(at * 7 % 251).unwrap()).collect()
}

fn digest(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// A task that `a` owns. Returns its workspace.
async fn a_task(a: &Agent) -> WorkspaceId {
    let task = new_task();
    a.request("b", &task, 1, &a_request()).await.unwrap();
    WorkspaceId::parse(&format!("task:{task}")).unwrap()
}

fn first(bytes: &[u8], named: [u8; 32], workspace: &WorkspaceId) -> v1::WriteBlobRequest {
    let blob = v1::Blob {
        sha256: named.to_vec().into(),
        size_bytes: bytes.len() as u64,
        media_type: "application/x-core".into(),
        ..Default::default()
    };
    v1::WriteBlobRequest { blob: Some(blob), workspace_id: workspace.to_string(), ..Default::default() }
}

async fn write(agent: &Agent, messages: Vec<v1::WriteBlobRequest>) -> Result<v1::WriteBlobResponse, ClientError> {
    let client = &agent.client;
    client.answer(client.blobs().write_blob(tokio_stream::iter(messages)).await)
}

fn reason(answer: Result<v1::WriteBlobResponse, ClientError>) -> String {
    answer.unwrap_err().reason().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn a_blob_of_50_mib_that_is_cut_at_20_mib_is_continued_after_kill_9() {
    let broker = Broker::start();
    let (a, _b) = (broker.agent("a").await, broker.agent("b").await);
    let workspace = a_task(&a).await;
    let bytes = content(50 * MIB);
    let named = digest(&bytes);
    let file = broker.folder.path().join("crash.core");
    std::fs::write(&file, &bytes).unwrap();

    // The stream stays open while the broker is killed.
    let (sender, receiver) = mpsc::channel(4);
    let client = a.client.clone();
    let cut = tokio::spawn(async move { client.blobs().write_blob(ReceiverStream::new(receiver)).await });
    sender.send(first(&bytes, named, &workspace)).await.unwrap();
    for (at, data) in bytes[..20 * MIB + 5].chunks(MIB).enumerate() {
        let data = bytes::Bytes::copy_from_slice(data);
        let write_offset = (at * MIB) as u64;
        sender.send(v1::WriteBlobRequest { write_offset, data, ..Default::default() }).await.unwrap();
    }
    let asked = v1::GetBlobWriteRequest { sha256: named.to_vec().into() };
    let written = async |agent: &Agent| {
        let answer = agent.client.answer(agent.client.blobs().get_blob_write(asked.clone()).await);
        answer.map(|answer| answer.committed_bytes).unwrap_or_default()
    };
    eventually("20 MiB are stored", async || written(&a).await == 20 * MIB as u64).await;
    let folder = broker.kill();
    cut.await.unwrap().unwrap_err();

    let broker = Broker::start_in(folder, &[]);
    let a = broker.agent("a").await;
    assert_eq!(written(&a).await, 20 * MIB as u64);
    let sent = std::sync::Mutex::new(Vec::new());
    let note = |done, _all| sent.lock().unwrap().push(done);
    let blob = a.client.put_blob(&file, "application/x-core", &workspace, &note).await.unwrap();
    assert_eq!((&blob.sha256[..], blob.size_bytes), (&named[..], bytes.len() as u64));
    assert_eq!(sent.lock().unwrap()[0], 20 * MIB as u64, "the first 20 MiB are not sent again");

    let folder = broker.kill();
    let broker = Broker::start_in(folder, &[]);
    let a = broker.agent("a").await;
    let out = broker.folder.path().join("copy");
    a.client.get_blob_to(&named, &out, &|_, _| {}).await.unwrap();
    assert!(std::fs::read(&out).unwrap() == bytes);
}

#[tokio::test]
async fn each_wrong_write_and_read_is_refused_with_its_code() {
    let broker = Broker::start();
    let (a, b) = (broker.agent("a").await, broker.agent("b").await);
    let workspace = a_task(&a).await;
    let bytes = content(3 * MIB);
    let named = digest(&bytes);
    let part = |write_offset: usize, data: &[u8]| {
        let data = bytes::Bytes::copy_from_slice(data);
        v1::WriteBlobRequest { write_offset: write_offset as u64, data, ..Default::default() }
    };
    let begin = || first(&bytes, named, &workspace);
    assert_eq!(reason(write(&b, vec![begin()]).await), "PERMISSION_DENIED");
    assert_eq!(reason(write(&a, vec![v1::WriteBlobRequest::default()]).await), "FIELD_INVALID");
    let beyond = write(&a, vec![begin(), part(0, &bytes[..MIB]), part(2 * MIB, &bytes[2 * MIB..])]).await;
    let ClientError::Refused(refused) = beyond.unwrap_err() else { panic!("a refusal") };
    assert_eq!(
        (refused.reason.as_str(), refused.metadata["committed_bytes"].as_str()),
        ("BLOB_OUT_OF_RANGE", "1048576")
    );
    let too_much = write(&a, vec![begin(), part(0, &bytes[..2 * MIB]), part(2 * MIB, &bytes[..MIB + 1])]).await;
    assert_eq!(reason(too_much), "FIELD_INVALID");
    let other = content(MIB);
    let wrong = write(&a, vec![first(&other, [7; 32], &workspace), part(0, &other)]).await;
    assert_eq!(reason(wrong), "BLOB_DIGEST_MISMATCH");
    let huge = v1::Blob { sha256: vec![8; 32].into(), size_bytes: (1 << 30) + 1, ..Default::default() };
    let huge = v1::WriteBlobRequest { blob: Some(huge), ..begin() };
    assert_eq!(reason(write(&a, vec![huge]).await), "QUOTA_EXCEEDED");

    // Bytes that are there already are skipped, wherever the stream begins.
    let parts = bytes.chunks(MIB).enumerate().map(|(at, data)| part(at * MIB, data));
    let all: Vec<_> = std::iter::once(begin()).chain(parts).collect();
    assert!(write(&a, all).await.unwrap().blob.is_some());
    assert!(write(&a, vec![begin()]).await.unwrap().blob.is_some(), "a known blob needs no bytes");

    let read = async |agent: &Agent, read_offset: usize, read_length: usize| {
        let sha256 = named.to_vec().into();
        let (read_offset, read_length) = (read_offset as u64, read_length as u64);
        let request = v1::ReadBlobRequest { sha256, read_offset, read_length };
        let mut answers = agent.client.answer(agent.client.blobs().read_blob(request).await)?;
        let mut found = Vec::new();
        while let Some(answer) = answers.message().await.unwrap() {
            found.extend_from_slice(&answer.data);
        }
        Ok::<_, ClientError>(found)
    };
    assert!(read(&a, MIB - 3, MIB + 7).await.unwrap() == bytes[MIB - 3..2 * MIB + 4]);
    assert!(read(&a, 3 * MIB, 0).await.unwrap().is_empty());
    assert_eq!(read(&a, 3 * MIB + 1, 0).await.unwrap_err().reason(), Some("BLOB_OUT_OF_RANGE"));
    assert_eq!(read(&a, 0, 3 * MIB + 1).await.unwrap_err().reason(), Some("BLOB_OUT_OF_RANGE"));
    assert_eq!(read(&b, 0, 0).await.unwrap_err().reason(), Some("BLOB_UNKNOWN"), "the digest is no right");
    // The same bytes are a blob of b's task only once b has sent them.
    let of_b = new_task();
    b.request("a", &of_b, 1, &a_request()).await.unwrap();
    let of_b = WorkspaceId::parse(&format!("task:{of_b}")).unwrap();
    assert!(write(&b, vec![first(&bytes, named, &of_b)]).await.unwrap().blob.is_none());
}

#[tokio::test]
async fn the_command_line_puts_gets_and_releases_blobs() {
    let broker = Broker::start();
    let (a, _b) = (broker.agent("a").await, broker.agent("b").await);
    let workspace = a_task(&a).await;
    let bytes = content(MIB + 9);
    let sha256 = digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let file = broker.folder.path().join("page.png");
    std::fs::write(&file, &bytes).unwrap();
    let key = broker.folder.path().join("a.pem");
    identity("a").key.write(&key).unwrap();
    let act = |group: &str, args: &[&str]| {
        let key = key.to_str().unwrap();
        let mut command = broker.command(&[&[group], args, &["--id", "a", "--key", key]].concat());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let run = |args: &[&str]| act("blob", args);
    let text = |path: &Path| path.display().to_string();
    let put = run(&["put", &text(&file), "--for", workspace.as_str(), "--media-type", "image/png", "-o", "json"]);
    assert!(put.contains("image/png"), "{put}");
    let out = broker.folder.path().join("copy.png");
    // A read that was cut off left the first bytes.
    std::fs::write(broker.folder.path().join("copy.png.part"), &bytes[..1000]).unwrap();
    run(&["get", &sha256, "--out", &text(&out)]);
    assert!(std::fs::read(&out).unwrap() == bytes);
    assert!(run(&["stat", &format!("baton:blob/{sha256}"), "-o", "table"]).contains(&sha256));
    assert!(run(&["list", workspace.as_str(), "-o", "table"]).contains(&sha256));
    let reference = format!("baton:blob/{sha256}");
    act("workspace", &["append", workspace.as_str(), "pages", "--reference", &reference, "--sha256", &sha256]);
    assert!(act("workspace", &["list", workspace.as_str(), "-o", "json"]).contains(&(MIB + 9).to_string()));
    run(&["rm", &sha256, "--for", workspace.as_str()]);
    assert!(!run(&["list", workspace.as_str(), "-o", "table"]).contains(&sha256));
}

#[tokio::test]
async fn no_wrong_byte_of_a_range_is_sent_and_the_blob_can_be_written_again() {
    let broker = Broker::start();
    let (a, _b) = (broker.agent("a").await, broker.agent("b").await);
    let workspace = a_task(&a).await;
    let bytes = content(3 * MIB);
    let named = digest(&bytes);
    let file = broker.folder.path().join("crash.core");
    std::fs::write(&file, &bytes).unwrap();
    let put = async || a.client.put_blob(&file, "", &workspace, &|_, _| {}).await;
    put().await.unwrap();
    let name = hex::encode(named);
    let stored = broker.data().join("blobs").join(&name[..2]).join(&name);
    let read = async |read_offset: u64, read_length: u64| {
        let request = v1::ReadBlobRequest { sha256: named.to_vec().into(), read_offset, read_length };
        let mut answers = a.client.blobs().read_blob(request).await.map_err(|status| (0, status))?.into_inner();
        let mut found = Vec::new();
        while let Some(answer) = answers.message().await.map_err(|status| (found.len(), status))? {
            found.extend_from_slice(&answer.data);
        }
        Ok::<_, (usize, tonic::Status)>(found)
    };
    let missing = async || {
        let request = v1::FindMissingBlobsRequest { sha256s: vec![named.to_vec().into()] };
        a.client.answer(a.client.blobs().find_missing_blobs(request).await).unwrap().sha256s.len()
    };
    assert!(read(MIB as u64, 9).await.unwrap() == bytes[MIB..MIB + 9]);
    assert_eq!(missing().await, 0);
    for (read_offset, read_length, most) in [(MIB as u64 - 1, 2, 1), (9, 9, 0), (0, 9, 0), (0, 0, 3 * MIB - 1)] {
        let mut damaged = bytes.clone();
        damaged[MIB] ^= 1;
        std::fs::write(&stored, damaged).unwrap();
        // A range elsewhere in a file that was checked before is served: each block of it is checked.
        let answer = read(read_offset, read_length).await;
        if (read_offset, read_length) == (9, 9) || (read_offset, read_length) == (0, 9) {
            assert!(answer.unwrap() == bytes[read_offset as usize..][..9]);
            continue;
        }
        let (sent, status) = answer.unwrap_err();
        assert_eq!(status.code(), tonic::Code::DataLoss);
        assert!(sent <= most && status.message().contains("write them again"), "{sent}: {status}");
        assert_eq!(missing().await, 1, "its file is set aside");
        assert_eq!(read(0, 0).await.unwrap_err().1.code(), tonic::Code::DataLoss);
        put().await.unwrap();
        assert!(read(0, 0).await.unwrap() == bytes && missing().await == 0);
    }
    // A new start knows no file, and checks the whole one first.
    let mut damaged = bytes.clone();
    damaged[MIB] ^= 1;
    std::fs::write(&stored, damaged).unwrap();
    let broker = Broker::start_in(broker.kill(), &[]);
    let a = broker.agent("a").await;
    let request = v1::ReadBlobRequest { sha256: named.to_vec().into(), read_offset: 9, read_length: 9 };
    let mut answers = a.client.blobs().read_blob(request).await.unwrap().into_inner();
    assert_eq!(answers.message().await.unwrap_err().code(), tonic::Code::DataLoss);
}

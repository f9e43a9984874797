//! Blobs of a cluster: each broker that leads reads what another one has written, from the bucket that they share.

use baton::{ids::WorkspaceId, proto::v1};
use baton_client::session::Agent;
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::*;
use crate::broker::{a_request, new_task};

const MIB: usize = 1024 * 1024;

fn content(bytes: usize, step: usize) -> (Vec<u8>, [u8; 32]) {
    let bytes: Vec<u8> = (0..bytes).map(|at| u8::try_from(at * step % 251).unwrap()).collect();
    let digest = Sha256::digest(&bytes).into();
    (bytes, digest)
}

/// A task of the agent, whose workspace holds blobs.
async fn a_workspace(agent: &Agent) -> WorkspaceId {
    let task = new_task();
    agent.request("b", &task, 1, &a_request()).await.unwrap();
    WorkspaceId::parse(&format!("task:{task}")).unwrap()
}

async fn put(agent: &Agent, bytes: &[u8], workspace: &WorkspaceId) -> v1::Blob {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), bytes).unwrap();
    agent.client.put_blob(file.path(), "", workspace, &|_, _| {}).await.unwrap()
}

async fn read(agent: &Agent, blob: &[u8; 32], read_offset: u64, read_length: u64) -> Vec<u8> {
    let request = v1::ReadBlobRequest { sha256: blob.to_vec().into(), read_offset, read_length };
    let mut answers = agent.client.blobs().read_blob(request).await.unwrap().into_inner();
    let mut found = Vec::new();
    while let Some(answer) = answers.message().await.unwrap() {
        found.extend_from_slice(&answer.data);
    }
    found
}

/// The objects of all blobs in the bucket.
fn objects(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let in_entry = |entry: fs::DirEntry| match entry.path().is_dir() {
        true => objects(&entry.path()),
        false => vec![entry.file_name().into_string().unwrap()],
    };
    entries.flat_map(|entry| in_entry(entry.unwrap())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blob_outlives_the_broker_that_took_it() {
    let outer = tempfile::tempdir().unwrap();
    let Some(server) = Server::start(outer.path()).await else { return };
    let kept = server.bucket().join("kept");
    let mut cluster = Cluster::over(Some(server)).all_started().await;
    let first = cluster.leader().await;
    let (a, _b) = (cluster.brokers[&first].agent("a").await, cluster.brokers[&first].agent("b").await);
    let workspace = a_workspace(&a).await;
    // One request writes the first, and three parts the second.
    let blobs = [content(MIB + 3, 7), content(17 * MIB + 1, 11)];
    for (bytes, _) in &blobs {
        put(&a, bytes, &workspace).await;
    }
    assert_eq!(objects(&kept).len(), 2);
    // An upload that the kill cuts off.
    let (cut, named) = content(8 * MIB, 13);
    let (sender, receiver) = mpsc::channel(4);
    let writer = a.client.clone();
    let cut_off = tokio::spawn(async move { writer.blobs().write_blob(ReceiverStream::new(receiver)).await });
    let blob = v1::Blob { sha256: named.to_vec().into(), size_bytes: cut.len() as u64, ..Default::default() };
    let head = v1::WriteBlobRequest { blob: Some(blob), workspace_id: workspace.to_string(), ..Default::default() };
    sender.send(head).await.unwrap();
    let data = bytes::Bytes::copy_from_slice(&cut[..MIB + 9]);
    sender.send(v1::WriteBlobRequest { data, ..Default::default() }).await.unwrap();
    let asked = v1::GetBlobWriteRequest { sha256: named.to_vec().into() };
    let written = async |agent: &Agent| {
        let answer = agent.client.answer(agent.client.blobs().get_blob_write(asked.clone()).await);
        answer.map(|answer| answer.committed_bytes).ok()
    };
    eventually("a MiB is written", async || written(&a).await == Some(MIB as u64)).await;
    cluster.brokers.remove(&first).unwrap().kill();
    cut_off.await.unwrap().unwrap_err();

    let second = cluster.leader().await;
    let a = cluster.brokers[&second].agent("a").await;
    assert_eq!(written(&a).await, Some(0), "the bytes of an upload are on the machine that is gone");
    for (bytes, named) in &blobs {
        assert!(read(&a, named, 0, 0).await == *bytes);
        assert!(read(&a, named, MIB as u64 - 5, 8).await == bytes[MIB - 5..MIB + 3]);
        // What is known is not written again.
        put(&a, bytes, &workspace).await;
    }
    put(&a, &cut, &workspace).await;
    assert_eq!(objects(&kept).len(), 3);
    // The former leader comes back, leads, and has all of it.
    cluster.start(first);
    for place in (0..BROKERS).filter(|place| *place != first) {
        cluster.brokers.remove(&place).unwrap().stop().await;
    }
    assert_eq!(cluster.leader().await, first);
    let a = cluster.brokers[&first].agent("a").await;
    for (bytes, named) in blobs.iter().chain([&(cut, named)]) {
        assert!(read(&a, named, 0, 0).await == *bytes);
    }
    assert_eq!(objects(&kept).len(), 3, "nothing that a record names was deleted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_alone_takes_the_blobs_of_its_bucket_into_a_cluster() {
    let outer = tempfile::tempdir().unwrap();
    let Some(server) = Server::start(outer.path()).await else { return };
    let alone = Server::configured(server.port());
    let single = server.broker(alone);
    let (a, _b) = (single.agent("a").await, single.agent("b").await);
    let workspace = a_workspace(&a).await;
    let (bytes, named) = content(MIB + 3, 7);
    put(&a, &bytes, &workspace).await;
    let data = single.data();
    let mut cluster = Cluster::with_keys(Some(server), &data, baton().args(["cluster", "keys", "--from"]).arg(&data));
    let alone = single.kill();
    let (path, config) = (cluster.folders[0].path().join("data"), cluster.folders[0].path().join("baton.toml"));
    fs::remove_dir_all(&path).unwrap();
    copy_all(&alone.path().join("data"), &path);
    let init = || exit_of(baton().args(["cluster", "init", "--config"]).arg(&config).envs(CREDENTIALS));
    // Each broker names the bucket of the one that was alone.
    for folder in &cluster.folders {
        let file = folder.path().join("baton.toml");
        let text = fs::read_to_string(&file).unwrap();
        write(&file, &text.replace("s3://blobs/kept", "s3://blobs/one"));
    }
    let (code, text) = init();
    assert_eq!(code, Some(0), "{text}");
    (0..BROKERS).for_each(|place| cluster.start(place));
    let first = cluster.leader().await;
    let a = cluster.brokers[&first].agent("a").await;
    assert!(read(&a, &named, 0, 0).await == bytes);
    assert!(read(&a, &named, 9, 100).await == bytes[9..109]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blobs_in_the_files_of_a_broker_alone_are_no_clusters() {
    let single = Broker::start();
    let (a, _b) = (single.agent("a").await, single.agent("b").await);
    put(&a, &[7; 1000], &a_workspace(&a).await).await;
    let data = single.data();
    let cluster = Cluster::with_keys(None, &data, baton().args(["cluster", "keys", "--from"]).arg(&data));
    let alone = single.kill();
    let (path, config) = (cluster.folders[0].path().join("data"), cluster.folders[0].path().join("baton.toml"));
    fs::remove_dir_all(&path).unwrap();
    copy_all(&alone.path().join("data"), &path);
    let init = || exit_of(baton().args(["cluster", "init", "--config"]).arg(&config).envs(CREDENTIALS));
    let (code, text) = init();
    assert_eq!(code, Some(3), "{text}");
    assert!(text.contains("has blobs as files"), "{text}");
    // The bucket that the configuration names does not have them.
    if cfg!(feature = "s3") {
        let text = fs::read_to_string(&config).unwrap();
        write(&config, &format!("{text}[blobs]\nurl = \"s3://blobs/one\"\n"));
        let (code, text) = init();
        assert_eq!(code, Some(3), "{text}");
        assert!(text.contains("has blobs as files"), "{text}");
    }
    drop(cluster);
}

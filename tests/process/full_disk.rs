//! A broker with a full disk refuses messages, reports it to health checks, and continues when there is room again.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::Duration,
};

use baton::{
    ids::{SystemIds, WorkspaceId},
    proto::v1::{self, MessageType},
    time::SystemClock,
};
use baton_client::{About, Client, ClientError, Options, session::Agent};
use sha2::{Digest as _, Sha256};
use tokio::{io::AsyncWriteExt as _, sync::mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient};

use crate::{
    broker::{Broker, PATIENCE, a_request, baton, card, composer, eventually, identity, new_task, segments},
    health::asked,
    hostile::raw,
    metrics,
    status::shown,
};

/// The flags of a broker with metrics.
const METERED: [&str; 2] = ["--metrics-listen", "127.0.0.1:0"];

/// A small disk for the data of a broker.
struct SmallDisk {
    /// The path in the namespace of this process.
    path: PathBuf,
    is_mounted: bool,
    /// Removed after the disk is unmounted: a mount point cannot be removed.
    _folder: Arc<tempfile::TempDir>,
}

impl SmallDisk {
    /// Starts a broker on a disk that root mounts, or on one in its own namespace. `None` if neither is permitted.
    fn start_broker(size: &str) -> Option<(Broker, Self)> {
        let folder = Arc::new(tempfile::tempdir().unwrap());
        let path = folder.path().to_owned();
        let options = ["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"];
        let mounted = Command::new("mount").args(options).arg(&path).output();
        if mounted.is_ok_and(|output| output.status.success()) {
            let broker = Broker::start_in(folder.clone(), &METERED);
            return Some((broker, Self { path, is_mounted: true, _folder: folder }));
        }
        let permitted = Command::new("unshare").args(["-rm", "mount"]).args(options).arg(&path).output();
        if !permitted.is_ok_and(|output| output.status.success()) {
            println!("skipped: this user may neither mount a small disk nor make a namespace to mount it in");
            return None;
        }
        let mut command = Command::new("unshare");
        let script = format!("mount {} \"$0\" && exec \"$@\"", options.join(" "));
        command.args(["-rm", "sh", "-c", &script]).arg(&path).arg(baton().get_program());
        command.args(["dev", "--port", "0"]).args(METERED).arg("--data").arg(path.join("data"));
        let broker = Broker::spawn(command, folder.clone());
        let root = PathBuf::from(format!("/proc/{}/root", broker.pid()));
        let path = root.join(path.strip_prefix("/").unwrap());
        Some((broker, Self { path, is_mounted: false, _folder: folder }))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        if self.is_mounted {
            drop(Command::new("umount").arg("--lazy").arg(&self.path).status());
        }
    }
}

/// Fills the disk to its last byte.
fn fill(path: &Path) {
    use std::io::Write as _;
    let mut file = std::fs::File::create(path).unwrap();
    while file.write(&[1; 64 * 1024]).is_ok_and(|written| written > 0) {}
}

fn message(text: &str) -> bytes::Bytes {
    let info = v1::Info { text: text.to_owned(), ..Default::default() };
    composer("a").encode("b", MessageType::Info, &About::default(), &info)
}

async fn send(client: &Client, envelope: &bytes::Bytes) -> Result<v1::Receipt, ClientError> {
    let request = v1::SendRequest { envelope: envelope.clone(), ..Default::default() };
    Ok(client.answer(client.messages().send(request).await)?.receipt.unwrap())
}

/// A client, and a check whether the broker reports SERVING.
async fn connect(broker: &Broker, disk: &SmallDisk) -> (Client, impl AsyncFnMut() -> bool) {
    let (server, ca) = (broker.address.clone(), disk.path.join("data/tls/ca.pem"));
    let pem = std::fs::read(&ca).unwrap();
    let client = Client::connect(&Options { server, ca: Some(ca), ..Default::default() }).await.unwrap();
    let tls = tonic::transport::ClientTlsConfig::new().ca_certificate(tonic::transport::Certificate::from_pem(pem));
    let endpoint = tonic::transport::Endpoint::from_shared(format!("https://{}", broker.address)).unwrap();
    let mut health = HealthClient::new(endpoint.tls_config(tls).unwrap().connect().await.unwrap());
    let serves = async move || {
        let answer = health.check(HealthCheckRequest::default()).await.unwrap().into_inner();
        answer.status() == ServingStatus::Serving
    };
    (client, serves)
}

/// The answer to a probe by HTTP.
async fn probe(broker: &Broker, disk: &SmallDisk, path: &str) -> (u16, String) {
    let ca = disk.path.join("data/tls/ca.pem");
    let mut stream = raw::tls_trusting(broker, &ca, &["http/1.1"]).await.unwrap();
    let text = format!("GET {path} HTTP/1.1\r\nhost: {}\r\n\r\n", broker.address);
    stream.write_all(text.as_bytes()).await.unwrap();
    let answer = raw::answer(&mut stream).await.expect("an answer");
    (answer.status, answer.body)
}

async fn register(client: &Client, names: &[&str]) {
    for name in names {
        let request = v1::RegisterAgentRequest { card: Some(card(name, "")), ..Default::default() };
        client.agents().register_agent(request).await.unwrap();
    }
}

/// The wanted messages that the agent's mailbox contains.
async fn received(client: &Client, agent: &str, wanted: &BTreeSet<String>) -> BTreeSet<String> {
    let token = client.prove(&identity(agent)).await.unwrap();
    let agent = client.with_token(&token).unwrap();
    let request = v1::ReceiveRequest { max_outstanding: 4096, ..Default::default() };
    let mut deliveries = agent.answer(agent.messages().receive(request).await).unwrap();
    let mut found = BTreeSet::new();
    while !found.is_superset(wanted) {
        let next = tokio::time::timeout(PATIENCE, tokio_stream::StreamExt::next(&mut deliveries)).await;
        let Ok(Some(delivery)) = next else { break };
        let envelope = delivery.unwrap().delivery.unwrap().envelope;
        found.insert(<v1::Envelope as prost::Message>::decode(envelope).unwrap().message_id);
    }
    found
}

#[tokio::test]
async fn a_full_disk_is_refusals_and_then_recovery_without_a_restart() {
    let Some((broker, disk)) = SmallDisk::start_broker("400m") else { return };
    let (client, mut serves) = connect(&broker, &disk).await;
    let metrics = metrics::address_of(&broker);
    let is_writable = || metrics::sum(&metrics::figures(&metrics), "baton_store_writable", "");
    assert!((is_writable() - 1.0).abs() < f64::EPSILON);
    register(&client, &["a", "b"]).await;
    let mut promised = Vec::new();
    let before = message("before");
    promised.push((before.clone(), send(&client, &before).await.unwrap()));

    fill(&disk.path.join("filler"));
    // The last page of the log may have room for a few more messages.
    let text = "x".repeat(60_000);
    let meanwhile = loop {
        let envelope = message(&text);
        match send(&client, &envelope).await {
            Ok(receipt) => promised.push((envelope, receipt)),
            Err(error) => {
                assert_eq!(error.reason(), Some("STORE_UNAVAILABLE"), "{error}");
                break envelope;
            }
        }
        assert!(promised.len() < 1000, "a full disk refuses");
    };
    // The broker retries every second, and must not report SERVING before a retry succeeds.
    eventually("health checks hear of it", async || !serves().await).await;
    for _ in 0..30 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let refused = send(&client, &message(&text)).await.map(drop).unwrap_err();
        assert_eq!(refused.reason(), Some("STORE_UNAVAILABLE"), "{refused}");
        assert!(!serves().await, "no retry succeeds");
    }
    assert_eq!(probe(&broker, &disk, "/healthz").await, (200, "alive\n".to_owned()));
    assert_eq!(probe(&broker, &disk, "/readyz").await, (503, "the store cannot be written\n".to_owned()));
    let (code, said, stderr) = asked(baton().args(["health", "--data"]).arg(disk.path.join("data")));
    assert_eq!((code, said.as_str()), (Some(1), "unavailable\n"), "{stderr}");
    assert!(stderr.contains("the store cannot be written"), "{stderr}");
    let token = std::fs::read_to_string(disk.path.join("data/operator.token")).unwrap();
    let mut command = baton();
    command.args(["status", "--server", &broker.address, "--token", token.trim(), "--ca"]);
    let (seen, _) = shown(command.arg(disk.path.join("data/tls/ca.pem")), 1);
    assert_eq!((&seen["health"], &seen["reason"]), (&"unavailable".into(), &"the store cannot be written".into()));
    assert_eq!(seen["caller"], "operator operator.token", "{seen}");
    assert!(is_writable().abs() < f64::EPSILON, "the figure of the alert");
    // Reads work while the disk is full.
    client.agents().get_agent(v1::GetAgentRequest { agent_id: "a".into() }).await.unwrap();

    std::fs::remove_file(disk.path.join("filler")).unwrap();
    let mut receipt = None;
    let goes_on = async || {
        receipt = send(&client, &meanwhile).await.ok();
        receipt.is_some()
    };
    eventually("with room again the broker goes on by itself", goes_on).await;
    promised.push((meanwhile, receipt.unwrap()));
    eventually("health checks hear of that too", serves).await;
    assert_eq!(probe(&broker, &disk, "/readyz").await, (200, "ready\n".to_owned()));
    assert!((is_writable() - 1.0).abs() < f64::EPSILON);
    let after = message("after");
    promised.push((after.clone(), send(&client, &after).await.unwrap()));

    for (envelope, receipt) in &promised {
        assert_eq!(send(&client, envelope).await.unwrap(), *receipt, "the first receipt comes again");
    }
    let wanted: BTreeSet<_> = promised.iter().map(|(_, receipt)| receipt.message_id.clone()).collect();
    let found = received(&client, "b", &wanted).await;
    assert_eq!(wanted.difference(&found).collect::<Vec<_>>(), Vec::<&String>::new(), "lost");
}

#[tokio::test]
async fn a_blob_that_a_full_disk_cuts_off_is_continued_when_there_is_room_again() {
    const MIB: usize = 1024 * 1024;
    let Some((broker, disk)) = SmallDisk::start_broker("400m") else { return };
    let (client, _) = connect(&broker, &disk).await;
    register(&client, &["a", "b"]).await;
    let a = Agent::connect(&client, identity("a"), 100, Arc::new(SystemClock), Arc::new(SystemIds)).await.unwrap();
    let task = new_task();
    a.request("b", &task, 1, &a_request()).await.unwrap();
    let workspace = WorkspaceId::parse(&format!("task:{task}")).unwrap();
    let bytes: Vec<u8> = (0..8 * MIB).map(|at| u8::try_from(at * 7 % 251).unwrap()).collect();
    let named: [u8; 32] = Sha256::digest(&bytes).into();
    let elsewhere = tempfile::tempdir().unwrap();
    let file = elsewhere.path().join("crash.core");
    std::fs::write(&file, &bytes).unwrap();

    let part = |at: usize, end: usize| {
        let data = bytes::Bytes::copy_from_slice(&bytes[at..end]);
        v1::WriteBlobRequest { write_offset: at as u64, data, ..Default::default() }
    };
    let begin = v1::WriteBlobRequest {
        blob: Some(v1::Blob { sha256: named.to_vec().into(), size_bytes: bytes.len() as u64, ..Default::default() }),
        workspace_id: workspace.to_string(),
        ..Default::default()
    };
    let (parts, receiver) = mpsc::channel(4);
    let writer = a.client.clone();
    let writing =
        tokio::spawn(async move { writer.answer(writer.blobs().write_blob(ReceiverStream::new(receiver)).await) });
    parts.send(begin).await.unwrap();
    for at in (0..3 * MIB).step_by(MIB) {
        parts.send(part(at, at + MIB)).await.unwrap();
    }
    // One byte more, so that the third MiB is known to be synced.
    parts.send(part(3 * MIB, 3 * MIB + 1)).await.unwrap();
    let asked = v1::GetBlobWriteRequest { sha256: named.to_vec().into() };
    let written = async || {
        let answer = a.client.answer(a.client.blobs().get_blob_write(asked.clone()).await);
        answer.map(|answer| answer.committed_bytes).unwrap_or_default()
    };
    eventually("3 MiB are stored", async || written().await == 3 * MIB as u64).await;

    fill(&disk.path.join("filler"));
    parts.send(part(3 * MIB + 1, 4 * MIB)).await.unwrap();
    let refused = writing.await.unwrap().unwrap_err();
    assert_eq!(refused.reason(), Some("STORE_UNAVAILABLE"), "{refused}");
    let refused = a.client.put_blob(&file, "application/x-core", &workspace, &|_, _| {}).await.unwrap_err();
    assert_eq!(refused.reason(), Some("STORE_UNAVAILABLE"), "{refused}");
    assert_eq!(written().await, 3 * MIB as u64, "what is proven stays");

    std::fs::remove_file(disk.path.join("filler")).unwrap();
    let begun_at = std::sync::Mutex::new(BTreeSet::new());
    let note = |done, _all| {
        begun_at.lock().unwrap().insert(done);
    };
    // The broker opens its store again, once a second.
    let is_put = async || a.client.put_blob(&file, "application/x-core", &workspace, &note).await.is_ok();
    eventually("the upload continues", is_put).await;
    assert_eq!(begun_at.lock().unwrap().first(), Some(&(3 * MIB as u64)), "the first 3 MiB are not sent again");
    let copy = elsewhere.path().join("copy");
    a.client.get_blob_to(&named, &copy, &|_, _| {}).await.unwrap();
    assert!(std::fs::read(&copy).unwrap() == bytes);
}

#[tokio::test]
async fn a_broker_that_finds_its_store_damaged_when_it_opens_it_again_stops_and_says_so() {
    use std::os::unix::fs::FileExt as _;
    let Some((broker, disk)) = SmallDisk::start_broker("400m") else { return };
    let (client, _) = connect(&broker, &disk).await;
    register(&client, &["a", "b"]).await;
    fill(&disk.path.join("filler"));
    while send(&client, &message(&"x".repeat(60_000))).await.is_ok() {}
    // Another file of the log may have been begun when the disk was full, and has no room for the bytes.
    for segment in segments(&disk.path.join("data")) {
        let log = std::fs::File::options().write(true).open(segment).unwrap();
        log.write_all_at(&[0xff; 16], 8192 + 300).unwrap(); // after the log's headers
    }
    std::fs::remove_file(disk.path.join("filler")).unwrap();
    let stopped = tokio::task::spawn_blocking(move || broker.wait()).await.unwrap();
    assert_eq!(stopped.code(), Some(6));
}

#[test]
fn a_backup_to_a_full_disk_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let (data, small) = (folder.path().join("data"), folder.path().join("small"));
    std::fs::create_dir(&small).unwrap();
    let broker = Broker::start();
    let copied = crate::broker::exit_of(baton().args(["backup", "--data"]).arg(broker.data()).arg("--out").arg(&data));
    assert_eq!(copied.0, Some(0), "{}", copied.1);
    std::fs::write(data.join("large"), vec![7; 4_000_000]).unwrap();
    let mut command = Command::new("unshare");
    let script = "mount -t tmpfs -o size=2m tmpfs \"$0\" && exec \"$@\"";
    command.args(["-rm", "sh", "-c", script]).arg(&small).arg(baton().get_program());
    command.args(["backup", "--data"]).arg(&data).arg("--out").arg(small.join("copy"));
    let (code, stderr) = crate::broker::exit_of(&mut command);
    if stderr.contains("unshare") || stderr.contains("mount:") {
        println!("skipped: this user may not mount a small disk: {stderr}");
        return;
    }
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("DISK_FULL") && stderr.contains("make room"), "{stderr}");
}

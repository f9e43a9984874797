//! A broker whose disk is full refuses, says so to health checks, and goes on by itself when there is room again.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use baton::{
    client::{About, Client, ClientError, Options},
    proto::v1::{self, MessageType},
};
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient};

use crate::broker::{Broker, baton, card, composer};

/// A small disk of its own. `None` where this user may not mount one.
struct SmallDisk {
    path: PathBuf,
    /// Where it is mounted; goes after it.
    _folder: tempfile::TempDir,
}

impl SmallDisk {
    fn mount(size: &str) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]).arg(folder.path());
        let mounted = mount.output().is_ok_and(|output| output.status.success());
        mounted.then(|| Self { path: folder.path().to_owned(), _folder: folder })
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("--lazy").arg(&self.path).status());
    }
}

/// Fills the disk to the last byte.
fn fill(path: &Path) {
    use std::io::Write as _;
    let mut file = std::fs::File::create(path).unwrap();
    while file.write(&[1; 64 * 1024]).is_ok_and(|written| written > 0) {}
}

async fn send(client: &Client, text: &str) -> Result<v1::Receipt, ClientError> {
    let info = v1::Info { text: text.to_owned(), ..Default::default() };
    let envelope = composer("a").encode("b", MessageType::Info, &About::default(), &info);
    send_bytes(client, envelope).await
}

async fn send_bytes(client: &Client, envelope: bytes::Bytes) -> Result<v1::Receipt, ClientError> {
    let request = v1::SendRequest { envelope };
    Ok(client.answer(client.messages().send(request).await)?.receipt.unwrap())
}

#[tokio::test]
async fn a_full_disk_is_refusals_and_then_recovery_without_a_restart() {
    let Some(disk) = SmallDisk::mount("400m") else {
        println!("skipped: this user may not mount a small disk");
        return;
    };
    let data = disk.path.join("data");
    let mut command = baton();
    command.args(["dev", "--port", "0", "--data"]).arg(&data);
    let broker = Broker::spawn(command, std::sync::Arc::new(tempfile::tempdir().unwrap()));
    let options =
        Options { server: broker.address.clone(), ca: Some(data.join("tls/ca.pem")), token: None, certificate: None };
    let client = Client::connect(&options).await.unwrap();
    for name in ["a", "b"] {
        let request = v1::RegisterAgentRequest { card: Some(card(name, "")), ..Default::default() };
        client.agents().register_agent(request).await.unwrap();
    }
    let pem = std::fs::read(data.join("tls/ca.pem")).unwrap();
    let tls = tonic::transport::ClientTlsConfig::new().ca_certificate(tonic::transport::Certificate::from_pem(pem));
    let endpoint = tonic::transport::Endpoint::from_shared(format!("https://{}", broker.address)).unwrap();
    let mut health = HealthClient::new(endpoint.tls_config(tls).unwrap().connect().await.unwrap());
    let mut serving = async || health.check(HealthCheckRequest::default()).await.unwrap().into_inner().status();

    let mut promised = vec![send(&client, "before").await.unwrap().message_id];
    fill(&disk.path.join("filler"));
    // Trying to go on may give back room for a few more; then it is full again.
    let text = "x".repeat(60_000);
    let (mut meanwhile, mut said_so) = (None, false);
    for _ in 0..20_000 {
        let info = v1::Info { text: text.clone(), ..Default::default() };
        let envelope = composer("a").encode("b", MessageType::Info, &About::default(), &info);
        match send_bytes(&client, envelope.clone()).await {
            Ok(receipt) => promised.push(receipt.message_id),
            Err(error) => {
                assert_eq!(error.reason(), Some("STORE_UNAVAILABLE"), "{error}");
                meanwhile = Some(envelope);
                said_so |= serving().await == ServingStatus::NotServing;
                if said_so {
                    break;
                }
            }
        }
    }
    let meanwhile = meanwhile.expect("a full disk refuses");
    assert!(said_so, "health checks hear of it");

    std::fs::remove_file(disk.path.join("filler")).unwrap();
    let mut again = send_bytes(&client, meanwhile.clone()).await;
    for _ in 0..100 {
        if again.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(200)).await; // it tries once a second
        again = send_bytes(&client, meanwhile.clone()).await;
    }
    promised.push(again.expect("with room again it goes on by itself").message_id);
    assert_eq!(serving().await, ServingStatus::Serving);
    promised.push(send(&client, "after").await.unwrap().message_id);

    let token = client.prove(&crate::broker::identity("b")).await.unwrap();
    let b = client.with_token(&token).unwrap();
    let request = v1::ReceiveRequest { max_outstanding: 4096, max_deliveries: u32::try_from(promised.len()).unwrap() };
    let mut deliveries = b.answer(b.messages().receive(request).await).unwrap();
    let mut delivered = std::collections::BTreeSet::new();
    while let Some(delivery) = tokio_stream::StreamExt::next(&mut deliveries).await {
        let envelope = delivery.unwrap().delivery.unwrap().envelope;
        delivered.insert(<v1::Envelope as prost::Message>::decode(envelope).unwrap().message_id);
    }
    let lost: Vec<_> = promised.iter().filter(|id| !delivered.contains(*id)).collect();
    // A message that was refused may have been stored all the same, and then takes one of the places.
    let extra = delivered.len() - (promised.len() - lost.len());
    assert_eq!(lost.len(), extra, "lost: {lost:?}");
}

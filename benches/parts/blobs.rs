//! The cost of a write of a blob, beside a bare stream to a synced file. Both are over TLS, with the same client.

use std::{
    cell::Cell,
    io::Write as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use baton::{
    config::{Config, Development},
    ids::{AgentId, KeyId, SystemIds},
    proto::v1::{
        self,
        blob_service_server::{BlobService, BlobServiceServer},
    },
    server::{self, Ready, development_ca::DevelopmentCa},
    time::{Clock as _, SystemClock},
};
use baton_client::{Client, Identity, Options, session::Agent};
use bytes::Bytes;
use sha2::{Digest as _, Sha256};
use tokio::{net::TcpListener, runtime::Runtime, sync::oneshot};
use tokio_stream::{Empty, StreamExt as _};
use tokio_util::sync::CancellationToken;
use tonic::{
    Request, Response, Status, Streaming,
    transport::{Identity as Certificate, Server, ServerTlsConfig, server::TcpIncoming},
};

use super::{
    Part,
    room::{ALICE, BOB, private_key},
};

const MIB: usize = 1024 * 1024;
/// The bytes of one message, as the client sends them.
const PART_BYTES: usize = 256 * 1024;
const TASK: &str = "task-0";

pub(crate) fn parts() -> Vec<Part> {
    let (mut blobs, mut streams) = (None, None);
    vec![
        Part::many("blob/32-mib-write", MIBS, move || blobs.get_or_insert_with(Side::broker).write()),
        Part::many("blob/32-mib-bare-stream", MIBS, move || streams.get_or_insert_with(Side::bare).write()),
    ]
}

const MIBS: u64 = 32;

/// A server and its client.
struct Side {
    client: Client,
    /// The messages of all blobs but for the last, and their digest so far.
    parts: Vec<Bytes>,
    digest: Sha256,
    written: Cell<u64>,
    // Dropped before the folder: the server writes to it.
    runtime: Runtime,
    _folder: tempfile::TempDir,
}

impl Side {
    fn new(begin: impl AsyncFnOnce(&Path) -> Client) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let runtime = Runtime::new().expect("a runtime");
        let client = runtime.block_on(begin(folder.path()));
        let byte = |at: usize| u8::try_from(at * 7 % 251).expect("it is small");
        let content: Bytes = (0..MIBS as usize * MIB - PART_BYTES).map(byte).collect();
        let parts = (0..content.len()).step_by(PART_BYTES).map(|at| content.slice(at..at + PART_BYTES)).collect();
        let digest = Sha256::new_with_prefix(&content);
        Self { client, parts, digest, written: Cell::new(0), runtime, _folder: folder }
    }

    /// A broker, and a client of an agent that owns a task.
    fn broker() -> Self {
        Self::new(async |folder| {
            let data = folder.join("data");
            let listen = "127.0.0.1:0".parse().expect("an address");
            let mut config = Config::development(Development::new(listen, data)).expect("it is valid");
            config.settings.blobs.agent_bytes_max = u64::MAX;
            let (ready, address) = oneshot::channel();
            let ready = move |state: Ready| assert!(ready.send(state).is_ok(), "the bench waits");
            tokio::spawn(server::run(config, CancellationToken::new(), Arc::default(), Box::new(ready)));
            let state = address.await.expect("the broker starts");
            let client = connect(state.address.to_string(), state.ca.expect("its own CA")).await;
            for name in [ALICE, BOB] {
                let keys = vec![identity(name).agent_key()];
                let card = Some(v1::AgentCard { agent_id: name.to_owned(), keys, ..Default::default() });
                let request = v1::RegisterAgentRequest { card, ..Default::default() };
                client.agents().register_agent(request).await.expect("anyone may register");
            }
            let alice = Agent::connect(&client, identity(ALICE), 1, Arc::new(SystemClock), Arc::new(SystemIds));
            let alice = alice.await.expect("alice is registered");
            let request = v1::HandoffRequest { task_type: "report".to_owned(), ..Default::default() };
            alice.request(BOB, TASK, 1, &request).await.expect("the task is new");
            alice.client.clone()
        })
    }

    fn bare() -> Self {
        Self::new(async |folder| {
            let names = ["127.0.0.1".to_owned()];
            let ca = DevelopmentCa::load_or_create(&folder.join("tls"), SystemClock.now(), &names).expect("a CA");
            let read = |path: &Path| std::fs::read(path).expect("it is written");
            let certificate = Certificate::from_pem(read(&ca.server.certificate), read(&ca.server.key));
            let socket = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let address = socket.local_addr().expect("it is bound").to_string();
            let server =
                Server::builder().tls_config(ServerTlsConfig::new().identity(certificate)).expect("it is valid");
            let service = BlobServiceServer::new(Bare { folder: folder.to_owned() });
            let service = service.max_decoding_message_size(4 * MIB);
            let incoming = TcpIncoming::from(socket).with_nodelay(Some(true));
            tokio::spawn({ server }.add_service(service).serve_with_incoming(incoming));
            connect(address, ca.ca_certificate).await
        })
    }

    /// Writes a blob of new bytes.
    fn write(&self) {
        let number = self.written.get();
        self.written.set(number + 1);
        let mut last = vec![0; PART_BYTES];
        last[..8].copy_from_slice(&number.to_be_bytes());
        let sha256 = self.digest.clone().chain_update(&last).finalize();
        let blob = v1::Blob {
            sha256: Bytes::copy_from_slice(&sha256),
            size_bytes: MIBS * MIB as u64,
            media_type: "application/octet-stream".to_owned(),
            ..Default::default()
        };
        let first =
            v1::WriteBlobRequest { blob: Some(blob), workspace_id: format!("task:{TASK}"), ..Default::default() };
        let message = |(place, data)| v1::WriteBlobRequest {
            write_offset: (place * PART_BYTES) as u64,
            data,
            ..Default::default()
        };
        let parts = self.parts.iter().cloned().chain([Bytes::from(last)]).enumerate().map(message);
        let messages: Vec<_> = [first].into_iter().chain(parts).collect();
        let answer = self.runtime.block_on(self.client.blobs().write_blob(tokio_stream::iter(messages)));
        assert_eq!(answer.expect("it is written").into_inner().committed_bytes, MIBS * MIB as u64);
    }
}

async fn connect(server: String, ca: PathBuf) -> Client {
    Client::connect(&Options { server, ca: Some(ca), ..Options::default() }).await.expect("the server listens")
}

fn identity(name: &str) -> Identity {
    Identity {
        agent: AgentId::parse(name).expect("it is a name"),
        key_id: KeyId::parse("k1").expect("it is a name"),
        key: private_key(name),
    }
}

/// Writes each stream to a file, and syncs it once.
struct Bare {
    folder: PathBuf,
}

#[tonic::async_trait]
impl BlobService for Bare {
    type ReadBlobStream = Empty<Result<v1::ReadBlobResponse, Status>>;

    async fn write_blob(
        &self,
        request: Request<Streaming<v1::WriteBlobRequest>>,
    ) -> Result<Response<v1::WriteBlobResponse>, Status> {
        let mut messages = request.into_inner();
        let mut file = tempfile::NamedTempFile::new_in(&self.folder)?.keep().map_err(|error| error.error)?.0;
        let mut committed_bytes = 0;
        while let Some(message) = messages.next().await {
            let data = message?.data;
            committed_bytes += data.len() as u64;
            file = on_disk(move || file.write_all(&data).map(|()| file)).await?;
        }
        on_disk(move || file.sync_all()).await?;
        Ok(Response::new(v1::WriteBlobResponse { committed_bytes, blob: None }))
    }

    async fn get_blob_write(
        &self,
        _: Request<v1::GetBlobWriteRequest>,
    ) -> Result<Response<v1::GetBlobWriteResponse>, Status> {
        Err(missing())
    }

    async fn read_blob(&self, _: Request<v1::ReadBlobRequest>) -> Result<Response<Self::ReadBlobStream>, Status> {
        Err(missing())
    }

    async fn get_blob(&self, _: Request<v1::GetBlobRequest>) -> Result<Response<v1::GetBlobResponse>, Status> {
        Err(missing())
    }

    async fn find_missing_blobs(
        &self,
        _: Request<v1::FindMissingBlobsRequest>,
    ) -> Result<Response<v1::FindMissingBlobsResponse>, Status> {
        Err(missing())
    }

    async fn list_blobs(&self, _: Request<v1::ListBlobsRequest>) -> Result<Response<v1::ListBlobsResponse>, Status> {
        Err(missing())
    }

    async fn delete_blob(&self, _: Request<v1::DeleteBlobRequest>) -> Result<Response<v1::DeleteBlobResponse>, Status> {
        Err(missing())
    }
}

fn missing() -> Status {
    Status::unimplemented("the bare stream only writes")
}

/// Runs work with a file on a thread that may wait.
async fn on_disk<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> Result<T, std::io::Error> {
    tokio::task::spawn_blocking(work).await.expect("it does not panic")
}

//! Blobs in a bucket of a real server that is compatible with S3: versitygw, whose program `BATON_VERSITYGW` names.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use baton::{ids::WorkspaceId, proto::v1};
use baton_client::{ClientError, session::Agent};
use sha2::{Digest as _, Sha256};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::{
    broker::{Broker, a_request, baton, eventually, new_task},
    ports::HeldPort,
};

const MIB: usize = 1024 * 1024;
const SECRET: &str = "a-secret-that-no-log-may-have";
/// The environment of a program that uses the bucket.
pub(crate) const CREDENTIALS: [(&str, &str); 2] = [("AWS_ACCESS_KEY_ID", "broker"), ("AWS_SECRET_ACCESS_KEY", SECRET)];

/// A server with one bucket, `blobs`. Dropping it kills the process.
pub(crate) struct Server {
    child: Child,
    program: PathBuf,
    port: HeldPort,
    root: PathBuf,
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Server {
    /// `None`, with a printed word, where the program is not there.
    pub(crate) async fn start(folder: &Path) -> Option<Self> {
        let Some(program) = std::env::var_os("BATON_VERSITYGW").map(PathBuf::from) else {
            println!("skipped: BATON_VERSITYGW does not name the program versitygw");
            return None;
        };
        let root = folder.join("objects");
        std::fs::create_dir_all(root.join("blobs")).unwrap();
        let port = HeldPort::new();
        let child = Self::spawn(&program, &port, &root);
        let server = Self { child, program, port, root };
        server.answers().await;
        Some(server)
    }

    fn spawn(program: &Path, port: &HeldPort, root: &Path) -> Child {
        let mut command = Command::new(program);
        command.args(["--access", "broker", "--secret", SECRET, "--port", &port.address(), "posix"]);
        command.arg(root).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    async fn answers(&self) {
        let address = ("127.0.0.1", self.port.number);
        eventually("the server answers", async || tokio::net::TcpStream::connect(address).await.is_ok()).await;
    }

    fn stop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    async fn start_again(&mut self) {
        self.child = Self::spawn(&self.program, &self.port, &self.root);
        self.answers().await;
    }

    fn object(&self, blob: &[u8; 32]) -> PathBuf {
        let name = blob.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        self.root.join("blobs/one").join(&name[..2]).join(name)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port.number
    }

    /// The address of the server, for a broker.
    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.port.address())
    }

    /// The folder in which the server keeps the objects of its bucket, by their names.
    pub(crate) fn bucket(&self) -> PathBuf {
        self.root.join("blobs")
    }

    pub(crate) fn broker(&self, folder: Arc<tempfile::TempDir>) -> Broker {
        let mut command = baton();
        command.args(["serve", "--config"]).arg(folder.path().join("baton.toml"));
        command.envs(CREDENTIALS);
        Broker::spawn(command, folder)
    }

    /// The folder of a broker whose blobs go to the bucket, by the server at this port.
    pub(crate) fn configured(port: u16) -> Arc<tempfile::TempDir> {
        let first = Broker::start();
        let (tls, folder) = (first.data().join("tls"), first.kill());
        let (data, certificate, key) = (folder.path().join("data"), tls.join("server.pem"), tls.join("server.key"));
        let text = format!(
            "listen = \"127.0.0.1:0\"\ndata = {data:?}\nenrollment = \"open\"\n[tls]\ncertificate = {certificate:?}\n\
             key = {key:?}\n[blobs]\nurl = \"s3://blobs/one\"\nendpoint = \"http://127.0.0.1:{port}\"\nallow_http = true\n"
        );
        std::fs::write(folder.path().join("baton.toml"), text).unwrap();
        folder
    }
}

/// A server that accepts each write of an object, whatever its condition is, and that keeps none. Returns its port.
pub(crate) fn careless_server() -> u16 {
    use std::io::{Read as _, Write as _};

    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, mut request) = (stream.unwrap(), Vec::new());
            // The objects of the test are small: a request is whole with its head and the bytes that this states.
            let is_whole = |request: &[u8]| {
                let text = String::from_utf8_lossy(request).to_lowercase();
                let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
                let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
                body.len() >= length.map_or(0, |length| length.parse().unwrap())
            };
            let mut buffer = [0; 4096];
            while !is_whole(&request) {
                match stream.read(&mut buffer) {
                    Ok(read @ 1..) => request.extend_from_slice(&buffer[..read]),
                    Ok(0) | Err(_) => break,
                }
            }
            let (status, body) = match String::from_utf8_lossy(&request) {
                text if text.starts_with("PUT ") => ("200 OK", ""),
                text if text.starts_with("POST ") => ("200 OK", "<DeleteResult></DeleteResult>"),
                text if text.contains("list-type=2") => {
                    ("200 OK", "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>")
                }
                _ => ("404 Not Found", ""),
            };
            let length = body.len();
            let answer = format!(
                "HTTP/1.1 {status}\r\nETag: \"1\"\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
            );
            drop(stream.write_all(answer.as_bytes()));
        }
    });
    port
}

/// A way to the server that can be held: it passes on so many bytes of requests, and answers or none.
struct Gate {
    port: u16,
    room: Arc<AtomicU64>,
    passes_answers: Arc<AtomicBool>,
}

impl Gate {
    async fn to(server: u16) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (room, passes_answers) = (Arc::new(AtomicU64::new(u64::MAX)), Arc::new(AtomicBool::new(true)));
        let gate = Self { port, room: room.clone(), passes_answers: passes_answers.clone() };
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(pass(client, server, room.clone(), passes_answers.clone()));
            }
        });
        gate
    }

    fn set(&self, room: u64, passes_answers: bool) {
        self.room.store(room, Ordering::SeqCst);
        self.passes_answers.store(passes_answers, Ordering::SeqCst);
    }
}

/// Passes bytes between a client and the server until one of them leaves. Bytes for which there is no room are dropped.
async fn pass(mut client: TcpStream, server: u16, room: Arc<AtomicU64>, passes_answers: Arc<AtomicBool>) {
    let Ok(mut server) = TcpStream::connect(("127.0.0.1", server)).await else { return };
    let (mut request, mut answer) = (vec![0; 64 * 1024], vec![0; 64 * 1024]);
    loop {
        tokio::select! {
            read = client.read(&mut request) => {
                let Ok(read @ 1..) = read else { return };
                let free = room.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |room| {
                    Some(room.saturating_sub(read as u64))
                });
                let passed = usize::try_from(free.unwrap()).unwrap_or(usize::MAX).min(read);
                if server.write_all(&request[..passed]).await.is_err() {
                    return;
                }
            }
            read = server.read(&mut answer) => {
                let Ok(read @ 1..) = read else { return };
                if passes_answers.load(Ordering::SeqCst) && client.write_all(&answer[..read]).await.is_err() {
                    return;
                }
            }
        }
    }
}

async fn put(agent: &Agent, broker: &Broker, bytes: &[u8], workspace: &WorkspaceId) -> Result<v1::Blob, ClientError> {
    let file = broker.folder.path().join("content");
    std::fs::write(&file, bytes).unwrap();
    agent.client.put_blob(&file, "", workspace, &|_, _| {}).await
}

async fn read(agent: &Agent, blob: &[u8; 32], read_offset: u64, read_length: u64) -> Result<Vec<u8>, Option<String>> {
    let request = v1::ReadBlobRequest { sha256: blob.to_vec().into(), read_offset, read_length };
    let refused = |status: tonic::Status| status.code().to_string();
    let mut answers =
        agent.client.blobs().read_blob(request).await.map_err(|status| Some(refused(status)))?.into_inner();
    let mut found = Vec::new();
    while let Some(answer) = answers.message().await.map_err(|status| Some(refused(status)))? {
        found.extend_from_slice(&answer.data);
    }
    Ok(found)
}

#[tokio::test]
async fn blobs_in_a_bucket_survive_kills_outages_and_are_checked() {
    let outer = tempfile::tempdir().unwrap();
    let Some(mut server) = Server::start(outer.path()).await else { return };
    let folder = Server::configured(server.port.number);
    let broker = server.broker(folder);
    let (a, _b) = (broker.agent("a").await, broker.agent("b").await);
    let task = new_task();
    a.request("b", &task, 1, &a_request()).await.unwrap();
    let workspace = WorkspaceId::parse(&format!("task:{task}")).unwrap();

    // One request writes the first, and three parts the second.
    let contents: Vec<Vec<u8>> =
        [MIB + 3, 17 * MIB + 1].map(|size| (0..size).map(|at| u8::try_from(at * 7 % 251).unwrap()).collect()).into();
    let digests: Vec<[u8; 32]> = contents.iter().map(|bytes| Sha256::digest(bytes).into()).collect();
    for (bytes, named) in contents.iter().zip(&digests) {
        put(&a, &broker, bytes, &workspace).await.unwrap();
        assert!(std::fs::read(server.object(named)).unwrap() == *bytes, "the bytes are in the bucket");
    }

    let broker = server.broker(broker.kill());
    let a = broker.agent("a").await;
    for (bytes, named) in contents.iter().zip(&digests) {
        assert!(read(&a, named, 0, 0).await.unwrap() == *bytes);
        assert!(read(&a, named, MIB as u64 - 5, 8).await.unwrap() == bytes[MIB - 5..MIB + 3]);
    }

    // A broker starts without its bucket, refuses what needs it, and goes on where the upload ended.
    server.stop();
    let broker = server.broker(broker.kill());
    let a = broker.agent("a").await;
    let unavailable = tonic::Code::Unavailable.to_string();
    assert_eq!(read(&a, &digests[0], 0, 0).await, Err(Some(unavailable.clone())));
    let late: Vec<u8> = vec![9; 2 * MIB];
    let named: [u8; 32] = Sha256::digest(&late).into();
    let blob = v1::Blob { sha256: named.to_vec().into(), size_bytes: late.len() as u64, ..Default::default() };
    let messages = [
        v1::WriteBlobRequest { blob: Some(blob), workspace_id: workspace.to_string(), ..Default::default() },
        v1::WriteBlobRequest { data: late.clone().into(), ..Default::default() },
    ];
    let refused = a.client.blobs().write_blob(tokio_stream::iter(messages)).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unavailable);
    server.start_again().await;
    put(&a, &broker, &late, &workspace).await.unwrap();
    assert!(read(&a, &named, 0, 0).await.unwrap() == late);

    // An object that was changed or removed behind the broker's back is never given out whole.
    let mut damaged = contents[0].clone();
    damaged[0] ^= 1;
    std::fs::write(server.object(&digests[0]), damaged).unwrap();
    assert_eq!(read(&a, &digests[0], 0, 0).await, Err(Some(unavailable.clone())));
    std::fs::remove_file(server.object(&named)).unwrap();
    assert_eq!(read(&a, &named, 0, 0).await, Err(Some(unavailable)));
    assert!(!broker.log().contains(SECRET), "the log has no credentials");
}

#[tokio::test]
async fn a_put_that_kill_9_interrupts_leaves_no_object_and_can_be_repeated() {
    let outer = tempfile::tempdir().unwrap();
    let Some(server) = Server::start(outer.path()).await else { return };
    let gate = Gate::to(server.port.number).await;
    let mut broker = server.broker(Server::configured(gate.port));
    let (a, _b) = (broker.agent("a").await, broker.agent("b").await);
    let task = new_task();
    a.request("b", &task, 1, &a_request()).await.unwrap();
    let workspace = WorkspaceId::parse(&format!("task:{task}")).unwrap();

    // In the only request of an object, between two parts of one, and after the object is whole, before its answer.
    for (size, room, passes_answers) in
        [(MIB + 3, MIB as u64 / 2, true), (17 * MIB + 1, 12 * MIB as u64, true), (MIB + 5, u64::MAX, false)]
    {
        let bytes: Vec<u8> = (0..size).map(|at| u8::try_from((at * 7 + size) % 251).unwrap()).collect();
        let named: [u8; 32] = Sha256::digest(&bytes).into();
        let object = server.object(&named);
        let mark = broker.data().join("blobs/bucket").join(object.file_name().unwrap());
        let a = broker.agent("a").await;
        gate.set(room, passes_answers);
        let file = broker.folder.path().join("cut");
        std::fs::write(&file, &bytes).unwrap();
        let (client, of_task) = (a.client.clone(), workspace.clone());
        let cut = tokio::spawn(async move { client.put_blob(&file, "", &of_task, &|_, _| {}).await });
        let is_whole = || std::fs::read(&object).is_ok_and(|found| found == bytes);
        eventually("the put is under way", async || gate.room.load(Ordering::SeqCst) == 0 || is_whole()).await;
        assert!(mark.exists(), "the next start looks for the object");
        let folder = broker.kill();
        cut.await.unwrap().unwrap_err();
        gate.set(u64::MAX, true);
        assert_eq!(object.exists(), !passes_answers, "an object is there whole, or not at all");

        broker = server.broker(folder);
        let a = broker.agent("a").await;
        let unknown = tonic::Code::NotFound.to_string();
        assert_eq!(read(&a, &named, 0, 0).await, Err(Some(unknown)), "no record names the object");
        eventually("the start has taken the object back", async || !object.exists() && !mark.exists()).await;
        put(&a, &broker, &bytes, &workspace).await.unwrap();
        assert!(is_whole() && read(&a, &named, 0, 0).await.unwrap() == bytes);
    }
}

#[cfg(not(feature = "s3"))]
#[test]
fn a_build_without_s3_refuses_a_bucket_and_changes_nothing() {
    let folder = Broker::serve("", "").kill();
    let file = folder.path().join("baton.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, format!("{text}\n[blobs]\nurl = \"s3://blobs/one\"\n")).unwrap();
    let (code, message) = crate::broker::exit_of(baton().args(["serve", "--config"]).arg(&file));
    assert!(code == Some(3) && message.contains("the feature s3"), "{code:?} {message}");
    std::fs::write(&file, text).unwrap();
    drop(Broker::serve_again(folder));
}

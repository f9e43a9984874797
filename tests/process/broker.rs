//! A broker process on a free port, and agents that talk to it.

use std::{
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::Arc,
    time::Duration,
};

use baton::{
    client::{Agent, Client, Composer, Identity, Options},
    envelope::keys::PrivateKey,
    ids::{AgentId, IdSource as _, KeyId, SystemIds},
    proto::v1,
    time::SystemClock,
};
use serde_json::Value;

/// How long a broker may take to stop. It gives its connections 10 s.
const STOP_MAX: Duration = Duration::from_secs(20);

/// The `baton` command, in a folder without a `baton-data`: what runs in the checkout is none of a test's business.
pub fn baton() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_baton"));
    command.current_dir(env!("CARGO_TARGET_TMPDIR"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("BATON_")) {
        command.env_remove(name);
    }
    command
}

/// A broker process. Killed when it is dropped.
pub struct Broker {
    child: Child,
    pub address: String,
    pub folder: Arc<tempfile::TempDir>,
}

impl Broker {
    /// A broker for development in a folder of its own.
    pub fn start() -> Self {
        Self::start_in(Arc::new(tempfile::tempdir().unwrap()), &[])
    }

    pub fn start_in(folder: Arc<tempfile::TempDir>, options: &[&str]) -> Self {
        let mut command = baton();
        command.args(["dev", "--port", "0", "--data"]).arg(folder.path().join("data")).args(options);
        Self::spawn(command, folder)
    }

    /// A broker with a configuration: `top` before the tables, `more` after them.
    pub fn serve(top: &str, more: &str) -> Self {
        let first = Self::start();
        let (tls, folder) = (first.data().join("tls"), first.kill());
        let (data, certificate, key) = (folder.path().join("data"), tls.join("server.pem"), tls.join("server.key"));
        let text = format!(
            "listen = \"127.0.0.1:0\"\ndata = {data:?}\n{top}\n[tls]\ncertificate = {certificate:?}\nkey = {key:?}\n{more}"
        );
        write(&folder.path().join("baton.toml"), &text);
        Self::serve_again(folder)
    }

    /// The same, after its end.
    pub fn serve_again(folder: Arc<tempfile::TempDir>) -> Self {
        let mut command = baton();
        command.args(["serve", "--config"]).arg(folder.path().join("baton.toml"));
        Self::spawn(command, folder)
    }

    /// Starts the command and waits until it says that it is ready.
    pub fn spawn(mut command: Command, folder: Arc<tempfile::TempDir>) -> Self {
        let log = std::fs::File::create(folder.path().join("log")).unwrap();
        let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let first = lines.next().expect("a broker that starts says so").unwrap();
        let address = first.strip_prefix("baton is ready on ").and_then(|rest| rest.split(' ').next());
        let address = address.unwrap_or_else(|| panic!("not ready: {first}")).to_owned();
        Self { child, address, folder }
    }

    /// What it has logged so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    pub fn ca(&self) -> PathBuf {
        self.data().join("tls/ca.pem")
    }

    /// kill -9, and the folder it leaves.
    pub fn kill(mut self) -> Arc<tempfile::TempDir> {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.folder.clone()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// SIGTERM.
    pub fn ask_to_stop(&self) {
        let pid = self.pid().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    }

    pub fn wait(mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    /// SIGTERM, and it must end in order and in time.
    pub async fn stop(self) {
        self.ask_to_stop();
        self.ends_in_order().await;
    }

    /// It was asked to stop: the exit code is 0, in time.
    pub async fn ends_in_order(self) {
        let ended = tokio::task::spawn_blocking(|| self.wait());
        let ended = tokio::time::timeout(STOP_MAX, ended).await;
        let ended = ended.unwrap_or_else(|_| panic!("the broker has not ended within {STOP_MAX:?}"));
        assert_eq!(ended.unwrap().code(), Some(0));
    }

    /// A bare connection, for services that are not ours and for frames that our client would not send.
    pub async fn channel(&self) -> tonic::transport::Channel {
        let pem = std::fs::read(self.ca()).unwrap();
        let tls = tonic::transport::ClientTlsConfig::new().ca_certificate(tonic::transport::Certificate::from_pem(pem));
        let endpoint = tonic::transport::Endpoint::from_shared(format!("https://{}", self.address)).unwrap();
        endpoint.tls_config(tls).unwrap().connect().await.unwrap()
    }

    pub async fn client(&self) -> Client {
        self.client_with(None).await
    }

    /// The operator that the folder's token is of.
    pub fn operator_token(&self) -> String {
        std::fs::read_to_string(self.data().join("operator.token")).unwrap().trim().to_owned()
    }

    pub async fn operator(&self) -> Client {
        self.client_with(Some(self.operator_token())).await
    }

    /// As this agent, which is registered.
    pub async fn client_of(&self, name: &str) -> Client {
        let client = self.client().await;
        client.with_token(&client.prove(&identity(name)).await.unwrap()).unwrap()
    }

    /// SIGHUP.
    pub fn hang_up(&self) {
        let pid = self.pid().to_string();
        assert!(Command::new("kill").args(["-HUP", &pid]).status().unwrap().success());
    }

    /// A command of an operator.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = baton();
        command.args(arguments).args(["--server", &self.address, "--token", &self.operator_token(), "--ca"]);
        command.arg(self.ca());
        command
    }

    /// What it prints, a JSON document a line.
    pub fn lines(&self, arguments: &[&str]) -> Vec<Value> {
        let output = self.command(arguments).args(["--output", "jsonl"]).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    pub async fn client_with(&self, token: Option<String>) -> Client {
        let options = Options { server: self.address.clone(), ca: Some(self.ca()), token, certificate: None };
        Client::connect(&options).await.unwrap()
    }

    /// Registers an agent (again) and opens a session.
    pub async fn agent(&self, name: &str) -> Agent {
        self.agent_with(name, "", 100).await
    }

    pub async fn agent_with(&self, name: &str, agent_type: &str, credit: u32) -> Agent {
        let client = self.client().await;
        let card = card(name, agent_type);
        let registered =
            client.agents().register_agent(v1::RegisterAgentRequest { card: Some(card), ..Default::default() }).await;
        client.answer(registered).unwrap();
        Agent::connect(&client, identity(name), credit, Arc::new(SystemClock), Arc::new(SystemIds)).await.unwrap()
    }

    /// Opens a session of an agent that is registered.
    pub async fn agent_session(&self, name: &str) -> Agent {
        let client = self.client().await;
        Agent::connect(&client, identity(name), 100, Arc::new(SystemClock), Arc::new(SystemIds)).await.unwrap()
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The same name always has the same key.
pub fn identity(name: &str) -> Identity {
    let seed = baton::envelope::signing::sha256(&[name.as_bytes()]);
    Identity {
        agent: AgentId::parse(name).unwrap(),
        key_id: KeyId::parse("k1").unwrap(),
        key: PrivateKey::from_seed(&seed),
    }
}

pub fn card(name: &str, agent_type: &str) -> v1::AgentCard {
    let agent_types = if agent_type.is_empty() { vec![] } else { vec![agent_type.to_owned()] };
    v1::AgentCard { agent_id: name.into(), agent_types, keys: vec![identity(name).agent_key()], ..Default::default() }
}

pub fn composer(name: &str) -> Composer {
    Composer { identity: identity(name), clock: Arc::new(SystemClock), ids: Arc::new(SystemIds) }
}

/// A task id that nobody used before.
pub fn new_task() -> String {
    format!("task-{}", hex::encode(SystemIds.random()))
}

pub fn a_request() -> v1::HandoffRequest {
    v1::HandoffRequest { task_type: "support".into(), ..Default::default() }
}

/// Tries until it succeeds: the broker takes its time to see a change.
pub async fn eventually(what: &str, mut attempt: impl AsyncFnMut() -> bool) {
    for _ in 0..200 {
        if attempt().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{what}");
}

/// The exit code of a command, and what it said on stderr.
pub fn exit_of(command: &mut Command) -> (Option<i32>, String) {
    let output = command.stdin(Stdio::null()).output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

pub fn write(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
}

/// A file that only its owner can read, as keys must be.
pub fn write_private(path: &Path, text: &str) {
    use std::os::unix::fs::PermissionsExt as _;
    write(path, text);
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

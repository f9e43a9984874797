//! A broker process on a free port, and the agents that talk to it.

use std::{
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::Arc,
    time::Duration,
};

use baton::{
    envelope::keys::PrivateKey,
    ids::{AgentId, IdSource as _, KeyId, SystemIds},
    proto::v1,
    time::{Clock, SystemClock},
};
use baton_client::{Client, Composer, Identity, Link, LinkOptions, Options, Trust, session::Agent};
use serde_json::Value;

use crate::ports::HeldPort;

/// The time limit of a wait for something that must happen. It ends a test that hangs, and is far above what the slowest
/// machine needs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

/// The `baton` command in a folder without `baton-data`, so that a broker in the checkout does not affect the test.
pub(crate) fn baton() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_baton"));
    command.current_dir(env!("CARGO_TARGET_TMPDIR"));
    let ours = |name: &str| name.starts_with("BATON_") || name.starts_with("OTEL_");
    for (name, _) in std::env::vars_os().filter(|(name, _)| ours(&name.to_string_lossy())) {
        command.env_remove(name);
    }
    // Profiles of the user who runs the tests must not affect them.
    command.env("XDG_CONFIG_HOME", concat!(env!("CARGO_TARGET_TMPDIR"), "/no-profiles"));
    command
}

/// A broker process. Dropping it kills the process.
pub(crate) struct Broker {
    child: Child,
    pub address: String,
    pub folder: Arc<tempfile::TempDir>,
}

impl Broker {
    /// Starts a development broker in a new folder.
    pub(crate) fn start() -> Self {
        Self::start_in(Arc::new(tempfile::tempdir().unwrap()), &[])
    }

    pub(crate) fn start_in(folder: Arc<tempfile::TempDir>, options: &[&str]) -> Self {
        let mut command = baton();
        command.args(["dev", "--port", "0", "--data"]).arg(folder.path().join("data")).args(options);
        Self::spawn(command, folder)
    }

    /// Starts a development broker on this port, in a folder that may have the data of a broker before it.
    pub(crate) fn start_on(port: &HeldPort, folder: Arc<tempfile::TempDir>) -> Self {
        let mut command = baton();
        command.args(["dev", "--listen", &port.address(), "--data"]).arg(folder.path().join("data"));
        Self::spawn(command, folder)
    }

    /// Starts a broker with a configuration: `top` before the tables, `more` after them.
    pub(crate) fn serve(top: &str, more: &str) -> Self {
        Self::serve_at("127.0.0.1:0", top, more)
    }

    /// Starts a broker with an empty configuration on this port.
    pub(crate) fn serve_on(port: &HeldPort) -> Self {
        Self::serve_at(&port.address(), "", "")
    }

    fn serve_at(listen: &str, top: &str, more: &str) -> Self {
        let first = Self::start();
        let (tls, folder) = (first.data().join("tls"), first.kill());
        let (data, certificate, key) = (folder.path().join("data"), tls.join("server.pem"), tls.join("server.key"));
        let text = format!(
            "listen = {listen:?}\ndata = {data:?}\n{top}\n[tls]\ncertificate = {certificate:?}\nkey = {key:?}\n{more}"
        );
        write(&folder.path().join("baton.toml"), &text);
        Self::serve_again(folder)
    }

    /// Restarts the broker in this folder with its configuration.
    pub(crate) fn serve_again(folder: Arc<tempfile::TempDir>) -> Self {
        let mut command = baton();
        command.args(["serve", "--config"]).arg(folder.path().join("baton.toml"));
        Self::spawn(command, folder)
    }

    /// Starts the command and waits until the broker reports that it is ready.
    pub(crate) fn spawn(mut command: Command, folder: Arc<tempfile::TempDir>) -> Self {
        let log = std::fs::File::create(folder.path().join("log")).unwrap();
        let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let first = lines.next().expect("a broker that starts says so").unwrap();
        let address = first.strip_prefix("baton is ready on ").and_then(|rest| rest.split(' ').next());
        let address = address.unwrap_or_else(|| panic!("not ready: {first}")).to_owned();
        Self { child, address, folder }
    }

    /// The log so far.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    pub(crate) fn ca(&self) -> PathBuf {
        self.data().join("tls/ca.pem")
    }

    /// Kills the process with SIGKILL. Returns the folder.
    pub(crate) fn kill(mut self) -> Arc<tempfile::TempDir> {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.folder.clone()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends SIGTERM.
    pub(crate) fn ask_to_stop(&self) {
        let pid = self.pid().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    }

    pub(crate) fn wait(mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    /// Sends SIGTERM, and expects an orderly end.
    pub(crate) async fn stop(self) {
        self.ask_to_stop();
        self.ends_in_order().await;
    }

    /// After a request to stop: expects exit code 0.
    pub(crate) async fn ends_in_order(self) {
        let ended = tokio::task::spawn_blocking(|| self.wait());
        let ended = tokio::time::timeout(PATIENCE, ended).await;
        let ended = ended.unwrap_or_else(|_| panic!("the broker has not ended within {PATIENCE:?}"));
        assert_eq!(ended.unwrap().code(), Some(0));
    }

    /// A bare connection, for foreign services and for frames that the client library refuses to send.
    pub(crate) async fn channel(&self) -> tonic::transport::Channel {
        let pem = std::fs::read(self.ca()).unwrap();
        let tls = tonic::transport::ClientTlsConfig::new().ca_certificate(tonic::transport::Certificate::from_pem(pem));
        let endpoint = tonic::transport::Endpoint::from_shared(format!("https://{}", self.address)).unwrap();
        endpoint.tls_config(tls).unwrap().connect().await.unwrap()
    }

    pub(crate) async fn client(&self) -> Client {
        self.client_with(None).await
    }

    /// The operator token of the folder.
    pub(crate) fn operator_token(&self) -> String {
        std::fs::read_to_string(self.data().join("operator.token")).unwrap().trim().to_owned()
    }

    pub(crate) async fn operator(&self) -> Client {
        self.client_with(Some(self.operator_token())).await
    }

    /// A client with the token of this registered agent.
    pub(crate) async fn client_of(&self, name: &str) -> Client {
        let client = self.client().await;
        client.with_token(&client.prove(&identity(name)).await.unwrap()).unwrap()
    }

    /// Sends SIGHUP.
    pub(crate) fn hang_up(&self) {
        let pid = self.pid().to_string();
        assert!(Command::new("kill").args(["-HUP", &pid]).status().unwrap().success());
    }

    /// A command with the operator's credentials.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = baton();
        command.args(arguments).args(["--server", &self.address, "--token", &self.operator_token(), "--ca"]);
        command.arg(self.ca());
        command
    }

    /// Runs the command and parses its output, one JSON document a line.
    pub(crate) fn lines(&self, arguments: &[&str]) -> Vec<Value> {
        let output = self.command(arguments).args(["--output", "jsonl"]).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    pub(crate) async fn client_with(&self, token: Option<String>) -> Client {
        let options = Options { server: self.address.clone(), ca: Some(self.ca()), token, ..Default::default() };
        Client::connect(&options).await.unwrap()
    }

    /// Registers an agent if it is new, and opens a session.
    pub(crate) async fn agent(&self, name: &str) -> Agent {
        self.agent_with(name, "", 100).await
    }

    /// The connection of an agent of the Rust client. It serves its mail once the test asks it to.
    pub(crate) async fn link(&self, name: &str) -> Link {
        self.link_at(name, Arc::new(SystemClock)).await
    }

    /// The same with this clock.
    pub(crate) async fn link_at(&self, name: &str, clock: Arc<dyn Clock>) -> Link {
        self.link_by(name, self.address.clone(), clock).await
    }

    /// The same through this address.
    pub(crate) async fn link_by(&self, name: &str, server: String, clock: Arc<dyn Clock>) -> Link {
        let options = LinkOptions {
            broker: Options { server, ca: Some(self.ca()), ..Options::default() },
            identity: identity(name),
            credit: 16,
            trust: Trust::default(),
            handler_timeout: None,
            stop_grace: Duration::ZERO,
            resume: false,
        };
        Link::connect(options, clock, Arc::new(SystemIds)).await.unwrap()
    }

    pub(crate) async fn agent_with(&self, name: &str, agent_type: &str, credit: u32) -> Agent {
        let client = self.client().await;
        let card = card(name, agent_type);
        let registered =
            client.agents().register_agent(v1::RegisterAgentRequest { card: Some(card), ..Default::default() }).await;
        client.answer(registered).unwrap();
        Agent::connect(&client, identity(name), credit, Arc::new(SystemClock), Arc::new(SystemIds)).await.unwrap()
    }

    /// Opens a session of a registered agent.
    pub(crate) async fn agent_session(&self, name: &str) -> Agent {
        let client = self.client().await;
        Agent::connect(&client, identity(name), 100, Arc::new(SystemClock), Arc::new(SystemIds)).await.unwrap()
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // The process may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The identity of an agent. Its key is derived from the name.
pub(crate) fn identity(name: &str) -> Identity {
    let seed = baton::envelope::signing::sha256(&[name.as_bytes()]);
    Identity {
        agent: AgentId::parse(name).unwrap(),
        key_id: KeyId::parse("k1").unwrap(),
        key: PrivateKey::from_seed(&seed),
    }
}

pub(crate) fn card(name: &str, agent_type: &str) -> v1::AgentCard {
    let agent_types = if agent_type.is_empty() { vec![] } else { vec![agent_type.to_owned()] };
    v1::AgentCard { agent_id: name.into(), agent_types, keys: vec![identity(name).agent_key()], ..Default::default() }
}

pub(crate) fn composer(name: &str) -> Composer {
    Composer { identity: identity(name), clock: Arc::new(SystemClock), ids: Arc::new(SystemIds) }
}

/// A new task id.
pub(crate) fn new_task() -> String {
    format!("task-{}", hex::encode(SystemIds.random()))
}

pub(crate) fn a_request() -> v1::HandoffRequest {
    v1::HandoffRequest { task_type: "support".into(), ..Default::default() }
}

/// Repeats the attempt until it succeeds, because the broker notices a change with a delay.
pub(crate) async fn eventually(what: &str, mut attempt: impl AsyncFnMut() -> bool) {
    let attempts = async {
        while !attempt().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, attempts).await.unwrap_or_else(|_| panic!("never: {what}"));
}

/// Runs the command. Returns its exit code and stderr.
pub(crate) fn exit_of(command: &mut Command) -> (Option<i32>, String) {
    let output = command.stdin(Stdio::null()).output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// The files of a store's log that have entries, oldest first.
pub(crate) fn segments(data: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(data.join("store/wal")).unwrap().map(|entry| entry.unwrap().path());
    // The name is the number of the first entry. Other files are free, or are being made.
    let numbered = files.filter_map(|path| Some((path.file_name()?.to_str()?.parse::<u64>().ok()?, path)));
    let mut numbered: Vec<_> = numbered.collect();
    numbered.sort();
    numbered.into_iter().map(|(_, path)| path).collect()
}

pub(crate) fn write(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
}

/// Writes a file that only its owner can read, as keys must be.
pub(crate) fn write_private(path: &Path, text: &str) {
    use std::os::unix::fs::PermissionsExt as _;
    write(path, text);
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

//! How much one agent can delay another: each expensive call and message at its limits, beside a well-behaved agent.
//!
//! For each of them a broker starts in a new folder. The well-behaved agent sends a message to itself and lists its tasks,
//! in turn, alone at first, and then while another agent repeats the expensive call over eight connections. The table has
//! the 99th percentile of both, and the part of the goal that is missed: at most three times the base and 20 ms more.
//! The threads of the noisy agent have the lowest priority, since elsewhere it would have processors of its own: what is
//! measured is the broker.
//!
//! ```text
//! cargo bench --bench noisy                                  all cases, 5 s each
//! cargo bench --bench noisy -- --seconds 10 slow-pattern     one case
//! BATON_BIN=/path/to/baton cargo bench --bench noisy         another program
//! ```

mod cases;
mod quiet;

use std::{
    io::{BufRead as _, BufReader},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use baton::{
    envelope::{keys::PrivateKey, signing},
    ids::{AgentId, KeyId, SystemIds},
    proto::v1,
    time::SystemClock,
};
use baton_client::{Client, Composer, Identity, Options, session::Agent};

use tokio::runtime::Builder;

use self::quiet::Quiet;

pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The connections over which the noisy agent calls.
const CONNECTIONS: usize = 8;

/// A broker with the default limits, in a folder of its own. Dropping it ends the process.
pub(crate) struct Broker {
    child: Child,
    address: String,
    folder: tempfile::TempDir,
}

impl Broker {
    fn start() -> Result<Self, Failure> {
        let folder = tempfile::Builder::new().prefix("noisy-").tempdir()?;
        let data = folder.path().join("data");
        // A development broker makes the keys and certificates. It has no limits, so the measured one is another.
        let mut first = start(&folder, &["dev", "--port", "0", "--data", &data.display().to_string()])?.0;
        first.kill()?;
        first.wait()?;
        let tls = data.join("tls");
        let (certificate, key) = (tls.join("server.pem"), tls.join("server.key"));
        let config = format!(
            "listen = \"127.0.0.1:0\"\ndata = {data:?}\nenrollment = \"open\"\n[tls]\ncertificate = {certificate:?}\nkey = {key:?}\n"
        );
        let path = folder.path().join("baton.toml");
        std::fs::write(&path, config)?;
        let (child, address) = start(&folder, &["serve", "--config", &path.display().to_string()])?;
        Ok(Self { child, address, folder })
    }

    fn ca(&self) -> PathBuf {
        self.folder.path().join("data/tls/ca.pem")
    }

    async fn client(&self) -> Result<Client, Failure> {
        let options = Options { server: self.address.clone(), ca: Some(self.ca()), ..Default::default() };
        Ok(Client::connect(&options).await?)
    }

    /// Registers an agent.
    pub(crate) async fn register(&self, client: &Client, name: &str, agent_type: &str) -> Result<(), Failure> {
        let agent_types = if agent_type.is_empty() { Vec::new() } else { vec![agent_type.to_owned()] };
        let keys = vec![identity(name)?.agent_key()];
        let card = Some(v1::AgentCard { agent_id: name.into(), agent_types, keys, ..Default::default() });
        client.answer(client.agents().register_agent(v1::RegisterAgentRequest { card, ..Default::default() }).await)?;
        Ok(())
    }

    /// A connection with the token of a registered agent.
    pub(crate) async fn client_of(&self, name: &str) -> Result<Client, Failure> {
        let client = self.client().await?;
        let token = client.prove(&identity(name)?).await?;
        Ok(client.with_token(&token)?)
    }

    /// A session of a registered agent.
    pub(crate) async fn agent(&self, name: &str) -> Result<Agent, Failure> {
        let (client, clock, ids) = (self.client().await?, Arc::new(SystemClock), Arc::new(SystemIds));
        Ok(Agent::connect(&client, identity(name)?, 100, clock, ids).await?)
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Starts the program and waits until it is ready. Returns its address, too.
fn start(folder: &tempfile::TempDir, arguments: &[&str]) -> Result<(Child, String), Failure> {
    let program = std::env::var("BATON_BIN").unwrap_or_else(|_| env!("CARGO_BIN_EXE_baton").to_owned());
    let mut command = Command::new(program);
    command.args(arguments).current_dir(folder.path()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn()?;
    let first = BufReader::new(child.stdout.take().ok_or("no output")?).lines().next().ok_or("no line")??;
    let address = first.strip_prefix("baton is ready on ").and_then(|rest| rest.split(' ').next());
    let address = address.ok_or_else(|| format!("the broker does not start: {first}"))?.to_owned();
    Ok((child, address))
}

/// The identity of an agent, with a key that is derived from its name.
pub(crate) fn identity(name: &str) -> Result<Identity, Failure> {
    let key = PrivateKey::from_seed(&signing::sha256(&[name.as_bytes()]));
    Ok(Identity { agent: AgentId::parse(name)?, key_id: KeyId::parse("k1")?, key })
}

pub(crate) fn composer(name: &str) -> Result<Composer, Failure> {
    Ok(Composer { identity: identity(name)?, clock: Arc::new(SystemClock), ids: Arc::new(SystemIds) })
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let (mut span, mut wanted) = (Duration::from_secs(5), Vec::new());
    while let Some(argument) = arguments.next() {
        match &*argument {
            "--seconds" => span = Duration::from_secs(arguments.next().ok_or("--seconds needs a number")?.parse()?),
            "--test" => return Ok(()), // as `cargo test --benches` calls it
            _ => wanted.push(argument),
        }
    }
    let cases: Vec<_> =
        cases::ALL.iter().filter(|case| wanted.is_empty() || wanted.iter().any(|it| it == case.name)).collect();
    if cases.is_empty() {
        return Err(format!("no case is named so; the cases are {:?}", cases::ALL.map(|case| case.name)).into());
    }
    println!("| case | calls/s | message p99, ms | beside | list p99, ms | beside | goal |");
    println!("|---|---:|---:|---:|---:|---:|---|");
    for case in cases {
        println!("{}", measured(case, span).await?);
    }
    Ok(())
}

/// Lowers the priority of the current thread as far as it goes.
fn lowest_priority() {
    #[cfg(target_os = "linux")] // elsewhere the call changes the whole process
    if let Err(error) = rustix::process::setpriority_process(None, 19) {
        eprintln!("failed to lower the priority of a thread: {error}");
    }
}

/// One row of the table.
async fn measured(case: &cases::Case, span: Duration) -> Result<String, Failure> {
    let broker = Arc::new(Broker::start()?);
    let client = broker.client().await?;
    for name in ["quiet", "noisy"] {
        broker.register(&client, name, "").await?;
    }
    let quiet = Quiet::connect(&broker).await?;
    quiet.work(Duration::from_secs(1)).await?;
    let prepared = Arc::new((case.prepare)(&broker).await?);
    let base = quiet.work(span).await?;
    let calls = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let threads = Builder::new_multi_thread().enable_all().on_thread_start(lowest_priority).build()?;
    for _ in 0..CONNECTIONS {
        let (opener, prepared, calls) = (broker.clone(), prepared.clone(), calls.clone());
        // A connection belongs to the threads on which it is opened.
        let client = threads.spawn(async move { opener.client_of("noisy").await }).await??;
        threads.spawn(async move {
            loop {
                // A refusal is an answer, too: the bounds are what is measured.
                let made = cases::call(&client, &prepared).await;
                calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                if made.is_err() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
        });
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    let beside = quiet.work(span).await?;
    threads.shutdown_background();
    let calls = calls.load(std::sync::atomic::Ordering::Relaxed) as f64 / span.as_secs_f64();
    let is_met = |base: f64, beside: f64| beside <= (3.0 * base).max(base + 20.0);
    let goal = match is_met(base.message, beside.message) && is_met(base.list, beside.list) {
        true => "met",
        false => "missed",
    };
    Ok(format!(
        "| {} | {calls:.0} | {:.1} | {:.1} | {:.1} | {:.1} | {goal} |",
        case.name, base.message, beside.message, base.list, beside.list
    ))
}

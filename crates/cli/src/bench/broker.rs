//! The broker under measurement: a child process in a temporary folder, or a running broker.

use std::{
    future::Future,
    io::{BufRead as _, BufReader},
    os::unix::process::CommandExt as _,
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use clap::Args;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};

use super::process::{self, Memory, Usage};
use crate::{Failure, connection::ConnectionArgs};
use baton_client::{Client, Options};
use baton_store as store;

/// Flags of every bench.
#[derive(Debug, Clone, Args)]
pub(super) struct BrokerArgs {
    /// Send envelopes without signatures. A broker named with --server must allow that.
    #[arg(long)]
    pub(super) unsigned: bool,
    /// The process id of the broker that --server names, if it runs on this machine. Its CPU time, memory and disk
    /// writes are then measured too.
    #[arg(long, value_name = "PID", requires = "server")]
    broker_pid: Option<u32>,
}

/// The broker under measurement.
pub(super) struct Target {
    options: Options,
    pid: Option<u32>,
    own: Option<OwnBroker>,
}

/// A broker process with its own temporary folder. Dropping it kills the process and removes the folder.
struct OwnBroker {
    child: Child,
    folder: tempfile::TempDir,
    unsigned: bool,
}

impl Target {
    /// Uses the named broker, or starts one if none is named.
    pub(super) async fn find(args: &BrokerArgs, connection: &ConnectionArgs) -> Result<Self, Failure> {
        if connection.names_a_broker() {
            return Ok(Self { options: connection.options()?, pid: args.broker_pid, own: None });
        }
        Self::start(args).await
    }

    /// Starts a broker.
    pub(super) async fn start(args: &BrokerArgs) -> Result<Self, Failure> {
        let folder = tempfile::Builder::new().prefix("baton-bench-").tempdir()?;
        let (own, address) = OwnBroker::start(folder, args.unsigned).await?;
        let ca = Some(own.data().join("tls/ca.pem"));
        let options = Options { server: address, ca, ..Options::default() };
        Ok(Self { options, pid: Some(own.child.id()), own: Some(own) })
    }

    /// Kills the process with SIGKILL and starts a new one on the same folder. Returns when the new broker is ready.
    pub(super) async fn kill_and_start_again(self) -> Result<Self, Failure> {
        let Some(own) = self.own else { return Err(Failure::usage("the bench kills only a broker that it started")) };
        let unsigned = own.unsigned;
        let (own, address) = OwnBroker::start(own.kill()?, unsigned).await?;
        let options = Options { server: address, ..self.options };
        Ok(Self { options, pid: Some(own.child.id()), own: Some(own) })
    }

    /// Connects with the credentials that may register agents.
    pub(super) async fn operator(&self) -> Result<Client, Failure> {
        Ok(Client::connect(&self.options).await?)
    }

    /// Opens a new connection without credentials.
    pub(super) fn connect(&self) -> impl Future<Output = Result<Client, Failure>> + Send + use<> {
        // Agents authenticate by their keys. The operator's token would give them other rights.
        let options = Options { token: None, ..self.options.clone() };
        async move { Ok(Client::connect(&options).await?) }
    }

    /// The resource usage of the broker's process so far; `None` if unknown.
    pub(super) fn usage(&self) -> Option<Usage> {
        process::usage(self.pid?)
    }

    /// The memory of the broker's process; `None` if unknown.
    pub(super) fn memory(&self) -> Option<Memory> {
        process::memory(self.pid?)
    }

    /// The number of commits so far, each with one sync; `None` if unknown.
    pub(super) fn syncs(&self) -> Option<u64> {
        store::groups_committed(&self.own.as_ref()?.data().join("store"))
    }

    /// Whether the bench has started the broker, and removes it with all its data.
    pub(super) fn is_own(&self) -> bool {
        self.own.is_some()
    }

    /// Stops a broker that the bench has started; leaves a named broker alone.
    pub(super) async fn stop(self) -> Result<(), Failure> {
        let Some(own) = self.own else { return Ok(()) };
        own.stop().await
    }
}

impl OwnBroker {
    async fn start(folder: tempfile::TempDir, unsigned: bool) -> Result<(Self, String), Failure> {
        // The same program, so that the measured broker has the version of the bench.
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["dev", "--port", "0", "--data"]).arg(folder.path().join("data"));
        if unsigned {
            command.arg("--allow-unsigned");
        }
        if std::env::var_os("BATON_LOG").is_none() {
            command.env("BATON_LOG", "warn"); // hides the messages about start and stop
        }
        // Its own process group keeps ctrl-C away from the broker: only the bench receives it, and then stops the
        // broker.
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0).spawn()?;
        let mut own = Self { child, folder, unsigned };
        let stdout = own.child.stdout.take().expect("it is piped");
        let first = tokio::task::spawn_blocking(move || {
            let mut lines = BufReader::new(stdout).lines();
            let first = lines.next();
            // Drains the pipe, so that the broker never blocks on it.
            std::thread::spawn(move || lines.for_each(drop));
            first
        });
        let first = first.await.ok().flatten().transpose()?.unwrap_or_default();
        let address = first.strip_prefix("baton is ready on ").and_then(|rest| rest.split(' ').next());
        let address =
            address.ok_or_else(|| Failure::failed("the measured broker did not start; its messages are above"))?;
        Ok((own, address.to_owned()))
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Kills the process and returns its folder, which stays.
    fn kill(mut self) -> Result<tempfile::TempDir, Failure> {
        self.child.kill()?;
        self.child.wait()?;
        // The dropped guard removes its folder, so it gets an empty one in exchange for the data.
        let elsewhere = tempfile::tempdir()?;
        Ok(std::mem::replace(&mut self.folder, elsewhere))
    }

    async fn stop(self) -> Result<(), Failure> {
        if let Some(pid) = Pid::from_raw(self.child.id().cast_signed()) {
            kill_process(pid, Signal::TERM).map_err(std::io::Error::from)?;
        }
        let mut own = self;
        let ended = tokio::task::spawn_blocking(move || own.child.wait()).await;
        match ended {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(ended) => Err(Failure::failed(format!("the broker did not stop in order: {ended:?}"))),
            Err(failed) => Err(Failure::failed(failed.to_string())),
        }
    }
}

impl Drop for OwnBroker {
    fn drop(&mut self) {
        // The process may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Raises the file limit for this number of connections, for this process and for a broker that it starts later.
pub(super) fn allow_connections(connections: usize) -> Result<(), Failure> {
    /// The reserve for files other than connections.
    const OTHER_FILES: u64 = 256;
    let wanted = connections as u64 + OTHER_FILES;
    let limit = getrlimit(Resource::Nofile);
    // `None` is unlimited.
    if limit.current.is_none_or(|current| current >= wanted) {
        return Ok(());
    }
    let raised = Rlimit { current: Some(wanted), maximum: limit.maximum };
    setrlimit(Resource::Nofile, raised).map_err(|error| {
        let most = limit.maximum.map_or_else(|| "unlimited".to_owned(), |most| most.to_string());
        Failure::failed(format!(
            "failed to raise the limit of open files to {wanted}: {error}; the maximum is {most} (ulimit -Hn)"
        ))
    })
}

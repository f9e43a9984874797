//! `baton cluster`: makes the keys of a cluster, checks its engine, and shows and changes its members.
//!
//! All commands but `keys` read the configuration of a broker of the cluster, and talk to the engine and to the peer ports. They
//! need no running broker where they can do without.

mod check;
mod forget;
mod init;
mod refound;
mod status;

use std::path::PathBuf;

use baton_cli::{Failure, exit, output::Output, say, say_lines};
use baton_cluster::{
    lease::{self, Lease},
    log::{Register, Unavailable},
    settings::{ClusterSettings, Engine},
};
use baton_peers::{
    client::{self, PeerError},
    tls::PeerTls,
};
use clap::{Args, Subcommand};
use serde_json::json;

use crate::{
    config::{Config, Overrides},
    ids::SystemIds,
    server::cluster_keys::{self, ClusterKeysError, Origin},
};

#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  baton cluster keys --out /etc/baton/cluster
  baton cluster check --config /etc/baton/baton.toml
  baton cluster status --config /etc/baton/baton.toml
  baton cluster step-down --config /etc/baton/baton.toml

docs/cluster.md describes a cluster, and docs/how-to/run-a-cluster.md sets one up.")]
pub(super) enum ClusterCommand {
    /// Make the keys that all brokers of a cluster share. Give the folder to each broker.
    #[command(after_help = "Examples:
  baton cluster keys --out /etc/baton/cluster
  baton cluster keys --from /var/lib/baton --out /etc/baton/cluster
  baton cluster keys --in-place-of /etc/baton/cluster --out /etc/baton/cluster-2

Exit code 3 if the folder is not empty: other keys would be another cluster. A person who has the folder can pose as a broker.")]
    Keys(KeysArgs),
    /// Make a broker that was alone the first one of a cluster, with all that it has.
    ///
    /// The broker must be stopped. The shared log begins behind what its store has; the other brokers start with empty folders and
    /// receive a copy. If the command is cut off, run it again.
    #[command(after_help = "Examples:
  baton cluster keys --from /var/lib/baton --out /etc/baton/cluster
  baton cluster init --config /etc/baton/baton.toml

Exit code 3: the folder or the keys do not fit, a setting of the engine is unsafe, or blobs are files of this machine. 4: a broker has
the store open. 8: the shared log has entries already. 9: the engine cannot be reached, or its answer was lost: run the command again.")]
    Init(ConfigArgs),
    /// Check whether the engine of the shared log keeps its promises, and whether its settings are safe.
    ///
    /// Makes a log of its own in the engine, and deletes it afterwards.
    #[command(after_help = "Examples:
  baton cluster check --config /etc/baton/baton.toml

Exit code 1: the engine breaks a promise. 3: a setting is unsafe. 9: the engine cannot be reached.")]
    Check(ConfigArgs),
    /// Show the members, their roles and their places in the log.
    #[command(after_help = "Examples:
  baton cluster status --config /etc/baton/baton.toml
  baton cluster status --config /etc/baton/baton.toml -o json

Exit code 1: no broker leads. 9: the engine cannot be reached.")]
    Status(ConfigArgs),
    /// Make the leader leave, so that a follower takes over at once.
    #[command(
        name = "step-down",
        after_help = "Examples:
  baton cluster step-down --config /etc/baton/baton.toml

Exit code 8: the broker that is asked does not lead. 9: no leader is known, or it does not answer."
    )]
    StepDown(ConfigArgs),
    /// Say that a broker is gone for good, so that the log keeps nothing for it any more.
    #[command(after_help = "Examples:
  baton cluster forget b3 --config /etc/baton/baton.toml

Exit code 8: the broker answers, or no broker has this name. A broker that comes back is a member again.")]
    Forget(forget::ForgetArgs),
    /// Begin a new shared log with what one broker has, because the log is lost or went back, or for new keys.
    ///
    /// For a cluster whose brokers are `diverged`, or end with exit code 6, and whose log is nowhere else; with --new-keys for every
    /// cluster, because the keys of one with content are part of its log. All brokers must be stopped.
    /// Run it on the machine of the broker with the highest POSITION. The new log is that of a cluster with another name, which has all
    /// that this broker has; the other brokers then receive a copy. If the command is cut off, run it again.
    #[command(after_help = "Examples:
  baton cluster refound --from b3 --name baton-2 --config /etc/baton/baton.toml --dry-run
  baton cluster refound --from b3 --name baton-2 --config /etc/baton/baton.toml
  baton cluster refound --from b3 --name baton-2 --new-keys /etc/baton/cluster-2 --config /etc/baton/baton.toml

Exit code 3: the configuration is that of another broker, the keys do not fit, or a setting of the engine is unsafe. 4: this broker
runs. 6: its store is damaged. 8: another broker runs, or had more entries; entries are missing; the log is not lost; the new log has
entries already. 9: the engine cannot be reached, or its answer was lost: run the command again.")]
    Refound(refound::RefoundArgs),
}

#[derive(Debug, Args)]
pub(super) struct KeysArgs {
    /// The folder. It must be empty, or not be there.
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,
    /// The data folder of a broker alone that becomes the first one of the cluster: its keys and its operator's token are copied.
    #[arg(long, value_name = "FOLDER", conflicts_with = "in_place_of")]
    from: Option<PathBuf>,
    /// The folder of the keys that the cluster has. The new ones keep the place of its blobs in the bucket, and nothing else. `baton
    /// cluster refound --new-keys` gives them to a cluster with content.
    #[arg(long, value_name = "FOLDER")]
    in_place_of: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct ConfigArgs {
    /// The configuration file (TOML) of a broker of the cluster. Variables of the environment take precedence.
    #[arg(long, env = "BATON_CONFIG", value_name = "FILE")]
    config: PathBuf,
}

impl ConfigArgs {
    fn settings(&self) -> Result<ClusterSettings, Failure> {
        self.read().map(|(_, settings)| settings)
    }

    fn read(&self) -> Result<(Config, ClusterSettings), Failure> {
        let mut config = Config::read(&self.config, &Overrides::from_environment()?)?;
        let settings = config.cluster.take().ok_or_else(|| {
            let problem = format!("{} has no section [cluster]: its broker is alone", self.config.display());
            Failure::new(exit::CONFIGURATION, problem)
        })?;
        Ok((config, settings))
    }
}

pub(super) async fn run(command: ClusterCommand, output: &Output) -> Result<(), Failure> {
    match command {
        ClusterCommand::Keys(args) => keys(&args, output),
        ClusterCommand::Init(args) => init::run(&args, output).await,
        ClusterCommand::Check(args) => check::run(&args.settings()?, output).await,
        ClusterCommand::Status(args) => status::run(&args.settings()?, output).await,
        ClusterCommand::StepDown(args) => step_down(&args.settings()?, output).await,
        ClusterCommand::Forget(args) => forget::run(&args, output).await,
        ClusterCommand::Refound(args) => refound::run(&args, output).await,
    }
}

fn keys(args: &KeysArgs, output: &Output) -> Result<(), Failure> {
    let origin = match (&args.from, &args.in_place_of) {
        (Some(data), _) => Origin::Broker(data),
        (None, Some(former)) => Origin::InPlaceOf(former),
        (None, None) => Origin::New,
    };
    cluster_keys::make(&args.out, origin, &SystemIds)?;
    let folder = args.out.display();
    if !output.is_table() {
        return output.value(&json!({ "keys": args.out }));
    }
    say_lines!(
        "Made the keys of a cluster in {folder}.

Copy the folder to each broker of the cluster, readable by its user only, and name it in each configuration:
  [cluster]
  keys = {:?}
A person who has the folder can pose as a broker of the cluster.",
        args.out.display().to_string(),
    );
    Ok(())
}

async fn step_down(settings: &ClusterSettings, output: &Output) -> Result<(), Failure> {
    let tls = peer_tls(settings)?;
    let leader = leader(&*open(settings).await?.register).await?;
    let leader = leader.ok_or_else(|| unreachable("no broker has led this cluster yet"))?;
    client::step_down(&leader.peer_address, &tls).await.map_err(|error| of_peer(&error))?;
    match output.is_table() {
        true => say!("broker {} leads no longer", leader.broker),
        false => output.value(&json!({ "stepped_down": leader.broker }))?,
    }
    Ok(())
}

async fn open(settings: &ClusterSettings) -> Result<Engine, Failure> {
    settings.log.open(&settings.name).await.map_err(|error| of_engine(settings, &error))
}

/// The lease of the latest leader.
async fn leader(register: &dyn Register) -> Result<Option<Lease>, Failure> {
    let found = register.read(lease::NAME).await.map_err(|error| unreachable(&error.to_string()))?;
    Ok(found.and_then(|(_, value)| Lease::parse(&value)))
}

fn of_engine(settings: &ClusterSettings, error: &Unavailable) -> Failure {
    unreachable(&format!("{}: {error}", settings.log))
}

fn unreachable(problem: &str) -> Failure {
    Failure::new(exit::UNREACHABLE, problem.to_owned())
}

fn of_peer(error: &PeerError) -> Failure {
    let code = match error {
        PeerError::Unreachable { .. } => exit::UNREACHABLE,
        PeerError::Refused { .. } => exit::REFUSED,
    };
    Failure::new(code, error.to_string())
}

/// The certificate with which a command speaks to the brokers.
fn peer_tls(settings: &ClusterSettings) -> Result<PeerTls, Failure> {
    PeerTls::load(&settings.keys).map_err(|error| Failure::new(exit::CONFIGURATION, error.to_string()))
}

impl From<ClusterKeysError> for Failure {
    fn from(error: ClusterKeysError) -> Self {
        Self::new(exit::CONFIGURATION, error.to_string())
    }
}

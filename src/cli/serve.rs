//! `baton serve`: runs a broker with a configuration file. Also runs any broker until a signal.

use std::{path::PathBuf, sync::Arc};

use clap::Args;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::Notify,
};

use baton_cli::{Failure, announce, say_lines, signals::stop_on_signal};

use super::version;
use crate::{
    config::Config,
    server::{self, Ready},
};

/// Start a broker from a configuration file.
///
/// SIGINT or SIGTERM stops the broker in order; a second signal ends it at once. SIGHUP reloads certificates, policies
/// and operators' keys.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  baton serve --config /etc/baton/baton.toml
  baton serve --config baton.toml --check     check it and the files that it names, then exit

docs/configuration.md describes each key.")]
pub(super) struct ServeArgs {
    /// The configuration file (TOML).
    #[arg(long, env = "BATON_CONFIG", value_name = "FILE")]
    config: PathBuf,
    /// Check the configuration and the files that it names (certificates, keys, policies), print it as TOML with all
    /// defaults, and exit.
    #[arg(long)]
    check: bool,
}

/// Runs the broker until a signal.
pub(super) async fn run(args: ServeArgs) -> Result<(), Failure> {
    let config = Config::read(&args.config)?;
    if args.check {
        server::check(&config)?;
        say_lines!("{}", config.to_toml().trim_end());
        return Ok(());
    }
    run_until_signal(config, |ready| announce!("baton is ready on {} (TLS)", ready.address)).await
}

/// Runs a broker until SIGINT or SIGTERM. SIGHUP reloads its certificates. A second signal ends the process at once,
/// which loses no acknowledged data.
pub(super) async fn run_until_signal(config: Config, ready: impl FnOnce(&Ready)) -> Result<(), Failure> {
    tracing::info!(version = env!("CARGO_PKG_VERSION"), features = version::described(), "starting");
    let stop = stop_on_signal()?;
    let mut hangup = signal(SignalKind::hangup())?;
    let reload = Arc::new(Notify::new());
    let reload_on_signal = reload.clone();
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            reload_on_signal.notify_one();
        }
    });
    Ok(server::run(config, stop, reload, ready).await?)
}

//! `baton serve`: runs a broker with a configuration file. Also runs any broker until a signal.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use clap::Args;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::Notify,
};

use baton_cli::{Failure, GatewayBeside, announce, exit, say_lines, signals::stop_on_signal};
use tokio_util::sync::CancellationToken;

use super::{gateway, version};
use crate::{
    config::{Config, GatewaySettings, Overrides},
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
  baton serve --make-certificate broker.example.com,10.0.0.5 --data /var/lib/baton     make it, then exit

BATON__KEY and BATON__SECTION__KEY in the environment (BATON__LISTEN, BATON__TLS__KEY) take precedence over
the file.

docs/configuration.md describes each key.")]
pub(super) struct ServeArgs {
    /// The configuration file (TOML).
    #[arg(long, env = "BATON_CONFIG", value_name = "FILE", required_unless_present = "data")]
    config: Option<PathBuf>,
    /// Check the configuration and the files that it names (certificates, keys, policies), print it as TOML with all
    /// defaults and with the settings of the environment, and exit.
    #[arg(long, conflicts_with = "make_certificate")]
    check: bool,
    /// Make a server certificate for these host names and IP addresses, and for localhost, in the data folder, and exit. Also
    /// makes the CA that signs it, unless the folder has one. Replaces no file.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    make_certificate: Vec<String>,
    /// The data folder for --make-certificate. Default: that of the configuration.
    #[arg(long, value_name = "FOLDER", requires = "make_certificate")]
    data: Option<PathBuf>,
}

/// Runs the broker until a signal.
pub(super) async fn run(args: ServeArgs) -> Result<(), Failure> {
    let overrides = Overrides::from_environment()?;
    let config = args.config.as_deref().map(|path| Config::read(path, &overrides)).transpose()?;
    if !args.make_certificate.is_empty() {
        let data = args.data.or_else(|| config.map(|config| config.data));
        return make_certificate(&data.unwrap_or_default(), &args.make_certificate);
    }
    // clap asks for a configuration unless there is a data folder, and for names if there is one.
    let config = config.ok_or_else(|| Failure::new(exit::USAGE, "name a configuration with --config".to_owned()))?;
    if args.check {
        server::check(&config)?;
        gateway::check(&config)?;
        for (name, key) in overrides.names() {
            say_lines!("# {name} sets {key}");
        }
        say_lines!("{}", config.to_toml().trim_end());
        return Ok(());
    }
    for (name, key) in overrides.names() {
        tracing::info!(name, key, "a variable of the environment sets a key");
    }
    run_until_signal(config, |ready, _| announce!("baton is ready on {} (TLS)", ready.address)).await
}

/// Makes a certificate, and says which file is for whom.
fn make_certificate(data: &Path, names: &[String]) -> Result<(), Failure> {
    let made = server::make_certificate(data, names)?;
    let (ca, certificate, key) =
        (made.ca_certificate.display(), made.server.certificate.display(), made.server.key.display());
    let ca_key = made.ca_certificate.with_extension("key");
    say_lines!(
        "Made a certificate for {names}, valid for 397 days.

For clients, as --ca, BATON_CA, or the CA of the client library. It is no secret:
  {ca}
For the configuration of the broker:
  [tls]
  certificate = {certificate:?}
  key = {key:?}
Signs the next certificate. A person who has it can pose as the broker; keep it away from the broker's machine:
  {ca_key}",
        names = listed(names),
        certificate = certificate.to_string(),
        key = key.to_string(),
        ca_key = ca_key.display(),
    );
    Ok(())
}

/// The names of a certificate, as words. localhost is always one of them.
fn listed(names: &[String]) -> String {
    let mut others: Vec<&str> = names.iter().map(String::as_str).filter(|name| *name != "localhost").collect();
    others.dedup();
    match others.is_empty() {
        true => "localhost".to_owned(),
        false => format!("{} and localhost", others.join(", ")),
    }
}

/// Runs a broker, and the gateway beside it, until SIGINT or SIGTERM. SIGHUP reloads the broker's certificates. A second signal
/// ends the process at once, which loses no acknowledged data. `ready` gets the address of the gateway.
pub(super) async fn run_until_signal(config: Config, ready: fn(&Ready, Option<&str>)) -> Result<(), Failure> {
    gateway::check(&config)?;
    tracing::info!(version = env!("CARGO_PKG_VERSION"), features = version::described(), "starting");
    let asked = stop_on_signal()?;
    let mut hangup = signal(SignalKind::hangup())?;
    let reload = Arc::new(Notify::new());
    let reload_on_signal = reload.clone();
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            reload_on_signal.notify_one();
        }
    });
    let (stop, beside) = (CancellationToken::new(), Arc::new(GatewayBeside::default()));
    // The gateway is a client of the broker, so it ends first.
    tokio::spawn({
        let (stop, beside) = (stop.clone(), beside.clone());
        async move {
            asked.cancelled().await;
            beside.end().await;
            stop.cancel();
        }
    });
    let on_ready = start_beside(config.gateway.clone(), beside.clone(), stop.clone(), ready);
    let served = server::run(config, stop, reload, Box::new(on_ready)).await;
    beside.end().await;
    match beside.failure() {
        Some(failure) => Err(failure),
        None => Ok(served?),
    }
}

/// Starts the gateway of a broker that is ready, where it is enabled. A gateway that cannot start stops the broker.
fn start_beside(
    settings: GatewaySettings,
    beside: Arc<GatewayBeside>,
    stop: CancellationToken,
    ready: fn(&Ready, Option<&str>),
) -> impl FnOnce(Ready) + Send {
    move |mut state| {
        let Some(port) = state.gateway.take() else { return ready(&state, None) };
        let settings = gateway::settings(settings, state.address, &state.certificate);
        match beside.start(settings, port) {
            Some(address) => ready(&state, Some(&address)),
            None => stop.cancel(),
        }
    }
}

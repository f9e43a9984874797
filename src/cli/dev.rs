//! `baton dev`: a development broker without a configuration file.

use std::{net::SocketAddr, path::PathBuf};

use clap::Args;

use baton_cli::{Failure, announce, exit, login_url, tell};

use super::serve;
use crate::{
    broker::{DEFAULT_DATA, DEFAULT_LISTEN},
    config::{Config, DEFAULT_GATEWAY_LISTEN, Development},
    server::Ready,
};

/// Start a broker for development. It needs no configuration and creates its data, keys and certificate in one folder.
///
/// Enrollment is open: any program that reaches the port can register an agent, read all agents and tasks, and take part. The
/// broker therefore listens on a loopback address only, unless --allow-network is given, as a container needs it.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  baton dev                              data in ./baton-data, port 22866
  baton dev --data /tmp/try --port 0     another folder, any free port
  baton dev --listen 0.0.0.0:22866 --allow-network --name broker.test     in a container")]
pub(super) struct DevArgs {
    /// The data folder. Created if absent, reused if present.
    #[arg(long, env = "BATON_DATA", default_value = DEFAULT_DATA, value_name = "FOLDER")]
    data: PathBuf,
    /// The address to listen on.
    #[arg(long, env = "BATON_LISTEN", default_value = DEFAULT_LISTEN, value_name = "ADDRESS:PORT")]
    listen: SocketAddr,
    /// The port to listen on, on the address of --listen. 0 selects a free port.
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// Permit an address for --listen and --metrics-listen that other machines reach. Without --policy each of them may register
    /// agents and read all tasks. Without TLS, and without signatures, stays for loopback.
    #[arg(long)]
    allow_network: bool,
    /// A further host name or IP address for the certificate, beside localhost and the address of --listen. May be repeated.
    #[arg(long = "name", value_name = "NAME", value_delimiter = ',')]
    names: Vec<String>,
    /// The authorization policy: a Cedar file, or a folder of them. Default: any caller may register agents.
    #[arg(long, value_name = "PATH")]
    policy: Option<PathBuf>,
    /// Serve figures for Prometheus at http://ADDRESS:PORT/metrics. Loopback addresses only, unless
    /// --allow-network is given. Default: off.
    #[arg(long, env = "BATON_METRICS_LISTEN", value_name = "ADDRESS:PORT")]
    metrics_listen: Option<SocketAddr>,
    /// The address of the gateway, by which agents work over HTTP. Loopback addresses only, unless --allow-network is given;
    /// other addresses have TLS by the broker's certificate. Default: port 22869 of this machine beside a broker on port 22866,
    /// otherwise a free port.
    #[arg(long, value_name = "ADDRESS:PORT")]
    gateway_listen: Option<SocketAddr>,
    /// Start no gateway.
    #[arg(long, conflicts_with = "gateway_listen")]
    no_gateway: bool,
    /// Also accept connections without TLS.
    #[arg(long)]
    plaintext: bool,
    /// Also accept envelopes without a signature.
    #[arg(long)]
    allow_unsigned: bool,
}

/// Runs the broker until ctrl-C.
pub(super) async fn run(args: DevArgs) -> Result<(), Failure> {
    let mut listen = args.listen;
    if let Some(port) = args.port {
        listen.set_port(port);
    }
    if args.policy.is_none() && !args.allow_network && !listen.ip().is_loopback() {
        return Err(Failure::new(
            exit::CONFIGURATION,
            format!(
                "other machines may reach {listen}, which is no loopback address, and each could register agents and read all \
                 tasks; if they may, add --allow-network"
            ),
        ));
    }
    let gateway = (!args.no_gateway).then(|| args.gateway_listen.unwrap_or_else(|| gateway_beside(listen)));
    if let Some(address) = gateway.filter(|address| !args.allow_network && !address.ip().is_loopback()) {
        return Err(Failure::new(
            exit::CONFIGURATION,
            format!(
                "other machines may reach the gateway at {address}, which is no loopback address; if they may, add \
                 --allow-network"
            ),
        ));
    }
    let config = Config::development(Development {
        listen,
        data: args.data,
        policy: args.policy,
        plaintext_allowed: args.plaintext,
        unsigned_allowed: args.allow_unsigned,
        metrics: args.metrics_listen,
        gateway,
        names: args.names,
        network_allowed: args.allow_network,
    })?;
    serve::run_until_signal(config, say_what_next).await
}

/// The address of the gateway of a broker with this address: one known port for the usual broker, and no conflict beside others.
fn gateway_beside(listen: SocketAddr) -> SocketAddr {
    let usual = |address: &str| -> SocketAddr { address.parse().expect("the default is an address") };
    let mut gateway = usual(DEFAULT_GATEWAY_LISTEN);
    if listen.port() != usual(DEFAULT_LISTEN).port() {
        gateway.set_port(0);
    }
    gateway
}

fn say_what_next(ready: &Ready, gateway: Option<&str>) {
    let ca = ready.ca.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
    let Ready { address, data, agents, open_handoffs, .. } = ready;
    if ready.plaintext_allowed {
        tell!("WARNING: connections without TLS are accepted; other programs on this machine can read them");
    }
    if !address.ip().is_loopback() {
        tell!(
            "WARNING: every machine that reaches {address} may use this broker: register agents, read all tasks, take part"
        );
    }
    // The binary may not be on the PATH, so the hint repeats the path by which it was called.
    let baton = std::env::args().next().unwrap_or_else(|| "baton".to_owned());
    let options = match (address.to_string().as_str(), data.to_str()) {
        (DEFAULT_LISTEN, Some(DEFAULT_DATA)) => String::new(),
        (address, _) => format!(" --server {address} --ca {ca}"),
    };
    let metrics = ready.metrics.map(|address| format!("\n  metrics http://{address}/metrics")).unwrap_or_default();
    let gateway = gateway.map(|address| {
        let folder =
            if options.is_empty() { String::new() } else { format!(" --data {}/gateway{options}", data.display()) };
        format!("\n  gateway {address} for MCP, and JSON; for a token: {baton} gateway grant{folder}")
    });
    let gateway = gateway.unwrap_or_default();
    let login = ready.login_code.as_deref().unwrap_or_default();
    let console = login_url(&address.to_string(), login);
    announce!(
        "baton is ready on {address} (TLS)
  data    {data}: {agents} agents, {open_handoffs} open handoffs
  CA      {ca}{metrics}{gateway}
  console {console}
          (one login within a minute; later: {baton} console{options})

Try, in another terminal:
  {baton} demo{options}    show a handoff between four agents
  {baton} agent list{options}    list the registered agents
  grpcurl -cacert {ca} {address} list

Development mode: any program that reaches this port may register an agent. Ctrl-C stops the broker; the data stays.",
        data = data.display(),
    );
}

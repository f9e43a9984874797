//! `baton dev`: a development broker without a configuration file.

use std::{net::SocketAddr, path::PathBuf};

use clap::Args;

use super::{Failure, serve};
use crate::{
    config::{Config, DEFAULT_DATA, DEFAULT_LISTEN},
    server::Ready,
};

/// Start a broker that needs nothing: its data, keys and certificate are made in a folder.
///
/// Enrollment is open: whoever can reach the port can register an agent. Only for development, and only on loopback.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  baton dev                              data in ./baton-data, port 22866
  baton dev --data /tmp/try --port 0     another folder, any free port")]
pub(super) struct DevArgs {
    /// The folder of all data; made if it is not there, used again if it is.
    #[arg(long, env = "BATON_DATA", default_value = DEFAULT_DATA, value_name = "FOLDER")]
    data: PathBuf,
    /// Where to listen.
    #[arg(long, env = "BATON_LISTEN", default_value = DEFAULT_LISTEN, value_name = "ADDRESS:PORT")]
    listen: SocketAddr,
    /// The port alone; 0 for any that is free.
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// Who may do what: a Cedar file, or a folder of them. Without it whoever reaches the port may register agents.
    #[arg(long, value_name = "PATH")]
    policy: Option<PathBuf>,
    /// Take connections without TLS too.
    #[arg(long)]
    plaintext: bool,
    /// Take envelopes that are not signed.
    #[arg(long)]
    allow_unsigned: bool,
}

/// Runs the broker until ctrl-C.
pub(super) async fn run(args: DevArgs) -> Result<(), Failure> {
    let mut listen = args.listen;
    if let Some(port) = args.port {
        listen.set_port(port);
    }
    let config = Config::development(listen, args.data, args.policy, args.plaintext, args.allow_unsigned)?;
    serve::run_until_signal(config, say_what_next).await
}

fn say_what_next(ready: &Ready) {
    let ca = ready.ca.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
    let Ready { address, data, agents, open_handoffs, .. } = ready;
    if ready.plaintext_allowed {
        tell!("WARNING: connections without TLS are taken; never do this where others can listen");
    }
    // The binary may not be on the PATH, so the hint repeats the path by which it was called.
    let baton = std::env::args().next().unwrap_or_else(|| "baton".to_owned());
    let options = match (address.to_string().as_str(), data.to_str()) {
        (DEFAULT_LISTEN, Some(DEFAULT_DATA)) => String::new(),
        (address, _) => format!(" --server {address} --ca {ca}"),
    };
    announce!(
        "baton is ready on {address} (TLS)
  data    {data}: {agents} agents, {open_handoffs} open handoffs
  CA      {ca}

Try, in another terminal:
  {baton} demo{options}    agents hand a real task over
  {baton} agent list{options}    who is registered
  grpcurl -cacert {ca} {address} list

Development mode: anybody who reaches this port may register an agent. Stop with ctrl-C; everything is kept.",
        data = data.display(),
    );
}

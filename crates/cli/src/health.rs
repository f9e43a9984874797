//! `baton health`: one word for probes.

use std::{path::PathBuf, time::Duration};

use clap::Args;

use super::{
    Failure,
    connection::ConnectionArgs,
    duration,
    probe::{Health, Target},
};

/// Print in one word whether a broker takes messages, for probes of containers and scripts.
///
/// The words: ready; unavailable (the store cannot be written); stopping; untrusted (the certificate); unreachable. stderr
/// has the reason. The exit code is 0 only with "ready". Needs no identity.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  baton health
  baton health --server broker.example.com:22866 --ca ca.pem
  baton health --data /var/lib/baton --timeout 2s     in the container of the broker

Exit codes: 1 for unavailable and stopping, 9 for untrusted and unreachable.")]
pub(super) struct HealthArgs {
    /// Ask the broker that runs on this data folder, in place of --server. Its certificate is not verified, because it
    /// need not name this machine, and the question has no secret.
    #[arg(long, value_name = "FOLDER")]
    data: Option<PathBuf>,
    /// How long to wait for the answer.
    #[arg(long, default_value = "5s", value_name = "TIME", value_parser = duration::parse)]
    timeout: Duration,
}

pub(super) async fn run(args: HealthArgs, connection: &ConnectionArgs) -> Result<(), Failure> {
    let (place, target) = match &args.data {
        None => {
            let target = Target::of(&connection.options_of_agent()?);
            (target.server().to_owned(), Some(target))
        }
        Some(folder) => {
            let target = Target::on_folder(folder, connection.client_certificate()?);
            (target.as_ref().map_or_else(|| folder.display().to_string(), |target| target.server().to_owned()), target)
        }
    };
    let health = match target {
        Some(target) => target.look(args.timeout).await?.health,
        None => Health::Unreachable("no broker runs on this folder".to_owned()),
    };
    say!("{}", health.word());
    health.require_ready(&place)
}

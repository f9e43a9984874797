//! `baton conformance`: calls `baton-conformance`, a program of its own.

use std::{env, ffi::OsString, io::ErrorKind, os::unix::process::CommandExt as _, path::PathBuf, process::Command};

use clap::Args;

use super::{Failure, connection::ConnectionArgs};

/// The name of the program.
const PROGRAM: &str = "baton-conformance";

/// Test a broker or a client against the rules of the specification.
///
/// This calls the program baton-conformance, which stands beside baton or on the PATH, and passes all arguments on; with
/// --help it lists them. Get it with, in a clone: cargo install --path crates/conformance.
#[derive(Debug, Args)]
#[command(
    disable_help_flag = true,
    after_help = "Examples:
  baton conformance --target 127.0.0.1:22866 --ca baton-data/tls/ca.pem
  baton conformance --list
  baton conformance --client 'python3 tests/harness.py' --only 'client.forged-*'"
)]
pub(super) struct ConformanceArgs {
    /// The arguments of baton-conformance.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    arguments: Vec<OsString>,
}

/// Becomes the program. Flags for the connection that stand before the suite's own are passed on by the environment.
pub(super) fn run(args: ConformanceArgs, connection: &ConnectionArgs) -> Result<(), Failure> {
    let beside =
        env::current_exe().ok().and_then(|path| Some(path.parent()?.join(PROGRAM))).filter(|path| path.exists());
    let mut command = Command::new(beside.unwrap_or_else(|| PathBuf::from(PROGRAM)));
    command.args(args.arguments).envs(connection.environment()?);
    // Only a failure returns.
    let error = command.exec();
    Err(match error.kind() {
        ErrorKind::NotFound => Failure::failed(
            "baton-conformance is neither beside baton nor on the PATH; install it, in a clone, with: cargo install --path crates/conformance",
        ),
        _ => Failure::failed(format!("failed to start baton-conformance: {error}")),
    })
}

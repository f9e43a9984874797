//! The command line of the program: the commands of `baton-cli`, and those that start a broker.

#![deny(clippy::print_stdout, clippy::print_stderr)]

mod cluster;
mod completions;
mod dev;
mod failure;
mod gateway;
mod groups;
mod manual;
mod serve;
#[cfg(test)]
mod texts;
mod version;

use baton_cli::{Failure, GlobalArgs, Program, exit, logging, tell};
use clap::{Parser, Subcommand};

/// A broker for handoffs between AI agents: signed, durable, with exactly one owner of each task.
#[derive(Debug, Parser)]
#[command(
    name = "baton",
    version,
    after_help = "Examples:
  baton dev          start a broker for development
  baton demo         show a handoff between four agents, in another terminal

Exit codes:
  0   success
  1   the command failed
  2   wrong usage
  3   the configuration or a named file cannot be used
  4   another broker uses the data folder
  5   the data folder has the format of another version of baton
  6   the store is damaged, or differs from the shared log of its cluster
  7   the port is in use
  8   the broker refused the request
  9   no broker answers, or its certificate is untrusted, expired or not yet valid
  10  a case of a conformance suite failed

Failures:
  stderr has \"refused: CODE: text\" if the broker refused, with its code (docs/errors.md), otherwise
  \"failed: CODE: text\"; docs/configuration.md lists the codes

Environment:
  BATON_SERVER, BATON_CA, BATON_TOKEN, BATON_TOKEN_FILE, BATON_CERT, BATON_CERT_KEY, BATON_DATA, BATON_LISTEN,
  BATON_CONFIG
                     defaults of the flags with these names
  BATON_PROFILE      the profile to use, as --profile
  BATON__SECTION__KEY
                     a key of the configuration of `baton serve`, in place of the file's
  BATON_LOG          the log filter, for example debug or baton=trace
  NO_COLOR           turns colours off

Ids:
  Tables shorten long ids and mark them with …. Commands that read accept any unique prefix of an id.
  Commands that sign or send need the whole id."
)]
struct Cli {
    #[command(flatten)]
    global: GlobalArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Dev(dev::DevArgs),
    Serve(serve::ServeArgs),
    /// Make the keys of a cluster of brokers, check its engine, show its members, change its leader.
    #[command(subcommand)]
    Cluster(cluster::ClusterCommand),
    #[command(flatten)]
    Client(Box<baton_cli::Command>),
    Completions(completions::CompletionsArgs),
    Manual(manual::ManualArgs),
    Version(version::VersionArgs),
}

impl Program for Cli {
    fn line() -> clap::Command {
        groups::grouped(<Self as clap::CommandFactory>::command())
    }

    fn global(&mut self) -> &mut GlobalArgs {
        &mut self.global
    }

    fn command(&self) -> Option<&baton_cli::Command> {
        match &self.command {
            Command::Client(command) => Some(&**command),
            Command::Dev(_)
            | Command::Serve(_)
            | Command::Cluster(_)
            | Command::Completions(_)
            | Command::Manual(_)
            | Command::Version(_) => None,
        }
    }
}

/// Runs the command line. Returns the exit code.
pub fn run() -> u8 {
    let cli = match baton_cli::parse::<Cli>() {
        Ok(cli) => cli,
        Err(failure) => {
            tell!("{failure}");
            return failure.code;
        }
    };
    logging::start();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            tell!("failed to start the program's threads: {error}");
            return exit::FAILED;
        }
    };
    // The failure is told before the runtime waits for threads that still read standard input.
    match runtime.block_on(execute(cli)) {
        Ok(()) => exit::OK,
        Err(failure) => {
            tell!("{failure}");
            failure.code
        }
    }
}

async fn execute(cli: Cli) -> Result<(), Failure> {
    match cli.command {
        Command::Dev(args) => dev::run(args).await,
        Command::Serve(args) => serve::run(args).await,
        Command::Cluster(command) => cluster::run(command, &cli.global.output()).await,
        Command::Client(command) => baton_cli::execute(*command, cli.global).await,
        Command::Completions(args) => completions::run(&args),
        Command::Manual(args) => manual::run(&args),
        Command::Version(args) => version::run(args, &cli.global.output()),
    }
}

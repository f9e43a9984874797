//! The command line: one file a command. Data goes to stdout, everything else to stderr.
//!
//! Owns flags, output and exit codes. All output passes through `output`, which escapes text from agents so that it
//! cannot control a terminal; lints refuse every other way. Talks to a broker over gRPC like any client. Only `dev` and
//! `serve` know the server, and only to start it.

#![deny(clippy::print_stdout, clippy::print_stderr)]

#[macro_use]
mod output;

mod agent;
mod audit;
mod bench;
mod completions;
mod conformance;
mod connection;
mod demo;
mod dev;
mod dlq;
mod duration;
mod envelope;
mod escape;
mod exit;
mod find;
mod graph;
mod handoff;
mod json;
mod key;
mod keygen;
mod local;
mod logging;
mod mail;
mod policy;
mod resolve;
mod run;
mod serve;
mod store;
mod table;
mod task;
#[cfg(test)]
mod texts;
mod token;
mod worker;
mod workspace;

use clap::{Parser, Subcommand};

pub use exit::Failure;

use self::{
    connection::{ConnectionArgs, GLOBAL_HEADING},
    output::Output,
};

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
  6   the store is damaged
  7   the port is in use
  8   the broker refused the request; stderr has the code and the reason
  9   no broker answers, or its certificate is untrusted, expired or not yet valid
  10  a case of a conformance suite failed

Environment:
  BATON_SERVER, BATON_CA, BATON_TOKEN, BATON_CERT, BATON_CERT_KEY, BATON_DATA, BATON_LISTEN, BATON_CONFIG
                     defaults of the flags with these names
  BATON_LOG          the log filter, for example debug or baton=trace
  NO_COLOR           turns colours off

Ids:
  Tables shorten long ids and mark them with …. Commands that read accept any unique prefix of an id.
  Commands that sign or send need the whole id."
)]
struct Cli {
    #[command(flatten)]
    connection: ConnectionArgs,
    /// The output format. Default: table on a terminal, otherwise json.
    #[arg(short, long, global = true, help_heading = GLOBAL_HEADING, value_name = "FORMAT")]
    output: Option<output::Format>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Dev(dev::DevArgs),
    Serve(serve::ServeArgs),
    Demo(demo::DemoArgs),
    Keygen(keygen::KeygenArgs),
    Token(token::TokenArgs),
    /// Register, list and inspect agents, manage their keys, run a small agent.
    #[command(subcommand)]
    Agent(agent::AgentCommand),
    /// Request, answer, list and watch handoffs.
    #[command(subcommand)]
    Handoff(handoff::HandoffCommand),
    /// List, inspect, redrive, discard and export dead letters.
    #[command(subcommand)]
    Dlq(dlq::DlqCommand),
    /// List, inspect, watch and audit tasks.
    #[command(subcommand)]
    Task(task::TaskCommand),
    /// Register, validate, list and show graphs that a model routes through.
    #[command(subcommand)]
    Graph(graph::GraphCommand),
    /// Start runs through graphs, report turns, show, watch and cancel.
    #[command(subcommand)]
    Run(run::RunCommand),
    /// Receive an agent's messages.
    #[command(subcommand)]
    Mail(mail::MailCommand),
    /// Append to workspaces, list and watch their entries.
    #[command(subcommand)]
    Workspace(workspace::WorkspaceCommand),
    /// Sign, verify and inspect envelopes as JSON, without a broker.
    #[command(subcommand)]
    Envelope(envelope::EnvelopeCommand),
    /// Check, test and explain authorization policies.
    #[command(subcommand)]
    Policy(policy::PolicyCommand),
    Audit(audit::AuditArgs),
    /// Check a store for damage and export its readable records.
    #[command(subcommand)]
    Store(store::StoreCommand),
    /// Measure the performance of a broker.
    #[command(subcommand)]
    Bench(bench::BenchCommand),
    Conformance(conformance::ConformanceArgs),
    Completions(completions::CompletionsArgs),
}

/// Runs the command line. Returns the exit code.
pub async fn run() -> u8 {
    let cli = Cli::parse();
    logging::start();
    let output = Output::new(cli.output);
    let outcome = match cli.command {
        Command::Dev(args) => dev::run(args).await,
        Command::Serve(args) => serve::run(args).await,
        Command::Demo(args) => demo::run(args, &cli.connection).await,
        Command::Keygen(args) => keygen::run(args, &output),
        Command::Token(args) => token::run(args, &cli.connection).await,
        Command::Agent(command) => agent::run(command, &cli.connection, &output).await,
        Command::Handoff(command) => handoff::run(command, &cli.connection, &output).await,
        Command::Dlq(command) => dlq::run(command, &cli.connection, &output).await,
        Command::Task(command) => task::run(command, &cli.connection, &output).await,
        Command::Graph(command) => graph::run(command, &cli.connection, &output).await,
        Command::Run(command) => run::run(command, &cli.connection, &output).await,
        Command::Mail(command) => mail::run(command, &cli.connection, &output).await,
        Command::Workspace(command) => workspace::run(command, &cli.connection, &output).await,
        Command::Envelope(command) => envelope::run(command),
        Command::Policy(command) => policy::run(command, &output),
        Command::Audit(audit::AuditArgs {}) => audit::run(&cli.connection, &output).await,
        Command::Store(command) => store::run(command, &output),
        Command::Bench(command) => bench::run(command, &cli.connection, &output).await,
        Command::Conformance(args) => conformance::run(args, &cli.connection).await,
        Command::Completions(args) => completions::run(&args),
    };
    match outcome {
        Ok(()) => exit::OK,
        Err(failure) => {
            tell!("{failure}");
            failure.code
        }
    }
}

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
mod envelope;
mod exit;
mod handoff;
mod harmless;
mod json;
mod key;
mod keygen;
mod local;
mod logging;
mod mail;
mod policy;
mod resolve;
mod serve;
mod store;
mod table;
mod task;
mod token;
mod worker;

use clap::{Parser, Subcommand};

pub use exit::Failure;

use self::{connection::ConnectionArgs, output::Output};

/// The handoff broker for AI agents: one agent hands a task to another, signed, durable, with exactly one owner.
#[derive(Debug, Parser)]
#[command(
    name = "baton",
    version,
    after_help = "Start with:
  baton dev          a broker that needs nothing
  baton demo         watch three agents hand a task over, in another terminal

Exit codes:
  0  done
  1  something failed
  2  wrong usage
  3  the configuration, or a file that was named, cannot be used
  4  another broker has the data folder
  5  the data folder is of another version of baton
  6  the store is damaged
  7  the port is in use
  8  the broker refused; stderr has the reason
  9  no broker answers, or its certificate is not trusted or not good at this time
  10 a case of a conformance suite failed

Environment: BATON_SERVER, BATON_CA, BATON_TOKEN, BATON_DATA, BATON_LISTEN, BATON_CONFIG stand for the flags of the
same name; BATON_LOG sets what is logged (for example debug); NO_COLOR turns colours off.

Ids: tables may show the beginning of an id, with … behind it. Commands that look something up take any beginning that only
one id has; what is signed or sent to an agent needs its whole id."
)]
struct Cli {
    #[command(flatten)]
    connection: ConnectionArgs,
    /// How data is printed. On a terminal a table is the default, elsewhere JSON.
    #[arg(short, long, global = true, value_name = "FORMAT")]
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
    /// Register agents and look at them; run a small agent.
    #[command(subcommand)]
    Agent(agent::AgentCommand),
    /// Ask for handoffs, answer them, look at them.
    #[command(subcommand)]
    Handoff(handoff::HandoffCommand),
    /// Look at dead letters, and redrive or discard them.
    #[command(subcommand)]
    Dlq(dlq::DlqCommand),
    /// Look at tasks, follow them, audit them.
    #[command(subcommand)]
    Task(task::TaskCommand),
    /// Receive an agent's mail.
    #[command(subcommand)]
    Mail(mail::MailCommand),
    /// Sign, verify and inspect envelopes, as JSON.
    #[command(subcommand)]
    Envelope(envelope::EnvelopeCommand),
    /// Check, test and explain policies: who may do what.
    #[command(subcommand)]
    Policy(policy::PolicyCommand),
    Audit(audit::AuditArgs),
    /// Check a store that may be damaged, and save what can be read.
    #[command(subcommand)]
    Store(store::StoreCommand),
    /// Measure a broker: handoffs, idle sessions, backlogs, recovery.
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
        Command::Mail(command) => mail::run(command, &cli.connection, &output).await,
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

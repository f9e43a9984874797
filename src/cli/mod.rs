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
mod blob;
mod completions;
mod conformance;
mod connection;
mod console;
mod context;
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
mod handoffs_watch;
mod inbox;
mod json;
mod key;
mod keygen;
mod local;
mod logging;
mod mail;
mod negotiation;
mod plan;
mod policy;
mod progress;
mod resolve;
mod run;
mod saved;
mod schema;
mod serve;
mod spec;
mod store;
mod table;
mod task;
mod task_context;
#[cfg(test)]
mod texts;
mod thread;
mod token;
mod top;
mod worker;
mod workspace;

use std::ffi::OsString;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

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
  BATON_CONTEXT      the saved connection to use, as --context
  BATON_LOG          the log filter, for example debug or baton=trace
  NO_COLOR           turns colours off

Ids:
  Tables shorten long ids and mark them with …. Commands that read accept any unique prefix of an id.
  Commands that sign or send need the whole id."
)]
struct Cli {
    /// The saved connection to use: server, CA, identity, output. Other flags and the environment take precedence.
    /// Default: the one of `baton context use`.
    #[arg(long, global = true, help_heading = GLOBAL_HEADING, env = saved::VARIABLE, value_name = "NAME")]
    context: Option<String>,
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
    Inbox(inbox::InboxArgs),
    Console(console::ConsoleArgs),
    Top(top::TopArgs),
    /// Request, answer, list and watch handoffs.
    #[command(subcommand)]
    Handoff(handoff::HandoffCommand),
    /// List, inspect, redrive, discard and export dead letters.
    #[command(subcommand)]
    Dlq(dlq::DlqCommand),
    /// List, inspect, watch and audit tasks.
    #[command(subcommand)]
    Task(task::TaskCommand),
    /// Validate, submit, show, watch, cancel and retry plans of many subtasks.
    #[command(subcommand)]
    Plan(plan::PlanCommand),
    /// Register, validate, list and show graphs that a model routes through.
    #[command(subcommand)]
    Graph(graph::GraphCommand),
    /// Start runs through graphs, report turns, show, watch and cancel.
    #[command(subcommand)]
    Run(run::RunCommand),
    /// Save connections to brokers and choose one; show and store the contexts of tasks.
    #[command(subcommand)]
    Context(context::ContextCommand),
    /// Register, list and show the specs of personas and models.
    #[command(subcommand)]
    Spec(spec::SpecCommand),
    /// Create, show and watch threads, change the persona of one.
    #[command(subcommand)]
    Thread(thread::ThreadCommand),
    /// Receive and send an agent's messages.
    #[command(subcommand)]
    Mail(mail::MailCommand),
    /// Ask agents for offers, answer, award, list and watch.
    #[command(subcommand)]
    Negotiation(negotiation::NegotiationCommand),
    /// Append to workspaces, list and watch their entries.
    #[command(subcommand)]
    Workspace(workspace::WorkspaceCommand),
    /// Write, read, list and release blobs.
    #[command(subcommand)]
    Blob(blob::BlobCommand),
    /// Register, list, show and check the schemas of contexts.
    #[command(subcommand)]
    Schema(schema::SchemaCommand),
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

impl Command {
    /// Whether the command connects to no broker by the flags for connections.
    fn needs_no_connection(&self) -> bool {
        match self {
            Self::Dev(_)
            | Self::Serve(_)
            | Self::Keygen(_)
            | Self::Envelope(_)
            | Self::Policy(_)
            | Self::Store(_)
            | Self::Completions(_) => true,
            Self::Context(command) => command.is_about_connections(),
            _ => false,
        }
    }

    /// Whether the command loads or tests a broker, and so uses a saved connection only if it is named.
    fn is_a_test(&self) -> bool {
        matches!(self, Self::Demo(_) | Self::Bench(_) | Self::Conformance(_))
    }
}

/// Parses the arguments, with the values of the saved connection as defaults.
fn parse() -> Result<Cli, Failure> {
    let args: Vec<OsString> = std::env::args_os().collect();
    let chosen = match saved::chosen(&args) {
        Ok(Some(chosen)) => chosen,
        Ok(None) => return Ok(Cli::parse_from(args)),
        // A broken file must not keep the commands that mend it from running, nor the help.
        Err(failure) => {
            return match Cli::try_parse_from(args) {
                Ok(cli) if cli.command.needs_no_connection() => Ok(cli),
                Err(error) if !error.use_stderr() => error.exit(),
                Ok(_) | Err(_) => Err(failure),
            };
        }
    };
    let mut command = chosen.saved.as_defaults_of(Cli::command());
    let matches = command.clone().get_matches_from(&args);
    let mut cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.format(&mut command).exit());
    if cli.command.needs_no_connection() || (cli.command.is_a_test() && !chosen.is_named) {
        return Ok(Cli::parse_from(args));
    }
    cli.connection.act_as(&chosen.saved)?;
    Ok(cli)
}

/// Runs the command line. Returns the exit code.
pub fn run() -> u8 {
    let cli = match parse() {
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
    let output = Output::new(cli.output);
    match cli.command {
        Command::Dev(args) => dev::run(args).await,
        Command::Serve(args) => serve::run(args).await,
        Command::Demo(args) => demo::run(args, &cli.connection).await,
        Command::Keygen(args) => keygen::run(args, &output),
        Command::Token(args) => token::run(args, &cli.connection).await,
        Command::Agent(command) => agent::run(command, &cli.connection, &output).await,
        Command::Handoff(command) => handoff::run(command, &cli.connection, &output).await,
        Command::Top(args) => top::run(args, &cli.connection, &output).await,
        Command::Console(args) => console::run(args, &cli.connection, &output).await,
        Command::Inbox(args) => inbox::run(args, &cli.connection, &output).await,
        Command::Dlq(command) => dlq::run(command, &cli.connection, &output).await,
        Command::Task(command) => task::run(command, &cli.connection, &output).await,
        Command::Plan(command) => plan::run(command, &cli.connection, &output).await,
        Command::Graph(command) => graph::run(command, &cli.connection, &output).await,
        Command::Run(command) => run::run(command, &cli.connection, &output).await,
        Command::Spec(command) => spec::run(command, &cli.connection, &output).await,
        Command::Thread(command) => thread::run(command, &cli.connection, &output).await,
        Command::Context(command) => context::run(command, &cli.connection, &output).await,
        Command::Mail(command) => mail::run(command, &cli.connection, &output).await,
        Command::Negotiation(command) => negotiation::run(command, &cli.connection, &output).await,
        Command::Workspace(command) => workspace::run(command, &cli.connection, &output).await,
        Command::Blob(command) => blob::run(command, &cli.connection, &output).await,
        Command::Schema(command) => schema::run(command, &cli.connection, &output).await,
        Command::Envelope(command) => envelope::run(command),
        Command::Policy(command) => policy::run(command, &output),
        Command::Audit(audit::AuditArgs {}) => audit::run(&cli.connection, &output).await,
        Command::Store(command) => store::run(command, &output),
        Command::Bench(command) => bench::run(command, &cli.connection, &output).await,
        Command::Conformance(args) => conformance::run(args, &cli.connection).await,
        Command::Completions(args) => completions::run(&args),
    }
}

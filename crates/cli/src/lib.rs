//! The command line of baton: one file a command. Data goes to stdout, everything else to stderr.
//!
//! Owns flags, output and exit codes. All output passes through `output`, which escapes text from agents so that it
//! cannot control a terminal; lints refuse every other way. Talks to a broker over gRPC like any client. Must not know the
//! server: `dev`, `serve` and the page of help are the program's own.

#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

#[macro_use]
pub mod output;

mod a2a;
mod agent;
mod audit;
mod backup;
mod bench;
mod blob;
mod conformance;
pub mod connection;
mod console;
mod context;
mod demo;
mod dlq;
mod duration;
mod envelope;
mod exec;
pub mod exit;
mod extend;
mod find;
mod gateway;
mod graph;
mod handoff;
mod handoff_request;
mod handoff_show;
mod handoffs_list;
mod handoffs_watch;
mod health;
mod inbox;
mod json;
mod key;
mod keygen;
mod local;
pub mod logging;
mod mail;
mod mcp;
mod negotiation;
mod outgoing;
mod plan;
mod policy;
mod probe;
mod profile;
mod progress;
mod registration;
mod resolve;
mod run;
mod runner;
pub mod saved;
mod schema;
pub mod signals;
mod span_of_time;
mod spec;
mod status;
mod store;
pub mod table;
mod task;
mod task_create;
mod task_watch;
mod thread;
mod token;
mod top;
mod turn;
mod watching;
mod worker;
mod workspace;

use std::{ffi::OsString, pin::Pin};

use clap::{Args, Parser, Subcommand, parser::ValueSource};

pub use console::login_url;
pub use exit::Failure;
pub use gateway::beside::{GatewayBeside, GatewaySettings, check_gateway_files, check_gateway_lists};

use self::{
    connection::{ConnectionArgs, GLOBAL_HEADING},
    output::{Format, Output},
};

/// The flags that all commands share.
#[derive(Debug, Args)]
pub struct GlobalArgs {
    /// The profile to use: server, CA, credentials, identity, output. Other flags and the environment take precedence.
    /// Default: the one of `baton profile use`.
    #[arg(long, global = true, help_heading = GLOBAL_HEADING, env = saved::VARIABLE, value_name = "NAME")]
    profile: Option<String>,
    #[command(flatten)]
    connection: ConnectionArgs,
    /// The output format. Default: table on a terminal, otherwise json.
    #[arg(short, long, global = true, help_heading = GLOBAL_HEADING, value_name = "FORMAT")]
    output: Option<Format>,
}

impl GlobalArgs {
    /// The output that the flags want.
    pub fn output(&self) -> Output {
        Output::new(self.output)
    }
}

/// The whole command line of a program with these commands and its own.
pub trait Program: Parser {
    /// The command line to parse. Its help may differ from that of the derived one.
    fn line() -> clap::Command;

    /// The flags that all commands share.
    fn global(&mut self) -> &mut GlobalArgs;

    /// The command, if it is one of these.
    fn command(&self) -> Option<&Command>;
}

/// Parses the arguments, with the values of the profile as defaults.
///
/// # Errors
///
/// The arguments are wrong, or the profile cannot be used. A request for help ends the process.
pub fn parse<P: Program>() -> Result<P, Failure> {
    let needs_no_connection = |program: &P| program.command().is_none_or(Command::needs_no_connection);
    let args: Vec<OsString> = std::env::args_os().collect();
    let chosen = match saved::chosen(&args) {
        Ok(Some(chosen)) => chosen,
        Ok(None) => return parsed(P::line(), &args).or_else(not_parsed),
        // A broken file must not keep the commands that mend it from running, nor the help.
        Err(failure) => {
            return match parsed::<P>(P::line(), &args) {
                Ok(program) if needs_no_connection(&program) => Ok(program),
                Err(error) if !error.use_stderr() => error.exit(),
                Ok(_) | Err(_) => Err(failure),
            };
        }
    };
    let mut command = chosen.saved.as_defaults_of(P::line());
    let matches = match command.clone().try_get_matches_from(&args) {
        Ok(matches) => matches,
        Err(error) => return not_parsed(error),
    };
    let mut program = match P::from_arg_matches(&matches) {
        Ok(program) => program,
        Err(error) => return not_parsed(error.format(&mut command)),
    };
    let is_a_test = program.command().is_some_and(Command::is_a_test);
    if needs_no_connection(&program) || (is_a_test && !chosen.is_named) {
        return parsed(P::line(), &args).or_else(not_parsed);
    }
    let of_profile = |id| matches.value_source(id) == Some(ValueSource::DefaultValue);
    let connection = &mut program.global().connection;
    if of_profile("token_file") && !connection.is_at(&chosen.saved) {
        connection.forget_token();
    }
    connection.act_as(&chosen.name, &chosen.saved)?;
    Ok(program)
}

fn parsed<P: Program>(mut line: clap::Command, args: &[OsString]) -> Result<P, clap::Error> {
    let matches = line.try_get_matches_from_mut(args)?;
    P::from_arg_matches(&matches).map_err(|error| error.format(&mut line))
}

/// Prints a page of help and ends the process, or returns the failure of wrong arguments.
fn not_parsed<P>(error: clap::Error) -> Result<P, Failure> {
    use clap::error::ErrorKind;
    if !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        error.exit();
    }
    let text = error.to_string();
    Err(Failure::usage(text.trim_start_matches("error: ").trim_end()))
}

/// The commands beside those that start a broker.
#[derive(Debug, Subcommand)]
#[expect(private_interfaces, missing_docs, reason = "the flags of a command are its own, with its page of help")]
pub enum Command {
    Demo(demo::DemoArgs),
    Status(status::StatusArgs),
    Health(health::HealthArgs),
    Keygen(keygen::KeygenArgs),
    Token(token::TokenArgs),
    /// Register, list and inspect agents, manage their keys, run a small agent.
    #[command(subcommand)]
    Agent(agent::AgentCommand),
    Inbox(inbox::InboxArgs),
    Console(console::ConsoleArgs),
    Mcp(mcp::McpArgs),
    Gateway(gateway::GatewayArgs),
    /// Let a foreign agent that speaks A2A do the work of an agent.
    #[command(subcommand)]
    A2a(a2a::A2aCommand),
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
    /// Show and store the contexts of tasks.
    #[command(subcommand)]
    Context(context::ContextCommand),
    /// Save brokers and identities under names: add, list, show, test, use, rm.
    #[command(subcommand)]
    Profile(profile::ProfileCommand),
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
    Backup(backup::BackupArgs),
    /// Check a store for damage and export its readable records.
    #[command(subcommand)]
    Store(store::StoreCommand),
    /// Measure the performance of a broker.
    #[command(subcommand)]
    Bench(bench::BenchCommand),
    Conformance(conformance::ConformanceArgs),
}

impl Command {
    /// Whether the command connects to no broker by the flags for connections.
    fn needs_no_connection(&self) -> bool {
        matches!(
            self,
            Self::Keygen(_) | Self::Envelope(_) | Self::Policy(_) | Self::Profile(_) | Self::Store(_) | Self::Backup(_)
        )
    }

    /// Whether the command loads or tests a broker, and so uses a profile only if it is named.
    fn is_a_test(&self) -> bool {
        matches!(self, Self::Demo(_) | Self::Bench(_) | Self::Conformance(_))
    }
}

/// Runs a command. The future is boxed here: an async function is compiled where it is polled, and that would be the program,
/// with all that the commands call.
///
/// # Errors
///
/// The failure has its text and its exit code.
pub fn execute(command: Command, global: GlobalArgs) -> Pin<Box<dyn Future<Output = Result<(), Failure>>>> {
    Box::pin(async move { run_command(command, &global).await })
}

async fn run_command(command: Command, global: &GlobalArgs) -> Result<(), Failure> {
    let (connection, output) = (&global.connection, &global.output());
    match command {
        Command::Demo(args) => demo::run(args, connection).await,
        Command::Status(args) => status::run(args, connection, output).await,
        Command::Health(args) => health::run(args, connection).await,
        Command::Keygen(args) => keygen::run(args, output),
        Command::Token(args) => token::run(args, connection).await,
        Command::Agent(command) => agent::run(command, connection, output).await,
        Command::Handoff(command) => handoff::run(command, connection, output).await,
        Command::Top(args) => top::run(args, connection, output).await,
        Command::Mcp(args) => mcp::run(args, connection).await,
        Command::Gateway(args) => gateway::run(args, connection, output).await,
        Command::A2a(command) => a2a::run(command, connection).await,
        Command::Console(args) => console::run(args, connection, output).await,
        Command::Inbox(args) => inbox::run(args, connection, output).await,
        Command::Dlq(command) => dlq::run(command, connection, output).await,
        Command::Task(command) => task::run(command, connection, output).await,
        Command::Plan(command) => plan::run(command, connection, output).await,
        Command::Graph(command) => graph::run(command, connection, output).await,
        Command::Run(command) => run::run(command, connection, output).await,
        Command::Spec(command) => spec::run(command, connection, output).await,
        Command::Thread(command) => thread::run(command, connection, output).await,
        Command::Context(command) => context::run(command, connection, output).await,
        Command::Profile(command) => profile::run(command, connection, output).await,
        Command::Mail(command) => mail::run(command, connection, output).await,
        Command::Negotiation(command) => negotiation::run(command, connection, output).await,
        Command::Workspace(command) => workspace::run(command, connection, output).await,
        Command::Blob(command) => blob::run(command, connection, output).await,
        Command::Schema(command) => schema::run(command, connection, output).await,
        Command::Envelope(command) => envelope::run(command),
        Command::Policy(command) => policy::run(command, output),
        Command::Audit(args) => audit::run(args, connection, output).await,
        Command::Backup(args) => backup::run(&args, output),
        Command::Store(command) => store::run(command, output),
        Command::Bench(command) => bench::run(command, connection, output).await,
        Command::Conformance(args) => conformance::run(args, connection),
    }
}

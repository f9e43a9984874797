//! `baton-conformance`: tests a foreign broker or client against the rules of the specification. `baton conformance` calls
//! it.

#![forbid(unsafe_code)]

use std::{
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use baton_client::{ClientCertificate, Options, envelope::keys::PublicKey, ids::TaskId, parse_server, proto::v1};
use baton_conformance::{
    client,
    report::{self, Report, Rule},
    target::{self, Replayed, Target},
};
use baton_protocol::escape;
use baton_replay::replay::Replay;
use clap::{Parser, ValueEnum};
use indicatif::ProgressBar;

/// The exit codes, which are those of `baton`.
const FAILED: u8 = 1;
const USAGE: u8 = 2;
const CONFIGURATION: u8 = 3;
const UNREACHABLE: u8 = 9;
const NOT_CONFORMANT: u8 = 10;

/// Test a broker or a client against the rules of the specification.
///
/// Each observable rule of docs/specification.md is a case. A broker is tested over the network only. Cases are
/// independent and use random ids, so a broker in use can be tested; the agents and tasks that they create remain. A
/// client is started by a shell once per case and connects to a scripted broker of the suite;
/// docs/conformance-client.md describes the protocol.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Examples:
  baton-conformance --target 127.0.0.1:22866 --ca baton-data/tls/ca.pem
  baton-conformance --target broker.example:22866 --token \"$TOKEN\" --format junit --report conformance.xml
  baton-conformance --list
  baton-conformance --target 127.0.0.1:22866 --only 'handoff.*' --only scenario.loops-are-stopped
  baton-conformance --client 'python3 tests/harness.py' --only 'client.forged-*'
  baton-conformance --client ./harness --list

--token must be an operator's token. It registers the agents if enrolment is not open. Cases about operators need it, and \
are skipped without it.

Exit codes:
  0   each case passed
  1   the command failed
  2   wrong usage
  3   a named file cannot be used
  9   no broker answers, or its certificate is untrusted
  10  a case failed"
)]
struct Args {
    /// The broker to test.
    #[arg(long, value_name = "HOST:PORT", value_parser = parse_server, required_unless_present_any = ["list", "client"])]
    target: Option<String>,
    /// The client to test: a shell command that starts its test harness.
    #[arg(long, value_name = "CMD", conflicts_with = "target")]
    client: Option<String>,
    /// The number of cases that run at the same time.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    jobs: u16,
    /// The time limit for each answer and delivery of a broker, and for each step of a client; at most 24h.
    #[arg(long, default_value = "20s", value_name = "SPAN", value_parser = parse_span)]
    patience: Duration,
    /// The CA certificates to trust, a PEM file. Default: ./baton-data/tls/ca.pem for the broker that runs on
    /// ./baton-data, otherwise the system's CAs.
    #[arg(long, env = "BATON_CA", value_name = "FILE")]
    ca: Option<PathBuf>,
    /// The token that authenticates calls.
    #[arg(long, env = "BATON_TOKEN", value_name = "TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// A client certificate that authenticates the caller, a PEM file. Needs --cert-key.
    #[arg(long, env = "BATON_CERT", value_name = "FILE", requires = "cert_key")]
    cert: Option<PathBuf>,
    /// The private key of the client certificate, a PEM file.
    #[arg(long, env = "BATON_CERT_KEY", value_name = "FILE", requires = "cert")]
    cert_key: Option<PathBuf>,
    /// Run only cases whose names match: * stands for any characters. May be repeated.
    #[arg(long, value_name = "PATTERN")]
    only: Vec<String>,
    /// List the cases with their rules, and run none.
    #[arg(long)]
    list: bool,
    /// The report's format.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// The file for the report. Default: standard output.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

/// The format of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Text for people.
    Text,
    /// JSON for programs.
    Json,
    /// JUnit XML for CI servers.
    Junit,
}

/// Why no suite ran, or which failed, with the exit code.
#[derive(Debug)]
struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    fn new(code: u8, message: impl ToString) -> Self {
        Self { code, message: message.to_string() }
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&Failure::new(FAILED, format!("failed to start the program's threads: {error}"))),
    };
    match runtime.block_on(run(args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => fail(&failure),
    }
}

/// Says the failure on stderr.
fn fail(failure: &Failure) -> ExitCode {
    drop(writeln!(io::stderr(), "baton-conformance: {}", escape::lines(&failure.message)));
    ExitCode::from(failure.code)
}

async fn run(args: Args) -> Result<(), Failure> {
    let jobs = usize::from(args.jobs);
    if let Some(command) = &args.client {
        let cases = report::select(client::cases(), &args.only, |case| case.name);
        let cases = cases.map_err(|error| Failure::new(USAGE, error))?;
        if args.list {
            return list(&cases.into_iter().map(client::Case::rule).collect::<Vec<_>>(), args.format);
        }
        let progress = ProgressBar::new(cases.len() as u64);
        let report = client::run(command, cases, jobs, args.patience, |_| progress.inc(1)).await;
        progress.finish_and_clear();
        return finish(&report.map_err(|error| Failure::new(FAILED, error))?, &args);
    }
    let cases = report::select(target::cases(), &args.only, |case| &case.rule.name);
    let cases = cases.map_err(|error| Failure::new(USAGE, error))?;
    let Some(server) = args.target.clone().filter(|_| !args.list) else {
        return list(&cases.into_iter().map(|case| case.rule).collect::<Vec<_>>(), args.format);
    };
    let tried = Target { options: options(server, &args)?, patience: args.patience, replay };
    let progress = ProgressBar::new(cases.len() as u64);
    let report = target::run(tried, cases, jobs, |_| progress.inc(1)).await;
    progress.finish_and_clear();
    finish(&report.map_err(|error| Failure::new(code_of(&error), error))?, &args)
}

/// The exit code of a suite that could not begin.
fn code_of(error: &baton_client::ClientError) -> u8 {
    use baton_client::ClientError::{
        Address, Ca, Certificate, File, PlaintextAfar, Token, Unreachable, Untimely, Untrusted,
    };
    match error {
        Ca { .. } | Certificate { .. } | Address { .. } | PlaintextAfar { .. } | File { .. } | Token => CONFIGURATION,
        Unreachable { .. } | Untrusted { .. } | Untimely { .. } => UNREACHABLE,
        _ => FAILED,
    }
}

fn options(server: String, args: &Args) -> Result<Options, Failure> {
    if let Some(ca) = &args.ca {
        fs::metadata(ca)
            .map_err(|error| Failure::new(CONFIGURATION, format!("failed to use {}: {error}", ca.display())))?;
    }
    let ca = args.ca.clone().or_else(|| local_ca(&server));
    let certificate = args.cert.clone().zip(args.cert_key.clone());
    Ok(Options {
        server,
        ca,
        token: args.token.as_deref().map(str::trim).filter(|token| !token.is_empty()).map(str::to_owned),
        certificate: certificate.map(|(certificate, key)| ClientCertificate { certificate, key }),
        compression: None,
    })
}

/// The CA of the broker that runs on ./baton-data, if that is the target.
fn local_ca(server: &str) -> Option<PathBuf> {
    let folder = Path::new("baton-data");
    let address = fs::read_to_string(folder.join("address")).ok()?;
    let ca = folder.join("tls/ca.pem");
    (address.trim() == server && ca.exists()).then_some(ca)
}

fn replay(task: &TaskId, broker_key: PublicKey, log: &[v1::CustodyLogEntry]) -> Result<Replayed, String> {
    let mut replay = Replay::new(task.clone(), Some(broker_key));
    log.iter().try_for_each(|entry| replay.take(entry)).map_err(|error| error.to_string())?;
    Ok(Replayed {
        head: *replay.hash(),
        owner_and_epoch: replay.task().map(|task| (task.owner.to_string(), task.epoch)),
        receipts: replay.receipts(),
    })
}

/// Prints the list of cases.
fn list(rules: &[Rule], format: Format) -> Result<(), Failure> {
    match format {
        Format::Text => print(&escape::lines(report::list(rules).trim_end())),
        Format::Json => {
            let text = serde_json::to_string_pretty(rules).map_err(|error| Failure::new(FAILED, error))?;
            print(&escape::json(&text))
        }
        Format::Junit => {
            Err(Failure::new(USAGE, "--list cannot be written as JUnit; use --format text or --format json"))
        }
    }
}

/// Writes the report. A failed case fails the command with its own exit code.
fn finish(report: &Report, args: &Args) -> Result<(), Failure> {
    let text = match args.format {
        Format::Text => report.text(),
        Format::Json => report.json(),
        Format::Junit => report.junit(),
    };
    // Escaped for a file too, because a reader may print the file on a terminal.
    let text = match args.format {
        Format::Json => escape::json(&text),
        Format::Text | Format::Junit => escape::lines(&text),
    };
    match &args.report {
        Some(path) => fs::write(path, &*text)
            .map_err(|error| Failure::new(CONFIGURATION, format!("failed to use {}: {error}", path.display())))?,
        None => print(text.trim_end())?,
    }
    match report.failed {
        0 => Ok(()),
        failed => Err(Failure::new(NOT_CONFORMANT, format!("{failed} of {} cases failed", report.cases.len()))),
    }
}

/// Prints an escaped text. A reader that has gone, as in `| head`, is no failure.
fn print(text: &str) -> Result<(), Failure> {
    match writeln!(io::stdout(), "{text}") {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(Failure::new(FAILED, format!("failed to write to standard output: {error}"))),
    }
}

/// Parses a span, for example `20s` or `2m`.
fn parse_span(text: &str) -> Result<Duration, String> {
    let span = match text.parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => humantime::parse_duration(text).map_err(|error| error.to_string())?,
    };
    Some(span).filter(|span| span.as_secs() <= 24 * 3600).ok_or_else(|| "must be from 0 to 24h".to_owned())
}

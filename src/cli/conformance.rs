//! `baton conformance`: tests a foreign broker or client against the rules of the specification.

use std::{path::PathBuf, time::Duration};

use clap::{Args, ValueEnum};
use indicatif::ProgressBar;

use super::{
    Failure,
    bench::parse_span,
    connection::{ConnectionArgs, parse_server},
    escape, output,
};
use crate::{
    conformance::{
        client,
        report::{self, Report, Rule},
        target::{self, Replayed, Target},
    },
    envelope::keys::PublicKey,
    ids::TaskId,
    proto::v1,
    replay::Replay,
};

/// Test a broker or a client against the rules of the specification.
///
/// Each observable rule of docs/specification.md is a case. A broker is tested over the network only. Cases are
/// independent and use random ids, so a broker in use can be tested; the agents and tasks that they create remain. A
/// client is started by a shell once per case and connects to a scripted broker of the suite;
/// docs/conformance-client.md describes the protocol.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  baton conformance --target 127.0.0.1:22866 --ca baton-data/tls/ca.pem
  baton conformance --target broker.example:22866 --token \"$TOKEN\" --format junit --report conformance.xml
  baton conformance --list
  baton conformance --target 127.0.0.1:22866 --only 'handoff.*' --only scenario.loops-are-stopped
  baton conformance --client 'python3 tests/harness.py' --only 'client.forged-*'
  baton conformance --client ./harness --list

--token must be an operator's token. It registers the agents if enrolment is not open. Cases about operators need it, and \
are skipped without it. Exit code 10 if a case failed.")]
pub(super) struct ConformanceArgs {
    /// The broker to test.
    #[arg(long, value_name = "HOST:PORT", value_parser = parse_server, required_unless_present_any = ["list", "client"])]
    target: Option<String>,
    /// The client to test: a shell command that starts its test harness.
    #[arg(long, value_name = "CMD", conflicts_with = "target")]
    client: Option<String>,
    /// The number of cases that run at the same time.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    jobs: u16,
    /// The time limit for each answer and delivery of a broker, and for each step of a client.
    #[arg(long, default_value = "20s", value_name = "SPAN", value_parser = parse_span)]
    patience: Duration,
    #[command(flatten)]
    report: ReportArgs,
}

pub(super) async fn run(args: ConformanceArgs, connection: &ConnectionArgs) -> Result<(), Failure> {
    if let Some(command) = &args.client {
        return run_client(command, args.jobs.into(), args.patience, &args.report).await;
    }
    let cases = report::select(target::cases(), &args.report.only, |case| &case.rule.name);
    let cases = cases.map_err(|error| Failure::usage(error.to_string()))?;
    let Some(server) = args.target.filter(|_| !args.report.list) else {
        let rules: Vec<Rule> = cases.into_iter().map(|case| case.rule).collect();
        return args.report.show_list(&rules);
    };
    // The target gets an explicit token only, never that of ./baton-data.
    let tried = Target { options: connection.options_of(server)?, patience: args.patience, replay };
    let progress = ProgressBar::new(cases.len() as u64);
    let report = target::run(tried, cases, args.jobs.into(), |_| progress.inc(1)).await;
    progress.finish_and_clear();
    let report = report?;
    args.report.finish(&report)
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

async fn run_client(command: &str, jobs: usize, patience: Duration, args: &ReportArgs) -> Result<(), Failure> {
    let cases = report::select(client::cases(), &args.only, |case| case.name);
    let cases = cases.map_err(|error| Failure::usage(error.to_string()))?;
    if args.list {
        return args.show_list(&cases.into_iter().map(client::Case::rule).collect::<Vec<_>>());
    }
    let progress = ProgressBar::new(cases.len() as u64);
    let report = client::run(command, cases, jobs, patience, |_| progress.inc(1)).await;
    progress.finish_and_clear();
    args.finish(&report.map_err(|error| Failure::failed(error.to_string()))?)
}

/// The format of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum ReportFormat {
    /// Text for people.
    Text,
    /// JSON for programs.
    Json,
    /// JUnit XML for CI servers.
    Junit,
}

/// Flags of every conformance suite: which cases, and what is done with what came of them.
#[derive(Debug, Args)]
pub(super) struct ReportArgs {
    /// Run only cases whose names match: * stands for any characters. May be repeated.
    #[arg(long, value_name = "PATTERN")]
    pub(super) only: Vec<String>,
    /// List the cases with their rules, and run none.
    #[arg(long)]
    pub(super) list: bool,
    /// The report's format.
    #[arg(long, value_enum, default_value_t = ReportFormat::Text)]
    format: ReportFormat,
    /// The file for the report. Default: standard output.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

impl ReportArgs {
    /// Prints the list of cases.
    pub(super) fn show_list(&self, rules: &[Rule]) -> Result<(), Failure> {
        match self.format {
            ReportFormat::Text => say_lines!("{}", report::list(rules).trim_end()),
            ReportFormat::Json => {
                let text = serde_json::to_string_pretty(rules).map_err(|error| Failure::failed(error.to_string()))?;
                output::say_json_text(&text);
            }
            ReportFormat::Junit => {
                return Err(Failure::usage("--list cannot be written as JUnit; use --format text or --format json"));
            }
        }
        Ok(())
    }

    /// Writes the report. A failed case fails the command with its own exit code.
    pub(super) fn finish(&self, report: &Report) -> Result<(), Failure> {
        let text = match self.format {
            ReportFormat::Text => report.text(),
            ReportFormat::Json => report.json(),
            ReportFormat::Junit => report.junit(),
        };
        let text = match self.format {
            // Escaped for a file too, because a reader may print the file on a terminal.
            ReportFormat::Json => escape::json(&text),
            ReportFormat::Text | ReportFormat::Junit => escape::lines(&text),
        };
        match &self.report {
            Some(path) => std::fs::write(path, &*text).map_err(|error| Failure::file(path, error))?,
            None => output::say_text(text.trim_end()),
        }
        match report.failed {
            0 => Ok(()),
            failed => Err(Failure::not_conformant(format!("{failed} of {} cases failed", report.cases.len()))),
        }
    }
}

//! `baton bench`: measures a broker from outside, with real agents over TLS.
//!
//! Owns load, clocks and counters. Must not know the internals of a broker: the broker is another process, of which the
//! bench sees the counters of the operating system and the number of commit batches in its store.

mod agents;
mod backlog;
mod broker;
mod handoff;
mod idle;
mod latency;
mod pace;
mod pair;
mod plan;
mod process;
mod recover;
mod report;
mod run;
mod text;

use clap::Subcommand;

use super::{Failure, connection::ConnectionArgs, duration, output::Output};

#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  baton bench handoff
  TMPDIR=/var/tmp baton bench backlog

Without --server, each bench starts a broker in a temporary folder (TMPDIR) and stops it at the end. The folder must be on a \
disk: on a tmpfs a sync costs nothing. Ctrl-C ends a bench early and prints the result so far.")]
pub(super) enum BenchCommand {
    Handoff(handoff::HandoffArgs),
    Idle(idle::IdleArgs),
    Backlog(backlog::BacklogArgs),
    Recover(recover::RecoverArgs),
    Plan(plan::PlanArgs),
}

pub(super) async fn run(command: BenchCommand, connection: &ConnectionArgs, output: &Output) -> Result<(), Failure> {
    match command {
        BenchCommand::Handoff(args) => handoff::run(args, connection, *output).await,
        BenchCommand::Idle(args) => idle::run(args, connection, *output).await,
        BenchCommand::Backlog(args) => backlog::run(args, connection, *output).await,
        BenchCommand::Recover(args) => recover::run(args, connection, *output).await,
        BenchCommand::Plan(args) => plan::run(args, connection, *output).await,
    }
}

/// Parses a duration, for example 10s, 500ms or 1m 30s; a bare number is in seconds.
pub(super) fn parse_span(text: &str) -> Result<std::time::Duration, String> {
    let span = duration::parse(text)?;
    Some(span).filter(|span| span.as_secs() <= 24 * 3600).ok_or_else(|| "must be from 0 to 24h".to_owned())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::parse_span;

    #[test]
    fn spans_have_a_unit_or_are_seconds() {
        for (text, milliseconds) in
            [("10", 10_000), ("1s 500ms", 1500), ("250ms", 250), ("2m", 120_000), ("24h", 86_400_000)]
        {
            assert_eq!(parse_span(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
        for bad in ["", "s", "-1s", "2d", "25h", "nan", "inf", "1e99"] {
            assert!(parse_span(bad).is_err(), "{bad}");
        }
    }
}

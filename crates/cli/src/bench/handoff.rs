//! `baton bench handoff`: pairs of agents hand tasks over, at full speed or at a given rate.

use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tokio::task::JoinSet;

use super::{
    agents,
    broker::{BrokerArgs, Target},
    latency::Summary,
    pace::Pacer,
    pair::{Pair, STEPS, Schedule, StepLatencies, Tally, Work},
    parse_span,
    report::{self, Costs, Reading, Resident, per_second},
    run::{Goal, Run},
};
use crate::{Failure, connection::ConnectionArgs, output::Output};

/// Measure the throughput and latency of handoffs between pairs of agents.
///
/// One handoff is four messages: request, accept, context, complete. Each message is signed, stored with a sync before
/// its receipt, delivered and acknowledged. The clients do not verify receipts.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  baton bench handoff                                      8 pairs, 32 handoffs in flight each, 10 s
  baton bench handoff --verify                             receivers check signatures end to end
  baton bench handoff --rate 1000 -o json                  latency at 1000 handoffs per second
  baton bench handoff --pairs 1 --window 1                 one at a time
  baton bench handoff --server 127.0.0.1:22866 --ca ca.pem a running broker

With --rate, the latency of a handoff counts from its scheduled start, so that a stalled broker counts (coordinated omission).")]
pub(crate) struct HandoffArgs {
    /// Pairs of agents. Each agent has its own connection.
    #[arg(long, default_value_t = 8, value_name = "PAIRS", value_parser = clap::value_parser!(u16).range(1..=4096))]
    pairs: u16,
    /// The most open handoffs per pair.
    #[arg(long, default_value_t = 32, value_name = "HANDOFFS", value_parser = clap::value_parser!(u16).range(1..=4096))]
    window: u16,
    /// The size of each context in bytes, from 4 to 1000000.
    #[arg(long, default_value_t = 2048, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(4..=1_000_000))]
    context_size: u32,
    /// The time to measure, for example 10s, 500ms or 2m.
    #[arg(long, default_value = "10s", value_name = "TIME", value_parser = parse_span)]
    duration: Duration,
    /// The time to run before the measurement starts.
    #[arg(long, default_value = "2s", value_name = "TIME", value_parser = parse_span)]
    warm_up: Duration,
    /// Start this number of handoffs per second over all pairs. Default: as many as the broker takes.
    #[arg(long, value_name = "PER_SECOND", value_parser = parse_rate)]
    rate: Option<f64>,
    /// Receivers verify the signature of each delivery.
    #[arg(long, conflicts_with = "unsigned")]
    verify: bool,
    #[command(flatten)]
    broker: BrokerArgs,
}

fn parse_rate(text: &str) -> Result<f64, String> {
    let rate: f64 = text.parse().map_err(|_| "must be a number".to_owned())?;
    if (0.01..=1e6).contains(&rate) { Ok(rate) } else { Err("must be from 0.01 to 1000000".to_owned()) }
}

#[derive(Debug, Serialize)]
struct Report {
    bench: &'static str,
    pairs: u16,
    window: u16,
    context_bytes: u32,
    signed: bool,
    verified: bool,
    rate_per_second: Option<f64>,
    warm_up_s: f64,
    duration_s: f64,
    /// Whether ctrl-C ended the run early.
    interrupted: bool,
    /// The number of handoffs that ended while measuring.
    handoffs: u64,
    handoffs_per_second: f64,
    /// The number of handoffs over the whole run, including warm-up and drain.
    handoffs_whole_run: u64,
    failed: u64,
    redelivered: u64,
    latency: LatencyReport,
    per_handoff: Costs,
    resident: Resident,
}

#[derive(Debug, Serialize)]
struct LatencyReport {
    handoff: Summary,
    request: Summary,
    accept: Summary,
    context: Summary,
    complete: Summary,
    receipt: Summary,
}

pub(super) async fn run(args: HandoffArgs, connection: &ConnectionArgs, output: Output) -> Result<(), Failure> {
    let run = Run::begin()?;
    let target = run.unless_interrupted(Target::find(&args.broker, connection)).await?;
    let pairs = run.unless_interrupted(connect(&args, &target, &run)).await?;
    let (pacer, schedules) = schedules(&args);
    let mut working = JoinSet::new();
    for (pair, schedule) in pairs.into_iter().zip(schedules) {
        working.spawn(pair.run(schedule));
    }
    let measured = run.show("handoffs", Goal::Time(args.warm_up + args.duration), measure(&args, &target, &run));
    let (before, after) = tokio::select! {
        readings = measured => readings,
        // A pair ends during the measurement only if its session breaks off.
        Some(ended) = working.join_next() => {
            return Err(joined(ended).err().unwrap_or_else(|| Failure::failed("a pair of agents stopped without an error")));
        }
    };
    // Stops new starts before the drain, so that the pairs can finish their handoffs in flight.
    drop(pacer);
    let resident = Resident::of(&target);
    let (mut tally, mut latencies) = (Tally::default(), StepLatencies::new());
    while let Some(ended) = working.join_next().await {
        add(&mut tally, &mut latencies, joined(ended)?);
    }
    let report = summarize(&args, &run, (&before, &after), &tally, &latencies, resident);
    target.stop().await?;
    report::print(output, &report, || report.lines())?;
    match tally.failure {
        Some(problem) => Err(Failure::failed(format!("{} handoffs failed; the first: {problem}", tally.failed))),
        None => Ok(()),
    }
}

async fn connect(args: &HandoffArgs, target: &Target, run: &Run) -> Result<Vec<Pair>, Failure> {
    let name = agents::new_run();
    let pair = |number| [agents::new_agent(&name, "giver", number), agents::new_agent(&name, "taker", number)];
    let identities: Vec<_> = (0..usize::from(args.pairs)).map(pair).collect();
    agents::register(target, identities.iter().flatten()).await?;
    let work = Work {
        window: args.window.into(),
        context_bytes: args.context_size as usize,
        signed: !args.broker.unsigned,
        verify: args.verify,
        timeouts: None,
        stays_open: false,
        ends_tasks: !target.is_own(),
    };
    let mut pairs = Vec::with_capacity(identities.len());
    for pair in identities {
        pairs.push(Pair::connect(target, pair, work.clone(), run.clone()).await?);
    }
    Ok(pairs)
}

fn schedules(args: &HandoffArgs) -> (Option<Pacer>, Vec<Schedule>) {
    let pairs = usize::from(args.pairs);
    match args.rate {
        Some(rate) => {
            let (pacer, moments) = Pacer::start(rate, pairs);
            (Some(pacer), moments.into_iter().map(Schedule::At).collect())
        }
        None => (None, (0..pairs).map(|_| Schedule::Full(u64::MAX)).collect()),
    }
}

/// Waits for the warm-up, then measures. Returns the readings before and after.
async fn measure(args: &HandoffArgs, target: &Target, run: &Run) -> (Reading, Reading) {
    run.wait(args.warm_up).await;
    // Read outside the measured time, because reading /proc takes time itself.
    let before = Reading::take(target);
    run.set_measures(true);
    run.wait(args.duration).await;
    run.set_measures(false);
    let after = Reading::take(target);
    run.stop();
    (before, after)
}

pub(super) fn joined(ended: Result<Result<Tally, Failure>, tokio::task::JoinError>) -> Result<Tally, Failure> {
    ended.map_err(|failed| Failure::failed(failed.to_string()))?
}

fn add(sum: &mut Tally, latencies: &mut StepLatencies, one: Tally) {
    sum.completed += one.completed;
    sum.measured += one.measured;
    sum.failed += one.failed;
    sum.redelivered += one.redelivered;
    sum.failure = sum.failure.take().or(one.failure);
    if let Some(one) = &one.latencies {
        latencies.add(one);
    }
}

fn summarize(
    args: &HandoffArgs,
    run: &Run,
    (before, after): (&Reading, &Reading),
    tally: &Tally,
    latencies: &StepLatencies,
    resident: Resident,
) -> Report {
    let [request, accept, context, complete] = [0, 1, 2, 3].map(|step: usize| latencies.steps[step].summary());
    let measured = after.since(before);
    Report {
        bench: "handoff",
        pairs: args.pairs,
        window: args.window,
        context_bytes: args.context_size,
        signed: !args.broker.unsigned,
        verified: args.verify,
        rate_per_second: args.rate,
        warm_up_s: report::seconds(args.warm_up),
        duration_s: report::seconds(measured),
        interrupted: run.is_interrupted(),
        handoffs: tally.measured,
        handoffs_per_second: per_second(tally.measured, measured),
        handoffs_whole_run: tally.completed,
        failed: tally.failed,
        redelivered: tally.redelivered,
        latency: LatencyReport {
            handoff: latencies.handoff.summary(),
            request,
            accept,
            context,
            complete,
            receipt: latencies.receipt.summary(),
        },
        per_handoff: after.costs_since(before, tally.measured),
        resident,
    }
}

impl Report {
    fn lines(&self) -> Vec<(String, String)> {
        let line = |name: &str, value: String| (name.to_owned(), value);
        let latency = |name: &str, summary: &Summary| {
            let [p50, p90, p99, max] = summary.cells();
            line(name, format!("{p50:>9}{p90:>9}{p99:>9}{max:>9}"))
        };
        let signed = match (self.signed, self.verified) {
            (false, _) => "not signed",
            (true, false) => "signed",
            (true, true) => "signed, verified by receivers",
        };
        let interrupted = if self.interrupted { ", interrupted" } else { "" };
        let work = format!(
            "{} pairs, window {}, context {} bytes, {signed}, {:.1} s{interrupted}",
            self.pairs, self.window, self.context_bytes, self.duration_s
        );
        let mut lines = vec![line("work", work), line("handoffs", self.handoffs.to_string())];
        let wanted = self.rate_per_second.map(|rate| format!(" of {rate} wanted")).unwrap_or_default();
        lines.push(line("handoffs/s", format!("{:.0}{wanted}", self.handoffs_per_second)));
        lines.push(line("failed, redelivered", format!("{}, {}", self.failed, self.redelivered)));
        lines.push(line("latency, ms", format!("{:>9}{:>9}{:>9}{:>9}", "p50", "p90", "p99", "max")));
        lines.push(latency("  handoff", &self.latency.handoff));
        let steps = [&self.latency.request, &self.latency.accept, &self.latency.context, &self.latency.complete];
        lines.extend(STEPS.iter().zip(steps).map(|(name, summary)| latency(&format!("  {name}"), summary)));
        lines.push(latency("  receipt", &self.latency.receipt));
        lines.extend(self.per_handoff.lines("handoff"));
        lines.extend(self.resident.lines());
        lines
    }
}

//! `baton bench recover`: the time from a kill until many open handoffs continue.

use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tokio::task::JoinSet;

use super::{
    agents,
    broker::{BrokerArgs, Target},
    handoff::joined,
    pair::{OpenHandoff, Pair, Schedule, Tally, Work},
    report::{self, Resident, per_second},
    run::{Goal, Run},
};
use crate::{Failure, connection::ConnectionArgs, output::Output};
use baton_client::{Identity, proto::v1, time::Moment};

/// The handoffs of one pair, below the broker's limit of open handoffs for one agent.
const HANDOFFS_PER_PAIR_MAX: u32 = 50_000;
const PAIRS_MIN: u32 = 8;
const WINDOW: usize = 64;
/// The longest timeout that a broker allows, so that no handoff times out while the others are opened.
const TIMEOUT: prost_types::Duration = prost_types::Duration { seconds: 7 * 24 * 3600, nanos: 0 };

/// Measure recovery: open many handoffs, kill the broker, start it again, and continue them.
///
/// The bench always starts a broker of its own. When it is killed, all handoffs are accepted and wait for their
/// contexts. A sample of them, spread evenly from the first to the last, is then completed.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  baton bench recover                                  100000 open handoffs, 1000 of them completed
  baton bench recover --handoffs 1000000 --resume 1000000")]
pub(crate) struct RecoverArgs {
    /// The number of open handoffs.
    #[arg(long, default_value_t = 100_000, value_name = "HANDOFFS", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    handoffs: u32,
    /// The number of handoffs to complete after the restart.
    #[arg(long, default_value_t = 1000, value_name = "HANDOFFS", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    resume: u32,
    #[command(flatten)]
    broker: BrokerArgs,
}

#[derive(Debug, Serialize)]
struct Report {
    bench: &'static str,
    handoffs: u64,
    signed: bool,
    opening_s: f64,
    opened_per_second: f64,
    /// From the kill to the broker's ready message. The following times count from the kill too.
    ready_s: f64,
    /// Until every agent has a session again.
    connected_s: f64,
    /// Until the first handoff has completed.
    first_completed_s: f64,
    /// Until the last resumed handoff has completed.
    last_completed_s: f64,
    resumed: u64,
    redelivered: u64,
    resident_before: Resident,
    resident: Resident,
}

pub(super) async fn run(args: RecoverArgs, connection: &ConnectionArgs, output: Output) -> Result<(), Failure> {
    if connection.names_a_broker() {
        return Err(Failure::usage(
            "baton bench recover kills the broker that it measures, and so starts its own: omit --server",
        ));
    }
    let run = Run::begin()?;
    let (target, report) = run.unless_interrupted(measure(&args, &run)).await?;
    target.stop().await?;
    report::print(output, &report, || report.lines())
}

async fn measure(args: &RecoverArgs, run: &Run) -> Result<(Target, Report), Failure> {
    let target = Target::start(&args.broker).await?;
    let identities = register(args, &target).await?;
    let began = Moment::now();
    let opened =
        run.show("opened", Goal::Count(args.handoffs.into()), open_all(args, &target, &identities, run)).await?;
    let (opening, resident_before) = (began.elapsed(), Resident::of(&target));

    let killed = Moment::now();
    let target = target.kill_and_start_again().await?;
    let ready = killed.elapsed();
    let mut pairs = Vec::with_capacity(identities.len());
    for pair in identities {
        pairs.push(Pair::connect(&target, pair, work(args, false), run.clone()).await?);
    }
    let connected = killed.elapsed();
    let mut working = JoinSet::new();
    for (pair, open) in pairs.into_iter().zip(spread(opened, args.resume as usize)) {
        working.spawn(pair.run(Schedule::Resume(open.into_iter())));
    }
    let before = run.done();
    let going_on = async {
        let first = first_done(run, before, killed).await;
        (first, all_of(working).await, killed.elapsed())
    };
    let (first, resumed, last) = run.show("went on", Goal::Count(args.resume.into()), going_on).await;
    let resumed = resumed?;
    let report = Report {
        bench: "recover",
        handoffs: args.handoffs.into(),
        signed: !args.broker.unsigned,
        opening_s: report::seconds(opening),
        opened_per_second: per_second(args.handoffs.into(), opening),
        ready_s: report::seconds(ready),
        connected_s: report::seconds(connected),
        first_completed_s: report::seconds(first),
        last_completed_s: report::seconds(last),
        resumed: resumed.iter().map(|tally| tally.completed).sum(),
        redelivered: resumed.iter().map(|tally| tally.redelivered).sum(),
        resident_before,
        resident: Resident::of(&target),
    };
    Ok((target, report))
}

async fn register(args: &RecoverArgs, target: &Target) -> Result<Vec<[Identity; 2]>, Failure> {
    let (name, pairs) = (agents::new_run(), args.handoffs.div_ceil(HANDOFFS_PER_PAIR_MAX).max(PAIRS_MIN));
    let pair = |number| [agents::new_agent(&name, "giver", number), agents::new_agent(&name, "taker", number)];
    let identities: Vec<_> = (0..pairs as usize).map(pair).collect();
    agents::register(target, identities.iter().flatten()).await?;
    Ok(identities)
}

fn work(args: &RecoverArgs, stays_open: bool) -> Work {
    let timeout = Some(TIMEOUT);
    Work {
        window: WINDOW,
        context_bytes: 2048,
        signed: !args.broker.unsigned,
        verify: false,
        timeouts: Some(v1::HandoffTimeouts { accept: timeout, context: timeout, complete: timeout, whole: timeout }),
        stays_open,
        ends_tasks: false,
    }
}

/// Opens the handoffs. Returns them by pair.
async fn open_all(
    args: &RecoverArgs,
    target: &Target,
    identities: &[[Identity; 2]],
    run: &Run,
) -> Result<Vec<Vec<OpenHandoff>>, Failure> {
    let pairs = identities.len() as u64;
    let mut working = JoinSet::new();
    for (number, pair) in (0..pairs).zip(identities) {
        let pair = Pair::connect(target, pair.clone(), work(args, true), run.clone()).await?;
        // Rounds up for the first pairs and down for the others, so that the shares add up exactly.
        let share = (u64::from(args.handoffs) + pairs - 1 - number) / pairs;
        working.spawn(async move { pair.run(Schedule::Full(share)).await.map(|tally| (number, tally)) });
    }
    let mut opened = vec![Vec::new(); identities.len()];
    while let Some(ended) = working.join_next().await {
        let (number, tally) = ended.map_err(|failed| Failure::failed(failed.to_string()))??;
        opened[usize::try_from(number).unwrap_or_default()] = checked(tally)?.open;
    }
    Ok(opened)
}

async fn all_of(mut working: JoinSet<Result<Tally, Failure>>) -> Result<Vec<Tally>, Failure> {
    let mut tallies = Vec::with_capacity(working.len());
    while let Some(ended) = working.join_next().await {
        tallies.push(checked(joined(ended)?)?);
    }
    Ok(tallies)
}

fn checked(tally: Tally) -> Result<Tally, Failure> {
    match tally.failure {
        Some(problem) => Err(Failure::failed(format!("{} handoffs failed; the first: {problem}", tally.failed))),
        None => Ok(tally),
    }
}

/// Selects `wanted` handoffs over all pairs, in the order of opening: the first, the last, and others evenly between
/// them.
fn spread(opened: Vec<Vec<OpenHandoff>>, wanted: usize) -> Vec<Vec<OpenHandoff>> {
    let pairs = opened.len();
    let share = |(number, open): (usize, Vec<OpenHandoff>)| {
        let share = ((wanted + pairs - 1 - number) / pairs).min(open.len());
        let place = |turn: usize| if share > 1 { turn * (open.len() - 1) / (share - 1) } else { 0 };
        (0..share).map(|turn| open[place(turn)].clone()).collect()
    };
    opened.into_iter().enumerate().map(share).collect()
}

/// The time from the kill to the first completion of a resumed handoff.
async fn first_done(run: &Run, before: u64, killed: Moment) -> Duration {
    const LOOK_INTERVAL: Duration = Duration::from_millis(1);
    let mut looks = tokio::time::interval(LOOK_INTERVAL);
    // The count before the kill includes the opened handoffs; the first change is a completion.
    while run.done() == before {
        looks.tick().await;
    }
    killed.elapsed()
}

impl Report {
    fn lines(&self) -> Vec<(String, String)> {
        let line = |name: &str, value: String| (name.to_owned(), value);
        let signed = if self.signed { "signed" } else { "not signed" };
        let mut lines = vec![
            line("open handoffs", format!("{}, {signed}", self.handoffs)),
            line("opened in", format!("{:.2} s, {:.0} a second", self.opening_s, self.opened_per_second)),
        ];
        lines.extend(self.resident_before.lines());
        lines.extend([
            line("after the kill", String::new()),
            line("  ready", format!("{:.3} s", self.ready_s)),
            line("  agents connected", format!("{:.3} s", self.connected_s)),
            line("  first completed", format!("{:.3} s", self.first_completed_s)),
            line("  last completed", format!("{:.3} s, of {} that went on", self.last_completed_s, self.resumed)),
            line("redelivered", self.redelivered.to_string()),
        ]);
        lines.extend(self.resident.lines());
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::pair::open_handoff;

    #[test]
    fn those_that_go_on_are_spread_from_the_first_to_the_last() {
        let opened = || vec![(0..10).map(open_handoff).collect(), (0..9).map(open_handoff).collect()];
        let numbers = |wanted| -> Vec<Vec<u64>> {
            spread(opened(), wanted).iter().map(|open| open.iter().map(OpenHandoff::number).collect()).collect()
        };
        assert_eq!(numbers(1), [vec![0], vec![]]);
        assert_eq!(numbers(5), [vec![0, 4, 9], vec![0, 8]]);
        assert_eq!(numbers(100), [(0..10).collect::<Vec<_>>(), (0..9).collect()]);
    }
}

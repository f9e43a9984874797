//! `baton bench idle`: the cost of many idle sessions.

use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tokio::task::JoinSet;

use super::{
    agents,
    broker::{BrokerArgs, Target, allow_connections},
    latency::rounded,
    parse_span,
    report::{self, Reading, known, mebibytes, per_second},
    run::{Goal, Run},
};
use crate::{Failure, connection::ConnectionArgs, output::Output};
use baton_client::{
    ids::{IdSource as _, SystemIds},
    proto::v1::{self, connect_request::Request},
    time::{Clock as _, Moment, SystemClock},
    {ClientError, Identity, Pipeline},
};

/// Measure the memory and CPU cost of idle sessions that send only heartbeats.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  baton bench idle                                  10000 sessions, each on a connection of its own
  baton bench idle --sessions 50000 --sessions-per-connection 100
  baton bench idle --sessions 1000 --working-on 10  heartbeats that list 10 tasks each")]
pub(crate) struct IdleArgs {
    /// The number of sessions, each for its own agent.
    #[arg(long, default_value_t = 10_000, value_name = "SESSIONS", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    sessions: u32,
    /// The number of sessions on one connection.
    #[arg(long, default_value_t = 1, value_name = "SESSIONS", value_parser = clap::value_parser!(u32).range(1..=200))]
    sessions_per_connection: u32,
    /// The number of tasks that each heartbeat lists as worked on.
    #[arg(long, default_value_t = 0, value_name = "TASKS", value_parser = clap::value_parser!(u32).range(0..=1000))]
    working_on: u32,
    /// The time to measure after all sessions are open.
    #[arg(long, default_value = "30s", value_name = "TIME", value_parser = parse_span)]
    duration: Duration,
    #[command(flatten)]
    broker: BrokerArgs,
}

#[derive(Debug, Serialize)]
struct Report {
    bench: &'static str,
    sessions: u64,
    connections: u64,
    working_on: u32,
    /// The time until all sessions were open, including authentication.
    connecting_s: f64,
    sessions_per_second: f64,
    duration_s: f64,
    interrupted: bool,
    /// The number of sessions that ended before the end of the run.
    lost: u64,
    broker_resident_before_bytes: Option<u64>,
    broker_resident_bytes: Option<u64>,
    broker_bytes_per_session: Option<f64>,
    /// The share of one processor, while the sessions are idle.
    broker_cpu_percent: Option<f64>,
}

pub(super) async fn run(args: IdleArgs, connection: &ConnectionArgs, output: Output) -> Result<(), Failure> {
    let run = Run::begin()?;
    let connections = args.sessions.div_ceil(args.sessions_per_connection);
    allow_connections(connections as usize)?;
    let target = run.unless_interrupted(Target::find(&args.broker, connection)).await?;
    let name = agents::new_run();
    let identities: Vec<_> = (0..args.sessions as usize).map(|n| agents::new_agent(&name, "idle", n)).collect();
    run.unless_interrupted(agents::register(&target, identities.iter())).await?;
    let (resident_before, began) = (target.memory(), Moment::now());
    let opening = run.unless_interrupted(open_all(&target, &identities, &args, &run));
    let sessions = run.show("sessions", Goal::Count(args.sessions.into()), opening).await?;
    let connecting = began.elapsed();
    let mut idling = JoinSet::new();
    for (identity, session) in identities.iter().zip(sessions) {
        let task = |number| format!("{}.{number}", identity.agent);
        let working_on = (0..args.working_on).map(task).collect();
        idling.spawn(idle(session, v1::Heartbeat { working_on, ..Default::default() }, run.clone()));
    }
    let before = Reading::take(&target);
    run.show("idle", Goal::Time(args.duration), run.wait(args.duration)).await;
    let after = Reading::take(&target);
    let resident = target.memory();
    run.stop();
    let lost = idling.join_all().await.into_iter().filter(Result::is_err).count() as u64;
    let many = u64::from(args.sessions);
    let grown = resident.zip(resident_before).map(|(a, b)| a.resident_bytes.saturating_sub(b.resident_bytes));
    let idle_for = after.since(&before);
    let report = Report {
        bench: "idle",
        sessions: many,
        connections: connections.into(),
        working_on: args.working_on,
        connecting_s: report::seconds(connecting),
        sessions_per_second: per_second(many, connecting),
        duration_s: report::seconds(idle_for),
        interrupted: run.is_interrupted(),
        lost,
        broker_resident_before_bytes: resident_before.map(|memory| memory.resident_bytes),
        broker_resident_bytes: resident.map(|memory| memory.resident_bytes),
        broker_bytes_per_session: grown.map(|bytes| rounded(bytes as f64 / many as f64)),
        broker_cpu_percent: after
            .costs_since(&before, 1)
            .broker_cpu_us
            .map(|us| rounded(us / 1e4 / idle_for.as_secs_f64().max(0.001))),
    };
    target.stop().await?;
    report::print(output, &report, || report.lines())?;
    if lost > 0 { Err(Failure::failed(format!("{lost} sessions were lost"))) } else { Ok(()) }
}

async fn open_all(
    target: &Target,
    identities: &[Identity],
    args: &IdleArgs,
    run: &Run,
) -> Result<Vec<Pipeline>, Failure> {
    let some = identities.chunks(args.sessions_per_connection as usize).map(<[Identity]>::to_vec);
    let sessions = agents::all(some, |identities| {
        let (connecting, run, tells_work) = (target.connect(), run.clone(), args.working_on > 0);
        async move {
            let connection = connecting.await?;
            let mut sessions = Vec::with_capacity(identities.len());
            for identity in identities {
                let mut session = agents::open(&connection, &identity).await?;
                if tells_work {
                    let instance_id = SystemIds.message_id(SystemClock.now()).to_string();
                    session.push(0, Request::Hello(v1::Hello { instance_id, tells_work }));
                }
                agents::take_credit(&mut session, 16);
                run.done_one();
                sessions.push(session);
            }
            Ok(sessions)
        }
    });
    Ok(sessions.await?.into_iter().flatten().collect())
}

/// Sends heartbeats until the run stops. Fails if the session ends before that.
async fn idle(mut session: Pipeline, heartbeat: v1::Heartbeat, run: Run) -> Result<(), ClientError> {
    let interval = session.welcome.heartbeat_interval.and_then(|interval| Duration::try_from(interval).ok());
    let mut turns = tokio::time::interval(interval.filter(|span| !span.is_zero()).unwrap_or(Duration::from_secs(10)));
    turns.tick().await; // the first tick is immediate, and the session has just begun
    loop {
        tokio::select! {
            () = run.stopped() => return Ok(()),
            frame = session.next() => drop(frame?),
            _ = turns.tick() => {
                session.push(0, Request::Heartbeat(heartbeat.clone()));
                session.flush();
            }
        }
    }
}

impl Report {
    fn lines(&self) -> Vec<(String, String)> {
        let line = |name: &str, value: String| (name.to_owned(), value);
        let interrupted = if self.interrupted { ", interrupted" } else { "" };
        let tasks = if self.working_on > 0 { format!(", {} tasks each", self.working_on) } else { String::new() };
        let sessions = format!("{} on {} connections{tasks}{interrupted}", self.sessions, self.connections);
        vec![
            line("sessions", sessions),
            line("opened in", format!("{:.2} s, {:.0} a second", self.connecting_s, self.sessions_per_second)),
            line("lost", format!("{} in {:.1} s", self.lost, self.duration_s)),
            line("resident before, broker", known(self.broker_resident_before_bytes, mebibytes)),
            line("resident, broker", known(self.broker_resident_bytes, mebibytes)),
            line("a session, broker", known(self.broker_bytes_per_session, |b| format!("{:.1} KiB", b / 1024.0))),
            line("CPU while idle, broker", known(self.broker_cpu_percent, |percent| format!("{percent:.1} % of one"))),
        ]
    }
}

//! `baton bench backlog`: mail for disconnected agents, who then all reconnect.

use std::{sync::Arc, time::Duration};

use clap::Args;
use serde::Serialize;
use tokio::task::JoinSet;

use super::{
    agents,
    broker::{BrokerArgs, Target, allow_connections},
    latency::{Latencies, Summary},
    report::{self, Costs, Reading, Resident, per_second},
    run::{Goal, Run},
};
use crate::{Failure, connection::ConnectionArgs, output::Output};
use baton_client::{
    ids::SystemIds,
    proto::v1::{self, MessageType, connect_request::Request, connect_response::Response},
    time::{Moment, SystemClock},
    {About, ClientError, Composer, Identity, Pipeline},
};

/// The most messages of one sender without a receipt.
const WINDOW: u32 = 64;
/// The credit of an agent.
const CREDIT: u32 = 256;

/// Measure how fast mail for offline agents is stored, and how fast they receive it when all reconnect.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  baton bench backlog                                    1000 agents with 100 messages each
  baton bench backlog --agents 10 --messages 100000      few agents with large mailboxes")]
pub(crate) struct BacklogArgs {
    /// The number of offline agents.
    #[arg(long, default_value_t = 1000, value_name = "AGENTS", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    agents: u32,
    /// The number of messages for each of them.
    #[arg(long, default_value_t = 100, value_name = "MESSAGES", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    messages: u32,
    /// The number of agents that send, each with its own session.
    #[arg(long, default_value_t = 8, value_name = "SENDERS", value_parser = clap::value_parser!(u32).range(1..=1024))]
    senders: u32,
    /// The size of each message's text in bytes.
    #[arg(long, default_value_t = 512, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(0..=65_536))]
    size: u32,
    #[command(flatten)]
    broker: BrokerArgs,
}

#[derive(Debug, Serialize)]
struct Report {
    bench: &'static str,
    agents: u32,
    messages: u64,
    text_bytes: u32,
    signed: bool,
    storing_s: f64,
    stored_per_second: f64,
    per_stored: Costs,
    resident_with_backlog: Resident,
    /// From the reconnection of all agents to the last ack.
    taking_s: f64,
    taken_per_second: f64,
    per_taken: Costs,
    /// From the reconnection of all agents to the first message of each agent.
    first_message: Summary,
    /// From the reconnection of all agents to the last message of each agent.
    all_messages: Summary,
    redelivered: u64,
    resident: Resident,
}

pub(super) async fn run(args: BacklogArgs, connection: &ConnectionArgs, output: Output) -> Result<(), Failure> {
    let run = Run::begin()?;
    allow_connections((args.agents + args.senders) as usize)?;
    let target = run.unless_interrupted(Target::find(&args.broker, connection)).await?;
    let report = run.unless_interrupted(measure(&args, &target, &run)).await?;
    target.stop().await?;
    report::print(output, &report, || report.lines())
}

async fn measure(args: &BacklogArgs, target: &Target, run: &Run) -> Result<Report, Failure> {
    let name = agents::new_run();
    let senders: Vec<_> = (0..args.senders as usize).map(|n| agents::new_agent(&name, "sender", n)).collect();
    let away: Vec<_> = (0..args.agents as usize).map(|n| agents::new_agent(&name, "away", n)).collect();
    agents::register(target, senders.iter().chain(&away)).await?;
    let messages = u64::from(args.agents) * u64::from(args.messages);

    let empty = Reading::take(target);
    run.show("sent", Goal::Count(messages), send_all(args, target, senders, &away, run)).await?;
    let stored = Reading::take(target);
    let resident_with_backlog = Resident::of(target);

    let sessions = agents::all(away.into_iter(), |identity| {
        let connecting = target.connect();
        async move { agents::open(&connecting.await?, &identity).await }
    });
    let sessions = sessions.await?;
    // Opening the sessions belongs to neither measurement.
    let back = Reading::take(target);
    let taken = run.show("taken", Goal::Count(messages), take_all(args, sessions, run)).await?;
    let acked = Reading::take(target);
    Ok(Report {
        bench: "backlog",
        agents: args.agents,
        messages,
        text_bytes: args.size,
        signed: !args.broker.unsigned,
        storing_s: report::seconds(stored.since(&empty)),
        stored_per_second: per_second(messages, stored.since(&empty)),
        per_stored: stored.costs_since(&empty, messages),
        resident_with_backlog,
        taking_s: report::seconds(acked.since(&back)),
        taken_per_second: per_second(messages, acked.since(&back)),
        per_taken: acked.costs_since(&back, messages),
        first_message: taken.first.summary(),
        all_messages: taken.all.summary(),
        redelivered: taken.redelivered,
        resident: Resident::of(target),
    })
}

/// Every sender writes to every agent in turn until all messages are sent.
async fn send_all(
    args: &BacklogArgs,
    target: &Target,
    senders: Vec<Identity>,
    away: &[Identity],
    run: &Run,
) -> Result<(), Failure> {
    let receivers: Arc<[String]> = away.iter().map(|identity| identity.agent.to_string()).collect();
    let mut sending = JoinSet::new();
    for (number, identity) in senders.into_iter().enumerate() {
        let session = agents::open(&target.connect().await?, &identity).await?;
        let sender = Sender {
            session,
            composer: Composer { identity, clock: Arc::new(SystemClock), ids: Arc::new(SystemIds) },
            info: v1::Info { text: "x".repeat(args.size as usize), ..Default::default() },
            signed: !args.broker.unsigned,
            run: run.clone(),
        };
        let (receivers, senders) = (receivers.clone(), args.senders as usize);
        let many = receivers.len() * args.messages as usize;
        // The senders take turns, and turn n writes to agent n modulo the number of agents. So all mailboxes fill
        // evenly.
        let turns = (number..many).step_by(senders);
        sending.spawn(async move { sender.send(turns.map(|turn| receivers[turn % receivers.len()].clone())).await });
    }
    while let Some(ended) = sending.join_next().await {
        ended.map_err(|failed| Failure::failed(failed.to_string()))??;
    }
    Ok(())
}

struct Sender {
    session: Pipeline,
    composer: Composer,
    info: v1::Info,
    signed: bool,
    run: Run,
}

impl Sender {
    /// Sends a message to each receiver, and waits until each has its receipt.
    async fn send(mut self, receivers: impl Iterator<Item = String>) -> Result<(), Failure> {
        let (mut receivers, mut under_way) = (receivers.peekable(), 0);
        loop {
            while under_way < WINDOW
                && let Some(receiver) = receivers.next()
            {
                let envelope = self.envelope(&receiver);
                self.session.push(1, Request::Envelope(envelope));
                under_way += 1;
            }
            self.session.flush();
            if under_way == 0 {
                return Ok(());
            }
            // Refills half of the window at a time, so that frames go out in bursts.
            while under_way > WINDOW / 2 || receivers.peek().is_none() && under_way > 0 {
                take_receipt(&mut self.session).await?;
                self.run.done_one();
                under_way -= 1;
            }
        }
    }

    fn envelope(&self, to: &str) -> bytes::Bytes {
        let (kind, about) = (MessageType::Info, About::default());
        match self.signed {
            true => self.composer.encode(to, kind, &about, &self.info),
            false => prost::Message::encode_to_vec(&self.composer.draft(to, kind, &about, &self.info)).into(),
        }
    }
}

async fn take_receipt(session: &mut Pipeline) -> Result<(), Failure> {
    loop {
        match session.next().await?.response {
            Some(Response::Receipt(_)) => return Ok(()),
            Some(Response::Error(error)) => return Err(Failure::failed(error.message)),
            Some(Response::GoAway(go_away)) => return Err(ClientError::SessionEnded(go_away.reason_text).into()),
            Some(_) | None => {}
        }
    }
}

/// How the reconnected agents received their mail.
struct Taken {
    first: Latencies,
    all: Latencies,
    redelivered: u64,
}

async fn take_all(args: &BacklogArgs, sessions: Vec<Pipeline>, run: &Run) -> Result<Taken, Failure> {
    let began = Moment::now();
    let mut taking = JoinSet::new();
    for session in sessions {
        taking.spawn(take_mail(session, args.messages, began, run.clone()));
    }
    let mut taken = Taken { first: Latencies::new(), all: Latencies::new(), redelivered: 0 };
    while let Some(ended) = taking.join_next().await {
        let (first, all, redelivered) = ended.map_err(|failed| Failure::failed(failed.to_string()))??;
        taken.first.record(first);
        taken.all.record(all);
        taken.redelivered += redelivered;
    }
    Ok(taken)
}

/// Receives and acks this number of messages. Returns the times of the first and the last, and the number of
/// redeliveries.
async fn take_mail(
    mut session: Pipeline,
    messages: u32,
    began: Moment,
    run: Run,
) -> Result<(Duration, Duration, u64), Failure> {
    agents::take_credit(&mut session, CREDIT);
    let (mut first, mut redelivered, mut taken) = (None, 0, 0);
    loop {
        match session.next().await?.response {
            Some(Response::Delivery(delivery)) => {
                first.get_or_insert_with(|| began.elapsed());
                redelivered += u64::from(delivery.attempt > 1);
                taken += 1;
                run.done_one();
                // The broker processes acks in order, so only the last one asks for an answer.
                let request_id = u64::from(taken == messages);
                let outcome = Some(v1::acknowledgement::Outcome::Ack(v1::Ack {}));
                let acknowledgement = v1::Acknowledgement { delivery_id: delivery.delivery_id, outcome };
                session.push(request_id, Request::Acknowledgement(acknowledgement));
                session.flush();
            }
            Some(Response::Acknowledged(_)) => return Ok((first.unwrap_or_default(), began.elapsed(), redelivered)),
            Some(Response::Error(error)) => return Err(Failure::failed(error.message)),
            Some(Response::GoAway(go_away)) => return Err(ClientError::SessionEnded(go_away.reason_text).into()),
            Some(Response::Welcome(_) | Response::Receipt(_) | Response::Credited(_)) | None => {}
        }
    }
}

impl Report {
    fn lines(&self) -> Vec<(String, String)> {
        let line = |name: &str, value: String| (name.to_owned(), value);
        let signed = if self.signed { "signed" } else { "not signed" };
        let work =
            format!("{} messages for {} agents, {} bytes, {signed}", self.messages, self.agents, self.text_bytes);
        let spans = |name: &str, summary: &Summary| {
            let [p50, p90, p99, max] = summary.cells();
            line(name, format!("{p50:>9}{p90:>9}{p99:>9}{max:>9}"))
        };
        let mut lines = vec![
            line("work", work),
            line("stored in", format!("{:.2} s, {:.0} a second", self.storing_s, self.stored_per_second)),
        ];
        lines.extend(self.per_stored.lines("message"));
        lines.extend(self.resident_with_backlog.lines());
        lines.push(line("taken in", format!("{:.2} s, {:.0} a second", self.taking_s, self.taken_per_second)));
        lines.push(line("redelivered", self.redelivered.to_string()));
        lines.extend(self.per_taken.lines("message"));
        lines.push(line("an agent waits, ms", format!("{:>9}{:>9}{:>9}{:>9}", "p50", "p90", "p99", "max")));
        lines.push(spans("  for its first message", &self.first_message));
        lines.push(spans("  for all of them", &self.all_messages));
        lines.extend(self.resident.lines());
        lines
    }
}

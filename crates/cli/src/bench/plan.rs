//! `baton bench plan`: what the coordination of plans costs, beside as many plain delegated handoffs.

use std::{sync::Arc, task::Poll, time::Duration};

use clap::Args;
use prost::{Message as _, Name};
use serde::Serialize;
use tokio::task::JoinSet;

use super::{
    agents,
    broker::{BrokerArgs, Target},
    report::{self, Costs, Reading, Resident, per_second},
    run::{Goal, Run},
};
use crate::{Failure, connection::ConnectionArgs, output::Output};
use baton_client::{
    ids::SystemIds,
    proto::v1::{self, MessageType, connect_request::Request, connect_response::Response},
    time::SystemClock,
    {About, Client, ClientError, Composer, Identity, Pipeline, completion_of, context_of, subtask_result},
};

/// The most frames that are read before their answers are sent.
const BURST_MAX: usize = 64;
/// Half of the broker's default interval.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);
/// How often the count of finished handoffs is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(2);
/// The most plans that are submitted at the same time.
const DEFAULT_PLANS: u16 = 100;
/// The bytes of the context of a plain handoff: about that of a subtask with some results.
const CONTEXT_BYTES: usize = 2048;
/// The time of a loan, of a plan, and of each step of a handoff. The bench ends long before.
const PATIENCE: prost_types::Duration = prost_types::Duration { seconds: 3600, nanos: 0 };

/// Measure plans: many plans of instant agents at once, and as many plain delegated handoffs.
///
/// The subtasks of a plan are in layers, and each needs all subtasks of the layer before. An agent accepts, completes and
/// reports a result at once. The plain handoffs have as many owners as there are agents, as many handoffs open at once as
/// the plans have, and a context of 2 KiB. The ratios are those of the plans to the plain handoffs.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  baton bench plan                                   100 plans of 50 subtasks, 5 at once in each
  baton bench plan --plans 1 --subtasks 256 --width 16
  baton bench plan -o json | jq .time_ratio")]
pub(crate) struct PlanArgs {
    /// The number of plans.
    #[arg(long, default_value_t = DEFAULT_PLANS, value_name = "PLANS", value_parser = clap::value_parser!(u16).range(1..=1000))]
    plans: u16,
    /// The number of subtasks in each plan.
    #[arg(long, default_value_t = 50, value_name = "SUBTASKS", value_parser = clap::value_parser!(u16).range(1..=256))]
    subtasks: u16,
    /// The number of subtasks in a layer, which run at once.
    #[arg(long, default_value_t = 5, value_name = "SUBTASKS", value_parser = clap::value_parser!(u16).range(1..=64))]
    width: u16,
    /// The number of agents that carry out the subtasks. Each has its own connection.
    #[arg(long, default_value_t = 8, value_name = "AGENTS", value_parser = clap::value_parser!(u16).range(1..=1000))]
    agents: u16,
    #[command(flatten)]
    broker: BrokerArgs,
}

#[derive(Debug, Serialize)]
struct Report {
    bench: &'static str,
    plans: u16,
    subtasks: u16,
    width: u16,
    agents: u16,
    signed: bool,
    /// The number of handoffs in each of the two parts.
    handoffs: u64,
    plain: Part,
    planned: Part,
    /// The time of the plans divided by that of the plain handoffs.
    time_ratio: f64,
    /// The same for the CPU time of the broker; nothing if it is not known.
    broker_cpu_ratio: Option<f64>,
    resident: Resident,
}

#[derive(Debug, Serialize)]
struct Part {
    duration_s: f64,
    handoffs_per_second: f64,
    per_handoff: Costs,
}

/// The agents of a bench, and its owners.
struct Cast {
    workers: Vec<Identity>,
    owners: Vec<Identity>,
    submitter: Identity,
}

pub(super) async fn run(args: PlanArgs, connection: &ConnectionArgs, output: Output) -> Result<(), Failure> {
    let run = Run::begin()?;
    let (target, report) = run.unless_interrupted(measure(&args, connection, &run)).await?;
    target.stop().await?;
    report::print(output, &report, || report.lines())
}

async fn measure(args: &PlanArgs, connection: &ConnectionArgs, run: &Run) -> Result<(Target, Report), Failure> {
    let target = Target::find(&args.broker, connection).await?;
    let name = agents::new_run();
    let of = |role| (0..usize::from(args.agents)).map(|number| agents::new_agent(&name, role, number)).collect();
    let cast = Cast { workers: of("taker"), owners: of("giver"), submitter: agents::new_agent(&name, "planner", 0) };
    let all = cast.workers.iter().chain(&cast.owners).chain([&cast.submitter]);
    agents::register(&target, all).await?;
    let mut working = JoinSet::new();
    for worker in &cast.workers {
        let seat = Seat::connect(&target, worker.clone(), !args.broker.unsigned).await?;
        working.spawn(work(seat, run.clone()));
    }
    let handoffs = u64::from(args.plans) * u64::from(args.subtasks);
    let plain =
        part(&target, run, ("handoffs", handoffs), &mut working, delegate_all(args, &target, &cast, handoffs)).await?;
    let client = target.connect().await?;
    let client = client.sign_in(&cast.submitter).await?;
    let planned =
        part(&target, run, ("subtasks", handoffs), &mut working, submit_all(args, &client, &cast, &name)).await?;
    run.stop();
    check_ends(args, &client).await?;
    let ratio = |plans: f64, plain: f64| (plans / plain.max(f64::MIN_POSITIVE) * 100.0).round() / 100.0;
    let cpu = planned.per_handoff.broker_cpu_us.zip(plain.per_handoff.broker_cpu_us);
    let report = Report {
        bench: "plan",
        plans: args.plans,
        subtasks: args.subtasks,
        width: args.width,
        agents: args.agents,
        signed: !args.broker.unsigned,
        handoffs,
        time_ratio: ratio(planned.duration_s, plain.duration_s),
        broker_cpu_ratio: cpu.filter(|(_, plain)| *plain > 0.0).map(|(plans, plain)| ratio(plans, plain)),
        plain,
        planned,
        resident: Resident::of(&target),
    };
    Ok((target, report))
}

/// Measures one part: starts it, and waits until this number of handoffs has returned with a result.
async fn part(
    target: &Target,
    run: &Run,
    (what, handoffs): (&'static str, u64),
    working: &mut JoinSet<Result<(), Failure>>,
    start: impl Future<Output = Result<(), Failure>>,
) -> Result<Part, Failure> {
    let (goal, before) = (run.done() + handoffs, Reading::take(target));
    let done = async {
        let mut looks = tokio::time::interval(LOOK_INTERVAL);
        while run.done() < goal {
            looks.tick().await;
        }
    };
    let both = async {
        let (started, ()) = tokio::join!(start, done);
        started
    };
    tokio::select! {
        outcome = run.show(what, Goal::Count(handoffs), both) => outcome?,
        // A worker ends only with an error before the bench is over.
        Some(ended) = working.join_next() => {
            ended.map_err(|failed| Failure::failed(failed.to_string()))??;
            return Err(Failure::failed("an agent stopped without an error"));
        }
    }
    let after = Reading::take(target);
    let span = after.since(&before);
    Ok(Part {
        duration_s: report::seconds(span),
        handoffs_per_second: per_second(handoffs, span),
        per_handoff: after.costs_since(&before, handoffs),
    })
}

// ------------------------------------------------------------------------------------------------- the plain handoffs

/// Lends the tasks, as many at once as the plans would.
async fn delegate_all(args: &PlanArgs, target: &Target, cast: &Cast, handoffs: u64) -> Result<(), Failure> {
    let owners = cast.owners.len() as u64;
    let at_once = u64::from(args.plans) * u64::from(args.width);
    let mut lending = JoinSet::new();
    for (number, owner) in (0..owners).zip(&cast.owners) {
        let seat = Seat::connect(target, owner.clone(), !args.broker.unsigned).await?;
        let share = (handoffs + owners - 1 - number) / owners;
        let window = at_once.div_ceil(owners);
        let takers: Vec<String> = cast.workers.iter().map(|worker| worker.agent.to_string()).collect();
        lending.spawn(lend(seat, takers, share, window));
    }
    while let Some(ended) = lending.join_next().await {
        ended.map_err(|failed| Failure::failed(failed.to_string()))??;
    }
    Ok(())
}

/// Lends this number of tasks, and waits until all are back.
async fn lend(mut seat: Seat, takers: Vec<String>, share: u64, window: u64) -> Result<(), Failure> {
    let request = v1::HandoffRequest {
        task_type: "bench".to_owned(),
        reason: v1::HandoffReason::Workflow.into(),
        initial_context_summary: "one of very many subtasks, which measure what a plan costs".to_owned(),
        mode: v1::HandoffMode::Delegate.into(),
        loan_timeout: Some(PATIENCE),
        timeouts: Some(timeouts()),
        ..Default::default()
    };
    let context = context_of([("collected_data", format!("[\"{}\"]", "x".repeat(CONTEXT_BYTES)))]);
    let owner = seat.composer.identity.agent.to_string();
    let (mut begun, mut back, mut frames) = (0, 0, Vec::with_capacity(BURST_MAX));
    let mut heartbeat = tokio::time::interval(HEARTBEAT_INTERVAL);
    while back < share {
        while begun < share && begun - back < window {
            let taker = &takers[usize::try_from(begun).unwrap_or_default() % takers.len()];
            let about = About::task(&format!("{owner}-{begun}"), 1);
            seat.send(0, taker, MessageType::HandoffRequest, &about, &request);
            begun += 1;
        }
        seat.session.flush();
        tokio::select! {
            gathered = gather(&mut seat.session, &mut frames) => gathered?,
            _ = heartbeat.tick() => seat.beat(),
        }
        for frame in frames.drain(..) {
            let Some((delivery, envelope)) = delivered(frame)? else { continue };
            match envelope.message_type() {
                MessageType::HandoffAccept => {
                    let about = About::handoff(&envelope.task_id, envelope.epoch, &envelope.correlation_id);
                    seat.send(0, &envelope.sender_id, MessageType::TaskContextTransfer, &about, &context);
                }
                MessageType::TaskStatusUpdate => back += 1,
                MessageType::ErrorNotification => return Err(Failure::failed("a handoff failed")),
                _ => {}
            }
            seat.ack(delivery.delivery_id);
        }
    }
    // The last acks.
    seat.session.flush();
    Ok(())
}

// ----------------------------------------------------------------------------------------------------------- the plans

fn timeouts() -> v1::HandoffTimeouts {
    let each = Some(PATIENCE);
    v1::HandoffTimeouts { accept: each, context: each, complete: each, whole: each }
}

/// A plan in layers, whose subtasks go to the agents in turn.
fn plan(args: &PlanArgs, cast: &Cast, name: &str, number: u16) -> v1::Plan {
    let width = usize::from(args.width);
    let subtask = |place: usize| {
        let layer = place / width;
        let before = (layer.saturating_sub(1) * width)..(layer * width);
        v1::Subtask {
            id: format!("s{place}"),
            description: "one of very many subtasks, which measure what a plan costs".to_owned(),
            agent_id: cast.workers[(place + usize::from(number)) % cast.workers.len()].agent.to_string(),
            dependencies: before.map(|need| format!("s{need}")).collect(),
            timeout: Some(PATIENCE),
            handoff_timeouts: Some(timeouts()),
            ..Default::default()
        }
    };
    v1::Plan {
        plan_id: format!("bench-{name}-{number}"),
        subtasks: (0..usize::from(args.subtasks)).map(subtask).collect(),
        max_concurrency: args.width.into(),
        dependency_timeout: Some(PATIENCE),
        whole_timeout: Some(PATIENCE),
        ..Default::default()
    }
}

async fn submit_all(args: &PlanArgs, client: &Client, cast: &Cast, name: &str) -> Result<(), Failure> {
    let composer = composer(cast.submitter.clone());
    let plans = (0..args.plans).map(|number| plan(args, cast, name, number));
    agents::all(plans, |plan| {
        let (client, composer) = (client.clone(), composer.clone());
        async move { Ok(client.submit_plan(&composer, plan).await.map(drop)?) }
    })
    .await
    .map(drop)
}

/// Checks that every plan has completed.
async fn check_ends(args: &PlanArgs, client: &Client) -> Result<(), Failure> {
    let request = v1::ListPlansRequest { page_size: 1000, ..Default::default() };
    let plans = client.answer(client.plans().list_plans(request).await)?.plans;
    let completed = plans.iter().filter(|plan| plan.state() == v1::PlanState::Completed).count();
    match completed == usize::from(args.plans) {
        true => Ok(()),
        false => Err(Failure::failed(format!("{completed} of {} plans completed", args.plans))),
    }
}

// ---------------------------------------------------------------------------------------------------------- the agents

/// An agent with its session.
struct Seat {
    session: Pipeline,
    composer: Composer,
    signed: bool,
}

fn composer(identity: Identity) -> Composer {
    Composer { identity, clock: Arc::new(SystemClock), ids: Arc::new(SystemIds) }
}

impl Seat {
    async fn connect(target: &Target, identity: Identity, signed: bool) -> Result<Self, Failure> {
        /// The most deliveries that an agent may have without an ack.
        const CREDIT: u32 = 4096;
        let mut session = agents::open(&target.connect().await?, &identity).await?;
        agents::take_credit(&mut session, CREDIT);
        Ok(Self { session, composer: composer(identity), signed })
    }

    fn send<M: prost::Message + Name>(
        &mut self,
        request: u64,
        to: &str,
        kind: MessageType,
        about: &About,
        payload: &M,
    ) {
        let envelope = match self.signed {
            true => self.composer.encode(to, kind, about, payload),
            false => self.composer.draft(to, kind, about, payload).encode_to_vec().into(),
        };
        self.session.push(request, Request::Envelope(envelope));
    }

    fn ack(&mut self, delivery_id: String) {
        let outcome = Some(v1::acknowledgement::Outcome::Ack(v1::Ack {}));
        self.session.push(0, Request::Acknowledgement(v1::Acknowledgement { delivery_id, outcome }));
    }

    fn beat(&mut self) {
        self.session.push(0, Request::Heartbeat(v1::Heartbeat::default()));
    }
}

/// Carries out subtasks and lent tasks until the run stops.
async fn work(mut seat: Seat, run: Run) -> Result<(), Failure> {
    /// The request id of each report: its answer is the receipt.
    const REPORT: u64 = 1;
    let report = v1::TaskStatusUpdate {
        status: v1::TaskStatus::Completed.into(),
        result_json: subtask_result("the answer is 42").to_string(),
        ..Default::default()
    };
    let mut frames = Vec::with_capacity(BURST_MAX);
    let mut heartbeat = tokio::time::interval(HEARTBEAT_INTERVAL);
    loop {
        seat.session.flush();
        tokio::select! {
            biased;
            () = run.stopped() => return Ok(()),
            gathered = gather(&mut seat.session, &mut frames) => gathered?,
            _ = heartbeat.tick() => seat.beat(),
        }
        for frame in frames.drain(..) {
            if frame.request_id == REPORT && matches!(frame.response, Some(Response::Receipt(_))) {
                run.done_one();
                continue;
            }
            let Some((delivery, envelope)) = delivered(frame)? else { continue };
            let (owner, task, epoch) = (&envelope.sender_id, &envelope.task_id, envelope.epoch);
            match envelope.message_type() {
                MessageType::HandoffRequest => {
                    let about = About::handoff(task, epoch, &delivery.handoff_id);
                    seat.send(0, owner, MessageType::HandoffAccept, &about, &v1::HandoffAccept::default());
                }
                MessageType::TaskContextTransfer => {
                    let payload = envelope.payload.clone().unwrap_or_default().value;
                    let complete = completion_of(&v1::TaskContextTransfer::decode(payload).unwrap_or_default());
                    let about = About::handoff(task, epoch, &envelope.correlation_id);
                    seat.send(0, owner, MessageType::HandoffComplete, &about, &complete);
                    // The frames of a burst keep their order, so the task is this agent's when the report arrives.
                    let owned = About::task(task, epoch + 1);
                    seat.send(REPORT, "", MessageType::TaskStatusUpdate, &owned, &report);
                }
                _ => {}
            }
            seat.ack(delivery.delivery_id);
        }
    }
}

/// The delivery in a frame, with its envelope. `None`: the frame has none.
fn delivered(frame: v1::ConnectResponse) -> Result<Option<(v1::Delivery, v1::Envelope)>, Failure> {
    match frame.response {
        Some(Response::Delivery(delivery)) => {
            let envelope = v1::Envelope::decode(delivery.envelope.clone())
                .map_err(|error| Failure::failed(format!("a delivery cannot be parsed: {error}")))?;
            Ok(Some((delivery, envelope)))
        }
        Some(Response::Error(error)) => Err(Failure::failed(error.message)),
        Some(Response::GoAway(go_away)) => Err(ClientError::SessionEnded(go_away.reason_text).into()),
        Some(Response::Receipt(_) | Response::Welcome(_) | Response::Acknowledged(_) | Response::Credited(_))
        | None => Ok(None),
    }
}

/// Gathers frames: at least one, at most a burst.
async fn gather(session: &mut Pipeline, frames: &mut Vec<v1::ConnectResponse>) -> Result<(), ClientError> {
    std::future::poll_fn(|context| {
        while frames.len() < BURST_MAX {
            match session.poll_next(context) {
                Poll::Ready(Ok(frame)) => frames.push(frame),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => break,
            }
        }
        if frames.is_empty() { Poll::Pending } else { Poll::Ready(Ok(())) }
    })
    .await
}

impl Report {
    fn lines(&self) -> Vec<(String, String)> {
        let line = |name: &str, value: String| (name.to_owned(), value);
        let signed = if self.signed { "signed" } else { "not signed" };
        let work = format!(
            "{} plans of {} subtasks, {} in a layer, {} agents, {signed}",
            self.plans, self.subtasks, self.width, self.agents
        );
        let mut lines = vec![line("work", work)];
        for (name, part) in [("plain handoffs", &self.plain), ("plans", &self.planned)] {
            let times = format!("{:.2} s, {:.0} a second", part.duration_s, part.handoffs_per_second);
            lines.push(line(name, times));
            lines.extend(
                part.per_handoff.lines("handoff").into_iter().map(|(name, value)| (format!("  {name}"), value)),
            );
        }
        lines.push(line("time, plans to plain", format!("{:.2}", self.time_ratio)));
        let cpu = report::known(self.broker_cpu_ratio, |ratio| format!("{ratio:.2}"));
        lines.push(line("broker CPU, the same", cpu));
        lines.extend(self.resident.lines());
        lines
    }
}

//! A pair of agents, a sender and a receiver, with many handoffs in flight from one to the other. One tokio task drives
//! both, so their shared state needs no lock. Each agent has its own connection and session.

mod ending;

use std::{collections::HashMap, sync::Arc, task::Poll, time::Duration};

use prost::{Message as _, Name};
use tokio::sync::mpsc;

use super::{agents, broker::Target, latency::Latencies, run::Run, text::Texts};
use crate::Failure;
use baton_client::{
    envelope::{KeyRing, KeyRingError, UnverifiedEnvelope, keys::PublicKey},
    ids::{AgentId, IdSource as _, KeyId, SystemIds},
    proto::v1::{self, MessageType, connect_request::Request, connect_response::Response},
    time::{Clock as _, Moment, SystemClock, Timestamp},
    {About, ClientError, Composer, Identity, Pipeline, context_of},
};

/// The most frames that are read before their answers are sent.
const BURST_MAX: usize = 64;
/// The time limit for handoffs in flight after the run stops.
const DRAIN_MAX: Duration = Duration::from_secs(10);
/// The request id of the final heartbeat; no message uses it.
const LAST_REQUEST_ID: u64 = u64::MAX;
/// Half of the broker's default interval.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);

/// The bytes of all contexts of a pair, about: more than a compressor looks back, so that no context helps with the next.
const CONTEXTS_BYTES: usize = 128 * 1024;
/// The most contexts of a pair.
const CONTEXTS_MAX: usize = 1024;

/// The four messages of a handoff, in order.
pub(super) const STEPS: [&str; 4] = ["request", "accept", "context", "complete"];
const REQUEST: usize = 0;
const ACCEPT: usize = 1;
const CONTEXT: usize = 2;
const COMPLETE: usize = 3;

const SENDER: usize = 0;
const RECEIVER: usize = 1;

/// The parameters of the handoffs.
#[derive(Debug, Clone)]
pub(super) struct Work {
    /// The most handoffs in flight.
    pub(super) window: usize,
    pub(super) context_bytes: usize,
    pub(super) signed: bool,
    /// Whether receivers verify each delivery with the sender's key.
    pub(super) verify: bool,
    /// The timeouts in the request; `None`: the broker's defaults.
    pub(super) timeouts: Option<v1::HandoffTimeouts>,
    /// Whether handoffs stay open after the accept.
    pub(super) stays_open: bool,
    /// Whether the tasks are ended after the run.
    pub(super) ends_tasks: bool,
}

/// When handoffs begin.
pub(super) enum Schedule {
    /// As soon as the window has room, until the run stops or this number have begun.
    Full(u64),
    /// At these times, or later if the window is full. Latency counts from the scheduled time.
    At(mpsc::UnboundedReceiver<Moment>),
    /// Resumes handoffs that are already open, from their context.
    Resume(std::vec::IntoIter<OpenHandoff>),
}

/// An accepted handoff that waits for its context.
#[derive(Debug, Clone)]
pub(super) struct OpenHandoff {
    number: u64,
    about: About,
}

#[cfg(test)]
impl OpenHandoff {
    pub(super) fn number(&self) -> u64 {
        self.number
    }
}

#[cfg(test)]
pub(super) fn open_handoff(number: u64) -> OpenHandoff {
    OpenHandoff { number, about: About::default() }
}

/// The results of a pair.
#[derive(Default)]
pub(super) struct Tally {
    /// Handoffs with all four messages delivered and acknowledged by receipts.
    pub(super) completed: u64,
    /// Handoffs that ended while measuring.
    pub(super) measured: u64,
    /// Handoffs that did not complete.
    pub(super) failed: u64,
    /// Deliveries with an attempt number over 1.
    pub(super) redelivered: u64,
    /// The problem of the first failure.
    pub(super) failure: Option<String>,
    pub(super) latencies: Option<StepLatencies>,
    /// Handoffs that were left open.
    pub(super) open: Vec<OpenHandoff>,
}

/// The latencies of the handoffs that ended while measuring.
pub(super) struct StepLatencies {
    pub(super) handoff: Latencies,
    /// From before signing to delivery, for each message.
    pub(super) steps: [Latencies; 4],
    /// From before signing to the receipt.
    pub(super) receipt: Latencies,
}

impl StepLatencies {
    pub(super) fn new() -> Self {
        Self { handoff: Latencies::new(), steps: std::array::from_fn(|_| Latencies::new()), receipt: Latencies::new() }
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.handoff.add(&other.handoff);
        self.receipt.add(&other.receipt);
        for (step, other) in self.steps.iter_mut().zip(&other.steps) {
            step.add(other);
        }
    }
}

/// A handoff in flight.
struct Flight {
    /// The time at which it began, or was scheduled to begin.
    began: Moment,
    sent: [Moment; 4],
    /// Bits 0 to 3: steps without a receipt; bits 4 to 7: steps that are not delivered.
    missing: u8,
    /// The next step to be delivered.
    next: usize,
}

/// One agent of the pair.
struct Side {
    id: String,
    session: Pipeline,
    composer: Composer,
}

pub(super) struct Pair {
    sides: [Side; 2],
    keys: Keys,
    work: Work,
    /// Sent in turns.
    contexts: Vec<Arc<v1::TaskContextTransfer>>,
    task_prefix: String,
    flights: HashMap<u64, Flight>,
    next_number: u64,
    /// The tasks that the receiver owns after the run, and those whose handoff did not complete. Empty: they are not ended.
    taken: Vec<u64>,
    given_up: Vec<u64>,
    run: Run,
    tally: Tally,
    latencies: StepLatencies,
}

impl Pair {
    /// Connects both agents, which must be registered.
    pub(super) async fn connect(
        target: &Target,
        identities: [Identity; 2],
        work: Work,
        run: Run,
    ) -> Result<Self, Failure> {
        let keys = Keys(identities.iter().map(|known| (known.agent.clone(), known.key.public())).collect());
        // Each handoff has at most one unacknowledged message at its receiver.
        let credit = u32::try_from(work.window).unwrap_or(u32::MAX);
        let [sender, receiver] = identities;
        let task_prefix = format!("{}-", sender.agent);
        let (sender, receiver) =
            tokio::try_join!(Side::connect(target, sender, credit), Side::connect(target, receiver, credit))?;
        let mut texts = Texts::of(u64::from_be_bytes(SystemIds.random()[..8].try_into().expect("8 bytes")));
        let number = CONTEXTS_BYTES / work.context_bytes.max(1) + 2;
        let context = |_| context_of([("collected_data", json_list(&mut texts, work.context_bytes))]).into();
        let contexts = (0..number.min(CONTEXTS_MAX)).map(context).collect();
        Ok(Self {
            sides: [sender, receiver],
            keys,
            work,
            contexts,
            task_prefix,
            flights: HashMap::new(),
            next_number: 0,
            taken: Vec::new(),
            given_up: Vec::new(),
            run,
            tally: Tally::default(),
            latencies: StepLatencies::new(),
        })
    }

    /// Hands tasks over until the schedule or the run ends, and every handoff in flight has ended.
    pub(super) async fn run(mut self, mut schedule: Schedule) -> Result<Tally, Failure> {
        let (run, mut frames) = (self.run.clone(), Vec::with_capacity(BURST_MAX));
        let mut heartbeat = tokio::time::interval(HEARTBEAT_INTERVAL);
        // Ends DRAIN_MAX after the run has stopped.
        let drain = async {
            run.stopped().await;
            tokio::time::sleep(DRAIN_MAX).await;
        };
        tokio::pin!(drain);
        let mut over = false;
        loop {
            over = over || self.begin_what_can(&mut schedule);
            self.sides.iter_mut().for_each(|side| side.session.flush());
            if over && self.flights.is_empty() {
                break;
            }
            let has_room = self.flights.len() < self.work.window;
            tokio::select! {
                // The stop and the drain come first, because frames can be ready at every turn.
                biased;
                () = run.stopped(), if !over => over = true,
                () = &mut drain => break,
                gathered = gather(&mut self.sides, &mut frames) => {
                    gathered?;
                    if self.work.verify {
                        self.verify(&frames)?;
                    }
                    for (side, response) in frames.drain(..) {
                        self.take(side, response)?;
                    }
                }
                at = next_moment(&mut schedule), if !over && has_room => match at {
                    Some(at) => self.begin(at),
                    None => over = true,
                },
                _ = heartbeat.tick() => self.sides.iter_mut().for_each(Side::beat),
            }
        }
        if self.work.ends_tasks {
            self.given_up.extend(self.flights.keys());
            self.end_tasks().await?;
        }
        for side in &mut self.sides {
            side.finish().await?;
        }
        self.tally.failed += self.flights.len() as u64;
        if !self.flights.is_empty() {
            self.tally.failure.get_or_insert_with(|| "some handoffs did not end in time".to_owned());
        }
        self.tally.latencies = Some(self.latencies);
        Ok(self.tally)
    }

    /// Begins handoffs while the window has room. Returns whether the schedule is exhausted.
    fn begin_what_can(&mut self, schedule: &mut Schedule) -> bool {
        while self.flights.len() < self.work.window {
            match schedule {
                Schedule::Full(0) => return true,
                Schedule::Full(left) => {
                    *left -= 1;
                    self.begin(Moment::now());
                }
                Schedule::At(_) => return false,
                Schedule::Resume(open) => match open.next() {
                    Some(handoff) => self.resume(&handoff),
                    None => return true,
                },
            }
        }
        false
    }

    fn begin(&mut self, began: Moment) {
        let number = self.next_number;
        self.next_number += 1;
        let request = v1::HandoffRequest {
            task_type: "bench".to_owned(),
            reason: v1::HandoffReason::Workflow.into(),
            initial_context_summary: "one of very many handoffs, which measure what a handoff costs".to_owned(),
            timeouts: self.work.timeouts,
            ..Default::default()
        };
        let about = About::task(&format!("{}{number}", self.task_prefix), 1);
        // A handoff that stays open ends for the bench with its accept: only steps 0 and 1 are awaited.
        let missing = if self.work.stays_open { 0b0011_0011 } else { 0b1111_1111 };
        self.flights.insert(number, Flight { began, sent: [began; 4], missing, next: REQUEST });
        self.send(number, REQUEST, &about, &request);
    }

    fn resume(&mut self, handoff: &OpenHandoff) {
        let now = Moment::now();
        // Only the context and the completion are awaited, steps 2 and 3.
        let flight = Flight { began: now, sent: [now; 4], missing: 0b1100_1100, next: CONTEXT };
        self.flights.insert(handoff.number, flight);
        let context = self.context(handoff.number);
        self.send(handoff.number, CONTEXT, &handoff.about, &*context);
    }

    fn take(&mut self, side: usize, response: v1::ConnectResponse) -> Result<(), Failure> {
        match response.response {
            Some(Response::Receipt(_)) => {
                let (number, step) = parse_request_id(response.request_id);
                if let Some(flight) = self.flights.get_mut(&number) {
                    flight.missing &= !(1 << step);
                    if self.run.measures() {
                        self.latencies.receipt.record(flight.sent[step].elapsed());
                    }
                    self.end_if_complete(number);
                }
            }
            Some(Response::Delivery(delivery)) => self.take_delivery(side, delivery)?,
            Some(Response::Error(error)) => self.fail(parse_request_id(response.request_id).0, &error.message),
            Some(Response::GoAway(go_away)) => return Err(ClientError::SessionEnded(go_away.reason_text).into()),
            Some(Response::Welcome(_) | Response::Acknowledged(_) | Response::Credited(_)) | None => {}
        }
        Ok(())
    }

    fn take_delivery(&mut self, side: usize, delivery: v1::Delivery) -> Result<(), Failure> {
        let envelope = v1::Envelope::decode(delivery.envelope)
            .map_err(|error| Failure::failed(format!("a delivery cannot be parsed: {error}")))?;
        let number = envelope.task_id.strip_prefix(&self.task_prefix).and_then(|number| number.parse().ok());
        let (number, step) = (number.unwrap_or(u64::MAX), step_of(envelope.message_type()));
        self.tally.redelivered += u64::from(delivery.attempt > 1);
        match (self.flights.get_mut(&number), step) {
            (Some(flight), Some(step)) if flight.next == step => {
                flight.missing &= !(0b1_0000 << step);
                flight.next += 1;
                if self.run.measures() {
                    self.latencies.steps[step].record(flight.sent[step].elapsed());
                }
                let handoff_id = if step == REQUEST { delivery.handoff_id } else { envelope.correlation_id };
                let about = About { task_id: envelope.task_id, epoch: envelope.epoch, correlation_id: handoff_id };
                self.answer(number, step, about, envelope.payload);
            }
            (Some(_), None) => self.fail(number, &format!("received an unexpected {:?}", envelope.message_type())),
            // A redelivery, or mail of a handoff that was given up.
            (Some(_), Some(_)) | (None, _) => {}
        }
        // The ack follows the answer in the same burst, and the broker processes them in this order.
        self.sides[side].ack(delivery.delivery_id);
        self.end_if_complete(number);
        Ok(())
    }

    /// Acts as the receiver of a step.
    fn answer(&mut self, number: u64, step: usize, about: About, payload: Option<baton_client::proto::Any>) {
        match step {
            REQUEST => self.send(number, ACCEPT, &about, &v1::HandoffAccept::default()),
            ACCEPT if self.work.stays_open => self.tally.open.push(OpenHandoff { number, about }),
            ACCEPT => {
                let context = self.context(number);
                self.send(number, CONTEXT, &about, &*context);
            }
            CONTEXT => {
                let context = v1::TaskContextTransfer::decode(payload.unwrap_or_default().value);
                let complete = v1::HandoffComplete {
                    outcome: v1::HandoffOutcome::Success.into(),
                    context_digest: context.unwrap_or_default().context_digest,
                    ..Default::default()
                };
                self.send(number, COMPLETE, &about, &complete);
            }
            _ => {}
        }
    }

    fn send<M: prost::Message + Name>(&mut self, number: u64, step: usize, about: &About, payload: &M) {
        if let Some(flight) = self.flights.get_mut(&number) {
            // A scheduled request counts from its scheduled time, so a late start is part of its latency.
            flight.sent[step] = if step == REQUEST { flight.began } else { Moment::now() };
        }
        let (from, to) = if step == REQUEST || step == CONTEXT { (SENDER, RECEIVER) } else { (RECEIVER, SENDER) };
        let (side, to) = (&self.sides[from], &self.sides[to].id);
        let kind = KINDS[step];
        let envelope = match self.work.signed {
            true => side.composer.encode(to, kind, about, payload),
            false => side.composer.draft(to, kind, about, payload).encode_to_vec().into(),
        };
        self.sides[from].session.push(request_id(number, step), Request::Envelope(envelope));
    }

    fn end_if_complete(&mut self, number: u64) {
        if self.flights.get(&number).is_none_or(|flight| flight.missing != 0) {
            return;
        }
        let Some(flight) = self.flights.remove(&number) else { return };
        self.tally.completed += 1;
        if self.work.ends_tasks {
            self.taken.push(number);
        }
        self.run.done_one();
        if self.run.measures() {
            self.tally.measured += 1;
            self.latencies.handoff.record(flight.began.elapsed());
        }
    }

    fn fail(&mut self, number: u64, problem: &str) {
        self.tally.failure.get_or_insert_with(|| problem.to_owned());
        // Also counts a failure outside the handoffs, for example a refused ack.
        if self.flights.remove(&number).is_some() && self.work.ends_tasks {
            self.given_up.push(number);
        }
        self.tally.failed += 1;
    }

    fn context(&self, number: u64) -> Arc<v1::TaskContextTransfer> {
        self.contexts[(number % self.contexts.len() as u64) as usize].clone()
    }

    /// Verifies deliveries as a client does.
    fn verify(&self, frames: &[(usize, v1::ConnectResponse)]) -> Result<(), Failure> {
        let (now, unsigned_allowed) = (SystemClock.now(), !self.work.signed);
        for (_, frame) in frames {
            let Some(Response::Delivery(delivery)) = &frame.response else { continue };
            UnverifiedEnvelope::parse(delivery.envelope.clone())
                .and_then(|parsed| parsed.verify(&self.keys, now, unsigned_allowed))
                .map_err(|error| Failure::failed(format!("the sender of a delivery does not verify: {error}")))?;
        }
        Ok(())
    }
}

/// A JSON list of this number of bytes, at least 4.
fn json_list(texts: &mut Texts, bytes: usize) -> String {
    format!("[\"{}\"]", texts.text(bytes.saturating_sub(4)))
}

const KINDS: [MessageType; 4] = [
    MessageType::HandoffRequest,
    MessageType::HandoffAccept,
    MessageType::TaskContextTransfer,
    MessageType::HandoffComplete,
];

fn step_of(kind: MessageType) -> Option<usize> {
    KINDS.iter().position(|known| *known == kind)
}

/// The request id of a step. Never 0, which asks for no answer.
fn request_id(number: u64, step: usize) -> u64 {
    number * 4 + step as u64 + 1
}

/// The handoff number and the step of a request id. For 0, a number that no handoff has.
fn parse_request_id(request_id: u64) -> (u64, usize) {
    match request_id.checked_sub(1) {
        Some(id) => (id / 4, (id % 4) as usize),
        None => (u64::MAX, 0),
    }
}

async fn next_moment(schedule: &mut Schedule) -> Option<Moment> {
    match schedule {
        Schedule::At(moments) => moments.recv().await,
        Schedule::Full(_) | Schedule::Resume(_) => std::future::pending().await,
    }
}

/// Gathers the frames of both sides: at least one, at most a burst.
async fn gather(sides: &mut [Side; 2], frames: &mut Vec<(usize, v1::ConnectResponse)>) -> Result<(), ClientError> {
    std::future::poll_fn(|context| {
        for (number, side) in sides.iter_mut().enumerate() {
            // Half of the burst is left to the second side, so that a busy sender does not starve the receiver.
            while frames.len() < BURST_MAX * (number + 1) / 2 {
                match side.session.poll_next(context) {
                    Poll::Ready(Ok(frame)) => frames.push((number, frame)),
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending => break,
                }
            }
        }
        if frames.is_empty() { Poll::Pending } else { Poll::Ready(Ok(())) }
    })
    .await
}

impl Side {
    async fn connect(target: &Target, identity: Identity, credit: u32) -> Result<Self, Failure> {
        let mut session = agents::open(&target.connect().await?, &identity).await?;
        agents::take_credit(&mut session, credit);
        let id = identity.agent.to_string();
        let composer = Composer { identity, clock: Arc::new(SystemClock), ids: Arc::new(SystemIds) };
        Ok(Self { id, session, composer })
    }

    fn ack(&mut self, delivery_id: String) {
        let outcome = Some(v1::acknowledgement::Outcome::Ack(v1::Ack {}));
        self.session.push(0, Request::Acknowledgement(v1::Acknowledgement { delivery_id, outcome }));
    }

    /// Waits until the broker has processed every frame. Acks carry no request id, so a final heartbeat asks for an
    /// answer.
    async fn finish(&mut self) -> Result<(), ClientError> {
        self.session.push(LAST_REQUEST_ID, Request::Heartbeat(v1::Heartbeat::default()));
        self.session.flush();
        let answered = async {
            while self.session.next().await?.request_id != LAST_REQUEST_ID {}
            Ok(())
        };
        let in_time = tokio::time::timeout(DRAIN_MAX, answered).await;
        in_time.unwrap_or_else(|_| Err(ClientError::SessionEnded("it does not answer any more".to_owned())))
    }

    fn beat(&mut self) {
        self.session.push(0, Request::Heartbeat(v1::Heartbeat::default()));
    }
}

/// The public keys of both agents.
struct Keys(HashMap<AgentId, PublicKey>);

impl KeyRing for Keys {
    fn key(&self, agent: &AgentId, _key_id: &KeyId, _now: Timestamp) -> Result<PublicKey, KeyRingError> {
        // An agent of a bench has one key, which does not expire.
        self.0.get(agent).cloned().ok_or(KeyRingError::Unknown)
    }
}

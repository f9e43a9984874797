//! The broker's figures for Prometheus (SPEC 13).
//!
//! Owns the names, the labels and the text format. Each label is one of a fixed set of words: no id of an agent, a task
//! or a message is ever a label, so the number of series is bounded. Must not know who reads the figures, nor the store.

mod labels;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

pub use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric as _, text},
    metrics::{
        MetricType,
        counter::Counter,
        exemplar::HistogramWithExemplars,
        family::{Family, MetricConstructor},
        histogram::{Histogram, exponential_buckets},
        info::Info,
    },
    registry::{Registry, Unit},
};

use self::labels::{
    Closing, EndLabels, InState, InTrace, Kind, Limit, MessageLabels, Outcome, PresenceLabel, Reason, Resulting,
};
use crate::{
    codes::{ErrorCode, Refusal},
    domain::{
        Entity, MessageType, TraceContext,
        dead_letter::ParkReason,
        handoff::{Handoff, Mode, State},
        mailbox::{Fate, Next},
        negotiation,
        plan::PlanState,
        presence::PresenceState,
        routing::RunState,
        threads::{self, RequestEnd, Unresolved},
    },
};

/// The media type of [`Metrics::encode`].
pub const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The media type of [`plain_text`].
pub const PLAIN_TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The label of a handoff that completed: it has no error code.
const NO_REASON: &str = "NONE";

/// A histogram of seconds, from 1 ms to 9 h in powers of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seconds;

impl MetricConstructor<Histogram> for Seconds {
    fn new_metric(&self) -> Histogram {
        Histogram::new(exponential_buckets(0.001, 2.0, 25))
    }
}

/// The same buckets. Each of them shows a recent trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TracedSeconds;

impl MetricConstructor<HistogramWithExemplars<InTrace>> for TracedSeconds {
    fn new_metric(&self) -> HistogramWithExemplars<InTrace> {
        HistogramWithExemplars::new(exponential_buckets(0.001, 2.0, 25))
    }
}

/// The loads of all agents at the latest scrape. Each scrape replaces them, so the buckets may fall.
#[derive(Debug, Clone)]
struct AgentLoads(Arc<Mutex<Histogram>>);

impl Default for AgentLoads {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(load_histogram())))
    }
}

impl Collector for AgentLoads {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let help = "Part of its capacity that an agent uses, over all registered agents with a capacity, at the scrape";
        let loads = self.0.lock().expect("no holder panics");
        let encoder = encoder.encode_descriptor("agent_load_ratio", help, None, MetricType::Histogram)?;
        loads.encode(encoder)
    }
}

fn load_histogram() -> Histogram {
    Histogram::new([0.0, 0.25, 0.5, 0.75, 0.9, 1.0, 1.5, 2.0])
}

/// All figures of a broker. They begin at 0 when the process starts.
pub struct Metrics {
    registry: Registry,
    handoffs: Family<EndLabels, Counter>,
    negotiations: Family<Closing, Counter>,
    handoff_seconds: Family<Outcome, HistogramWithExemplars<InTrace>, TracedSeconds>,
    handoff_state_seconds: Family<InState, Histogram, Seconds>,
    handoffs_open: Family<InState, Gauge>,
    runs: Family<Outcome, Counter>,
    thread_steps: Counter,
    thread_requests: Family<Outcome, Counter>,
    plans: Family<Outcome, Counter>,
    messages: Family<MessageLabels, Counter>,
    refusals: Family<Reason, Counter>,
    limit_refusals: Family<Limit, Counter>,
    verifications: Family<Resulting, Counter>,
    deliveries: Family<Kind, Counter>,
    /// Deliveries that wait for an ack.
    pub deliveries_in_flight: Gauge,
    acks: Family<Outcome, Counter>,
    dead_letters: Family<Reason, Counter>,
    /// Letters in all mailboxes, as of the latest survey.
    pub mailbox_letters: Gauge,
    /// Seconds until the first letter expires, as of the latest survey; the lifetime of mail where there is none.
    pub mailbox_first_expiry: Gauge,
    /// Dead letters that wait for a decision, as of the latest survey.
    pub dead_letters_parked: Gauge,
    /// Whether the stored mail was counted at least once.
    is_surveyed: AtomicBool,
    commit_seconds: Histogram,
    commit_changes: Histogram,
    agents: Family<PresenceLabel, Gauge>,
    agent_loads: AgentLoads,
    /// Open sessions, and open calls of `Receive`.
    pub sessions: Gauge,
    /// Bytes of the store on disk.
    pub store_bytes: Gauge,
    /// 1 while the broker can write its store, 0 while it cannot.
    pub store_writable: Gauge,
    /// The end of the server certificate's validity, in seconds since 1970.
    pub certificate_expiry: Gauge,
    spans: Family<Resulting, Counter>,
    /// Handoffs that completed, and those that ended otherwise.
    handoffs_ended: [AtomicU64; 2],
}

/// What became of spans.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanResult {
    /// The collector has taken them.
    Sent,
    /// The collector was down, too slow, or refused them.
    Failed,
    /// The queue to the collector was full.
    Dropped,
}

impl SpanResult {
    const ALL: [Self; 3] = [Self::Sent, Self::Failed, Self::Dropped];

    const fn name(self) -> &'static str {
        match self {
            Self::Sent => "SENT",
            Self::Failed => "FAILED",
            Self::Dropped => "DROPPED",
        }
    }
}

/// A change that the figures count after its commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A message was accepted for the first time.
    Accepted(MessageType),
    /// A delivery has ended, with this outcome.
    DeliveryEnded(&'static str),
    /// A message became a dead letter.
    Parked(ParkReason),
}

impl Event {
    /// The end of a delivery by its fate. `None`: the delivery goes on.
    pub fn of_delivery(fate: &Fate, next: &Next) -> Option<Self> {
        let outcome = match (fate, next) {
            (_, Next::Extend(_)) => return None,
            (Fate::Acked, _) => "ACKED",
            (Fate::Poison { .. }, _) => "POISON",
            (Fate::Failed { .. }, _) => "FAILURE",
            (Fate::Shutdown { .. }, _) => "SHUTDOWN",
            (Fate::Overdue, _) => "OVERDUE",
            (Fate::SessionEnded, _) => "SESSION_ENDED",
            (Fate::Extend { .. }, _) => return None,
        };
        Some(Self::DeliveryEnded(outcome))
    }
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("the figures of a broker")
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// All figures at 0.
    pub fn new() -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix("baton"),
            handoffs: Family::default(),
            negotiations: Family::default(),
            handoff_seconds: Family::new_with_constructor(TracedSeconds),
            plans: Family::default(),
            handoff_state_seconds: Family::new_with_constructor(Seconds),
            handoffs_open: Family::default(),
            runs: Family::default(),
            thread_steps: Counter::default(),
            thread_requests: Family::default(),
            messages: Family::default(),
            refusals: Family::default(),
            limit_refusals: Family::default(),
            verifications: Family::default(),
            deliveries: Family::default(),
            deliveries_in_flight: Gauge::default(),
            acks: Family::default(),
            dead_letters: Family::default(),
            mailbox_letters: Gauge::default(),
            mailbox_first_expiry: Gauge::default(),
            dead_letters_parked: Gauge::default(),
            is_surveyed: AtomicBool::new(false),
            commit_seconds: Seconds.new_metric(),
            commit_changes: Histogram::new(exponential_buckets(1.0, 2.0, 12)),
            agents: Family::default(),
            agent_loads: AgentLoads::default(),
            sessions: Gauge::default(),
            store_bytes: Gauge::default(),
            store_writable: Gauge::default(),
            certificate_expiry: Gauge::default(),
            spans: Family::default(),
            handoffs_ended: [const { AtomicU64::new(0) }; 2],
        };
        metrics.register();
        metrics.begin_series();
        metrics
    }

    fn register(&mut self) {
        let mut registry = std::mem::take(&mut self.registry);
        registry.register(
            "handoffs",
            "Handoffs that have ended, by outcome, mode and error code (NONE: completed)",
            self.handoffs.clone(),
        );
        registry.register(
            "negotiations",
            "Negotiations that have ended, by outcome and error code (NONE: not failed)",
            self.negotiations.clone(),
        );
        registry.register("plans", "Rounds of plans that have ended, by outcome", self.plans.clone());
        registry.register_with_unit(
            "handoff",
            "Time from the stored request to the end of a handoff",
            Unit::Seconds,
            self.handoff_seconds.clone(),
        );
        registry.register_with_unit(
            "handoff_state",
            "Time that a handoff has spent in a state before the next one",
            Unit::Seconds,
            self.handoff_state_seconds.clone(),
        );
        registry.register("handoffs_open", "Handoffs that have not ended, by state", self.handoffs_open.clone());
        registry.register("runs", "Runs through graphs that have ended, by outcome", self.runs.clone());
        registry.register("thread_steps", "Steps of threads that have begun", self.thread_steps.clone());
        registry.register(
            "thread_requests",
            "Requests for another persona that have ended, by outcome",
            self.thread_requests.clone(),
        );
        registry.register(
            "messages",
            "Verified envelopes, by type and result (ACCEPTED, REPEATED or REFUSED)",
            self.messages.clone(),
        );
        registry.register("refusals", "Refused envelopes, by error code", self.refusals.clone());
        registry.register(
            "limit_refusals",
            "Connections, requests and messages over a limit, by limit",
            self.limit_refusals.clone(),
        );
        registry.register("verifications", "Checks of signatures, by result", self.verifications.clone());
        registry.register(
            "deliveries",
            "Deliveries to agents: the first attempt of a message, or a later one",
            self.deliveries.clone(),
        );
        registry.register("deliveries_in_flight", "Deliveries that wait for an ack", self.deliveries_in_flight.clone());
        registry.register("acks", "Deliveries that have ended, by outcome", self.acks.clone());
        registry.register("dead_letters", "Messages that became dead letters, by reason", self.dead_letters.clone());
        registry.register(
            "mailbox_letters",
            "Letters in all mailboxes; counted once in 30 seconds",
            self.mailbox_letters.clone(),
        );
        registry.register_with_unit(
            "mailbox_first_expiry",
            "Time until the first letter expires into the dead letters; counted once in 30 seconds",
            Unit::Seconds,
            self.mailbox_first_expiry.clone(),
        );
        registry.register(
            "dead_letters_parked",
            "Dead letters that wait for a decision; counted once in 30 seconds",
            self.dead_letters_parked.clone(),
        );
        registry.register_with_unit(
            "commit",
            "Time of a commit batch: the sync, and the actions after it",
            Unit::Seconds,
            self.commit_seconds.clone(),
        );
        registry.register("commit_group_changes", "Changes in a commit batch", self.commit_changes.clone());
        registry.register("agents", "Registered agents, by presence", self.agents.clone());
        registry.register_collector(Box::new(self.agent_loads.clone()));
        registry.register("sessions", "Open sessions, and open calls of Receive", self.sessions.clone());
        registry.register_with_unit("store", "Size of the store on disk", Unit::Bytes, self.store_bytes.clone());
        registry.register(
            "store_writable",
            "1 while the broker can write its store, 0 while it cannot and refuses each call that writes",
            self.store_writable.clone(),
        );
        registry.register_with_unit(
            "certificate_expiry_timestamp",
            "End of the server certificate's validity, in seconds since 1970",
            Unit::Seconds,
            self.certificate_expiry.clone(),
        );
        registry.register(
            "spans",
            "Spans for the collector, by result: SENT, FAILED or DROPPED (the queue was full)",
            self.spans.clone(),
        );
        let build = [("version", env!("CARGO_PKG_VERSION")), ("processor", std::env::consts::ARCH)];
        registry.register("build", "The version of the broker, and its processor", Info::new(build));
        self.registry = registry;
    }

    /// Makes the series that every broker has sooner or later, so that their first increase is one: `rate` does not see
    /// the beginning of a series.
    fn begin_series(&self) {
        for result in ["VERIFIED", "REFUSED"] {
            drop(self.verifications.get_or_create(&Resulting { result }));
        }
        for result in SpanResult::ALL {
            drop(self.spans.get_or_create(&Resulting { result: result.name() }));
        }
        for kind in ["FIRST", "AGAIN"] {
            drop(self.deliveries.get_or_create(&Kind { kind }));
        }
        for mode in ["TRANSFER", "DELEGATE"] {
            let labels = EndLabels { outcome: State::Completed.name(), mode, reason: NO_REASON };
            drop(self.handoffs.get_or_create(&labels));
        }
        for state in State::ALL.into_iter().filter(|state| state.is_final()) {
            drop(self.handoff_seconds.get_or_create(&Outcome { outcome: state.name() }));
        }
        for state in RunState::ALL.into_iter().filter(|state| state.is_final()) {
            drop(self.runs.get_or_create(&Outcome { outcome: state.name() }));
        }
        let ends = [RequestEnd::Promoted, RequestEnd::Replaced, RequestEnd::Cleared];
        for end in ends.into_iter().chain([RequestEnd::Failed(Unresolved::NoSpec)]) {
            drop(self.thread_requests.get_or_create(&Outcome { outcome: end.name() }));
        }
        for outcome in [negotiation::State::Settled, negotiation::State::Cancelled] {
            drop(self.negotiations.get_or_create(&Closing { outcome: outcome.name(), reason: NO_REASON }));
        }
        for state in PlanState::ALL.into_iter().filter(|state| state.is_final()) {
            drop(self.plans.get_or_create(&Outcome { outcome: state.name() }));
        }
        for state in PresenceState::ALL {
            drop(self.agents.get_or_create(&PresenceLabel { presence: state.name() }));
        }
    }

    /// Counts a handoff that is in this open state, or no longer is.
    pub fn open_handoffs_changed(&self, state: State, is_more: bool) {
        let open = self.handoffs_open.get_or_create(&InState { state: state.name() });
        if is_more {
            open.inc()
        } else {
            open.dec()
        };
    }

    /// The number of handoffs in this open state.
    pub fn open_handoffs(&self, state: State) -> i64 {
        self.handoffs_open.get_or_create(&InState { state: state.name() }).get()
    }

    /// Notes that the stored mail was counted.
    pub fn surveyed(&self) {
        self.is_surveyed.store(true, Ordering::Relaxed);
    }

    /// The number of parked dead letters as of the latest survey. `None`: there was no survey.
    pub fn parked_dead_letters(&self) -> Option<i64> {
        self.is_surveyed.load(Ordering::Relaxed).then(|| self.dead_letters_parked.get())
    }

    /// Sets the numbers of open handoffs to 0, before they are counted.
    pub fn no_open_handoffs(&self) {
        for state in State::ALL.into_iter().filter(|state| !state.is_final()) {
            self.handoffs_open.get_or_create(&InState { state: state.name() }).set(0);
        }
    }

    /// Sets the loads of all agents whose capacity is known, each as the part of the capacity that is in use.
    pub fn set_loads(&self, loads: impl IntoIterator<Item = f64>) {
        let now = load_histogram();
        loads.into_iter().for_each(|load| now.observe(load));
        *self.agent_loads.0.lock().expect("no holder panics") = now;
    }

    /// All figures in the text format of OpenMetrics.
    pub fn encode(&self) -> String {
        let mut page = String::new();
        text::encode(&mut page, &self.registry).expect("a string takes all text");
        page
    }

    /// Counts a committed event.
    pub fn count(&self, event: Event) {
        match event {
            Event::Accepted(kind) => {
                let labels = MessageLabels { r#type: kind.name(), result: "ACCEPTED" };
                self.messages.get_or_create(&labels).inc();
            }
            Event::DeliveryEnded(outcome) => {
                self.acks.get_or_create(&Outcome { outcome }).inc();
            }
            Event::Parked(reason) => {
                self.dead_letters.get_or_create(&Reason { reason: reason.name() }).inc();
            }
        }
    }

    /// Counts a committed step of an entity. `trace`: the trace of the entity, if it is recorded.
    pub fn entity_moved(&self, before: Option<&Entity>, after: &Entity, trace: Option<&TraceContext>) {
        let had_ended = before.is_some_and(Entity::has_ended);
        if let Entity::Run(run) = after
            && run.state.is_final()
            && !had_ended
        {
            self.runs.get_or_create(&Outcome { outcome: run.state.name() }).inc();
        }
        if let Entity::ThreadEntry(entry) = after {
            match &entry.event {
                threads::Event::Boundary(_) => {
                    self.thread_steps.inc();
                }
                threads::Event::RequestEnded(ended) => {
                    self.thread_requests.get_or_create(&Outcome { outcome: ended.end.name() }).inc();
                }
                threads::Event::Created { .. }
                | threads::Event::Requested { .. }
                | threads::Event::Activated { .. }
                | threads::Event::Cleared { .. }
                | threads::Event::RunBegan { .. }
                | threads::Event::RunEnded { .. } => {}
            }
        }
        if let Entity::Negotiation(negotiation) = after
            && negotiation.state.is_final()
            && !had_ended
        {
            let reason = negotiation.failure.as_ref().map_or(NO_REASON, |failure| failure.code.name());
            self.negotiations.get_or_create(&Closing { outcome: negotiation.state.name(), reason }).inc();
        }
        if let Entity::Plan(plan) = after
            && plan.state.is_final()
            && !had_ended
        {
            self.plans.get_or_create(&Outcome { outcome: plan.state.name() }).inc();
        }
        let Entity::Handoff(after) = after else { return };
        let Some(Entity::Handoff(before)) = before else { return };
        if before.state == after.state {
            return;
        }
        let spent = after.updated_at.since(entered(before));
        let state = InState { state: before.state.name() };
        self.handoff_state_seconds.get_or_create(&state).observe(spent.as_secs_f64());
        if after.state.is_final() {
            self.handoff_ended(after, trace);
        }
    }

    /// The number of handoffs that completed since the start, and of those that ended otherwise.
    pub fn handoffs_ended(&self) -> [u64; 2] {
        self.handoffs_ended.each_ref().map(|ended| ended.load(Ordering::Relaxed))
    }

    fn handoff_ended(&self, handoff: &Handoff, trace: Option<&TraceContext>) {
        self.handoffs_ended[usize::from(handoff.state != State::Completed)].fetch_add(1, Ordering::Relaxed);
        let outcome = handoff.state.name();
        let mode = match handoff.mode {
            Mode::Transfer => "TRANSFER",
            Mode::Delegate => "DELEGATE",
        };
        let reason = handoff.failure.as_ref().map_or(NO_REASON, |failure| failure.code.name());
        self.handoffs.get_or_create(&EndLabels { outcome, mode, reason }).inc();
        let whole = handoff.updated_at.since(handoff.created_at);
        let trace = trace.map(|trace| InTrace { trace_id: hex::encode(trace.trace_id) });
        let ended = SystemTime::UNIX_EPOCH
            + Duration::from_nanos(u64::try_from(handoff.updated_at.unix_nanoseconds()).unwrap_or(0));
        self.handoff_seconds.get_or_create(&Outcome { outcome }).observe(whole.as_secs_f64(), trace, Some(ended));
    }

    /// Counts a repeat of an accepted message.
    pub fn repeated(&self, kind: MessageType) {
        self.messages.get_or_create(&MessageLabels { r#type: kind.name(), result: "REPEATED" }).inc();
    }

    /// Counts a verified envelope that was refused.
    pub fn refused(&self, kind: MessageType, refusal: &dyn Refusal) {
        self.messages.get_or_create(&MessageLabels { r#type: kind.name(), result: "REFUSED" }).inc();
        self.refused_unverified(refusal);
    }

    /// Counts an envelope that was refused before its verification ended.
    pub fn refused_unverified(&self, refusal: &dyn Refusal) {
        let code = refusal.code();
        self.refusals.get_or_create(&Reason { reason: code.name() }).inc();
        if code == ErrorCode::LimitExceeded {
            self.over_limit("AGENT", 1);
        }
    }

    /// Counts refusals by a limit. The name is one of a fixed set.
    pub fn over_limit(&self, limit: &'static str, many: u64) {
        self.limit_refusals.get_or_create(&Limit { limit }).inc_by(many);
    }

    /// Counts a check of a signature.
    pub fn verified(&self, is_valid: bool) {
        let result = if is_valid { "VERIFIED" } else { "REFUSED" };
        self.verifications.get_or_create(&Resulting { result }).inc();
    }

    /// Counts a delivery; `attempt` starts at 1.
    pub fn delivered(&self, attempt: u32) {
        let kind = if attempt <= 1 { "FIRST" } else { "AGAIN" };
        self.deliveries.get_or_create(&Kind { kind }).inc();
    }

    /// Counts the changes of a commit batch.
    pub fn group_committed(&self, changes: usize) {
        self.commit_changes.observe(changes as f64);
    }

    /// Counts the time of a commit batch.
    pub fn commit_took(&self, time: Duration) {
        self.commit_seconds.observe(time.as_secs_f64());
    }

    /// Counts spans.
    pub fn spans(&self, result: SpanResult, many: usize) {
        self.spans.get_or_create(&Resulting { result: result.name() }).inc_by(many as u64);
    }

    /// Sets the number of agents of one presence.
    pub fn set_agents(&self, state: PresenceState, many: usize) {
        let many = i64::try_from(many).unwrap_or(i64::MAX);
        self.agents.get_or_create(&PresenceLabel { presence: state.name() }).set(many);
    }
}

/// The page of [`Metrics::encode`] in the older text format of Prometheus, for readers that ask for no OpenMetrics. In
/// that format the type of a counter is stated under the name of its sample, and there are no exemplars.
pub fn plain_text(openmetrics: &str) -> String {
    let counters: Vec<&str> =
        openmetrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter")).collect();
    let mut page = String::with_capacity(openmetrics.len());
    for line in openmetrics.lines() {
        let line = match line.splitn(4, ' ').collect::<Vec<_>>()[..] {
            ["#", "EOF"] | ["#", "UNIT", ..] => continue,
            ["#", word, name, rest] if counters.contains(&name) => format!("# {word} {name}_total {rest}"),
            ["#", "TYPE", name, "info"] => format!("# TYPE {name}_info gauge"),
            ["#", "HELP", "baton_build", rest] => format!("# HELP baton_build_info {rest}"),
            ["#", ..] => line.to_owned(),
            // Labels are fixed words, so this is the beginning of an exemplar.
            _ => line.split(" # ").next().unwrap_or(line).to_owned(),
        };
        page.push_str(&line);
        page.push('\n');
    }
    page
}

/// The time at which a handoff entered its present state.
fn entered(handoff: &Handoff) -> crate::time::Timestamp {
    let of_state = handoff.steps.iter().rev().take_while(|step| step.state == handoff.state);
    of_state.last().map_or(handoff.created_at, |step| step.at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_series_has_help_and_a_type() {
        let metrics = Metrics::new();
        metrics.count(Event::Parked(ParkReason::Expired));
        metrics.over_limit("CONNECTIONS", 3);
        let page = metrics.encode();
        for line in page.lines().filter(|line| !line.starts_with('#')) {
            let name = line.split(['{', ' ']).next().unwrap();
            let family = ["_total", "_bucket", "_sum", "_count", "_info"]
                .iter()
                .find_map(|end| name.strip_suffix(end))
                .unwrap_or(name);
            assert!(page.contains(&format!("# HELP {family} ")), "{line}");
            assert!(page.contains(&format!("# TYPE {family} ")), "{line}");
        }
        assert!(page.contains("baton_limit_refusals_total{limit=\"CONNECTIONS\"} 3\n"), "{page}");
        assert!(page.ends_with("# EOF\n"));
    }

    #[test]
    fn the_older_format_states_the_type_of_each_sample_under_its_name() {
        let metrics = Metrics::new();
        metrics.count(Event::Parked(ParkReason::Poison));
        let page = plain_text(&metrics.encode());
        assert!(page.contains("# TYPE baton_dead_letters_total counter\n"), "{page}");
        assert!(page.contains("baton_dead_letters_total{reason=\"POISON\"} 1\n"), "{page}");
        assert!(page.contains("# TYPE baton_commit_seconds histogram\n"), "{page}");
        assert!(page.contains("# TYPE baton_build_info gauge\n"), "{page}");
        assert!(!page.contains("EOF") && !page.contains("# UNIT"), "{page}");
    }

    #[test]
    fn a_bucket_shows_a_trace_in_openmetrics_alone() {
        let metrics = Metrics::new();
        let trace = InTrace { trace_id: "26cc268b901326bbafefd062ab0eb0b6".to_owned() };
        let seconds = metrics.handoff_seconds.get_or_create(&Outcome { outcome: "COMPLETED" }).clone();
        seconds.observe(0.75, Some(trace), Some(SystemTime::UNIX_EPOCH + Duration::from_secs(5)));
        seconds.observe(20.0, None, None);
        let bucket = "baton_handoff_seconds_bucket{le=\"1.024\",outcome=\"COMPLETED\"} 1";
        let page = metrics.encode();
        let exemplar = "# {trace_id=\"26cc268b901326bbafefd062ab0eb0b6\"} 0.75 5.0";
        assert!(page.contains(&format!("{bucket} {exemplar}\n")), "{page}");
        assert_eq!(page.matches("trace_id").count(), 1, "an untraced handoff has no exemplar");
        let plain = plain_text(&page);
        assert!(plain.contains(&format!("{bucket}\n")) && !plain.contains("trace_id"), "{plain}");
    }
}

//! The figures of a member for Prometheus.
//!
//! Owns their names and labels, and measuring the appends of a log. They begin at 0 when the process starts, and stay over the
//! roles of the broker. Must not know how they are served.

use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use baton_protocol::time::Moment;
use bytes::Bytes;
use prometheus_client::{
    encoding::{EncodeLabelSet, text},
    metrics::{
        counter::Counter,
        family::{Family, MetricConstructor},
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

use crate::{
    log::{AppendError, Position, ReadError, Settings, SharedLog, Unavailable},
    requests::{RequestCount, Requests},
    view::{Role, View},
};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RoleLabel {
    role: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabel {
    kind: &'static str,
}

#[derive(Debug, Clone, Copy)]
struct Seconds;

impl MetricConstructor<Histogram> for Seconds {
    fn new_metric(&self) -> Histogram {
        Histogram::new(exponential_buckets(0.001, 2.0, 14))
    }
}

/// The figures of a member.
pub struct Figures {
    registry: Registry,
    role: Family<RoleLabel, Gauge>,
    term: Gauge,
    position: Gauge,
    lag: Gauge<f64, std::sync::atomic::AtomicU64>,
    takeovers: Counter,
    appends: Family<OutcomeLabel, Histogram, Seconds>,
    relayed: Gauge,
    log_bytes: Gauge,
    log_requests: Family<KindLabel, Counter>,
    counted: OnceLock<Arc<Requests>>,
}

impl std::fmt::Debug for Figures {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Figures")
    }
}

impl Default for Figures {
    fn default() -> Self {
        let mut figures = Self {
            registry: Registry::with_prefix("baton"),
            role: Family::default(),
            term: Gauge::default(),
            position: Gauge::default(),
            lag: Gauge::default(),
            takeovers: Counter::default(),
            appends: Family::new_with_constructor(Seconds),
            relayed: Gauge::default(),
            log_bytes: Gauge::default(),
            log_requests: Family::default(),
            counted: OnceLock::new(),
        };
        figures.register();
        figures
    }
}

impl Figures {
    fn register(&mut self) {
        let registry = &mut self.registry;
        registry.register(
            "cluster_role",
            "1 for the role of the broker in its cluster, 0 for all others. diverged: restore the shared log, or begin a new one with baton \
             cluster refound",
            self.role.clone(),
        );
        registry.register(
            "cluster_term",
            "Takeovers in the shared log, as far as this broker has applied it",
            self.term.clone(),
        );
        registry.register(
            "cluster_position",
            "The last entry of the shared log that this broker has",
            self.position.clone(),
        );
        let help = "Time since this broker had all entries of the shared log";
        registry.register("cluster_lag_seconds", help, self.lag.clone());
        registry.register("takeovers", "How often this process has taken over as the leader", self.takeovers.clone());
        let help = "Time of an append to the shared log, by its outcome: OK, FENCED, UNKNOWN or TOO_LARGE";
        registry.register("log_append_seconds", help, self.appends.clone());
        let help = "Connections of clients that this broker relays to the leader";
        registry.register("relayed_connections", help, self.relayed.clone());
        let help = "Bytes of the shared log, as this broker has measured them as the leader; 0 at other brokers";
        registry.register("cluster_log_bytes", help, self.log_bytes.clone());
        let help = "Requests of this process to the bucket of the shared log, by what is charged: write, read";
        registry.register("log_requests", help, self.log_requests.clone());
    }

    /// The figures of this moment in OpenMetrics. `relayed`: the number of connections that the broker relays.
    pub fn encode(&self, view: &View, relayed: u64) -> String {
        let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        for role in Role::ALL {
            self.role.get_or_create(&RoleLabel { role: role.name() }).set(i64::from(role == view.role));
        }
        self.term.set(number(view.term));
        self.position.set(number(view.position));
        self.lag.set(view.lag.as_secs_f64());
        self.takeovers.inc_by(view.takeovers.saturating_sub(self.takeovers.get()));
        self.relayed.set(number(relayed));
        if view.role != Role::Leading {
            self.log_bytes.set(0);
        }
        if let Some(RequestCount { writes, reads, .. }) = self.requests() {
            for (kind, count) in [("write", writes), ("read", reads)] {
                let shown = self.log_requests.get_or_create(&KindLabel { kind });
                shown.inc_by(count.saturating_sub(shown.get()));
            }
        }
        let mut page = String::new();
        text::encode(&mut page, &self.registry).expect("a string takes all text");
        page
    }

    /// Notes the bytes of the shared log.
    pub(crate) fn log_has(&self, bytes: u64) {
        self.log_bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    /// Takes the count of an engine's requests. The first one stays.
    pub(crate) fn counts(&self, requests: Arc<Requests>) {
        // A process opens its engine once.
        let _ = self.counted.set(requests);
    }

    /// The requests to the engine. `None`: they are not charged for, or the engine is not open yet.
    pub fn requests(&self) -> Option<RequestCount> {
        self.counted.get().map(|requests| requests.count())
    }

    /// The same log, whose appends are measured.
    pub fn measured(&self, log: Arc<dyn SharedLog>) -> Arc<dyn SharedLog> {
        Arc::new(Measured { log, appends: self.appends.clone() })
    }
}

/// A log whose appends are measured.
struct Measured {
    log: Arc<dyn SharedLog>,
    appends: Family<OutcomeLabel, Histogram, Seconds>,
}

#[async_trait]
impl SharedLog for Measured {
    async fn append(&self, after: Position, entry: Bytes) -> Result<(), AppendError> {
        let began = Moment::now();
        let appended = self.log.append(after, entry).await;
        let outcome = match &appended {
            Ok(()) => "OK",
            Err(AppendError::Fenced) => "FENCED",
            Err(AppendError::Unknown(_)) => "UNKNOWN",
            Err(AppendError::TooLarge { .. }) => "TOO_LARGE",
        };
        self.appends.get_or_create(&OutcomeLabel { outcome }).observe(began.elapsed().as_secs_f64());
        appended
    }

    async fn end(&self) -> Result<Position, Unavailable> {
        self.log.end().await
    }

    async fn read(&self, from: Position, bytes: usize) -> Result<Vec<(Position, Bytes)>, ReadError> {
        self.log.read(from, bytes).await
    }

    async fn trim(&self, before: Position) -> Result<(), Unavailable> {
        self.log.trim(before).await
    }

    async fn size_bytes(&self) -> Result<u64, Unavailable> {
        self.log.size_bytes().await
    }

    fn entry_bytes_max(&self) -> usize {
        self.log.entry_bytes_max()
    }

    async fn settings(&self) -> Result<Settings, Unavailable> {
        self.log.settings().await
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{engines::memory::Memory, entry::Chain};

    #[tokio::test]
    async fn the_page_has_the_view_and_the_outcomes_of_appends() {
        let figures = Figures::default();
        let log = figures.measured(Arc::new(Memory::default()));
        log.append(0, Bytes::from_static(b"a")).await.unwrap();
        log.append(0, Bytes::from_static(b"b")).await.unwrap_err();
        let view = View {
            role: Role::Following,
            lag: Duration::from_millis(1500),
            takeovers: 2,
            ..View::at_start(Chain { position: 9, term: 3, ..Chain::EMPTY }, 4)
        };
        figures.encode(&view, 7);
        // Twice, so that a counter would show that it was added again.
        let page = figures.encode(&view, 7);
        for line in [
            "baton_cluster_role{role=\"following\"} 1",
            "baton_cluster_role{role=\"leading\"} 0",
            "baton_cluster_term 3",
            "baton_cluster_position 9",
            "baton_cluster_lag_seconds 1.5",
            "baton_takeovers_total 2",
            "baton_log_append_seconds_count{outcome=\"OK\"} 1",
            "baton_log_append_seconds_count{outcome=\"FENCED\"} 1",
            "baton_relayed_connections 7",
            "baton_cluster_log_bytes 0",
        ] {
            assert!(page.lines().any(|found| found == line), "{line} is not in\n{page}");
        }
        assert!(!page.contains("baton_log_requests_total{"), "no provider charges for a log in memory: {page}");
        let requests = Arc::new(Requests::default());
        figures.counts(requests.clone());
        requests.wrote(3);
        requests.has_read();
        figures.encode(&view, 7);
        let page = figures.encode(&view, 7);
        for line in ["baton_log_requests_total{kind=\"write\"} 3", "baton_log_requests_total{kind=\"read\"} 1"] {
            assert!(page.lines().any(|found| found == line), "{line} is not in\n{page}");
        }
        // A measure of a former term is not shown.
        for (role, shown) in [(Role::Leading, 12), (Role::Following, 0)] {
            figures.log_has(12);
            let page = figures.encode(&View { role, ..view.clone() }, 7);
            assert!(page.contains(&format!("\nbaton_cluster_log_bytes {shown}\n")), "{page}");
        }
    }
}

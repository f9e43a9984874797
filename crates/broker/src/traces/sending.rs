//! The way of spans to the collector: OTLP over gRPC, by the queue and the thread of OpenTelemetry's own batch processor.

use std::{
    env,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use opentelemetry::KeyValue;
use opentelemetry_otlp::{SpanExporter as OtlpExporter, WithTonicConfig as _};
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    resource::{EnvResourceDetector, TelemetryResourceDetector},
    trace::{BatchConfigBuilder, BatchSpanProcessor, SpanData, SpanExporter, SpanProcessor},
};
use tonic::transport::{ClientTlsConfig, Endpoint};

use crate::metrics::{Metrics, SpanResult};

/// The time for a connection to the collector.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The time for one batch, as OpenTelemetry has it, unless the environment names another.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The spans that wait at most, as OpenTelemetry has it, unless the environment names another number.
const WAITING_MAX: usize = 2048;
/// The time that a stop waits for the collector.
const STOP_GRACE: Duration = Duration::from_secs(3);

/// The reason why spans cannot be sent.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address is not one of OTLP over gRPC.
    #[error("{named_by} is {endpoint:?}: name the collector as http://HOST:PORT or https://HOST:PORT, without a user")]
    Endpoint {
        /// The setting or the variable with the address.
        named_by: &'static str,
        /// The address.
        endpoint: String,
    },
    /// OpenTelemetry refuses a setting.
    #[error("{0}")]
    Refused(String),
}

/// The queue to the collector.
#[derive(Debug)]
pub(super) struct Sink {
    processor: BatchSpanProcessor,
    counts: Arc<Counts>,
    endpoint: String,
    waiting_max: usize,
}

#[derive(Debug)]
struct Counts {
    metrics: Arc<Metrics>,
    /// Spans that are queued or on their way.
    waiting: AtomicUsize,
    fails: AtomicBool,
}

impl Sink {
    /// `None`: neither the configuration nor the environment names a collector, or the environment turns spans off.
    pub(super) fn start(configured: Option<&str>, metrics: Arc<Metrics>) -> Result<Option<Self>, StartError> {
        let is = |name: &str, value: &str| variable(name).is_some_and(|found| found.eq_ignore_ascii_case(value));
        if is("OTEL_SDK_DISABLED", "true") || is("OTEL_TRACES_EXPORTER", "none") {
            return Ok(None);
        }
        let of_environment = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];
        let configured = configured.map(|endpoint| ("traces.endpoint", endpoint.to_owned()));
        let named = of_environment.into_iter().find_map(|name| Some((name, variable(name)?)));
        let Some((named_by, endpoint)) = configured.or(named) else { return Ok(None) };
        let timeouts = ["OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT"];
        let timeout = timeouts.into_iter().find_map(number).map_or(TIMEOUT, Duration::from_millis);
        let channel = channel(named_by, &endpoint, timeout)?;
        let built = OtlpExporter::builder().with_tonic().with_channel(channel).build();
        let exporter = built.map_err(|error| StartError::Refused(error.to_string()))?;
        let counts = Arc::new(Counts { metrics, waiting: AtomicUsize::new(0), fails: AtomicBool::new(false) });
        let exporter = Counting { exporter, counts: counts.clone() };
        let waiting_max = number("OTEL_BSP_MAX_QUEUE_SIZE").and_then(|max| usize::try_from(max).ok());
        let mut processor = BatchSpanProcessor::new(exporter, BatchConfigBuilder::default().build());
        processor.set_resource(&resource());
        Ok(Some(Self { processor, counts, endpoint, waiting_max: waiting_max.unwrap_or(WAITING_MAX) }))
    }

    pub(super) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Queues a span, or counts it as dropped where the queue is full. Never waits.
    pub(super) fn send(&self, span: SpanData) {
        let counts = &self.counts;
        // The processor would drop it too, but tells no one.
        if counts.waiting.fetch_add(1, Ordering::Relaxed) >= self.waiting_max {
            counts.waiting.fetch_sub(1, Ordering::Relaxed);
            return counts.metrics.spans(SpanResult::Dropped, 1);
        }
        self.processor.on_end(span);
    }

    pub(super) fn stop(&self) {
        if self.processor.shutdown_with_timeout(STOP_GRACE).is_err() {
            let left = self.counts.waiting.load(Ordering::Relaxed);
            tracing::warn!(left, "failed to send the last spans to the collector");
        }
    }
}

/// An exporter that counts what becomes of the spans.
#[derive(Debug)]
struct Counting<E> {
    exporter: E,
    counts: Arc<Counts>,
}

impl<E: SpanExporter> SpanExporter for Counting<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let many = batch.len();
        let result = self.exporter.export(batch).await;
        self.counts.sent(many, &result);
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

impl Counts {
    fn sent(&self, many: usize, result: &OTelSdkResult) {
        self.waiting.fetch_sub(many, Ordering::Relaxed);
        let kind = if result.is_ok() { SpanResult::Sent } else { SpanResult::Failed };
        self.metrics.spans(kind, many);
        // One line for each change: a collector that is down fails every five seconds.
        match (result, self.fails.swap(result.is_err(), Ordering::Relaxed)) {
            (Err(error), false) => tracing::warn!(%error, "failed to send spans to the collector"),
            (Ok(()), true) => tracing::info!("the collector takes spans again"),
            (Err(_), true) | (Ok(()), false) => {}
        }
    }
}

fn channel(named_by: &'static str, endpoint: &str, timeout: Duration) -> Result<tonic::transport::Channel, StartError> {
    let wrong = || StartError::Endpoint { named_by, endpoint: endpoint.to_owned() };
    let built = Endpoint::from_shared(endpoint.to_owned()).map_err(|_| wrong())?;
    let uri = built.uri();
    if uri.authority().is_none_or(|authority| authority.as_str().contains('@')) {
        return Err(wrong());
    }
    let built = match uri.scheme_str() {
        Some("http") => built,
        Some("https") => {
            let tls = ClientTlsConfig::new().with_enabled_roots();
            built.tls_config(tls).map_err(|error| StartError::Refused(error.to_string()))?
        }
        Some(_) | None => return Err(wrong()),
    };
    Ok(built.connect_timeout(CONNECT_TIMEOUT).timeout(timeout).connect_lazy())
}

/// The broker as the source of its spans: `baton`, unless the environment names the service.
fn resource() -> Resource {
    let resource = Resource::builder_empty()
        .with_service_name("baton")
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .with_detectors(&[Box::new(TelemetryResourceDetector), Box::new(EnvResourceDetector::new())]);
    match variable("OTEL_SERVICE_NAME") {
        Some(name) => resource.with_service_name(name).build(),
        None => resource.build(),
    }
}

/// A variable of the environment; an empty one counts as none.
fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

fn number(name: &str) -> Option<u64> {
    variable(name)?.parse().ok()
}

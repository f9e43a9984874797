//! The report of a bench: a table for people, or a document.

use std::time::Duration;

use serde::Serialize;

use super::{
    broker::Target,
    latency::rounded,
    process::{self, Memory, Usage},
};
use crate::{Failure, output::Output};
use baton_client::time::Moment;

/// The resource usage at a moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reading {
    at: Moment,
    clients: Option<Usage>,
    broker: Option<Usage>,
    syncs: Option<u64>,
}

/// The usage of a broker and its clients between two readings, per unit of work.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Costs {
    pub(super) clients_cpu_us: Option<f64>,
    pub(super) broker_cpu_us: Option<f64>,
    pub(super) broker_written_bytes: Option<f64>,
    pub(super) broker_syncs: Option<f64>,
}

/// The memory at the end of the run.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Resident {
    pub(super) clients_bytes: Option<u64>,
    pub(super) broker_bytes: Option<u64>,
    pub(super) broker_max_bytes: Option<u64>,
}

impl Reading {
    pub(super) fn take(target: &Target) -> Self {
        Self {
            at: Moment::now(),
            clients: process::usage(std::process::id()),
            broker: target.usage(),
            syncs: target.syncs(),
        }
    }

    /// The time since an earlier reading.
    pub(super) fn since(&self, earlier: &Self) -> Duration {
        self.at.since(earlier.at)
    }

    /// The usage since an earlier reading, divided by `many`.
    pub(super) fn costs_since(&self, earlier: &Self, many: u64) -> Costs {
        let each = |total: f64| (many > 0).then(|| total / many as f64);
        let cpu_us = |after: Option<Usage>, before: Option<Usage>| {
            each((after?.cpu.saturating_sub(before?.cpu)).as_secs_f64() * 1e6).map(rounded)
        };
        let written =
            |after: Usage, before: Usage| each(after.written_bytes.saturating_sub(before.written_bytes) as f64);
        let syncs = |after: u64, before: u64| each(after.saturating_sub(before) as f64);
        Costs {
            clients_cpu_us: cpu_us(self.clients, earlier.clients),
            broker_cpu_us: cpu_us(self.broker, earlier.broker),
            broker_written_bytes: self.broker.zip(earlier.broker).and_then(|(a, b)| written(a, b)).map(f64::round),
            broker_syncs: self.syncs.zip(earlier.syncs).and_then(|(a, b)| syncs(a, b)).map(thousandths),
        }
    }
}

impl Costs {
    /// The costs as lines for people.
    pub(super) fn lines(&self, one: &str) -> Vec<(String, String)> {
        vec![
            (format!("CPU a {one}, clients"), known(self.clients_cpu_us, |us| format!("{us:.0} µs"))),
            (format!("CPU a {one}, broker"), known(self.broker_cpu_us, |us| format!("{us:.0} µs"))),
            (format!("written a {one}"), known(self.broker_written_bytes, |bytes| format!("{bytes:.0} bytes"))),
            (format!("syncs a {one}"), known(self.broker_syncs, |syncs| format!("{syncs:.3}"))),
        ]
    }
}

impl Resident {
    pub(super) fn of(target: &Target) -> Self {
        let broker = target.memory();
        Self {
            clients_bytes: process::memory(std::process::id()).map(|memory| memory.resident_bytes),
            broker_bytes: broker.map(|memory: Memory| memory.resident_bytes),
            broker_max_bytes: broker.map(|memory| memory.resident_max_bytes),
        }
    }

    pub(super) fn lines(&self) -> Vec<(String, String)> {
        let broker = self.broker_bytes.zip(self.broker_max_bytes);
        let broker = broker.map(|(now, most)| format!("{} (at most {})", mebibytes(now), mebibytes(most)));
        vec![
            ("resident, broker".to_owned(), broker.unwrap_or_else(|| UNKNOWN.to_owned())),
            ("resident, clients".to_owned(), known(self.clients_bytes, mebibytes)),
        ]
    }
}

/// Shown if the broker's process is unknown.
const UNKNOWN: &str = "not known";

/// The value as text, or [`UNKNOWN`].
pub(super) fn known<T>(value: Option<T>, text: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| UNKNOWN.to_owned(), text)
}

pub(super) fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

/// The rate per second, to one decimal.
pub(super) fn per_second(many: u64, span: Duration) -> f64 {
    if span.is_zero() { 0.0 } else { rounded(many as f64 / span.as_secs_f64()) }
}

pub(super) fn seconds(span: Duration) -> f64 {
    thousandths(span.as_secs_f64())
}

fn thousandths(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}

/// Prints the report: its lines for people, or the document.
pub(super) fn print(
    output: Output,
    report: &impl Serialize,
    table: impl FnOnce() -> Vec<(String, String)>,
) -> Result<(), Failure> {
    if !output.is_table() {
        return output.value(&serde_json::to_value(report).map_err(|error| Failure::failed(error.to_string()))?);
    }
    for (name, value) in table() {
        say!("{name:<26}{value}");
    }
    Ok(())
}

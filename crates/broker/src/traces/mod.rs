//! Spans for OpenTelemetry (SPEC 13): one task is one trace over all agents.
//!
//! Owns the ids and contents of the broker's spans, the decision which traces are recorded, and the queue to the
//! collector. A handoff may outlive the process, so its span is made from its stored steps when it ends, and its id is
//! derived from the handoff's. A collector that is slow or down costs spans, which are counted, and nothing else. Must
//! not know the store.

mod names;
mod sending;
mod spans;

use std::sync::Arc;

use opentelemetry::{
    Context, InstrumentationScope,
    trace::{SpanContext, SpanId, SpanKind, TraceContextExt as _, TraceFlags, TraceId, TraceState},
};
use opentelemetry_sdk::trace::{Config as SdkConfig, Sampler, SamplingDecision, ShouldSample};
use sha2::{Digest as _, Sha256};

pub use self::sending::StartError;
use self::{sending::Sink, spans::Shape};
use crate::{
    domain::{
        Entity, EntityId, TraceContext,
        mailbox::{Lease, Letter},
    },
    ids::AgentId,
    metrics::Metrics,
    records::{EntityRecord, TracePlace},
    time::Timestamp,
};

/// Where spans go, and how many.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Options {
    /// The collector's address for OTLP over gRPC. `None`: that of the environment, and without one there are no spans.
    pub endpoint: Option<String>,
    /// The part of the traces that is recorded, 0 to 1, where the sender of a message has not decided it. `None`: as the
    /// environment says, or else all.
    pub sampling_ratio: Option<f64>,
}

/// The spans of a broker.
pub struct Traces {
    sampler: Box<dyn ShouldSample>,
    sink: Sink,
    scope: InstrumentationScope,
}

impl std::fmt::Debug for Traces {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("the spans of a broker")
    }
}

impl Traces {
    /// Starts to send spans. `None`: they are off. Does not wait for the collector. Runs in a runtime of tokio.
    pub fn start(options: &Options, metrics: Arc<Metrics>) -> Result<Option<Arc<Self>>, StartError> {
        let Some(sink) = Sink::start(options.endpoint.as_deref(), metrics)? else { return Ok(None) };
        let sampler = match options.sampling_ratio {
            Some(ratio) => Box::new(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(ratio)))),
            None => SdkConfig::default().sampler,
        };
        let scope = InstrumentationScope::builder("baton").with_version(env!("CARGO_PKG_VERSION")).build();
        Ok(Some(Arc::new(Self { sampler, sink, scope })))
    }

    /// The collector's address.
    pub fn endpoint(&self) -> &str {
        self.sink.endpoint()
    }

    /// Sends what waits, for at most three seconds. Blocks the thread.
    pub fn stop(&self) {
        self.sink.stop();
    }

    /// The place of an entity that begins. `root`: the entity whose trace it is where no parent is known.
    pub fn place(&self, entity: &EntityId, root: &EntityId, parent: Option<&TraceContext>) -> TracePlace {
        let trace_id = parent.map_or_else(|| trace_id_of(root), |parent| parent.trace_id);
        let is_own = self.is_sampled(trace_id, parent);
        match parent {
            // Another program records the trace: its own span goes on.
            Some(parent) if !is_own => {
                TracePlace { continued: parent.clone(), parent: None, link: None, is_own: false }
            }
            _ => TracePlace {
                continued: TraceContext {
                    trace_id,
                    span_id: span_id_of(entity),
                    flags: match is_own {
                        true => parent.map_or(0, |parent| parent.flags) | TraceContext::SAMPLED,
                        false => 0,
                    },
                    state: parent.map(|parent| parent.state.clone()).unwrap_or_default(),
                },
                parent: parent.map(|parent| parent.span_id),
                link: None,
                is_own,
            },
        }
    }

    fn is_sampled(&self, trace_id: [u8; 16], parent: Option<&TraceContext>) -> bool {
        let parent = parent.map(|parent| Context::new().with_remote_span_context(span_context(parent)));
        let (trace_id, kind) = (TraceId::from_bytes(trace_id), SpanKind::Internal);
        let result = self.sampler.should_sample(parent.as_ref(), trace_id, names::HANDOFF, &kind, &[], &[]);
        result.decision == SamplingDecision::RecordAndSample
    }

    /// Makes the spans that end with a committed step of an entity.
    pub fn entity_moved(&self, before: Option<&EntityRecord>, after: &EntityRecord) {
        if let EntityRecord::Task(record) = after {
            let lent = before.and_then(EntityRecord::as_task).map_or(&[][..], |before| &before.task.loans);
            let Some(place) = record.handoff.as_ref().and_then(|handoff| handoff.trace.as_deref()) else { return };
            for loan in lent.iter().filter(|loan| place.is_own && !record.task.loans.contains(loan)) {
                self.send(spans::recall(loan, &record.task, place));
            }
            return;
        }
        // Most steps end nothing: the record says so without a copy.
        let Some(place) = after.trace().filter(|place| place.is_own) else { return };
        let has_ended = |record: &EntityRecord| record.entity().has_ended();
        if !has_ended(after) || before.is_some_and(has_ended) {
            return;
        }
        match after.entity() {
            Entity::Handoff(handoff) => {
                self.send(spans::handoff(&handoff, place));
                spans::offers(&handoff, place).into_iter().for_each(|offer| self.send(offer));
            }
            Entity::Negotiation(negotiation) => self.send(spans::negotiation(&negotiation, place)),
            Entity::Plan(plan) => self.send(spans::plan(&plan, place)),
            _ => {}
        }
    }

    /// Makes the spans of a message's delivery attempts once it leaves the mailbox, if there were several. `last`: the
    /// attempt that the agent acked.
    pub fn letter_removed(&self, agent: &AgentId, letter: &Letter, last: Option<&Lease>, now: Timestamp) {
        let Some(context) = letter.trace.as_deref().filter(|context| context.is_sampled()) else { return };
        if !letter.attempts.is_empty() {
            spans::deliveries(agent, letter, last, context, now).into_iter().for_each(|attempt| self.send(attempt));
        }
    }

    fn send(&self, shape: Shape<'_>) {
        self.sink.send(shape.into_span(&self.scope));
    }
}

/// The id of an entity's span: the first 8 bytes of the SHA-256 of its kind, a space and its id. The same after a crash.
fn span_id_of(what: &impl std::fmt::Display) -> [u8; 8] {
    first_bytes(what)
}

/// The id of the trace of an entity that no other program has put into one.
fn trace_id_of(what: &impl std::fmt::Display) -> [u8; 16] {
    first_bytes(what)
}

fn first_bytes<const N: usize>(what: &impl std::fmt::Display) -> [u8; N] {
    let digest = Sha256::digest(what.to_string());
    *digest.first_chunk().expect("a SHA-256 has 32 bytes")
}

fn span_context(context: &TraceContext) -> SpanContext {
    SpanContext::new(
        TraceId::from_bytes(context.trace_id),
        SpanId::from_bytes(context.span_id),
        TraceFlags::new(context.flags),
        true,
        // A state that OpenTelemetry cannot read is dropped, as the specification of trace context says.
        context.state.parse::<TraceState>().unwrap_or_default(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{MessageId, TaskId};

    /// A handoff must not change its span on an upgrade.
    #[test]
    fn ids_are_derived_from_the_entity_alone() {
        let handoff = EntityId::Handoff(MessageId::parse("0191e0a0-0000-7000-8000-000000000001").unwrap());
        let task = EntityId::Task(TaskId::parse("crash-7").unwrap());
        let (span, trace) = (hex::encode(span_id_of(&handoff)), hex::encode(trace_id_of(&task)));
        assert_eq!((span.as_str(), trace.as_str()), ("9ff5614011c131f2", "26cc268b901326bbafefd062ab0eb0b6"));
    }
}

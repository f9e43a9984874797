//! The trace context of an agent's messages: which span a message continues, in and out.
//!
//! A task of tokio has at most one context. [`Link::serve`](crate::Link::serve) runs each handler in that of its delivery,
//! and [`Composer`](crate::Composer) puts the present one into each envelope. With the feature `opentelemetry` it is the
//! active span of OpenTelemetry, which a handler's own spans then have as their parent.

use super::TraceContext;
use crate::{envelope::trace_context, proto::v1};

tokio::task_local! {
    static CONTINUED: TraceContext;
}

/// Runs a future in a trace: the messages that it sends carry the context. Tasks that it spawns have none.
pub async fn in_trace<F: Future>(context: TraceContext, future: F) -> F::Output {
    #[cfg(feature = "opentelemetry")]
    let future = opentelemetry::context::FutureExt::with_context(future, open_telemetry::remote(&context));
    CONTINUED.scope(context, future).await
}

/// The context that a message sent now carries. `None`: no trace is known here.
pub fn current_trace() -> Option<TraceContext> {
    #[cfg(feature = "opentelemetry")]
    if let Some(active) = open_telemetry::active() {
        return Some(active);
    }
    CONTINUED.try_with(Clone::clone).ok()
}

/// The context that the receiver of a delivery continues. `None`: the delivery has none, or it is not valid.
pub(crate) fn of_delivery(delivery: &v1::Delivery) -> Option<TraceContext> {
    delivery.trace_context.as_ref().and_then(trace_context)
}

#[cfg(feature = "opentelemetry")]
mod open_telemetry {
    use opentelemetry::{
        Context,
        trace::{SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState},
    };

    use super::TraceContext;

    /// The present context, with a span of another program as the active one.
    pub(super) fn remote(context: &TraceContext) -> Context {
        Context::current().with_remote_span_context(SpanContext::new(
            TraceId::from_bytes(context.trace_id),
            SpanId::from_bytes(context.span_id),
            TraceFlags::new(context.flags),
            true,
            context.state.parse::<TraceState>().unwrap_or_default(),
        ))
    }

    pub(super) fn active() -> Option<TraceContext> {
        let context = Context::current();
        let span = context.span().span_context().clone();
        span.is_valid().then(|| TraceContext {
            trace_id: span.trace_id().to_bytes(),
            span_id: span.span_id().to_bytes(),
            flags: span.trace_flags().to_u8(),
            state: span.trace_state().header(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context(byte: u8) -> TraceContext {
        TraceContext { trace_id: [byte; 16], span_id: [byte; 8], flags: 1, state: String::new() }
    }

    #[tokio::test]
    async fn the_innermost_context_is_current_and_ends_with_its_future() {
        assert_eq!(current_trace(), None);
        in_trace(context(1), async {
            assert_eq!(current_trace(), Some(context(1)));
            in_trace(context(2), async { assert_eq!(current_trace(), Some(context(2))) }).await;
            assert_eq!(current_trace(), Some(context(1)));
        })
        .await;
        assert_eq!(current_trace(), None);
    }

    #[test]
    fn a_delivery_without_a_valid_context_has_none() {
        assert_eq!(of_delivery(&v1::Delivery::default()), None);
        let wrong = v1::TraceContext { traceparent: "00-aa-bb-01".to_owned(), tracestate: String::new() };
        assert_eq!(of_delivery(&v1::Delivery { trace_context: Some(wrong), ..Default::default() }), None);
        let right = v1::Delivery { trace_context: Some((&context(1)).into()), ..Default::default() };
        assert_eq!(of_delivery(&right), Some(context(1)));
    }
}

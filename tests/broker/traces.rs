//! The trace context of deliveries: what an agent continues.

use std::time::Duration;

use baton_broker_core::{
    domain::TraceContext,
    proto::v1::{self, MessageType},
};

use crate::world::{Session, World};

/// A context of this trace and span, sampled.
fn context(trace: u8, span: u8) -> TraceContext {
    TraceContext { trace_id: [trace; 16], span_id: [span; 8], flags: 1, state: "rojo=1".to_owned() }
}

fn with(mut envelope: v1::Envelope, context: &TraceContext) -> v1::Envelope {
    envelope.trace_context = Some(context.into());
    envelope
}

/// The context of the session's next delivery, which is acked.
fn continued(world: &mut World, session: &mut Session) -> (i32, Option<TraceContext>) {
    let (delivery, envelope) = session.delivery();
    world.ack(session, &delivery);
    (envelope.message_type, delivery.trace.map(|context| *context))
}

#[test]
fn a_delivery_has_the_context_of_its_envelope_or_else_that_of_its_handoff() {
    let mut world = World::with(&["a", "b"]);
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));
    let id = world.send(with(world.request("a", "b", 1), &context(7, 1))).unwrap().handoff_id;
    assert_eq!(continued(&mut world, &mut b).1, Some(context(7, 1)));
    world.send(world.accept("b", "a", &id, 1)).unwrap();
    assert_eq!(continued(&mut world, &mut a).1, Some(context(7, 1)), "the accept has none of its own");
    world.send(with(world.context("a", "b", &id, 1), &context(7, 3))).unwrap();
    assert_eq!(continued(&mut world, &mut b).1, Some(context(7, 3)));
    world.restart();
    let mut a = world.connect("a");
    world.send(world.complete("b", "a", &id, 1)).unwrap();
    assert_eq!(continued(&mut world, &mut a).1, Some(context(7, 1)), "after a restart, too");
}

#[test]
fn a_notice_of_the_broker_has_the_context_of_its_handoff() {
    let mut world = World::with(&["a", "b"]);
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));
    let id = world.send(with(world.request("a", "b", 1), &context(7, 1))).unwrap().handoff_id;
    continued(&mut world, &mut b);
    world.send(world.accept("b", "a", &id, 1)).unwrap();
    continued(&mut world, &mut a);
    world.pass(Duration::from_secs(61)); // the context timeout
    let (delivery, envelope) = a.delivery();
    assert_eq!(envelope.message_type, i32::from(MessageType::ErrorNotification));
    assert_eq!(delivery.trace.as_deref(), Some(&context(7, 1)));
    assert_eq!(envelope.trace_context, Some((&context(7, 1)).into()), "the broker wrote the message");
}

#[test]
fn a_redelivery_and_a_second_candidate_continue_the_same_context() {
    let mut world = World::with(&["a", "b", "c"]);
    let (mut b, mut c) = (world.connect("b"), world.connect("c"));
    let payload = v1::HandoffRequest {
        task_type: "support".to_owned(),
        fallback_candidates: vec!["c".to_owned()],
        ..v1::HandoffRequest::default()
    };
    let request = world.request_with("a", "b", 1, &payload);
    let id = world.send(with(request, &context(7, 1))).unwrap().handoff_id;
    assert_eq!(b.delivery().0.trace.as_deref(), Some(&context(7, 1)));
    world.disconnect(b);
    let mut b = world.connect("b");
    let (again, _) = b.delivery();
    assert_eq!((again.attempt, again.trace.as_deref()), (2, Some(&context(7, 1))));
    world.ack(&b, &again);
    world.send(world.reject("b", "a", &id, &[])).unwrap();
    assert_eq!(continued(&mut world, &mut c).1, Some(context(7, 1)));
}

#[test]
fn a_handoff_without_a_context_is_in_the_trace_of_its_task() {
    let mut world = World::with(&["a", "b", "c"]);
    let (mut a, mut b, mut c) = (world.connect("a"), world.connect("b"), world.connect("c"));
    let id = world.send(with(world.request("a", "b", 1), &context(7, 1))).unwrap().handoff_id;
    continued(&mut world, &mut b);
    world.send(world.accept("b", "a", &id, 1)).unwrap();
    continued(&mut world, &mut a);
    world.send(world.context("a", "b", &id, 1)).unwrap();
    continued(&mut world, &mut b);
    world.send(world.complete("b", "a", &id, 1)).unwrap();
    world.send(world.request("b", "c", 2)).unwrap();
    assert_eq!(continued(&mut world, &mut c).1, Some(context(7, 1)));
}

#[test]
fn a_context_that_is_not_valid_counts_as_none_and_is_forwarded_unchanged() {
    let mut world = World::with(&["a", "b"]);
    let mut b = world.connect("b");
    let mut envelope = world.info("a", "b", "one");
    let wrong = v1::TraceContext { traceparent: "00-aa-bb-01".to_owned(), tracestate: String::new() };
    envelope.trace_context = Some(wrong.clone());
    world.send(envelope).unwrap();
    let (delivery, envelope) = b.delivery();
    assert_eq!((delivery.trace, envelope.trace_context), (None, Some(wrong)));
}

//! The content of each span, from stored state. Ids and fixed words only: no payload, no summary and no text of an agent.

use std::{
    borrow::Cow,
    time::{Duration, SystemTime},
};

use opentelemetry::{
    InstrumentationScope, KeyValue,
    trace::{Event, Link, SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState},
};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};

use super::{names, span_context, span_id_of};
use crate::{
    domain::{
        EntityId, TraceContext,
        handoff::{Handoff, Loan, Mode, Offer, OfferOutcome, State, Step, Task},
        mailbox::{Attempt, Lease, Letter},
        negotiation::Negotiation,
        plan::Plan,
    },
    ids::AgentId,
    proto::v1,
    records::TracePlace,
    time::Timestamp,
};

/// A span before it gets its scope.
pub(super) struct Shape<'a> {
    name: &'static str,
    /// The trace; its span is not used.
    trace: &'a TraceContext,
    id: [u8; 8],
    parent: Option<[u8; 8]>,
    start: Timestamp,
    end: Timestamp,
    attributes: Vec<KeyValue>,
    events: Vec<Event>,
    links: Vec<Link>,
    /// The error code or the outcome of a failure.
    failure: Option<&'static str>,
}

impl Shape<'_> {
    pub(super) fn into_span(self, scope: &InstrumentationScope) -> SpanData {
        let mut attributes = self.attributes;
        attributes.push(text(names::SYSTEM, "baton"));
        attributes.push(text(names::OPERATION_NAME, self.name));
        let mut events = SpanEvents::default();
        events.events = self.events;
        let mut links = SpanLinks::default();
        links.links = self.links;
        SpanData {
            span_context: span_context(&TraceContext { span_id: self.id, ..self.trace.clone() }),
            parent_span_id: self.parent.map_or(SpanId::INVALID, SpanId::from_bytes),
            parent_span_is_remote: self.parent.is_some(),
            span_kind: SpanKind::Internal,
            name: Cow::Borrowed(self.name),
            start_time: time(self.start),
            // A clock that was set back must not give a span a negative length.
            end_time: time(self.end.max(self.start)),
            attributes,
            dropped_attributes_count: 0,
            events,
            links,
            status: match self.failure {
                Some(code) => Status::error(code),
                None => Status::Unset,
            },
            instrumentation_scope: scope.clone(),
        }
    }
}

/// The span of a handoff that has ended, with an event for each step.
pub(super) fn handoff<'a>(handoff: &Handoff, place: &'a TracePlace) -> Shape<'a> {
    let code = handoff.failure.as_ref().map(|failure| failure.code.name());
    let mode = match handoff.mode {
        Mode::Transfer => "TRANSFER",
        Mode::Delegate => "DELEGATE",
    };
    let mut attributes = about_handoff(handoff, &handoff.candidate);
    attributes.extend([
        text(names::HANDOFF_MODE, mode),
        text(names::OUTCOME, handoff.state.name()),
        KeyValue::new(names::EPOCH, number(handoff.epoch)),
        KeyValue::new(names::ATTEMPT, number(handoff.offers.len())),
    ]);
    // An agent's id is no destination: destinations are few.
    if handoff.receiver.contains(':') {
        attributes.push(KeyValue::new(names::DESTINATION, handoff.receiver.clone()));
    }
    attributes.extend(code.map(|code| text(names::REASON, code)));
    let step = |step: &Step| {
        let attributes = vec![text(names::HANDOFF_STATE, step.state.name()), id(names::RECEIVER, &step.candidate)];
        Event::new(cause_name(step.cause.number()), time(step.at), attributes, 0)
    };
    let why = match (handoff.redrive_of, handoff.negotiation) {
        (Some(_), _) => names::REDRIVE,
        (None, Some(_)) => names::AWARD,
        (None, None) => names::SUBTASK,
    };
    Shape {
        name: names::HANDOFF,
        trace: &place.continued,
        id: place.continued.span_id,
        parent: place.parent,
        start: handoff.created_at,
        end: handoff.updated_at,
        attributes,
        events: handoff.steps.iter().map(step).collect(),
        links: place.link.iter().map(|cause| link(span_context(cause), why)).collect(),
        failure: code,
    }
}

/// The spans of the offers of a handoff that was offered more than once, each with a link to the offer before it.
pub(super) fn offers<'a>(handoff: &Handoff, place: &'a TracePlace) -> Vec<Shape<'a>> {
    let offers: Vec<&Offer> = handoff.offers.iter().filter(|offer| !offer.passed_over).collect();
    if offers.len() < 2 {
        return Vec::new();
    }
    let id_of = |number: usize| span_id_of(&format_args!("offer {number} of handoff {}", handoff.id));
    let shape = |(index, offer): (usize, &&Offer)| {
        let next = offers.get(index + 1).map(|next| next.offered_at);
        // The last offer ends with its decision: the first step after which the candidate no longer decides.
        let is_decided = |state| !matches!(state, State::Requested | State::Deciding);
        let decided = handoff.steps.iter().find(|step| step.at >= offer.offered_at && is_decided(step.state));
        let mut attributes = about_handoff(handoff, &offer.candidate);
        attributes.push(KeyValue::new(names::ATTEMPT, number(index + 1)));
        attributes.push(text(names::OUTCOME, outcome_name(offer.outcome.number())));
        let failed = !matches!(offer.outcome, OfferOutcome::Accepted | OfferOutcome::Withdrawn);
        Shape {
            name: names::OFFER,
            trace: &place.continued,
            id: id_of(index + 1),
            parent: Some(place.continued.span_id),
            start: offer.offered_at,
            end: next.or(decided.map(|step| step.at)).unwrap_or(handoff.updated_at),
            attributes,
            events: Vec::new(),
            links: match index {
                0 => Vec::new(),
                index => vec![link(sibling(&place.continued, id_of(index)), names::REOFFER)],
            },
            failure: failed.then(|| outcome_name(offer.outcome.number())),
        }
    };
    offers.iter().enumerate().map(shape).collect()
}

/// The spans of the delivery attempts of a message, each with a link to the attempt before it.
pub(super) fn deliveries<'a>(
    agent: &AgentId,
    letter: &Letter,
    last: Option<&Lease>,
    context: &'a TraceContext,
    now: Timestamp,
) -> Vec<Shape<'a>> {
    // Only the latest attempts are kept; `handouts` counts all that ended without an ack.
    let ended = letter.attempts.len();
    let first = (letter.handouts as usize).saturating_sub(ended) + 1;
    let id_of = |number: usize| span_id_of(&format_args!("delivery {number} of letter {} to {agent}", letter.sequence));
    let attempts = letter.attempts.iter().map(Some).chain(last.map(|_| None)).enumerate();
    let shape = |(index, attempt): (usize, Option<&Attempt>)| {
        let (start, end) = match (attempt, last) {
            (Some(attempt), _) => (attempt.handed_out_at, attempt.ended_at),
            (None, Some(lease)) => (lease.since, now),
            (None, None) => (now, now),
        };
        let outcome = attempt.map_or("ACKED", |attempt| delivery_end(attempt.end.number()));
        let mut attributes = vec![
            id(names::MESSAGE_ID, letter.message),
            id(names::RECEIVER, agent),
            KeyValue::new(names::ATTEMPT, number(first + index)),
            text(names::OUTCOME, outcome),
        ];
        attributes.extend(letter.task.as_ref().map(|task| id(names::TASK, task)));
        Shape {
            name: names::DELIVERY,
            trace: context,
            id: id_of(first + index),
            parent: Some(context.span_id),
            start,
            end,
            attributes,
            events: Vec::new(),
            links: match index {
                0 => Vec::new(),
                _ => vec![link(sibling(context, id_of(first + index - 1)), names::REDELIVERY)],
            },
            failure: attempt.map(|_| outcome),
        }
    };
    attempts.map(shape).collect()
}

/// The moment at which a loan ends, with a link to the handoff that lent the task.
pub(super) fn recall<'a>(loan: &Loan, task: &Task, place: &'a TracePlace) -> Shape<'a> {
    let lent = span_id_of(&EntityId::Handoff(loan.handoff));
    Shape {
        name: names::RECALL,
        trace: &place.continued,
        id: span_id_of(&format_args!("recall {}", loan.handoff)),
        parent: Some(lent),
        start: task.updated_at,
        end: task.updated_at,
        attributes: vec![
            id(names::TASK, &task.id),
            KeyValue::new(names::EPOCH, number(task.epoch)),
            id(names::HANDOFF_ID, loan.handoff),
            id(names::RECEIVER, &loan.delegator),
            id(names::CONVERSATION, &task.id),
        ],
        events: Vec::new(),
        links: vec![link(sibling(&place.continued, lent), names::RECALL)],
        failure: None,
    }
}

pub(super) fn negotiation<'a>(negotiation: &Negotiation, place: &'a TracePlace) -> Shape<'a> {
    let code = negotiation.failure.as_ref().map(|failure| failure.code.name());
    let mut attributes = vec![
        id(names::NEGOTIATION_ID, negotiation.id),
        id(names::SENDER, &negotiation.requester),
        text(names::OUTCOME, negotiation.state.name()),
        id(names::MESSAGE_CONVERSATION, negotiation.id),
    ];
    attributes.extend(negotiation.task.as_ref().map(|(task, _)| id(names::TASK, task)));
    attributes.extend(negotiation.winner.as_ref().map(|winner| id(names::RECEIVER, winner)));
    attributes.extend(code.map(|code| text(names::REASON, code)));
    of_entity(names::NEGOTIATION, place, (negotiation.created_at, negotiation.updated_at), attributes, code)
}

pub(super) fn plan<'a>(plan: &Plan, place: &'a TracePlace) -> Shape<'a> {
    let attributes = vec![
        id(names::PLAN_ID, &plan.id),
        id(names::SENDER, &plan.submitter),
        text(names::OUTCOME, plan.state.name()),
        KeyValue::new(names::ATTEMPT, number(plan.round)),
    ];
    let failure = (plan.state.name() == "FAILED").then_some("FAILED");
    let mut shape = of_entity(names::PLAN, place, (plan.created_at, plan.updated_at), attributes, failure);
    // A retry runs a plan again. The span of each round has an id of its own, the first one that of the plan.
    if plan.round > 1 {
        shape.id = span_id_of(&format_args!("round {} of plan {}", plan.round, plan.id));
        shape.parent = Some(place.continued.span_id);
    }
    shape
}

fn of_entity<'a>(
    name: &'static str,
    place: &'a TracePlace,
    (start, end): (Timestamp, Timestamp),
    attributes: Vec<KeyValue>,
    failure: Option<&'static str>,
) -> Shape<'a> {
    Shape {
        name,
        trace: &place.continued,
        id: place.continued.span_id,
        parent: place.parent,
        start,
        end,
        attributes,
        events: Vec::new(),
        links: Vec::new(),
        failure,
    }
}

fn about_handoff(handoff: &Handoff, receiver: &AgentId) -> Vec<KeyValue> {
    vec![
        id(names::TASK, &handoff.task),
        id(names::HANDOFF_ID, handoff.id),
        id(names::SENDER, &handoff.sender),
        id(names::RECEIVER, receiver),
        id(names::AGENT, receiver),
        id(names::CONVERSATION, &handoff.task),
        id(names::MESSAGE_CONVERSATION, handoff.id),
    ]
}

fn link(to: SpanContext, why: &'static str) -> Link {
    Link::new(to, vec![text(names::LINK, why)], 0)
}

/// The context of another span of the same trace.
fn sibling(trace: &TraceContext, span: [u8; 8]) -> SpanContext {
    let (trace_id, flags) = (TraceId::from_bytes(trace.trace_id), TraceFlags::new(trace.flags));
    SpanContext::new(trace_id, SpanId::from_bytes(span), flags, false, TraceState::default())
}

fn id(name: &'static str, value: impl ToString) -> KeyValue {
    KeyValue::new(name, value.to_string())
}

fn text(name: &'static str, value: &'static str) -> KeyValue {
    KeyValue::new(name, value)
}

fn number(value: impl TryInto<i64>) -> i64 {
    value.try_into().unwrap_or(i64::MAX)
}

fn time(at: Timestamp) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_nanos(u64::try_from(at.unix_nanoseconds()).unwrap_or(0))
}

/// The word of a step's cause, as the schema has it.
fn cause_name(number: i32) -> &'static str {
    word(v1::HandoffCause::try_from(number).map(|cause| cause.as_str_name()), "HANDOFF_CAUSE_")
}

fn outcome_name(number: i32) -> &'static str {
    word(v1::OfferOutcome::try_from(number).map(|outcome| outcome.as_str_name()), "OFFER_OUTCOME_")
}

fn delivery_end(number: i32) -> &'static str {
    word(v1::DeliveryEnd::try_from(number).map(|end| end.as_str_name()), "DELIVERY_END_")
}

fn word<E>(name: Result<&'static str, E>, prefix: &str) -> &'static str {
    let name = name.unwrap_or("UNSPECIFIED");
    name.strip_prefix(prefix).unwrap_or(name)
}

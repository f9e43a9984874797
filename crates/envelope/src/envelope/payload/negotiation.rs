//! The payloads of negotiations.

use std::{ops::RangeInclusive, time::Duration};

use super::{Body, Checks, RequestBody, SKILLS_MAX, SUMMARY_BYTES_MAX, TEXT_BYTES_MAX, request, unset_or_known};
use crate::{
    ids::{MessageId, check_name},
    proto::v1,
    protocol::AwardRule,
    time::Timestamp,
};

/// The most bytes of a `TaskRequest` or `TaskAccept`, which custody logs and awards contain whole.
pub(super) const TERMS_BYTES_MAX: usize = 64 * 1024;
/// The bounds of the time for a decision (SPEC 6).
const DECISION_TIMEOUT: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(60 * 60);

/// A request for offers as received.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskRequestBody {
    /// The kind of work. May be empty.
    pub task_type: String,
    /// The skills that an agent must have to be asked.
    pub required_skills: Vec<String>,
    /// The skills that are useful.
    pub preferred_skills: Vec<String>,
    /// The rule of the award. `None`: the requester decides.
    pub rule: Option<AwardRule>,
    /// The least confidence of an offer that counts, 0 to 1.
    pub min_confidence: f64,
    /// The highest cost of an offer that counts. `None`: no limit.
    pub max_cost: Option<f64>,
    /// The number of offers that are enough. 0: no such number.
    pub offers_wanted: u32,
    /// The time until which offers are taken. `None`: the broker's default.
    pub offers_deadline: Option<Timestamp>,
    /// The time for the decision. `None`: the broker's default.
    pub decision_timeout: Option<Duration>,
    /// The terms of the handoff, with a rule the mandate for it.
    pub terms: Option<Box<RequestBody>>,
}

/// An offer as received.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskOfferBody {
    /// The confidence, 0 to 1.
    pub confidence: f64,
    /// The time that the work would take.
    pub estimated_duration: Option<Duration>,
    /// The price; finite.
    pub cost: f64,
    /// The round of the bidder and the requester, starting at 0.
    pub round: u32,
    /// Whether the message withdraws the standing offer.
    pub is_withdrawal: bool,
    /// The time from which on the offer no longer stands.
    pub valid_until: Option<Timestamp>,
}

pub(super) fn task_request(body: v1::TaskRequest, checks: &mut Checks) -> Body {
    checks.text("envelope.payload.description", &body.description, SUMMARY_BYTES_MAX);
    checks.text("envelope.payload.task_type", &body.task_type, crate::ids::NAME_LENGTH_MAX);
    checks.ids("envelope.payload.required_skills", &body.required_skills, SKILLS_MAX, check_name);
    checks.ids("envelope.payload.preferred_skills", &body.preferred_skills, SKILLS_MAX, check_name);
    checks.time("envelope.payload.needed_by_time", body.needed_by_time.as_ref());
    let rule = award_rule(body.award_rule, checks);
    if !(0.0..=1.0).contains(&body.min_confidence) {
        checks.wrong("envelope.payload.min_confidence", "must be from 0 to 1");
    }
    if !body.max_cost.is_finite() || body.max_cost < 0.0 {
        checks.wrong("envelope.payload.max_cost", "must be a finite number, and not negative");
    }
    let terms = body.handoff.map(|terms| nested_terms(terms, checks));
    if let Some(terms) = &terms
        && rule.is_some()
        && terms.parent.is_some()
    {
        let problem = "must be empty with an award_rule: only a request of its owner makes a task a part";
        checks.wrong("envelope.payload.handoff.parent_task_id", problem);
    }
    if let Some(terms) = &terms
        && rule.is_some()
        && !terms.fallback_candidates.is_empty()
    {
        let problem = "must be empty with an award_rule: the offers are the candidates";
        checks.wrong("envelope.payload.handoff.fallback_candidates", problem);
    }
    if let Some(terms) = terms.as_ref().filter(|_| rule.is_some()) {
        if terms.thread.is_some() {
            let problem =
                "must be empty with an award_rule: only a request of the owner begins a delegation in a thread";
            checks.wrong("envelope.payload.handoff.thread_id", problem);
        }
        let problem = "must be unset with an award_rule: the broker awards to an agent that has made an offer, at once";
        if terms.wait_for_agent {
            checks.wrong("envelope.payload.handoff.wait_for_agent", problem);
        }
        if terms.deliver_after.is_some() {
            checks.wrong("envelope.payload.handoff.deliver_after", problem);
        }
    }
    Body::TaskRequest(Box::new(TaskRequestBody {
        rule,
        min_confidence: body.min_confidence,
        max_cost: Some(body.max_cost).filter(|cost| *cost > 0.0),
        offers_wanted: body.offers_wanted,
        offers_deadline: checks.time("envelope.payload.offers_deadline", body.offers_deadline.as_ref()),
        decision_timeout: decision_timeout(rule, body.decision_timeout.as_ref(), checks),
        terms,
        task_type: body.task_type,
        required_skills: body.required_skills,
        preferred_skills: body.preferred_skills,
    }))
}

fn award_rule(number: i32, checks: &mut Checks) -> Option<AwardRule> {
    let rule = AwardRule::from_number(number);
    if rule.is_none() && number != 0 {
        checks.wrong("envelope.payload.award_rule", format!("must be a known value, not {number}"));
    }
    rule
}

fn decision_timeout(
    rule: Option<AwardRule>,
    span: Option<&prost_types::Duration>,
    checks: &mut Checks,
) -> Option<Duration> {
    let path = "envelope.payload.decision_timeout";
    let timeout = checks.span(path, span)?;
    if !DECISION_TIMEOUT.contains(&timeout) {
        checks.wrong(path, format!("must be from 1 s to 1 h, not {timeout:?}"));
    }
    if rule.is_some() {
        checks.wrong(path, "is only without an award_rule: with one the broker decides at the close");
    }
    Some(timeout)
}

/// The terms of a handoff within another message.
fn nested_terms(terms: v1::HandoffRequest, checks: &mut Checks) -> Box<RequestBody> {
    let mut of_terms = Checks::default();
    if terms.on_behalf_of.is_some() {
        of_terms.wrong("envelope.payload.on_behalf_of", "is set by baton.coordinator alone");
    }
    let Body::Request(terms) = request(terms, &mut of_terms) else { unreachable!("a request is one") };
    checks.nested("handoff", of_terms);
    terms
}

pub(super) fn task_offer(body: v1::TaskOffer, checks: &mut Checks) -> Body {
    // Written with `contains`, so that NaN is refused too.
    if !(0.0..=1.0).contains(&body.confidence) {
        checks.wrong("envelope.payload.confidence", "must be from 0 to 1");
    }
    if !body.cost.is_finite() {
        checks.wrong("envelope.payload.cost", "must be a finite number");
    }
    checks.text("envelope.payload.conditions", &body.conditions, TEXT_BYTES_MAX);
    Body::TaskOffer(TaskOfferBody {
        confidence: body.confidence,
        estimated_duration: checks.span("envelope.payload.estimated_duration", body.estimated_duration.as_ref()),
        cost: body.cost,
        round: body.round,
        is_withdrawal: body.withdrawn,
        valid_until: checks.time("envelope.payload.valid_until", body.valid_until.as_ref()),
    })
}

pub(super) fn task_decline(body: v1::TaskDecline, checks: &mut Checks) -> Body {
    unset_or_known::<v1::RejectReason>(checks, "envelope.payload.reason", body.reason);
    checks.text("envelope.payload.reason_text", &body.reason_text, TEXT_BYTES_MAX);
    Body::TaskDecline
}

pub(super) fn task_accept(body: v1::TaskAccept, checks: &mut Checks) -> Body {
    let offer = checks.id("envelope.payload.offer_id", &body.offer_id, MessageId::parse);
    checks.text("envelope.payload.details", &body.details, TEXT_BYTES_MAX);
    let terms = body.handoff.map(|terms| nested_terms(terms, checks));
    // A placeholder: the violation that `id` has recorded refuses the message.
    Body::TaskAccept { offer: offer.unwrap_or(MessageId::from_bytes([0; 16])), terms }
}

/// A `NegotiationClosed`, which the broker alone sends.
pub(super) fn closed(body: v1::NegotiationClosed, checks: &mut Checks) -> Body {
    checks.known::<v1::NegotiationState>("envelope.payload.state", body.state);
    if body.error_code != 0 {
        checks.known::<v1::ErrorCode>("envelope.payload.error_code", body.error_code);
    }
    Body::NegotiationClosed
}

//! The envelope of `baton-envelope`, and the way from an envelope to an input of a state machine.
//!
//! The pipeline and the replay of a custody log share [`input_of`], so that both get the same input. This module must
//! not know the state of a task.

mod plan;

pub use baton_envelope::envelope::*;
pub use plan::{extended_plan, plan_of, plan_to_v1, timeouts_to_v1};

use crate::{
    domain::{
        Header,
        handoff::{Input, LoopLimits, Message, NewTask, PassedOver, Question, Request, Timeouts},
        negotiation::{self, Mandate, NewOffer},
        plan::PlanRef,
        routing::{HandoffRef, RunId, TurnId},
    },
    ids::{AgentId, MessageId},
};

/// The agents and the terms that the broker resolved for an envelope.
#[derive(Debug, Clone, Copy, Default)]
pub struct Resolved<'a> {
    /// Candidates of a request, suggestions of a reject, or receivers of any other message; all of them registered. Of a
    /// report with a question, the first one is the agent that is asked.
    pub agents: &'a [AgentId],
    /// The agents that a request or a reject names and that lack what the request demands.
    pub passed_over: &'a [PassedOver],
    /// The terms of a request or of a new task. `None`: the envelope is neither.
    pub terms: Option<(Timeouts, LoopLimits)>,
}

/// The input of an envelope. `None`: mail that the broker only carries, a heartbeat, a request without terms, or
/// an append or a plan, whose input needs the limits or the terms of the broker.
pub fn input_of(header: &Header, body: &Body, resolved: Resolved<'_>) -> Option<Input> {
    let message = match body {
        Body::Heartbeat(_)
        | Body::Mail { .. }
        | Body::Append(_)
        | Body::Plan(_)
        | Body::PlanExtension(_)
        | Body::TaskRequest(_)
        | Body::TaskOffer(_)
        | Body::TaskDecline
        | Body::TaskAccept { terms: None, .. }
        | Body::NegotiationClosed => return None,
        Body::Create(create) => {
            return Some(Input::Create(NewTask {
                id: header.message_id,
                task: header.task.clone()?,
                from: header.sender.clone(),
                epoch: header.epoch,
                task_type: create.task_type.clone(),
                parent: create.parent.clone(),
                conversation: create.conversation.clone(),
                loop_limits: resolved.terms?.1,
            }));
        }
        Body::Request(request) => return request_of(header, request, resolved, None),
        // The accept of an offer is the request of the handoff that it awards.
        Body::TaskAccept { terms: Some(terms), .. } => {
            return request_of(header, terms, resolved, header.correlation);
        }
        Body::Reject { reason, text, retry_after, .. } => Message::Reject {
            reason: *reason,
            text: text.clone(),
            suggestions: resolved.agents.to_vec(),
            retry_after: *retry_after,
            passed_over: resolved.passed_over.to_vec(),
        },
        Body::Handoff(message) => message.clone(),
        Body::Recall => Message::Recall { loan: header.correlation? },
        Body::Input { .. } => Message::Input { id: header.message_id, prompt: header.correlation? },
        Body::Status { status, progress, details, has_result, prompt, keep_parts, extend_by } => {
            let (prompt, receivers) = match prompt {
                Some(prompt) => {
                    let (asked, receivers) = resolved.agents.split_first()?;
                    (Some(Question { asked: asked.clone(), due: prompt.answer_before }), receivers)
                }
                None => (None, resolved.agents),
            };
            Message::Status {
                id: header.message_id,
                status: *status,
                progress: *progress,
                details: details.clone(),
                receivers: receivers.to_vec(),
                has_result: *has_result,
                prompt,
                keep_parts: *keep_parts,
                extend_by: *extend_by,
            }
        }
    };
    Some(Input::Message { from: header.sender.clone(), epoch: header.epoch, message })
}

/// The request of the handoff that a `TaskRequest` gives the broker a mandate for. `None`: it gives none.
pub fn mandated_request_of(header: &Header, body: &Body, resolved: Resolved<'_>) -> Option<Input> {
    match body {
        Body::TaskRequest(request) if request.rule.is_some() => {
            request_of(header, request.terms.as_deref()?, resolved, Some(header.message_id))
        }
        _ => None,
    }
}

fn request_of(
    header: &Header,
    request: &RequestBody,
    resolved: Resolved<'_>,
    negotiation: Option<MessageId>,
) -> Option<Input> {
    let (timeouts, loop_limits) = resolved.terms?;
    Some(Input::Request(Request {
        id: header.message_id,
        task: header.task.clone()?,
        from: header.sender.clone(),
        epoch: header.epoch,
        receiver: header.receiver.to_string(),
        candidates: resolved.agents.to_vec(),
        passed_over: resolved.passed_over.to_vec(),
        task_type: request.task_type.clone(),
        reason: request.reason,
        mode: request.mode,
        loan_timeout: request.loan_timeout,
        work: request.work,
        submitter: request.submitter.clone(),
        plan: request.plan.as_ref().map(|(plan, subtask)| PlanRef {
            plan: plan.clone(),
            subtask: subtask.clone(),
            submitter: request.submitter.as_deref().and_then(|submitter| AgentId::parse(submitter).ok()),
        }),
        routing: request.routing.map(|(run, choice)| HandoffRef { run: RunId(run), choice: TurnId(choice) }),
        priority: request.priority,
        fairness_key: request.fairness_key.clone(),
        timeouts,
        loop_limits,
        parent: request.parent.clone(),
        conversation: request.conversation.clone(),
        thread: request.thread.clone(),
        wait_for_agent: request.wait_for_agent,
        deliver_after: request.deliver_after,
        negotiation,
    }))
}

/// The limits of a negotiation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NegotiationLimits {
    /// The most agents that one request asks.
    pub asked_max: usize,
    /// The time for offers of a request that names no deadline.
    pub offers_timeout: std::time::Duration,
    /// The longest time for offers that a request may name.
    pub offers_timeout_max: std::time::Duration,
    /// The time for the decision of a request that names none.
    pub decision_timeout: std::time::Duration,
}

/// The input of a `TaskRequest` for the negotiation machine.
pub fn negotiation_of(
    header: &Header,
    request: &TaskRequestBody,
    resolved: Resolved<'_>,
    limits: NegotiationLimits,
) -> negotiation::Input {
    let mandate = |terms: &RequestBody| {
        let (timeouts, loop_limits) = resolved.terms?;
        Some(Mandate {
            task_type: terms.task_type.clone(),
            reason: terms.reason,
            mode: terms.mode,
            loan_timeout: terms.loan_timeout,
            work: terms.work,
            priority: terms.priority,
            fairness_key: terms.fairness_key.clone(),
            timeouts,
            loop_limits,
            conversation: terms.conversation.clone(),
        })
    };
    negotiation::Input::Request(Box::new(negotiation::Request {
        id: header.message_id,
        requester: header.sender.clone(),
        receiver: header.receiver.to_string(),
        asked: resolved.agents.to_vec(),
        asked_max: limits.asked_max,
        task_type: request.task_type.clone(),
        task: header.task.clone().map(|task| (task, header.epoch)),
        mandate: request.terms.as_deref().filter(|_| request.rule.is_some()).and_then(mandate),
        rule: request.rule,
        min_confidence: request.min_confidence,
        max_cost: request.max_cost,
        offers_wanted: request.offers_wanted,
        offers_deadline: request.offers_deadline,
        offers_timeout: limits.offers_timeout,
        offers_timeout_max: limits.offers_timeout_max,
        decision_timeout: request.decision_timeout.unwrap_or(limits.decision_timeout),
    }))
}

/// The input of an offer, a decline or an accept for the negotiation machine. `None`: the message is none of these.
pub fn answer_of(header: &Header, body: &Body, to: &AgentId) -> Option<negotiation::Input> {
    let (from, to) = (header.sender.clone(), to.clone());
    match body {
        Body::TaskOffer(offer) => {
            let offer = NewOffer {
                id: header.message_id,
                confidence: offer.confidence,
                estimated_duration: offer.estimated_duration,
                cost: offer.cost,
                round: offer.round,
                is_withdrawal: offer.is_withdrawal,
                valid_until: offer.valid_until,
            };
            Some(negotiation::Input::Offer { from, to, offer })
        }
        Body::TaskDecline => Some(negotiation::Input::Decline { from, to }),
        Body::TaskAccept { offer, terms } => {
            let handoff = terms.as_ref().map(|_| header.message_id);
            Some(negotiation::Input::Accept { from, to, offer: *offer, handoff })
        }
        _ => None,
    }
}

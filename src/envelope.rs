//! The envelope, which the client's crate parses and verifies, and the way from an envelope to an input of the state
//! machine.
//!
//! The pipeline and the replay of a custody log share [`input_of`], so that both get the same input. This module must
//! not know the state of a task.

pub use baton_client::envelope::*;

use crate::{
    domain::{
        Header,
        handoff::{Input, LoopLimits, Message, PassedOver, Question, Request, Timeouts},
        routing::{HandoffRef, RunId, TurnId},
    },
    ids::AgentId,
};

/// The agents and the terms that the broker resolved for an envelope.
#[derive(Debug, Clone, Copy, Default)]
pub struct Resolved<'a> {
    /// Candidates of a request, suggestions of a reject, or receivers of any other message; all of them registered. Of a
    /// report with a question, the first one is the agent that is asked.
    pub agents: &'a [AgentId],
    /// The agents that a request or a reject names and that lack what the request demands.
    pub passed_over: &'a [PassedOver],
    /// The terms of a request. `None`: the envelope is no request.
    pub terms: Option<(Timeouts, LoopLimits)>,
}

/// The input of an envelope. `None`: mail that the broker only carries, a heartbeat, a request without terms, or
/// an append, whose input needs the limits of workspaces.
pub fn input_of(header: &Header, body: &Body, resolved: Resolved<'_>) -> Option<Input> {
    let message = match body {
        Body::Heartbeat(_) | Body::Mail | Body::Append(_) => return None,
        Body::Request(request) => {
            let (timeouts, loop_limits) = resolved.terms?;
            return Some(Input::Request(Request {
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
                submitter: request.submitter.clone(),
                routing: request.routing.map(|(run, choice)| HandoffRef { run: RunId(run), choice: TurnId(choice) }),
                priority: request.priority,
                timeouts,
                loop_limits,
                parent: request.parent.clone(),
            }));
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
        Body::Input { .. } => Message::Input { prompt: header.correlation? },
        Body::Status { status, progress, details, has_result, prompt } => {
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
            }
        }
    };
    Some(Input::Message { from: header.sender.clone(), epoch: header.epoch, message })
}

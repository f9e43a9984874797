//! What an envelope is to the state machine, once the broker has found out whom it means and on which terms it is taken.
//! The pipeline and whoever replays a custody log use the same words for the same thing.

use super::Body;
use crate::{
    domain::{
        Header,
        handoff::{Input, LoopLimits, Message, Request, Timeouts},
    },
    ids::AgentId,
};

/// What the broker has found out about an envelope.
#[derive(Debug, Clone, Copy)]
pub struct Resolved<'a> {
    /// Candidates of a request, suggestions of a reject or receivers of anything else, all of them registered.
    pub agents: &'a [AgentId],
    /// On which terms a request is taken.
    pub terms: Option<(Timeouts, LoopLimits)>,
}

/// The input that an envelope is. `None`: mail that the broker only carries, or a request without terms.
pub fn input_of(header: &Header, body: &Body, resolved: Resolved<'_>) -> Option<Input> {
    let message = match body {
        Body::Heartbeat(_) | Body::Mail => return None,
        Body::Request(request) => {
            let (timeouts, loop_limits) = resolved.terms?;
            return Some(Input::Request(Request {
                id: header.message_id,
                task: header.task.clone()?,
                from: header.sender.clone(),
                epoch: header.epoch,
                receiver: header.receiver.to_string(),
                candidates: resolved.agents.to_vec(),
                task_type: request.task_type.clone(),
                reason: request.reason,
                mode: request.mode,
                priority: request.priority,
                timeouts,
                loop_limits,
            }));
        }
        Body::Handoff(Message::Reject { reason, text, .. }) => {
            Message::Reject { reason: *reason, text: text.clone(), suggestions: resolved.agents.to_vec() }
        }
        Body::Handoff(message) => message.clone(),
        Body::Status { status, progress, details } => Message::Status {
            status: *status,
            progress: *progress,
            details: details.clone(),
            receivers: resolved.agents.to_vec(),
        },
    };
    Some(Input::Message { from: header.sender.clone(), epoch: header.epoch, message })
}

//! The log lines of committed changes. Ids and fixed words only: no payload, no summary and no text of an agent. The
//! fields have the names of the metrics' labels; `trace_id` is the trace that has the span.

use crate::{
    domain::{
        Entity, Header, TraceContext,
        handoff::{Handoff, Mode, TaskStatus},
    },
    proto::v1,
    records::EntityRecord,
};

/// Logs a message that is stored.
pub(super) fn accepted(header: &Header, trace: Option<&TraceContext>) {
    let (task, handoff) = (header.task.as_ref().map(|task| task.as_str()), header.correlation.map(|id| id.to_string()));
    let (kind, trace_id) = (header.message_type.name(), trace.map(id_of));
    tracing::debug!(
        kind, message_id = %header.message_id, agent = %header.sender, to = %header.receiver, task, handoff, trace_id,
        "accepted an envelope"
    );
}

/// Logs the end of an entity at level info, and the other steps of a handoff at level debug.
pub(super) fn moved(before: Option<&EntityRecord>, after: &EntityRecord) {
    let trace_id = after.trace().map(|place| id_of(&place.continued));
    let entity = after.entity();
    if !entity.has_ended() || before.is_some_and(|before| before.entity().has_ended()) {
        if let Entity::Handoff(handoff) = entity {
            let Handoff { id, task, sender, candidate, state, .. } = &*handoff;
            let state = state.name();
            tracing::debug!(handoff = %id, %task, %sender, receiver = %candidate, state, trace_id, "a handoff has moved");
        }
        return;
    }
    match entity {
        Entity::Handoff(handoff) => {
            let Handoff { id, task, sender, candidate, state, .. } = &*handoff;
            let mode = match handoff.mode {
                Mode::Transfer => "TRANSFER",
                Mode::Delegate => "DELEGATE",
            };
            let (outcome, reason) = (state.name(), handoff.failure.as_ref().map(|failure| failure.code.name()));
            tracing::info!(
                handoff = %id, %task, %sender, receiver = %candidate, outcome, mode, reason, trace_id,
                "a handoff has ended"
            );
        }
        Entity::Task(task) => {
            let place = after.as_task().and_then(|record| record.handoff.as_ref()?.trace.as_deref());
            let (outcome, trace_id) = (status_name(task.status), place.map(|place| id_of(&place.continued)));
            tracing::info!(task = %task.id, owner = %task.owner, epoch = task.epoch, outcome, trace_id, "a task has ended");
        }
        Entity::Negotiation(negotiation) => {
            let task = negotiation.task.as_ref().map(|(task, _)| task.as_str());
            let winner = negotiation.winner.as_ref().map(|winner| winner.as_str());
            let reason = negotiation.failure.as_ref().map(|failure| failure.code.name());
            tracing::info!(
                negotiation = %negotiation.id, requester = %negotiation.requester, task, winner,
                outcome = negotiation.state.name(), reason, trace_id,
                "a negotiation has ended"
            );
        }
        Entity::Plan(plan) => {
            let outcome = plan.state.name();
            tracing::info!(
                plan = %plan.id, submitter = %plan.submitter, round = plan.round, outcome, trace_id,
                "a plan has ended"
            );
        }
        Entity::Run(run) => {
            let (task, outcome) = (run.task.as_ref().map(|task| task.as_str()), run.state.name());
            tracing::info!(run = %run.id, graph = %run.graph.id, task, turns = run.turns, outcome, "a run has ended");
        }
        Entity::Thread(thread) => {
            let task = thread.task.as_ref().map(|task| task.as_str());
            tracing::info!(thread = %thread.id, task, "a thread has ended");
        }
        _ => {}
    }
}

/// The word of a task's status, as the schema has it.
fn status_name(status: TaskStatus) -> &'static str {
    let name = v1::TaskStatus::try_from(status.number()).map_or("UNSPECIFIED", |status| status.as_str_name());
    name.strip_prefix("TASK_STATUS_").unwrap_or(name)
}

fn id_of(context: &TraceContext) -> String {
    hex::encode(context.trace_id)
}

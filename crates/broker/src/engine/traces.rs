//! The trace context of entities and of deliveries (SPEC 13).
//!
//! An entity gets its place in a trace when it begins, and keeps it in its record. Each delivery has the context that its
//! agent continues.

use super::{Engine, transaction::Transaction};
use crate::{
    domain::{Entity, EntityId, Header, TraceContext},
    ids::{MessageId, PlanId, TaskId},
    records::TracePlace,
};

impl Engine {
    /// The place in a trace of an entity that begins. `opening`: the message that opens it. `plan`: the plan of the task
    /// that the same step writes.
    pub(super) fn place_in_trace(
        &mut self,
        transaction: &mut Transaction,
        entity: &Entity,
        opening: Option<&Header>,
        plan: Option<&PlanId>,
    ) -> Option<Box<TracePlace>> {
        let task = match entity {
            Entity::Handoff(handoff) => Some(handoff.task.clone()),
            Entity::Negotiation(negotiation) => negotiation.task.as_ref().map(|(task, _)| task.clone()),
            Entity::Plan(_) => None,
            _ => return None,
        };
        let cause = cause_of(entity, plan).and_then(|cause| self.trace_of(transaction, &cause));
        let parent = opening.and_then(|header| header.trace.clone()).or_else(|| cause.clone());
        let parent = parent.or_else(|| self.trace_of_task(transaction, task.as_ref()?));
        let Some(traces) = &self.env.resources.traces else {
            let continued = *parent?;
            return Some(Box::new(TracePlace { continued, parent: None, is_own: false, link: None }));
        };
        let root = task.map_or_else(|| entity.id(), EntityId::Task);
        let place = traces.place(&entity.id(), &root, parent.as_deref());
        Some(Box::new(TracePlace { link: cause.filter(|_| place.is_own).map(|cause| *cause), ..place }))
    }

    /// The context that the receiver of a message continues: for a request the span of its handoff, if the broker makes
    /// one; otherwise that of the message, or else that of its handoff.
    pub(super) fn continued_by(&mut self, transaction: &mut Transaction, header: &Header) -> Option<Box<TraceContext>> {
        let handoff = header.handoff();
        if header.trace.is_some() && (handoff != Some(header.message_id) || self.env.resources.traces.is_none()) {
            return header.trace.clone();
        }
        handoff.and_then(|id| self.trace_of(transaction, &EntityId::Handoff(id))).or_else(|| header.trace.clone())
    }

    /// The context of a message of the broker: that of the entity that it reports to, of the handoff or negotiation that
    /// it is about, or of the latest handoff of its task.
    pub(super) fn trace_of_cause(
        &mut self,
        transaction: &mut Transaction,
        report_to: Option<&EntityId>,
        about: Option<MessageId>,
        task: Option<&TaskId>,
    ) -> Option<Box<TraceContext>> {
        let about = about.into_iter().flat_map(|id| [EntityId::Handoff(id), EntityId::Negotiation(id)]);
        let causes: Vec<EntityId> = report_to.cloned().into_iter().chain(about).collect();
        let found = causes.iter().find_map(|cause| self.trace_of(transaction, cause));
        found.or_else(|| self.trace_of_task(transaction, task?))
    }

    fn trace_of(&mut self, transaction: &mut Transaction, entity: &EntityId) -> Option<Box<TraceContext>> {
        // A context is no reason to refuse a message: the step itself meets the same error, if it reads the entity.
        let record = self.entity_record(transaction, entity).ok()??;
        record.trace().map(|place| Box::new(place.continued.clone()))
    }

    /// The context of the task's latest handoff.
    fn trace_of_task(&mut self, transaction: &mut Transaction, task: &TaskId) -> Option<Box<TraceContext>> {
        let record = self.entity_record(transaction, &EntityId::Task(task.clone())).ok()??;
        let handoff = record.as_task().and_then(|task| task.handoff.as_ref())?;
        handoff.trace.as_deref().map(|place| Box::new(place.continued.clone()))
    }
}

/// The entity that made a handoff begin.
fn cause_of(entity: &Entity, plan: Option<&PlanId>) -> Option<EntityId> {
    let Entity::Handoff(handoff) = entity else { return None };
    match (handoff.redrive_of, handoff.negotiation) {
        (Some(former), _) => Some(EntityId::Handoff(former)),
        (None, Some(negotiation)) => Some(EntityId::Negotiation(negotiation)),
        // The agent of a subtask may hand its task on. The plan is the cause of the coordinator's handoffs alone.
        (None, None) => plan.filter(|_| handoff.sender.is_coordinator()).cloned().map(EntityId::Plan),
    }
}

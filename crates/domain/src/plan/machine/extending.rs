//! Subtasks that the submitter adds while the plan runs.

use std::sync::Arc;

use super::{Event, Plan, SubtaskRun, TransitionBuilder};
use crate::{
    Entity, Reader, StepError, Transition,
    ids::PlanId,
    plan::{Extended, Extension, run::Rejection},
    time::Timestamp,
};

/// Adds the subtasks of an extension behind the plan's. Each that can start does so at once. The deadline of
/// the round stays.
pub(super) fn extend(
    id: &PlanId,
    known: Option<Arc<Plan>>,
    extension: &Extension,
    read: &mut dyn Reader,
    now: Timestamp,
) -> Result<Transition, StepError> {
    let plan = known.ok_or_else(|| Rejection::Unknown { plan: id.clone() })?;
    let Extension { spec, from, by, message, digest, content_digest, sequence } = extension;
    if !plan.takes_extension(by, content_digest)? {
        return Ok(Transition::default());
    }
    if plan.subtasks.len() != *from {
        return Err(Rejection::ExtendedMeanwhile.into());
    }
    let mut builder = TransitionBuilder::of(&plan, read, now)?;
    debug_assert_eq!(builder.spec.links.direct[..], spec.links.direct[..*from], "earlier subtasks wait for no new one");
    builder.spec = spec.clone();
    builder.plan.subtasks.resize(spec.subtasks.len(), SubtaskRun::pending(now));
    let extended = Extended {
        message: *message,
        digest: *digest,
        content_digest: *content_digest,
        sequence: *sequence,
        from: *from,
    };
    builder.plan.extensions.push(extended);
    let subtasks = spec.subtasks[*from..].iter().map(|subtask| subtask.id.clone()).collect();
    builder.log(Event::Extended { message: *message, digest: *digest, subtasks });
    builder.go_on(read)?;
    let mut transition = builder.done();
    transition.writes.push(Entity::PlanSpec(spec.clone()));
    Ok(transition)
}

//! What the state machine is told wrongly, or is misunderstood in, where a fault is on: see [`crate::faults`].

use std::{borrow::Cow, sync::Arc};

use crate::{
    domain::{
        Effect, Entity, EntityId, Input, Mail, Reader, Transition,
        handoff::{self, Message, State},
    },
    faults::{Fault, is_on},
};

/// The input as the step gets it.
pub(super) fn input<'a>(read: &mut dyn Reader, about: &EntityId, input: &'a Input) -> Cow<'a, Input> {
    let mut bent = Cow::Borrowed(input);
    if is_on(Fault::ForgetsTheEpoch)
        && let Input::Handoff { task, input } = bent.to_mut()
        && let Ok(Some(Entity::Task(task))) = read.entity(&EntityId::Task(task.clone()))
    {
        match input {
            handoff::Input::Message { epoch, .. } => *epoch = task.epoch,
            handoff::Input::Request(request) => request.epoch = task.epoch,
            handoff::Input::Acked { .. }
            | handoff::Input::Undeliverable { .. }
            | handoff::Input::Time
            | handoff::Input::CandidateGone
            | handoff::Input::Redrive { .. } => {}
        }
    }
    if is_on(Fault::TakesAnyContextDigest)
        && let Input::Handoff { input: handoff::Input::Message { message, .. }, .. } = bent.to_mut()
        && let Message::Complete { digest, .. } = message
        && let Ok(Some(Entity::Handoff(handoff))) = read.entity(about)
    {
        *digest = handoff.context_digest;
    }
    bent
}

/// The transition as it is written.
pub(super) fn transition(mut made: Transition) -> Transition {
    let candidate = made.writes.iter().find_map(|written| match written {
        Entity::Handoff(handoff) if handoff.state == State::Accepted => Some(handoff.candidate.clone()),
        _ => None,
    });
    for written in &mut made.writes {
        match (written, &candidate) {
            (Entity::Task(task), Some(candidate)) if is_on(Fault::MovesOwnershipAtAccept) => {
                let task = Arc::make_mut(task);
                task.owner = candidate.clone();
                task.epoch += 1;
            }
            (Entity::Handoff(handoff), _)
                if is_on(Fault::KeepsNoAcceptDeadline) && handoff.state == State::Deciding =>
            {
                Arc::make_mut(handoff).step_deadline = None;
            }
            _ => {}
        }
    }
    if is_on(Fault::TellsNobodyOfFailures) {
        made.effects.retain(|effect| !matches!(effect, Effect::Deliver { mail: Mail::Notice { .. }, .. }));
    }
    made
}

//! What the state machine is told wrongly, or is misunderstood in, where a fault is on: see [`crate::faults`].

use std::borrow::Cow;

use super::Known;
use crate::{
    domain::handoff::{Effect, Input, Mail, Message, State, Transition},
    faults::{Fault, is_on},
};

/// The input as the step gets it.
pub(super) fn input<'a>(known: &Known, input: &'a Input) -> Cow<'a, Input> {
    let mut bent = Cow::Borrowed(input);
    if is_on(Fault::ForgetsTheEpoch)
        && let Some(current) = known.task.as_ref().map(|stored| stored.value.task.epoch)
    {
        match bent.to_mut() {
            Input::Message { epoch, .. } => *epoch = current,
            Input::Request(request) => request.epoch = current,
            Input::Acked { .. }
            | Input::Undeliverable { .. }
            | Input::Time
            | Input::CandidateGone
            | Input::Redrive { .. } => {}
        }
    }
    if is_on(Fault::TakesAnyContextDigest)
        && let Input::Message { message: Message::Complete { digest, .. }, .. } = bent.to_mut()
    {
        *digest = known.handoff.as_ref().and_then(|stored| stored.value.handoff.context_digest);
    }
    bent
}

/// The transition as it is written.
pub(super) fn transition(mut made: Transition) -> Transition {
    if let Some(handoff) = &mut made.handoff {
        if is_on(Fault::MovesOwnershipAtAccept) && handoff.state == State::Accepted {
            made.task.owner = handoff.candidate.clone();
            made.task.epoch += 1;
        }
        if is_on(Fault::KeepsNoAcceptDeadline) && handoff.state == State::Deciding {
            handoff.step_deadline = None;
        }
    }
    if is_on(Fault::TellsNobodyOfFailures) {
        made.effects.retain(|effect| !matches!(effect, Effect::Deliver { mail: Mail::Notice(_), .. }));
    }
    made
}

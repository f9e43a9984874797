//! The handoffs that carry out choices of a run over a task.

use super::{Rejection, Run, TurnId};
use crate::ids::{MessageId, TaskId};

/// Checks that a request carries out a choice of the run: the same task and receiver, and no other handoff does.
pub fn check_handoff(
    run: &Run,
    choice: TurnId,
    handoff: MessageId,
    task: &TaskId,
    receiver: &str,
) -> Result<(), Rejection> {
    // The same answer as for an unknown run, which reveals nothing about the runs of other tasks.
    if run.task.as_ref() != Some(task) {
        return Err(Rejection::RunUnknown);
    }
    if run.state.is_final() {
        return Err(Rejection::RunFinal { state: run.state });
    }
    let mismatch = |problem| Err(Rejection::ChoiceMismatch { choice, problem });
    let Some((_, moving)) = run.moving(choice) else { return mismatch("the choice waits for no handoff") };
    if moving.receiver != receiver {
        return mismatch("the choice is for another receiver");
    }
    // The same handoff again is a repeat of its request. Another one would move the task twice for one choice.
    match moving.handoff {
        Some(other) if other != handoff => mismatch("another handoff carries it out"),
        Some(_) | None => Ok(()),
    }
}

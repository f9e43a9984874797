//! What the submitter or an operator does to one subtask of a running plan: cancel, retry, give to another agent (SPEC 9).

use super::{Event, Plan, SubtaskState, TransitionBuilder, cut, ending::read_handoff};
use crate::{
    Effect, ReadError, Reader, StepError, Transition,
    codes::ErrorCode,
    coordinator::Order,
    handoff::TaskStatus,
    plan::{Spec, run::Rejection, spec::ROUNDS_MAX},
    time::Timestamp,
};

/// The most times that a subtask is given to another agent during an attempt, in one round.
const REASSIGNMENTS_MAX: u32 = 99;

/// Ends a subtask at once. A cancelled one stays.
pub(super) fn cancel(
    plan: &Plan,
    subtask: &str,
    by: &str,
    reason: &str,
    read: &mut dyn Reader,
    now: Timestamp,
) -> Result<Transition, StepError> {
    let mut builder = TransitionBuilder::of(plan, read, now)?;
    let place = place_of(&builder.spec, subtask)?;
    let run = &plan.subtasks[place];
    if run.state == SubtaskState::Cancelled || run.ends_as == Some(SubtaskState::Cancelled) {
        return Ok(Transition::default());
    }
    if run.state.is_final() || run.ends_as.is_some() {
        return Err(refusal(subtask, run.state, "it has ended"));
    }
    let cause = if reason.is_empty() { format!("{by} cancelled it") } else { format!("{by} cancelled it: {reason}") };
    if run.elements.is_some() {
        let run = &mut builder.plan.subtasks[place];
        (run.ends_as, run.code, run.cause) = (Some(SubtaskState::Cancelled), None, cut(&cause));
    } else {
        builder.stop(place, TaskStatus::Canceled, &cause, read)?;
        builder.end(place, SubtaskState::Cancelled, None, &cause);
    }
    builder.go_on(read)?;
    Ok(builder.done())
}

/// Starts a subtask again that did not complete, and with it the subtasks that were skipped because of it.
pub(super) fn retry(
    plan: &Plan,
    subtask: &str,
    by: &str,
    read: &mut dyn Reader,
    now: Timestamp,
) -> Result<Transition, StepError> {
    let mut builder = TransitionBuilder::of(plan, read, now)?;
    let spec = builder.spec.clone();
    let place = place_of(&spec, subtask)?;
    let run = &plan.subtasks[place];
    match run.state {
        SubtaskState::Failed | SubtaskState::TimedOut | SubtaskState::Cancelled => {}
        SubtaskState::Skipped if run.code == Some(ErrorCode::DependencyTimeout) => {}
        SubtaskState::Skipped => return Err(refusal(subtask, run.state, &run.cause)),
        SubtaskState::Completed => return Err(refusal(subtask, run.state, "it has a result")),
        SubtaskState::Pending | SubtaskState::Ready | SubtaskState::HandingOff | SubtaskState::Running => {
            return Err(refusal(subtask, run.state, "it has not ended"));
        }
    }
    // The ids of tasks have room for two digits of the round.
    if plan.round >= ROUNDS_MAX {
        return Err(Rejection::NothingToRetry { state: plan.state, rounds: plan.round }.into());
    }
    builder.plan.round += 1;
    for (other, run) in builder.plan.subtasks.iter_mut().enumerate() {
        let follows = run.state == SubtaskState::Skipped && spec.links.ancestors[other].contains(place);
        if other == place || follows {
            run.start_anew(now);
        }
    }
    let round = builder.plan.round;
    builder.log(Event::Retried { round, by: by.to_owned(), subtask: subtask.to_owned() });
    builder.go_on(read)?;
    Ok(builder.done())
}

/// Gives a subtask to another agent. Where an agent has it, the same attempt begins again.
pub(super) fn reassign(
    plan: &Plan,
    subtask: &str,
    to: &str,
    (by, reason): (&str, &str),
    read: &mut dyn Reader,
    now: Timestamp,
) -> Result<Transition, StepError> {
    let mut builder = TransitionBuilder::of(plan, read, now)?;
    let place = place_of(&builder.spec, subtask)?;
    let run = &plan.subtasks[place];
    if run.state.is_final() || run.ends_as.is_some() {
        return Err(refusal(subtask, run.state, "it has ended"));
    }
    if run.reassignments >= REASSIGNMENTS_MAX {
        let problem = format!("it was given to another agent {REASSIGNMENTS_MAX} times in this round");
        return Err(refusal(subtask, run.state, &problem));
    }
    let (subtask, to, by) = (subtask.to_owned(), to.to_owned(), by.to_owned());
    builder.log(Event::Reassigned { subtask, to: to.clone(), by: by.clone(), reason: cut(reason) });
    builder.plan.subtasks[place].assigned_to = Some(to);
    // A subtask that waits for its next attempt need not wait: another agent gets it.
    builder.plan.subtasks[place].retry_at = None;
    if run.holds_slot() {
        let reason = if reason.is_empty() { format!("{by} gave the subtask to another agent") } else { cut(reason) };
        builder.begin_attempt_again(place, &reason, read)?;
    }
    builder.go_on(read)?;
    Ok(builder.done())
}

impl TransitionBuilder {
    /// Takes the task of an attempt from its candidate or its owner, and begins the attempt again. What comes of the former
    /// handoff is a word that this one has overtaken.
    fn begin_attempt_again(&mut self, place: usize, reason: &str, read: &mut dyn Reader) -> Result<(), ReadError> {
        let mut next = 1;
        if let Some(task) = self.task_of(place, read)? {
            let (id, epoch, reason_text) = (task.id.clone(), task.epoch, reason.to_owned());
            next = epoch;
            if let Some(loan) = task.loans.first() {
                let handoff = loan.handoff;
                self.effects.push(Effect::Order(Order::Recall { handoff, task: id, epoch, reason_text }));
                // The recall moves the task to the coordinator.
                next += 1;
            } else if let Some(open) = task.open_handoff
                && let Some(handoff) = read_handoff(read, open)?
            {
                let to = handoff.candidate.clone();
                self.effects.push(Effect::Order(Order::Cancel { handoff: open, task: id, epoch, to, reason_text }));
            } else if self.plan.subtasks[place].state == SubtaskState::Running {
                // The agent has reported, and its word is on the way: the attempt ends by it.
                return Ok(());
            }
        }
        let run = &mut self.plan.subtasks[place];
        run.reassignments += 1;
        run.attempts = run.attempts.saturating_sub(1);
        run.deadline = None;
        self.start(place, next);
        Ok(())
    }
}

fn place_of(spec: &Spec, subtask: &str) -> Result<usize, StepError> {
    spec.place(subtask).ok_or_else(|| Rejection::SubtaskUnknown { subtask: subtask.to_owned() }.into())
}

fn refusal(subtask: &str, state: SubtaskState, problem: &str) -> StepError {
    Rejection::SubtaskState { subtask: subtask.to_owned(), state, problem: problem.to_owned() }.into()
}

//! The questions of a task's owner: asked with a status report, answered once by the agent that was asked.

use super::{
    Advice, Answer, Effect, Mail, Notice, PROMPTS_MAX, Prompt, PromptState, Question, Rejection, Snapshot, Task,
    Transition,
};
use crate::{
    codes::ErrorCode,
    ids::{AgentId, MessageId},
    time::Timestamp,
};

/// Opens a question. The task forgets the oldest one if it has too many.
pub(super) fn ask(task: &mut Task, id: MessageId, question: &Question, now: Timestamp) {
    let Question { asked, due } = question.clone();
    // The oldest one has ended: at most one question is open, and it is the last.
    if task.prompts.len() >= PROMPTS_MAX {
        let answered = task.last_answered().map(|(prompt, _)| prompt.id);
        let oldest = task.prompts.iter().position(|prompt| Some(prompt.id) != answered);
        task.prompts.remove(oldest.unwrap_or(0));
    }
    task.prompts.push(Prompt { id, asked, asked_at: now, due, state: PromptState::Open, answer: None });
}

/// Withdraws the open question, if one is open.
pub(super) fn withdraw(task: &mut Task, now: Timestamp) {
    let lent = task.loans.len();
    end(task, lent, PromptState::Withdrawn, now);
}

/// Withdraws the open question if the ownership has moved or the task has ended: the answer would reach an agent that did
/// not ask.
pub(super) fn withdraw_with_ownership(task: &mut Task, before: &Task, now: Timestamp) {
    if task.epoch != before.epoch || task.status.is_final() {
        // A loan that begins in this step has not waited.
        end(task, before.loans.len(), PromptState::Withdrawn, now);
    }
}

/// Whether a question that was open has ended without an answer.
pub(super) fn has_ended_unanswered(task: &Task, id: MessageId) -> bool {
    task.prompts.iter().find(|prompt| prompt.id == id).is_none_or(|prompt| match prompt.state {
        PromptState::Open | PromptState::Answered => false,
        PromptState::Expired | PromptState::Withdrawn => true,
    })
}

/// Takes the first answer to the open question and delivers it to the owner.
pub(super) fn answer(
    snapshot: Snapshot<'_>,
    from: &AgentId,
    epoch: u64,
    (answer, id): (MessageId, MessageId),
    now: Timestamp,
) -> Result<Transition, Rejection> {
    let task = snapshot.task.ok_or(Rejection::TaskUnknown)?;
    // An agent that was not asked learns nothing about the task.
    let prompt = task.prompts.iter().find(|prompt| prompt.id == id && prompt.asked == *from);
    let prompt = prompt.ok_or(Rejection::NotAsked)?;
    // An answer names the epoch of the question, and is late once the ownership has moved.
    if epoch < task.epoch {
        return Err(Rejection::StaleEpoch { claimed: epoch, current: task.epoch });
    }
    if epoch > task.epoch {
        return Err(Rejection::EpochAhead { claimed: epoch, current: task.epoch });
    }
    if task.status.is_final() {
        return Err(Rejection::TaskFinal { status: task.status });
    }
    match prompt.state {
        PromptState::Answered => return Err(Rejection::InputTaken),
        state @ (PromptState::Expired | PromptState::Withdrawn) => return Err(Rejection::InputExpired { state }),
        // The timer may be late.
        PromptState::Open if prompt.due.is_some_and(|due| due <= now) => {
            return Err(Rejection::InputExpired { state: PromptState::Expired });
        }
        PromptState::Open => {}
    }
    let mut task = task.clone();
    let lent = task.loans.len();
    end(&mut task, lent, PromptState::Answered, now);
    if let Some(prompt) = task.prompts.last_mut() {
        prompt.answer = Some(Answer { id: answer, at: now });
    }
    task.updated_at = now;
    let effects = vec![Effect::Deliver { to: task.owner.clone(), mail: Mail::ThisMessage }];
    Ok(Transition { task, handoff: None, effects })
}

/// Ends an overdue question and tells the owner. Nothing changes before the deadline.
pub(super) fn expire(snapshot: Snapshot<'_>, now: Timestamp) -> Option<Transition> {
    let task = snapshot.task?;
    let overdue = task.open_prompt().filter(|prompt| prompt.due.is_some_and(|due| due <= now))?;
    let message = format!("{} did not answer the question in time", overdue.asked);
    let notice = Notice { code: ErrorCode::InputExpired, message, advice: Advice::KeepTask, is_critical: false };
    let mail = Mail::Notice { notice, about: overdue.id };
    let mut task = task.clone();
    let lent = task.loans.len();
    end(&mut task, lent, PromptState::Expired, now);
    task.updated_at = now;
    let effects = vec![Effect::Deliver { to: task.owner.clone(), mail }];
    Some(Transition { task, handoff: None, effects })
}

/// Ends the open question. The clocks of the first `lent` loans stood still while it waited, if it has a deadline.
fn end(task: &mut Task, lent: usize, state: PromptState, now: Timestamp) {
    let Some(prompt) = task.prompts.last_mut().filter(|prompt| prompt.state == PromptState::Open) else { return };
    prompt.state = state;
    let Some(due) = prompt.due else { return };
    let waited = now.min(due).since(prompt.asked_at);
    for loan in task.loans.iter_mut().take(lent) {
        loan.due = loan.due.map(|due| due.plus(waited));
    }
}

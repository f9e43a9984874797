//! The cancellation of a task by the broker: with the task that it is a part of, or after a long time without work.

use super::{
    Advice, Cause, Effect, Input, Loan, Mail, Message, Notice, Snapshot, Task, TaskStatus, Transition,
    builder::end_open_handoff,
};
use crate::{
    EntityId, ReadError, Reader, Signal,
    codes::ErrorCode,
    ids::{AgentId, MessageId, TaskId},
    time::Timestamp,
};

/// The most parts that one step passes the cancellation to. Each of them gets it in a transaction of its own.
const PARTS_AT_ONCE: usize = 64;

/// The reason for which the broker cancels a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cancellation {
    /// The task that this one is a part of was cancelled.
    WithParent(TaskId),
    /// No agent has worked on the task for the retention of idle tasks.
    Idle,
}

/// An input for a task, from a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskSignal {
    /// The task was cancelled, and its open parts end with it. The task sends it to itself.
    CancelParts {
        /// The place in the list of its parts behind which the next ones stand.
        after: u64,
    },
    /// The task that this one is a part of was cancelled.
    ParentCanceled {
        /// The cancelled task.
        parent: TaskId,
    },
}

/// Passes the cancellation of a task to its next parts.
pub(super) fn cancel_parts(parent: &TaskId, after: u64, read: &mut dyn Reader) -> Result<crate::Transition, ReadError> {
    let parts = read.parts(parent, after, PARTS_AT_ONCE)?;
    let rest = parts.last().filter(|_| parts.len() == PARTS_AT_ONCE).map(|(last, _)| parts_after(parent, *last));
    let tell = |(_, part): &(u64, TaskId)| crate::Effect::Send {
        to: EntityId::Task(part.clone()),
        signal: Signal::Task(TaskSignal::ParentCanceled { parent: parent.clone() }),
    };
    Ok(crate::Transition { writes: Vec::new(), effects: parts.iter().map(tell).chain(rest).collect() })
}

/// The input that ends the parts of a task which this step cancels. `None`: the step does not, or its parts stay.
pub(super) fn word_to_parts(before: Option<&Task>, after: &Task, input: &Input) -> Option<crate::Effect> {
    let was_canceled = before.is_some_and(|before| before.status == TaskStatus::Canceled);
    let keeps_parts =
        matches!(input, Input::Message { message: Message::Status { keep_parts, .. }, .. } if *keep_parts);
    (after.status == TaskStatus::Canceled && !was_canceled && !keeps_parts).then(|| parts_after(&after.id, 0))
}

fn parts_after(task: &TaskId, after: u64) -> crate::Effect {
    let signal = Signal::Task(TaskSignal::CancelParts { after });
    crate::Effect::Send { to: EntityId::Task(task.clone()), signal }
}

/// Cancels an open task. Its loans end, and so does its open handoff. The owner and all delegators are told to drop it.
/// `None`: the task has ended, or it is no part of the cancelled one.
pub(super) fn cancel_task(snapshot: Snapshot<'_>, why: &Cancellation, now: Timestamp) -> Option<Transition> {
    let before = snapshot.task.filter(|task| !task.status.is_final())?;
    let text = match why {
        Cancellation::WithParent(parent) if before.parent.as_ref() == Some(parent) => {
            format!("the task was cancelled with task {parent}, of which it is a part")
        }
        Cancellation::WithParent(_) => return None,
        Cancellation::Idle => "the task was cancelled, because no agent had worked on it for a long time".to_owned(),
    };
    let Transition { mut task, handoff, mut effects } =
        end_open_handoff(snapshot, before, Cause::TaskCanceled, (ErrorCode::TaskCanceled, &text), now);
    // Each agent waits for the end of a handoff of its own: the owner for that of the open one, a delegator for its loan.
    let taken_over = task.hops.iter().rev().find(|hop| hop.receiver == task.owner).map(|hop| hop.handoff);
    let of_owner = handoff.as_ref().map(|open| open.id).or(taken_over);
    effects.push(canceled(&task.owner, of_owner, &text));
    effects.extend(task.loans.iter().rev().map(|loan| canceled(&loan.delegator, Some(loan.handoff), &text)));
    if let Some(Loan { delegator, .. }) = task.loans.first() {
        task.owner = delegator.clone();
        task.epoch += 1;
        task.loans.clear();
    }
    task.status = TaskStatus::Canceled;
    task.details = text;
    task.updated_at = now;
    Some(Transition { task, handoff, effects })
}

fn canceled(to: &AgentId, about: Option<MessageId>, text: &str) -> Effect {
    let (code, advice) = (ErrorCode::TaskCanceled, Advice::DropTask);
    let notice = Notice { code, message: text.to_owned(), advice, is_critical: false };
    let mail = match about {
        Some(about) => Mail::Notice { notice, about },
        None => Mail::TaskNotice(notice),
    };
    Effect::Deliver { to: to.clone(), mail }
}

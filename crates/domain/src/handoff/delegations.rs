//! The end of a delegation that was begun in a thread: the message that the thread gets, once for each handoff.
//!
//! A delegation ends with its loan, or with its handoff if no agent has taken the task over. Both ends are final, so the
//! message is ordered once, in the commit of the end.

use super::{Effect, Handoff, Input, Loan, Mail, Message, Mode, State, Task, Transition};
use crate::{
    codes::ErrorCode,
    coordinator::{DelegationEnd, Order, ThreadMessage},
};

/// The messages for the threads of the delegations that this step has ended.
pub(super) fn words_to_threads(
    before: Option<&Task>,
    handoff: Option<&Handoff>,
    transition: &Transition,
    input: &Input,
) -> Vec<crate::Effect> {
    let not_taken = transition.handoff.as_ref().and_then(|after| untaken(handoff, after));
    let after = &transition.task;
    let lent = before.into_iter().flat_map(|before| before.loans.iter().map(move |loan| (before, loan)));
    let ended = lent.filter(|(_, loan)| !after.loans.iter().any(|kept| kept.handoff == loan.handoff));
    let returned = ended.filter_map(|(before, loan)| {
        let end = end_of_loan(before, loan, transition, input);
        Some(message(loan.thread.as_ref()?, after, loan, end))
    });
    not_taken.into_iter().chain(returned).map(|message| crate::Effect::Order(Order::Tell(Box::new(message)))).collect()
}

fn message(thread: &crate::ids::ThreadId, task: &Task, loan: &Loan, end: DelegationEnd) -> ThreadMessage {
    ThreadMessage {
        thread: thread.clone(),
        task: task.id.clone(),
        epoch: task.epoch,
        handoff: loan.handoff,
        delegator: loan.delegator.clone(),
        end,
    }
}

/// The message about a delegation that has ended before an agent took the task over.
fn untaken(before: Option<&Handoff>, after: &Handoff) -> Option<ThreadMessage> {
    // A task's next handoff comes with the former one as `before`, whose state says nothing about it.
    let had_ended = before.is_some_and(|before| before.id == after.id && before.state.is_final());
    if had_ended || !after.state.is_final() || after.state == State::Completed || after.mode != Mode::Delegate {
        return None;
    }
    let failure = after.failure.as_ref()?;
    Some(ThreadMessage {
        thread: after.thread.clone()?,
        task: after.task.clone(),
        epoch: after.epoch,
        handoff: after.id,
        delegator: after.sender.clone(),
        end: DelegationEnd::NotTaken { code: failure.code, text: failure.message.clone() },
    })
}

fn end_of_loan(before: &Task, loan: &Loan, transition: &Transition, input: &Input) -> DelegationEnd {
    let is_innermost = before.loans.last().is_some_and(|last| last.handoff == loan.handoff);
    let by = before.owner.clone();
    match input {
        Input::Message { message: Message::Status { id, status, details, .. }, .. } if is_innermost => {
            DelegationEnd::Reported { by, status: *status, message: *id, details: details.clone() }
        }
        Input::Message { message: Message::Complete { .. }, .. } => DelegationEnd::Returned { by },
        // All others end a loan against its delegate, which gets a notice with the words.
        _ => {
            let (code, text) =
                told(transition).unwrap_or((ErrorCode::TaskRecalled, "the task was recalled".to_owned()));
            DelegationEnd::Recalled { code, text }
        }
    }
}

/// The code and the words with which the step tells the agents that lose the task.
fn told(transition: &Transition) -> Option<(ErrorCode, String)> {
    let of_loss = |code| {
        matches!(
            code,
            ErrorCode::TaskRecalled | ErrorCode::TaskAbandoned | ErrorCode::TaskCanceled | ErrorCode::TaskReassigned
        )
    };
    transition.effects.iter().find_map(|effect| match effect {
        Effect::Deliver { mail: Mail::Notice { notice, .. } | Mail::TaskNotice(notice), .. }
            if of_loss(notice.code) =>
        {
            Some((notice.code, notice.message.clone()))
        }
        _ => None,
    })
}

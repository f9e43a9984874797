//! Liveness of work (SPEC 3): what happens to a task whose owner gives no sign of work.
//!
//! The signs are no part of the state: the broker hears them in heartbeats, which it does not store. It runs
//! [`Input::Silent`](super::Input::Silent) when it finds that an owner has been silent, and this module decides what
//! becomes of the task.

use std::time::Duration;

use super::{
    Advice, Cause, Effect, Handoff, Loan, Mail, Notice, Snapshot, Task, TransferTerms, Transition, WorkTerms,
    builder::end_open_handoff,
    step::{recall, told_of},
};
use crate::{codes::ErrorCode, time::Timestamp};

impl Task {
    /// The silence after which the task counts as abandoned by its present owner: by the terms of the latest transfer,
    /// else by those of the innermost loan that has any. `None`: silence is not judged.
    pub fn silence_timeout(&self) -> Option<Duration> {
        if self.status.is_final() || self.owner.is_coordinator() {
            return None;
        }
        let by_transfer = self.transfer.as_ref().filter(|transfer| !transfer.is_told);
        by_transfer.map(|transfer| transfer.silence_timeout).or_else(|| self.silent_loan().map(|(_, timeout)| timeout))
    }

    /// The time from which on the task counts as abandoned, unless its owner has given a sign of work since its last
    /// change. `None`: silence is not judged, or the task waits for an answer that has a deadline.
    pub fn silent_at(&self) -> Option<Timestamp> {
        self.silence_timeout().filter(|_| !self.waits_for_answer()).map(|timeout| self.updated_at.plus(timeout))
    }

    /// The innermost loan with a `silence_timeout`.
    fn silent_loan(&self) -> Option<(usize, Duration)> {
        let loans = self.loans.iter().enumerate().rev();
        loans.filter_map(|(place, loan)| Some((place, loan.silence_timeout?))).next()
    }

    /// Notes the terms of the handoff that has just moved the task.
    pub(super) fn begin_watch(&mut self, handoff: &Handoff, is_loan: bool) {
        let WorkTerms { silence_timeout, returns_when_abandoned, .. } = handoff.work;
        self.transfer = silence_timeout.filter(|_| !is_loan).map(|silence_timeout| TransferTerms {
            former: handoff.sender.clone(),
            handoff: handoff.id,
            silence_timeout,
            returns: returns_when_abandoned,
            is_told: false,
        });
    }
}

/// Takes an abandoned task back for who lent it, or for who handed it over and asked for that; or else tells that agent.
/// `None`: silence is not judged.
pub(super) fn abandon(snapshot: Snapshot<'_>, now: Timestamp) -> Option<Transition> {
    let task = snapshot.task?;
    let timeout = task.silence_timeout()?;
    let text = format!("{} gave no sign of work for {} s", task.owner, timeout.as_secs());
    match &task.transfer {
        Some(transfer) if !transfer.is_told => Some(match transfer.returns {
            true => give_back(snapshot, task, transfer, &text, now),
            false => tell(task, transfer, &text, now),
        }),
        _ => {
            let (place, _) = task.silent_loan()?;
            let mut transition = recall(snapshot, task, place, (ErrorCode::TaskAbandoned, &text), now);
            let Loan { delegator, handoff, .. } = &task.loans[place];
            transition.effects.push(told_of(delegator, *handoff, (ErrorCode::TaskAbandoned, &text), Advice::KeepTask));
            Some(transition)
        }
    }
}

/// Returns a transferred task to the agent that handed it over. Its open handoff ends.
fn give_back(snapshot: Snapshot<'_>, task: &Task, transfer: &TransferTerms, text: &str, now: Timestamp) -> Transition {
    let Transition { mut task, handoff, mut effects } =
        end_open_handoff(snapshot, task, Cause::Recalled, (ErrorCode::TaskAbandoned, text), now);
    let code = (ErrorCode::TaskAbandoned, text);
    effects.push(told_of(&task.owner, transfer.handoff, code, Advice::DropTask));
    effects.push(told_of(&transfer.former, transfer.handoff, code, Advice::KeepTask));
    task.owner = transfer.former.clone();
    task.epoch += 1;
    task.transfer = None;
    task.updated_at = now;
    Transition { task, handoff, effects }
}

/// Tells the agent that handed the task over, once.
fn tell(task: &Task, transfer: &TransferTerms, text: &str, now: Timestamp) -> Transition {
    let notice = Notice {
        code: ErrorCode::TaskAbandoned,
        message: text.to_owned(),
        advice: Advice::AskOperator,
        is_critical: true,
    };
    let mail = Mail::Notice { notice, about: transfer.handoff };
    let effects = vec![Effect::Deliver { to: transfer.former.clone(), mail }];
    let transfer = TransferTerms { is_told: true, ..transfer.clone() };
    Transition { task: Task { transfer: Some(transfer), updated_at: now, ..task.clone() }, handoff: None, effects }
}

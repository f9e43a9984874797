//! What a word of a task means for its attempt, and how an attempt begins and ends. Subtasks and compensations share it.

use super::{PlanSignal, Report, SubtaskChange, SubtaskRun, SubtaskState, cut};
use crate::{
    ReadError, Reader,
    codes::ErrorCode,
    ids::{AgentId, MessageId},
    mailbox::backoff,
    time::Timestamp,
};

/// What a word means for the present attempt.
pub(super) enum Heard {
    /// An agent works on it.
    Taken {
        /// The agent.
        owner: AgentId,
        /// The time at which the task is taken back.
        due: Option<Timestamp>,
    },
    /// The attempt has failed.
    Failed(Failure),
    /// The agent has reported the result.
    Completed(Report),
}

/// The failure of an attempt.
pub(super) struct Failure {
    /// The state that follows if no attempt does.
    pub state: SubtaskState,
    /// Why it failed.
    pub code: ErrorCode,
    /// The same, for people to read.
    pub text: String,
    /// Whether another attempt may help.
    pub may_help: bool,
    /// Whether the handoff waited when its whole time was over. Waiting uses no attempt.
    pub has_waited: bool,
}

impl Failure {
    fn new(state: SubtaskState, code: ErrorCode, text: &str) -> Self {
        Self { state, code, text: text.to_owned(), may_help: true, has_waited: false }
    }
}

/// What a word about the present attempt means in this state. `None`: its handoff has overtaken it.
pub(super) fn heard(
    signal: &PlanSignal,
    state: SubtaskState,
    read: &mut dyn Reader,
) -> Result<Option<Heard>, ReadError> {
    Ok(match (signal, state) {
        (PlanSignal::Taken { owner, due, .. }, SubtaskState::HandingOff) => {
            Some(Heard::Taken { owner: owner.clone(), due: *due })
        }
        // A refusal by a rule, or because another task has the id, does not change with time.
        (PlanSignal::NotStarted { code, text, .. }, SubtaskState::HandingOff) => {
            let is_lasting = matches!(
                code,
                ErrorCode::PermissionDenied | ErrorCode::NotOwner | ErrorCode::TaskFinal | ErrorCode::FieldInvalid
            );
            Some(Heard::Failed(Failure { may_help: !is_lasting, ..Failure::new(SubtaskState::Failed, *code, text) }))
        }
        (PlanSignal::NotTaken { code, text, has_waited, .. }, SubtaskState::HandingOff) => {
            Some(Heard::Failed(Failure { has_waited: *has_waited, ..Failure::new(SubtaskState::Failed, *code, text) }))
        }
        (PlanSignal::Reported { message, is_completed: true, .. }, SubtaskState::Running) => {
            Some(Heard::Completed(read.report(*message)?.unwrap_or_default()))
        }
        (PlanSignal::Reported { message, details, .. }, SubtaskState::Running) => {
            let response = read.report(*message)?.map(|report| report.response).filter(|text| !text.is_empty());
            // The response says more than the details, but an agent that fails early often reports no result.
            let text = response.unwrap_or_else(|| details.clone());
            let text = if text.is_empty() { "the agent reported FAILED" } else { &text };
            Some(Heard::Failed(Failure::new(SubtaskState::Failed, ErrorCode::SubtaskFailed, text)))
        }
        (PlanSignal::Recalled { is_abandoned, .. }, SubtaskState::Running) => {
            let (code, text) = match is_abandoned {
                true => (ErrorCode::TaskAbandoned, "its agent gave no sign of work, and its task was taken back"),
                false => (ErrorCode::TaskRecalled, "the time of the subtask was up, and its task was taken back"),
            };
            Some(Heard::Failed(Failure::new(SubtaskState::TimedOut, code, text)))
        }
        // A word of the other half of the attempt is one that its handoff has overtaken.
        (
            PlanSignal::Taken { .. } | PlanSignal::NotStarted { .. } | PlanSignal::NotTaken { .. },
            SubtaskState::Running,
        )
        | (PlanSignal::Reported { .. } | PlanSignal::Recalled { .. }, SubtaskState::HandingOff)
        | (
            PlanSignal::Taken { .. }
            | PlanSignal::NotStarted { .. }
            | PlanSignal::NotTaken { .. }
            | PlanSignal::Reported { .. }
            | PlanSignal::Recalled { .. }
            | PlanSignal::NotAppended { .. },
            SubtaskState::Pending
            | SubtaskState::Ready
            | SubtaskState::Completed
            | SubtaskState::Failed
            | SubtaskState::TimedOut
            | SubtaskState::Skipped
            | SubtaskState::Cancelled,
        )
        | (PlanSignal::NotAppended { .. }, SubtaskState::HandingOff | SubtaskState::Running) => None,
    })
}

impl SubtaskRun {
    /// Starts again in a new round. The agents of earlier rounds go on seeing the plan, and are asked after all others. A
    /// reassignment stays.
    pub(super) fn start_anew(&mut self, now: Timestamp) {
        let mut tried = std::mem::take(&mut self.tried);
        tried.extend(self.agent.take().filter(|agent| !tried.contains(agent)));
        let assigned_to = self.assigned_to.take();
        *self = Self { tried, assigned_to, ..Self::pending(now) };
    }

    /// Keeps the agents of a forgotten part of the work, who go on seeing the plan.
    pub(super) fn remember(&mut self, part: Self) {
        for agent in part.tried.into_iter().chain(part.agent) {
            if !self.tried.contains(&agent) {
                self.tried.push(agent);
            }
        }
    }

    /// Begins an attempt.
    pub(super) fn begin(&mut self, round: u32, now: Timestamp, id: impl FnOnce(u32, Timestamp) -> MessageId) {
        self.attempts += 1;
        // The retry of another subtask begins a round, and the task of this one goes on.
        if self.task_round == 0 {
            self.task_round = round;
        }
        self.started_at = Some(now);
        // The agent of the attempt before is asked after all others, since it has just failed or lost the task (SPEC 9).
        if let Some(former) = self.agent.take()
            && !self.tried.contains(&former)
        {
            self.tried.push(former);
        }
        self.handoff = Some(id(self.attempts, now));
    }

    /// Records the failure of an attempt. Returns whether the next one follows after a pause.
    pub(super) fn fail(&mut self, failure: &Failure, attempts_max: u32, now: Timestamp) -> bool {
        (self.code, self.cause) = (Some(failure.code), cut(&failure.text));
        let goes_on = failure.may_help && self.attempts < attempts_max;
        if goes_on {
            // From the id of the handoff, and not drawn: a replay of the step must give the same time.
            let jitter = self.handoff.map_or(0, |handoff| handoff.as_bytes()[15]);
            self.retry_at = Some(now.plus(backoff(self.attempts, jitter)));
        }
        goes_on
    }

    /// Sets the state, without the times of the former one: `next_deadline` would wake the plan for nothing.
    pub(super) fn enter(&mut self, state: SubtaskState, now: Timestamp) {
        self.state = state;
        if state != SubtaskState::Running {
            self.deadline = None;
        }
        if state != SubtaskState::Ready {
            self.retry_at = None;
        }
        if state.is_final() {
            self.ended_at = Some(now);
        }
    }

    /// The change to the present state, for the log.
    pub(super) fn change(&self, subtask: &str, report: Option<Report>) -> SubtaskChange {
        SubtaskChange {
            subtask: subtask.to_owned(),
            state: self.state,
            attempt: self.attempts,
            task_round: self.task_round,
            handoff: self.handoff,
            agent: self.agent.clone(),
            code: self.code,
            cause: self.cause.clone(),
            report,
            element: None,
        }
    }
}

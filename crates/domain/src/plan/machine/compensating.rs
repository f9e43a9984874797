//! Compensation: a plan that fails undoes what has completed, the latest first, before it ends (SPEC 9).
//!
//! The compensations run one after the other. One that fails is recorded, and the next one runs. The end of the plan follows
//! the last one, or the time of the plan: a plan that begins to compensate has its whole time anew.

use std::{collections::BTreeSet, sync::Arc};

use super::{
    Attempted, Event, Plan, PlanSignal, PlanState, Report, SubtaskRun, SubtaskState, TransitionBuilder, Work,
    attempt_id, hearing,
};
use crate::{
    Effect, ReadError, Reader, StepError, Transition,
    codes::ErrorCode,
    coordinator::Order,
    handoff::{Task, TaskStatus},
    plan::{
        CompensationRun,
        machine::{Heard, cut, read_task},
    },
};

/// Sets the places of compensations apart in the ids of attempts.
const PLACE_OF_COMPENSATION: usize = 0x8000;

impl Plan {
    /// The places of the subtasks that a compensation of this round has undone.
    pub(super) fn undone(&self) -> BTreeSet<usize> {
        let done = self.compensations.iter().filter(|known| known.run.state == SubtaskState::Completed);
        done.map(|known| known.of).collect()
    }
}

impl TransitionBuilder {
    /// Goes on with the compensations of a failing plan without running subtasks, and ends the plan after the last one.
    pub(super) fn compensate(&mut self, read: &mut dyn Reader) -> Result<(), ReadError> {
        if self.plan.compensations.is_empty() {
            self.begin_to_compensate();
        } else if self.plan.deadline <= self.now {
            self.give_up(read)?;
        }
        match self.plan.compensations.iter().position(|known| !known.run.state.is_final()) {
            Some(at) => self.start_compensation(at, read),
            None => {
                let reason = self.plan.reason.clone();
                self.end_plan(PlanState::Failed, &reason);
                Ok(())
            }
        }
    }

    fn begin_to_compensate(&mut self) {
        let subtasks = self.plan.subtasks.iter().zip(&self.spec.subtasks).enumerate();
        let undoable =
            subtasks.filter(|(_, (run, subtask))| run.state == SubtaskState::Completed && subtask.compensate.is_some());
        // The log numbers the results in the order in which the subtasks have completed.
        let mut order: Vec<(Option<u64>, usize)> = undoable.map(|(place, (run, _))| (run.result, place)).collect();
        order.sort_unstable_by(|one, other| other.cmp(one));
        if !order.is_empty() {
            // The time of the round may be over: it may be why the plan fails.
            self.plan.deadline = self.now.plus(self.spec.terms.whole_timeout);
        }
        let run = |(_, of)| CompensationRun { of, run: SubtaskRun::pending(self.now) };
        self.plan.compensations = order.into_iter().map(run).collect();
    }

    /// Ends all compensations that have not ended: their time is up.
    fn give_up(&mut self, read: &mut dyn Reader) -> Result<(), ReadError> {
        for at in 0..self.plan.compensations.len() {
            let state = self.plan.compensations[at].run.state;
            if state.is_final() {
                continue;
            }
            let text = "the time for the compensations of the plan was up";
            if let Some(task) = self.task_of_compensation(at, read)? {
                self.stop_task(&task, TaskStatus::Failed, text, read)?;
            }
            let run = &mut self.plan.compensations[at].run;
            (run.code, run.cause) = (Some(ErrorCode::WholeTimeout), cut(text));
            let ended = if state.is_active() { SubtaskState::TimedOut } else { SubtaskState::Skipped };
            self.change_compensation(at, ended, None);
        }
        Ok(())
    }

    /// Starts an attempt of this compensation, if none runs and the pause after the former one is over.
    fn start_compensation(&mut self, at: usize, read: &mut dyn Reader) -> Result<(), ReadError> {
        let CompensationRun { of, run } = &mut self.plan.compensations[at];
        let waits = run.retry_at.is_some_and(|at| at > self.now);
        if waits || !matches!(run.state, SubtaskState::Pending | SubtaskState::Ready) {
            return Ok(());
        }
        let (of, submission, round) = (*of, self.plan.submission, self.plan.round);
        let place = of | PLACE_OF_COMPENSATION;
        let attempted = Attempted { submission, place, element: None, round, reassignments: 0 };
        run.begin(round, self.now, |attempt, now| attempt_id(attempted, attempt, now));
        let epoch = self.task_of_compensation(at, read)?.map_or(1, |task| task.epoch);
        self.change_compensation(at, SubtaskState::HandingOff, None);
        let work = Work { place: of, is_compensation: true, element: None, assigned_to: None };
        self.order(work, epoch, &self.plan.compensations[at].run.clone());
        Ok(())
    }

    /// Applies a word about the latest attempt of a compensation.
    pub(super) fn on_compensation(
        mut self,
        at: usize,
        signal: &PlanSignal,
        read: &mut dyn Reader,
    ) -> Result<Transition, StepError> {
        let state = self.plan.compensations[at].run.state;
        match hearing::heard(signal, state, read)? {
            None => return Ok(Transition::default()),
            Some(Heard::Taken { owner, due }) => {
                let run = &mut self.plan.compensations[at].run;
                (run.agent, run.deadline) = (Some(owner), due);
                self.change_compensation(at, SubtaskState::Running, None);
            }
            Some(Heard::Failed(failure)) => {
                let CompensationRun { of, run } = &mut self.plan.compensations[at];
                run.attempts -= u32::from(failure.has_waited && run.attempts > 0);
                let most = self.spec.work(*of, true).attempts_max;
                if run.fail(&failure, most, self.now) {
                    self.change_compensation(at, SubtaskState::Ready, None);
                } else {
                    if let Some(task) = self.task_of_compensation(at, read)? {
                        self.stop_task(&task, TaskStatus::Failed, &failure.text, read)?;
                    }
                    self.change_compensation(at, failure.state, None);
                }
            }
            Some(Heard::Completed(report)) => {
                if let Some(task) = self.task_of_compensation(at, read)? {
                    let (task, epoch) = (task.id.clone(), task.epoch);
                    let details = "the subtask is undone".to_owned();
                    let order = Order::Status { task, epoch, status: TaskStatus::Completed, details };
                    self.effects.push(Effect::Order(order));
                }
                let run = &mut self.plan.compensations[at].run;
                (run.code, run.cause, run.numeric_value) = (None, String::new(), report.numeric_value);
                self.change_compensation(at, SubtaskState::Completed, Some(report));
            }
        }
        self.compensate(read)?;
        Ok(self.done())
    }

    /// Sets the state of a compensation, and records it.
    fn change_compensation(&mut self, at: usize, state: SubtaskState, report: Option<Report>) {
        let CompensationRun { of, run } = &mut self.plan.compensations[at];
        run.enter(state, self.now);
        let is_result = report.is_some();
        let change = run.change(&self.spec.subtasks[*of].id, report);
        let number = self.log(Event::Compensation(Box::new(change)));
        if is_result {
            self.plan.compensations[at].run.result = Some(number);
        }
    }

    /// The task of a compensation, if it has not ended.
    fn task_of_compensation(&self, at: usize, read: &mut dyn Reader) -> Result<Option<Arc<Task>>, ReadError> {
        let id = self.plan.compensation_task_id(&self.spec, &self.plan.compensations[at]);
        let Some(id) = id else { return Ok(None) };
        Ok(read_task(read, &id)?.filter(|task| !task.status.is_final()))
    }

    /// Forgets the compensations of a round that is over. Their agents go on seeing the plan.
    pub(super) fn forget_compensations(&mut self) {
        for CompensationRun { of, run } in std::mem::take(&mut self.plan.compensations) {
            self.plan.subtasks[of].remember(run);
        }
    }
}

//! The end of a plan before its last subtask has ended: by a cancel, or because its time is up.

use std::sync::Arc;

use super::{Event, PlanState, SubtaskState, TransitionBuilder, cut};
use crate::{
    Effect, Entity, EntityId, Mail, ReadError, Reader,
    codes::ErrorCode,
    coordinator::Order,
    handoff::{Advice, Handoff, Notice, Priority, Task, TaskStatus},
    ids::MessageId,
};

impl TransitionBuilder {
    /// Begins the end of the plan before all its subtasks have ended.
    pub(super) fn begin_end(&mut self, state: PlanState, reason: &str, read: &mut dyn Reader) -> Result<(), ReadError> {
        (self.plan.ending, self.plan.reason) = (Some(state), cut(reason));
        self.end_some(state, read)
    }

    /// Ends subtasks with their tasks, as many as one step may, and the plan after the last one: no agent owns a task of an
    /// ended plan (SPEC 12, law 13).
    pub(super) fn end_some(&mut self, state: PlanState, read: &mut dyn Reader) -> Result<(), ReadError> {
        let reason = self.plan.reason.clone();
        if !self.stop_elements(None, state, &reason, read)? {
            return Ok(());
        }
        for place in 0..self.plan.subtasks.len() {
            let (status, ended, code) = match (self.plan.subtasks[place].state, state) {
                (
                    SubtaskState::Pending | SubtaskState::Ready | SubtaskState::HandingOff | SubtaskState::Running,
                    PlanState::Cancelled,
                ) => (TaskStatus::Canceled, SubtaskState::Cancelled, None),
                (SubtaskState::Pending | SubtaskState::Ready, _) => {
                    (TaskStatus::Failed, SubtaskState::Skipped, Some(ErrorCode::WholeTimeout))
                }
                (SubtaskState::HandingOff | SubtaskState::Running, _) => {
                    (TaskStatus::Failed, SubtaskState::TimedOut, Some(ErrorCode::WholeTimeout))
                }
                (
                    SubtaskState::Completed
                    | SubtaskState::Failed
                    | SubtaskState::TimedOut
                    | SubtaskState::Skipped
                    | SubtaskState::Cancelled,
                    _,
                ) => continue,
            };
            self.plan.goes_on = self.has_enough_orders();
            if self.plan.goes_on {
                return Ok(());
            }
            self.stop(place, status, &reason, read)?;
            self.forget_elements(place);
            self.end(place, ended, code, &reason);
        }
        self.plan.goes_on = false;
        match state {
            PlanState::Failed => self.compensate(read),
            PlanState::Running | PlanState::Completed | PlanState::Cancelled => {
                self.end_plan(state, &reason);
                Ok(())
            }
        }
    }

    /// Takes the subtask's task from its candidate or its owner, and ends it.
    pub(super) fn stop(
        &mut self,
        place: usize,
        status: TaskStatus,
        reason: &str,
        read: &mut dyn Reader,
    ) -> Result<(), ReadError> {
        match self.task_of(place, read)? {
            Some(task) => self.stop_task(&task, status, reason, read),
            None => Ok(()),
        }
    }

    /// Takes a task from its candidate or its owner, and ends it.
    pub(super) fn stop_task(
        &mut self,
        task: &Task,
        status: TaskStatus,
        reason: &str,
        read: &mut dyn Reader,
    ) -> Result<(), ReadError> {
        let reason = cut(reason);
        // The later order must name the epoch that the former leaves behind: a recall moves the owner and raises the
        // epoch, a cancellation does neither.
        let mut epoch = task.epoch;
        if let Some(loan) = task.loans.first() {
            let (task, handoff) = (task.id.clone(), loan.handoff);
            let order = Order::Recall { task, epoch, handoff, reason_text: reason.clone() };
            self.effects.push(Effect::Order(order));
            epoch += 1;
        } else if let Some(open) = task.open_handoff
            && let Some(handoff) = read_handoff(read, open)?
        {
            let (to, task) = (handoff.candidate.clone(), task.id.clone());
            let order = Order::Cancel { handoff: open, task, epoch, to, reason_text: reason.clone() };
            self.effects.push(Effect::Order(order));
        }
        self.effects.push(Effect::Order(Order::Status { task: task.id.clone(), epoch, status, details: reason }));
        Ok(())
    }

    pub(super) fn end_plan(&mut self, state: PlanState, reason: &str) {
        (self.plan.state, self.plan.reason, self.plan.ended_at) = (state, cut(reason), Some(self.now));
        (self.plan.ending, self.plan.goes_on) = (None, false);
        self.log(Event::Ended { state, reason: cut(reason) });
        if state == PlanState::Failed {
            // The submitter has to act: to retry the plan, or to find another way (SPEC 2).
            let message = format!("plan {} has failed: {}", self.plan.id, cut(reason));
            let notice = Notice { code: ErrorCode::PlanFailed, message, advice: Advice::None, is_critical: true };
            let (to, about) = (self.plan.submitter.clone(), Some(self.plan.submission));
            let mail = Mail::Notice { notice, about, task: None };
            self.effects.push(Effect::Deliver { to, mail, priority: Priority::default(), report_to: None });
        }
    }
}

pub(super) fn read_handoff(read: &mut dyn Reader, id: MessageId) -> Result<Option<Arc<Handoff>>, ReadError> {
    Ok(match read.entity(&EntityId::Handoff(id))? {
        Some(Entity::Handoff(handoff)) => Some(handoff),
        Some(_) | None => None,
    })
}

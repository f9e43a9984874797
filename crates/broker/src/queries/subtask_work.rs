//! What the tasks of a plan's active subtasks say of the work: its progress, and whose turn it is.

use std::sync::Arc;

use super::View;
use crate::{
    BrokerError,
    domain::{
        EntityId,
        handoff::{Handoff, State, Task},
        plan::{Plan, Spec, SubtaskState},
    },
    ids::{AgentId, PlanId, TaskId},
    proto::v1,
    records::{EntityRecord, TaskRecord, plan_run_to_v1},
    stored,
    time::Timestamp,
};

impl View<'_> {
    /// One plan that the caller may see, with what the tasks of its active subtasks say of the work. A caller that may not
    /// see a task learns nothing of it.
    pub fn shown_plan(&self, id: &PlanId) -> Result<v1::PlanRun, BrokerError> {
        let (plan, spec) = self.plan(id)?;
        self.with_work(&plan, &spec)
    }

    fn with_work(&self, plan: &Plan, spec: &Spec) -> Result<v1::PlanRun, BrokerError> {
        let mut shown = plan_run_to_v1(plan, Some(spec));
        for (place, status) in shown.subtasks.iter_mut().enumerate() {
            if let Some(task) = plan.task_id(spec, place) {
                self.add_work(status, plan.subtasks[place].state, &task)?;
            }
            let elements = plan.elements.iter().filter(|element| element.of == place);
            for (element, status) in elements.zip(&mut status.elements) {
                if let Some(task) = plan.element_task_id(spec, element) {
                    self.add_work(status, element.run.state, &task)?;
                }
            }
            let known = plan.compensations.iter().find(|known| known.of == place);
            if let Some((known, status)) = known.zip(status.compensation.as_deref_mut())
                && let Some(task) = plan.compensation_task_id(spec, known)
            {
                self.add_work(status, known.run.state, &task)?;
            }
        }
        Ok(shown)
    }

    fn add_work(&self, status: &mut v1::SubtaskStatus, state: SubtaskState, task: &TaskId) -> Result<(), BrokerError> {
        if !state.is_active() {
            return Ok(());
        }
        let stored = self.store.get(&TaskRecord::key(task))?;
        let stored = stored.map(|record| TaskRecord::decode(&record.value)).transpose()?;
        let Some(task) = stored.map(|record| record.task).filter(|task| self.access.may_see_task(self.caller, task))
        else {
            return Ok(());
        };
        // The report of a former attempt says nothing of the present one.
        if state == SubtaskState::Running {
            status.progress = task.progress;
            status.details.clone_from(&task.details);
        }
        let (turn, due) = self.turn(&task)?;
        status.turn_agent_id = turn.map(|agent| agent.to_string()).unwrap_or_default();
        status.turn_deadline = due.map(Into::into);
        Ok(())
    }

    /// The agent that has the next step of a task, and the time by which it has to take it.
    fn turn(&self, task: &Task) -> Result<(Option<AgentId>, Option<Timestamp>), BrokerError> {
        if let Some(prompt) = task.open_prompt() {
            return Ok((Some(prompt.asked.clone()), prompt.due));
        }
        let Some(open) = task.open_handoff else { return Ok((Some(task.owner.clone()), task.due())) };
        let stored = stored::entity_in(self.store, &EntityId::Handoff(open), &EntityId::Task(task.id.clone()))?;
        let Some(handoff) = stored.as_ref().and_then(EntityRecord::as_handoff).map(|record| record.handoff.clone())
        else {
            return Ok((None, None));
        };
        let due = handoff.next_deadline();
        Ok((turn_of(&handoff), due))
    }
}

/// The side of an open handoff that has to act. `None`: the handoff waits for an agent, or has ended.
fn turn_of(handoff: &Arc<Handoff>) -> Option<AgentId> {
    match handoff.state {
        State::Accepted => Some(handoff.sender.clone()),
        State::Requested | State::Deciding | State::ContextSent => {
            handoff.has_offer().then(|| handoff.candidate.clone())
        }
        State::Completed | State::Rejected | State::Failed | State::Cancelled => None,
    }
}

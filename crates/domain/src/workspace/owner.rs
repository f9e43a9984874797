//! The owner of a workspace, as the machine and the policies see it. A new kind of owner is an arm in each match here.

use super::{WorkspaceId, WorkspaceOwner};
use crate::{
    Entity, EntityId, ReadError, Reader,
    handoff::{State, Task},
    ids::{AgentId, MessageId, PlanId, TaskId, ThreadId},
    routing::RunId,
};

/// The state of a workspace's owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// The agents that take part at present, sorted, each once.
    pub participants: Vec<AgentId>,
    /// Whether the workspace takes entries: not after the end of its owner.
    pub is_open: bool,
}

/// The owner of this workspace. `None`: the owner does not exist, and so the workspace does not.
pub fn owner(id: &WorkspaceId, read: &mut dyn Reader) -> Result<Option<Owner>, ReadError> {
    let Some(owner) = owner_entity(id) else { return Ok(None) };
    let (own, task, is_open) = match read.entity(&owner)? {
        Some(Entity::Task(task)) => return of_task(&task, read).map(Some),
        Some(Entity::Plan(plan)) => (plan.participants().into_iter().collect(), None, !plan.state.is_final()),
        Some(Entity::Run(run)) => (run.participants.clone(), run.task.clone(), !run.state.is_final()),
        Some(Entity::Thread(thread)) => (thread.participants.clone(), thread.task.clone(), !thread.has_ended),
        Some(_) | None => return Ok(None),
    };
    let mut participants: Vec<AgentId> = own.into_iter().collect();
    // The present participants of the task take part, too. It may be removed before its run or thread.
    if let Some(task) = task
        && let Some(Entity::Task(task)) = read.entity(&EntityId::Task(task))?
    {
        participants.extend(of_task(&task, read)?.participants);
        participants.sort();
        participants.dedup();
    }
    Ok(Some(Owner { participants, is_open }))
}

/// The entity that owns this workspace. `None`: no machine has owners of this kind.
pub fn owner_entity(id: &WorkspaceId) -> Option<EntityId> {
    match id.owner() {
        (WorkspaceOwner::Task, task) => TaskId::parse(task).ok().map(EntityId::Task),
        (WorkspaceOwner::Thread, thread) => ThreadId::parse(thread).ok().map(EntityId::Thread),
        (WorkspaceOwner::Run, text) => {
            // Another spelling of the same UUID would be a second workspace of the run.
            let run = MessageId::parse(text).ok().filter(|run| run.to_string() == text);
            run.map(|run| EntityId::Run(RunId(run)))
        }
        (WorkspaceOwner::Plan, plan) => PlanId::parse(plan).ok().map(EntityId::Plan),
    }
}

/// The participants of a task: its owner, the delegators of its loans, and the candidate that has accepted it.
fn of_task(task: &Task, read: &mut dyn Reader) -> Result<Owner, ReadError> {
    let mut participants = vec![task.owner.clone()];
    participants.extend(task.loans.iter().map(|loan| loan.delegator.clone()));
    if let Some(open) = task.open_handoff
        && let Some(Entity::Handoff(handoff)) = read.entity(&EntityId::Handoff(open))?
        && matches!(handoff.state, State::Accepted | State::ContextSent)
    {
        participants.push(handoff.candidate.clone());
    }
    participants.sort();
    participants.dedup();
    Ok(Owner { participants, is_open: !task.status.is_final() })
}

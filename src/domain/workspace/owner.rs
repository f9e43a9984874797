//! The owner of a workspace, as the machine and the policies see it. A new kind of owner is an arm in each match here.

use super::{WorkspaceId, WorkspaceOwner};
use crate::{
    domain::{
        Entity, EntityId, ReadError, Reader,
        handoff::{State, Task},
    },
    ids::{AgentId, TaskId},
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
    match owner_entity(id) {
        Some(EntityId::Task(task)) => match read.entity(&EntityId::Task(task))? {
            Some(Entity::Task(task)) => of_task(&task, read).map(Some),
            Some(_) | None => Ok(None),
        },
        Some(_) | None => Ok(None),
    }
}

/// The entity that owns this workspace. `None`: no machine has owners of this kind.
pub fn owner_entity(id: &WorkspaceId) -> Option<EntityId> {
    match id.owner() {
        (WorkspaceOwner::Task, task) => TaskId::parse(task).ok().map(EntityId::Task),
        (WorkspaceOwner::Plan | WorkspaceOwner::Thread | WorkspaceOwner::Run, _) => None,
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

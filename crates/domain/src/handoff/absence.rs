//! The notice about an owner that is gone: the agent that handed the task to it is told, unless the task is lent.

use super::{Advice, Notice, Priority, Task};
use crate::{Effect, Mail, codes::ErrorCode};

/// Tells the agent from which a gone owner has its task. Changes no state: a task without an owner at work still belongs
/// to it. `None`: the task has ended, a delegator can recall it, or no other agent has handed it over.
pub(super) fn tell_of_gone_owner(task: &Task) -> Option<Effect> {
    let owner = &task.owner;
    if task.status.is_final() || !task.loans.is_empty() || owner.is_coordinator() {
        return None;
    }
    // An owner without a hop has made the task.
    let hop = task.hops.iter().rev().find(|hop| hop.receiver == *owner)?;
    // After a reassignment the agent that made the task is the one that waits for it.
    let to = if hop.sender.is_coordinator() { task.creator() } else { &hop.sender };
    if to == owner || to.is_coordinator() {
        return None;
    }
    let message = format!(
        "{owner} owns the task at epoch {}, and has given no sign of life for the length of its lease",
        task.epoch
    );
    let notice = Notice { code: ErrorCode::AgentGone, message, advice: Advice::AskOperator, is_critical: true };
    Some(Effect::Deliver {
        to: to.clone(),
        mail: Mail::Notice { notice, about: Some(hop.handoff), task: Some((task.id.clone(), task.epoch)) },
        priority: Priority::default(),
        report_to: None,
    })
}

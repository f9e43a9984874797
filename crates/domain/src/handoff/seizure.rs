//! The seizure of a task by an operator: the coordinator owns the task, and hands it on.

use super::{
    Advice, Cause, Effect, Mail, Notice, Priority, Rejection, Seize, Seizure, Snapshot, TaskStatus, Transition,
    builder::end_open_handoff,
};
use crate::{
    codes::ErrorCode,
    coordinator::{Order, RequestOrder},
    ids::AgentId,
    time::Timestamp,
};

/// Gives the task to the coordinator, which hands it on. All loans end, and so does the open handoff.
pub(super) fn take_from_owner(snapshot: Snapshot<'_>, seize: &Seize, now: Timestamp) -> Result<Transition, Rejection> {
    let task = snapshot.task.ok_or(Rejection::TaskUnknown)?;
    let (claimed, current) = (seize.expected_epoch, task.epoch);
    // The epoch goes before the state: an operator that has seen an older epoch decides on other facts.
    if claimed < current {
        return Err(Rejection::StaleEpoch { claimed, current });
    }
    if claimed > current {
        return Err(Rejection::EpochAhead { claimed, current });
    }
    if task.status.is_final() {
        return Err(Rejection::TaskFinal { status: task.status });
    }
    let text = reassigned_text(seize);
    // The candidate has its own notice about its offer. The owner is told below, as the owner that it was.
    let Transition { mut task, handoff, mut effects } =
        end_open_handoff(snapshot, task, Cause::Reassigned, (ErrorCode::TaskReassigned, &text), now);
    // The owner waits for the end of its open handoff, and a delegator for that of its loan.
    let of_owner = handoff.as_ref().map_or(seize.handoff, |open| open.id);
    let mut told = Vec::new();
    let losers = std::iter::once((&task.owner, of_owner));
    for (agent, about) in losers.chain(task.loans.iter().rev().map(|loan| (&loan.delegator, loan.handoff))) {
        // An agent may be in several loans and is told once.
        if !told.contains(&agent) {
            let notice = Notice {
                code: ErrorCode::TaskReassigned,
                message: text.clone(),
                advice: Advice::DropTask,
                is_critical: false,
            };
            effects.push(Effect::Deliver { to: agent.clone(), mail: Mail::Notice { notice, about } });
            told.push(agent);
        }
    }
    let former = std::mem::replace(&mut task.owner, AgentId::coordinator());
    // A loan that stayed would take the task from its next owner when it is due.
    task.loans.clear();
    task.epoch += 1;
    task.status = TaskStatus::InProgress;
    task.updated_at = now;
    // The first seizure from an agent is enough to know it as a former owner, and keeps the list bounded.
    if !task.seizures.iter().any(|seizure| seizure.from == former) {
        task.seizures.push(Seizure { from: former.clone(), epoch: task.epoch, handoff: seize.handoff });
    }
    effects.push(Effect::Order(Order::Request(Box::new(RequestOrder {
        id: seize.handoff,
        task: task.id.clone(),
        epoch: task.epoch,
        receiver: seize.receiver.clone(),
        former_owner: former.clone(),
        task_type: task.task_type.clone(),
        priority: Priority::High,
        submitter: seize.submitter.clone(),
        reason_text: seize.reason_text.clone(),
        summary: format!("{text}. Its former owner is {former}, at epoch {current}."),
    }))));
    Ok(Transition { task, handoff, effects })
}

fn reassigned_text(seize: &Seize) -> String {
    let Seize { submitter, receiver, reason_text, .. } = seize;
    let reason = if reason_text.is_empty() { String::new() } else { format!(": {reason_text}") };
    format!("{submitter} reassigned the task to {receiver}{reason}")
}

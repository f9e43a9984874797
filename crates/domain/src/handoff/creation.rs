//! What a message creates: a task, and a handoff before its first offer.

use super::{Handoff, NewTask, Request, State, Task, TaskStatus};
use crate::time::Timestamp;

/// A task before its first handoff, owned by the sender of the request.
pub(super) fn requested_task(request: &Request, now: Timestamp) -> Task {
    let new = NewTask {
        id: request.id,
        task: request.task.clone(),
        from: request.from.clone(),
        epoch: request.epoch,
        task_type: request.task_type.clone(),
        parent: request.parent.clone(),
        conversation: request.conversation.clone(),
        loop_limits: request.loop_limits,
    };
    Task { created_by: None, plan: request.plan.clone(), ..new_task(new, now) }
}

/// A task without a handoff, owned by the sender of the message.
pub(super) fn new_task(new: NewTask, now: Timestamp) -> Task {
    Task {
        id: new.task,
        task_type: new.task_type,
        owner: new.from,
        epoch: 1,
        status: TaskStatus::Created,
        progress: None,
        details: String::new(),
        result: None,
        prompts: Vec::new(),
        parent: new.parent,
        conversation: new.conversation,
        created_by: Some(new.id),
        plan: None,
        open_handoff: None,
        hops: Vec::new(),
        loans: Vec::new(),
        transfer: None,
        seizures: Vec::new(),
        loop_limits: new.loop_limits,
        created_at: now,
        updated_at: now,
    }
}

/// A handoff before its first offer.
pub(super) fn new_handoff(request: &Request, now: Timestamp) -> Handoff {
    Handoff {
        id: request.id,
        redrive_of: None,
        task: request.task.clone(),
        epoch: request.epoch,
        sender: request.from.clone(),
        receiver: request.receiver.clone(),
        candidate: request.from.clone(), // the first offer replaces it
        next_candidates: request.candidates.clone(),
        offers: Vec::new(),
        state: State::Requested,
        mode: request.mode,
        loan_timeout: request.loan_timeout,
        work: request.work,
        submitter: request.submitter.clone(),
        routing: request.routing,
        priority: request.priority,
        fairness_key: request.fairness_key.clone(),
        task_type: request.task_type.clone(),
        reason: request.reason,
        timeouts: request.timeouts,
        step_deadline: None,
        whole_deadline: request.deliver_after.map_or(now, |at| at.max(now)).plus(request.timeouts.whole),
        wanted_sections: Vec::new(),
        estimate: None,
        waiting: None,
        wait_for_agent: request.wait_for_agent,
        thread: request.thread.clone(),
        context_digest: None,
        context_delivered: false,
        let_go: false,
        failure: None,
        negotiation: request.negotiation,
        steps: Vec::new(),
        created_at: now,
        updated_at: now,
    }
}

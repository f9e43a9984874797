//! The handoff machine behind the common interface of [`crate::step`].

use std::sync::Arc;

use super::{
    Acked, Cancellation, Effect, Handoff, Input, Mail, Message, Outcome, Priority, Rejection, Request, Snapshot, State,
    Task, TaskSignal, TaskStatus, Transition, Unavailable,
    absence::tell_of_gone_owner,
    cancellation::{cancel_parts, word_to_parts},
    delegations::words_to_threads,
    step,
};
use crate::{
    Answered, Entity, EntityId, MessageType, ReadError, Reader, Signal, StepError,
    codes::ErrorCode,
    dead_letter::{ParkReason, offers_as_attempts},
    ids::{AgentId, MessageId, TaskId},
    negotiation::{self, Award},
    plan::{self, PlanRef},
    routing::{self, HandoffRef},
    rules,
    time::Timestamp,
};

/// Applies one input to a task or a handoff. An event about an unknown handoff changes nothing; a message about it is
/// rejected.
pub(crate) fn step_entity(
    about: &EntityId,
    input: &crate::Input,
    read: &mut dyn Reader,
    now: Timestamp,
) -> Result<crate::Transition, StepError> {
    let (of_task, of_handoff) = match about {
        EntityId::Task(task) => (Some(task), None),
        EntityId::Handoff(handoff) => (None, Some(*handoff)),
        // Entities of other machines.
        EntityId::Workspace(_)
        | EntityId::Graph(_)
        | EntityId::Run(_)
        | EntityId::RunEntry(..)
        | EntityId::RunTurn(..)
        | EntityId::Spec(..)
        | EntityId::SpecRevision(..)
        | EntityId::Thread(_)
        | EntityId::ThreadEntry(..)
        | EntityId::Negotiation(_)
        | EntityId::Plan(_)
        | EntityId::PlanSpec(_)
        | EntityId::PlanEntry(..) => (None, None),
        #[cfg(debug_assertions)]
        EntityId::Probe(_) => (None, None),
    };
    let handoff = of_handoff.map_or(Ok(None), |id| read_handoff(read, id))?;
    let of_parent;
    let (task, input) = match input {
        crate::Input::Handoff { task, input } => (Some(task), input),
        crate::Input::Acked { by, role, decides_within } => {
            (None, &Input::Acked { by: by.clone(), mail: *role, decides_within: *decides_within })
        }
        crate::Input::Undeliverable { to, role } => (None, &Input::Undeliverable { to: to.clone(), mail: *role }),
        crate::Input::AgentGone => match of_task {
            Some(task) => {
                let effects = read_task(read, task)?.and_then(|task| tell_of_gone_owner(&task)).into_iter().collect();
                return Ok(crate::Transition { writes: Vec::new(), effects });
            }
            None => (None, &Input::CandidateGone),
        },
        crate::Input::Time => match of_task {
            Some(task) => (Some(task), &Input::TaskDue),
            None => (None, &Input::Time),
        },
        crate::Input::Signal(Signal::Handoff(award)) => return open_award(award, read, now),
        crate::Input::Signal(Signal::Task(signal)) => match (of_task, signal) {
            (Some(task), TaskSignal::CancelParts { after }) => return Ok(cancel_parts(task, *after, read)?),
            (Some(task), TaskSignal::ParentCanceled { parent }) => {
                of_parent = Input::CancelTask(Cancellation::WithParent(parent.clone()));
                (Some(task), &of_parent)
            }
            (None, _) => return Ok(crate::Transition::default()),
        },
        #[cfg(debug_assertions)]
        crate::Input::Signal(Signal::Probe(_)) => return Ok(crate::Transition::default()),
        // Inputs of other machines.
        crate::Input::Signal(Signal::Run(_) | Signal::Negotiation(_) | Signal::Plan(_))
        | crate::Input::Append { .. }
        | crate::Input::Routing(_)
        | crate::Input::Thread(_)
        | crate::Input::Negotiation(_)
        | crate::Input::Plan(_) => return Ok(crate::Transition::default()),
    };
    // A message names the task of its handoff: admission has refused any other. An event names the handoff alone.
    let task = match task.or(handoff.as_ref().map(|handoff| &handoff.task)) {
        Some(task) => read_task(read, task)?,
        None => None,
    };
    // An input about the task alone may end its open handoff.
    let handoff = match (handoff, &task) {
        (None, Some(task)) if may_end_open_handoff(input) => {
            task.open_handoff.map_or(Ok(None), |open| read_handoff(read, open))?
        }
        (handoff, Some(_) | None) => handoff,
    };
    let possible = possible_candidates(handoff.as_deref(), input);
    let gone: Vec<AgentId> = possible.iter().filter(|agent| read.is_gone(agent)).cloned().collect();
    let full: Vec<AgentId> = possible.iter().filter(|agent| read.is_full(agent)).cloned().collect();
    let unavailable = Unavailable { gone: &gone, full: &full };
    let snapshot = Snapshot { task: task.as_deref(), handoff: handoff.as_deref(), unavailable };
    match step(snapshot, input, now)? {
        Outcome::Moved(transition) => {
            let mut signals = words_to_run(handoff.as_deref(), &transition);
            signals.extend(words_to_plan(task.as_deref(), handoff.as_deref(), &transition, input));
            signals.extend(word_to_parts(task.as_deref(), &transition.task, input));
            signals.extend(words_to_threads(task.as_deref(), handoff.as_deref(), &transition, input));
            let mut moved = of_entities(*transition, handoff.as_deref(), input);
            moved.effects.extend(signals);
            moved.effects.extend(settled(handoff.as_deref(), input));
            Ok(moved)
        }
        Outcome::Unchanged => Ok(crate::Transition::default()),
    }
}

/// Whether an input about a task alone may end the open handoff of the task.
fn may_end_open_handoff(input: &Input) -> bool {
    match input {
        Input::TaskDue | Input::Silent | Input::Seize(_) | Input::CancelTask(_) => true,
        Input::Message { message, .. } => match message {
            Message::Recall { .. } => true,
            Message::Accept { .. }
            | Message::Reject { .. }
            | Message::Cancel
            | Message::Context { .. }
            | Message::Checkpoint { .. }
            | Message::Complete { .. }
            | Message::Input { .. }
            | Message::Status { .. } => false,
        },
        Input::Request(_)
        | Input::Create(_)
        | Input::Acked { .. }
        | Input::Undeliverable { .. }
        | Input::Time
        | Input::CandidateGone
        | Input::Look { .. }
        | Input::Redrive { .. } => false,
    }
}

/// The deliveries that the message of the input answers.
fn settled(handoff: Option<&Handoff>, input: &Input) -> Option<crate::Effect> {
    let (from, message) = match input {
        Input::Message { from, message, .. } => (from, message),
        Input::Request(_)
        | Input::Create(_)
        | Input::Acked { .. }
        | Input::Undeliverable { .. }
        | Input::Time
        | Input::TaskDue
        | Input::Silent
        | Input::Seize(_)
        | Input::CancelTask(_)
        | Input::CandidateGone
        | Input::Look { .. }
        | Input::Redrive { .. } => return None,
    };
    let answered = match message {
        Message::Accept { .. } | Message::Reject { .. } | Message::Complete { .. } => Answered::Handoff(handoff?.id),
        Message::Input { prompt, .. } => Answered::Message(*prompt),
        Message::Cancel
        | Message::Context { .. }
        | Message::Status { .. }
        | Message::Recall { .. }
        | Message::Checkpoint { .. } => return None,
    };
    Some(crate::Effect::Settle { of: from.clone(), answered })
}

/// The inputs to the run whose choice the handoff carries out: that it has begun, and that it has ended.
fn words_to_run(before: Option<&Handoff>, transition: &Transition) -> Vec<crate::Effect> {
    let Some(after) = &transition.handoff else { return Vec::new() };
    let Some(HandoffRef { run, choice }) = after.routing else { return Vec::new() };
    let send = |signal| crate::Effect::Send { to: EntityId::Run(run), signal: Signal::Run(signal) };
    let mut signals = Vec::new();
    let handoff = after.id;
    // A task's next handoff comes with the former one as `before`, whose state says nothing about it.
    let before = before.filter(|before| before.id == handoff);
    if before.is_none() {
        let (task, receiver) = (after.task.clone(), after.receiver.clone());
        signals.push(send(routing::RunSignal::HandoffBegan { choice, handoff, task, receiver }));
    }
    if after.state.is_final() && before.is_none_or(|before| !before.state.is_final()) {
        let owner = (after.state == State::Completed).then(|| transition.task.owner.clone());
        signals.push(send(routing::RunSignal::HandoffEnded { choice, handoff, owner }));
    }
    signals
}

/// Opens the handoff of an award under the mandate of its negotiation. A rule that forbids the handoff is an answer to
/// the negotiation, which fails by it.
fn open_award(award: &Award, read: &mut dyn Reader, now: Timestamp) -> Result<crate::Transition, StepError> {
    let Some(request) = mandated_request(award, read)? else { return Ok(crate::Transition::default()) };
    let task = award.task.clone();
    let input = crate::Input::Handoff { task, input: Input::Request(request) };
    match step_entity(&EntityId::Handoff(award.negotiation), &input, read, now) {
        // No agent waits for an answer to this input: an error would undo the award and leave the negotiation AWARDED
        // for ever.
        Err(StepError::Rejected(rejection)) => Ok(not_opened(award.negotiation, &rejection)),
        other => other,
    }
}

/// The answer to a negotiation whose handoff cannot be opened.
fn not_opened(negotiation: MessageId, rejection: &Rejection) -> crate::Transition {
    let signal = Signal::Negotiation(negotiation::NegotiationSignal::not_opened(negotiation, rejection));
    let to = EntityId::Negotiation(negotiation);
    crate::Transition { writes: Vec::new(), effects: vec![crate::Effect::Send { to, signal }] }
}

fn mandated_request(award: &Award, read: &mut dyn Reader) -> Result<Option<Request>, ReadError> {
    let Some(Entity::Negotiation(negotiation)) = read.entity(&EntityId::Negotiation(award.negotiation))? else {
        return Ok(None);
    };
    let (Some(mandate), Some((_, epoch))) = (&negotiation.mandate, &negotiation.task) else { return Ok(None) };
    Ok(Some(Request {
        id: award.negotiation,
        task: award.task.clone(),
        from: negotiation.requester.clone(),
        epoch: *epoch,
        receiver: negotiation.receiver.clone(),
        candidates: award.candidates.clone(),
        passed_over: Vec::new(),
        task_type: mandate.task_type.clone(),
        reason: mandate.reason,
        mode: mandate.mode,
        loan_timeout: mandate.loan_timeout,
        work: mandate.work,
        submitter: None,
        plan: None,
        routing: None,
        priority: mandate.priority,
        fairness_key: mandate.fairness_key.clone(),
        timeouts: mandate.timeouts,
        loop_limits: mandate.loop_limits,
        parent: None,
        conversation: mandate.conversation.clone(),
        wait_for_agent: false,
        thread: None,
        deliver_after: None,
        negotiation: Some(award.negotiation),
    }))
}

/// The inputs to the plan whose subtask the task carries out: that an agent has taken it, that no agent has, and that
/// the task has come back.
fn words_to_plan(
    before: Option<&Task>,
    handoff: Option<&Handoff>,
    transition: &Transition,
    input: &Input,
) -> Vec<crate::Effect> {
    let task = &transition.task;
    let Some(PlanRef { plan, subtask, .. }) = &task.plan else { return Vec::new() };
    let subtask = subtask.clone();
    let send = |signal| vec![crate::Effect::Send { to: EntityId::Plan(plan.clone()), signal: Signal::Plan(signal) }];
    let before_handoff = handoff;
    let ended = transition.handoff.as_ref().filter(|after| {
        let was_open = handoff.is_none_or(|before| before.id != after.id || !before.state.is_final());
        after.sender.is_coordinator() && after.state.is_final() && was_open
    });
    if let Some(Handoff { id, state, failure, .. }) = ended {
        let handoff = *id;
        if *state == State::Completed {
            let due = task.loans.first().and_then(|loan| loan.due);
            return send(plan::PlanSignal::Taken { subtask, handoff, owner: task.owner.clone(), due });
        }
        let (code, text) = failure
            .as_ref()
            .map_or((ErrorCode::NoCandidate, String::new()), |failure| (failure.code, failure.message.clone()));
        let was_held = |before: &Handoff| before.id == handoff && before.is_held();
        // A refusal or a cancellation says that the request has no agent; the end of the time says that it is still busy.
        let has_waited = code == ErrorCode::WholeTimeout && before_handoff.is_some_and(was_held);
        return send(plan::PlanSignal::NotTaken { subtask, handoff, code, text, has_waited });
    }
    // The task has come back to the coordinator, which had lent it.
    let Some(loan) = before.and_then(|before| before.loans.first()) else { return Vec::new() };
    // The task may have come back from a delegate of the agent, to the agent.
    if !task.loans.is_empty() || !task.owner.is_coordinator() {
        return Vec::new();
    }
    let handoff = loan.handoff;
    match input {
        Input::Message { message, .. } => match message {
            Message::Status { id, status, details, .. } => {
                let is_completed = *status == TaskStatus::Completed;
                send(plan::PlanSignal::Reported {
                    subtask,
                    handoff,
                    message: *id,
                    is_completed,
                    details: details.clone(),
                })
            }
            // The end of a loan, by its delegator or by a handoff back to it.
            Message::Recall { .. } | Message::Complete { .. } => {
                send(plan::PlanSignal::Recalled { subtask, handoff, is_abandoned: false })
            }
            // These end no loan.
            Message::Accept { .. }
            | Message::Reject { .. }
            | Message::Cancel
            | Message::Context { .. }
            | Message::Checkpoint { .. }
            | Message::Input { .. } => Vec::new(),
        },
        Input::TaskDue | Input::Silent | Input::Seize(_) | Input::CancelTask(_) => {
            send(plan::PlanSignal::Recalled { subtask, handoff, is_abandoned: *input == Input::Silent })
        }
        // These end no loan.
        Input::Request(_)
        | Input::Create(_)
        | Input::Acked { .. }
        | Input::Undeliverable { .. }
        | Input::Time
        | Input::CandidateGone
        | Input::Look { .. }
        | Input::Redrive { .. } => Vec::new(),
    }
}

fn read_task(read: &mut dyn Reader, id: &TaskId) -> Result<Option<Arc<Task>>, ReadError> {
    Ok(match read.entity(&EntityId::Task(id.clone()))? {
        Some(Entity::Task(task)) => Some(task),
        Some(_) | None => None,
    })
}

fn read_handoff(read: &mut dyn Reader, id: MessageId) -> Result<Option<Arc<Handoff>>, ReadError> {
    Ok(match read.entity(&EntityId::Handoff(id))? {
        Some(Entity::Handoff(handoff)) => Some(handoff),
        Some(_) | None => None,
    })
}

/// The agents that this step could ask, or whose offer it could withdraw. Each once, sorted.
fn possible_candidates(handoff: Option<&Handoff>, input: &Input) -> Vec<AgentId> {
    let open = handoff.filter(|handoff| !handoff.state.is_final());
    let next = open.map_or(&[][..], |handoff| &handoff.next_candidates);
    let again = open.into_iter().flat_map(|handoff| handoff.retries().map(|(agent, ..)| agent));
    let new: &[AgentId] = match input {
        Input::Request(request) => &request.candidates,
        Input::Redrive { candidates, .. } => candidates,
        Input::Message { message, .. } => match message {
            Message::Reject { suggestions, .. } => suggestions,
            // Other messages ask no further candidate.
            Message::Accept { .. }
            | Message::Cancel
            | Message::Context { .. }
            | Message::Checkpoint { .. }
            | Message::Complete { .. }
            | Message::Recall { .. }
            | Message::Input { .. }
            | Message::Status { .. } => return Vec::new(),
        },
        // Nor do acks, or inputs about the task alone.
        Input::Create(_)
        | Input::Acked { .. }
        | Input::TaskDue
        | Input::Silent
        | Input::Seize(_)
        | Input::CancelTask(_) => {
            return Vec::new();
        }
        Input::Look { found } => found,
        Input::Undeliverable { .. } | Input::Time | Input::CandidateGone => &[],
    };
    // The search that finds a gone candidate also finds what is left of the offers of former candidates.
    let current = handoff.filter(|_| *input == Input::CandidateGone).map(|handoff| &handoff.candidate);
    let mut possible: Vec<AgentId> = next.iter().chain(new).chain(again).chain(current).cloned().collect();
    possible.sort();
    possible.dedup();
    possible
}

/// The role of the input message's delivery for the handoff. `None`: the handoff does not wait for the ack.
fn role_of(input: &Input) -> Option<Acked> {
    let message_type = match input {
        Input::Request(_) => MessageType::HandoffRequest,
        Input::Create(_) => MessageType::TaskCreate,
        Input::Message { message, .. } => match message {
            Message::Accept { .. } => MessageType::HandoffAccept,
            Message::Reject { .. } => MessageType::HandoffReject,
            Message::Cancel => MessageType::HandoffCancel,
            Message::Context { .. } => MessageType::TaskContextTransfer,
            Message::Complete { .. } => MessageType::HandoffComplete,
            Message::Status { .. } => MessageType::TaskStatusUpdate,
            Message::Checkpoint { .. } => MessageType::ContextCheckpoint,
            Message::Recall { .. } => MessageType::TaskRecall,
            Message::Input { .. } => MessageType::TaskInput,
        },
        Input::Acked { .. }
        | Input::Undeliverable { .. }
        | Input::Time
        | Input::TaskDue
        | Input::Silent
        | Input::Seize(_)
        | Input::CancelTask(_)
        | Input::CandidateGone
        | Input::Look { .. }
        | Input::Redrive { .. } => return None,
    };
    rules(message_type).reports
}

fn of_entities(transition: Transition, before: Option<&Handoff>, input: &Input) -> crate::Transition {
    let Transition { task, handoff, effects } = transition;
    let handoff = handoff.map(Arc::new);
    let signal = handoff.as_deref().and_then(|handoff| word_to_negotiation(before, handoff));
    // The plan knows of the failed attempt, and decides about the next one.
    let is_of_plan = |effect: &Effect| task.plan.is_some() && matches!(effect, Effect::ParkRequest(_));
    let effects = effects.into_iter().filter(|effect| !is_to_coordinator(effect) && !is_of_plan(effect));
    let effects = effects.map(|effect| effect_on(effect, &task, handoff.as_deref(), input));
    let effects = effects.chain(signal).collect();
    let mut writes: Vec<Entity> = handoff.into_iter().map(Entity::Handoff).collect();
    writes.push(Entity::Task(Arc::new(task)));
    crate::Transition { writes, effects }
}

/// Whether the effect is mail for the coordinator. It has no mailbox: the step itself is its input.
fn is_to_coordinator(effect: &Effect) -> bool {
    matches!(effect, Effect::Deliver { to, .. } if to.is_coordinator())
}

/// Tells the negotiation of a handoff that a candidate has taken it, or that it has ended before that.
fn word_to_negotiation(before: Option<&Handoff>, handoff: &Handoff) -> Option<crate::Effect> {
    let to = EntityId::Negotiation(handoff.negotiation?);
    let is_open = |handoff: &Handoff| match handoff.state {
        State::Requested | State::Deciding => true,
        State::Accepted
        | State::ContextSent
        | State::Completed
        | State::Rejected
        | State::Failed
        | State::Cancelled => false,
    };
    if before.is_some_and(|before| before.id == handoff.id && !is_open(before)) || is_open(handoff) {
        return None;
    }
    // An agent that was passed over has heard nothing of the handoff.
    let asked = handoff.made_offers().map(|offer| offer.candidate.clone()).collect();
    let signal = match &handoff.failure {
        None => negotiation::NegotiationSignal::Taken { handoff: handoff.id, by: handoff.candidate.clone(), asked },
        Some(failure) => {
            let message = failure.message.clone();
            negotiation::NegotiationSignal::NotTaken { handoff: handoff.id, code: failure.code, message, asked }
        }
    };
    Some(crate::Effect::Send { to, signal: Signal::Negotiation(signal) })
}

fn effect_on(effect: Effect, task: &Task, handoff: Option<&Handoff>, input: &Input) -> crate::Effect {
    let moved = || handoff.expect("a step about a handoff writes it");
    let id = || EntityId::Handoff(moved().id);
    let (to, mail) = match effect {
        Effect::Deliver { to, mail } => (to, mail),
        Effect::Order(order) => return crate::Effect::Order(order),
        Effect::Withdraw { from } => return crate::Effect::Withdraw { entity: id(), from },
        Effect::WithdrawQuestion { question, from } => {
            return crate::Effect::WithdrawMessage { message: question, from };
        }
        Effect::ParkRequest(why) => {
            let handoff = moved();
            return crate::Effect::Park {
                entity: id(),
                to: handoff.candidate.clone(),
                reason: ParkReason::of_request(why),
                text: handoff.failure.as_ref().map_or_else(String::new, |failure| failure.message.clone()),
                attempts: offers_as_attempts(handoff),
            };
        }
    };
    let (mail, report_to) = match mail {
        Mail::ThisMessage => {
            let report_to = handoff.and_then(|handoff| Some((EntityId::Handoff(handoff.id), role_of(input)?)));
            (crate::Mail::ThisMessage, report_to)
        }
        Mail::RequestAgain => {
            // An operator may redrive a request after its own expiry.
            // A mandate's request is the broker's own message.
            let expires = handoff.is_some_and(|handoff| handoff.redrive_of.is_none() && !handoff.is_mandated());
            (crate::Mail::Opening { entity: id(), expires }, Some((id(), Acked::Request)))
        }
        Mail::Notice { notice, about } => {
            let task = Some((task.id.clone(), task.epoch));
            (crate::Mail::Notice { notice, about: Some(about), task }, None)
        }
        Mail::TaskNotice(notice) => {
            (crate::Mail::Notice { notice, about: None, task: Some((task.id.clone(), task.epoch)) }, None)
        }
    };
    // Messages of a handoff have its priority, any other mail the default (SPEC 4).
    let priority = handoff.map_or(Priority::default(), |handoff| handoff.priority);
    crate::Effect::Deliver { to, mail, priority, report_to }
}

//! The state machine of SPEC 3. `step` takes the situation, one input and the present time, and returns the new state
//! and the effects. Every pair of state and input is defined: a transition, no change, or a typed rejection.

use super::{
    Acked, Advice, Cause, Effect, Handoff, Input, Loan, Mail, Message, Notice, OfferOutcome, Outcome, PassedOver,
    Question, ReceiverView, Rejection, Request, Situation, State, Task, TaskStatus, Transition,
    creation::{new_handoff, new_task},
    moving::{Move, check_owner, loop_limit},
    parts::check_parent,
    prompts,
    seizure::take_from_owner,
};
use crate::{
    codes::ErrorCode,
    ids::{AgentId, MessageId},
    time::Timestamp,
};

/// Applies one input. See the module.
pub fn step(situation: Situation<'_>, input: &Input, now: Timestamp) -> Result<Outcome, Rejection> {
    let outcome = apply(situation, input, now)?;
    Ok(match (outcome, situation.task) {
        (Outcome::Moved(mut transition), Some(before)) => {
            prompts::withdraw_with_ownership(&mut transition.task, before);
            Outcome::Moved(transition)
        }
        (outcome, _) => outcome,
    })
}

fn apply(situation: Situation<'_>, input: &Input, now: Timestamp) -> Result<Outcome, Rejection> {
    match input {
        Input::Request(request) => request_handoff(situation, request, now).map(Outcome::moved),
        // A status and a recall are about the task, and need no handoff of it.
        Input::Message {
            from,
            epoch,
            message: Message::Status { id, status, progress, details, receivers, has_result, prompt },
        } => {
            let (epoch, status, progress, has_result) = (*epoch, *status, *progress, *has_result);
            let prompt = prompt.as_ref();
            let update =
                StatusUpdate { id: *id, from, epoch, status, progress, details, receivers, has_result, prompt };
            report_status(situation, &update, now).map(Outcome::moved)
        }
        Input::Message { from, epoch, message: Message::Input { prompt } } => {
            prompts::answer(situation, from, *epoch, *prompt, now).map(Outcome::moved)
        }
        Input::Message { from, message: Message::Recall { loan }, .. } => {
            recall_by_delegator(situation, from, *loan, now).map(Outcome::moved)
        }
        Input::Message { from, epoch, message } => {
            let task = situation.task.ok_or(Rejection::TaskUnknown)?;
            let handoff = situation.handoff.ok_or(Rejection::HandoffUnknown)?;
            take_message(Move::new(task, handoff, situation.gone, now), from, *epoch, message).map(Outcome::moved)
        }
        Input::Acked { by, mail } => Ok(with_both(situation, now, |moving| take_ack(moving, by, *mail))),
        Input::Undeliverable { to, mail } => Ok(with_both(situation, now, |moving| give_up(moving, to, *mail))),
        Input::Time => Ok(with_both(situation, now, pass_time)),
        Input::TaskDue => {
            let due = recall_overdue(situation, now).or_else(|| prompts::expire(situation, now));
            Ok(due.map_or(Outcome::Unchanged, Outcome::moved))
        }
        Input::Seize(seize) => take_from_owner(situation, seize, now).map(Outcome::moved),
        Input::CandidateGone => Ok(with_both(situation, now, candidate_gone)),
        Input::Redrive { id, candidates } => redrive(situation, *id, candidates, now).map(Outcome::moved),
    }
}

/// Runs an event of a handoff. An event of an unknown task or handoff changes nothing.
fn with_both(situation: Situation<'_>, now: Timestamp, act: impl FnOnce(Move) -> Option<Transition>) -> Outcome {
    let (Some(task), Some(handoff)) = (situation.task, situation.handoff) else { return Outcome::Unchanged };
    act(Move::new(task, handoff, situation.gone, now)).map_or(Outcome::Unchanged, Outcome::moved)
}

// ---------------------------------------------------------------------------------------------------------- request

/// Opens a handoff, and creates the task if it does not exist.
fn request_handoff(situation: Situation<'_>, request: &Request, now: Timestamp) -> Result<Transition, Rejection> {
    if situation.handoff.is_some() {
        // Repeats get their receipt before the step. Only a redriven handoff has an id that no message has, and a
        // request must not take it over.
        return Err(Rejection::HandoffExists);
    }
    let task = match situation.task {
        Some(task) => {
            // The epoch goes before the state of the task: only a stale message is recorded (SPEC 3).
            check_owner(task, &request.from, request.epoch)?;
            check_free(task)?;
            check_parent(task, request)?;
            task.clone()
        }
        // An unknown task begins at epoch 1.
        None if request.epoch > 1 => return Err(Rejection::EpochAhead { claimed: request.epoch, current: 1 }),
        None => new_task(request, now),
    };
    let passed_over = &request.passed_over;
    open(task, new_handoff(request, now), passed_over, situation.gone, Mail::ThisMessage, now).map(Move::done)
}

/// Opens a handoff and offers it to the first candidate. Without one, the handoff ends at once if agents were passed
/// over.
fn open(
    mut task: Task,
    handoff: Handoff,
    passed_over: &[PassedOver],
    gone: &[AgentId],
    request: Mail,
    now: Timestamp,
) -> Result<Move, Rejection> {
    // An operator decides about each handoff of the coordinator, so the loop guard leaves them alone.
    if !handoff.sender.is_coordinator() {
        check_loop_over_all(&task)?;
    }
    let has_none = handoff.next_candidates.iter().all(|candidate| *candidate == handoff.sender);
    task.open_handoff = Some(handoff.id);
    task.updated_at = now;
    let mut moving = Move { handoff, task, effects: Vec::new(), gone: gone.to_vec(), now };
    moving.pass_over(passed_over);
    if has_none {
        let last = moving.handoff.offers.last().ok_or(Rejection::NoCandidate)?;
        moving.handoff.candidate = last.candidate.clone();
        moving.end_without_candidate();
        return Ok(moving);
    }
    // The candidates include agents other than the sender, so the pair limit has excluded them.
    let Some(candidate) = moving.next_candidate() else {
        return Err(loop_limit("handoffs_per_pair_max", moving.task.loop_limits.handoffs_per_pair_max, &moving.task));
    };
    moving.offer_to(candidate, request);
    Ok(moving)
}

/// Opens a new handoff with the request of a failed one, on the same terms. A failed handoff itself never changes.
fn redrive(
    situation: Situation<'_>,
    id: MessageId,
    candidates: &[AgentId],
    now: Timestamp,
) -> Result<Transition, Rejection> {
    let task = situation.task.ok_or(Rejection::TaskUnknown)?;
    let former = situation.handoff.ok_or(Rejection::HandoffUnknown)?;
    // The handoff has moved the task, so its request has nothing left to do.
    if former.state == State::Completed {
        return Err(Rejection::Final { state: former.state });
    }
    // The request stands as its sender has made it: it is void if the ownership has moved since.
    check_owner(task, &former.sender, former.epoch)?;
    check_free(task)?;
    let request = Request {
        id,
        task: former.task.clone(),
        from: former.sender.clone(),
        epoch: former.epoch,
        receiver: former.receiver.clone(),
        candidates: candidates.to_vec(),
        passed_over: Vec::new(),
        task_type: former.task_type.clone(),
        reason: former.reason,
        mode: former.mode,
        loan_timeout: former.loan_timeout,
        submitter: former.submitter.clone(),
        // The choice has failed with the former handoff.
        routing: None,
        priority: former.priority,
        timeouts: former.timeouts,
        loop_limits: task.loop_limits,
        parent: None,
    };
    let handoff = Handoff { redrive_of: Some(former.id), ..new_handoff(&request, now) };
    let mut moving = open(task.clone(), handoff, &[], situation.gone, Mail::RequestAgain, now)?;
    let text = format!("the request of handoff {} was a dead letter and is tried again", former.id);
    moving.notify(former.sender.clone(), ErrorCode::HandoffRedriven, &text, Advice::None);
    Ok(moving.done())
}

/// Checks that the task can have a new handoff: it has not ended, and no handoff of it is open.
fn check_free(task: &Task) -> Result<(), Rejection> {
    if task.status.is_final() {
        return Err(Rejection::TaskFinal { status: task.status });
    }
    match task.open_handoff {
        Some(handoff) => Err(Rejection::HandoffOpen { handoff }),
        None => Ok(()),
    }
}

/// The loop guard's limit on all handoffs of a task. [`Move::can_be_asked`] has the limit along one pair.
fn check_loop_over_all(task: &Task) -> Result<(), Rejection> {
    let limit = task.loop_limits.handoffs_max;
    if task.hops.len() >= limit as usize { Err(loop_limit("handoffs_max", limit, task)) } else { Ok(()) }
}

// --------------------------------------------------------------------------------------------------------- messages

/// Applies a message of one side, after the checks that its side requires.
fn take_message(mut moving: Move, from: &AgentId, epoch: u64, message: &Message) -> Result<Transition, Rejection> {
    match message {
        Message::Accept { wanted_sections, estimate } => {
            moving.check_candidate(from, epoch)?;
            moving.handoff.estimate = *estimate;
            accept(moving, wanted_sections)
        }
        Message::Reject { reason, text, suggestions, retry_after, passed_over } => {
            moving.check_candidate(from, epoch)?;
            let retry_at = moving.retry_at(*retry_after);
            reject(moving, (*reason, text, retry_at), suggestions, passed_over)
        }
        Message::Complete { success, digest, details } => {
            moving.check_candidate(from, epoch)?;
            complete(moving, *success, *digest, details)
        }
        Message::Cancel => {
            moving.check_sender(from, epoch)?;
            cancel(moving)
        }
        Message::Context { digest } => {
            moving.check_sender(from, epoch)?;
            take_context(moving, *digest)
        }
        Message::Status { .. } | Message::Recall { .. } | Message::Input { .. } => {
            unreachable!("a message about the task has its own function")
        }
    }
}

/// REQUESTED or DECIDING to ACCEPTED: the sender has to send the context next.
fn accept(mut moving: Move, wanted_sections: &[String]) -> Result<Transition, Rejection> {
    match moving.handoff.state {
        // An accept in REQUESTED shows that the request was delivered: only its ack is still on the way.
        State::Requested | State::Deciding => {
            moving.settle_offer(OfferOutcome::Accepted);
            moving.handoff.wanted_sections = wanted_sections.to_vec();
            let context = moving.handoff.timeouts.context;
            moving.enter_seen_as(State::Accepted, Cause::Accepted, Some(context), ReceiverView::HandoffAccepted);
            moving.deliver_to_sender();
            moving.answer_for_coordinator();
            Ok(moving.done())
        }
        State::Accepted | State::ContextSent => Err(moving.wrong_state()),
        State::Completed | State::Rejected | State::Failed | State::Cancelled => Err(moving.ended()),
    }
}

/// Offers the request to the next candidate, or ends in REJECTED and parks the request.
fn reject(
    mut moving: Move,
    (reason, text, retry_at): (i32, &str, Option<Timestamp>),
    suggestions: &[AgentId],
    passed_over: &[PassedOver],
) -> Result<Transition, Rejection> {
    match moving.handoff.state {
        State::Requested | State::Deciding => {
            if let Some(offer) = moving.handoff.offers.last_mut() {
                offer.reject_reason = reason;
                text.clone_into(&mut offer.reason_text);
                offer.retry_at = retry_at;
            }
            moving.settle_offer(OfferOutcome::Rejected);
            // The suggestions go behind the candidates of the request.
            moving.handoff.next_candidates.extend_from_slice(suggestions);
            moving.pass_over(passed_over);
            moving.deliver_to_sender();
            if !moving.go_on(Cause::Rejected) {
                moving.end_without_candidate();
            }
            Ok(moving.done())
        }
        State::Accepted | State::ContextSent => Err(moving.wrong_state()),
        State::Completed | State::Rejected | State::Failed | State::Cancelled => Err(moving.ended()),
    }
}

/// Any open state to CANCELLED.
fn cancel(mut moving: Move) -> Result<Transition, Rejection> {
    match moving.handoff.state {
        State::Requested | State::Deciding | State::Accepted | State::ContextSent => {
            let to = moving.handoff.candidate.clone();
            moving.end(
                State::Cancelled,
                Cause::Cancelled,
                ErrorCode::HandoffCancelled,
                "the sender cancelled the handoff",
            );
            // The cancel itself tells the candidate (SPEC 3), so no notice does.
            moving.effects.push(Effect::Deliver { to, mail: Mail::ThisMessage });
            Ok(moving.done())
        }
        State::Completed | State::Rejected | State::Failed | State::Cancelled => Err(moving.ended()),
    }
}

/// ACCEPTED to CONTEXT_SENT: the candidate has to complete next.
fn take_context(mut moving: Move, digest: [u8; 32]) -> Result<Transition, Rejection> {
    match moving.handoff.state {
        State::Accepted => {
            moving.handoff.context_digest = Some(digest);
            let complete = moving.handoff.time_to_complete();
            moving.enter(State::ContextSent, Cause::ContextStored, Some(complete));
            let to = moving.handoff.candidate.clone();
            moving.effects.push(Effect::Deliver { to, mail: Mail::ThisMessage });
            Ok(moving.done())
        }
        State::Requested | State::Deciding | State::ContextSent => Err(moving.wrong_state()),
        State::Completed | State::Rejected | State::Failed | State::Cancelled => Err(moving.ended()),
    }
}

/// CONTEXT_SENT to COMPLETED, which moves the ownership, or to FAILED.
fn complete(mut moving: Move, success: bool, digest: Option<[u8; 32]>, details: &str) -> Result<Transition, Rejection> {
    match moving.handoff.state {
        State::ContextSent => {
            let expected = moving.handoff.context_digest.expect("a stored context has its digest");
            // A candidate that took over another context would work on other data than the sender handed over.
            if success && digest != Some(expected) {
                return Err(Rejection::DigestMismatch { expected });
            }
            moving.deliver_to_sender();
            if success {
                // The delivery above and the move are in one commit, or in none (SPEC 12, law 5).
                moving.move_ownership();
            } else {
                let text = format!("the candidate could not take over: {details}");
                moving.end(State::Failed, Cause::CompletedFailure, ErrorCode::TakeoverFailed, &text);
                moving.tell_sender();
                moving.tell_candidate();
                moving.park_for_coordinator();
            }
            Ok(moving.done())
        }
        State::Requested | State::Deciding | State::Accepted => Err(moving.wrong_state()),
        State::Completed | State::Rejected | State::Failed | State::Cancelled => Err(moving.ended()),
    }
}

// ----------------------------------------------------------------------------------------------------------- status

/// The fields of a status message.
struct StatusUpdate<'a> {
    id: MessageId,
    from: &'a AgentId,
    epoch: u64,
    status: TaskStatus,
    progress: Option<f64>,
    details: &'a str,
    receivers: &'a [AgentId],
    has_result: bool,
    prompt: Option<&'a Question>,
}

/// Applies a status: an extension by the candidate, or a report of the owner.
fn report_status(situation: Situation<'_>, update: &StatusUpdate<'_>, now: Timestamp) -> Result<Transition, Rejection> {
    let task = situation.task.ok_or(Rejection::TaskUnknown)?;
    // A status of the current candidate is an extension, and does not change the task's status.
    if let Some(handoff) = situation.handoff
        && *update.from == handoff.candidate
        && *update.from != task.owner
        && update.status == TaskStatus::InProgress
        && !handoff.state.is_final()
    {
        return candidate_is_busy(Move::new(task, handoff, situation.gone, now), update);
    }
    check_owner(task, update.from, update.epoch)?;
    if task.status.is_final() {
        return Err(Rejection::TaskFinal { status: task.status });
    }
    let mut task = task.clone();
    task.updated_at = now;
    task.progress = update.progress;
    update.details.clone_into(&mut task.details);
    // The owner has something new to say, so its question no longer stands.
    prompts::withdraw(&mut task);
    if update.status.is_final() {
        return finish(task, update);
    }
    task.status = update.status;
    let mut effects = Vec::new();
    if let Some(question) = update.prompt {
        prompts::ask(&mut task, update.id, question, now);
        effects.push(Effect::Deliver { to: question.asked.clone(), mail: Mail::ThisMessage });
    }
    // The agent that is asked gets the message once.
    let is_asked = |agent: &AgentId| update.prompt.is_some_and(|question| question.asked == *agent);
    let others: Vec<_> = update.receivers.iter().filter(|receiver| !is_asked(receiver)).cloned().collect();
    tell_receivers(&mut effects, &others);
    let handoff = situation.handoff.map(|handoff| {
        let mut moving = Move::new(&task, handoff, situation.gone, now);
        // The owner reports that it still prepares the context, which extends that step. After the deadline, the report
        // counts for the task alone.
        if handoff.state == State::Accepted && update.status == TaskStatus::InProgress && moving.not_overdue() {
            let context = handoff.timeouts.context;
            moving.extend(context);
        }
        moving.handoff
    });
    Ok(Transition { task, handoff, effects })
}

/// Extends the step of an open handoff: the candidate reports IN_PROGRESS, and is not the owner.
fn candidate_is_busy(mut moving: Move, update: &StatusUpdate<'_>) -> Result<Transition, Rejection> {
    moving.check_candidate(update.from, update.epoch)?;
    let step = match moving.handoff.state {
        State::Deciding => moving.handoff.timeouts.accept,
        State::ContextSent => moving.handoff.time_to_complete(),
        // REQUESTED has no timeout of its own to restart, and in ACCEPTED the sender is on turn (SPEC 3).
        State::Requested | State::Accepted => return Err(moving.wrong_state()),
        State::Completed | State::Rejected | State::Failed | State::Cancelled => return Err(moving.ended()),
    };
    moving.extend(step);
    tell_receivers(&mut moving.effects, update.receivers);
    Ok(moving.done())
}

/// Ends the task with a final status, or ends its innermost loan: then the task goes back to the delegator.
fn finish(mut task: Task, update: &StatusUpdate<'_>) -> Result<Transition, Rejection> {
    // An open handoff has to end first, or its completion would move an ended task.
    if let Some(handoff) = task.open_handoff {
        return Err(Rejection::HandoffOpen { handoff });
    }
    let mut effects = Vec::new();
    if update.has_result {
        task.result = Some(update.id);
    }
    // The final status of a delegate ends the loan and not the task (SPEC 3).
    if let Some(Loan { delegator, .. }) = task.loans.pop() {
        task.owner = delegator.clone();
        task.epoch += 1;
        task.status = TaskStatus::InProgress;
        effects.push(Effect::Deliver { to: delegator.clone(), mail: Mail::ThisMessage });
        // The delegator gets the status already; a second copy would be a repeat.
        let others: Vec<_> = update.receivers.iter().filter(|receiver| **receiver != delegator).cloned().collect();
        tell_receivers(&mut effects, &others);
    } else {
        task.status = update.status;
        tell_receivers(&mut effects, update.receivers);
    }
    Ok(Transition { task, handoff: None, effects })
}

// ----------------------------------------------------------------------------------------------------------- recall

/// Recalls a loan for its delegator. The message may be of any epoch: a delegator does not see how often its delegate
/// has lent the task on.
fn recall_by_delegator(
    situation: Situation<'_>,
    from: &AgentId,
    handoff: MessageId,
    now: Timestamp,
) -> Result<Transition, Rejection> {
    let task = situation.task.ok_or(Rejection::TaskUnknown)?;
    if task.status.is_final() {
        return Err(Rejection::TaskFinal { status: task.status });
    }
    let loan = task.loans.iter().position(|loan| loan.handoff == handoff).ok_or(Rejection::NotLent { handoff })?;
    if task.loans[loan].delegator != *from {
        return Err(Rejection::NotDelegator);
    }
    Ok(recall(situation, task, loan, &format!("{from} recalled the task"), now))
}

/// Recalls the outermost loan whose timeout is over. Nothing changes before that.
fn recall_overdue(situation: Situation<'_>, now: Timestamp) -> Option<Transition> {
    let task = situation.task?;
    let is_due = |loan: &Loan| loan.due.is_some_and(|due| due <= now);
    let loan = task.loans.iter().position(is_due)?;
    let text = "the loan's time was up, and the task was recalled";
    let mut transition = recall(situation, task, loan, text, now);
    // A delegator that recalls gets a receipt; here it learns of the recall from the notice alone.
    let Loan { delegator, handoff, .. } = &task.loans[loan];
    transition.effects.push(recalled(delegator, *handoff, text, Advice::KeepTask));
    Some(transition)
}

/// Returns the task to the delegator of a loan. This loan and all loans within it end, and so does the open handoff.
fn recall(situation: Situation<'_>, task: &Task, loan: usize, text: &str, now: Timestamp) -> Transition {
    let (mut task, mut effects) = (task.clone(), Vec::new());
    let handoff = situation.handoff.filter(|handoff| !handoff.state.is_final()).map(|open| {
        let mut moving = Move::new(&task, open, situation.gone, now);
        moving.end(State::Cancelled, Cause::Recalled, ErrorCode::TaskRecalled, text);
        moving.tell_candidate();
        task = moving.task;
        effects = moving.effects;
        moving.handoff
    });
    let ended = task.loans.split_off(loan);
    let Loan { delegator, handoff: lent_by, .. } = ended[0].clone();
    // The delegators of the inner loans no longer get the task back, and the owner loses it now.
    // An agent may occur in several loans and is told once. The delegator that gets the task is not told to drop it.
    let mut told = vec![delegator.clone()];
    for former in ended[1..].iter().map(|inner| &inner.delegator).chain([&task.owner]) {
        if !told.contains(former) {
            effects.push(recalled(former, lent_by, text, Advice::DropTask));
            told.push(former.clone());
        }
    }
    task.owner = delegator;
    task.epoch += 1;
    task.status = TaskStatus::InProgress;
    task.updated_at = now;
    Transition { task, handoff, effects }
}

fn recalled(to: &AgentId, about: MessageId, text: &str, advice: Advice) -> Effect {
    let notice = Notice { code: ErrorCode::TaskRecalled, message: text.to_owned(), advice, is_critical: false };
    Effect::Deliver { to: to.clone(), mail: Mail::Notice { notice, about } }
}

fn tell_receivers(effects: &mut Vec<Effect>, receivers: &[AgentId]) {
    effects.extend(receivers.iter().map(|to| Effect::Deliver { to: to.clone(), mail: Mail::ThisMessage }));
}

// ----------------------------------------------------------------------------------------- deliveries and deadlines

/// Applies an ack: of the request or the context by the candidate, of the completion by the sender. Any other ack
/// changes nothing.
fn take_ack(mut moving: Move, by: &AgentId, mail: Acked) -> Option<Transition> {
    let from_candidate = *by == moving.handoff.candidate;
    let from_sender = *by == moving.handoff.sender;
    match (mail, moving.handoff.state) {
        // The guards leave out the acks of former candidates: their offers have ended.
        (Acked::Request, State::Requested) if from_candidate && !moving.handoff.waits_to_retry() => {
            let accept = moving.handoff.timeouts.accept;
            moving.enter(State::Deciding, Cause::Delivered, Some(accept));
        }
        // A second ack must not add a second step (SPEC 12, law 4).
        (Acked::Context, State::ContextSent) if from_candidate && !moving.handoff.context_delivered => {
            moving.handoff.context_delivered = true;
            moving.record(Cause::Delivered);
        }
        (Acked::Completion, State::Completed) if from_sender && !moving.handoff.let_go => {
            moving.handoff.let_go = true;
            moving.record(Cause::Delivered);
        }
        (
            Acked::Request | Acked::Context | Acked::Completion,
            State::Requested
            | State::Deciding
            | State::Accepted
            | State::ContextSent
            | State::Completed
            | State::Rejected
            | State::Failed
            | State::Cancelled,
        ) => return None,
    }
    Some(moving.done())
}

/// Applies the dead letter of a delivery: the next candidate is asked, or the handoff fails.
fn give_up(mut moving: Move, to: &AgentId, mail: Acked) -> Option<Transition> {
    let to_candidate = *to == moving.handoff.candidate;
    match (mail, moving.handoff.state) {
        // The copy of a former candidate may become a dead letter late: its offer has ended already.
        (Acked::Request, State::Requested | State::Deciding) if to_candidate && !moving.handoff.waits_to_retry() => {
            moving.settle_offer(OfferOutcome::Undeliverable);
            moving.next_or_fail(Cause::Undeliverable, ErrorCode::NoCandidate, "the request could not be delivered");
        }
        (Acked::Context, State::ContextSent) if to_candidate => {
            let text = "the context could not be delivered";
            moving.end(State::Failed, Cause::Undeliverable, ErrorCode::TakeoverFailed, text);
            moving.tell_sender();
            moving.tell_candidate();
            moving.park_for_coordinator();
        }
        (
            Acked::Request | Acked::Context | Acked::Completion,
            State::Requested
            | State::Deciding
            | State::Accepted
            | State::ContextSent
            | State::Completed
            | State::Rejected
            | State::Failed
            | State::Cancelled,
        ) => return None,
    }
    Some(moving.done())
}

/// Offers an unacked request to a present candidate, because a gone candidate may never ack it. Without another present
/// candidate the request stays.
fn candidate_gone(mut moving: Move) -> Option<Transition> {
    // An overdue handoff is left to its timer, which ends it.
    if moving.handoff.state != State::Requested || !moving.not_overdue() || !moving.has_other_candidate() {
        return None;
    }
    let text = "you were gone, and the request was offered to another agent";
    moving.settle_offer(OfferOutcome::Gone);
    moving.next_or_fail(Cause::CandidateGone, ErrorCode::OfferWithdrawn, text);
    Some(moving.done())
}

/// Applies an overdue deadline. Nothing changes before the deadline.
fn pass_time(mut moving: Move) -> Option<Transition> {
    if moving.handoff.state.is_final() || moving.not_overdue() {
        return None;
    }
    // The deadline of the whole handoff wins if both have passed.
    if moving.handoff.whole_deadline <= moving.now {
        moving.fail_in_time(Cause::WholeTimeout, ErrorCode::WholeTimeout, "the time for the whole handoff was up");
        return Some(moving.done());
    }
    match moving.handoff.state {
        State::Deciding => {
            moving.settle_offer(OfferOutcome::TimedOut);
            moving.next_or_fail(Cause::AcceptTimeout, ErrorCode::AcceptTimeout, "the candidate did not decide in time");
        }
        State::Accepted => {
            let text = "the sender did not send the context in time";
            moving.fail_in_time(Cause::ContextTimeout, ErrorCode::ContextTimeout, text);
        }
        State::ContextSent => {
            let text = "the candidate did not complete in time";
            moving.fail_in_time(Cause::CompleteTimeout, ErrorCode::CompleteTimeout, text);
        }
        // The time has come to ask the candidate once more.
        State::Requested if moving.handoff.waits_to_retry() => {
            let candidate = moving.handoff.candidate.clone();
            moving.offer_to(candidate, Mail::RequestAgain);
        }
        // An undelivered request has the whole timeout: its candidate may be away and come back.
        State::Requested | State::Completed | State::Rejected | State::Failed | State::Cancelled => return None,
    }
    Some(moving.done())
}

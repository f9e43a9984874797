//! The state machine of SPEC 3. `step` takes the snapshot, one input and the present time, and returns the new state
//! and the effects. Every pair of state and input is defined: a transition, no change, or a typed rejection.

use std::time::Duration;

use super::{
    Advice, Cause, Effect, Handoff, Input, Loan, Mail, Message, NewTask, Notice, OfferOutcome, Outcome, PassedOver,
    Prompt, Question, ReceiverView, Rejection, Request, Snapshot, State, Task, TaskStatus, Transition, Unavailable,
    Waiting,
    builder::{Next, TransitionBuilder, check_owner, end_open_handoff, loop_limit},
    cancellation::cancel_task,
    creation::{new_handoff, new_task, requested_task},
    events::{candidate_gone, give_up, look_again, pass_time, take_ack},
    parts::check_lasting,
    prompts,
    seizure::take_from_owner,
    silence,
};

use crate::{
    codes::ErrorCode,
    ids::{AgentId, MessageId},
    time::Timestamp,
};

/// Applies one input. See the module.
pub fn step(snapshot: Snapshot<'_>, input: &Input, now: Timestamp) -> Result<Outcome, Rejection> {
    let outcome = apply(snapshot, input, now)?;
    Ok(match (outcome, snapshot.task) {
        (Outcome::Moved(mut transition), Some(before)) => {
            prompts::withdraw_with_ownership(&mut transition.task, before, now);
            let ended =
                before.open_prompt().filter(|prompt| prompts::has_ended_unanswered(&transition.task, prompt.id));
            if let Some(Prompt { id, asked, .. }) = ended {
                transition.effects.push(Effect::WithdrawQuestion { question: *id, from: asked.clone() });
            }
            Outcome::Moved(transition)
        }
        (outcome, _) => outcome,
    })
}

fn apply(snapshot: Snapshot<'_>, input: &Input, now: Timestamp) -> Result<Outcome, Rejection> {
    match input {
        Input::Request(request) => request_handoff(snapshot, request, now).map(Outcome::moved),
        Input::Create(new) => create(snapshot, new, now).map(Outcome::moved),
        // A status and a recall are about the task, and need no handoff of it.
        Input::Message {
            from,
            epoch,
            message:
                Message::Status { id, status, progress, details, receivers, has_result, prompt, keep_parts: _, extend_by },
        } => {
            let (epoch, status, progress, has_result) = (*epoch, *status, *progress, *has_result);
            let extend_by = *extend_by;
            let prompt = prompt.as_ref();
            let update = StatusUpdate {
                id: *id,
                from,
                epoch,
                status,
                progress,
                details,
                receivers,
                has_result,
                prompt,
                extend_by,
            };
            report_status(snapshot, &update, now).map(Outcome::moved)
        }
        Input::Message { from, epoch, message: Message::Input { id, prompt } } => {
            prompts::answer(snapshot, from, *epoch, (*id, *prompt), now).map(Outcome::moved)
        }
        Input::Message { from, epoch, message: Message::Checkpoint { .. } } => {
            store_context(snapshot, from, *epoch, now).map(Outcome::moved)
        }
        Input::Message { from, message: Message::Recall { loan }, .. } => {
            recall_by_delegator(snapshot, from, *loan, now).map(Outcome::moved)
        }
        Input::Message { from, epoch, message } => {
            let task = snapshot.task.ok_or(Rejection::TaskUnknown)?;
            let handoff = snapshot.handoff.ok_or(Rejection::HandoffUnknown)?;
            take_message(
                TransitionBuilder::new(task.clone(), handoff.clone(), snapshot.unavailable, now),
                from,
                *epoch,
                message,
            )
            .map(Outcome::moved)
        }
        Input::Acked { by, mail, decides_within } => {
            Ok(with_both(snapshot, now, |builder| take_ack(builder, by, *mail, *decides_within)))
        }
        Input::Undeliverable { to, mail } => Ok(with_both(snapshot, now, |builder| give_up(builder, to, *mail))),
        Input::Time => Ok(with_both(snapshot, now, pass_time)),
        Input::TaskDue => {
            let due = recall_overdue(snapshot, now).or_else(|| prompts::expire(snapshot, now));
            Ok(due.map_or(Outcome::Unchanged, Outcome::moved))
        }
        Input::Silent => Ok(silence::abandon(snapshot, now).map_or(Outcome::Unchanged, Outcome::moved)),
        Input::Seize(seize) => take_from_owner(snapshot, seize, now).map(Outcome::moved),
        Input::CancelTask(why) => Ok(cancel_task(snapshot, why, now).map_or(Outcome::Unchanged, Outcome::moved)),
        Input::CandidateGone => Ok(with_both(snapshot, now, candidate_gone)),
        Input::Look { found } => Ok(with_both(snapshot, now, |builder| look_again(builder, found))),
        Input::Redrive { id, candidates } => redrive(snapshot, *id, candidates, now).map(Outcome::moved),
    }
}

/// Runs an event of a handoff. An event of an unknown task or handoff changes nothing.
fn with_both(
    snapshot: Snapshot<'_>,
    now: Timestamp,
    act: impl FnOnce(TransitionBuilder) -> Option<Transition>,
) -> Outcome {
    let (Some(task), Some(handoff)) = (snapshot.task, snapshot.handoff) else { return Outcome::Unchanged };
    act(TransitionBuilder::new(task.clone(), handoff.clone(), snapshot.unavailable, now))
        .map_or(Outcome::Unchanged, Outcome::moved)
}

// ---------------------------------------------------------------------------------------------------------- request

/// Creates a task without a handoff.
fn create(snapshot: Snapshot<'_>, new: &NewTask, now: Timestamp) -> Result<Transition, Rejection> {
    if snapshot.task.is_some() {
        return Err(Rejection::TaskExists);
    }
    if new.epoch > 1 {
        return Err(Rejection::EpochAhead { claimed: new.epoch, current: 1 });
    }
    Ok(Transition { task: new_task(new.clone(), now), handoff: None, effects: Vec::new() })
}

/// Opens a handoff, and creates the task if it does not exist.
fn request_handoff(snapshot: Snapshot<'_>, request: &Request, now: Timestamp) -> Result<Transition, Rejection> {
    if snapshot.handoff.is_some() {
        // Repeats get their receipt before the step. Only a redriven handoff has an id that no message has, and a
        // request must not take it over.
        return Err(Rejection::HandoffExists);
    }
    let task = match snapshot.task {
        Some(task) => {
            // The epoch goes before the state of the task: only a stale message is recorded (SPEC 3).
            check_owner(task, &request.from, request.epoch)?;
            check_free(task)?;
            check_lasting(task, request)?;
            let asked = (request.loop_limits.handoffs_max, request.loop_limits.handoffs_per_pair_max);
            Task { loop_limits: task.loop_limits.lowered_to(asked), ..task.clone() }
        }
        // An unknown task begins at epoch 1.
        None if request.epoch > 1 => return Err(Rejection::EpochAhead { claimed: request.epoch, current: 1 }),
        None => requested_task(request, now),
    };
    let passed_over = &request.passed_over;
    // A mandated request is made by the broker, in a step that no message causes.
    let mail = if request.is_mandated() { Mail::RequestAgain } else { Mail::ThisMessage };
    let mail = (mail, request.deliver_after);
    open(task, new_handoff(request, now), passed_over, snapshot.unavailable, mail, now).map(TransitionBuilder::done)
}

/// Opens a handoff and offers it to the first candidate. Without one, the handoff ends at once if agents were passed
/// over.
fn open(
    mut task: Task,
    handoff: Handoff,
    passed_over: &[PassedOver],
    unavailable: Unavailable<'_>,
    (request, deliver_after): (Mail, Option<Timestamp>),
    now: Timestamp,
) -> Result<TransitionBuilder, Rejection> {
    // An operator decides about each handoff of the coordinator, so the loop guard leaves them alone.
    if !handoff.sender.is_coordinator() {
        check_loop_over_all(&task)?;
    }
    let has_none = handoff.next_candidates.iter().all(|candidate| *candidate == handoff.sender);
    task.open_handoff = Some(handoff.id);
    task.updated_at = now;
    let mut builder = TransitionBuilder::new(task, handoff, unavailable, now);
    builder.pass_over(passed_over);
    if has_none && !builder.handoff.wait_for_agent {
        let last = builder.handoff.offers.last().ok_or(Rejection::NoCandidate)?;
        builder.handoff.candidate = last.candidate.clone();
        builder.end_without_candidate();
        return Ok(builder);
    }
    // The candidates include agents other than the sender, so the pair limit has excluded them.
    let is_none_free = !has_none && !builder.handoff.next_candidates.iter().any(|agent| builder.can_be_asked(agent));
    if is_none_free {
        return Err(loop_limit("handoffs_per_pair_max", builder.task.loop_limits.handoffs_per_pair_max, &builder.task));
    }
    let next = match deliver_after.filter(|at| *at > now) {
        Some(at) => Next::Hold(Waiting::DeliverAfter, Some(at)),
        None => builder.next(),
    };
    match next {
        Next::Ask(candidate) => builder.offer_to(candidate, request),
        Next::Hold(waiting, until) => {
            // The request is the first step of a handoff, whether a candidate has it or not.
            builder.record(Cause::Requested);
            builder.hold(waiting, until);
        }
        Next::None => return Err(Rejection::NoCandidate),
    }
    Ok(builder)
}

/// Opens a new handoff with the request of a failed one, on the same terms. A failed handoff itself never changes.
fn redrive(
    snapshot: Snapshot<'_>,
    id: MessageId,
    candidates: &[AgentId],
    now: Timestamp,
) -> Result<Transition, Rejection> {
    let task = snapshot.task.ok_or(Rejection::TaskUnknown)?;
    let former = snapshot.handoff.ok_or(Rejection::HandoffUnknown)?;
    // The handoff has moved the task, so its request has nothing left to do.
    if former.state == State::Completed {
        return Err(Rejection::Final { state: former.state });
    }
    // The request stands as its sender has made it: it is void if the ownership has moved since.
    check_owner(task, &former.sender, former.epoch)?;
    // The plan decides about a further attempt.
    if task.plan.is_some() {
        return Err(Rejection::Final { state: former.state });
    }
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
        work: former.work,
        submitter: former.submitter.clone(),
        plan: None,
        // The choice has failed with the former handoff.
        routing: None,
        priority: former.priority,
        fairness_key: former.fairness_key.clone(),
        timeouts: former.timeouts,
        loop_limits: task.loop_limits,
        parent: None,
        conversation: None,
        wait_for_agent: former.wait_for_agent,
        // A further delegation, whose end is told as that of the former one was.
        thread: former.thread.clone(),
        deliver_after: None,
        negotiation: former.negotiation,
    };
    let handoff = Handoff { redrive_of: Some(former.id), ..new_handoff(&request, now) };
    let mut builder = open(task.clone(), handoff, &[], snapshot.unavailable, (Mail::RequestAgain, None), now)?;
    let text = format!("the request of handoff {} was a dead letter and is tried again", former.id);
    builder.notify(former.sender.clone(), ErrorCode::HandoffRedriven, &text, Advice::None);
    Ok(builder.done())
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

/// The loop guard's limit on all handoffs of a task. [`TransitionBuilder::can_be_asked`] has the limit along one pair.
fn check_loop_over_all(task: &Task) -> Result<(), Rejection> {
    let limit = task.loop_limits.handoffs_max;
    if task.hops.len() >= limit as usize { Err(loop_limit("handoffs_max", limit, task)) } else { Ok(()) }
}

// --------------------------------------------------------------------------------------------------------- messages

/// Applies a message of one side, after the checks that its side requires.
fn take_message(
    mut builder: TransitionBuilder,
    from: &AgentId,
    epoch: u64,
    message: &Message,
) -> Result<Transition, Rejection> {
    match message {
        Message::Accept { wanted_sections, estimate } => {
            builder.check_candidate(from, epoch)?;
            builder.handoff.estimate = *estimate;
            accept(builder, wanted_sections)
        }
        Message::Reject { reason, text, suggestions, retry_after, passed_over } => {
            builder.check_candidate(from, epoch)?;
            reject(builder, (*reason, text, *retry_after), suggestions, passed_over)
        }
        Message::Complete { success, digest, details } => {
            builder.check_candidate(from, epoch)?;
            complete(builder, *success, *digest, details)
        }
        Message::Cancel => {
            // No deadline applies: an overdue handoff is open until its timer has fired, and its owner may still end it.
            builder.check_sender(from, epoch)?;
            cancel(builder)
        }
        Message::Context { digest } => {
            builder.check_sender(from, epoch)?;
            builder.check_in_time()?;
            take_context(builder, *digest)
        }
        Message::Status { .. } | Message::Recall { .. } | Message::Input { .. } | Message::Checkpoint { .. } => {
            unreachable!("a message about the task has its own function")
        }
    }
}

/// REQUESTED or DECIDING to ACCEPTED: the sender has to send the context next.
fn accept(mut builder: TransitionBuilder, wanted_sections: &[String]) -> Result<Transition, Rejection> {
    match builder.handoff.state {
        // An accept in REQUESTED shows that the request was delivered: only its ack is still on the way.
        State::Requested | State::Deciding => {
            builder.settle_offer(OfferOutcome::Accepted);
            builder.handoff.wanted_sections = wanted_sections.to_vec();
            let context = builder.handoff.timeouts.context;
            builder.enter_seen_as(State::Accepted, Cause::Accepted, Some(context), ReceiverView::HandoffAccepted);
            builder.deliver_to_sender();
            builder.answer_for_coordinator();
            Ok(builder.done())
        }
        State::Accepted | State::ContextSent => Err(builder.wrong_state()),
        State::Completed | State::Rejected | State::Failed | State::Cancelled => Err(builder.ended()),
    }
}

/// Offers the request to the next candidate, or ends in REJECTED and parks the request.
fn reject(
    mut builder: TransitionBuilder,
    (reason, text, retry_after): (i32, &str, Option<Duration>),
    suggestions: &[AgentId],
    passed_over: &[PassedOver],
) -> Result<Transition, Rejection> {
    match builder.handoff.state {
        State::Requested | State::Deciding => {
            builder.rest(reason, text, retry_after);
            builder.settle_offer(OfferOutcome::Rejected);
            // The suggestions go behind the candidates of the request.
            builder.handoff.next_candidates.extend_from_slice(suggestions);
            builder.pass_over(passed_over);
            builder.deliver_to_sender();
            if !builder.go_on(Cause::Rejected) {
                builder.end_without_candidate();
            }
            Ok(builder.done())
        }
        State::Accepted | State::ContextSent => Err(builder.wrong_state()),
        State::Completed | State::Rejected | State::Failed | State::Cancelled => Err(builder.ended()),
    }
}

/// Any open state to CANCELLED.
fn cancel(mut builder: TransitionBuilder) -> Result<Transition, Rejection> {
    match builder.handoff.state {
        State::Requested | State::Deciding | State::Accepted | State::ContextSent => {
            let to = builder.handoff.candidate.clone();
            let is_held = builder.handoff.is_held();
            builder.end(
                State::Cancelled,
                Cause::Cancelled,
                ErrorCode::HandoffCancelled,
                "the sender cancelled the handoff",
            );
            // The cancel itself tells the candidate (SPEC 3), so no notice does.
            if !is_held {
                builder.effects.push(Effect::Deliver { to, mail: Mail::ThisMessage });
            }
            Ok(builder.done())
        }
        State::Completed | State::Rejected | State::Failed | State::Cancelled => Err(builder.ended()),
    }
}

/// ACCEPTED to CONTEXT_SENT: the candidate has to complete next.
fn take_context(mut builder: TransitionBuilder, digest: [u8; 32]) -> Result<Transition, Rejection> {
    match builder.handoff.state {
        State::Accepted => {
            builder.handoff.context_digest = Some(digest);
            let complete = builder.handoff.time_to_complete();
            builder.enter(State::ContextSent, Cause::ContextStored, Some(complete));
            let to = builder.handoff.candidate.clone();
            builder.effects.push(Effect::Deliver { to, mail: Mail::ThisMessage });
            Ok(builder.done())
        }
        State::Requested | State::Deciding | State::ContextSent => Err(builder.wrong_state()),
        State::Completed | State::Rejected | State::Failed | State::Cancelled => Err(builder.ended()),
    }
}

/// CONTEXT_SENT to COMPLETED, which moves the ownership, or to FAILED.
fn complete(
    mut builder: TransitionBuilder,
    success: bool,
    digest: Option<[u8; 32]>,
    details: &str,
) -> Result<Transition, Rejection> {
    match builder.handoff.state {
        State::ContextSent => {
            let expected = builder.handoff.context_digest.expect("a stored context has its digest");
            // A candidate that took over another context would work on other data than the sender handed over.
            if success && digest != Some(expected) {
                return Err(Rejection::DigestMismatch { expected });
            }
            builder.deliver_to_sender();
            if success {
                // The delivery above and the move are in one commit, or in none (SPEC 12, law 5).
                builder.move_ownership();
            } else {
                let text = format!("the candidate could not take over: {details}");
                builder.end(State::Failed, Cause::CompletedFailure, ErrorCode::TakeoverFailed, &text);
                builder.tell_sender();
                builder.tell_candidate();
                builder.park_for_coordinator();
            }
            Ok(builder.done())
        }
        State::Requested | State::Deciding | State::Accepted => Err(builder.wrong_state()),
        State::Completed | State::Rejected | State::Failed | State::Cancelled => Err(builder.ended()),
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
    extend_by: Option<Duration>,
}

/// Applies a status: an extension by the candidate, or a report of the owner.
fn report_status(snapshot: Snapshot<'_>, update: &StatusUpdate<'_>, now: Timestamp) -> Result<Transition, Rejection> {
    let task = snapshot.task.ok_or(Rejection::TaskUnknown)?;
    // A status of the current candidate is an extension, and does not change the task's status.
    if let Some(handoff) = snapshot.handoff
        && *update.from == handoff.candidate
        && *update.from != task.owner
        && update.status == TaskStatus::InProgress
        && !handoff.state.is_final()
    {
        return candidate_is_busy(
            TransitionBuilder::new(task.clone(), handoff.clone(), snapshot.unavailable, now),
            update,
        );
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
    prompts::withdraw(&mut task, now);
    if update.status.is_final() {
        return finish(task, update);
    }
    if let Some(span) = update.extend_by {
        extend_loan(&mut task, span, now)?;
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
    let Some(handoff) = snapshot.handoff else { return Ok(Transition { task, handoff: None, effects }) };
    let mut builder = TransitionBuilder::new(task, handoff.clone(), snapshot.unavailable, now);
    builder.effects = effects;
    // The owner reports that it still prepares the context, which extends that step. After the deadline, the report
    // counts for the task alone.
    if handoff.state == State::Accepted && update.status == TaskStatus::InProgress && builder.not_overdue() {
        builder.extend(handoff.timeouts.context);
    }
    Ok(builder.done())
}

/// Moves the due time of the innermost loan, which is the owner's, to this span from now, and never over the limit of its
/// request.
fn extend_loan(task: &mut Task, span: Duration, now: Timestamp) -> Result<(), Rejection> {
    let loan = task.loans.last_mut().ok_or(Rejection::LoanFixed)?;
    let (Some(due), Some(longest)) = (loan.due, loan.due_max) else { return Err(Rejection::LoanFixed) };
    loan.due = Some(due.max(now.plus(span).min(longest)));
    Ok(())
}

/// The owner stores its context without a handoff. The task itself does not change: its versions are beside it.
fn store_context(snapshot: Snapshot<'_>, from: &AgentId, epoch: u64, now: Timestamp) -> Result<Transition, Rejection> {
    let task = snapshot.task.ok_or(Rejection::TaskUnknown)?;
    check_owner(task, from, epoch)?;
    if task.status.is_final() {
        return Err(Rejection::TaskFinal { status: task.status });
    }
    Ok(Transition { task: Task { updated_at: now, ..task.clone() }, handoff: None, effects: Vec::new() })
}

/// Extends the step of an open handoff: the candidate reports IN_PROGRESS, and is not the owner.
fn candidate_is_busy(mut builder: TransitionBuilder, update: &StatusUpdate<'_>) -> Result<Transition, Rejection> {
    builder.check_candidate(update.from, update.epoch)?;
    let step = match builder.handoff.state {
        State::Deciding => builder.handoff.time_to_decide(),
        State::ContextSent => builder.handoff.time_to_complete(),
        // REQUESTED has no timeout of its own to restart, and in ACCEPTED the sender is on turn (SPEC 3).
        State::Requested | State::Accepted => return Err(builder.wrong_state()),
        State::Completed | State::Rejected | State::Failed | State::Cancelled => return Err(builder.ended()),
    };
    builder.extend(step);
    tell_receivers(&mut builder.effects, update.receivers);
    Ok(builder.done())
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
        task.transfer = None;
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
    snapshot: Snapshot<'_>,
    from: &AgentId,
    handoff: MessageId,
    now: Timestamp,
) -> Result<Transition, Rejection> {
    let task = snapshot.task.ok_or(Rejection::TaskUnknown)?;
    if task.status.is_final() {
        return Err(Rejection::TaskFinal { status: task.status });
    }
    let loan = task.loans.iter().position(|loan| loan.handoff == handoff).ok_or(Rejection::NotLent { handoff })?;
    if task.loans[loan].delegator != *from {
        return Err(Rejection::NotDelegator);
    }
    Ok(recall(snapshot, task, loan, (ErrorCode::TaskRecalled, &format!("{from} recalled the task")), now))
}

/// Recalls the outermost loan whose timeout is over. Nothing changes before that.
fn recall_overdue(snapshot: Snapshot<'_>, now: Timestamp) -> Option<Transition> {
    // Until an answer the clock of the loans stands still.
    let task = snapshot.task.filter(|task| !task.waits_for_answer())?;
    let is_due = |loan: &Loan| loan.due.is_some_and(|due| due <= now);
    let loan = task.loans.iter().position(is_due)?;
    let told = (ErrorCode::TaskRecalled, "the loan's time was up, and the task was recalled");
    let mut transition = recall(snapshot, task, loan, told, now);
    // A delegator that recalls gets a receipt; here it learns of the recall from the notice alone.
    let Loan { delegator, handoff, .. } = &task.loans[loan];
    transition.effects.push(told_of(delegator, *handoff, told, Advice::KeepTask));
    Some(transition)
}

/// Returns the task to the delegator of a loan. This loan and all loans within it end, and so does the open handoff.
/// The agents that lose it are told with this code and text.
pub(super) fn recall(
    snapshot: Snapshot<'_>,
    task: &Task,
    loan: usize,
    (code, text): (ErrorCode, &str),
    now: Timestamp,
) -> Transition {
    let Transition { mut task, handoff, mut effects } =
        end_open_handoff(snapshot, task, Cause::Recalled, (code, text), now);
    let ended = task.loans.split_off(loan);
    let Loan { delegator, handoff: lent_by, .. } = ended[0].clone();
    // The delegators of the inner loans no longer get the task back, and the owner loses it now.
    // An agent may occur in several loans and is told once. The delegator that gets the task is not told to drop it.
    let mut told = vec![delegator.clone()];
    for former in ended[1..].iter().map(|inner| &inner.delegator).chain([&task.owner]) {
        if !told.contains(former) {
            effects.push(told_of(former, lent_by, (code, text), Advice::DropTask));
            told.push(former.clone());
        }
    }
    task.owner = delegator;
    task.transfer = None;
    task.epoch += 1;
    task.status = TaskStatus::InProgress;
    task.updated_at = now;
    Transition { task, handoff, effects }
}

/// The notice about a task that its owner has lost.
pub(super) fn told_of(to: &AgentId, about: MessageId, (code, text): (ErrorCode, &str), advice: Advice) -> Effect {
    let notice = Notice { code, message: text.to_owned(), advice, is_critical: false };
    Effect::Deliver { to: to.clone(), mail: Mail::Notice { notice, about } }
}

fn tell_receivers(effects: &mut Vec<Effect>, receivers: &[AgentId]) {
    effects.extend(receivers.iter().map(|to| Effect::Deliver { to: to.clone(), mail: Mail::ThisMessage }));
}

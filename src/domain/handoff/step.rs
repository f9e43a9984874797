//! The state machine of SPEC 3: `step` takes what is known, one input and the present time, and says what is next and
//! what is to be done. No pair of state and input is undefined: it is a transition, no change, or a typed rejection.

use super::{
    Cause, EXTENSIONS_KEPT_BELOW, Failure, Handoff, Hop, LoopLimits, Mode, OFFERS_MAX, Offer, OfferOutcome, Priority,
    ReceiverView, Rejection, STEPS_MAX, State, Step, Task, TaskStatus, Timeouts,
};
use crate::{
    codes::ErrorCode,
    ids::{AgentId, MessageId, TaskId},
    time::Timestamp,
};

/// What is known when an input arrives: the task, and the handoff that the input is about.
#[derive(Debug, Clone, Copy, Default)]
pub struct Situation<'a> {
    /// The task, if it is known.
    pub task: Option<&'a Task>,
    /// The handoff, if the input names one and it is known.
    pub handoff: Option<&'a Handoff>,
}

/// Everything that can happen to a task and its handoffs.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// Somebody wants to hand the task over.
    Request(Request),
    /// An agent says something about it.
    Message {
        /// Who.
        from: AgentId,
        /// The epoch that it believes in.
        epoch: u64,
        /// What.
        message: Message,
    },
    /// An agent acked a delivery.
    Acked {
        /// Who.
        by: AgentId,
        /// What was delivered.
        mail: Acked,
    },
    /// A delivery became a dead letter.
    Undeliverable {
        /// Who did not get it.
        to: AgentId,
        /// What was to be delivered.
        mail: Acked,
    },
    /// Time has passed. Whatever is overdue happens; nothing else does.
    Time,
}

/// A handoff request, with what the pipeline found out about it.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// Its id, and that of the handoff.
    pub id: MessageId,
    /// The task.
    pub task: TaskId,
    /// Who asks.
    pub from: AgentId,
    /// The epoch that it believes in.
    pub epoch: u64,
    /// The receiver as it was named.
    pub receiver: String,
    /// Registered agents to ask, best first.
    pub candidates: Vec<AgentId>,
    /// The kind of work.
    pub task_type: String,
    /// Why, as the request's number for it.
    pub reason: i32,
    /// Given away or lent.
    pub mode: Mode,
    /// The priority.
    pub priority: Priority,
    /// How long each step may take, within the operator's bounds.
    pub timeouts: Timeouts,
    /// The loop guard's limits, within the operator's. Only taken over by a new task.
    pub loop_limits: LoopLimits,
}

/// What agents say about a task or a handoff.
#[derive(Debug, Clone, PartialEq)]
pub enum Message {
    /// The candidate takes it.
    Accept {
        /// Sections it wants; empty means all.
        wanted_sections: Vec<String>,
    },
    /// The candidate does not take it.
    Reject {
        /// Why, as the reject's number for it.
        reason: i32,
        /// In words.
        text: String,
        /// Registered agents that it thinks better fitted.
        suggestions: Vec<AgentId>,
    },
    /// The owner takes it back.
    Cancel,
    /// The owner hands the context over.
    Context {
        /// The digest over all sections.
        digest: [u8; 32],
    },
    /// The candidate has taken over, or could not.
    Complete {
        /// Whether it has.
        success: bool,
        /// The digest of the context it took over.
        digest: Option<[u8; 32]>,
        /// In words.
        details: String,
    },
    /// How the task is doing.
    Status {
        /// The new status.
        status: TaskStatus,
        /// From 0 to 1, if known.
        progress: Option<f64>,
        /// In words.
        details: String,
        /// Registered agents that are named to be told.
        receivers: Vec<AgentId>,
    },
}

/// The deliveries whose fate matters to a handoff.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Acked {
    /// The request, at a candidate.
    Request,
    /// The context, at the candidate.
    Context,
    /// The completion, at the sender.
    Completion,
}

/// What a step comes to, if it is not rejected.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// Something is different now.
    Moved(Box<Transition>),
    /// Nothing is: a repeat, or a timer before its time.
    Unchanged,
}

impl Outcome {
    fn moved(transition: Transition) -> Self {
        Self::Moved(Box::new(transition))
    }
}

/// What is next and what is to be done; all of it in one commit, or none.
#[derive(Debug, Clone, PartialEq)]
pub struct Transition {
    /// The task after it.
    pub task: Task,
    /// The handoff after it, if the input was about one.
    pub handoff: Option<Handoff>,
    /// What is to be done, in this order.
    pub effects: Vec<Effect>,
}

/// Something to be done.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Put this into an agent's mailbox.
    Deliver {
        /// Whose.
        to: AgentId,
        /// What.
        mail: Mail,
    },
}

/// What is put into a mailbox.
#[derive(Debug, Clone, PartialEq)]
pub enum Mail {
    /// The envelope that is the input of this step.
    ThisMessage,
    /// The handoff's request again, for another candidate.
    RequestAgain,
    /// The broker's own `ErrorNotification`.
    Notice(Notice),
}

/// What the broker itself tells an agent.
#[derive(Debug, Clone, PartialEq)]
pub struct Notice {
    /// The stable code.
    pub code: ErrorCode,
    /// In words.
    pub message: String,
    /// The agent is to drop what it received and not to work on the task (compensation). Otherwise it keeps the task.
    pub drop_task: bool,
}

/// Takes one input. See the module.
pub fn step(situation: Situation<'_>, input: &Input, now: Timestamp) -> Result<Outcome, Rejection> {
    match input {
        Input::Request(request) => request_handoff(situation, request, now).map(Outcome::moved),
        Input::Message { from, epoch, message: Message::Status { status, progress, details, receivers } } => {
            let update = StatusUpdate { from, epoch: *epoch, status: *status, progress: *progress, details, receivers };
            report_status(situation, &update, now).map(Outcome::moved)
        }
        Input::Message { from, epoch, message } => {
            let task = situation.task.ok_or(Rejection::TaskUnknown)?;
            let handoff = situation.handoff.ok_or(Rejection::HandoffUnknown)?;
            take_message(Move::new(task, handoff, now), from, *epoch, message).map(Outcome::moved)
        }
        Input::Acked { by, mail } => Ok(with_both(situation, now, |moving| take_ack(moving, by, *mail))),
        Input::Undeliverable { to, mail } => Ok(with_both(situation, now, |moving| give_up(moving, to, *mail))),
        Input::Time => Ok(with_both(situation, now, pass_time)),
    }
}

fn with_both(situation: Situation<'_>, now: Timestamp, act: impl FnOnce(Move) -> Option<Transition>) -> Outcome {
    let (Some(task), Some(handoff)) = (situation.task, situation.handoff) else { return Outcome::Unchanged };
    act(Move::new(task, handoff, now)).map_or(Outcome::Unchanged, Outcome::moved)
}

// ---------------------------------------------------------------------------------------------------------- request

fn request_handoff(situation: Situation<'_>, request: &Request, now: Timestamp) -> Result<Transition, Rejection> {
    if situation.handoff.is_some() {
        return Err(Rejection::HandoffExists);
    }
    let mut task = match situation.task {
        Some(task) => {
            check_owner(task, &request.from, request.epoch)?;
            check_free(task)?;
            task.clone()
        }
        None if request.epoch > 1 => return Err(Rejection::EpochAhead { claimed: request.epoch, current: 1 }),
        None => new_task(request, now),
    };
    check_loop_over_all(&task)?;
    if request.candidates.iter().all(|candidate| *candidate == request.from) {
        return Err(Rejection::NoCandidate);
    }
    task.open_handoff = Some(request.id);
    task.updated_at = now;
    let mut moving = Move { handoff: new_handoff(request, now), task, effects: Vec::new(), now };
    let Some(candidate) = moving.next_candidate() else {
        return Err(loop_limit("handoffs_per_pair_max", moving.task.loop_limits.handoffs_per_pair_max, &moving.task));
    };
    moving.offer_to(candidate, Mail::ThisMessage);
    Ok(moving.done())
}

fn new_task(request: &Request, now: Timestamp) -> Task {
    Task {
        id: request.task.clone(),
        task_type: request.task_type.clone(),
        owner: request.from.clone(),
        epoch: 1,
        status: TaskStatus::Created,
        progress: None,
        details: String::new(),
        open_handoff: None,
        hops: Vec::new(),
        delegators: Vec::new(),
        loop_limits: request.loop_limits,
        created_at: now,
        updated_at: now,
    }
}

fn new_handoff(request: &Request, now: Timestamp) -> Handoff {
    Handoff {
        id: request.id,
        task: request.task.clone(),
        epoch: request.epoch,
        sender: request.from.clone(),
        receiver: request.receiver.clone(),
        candidate: request.from.clone(), // replaced by the first offer, in the same step
        next_candidates: request.candidates.clone(),
        offers: Vec::new(),
        state: State::Requested,
        mode: request.mode,
        priority: request.priority,
        task_type: request.task_type.clone(),
        reason: request.reason,
        timeouts: request.timeouts,
        step_deadline: None,
        whole_deadline: now.plus(request.timeouts.whole),
        wanted_sections: Vec::new(),
        context_digest: None,
        context_delivered: false,
        let_go: false,
        failure: None,
        steps: Vec::new(),
        created_at: now,
        updated_at: now,
    }
}

fn check_free(task: &Task) -> Result<(), Rejection> {
    if task.status.is_final() {
        return Err(Rejection::TaskFinal { status: task.status });
    }
    match task.open_handoff {
        Some(handoff) => Err(Rejection::HandoffOpen { handoff }),
        None => Ok(()),
    }
}

fn check_loop_over_all(task: &Task) -> Result<(), Rejection> {
    let limit = task.loop_limits.handoffs_max;
    if task.hops.len() >= limit as usize { Err(loop_limit("handoffs_max", limit, task)) } else { Ok(()) }
}

fn loop_limit(limit: &'static str, value: u32, task: &Task) -> Rejection {
    Rejection::LoopLimit { limit, value, hops: task.hops.clone() }
}

/// The owner's messages are fenced: one of an older epoch is refused as such, also when it comes from a former owner.
fn check_owner(task: &Task, from: &AgentId, epoch: u64) -> Result<(), Rejection> {
    let was_owner = || task.hops.iter().any(|hop| hop.sender == *from || hop.receiver == *from);
    if *from != task.owner && !was_owner() {
        return Err(Rejection::NotOwner { owner: task.owner.clone() });
    }
    if epoch < task.epoch {
        return Err(Rejection::StaleEpoch { claimed: epoch, current: task.epoch });
    }
    if *from != task.owner {
        return Err(Rejection::NotOwner { owner: task.owner.clone() });
    }
    if epoch > task.epoch {
        return Err(Rejection::EpochAhead { claimed: epoch, current: task.epoch });
    }
    Ok(())
}

// --------------------------------------------------------------------------------------------------------- messages

fn take_message(moving: Move, from: &AgentId, epoch: u64, message: &Message) -> Result<Transition, Rejection> {
    match message {
        Message::Accept { wanted_sections } => {
            moving.check_candidate(from, epoch)?;
            accept(moving, wanted_sections)
        }
        Message::Reject { reason, text, suggestions } => {
            moving.check_candidate(from, epoch)?;
            reject(moving, *reason, text, suggestions)
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
        Message::Status { .. } => unreachable!("a status is taken by report_status"),
    }
}

fn accept(mut moving: Move, wanted_sections: &[String]) -> Result<Transition, Rejection> {
    match moving.handoff.state {
        // An accept in REQUESTED shows that the request was delivered: its ack is only still under way.
        State::Requested | State::Deciding => {
            moving.settle_offer(OfferOutcome::Accepted);
            moving.handoff.wanted_sections = wanted_sections.to_vec();
            let context = moving.handoff.timeouts.context;
            moving.enter(State::Accepted, Cause::Accepted, Some(context));
            moving.deliver_to_sender();
            Ok(moving.done())
        }
        State::Accepted | State::ContextSent => Err(moving.wrong_state()),
        State::Completed | State::Rejected | State::Failed | State::Cancelled => Err(moving.ended()),
    }
}

fn reject(mut moving: Move, reason: i32, text: &str, suggestions: &[AgentId]) -> Result<Transition, Rejection> {
    match moving.handoff.state {
        State::Requested | State::Deciding => {
            if let Some(offer) = moving.handoff.offers.last_mut() {
                offer.reject_reason = reason;
                text.clone_into(&mut offer.reason_text);
            }
            moving.settle_offer(OfferOutcome::Rejected);
            moving.handoff.next_candidates.extend_from_slice(suggestions);
            moving.deliver_to_sender();
            if let Some(candidate) = moving.next_candidate() {
                moving.record(Cause::Rejected);
                moving.offer_to(candidate, Mail::RequestAgain);
            } else {
                moving.end(State::Rejected, Cause::Rejected, ErrorCode::NoCandidate, "no candidate took the handoff");
                moving.tell_sender();
            }
            Ok(moving.done())
        }
        State::Accepted | State::ContextSent => Err(moving.wrong_state()),
        State::Completed | State::Rejected | State::Failed | State::Cancelled => Err(moving.ended()),
    }
}

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
            moving.effects.push(Effect::Deliver { to, mail: Mail::ThisMessage });
            Ok(moving.done())
        }
        State::Completed | State::Rejected | State::Failed | State::Cancelled => Err(moving.ended()),
    }
}

fn take_context(mut moving: Move, digest: [u8; 32]) -> Result<Transition, Rejection> {
    match moving.handoff.state {
        State::Accepted => {
            moving.handoff.context_digest = Some(digest);
            let complete = moving.handoff.timeouts.complete;
            moving.enter(State::ContextSent, Cause::ContextStored, Some(complete));
            let to = moving.handoff.candidate.clone();
            moving.effects.push(Effect::Deliver { to, mail: Mail::ThisMessage });
            Ok(moving.done())
        }
        State::Requested | State::Deciding | State::ContextSent => Err(moving.wrong_state()),
        State::Completed | State::Rejected | State::Failed | State::Cancelled => Err(moving.ended()),
    }
}

fn complete(mut moving: Move, success: bool, digest: Option<[u8; 32]>, details: &str) -> Result<Transition, Rejection> {
    match moving.handoff.state {
        State::ContextSent => {
            let expected = moving.handoff.context_digest.expect("a stored context has its digest");
            if success && digest != Some(expected) {
                return Err(Rejection::DigestMismatch { expected });
            }
            moving.deliver_to_sender();
            if success {
                moving.move_ownership();
            } else {
                let text = format!("the candidate could not take over: {details}");
                moving.end(State::Failed, Cause::CompletedFailure, ErrorCode::TakeoverFailed, &text);
                moving.tell_sender();
                moving.tell_candidate();
            }
            Ok(moving.done())
        }
        State::Requested | State::Deciding | State::Accepted => Err(moving.wrong_state()),
        State::Completed | State::Rejected | State::Failed | State::Cancelled => Err(moving.ended()),
    }
}

// ----------------------------------------------------------------------------------------------------------- status

struct StatusUpdate<'a> {
    from: &'a AgentId,
    epoch: u64,
    status: TaskStatus,
    progress: Option<f64>,
    details: &'a str,
    receivers: &'a [AgentId],
}

fn report_status(situation: Situation<'_>, update: &StatusUpdate<'_>, now: Timestamp) -> Result<Transition, Rejection> {
    let task = situation.task.ok_or(Rejection::TaskUnknown)?;
    if let Some(handoff) = situation.handoff
        && *update.from == handoff.candidate
        && *update.from != task.owner
        && update.status == TaskStatus::InProgress
        && !handoff.state.is_final()
    {
        return candidate_is_busy(Move::new(task, handoff, now), update);
    }
    check_owner(task, update.from, update.epoch)?;
    if task.status.is_final() {
        return Err(Rejection::TaskFinal { status: task.status });
    }
    let mut task = task.clone();
    task.updated_at = now;
    task.progress = update.progress;
    update.details.clone_into(&mut task.details);
    if update.status.is_final() {
        return finish(task, update);
    }
    task.status = update.status;
    let mut effects = Vec::new();
    tell_receivers(&mut effects, update.receivers);
    let handoff = situation.handoff.map(|handoff| {
        let mut moving = Move::new(&task, handoff, now);
        if handoff.state == State::Accepted && update.status == TaskStatus::InProgress && moving.not_overdue() {
            let context = handoff.timeouts.context;
            moving.extend(context);
        }
        moving.handoff
    });
    Ok(Transition { task, handoff, effects })
}

/// IN_PROGRESS from the candidate of an open handoff: it is not the owner, and only asks for more time.
fn candidate_is_busy(mut moving: Move, update: &StatusUpdate<'_>) -> Result<Transition, Rejection> {
    moving.check_candidate(update.from, update.epoch)?;
    let step = match moving.handoff.state {
        State::Deciding => moving.handoff.timeouts.accept,
        State::ContextSent => moving.handoff.timeouts.complete,
        State::Requested | State::Accepted => return Err(moving.wrong_state()),
        State::Completed | State::Rejected | State::Failed | State::Cancelled => return Err(moving.ended()),
    };
    moving.extend(step);
    tell_receivers(&mut moving.effects, update.receivers);
    Ok(moving.done())
}

/// A final status ends the task, or the innermost delegation: then the task goes back to the one who lent it.
fn finish(mut task: Task, update: &StatusUpdate<'_>) -> Result<Transition, Rejection> {
    if let Some(handoff) = task.open_handoff {
        return Err(Rejection::HandoffOpen { handoff });
    }
    let mut effects = Vec::new();
    if let Some(delegator) = task.delegators.pop() {
        task.owner = delegator.clone();
        task.epoch += 1;
        task.status = TaskStatus::InProgress;
        effects.push(Effect::Deliver { to: delegator.clone(), mail: Mail::ThisMessage });
        let others: Vec<_> = update.receivers.iter().filter(|receiver| **receiver != delegator).cloned().collect();
        tell_receivers(&mut effects, &others);
    } else {
        task.status = update.status;
        tell_receivers(&mut effects, update.receivers);
    }
    Ok(Transition { task, handoff: None, effects })
}

fn tell_receivers(effects: &mut Vec<Effect>, receivers: &[AgentId]) {
    effects.extend(receivers.iter().map(|to| Effect::Deliver { to: to.clone(), mail: Mail::ThisMessage }));
}

// ----------------------------------------------------------------------------------------- deliveries and deadlines

fn take_ack(mut moving: Move, by: &AgentId, mail: Acked) -> Option<Transition> {
    let from_candidate = *by == moving.handoff.candidate;
    let from_sender = *by == moving.handoff.sender;
    match (mail, moving.handoff.state) {
        (Acked::Request, State::Requested) if from_candidate => {
            let accept = moving.handoff.timeouts.accept;
            moving.enter(State::Deciding, Cause::Delivered, Some(accept));
        }
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

fn give_up(mut moving: Move, to: &AgentId, mail: Acked) -> Option<Transition> {
    let to_candidate = *to == moving.handoff.candidate;
    match (mail, moving.handoff.state) {
        (Acked::Request, State::Requested | State::Deciding) if to_candidate => {
            moving.settle_offer(OfferOutcome::Undeliverable);
            moving.next_or_fail(Cause::Undeliverable, ErrorCode::NoCandidate, "the request could not be delivered");
        }
        (Acked::Context, State::ContextSent) if to_candidate => {
            let text = "the context could not be delivered";
            moving.end(State::Failed, Cause::Undeliverable, ErrorCode::TakeoverFailed, text);
            moving.tell_sender();
            moving.tell_candidate();
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

fn pass_time(mut moving: Move) -> Option<Transition> {
    if moving.handoff.state.is_final() || moving.not_overdue() {
        return None;
    }
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
        // A request that is still on its way has the whole time: its candidate may be away and come back.
        State::Requested | State::Completed | State::Rejected | State::Failed | State::Cancelled => return None,
    }
    Some(moving.done())
}

// ------------------------------------------------------------------------------------------------- the work in hand

/// A transition while it is being made.
struct Move {
    task: Task,
    handoff: Handoff,
    effects: Vec<Effect>,
    now: Timestamp,
}

impl Move {
    fn new(task: &Task, handoff: &Handoff, now: Timestamp) -> Self {
        Self { task: task.clone(), handoff: handoff.clone(), effects: Vec::new(), now }
    }

    fn done(self) -> Transition {
        debug_assert!(self.handoff.state.is_final() || self.task.open_handoff == Some(self.handoff.id));
        debug_assert!(self.handoff.state.is_final() || self.task.owner == self.handoff.sender);
        Transition { task: self.task, handoff: Some(self.handoff), effects: self.effects }
    }

    // Checks.

    fn not_overdue(&self) -> bool {
        self.handoff.next_deadline().is_none_or(|deadline| self.now < deadline)
    }

    fn check_candidate(&self, from: &AgentId, epoch: u64) -> Result<(), Rejection> {
        if *from != self.handoff.candidate {
            let too_late = |offer: &Offer| offer.candidate == *from && offer.outcome == OfferOutcome::TimedOut;
            return Err(match self.handoff.offers.iter().any(too_late) {
                true => Rejection::Expired { state: self.handoff.state },
                false => Rejection::NotCandidate,
            });
        }
        if self.handoff.state.is_final() {
            return Err(self.ended());
        }
        if epoch < self.handoff.epoch {
            return Err(Rejection::StaleEpoch { claimed: epoch, current: self.handoff.epoch });
        }
        if epoch > self.handoff.epoch {
            return Err(Rejection::EpochAhead { claimed: epoch, current: self.handoff.epoch });
        }
        self.check_in_time()
    }

    fn check_sender(&self, from: &AgentId, epoch: u64) -> Result<(), Rejection> {
        if *from != self.handoff.sender {
            return Err(Rejection::NotOwner { owner: self.task.owner.clone() });
        }
        check_owner(&self.task, from, epoch)?;
        if self.handoff.state.is_final() {
            return Err(self.ended());
        }
        self.check_in_time()
    }

    /// Whatever comes after its deadline is late, also when the timer has not fired yet.
    fn check_in_time(&self) -> Result<(), Rejection> {
        if self.not_overdue() { Ok(()) } else { Err(Rejection::Expired { state: self.handoff.state }) }
    }

    fn wrong_state(&self) -> Rejection {
        Rejection::WrongState { state: self.handoff.state }
    }

    fn ended(&self) -> Rejection {
        let state = self.handoff.state;
        match self.handoff.failure.as_ref().map(|failure| failure.code) {
            Some(
                ErrorCode::AcceptTimeout
                | ErrorCode::ContextTimeout
                | ErrorCode::CompleteTimeout
                | ErrorCode::WholeTimeout,
            ) => Rejection::Expired { state },
            _ => Rejection::Final { state },
        }
    }

    // Changes.

    fn enter(&mut self, state: State, cause: Cause, step: Option<std::time::Duration>) {
        self.handoff.state = state;
        self.handoff.step_deadline = step.map(|step| self.now.plus(step).min(self.handoff.whole_deadline));
        self.record(cause);
    }

    fn extend(&mut self, step: std::time::Duration) {
        self.handoff.step_deadline = Some(self.now.plus(step).min(self.handoff.whole_deadline));
        self.handoff.updated_at = self.now;
        if self.handoff.steps.len() < EXTENSIONS_KEPT_BELOW {
            self.record(Cause::Extended);
        }
    }

    fn record(&mut self, cause: Cause) {
        self.record_seen_as(cause, self.handoff.receiver_view());
    }

    fn record_seen_as(&mut self, cause: Cause, receiver_view: ReceiverView) {
        self.handoff.updated_at = self.now;
        self.handoff.steps.push(Step {
            at: self.now,
            cause,
            state: self.handoff.state,
            sender_view: self.handoff.sender_view(),
            receiver_view,
            candidate: self.handoff.candidate.clone(),
        });
        // 32 offers of 3 steps each, 6 more to the end, and the bounded extensions.
        assert!(self.handoff.steps.len() <= STEPS_MAX, "the steps of a handoff are bounded");
    }

    /// Takes the first candidate who can be asked from the list.
    fn next_candidate(&mut self) -> Option<AgentId> {
        while !self.handoff.next_candidates.is_empty() && self.handoff.offers.len() < OFFERS_MAX {
            let candidate = self.handoff.next_candidates.remove(0);
            if self.can_be_asked(&candidate) {
                return Some(candidate);
            }
        }
        self.handoff.next_candidates.clear();
        None
    }

    fn can_be_asked(&self, candidate: &AgentId) -> bool {
        let handoff = &self.handoff;
        let was_asked = handoff.offers.iter().any(|offer| offer.candidate == *candidate);
        let along_pair = |hop: &&Hop| hop.sender == handoff.sender && hop.receiver == *candidate;
        let times = self.task.hops.iter().filter(along_pair).count();
        *candidate != handoff.sender && !was_asked && times < self.task.loop_limits.handoffs_per_pair_max as usize
    }

    fn offer_to(&mut self, candidate: AgentId, mail: Mail) {
        self.handoff.offers.push(Offer {
            candidate: candidate.clone(),
            offered_at: self.now,
            outcome: OfferOutcome::Pending,
            reject_reason: 0,
            reason_text: String::new(),
        });
        self.handoff.candidate = candidate.clone();
        self.enter(State::Requested, Cause::Requested, None);
        self.effects.push(Effect::Deliver { to: candidate, mail });
    }

    fn settle_offer(&mut self, outcome: OfferOutcome) {
        if let Some(offer) = self.handoff.offers.last_mut()
            && offer.outcome == OfferOutcome::Pending
        {
            offer.outcome = outcome;
        }
    }

    /// The present candidate is out. It is told to drop the request, and the next is asked, or the handoff fails.
    fn next_or_fail(&mut self, cause: Cause, code: ErrorCode, text: &str) {
        self.notify(self.handoff.candidate.clone(), code, text, true);
        if let Some(candidate) = self.next_candidate() {
            self.record(cause);
            self.offer_to(candidate, Mail::RequestAgain);
        } else {
            self.end(State::Failed, cause, code, text);
            self.tell_sender();
        }
    }

    fn fail_in_time(&mut self, cause: Cause, code: ErrorCode, text: &str) {
        self.end(State::Failed, cause, code, text);
        self.tell_sender();
        self.tell_candidate();
    }

    /// Ends the handoff without moving the task.
    fn end(&mut self, state: State, cause: Cause, code: ErrorCode, text: &str) {
        assert!(!self.handoff.state.is_final(), "a final state never changes");
        self.settle_offer(OfferOutcome::Withdrawn);
        self.handoff.failure = Some(Failure { code, message: text.to_owned() });
        self.handoff.next_candidates.clear();
        self.close();
        self.enter(state, cause, None);
    }

    /// Completes the handoff: owner and epoch change here and nowhere else but where a delegation ends.
    fn move_ownership(&mut self) {
        self.close();
        self.task.owner = self.handoff.candidate.clone();
        self.task.epoch += 1;
        self.task.hops.push(Hop {
            handoff: self.handoff.id,
            sender: self.handoff.sender.clone(),
            receiver: self.handoff.candidate.clone(),
            epoch: self.task.epoch,
        });
        match self.handoff.mode {
            // Given back to the one who lent it: that loan is settled.
            Mode::Transfer if self.task.delegators.last() == Some(&self.task.owner) => drop(self.task.delegators.pop()),
            Mode::Transfer => {}
            Mode::Delegate => self.task.delegators.push(self.handoff.sender.clone()),
        }
        self.handoff.next_candidates.clear();
        self.handoff.state = State::Completed;
        self.handoff.step_deadline = None;
        self.record_seen_as(Cause::Completed, ReceiverView::HandoffCompleted);
        self.record(Cause::OwnershipMoved);
    }

    fn close(&mut self) {
        self.task.open_handoff = None;
        self.task.updated_at = self.now;
    }

    fn deliver_to_sender(&mut self) {
        self.effects.push(Effect::Deliver { to: self.handoff.sender.clone(), mail: Mail::ThisMessage });
    }

    fn tell_sender(&mut self) {
        let failure = self.handoff.failure.clone().expect("only a failed handoff is told of");
        self.notify(self.handoff.sender.clone(), failure.code, &failure.message, false);
    }

    fn tell_candidate(&mut self) {
        let failure = self.handoff.failure.clone().expect("only a failed handoff is told of");
        self.notify(self.handoff.candidate.clone(), failure.code, &failure.message, true);
    }

    fn notify(&mut self, to: AgentId, code: ErrorCode, message: &str, drop_task: bool) {
        let notice = Notice { code, message: message.to_owned(), drop_task };
        self.effects.push(Effect::Deliver { to, mail: Mail::Notice(notice) });
    }
}

//! A transition under construction: the checks that several messages share, and the changes.

use std::time::Duration;

use super::{
    Advice, Cause, EXTENSIONS_KEPT_BELOW, Effect, Failure, Handoff, Hop, Loan, Mail, Mode, Notice, OFFERS_MAX, Offer,
    OfferOutcome, PASSED_OVER_MAX, PassedOver, Priority, ReceiverView, Rejection, STEPS_MAX, Snapshot, State, Step,
    Task, Transition, Unavailable, Untaken, Waiting,
};
use crate::{codes::ErrorCode, coordinator::Order, ids::AgentId, time::Timestamp};

/// `REJECT_REASON_NO_SKILL` of the schema.
const NO_SKILL: i32 = 1;
/// `REJECT_REASON_OVERLOADED` of the schema.
const OVERLOADED: i32 = 2;
/// The longest pause in seconds before a candidate that rejected with OVERLOADED, without a time, is asked again.
const PAUSE_MAX: u64 = 30;

pub(super) fn loop_limit(limit: &'static str, value: u32, task: &Task) -> Rejection {
    Rejection::LoopLimit { limit, value, hops: task.hops.clone() }
}

/// Checks a message of the owner. A message of an older epoch is refused as stale, also if a former owner sends it.
pub(crate) fn check_owner(task: &Task, from: &AgentId, epoch: u64) -> Result<(), Rejection> {
    // An agent that never owned the task does not learn its epoch.
    if !task.has_been_owned_by(from) {
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

/// A transition that ends the open handoff of a task as CANCELLED, if there is one, and tells its candidate.
pub(super) fn end_open_handoff(
    snapshot: Snapshot<'_>,
    task: &Task,
    cause: Cause,
    (code, text): (ErrorCode, &str),
    now: Timestamp,
) -> Transition {
    let task = task.clone();
    let Some(open) = snapshot.handoff.filter(|handoff| !handoff.state.is_final()) else {
        return Transition { task, handoff: None, effects: Vec::new() };
    };
    let mut builder = TransitionBuilder::new(task, open.clone(), snapshot.unavailable, now);
    builder.end(State::Cancelled, cause, code, text);
    builder.tell_candidate();
    builder.done()
}

/// What follows for an open handoff that no candidate has.
pub(super) enum Next {
    /// This agent is asked.
    Ask(AgentId),
    /// The handoff waits, until the time at which it looks for a candidate again, if there is one.
    Hold(Waiting, Option<Timestamp>),
    /// No candidate is left.
    None,
}

/// A transition under construction.
pub(super) struct TransitionBuilder {
    pub(super) task: Task,
    pub(super) handoff: Handoff,
    pub(super) effects: Vec<Effect>,
    pub(super) gone: Vec<AgentId>,
    full: Vec<AgentId>,
    /// The candidate that has rejected in this step. It is not asked again at once.
    rests: Option<AgentId>,
    /// Whether no candidate had the offer when the handoff ended.
    ended_held: bool,
    pub(super) now: Timestamp,
}

impl TransitionBuilder {
    pub(super) fn new(task: Task, handoff: Handoff, unavailable: Unavailable<'_>, now: Timestamp) -> Self {
        let Unavailable { gone, full } = unavailable;
        Self {
            task,
            handoff,
            effects: Vec::new(),
            gone: gone.to_vec(),
            full: full.to_vec(),
            rests: None,
            ended_held: false,
            now,
        }
    }

    pub(super) fn done(self) -> Transition {
        // An open handoff is the only open one of its task, and until its completion the sender owns the task (SPEC 3).
        debug_assert!(self.handoff.state.is_final() || self.task.open_handoff == Some(self.handoff.id));
        debug_assert!(self.handoff.state.is_final() || self.task.owner == self.handoff.sender);
        Transition { task: self.task, handoff: Some(self.handoff), effects: self.effects }
    }

    // Checks.

    pub(super) fn not_overdue(&self) -> bool {
        self.handoff.next_deadline().is_none_or(|deadline| self.now < deadline)
    }

    /// Checks a message of the candidate: sender, state, epoch, deadline.
    pub(super) fn check_candidate(&self, from: &AgentId, epoch: u64) -> Result<(), Rejection> {
        if *from != self.handoff.candidate {
            // A candidate that lost its offer to a timeout is told that it is late, because the custody log records
            // late messages.
            let over = |outcome| matches!(outcome, OfferOutcome::TimedOut | OfferOutcome::Gone);
            let too_late = |offer: &Offer| offer.candidate == *from && over(offer.outcome);
            return Err(match self.handoff.offers.iter().any(too_late) {
                true => Rejection::Expired { state: self.handoff.state },
                false => Rejection::NotCandidate,
            });
        }
        if self.handoff.state.is_final() {
            return Err(self.ended());
        }
        // The candidate's offer has ended, and the next one is not made yet.
        if self.handoff.is_held() {
            return Err(self.wrong_state());
        }
        if epoch < self.handoff.epoch {
            return Err(Rejection::StaleEpoch { claimed: epoch, current: self.handoff.epoch });
        }
        if epoch > self.handoff.epoch {
            return Err(Rejection::EpochAhead { claimed: epoch, current: self.handoff.epoch });
        }
        self.check_in_time()
    }

    /// Checks a message of the handoff's sender: ownership, epoch, state.
    pub(super) fn check_sender(&self, from: &AgentId, epoch: u64) -> Result<(), Rejection> {
        if *from != self.handoff.sender {
            return Err(Rejection::NotOwner { owner: self.task.owner.clone() });
        }
        check_owner(&self.task, from, epoch)?;
        if self.handoff.state.is_final() {
            return Err(self.ended());
        }
        Ok(())
    }

    /// Refuses a message after the deadline, even if the timer has not fired yet.
    pub(super) fn check_in_time(&self) -> Result<(), Rejection> {
        if self.not_overdue() { Ok(()) } else { Err(Rejection::Expired { state: self.handoff.state }) }
    }

    pub(super) fn wrong_state(&self) -> Rejection {
        Rejection::WrongState { state: self.handoff.state }
    }

    /// The rejection of a message about an ended handoff.
    pub(super) fn ended(&self) -> Rejection {
        let state = self.handoff.state;
        // A message after a timeout is late, which the custody log records; after any other end it is not.
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

    /// Enters a state, with the timeout of its step. `None`: only the whole handoff has a deadline.
    pub(super) fn enter(&mut self, state: State, cause: Cause, step: Option<Duration>) {
        self.begin(state, step);
        self.record(cause);
    }

    /// As [`Self::enter`], with another view of the receiver in the record of the step than the state gives.
    pub(super) fn enter_seen_as(
        &mut self,
        state: State,
        cause: Cause,
        step: Option<Duration>,
        receiver_view: ReceiverView,
    ) {
        self.begin(state, step);
        self.record_seen_as(cause, receiver_view);
    }

    fn begin(&mut self, state: State, step: Option<Duration>) {
        self.handoff.state = state;
        // No step outlasts the whole handoff.
        self.handoff.step_deadline = step.map(|step| self.now.plus(step).min(self.handoff.whole_deadline));
    }

    /// Restarts the timeout of the current step.
    pub(super) fn extend(&mut self, step: std::time::Duration) {
        // An extension never extends the whole timeout (SPEC 3).
        self.handoff.step_deadline = Some(self.now.plus(step).min(self.handoff.whole_deadline));
        self.handoff.updated_at = self.now;
        // The extension holds in any case; only its place in the bounded history is left out.
        if self.handoff.steps.len() < EXTENSIONS_KEPT_BELOW {
            self.record(Cause::Extended);
        }
    }

    /// Adds a step to the handoff's history.
    pub(super) fn record(&mut self, cause: Cause) {
        self.record_seen_as(cause, self.handoff.receiver_view());
    }

    /// Adds a step with another view of the receiver than the state gives.
    pub(super) fn record_seen_as(&mut self, cause: Cause, receiver_view: ReceiverView) {
        self.handoff.updated_at = self.now;
        // Offers may repeat without a bound. The history keeps its beginning and the latest steps.
        if self.handoff.steps.len() == STEPS_MAX {
            self.handoff.steps.remove(1);
        }
        self.handoff.steps.push(Step {
            at: self.now,
            cause,
            state: self.handoff.state,
            sender_view: self.handoff.sender_view(),
            receiver_view,
            candidate: self.handoff.candidate.clone(),
        });
    }

    /// What follows now. A present agent with room is asked first, then one whose time has come. A gone agent is asked
    /// only if no present one can be asked later.
    pub(super) fn next(&mut self) -> Next {
        let mut candidates = std::mem::take(&mut self.handoff.next_candidates);
        // A candidate that cannot be asked now cannot be asked later either: offers and completed handoffs only grow in
        // number.
        let has_offers_left = self.has_offers_left();
        candidates.retain(|candidate| has_offers_left && self.can_be_asked(candidate));
        let is_here = |agent: &AgentId| !self.gone.contains(agent);
        let has_room = |agent: &AgentId| !self.full.contains(agent);
        let retries = self.retries_left();
        let (now, rests) = (self.now, self.rests.as_ref());
        let is_due = |(agent, at, until_room): &&(AgentId, Timestamp, bool)| {
            *at <= now || (*until_room && rests != Some(agent) && has_room(agent))
        };
        let due = |wanted: &dyn Fn(&AgentId) -> bool| {
            retries.iter().filter(is_due).find(|(agent, ..)| wanted(agent)).map(|(agent, ..)| agent.clone())
        };
        let ask_free = |candidates: &mut Vec<AgentId>, wanted: &dyn Fn(&AgentId) -> bool| {
            let place = candidates.iter().position(wanted)?;
            Some(candidates.remove(place))
        };
        // The whole deadline ends a handoff whose next time is beyond it.
        let until = || {
            let later = retries.iter().filter(|retry| !is_due(retry)).map(|(_, at, _)| *at);
            later.filter(|at| *at < self.handoff.whole_deadline).min()
        };
        let next = if let Some(agent) = ask_free(&mut candidates, &|agent| is_here(agent) && has_room(agent)) {
            Next::Ask(agent)
        } else if let Some(agent) = due(&|agent| is_here(agent) && has_room(agent)) {
            Next::Ask(agent)
        } else if candidates.iter().any(is_here) || due(&is_here).is_some() {
            Next::Hold(Waiting::Capacity, until())
        } else if retries.iter().any(|retry| !is_due(&retry)) {
            Next::Hold(Waiting::RetryTime, until())
        } else if let Some(agent) = ask_free(&mut candidates, &has_room) {
            Next::Ask(agent)
        } else if let Some(agent) = due(&has_room) {
            Next::Ask(agent)
        } else if !candidates.is_empty() || due(&|_| true).is_some() {
            Next::Hold(Waiting::Capacity, None)
        } else if self.handoff.wait_for_agent && self.handoff.made_offers().next().is_none() {
            Next::Hold(Waiting::Agent, None)
        } else {
            Next::None
        };
        self.handoff.next_candidates = candidates;
        next
    }

    /// The agents that may be asked again within the whole time, earliest first.
    fn retries_left(&self) -> Vec<(AgentId, Timestamp, bool)> {
        let whole = self.handoff.whole_deadline;
        let retries = self.handoff.retries().filter(|(_, at, until_room)| *until_room || *at < whole);
        let mut left: Vec<_> = retries.map(|(agent, at, until_room)| (agent.clone(), at, until_room)).collect();
        left.sort_by_key(|(_, at, _)| *at);
        left
    }

    /// Lets the handoff wait while no candidate has the offer.
    pub(super) fn hold(&mut self, waiting: Waiting, until: Option<Timestamp>) {
        self.handoff.state = State::Requested;
        self.handoff.step_deadline = until;
        let is_new = self.handoff.waiting != Some(waiting);
        self.handoff.waiting = Some(waiting);
        if let Some(next) = self.shown_next() {
            self.handoff.candidate = next;
        }
        self.handoff.updated_at = self.now;
        if is_new {
            self.record(Cause::Held);
        }
    }

    /// The agent that a waiting handoff names as its candidate: the next one, as far as it is known.
    fn shown_next(&self) -> Option<AgentId> {
        let known = self.handoff.next_candidates.first().cloned();
        let retry = || self.retries_left().into_iter().next().map(|(agent, ..)| agent);
        known.or_else(retry).or_else(|| AgentId::parse(&self.handoff.receiver).ok())
    }

    /// Whether another candidate can be asked, is present and has room.
    pub(super) fn has_other_candidate(&self) -> bool {
        let is_free = |agent: &AgentId| !self.gone.contains(agent) && !self.full.contains(agent);
        let is_there = |candidate: &AgentId| self.can_be_asked(candidate) && is_free(candidate);
        self.has_offers_left() && self.handoff.next_candidates.iter().any(is_there)
    }

    /// Whether the number of offers permits another one. An agent that was passed over had none.
    fn has_offers_left(&self) -> bool {
        self.handoff.made_offers().count() < OFFERS_MAX
    }

    /// Whether the loop guard and the earlier offers permit an offer to this agent.
    pub(super) fn can_be_asked(&self, candidate: &AgentId) -> bool {
        let handoff = &self.handoff;
        let was_asked = handoff.offers.iter().any(|offer| offer.candidate == *candidate);
        // The loop guard counts handoffs along one ordered pair, so the way back has a separate count.
        let along_pair = |hop: &&Hop| hop.sender == handoff.sender && hop.receiver == *candidate;
        let times = self.task.hops.iter().filter(along_pair).count();
        let is_free = times < self.task.loop_limits.handoffs_per_pair_max as usize || handoff.sender.is_coordinator();
        *candidate != handoff.sender && !was_asked && is_free
    }

    /// Offers the request to a candidate. The accept timeout starts with the ack of the request.
    pub(super) fn offer_to(&mut self, candidate: AgentId, mail: Mail) {
        // A further offer to an agent replaces the former one, so that the list stays bounded.
        let former = self.handoff.offers.iter().position(|offer| offer.candidate == candidate);
        let repeats = former.map_or(0, |place| self.handoff.offers.remove(place).repeats.saturating_add(1));
        self.handoff.offers.push(Offer {
            candidate: candidate.clone(),
            offered_at: self.now,
            outcome: OfferOutcome::Pending,
            reject_reason: 0,
            reason_text: String::new(),
            retry_at: None,
            until_room: false,
            repeats,
            passed_over: false,
            decides_within: None,
        });
        self.handoff.candidate = candidate.clone();
        self.handoff.waiting = None;
        self.enter(State::Requested, Cause::Requested, None);
        self.effects.push(Effect::Deliver { to: candidate, mail });
    }

    /// Asks the next candidate, or waits until one can be asked. Returns false if no candidate is left. `cause` ended the
    /// last offer.
    pub(super) fn go_on(&mut self, cause: Cause) -> bool {
        match self.next() {
            Next::Ask(candidate) => {
                // This step shows the former candidate, so it is recorded before the offer replaces the candidate.
                self.record(cause);
                self.offer_to(candidate, Mail::RequestAgain);
                true
            }
            Next::Hold(waiting, until) => {
                self.handoff.state = State::Requested;
                self.record(cause);
                self.hold(waiting, until);
                true
            }
            Next::None => false,
        }
    }

    /// Notes the reject of the current candidate, and when it may be asked again.
    pub(super) fn rest(&mut self, reason: i32, text: &str, retry_after: Option<Duration>) {
        self.rests = Some(self.handoff.candidate.clone());
        let Some(offer) = self.handoff.offers.last_mut() else { return };
        offer.reject_reason = reason;
        text.clone_into(&mut offer.reason_text);
        let pause = || Duration::from_secs((1 << offer.repeats.min(5)).min(PAUSE_MAX));
        let is_busy = reason == OVERLOADED && retry_after.is_none();
        let span = retry_after.or_else(|| is_busy.then(pause));
        (offer.retry_at, offer.until_room) = (span.map(|span| self.now.plus(span)), is_busy);
    }

    /// Records agents that lack what the request demands, as if each had rejected the request. They are not asked.
    pub(super) fn pass_over(&mut self, agents: &[PassedOver]) {
        for PassedOver { agent, reason_text } in agents {
            let passed_over = self.handoff.offers.iter().filter(|offer| offer.passed_over).count();
            // Each agent is recorded at most once.
            if passed_over < PASSED_OVER_MAX && self.can_be_asked(agent) {
                self.handoff.offers.push(Offer {
                    candidate: agent.clone(),
                    offered_at: self.now,
                    outcome: OfferOutcome::Rejected,
                    reject_reason: NO_SKILL,
                    reason_text: reason_text.clone(),
                    retry_at: None,
                    until_room: false,
                    repeats: 0,
                    passed_over: true,
                    decides_within: None,
                });
            }
        }
    }

    /// Ends the handoff because no candidate is left, and parks the request.
    pub(super) fn end_without_candidate(&mut self) {
        let lacking: Vec<String> = (self.handoff.offers.iter().filter(|offer| offer.passed_over))
            .map(|offer| format!("{} {}", offer.candidate, offer.reason_text))
            .collect();
        let text = match lacking.is_empty() {
            true => "no candidate took the handoff".to_owned(),
            false => format!("no candidate took the handoff: {}", lacking.join("; ")),
        };
        self.end(State::Rejected, Cause::Rejected, ErrorCode::NoCandidate, &text);
        self.tell_sender();
        // The reject of the last candidate makes the request a dead letter (SPEC 4, NO_CANDIDATE).
        self.effects.push(Effect::ParkRequest(Untaken::NoCandidate));
    }

    /// Sets the outcome of the last offer, unless it has one.
    pub(super) fn settle_offer(&mut self, outcome: OfferOutcome) {
        if let Some(offer) = self.handoff.offers.last_mut()
            && offer.outcome == OfferOutcome::Pending
        {
            offer.outcome = outcome;
        }
    }

    /// Withdraws the offer of the current candidate and asks the next one. Without a next one, the handoff fails.
    pub(super) fn next_or_fail(&mut self, cause: Cause, code: ErrorCode, text: &str) {
        self.notify(self.handoff.candidate.clone(), code, text, Advice::DropTask);
        if !self.go_on(cause) {
            self.end(State::Failed, cause, code, text);
            self.tell_sender();
            // An undeliverable request is a dead letter already: its mailbox has parked it.
            if code == ErrorCode::AcceptTimeout {
                self.effects.push(Effect::ParkRequest(Untaken::AcceptTimeout));
            }
        }
    }

    /// Fails the handoff after a timeout.
    pub(super) fn fail_in_time(&mut self, cause: Cause, code: ErrorCode, text: &str) {
        let was_taken = !matches!(self.handoff.state, State::Requested | State::Deciding);
        self.end(State::Failed, cause, code, text);
        self.tell_sender();
        self.tell_candidate();
        // Only a request that no candidate took becomes a dead letter.
        if !was_taken {
            self.effects.push(Effect::ParkRequest(Untaken::AcceptTimeout));
        } else {
            self.park_for_coordinator();
        }
    }

    /// Ends the handoff without moving the task.
    pub(super) fn end(&mut self, state: State, cause: Cause, code: ErrorCode, text: &str) {
        assert!(!self.handoff.state.is_final(), "a final state never changes");
        self.settle_offer(OfferOutcome::Withdrawn);
        match cause {
            // The candidate has answered, or its mailbox has given the delivery up.
            Cause::Rejected | Cause::CompletedFailure | Cause::Undeliverable => {}
            _ => self.withdraw_delivery(),
        }
        self.ended_held = self.handoff.waiting.take().is_some();
        self.handoff.failure = Some(Failure { code, message: text.to_owned() });
        self.handoff.next_candidates.clear();
        self.close();
        self.enter(state, cause, None);
    }

    /// Withdraws the offer or the context that the candidate has not acked. This goes before the mail that tells the
    /// candidate.
    pub(super) fn withdraw_delivery(&mut self) {
        let is_unacked = match self.handoff.state {
            State::Requested => !self.handoff.is_held(),
            State::ContextSent => !self.handoff.context_delivered,
            State::Deciding
            | State::Accepted
            | State::Completed
            | State::Rejected
            | State::Failed
            | State::Cancelled => false,
        };
        if is_unacked {
            self.effects.push(Effect::Withdraw { from: self.handoff.candidate.clone() });
        }
    }

    /// Makes the request a dead letter after a failed takeover of a task of the coordinator. An agent that hands a task
    /// over gets a notice and decides what to do; for the coordinator an operator decides, by a redrive.
    pub(super) fn park_for_coordinator(&mut self) {
        if self.handoff.sender.is_coordinator() {
            self.effects.push(Effect::ParkRequest(Untaken::NoCandidate));
        }
    }

    /// Answers the accept of a handoff of the coordinator with the context, in the same commit.
    pub(super) fn answer_for_coordinator(&mut self) {
        if self.handoff.sender.is_coordinator() {
            self.effects.push(Effect::Order(Order::Context {
                handoff: self.handoff.id,
                task: self.handoff.task.clone(),
                epoch: self.handoff.epoch,
                to: self.handoff.candidate.clone(),
                wanted_sections: self.handoff.wanted_sections.clone(),
            }));
        }
    }

    /// Completes the handoff. Owner and epoch change only here, at the end of a loan, and at a seizure.
    pub(super) fn move_ownership(&mut self) {
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
            // A transfer back to the last delegator ends that loan.
            Mode::Transfer if self.task.loans.last().is_some_and(|loan| loan.delegator == self.task.owner) => {
                self.task.loans.pop();
            }
            Mode::Transfer => {}
            Mode::Delegate => self.task.loans.push(Loan {
                delegator: self.handoff.sender.clone(),
                handoff: self.handoff.id,
                due: self.handoff.loan_timeout.map(|timeout| self.now.plus(timeout)),
                due_max: self.handoff.work.loan_timeout_max.map(|longest| self.now.plus(longest)),
                silence_timeout: self.handoff.work.silence_timeout,
                thread: self.handoff.thread.clone(),
            }),
        }
        self.task.begin_watch(&self.handoff, self.handoff.mode == Mode::Delegate);
        self.handoff.next_candidates.clear();
        self.handoff.state = State::Completed;
        self.handoff.step_deadline = None;
        // The coordinator has no mailbox, and learns of the completion in this commit.
        self.handoff.let_go = self.handoff.sender.is_coordinator();
        // Two steps in one commit: the takeover, and the move of the ownership.
        self.record_seen_as(Cause::Completed, ReceiverView::HandoffCompleted);
        self.record(Cause::OwnershipMoved);
    }

    /// Frees the task for a new handoff.
    pub(super) fn close(&mut self) {
        self.task.open_handoff = None;
        self.task.updated_at = self.now;
    }

    pub(super) fn deliver_to_sender(&mut self) {
        self.effects.push(Effect::Deliver { to: self.handoff.sender.clone(), mail: Mail::ThisMessage });
    }

    pub(super) fn tell_sender(&mut self) {
        let failure = self.handoff.failure.clone().expect("only a failed handoff is told of");
        self.notify(self.handoff.sender.clone(), failure.code, &failure.message, Advice::KeepTask);
    }

    pub(super) fn tell_candidate(&mut self) {
        // No agent has the offer of a handoff that waited.
        if self.ended_held {
            return;
        }
        let failure = self.handoff.failure.clone().expect("only a failed handoff is told of");
        self.notify(self.handoff.candidate.clone(), failure.code, &failure.message, Advice::DropTask);
    }

    pub(super) fn notify(&mut self, to: AgentId, code: ErrorCode, message: &str, advice: Advice) {
        // The sender of a failed handoff keeps the task, and has to find another way.
        let is_critical = advice == Advice::KeepTask && self.handoff.priority == Priority::Critical;
        let notice = Notice { code, message: message.to_owned(), advice, is_critical };
        self.effects.push(Effect::Deliver { to, mail: Mail::Notice { notice, about: self.handoff.id } });
    }
}

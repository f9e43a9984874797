//! A transition under construction: the checks that several messages share, and the changes.

use super::{
    Advice, Cause, EXTENSIONS_KEPT_BELOW, Effect, Failure, Handoff, Hop, Loan, Mail, Mode, Notice, OFFERS_MAX, Offer,
    OfferOutcome, PASSED_OVER_MAX, PassedOver, Priority, ReceiverView, Rejection, STEPS_MAX, State, Step, Task,
    Transition, Untaken,
};
use crate::{codes::ErrorCode, coordinator::Order, ids::AgentId, time::Timestamp};

/// `REJECT_REASON_NO_SKILL` of the schema.
const NO_SKILL: i32 = 1;

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

/// A transition under construction.
pub(super) struct TransitionBuilder {
    pub(super) task: Task,
    pub(super) handoff: Handoff,
    pub(super) effects: Vec<Effect>,
    pub(super) gone: Vec<AgentId>,
    pub(super) now: Timestamp,
}

impl TransitionBuilder {
    pub(super) fn new(task: &Task, handoff: &Handoff, gone: &[AgentId], now: Timestamp) -> Self {
        Self { task: task.clone(), handoff: handoff.clone(), effects: Vec::new(), gone: gone.to_vec(), now }
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
        if self.handoff.waits_to_retry() {
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
    pub(super) fn enter(&mut self, state: State, cause: Cause, step: Option<std::time::Duration>) {
        self.begin(state, step);
        self.record(cause);
    }

    /// As [`Self::enter`], with another view of the receiver in the record of the step than the state gives.
    pub(super) fn enter_seen_as(
        &mut self,
        state: State,
        cause: Cause,
        step: Option<std::time::Duration>,
        receiver_view: ReceiverView,
    ) {
        self.begin(state, step);
        self.record_seen_as(cause, receiver_view);
    }

    fn begin(&mut self, state: State, step: Option<std::time::Duration>) {
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
        self.handoff.steps.push(Step {
            at: self.now,
            cause,
            state: self.handoff.state,
            sender_view: self.handoff.sender_view(),
            receiver_view,
            candidate: self.handoff.candidate.clone(),
        });
        // 32 offers of 3 steps each, 6 more steps to the end, and the bounded extensions.
        assert!(self.handoff.steps.len() <= STEPS_MAX, "the steps of a handoff are bounded");
    }

    /// Removes and returns the first candidate that can be asked. A gone candidate is returned only if all are gone.
    pub(super) fn next_candidate(&mut self) -> Option<AgentId> {
        let mut candidates = std::mem::take(&mut self.handoff.next_candidates);
        if !self.has_offers_left() {
            // The candidates that are left can never be asked, and are dropped.
            return None;
        }
        // A candidate that cannot be asked now cannot be asked later either: offers and completed handoffs only grow in
        // number.
        candidates.retain(|candidate| self.can_be_asked(candidate));
        let there = candidates.iter().position(|candidate| !self.gone.contains(candidate));
        let next = if candidates.is_empty() { None } else { Some(candidates.remove(there.unwrap_or(0))) };
        self.handoff.next_candidates = candidates;
        next
    }

    /// Whether another candidate can be asked and is present.
    pub(super) fn has_other_candidate(&self) -> bool {
        let is_there = |candidate: &AgentId| self.can_be_asked(candidate) && !self.gone.contains(candidate);
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
        self.handoff.offers.push(Offer {
            candidate: candidate.clone(),
            offered_at: self.now,
            outcome: OfferOutcome::Pending,
            reject_reason: 0,
            reason_text: String::new(),
            retry_at: None,
            passed_over: false,
        });
        self.handoff.candidate = candidate.clone();
        self.enter(State::Requested, Cause::Requested, None);
        self.effects.push(Effect::Deliver { to: candidate, mail });
    }

    /// Asks the next candidate, or waits for the time at which a candidate may be asked once more. Returns false if no
    /// candidate is left. `cause` ended the last offer.
    pub(super) fn go_on(&mut self, cause: Cause) -> bool {
        if let Some(candidate) = self.next_candidate() {
            // This step shows the former candidate, so it is recorded before the offer replaces the candidate.
            self.record(cause);
            self.offer_to(candidate, Mail::RequestAgain);
            return true;
        }
        let Some((candidate, at)) = self.next_retry() else { return false };
        if at <= self.now {
            self.record(cause);
            self.offer_to(candidate, Mail::RequestAgain);
        } else {
            self.handoff.state = State::Requested;
            self.handoff.step_deadline = Some(at);
            self.record(cause);
            self.handoff.candidate = candidate;
        }
        true
    }

    /// The candidate that may be asked once more, and the time from which on: the one with the earliest time.
    fn next_retry(&self) -> Option<(AgentId, Timestamp)> {
        if !self.has_offers_left() {
            return None;
        }
        let offers = &self.handoff.offers;
        let offers_to = |agent: &AgentId| offers.iter().filter(|offer| offer.candidate == *agent).count();
        let open = offers.iter().filter_map(|offer| Some((offer.candidate.clone(), offer.retry_at?)));
        // A second offer to the candidate is its last one.
        let left = open.filter(|(agent, at)| *at < self.handoff.whole_deadline && offers_to(agent) == 1);
        left.min_by_key(|(_, at)| *at)
    }

    /// The time from which on a candidate that rejects now may be asked once more, if it asks for that.
    pub(super) fn retry_at(&self, retry_after: Option<std::time::Duration>) -> Option<Timestamp> {
        // Before this time the handoff has no deadline (`Entity::no_deadline_before`), and its timer does not fire.
        let earliest = self.handoff.created_at.plus(self.handoff.timeouts.shortest());
        retry_after.map(|span| self.now.plus(span).max(earliest))
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
                    passed_over: true,
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
        self.handoff.failure = Some(Failure { code, message: text.to_owned() });
        self.handoff.next_candidates.clear();
        self.close();
        self.enter(state, cause, None);
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

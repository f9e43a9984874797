//! A transition under construction: the changes that several inputs share.

use std::sync::Arc;

use super::{
    Award, Awarded, Closed, Effect, Failure, Negotiation, Offer, Rejection, State, Surroundings, Thread, ThreadState,
    Transition, WaitingMail, award,
};
use crate::{
    ReadError,
    codes::ErrorCode,
    handoff::{Advice, Notice, OFFERS_MAX},
    ids::{AgentId, MessageId},
    time::Timestamp,
};

/// The most agents that one step asks, the most threads that it withdraws from, and the most bidders that it tells. Later
/// steps do the rest, each in a commit of its own: so no request and no close holds the engine up for long.
pub(super) const SWEPT_A_STEP: usize = 64;

/// A transition under construction.
pub(super) struct Building {
    pub(super) negotiation: Negotiation,
    pub(super) effects: Vec<Effect>,
    pub(super) now: Timestamp,
}

impl Building {
    pub(super) fn new(negotiation: &Negotiation, now: Timestamp) -> Self {
        Self { negotiation: negotiation.clone(), effects: Vec::new(), now }
    }

    /// Ends the step: asks agents, withdraws unread requests and tells bidders, a bounded number of each.
    pub(super) fn done(mut self, around: &mut dyn Surroundings) -> Result<Transition, ReadError> {
        self.negotiation.updated_at = self.now;
        // In the one place that every step ends in, so that no input can forget the agents that wait.
        self.sweep(around)?;
        Ok(Transition { negotiation: self.negotiation, effects: self.effects })
    }

    // Checks.

    /// The place of the agent's thread.
    pub(super) fn thread_of(&self, agent: &AgentId, problem: &'static str) -> Result<usize, Rejection> {
        let place = self.negotiation.threads.iter().position(|thread| thread.agent == *agent);
        place.ok_or(Rejection::NotAsked { problem })
    }

    /// Refuses a message after the deadline, even if the timer has not fired yet.
    pub(super) fn check_in_time(&self) -> Result<(), Rejection> {
        match self.negotiation.deadline() {
            Some(deadline) if self.now < deadline => Ok(()),
            Some(_) | None => Err(self.closed()),
        }
    }

    pub(super) fn closed(&self) -> Rejection {
        Rejection::Closed { state: self.negotiation.state }
    }

    // Changes.

    pub(super) fn thread(&mut self, place: usize) -> &mut Thread {
        Arc::make_mut(&mut self.negotiation.threads[place])
    }

    /// Closes the negotiation if enough offers stand, or if no agent is on turn.
    pub(super) fn close_if_complete(&mut self, around: &mut dyn Surroundings) {
        let (wanted, now) = (self.negotiation.offers_wanted as usize, self.now);
        // An agent with an open counter-offer may still change its offer, so the offer is not counted yet.
        let is_settled = |thread: &&Arc<Thread>| !thread.state.is_on_turn() && thread.standing_offer(now).is_some();
        // 0 wants all answers, so that a negotiation without a number closes only when no agent is on turn.
        let has_enough = wanted > 0 && self.negotiation.threads.iter().filter(is_settled).count() >= wanted;
        let all_answered = self.negotiation.threads.iter().all(|thread| !thread.state.is_on_turn());
        if has_enough || all_answered {
            self.close(around);
        }
    }

    /// Ends the time for offers: awards by the rule, or leaves the decision to the requester.
    pub(super) fn close(&mut self, around: &mut dyn Surroundings) {
        assert_eq!(self.negotiation.state, State::Open, "a negotiation closes once");
        self.negotiation.closed_at = Some(self.now);
        // Ranked without a rule too: without an eligible offer the requester has nothing to decide.
        let ranked = award::ranked(&self.negotiation, around, self.now);
        if ranked.is_empty() {
            return self.fail(ErrorCode::NoOffer, "no offer stands that keeps the request's floors", true);
        }
        match self.negotiation.rule {
            None => {
                self.negotiation.state = State::Deciding;
                self.negotiation.decision_deadline = Some(self.now.plus(self.negotiation.decision_timeout));
            }
            Some(_) => {
                // Without a mandate the requester has not permitted a handoff in its name, so the award is the answer
                // and no task moves.
                let task = self.negotiation.mandate.as_ref().zip(self.negotiation.task.as_ref());
                let task = task.map(|(mandate, (task, _))| (task.clone(), self.now.plus(mandate.timeouts.whole)));
                let handoff = task.as_ref().map(|_| self.negotiation.id);
                // The handoff may ask a later candidate until its end, and knows no offers, so only an offer that stands until
                // then is one. The same holds for a gone agent, which is asked last.
                let deadline = task.as_ref().map(|(_, deadline)| *deadline);
                let stands =
                    |offer: &Offer| deadline.zip(offer.valid_until).is_none_or(|(deadline, until)| deadline <= until);
                let best = ranked.iter().position(|(agent, offer)| stands(offer) || !around.is_gone(agent));
                let best = best.unwrap_or_default();
                let (bidder, offer) = &ranked[best];
                self.award(offer.id, bidder.clone(), handoff);
                if let Some((task, _)) = task {
                    // The losers in their order are the fallbacks of the handoff, at most as many as a handoff may ask.
                    let fallbacks = ranked[best + 1..].iter().filter(|(_, offer)| stands(offer));
                    let asked = ranked[best..=best].iter().chain(fallbacks).take(OFFERS_MAX);
                    let candidates = asked.map(|(agent, _)| agent.clone()).collect();
                    let negotiation = self.negotiation.id;
                    self.effects.push(Effect::Open(Award { negotiation, task, candidates }));
                }
            }
        }
        // The requester learns of the close here. What follows from its own messages it knows from their receipts.
        let to = self.negotiation.requester.clone();
        self.tell(to);
    }

    /// Chooses an offer. Without a handoff the work is the bidder's at once.
    pub(super) fn award(&mut self, offer: MessageId, bidder: AgentId, handoff: Option<MessageId>) {
        assert!(self.negotiation.award.is_none(), "a negotiation is awarded once");
        self.negotiation.closed_at.get_or_insert(self.now);
        self.negotiation.decision_deadline = None;
        if handoff.is_none() {
            self.negotiation.winner = Some(bidder.clone());
        }
        self.negotiation.state = if handoff.is_some() { State::Awarded } else { State::Settled };
        self.negotiation.award = Some(Awarded { offer, bidder, handoff });
    }

    /// Ends the negotiation without an agent that has the work.
    pub(super) fn fail(&mut self, code: ErrorCode, message: &str, tells_requester: bool) {
        self.end(State::Failed);
        self.negotiation.failure = Some(Failure { code, message: message.to_owned() });
        if tells_requester {
            // With a task the requester is still its owner. Without one it can only ask again.
            let advice = if self.negotiation.task.is_some() { Advice::KeepTask } else { Advice::AskAgain };
            self.effects.push(Effect::Notify(Notice { code, message: message.to_owned(), advice, is_critical: false }));
        }
    }

    pub(super) fn end(&mut self, state: State) {
        assert!(!self.negotiation.state.is_final() && state.is_final(), "a final state never changes");
        self.negotiation.closed_at.get_or_insert(self.now);
        self.negotiation.decision_deadline = None;
        self.negotiation.state = state;
    }

    /// Marks the agents that the handoff of the award was offered to as told.
    pub(super) fn told_by_handoff(&mut self, asked: &[AgentId]) {
        for thread in self.negotiation.threads.iter_mut().filter(|thread| asked.contains(&thread.agent)) {
            Arc::make_mut(thread).is_told = true;
        }
    }

    fn tell(&mut self, to: AgentId) {
        let Negotiation { id, state, award, winner, failure, .. } = &self.negotiation;
        let closed = Closed {
            negotiation: *id,
            state: *state,
            winner: winner.clone().or_else(|| Some(award.as_ref()?.bidder.clone())),
            offer: award.as_ref().map(|award| award.offer),
            handoff: award.as_ref().and_then(|award| award.handoff),
            code: failure.as_ref().map(|failure| failure.code),
        };
        self.effects.push(Effect::Tell { to, closed });
    }

    /// Asks the agents while offers are taken, withdraws unread requests once the negotiation is closed, and tells the
    /// bidders once it has ended.
    fn sweep(&mut self, around: &mut dyn Surroundings) -> Result<(), ReadError> {
        let all = self.negotiation.threads.len();
        // While offers are taken, every unread request may still be answered.
        if self.negotiation.state == State::Open {
            let (from, upto) = (self.negotiation.asked_upto, all.min(self.negotiation.asked_upto + SWEPT_A_STEP));
            let next = self.negotiation.threads[from..upto].iter().map(|thread| Effect::Ask(thread.agent.clone()));
            self.effects.extend(next);
            self.negotiation.asked_upto = upto;
            return Ok(());
        }
        let upto = all.min(self.negotiation.withdrawn_upto + SWEPT_A_STEP);
        for place in self.negotiation.withdrawn_upto..upto {
            self.withdraw_unread(place, around)?;
        }
        self.negotiation.withdrawn_upto = upto;
        // Not while a handoff decides: the winner may still pass, and a told loser would be asked after all.
        if self.negotiation.state.is_final() {
            let upto = all.min(self.negotiation.told_upto + SWEPT_A_STEP);
            for place in self.negotiation.told_upto..upto {
                let thread = self.thread(place);
                // Only a bidder whose offer stands waits for an answer.
                if thread.state.has_standing_offer() && !thread.is_told {
                    thread.is_told = true;
                    let to = thread.agent.clone();
                    self.tell(to);
                }
            }
            self.negotiation.told_upto = upto;
        }
        Ok(())
    }

    /// Withdraws the request from the mailbox of an agent that has not answered.
    fn withdraw_unread(&mut self, place: usize, around: &mut dyn Surroundings) -> Result<(), ReadError> {
        let (id, asked_upto) = (self.negotiation.id, self.negotiation.asked_upto);
        let thread = self.thread(place);
        if place >= asked_upto {
            if thread.state == ThreadState::Asked {
                thread.state = ThreadState::NotReached;
            }
            let agent = thread.agent.clone();
            self.effects.push(Effect::Withdraw(agent));
            return Ok(());
        }
        // An agent that answered has read the request, and that of an unreachable one is a dead letter.
        if thread.state != ThreadState::Asked {
            return Ok(());
        }
        let agent = thread.agent.clone();
        match around.waiting_mail(id, &agent)? {
            WaitingMail::None => return Ok(()),
            WaitingMail::Unfetched => self.thread(place).state = ThreadState::NotReached,
            // The agent had the request and did not ack it. It was reached, and a later delivery could only mislead it.
            WaitingMail::Returned => {}
        }
        self.effects.push(Effect::Withdraw(agent));
        Ok(())
    }
}

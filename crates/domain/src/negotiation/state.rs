//! The state of negotiations. Plain data; the rules are in `step`.

use std::{sync::Arc, time::Duration};

use super::AwardRule;
use crate::{
    codes::ErrorCode,
    handoff::{LoopLimits, Mode, Priority, Timeouts, WorkTerms},
    ids::{AgentId, ConversationId, FairnessKey, MessageId, TaskId},
    numbered,
    time::Timestamp,
};

/// The highest round of counter-offers. Round 0 is the first offer.
pub const ROUND_MAX: u32 = 3;

/// A request for offers, with the agents that were asked and their offers.
#[derive(Debug, Clone, PartialEq)]
pub struct Negotiation {
    /// The id of the `TaskRequest`.
    pub id: MessageId,
    /// The agent that asked for offers.
    pub requester: AgentId,
    /// The receiver that the request names.
    pub receiver: String,
    /// The state, open until the close.
    pub state: State,
    /// The kind of work, in the agents' own terms. May be empty.
    pub task_type: String,
    /// The task that the request names, and its epoch in the requester's view.
    pub task: Option<(TaskId, u64)>,
    /// The terms under which the broker opens the handoff of an award. Set only with an award rule.
    pub mandate: Option<Mandate>,
    /// The rule of the award. `None`: the requester decides.
    pub rule: Option<AwardRule>,
    /// The least confidence of an offer that the rule may award, 0 to 1.
    pub min_confidence: f64,
    /// The highest cost of an offer that the rule may award. `None`: no limit.
    pub max_cost: Option<f64>,
    /// The number of standing offers that closes the negotiation. 0: only the answers of all agents or the deadline do.
    pub offers_wanted: u32,
    /// The time at which the negotiation closes at the latest.
    pub offers_deadline: Timestamp,
    /// The time from the close until the requester must have decided.
    pub decision_timeout: Duration,
    /// The end of the time for the decision, while the requester decides.
    pub decision_deadline: Option<Timestamp>,
    /// One thread for each agent that was asked, in the order in which the broker found the agents. Never changes in
    /// length. Steps share the threads that they do not change.
    pub threads: Vec<Arc<Thread>>,
    /// The number of offers so far, the place of the next one.
    pub offers_received: u32,
    /// The award, once an offer was chosen.
    pub award: Option<Awarded>,
    /// The agent that has the work: the winner, or the candidate that took the handoff.
    pub winner: Option<AgentId>,
    /// The reason of the failure, once the negotiation has failed.
    pub failure: Option<Failure>,
    /// The unread requests of the threads before this one are withdrawn. Advances after the close.
    pub withdrawn_upto: usize,
    /// The number of threads whose agents were sent the request. It stays after the close.
    pub asked_upto: usize,
    /// The bidders of the threads before this one are told the end. Advances after the end.
    pub told_upto: usize,
    /// The time at which the request was stored.
    pub created_at: Timestamp,
    /// The time of the close. `None`: offers are still taken.
    pub closed_at: Option<Timestamp>,
    /// The time of the last change.
    pub updated_at: Timestamp,
}

/// The terms of the handoff that an award opens, as the requester has signed them, within the operator's bounds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mandate {
    /// The kind of work.
    pub task_type: String,
    /// The reason, as a number of the request's enum.
    pub reason: i32,
    /// Whether the task is transferred or delegated.
    pub mode: Mode,
    /// The time from the completion until the broker recalls a delegated task. `None`: no loan timeout.
    pub loan_timeout: Option<Duration>,
    /// What the request says about the work after the takeover.
    pub work: WorkTerms,
    /// The priority of all deliveries of the handoff.
    pub priority: Priority,
    /// The part of the requester's requests that the handoff belongs to.
    pub fairness_key: Option<FairnessKey>,
    /// The timeouts of the handoff.
    pub timeouts: Timeouts,
    /// The loop guard's limits.
    pub loop_limits: LoopLimits,
    /// The outer conversation of the task.
    pub conversation: Option<ConversationId>,
}

/// The part of one agent that was asked.
#[derive(Debug, Clone, PartialEq)]
pub struct Thread {
    /// The agent that was asked.
    pub agent: AgentId,
    /// The state of the thread.
    pub state: ThreadState,
    /// The agent's latest offer. It stands in [`ThreadState::Offered`] and [`ThreadState::Countered`].
    pub offer: Option<Offer>,
    /// The requester's latest counter-offer.
    pub counter: Option<MessageId>,
    /// The round of the latest offer or counter-offer, 0 to [`ROUND_MAX`].
    pub round: u32,
    /// Whether the agent has been told how its part ended: by an award, a decline or a notice. Never falls.
    pub is_told: bool,
}

/// The latest offer of a bidder.
#[derive(Debug, Clone, PartialEq)]
pub struct Offer {
    /// The id of the `TaskOffer`.
    pub id: MessageId,
    /// The confidence, 0 to 1.
    pub confidence: f64,
    /// The time that the work would take. `None`: not stated.
    pub estimated_duration: Option<Duration>,
    /// The price, in a unit of the agents' own.
    pub cost: f64,
    /// The time from which on the offer no longer stands. `None`: it stands until the end.
    pub valid_until: Option<Timestamp>,
    /// The place among all offers of the negotiation, from 0 on.
    pub place: u32,
    /// The time at which the offer was stored.
    pub offered_at: Timestamp,
}

/// The state of one agent's part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ThreadState {
    /// The agent was asked and has not answered.
    Asked,
    /// The agent's offer stands, and the requester is on turn.
    Offered,
    /// The agent's offer stands, and the requester has countered it: the agent is on turn.
    Countered,
    /// The agent or the requester has declined.
    Declined,
    /// The agent has withdrawn its offer.
    Withdrawn,
    /// The request became a dead letter in the agent's mailbox.
    Unreachable,
    /// The agent had not fetched the request at the close, and the request was withdrawn.
    NotReached,
}

numbered! {
    ThreadState {
        Asked = 1, Offered = 2, Countered = 3, Declined = 4, Withdrawn = 5, Unreachable = 6, NotReached = 7,
    }
    State { Open = 1, Deciding = 2, Awarded = 3, Settled = 4, Failed = 5, Cancelled = 6, }
}

impl ThreadState {
    /// The name in the schema, without its prefix.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Asked => "ASKED",
            Self::Offered => "OFFERED",
            Self::Countered => "COUNTERED",
            Self::Declined => "DECLINED",
            Self::Withdrawn => "WITHDRAWN",
            Self::Unreachable => "UNREACHABLE",
            Self::NotReached => "NOT_REACHED",
        }
    }

    /// Whether an offer of the agent stands.
    pub const fn has_standing_offer(self) -> bool {
        match self {
            // A countered offer stands until its bidder replaces it, so the requester may still accept it.
            Self::Offered | Self::Countered => true,
            Self::Asked | Self::Declined | Self::Withdrawn | Self::Unreachable | Self::NotReached => false,
        }
    }

    /// Whether the broker still waits for the agent.
    pub const fn is_on_turn(self) -> bool {
        match self {
            Self::Asked | Self::Countered => true,
            Self::Offered | Self::Declined | Self::Withdrawn | Self::Unreachable | Self::NotReached => false,
        }
    }
}

/// The state of a negotiation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// Offers are taken.
    Open,
    /// No further offers are taken, and the requester decides.
    Deciding,
    /// An offer was chosen, and the handoff that it opened is not decided.
    Awarded,
    /// Final: an agent has the work.
    Settled,
    /// Final: no agent has the work.
    Failed,
    /// Final: the requester has cancelled.
    Cancelled,
}

impl State {
    /// All states.
    pub const ALL: [Self; 6] =
        [Self::Open, Self::Deciding, Self::Awarded, Self::Settled, Self::Failed, Self::Cancelled];

    /// Whether the state is final.
    pub const fn is_final(self) -> bool {
        match self {
            Self::Open | Self::Deciding | Self::Awarded => false,
            Self::Settled | Self::Failed | Self::Cancelled => true,
        }
    }

    /// The name in the schema, without its prefix.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Open => "OPEN",
            Self::Deciding => "DECIDING",
            Self::Awarded => "AWARDED",
            Self::Settled => "SETTLED",
            Self::Failed => "FAILED",
            Self::Cancelled => "CANCELLED",
        }
    }
}

/// The choice of an offer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Awarded {
    /// The chosen offer.
    pub offer: MessageId,
    /// The agent of the offer.
    pub bidder: AgentId,
    /// The handoff that the award opened. `None`: the work is no task.
    pub handoff: Option<MessageId>,
}

/// The reason why no agent has the work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The stable error code.
    pub code: ErrorCode,
    /// The reason, for a person to read.
    pub message: String,
}

impl Negotiation {
    /// The thread of this agent. `None`: the agent was not asked.
    pub fn thread(&self, agent: &AgentId) -> Option<&Thread> {
        self.threads.iter().map(|thread| &**thread).find(|thread| thread.agent == *agent)
    }

    /// The time at which the state ends. `None`: the handoff of the award decides, or the state is final.
    pub fn deadline(&self) -> Option<Timestamp> {
        match self.state {
            State::Open => Some(self.offers_deadline),
            State::Deciding => self.decision_deadline,
            State::Awarded | State::Settled | State::Failed | State::Cancelled => None,
        }
    }

    /// Whether agents are left to ask, requests to withdraw after the close, or bidders to tell after the end.
    pub fn has_rest(&self) -> bool {
        match self.state {
            State::Open => self.asked_upto < self.threads.len(),
            State::Deciding | State::Awarded => self.withdrawn_upto < self.threads.len(),
            State::Settled | State::Failed | State::Cancelled => {
                self.withdrawn_upto.min(self.told_upto) < self.threads.len()
            }
        }
    }

    /// Whether the close came before the agent was sent the request.
    pub fn was_never_asked(&self, agent: &AgentId) -> bool {
        let left = self.threads.get(self.asked_upto..).unwrap_or_default();
        self.state != State::Open && left.iter().any(|thread| thread.agent == *agent)
    }

    /// The time of the next step without a message: the deadline, or at once while a rest is left. `None`: neither.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        // The time of the last step, so that the rests of many negotiations take turns, with the deadlines of others
        // between them.
        let rest = self.has_rest().then_some(self.updated_at);
        rest.into_iter().chain(self.deadline()).min()
    }

    /// The agents that have a part beyond being asked: the requester, and each agent that has made an offer.
    pub fn parties(&self) -> impl Iterator<Item = &AgentId> {
        // An agent that was only asked has the request as mail. In the lists it would take an entry for each request to
        // its type.
        let bidders = self.threads.iter().filter(|thread| thread.offer.is_some()).map(|thread| &thread.agent);
        std::iter::once(&self.requester).chain(bidders)
    }
}

impl Thread {
    /// The thread's offer, if it stands at this time.
    pub fn standing_offer(&self, now: Timestamp) -> Option<&Offer> {
        // The validity is asked at each use, because no timer ends a single offer.
        let stands = |offer: &&Offer| offer.valid_until.is_none_or(|until| now < until);
        self.offer.as_ref().filter(|_| self.state.has_standing_offer()).filter(stands)
    }
}

//! The inputs and outputs of the negotiation machine.

use std::time::Duration;

use super::{AwardRule, Mandate, Negotiation, State};
use crate::{
    ReadError,
    codes::{ErrorCode, Refusal},
    handoff::{self, Notice},
    ids::{AgentId, MessageId, TaskId},
    time::Timestamp,
};

/// The inputs of the negotiation machine from agents.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// A request for offers, which opens the negotiation.
    Request(Box<Request>),
    /// An offer of a bidder, or a counter-offer of the requester.
    Offer {
        /// The sender.
        from: AgentId,
        /// The receiver.
        to: AgentId,
        /// The terms of the offer, or its withdrawal.
        offer: NewOffer,
    },
    /// A decline: of the request by an agent that was asked, or of an offer by the requester.
    Decline {
        /// The sender.
        from: AgentId,
        /// The receiver.
        to: AgentId,
    },
    /// The requester takes an offer.
    Accept {
        /// The sender.
        from: AgentId,
        /// The receiver, the agent of the offer.
        to: AgentId,
        /// The id of the accepted offer.
        offer: MessageId,
        /// The handoff that the message opens in the same commit. `None`: the work is no task.
        handoff: Option<MessageId>,
    },
    /// The requester cancels.
    Cancel,
}

/// A `TaskRequest` with the resolved agents and terms.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// The id of the message and of the negotiation.
    pub id: MessageId,
    /// The sender.
    pub requester: AgentId,
    /// The receiver that the request names.
    pub receiver: String,
    /// The agents to ask, each once and without the sender.
    pub asked: Vec<AgentId>,
    /// The most agents that a request may ask.
    pub asked_max: usize,
    /// The kind of work. May be empty.
    pub task_type: String,
    /// The task that the request names, and its epoch in the sender's view.
    pub task: Option<(TaskId, u64)>,
    /// The terms of the handoff that an award opens.
    pub mandate: Option<Mandate>,
    /// The rule of the award. `None`: the requester decides.
    pub rule: Option<AwardRule>,
    /// The least confidence of an offer that the rule may award, 0 to 1.
    pub min_confidence: f64,
    /// The highest cost of an offer that the rule may award. `None`: no limit.
    pub max_cost: Option<f64>,
    /// The number of standing offers that closes the negotiation. 0: only the answers of all agents or the deadline do.
    pub offers_wanted: u32,
    /// The time until which offers are taken. `None`: the operator's default from now on.
    pub offers_deadline: Option<Timestamp>,
    /// The default time for offers.
    pub offers_timeout: Duration,
    /// The longest permitted time for offers.
    pub offers_timeout_max: Duration,
    /// The time for the decision after the close.
    pub decision_timeout: Duration,
}

/// A `TaskOffer`.
#[derive(Debug, Clone, PartialEq)]
pub struct NewOffer {
    /// The id of the message.
    pub id: MessageId,
    /// The confidence, 0 to 1.
    pub confidence: f64,
    /// The time that the work would take.
    pub estimated_duration: Option<Duration>,
    /// The price; finite.
    pub cost: f64,
    /// The round of the bidder and the requester, starting at 0.
    pub round: u32,
    /// Whether the message withdraws the sender's standing offer.
    pub is_withdrawal: bool,
    /// The time from which on the offer no longer stands.
    pub valid_until: Option<Timestamp>,
}

/// An input from another entity, or from the negotiation itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NegotiationSignal {
    /// A candidate has taken the handoff of the award.
    Taken {
        /// The handoff of the award; a redrive of it has another id.
        handoff: MessageId,
        /// The agent that took it.
        by: AgentId,
        /// The agents that the handoff was offered to. They are told by that.
        asked: Vec<AgentId>,
    },
    /// The handoff of the award has ended before a candidate took it.
    NotTaken {
        /// The handoff of the award; a redrive of it has another id.
        handoff: MessageId,
        /// The reason.
        code: ErrorCode,
        /// The reason, for a person to read.
        message: String,
        /// The agents that the handoff was offered to. They are told by that.
        asked: Vec<AgentId>,
    },
    /// The handoff of the award could not be opened.
    NotOpened {
        /// The handoff of the award.
        handoff: MessageId,
        /// The reason.
        code: ErrorCode,
        /// The reason, for a person to read.
        message: String,
    },
}

impl NegotiationSignal {
    /// The handoff of the award could not be opened.
    pub fn not_opened(handoff: MessageId, rejection: &handoff::Rejection) -> Self {
        let message = match rejection {
            // The requester may never have owned the task, and must not learn who does.
            handoff::Rejection::NotOwner { .. } => "the requester does not own the task".to_owned(),
            other => other.to_string(),
        };
        Self::NotOpened { handoff, code: rejection.code(), message }
    }
}

/// The input for the handoff machine that opens the handoff of an award.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Award {
    /// The negotiation, whose id is that of the handoff.
    pub negotiation: MessageId,
    /// The task to hand over.
    pub task: TaskId,
    /// The agents to ask, in the order of the rule.
    pub candidates: Vec<AgentId>,
}

/// The mail of an agent that waits for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitingMail {
    /// No mail waits, or the agent has a lease on it.
    None,
    /// The mail waits and was never dispatched.
    Unfetched,
    /// The mail was dispatched before and waits for the next dispatch.
    Returned,
}

/// What the machine asks of its surroundings.
pub trait Surroundings {
    /// The negotiation's request in this agent's mailbox.
    fn waiting_mail(&mut self, negotiation: MessageId, agent: &AgentId) -> Result<WaitingMail, ReadError>;
    /// The load of an agent, in permille of its capacity.
    fn load(&mut self, agent: &AgentId) -> u32;
    /// Whether the agent would be asked only after all present ones.
    fn is_gone(&mut self, agent: &AgentId) -> bool;
    /// Whether the agent is registered and the policies let the requester hand it this work. Without a mandate no task
    /// moves, and the policies are not asked.
    fn may_hand_off(&mut self, from: &AgentId, to: &AgentId, mandate: Option<&Mandate>) -> bool;
}

/// The state after a step, and the effects.
#[derive(Debug, Clone, PartialEq)]
pub struct Transition {
    /// The negotiation after the step.
    pub negotiation: Negotiation,
    /// The effects, in the order of their execution.
    pub effects: Vec<Effect>,
}

/// An effect of a step.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Delivers the request to an agent that was asked.
    Ask(AgentId),
    /// Delivers the message in the step's input to the other side.
    Forward(AgentId),
    /// Delivers a `NegotiationClosed` of the broker.
    Tell {
        /// The agent that gets the notice.
        to: AgentId,
        /// The content.
        closed: Closed,
    },
    /// Delivers an `ErrorNotification` to the requester.
    Notify(Notice),
    /// Withdraws the request from an agent's mailbox.
    Withdraw(AgentId),
    /// Opens the handoff of the award.
    Open(Award),
}

/// The content of a `NegotiationClosed`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Closed {
    /// The id of the request that opened the negotiation.
    pub negotiation: MessageId,
    /// The state after the close.
    pub state: State,
    /// The agent that has the work, or that an award names.
    pub winner: Option<AgentId>,
    /// The offer that was chosen.
    pub offer: Option<MessageId>,
    /// The handoff of the award.
    pub handoff: Option<MessageId>,
    /// The reason of a failure.
    pub code: Option<ErrorCode>,
}

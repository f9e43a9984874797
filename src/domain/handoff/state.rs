//! What is known of a task and of a handoff. Plain data; the rules are in `step`.

use std::time::Duration;

use super::views::{ReceiverView, SenderView};
use crate::{
    codes::ErrorCode,
    ids::{AgentId, MessageId, TaskId},
    time::Timestamp,
};

/// Most steps of a handoff that are kept. Beyond [`EXTENSIONS_KEPT_BELOW`] only steps that change the state are added.
pub const STEPS_MAX: usize = 256;
/// From this many kept steps on, extensions are not written down any more, so that they cannot grow without bound.
pub const EXTENSIONS_KEPT_BELOW: usize = 128;
/// Most offers of one handoff, over all candidates.
pub const OFFERS_MAX: usize = 32;

/// A unit of work. Exactly one agent owns it at every moment (SPEC 12, law 1).
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// Its id.
    pub id: TaskId,
    /// The kind of work.
    pub task_type: String,
    /// Who owns it.
    pub owner: AgentId,
    /// The fencing token: 1 at first, +1 each time the ownership moves.
    pub epoch: u64,
    /// How it is doing.
    pub status: TaskStatus,
    /// From 0 to 1, if the owner said.
    pub progress: Option<f64>,
    /// The owner's latest words.
    pub details: String,
    /// The one handoff that is open, if any.
    pub open_handoff: Option<MessageId>,
    /// Completed handoffs, oldest first; at most [`LoopLimits::handoffs_max`].
    pub hops: Vec<Hop>,
    /// Who lent it and gets it back, the latest last.
    pub delegators: Vec<AgentId>,
    /// The loop guard's limits.
    pub loop_limits: LoopLimits,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
}

/// How a task is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TaskStatus {
    /// Made; its owner has not said more.
    Created,
    /// Being worked on.
    InProgress,
    /// Somebody must say something first.
    WaitingForInput,
    /// Final: done.
    Completed,
    /// Final: could not be done.
    Failed,
    /// Final: not wanted any more.
    Canceled,
}

impl TaskStatus {
    /// Whether it never changes again.
    pub const fn is_final(self) -> bool {
        match self {
            Self::Created | Self::InProgress | Self::WaitingForInput => false,
            Self::Completed | Self::Failed | Self::Canceled => true,
        }
    }
}

/// One completed handoff of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hop {
    /// The handoff.
    pub handoff: MessageId,
    /// Who let go.
    pub sender: AgentId,
    /// Who took over.
    pub receiver: AgentId,
    /// The epoch that began with it.
    pub epoch: u64,
}

/// The loop guard's limits (SPEC 3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoopLimits {
    /// Completed handoffs of one task.
    pub handoffs_max: u32,
    /// Completed handoffs of one task along the same ordered pair of agents.
    pub handoffs_per_pair_max: u32,
}

impl Default for LoopLimits {
    fn default() -> Self {
        Self { handoffs_max: 16, handoffs_per_pair_max: 4 }
    }
}

/// How long each step of a handoff may take (SPEC 3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// From the ack of the request to the decision.
    pub accept: Duration,
    /// From the accept to the context.
    pub context: Duration,
    /// From the context to the completion.
    pub complete: Duration,
    /// All of it, over all candidates.
    pub whole: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            accept: Duration::from_secs(30),
            context: Duration::from_secs(60),
            complete: Duration::from_secs(120),
            whole: Duration::from_secs(360),
        }
    }
}

/// Whether a task is given away or lent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// The receiver owns it for good.
    #[default]
    Transfer,
    /// It comes back with the receiver's final status.
    Delegate,
}

/// Delivery order: higher first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Priority {
    /// After all others.
    Low,
    /// The usual.
    #[default]
    Medium,
    /// Before the usual.
    High,
    /// Before all others.
    Critical,
}

/// One attempt to move a task from its owner to another agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handoff {
    /// The id of its request; where that was redriven, an id of its own.
    pub id: MessageId,
    /// The handoff that this one tries again, if its request was a dead letter and redriven.
    pub redrive_of: Option<MessageId>,
    /// The task it moves.
    pub task: TaskId,
    /// The task's epoch when it was asked for. It holds as long as the handoff is open.
    pub epoch: u64,
    /// The owner who asked.
    pub sender: AgentId,
    /// The receiver as the request named it.
    pub receiver: String,
    /// Who is asked now, or was last.
    pub candidate: AgentId,
    /// Who would be asked next, in this order.
    pub next_candidates: Vec<AgentId>,
    /// Every offer, oldest first; the last one is the present candidate's.
    pub offers: Vec<Offer>,
    /// The state.
    pub state: State,
    /// Given away or lent.
    pub mode: Mode,
    /// The priority of its deliveries.
    pub priority: Priority,
    /// The kind of work.
    pub task_type: String,
    /// Why, as the request's number for it.
    pub reason: i32,
    /// How long each step may take.
    pub timeouts: Timeouts,
    /// When the present state ends by itself, if it does.
    pub step_deadline: Option<Timestamp>,
    /// When the whole handoff ends by itself.
    pub whole_deadline: Timestamp,
    /// Sections that the accept asked for; empty means all.
    pub wanted_sections: Vec<String>,
    /// The digest of the context, once it is stored.
    pub context_digest: Option<[u8; 32]>,
    /// The candidate has acked the context.
    pub context_delivered: bool,
    /// The sender has acked the completion.
    pub let_go: bool,
    /// Why it did not complete, once that is so.
    pub failure: Option<Failure>,
    /// Every step, oldest first; at most [`STEPS_MAX`].
    pub steps: Vec<Step>,
    /// When the request was stored.
    pub created_at: Timestamp,
    /// When it last moved.
    pub updated_at: Timestamp,
}

/// The state of a handoff at the broker (SPEC 3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// Stored; on its way to the candidate.
    Requested,
    /// The candidate has acked the request and decides.
    Deciding,
    /// The candidate took it; the sender prepares the context.
    Accepted,
    /// The context is stored; the candidate takes it over.
    ContextSent,
    /// Final: the receiver owns the task.
    Completed,
    /// Final: no candidate took it.
    Rejected,
    /// Final: it failed or ran out of time.
    Failed,
    /// Final: the sender took it back.
    Cancelled,
}

impl State {
    /// All of them.
    pub const ALL: [State; 8] = [
        State::Requested,
        State::Deciding,
        State::Accepted,
        State::ContextSent,
        State::Completed,
        State::Rejected,
        State::Failed,
        State::Cancelled,
    ];

    /// Whether it never changes again.
    pub const fn is_final(self) -> bool {
        match self {
            Self::Requested | Self::Deciding | Self::Accepted | Self::ContextSent => false,
            Self::Completed | Self::Rejected | Self::Failed | Self::Cancelled => true,
        }
    }

    /// The name in SPEC 3.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Requested => "REQUESTED",
            Self::Deciding => "DECIDING",
            Self::Accepted => "ACCEPTED",
            Self::ContextSent => "CONTEXT_SENT",
            Self::Completed => "COMPLETED",
            Self::Rejected => "REJECTED",
            Self::Failed => "FAILED",
            Self::Cancelled => "CANCELLED",
        }
    }
}

/// One offer to one candidate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    /// Who was asked.
    pub candidate: AgentId,
    /// When the offer was stored.
    pub offered_at: Timestamp,
    /// What became of it.
    pub outcome: OfferOutcome,
    /// Why it was rejected, as the reject's number for it; 0 if it was not.
    pub reject_reason: i32,
    /// The candidate's words.
    pub reason_text: String,
}

/// What became of an offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OfferOutcome {
    /// Not decided yet.
    Pending,
    /// Accepted.
    Accepted,
    /// Rejected.
    Rejected,
    /// Not decided in time.
    TimedOut,
    /// The handoff ended before the candidate decided.
    Withdrawn,
    /// The request could not be delivered.
    Undeliverable,
    /// The candidate was gone before it had the request, and another was asked.
    Gone,
}

/// Why a handoff did not complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The stable code.
    pub code: ErrorCode,
    /// In words.
    pub message: String,
}

/// One step of a handoff, of either side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// When it was stored.
    pub at: Timestamp,
    /// What moved it.
    pub cause: Cause,
    /// The state after it.
    pub state: State,
    /// The sender's view after it.
    pub sender_view: SenderView,
    /// The receiver's view after it.
    pub receiver_view: ReceiverView,
    /// The candidate at that time.
    pub candidate: AgentId,
}

/// What moves a handoff.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The request was stored, or offered to the next candidate.
    Requested,
    /// A delivery of it was acked.
    Delivered,
    /// The candidate accepted.
    Accepted,
    /// The candidate rejected.
    Rejected,
    /// The candidate did not decide in time.
    AcceptTimeout,
    /// The context was stored.
    ContextStored,
    /// The sender did not send the context in time.
    ContextTimeout,
    /// The candidate took over.
    Completed,
    /// The candidate could not take over.
    CompletedFailure,
    /// The candidate did not complete in time.
    CompleteTimeout,
    /// The time for the whole handoff was up.
    WholeTimeout,
    /// The sender took it back.
    Cancelled,
    /// The ownership moved, in the commit that completed the handoff.
    OwnershipMoved,
    /// The side that is on turn asked for more time.
    Extended,
    /// The request or the context could not be delivered.
    Undeliverable,
    /// The candidate was gone before it had the request, and another could be asked.
    CandidateGone,
}

impl Task {
    /// Whether the agent is the owner, or was.
    pub fn has_been_owned_by(&self, agent: &AgentId) -> bool {
        self.owner == *agent || self.hops.iter().any(|hop| hop.sender == *agent || hop.receiver == *agent)
    }
}

impl Handoff {
    /// Whether the agent is the candidate, or was.
    pub fn was_offered_to(&self, agent: &AgentId) -> bool {
        self.offers.iter().any(|offer| offer.candidate == *agent)
    }

    /// When something happens by itself next; `None` in a final state.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        if self.state.is_final() {
            return None;
        }
        Some(self.step_deadline.map_or(self.whole_deadline, |step| step.min(self.whole_deadline)))
    }

    /// The handoff as its sender sees it.
    pub fn sender_view(&self) -> SenderView {
        SenderView::of(self)
    }

    /// The handoff as its present candidate sees it.
    pub fn receiver_view(&self) -> ReceiverView {
        ReceiverView::of(self)
    }
}

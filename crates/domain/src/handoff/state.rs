//! The state of tasks and handoffs. Plain data; the rules are in `step`.

use std::time::Duration;

use super::{
    Mode, Priority, TaskStatus, WorkTerms,
    views::{ReceiverView, SenderView},
};
use crate::{
    OtherSide,
    codes::ErrorCode,
    ids::{AgentId, ConversationId, FairnessKey, MessageId, TaskId, ThreadId},
    plan::PlanRef,
    routing::HandoffRef,
    time::Timestamp,
};

/// The most steps that a handoff keeps. Beyond [`EXTENSIONS_KEPT_BELOW`] only steps that change the state are added.
pub const STEPS_MAX: usize = 256;
/// From this number of steps on, extensions are not recorded, so that they cannot grow without bound.
pub const EXTENSIONS_KEPT_BELOW: usize = 128;
/// The most questions that a task remembers. An answer to an older one is refused as one that was never asked.
pub const PROMPTS_MAX: usize = 8;
/// The most offers of one handoff, over all candidates.
pub const OFFERS_MAX: usize = 32;
/// The most agents that a handoff records as passed over, in addition to its offers.
pub const PASSED_OVER_MAX: usize = 32;

/// A unit of work. Exactly one agent owns it at every moment (SPEC 12, law 1).
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// The id, from the request that created the task. It is never used for another task.
    pub id: TaskId,
    /// The kind of work.
    pub task_type: String,
    /// The agent that owns the task.
    pub owner: AgentId,
    /// The fencing token: 1 at first, and 1 higher with each move of the ownership.
    pub epoch: u64,
    /// The status: CREATED at first, then as the owner reports it, and IN_PROGRESS when a loan ends. A final one never
    /// changes.
    pub status: TaskStatus,
    /// The progress from 0 to 1, if the owner has reported it.
    pub progress: Option<f64>,
    /// The details of the owner's latest report.
    pub details: String,
    /// The latest report with a final status that has a result. The message keeps the result itself.
    pub result: Option<MessageId>,
    /// The latest questions, oldest first, at most [`PROMPTS_MAX`]. Only the last one can be open. The latest one with an
    /// answer stays among them.
    pub prompts: Vec<Prompt>,
    /// The task that this one is a part of.
    pub parent: Option<TaskId>,
    /// The outer conversation that the task belongs to.
    pub conversation: Option<ConversationId>,
    /// The `TaskCreate` that created the task. `None`: a request did.
    pub created_by: Option<MessageId>,
    /// The subtask of a plan that the task carries out.
    pub plan: Option<PlanRef>,
    /// The open handoff, if one is open.
    pub open_handoff: Option<MessageId>,
    /// The completed handoffs, oldest first; at most [`LoopLimits::handoffs_max`], and those of the coordinator.
    pub hops: Vec<Hop>,
    /// The loans of the task that have not ended, the outermost first. Each returns the task to its delegator.
    pub loans: Vec<Loan>,
    /// The terms of the transfer by which the owner has the task. `None`: they name no `silence_timeout`, or the owner has
    /// the task otherwise.
    pub transfer: Option<TransferTerms>,
    /// The owners from which an operator has taken the task: the first seizure from each, oldest first.
    pub seizures: Vec<Seizure>,
    /// The loop guard's limits.
    pub loop_limits: LoopLimits,
    /// The time of creation.
    pub created_at: Timestamp,
    /// The time of the last change.
    pub updated_at: Timestamp,
}

/// A question of an owner to one agent (SPEC 2). Its text is in the status report that asks it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// The status report that asks. An answer names it.
    pub id: MessageId,
    /// The agent that was asked.
    pub asked: AgentId,
    /// The time at which the question was stored.
    pub asked_at: Timestamp,
    /// The time at which the question expires. `None`: never.
    pub due: Option<Timestamp>,
    /// Whether the question waits for its answer, or how it ended.
    pub state: PromptState,
    /// The answer. `None`: the question has none.
    pub answer: Option<Answer>,
}

/// The answer to a question. Its words are in the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// The message that answers.
    pub id: MessageId,
    /// The time at which the answer was stored.
    pub at: Timestamp,
}

/// The state of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PromptState {
    /// The question waits for its answer.
    Open,
    /// The agent that was asked has answered.
    Answered,
    /// The question got no answer in time.
    Expired,
    /// A later report of the owner, a move of the ownership or the end of the task has withdrawn the question.
    Withdrawn,
}

/// One completed handoff of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hop {
    /// The id of the completed handoff.
    pub handoff: MessageId,
    /// The agent that gave the task away.
    pub sender: AgentId,
    /// The agent that took the task over.
    pub receiver: AgentId,
    /// The epoch that began with the handoff.
    pub epoch: u64,
}

/// The end of an ownership by a reassignment: the coordinator owns the task next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seizure {
    /// The former owner.
    pub from: AgentId,
    /// The epoch that began with the seizure.
    pub epoch: u64,
    /// The handoff by which the coordinator hands the task on.
    pub handoff: MessageId,
}

/// Ownership given with mode DELEGATE, until it returns to the delegator (SPEC 3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loan {
    /// The agent that lent the task and gets it back.
    pub delegator: AgentId,
    /// The completed handoff that lent the task. A recall names it.
    pub handoff: MessageId,
    /// The time at which the broker recalls the task; the time for which a question with a deadline waits is added when the
    /// question ends. `None`: the loan has no timeout.
    pub due: Option<Timestamp>,
    /// The latest time to which the delegate can extend `due`. `None`: it cannot.
    pub due_max: Option<Timestamp>,
    /// The silence of the owner after which the broker recalls the task, 5 s to 1 day. `None`: silence is not judged.
    pub silence_timeout: Option<Duration>,
    /// The thread that gets a message when the loan ends. `None`: none.
    pub thread: Option<ThreadId>,
}

/// The terms of the transfer by which the present owner has the task, if its silence is judged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransferTerms {
    /// The agent that handed the task over.
    pub former: AgentId,
    /// The handoff.
    pub handoff: MessageId,
    /// The silence of the owner after which the task counts as abandoned, 5 s to 1 day.
    pub silence_timeout: Duration,
    /// Whether the task then goes back to `former`. False: `former` is told.
    pub returns: bool,
    /// Whether `former` was told. The silence is not judged after that.
    pub is_told: bool,
}

/// The loop guard's limits (SPEC 3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoopLimits {
    /// The most completed handoffs of one task.
    pub handoffs_max: u32,
    /// The most completed handoffs of one task along the same ordered pair of agents.
    pub handoffs_per_pair_max: u32,
}

impl Default for LoopLimits {
    fn default() -> Self {
        Self { handoffs_max: 16, handoffs_per_pair_max: 4 }
    }
}

/// The timeouts of the steps of a handoff (SPEC 3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// From the ack of the request to the decision, unless the offer has a time of its own.
    pub accept: Duration,
    /// From the accept to the context.
    pub context: Duration,
    /// From the context to the completion.
    pub complete: Duration,
    /// The whole handoff, over all candidates.
    pub whole: Duration,
}

impl Timeouts {
    /// The shortest of all.
    pub fn shortest(self) -> Duration {
        self.accept.min(self.context).min(self.complete).min(self.whole)
    }
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

/// One attempt to move a task from its owner to another agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handoff {
    /// The id of the request. A redriven request has a new id here.
    pub id: MessageId,
    /// The handoff that this one tries again, if an operator redrove its request.
    pub redrive_of: Option<MessageId>,
    /// The task that the handoff moves.
    pub task: TaskId,
    /// The task's epoch at the time of the request. It stays current while the handoff is open.
    pub epoch: u64,
    /// The owner that sent the request.
    pub sender: AgentId,
    /// The receiver that the request names.
    pub receiver: String,
    /// The current candidate; after the end, the last one.
    pub candidate: AgentId,
    /// The next candidates, in this order.
    pub next_candidates: Vec<AgentId>,
    /// The latest offer to each agent, oldest first, with the agents that were passed over. The last one is to the
    /// current candidate, unless the handoff waits.
    pub offers: Vec<Offer>,
    /// The state at the broker, from which both views follow.
    pub state: State,
    /// Whether the task is transferred or delegated.
    pub mode: Mode,
    /// The time from the completion until the broker recalls a delegated task, 1 s to 30 d. `None`: no loan timeout.
    pub loan_timeout: Option<Duration>,
    /// What the request says about the work after the takeover.
    pub work: WorkTerms,
    /// For whom the coordinator asks: an agent's id, or `operator:NAME`. `None`: the sender asks for itself.
    pub submitter: Option<String>,
    /// The choice of a run that the handoff carries out. A redriven handoff carries out none.
    pub routing: Option<HandoffRef>,
    /// The priority of its deliveries.
    pub priority: Priority,
    /// The part of the sender's requests that its request belongs to.
    pub fairness_key: Option<FairnessKey>,
    /// The kind of work.
    pub task_type: String,
    /// The reason, as a number of the request's enum.
    pub reason: i32,
    /// The timeouts of the steps.
    pub timeouts: Timeouts,
    /// The deadline of the present state, if the state has one.
    pub step_deadline: Option<Timestamp>,
    /// The deadline of the whole handoff.
    pub whole_deadline: Timestamp,
    /// The sections that the accept asks for. Empty: all sections.
    pub wanted_sections: Vec<String>,
    /// The time that the candidate expects to need for the takeover. `None`: not stated.
    pub estimate: Option<Duration>,
    /// What the handoff waits for while no candidate has the offer. `None`: a candidate has it, or the handoff has ended.
    pub waiting: Option<Waiting>,
    /// Whether the request waits for an agent that is still to register.
    pub wait_for_agent: bool,
    /// The thread that gets a message when the delegation ends. `None`: the request names none.
    pub thread: Option<ThreadId>,
    /// The digest of the context, once the context is stored.
    pub context_digest: Option<[u8; 32]>,
    /// Whether the candidate has acked the context.
    pub context_delivered: bool,
    /// Whether the sender has acked the completion.
    pub let_go: bool,
    /// The reason of the failure, once the handoff has ended without completion.
    pub failure: Option<Failure>,
    /// The negotiation whose award the handoff is.
    pub negotiation: Option<MessageId>,
    /// The steps, oldest first; at most [`STEPS_MAX`]. Beyond that the first one and the latest are kept.
    pub steps: Vec<Step>,
    /// The time at which the request was stored.
    pub created_at: Timestamp,
    /// The time of the last step.
    pub updated_at: Timestamp,
}

/// The state of a handoff at the broker (SPEC 3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// The request is stored and not yet acked by the candidate.
    Requested,
    /// The candidate has acked the request and decides.
    Deciding,
    /// The candidate has accepted; the sender prepares the context.
    Accepted,
    /// The context is stored; the candidate takes it over.
    ContextSent,
    /// Final: the receiver owns the task.
    Completed,
    /// Final: no candidate accepted.
    Rejected,
    /// Final: the handoff failed or timed out.
    Failed,
    /// Final: the sender cancelled the handoff.
    Cancelled,
}

impl State {
    /// All states: the open ones in their order, then the final ones.
    pub const ALL: [Self; 8] = [
        Self::Requested,
        Self::Deciding,
        Self::Accepted,
        Self::ContextSent,
        Self::Completed,
        Self::Rejected,
        Self::Failed,
        Self::Cancelled,
    ];

    /// Whether the state is final.
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
    /// The agent that was asked.
    pub candidate: AgentId,
    /// The time at which the offer was stored.
    pub offered_at: Timestamp,
    /// The outcome. Only the last offer of an open handoff can be pending.
    pub outcome: OfferOutcome,
    /// The reason of the rejection, as a number of the reject's enum; 0 if the offer was not rejected.
    pub reject_reason: i32,
    /// The reason in the candidate's words.
    pub reason_text: String,
    /// The time from which on the candidate may be asked again. `None`: never.
    pub retry_at: Option<Timestamp>,
    /// Whether the candidate named no time, and is asked earlier if its load falls before that.
    pub until_room: bool,
    /// The number of earlier offers to this candidate in this handoff.
    pub repeats: u32,
    /// Whether the broker passed the candidate over without asking it. Then the outcome is [`OfferOutcome::Rejected`].
    pub passed_over: bool,
    /// The time for the decision from the candidate's card, as it was at the ack of the request. `None`: that of the
    /// handoff's timeouts.
    pub decides_within: Option<Duration>,
}

/// What an open handoff waits for while no candidate has the offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Waiting {
    /// All candidates that are left are full. The first that has room is asked.
    Capacity,
    /// The time from which on a candidate may be asked again.
    RetryTime,
    /// An agent that is still to register.
    Agent,
    /// The time before which the request asks no agent.
    DeliverAfter,
}

/// The outcome of an offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OfferOutcome {
    /// The candidate may still decide.
    Pending,
    /// The candidate accepted: the last offer of its handoff.
    Accepted,
    /// The candidate rejected; the offer has the reason.
    Rejected,
    /// Not decided in time.
    TimedOut,
    /// The handoff ended before the candidate decided.
    Withdrawn,
    /// The request could not be delivered.
    Undeliverable,
    /// The candidate was gone before it got the request, and another one was asked.
    Gone,
}

/// The reason why a handoff did not complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The stable error code.
    pub code: ErrorCode,
    /// The message, for a person to read.
    pub message: String,
}

/// One step of a handoff, of either side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The time at which the step was stored.
    pub at: Timestamp,
    /// The cause of the step.
    pub cause: Cause,
    /// The state after the step.
    pub state: State,
    /// The sender's view after the step.
    pub sender_view: SenderView,
    /// The receiver's view after the step.
    pub receiver_view: ReceiverView,
    /// The candidate at that time.
    pub candidate: AgentId,
}

/// The cause of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The request was stored, or offered to the next candidate.
    Requested,
    /// A delivery of the handoff was acked.
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
    /// The whole handoff timed out.
    WholeTimeout,
    /// The sender cancelled the handoff.
    Cancelled,
    /// The ownership moved, in the commit that completed the handoff.
    OwnershipMoved,
    /// The agent on turn asked for more time.
    Extended,
    /// The request or the context could not be delivered.
    Undeliverable,
    /// The candidate was gone before it got the request, and another one could be asked.
    CandidateGone,
    /// The task was recalled from the handoff's sender: the loan that made it the owner has ended.
    Recalled,
    /// An operator took the task from the handoff's sender.
    Reassigned,
    /// The broker cancelled the task.
    TaskCanceled,
    /// No candidate can be asked now: the handoff waits.
    Held,
}

impl Task {
    /// Whether the agent is the present owner or a former one.
    pub fn has_been_owned_by(&self, agent: &AgentId) -> bool {
        self.owner == *agent
            || self.hops.iter().any(|hop| hop.sender == *agent || hop.receiver == *agent)
            || self.seizures.iter().any(|seizure| seizure.from == *agent)
    }

    /// Every present and former owner; an agent may occur more than once.
    pub fn owners(&self) -> impl Iterator<Item = &AgentId> {
        let handed_over = self.hops.iter().flat_map(|hop| [&hop.sender, &hop.receiver]);
        handed_over.chain(self.seizures.iter().map(|seizure| &seizure.from)).chain([&self.owner])
    }

    /// The agent that created the task: its first owner.
    pub fn creator(&self) -> &AgentId {
        match (self.hops.first(), self.seizures.first()) {
            (Some(hop), Some(seizure)) if seizure.epoch < hop.epoch => &seizure.from,
            (Some(hop), _) => &hop.sender,
            (None, Some(seizure)) => &seizure.from,
            (None, None) => &self.owner,
        }
    }

    /// Whether the owner has asked the agent one of the latest questions.
    pub fn has_asked(&self, agent: &AgentId) -> bool {
        self.prompts.iter().any(|prompt| prompt.asked == *agent)
    }

    /// The latest question that was answered, with its answer.
    pub fn last_answered(&self) -> Option<(&Prompt, Answer)> {
        self.prompts.iter().rev().find_map(|prompt| Some((prompt, prompt.answer?)))
    }

    /// The open question.
    pub fn open_prompt(&self) -> Option<&Prompt> {
        self.prompts.last().filter(|prompt| prompt.state == PromptState::Open)
    }

    /// Whether a question with a deadline is open. Until its end the clocks of the loans stand still, and the owner is not
    /// silent.
    pub fn waits_for_answer(&self) -> bool {
        self.open_prompt().is_some_and(|prompt| prompt.due.is_some())
    }

    /// The time at which the open question expires or else the first loan is due, or at which the owner counts as silent.
    /// `None`: nothing has a deadline. A final task has no loans and no open question.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        self.due().into_iter().chain(self.silent_at()).min()
    }

    /// The time at which the open question expires or else the first loan is due. `None`: neither has a deadline.
    pub fn due(&self) -> Option<Timestamp> {
        let prompt = self.open_prompt().and_then(|prompt| prompt.due);
        prompt.or_else(|| self.loans.iter().filter_map(|loan| loan.due).min())
    }
}

impl Handoff {
    /// The offers that an agent got: those of agents that were passed over are left out.
    pub fn made_offers(&self) -> impl Iterator<Item = &Offer> {
        self.offers.iter().filter(|offer| !offer.passed_over)
    }

    /// Whether the handoff is open and no candidate has the offer.
    pub fn is_held(&self) -> bool {
        self.waiting.is_some()
    }

    /// Whether the handoff is open and its candidate has the offer.
    pub fn has_offer(&self) -> bool {
        !self.state.is_final() && !self.is_held()
    }

    /// The agent that the handoff shows as its candidate. `None`: it waits, and no agent can be named yet.
    pub fn shown_candidate(&self) -> Option<&AgentId> {
        (self.candidate != self.sender).then_some(&self.candidate)
    }

    /// The agents of former offers that may be asked again, each with the time and whether room is enough before that.
    pub fn retries(&self) -> impl Iterator<Item = (&AgentId, Timestamp, bool)> {
        self.offers.iter().filter_map(|offer| Some((&offer.candidate, offer.retry_at?, offer.until_room)))
    }

    /// The time from the ack of the request to the decision of the latest offer's candidate.
    pub fn time_to_decide(&self) -> Duration {
        self.offers.last().map_or(self.timeouts.accept, |offer| self.time_to_decide_about(offer))
    }

    /// The time from the ack of the request to the decision about an offer.
    pub fn time_to_decide_about(&self, offer: &Offer) -> Duration {
        offer.decides_within.unwrap_or(self.timeouts.accept)
    }

    /// The time from the context to the completion: the timeout of the request, or the candidate's own longer estimate.
    pub fn time_to_complete(&self) -> Duration {
        self.estimate.map_or(self.timeouts.complete, |estimate| estimate.max(self.timeouts.complete))
    }

    /// Whether the broker opened the handoff for a negotiation, under the mandate of its `TaskRequest`.
    pub fn is_mandated(&self) -> bool {
        self.negotiation == Some(self.id)
    }

    /// Whether the agent is the current candidate or a former one.
    pub fn was_offered_to(&self, agent: &AgentId) -> bool {
        self.offers.iter().any(|offer| offer.candidate == *agent && !offer.passed_over)
    }

    /// The agent that a message of this sender must be addressed to. `None`: any receiver.
    pub fn other_side(&self, rule: OtherSide, sender: &AgentId) -> Option<&AgentId> {
        // A message about an offer that no agent has is addressed to none in particular.
        if self.is_held() && *sender == self.sender {
            return None;
        }
        match rule {
            OtherSide::Any => None,
            OtherSide::Sender => Some(&self.sender),
            OtherSide::Candidate => Some(&self.candidate),
            OtherSide::CandidateWhileOpen => {
                (*sender == self.sender && !self.state.is_final()).then_some(&self.candidate)
            }
        }
    }

    /// The time of the next deadline. `None`: the state is final.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        if self.state.is_final() {
            return None;
        }
        Some(self.step_deadline.map_or(self.whole_deadline, |step| step.min(self.whole_deadline)))
    }

    /// The sender's view of the handoff.
    pub fn sender_view(&self) -> SenderView {
        SenderView::of(self)
    }

    /// The current candidate's view of the handoff.
    pub fn receiver_view(&self) -> ReceiverView {
        ReceiverView::of(self)
    }
}

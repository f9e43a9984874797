//! The two views of a handoff (SPEC 3): derived from its state, never stored beside it.

use super::state::{Handoff, State};

/// The sender's view of a handoff. Before the request is stored the sender is in Idle, then in HandoffInitiated; the
/// broker knows neither.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SenderView {
    /// The handoff was cancelled.
    Idle,
    /// The sender waits for a candidate to accept.
    AwaitingHandoffAccept,
    /// The sender's turn: it prepares the context.
    ContextPreparing,
    /// The sender waits for the candidate to take the context over.
    AwaitingContextAck,
    /// The task has moved to the receiver.
    HandoffCompleted,
    /// The sender has acked the completion and let the task go.
    TaskFinished,
    /// No candidate accepted.
    HandoffRejected,
    /// The handoff failed; the sender still owns the task.
    HandoffFailed,
}

/// The current candidate's view of a handoff.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReceiverView {
    /// The handoff was cancelled.
    Idle,
    /// The request is on its way to the candidate.
    HandoffRequested,
    /// The candidate's turn: it decides.
    AwaitingDecision,
    /// The candidate has accepted.
    HandoffAccepted,
    /// The candidate waits for the context.
    AwaitingContextTransfer,
    /// The candidate's turn: it has the context and takes it over.
    ContextTransferred,
    /// The task has moved to the candidate.
    HandoffCompleted,
    /// The candidate owns the task.
    Active,
    /// The candidate did not accept.
    HandoffRejected,
    /// The handoff failed; the candidate drops the received data.
    HandoffFailed,
}

impl SenderView {
    pub(super) fn of(handoff: &Handoff) -> Self {
        match handoff.state {
            State::Requested | State::Deciding => Self::AwaitingHandoffAccept,
            State::Accepted => Self::ContextPreparing,
            State::ContextSent => Self::AwaitingContextAck,
            State::Completed if handoff.let_go => Self::TaskFinished,
            State::Completed => Self::HandoffCompleted,
            State::Rejected => Self::HandoffRejected,
            State::Failed => Self::HandoffFailed,
            State::Cancelled => Self::Idle,
        }
    }
}

impl ReceiverView {
    /// The present view. `HandoffAccepted` occurs only in the record of the accepting step: the wait for the context
    /// begins in the same commit. Likewise `HandoffCompleted` in that of the completing step: a later query gets
    /// `Active`.
    pub(super) fn of(handoff: &Handoff) -> Self {
        match handoff.state {
            State::Requested => Self::HandoffRequested,
            State::Deciding => Self::AwaitingDecision,
            State::Accepted => Self::AwaitingContextTransfer,
            State::ContextSent if handoff.context_delivered => Self::ContextTransferred,
            State::ContextSent => Self::AwaitingContextTransfer,
            State::Completed => Self::Active,
            State::Rejected => Self::HandoffRejected,
            State::Failed => Self::HandoffFailed,
            State::Cancelled => Self::Idle,
        }
    }
}

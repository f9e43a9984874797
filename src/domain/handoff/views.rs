//! The two views of a handoff (SPEC 3): derived from its state, never kept beside it.

use super::state::{Handoff, State};

/// A handoff as its sender sees it. Before the request is stored the sender is in Idle, then HandoffInitiated; the
/// broker knows of neither.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SenderView {
    /// The handoff was cancelled.
    Idle,
    /// Waits for a candidate to take it.
    AwaitingHandoffAccept,
    /// On turn: prepares the context.
    ContextPreparing,
    /// Waits for the candidate to take the context over.
    AwaitingContextAck,
    /// The task has gone to the receiver.
    HandoffCompleted,
    /// It knows that the task has gone, and let go.
    TaskFinished,
    /// No candidate took it.
    HandoffRejected,
    /// It failed; the sender still owns the task.
    HandoffFailed,
}

/// A handoff as its present candidate sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReceiverView {
    /// The handoff was cancelled.
    Idle,
    /// The request is on its way to it.
    HandoffRequested,
    /// On turn: decides.
    AwaitingDecision,
    /// Waits for the context.
    AwaitingContextTransfer,
    /// On turn: has the context and takes it over.
    ContextTransferred,
    /// The task has come to it.
    HandoffCompleted,
    /// It owns the task.
    Active,
    /// It did not take it.
    HandoffRejected,
    /// It failed; drop what was received.
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
    /// The view now. `HandoffCompleted` is only in the record of the step that completes: the ownership moves in the
    /// same commit, so that whoever looks afterwards sees `Active`.
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

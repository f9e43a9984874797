//! The number of each enum value, the same on the wire and on disk. A test in `wire` checks them against the schema.

use super::{Cause, OfferOutcome, PromptState, ReceiverView, SenderView, State, Waiting};
use crate::numbered;

numbered! {
    State {
        Requested = 1, Deciding = 2, Accepted = 3, ContextSent = 4, Completed = 5, Rejected = 6, Failed = 7, Cancelled = 8,
    }
    OfferOutcome { Pending = 1, Accepted = 2, Rejected = 3, TimedOut = 4, Withdrawn = 5, Undeliverable = 6, Gone = 7, }
    SenderView {
        Idle = 1, AwaitingHandoffAccept = 3, ContextPreparing = 4, AwaitingContextAck = 5, HandoffCompleted = 6,
        TaskFinished = 7, HandoffRejected = 8, HandoffFailed = 9,
    }
    ReceiverView {
        Idle = 1, HandoffRequested = 2, AwaitingDecision = 3, AwaitingContextTransfer = 4, ContextTransferred = 5,
        HandoffCompleted = 6, Active = 7, HandoffRejected = 8, HandoffFailed = 9, HandoffAccepted = 10,
    }
    Waiting { Capacity = 1, RetryTime = 2, Agent = 3, DeliverAfter = 4, }
    PromptState { Open = 1, Answered = 2, Expired = 3, Withdrawn = 4, }
    Cause {
        Requested = 1, Delivered = 2, Accepted = 3, Rejected = 4, AcceptTimeout = 5, ContextStored = 6,
        ContextTimeout = 7, Completed = 8, CompletedFailure = 9, CompleteTimeout = 10, WholeTimeout = 11,
        Cancelled = 12, OwnershipMoved = 13, Extended = 14, Undeliverable = 15, CandidateGone = 16,
        Recalled = 17,
        Reassigned = 20, Held = 21, TaskCanceled = 22,
    }
}

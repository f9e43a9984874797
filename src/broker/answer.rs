//! What comes back from the pipeline, and to whom.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use crate::{codes::Refusal, ids::MessageId, proto::v1, records::DeadLetterRecord, time::Timestamp};

/// An error that a caller is told of.
pub type Refused = Arc<dyn Refusal + Send + Sync>;

/// An error as what a caller is told.
pub fn refused(error: impl Refusal + Send + Sync + 'static) -> Refused {
    Arc::new(error)
}

/// The answer to a command.
pub type Outcome = Result<Answer, Refused>;

/// What a command came to.
#[derive(Debug, Clone)]
pub enum Answer {
    /// An envelope is stored. Not signed yet: whoever sends it signs it, off the pipeline's thread.
    Receipt(Box<v1::Receipt>),
    /// An acknowledgement is taken.
    Acknowledged {
        /// The delivery.
        delivery_id: String,
        /// Its new deadline, after an extension.
        ack_deadline: Option<Timestamp>,
    },
    /// A credit is taken.
    Credited {
        /// The number in force.
        outstanding_max: u32,
    },
    /// An agent is registered.
    Registered,
    /// A dead letter as it is now.
    DeadLetter(Box<DeadLetterRecord>),
}

/// What goes out on a session.
#[derive(Debug)]
pub enum Event {
    /// The answer to a request. The permit bounds how many requests of a session are under way.
    Answer {
        /// Which request.
        request_id: u64,
        /// The answer.
        outcome: Outcome,
        /// Given back when this is dropped.
        permit: Option<OwnedSemaphorePermit>,
    },
    /// A message for the agent.
    Delivery(OutgoingDelivery),
    /// The session is about to end.
    GoAway,
}

/// A message handed out to an agent. It names the envelope and does not hold it: deliveries may wait long for an agent
/// that reads slowly, and whoever sends one reads the envelope then ([`super::Broker::envelope`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutgoingDelivery {
    /// Names this handing-out.
    pub delivery_id: String,
    /// The how-manieth handing-out it is.
    pub attempt: u32,
    /// The message's sequence.
    pub sequence: u64,
    /// The sequence under which its envelope is stored.
    pub bytes_at: u64,
    /// When it is delivered again.
    pub ack_deadline: Timestamp,
    /// The handoff, if it is a request.
    pub handoff: Option<MessageId>,
}

/// Where an answer goes.
#[derive(Debug)]
pub enum Reply {
    /// To one who waits for just this.
    Once(oneshot::Sender<Outcome>),
    /// Onto a session.
    Session {
        /// The session's way out. Not bounded by itself: permits bound the answers and credits the deliveries.
        events: mpsc::UnboundedSender<Event>,
        /// Which request; 0: only an error is answered.
        request_id: u64,
        /// One of the session's permits.
        permit: OwnedSemaphorePermit,
    },
}

impl Reply {
    /// Sends the answer. One who has gone away does not get it, and nothing is lost by that.
    pub fn send(self, outcome: Outcome) {
        match self {
            Reply::Once(sender) => drop(sender.send(outcome)),
            Reply::Session { request_id: 0, .. } if outcome.is_ok() => {}
            Reply::Session { events, request_id, permit } => {
                drop(events.send(Event::Answer { request_id, outcome, permit: Some(permit) }));
            }
        }
    }
}

//! The outputs of the engine, and the channels that carry them.
//!
//! This module owns the channels: the engine holds them as handles and calls nothing on them. The engine pairs each
//! output with its channel ([`Engine::poll_output`]), and [`send_outputs`] sends it.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};

use super::{Answer, Answered, Refused, engine::Engine};
use crate::{
    domain::{TraceContext, mailbox::EnvelopePlace},
    ids::{IdSet, MessageId},
    records::EntityRecord,
    time::Timestamp,
};

/// One output of the engine.
#[derive(Debug)]
pub enum Output {
    /// The answer to a command.
    Reply(Answered),
    /// An event for a consumer of mail.
    Event {
        /// The consumer's channel.
        to: Events,
        /// The delivery, the answer or the go-away.
        event: Event,
    },
    /// A new state of an entity, or the reason why the watcher ends.
    Update {
        /// The watcher. If it does not take the update, [`Engine::unwatch`] ends it.
        watcher: WatcherId,
        /// The watcher's channel.
        to: Updates,
        /// The new state. An error is the last update.
        update: Result<Update, Refused>,
    },
}

/// Sends all outputs of the engine in their order. A watcher that does not take an update gets no further one.
pub fn send_outputs(engine: &mut Engine) {
    let mut ended = IdSet::default();
    while let Some(output) = engine.poll_output() {
        match output {
            Output::Reply(answered) => answered.send(),
            Output::Event { to, event } => to.send(event),
            // A later update must not follow a lost one: the watcher would miss a state without notice.
            Output::Update { watcher, .. } if ended.contains(&watcher) => {}
            Output::Update { watcher, to, update } => {
                if !to.send(update) {
                    ended.insert(watcher);
                    engine.unwatch(watcher);
                }
            }
        }
    }
}

/// An event for a session or a call of `Receive`.
#[derive(Debug)]
pub enum Event {
    /// The answer to a session's request.
    Answer {
        /// The number of the request; 0 for a refusal of a request without a number.
        request_id: u64,
        /// The answer, or the refusal of the request.
        outcome: Result<Answer, Refused>,
        /// Bounds the session's requests under way. A drop gives it back.
        permit: Option<OwnedSemaphorePermit>,
    },
    /// A message for the agent.
    Delivery(OutgoingDelivery),
    /// The consumer is about to be closed.
    GoAway(Away),
}

/// The reason why a consumer is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Away {
    /// The broker stops.
    Stopping,
    /// The broker begins again with what its disk has.
    BeginsAgain,
    /// A key of the agent was revoked.
    KeyRevoked,
    /// The agent was deregistered.
    Deregistered,
}

/// The reason for people to read.
impl std::fmt::Display for Away {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Stopping => "the broker is stopping",
            Self::BeginsAgain => "the broker begins again after a failure of its disk or a change of its clock",
            Self::KeyRevoked => "a key of the agent was revoked; authenticate again with a valid key",
            Self::Deregistered => "the agent was deregistered",
        })
    }
}

/// A message dispatched to an agent. It names the envelope instead of holding it: deliveries may wait long for a slow
/// reader, and the wire reads the envelope when it sends one ([`super::Broker::envelope`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutgoingDelivery {
    /// The id of this delivery attempt.
    pub delivery_id: String,
    /// The delivery attempt, starting at 1.
    pub attempt: u32,
    /// The sequence of the message, as in its receipt. A notice of the broker has no receipt.
    pub sequence: u64,
    /// The place of the stored envelope.
    pub bytes_at: EnvelopePlace,
    /// The time after which an unacked message is delivered again.
    pub ack_deadline: Timestamp,
    /// The handoff, if the message is its request.
    pub handoff: Option<MessageId>,
    /// The trace context that the agent continues.
    pub trace: Option<Box<TraceContext>>,
}

/// The channel to a consumer. The channel is unbounded: permits bound the answers, and credit bounds the deliveries.
#[derive(Debug, Clone)]
pub struct Events(mpsc::UnboundedSender<Event>);

impl Events {
    /// A channel and its receiver. The receiver ends when all clones of the channel are dropped.
    pub fn channel() -> (Self, mpsc::UnboundedReceiver<Event>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Self(sender), receiver)
    }

    /// Waits until the receiver is dropped.
    pub async fn closed(&self) {
        self.0.closed().await;
    }

    /// Sends an event. A dropped receiver ignores it: the consumer is about to be closed, which ends its leases.
    pub(super) fn send(&self, event: Event) {
        drop(self.0.send(event));
    }
}

/// The id of a watcher, never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WatcherId(pub u64);

/// A state of an entity for its watchers.
#[derive(Debug, Clone)]
pub struct Update(pub Arc<EntityRecord>);

impl Update {
    /// Whether no further update follows.
    pub fn is_last(&self) -> bool {
        self.0.is_settled()
    }
}

/// The channel to a watcher.
#[derive(Debug, Clone)]
pub enum Updates {
    /// For a watcher that needs each update. A full channel ends the watcher, and closes before the last update.
    Each(mpsc::Sender<Result<Update, Refused>>),
    /// For a watcher that needs only the latest update. It is never too slow.
    Latest(watch::Sender<Option<Result<Update, Refused>>>),
}

impl Updates {
    /// A channel for each update, with at most `waiting_max` unreceived ones, and its receiver.
    pub fn each(waiting_max: usize) -> (Self, mpsc::Receiver<Result<Update, Refused>>) {
        let (sender, receiver) = mpsc::channel(waiting_max);
        (Self::Each(sender), receiver)
    }

    /// A channel for the latest update, and its receiver, which holds `None` before the first update.
    pub fn latest() -> (Self, watch::Receiver<Option<Result<Update, Refused>>>) {
        let (sender, receiver) = watch::channel(None);
        (Self::Latest(sender), receiver)
    }

    /// Whether the channel takes the update. `false`: the watcher is too slow, or has gone.
    fn send(&self, update: Result<Update, Refused>) -> bool {
        match self {
            // The engine's thread never waits for a watcher.
            Self::Each(sender) => sender.try_send(update).is_ok(),
            Self::Latest(sender) => sender.send(Some(update)).is_ok(),
        }
    }
}

//! What the engine wants sent, and the channels onto which it goes.
//!
//! Owns the channels: the engine holds them as handles and calls nothing on them. It says what goes onto which
//! ([`Engine::poll_output`]), and [`send_outputs`] sends it.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};

use super::{Answer, Answered, Refused, engine::Engine};
use crate::{
    ids::{IdSet, MessageId},
    records::EntityRecord,
    time::Timestamp,
};

/// One thing that the engine wants sent.
#[derive(Debug)]
pub enum Output {
    /// The answer to a command.
    Reply(Answered),
    /// An event for a consumer of mail.
    Event {
        /// The consumer's way out.
        to: Events,
        /// The event.
        event: Event,
    },
    /// A new state of an entity, or why the watcher gets no more of them.
    Update {
        /// The watcher, to be ended with [`Engine::unwatch`] where it does not take the update.
        watcher: WatcherId,
        /// The watcher's way out.
        to: Updates,
        /// The update.
        update: Result<Update, Refused>,
    },
}

/// Sends all that the engine wants sent, in its order. A watcher that does not take an update gets no further one.
pub fn send_outputs(engine: &mut Engine) {
    let mut ended = IdSet::default();
    while let Some(output) = engine.poll_output() {
        match output {
            Output::Reply(answered) => answered.send(),
            Output::Event { to, event } => to.send(event),
            // The update after one that was left out would leave a gap.
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

/// What goes out to a session or a call of `Receive`.
#[derive(Debug)]
pub enum Event {
    /// The answer to a session's request.
    Answer {
        /// The request's number, not 0 but for a refusal.
        request_id: u64,
        /// The answer.
        outcome: Result<Answer, Refused>,
        /// Bounds how many requests of a session are under way; given back when this is dropped.
        permit: Option<OwnedSemaphorePermit>,
    },
    /// A message for the agent.
    Delivery(OutgoingDelivery),
    /// The consumer is about to be closed.
    GoAway,
}

/// A message handed out to an agent. It names the envelope and does not hold it: deliveries may wait long for an agent
/// that reads slowly, and the wire reads the envelope when it sends one ([`super::Broker::envelope`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutgoingDelivery {
    /// Names this delivery attempt.
    pub delivery_id: String,
    /// The delivery attempt, starting at 1.
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

/// A consumer's way out. Has no bound of its own: permits bound the answers, and credits the deliveries.
#[derive(Debug, Clone)]
pub struct Events(mpsc::UnboundedSender<Event>);

impl Events {
    /// A way out, and its end. The end is over once all clones of the way out are dropped.
    pub fn channel() -> (Self, mpsc::UnboundedReceiver<Event>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Self(sender), receiver)
    }

    /// Ends when the receiver is dropped.
    pub async fn closed(&self) {
        self.0.closed().await;
    }

    /// A consumer that has gone gets nothing: it is about to be closed, and its leases end then.
    pub(super) fn send(&self, event: Event) {
        drop(self.0.send(event));
    }
}

/// Names a watcher, and is never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WatcherId(pub u64);

/// A state of an entity, as its watchers see it.
#[derive(Debug, Clone)]
pub struct Update(pub Arc<EntityRecord>);

impl Update {
    /// Whether no further update follows.
    pub fn is_last(&self) -> bool {
        self.0.is_settled()
    }
}

/// A watcher's way out.
#[derive(Debug, Clone)]
pub enum Updates {
    /// For a watcher that needs each update. It is ended when the channel is full: the channel closes before the last one.
    Each(mpsc::Sender<Result<Update, Refused>>),
    /// For a watcher that needs the latest update only, and is never too slow.
    Latest(watch::Sender<Option<Result<Update, Refused>>>),
}

impl Updates {
    /// A way out for each update, of which at most `waiting_max` wait to be received; and its end.
    pub fn each(waiting_max: usize) -> (Self, mpsc::Receiver<Result<Update, Refused>>) {
        let (sender, receiver) = mpsc::channel(waiting_max);
        (Self::Each(sender), receiver)
    }

    /// A way out for the latest update, and its end; `None` until there is one.
    pub fn latest() -> (Self, watch::Receiver<Option<Result<Update, Refused>>>) {
        let (sender, receiver) = watch::channel(None);
        (Self::Latest(sender), receiver)
    }

    /// Whether the watcher gets it. `false`: it is too slow, or has gone.
    fn send(&self, update: Result<Update, Refused>) -> bool {
        match self {
            Self::Each(sender) => sender.try_send(update).is_ok(),
            Self::Latest(sender) => sender.send(Some(update)).is_ok(),
        }
    }
}

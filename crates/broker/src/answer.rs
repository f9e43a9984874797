//! The answers to commands, and the channels back to their callers.
//!
//! The type of a [`Reply`] gives the type of a command's answer. The engine cannot send a reply: it joins reply and
//! answer to an [`Answered`], which the driver sends after the commit.

use std::{fmt, sync::Arc};

use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::{Event, Events};
use crate::{
    codes::Refusal,
    domain::handoff::Handoff,
    ids::{InstanceId, TaskId},
    proto::v1,
    records::TaskRecord,
    time::Timestamp,
};

/// An error for a caller.
pub type Refused = Arc<dyn Refusal + Send + Sync>;

/// Turns an error into one for a caller.
pub fn refused(error: impl Refusal + Send + Sync + 'static) -> Refused {
    Arc::new(error)
}

/// The answer to [`super::engine::Command::Acknowledge`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acknowledged {
    /// The id of the delivery, as the agent gave it.
    pub delivery_id: String,
    /// The new deadline after an extension. `None`: the lease has ended.
    pub ack_deadline: Option<Timestamp>,
}

/// The answer to [`super::engine::Command::Credit`] and [`super::engine::Command::Heartbeat`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Credited {
    /// The credit in force; 0 if the consumer is not open.
    pub outstanding_max: u32,
}

/// The most processes of an agent that the answer to [`super::engine::Command::Processes`] has.
pub const PROCESSES_SHOWN: usize = 100;

/// A process of an agent with an open session, as the answer to [`super::engine::Command::Processes`] has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunningProcess {
    /// The id that the process has chosen. `None`: it has said none.
    pub instance: Option<InstanceId>,
    /// When its session was opened.
    pub since: Timestamp,
    /// The tasks that its last heartbeat lists, and those that it has resumed since. `None`: it does not list them.
    pub works_on: Option<Vec<TaskId>>,
}

/// The answer to [`super::engine::Command::Reassign`].
#[derive(Debug, Clone)]
pub struct Reassigned {
    /// The task, owned by the coordinator.
    pub task: TaskRecord,
    /// The handoff by which the coordinator hands the task on.
    pub handoff: Arc<Handoff>,
}

/// The answers of a session: one variant for each type that a [`SessionReply`] can carry.
#[derive(Debug, Clone)]
pub enum Answer {
    /// An envelope is stored. The wire signs the receipt, off the engine's thread.
    Receipt(Box<v1::Receipt>),
    /// An acknowledgement has taken effect.
    Acknowledged(Acknowledged),
    /// A credit or a heartbeat has taken effect.
    Credited(Credited),
}

impl From<v1::Receipt> for Answer {
    fn from(receipt: v1::Receipt) -> Self {
        Self::Receipt(Box::new(receipt))
    }
}

impl From<Acknowledged> for Answer {
    fn from(acknowledged: Acknowledged) -> Self {
        Self::Acknowledged(acknowledged)
    }
}

impl From<Credited> for Answer {
    fn from(credited: Credited) -> Self {
        Self::Credited(credited)
    }
}

/// The destination of a command's answer of type `T`.
#[derive(Debug)]
pub struct Reply<T>(To<T>);

#[derive(Debug)]
enum To<T> {
    Caller(oneshot::Sender<Result<T, Refused>>),
    Session(SessionReply, fn(T) -> Answer),
}

impl<T> Reply<T> {
    /// A reply to a caller that waits for this answer alone, and the receiver of the answer.
    pub fn once() -> (Self, oneshot::Receiver<Result<T, Refused>>) {
        let (sender, receiver) = oneshot::channel();
        (Self(To::Caller(sender)), receiver)
    }
}

impl<T: Send + 'static> Reply<T> {
    /// Joins this reply with its answer.
    pub(super) fn with(self, outcome: Result<T, Refused>) -> Answered {
        Answered(match self.0 {
            To::Caller(caller) => {
                // A caller that has gone gets no answer, and loses nothing stored.
                let send = move |refusal: Option<Refused>| drop(caller.send(refusal.map_or(outcome, Err)));
                Sending::Caller { send: Box::new(send), refusal: None }
            }
            To::Session(reply, answer) => Sending::Session(reply, outcome.map(answer)),
        })
    }
}

/// The destination of the answer to one request of a session.
#[derive(Debug)]
pub struct SessionReply {
    /// The session's channel. The channel is unbounded: permits bound the answers, and credit bounds the deliveries.
    pub events: Events,
    /// The number of the request. 0: only a refusal is sent.
    pub request_id: u64,
    /// A permit of the session, held until the answer leaves.
    pub permit: OwnedSemaphorePermit,
}

impl SessionReply {
    /// Sends the answer. An ended session ignores it.
    pub fn send(self, outcome: Result<Answer, Refused>) {
        // The drop of the permit lets the session make its next request.
        if self.request_id == 0 && outcome.is_ok() {
            return;
        }
        // The permit travels with the answer, so that the session's bound counts answers that are not read yet.
        let Self { events, request_id, permit } = self;
        events.send(Event::Answer { request_id, outcome, permit: Some(permit) });
    }
}

impl<T: Into<Answer>> From<SessionReply> for Reply<T> {
    fn from(reply: SessionReply) -> Self {
        Self(To::Session(reply, T::into))
    }
}

/// A reply joined with its answer, of any type.
pub struct Answered(Sending);

enum Sending {
    Caller { send: Box<dyn FnOnce(Option<Refused>) + Send>, refusal: Option<Refused> },
    Session(SessionReply, Result<Answer, Refused>),
}

impl Answered {
    /// The same reply with a refusal in place of its answer.
    pub(super) fn refused(self, error: Refused) -> Self {
        Self(match self.0 {
            // A commit that fails turns the answers of its whole batch into refusals.
            Sending::Caller { send, .. } => Sending::Caller { send, refusal: Some(error) },
            Sending::Session(reply, _) => Sending::Session(reply, Err(error)),
        })
    }

    /// Sends the answer on the channel of its reply. A caller that has gone does not get it.
    pub(super) fn send(self) {
        match self.0 {
            Sending::Caller { send, refusal } => send(refusal),
            Sending::Session(reply, outcome) => reply.send(outcome),
        }
    }
}

impl fmt::Debug for Answered {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Sending::Caller { refusal, .. } => formatter.debug_tuple("Caller").field(refusal).finish(),
            Sending::Session(reply, outcome) => formatter.debug_tuple("Session").field(reply).field(outcome).finish(),
        }
    }
}

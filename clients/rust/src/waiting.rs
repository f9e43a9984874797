//! Calls of this process that wait for mail of a handoff or a negotiation, for the end of a delegation, or for the
//! answer to a question.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::sync::{mpsc, oneshot};

use super::{
    ClientError, Delivered, NotTaken,
    error::Refused,
    loans::{Recalled, notice_of},
};
use crate::{
    codes::ErrorCode,
    ids::AgentId,
    proto::v1::{self, MessageType},
};

/// The mail that a call waits for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Subject {
    /// Mail of the handoff with this id, for its sender.
    Handoff(String),
    /// The end of a loan of the task with this id: a final status, or the notice that its time is over.
    Result(String),
    /// The answer to the question with this id, or the notice of its expiry.
    Answer(String),
    /// Mail of the negotiation with this id, for its requester.
    Negotiation(String),
    /// The context of the handoff with this id, or the end of the handoff, for its candidate.
    Context(String),
}

impl Subject {
    /// The subject under which a call receives this message; `None` if no call can wait for it.
    fn of(delivered: &Delivered) -> Option<Self> {
        let of_handoff = || Some(Self::Handoff(delivered.handoff_id().to_owned()));
        let of_negotiation = || Some(Self::Negotiation(delivered.negotiation_id().to_owned()));
        let of_context = || Some(Self::Context(delivered.handoff_id().to_owned()));
        match delivered.kind() {
            MessageType::HandoffAccept | MessageType::HandoffReject | MessageType::HandoffComplete => of_handoff(),
            // An agent may send a notification with any correlation id. Only the broker's own can end a handoff.
            MessageType::ErrorNotification if notice_of(delivered).is_some() => {
                Some(Self::Result(delivered.envelope.task_id.clone()))
            }
            MessageType::ErrorNotification if delivered.envelope.sender_id == AgentId::broker().as_str() => {
                let told: v1::ErrorNotification = delivered.payload();
                match told.error_code() {
                    v1::ErrorCode::InputExpired => Some(Self::Answer(delivered.envelope.correlation_id.clone())),
                    v1::ErrorCode::NoOffer | v1::ErrorCode::NegotiationExpired => of_negotiation(),
                    // DROP_TASK is for candidates (SPEC 3).
                    _ if told.next_step() == v1::NextStep::DropTask => of_context(),
                    _ => of_handoff(),
                }
            }
            MessageType::TaskContextTransfer | MessageType::HandoffCancel => of_context(),
            MessageType::TaskInput => Some(Self::Answer(delivered.envelope.correlation_id.clone())),
            MessageType::TaskStatusUpdate if is_final(delivered.payload::<v1::TaskStatusUpdate>().status()) => {
                Some(Self::Result(delivered.envelope.task_id.clone()))
            }
            MessageType::TaskOffer | MessageType::TaskDecline => of_negotiation(),
            MessageType::NegotiationClosed if !delivered.opens_handoff() => of_negotiation(),
            _ => None,
        }
    }
}

/// Whether a task with this status never changes again.
pub(super) fn is_final(status: v1::TaskStatus) -> bool {
    matches!(status, v1::TaskStatus::Completed | v1::TaskStatus::Failed | v1::TaskStatus::Canceled)
}

/// A message for a waiting call. A letter dropped without an answer goes to the agent's handler.
pub(super) struct Letter {
    pub delivered: Delivered,
    verdict: oneshot::Sender<Result<(), NotTaken>>,
}

impl Letter {
    /// Reports the outcome of the message: `Ok` acks it.
    pub(super) fn answer(self, verdict: Result<(), NotTaken>) {
        let _ = self.verdict.send(verdict); // fails if the handler timed out first; the message is redelivered then
    }
}

/// The waiting calls. Their number is bounded by the caller, the number of their letters by the agent's credit.
#[derive(Default)]
pub(super) struct Waiting {
    calls: Mutex<HashMap<Subject, (u64, mpsc::UnboundedSender<Letter>)>>,
    next: AtomicU64,
    watches: Mutex<Vec<Watch>>,
    /// The tasks that calls hand over or have lent, with the epochs before.
    hands: Mutex<HashSet<(String, u64)>>,
}

/// A call or a caller that a recall of its task ends.
struct Watch {
    task_id: String,
    /// The epoch at which this agent owns or owned the task. A recall to a later one ends the watch.
    epoch: u64,
    /// Whether this agent waits for the end of a loan. A recall by this agent itself ends these alone.
    is_of_loan: bool,
    tell: oneshot::Sender<Taken>,
}

/// What ended a watch.
#[derive(Debug)]
pub(super) struct Taken {
    pub recalled: Recalled,
    /// Whether this agent took the task back itself.
    pub is_owner: bool,
}

impl Waiting {
    /// Routes mail of this subject to the returned conversation. An earlier conversation on the subject gets no more
    /// mail.
    pub(super) fn wait(self: &Arc<Self>, subject: Subject) -> Conversation {
        // Tells this call's entry from that of a later call on the same subject: see `Conversation::drop`.
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, letters) = mpsc::unbounded_channel();
        // Replaces the sender of an earlier call, which ends that call's conversation.
        self.calls().insert(subject.clone(), (id, sender));
        Conversation { waiting: Arc::clone(self), subject, id, letters }
    }

    /// The same for a subject that no other call waits for.
    ///
    /// # Errors
    ///
    /// `HANDOFF_OPEN`.
    pub(super) fn wait_alone(self: &Arc<Self>, subject: Subject) -> Result<Conversation, ClientError> {
        // Two calls that pass this check together are no harm: the later one replaces the earlier one.
        let is_waited_for = self.calls().contains_key(&subject);
        match is_waited_for {
            true => Err(waited_for(&match subject {
                Subject::Handoff(id) | Subject::Context(id) => format!("handoff {id}"),
                Subject::Result(id) => format!("task {id}"),
                Subject::Answer(id) => format!("the answer to question {id}"),
                Subject::Negotiation(id) => format!("negotiation {id}"),
            })),
            false => Ok(self.wait(subject)),
        }
    }

    /// Notes that a call hands over or lends the task of this epoch, until the value is dropped. A task that has come back
    /// has another epoch.
    ///
    /// # Errors
    ///
    /// `HANDOFF_OPEN` if another call does.
    pub(super) fn hand(self: &Arc<Self>, task_id: &str, epoch: u64) -> Result<Hand, ClientError> {
        let task = (task_id.to_owned(), epoch);
        match self.hands.lock().expect("no holder panics").insert(task.clone()) {
            true => Ok(Hand { waiting: Arc::clone(self), task }),
            false => Err(waited_for(&format!("task {task_id}"))),
        }
    }

    /// Passes the message to the call that waits for it, and returns the call's outcome. `None`: no call waits, or the
    /// call ended without an answer.
    pub(super) async fn given_to_call(&self, delivered: &Delivered) -> Option<Result<(), NotTaken>> {
        let subject = Subject::of(delivered)?;
        // Cloned, so that the lock is free while the call works on the letter.
        let call = self.calls().get(&subject).map(|(_, call)| call.clone())?;
        let (verdict, answer) = oneshot::channel();
        // The call may end before the send, or with the letter in its queue. In both cases the handler gets the
        // message.
        call.send(Letter { delivered: delivered.clone(), verdict }).ok()?;
        answer.await.ok()
    }

    /// Learns of a recall of the task to an epoch after this one.
    pub(super) fn watch(&self, task_id: &str, epoch: u64, is_of_loan: bool) -> oneshot::Receiver<Taken> {
        let (tell, watch) = oneshot::channel();
        let mut watches = self.watches.lock().expect("no holder panics");
        // The receivers of ended calls are dropped; each new watch removes them, so the list stays short.
        watches.retain(|known| !known.tell.is_closed());
        watches.push(Watch { task_id: task_id.to_owned(), epoch, is_of_loan, tell });
        watch
    }

    /// Ends all work on a task that the broker took from this agent.
    pub(super) fn tell_all(&self, recalled: &Recalled) {
        self.tell(recalled, false);
    }

    /// Ends the wait for the result of a task that this agent took back.
    pub(super) fn tell_loan(&self, recalled: &Recalled) {
        self.tell(recalled, true);
    }

    fn tell(&self, recalled: &Recalled, is_owner: bool) {
        let mut watches = self.watches.lock().expect("no holder panics");
        let is_ended = |watch: &mut Watch| {
            let is_of_kind = watch.is_of_loan || !is_owner;
            watch.task_id == recalled.task_id && watch.epoch < recalled.epoch && is_of_kind
        };
        for watch in watches.extract_if(.., is_ended) {
            let _ = watch.tell.send(Taken { recalled: recalled.clone(), is_owner }); // fails if the call has ended
        }
    }

    fn calls(&self) -> std::sync::MutexGuard<'_, HashMap<Subject, (u64, mpsc::UnboundedSender<Letter>)>> {
        self.calls.lock().expect("no holder panics")
    }
}

fn waited_for(what: &str) -> ClientError {
    Refused::of_client(ErrorCode::HandoffOpen, format!("another call of this process waits for {what}")).into()
}

/// A task that a call hands over or has lent.
pub(super) struct Hand {
    waiting: Arc<Waiting>,
    task: (String, u64),
}

impl Drop for Hand {
    fn drop(&mut self) {
        self.waiting.hands.lock().expect("no holder panics").remove(&self.task);
    }
}

/// Receives the mail of one subject until it is dropped.
pub(super) struct Conversation {
    waiting: Arc<Waiting>,
    subject: Subject,
    id: u64,
    letters: mpsc::UnboundedReceiver<Letter>,
}

impl Conversation {
    /// The next letter; `None` after a later call has taken the subject over.
    pub(super) async fn next(&mut self) -> Option<Letter> {
        self.letters.recv().await
    }
}

impl Drop for Conversation {
    fn drop(&mut self) {
        let mut calls = self.waiting.calls();
        // A later call may have taken the subject over; its entry must stay.
        if calls.get(&self.subject).is_some_and(|(id, _)| *id == self.id) {
            calls.remove(&self.subject);
        }
    }
}

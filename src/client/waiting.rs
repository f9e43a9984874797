//! Calls of this process that wait for mail of a handoff, or for the end of a loan.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::sync::{mpsc, oneshot};

use super::{Delivered, NotTaken};
use crate::{
    ids::AgentId,
    proto::v1::{self, MessageType},
};

/// What a call waits for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Subject {
    /// The mail of the handoff of this id, as its sender.
    Handoff(String),
    /// A final status of the task of this id.
    Result(String),
}

impl Subject {
    /// What a call would have to wait for, to be given this message.
    fn of(delivered: &Delivered) -> Option<Self> {
        let of_handoff = || Some(Self::Handoff(delivered.handoff_id().to_owned()));
        match delivered.kind() {
            MessageType::HandoffAccept | MessageType::HandoffReject | MessageType::HandoffComplete => of_handoff(),
            MessageType::ErrorNotification if delivered.envelope.sender_id == AgentId::broker().as_str() => {
                of_handoff()
            }
            MessageType::TaskStatusUpdate if is_final(delivered.payload::<v1::TaskStatusUpdate>().status()) => {
                Some(Self::Result(delivered.envelope.task_id.clone()))
            }
            _ => None,
        }
    }
}

/// Whether a task with this status never changes again.
fn is_final(status: v1::TaskStatus) -> bool {
    matches!(status, v1::TaskStatus::Completed | v1::TaskStatus::Failed | v1::TaskStatus::Canceled)
}

/// A message for a call that waits. What is not answered goes to the agent's handler.
pub(super) struct Letter {
    pub delivered: Delivered,
    verdict: oneshot::Sender<Result<(), NotTaken>>,
}

impl Letter {
    /// Says what became of it: `Ok` has it acked.
    pub(super) fn answer(self, verdict: Result<(), NotTaken>) {
        let _ = self.verdict.send(verdict); // a handler's timeout may have been quicker, and it comes again
    }
}

/// The calls that wait. Bounded by the calls that are under way; their letters by the agent's credit.
#[derive(Default)]
pub(super) struct Waiting {
    calls: Mutex<HashMap<Subject, (u64, mpsc::UnboundedSender<Letter>)>>,
    next: AtomicU64,
}

impl Waiting {
    /// From now on mail of this subject goes to this call alone. One that waited for it before gets no more.
    pub(super) fn wait(self: &Arc<Self>, subject: Subject) -> Conversation {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, letters) = mpsc::unbounded_channel();
        self.calls().insert(subject.clone(), (id, sender));
        Conversation { waiting: Arc::clone(self), subject, id, letters }
    }

    /// What the call that waits for this message says became of it; `None`: no call waits, or it ended before.
    pub(super) async fn given_to_call(&self, delivered: &Delivered) -> Option<Result<(), NotTaken>> {
        let subject = Subject::of(delivered)?;
        let call = self.calls().get(&subject).map(|(_, call)| call.clone())?;
        let (verdict, answer) = oneshot::channel();
        call.send(Letter { delivered: delivered.clone(), verdict }).ok()?;
        answer.await.ok()
    }

    fn calls(&self) -> std::sync::MutexGuard<'_, HashMap<Subject, (u64, mpsc::UnboundedSender<Letter>)>> {
        self.calls.lock().expect("no holder panics")
    }
}

/// The mail of one subject, for as long as this lives.
pub(super) struct Conversation {
    waiting: Arc<Waiting>,
    subject: Subject,
    id: u64,
    letters: mpsc::UnboundedReceiver<Letter>,
}

impl Conversation {
    /// The next letter; `None` where a later call has taken the subject over.
    pub(super) async fn next(&mut self) -> Option<Letter> {
        self.letters.recv().await
    }
}

impl Drop for Conversation {
    fn drop(&mut self) {
        let mut calls = self.waiting.calls();
        if calls.get(&self.subject).is_some_and(|(id, _)| *id == self.id) {
            calls.remove(&self.subject);
        }
    }
}

//! The queue between the sessions and the engine.
//!
//! This module owns the order in which commands reach the engine, and the bound on the waiting commands:
//! [`QUEUE_BYTES_MAX`]. A sender that finds no room waits, so that back-pressure reaches from the disk to the sockets.
//! The queue must not know the meaning of a command.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use super::engine::Command;

/// The most bytes of all commands that wait for the engine or are in its batch.
pub(super) const QUEUE_BYTES_MAX: u32 = 64 * 1024 * 1024;
/// The least that a command counts, in bytes, so that at most 4,096 commands wait.
pub(super) const COMMAND_BYTES_MIN: u32 = 16 * 1024;

/// A command, and the share of the bound that it holds until the engine has committed it.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) command: Command,
    /// `None` for commands with another bound.
    pub(super) permit: Option<OwnedSemaphorePermit>,
}

/// The broker is stopping and accepts no more commands.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Closed;

/// The sending end of the queue.
pub(super) struct CommandQueue {
    sender: mpsc::UnboundedSender<Queued>,
    capacity: Arc<Semaphore>,
    closing: CancellationToken,
    /// The number of commands sent so far.
    #[cfg(test)]
    pub(super) sent: std::sync::atomic::AtomicUsize,
}

/// The engine's end of the queue. A drop also drops all waiting commands and their replies.
pub(super) struct Commands {
    receiver: mpsc::UnboundedReceiver<Queued>,
    closing: CancellationToken,
}

/// An open, empty queue: the sending end, and the engine's end.
pub(super) fn command_queue() -> (CommandQueue, Commands) {
    let (sender, receiver) = mpsc::unbounded_channel(); // the permits bound it
    let closing = CancellationToken::new();
    let capacity = Arc::new(Semaphore::new(QUEUE_BYTES_MAX as usize));
    let queue = CommandQueue {
        sender,
        capacity,
        closing: closing.clone(),
        #[cfg(test)]
        sent: Default::default(),
    };
    (queue, Commands { receiver, closing })
}

impl CommandQueue {
    /// Sends commands in their order. Waits until the queue has room for all of them.
    pub(super) async fn send_all<I>(&self, commands: I) -> Result<(), Closed>
    where
        I: AsRef<[Command]> + IntoIterator<Item = Command>,
    {
        let bytes_of_all = commands.as_ref().iter().map(bytes_of).sum();
        // Room for all at once: no sender waits with a part of its commands in the queue.
        let mut all = self.capacity.clone().acquire_many_owned(bytes_of_all).await.map_err(|_| Closed)?;
        for command in commands {
            let permit = all.split(bytes_of(&command) as usize);
            self.put(Queued { command, permit })?;
        }
        Ok(())
    }

    /// Sends a command if the queue has room now. Returns whether it did.
    pub(super) fn try_send(&self, command: Command) -> Result<bool, Closed> {
        let Ok(permit) = self.capacity.clone().try_acquire_many_owned(bytes_of(&command)) else { return Ok(false) };
        self.put(Queued { command, permit: Some(permit) }).map(|()| true)
    }

    /// Sends a command that takes no room in the queue, for destructors. The caller bounds the number of these
    /// commands.
    pub(super) fn send_now(&self, command: Command) -> Result<(), Closed> {
        self.put(Queued { command, permit: None })
    }

    /// Refuses further commands. The engine still receives those in the queue.
    pub(super) fn close(&self) {
        self.closing.cancel();
    }

    fn put(&self, queued: Queued) -> Result<(), Closed> {
        // The receiver closes its channel only when it next wakes. Until then the channel still takes commands.
        if self.closing.is_cancelled() {
            return Err(Closed);
        }
        #[cfg(test)]
        self.sent.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.sender.send(queued).map_err(|_| Closed)
    }
}

impl Commands {
    /// Waits for commands and appends at most `most` of them. `Err` once the queue is closed and empty. Cancel-safe.
    pub(super) async fn receive(&mut self, commands: &mut Vec<Queued>, most: usize) -> Result<(), Closed> {
        tokio::select! {
            biased;
            () = self.closing.cancelled() => {}
            count = self.receiver.recv_many(commands, most) => return if count == 0 { Err(Closed) } else { Ok(()) },
        }
        // Closed: the commands left in the channel are received without a wait for new ones.
        self.receiver.close();
        if self.receiver.recv_many(commands, most).await == 0 { Err(Closed) } else { Ok(()) }
    }
}

/// The bytes that a command counts.
fn bytes_of(command: &Command) -> u32 {
    let bytes = match command {
        Command::Submit { message, .. } => message.bytes(),
        Command::KeepRefused { raw, .. } => raw.len(),
        // Any other command is small. The least count below bounds their number.
        _ => 0,
    };
    // A command that counted more than the whole queue could never get its permit.
    u32::try_from(bytes).unwrap_or(u32::MAX).clamp(COMMAND_BYTES_MIN, QUEUE_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::{
        domain::{dead_letter::ParkReason, mailbox::ConsumerId},
        ids::AgentId,
    };

    fn close(number: u64) -> Command {
        Command::Close { consumer: ConsumerId(number) }
    }

    fn large(bytes: u32) -> Command {
        Command::KeepRefused {
            agent: AgentId::broker(),
            raw: Bytes::from(vec![0; bytes as usize]),
            reason: ParkReason::Malformed,
            text: String::new(),
        }
    }

    /// The numbers of the `Close` commands that one receive returns.
    async fn receive(commands: &mut Commands, most: usize) -> Result<Vec<u64>, Closed> {
        let mut received = Vec::new();
        commands.receive(&mut received, most).await?;
        let number = |queued: Queued| match queued.command {
            Command::Close { consumer } => consumer.0,
            other => panic!("{other:?}"),
        };
        Ok(received.into_iter().map(number).collect())
    }

    #[tokio::test]
    async fn commands_arrive_in_their_order_and_in_bounded_batches() {
        let (queue, mut commands) = command_queue();
        queue.send_all([close(1), close(2)]).await.unwrap();
        queue.send_now(close(3)).unwrap();
        assert_eq!(queue.try_send(close(4)), Ok(true));
        assert_eq!(receive(&mut commands, 3).await.unwrap(), [1, 2, 3]);
        assert_eq!(receive(&mut commands, 3).await.unwrap(), [4]);
    }

    #[tokio::test]
    async fn a_closed_queue_is_emptied_and_takes_nothing() {
        let (queue, mut commands) = command_queue();
        queue.send_all([close(1), close(2)]).await.unwrap();
        queue.close();
        assert_eq!(queue.send_all([close(3)]).await, Err(Closed));
        assert_eq!(queue.try_send(close(4)), Err(Closed));
        assert_eq!(queue.send_now(close(5)), Err(Closed));
        assert_eq!(receive(&mut commands, 1).await.unwrap(), [1]);
        assert_eq!(receive(&mut commands, 1).await.unwrap(), [2]);
        assert_eq!(receive(&mut commands, 1).await, Err(Closed));
    }

    #[tokio::test]
    async fn a_queue_without_its_engine_takes_nothing() {
        let (queue, commands) = command_queue();
        drop(commands);
        assert_eq!(queue.send_all([close(1)]).await, Err(Closed));
    }

    #[tokio::test]
    async fn a_full_queue_makes_senders_wait_until_the_engine_is_done() {
        let (queue, mut commands) = command_queue();
        queue.send_all([large(QUEUE_BYTES_MAX)]).await.unwrap();
        assert_eq!(queue.try_send(close(1)), Ok(false));
        let mut waiting = std::pin::pin!(queue.send_all([close(2)]));
        assert!(poll_once(&mut waiting).await.is_none());
        let mut received = Vec::new();
        commands.receive(&mut received, 8).await.unwrap();
        assert!(poll_once(&mut waiting).await.is_none(), "the engine is not done with what it received");
        received.clear();
        waiting.await.unwrap();
        assert_eq!(receive(&mut commands, 8).await.unwrap(), [2]);
    }

    #[tokio::test]
    async fn small_commands_are_bounded_by_number() {
        let (queue, _commands) = command_queue();
        let most = QUEUE_BYTES_MAX / COMMAND_BYTES_MIN;
        for number in 0..most {
            assert_eq!(queue.try_send(close(number.into())), Ok(true));
        }
        assert_eq!(queue.try_send(close(0)), Ok(false));
    }

    /// The result of the future, if one poll completes it.
    async fn poll_once<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
        std::future::poll_fn(|context| {
            std::task::Poll::Ready(match std::pin::Pin::new(&mut *future).poll(context) {
                std::task::Poll::Ready(output) => Some(output),
                std::task::Poll::Pending => None,
            })
        })
        .await
    }
}

//! Streams of responses, each with the loop that makes them.
//!
//! The loop runs in the stream, and only while the client takes responses. So a stream that is not read holds no
//! response that waits, and the loop ends with the call. A loop must not wait for what others wait for too, such as a
//! turn or a place in a queue, except in a task of its own: without a poll it would keep what it gets.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use tokio::sync::mpsc;
use tokio_stream::Stream;
use tonic::Status;

/// The responses of a call.
pub(super) type Responses<R> = Pin<Box<dyn Stream<Item = Result<R, Status>> + Send>>;

/// Takes the responses of a loop.
pub(super) struct Taker<R>(mpsc::Sender<R>);

impl<R> Taker<R> {
    /// Waits until the client takes a response. Called before a read, so that the read is not made ahead.
    pub(super) async fn demand(&self) {
        // Fails only without a stream, which would have dropped the loop.
        drop(self.0.reserve().await);
    }

    /// Sends a response, once the client takes it.
    pub(super) async fn send(&self, response: R) {
        drop(self.0.send(response).await);
    }
}

/// A stream of the responses that the loop sends, and of the status with which it fails.
pub(super) fn stream<R, L>(responses: impl FnOnce(Taker<R>) -> L) -> Responses<R>
where
    R: Send + 'static,
    L: Future<Output = Result<(), Status>> + Send + 'static,
{
    let (sender, receiver) = mpsc::channel(1);
    Box::pin(Looped { run: Some(Box::pin(responses(Taker(sender)))), sent: receiver, failure: None })
}

type Loop = Pin<Box<dyn Future<Output = Result<(), Status>> + Send>>;

struct Looped<R> {
    /// The loop. `None`: it has ended.
    run: Option<Loop>,
    /// At most one response, which the same poll takes.
    sent: mpsc::Receiver<R>,
    failure: Option<Status>,
}

impl<R> Stream for Looped<R> {
    type Item = Result<R, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if let Some(run) = &mut this.run
            && let Poll::Ready(outcome) = run.as_mut().poll(context)
        {
            (this.run, this.failure) = (None, outcome.err());
        }
        // The loop held the only sender, so the end follows its last response.
        this.sent.poll_recv(context).map(|sent| sent.map(Ok).or_else(|| this.failure.take().map(Err)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use tokio_stream::StreamExt as _;

    use super::*;

    #[tokio::test]
    async fn a_loop_reads_nothing_ahead_and_ends_with_its_stream() {
        let read = Arc::new(AtomicUsize::new(0));
        let mut responses = {
            let read = read.clone();
            stream(async move |taker| {
                loop {
                    taker.demand().await;
                    let number = read.fetch_add(1, Ordering::Relaxed);
                    // A read waits for a thread.
                    tokio::task::yield_now().await;
                    taker.send(number).await;
                }
            })
        };
        tokio::task::yield_now().await;
        assert_eq!(read.load(Ordering::Relaxed), 0, "no response is taken yet");
        for number in 0..3 {
            assert_eq!(responses.next().await.unwrap().unwrap(), number);
            assert_eq!(read.load(Ordering::Relaxed), number + 1);
        }
        drop(responses);
        assert_eq!(Arc::strong_count(&read), 1, "the loop is dropped");
    }

    #[tokio::test]
    async fn a_failure_follows_the_last_response() {
        let mut responses = stream(async |taker| {
            taker.send(1).await;
            Err(Status::aborted("over"))
        });
        assert_eq!(responses.next().await.unwrap().unwrap(), 1);
        assert_eq!(responses.next().await.unwrap().unwrap_err().code(), tonic::Code::Aborted);
        assert!(responses.next().await.is_none());
    }
}

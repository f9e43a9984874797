//! A session for many messages in flight: frames are sent in bursts, and the caller matches answers to requests.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    vec,
};

use tokio::sync::mpsc;
use tokio_stream::Stream;
use tonic::Streaming;

use super::{Client, ClientError, session::open_stream};
use crate::proto::v1::{self, connect_request::Request};

/// An open session. It sends nothing on its own, not even heartbeats.
#[derive(Debug)]
pub struct Pipeline {
    /// The broker's first frame.
    pub welcome: v1::Welcome,
    server: String,
    /// Unbounded: the caller bounds its messages in flight.
    bursts: mpsc::UnboundedSender<Vec<v1::ConnectRequest>>,
    burst: Vec<v1::ConnectRequest>,
    responses: Streaming<v1::ConnectResponse>,
}

impl Pipeline {
    /// Opens a session for the agent of the client's token.
    pub async fn open(client: &Client) -> Result<Self, ClientError> {
        let (bursts, receiver) = mpsc::unbounded_channel();
        let requests = Bursts { receiver, burst: Vec::new().into_iter() };
        let (welcome, responses) = open_stream(client, requests).await?;
        Ok(Self { welcome, server: client.server.clone(), bursts, burst: Vec::new(), responses })
    }

    /// Adds a frame to the burst. The answer carries `request_id`; with 0 the broker answers only with errors.
    pub fn push(&mut self, request_id: u64, request: Request) {
        self.burst.push(v1::ConnectRequest { request_id, request: Some(request) });
    }

    /// Sends the burst.
    pub fn flush(&mut self) {
        if !self.burst.is_empty() {
            // A send fails only after the session has ended, and the reader reports that.
            drop(self.bursts.send(std::mem::take(&mut self.burst)));
        }
    }

    /// Polls for the next frame from the broker.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<v1::ConnectResponse, ClientError>> {
        Poll::Ready(match ready!(Pin::new(&mut self.responses).poll_next(context)) {
            Some(Ok(response)) => Ok(response),
            Some(Err(status)) => Err(ClientError::of(&self.server, &status)),
            None => Err(ClientError::SessionEnded("the broker has closed it".to_owned())),
        })
    }

    /// Waits for the next frame from the broker.
    pub async fn next(&mut self) -> Result<v1::ConnectResponse, ClientError> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }
}

/// Yields the frames of bursts one by one. The frames of a burst are ready at the same time, so the transport writes
/// them together.
struct Bursts {
    receiver: mpsc::UnboundedReceiver<Vec<v1::ConnectRequest>>,
    burst: vec::IntoIter<v1::ConnectRequest>,
}

impl Stream for Bursts {
    type Item = v1::ConnectRequest;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(frame) = self.burst.next() {
                return Poll::Ready(Some(frame));
            }
            match ready!(self.receiver.poll_recv(context)) {
                Some(burst) => self.burst = burst.into_iter(),
                None => return Poll::Ready(None),
            }
        }
    }
}

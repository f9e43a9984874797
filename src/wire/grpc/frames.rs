//! Frames of calls, before and after their messages.
//!
//! tonic's code for a call is generic over its messages, so it would be compiled for each of them. This codec passes
//! encoded requests and responses that encode themselves: all calls share one copy of that code.

use std::{
    marker::PhantomData,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf as _, Bytes};
use prost::Message;
use tokio_stream::{Stream, StreamExt as _};
use tonic::{
    Status, Streaming,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
};

use super::refuse;
use crate::envelope::EnvelopeError;

/// A response of any call, which encodes itself into its frame.
pub(super) type AnyResponse = Box<dyn Encode>;

/// A message that encodes itself.
pub(super) trait Encode: Send {
    fn encode(&self, buffer: &mut EncodeBuf<'_>);
}

impl<M: Message> Encode for M {
    fn encode(&self, buffer: &mut EncodeBuf<'_>) {
        Message::encode(self, buffer).expect("the buffer grows");
    }
}

/// Takes requests as they arrive, and responses of any type.
#[derive(Default)]
pub(super) struct FrameCodec;

impl Codec for FrameCodec {
    type Encode = AnyResponse;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for FrameCodec {
    type Item = AnyResponse;
    type Error = Status;

    fn encode(&mut self, response: AnyResponse, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        response.encode(buffer);
        Ok(())
    }
}

impl Decoder for FrameCodec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}

/// Decodes a request. Refuses a malformed one with its stable reason; tonic would report INTERNAL, a fault of the
/// broker.
pub(super) fn decoded<M: Message + Default>(frame: Bytes) -> Result<M, Status> {
    M::decode(frame).map_err(|error| refuse(EnvelopeError::Malformed { part: "frame", problem: error.to_string() }))
}

/// The requests of a client's stream.
pub(super) struct Requests<M> {
    frames: Streaming<Bytes>,
    messages: PhantomData<fn() -> M>,
}

impl<M: Message + Default> Requests<M> {
    pub(super) fn new(frames: Streaming<Bytes>) -> Self {
        Self { frames, messages: PhantomData }
    }

    /// The next request. `None`: the client has ended its side.
    pub(super) async fn message(&mut self) -> Result<Option<M>, Status> {
        self.next().await.transpose()
    }
}

impl<M: Message + Default> Stream for Requests<M> {
    type Item = Result<M, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let frame = ready!(Pin::new(&mut self.frames).poll_next(context));
        Poll::Ready(frame.map(|frame| frame.and_then(decoded)))
    }
}

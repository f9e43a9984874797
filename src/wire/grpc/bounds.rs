//! Bounds on gRPC calls: how many run at once, and how many bytes of frames the broker holds for them.
//!
//! Owns counting the bytes of requests, and the time limit for a frame to arrive. Must not know any call, nor how
//! statuses are built. A call over a bound is refused or ended; it never waits for capacity that other clients hold.
//!
//! - Each call takes a place, from its head to the end of its answer.
//! - The bytes of a partly received frame, and of a request in progress, are counted. A stream's frame counts until the
//!   stream asks for the next one.
//! - A stream whose client does not take the answers is not read. The client may then still send the call's window
//!   ahead, and these bytes are counted.
//! - A compressed message counts twice: the bytes that arrive, and the bytes that it unpacks to.
//! - The bytes of an answer count until they are written or dropped ([`Answer`]).

use std::{
    collections::HashMap,
    net::IpAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Frame;
use tokio::time::Sleep;
use tonic::body::Body;
use tower::{Layer, Service};

use super::unpacking::{self, UnpackError, Unpacking, Whole};
use crate::{
    broker::{BrokerError, places::Places},
    envelope::FRAME_BYTES_MAX,
    wire::{
        bounds::{Answer, Bounds},
        edge::ConnectInfo,
        quota::{Holding, Quota},
    },
};

/// The bound that a refused or ended call exceeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overuse {
    /// Too many calls are in progress.
    Calls,
    /// The broker holds too many bytes of frames.
    FrameBytes,
    /// Too many streams are unread because their clients do not take the answers.
    UnreadBytes,
    /// A frame did not arrive in time.
    FrameTimeout,
    /// A frame is larger than [`FRAME_BYTES_MAX`]: this many bytes.
    FrameTooLarge(usize),
    /// Messages are compressed in a way that the broker does not read.
    EncodingUnknown,
    /// A compressed message cannot be unpacked within the limits.
    Unpacking(UnpackError),
}

/// The kind of a call whose client sends a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientStream {
    /// A session of the broker. It finds [`Unread`] among the request's extensions, and holds it while it does not
    /// read.
    Session,
    /// A stream of another service. Its reading is not observable, so its unread bytes count from its beginning.
    Foreign,
}

/// The bytes that a stream's client may send while the stream is not read.
#[derive(Debug, Clone)]
pub struct Unread {
    quota: Arc<Quota>,
    client: IpAddr,
    bytes: usize,
}

impl Unread {
    /// Counts the bytes while the result is held. `None`: the quota is exceeded, and the stream must end.
    pub fn hold(&self) -> Option<Holding> {
        self.quota.take(self.client, self.bytes)
    }
}

/// The bytes of one call that are not counted. The number of calls bounds small requests.
const UNCOUNTED_BYTES: usize = 16 * 1024;

/// A layer that enforces the bounds on each call.
#[derive(Debug, Clone)]
pub struct BoundsLayer {
    bounds: Bounds,
    streams: Arc<HashMap<String, ClientStream>>,
    status: fn(Overuse) -> tonic::Status,
}

impl BoundsLayer {
    /// Creates the layer. `streams` maps the paths of calls whose client sends a stream; `status` builds the status for
    /// an exceeded bound.
    pub fn new(bounds: Bounds, streams: HashMap<String, ClientStream>, status: fn(Overuse) -> tonic::Status) -> Self {
        Self { bounds, streams: Arc::new(streams), status }
    }
}

impl<S> Layer<S> for BoundsLayer {
    type Service = Bounded<S>;

    fn layer(&self, inner: S) -> Bounded<S> {
        Bounded { inner, layer: self.clone() }
    }
}

/// The service of [`BoundsLayer`].
#[derive(Debug, Clone)]
pub struct Bounded<S> {
    inner: S,
    layer: BoundsLayer,
}

impl<S, B> Service<Request<B>> for Bounded<S>
where
    B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let BoundsLayer { bounds, streams, status } = &self.layer;
        let status = *status;
        let client = ConnectInfo::client_of(request.extensions());
        let Some(call) = bounds.calls.take(client, 1) else {
            return Box::pin(std::future::ready(Ok(status(Overuse::Calls).into_http())));
        };
        let Ok(encoding) = unpacking::take_encoding(request.headers_mut()) else {
            let mut refusal = status(Overuse::EncodingUnknown).into_http();
            refusal.headers_mut().insert(unpacking::ACCEPT_ENCODING, unpacking::ACCEPTED);
            return Box::pin(std::future::ready(Ok(refusal)));
        };
        let held = Arc::new(bounds.frame_bytes.nothing(client));
        let stream = streams.get(request.uri().path()).copied();
        let mut unread = Unread { quota: bounds.unread_bytes.clone(), client, bytes: bounds.window_bytes };
        let mut unread_by_foreign = None;
        match stream {
            Some(ClientStream::Session) => drop(request.extensions_mut().insert(unread)),
            Some(ClientStream::Foreign) => {
                // Its reading is not observable, so the most that it can leave unread counts from the beginning.
                unread.bytes += bounds.small_frames_bytes;
                unread_by_foreign = unread.hold();
                if unread_by_foreign.is_none() {
                    return Box::pin(std::future::ready(Ok(status(Overuse::UnreadBytes).into_http())));
                }
            }
            None => {}
        }
        let timeout = bounds.frame_timeout;
        let bytes = bounds.frame_bytes.clone();
        let guarded = |inner| Incoming {
            inner,
            frames: Frames::default(),
            unpacking: encoding.map(Unpacking::new),
            unpackers: bounds.unpackers.clone(),
            running: None,
            has_unpacked: false,
            held: held.clone(),
            _unread: unread_by_foreign,
            passed: 0,
            is_stream: stream.is_some(),
            timeout,
            arriving: None,
            status,
            is_over: false,
        };
        let answer = self.inner.call(request.map(|body| Body::new(guarded(body))));
        Box::pin(async move {
            let answer = answer.await?;
            // A unary request is processed by now. The frames of a stream are released by its body.
            drop(held);
            let cut = move || Ok(trailers(status(Overuse::FrameBytes)));
            Ok(answer.map(|inner| Body::new(Answer::new(inner, bytes, client, call, cut))))
        })
    }
}

/// The trailers that end an answer whose head is already sent.
fn trailers(status: tonic::Status) -> Frame<Bytes> {
    let mut head = status.into_http::<()>();
    head.headers_mut().remove(http::header::CONTENT_TYPE);
    Frame::trailers(std::mem::take(head.headers_mut()))
}

/// The position in a body of gRPC frames. A frame has one byte for compression, four for its length, and that many
/// bytes.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    prefix: [u8; 5],
    prefix_bytes: usize,
    rest: usize,
    largest: usize,
}

impl Frames {
    /// The size of the largest frame begun so far, in bytes without its prefix.
    fn largest(&self) -> usize {
        self.largest
    }

    pub(crate) fn pass(&mut self, mut data: &[u8]) {
        while !data.is_empty() {
            if self.rest > 0 {
                let passed = self.rest.min(data.len());
                self.rest -= passed;
                data = &data[passed..];
                continue;
            }
            let passed = (self.prefix.len() - self.prefix_bytes).min(data.len());
            self.prefix[self.prefix_bytes..self.prefix_bytes + passed].copy_from_slice(&data[..passed]);
            self.prefix_bytes += passed;
            data = &data[passed..];
            if self.prefix_bytes == self.prefix.len() {
                let [_, length @ ..] = self.prefix;
                self.rest = u32::from_be_bytes(length) as usize;
                self.largest = self.largest.max(self.rest);
                self.prefix_bytes = 0;
            }
        }
    }

    pub(crate) fn is_between(&self) -> bool {
        self.rest == 0 && self.prefix_bytes == 0
    }
}

/// Why unpacking ends a body.
enum Stop {
    /// The frame is over a bound.
    Over(Overuse),
    /// The thread has failed.
    Failed(BrokerError),
}

/// A frame while a thread unpacks it.
type Running = Pin<Box<dyn Future<Output = Result<Result<Bytes, UnpackError>, BrokerError>> + Send>>;

/// The body of a request, counted.
struct Incoming<B> {
    inner: B,
    frames: Frames,
    /// The frames that are not passed on yet, if the client compresses messages.
    unpacking: Option<Unpacking>,
    unpackers: Arc<Places>,
    /// The frame that a thread unpacks.
    running: Option<Running>,
    /// Whether a stream got a frame from `unpacking` since it last asked.
    has_unpacked: bool,
    held: Arc<Holding>,
    _unread: Option<Holding>,
    passed: usize,
    is_stream: bool,
    timeout: Duration,
    arriving: Option<Pin<Box<Sleep>>>,
    status: fn(Overuse) -> tonic::Status,
    is_over: bool,
}

impl<B> Incoming<B> {
    fn end(&mut self, overuse: Overuse) -> Poll<Option<Result<Frame<Bytes>, tonic::Status>>> {
        self.is_over = true;
        self.unpacking = None;
        self.held.clear();
        Poll::Ready(Some(Err((self.status)(overuse))))
    }

    /// The bytes that wait to be unpacked.
    fn gathered(&self) -> usize {
        self.unpacking.as_ref().map_or(0, Unpacking::gathered)
    }

    /// Counts further bytes. Fails if the quota has no room for them.
    fn count(&mut self, bytes: usize) -> Result<(), Overuse> {
        self.passed += bytes;
        let fits = self.passed <= UNCOUNTED_BYTES || self.held.grow(bytes);
        fits.then_some(()).ok_or(Overuse::FrameBytes)
    }

    /// Takes bytes of the body: counts them, and gathers them if they are to be unpacked.
    fn take(&mut self, data: Bytes) -> Result<Option<Bytes>, Overuse> {
        self.frames.pass(&data);
        // Refused by its length prefix, before its bytes are held (SPEC 5).
        if self.frames.largest() > FRAME_BYTES_MAX {
            return Err(Overuse::FrameTooLarge(self.frames.largest()));
        }
        self.count(data.len())?;
        let Some(unpacking) = &mut self.unpacking else { return Ok(Some(data)) };
        unpacking.gather(&data);
        Ok(None)
    }

    /// The next frame that has arrived in full, if frames are unpacked here. Ready with `None`: more bytes are needed.
    fn poll_unpacked(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Stop>> {
        if self.running.is_none() {
            let Some(whole) = self.unpacking.as_mut().and_then(Unpacking::next_frame) else {
                return Poll::Ready(Ok(None));
            };
            self.running = Some(match whole {
                Whole::Plain(frame) => Box::pin(std::future::ready(Ok(Ok(frame)))),
                Whole::Packed(packed) if packed.is_small() => Box::pin(std::future::ready(Ok(packed.unpack()))),
                // The threads of the runtime serve other calls. The caller is not known yet, but its network is.
                Whole::Packed(packed) => {
                    let network = self.held.network().to_string();
                    Box::pin(self.unpackers.clone().run(network, move || packed.unpack()))
                }
            });
        }
        let Some(running) = &mut self.running else { return Poll::Ready(Ok(None)) };
        let unpacked = ready!(running.as_mut().poll(context));
        self.running = None;
        Poll::Ready(unpacked.map_err(Stop::Failed).and_then(|unpacked| {
            let frame = unpacked.map_err(|error| Stop::Over(Overuse::Unpacking(error)))?;
            self.count(frame.len()).map_err(Stop::Over)?;
            self.has_unpacked = self.is_stream;
            Ok(Some(frame))
        }))
    }
}

impl<B> http_body::Body for Incoming<B>
where
    B: http_body::Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, tonic::Status>>> {
        let this = &mut *self;
        if this.is_over {
            return Poll::Ready(None);
        }
        // A stream that asks for more has processed the frames before, unless it waits for one that is being unpacked.
        let at_rest = this.is_stream && this.frames.is_between() && this.gathered() == 0 && this.running.is_none();
        if at_rest || this.has_unpacked {
            this.has_unpacked = false;
            this.held.clear();
            this.passed = 0;
            this.arriving = None;
            if let Err(overuse) = this.count(this.gathered()) {
                return this.end(overuse);
            }
        }
        loop {
            match ready!(this.poll_unpacked(context)) {
                Ok(Some(frame)) => return Poll::Ready(Some(Ok(Frame::data(frame)))),
                Ok(None) => {}
                Err(Stop::Over(overuse)) => return this.end(overuse),
                Err(Stop::Failed(error)) => return Poll::Ready(Some(Err(tonic::Status::from_error(error.into())))),
            }
            return match Pin::new(&mut this.inner).poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => match this.take(data) {
                        Ok(Some(data)) => Poll::Ready(Some(Ok(Frame::data(data)))),
                        // The frame may be whole now, or its rest may have arrived too.
                        Ok(None) => continue,
                        Err(overuse) => this.end(overuse),
                    },
                    Err(trailers) => Poll::Ready(Some(Ok(trailers))),
                },
                // A frame or a request is incomplete, so its time limit runs. Between frames a stream may stay idle.
                Poll::Pending if !at_rest || !this.frames.is_between() => {
                    let timeout = this.timeout;
                    let arriving = this.arriving.get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
                    match arriving.as_mut().poll(context) {
                        Poll::Ready(()) => this.end(Overuse::FrameTimeout),
                        Poll::Pending => Poll::Pending,
                    }
                }
                Poll::Ready(None) => {
                    this.is_over = true;
                    // tonic refuses a frame that is cut off.
                    let cut_off = this.unpacking.take().and_then(|mut unpacking| unpacking.cut_off());
                    Poll::Ready(cut_off.map(|rest| Ok(Frame::data(rest))))
                }
                other => other.map_err(|error| tonic::Status::from_error(error.into())),
            };
        }
    }

    fn is_end_stream(&self) -> bool {
        self.is_over || (self.gathered() == 0 && self.running.is_none() && self.inner.is_end_stream())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_told_apart_wherever_they_are_cut() {
        let mut body = Vec::new();
        for length in [0_usize, 1, 4, 5, 6, 300] {
            body.push(0);
            body.extend(u32::try_from(length).unwrap().to_be_bytes());
            body.extend(vec![9; length]);
        }
        let ends = [5, 11, 20, 30, 41, 346];
        for piece in 1..body.len() {
            let mut frames = Frames::default();
            let mut passed = 0;
            for part in body.chunks(piece) {
                frames.pass(part);
                passed += part.len();
                assert_eq!(frames.is_between(), ends.contains(&passed), "{passed} bytes in pieces of {piece}");
            }
        }
    }

    #[test]
    fn calls_whose_client_sends_a_stream_are_known_from_the_schema() {
        let streams = crate::wire::grpc::client_streams();
        assert_eq!(streams.get("/baton.v1.BrokerService/Connect"), Some(&ClientStream::Session));
        let reflection = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
        assert_eq!(streams.get(reflection), Some(&ClientStream::Foreign));
        for call in ["Send", "Receive"] {
            assert_eq!(streams.get(&format!("/baton.v1.BrokerService/{call}")), None);
        }
    }
}

//! Bounds on requests of every protocol.
//!
//! Owns the quotas of a broker, and counting the bytes of answers. Must not know any request, nor the form of a
//! refusal. A request over a quota is refused or ended; it never waits for capacity that other clients hold.

use std::{
    net::IpAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame};

use super::quota::{Holding, Quota};
use crate::{
    broker::{BrokerLimits, places::Places},
    metrics::Metrics,
};

/// The most compressed frames that are unpacked at once. Each may take 4 MiB.
const UNPACKERS_MAX: usize = 8;

/// The quotas of a broker.
#[derive(Debug, Clone)]
pub struct Bounds {
    /// Open connections.
    pub connections: Arc<Quota>,
    /// Connections that are not open yet.
    pub handshakes: Arc<Quota>,
    /// Requests in progress: gRPC calls and HTTP requests.
    pub calls: Arc<Quota>,
    /// Bytes of gRPC frames, in and out, and of HTTP answers.
    pub frame_bytes: Arc<Quota>,
    /// Bytes that clients may send ahead on unread streams. Separate from `frame_bytes`, so that a client that takes no
    /// answers does not block the answers of others.
    pub unread_bytes: Arc<Quota>,
    /// The places for unpacking compressed frames, by network.
    pub unpackers: Arc<Places>,
    /// The time limit for a frame to arrive.
    pub frame_timeout: Duration,
    /// The bytes that the client of one stream may send ahead of the stream's reads.
    pub window_bytes: usize,
    /// The most memory, in bytes, that unread small frames cost one connection beside their own bytes.
    pub small_frames_bytes: usize,
    /// The most credit of all sessions of one connection together.
    pub credit_per_connection: u32,
}

impl Bounds {
    /// Creates the quotas from the limits, with no amount held.
    pub fn new(limits: &BrokerLimits) -> Self {
        let quota = |most: u64| Quota::new(most, limits.network_percent_max);
        Self {
            connections: quota(limits.connections_max.into()),
            handshakes: quota(limits.handshakes_max.into()),
            calls: quota(limits.calls_max.into()),
            frame_bytes: quota(limits.frame_bytes_max),
            unread_bytes: quota(limits.frame_bytes_max),
            unpackers: Places::new(UNPACKERS_MAX),
            frame_timeout: limits.frame_timeout,
            window_bytes: limits.window_bytes as usize,
            small_frames_bytes: limits.connection_window_bytes as usize / 2,
            credit_per_connection: limits.credit_per_connection(),
        }
    }

    /// Counts the refusals since the last call, and logs one line with them, if any.
    pub fn report_refusals(&self, metrics: &Metrics) {
        let [connections, handshakes, calls, frame_bytes, unread_bytes] = [
            (&self.connections, "CONNECTIONS"),
            (&self.handshakes, "HANDSHAKES"),
            (&self.calls, "CALLS"),
            (&self.frame_bytes, "FRAME_BYTES"),
            (&self.unread_bytes, "UNREAD_BYTES"),
        ]
        .map(|(quota, limit)| {
            let refusals = quota.refusals();
            metrics.over_limit(limit, refusals);
            refusals
        });
        if connections + handshakes + calls + frame_bytes + unread_bytes > 0 {
            tracing::warn!(
                connections,
                handshakes,
                calls,
                frame_bytes,
                unread_bytes,
                "refused connections or requests over broker_limits"
            );
        }
    }
}

/// The body of an answer. Its bytes count until the connection has written or dropped them, and its request counts as
/// long as any byte does. The count is tied to the bytes, so it stays correct in every queue of HTTP.
///
/// A frame over the quota is replaced by the result of `cut`, which ends the answer.
pub(super) struct Answer<B, C> {
    inner: B,
    bytes: Arc<Quota>,
    client: IpAddr,
    cut: C,
    is_over: bool,
    call: Arc<Holding>,
}

impl<B, C> Answer<B, C> {
    /// The answer to a request of `client` that holds `call`; `bytes` is the quota of its bytes.
    pub(super) fn new(inner: B, bytes: Arc<Quota>, client: IpAddr, call: Holding, cut: C) -> Self {
        Self { inner, bytes, client, cut, is_over: false, call: Arc::new(call) }
    }
}

/// Bytes that count, with their request, until their last copy is dropped.
struct Counted {
    bytes: Bytes,
    _holding: Holding,
    _call: Arc<Holding>,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl<B, C> Body for Answer<B, C>
where
    B: Body<Data = Bytes> + Unpin,
    C: Fn() -> Result<Frame<Bytes>, B::Error> + Unpin,
{
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        // After the cut the inner body is not polled again: it would produce bytes without a holding.
        if self.is_over {
            return Poll::Ready(None);
        }
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(context));
        let Some(Ok(frame)) = frame else { return Poll::Ready(frame) };
        let data = match frame.into_data() {
            Ok(data) => data,
            // Trailers have no data and are not counted.
            Err(other) => return Poll::Ready(Some(Ok(other))),
        };
        Poll::Ready(Some(match self.bytes.take(self.client, data.len()) {
            Some(holding) => {
                let counted = Counted { bytes: data, _holding: holding, _call: self.call.clone() };
                Ok(Frame::data(Bytes::from_owner(counted)))
            }
            None => {
                self.is_over = true;
                (self.cut)()
            }
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.is_over || self.inner.is_end_stream()
    }
}

//! The stream of events that tells open pages to ask again. An event has no content: a page asks with its own rights.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{Extension, body::Body, extract::State, response::Response};
use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE},
};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;

use super::{Console, cookie};
use crate::{
    broker::{Broker, access::Caller},
    wire::stream_slots::{StreamSlot, StreamSlots},
};

/// The most streams of all browsers. A page without a stream tries again, and can be reloaded by hand.
const STREAMS_MAX: usize = 512;
/// The most streams of one caller, so that no caller can use up those of all.
const STREAMS_OF_ONE_MAX: usize = 64;
/// The shortest time between two events, so that the pages of a busy broker cost little.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest time between two events. It bounds the age of what is no change of a handoff, such as presence.
const PERIOD: Duration = Duration::from_secs(5);

const CHANGED: &[u8] = b"event: changed\ndata:\n\n";

/// Counts the events, which all streams send at the same time. A page that was made after an event has what the event
/// tells of.
#[derive(Debug, Clone)]
pub(super) struct Ticks(watch::Receiver<u64>);

impl Ticks {
    /// Counts until the broker stops.
    pub(super) fn start(broker: Broker) -> Self {
        let (sender, ticks) = watch::channel(0);
        tokio::spawn(async move {
            let mut latest = broker.handoff_changes().latest();
            loop {
                tokio::select! {
                    changed = latest.changed() => if changed.is_err() { return },
                    () = tokio::time::sleep(PERIOD) => {}
                    () = broker.draining() => return,
                }
                sender.send_modify(|tick| *tick += 1);
                tokio::select! {
                    () = tokio::time::sleep(PAUSE) => {}
                    () = broker.draining() => return,
                }
            }
        });
        Self(ticks)
    }

    /// The number of the latest event.
    pub(super) fn latest(&self) -> u64 {
        *self.0.borrow()
    }
}

/// Makes the bound on streams.
pub(super) fn slots() -> Arc<StreamSlots> {
    StreamSlots::new(STREAMS_OF_ONE_MAX, STREAMS_MAX)
}

/// Streams an event at each change, until the session or the broker ends.
pub(super) async fn events(
    State(console): State<Console>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
) -> Response {
    let Some(place) = console.streams.take(&caller) else {
        return super::plain(StatusCode::SERVICE_UNAVAILABLE, "Too many pages are open.\n");
    };
    // One event may wait: a slow reader gets the next one after it, and misses none that matters.
    let (events, receiver) = mpsc::channel(1);
    tokio::spawn(follow(console, cookie::of(&headers).unwrap_or_default(), place, events));
    let mut answer = Response::new(Body::from_stream(ReceiverStream::new(receiver)));
    for (name, value) in [
        (CONTENT_TYPE, "text/event-stream"),
        (CACHE_CONTROL, "no-store"),
        // Some proxies hold answers back unless they are told not to.
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ] {
        answer.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    answer
}

async fn follow(console: Console, secret: String, _place: StreamSlot, events: mpsc::Sender<Result<Bytes, Infallible>>) {
    let broker = &console.broker;
    let mut ticks = console.ticks.0.clone();
    ticks.mark_unchanged();
    loop {
        tokio::select! {
            ticked = ticks.changed() => if ticked.is_err() { return },
            () = events.closed() => return,
        }
        // Does not count as use of the session: a page that nobody reads stays open, too.
        if console.sessions.caller(&secret, broker, false).is_none() {
            return;
        }
        if events.send(Ok(Bytes::from_static(CHANGED))).await.is_err() {
            return;
        }
    }
}

//! A stream of server-sent events about one task.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    body::{Body, HttpBody},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http::{
    HeaderValue,
    header::{CACHE_CONTROL, CONTENT_TYPE},
};
use http_body::Frame;
use serde_json::Value;
use tokio::{sync::mpsc, time};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::a2a::{Failure, Modes, Reached, View};

/// The events that may wait for a slow client. Afterwards the task is looked at again when it has room.
const WAITING_MAX: usize = 4;
/// How often a silent stream has a comment, so that nothing between takes it for dead.
const COMMENT_EVERY: Duration = Duration::from_secs(15);

/// A task to follow.
pub(super) struct Following {
    pub(super) reached: Reached,
    pub(super) first: View,
    pub(super) modes: Modes,
    /// Whether the stream ends where the task asks its client.
    pub(super) until_asked: bool,
    pub(super) stop: CancellationToken,
}

/// The events, as they are sent. Dropping it ends the following, and nothing else.
pub(super) struct Events {
    events: mpsc::Receiver<Bytes>,
    _following: AbortOnDropHandle<()>,
}

impl Events {
    /// Follows the task. `shown` has the text of an event, and `failed` of what ends the stream before its time.
    pub(super) fn of(
        following: Box<Following>,
        shown: impl Fn(&Value) -> String + Send + Sync + 'static,
        failed: impl Fn(&Failure) -> String + Send + Sync + 'static,
    ) -> Self {
        let (sender, events) = mpsc::channel(WAITING_MAX);
        let Following { reached, first, modes, until_asked, stop } = *following;
        let work = async move {
            let send = async |text: String| drop(sender.send(Bytes::from(format!("data: {text}\n\n"))).await);
            let told = reached.follow(first, modes, until_asked, |event| {
                send(shown(&serde_json::to_value(event).unwrap_or_default()))
            });
            let comments = async {
                loop {
                    time::sleep(COMMENT_EVERY).await;
                    drop(sender.send(Bytes::from_static(b": still there\n\n")).await);
                }
            };
            tokio::select! {
                told = told => if let Err(failure) = told {
                    send(failed(&failure)).await;
                },
                () = comments => {}
                () = stop.cancelled() => {}
            }
        };
        Self { events, _following: AbortOnDropHandle::new(tokio::spawn(work)) }
    }
}

impl IntoResponse for Events {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::new(self));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }
}

impl HttpBody for Events {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.events.poll_recv(context).map(|event| event.map(|event| Ok(Frame::data(event))))
    }
}

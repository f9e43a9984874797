//! The bodies of requests and answers.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    body::{Body, HttpBody},
    response::Response,
};
use bytes::{Bytes, BytesMut};
use http::StatusCode;
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt as _;
use tokio::sync::OwnedSemaphorePermit;

use super::access::Refused;

/// The largest body of a request: a payload of 1 MiB, and 64 KiB around it.
pub(super) const BODY_BYTES_MAX: usize = 1024 * 1024 + 64 * 1024;
/// The most bytes of a larger body that are read and discarded. A client that sends more may lose the answer.
const DISCARDED_BYTES_MAX: usize = 4 * BODY_BYTES_MAX;
/// The time limit for a body.
const BODY_TIME: Duration = Duration::from_secs(10);

/// Reads a whole body.
pub(super) async fn read(body: Body) -> Result<Bytes, Refused> {
    read_within(BODY_TIME, body).await
}

async fn read_within(limit: Duration, mut body: Body) -> Result<Bytes, Refused> {
    let reading = async {
        let (mut kept, mut seen) = (BytesMut::new(), 0);
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| {
                Refused::new(StatusCode::BAD_REQUEST, "BODY_INVALID", "the body has ended before its end")
            })?;
            let Some(data) = frame.data_ref() else { continue };
            seen += data.len();
            if seen <= BODY_BYTES_MAX {
                kept.extend_from_slice(data);
            } else if seen > DISCARDED_BYTES_MAX {
                break;
            } else {
                kept = BytesMut::new();
            }
        }
        if seen > BODY_BYTES_MAX {
            let text = format!("a body has at most {BODY_BYTES_MAX} bytes");
            return Err(Refused::new(StatusCode::PAYLOAD_TOO_LARGE, "PAYLOAD_TOO_LARGE", text));
        }
        Ok(kept.freeze())
    };
    let late = |_| {
        let text = format!("the body must arrive within {} seconds", limit.as_secs());
        Refused::new(StatusCode::REQUEST_TIMEOUT, "BODY_TIMEOUT", text)
    };
    tokio::time::timeout(limit, reading).await.map_err(late)?
}

/// The answer, which keeps the place of its request until its end.
pub(super) fn holding(answer: Response, place: OwnedSemaphorePermit) -> Response {
    answer.map(|body| Body::new(Holding { body, _place: place }))
}

struct Holding {
    body: Body,
    _place: OwnedSemaphorePermit,
}

impl HttpBody for Holding {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::Semaphore;

    use super::*;

    #[tokio::test]
    async fn a_body_is_taken_up_to_its_bound() {
        for (bytes, status) in [(0, None), (BODY_BYTES_MAX, None), (BODY_BYTES_MAX + 1, Some(413))] {
            let read = read(Body::from(vec![7; bytes])).await;
            assert_eq!(read.as_ref().err().map(|refused| refused.status.as_u16()), status, "{bytes}");
            assert!(status.is_some() || read.unwrap().len() == bytes);
        }
    }

    #[tokio::test]
    async fn a_body_that_does_not_come_is_given_up() {
        let refused = read_within(Duration::from_millis(20), Body::new(Never)).await.unwrap_err();
        assert_eq!((refused.status.as_u16(), &refused.body["reason"]), (408, &"BODY_TIMEOUT".into()));
    }

    /// A body that never comes.
    struct Never;

    impl HttpBody for Never {
        type Data = Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
            Poll::Pending
        }
    }

    #[tokio::test]
    async fn an_answer_keeps_its_place_until_its_end() {
        let places = Arc::new(Semaphore::new(1));
        let place = Arc::clone(&places).try_acquire_owned().unwrap();
        let answer = holding(Response::new(Body::from("done")), place);
        assert_eq!(places.available_permits(), 0);
        assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "done");
        assert_eq!(places.available_permits(), 1);
    }
}

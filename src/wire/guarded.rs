//! Answers leave only while this broker leads: the guard is asked before each head and each frame of an answer.
//!
//! Owns that check, for all calls and pages of the port. While the guard has lapsed, an answer waits: it leaves once the
//! broker has its lease again, or never, because the server cuts the connections of an ended term. A broker alone
//! answers without a wait. Must not know what an answer says: an answer whose entry is in the shared log would be safe to
//! send, and waits as the others do.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use baton_protocol::lead::{Lead, LeadGuard};
use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Sleep, sleep};
use tower::Service;

/// The time between two questions to a guard that has lapsed.
const ASK_AGAIN: Duration = Duration::from_millis(20);

/// A service whose answers wait for a guard.
#[derive(Debug, Clone)]
pub struct Guarded<S> {
    inner: S,
    guard: LeadGuard,
    is_exempt: fn(&str) -> bool,
}

impl<S> Guarded<S> {
    /// Wraps a service. `is_exempt` chooses the paths whose answers leave at any time: they say nothing of stored state.
    pub const fn new(inner: S, guard: LeadGuard, is_exempt: fn(&str) -> bool) -> Self {
        Self { inner, guard, is_exempt }
    }
}

impl<S, R, B> Service<Request<R>> for Guarded<S>
where
    S: Service<Request<R>, Response = Response<B>, Error = Infallible>,
    S::Future: Unpin,
{
    type Response = Response<GuardedBody<B>>;
    type Error = Infallible;
    type Future = Answering<S::Future, B>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<R>) -> Self::Future {
        let guard = if (self.is_exempt)(request.uri().path()) { LeadGuard::alone() } else { self.guard.clone() };
        Answering { answer: self.inner.call(request), answered: None, gate: Gate { guard, wait: None } }
    }
}

/// Asks a guard, and waits while it has lapsed.
struct Gate {
    guard: LeadGuard,
    wait: Option<Pin<Box<Sleep>>>,
}

impl Gate {
    fn poll_held(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            if let Some(wait) = &mut self.wait {
                ready!(wait.as_mut().poll(context));
                self.wait = None;
            }
            match self.guard.state() {
                Lead::Held => return Poll::Ready(()),
                Lead::Lapsed => self.wait = Some(Box::pin(sleep(ASK_AGAIN))),
                // The connection is about to be cut, which drops this.
                Lead::Over => return Poll::Pending,
            }
        }
    }
}

/// The future of [`Guarded`].
pub struct Answering<F, B> {
    answer: F,
    answered: Option<Response<B>>,
    gate: Gate,
}

impl<F, B> Unpin for Answering<F, B> {}

impl<F, B> Future for Answering<F, B>
where
    F: Future<Output = Result<Response<B>, Infallible>> + Unpin,
{
    type Output = Result<Response<GuardedBody<B>>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if this.answered.is_none() {
            this.answered = Some(ready!(Pin::new(&mut this.answer).poll(context))?);
        }
        ready!(this.gate.poll_held(context));
        let (head, body) = this.answered.take().expect("it is polled until it is ready").into_parts();
        let gate = Gate { guard: this.gate.guard.clone(), wait: None };
        Poll::Ready(Ok(Response::from_parts(head, GuardedBody { body, frame: None, gate })))
    }
}

/// The body of an answer of [`Guarded`].
pub struct GuardedBody<B> {
    body: B,
    /// A frame that waits for the guard.
    frame: Option<Frame<Bytes>>,
    gate: Gate,
}

impl<B: Body<Data = Bytes> + Unpin> Body for GuardedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = &mut *self;
        if this.frame.is_none() {
            match ready!(Pin::new(&mut this.body).poll_frame(context)) {
                Some(Ok(frame)) => this.frame = Some(frame),
                ended => return Poll::Ready(ended),
            }
        }
        ready!(this.gate.poll_held(context));
        Poll::Ready(this.frame.take().map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.frame.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        match &self.frame {
            // The waiting frame is not in the hint of the rest.
            Some(_) => SizeHint::new(),
            None => self.body.size_hint(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, pin::pin};

    use baton_protocol::time::Moment;
    use http_body_util::{BodyExt as _, Full};
    use tower::{ServiceExt as _, service_fn};

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    async fn answer(guard: &LeadGuard, path: &str) -> Response<GuardedBody<Full<Bytes>>> {
        let service = service_fn(|_: Request<()>| {
            std::future::ready(Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"state")))))
        });
        let service = Guarded::new(service, guard.clone(), |path| path == "/healthz");
        service.oneshot(Request::get(path).body(()).unwrap()).await.unwrap()
    }

    /// Polls a future once. Whether it goes on waiting.
    async fn waits(future: Pin<&mut impl Future>) -> bool {
        let mut future = Some(future);
        poll_fn(|context| Poll::Ready(future.take().expect("it is polled once").poll(context).is_pending())).await
    }

    #[tokio::test]
    async fn an_answer_waits_for_the_guard_and_never_leaves_after_the_term() {
        let guard = LeadGuard::lapsed(Moment::now());
        let mut answered = pin!(answer(&guard, "/"));
        assert!(waits(answered.as_mut()).await, "the guard has lapsed");
        guard.hold_until(HOUR);
        let mut collected = pin!(answered.await.into_body().collect());
        guard.hold_until(Duration::ZERO);
        assert!(waits(collected.as_mut()).await, "a frame waits, too");
        guard.hold_until(HOUR);
        assert_eq!(collected.await.unwrap().to_bytes(), "state");
        let mut collected = pin!(answer(&guard, "/").await.into_body().collect());
        guard.end();
        assert!(waits(collected.as_mut()).await, "the term is over");
        assert!(waits(pin!(answer(&guard, "/"))).await);
    }

    #[tokio::test]
    async fn a_broker_alone_and_an_exempt_path_answer_at_once() {
        let over = LeadGuard::lapsed(Moment::now());
        over.end();
        for (guard, path) in [(LeadGuard::alone(), "/"), (over, "/healthz")] {
            let body = answer(&guard, path).await.into_body();
            assert_eq!(body.size_hint().exact(), Some(5));
            assert_eq!(body.collect().await.unwrap().to_bytes(), "state");
        }
    }
}

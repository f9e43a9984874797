//! Requests of the gateway to addresses on the internet: webhooks, and the push notifications of A2A.
//!
//! Owns the check of addresses, the bounds of a try, and the repeats. A target gets its requests in the order in which its
//! caller awaits them. Must not know what a request says, nor whether an answer is right.

mod addresses;
mod retries;
mod tries;

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use baton_client::{
    ids::{IdSource as _, SystemIds},
    time::Moment,
};
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use tokio::{sync::Semaphore, time};

pub(super) use self::tries::{ANSWER_MAX, Answer};
use self::{
    retries::Retries,
    tries::{System, Tries},
};
use crate::{
    Failure,
    outgoing::{self, Target},
};

/// The time limit of a try, from the name to the last byte of the answer.
const TRY_TIME: Duration = Duration::from_secs(10);
/// The most tries at a time, of all targets.
const TRIES_MAX: usize = 64;

/// A request, which all its tries send alike.
pub(super) struct Post<'a> {
    /// What a log calls it.
    pub(super) id: &'a str,
    /// The headers of a try: some name its time.
    pub(super) head: &'a (dyn Fn() -> HeaderMap + Send + Sync),
    pub(super) body: Bytes,
}

/// What an answer means to the caller.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict<T> {
    Done(T),
    /// The try has failed, for this reason.
    Again(String),
}

/// The end of a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Delivered<T> {
    Done(T),
    /// The receiver wants no more requests (status 410).
    Off,
    /// All tries have failed, the last one for this reason.
    GivenUp(String),
}

/// The one component that sends to the internet.
#[derive(Debug)]
pub(super) struct Sender {
    tries: Tries,
    places: Semaphore,
    /// The requests that were given up since the start.
    given_up: AtomicU64,
}

impl Sender {
    /// A sender that trusts the CAs of this system. `allows_local`: for trials, requests also go to this machine.
    pub(super) fn new(allows_local: bool) -> Result<Self, Failure> {
        Ok(Self::with(Tries { resolver: Box::new(System), tls: outgoing::tls()?, allows_local }))
    }

    fn with(tries: Tries) -> Self {
        Self { tries, places: Semaphore::new(TRIES_MAX), given_up: AtomicU64::new(0) }
    }

    /// Reads the address of a target.
    ///
    /// # Errors
    ///
    /// The problem in words.
    pub(super) fn target(&self, url: &str) -> Result<Target, String> {
        Target::parse(url, self.tries.allows_local)
    }

    /// Posts until `judge` takes an answer, the receiver wants no more, or the time is over.
    pub(super) async fn deliver<T>(
        &self,
        target: &Target,
        post: &Post<'_>,
        judge: impl Fn(&Answer) -> Verdict<T>,
    ) -> Delivered<T> {
        let (began, mut retries) = (Moment::now(), Retries::default());
        loop {
            let (problem, asked) = match self.attempt(target, post).await {
                Ok(answer) if answer.status == StatusCode::GONE => return Delivered::Off,
                Ok(answer) => match judge(&answer) {
                    Verdict::Done(done) => return Delivered::Done(done),
                    Verdict::Again(problem) => (problem, answer.retry_after),
                },
                Err(problem) => (problem, None),
            };
            let random = SystemIds.random();
            let chance = random.iter().take(8).fold(0, |sum, byte| (sum << 8) | u64::from(*byte));
            let Some(pause) = retries.next(began.elapsed(), asked, chance) else {
                let given_up = self.given_up.fetch_add(1, Ordering::Relaxed) + 1;
                let tries = retries.failed();
                tracing::error!(host = target.host(), id = post.id, tries, problem, given_up, "a request is given up");
                return Delivered::GivenUp(problem);
            };
            tracing::warn!(host = target.host(), id = post.id, problem, ?pause, "a request has failed");
            time::sleep(pause).await;
        }
    }

    async fn attempt(&self, target: &Target, post: &Post<'_>) -> Result<Answer, String> {
        let _place = self.places.acquire().await.map_err(|problem| problem.to_string())?;
        let tried = self.tries.post(target, (post.head)(), post.body.clone());
        time::timeout(TRY_TIME, tried).await.unwrap_or_else(|_| Err(format!("no answer within {TRY_TIME:?}")))
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        net::{Ipv4Addr, SocketAddr},
        pin::Pin,
        sync::Mutex,
        task::Poll,
    };

    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };

    use super::{tries::Resolve, *};

    /// A name that has other addresses each time that it is asked for: the last ones stay.
    #[derive(Debug)]
    struct Rebinding(Mutex<Vec<SocketAddr>>, AtomicU64);

    impl Resolve for Rebinding {
        fn resolve<'a>(
            &'a self,
            _host: &'a str,
            _port: u16,
        ) -> Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send + 'a>> {
            self.1.fetch_add(1, Ordering::Relaxed);
            let mut left = self.0.lock().unwrap();
            let found = if left.len() > 1 { left.remove(0) } else { left[0] };
            Box::pin(async move { Ok(vec![found]) })
        }
    }

    fn sender(resolver: impl Resolve + 'static, allows_local: bool) -> Sender {
        let mut sender = Sender::new(allows_local).unwrap();
        sender.tries.resolver = Box::new(resolver);
        sender
    }

    async fn attempt(sender: &Sender, url: &str) -> Result<Answer, String> {
        let post = Post { id: "p", head: &HeaderMap::new, body: Bytes::from_static(b"{}") };
        sender.attempt(&sender.target(url).unwrap(), &post).await
    }

    /// Answers each connection with these bytes. Returns what came.
    async fn serve<const N: usize>(listener: TcpListener, answers: [&str; N]) -> Vec<String> {
        let mut heard = Vec::new();
        for answer in answers {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut bytes = vec![0; 16 * 1024];
            let mut length = 0;
            while !bytes[..length].ends_with(b"\r\n\r\n{}") {
                length += stream.read(&mut bytes[length..]).await.unwrap();
            }
            heard.push(String::from_utf8_lossy(&bytes[..length]).into_owned());
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
        heard
    }

    async fn listen() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    #[tokio::test]
    async fn a_name_that_points_to_this_machine_gets_no_connection() {
        let (listener, address) = listen().await;
        let sender = sender(Rebinding(Mutex::new(vec![address]), AtomicU64::new(0)), false);
        let refused = attempt(&sender, "https://hooks.example/").await.unwrap_err();
        assert!(refused.contains("no request may go to"), "{refused}");
        let is_silent = std::future::poll_fn(|context| Poll::Ready(listener.poll_accept(context).is_pending())).await;
        assert!(is_silent, "nothing has connected");
    }

    #[tokio::test]
    async fn the_checked_address_is_the_one_that_is_connected_to() {
        let (listener, address) = listen().await;
        let elsewhere = SocketAddr::from(([10, 0, 0, 1], 80));
        let resolver = Rebinding(Mutex::new(vec![address, elsewhere]), AtomicU64::new(0));
        let sender = sender(resolver, true);
        let (answer, heard) = tokio::join!(
            attempt(&sender, "http://localhost/hook?x=1"),
            serve(listener, ["HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"])
        );
        let answer = answer.unwrap();
        assert_eq!((answer.status, &answer.body[..]), (StatusCode::OK, &b"ok"[..]));
        // One look at the name for a try. The second one finds the address that is refused.
        assert!(heard[0].starts_with("POST /hook?x=1 HTTP/1.1\r\n") && heard[0].contains("host: localhost\r\n"));
        assert!(attempt(&sender, "http://localhost/").await.unwrap_err().contains("10.0.0.1"));
    }

    #[tokio::test]
    async fn a_redirect_is_not_followed_and_a_long_answer_is_cut() {
        let (listener, address) = listen().await;
        let sender = sender(Rebinding(Mutex::new(vec![address]), AtomicU64::new(0)), true);
        let redirect = "HTTP/1.1 307 Away\r\nlocation: http://169.254.169.254/\r\ncontent-length: 0\r\n\r\n";
        let long =
            format!("HTTP/1.1 200 OK\r\ncontent-length: {0}\r\n\r\n{1}", ANSWER_MAX + 1, "x".repeat(ANSWER_MAX + 1));
        let post = async {
            let first = attempt(&sender, "http://localhost/").await.unwrap();
            (first, attempt(&sender, "http://localhost/").await.unwrap())
        };
        let ((first, second), heard) = tokio::join!(post, serve(listener, [redirect, &long]));
        assert_eq!((first.status.as_u16(), heard.len()), (307, 2));
        assert!(second.is_cut && second.body.len() <= ANSWER_MAX);
    }

    #[tokio::test]
    async fn a_failed_try_is_repeated_and_410_ends_it() {
        let (listener, address) = listen().await;
        let sender = sender(Rebinding(Mutex::new(vec![address]), AtomicU64::new(0)), true);
        let busy = "HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n";
        let good = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
        let gone = "HTTP/1.1 410 Gone\r\ncontent-length: 0\r\n\r\n";
        let target = sender.target("http://localhost/").unwrap();
        let post = Post { id: "p", head: &HeaderMap::new, body: Bytes::from_static(b"{}") };
        let judge = |answer: &Answer| match answer.status.as_u16() {
            200 => Verdict::Done(()),
            other => Verdict::Again(other.to_string()),
        };
        let delivering =
            async { (sender.deliver(&target, &post, judge).await, sender.deliver(&target, &post, judge).await) };
        let (ends, heard) = tokio::join!(delivering, serve(listener, [busy, good, gone]));
        assert_eq!((ends, heard.len()), ((Delivered::Done(()), Delivered::Off), 3));
    }
}

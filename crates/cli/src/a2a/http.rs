//! One request to the remote agent, and its answer: as a whole, or as a stream.
//!
//! Owns the rule for addresses, the credentials and the bounds. Must not know A2A.

use std::{
    fmt,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use http::{
    HeaderMap, HeaderValue, Method, Request, StatusCode, Uri,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, USER_AGENT},
};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use tokio::time;
use tokio_util::task::AbortOnDropHandle;

use crate::{
    Failure,
    connection::read_token,
    outgoing::{self, NotOpen, Target},
};

/// The time limit for a name and its connection.
const CONNECT_TIME: Duration = Duration::from_secs(10);
/// The largest head of an answer, in bytes.
const HEAD_MAX: usize = 64 * 1024;
/// The largest body of an answer, and the largest event of a stream, in bytes.
pub(super) const BODY_MAX: usize = 16 * 1024 * 1024;

/// Why a request has no good answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Problem {
    /// A later try may succeed.
    Passing(String),
    /// The certificate of the server is not trusted, or TLS fails in another way.
    Tls(String),
    /// The remote agent refuses the request, with a code of A2A or of JSON-RPC, or with a status of HTTP alone.
    Refused { code: i32, words: String },
    /// The answer is not what A2A 1.0 has.
    Invalid(String),
    /// The request cannot be made here.
    Here(String),
}

impl Problem {
    /// Whether a later try may succeed. A certificate may be renewed, and a file of credentials written again.
    pub(super) const fn is_passing(&self) -> bool {
        matches!(self, Self::Passing(_) | Self::Tls(_) | Self::Here(_))
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passing(words) | Self::Tls(words) | Self::Here(words) => formatter.write_str(words),
            Self::Refused { code, words } => write!(formatter, "the remote agent refuses it ({code}): {words}"),
            Self::Invalid(words) => write!(formatter, "the remote agent sent what is not A2A 1.0: {words}"),
        }
    }
}

/// A client for the remote agent.
#[derive(Debug)]
pub(super) struct Http {
    tls: Arc<rustls::ClientConfig>,
    /// Whether requests may go to this machine.
    allows_local: bool,
    /// The file of the bearer token.
    bearer: Option<PathBuf>,
}

/// A request to make.
pub(super) struct Call<'a> {
    pub(super) method: Method,
    pub(super) target: &'a Target,
    /// The path with its query.
    pub(super) path: String,
    /// Headers beside those of all requests.
    pub(super) head: HeaderMap,
    /// Empty: none.
    pub(super) body: Bytes,
    /// The time limit up to the head of the answer.
    pub(super) limit: Duration,
}

/// An answer whose body is still to be read. Dropping it closes the connection.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    head: HeaderMap,
    body: Incoming,
    _connection: AbortOnDropHandle<Result<(), hyper::Error>>,
}

impl Http {
    pub(super) fn new(allows_local: bool, bearer: Option<PathBuf>) -> Result<Self, Failure> {
        if let Some(path) = &bearer {
            bearer_in(path)?;
        }
        Ok(Self { tls: outgoing::tls()?, allows_local, bearer })
    }

    /// Whether requests carry a bearer token.
    pub(super) const fn has_bearer(&self) -> bool {
        self.bearer.is_some()
    }

    /// Reads an address that requests may go to.
    ///
    /// # Errors
    ///
    /// The problem in words.
    pub(super) fn target(&self, url: &str) -> Result<Target, String> {
        let target = Target::parse(url, self.allows_local)?;
        match target.is_local() && !self.allows_local {
            true => Err(local(target.host())),
            false => Ok(target),
        }
    }

    /// Makes one request. A redirect is an answer like others, and is not followed.
    pub(super) async fn send(&self, call: Call<'_>) -> Result<Answer, Problem> {
        let (target, limit) = (call.target, call.limit);
        let request = self.request(call)?;
        let opening = async {
            let addresses = tokio::net::lookup_host((target.host(), target.port)).await;
            let addresses: Vec<_> = addresses
                .map_err(|problem| Problem::Passing(format!("{} is not resolved: {problem}", target.host())))?
                .collect();
            self.check(target, &addresses)?;
            outgoing::open(target, &addresses, &self.tls).await.map_err(|problem| match problem {
                NotOpen::Unreachable(problem) => Problem::Passing(format!("{}: {problem}", target.host())),
                NotOpen::Tls(problem) => Problem::Tls(format!("TLS with {}: {problem}", target.host())),
            })
        };
        let late = |_| Problem::Passing(format!("{} does not take a connection in time", target.host()));
        let stream = time::timeout(CONNECT_TIME, opening).await.map_err(late)??;
        let cut = |problem: hyper::Error| Problem::Passing(format!("the connection has ended: {problem}"));
        let handshake = http1::Builder::new().max_buf_size(HEAD_MAX).handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(cut)?;
        let connection = AbortOnDropHandle::new(tokio::spawn(connection));
        let late = |_| Problem::Passing(format!("{} does not answer in time", target.host()));
        let answer = time::timeout(limit, sender.send_request(request)).await.map_err(late)?.map_err(cut)?;
        let (head, body) = answer.into_parts();
        Ok(Answer { status: head.status, head: head.headers, body, _connection: connection })
    }

    /// A name that leads to this machine is refused as the machine itself is, and a connection without TLS goes nowhere
    /// else.
    fn check(&self, target: &Target, addresses: &[SocketAddr]) -> Result<(), Problem> {
        let is_local = |address: &SocketAddr| address.ip().to_canonical().is_loopback();
        if !self.allows_local && addresses.iter().any(is_local) {
            return Err(Problem::Here(local(target.host())));
        }
        if !target.is_encrypted && !addresses.iter().all(is_local) {
            return Err(Problem::Here(format!("{} is another machine, which needs https://", target.host())));
        }
        Ok(())
    }

    fn request(&self, call: Call<'_>) -> Result<Request<Full<Bytes>>, Problem> {
        let here = |problem: String| Problem::Here(problem);
        let path: Uri = call.path.parse().map_err(|problem| here(format!("{} is no path: {problem}", call.path)))?;
        let has_body = !call.body.is_empty();
        let mut request = Request::new(Full::new(call.body));
        *request.method_mut() = call.method;
        *request.uri_mut() = path;
        *request.headers_mut() = call.head;
        let headers = request.headers_mut();
        let host = call.target.uri.authority().map_or("", |authority| authority.as_str());
        headers.insert(HOST, HeaderValue::from_str(host).map_err(|problem| here(problem.to_string()))?);
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("baton/", env!("CARGO_PKG_VERSION"))));
        headers.entry(ACCEPT).or_insert(HeaderValue::from_static("application/json"));
        if has_body {
            headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static("application/json"));
        }
        if let Some(path) = &self.bearer {
            // Read anew: another program renews it.
            let token = bearer_in(path).map_err(|failure| here(failure.message().to_owned()))?;
            headers.insert(AUTHORIZATION, token);
        }
        Ok(request)
    }
}

fn local(host: &str) -> String {
    format!("{host} is this machine; for a trial, allow it with --allow-local-targets")
}

/// The header for the token in this file.
fn bearer_in(path: &Path) -> Result<HeaderValue, Failure> {
    let token = read_token(path)?;
    let header = HeaderValue::from_str(&format!("Bearer {token}"));
    let mut header = header.map_err(|_| Failure::file(path, "its token has characters that no header may have"))?;
    header.set_sensitive(true);
    Ok(header)
}

impl Answer {
    /// Whether the body is a stream of events.
    pub(super) fn is_stream(&self) -> bool {
        let kind = self.head.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("text/event-stream")
    }

    /// The whole body, within a time limit.
    pub(super) async fn read(mut self, limit: Duration) -> Result<Bytes, Problem> {
        let reading = async {
            let mut found = BytesMut::new();
            while let Some(data) = self.chunk().await? {
                if found.len() + data.len() > BODY_MAX {
                    return Err(Problem::Invalid(format!("an answer of over {BODY_MAX} bytes")));
                }
                found.extend_from_slice(&data);
            }
            Ok(found.freeze())
        };
        let late = |_| Problem::Passing("the answer does not end in time".to_owned());
        time::timeout(limit, reading).await.map_err(late)?
    }

    /// The next bytes of the body; `None` at its end.
    pub(super) async fn chunk(&mut self) -> Result<Option<Bytes>, Problem> {
        while let Some(frame) = self.body.frame().await {
            let frame = frame.map_err(|problem| Problem::Passing(format!("the answer is cut off: {problem}")))?;
            if let Ok(data) = frame.into_data() {
                return Ok(Some(data));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_networks_are_fine_and_this_machine_needs_the_flag() {
        let strict = Http::new(false, None).unwrap();
        let address = |text: &str| vec![text.parse().unwrap()];
        let target = strict.target("https://agents.internal/a2a").unwrap();
        assert_eq!(strict.check(&target, &address("10.0.0.7:443")), Ok(()));
        let refused = strict.check(&target, &address("127.0.0.1:443"));
        assert!(matches!(refused, Err(Problem::Here(words)) if words.contains("--allow-local-targets")));
        for local in ["https://localhost/", "https://[::1]/", "http://127.0.0.1:1/"] {
            assert!(strict.target(local).unwrap_err().contains("--allow-local-targets"), "{local}");
        }
        let open = Http::new(true, None).unwrap();
        let plain = open.target("http://localhost:1/").unwrap();
        assert_eq!(open.check(&plain, &address("127.0.0.1:1")), Ok(()));
        assert!(open.check(&plain, &address("10.0.0.7:1")).is_err(), "a name that leads elsewhere");
    }
}

//! One try: the name is resolved once, each of its addresses is checked, and the connection goes to a checked one.

use std::{fmt, io, net::SocketAddr, pin::Pin, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use http::{
    HeaderMap, HeaderValue, Request, StatusCode, Uri,
    header::{ACCEPT, CONTENT_TYPE, HOST, RETRY_AFTER, USER_AGENT},
};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use rustls_pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;
use tokio_util::task::AbortOnDropHandle;

use super::addresses::is_public;

/// The longest address of a target, in bytes.
const URL_MAX: usize = 2048;
/// The longest body of an answer, in bytes.
pub(in super::super) const ANSWER_MAX: usize = 256 * 1024;
/// The largest head of an answer, in bytes.
const HEAD_MAX: usize = 16 * 1024;

/// Resolves a name.
pub(super) trait Resolve: fmt::Debug + Send + Sync {
    /// The addresses of the name.
    fn resolve<'a>(
        &'a self,
        host: &'a str,
        port: u16,
    ) -> Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send + 'a>>;
}

/// The resolver of the system.
#[derive(Debug)]
pub(super) struct System;

impl Resolve for System {
    fn resolve<'a>(
        &'a self,
        host: &'a str,
        port: u16,
    ) -> Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send + 'a>> {
        Box::pin(async move { Ok(tokio::net::lookup_host((host, port)).await?.collect()) })
    }
}

/// An address that requests go to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) struct Target {
    uri: Uri,
    /// Without brackets.
    host: String,
    port: u16,
    is_encrypted: bool,
}

impl Target {
    /// Reads an address: https, or http where `allows_local`. Its host is resolved when a request goes to it.
    ///
    /// # Errors
    ///
    /// The problem in words.
    pub(in super::super) fn parse(text: &str, allows_local: bool) -> Result<Self, String> {
        if text.len() > URL_MAX {
            return Err(format!("must have at most {URL_MAX} bytes"));
        }
        let uri: Uri = text.parse().map_err(|problem| format!("is no address: {problem}"))?;
        let is_encrypted = match uri.scheme_str() {
            Some("https") => true,
            Some("http") if allows_local => false,
            Some("http") => {
                return Err("must begin with https://; http:// is for trials on this machine, with \
                            --allow-local-targets"
                    .to_owned());
            }
            _ => return Err("must begin with https://".to_owned()),
        };
        let authority = uri.authority().ok_or("must name a host")?;
        if authority.as_str().contains('@') || authority.host().is_empty() {
            return Err("must name a host, without a user".to_owned());
        }
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        let port = authority.port_u16().unwrap_or(if is_encrypted { 443 } else { 80 });
        if !is_encrypted && !is_loopback_name(&host) {
            return Err("http:// is for this machine alone: localhost, 127.0.0.1 or [::1]".to_owned());
        }
        Ok(Self { uri, host, port, is_encrypted })
    }

    /// Whether the address names this machine.
    pub(in super::super) fn is_local(&self) -> bool {
        is_loopback_name(&self.host)
    }

    /// The host, for a log: the rest of an address may have secrets.
    pub(in super::super) fn host(&self) -> &str {
        &self.host
    }

    /// Checks the addresses of the host. A single refused one refuses all: a name of the internet has public addresses alone.
    fn check(&self, addresses: &[SocketAddr], allows_local: bool) -> Result<(), String> {
        if addresses.is_empty() {
            return Err(format!("{} has no address", self.host));
        }
        for address in addresses {
            let ip = address.ip().to_canonical();
            let is_allowed = match ip.is_loopback() {
                true => allows_local,
                false => self.is_encrypted && is_public(address.ip()),
            };
            if !is_allowed {
                return Err(format!("{} has the address {ip}, which no request may go to", self.host));
            }
        }
        Ok(())
    }
}

fn is_loopback_name(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

/// The answer of a receiver.
#[derive(Debug)]
pub(in super::super) struct Answer {
    pub(in super::super) status: StatusCode,
    /// The body up to its bound.
    pub(in super::super) body: Bytes,
    /// Whether the body is longer than its bound.
    pub(in super::super) is_cut: bool,
    /// What `Retry-After` asks for, in seconds.
    pub(in super::super) retry_after: Option<Duration>,
}

#[cfg(test)]
impl Answer {
    /// An answer as a receiver gives it.
    pub(in super::super) fn of(status: StatusCode, body: Bytes) -> Self {
        Self { status, body, is_cut: false, retry_after: None }
    }
}

/// What all tries share.
#[derive(Debug)]
pub(super) struct Tries {
    pub(super) resolver: Box<dyn Resolve>,
    pub(super) tls: Arc<rustls::ClientConfig>,
    pub(super) allows_local: bool,
}

impl Tries {
    /// Posts once. A redirect is an answer like others, and is not followed.
    pub(super) async fn post(&self, target: &Target, head: HeaderMap, body: Bytes) -> Result<Answer, String> {
        let addresses = self.resolver.resolve(&target.host, target.port).await;
        let addresses = addresses.map_err(|problem| format!("{} is not resolved: {problem}", target.host))?;
        target.check(&addresses, self.allows_local)?;
        let stream = connect(&addresses).await.map_err(|problem| problem.to_string())?;
        // Sends a small request at once. A connection without the option works too.
        drop(stream.set_nodelay(true));
        let request = request(target, head, body);
        if !target.is_encrypted {
            return exchange(stream, request).await;
        }
        let name = ServerName::try_from(target.host.clone()).map_err(|problem| problem.to_string())?;
        let stream = TlsConnector::from(Arc::clone(&self.tls)).connect(name, stream).await;
        exchange(stream.map_err(|problem| format!("TLS: {problem}"))?, request).await
    }
}

/// A connection to the first address that takes one.
async fn connect(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in addresses {
        match TcpStream::connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(problem) => last = problem,
        }
    }
    Err(last)
}

fn request(target: &Target, head: HeaderMap, body: Bytes) -> Request<Full<Bytes>> {
    let path = target.uri.path_and_query().map_or("/", |path| path.as_str());
    let mut request = Request::new(Full::new(body));
    *request.method_mut() = http::Method::POST;
    *request.uri_mut() = path.parse().unwrap_or_else(|_| Uri::from_static("/"));
    *request.headers_mut() = head;
    let headers = request.headers_mut();
    let host = target.uri.authority().and_then(|authority| HeaderValue::from_str(authority.as_str()).ok());
    headers.insert(HOST, host.unwrap_or_else(|| HeaderValue::from_static("")));
    headers.insert(USER_AGENT, HeaderValue::from_static(concat!("baton-gateway/", env!("CARGO_PKG_VERSION"))));
    headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
    headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static("application/json"));
    request
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Full<Bytes>>,
) -> Result<Answer, String> {
    let handshake = http1::Builder::new().max_buf_size(HEAD_MAX).handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(|problem| problem.to_string())?;
    // Ends with this try.
    let _connection = AbortOnDropHandle::new(tokio::spawn(connection));
    let answer = sender.send_request(request).await.map_err(|problem| problem.to_string())?;
    let (head, body) = answer.into_parts();
    let (body, is_cut) = read(body).await?;
    let seconds = head.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
    Ok(Answer { status: head.status, body, is_cut, retry_after: seconds.map(Duration::from_secs) })
}

/// The body up to its bound, and whether it is longer.
async fn read(mut body: Incoming) -> Result<(Bytes, bool), String> {
    let mut found = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|problem| format!("the answer is cut off: {problem}"))?;
        let Ok(data) = frame.into_data() else { continue };
        if found.len() + data.len() > ANSWER_MAX {
            return Ok((found.freeze(), true));
        }
        found.extend_from_slice(&data);
    }
    Ok((found.freeze(), false))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_https_and_names_a_host() {
        let good = Target::parse("https://hooks.example:8443/a?b=c", false).unwrap();
        assert_eq!((good.host(), good.port, good.is_encrypted, good.is_local()), ("hooks.example", 8443, true, false));
        assert_eq!(Target::parse("https://hooks.example", false).unwrap().port, 443);
        assert_eq!(Target::parse("https://[2606:4700::1]/", false).unwrap().host(), "2606:4700::1");
        for (wrong, words) in [
            ("http://hooks.example/", "https://"),
            ("ftp://hooks.example/", "https://"),
            ("hooks.example", "https://"),
            ("/path", "https://"),
            ("https://user:word@hooks.example/", "without a user"),
            ("https://", "address"),
            ("https://a b/", "address"),
        ] {
            let problem = Target::parse(wrong, false).unwrap_err();
            assert!(problem.contains(words), "{wrong}: {problem}");
        }
        assert!(Target::parse(&format!("https://a.example/{}", "x".repeat(URL_MAX)), false).is_err());
    }

    #[test]
    fn plain_http_goes_to_this_machine_alone() {
        for url in ["http://localhost:9/", "http://127.0.0.1/", "http://[::1]:9/", "http://[::ffff:127.0.0.1]/"] {
            assert!(Target::parse(url, false).is_err() && Target::parse(url, true).unwrap().is_local(), "{url}");
        }
        assert!(Target::parse("http://hooks.example/", true).unwrap_err().contains("this machine"));
    }

    #[test]
    fn each_address_of_a_host_is_checked() {
        let target = Target::parse("https://hooks.example/", false).unwrap();
        let check = |addresses: &[&str], allows_local| {
            let all: Vec<SocketAddr> = addresses.iter().map(|ip| SocketAddr::new(ip.parse().unwrap(), 443)).collect();
            target.check(&all, allows_local)
        };
        assert_eq!(check(&["8.8.8.8", "2606:4700::1"], false), Ok(()));
        assert!(check(&["8.8.8.8", "10.0.0.1"], false).unwrap_err().contains("10.0.0.1"));
        assert!(check(&["127.0.0.1"], false).is_err() && check(&["::ffff:127.0.0.1"], false).is_err());
        assert!(check(&[], false).unwrap_err().contains("no address"));
        // For trials this machine is allowed, and its network is not.
        assert_eq!(check(&["127.0.0.1", "::1", "::ffff:127.0.0.1"], true), Ok(()));
        assert!(check(&["192.168.0.1"], true).is_err() && check(&["169.254.169.254"], true).is_err());
        let plain = Target::parse("http://localhost/", true).unwrap();
        assert!(plain.check(&["8.8.8.8:80".parse().unwrap()], true).is_err(), "a name that points elsewhere");
    }
}

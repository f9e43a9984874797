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
use tokio_util::task::AbortOnDropHandle;

use super::addresses::is_public;
use crate::outgoing::{self, Stream, Target};

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

/// Checks the addresses of the host. A single refused one refuses all: a name of the internet has public addresses alone.
fn check(target: &Target, addresses: &[SocketAddr], allows_local: bool) -> Result<(), String> {
    if addresses.is_empty() {
        return Err(format!("{} has no address", target.host));
    }
    for address in addresses {
        let ip = address.ip().to_canonical();
        let is_allowed = match ip.is_loopback() {
            true => allows_local,
            false => target.is_encrypted && is_public(address.ip()),
        };
        if !is_allowed {
            return Err(format!("{} has the address {ip}, which no request may go to", target.host));
        }
    }
    Ok(())
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
        check(target, &addresses, self.allows_local)?;
        let stream = outgoing::open(target, &addresses, &self.tls).await.map_err(|problem| problem.to_string())?;
        exchange(stream, request(target, head, body)).await
    }
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

async fn exchange(stream: Box<dyn Stream>, request: Request<Full<Bytes>>) -> Result<Answer, String> {
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
    fn each_address_of_a_host_is_checked() {
        let target = Target::parse("https://hooks.example/", false).unwrap();
        let check = |addresses: &[&str], allows_local| {
            let all: Vec<SocketAddr> = addresses.iter().map(|ip| SocketAddr::new(ip.parse().unwrap(), 443)).collect();
            super::check(&target, &all, allows_local)
        };
        assert_eq!(check(&["8.8.8.8", "2606:4700::1"], false), Ok(()));
        assert!(check(&["8.8.8.8", "10.0.0.1"], false).unwrap_err().contains("10.0.0.1"));
        assert!(check(&["127.0.0.1"], false).is_err() && check(&["::ffff:127.0.0.1"], false).is_err());
        assert!(check(&[], false).unwrap_err().contains("no address"));
        // For trials this machine is allowed, and its network is not.
        assert_eq!(check(&["127.0.0.1", "::1", "::ffff:127.0.0.1"], true), Ok(()));
        assert!(check(&["192.168.0.1"], true).is_err() && check(&["169.254.169.254"], true).is_err());
        let plain = Target::parse("http://localhost/", true).unwrap();
        assert!(super::check(&plain, &["8.8.8.8:80".parse().unwrap()], true).is_err(), "a name that points elsewhere");
    }
}

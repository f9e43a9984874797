//! A connection as HTTP sees it, encrypted or not.
//!
//! Owns reading and writing on it, its end, and what a request can learn of it. Must not know how it was opened, nor what
//! is served on it.

use std::{
    io::{self, IoSlice},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard},
    task::{Context, Poll, ready},
    time::Duration,
};

use http::Extensions;
use rustls::pki_types::CertificateDer;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::Sleep,
};
use tokio_rustls::server::TlsStream;

use super::opening::{Client, Opening};
use crate::{ids::AgentId, wire::quota::Holding};

/// Most bytes of an HTTP/1 request that are read, and thrown away, after it was answered.
const DISCARDED_BYTES_MAX: usize = 64 * 1024;
/// How long such bytes are waited for.
const LINGER: Duration = Duration::from_secs(1);

/// What is known of a request's connection; an extension of every request.
#[derive(Debug, Clone)]
pub struct ConnectInfo {
    /// Where the client is.
    pub peer_addr: SocketAddr,
    /// Whether the connection is TLS.
    pub encrypted: bool,
    /// The agent that the client's certificate names, which a CA that the operator trusts has signed.
    pub agent: Option<AgentId>,
    /// What the connection's sessions may have of credit.
    pub credit: Arc<ConnectionCredit>,
}

impl ConnectInfo {
    /// The address of a request's client; unspecified for a request that came by no connection, as in a test of a service
    /// alone.
    pub fn client_of(extensions: &Extensions) -> IpAddr {
        extensions.get::<Self>().map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |connection| connection.peer_addr.ip())
    }
}

/// The credit of all sessions of one connection together, so that the acks of all that was delivered on it fit what the
/// connection may leave unread.
#[derive(Debug)]
pub struct ConnectionCredit {
    left: Mutex<u32>,
}

impl ConnectionCredit {
    /// So much for all sessions.
    pub fn new(most: u32) -> Arc<Self> {
        Arc::new(Self { left: Mutex::new(most) })
    }

    /// The part of a session that has none yet.
    pub fn session(self: &Arc<Self>) -> SessionCredit {
        SessionCredit { of: self.clone(), taken: 0 }
    }

    fn left(&self) -> MutexGuard<'_, u32> {
        self.left.lock().expect("no holder panics")
    }
}

/// What one session has of its connection's credit; given back when it is dropped.
#[derive(Debug)]
pub struct SessionCredit {
    of: Arc<ConnectionCredit>,
    taken: u32,
}

impl SessionCredit {
    /// Sets the credit anew. Returns what is granted: as much of what is wanted as the connection has left, and at least 1,
    /// so that every session goes on.
    pub fn set(&mut self, wanted: u32) -> u32 {
        let mut left = self.of.left();
        *left += self.taken;
        self.taken = wanted.min(*left);
        *left -= self.taken;
        self.taken.max(wanted.min(1))
    }
}

impl Drop for SessionCredit {
    fn drop(&mut self) {
        *self.of.left() += self.taken;
    }
}

/// The beginning of the URI by which a certificate names an agent, as a subject alternative name.
const AGENT_URI: &str = "urn:baton:agent:";

/// The agent that a certificate is for.
pub(in crate::wire) fn agent_of(certificate: &CertificateDer<'_>) -> Option<AgentId> {
    let certificate = webpki::EndEntityCert::try_from(certificate).ok()?;
    certificate.valid_uri_names().find_map(|uri| AgentId::parse(uri.strip_prefix(AGENT_URI)?).ok())
}

/// An open connection, ready for HTTP.
pub struct Connection {
    transport: Transport,
    /// What was read to recognise HTTP, and is to be read again by HTTP itself.
    beginning: io::Cursor<Vec<u8>>,
    info: ConnectInfo,
    /// One of the connections that may be open.
    _place: Holding,
    /// Runs while the client takes no byte of what there is for it. HTTP/2's keepalive cannot end such a connection, since it
    /// would have to write to do so.
    stalled: Option<Pin<Box<Sleep>>>,
    stall_timeout: Duration,
    /// `None` where the end does not linger.
    linger: Option<Linger>,
}

/// The end of an HTTP/1 connection: what the client still sends of its request is read. Closed with something unread, the
/// operating system would reset the connection, and the answer might be lost.
struct Linger {
    left: usize,
    over: Option<Pin<Box<Sleep>>>,
}

/// TCP, with TLS or without it.
pub(super) enum Transport {
    Encrypted(Box<TlsStream<TcpStream>>),
    Plain(TcpStream),
}

impl Transport {
    pub(super) fn pinned(&mut self) -> Pin<&mut (dyn ReadWrite + Unpin + Send)> {
        match self {
            Self::Encrypted(stream) => Pin::new(&mut **stream),
            Self::Plain(stream) => Pin::new(stream),
        }
    }
}

/// What can be read from and written to.
pub(super) trait ReadWrite: AsyncRead + AsyncWrite {}

impl<T: AsyncRead + AsyncWrite> ReadWrite for T {}

impl Connection {
    /// A client's connection, of which `beginning` was read already. Writing fails when the client takes no byte for its
    /// `stall_timeout`.
    pub(super) fn new(transport: Transport, opening: Opening, beginning: Vec<u8>, client: Client) -> Self {
        let (encrypted, agent) = match &transport {
            Transport::Encrypted(stream) => {
                (true, stream.get_ref().1.peer_certificates().and_then(<[_]>::first).and_then(agent_of))
            }
            Transport::Plain(_) => (false, None),
        };
        let lingers = opening == Opening::Http1;
        Self {
            transport,
            beginning: io::Cursor::new(beginning),
            info: ConnectInfo { peer_addr: client.peer, encrypted, agent, credit: client.credit },
            _place: client.place,
            stalled: None,
            stall_timeout: client.stall_timeout,
            linger: lingers.then_some(Linger { left: DISCARDED_BYTES_MAX, over: None }),
        }
    }

    /// What requests learn of it.
    pub(super) fn info(&self) -> &ConnectInfo {
        &self.info
    }

    /// Ready once the client has closed its side, has sent all that is discarded, or the time for it is over.
    fn poll_linger(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(Linger { left, over }) = &mut self.linger else { return Poll::Ready(()) };
        let over = over.get_or_insert_with(|| Box::pin(tokio::time::sleep(LINGER)));
        let mut discarded = [0; 4096];
        while *left > 0 && over.as_mut().poll(context).is_pending() {
            let mut buffer = ReadBuf::new(&mut discarded);
            match ready!(self.transport.pinned().poll_read(context, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => *left = left.saturating_sub(buffer.filled().len()),
                Ok(()) | Err(_) => break,
            }
        }
        Poll::Ready(())
    }

    /// The outcome of a write or a flush, or a failure if the client has taken no byte for too long.
    fn unless_stalled<T>(&mut self, outcome: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            self.stalled = None;
            return outcome;
        }
        let timeout = self.stall_timeout;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
        ready!(stalled.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let filled = buffer.filled().len();
        ready!(Pin::new(&mut self.beginning).poll_read(context, buffer))?;
        if buffer.filled().len() > filled {
            return Poll::Ready(Ok(()));
        }
        self.transport.pinned().poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = self.transport.pinned().poll_write(context, bytes);
        self.unless_stalled(outcome, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = self.transport.pinned().poll_write_vectored(context, slices);
        self.unless_stalled(outcome, context)
    }

    fn is_write_vectored(&self) -> bool {
        match &self.transport {
            Transport::Encrypted(stream) => stream.is_write_vectored(),
            Transport::Plain(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = self.transport.pinned().poll_flush(context);
        self.unless_stalled(outcome, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = self.transport.pinned().poll_shutdown(context);
        ready!(self.unless_stalled(outcome, context))?;
        self.poll_linger(context).map(Ok)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_share_the_credit_of_their_connection_and_each_has_some() {
        let connection = ConnectionCredit::new(100);
        let (mut first, mut second, mut third) = (connection.session(), connection.session(), connection.session());
        assert_eq!((first.set(60), second.set(60), third.set(60)), (60, 40, 1));
        assert_eq!(third.set(0), 0, "none is wanted");
        assert_eq!((first.set(10), third.set(60)), (10, 50), "what one gives back another has");
        drop(second);
        assert_eq!(first.set(60), 50);
        drop((first, third));
        assert_eq!(*connection.left(), 100);
    }
}

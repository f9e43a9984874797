//! A connection as HTTP sees it, encrypted or not.
//!
//! Owns its reads and writes, its end, and the facts about it that requests can read. Must not know how it was opened,
//! nor the services on it.

use std::{
    io::{self, IoSlice},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, atomic::AtomicBool},
    task::{Context, Poll, ready},
    time::Duration,
};

use http::Extensions;
use rustls::pki_types::CertificateDer;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Sleep,
};
use tokio_rustls::server::TlsStream;

use super::{
    arrival::{ReadWrite, Socket},
    heads::Heads,
    opening::{Client, Opening},
};
use crate::{ids::AgentId, wire::quota::Holding};

/// The most bytes of an HTTP/1 request that are read and discarded after its answer.
const DISCARDED_BYTES_MAX: usize = 64 * 1024;
/// The time limit for reading these bytes.
const LINGER: Duration = Duration::from_secs(1);

/// The facts about a request's connection; an extension of every request.
#[derive(Debug, Clone)]
pub struct ConnectInfo {
    /// The client's address and port.
    pub peer_addr: SocketAddr,
    /// Whether the connection uses TLS.
    pub encrypted: bool,
    /// The agent named by the client's certificate, which a CA trusted by the operator has signed.
    pub agent: Option<AgentId>,
    /// The credit that the connection's sessions share.
    pub credit: Arc<ConnectionCredit>,
}

impl ConnectInfo {
    /// The address of a request's client. Unspecified for a request without a connection, as in a test of a service
    /// alone.
    pub fn client_of(extensions: &Extensions) -> IpAddr {
        extensions.get::<Self>().map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |connection| connection.peer_addr.ip())
    }
}

/// The credit of all sessions of one connection. It bounds the acks for all deliveries on the connection to the bytes
/// that the connection may leave unread.
#[derive(Debug)]
pub struct ConnectionCredit {
    left: Mutex<u32>,
}

impl ConnectionCredit {
    /// A pool of `most` deliveries for all sessions.
    pub fn new(most: u32) -> Arc<Self> {
        Arc::new(Self { left: Mutex::new(most) })
    }

    /// The share of a new session, empty at first.
    pub fn session(self: &Arc<Self>) -> SessionCredit {
        SessionCredit { of: self.clone(), taken: 0 }
    }

    fn left(&self) -> MutexGuard<'_, u32> {
        self.left.lock().expect("no holder panics")
    }
}

/// A session's share of its connection's credit; returned on drop.
#[derive(Debug)]
pub struct SessionCredit {
    of: Arc<ConnectionCredit>,
    taken: u32,
}

impl SessionCredit {
    /// Replaces the session's share. Returns the granted credit: the wanted one, bounded by the rest of the connection,
    /// and at least 1 if any is wanted, so that every session makes progress.
    pub fn set(&mut self, wanted: u32) -> u32 {
        let mut left = self.of.left();
        // The old share returns first, so that a session can keep all it has when nothing is left.
        *left += self.taken;
        self.taken = wanted.min(*left);
        *left -= self.taken;
        // The guaranteed 1 is not taken from the pool, so an exhausted pool does not go below 0.
        self.taken.max(wanted.min(1))
    }
}

impl Drop for SessionCredit {
    fn drop(&mut self) {
        *self.of.left() += self.taken;
    }
}

/// The prefix of the URI that names an agent in a certificate's subject alternative names.
const AGENT_URI: &str = "urn:baton:agent:";

/// The agent named by a certificate.
pub(in crate::wire) fn agent_of(certificate: &CertificateDer<'_>) -> Option<AgentId> {
    let certificate = webpki::EndEntityCert::try_from(certificate).ok()?;
    certificate.valid_uri_names().find_map(|uri| AgentId::parse(uri.strip_prefix(AGENT_URI)?).ok())
}

/// An open connection, ready for HTTP.
pub struct Connection {
    transport: Transport,
    /// The bytes read to recognise HTTP; HTTP reads them again.
    beginning: io::Cursor<Vec<u8>>,
    info: ConnectInfo,
    /// The connection's place in the quota of open connections.
    _place: Holding,
    /// Runs while the client takes no byte that waits for it. HTTP/2's keepalive cannot end a stalled connection,
    /// because it has to write a ping to do so.
    stalled: Option<Pin<Box<Sleep>>>,
    stall_timeout: Duration,
    /// `None` if the end does not linger.
    linger: Option<Linger>,
    /// The heads of an HTTP/1 connection.
    heads: Option<Heads>,
}

/// The end of an HTTP/1 connection: reads the rest of the client's request. Closing a socket with unread bytes makes
/// the operating system reset the connection, and the answer could be lost.
struct Linger {
    left: usize,
    over: Option<Pin<Box<Sleep>>>,
}

/// The client's bytes, with TLS or without.
pub(super) enum Transport {
    Encrypted(Box<TlsStream<Socket>>),
    Plain(Socket),
}

impl Transport {
    pub(super) fn pinned(&mut self) -> Pin<&mut (dyn ReadWrite + Unpin + Send)> {
        match self {
            Self::Encrypted(stream) => Pin::new(&mut **stream),
            Self::Plain(stream) => Pin::new(stream),
        }
    }
}

impl Connection {
    /// A client's connection, of which `beginning` is already read. Writing fails if the client takes no byte for its
    /// `stall_timeout`.
    pub(super) fn new(transport: Transport, opening: Opening, beginning: Vec<u8>, client: Client) -> Self {
        let (encrypted, agent) = match &transport {
            Transport::Encrypted(stream) => {
                (true, stream.get_ref().1.peer_certificates().and_then(<[_]>::first).and_then(agent_of))
            }
            Transport::Plain(_) => (false, None),
        };
        // HTTP/2 resets single streams and answers before it closes, so only HTTP/1 can lose an answer.
        let lingers = opening == Opening::Http1;
        Self {
            transport,
            beginning: io::Cursor::new(beginning),
            info: ConnectInfo { peer_addr: client.peer, encrypted, agent, credit: client.credit },
            _place: client.place,
            stalled: None,
            stall_timeout: client.stall_timeout,
            linger: lingers.then_some(Linger { left: DISCARDED_BYTES_MAX, over: None }),
            heads: lingers.then(Heads::default),
        }
    }

    /// Becomes true once a request has a body: the connection must end with that request. `None`: not an HTTP/1 connection.
    pub(super) fn ends_with_request(&self) -> Option<Arc<AtomicBool>> {
        self.heads.as_ref().map(Heads::is_over)
    }

    /// The facts about the connection that requests can read.
    pub(super) fn info(&self) -> &ConnectInfo {
        &self.info
    }

    /// Ready when the client has closed its side, has sent the bytes to discard, or the time limit is over.
    fn poll_linger(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(Linger { left, over }) = &mut self.linger else { return Poll::Ready(()) };
        let over = over.get_or_insert_with(|| Box::pin(tokio::time::sleep(LINGER)));
        let mut discarded = [0; 4096];
        // Both the timer and the read have to wake this task, so both are polled before it waits.
        while *left > 0 && over.as_mut().poll(context).is_pending() {
            let mut buffer = ReadBuf::new(&mut discarded);
            match ready!(self.transport.pinned().poll_read(context, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => *left = left.saturating_sub(buffer.filled().len()),
                // The client has closed its side or the connection is lost: no more bytes can arrive.
                Ok(()) | Err(_) => break,
            }
        }
        Poll::Ready(())
    }

    /// Returns the outcome of a write or flush, or a failure if the client takes no byte for too long.
    fn unless_stalled<T>(&mut self, outcome: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            // Any written byte is progress: a slow client is not a stalled one.
            self.stalled = None;
            return outcome;
        }
        let timeout = self.stall_timeout;
        // The timer starts with the first pending write and is not restarted by further ones.
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
        // HTTP first gets the bytes that were read to recognise it.
        let filled = buffer.filled().len();
        ready!(Pin::new(&mut self.beginning).poll_read(context, buffer))?;
        if buffer.filled().len() == filled {
            ready!(self.transport.pinned().poll_read(context, buffer))?;
        }
        let heads = self.heads.as_mut();
        if let Some(place) = heads.and_then(|heads| heads.bare_line_feed(&buffer.filled()[filled..])) {
            // HTTP refuses this head: no head may have NUL, and it ends here.
            buffer.filled_mut()[filled + place] = 0;
            buffer.set_filled(filled + place + 1);
            self.beginning = io::Cursor::new(b"\r\n\r\n".to_vec());
            self.heads = None;
        }
        Poll::Ready(Ok(()))
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
        // The write side is closed; now the rest of the request is read, so that the answer is not lost.
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

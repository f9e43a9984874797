//! Opens a connection: what happens between accepting it and the first request.
//!
//! Owns telling TLS from plaintext, the TLS handshake, and telling HTTP from everything else by the first bytes. Must not
//! know what is served.
//!
//! ```text
//! first byte ─ 0x16 ─→ TLS handshake ─┐
//!            └ any other ─────────────┴→ PRI * HTTP/2.0 … ─→ Connection
//!                                     └→ GET, POST, … ─────→ Connection
//!                                     └→ anything else ────→ closed
//! ```

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _},
    net::TcpStream,
};
use tokio_rustls::TlsAcceptor;
use tracing::{debug, info};

use super::connection::{Connection, ConnectionCredit, Transport};
use crate::wire::quota::Holding;

/// The first byte of a TLS record that begins a handshake.
pub(super) const TLS_HANDSHAKE: u8 = 0x16;
/// How the openings begin that are told apart.
const OPENINGS: [(&[u8], Opening); 10] = [
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Opening::Http2),
    (b"GET ", Opening::Http1),
    (b"HEAD ", Opening::Http1),
    (b"POST ", Opening::Http1),
    (b"PUT ", Opening::Http1),
    (b"PATCH ", Opening::Http1),
    (b"DELETE ", Opening::Http1),
    (b"OPTIONS ", Opening::Http1),
    (b"CONNECT ", Opening::Http1),
    (b"TRACE ", Opening::Http1),
];
/// Enough bytes to tell any opening from any other.
pub(crate) const OPENING_BYTES: usize = 24;

/// A client that has connected.
pub(super) struct Client {
    pub(super) peer: SocketAddr,
    pub(super) place: Holding,
    pub(super) stall_timeout: Duration,
    pub(super) credit: Arc<ConnectionCredit>,
}

/// Opens a client's connection within `timeout`. Logs the reason and returns `None` where there is no HTTP.
pub(super) async fn open(
    stream: TcpStream,
    client: Client,
    acceptor: TlsAcceptor,
    timeout: Duration,
) -> Option<Connection> {
    let peer = client.peer;
    match tokio::time::timeout(timeout, recognise(stream, acceptor)).await {
        Ok(Ok((transport, opening, beginning))) => Some(Connection::new(transport, opening, beginning, client)),
        Ok(Err(error)) => {
            error.log(peer);
            None
        }
        Err(_elapsed) => {
            debug!(%peer, seconds = timeout.as_secs(), "closed a connection that was not open in time");
            None
        }
    }
}

/// Why a client gets no connection.
#[derive(Debug)]
enum OpenError {
    /// The client left before its first bytes were whole, as a probe of the port does.
    Left(io::Error),
    Handshake(io::Error),
    Garbage,
}

impl OpenError {
    /// A failure that an operator can mend is logged as info; what anybody on the network can cause at will, as debug.
    fn log(&self, peer: SocketAddr) {
        match self {
            Self::Left(problem) => debug!(%peer, %problem, "a client left before it said what it is"),
            Self::Handshake(problem) => info!(%peer, %problem, "a TLS handshake failed"),
            Self::Garbage => debug!(%peer, "closed a connection that is neither TLS nor HTTP"),
        }
    }
}

/// The client's connection, what HTTP it begins with, and the bytes that were read to see that.
async fn recognise(stream: TcpStream, acceptor: TlsAcceptor) -> Result<(Transport, Opening, Vec<u8>), OpenError> {
    // Small frames go out at once. Where that cannot be set, the connection works all the same.
    let _ = stream.set_nodelay(true);
    let mut first = [0];
    let peeked = stream.peek(&mut first).await.map_err(OpenError::Left)?;
    let mut transport = if peeked == 1 && first[0] == TLS_HANDSHAKE {
        let stream = acceptor.accept(stream).await.map_err(OpenError::Handshake)?;
        Transport::Encrypted(Box::new(stream))
    } else {
        Transport::Plain(stream)
    };
    match read_opening(&mut transport.pinned()).await.map_err(OpenError::Left)? {
        (Opening::Garbage, _) => Err(OpenError::Garbage),
        (opening, beginning) => Ok((transport, opening, beginning)),
    }
}

/// What a client begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Opening {
    Http2,
    Http1,
    Garbage,
}

/// What the first bytes are; `None` if there are too few to say.
pub(crate) fn classify(beginning: &[u8]) -> Option<Opening> {
    if let Some((_, opening)) = OPENINGS.iter().find(|(text, _)| beginning.starts_with(text)) {
        return Some(*opening);
    }
    let undecided = OPENINGS.iter().any(|(text, _)| text.starts_with(beginning));
    (!undecided).then_some(Opening::Garbage)
}

/// Reads until the opening is clear. Also returns what was read, at most [`OPENING_BYTES`].
async fn read_opening(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<(Opening, Vec<u8>)> {
    let mut beginning = Vec::with_capacity(OPENING_BYTES);
    loop {
        if let Some(opening) = classify(&beginning) {
            return Ok((opening, beginning));
        }
        let mut rest = (&mut *stream).take((OPENING_BYTES - beginning.len()) as u64);
        if rest.read_buf(&mut beginning).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openings_are_told_apart_as_soon_as_possible() {
        for (beginning, opening) in [
            ("", None),
            ("P", None),
            ("PR", None),
            ("PRI * HTTP/", None),
            ("PRI * HTTP/2.0\r\n", None),
            ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Some(Opening::Http2)),
            ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nmore", Some(Opening::Http2)),
            ("PRI * HTTP/2.0\r\n\r\nno", Some(Opening::Garbage)),
            ("PRI * HTTP/1", Some(Opening::Garbage)),
            ("PO", None),
            ("POST", None),
            ("POST ", Some(Opening::Http1)),
            ("POSTER", Some(Opening::Garbage)),
            ("GET / HTTP/1.1", Some(Opening::Http1)),
            ("get / HTTP/1.1", Some(Opening::Garbage)),
            ("SSH-2.0", Some(Opening::Garbage)),
        ] {
            assert_eq!(classify(beginning.as_bytes()), opening, "{beginning}");
        }
        assert!(OPENINGS.iter().all(|(text, _)| text.len() <= OPENING_BYTES));
    }
}

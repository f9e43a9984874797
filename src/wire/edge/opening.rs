//! Opens a connection: the steps between accepting it and its first request.
//!
//! Owns telling TLS from plaintext, the TLS handshake, and recognising HTTP by its first bytes. Must not know the
//! services.
//!
//! ```text
//! first byte ─ 0x16 ─→ TLS handshake ─┐
//!            └ any other ─────────────┴→ PRI * HTTP/2.0 … ─→ Connection
//!                                     └→ GET, POST, … ─────→ Connection
//!                                     └→ anything else ────→ closed
//! ```

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio_rustls::TlsAcceptor;
use tracing::{debug, info};

use super::{
    arrival::Socket,
    connection::{Connection, ConnectionCredit, Transport},
};
use crate::wire::quota::Holding;

/// The first byte of a TLS record with a handshake.
pub(super) const TLS_HANDSHAKE: u8 = 0x16;
/// The known beginnings of a connection.
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
/// Enough bytes to tell all openings apart.
pub(crate) const OPENING_BYTES: usize = 24;

/// A connected client.
pub(super) struct Client {
    pub(super) peer: SocketAddr,
    pub(super) place: Holding,
    pub(super) stall_timeout: Duration,
    pub(super) credit: Arc<ConnectionCredit>,
}

/// Opens a client's connection within `timeout`. Logs the reason and returns `None` if the client does not speak HTTP.
pub(super) async fn open(
    stream: Socket,
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
            debug!(%peer, seconds = timeout.as_secs(), "closed a connection: it did not finish TLS or HTTP in time");
            None
        }
    }
}

/// The reason why opening a connection failed.
#[derive(Debug)]
enum OpenError {
    /// The client left before its first bytes were complete, as a port probe does.
    Left(io::Error),
    Handshake(io::Error),
    Garbage,
}

impl OpenError {
    /// Logs at info a failure that an operator can repair, and at debug a failure that any peer can cause at will.
    fn log(&self, peer: SocketAddr) {
        match self {
            Self::Left(problem) => debug!(%peer, %problem, "a client closed its connection before TLS or HTTP"),
            Self::Handshake(problem) => info!(%peer, %problem, "a TLS handshake failed"),
            Self::Garbage => debug!(%peer, "closed a connection that speaks neither TLS nor HTTP"),
        }
    }
}

/// Recognises the client's protocol. Returns the transport, the version of HTTP, and the bytes read so far.
async fn recognise(mut stream: Socket, acceptor: TlsAcceptor) -> Result<(Transport, Opening, Vec<u8>), OpenError> {
    let first = stream.first().await.map_err(OpenError::Left)?;
    // Of a client that has closed its side, `read_opening` reports that it left.
    let mut transport = if first == Some(TLS_HANDSHAKE) {
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

/// The protocol that a client begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Opening {
    Http2,
    Http1,
    Garbage,
}

/// Classifies the first bytes of a connection; `None` if more bytes are needed.
pub(crate) fn classify(beginning: &[u8]) -> Option<Opening> {
    if let Some((_, opening)) = OPENINGS.iter().find(|(text, _)| beginning.starts_with(text)) {
        return Some(*opening);
    }
    // A prefix of a known opening may still become one; any other text cannot.
    let undecided = OPENINGS.iter().any(|(text, _)| text.starts_with(beginning));
    (!undecided).then_some(Opening::Garbage)
}

/// Reads until the opening is recognised. Also returns the bytes read, at most [`OPENING_BYTES`].
async fn read_opening(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<(Opening, Vec<u8>)> {
    let mut beginning = Vec::with_capacity(OPENING_BYTES);
    loop {
        if let Some(opening) = classify(&beginning) {
            return Ok((opening, beginning));
        }
        let mut rest = (&mut *stream).take((OPENING_BYTES - beginning.len()) as u64);
        // `take` bounds the read: bytes behind the opening stay in the socket for HTTP.
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

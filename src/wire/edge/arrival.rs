//! A client's bytes at the edge, before its protocol is known.
//!
//! Owns giving the first byte back: it tells TLS from plaintext, and the TLS handshake has to read it too. Must not know how
//! the connection came here: over the broker's own port, or relayed by another broker.

use std::{
    fmt,
    io::{self, IoSlice},
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf},
    net::TcpStream,
};

/// A client's connection before the opening.
pub struct Arrival {
    stream: Stream,
    /// The client's address.
    pub peer: SocketAddr,
}

enum Stream {
    Tcp(TcpStream),
    Relayed(Box<dyn ReadWrite + Unpin + Send>),
}

impl fmt::Debug for Arrival {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Arrival").field("peer", &self.peer).finish_non_exhaustive()
    }
}

impl Arrival {
    /// A connection to the broker's own port.
    pub fn over_tcp(stream: TcpStream, peer: SocketAddr) -> Self {
        Self { stream: Stream::Tcp(stream), peer }
    }

    /// A connection that another broker relays. `client`: the address of the client there.
    pub fn relayed(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, client: SocketAddr) -> Self {
        Self { stream: Stream::Relayed(Box::new(stream)), peer: client }
    }

    /// The bytes of the connection.
    pub(super) fn into_socket(self) -> Socket {
        if let Stream::Tcp(stream) = &self.stream {
            // Sends small frames at once. A connection without the option works too, so a failure is ignored.
            let _ = stream.set_nodelay(true);
        }
        Socket { first: None, stream: self.stream }
    }
}

/// A stream of bytes in both directions.
pub(super) trait ReadWrite: AsyncRead + AsyncWrite {}

impl<T: AsyncRead + AsyncWrite> ReadWrite for T {}

/// The bytes of a connection, whose first byte can be seen before a read takes it.
pub(super) struct Socket {
    /// The first byte, if it was seen and not read yet.
    first: Option<u8>,
    stream: Stream,
}

impl Socket {
    /// Waits for the first byte, which stays to be read. `None`: the client has closed its side without one.
    pub(super) async fn first(&mut self) -> io::Result<Option<u8>> {
        let mut byte = [0];
        if self.first.is_none() && self.read(&mut byte).await? == 1 {
            self.first = Some(byte[0]);
        }
        Ok(self.first)
    }

    fn pinned(&mut self) -> Pin<&mut (dyn ReadWrite + Unpin + Send)> {
        match &mut self.stream {
            Stream::Tcp(stream) => Pin::new(stream),
            Stream::Relayed(stream) => Pin::new(&mut **stream),
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if buffer.remaining() > 0
            && let Some(first) = self.first.take()
        {
            buffer.put_slice(&[first]);
            return Poll::Ready(Ok(()));
        }
        self.pinned().poll_read(context, buffer)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.pinned().poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.pinned().poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Stream::Tcp(stream) => stream.is_write_vectored(),
            Stream::Relayed(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.pinned().poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.pinned().poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    #[tokio::test]
    async fn the_first_byte_is_seen_and_read() {
        let (mut client, broker) = tokio::io::duplex(64);
        let mut socket = Arrival::relayed(broker, ([10, 0, 0, 1], 1).into()).into_socket();
        client.write_all(b"GET /").await.unwrap();
        assert_eq!(socket.first().await.unwrap(), Some(b'G'));
        assert_eq!(socket.first().await.unwrap(), Some(b'G'), "seen again");
        // A read of nothing takes nothing.
        assert_eq!(socket.read(&mut []).await.unwrap(), 0);
        let mut bytes = [0; 5];
        socket.read_exact(&mut bytes).await.unwrap();
        assert_eq!(&bytes, b"GET /");
        socket.write_all(b"answer").await.unwrap();
        client.read_exact(&mut bytes).await.unwrap();
        assert_eq!(&bytes, b"answe");
    }

    #[tokio::test]
    async fn a_client_that_leaves_has_no_first_byte() {
        let (client, broker) = tokio::io::duplex(64);
        drop(client);
        let mut socket = Arrival::relayed(broker, ([10, 0, 0, 1], 1).into()).into_socket();
        assert_eq!(socket.first().await.unwrap(), None);
    }
}

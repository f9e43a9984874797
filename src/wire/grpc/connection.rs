//! A connection as HTTP/2 sees it, encrypted or not. Owns reading and writing on it, and what a request can ask of it;
//! must not know how it came about.

use std::{
    io::{self, IoSlice},
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll, ready},
};

use rustls::pki_types::CertificateDer;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

use crate::ids::AgentId;

/// What is known of the connection that a request came by; an extension of every request.
#[derive(Debug, Clone)]
pub struct ConnectInfo {
    /// Where the client is.
    pub peer_addr: SocketAddr,
    /// Whether the connection is TLS.
    pub encrypted: bool,
    /// The agent that the client's certificate names, which a CA that the operator trusts has signed.
    pub agent: Option<AgentId>,
}

/// The beginning of the URI by which a certificate names an agent, as a subject alternative name.
const AGENT_URI: &str = "urn:baton:agent:";

/// The agent that a certificate is for.
fn agent_of(certificate: &CertificateDer<'_>) -> Option<AgentId> {
    let certificate = webpki::EndEntityCert::try_from(certificate).ok()?;
    certificate.valid_uri_names().find_map(|uri| AgentId::parse(uri.strip_prefix(AGENT_URI)?).ok())
}

/// An open connection, ready for HTTP/2.
pub struct Connection {
    transport: Transport,
    info: ConnectInfo,
}

enum Transport {
    Encrypted(Box<TlsStream<TcpStream>>),
    Plain {
        /// Was read to see what it is, and is still to be read by what comes next.
        beginning: io::Cursor<Vec<u8>>,
        stream: TcpStream,
    },
}

impl Connection {
    /// After the handshake.
    pub(super) fn encrypted(stream: TlsStream<TcpStream>, peer_addr: SocketAddr) -> Self {
        let agent = stream.get_ref().1.peer_certificates().and_then(<[_]>::first).and_then(agent_of);
        Self {
            transport: Transport::Encrypted(Box::new(stream)),
            info: ConnectInfo { peer_addr, encrypted: true, agent },
        }
    }

    /// Without TLS; `beginning` was read from the stream already.
    pub(super) fn plain(stream: TcpStream, beginning: Vec<u8>, peer_addr: SocketAddr) -> Self {
        Self {
            transport: Transport::Plain { beginning: io::Cursor::new(beginning), stream },
            info: ConnectInfo { peer_addr, encrypted: false, agent: None },
        }
    }

    fn writer(&mut self) -> Pin<&mut (dyn AsyncWrite + Unpin)> {
        match &mut self.transport {
            Transport::Encrypted(stream) => Pin::new(stream),
            Transport::Plain { stream, .. } => Pin::new(stream),
        }
    }
}

impl Connected for Connection {
    type ConnectInfo = ConnectInfo;

    fn connect_info(&self) -> ConnectInfo {
        self.info.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.transport {
            Transport::Encrypted(stream) => Pin::new(stream).poll_read(context, buffer),
            Transport::Plain { beginning, stream } => {
                let filled = buffer.filled().len();
                ready!(Pin::new(beginning).poll_read(context, buffer))?;
                if buffer.filled().len() > filled {
                    return Poll::Ready(Ok(()));
                }
                Pin::new(stream).poll_read(context, buffer)
            }
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.writer().poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.writer().poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        match &self.transport {
            Transport::Encrypted(stream) => stream.is_write_vectored(),
            Transport::Plain { stream, .. } => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.writer().poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.writer().poll_shutdown(context)
    }
}

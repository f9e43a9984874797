//! The listening socket: accepts connections, and has them opened side by side.
//!
//! Owns the socket and the connections that are not open yet. Must not know any request, nor where certificates come from:
//! the TLS configuration is handed in, may be replaced at any time, and is used by the connections accepted after that.
//!
//! A connection over a quota is closed at once. A client has [`OPENING_TIMEOUT`] to open its connection.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::Sleep,
};
use tokio_rustls::TlsAcceptor;
use tokio_stream::Stream;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tracing::{error, info, warn};

use super::{
    connection::{Connection, ConnectionCredit},
    opening::{self, Client},
};
use crate::wire::bounds::Bounds;

/// How long a client has from connecting until its connection is open.
const OPENING_TIMEOUT: Duration = Duration::from_secs(10);
/// How long accepting pauses when the machine is out of something, such as file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why there is no listener.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another process listens there.
    #[error("failed to listen on {address}: the port is in use; choose another with --listen or --port 0")]
    PortInUse {
        /// Where.
        address: SocketAddr,
    },
    /// Anything else that the operating system has against it.
    #[error("failed to listen on {address}: {problem}")]
    Other {
        /// Where.
        address: SocketAddr,
        /// Why.
        problem: io::Error,
    },
}

/// A socket that listens, from which nothing is accepted yet.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    address: SocketAddr,
}

impl Listener {
    /// Listens on the address; with port 0 on any free port.
    pub async fn bind(address: SocketAddr) -> Result<Self, BindError> {
        let explain = |problem: io::Error| match problem.kind() {
            io::ErrorKind::AddrInUse => BindError::PortInUse { address },
            _ => BindError::Other { address, problem },
        };
        let socket = TcpListener::bind(address).await.map_err(explain)?;
        let address = socket.local_addr().map_err(explain)?;
        Ok(Self { socket, address })
    }

    /// Where it listens, with the port that it got.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// The connections that clients open, until `shutdown`. Then the socket is closed, and connections that are opening
    /// are dropped; the same happens when the stream is dropped.
    ///
    /// A connection whose client takes no byte for `stall_timeout` fails.
    pub fn incoming(
        self,
        tls: Arc<ArcSwap<ServerConfig>>,
        bounds: Bounds,
        stall_timeout: Duration,
        shutdown: CancellationToken,
    ) -> Incoming {
        Incoming {
            socket: Some(self.socket),
            tls,
            bounds,
            stall_timeout,
            opening: JoinSet::new(),
            opening_timeout: OPENING_TIMEOUT,
            pause: None,
            failing: false,
            shutdown: Box::pin(shutdown.cancelled_owned()),
        }
    }
}

/// The stream of connections of [`Listener::incoming`]. It handles all errors itself.
pub struct Incoming {
    /// `None` after the shutdown.
    socket: Option<TcpListener>,
    tls: Arc<ArcSwap<ServerConfig>>,
    bounds: Bounds,
    stall_timeout: Duration,
    /// One task for each connection that is not open yet; dropping the set ends them.
    opening: JoinSet<Option<Connection>>,
    opening_timeout: Duration,
    /// Nothing is accepted while it lasts.
    pause: Option<Pin<Box<Sleep>>>,
    /// Whether the latest accept failed, so that a burst of failures is logged once.
    failing: bool,
    shutdown: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl Stream for Incoming {
    type Item = Connection;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.socket.is_some() && self.shutdown.as_mut().poll(context).is_ready() {
            self.socket = None;
            self.opening = JoinSet::new();
        }
        if self.socket.is_none() {
            return Poll::Ready(None);
        }
        loop {
            // Accepting comes first: what is spawned here is polled below.
            while let Poll::Ready((stream, peer)) = self.poll_accept(context) {
                let places = self.bounds.connections.take(peer.ip(), 1).zip(self.bounds.handshakes.take(peer.ip(), 1));
                // Over a quota, the connection is closed by dropping it. The quotas count what they refuse.
                let Some((place, handshake)) = places else { continue };
                let credit = ConnectionCredit::new(self.bounds.credit_per_connection);
                let client = Client { peer, place, stall_timeout: self.stall_timeout, credit };
                let opening =
                    opening::open(stream, client, TlsAcceptor::from(self.tls.load_full()), self.opening_timeout);
                self.opening.spawn(async move {
                    let opened = opening.await;
                    drop(handshake);
                    opened
                });
            }
            match self.opening.poll_join_next(context) {
                Poll::Ready(Some(Ok(Some(connection)))) => return Poll::Ready(Some(connection)),
                Poll::Ready(Some(Ok(None))) => {}
                Poll::Ready(Some(Err(failure))) => error!(%failure, "opening a connection failed: this is a bug"),
                Poll::Ready(None) | Poll::Pending => return Poll::Pending,
            }
        }
    }
}

impl Incoming {
    /// The next client. Pending also in a pause.
    fn poll_accept(&mut self, context: &mut Context<'_>) -> Poll<(TcpStream, SocketAddr)> {
        loop {
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(context));
                self.pause = None;
            }
            let Some(socket) = &self.socket else {
                return Poll::Pending;
            };
            match ready!(socket.poll_accept(context)) {
                Ok(client) => {
                    if std::mem::take(&mut self.failing) {
                        info!("accepting connections again");
                    }
                    return Poll::Ready(client);
                }
                Err(problem) => self.after_failure(problem),
            }
        }
    }

    /// Ignores a client that went away. Any other failure lasts a while and would come back at once, so accepting pauses.
    fn after_failure(&mut self, problem: io::Error) {
        use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
        if matches!(problem.kind(), ConnectionAborted | ConnectionReset | Interrupted) {
            return;
        }
        if !std::mem::replace(&mut self.failing, true) {
            warn!(%problem, "failed to accept connections; trying on");
        }
        self.pause = Some(Box::pin(tokio::time::sleep(ACCEPT_PAUSE)));
    }
}

#[cfg(test)]
mod tests;

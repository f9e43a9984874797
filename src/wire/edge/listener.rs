//! The listening socket: accepts connections, and opens them concurrently.
//!
//! Owns the socket and the connections that are not open yet. Must not know any request, nor the source of
//! certificates: the TLS configuration is passed in, can be replaced at any time, and applies to connections accepted
//! after that.
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
    sync::mpsc,
    task::JoinSet,
    time::Sleep,
};
use tokio_rustls::TlsAcceptor;
use tokio_stream::Stream;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tracing::{error, info, warn};

use super::{
    arrival::Arrival,
    connection::{Connection, ConnectionCredit},
    opening::{self, Client},
};
use crate::wire::bounds::Bounds;

/// The time limit from a client's connect until its connection is open.
const OPENING_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause in accepting while the machine lacks a resource, such as file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The reason why binding failed.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another process listens on the address.
    #[error("failed to listen on {address}: the port is in use; choose another with --listen or --port 0")]
    PortInUse {
        /// The address as configured.
        address: SocketAddr,
    },
    /// Any other error of the operating system.
    #[error("failed to listen on {address}: {problem}")]
    Other {
        /// The address as configured.
        address: SocketAddr,
        /// The error of the operating system.
        problem: io::Error,
    },
}

/// A bound socket that accepts no connection yet. Closed with its last clone.
#[derive(Debug, Clone)]
pub struct Listener {
    socket: Arc<TcpListener>,
    address: SocketAddr,
}

impl Listener {
    /// Binds the address; port 0 selects a free port.
    pub async fn bind(address: SocketAddr) -> Result<Self, BindError> {
        let explain = |problem: io::Error| match problem.kind() {
            io::ErrorKind::AddrInUse => BindError::PortInUse { address },
            _ => BindError::Other { address, problem },
        };
        let socket = TcpListener::bind(address).await.map_err(explain)?;
        let address = socket.local_addr().map_err(explain)?;
        Ok(Self { socket: Arc::new(socket), address })
    }

    /// The bound address, with the actual port.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Accepts one connection, for a broker that does not serve it itself. Returns the client's address with it.
    ///
    /// # Errors
    ///
    /// That of the operating system. The next call may succeed.
    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        self.socket.accept().await
    }

    /// Accepts and opens connections until `shutdown`. Then the socket is closed, and connections not open yet are
    /// dropped; dropping the stream has the same effect.
    ///
    /// A connection fails if its client takes no byte for `stall_timeout`.
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
            relayed: None,
            pause: None,
            failing: false,
            shutdown: Box::pin(shutdown.cancelled_owned()),
        }
    }
}

/// The stream of [`Listener::incoming`]. It handles every error itself.
pub struct Incoming {
    /// `None` after the shutdown.
    socket: Option<Arc<TcpListener>>,
    /// Connections that came on another way than the socket.
    relayed: Option<mpsc::Receiver<Arrival>>,
    tls: Arc<ArcSwap<ServerConfig>>,
    bounds: Bounds,
    stall_timeout: Duration,
    /// One task for each connection not open yet. Dropping the set ends the tasks.
    opening: JoinSet<Option<Connection>>,
    opening_timeout: Duration,
    /// While it lasts, no connection is accepted.
    pause: Option<Pin<Box<Sleep>>>,
    /// Whether the latest accept failed; a burst of failures is logged once.
    failing: bool,
    shutdown: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl Stream for Incoming {
    type Item = Connection;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.socket.is_some() && self.shutdown.as_mut().poll(context).is_ready() {
            // Closing the socket first frees the port for the next broker while connections drain.
            (self.socket, self.relayed) = (None, None);
            self.opening = JoinSet::new();
        }
        if self.socket.is_none() {
            return Poll::Ready(None);
        }
        loop {
            // Accepts first, so that the tasks spawned here are polled below.
            while let Poll::Ready(arrival) = self.poll_arrival(context) {
                let peer = arrival.peer;
                // If one quota is full, the place in the other returns at once.
                let places = self.bounds.connections.take(peer.ip(), 1).zip(self.bounds.handshakes.take(peer.ip(), 1));
                // Over a quota, dropping the stream closes the connection. The quota counts the refusal.
                let Some((place, handshake)) = places else { continue };
                let credit = ConnectionCredit::new(self.bounds.credit_per_connection);
                let client = Client { peer, place, stall_timeout: self.stall_timeout, credit };
                let acceptor = TlsAcceptor::from(self.tls.load_full());
                let opening = opening::open(arrival.into_socket(), client, acceptor, self.opening_timeout);
                self.opening.spawn(async move {
                    let opened = opening.await;
                    // A connection counts as a handshake only until it is open; its place lasts until its end.
                    drop(handshake);
                    opened
                });
            }
            match self.opening.poll_join_next(context) {
                Poll::Ready(Some(Ok(Some(connection)))) => return Poll::Ready(Some(connection)),
                // The task has logged why the connection did not open.
                Poll::Ready(Some(Ok(None))) => {}
                Poll::Ready(Some(Err(failure))) => error!(%failure, "failed to open a connection: this is a bug"),
                // An empty set wakes no task, but `poll_arrival` above has registered the next connection or the end of
                // a pause.
                Poll::Ready(None) | Poll::Pending => return Poll::Pending,
            }
        }
    }
}

impl Incoming {
    /// Takes connections from this channel too, for example relayed ones. They count by the address of their
    /// client.
    pub fn with_relayed(self, relayed: mpsc::Receiver<Arrival>) -> Self {
        Self { relayed: Some(relayed), ..self }
    }

    /// The next connection on one of both ways.
    fn poll_arrival(&mut self, context: &mut Context<'_>) -> Poll<Arrival> {
        if let Some(relayed) = &mut self.relayed {
            match relayed.poll_recv(context) {
                Poll::Ready(Some(arrival)) => return Poll::Ready(arrival),
                Poll::Ready(None) => self.relayed = None,
                Poll::Pending => {}
            }
        }
        self.poll_accept(context)
    }

    /// Accepts the next client. Pending during a pause too.
    fn poll_accept(&mut self, context: &mut Context<'_>) -> Poll<Arrival> {
        loop {
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(context));
                self.pause = None;
            }
            let Some(socket) = &self.socket else {
                return Poll::Pending;
            };
            match ready!(socket.poll_accept(context)) {
                Ok((stream, peer)) => {
                    if std::mem::take(&mut self.failing) {
                        info!("accepting connections again");
                    }
                    return Poll::Ready(Arrival::over_tcp(stream, peer));
                }
                Err(problem) => self.after_failure(problem),
            }
        }
    }

    /// Ignores the failure of a single client. Any other failure would repeat at once, so accepting pauses.
    fn after_failure(&mut self, problem: io::Error) {
        use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
        // These report a client that left before it was accepted. The next client is not affected.
        if matches!(problem.kind(), ConnectionAborted | ConnectionReset | Interrupted) {
            return;
        }
        if !std::mem::replace(&mut self.failing, true) {
            warn!(%problem, "failed to accept a connection; trying again");
        }
        self.pause = Some(Box::pin(tokio::time::sleep(ACCEPT_PAUSE)));
    }
}

#[cfg(test)]
mod tests;

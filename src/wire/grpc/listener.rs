//! The listening socket and what comes in on it, up to where HTTP/2 begins.
//!
//! Owns accepting, telling TLS from everything else by the first bytes, the TLS handshake, and what strangers are
//! answered. Must not know any call, nor where certificates come from: the configuration is handed in, and may be
//! swapped for another at any time, from when on new connections use it.
//!
//! ```text
//! accept → first byte ─ 0x16 ─→ TLS handshake ─┐
//!                     └ any other ─────────────┴→ PRI * HTTP/2.0 … ─→ Connection (see `require_tls`)
//!                                              └→ GET, POST, … ─────→ a short HTTP/1.1 answer, closed
//!                                              └→ anything else ────→ closed
//! ```
//!
//! Whoever is over a quota of connections is closed at once; a client is not waited for longer than [`OPENING_TIMEOUT`].

use std::{
    convert::Infallible,
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
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::Sleep,
};
use tokio_rustls::TlsAcceptor;
use tokio_stream::Stream;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tracing::{debug, error, info, warn};

use super::{
    bounds::Bounds,
    connection::{Connection, ConnectionCredit, ReadWrite, Transport},
};
use crate::wire::quota::Holding;

/// How long a client has from connecting until its connection is open.
const OPENING_TIMEOUT: Duration = Duration::from_secs(10);
/// How long to let go of accepting when the machine is out of something, such as file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Most bytes of an HTTP/1 request that are read, and thrown away, after it was answered.
const DISCARDED_BYTES_MAX: u64 = 64 * 1024;

/// The first byte of a TLS record that begins a handshake.
const TLS_HANDSHAKE: u8 = 0x16;
/// How the other openings that are told apart begin.
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

const HTTP1_ANSWER: &str = "This port speaks gRPC over TLS: HTTP/2, not HTTP/1. Use a gRPC client such as baton.\n";

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

    /// The connections that clients open, until `shutdown`. Connections that are open by then go on; those that are
    /// opening are dropped, and the socket is closed, as also when the stream is dropped.
    ///
    /// An open connection that takes nothing for `stall_timeout` is closed.
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

/// The stream of connections behind [`Listener::incoming`]. It deals with all errors by itself.
pub struct Incoming {
    /// `None` after the shutdown.
    socket: Option<TcpListener>,
    tls: Arc<ArcSwap<ServerConfig>>,
    bounds: Bounds,
    stall_timeout: Duration,
    /// One task for each connection that is not open yet; dropping the set ends them.
    opening: JoinSet<Option<Connection>>,
    opening_timeout: Duration,
    /// Nothing is accepted before it is over.
    pause: Option<Pin<Box<Sleep>>>,
    /// Whether the latest accept failed, so that a burst of failures is logged once.
    failing: bool,
    shutdown: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl Stream for Incoming {
    type Item = Result<Connection, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.socket.is_some() && self.shutdown.as_mut().poll(context).is_ready() {
            self.socket = None;
            self.opening = JoinSet::new();
        }
        if self.socket.is_none() {
            return Poll::Ready(None);
        }
        loop {
            // First, so that tasks spawned here are also polled for below.
            while let Poll::Ready((stream, peer)) = self.poll_accept(context) {
                let places = self.bounds.connections.take(peer.ip(), 1).zip(self.bounds.handshakes.take(peer.ip(), 1));
                // Over a quota: closed. Both count what they refuse.
                let Some((place, handshake)) = places else { continue };
                let credit = ConnectionCredit::new(self.bounds.credit_per_connection);
                let client = Client { peer, place, stall_timeout: self.stall_timeout, credit };
                let opening = open(stream, client, TlsAcceptor::from(self.tls.load_full()), self.opening_timeout);
                self.opening.spawn(async move {
                    let opened = opening.await;
                    drop(handshake);
                    opened
                });
            }
            match self.opening.poll_join_next(context) {
                Poll::Ready(Some(Ok(Some(connection)))) => return Poll::Ready(Some(Ok(connection))),
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

    /// A client that went away concerns nobody. Anything else lasts a while, and would come back at once.
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

/// One who has connected.
struct Client {
    peer: SocketAddr,
    place: Holding,
    stall_timeout: Duration,
    credit: Arc<ConnectionCredit>,
}

/// From a client that has connected to a connection, or to nothing, once the reason is logged.
async fn open(stream: TcpStream, client: Client, acceptor: TlsAcceptor, timeout: Duration) -> Option<Connection> {
    let peer = client.peer;
    match tokio::time::timeout(timeout, recognise(stream, acceptor)).await {
        Ok(Ok((transport, beginning))) => {
            Some(Connection::new(transport, beginning, peer, client.place, client.stall_timeout, client.credit))
        }
        Ok(Err(reason)) => {
            reason.log(peer);
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
enum Stranger {
    /// Gone before it was known what it is, such as a probe of the port.
    Left(io::Error),
    Handshake(io::Error),
    Http1,
    Garbage,
}

impl Stranger {
    /// What the one who runs the broker or the client can mend is worth a line; what anybody on the network can cause
    /// at will is not.
    fn log(&self, peer: SocketAddr) {
        match self {
            Self::Left(problem) => debug!(%peer, %problem, "a client left before it said what it is"),
            Self::Handshake(problem) => info!(%peer, %problem, "a TLS handshake failed"),
            Self::Http1 => info!(%peer, "refused an HTTP/1 request; this port speaks gRPC over TLS"),
            Self::Garbage => debug!(%peer, "closed a connection that is neither TLS nor HTTP"),
        }
    }
}

/// Also gives what was read.
async fn recognise(stream: TcpStream, acceptor: TlsAcceptor) -> Result<(Transport, Vec<u8>), Stranger> {
    // Small frames go out at once. Where that cannot be set, the connection works all the same.
    let _ = stream.set_nodelay(true);
    let mut first = [0];
    let peeked = stream.peek(&mut first).await.map_err(Stranger::Left)?;
    let mut transport = if peeked == 1 && first[0] == TLS_HANDSHAKE {
        let stream = acceptor.accept(stream).await.map_err(Stranger::Handshake)?;
        Transport::Encrypted(Box::new(stream))
    } else {
        Transport::Plain(stream)
    };
    let (opening, beginning) = read_opening(&mut transport.pinned()).await.map_err(Stranger::Left)?;
    match opening {
        Opening::Http2 => Ok((transport, beginning)),
        Opening::Http1 => {
            // It is a courtesy; whether it arrives changes nothing.
            let _ = answer_http1(transport.pinned()).await;
            Err(Stranger::Http1)
        }
        Opening::Garbage => Err(Stranger::Garbage),
    }
}

/// What a client seems to speak.
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

/// Reads until it is clear what it is; also gives what was read.
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

async fn answer_http1(mut stream: Pin<&mut (dyn ReadWrite + Unpin + Send)>) -> io::Result<()> {
    let head = format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n",
        HTTP1_ANSWER.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(HTTP1_ANSWER.as_bytes()).await?;
    stream.shutdown().await?;
    // Closed with something unread, the operating system would reset the connection, and the answer might be lost.
    tokio::io::copy(&mut stream.take(DISCARDED_BYTES_MAX), &mut tokio::io::sink()).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::future::Future;

    use rcgen::{CertifiedKey, KeyPair};
    use rustls::crypto::aws_lc_rs;
    use tokio_stream::StreamExt as _;
    use tonic::{
        Code,
        transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Server},
    };
    use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
    use tonic_types::{ErrorDetails, StatusExt as _};

    use super::*;
    use crate::wire::grpc::require_tls::RequireTlsLayer;

    type Identity = CertifiedKey<KeyPair>;

    fn identity() -> Identity {
        rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap()
    }

    fn config(identity: &Identity) -> Arc<ServerConfig> {
        let key = identity.signing_key.serialize_der().try_into().unwrap();
        let mut config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![identity.cert.der().clone()], key)
            .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec()];
        Arc::new(config)
    }

    fn tls_required() -> tonic::Status {
        let details = ErrorDetails::with_error_info("TLS_REQUIRED", "baton", []);
        tonic::Status::with_error_details(Code::Unauthenticated, "this port needs TLS", details)
    }

    /// A server of gRPC health behind the listener.
    struct Fixture {
        address: SocketAddr,
        identity: Identity,
        tls: Arc<ArcSwap<ServerConfig>>,
        shutdown: CancellationToken,
        server: tokio::task::JoinHandle<()>,
    }

    async fn serve() -> Fixture {
        serve_with(|_incoming| {}).await
    }

    async fn serve_with(adjust: impl FnOnce(&mut Incoming)) -> Fixture {
        let identity = identity();
        let tls = Arc::new(ArcSwap::new(config(&identity)));
        let shutdown = CancellationToken::new();
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local_addr();
        let mut incoming = listener.incoming(tls.clone(), bounds(), PATIENCE, shutdown.clone());
        adjust(&mut incoming);
        let (_reporter, health) = tonic_health::server::health_reporter();
        let router = Server::builder().layer(RequireTlsLayer::new(false, tls_required)).add_service(health);
        let stop = shutdown.clone().cancelled_owned();
        let server = tokio::spawn(async { router.serve_with_incoming_shutdown(incoming, stop).await.unwrap() });
        Fixture { address, identity, tls, shutdown, server }
    }

    impl Fixture {
        /// A client that speaks TLS and trusts this certificate and no other.
        async fn client(&self, trusted: &Identity) -> Result<Client, tonic::transport::Error> {
            let trust = Certificate::from_pem(trusted.cert.pem());
            let tls = ClientTlsConfig::new().ca_certificate(trust).domain_name("localhost");
            let channel = self.endpoint("https").tls_config(tls).unwrap().connect().await?;
            Ok(Client(HealthClient::new(channel)))
        }

        async fn plaintext_client(&self) -> Client {
            Client(HealthClient::new(self.endpoint("http").connect().await.unwrap()))
        }

        fn endpoint(&self, scheme: &str) -> Endpoint {
            format!("{scheme}://{}", self.address).parse().unwrap()
        }

        /// What comes back, until the connection is closed, for these bytes.
        async fn exchange(&self, bytes: &[u8]) -> Vec<u8> {
            let mut stream = TcpStream::connect(self.address).await.unwrap();
            stream.write_all(bytes).await.unwrap();
            let mut answer = Vec::new();
            match stream.read_to_end(&mut answer).await {
                Ok(_) => {}
                Err(problem) => assert_eq!(problem.kind(), io::ErrorKind::ConnectionReset),
            }
            answer
        }

        async fn assert_serves(&self) {
            self.client(&self.identity).await.unwrap().check().await.unwrap();
        }
    }

    struct Client(HealthClient<Channel>);

    impl Client {
        async fn check(&mut self) -> Result<(), tonic::Status> {
            self.0.check(HealthCheckRequest::default()).await.map(drop)
        }
    }

    const PATIENCE: Duration = Duration::from_secs(20);

    fn bounds() -> Bounds {
        Bounds::new(&crate::broker::BrokerLimits::default())
    }

    async fn in_time<T>(future: impl Future<Output = T>) -> T {
        tokio::time::timeout(PATIENCE, future).await.expect("takes far too long")
    }

    #[tokio::test]
    async fn a_client_with_tls_is_served() {
        serve().await.assert_serves().await;
    }

    #[tokio::test]
    async fn a_client_that_does_not_trust_the_certificate_is_not_served() {
        let fixture = serve().await;
        assert!(fixture.client(&identity()).await.is_err());
        fixture.assert_serves().await;
    }

    #[tokio::test]
    async fn a_plaintext_client_is_told_to_use_tls_at_every_request() {
        let fixture = serve().await;
        let mut client = fixture.plaintext_client().await;
        for _ in 0..2 {
            let status = client.check().await.unwrap_err();
            assert_eq!(status.code(), Code::Unauthenticated);
            let reason = status.get_error_details().error_info().unwrap().reason.clone();
            assert_eq!(reason, "TLS_REQUIRED");
        }
    }

    #[tokio::test]
    async fn an_http1_client_is_told_what_this_port_is() {
        let fixture = serve().await;
        let request = b"POST /v1 HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n";
        let answer = String::from_utf8(in_time(fixture.exchange(request)).await).unwrap();
        assert!(answer.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{answer}");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}\r\n", body.len())), "{answer}");
        assert!(body.contains("gRPC over TLS"), "{answer}");
    }

    #[tokio::test]
    async fn garbage_is_closed_and_others_are_served() {
        let fixture = serve().await;
        for garbage in [b"\0\0\0\0".as_slice(), b"PRI * HTTP/1.0\r\n", b"SSH-2.0-x\r\n", &[0xff; 4096]] {
            assert_eq!(in_time(fixture.exchange(garbage)).await, b"");
        }
        // It begins like TLS, and so is answered with an alert: 21.
        assert_eq!(in_time(fixture.exchange(&[TLS_HANDSHAKE; 64])).await[0], 21);
        fixture.assert_serves().await;
    }

    #[tokio::test]
    async fn a_client_that_does_not_go_on_is_closed() {
        let fixture = serve_with(|incoming| incoming.opening_timeout = Duration::from_millis(50)).await;
        for beginning in [b"".as_slice(), b"PRI * HTTP/2.0\r\n\r\n", &[TLS_HANDSHAKE], &[TLS_HANDSHAKE, 3, 1]] {
            assert_eq!(in_time(fixture.exchange(beginning)).await, b"", "{beginning:?}");
        }
    }

    #[tokio::test]
    async fn a_client_that_says_nothing_after_its_handshake_is_closed() {
        let fixture = serve_with(|incoming| incoming.opening_timeout = Duration::from_millis(500)).await;
        let mut roots = rustls::RootCertStore::empty();
        roots.add(fixture.identity.cert.der().clone()).unwrap();
        let config = rustls::ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        let stream = TcpStream::connect(fixture.address).await.unwrap();
        let mut stream = connector.connect("localhost".try_into().unwrap(), stream).await.unwrap();
        let left = in_time(stream.read(&mut [0])).await;
        assert!(matches!(left, Ok(0) | Err(_)), "{left:?}");
    }

    #[tokio::test]
    async fn silent_clients_do_not_hold_up_others() {
        let fixture = serve().await;
        let mut silent = Vec::new();
        for _ in 0..32 {
            silent.push(TcpStream::connect(fixture.address).await.unwrap());
        }
        fixture.assert_serves().await;
    }

    #[tokio::test]
    async fn a_new_certificate_is_for_new_connections() {
        let fixture = serve().await;
        let mut before = fixture.client(&fixture.identity).await.unwrap();
        let renewed = identity();
        assert!(fixture.client(&renewed).await.is_err());
        fixture.tls.store(config(&renewed));
        fixture.client(&renewed).await.unwrap().check().await.unwrap();
        assert!(fixture.client(&fixture.identity).await.is_err());
        before.check().await.unwrap();
    }

    #[tokio::test]
    async fn accepting_goes_on_after_a_failure() {
        let too_many_open_files = || io::Error::from_raw_os_error(24);
        let fixture = serve_with(|incoming| {
            incoming.after_failure(too_many_open_files());
            assert!(incoming.pause.is_some() && incoming.failing);
        })
        .await;
        fixture.assert_serves().await;
    }

    #[tokio::test]
    async fn a_client_that_went_away_is_no_reason_to_pause() {
        serve_with(|incoming| {
            incoming.after_failure(io::ErrorKind::ConnectionAborted.into());
            assert!(incoming.pause.is_none() && !incoming.failing);
        })
        .await;
    }

    #[tokio::test]
    async fn a_port_in_use_is_named() {
        let fixture = serve().await;
        let problem = Listener::bind(fixture.address).await.unwrap_err();
        assert!(matches!(problem, BindError::PortInUse { address } if address == fixture.address));
        let elsewhere = Listener::bind("192.0.2.1:1".parse().unwrap()).await.unwrap_err();
        assert!(matches!(elsewhere, BindError::Other { .. }), "{elsewhere}");
    }

    #[tokio::test]
    async fn a_shutdown_drops_who_is_opening_and_frees_the_port() {
        let fixture = serve().await;
        let mut silent = TcpStream::connect(fixture.address).await.unwrap();
        fixture.assert_serves().await;
        fixture.shutdown.cancel();
        in_time(fixture.server).await.unwrap();
        let left = in_time(silent.read(&mut [0])).await;
        assert!(matches!(left, Ok(0) | Err(_)), "{left:?}");
        Listener::bind(fixture.address).await.unwrap();
    }

    #[tokio::test]
    async fn a_shutdown_ends_the_stream() {
        let shutdown = CancellationToken::new();
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let tls = Arc::new(ArcSwap::new(config(&identity())));
        let mut incoming = listener.incoming(tls, bounds(), PATIENCE, shutdown.clone());
        shutdown.cancel();
        assert!(in_time(incoming.next()).await.is_none());
        assert!(in_time(incoming.next()).await.is_none());
    }

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

//! The edge from outside: clients with and without TLS, well-behaved and not.

use std::future::Future;

use rcgen::{CertifiedKey, KeyPair};
use rustls::crypto::aws_lc_rs;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio_stream::StreamExt as _;
use tonic::{
    Code,
    service::Routes,
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint},
};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tonic_types::StatusExt as _;
use tower::Layer as _;

use super::{
    super::{Dispatch, HttpLimits, RequireTlsLayer, opening::TLS_HANDSHAKE},
    *,
};
use crate::{
    broker::{BrokerError, BrokerLimits},
    wire::{edge, http, status},
};

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

/// A server with gRPC health and the HTTP routes.
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
    let grpc = RequireTlsLayer::new(false, || status::of(&BrokerError::TlsRequired).into_http());
    let http = RequireTlsLayer::new(false, http::tls_required).layer(http::router(
        [],
        None,
        tokio::sync::watch::channel(http::Health::Ready).1,
    ));
    let service = Dispatch::new(grpc.layer(Routes::new(health)), http);
    let limits = HttpLimits::new(&BrokerLimits::default());
    let server = tokio::spawn(edge::serve(incoming, limits, service, shutdown.clone()));
    Fixture { address, identity, tls, shutdown, server }
}

impl Fixture {
    /// A client over TLS that trusts this certificate and no other.
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

    /// Sends these bytes, and returns the answer up to the close of the connection.
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

/// Ends a test that hangs.
const PATIENCE: Duration = Duration::from_secs(300);

fn bounds() -> Bounds {
    Bounds::new(&BrokerLimits::default())
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
async fn an_http1_client_without_tls_is_told_to_use_it() {
    let fixture = serve().await;
    let request = b"POST /v1 HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\nsome body";
    let answer = String::from_utf8(in_time(fixture.exchange(request)).await).unwrap();
    assert!(answer.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{answer}");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains(&format!("content-length: {}\r\n", body.len())), "{answer}");
    assert!(head.contains("connection: close\r\n"), "{answer}");
    assert!(body.contains("needs TLS"), "{answer}");
}

#[tokio::test]
async fn garbage_is_closed_and_others_are_served() {
    let fixture = serve().await;
    for garbage in [b"\0\0\0\0".as_slice(), b"PRI * HTTP/1.0\r\n", b"SSH-2.0-x\r\n", &[0xff; 4096]] {
        assert_eq!(in_time(fixture.exchange(garbage)).await, b"");
    }
    // The bytes begin like TLS, so the answer is an alert, record type 21.
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
    let fixture = serve_with(|incoming| incoming.opening_timeout = Duration::from_secs(3)).await;
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

/// Says hello over TLS, asks for a page, and returns the beginning of the answer.
async fn page(
    fixture: &Fixture,
    stream: DuplexStream,
) -> io::Result<(tokio_rustls::client::TlsStream<DuplexStream>, String)> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(fixture.identity.cert.der().clone()).unwrap();
    let config = rustls::ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let mut stream = connector.connect("localhost".try_into().unwrap(), stream).await?;
    stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await?;
    let mut answer = vec![0; 15];
    stream.read_exact(&mut answer).await?;
    Ok((stream, String::from_utf8(answer).unwrap()))
}

#[tokio::test]
async fn a_relayed_client_is_served_and_counts_by_its_own_address() {
    let (relay, relayed) = mpsc::channel(4);
    // One connection for each network.
    let limits = BrokerLimits { connections_max: 4, network_percent_max: 25, ..BrokerLimits::default() };
    let fixture = serve_with(|incoming| {
        incoming.relayed = Some(relayed);
        incoming.bounds = Bounds::new(&limits);
    })
    .await;
    let from = |client: &str| {
        let (agent, leader) = tokio::io::duplex(64 * 1024);
        relay.try_send(Arrival::relayed(leader, client.parse().unwrap())).unwrap();
        agent
    };
    let (first, answer) = in_time(page(&fixture, from("10.0.0.1:1"))).await.unwrap();
    assert_eq!(answer, "HTTP/1.1 200 OK");
    assert!(in_time(page(&fixture, from("10.0.0.1:2"))).await.is_err(), "its network has a connection");
    let (_second, answer) = in_time(page(&fixture, from("10.0.0.2:1"))).await.unwrap();
    assert_eq!(answer, "HTTP/1.1 200 OK");
    // The end of the first one makes room for another of its network.
    drop(first);
    in_time(async { while page(&fixture, from("10.0.0.1:3")).await.is_err() {} }).await;
    // A relay that ends takes nothing from the clients of the broker's own port.
    drop(relay);
    fixture.assert_serves().await;
}

#[tokio::test]
async fn a_relayed_client_that_says_nothing_or_is_cut_off_early_is_closed() {
    let (relay, relayed) = mpsc::channel(4);
    let fixture = serve_with(|incoming| {
        incoming.relayed = Some(relayed);
        incoming.opening_timeout = Duration::from_millis(50);
    })
    .await;
    for beginning in [b"".as_slice(), b"SSH-2.0-x\r\n", &[TLS_HANDSHAKE], &[TLS_HANDSHAKE, 3, 1]] {
        let (mut agent, leader) = tokio::io::duplex(64);
        relay.send(Arrival::relayed(leader, "10.0.0.1:1".parse().unwrap())).await.unwrap();
        agent.write_all(beginning).await.unwrap();
        assert_eq!(in_time(agent.read(&mut [0; 8])).await.unwrap(), 0, "{beginning:?}");
    }
    fixture.shutdown.cancel();
    in_time(relay.closed()).await;
}

//! The port of a gateway: HTTP/1.1 over TLS, and without it on loopback addresses alone.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use axum::Router;
use baton_client::Options;
use baton_faces::http::{self as faces, Gateway, Outbox, Published};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use serde_json::json;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::{JoinHandle, JoinSet},
    time,
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use super::{
    super::{
        Failure,
        connection::{ConnectionArgs, check_private},
        mcp::ToolSet,
        output::Output,
        signals,
    },
    ServeArgs,
    grants::Folder,
    pushes::Pushes,
    sender::Sender,
    webhooks,
};

/// The time limit for the TLS handshake, and for each head of a request. A connection without requests ends after it, too.
const HEAD_TIME: Duration = Duration::from_secs(10);
/// The largest head of a request, in bytes.
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// The most connections for each request at a time: some are between two requests.
const CONNECTIONS_PER_REQUEST: usize = 2;
/// The time that requests have to end when the gateway stops.
const DRAIN: Duration = Duration::from_secs(5);
/// The pause in accepting while the machine lacks a resource, for example file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What a gateway serves, and where it finds its broker.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) broker: Options,
    /// The folder of the grants.
    pub(super) data: PathBuf,
    /// The certificate with its chain, and its private key. `None`: no TLS.
    pub(super) tls: Option<(PathBuf, PathBuf)>,
    pub(super) hosts: Vec<String>,
    pub(super) tools: Vec<ToolSet>,
    pub(super) published: Vec<Published>,
    pub(super) pushes: bool,
    pub(super) allows_local_targets: bool,
    pub(super) requests_max: usize,
    pub(super) requests_per_agent_max: usize,
}

/// A gateway that serves.
#[derive(Debug)]
pub(super) struct Serving {
    pub(super) mcp: String,
    pub(super) openapi: String,
    pub(super) published: Vec<String>,
    /// Ends with the signal to stop.
    pub(super) task: JoinHandle<()>,
}

pub(super) async fn run(args: ServeArgs, connection: &ConnectionArgs, output: &Output) -> Result<(), Failure> {
    let listen = args.listen;
    if args.tls_key.is_none() && !listen.ip().is_loopback() {
        let text = format!(
            "{listen} is not a loopback address: tokens must not travel without TLS; give --tls-cert and --tls-key"
        );
        return Err(Failure::usage(text));
    }
    if let Some(key) = &args.tls_key {
        check_private(key)?;
    }
    check_names(&args.a2a_publish).map_err(|problem| Failure::usage(format!("--a2a-publish {problem}")))?;
    let prepared = Prepared::new(Settings {
        broker: connection.options_of_agent()?,
        data: args.folder.path(connection),
        tls: args.tls_cert.zip(args.tls_key),
        hosts: args.hosts,
        tools: args.tools,
        published: args.a2a_publish,
        pushes: args.a2a_push,
        allows_local_targets: args.allow_local_targets,
        requests_max: args.requests_max as usize,
        requests_per_agent_max: args.requests_per_agent_max as usize,
    })?;
    let listener = TcpListener::bind(listen).await.map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            Failure::port_in_use(format!("{listen} is in use; choose another address with --listen"))
        }
        _ => Failure::failed(format!("failed to listen on {listen}: {error}")),
    })?;
    let serving = prepared.start(listener, signals::stop_on_signal()?)?;
    match output.is_table() {
        true => {
            say_lines!("MCP      {}\nJSON     {}", serving.mcp, serving.openapi);
            for url in &serving.published {
                say!("A2A      {url}");
            }
        }
        false => {
            let Serving { mcp, openapi, published, .. } = &serving;
            output.next(&json!({"mcp": mcp, "openapi": openapi, "a2a": published}))?;
        }
    }
    // A panic has its own log line.
    drop(serving.task.await);
    Ok(())
}

/// Checks that each of what A2A clients reach has an address of its own. The problem is the end of a sentence about the names.
pub(super) fn check_names(published: &[Published]) -> Result<(), String> {
    let mut names: Vec<&str> = published.iter().map(Published::name).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(twice) => Err(format!("has {0} twice: an agent and a type of the same name have one address", twice[0])),
        None => Ok(()),
    }
}

/// A gateway whose files have been read.
pub(super) struct Prepared {
    tls: Option<TlsAcceptor>,
    folder: Folder,
    sender: Arc<Sender>,
    settings: faces::Settings,
}

impl Prepared {
    /// Reads the files of a gateway, and makes a missing folder.
    pub(super) fn new(settings: Settings) -> Result<Self, Failure> {
        let tls = settings.tls.as_ref().map(|(certificate, key)| acceptor(certificate, key)).transpose()?;
        let folder = Folder::create(&settings.data)?;
        let sender = Arc::new(Sender::new(settings.allows_local_targets)?);
        let outbox: Option<Arc<dyn Outbox>> = match settings.pushes {
            true => Some(Arc::new(Pushes::within(folder.path(), Arc::clone(&sender))?)),
            false => None,
        };
        let settings = faces::Settings {
            options: settings.broker,
            sets: settings.tools.iter().map(|set| set.of_face()).collect(),
            hosts: settings.hosts,
            requests_max: settings.requests_max,
            requests_per_agent_max: settings.requests_per_agent_max,
            version: env!("CARGO_PKG_VERSION"),
            published: settings.published,
            is_encrypted: tls.is_some(),
            outbox,
        };
        Ok(Self { tls, folder, sender, settings })
    }

    /// Serves in a task of its own until `stop`.
    pub(super) fn start(self, listener: TcpListener, stop: CancellationToken) -> Result<Serving, Failure> {
        let Self { tls, folder, sender, settings } = self;
        let address = listener.local_addr()?;
        let root = format!("{}://{address}", if tls.is_some() { "https" } else { "http" });
        let published = settings.published.iter().map(|published| format!("{root}/a2a/{}", published.name()));
        let published = published.collect();
        let connections_max = settings.requests_max * CONNECTIONS_PER_REQUEST;
        let keeping = tokio::spawn(webhooks::keep(folder.clone(), settings.options.clone(), sender, stop.clone()));
        let gateway = Gateway::new(settings, Arc::new(folder), stop.clone());
        let attending = tokio::spawn({
            let gateway = Arc::clone(&gateway);
            async move { gateway.attend().await }
        });
        let task = tokio::spawn(async move {
            serve(listener, tls, gateway.router(), connections_max, &stop).await;
            // Both end with the signal.
            drop(tokio::join!(attending, keeping));
        });
        Ok(Serving { mcp: format!("{root}/mcp"), openapi: format!("{root}/api/v1/openapi.json"), published, task })
    }
}

/// TLS with this certificate, for HTTP/1.1.
pub(super) fn acceptor(certificate: &Path, key: &Path) -> Result<TlsAcceptor, Failure> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_file_iter(certificate).and_then(Iterator::collect);
    let chain = chain.map_err(|error| Failure::file(certificate, error))?;
    let private = PrivateKeyDer::from_pem_file(key).map_err(|error| Failure::file(key, error))?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let versions = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = versions.and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, private));
    let mut config = config.map_err(|error| Failure::file(certificate, error))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Serves connections until `stop`; then requests have some seconds to end.
async fn serve(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    router: Router,
    connections_max: usize,
    stop: &CancellationToken,
) {
    let places = Arc::new(Semaphore::new(connections_max));
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener, &places) => accepted,
            // Collected while serving, so that the set holds open connections only.
            Some(_) = connections.join_next() => continue,
            () = stop.cancelled() => break,
        };
        match accepted {
            Ok((stream, peer, place)) => {
                let (tls, router, stop) = (tls.clone(), router.clone(), stop.clone());
                connections.spawn(async move {
                    open(stream, peer, tls, router, stop).await;
                    drop(place);
                });
            }
            Err(problem) => {
                tracing::warn!(%problem, "failed to accept a connection; trying again");
                time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    let drained = async { while connections.join_next().await.is_some() {} };
    // The rest is cut off with the process. It loses nothing.
    drop(time::timeout(DRAIN, drained).await);
}

/// The next connection, once a place is free.
async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> std::io::Result<(TcpStream, SocketAddr, tokio::sync::OwnedSemaphorePermit)> {
    let place = Arc::clone(places).acquire_owned().await.map_err(std::io::Error::other)?;
    let (stream, peer) = listener.accept().await?;
    // Sends small answers at once. A connection without the option works too.
    drop(stream.set_nodelay(true));
    Ok((stream, peer, place))
}

async fn open(stream: TcpStream, peer: SocketAddr, tls: Option<TlsAcceptor>, router: Router, stop: CancellationToken) {
    let ended = match tls {
        None => drive(stream, router, stop, HEAD_TIME).await,
        Some(tls) => match time::timeout(HEAD_TIME, tls.accept(stream)).await {
            Ok(Ok(stream)) => drive(stream, router, stop, HEAD_TIME).await,
            Ok(Err(problem)) => Err(problem.to_string()),
            Err(_) => Err("the TLS handshake takes too long".to_owned()),
        },
    };
    if let Err(problem) = ended {
        tracing::debug!(%peer, problem, "a connection failed");
    }
}

/// Serves the requests of one connection.
async fn drive(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    router: Router,
    stop: CancellationToken,
    head_time: Duration,
) -> Result<(), String> {
    let service = service_fn(move |request: http::Request<Incoming>| router.clone().oneshot(request));
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(head_time).max_buf_size(HEAD_BYTES_MAX);
    let mut served = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
    let ended = tokio::select! {
        ended = served.as_mut() => ended,
        () = stop.cancelled() => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    ended.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn a_head_that_does_not_come_whole_ends_its_connection() {
        for beginning in ["", "POST /mcp HTTP/1.1\r\nhost: localhost\r\n"] {
            let (mut client, server) = tokio::io::duplex(1024);
            client.write_all(beginning.as_bytes()).await.unwrap();
            // Without the limit this would not end.
            drop(drive(server, Router::new(), CancellationToken::new(), Duration::from_millis(20)).await);
        }
    }

    #[tokio::test]
    async fn a_head_that_is_too_long_is_refused() {
        let (mut client, server) = tokio::io::duplex(64 * 1024);
        let head = format!("GET / HTTP/1.1\r\nhost: localhost\r\nx: {}\r\n\r\n", "x".repeat(HEAD_BYTES_MAX));
        client.write_all(head.as_bytes()).await.unwrap();
        drop(drive(server, Router::new(), CancellationToken::new(), HEAD_TIME).await);
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
    }
}

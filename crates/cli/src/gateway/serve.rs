//! The port of a gateway: HTTP/1.1 over TLS, and without it on loopback addresses alone.

use std::{net::SocketAddr, path::Path, sync::Arc, time::Duration};

use axum::Router;
use baton_faces::http::{Gateway, Outbox, Published, Settings};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use serde_json::json;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
    time,
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use super::{
    super::{Failure, connection::ConnectionArgs, connection::check_private, output::Output, signals},
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

pub(super) async fn run(args: ServeArgs, connection: &ConnectionArgs, output: &Output) -> Result<(), Failure> {
    let tls = match args.tls_cert.as_deref().zip(args.tls_key.as_deref()) {
        Some((certificate, key)) => Some(acceptor(certificate, key)?),
        None if args.listen.ip().is_loopback() => None,
        None => {
            let text = format!(
                "{} is not a loopback address: tokens must not travel without TLS; give --tls-cert and --tls-key",
                args.listen
            );
            return Err(Failure::usage(text));
        }
    };
    let mut names: Vec<&str> = args.a2a_publish.iter().map(Published::name).collect();
    names.sort_unstable();
    if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        let text =
            format!("--a2a-publish has {0} twice: an agent and a type of the same name have one address", twice[0]);
        return Err(Failure::usage(text));
    }
    let folder = Folder::create(&args.folder.data)?;
    let sender = Arc::new(Sender::new(args.allow_local_targets)?);
    let outbox: Option<Arc<dyn Outbox>> = match args.a2a_push {
        true => Some(Arc::new(Pushes::within(folder.path(), Arc::clone(&sender))?)),
        false => None,
    };
    let requests_max = args.requests_max as usize;
    let settings = Settings {
        options: connection.options_of_agent()?,
        sets: args.tools.iter().map(|set| set.of_face()).collect(),
        hosts: args.hosts,
        requests_max,
        requests_per_agent_max: args.requests_per_agent_max as usize,
        version: env!("CARGO_PKG_VERSION"),
        published: args.a2a_publish,
        is_encrypted: tls.is_some(),
        outbox,
    };
    let published = settings.published.clone();
    let listener = TcpListener::bind(args.listen).await.map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            Failure::port_in_use(format!("{} is in use; choose another address with --listen", args.listen))
        }
        _ => Failure::failed(format!("failed to listen on {}: {error}", args.listen)),
    })?;
    let address = listener.local_addr()?;
    let stop = signals::stop_on_signal()?;
    let keeping = webhooks::keep(folder.clone(), settings.options.clone(), sender, stop.clone());
    let gateway = Gateway::new(settings, Arc::new(folder), stop.clone());
    let scheme = if tls.is_some() { "https" } else { "http" };
    let (mcp, openapi) = (format!("{scheme}://{address}/mcp"), format!("{scheme}://{address}/api/v1/openapi.json"));
    let url = |published: &Published| format!("{scheme}://{address}/a2a/{}", published.name());
    let published: Vec<String> = published.iter().map(url).collect();
    match output.is_table() {
        true => {
            say_lines!("MCP      {mcp}\nJSON     {openapi}");
            for url in &published {
                say!("A2A      {url}");
            }
        }
        false => output.next(&json!({"mcp": mcp, "openapi": openapi, "a2a": published}))?,
    }
    let attending = tokio::spawn({
        let gateway = Arc::clone(&gateway);
        async move { gateway.attend().await }
    });
    let keeping = tokio::spawn(keeping);
    serve(listener, tls, gateway.router(), requests_max * CONNECTIONS_PER_REQUEST, &stop).await;
    // Both end with the signal.
    drop(tokio::join!(attending, keeping));
    Ok(())
}

/// TLS with this certificate, for HTTP/1.1.
fn acceptor(certificate: &Path, key: &Path) -> Result<TlsAcceptor, Failure> {
    check_private(key)?;
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

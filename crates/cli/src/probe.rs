//! One look at a broker, without an identity: the certificate that it shows, and whether it takes messages.
//!
//! Asks `GET /readyz`, which has the reason. A proxy that passes gRPC only answers that by itself; then
//! `grpc.health.v1` is asked on the same connection. Sends no credential but a client certificate.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Limited};
use hyper::client::conn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::{
    ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, aws_lc_rs},
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject as _};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;
use tonic::body::Body;
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient};

use super::Failure;
use baton_client::{ClientCertificate, Options};

/// The most bytes of an answer that are read.
const ANSWER_BYTES_MAX: usize = 4096;

/// The broker to look at.
#[derive(Debug)]
pub(super) struct Target {
    /// HOST:PORT, or http://HOST:PORT without TLS.
    server: String,
    trust: Trust,
    certificate: Option<ClientCertificate>,
}

/// The certificates that count as the broker's.
#[derive(Debug)]
enum Trust {
    /// Those of the CA in this file.
    Ca(PathBuf),
    /// Those of the CAs of the system.
    System,
    /// All: nothing is sent that another server could use.
    All,
}

/// What a look has shown.
#[derive(Debug)]
pub(super) struct Seen {
    /// The end of the server certificate's validity, in seconds since 1970. `None`: no certificate was shown.
    pub(super) certificate_end: Option<i64>,
    pub(super) health: Health,
}

/// Whether a broker takes messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Health {
    Ready,
    /// It answers and takes no messages, for this reason.
    NotReady(String),
    /// Its certificate is not trusted.
    Untrusted(String),
    /// It does not answer.
    Unreachable(String),
}

impl Health {
    /// One word for scripts.
    pub(super) fn word(&self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::NotReady(reason) if reason == "stopping" => "stopping",
            Self::NotReady(_) => "unavailable",
            Self::Untrusted(_) => "untrusted",
            Self::Unreachable(_) => "unreachable",
        }
    }

    /// The failure of a command that needs a broker that is ready.
    pub(super) fn require_ready(&self, server: &str) -> Result<(), Failure> {
        match self {
            Self::Ready => Ok(()),
            Self::NotReady(reason) => {
                Err(Failure::failed(format!("the broker at {server} is not ready: {reason}")).named("NOT_READY"))
            }
            Self::Untrusted(problem) => {
                let problem = format!("the certificate of {server} is not trusted: {problem}; name its CA with --ca");
                Err(Failure::unreachable(problem).named("CERTIFICATE_UNTRUSTED"))
            }
            Self::Unreachable(problem) => {
                Err(Failure::unreachable(format!("no broker answers at {server}: {problem}")))
            }
        }
    }
}

impl fmt::Display for Health {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready => formatter.write_str("ready"),
            Self::NotReady(reason) => write!(formatter, "not ready: {reason}"),
            Self::Untrusted(problem) => write!(formatter, "untrusted certificate: {problem}"),
            Self::Unreachable(problem) => write!(formatter, "unreachable: {problem}"),
        }
    }
}

impl Target {
    /// The broker that these options connect to.
    pub(super) fn of(options: &Options) -> Self {
        let Options { server, ca, certificate, .. } = options.clone();
        Self { server, trust: ca.map_or(Trust::System, Trust::Ca), certificate }
    }

    /// The broker that runs on a data folder of this machine. `None`: none runs, as far as the folder tells.
    pub(super) fn on_folder(folder: &Path, certificate: Option<ClientCertificate>) -> Option<Self> {
        let text = std::fs::read_to_string(folder.join("address")).ok()?;
        let mut address: SocketAddr = text.trim().parse().ok()?;
        // An unspecified address is one to listen on, and no address to connect to.
        match address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
            IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
            _ => {}
        }
        Some(Self { server: address.to_string(), trust: Trust::All, certificate })
    }

    pub(super) fn server(&self) -> &str {
        &self.server
    }

    /// Looks at the broker.
    ///
    /// # Errors
    ///
    /// A file of the caller cannot be used. A broker that does not answer is no error.
    pub(super) async fn look(&self, within: Duration) -> Result<Seen, Failure> {
        let recorder = Arc::new(Recorder::new(&self.trust)?);
        let tls = match self.server.starts_with("http://") {
            true => None,
            false => Some(self.tls(recorder.clone())?),
        };
        let answer = tokio::time::timeout(within, self.ask(tls)).await;
        let health = answer.unwrap_or_else(|_| Health::Unreachable(format!("no answer within {within:?}")));
        let end = |certificate: &CertificateDer<'_>| {
            let (_, certificate) = x509_parser::parse_x509_certificate(certificate).ok()?;
            Some(certificate.validity().not_after.timestamp())
        };
        Ok(Seen { certificate_end: recorder.seen.get().and_then(end), health })
    }

    async fn ask(&self, tls: Option<ClientConfig>) -> Health {
        let authority = self.server.strip_prefix("http://").unwrap_or(&self.server);
        let stream = match TcpStream::connect(authority).await {
            Ok(stream) => stream,
            Err(error) => return Health::Unreachable(error.to_string()),
        };
        let Some(tls) = tls else { return over_http1(stream, authority).await };
        let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host).trim_matches(['[', ']']);
        let name = match ServerName::try_from(host.to_owned()) {
            Ok(name) => name,
            Err(error) => return Health::Untrusted(error.to_string()),
        };
        match TlsConnector::from(Arc::new(tls)).connect(name, stream).await {
            Ok(stream) if stream.get_ref().1.alpn_protocol() == Some(b"h2") => over_http2(stream, authority).await,
            Ok(stream) => over_http1(stream, authority).await,
            Err(error) => {
                let tls = error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
                match tls {
                    Some(rustls::Error::InvalidCertificate(problem)) => Health::Untrusted(problem.to_string()),
                    _ => Health::Unreachable(error.to_string()),
                }
            }
        }
    }

    fn tls(&self, recorder: Arc<Recorder>) -> Result<ClientConfig, Failure> {
        let builder =
            ClientConfig::builder_with_provider(recorder.provider.clone()).with_safe_default_protocol_versions();
        let builder = builder.map_err(|error| Failure::failed(error.to_string()))?;
        let builder = builder.dangerous().with_custom_certificate_verifier(recorder);
        let mut config = match &self.certificate {
            None => builder.with_no_client_auth(),
            Some(files) => {
                let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|error| Failure::file(&files.key, error))?;
                let chain = certificates(&files.certificate)?;
                builder.with_client_auth_cert(chain, key).map_err(|error| Failure::file(&files.certificate, error))?
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Failure> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    read.map_err(|error| Failure::file(path, error))
}

async fn over_http1(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, authority: &str) -> Health {
    let (mut requests, connection) = match conn::http1::handshake::<_, Body>(TokioIo::new(stream)).await {
        Ok(parts) => parts,
        Err(error) => return unreachable(&error),
    };
    tokio::spawn(connection);
    let request = http::Request::get("/readyz").header(http::header::HOST, authority).body(Body::empty());
    let answer = requests.send_request(request.expect("the parts are valid"));
    match read(answer.await).await {
        Ok((status, text)) => judged(status, &text).unwrap_or_else(|| foreign(status)),
        Err(health) => health,
    }
}

async fn over_http2(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, authority: &str) -> Health {
    let handshake = conn::http2::handshake::<_, _, Body>(TokioExecutor::new(), TokioIo::new(stream));
    let (mut requests, connection) = match handshake.await {
        Ok(parts) => parts,
        Err(error) => return unreachable(&error),
    };
    tokio::spawn(connection);
    let request = http::Request::get(format!("https://{authority}/readyz")).body(Body::empty());
    let answer = requests.send_request(request.expect("the parts are valid"));
    let (status, text) = match read(answer.await).await {
        Ok(answer) => answer,
        Err(health) => return health,
    };
    if let Some(health) = judged(status, &text) {
        return health;
    }
    let Ok(origin) = format!("https://{authority}").parse() else { return foreign(status) };
    let service = tower::service_fn(move |request: http::Request<Body>| requests.clone().send_request(request));
    match HealthClient::with_origin(service, origin).check(HealthCheckRequest::default()).await {
        Ok(answer) if answer.get_ref().status() == ServingStatus::Serving => Health::Ready,
        Ok(_) => Health::NotReady("it serves no calls at present".to_owned()),
        Err(_) => foreign(status),
    }
}

type Received = Result<http::Response<hyper::body::Incoming>, hyper::Error>;

async fn read(answer: Received) -> Result<(u16, String), Health> {
    let (head, body) = answer.map_err(|error| unreachable(&error))?.into_parts();
    let body: Bytes = match Limited::new(body, ANSWER_BYTES_MAX).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) => return Err(Health::Unreachable(error.to_string())),
    };
    Ok((head.status.as_u16(), String::from_utf8_lossy(&body).trim().to_owned()))
}

/// What `/readyz` of a broker says. `None`: this answer is none of a broker's.
fn judged(status: u16, text: &str) -> Option<Health> {
    match (status, text) {
        (200, "ready") => Some(Health::Ready),
        (503, reason) if !reason.is_empty() => Some(Health::NotReady(reason.to_owned())),
        _ => None,
    }
}

fn foreign(status: u16) -> Health {
    Health::Unreachable(format!("another program answers, with HTTP status {status}"))
}

fn unreachable(error: &hyper::Error) -> Health {
    let mut innermost: &dyn std::error::Error = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    Health::Unreachable(innermost.to_string())
}

/// Verifies the server's certificate, and keeps it, also one that is refused.
#[derive(Debug)]
struct Recorder {
    provider: Arc<CryptoProvider>,
    /// `None`: every certificate passes.
    verifier: Option<Arc<WebPkiServerVerifier>>,
    seen: OnceLock<CertificateDer<'static>>,
}

impl Recorder {
    fn new(trust: &Trust) -> Result<Self, Failure> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let mut roots = RootCertStore::empty();
        match trust {
            Trust::Ca(path) => {
                for certificate in certificates(path)? {
                    roots.add(certificate).map_err(|error| Failure::file(path, error))?;
                }
            }
            Trust::System => drop(roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs)),
            Trust::All => return Ok(Self { provider, verifier: None, seen: OnceLock::new() }),
        }
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build();
        let verifier = verifier.map_err(|_| {
            Failure::new(
                super::exit::CONFIGURATION,
                "this system has no CA certificates; name the broker's CA with --ca".to_owned(),
            )
        })?;
        Ok(Self { provider, verifier: Some(verifier), seen: OnceLock::new() })
    }
}

impl ServerCertVerifier for Recorder {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.seen.get_or_init(|| certificate.clone().into_owned());
        match &self.verifier {
            Some(verifier) => verifier.verify_server_cert(certificate, chain, name, ocsp, now),
            None => Ok(ServerCertVerified::assertion()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_of_a_broker_or_of_another_program() {
        assert_eq!(judged(200, "ready"), Some(Health::Ready));
        let word = |status, text| judged(status, text).map(|health| health.word());
        assert_eq!(word(503, "stopping"), Some("stopping"));
        assert_eq!(word(503, "the store cannot be written"), Some("unavailable"));
        for (status, text) in [(200, "<html>"), (200, ""), (404, "not found"), (503, "")] {
            assert_eq!(word(status, text), None, "{status} {text}");
        }
    }

    #[test]
    fn an_address_to_listen_on_becomes_one_to_connect_to() {
        let folder = tempfile::tempdir().unwrap();
        let server = |text: &str| {
            std::fs::write(folder.path().join("address"), text).unwrap();
            Target::on_folder(folder.path(), None).map(|target| target.server)
        };
        assert_eq!(server("0.0.0.0:7\n").as_deref(), Some("127.0.0.1:7"));
        assert_eq!(server("[::]:7\n").as_deref(), Some("[::1]:7"));
        assert_eq!(server("10.1.2.3:7\n").as_deref(), Some("10.1.2.3:7"));
        assert_eq!(server("nothing"), None);
    }
}

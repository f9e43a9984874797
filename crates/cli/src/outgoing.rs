//! Connections to servers by HTTP: the gateway's own requests, and those to agents that speak A2A.
//!
//! Owns how an address is read, the trust in CAs, and the connection. Which addresses are allowed is its callers' rule.

use std::{io, net::SocketAddr, sync::Arc};

use http::Uri;
use rustls_pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;

use super::Failure;

/// The longest address of a target, in bytes.
const URL_MAX: usize = 2048;

/// An address that requests go to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) uri: Uri,
    /// Without brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) is_encrypted: bool,
}

impl Target {
    /// Reads an address: https, or http where `allows_local`. Its host is resolved when a request goes to it.
    ///
    /// # Errors
    ///
    /// The problem in words.
    pub(crate) fn parse(text: &str, allows_local: bool) -> Result<Self, String> {
        if text.len() > URL_MAX {
            return Err(format!("must have at most {URL_MAX} bytes"));
        }
        let uri: Uri = text.parse().map_err(|problem| format!("is no address: {problem}"))?;
        let is_encrypted = match uri.scheme_str() {
            Some("https") => true,
            Some("http") if allows_local => false,
            Some("http") => {
                return Err("must begin with https://; http:// is for trials on this machine, with \
                            --allow-local-targets"
                    .to_owned());
            }
            _ => return Err("must begin with https://".to_owned()),
        };
        let authority = uri.authority().ok_or("must name a host")?;
        if authority.as_str().contains('@') || authority.host().is_empty() {
            return Err("must name a host, without a user".to_owned());
        }
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        let port = authority.port_u16().unwrap_or(if is_encrypted { 443 } else { 80 });
        if !is_encrypted && !is_loopback_name(&host) {
            return Err("http:// is for this machine alone: localhost, 127.0.0.1 or [::1]".to_owned());
        }
        Ok(Self { uri, host, port, is_encrypted })
    }

    /// Whether the address names this machine.
    pub(crate) fn is_local(&self) -> bool {
        is_loopback_name(&self.host)
    }

    /// The host, for a log: the rest of an address may have secrets.
    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    /// Whether both have one scheme, host and port.
    pub(crate) fn has_origin_of(&self, other: &Self) -> bool {
        let origin = |target: &Self| (target.is_encrypted, target.host.to_ascii_lowercase(), target.port);
        origin(self) == origin(other)
    }
}

fn is_loopback_name(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

/// The side of a client in TLS, which trusts the CAs of this system.
pub(crate) fn tls() -> Result<Arc<rustls::ClientConfig>, Failure> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let versions = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let versions = versions.map_err(|problem| Failure::failed(problem.to_string()))?;
    let mut config = versions.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// An open connection.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// Why no connection is open.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotOpen {
    #[error("{0}")]
    Unreachable(String),
    #[error("TLS: {0}")]
    Tls(String),
}

/// Opens a connection to the first of these addresses that takes one, with TLS where the target asks for it.
pub(crate) async fn open(
    target: &Target,
    addresses: &[SocketAddr],
    tls: &Arc<rustls::ClientConfig>,
) -> Result<Box<dyn Stream>, NotOpen> {
    let stream = connect(addresses).await.map_err(|problem| NotOpen::Unreachable(problem.to_string()))?;
    // Sends a small request at once. A connection without the option works too.
    drop(stream.set_nodelay(true));
    if !target.is_encrypted {
        return Ok(Box::new(stream));
    }
    let name = ServerName::try_from(target.host.clone()).map_err(|problem| NotOpen::Tls(problem.to_string()))?;
    let stream = TlsConnector::from(Arc::clone(tls)).connect(name, stream).await;
    Ok(Box::new(stream.map_err(|problem| NotOpen::Tls(problem.to_string()))?))
}

async fn connect(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in addresses {
        match TcpStream::connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(problem) => last = problem,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_https_and_names_a_host() {
        let good = Target::parse("https://hooks.example:8443/a?b=c", false).unwrap();
        assert_eq!((good.host(), good.port, good.is_encrypted, good.is_local()), ("hooks.example", 8443, true, false));
        assert_eq!(Target::parse("https://hooks.example", false).unwrap().port, 443);
        assert_eq!(Target::parse("https://[2606:4700::1]/", false).unwrap().host(), "2606:4700::1");
        for (wrong, words) in [
            ("http://hooks.example/", "https://"),
            ("ftp://hooks.example/", "https://"),
            ("hooks.example", "https://"),
            ("/path", "https://"),
            ("https://user:word@hooks.example/", "without a user"),
            ("https://", "address"),
            ("https://a b/", "address"),
        ] {
            let problem = Target::parse(wrong, false).unwrap_err();
            assert!(problem.contains(words), "{wrong}: {problem}");
        }
        assert!(Target::parse(&format!("https://a.example/{}", "x".repeat(URL_MAX)), false).is_err());
    }

    #[test]
    fn plain_http_goes_to_this_machine_alone() {
        for url in ["http://localhost:9/", "http://127.0.0.1/", "http://[::1]:9/", "http://[::ffff:127.0.0.1]/"] {
            assert!(Target::parse(url, false).is_err() && Target::parse(url, true).unwrap().is_local(), "{url}");
        }
        assert!(Target::parse("http://hooks.example/", true).unwrap_err().contains("this machine"));
    }

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        let target = |text: &str| Target::parse(text, true).unwrap();
        assert!(target("https://a.example/x").has_origin_of(&target("https://A.example:443/y?z=1")));
        for other in ["https://a.example:444/x", "https://b.example/x", "http://localhost/x"] {
            assert!(!target("https://a.example/x").has_origin_of(&target(other)), "{other}");
        }
    }
}

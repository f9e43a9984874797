//! The address of a database, and whether its connection has TLS: `sslmode` and `sslrootcert` in the address.
//!
//! | `sslmode` | the connection |
//! |---|---|
//! | `verify-full` | has TLS; the certificate is of a trusted CA and has the host's name |
//! | `require` | has TLS; any certificate is accepted, so a person between can pose as the server |
//! | `disable` | has none |
//! | not there | has none, and the server must be on this machine |

use std::{fmt, fs::File, io::BufReader, net::IpAddr, path::PathBuf, str::FromStr as _, sync::Arc};

use rustls::{
    ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, WebPkiSupportedAlgorithms, aws_lc_rs, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject as _},
};
use tokio_postgres::{
    Config,
    config::{Host, SslMode},
};
use tokio_postgres_rustls_improved::MakeRustlsConnect;

/// How a connection is protected.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Mode {
    Off,
    Unverified,
    /// The CA's certificate, PEM; `None`: the CAs of the system.
    Verified(Option<PathBuf>),
}

/// A parsed address.
#[derive(Clone)]
pub(super) struct Address {
    pub(super) config: Config,
    mode: Mode,
}

impl fmt::Debug for Address {
    /// Omits the configuration, which has a password.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Address").field("mode", &self.mode).finish_non_exhaustive()
    }
}

impl Address {
    /// Parses a URL, or a list of settings as of `psql`. Reads no file.
    ///
    /// # Errors
    ///
    /// The problem, and what to do. It does not repeat the address.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let (rest, options) = split(text);
        let value = |name: &str| options.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
        let root = value("sslrootcert").map(PathBuf::from);
        let config = Config::from_str(&rest).map_err(|error| words(&error))?;
        let mode = match (value("sslmode").as_deref(), root) {
            (Some("verify-full"), root) => Mode::Verified(root),
            (_, Some(_)) => return Err("has sslrootcert, which needs sslmode=verify-full".into()),
            (Some("require"), None) => Mode::Unverified,
            (Some("disable"), None) => Mode::Off,
            (Some(other), None) => {
                return Err(format!("has sslmode={other}; it must be verify-full, require or disable"));
            }
            (None, None) if is_local(&config) => Mode::Off,
            (None, None) => {
                return Err("has no sslmode, and the server is on another machine: add ?sslmode=verify-full (or require, which \
                            trusts any certificate, or disable)"
                    .into());
            }
        };
        let mut config = config;
        config.ssl_mode(if mode == Mode::Off { SslMode::Disable } else { SslMode::Require });
        Ok(Self { config, mode })
    }

    /// What makes the TLS of connections; `None`: they have none. Reads the CA's certificate.
    ///
    /// # Errors
    ///
    /// The certificate cannot be read, or the system has no CAs.
    pub(super) fn tls(&self) -> Result<Option<MakeRustlsConnect>, String> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let verifier: Arc<dyn ServerCertVerifier> = match &self.mode {
            Mode::Off => return Ok(None),
            Mode::Unverified => Arc::new(AnyCertificate(provider.signature_verification_algorithms)),
            Mode::Verified(root) => {
                let verifier =
                    WebPkiServerVerifier::builder_with_provider(roots(root.as_ref())?.into(), provider.clone());
                verifier.build().map_err(|error| format!("the CA of the database cannot be used: {error}"))?
            }
        };
        Ok(Some(MakeRustlsConnect::new(client(provider, verifier)?)))
    }
}

fn client(provider: Arc<CryptoProvider>, verifier: Arc<dyn ServerCertVerifier>) -> Result<ClientConfig, String> {
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| error.to_string())?;
    let mut config = builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
    // Servers from version 17 on ask for it, and older ones ignore it.
    config.alpn_protocols = vec![b"postgresql".to_vec()];
    Ok(config)
}

fn roots(file: Option<&PathBuf>) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    let Some(path) = file else {
        let found = rustls_native_certs::load_native_certs();
        let (added, _) = roots.add_parsable_certificates(found.certs);
        return match added {
            0 => Err("the system has no CA certificates: name one with sslrootcert=FILE".into()),
            _ => Ok(roots),
        };
    };
    let unusable = |problem: String| format!("failed to use sslrootcert {}: {problem}", path.display());
    let file = File::open(path).map_err(|error| unusable(error.to_string()))?;
    for certificate in CertificateDer::pem_reader_iter(BufReader::new(file)) {
        let certificate = certificate.map_err(|error| unusable(error.to_string()))?;
        roots.add(certificate).map_err(|error| unusable(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(unusable("it has no certificate".into()));
    }
    Ok(roots)
}

/// The address without the options that the library does not know, and these options.
fn split(text: &str) -> (String, Vec<(String, String)>) {
    let is_own = |key: &str| matches!(key, "sslmode" | "sslrootcert");
    if !text.contains("://") {
        let (own, rest): (Vec<&str>, Vec<&str>) =
            text.split_whitespace().partition(|pair| pair.split_once('=').is_some_and(|(key, _)| is_own(key)));
        let own = own.into_iter().filter_map(|pair| pair.split_once('='));
        return (rest.join(" "), own.map(|(key, value)| (key.into(), value.into())).collect());
    }
    let (place, query) = text.split_once('?').unwrap_or((text, ""));
    let is_own_pair = |pair: &&str| is_own(pair.split('=').next().unwrap_or_default());
    let (own, rest): (Vec<&str>, Vec<&str>) =
        query.split('&').filter(|pair| !pair.is_empty()).partition(|pair| is_own_pair(pair));
    let own = form_urlencoded::parse(own.join("&").as_bytes()).into_owned().collect();
    match rest.is_empty() {
        true => (place.into(), own),
        false => (format!("{place}?{}", rest.join("&")), own),
    }
}

/// Whether all hosts are this machine.
fn is_local(config: &Config) -> bool {
    config.get_hostaddrs().iter().all(IpAddr::is_loopback)
        && config.get_hosts().iter().all(|host| match host {
            Host::Tcp(name) => name == "localhost" || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback()),
            #[cfg(unix)]
            Host::Unix(_) => true,
        })
}

fn words(error: &tokio_postgres::Error) -> String {
    let source = std::error::Error::source(error).map(|source| format!(": {source}"));
    format!("cannot be used: {error}{}", source.unwrap_or_default())
}

/// Accepts any certificate of which the server has the key.
#[derive(Debug)]
struct AnyCertificate(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _certificate: &CertificateDer<'_>,
        _chain: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(address: &str) -> Result<Mode, String> {
        Address::parse(address).map(|address| address.mode)
    }

    #[test]
    fn the_mode_is_in_the_address() {
        let verified = |root: Option<&str>| Ok(Mode::Verified(root.map(PathBuf::from)));
        for (address, expected) in [
            ("postgres://u:p@db/baton?sslmode=verify-full", verified(None)),
            ("postgres://u@db/baton?sslmode=verify-full&sslrootcert=%2Fetc%2Fca.pem", verified(Some("/etc/ca.pem"))),
            ("postgres://db/baton?application_name=b&sslmode=require", Ok(Mode::Unverified)),
            ("postgresql://db/baton?sslmode=disable", Ok(Mode::Off)),
            ("postgres://127.0.0.1:5432/baton", Ok(Mode::Off)),
            ("postgres://localhost/baton?connect_timeout=3", Ok(Mode::Off)),
            ("postgres://%2Fvar%2Frun%2Fpostgresql/baton", Ok(Mode::Off)),
            ("host=127.0.0.1 port=5 user=postgres dbname=postgres", Ok(Mode::Off)),
            ("host=db user=u sslmode=require", Ok(Mode::Unverified)),
        ] {
            assert_eq!(mode(address), expected, "{address}");
        }
    }

    #[test]
    fn what_is_unclear_is_refused_with_what_to_do() {
        for (address, part) in [
            ("postgres://db/baton", "add ?sslmode=verify-full"),
            ("postgres://localhost,db/baton", "add ?sslmode=verify-full"),
            ("postgres://db/baton?sslmode=prefer", "must be verify-full, require or disable"),
            ("postgres://db/baton?sslmode=verify-ca", "must be verify-full, require or disable"),
            ("postgres://db/baton?sslmode=require&sslrootcert=ca.pem", "needs sslmode=verify-full"),
            ("postgres://db/baton?sslmode=disable&colour=red", "cannot be used"),
        ] {
            let problem = mode(address).unwrap_err();
            assert!(problem.contains(part), "{address} gives {problem:?}");
        }
    }

    #[test]
    fn an_unusable_root_certificate_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ca.pem");
        let address = format!("host=db sslmode=verify-full sslrootcert={}", path.display());
        let problem = || Address::parse(&address).unwrap().tls().map(drop).unwrap_err();
        assert!(problem().contains("ca.pem"), "{}", problem());
        std::fs::write(&path, "no certificate").unwrap();
        assert!(problem().contains("it has no certificate"), "{}", problem());
    }
}

//! The TLS of peers: version 1.3, with one certificate for all brokers of a cluster, on both sides.
//!
//! Owns its files, making them, and both configurations. The holder of the key is a broker of the cluster or its operator; the
//! port refuses all others.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use baton_store::disk;
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    client::WebPkiServerVerifier,
    crypto::{CryptoProvider, aws_lc_rs},
    server::WebPkiClientVerifier,
    version::TLS13,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// The certificate in the folder of the cluster's keys.
pub const CERTIFICATE: &str = "peer.pem";
/// Its private key.
pub const KEY: &str = "peer.key";
/// The protocol of a relayed connection.
pub const RELAY: &[u8] = b"baton-relay";
/// The protocol of a call.
pub const CALL: &[u8] = b"h2";
/// The name in the certificate. The address of a broker is not in it, because all brokers share the certificate.
const NAME: &str = "baton-peer";

/// The reason why the certificate of peers cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PeerTlsError {
    /// A file cannot be read or written.
    #[error("failed to use {}: {problem}; `baton cluster keys --out DIR` makes the keys of a cluster", path.display())]
    File {
        /// The path of the file.
        path: PathBuf,
        /// The error.
        problem: io::Error,
    },
    /// A file has no certificate or key.
    #[error("failed to use {}: {problem}", path.display())]
    NotPem {
        /// The path of the file.
        path: PathBuf,
        /// The error of the parser.
        problem: rustls_pki_types::pem::Error,
    },
    /// Certificate and key cannot be used together.
    #[error("failed to use {CERTIFICATE} and {KEY} in {}: {problem}", folder.display())]
    Unusable {
        /// The folder of the keys.
        folder: PathBuf,
        /// The error.
        problem: String,
    },
    /// The certificate cannot be made.
    #[error("failed to make a certificate: {0}")]
    Generation(#[from] rcgen::Error),
}

/// Makes the certificate and its key in a folder that has neither. It has no end: the folder of the keys is exchanged as a
/// whole.
///
/// # Errors
///
/// A file exists, or cannot be written.
pub fn make(folder: &Path) -> Result<(), PeerTlsError> {
    let made = rcgen::generate_simple_self_signed([NAME.to_owned()])?;
    for (name, text) in [(KEY, made.signing_key.serialize_pem()), (CERTIFICATE, made.cert.pem())] {
        let path = folder.join(name);
        let written = match path.try_exists() {
            Ok(true) => Err(io::ErrorKind::AlreadyExists.into()),
            Ok(false) => disk::write_whole(&path, text.as_bytes()),
            Err(error) => Err(error),
        };
        written.map_err(|problem| PeerTlsError::File { path, problem })?;
    }
    Ok(())
}

/// Both sides of the TLS of peers.
#[derive(Clone)]
pub struct PeerTls {
    server: Arc<ServerConfig>,
    relay: Arc<ClientConfig>,
    call: Arc<ClientConfig>,
}

impl fmt::Debug for PeerTls {
    /// Omits the key.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("PeerTls")
    }
}

impl PeerTls {
    /// Reads certificate and key from the folder of the cluster's keys.
    ///
    /// # Errors
    ///
    /// A file is missing or unusable.
    pub fn load(folder: &Path) -> Result<Self, PeerTlsError> {
        let (certificate_path, key_path) = (folder.join(CERTIFICATE), folder.join(KEY));
        let explain = |path: &Path, problem| match problem {
            rustls_pki_types::pem::Error::Io(problem) => PeerTlsError::File { path: path.into(), problem },
            problem => PeerTlsError::NotPem { path: path.into(), problem },
        };
        let certificate = CertificateDer::from_pem_file(&certificate_path);
        let certificate = certificate.map_err(|problem| explain(&certificate_path, problem))?;
        let key = PrivateKeyDer::from_pem_file(&key_path).map_err(|problem| explain(&key_path, problem))?;
        Self::of(certificate, key).map_err(|problem| PeerTlsError::Unusable { folder: folder.into(), problem })
    }

    fn of(certificate: CertificateDer<'static>, key: PrivateKeyDer<'static>) -> Result<Self, String> {
        let text = |error: rustls::Error| error.to_string();
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone()).map_err(text)?;
        let roots = Arc::new(roots);
        let peers = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider()).build();
        let peers = peers.map_err(|error| error.to_string())?;
        let chain = vec![certificate];
        let builder =
            ServerConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13]).map_err(text)?;
        let mut server =
            builder.with_client_cert_verifier(peers).with_single_cert(chain.clone(), key.clone_key()).map_err(text)?;
        server.alpn_protocols = vec![RELAY.to_vec(), CALL.to_vec()];
        let broker = WebPkiServerVerifier::builder_with_provider(roots, provider()).build();
        let broker = broker.map_err(|error| error.to_string())?;
        let builder =
            ClientConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13]).map_err(text)?;
        let mut relay = builder.with_webpki_verifier(broker).with_client_auth_cert(chain, key).map_err(text)?;
        let mut call = relay.clone();
        relay.alpn_protocols = vec![RELAY.to_vec()];
        call.alpn_protocols = vec![CALL.to_vec()];
        Ok(Self { server: server.into(), relay: relay.into(), call: call.into() })
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.server.clone())
    }

    pub(crate) fn for_relays(&self) -> TlsConnector {
        TlsConnector::from(self.relay.clone())
    }

    pub(crate) fn for_calls(&self) -> TlsConnector {
        TlsConnector::from(self.call.clone())
    }

    pub(crate) fn name() -> ServerName<'static> {
        ServerName::try_from(NAME).expect("it is a name")
    }
}

/// The cryptography of TLS, named explicitly, so that no default of the process applies.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;

    #[test]
    fn what_is_made_can_be_loaded_and_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        disk::keep_to_owner();
        make(folder.path()).unwrap();
        PeerTls::load(folder.path()).unwrap();
        let mode = fs::metadata(folder.path().join(KEY)).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "other users cannot read the key");
        let key = fs::read(folder.path().join(KEY)).unwrap();
        let error = make(folder.path()).unwrap_err();
        assert!(matches!(error, PeerTlsError::File { problem, .. } if problem.kind() == io::ErrorKind::AlreadyExists));
        assert_eq!(fs::read(folder.path().join(KEY)).unwrap(), key);
    }

    #[test]
    fn a_file_that_is_missing_or_foreign_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let missing = PeerTls::load(folder.path()).unwrap_err();
        assert!(missing.to_string().contains("peer.pem"), "{missing}");
        assert!(missing.to_string().contains("baton cluster keys"), "{missing}");
        make(folder.path()).unwrap();
        let other = tempfile::tempdir().unwrap();
        make(other.path()).unwrap();
        fs::copy(other.path().join(KEY), folder.path().join(KEY)).unwrap();
        assert!(matches!(PeerTls::load(folder.path()), Err(PeerTlsError::Unusable { .. })));
        fs::write(folder.path().join(KEY), "no key").unwrap();
        assert!(matches!(PeerTls::load(folder.path()), Err(PeerTlsError::NotPem { path, .. }) if path.ends_with(KEY)));
    }
}

//! The TLS side of the listener: PEM files in, a `rustls` configuration out. Owns what is offered (versions, ALPN, the
//! cryptography behind them) and what is asked of clients; must not know where the files came from or what is served.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use rustls::{
    RootCertStore, ServerConfig, SupportedProtocolVersion,
    crypto::{CryptoProvider, aws_lc_rs},
    pki_types::{
        CertificateDer, CertificateRevocationListDer, PrivateKeyDer,
        pem::{self, PemObject as _},
    },
    server::{VerifierBuilderError, WebPkiClientVerifier, danger::ClientCertVerifier},
};

use crate::config::{ClientCertificates, MinimumTls};

/// A certificate and its private key, each in a PEM file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate first, then those that lead to a CA.
    pub certificate: PathBuf,
    /// The private key of the first certificate, not encrypted.
    pub key: PathBuf,
}

/// Everything that TLS is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsSetup {
    /// The server's own.
    pub files: TlsFiles,
    /// What is asked of clients, if anything.
    pub clients: Option<ClientCertificates>,
    /// The oldest version that is spoken.
    pub minimum: MinimumTls,
}

/// Why there is no TLS with these files.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("failed to read {}: {problem}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        problem: io::Error,
    },
    /// A file is not PEM.
    #[error("{} is not a PEM file: {problem}", path.display())]
    NotPem {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        problem: pem::Error,
    },
    /// A PEM file without a certificate.
    #[error("there is no certificate in {}; it must have a BEGIN CERTIFICATE line", path.display())]
    NoCertificate {
        /// Which.
        path: PathBuf,
    },
    /// A PEM file without a private key.
    #[error("there is no private key in {}; it must have a BEGIN PRIVATE KEY line and not be encrypted", path.display())]
    NoKey {
        /// Which.
        path: PathBuf,
    },
    /// The key is another one's.
    #[error("the key in {} is not that of the certificate in {}", key.display(), certificate.display())]
    KeyMismatch {
        /// Where the certificate is.
        certificate: PathBuf,
        /// Where the key is.
        key: PathBuf,
    },
    /// The CA of clients.
    #[error("the client CA in {} cannot be used: {problem}", path.display())]
    ClientCa {
        /// Where it is.
        path: PathBuf,
        /// Why.
        problem: String,
    },
    /// They are refused for another reason.
    #[error("{} and {} cannot be used: {problem}", certificate.display(), key.display())]
    Unusable {
        /// Where the certificate is.
        certificate: PathBuf,
        /// Where the key is.
        key: PathBuf,
        /// Why.
        problem: rustls::Error,
    },
}

impl TlsSetup {
    /// The configuration of a server with these files; call again to take in changed files.
    pub fn load(&self) -> Result<ServerConfig, TlsError> {
        let verifier = self.clients.as_ref().map(client_verifier).transpose()?;
        self.files.load(verifier, self.minimum)
    }

    /// The files that it is made of.
    pub fn paths(&self) -> Vec<&Path> {
        let clients = self.clients.iter().flat_map(|clients| [Some(&clients.ca), clients.crl.as_ref()]);
        let own = [Some(&self.files.certificate), Some(&self.files.key)];
        own.into_iter().chain(clients).flatten().map(PathBuf::as_path).collect()
    }
}

/// Who checks the certificates of clients: by the CA, and by what it has revoked.
fn client_verifier(clients: &ClientCertificates) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let unusable = |problem: String| TlsError::ClientCa { path: clients.ca.clone(), problem };
    let mut roots = RootCertStore::empty();
    for certificate in read_certificates(&clients.ca)? {
        roots.add(certificate).map_err(|problem| unusable(problem.to_string()))?;
    }
    let mut builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider());
    if let Some(path) = &clients.crl {
        let lists: Result<Vec<_>, _> = CertificateRevocationListDer::pem_file_iter(path).and_then(Iterator::collect);
        builder = builder.with_crls(lists.map_err(|problem| explain(path, problem))?);
    }
    if !clients.required {
        builder = builder.allow_unauthenticated();
    }
    let built = builder.build();
    built.map_err(|problem: VerifierBuilderError| unusable(problem.to_string()))
}

impl TlsFiles {
    /// The configuration of a server with these files, which asks nothing of clients but what the verifier does.
    pub(super) fn load(
        &self,
        clients: Option<Arc<dyn ClientCertVerifier>>,
        minimum: MinimumTls,
    ) -> Result<ServerConfig, TlsError> {
        let certificates = read_certificates(&self.certificate)?;
        let key = read_key(&self.key)?;
        server_config(certificates, key, clients, minimum).map_err(|problem| self.explain(problem))
    }

    fn explain(&self, problem: rustls::Error) -> TlsError {
        let (certificate, key) = (self.certificate.clone(), self.key.clone());
        match problem {
            rustls::Error::InconsistentKeys(_) => TlsError::KeyMismatch { certificate, key },
            problem => TlsError::Unusable { certificate, key, problem },
        }
    }
}

/// The configuration of a server of HTTP/2, for gRPC and others, and of HTTP/1.1.
fn server_config(
    certificates: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    clients: Option<Arc<dyn ClientCertVerifier>>,
    minimum: MinimumTls,
) -> Result<ServerConfig, rustls::Error> {
    let builder = ServerConfig::builder_with_provider(provider()).with_protocol_versions(versions(minimum))?;
    let builder = match clients {
        Some(verifier) => builder.with_client_cert_verifier(verifier),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_single_cert(certificates, key)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

static SINCE_1_2: [&SupportedProtocolVersion; 2] = [&rustls::version::TLS13, &rustls::version::TLS12];
static SINCE_1_3: [&SupportedProtocolVersion; 1] = [&rustls::version::TLS13];

fn versions(minimum: MinimumTls) -> &'static [&'static SupportedProtocolVersion] {
    match minimum {
        MinimumTls::V1_2 => &SINCE_1_2,
        MinimumTls::V1_3 => &SINCE_1_3,
    }
}

/// The cryptography behind TLS; named here, so that nothing depends on a default of the process.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

/// The certificates in a PEM file, at least one.
pub(super) fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certificates: Vec<_> =
        CertificateDer::pem_file_iter(path).and_then(Iterator::collect).map_err(|problem| explain(path, problem))?;
    if certificates.is_empty() {
        return Err(TlsError::NoCertificate { path: path.into() });
    }
    Ok(certificates)
}

/// The private key in a PEM file.
pub(super) fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_file(path).map_err(|problem| match problem {
        pem::Error::NoItemsFound => TlsError::NoKey { path: path.into() },
        problem => explain(path, problem),
    })
}

fn explain(path: &Path, problem: pem::Error) -> TlsError {
    match problem {
        pem::Error::Io(problem) => TlsError::Read { path: path.into(), problem },
        problem => TlsError::NotPem { path: path.into(), problem },
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    struct Folder {
        folder: tempfile::TempDir,
        files: TlsFiles,
    }

    /// A folder with a good certificate and key, for a test to spoil.
    fn good_files() -> Folder {
        let folder = tempfile::tempdir().unwrap();
        let files = TlsFiles { certificate: folder.path().join("tls.pem"), key: folder.path().join("tls.key") };
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        fs::write(&files.certificate, made.cert.pem()).unwrap();
        fs::write(&files.key, made.signing_key.serialize_pem()).unwrap();
        Folder { folder, files }
    }

    fn problem(files: &TlsFiles) -> TlsError {
        files.load(None, MinimumTls::V1_2).expect_err("these files must not do")
    }

    #[test]
    fn good_files_give_a_configuration_that_prefers_http2() {
        let config = good_files().files.load(None, MinimumTls::V1_2).unwrap();
        assert_eq!(config.alpn_protocols, [b"h2".as_slice(), b"http/1.1"]);
    }

    #[test]
    fn a_missing_file_is_named() {
        let Folder { files, folder: _folder } = good_files();
        fs::remove_file(&files.key).unwrap();
        assert!(matches!(problem(&files), TlsError::Read { path, .. } if path == files.key));
        fs::remove_file(&files.certificate).unwrap();
        assert!(matches!(problem(&files), TlsError::Read { path, .. } if path == files.certificate));
    }

    #[test]
    fn a_file_without_what_it_should_have_is_named() {
        let Folder { files, folder: _folder } = good_files();
        let swapped = TlsFiles { certificate: files.key.clone(), key: files.certificate.clone() };
        assert!(matches!(problem(&swapped), TlsError::NoCertificate { .. }));
        fs::write(&files.key, "").unwrap();
        assert!(matches!(problem(&files), TlsError::NoKey { path } if path == files.key));
        fs::write(&files.certificate, "-----BEGIN CERTIFICATE-----\n???\n").unwrap();
        assert!(matches!(problem(&files), TlsError::NotPem { path, .. } if path == files.certificate));
    }

    #[test]
    fn a_key_of_another_certificate_is_refused() {
        let Folder { files, folder: _folder } = good_files();
        let other = good_files();
        let mixed = TlsFiles { key: other.files.key.clone(), ..files };
        assert!(matches!(problem(&mixed), TlsError::KeyMismatch { key, .. } if key == other.files.key));
    }

    #[test]
    fn a_certificate_of_nonsense_is_refused() {
        let Folder { files, folder: _folder } = good_files();
        fs::write(&files.certificate, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
        assert!(matches!(problem(&files), TlsError::Unusable { .. }));
    }
}

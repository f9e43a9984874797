//! The TLS configuration of the listener, loaded from PEM files as a `rustls` configuration. Owns the offer (versions,
//! ALPN, cryptography) and the requirements on clients. Must not know the origin of the files, nor the services.

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

/// The files of a certificate and its private key, both PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate, followed by the chain to a CA.
    pub certificate: PathBuf,
    /// The private key of the first certificate, not encrypted.
    pub key: PathBuf,
}

/// The inputs of the TLS configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsSetup {
    /// The server's certificate and key.
    pub files: TlsFiles,
    /// The requirements on client certificates, if any.
    pub clients: Option<ClientCertificates>,
    /// The oldest accepted version of TLS.
    pub minimum: MinimumTls,
}

/// The reason why TLS cannot use these files.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("failed to read {}: {problem}", path.display())]
    Read {
        /// The path of the file.
        path: PathBuf,
        /// The error of the operating system.
        problem: io::Error,
    },
    /// A file is not PEM.
    #[error("{} is not a PEM file: {problem}", path.display())]
    NotPem {
        /// The path of the file.
        path: PathBuf,
        /// The error of the parser.
        problem: pem::Error,
    },
    /// A PEM file contains no certificate.
    #[error("{} has no certificate; a PEM file of a certificate has a BEGIN CERTIFICATE line", path.display())]
    NoCertificate {
        /// The path of the file.
        path: PathBuf,
    },
    /// A PEM file contains no private key.
    #[error("{} has no private key; it must have a BEGIN PRIVATE KEY line and must not be encrypted", path.display())]
    NoKey {
        /// The path of the file.
        path: PathBuf,
    },
    /// The key belongs to another certificate.
    #[error("the private key in {} does not belong to the certificate in {}", key.display(), certificate.display())]
    KeyMismatch {
        /// The certificate file.
        certificate: PathBuf,
        /// The key file.
        key: PathBuf,
    },
    /// The CA of clients cannot be used.
    #[error("the client CA in {} cannot be used: {problem}", path.display())]
    ClientCa {
        /// The file of the CA.
        path: PathBuf,
        /// The error of the verifier.
        problem: String,
    },
    /// `rustls` refuses certificate or key for another reason.
    #[error("{} and {} cannot be used: {problem}", certificate.display(), key.display())]
    Unusable {
        /// The certificate file.
        certificate: PathBuf,
        /// The key file.
        key: PathBuf,
        /// The error of `rustls`.
        problem: rustls::Error,
    },
}

impl TlsSetup {
    /// Loads the server configuration from the files. Call it again after the files change.
    pub fn load(&self) -> Result<ServerConfig, TlsError> {
        let verifier = self.clients.as_ref().map(client_verifier).transpose()?;
        self.files.load(verifier, self.minimum)
    }

    /// The end of the server certificate's validity, in seconds since 1970. `None`: this program cannot read it.
    pub fn not_after(&self) -> Result<Option<i64>, TlsError> {
        let certificates = read_certificates(&self.files.certificate)?;
        let parsed = certificates.first().and_then(|first| x509_parser::parse_x509_certificate(first).ok());
        Ok(parsed.map(|(_, certificate)| certificate.validity().not_after.timestamp()))
    }

    /// All files of the configuration.
    pub fn paths(&self) -> Vec<&Path> {
        let clients = self.clients.iter().flat_map(|clients| [Some(&clients.ca), clients.crl.as_ref()]);
        let own = [Some(&self.files.certificate), Some(&self.files.key)];
        own.into_iter().chain(clients).flatten().map(PathBuf::as_path).collect()
    }
}

/// The verifier of client certificates: checks the CA's signature and the CA's revocation list.
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
        // Only an absent certificate passes then: its client can authenticate by a token (SPEC 5). An invalid one still
        // fails the handshake.
        builder = builder.allow_unauthenticated();
    }
    let built = builder.build();
    built.map_err(|problem: VerifierBuilderError| unusable(problem.to_string()))
}

impl TlsFiles {
    /// Loads the server configuration; `clients` verifies client certificates, and `None` asks for none.
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

/// The configuration of a server for HTTP/2, which gRPC needs, and HTTP/1.1.
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
    // The first protocol that the client also offers is used.
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

/// The cryptography of TLS, named explicitly, so that no default of the process applies.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

/// Reads the certificates of a PEM file, at least one.
pub(super) fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certificates: Vec<_> =
        CertificateDer::pem_file_iter(path).and_then(Iterator::collect).map_err(|problem| explain(path, problem))?;
    if certificates.is_empty() {
        return Err(TlsError::NoCertificate { path: path.into() });
    }
    Ok(certificates)
}

/// Reads the private key of a PEM file.
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

    /// A folder with a valid certificate and key, for a test to spoil.
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

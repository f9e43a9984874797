//! A certificate authority of the broker's own: created at the first start of a broker for development, or once by
//! `baton serve --make-certificate`, and kept. In development it signs a server certificate whenever no valid one exists. Owns
//! the files in its folder. Must not know the services.
//!
//! ```text
//! ca.pem      the CA's certificate, for clients to trust; created once
//! ca.key      signs server certificates only
//! server.pem  the server's certificate, valid for 397 days; renewed when necessary
//! server.key  its key, new with every server.pem
//! ```
//!
//! Each file appears complete or not at all, and a key always before its certificate. So a crash leaves a key without
//! its certificate, or with an older one. The next start detects both cases and creates the files again.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use ::time::OffsetDateTime;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::{
    RootCertStore,
    client::{WebPkiServerVerifier, danger::ServerCertVerifier as _},
    pki_types::{CertificateDer, ServerName, UnixTime},
};

use super::tls::{self, TlsError, TlsFiles};
use crate::{config::MinimumTls, disk, time::Timestamp};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const CA_VALIDITY: Duration = DAY.saturating_mul(3652);
/// Some clients refuse a server certificate with a validity of more than 398 days.
const SERVER_VALIDITY: Duration = DAY.saturating_mul(397);
/// A server certificate with less validity left is renewed.
const SERVER_RENEWAL: Duration = DAY.saturating_mul(30);
/// Certificates become valid this long before their creation, for clients with slow clocks.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(60 * 60);

/// The name of a CA for development.
const DEVELOPMENT_NAME: &str = "baton development CA";
/// The name of a CA that an operator has asked for.
const NAME: &str = "baton CA";
/// The names in every server certificate.
const NAMES: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

/// The reason why no development certificate is available.
#[derive(Debug, thiserror::Error)]
pub enum DevelopmentCaError {
    /// The broker failed to create or read the folder or a file in it.
    #[error("failed to {action} {}: {problem}", path.display())]
    File {
        /// The failed operation.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The error of the operating system.
        problem: io::Error,
    },
    /// A file has unusable content.
    #[error("{problem}; {remedy}")]
    Unusable {
        /// The unusable file, and its error.
        problem: TlsError,
        /// How the operator can repair it.
        remedy: Remedy,
    },
    /// The key of the CA is unusable.
    #[error("{} is not the private key of a development CA: {problem}; {}", path.display(), Remedy::NewCa)]
    CaKey {
        /// The key file.
        path: PathBuf,
        /// The error of the key parser.
        problem: rcgen::Error,
    },
    /// The CA's certificate is unusable, or belongs to another key.
    #[error("{} and its ca.key are not a development CA: {problem}; {}", path.display(), Remedy::NewCa)]
    Ca {
        /// The certificate file.
        path: PathBuf,
        /// The error of the certificate check.
        problem: rustls::Error,
    },
    /// A file would be replaced.
    #[error("{} exists, and is never replaced; {remedy}", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
        /// What the operator can do.
        remedy: &'static str,
    },
    /// A name is neither a host name nor an IP address.
    #[error("{name:?} is neither a host name nor an IP address, so a certificate cannot name it")]
    Name {
        /// The name as given.
        name: String,
    },
    /// A certificate cannot be generated.
    #[error("failed to create a certificate: {problem}")]
    Generation {
        /// The error of the certificate library.
        problem: rcgen::Error,
    },
}

/// How to repair unusable files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remedy {
    /// Create a new CA: clients must trust it.
    NewCa,
    /// Create a new server certificate: clients need no change.
    NewServerCertificate,
}

impl std::fmt::Display for Remedy {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::NewCa => {
                "repair it, or remove ca.pem and ca.key and start again to create a new CA, which clients must then trust"
            }
            Self::NewServerCertificate => "remove server.pem and server.key and start again to create new ones",
        })
    }
}

/// The files of a development CA and of the server certificate that it signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DevelopmentCa {
    /// The file of the CA's certificate, for clients to trust.
    pub ca_certificate: PathBuf,
    /// The server's certificate and key.
    pub server: TlsFiles,
}

impl DevelopmentCa {
    /// Creates the CA in this folder if it is missing, and the server certificate unless a valid one exists: signed by
    /// this CA, valid for at least 30 more days, for localhost and for all of `names` (host names or IP addresses).
    ///
    /// Blocks on the disk. Two processes must not run this in one folder at the same time.
    pub fn load_or_create(folder: &Path, now: Timestamp, names: &[String]) -> Result<Self, DevelopmentCaError> {
        let names = wanted_names(names)?;
        disk::make_folder(folder).map_err(|problem| DevelopmentCaError::File {
            action: "make the folder",
            path: folder.into(),
            problem,
        })?;
        let files = Files { folder };
        if !files.has("ca.pem")? {
            files.make_ca(now, DEVELOPMENT_NAME)?;
        }
        if !files.has_good_server_certificate(now, &names)? {
            files.make_server_certificate(now, &names)?;
        }
        Ok(Self { ca_certificate: files.path("ca.pem"), server: files.server() })
    }
}

impl DevelopmentCa {
    /// Creates the CA in this folder if it is missing, and the server certificate, as [`Self::load_or_create`] does. Replaces no
    /// file: a CA that is there signs.
    ///
    /// Blocks on the disk. Two processes must not run this in one folder at the same time.
    pub fn make(folder: &Path, now: Timestamp, names: &[String]) -> Result<Self, DevelopmentCaError> {
        let names = wanted_names(names)?;
        let files = Files { folder };
        for name in ["server.pem", "server.key"] {
            if files.has(name)? {
                let remedy = "to make a new certificate by the same CA, move server.pem and server.key away";
                return Err(DevelopmentCaError::Exists { path: files.path(name), remedy });
            }
        }
        if !files.has("ca.pem")? {
            if files.has("ca.key")? {
                let remedy = "it has no ca.pem beside it: put that there, or move ca.key away to make a new CA";
                return Err(DevelopmentCaError::Exists { path: files.path("ca.key"), remedy });
            }
            disk::make_folder(folder).map_err(|problem| DevelopmentCaError::File {
                action: "make the folder",
                path: folder.into(),
                problem,
            })?;
            files.make_ca(now, NAME)?;
        }
        files.make_server_certificate(now, &names)?;
        Ok(Self { ca_certificate: files.path("ca.pem"), server: files.server() })
    }
}

/// The names in every certificate, then `more`, without duplicates.
fn wanted_names(more: &[String]) -> Result<Vec<String>, DevelopmentCaError> {
    let mut names: Vec<String> = NAMES.map(str::to_owned).into();
    for name in more {
        if ServerName::try_from(name.as_str()).is_err() {
            return Err(DevelopmentCaError::Name { name: name.clone() });
        }
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
    Ok(names)
}

struct Files<'a> {
    folder: &'a Path,
}

impl Files<'_> {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn server(&self) -> TlsFiles {
        TlsFiles { certificate: self.path("server.pem"), key: self.path("server.key") }
    }

    fn has(&self, name: &str) -> Result<bool, DevelopmentCaError> {
        let path = self.path(name);
        path.try_exists().map_err(|problem| DevelopmentCaError::File { action: "look for", path, problem })
    }

    /// Creates the CA. A key without its certificate is left from an interrupted start and is replaced: no client
    /// trusts that CA yet.
    fn make_ca(&self, now: Timestamp, ca_name: &str) -> Result<(), DevelopmentCaError> {
        let key = new_key()?;
        let certificate = ca_parameters(now, ca_name).self_signed(&key).map_err(generation)?;
        self.write("ca.key", &key.serialize_pem())?;
        self.write("ca.pem", &certificate.pem())?;
        tracing::info!(path = %self.path("ca.pem").display(), "created a CA; clients must trust it");
        Ok(())
    }

    /// Whether a client that trusts the CA accepts the server certificate, under every name, for long enough. Runs the
    /// verification of such a client instead of reading fields of the certificate.
    fn has_good_server_certificate(&self, now: Timestamp, names: &[String]) -> Result<bool, DevelopmentCaError> {
        if !(self.has("server.pem")? && self.has("server.key")?) {
            return Ok(false);
        }
        let unusable = |problem| DevelopmentCaError::Unusable { problem, remedy: Remedy::NewServerCertificate };
        match self.server().load(None, MinimumTls::default()) {
            Ok(_) => {}
            // A crash between the two writes leaves a key beside an older certificate; both are created again.
            Err(TlsError::KeyMismatch { .. }) => return Ok(false),
            Err(problem) => return Err(unusable(problem)),
        }
        let certificates = tls::read_certificates(&self.server().certificate).map_err(unusable)?;
        self.check(&certificates[0], now.plus(SERVER_RENEWAL), names)
    }

    /// Whether the certificate is valid at that time under every name.
    fn check(
        &self,
        certificate: &CertificateDer<'_>,
        at: Timestamp,
        names: &[String],
    ) -> Result<bool, DevelopmentCaError> {
        let verifier = self.verifier()?;
        let at = UnixTime::since_unix_epoch(at.since(Timestamp::default()));
        Ok(names.iter().all(|name| {
            let name = ServerName::try_from(name.as_str()).expect("checked by wanted_names");
            verifier.verify_server_cert(certificate, &[], &name, &[], at).is_ok()
        }))
    }

    /// The verifier of a client that trusts this CA and no other.
    fn verifier(&self) -> Result<Arc<WebPkiServerVerifier>, DevelopmentCaError> {
        let path = self.path("ca.pem");
        let unusable = |problem| DevelopmentCaError::Unusable { problem, remedy: Remedy::NewCa };
        let mut roots = RootCertStore::empty();
        for certificate in tls::read_certificates(&path).map_err(unusable)? {
            roots.add(certificate).map_err(|problem| DevelopmentCaError::Ca { path: path.clone(), problem })?;
        }
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), tls::provider());
        Ok(verifier.build().expect("there is a root, and no revocation list"))
    }

    fn make_server_certificate(&self, now: Timestamp, names: &[String]) -> Result<(), DevelopmentCaError> {
        let issuer = Issuer::new(ca_parameters(now, &self.ca_name()?), self.read_ca_key()?);
        let key = new_key()?;
        let certificate = server_parameters(now, names)?.signed_by(&key, &issuer).map_err(generation)?;
        // The new certificate fails only if ca.pem does not belong to ca.key.
        if !self.check(certificate.der(), now, names)? {
            let problem = rustls::CertificateError::UnknownIssuer.into();
            return Err(DevelopmentCaError::Ca { path: self.path("ca.pem"), problem });
        }
        self.write("server.key", &key.serialize_pem())?;
        self.write("server.pem", &certificate.pem())?;
        tracing::info!(?names, "signed a server certificate");
        Ok(())
    }

    /// The name in the CA's certificate, which must be that of the issuer in what it signs.
    fn ca_name(&self) -> Result<String, DevelopmentCaError> {
        let path = self.path("ca.pem");
        let unusable = |problem| DevelopmentCaError::Unusable { problem, remedy: Remedy::NewCa };
        let certificates = tls::read_certificates(&path).map_err(unusable)?;
        let name = certificates.first().and_then(|first| {
            let (_, certificate) = x509_parser::parse_x509_certificate(first).ok()?;
            certificate.subject().iter_common_name().next()?.as_str().ok().map(str::to_owned)
        });
        name.ok_or_else(|| DevelopmentCaError::Ca { path, problem: rustls::CertificateError::BadEncoding.into() })
    }

    fn read_ca_key(&self) -> Result<KeyPair, DevelopmentCaError> {
        let path = self.path("ca.key");
        let unusable = |problem| DevelopmentCaError::Unusable { problem, remedy: Remedy::NewCa };
        let key = tls::read_key(&path).map_err(unusable)?;
        KeyPair::try_from(&key).map_err(|problem| DevelopmentCaError::CaKey { path, problem })
    }

    fn write(&self, name: &str, content: &str) -> Result<(), DevelopmentCaError> {
        let path = self.path(name);
        let written = disk::write_whole(&path, content.as_bytes());
        written.map_err(|problem| DevelopmentCaError::File { action: "write", path, problem })
    }
}

fn new_key() -> Result<KeyPair, DevelopmentCaError> {
    KeyPair::generate().map_err(generation)
}

fn generation(problem: rcgen::Error) -> DevelopmentCaError {
    DevelopmentCaError::Generation { problem }
}

fn ca_parameters(now: Timestamp, ca_name: &str) -> CertificateParams {
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name.push(DnType::CommonName, ca_name);
    // 0: no further CA below this one. It signs server certificates only.
    parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    set_validity(&mut parameters, now, CA_VALIDITY);
    parameters
}

fn server_parameters(now: Timestamp, names: &[String]) -> Result<CertificateParams, DevelopmentCaError> {
    let mut parameters = CertificateParams::new(names).map_err(generation)?;
    parameters.distinguished_name.push(DnType::CommonName, "baton");
    parameters.use_authority_key_identifier_extension = true;
    parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    set_validity(&mut parameters, now, SERVER_VALIDITY);
    Ok(parameters)
}

fn set_validity(parameters: &mut CertificateParams, now: Timestamp, validity: Duration) {
    let now = OffsetDateTime::from_unix_timestamp(now.to_parts().0).expect("a Timestamp is before the year 2263");
    parameters.not_before = now - CLOCK_TOLERANCE;
    parameters.not_after = now + validity;
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const NOW: Timestamp = Timestamp::from_unix_nanoseconds(1_800_000_000_000_000_000);

    /// A folder for a development CA.
    struct Fixture {
        parent: tempfile::TempDir,
    }

    impl Fixture {
        fn new() -> Self {
            Self { parent: tempfile::tempdir().unwrap() }
        }

        fn folder(&self) -> PathBuf {
            self.parent.path().join("data/tls")
        }

        fn path(&self, name: &str) -> PathBuf {
            self.folder().join(name)
        }

        fn start(&self, now: Timestamp, names: &[&str]) -> Result<DevelopmentCa, DevelopmentCaError> {
            let names: Vec<String> = names.iter().map(ToString::to_string).collect();
            DevelopmentCa::load_or_create(&self.folder(), now, &names)
        }

        /// Starts, and returns the changed files of the four.
        fn changed_by_start(&self, now: Timestamp, names: &[&str]) -> Vec<&'static str> {
            let names_of_files = ["ca.pem", "ca.key", "server.pem", "server.key"];
            let before = names_of_files.map(|name| fs::read(self.path(name)).ok());
            let files = self.start(now, names).unwrap();
            files.server.load(None, MinimumTls::default()).unwrap();
            let changed = |(name, before): (&'static str, Option<Vec<u8>>)| {
                (fs::read(self.path(name)).ok() != before).then_some(name)
            };
            names_of_files.into_iter().zip(before).filter_map(changed).collect()
        }

        fn is_good_at(&self, at: Timestamp, name: &str) -> bool {
            let certificate = tls::read_certificates(&self.path("server.pem")).unwrap().remove(0);
            Files { folder: &self.folder() }.check(&certificate, at, &[name.to_owned()]).unwrap()
        }
    }

    fn in_days(days: u32) -> Timestamp {
        NOW.plus(DAY * days)
    }

    #[test]
    fn the_first_start_makes_everything() {
        let fixture = Fixture::new();
        let made = fixture.start(NOW, &[]).unwrap();
        assert_eq!(made.ca_certificate, fixture.path("ca.pem"));
        made.server.load(None, MinimumTls::default()).unwrap();
        for name in ["localhost", "127.0.0.1", "::1"] {
            assert!(fixture.is_good_at(NOW, name), "{name}");
            assert!(fixture.is_good_at(in_days(396), name), "{name}");
        }
        assert!(!fixture.is_good_at(in_days(398), "localhost"));
        assert!(!fixture.is_good_at(NOW, "example.org"));
    }

    #[cfg(unix)]
    #[test]
    fn only_the_owner_can_read_what_is_made() {
        use std::os::unix::fs::PermissionsExt as _;
        let fixture = Fixture::new();
        fixture.start(NOW, &[]).unwrap();
        let mode = |path: PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(fixture.folder()), 0o700);
        for name in ["ca.pem", "ca.key", "server.pem", "server.key"] {
            assert_eq!(mode(fixture.path(name)), 0o600, "{name}");
        }
    }

    #[test]
    fn later_starts_change_nothing() {
        let fixture = Fixture::new();
        fixture.start(NOW, &["broker.test"]).unwrap();
        assert!(fixture.changed_by_start(in_days(1), &["broker.test"]).is_empty());
        assert!(fixture.changed_by_start(in_days(366), &["localhost"]).is_empty());
    }

    #[test]
    fn a_certificate_that_is_about_to_expire_is_made_anew_by_the_same_ca() {
        let fixture = Fixture::new();
        fixture.start(NOW, &[]).unwrap();
        assert_eq!(fixture.changed_by_start(in_days(368), &[]), ["server.pem", "server.key"]);
        assert!(fixture.is_good_at(in_days(368 + 396), "localhost"));
    }

    #[test]
    fn a_certificate_that_lacks_a_name_is_made_anew() {
        let fixture = Fixture::new();
        fixture.start(NOW, &[]).unwrap();
        for name in ["broker.test", "10.1.2.3", "fd00::1", "snake_case"] {
            assert_eq!(fixture.changed_by_start(NOW, &[name]), ["server.pem", "server.key"], "{name}");
            assert!(fixture.is_good_at(NOW, name) && fixture.is_good_at(NOW, "localhost"), "{name}");
        }
    }

    #[test]
    fn what_a_start_that_was_cut_off_leaves_is_made_anew() {
        let fixture = Fixture::new();
        fixture.start(NOW, &[]).unwrap();
        let old_key = fs::read(fixture.path("server.key")).unwrap();
        fs::remove_file(fixture.path("server.pem")).unwrap();
        assert_eq!(fixture.changed_by_start(NOW, &[]), ["server.pem", "server.key"]);
        fs::write(fixture.path("server.key"), old_key).unwrap();
        fs::write(fixture.path("server.key.new"), "half").unwrap();
        assert_eq!(fixture.changed_by_start(NOW, &[]), ["server.pem", "server.key"]);
        fs::remove_file(fixture.path("ca.pem")).unwrap();
        assert_eq!(fixture.changed_by_start(NOW, &[]).len(), 4);
        assert_eq!(fs::read_dir(fixture.folder()).unwrap().count(), 4);
    }

    #[test]
    fn without_the_ca_key_a_good_certificate_still_serves() {
        let fixture = Fixture::new();
        fixture.start(NOW, &[]).unwrap();
        fs::remove_file(fixture.path("ca.key")).unwrap();
        assert!(fixture.changed_by_start(NOW, &[]).is_empty());
        let problem = fixture.start(NOW, &["broker.test"]).unwrap_err();
        assert!(matches!(problem, DevelopmentCaError::Unusable { remedy: Remedy::NewCa, .. }), "{problem}");
    }

    #[test]
    fn spoilt_files_are_named_and_kept() {
        for (name, garbage, remedy) in [
            ("ca.pem", "garbage", Remedy::NewCa),
            ("server.pem", "-----BEGIN CERTIFICATE-----\n???\n", Remedy::NewServerCertificate),
            ("server.key", "garbage", Remedy::NewServerCertificate),
        ] {
            let fixture = Fixture::new();
            fixture.start(NOW, &[]).unwrap();
            fs::write(fixture.path(name), garbage).unwrap();
            let problem = fixture.start(NOW, &[]).unwrap_err();
            assert!(problem.to_string().contains(name), "{problem}");
            assert!(
                matches!(problem, DevelopmentCaError::Unusable { remedy: found, .. } if found == remedy),
                "{problem}"
            );
            assert_eq!(fs::read_to_string(fixture.path(name)).unwrap(), garbage);
        }
    }

    #[test]
    fn a_ca_key_of_another_ca_signs_nothing() {
        let (fixture, other) = (Fixture::new(), Fixture::new());
        fixture.start(NOW, &[]).unwrap();
        other.start(NOW, &[]).unwrap();
        fs::copy(other.path("ca.key"), fixture.path("ca.key")).unwrap();
        let before = fs::read(fixture.path("server.pem")).unwrap();
        let problem = fixture.start(NOW, &["broker.test"]).unwrap_err();
        assert!(matches!(problem, DevelopmentCaError::Ca { .. }), "{problem}");
        assert_eq!(fs::read(fixture.path("server.pem")).unwrap(), before);
    }

    #[test]
    fn a_name_that_cannot_be_certified_is_refused_before_anything_is_made() {
        let fixture = Fixture::new();
        let problem = fixture.start(NOW, &["not a name"]).unwrap_err();
        assert!(matches!(problem, DevelopmentCaError::Name { name } if name == "not a name"));
        assert!(!fixture.folder().exists());
    }

    #[test]
    fn a_certificate_that_an_operator_asks_for_replaces_nothing() {
        let fixture = Fixture::new();
        let make =
            |now| DevelopmentCa::make(&fixture.folder(), now, &["broker.test".to_owned(), "10.1.2.3".to_owned()]);
        let made = make(NOW).unwrap();
        made.server.load(None, MinimumTls::default()).unwrap();
        for name in ["broker.test", "10.1.2.3", "localhost", "127.0.0.1"] {
            assert!(fixture.is_good_at(in_days(396), name), "{name}");
        }
        let read = |name: &str| fs::read(fixture.path(name)).unwrap();
        let before = ["ca.pem", "ca.key", "server.pem", "server.key"].map(read);
        let refused = make(in_days(380)).unwrap_err();
        assert!(matches!(&refused, DevelopmentCaError::Exists { path, .. } if *path == fixture.path("server.pem")));
        assert_eq!(["ca.pem", "ca.key", "server.pem", "server.key"].map(read), before);
        // A key that an interrupted run has left.
        fs::remove_file(fixture.path("server.pem")).unwrap();
        let refused = make(in_days(380)).unwrap_err();
        assert!(matches!(&refused, DevelopmentCaError::Exists { path, .. } if *path == fixture.path("server.key")));
        // To renew, the operator moves both away.
        fs::remove_file(fixture.path("server.key")).unwrap();
        make(in_days(380)).unwrap();
        assert_eq!(read("ca.pem"), before[0]);
        assert!(fixture.is_good_at(in_days(770), "broker.test"));
        // A broker for development on the same folder goes on with this CA.
        assert_eq!(fixture.changed_by_start(in_days(380), &["other.test"]), ["server.pem", "server.key"]);
    }

    #[test]
    fn a_key_of_a_ca_without_its_certificate_is_not_replaced() {
        let fixture = Fixture::new();
        fs::create_dir_all(fixture.folder()).unwrap();
        fs::write(fixture.path("ca.key"), "precious").unwrap();
        let refused = DevelopmentCa::make(&fixture.folder(), NOW, &[]).unwrap_err();
        assert!(matches!(&refused, DevelopmentCaError::Exists { path, .. } if *path == fixture.path("ca.key")));
        assert_eq!(fs::read_to_string(fixture.path("ca.key")).unwrap(), "precious");
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named() {
        let fixture = Fixture::new();
        fs::write(fixture.parent.path().join("data"), "a file").unwrap();
        let problem = fixture.start(NOW, &[]).unwrap_err();
        assert!(matches!(problem, DevelopmentCaError::File { path, .. } if path == fixture.folder()));
    }
}

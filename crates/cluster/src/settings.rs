//! The settings of a broker in a cluster, and their bounds.
//!
//! Owns what an operator chooses. Must not know where the settings are written, nor whether the engine behind an address
//! answers.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    ops::RangeInclusive,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use baton_store::bucket::{BucketOptions, BucketProblem};

#[cfg(feature = "s3")]
use crate::engines::bucket::Bucket;
use crate::{
    engines::{directory::Directory, postgres::Postgres},
    log::{Register, SharedLog, Unavailable},
    requests::Requests,
};

/// The time of a lease, unless another is set.
pub const LEASE: Duration = Duration::from_secs(5);
/// The bounds of a lease.
pub const LEASES: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(60);
/// The time in which the log keeps what an absent member lacks, unless another is set.
pub const LOG_KEEP: Duration = Duration::from_secs(24 * 60 * 60);
/// The shortest [`ClusterSettings::log_keep`]: a restart takes less.
pub const LOG_KEEP_MIN: Duration = Duration::from_secs(60);
/// The most bytes of the log, unless another number is set: 10 GiB.
pub const LOG_BYTES_MAX: u64 = 10 << 30;
/// The smallest [`ClusterSettings::log_bytes_max`], in bytes: 64 MiB.
pub const LOG_BYTES_MAX_MIN: u64 = 64 << 20;
/// The port of other brokers.
pub const PEER_PORT: u16 = 22867;
/// The most characters of the name of a cluster or a broker.
pub const NAME_LENGTH_MAX: usize = 64;

/// A setting is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cluster.{key} {problem}")]
pub struct SettingsError {
    /// The key in the section `[cluster]`.
    pub key: &'static str,
    /// Why, and what to do.
    pub problem: String,
}

fn require(holds: bool, key: &'static str, problem: impl Into<String>) -> Result<(), SettingsError> {
    if holds { Ok(()) } else { Err(SettingsError { key, problem: problem.into() }) }
}

/// What an operator chooses for a broker in a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterSettings {
    /// The name of the cluster. Several clusters may share one engine.
    pub name: String,
    /// The name of this broker in the cluster.
    pub broker: String,
    /// Where the shared log is.
    pub log: LogAddress,
    /// The folder with the keys that all brokers of the cluster share.
    pub keys: PathBuf,
    /// The listen address for other brokers.
    pub peer_listen: SocketAddr,
    /// The address at which other brokers reach this one, host and port.
    pub peer_address: String,
    /// The time after which another broker may lead if the leader is silent.
    pub lease: Duration,
    /// How long the log keeps what an absent member lacks.
    pub log_keep: Duration,
    /// The most bytes of the log. Above it the log keeps only what two members have on their disks.
    pub log_bytes_max: u64,
}

impl ClusterSettings {
    /// Checks the bounds.
    ///
    /// # Errors
    ///
    /// The first setting out of its bounds, with the bounds.
    pub fn check(&self) -> Result<(), SettingsError> {
        for (key, name) in [("name", &self.name), ("broker", &self.broker)] {
            let rule = format!("is {name:?}; it has 1 to {NAME_LENGTH_MAX} letters, digits, \".\", \"_\" or \"-\"");
            require(is_name(name), key, format!("{rule}, and begins with a letter or digit"))?;
        }
        let lease = self.lease;
        require(LEASES.contains(&lease), "lease", format!("is {lease:?}, and must be from 1s to 1m"))?;
        require(self.log_keep >= LOG_KEEP_MIN, "log_keep", "must be at least 1m")?;
        require(
            self.log_bytes_max >= LOG_BYTES_MAX_MIN,
            "log_bytes_max",
            format!("must be at least {LOG_BYTES_MAX_MIN}"),
        )?;
        let address = &self.peer_address;
        require(
            is_address(address),
            "peer_address",
            format!("is {address:?}, and must be a host and a port, for example \"b1.internal:{PEER_PORT}\""),
        )
    }

    /// Whether only this machine reaches the port of peers.
    pub fn is_loopback(&self) -> bool {
        let host = self.peer_address.rsplit_once(':').map_or("", |(host, _)| host);
        let address: Option<IpAddr> = host.trim_start_matches('[').trim_end_matches(']').parse().ok();
        self.peer_listen.ip().is_loopback() && (host == "localhost" || address.is_some_and(|ip| ip.is_loopback()))
    }
}

/// Checks the name of a cluster or a broker.
pub fn is_name(name: &str) -> bool {
    let permitted = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    name.len() <= NAME_LENGTH_MAX
        && name.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric())
        && name.bytes().all(permitted)
}

fn is_address(address: &str) -> bool {
    let Some((host, port)) = address.rsplit_once(':') else { return false };
    let in_brackets = host.starts_with('[') && host.ends_with(']');
    let is_host = !host.is_empty() && !host.contains(['/', '@', ' ']) && (in_brackets || !host.contains(':'));
    is_host && port.parse::<u16>().is_ok_and(|port| port > 0)
}

/// Where a shared log is.
#[derive(Clone, PartialEq, Eq)]
pub enum LogAddress {
    /// A database of PostgreSQL: a URL, which may have a password.
    Postgres(String),
    /// A bucket of S3, or of a server that is compatible with it.
    Bucket(BucketOptions),
    /// A folder, for several brokers on one machine.
    Directory(PathBuf),
}

/// How a bucket is reached. Each has an environment variable of AWS in its place.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BucketAccess {
    /// [`BucketOptions::endpoint`].
    pub endpoint: Option<String>,
    /// [`BucketOptions::region`].
    pub region: Option<String>,
    /// [`BucketOptions::allow_http`]; `None`: false.
    pub allow_http: Option<bool>,
}

/// A shared log, and the register beside it.
#[derive(Clone)]
pub struct Engine {
    /// The log.
    pub log: Arc<dyn SharedLog>,
    /// The register.
    pub register: Arc<dyn Register>,
    /// The requests of this client. `None`: no provider charges for them.
    pub requests: Option<Arc<Requests>>,
}

impl fmt::Debug for Engine {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Engine")
    }
}

impl LogAddress {
    /// Parses an address: `postgres://…`, `postgresql://…`, `s3://…` or `file:///…`.
    ///
    /// # Errors
    ///
    /// The address is of no known kind, or `access` could not have its effect. The error does not repeat the address, which
    /// may have a password.
    pub fn parse(text: &str, access: BucketAccess) -> Result<Self, SettingsError> {
        let refused = |problem: &str| Err(SettingsError { key: "log", problem: problem.to_owned() });
        if !text.starts_with("s3://") && access != BucketAccess::default() {
            return refused("must begin with s3:// if log_endpoint, log_region or log_allow_http is set");
        }
        match text.split_once("://") {
            Some(("s3", _)) => Self::bucket(text, access),
            Some(("postgres" | "postgresql", _)) => match Postgres::check(text) {
                Ok(()) => Ok(Self::Postgres(text.to_owned())),
                Err(problem) => refused(&problem),
            },
            Some(("file", path)) if path.starts_with('/') => Ok(Self::Directory(path.into())),
            Some(("file", _)) => refused("must have an absolute path, for example file:///var/lib/baton/log"),
            _ => refused("must begin with postgres://, s3:// or file:///"),
        }
    }

    fn bucket(url: &str, access: BucketAccess) -> Result<Self, SettingsError> {
        let BucketAccess { endpoint, region, allow_http } = access;
        require(
            cfg!(feature = "s3"),
            "log",
            "is a bucket, and this build of baton has no S3: build it with the feature s3, or use postgres://",
        )?;
        let options =
            BucketOptions { url: url.to_owned(), endpoint, region, allow_http: allow_http.unwrap_or_default() };
        let (key, problem) = match options.check() {
            Ok(()) => return Ok(Self::Bucket(options)),
            Err(BucketProblem::Url(problem)) => ("log", problem),
            Err(BucketProblem::Plaintext) => {
                ("log_endpoint", "has no TLS; use https://, or set cluster.log_allow_http = true")
            }
            Err(BucketProblem::Endpoint) => {
                ("log_endpoint", "must begin with https:// or http://, and have no user name")
            }
        };
        Err(SettingsError { key, problem: problem.to_owned() })
    }

    /// How the bucket is reached; nothing for another kind of log.
    pub fn access(&self) -> BucketAccess {
        let Self::Bucket(BucketOptions { endpoint, region, allow_http, .. }) = self.clone() else {
            return BucketAccess::default();
        };
        BucketAccess { endpoint, region, allow_http: Some(allow_http) }
    }

    /// Connects to the engine, and makes its tables or folders.
    ///
    /// # Errors
    ///
    /// The engine does not answer, or refuses.
    pub async fn open(&self, cluster: &str) -> Result<Engine, Unavailable> {
        Ok(match self {
            Self::Postgres(address) => {
                let engine = Arc::new(Postgres::open(address, cluster).await?);
                Engine { requests: None, log: engine.clone(), register: engine }
            }
            #[cfg(feature = "s3")]
            Self::Bucket(options) => {
                let engine = Arc::new(Bucket::open(options, cluster).await?);
                Engine { requests: Some(engine.requests()), log: engine.clone(), register: engine }
            }
            #[cfg(not(feature = "s3"))]
            Self::Bucket(_) => return Err(no_s3()),
            Self::Directory(folder) => {
                let opened = Directory::open(&folder.join(cluster));
                let engine = Arc::new(opened.map_err(|error| Unavailable(error.to_string()))?);
                Engine { requests: None, log: engine.clone(), register: engine }
            }
        })
    }

    /// Deletes log and register of this name, for a log that was made for a test.
    ///
    /// # Errors
    ///
    /// The engine does not answer, or refuses.
    pub async fn discard(&self, cluster: &str) -> Result<(), Unavailable> {
        match self {
            Self::Postgres(address) => Postgres::open(address, cluster).await?.discard().await,
            #[cfg(feature = "s3")]
            Self::Bucket(options) => Bucket::open(options, cluster).await?.discard().await,
            #[cfg(not(feature = "s3"))]
            Self::Bucket(_) => Err(no_s3()),
            Self::Directory(folder) => match std::fs::remove_dir_all(folder.join(cluster)) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Unavailable(error.to_string())),
                Ok(()) | Err(_) => Ok(()),
            },
        }
    }

    /// The address as an operator wrote it, without its password.
    pub fn without_password(&self) -> String {
        let address = self.with_password();
        let Self::Postgres(_) = self else { return address };
        let (scheme, behind) = address.split_once("://").unwrap_or(("postgres", &address));
        let (before, options) = behind.split_once('?').unwrap_or((behind, ""));
        // A password may have an @ of its own.
        let place = before.rsplit_once('@').map_or_else(
            || before.to_owned(),
            |(user, place)| format!("{}@{place}", user.split(':').next().unwrap_or_default()),
        );
        let options: Vec<&str> =
            options.split('&').filter(|option| !option.starts_with("password=") && !option.is_empty()).collect();
        match options.is_empty() {
            true => format!("{scheme}://{place}"),
            false => format!("{scheme}://{place}?{}", options.join("&")),
        }
    }

    /// The address as an operator wrote it, with its password.
    pub fn with_password(&self) -> String {
        match self {
            Self::Postgres(address) => address.clone(),
            Self::Bucket(options) => options.url.clone(),
            Self::Directory(folder) => format!("file://{}", folder.display()),
        }
    }
}

impl fmt::Display for LogAddress {
    /// Omits user and password.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Postgres(address) => {
                let behind = address.split_once("://").map_or("", |(_, behind)| behind);
                // A password may have an @ of its own.
                let place = behind.rsplit_once('@').map_or(behind, |(_, place)| place);
                write!(formatter, "postgres://{}", place.split('?').next().unwrap_or_default())
            }
            Self::Bucket(options) => formatter.write_str(&options.url),
            Self::Directory(folder) => write!(formatter, "file://{}", folder.display()),
        }
    }
}

#[cfg(not(feature = "s3"))]
fn no_s3() -> Unavailable {
    Unavailable("this build of baton has no S3".to_owned())
}

impl fmt::Debug for LogAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> ClusterSettings {
        ClusterSettings {
            name: "baton".into(),
            broker: "b1".into(),
            log: LogAddress::Directory("/log".into()),
            keys: "keys".into(),
            peer_listen: ([127, 0, 0, 1], PEER_PORT).into(),
            peer_address: "127.0.0.1:22867".into(),
            lease: LEASE,
            log_keep: LOG_KEEP,
            log_bytes_max: LOG_BYTES_MAX,
        }
    }

    fn parse(text: &str) -> Result<LogAddress, SettingsError> {
        LogAddress::parse(text, BucketAccess::default())
    }

    #[test]
    fn what_is_in_bounds_is_accepted() {
        let second = Duration::from_secs(1);
        for (lease, address) in [(second, "b1:1"), (second * 60, "[::1]:22867"), (LEASE, "b1.internal:65535")] {
            let settings = ClusterSettings { lease, peer_address: address.into(), ..settings() };
            assert_eq!(settings.check(), Ok(()), "{address}");
        }
    }

    #[test]
    fn only_addresses_of_this_machine_are_loopback() {
        let with = |address: &str| ClusterSettings { peer_address: address.into(), ..settings() }.is_loopback();
        assert!(with("127.0.0.1:1") && with("[::1]:1") && with("localhost:1"));
        assert!(!with("10.0.0.1:1") && !with("b1:1") && !with("127.0.0.1.example:1"));
        assert!(!ClusterSettings { peer_listen: ([0, 0, 0, 0], 1).into(), ..settings() }.is_loopback());
    }

    #[test]
    fn what_is_out_of_bounds_is_refused_with_its_key() {
        let second = Duration::from_secs(1);
        let refused = [
            ("name", ClusterSettings { name: String::new(), ..settings() }),
            ("name", ClusterSettings { name: "a/b".into(), ..settings() }),
            ("broker", ClusterSettings { broker: ".b".into(), ..settings() }),
            ("broker", ClusterSettings { broker: "b".repeat(NAME_LENGTH_MAX + 1), ..settings() }),
            ("lease", ClusterSettings { lease: Duration::from_millis(999), ..settings() }),
            ("lease", ClusterSettings { lease: second * 61, ..settings() }),
            ("log_keep", ClusterSettings { log_keep: second * 59, ..settings() }),
            ("log_bytes_max", ClusterSettings { log_bytes_max: LOG_BYTES_MAX_MIN - 1, ..settings() }),
            ("peer_address", ClusterSettings { peer_address: "b1".into(), ..settings() }),
            ("peer_address", ClusterSettings { peer_address: "b1:0".into(), ..settings() }),
            ("peer_address", ClusterSettings { peer_address: "::1:5".into(), ..settings() }),
            ("peer_address", ClusterSettings { peer_address: "https://b1:5".into(), ..settings() }),
        ];
        for (key, settings) in refused {
            assert_eq!(settings.check().unwrap_err().key, key, "{settings:?}");
        }
    }

    #[test]
    fn an_address_shows_no_password() {
        let address = parse("postgres://baton:p@ss@db:5432/baton?sslmode=require&password=x").unwrap();
        assert_eq!(address.to_string(), "postgres://db:5432/baton");
        assert_eq!(format!("{address:?}"), "postgres://db:5432/baton");
        assert!(address.with_password().contains("p@ss"));
        assert_eq!(address.without_password(), "postgres://baton@db:5432/baton?sslmode=require");
        let plain = parse("postgresql://localhost/baton").unwrap();
        assert_eq!(plain.without_password(), "postgresql://localhost/baton");
    }

    #[test]
    fn an_unknown_address_is_refused_without_repeating_it() {
        for text in [
            "mysql://a:secret@b",
            "secret",
            "s3://a:secret@b",
            "file://secret",
            "file:secret",
            "postgres://a:secret@b/c",
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.starts_with("cluster.log "), "{error}");
            assert!(!error.contains("secret"), "{error}");
        }
        assert_eq!(parse("file:///a/b").unwrap(), LogAddress::Directory("/a/b".into()));
    }
    #[cfg(feature = "s3")]
    #[test]
    fn a_bucket_is_reached_as_the_access_says() {
        let access = BucketAccess {
            endpoint: Some("http://127.0.0.1:9000".into()),
            region: Some("eu-west-1".into()),
            allow_http: Some(true),
        };
        let address = LogAddress::parse("s3://logs/team", access.clone()).unwrap();
        assert_eq!(address.to_string(), "s3://logs/team");
        assert_eq!(address.without_password(), "s3://logs/team");
        assert_eq!(address.access(), access);
        let refused = |text: &str, access: BucketAccess| LogAddress::parse(text, access).unwrap_err().to_string();
        let plain = BucketAccess { allow_http: None, ..access.clone() };
        assert!(refused("s3://logs", plain).starts_with("cluster.log_endpoint has no TLS"));
        let named = BucketAccess { endpoint: Some("https://key:secret@h".into()), ..access.clone() };
        assert!(refused("s3://logs", named).starts_with("cluster.log_endpoint must begin"));
        assert!(refused("s3://", BucketAccess::default()).starts_with("cluster.log must name a bucket"));
        // A key that could not have its effect.
        assert!(refused("file:///a", access).starts_with("cluster.log must begin with s3://"));
    }

    #[cfg(not(feature = "s3"))]
    #[test]
    fn a_build_without_s3_refuses_a_bucket() {
        assert!(parse("s3://logs").unwrap_err().to_string().contains("the feature s3"));
    }
}

//! The operator's configuration: a TOML file for `baton serve`, read once.
//!
//! Owns the names, defaults and bounds of all settings. Each key has its unit in its name or its value. An unknown key
//! is an error. Must not know how a setting is used.

use std::{
    fmt, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use baton_cluster::settings::ClusterSettings;
use serde::{Deserialize, Serialize};

use self::file::File;
use crate::{
    blobs::BucketOptions,
    broker::{AgentLimits, BrokerLimits, Settings, jwt::TokenTerms},
    policy::Policies,
    traces::Options as TraceOptions,
};

mod checks;
mod cluster;
mod file;
mod gateway;
mod overrides;
mod policy_source;
mod sections;

pub use gateway::{DEFAULT_GATEWAY_LISTEN, GatewaySettings};
pub use overrides::Overrides;
pub use policy_source::{Enrollment, PolicySource, PolicySourceError};

/// The configuration of a broker.
#[derive(Debug, Clone)]
pub struct Config {
    /// The listen address; port 0 selects a free port.
    pub listen: SocketAddr,
    /// The address of `GET /metrics`, over plain HTTP. `None`: off.
    pub metrics: Option<SocketAddr>,
    /// Whether the metrics may have an address that is not loopback.
    pub metrics_public: bool,
    /// Where spans go, and how many.
    pub traces: TraceOptions,
    /// The bucket of complete blobs. `None`: they are in the data folder.
    pub blob_bucket: Option<BucketOptions>,
    /// The data folder.
    pub data: PathBuf,
    /// The source of the server's certificate.
    pub tls: TlsSource,
    /// Whether the broker takes connections without TLS. Only on loopback.
    pub plaintext_allowed: bool,
    /// The gateway in the broker's process.
    pub gateway: GatewaySettings,
    /// The external signer of operator tokens, if any.
    pub operators: Option<OperatorTokens>,
    /// The source of the policies.
    pub policy: PolicySource,
    /// Whether enrollment may be open on an address that other machines reach. Only in development.
    pub network_allowed: bool,
    /// The policies, as they were when the configuration was read.
    pub policies: Arc<Policies>,
    /// The settings of the protocol.
    pub settings: Settings,
    /// The cluster of which the broker is a member. `None`: a broker alone.
    pub cluster: Option<ClusterSettings>,
}

/// JSON Web Tokens of operators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperatorTokens {
    /// The signer's public key, a PEM file, or a JSON Web Key Set.
    pub keys: PathBuf,
    /// What a token must have, besides a signature.
    pub terms: TokenTerms,
}

/// The source of the server's certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TlsSource {
    /// A CA of the broker's own, created in its data folder.
    Development {
        /// The names in the certificate, besides those of this machine and the listen address.
        names: Vec<String>,
    },
    /// PEM files.
    Files {
        /// The certificate, followed by the chain to a CA.
        certificate: PathBuf,
        /// The certificate's private key.
        key: PathBuf,
        /// The requirements on client certificates, if any.
        clients: Option<ClientCertificates>,
        /// The oldest accepted version of TLS.
        minimum: MinimumTls,
    },
}

/// Client certificates, with which an agent proves its identity without a challenge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCertificates {
    /// The CA that issues the certificates, a PEM file.
    pub ca: PathBuf,
    /// The CA's revocation list, a PEM file.
    pub crl: Option<PathBuf>,
    /// Whether a client without a certificate is refused.
    pub required: bool,
}

/// The oldest accepted version of TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum MinimumTls {
    /// TLS 1.2.
    #[default]
    #[serde(rename = "1.2")]
    V1_2,
    /// TLS 1.3.
    #[serde(rename = "1.3")]
    V1_3,
}

/// The reason why a configuration is refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("failed to read the configuration {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The file is not valid TOML, or has an unknown key or an invalid value.
    #[error("failed to read the configuration {}: {source}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// The error, with line and column.
        source: Box<toml::de::Error>,
    },
    /// A variable of the environment with the prefix of settings is none, or has an invalid value.
    #[error("failed to use {name} of the environment: {problem}")]
    Environment {
        /// The name of the variable.
        name: String,
        /// Why it is refused.
        problem: String,
    },
    /// A value or combination of values is refused.
    #[error("failed to use the configuration: {0}")]
    Refused(String),
}

/// What a developer chooses.
#[derive(Debug, Clone)]
pub struct Development {
    /// The listen address; port 0 selects a free port.
    pub listen: SocketAddr,
    /// The data folder.
    pub data: PathBuf,
    /// The policy. `None`: any caller may register agents.
    pub policy: Option<PathBuf>,
    /// Whether the broker takes connections without TLS.
    pub plaintext_allowed: bool,
    /// Whether the broker takes envelopes without a signature.
    pub unsigned_allowed: bool,
    /// The address of `GET /metrics`.
    pub metrics: Option<SocketAddr>,
    /// The address of the gateway. `None`: no gateway.
    pub gateway: Option<SocketAddr>,
    /// Further names in the certificate.
    pub names: Vec<String>,
    /// Whether other machines may reach the broker and its metrics.
    pub network_allowed: bool,
}

impl Development {
    /// The usual choices, for this address and data folder.
    pub fn new(listen: SocketAddr, data: PathBuf) -> Self {
        Self {
            listen,
            data,
            policy: None,
            plaintext_allowed: false,
            unsigned_allowed: false,
            metrics: None,
            gateway: None,
            names: Vec::new(),
            network_allowed: false,
        }
    }
}

impl Config {
    /// The configuration of `baton dev`: a CA of its own, and open enrollment unless a policy is given.
    pub fn development(chosen: Development) -> Result<Self, ConfigError> {
        let Development {
            listen,
            data,
            policy,
            plaintext_allowed,
            unsigned_allowed,
            metrics,
            names,
            network_allowed,
            ..
        } = chosen;
        // All clients are on this machine and count as one network, so that network may use every limit in full.
        let defaults = BrokerLimits::default();
        let broker_limits = BrokerLimits { connections_max: 32_768, network_percent_max: 100, ..defaults };
        // Nor does one agent hurt another by what it reads: on a developer's machine all of them belong to one person.
        let limits = AgentLimits { cpu_ms_per_second: 0, operator_cpu_ms_per_second: 0, ..AgentLimits::default() };
        let settings = Settings { unsigned_allowed, limits, broker_limits, console: true, ..Settings::default() };
        let policy = policy.map_or(PolicySource::BuiltIn(Enrollment::Open), PolicySource::Path);
        let mut gateway = GatewaySettings::of_data(&data);
        if let Some(listen) = chosen.gateway {
            // The developer alone adds webhooks, and tries them on this machine.
            (gateway.enabled, gateway.listen, gateway.allow_local_targets) = (true, listen, true);
            gateway.allow_hosts = names.join(",");
        }
        let tls = TlsSource::Development { names };
        let metrics_public = network_allowed;
        // All else is as with an empty file.
        let defaults = File::default().config()?;
        Self {
            listen,
            metrics,
            metrics_public,
            data,
            tls,
            plaintext_allowed,
            network_allowed,
            gateway,
            policy,
            settings,
            ..defaults
        }
        .checked()
    }

    /// Reads a configuration file. Settings of the environment take precedence.
    pub fn read(path: &Path, overrides: &Overrides) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.into(), source })?;
        Self::parse_with(path, &text, overrides)
    }

    /// Parses the text of a configuration file with these settings in place of its own.
    pub(crate) fn parse_with(path: &Path, text: &str, overrides: &Overrides) -> Result<Self, ConfigError> {
        if overrides.is_empty() {
            return Self::parse(path, text);
        }
        let refused = |source: toml::de::Error| ConfigError::Parse { path: path.into(), source: Box::new(source) };
        let mut table: toml::Table = toml::from_str(text).map_err(refused)?;
        overrides.apply(&mut table);
        let file: File = match table.try_into() {
            Ok(file) => file,
            // The same error of the text alone has a line.
            Err(error) => {
                let of_text = toml::from_str::<File>(text).err();
                let same = of_text.filter(|of_text| of_text.message() == error.message());
                return Err(refused(same.unwrap_or(error)));
            }
        };
        file.config()?.checked()
    }

    /// Loads the policies anew.
    pub fn load_policies(&self) -> Result<Arc<Policies>, PolicySourceError> {
        let policies = self.policy.load(self.listen, self.network_allowed)?;
        if let Some(cluster) = &self.cluster {
            cluster::check_policies(cluster, &policies)?;
        }
        Ok(policies)
    }

    /// Parses the text of a configuration file; `path` is used in errors.
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let file: File = toml::from_str(text)
            .map_err(|source| ConfigError::Parse { path: path.into(), source: Box::new(source) })?;
        file.config()?.checked()
    }

    /// The whole configuration as TOML, with every default. Parsing it gives the same configuration.
    pub fn to_toml(&self) -> String {
        // A table sorts its keys; the fields of a struct would be in their own order.
        let table = toml::Table::try_from(File::of(self));
        table.and_then(|table| toml::to_string(&table)).expect("text, numbers and tables are TOML")
    }
}

impl fmt::Display for TlsSource {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Development { .. } => formatter.write_str("development CA"),
            Self::Files { certificate, .. } => write!(formatter, "{}", certificate.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{broker::DEFAULT_LISTEN, domain::handoff::Timeouts};

    const TLS: &str = "[tls]\ncertificate = \"c.pem\"\nkey = \"k.pem\"\n";

    fn read(text: &str) -> Result<Config, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("baton.toml");
        std::fs::write(&path, text).unwrap();
        Config::read(&path, &Overrides::default()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_file_with_only_tls_has_the_defaults() {
        let config = read(TLS).unwrap();
        assert_eq!(config.listen.to_string(), DEFAULT_LISTEN);
        assert_eq!(config.settings.timeouts, Timeouts::default());
        assert_eq!(config.policy, PolicySource::BuiltIn(Enrollment::Operator));
    }

    #[test]
    fn what_is_set_is_used() {
        let text =
            format!("listen = \"[::1]:1\"\n{TLS}[handoff]\naccept_timeout_ms = 1500\n[delivery]\nack_wait_ms = 7\n");
        let config = read(&text).unwrap();
        assert_eq!(config.settings.timeouts.accept, Duration::from_millis(1500));
        assert_eq!(config.settings.ack_wait, Duration::from_millis(7));
    }

    const CLUSTER: &str =
        "[cluster]\nbroker = \"b1\"\nlog = \"file:///log\"\nkeys = \"k\"\npeer_address = \"127.0.0.1:22867\"\n";

    #[test]
    fn a_cluster_has_defaults_and_needs_four_keys() {
        assert_eq!(read(TLS).unwrap().cluster, None);
        let cluster = read(&format!("{TLS}{CLUSTER}")).unwrap().cluster.unwrap();
        assert_eq!((cluster.name.as_str(), cluster.peer_listen.to_string().as_str()), ("baton", "0.0.0.0:22867"));
        assert_eq!((cluster.lease, cluster.log_keep), (Duration::from_secs(5), Duration::from_secs(24 * 60 * 60)));
        assert_eq!(cluster.log_bytes_max, 10 * 1024 * 1024 * 1024);
        for key in ["broker", "log", "keys", "peer_address"] {
            let without: String =
                CLUSTER.lines().filter(|line| !line.starts_with(key)).map(|line| format!("{line}\n")).collect();
            let error = read(&format!("{TLS}{without}")).unwrap_err();
            assert!(error.contains(&format!("cluster.{key} is missing")), "{error}");
        }
    }

    #[test]
    fn settings_of_a_cluster_are_bounded() {
        for (line, part) in [
            ("lease = \"500ms\"", "cluster.lease is 500ms, and must be from 1s to 1m"),
            ("lease_ms = 60001", "cluster.lease"),
            ("lease = \"5s\"\nlease_ms = 5000", "are the same"),
            ("log_keep = \"1s\"", "cluster.log_keep"),
            ("log_bytes_max = 1", "cluster.log_bytes_max"),
            ("name = \"a b\"", "cluster.name"),
            ("quorum = 2", "quorum"),
        ] {
            let error = read(&format!("{TLS}{CLUSTER}{line}\n")).unwrap_err();
            assert!(error.contains(part), "{line:?} gives {error:?}");
        }
        let error = read(&format!("{TLS}{}", CLUSTER.replace("file:///log", "mysql://u:secret@h"))).unwrap_err();
        assert!(error.contains("cluster.log must begin with") && !error.contains("secret"), "{error}");
    }

    #[test]
    fn development_settings_are_refused_in_a_cluster_that_other_machines_reach() {
        let local = "listen = \"127.0.0.1:1\"\n";
        for (top, in_tls) in
            [("allow_unsigned = true\n", ""), ("enrollment = \"open\"\n", ""), ("", "allow_plaintext = true\n")]
        {
            let with = |cluster: &str| read(&format!("{local}{top}{TLS}{in_tls}{cluster}"));
            assert!(with(&format!("{CLUSTER}peer_listen = \"127.0.0.1:22867\"\n")).is_ok());
            for cluster in [
                CLUSTER.to_owned(),
                format!("{CLUSTER}peer_listen = \"10.0.0.1:22867\"\n"),
                CLUSTER.replace("127.0.0.1", "b1.internal") + "peer_listen = \"127.0.0.1:22867\"\n",
            ] {
                let error = with(&cluster).unwrap_err();
                assert!(error.contains("only for development") && error.contains("cluster.peer_listen"), "{error}");
            }
        }
    }

    #[cfg(feature = "s3")]
    #[test]
    fn a_bucket_as_the_log_is_printed_as_it_is_read() {
        let access = "log_endpoint = \"http://h:1\"\nlog_region = \"eu-west-1\"\nlog_allow_http = true\n";
        let text = format!("{TLS}{}{access}", CLUSTER.replace("file:///log", "s3://logs/team"));
        let config = read(&text).unwrap();
        let printed = config.to_toml();
        for line in access.lines() {
            assert!(printed.lines().any(|printed| printed == line), "{line} is not in {printed}");
        }
        assert_eq!(read(&printed).unwrap().cluster, config.cluster);
        for (wrong, part) in [
            (text.replace("log_allow_http = true\n", ""), "cluster.log_endpoint has no TLS"),
            (text.replace("http://h:1", "h:1"), "cluster.log_endpoint must begin with"),
            (format!("{TLS}{CLUSTER}log_region = \"eu-west-1\"\n"), "cluster.log must begin with s3://"),
        ] {
            let error = read(&wrong).unwrap_err();
            assert!(error.contains(part), "{wrong} gives {error:?}");
        }
    }

    #[test]
    fn the_password_of_a_log_is_not_printed() {
        let cluster = CLUSTER.replace("file:///log", "postgres://baton:secret@db/baton?sslmode=require");
        let printed = read(&format!("{TLS}{cluster}")).unwrap().to_toml();
        assert!(
            printed.contains("postgres://baton@db/baton?sslmode=require") && !printed.contains("secret"),
            "{printed}"
        );
    }

    #[test]
    fn a_token_of_an_operator_has_a_leeway_of_a_minute_unless_another_is_set() {
        let leeway = |text: &str| {
            let text = format!("{TLS}[operators]\nkeys = \"o\"\naudience = \"u\"\n{text}");
            read(&text).map(|config| config.operators.unwrap().terms.leeway)
        };
        assert_eq!(leeway(""), Ok(Duration::from_secs(60)));
        assert_eq!(leeway("leeway = \"5s\"\n"), Ok(Duration::from_secs(5)));
        assert_eq!(leeway("leeway_ms = 0\n"), Ok(Duration::ZERO));
        assert!(leeway("leeway_ms = 0\nleeway = \"5s\"\n").unwrap_err().contains("are the same"));
    }

    #[test]
    fn what_is_kept_for_good_is_said_by_0() {
        let text = format!(
            "{TLS}[retention]\nended_tasks_ms = 0\nsettled_dead_letters_ms = 5000\nstore_bytes_max = 7000000000\n"
        );
        let retention = read(&text).unwrap().settings.retention;
        assert_eq!(retention.ended_tasks, None);
        assert_eq!(retention.settled_dead_letters, Some(Duration::from_secs(5)));
        assert_eq!(retention.store_bytes_max, Some(7_000_000_000));
        assert_eq!(retention.message_ids, Duration::from_secs(48 * 60 * 60));
        assert_eq!(read(TLS).unwrap().settings.retention, crate::broker::Retention::default());
    }

    #[test]
    fn a_span_is_in_words_or_in_milliseconds() {
        let spans =
            |text: &str| read(&format!("{TLS}[handoff]\n{text}\n")).map(|config| config.settings.timeouts.accept);
        for (text, milliseconds) in [
            ("accept_timeout = \"30s\"", 30_000),
            ("accept_timeout = \"1m 30s\"", 90_000),
            ("accept_timeout = \"250ms\"", 250),
            ("accept_timeout_ms = 1500", 1500),
        ] {
            assert_eq!(spans(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
        for (text, part) in [
            ("accept_timeout = 30", "_ms"),
            ("accept_timeout = \"30\"", "30s"),
            ("accept_timeout = \"soon\"", "soon"),
            ("accept_timeout_ms = \"30s\"", "line"),
            ("accept_timeout = \"30s\"\naccept_timeout_ms = 30000", "are the same"),
        ] {
            let error = spans(text).unwrap_err();
            assert!(error.contains(part), "{text:?} gives {error:?}");
        }
        let kept = read(&format!("{TLS}[retention]\nended_tasks = \"0s\"\n")).unwrap();
        assert_eq!(kept.settings.retention.ended_tasks, None);
    }

    #[test]
    fn what_is_printed_is_read_as_the_same() {
        let full = format!(
            "listen = \"127.0.0.1:7\"\ndata = \"d\"\nenrollment = \"open\"\nallow_unsigned = true\n{TLS}client_ca = \"a\"\n\
             client_crl = \"l\"\nclient_certificate = \"required\"\nmin_version = \"1.3\"\nallow_plaintext = true\n\
             [operators]\nkeys = \"o\"\naudience = \"u\"\nissuer = \"i\"\nleeway = \"5s\"\ngroups_claim = \"g\"\n[handoff]\naccept_timeout_ms = 1501\n\
             [retention]\nended_tasks_ms = 0\nstore_bytes_max = 7000000000\n[broker_limits]\nframe_bytes_max = 0\n\
             [blobs]\nurl = \"s3://b/one\"\nendpoint = \"http://h:1\"\nregion = \"eu-west-1\"\nallow_http = true\n\
             {CLUSTER}name = \"n\"\npeer_listen = \"127.0.0.1:5\"\nlease = \"2s\"\nlog_keep_ms = 60000\nlog_bytes_max = 67108864\n"
        );
        for text in [TLS, &full] {
            let config = read(text).unwrap();
            let printed = config.to_toml();
            let again = read(&printed).unwrap_or_else(|error| panic!("{error}\n{printed}"));
            // The policies are loaded again; all other fields are compared.
            let whole = |config: &Config| format!("{:?}", Config { policies: Policies::built_in(), ..config.clone() });
            assert_eq!(whole(&again), whole(&config), "{printed}");
            assert_eq!(again.to_toml(), printed);
        }
    }

    #[test]
    fn a_broken_file_is_refused_with_file_and_line() {
        for (text, part) in [
            (format!("listn = \"\"\n{TLS}"), "listn"),
            (format!("listen = \"nowhere\"\n{TLS}"), "line 1"),
            (String::new(), "tls"),
            (format!("{TLS}[handoff]\naccept_timeout_ms = 0\n"), "accept_timeout"),
            (format!("{TLS}[handoff]\nhandoffs_max = 17\n"), "handoffs_max"),
            (format!("{TLS}[broker_limits]\nwindow_bytes = 1\n"), "window_bytes"),
            (format!("{TLS}[broker_limits]\nconnection_window_bytes = 65535\n"), "connection_window_bytes"),
            (format!("{TLS}[broker_limits]\nnetwork_percent_max = 0\n"), "network_percent_max"),
            (format!("{TLS}[broker_limits]\nframe_bytes_max = 1\n"), "frame_bytes_max"),
            (format!("{TLS}[broker_limits]\nkeepalive_timeout_ms = 0\n"), "keepalive_timeout"),
            (format!("{TLS}client_certificate = \"required\"\n"), "tls.client_ca"),
            (format!("{TLS}min_version = \"1.1\"\n"), "1.1"),
            (format!("{TLS}[session]\npresence_lease_ms = 1000\n"), "presence_lease"),
            (format!("{TLS}[retention]\nmessage_ids_ms = 1000\n"), "message_ids"),
            (format!("{TLS}[workspace]\nbytes_max = 1048575\n"), "bytes_max"),
            (format!("{TLS}[workspace]\nentry_lifetime_ms = 0\n"), "entry_lifetime"),
            (format!("{TLS}[workspace]\ntopics_max = 0\n"), "topics_max"),
            (format!("{TLS}[negotiation]\noffers_timeout = \"2h\"\n"), "offers_timeout"),
            (format!("{TLS}[negotiation]\ndecision_timeout_ms = 0\n"), "decision_timeout"),
            (format!("{TLS}[plan]\nmax_concurrency = 65\n"), "max_concurrency"),
            (format!("{TLS}[plan]\nwhole_timeout_ms = 0\n"), "whole_timeout"),
            (format!("{TLS}[plan]\ndata_flow_check = \"LAX\"\n"), "data_flow_check"),
            (format!("{TLS}[retention]\nstore_bytes_max = 1000\n"), "store_bytes_max"),
            (format!("{TLS}[blobs]\nurl = \"gs://b\"\n"), "blobs.url"),
            (format!("{TLS}[blobs]\nurl = \"s3://key:secret@b\"\n"), "blobs.url"),
            (format!("{TLS}[blobs]\nregion = \"eu-west-1\"\n"), "blobs.url"),
            (format!("{TLS}[blobs]\nurl = \"s3://b\"\nendpoint = \"http://h:1\"\n"), "allow_http"),
            (format!("{TLS}[blobs]\nurl = \"s3://b\"\nendpoint = \"h:1\"\n"), "blobs.endpoint"),
            (format!("{TLS}[retention]\nended_tasks_days = 1\n"), "ended_tasks_days"),
            (format!("{TLS}[operators]\nkeys = \"o\"\naudience = \"u\"\nleeway = \"11m\"\n"), "operators.leeway"),
            (format!("{TLS}[operators]\nkeys = \"o\"\naudience = \"u\"\ngroups_claim = \"\"\n"), "groups_claim"),
            (format!("listen = \"0.0.0.0:1\"\nenrollment = \"open\"\n{TLS}"), "loopback"),
            (format!("listen = \"0.0.0.0:1\"\nallow_unsigned = true\n{TLS}"), "loopback"),
            (format!("listen = \"0.0.0.0:1\"\n{TLS}allow_plaintext = true\n"), "loopback"),
            (format!("enrollment = \"open\"\n{TLS}[policy]\npath = \"p\"\n"), "exclude each other"),
            (format!("{TLS}[policy]\npath = \"/no/such/policy\"\n"), "/no/such/policy"),
        ] {
            let error = read(&text).unwrap_err();
            assert!(error.contains(part), "{text:?} gives {error:?}");
        }
        let missing = Config::read(Path::new("/no/such/baton.toml"), &Overrides::default()).unwrap_err().to_string();
        assert!(missing.contains("/no/such/baton.toml"), "{missing}");
    }
}

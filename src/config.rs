//! The operator's configuration: a TOML file for `baton serve`, read once.
//!
//! Owns the names, defaults and bounds of all settings. Each key has its unit in its name or its value. An unknown key
//! is an error. Must not know how a setting is used.

use std::{
    fmt, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use serde::Deserialize;

use crate::{
    blobs::BucketOptions,
    broker::{AgentLimits, BrokerLimits, DEFAULT_DATA, DEFAULT_LISTEN, Settings},
    domain::{
        TimeoutBounds,
        handoff::{LoopLimits, Timeouts},
    },
    policy::Policies,
    traces::Options as TraceOptions,
};

mod checks;
mod console;
mod limits;
mod plan;
mod policy_source;
mod print;
mod traces;
mod workspace;

pub use policy_source::{Enrollment, PolicySource, PolicySourceError};
use print::{sections, table, text_of};

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
    /// The external signer of operator tokens, if any.
    pub operators: Option<OperatorTokens>,
    /// The source of the policies.
    pub policy: PolicySource,
    /// The policies, as they were when the configuration was read.
    pub policies: Arc<Policies>,
    /// The settings of the protocol.
    pub settings: Settings,
}

/// JSON Web Tokens of operators.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OperatorTokens {
    /// The signer's public key, a PEM file, or a JSON Web Key Set.
    pub keys: PathBuf,
    /// The required `aud` claim.
    pub audience: String,
    /// The required `iss` claim, if any.
    pub issuer: Option<String>,
}

/// The source of the server's certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TlsSource {
    /// A CA of the broker's own, created in its data folder.
    Development,
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
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
    /// A value or combination of values is refused.
    #[error("failed to use the configuration: {0}")]
    Refused(String),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default = "default_listen")]
    listen: SocketAddr,
    #[serde(default = "default_data")]
    data: PathBuf,
    enrollment: Option<Enrollment>,
    #[serde(default)]
    allow_unsigned: bool,
    tls: TlsSection,
    #[serde(default)]
    handoff: HandoffSection,
    #[serde(default)]
    delivery: DeliverySection,
    #[serde(default)]
    session: SessionSection,
    #[serde(default)]
    limits: LimitsSection,
    #[serde(default)]
    retention: RetentionSection,
    #[serde(default)]
    context: ContextSection,
    #[serde(default)]
    blobs: BlobsSection,
    #[serde(default)]
    workspace: WorkspaceSection,
    #[serde(default)]
    plan: PlanSection,
    #[serde(default)]
    broker_limits: BrokerLimitsSection,
    #[serde(default)]
    metrics: MetricsSection,
    #[serde(default)]
    traces: traces::TracesSection,
    #[serde(default)]
    console: console::ConsoleSection,
    operators: Option<OperatorTokens>,
    policy: Option<PolicySection>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct MetricsSection {
    listen: Option<SocketAddr>,
    #[serde(default)]
    allow_public: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ContextSection {
    #[serde(default)]
    require_registered_schemas: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicySection {
    path: PathBuf,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TlsSection {
    certificate: PathBuf,
    key: PathBuf,
    client_ca: Option<PathBuf>,
    client_crl: Option<PathBuf>,
    #[serde(default)]
    client_certificate: ClientCertificate,
    #[serde(default)]
    min_version: MinimumTls,
    #[serde(default)]
    allow_plaintext: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ClientCertificate {
    #[default]
    Optional,
    Required,
}

impl TlsSection {
    fn source(self) -> Result<TlsSource, ConfigError> {
        let required = self.client_certificate == ClientCertificate::Required;
        let clients = match self.client_ca {
            Some(ca) => Some(ClientCertificates { ca, crl: self.client_crl, required }),
            // Without a CA no client certificate can be verified, so these settings could not have their effect.
            None if required || self.client_crl.is_some() => {
                let problem = "tls.client_certificate and tls.client_crl need tls.client_ca".to_owned();
                return Err(ConfigError::Refused(problem));
            }
            None => None,
        };
        Ok(TlsSource::Files { certificate: self.certificate, key: self.key, clients, minimum: self.min_version })
    }
}

/// Defines a section. A span has two keys: one with a unit in its value (`accept_timeout = "30s"`), and one that ends
/// in `_ms` for a number of milliseconds. Keys of other types follow the semicolon.
macro_rules! section {
    ($name:ident, $title:literal, { $($span:ident / $span_ms:ident),* $(,)? ; $($field:ident: $type:ty),* $(,)? }) => {
        #[derive(Debug, Default, Deserialize)]
        #[serde(deny_unknown_fields)]
        struct $name {
            $($span: Option<Words>, $span_ms: Option<u64>,)*
            $($field: Option<$type>,)*
        }

        impl $name {
            $(fn $span(&self) -> Option<Duration> {
                self.$span.map(|words| words.0).or_else(|| self.$span_ms.map(Duration::from_millis))
            })*

            /// Refuses a span that both of its keys set.
            fn check(&self) -> Result<(), ConfigError> {
                $(if self.$span.is_some() && self.$span_ms.is_some() {
                    let [title, words, number] = [$title, stringify!($span), stringify!($span_ms)];
                    let problem = format!("{title}.{words} and {title}.{number} are the same; name one of them");
                    return Err(ConfigError::Refused(problem));
                })*
                Ok(())
            }
        }
    };
}

/// A span as text: "30s", "1h 30m", "250ms".
#[derive(Debug, Clone, Copy)]
struct Words(Duration);

impl<'de> Deserialize<'de> for Words {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Words;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(
                    "a span with its unit in quotes, such as \"30s\"; a number alone has a key that ends in _ms",
                )
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Words, E> {
                humantime::parse_duration(text).map(Words).map_err(|error| {
                    E::custom(format!("{text:?} is not a span such as \"30s\", \"250ms\" or \"1h 30m\": {error}"))
                })
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

section!(HandoffSection, "handoff", {
    accept_timeout / accept_timeout_ms,
    context_timeout / context_timeout_ms,
    complete_timeout / complete_timeout_ms,
    whole_timeout / whole_timeout_ms,
    timeout_min / timeout_min_ms,
    timeout_max / timeout_max_ms;
    handoffs_max: u32,
    handoffs_per_pair_max: u32,
});

section!(DeliverySection, "delivery", {
    ack_wait / ack_wait_ms,
    extension_max / extension_max_ms,
    mail_lifetime / mail_lifetime_ms;
});

section!(SessionSection, "session", {
    clock_window / clock_window_ms,
    heartbeat_interval / heartbeat_interval_ms,
    presence_lease / presence_lease_ms;
});

section!(RetentionSection, "retention", {
    message_ids / message_ids_ms,
    ended_tasks / ended_tasks_ms,
    settled_dead_letters / settled_dead_letters_ms,
    audit / audit_ms;
    store_bytes_max: u64,
    audit_entries_max: u64,
});

section!(WorkspaceSection, "workspace", {
    entry_lifetime / entry_lifetime_ms;
    bytes_max: u64,
    entries_max: u64,
    topics_max: u64,
});

section!(PlanSection, "plan", {
    dependency_timeout / dependency_timeout_ms,
    whole_timeout / whole_timeout_ms;
    enabled: bool,
    max_concurrency: u32,
    pass_results: bool,
    pass_dependency_results: bool,
    extract_numeric: bool,
    data_flow_check: plan::Check,
});

section!(BlobsSection, "blobs", {
    unheld_lifetime / unheld_lifetime_ms;
    blob_bytes_max: u64,
    agent_bytes_max: u64,
    agent_uploads_max: u32,
    url: String,
    endpoint: String,
    region: String,
    allow_http: bool,
});

section!(BrokerLimitsSection, "broker_limits", {
    frame_timeout / frame_timeout_ms,
    keepalive_interval / keepalive_interval_ms,
    keepalive_timeout / keepalive_timeout_ms;
    connections_max: u32,
    handshakes_max: u32,
    calls_max: u32,
    calls_per_connection_max: u32,
    frame_bytes_max: u64,
    network_percent_max: u32,
    window_bytes: u32,
    connection_window_bytes: u32,
    agents_max: u32,
    card_bytes_max: u64,
});

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitsSection {
    messages_per_second: Option<u32>,
    bytes_per_second: Option<u32>,
    open_handoffs_max: Option<u32>,
    open_negotiations_max: Option<u32>,
    running_plans_max: Option<u32>,
    mailbox_max: Option<u32>,
    sessions_max: Option<u32>,
    card_changes_per_minute: Option<u32>,
}

fn default_listen() -> SocketAddr {
    DEFAULT_LISTEN.parse().expect("the default is an address")
}

fn default_data() -> PathBuf {
    DEFAULT_DATA.into()
}

impl Config {
    /// The configuration of `baton dev`: a CA of its own, and open enrollment unless a policy is given.
    pub fn development(
        listen: SocketAddr,
        data: PathBuf,
        policy: Option<PathBuf>,
        plaintext_allowed: bool,
        unsigned_allowed: bool,
        metrics: Option<SocketAddr>,
    ) -> Result<Self, ConfigError> {
        // All clients are on this machine and count as one network, so that network may use every limit in full.
        let defaults = BrokerLimits::default();
        let broker_limits = BrokerLimits { connections_max: 32_768, network_percent_max: 100, ..defaults };
        let settings = Settings { unsigned_allowed, broker_limits, console: true, ..Settings::default() };
        let policy = policy.map_or(PolicySource::BuiltIn(Enrollment::Open), PolicySource::Path);
        let tls = TlsSource::Development;
        let metrics_public = false;
        let (traces, operators, blob_bucket) = (TraceOptions::default(), None, None);
        Self {
            listen,
            metrics,
            metrics_public,
            traces,
            blob_bucket,
            data,
            tls,
            plaintext_allowed,
            operators,
            policy,
            policies: Policies::built_in(),
            settings,
        }
        .checked()
    }

    /// Reads a configuration file.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.into(), source })?;
        Self::parse(path, &text)
    }

    /// Parses the text of a configuration file; `path` is used in errors.
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let file: File = toml::from_str(text)
            .map_err(|source| ConfigError::Parse { path: path.into(), source: Box::new(source) })?;
        // Before `settings`, which would prefer one of two keys for the same span without a word.
        file.check()?;
        let settings = file.settings();
        let blob_bucket = file.blobs.bucket()?;
        let plaintext_allowed = file.tls.allow_plaintext;
        let tls = file.tls.source()?;
        let policy = match (file.policy, file.enrollment) {
            (None, enrollment) => PolicySource::BuiltIn(enrollment.unwrap_or(Enrollment::Operator)),
            (Some(section), None) => PolicySource::Path(section.path),
            (Some(_), Some(_)) => {
                let problem =
                    "enrollment and policy.path exclude each other: the policy decides which agents may enroll";
                return Err(ConfigError::Refused(problem.to_owned()));
            }
        };
        let File { listen, data, operators, metrics, traces, .. } = file;
        let MetricsSection { listen: metrics, allow_public: metrics_public } = metrics;
        let traces = traces.options();
        Self {
            listen,
            metrics,
            metrics_public,
            traces,
            blob_bucket,
            data,
            tls,
            plaintext_allowed,
            operators,
            policy,
            policies: Policies::built_in(),
            settings,
        }
        .checked()
    }

    /// The whole configuration as TOML, with every default. Parsing it gives the same configuration.
    pub fn to_toml(&self) -> String {
        let settings = &self.settings;
        let mut file = toml::Table::new();
        file.insert("listen".to_owned(), self.listen.to_string().into());
        file.insert("data".to_owned(), text_of(&self.data));
        if let PolicySource::BuiltIn(enrollment) = self.policy {
            let word = match enrollment {
                Enrollment::Operator => "operator",
                Enrollment::Open => "open",
            };
            file.insert("enrollment".to_owned(), word.into());
        }
        file.insert("allow_unsigned".to_owned(), settings.unsigned_allowed.into());
        file.insert("tls".to_owned(), self.tls.to_toml(self.plaintext_allowed).into());
        if let PolicySource::Path(path) = &self.policy {
            file.insert("policy".to_owned(), table([("path", text_of(path))]).into());
        }
        let mut metrics = table([("allow_public", self.metrics_public.into())]);
        metrics.extend(self.metrics.map(|listen| ("listen".to_owned(), listen.to_string().into())));
        file.insert("metrics".to_owned(), metrics.into());
        file.insert("traces".to_owned(), traces::to_toml(&self.traces).into());
        file.insert("console".to_owned(), console::to_toml(self.settings.console).into());
        if let Some(OperatorTokens { keys, audience, issuer }) = &self.operators {
            let mut tokens = table([("keys", text_of(keys)), ("audience", audience.clone().into())]);
            tokens.extend(issuer.clone().map(|issuer| ("issuer".to_owned(), issuer.into())));
            file.insert("operators".to_owned(), tokens.into());
        }
        for (name, mut section) in sections(settings) {
            if let (Some(bucket), "blobs") = (&self.blob_bucket, name) {
                section.extend(print::bucket(bucket));
            }
            file.insert(name.to_owned(), section.into());
        }
        toml::to_string(&file).expect("text, numbers and tables are TOML")
    }
}

impl File {
    /// Refuses a section with a span under both of its keys.
    fn check(&self) -> Result<(), ConfigError> {
        self.handoff.check()?;
        self.delivery.check()?;
        self.session.check()?;
        self.retention.check()?;
        self.workspace.check()?;
        self.plan.check()?;
        self.blobs.check()?;
        self.broker_limits.check()
    }

    fn settings(&self) -> Settings {
        let defaults = Settings::default();
        Settings {
            clock_window: self.session.clock_window().unwrap_or(defaults.clock_window),
            heartbeat_interval: self.session.heartbeat_interval().unwrap_or(defaults.heartbeat_interval),
            presence_lease: self.session.presence_lease().unwrap_or(defaults.presence_lease),
            mail_lifetime: self.delivery.mail_lifetime().unwrap_or(defaults.mail_lifetime),
            ack_wait: self.delivery.ack_wait().unwrap_or(defaults.ack_wait),
            extension_max: self.delivery.extension_max().unwrap_or(defaults.extension_max),
            timeouts: Timeouts {
                accept: self.handoff.accept_timeout().unwrap_or(defaults.timeouts.accept),
                context: self.handoff.context_timeout().unwrap_or(defaults.timeouts.context),
                complete: self.handoff.complete_timeout().unwrap_or(defaults.timeouts.complete),
                whole: self.handoff.whole_timeout().unwrap_or(defaults.timeouts.whole),
            },
            timeout_bounds: TimeoutBounds {
                shortest: self.handoff.timeout_min().unwrap_or(defaults.timeout_bounds.shortest),
                longest: self.handoff.timeout_max().unwrap_or(defaults.timeout_bounds.longest),
            },
            loop_limits: LoopLimits {
                handoffs_max: self.handoff.handoffs_max.unwrap_or(defaults.loop_limits.handoffs_max),
                handoffs_per_pair_max: self
                    .handoff
                    .handoffs_per_pair_max
                    .unwrap_or(defaults.loop_limits.handoffs_per_pair_max),
            },
            refusals_recorded_max: defaults.refusals_recorded_max,
            mail_recorded_max: defaults.mail_recorded_max,
            limits: AgentLimits {
                messages_per_second: self.limits.messages_per_second.unwrap_or(defaults.limits.messages_per_second),
                bytes_per_second: self.limits.bytes_per_second.unwrap_or(defaults.limits.bytes_per_second),
                open_handoffs_max: self.limits.open_handoffs_max.unwrap_or(defaults.limits.open_handoffs_max),
                open_negotiations_max: self
                    .limits
                    .open_negotiations_max
                    .unwrap_or(defaults.limits.open_negotiations_max),
                running_plans_max: self.limits.running_plans_max.unwrap_or(defaults.limits.running_plans_max),
                mailbox_max: self.limits.mailbox_max.unwrap_or(defaults.limits.mailbox_max),
                sessions_max: self.limits.sessions_max.unwrap_or(defaults.limits.sessions_max),
                card_changes_per_minute: self
                    .limits
                    .card_changes_per_minute
                    .unwrap_or(defaults.limits.card_changes_per_minute),
            },
            workspace: self.workspace.limits(),
            blobs: self.blobs.limits(),
            console: self.console.is_enabled(),
            require_registered_schemas: self.context.require_registered_schemas,
            plans_enabled: self.plan.enabled.unwrap_or(defaults.plans_enabled),
            plan_terms: self.plan.terms(),
            retention: self.retention.retention(),
            broker_limits: self.broker_limits.limits(),
            unsigned_allowed: self.allow_unsigned,
        }
    }
}

impl fmt::Display for TlsSource {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Development => formatter.write_str("development CA"),
            Self::Files { certificate, .. } => write!(formatter, "{}", certificate.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TLS: &str = "[tls]\ncertificate = \"c.pem\"\nkey = \"k.pem\"\n";

    fn read(text: &str) -> Result<Config, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("baton.toml");
        std::fs::write(&path, text).unwrap();
        Config::read(&path).map_err(|error| error.to_string())
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
             [operators]\nkeys = \"o\"\naudience = \"u\"\nissuer = \"i\"\n[handoff]\naccept_timeout_ms = 1501\n\
             [retention]\nended_tasks_ms = 0\nstore_bytes_max = 7000000000\n[broker_limits]\nframe_bytes_max = 0\n\
             [blobs]\nurl = \"s3://b/one\"\nendpoint = \"http://h:1\"\nregion = \"eu-west-1\"\nallow_http = true\n"
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
            (format!("listen = \"0.0.0.0:1\"\nenrollment = \"open\"\n{TLS}"), "loopback"),
            (format!("listen = \"0.0.0.0:1\"\nallow_unsigned = true\n{TLS}"), "loopback"),
            (format!("listen = \"0.0.0.0:1\"\n{TLS}allow_plaintext = true\n"), "loopback"),
            (format!("enrollment = \"open\"\n{TLS}[policy]\npath = \"p\"\n"), "exclude each other"),
            (format!("{TLS}[policy]\npath = \"/no/such/policy\"\n"), "/no/such/policy"),
        ] {
            let error = read(&text).unwrap_err();
            assert!(error.contains(part), "{text:?} gives {error:?}");
        }
        let missing = Config::read(Path::new("/no/such/baton.toml")).unwrap_err().to_string();
        assert!(missing.contains("/no/such/baton.toml"), "{missing}");
    }
}

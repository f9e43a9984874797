//! The operator's configuration: a TOML file for `baton serve`, read once.
//!
//! Owns names, defaults and bounds of what can be configured; every key has its unit in its name. An unknown key is an
//! error. Must not know how any of it is used.

use std::{
    fmt, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use serde::Deserialize;

use crate::{
    broker::{AgentLimits, BrokerLimits, Retention, Settings, TimeoutBounds},
    domain::handoff::{LoopLimits, Timeouts},
    policy::{Action, Agent, Policies, PolicyError, Principal, Question, Resource, Source},
};

/// Where a broker listens unless it is told otherwise. Below 32768, where client ports begin; the word baton on a phone.
pub const DEFAULT_LISTEN: &str = "127.0.0.1:22866";
/// Where a broker keeps its data unless it is told otherwise.
pub const DEFAULT_DATA: &str = "baton-data";
/// A store may not be held smaller than this, 1 GiB.
const STORE_BYTES_MIN: u64 = 1 << 30;

/// The least that `broker_limits.frame_bytes_max` can be.
const FRAMES_BYTES_MIN: u64 = 16 * 1024 * 1024;

/// What a broker is started with.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where to listen; port 0 for any that is free.
    pub listen: SocketAddr,
    /// The folder of all its data.
    pub data: PathBuf,
    /// Where the certificate comes from.
    pub tls: TlsSource,
    /// Whether connections without TLS are taken too. Only on loopback.
    pub plaintext_allowed: bool,
    /// Who else signs tokens of operators.
    pub operators: Option<OperatorTokens>,
    /// Who may do what.
    pub policy: PolicySource,
    /// The rules of the protocol.
    pub settings: Settings,
}

/// Where the policies come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PolicySource {
    /// The one that is built in.
    BuiltIn(Enrollment),
    /// A file, or a folder of files.
    Path(PathBuf),
}

/// Who may register a new agent, by the policies that are built in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Enrollment {
    /// An operator, or whoever has an invitation.
    Operator,
    /// Anybody; agents and tasks can be looked at by anybody too. Only for development.
    Open,
}

/// Why policies are not taken.
#[derive(Debug, thiserror::Error)]
pub enum PolicySourceError {
    /// They cannot be read, or are wrong.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// Too open for where the broker listens.
    #[error("{what} is only for development: listen on a loopback address, not {listen}")]
    TooOpen {
        /// What is.
        what: &'static str,
        /// Where the broker listens.
        listen: SocketAddr,
    },
}

impl PolicySource {
    /// Reads them, for a broker that listens there.
    pub fn load(&self, listen: SocketAddr) -> Result<Arc<Policies>, PolicySourceError> {
        let policies = match self {
            Self::BuiltIn(Enrollment::Operator) => Policies::built_in(),
            Self::BuiltIn(Enrollment::Open) => Policies::development(),
            Self::Path(path) => Arc::new(Policies::parse(&Source::read(path)?)?),
        };
        let anybody = Question {
            principal: Principal::Anonymous,
            action: Action::Enroll,
            resource: Resource::Agent(Agent { id: "anybody", types: &[] }),
        };
        if !listen.ip().is_loopback() && policies.decide(&anybody).is_allowed {
            return Err(PolicySourceError::TooOpen { what: "open enrollment", listen });
        }
        Ok(policies)
    }

    /// The files that it is made of, as far as they can be found.
    pub fn files(&self) -> Vec<PathBuf> {
        match self {
            Self::BuiltIn(_) => Vec::new(),
            Self::Path(path) => Source::files(path).unwrap_or_else(|_| vec![path.clone()]),
        }
    }
}

impl fmt::Display for PolicySource {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BuiltIn(Enrollment::Operator) => formatter.write_str("built in, with enrollment by operators"),
            Self::BuiltIn(Enrollment::Open) => formatter.write_str("built in, with open enrollment"),
            Self::Path(path) => write!(formatter, "{}", path.display()),
        }
    }
}

/// JSON Web Tokens of operators.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OperatorTokens {
    /// The public key, a PEM file, or a JSON Web Key Set.
    pub keys: PathBuf,
    /// What `aud` must be.
    pub audience: String,
    /// What `iss` must be, if anything.
    pub issuer: Option<String>,
}

/// Where the server's certificate comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TlsSource {
    /// A CA of the broker's own, made in its data folder.
    Development,
    /// PEM files.
    Files {
        /// The certificate, then those that lead to a CA.
        certificate: PathBuf,
        /// Its key.
        key: PathBuf,
        /// What is asked of clients, if anything.
        clients: Option<ClientCertificates>,
        /// The oldest version of TLS that is spoken.
        minimum: MinimumTls,
    },
}

/// Certificates of clients: how an agent can prove who it is without a challenge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCertificates {
    /// The CA that issues them, a PEM file.
    pub ca: PathBuf,
    /// What it has revoked, a PEM file.
    pub crl: Option<PathBuf>,
    /// Whether a client without one is turned away.
    pub required: bool,
}

/// The oldest version of TLS that is spoken.
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

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("failed to read the configuration {}: {source}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file is not what it should be.
    #[error("failed to read the configuration {}: {source}", path.display())]
    Parse {
        /// Which.
        path: PathBuf,
        /// Where and why.
        source: Box<toml::de::Error>,
    },
    /// A combination that is refused.
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
    broker_limits: BrokerLimitsSection,
    operators: Option<OperatorTokens>,
    policy: Option<PolicySection>,
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
            None if required || self.client_crl.is_some() => {
                let problem = "tls.client_certificate and tls.client_crl need tls.client_ca".to_owned();
                return Err(ConfigError::Refused(problem));
            }
            None => None,
        };
        Ok(TlsSource::Files { certificate: self.certificate, key: self.key, clients, minimum: self.min_version })
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct HandoffSection {
    accept_timeout_ms: Option<u64>,
    context_timeout_ms: Option<u64>,
    complete_timeout_ms: Option<u64>,
    whole_timeout_ms: Option<u64>,
    timeout_min_ms: Option<u64>,
    timeout_max_ms: Option<u64>,
    handoffs_max: Option<u32>,
    handoffs_per_pair_max: Option<u32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct DeliverySection {
    ack_wait_ms: Option<u64>,
    extension_max_ms: Option<u64>,
    mail_lifetime_ms: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitsSection {
    messages_per_second: Option<u32>,
    bytes_per_second: Option<u32>,
    open_handoffs_max: Option<u32>,
    mailbox_max: Option<u32>,
    sessions_max: Option<u32>,
    card_changes_per_minute: Option<u32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RetentionSection {
    message_ids_ms: Option<u64>,
    ended_tasks_ms: Option<u64>,
    settled_dead_letters_ms: Option<u64>,
    store_bytes_max: Option<u64>,
    audit_ms: Option<u64>,
    audit_entries_max: Option<u64>,
}

impl RetentionSection {
    fn retention(&self) -> Retention {
        let defaults = Retention::default();
        let or = |milliseconds: Option<u64>, otherwise| match milliseconds {
            Some(0) => None,
            Some(milliseconds) => Some(Duration::from_millis(milliseconds)),
            None => otherwise,
        };
        Retention {
            message_ids: self.message_ids_ms.map_or(defaults.message_ids, Duration::from_millis),
            ended_tasks: or(self.ended_tasks_ms, defaults.ended_tasks),
            settled_dead_letters: or(self.settled_dead_letters_ms, defaults.settled_dead_letters),
            store_bytes_max: self.store_bytes_max.filter(|bytes| *bytes > 0),
            entries_a_step: defaults.entries_a_step,
            audit: or(self.audit_ms, defaults.audit),
            audit_entries_max: match self.audit_entries_max {
                Some(0) => None,
                Some(most) => Some(most),
                None => defaults.audit_entries_max,
            },
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct BrokerLimitsSection {
    connections_max: Option<u32>,
    handshakes_max: Option<u32>,
    calls_max: Option<u32>,
    calls_per_connection_max: Option<u32>,
    frame_bytes_max: Option<u64>,
    network_percent_max: Option<u32>,
    window_bytes: Option<u32>,
    frame_timeout_ms: Option<u64>,
    keepalive_interval_ms: Option<u64>,
    keepalive_timeout_ms: Option<u64>,
    agents_max: Option<u32>,
    card_bytes_max: Option<u64>,
}

impl BrokerLimitsSection {
    fn limits(&self) -> BrokerLimits {
        let defaults = BrokerLimits::default();
        let or = |milliseconds: Option<u64>, otherwise| milliseconds.map_or(otherwise, Duration::from_millis);
        BrokerLimits {
            connections_max: self.connections_max.unwrap_or(defaults.connections_max),
            handshakes_max: self.handshakes_max.unwrap_or(defaults.handshakes_max),
            calls_max: self.calls_max.unwrap_or(defaults.calls_max),
            calls_per_connection_max: self.calls_per_connection_max.unwrap_or(defaults.calls_per_connection_max),
            frame_bytes_max: self.frame_bytes_max.unwrap_or(defaults.frame_bytes_max),
            network_percent_max: self.network_percent_max.unwrap_or(defaults.network_percent_max),
            window_bytes: self.window_bytes.unwrap_or(defaults.window_bytes),
            frame_timeout: or(self.frame_timeout_ms, defaults.frame_timeout),
            keepalive_interval: or(self.keepalive_interval_ms, defaults.keepalive_interval),
            keepalive_timeout: or(self.keepalive_timeout_ms, defaults.keepalive_timeout),
            agents_max: self.agents_max.unwrap_or(defaults.agents_max),
            card_bytes_max: self.card_bytes_max.unwrap_or(defaults.card_bytes_max),
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct SessionSection {
    clock_window_ms: Option<u64>,
    heartbeat_interval_ms: Option<u64>,
    presence_lease_ms: Option<u64>,
}

fn default_listen() -> SocketAddr {
    DEFAULT_LISTEN.parse().expect("the default is an address")
}

fn default_data() -> PathBuf {
    DEFAULT_DATA.into()
}

impl Config {
    /// What `baton dev` starts with: a CA of its own, and open enrollment unless there is a policy.
    pub fn development(
        listen: SocketAddr,
        data: PathBuf,
        policy: Option<PathBuf>,
        plaintext_allowed: bool,
        unsigned_allowed: bool,
    ) -> Result<Self, ConfigError> {
        // All clients are on this machine, and so of one network, which is to have all that there is.
        let defaults = BrokerLimits::default();
        let broker_limits = BrokerLimits { connections_max: 32_768, network_percent_max: 100, ..defaults };
        let settings = Settings { unsigned_allowed, broker_limits, ..Settings::default() };
        let policy = policy.map_or(PolicySource::BuiltIn(Enrollment::Open), PolicySource::Path);
        let tls = TlsSource::Development;
        Self { listen, data, tls, plaintext_allowed, operators: None, policy, settings }.checked()
    }

    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.into(), source })?;
        Self::parse(path, &text)
    }

    /// Reads the text of a file that is said to be there.
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let file: File = toml::from_str(text)
            .map_err(|source| ConfigError::Parse { path: path.into(), source: Box::new(source) })?;
        let settings = file.settings();
        let plaintext_allowed = file.tls.allow_plaintext;
        let tls = file.tls.source()?;
        let policy = match (file.policy, file.enrollment) {
            (None, enrollment) => PolicySource::BuiltIn(enrollment.unwrap_or(Enrollment::Operator)),
            (Some(section), None) => PolicySource::Path(section.path),
            (Some(_), Some(_)) => {
                let problem = "enrollment and policy.path do not go together: the policy says who may enroll";
                return Err(ConfigError::Refused(problem.to_owned()));
            }
        };
        let File { listen, data, operators, .. } = file;
        Self { listen, data, tls, plaintext_allowed, operators, policy, settings }.checked()
    }

    /// What is only for development is only on loopback.
    fn checked(self) -> Result<Self, ConfigError> {
        let refused = |error: PolicySourceError| ConfigError::Refused(error.to_string());
        if self.settings.unsigned_allowed && !self.listen.ip().is_loopback() {
            return Err(refused(PolicySourceError::TooOpen { what: "allow_unsigned", listen: self.listen }));
        }
        if self.plaintext_allowed && !self.listen.ip().is_loopback() {
            return Err(refused(PolicySourceError::TooOpen { what: "plaintext", listen: self.listen }));
        }
        self.check_timeouts()?;
        self.check_broker_limits()?;
        self.settings.policies.store(self.policy.load(self.listen).map_err(refused)?);
        Ok(self)
    }

    fn check_broker_limits(&self) -> Result<(), ConfigError> {
        let limits = &self.settings.broker_limits;
        let refuse = |problem: &str| Err(ConfigError::Refused(format!("broker_limits.{problem}")));
        if !(1..=100).contains(&limits.network_percent_max) {
            return refuse("network_percent_max must be from 1 to 100");
        }
        // HTTP/2's own bounds: its least window, and its largest.
        if !(65_535..=0x7fff_ffff).contains(&limits.window_bytes) {
            return refuse("window_bytes must be from 65535 to 2147483647");
        }
        if limits.frame_bytes_max != 0 && limits.frame_bytes_max < FRAMES_BYTES_MIN {
            return refuse(
                "frame_bytes_max must be 0 or at least 16777216, so that a frame of 4 MiB fits in each part",
            );
        }
        let spans = [limits.frame_timeout, limits.keepalive_interval, limits.keepalive_timeout];
        if spans.iter().any(Duration::is_zero) {
            return refuse("frame_timeout_ms, keepalive_interval_ms and keepalive_timeout_ms must not be 0");
        }
        Ok(())
    }

    fn check_timeouts(&self) -> Result<(), ConfigError> {
        let TimeoutBounds { shortest, longest } = self.settings.timeout_bounds;
        let timeouts = self.settings.timeouts;
        for (name, span) in [
            ("accept_timeout_ms", timeouts.accept),
            ("context_timeout_ms", timeouts.context),
            ("complete_timeout_ms", timeouts.complete),
            ("whole_timeout_ms", timeouts.whole),
        ] {
            if span < shortest || span > longest {
                let problem = format!("handoff.{name} is {span:?}, outside of {shortest:?} to {longest:?}");
                return Err(ConfigError::Refused(problem));
            }
        }
        let limits = self.settings.loop_limits;
        if limits.handoffs_max == 0 || limits.handoffs_max > 16 || limits.handoffs_per_pair_max == 0 {
            let problem = "handoff.handoffs_max must be from 1 to 16, and handoffs_per_pair_max at least 1".to_owned();
            return Err(ConfigError::Refused(problem));
        }
        if self.settings.ack_wait.is_zero() || self.settings.heartbeat_interval.is_zero() {
            let problem = "delivery.ack_wait_ms and session.heartbeat_interval_ms must not be 0".to_owned();
            return Err(ConfigError::Refused(problem));
        }
        if self.settings.retention.store_bytes_max.is_some_and(|most| most < STORE_BYTES_MIN) {
            let problem = format!(
                "retention.store_bytes_max must be 0 or at least {STORE_BYTES_MIN}: the log and what is not merged count too"
            );
            return Err(ConfigError::Refused(problem));
        }
        if self.settings.retention.message_ids < self.settings.clock_window * 2 {
            let problem =
                "retention.message_ids_ms must be at least twice session.clock_window_ms: a message that is sent \
                           again must not be taken for a new one"
                    .to_owned();
            return Err(ConfigError::Refused(problem));
        }
        if self.settings.presence_lease < self.settings.heartbeat_interval * 3 {
            let problem = "session.presence_lease_ms must be at least three times heartbeat_interval_ms".to_owned();
            return Err(ConfigError::Refused(problem));
        }
        Ok(())
    }
}

impl File {
    fn settings(&self) -> Settings {
        let defaults = Settings::default();
        let or = |milliseconds: Option<u64>, otherwise| milliseconds.map_or(otherwise, Duration::from_millis);
        Settings {
            clock_window: or(self.session.clock_window_ms, defaults.clock_window),
            heartbeat_interval: or(self.session.heartbeat_interval_ms, defaults.heartbeat_interval),
            presence_lease: or(self.session.presence_lease_ms, defaults.presence_lease),
            mail_lifetime: or(self.delivery.mail_lifetime_ms, defaults.mail_lifetime),
            ack_wait: or(self.delivery.ack_wait_ms, defaults.ack_wait),
            extension_max: or(self.delivery.extension_max_ms, defaults.extension_max),
            timeouts: Timeouts {
                accept: or(self.handoff.accept_timeout_ms, defaults.timeouts.accept),
                context: or(self.handoff.context_timeout_ms, defaults.timeouts.context),
                complete: or(self.handoff.complete_timeout_ms, defaults.timeouts.complete),
                whole: or(self.handoff.whole_timeout_ms, defaults.timeouts.whole),
            },
            timeout_bounds: TimeoutBounds {
                shortest: or(self.handoff.timeout_min_ms, defaults.timeout_bounds.shortest),
                longest: or(self.handoff.timeout_max_ms, defaults.timeout_bounds.longest),
            },
            loop_limits: LoopLimits {
                handoffs_max: self.handoff.handoffs_max.unwrap_or(defaults.loop_limits.handoffs_max),
                handoffs_per_pair_max: self
                    .handoff
                    .handoffs_per_pair_max
                    .unwrap_or(defaults.loop_limits.handoffs_per_pair_max),
            },
            refusals_recorded_max: defaults.refusals_recorded_max,
            limits: AgentLimits {
                messages_per_second: self.limits.messages_per_second.unwrap_or(defaults.limits.messages_per_second),
                bytes_per_second: self.limits.bytes_per_second.unwrap_or(defaults.limits.bytes_per_second),
                open_handoffs_max: self.limits.open_handoffs_max.unwrap_or(defaults.limits.open_handoffs_max),
                mailbox_max: self.limits.mailbox_max.unwrap_or(defaults.limits.mailbox_max),
                sessions_max: self.limits.sessions_max.unwrap_or(defaults.limits.sessions_max),
                card_changes_per_minute: self
                    .limits
                    .card_changes_per_minute
                    .unwrap_or(defaults.limits.card_changes_per_minute),
            },
            retention: self.retention.retention(),
            broker_limits: self.broker_limits.limits(),
            unsigned_allowed: self.allow_unsigned,
            policies: defaults.policies,
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
        assert_eq!(read(TLS).unwrap().settings.retention, Retention::default());
    }

    #[test]
    fn a_broken_file_is_refused_with_file_and_line() {
        for (text, part) in [
            (format!("listn = \"\"\n{TLS}"), "listn"),
            (format!("listen = \"nowhere\"\n{TLS}"), "line 1"),
            (String::new(), "tls"),
            (format!("{TLS}[handoff]\naccept_timeout_ms = 0\n"), "accept_timeout_ms"),
            (format!("{TLS}[handoff]\nhandoffs_max = 17\n"), "handoffs_max"),
            (format!("{TLS}[broker_limits]\nwindow_bytes = 1\n"), "window_bytes"),
            (format!("{TLS}[broker_limits]\nnetwork_percent_max = 0\n"), "network_percent_max"),
            (format!("{TLS}[broker_limits]\nframe_bytes_max = 1\n"), "frame_bytes_max"),
            (format!("{TLS}[broker_limits]\nkeepalive_timeout_ms = 0\n"), "keepalive_timeout_ms"),
            (format!("{TLS}client_certificate = \"required\"\n"), "tls.client_ca"),
            (format!("{TLS}min_version = \"1.1\"\n"), "1.1"),
            (format!("{TLS}[session]\npresence_lease_ms = 1000\n"), "presence_lease_ms"),
            (format!("{TLS}[retention]\nmessage_ids_ms = 1000\n"), "message_ids_ms"),
            (format!("{TLS}[retention]\nstore_bytes_max = 1000\n"), "store_bytes_max"),
            (format!("{TLS}[retention]\nended_tasks_days = 1\n"), "ended_tasks_days"),
            (format!("listen = \"0.0.0.0:1\"\nenrollment = \"open\"\n{TLS}"), "loopback"),
            (format!("listen = \"0.0.0.0:1\"\nallow_unsigned = true\n{TLS}"), "loopback"),
            (format!("listen = \"0.0.0.0:1\"\n{TLS}allow_plaintext = true\n"), "loopback"),
            (format!("enrollment = \"open\"\n{TLS}[policy]\npath = \"p\"\n"), "do not go together"),
            (format!("{TLS}[policy]\npath = \"/no/such/policy\"\n"), "/no/such/policy"),
        ] {
            let error = read(&text).unwrap_err();
            assert!(error.contains(part), "{text:?} gives {error:?}");
        }
        let missing = Config::read(Path::new("/no/such/baton.toml")).unwrap_err().to_string();
        assert!(missing.contains("/no/such/baton.toml"), "{missing}");
    }
}

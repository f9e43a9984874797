//! The file, from which a configuration is read, and as which it is printed.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};

use super::{
    ClientCertificates, Config, ConfigError, Enrollment, MinimumTls, OperatorTokens, PolicySource, TlsSource,
    cluster::ClusterSection,
    gateway::GatewaySection,
    sections::{
        BlobsSection, BrokerLimitsSection, ConsoleSection, ContextSection, DeliverySection, HandoffSection,
        LimitsSection, MailSection, NegotiationSection, PlanSection, RetentionSection, SessionSection, Words,
        WorkspaceSection, span_of,
    },
};
use crate::{
    blobs::BucketOptions,
    broker::{DEFAULT_DATA, DEFAULT_LISTEN, jwt::TokenTerms},
    policy::Policies,
    store::bucket::BucketProblem,
    traces::Options as TraceOptions,
};

/// The leeway for the times in operators' tokens, unless another is set.
const LEEWAY: Duration = Duration::from_secs(60);

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    listen: Option<SocketAddr>,
    data: Option<PathBuf>,
    enrollment: Option<Enrollment>,
    pub(super) allow_unsigned: Option<bool>,
    tls: TlsSection,
    pub(super) handoff: Option<HandoffSection>,
    pub(super) delivery: Option<DeliverySection>,
    pub(super) session: Option<SessionSection>,
    pub(super) limits: Option<LimitsSection>,
    pub(super) retention: Option<RetentionSection>,
    pub(super) context: Option<ContextSection>,
    pub(super) blobs: Option<BlobsSection>,
    pub(super) negotiation: Option<NegotiationSection>,
    pub(super) mail: Option<MailSection>,
    pub(super) workspace: Option<WorkspaceSection>,
    pub(super) plan: Option<PlanSection>,
    pub(super) broker_limits: Option<BrokerLimitsSection>,
    metrics: Option<MetricsSection>,
    traces: Option<TracesSection>,
    pub(super) console: Option<ConsoleSection>,
    gateway: Option<GatewaySection>,
    operators: Option<OperatorsSection>,
    policy: Option<PolicySection>,
    cluster: Option<ClusterSection>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TlsSection {
    certificate: PathBuf,
    key: PathBuf,
    client_ca: Option<PathBuf>,
    client_crl: Option<PathBuf>,
    client_certificate: Option<ClientCertificate>,
    min_version: Option<MinimumTls>,
    allow_plaintext: Option<bool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ClientCertificate {
    Optional,
    Required,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct MetricsSection {
    listen: Option<SocketAddr>,
    allow_public: Option<bool>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TracesSection {
    endpoint: Option<String>,
    sampling_ratio: Option<f64>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OperatorsSection {
    keys: PathBuf,
    audience: String,
    issuer: Option<String>,
    leeway: Option<Words>,
    leeway_ms: Option<u64>,
    groups_claim: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicySection {
    path: PathBuf,
}

impl File {
    /// The configuration, with the built-in policies and before its checks.
    pub(super) fn config(self) -> Result<Config, ConfigError> {
        let settings = self.settings()?;
        let blob_bucket = self.blobs.unwrap_or_default().bucket()?;
        let plaintext_allowed = self.tls.allow_plaintext.unwrap_or_default();
        let tls = self.tls.source()?;
        let policy = match (self.policy, self.enrollment) {
            (None, enrollment) => PolicySource::BuiltIn(enrollment.unwrap_or(Enrollment::Operator)),
            (Some(section), None) => PolicySource::Path(section.path),
            (Some(_), Some(_)) => {
                let problem =
                    "enrollment and policy.path exclude each other: the policy decides which agents may enroll";
                return Err(ConfigError::Refused(problem.to_owned()));
            }
        };
        let metrics = self.metrics.unwrap_or_default();
        let data = self.data.unwrap_or_else(|| DEFAULT_DATA.into());
        let TracesSection { endpoint, sampling_ratio } = self.traces.unwrap_or_default();
        Ok(Config {
            listen: self.listen.unwrap_or_else(|| DEFAULT_LISTEN.parse().expect("the default is an address")),
            metrics: metrics.listen,
            metrics_public: metrics.allow_public.unwrap_or_default(),
            traces: TraceOptions { endpoint, sampling_ratio },
            blob_bucket,
            gateway: self.gateway.unwrap_or_default().settings(&data)?,
            data,
            tls,
            plaintext_allowed,
            operators: self.operators.map(OperatorsSection::tokens).transpose()?,
            policy,
            cluster: self.cluster.map(ClusterSection::settings).transpose()?,
            network_allowed: false,
            policies: Policies::built_in(),
            settings,
        })
    }

    /// The file that gives this configuration, with every default.
    pub(super) fn of(config: &Config) -> Self {
        let Config { tls, traces, operators, settings, .. } = config;
        let TraceOptions { endpoint, sampling_ratio } = traces.clone();
        let (enrollment, policy) = match config.policy.clone() {
            PolicySource::BuiltIn(enrollment) => (Some(enrollment), None),
            PolicySource::Path(path) => (None, Some(PolicySection { path })),
        };
        let mut file = Self {
            listen: Some(config.listen),
            data: Some(config.data.clone()),
            enrollment,
            tls: TlsSection { allow_plaintext: Some(config.plaintext_allowed), ..TlsSection::of(tls) },
            metrics: Some(MetricsSection { listen: config.metrics, allow_public: Some(config.metrics_public) }),
            traces: Some(TracesSection { endpoint, sampling_ratio }),
            gateway: Some(GatewaySection::of(&config.gateway)),
            operators: operators.as_ref().map(OperatorsSection::of),
            policy,
            cluster: config.cluster.as_ref().map(ClusterSection::of),
            ..Self::default()
        };
        file.write(settings);
        if let Some(BucketOptions { url, endpoint, region, allow_http }) = config.blob_bucket.clone() {
            let blobs = file.blobs.get_or_insert_default();
            (blobs.url, blobs.allow_http) = (Some(url), Some(allow_http));
            (blobs.endpoint, blobs.region) = (endpoint, region);
        }
        file
    }
}

impl TlsSection {
    fn source(self) -> Result<TlsSource, ConfigError> {
        let required = self.client_certificate == Some(ClientCertificate::Required);
        let clients = match self.client_ca {
            Some(ca) => Some(ClientCertificates { ca, crl: self.client_crl, required }),
            // Without a CA no client certificate can be verified, so these settings could not have their effect.
            None if required || self.client_crl.is_some() => {
                let problem = "tls.client_certificate and tls.client_crl need tls.client_ca".to_owned();
                return Err(ConfigError::Refused(problem));
            }
            None => None,
        };
        let minimum = self.min_version.unwrap_or_default();
        Ok(TlsSource::Files { certificate: self.certificate, key: self.key, clients, minimum })
    }

    /// The section of these files. A CA of the broker's own has no section.
    fn of(source: &TlsSource) -> Self {
        let TlsSource::Files { certificate, key, clients, minimum } = source.clone() else { return Self::default() };
        let files = Self { certificate, key, min_version: Some(minimum), ..Self::default() };
        let Some(ClientCertificates { ca, crl, required }) = clients else { return files };
        let certificate = if required { ClientCertificate::Required } else { ClientCertificate::Optional };
        Self { client_ca: Some(ca), client_crl: crl, client_certificate: Some(certificate), ..files }
    }
}

impl OperatorsSection {
    fn tokens(self) -> Result<OperatorTokens, ConfigError> {
        let Self { keys, audience, issuer, leeway, leeway_ms, groups_claim } = self;
        let leeway = span_of(["operators", "leeway", "leeway_ms"], leeway, leeway_ms)?.unwrap_or(LEEWAY);
        Ok(OperatorTokens { keys, terms: TokenTerms { audience, issuer, leeway, groups_claim } })
    }

    fn of(tokens: &OperatorTokens) -> Self {
        let OperatorTokens { keys, terms } = tokens.clone();
        let TokenTerms { audience, issuer, leeway, groups_claim } = terms;
        Self { keys, audience, issuer, leeway: Some(Words(leeway)), leeway_ms: None, groups_claim }
    }
}

impl BlobsSection {
    /// The bucket that the section names. Fails where a key could not have its effect.
    fn bucket(self) -> Result<Option<BucketOptions>, ConfigError> {
        let refused = |problem: String| Err(ConfigError::Refused(problem));
        let Self { url, endpoint, region, allow_http, .. } = self;
        let Some(url) = url else {
            return match endpoint.is_some() || region.is_some() || allow_http.is_some() {
                true => refused("blobs.endpoint, blobs.region and blobs.allow_http need blobs.url".to_owned()),
                false => Ok(None),
            };
        };
        let bucket = BucketOptions { url, endpoint, region, allow_http: allow_http.unwrap_or_default() };
        match bucket.check() {
            Ok(()) => Ok(Some(bucket)),
            Err(BucketProblem::Url(problem)) => refused(format!("blobs.url {problem}")),
            Err(BucketProblem::Plaintext) => {
                refused("blobs.endpoint has no TLS; use https://, or set blobs.allow_http = true".to_owned())
            }
            Err(BucketProblem::Endpoint) => {
                refused("blobs.endpoint must begin with https:// or http://, and have no user name".to_owned())
            }
        }
    }
}

//! The section of a broker in a cluster.

use std::{net::SocketAddr, path::PathBuf};

use baton_cluster::settings::{
    BucketAccess, ClusterSettings, LEASE, LOG_BYTES_MAX, LOG_KEEP, LogAddress, PEER_PORT, SettingsError,
};
use serde::{Deserialize, Serialize};

use super::{
    Config, ConfigError, PolicySourceError,
    policy_source::is_enrollment_open,
    sections::{Words, span_of},
};
use crate::policy::Policies;

/// The name of a cluster, unless another is set.
const NAME: &str = "baton";

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ClusterSection {
    name: Option<String>,
    broker: Option<String>,
    log: Option<String>,
    log_endpoint: Option<String>,
    log_region: Option<String>,
    log_allow_http: Option<bool>,
    keys: Option<PathBuf>,
    peer_listen: Option<SocketAddr>,
    peer_address: Option<String>,
    lease: Option<Words>,
    lease_ms: Option<u64>,
    log_keep: Option<Words>,
    log_keep_ms: Option<u64>,
    log_bytes_max: Option<u64>,
}

impl From<SettingsError> for ConfigError {
    fn from(error: SettingsError) -> Self {
        Self::Refused(error.to_string())
    }
}

impl ClusterSection {
    /// The settings of the section, with its defaults and before its checks.
    pub(super) fn settings(self) -> Result<ClusterSettings, ConfigError> {
        let missing =
            |key: &str, example: &str| ConfigError::Refused(format!("cluster.{key} is missing, for example {example}"));
        let log = self.log.ok_or_else(|| missing("log", "\"postgres://baton@db.internal/baton\""))?;
        let access =
            BucketAccess { endpoint: self.log_endpoint, region: self.log_region, allow_http: self.log_allow_http };
        Ok(ClusterSettings {
            name: self.name.unwrap_or_else(|| NAME.to_owned()),
            broker: self.broker.ok_or_else(|| missing("broker", "\"b1\": each broker has a name of its own"))?,
            log: LogAddress::parse(&log, access)?,
            keys: self.keys.ok_or_else(|| missing("keys", "\"/etc/baton/cluster\", made by `baton cluster keys`"))?,
            peer_listen: self.peer_listen.unwrap_or_else(|| SocketAddr::from(([0, 0, 0, 0], PEER_PORT))),
            peer_address: self.peer_address.ok_or_else(|| missing("peer_address", "\"b1.internal:22867\""))?,
            lease: span_of(["cluster", "lease", "lease_ms"], self.lease, self.lease_ms)?.unwrap_or(LEASE),
            log_keep: span_of(["cluster", "log_keep", "log_keep_ms"], self.log_keep, self.log_keep_ms)?
                .unwrap_or(LOG_KEEP),
            log_bytes_max: self.log_bytes_max.unwrap_or(LOG_BYTES_MAX),
        })
    }

    /// The section of these settings. The password of the log is not in it.
    pub(super) fn of(settings: &ClusterSettings) -> Self {
        let settings = settings.clone();
        let BucketAccess { endpoint, region, allow_http } = settings.log.access();
        Self {
            name: Some(settings.name),
            broker: Some(settings.broker),
            log: Some(settings.log.without_password()),
            log_endpoint: endpoint,
            log_region: region,
            log_allow_http: allow_http,
            keys: Some(settings.keys),
            peer_listen: Some(settings.peer_listen),
            peer_address: Some(settings.peer_address),
            lease: Some(Words(settings.lease)),
            lease_ms: None,
            log_keep: Some(Words(settings.log_keep)),
            log_keep_ms: None,
            log_bytes_max: Some(settings.log_bytes_max),
        }
    }
}

/// Checks the bounds of the settings, and refuses development settings unless all addresses are on this machine.
pub(super) fn check(config: &Config) -> Result<(), ConfigError> {
    let Some(cluster) = &config.cluster else { return Ok(()) };
    cluster.check()?;
    for (what, is_set) in
        [("allow_unsigned", config.settings.unsigned_allowed), ("tls.allow_plaintext", config.plaintext_allowed)]
    {
        permit(cluster, what, is_set).map_err(|error| ConfigError::Refused(error.to_string()))?;
    }
    Ok(())
}

/// Refuses policies with open enrollment unless all addresses of the cluster are on this machine.
pub(super) fn check_policies(cluster: &ClusterSettings, policies: &Policies) -> Result<(), PolicySourceError> {
    permit(cluster, "open enrollment", is_enrollment_open(policies))
}

fn permit(cluster: &ClusterSettings, what: &'static str, is_set: bool) -> Result<(), PolicySourceError> {
    if is_set && !cluster.is_loopback() {
        let (listen, address) = (cluster.peer_listen, cluster.peer_address.clone());
        return Err(PolicySourceError::TooOpenInCluster { what, listen, address });
    }
    Ok(())
}

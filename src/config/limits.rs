//! What a section leaves out has the value of the default settings.

use std::time::Duration;

use super::{BlobsSection, BrokerLimitsSection, ConfigError, RetentionSection};
use crate::{
    blobs::BucketOptions,
    broker::{BlobLimits, BrokerLimits, Retention},
};

impl RetentionSection {
    pub(super) fn retention(&self) -> Retention {
        let defaults = Retention::default();
        let or = |span: Option<Duration>, otherwise| match span {
            // 0 means no end.
            Some(Duration::ZERO) => None,
            Some(span) => Some(span),
            None => otherwise,
        };
        Retention {
            message_ids: self.message_ids().unwrap_or(defaults.message_ids),
            ended_tasks: or(self.ended_tasks(), defaults.ended_tasks),
            settled_dead_letters: or(self.settled_dead_letters(), defaults.settled_dead_letters),
            store_bytes_max: self.store_bytes_max.filter(|bytes| *bytes > 0),
            entries_a_step: defaults.entries_a_step,
            audit: or(self.audit(), defaults.audit),
            audit_entries_max: match self.audit_entries_max {
                Some(0) => None,
                Some(most) => Some(most),
                None => defaults.audit_entries_max,
            },
        }
    }
}

impl BrokerLimitsSection {
    pub(super) fn limits(&self) -> BrokerLimits {
        let defaults = BrokerLimits::default();
        BrokerLimits {
            connections_max: self.connections_max.unwrap_or(defaults.connections_max),
            handshakes_max: self.handshakes_max.unwrap_or(defaults.handshakes_max),
            calls_max: self.calls_max.unwrap_or(defaults.calls_max),
            calls_per_connection_max: self.calls_per_connection_max.unwrap_or(defaults.calls_per_connection_max),
            frame_bytes_max: self.frame_bytes_max.unwrap_or(defaults.frame_bytes_max),
            network_percent_max: self.network_percent_max.unwrap_or(defaults.network_percent_max),
            window_bytes: self.window_bytes.unwrap_or(defaults.window_bytes),
            connection_window_bytes: self.connection_window_bytes.unwrap_or(defaults.connection_window_bytes),
            frame_timeout: self.frame_timeout().unwrap_or(defaults.frame_timeout),
            keepalive_interval: self.keepalive_interval().unwrap_or(defaults.keepalive_interval),
            keepalive_timeout: self.keepalive_timeout().unwrap_or(defaults.keepalive_timeout),
            agents_max: self.agents_max.unwrap_or(defaults.agents_max),
            card_bytes_max: self.card_bytes_max.unwrap_or(defaults.card_bytes_max),
        }
    }
}

impl BlobsSection {
    pub(super) fn limits(&self) -> BlobLimits {
        let defaults = BlobLimits::default();
        BlobLimits {
            blob_bytes_max: self.blob_bytes_max.unwrap_or(defaults.blob_bytes_max),
            agent_bytes_max: self.agent_bytes_max.unwrap_or(defaults.agent_bytes_max),
            agent_uploads_max: self.agent_uploads_max.unwrap_or(defaults.agent_uploads_max),
            unheld_lifetime: self.unheld_lifetime().unwrap_or(defaults.unheld_lifetime),
        }
    }

    /// The bucket that the section names. Fails where a key could not have its effect.
    pub(super) fn bucket(&self) -> Result<Option<BucketOptions>, ConfigError> {
        let refused = |problem: String| Err(ConfigError::Refused(problem));
        let Some(url) = self.url.clone() else {
            return match self.endpoint.is_some() || self.region.is_some() || self.allow_http.is_some() {
                true => refused("blobs.endpoint, blobs.region and blobs.allow_http need blobs.url".to_owned()),
                false => Ok(None),
            };
        };
        let allow_http = self.allow_http.unwrap_or_default();
        let bucket = BucketOptions { url, endpoint: self.endpoint.clone(), region: self.region.clone(), allow_http };
        if let Err(problem) = bucket.parts() {
            return refused(format!("blobs.url {problem}"));
        }
        match bucket.endpoint.as_deref() {
            Some(endpoint) if endpoint.starts_with("http://") && !allow_http => {
                refused("blobs.endpoint has no TLS; use https://, or set blobs.allow_http = true".to_owned())
            }
            // A part before @ could be a password, which a log would show.
            Some(endpoint)
                if endpoint.contains('@') || !["http://", "https://"].iter().any(|by| endpoint.starts_with(by)) =>
            {
                refused("blobs.endpoint must begin with https:// or http://, and have no user name".to_owned())
            }
            Some(_) | None => Ok(Some(bucket)),
        }
    }
}

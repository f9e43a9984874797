//! The configuration as the TOML that `baton serve --check` prints. Parsing it gives the same configuration.

use std::{path::Path, time::Duration};

use super::{ClientCertificates, MinimumTls, TlsSource};
use crate::{blobs::BucketOptions, broker::Settings, domain::plan::DataFlowCheck};

pub(super) fn table<const N: usize>(entries: [(&str, toml::Value); N]) -> toml::Table {
    entries.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

pub(super) fn text_of(path: &Path) -> toml::Value {
    path.display().to_string().into()
}

fn words_of(span: Duration) -> toml::Value {
    humantime::format_duration(span).to_string().into()
}

/// The sections with settings of the protocol.
pub(super) fn sections(settings: &Settings) -> [(&'static str, toml::Table); 10] {
    let Settings { timeouts, timeout_bounds, loop_limits, limits, workspace, retention, .. } = settings;
    let all = &settings.broker_limits;
    // 0 stands for no end. Parsing it gives `None` again.
    let for_good = |span: Option<Duration>| words_of(span.unwrap_or_default());
    // TOML integers are signed 64-bit numbers, and no store reaches that many bytes.
    let bytes = |bytes: u64| toml::Value::Integer(i64::try_from(bytes).unwrap_or(i64::MAX));
    [
        (
            "handoff",
            table([
                ("accept_timeout", words_of(timeouts.accept)),
                ("context_timeout", words_of(timeouts.context)),
                ("complete_timeout", words_of(timeouts.complete)),
                ("whole_timeout", words_of(timeouts.whole)),
                ("timeout_min", words_of(timeout_bounds.shortest)),
                ("timeout_max", words_of(timeout_bounds.longest)),
                ("handoffs_max", loop_limits.handoffs_max.into()),
                ("handoffs_per_pair_max", loop_limits.handoffs_per_pair_max.into()),
            ]),
        ),
        (
            "delivery",
            table([
                ("ack_wait", words_of(settings.ack_wait)),
                ("extension_max", words_of(settings.extension_max)),
                ("mail_lifetime", words_of(settings.mail_lifetime)),
            ]),
        ),
        (
            "session",
            table([
                ("clock_window", words_of(settings.clock_window)),
                ("heartbeat_interval", words_of(settings.heartbeat_interval)),
                ("presence_lease", words_of(settings.presence_lease)),
            ]),
        ),
        (
            "limits",
            table([
                ("messages_per_second", limits.messages_per_second.into()),
                ("bytes_per_second", limits.bytes_per_second.into()),
                ("open_handoffs_max", limits.open_handoffs_max.into()),
                ("open_negotiations_max", limits.open_negotiations_max.into()),
                ("running_plans_max", limits.running_plans_max.into()),
                ("mailbox_max", limits.mailbox_max.into()),
                ("sessions_max", limits.sessions_max.into()),
                ("card_changes_per_minute", limits.card_changes_per_minute.into()),
            ]),
        ),
        (
            "broker_limits",
            table([
                ("connections_max", all.connections_max.into()),
                ("handshakes_max", all.handshakes_max.into()),
                ("calls_max", all.calls_max.into()),
                ("calls_per_connection_max", all.calls_per_connection_max.into()),
                ("frame_bytes_max", bytes(all.frame_bytes_max)),
                ("network_percent_max", all.network_percent_max.into()),
                ("window_bytes", all.window_bytes.into()),
                ("connection_window_bytes", all.connection_window_bytes.into()),
                ("frame_timeout", words_of(all.frame_timeout)),
                ("keepalive_interval", words_of(all.keepalive_interval)),
                ("keepalive_timeout", words_of(all.keepalive_timeout)),
                ("agents_max", all.agents_max.into()),
                ("card_bytes_max", bytes(all.card_bytes_max)),
            ]),
        ),
        ("context", table([("require_registered_schemas", settings.require_registered_schemas.into())])),
        (
            "blobs",
            table([
                ("blob_bytes_max", bytes(settings.blobs.blob_bytes_max)),
                ("agent_bytes_max", bytes(settings.blobs.agent_bytes_max)),
                ("agent_uploads_max", settings.blobs.agent_uploads_max.into()),
                ("unheld_lifetime", words_of(settings.blobs.unheld_lifetime)),
            ]),
        ),
        (
            "workspace",
            table([
                ("entry_lifetime", words_of(workspace.entry_lifetime)),
                ("bytes_max", bytes(workspace.bytes_max)),
                ("entries_max", bytes(workspace.entries_max)),
                ("topics_max", bytes(workspace.topics_max)),
            ]),
        ),
        (
            "plan",
            table([
                ("enabled", settings.plans_enabled.into()),
                ("max_concurrency", settings.plan_terms.max_concurrency.into()),
                ("dependency_timeout", words_of(settings.plan_terms.dependency_timeout)),
                ("whole_timeout", words_of(settings.plan_terms.whole_timeout)),
                ("pass_results", settings.plan_terms.pass_results.into()),
                ("pass_dependency_results", settings.plan_terms.pass_dependency_results.into()),
                ("extract_numeric", settings.plan_terms.extract_numeric.into()),
                (
                    "data_flow_check",
                    match settings.plan_terms.data_flow_check {
                        DataFlowCheck::Strict => "STRICT".into(),
                        DataFlowCheck::Lenient => "LENIENT".into(),
                    },
                ),
            ]),
        ),
        (
            "retention",
            table([
                ("message_ids", words_of(retention.message_ids)),
                ("ended_tasks", for_good(retention.ended_tasks)),
                ("settled_dead_letters", for_good(retention.settled_dead_letters)),
                ("store_bytes_max", bytes(retention.store_bytes_max.unwrap_or_default())),
                ("audit", for_good(retention.audit)),
                ("audit_entries_max", bytes(retention.audit_entries_max.unwrap_or_default())),
            ]),
        ),
    ]
}

/// The keys of a bucket, in the section of blobs.
pub(super) fn bucket(bucket: &BucketOptions) -> toml::Table {
    let BucketOptions { url, endpoint, region, allow_http } = bucket;
    let mut keys = table([("url", url.clone().into()), ("allow_http", (*allow_http).into())]);
    keys.extend(endpoint.clone().map(|endpoint| ("endpoint".to_owned(), endpoint.into())));
    keys.extend(region.clone().map(|region| ("region".to_owned(), region.into())));
    keys
}

impl TlsSource {
    pub(super) fn to_toml(&self, allow_plaintext: bool) -> toml::Table {
        let mut section = toml::Table::new();
        if let Self::Files { certificate, key, clients, minimum } = self {
            section.insert("certificate".to_owned(), text_of(certificate));
            section.insert("key".to_owned(), text_of(key));
            if let Some(ClientCertificates { ca, crl, required }) = clients {
                section.insert("client_ca".to_owned(), text_of(ca));
                section.extend(crl.iter().map(|path| ("client_crl".to_owned(), text_of(path))));
                let word = if *required { "required" } else { "optional" };
                section.insert("client_certificate".to_owned(), word.into());
            }
            let version = match minimum {
                MinimumTls::V1_2 => "1.2",
                MinimumTls::V1_3 => "1.3",
            };
            section.insert("min_version".to_owned(), version.into());
        }
        section.insert("allow_plaintext".to_owned(), allow_plaintext.into());
        section
    }
}

//! The sections with settings of the protocol. Each key is named once, with its place in the settings: from that line come
//! the reading, the default, and the printed TOML. A new key is one line here, and its bounds are in `checks`.

use std::{fmt, time::Duration};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::{ConfigError, file::File};
use crate::{broker::Settings, domain::plan::DataFlowCheck};

/// Defines the sections. A span has two keys: one with a unit in its value (`accept_timeout = "30s"`), and one that ends in
/// `_ms` for a number of milliseconds. A key without a place belongs to the bucket of blobs.
macro_rules! sections {
    ($($name:ident: $section:ident spans {
        $($span:ident / $span_ms:ident => $($span_place:ident).+,)*
    } values {
        $($key:ident: $type:ty $(=> $($place:ident).+)?,)*
    })*) => {
        $(
            #[derive(Debug, Default, Serialize, Deserialize)]
            #[serde(deny_unknown_fields)]
            pub(super) struct $section {
                $($span: Option<Words>, $span_ms: Option<u64>,)*
                $(pub(super) $key: Option<$type>,)*
            }
        )*

        impl File {
            /// The settings: what the sections leave out has its default. Refuses a span that both of its keys set.
            pub(super) fn settings(&self) -> Result<Settings, ConfigError> {
                let unsigned_allowed = self.allow_unsigned.unwrap_or_default();
                let mut settings = Settings { unsigned_allowed, ..Settings::default() };
                $(if let Some(section) = &self.$name {
                    $(
                        let names = [stringify!($name), stringify!($span), stringify!($span_ms)];
                        if let Some(span) = span_of(names, section.$span, section.$span_ms)? {
                            settings.$($span_place).+ = Setting::of(span);
                        }
                    )*
                    $($(if let Some(form) = section.$key {
                        settings.$($place).+ = Setting::of(form);
                    })?)*
                })*
                Ok(settings)
            }

            /// Writes all settings into their sections.
            pub(super) fn write(&mut self, settings: &Settings) {
                self.allow_unsigned = Some(settings.unsigned_allowed);
                $(
                    let section = self.$name.get_or_insert_default();
                    $(section.$span = Some(Words(settings.$($span_place).+.form()));)*
                    $($(section.$key = Some(settings.$($place).+.form());)?)*
                )*
            }
        }
    };
}

sections! {
    handoff: HandoffSection spans {
        accept_timeout / accept_timeout_ms => timeouts.accept,
        context_timeout / context_timeout_ms => timeouts.context,
        complete_timeout / complete_timeout_ms => timeouts.complete,
        whole_timeout / whole_timeout_ms => timeouts.whole,
        timeout_min / timeout_min_ms => timeout_bounds.shortest,
        timeout_max / timeout_max_ms => timeout_bounds.longest,
    } values {
        handoffs_max: u32 => loop_limits.handoffs_max,
        handoffs_per_pair_max: u32 => loop_limits.handoffs_per_pair_max,
    }

    delivery: DeliverySection spans {
        ack_wait / ack_wait_ms => ack_wait,
        extension_max / extension_max_ms => extension_max,
        mail_lifetime / mail_lifetime_ms => mail_lifetime,
    } values {}

    session: SessionSection spans {
        clock_window / clock_window_ms => clock_window,
        heartbeat_interval / heartbeat_interval_ms => heartbeat_interval,
        presence_lease / presence_lease_ms => presence_lease,
    } values {}

    limits: LimitsSection spans {} values {
        messages_per_second: u32 => limits.messages_per_second,
        cpu_ms_per_second: u32 => limits.cpu_ms_per_second,
        operator_cpu_ms_per_second: u32 => limits.operator_cpu_ms_per_second,
        bytes_per_second: u32 => limits.bytes_per_second,
        open_handoffs_max: u32 => limits.open_handoffs_max,
        open_negotiations_max: u32 => limits.open_negotiations_max,
        running_plans_max: u32 => limits.running_plans_max,
        open_runs_max: u32 => limits.open_runs_max,
        open_threads_max: u32 => limits.open_threads_max,
        open_bytes_max: u64 => limits.open_bytes_max,
        stored_bytes_max: u64 => limits.stored_bytes_max,
        mailbox_max: u32 => limits.mailbox_max,
        sessions_max: u32 => limits.sessions_max,
        card_changes_per_minute: u32 => limits.card_changes_per_minute,
        name_changes_per_minute: u32 => limits.name_changes_per_minute,
        graphs_max: u32 => limits.graphs_max,
        schemas_max: u32 => limits.schemas_max,
        specs_max: u32 => limits.specs_max,
    }

    retention: RetentionSection spans {
        message_ids / message_ids_ms => retention.message_ids,
        ended_tasks / ended_tasks_ms => retention.ended_tasks,
        idle_tasks / idle_tasks_ms => retention.idle_tasks,
        settled_dead_letters / settled_dead_letters_ms => retention.settled_dead_letters,
        audit / audit_ms => retention.audit,
    } values {
        store_bytes_max: u64 => retention.store_bytes_max,
        audit_entries_max: u64 => retention.audit_entries_max,
    }

    context: ContextSection spans {} values {
        require_registered_schemas: bool => require_registered_schemas,
    }

    negotiation: NegotiationSection spans {
        offers_timeout / offers_timeout_ms => negotiation_times.offers,
        decision_timeout / decision_timeout_ms => negotiation_times.decision,
    } values {
        enabled: bool => services.negotiation,
    }

    mail: MailSection spans {} values {
        enabled: bool => services.mail,
    }

    workspace: WorkspaceSection spans {
        entry_lifetime / entry_lifetime_ms => workspace.entry_lifetime,
    } values {
        enabled: bool => services.workspace,
        bytes_max: u64 => workspace.bytes_max,
        entries_max: u64 => workspace.entries_max,
        topics_max: u64 => workspace.topics_max,
    }

    plan: PlanSection spans {
        dependency_timeout / dependency_timeout_ms => plan_terms.dependency_timeout,
        whole_timeout / whole_timeout_ms => plan_terms.whole_timeout,
    } values {
        enabled: bool => plans_enabled,
        max_concurrency: u32 => plan_terms.max_concurrency,
        pass_results: bool => plan_terms.pass_results,
        pass_dependency_results: bool => plan_terms.pass_dependency_results,
        extract_numeric: bool => plan_terms.extract_numeric,
        data_flow_check: Check => plan_terms.data_flow_check,
    }

    blobs: BlobsSection spans {
        unheld_lifetime / unheld_lifetime_ms => blobs.unheld_lifetime,
    } values {
        blob_bytes_max: u64 => blobs.blob_bytes_max,
        agent_bytes_max: u64 => blobs.agent_bytes_max,
        agent_uploads_max: u32 => blobs.agent_uploads_max,
        url: String,
        endpoint: String,
        region: String,
        allow_http: bool,
    }

    broker_limits: BrokerLimitsSection spans {
        frame_timeout / frame_timeout_ms => broker_limits.frame_timeout,
        keepalive_interval / keepalive_interval_ms => broker_limits.keepalive_interval,
        keepalive_timeout / keepalive_timeout_ms => broker_limits.keepalive_timeout,
    } values {
        connections_max: u32 => broker_limits.connections_max,
        handshakes_max: u32 => broker_limits.handshakes_max,
        calls_max: u32 => broker_limits.calls_max,
        calls_per_connection_max: u32 => broker_limits.calls_per_connection_max,
        frame_bytes_max: u64 => broker_limits.frame_bytes_max,
        network_percent_max: u32 => broker_limits.network_percent_max,
        window_bytes: u32 => broker_limits.window_bytes,
        connection_window_bytes: u32 => broker_limits.connection_window_bytes,
        agents_max: u32 => broker_limits.agents_max,
        card_bytes_max: u64 => broker_limits.card_bytes_max,
        open_bytes_max: u64 => broker_limits.open_bytes_max,
    }

    console: ConsoleSection spans {} values {
        enabled: bool => console,
    }
}

/// The span that at most one of its two keys sets.
pub(super) fn span_of(
    [section, words_key, number_key]: [&str; 3],
    words: Option<Words>,
    number: Option<u64>,
) -> Result<Option<Duration>, ConfigError> {
    match (words, number) {
        (Some(_), Some(_)) => {
            let problem = format!("{section}.{words_key} and {section}.{number_key} are the same; name one of them");
            Err(ConfigError::Refused(problem))
        }
        (words, number) => Ok(words.map(|words| words.0).or_else(|| number.map(Duration::from_millis))),
    }
}

/// A value of the settings, and its form in the file.
trait Setting {
    type Form;

    fn of(form: Self::Form) -> Self;

    fn form(&self) -> Self::Form;
}

/// Values that are in the file as they are in the settings.
macro_rules! plain {
    ($($type:ty),*) => {
        $(impl Setting for $type {
            type Form = Self;

            fn of(form: Self) -> Self {
                form
            }

            fn form(&self) -> Self {
                *self
            }
        })*
    };
}

plain!(bool, u32, Duration);

impl Setting for u64 {
    type Form = Self;

    fn of(form: Self) -> Self {
        form
    }

    /// TOML integers are signed 64-bit numbers, and no store reaches that many bytes.
    fn form(&self) -> Self {
        (*self).min(i64::MAX.unsigned_abs())
    }
}

/// 0 stands for no end and no limit.
impl<T: Setting + Copy + Default + PartialEq> Setting for Option<T> {
    type Form = T::Form;

    fn of(form: T::Form) -> Self {
        Some(T::of(form)).filter(|value| *value != T::default())
    }

    fn form(&self) -> T::Form {
        self.unwrap_or_default().form()
    }
}

impl Setting for DataFlowCheck {
    type Form = Check;

    fn of(form: Check) -> Self {
        form.0
    }

    fn form(&self) -> Check {
        Check(*self)
    }
}

/// The treatment of a consumed topic without a producer.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Check(#[serde(with = "CheckNames")] DataFlowCheck);

#[derive(Serialize, Deserialize)]
#[serde(remote = "DataFlowCheck", rename_all = "UPPERCASE")]
enum CheckNames {
    Strict,
    Lenient,
}

/// A span as text: "30s", "1h 30m", "250ms".
#[derive(Debug, Clone, Copy)]
pub(super) struct Words(pub(super) Duration);

impl Serialize for Words {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&humantime::format_duration(self.0))
    }
}

impl<'de> Deserialize<'de> for Words {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Words;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(
                    "a span with its unit in quotes, such as \"30s\"; a number alone has a key that ends in _ms",
                )
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Words, E> {
                humantime::parse_duration(text).map(Words).map_err(|error| {
                    E::custom(format!("{text:?} is not a span such as \"30s\", \"250ms\" or \"1h 30m\": {error}"))
                })
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

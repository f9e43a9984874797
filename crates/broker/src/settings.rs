//! The operator's settings of the protocol. Read once, at the start.

use std::time::Duration;

use crate::{
    domain::{
        TimeoutBounds,
        handoff::{LoopLimits, Timeouts},
        plan,
        presence::PresenceRule,
        workspace,
    },
    envelope::{
        self,
        keys::{PrivateKey, PublicKey},
        signing,
    },
    ids::KeyId,
    proto::v1,
    time::Timestamp,
};

/// The address that a broker listens on, and that commands connect to, if none is named. The port is below 32768, where
/// client ports begin, and spells "baton" on a phone's keypad.
pub const DEFAULT_LISTEN: &str = "127.0.0.1:22866";
/// The data folder of a development broker, below the working directory.
pub const DEFAULT_DATA: &str = "baton-data";

/// The limits and spans of SPEC 2, 3 and 4.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The largest distance of an envelope's timestamp from the broker's clock, either way.
    pub clock_window: Duration,
    /// The time after which undelivered mail expires.
    pub mail_lifetime: Duration,
    /// The time that an agent has for an ack.
    pub ack_wait: Duration,
    /// The longest extension of a delivery.
    pub extension_max: Duration,
    /// The interval of heartbeats that agents are asked for. After three missed ones an agent is suspect.
    pub heartbeat_interval: Duration,
    /// The time without a sign of life after which an agent is gone.
    pub presence_lease: Duration,
    /// The timeouts of a handoff whose request names none.
    pub timeouts: Timeouts,
    /// The bounds of the timeouts that a request may name.
    pub timeout_bounds: TimeoutBounds,
    /// The limits of the loop guard.
    pub loop_limits: LoopLimits,
    /// The most refusals that one task's custody log records.
    pub refusals_recorded_max: u32,
    /// The most pieces of plain mail that the custody log of a task records. Further mail is delivered and counted.
    pub mail_recorded_max: u32,
    /// The limits of one agent.
    pub limits: AgentLimits,
    /// The limits of each workspace.
    pub workspace: workspace::Limits,
    /// The limits of blobs.
    pub blobs: BlobLimits,
    /// Whether the port has the web console, so that callers can ask for a code for its login.
    pub console: bool,
    /// Whether each schema that a context names has to be registered. Otherwise a context stays unchecked where its
    /// schema is not registered.
    pub require_registered_schemas: bool,
    /// The services that the operator can switch off.
    pub services: Services,
    /// The times of negotiations whose request names none.
    pub negotiation_times: NegotiationTimes,
    /// Whether the broker accepts plans.
    pub plans_enabled: bool,
    /// The terms of plans, where a plan names none.
    pub plan_terms: plan::Terms,
    /// The retention of ended and settled records.
    pub retention: Retention,
    /// The limits of all clients together.
    pub broker_limits: BrokerLimits,
    /// Whether the broker accepts unsigned envelopes. Only for development, only on loopback.
    pub unsigned_allowed: bool,
}

/// Whether agents may use each service. What they began before goes on to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Services {
    /// Requests for offers, and the answers to them.
    pub negotiation: bool,
    /// `Delegation` and `Info` between agents.
    pub mail: bool,
    /// Appends to workspaces, also those of a plan's results, and reads.
    pub workspace: bool,
}

impl Default for Services {
    fn default() -> Self {
        Self { negotiation: true, mail: true, workspace: true }
    }
}

/// The times of a negotiation whose request names none (SPEC 6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NegotiationTimes {
    /// The time for offers, at most [`OFFERS_TIMEOUT_MAX`].
    pub offers: Duration,
    /// The time for the decision, at most [`OFFERS_TIMEOUT_MAX`].
    pub decision: Duration,
}

/// The longest time for offers, and the longest for the decision.
pub const OFFERS_TIMEOUT_MAX: Duration = Duration::from_secs(60 * 60);

impl Default for NegotiationTimes {
    fn default() -> Self {
        Self { offers: Duration::from_secs(30), decision: Duration::from_secs(60) }
    }
}

/// The limits of blobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlobLimits {
    /// The most bytes of one blob.
    pub blob_bytes_max: u64,
    /// The most bytes of all blobs and uploads of one agent.
    pub agent_bytes_max: u64,
    /// The most unfinished uploads of one agent.
    pub agent_uploads_max: u32,
    /// The time for which a blob without a hold is kept, and an upload that is not continued.
    pub unheld_lifetime: Duration,
}

impl Default for BlobLimits {
    fn default() -> Self {
        Self {
            blob_bytes_max: 1 << 30,
            agent_bytes_max: 10 << 30,
            agent_uploads_max: 64,
            unheld_lifetime: Duration::from_secs(24 * 60 * 60),
        }
    }
}

/// The limits of one agent, so that no agent can crowd out the others (SPEC 5). 0 means no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AgentLimits {
    /// The most envelopes and calls per second. The burst is as large.
    pub messages_per_second: u32,
    /// The most CPU time, in milliseconds per second, of its reads, checks and console pages, and of the messages and
    /// requests over 64 KiB. All callers without an identity together have as much.
    pub cpu_ms_per_second: u32,
    /// The same for an operator.
    pub operator_cpu_ms_per_second: u32,
    /// The most bytes of envelopes per second. The burst is as large, and at least one frame.
    pub bytes_per_second: u32,
    /// The most open handoffs that the agent has requested.
    pub open_handoffs_max: u32,
    /// The most negotiations in which it waits for offers or decides about them.
    pub open_negotiations_max: u32,
    /// The most plans that it has submitted and that run.
    pub running_plans_max: u32,
    /// The most runs that it has started and that have not ended.
    pub open_runs_max: u32,
    /// The most threads that it has created and that have not ended.
    pub open_threads_max: u32,
    /// The most bytes that the opening of these stored: of its open negotiations, plans, runs and threads.
    pub open_bytes_max: u64,
    /// The most bytes that it stores: of its messages, and of the logs of its runs, threads and plans.
    pub stored_bytes_max: u64,
    /// The most messages that wait in its mailbox.
    pub mailbox_max: u32,
    /// The most open sessions and calls of `Receive`.
    pub sessions_max: u32,
    /// The most changes of its card and keys per minute. The burst is as large. Each change is an entry of the audit
    /// log.
    pub card_changes_per_minute: u32,
    /// The most registrations in the registries of graphs, schemas and specs, and changes of its names there, per minute.
    /// The burst is as large. Each change is an entry of the audit log.
    pub name_changes_per_minute: u32,
    /// The most graphs under its names.
    pub graphs_max: u32,
    /// The most versions of schemas under its names.
    pub schemas_max: u32,
    /// The most specs of personas under its names, and as many specs of models.
    pub specs_max: u32,
}

impl Default for AgentLimits {
    fn default() -> Self {
        Self {
            messages_per_second: 20_000,
            // Half a core: the engine has a thread of its own, so on two cores one agent leaves all others room.
            cpu_ms_per_second: 500,
            operator_cpu_ms_per_second: 1000,
            bytes_per_second: 256 * 1024 * 1024,
            open_handoffs_max: 100_000,
            open_negotiations_max: 1000,
            running_plans_max: 1000,
            open_runs_max: 10_000,
            open_threads_max: 10_000,
            open_bytes_max: 256 * 1024 * 1024,
            stored_bytes_max: 10 << 30,
            mailbox_max: 1_000_000,
            sessions_max: 256,
            card_changes_per_minute: 60,
            name_changes_per_minute: 600,
            graphs_max: 100,
            schemas_max: 400,
            specs_max: 100,
        }
    }
}

/// The retention of records that no operation needs any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// The time for which a message is recognised by its id (SPEC 4). At least twice the clock window, so that no
    /// message is applied twice.
    pub message_ids: Duration,
    /// The time for which an ended task is kept, with its handoffs and its custody log. `None`: for ever.
    pub ended_tasks: Option<Duration>,
    /// The time after which a task in status CREATED is cancelled, if it has no open handoff, no message about it has come
    /// and its owner was not seen. `None`: never.
    pub idle_tasks: Option<Duration>,
    /// The time for which a dead letter is kept after its decision. `None`: for ever.
    pub settled_dead_letters: Option<Duration>,
    /// The size of the store, in bytes, above which the oldest ended tasks are removed at any age. `None`: no limit.
    pub store_bytes_max: Option<u64>,
    /// The entries of a custody log that one step of a removal examines or removes.
    pub entries_a_step: usize,
    /// The time for which an entry of the audit log is kept. `None`: for ever.
    pub audit: Option<Duration>,
    /// The most entries of the audit log; the oldest go first. `None`: no limit.
    pub audit_entries_max: Option<u64>,
}

impl Default for Retention {
    fn default() -> Self {
        let days = |days: u64| Duration::from_secs(days * 24 * 60 * 60);
        Self {
            message_ids: days(2),
            ended_tasks: Some(days(30)),
            idle_tasks: Some(days(30)),
            settled_dead_letters: Some(days(30)),
            store_bytes_max: None,
            entries_a_step: 256,
            audit: Some(days(400)),
            audit_entries_max: Some(1_000_000),
        }
    }
}

/// The limits of all clients together, with or without an identity. They bound the broker's memory (SPEC 5). 0 means no
/// limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BrokerLimits {
    /// The most open connections.
    pub connections_max: u32,
    /// The most connections in their handshake.
    pub handshakes_max: u32,
    /// The most calls, streams and HTTP requests under way, on all connections.
    pub calls_max: u32,
    /// The most calls and streams under way on one connection.
    pub calls_per_connection_max: u32,
    /// The most bytes of frames that arrive or wait to be sent.
    pub frame_bytes_max: u64,
    /// The percentage of each of these that the clients of one network may have. A network is an IPv4 address or an
    /// IPv6 /64.
    pub network_percent_max: u32,
    /// The bytes that one call may send ahead of the reader.
    pub window_bytes: u32,
    /// The bytes that all calls of one connection may send ahead of the reader. The number of small frames ahead
    /// follows from it: [`BrokerLimits::unread_frames`].
    pub connection_window_bytes: u32,
    /// The time in which a frame, or the head of an HTTP/1.1 request, must arrive.
    pub frame_timeout: Duration,
    /// The time after which a silent connection is probed.
    pub keepalive_interval: Duration,
    /// The time in which a probed connection must answer.
    pub keepalive_timeout: Duration,
    /// The most registered agents.
    pub agents_max: u32,
    /// The most encoded bytes of the cards of all agents; in memory they take about three times as much.
    pub card_bytes_max: u64,
    /// The most bytes that the opening of all open negotiations, plans, runs and threads stored.
    pub open_bytes_max: u64,
}

impl Default for BrokerLimits {
    fn default() -> Self {
        Self {
            connections_max: 8192,
            handshakes_max: 2048,
            calls_max: 32_768,
            calls_per_connection_max: 1024,
            frame_bytes_max: 256 * 1024 * 1024,
            network_percent_max: 50,
            window_bytes: 256 * 1024,
            connection_window_bytes: 4 * 1024 * 1024,
            frame_timeout: Duration::from_secs(30),
            keepalive_interval: Duration::from_secs(30),
            keepalive_timeout: Duration::from_secs(10),
            agents_max: 100_000,
            card_bytes_max: 256 * 1024 * 1024,
            open_bytes_max: 1024 * 1024 * 1024,
        }
    }
}

/// The bytes that the HTTP/2 library counts for an unread frame smaller than this.
const SMALL_FRAME_BYTES: u32 = 256;
/// The least number of small unread frames that the library allows, for any window.
const UNREAD_FRAMES_MIN: u32 = 100;

impl BrokerLimits {
    /// The most small unread frames of one connection. One more ends the connection with ENHANCE_YOUR_CALM: the library
    /// counts each as 256 bytes, and allows half the connection's window of them.
    pub fn unread_frames(&self) -> u32 {
        (self.connection_window_bytes / 2 / SMALL_FRAME_BYTES).max(UNREAD_FRAMES_MIN)
    }

    /// The most credit of all sessions of one connection, so that the connection survives when every delivery is acked
    /// while nothing is read. Each call may have one more unread frame, and an eighth is for heartbeats and extensions.
    pub fn credit_per_connection(&self) -> u32 {
        let frames = self.unread_frames();
        let calls = match self.calls_per_connection_max {
            // 0 means no limit of calls: then half of the frames are set aside for them.
            0 => frames / 2,
            calls => calls.min(frames / 2),
        };
        frames - calls - frames / 8
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            clock_window: Duration::from_secs(5 * 60),
            mail_lifetime: Duration::from_secs(48 * 60 * 60),
            ack_wait: Duration::from_secs(30),
            extension_max: Duration::from_secs(10 * 60),
            heartbeat_interval: Duration::from_secs(10),
            presence_lease: Duration::from_secs(60),
            timeouts: Timeouts::default(),
            timeout_bounds: TimeoutBounds {
                shortest: Duration::from_millis(100),
                longest: Duration::from_secs(7 * 24 * 60 * 60),
            },
            loop_limits: LoopLimits::default(),
            refusals_recorded_max: 256,
            mail_recorded_max: 1000,
            limits: AgentLimits::default(),
            workspace: workspace::Limits::default(),
            blobs: BlobLimits::default(),
            console: false,
            require_registered_schemas: false,
            services: Services::default(),
            negotiation_times: NegotiationTimes::default(),
            plans_enabled: true,
            plan_terms: plan::Terms::default(),
            retention: Retention::default(),
            broker_limits: BrokerLimits::default(),
            unsigned_allowed: false,
        }
    }
}

impl Settings {
    /// The presence rule of a broker that starts at this time.
    pub fn presence_rule(&self, started_at: Timestamp) -> PresenceRule {
        PresenceRule { suspect_after: self.heartbeat_interval * 3, lease: self.presence_lease, started_at }
    }
}

/// The broker's own key, which signs receipts and the broker's messages.
#[derive(Debug, Clone)]
pub struct BrokerIdentity {
    /// The id of the key.
    pub key_id: KeyId,
    /// The private ed25519 key.
    pub key: PrivateKey,
    /// The signer of the coordinator's messages.
    pub coordinator: Signer,
}

/// Signs the messages of the coordinator. The engine gets it like the clock and the random numbers, so that no rule of
/// the protocol knows a private key.
#[derive(Debug, Clone)]
pub struct Signer {
    key_id: KeyId,
    key: PrivateKey,
}

impl Signer {
    /// A signer with this key. The id of the key is derived from the key, so that no two keys of the coordinator have
    /// the same id.
    pub fn new(key: PrivateKey) -> Self {
        let fingerprint = signing::sha256(&[key.public().as_bytes()]);
        let key_id = KeyId::parse(&format!("coordinator-{}", hex::encode(&fingerprint[..8]))).expect("it is a name");
        Self { key_id, key }
    }

    /// The public half, as on the coordinator's card.
    pub fn public_key(&self) -> v1::AgentKey {
        v1::AgentKey {
            key_id: self.key_id.to_string(),
            public_key: self.key.public().as_bytes().to_vec().into(),
            ..Default::default()
        }
    }

    /// Signs an envelope of the coordinator: sets its key, version and signature.
    pub fn sign(&self, envelope: &mut v1::Envelope) {
        envelope::sign(envelope, &self.key_id, &self.key);
    }
}

impl BrokerIdentity {
    /// The public key, with which clients verify receipts.
    pub fn public(&self) -> PublicKey {
        self.key.public()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acks_of_all_credit_and_a_frame_of_each_call_may_be_unread() {
        let limits = BrokerLimits::default();
        assert_eq!((limits.unread_frames(), limits.credit_per_connection()), (8192, 6144));
        for (connection_window_bytes, calls_per_connection_max) in
            [(65_535, 1024), (65_535, 0), (1 << 20, 100), (u32::MAX / 2, 0), (1 << 22, u32::MAX)]
        {
            let limits = BrokerLimits { connection_window_bytes, calls_per_connection_max, ..limits };
            let left = limits.unread_frames() - limits.credit_per_connection();
            assert!(limits.credit_per_connection() > 0 && left > 0, "{limits:?}");
            assert!(left >= calls_per_connection_max.min(limits.unread_frames() / 2), "{limits:?}");
        }
    }
}

//! What the operator decides about the protocol. Read once, at the start, but for the policies.

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwap;

use crate::{
    domain::{
        TimeoutBounds,
        handoff::{LoopLimits, Timeouts},
        presence::PresenceRule,
    },
    envelope::keys::{PrivateKey, PublicKey},
    ids::KeyId,
    policy::Policies,
    time::Timestamp,
};

/// The limits and spans of SPEC 2, 3 and 4.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How far an envelope's timestamp may be from the broker's clock, either way.
    pub clock_window: Duration,
    /// How long mail waits for its receiver before it expires.
    pub mail_lifetime: Duration,
    /// How long an agent has for an ack.
    pub ack_wait: Duration,
    /// The longest extension of a delivery.
    pub extension_max: Duration,
    /// How often agents are asked for a heartbeat. After three missed ones an agent is suspect.
    pub heartbeat_interval: Duration,
    /// After how long without a sign of life an agent is gone.
    pub presence_lease: Duration,
    /// Timeouts of a handoff whose request names none.
    pub timeouts: Timeouts,
    /// What a request may name.
    pub timeout_bounds: TimeoutBounds,
    /// The loop guard.
    pub loop_limits: LoopLimits,
    /// Most refusals that one task's custody log keeps.
    pub refusals_recorded_max: u32,
    /// What one agent may use.
    pub limits: AgentLimits,
    /// What is removed, and when.
    pub retention: Retention,
    /// What all clients together may use.
    pub broker_limits: BrokerLimits,
    /// Whether unsigned envelopes are taken. Only for development, only on loopback.
    pub unsigned_allowed: bool,
    /// Who may do what. May change while the broker runs.
    pub policies: Arc<ArcSwap<Policies>>,
}

/// What one agent may use, so that none can crowd out the others (SPEC 5). 0 means no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AgentLimits {
    /// Envelopes a second, and calls and what lists look at; as many may come at once.
    pub messages_per_second: u32,
    /// Bytes of envelopes a second; as many may come at once, and at least one frame.
    pub bytes_per_second: u32,
    /// Handoffs that it has asked for and that are open.
    pub open_handoffs_max: u32,
    /// Messages that wait in its mailbox.
    pub mailbox_max: u32,
    /// Sessions and calls of `Receive` that it has open.
    pub sessions_max: u32,
    /// Changes of its card and its keys a minute; as many may come at once. Each is an entry of the audit log.
    pub card_changes_per_minute: u32,
}

impl Default for AgentLimits {
    fn default() -> Self {
        Self {
            messages_per_second: 20_000,
            bytes_per_second: 256 * 1024 * 1024,
            open_handoffs_max: 100_000,
            mailbox_max: 1_000_000,
            sessions_max: 256,
            card_changes_per_minute: 60,
        }
    }
}

/// How long things are kept that nothing waits for any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// How long a message is recognised by its id (SPEC 4). At least twice the clock window, so that nothing is applied
    /// twice.
    pub message_ids: Duration,
    /// How long a task is kept after it has ended, with its handoffs and its custody log. `None`: for good.
    pub ended_tasks: Option<Duration>,
    /// How long a dead letter is kept after somebody decided about it. `None`: for good.
    pub settled_dead_letters: Option<Duration>,
    /// From this size of the store on, the tasks that ended first are removed, however young. `None`: from none.
    pub store_bytes_max: Option<u64>,
    /// Entries of a custody log that are looked at, or removed, at a time.
    pub entries_a_step: usize,
    /// How long an entry of the audit log is kept. `None`: for good.
    pub audit: Option<Duration>,
    /// Most entries of the audit log; the first go first. `None`: no limit.
    pub audit_entries_max: Option<u64>,
}

impl Default for Retention {
    fn default() -> Self {
        let days = |days: u64| Duration::from_secs(days * 24 * 60 * 60);
        Self {
            message_ids: days(2),
            ended_tasks: Some(days(30)),
            settled_dead_letters: Some(days(30)),
            store_bytes_max: None,
            entries_a_step: 256,
            audit: Some(days(400)),
            audit_entries_max: Some(1_000_000),
        }
    }
}

/// What all clients together may use, whoever they are: it bounds the broker's memory (SPEC 5). 0 means no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BrokerLimits {
    /// Connections that are open.
    pub connections_max: u32,
    /// Connections that are not open yet.
    pub handshakes_max: u32,
    /// Calls and streams under way, and HTTP requests, on all connections.
    pub calls_max: u32,
    /// Calls and streams under way on one connection.
    pub calls_per_connection_max: u32,
    /// Bytes of frames that are on their way in, or wait to go out.
    pub frame_bytes_max: u64,
    /// How much of each of these the clients of one network may have; a network is an IPv4 address or an IPv6 /64.
    pub network_percent_max: u32,
    /// Bytes that one call may send ahead of what is read from it.
    pub window_bytes: u32,
    /// The same for all calls of one connection. How many small frames they may send ahead follows from it:
    /// [`BrokerLimits::unread_frames`].
    pub connection_window_bytes: u32,
    /// How long a frame may take to arrive, or the head of a request over HTTP/1.1.
    pub frame_timeout: Duration,
    /// After how long a silent connection is asked whether it is still there.
    pub keepalive_interval: Duration,
    /// How long it has for the answer.
    pub keepalive_timeout: Duration,
    /// Agents that are registered.
    pub agents_max: u32,
    /// Bytes of the cards of all agents, as they are encoded; in memory they take about three times as much.
    pub card_bytes_max: u64,
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
        }
    }
}

/// What HTTP/2's library counts for a frame that is not read yet and is smaller than this, in bytes.
const SMALL_FRAME_BYTES: u32 = 256;
/// The least number of such frames that it allows, however small the window is.
const UNREAD_FRAMES_MIN: u32 = 100;

impl BrokerLimits {
    /// How many small frames of one connection may be unread. One more ends the connection with ENHANCE_YOUR_CALM: the
    /// library counts each as 256 bytes, and allows half the connection's window of them.
    pub fn unread_frames(&self) -> u32 {
        (self.connection_window_bytes / 2 / SMALL_FRAME_BYTES).max(UNREAD_FRAMES_MIN)
    }

    /// The most credit that all sessions of one connection have together, so that the connection goes on though every
    /// delivery is acked while nothing is read. Each call may have a frame unread as well, and an eighth is for heartbeats
    /// and extensions.
    pub fn credit_per_connection(&self) -> u32 {
        let frames = self.unread_frames();
        let calls = match self.calls_per_connection_max {
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
            limits: AgentLimits::default(),
            retention: Retention::default(),
            broker_limits: BrokerLimits::default(),
            unsigned_allowed: false,
            policies: Arc::new(ArcSwap::new(Policies::built_in())),
        }
    }
}

impl Settings {
    /// When an agent is taken for gone, at a broker that starts now.
    pub fn presence_rule(&self, started_at: Timestamp) -> PresenceRule {
        PresenceRule { suspect_after: self.heartbeat_interval * 3, lease: self.presence_lease, started_at }
    }
}

/// The broker's own key, which signs receipts and its own messages.
#[derive(Debug, Clone)]
pub struct BrokerIdentity {
    /// Its name.
    pub key_id: KeyId,
    /// The key.
    pub key: PrivateKey,
}

impl BrokerIdentity {
    /// The public half.
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

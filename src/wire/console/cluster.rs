//! What the console shows of a cluster of brokers. The server fills it in.

use std::{pin::Pin, sync::Arc};

use crate::time::Timestamp;

/// The cluster of the broker.
#[derive(Debug)]
pub struct ClusterShown {
    /// Its name.
    pub name: String,
    /// The shared log, without a password.
    pub log: String,
    /// The last entry of the log; 0: it has none.
    pub end: u64,
    /// The broker that leads. Empty: none.
    pub leader: String,
    /// The number of takeovers up to its own.
    pub term: u64,
    /// Why no broker leads. Empty while one does.
    pub why_nobody_leads: String,
    /// Settings of the log with which entries can be lost.
    pub problems: Vec<String>,
    /// What to do about a broker that differs from the log. `None`: there is none.
    pub advice: Option<&'static str>,
    /// The brokers in the order of their names.
    pub brokers: Vec<BrokerShown>,
}

/// A broker of the cluster.
#[derive(Debug)]
pub struct BrokerShown {
    /// Its name.
    pub name: String,
    /// The name of its role, in lower case; "gone" or "forgotten" if it does not answer.
    pub role: String,
    /// The last entry that its tables have.
    pub position: u64,
    /// The entries that its tables lack.
    pub behind: u64,
    /// The time since its tables last had the end of the log, in milliseconds. `None`: it does not answer.
    pub lag_ms: Option<u64>,
    /// The last entry that its checkpoint on the disk has.
    pub flushed_upto: u64,
    /// The connections that it relays to the leader. `None`: it does not answer.
    pub relayed: Option<u64>,
    /// The version of its program.
    pub version: String,
    /// The address at which other brokers reach it.
    pub address: String,
    /// When it answered last, or wrote last into the register.
    pub seen_at: Timestamp,
    /// Whether it answers now.
    pub answers: bool,
    /// What is wrong with it. Empty: nothing.
    pub problem: String,
}

/// Reads the state of the cluster, or says why the shared log does not tell it. Takes some seconds at most.
pub type ClusterSource =
    Arc<dyn Fn() -> Pin<Box<dyn Future<Output = Result<ClusterShown, String>> + Send>> + Send + Sync>;

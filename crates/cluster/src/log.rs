//! The two primitives of a cluster: a log that has one end, and small values that change by compare and set.
//!
//! Owns the traits and the promises P1 to P5 of an engine behind them; [`crate::conformance`] checks these. Must not know
//! the content of an entry.
//!
//! | | an engine promises |
//! |---|---|
//! | P1 | of two appends behind the same entry, at most one is ever in the log |
//! | P2 | an acknowledged append is never lost, and every later read has it |
//! | P3 | when an append at `p` is acknowledged, all entries before `p` are as durable |
//! | P4 | an append with an unknown outcome cannot come into the log once another entry is at its position |
//! | P5 | of two writes of a register with the same expected version, at most one succeeds |

use async_trait::async_trait;
use bytes::Bytes;

pub use crate::entry::Position;

/// The engine did not answer, or it answered with an error. The words are for an operator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the shared log cannot be reached: {0}")]
pub struct Unavailable(pub String);

/// An append that was not acknowledged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// The log does not end at `after`. Nothing was written by this append.
    #[error("the log has another end")]
    Fenced,
    /// The entry may be in the log, now or later. Only the log can tell: append the same bytes behind the same entry.
    #[error("the outcome of an append is unknown: {0}")]
    Unknown(String),
    /// Nothing was written.
    #[error("an entry of {bytes} bytes is too large: the limit is {bytes_max}")]
    TooLarge {
        /// The bytes of the entry.
        bytes: usize,
        /// The most bytes that the engine accepts.
        bytes_max: usize,
    },
}

/// A read that returned nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The log begins behind the position: older entries were trimmed.
    #[error("the log begins at {first}, behind the wanted entry")]
    Trimmed {
        /// The position of its first entry.
        first: Position,
    },
    /// The engine did not answer.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// The engine has other bytes than it was given, as far as it can tell.
    #[error("the shared log is damaged: {0}")]
    Damaged(String),
}

/// A write of a register that was not acknowledged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// The value has another version than expected. Nothing was written by this call.
    #[error("the value has changed")]
    Changed,
    /// The value may be written, now or later. A read tells.
    #[error("the outcome of a write is unknown: {0}")]
    Unknown(String),
}

/// What an operator should know about the settings of an engine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    /// Settings with which an acknowledged entry can be lost. A broker does not start with one; the words say what to set.
    pub unsafe_ones: Vec<String>,
    /// Settings that are permitted, and that lose entries in a failover of the engine.
    pub warnings: Vec<String>,
}

/// A log with one end. Several brokers append to it; the engine decides which append comes next.
#[async_trait]
pub trait SharedLog: Send + Sync {
    /// Adds an entry at `after + 1`, if the log ends at `after`. On `Ok` the entry and all before it are durable.
    async fn append(&self, after: Position, entry: Bytes) -> Result<(), AppendError>;

    /// The position of the last entry; 0 for an empty log.
    async fn end(&self) -> Result<Position, Unavailable>;

    /// Entries from `from` on, in order, about `bytes` of them, and one at least unless the log ends before `from`.
    async fn read(&self, from: Position, bytes: usize) -> Result<Vec<(Position, Bytes)>, ReadError>;

    /// Permits the engine to drop entries in front of `before`. The last entry always stays.
    async fn trim(&self, before: Position) -> Result<(), Unavailable>;

    /// The bytes of the entries that the log has.
    async fn size_bytes(&self) -> Result<u64, Unavailable>;

    /// The largest entry in bytes.
    fn entry_bytes_max(&self) -> usize;

    /// What makes this log unsafe. Asked at the start of a broker.
    async fn settings(&self) -> Result<Settings, Unavailable>;
}

/// The version of a value. It changes with each write, and never comes back.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Version(pub String);

/// The longest name of a value in characters. A name has letters, digits, `.`, `_`, `-`, and `/` between its parts.
pub const NAME_LENGTH_MAX: usize = 160;
/// The most bytes of a value.
pub const VALUE_BYTES_MAX: usize = 64 * 1024;

/// Small values by name, each with a version.
#[async_trait]
pub trait Register: Send + Sync {
    /// A value and its version; `None` if it was never written.
    async fn read(&self, name: &str) -> Result<Option<(Version, Bytes)>, Unavailable>;

    /// Writes a value if it has the expected version; `None` expects that it was never written.
    async fn write(&self, name: &str, expected: Option<&Version>, value: Bytes) -> Result<Version, WriteError>;

    /// The names of all values that begin with `prefix`, in order.
    async fn names(&self, prefix: &str) -> Result<Vec<String>, Unavailable>;
}

/// Checks the grammar of a name. Its parts are those of a path: none is empty, and none begins with a dot.
pub fn is_name(name: &str) -> bool {
    let is_part = |part: &str| {
        let permitted = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
        !part.is_empty() && !part.starts_with('.') && part.bytes().all(permitted)
    };
    name.len() <= NAME_LENGTH_MAX && name.split('/').all(is_part)
}

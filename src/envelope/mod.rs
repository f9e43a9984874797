//! The envelope: from bytes that anybody may have sent to a [`VerifiedEnvelope`].
//!
//! Owns the limits of every field, what payload belongs to which message type, the signing layout and keys. Once a
//! [`VerifiedEnvelope`] exists nobody checks it again, and there is one way to make one. Must not know the state of any
//! task, who may say what when, or how envelopes are stored.

mod author;
mod checks;
mod error;
mod input;
pub mod keys;
mod payload;
pub mod signing;
mod verified;

pub use author::{payload_of, sign};
pub use checks::Checks;
pub use error::EnvelopeError;
pub use input::{Resolved, input_of};
pub use payload::{Body, RequestBody, check_heartbeat};
pub use verified::{KeyRing, KeyRingError, UnverifiedEnvelope, VerifiedEnvelope};

/// Largest payload value, in bytes.
pub const PAYLOAD_BYTES_MAX: usize = 1024 * 1024;
/// Largest frame, in bytes.
pub const FRAME_BYTES_MAX: usize = 4 * 1024 * 1024;

//! The envelope: from the bytes of any client to a [`VerifiedEnvelope`].
//!
//! This module owns the limits of every field, the payload type of each message type, the signing layout, and keys. A
//! [`VerifiedEnvelope`] needs no further check, and only one function makes one. The module must not know the state of
//! a task, the permissions of agents, or how envelopes are stored.

mod author;
mod checks;
mod context;
mod error;
pub mod history;
mod json;
pub mod keys;
mod payload;
pub mod sections;
pub mod signing;
mod verified;

pub use author::{payload_of, sign};
pub use checks::{Checks, Parsed};
pub use context::{context_of_sections, digest_of, only_sections};
pub use error::EnvelopeError;
pub use json::{JSON_DEPTH_MAX, JsonError, json_members, read_checked_json, read_json};
pub use payload::{Body, CreateBody, PromptBody, RequestBody, TaskOfferBody, TaskRequestBody, check_heartbeat};
pub use verified::{KeyRing, KeyRingError, UnverifiedEnvelope, VerifiedEnvelope, trace_context};

/// The largest payload value, in bytes.
pub const PAYLOAD_BYTES_MAX: usize = 1024 * 1024;
/// The largest payload value of a `WorkspaceAppend`, in bytes: 4 KiB more than that of any other message.
pub const APPEND_BYTES_MAX: usize = PAYLOAD_BYTES_MAX + 4096;
/// The largest frame, in bytes.
pub const FRAME_BYTES_MAX: usize = 4 * 1024 * 1024;

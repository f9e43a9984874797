//! baton: a gRPC handoff broker. ARCHITECTURE.md maps its crates and modules.

#![forbid(unsafe_code)]
// Only the library has an API; tests and benches share items by a plain `pub`.
#![warn(unreachable_pub)]

#[cfg(feature = "program")]
pub mod cli;
pub mod config;
#[doc(hidden)]
pub mod fuzzing;
#[cfg(feature = "program")]
pub mod server;
pub mod wire;

pub use baton_broker_core::{self as broker, blobs, envelope, metrics, policy, records, replay, traces};
pub use baton_domain as domain;
pub use baton_protocol::{codes, ids, time};
pub use baton_store::{self as store, disk};

/// The schema: its messages, the broker's side of the services, and the records on disk.
pub mod proto {
    pub use baton_broker_core::proto::{Any, DESCRIPTORS, STORAGE_DESCRIPTORS, storage};
    pub use baton_services::v1;
}

//! baton: a gRPC handoff broker. ARCHITECTURE.md maps its modules.

#![forbid(unsafe_code)]
// Only the library has an API; tests and benches share items by a plain `pub`.
#![warn(unreachable_pub)]

pub mod blobs;
pub mod broker;
pub mod cli;
pub mod config;
mod disk;
pub mod domain;
pub mod envelope;
#[doc(hidden)]
pub mod fuzzing;
pub mod metrics;
pub mod policy;
pub mod proto;
pub mod records;
pub mod replay;
pub mod server;
pub mod store;
pub mod traces;
pub mod wire;

pub use baton_client as client;
pub use baton_client::{codes, ids, time};
pub use baton_conformance as conformance;

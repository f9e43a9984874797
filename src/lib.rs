//! baton: a gRPC handoff broker. ARCHITECTURE.md maps its modules.

pub mod audit;
pub mod broker;
pub mod cli;
pub mod client;
pub mod codes;
pub mod config;
pub mod conformance;
mod disk;
pub mod domain;
pub mod envelope;
#[doc(hidden)]
pub mod fuzzing;
pub mod ids;
pub mod policy;
pub mod proto;
pub mod records;
pub mod server;
pub mod store;
pub mod time;
pub mod wire;

//! baton: a gRPC handoff broker. See ARCHITECTURE.md for the map of the rooms.

pub mod broker;
pub mod codes;
pub mod domain;
pub mod envelope;
pub mod ids;
pub mod proto;
pub mod records;
pub mod store;
pub mod time;
pub mod wire;

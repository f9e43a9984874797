//! The gRPC services of baton, generated once: the client of each, and with the feature `server` the broker's side.
//!
//! The broker itself serves all calls by a codec of its own; the broker's side here is for the conformance suite and the
//! benches. Owns its codec and the one map from errors to gRPC status. Must not know what a service does.

#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

#[cfg(feature = "server")]
pub mod codec;
pub mod status;

/// The wire contract, package `baton.v1`: the messages and the services.
pub mod v1 {
    pub use baton_envelope::proto::v1::*;

    include!(concat!(env!("OUT_DIR"), "/client/baton.v1.rs"));
    #[cfg(feature = "server")]
    include!(concat!(env!("OUT_DIR"), "/server/baton.v1.rs"));
}

//! The wire: the broker's types to and from `baton.v1`, errors to gRPC status, and the services.
//!
//! Owns how things look from outside. Must not decide anything: no rule of the protocol lives here.

pub mod codec;
pub mod grpc;
pub mod quota;
pub mod status;
mod to_proto;

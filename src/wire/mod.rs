//! The wire: the port, the broker's types to and from `baton.v1`, errors to gRPC status, the services and the HTTP routes.
//!
//! Owns how things look from outside. Must not decide anything: no rule of the protocol lives here.

pub mod bounds;
pub mod codec;
pub mod edge;
pub mod grpc;
pub mod http;
pub mod quota;
pub mod status;
mod to_proto;

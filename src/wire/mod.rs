//! The wire: the port, conversion to and from `baton.v1`, errors as gRPC status, the gRPC services and the HTTP routes.
//!
//! Owns the external form of everything. Must not decide anything: no rule of the protocol belongs here.

pub mod bounds;
pub mod console;
pub mod edge;
pub mod grpc;
pub mod guarded;
pub mod http;
pub mod operations;
pub mod quota;
pub mod stream_slots;
mod to_proto;

pub use baton_services::status;

//! The edge: the broker's one port, shared by gRPC and HTTP.
//!
//! Owns everything between the socket and a request: accepting, TLS, recognising HTTP, the limits of HTTP/1.1 and
//! HTTP/2, the facts about a request's connection, and the end of connections when the broker stops. Must not know any
//! call or route, nor the form of a refusal.
//!
//! ```text
//! listener → opening → Connection → serve (HTTP/1.1 or HTTP/2) → Dispatch ─ application/grpc ─→ gRPC: see `grpc`
//!                                                                         └ anything else ────→ HTTP: see `http`
//! ```

mod arrival;
mod connection;
mod dispatch;
mod heads;
mod host;
mod listener;
pub(crate) mod opening;
mod require_tls;
mod serve;

pub(in crate::wire) use self::connection::agent_of;
pub use self::{
    arrival::Arrival,
    connection::{ConnectInfo, Connection, ConnectionCredit, SessionCredit},
    dispatch::Dispatch,
    host::names_host,
    listener::{BindError, Incoming, Listener},
    require_tls::{RequireTls, RequireTlsLayer},
    serve::{HttpLimits, serve},
};

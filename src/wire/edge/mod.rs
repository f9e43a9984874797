//! The edge: the one port of a broker, on which gRPC and HTTP stand side by side.
//!
//! Owns everything between the socket and a request: accepting, TLS, recognising HTTP, the limits of HTTP/1.1 and HTTP/2,
//! what a request learns of its connection, and the end of connections when the broker stops. Must not know any call or
//! route, nor how a refusal looks.
//!
//! ```text
//! listener → opening → Connection → serve (HTTP/1.1 or HTTP/2) → Dispatch ─ application/grpc ─→ gRPC: see `grpc`
//!                                                                         └ anything else ────→ HTTP: see `http`
//! ```

mod connection;
mod dispatch;
mod listener;
pub(crate) mod opening;
mod require_tls;
mod serve;

pub(in crate::wire) use self::connection::agent_of;
pub use self::{
    connection::{ConnectInfo, Connection, ConnectionCredit, SessionCredit},
    dispatch::Dispatch,
    listener::{BindError, Incoming, Listener},
    require_tls::{RequireTls, RequireTlsLayer},
    serve::{HttpLimits, serve},
};

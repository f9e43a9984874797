//! What the brokers of a cluster say to each other.
//!
//! Owns the certificate that all brokers of a cluster share, the relay of connections from a follower to the leader, the peer
//! port, and its calls. Must not know tasks, handoffs or the services of agents: a relayed connection is bytes.
//!
//! ```text
//! agent ─ TLS ─→ follower ─ TLS of peers, ALPN baton-relay ─→ leader     PROXY header, then the agent's TLS as bytes
//! broker, baton cluster ─── TLS of peers, ALPN h2 ──────────→ any broker  baton.peer.v1.PeerService
//! ```

#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

pub mod checkpoint;
pub mod client;
pub mod origin;
pub mod port;
pub mod relay;
pub mod tls;

/// The messages and stubs of the peer port.
#[expect(missing_docs, reason = "the comments are in peer.proto")]
pub mod proto {
    tonic::include_proto!("baton.peer.v1");
}

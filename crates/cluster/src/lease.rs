//! The lease of the leader: a value of the register that says which process may try to lead.
//!
//! Owns its encoding. A lease decides which broker tries to lead, and never about entries.

use bytes::Bytes;
use prost::Message as _;

/// The name of the value in the register.
pub const NAME: &str = "leader";

/// The content of the value.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct Lease {
    /// The broker's name in the cluster.
    #[prost(string, tag = "1")]
    pub broker: String,
    /// The id of its process.
    #[prost(bytes = "bytes", tag = "2")]
    pub process: Bytes,
    /// The address at which other brokers reach it.
    #[prost(string, tag = "3")]
    pub peer_address: String,
    /// The term that the process knew when it wrote this.
    #[prost(uint64, tag = "4")]
    pub term: u64,
    /// One more with each write of the process, so that it knows its own writes again.
    #[prost(uint64, tag = "5")]
    pub counter: u64,
    /// The process has left: another may claim at once.
    #[prost(bool, tag = "6")]
    pub released: bool,
}

impl Lease {
    /// The stored form of the value.
    pub fn to_bytes(&self) -> Bytes {
        self.encode_to_vec().into()
    }

    /// Parses a value. `None`: the value is damaged, which counts as a lease without renewal.
    pub fn parse(value: &Bytes) -> Option<Self> {
        Self::decode(value.clone()).ok()
    }
}

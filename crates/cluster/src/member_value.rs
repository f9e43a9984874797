//! The value of each member in the register: its process, and its last entry.
//!
//! Owns the name and the encoding of the value. Each broker writes `member/NAME` about every five seconds; the leader trims
//! the log by them, and `baton cluster status` shows them.

use bytes::Bytes;
use prost::Message as _;

/// The prefix of the names.
pub const PREFIX: &str = "member/";

/// The name of a broker's value.
pub fn name_of(broker: &str) -> String {
    format!("{PREFIX}{broker}")
}

/// The content of the value.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct MemberValue {
    /// The broker's name in the cluster.
    #[prost(string, tag = "1")]
    pub broker: String,
    /// The id of its process, 16 random bytes drawn at its start.
    #[prost(bytes = "bytes", tag = "2")]
    pub process: Bytes,
    /// The address at which other brokers reach it.
    #[prost(string, tag = "3")]
    pub peer_address: String,
    /// The version of its program.
    #[prost(string, tag = "4")]
    pub version: String,
    /// The highest level of entries that it knows.
    #[prost(uint32, tag = "5")]
    pub level: u32,
    /// The name of its role: [`crate::view::Role::name`].
    #[prost(string, tag = "6")]
    pub role: String,
    /// The number of takeovers that it has applied.
    #[prost(uint64, tag = "7")]
    pub term: u64,
    /// The last entry that its tables have.
    #[prost(uint64, tag = "8")]
    pub position: u64,
    /// The hash of that entry, 32 bytes.
    #[prost(bytes = "bytes", tag = "9")]
    pub hash: Bytes,
    /// The last entry that the checkpoint on its disk has.
    #[prost(uint64, tag = "10")]
    pub flushed_upto: u64,
    /// The time of its wall clock at the write, in milliseconds since 1970. Shown, and never compared to decide.
    #[prost(uint64, tag = "11")]
    pub clock_ms: u64,
    /// The hash of that part of its configuration that should be equal at all members.
    #[prost(bytes = "bytes", tag = "12")]
    pub configuration: Bytes,
    /// An operator has called the member gone: it holds no trimming any more. Its next write sets it to false.
    #[prost(bool, tag = "13")]
    pub forgotten: bool,
}

impl MemberValue {
    /// The stored form of the value.
    pub fn to_bytes(&self) -> Bytes {
        self.encode_to_vec().into()
    }

    /// Parses a value. `None`: a damaged one.
    pub fn parse(value: &Bytes) -> Option<Self> {
        Self::decode(value.clone()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log;

    #[test]
    fn a_value_is_read_as_it_was_written() {
        let value =
            MemberValue { broker: "b1".into(), position: 7, hash: Bytes::from(vec![1; 32]), ..Default::default() };
        assert_eq!(MemberValue::parse(&value.to_bytes()), Some(value));
        assert_eq!(MemberValue::parse(&Bytes::from_static(b"\xff")), None);
    }

    #[test]
    fn each_broker_has_a_name_that_a_register_takes() {
        assert!(log::is_name(&name_of(&"b".repeat(crate::settings::NAME_LENGTH_MAX))));
    }
}

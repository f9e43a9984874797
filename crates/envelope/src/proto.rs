//! The generated types of `proto/baton/v1`. Owns only their inclusion. Must not know any rule of the protocol.
//!
//! Fields of type `Envelope` are `Bytes` here: see `build.rs`.

mod agents;

use bytes::Bytes;

/// `google.protobuf.Any` over [`Bytes`], so that parsing an envelope does not copy its payload.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct Any {
    /// The type of the message: the text after the last `/` is its full name.
    #[prost(string, tag = "1")]
    pub type_url: String,
    /// The encoded message.
    #[prost(bytes = "bytes", tag = "2")]
    pub value: Bytes,
}

/// `google.rpc.Status`: an error within an answer. The details are messages of `google/rpc/error_details.proto`.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct Status {
    /// The number of the gRPC code.
    #[prost(int32, tag = "1")]
    pub code: i32,
    /// The error in words, for developers.
    #[prost(string, tag = "2")]
    pub message: String,
    /// Further facts for programs.
    #[prost(message, repeated, tag = "3")]
    pub details: Vec<Any>,
}

/// The messages of the wire contract, package `baton.v1`.
#[expect(clippy::large_enum_variant, reason = "generated: a message on its way is in few places")]
#[expect(clippy::use_self, reason = "generated: a status of a subtask has one of its own type")]
pub mod v1 {
    include!(concat!(env!("OUT_DIR"), "/baton.v1.rs"));
}

/// The published descriptors of all files in `proto/`, encoded as a `FileDescriptorSet`.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/baton.bin"));

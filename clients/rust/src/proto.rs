//! The generated types of `proto/baton/v1`. Owns only their inclusion. Must not know any rule of the protocol.
//!
//! Fields of type `Envelope` are `Bytes` here: see `build.rs`.

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

/// The wire contract, package `baton.v1`: the messages, and a client of each service.
#[expect(clippy::large_enum_variant, reason = "generated: a message on its way is in few places")]
pub mod v1 {
    tonic::include_proto!("baton.v1");
}

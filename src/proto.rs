//! The generated types of `proto/`: those of the client's crate, the broker's side of the services, and the records on
//! disk. Owns only their inclusion. Must not know any rule of the protocol.
//!
//! Fields of type `Envelope` are `Bytes` here: see `clients/rust/build.rs`.

pub use baton_client::proto::Any;

/// The wire contract, package `baton.v1`.
pub mod v1 {
    pub use baton_client::proto::v1::*;

    tonic::include_proto!("baton.v1");
}

/// The disk contract, package `baton.storage.v1`.
pub mod storage {
    tonic::include_proto!("baton.storage.v1");
}

/// The published descriptors of all files in `proto/`, encoded as a `FileDescriptorSet`.
pub const DESCRIPTORS: &[u8] = tonic::include_file_descriptor_set!("baton");

/// The descriptors of the records on disk, encoded as a `FileDescriptorSet`. Not published.
pub const STORAGE_DESCRIPTORS: &[u8] = tonic::include_file_descriptor_set!("storage");

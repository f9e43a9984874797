//! The generated types of `proto/`: the messages of `baton.v1`, and the records on disk. Must not know a service, nor any
//! rule of the protocol.
//!
//! Fields of type `Envelope` are `Bytes` here: see `crates/envelope/build.rs`.

pub use baton_envelope::proto::{Any, DESCRIPTORS, v1};

/// The disk contract, package `baton.storage.v1`.
pub mod storage {
    include!(concat!(env!("OUT_DIR"), "/baton.storage.v1.rs"));
}

/// The descriptors of the records on disk, encoded as a `FileDescriptorSet`. Not published.
pub const STORAGE_DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/storage.bin"));

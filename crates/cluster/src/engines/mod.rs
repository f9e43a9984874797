//! The engines of a shared log: one file each. Each has a log and a register, and keeps the promises of [`crate::log`].

#[cfg(feature = "s3")]
pub mod bucket;
pub mod directory;
pub mod memory;
pub mod postgres;

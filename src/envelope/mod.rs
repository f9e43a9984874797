//! The envelope.
pub mod keys;
pub mod signing;

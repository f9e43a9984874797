//! The protocol as types: ids, time, error codes, and what the protocol says of a message by itself.
//!
//! Owns the words that agents, clients and brokers share, and the escapes of foreign texts. Must not know the wire format, a
//! signature, or the state of a task. The feature `prost-types` adds one conversion of time.

#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

pub mod codes;
pub mod escape;
pub mod ids;
pub mod lead;
pub mod protocol;
pub mod time;

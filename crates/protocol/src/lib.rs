//! The protocol as types: ids, time, error codes, and what the protocol says of a message by itself.
//!
//! Owns the words that agents, clients and brokers share, and how a text of another agent is shown without harm. Must not know the wire format, a signature, or the state of a
//! task; the types of `prost-types` are known for one conversion of time, by the feature of that name.

#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

pub mod codes;
pub mod escape;
pub mod ids;
pub mod protocol;
pub mod time;

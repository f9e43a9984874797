//! Conformance: rules of the specification as named cases, tried on somebody else's program from outside.
//!
//! `target` tries a broker over the wire alone, `client` a client program that talks to a broker of ours which may lie;
//! `report` is what came of it. Must not know a broker's insides.

pub mod client;
pub mod report;
pub mod target;

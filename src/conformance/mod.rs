//! Conformance: rules of the specification as named cases, tested on a foreign program from outside.
//!
//! `target` tests a broker over the wire, and `client` tests a client program against a scripted broker that may lie.
//! `report` formats the results. Must not know the internals of a broker.

pub mod client;
pub mod report;
pub mod target;

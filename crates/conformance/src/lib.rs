//! Conformance: rules of the specification as named cases, tested on a foreign program from outside.
//!
//! `target` tests a broker over the wire, and `client` tests a client program against a scripted broker that may lie.
//! `report` formats the results. Depends on the client, the stubs and the replay only, so it
//! cannot know the internals of a broker.

#![forbid(unsafe_code)]

pub mod client;
pub mod report;
pub mod target;

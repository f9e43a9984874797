//! Conformance: rules of the specification as named cases, tried on somebody else's program from outside.
//!
//! `target` tries a broker over the wire alone; `report` is what came of it. Must not know a broker's insides.

pub mod report;

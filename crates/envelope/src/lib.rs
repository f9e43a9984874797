//! The envelope of baton, from the bytes of any peer to a message whose signature holds.
//!
//! `proto` has the messages of the schema, and [`envelope`] parses, signs and verifies. Must not know a connection, a
//! service, or any state.

#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

pub mod envelope;
pub mod proto;

use baton_protocol::{codes, ids, protocol, time};

//! From envelopes to the state machines, and the replay of a custody log from empty.
//!
//! `envelope` makes the input of a machine from a verified envelope; the broker's pipeline and [`replay`] share it, so that
//! both get the same input. Must not know a broker, a store or a connection.

#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

pub mod envelope;
pub mod replay;

use baton_domain as domain;
use baton_envelope::proto;
use baton_protocol::{codes, ids, time};

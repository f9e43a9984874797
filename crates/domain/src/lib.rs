//! The pure core: the rules of the protocol as functions of their arguments.
//!
//! This crate owns the rules of state of SPEC 3, 4 and 6 to 10. It must not know tokio, tonic, prost, the store, a clock or a source of
//! random numbers: the present time and every id come in as arguments.

#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

pub mod admission;
pub mod context;
pub mod coordinator;
pub mod dead_letter;
mod entity;
pub mod handoff;
pub mod mailbox;
pub mod matching;
pub mod negotiation;
pub mod plan;
pub mod presence;
#[cfg(debug_assertions)]
pub mod probe;
mod removed_task;
mod request_terms;
pub mod routing;
pub mod threads;
pub mod workspace;

pub(crate) use baton_protocol::numbered;
pub use baton_protocol::protocol::{
    Append, Correlation, ENTRY_BYTES_MAX, Handling, Header, MessageRules, MessageType, Names, OtherSide, Outsider,
    Receiver, Receivers, RequestedTimeouts, TraceContext, rules,
};
use baton_protocol::{codes, ids, time};
pub use entity::{
    Answered, Effect, Entity, EntityId, Input, Mail, ReadError, Reader, Signal, StepError, Transition, step,
};
pub use removed_task::RemovedTask;
pub use request_terms::{TimeoutBounds, check_fallbacks};

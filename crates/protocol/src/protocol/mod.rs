//! What the protocol says of an envelope by itself: the types of messages, the rules of each, and what they carry.
//!
//! The machines of the broker share these types. This module must not know the state of a task, the wire format, a clock
//! or a source of random numbers.

mod handoff;
mod header;
mod message_rules;
mod negotiation;
mod numbered;
mod skill;
mod trace;
mod workspace;

pub use handoff::{Acked, Message, Mode, PassedOver, Priority, Question, RequestedTimeouts, TaskStatus, WorkTerms};
pub use header::{Header, Receiver};
pub use message_rules::{
    Correlation, Handling, MessageRules, MessageType, Names, OtherSide, Outsider, Receivers, rules,
};
pub use negotiation::AwardRule;
pub use skill::Skill;
pub use trace::TraceContext;
pub use workspace::{Append, ENTRY_BYTES_MAX};

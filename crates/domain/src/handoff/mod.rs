//! A task and the handoffs that move it: one state machine, total over every state and input.
//!
//! This module owns the permissions of each side in each state, deadlines, candidates, ownership and epochs, and the
//! loop guard. It must not know the format of an envelope, the place where state is kept, or the way of a delivery to
//! an agent.

mod absence;
mod builder;
mod cancellation;
mod creation;
mod delegations;
mod entity;
mod events;
mod input;
mod numbers;
mod parts;
mod prompts;
mod rejection;
mod seizure;
mod silence;
mod state;
mod step;
mod views;

pub use baton_protocol::protocol::{Acked, Message, Mode, PassedOver, Priority, Question, TaskStatus, WorkTerms};
pub(super) use builder::check_owner;
pub use cancellation::{Cancellation, TaskSignal};
pub(super) use entity::step_entity;
pub use input::{
    Advice, Effect, Input, Mail, NewTask, Notice, Outcome, Request, Seize, Snapshot, Transition, Unavailable, Untaken,
};
pub use rejection::Rejection;
pub use state::*;
pub use step::step;
pub use views::{ReceiverView, SenderView};

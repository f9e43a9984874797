//! A task and the handoffs that move it: one state machine, total over every state and input.
//!
//! Owns who may say what when, deadlines, candidates, ownership and epochs, and the loop guard. Must not know how an
//! envelope looks, where state is kept, or how a delivery gets to an agent.

mod entity;
mod input;
mod moving;
mod numbers;
mod rejection;
mod state;
mod step;
mod views;

pub(super) use entity::step_entity;
pub use input::{
    Acked, Advice, Effect, Input, Mail, Message, Notice, Outcome, Request, Situation, Transition, Untaken,
};
pub use rejection::Rejection;
pub use state::*;
pub use step::step;
pub use views::{ReceiverView, SenderView};

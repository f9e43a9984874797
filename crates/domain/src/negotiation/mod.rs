//! A negotiation: one state machine, total over every state and input.
//!
//! A requester asks agents for offers of a piece of work. This module owns the agents that were asked, their offers and
//! the turns of counter-offers, the close, the rules of the award, and the notices to the bidders. It must not know the
//! format of an envelope, the place where state is kept, or how a task moves: the award opens a handoff, and the handoff
//! reports its outcome.

mod award;
mod building;
mod entity;
mod input;
mod rejection;
mod state;
mod step;
#[cfg(test)]
mod tests;

pub use baton_protocol::protocol::AwardRule;
pub(super) use entity::step_entity;
pub use input::{
    Award, Closed, Effect, Input, NegotiationSignal, NewOffer, Request, Surroundings, Transition, WaitingMail,
};
pub use rejection::Rejection;
pub use state::*;

//! The pure core: the rules of the protocol, as data in and data out.
//!
//! Owns every rule of SPEC 3 and 4. Must not know tokio, tonic, prost, the store, a clock or a source of random numbers:
//! the present time and every id come in as arguments.

mod entity;
pub mod handoff;
pub mod mailbox;
mod numbered;

pub use entity::EntityId;
pub(crate) use numbered::numbered;

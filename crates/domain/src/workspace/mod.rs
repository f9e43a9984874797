//! The machine of a workspace: the numbered entries that the participants of a task, plan, thread or run share (SPEC 8).
//!
//! Owns the numbering, the quotas, the compare-and-append and the expiry of entries. Must not know the content of an
//! entry, which lies in the envelope of its append, nor how entries are stored.

mod owner;
mod rejection;
mod state;
mod step;

pub use super::{Append, ENTRY_BYTES_MAX};
pub use crate::ids::{Topic, WorkspaceId, WorkspaceOwner};
pub use owner::{Owner, owner, owner_entity};
pub use rejection::Rejection;
pub use state::{Entry, Limits, TopicState, Workspace};
#[cfg(test)]
pub(crate) use step::EXPIRED_A_STEP;
pub(super) use step::step;

#[cfg(test)]
mod tests;

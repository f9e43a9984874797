//! Threads: one conversation that changes its persona at step boundaries (SPEC 10).
//!
//! This module owns the revisions of specs, the spec in force of a thread, requests and how each ends, boundaries, and
//! the lease of the runner. It must not know a model, a prompt, or the history of the conversation.

mod machine;
mod rejection;
mod spec;
mod state;

pub(super) use machine::{step_spec, step_thread};
pub use rejection::Rejection;
pub use spec::{PLUGIN, PLUGINS_MAX, REVISIONS_MAX, SPECS_MAX, Spec, SpecKind, Unresolved};
pub use state::{
    ACTIONS_KNOWN, Action, ActionId, Boundary, Create, EndedRequest, Event, IDLE, InForce, Input, KnownAction, LEASE,
    LOG_KEPT, OpenRun, PARTICIPANTS_MAX, Request, RequestEnd, Thread, ThreadEntry, ThreadRunId,
};

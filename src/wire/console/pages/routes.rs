//! The routes of the pages about tasks, plans, single agents and the log of administrative acts.

use axum::{Router, routing::get};

use super::{agent, audit, plans, task};
use crate::wire::console::Console;

/// The routes. The caller of this adds the session and the state.
pub(in crate::wire::console) fn router() -> Router<Console> {
    Router::new()
        .route("/tasks/{id}", get(task::show))
        .route("/plans", get(plans::list))
        .route("/plans/{id}", get(plans::show))
        .route("/agents/{id}", get(agent::show))
        .route("/audit", get(audit::list))
}

//! The routes of the pages about tasks, plans, single agents and the log of administrative acts.

use axum::{Router, routing::get};

use super::{agent, audit, negotiations, overview, plans, policy, runs, task, threads, workspaces};
use crate::wire::console::Console;

/// The routes. The caller of this adds the session and the state.
pub(in crate::wire::console) fn router() -> Router<Console> {
    Router::new()
        .route("/overview", get(overview::show))
        .route("/tasks/{id}", get(task::show))
        .route("/plans", get(plans::list))
        .route("/plans/{id}", get(plans::show))
        .route("/negotiations", get(negotiations::list))
        .route("/negotiations/{id}", get(negotiations::show))
        .route("/threads", get(threads::list))
        .route("/threads/{id}", get(threads::show))
        .route("/runs", get(runs::list))
        .route("/runs/{id}", get(runs::show))
        .route("/workspaces/{id}", get(workspaces::show))
        .route("/agents/{id}", get(agent::show))
        .route("/audit", get(audit::list))
        .route("/policy", get(policy::explain))
}

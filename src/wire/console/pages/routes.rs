//! The routes of the pages.

use axum::{Router, routing::get};

use super::{
    acts, agent, agents, audit, cluster, dead_letters, handoff, handoffs, map, negotiations, overview, plans, policy,
    registry, runs, task, tasks, threads, workspaces,
};
use crate::wire::console::Console;

/// The routes. The caller of this adds the session and the state.
pub(in crate::wire::console) fn router() -> Router<Console> {
    acts::router()
        .route("/overview", get(overview::show))
        .route("/handoffs", get(handoffs))
        .route("/handoffs/{id}", get(handoff::show))
        .route("/tasks", get(tasks::list))
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
        .route("/registry", get(registry::list))
        .route("/agents", get(agents))
        .route("/agents/{id}", get(agent::show))
        .route("/map", get(map::show))
        .route("/dead-letters", get(dead_letters::list))
        .route("/dead-letters/redrive", get(dead_letters::review).post(dead_letters::redrive_matching))
        .route("/dead-letters/{number}", get(dead_letters::one))
        .route("/cluster", get(cluster::show))
        .route("/audit", get(audit::list))
        .route("/policy", get(policy::explain))
}

//! The brokers of a cluster: who leads, and how far each other one is. A broker that is alone has no such page.

use askama::Template;
use axum::{Extension, extract::State, response::Response};
use http::StatusCode;

use crate::{
    broker::access::Caller,
    policy::Action,
    wire::console::{Console, cluster::ClusterShown, page, plain, refused},
};

#[derive(Template)]
#[template(path = "cluster.html")]
struct ClusterPage {
    who: String,
    /// Or why the shared log does not tell it.
    cluster: Result<ClusterShown, String>,
}

pub(super) async fn show(State(console): State<Console>, Extension(caller): Extension<Caller>) -> Response {
    let Some(look) = &console.cluster else { return plain(StatusCode::NOT_FOUND, "This broker is alone.\n") };
    // First, so that a caller without the right causes no look.
    if let Err(error) = console.broker.access().check_broker(&caller, Action::ReadAuditLog) {
        return refused(&caller, &error);
    }
    page(StatusCode::OK, &ClusterPage { who: caller.to_string(), cluster: look().await })
}

//! Explains what the policies in force decide.

use askama::Template;
use axum::{
    Extension,
    extract::{Query, State},
    response::Response,
};
use serde::Deserialize;

use super::shown;
use crate::{
    broker::{
        access::Caller,
        explain::{AskedPolicy, ExplainedPolicy, actions},
        queries::View,
    },
    wire::console::Console,
};

/// The question, as the form sends it. Without a caller there is none yet.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct PolicyQuery {
    principal: String,
    action: String,
    resource: String,
    participants: String,
    #[serde(rename = "type")]
    task_type: String,
}

#[derive(Template)]
#[template(path = "policy.html")]
struct PolicyPage {
    who: String,
    query: PolicyQuery,
    actions: &'static [&'static str],
    explained: Option<ExplainedPolicy>,
}

pub(super) async fn explain(
    State(console): State<Console>,
    Extension(caller): Extension<Caller>,
    Query(query): Query<PolicyQuery>,
) -> Response {
    let reader = caller.clone();
    let explain = move |view: View<'_>| {
        let explained = if query.principal.is_empty() {
            None
        } else {
            let PolicyQuery { principal, action, resource, participants, task_type } = &query;
            let [principal, action, resource] = [principal, action, resource].map(Clone::clone);
            let [participants, task_type] = [participants, task_type].map(Clone::clone);
            let asked = AskedPolicy { principal, action, resource, participants, task_type };
            Some(view.access.explain(&reader, &asked)?)
        };
        Ok(PolicyPage { who: reader.to_string(), query, actions: actions(), explained })
    };
    shown(&console, &caller, explain).await
}

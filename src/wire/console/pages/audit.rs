//! The log of administrative acts, latest first.

use askama::Template;
use axum::{
    Extension,
    extract::{Query, State},
    response::Response,
};
use serde::Deserialize;

use super::{
    lists::{Content, Window},
    shown,
};
use crate::{
    broker::{access::Caller, queries::View},
    proto::v1,
    wire::{console::Console, to_proto::time_text},
};

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct AuditQuery {
    /// The page has entries before the one with this number.
    page: String,
}

#[derive(Template)]
#[template(path = "audit.html")]
struct AuditPage {
    who: String,
    length: u64,
    first: u64,
    rows: Vec<AuditRow>,
    next: Option<u64>,
}

struct AuditRow {
    number: u64,
    at: String,
    actor: String,
    action: &'static str,
    subject: String,
    details: String,
}

impl AuditRow {
    fn new(entry: &v1::AuditEntry) -> Self {
        Self {
            number: entry.number,
            at: time_text(entry.entry_time.as_ref()),
            actor: entry.actor.clone(),
            action: entry.action().as_str_name().trim_start_matches("AUDIT_ACTION_"),
            subject: entry.subject.clone(),
            details: Content::of_at_most(&entry.details, 200).with_ellipsis(),
        }
    }
}

pub(super) async fn list(
    State(console): State<Console>,
    Extension(caller): Extension<Caller>,
    Query(query): Query<AuditQuery>,
) -> Response {
    let who = caller.to_string();
    let list = move |view: View<'_>| {
        let before = Window::before(&query.page)?;
        // The page after the last entry has none, and states the length of the log.
        let window = Window::new(before, view.audit_log(u64::MAX, 1)?.log_length);
        let page = view.audit_log(window.after, window.limit)?;
        let entries = page.entries.iter().rev().filter_map(|shown| shown.entry.as_ref());
        Ok(AuditPage {
            who,
            length: page.log_length,
            first: page.first_number,
            rows: entries.map(AuditRow::new).collect(),
            next: window.next(page.first_number),
        })
    };
    shown(&console, &caller, list).await
}

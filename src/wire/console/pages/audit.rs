//! The log of administrative acts, latest first.

use askama::Template;
use axum::{
    Extension,
    extract::{Query, State},
    response::Response,
};
use serde::Deserialize;

use super::{
    PAGE_SIZE,
    lists::{Content, text_of},
    shown,
};
use crate::{
    broker::{BrokerError, access::Caller, queries::View},
    ids::parse_number,
    proto::v1,
    wire::console::{Console, read},
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
            at: text_of(entry.entry_time.as_ref()),
            actor: entry.actor.clone(),
            action: entry.action().as_str_name().trim_start_matches("AUDIT_ACTION_"),
            subject: entry.subject.clone(),
            details: Content::of_at_most(&entry.details, 512).with_ellipsis(),
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
        let before = match query.page.as_str() {
            // The page after the last entry has none, and states the length of the log.
            "" => view.audit_log(u64::MAX, 1)?.log_length + 1,
            token => parse_number(token).ok_or(BrokerError::PageTokenInvalid)?,
        };
        let after = before.saturating_sub(PAGE_SIZE as u64 + 1);
        let limit = usize::try_from(before.saturating_sub(after + 1)).unwrap_or(PAGE_SIZE);
        let page = view.audit_log(after, limit)?;
        let entries = page.entries.iter().rev().filter_map(|shown| shown.entry.as_ref());
        Ok(AuditPage {
            who,
            length: page.log_length,
            first: page.first_number,
            rows: entries.map(AuditRow::new).collect(),
            next: Some(after + 1).filter(|_| after > 0 && after >= page.first_number),
        })
    };
    shown(&caller, read(&console, &caller, list).await)
}

//! The page of the names in the registries, with their owners.

use askama::Template;
use axum::{
    Extension,
    extract::{Query, State},
    response::Response,
};
use serde::Deserialize;

use super::{invalid, named, shown};
use crate::{
    broker::{
        BrokerError,
        access::Caller,
        queries::{NameFilter, View},
    },
    proto::v1,
    records::{RegistrationRecord, Registry},
    wire::{console::Console, to_proto::time_text},
};

/// The names of one page. Each row reads what is registered under its name.
const NAMES_A_PAGE: usize = 20;
/// The most bytes of an owner in a filter: an agent's id, or `operator:` with the `sub` of a token.
const OWNER_BYTES_MAX: usize = 512;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RegistryQuery {
    kind: String,
    owner: String,
    page: String,
}

#[derive(Template)]
#[template(path = "registry.html")]
struct RegistryPage {
    who: String,
    query: RegistryQuery,
    kinds: [&'static str; 4],
    rows: Vec<NameRow>,
    next: String,
}

struct NameRow {
    kind: &'static str,
    name: String,
    latest: String,
    owner: String,
    offered_to: String,
    state: String,
    updated_at: String,
}

impl NameRow {
    fn new(view: View<'_>, record: &RegistrationRecord) -> Result<Self, BrokerError> {
        let registration = record.to_v1();
        let latest = match (record.name.registry, registration.entries) {
            (_, 0) => String::new(),
            (Registry::Schemas, 1) => "1 version".to_owned(),
            (Registry::Schemas, versions) => format!("{versions} versions"),
            (Registry::Graphs | Registry::AgentSpecs | Registry::ModelSpecs, _) => {
                view.latest_revision(&record.name)?.map(|revision| format!("revision {revision}")).unwrap_or_default()
            }
        };
        let state = v1::RegistrationState::try_from(registration.state).unwrap_or_default().as_str_name();
        Ok(Self {
            kind: record.name.registry.word(),
            latest,
            state: state.trim_start_matches("REGISTRATION_STATE_").to_lowercase(),
            name: registration.name,
            owner: registration.owner_id,
            offered_to: registration.offered_to_id,
            updated_at: time_text(registration.update_time.as_ref()),
        })
    }
}

pub(super) async fn list(
    State(console): State<Console>,
    Extension(caller): Extension<Caller>,
    Query(query): Query<RegistryQuery>,
) -> Response {
    let who = caller.to_string();
    let list = move |view: View<'_>| {
        if query.owner.len() > OWNER_BYTES_MAX {
            return Err(invalid("owner", format!("must have at most {OWNER_BYTES_MAX} bytes")));
        }
        let registry = named("kind", &query.kind, Registry::ALL, Registry::word)?;
        let filter = NameFilter { registry, owner: query.owner.clone() };
        let page = view.registrations(&filter, NAMES_A_PAGE, &query.page)?;
        let rows = page.entries.iter().map(|record| NameRow::new(view, record)).collect::<Result<_, _>>()?;
        Ok(RegistryPage { who, query, kinds: Registry::ALL.map(Registry::word), rows, next: page.next_token })
    };
    shown(&console, &caller, list).await
}

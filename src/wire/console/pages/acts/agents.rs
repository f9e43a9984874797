//! Revoking a key, deregistering an agent, and inviting one.

use std::{sync::Arc, time::Duration};

use askama::Template;
use axum::{
    Extension, Form,
    extract::{Path, State},
    response::Response,
};
use http::StatusCode;
use serde::Deserialize;

use super::{Act, Field, Kind, Offered, Word, answered, encoded, reviewed};
use crate::{
    broker::{
        Broker, BrokerError, Refused,
        access::Caller,
        directory::Entry,
        engine::{Command, KeyChange},
        identity::random_bytes,
        queries::View,
        refused,
    },
    envelope::Checks,
    ids::{AgentId, AgentType, KeyId, NAME_LENGTH_MAX, parse_number},
    records::InvitationRecord,
    wire::console::{
        Console, page,
        pages::{invalid, parsed},
    },
};

/// The most bytes of a reason.
const REASON_BYTES_MAX: usize = 1024;
/// The lifetime of an invitation, in hours, where the form has none.
const HOURS: u64 = 24;
const HOURS_MAX: u64 = 30 * 24;
/// The most types of an invitation.
const TYPES_MAX: usize = 16;

/// The acts on an agent that can be done now.
pub(in crate::wire::console::pages) fn of_agent(view: View<'_>, agent: &Entry) -> Vec<Offered> {
    if is_own(&agent.id()) || agent.record.deregistered_at.is_some() {
        return Vec::new();
    }
    let right = view.access.may_deregister(view.caller, agent, false);
    vec![Offered::new("Deregister", format!("/agents/{}/deregister", encoded(agent.id().as_str())), right)]
}

/// The act on a valid key.
pub(in crate::wire::console::pages) fn of_key(view: View<'_>, agent: &Entry, key: &str) -> Offered {
    let path = format!("/agents/{}/keys/{}/revoke", encoded(agent.id().as_str()), encoded(key));
    Offered::new("Revoke", path, view.access.may_manage_keys(view.caller, agent))
}

/// The invitation of an agent.
pub(in crate::wire::console::pages) fn to_invite(view: View<'_>) -> Offered {
    Offered::new("Invite an agent", "/invite".to_owned(), view.access.may_invite(view.caller))
}

/// Whether the broker runs the agent itself.
fn is_own(agent: &AgentId) -> bool {
    agent.is_reserved() || *agent == AgentId::broker()
}

/// The agent, for a caller that may see the directory.
fn known(view: View<'_>, broker: &Broker, id: &str) -> Result<Arc<Entry>, BrokerError> {
    view.access.may_see_directory(view.caller)?;
    let id = parsed("agent_id", id, AgentId::parse)?;
    broker.directory().get(&id).ok_or_else(|| BrokerError::AgentUnknown { agent: id.to_string() })
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct ReasonForm {
    reason: String,
    /// Of a deregistration: anything but an empty text permits open work.
    force: String,
}

pub(super) async fn review_revoke(
    State(console): State<Console>,
    Extension(caller): Extension<Caller>,
    Path((id, key)): Path<(String, String)>,
) -> Response {
    let broker = console.broker.clone();
    reviewed(&console, &caller, move |view| revocation(view, &broker, (&id, &key), &ReasonForm::default())).await
}

pub(super) async fn revoke(
    State(console): State<Console>,
    Extension(caller): Extension<Caller>,
    Path((id, key)): Path<(String, String)>,
    Form(form): Form<ReasonForm>,
) -> Response {
    let outcome = revoked(&console, &caller, (&id, &key), &form).await;
    let (broker, back) = (console.broker.clone(), format!("/agents/{}", encoded(&id)));
    answered(&console, &caller, outcome, &back, move |view| revocation(view, &broker, (&id, &key), &form)).await
}

async fn revoked(
    console: &Console,
    caller: &Caller,
    (id, key): (&str, &str),
    form: &ReasonForm,
) -> Result<(), Refused> {
    let mut checks = Checks::default();
    let agent = checks.id("agent_id", id, AgentId::parse);
    let key_id = checks.id("key_id", key, KeyId::parse);
    checks.text("reason", &form.reason, REASON_BYTES_MAX);
    let (agent, key_id) = checks.finish_with((agent, key_id)).map_err(refused)?;
    console.broker.count_card_change(caller).map_err(refused)?;
    let change = KeyChange::Revoke { key_id, reason_text: form.reason.clone() };
    let acting = caller.clone();
    let command = |reply| Command::ChangeKeys { agent, change, caller: acting, reply };
    console.broker.ask(command).await.map(drop)
}

fn revocation(view: View<'_>, broker: &Broker, (id, key): (&str, &str), form: &ReasonForm) -> Result<Act, BrokerError> {
    let agent = known(view, broker, id)?;
    view.access.may_manage_keys(view.caller, &agent)?;
    let keys = &agent.record.card.keys;
    if !keys.iter().any(|known| known.key_id == key) {
        return Err(invalid("key_id", "the agent has no such key"));
    }
    let others = keys.iter().filter(|other| other.key_id != key && other.revoke_time.is_none()).count();
    let mut effects = vec![
        format!("Messages that are signed with key {key} are refused from now on."),
        "The sessions and the tokens that it opened end.".to_owned(),
        "The key cannot be used again, nor can its name.".to_owned(),
    ];
    if others == 0 {
        effects.push(format!("{} has no other key: it cannot do anything until an operator adds one.", agent.id()));
    }
    let path = format!("/agents/{}", encoded(agent.id().as_str()));
    Ok(Act {
        who: view.caller.to_string(),
        section: "agents",
        title: format!("Revoke key {key} of {}?", agent.id()),
        effects,
        audit: format!("Key revoked, on {}, with the key and the reason", agent.id()),
        path: format!("{path}/keys/{}/revoke", encoded(key)),
        back: path,
        fields: vec![Field::reason(&form.reason, REASON_BYTES_MAX)],
        button: "Revoke the key",
        command: vec![
            Word::fixed("baton agent key revoke"),
            Word::value(agent.id().as_str()),
            Word::value(key),
            Word::field("reason", " --reason ", &form.reason, ""),
        ],
        ..Act::default()
    })
}

pub(super) async fn review_deregister(
    State(console): State<Console>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Response {
    let broker = console.broker.clone();
    reviewed(&console, &caller, move |view| deregistration(view, &broker, &id, &ReasonForm::default())).await
}

pub(super) async fn deregister(
    State(console): State<Console>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Form(form): Form<ReasonForm>,
) -> Response {
    let outcome = deregistered(&console, &caller, &id, &form).await;
    let (broker, back) = (console.broker.clone(), format!("/agents/{}", encoded(&id)));
    answered(&console, &caller, outcome, &back, move |view| deregistration(view, &broker, &id, &form)).await
}

async fn deregistered(console: &Console, caller: &Caller, id: &str, form: &ReasonForm) -> Result<(), Refused> {
    let mut checks = Checks::default();
    let agent = checks.id("agent_id", id, AgentId::parse);
    checks.text("reason", &form.reason, REASON_BYTES_MAX);
    if agent.as_ref().is_some_and(is_own) {
        checks.wrong("agent_id", "is the broker's own, which cannot be deregistered");
    }
    let agent = checks.finish_with(agent).map_err(refused)?;
    console.broker.count_card_change(caller).map_err(refused)?;
    let (force, reason_text, acting) = (!form.force.is_empty(), form.reason.clone(), caller.clone());
    let command = |reply| Command::Deregister { agent, force, reason_text, caller: acting, reply };
    console.broker.ask(command).await.map(drop)
}

fn deregistration(view: View<'_>, broker: &Broker, id: &str, form: &ReasonForm) -> Result<Act, BrokerError> {
    let agent = known(view, broker, id)?;
    if is_own(&agent.id()) {
        return Err(invalid("agent_id", "is the broker's own, which cannot be deregistered"));
    }
    view.access.may_deregister(view.caller, &agent, false)?;
    let (id, busy) = (agent.id(), broker.directory().busy(&agent, broker.now()));
    let mut effects = vec![
        format!("{id} leaves for good: its keys are revoked, its sessions end, and its id is never used again."),
        "Its card stays readable, and so do its tasks and its custody logs.".to_owned(),
    ];
    let mut fields = vec![Field::reason(&form.reason, REASON_BYTES_MAX)];
    let mut command = vec![
        Word::fixed("baton agent deregister"),
        Word::value(id.as_str()),
        Word::field("reason", " --reason ", &form.reason, ""),
    ];
    let is_forced = !form.force.is_empty();
    if busy.owned > 0 || busy.offers > 0 || is_forced {
        effects.push(format!(
            "It owns {} open tasks and has {} open offers. Without the mark below the act is refused. With it, the offers go on to other candidates, and the tasks wait for an operator who reassigns them.",
            busy.owned, busy.offers
        ));
        let permitted = view.access.may_deregister(view.caller, &agent, true).is_ok();
        if permitted {
            fields.push(Field::check("force", "Also with open tasks and offers", is_forced));
            command.push(Word::switch("force", " --force", is_forced));
        }
    }
    let path = format!("/agents/{}", encoded(id.as_str()));
    Ok(Act {
        who: view.caller.to_string(),
        section: "agents",
        title: format!("Deregister {id}?"),
        about: agent.record.card.description.clone(),
        effects,
        audit: format!("Agent deregistered, on {id}, with the reason"),
        path: format!("{path}/deregister"),
        back: path,
        fields,
        button: "Deregister",
        command,
        ..Act::default()
    })
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct InviteForm {
    agent: String,
    /// The types, with commas between them.
    types: String,
    hours: String,
}

pub(super) async fn review_invite(State(console): State<Console>, Extension(caller): Extension<Caller>) -> Response {
    reviewed(&console, &caller, move |view| invitation(view, &InviteForm::default())).await
}

/// The page with the secret, which the broker shows once.
#[derive(Template)]
#[template(path = "invited.html")]
struct Invited {
    who: String,
    invitation: String,
    agent: String,
    types: Vec<String>,
    expires_at: String,
}

pub(super) async fn invite(
    State(console): State<Console>,
    Extension(caller): Extension<Caller>,
    Form(form): Form<InviteForm>,
) -> Response {
    let outcome = match record(&console.broker, &form) {
        Ok(record) => {
            let invitation = format!("invitation-{}", hex::encode(random_bytes(console.broker.ids())));
            let invited = Invited {
                who: caller.to_string(),
                invitation: invitation.clone(),
                agent: record.agent.as_ref().map(ToString::to_string).unwrap_or_default(),
                types: record.types.iter().map(ToString::to_string).collect(),
                expires_at: record.expires_at.to_string(),
            };
            let acting = caller.clone();
            let command = |reply| Command::Invite { invitation, record, caller: acting, reply };
            console.broker.ask(command).await.map(|()| invited)
        }
        Err(error) => Err(error),
    };
    match outcome {
        Ok(invited) => page(StatusCode::OK, &invited),
        Err(error) => answered(&console, &caller, Err(error), "", move |view| invitation(view, &form)).await,
    }
}

fn record(broker: &Broker, form: &InviteForm) -> Result<InvitationRecord, Refused> {
    let mut checks = Checks::default();
    let agent = checks.optional_id("agent", &form.agent, AgentId::parse);
    let types: Vec<String> = form.types.split([',', ' ']).filter(|text| !text.is_empty()).map(str::to_owned).collect();
    let types = checks.ids("types", &types, TYPES_MAX, AgentType::parse);
    let hours = if form.hours.is_empty() { Some(HOURS) } else { parse_number(&form.hours) };
    let hours = hours.filter(|hours| (1..=HOURS_MAX).contains(hours));
    if hours.is_none() {
        checks.wrong("hours", format!("must be from 1 to {HOURS_MAX}"));
    }
    let hours = checks.finish_with(hours).map_err(refused)?;
    let expires_at = broker.now().plus(Duration::from_secs(hours * 3600));
    Ok(InvitationRecord { agent, types, expires_at, used_by: None })
}

fn invitation(view: View<'_>, form: &InviteForm) -> Result<Act, BrokerError> {
    view.access.may_invite(view.caller)?;
    let hours = if form.hours.is_empty() { HOURS.to_string() } else { form.hours.clone() };
    let types = form.types.split([',', ' ']).filter(|text| !text.is_empty());
    let mut command = vec![Word::fixed("baton agent invite"), Word::field("agent", " --for ", &form.agent, "")];
    command.extend(types.map(|name| Word::fixed(format!(" --type {}", super::quoted(name)))));
    command.push(Word::field("hours", " --hours ", &hours, ""));
    Ok(Act {
        who: view.caller.to_string(),
        section: "agents",
        title: "Invite an agent?".to_owned(),
        effects: vec![
            "The next page shows a secret text, once. The agent that presents it may register one time, with a key of its own.".to_owned(),
            "The agent may register under the types that you name, and under no other.".to_owned(),
        ],
        audit: "Invitation created, with the agent, the types and the end".to_owned(),
        path: "/invite".to_owned(),
        back: "/agents".to_owned(),
        fields: vec![
            Field { placeholder: "any new agent", ..Field::text("agent", "Agent", &form.agent, NAME_LENGTH_MAX) },
            Field { placeholder: "support, expert", ..Field::text("types", "Types", &form.types, 2048) },
            Field { kind: Kind::Number, ..Field::text("hours", "Valid for hours", &hours, HOURS_MAX as usize) },
        ],
        button: "Invite",
        command,
        ..Act::default()
    })
}

//! The records of the broker as resources, each with a URI, and the news of them.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use baton_client::{
    envelope::signing,
    proto::v1::{self, HandoffMode},
};
use serde_json::{Map, Value, json};

use crate::{
    ActError, Face,
    acts::{find, inbox, plans, tasks},
    contexts,
    text::{DESCRIPTION_MAX, TEXT_MAX, clean, short},
};

/// The most entries of each kind in a list.
const LISTED_MAX: u32 = 50;
/// The most resources that a connection follows at a time.
pub(crate) const FOLLOWED_MAX: usize = 32;
/// How often a followed resource is read.
const READ_EVERY: Duration = Duration::from_secs(2);

/// A kind of resource.
pub(crate) struct Kind {
    /// The URI, with `{…}` for ids.
    pub(crate) template: &'static str,
    pub(crate) name: &'static str,
    pub(crate) description: &'static str,
}

/// All kinds. Those without an id are resources by themselves.
pub(crate) const KINDS: [Kind; 7] = [
    Kind { template: "baton://me", name: "me", description: "This agent, as the broker knows it." },
    Kind { template: "baton://inbox", name: "inbox", description: "Offers, questions and own tasks." },
    Kind { template: "baton://agents/{id}", name: "agent", description: "An agent: types, skills, presence." },
    Kind { template: "baton://tasks/{id}", name: "task", description: "A task: owner, status, context, result." },
    Kind { template: "baton://handoffs/{id}", name: "handoff", description: "A handoff: state, sides, problems." },
    Kind { template: "baton://plans/{id}", name: "plan", description: "A plan: subtasks and results." },
    Kind {
        template: "baton://tasks/{id}/context/{section}",
        name: "section",
        description: "One section of a task's latest context. Never a secret one.",
    },
];

/// What a URI names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    Me,
    Inbox,
    Agent(String),
    Task(String),
    Handoff(String),
    Plan(String),
    Section(String, String),
}

impl Place {
    /// `None`: the URI names nothing of these kinds.
    pub(crate) fn parse(uri: &str) -> Option<Self> {
        let path = uri.strip_prefix("baton://")?;
        let parts: Vec<&str> = path.split('/').collect();
        if parts.iter().any(|part| baton_client::ids::check_name(part).is_err()) {
            return None;
        }
        Some(match parts[..] {
            ["me"] => Self::Me,
            ["inbox"] => Self::Inbox,
            ["agents", id] => Self::Agent(id.to_owned()),
            ["tasks", id] => Self::Task(id.to_owned()),
            ["handoffs", id] => Self::Handoff(id.to_owned()),
            ["plans", id] => Self::Plan(id.to_owned()),
            ["tasks", id, "context", section] => Self::Section(id.to_owned(), section.to_owned()),
            _ => return None,
        })
    }

    /// The data of the resource.
    pub(crate) async fn read(&self, face: &Arc<Face>) -> Result<Value, ActError> {
        match self {
            Self::Me => agent(face, face.id()).await,
            Self::Inbox => inbox::read(face, LISTED_MAX).await.map(value),
            Self::Agent(id) => agent(face, id).await,
            Self::Task(id) => tasks::read(face, id).await.map(value),
            Self::Handoff(id) => face.handoff(id).await.map(|handoff| handoff_shown(&handoff)),
            Self::Plan(id) => plans::shown(face, id).await.map(value),
            Self::Section(task, name) => section(face, task, name).await,
        }
    }
}

fn value(shown: impl serde::Serialize) -> Value {
    serde_json::to_value(shown).unwrap_or_default()
}

async fn agent(face: &Face, id: &str) -> Result<Value, ActError> {
    let client = face.client().await?;
    let agent = client.get_agent(id).await?;
    let card = agent.card.clone().unwrap_or_default();
    let mut shown = json!({
        "agent_id": id,
        "types": find::names(&card.agent_types),
        "skills": find::skills(&card),
        "own_description": clean(&card.description, DESCRIPTION_MAX),
    });
    shown["presence"] = short(agent.presence().as_str_name(), "PRESENCE_").into();
    Ok(shown)
}

fn handoff_shown(handoff: &v1::Handoff) -> Value {
    let offer = |offer: &v1::HandoffOffer| {
        json!({
            "agent_id": offer.candidate_id,
            "outcome": short(offer.outcome().as_str_name(), "OFFER_OUTCOME_"),
            "text": clean(&offer.reason_text, DESCRIPTION_MAX),
        })
    };
    let time = handoff.deadline.as_ref().or(handoff.whole_deadline.as_ref());
    let mut shown = json!({
        "handoff_id": handoff.handoff_id,
        "task_id": handoff.task_id,
        "state": short(handoff.state().as_str_name(), "HANDOFF_STATE_"),
        // The author of summary and reason.
        "from": handoff.sender_id,
        "candidate_id": handoff.candidate_id,
        "is_loan": handoff.mode() == HandoffMode::Delegate,
        "task_type": clean(&handoff.task_type, 128),
        "summary": clean(&handoff.initial_context_summary, TEXT_MAX),
        "reason": clean(&handoff.reason_text, TEXT_MAX),
        "offers": handoff.offers.iter().map(offer).collect::<Vec<_>>(),
    });
    if let Some(time) = time.and_then(|time| baton_client::time::Timestamp::from_parts(time.seconds, time.nanos)) {
        shown["deadline"] = time.to_string().into();
    }
    if !handoff.error_message.is_empty() {
        shown["problem"] = clean(&handoff.error_message, TEXT_MAX).into();
    }
    shown
}

async fn section(face: &Face, task: &str, name: &str) -> Result<Value, ActError> {
    let sections = contexts::latest(face, task).await?.unwrap_or_default();
    match sections.iter().find(|section| section.name == name && !section.secret) {
        Some(_) => Ok(contexts::shown(&sections, &[name.to_owned()]).remove(name).unwrap_or_default()),
        None => {
            let text = format!("The task {task} has no section {name} that you may read.");
            Err(ActError::new("CONTEXT_VERSION_UNKNOWN", text))
        }
    }
}

/// The URIs of what the agent has to do with now, each with a title.
pub(crate) async fn current(face: &Face) -> Result<BTreeMap<String, String>, ActError> {
    let waiting = inbox::read(face, LISTED_MAX).await?;
    let mut listed = BTreeMap::new();
    for task in waiting.tasks() {
        listed.insert(format!("baton://tasks/{task}"), format!("task {task}"));
    }
    let client = face.client().await?;
    let agent_id = face.id().to_owned();
    let request = v1::ListHandoffsRequest { page_size: LISTED_MAX, agent_id, open_only: true, ..Default::default() };
    for handoff in client.answer(client.handoffs().list_handoffs(request).await)?.handoffs {
        let id = &handoff.handoff_id;
        listed.insert(format!("baton://handoffs/{id}"), format!("handoff of {}", handoff.task_id));
    }
    Ok(listed)
}

/// Calls `tell` when the resource has other content than before. Ends with the last of its reads that fails for good.
pub(crate) async fn follow<F: Future<Output = bool>>(face: &Arc<Face>, place: &Place, tell: impl Fn() -> F) {
    let mut before = digest(place.read(face).await.ok());
    loop {
        tokio::time::sleep(READ_EVERY).await;
        let now = match place.read(face).await {
            Ok(value) => digest(Some(value)),
            // The broker is away: the news follows its return.
            Err(error) if error.retry_after_seconds.is_some() => continue,
            Err(_) => digest(None),
        };
        if now != before && !tell().await {
            return;
        }
        before = now;
    }
}

/// A digest of the content without what changes with the time alone.
fn digest(value: Option<Value>) -> [u8; 32] {
    let mut value = value.unwrap_or_default();
    strip(&mut value);
    signing::sha256(&[value.to_string().as_bytes()])
}

fn strip(value: &mut Value) {
    let strip_members = |members: &mut Map<String, Value>| {
        members.remove("seconds_left");
        members.values_mut().for_each(strip);
    };
    match value {
        Value::Object(members) => strip_members(members),
        Value::Array(values) => values.iter_mut().for_each(strip),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_names_one_thing_or_nothing() {
        let place = |uri: &str| Place::parse(uri);
        assert_eq!(place("baton://me"), Some(Place::Me));
        assert_eq!(place("baton://tasks/t-1"), Some(Place::Task("t-1".to_owned())));
        let section = Place::Section("t-1".to_owned(), "goals".to_owned());
        assert_eq!(place("baton://tasks/t-1/context/goals"), Some(section));
        for wrong in [
            "",
            "baton://",
            "baton:/me",
            "baton://me/",
            "baton://tasks",
            "baton://tasks/",
            "baton://tasks/a/b",
            "baton://tasks/../me",
            "baton://tasks/t/context/",
            "baton://agents/a b",
            "file:///etc/passwd",
        ] {
            assert_eq!(place(wrong), None, "{wrong}");
        }
        for kind in &KINDS {
            let uri = kind.template.replace("{id}", "x").replace("{section}", "y");
            assert!(place(&uri).is_some(), "{uri}");
        }
    }

    #[test]
    fn time_alone_is_no_news() {
        let at = |seconds: u64, text: &str| digest(Some(json!({"offers": [{"seconds_left": seconds, "text": text}]})));
        assert_eq!(at(1, "a"), at(2, "a"));
        assert_ne!(at(1, "a"), at(1, "b"));
    }
}
